"""What a model in this process needs of the library that runs it: `Backend`; and how tokens are chosen: `Sampling`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ferrule.errors import ConfigurationError, shown
from ferrule.values.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ferrule.models.local.matcher import Matcher
    from ferrule.models.local.vocabulary import Vocabulary

PLAIN_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}assistant:"
"""For a model without a chat template, as base models are."""
_SYNONYMS = {"max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens", "max_new_tokens": "max_tokens"}
_IGNORED = frozenset({"parallel_tool_calls", "user", "metadata", "store"})
"""Settings that say nothing about how a text is generated."""


class Sampling(Record):
    """How the tokens of one answer are chosen. None leaves it to the model's own defaults."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    extra: Mapping[str, Any] | None = None
    """Variables of the chat template, such as `enable_thinking`."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Sampling:
        """The settings of a request; raises `ConfigurationError` for one that a local model does not have."""
        known: dict[str, Any] = {}
        for name, value in settings.items():
            own = _SYNONYMS.get(name, name)
            if value is None or own in _IGNORED:
                continue
            if own not in cls.__record_fields__:
                names = ", ".join(f"`{each}`" for each in cls.__record_fields__)
                raise ConfigurationError(f"A local model has no setting `{name}`. It has {names}.")
            known[own] = value
        if "stop" in known:
            known["stop"] = (known["stop"],) if isinstance(known["stop"], str) else tuple(known["stop"])
        most = known.get("max_tokens")
        if most is not None and (not isinstance(most, int) or most < 1):
            raise ConfigurationError(f"`max_tokens` is a whole number of at least 1, found {shown(most)}.")
        return cls(**known)


class Backend(Protocol):
    """A loaded model: a conversation to tokens, tokens to more tokens, tokens to text. Threads may share it."""

    reads_tools: bool
    """Whether its chat template renders declarations of tools."""
    window: int | None
    """Tokens of prompt and answer together."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Its tokens, for constraints; built when first used."""
        ...

    def prompt(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, variables: Mapping[str, Any]) -> list[int]:
        """The conversation by the model's chat template, up to where its answer begins.

        Raises `BadRequestError` where the template refuses the conversation.
        """
        ...

    def generate(self, prompt: Sequence[int], sampling: Sampling, matcher: Matcher | None) -> Iterator[int]:
        """The tokens of one answer without the one that ends it, at most `sampling.max_tokens`; closing the iterator ends the work.

        With a matcher, only tokens that it admits are chosen, and each is passed to it.
        """
        ...

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included. An incomplete character at the end is U+FFFD."""
        ...
