"""The pathological server behind HTTP, for the fault suite: `mcp_raw_http.py RAW_SERVER FLAGS
http|sse PORT`.

It forwards JSON-RPC to a `raw_server.py` of its own, and starts that anew when it died. What a
call's argument `x` asks for happens on the level of HTTP: `http-STATUS` answers with that status,
`html` with a page, `drop` closes the connection unanswered, `half` in mid-answer. Sessions are
those of the child: after it was started anew, an old one is unknown (404; with the flag `sess400`,
400).
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RAW, FLAGS, KIND, PORT = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])


class Child:
    """One raw server, and who waits for its answers."""

    def __init__(self) -> None:
        self.session = uuid.uuid4().hex
        self.waiting: dict[object, queue.Queue[object]] = {}
        self.streams: list[queue.Queue[object]] = []
        self.process = subprocess.Popen(
            [sys.executable, RAW, FLAGS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            waiting = self.waiting.pop(message.get("id"), None) if "method" not in message else None
            for each in [waiting] if waiting is not None else self.streams:
                each.put(message)
        self.process.wait()
        for each in [*self.waiting.values(), *self.streams]:
            each.put(None)

    def write(self, message: dict[str, object]) -> None:
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except OSError:
            for each in self.waiting.values():
                each.put(None)


child = Child()
lock = threading.Lock()


def living() -> Child:
    global child
    with lock:
        if child.process.poll() is not None:
            child = Child()
        return child


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(
        self,
        status: int,
        body: bytes = b"",
        kind: str = "application/json",
        **headers: str,
    ) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def do_DELETE(self) -> None:
        self.answer(200)

    def do_GET(self) -> None:
        if KIND != "sse":
            self.answer(405)
            return
        mine: queue.Queue[object] = queue.Queue()
        at = living()
        at.streams.append(mine)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.close_connection = True
        self.wfile.write(b"event: endpoint\ndata: /messages\n\n")
        while (message := mine.get()) is not None:
            try:
                self.wfile.write(f"event: message\ndata: {json.dumps(message)}\n\n".encode())
            except OSError:
                break
        self.hang_up()

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        wish = (
            ((message.get("params") or {}).get("arguments") or {}).get("x", "")
            if message.get("method") == "tools/call"
            else ""
        )
        if self.wished(str(wish)):
            return
        at = living()
        session = self.headers.get("mcp-session-id")
        if session is not None and session != at.session:
            body = json.dumps(
                {
                    "jsonrpc": "2.0",
                    "id": "server-error",
                    "error": {"code": -32600, "message": "Session not found"},
                },
            )
            self.answer(
                *(
                    (400, b"no valid session", "text/plain")
                    if "sess400" in FLAGS
                    else (404, body.encode())
                ),
            )
            return
        if "id" not in message or "method" not in message or KIND == "sse":
            at.write(message)
            self.answer(202)
            return
        mine: queue.Queue[object] = queue.Queue()
        at.waiting[message["id"]] = mine
        at.write(message)
        found = mine.get()
        if found is None:
            self.hang_up()
        else:
            self.answer(
                200,
                json.dumps(found).encode(),
                **({"mcp_session_id": at.session} if message["method"] == "initialize" else {}),
            )

    def wished(self, wish: str) -> bool:
        if wish.startswith("http-"):
            self.answer(int(wish[5:]), b"busy", "text/plain", retry_after="7")
        elif wish == "html":
            self.answer(200, b"<html>log in first</html>", "text/html")
        elif wish == "drop":
            self.hang_up()
        elif wish == "half":
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b'{"jsonrpc": "2.0", ')
            self.hang_up()
        else:
            return False
        return True


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


Server(("127.0.0.1", PORT), Handler).serve_forever()
