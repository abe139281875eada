"""Where a command keeps its runs: a file, or a Postgres."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.cli.main import main
from ferrule.cli.stores import read_dsn


@pytest.mark.parametrize(
    ("place", "dsn", "liveness"),
    [
        ("postgresql://u:p@h/db", "postgresql://u:p@h/db", "session"),
        ("postgresql://h/db?liveness=heartbeat", "postgresql://h/db", "heartbeat"),
        (
            "postgresql://h/db?liveness=heartbeat&sslmode=require",
            "postgresql://h/db?sslmode=require",
            "heartbeat",
        ),
        (
            "postgresql://h/db?sslmode=require&liveness=heartbeat&port=6",
            "postgresql://h/db?sslmode=require&port=6",
            "heartbeat",
        ),
        ("host=h liveness=heartbeat dbname=db", "host=h dbname=db", "heartbeat"),
        ("host=h liveness = session", "host=h", "session"),
    ],
)
def test_a_dsn_says_that_a_pooler_shares_sessions(place: str, dsn: str, liveness: str) -> None:
    """The option is ferrule's, so libpq does not get it."""
    assert read_dsn(place) == (dsn, liveness)


@pytest.mark.parametrize("command", [("ask", "q"), ("serve",)])
@pytest.mark.parametrize("place", ["postgresql://ann:secret@h/db", "host=h password=secret"])
def test_a_command_that_needs_a_file_takes_no_dsn_and_shows_no_password(
    command: tuple[str, ...],
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It would become the name of a file."""
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--store", place]) == 2
    said = capsys.readouterr().err
    assert f"`ferrule {command[0]}` keeps runs in a SQLite file" in said
    assert "secret" not in said
    assert not list(tmp_path.iterdir())
