"""Tools by name, in order.  (Floor 3.)

In: tools and whatever can become one. Out: a `Toolbox`, which finds a tool by its own name or its wire name at once and hands its
declarations out, made once. Building it builds every schema, so that what is wrong with a tool is said before a model is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ferrule.errors import DuplicateToolError, ToolDefinitionError, UnknownToolError, shown
from ferrule.tools.tool import Tool
from ferrule.values.exchange import Declarations

if TYPE_CHECKING:
    from collections.abc import Callable


def as_tool(thing: Any) -> Tool:
    """A tool out of a tool, a function or another callable, a LangChain tool, or a declaration (then it has no function)."""
    return Tool.of(thing)


class Toolbox:
    """An ordered, unchanging set of tools. Iterating gives the tools; `toolbox[name]`, `name in toolbox`, `.names`, `.items()`."""

    __slots__ = ("_by_name", "_hash", "declarations", "names", "tools")

    def __init__(self, tools: Iterable[Tool | Callable[..., Any] | Mapping[str, Any]] = ()) -> None:
        if isinstance(tools, (str, Mapping)) or not isinstance(tools, Iterable):
            msg = f"Tools come as a list of tools or functions, found {shown(tools)}."  # pyright: ignore[reportUnknownArgumentType]
            raise ToolDefinitionError(msg)
        self.tools: tuple[Tool, ...] = tuple(as_tool(each) for each in tools)
        """The tools, in the order they were given."""
        self._by_name: dict[str, Tool] = {}
        self._index()
        self.names: tuple[str, ...] = tuple(tool.name for tool in self.tools)
        """Their own names, in order."""
        self.declarations = Declarations(tool.declaration for tool in self.tools)
        """Their canonical declarations, in order, shared and not to be changed."""
        self._hash: int | None = None

    def _index(self) -> None:
        for tool in self.tools:
            there = self._by_name.get(tool.name)
            if there is not None and there.name == tool.name:
                msg = f"There are two tools named `{tool.name}`. Give one of them another name: Tool(function, name=...)."
                raise DuplicateToolError(msg)
            there = there if there is not None else self._by_name.get(tool.wire_name)
            if there is not None:
                msg = f"The tools `{there.name}` and `{tool.name}` have one wire name, `{there.wire_name}`. Give one of them another name."
                raise DuplicateToolError(msg)
            self._by_name[tool.name] = self._by_name[tool.wire_name] = tool

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
        return self is other or (isinstance(other, Toolbox) and self.tools == other.tools)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.tools)
        return self._hash

    def __repr__(self) -> str:
        return f"Toolbox([{', '.join(self.names)}])"
