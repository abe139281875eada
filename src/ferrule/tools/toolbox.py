"""`Toolbox`: tools by name, in order, with their declarations built once.

Building a toolbox builds every schema, so that an error in a tool appears before a model is called.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from ferrule.approval.policy import Rule, check_arguments
from ferrule.errors import (
    DuplicateToolError,
    ToolDefinitionError,
    UnknownToolError,
    check_flag,
    refuse_unknown,
    shown,
)
from ferrule.tools.read_result import check_spill_over, with_reader
from ferrule.tools.shelf import Search, Shelf, check_search
from ferrule.tools.tool import Tool, note_name
from ferrule.values.conversation.exchange import Declarations
from ferrule.values.provider_tools import ProviderTool, ToolSearch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ferrule.tools.mcp.safety import MCPFinding
    from ferrule.tools.skills.shelf import Skills
    from ferrule.values.calls.secrets import Secrets

_KEPT_OPTIONS = ("concurrent", "keep_turns", "spill_over")
RESERVED = ("finish", "user_clarification")
"""Names of the programs' own tools. A server's tool so named is offered as `server__finish`."""
_MOST_CACHED = 256
_NOT_CACHED: Any = object()
_log = logging.getLogger("ferrule.mcp")


class ToolServer(Protocol):
    """The part of an `MCPServer` that a toolbox uses."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def tools(self) -> Iterable[Tool]:
        """The tools of its last listing. Connects if needed."""
        ...

    @property
    def listed(self) -> Any:
        """Its last listing; None before the first."""
        ...

    @property
    def is_away(self) -> bool:
        """Whether the toolbox leaves the server out, because it could not be connected yet."""
        ...

    async def aoffered(self) -> Iterable[Tool]:
        """Its tools, after connecting if needed; empty if it is left out."""
        ...

    def try_again(self) -> None:
        """If the server is left out, try to connect it, without waiting."""
        ...

    def ask_in_runs(self) -> None:
        """Let runs answer its questions."""
        ...


_OPTIONS = (
    "shelf",
    "search",
    "keep",
    "keep_turns",
    "concurrent",
    "spill_over",
    "skills",
)
"""The keywords of `Toolbox`."""


