"""`Compact`: when a conversation is too long, and how to shorten it.

Sizes are estimates: tokenizers differ between models and are large to load, and a cut need not be
exact. An agent corrects the estimates by the usage that the last answer reported.

A cut works on *units*, from the oldest on: a message, or an answer with calls together with their
results, because providers refuse a call without its result. Results of tools are shortened before
anything is dropped: they are the longest texts of most conversations, and the least missed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from ferrule.errors import ConfigurationError, shown
from ferrule.record import CheckedStruct
from ferrule.values.content.convert import render
from ferrule.values.content.parts import Text
from ferrule.values.conversation.message import Message, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ferrule.values.content.parts import Content

LEFT_OUT = Message("user", "(Earlier messages of this conversation were left out.)")
STRATEGIES = ("shorten", "drop", "summarize")
LONGEST_RESULT = 400
"""Characters that "shorten" leaves of a long result."""
_FEWEST_TOKENS = 100
"""The smallest `at` that is accepted.

Fewer tokens are a mistake: `at=1` for the whole context, or `at=80` for a percentage.
"""
_BYTES_PER_TOKEN = 4
"""About right for English text and code; other languages have more bytes to a token."""
_TOKENS_PER_MESSAGE = 4
"""What a chat template adds to each message: its role and its ends."""
_TOKENS_PER_MEDIA = 1_000
"""Tokens of an image.

Providers count between 85 and 4,800, by size and model (their pages, November 2026).
"""


class Compact(Struct, metaclass=CheckedStruct, frozen=True):
    """When and how to shorten a conversation: `ReAct(..., compact=Compact(100_000, "summarize"))`.

    Older steps and turns of the conversation go first. See
    docs/how-to/agents/long-conversations.md.
    """

    at: float = 0.8
    """The size at which a request is compacted.

    An `int` is a number of tokens, a `float` a share of the model's context.
    """
    strategy: Literal["shorten", "drop", "summarize"] | Any = "shorten"
    """How to compact.

    `"shorten"` cuts long results of old steps and, if that is not enough, drops the oldest steps;
    `"drop"` drops them at once; `"summarize"` has the agent's model write a summary of them. A
    program such as `Predict("conversation -> summary")` writes it itself.
    """
    to: float = 0.5
    """The share of `at` that remains, approximately."""
    keep: int = 3
    """The number of newest steps that stay unchanged."""

    def __post_init__(self) -> None:
        is_share = isinstance(self.at, float) and 0 < self.at <= 1
        if not is_share and not _is_count(self.at, _FEWEST_TOKENS):
            raise ConfigurationError(
                f"`at` is a number of tokens (an int of at least {_FEWEST_TOKENS}), or a share of "
                f"the model's context (a float of at most 1.0); found {self.at!r}."
            )
        if not (isinstance(self.to, float) and 0 < self.to < 1):
            raise ConfigurationError(
                f"`to` is a share of `at`, a float between 0 and 1; found {self.to!r}."
            )
        if not _is_count(self.keep, 0):
            raise ConfigurationError(f"`keep` is a whole number of steps, found {self.keep!r}.")
        if self.strategy not in STRATEGIES and not _is_summary_program(self.strategy):
            names = ", ".join(f'"{name}"' for name in STRATEGIES)
            raise ConfigurationError(
                f"`strategy` is {names}, or a program with one input and an output of text; "
                f"found {shown(self.strategy)}."
            )

    @classmethod
    def of(cls, option: Any) -> Compact:
        """Read the option `compact=`: a policy, or only its `at`."""
        if isinstance(option, cls):
            return option
        return cls(option)


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_summary_program(value: Any) -> bool:
    signature = getattr(value, "signature", None)
    plan = getattr(signature, "plan", None)
    if plan is None:
        return False
    required = [field for field in plan.inputs.values() if field.is_required]
    return len(required) == 1 and bool(plan.outputs)


# -- sizes


def estimate_content(content: Content, *, calls: Sequence[Any] = ()) -> int:
    """The estimated tokens of a message: a quarter of its UTF-8 bytes, and 1,000 for each image."""
    text_bytes = 0
    media_tokens = 0
    if isinstance(content, str):
        text_bytes = _bytes_of(content)
    else:
        for part in content:
            if isinstance(part, Text):
                text_bytes += _bytes_of(part.text)
            else:
                media_tokens += _TOKENS_PER_MEDIA
    for call in calls:
        text_bytes += len(call.name) + _bytes_of(call.arguments_text)
    return _TOKENS_PER_MESSAGE + media_tokens + text_bytes // _BYTES_PER_TOKEN


def estimate_messages(entries: Iterable[Any]) -> int:
    """The estimated tokens of messages and turns of fields."""
    total = 0
    for entry in entries:
        if isinstance(entry, Message):
            total += estimate_content(entry.content, calls=entry.tool_calls)
        else:
            total += _estimate_turn(entry)
    return total


def _estimate_turn(turn: Mapping[str, Any]) -> int:
    return sum(estimate_content(render(value)) for value in turn.values())


def _bytes_of(text: str) -> int:
    """The number of UTF-8 bytes. ASCII text, which is most text, is not encoded to count them."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-8", "surrogatepass"))


