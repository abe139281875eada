"""For tests of programs that use ferrule: models that need no provider, a real server on loopback, and a closed door to the network.

`serve(lm)` answers OpenAI's chat completions over HTTP with any model of ferrule, in this process or in one of its own:
`python -m ferrule.testing --port 8000 --lm offline`. Standard library only.  (Floor 4.)
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import FerruleError, InputError
from ferrule.lms import openai_answer
from ferrule.lms.lm import LM, as_model
from ferrule.lms.openai_request import read_request
from ferrule.values.jsonable import json_bytes

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from ferrule.lms.lm import Model
    from ferrule.lms.offline import OfflineLM
    from ferrule.lms.replay import RecordLM, ReplayLM
    from ferrule.lms.scripted import AutoLM, ScriptedLM

__all__ = ["AutoLM", "NetworkBlocked", "OfflineLM", "RecordLM", "ReplayLM", "ScriptedLM", "Served", "block_network", "serve"]

_MODELS = {
    "AutoLM": "ferrule.lms.scripted",
    "OfflineLM": "ferrule.lms.offline",
    "RecordLM": "ferrule.lms.replay",
    "ReplayLM": "ferrule.lms.replay",
    "ScriptedLM": "ferrule.lms.scripted",
}


def __getattr__(name: str) -> Any:
    if name not in _MODELS:
        msg = f"module `ferrule.testing` has no attribute `{name}`"
        raise AttributeError(msg)
    return getattr(import_module(_MODELS[name]), name)


# -- a server ---------------------------------------------------------------------------------------------------


class Served:
    """A server that runs."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        """What an OpenAI client wants as its base URL; any key will do."""

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The bodies of the chat completions asked for, in order."""
        return self._server.bodies

    @property
    def connections(self) -> int:
        """How many connections were made so far: clients keep theirs open for the next request."""
        return self._server.accepted

    def lm(self, **settings: Any) -> LM:
        """A model of ferrule that asks this server."""
        settings.setdefault("model", "served")
        return LM(self.base_url, **settings)


@contextmanager
def serve(lm: Any, *, port: int = 0) -> Generator[Served]:
    """Answer OpenAI's chat completions on 127.0.0.1 with a model of ferrule, for a `with` block; port 0 takes a free one."""
    server = _Server(as_model(lm), port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="ferrule-serve", daemon=True)
    thread.start()
    try:
        yield Served(server)
    finally:
        server.shutdown()
        thread.join()
        server.hang_up()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = True
    request_queue_size = 512

    def __init__(self, lm: Model, port: int) -> None:
        self.lm = lm
        self.bodies: list[dict[str, Any]] = []
        self.accepted = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _Conversation)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self.accepted += 1
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away as they please; whatever else went wrong was answered with 500."""

    def hang_up(self) -> None:
        """End the connections that clients keep open: their threads wait for a next request."""
        with self._lock:
            for request in self._open:
                try:
                    request.shutdown(socket.SHUT_RDWR)
                except OSError:  # the client was faster
                    continue


class _Conversation(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave together
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]  it is served by no other

    def do_GET(self) -> None:
        """The list of models, which many clients ask for first."""
        if self.path.partition("?")[0].endswith("/models"):
            model = {"id": self.server.lm.name, "object": "model", "created": 0, "owned_by": "ferrule"}
            self._send(200, {"object": "list", "data": [model]})
        else:
            self._send(404, _problem(f"there is no {self.path}; this server knows /v1/models and /v1/chat/completions"))

    def do_POST(self) -> None:
        """A chat completion."""
        body = self._body()
        if body is None:
            self._send(411, _problem("a request needs a Content-Length"), last=True)
        elif not self.path.partition("?")[0].endswith("/chat/completions"):
            self._send(404, _problem(f"there is no {self.path}; this server knows /v1/models and /v1/chat/completions"))
        else:
            self._sent = is_answered = False
            try:
                self._complete(body)
                is_answered = True
            except FerruleError as error:
                is_answered = True
                self._fail(*openai_answer.error_body(error))
            finally:
                if not is_answered:  # the model raised something of its own, which goes on to `handle_error`
                    self._fail(500, _problem("the model failed", "server_error"))

    def _complete(self, body: bytes) -> None:
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError) as error:
            msg = f"the body is no JSON: {error}"
            raise InputError(msg) from error
        request = read_request(asked)
        self.server.bodies.append(asked)
        model = str(asked.get("model") or self.server.lm.name)
        if not asked.get("stream"):
            self._send(200, openai_answer.answer(self.server.lm.complete(request), model=model))
            return
        options = asked.get("stream_options")
        with_usage = isinstance(options, dict) and bool(cast("dict[str, Any]", options).get("include_usage"))
        stream = self.server.lm.stream(request)
        try:
            self._send_events(openai_answer.events(stream, model=model, with_usage=with_usage))
        finally:
            cast("Any", stream).close()

    def _body(self) -> bytes | None:
        length = self.headers.get("content-length", "")
        return self.rfile.read(int(length)) if length.isdecimal() else None

    def _send(self, status: int, body: dict[str, Any], *, last: bool = False) -> None:
        self._sent = True
        content = json_bytes(body)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if last:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def _send_events(self, events: Iterable[bytes]) -> None:
        for event in events:
            if not self._sent:  # only now is it known that the model answers at all
                self._sent = True
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
            self._chunk(event)
        self._chunk(b"")

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))
        self.wfile.flush()

    def _fail(self, status: int, body: dict[str, Any]) -> None:
        if not self._sent:
            self._send(status, body)
            return
        self._chunk(openai_answer.event(body))  # the status is out already: say it in the stream
        self._chunk(b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: tests have enough to read."""


