"""The loop of `ReAct`.

The loop asks for one turn after another through a mode (`modes.py`) and runs the calls of each.
Unreadable turns and outputs that do not fit become observations. If the model finishes without
outputs, or the steps run out, an extractor reads them from the trajectory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ferrule import events
from ferrule.acts import Act, Flow, Tell, Within
from ferrule.errors import (
    AdapterParseError,
    BadRequestError,
    ContextOverflowError,
    InputError,
    LimitReachedError,
    ToolArgumentsError,
    TooManyFaultsError,
)
from ferrule.programs.asking.ask import ask_model
from ferrule.programs.asking.asker import (
    Asker,
    calls_natively,
    check_positive,
    declares_tools,
    list_demos,
    make_asker,
    split_inputs,
)
from ferrule.programs.asking.refusals import refuses_tools
from ferrule.programs.instructions import is_builtin
from ferrule.programs.react_loop.agent import (
    OWN_KEYWORDS,
    check_names,
    note_results,
    outputs_of_result,
    render_trajectory,
    with_builtin,
)
from ferrule.programs.react_loop.modes import Mode, Turn, make_mode
from ferrule.programs.tool_use.dynamic import Host, ModuleContext, ModuleView
from ferrule.programs.tool_use.use import UsingTools, has_changes, use_tools
from ferrule.settings import check_limits, setting
from ferrule.tools.toolbox import Toolbox
from ferrule.values.calls.call import ToolCall, ToolResult
from ferrule.values.conversation.message import Message
from ferrule.values.outcome import Prediction, Step, Trajectory
from ferrule.values.signatures.compiled import InvalidOutputsError, compiled

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from ferrule.adapters.adapter import Adapter
    from ferrule.programs.react_loop.agent import Agent
    from ferrule.programs.react_loop.compaction import Compaction
    from ferrule.programs.tool_use.live import LiveTools, LoadedTools
    from ferrule.runs.limits import Limits
    from ferrule.tools.tool import Tool
    from ferrule.values.conversation.exchange import Request
    from ferrule.values.conversation.message import Messages

Problems = list[tuple[str, str]]
"""Problems of outputs: for each, the field (or `""`) and a text for the model."""


def run_react(agent: Agent, inputs: dict[str, Any]) -> Flow:
    """Run an agent once."""
    signature = agent.react.signature
    own, values, tools = yield from split_inputs(
        signature,
        inputs,
        (*OWN_KEYWORDS, "limits", "demos"),
        agent.react.toolbox,
    )
    if tools is not agent.react.toolbox:
        check_names(tools, intention=False)
    asker = yield from make_asker(
        agent.react.lm,
        agent.react.config,
        own,
        calls=agent.calls,
        must_call=True,
    )
    native, max_iters = (
        calls_natively(asker, declares_tools(agent.calls)),
        check_positive("max_iters", own.get("max_iters", agent.max_iters)),
    )
    demos = list_demos(own.get("demos", agent.react.demos), InputError)
    limits: Limits | None = own.get("limits")
    check_limits(limits)
    limits = (agent.limits if limits is None else limits).within(setting("limits"))
    if limits.are_shared:
        yield Within(limits)
    loop = _Loop(agent, asker, values, demos, tools, limits=limits, native=native)
    outputs, reason = yield from loop.flow(max_iters)
    if outputs is None:
        of_call: dict[str, Any] = own.get("config") or {}
        outputs = yield from _extract(
            agent,
            asker,
            loop,
            {name: value for name, value in asker.config.items() if name in of_call},
        )
    # The answer is added as text: no provider accepts a call of `finish` without a result.
    answer = Message("assistant", asker.adapter.answer_content(signature, outputs))
    messages = loop.request.messages.then(answer)
    return Prediction.of(
        outputs,
        signature=signature,
        trajectory=Trajectory(loop.steps),
        messages=messages,
        reason=reason,
    )


def _extract(
    agent: Agent,
    asker: Asker,
    loop: _Loop,
    config: dict[str, Any],
) -> Generator[Act, Any, dict[str, Any]]:
    """Let the extractor read the outputs from the trajectory, with the sampling settings of the call."""
    own = ({} if agent.extract.predict.lm is not None else {"lm": asker.lm}) | (
        {"config": config} if config else {}
    )
    rounds = 0
    while True:
        trajectory = render_trajectory(asker.adapter, loop.shown)
        try:
            found = yield from agent.extract.flow(**loop.inputs, trajectory=trajectory, **own)
        except ContextOverflowError:
            rounds += 1
            if not (yield from loop.make_shorter(rounds)):
                raise
        else:
            return {name: found[name] for name in agent.react.signature.plan.outputs}


class _End(Struct):
    """The end of the loop."""

    outputs: dict[str, Any] | None
    """None if the outputs must be extracted."""


class _Loop:
    """One run of the loop: all its steps, and those shown to the model."""

    mode: Mode
    toolbox: Toolbox

    def __init__(
        self,
        agent: Agent,
        asker: Asker,
        values: Mapping[str, Any],
        demos: list[Any],
        tools: Toolbox,
        *,
        limits: Limits,
        native: bool,
    ) -> None:
        self.agent = agent
        self.limits = limits
        self.tools = tools
        self.shelf = agent.react.toolbox.shelf
        self.asker = asker
        self.values = self.inputs = values
        """`values`: the inputs as given. `inputs`: as the model sees them, perhaps with a shorter history."""
        self.demos = demos
        self.note = ""
        """Text added to the signature's instructions."""
        self._choose_mode(native=native)
        self.host = Host(
            self,
            asker.conditions,
            concurrent=agent.parallel and agent.react.toolbox.concurrent,
        )
        self.live: LiveTools | LoadedTools | None = None
        if (
            agent.react.toolbox.servers
            or agent.react.toolbox.has_remote
            or agent.react.toolbox.keep_turns is not None
        ):
            from ferrule.programs.tool_use.live import (
                after_turns,
            )  # late: most programs have no such tools

            self.live = after_turns(agent.react.toolbox, self.host, asker.conditions)
        self.news = ""
        """The changes of the tools, in words. Rendered with the current step."""
        self.returned: dict[str | None, ToolResult] = {}
        """The results of `stop_at_tools` in this turn, by the ids of the calls."""
        self.steps: list[Step] = []
        self.shown = self.steps
        self.request: Any = None
        self.faults: list[str] = []
        self.compaction: Compaction | None = None
        if (
            agent.compact is not None or "compaction" in asker.conditions.due
        ):  # the second: a resumed run repeats its compactions
            from ferrule.programs.react_loop.compaction import (
                Compaction,
            )  # late: few agents have it

            self.compaction = Compaction(self, agent.compact)

    def _choose_mode(self, *, native: bool) -> None:
        self.native = native
        clarification = self.agent.enable_user_clarification
        self.toolbox = with_builtin(
            self.agent.react.signature,
            self.tools,
            clarification=clarification,
            native=native,
        )
        self.mode = self._make_mode()

    def _make_mode(self) -> Mode:
        signature = self.agent.react.signature
        if self.note:
            signature = signature.with_instructions(signature.instructions + self.note)
        what = (self.asker, signature, self.inputs, self.demos, self.toolbox)
        return make_mode(
            *what,
            native=self.native,
            intention=self.agent.intention,
            most_chars=self.limits.observation_chars,
        )

    @property
    def module(self) -> Agent:
        return self.agent

    def context(self, view: ModuleView) -> ModuleContext:
        from ferrule.values.conversation.history import History, after_system

        said = History(messages=after_system(self.request.messages))
        return ModuleContext(view, Trajectory(self.steps), dict(self.values), said)

    def check(self, tools: Sequence[Tool]) -> None:
        check_names(tools, intention=self.agent.intention)

    def flow(self, max_iters: int) -> Generator[Act, Any, tuple[dict[str, Any] | None, str | None]]:
        """The outputs, or None if they must be extracted; and why the loop ended, if not by `finish`."""
        if self.live is not None and (note := (yield from self.live.begin())):
            self.note = f"\n\n{note}"
            self.mode = self._make_mode()
        self.request = self.mode.request(self.shown)
        compaction = self.compaction
        for index in range(max_iters):
            if compaction is not None:
                yield from compaction.check()
            try:
                turn = yield from self._turn(index)
            except LimitReachedError as reached:
                return None, reached.reason
            if turn.outputs is not None:
                outputs, problems = (
                    (yield from self._validated(dict(turn.outputs))) if turn.outputs else (None, [])
                )
                if not problems:
                    return outputs, None
                objections = [
                    f"- `{name}`: {problem}" if name else f"- {problem}"
                    for name, problem in problems
                ]
                turn = replace(
                    turn,
                    outputs=None,
                    problem="\n".join(["Your answer was not accepted:", *objections]),
                )
            step, end = yield from self._step(turn)
            self.steps.append(step)
            if self.shown is not self.steps:
                self.shown.append(step)
            yield Tell(events.StepFinished(index, step))
            if end is not None:
                ran = (
                    Step(step.thought, step.calls[:-1], step.results[:-1])
                    if step.calls[-1].name == "finish"
                    else step
                )
                if ran.calls:  # calls beside `finish` belong to the conversation
                    self.request = self.request.following(
                        self.request.messages.then(
                            *self.mode.render(ran, len(self.shown) - 1, None),
                        ),
                    )
                return end.outputs, None
            if not self._goes_on(step):
                return None, "same_error"
            if self.live is not None:
                self.news = "\n".join(
                    filter(None, (self.news, (yield from self.live.refresh(step)))),
                )
            new = self.mode.render(step, len(self.shown) - 1, turn, self.news)
            if compaction is not None:
                compaction.count(turn.response, new)
            messages = self.request.messages.then(*new)
            self.request = (
                self._with_other_tools(messages) if self.news else self.request.following(messages)
            )
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
            try:
                fields, response = yield from ask_model(
                    self.asker,
                    mode.signature,
                    self.request,
                    self._messages,
                    read=mode.read,
                    reader=mode.reader,
                )
            except AdapterParseError as error:
                return Turn(problem=str(error))
            except ContextOverflowError:
                rounds += 1
                if not (yield from self.make_shorter(rounds)):
                    raise
                continue
            except BadRequestError as error:
                # The model's capabilities may be wrong: ask once more, with the tools in the text.
                if (
                    declares_tools(self.agent.calls)
                    or not self.native
                    or not refuses_tools(self.asker.lm, error)
                ):
                    raise
                self._choose_mode(native=False)
            else:
                return mode.turn(fields, response, index)
            self.request = self.mode.request(self.shown)

    def _messages(self, adapter: Adapter) -> Messages:
        return self.mode.messages(adapter, self.shown)

    def make_shorter(self, rounds: int) -> Generator[Act, Any, bool]:
        """Show less after a context overflow; False if that cannot help."""
        from ferrule.programs.react_loop.compaction import (
            truncate,
        )  # late: most runs never overflow

        has_compacted = (
            rounds == 1 and self.compaction is not None and (yield from self.compaction.shrink())
        )
        return has_compacted or truncate(self, rounds)

    def _step(self, turn: Turn) -> Generator[Act, Any, tuple[Step, _End | None]]:
        """Run the turn's calls; the `finish` call, if there is one, comes last. The second value is the end of the loop, if it ends."""
        if turn.problem:
            return Step(
                turn.thought,
                (),
                (ToolResult("", turn.problem, is_error=True, is_fault=True),),
            ), None
        for finish in turn.calls:
            if finish.name == "finish":
                break
        else:
            results: list[ToolResult] = yield from self._use_tools(turn, turn.calls)
            if has_changes(results):
                results, self.news = self.host.apply(results)
            stop = (yield from self._stop(turn.calls)) if self.agent.stop_at_tools else None
            return Step(turn.thought, turn.calls, tuple(results)), stop
        others = tuple([call for call in turn.calls if call is not finish])
        results = (yield from self._use_tools(turn, others)) if others else []
        if (
            self.agent.stop_at_tools and (stop := (yield from self._stop(others))) is not None
        ):  # `finish` was written without the result
            last = ToolResult(
                "finish",
                "Not used: the run ends with the result of a tool.",
                finish.id,
            )
            return Step(turn.thought, (*others, finish), (*results, last)), stop
        outputs, problems = self._outputs(finish)
        if outputs is not None and self.agent.react.is_validated:
            outputs, problems = yield from self._validated(outputs)
        if problems:
            refusal = str(ToolArgumentsError("finish", problems))
            last = ToolResult("finish", refusal, finish.id, is_error=True, is_fault=True)
            if self.asker.conditions.is_observed:
                yield Tell(events.CallRefused(finish, last))
        else:
            last = ToolResult("finish", "Completed.", finish.id)
        return Step(
            turn.thought,
            (*others, finish),
            (*results, last),
        ), None if problems else _End(outputs)

    def _stop(self, calls: Sequence[ToolCall]) -> Generator[Act, Any, _End | None]:
        """The end of the loop if one of `stop_at_tools` returned. If its result does not fit the outputs, they must be extracted."""
        returned, self.returned = self.returned, {}
        result = next((returned[call.id] for call in calls if call.id in returned), None)
        if result is None:
            return None
        outputs = outputs_of_result(self.agent.react.signature, result)
        if outputs is not None and self.agent.react.is_validated:
            outputs, _ = yield from self._validated(outputs)
        return _End(outputs)

    def _use_tools(self, turn: Turn, calls: Sequence[ToolCall]) -> UsingTools:
        acts = use_tools(
            self.toolbox,
            calls,
            self.host,
            self.asker.conditions,
            thought=turn.thought,
            policy=self.agent.policy,
        )
        return (
            note_results(acts, self.agent.stop_at_tools, self.returned)
            if self.agent.stop_at_tools
            else acts
        )

    def _outputs(self, finish: ToolCall) -> tuple[dict[str, Any] | None, Problems]:
        """The outputs in the arguments of `finish`, typed; or None and the problems with them.

        None without problems asks for an extraction: after a call without any output, and after any
        misfit in text mode, where `finish` declares no arguments.
        """
        if finish.fault is not None:
            return None, [("", finish.fault.reason)] if self.native else []
        plan, given = compiled(self.agent.react.signature), finish.args
        fields, optional = plan.outputs, plan.optional
        if given.keys().isdisjoint(fields) and fields.keys() - optional.keys():
            return None, []
        outputs: dict[str, Any] = {}
        problems: Problems = []
        for name in fields:
            if name in given:
                try:
                    outputs[name] = plan.output_checks[name](given[name], is_value=True)
                except ValueError as error:
                    problems.append((name, str(error)))
            elif name in optional:
                outputs[name] = plan.output_default(name)
            else:
                problems.append((name, "is missing"))
        if problems:
            return None, problems if self.native else []
        return outputs, []

    def _validated(
        self,
        outputs: dict[str, Any],
    ) -> Generator[Act, Any, tuple[dict[str, Any] | None, Problems]]:
        """The outputs after validation; or None and the validators' objections."""
        try:
            outputs = self.agent.react.validate(self.values, outputs)
        except InvalidOutputsError as error:
            return None, error.problems
        [verdict] = yield from self.agent.react.judged(self.values, [outputs])
        return (outputs, []) if verdict is None else (None, [("", verdict)])

    def _goes_on(self, step: Step) -> bool:
        """Whether another turn may follow; False if the outputs were refused `limits.same_error` times, so that they must be extracted.

        Raises `TooManyFaultsError` after the same number of other faulty steps.
        """
        results = step.results
        if not results or not results[0].is_fault or not all(result.is_fault for result in results):
            self.faults = []
            return True
        self.faults.append(str(results[0].content))
        if len(self.faults) < self.limits.same_error:
            return True
        if results[-1].name == "finish":
            return False
        raise TooManyFaultsError(self.faults)
