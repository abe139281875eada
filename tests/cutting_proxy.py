"""A TCP proxy on loopback that cuts connections between a client and its server, at a chosen
moment.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class CuttingProxy:
    """Listens on `port`. It cuts when told to, and counts what the client sends."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.requests = 0
        """How many times a client sent something."""
        self.cuts_answers = 0
        """How many more answers are lost with their connections: the server has done what was
        asked.
        """
        self.cuts_requests = 0
        """How many more requests are lost with their connections: the server does not hear of them.
        """
        self.is_down = False
        """Refuse new connections."""
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.is_down:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                pair = (client, server)
                with self._lock:
                    self._pairs.add(pair)
                threading.Thread(target=self._requests, args=(pair,), daemon=True).start()
                threading.Thread(target=self._answers, args=(pair,), daemon=True).start()

    def _requests(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, server = pair
        with suppress(OSError):
            while data := client.recv(1 << 16):
                self.requests += 1
                if self.cuts_requests:
                    self.cuts_requests -= 1
                    break
                server.sendall(data)
        self._end(pair)

    def _answers(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, server = pair
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if self.cuts_answers:
                    self.cuts_answers -= 1
                    break
                client.sendall(data)
        self._end(pair)

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
        for each in pair:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def cut(self) -> None:
        """Cut all connections."""
        for pair in list(self._pairs):
            self._end(pair)

    def close(self) -> None:
        self._listener.close()
        self.cut()
