"""The lines of `ferrule runs`, and the options that choose runs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.text import Text

from ferrule.encoding.safe_text import one_line, printable, reveal
from ferrule.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import Console

    from ferrule.runs.protocols import Summary

_UNITS = {"min": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_STYLES = {
    "running": "blue",
    "waiting": "yellow",
    "done": "green",
    "failed": "red",
    "queued": "dim",
    "cancelled": "dim",
}
_LONGEST = 120
"""Characters of what a run was asked."""


def read_time(text: str, now: float, option: str) -> float:
    """A time that a person types: `24h` ago, or the beginning of the day `2026-11-28` in UTC.

    Raises `ConfigurationError` for anything else.
    """
    match = re.fullmatch(r"(\d{1,6})\s*(min|h|d|w)", text)
    if match is not None:
        return now - int(match[1]) * _UNITS[match[2]]
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise ConfigurationError(
            f"`{option}` is a time ago, such as 90min, 24h, 7d or 2w, or a day, such as "
            f"2026-11-28; found {text!r}."
        ) from None


def draw_runs(
    console: Console,
    runs: Iterable[Summary],
    *,
    shown_id: Callable[[str], str],
    shown_time: Callable[[float], str],
    note: Callable[[Summary], str],
    below: Callable[[Summary], Iterable[str]],
) -> None:
    """Print runs in aligned columns. A terminal gets colours, and lines no longer than it is wide.

    Args:
        console: Where they are printed.
        runs: The runs.
        shown_id: The id of a run as a person sees it.
        shown_time: A time in words.
        note: What its status alone does not say.
        below: Lines below the run.

    """
    runs = list(runs)
    rows = [_cells(run, shown_id, shown_time) for run in runs]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for run, row in zip(runs, rows, strict=True):
        line = Text()
        for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
            if not width:
                continue
            is_number = number >= _FIRST_NUMBER
            padded = cell.rjust(width) if is_number else cell.ljust(width)
            style = _STYLES.get(run.status, "") if number == 1 else ""
            line.append(f"{printable(padded)}  ", style)
        line.append(one_line(reveal(run.title or run.asked), _LONGEST), "bold")
        rest = printable(note(run))
        if not run.title and not run.asked:
            rest = rest.lstrip()
        line.append(rest, "red" if run.error else "")
        line.rstrip()
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)
        for text in below(run):
            console.print(Text(printable(text)), soft_wrap=True)


_FIRST_NUMBER = 4
"""The column of the first number: it and those after it are aligned at the right."""


def _cells(
    run: Summary, shown_id: Callable[[str], str], shown_time: Callable[[float], str]
) -> list[str]:
    cost = ""
    if run.cost:
        cost = f"${run.cost:.4f}"
    tokens = ""
    if run.usage.total_tokens:
        tokens = f"{run.usage.total_tokens:,}"
    seconds = ""
    if run.seconds:
        seconds = seconds_text(run.seconds)
    return [
        shown_id(run.id),
        run.status.ljust(9),
        shown_time(run.updated_at),
        run.program,
        str(run.steps or ""),
        seconds,
        tokens,
        cost,
    ]


def seconds_text(seconds: float) -> str:
    """A duration in the unit in which it is short."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3_600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h"