class Toolbox:
    """An ordered, immutable set of tools.

    Iterating yields the tools; it also has `toolbox[name]`, `name in toolbox`, `.names` and
    `.items()`.

    Args:
        tools: Tools, callables, declarations, MCP servers; and tools that the model's provider
            runs, such as `WebSearch()`, which are `provider_tools` and not among the tools here.
        shelf: Tools that are not offered until a tool returns `Load("billing.*")` or a
            `@module_callback` loads them.
        search: `"bm25"` puts all tools on the shelf except `keep`, and offers
            `search_tools(query, limit)`, a search by words. `"embedding"` searches also by
            meaning, with the embedded model (extra `embedded`). With `"provider"`, the model's
            provider searches them: all are declared, and its model reads those that it finds.
        keep: Names or globs of tools that stay offered.
        keep_turns: The number of steps without a call after which a tool loaded from the shelf is
            put back. None: it stays.
        concurrent: Whether calls of one step may run at once, even of tools loaded later. False,
            for tools that share state: in order.
        spill_over: The number of characters from which on a result is long: the model sees its
            beginning and its end, and reads the rest with the tool `read_result`. None: no such
            tool, and the middle of a result over `Limits(observation_chars=)` is lost to it.
        skills: Agent Skills: a folder of them, several, or `Skills(...)`. The model reads them
            when it needs them.

    """

    __slots__ = (
        "_by_name",
        "_cache",
        "_hash",
        "asks_deps",
        "concurrent",
        "declarations",
        "has_remote",
        "keep_turns",
        "names",
        "provider_tools",
        "shelf",
        "spill_over",
        "tools",
    )

    servers: tuple[Any, ...] = ()
    """The MCP servers among the tools; see `LiveToolbox`."""

    def __new__(cls, tools: Any = (), **options: Any) -> Self:
        """Make a `LiveToolbox` if MCP servers are among the tools."""
        refuse_unknown("Toolbox", options, ("tools", *_OPTIONS))
        entries: Iterable[Any] = [tools]
        if isinstance(tools, (list, tuple)):
            entries = cast("Iterable[Any]", tools)
        if cls is Toolbox and any(is_server(entry) for entry in entries):
            return cast("Self", object.__new__(LiveToolbox))
        return object.__new__(cls)

    # `__new__` takes the same arguments, with looser types.
    def __init__(  # pyright: ignore[reportInconsistentConstructor]
        self,
        tools: Iterable[
            Tool | Callable[..., Any] | Mapping[str, Any] | ToolServer | ProviderTool
        ] = (),
        *,
        shelf: Iterable[Tool | Callable[..., Any] | Mapping[str, Any]] = (),
        search: Search | None = None,
        keep: Iterable[str] = (),
        keep_turns: int | None = None,
        concurrent: bool = True,
        spill_over: int | None = None,
        skills: str | Path | Sequence[str | Path] | Skills | None = None,
    ) -> None:
        check_spill_over(spill_over)
        check_flag("concurrent", concurrent)
        if keep_turns is not None and (type(keep_turns) is not int or keep_turns < 1):
            raise ToolDefinitionError(
                "`keep_turns` is a whole number greater than zero, or None; "
                f"found {shown(keep_turns)}."
            )
        if keep and search is None:
            raise ToolDefinitionError(
                "`keep` needs a search, which puts the other tools on the shelf: "
                'Toolbox(tools, search="bm25", keep=[...]).'
            )
        self.provider_tools: tuple[ProviderTool, ...] = ()
        """The tools that the model's provider runs."""
        tools, self.provider_tools = _split_provider_tools(tools)
        offered = _unique_names(_read_tools(tools))
        shelved = _read_tools(shelf)
        if isinstance(tools, Toolbox):
            shelved = (*(tools.shelf or ()), *shelved)
            concurrent = concurrent and tools.concurrent
            if keep_turns is None:
                keep_turns = tools.keep_turns
            if spill_over is None:
                spill_over = tools.spill_over
        if search is not None:
            check_search(search)
            offered, on_search = _split_for_search(offered, keep)
            shelved = (*on_search, *shelved)
        if search == "provider":
            if keep_turns is not None:
                raise ToolDefinitionError(
                    "`keep_turns` puts tools back on the shelf, and a search of the provider "
                    "loads none from it. Leave it out."
                )
            self._defer(shelved)
            offered, shelved = (*offered, *shelved), ()
        self.shelf: Shelf | None = None
        """The tools that can be loaded; None if there are none."""
        if shelved:
            self.shelf = Shelf(shelved, search or "bm25")
        if search is not None and self.shelf is not None:
            search_tools = Tool(self.shelf.search_tools, **self.shelf.search_options)
            offered = (*offered, search_tools)
        if spill_over is not None:
            offered = with_reader(offered, spill_over)
        if skills is not None:
            offered = (*offered, *_skills(skills).tools)
        self.tools: tuple[Tool, ...] = offered
        """The offered tools, in order."""
        self.concurrent: bool = concurrent
        self.keep_turns: int | None = keep_turns
        self.spill_over: int | None = spill_over
        self._hash: int | None = None
        self._cache: dict[Any, Any] = {}
        self._by_name: dict[str, Tool] = {}
        self._index(shelved)
        every_tool = (*shelved, *self.tools)
        self.has_remote: bool = any(tool.mcp is not None for tool in every_tool)
        """Whether a tool in it belongs to an MCP server."""
        self.asks_deps: bool = any(tool.takes_context or tool.is_program for tool in every_tool)
        """Whether a tool in it may need the `deps` of the run."""
        self.names: tuple[str, ...] = tuple(tool.name for tool in self.tools)
        """The names of the offered tools, in order."""
        self.declarations = Declarations(tool.declaration for tool in self.tools)
        """Their canonical declarations, in order; shared, do not change them."""

    @property
    def options(self) -> dict[str, Any]:
        """The options that its tools do not tell, for a toolbox that takes its place."""
        return {name: getattr(self, name) for name in _KEPT_OPTIONS}

    @property
    def secrets(self) -> Secrets:
        """By tool, the arguments whose Python type is secret; only tools that have some."""
        return self.cached_value("secrets", lambda: _secrets_of(self.tools))

    @classmethod
    def of(
        cls,
        tools: Iterable[Tool | Callable[..., Any] | Mapping[str, Any] | ToolServer | ProviderTool]
        | Toolbox,
    ) -> Toolbox:
        """A toolbox unchanged; anything else as a toolbox."""
        if isinstance(tools, Toolbox):
            return tools
        return cls(tools)

    def _defer(self, tools: tuple[Tool, ...]) -> None:
        """Let the model's provider search these tools."""
        others = [tool for tool in self.provider_tools if not isinstance(tool, ToolSearch)]
        search = ToolSearch(deferred=tuple([tool.wire_name for tool in tools]))
        self.provider_tools = (*others, search)

    def provider_tools_of_run(self) -> tuple[ProviderTool, ...]:
        """The provider's tools that a run declares. Lists MCP servers: a search needs their tools.

        `provider_tools` contacts no server.
        """
        _ = self.tools
        return self.provider_tools

    def _index(self, shelved: tuple[Tool, ...]) -> None:
        """Index the offered tools by name and by wire name.

        Tools on the shelf are checked for duplicate names too, since they may be loaded, but they
        stay out of the index.
        """
        for tool in (*shelved, *self.tools):
            _ = tool.declaration  # builds the schema, which may raise
            if isinstance(tool.require_confirmation, Rule):
                check_arguments(tool.require_confirmation, tool, {})
            namesake = self._by_name.get(tool.name)
            if namesake is not None and namesake.name == tool.name:
                raise DuplicateToolError(
                    f"There are two tools named `{tool.name}`. "
                    "Give one of them another name: Tool(function, name=...)."
                )
            namesake = namesake or self._by_name.get(tool.wire_name)
            if namesake is not None:
                raise DuplicateToolError(
                    f"The tools `{namesake.name}` and `{tool.name}` have one wire name, "
                    f"`{namesake.wire_name}`. Give one of them another name."
                )
            self._by_name[tool.name] = tool
            self._by_name[tool.wire_name] = tool
        names = {*self._by_name}
        for provided in self.provider_tools:
            if provided.name in names:
                raise DuplicateToolError(
                    f"There are two tools named `{provided.name}`, and the model's provider runs "
                    "one of them. Leave one out, or give your own another name: "
                    "Tool(function, name=...)."
                )
            names.add(provided.name)
            note_name(provided.name)
        for tool in shelved:
            for name in {tool.name, tool.wire_name}:
                del self._by_name[name]

    def get(self, name: str) -> Tool | None:
        """The tool of that name or wire name, or None."""
        return self._by_name.get(name)

    def __getitem__(self, name: str) -> Tool:
        tool = self._by_name.get(name)
        if tool is None:
            raise UnknownToolError(name, self.names)
        return tool

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str):
            return name in self._by_name
        return any(name is tool or name == tool for tool in self.tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools)

    def __len__(self) -> int:
        return len(self.tools)

    def when_listed(self, check: Callable[[Toolbox], None]) -> None:
        """Call `check` with the toolbox, now or later: making a program starts no server."""
        check(self)

    def cached_value(self, key: Any, make: Callable[[], Any]) -> Any:
        """The value of `make()`, made once for `key`.

        It is dropped with the toolbox: tools may hold anything, such as a user's data, so a cache
        of the process would keep that alive.
        """
        value = self._cache.get(key, _NOT_CACHED)
        if value is not _NOT_CACHED:
            return value
        if len(self._cache) >= _MOST_CACHED:
            self._cache = {}
        return self._cache.setdefault(key, make())

    def keys(self) -> tuple[str, ...]:
        """The names, in order."""
        return self.names

    def values(self) -> tuple[Tool, ...]:
        """The tools, in order."""
        return self.tools

    def items(self) -> tuple[tuple[str, Tool], ...]:
        """Names and tools, in order."""
        return tuple(zip(self.names, self.tools, strict=True))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self  # a toolbox does not change, and tools are not copied

    def __getstate__(self) -> Any:
        _, slots = cast("Any", super().__getstate__())
        # The hash and the kept values are of this process only.
        return None, {**slots, "_hash": None, "_cache": {}}

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Toolbox):
            return NotImplemented
        return (
            self.tools == other.tools
            and self.provider_tools == other.provider_tools
            and self.concurrent == other.concurrent
            and self.keep_turns == other.keep_turns
            and self.spill_over == other.spill_over
            and list(self.shelf or ()) == list(other.shelf or ())
        )

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.tools)
        return self._hash

    def __repr__(self) -> str:
        provided = [tool.name for tool in self.provider_tools]
        return f"Toolbox([{', '.join([*self.names, *provided])}])"


