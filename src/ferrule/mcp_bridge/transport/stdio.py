"""An MCP server as a child process.

The SDK has a stdio transport of its own. This one keeps the last lines of stderr for errors instead
of writing to the parent's stderr (which may have no file descriptor, as in a notebook); a write
never waits for a child that does not read; a large line is joined once; and closing ends the whole
process group, also when a wrapper (npx, uvx) exits before the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any, Self

from ferrule.mcp_bridge.transport.messages import LARGEST, Note, read_message
from ferrule.mcp_bridge.transport.open_connections import is_leaving

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence

log = logging.getLogger("ferrule.mcp")

CHILD_GRACE_S = 2.0
"""How long a child may take to exit after its stdin was closed, before SIGTERM."""
_KILL_AFTER_S = 1.0
"""How long a child may take to exit after SIGTERM, before SIGKILL."""
_STDERR_LINES = 40
"""How many of the last lines of stderr are kept."""
_CHUNK = 1 << 16
_POLL_S = 0.01

# The MCP SDK's list, so that a server finds what it finds with other clients.
_INHERITED_ON_WINDOWS = (
    "APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT",
    "PROCESSOR_ARCHITECTURE", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "USERNAME", "USERPROFILE",
)  # fmt: skip
_INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
_ENDINGS = ".COM;.EXE;.BAT;.CMD"
_NEW_PROCESS_GROUP = 0x00000200
"""Windows' flag of this name; `subprocess` has it there only."""
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
GROUPS = {
    "proxy": (*_PROXIES, *(name.lower() for name in _PROXIES), "NODE_USE_ENV_PROXY"),
    "certificates": (
        "AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "DENO_CERT", "DENO_TLS_CA_STORE", "GIT_SSL_CAINFO",
        "NIX_SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "NODE_USE_SYSTEM_CA", "PIP_CERT",
        "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS",
    ),
    "locale": (
        "LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY",
        "LC_NUMERIC", "LC_TIME", "TZ", "PYTHONIOENCODING", "PYTHONUTF8",
    ),
}  # fmt: skip
"""The variables of each group of the option `inherit`.

They are names, not patterns, which could match a secret.
"""


def child_environment(
    extra: Mapping[str, str] | None, inherit: Sequence[str] = ()
) -> dict[str, str]:
    """A child's environment: a few harmless variables, those of `inherit`, and `extra`.

    Never the whole environment.
    """
    names: list[str] = list(_INHERITED_ON_WINDOWS if sys.platform == "win32" else _INHERITED)
    for wanted in inherit:
        if wanted in GROUPS:
            names.extend(name for name in GROUPS[wanted] if name not in private_proxies())
        else:
            names.append(wanted)
    environment: dict[str, str] = {}
    for name in names:
        value = os.environ.get(name)
        # A value that begins with `()` is a function of a shell, and could be executed.
        if value is not None and not value.startswith("()"):
            environment[name] = value
    for name, value in (extra or {}).items():
        # On Windows `Path` is `PATH`.
        environment[name.upper() if sys.platform == "win32" else name] = value
    return environment


def find_command(command: str, env: Mapping[str, str]) -> str:
    """The file that a command names.

    Windows finds `node.exe` by the name `node`, but not `npx.cmd` by the name `npx`.
    """
    if sys.platform != "win32":
        return command
    if PureWindowsPath(command).name == command:
        return shutil.which(command, path=env.get("PATH")) or command
    # Python 3.11's `which` tries no endings for a command with a folder.
    for ending in env.get("PATHEXT", _ENDINGS).split(";"):
        if Path(f"{command}{ending}").is_file():
            return f"{command}{ending}"
    return command


def private_proxies() -> list[str]:
    """The proxy variables that hold a password.

    A child inherits them only if `inherit` names them.
    """
    return [name for name in GROUPS["proxy"] if "@" in os.environ.get(name, "")]


