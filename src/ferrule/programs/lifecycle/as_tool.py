"""A program as a tool of another program: `program.as_tool()`.

In: a program with a signature. Out: a `Tool` whose arguments are the signature's inputs and whose
result is its outputs. When an agent calls it, the program runs as a part of the agent's run: both
share one journal, one list of questions and one budget, and a resumed run continues in the middle
of the program. When called directly, the tool calls the program.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import ToolDefinitionError
from ferrule.runs.driver.drive import aperform_as_tool, perform_as_tool
from ferrule.tools.tool import Tool
from ferrule.values.outcome import Prediction
from ferrule.values.signatures.compiled import without_generated
from ferrule.values.signatures.signature import Signature

if TYPE_CHECKING:
    from ferrule.runs.protocols import Program

_FERRULE = "ferrule."


def as_tool(program: Program, name: str | None, description: str | None, **keywords: Any) -> Tool:
    """Make the tool; `keywords` are those of `Tool`.

    Raises `ToolDefinitionError` for a program without a signature, or without a name.
    """
    signature: Any = getattr(program, "signature", None)
    if not (isinstance(signature, type) and issubclass(signature, Signature)):
        raise ToolDefinitionError(
            f"`{program.name}` cannot become a tool: it has no signature. "
            "Give it one: `self.signature = Signature('question -> answer')`."
        )
    if description is None:
        description = signature.instructions
    arg_desc = {
        argument: field.description
        for argument, field in signature.plan.inputs.items()
        if field.description
    }
    return Tool(
        AgentTool(program, signature),
        name or _name(program, signature),
        description,
        arg_desc=arg_desc,
        **keywords,
    )


def _name(program: Program, signature: type[Signature]) -> str:
    """The name of the tool: the program's own, or that of the signature's class.

    For a signature written as text, it is that of the program's class.
    """
    if "name" in vars(program) or program.name != type(program).__name__:
        return program.name
    name = signature.__name__
    if name == "StringSignature":
        if type(program).__module__.startswith(_FERRULE):
            raise ToolDefinitionError(
                f"A tool needs a name, and a `{program.name}` with a signature written as text has "
                f"none: as_tool('research'), or `{program.name}(..., name='research')`."
            )
        name = type(program).__name__
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


class AgentTool:
    """The function of a tool that runs a program."""

    is_program = True
    """Marks a program for the driver, which then records the program's answers one by one."""

    def __init__(self, program: Program, signature: type[Signature]) -> None:
        self.program = program
        self.__signature__ = signature.plan.call_signature()

    def __call__(self, /, **inputs: Any) -> Any:
        """Run the program and return its outputs."""
        return _outputs(perform_as_tool(self.program, without_generated(inputs)))

    async def acall(self, /, **inputs: Any) -> Any:
        """`__call__` on an event loop."""
        return _outputs(await aperform_as_tool(self.program, without_generated(inputs)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AgentTool) and self.program is other.program

    def __hash__(self) -> int:
        return hash(id(self.program))


def _outputs(result: Any) -> Any:
    """The value of a single output, or several outputs by name.

    With the reason, if the program ended early.
    """
    if not isinstance(result, Prediction):
        return result
    prediction = cast("Prediction[Any]", result)
    outputs: dict[str, Any] = dict(prediction)
    if "reason" not in outputs and prediction.reason is not None:
        return {**outputs, "ended_early": prediction.reason}
    if len(outputs) == 1:
        return next(iter(outputs.values()))
    return outputs
