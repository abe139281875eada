from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import asdict

import ferrule
from ferrule import settings


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What a program configures ends with its test."""
    before = settings.current()
    yield
    ferrule.configure(**asdict(before))
