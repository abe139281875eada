"""`Shelf`: tools that are not offered until they are loaded. They are found by name, glob, or words.

The search is BM25 (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009) over names,
descriptions and the names of parameters. Its forty lines save every installation a dependency.
"""

from __future__ import annotations

import re
from collections import Counter
from fnmatch import fnmatchcase
from math import log
from typing import TYPE_CHECKING, Any, ClassVar

from ferrule.tools.execution.tool_changes import Load

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ferrule.tools.tool import Tool

_SATURATION, _LENGTH = 1.2, 0.75
"""BM25's k1 and b, at their usual values."""
_NAME_COUNTS = 3
"""The weight of a word in a tool's name: a query that contains a tool's name means that tool."""
_MOST_FOUND = 20
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W_a-zA-Z0-9]+")


class Shelf:
    """An ordered set of tools with unique names (`Toolbox` checks this)."""

    search_options: ClassVar[dict[str, Any]] = {
        "desc": "Find more tools by what they should do, and load them: they can be called from the next step on.",
        "arg_desc": {
            "query": "What the tools should do, in a few words.",
            "limit": "How many tools to load at most.",
        },
        "effect": "read",
    }
    """The options that make `search_tools` a tool. They describe it, as `python -OO` would drop a docstring."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._by_name = {tool.name: tool for tool in tools}
        self._index: _Index | None = None

    def replace(self, tools: Iterable[Tool]) -> None:
        """Replace the tools, for example when an MCP server lists new ones."""
        self._by_name = {tool.name: tool for tool in tools}

    def get(self, name: str) -> Tool | None:
        """The tool of that name, or None."""
        return self._by_name.get(name)

    def matching(self, pattern: str) -> list[Tool]:
        """The tools that match a name or a glob (`*`, `?`, `[...]` as in `fnmatch`, case-sensitive), in the shelf's order."""
        exact = self._by_name.get(pattern)
        if exact is not None:
            return [exact]
        return [tool for name, tool in self._by_name.items() if fnmatchcase(name, pattern)]

    def search(self, query: str, limit: int) -> list[Tool]:
        """The best tools for a query, best first. A tool must share a word with the query."""
        index, by_name = (
            self._index,
            self._by_name,
        )  # read once: another run may replace the tools meanwhile
        if index is None or index.by_name is not by_name:
            index = self._index = _Index(by_name)
        return index.best(query, limit)

    def search_tools(self, query: str, limit: int = 5) -> Any:
        """Find tools and load them. This is the function of the model's `search_tools`."""
        found = self.search(query, min(max(limit, 1), _MOST_FOUND))
        if not found:
            return f"No tool fits {query!r}. Try other words, or fewer."
        return Load(*(tool.name for tool in found))

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return f"Shelf([{', '.join(self._by_name)}])"


class _Index:
    """For each word, the tools that contain it, and how often."""

    def __init__(self, by_name: Mapping[str, Tool]) -> None:
        self.by_name = by_name
        self.tools = list(by_name.values())
        self.lengths: list[int] = []
        self.places: dict[str, list[tuple[int, int]]] = {}
        for at, tool in enumerate(self.tools):
            words = Counter(_words(tool.desc) + _words(" ".join(tool.args)))
            for word in _words(tool.name):
                words[word] += _NAME_COUNTS
            self.lengths.append(words.total())
            for word, count in words.items():
                self.places.setdefault(word, []).append((at, count))
        self.mean = sum(self.lengths) / len(self.lengths) if self.lengths else 1.0

    def best(self, query: str, limit: int) -> list[Tool]:
        scores: dict[int, float] = {}
        for word in dict.fromkeys(_words(query)):
            places = self.places.get(word, ())
            rare = log(1 + (len(self.tools) - len(places) + 0.5) / (len(places) + 0.5))
            for at, count in places:
                damped = count + _SATURATION * (
                    1 - _LENGTH + _LENGTH * self.lengths[at] / self.mean
                )
                scores[at] = scores.get(at, 0.0) + rare * count * (_SATURATION + 1) / damped
        ranked = sorted(
            scores,
            key=lambda at: (-scores[at], at),
        )  # ties in the shelf's order: the same result in every process
        return [self.tools[at] for at in ranked[:limit]]


def _words(text: str) -> list[str]:
    """The words of a text in lower case; `createInvoice_v2` has four. Cuts the `s` of plurals, the most common inflection in tool names."""
    found = [word.lower() for word in _WORD.findall(text)]
    return [
        word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
        for word in found
    ]
