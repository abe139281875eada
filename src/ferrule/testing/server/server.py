"""`serve`: an HTTP server on loopback that answers with any model of ferrule.

It answers as an OpenAI-compatible provider would.

`ferrule ask` without a key uses it too, so that its requests go over HTTP like all others. Uses
only the standard library.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, Protocol, cast

from ferrule.encoding.encode import json_bytes
from ferrule.errors import FerruleError, InputError, shown
from ferrule.models.hosted import LM
from ferrule.models.model import as_model
from ferrule.net.loopback import refusal
from ferrule.testing.server import openai_chat

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from ferrule.models.model import Model
    from ferrule.models.wires.payload import Json
    from ferrule.values.conversation.exchange import Delta, Response

log = logging.getLogger("ferrule.testing")


class ServerProtocol(Protocol):
    """The server's side of one protocol. A module satisfies it, such as `openai_chat`."""

    def receive(self, body: Json, path: str) -> openai_chat.Received:
        """Read a request from a body; raises `InputError` that names the place of the problem."""
        ...

    def answer(self, response: Response, *, model: str) -> Json:
        """The body of a whole answer."""
        ...

    def events(
        self, items: Iterable[Delta | Response], *, model: str, with_usage: bool = False
    ) -> Iterator[bytes]:
        """A stream as server-sent events; calls come in pieces, as providers send them."""
        ...

    def error_body(self, error: FerruleError) -> tuple[int, Json]:
        """The status and the body for a model error or a bad request."""
        ...

    def error_event(self, body: Json) -> bytes:
        """An error body as an event of a stream."""
        ...


class Served:
    """A running server."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        """The base URL for an OpenAI client; it takes any key."""

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The bodies of the requests for answers, in order."""
        return self._server.bodies

    @property
    def bodies(self) -> list[bytes]:
        """The same bodies, as the bytes received."""
        return self._server.raw

    @property
    def connections(self) -> int:
        """How many connections clients have opened so far; they keep them open between requests."""
        return self._server.accepted

    def lm(self, **settings: Any) -> LM:
        """An `LM` that sends its requests to this server; takes the keywords of `LM`."""
        settings.setdefault("model", "served")
        return LM(self.base_url, **settings)


_MOST_DIGITS = 9
"""The most digits of a `Content-Length`."""
_PROTOCOLS: Mapping[str, ServerProtocol] = {"/chat/completions": openai_chat}


@contextmanager
def serve(
    lm: Any, *, port: int = 0, protocols: Mapping[str, ServerProtocol] = _PROTOCOLS
) -> Generator[Served]:
    """Serve a model of ferrule on 127.0.0.1, for a `with` block.

    Requests must name this machine in `Host` and, if a web page sends them, in `Origin`, as for an
    MCP server.

    Args:
        lm: The model: anything with `complete(request)`.
        port: The port; 0 chooses a free one.
        protocols: The protocols that the server speaks, by the end of a request's path. Default:
            OpenAI's chat completions.

    """
    server = _Server(as_model(lm), port, protocols)
    thread = threading.Thread(
        target=server.serve_forever,
        kwargs={"poll_interval": 0.02},
        name="ferrule-serve",
        daemon=True,
    )
    thread.start()
    try:
        yield Served(server)
    finally:
        server.shutdown()
        thread.join()
        server.hang_up()
        server.server_close()


class _Server(ThreadingHTTPServer):
    allow_reuse_address = os.name != "nt"  # on Windows it would share a port with another server
    daemon_threads = True
    block_on_close = True
    request_queue_size = 512

    def __init__(self, lm: Model, port: int, protocols: Mapping[str, ServerProtocol]) -> None:
        self.lm = lm
        self.protocols = protocols
        self.bodies: list[dict[str, Any]] = []
        self.raw: list[bytes] = []
        self.accepted = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _Conversation)

    def server_bind(self) -> None:
        """Bind without the base class's look-up of the machine's name.

        The look-up takes seconds if the network has no such name.
        """
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

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
        """Print nothing.

        A client may close its connection at any time, and other errors were answered with 500 and
        logged.
        """

    def hang_up(self) -> None:
        """Close the connections that clients keep open: their threads wait for the next request."""
        with self._lock:
            for request in self._open:
                try:
                    request.shutdown(socket.SHUT_RDWR)
                except OSError:  # the client has closed it
                    continue


