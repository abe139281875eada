"""The interpreter of snippets: `pydantic-monty`, a Python in Rust in worker processes.

A snippet has no file, no network, no environment and no clock of its own. It stops where it awaits
a tool, and goes on with the answers it is given, so the same answers lead to the same end: a
resumed run gives a snippet its recorded answers, and it arrives where it was. Nothing of the
interpreter is stored. Only limits of time and memory depend on the machine; `Stop` reports them,
and the run records it.
"""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct

from ferrule.concurrency.forking import ForkLock, run_in_child
from ferrule.errors import ConfigurationError, importing, shown
from ferrule.programs.code_mode.stubs import MODULES
from ferrule.record import CheckedStruct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_MOST_WORKERS = 1_000
"""High, because a session keeps its worker while its run waits for tools and people."""
_MOST_STOPS = 1_000_000
"""How often a session may stop for us, at a call or an unknown name.

High, because `CodeMode.calls` is the limit that users see.
"""
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has only the second
_SIZED = frozenset({"list", "tuple", "dict", "set", "frozenset", "str", "bytes"})
"""Types whose values are described to the model with their size."""
_WARNING = re.compile(r"\S+:\d+:\d+: warning\[")
"""How the checker begins a line about code that runs and may not do what is meant."""
_INSTEAD = {
    "class inheritance": (
        "classes have no bases here. Use a dict, a function or a dataclass; raise `ValueError` or "
        "`RuntimeError` in place of an exception of your own."
    ),
    "yield expressions": "there are no generators with `yield`. Fill a list and return it.",
    "'del' statement": "there is no `del`. Use `pop` of the list or dict, or assign None.",
    "exception groups": "there is no `except*`. Write `except`.",
    "type aliases": "there is no `type` statement. Write the type itself, or none.",
    "outside of an asynchronous function": (
        "write `for` without `async`, and `await` each call, or several with `asyncio.gather`."
    ),
    "Module `asyncio` has no member": "`asyncio` has only `gather`, `run` and `sleep`.",
    "Cannot resolve imported module": (
        f"the modules are {', '.join(MODULES)}. For the rest, call the functions."
    ),
    "used when not defined": (
        "there are the functions of this tool, those that earlier code loaded, and Python's "
        "built-in ones except those for files and input."
    ),
    "does not yet support": "write it with loops, functions, lists and dicts.",
    "not supported in this environment": (
        "code has no files, network or environment. Call the functions."
    ),
}
"""Words of an error about Python that the interpreter does not run, and what to write instead."""
_TIMES_THE_CALLS = 2
"""A snippet is stopped at this many times `CodeMode.calls`.

A call beyond the limit is an error in the snippet, which a loop may catch for ever. Time spent here
does not count as seconds of the snippet, so that limit would come late.
"""
_TIMES_IN_REPLAY = 10
"""A resumed run may compute this many times longer.

What took less than the limit before a crash must not reach it on a slower machine.
"""
_REACHED_LIMIT = (TimeoutError, MemoryError)
"""The errors with which the interpreter stops a snippet at its limit of time or memory."""
_MOST_PRINTED_BYTES = 10_000_000
"""What is printed is kept here, outside of the session's memory, until the snippet ends. A snippet
that prints more is stopped. The model reads `CodeMode.output_chars` of it.
"""


class CodeMode(Struct, metaclass=CheckedStruct, frozen=True, kw_only=True):
    """The bounds of a snippet: `ReAct(..., calls=CodeMode(seconds=2))`. `calls="code"` has these.

    Each is a clear error for the model, which may write another snippet.
    """

    seconds: float = 10.0
    """Seconds that a snippet may compute, without the time of its tools."""
    memory_mb: int = 100
    """Megabytes of all values of the run's snippets."""
    calls: int = 200
    """Calls of tools in a snippet."""
    code_chars: int = 50_000
    """Characters of a snippet. `seconds` does not bound its check."""
    argument_chars: int = 200_000
    """Characters of the arguments of a call, as JSON: the run records them."""
    output_chars: int = 20_000
    """Characters of what a snippet prints."""
    value_chars: int = 2_000
    """Characters of a result. The model reads of a larger one what it is, not its content."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 < value < math.inf:
                raise ConfigurationError(
                    f"`CodeMode({name}=...)` is a finite number above 0, found {shown(value)}."
                )


def code_mode(calls: Any) -> CodeMode | None:
    """The bounds of snippets if an option `calls` asks for code; else None."""
    if calls == "code":
        return CodeMode()
    if isinstance(calls, CodeMode):
        return calls
    return None


def check_installed() -> None:
    """Raise `ConfigurationError` without the interpreter."""
    _import()


class HostCall(Struct, frozen=True):
    """A call of a tool, at which the snippet waits."""

    id: int
    function: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    line: int
    """The line of the call in the snippet, from 1."""


class Stop(Struct, frozen=True):
    """Why a snippet did not run to its end, if that may differ the next time."""

    kind: Literal["unchecked", "stopped"]
    """`unchecked`: it does not fit the tools as they are now, and nothing of it has run.
    `stopped`: it reached a limit of time or memory, and the session's values are lost."""
    reason: str


