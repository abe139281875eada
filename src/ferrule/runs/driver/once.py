"""Values that a run records once: the act `Once`, and `ferrule.once` in a `forward`.

There are four forms, which differ in where the value is found in a replay:

- A numbered act of a flow: at its position.
- A value that is recorded only if it is true (`only_if_true`): by its name at the position of the
  next act. It does not shift the numbers of the acts, as whether it is asked for at all may depend
  on something outside the run, such as whether a server has changed.
- What functions of the user object to (`runs_code`): at the position of the next act, too. A
  version of a program may have such functions and another one none.
- A value that a `forward` computes (`ferrule.once`): by its name and its number. A new version may
  compute one value more, in any place, without moving the others.

Programs that the functions of the last two call have a frame below this place.
"""

from __future__ import annotations

import builtins
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ferrule import settings
from ferrule.concurrency import offload
from ferrule.concurrency.cancellation import raising_errors
from ferrule.encoding.encode import is_exact
from ferrule.encoding.stored import reading
from ferrule.errors import (
    InputError,
    ReplayMismatchError,
    RunCancelledError,
    RunError,
    StoreError,
    shown,
)
from ferrule.runs.driver.deps import with_context
from ferrule.runs.driver.halts import await_effectless, run_effectless
from ferrule.runs.driver.inner_programs import close_frame, hand_up, keep_caught, recount
from ferrule.runs.journal.encode import error_form, read_error
from ferrule.runs.journal.entry import Entry
from ferrule.runs.life import cancellable
from ferrule.runs.limits import Budget
from ferrule.settings import Scope
from ferrule.values.slot import Slot
from ferrule.values.snapshot import snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ferrule.acts import Once
    from ferrule.runs.state import Frame, RunState
    from ferrule.tools.definition.deps import ContextParameter

T = TypeVar("T")

_OF_THIS_EXECUTION = (ReplayMismatchError, RunCancelledError, StoreError)
"""Errors that say nothing about the function called: another execution may not have them."""


async def answer_once(frame: Frame, act: Once) -> Any:
    """Answer the act: the recorded value, or a new one, which is recorded."""
    if act.runs_code:
        slot = Slot(frame.numbered(f"{frame.acts}~check"))
        return await run_code(frame, slot, act, partial(_was_unchecked, frame, slot, act.name))
    if act.only_if_true:
        return await _answer_if_true(frame, act)
    slot = frame.slot()
    entry = frame.run.journal.take(slot, "once", act.name)
    frame.live = entry is None
    if entry is None:
        entry = Entry(slot, "once", act.name, act.make())
        await frame.write(entry)
    return entry.value


async def _answer_if_true(frame: Frame, act: Once) -> Any:
    journal, slot = frame.run.journal, Slot.of_value(frame.path, frame.acts, act.name)
    if journal.unread:
        if slot in journal.unread:
            entry = journal.take(slot, "once", act.name)
            return entry is not None and entry.value
        if journal.ahead(frame.path, frame.acts) is not None:
            # A later act is recorded, so it was not true then; it must not become true now.
            return await _rebuild(frame, act)
    if journal.is_closed:  # what followed from a true value is not recorded
        return await _rebuild(frame, act)
    value = await _make(frame, act)
    if value:
        frame.live = True
        await frame.write(Entry(slot, "once", act.name, value))
    return value


async def _rebuild(frame: Frame, act: Once) -> bool:
    """The answer where a replay finds no value: it was not true."""
    if act.rebuilds:
        await _make(frame, act)
    return False


async def _make(frame: Frame, act: Once) -> Any:
    if not act.waits:
        return act.make()
    if frame.blocks:
        return run_effectless(frame, frame.life, act.make)
    return await await_effectless(frame, frame.life, offload.in_worker_thread(act.make))


async def run_code(frame: Frame, slot: Slot, act: Once, was_unchecked: Callable[[], bool]) -> Any:
    """Call functions of the user in a frame of the run, and record the result at a slot.

    If they raise, the error is recorded once a `forward` has caught it, and each replay raises it.

    If nothing is recorded there, `was_unchecked` says whether the run went on without: then the
    answer is None.
    """
    blocks, name = frame.blocks, act.name

    async def call(
        function: Callable[..., Any],
        *args: Any,
        context: ContextParameter | None,
        is_async: bool,
        what: str,
    ) -> Any:
        settings.scope().frame.blocks = not is_async  # how the function itself waits
        named: Mapping[str, Any] = {}
        if context is not None:
            args, named = with_context(frame, context, what, args, named)
        work = partial(function, *args, **named)
        with raising_errors(what, in_task=not blocks):
            if is_async and blocks:
                return offload.run_async(cancellable(frame.life, work()))
            if is_async:
                return await work()
            if blocks:
                return work()
            return await offload.in_worker_thread(work)

    def make() -> Any:
        if blocks:
            return offload.run_blocking(act.make(call))
        return act.make(call)

    here = settings.scope()
    overrides = here.overrides
    if frame.lm is not None:  # the model of this call, as for the program's tools
        overrides = {**overrides, "lm": frame.lm}
    journal = frame.run.journal
    entry = journal.take_optional(slot, "once", name)
    if entry is not None:
        recount(frame, slot)
        if isinstance(entry.value, dict):
            with reading(f"The error at {slot} of the journal"):
                error = _raised_again(cast("dict[str, Any]", entry.value))
            raise error
        return entry.value
    is_unchecked = was_unchecked()
    if is_unchecked and journal.is_closed:
        return None
    if is_unchecked or journal.is_closed:
        # So that a later replay finds it. A closed journal refuses it: the run ended here.
        await frame.write(Entry(slot, "once", name, []))
        return None
    frame.failures = []
    try:
        with settings.entered(Scope(overrides, here.frame, here.call)):
            entry = await _compute(frame, slot, make, name, blocks=blocks)
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, _OF_THIS_EXECUTION):
            frame.failures.append((None, Entry(slot, "once", name, _raised(error))))
        raise
    finally:
        hand_up(frame)  # a `forward` around this program may catch them
    return entry.value


