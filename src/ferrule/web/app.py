"""The page over a store as an ASGI application; and its server, which ends soon after Ctrl-C."""

from __future__ import annotations

import asyncio
from errno import EACCES, EADDRINUSE
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.routing import Match, Mount, Route, Router
from starlette.staticfiles import StaticFiles

from ferrule.errors import ConfigurationError
from ferrule.net.sockets import listening_socket, url_host
from ferrule.settings import setting
from ferrule.web import guard
from ferrule.web.deciding import Chat, Deciding
from ferrule.web.guard import PageGuard, Refused, Sessions
from ferrule.web.lists import Lists
from ferrule.web.live import Watch
from ferrule.web.pages import Pages
from ferrule.web.people import read_people
from ferrule.web.render import FOLDER, refusal_page
from ferrule.web.results import route_for_results

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from starlette.responses import Response

    from ferrule.runs.protocols import Store
    from ferrule.web.people import Right
    from ferrule.web.work import Work

_PORTS = 50
"""How many ports are tried, from the one that was asked for."""
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PORTS_OF_ADMINISTRATORS = range(1, 1024)


class _Number(IntegerConvertor):
    # Python reads no number of thousands of digits, and no store has more than 63 bits for one.
    regex = "[0-9]{1,18}"


register_url_convertor("ferrule_number", _Number())


