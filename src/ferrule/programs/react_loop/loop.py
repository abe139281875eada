"""The loop of `ReAct`.

The loop asks for one turn after another through a mode (`modes.py`) and runs the calls of each.
Unreadable turns and outputs that do not fit become observations. If the model finishes without
outputs, or the steps run out, an extractor reads them from the trajectory. At a limit, that happens
only with `on_limit="extract"`: a guess would otherwise pass as the model's own answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ferrule import events
from ferrule.acts import Act, Flow, Listen, Tell, Within
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
from ferrule.programs.code_mode.snippets import Snippets
from ferrule.programs.instructions import CLARIFY, describe_new_tools, is_builtin
from ferrule.programs.react_loop.agent import (
    OPTIONS_OF_CALL,
    OnLimit,
    check_bounded_tools,
    check_names,
    check_on_limit,
    instructed,
    note_results,
    outputs_of_result,
)
from ferrule.programs.react_loop.compaction import Compaction, truncate
from ferrule.programs.react_loop.modes import Mode, Turn, make_mode
from ferrule.programs.react_loop.step import with_builtin
from ferrule.programs.tool_use.chosen import choose_for_run
from ferrule.programs.tool_use.dynamic import Host, ModuleContext, ModuleView
from ferrule.programs.tool_use.finish import outputs_in, split_finish, why_void
from ferrule.programs.tool_use.live import after_turns
from ferrule.programs.tool_use.use import UsingTools, has_changes, has_no_turn_left, use_tools
from ferrule.runs.limits import Limits
from ferrule.settings import check_limits, setting
from ferrule.tools.read_result import shown_to_model
from ferrule.tools.toolbox import Toolbox
from ferrule.values.calls.call import ToolCall, ToolResult
from ferrule.values.content.convert import content_text
from ferrule.values.conversation.history import History, after_system
from ferrule.values.conversation.message import Message
from ferrule.values.outcome import Prediction, Step, Trajectory

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from ferrule.adapters.adapter import Adapter
    from ferrule.programs.react_loop.agent import Agent
    from ferrule.programs.tool_use.finish import Problems
    from ferrule.tools.tool import Tool
    from ferrule.values.content.parts import Content
    from ferrule.values.conversation.exchange import Request
    from ferrule.values.conversation.message import Messages
    from ferrule.values.signatures.signature import Signature


FormatTrajectory = Callable[[Trajectory], Any]


def run_react(agent: Agent, inputs: dict[str, Any], format_trajectory: FormatTrajectory) -> Flow:
    """Run an agent once. `format_trajectory` writes its steps for the extractor."""
    signature = agent.react.program_signature
    options, values, tools = yield from split_inputs(
        signature, inputs, OPTIONS_OF_CALL, agent.react.toolbox
    )
    if tools is not agent.react.toolbox:
        check_names(tools, intention=False)
    asker = yield from make_asker(
        agent.react.lm,
        agent.react.config,
        options,
        calls=agent.calls,
        must_call=True,
        provider_tools=agent.react.toolbox.provider_tools_of_run(),
        policy=agent.policy,
    )
    native = calls_natively(asker, declares_tools(agent.calls))
    call_options = _read_options(agent, options)
    extracts_at_limit = call_options.on_limit == "extract"
    if call_options.limits.are_shared or extracts_at_limit:
        yield Within(call_options.limits, answers_at_limit=extracts_at_limit)
    instructions, offered = yield from choose_for_run(agent.react.choices, tools)
    loop = _Loop(
        agent,
        signature,
        asker,
        values,
        call_options.demos,
        offered,
        all_tools=tools,
        instructions=instructions,
        limits=call_options.limits,
        native=native,
    )
    # The extractor has the settings of the program already; those of the call are passed on.
    config = {name: value for name, value in asker.config.items() if name in call_options.config}
    try:
        yield from loop.begin()
        while True:
            try:
                outputs, reason = yield from loop.flow(call_options.max_iters)
                if outputs is None:
                    outputs = yield from _extract(loop, config, format_trajectory)
            except LimitReachedError as reached:
                reached.trajectory = Trajectory(loop.steps)
                if not extracts_at_limit:
                    raise
                reason = reached.reason
                outputs = yield from _extract(loop, config, format_trajectory)
                break  # another request would reach the limit again
            if not (yield from loop.listen_after(outputs)):
                break
    finally:
        loop.close()
    answer = loop.answer(outputs)
    messages = loop.request.messages.then(answer)
    return Prediction.of(
        outputs,
        signature=signature,
        trajectory=Trajectory(loop.steps),
        messages=messages,
        reason=reason,
    )


class _CallOptions(Struct, frozen=True):
    """The options of one call of an agent, with the agent's own where it has none."""

    max_iters: int
    demos: list[Any]
    limits: Limits
    """With those of the settings."""
    on_limit: OnLimit
    config: Mapping[str, Any]
    """The settings of the model that were passed to this call."""


