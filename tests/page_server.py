"""Chromium for the tests of the page, and the page served for it."""

from __future__ import annotations

import html
import http.client
import os
import shutil
import socket
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import uvicorn

from ferrule.web.app import impatient_protocol

if TYPE_CHECKING:
    from collections.abc import Generator

FLAGS = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    *(["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []),
]  # fmt: skip


def find_chromium() -> str:
    """The browser of the distribution, or the one that `FERRULE_CHROMIUM` names.

    Exits if there is none.
    """
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("FERRULE_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        sys.exit(
            "There is no Chromium here. Install the distribution's (apt-get install chromium), or name one in FERRULE_CHROMIUM.",
        )
    return found


@contextmanager
def served(app: Any, port: int = 0) -> Generator[str]:
    """The app on a port of this machine; yields its address."""
    if hasattr(app, "watch"):
        app.watch.is_closed = False
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=impatient_protocol(),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        ),
    )
    with socket.create_server(("127.0.0.1", port)) as taken:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{taken.getsockname()[1]}"
        finally:
            if hasattr(app, "watch"):
                app.watch.close()
            server.should_exit = True
            thread.join(10)


@contextmanager
def browser() -> Generator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=find_chromium(),
            args=FLAGS,
            headless=True,
        )
        try:
            yield found
        finally:
            found.close()


class Client:
    """A browser by hand: one cookie, and every header as the test wants it."""

    def __init__(self, address: str, link: str = "") -> None:
        self.address = address
        self.host = address.removeprefix("http://")
        self.cookie = self.csrf = ""
        if link:
            answer = self.send("GET", link)
            assert answer.status == 303, answer.text
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
            self.csrf = _between(self.get("/").text, 'name="csrf" value="', '"') or ""

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        **headers: str | None,
    ) -> Answer:
        """One request. A header that is None is left out; names have `_` for `-`."""
        given = {
            "host": self.host,
            **({"cookie": self.cookie} if self.cookie else {}),
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        connection = http.client.HTTPConnection(*self.host.split(":"), timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                if value is not None:
                    connection.putheader(name, value)
            if body is not None and "content-length" not in given:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            return Answer(
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                response.read(),
            )
        finally:
            connection.close()

    def get(self, path: str, **headers: str | None) -> Answer:
        return self.send("GET", path, **headers)

    def post(
        self,
        path: str,
        form: dict[str, str] | None = None,
        *,
        page: str = "/inbox",
        **headers: str | None,
    ) -> Answer:
        """A form of a page of ours, unless the headers say otherwise."""
        if not self.csrf:
            self.csrf = _between(self.get(page).text, 'name="csrf" value="', '"') or ""
        body = urlencode({"csrf": self.csrf, **(form or {})}).encode()
        given: dict[str, str | None] = {
            "origin": self.address,
            "content_type": "application/x-www-form-urlencoded",
            **headers,
        }
        return self.send("POST", path, body, **given)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return html.unescape(self.body.decode("utf-8", "replace"))


class Stream:
    """The events of one page, as a browser gets them."""

    def __init__(self, client: Client, path: str, last_id: str = "") -> None:
        self.connection = http.client.HTTPConnection(*client.host.split(":"), timeout=30)
        headers = {
            "Host": client.host,
            "Cookie": client.cookie,
            **({"Last-Event-ID": last_id} if last_id else {}),
        }
        self.connection.request("GET", path, headers=headers)
        self.response = self.connection.getresponse()
        self.status = self.response.status
        self.last_id = last_id
        self.kind = ""
        """That of the latest event."""

    def event(self) -> str:
        """The HTML of the next event."""
        lines: list[str] = []
        ends = time.monotonic() + 60
        while True:
            read = self.response.readline()
            if not read:
                raise EOFError("The stream ended.")
            if time.monotonic() > ends:
                raise TimeoutError("The stream has no event, only pings.")
            line = read.decode().rstrip("\n")
            if line.startswith("id: "):
                self.last_id = line[4:]
            if line.startswith("event: "):
                self.kind = line[7:]
            if line.startswith("data: "):
                lines.append(line[6:])
            if not line and lines:
                return "\n".join(lines)

    def close(self) -> None:
        self.response.close()
        self.connection.close()


def _between(text: str, start: str, end: str) -> str | None:
    _, found, rest = text.partition(start)
    return rest.partition(end)[0] if found else None
