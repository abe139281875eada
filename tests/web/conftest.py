"""The page over a store of every kind of run, on a real server.

Without `ferrule[ui]` there is nothing to test here.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def pytest_pycollect_makemodule(module_path: Any, parent: Any) -> Any:
    """Without the extra, each file is skipped, and not imported: they import the packages."""
    missing = [
        each
        for each in ("jinja2", "markdown_it", "starlette", "uvicorn")
        if find_spec(each) is None
    ]
    return SkippedFile.from_parent(parent, path=module_path) if missing else None


class SkippedFile(pytest.Module):
    """A file of tests that needs `ferrule[ui]`."""

    def collect(self) -> Any:
        pytest.skip(
            "the page needs ferrule[ui]: pip install 'ferrule[ui]'",
            allow_module_level=True,
        )


@pytest.fixture(scope="session")
def filled_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a store of every kind of run: it takes longer to make than most tests with it."""
    from page_store import fill

    from ferrule import SQLiteStore

    path = tmp_path_factory.mktemp("page") / "runs.db"
    with SQLiteStore(path, full_sync=False) as made:
        fill(made)
    return path


@pytest.fixture
def store(tmp_path: Path, filled_file: Path) -> Iterator[Any]:
    from ferrule import SQLiteStore

    shutil.copy(filled_file, tmp_path / "runs.db")
    made = SQLiteStore(tmp_path / "runs.db", full_sync=False)
    yield made
    made.close()


@pytest.fixture
def app(store: Any) -> Any:
    from ferrule.web.ui import ui_app

    return ui_app(store, people=["ann", "bob"])


@pytest.fixture
def address(app: Any) -> Iterator[str]:
    from page_server import served

    with served(app) as found:
        yield found


@pytest.fixture
def ann(app: Any, address: str) -> Any:
    from page_server import Client

    return Client(address, app.links["ann"])


@pytest.fixture
def bob(app: Any, address: str) -> Any:
    from page_server import Client

    return Client(address, app.links["bob"])
