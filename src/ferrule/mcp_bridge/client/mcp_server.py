"""`MCPServer`: an MCP server that programs use; and `mcp(...)`.

A server is a value: it says how to reach it, and compares by that. It connects on its first use.
The connection lives on the background loop and may be used and closed from any thread and any loop:
`call` in sync code, `acall` in async code.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from ferrule.concurrency.offload import background_loop, is_awaited_by_loop, run_async
from ferrule.errors import ConfigurationError, MCPTimeoutError
from ferrule.mcp_bridge.client.core import Core
from ferrule.mcp_bridge.client.offers import ServerOffers, ServerTools
from ferrule.mcp_bridge.client.options import ServerOptions, check_option, options_from
from ferrule.mcp_bridge.client.pinning import Pins
from ferrule.mcp_bridge.client.recording import ReplayLink
from ferrule.mcp_bridge.server_files import ServerFile
from ferrule.mcp_bridge.spec import (
    ServerSpec,
    name_of_command,
    remote_spec,
    spec_from_state,
    split_words,
)
from ferrule.mcp_bridge.transport.open_connections import register_exit
from ferrule.record import fields_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from os import PathLike

    from ferrule.mcp_bridge.server_files import Inputs

R = TypeVar("R")

log = logging.getLogger("ferrule.mcp")
_LOOP_ANSWERS_WITHIN_S = 10.0


class MCPServer(ServerOffers):
    """An MCP server: `MCPServer.stdio("npx", ["-y", "..."])`, `.http(url)`, `.sse(url)`, `.in_memory(server)`, or `mcp("...")`.

    As a context manager, sync or async, it connects, yields its tools and closes.
    docs/reference/settings.md lists the options. Failures raise `MCPConnectionError`,
    `MCPTimeoutError` or `MCPProtocolError`, all `MCPError`.
    """

    def __init__(
        self,
        spec: ServerSpec,
        options: ServerOptions,
        live: Mapping[str, Any] | None = None,
    ) -> None:
        self.spec = spec
        self.options = options
        self._live = dict(live or {})
        self._cores: dict[asyncio.AbstractEventLoop, Core] = {}
        self._tools: ServerTools | None = None
        self._asks_in_runs = False
        self._expected: Pins | None = None
        register_exit()

    # -- creating one
    # ---------------------------------------------------------------------------------------------

    @classmethod
    def stdio(
        cls,
        command: str,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        *,
        name: str | None = None,
        **options: Any,
    ) -> Self:
        """A server started as a child process. Its environment holds a few harmless variables and `env`, not everything."""
        texts = tuple(str(each) for each in args)
        own = name or name_of_command(command, texts)
        given = {str(key): str(value) for key, value in (env or {}).items()}
        spec = ServerSpec(
            name=own,
            transport="stdio",
            command=command,
            args=texts,
            env=given,
            cwd=None if cwd is None else str(cwd),
        )
        return cls(spec, options_from(options))

    @classmethod
    def http(
        cls,
        url: str,
        headers: Mapping[str, str] | None = None,
        auth: Any = None,
        http_client: Any = None,
        *,
        name: str | None = None,
        **options: Any,
    ) -> Self:
        """A server reached by streamable HTTP. `auth` is "oauth", `OAuth(...)` or an `httpx2.Auth`, `http_client` an `AsyncClient`."""
        if http_client is not None and (headers or auth is not None):
            raise ConfigurationError(
                "An `http_client` brings its own headers and auth. Pass them to the client, not to `MCPServer.http`.",
            )
        spec, other_auth = remote_spec("http", url, headers, auth, name)
        return cls(spec, options_from(options), {"auth": other_auth, "http_client": http_client})

    @classmethod
    def sse(
        cls,
        url: str,
        headers: Mapping[str, str] | None = None,
        auth: Any = None,
        *,
        name: str | None = None,
        **options: Any,
    ) -> Self:
        """A server reached by the older HTTP+SSE (revision 2024-11-05)."""
        spec, other_auth = remote_spec("sse", url, headers, auth, name)
        return cls(spec, options_from(options), {"auth": other_auth})

    @classmethod
    def in_memory(cls, server: Any, *, name: str | None = None, **options: Any) -> Self:
        """A server of the SDK (`mcp.server.Server` or `MCPServer`) in this process: for tests."""
        own = name or getattr(server, "name", None) or "memory"
        return cls(
            ServerSpec(name=own, transport="memory"),
            options_from(options),
            {"server": server},
        )

    @classmethod
    def replay(cls, path: str | PathLike[str], **options: Any) -> Self:
        """A stand-in that replays a recording made with `record=`. Raises `ConfigurationError` if the file is no recording."""
        spec = ServerSpec(name=ReplayLink(path).name, transport="memory")
        return cls(spec, options_from(options), {"recording": path})

    @classmethod
    def load(
        cls,
        source: str | PathLike[str] | Mapping[str, Any],
        *,
        inputs: Inputs | None = None,
        workspace: str | PathLike[str] | None = None,
        on_error: Literal["skip", "raise"] = "skip",
        auth: Literal["oauth"] | None = None,
        **options: Any,
    ) -> dict[str, Self]:
        """The servers of an editor's file, such as `.mcp.json` or `.vscode/mcp.json`, or of such a mapping, by name.

        `${VAR}`, `${VAR:-default}` and `${env:VAR}` are read from the environment; `${input:id}`
        from `inputs`, a mapping or a function that gets the file's entry about the input;
        `${workspaceFolder}` is `workspace`, otherwise the project that the file is in. By default a
        program goes on without a server that cannot be connected, for instance because a variable
        is not set, and an entry that describes no server is logged and left out. With
        `on_error="raise"` both raise a `ConfigurationError` here. `auth="oauth"`: a person may log
        in to servers without an `Authorization` header.
        """
        file = ServerFile(source, workspace, logs_in=auth == "oauth")
        values = file.inputs(inputs)
        made: dict[str, Self] = {}
        for name, each in file.entries.items():
            try:
                made[name] = cls._from_state(each, name, values, {"on_error": on_error, **options})
            except ConfigurationError as error:
                if on_error == "raise":
                    raise
                log.warning("MCP server `%s`: it is left out: %s", name, error)
        return made

    @classmethod
    def from_state(cls, state: Mapping[str, Any], name: str = "", **options: Any) -> Self:
        """A server from `dump_state`, or from one entry of a file. Its variables must be set in the environment."""
        return cls._from_state(state, name, {}, options)

    @classmethod
    def _from_state(
        cls,
        state: Mapping[str, Any],
        name: str,
        inputs: dict[str, str],
        options: Mapping[str, Any],
    ) -> Self:
        if not hasattr(state, "get"):
            raise ConfigurationError(
                f"An MCP server is a mapping with a `command` or a `url`, found {type(state).__name__}.",
            )
        spec = spec_from_state(state, name)
        chosen = options_from({**(state.get("options") or {}), **options})
        if chosen.on_error == "raise":
            spec.expanded(inputs=inputs)
        made = cls(spec, chosen, {"inputs": inputs} if inputs else {})
        pins = state.get("pins")
        made._expected = Pins(**pins) if pins is not None else None
        return made

    def dump_state(self) -> dict[str, Any]:
        """How to reach and use the server, as plain JSON. Each secret is replaced by the variable that loading reads it from.

        If its tools are known, the state holds them too (`pins`), and a loaded server is compared
        with them when it connects.
        """
        options = self.options.saved()
        pins = self.core.guard.now if self._cores else self._expected
        extra = {"options": options, "pins": fields_of(pins) if pins is not None else None}
        return {**self.spec.dump_state(), **{key: value for key, value in extra.items() if value}}

    # -- identity
    # -----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Its name in this program; `info` has the name it gives itself."""
        return self.spec.name

    def __repr__(self) -> str:
        return f"MCPServer({self.spec!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MCPServer) or (self.spec, self.options) != (
            other.spec,
            other.options,
        ):
            return False
        live = other._live
        return all(self._live.get(key) is live.get(key) for key in {*self._live, *live})

    def __copy__(self) -> Self:
        return self  # copies share one connection

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    def __reduce__(self) -> Any:
        return type(self), (self.spec, self.options, self._live)

    def __hash__(self) -> int:
        return hash((self.spec.name, self.spec.transport, self.spec.command, self.spec.url))

    @property
    def core(self) -> Core:
        """Its part on the background loop. A fork has another loop, and so another core."""
        loop = background_loop()
        found = self._cores.get(loop)
        if found is None:
            made = Core(self.spec, self.options, self._live)
            made.asking.in_runs |= self._asks_in_runs
            made.guard.expected = self._expected
            found = self._cores.setdefault(loop, made)  # two threads may get here at once
            if found is made:
                weakref.finalize(
                    self,
                    _end,
                    made,
                    loop,
                ).atexit = False  # at exit `close_all` (`transport/open_connections.py`) does it
        return found

    def ask_in_runs(self) -> None:
        """Declare at the next connection that runs answer questions: see the option `ask_in_runs`. Programs call this."""
        self._asks_in_runs = True
        for each in self._cores.values():
            each.asking.in_runs = True

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return bool(self._cores) and self.core.link.is_alive

    # -- connecting and closing
    # ---------------------------------------------------------------------------------

    async def aconnect(self) -> Self:
        """Connect, if it is not connected, also after failures that make other requests wait."""
        await self.there(self.core.connect)
        return self

    def connect(self) -> Self:
        """`aconnect` for sync code."""
        return run_async(self.aconnect())

    async def aclose(self) -> None:
        """Close the connection, from any thread, loop or task. The next use makes a new one."""
        if self._cores:
            await self.there(self.core.link.close)

    def close(self) -> None:
        """`aclose` for sync code."""
        run_async(self.aclose())

    def __enter__(self) -> ServerTools:
        self.connect()
        try:
            return self.tools
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> ServerTools:
        await self.aconnect()
        try:
            return await self.atools()
        except BaseException:
            await self.aclose()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aping(self) -> float:
        """Seconds of a round trip."""
        return await self.there(self.core.ping)

    def ping(self) -> float:
        """`aping` for sync code."""
        return run_async(self.aping())

    # -- calls
    # --------------------------------------------------------------------------------------------------

    async def acall(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        meta: Mapping[str, Any] | None = None,
        answers: Mapping[str, Any] | None = None,
        state: str | None = None,
    ) -> dict[str, Any]:
        """Call a tool by its name on the server; returns the raw result (`content`, `structuredContent`, `isError`, ...).

        `meta` is sent as `_meta`. `answers` and `state` continue a call that came back with
        questions (`resultType: input_required`).
        """
        if timeout_s is not None:
            check_option("timeout_s", timeout_s)
        call = partial(
            self.core.call,
            name,
            arguments,
            timeout_s=timeout_s,
            meta=meta,
            answers=answers,
            state=state,
        )
        return await self.there(call)

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """`acall` for sync code, also in a thread with a running loop."""
        return run_async(self.acall(name, arguments, **options))

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        """`acall`, under the name that sessions of the SDK use."""
        return await self.acall(name, arguments)

    # -- background loop
    # ----------------------------------------------------------------------------------------

    async def there(self, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine on the background loop, in this task's context and cancelled with it."""
        loop = background_loop()
        if asyncio.get_running_loop() is loop:
            return await make()
        here = asyncio.get_running_loop()
        begun = here.create_future()

        async def run() -> R:
            here.call_soon_threadsafe(lambda: None if begun.done() else begun.set_result(None))
            return await make()

        waiting = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), loop))
        try:
            async with asyncio.timeout(_LOOP_ANSWERS_WITHIN_S):
                await begun
        except TimeoutError as late:
            waiting.cancel()
            why = (
                "the background loop is waiting for this code. In async code use `await server.acall(...)`, not the sync form"
                if is_awaited_by_loop()
                else f"the background loop did not answer within {_LOOP_ANSWERS_WITHIN_S:g} s: something on it, a hook perhaps, blocks it. "
                "Hooks are async and must not wait in sync code"
            )
            msg = f"MCP server `{self.name}` cannot be called from here: {why}."
            raise MCPTimeoutError(
                msg,
                server=self.name,
                phase="start",
                may_have_run=False,
            ) from late
        except asyncio.CancelledError:
            waiting.cancel()
            raise
        return await waiting


def mcp(where: str, args: Sequence[str] = (), **options: Any) -> MCPServer:
    """An MCP server from a command line or an address: `mcp("npx -y @scope/server dir")`, `mcp("https://host/mcp", headers={...})`."""
    text = where.strip() if isinstance(where, str) else ""  # pyright: ignore[reportUnnecessaryIsInstance]  users pass anything
    if text.startswith(("http://", "https://")):
        return MCPServer.http(text, **options)
    if not text:
        raise ConfigurationError(
            "`mcp(...)` takes a command line or an address. For words, use `MCPServer.stdio(words[0], words[1:])`.",
        )
    words = [*split_words(text), *args]
    return MCPServer.stdio(words[0], words[1:], **options)


def _end(core: Core, loop: asyncio.AbstractEventLoop) -> None:
    """Close the connection of a server that was collected."""
    if loop.is_running():
        asyncio.run_coroutine_threadsafe(core.link.close(), loop)
