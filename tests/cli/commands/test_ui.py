"""`ferrule ui`, as far as it shows without a browser: `tests/web/` has the rest."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import Any

import pytest

from ferrule import SQLiteStore
from ferrule.cli.main import main

page = pytest.importorskip("ferrule.web.app", reason="needs the extra: pip install 'ferrule[ui]'")


def test_the_page_s_script_is_one_whatever_the_machine_calls_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry of Windows may say `text/plain`, and a browser does not run that."""
    SQLiteStore(tmp_path / "runs.db").changes()
    monkeypatch.setattr(page, "serve_page", lambda *_, **__: None)
    types: Any = mimetypes.MimeTypes()
    types.add_type("text/plain", ".js")
    monkeypatch.setattr(mimetypes, "_db", types)
    assert main(["ui", "--store", str(tmp_path / "runs.db"), "--no-open"]) == 0
    assert mimetypes.guess_type("page.js") == ("text/javascript", None)
