"""Functions for a `forward`, which a replay runs again from its first line.

`once` records a value for the replay, `ask_person` asks a person, and `gather` runs several
programs at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ferrule import settings
from ferrule.acts import AskPerson, Suspended
from ferrule.approval.policy import check_expiry
from ferrule.approval.question import Question
from ferrule.concurrency import offload
from ferrule.errors import (
    ConfigurationError,
    ConfirmationRejected,
    InputError,
    RunError,
    checks_keywords,
    shown,
)
from ferrule.runs.driver.approval import answer_questions
from ferrule.runs.driver.inner_programs import hand_up, keep_caught
from ferrule.runs.driver.once import record
from ferrule.settings import Scope
from ferrule.values.calls.call import ToolCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ferrule.runs.state import Frame

T = TypeVar("T")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")


@checks_keywords
def once(make: Callable[[], T], name: str = "once") -> T:
    """Compute a value and record it in the run.

    A resumed run, whose `forward` runs again from its first line, gets the recorded value.

    Use it for values that may differ the next time: a clock, a random number, a search, a request.
    It records nothing outside a run, and nothing in a tool, because the tool's result is recorded.
    A crash before the value is recorded means that it is computed again, so leave side effects to a
    tool with an `effect`. Programs that `make` calls belong to the run; they are replayed until
    there is a value.

    Args:
        make: Computes the value, which must be JSON data. If it raises, nothing is recorded.
        name: Names the value: a word of letters, digits, `_` and `-`. Values with the same name
            are matched by their order, so values computed at the same time need different names,
            or branches of `gather`.

    Raises:
        InputError: The name is not such a word.
        RunError: The value is not JSON data.
        ReplayMismatchError: A replay ended or went on without asking for a recorded value.

    """
    return offload.run_blocking(record(make, name, blocks=True))


@overload
async def aonce(make: Callable[[], Awaitable[T]], name: str = "once") -> T: ...
@overload
async def aonce(make: Callable[[], T], name: str = "once") -> T: ...
@checks_keywords
async def aonce(make: Callable[[], Any], name: str = "once") -> Any:
    """`once` on an event loop. `make` may be async."""
    return await record(make, name, blocks=False)


@checks_keywords
def ask_person(question: str, *, expires_s: float | None = None) -> str:
    """Ask a person, and return the answer.

    The run waits for it, even for days and across restarts; then `forward` runs again.

    The question is in `run.pending`. Answer it with `reply(text)`; a plain approval means "yes". If
    the text holds something that changes, such as the time, compute that with `once`.

    Args:
        question: The text that the person reads.
        expires_s: Seconds after which the question counts as denied; None for never.

    Raises:
        ConfirmationRejected: The question was denied, or expired. Its `message` is the reason.
        ConfigurationError: `expires_s` is not a number of seconds above 0; or this is a tool, which
            cannot pause halfway: the run ends with the error.
        InputError: The question is not text.
        RunError: No run executes here; or this is an `aforward`, which must await `aask_person`.

    """
    frame = _frame_that_waits()
    if not frame.blocks:
        raise RunError(
            "`ask_person` was called in an `aforward`: write `await ferrule.aask_person(...)`."
        )
    return offload.run_blocking(_ask(frame, question, expires_s))


@checks_keywords
async def aask_person(question: str, *, expires_s: float | None = None) -> str:
    """`ask_person` on an event loop."""
    return await _ask(_frame_that_waits(), question, expires_s)


def _frame_that_waits() -> Frame:
    here = settings.scope()
    if here.frame is not None:
        return here.frame
    if here.call is not None:
        # No model can repair it, so it is not a result of the tool: it ends the run.
        raise ConfigurationError(
            "`ask_person` was called in a tool, which cannot wait in its middle: give the agent a "
            "program that asks, `program.as_tool()`."
        )
    raise RunError(
        "`ask_person` was called where no run executes: call the program, not its `forward`."
    )


async def _ask(frame: Frame, question: str, expires_s: float | None) -> str:
    check_expiry(expires_s)
    text: Any = question  # users pass anything
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"`ask_person` takes the text of a question, found {shown(question)}.")
    frame.check()
    await keep_caught(frame, blocks=frame.blocks)
    call = ToolCall.unchecked(
        "ask_person", {"question": question}, f"ask_person_{frame.path}{frame.acts}"
    )
    [decision] = await answer_questions(
        frame, AskPerson((Question("clarify", question, call, expires_s=expires_s),))
    )
    if decision.kind == "deny":
        raise ConfirmationRejected(
            decision.text or "The question was denied.",
            confirmation_id=decision.question_id,
            tool_call=call,
        )
    if decision.kind == "reply":
        return decision.text
    return "yes"  # approved without words


@overload  # typed as tuples, though lists are returned: as `asyncio.gather` is
async def gather(one: Awaitable[T], two: Awaitable[T2], /) -> tuple[T, T2]: ...
@overload
async def gather(
    one: Awaitable[T], two: Awaitable[T2], three: Awaitable[T3], /
) -> tuple[T, T2, T3]: ...
@overload
async def gather(
    one: Awaitable[T], two: Awaitable[T2], three: Awaitable[T3], four: Awaitable[T4], /
) -> tuple[T, T2, T3, T4]: ...
@overload
async def gather(*branches: Awaitable[T]) -> list[T]: ...
async def gather(*branches: Awaitable[Any]) -> Any:
    """Run programs at once, like `asyncio.gather(a.acall(...), b.acall(...))`, but replayable.

    Branches may be equal. The results are in the order of the branches. Every branch runs as far as
    it can. If any raises, the first error in branch order is raised after all have ended, and no
    questions are asked. Otherwise the questions of all waiting branches are pending together.
    """
    here = settings.scope()
    frame: Frame | None = here.frame
    frames: list[Frame | None] = [None] * len(branches)
    if frame is not None:
        frames = [*frame.branches(len(branches))]

    async def run_branch(branch: Awaitable[Any], inside: Frame | None) -> Any:
        if inside is not None:
            inside.failures = []
        with settings.entered(Scope(here.overrides, inside, here.call)):
            return await branch

    tasks = [
        asyncio.ensure_future(run_branch(branch, inside))
        for branch, inside in zip(branches, frames, strict=True)
    ]
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    for inside in filter(None, frames):
        hand_up(inside)
    questions: list[Question] = []
    is_waiting = False
    failure: BaseException | None = None
    for result, task in zip(ended, tasks, strict=True):
        if not task.cancelled() and task.exception() is None:
            continue  # `result` is a value, perhaps an exception that the branch returned
        if isinstance(result, Suspended):
            is_waiting = True
            questions += result.questions
        elif failure is None:
            failure = result
    if failure is not None:
        raise failure
    if is_waiting:
        raise Suspended(questions)
    return ended