def _skills(skills: Any) -> Skills:
    # Imported here: few programs have skills.
    from ferrule.tools.skills.shelf import Skills

    return Skills.of(skills)


class LiveToolbox(Toolbox):
    """A toolbox with MCP servers, each replaced by its tools.

    Servers connect when the tools are first needed: until then the attributes of a toolbox are
    missing, and reading one lists the servers (`__getattr__`). After that, a run starts or resumes
    with the last listed tools, and applies changes between turns (`programs/tool_use/live.py`).
    """

    __slots__ = ("_checks", "_entries", "_last_listings", "_options", "_warned", "servers")

    def __init__(self, tools: Any = (), **options: Any) -> None:
        self._entries: tuple[Any, ...] = (tools,) if is_server(tools) else tuple(tools)
        if options.get("skills") is not None:  # read once, and not with each listing
            options["skills"] = _skills(options["skills"])
        self._entries, self.provider_tools = _split_provider_tools(self._entries)
        if options.get("search") == "provider":
            self._defer(())  # its tools are not known yet
        self._options = options
        self.concurrent = options.get("concurrent", True)
        self._checks: list[Callable[[Toolbox], None]] = []
        self._warned: set[MCPFinding] = set()
        self._last_listings: tuple[tuple[Any, Any], ...] = ()
        self.servers = tuple([entry for entry in self._entries if is_server(entry)])
        for server in self.servers:
            server.ask_in_runs()

    def __getattr__(self, name: str) -> Any:
        if name not in Toolbox.__slots__:
            raise AttributeError(name)
        return getattr(self._fill_again(), name)

    def _fill_again(self) -> Self:
        """Use the tools that the servers list now, if they pass the checks."""
        toolbox = self.list_tools()
        for check in self._checks:
            check(toolbox)
        self._last_listings = tuple([(server, server.listed) for server in self.servers])
        return self.fill(toolbox)

    def look_again(self) -> None:
        """Use what the servers have listed since.

        Tries again to connect those that were left out, without waiting for them.
        """
        for server, _ in self._last_listings:
            server.try_again()
        for server, listing in self._last_listings:
            if server.listed is not None and server.listed != listing:
                self._fill_again()
                return

    @property
    def is_listed(self) -> bool:
        """Whether the servers have listed their tools."""
        try:  # past `__getattr__`, which would list them
            return object.__getattribute__(self, "tools") is not None
        except AttributeError:
            return False

    def list_tools(self) -> Toolbox:
        """A plain toolbox with the current tools of the servers. Lists them if needed."""
        # Late: most toolboxes have no servers.
        from ferrule.tools.server_tools import list_server_tools, separate_names

        tools_of_servers = list_server_tools(self.servers)
        tools: list[Tool] = []
        for entry in self._entries:
            if is_server(entry):
                tools.extend(tools_of_servers[id(entry)])
            else:
                tools.append(Tool.of(entry))
        if any(tool.mcp is not None for tool in tools):
            self._warn_of_shadowed(tools)
            tools = separate_names(tools, RESERVED)
        return Toolbox([*tools, *self.provider_tools], **self._options)

    def _warn_of_shadowed(self, tools: list[Tool]) -> None:
        from ferrule.tools.server_tools import find_shadowed_tools

        for finding in find_shadowed_tools(tools):
            if finding not in self._warned:
                self._warned.add(finding)
                _log.warning(
                    "MCP server `%s`: `%s` %s.", finding.server, finding.tool, finding.what
                )

    def fill(self, toolbox: Toolbox) -> Self:
        """Use these tools instead of listing the servers."""
        # `_cache` last: until the tools are replaced, another run may keep values of the old ones.
        for name in sorted(Toolbox.__slots__, key=lambda name: name == "_cache"):
            setattr(self, name, getattr(toolbox, name))
        return self

    @property
    def options(self) -> dict[str, Any]:
        """See `Toolbox.options`. Contacts no server."""
        return {name: value for name, value in self._options.items() if name in _KEPT_OPTIONS}

    @property
    def has_shelf(self) -> bool:
        """Whether tools are put on a shelf, so that some are not offered."""
        return self._options.get("search") is not None or bool(self._options.get("shelf"))

    def local(self) -> dict[str, Tool]:
        """The tools that need no server, by name: also those that options bring."""
        own = [entry for entry in self._entries if not is_server(entry)]
        return {tool.name: tool for tool in Toolbox(own, **self._options)}

    def when_listed(self, check: Callable[[Toolbox], None]) -> None:
        """Call `check` with the toolbox when its tools are known, or at once if they are."""
        if self.is_listed:
            check(self)
        else:
            self._checks.append(check)

    def __repr__(self) -> str:
        names: list[str] = []
        for entry in self._entries:
            if not is_server(entry):
                entry = Tool.of(entry)  # noqa: PLW2901
            names.append(entry.name)
        names += [tool.name for tool in self.provider_tools]
        return f"Toolbox([{', '.join(names)}])"


