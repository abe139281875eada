"""Standard input as lines.

What comes of standard output is proved in tests/integration/test_mcp_round_trip.py.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.mcp_bridge.server import stdio
from ferrule.mcp_bridge.server.stdio import StdinLines


def lines_of(pieces: list[bytes]) -> list[str]:
    """What is read where somebody writes these pieces and closes."""
    reading, writing = os.pipe()

    def write() -> None:
        for piece in pieces:
            os.write(writing, piece)
        os.close(writing)

    async def read() -> list[str]:
        threading.Thread(target=write, daemon=True).start()
        return [line async for line in StdinLines(reading)]

    try:
        return asyncio.run(read())
    finally:
        os.close(reading)


@given(
    st.lists(
        st.lists(st.sampled_from([b"\n", b"a", b"\xc3\xa9", b"\xff", b"{}"]), max_size=6).map(
            b"".join,
        ),
        max_size=6,
    ),
)
def test_pieces_become_the_same_lines_however_they_are_cut(pieces: list[bytes]) -> None:
    """Property: as `split` has it; what is no UTF-8 is replaced, and a last line needs no end."""
    whole = b"".join(pieces).split(b"\n")
    expected = whole if whole[-1] else whole[:-1]
    assert lines_of(pieces) == [each.decode(errors="replace") for each in expected]


def test_a_line_of_many_megabytes_comes_whole() -> None:
    """The pieces of a line are joined once."""
    line = b"x" * 5_000_000
    assert lines_of([line, b"\nshort\n"]) == [line.decode(), "short"]


def test_many_lines_wait_for_whoever_reads() -> None:
    """No more than some are read ahead."""
    assert lines_of([b"a\n" * 1000]) == ["a"] * 1000


def test_on_windows_the_end_does_not_wait_for_a_client_that_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There `dup2` waits for a read of the same descriptor."""
    copied: list[tuple[int, int]] = []
    monkeypatch.setattr(stdio.os, "dup2", lambda *pair: copied.append(pair))
    monkeypatch.setattr(stdio, "StdinLines", lambda _: SimpleNamespace(close=lambda: None))
    counts: list[int] = []
    for platform in ("linux", "win32"):
        monkeypatch.setattr(sys, "platform", platform)
        with stdio._own_input():
            counts.append(len(copied))
        counts.append(len(copied))
    assert counts == [1, 2, 3, 3]


def test_the_thread_ends_when_nobody_reads_any_more() -> None:
    """Nothing is left behind but, at most, a thread that waits for input."""
    reading, writing = os.pipe()

    async def look() -> str:
        lines = StdinLines(reading)
        try:
            return await anext(lines)
        finally:
            lines.close()

    os.write(writing, b"one\n" * 200)
    assert asyncio.run(look()) == "one"
    os.close(writing)
    threads = [each for each in threading.enumerate() if each.name == "ferrule-stdin"]
    for each in threads:
        each.join(60)
    assert not any(each.is_alive() for each in threads)
    os.close(reading)
