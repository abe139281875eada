"""Shortens a long conversation of `ReAct`, before the context overflows or after it did.

`compact=` says when and how. Without it, the conversation is shortened only after an overflow.

A compaction is planned from the sizes of the messages shown, recorded (`Once`), and carried out
from that record alone: a replay compacts in the same way at the same places, even with another
`compact=`. Between two compactions the prompt only grows.
"""

from __future__ import annotations

import inspect
import logging
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec.structs import replace

from ferrule.acts import Act, CallTools, Once, Tell
from ferrule.events import Compacted
from ferrule.programs.asking.refusals import log_once
from ferrule.programs.instructions import SUMMARIZE
from ferrule.programs.lifecycle.as_tool import AgentTool
from ferrule.programs.predict import Predict
from ferrule.tools.tool import Tool
from ferrule.values.calls.call import CheckedCall, ToolCall, ToolResult
from ferrule.values.content.convert import content_text, render
from ferrule.values.conversation.compact import (
    LEFT_OUT,
    LONGEST_RESULT,
    choose_cut,
    cut_entries,
    estimate_content,
    estimate_messages,
    grouped,
    sizes_of,
)
from ferrule.values.conversation.history import History
from ferrule.values.conversation.message import Message, Messages, shorten
from ferrule.values.outcome import Step, Trajectory
from ferrule.values.signatures.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from ferrule.programs.asking.asker import Asker
    from ferrule.programs.react_loop.agent import Agent
    from ferrule.programs.react_loop.modes import Mode
    from ferrule.programs.tool_use.dynamic import Host
    from ferrule.runs.limits import Limits
    from ferrule.values.conversation.compact import Compact
    from ferrule.values.conversation.exchange import Request, Response

_log = logging.getLogger("ferrule.programs")
_TRUNCATIONS = 3
_LONG_OBSERVATION_CHARS = 2_000
"""Characters above which an observation is shortened when the context overflows."""
_LEAST_SHARE = 0.05
"""The smallest share of a request worth leaving out.

After each compaction, the provider's prompt cache starts empty.
"""
_SUMMARY = "summarize_conversation"
"""The name of the call that writes a summary of older steps."""
_NO_WINDOW = (
    "The context window of %s is unknown, and `compact=` is a share of it.%s The agent compacts "
    "only after a request that was too long. Give `compact=` a number of tokens, or the "
    "model its `context_tokens`."
)


class Loop(Protocol):
    """The attributes of the loop that this module uses."""

    agent: Agent
    asker: Asker
    limits: Limits
    host: Host
    native: bool
    mode: Mode
    inputs: Mapping[str, Any]
    shown: list[Step]
    request: Request

    def as_shown(self, steps: Sequence[Step]) -> list[Step]:
        """Steps with their results as the model sees them."""
        ...

    def with_short_results(self, steps: Sequence[Step]) -> list[Step]:
        """Steps for a program that cannot read more of their results."""
        ...


# -- after an overflow


