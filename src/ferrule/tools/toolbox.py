"""`Toolbox`: tools by name, in order, with their declarations built once.

Building a toolbox builds every schema, so that an error in a tool appears before a model is called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, cast

from ferrule.errors import DuplicateToolError, ToolDefinitionError, UnknownToolError, shown
from ferrule.tools.tool import Tool
from ferrule.values.conversation.exchange import Declarations

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.tools.shelf import Shelf


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


class Toolbox:
    """An ordered, immutable set of tools. Iterating yields the tools; `toolbox[name]`, `name in toolbox`, `.names`, `.items()`.

    Args:
        tools: Tools, callables, declarations, MCP servers. shelf: Tools that are not offered until
        a tool returns `Load("billing.*")` or a `@module_callback` loads them. search: `"bm25"` puts
        all tools on the shelf except `keep`, and offers `search_tools(query, limit)`. keep: Names
        or globs of tools that stay offered. keep_turns: The number of steps without a call after
        which a tool loaded from the shelf is put back. None: it stays. concurrent: Whether calls of
        one step may run at once, even of tools loaded later. False, for tools that share state: in
        order.

    """

    __slots__ = (
        "_by_name", "_hash", "_kept", "asks_deps", "concurrent", "declarations", "has_remote", "keep_turns", "names", "shelf", "tools",
    )  # fmt: skip

    servers: tuple[Any, ...] = ()
    """The MCP servers among the tools; see `LiveToolbox`."""

    def __new__(cls, tools: Any = (), **how: Any) -> Self:
        """Make a `LiveToolbox` if MCP servers are among the tools."""
        del how
        entries: Iterable[Any] = [tools]
        if isinstance(tools, (list, tuple)):
            entries = cast("Iterable[Any]", tools)
        is_live = cls is Toolbox and any(is_server(entry) for entry in entries)
        return cast("Self", object.__new__(LiveToolbox)) if is_live else object.__new__(cls)

    def __init__(  # pyright: ignore[reportInconsistentConstructor]  `__new__` takes the same, with looser types
        self,
        tools: Iterable[Tool | Callable[..., Any] | Mapping[str, Any] | ToolServer] = (),
        *,
        shelf: Iterable[Tool | Callable[..., Any] | Mapping[str, Any]] = (),
        search: Literal["bm25"] | None = None,
        keep: Iterable[str] = (),
        keep_turns: int | None = None,
        concurrent: bool = True,
    ) -> None:
        offered, behind = _all(tools), _all(shelf)
        self.concurrent: bool = concurrent
        if keep_turns is not None and (type(keep_turns) is not int or keep_turns < 1):
            raise ToolDefinitionError(
                f"`keep_turns` is a whole number greater than zero, or None; found {shown(keep_turns)}.",
            )
        self.keep_turns: int | None = keep_turns
        if isinstance(tools, Toolbox):
            self.keep_turns = tools.keep_turns if keep_turns is None else keep_turns
            behind = (*(tools.shelf or ()), *behind)
            self.concurrent = concurrent and tools.concurrent
        self._by_name: dict[str, Tool] = {}
        self._hash: int | None = None
        self._kept: dict[Any, Any] = {}
        offered = _resolve_names(offered)
        if search is not None:
            offered, behind = _searched(offered, behind, search, keep)
        elif keep:
            msg = '`keep` needs a search, which puts the other tools on the shelf: Toolbox(tools, search="bm25", keep=[...]).'
            raise ToolDefinitionError(msg)
        self.tools: tuple[Tool, ...] = offered
        """The offered tools, in order."""
        self.shelf: Shelf | None = _make_shelf(behind) if behind else None
        """The tools that can be loaded; None if there are none."""
        if search is not None and self.shelf is not None:
            self.tools = (*offered, Tool(self.shelf.search_tools, **self.shelf.search_options))
        self._index(behind)
        self.has_remote: bool = any(tool.mcp is not None for tool in (*behind, *self.tools))
        """Whether a tool in it belongs to an MCP server."""
        self.asks_deps: bool = any(
            tool.takes_context or tool.is_program for tool in (*behind, *self.tools)
        )
        """Whether a tool in it may need the `deps` of the run."""
        self.names: tuple[str, ...] = tuple(tool.name for tool in self.tools)
        """The names of the offered tools, in order."""
        self.declarations = Declarations(tool.declaration for tool in self.tools)
        """Their canonical declarations, in order; shared, do not change them."""

    @classmethod
    def of(
        cls,
        tools: Iterable[Tool | Callable[..., Any] | Mapping[str, Any] | ToolServer] | Toolbox,
    ) -> Toolbox:
        """A toolbox unchanged; anything else as a toolbox."""
        return tools if isinstance(tools, Toolbox) else cls(tools)

    def _index(self, behind: tuple[Tool, ...]) -> None:
        """Index the tools by name. Tools on the shelf are checked for duplicate names too, but are left out of the index."""
        for tool in (*behind, *self.tools):
            _ = tool.declaration
            there = self._by_name.get(tool.name)
            if there is not None and there.name == tool.name:
                msg = f"There are two tools named `{tool.name}`. Give one of them another name: Tool(function, name=...)."
                raise DuplicateToolError(msg)
            there = there if there is not None else self._by_name.get(tool.wire_name)
            if there is not None:
                msg = f"The tools `{there.name}` and `{tool.name}` have one wire name, `{there.wire_name}`. Give one of them another name."
                raise DuplicateToolError(msg)
            self._by_name[tool.name] = self._by_name[tool.wire_name] = tool
        for tool in behind:
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
        return (
            name in self._by_name
            if isinstance(name, str)
            else any(name is tool or name == tool for tool in self.tools)
        )

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools)

    def __len__(self) -> int:
        return len(self.tools)

    def kept(self, key: Any, make: Callable[[], Any]) -> Any:
        """The value of `make()`, made once for `key`. It is dropped with the toolbox, as tools may hold anything, such as a user's data."""
        if len(self._kept) >= 256 and key not in self._kept:
            self._kept = {}
        found = self._kept.get(
            key,
            self,
        )  # looked up once: a signature in the key is hashed by Python code
        return self._kept.setdefault(key, make()) if found is self else found

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
        return None, {
            **cast("Any", super().__getstate__())[1],
            "_hash": None,
            "_kept": {},
        }  # values of this process only

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Toolbox):
            return NotImplemented
        same = (self.tools, self.concurrent, self.keep_turns) == (
            other.tools,
            other.concurrent,
            other.keep_turns,
        )
        return self is other or (same and list(self.shelf or ()) == list(other.shelf or ()))

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.tools)
        return self._hash

    def __repr__(self) -> str:
        return f"Toolbox([{', '.join(self.names)}])"


