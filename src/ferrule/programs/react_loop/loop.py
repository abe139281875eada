"""The loop of `ReAct`, and what an agent is made of.

The loop asks for one turn after another through a mode (`modes.py`) and runs its calls; a turn that cannot be read becomes an observation.
When the model finishes without the outputs, or the steps run out, an extractor reads the outputs from the trajectory.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from ferrule.adapters.render import RenderedText
from ferrule.errors import (
    AdapterParseError,
    BadRequestError,
    ContextOverflowError,
    DuplicateToolError,
    LimitReachedError,
    SignatureError,
    TooManyFaultsError,
)
from ferrule.programs.asking.ask import (
    Asker,
    ask_model,
    calls_natively,
    make_asker,
    refuses_tools,
)
from ferrule.programs.asking.keywords import check_positive, split_inputs
from ferrule.programs.instructions import CLARIFY, extract_instructions, finish_tool, is_builtin
from ferrule.programs.predict import ChainOfThought, Predict
from ferrule.programs.react_loop.modes import Mode, Turn, native_mode, shorten, text_mode
from ferrule.programs.tool_use.dynamic import Host, ModuleContext, ModuleView
from ferrule.programs.tool_use.use import UsingTools, has_changes, use_tools
from ferrule.tools.definition.export import check_no_intention_argument
from ferrule.tools.toolbox import LiveToolbox, Toolbox
from ferrule.values.calls.call import ToolCall, ToolResult
from ferrule.values.content.convert import content_of
from ferrule.values.conversation.history import History
from ferrule.values.conversation.message import Message
from ferrule.values.record import Log, replace
from ferrule.values.run import event as events
from ferrule.values.run.act import Act, Flow, Tell, Within
from ferrule.values.run.outcome import Prediction, Step, Trajectory
from ferrule.values.signatures.signature import InputField, OutputField, Signature, as_signature

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from ferrule.programs.tool_use.live import LiveTools
    from ferrule.runs.limits import Limits
    from ferrule.tools.tool import Tool
    from ferrule.values.confirmation.policy import Policy
    from ferrule.values.conversation.exchange import Request
    from ferrule.values.conversation.message import Messages

_OWN = ("lm", "config", "max_iters")
_TRUNCATIONS = 3
_EXTRACTED = Signature({"trajectory": InputField(desc="The steps taken: thoughts, calls, and what came of them."), "x": OutputField()})
"""`trajectory` has no type, so that a `RenderedText` stays one."""
_HUGE = 2_000
"""Characters above which an observation is shortened when the context overflows."""


class Agent(Protocol):
    """What the loop needs of `ReAct`."""

    max_iters: int
    native: bool | None
    intention: bool
    limits: Limits
    enable_user_clarification: bool
    policy: Policy | None
    react: Predict
    extract: ChainOfThought

    def truncate_trajectory(self, trajectory: Trajectory) -> Trajectory:
        """The part of a trajectory to show when all of it no longer fits."""
        ...


def check_signature(signature: type[Signature] | str) -> type[Signature]:
    """The agent's signature; raises `SignatureError` for field names that the loop uses itself."""
    found = as_signature(signature)
    for name, field in found.input_fields.items():
        is_no_history = name == "history" and field.annotation is not History
        if name in {"trajectory", *_OWN} or name.startswith("next_") or is_no_history:
            why = "`ReAct` uses it itself" if name != "history" else "it is kept for the conversation: give it the type `History`"
            raise SignatureError(f"An input of a ReAct agent cannot be called `{name}`: {why}. Choose another name.")
    if "trajectory" in found.output_fields:
        msg = (
            "An output of a ReAct agent cannot be called `trajectory`: its prediction holds the steps taken under that name. "
            "Choose another name, or read `prediction.trajectory`."
        )
        raise SignatureError(msg)
    return found


def check_tools(tools: Iterable[Any], *, intention: bool) -> Toolbox:
    """The agent's own tools; raises `DuplicateToolError` for a name of a built-in tool."""
    own = Toolbox.of(tools)

    def check(box: Toolbox) -> None:
        _check_names((*box, *(box.shelf or ())), intention=intention)

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
    def _with_reasoning(signature: type[Signature]) -> type[Signature]:
        return signature


def make_extractor(signature: type[Signature]) -> ChainOfThought:
    """The program that reads the outputs from the trajectory, with reasoning first if no input has that name."""
    kind = _WithoutReasoning if "reasoning" in signature.input_fields else ChainOfThought
    return kind(signature.append("trajectory", _EXTRACTED.fields["trajectory"]).with_instructions(extract_instructions(signature)))


