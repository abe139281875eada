"""What an agent is made of: its signature and tools, checked; the built-in tools; the extractor."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from ferrule.errors import DuplicateToolError, SignatureError
from ferrule.programs.instructions import CLARIFY, extract_instructions, finish_tool
from ferrule.programs.predict import ChainOfThought, Predict
from ferrule.tools.definition.export import check_no_intention_argument
from ferrule.tools.toolbox import LiveToolbox, Toolbox
from ferrule.values.signatures.fields import declare, without_none
from ferrule.values.signatures.signature import as_signature

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ferrule.runs.limits import Limits
    from ferrule.tools.tool import Tool
    from ferrule.values.confirmation.policy import Policy
    from ferrule.values.conversation.compact import Compact
    from ferrule.values.conversation.exchange import Calls
    from ferrule.values.run.outcome import Trajectory
    from ferrule.values.signatures.signature import Signature

OWN_KEYWORDS = ("lm", "config", "max_iters")
"""Keywords of a call that are no inputs, unless an input has the name."""
_TRAJECTORY = declare("input", "The steps taken: thoughts, calls, and what came of them.", is_untyped=True)
"""It has no type, so that a `RenderedText` stays one."""


class Agent(Protocol):
    """What the loop needs of `ReAct`."""

    max_iters: int
    calls: Calls | None
    intention: bool
    limits: Limits
    enable_user_clarification: bool
    policy: Policy | None
    parallel: bool
    compact: Compact | None
    react: Predict
    extract: ChainOfThought

    @property
    def native(self) -> bool | None:
        """Whether tools are declared to the model; None if its capabilities decide."""
        ...

    def truncate_trajectory(self, trajectory: Trajectory) -> Trajectory:
        """The part of a trajectory to show when all of it no longer fits."""
        ...


def check_signature(signature: Any) -> type[Signature]:
    """The agent's signature; raises `SignatureError` for field names that the loop uses itself."""
    found = as_signature(signature)
    for name, field in found.plan.inputs.items():
        is_no_history = name == "history" and not _takes_history(field.annotation)
        if name in {"trajectory", *OWN_KEYWORDS} or name.startswith("next_") or is_no_history:
            why = "`ReAct` uses it itself" if name != "history" else "it is reserved for the conversation: give it the type `History`"
            raise SignatureError(f"An input of a ReAct agent cannot be called `{name}`: {why}. Choose another name.")
    if "trajectory" in found.plan.outputs:
        msg = (
            "An output of a ReAct agent cannot be called `trajectory`: its prediction has the steps under that name. "
            "Choose another name, or read `prediction.trajectory`."
        )
        raise SignatureError(msg)
    return found


def _takes_history(annotation: Any) -> bool:
    from ferrule.values.conversation.history import History

    return without_none(annotation) is History


def check_tools(tools: Iterable[Any], *, intention: bool) -> Toolbox:
    """The agent's own tools; raises `DuplicateToolError` for a name of a built-in tool."""
    own = Toolbox.of(tools)

    def check(box: Toolbox) -> None:
        check_names((*box, *(box.shelf or ())), intention=intention)

    if isinstance(own, LiveToolbox):
        own.when_listed(check)
    else:
        check(own)
    return own


@lru_cache(maxsize=256)
def with_builtin(signature: type[Signature], own: Toolbox, *, clarification: bool, native: bool) -> Toolbox:
    """The agent's tools and the built-in ones. In native mode the arguments of `finish` are the outputs."""
    builtin = (CLARIFY,) if clarification else ()
    return Toolbox((*own, *builtin, finish_tool(signature, with_outputs=native)))


class _WithoutReasoning(ChainOfThought):
    """The extractor of an agent that has an input called `reasoning`: it cannot have such an output."""

    @staticmethod
    def _with_reasoning(signature: type[Signature], description: str) -> type[Signature]:
        del description
        return signature


def make_extractor(react: Predict) -> ChainOfThought:
    """The program that reads the outputs from the trajectory, with reasoning first if no input has that name."""
    signature = react.signature
    kind = _WithoutReasoning if "reasoning" in signature.plan.inputs else ChainOfThought
    # Kept with the signature, as `ChainOfThought` does: agents may be made for every request.
    made = kind(signature.kept(make_extractor, partial(_extracting, signature)), **react.config)
    made.predict.output_validators = react.output_validators  # one list, for validators that come later
    made.predict.is_validated = True  # it may come to be
    return made


def _extracting(signature: type[Signature]) -> type[Signature]:
    return signature.append("trajectory", _TRAJECTORY).with_instructions(extract_instructions(signature))


def check_names(own: Sequence[Tool] | Toolbox, *, intention: bool) -> None:
    """Raise `DuplicateToolError` for a tool with the name of a built-in one."""
    for tool in own:
        if tool.name in {"finish", CLARIFY.name}:
            msg = (
                f"A tool cannot be called `{tool.name}`: `ReAct` has a built-in one of that name. "
                f"Give yours another: Tool(function, name=...)."
            )
            raise DuplicateToolError(msg)
    if intention:
        check_no_intention_argument(own)