class LiveToolbox(Toolbox):
    """A toolbox with MCP servers, each replaced by its tools. Servers connect when the tools are first needed.

    After that, a run starts or resumes with the last listed tools, and applies changes between
    turns (`programs/tool_use/live.py`).
    """

    __slots__ = ("_checks", "_given", "_how", "_read", "_warned", "servers")

    def __init__(self, tools: Any = (), **how: Any) -> None:
        self._given: tuple[Any, ...] = (tools,) if is_server(tools) else tuple(tools)
        self._how = how
        self.concurrent = how.get("concurrent", True)
        self._checks: list[Callable[[Toolbox], None]] = []
        self._warned: set[Any] = set()
        self._read: tuple[tuple[Any, Any], ...] = ()
        self.servers = tuple([each for each in self._given if is_server(each)])
        for server in self.servers:
            server.ask_in_runs()

    def __getattr__(self, name: str) -> Any:
        if name not in Toolbox.__slots__:
            raise AttributeError(name)
        return getattr(self._fill_anew(), name)

    def _fill_anew(self) -> Self:
        made = self.list_tools()
        for check in self._checks:
            check(made)
        self._read = tuple([(each, each.listed) for each in self.servers])
        return self.fill(made)

    def look_again(self) -> None:
        """Use what the servers have listed since. Try again to connect those left out, without waiting for them."""
        for each, _ in self._read:
            each.try_again()
        if any(each.listed is not None and each.listed != known for each, known in self._read):
            self._fill_anew()

    @property
    def is_listed(self) -> bool:
        """Whether the servers have listed their tools."""
        with contextlib.suppress(AttributeError):
            return object.__getattribute__(self, "tools") is not None
        return False

    def list_tools(self) -> Toolbox:
        """A plain toolbox with the current tools of the servers. Lists them if needed."""
        from ferrule.tools.server_tools import (
            list_server_tools,
        )  # late: most toolboxes have no servers

        of_servers = list_server_tools(self.servers)
        tools = [
            tool
            for each in self._given
            for tool in (of_servers[id(each)] if is_server(each) else (Tool.of(each),))
        ]
        if any(tool.mcp is not None for tool in tools):
            self._warn_of_shadowed(tools)
        return Toolbox(_resolve_names(tuple(tools), RESERVED), **self._how)

    def _warn_of_shadowed(self, tools: list[Tool]) -> None:
        import logging  # late: only servers need it

        from ferrule.tools.server_tools import find_shadowed_tools

        log = logging.getLogger("ferrule.mcp")
        for each in find_shadowed_tools(tools):
            if each not in self._warned:
                self._warned.add(each)
                log.warning("MCP server `%s`: `%s` %s.", each.server, each.tool, each.what)

    def fill(self, made: Toolbox) -> Self:
        """Use these tools instead of listing the servers."""
        for each in sorted(
            Toolbox.__slots__,
            key="_kept".__eq__,
        ):  # last: until then, another run may keep values of the old tools
            setattr(self, each, getattr(made, each))
        return self

    @property
    def has_shelf(self) -> bool:
        """Whether tools are put on a shelf, so that some are not offered."""
        return bool(self._how.keys() - {"concurrent"})

    def local(self) -> dict[str, Tool]:
        """The local tools, by name. Contacts no server."""
        return {
            tool.name: tool
            for each in self._given
            if not is_server(each)
            for tool in (Tool.of(each),)
        }

    def when_listed(self, check: Callable[[Toolbox], None]) -> None:
        """Call `check` with the toolbox when its tools are known, or at once if they are."""
        if self.is_listed:
            check(self)
        else:
            self._checks.append(check)

    def __repr__(self) -> str:
        return f"Toolbox([{', '.join(each.name if is_server(each) else Tool.of(each).name for each in self._given)}])"