def _problem(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": None}}


# -- no network -------------------------------------------------------------------------------------------------


class NetworkBlocked(RuntimeError):  # noqa: N818  reads as the reason it is
    """Something tried to leave this machine inside `block_network()`."""


_guards = threading.Lock()
_blocking = 0
_real: dict[str, Any] = {}


@contextmanager
def block_network() -> Generator[None]:
    """Refuse, in the whole process, connections to anywhere but loopback and Unix sockets, for a `with` block.

    It watches Python's `socket` module: an event loop written in C (uvloop) goes past it.
    """
    global _blocking  # noqa: PLW0603  what is blocked is the process
    with _guards:
        _blocking += 1
        if _blocking == 1:
            _close_door()
    try:
        yield
    finally:
        with _guards:
            _blocking -= 1
            if _blocking == 0:
                _open_door()


def _close_door() -> None:
    _real.update({name: socket.socket.__dict__.get(name) for name in ("connect", "connect_ex", "sendto")})
    _real["getaddrinfo"] = socket.getaddrinfo

    def guarded(name: str) -> Any:
        real = getattr(socket.socket, name)

        def connect(self: socket.socket, *args: Any) -> Any:
            address = args[-1] if args else None
            if self.family != getattr(socket, "AF_UNIX", None) and isinstance(address, tuple):
                _check(cast("tuple[Any, ...]", address)[0])
            return real(self, *args)

        return connect

    for name in ("connect", "connect_ex", "sendto"):
        setattr(socket.socket, name, guarded(name))
    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        _check(host)
        return look_up(host, *args, **kwargs)

    socket.getaddrinfo = getaddrinfo


def _open_door() -> None:
    socket.getaddrinfo = _real.pop("getaddrinfo")
    for name in ("connect", "connect_ex", "sendto"):
        own = _real.pop(name)
        if own is None:
            delattr(socket.socket, name)  # it was inherited
        else:
            setattr(socket.socket, name, own)


def _check(host: Any) -> None:
    from ipaddress import ip_address

    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if name is None or name in {"", "localhost"} or str(name).endswith(".localhost"):
        return
    try:
        address = ip_address(str(name).partition("%")[0])
    except ValueError:
        address = None
    if address is None or not (address.is_loopback or address.is_unspecified):
        msg = f"The network is blocked in this test, and something wanted to reach {name!r}. Use a model of `ferrule.testing`, or `serve`."
        raise NetworkBlocked(msg)


# -- a process of its own ---------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> None:
    """Serve until interrupted; the first line written is the base URL."""
    from argparse import ArgumentParser

    parser = ArgumentParser("python -m ferrule.testing", description="An OpenAI-compatible server on 127.0.0.1 that needs no key.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--lm", choices=["offline", "auto"], default="offline")
    chosen = parser.parse_args(arguments)
    lm = __getattr__({"offline": "OfflineLM", "auto": "AutoLM"}[chosen.lm])()
    with serve(lm, port=chosen.port) as served:
        sys.stdout.write(f"{served.base_url}\n")
        sys.stdout.flush()
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