def _read_options(agent: Agent, options: Mapping[str, Any]) -> _CallOptions:
    """Read the options of a call; raises `ConfigurationError` or `InputError` for invalid ones."""
    limits: Limits | None = options.get("limits")
    if limits is None:
        limits = agent.limits
    else:
        check_limits(limits)
        check_bounded_tools(limits, agent.react)
    return _CallOptions(
        max_iters=check_positive("max_iters", options.get("max_iters", agent.max_iters)),
        demos=list_demos(options.get("demos", agent.react.demos), InputError),
        limits=limits.within(setting("limits")),
        on_limit=check_on_limit(options.get("on_limit", agent.on_limit)),
        config=options.get("config") or {},
    )


def _extract(
    loop: _Loop, config: dict[str, Any], format_trajectory: FormatTrajectory
) -> Generator[Act, Any, dict[str, Any]]:
    """Let the extractor read the outputs from the trajectory, with the settings of the call."""
    extract = loop.agent.extract
    options: dict[str, Any] = {}
    if extract.predict.lm is None:
        options["lm"] = loop.asker.lm
    if config:
        options["config"] = config
    if loop.instructions:
        extract = instructed(extract, loop.instructions)
    rounds = 0
    while True:
        trajectory = format_trajectory(Trajectory(loop.with_short_results(loop.shown)))
        extracting = extract.flow(**loop.inputs, trajectory=trajectory, **options)
        try:
            prediction = yield from extracting
        except ContextOverflowError:
            rounds += 1
            if not (yield from loop.make_shorter(rounds)):
                raise
        else:
            return {name: prediction[name] for name in loop.signature.plan.outputs}


