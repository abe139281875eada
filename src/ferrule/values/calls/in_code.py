"""Calls in code of a model: the code's lines, and the ids that say which line made a call."""

from __future__ import annotations

import re
from typing import NamedTuple

_ID = re.compile(r"(.*)\.(\d+):(\d+)", re.DOTALL)


class PlaceInCode(NamedTuple):
    """Where code makes a call. Its text is the id of the call, so a journal has it."""

    code_call: str
    """The id of the call that has the code."""
    number: int
    """The number of the call among those of the code, from 1."""
    line: int
    """The line of the code, from 1."""

    def __str__(self) -> str:
        return f"{self.code_call}.{self.number}:{self.line}"


def place_in_code(call_id: str | None) -> PlaceInCode | None:
    """The place in the id of a call; None if no code made the call."""
    parts = _ID.fullmatch(call_id or "")
    if parts is None:
        return None
    return PlaceInCode(parts[1], int(parts[2]), int(parts[3]))


def numbered_lines(code: str) -> list[tuple[int, str]]:
    """The lines of code with their numbers, without empty ones at its beginning and its end."""
    lines = list(enumerate(code.split("\n"), 1))
    filled = [number for number, line in lines if line.strip()]
    if not filled:
        return []
    return lines[filled[0] - 1 : filled[-1]]
