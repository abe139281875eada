"""The page over a store as an ASGI application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles

from ferrule.errors import ConfigurationError
from ferrule.web.deciding import Deciding
from ferrule.web.guard import PageGuard, Refused
from ferrule.web.live import Watch
from ferrule.web.pages import Pages
from ferrule.web.render import FOLDER, refusal_page
from ferrule.web.sessions import Sessions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferrule.runs.protocols import Store


class UIApp(PageGuard):
    """The page over a store. Open it by a person's link."""

    def __init__(self, store: Store, *, people: Sequence[str] = ("",), allowed_hosts: Sequence[str] = (), read_only: bool = False) -> None:
        if not people or len(set(people)) != len(people):
            raise ConfigurationError(f"`people` are the names of those who decide, each once; found {list(people)!r}.")
        self.sessions = Sessions(people)
        self.watch = Watch(store)
        title = getattr(store, "path", type(store).__name__)
        pages = Pages(store, self.watch, title=str(title), is_read_only=read_only)
        super().__init__(_routes(pages), self.sessions, allowed_hosts=allowed_hosts, is_read_only=read_only, refuse=refusal_page)

    @property
    def links(self) -> dict[str, str]:
        """Each person's path with the token: `/?token=...`. It opens the page once the address of the server is before it."""
        return {person: f"/?token={token}" for person, token in self.sessions.links.items()}


def _routes(pages: Pages) -> Any:
    deciding = Deciding(pages)

    def post(path: str, answer: Any) -> Route:
        return Route(path, answer, methods=["POST"])

    routes = [
        Route("/", pages.runs),
        Route("/live", pages.runs_live),
        Route("/inbox", pages.inbox),
        Route("/inbox/live", pages.inbox_live),
        Route("/runs/{id}", pages.run),
        Route("/runs/{id}/live", pages.run_live),
        Route("/runs/{id}/text/{first:int}/{what}", pages.text),
        Route("/runs/{id}/picture/{first:int}/{call:int}/{part:int}", pages.picture),
        post("/runs/{id}/questions/{question}", deciding.decide),
        post("/runs/{id}/cancel", deciding.cancel),
        Mount("/static", StaticFiles(directory=FOLDER / "static")),
    ]

    async def missing(*_: Any) -> None:
        raise Refused(404, "There is no such page.")

    return Router(routes, redirect_slashes=False, default=missing)