def _not_accepted(problems: Problems) -> str:
    lines = ["Your answer was not accepted:"]
    for name, problem in problems:
        lines.append(f"- `{name}`: {problem}" if name else f"- {problem}")
    return "\n".join(lines)


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
        signature: type[Signature],
        asker: Asker,
        values: Mapping[str, Any],
        demos: list[Any],
        tools: Toolbox,
        *,
        all_tools: Toolbox,
        instructions: str,
        limits: Limits,
        native: bool,
    ) -> None:
        """`tools` has those of `all_tools` that were chosen for this run."""
        self.agent = agent
        self.signature = signature
        """The agent's signature."""
        self.limits = limits
        self.tools = tools
        self.shelf = agent.react.toolbox.shelf
        self.asker = asker
        self.values = self.inputs = values
        """`values` are the inputs of the call.

        `inputs` are those that the model sees, perhaps with a shorter history.
        """
        self.demos = demos
        self.instructions = instructions
        """The further instructions of this run."""
        self.note = ""
        if instructions:
            self.note = f"\n\n{instructions}"
        """Text added to the signature's instructions."""
        self.spill_over = agent.react.toolbox.spill_over
        """See `Toolbox`; None if the model calls tools in code, which bounds what it prints."""
        self.code: Snippets | None = None
        """The code of this run, if the model calls tools in code."""
        if agent.code is not None:
            self.spill_over = None
            self.code = Snippets(agent.code, asker.conditions, agent.policy)
        self._choose_mode(native=native)
        describe = describe_new_tools
        if self.code is not None:
            describe = self.code.describe
        self.host = Host(
            self,
            asker.conditions,
            concurrent=agent.parallel and agent.react.toolbox.concurrent,
            describe=describe,
            keeps_whole=agent.react.toolbox.spill_over is not None,
        )
        self.live = after_turns(
            agent.react.toolbox, self.host, asker.conditions, agent.react.choices, all_tools
        )
        self.news = ""
        """The changes of the tools, in words. Rendered with the current step."""
        self.returned: dict[str | None, ToolResult] = {}
        """The results of `stop_at_tools` in this turn, by the ids of the calls."""
        self.steps: list[Step] = []
        self.shown = self.steps
        """The steps that the request shows: the same list, until one of them is left out."""
        self.request: Any = None
        self.last: tuple[Step, Turn] | None = None
        """The step with the model's answer, and its turn. The request does not show them yet."""
        self.count = 0
        """How many turns there were."""
        self.faults: list[str] = []
        """The results of the latest steps in a row in which all calls were faulty."""
        self.compaction: Compaction | None = None
        # A resumed run repeats its compactions, even if the agent compacts no more.
        if agent.compact is not None or "compaction" in asker.conditions.due:
            self.compaction = Compaction(self, agent.compact)

    def _choose_mode(self, *, native: bool) -> None:
        self.native = native
        clarification = self.agent.react.has_clarification
        self.toolbox = with_builtin(
            self.signature, self.tools, clarification=clarification, native=native
        )
        self.mode = self._make_mode()

    def _make_mode(self) -> Mode:
        signature = self.signature
        if self.note:
            signature = signature.with_instructions(signature.instructions + self.note)
        offered = self.toolbox
        if self.code is not None:
            offered = self.code.offer(self.toolbox)
        return make_mode(
            self.asker,
            signature,
            self.inputs,
            self.demos,
            offered,
            native=self.native,
            intention=self.agent.intention,
            most_chars=self.limits.observation_chars,
            spill_over=self.spill_over,
        )

    def close(self) -> None:
        """Let go of what the run holds outside Python."""
        if self.code is not None:
            self.code.close()

    # -- what the `Host` of the tools asks (`dynamic.Owner`)

    @property
    def module(self) -> Agent:
        return self.agent

    def context(self, view: ModuleView) -> ModuleContext:
        history = History(messages=after_system(self.request.messages))
        return ModuleContext(view, Trajectory(self.steps), dict(self.values), history)

    def check(self, tools: Sequence[Tool]) -> None:
        check_names(tools, intention=self.agent.intention)

    # -- the loop

    def begin(self) -> Generator[Act, Any, None]:
        """Make the first request."""
        if self.live is not None:
            note = yield from self.live.begin()
            if note:
                self.note += f"\n\n{note}"
                self.mode = self._make_mode()
        self.request = self.mode.request(self.shown)

    def flow(self, max_iters: int) -> Generator[Act, Any, tuple[dict[str, Any] | None, str | None]]:
        """The outputs, or None if they must be extracted; and why the loop ended.

        The reason is None if the model ended the loop.
        """
        self.last, self.faults = None, []
        turns_left = max_iters
        while not (yield from has_no_turn_left(self.asker.conditions, turns_left)):
            if (yield from self._listen()):
                turns_left = max_iters  # the person who speaks may ask for more
            turns_left -= 1
            index, self.count = self.count, self.count + 1
            if self.compaction is not None:
                yield from self.compaction.check()
            turn = yield from self._turn(index)
            if turn.outputs is not None:  # plain text, which ends the loop, too
                outputs, problems = yield from self._validated(dict(turn.outputs))
                if not problems:
                    step = Step(turn.thought).with_provider_part(turn.response)
                    self.last = step, turn
                    if step.has_provider_part:
                        yield from self._finish_step(step)
                    return outputs, None
                turn = replace(turn, outputs=None, problem=_not_accepted(problems))
            step, end = yield from self._step(turn)
            step = step.with_provider_part(turn.response)
            self._show(step)
            yield Tell(events.StepFinished(index, step))
            if end is not None:
                if end.outputs is None:
                    self._add_last_step(step)
                else:
                    self.last = step, turn
                return end.outputs, None
            if not self._goes_on(step, turn):
                return None, "same_error"
            yield from self._add_step(step, turn)
        return None, "max_iters"

    def with_short_results(self, steps: Sequence[Step]) -> list[Step]:
        """Steps for a program that cannot read more of their results."""
        if self.spill_over is None:
            return list(steps)
        return self.as_shown(steps)

    def as_shown(self, steps: Sequence[Step]) -> list[Step]:
        """Steps with their results as the model sees them."""
        most, spill_over = self.limits.observation_chars, self.spill_over
        return [
            replace(
                step,
                results=tuple(shown_to_model(result, most, spill_over) for result in step.results),
            )
            for step in steps
        ]

    def _show(self, step: Step) -> None:
        self.steps.append(step)
        if self.shown is not self.steps:
            self.shown.append(step)

    # -- messages to the run

    def _listen(self) -> Generator[Act, Any, bool]:
        """Add the messages that came to the next request; returns whether there were any."""
        if not self.asker.conditions.listens:
            return False
        messages: Sequence[events.Said] = (yield Listen()) or ()
        yield from self._add_messages(messages)
        return bool(messages)

    def listen_after(self, outputs: Mapping[str, Any]) -> Generator[Act, Any, bool]:
        """Whether the loop goes on after these outputs, because a message came.

        The next request then shows the answer, and after it the messages.
        """
        messages: Sequence[events.Said] = ()
        if self.asker.conditions.listens:
            messages = (yield Listen(ends=True)) or ()
        if not messages:
            return False
        if self.last is None:  # the outputs were extracted
            step = Step(content_text(self._answer_content(outputs)))
            yield from self._finish_step(step)
            # All of it, because the extractor may have shown less, or a step is missing.
            self.request = self.mode.request(self.shown)
            if self.compaction is not None:
                self.compaction.count_again()
        else:
            step, turn = self.last
            # An answer in plain text is a step by now only if the provider's tools had a part.
            if not step.calls and not step.has_provider_part:
                yield from self._finish_step(step)
            yield from self._add_step(step, turn)
        yield from self._add_messages(messages)
        return True

    def _finish_step(self, step: Step) -> Generator[Act, Any, None]:
        self._show(step)
        yield Tell(events.StepFinished(self.count - 1, step))

    def _add_messages(self, messages: Sequence[events.Said]) -> Generator[Act, Any, None]:
        for message in messages:
            step = Step(said=message.text)
            self._show(step)
            yield Tell(message)
            new_messages = self.mode.render(step, len(self.shown) - 1, None)
            if self.compaction is not None:
                self.compaction.count(None, new_messages)
            self.request = self.request.following(self.request.messages.then(*new_messages))

    # -- the answer

    def answer(self, outputs: Mapping[str, Any]) -> Message:
        """The outputs as the model's answer, which ends the conversation.

        As text: no provider accepts a call of `finish` without a result.
        """
        if self.last is not None:
            self._add_last_step(self.last[0])
        return Message("assistant", self._answer_content(outputs))

    def _answer_content(self, outputs: Mapping[str, Any]) -> Content:
        return self.asker.adapter.answer_content(self.signature, outputs, native=self.native)

    def _add_step(self, step: Step, turn: Turn) -> Generator[Act, Any, None]:
        """Make the next request: it shows the step, and offers the tools as they are now."""
        if self.live is not None:
            live_news = yield from self.live.refresh(step)
            self.news = "\n".join(part for part in (self.news, live_news) if part)
        new_messages = self.mode.render(step, len(self.shown) - 1, turn, self.news)
        if self.compaction is not None:
            self.compaction.count(turn.response, new_messages)
        messages = self.request.messages.then(*new_messages)
        if self.news:
            self.request = self._with_other_tools(messages)
        else:
            self.request = self.request.following(messages)

    def _add_last_step(self, step: Step) -> None:
        """Add the calls other than `finish` to the conversation."""
        _, others = split_finish(step.calls)
        if others:
            # Calls of `finish` are the last ones.
            step = Step(step.thought, others, step.results[: len(others)])
            new_messages = self.mode.render(step, len(self.shown) - 1, None)
            messages = self.request.messages.then(*new_messages)
            self.request = self.request.following(messages)

    def _with_other_tools(self, messages: Messages) -> Request:
        """The next request after a change of tools. The messages so far stay the same."""
        self.news = ""
        self.tools = Toolbox(tool for tool in self.toolbox if not is_builtin(tool))
        self.mode = self._make_mode()
        return self.mode.request_after(messages).continuing(self.request)

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
                is_chosen = bool(declares_tools(self.agent.calls))
                if is_chosen or not self.native or not refuses_tools(self.asker.lm, error):
                    raise
                # The model's capabilities are wrong: ask once more, with the tools in the text.
                self._choose_mode(native=False)
            else:
                return mode.turn(fields, response, index)
            self.request = self.mode.request(self.shown)

    def _messages(self, adapter: Adapter) -> Messages:
        return self.mode.messages(adapter, self.shown)

    def make_shorter(self, rounds: int) -> Generator[Act, Any, bool]:
        """Show less after a context overflow; False if that cannot help."""
        if rounds == 1 and self.compaction is not None:
            has_compacted = yield from self.compaction.shrink()
            if has_compacted:
                return True
        return truncate(self, rounds)

    def _step(self, turn: Turn) -> Generator[Act, Any, tuple[Step, _End | None]]:
        """Run the turn's calls; the second value is the end of the loop, if it ends.

        Calls of `finish` come last: the results of the others decide whether they count.
        """
        if turn.problem:
            result = ToolResult("", turn.problem, is_error=True, is_fault=True)
            return Step(turn.thought, (), (result,)), None
        finishes, others = split_finish(turn.calls)
        results: list[ToolResult] = []
        if others:
            results = yield from self._use_tools(turn, others)
        if has_changes(results):
            results, self.news = self.host.apply(results)
        if self.code is not None:
            self.news = self.code.take_news()
        end = yield from self._stop(others)
        if finishes:
            if end is None:
                end, verdict = yield from self._finish(finishes, others, results)
            else:  # the model wrote `finish` without having seen the result
                verdict = ToolResult("finish", "Not used: the run ends with the result of a tool.")
            results += [replace(verdict, call_id=call.id) for call in finishes]
        return Step(turn.thought, (*others, *finishes), tuple(results)), end

    def _finish(
        self,
        finishes: Sequence[ToolCall],
        others: Sequence[ToolCall],
        results: Sequence[ToolResult],
    ) -> Generator[Act, Any, tuple[_End | None, ToolResult]]:
        """Judge `finish`, given the other calls of its answer and their results.

        Returns the end of the loop if it counts, and the result of each `finish`.
        """
        finish = finishes[0]
        outputs: dict[str, Any] | None = None
        refusal = why_void(finishes, others, results)
        if not refusal:
            outputs, problems = self._outputs(finish)
            if outputs is not None and self.agent.react.is_validated:
                outputs, problems = yield from self._validated(outputs)
            if problems:
                refusal = str(ToolArgumentsError("finish", problems))
        if not refusal:
            return _End(outputs), ToolResult("finish", "Completed.")
        refused = ToolResult("finish", refusal, is_error=True, is_fault=True)
        if self.asker.conditions.is_observed:
            for call in finishes:
                yield Tell(events.CallRefused(call, replace(refused, call_id=call.id)))
        return None, refused

    def _stop(self, calls: Sequence[ToolCall]) -> Generator[Act, Any, _End | None]:
        """The end of the loop if one of `stop_at_tools` returned.

        If its result does not fit the outputs, they must be extracted. A clarification in the same
        answer keeps the loop going: the model asked, and must read what the person said.
        """
        returned, self.returned = self.returned, {}
        results = [returned[call.id] for call in calls if call.id in returned]
        is_clarified = any(call.name == CLARIFY.name for call in calls)
        if not results or is_clarified:
            return None
        outputs = outputs_of_result(self.signature, results[0])
        if outputs is not None and self.agent.react.is_validated:
            outputs, _ = yield from self._validated(outputs)
        return _End(outputs)

    def _use_tools(self, turn: Turn, calls: Sequence[ToolCall]) -> UsingTools:
        if self.code is not None:
            return self.code.use(calls, self.host, thought=turn.thought)
        acts = use_tools(
            self.toolbox,
            calls,
            self.host,
            self.asker.conditions,
            thought=turn.thought,
            policy=self.agent.policy,
        )
        if not self.agent.stop_at_tools:
            return acts
        return note_results(acts, self.toolbox, self.agent.stop_at_tools, self.returned)

    def _outputs(self, finish: ToolCall) -> tuple[dict[str, Any] | None, Problems]:
        """The outputs in the arguments of `finish`, typed; or None and the problems with them.

        None without problems asks for an extraction: after a call without any output, and after any
        misfit in text mode, where `finish` declares no arguments.
        """
        plan = self.signature.plan
        has_none = finish.args.keys().isdisjoint(plan.outputs)
        if finish.fault is None and has_none and plan.outputs.keys() - plan.optional.keys():
            return None, []
        outputs, problems = outputs_in(finish, plan)
        if not problems:
            return outputs, []
        return None, problems if self.native else []

    def _validated(
        self, outputs: dict[str, Any]
    ) -> Generator[Act, Any, tuple[dict[str, Any] | None, Problems]]:
        """The outputs after validation; or None and the validators' objections."""
        [judged] = yield from self.agent.react.judged(self.values, [outputs])
        return judged

    def _goes_on(self, step: Step, turn: Turn) -> bool:
        """Whether another turn may follow.

        False if the outputs were refused `limits.same_error` times: they must be extracted.
        Raises `TooManyFaultsError` after the same number of other faulty steps: there, calls that
        the answer may rest on have not succeeded.
        """
        results = step.results
        if not results or not all(result.is_fault for result in results):
            self.faults = []
            return True
        self.faults.append(str(results[0].content))
        if len(self.faults) < self.limits.same_error:
            return True
        if turn.is_text or all(result.name == "finish" for result in results):
            return False
        raise TooManyFaultsError(self.faults)