class Child:
    """One child process.

    Use it on the loop that started it; only `kill_now` may be called from any thread.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._name = name
        self._listening: asyncio.Task[None] | None = None
        self.pid = process.pid
        self._home = os.getpid()
        self._is_over = False

    @classmethod
    async def start(
        cls, name: str, command: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None
    ) -> Child:
        """Start a child in a process group of its own.

        Raises `OSError` if the command cannot be run.
        """
        group: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            group = {"creationflags": _NEW_PROCESS_GROUP}
        process = await asyncio.create_subprocess_exec(
            find_command(command, env),
            *args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
            cwd=cwd,
            **group,
        )
        child = cls(name, process)
        if is_leaving():  # the exit may have begun before this child was known
            child.kill_now()
        child._listening = asyncio.get_running_loop().create_task(child._listen())
        return child

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    def last_words(self) -> str:
        """The last lines of stderr."""
        return "\n".join(self._stderr).strip()

    async def settle(self, within_s: float) -> None:
        """Wait a moment for a child whose pipe broke to exit, and for the end of its stderr."""
        if self._listening is not None:
            await asyncio.wait((self._listening,), timeout=within_s)
        await self._gone(within_s)

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of its stdout.

        Of a line larger than `LARGEST`, the beginning is yielded at once.
        """
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101  `start` asks for a pipe
        # Pieces of a line are joined once, when it is complete: it may have megabytes.
        pieces: list[bytes] = []
        size_bytes = 0
        while chunk := await stdout.read(_CHUNK):
            end_of_line, *lines = chunk.split(b"\n")
            size_bytes += len(end_of_line)
            if size_bytes <= LARGEST:
                pieces.append(end_of_line)
            elif pieces:
                yield b"".join(pieces)[:_CHUNK]
                pieces = []  # the rest of this line is skipped
            if lines:
                if size_bytes <= LARGEST:
                    yield b"".join(pieces)
                *complete_lines, begin_of_line = lines
                for line in complete_lines:
                    yield line
                pieces = [begin_of_line]
                size_bytes = len(begin_of_line)

    def write(self, line: bytes) -> bool:
        """Write a line, without waiting for the child to read it. False if its stdin is closed."""
        stdin = self._process.stdin
        if stdin is None or stdin.is_closing() or self.exit_code is not None:
            return False
        stdin.write(line)
        return True

    async def close(self, grace_s: float = CHILD_GRACE_S) -> None:
        """End it: close stdin, wait, SIGTERM, wait, SIGKILL; then kill the rest of its group."""
        stdin = self._process.stdin
        if stdin is not None:
            stdin.close()
        if not await self._gone(grace_s):
            self._signal(signal.SIGTERM)
            await self._gone(_KILL_AFTER_S)
        self.kill_now()  # also after a polite exit: a wrapper may leave the server itself behind
        if await self._gone(_KILL_AFTER_S):
            self._is_over = True  # from here on another process may have its pid
        if self._listening is not None:
            await asyncio.wait((self._listening,), timeout=_POLL_S)
            self._listening.cancel()
        # asyncio has no public way to close the pipes. One that a grandchild holds open would warn
        # when it is collected.
        transport: Any = getattr(self._process, "_transport", None)
        if transport is not None:
            transport.close()

    def kill_now(self) -> None:
        """Kill the whole group, from any thread. A fork does not kill its parent's children."""
        if os.getpid() == self._home and not self._is_over:
            self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform != "win32":
                os.killpg(self.pid, number)  # `start_new_session` made it the leader of its group
            elif self.exit_code is None:
                end_tree(self.pid)
                self._process.kill()

    async def _gone(self, within_s: float) -> bool:
        # Not `process.wait()`, which also waits for pipes that a grandchild may hold.
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        while self.exit_code is None and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        return self.exit_code is not None

    async def _listen(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None  # noqa: S101  `start` asks for a pipe
        rest = b""
        while chunk := await stderr.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_CHUNK:]
            for line in lines:
                self._keep(line)
        if rest:
            self._keep(rest)

    def _keep(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()[:2000]
        self._stderr.append(text)
        log.debug("%s: %s", self._name, text)


def end_tree(pid: int) -> None:
    """On Windows, end a process and those it started, such as the node of an npx.

    Windows knows no groups of processes that could be killed at once.
    """
    taskkill = Path(os.environ.get("SYSTEMROOT", r"C:\Windows")) / "System32" / "taskkill.exe"
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [taskkill, "/F", "/T", "/PID", str(pid)],
            capture_output=True,
            timeout=_KILL_AFTER_S,
            check=False,
        )


@contextlib.asynccontextmanager
async def stdio_streams(
    child: Child, note: Callable[[Any, Note], None]
) -> AsyncGenerator[tuple[Any, Any]]:
    """The two streams that the SDK's dispatcher reads and writes.

    Lines of stdout that are not JSON-RPC (a banner) are logged and skipped. `note` gets answers
    that cannot be read.
    """
    import anyio
    from mcp.shared.message import SessionMessage

    send, receive = anyio.create_memory_object_stream[Any](math.inf)

    async def read() -> None:
        with send, contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for line in child.lines():
                if not line.strip():
                    continue
                received = read_message(line)
                if received.message is None:
                    log.debug("%s wrote a line that is not a message: %r", child.pid, line[:200])
                    continue
                if received.broken:
                    note(received.message.id, Note(was_answered=True, text=received.broken))
                send.send_nowait(SessionMessage(received.message))

    reading = asyncio.get_running_loop().create_task(read())
    try:
        yield receive, _Writer(child)
    finally:
        receive.close()
        reading.cancel()
        await asyncio.wait((reading,))


class _Writer:
    """The stream that the SDK writes to.

    A send never waits, so that a child which does not read delays no timeout and no close.
    """

    def __init__(self, child: Child) -> None:
        self._child = child

    async def send(self, item: Any, /) -> None:
        import anyio

        line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        if not self._child.write(line):
            raise anyio.BrokenResourceError

    async def aclose(self) -> None:
        """Does nothing: the connection closes the child."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None
