"""The timeline of a run: what took how long, and which agent did it.

The axis shows the time in which models and tools work. A long pause, such as a night in which the
run waited for a person, is shortened to a gap: it would leave nothing of the rest to see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

from ferrule.values.conversation.exchange import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ferrule.runs.story import Beat, CallBeat

_GAP_PART = 0.12
"""A pause longer than this part of the time at work is shortened to it."""
_SHORTEST_BAR = 0.4
"""Percent of the width: a shorter bar could not be seen."""

_NOT_PEOPLE = frozenset({"policy", "expiry"})
"""Sources of decisions for which nothing waits."""

BarKind = Literal["model", "tool", "wait", "bad"]


class Bar(Struct, kw_only=True):
    """One bar: its times, and then its place in percent of the axis."""

    kind: BarKind
    begun: float
    ended: float | None
    """None for what has not ended."""
    left: float = 0.0
    width: float = 0.0

    @property
    def took_s(self) -> float | None:
        """How long it took; None if it has not ended."""
        if self.ended is None:
            return None
        return max(0.0, self.ended - self.begun)


class Row(Struct, kw_only=True):
    """One model call or tool call, or several equal failures in a row."""

    name: str
    first: int
    """The first entry of its step, to which the row links."""
    number: int = 0
    """The number of its step; 0 for a call."""
    depth: int = 0
    is_failed: bool = False
    usage: Usage = Usage()
    cost: float | None = None
    bars: list[Bar] = field(default_factory=list[Bar])
    times: int = 1
    """How often it failed in the same way."""

    @property
    def took_s(self) -> float | None:
        """The time at work; None if it is not known, or not over."""
        spans = [bar.took_s for bar in self.bars if bar.kind != "wait"]
        if not spans:
            return None
        total = 0.0
        for span in spans:
            if span is None:
                return None
            total += span
        return total

    @property
    def waited_s(self) -> float:
        """How long it waited for a person."""
        return sum(bar.took_s or 0.0 for bar in self.bars if bar.kind == "wait")


class Timeline(Struct, kw_only=True):
    """The rows, and the pauses that the axis shortens."""

    rows: list[Row]
    pauses: list[tuple[float, float, float]] = field(
        default_factory=list["tuple[float, float, float]"]
    )
    """Left and width in percent, and seconds."""
    whole_s: float = 0.0
    """From the first begin to the last end."""


def timeline(beats: Sequence[Beat], begun_at: float, now: float | None) -> Timeline:
    """The timeline of these steps.

    `begun_at` is when the run began, and `now` the end of what has not ended; None if nothing
    executes the run.
    """
    rows = _rows(beats, 0, begun_at)
    bars = [bar for row in rows for bar in row.bars]
    if not bars:
        return Timeline(rows=rows)
    latest = max(bar.ended or bar.begun for bar in bars)
    if now is not None:
        latest = max(latest, now)
    axis = _Axis(bars, latest)
    for bar in bars:
        end = latest if bar.ended is None else bar.ended
        bar.left = axis.place(bar.begun)
        bar.width = max(_SHORTEST_BAR, axis.place(end) - bar.left)
        bar.left = min(bar.left, 100 - bar.width)
    return Timeline(rows=rows, pauses=axis.pauses, whole_s=latest - axis.start)


def _rows(beats: Iterable[Beat], depth: int, begun_at: float) -> list[Row]:
    rows: list[Row] = []
    for group in grouped_steps(beats):
        shown = _rows_of_beat(group[0], depth, begun_at)
        for repeated in group[1:]:
            for row, other in zip(shown, _rows_of_beat(repeated, depth, begun_at), strict=True):
                row.times += 1
                row.bars += other.bars
                row.usage += other.usage
                if other.cost is not None:
                    row.cost = (row.cost or 0.0) + other.cost
        rows += shown
    return rows


def _rows_of_beat(beat: Beat, depth: int, begun_at: float) -> list[Row]:
    name = beat.model or "model"
    if beat.message is not None:
        name = "message"
    if beat.changed is not None:
        name = "the program changed"
    row = Row(
        name=name,
        first=beat.first,
        number=beat.number + 1,
        depth=depth,
        usage=beat.usage,
        cost=beat.cost,
        is_failed=bool(beat.error or beat.limit),
    )
    is_of_model = beat.message is None and beat.changed is None
    if is_of_model and beat.at is not None:
        begun = begun_at if beat.begun_at is None else beat.begun_at
        kind: BarKind = "bad" if row.is_failed else "model"
        row.bars.append(Bar(kind=kind, begun=min(begun, beat.at), ended=beat.at))
    rows = [row]
    for call in beat.calls:
        if call.name != "finish" or call.begun or call.result is not None:
            rows += _rows_of_call(beat, call, depth + 1)
    return rows


def _rows_of_call(beat: Beat, call: CallBeat, depth: int) -> list[Row]:
    is_failed = call.result is not None and call.result.is_error
    row = Row(name=call.name, first=beat.first, depth=depth, is_failed=is_failed)
    asked_at = beat.at
    for decision in call.decisions:
        is_of_person = decision.via not in _NOT_PEOPLE and not decision.via.startswith("grant:")
        if is_of_person and decision.at is not None and asked_at is not None:
            row.bars.append(Bar(kind="wait", begun=min(asked_at, decision.at), ended=decision.at))
    kind: BarKind = "tool"
    if is_failed:
        kind = "bad"
    elif call.waits:
        kind = "wait"
    if call.begun_at is not None and (call.result is None or call.ended_at is not None):
        row.bars.append(Bar(kind=kind, begun=call.begun_at, ended=call.ended_at))
    return [row, *_rows(call.inside, depth + 1, call.begun_at or beat.at or 0.0)]


def failure_of(call: CallBeat) -> str:
    """What failed: the tool and what the model was told."""
    assert call.result is not None  # noqa: S101  only of a call that failed
    return f"{call.name}: {call.result.content}"


def failure_of_beat(beat: Beat) -> str:
    """What failed in a step in which nothing else happened; empty for any other step."""
    if beat.error or beat.limit:
        return f"{beat.error}{beat.limit}"
    if not beat.calls or beat.text or beat.message is not None:
        return ""
    failures: list[str] = []
    for call in beat.calls:
        if call.result is None or not call.result.is_error or call.inside or call.decisions:
            return ""
        failures.append(failure_of(call))
    return "\n".join(failures)


def grouped_steps(beats: Iterable[Beat]) -> list[list[Beat]]:
    """Steps, those that failed in the same way one after the other together."""
    groups: list[list[Beat]] = []
    previous = ""
    for beat in beats:
        failure = failure_of_beat(beat)
        if failure and failure == previous:
            groups[-1].append(beat)
        else:
            groups.append([beat])
        previous = failure
    return groups


class _Axis:
    """Maps times to percent of the width, with long pauses shortened."""

    def __init__(self, bars: list[Bar], latest: float) -> None:
        spans = sorted(
            (bar.begun, latest if bar.ended is None else bar.ended)
            for bar in bars
            if bar.kind != "wait"
        )
        if not spans:
            spans = sorted((bar.begun, latest if bar.ended is None else bar.ended) for bar in bars)
        self.start = min(bar.begun for bar in bars)
        busy = _merged(spans)
        work_s = sum(end - begin for begin, end in busy) or 1.0
        most_s = work_s * _GAP_PART
        # Each piece: begin, end, and how many seconds of the axis it takes.
        pieces: list[tuple[float, float, float]] = []
        at = self.start
        for begin, end in [*busy, (latest, latest)]:
            if begin > at:
                pieces.append((at, begin, min(begin - at, most_s)))
            if end > begin:
                pieces.append((begin, end, end - begin))
            at = max(at, end)
        self._pieces = pieces
        self._whole_s = sum(piece[2] for piece in pieces) or 1.0
        self.pauses: list[tuple[float, float, float]] = []
        for begin, end, shown_s in pieces:
            if shown_s < end - begin:
                left = self.place(begin)
                self.pauses.append((left, self.place(end) - left, end - begin))

    def place(self, at: float) -> float:
        passed = 0.0
        for begin, end, shown_s in self._pieces:
            if at >= end:
                passed += shown_s
            elif at > begin:
                passed += shown_s * (at - begin) / (end - begin)
        return round(100 * passed / self._whole_s, 3)


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for begin, end in spans:
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
