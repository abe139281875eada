"""`Vocabulary`: the tokens of a model as bytes; and the grammar engine.

Only this module imports the engine, llguidance.

A failed matcher of llguidance admits only the end of the text and looks finished, so callers check
for an error after every step.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ferrule.errors import ConfigurationError, checks_keywords, importing

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

T = TypeVar("T")


class Cache(Generic[T]):
    """The most recently used values by key; counts its `hits` and `misses`. Thread-safe."""

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        self.hits = self.misses = 0
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made if there is none.

        If two threads make it at the same time, the first value stays.
        """
        with self._lock:
            if key in self._values:
                self.hits += 1
                self._values.move_to_end(key)
                return self._values[key]
            self.misses += 1
        new = make()
        with self._lock:
            value = self._values.setdefault(key, new)
            while len(self._values) > self.max_size:
                self._values.popitem(last=False)
        return value

    def __len__(self) -> int:
        return len(self._values)


TOKENIZERS: Cache[Any] = Cache(8)
"""The engine's tokenizers by vocabulary.

One for 128,000 tokens takes seconds to build, and 120 MB.
"""


class Vocabulary:
    """The tokens of a model, in the order of their ids. Immutable, and equal by content.

    Args:
        tokens: The bytes of each token.
        eos: The ids that end a text.
        special: The ids of control tokens. They never occur in text; a grammar may name them.
        size: The width of the model's logits, if it is larger than the number of tokens. Ids
            without a token are never admitted.
        json: The text of a `tokenizer.json`, in place of `tokens`.

    """

    @checks_keywords
    def __init__(
        self,
        tokens: Sequence[bytes],
        *,
        eos: Sequence[int],
        special: Iterable[int] = (),
        size: int | None = None,
        json: str | None = None,
    ) -> None:
        self._tokens = tuple(tokens)
        self._json = json
        self.eos = tuple(eos)
        self._named_special = frozenset(special) | frozenset(self.eos)
        if not self.eos:
            raise ConfigurationError(
                "A vocabulary needs the id of at least one token that ends a text: `eos=[...]`."
            )
        content = repr((self._tokens, json, self.eos, sorted(self._named_special)))
        self.digest = sha256(content.encode()).hexdigest()
        """A hash of the content; vocabularies with the same digest share the engine's tokenizer."""
        if json is None:
            number_of_tokens = len(self._tokens)
        else:
            number_of_tokens = self.tokenizer.vocab_size
        self.size = max(size or 0, number_of_tokens)

    @classmethod
    def from_json(cls, text: str, *, eos: Sequence[int], size: int | None = None) -> Vocabulary:
        """The vocabulary from the text of a Hugging Face `tokenizer.json`.

        It needs no package except the engine.
        """
        return cls((), eos=eos, size=size, json=text)

    @property
    def tokenizer(self) -> Any:
        """The engine's tokenizer, built once for equal vocabularies."""
        return TOKENIZERS.get(self.digest, self._build_tokenizer)

    def _build_tokenizer(self) -> Any:
        if self._json is not None:
            return engine().LLTokenizer(self._json, eos_token=list(self.eos))
        tokens = ByteTokens(self._tokens, self._named_special, self.eos[0])
        return engine().LLTokenizer(engine().TokenizerWrapper(tokens), eos_token=list(self.eos))

    @cached_property
    def tokens(self) -> tuple[bytes, ...]:
        """The bytes of each token."""
        if self._json is None:
            return self._tokens
        tokenizer = self.tokenizer
        return tuple([tokenizer.decode_bytes([token]) for token in range(tokenizer.vocab_size)])

    @cached_property
    def special(self) -> frozenset[int]:
        """The ids of control tokens and of tokens that end a text."""
        if self._json is None:
            return self._named_special
        tokenizer = self.tokenizer
        return self._named_special.union(
            filter(tokenizer.is_special_token, range(tokenizer.vocab_size))
        )

    def special_id(self, text: str) -> int | None:
        """The id of the special token with this text, or None."""
        wanted = text.encode()
        for token in sorted(self.special.difference(self.eos)):
            if token < len(self.tokens) and self.tokens[token] == wanted:
                return token
        return None

    def decode(self, tokens: Iterable[int]) -> bytes:
        """The bytes of these tokens; special tokens have none."""
        texts, special = self.tokens, self.special
        return b"".join([texts[token] for token in tokens if token not in special])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return False
        return self.digest == other.digest and self.size == other.size

    def __hash__(self) -> int:
        return hash((self.digest, self.size))

    def __repr__(self) -> str:
        return f"<Vocabulary of {self.size} ids, {self.digest[:8]}>"


class ByteTokens:
    """Tokens given as bytes, in the form that llguidance reads."""

    bos_token_id = None

    def __init__(self, tokens: tuple[bytes, ...], special: frozenset[int], eos: int) -> None:
        self.tokens = tokens
        self.special_token_ids = sorted(special)
        self.eos_token_id = eos
        self._ids: dict[bytes, int] = {}
        for token, text in enumerate(tokens):
            if text and token not in special:
                self._ids.setdefault(text, token)
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        """Split a text into tokens, longest match first. A byte that no token has is skipped."""
        if isinstance(text, str):
            rest = text.encode()
        else:
            rest = text
        ids: list[int] = []
        start = 0
        while start < len(rest):
            size = self._size_at(rest, start)
            if size:
                ids.append(self._ids[rest[start : start + size]])
            start += max(size, 1)
        return ids

    def _size_at(self, text: bytes, start: int) -> int:
        """The length of the longest token at this place; 0 if there is none."""
        for size in range(self._longest, 0, -1):
            if text[start : start + size] in self._ids:
                return size
        return 0


BYTES = Vocabulary([*(bytes([byte]) for byte in range(256)), b"</s>"], eos=[256])
"""A vocabulary with a token for each byte: for grammars whose model's own tokens do not matter."""


def engine() -> Any:
    """Import `llguidance`. Raises `ConfigurationError` if it is not installed."""
    with importing("Constrained answers need llguidance: pip install 'ferrule[local]'."):
        import llguidance
    return llguidance


def grammar_problem(tokenizer: Any, grammar: str) -> str:
    """Why the engine rejects a grammar; empty if it accepts it."""
    failed, messages = engine().LLMatcher.validate_grammar_with_warnings(grammar, tokenizer)
    if not failed:
        return ""
    return str(messages[0]).partition("\n")[0]


def make_matcher(tokenizer: Any, grammar: str) -> Any:
    """The engine's matcher at the start of a grammar."""
    return engine().LLMatcher(tokenizer, grammar, log_level=0)
