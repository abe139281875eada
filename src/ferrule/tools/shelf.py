"""`Shelf`: tools that are offered only when they are loaded, found by name, glob, or a search."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from ferrule.concurrency.forking import ForkLock
from ferrule.errors import ToolDefinitionError, shown
from ferrule.tools.embedding_search import EmbeddingIndex, check_engine
from ferrule.tools.execution.tool_changes import Load
from ferrule.tools.word_search import WordIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ferrule.tools.embedding_search import Vector
    from ferrule.tools.tool import Tool

Search = Literal["bm25", "embedding", "provider"]
"""How tools are searched: by words, by words and meaning, or by the model's provider.

A shelf itself is searched in the first two ways."""

_MOST_RESULTS = 20
_indexing = ForkLock()


class Shelf:
    """An ordered set of tools with unique names (`Toolbox` checks this)."""

    search_options: ClassVar[dict[str, Any]] = {
        "description": (
            "Find more tools by what they should do, and load them: "
            "they can be called from the next step on."
        ),
        "arg_desc": {
            "query": "What the tools should do, in a few words.",
            "limit": "How many tools to load at most.",
        },
        "effect": "read",
    }
    """The options that make `search_tools` a tool. They describe it, because `python -OO` would
    drop a docstring."""

    def __init__(self, tools: Iterable[Tool] = (), search: Search = "bm25") -> None:
        """Make a shelf; raises `ConfigurationError` if the search cannot run here."""
        self.by_name = {tool.name: tool for tool in tools}
        """Its tools. `replace` puts another dict here, and changes none."""
        self._search: Search = search
        self._index: WordIndex | EmbeddingIndex | None = None
        self._vectors: dict[str, Vector] = {}
        """Those of the tools that were searched by meaning, by their texts."""
        if search == "embedding":
            check_engine()

    def replace(self, tools: Iterable[Tool]) -> None:
        """Replace the tools, for example when an MCP server lists new ones."""
        self.by_name = {tool.name: tool for tool in tools}

    def get(self, name: str) -> Tool | None:
        """The tool of that name, or None."""
        return self.by_name.get(name)

    def matching(self, pattern: str) -> list[Tool]:
        """The tools that match a name or a glob, in the shelf's order.

        Globs are `*`, `?` and `[...]` as in `fnmatch`, case-sensitive.
        """
        exact = self.by_name.get(pattern)
        if exact is not None:
            return [exact]
        return [tool for name, tool in self.by_name.items() if fnmatchcase(name, pattern)]

    def search(self, query: str, limit: int) -> list[Tool]:
        """The best tools for a query, best first.

        In a search by words, a tool must share one with the query.
        """
        index = self._index
        if index is None or index.by_name is not self.by_name:
            with _indexing.lock:  # one thread embeds the tools, and the others wait
                index = self._current_index()
        return index.best(query, limit)

    def _current_index(self) -> WordIndex | EmbeddingIndex:
        # Both are read once: another run may replace the tools meanwhile.
        index, by_name = self._index, self.by_name
        if index is not None and index.by_name is by_name:
            return index
        if self._search == "bm25":
            index = WordIndex(by_name)
        else:
            index = EmbeddingIndex(by_name, self._vectors)
        self._index = index
        return index

    def search_tools(self, query: str, limit: int = 5) -> Any:
        """Find tools and load them. This is the function of the model's `search_tools`."""
        tools = self.search(query, min(max(limit, 1), _MOST_RESULTS))
        if not tools:
            return f"No tool fits {query!r}. Try other words, or fewer."
        return Load(*(tool.name for tool in tools))

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def __repr__(self) -> str:
        return f"Shelf([{', '.join(self.by_name)}])"


def check_search(search: Any) -> None:
    """Raise `ToolDefinitionError` for an unknown kind of search."""
    if search not in get_args(Search):
        kinds = " or ".join(f'"{kind}"' for kind in get_args(Search))
        raise ToolDefinitionError(f"`search` is {kinds}, or None; found {shown(search)}.")