def run_react(agent: Agent, inputs: dict[str, Any]) -> Flow:
    """One run of an agent."""
    signature = agent.react.signature
    own, given, tools = split_inputs(signature, inputs, (*_OWN, "limits"), agent.react.toolbox)
    if tools is not agent.react.toolbox:
        _check_names(tools, intention=False)
    values = signature.check_inputs(given)
    asker = yield from make_asker(agent.react.lm, agent.react.config, own, native=agent.native)
    native, max_iters = calls_natively(asker, agent.native), check_positive("max_iters", own.get("max_iters", agent.max_iters))
    limits: Limits = own.get("limits", agent.limits)
    if limits.are_shared:
        yield Within(limits)
    loop = _Loop(agent, asker, values, tools, limits, native=native)
    outputs, reason = yield from loop.flow(max_iters)
    if outputs is None:
        outputs = yield from _extract(agent, asker, values, loop)
    # The answer is added as text: no provider accepts a call of `finish` without a result.
    answer = Message("assistant", content_of(asker.adapter.drawn_answer(outputs)))
    return Prediction.of(outputs, trajectory=Trajectory(loop.steps), messages=loop.request.messages.then(answer), reason=reason)


def _extract(agent: Agent, asker: Asker, values: Mapping[str, Any], loop: _Loop) -> Generator[Act, Any, dict[str, Any]]:
    """The outputs as the extractor reads them from the trajectory."""
    own = {} if agent.extract.predict.lm is not None else {"lm": asker.lm}
    rounds = 0
    while True:
        steps = (asker.adapter.step_message(_entries(step, i)).text for i, step in enumerate(loop.shown))
        trajectory = RenderedText("\n\n".join(steps), asker.adapter)
        try:
            found = yield from agent.extract.flow(**values, trajectory=trajectory, **own)
        except ContextOverflowError:
            rounds += 1
            if not loop.shorten(rounds):
                raise
        else:
            return {name: found[name] for name in agent.react.signature.output_fields}


