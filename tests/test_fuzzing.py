"""`make fuzz` works, and what it finds is told: a moment of each of its two parts."""

from __future__ import annotations

import json
import random
import time
from collections import Counter

import pytest
from fuzzing import __main__ as fuzzing


def test_inputs_by_chance_go_through_all_doors() -> None:
    pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")
    counts = Counter[str]()
    assert list(fuzzing.raw(random.Random(1), time.monotonic() + 2, "", counts)) == []
    assert counts.keys() == {*fuzzing.TEXTS, *fuzzing.SCHEMAS}


def test_a_raw_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "TEXTS", {"json": json.loads})
    monkeypatch.setattr(fuzzing, "SCHEMAS", {})
    found = next(fuzzing.raw(random.Random(1), time.monotonic() + 60, "", Counter()))
    assert found.startswith("json: JSONDecodeError: ")


def test_a_reader_that_looks_at_everything_again_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "TEXTS", {"quadratic": len})
    monkeypatch.setattr(
        fuzzing,
        "_span_s",
        lambda read, opening, fragment, size: (read("x" * (size // 1000)) / 100) ** 2,
    )
    found = next(fuzzing.slow(random.Random(1), time.monotonic() + 60, "", Counter()))
    assert found.startswith("quadratic: ")
