"""What the tests of doors share: a console to write on, and settings that end with the test."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from ferrule.cli.screen import console_on


@pytest.fixture
def paper(monkeypatch) -> Console:
    """A console of 100 columns whose text is `paper.file.getvalue()`."""
    monkeypatch.setenv("COLUMNS", "100")
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)
    return console_on(StringIO())