RESERVED = ("finish", "user_clarification")
"""Names of the programs' own tools. A server's tool with such a name is offered as `server__finish`."""


def is_server(thing: Any) -> bool:
    """Whether this is an `MCPServer` (`mcp_bridge/client/mcp_server.py`), which cannot be imported here."""
    return callable(getattr(cast("Any", type(thing)), "ask_in_runs", None))


def _resolve_names(tools: tuple[Tool, ...], reserved: Iterable[str] = ()) -> tuple[Tool, ...]:
    if all(each.mcp is None for each in tools):
        return tools
    from ferrule.tools.server_tools import separate_names

    return tuple(separate_names(tools, reserved))


def _all(tools: Any) -> tuple[Tool, ...]:
    if isinstance(tools, (str, Mapping, Tool)) or not isinstance(tools, Iterable):
        msg = f"Tools come as a list of tools or functions, found {shown(tools)}."  # pyright: ignore[reportUnknownArgumentType]  may be anything
        raise ToolDefinitionError(msg)
    made = [Tool.of(each) for each in cast("Iterable[Any]", tools)]
    return tuple(
        {id(each): each for each in made}.values(),
    )  # a tool given twice counts once; two tools of one name raise later


def _make_shelf(tools: tuple[Tool, ...]) -> Shelf:
    from ferrule.tools.shelf import Shelf  # late: most toolboxes have none

    return Shelf(tools)


def _searched(
    offered: tuple[Tool, ...],
    behind: tuple[Tool, ...],
    search: str,
    keep: Iterable[str],
) -> tuple[tuple[Tool, ...], tuple[Tool, ...]]:
    """The tools that stay offered, and those put on the shelf."""
    if search != "bm25":
        raise ToolDefinitionError(f'`search` is "bm25" or None, found {shown(search)}.')
    if isinstance(keep, str):
        raise ToolDefinitionError(f"`keep` is a list of names, found {shown(keep)}.")
    every = _make_shelf(offered)
    kept: set[str] = set()
    for pattern in keep:
        found = every.matching(pattern)
        if not found:
            raise UnknownToolError(pattern, [tool.name for tool in offered])
        kept.update(tool.name for tool in found)
    return (
        tuple(tool for tool in offered if tool.name in kept),
        (*(tool for tool in offered if tool.name not in kept), *behind),
    )
