"""The page over a store as an ASGI application, and its own server: a free port, and an end soon after Ctrl-C."""

from __future__ import annotations

import asyncio
from errno import EACCES, EADDRINUSE
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles

from ferrule.errors import ConfigurationError
from ferrule.net.sockets import listening_socket, url_host
from ferrule.web.deciding import Chat, Deciding
from ferrule.web.guard import PageGuard, Refused, Sessions
from ferrule.web.live import Watch
from ferrule.web.pages import Pages
from ferrule.web.render import FOLDER, refusal_page

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from starlette.responses import Response

    from ferrule.runs.protocols import Store
    from ferrule.web.work import Work

_PORTS = 50
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_OF_ADMINISTRATORS = range(1, 1024)


class _Number(IntegerConvertor):
    regex = "[0-9]{1,18}"  # Python reads no number of thousands of digits, and no store has more than 63 bits for one


register_url_convertor("ferrule_number", _Number())


class UIApp(PageGuard):
    """The page over a store. Open it by a person's link."""

    def __init__(
        self, store: Store, program: Any = None, *, people: Sequence[str] = ("",), allowed_hosts: Sequence[str] = (),
        read_only: bool = False, deps: Any = None, place: str = "",
    ) -> None:  # fmt: skip
        if not people or len(set(people)) != len(people):
            raise ConfigurationError(
                f"`people` are the names of those who decide, each once; found {list(people)!r}.",
            )
        self.sessions = Sessions(people)
        self.work: Work | None = None
        if program is not None:
            from ferrule.web.work import (
                Work,
                check_program,
            )  # late: a page without a program needs none of what executes one

            check_program(program)
            self.work = Work(store, program, deps=deps, place=place)
        self.watch = Watch(store, self.work)
        title = getattr(store, "path", type(store).__name__)
        self.pages = Pages(
            store,
            self.watch,
            title=str(title),
            work=self.work,
            is_read_only=read_only,
        )
        super().__init__(
            _routes(self.pages),
            self.sessions,
            allowed_hosts=allowed_hosts,
            is_read_only=read_only,
            refuse=refusal_page,
        )

    @property
    def links(self) -> dict[str, str]:
        """Each person's path with the token: `/?token=...`. It opens the page once the address of the server is before it."""
        return {person: f"/?token={token}" for person, token in self.sessions.links.items()}


def serve_page(
    app: UIApp,
    *,
    host: str,
    port: int,
    on_listening: Callable[[dict[str, str]], Any],
) -> None:
    """Serve until Ctrl-C. `on_listening` gets the link of each person."""
    import uvicorn  # late: half of what the page imports, and not needed under another server

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.watch.close()  # open streams never end by themselves
            await super().shutdown(sockets)

    with _listening_socket(host, port) as taken:
        address = f"http://{url_host(host)}:{taken.getsockname()[1]}"
        on_listening({person: address + link for person, link in app.links.items()})
        # No access log: it would hold the tokens.
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            lifespan="off",
            proxy_headers=False,
        )
        asyncio.run(Server(config).serve(sockets=[taken]))


def _routes(pages: Pages) -> Any:
    deciding = Deciding(pages)
    chat = Chat(pages, pages.work) if pages.work is not None and pages.can_chat else None

    def post(path: str, answer: Any) -> Route:
        return Route(path, answer, methods=["POST"])

    routes = [
        Route("/", pages.runs),
        Route("/live", pages.runs_live),
        Route("/inbox", pages.inbox),
        Route("/inbox/live", pages.inbox_live),
        Route("/runs/{id}", pages.run),
        Route("/runs/{id}/live", pages.run_live),
        Route("/runs/{id}/text/{first:ferrule_number}/{what}", pages.text),
        Route(
            "/runs/{id}/picture/{first:ferrule_number}/{call:ferrule_number}/{part:ferrule_number}",
            pages.picture,
        ),
        post("/runs/{id}/questions/{question}", deciding.decide),
        post("/runs/{id}/cancel", deciding.cancel),
        post("/runs/{id}/resume", deciding.resume),
        Mount("/static", _Files(directory=FOLDER / "static")),
    ]

    if chat is not None:
        routes[:0] = [
            Route("/chat", chat.begin),
            post("/chat", chat.send),
            Route("/chat/{id}", chat.turn),
            post("/chat/{id}", chat.send),
        ]

    async def missing(*_: Any) -> None:
        raise Refused(404, "There is no such page.")

    return Router(routes, redirect_slashes=False, default=missing)


class _Files(StaticFiles):
    """The page's own files, with MIME types of their own: programs change those of Windows, and browsers run no script of another type."""

    def file_response(self, full_path: Any, *args: Any, **more: Any) -> Response:
        """The file, or that it has not changed."""
        found = super().file_response(full_path, *args, **more)
        if "content-type" in found.headers:
            found.headers["content-type"] = _TYPES[Path(full_path).suffix]
        return found


def _listening_socket(host: str, port: int) -> socket.socket:
    """A socket on this port, or on the next free one."""
    for each in range(port, port + _PORTS) if port else (0,):
        try:
            return listening_socket(host, each)
        except ConfigurationError as error:
            # Windows refuses ports that it keeps for virtual machines, or that a program has for
            # itself alone, with EACCES.
            taken = {EADDRINUSE} if each in _OF_ADMINISTRATORS else {EADDRINUSE, EACCES}
            if (
                each in {0, port + _PORTS - 1}
                or getattr(error.__cause__, "errno", None) not in taken
            ):
                raise
    raise AssertionError  # the last port returned or raised
