"""The parts of an agent: its signature and tools, checked; the built-in tools; the extractor.

MCP servers list their tools later than the agent is made, and list others at any time. So the tools
are checked by functions that are passed to `Toolbox.when_listed`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from ferrule.acts import CallTools, RecallResults
from ferrule.adapters.fields import tool_inputs
from ferrule.adapters.render import RenderedText
from ferrule.approval.policy import check_rules, declared_under
from ferrule.errors import ConfigurationError, DuplicateToolError, SignatureError, shown
from ferrule.programs.code_mode.snippets import check_tools_of_code
from ferrule.programs.instructions import extract_instructions
from ferrule.tools.definition.export import check_no_intention_argument
from ferrule.tools.tool import Tool, names_in_process
from ferrule.tools.toolbox import RESERVED, Toolbox
from ferrule.values.outcome import Trajectory
from ferrule.values.signatures.fields import declare, history_input
from ferrule.values.signatures.signature import as_signature

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ferrule.adapters.adapter import Adapter
    from ferrule.approval.policy import Policy
    from ferrule.programs.code_mode.interpreter import CodeMode
    from ferrule.programs.predict import ChainOfThought, Predict
    from ferrule.programs.react_loop.step import StepPredict
    from ferrule.programs.tool_use.use import UsingTools
    from ferrule.runs.limits import Limits
    from ferrule.values.calls.call import ToolResult
    from ferrule.values.conversation.compact import Compact
    from ferrule.values.conversation.exchange import Calls
    from ferrule.values.outcome import Step
    from ferrule.values.signatures.signature import Signature

E = TypeVar("E")
OnLimit = Literal["raise", "extract"]
_STEP_OUTPUTS = frozenset({"next_thought", "next_intention", "next_tool_name", "next_tool_args"})
"""The outputs of `agent.react.signature`: they distinguish it from the agent's own signature."""
OWN_KEYWORDS = ("lm", "config", "max_iters")
"""Keywords of a call that are options, unless an input has that name."""
OPTIONS_OF_CALL = (*OWN_KEYWORDS, "limits", "on_limit", "demos")
"""All options of a call."""
_TRAJECTORY = declare(
    "input", "The steps taken: thoughts, calls, and what came of them.", is_untyped=True
)
"""Untyped, so that a `RenderedText` is not converted."""


class Agent(Protocol):
    """The attributes of `ReAct` that the loop uses."""

    max_iters: int
    calls: Calls | None
    code: CodeMode | None
    intention: bool
    limits: Limits
    on_limit: OnLimit
    policy: Policy | None
    parallel: bool
    compact: Compact | None
    stop_at_tools: frozenset[str]
    react: StepPredict
    extract: ChainOfThought

    def truncate_trajectory(self, trajectory: Trajectory) -> Trajectory:
        """The part of a trajectory to show when all of it no longer fits."""
        ...


def check_signature(signature: Any) -> type[Signature]:
    """The agent's signature; raises `SignatureError` for field names that the loop reserves."""
    signature = as_signature(signature)
    for name, field in signature.plan.inputs.items():
        why = ""
        if name in {"trajectory", *OWN_KEYWORDS} or name.startswith("next_"):
            why = "`ReAct` uses this name itself"
        elif name == "history" and not history_input({name: field}):
            why = "the name is for a conversation, of the type `History`"
        if why:
            raise SignatureError(
                f"An input of a ReAct agent cannot be called `{name}`: {why}. Choose another name."
            )
    for name in signature.plan.outputs:
        if name == "trajectory":
            raise SignatureError(
                "An output of a ReAct agent cannot be called `trajectory`: its prediction has the "
                "steps under that name. Choose another name, or read `prediction.trajectory`."
            )
        if name in _STEP_OUTPUTS:
            raise SignatureError(
                f"An output of a ReAct agent cannot be called `{name}`: its steps have a field of "
                "that name. Choose another name."
            )
    return signature


