"""The process of the embedded model. `engine` runs this file by its path.

It imports nothing of ferrule or of the package `needle`, so it starts at once and reports nothing.
Messages are JSON with a length before it. The engine holds one conversation; a request that
continues it adds turns, and any other request starts again and repeats its earlier turns.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Generator

_LENGTH = struct.Struct("!Q")
_ANSWER_BYTES = 1 << 18


class _Engine:
    def __init__(self, library: str, weights: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.needle_init.argtypes = [ctypes.c_char_p] * 3
        self._library.needle_complete.argtypes = [
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_int,
        ]
        self._library.needle_embed.argtypes = [
            ctypes.c_char_p,
            ctypes.POINTER(ctypes.c_float),
            ctypes.c_int,
        ]
        self._library.needle_reset.restype = None
        self._library.needle_load.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
        self._library.needle_last_error.restype = ctypes.c_char_p
        self._buffer = ctypes.create_string_buffer(_ANSWER_BYTES)
        self._tools: str | None = None
        self._turns: list[str] = []
        data = Path(weights).read_bytes()
        with _one_processor():
            code = self._library.needle_load(data, len(data))
        self._check(code, "the weights could not be loaded")

    def complete(self, tools: str, turns: list[str], max_tokens: int) -> Any:
        """The answer to the last of these turns, as the engine's JSON."""
        count = len(self._turns)
        if self._tools != tools:
            self._tools = None
            code = self._library.needle_init(b"", tools.encode(), None)
            self._check(code, "the tools could not be declared")
            self._tools, self._turns = tools, []
        elif count >= len(turns) or self._turns != turns[:count]:
            self._library.needle_reset()
            self._turns = []
        for turn in turns[len(self._turns) :]:
            # Noted after the answer: a turn that failed is not part of the conversation.
            size = len(self._buffer)
            code = self._library.needle_complete(turn.encode(), max_tokens, self._buffer, size)
            if code < 0:
                self._tools = None
            self._check(code, "the turn could not be answered")
            self._turns.append(turn)
        return json.loads(self._buffer.value)

    def embed(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text."""
        vectors: list[list[float]] = []
        for text in texts:
            size = self._library.needle_embed(text.encode(), None, 0)
            self._check(size, "the text could not be embedded")
            vector = (ctypes.c_float * size)()
            code = self._library.needle_embed(text.encode(), vector, size)
            self._check(code, "the text could not be embedded")
            vectors.append(list(vector))
        return vectors

    def _check(self, code: int, problem: str) -> None:
        if code < 0:
            reason = (self._library.needle_last_error() or b"").decode(errors="replace")
            raise RuntimeError(f"{problem}: {reason or f'code {code}'}")


@contextmanager
def _one_processor() -> Generator[None]:
    """Let the engine find one processor while it loads, so that it starts no threads.

    It would start one for each processor, bind it there, and let all wait for one another in a
    loop. As soon as another program uses one of the processors, an answer takes ten to a hundred
    times as long; on an idle machine with two, one thread is as fast. The engine has no setting
    for it. It asks the C library, which reads a file of the system or, if no file can be opened,
    counts the processors that this process may use (glibc since 2.35). Elsewhere, nothing changes.
    """
    if sys.platform != "linux":
        yield
        return
    import resource  # not on Windows

    processors = os.sched_getaffinity(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with suppress(OSError):
            os.sched_setaffinity(0, {min(processors)})
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with suppress(OSError):
            os.sched_setaffinity(0, processors)


def _read(stream: BinaryIO) -> Any:
    length = stream.read(_LENGTH.size)
    if len(length) < _LENGTH.size:
        return None  # the parent has ended
    return json.loads(stream.read(*_LENGTH.unpack(length)))


def _write(stream: BinaryIO, answer: dict[str, Any]) -> None:
    data = json.dumps(answer).encode()
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _serve() -> None:
    """Serve requests until the parent closes the pipe."""
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the engine prints is not an answer
    engine: _Engine | None = None
    while (request := _read(requests)) is not None:
        try:
            if engine is None:
                engine = _Engine(request["library"], request["weights"])
            operation = getattr(engine, request["operation"])
            _write(answers, {"value": operation(*request["arguments"])})
        except (OSError, RuntimeError, ValueError) as error:
            _write(answers, {"error": f"{error}"})


if __name__ == "__main__":
    _serve()
