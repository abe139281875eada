"""`ui_app`, a page for the runs in a store; `run_as_html`, one run as a file; `result_route`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ferrule.errors import ConfigurationError, checks_keywords

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.routing import Route

    from ferrule.runs.protocols import Program, Store
    from ferrule.web.app import UIApp

_PACKAGES = ("jinja2", "markdown_it", "starlette", "uvicorn")


@checks_keywords
def ui_app(
    store: Store,
    program: Program | None = None,
    *,
    people: Sequence[str] | Mapping[str, str] = ("",),
    allowed_hosts: Sequence[str] = (),
    read_only: bool = False,
    deps: Any = None,
    place: str = "",
) -> UIApp:
    """A web page for the runs in a store, as an ASGI application.

    `app.links` holds the link by which each person signs in. If the setting `result_links` is
    there, `POST /results/TOKEN` takes results from outside, unless the page only reads.

    Args:
        store: The store with the runs.
        program: A program to chat with. Its runs are resumed in threads of this process, with the
            settings in effect during this call.
        people: The names that decisions are recorded under; each gets a link. By default one link,
            and decisions without a name. Or roles by name: `{"ann": "administer", "bob": "read",
            "eve": "decide:Support,Billing"}`. Without a role, a person may do everything.
        allowed_hosts: Names under which the page is reached, besides those of this machine:
            `"runs.example.org"`, or with a port.
        read_only: Whether everything except reading is refused.
        deps: What the tools of `program` find in their `Context`.
        place: How a command line names the program, such as `agent.py:agent`: the page shows the
            command that resumes a run.

    Raises:
        ConfigurationError: The extra `ferrule[ui]` is not installed, a name appears twice in
            `people`, or `program` is not a program.

    """
    _check_installed()
    from ferrule.web.app import UIApp

    return UIApp(
        store,
        program,
        people=people,
        allowed_hosts=allowed_hosts,
        read_only=read_only,
        deps=deps,
        place=place,
    )


@checks_keywords
def result_route(
    store: Store, *, on_delivered: Callable[[str], Any] | None = None, path: str = "/results"
) -> Route:
    """A route that takes results from outside, `POST /results/TOKEN`, for a Starlette application.

    It is the other end of `Context.result_url`, whose address has the path `/results`; a proxy may
    change it to `path`. A result is recorded as `store.deliver` does. The answer tells the sender
    what happened; see docs/how-to/tools/result-urls.md.

    Args:
        store: The store with the runs.
        on_delivered: A function, sync or async, that continues the run with this id, such as by a
            task of a queue. It is called again if a result comes twice.
        path: The path before the token.

    Raises:
        ConfigurationError: Starlette is not installed, or the setting `result_links` is missing.

    """
    _check_installed("starlette")
    from ferrule.web.results import route_for_results

    return route_for_results(store, on_delivered, path)


def run_as_html(store: Store, run_id: str) -> str:
    """A run as one HTML file without JavaScript, to keep or to attach to a report."""
    _check_installed()
    from ferrule.web.reading import read_run
    from ferrule.web.render import FOLDER, fill_template

    sheet = (FOLDER / "static" / "page.css").read_text(encoding="utf-8")
    page = fill_template(
        "export.html",
        run=store.summary(run_id),
        read=read_run(store, run_id),
        MOST_SHOWN=sys.maxsize,
    )
    return page.replace("<!-- sheet -->", f"<style>{sheet}</style>", 1)


def _check_installed(*packages: str) -> None:
    missing = [name for name in packages or _PACKAGES if not _is_installed(name)]
    if missing:
        raise ConfigurationError(
            f"The page needs an extra (found no {missing[0]}): pip install 'ferrule[ui]'"
        )


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:
        # `sys.modules` has None, or a module without a specification, under the name.
        return sys.modules.get(name) is not None