def check_tools(tools: Iterable[Any], *, intention: bool) -> Toolbox:
    """The agent's own tools; raises `DuplicateToolError` for one named like a built-in tool."""
    toolbox = Toolbox.of(tools)

    def check(listed: Toolbox) -> None:
        check_names((*listed, *(listed.shelf or ())), intention=intention)

    toolbox.when_listed(check)
    return toolbox


def make_extractor(react: Predict, kind: type[ChainOfThought]) -> ChainOfThought:
    """The program that reads the outputs from the trajectory.

    It reasons first, if no input is called `reasoning`.
    """
    signature = react.program_signature
    options = dict(react.config)
    if "reasoning" in signature.plan.inputs:
        options["reasoning_description"] = None
    extractor = kind(extracting(signature), **options)
    # The same list, so that it gets validators added later.
    extractor.predict.output_validators = react.output_validators
    return extractor


def extracting(signature: type[Signature]) -> type[Signature]:
    """The extractor's signature for an agent with this one.

    Cached on it, because agents may be made for every request.
    """
    return signature.cached_value(extracting, partial(_extracting, signature))


def _extracting(signature: type[Signature]) -> type[Signature]:
    return signature.append("trajectory", _TRAJECTORY).with_instructions(
        extract_instructions(signature)
    )


def format_trajectory(trajectory: Mapping[str, Any], adapter: Adapter) -> Any:
    """A trajectory in an adapter's form, one field for each entry.

    It is text, or parts if a tool returned pictures and the like.
    """
    entries: dict[str, Any] = dict(trajectory)
    if isinstance(trajectory, Trajectory):
        entries = {}
        for index, step in enumerate(trajectory.steps):
            entries |= _entries(step, index)
    content = adapter.step_message(entries).content
    if isinstance(content, str):
        return RenderedText(content, adapter)
    return content


def _entries(step: Step, index: int) -> dict[str, Any]:
    if step.said:
        return {f"user_message_{index}": step.said}
    entries = {f"{key}_{index}": step.entry(key) for key in ("thought", "tool_name", "tool_args")}
    observation: Any = [result.content for result in step.results] or None
    if len(step.results) == 1:
        observation = step.results[0].content
    return {**entries, f"observation_{index}": observation}


def check_on_limit(value: Any) -> OnLimit:
    """Check the option `on_limit`; raises `ConfigurationError` for another value."""
    if value not in {"raise", "extract"}:
        raise ConfigurationError(f'`on_limit` is "raise" or "extract", found {shown(value)}.')
    return value


def instructed(extract: E, text: str) -> E:
    """The extractor with further instructions, for one run."""
    copied: Any = copy(extract)
    copied.predict = copy(copied.predict)
    copied.predict.signature = copied.predict.signature.append_instructions(text)
    return copied


def tool_names(tools: Any) -> frozenset[str]:
    """The names of these tools, each given as a tool, a function or a name."""
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise ConfigurationError(
            f"`stop_at_tools` takes a list of tools or of their names, found {shown(tools)}."
        )
    return frozenset(
        tool if isinstance(tool, str) else Tool.of(tool).name
        for tool in cast("Iterable[Any]", tools)
    )


def check_stops(names: frozenset[str], react: Predict) -> None:
    """Raise `ConfigurationError` for a name without a tool.

    Not if a server may still list the tool, or an input may bring it.
    """
    toolbox = react.toolbox
    if not names or toolbox.servers or tool_inputs(react.program_signature):
        return
    missing = names - {tool.name for tool in (*toolbox, *(toolbox.shelf or ()))}
    if missing:
        raise ConfigurationError(
            f"`stop_at_tools` names {', '.join(map(repr, sorted(missing)))}, "
            "and the agent has no such tool."
        )