def is_server(thing: Any) -> bool:
    """Whether this is an `MCPServer`.

    Its class is in `mcp_bridge`, above this room, and so cannot be imported here.
    """
    return callable(getattr(cast("Any", type(thing)), "ask_in_runs", None))


def _split_provider_tools(tools: Any) -> tuple[Any, tuple[ProviderTool, ...]]:
    """The other tools, and those that a provider runs. What is not a list stays as it is."""
    if isinstance(tools, Toolbox):
        return tools, tools.provider_tools
    if isinstance(tools, ProviderTool) or not isinstance(tools, (list, tuple)):
        return tools, ()
    entries = cast("Iterable[Any]", tools)
    others = tuple([entry for entry in entries if not isinstance(entry, ProviderTool)])
    provided = [entry for entry in entries if isinstance(entry, ProviderTool)]
    return others, tuple({id(tool): tool for tool in provided}.values())


def _read_tools(tools: Any) -> tuple[Tool, ...]:
    """Make tools of anything that can become one.

    A tool that is given twice counts once; two tools of one name raise later.
    """
    if isinstance(tools, (str, Mapping, Tool)) or not isinstance(tools, Iterable):
        raise ToolDefinitionError(
            f"Tools come as a list of tools or functions, found {shown(cast('object', tools))}."
        )
    converted: list[Tool] = []
    for tool in cast("Iterable[Any]", tools):
        if getattr(cast("Any", type(tool)), "holds_tools", False):
            # What a block `with MCPServer(...) as tools` gives, in a list with others.
            converted += tool
        else:
            converted.append(Tool.of(tool))
    return tuple({id(tool): tool for tool in converted}.values())


