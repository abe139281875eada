"""`Vocabulary`: the tokens of a model as bytes; and the grammar engine llguidance, which only this module imports.

A failed matcher of llguidance admits only the end of the text and looks finished, so callers check
for an error after every step.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ferrule.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

T = TypeVar("T")


class Cache(Generic[T]):
    """The most recently used values by key; counts its `hits` and `misses`. Thread-safe."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.hits = self.misses = 0
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made if there is none. If two threads make it at the same time, the first value stays."""
        with self._lock:
            if key in self._values:
                self.hits += 1
                self._values.move_to_end(key)
                return self._values[key]
            self.misses += 1
        made = make()
        with self._lock:
            value = self._values.setdefault(key, made)
            while len(self._values) > self.most:
                self._values.popitem(last=False)
        return value

    def __len__(self) -> int:
        return len(self._values)


TOKENIZERS: Cache[Any] = Cache(8)
"""The engine's tokenizers by vocabulary: one for 128,000 tokens takes seconds to build, and 120 MB."""


class Vocabulary:
    """The tokens of a model, in the order of their ids. Immutable, and equal by content.

    Args:
        tokens: The bytes of each token. eos: The ids that end a text. special: The ids of control
        tokens. They never occur in text; a grammar may name them. size: The width of the model's
        logits, if it is larger than the number of tokens. Ids without a token are never admitted.

    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        *,
        eos: Sequence[int],
        special: Iterable[int] = (),
        size: int | None = None,
        json: str | None = None,
    ) -> None:
        self._tokens: tuple[bytes, ...] | None = None if json is not None else tuple(tokens)
        self._json = json
        self.eos = tuple(eos)
        self._given_special = frozenset(special) | frozenset(self.eos)
        if not self.eos:
            raise ConfigurationError(
                "A vocabulary needs the id of at least one token that ends a text: `eos=[...]`.",
            )
        content = sha256(repr((self._tokens, json, self.eos, sorted(self._given_special))).encode())
        self.digest = content.hexdigest()
        """A hash of the content; vocabularies with the same digest share the engine's tokenizer."""
        self.size = max(
            size or 0,
            len(self._tokens) if self._tokens is not None else self.tokenizer.vocab_size,
        )

    @classmethod
    def from_json(cls, text: str, *, eos: Sequence[int], size: int | None = None) -> Vocabulary:
        """The vocabulary from the text of a Hugging Face `tokenizer.json`; needs no package except the engine."""
        return cls((), eos=eos, size=size, json=text)

    @property
    def tokenizer(self) -> Any:
        """The engine's tokenizer, built once for equal vocabularies."""
        return TOKENIZERS.get(self.digest, self._built)

    def _built(self) -> Any:
        if self._json is not None:
            return engine().LLTokenizer(self._json, eos_token=list(self.eos))
        tokens = ByteTokens(self._tokens or (), self._given_special, self.eos[0])
        return engine().LLTokenizer(engine().TokenizerWrapper(tokens), eos_token=list(self.eos))

    @cached_property
    def tokens(self) -> tuple[bytes, ...]:
        """The bytes of each token."""
        if self._tokens is not None:
            return self._tokens
        tokenizer = self.tokenizer
        return tuple([tokenizer.decode_bytes([i]) for i in range(tokenizer.vocab_size)])

    @cached_property
    def special(self) -> frozenset[int]:
        """The ids of control tokens and of tokens that end a text."""
        if self._json is None:
            return self._given_special
        tokenizer = self.tokenizer
        return self._given_special | frozenset(
            i for i in range(tokenizer.vocab_size) if tokenizer.is_special_token(i)
        )

    def special_id(self, text: str) -> int | None:
        """The id of the special token with this text, or None."""
        wanted = text.encode()
        return next(
            (
                i
                for i in sorted(self.special - {*self.eos})
                if i < len(self.tokens) and self.tokens[i] == wanted
            ),
            None,
        )

    @cached_property
    def _splitter(self) -> ByteTokens:
        return ByteTokens(self.tokens, self.special, self.eos[0])

    def encode(self, text: bytes | str) -> list[int]:
        """Split a text into tokens, longest match first; not necessarily as the model's own tokenizer does."""
        return self._splitter(text)

    def bits(self, wanted: Callable[[bytes], bool]) -> int:
        """The text tokens whose bytes are `wanted`, as an integer with a bit for each id."""
        made = bytearray(-(-self.size // 8))
        for i, each in enumerate(self.tokens):
            if each and i not in self.special and wanted(each):
                made[i // 8] |= 1 << i % 8
        return int.from_bytes(made, "little")

    def decode(self, tokens: Iterable[int]) -> bytes:
        """The bytes of these tokens; special tokens have none."""
        own, special = self.tokens, self.special
        return b"".join([own[each] for each in tokens if each not in special])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and (self.digest, self.size) == (
            other.digest,
            other.size,
        )

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
        self._ids = {
            each: i for i, each in reversed(list(enumerate(tokens))) if i not in special and each
        }
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        """Split a text into tokens, longest match first. A byte that no token has is skipped."""
        whole = text.encode() if isinstance(text, str) else text
        made: list[int] = []
        at = 0
        while at < len(whole):
            size = next(
                (n for n in range(self._longest, 0, -1) if whole[at : at + n] in self._ids),
                0,
            )
            if size:
                made.append(self._ids[whole[at : at + size]])
            at += size or 1
        return made


BYTES = Vocabulary([*(bytes([each]) for each in range(256)), b"</s>"], eos=[256])
"""A vocabulary with a token for each byte: for checking and searching grammars where a model's own tokens do not matter."""


def engine() -> Any:
    """Import `llguidance`. Raises `ConfigurationError` if it is not installed."""
    try:
        import llguidance
    except ImportError as error:
        raise ConfigurationError(
            "Constrained answers need llguidance, which is not installed. Install it: pip install 'ferrule[local]'",
        ) from error
    return llguidance


def grammar_problem(tokenizer: Any, grammar: str) -> str:
    """Why the engine rejects a grammar; empty if it accepts it."""
    failed, found = engine().LLMatcher.validate_grammar_with_warnings(grammar, tokenizer)
    return str(found[0]).partition("\n")[0] if failed else ""


def make_matcher(tokenizer: Any, grammar: str) -> Any:
    """The engine's matcher at the start of a grammar."""
    return engine().LLMatcher(tokenizer, grammar, log_level=0)