def _raised(error: Exception) -> dict[str, Any]:
    """An error in place of an answer, as JSON data."""
    form = error_form(error)
    arguments = [*error.args]
    if type(error) is getattr(builtins, form["type"], None) and is_exact(arguments):
        form["arguments"] = arguments
    return form


def _raised_again(form: Mapping[str, Any]) -> BaseException:
    """The error that a function raised and a `forward` caught: `except ValueError` does it again.

    An exception of another library comes back as `RunError`, as that of any loaded run.
    """
    kind = getattr(builtins, form["type"], None)
    if "arguments" in form and isinstance(kind, type) and issubclass(kind, Exception):
        return kind(*form["arguments"])
    return read_error(form)


def _was_unchecked(frame: Frame, slot: Slot, name: str) -> bool:
    """Whether the run went on without this check: its program was of a version that had none."""
    journal = frame.run.journal
    if frame.live or journal.has_below(slot.inside()):
        return False  # what it checks is new, or it began
    if journal.is_whole or journal.ahead(frame.path, frame.acts) is not None:
        return True
    if name in journal.once_names:
        return False  # a crash came before its answer
    return bool(journal.unread) or _waits_for_a_person(frame.run)


def _waits_for_a_person(run: RunState) -> bool:
    """Whether the run asked a person at its last pause, and has not gone on since."""
    decided = {entry.value.question_id for entry in run.journal.entries if entry.kind == "decision"}
    return any(question.id not in decided for question in run.asked)


async def record(make: Callable[[], Any], name: str, *, blocks: bool) -> Any:
    """Compute a value once in a run and record it: see `once`.

    Args:
        make: Computes the value.
        name: Finds it in a replay, with its number among the values of this name.
        blocks: Wait by blocking this thread, not on this event loop.

    """
    _check_name(name)
    frame: Frame | None = settings.scope().frame
    if frame is None:
        return await _value_of(make, blocks=blocks)
    frame.check()
    journal, slot = frame.run.journal, Slot(frame.numbered(f"once:{name}"))
    entry = journal.take_optional(slot, "once", name)
    if entry is None:
        entry = await _compute(frame, slot, make, name, blocks=blocks)
    else:
        recount(frame, slot)
    return snapshot(entry.value)  # a copy, so that the program cannot change the record


def _check_name(name: Any) -> None:
    # A word, because it becomes a part of a slot, whose other parts are separated by signs.
    if isinstance(name, str) and name.replace("-", "_").isidentifier():
        return
    raise InputError(
        "The name of a value of `once` is a word of letters, digits, `_` and `-`; "
        f"found {shown(name)}."
    )


async def _compute(
    frame: Frame, slot: Slot, make: Callable[[], Any], name: str, *, blocks: bool
) -> Entry:
    await keep_caught(frame, blocks=blocks)
    # Until there is a value, programs that the function calls are replayed, as in a tool.
    inside = frame.inner(slot.inside())
    inside.budget, inside.failures = Budget(outer=frame.budget), []
    here = settings.scope()
    try:
        with settings.entered(Scope(here.overrides, inside, here.call)):
            value = await _value_of(make, blocks=blocks)
        inside.failures = None  # the value replaces them
    finally:
        hand_up(inside)
    # `failed`: it need not call the same programs again.
    spent = close_frame(frame, slot, inside, failed=True)
    if not is_exact(value):
        raise RunError(
            f"The value `{name}` of `once` is recorded as JSON, so it must be JSON data; "
            f"found {shown(value)}."
        )
    entry = Entry(slot, "once", name, snapshot(value))
    frame.live = True
    frame.check_alive()
    if spent is not None and inside.children:
        await frame.run.journal.write(spent, blocks=blocks)
    await frame.run.journal.write(entry, blocks=blocks)
    return entry


async def _value_of(make: Callable[[], Any], *, blocks: bool) -> Any:
    value = make()
    if not hasattr(value, "__await__"):
        return value
    if blocks:
        if hasattr(value, "close"):
            value.close()  # else Python warns that it was never awaited
        raise RunError(
            f"`once` does not await what its function returned, {shown(value)}. "
            "In an `aforward`, write `await ferrule.aonce(...)`."
        )
    return await value
