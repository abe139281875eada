"""The engine of grammars, llguidance: the one module that imports it.

A failed matcher of llguidance admits only the end of the text and looks finished, so an error is looked for after every step.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ferrule.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")


class Cache(Generic[T]):
    """The most recently used values by key. `hits` and `misses` count."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.hits = self.misses = 0
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made if there is none. Of two threads that make it at the same time, the first one's stays."""
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


def engine() -> Any:
    """The module `llguidance`."""
    try:
        import llguidance
    except ImportError as error:
        raise ConfigurationError(
            "Constrained answers need llguidance, which is not installed. Install it: pip install 'ferrule[local]'"
        ) from error
    return llguidance


class ByteTokens:
    """Tokens given as bytes, in the form that llguidance reads."""

    bos_token_id = None

    def __init__(self, tokens: tuple[bytes, ...], special: frozenset[int], eos: int) -> None:
        self.tokens = tokens
        self.special_token_ids = sorted(special)
        self.eos_token_id = eos
        self._ids = {each: i for i, each in reversed(list(enumerate(tokens))) if i not in special and each}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        """The text in tokens, the longest first. A byte that no token has is left out."""
        whole = text.encode() if isinstance(text, str) else text
        made: list[int] = []
        at = 0
        while at < len(whole):
            size = next((n for n in range(self._longest, 0, -1) if whole[at : at + n] in self._ids), 0)
            if size:
                made.append(self._ids[whole[at : at + size]])
            at += size or 1
        return made


def tokenizer_of_bytes(tokens: tuple[bytes, ...], special: frozenset[int], eos: tuple[int, ...]) -> Any:
    """The engine's tokenizer of tokens given as bytes."""
    module = engine()
    return module.LLTokenizer(module.TokenizerWrapper(ByteTokens(tokens, special, eos[0])), eos_token=list(eos))


def tokenizer_of_json(text: str, eos: tuple[int, ...]) -> Any:
    """The engine's tokenizer of a `tokenizer.json` of Hugging Face."""
    return engine().LLTokenizer(text, eos_token=list(eos))


def grammar_problem(tokenizer: Any, grammar: str) -> str:
    """Why the engine does not take a grammar; empty if it does."""
    failed, found = engine().LLMatcher.validate_grammar_with_warnings(grammar, tokenizer)
    return str(found[0]).partition("\n")[0] if failed else ""


def make_matcher(tokenizer: Any, grammar: str) -> Any:
    """The engine's matcher at the start of a grammar."""
    return engine().LLMatcher(tokenizer, grammar, log_level=0)
