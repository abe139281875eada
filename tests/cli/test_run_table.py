"""The lines of `ferrule runs`."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ferrule.cli.run_table import draw_runs, read_time, seconds_text
from ferrule.errors import ConfigurationError
from ferrule.runs.protocols import Summary
from ferrule.values.conversation.exchange import Usage


def drawn(*runs: Summary, **options: Any) -> str:
    file = io.StringIO()
    draw_runs(
        Console(file=file, **options),
        runs,
        shown_id=str,
        shown_time=lambda at: f"at {at:.0f}",
        note=lambda run: f"  ({run.error})" if run.error else "",
        below=lambda run: ["    q1  waiting"] if run.status == "waiting" else [],
    )
    return file.getvalue()


def run(run_id: str, **facts: Any) -> Summary:
    given = {"program": "P", "status": "done", "created_at": 0.0, "updated_at": 1.0, **facts}
    return Summary(id=run_id, **given)


def test_columns_are_aligned_and_numbers_at_the_right() -> None:
    usage = Usage(1000, 200, calls=3, cost=0.5)
    found = drawn(
        run("a", asked="How many?", steps=3, seconds=2.5, usage=usage),
        run("long-id", program="Support", status="failed", error="no key", updated_at=20.0),
        run("w", status="waiting", title="A bill"),
    )
    assert found == (
        "a        done       at 1   P        3  2.5 s  1,200  $0.5000  How many?\n"
        "long-id  failed     at 20  Support                            (no key)\n"
        "w        waiting    at 1   P                                  A bill\n"
        "    q1  waiting\n"
    )


def test_a_terminal_gets_colours_and_lines_of_its_width() -> None:
    found = drawn(run("a", asked="word " * 50), force_terminal=True, width=40, no_color=False)
    assert "\x1b[32mdone" in found
    assert "…" in found


def test_what_a_terminal_would_act_on_is_shown() -> None:
    assert "\x1b[2J" not in drawn(run("a", asked="\x1b[2J"))


def test_no_runs_are_no_lines() -> None:
    assert drawn() == ""


@pytest.mark.parametrize(
    ("text", "at"),
    [("90min", 4600.0), ("2h", 2800.0), ("1970-01-02", 86400.0)],
)
def test_a_time_is_a_while_ago_or_a_day(text: str, at: float) -> None:
    assert read_time(text, 10_000.0, "--since") == at


@pytest.mark.parametrize("text", ["", "soon", "24", "-1h", "2026-13-01", "9999999d"])
def test_another_text_is_no_time(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--since"):
        read_time(text, 10_000.0, "--since")


def test_durations_are_short() -> None:
    assert [seconds_text(s) for s in (0.02, 2.55, 90, 7200)] == ["20 ms", "2.5 s", "2 min", "2.0 h"]
