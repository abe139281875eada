"""`Backend`: a library that runs a model in this process; and `Sampling`: how tokens are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from ferrule.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ferrule.models.local.matcher import Matcher
    from ferrule.models.local.vocabulary import Vocabulary

PLAIN_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}assistant:"
"""The template for a model without its own, such as a base model."""
_SYNONYMS = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
}
_IGNORED = frozenset({"parallel_tool_calls", "user", "metadata", "store"})
"""Settings that do not affect how a text is generated."""

_FROM_A_SERVER = frozenset(
    {
        "base_url",
        "wire",
        "api_key",
        "headers",
        "connect_timeout_s",
        "read_timeout_s",
        "timeout_s",
        "max_retries",
        "max_concurrency",
        "requests_per_minute",
        "strict_tools",
    }
)
"""Arguments of `LM` that only apply to a model behind an address."""


def check_no_server(name: str, settings: Iterable[str]) -> None:
    """Raise `ConfigurationError` for an argument that a local model does not have."""
    refused = sorted(_FROM_A_SERVER.intersection(settings))
    if refused:
        raise ConfigurationError(
            f"`{name}` runs on this machine and takes no `{refused[0]}`: "
            "only a model behind an address does."
        )


class Sampling(Struct, frozen=True):
    """How the tokens of one answer are chosen. None leaves a value to the model's own default."""

    max_tokens: int | None = None
    """Before it generates, the model sets it to what the context window has room for, at most."""
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
        """The sampling for a request's settings.

        Raises `ConfigurationError` for a setting that local models do not have.
        """
        known: dict[str, Any] = {}
        for name, value in settings.items():
            field = _SYNONYMS.get(name, name)
            if value is None or field in _IGNORED:
                continue
            if field not in cls.__struct_fields__:
                names = ", ".join(f"`{field}`" for field in cls.__struct_fields__)
                raise ConfigurationError(f"A local model has no setting `{name}`. It has {names}.")
            known[field] = value
        stop = known.get("stop", ())
        known["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
        max_tokens = known.get("max_tokens", 1)
        if not isinstance(max_tokens, int) or max_tokens < 1:
            raise ConfigurationError(
                f"`max_tokens` is a whole number of at least 1, found {shown(max_tokens)}."
            )
        return cls(**known)


class Backend(Protocol):
    """A loaded model, which threads may share.

    It turns a conversation into tokens, generates tokens, and turns tokens into text.
    """

    reads_tools: bool
    """Whether its chat template renders declarations of tools."""
    window: int | None
    """The most tokens of prompt and answer together; None if unknown."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens, for constraints; built on first use."""
        ...

    def prompt(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> list[int]:
        """The tokens of a conversation, through the model's chat template.

        They end where the answer begins. Raises `BadRequestError` if the template refuses the
        conversation.
        """
        ...

    def generate(
        self, prompt: Sequence[int], sampling: Sampling, matcher: Matcher | None
    ) -> Iterator[int]:
        """The tokens of one answer without the end token, at most `sampling.max_tokens`.

        Closing the iterator stops the work. With a matcher, only tokens that it admits are chosen,
        and it gets each of them.
        """
        ...

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included.

        An incomplete character at the end is U+FFFD.
        """
        ...
