"""One signature with everything, and golden files."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.chat import ChatAdapter
from ferrule.adapters.json_object import JSONAdapter
from ferrule.adapters.xml_tags import XMLAdapter
from ferrule.values.conversation.history import History
from ferrule.values.signatures.signature import InputField, OutputField, Signature

GOLDEN = Path(__file__).parent / "golden"


class Place(BaseModel):
    title: str
    height: float | None = None


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


class Everything(Signature):
    """Do what is asked.

    And nothing else.
    """

    question: str = InputField(desc="what is asked")
    places: list[Place] = InputField()
    history: History = InputField(default_factory=History)
    note: str | None = InputField(None)
    reasoning: str = OutputField(desc="why")
    count: int = OutputField(ge=0, le=9)
    share: float = OutputField()
    sure: bool = OutputField()
    kind: Literal["a", "b c"] = OutputField(desc="which one")
    mood: Mood = OutputField()
    place: Place = OutputField()
    tags: list[str] = OutputField()
    more: dict[str, Any] = OutputField()
    code: str = OutputField(max_length=8)
    remark: str | None = OutputField()


OUTPUTS: dict[str, Any] = {
    "reasoning": "because & <so>",
    "count": 3,
    "share": 0.5,
    "sure": True,
    "kind": "b c",
    "mood": Mood.BAD,
    "place": Place(title="K2", height=8611.0),
    "tags": ["x", "y"],
    "more": {"deep": {"n": [1, None]}},
    "code": "a\n  b",
    "remark": None,
}


@pytest.fixture
def everything() -> type[Signature]:
    return Everything


@pytest.fixture
def outputs() -> dict[str, Any]:
    return dict(OUTPUTS)


@pytest.fixture(params=[ChatAdapter, JSONAdapter, XMLAdapter], ids=lambda kind: kind.__name__)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    return request.param()


@pytest.fixture
def is_golden() -> Callable[[str, str], None]:
    """Compares with a golden file; `FERRULE_GOLDEN=write` writes it."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("FERRULE_GOLDEN") == "write":
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return compare
