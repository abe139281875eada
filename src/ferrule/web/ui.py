"""`ui_app`: the page over a store, for any ASGI server."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ferrule.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferrule.runs.protocols import Store
    from ferrule.web.app import UIApp

_PACKAGES = ("jinja2", "starlette", "uvicorn")


def ui_app(store: Store, *, people: Sequence[str] = ("",), allowed_hosts: Sequence[str] = (), read_only: bool = False) -> UIApp:
    """The page over a store, as an ASGI application for any server. `app.links` holds each person's link.

    Args:
        store: The store with the runs.
        people: The names that decisions are signed with; each gets a link.
        allowed_hosts: Names under which the page is reached, beside this machine's own: `"runs.example.org"`, or with a port.
        read_only: Whether every decision is refused.

    Raises:
        ConfigurationError: The extra `ferrule[ui]` is not installed, or a name stands twice in `people`.

    """
    _check_installed()
    from ferrule.web.app import UIApp

    return UIApp(store, people=people, allowed_hosts=allowed_hosts, read_only=read_only)


def run_as_html(store: Store, run_id: str) -> str:
    """A run as one HTML file without script: to keep, or to attach to a report."""
    _check_installed()
    from ferrule.web.reading import read_run
    from ferrule.web.render import FOLDER, fill_template

    sheet = (FOLDER / "static" / "page.css").read_text(encoding="utf-8")
    page = fill_template("export.html", run=store.summary(run_id), read=read_run(store, run_id), MOST_SHOWN=sys.maxsize)
    return page.replace("<!-- sheet -->", f"<style>{sheet}</style>", 1)


def _check_installed() -> None:
    missing = [name for name in _PACKAGES if not _is_installed(name)]
    if missing:
        raise ConfigurationError(f"The page needs an extra (found no {missing[0]}): pip install 'ferrule[ui]'")


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # somebody put None, or a module without a specification, in its place
        return sys.modules.get(name) is not None
