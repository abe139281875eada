"""`serve`: an HTTP server on loopback that puts any model of ferrule behind a provider's protocol.

Tests use it to send real requests without a provider, and `ferrule ask` uses it without a key.
`serve` starts a thread that accepts connections; each connection has a thread of its own, in which
a `_Connection` answers its requests one after another. It checks a request, hands the body to a
`ServerProtocol` (OpenAI's chat completions by default), and sends what the protocol makes of the
model's response. It uses only the standard library.

An error before the first byte of a response becomes an error status. After it, the status is
already sent, so the error becomes the last event of the stream.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, Protocol, cast

from ferrule.encoding.encode import json_bytes
from ferrule.errors import FerruleError, InputError, checks_keywords, shown
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
    """The server's side of one protocol. A module can implement it, as `openai_chat` does."""

    def receive(self, body: Json, path: str) -> openai_chat.Received:
        """Read a request from a body. Raises `InputError`, which says where the problem is."""
        ...

    def answer(self, response: Response, *, model: str) -> Json:
        """The body of a whole answer."""
        ...

    def events(
        self, items: Iterable[Delta | Response], *, model: str, with_usage: bool = False
    ) -> Iterator[bytes]:
        """A stream as server-sent events. Tool calls come in pieces, as providers send them."""
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
        """The bodies of the requests for answers, in order, as JSON data."""
        return self._server.requests

    @property
    def bodies(self) -> list[bytes]:
        """The same bodies, as the bytes received."""
        return self._server.bodies

    @property
    def connections(self) -> int:
        """How many connections clients have opened so far; they keep them open between requests."""
        return self._server.accepted

    def lm(self, **settings: Any) -> LM:
        """An `LM` that sends its requests to this server; takes the keywords of `LM`."""
        settings.setdefault("model", "served")
        return LM(self.base_url, **settings)


_MOST_LENGTH_DIGITS = 9
"""The most digits of a `Content-Length`: a body has less than 1 GB. Digits are counted before they
are read as a number, because `int` is slow, or raises, for thousands of them."""
_NEEDS_LENGTH = "a request needs one Content-Length, and no Transfer-Encoding"
_PROTOCOLS: Mapping[str, ServerProtocol] = {"/chat/completions": openai_chat}


@contextmanager
@checks_keywords
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
        # `shutdown` waits for one interval at most; the default of 0.5 s would slow every test.
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
    """Accepts connections, and records the requests of all of them."""

    allow_reuse_address = os.name != "nt"  # on Windows it would share a port with another server
    request_queue_size = 512  # the default of 5 refuses clients that connect at the same time

    def __init__(self, lm: Model, port: int, protocols: Mapping[str, ServerProtocol]) -> None:
        self.lm = lm
        self.protocols = protocols
        self.requests: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.accepted = 0
        self._open_sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        """Guards `accepted` and `_open_sockets`, which the threads of all connections change."""
        super().__init__(("127.0.0.1", port), _Connection)

    def server_bind(self) -> None:
        """Bind without the base class's look-up of the machine's name.

        The look-up takes seconds if the network has no such name.
        """
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    # A `request` of the base class is the socket of a connection.

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a new connection."""
        with self._lock:
            self.accepted += 1
            self._open_sockets.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open_sockets.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing, unlike the base class, when a connection's thread ends with an error.

        `do_POST` has logged the error, or the client has closed its connection, which it may do at
        any time.
        """

    def hang_up(self) -> None:
        """Close the connections that clients keep open: their threads wait for the next request."""
        with self._lock:
            for connection in self._open_sockets:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:  # the client has closed it
                    continue


