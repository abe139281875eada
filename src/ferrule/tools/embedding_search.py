"""Search of tools by the meaning of texts, together with the search by words.

The embedded model gives a vector for each text. Its vectors all point the same way by and large,
and those of wishes ("I want to pay a bill") another way than those of descriptions ("Pay an
invoice."). So each kind is compared after its own mean is taken away: without that, only a third
as many tools are found for wishes in other words (`benchmarks/tool_search.py`).

Words are the better guide where a query has the right ones. So the two rankings are joined, by
their reciprocal ranks (Cormack and others, Reciprocal Rank Fusion, 2009).
"""

from __future__ import annotations

from array import array
from math import fsum, sqrt
from operator import mul, sub
from typing import TYPE_CHECKING, TypeAlias

from ferrule.embedded.engine import engine_with
from ferrule.tools.word_search import WordIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ferrule.tools.tool import Tool

    Vector: TypeAlias = "array[float]"

_DAMPING = 60
"""The constant of reciprocal rank fusion, at its usual value."""
_BATCH = 16
"""How many texts are embedded at once: between two batches, requests to the model take turns."""
_MOST_WISHES = 60
"""From how many descriptions the mean of wishes is estimated."""


def check_engine() -> None:
    """Raise `ConfigurationError` if the embedded model is not installed."""
    engine_with(None)


class EmbeddingIndex:
    """The vectors of tools. Making it takes some 30 ms for each new tool."""

    def __init__(self, by_name: Mapping[str, Tool], known: dict[str, Vector]) -> None:
        """Embed the tools whose vectors are not known yet; `known` has them by text."""
        self.by_name = by_name
        self._words = WordIndex(by_name)
        self._tools = list(by_name.values())
        texts = [_text_of(tool) for tool in self._tools]
        new = [text for text in dict.fromkeys(texts) if text not in known]
        known.update(zip(new, _embedded(new), strict=True))
        self._vectors = [known[text] for text in texts]
        self._mean = _mean(self._vectors)
        self._lengths = [_length(_difference(vector, self._mean)) for vector in self._vectors]
        """How far the vector of each tool is from the mean."""
        step = len(texts) // _MOST_WISHES + 1
        wishes = [_as_wish(tool.desc or tool.name) for tool in self._tools[::step]]
        self._mean_of_wishes = _mean(list(_embedded(wishes)))

    def best(self, query: str, limit: int) -> list[Tool]:
        """The tools that words and meaning place first, best first."""
        scores = dict.fromkeys(self.by_name, 0.0)
        for ranking in (self._words.best(query, len(self._tools)), self._by_meaning(query)):
            for rank, tool in enumerate(ranking):
                scores[tool.name] += 1 / (_DAMPING + rank)
        names = sorted(scores, key=lambda name: -scores[name])
        return [self.by_name[name] for name in names[:limit]]

    def _by_meaning(self, query: str) -> list[Tool]:
        """All tools, the nearest first."""
        [vector] = _embedded([_as_wish(query)])
        wish = _difference(vector, self._mean_of_wishes)
        offset = _product(self._mean, wish)
        nearness: list[float] = []
        for tool_vector, length in zip(self._vectors, self._lengths, strict=True):
            nearness.append((_product(tool_vector, wish) - offset) / (length or 1.0))
        positions = sorted(range(len(nearness)), key=lambda position: -nearness[position])
        return [self._tools[position] for position in positions]


def _text_of(tool: Tool) -> str:
    name = tool.name.replace("_", " ").replace(".", " ")
    return f"{name}: {tool.desc}"


def _as_wish(text: str) -> str:
    return f"I want to {text[:1].lower()}{text[1:]}"


def _embedded(texts: Sequence[str]) -> Iterator[Vector]:
    engine = engine_with(None)
    for start in range(0, len(texts), _BATCH):
        for vector in engine.embed(texts[start : start + _BATCH]):
            yield array("f", vector)


def _mean(vectors: Sequence[Vector]) -> Vector:
    return array("f", [fsum(column) / len(vectors) for column in zip(*vectors, strict=True)])


def _difference(vector: Vector, other: Vector) -> Vector:
    return array("f", map(sub, vector, other))


def _product(vector: Vector, other: Vector) -> float:
    return sum(map(mul, vector, other))


def _length(vector: Vector) -> float:
    return sqrt(_product(vector, vector))