def truncate(loop: Loop, rounds: int) -> bool:
    """Show less than before; returns False if that cannot help.

    Huge observations are cut first. After that, each round drops the oldest step.
    """
    if not loop.shown or rounds > _TRUNCATIONS:
        return False
    # Of a long result the model may see an excerpt only: what it does not see need not be cut.
    longest = 0
    for step in loop.as_shown(loop.shown):
        longest = max([longest, *[len(result.text) for result in step.results]])
    if rounds == 1 and longest > _LONG_OBSERVATION_CHARS:
        show(loop, loop.shown, shortened=len(loop.shown), limit=longest // 4)
        return True
    shorter = _without_oldest(loop, 1)
    is_shorter = shorter != loop.shown
    show(loop, shorter)
    return is_shorter


def _without_oldest(loop: Loop, count: int) -> list[Step]:
    trajectory = Trajectory(loop.shown)
    for _ in range(count):
        trajectory = trajectory.kept_by(loop.agent.truncate_trajectory(trajectory))
    return list(trajectory.steps)


def show(
    loop: Loop,
    steps: Iterable[Step],
    *,
    shortened: int = 0,
    limit: int = LONGEST_RESULT,
    inputs: Mapping[str, Any] | None = None,
) -> None:
    """Replace the steps that the request shows, and its inputs.

    Results of the first `shortened` steps are cut to `limit` characters. In native mode the
    model's answers stay the same messages: they hold data that the provider needs back.
    """
    known = {}
    if loop.native:
        known = _messages_by_step(loop)
    if inputs is not None:
        loop.inputs, loop.mode = inputs, replace(cast("Any", loop.mode), values=inputs)
    now = list(steps)
    for i, step in enumerate(now[:shortened]):
        now[i] = short = _shortened(loop, step, limit)
        if short is not step and id(step) in known:
            known[id(short)] = (known[id(step)][0], *loop.mode.render(short, i, None)[1:])
    loop.shown = now
    if not known:
        loop.request = loop.mode.request(loop.shown)
        return
    rendered = [
        message
        for i, step in enumerate(now)
        for message in known.get(id(step)) or loop.mode.render(step, i, None)
    ]
    loop.request = loop.mode.request_after(_opening(loop).then(*rendered))


def _shortened(loop: Loop, step: Step, limit: int) -> Step:
    """The step with at most `limit` characters of what the model sees of each result."""
    [shown] = loop.as_shown([step])
    results = list(step.results)
    for i, as_seen in enumerate(shown.results):
        content = shorten(as_seen.content, limit)
        if content is not as_seen.content:
            results[i] = replace(results[i], content=content)
    if all(short is whole for short, whole in zip(results, step.results, strict=True)):
        return step
    return replace(step, results=tuple(results))


def _opening(loop: Loop) -> Messages:
    return loop.mode.messages(loop.asker.adapter, ())


def _messages_by_step(loop: Loop) -> dict[int, tuple[Message, ...]]:
    """The messages that now show each step, by the step's `id`.

    Empty if the last step is not shown because it called `finish`.
    """
    start, messages = len(_opening(loop)), loop.request.messages
    by_step: dict[int, tuple[Message, ...]] = {}
    for i, step in enumerate(loop.shown):
        end = start + len(loop.mode.render(step, i, None))
        by_step[id(step)] = tuple(messages[start:end])
        start = end
    if start != len(messages):
        return {}
    return by_step


# -- before an overflow


class Compaction:
    """Keeps a run's conversation below the size set by `compact=`."""

    def __init__(self, loop: Loop, policy: Compact | None) -> None:
        self._loop = loop
        self._policy = policy
        self._is_recorded = "compaction" in loop.asker.conditions.due
        self._history = next(
            (name for name, value in loop.inputs.items() if isinstance(value, History)), None
        )
        self._most = self._find_most()
        self._tokens: int | None = None
        """The approximate size of the next request; None before the first one is counted."""
        self._least = 0.0
        """Up to this many tokens, there is nothing to leave out: a plan found nothing."""

    def _find_most(self) -> float | None:
        """The number of tokens above which to compact.

        None if the model's server must be asked first.
        """
        if self._policy is None:
            return inf
        if isinstance(self._policy.at, int):
            return self._policy.at
        window = self._loop.asker.capabilities.context_tokens
        if window is None and not callable(getattr(self._loop.asker.lm, "context_tokens", None)):
            return self._without_window()
        if window is None:
            return None
        return window * self._policy.at

    def _without_window(self) -> float:
        log_once(self._loop.asker.lm, _NO_WINDOW)
        return inf

    def count(self, response: Response | None, new: Sequence[Message]) -> None:
        """Count a turn that was added to the next request."""
        size = 0
        if response is not None:
            size = response.usage.input_tokens
        if not size:  # not every server counts
            size = self._size()
        self._tokens = size + estimate_messages(new)

    def count_again(self) -> None:
        """Estimate the whole next request, which was rendered again."""
        self._tokens = None

    def _size(self) -> int:
        """The tokens of the next request, as the provider counted or as estimated."""
        if self._tokens is None:
            request = self._loop.request
            self._tokens = estimate_messages(request.messages) + estimate_content(
                request.tools.json.decode()
            )
        return self._tokens

    def check(self) -> Generator[Act, Any, None]:
        """Before a turn: compact if the request would be too long."""
        if self._is_recorded or self._most is None or self._size() > max(self._most, self._least):
            plan = yield Once(self._due, "compaction", only_if_true=True, waits=self._most is None)
            if plan:
                yield from self._compact(plan)

    def shrink(self) -> Generator[Act, Any, bool]:
        """After an overflow: compact, even if the estimate is below the limit.

        Returns False if there is nothing to leave out.
        """
        plan = yield Once(self._plan, "compaction", only_if_true=True)
        if plan:
            yield from self._compact(plan)
        return bool(plan)

    def _due(self) -> dict[str, Any] | None:
        if self._most is None:
            window = self._loop.asker.lm.context_tokens()
            if window is None:
                self._most = self._without_window()
            else:
                self._most = window * cast("Compact", self._policy).at
        if self._size() <= max(self._most, self._least):
            return None
        plan = self._plan()
        if plan is None:
            if not self._least:
                _log.warning(
                    "A conversation has about %d tokens, and there is nothing old in it to "
                    "compact.",
                    self._size(),
                )
            # A plan looks at all steps, so do not make one at every step.
            self._least = self._size() * (1 + _LEAST_SHARE)
        return plan

    def _plan(self) -> dict[str, Any] | None:
        """The plan of what to leave out, as JSON data; None if there is nothing to leave out."""
        loop, policy, before = self._loop, self._policy, self._size()
        if policy is None:
            return None
        groups = grouped(self._entries())
        steps = [loop.mode.render(step, i, None) for i, step in enumerate(loop.shown)]
        short = [
            loop.mode.render(_shortened(loop, step, LONGEST_RESULT), i, None)
            for i, step in enumerate(loop.shown)
        ]
        sizes = [
            *sizes_of(groups),
            *zip(map(estimate_messages, steps), map(estimate_messages, short), strict=True),
        ]
        # The provider's count differs from the estimate by about the same factor everywhere.
        scale = min(max(before / max(estimate_messages(loop.request.messages), 1), 0.5), 2)
        most = min(before, self._most or before) / scale
        cut = choose_cut(
            sizes,
            before / scale,
            most=most,
            to=policy.to,
            keep=policy.keep,
            shortens=policy.strategy == "shorten",
        )
        if cut is None or cut.saved * scale < _LEAST_SHARE * before:
            return None
        of_history = [sum(map(len, groups[:count])) for count in (cut.dropped, cut.shortened)]
        of_steps = [max(count - len(groups), 0) for count in (cut.dropped, cut.shortened)]
        if isinstance(policy.strategy, str):
            strategy = policy.strategy
        else:
            strategy = "summarize"
        after = max(before - round(cut.saved * scale), 0)
        return {
            "strategy": strategy,
            "before": before,
            "after": after,
            "history": of_history,
            "steps": of_steps,
        }

    def _entries(self) -> list[Any]:
        if self._history is None:
            return []
        return self._loop.inputs[self._history].entries()

    def _compact(self, plan: Mapping[str, Any]) -> Generator[Act, Any, None]:
        loop, entries = self._loop, self._entries()
        (messages, short_messages), (steps, short_steps) = plan["history"], plan["steps"]
        summary, problem = "", ""
        if plan["strategy"] == "summarize":
            summary, problem = yield from self._summarize(entries[:messages], loop.shown[:steps])
        note = f"Summary of the earlier conversation:\n{summary}"
        inputs: dict[str, Any] | None = None
        if self._history is not None and short_messages:
            # If steps are left out too, the summary takes their place instead.
            replacement: Any = LEFT_OUT
            if summary and not steps:
                replacement = self._note(note)
            shorter = cut_entries(entries, messages, short_messages, replacement)
            inputs = {**loop.inputs, self._history: History(messages=shorter)}
        after: int = plan["after"]
        if summary:
            remaining = loop.shown[steps:]
            after += estimate_content(note)
        else:
            remaining = _without_oldest(loop, steps)
        if summary and steps:
            remaining = [Step("", (), (ToolResult("summary", note),)), *remaining]
        show(loop, remaining, shortened=max(short_steps - steps, 0), inputs=inputs)
        self._tokens = after
        yield Tell(
            Compacted(plan["strategy"], plan["before"], after, steps, messages, summary, problem)
        )

    def _note(self, note: str) -> Message:
        if self._loop.native:
            return Message("user", note)
        # In text, a summary of hostile results must not pass for a step.
        return self._loop.asker.adapter.step_message({"earlier": note})

    def _summarize(
        self, entries: Sequence[Any], steps: Sequence[Step]
    ) -> Generator[Act, Any, tuple[str, str]]:
        """The summary, or why there is none.

        The run calls a program for it, which is recorded and counted like one that is a tool.
        """
        program: Any = None
        if self._policy is not None and not isinstance(self._policy.strategy, str):
            program = self._policy.strategy
        if program is None:
            # By name, or in a replay whose program has no `compact=` any more.
            program = _summarizer()
        tool = _summary_tool(program, self._transcript(entries, steps), self._loop.asker.lm)
        call = CheckedCall(
            ToolCall(name=_SUMMARY, args={}), tool, tool.prepare({}), self._loop.host
        )
        [result] = cast("list[ToolResult]", (yield CallTools((call,))))
        text = content_text(result.content).strip()
        if result.is_error or not text:
            problem = text or "the summary was empty"
            _log.warning(
                "A conversation could not be summarized, so its oldest part is dropped: %s", problem
            )
            return "", problem
        return text, ""

    def _transcript(self, entries: Sequence[Any], steps: Sequence[Step]) -> str:
        opening = _opening(self._loop)
        task = next((message.text for message in reversed(opening) if message.role == "user"), "")
        lines = [f"The task:\n{task}", "The conversation:", *map(_entry_text, entries)]
        shown = Trajectory(self._loop.with_short_results(steps))
        lines += [text for _, text in shown.display_rows()]
        return "\n\n".join(
            str(shorten(line, self._loop.limits.observation_chars)) for line in lines
        )


def _entry_text(entry: Any) -> str:
    if not isinstance(entry, Message):
        return "\n".join(f"{name}: {content_text(render(value))}" for name, value in entry.items())
    calls = [f"{call.name}({call.arguments_text})" for call in entry.tool_calls]
    return "\n".join([f"{entry.role}: {entry.text}", *calls])


@lru_cache(maxsize=1)
def _summarizer() -> Predict:
    return Predict(Signature("conversation: str -> summary: str", SUMMARIZE))


def _summary_tool(program: Any, conversation: str, lm: Any) -> Tool:
    fields = program.signature.plan.inputs
    name = next(name for name, field in fields.items() if field.is_required)
    inputs: dict[str, Any] = {name: conversation}
    users: Sequence[Predict] = ()
    if callable(getattr(program, "tool_users", None)):
        users = program.tool_users()
    if users and users[0].lm is None and "lm" not in fields:
        inputs["lm"] = lm  # a program without a model uses the agent's
    return Tool(_Summarize(program, inputs), _SUMMARY, "Summarize what is left out.", effect="read")


class _Summarize(AgentTool):
    """A program bound to its inputs.

    As an argument of the call, the conversation would be in the journal a second time.
    """

    def __init__(self, program: Any, inputs: Mapping[str, Any]) -> None:
        super().__init__(program, program.signature)
        self.__signature__ = inspect.Signature()
        self._inputs = inputs

    def __call__(self, /, **inputs: Any) -> Any:
        return super().__call__(**self._inputs, **inputs)

    async def acall(self, /, **inputs: Any) -> Any:
        return await super().acall(**self._inputs, **inputs)
