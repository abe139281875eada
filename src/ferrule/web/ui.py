"""`ui_app`: the page over a store, for any ASGI server."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ferrule.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferrule.runs.protocols import Program, Store
    from ferrule.web.app import UIApp

_PACKAGES = ("jinja2", "starlette", "uvicorn")


def ui_app(
    store: Store, program: Program | None = None, *, people: Sequence[str] = ("",), allowed_hosts: Sequence[str] = (),
    read_only: bool = False, deps: Any = None, place: str = "",
) -> UIApp:  # fmt: skip
    """The page over a store, as an ASGI application for any server. `app.links` holds each person's link.

    Args:
        store: The store with the runs.
        program: A program to chat with, and to resume its runs here, in threads of this process with the settings of this call.
        people: The names that decisions are signed with; each gets a link.
        allowed_hosts: Names under which the page is reached, beside this machine's own: `"runs.example.org"`, or with a port.
        read_only: Whether every decision is refused.
        deps: What the tools of `program` find in their `Context`.
        place: What a command line calls the program, such as `agent.py:agent`; for the command that resumes a run elsewhere.

    Raises:
        ConfigurationError: The extra `ferrule[ui]` is not installed, a name stands twice in `people`, or `program` is none.

    """
    _check_installed()
    from ferrule.web.app import UIApp

    return UIApp(store, program, people=people, allowed_hosts=allowed_hosts, read_only=read_only, deps=deps, place=place)


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
    except ValueError:  # `sys.modules` has None, or a module without a specification, under the name
        return sys.modules.get(name) is not None
