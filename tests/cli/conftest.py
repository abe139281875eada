"""What the tests of doors share: a console to write on, and settings that end with the test."""

from __future__ import annotations

import importlib.util
from functools import cache
from io import StringIO
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

if importlib.util.find_spec("typer") is None:  # `scripts/check-core.sh`
    collect_ignore_glob = ["*"]


@pytest.fixture(scope="session", autouse=True)
def commands_are_read_once() -> Iterator[None]:
    """Typer reads the signatures of all commands for each command line, as a process has one.

    That takes 0.1 s, more than most of the commands here.
    """
    import typer.main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def paper(monkeypatch) -> Console:
    """A console of 100 columns whose text is `paper.file.getvalue()`."""
    from ferrule.cli.screen import console_on

    monkeypatch.setenv("COLUMNS", "100")
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)
    return console_on(StringIO())