# -- cuts


def shorten_result(entry: Any) -> Any:
    """A message or a turn, shortened if it is a long result."""
    if not isinstance(entry, Message) or entry.role != "tool":
        return entry
    content = shorten(entry.content, LONGEST_RESULT)
    if content is entry.content:
        return entry
    return replace(entry, content=content)


def grouped(entries: Iterable[Any]) -> list[list[Any]]:
    """Entries of a history in units to drop as a whole.

    An answer with calls and their results are one unit.
    """
    units: list[list[Any]] = []
    for entry in entries:
        if units and isinstance(entry, Message) and entry.role == "tool":
            units[-1].append(entry)
        else:
            units.append([entry])
    return units


def sizes_of(units: Iterable[Sequence[Any]]) -> list[tuple[int, int]]:
    """The tokens of each unit: unchanged, and with its results shortened."""
    return [
        (estimate_messages(unit), estimate_messages(map(shorten_result, unit))) for unit in units
    ]


def cut_entries(
    entries: Sequence[Any], dropped: int, shortened: int, note: Message = LEFT_OUT
) -> list[Any]:
    """Entries without the first `dropped`, and with the results of the first `shortened` cut.

    If entries were dropped, the note comes first, so that the user speaks first: some providers
    refuse a conversation that begins with an answer.
    """
    rest = [shorten_result(entry) for entry in entries[dropped:shortened]]
    rest += entries[max(dropped, shortened) :]
    if dropped:
        return [note, *rest]
    return rest


def compact_entries(entries: Sequence[Any], tokens: int, strategy: str, *, keep: int) -> list[Any]:
    """See `History.compacted`."""
    if strategy not in {"shorten", "drop"}:
        raise ConfigurationError(
            f'`strategy` of a history is "shorten" or "drop", found {strategy!r}. '
            "An agent can summarize: `compact=`."
        )
    # The system message is never dropped: it says what the conversation is about.
    system = [
        entry for entry in entries[:1] if isinstance(entry, Message) and entry.role == "system"
    ]
    entries = entries[len(system) :]
    units = grouped(entries)
    sizes = sizes_of(units)
    total = sum(size for size, _ in sizes)
    if total <= tokens:
        return [*system, *entries]
    cut = choose_cut(sizes, total, most=tokens, to=1, keep=keep, shortens=strategy == "shorten")
    if cut is None:
        return [*system, *entries]
    dropped = sum(map(len, units[: cut.dropped]))
    shortened = sum(map(len, units[: cut.shortened]))
    return system + cut_entries(entries, dropped, shortened)


class Cut(Struct, frozen=True):
    """How much to leave out of a sequence of units, from the oldest on."""

    dropped: int
    """The number of units to drop."""
    shortened: int
    """The number of units whose results are shortened, including the dropped ones."""
    saved: float
    """The estimated tokens that the cut saves."""


def choose_cut(
    sizes: Sequence[tuple[int, int]],
    total: float,
    *,
    most: float,
    to: float,
    keep: int,
    shortens: bool,
) -> Cut | None:
    """The smallest cut that leaves `to * most` of `total` tokens, or else the largest.

    `sizes` are the tokens of each unit: unchanged, and with its results shortened. The newest
    `keep` units stay. Returns None if a cut would save nothing.
    """
    old_sizes = sizes[: max(len(sizes) - keep, 0)]
    excess = total - to * most
    saved = 0.0
    shortened = 0
    if shortens:
        for size, short_size in old_sizes:
            if saved >= excess:
                break
            saved += size - short_size
            shortened += 1
    # If shortening saves half of the wanted tokens, nothing is dropped: short results are worth the
    # little room that they take.
    is_enough = shortens and total - saved <= most * (1 + to) / 2
    dropped = 0
    if not is_enough:
        for size, short_size in old_sizes:
            if saved >= excess:
                break
            if dropped < shortened:  # the rest of its size was saved above
                saved += short_size
            else:
                saved += size
            dropped += 1
    if saved <= 0:
        return None
    return Cut(dropped, max(shortened, dropped), saved)
