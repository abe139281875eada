"""`Plans`: the shortest endings of answers, in tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.models.local.decoding.ending import ending
from ferrule.models.local.decoding.scalars import rest_of_utf8
from ferrule.models.local.decoding.shortest import Shortest
from ferrule.models.local.vocabulary import Cache

if TYPE_CHECKING:
    from ferrule.models.local.grammar import Grammar
    from ferrule.models.local.vocabulary import Vocabulary

_STRUCTURE = b'{[,:"'
_MOST_STRUCTURE = 8
"""The most JSON marks counted in one token: schemas do not admit longer runs, such as `[[[[[[[[[[`."""
_PLAIN = bytes(each for each in range(0x20, 0x7F) if each not in b'"\\')
_KINDS: Cache[tuple[int, int, int]] = Cache(8)
"""The results of `_kinds`: for 128,000 tokens it takes a tenth of a second."""


class Plans:
    """Endings under one grammar, in the tokens of one vocabulary. Shared by all sequences of a constraint."""

    def __init__(self, vocabulary: Vocabulary, grammar: Grammar) -> None:
        self._vocabulary, self._grammar, self._form = vocabulary, grammar, grammar.form
        self._shortest = Shortest(grammar.schema)
        self._opener = self._form.opener.encode()
        self._closer = self._form.closer.encode()
        first = self.remaining([], b"")[0]
        self.shortest_tokens = len(first) if first is not None else None
        """The number of tokens in the shortest answer; None if no answer ends."""
        self.jump = len(vocabulary.encode(self._shortest.longest_choice)) + 4
        """How many tokens one choice can add to an ending, at most."""
        start = self._opener[:1] if self._form.prose_chars else b""
        most, self.plain, self.single = _KINDS.get(
            (vocabulary, start),
            lambda: _kinds(vocabulary, start),
        )
        self.largest_jump = self.jump * (1 + min(_MOST_STRUCTURE, most))
        """How many tokens any one token can add to an ending, at most."""

    def growth(self, token: int) -> int:
        """How many tokens this token can add to an ending, at most."""
        return self.jump * (1 + min(_MOST_STRUCTURE, _marks(self._vocabulary.tokens[token])))

    def text_of(self, token: int) -> bytes:
        """The bytes of a token; special ones have none."""
        return self._vocabulary.decode([token])

    def remaining(self, tokens: list[int], text: bytes) -> tuple[list[int] | None, bool]:
        """The shortest ending of the answer in tokens, None if none is known; and whether any character may come next.

        `text` is the text of `tokens`; special tokens have none.
        """
        opener_id = self._grammar.opener_id
        if not self._form.prose_chars:
            return self._of_value(text)
        if opener_id is not None:
            if opener_id in tokens:
                return self._of_value(
                    self._vocabulary.decode(tokens[tokens.index(opener_id) + 1 :]),
                )
        elif self._opener in text:
            return self._of_value(text.partition(self._opener)[2])
        if not self._form.call:
            return self._vocabulary.encode(rest_of_utf8(text)), True
        value = self._shortest.of(self._shortest.root)
        if value is None:
            return None, True
        if opener_id is not None:
            return [
                *self._vocabulary.encode(rest_of_utf8(text)),
                opener_id,
                *self._vocabulary.encode(value + self._closer),
            ], True
        begun = next(n for n in range(len(self._opener), -1, -1) if text.endswith(self._opener[:n]))
        rest = rest_of_utf8(text) if not begun else b""
        return self._vocabulary.encode(rest + self._opener[begun:] + value + self._closer), True

    def _of_value(self, text: bytes) -> tuple[list[int] | None, bool]:
        rest, is_free = ending(self._shortest, text, self._closer)
        return (None if rest is None else self._vocabulary.encode(rest)), is_free


def _kinds(vocabulary: Vocabulary, start: bytes) -> tuple[int, int, int]:
    """The most marks in a token; the tokens that change no ending where any character but `start` may follow; the single-byte tokens."""
    plain = vocabulary.bits(lambda token: _is_plain(token) and (not start or start not in token))
    return (
        max(map(_marks, vocabulary.tokens), default=1),
        plain,
        vocabulary.bits(lambda token: len(token) == 1),
    )


def _marks(token: bytes) -> int:
    return len(token) - len(token.translate(None, _STRUCTURE))


def _is_plain(token: bytes) -> bool:
    """Whether a token consists of whole characters that need no escape in a JSON string."""
    others = token.translate(None, _PLAIN)
    if any(byte < 0x80 for byte in others):
        return False
    try:
        token.decode()
    except UnicodeDecodeError:
        return False
    return True
