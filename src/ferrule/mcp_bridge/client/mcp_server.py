"""`MCPServer`: an MCP server that programs use; and `mcp(...)`.

A server is a value: it says how to reach it, and compares by that. It connects on its first use.
The connection lives on the background loop and may be used and closed from any thread and any loop:
`call` in sync code, `acall` in async code.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Never, Self, TypeVar, cast

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from ferrule.concurrency.offload import background_loop, is_awaited_by_loop, run_async
from ferrule.errors import ConfigurationError, MCPTimeoutError, UnknownToolError, shown
from ferrule.mcp_bridge.client.client import Client
from ferrule.mcp_bridge.client.listing import ToolChanges
from ferrule.mcp_bridge.client.options import ServerOptions, check_option, options_from
from ferrule.mcp_bridge.client.pinning import Pins
from ferrule.mcp_bridge.client.recording import ReplayLink
from ferrule.mcp_bridge.server_files import ServerFile
from ferrule.mcp_bridge.spec import (
    ServerSpec,
    command_spec,
    name_given,
    remote_spec,
    spec_from_state,
    split_words,
)
from ferrule.mcp_bridge.transport.http import check_remote
from ferrule.mcp_bridge.transport.open_connections import register_exit
from ferrule.tools.server_tools import make_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from ferrule.errors import MCPError
    from ferrule.mcp_bridge.client.listing import Dropped
    from ferrule.mcp_bridge.server_files import Inputs
    from ferrule.tools.mcp.safety import MCPFinding
    from ferrule.tools.mcp_definition import MCPDefinition
    from ferrule.tools.tool import Tool

R = TypeVar("R")

log = logging.getLogger("ferrule.mcp")

_LOOP_ANSWERS_WITHIN_S = 10.0


class ServerInfo(Struct, frozen=True, kw_only=True):
    """What a server says about itself."""

    name: str = ""
    version: str = ""
    title: str | None = None
    instructions: str | None = None
    """The server's text for a model. Do not trust it; ferrule puts it into no prompt."""
    protocol_version: str = ""
    capabilities: dict[str, Any] = field(default_factory=dict[str, Any])


class ServerTools:
    """The tools of a server, by name and in order.

    `tools["echo"]`, `ReAct(..., tools=[tools])`, alone or with other tools in the list.
    """

    holds_tools: ClassVar[bool] = True
    """Tells a list of tools that this stands for several."""

    def __init__(
        self,
        definitions: Mapping[str, MCPDefinition],
        tools: Mapping[str, Tool],
        notes: Mapping[str, str],
    ) -> None:
        self.definitions = dict(definitions)
        """The server's definitions, by their name on the server."""
        self.notes = dict(notes)
        """By name on the server: why a person must confirm calls of a tool that differs from its
        pin."""
        self._tools = dict(tools)

    def __getitem__(self, name: str) -> Tool:
        try:
            return self._tools[name]
        except KeyError:
            raise UnknownToolError(name, list(self._tools)) from None

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools or any(name is tool for tool in self._tools.values())

    def __repr__(self) -> str:
        return f"ServerTools({', '.join(self._tools)})"

    def keys(self) -> list[str]:
        """The names, so that `dict(tools)` works."""
        return list(self._tools)

    def items(self) -> list[tuple[str, Tool]]:
        """Names and tools."""
        return list(self._tools.items())

    def values(self) -> list[Tool]:
        """The tools."""
        return list(self._tools.values())


