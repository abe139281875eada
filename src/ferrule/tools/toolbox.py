"""Tools by name, in order.  (Floor 3.)

In: tools and whatever can become one. Out: a `Toolbox`, which finds a tool by its own name or its wire name at once and hands its
declarations out, made once. Building it builds every schema, so that what is wrong with a tool is said before a model is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

from ferrule.errors import DuplicateToolError, ToolDefinitionError, UnknownToolError, shown
from ferrule.tools.shelf import Shelf
from ferrule.tools.tool import Tool
from ferrule.values.exchange import Declarations

if TYPE_CHECKING:
    from collections.abc import Callable


def as_tool(thing: Any) -> Tool:
    """A tool out of a tool, a function or another callable, a LangChain tool, or a declaration (then it has no function)."""
    return Tool.of(thing)


class Toolbox:
    """An ordered, unchanging set of tools. Iterating gives the tools; `toolbox[name]`, `name in toolbox`, `.names`, `.items()`.

    `shelf` holds tools that are not offered until one is loaded: by a tool that returns `Load("billing.*")`, or a `@module_callback`.
    `search="bm25"` puts all tools on the shelf but those that `keep` names (globs among them), and offers `search_tools(query, limit)`.
    """

    __slots__ = ("_by_name", "_hash", "declarations", "names", "shelf", "tools")

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any] | Mapping[str, Any]] = (),
        *,
        shelf: Iterable[Tool | Callable[..., Any] | Mapping[str, Any]] = (),
        search: Literal["bm25"] | None = None,
        keep: Iterable[str] = (),
    ) -> None:
        offered, behind = _all(tools), _all(shelf)
        if isinstance(tools, Toolbox) and tools.shelf is not None:
            behind = (*tools.shelf, *behind)
        self._by_name: dict[str, Tool] = {}
        self._hash: int | None = None
        if search is not None:
            offered, behind = _searched(offered, behind, search, keep)
        elif keep:
            msg = 'Without a search nothing is put away, and `keep` has nothing to say: Toolbox(tools, search="bm25", keep=[...]).'
            raise ToolDefinitionError(msg)
        self.tools: tuple[Tool, ...] = offered
        """The tools that are offered, in the order they were given."""
        self.shelf: Shelf | None = Shelf(behind) if behind else None
        """The tools that can be loaded; None where there are none."""
        if search is not None and self.shelf is not None:
            self.tools = (*offered, Tool(self.shelf.search_tools, effect="read"))
        self._index(behind)
        self.names: tuple[str, ...] = tuple(tool.name for tool in self.tools)
        """Their own names, in order."""
        self.declarations = Declarations(tool.declaration for tool in self.tools)
        """Their canonical declarations, in order, shared and not to be changed."""

    @classmethod
    def of(cls, tools: Iterable[Tool | Callable[..., Any] | Mapping[str, Any]] | Toolbox) -> Toolbox:
        """A toolbox as it is; a toolbox of anything else."""
        return tools if isinstance(tools, Toolbox) else cls(tools)

    def _index(self, behind: tuple[Tool, ...]) -> None:
        """Find the tools by their names; those of the shelf must have names of their own, and fit, but are not found."""
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
        return name in self._by_name if isinstance(name, str) else any(name is tool or name == tool for tool in self.tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools)

    def __len__(self) -> int:
        return len(self.tools)

    def keys(self) -> tuple[str, ...]:
        """The names, in order."""
        return self.names

    def values(self) -> tuple[Tool, ...]:
        """The tools, in order."""
        return self.tools

    def items(self) -> tuple[tuple[str, Tool], ...]:
        """Names and tools, in order."""
        return tuple(zip(self.names, self.tools, strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Toolbox):
            return NotImplemented
        return self is other or (self.tools == other.tools and list(self.shelf or ()) == list(other.shelf or ()))

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.tools)
        return self._hash

    def __repr__(self) -> str:
        return f"Toolbox([{', '.join(self.names)}])"


def _all(tools: Any) -> tuple[Tool, ...]:
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Iterable):
        msg = f"Tools come as a list of tools or functions, found {shown(tools)}."  # pyright: ignore[reportUnknownArgumentType]  may be anything
        raise ToolDefinitionError(msg)
    return tuple(as_tool(each) for each in cast("Iterable[Any]", tools))


def _searched(
    offered: tuple[Tool, ...], behind: tuple[Tool, ...], search: str, keep: Iterable[str]
) -> tuple[tuple[Tool, ...], tuple[Tool, ...]]:
    """What stays in sight and what is put on the shelf."""
    if search != "bm25":
        msg = f'`search` is "bm25" or None, found {shown(search)}.'
        raise ToolDefinitionError(msg)
    if isinstance(keep, str):
        msg = f"`keep` is a list of names, found {shown(keep)}."
        raise ToolDefinitionError(msg)
    every = Shelf(offered)
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