def too_many(most_calls: int) -> str:
    """The error of a call after the last one that a snippet may make."""
    return f"no more than {most_calls} calls in one piece of code"


def with_advice(error: str) -> str:
    """An error of the interpreter, with what to write instead if it does not run such Python."""
    for words, advice in _INSTEAD.items():
        if words in error:
            return f"{error}\nInstead: {advice}"
    return error


class CodeValue(Struct, frozen=True):
    """A value of a snippet, as text."""

    text: str
    """As `repr` has it."""
    type: str
    """The name of its type."""
    size: int | None
    """The number of its items or characters, if it has some."""


class _EndlessError(Exception):
    """Code goes on making calls that it may not make."""


class CodeSession:
    """The snippets of one run, which share their variables."""

    def __init__(
        self, bounds: CodeMode, stubs: str, *, seed: int, time_s: float, is_replay: bool
    ) -> None:
        self._monty = _import()
        seconds = bounds.seconds
        if is_replay:
            seconds *= _TIMES_IN_REPLAY
        self._session: Any = _pool().checkout(
            type_check=True,
            type_check_stubs=stubs,
            type_check_format="concise",
            limits={
                "max_feed_duration_secs": seconds,
                "max_memory": bounds.memory_mb * 1_000_000,
                "max_suspensions": _MOST_STOPS,
            },
            # The same in every execution of the run.
            os_policy={
                "datetime": datetime.fromtimestamp(time_s, UTC),
                "sleep": "zero",
                "random_start": {"seed": seed},
            },
        )
        self._session.__enter__()
        self._worker_pid: int = self._session.worker_pid  # None while the worker is at work
        self._bounds = bounds
        self._functions: frozenset[str] = frozenset()
        self._unanswered: dict[int, HostCall] = {}
        """The calls that the snippet has made and that have no answer yet, by id."""
        self._calls_made = 0
        """How many calls the snippet has made, with those beyond the limit."""
        self._snapshot: Any = None
        self._is_at_work = False
        """Whether the worker runs code now, perhaps for another thread."""
        self._code = b""
        """In bytes, because the interpreter gives positions in bytes."""
        self._result_name = ""
        self._printed = self._monty.CollectString()
        self.pending: tuple[HostCall, ...] = ()
        """The calls at which the snippet waits."""
        self.error = ""
        """The error that the snippet did not catch, with its lines."""
        self.value: CodeValue | None = None
        """What a snippet that ran to its end left in the variable for its result. None if it has
        none, or left None in it.
        """

    def define(self, code: str, *, is_checked: bool = False) -> None:
        """Run code of ferrule's own; the checker knows of it only if it is checked."""
        self._session.feed_run(code, skip_type_check=not is_checked)

    def start(
        self, code: str, functions: Iterable[str], *, result_name: str = "", is_checked: bool
    ) -> Stop | None:
        """Run a snippet until it waits for calls or ends.

        `result_name` is the variable that it assigns its result to, if it has one. If it is
        checked, errors refuse it. Warnings do not: it may run all the same.
        """
        self._functions = frozenset(functions)
        self._code = code.encode()
        self._result_name = result_name
        self._unanswered, self._calls_made = {}, 0
        # Not a function of ours: Ctrl-C, raised in it, would become an error of the snippet.
        most_bytes = max(_MOST_PRINTED_BYTES, 4 * self._bounds.output_chars)
        self._printed = self._monty.CollectString(max_bytes=most_bytes)
        self.pending, self.error, self.value = (), "", None
        if is_checked:
            return self._advance(lambda: self._feed_checked(code))
        return self._advance(lambda: self._feed(code, is_checked=False))

    def answer(self, answers: Mapping[int, Any]) -> Stop | None:
        """Continue with the answers to the pending calls, by their ids."""
        snapshot = self._snapshot
        for call in self.pending:
            del self._unanswered[call.id]
        self.pending = ()
        return self._advance(lambda: snapshot.resume(dict(answers)))

    @property
    def output(self) -> str:
        """What the snippet printed, as far as it is shown."""
        output: str = self._printed.output
        if len(output) > self._bounds.output_chars:
            return f"{output[: self._bounds.output_chars]}\n[the rest is left out]"
        return output

    @property
    def unawaited(self) -> list[HostCall]:
        """The calls that the snippet wrote without awaiting them. They have not run."""
        return list(self._unanswered.values())

    def close(self) -> None:
        """Give the worker back. One that is at work is killed, because it would be waited for."""
        session, self._session = self._session, None
        if session is None:
            return
        if self._is_at_work:
            with suppress(OSError):
                os.kill(self._worker_pid, _KILL)
        session.__exit__(None, None, None)

    def _feed_checked(self, code: str) -> Any:
        try:
            return self._feed(code, is_checked=True)
        except self._monty.MontyTypingError as error:
            if not all(map(_WARNING.match, error.display().strip().splitlines())):
                raise
        return self._feed(code, is_checked=False)

    def _feed(self, code: str, *, is_checked: bool) -> Any:
        return self._session.feed_start(
            code, print_callback=self._printed, skip_type_check=not is_checked
        )

    def _advance(self, resume: Callable[[], Any]) -> Stop | None:
        """Run the snippet until it awaits calls (`pending`), ends (`value`) or raises (`error`)."""
        monty = self._monty
        self._is_at_work = True
        try:
            snapshot = resume()
            while not isinstance(snapshot, (monty.MontyComplete, monty.FutureSnapshot)):
                snapshot = self._go_on(snapshot)
            if isinstance(snapshot, monty.MontyComplete) and self._result_name:
                self.value = self._describe(self._result_name)
        except monty.MontyTypingError as error:
            return Stop("unchecked", error.display().strip())
        except _EndlessError:
            return Stop("stopped", f"it went on, though there are {too_many(self._bounds.calls)}")
        except monty.MontyCrashedError:
            return Stop("stopped", "the interpreter ended")
        except monty.MontyRuntimeError as error:
            if isinstance(error.exception(), _REACHED_LIMIT):
                return Stop("stopped", str(error.exception()))
            self.error = error.display()
        except monty.MontyError as error:
            self.error = str(error)
        else:
            self._snapshot = snapshot
            if isinstance(snapshot, monty.FutureSnapshot):
                # In the order of the code: the interpreter names them in any order.
                ids = sorted(snapshot.pending_call_ids)
                self.pending = tuple(self._unanswered[id_] for id_ in ids)
        finally:
            self._is_at_work = False
        return None

    def _describe(self, name: str) -> CodeValue | None:
        """A variable as text, which has at most one character more than is shown of it.

        The interpreter makes the text: the order of a Python set would differ between processes,
        and a resumed run must tell the model the same. A `__repr__` of the snippet may fail.
        """
        most_chars = self._bounds.value_chars
        try:
            text, kind = self._session.feed_run(
                f"(repr({name})[:{most_chars + 1}], type({name}).__name__)", skip_type_check=True
            )
        except self._monty.MontyRuntimeError as error:
            if isinstance(error.exception(), _REACHED_LIMIT):
                raise
            self.error = f"The value of the last line cannot be shown: {error}"
            return None
        if kind == "NoneType":
            return None
        size = None
        if kind in _SIZED:
            size = self._session.feed_run(f"len({name})", skip_type_check=True)
        return CodeValue(text, kind, size)

    def _go_on(self, snapshot: Any) -> Any:
        """Answer a stop of the interpreter at once, and return its next one.

        A call is noted, and answered with a future: its tool runs when the snippet awaits it.
        """
        if isinstance(snapshot, self._monty.NameLookupSnapshot):
            if snapshot.variable_name in self._functions:
                return snapshot.resume(value=_function_named(snapshot.variable_name))
            return snapshot.resume()
        if snapshot.is_os_function:
            return snapshot.resume_not_handled()
        name = snapshot.function_name
        if name not in self._functions:
            message = f"name {name!r} is not defined"
            return snapshot.resume({"exc_type": "NameError", "message": message})
        self._calls_made += 1
        if self._calls_made > _TIMES_THE_CALLS * self._bounds.calls:
            raise _EndlessError
        # `snippets.py` counts the calls that are awaited. Those that are not would fill the memory.
        if len(self._unanswered) >= self._bounds.calls:
            message = too_many(self._bounds.calls)
            return snapshot.resume({"exc_type": "RuntimeError", "message": message})
        line = self._code[: snapshot.position.start].count(b"\n") + 1
        self._unanswered[snapshot.call_id] = HostCall(
            snapshot.call_id, name, snapshot.args, snapshot.kwargs, line
        )
        return snapshot.resume({"future": ...})


def _function_named(name: str) -> Any:
    def function() -> None: ...

    function.__name__ = name
    return function


# -- the worker processes

_started: Any = None
_starting = ForkLock()


def _pool() -> Any:
    """The worker processes of this process, started on first use."""
    global _started
    with _starting.lock:
        if _started is None:
            _started = _import().Monty(max_processes=_MOST_WORKERS).__enter__()
        return _started


def _import() -> Any:
    with importing(
        "`calls=\"code\"` needs an interpreter: pip install 'ferrule[code]'. There are wheels for "
        "Linux, macOS, and Windows on x86-64."
    ):
        import pydantic_monty  # late: optional
    return cast("Any", pydantic_monty)


def _forget() -> None:
    global _started
    _started = None  # the workers belong to the parent


# The workers end when their pipes close, with this process: no `atexit` is needed.
run_in_child(_forget)
