"""Damage to stored data, for properties: JSON with one wrong place, and bytes that were flipped,
cut off or written in another encoding.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

WRONG: tuple[Any, ...] = (
    None, True, 7, -1, 10**30, 1.5, float("nan"), "x", "", "\ud800", [], {}, [1], {"a": 1}, [[]], [{}], json.loads("[" * 600 + "]" * 600),
)  # fmt: skip
ENCODINGS = ("utf-16", "utf-32", "cp037")


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in JSON data, the whole first."""
    yield at
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*at, key))


@st.composite
def damaged_json(draw: st.DrawFn, text: str) -> str:
    """A JSON text with a wrong value at one place, without it, cut off, or nested too deeply to be
    read.
    """
    value = json.loads(text)
    kind = draw(st.sampled_from(["wrong", "wrong", "wrong", "absent", "cut", "deep"]))
    if kind == "cut":
        return text[: draw(st.integers(0, len(text) - 1))]
    if kind == "deep":
        return "[" * 100_000 + "]" * 100_000
    at = draw(st.sampled_from(list(places(value))))
    if not at:
        return json.dumps(draw(st.sampled_from(WRONG)))
    inside = value = copy.deepcopy(value)
    for key in at[:-1]:
        inside = inside[key]
    if kind == "absent":
        del inside[at[-1]]
    else:
        inside[at[-1]] = draw(st.sampled_from(WRONG))
    return json.dumps(value)


@st.composite
def damaged_bytes(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes of which some were overwritten, or the end is lost."""
    if draw(st.booleans()):
        return whole[: draw(st.integers(0, len(whole) - 1))]
    changed = bytearray(whole)
    for at, byte in draw(
        st.lists(
            st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)),
            min_size=1,
            max_size=40,
        ),
    ):
        changed[at] = byte
    return bytes(changed)


@st.composite
def damaged_file(draw: st.DrawFn, whole: bytes, *, is_lines: bool = False) -> bytes:
    """A JSON file, or one of JSON lines, after any such damage."""
    kind = draw(st.sampled_from(["json", "json", "json", "bytes", "encoding"]))
    if kind == "bytes":
        return draw(damaged_bytes(whole))
    if kind == "encoding":
        return whole.decode().encode(draw(st.sampled_from(ENCODINGS)))
    lines = whole.decode().splitlines() if is_lines else [whole.decode()]
    at = draw(st.integers(0, len(lines) - 1))
    lines[at] = draw(damaged_json(lines[at]))
    return "\n".join([*lines, ""]).encode()
