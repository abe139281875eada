"""`Shelf`: tools that are offered only when they are loaded, found by name, glob, or words.

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

_SATURATION = 1.2
"""BM25's k1, at its usual value: how soon more repetitions of a word stop to count."""
_LENGTH_NORMALISATION = 0.75
"""BM25's b, at its usual value: how much a long text weakens each of its words."""
_WEIGHT_OF_NAME = 3
"""The weight of a word in a tool's name: a query that contains a tool's name means that tool."""
_MOST_RESULTS = 20
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W_a-zA-Z0-9]+")


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
        """The tools that match a name or a glob, in the shelf's order.

        Globs are `*`, `?` and `[...]` as in `fnmatch`, case-sensitive.
        """
        exact = self._by_name.get(pattern)
        if exact is not None:
            return [exact]
        return [tool for name, tool in self._by_name.items() if fnmatchcase(name, pattern)]

    def search(self, query: str, limit: int) -> list[Tool]:
        """The best tools for a query, best first. A tool must share a word with the query."""
        # Both are read once: another run may replace the tools meanwhile.
        index, by_name = self._index, self._by_name
        if index is None or index.by_name is not by_name:
            index = _Index(by_name)
            self._index = index
        return index.best(query, limit)

    def search_tools(self, query: str, limit: int = 5) -> Any:
        """Find tools and load them. This is the function of the model's `search_tools`."""
        tools = self.search(query, min(max(limit, 1), _MOST_RESULTS))
        if not tools:
            return f"No tool fits {query!r}. Try other words, or fewer."
        return Load(*(tool.name for tool in tools))

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
        self._tools = list(by_name.values())
        self._lengths: list[int] = []
        self._postings: dict[str, list[tuple[int, int]]] = {}
        """By word: the position of each tool that has it, and how often."""
        for position, tool in enumerate(self._tools):
            counts = Counter(_words(tool.desc) + _words(" ".join(tool.args)))
            for word in _words(tool.name):
                counts[word] += _WEIGHT_OF_NAME
            self._lengths.append(counts.total())
            for word, count in counts.items():
                self._postings.setdefault(word, []).append((position, count))
        self._mean_length = 1.0
        if self._lengths:
            self._mean_length = sum(self._lengths) / len(self._lengths)

    def best(self, query: str, limit: int) -> list[Tool]:
        """The tools with the highest scores, best first."""
        scores: dict[int, float] = {}
        for word in dict.fromkeys(_words(query)):
            postings = self._postings.get(word, ())
            rarity = log(1 + (len(self._tools) - len(postings) + 0.5) / (len(postings) + 0.5))
            for position, count in postings:
                relative_length = self._lengths[position] / self._mean_length
                normalised = 1 - _LENGTH_NORMALISATION + _LENGTH_NORMALISATION * relative_length
                damped = count * (_SATURATION + 1) / (count + _SATURATION * normalised)
                scores[position] = scores.get(position, 0.0) + rarity * damped
        # Ties in the shelf's order: the same result in every process.
        ranked = sorted(scores, key=lambda position: (-scores[position], position))
        return [self._tools[position] for position in ranked[:limit]]


def _words(text: str) -> list[str]:
    """The words of a text in lower case; `createInvoice_v2` has four.

    Cuts the `s` of plurals, the most common inflection in tool names.
    """
    words: list[str] = []
    for match in _WORD.findall(text):
        word = match.lower()
        is_plural = len(word) > 3 and word.endswith("s") and not word.endswith("ss")
        if is_plural:
            word = word.removesuffix("s")
        words.append(word)
    return words
