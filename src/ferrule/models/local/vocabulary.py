"""The tokens of a model as bytes: what a grammar chooses from."""

from __future__ import annotations

from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ferrule.errors import ConfigurationError
from ferrule.models.local.engine import Cache, tokenizer_of_bytes, tokenizer_of_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TOKENIZERS: Cache[Any] = Cache(8)
"""The engine's tokenizers, by the content of the vocabulary: one of 128,000 tokens takes seconds to build, and 120 MB."""


class Vocabulary:
    """The tokens of a model, in the order of their ids. Immutable, and equal by content.

    Args:
        tokens: The bytes of each token.
        eos: The ids that end a text.
        special: The ids of control tokens. They never stand in text; a grammar may name them.
        size: The width of the model's logits, if it is larger than the number of tokens. Ids without a token are never admitted.

    """

    def __init__(
        self, tokens: Sequence[bytes], *, eos: Sequence[int], special: Iterable[int] = (), size: int | None = None, json: str | None = None
    ) -> None:
        self._tokens: tuple[bytes, ...] | None = None if json is not None else tuple(tokens)
        self._json = json
        self.eos = tuple(eos)
        self._given_special = frozenset(special) | frozenset(self.eos)
        if not self.eos:
            raise ConfigurationError("A vocabulary needs the id of at least one token that ends a text: `eos=[...]`.")
        content = sha256(repr((self._tokens, json, self.eos, sorted(self._given_special))).encode())
        self.digest = content.hexdigest()
        """Of the content; two vocabularies of one digest share the engine's tokenizer."""
        self.size = max(size or 0, len(self._tokens) if self._tokens is not None else self.tokenizer.vocab_size)

    @classmethod
    def from_json(cls, text: str, *, eos: Sequence[int], size: int | None = None) -> Vocabulary:
        """The vocabulary in the text of a `tokenizer.json` of Hugging Face; needs no package but the engine."""
        return cls((), eos=eos, size=size, json=text)

    @property
    def tokenizer(self) -> Any:
        """The engine's tokenizer, built once for a content."""
        return TOKENIZERS.get(self.digest, self._built)

    def _built(self) -> Any:
        if self._json is not None:
            return tokenizer_of_json(self._json, self.eos)
        assert self._tokens is not None  # noqa: S101  one of the two is given
        return tokenizer_of_bytes(self._tokens, self._given_special, self.eos)

    @cached_property
    def tokens(self) -> tuple[bytes, ...]:
        """The bytes of each token."""
        if self._tokens is not None:
            return self._tokens
        tokenizer = self.tokenizer
        return tuple([tokenizer.decode_bytes([i]) for i in range(tokenizer.vocab_size)])

    @cached_property
    def special(self) -> frozenset[int]:
        """The ids of control tokens and of those that end a text."""
        if self._json is None:
            return self._given_special
        tokenizer = self.tokenizer
        return self._given_special | frozenset(i for i in range(tokenizer.vocab_size) if tokenizer.is_special_token(i))

    def special_id(self, text: str) -> int | None:
        """The id of the special token that is written so."""
        wanted = text.encode()
        return next((i for i in sorted(self.special - {*self.eos}) if i < len(self.tokens) and self.tokens[i] == wanted), None)

    def encode(self, text: bytes | str) -> list[int]:
        """The text in tokens; not necessarily as the model's own tokenizer splits it."""
        whole = text.encode() if isinstance(text, str) else text
        return list(self.tokenizer.tokenize_bytes(whole))

    def decode(self, tokens: Iterable[int]) -> bytes:
        """The bytes of tokens; special tokens have none."""
        own, special = self.tokens, self.special
        return b"".join([own[each] for each in tokens if each not in special])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and (self.digest, self.size) == (other.digest, other.size)

    def __hash__(self) -> int:
        return hash((self.digest, self.size))

    def __repr__(self) -> str:
        return f"<Vocabulary of {self.size} ids, {self.digest[:8]}>"
