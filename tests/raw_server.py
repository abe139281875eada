"""A server that answers in bytes as it is told: for what a well-behaved server never does."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

Act = Callable[["Connection"], object]
OK = b'{"choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}'


def reply(body: bytes | str = OK, status: str = "200 OK", **headers: str) -> Act:
    """A whole answer."""
    content = body.encode() if isinstance(body, str) else body
    named = {
        "content-type": "application/json",
        "content-length": str(len(content)),
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    message = f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + content
    return lambda connection: connection.send(message)


def hang_up(connection: Connection) -> None:
    """Close without a word."""
    connection.close()


def say_nothing(connection: Connection) -> None:
    """Wait until the client goes away."""
    connection.wait_for_end()


def begin(content: bytes, *then: Act, content_type: str = "text/event-stream") -> Act:
    """The beginning of an answer without a stated length, then what else is to happen."""

    def act(connection: Connection) -> None:
        connection.send(
            f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n".encode(),
        )
        connection.send(b"%x\r\n%b\r\n" % (len(content), content))
        for each in then:
            each(connection)

    return act


def end(connection: Connection) -> None:
    """The proper end of an answer that was begun."""
    connection.send(b"0\r\n\r\n")


def whole(body: bytes, headers: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
    """A whole answer as it came, for `HTTPTransport.post`."""
    return body, headers


class Pieces:
    """A streamed answer that has begun with its first bytes, for `HTTPTransport.stream`."""

    is_done = False

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.first = b""

    def take(self, piece: bytes) -> bool:
        self.first = piece
        return True

    def end(self) -> None:
        pass


@dataclass
class Connection:
    """One connection of a client."""

    socket: socket.socket
    server: RawServer

    def send(self, content: bytes) -> None:
        self.socket.sendall(content)

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)

    def wait_for_end(self) -> None:
        self.server.waiting.set()
        while self.socket.recv(4096):
            pass
        self.server.client_left.set()


@dataclass
class RawServer:
    """What was asked, and what goes on."""

    acts: list[Act]
    listener: socket.socket
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    accepted: int = 0
    waiting: threading.Event = field(default_factory=threading.Event)
    client_left: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    sockets: list[socket.socket] = field(default_factory=list)

    base_url: str = ""

    def run(self) -> None:
        threads = []
        while True:
            try:
                accepted, _ = self.listener.accept()
            except OSError:
                break
            self.accepted += 1
            self.sockets.append(accepted)
            threads.append(threading.Thread(target=self.serve, args=(accepted,), daemon=True))
            threads[-1].start()
        for each in self.sockets:  # here, where none is accepted any more: one that came with the end would be read from for ever
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()

    def serve(self, accepted: socket.socket) -> None:
        with accepted, accepted.makefile("rb") as reader:
            try:
                while (request := read_request(reader)) is not None:
                    with self.lock:
                        self.requests.append(request)
                        act = self.acts.pop(0) if len(self.acts) > 1 else self.acts[0]
                    act(Connection(accepted, self))
            except OSError:
                pass
            finally:
                self.client_left.set()


def read_request(reader) -> tuple[dict[str, str], bytes] | None:
    if not reader.readline():
        return None
    headers = {}
    while line := reader.readline().strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    return headers, reader.read(int(headers.get("content-length", 0)))


@contextmanager
def raw_server(*acts: Act, tls: ssl.SSLContext | None = None) -> Iterator[RawServer]:
    """One act for each request, the last for all that follow."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}/v1"
    if tls is not None:
        listener = tls.wrap_socket(listener, server_side=True, do_handshake_on_connect=False)
    server = RawServer(list(acts), listener, base_url=f"http{'s' if tls else ''}://{address}")
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