class UIApp(PageGuard):
    """The page over a store. Open it by a person's link."""

    def __init__(
        self,
        store: Store,
        program: Any = None,
        *,
        people: Sequence[str] | Mapping[str, str] = ("",),
        allowed_hosts: Sequence[str] = (),
        read_only: bool = False,
        deps: Any = None,
        place: str = "",
    ) -> None:
        persons = read_people(people)
        self.sessions = Sessions(list(persons))
        self.work: Work | None = None
        if program is not None:
            # Imported here: a page without a program needs nothing that executes one.
            from ferrule.web.work import Work, check_program

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
            people=persons,
        )
        deciding = Deciding(self.pages)
        self._results: Route | None = None
        if setting("result_links") is not None and not read_only:
            self._results = route_for_results(store, deciding.go_on_after_result)
        super().__init__(
            _routes(self.pages, deciding),
            self.sessions,
            allowed_hosts=allowed_hosts,
            is_read_only=read_only,
            refuse=refusal_page,
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        # Not from a browser: the token alone says who may post a result.
        if self._results is not None and scope["type"] == "http":
            match, child_scope = self._results.matches(scope)
            if match is not Match.NONE:
                scope.update(child_scope)  # not a copy: the server logs the path in it
                await self._results.handle(scope, receive, send)
                return
        await super().__call__(scope, receive, send)

    @property
    def links(self) -> dict[str, str]:
        """A new path with a token for each person: `/?token=...`.

        After the address of the server, it opens the page in one browser: a token is used once.
        """
        return {person: f"/?token={token}" for person, token in self.sessions.links.items()}


def impatient_protocol() -> Any:
    """Uvicorn's protocol, which closes a connection whose request does not arrive in time.

    uvicorn itself waits without end for the rest of the headers.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        _timer: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # After its headers, the app waits for the rest of a request.
            if self.conn.their_state is h11.IDLE:
                self._wait()
            else:
                self._stop_waiting()

        def _wait(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(guard.PATIENCE_S, self._give_up)

        def _stop_waiting(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _give_up(self) -> None:
            self._timer = None
            is_idle = self.conn.their_state is h11.IDLE and self.conn.our_state is h11.IDLE
            if is_idle and not self.transport.is_closing():
                self.transport.close()

    return Impatient


def serve_page(
    app: UIApp, *, host: str, port: int, on_listening: Callable[[dict[str, str]], Any]
) -> None:
    """Serve until Ctrl-C. `on_listening` gets the link of each person."""
    # Imported here: it is half of what the page imports, and not needed under another server.
    import uvicorn

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.watch.close()  # open streams never end by themselves
            await super().shutdown(sockets)

    with _listening_socket(host, port) as listener:
        address = f"http://{url_host(host)}:{listener.getsockname()[1]}"
        on_listening({person: address + link for person, link in app.links.items()})
        # No access log: it would hold the tokens.
        config = uvicorn.Config(
            app,
            http=impatient_protocol(),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            lifespan="off",
            proxy_headers=False,  # a header would say who connects, and over what
        )
        asyncio.run(Server(config).serve(sockets=[listener]))


def _routes(pages: Pages, deciding: Deciding) -> Any:
    def post(path: str, answer: Any, needs: Right) -> Route:
        return Route(path, pages.permitted(answer, needs), methods=["POST"])

    lists = Lists(pages)
    routes = [
        Route("/", lists.runs),
        Route("/live", lists.runs_live),
        Route("/overview", lists.overview),
        Route("/compare", lists.compare),
        Route("/evaluations", lists.evaluations),
        Route("/runs.csv", lists.csv),
        Route("/runs.json", lists.json),
        Route("/views", lists.save_view, methods=["POST"]),
        Route("/inbox", pages.inbox),
        Route("/inbox/live", pages.inbox_live),
        Route("/waiting", pages.waiting),
        Route("/runs/{id}", pages.run),
        Route("/runs/{id}/live", pages.run_live),
        Route("/runs/{id}/request/{first:ferrule_number}", pages.model_request),
        Route("/runs/{id}/text/{first:ferrule_number}/{what}", pages.text),
        Route(
            "/runs/{id}/picture/{first:ferrule_number}/{call:ferrule_number}/{part:ferrule_number}",
            pages.picture,
        ),
        Route("/inbox/review", pages.review),
        post("/inbox/review", deciding.decide_many, "decide"),
        Route("/runs/{id}/cancel", deciding.ask_to_cancel),
        Route("/runs/{id}/again", deciding.ask_to_fork),
        post("/runs/{id}/questions/{question}", deciding.decide, "decide"),
        post("/runs/{id}/assign", deciding.assign, "decide"),
        post("/runs/{id}/note", deciding.add_note, "decide"),
        post("/runs/{id}/say", deciding.say, "administer"),
        post("/runs/{id}/cancel", deciding.cancel, "administer"),
        post("/runs/{id}/fork", deciding.fork, "administer"),
        post("/runs/{id}/cancel-call", deciding.cancel_call, "administer"),
        post("/runs/{id}/resume", deciding.resume, "administer"),
        Mount("/static", _Files(directory=FOLDER / "static")),
    ]

    if pages.work is not None and pages.can_chat:
        chat = Chat(pages, pages.work)
        routes += [
            Route("/chat", chat.begin),
            post("/chat", chat.send, "administer"),
            Route("/chat/{id}", chat.turn),
            post("/chat/{id}", chat.send, "administer"),
        ]

    async def missing(*_: Any) -> None:
        raise Refused(404, "There is no such page.")

    return Router(routes, redirect_slashes=False, default=missing)


class _Files(StaticFiles):
    """The page's own files, with fixed MIME types.

    Programs change the types that Windows knows, and browsers run no script of another type.
    """

    def file_response(self, full_path: Any, *args: Any, **more: Any) -> Response:
        """The file, or that it has not changed."""
        response = super().file_response(full_path, *args, **more)
        if "content-type" in response.headers:
            response.headers["content-type"] = _TYPES[Path(full_path).suffix]
        return response


def _listening_socket(host: str, port: int) -> socket.socket:
    """A socket on this port, or on the next free one."""
    if port == 0:
        return listening_socket(host, 0)
    last = port + _PORTS - 1
    for candidate in range(port, last):
        try:
            return listening_socket(host, candidate)
        except ConfigurationError as error:
            if not _is_taken(candidate, error):
                raise
    return listening_socket(host, last)


def _is_taken(port: int, error: ConfigurationError) -> bool:
    errno = getattr(error.__cause__, "errno", None)
    # Windows refuses ports that it keeps for virtual machines, or that a program has for itself
    # alone, with EACCES.
    if errno == EACCES:
        return port not in _PORTS_OF_ADMINISTRATORS
    return errno == EADDRINUSE