def check_bounded_tools(limits: Limits, react: Predict) -> None:
    """Raise `ConfigurationError` for a bound on a tool that the agent does not have.

    Neither it nor a program inside, nor any tool of the process, which a callback may load. Servers
    are checked when they have listed their tools.
    """
    names = set(limits.per_tool or ())
    if not names or tool_inputs(react.program_signature):
        return

    def check(listed: Toolbox) -> None:
        offered = [*listed, *(listed.shelf or ())]
        known = {name for tool in offered for name in (tool.name, tool.wire_name)}
        missing = sorted(names - known - names_in_process())
        if missing:
            raise ConfigurationError(
                f"`per_tool` of `Limits` names {', '.join(map(repr, missing))}, and the agent has "
                f"no such tool. Its tools are: {', '.join(sorted(known)) or 'none'}."
            )

    react.toolbox.when_listed(check)


def check_code_mode(agent: Agent) -> None:
    """Check the options of an agent whose model calls tools in code."""
    if agent.stop_at_tools:
        raise ConfigurationError(
            "`stop_at_tools` does not go with `calls='code'`: a tool's result goes to the code "
            "that called it. Let the code end with it, and the model finish."
        )
    check_tools_of_code(agent.react.toolbox)


def check_policy_of_agent(policy: Policy | None, react: Predict) -> None:
    """Check the rules of an agent's own policy against its tools, once these are known.

    Not if an input may bring tools. MCP servers are checked when all of them have listed their
    tools for the first time: a tool that a server takes away later is not a mistake in a rule.
    """
    if policy is None or tool_inputs(react.program_signature):
        return
    toolbox = react.toolbox
    declared_under([policy], toolbox.provider_tools)  # raises for one that it would ask about
    builtin = (*RESERVED, *[tool.name for tool in toolbox.provider_tools])
    is_checked = False

    def check(listed: Toolbox) -> None:
        nonlocal is_checked
        if is_checked or any(server.is_away for server in toolbox.servers):
            return
        check_rules(policy, (*listed, *(listed.shelf or ())), builtin=builtin)
        is_checked = True

    toolbox.when_listed(check)


def note_results(
    acts: UsingTools,
    toolbox: Toolbox,
    names: frozenset[str],
    returned: dict[str | None, ToolResult],
) -> UsingTools:
    """Pass on the acts of a turn, and note the results of the tools with these names.

    `returned` gets them, by the ids of their calls. The results that the turn returns are
    for the model: one may hold a note, or a person's words instead of it.
    """
    answer: Any = None
    while True:
        try:
            act = acts.send(answer)
        except StopIteration as end:
            return end.value
        answer = yield act
        if type(act) is CallTools:
            for checked, result in act.allowed(answer):
                if checked.tool.name in names and not result.is_error:
                    returned.setdefault(checked.call.id, result)
        elif type(act) is RecallResults and answer is not None:
            for call, result in zip(act.calls, answer, strict=True):
                tool = toolbox.get(call.name)
                if tool is not None and tool.name in names:
                    returned.setdefault(call.id, result)


def outputs_of_result(signature: type[Signature], result: ToolResult) -> dict[str, Any] | None:
    """Read a tool's result as the outputs; None if it does not fit.

    The result is the only output, or a JSON object of several.
    """
    names = list(signature.plan.outputs)
    text = result.content
    if not isinstance(text, str):
        return None
    try:
        values: Any = {names[0]: text} if len(names) == 1 else json.loads(text)
        if not isinstance(values, dict):
            return None
        fields = cast("dict[str, Any]", values)
        absent = set(names) - fields.keys()
        if len(absent) == len(names) or absent - signature.plan.optional.keys():
            return None
        outputs: dict[str, Any] = {}
        for name in names:
            if name in absent:
                outputs[name] = signature.output_default(name)
            else:
                outputs[name] = signature.check_output(name, fields[name])
    except (ValueError, TypeError, AttributeError):
        return None
    return outputs


def check_names(tools: Sequence[Tool] | Toolbox, *, intention: bool) -> None:
    """Raise `DuplicateToolError` for a tool that is named like a built-in one."""
    for tool in tools:
        if tool.name in RESERVED:
            raise DuplicateToolError(
                f"A tool cannot be called `{tool.name}`: `ReAct` has a built-in one of that name. "
                "Give yours another: Tool(function, name=...)."
            )
    if intention:
        check_no_intention_argument(tools)