class _Loop:
    """One run of the loop: all its steps, and those shown to the model."""

    mode: Mode
    toolbox: Toolbox

    def __init__(self, agent: Agent, asker: Asker, values: Mapping[str, Any], tools: Toolbox, limits: Limits, *, native: bool) -> None:
        self.agent = agent
        self.limits = limits
        self.tools = tools
        self.shelf = agent.react.toolbox.shelf
        self.asker = asker
        self.values = values
        self._choose_mode(native=native)
        self.host = Host(self, asker.conditions)
        self.live: LiveTools | None = None
        if agent.react.toolbox.servers or agent.react.toolbox.has_remote:
            from ferrule.programs.tool_use.live import LiveTools  # late: most programs have no tools of servers

            self.live = LiveTools.of(agent.react.toolbox, self.host, asker.conditions)
        self.news = ""
        """What changed in the tools, in words: rendered with the current step."""
        self.steps: Log[Step] = Log()
        self.shown = self.steps
        self.request: Any = None
        self.faults: list[str] = []

    def _choose_mode(self, *, native: bool) -> None:
        self.native = native
        clarification = self.agent.enable_user_clarification
        self.toolbox = with_builtin(self.agent.react.signature, self.tools, clarification=clarification, native=native)
        self.mode = self._make_mode()

    def _make_mode(self) -> Mode:
        agent, make = self.agent, native_mode if self.native else text_mode
        limit = self.limits.observation_chars
        return make(self.asker, agent.react, self.values, self.toolbox, intention=agent.intention, observation_chars=limit)

    @property
    def module(self) -> Agent:
        return self.agent

    def context(self, view: ModuleView) -> ModuleContext:
        said = [message for message in self.request.messages if message.role != "system"]
        return ModuleContext(view, Trajectory(self.steps), dict(self.values), History(messages=said))

    def check(self, tools: Sequence[Tool]) -> None:
        _check_names(tools, intention=self.agent.intention)

    def flow(self, max_iters: int) -> Generator[Act, Any, tuple[dict[str, Any] | None, str | None]]:
        """The outputs, or None if they must be extracted; and why the loop ended, if not by `finish`."""
        self.request = self.mode.request(self.shown)
        for index in range(max_iters):
            try:
                turn = yield from self._turn(index)
            except LimitReachedError as reached:
                return None, reached.reason
            if turn.outputs is not None:
                return (dict(turn.outputs) or None), None
            step, finished = yield from self._step(turn)
            whole = self.shown is self.steps
            self.steps = self.steps.then(step)
            self.shown = self.steps if whole else self.shown.then(step)
            yield Tell(events.StepFinished(index, step))
            if finished is not None:
                return self._outputs(finished), None
            self._count(step)
            if self.live is not None:
                self.news = "\n".join(filter(None, (self.news, (yield from self.live.refresh()))))
            messages = self.request.messages.then(*self.mode.render(step, len(self.shown) - 1, turn, self.news))
            self.request = self._with_other_tools(messages) if self.news else self.request.following(messages)
        return None, "max_iters"

    def _with_other_tools(self, messages: Messages) -> Request:
        """The next request after a change of tools. The messages so far stay the same."""
        self.news = ""
        self.tools = Toolbox(tool for tool in self.toolbox if not is_builtin(tool))
        self.mode = self._make_mode()
        return self.mode.request_after(messages)

    def _turn(self, index: int) -> Generator[Act, Any, Turn]:
        rounds = 0
        while True:
            mode = self.mode
            render = partial(mode.messages, steps=self.shown)
            try:
                fields, response = yield from ask_model(
                    self.asker, mode.signature, self.request, render, read=mode.read, reader=mode.reader
                )
            except AdapterParseError as error:
                return Turn(problem=str(error))
            except ContextOverflowError:
                rounds += 1
                if not self.shorten(rounds):
                    raise
            except BadRequestError as error:
                # The model's capabilities may be wrong: ask once more, with the tools in the text.
                if self.agent.native or not self.native or not refuses_tools(self.asker, error):
                    raise
                self._choose_mode(native=False)
            else:
                return mode.turn(fields, response, index)
            self.request = self.mode.request(self.shown)

    def shorten(self, rounds: int) -> bool:
        """Show less than before; returns False if that cannot help. Huge observations are cut first, then the oldest step goes."""
        if not self.shown or rounds > _TRUNCATIONS + 1:
            return False
        longest = max((len(result.content) for step in self.shown for result in step.results), default=0)
        if rounds == 1 and longest > _HUGE:
            limit = longest // 4
            self.shown = type(self.shown)(_shorten_step(step, limit) for step in self.shown)
            return True
        shorter = self.agent.truncate_trajectory(Trajectory(self.shown)).steps
        changed = len(shorter) != len(self.shown) or shorter != self.shown
        self.shown = shorter
        return changed

    def _step(self, turn: Turn) -> Generator[Act, Any, tuple[Step, ToolCall | None]]:
        """Run the turn's calls; the `finish` call, if there is one, comes last."""
        if turn.problem:
            return Step(turn.thought, (), (ToolResult("", turn.problem, is_error=True, is_fault=True),)), None
        named = [call for call in turn.calls if call.name == "finish"]
        if not named:
            results: list[ToolResult] = yield from self._use_tools(turn, turn.calls)
            if has_changes(results):
                results, self.news = self.host.apply(results)
            return Step(turn.thought, turn.calls, tuple(results)), None
        finish = named[0]
        others = tuple(call for call in turn.calls if call is not finish)
        results = (yield from self._use_tools(turn, others)) if others else []
        calls = (*others, finish)
        return Step(turn.thought, calls, (*results, ToolResult("finish", "Completed.", finish.id))), finish

    def _use_tools(self, turn: Turn, calls: Sequence[ToolCall]) -> UsingTools:
        return use_tools(self.toolbox, calls, self.host, self.asker.conditions, thought=turn.thought, policy=self.agent.policy)

    def _outputs(self, finish: ToolCall) -> dict[str, Any] | None:
        """The outputs in the arguments of `finish`, typed; None if one is missing or does not fit, so that they are extracted."""
        signature = self.agent.react.signature
        try:
            return {name: signature.check_output(name, finish.args[name], is_value=True) for name in signature.output_fields}
        except (KeyError, ValueError):
            return None

    def _count(self, step: Step) -> None:
        bad = [result.content for result in step.results if result.is_fault]
        if bad and len(bad) == len(step.results):
            self.faults.append(str(bad[0]))
            if len(self.faults) >= self.limits.same_error:
                raise TooManyFaultsError(self.faults)
        else:
            self.faults = []


def _shorten_step(step: Step, limit: int) -> Step:
    return replace(step, results=tuple(replace(result, content=shorten(result.content, limit)) for result in step.results))


def _entries(step: Step, i: int) -> dict[str, Any]:
    return {f"{key}_{i}": step.entry(key) for key in ("thought", "tool_name", "tool_args", "observation")}


def _check_names(own: Sequence[Tool] | Toolbox, *, intention: bool) -> None:
    for tool in own:
        if tool.name in {"finish", CLARIFY.name}:
            msg = (
                f"A tool cannot be called `{tool.name}`: `ReAct` has a built-in one of that name. "
                f"Give yours another: Tool(function, name=...)."
            )
            raise DuplicateToolError(msg)
    if intention:
        check_no_intention_argument(own)
