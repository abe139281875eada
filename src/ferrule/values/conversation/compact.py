"""`Compact`: when a conversation is too long, and how to shorten it. Sizes are estimates, corrected by the last answer's usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from ferrule.errors import ConfigurationError, shown
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
_LEAST = 100
"""The smallest number of tokens accepted. Fewer are a mistake: `compact=1` for the whole context, or `80` for a percentage."""
_BYTES_PER_TOKEN = 4
_PER_MESSAGE = 4
_PER_MEDIA = 1_000
"""Tokens of an image. Providers count between 85 and 4,800, by size and model (their pages, November 2026)."""


class Compact(Struct, frozen=True):
    """When and how to shorten a conversation: `ReAct(..., compact=Compact(100_000, "summarize"))`.

    Older steps and turns of the conversation go first. See
    docs/how-to/agents/long-conversations.md.
    """

    at: float = 0.8
    """The size at which a request is compacted: a number of tokens if it is an `int`, a share of the model's context if a `float`."""
    strategy: Literal["shorten", "drop", "summarize"] | Any = "shorten"
    """`"shorten"` cuts long results of old steps and, if that is not enough, drops the oldest steps; `"drop"` drops them at once;
    `"summarize"` has the agent's model write a summary of them. A program such as `Predict("conversation -> summary")` writes it itself."""
    to: float = 0.5
    """The share of `at` that remains, approximately."""
    keep: int = 3
    """The number of newest steps that stay unchanged."""

    def __post_init__(self) -> None:
        is_share = isinstance(self.at, float) and 0 < self.at <= 1
        if not (is_share or _is_count(self.at, _LEAST)):
            msg = (
                f"`at` is a number of tokens (an int of at least {_LEAST}), or a share of the model's context (a float of at most 1.0); "
                f"found {self.at!r}."
            )
            raise ConfigurationError(msg)
        if not (isinstance(self.to, float) and 0 < self.to < 1):
            raise ConfigurationError(
                f"`to` is a share of `at`, a float between 0 and 1; found {self.to!r}.",
            )
        if not _is_count(self.keep, 0):
            raise ConfigurationError(f"`keep` is a whole number of steps, found {self.keep!r}.")
        if self.strategy not in STRATEGIES and not _is_program(self.strategy):
            names = ", ".join(f'"{name}"' for name in STRATEGIES)
            msg = f"`strategy` is {names}, or a program with one input and an output of text; found {shown(self.strategy)}."
            raise ConfigurationError(msg)

    @classmethod
    def of(cls, given: Any) -> Compact:
        """Read the option `compact=`: a policy, or only its `at`."""
        return cast("Compact", given) if isinstance(given, cls) else cls(given)


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_program(value: Any) -> bool:
    signature = getattr(value, "signature", None)
    plan = getattr(signature, "plan", None)
    return (
        plan is not None
        and len([field for field in plan.inputs.values() if field.is_required]) == 1
        and bool(plan.outputs)
    )


def estimate_content(content: Content, *, calls: Sequence[Any] = ()) -> int:
    """The estimated tokens of a message: a quarter of its UTF-8 bytes, and 1,000 for each image."""
    size = sum(len(call.name) + _size(call.arguments_text) for call in calls)
    media = 0
    for part in (content,) if isinstance(content, str) else content:
        if isinstance(part, (str, Text)):
            size += _size(part if isinstance(part, str) else part.text)
        else:
            media += _PER_MEDIA
    return _PER_MESSAGE + media + size // _BYTES_PER_TOKEN


def estimate_messages(messages: Iterable[Any]) -> int:
    """The estimated tokens of messages and turns of fields."""
    return sum(
        [
            estimate_content(each.content, calls=each.tool_calls)
            if isinstance(each, Message)
            else _turn(each)
            for each in messages
        ],
    )


def _turn(turn: Mapping[str, Any]) -> int:
    return sum([estimate_content(render(value)) for value in turn.values()])


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def shorten_result(entry: Any) -> Any:
    """A message or a turn, shortened if it is a long result."""
    if not isinstance(entry, Message) or entry.role != "tool":
        return entry
    content = shorten(entry.content, LONGEST_RESULT)
    return entry if content is entry.content else replace(entry, content=content)


def grouped(entries: Iterable[Any]) -> list[list[Any]]:
    """Entries of a history in units to drop as a whole: an answer with calls and their results are one unit."""
    found: list[list[Any]] = []
    for entry in entries:
        if found and isinstance(entry, Message) and entry.role == "tool":
            found[-1].append(entry)
        else:
            found.append([entry])
    return found


def sizes_of(units: Iterable[Sequence[Any]]) -> list[tuple[int, int]]:
    """The tokens of each unit: unchanged, and with its results shortened."""
    return [
        (estimate_messages(unit), estimate_messages(map(shorten_result, unit))) for unit in units
    ]


def cut_entries(
    entries: Sequence[Any],
    dropped: int,
    shortened: int,
    note: Message = LEFT_OUT,
) -> list[Any]:
    """Entries without the first `dropped`, and with results up to `shortened` cut. The note comes first, so that the user speaks first."""
    kept = [*map(shorten_result, entries[dropped:shortened]), *entries[max(dropped, shortened) :]]
    return [note, *kept] if dropped else kept


def compact_entries(entries: Sequence[Any], tokens: int, strategy: str, *, keep: int) -> list[Any]:
    """See `History.compacted`."""
    if strategy not in {"shorten", "drop"}:
        raise ConfigurationError(
            f'`strategy` of a history is "shorten" or "drop", found {strategy!r}. An agent can summarize: `compact=`.',
        )
    system = [
        entry for entry in entries[:1] if isinstance(entry, Message) and entry.role == "system"
    ]
    entries = entries[len(system) :]
    units = grouped(entries)
    sizes = sizes_of(units)
    total = sum([size for size, _ in sizes])
    cut = (
        choose_cut(sizes, total, most=tokens, to=1, keep=keep, shortens=strategy == "shorten")
        if total > tokens
        else None
    )
    if cut is None:
        return [*system, *entries]
    return system + cut_entries(
        entries,
        sum(map(len, units[: cut.dropped])),
        sum(map(len, units[: cut.shortened])),
    )


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
    """The smallest cut that leaves `to * most` of `total` tokens, or else the largest; None if it would save nothing.

    `sizes` are the tokens of each unit: unchanged, and with its results shortened. The newest
    `keep` units stay.
    """
    old = sizes[: max(len(sizes) - keep, 0)]
    excess, saved = total - to * most, 0.0
    shortened = dropped = 0
    for size, short in old if shortens else ():
        if saved >= excess:
            break
        saved += size - short
        shortened += 1
    # If shortening saves half of the wanted tokens, nothing is dropped: short results are worth the
    # little room that they take.
    is_enough = shortens and total - saved <= most * (1 + to) / 2
    for size, short in () if is_enough else old:
        if saved >= excess:
            break
        saved += short if dropped < shortened else size
        dropped += 1
    return Cut(dropped, max(shortened, dropped), saved) if saved > 0 else None
