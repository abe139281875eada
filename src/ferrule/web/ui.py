"""`ui_app`: the page over a store, for any ASGI server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferrule.runs.protocols import Store
    from ferrule.web.app import UIApp

_PACKAGES = frozenset({"jinja2", "starlette", "uvicorn"})


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
    try:
        import jinja2  # noqa: F401  # pyright: ignore[reportUnusedImport]  needed by the first page
        import uvicorn  # noqa: F401  # pyright: ignore[reportUnusedImport]  the same, by `ferrule ui`

        from ferrule.web.app import UIApp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise ConfigurationError("The page needs an extra: pip install 'ferrule[ui]'") from error
    return UIApp(store, people=people, allowed_hosts=allowed_hosts, read_only=read_only)
