from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import asdict

import ferrule
from ferrule import settings
from ferrule.compat import udspy
from ferrule.testing import ScriptedLM


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What a program configures, and what it responded, ends with its test."""
    before = settings.current()
    yield
    ferrule.configure(**asdict(before))
    udspy.clear_all_confirmations()


@pytest.fixture
def model() -> Callable[..., ScriptedLM]:
    """Configures a scripted model. A dict without a name is an answer in JSON, with one a call."""

    def configure(*answers: Any) -> ScriptedLM:
        lm = ScriptedLM(
            [
                json.dumps(each) if isinstance(each, dict) and "name" not in each else each
                for each in answers
            ],
        )
        udspy.settings.configure(lm=lm)
        return lm

    return configure