class _Connection(BaseHTTPRequestHandler):
    """Answers the requests of one connection, one after another."""

    protocol_version = "HTTP/1.1"  # the connection stays open after a response
    disable_nagle_algorithm = True
    wbufsize = -1  # buffered: headers and body are sent together
    # No other server uses this class.
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def finish(self) -> None:
        """Close the connection.

        The base class leaves it open if the client left while the answer was still buffered.
        """
        with suppress(OSError):
            super().finish()
        self.rfile.close()

    def do_GET(self) -> None:
        """Send the list of models, which many clients request first."""
        if self._refuse_foreign_page():
            return
        # A body is not read, so its bytes would be taken for the next request.
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
            self._send(200, {"object": "list", "data": [model]}, is_last=has_body)
        else:
            self._send(404, self._not_found(), is_last=has_body)

    def do_POST(self) -> None:
        """Send an answer of the model, in the protocol that the path names."""
        if self._refuse_foreign_page():
            return
        body = self._read_body()
        if body is None:
            return
        protocol = self._protocol()
        if protocol is None:
            self._send(404, self._not_found())
            return
        self._has_begun = False
        try:
            self._complete(body, protocol)
        except FerruleError as error:
            status, error_body = protocol.error_body(error)
            self._fail(status, error_body, protocol)
        except BaseException as error:
            # The model raised another exception, or the client left. Raised again, it ends the
            # connection: nothing is known about how much of the response was sent.
            if not isinstance(error, ConnectionError):
                log.exception("The model failed. The client reads only that it did.")
            self._fail(500, _problem("the model failed", "server_error"), protocol)
            raise

    def _protocol(self) -> ServerProtocol | None:
        """The protocol that the end of the path names."""
        path = self.path.partition("?")[0]
        for ending, protocol in self.server.protocols.items():
            if path.endswith(ending):
                return protocol
        return None

    def _refuse_foreign_page(self) -> bool:
        """Answer a request from a page of another host with an error; returns whether it was one.

        Otherwise any page that a browser opens could use the model.
        """
        refused = refusal(self.headers.get("Host"), self.headers.get("Origin"))
        if refused is None:
            return False
        status, reason = refused
        self._send(status, _problem(reason), is_last=True)
        return True

    def _complete(self, body: bytes, protocol: ServerProtocol) -> None:
        """Record a request, ask the model, and send its response."""
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the body is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise InputError(f"a request is a JSON object, found {shown(parsed)}")
        received = protocol.receive(cast("dict[str, Any]", parsed), self.path)
        self.server.requests.append(cast("dict[str, Any]", parsed))
        self.server.bodies.append(body)
        model = received.model or self.server.lm.name
        if not received.stream:
            self._send(200, protocol.answer(self.server.lm.complete(received.request), model=model))
            return
        stream = self.server.lm.stream(received.request)
        try:
            self._send_events(protocol.events(stream, model=model, with_usage=received.with_usage))
        finally:
            cast("Any", stream).close()  # if the client left, the model stops here

    def _not_found(self) -> dict[str, Any]:
        endings = ", ".join(self.server.protocols)
        return _problem(
            f"there is no {self.path}; this server knows /v1/models and paths that end in {endings}"
        )

    def _read_body(self) -> bytes | None:
        """Read the body. If its length is unclear, answer with an error and return None.

        Without one definite length, it is unclear where the next request begins, so the connection
        ends with that answer.
        """
        # The header may be repeated, but only with the same value (RFC 9110, section 8.6).
        lengths = set(self.headers.get_all("content-length", ()))
        if len(lengths) != 1 or "transfer-encoding" in self.headers:
            return self._refuse_body(411, _NEEDS_LENGTH)
        length = lengths.pop()
        if not length.isdecimal():
            return self._refuse_body(411, _NEEDS_LENGTH)
        if len(length) > _MOST_LENGTH_DIGITS:
            return self._refuse_body(413, "the body is too large")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            return self._refuse_body(400, "the body is shorter than its Content-Length")
        return body

    def _refuse_body(self, status: int, reason: str) -> None:
        self._send(status, _problem(reason), is_last=True)

    def _send(self, status: int, body: dict[str, Any], *, is_last: bool = False) -> None:
        """Send a whole response. `is_last` closes the connection after it."""
        self._has_begun = True
        content = json_bytes(body)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if is_last:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def _send_events(self, events: Iterable[bytes]) -> None:
        for event in events:
            # The status waits for the first event, so that a model that fails before it is
            # answered with an error status.
            if not self._has_begun:
                self._has_begun = True
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
            self._send_chunk(event)
        self._send_chunk(b"")  # ends the response

    def _send_chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))
        self.wfile.flush()

    def _fail(self, status: int, body: dict[str, Any], protocol: ServerProtocol) -> None:
        """Report an error: with its status, or in the stream if that has begun."""
        if not self._has_begun:
            self._send(status, body)
            return
        self._send_chunk(protocol.error_event(body))
        self._send_chunk(b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, so that the output of a test stays readable."""


def _problem(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": None}}