def _unique_names(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """The tools; a tool of a server gets its server's name as a prefix if names clash."""
    if all(tool.mcp is None for tool in tools):
        return tools
    from ferrule.tools.server_tools import separate_names  # late: most tools have no server

    return tuple(separate_names(tools))


def _split_for_search(
    tools: tuple[Tool, ...], keep: Iterable[str]
) -> tuple[tuple[Tool, ...], tuple[Tool, ...]]:
    """The tools that stay offered, and those put on the shelf."""
    if isinstance(keep, str) or not isinstance(keep, Iterable):
        raise ToolDefinitionError(f"`keep` is a list of names, found {shown(keep)}.")
    every = Shelf(tools)
    offered_names: set[str] = set()
    for pattern in keep:
        matching = every.matching(pattern)
        if not matching:
            raise UnknownToolError(pattern, [tool.name for tool in tools])
        offered_names.update(tool.name for tool in matching)
    offered = tuple(tool for tool in tools if tool.name in offered_names)
    return offered, tuple(tool for tool in tools if tool.name not in offered_names)


def _secrets_of(tools: Iterable[Tool]) -> Secrets:
    secrets: dict[str, tuple[str, ...]] = {}
    for tool in tools:
        names = tool.secret_arguments
        if names:
            # A model uses the name on the wire where it declares the tool, and its own in text.
            secrets[tool.name] = secrets[tool.wire_name] = names
    return secrets
