"""Standard input and output of a server.

As in the SDK, the protocol moves to a descriptor of its own, and descriptor 1 points to stderr, so
that a `print` of a tool does not break the protocol. The SDK reads stdin in a thread that nothing
can wake, so Ctrl-C would not end a server whose client stays. Here that thread is a daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from ferrule.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

_AT_ONCE = 65536
_MOST_WAITING = 64
"""Lines to read ahead; then the client must wait."""

_NO_STREAM = (
    "Standard input or output is closed: an MCP client starts a server with both. "
    'To serve by itself it takes `transport="http"`.'
)


@contextlib.asynccontextmanager
async def streams() -> AsyncGenerator[tuple[Any, Any]]:
    """The two streams for the SDK's server.

    In the block, `print` writes to stderr, and standard input is empty.

    Raises `ConfigurationError` if the process has no standard input or output: then descriptors 0
    and 1 may be other files.
    """
    from mcp.server.stdio import stdio_server

    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise ConfigurationError(_NO_STREAM)
    with _own_input() as stdin:
        async with stdio_server(stdin=stdin) as (reading, writing):
            # Otherwise Python's buffer for descriptor 1 would be flushed into the protocol's stream
            # at the end.
            with contextlib.redirect_stdout(sys.stderr):
                yield reading, writing


@contextlib.contextmanager
def _own_input() -> Generator[Any]:
    """Descriptor 0 as lines; the descriptor itself is then empty."""
    try:
        private = os.dup(0)
    except OSError as error:
        raise ConfigurationError(_NO_STREAM) from error
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    lines = StdinLines(private)
    try:
        yield lines
    finally:
        lines.close()
        if sys.platform != "win32":  # there it would wait for the thread's read to end
            os.dup2(private, 0)  # stays open, as the thread may be reading it


class StdinLines:
    """The lines of a descriptor, as they arrive."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(_MOST_WAITING)
        self._is_closed = False
        threading.Thread(target=self._read, name="ferrule-stdin", daemon=True).start()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        line = await self._lines.get()
        self._room.release()
        if line is None:
            raise StopAsyncIteration
        return line.decode(errors="replace")

    def close(self) -> None:
        """Stop: the thread ends with the next line."""
        self._is_closed = True
        self._room.release()

    def _read(self) -> None:
        pieces: list[bytes] = []
        # No file object: its lock would block the exit of the process.
        while chunk := self._chunk():
            *line_ends, rest = chunk.split(b"\n")
            for line_end in line_ends:
                if not self._put(b"".join([*pieces, line_end])):
                    return
                pieces = []
            pieces.append(rest)
        last = b"".join(pieces)
        if last and not self._put(last):
            return
        self._put(None)

    def _chunk(self) -> bytes:
        try:
            return os.read(self._descriptor, _AT_ONCE)
        except OSError:
            return b""

    def _put(self, line: bytes | None) -> bool:
        """Pass a line on; False once closed."""
        self._room.acquire()
        if self._is_closed:
            return False
        try:
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
        except RuntimeError:  # the loop is closed
            return False
        return True
