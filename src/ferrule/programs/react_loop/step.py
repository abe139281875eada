"""One step of an agent: its signature, and the predictor `agent.react`, which has it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from ferrule.errors import SignatureError
from ferrule.programs.code_mode.snippets import RUN_CODE
from ferrule.programs.instructions import CLARIFY, finish_tool, loop_instructions
from ferrule.programs.predict import Predict
from ferrule.tools.definition.export import INTENTION_DESCRIPTION
from ferrule.tools.toolbox import Toolbox
from ferrule.values.signatures.fields import declare
from ferrule.values.signatures.signature import as_signature
from ferrule.values.typed import D, P, S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.acts import Flow
    from ferrule.values.signatures.signature import Signature


class StepPredict(Predict[S, D, P]):
    """The predictor of an agent's steps: `agent.react`.

    Its `signature` has the agent's inputs, and the outputs `next_thought`, `next_tool_name` (one of
    the tools) and `next_tool_args`; its instructions list the tools. This is the prompt of a step
    with calls in text; with native calls, a request says the same in the provider's form. It is
    made from `program_signature`, the agent's own, and from the tools, and follows both. Called by
    itself, it asks for one step and runs nothing.

    Set `signature` to a signature of the agent, or to one of a step with other instructions: these
    become the agent's, and the part that the loop adds follows them. Raises `SignatureError` for
    other changes of a step.
    """

    asks_for_intention = False
    """Whether the model says why it makes a call."""
    has_clarification = False
    """Whether the model may ask a person."""
    _program_signature: type[Signature]

    @property
    def program_signature(self) -> type[Signature]:
        """The signature of the agent."""
        return self._program_signature

    @property
    def signature(self) -> type[Signature]:
        """The signature of one step."""
        offered = with_builtin(
            self.program_signature,
            self.toolbox,
            clarification=self.has_clarification,
            native=False,
        )
        return step_signature(self.program_signature, offered, intention=self.asks_for_intention)

    @signature.setter
    def signature(  # pyright: ignore[reportIncompatibleVariableOverride]  made when it is read
        self, signature: type[Signature] | str
    ) -> None:
        signature = as_signature(signature)
        if "next_tool_name" in signature.plan.outputs:
            signature = self._with_instructions_of(signature)
        self._program_signature = signature

    def _with_instructions_of(self, step: type[Signature]) -> type[Signature]:
        """The agent's signature with the instructions of a changed signature of a step."""
        current = self.signature
        if step.dump_state()["fields"] != current.dump_state()["fields"]:
            raise SignatureError(
                "The fields of a step cannot be changed: `agent.react.signature` is made from "
                "`agent.signature` and the tools. Change its instructions, or set "
                "`agent.signature`."
            )
        program_signature = self.program_signature
        added = current.instructions.removeprefix(program_signature.instructions)
        return program_signature.with_instructions(step.instructions.removesuffix(added))

    def flow_for(self, module: Any, inputs: Mapping[str, Any]) -> Flow:
        """Ask for one step."""
        step: Predict[Any, Any, Any] = Predict(self.signature, lm=self.lm, **self.config)
        step.outputs_have_format = self.outputs_have_format
        return step.flow_for(module, inputs)


def with_builtin(
    signature: type[Signature], own: Toolbox, *, clarification: bool, native: bool
) -> Toolbox:
    """The agent's tools and the built-in ones.

    In native mode the arguments of `finish` are the outputs.
    """

    def make() -> Toolbox:
        builtin = (CLARIFY,) if clarification else ()
        return Toolbox((*own, *builtin, finish_tool(signature, with_outputs=native)))

    return own.cached_value((with_builtin, signature, clarification, native), make)


def step_signature(
    program_signature: type[Signature], toolbox: Toolbox, *, intention: bool
) -> type[Signature]:
    """The signature of a step, given the agent's and all tools, the built-in ones included."""

    def make() -> type[Signature]:
        instructions = loop_instructions(program_signature, toolbox)
        return _step_signature(program_signature, instructions, toolbox.names, intention=intention)

    return toolbox.cached_value((step_signature, program_signature, intention), make)


# Cached for the process too: runs whose toolboxes have the same tools share the class, and with it
# the checks and schemas that are derived from it.
@lru_cache(maxsize=256)
def _step_signature(
    program_signature: type[Signature],
    instructions: str,
    tools: tuple[str, ...],
    *,
    intention: bool,
) -> type[Signature]:
    names: Any = Literal[tools]  # built at run time
    signature = program_signature.delete(*program_signature.plan.outputs)
    signature = signature.with_instructions(instructions)
    signature = signature.append(
        "next_thought",
        declare("output", "What you think of the situation and what to do next."),
        str,
    )
    if intention:
        signature = signature.append(
            "next_intention", declare("output", INTENTION_DESCRIPTION), str
        )
    signature = signature.append(
        "next_tool_name", declare("output", "The tool to call next."), names
    )
    arguments = "The tool's arguments."
    if RUN_CODE in tools:
        arguments += f" For `{RUN_CODE}`, the code alone, in a fence: ```python ... ```."
    return signature.append("next_tool_args", declare("output", arguments), dict[str, Any])
