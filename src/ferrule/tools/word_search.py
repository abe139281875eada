"""Search of tools by words: BM25 over names, descriptions and the names of parameters.

Robertson and Zaragoza describe it (The Probabilistic Relevance Framework, 2009). Its forty lines
save every installation a dependency.
"""

from __future__ import annotations

import re
from collections import Counter
from math import log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.tools.tool import Tool

_SATURATION = 1.2
"""BM25's k1, at its usual value: how soon more repetitions of a word stop to count."""
_LENGTH_NORMALISATION = 0.75
"""BM25's b, at its usual value: how much a long text weakens each of its words."""
_WEIGHT_OF_NAME = 3
"""The weight of a word in a tool's name: a query that contains a tool's name means that tool."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W_a-zA-Z0-9]+")


class WordIndex:
    """For each word, the tools that contain it, and how often."""

    def __init__(self, by_name: Mapping[str, Tool]) -> None:
        self.by_name = by_name
        self._tools = list(by_name.values())
        self._lengths: list[int] = []
        self._postings: dict[str, list[tuple[int, int]]] = {}
        """By word: the position of each tool that has it, and how often."""
        for position, tool in enumerate(self._tools):
            counts = Counter(words_of(tool.desc) + words_of(" ".join(tool.args)))
            for word in words_of(tool.name):
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
        for word in dict.fromkeys(words_of(query)):
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


def words_of(text: str) -> list[str]:
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