class _Conversation(BaseHTTPRequestHandler):
    """Handles one connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # buffered: headers and body are sent together
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]  no other server uses this class

    def finish(self) -> None:
        """Close the connection.

        The base class leaves it open if the client left while the answer was still buffered.
        """
        with suppress(OSError):
            super().finish()
        self.rfile.close()

    def do_GET(self) -> None:
        """Send the list of models, which many clients request first."""
        if self._refuse():
            return
        # A body is not read: the connection cannot go on after it.
        has_body = (
            "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"
        )
        if self.path.partition("?")[0].endswith("/models"):
            model = {
                "id": self.server.lm.name,
                "object": "model",
                "created": 0,
                "owned_by": "ferrule",
            }
            self._send(200, {"object": "list", "data": [model]}, last=has_body)
        else:
            self._send(404, self._nowhere(), last=has_body)

    def do_POST(self) -> None:
        """Send an answer of the model, in the protocol that the path names."""
        if self._refuse():
            return
        body = self._body()
        if body is None:
            return
        protocol = self._protocol()
        if protocol is None:
            self._send(404, self._nowhere())
            return
        self._sent = is_answered = False
        try:
            self._complete(body, protocol)
            is_answered = True
        except FerruleError as error:
            is_answered = True
            self._fail(*protocol.error_body(error), protocol)
        finally:
            if not is_answered:  # the model raised another exception, or the client left
                exception_info = sys.exc_info()
                if not isinstance(exception_info[1], ConnectionError):
                    log.error(
                        "The model failed. The client reads only that it did.",
                        exc_info=exception_info,
                    )
                self._fail(500, _problem("the model failed", "server_error"), protocol)

    def _protocol(self) -> ServerProtocol | None:
        """The protocol that the end of the path names."""
        path = self.path.partition("?")[0]
        for ending, protocol in self.server.protocols.items():
            if path.endswith(ending):
                return protocol
        return None

    def _refuse(self) -> bool:
        """Refuse a request from a page of another host; returns whether it did."""
        refused = refusal(self.headers.get("Host"), self.headers.get("Origin"))
        if refused is not None:
            self._send(refused[0], _problem(refused[1]), last=True)
        return refused is not None

    def _complete(self, body: bytes, protocol: ServerProtocol) -> None:
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the body is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise InputError(f"a request is a JSON object, found {shown(parsed)}")
        received = protocol.receive(cast("dict[str, Any]", parsed), self.path)
        self.server.bodies.append(cast("dict[str, Any]", parsed))
        self.server.raw.append(body)
        model = received.model or self.server.lm.name
        if not received.stream:
            self._send(200, protocol.answer(self.server.lm.complete(received.request), model=model))
            return
        stream = self.server.lm.stream(received.request)
        try:
            self._send_events(protocol.events(stream, model=model, with_usage=received.with_usage))
        finally:
            cast("Any", stream).close()

    def _nowhere(self) -> dict[str, Any]:
        endings = ", ".join(self.server.protocols)
        return _problem(
            f"there is no {self.path}; this server knows /v1/models and paths that end in {endings}"
        )

    def _body(self) -> bytes | None:
        """Read the body. None if the request was refused.

        Without one definite length, it is unclear where the next request begins.
        """
        lengths: set[str] = {*self.headers.get_all("content-length", ())}
        length = ""
        if len(lengths) == 1 and "transfer-encoding" not in self.headers:
            length = lengths.pop()
        if not length.isdecimal():
            refused = 411, "a request needs one Content-Length, and no Transfer-Encoding"
        elif len(length) > _MOST_DIGITS:
            refused = 413, "the body is too large"
        else:
            body = self.rfile.read(int(length))
            if len(body) == int(length):
                return body
            refused = 400, "the body is shorter than its Content-Length"
        self._send(refused[0], _problem(refused[1]), last=True)
        return None

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
            if not self._sent:
                # Not before the first event: if the model fails until then, the client gets an
                # error status.
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

    def _fail(self, status: int, body: dict[str, Any], protocol: ServerProtocol) -> None:
        if not self._sent:
            self._send(status, body)
            return
        # The status has been sent: report the error in the stream.
        self._chunk(protocol.error_event(body))
        self._chunk(b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, so that the output of a test stays readable."""


def _problem(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": None}}