class MCPServer:
    """An MCP server.

    `MCPServer.stdio("npx", ["-y", "..."])`, `.http(url)`, `.sse(url)`, `.in_memory(server)`, or
    `mcp("...")`. As a context manager, sync or async, it connects, yields its tools and closes.

    docs/reference/settings.md lists the options. Failures raise `MCPConnectionError`,
    `MCPTimeoutError` or `MCPProtocolError`, all `MCPError`.
    """

    def __init__(
        self,
        spec: ServerSpec | None = None,
        options: ServerOptions | None = None,
        live: Mapping[str, Any] | None = None,
        **unknown: Never,
    ) -> None:
        # Its classmethods pass the first two. Users may pass anything.
        if unknown or not isinstance(spec, ServerSpec) or not isinstance(options, ServerOptions):
            # The error about a misspelled option says more than the one below.
            options_from(unknown, ("spec", "options", "live"))
            raise ConfigurationError(
                "`MCPServer` has a constructor for each way to reach a server: "
                '`mcp("command or address")`, `MCPServer.stdio(command, args)`, `.http(url)`, '
                "`.sse(url)`, `.in_memory(server)`. All take options."
            )
        if not spec.expands:  # otherwise the address may have variables, read on connecting
            check_remote(spec, allow_http=options.allow_http)
        self.spec = spec
        self.options = options
        self._live = dict(live or {})
        """Objects that a spec cannot hold, such as an HTTP client."""
        self._clients: dict[asyncio.AbstractEventLoop, Client] = {}
        self._tools: ServerTools | None = None
        self._asks_in_runs = False
        self._expected: Pins | None = None
        register_exit()

    # -- creating one

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
        """A server started as a child process.

        Its environment holds a few harmless variables and `env`, not everything.
        """
        spec = command_spec(command, args, env, cwd, name)
        return cls(spec, options_from(options, ("command", "args", "env", "cwd", "name")))

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
        """A server reached by streamable HTTP.

        `auth` is "oauth", `OAuth(...)` or an `httpx2.Auth`, `http_client` an `AsyncClient`.
        """
        if http_client is not None and (headers or auth is not None):
            raise ConfigurationError(
                "An `http_client` brings its own headers and auth. "
                "Pass them to the client, not to `MCPServer.http`."
            )
        spec, other_auth = remote_spec("http", url, headers, auth, name)
        names = ("url", "headers", "auth", "http_client", "name")
        live = {"auth": other_auth, "http_client": http_client}
        return cls(spec, options_from(options, names), live)

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
        names = ("url", "headers", "auth", "name")
        return cls(spec, options_from(options, names), {"auth": other_auth})

    @classmethod
    def in_memory(cls, server: Any, *, name: str | None = None, **options: Any) -> Self:
        """A server of the SDK (`mcp.server.Server` or `MCPServer`) in this process: for tests."""
        if not any(base.__module__.startswith("mcp.") for base in type(server).__mro__):
            raise ConfigurationError(
                "`MCPServer.in_memory` takes a server of the MCP SDK, such as "
                f"`MCPApp(...).server`; found {shown(server)}."
            )
        own_name: Any = getattr(server, "name", None)
        spec = ServerSpec(name=name_given(name) or own_name or "memory", transport="memory")
        return cls(spec, options_from(options, ("server", "name")), {"server": server})

    @classmethod
    def replay(cls, path: str | PathLike[str], **options: Any) -> Self:
        """A stand-in that replays a recording made with `record=`.

        Raises `ConfigurationError` if the file is not a recording.
        """
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
        """The servers of an editor's file, such as `.mcp.json`, or of such a mapping, by name.

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
        options = {"on_error": on_error, **options}
        servers: dict[str, Self] = {}
        for name, entry in file.entries.items():
            try:
                servers[name] = cls._from_state(entry, name, values, options)
            except ConfigurationError as error:
                if on_error == "raise":
                    raise
                log.warning("MCP server `%s`: it is left out: %s", name, error)
        return servers

    @classmethod
    def from_state(cls, state: Mapping[str, Any], name: str = "", **options: Any) -> Self:
        """A server from `dump_state`, or from one entry of a file.

        Its variables must be set in the environment.
        """
        return cls._from_state(state, name, {}, options)

    @classmethod
    def _from_state(
        cls, state: Mapping[str, Any], name: str, inputs: dict[str, str], options: Mapping[str, Any]
    ) -> Self:
        if not hasattr(state, "get"):
            raise ConfigurationError(
                "An MCP server is a mapping with a `command` or a `url`, "
                f"found {type(state).__name__}."
            )
        spec = spec_from_state(state, name)
        server_options = options_from({**(state.get("options") or {}), **options})
        if server_options.on_error == "raise":
            spec.expanded(inputs=inputs)  # a missing variable is an error now
        server = cls(spec, server_options, {"inputs": inputs} if inputs else {})
        pins = state.get("pins")
        if pins is not None:
            server._expected = Pins(**pins)
        return server

    def dump_state(self) -> dict[str, Any]:
        """How to reach and use the server, as plain JSON.

        Each secret is replaced by the variable that loading reads it from. If its tools are known,
        the state holds them too (`pins`), and a loaded server is compared with them when it
        connects.
        """
        state = self.spec.dump_state()
        options = self.options.saved()
        if options:
            state["options"] = options
        if self._clients:
            pins = self.client.guard.now
        else:
            pins = self._expected
        if pins is not None:
            state["pins"] = asdict(pins)
        return state

    # -- identity

    @property
    def name(self) -> str:
        """Its name in this program; `info` has the name it gives itself."""
        return self.spec.name

    def __repr__(self) -> str:
        return f"MCPServer({self.spec!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MCPServer):
            return False
        if self.spec != other.spec or self.options != other.options:
            return False
        live = other._live
        return all(self._live.get(name) is live.get(name) for name in {*self._live, *live})

    def __copy__(self) -> Self:
        return self  # copies share one connection

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    def __reduce__(self) -> Any:
        return type(self), (self.spec, self.options, self._live)

    def __hash__(self) -> int:
        return hash((self.spec.name, self.spec.transport, self.spec.command, self.spec.url))

    # -- connecting and closing

    async def aconnect(self) -> Self:
        """Connect, if it is not connected, also after failures that make other requests wait."""
        await self._on_loop(lambda client: client.connect())
        return self

    def connect(self) -> Self:
        """`aconnect` for sync code."""
        return run_async(self.aconnect())

    async def aclose(self) -> None:
        """Close the connection, from any thread, loop or task. The next use makes a new one."""
        if self._clients:
            await self._on_loop(lambda client: client.link.close())

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

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return bool(self._clients) and self.client.link.is_alive

    async def aping(self) -> float:
        """Seconds of a round trip."""
        return await self._on_loop(lambda client: client.ping())

    def ping(self) -> float:
        """`aping` for sync code."""
        return run_async(self.aping())

    # -- what it says about itself

    async def ainfo(self) -> ServerInfo:
        """What it says about itself; connects if need be."""
        handshake = (await self._on_loop(lambda client: client.link.connected())).handshake
        server = handshake.server
        return ServerInfo(
            name=server.get("name", ""),
            version=server.get("version", ""),
            title=server.get("title"),
            instructions=handshake.instructions,
            protocol_version=handshake.version,
            capabilities=dict(handshake.capabilities),
        )

    @property
    def info(self) -> ServerInfo:
        """`ainfo` for sync code."""
        return run_async(self.ainfo())

    @property
    def protocol_version(self) -> str | None:
        """The protocol version of the current connection; None before the first.

        Connects nothing.
        """
        handshake = None
        if self._clients:
            handshake = self.client.link.handshake
        if handshake is not None:
            return handshake.version
        return None

    @property
    def session_id(self) -> str | None:
        """The id that an HTTP server gave the current session. Connects nothing.

        It is None if the server gave none, as from 2026-07-28 on.
        """
        handshake = None
        if self._clients:
            handshake = self.client.link.handshake
        if handshake is not None:
            return handshake.session_id
        return None

    # -- calls

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
        """Call a tool by its name on the server.

        `meta` is sent as `_meta`. `answers` and `state` continue a call that came back with
        questions (`resultType: input_required`).

        Returns the raw result: `content`, `structuredContent`, `isError`, ...
        """
        if timeout_s is not None:
            check_option("timeout_s", timeout_s)
        return await self._on_loop(
            lambda client: client.call(
                name, arguments, timeout_s=timeout_s, meta=meta, answers=answers, state=state
            )
        )

    def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        """`acall` for sync code, also in a thread with a running loop."""
        return run_async(self.acall(name, arguments, **options))

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        """`acall`, under the name that sessions of the SDK use."""
        return await self.acall(name, arguments)

    # -- tools

    async def atools(self) -> ServerTools:
        """The tools of the last listing; connects and lists if need be."""
        definitions = await self._on_loop(lambda client: client.catalog.definitions())
        return self._tools_of(definitions)

    @property
    def tools(self) -> ServerTools:
        """`atools` for sync code."""
        definitions = self.listed
        if definitions is None:
            return run_async(self.atools())
        return self._tools_of(definitions)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools)

    def _tools_of(self, definitions: Mapping[str, MCPDefinition]) -> ServerTools:
        """The tools of these definitions; the same objects as long as nothing changes."""
        notes = self.client.guard.notes
        tools = self._tools
        if tools is None or tools.definitions != definitions or tools.notes != notes:
            new_tools = make_tools(
                definitions.values(),
                cast("Any", self),
                self.name,
                prefix=self.options.prefix is True,
                rules=self.options.rules,
            )
            by_name = {tool.name: _with_note(tool, notes) for tool in new_tools}
            tools = self._tools = ServerTools(definitions, by_name, notes)
        return tools

    @property
    def listed(self) -> dict[str, MCPDefinition] | None:
        """The definitions of the last listing, by name on the server; None before the first.

        Sends nothing.
        """
        if self._clients:
            return self.client.catalog.known_definitions()
        return None

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Tools of the last listing that cannot be used, each with the reason."""
        listing = None
        if self._clients:
            listing = self.client.catalog.listing
        return listing.dropped if listing is not None else ()

    @property
    def findings(self) -> tuple[MCPFinding, ...]:
        """Suspicious facts of the last listing: invisible characters, differences from pins."""
        if self._clients:
            return self.client.guard.findings
        return ()

    def pin(self) -> None:
        """List the tools and write them into the lock file (`lock=`)."""
        run_async(self._on_loop(lambda client: client.catalog.pin()))

    async def arefresh(self) -> ToolChanges:
        """List the tools again now; returns the changes."""
        return await self._on_loop(lambda client: client.catalog.list_tools())

    def refresh(self) -> ToolChanges:
        """`arefresh` for sync code."""
        return run_async(self.arefresh())

    async def achanges(self) -> ToolChanges:
        """The changes since the last listing, to be asked for between two turns of a model.

        Sends nothing unless the server notified of a change, its list has expired, or `poll_s` is
        over. Waits for a second at most: a later call returns what a slower server lists. Raises
        the `MCPError` of a listing that failed; then the server is left alone for 15 seconds, and
        for up to five minutes if it fails again.
        """
        return await self._on_loop(lambda client: client.catalog.changes())

    def changes(self) -> ToolChanges:
        """`achanges` for sync code."""
        if not self.client.catalog.is_stale():
            return ToolChanges()
        return run_async(self.achanges())

    # -- for programs: toolboxes call these

    async def aoffered(self) -> Iterable[Tool]:
        """`atools`; with `on_error="skip"`, none if the server cannot be connected."""
        if self.options.on_error == "skip":
            is_available = await self._on_loop(lambda client: client.catalog.is_available())
            if not is_available:
                return ()
        return await self.atools()

    @property
    def is_away(self) -> bool:
        """Whether programs leave the server out, as it could not be connected yet."""
        return bool(self._clients) and self.client.catalog.is_away

    @property
    def is_stale(self) -> bool:
        """Whether the server is connected, or to be tried again, and its listing out of date."""
        if not self._clients:
            return False
        catalog = self.client.catalog
        return (self.client.link.is_alive or catalog.is_away) and catalog.is_stale()

    @property
    def trouble(self) -> MCPError | ConfigurationError | None:
        """Why its tools could not be listed; None if they could. Those of the last listing stay."""
        if self._clients:
            return self.client.catalog.trouble
        return None

    def try_again(self) -> None:
        """Try in the background to connect a server that is away, unless that failed just now."""
        if self.is_away and self.client.catalog.is_stale():
            _ = asyncio.run_coroutine_threadsafe(self.client.catalog.changes(), background_loop())

    def ask_in_runs(self) -> None:
        """Declare at the next connection that runs answer questions: the option `ask_in_runs`."""
        self._asks_in_runs = True
        for client in self._clients.values():
            client.questions.in_runs = True

    # -- resources and prompts

    async def aresources(self) -> list[dict[str, Any]]:
        """Its resources: `uri`, `name`, `mimeType`, ...; empty if it has none."""
        return await self._list_of("resources/list", "resources")

    def resources(self) -> list[dict[str, Any]]:
        """`aresources` for sync code."""
        return run_async(self.aresources())

    async def aresource_templates(self) -> list[dict[str, Any]]:
        """Its resource templates: `uriTemplate`, `name`, ..."""
        return await self._list_of("resources/templates/list", "resourceTemplates")

    def resource_templates(self) -> list[dict[str, Any]]:
        """`aresource_templates` for sync code."""
        return run_async(self.aresource_templates())

    async def aread_resource(self, uri: str) -> list[dict[str, Any]]:
        """The contents of one resource: each with `uri`, and `text` or `blob` (base64)."""
        result = await self._read("resources/read", {"uri": uri})
        return cast("list[dict[str, Any]]", result.get("contents") or [])

    def read_resource(self, uri: str) -> list[dict[str, Any]]:
        """`aread_resource` for sync code."""
        return run_async(self.aread_resource(uri))

    async def aprompts(self) -> list[dict[str, Any]]:
        """Its prompts: `name`, `description`, `arguments`."""
        return await self._list_of("prompts/list", "prompts")

    def prompts(self) -> list[dict[str, Any]]:
        """`aprompts` for sync code."""
        return run_async(self.aprompts())

    async def aget_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """One prompt, with its arguments filled in: `description` and `messages`."""
        params: dict[str, Any] = {"name": name}
        if arguments:
            params["arguments"] = dict(arguments)
        return await self._read("prompts/get", params)

    def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> dict[str, Any]:
        """`aget_prompt` for sync code."""
        return run_async(self.aget_prompt(name, arguments))

    async def _list_of(self, method: str, key: str) -> list[dict[str, Any]]:
        return await self._on_loop(lambda client: client.catalog.list_of(method, key))

    async def _read(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return await self._on_loop(
            lambda client: client.catalog.request(method, params, phase="read")
        )

    # -- the background loop

    @property
    def client(self) -> Client:
        """Its part on the background loop."""
        return self._client_on(background_loop())

    def _client_on(self, loop: asyncio.AbstractEventLoop) -> Client:
        # By loop: a fork has a background loop of its own, and so another client.
        client = self._clients.get(loop)
        if client is not None:
            return client
        new = Client(self.spec, self.options, self._live)
        new.questions.in_runs |= self._asks_in_runs
        new.guard.expected = self._expected
        client = self._clients.setdefault(loop, new)  # two threads may get here at once
        if client is new:
            # At exit, `close_all` of `transport/open_connections.py` closes it.
            weakref.finalize(self, _end, new, loop).atexit = False
        return client

    async def _on_loop(self, work: Callable[[Client], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine on the background loop, in this task's context and cancelled with it.

        If the loop does not begin with it, because it is blocked, this raises `MCPTimeoutError`
        instead of waiting forever.
        """
        loop = background_loop()
        client = self._client_on(loop)
        here = asyncio.get_running_loop()
        if here is loop:
            return await work(client)
        begun = here.create_future()

        def begin() -> None:
            if not begun.done():
                begun.set_result(None)

        async def run() -> R:
            here.call_soon_threadsafe(begin)
            return await work(client)

        waiting = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), loop))
        try:
            async with asyncio.timeout(_LOOP_ANSWERS_WITHIN_S):
                await begun
        except TimeoutError as late:
            waiting.cancel()
            raise self._blocked_error() from late
        except asyncio.CancelledError:
            waiting.cancel()
            raise
        return await waiting

    def _blocked_error(self) -> MCPTimeoutError:
        if is_awaited_by_loop():
            why = (
                "the background loop is waiting for this code. "
                "In async code use `await server.acall(...)`, not the sync form"
            )
        else:
            why = (
                f"the background loop did not answer within {_LOOP_ANSWERS_WITHIN_S:g} s: "
                "something on it, a hook perhaps, blocks it. "
                "Hooks are async and must not wait in sync code"
            )
        return MCPTimeoutError(
            f"MCP server `{self.name}` cannot be called from here: {why}.",
            server=self.name,
            phase="start",
            may_have_run=False,
        )


def mcp(where: str, args: Sequence[str] = (), **options: Any) -> MCPServer:
    """An MCP server from a command line or an address.

    `mcp("npx -y @scope/server dir")`, `mcp("https://host/mcp", headers={...})`.
    """
    # Users pass anything.
    text = where.strip() if isinstance(where, str) else ""
    if text.startswith(("http://", "https://")):
        if args:
            raise ConfigurationError(
                f"`args` are the words of a command, and `mcp` got the address {shown(text)}."
            )
        return MCPServer.http(text, **options)
    if not text:
        raise ConfigurationError(
            "`mcp(...)` takes a command line or an address. "
            "For words, use `MCPServer.stdio(words[0], words[1:])`."
        )
    words = [*split_words(text), *args]
    return MCPServer.stdio(words[0], words[1:], **options)


def _with_note(tool: Tool, notes: Mapping[str, str]) -> Tool:
    """The tool; if it has a note, one whose calls a person must confirm."""
    note = None
    if tool.mcp is not None:
        note = notes.get(tool.mcp.name)
    if not note:
        return tool
    func: Any = tool.func
    noted = replace(func, note=note, asks_directly=True)
    return tool.model_copy(update={"require_confirmation": True, "func": noted})


def _end(client: Client, loop: asyncio.AbstractEventLoop) -> None:
    """Close the connection of a server that was collected."""
    if loop.is_running():
        asyncio.run_coroutine_threadsafe(client.link.close(), loop)
