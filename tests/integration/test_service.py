"""`examples/apps/service.py` over HTTP, as a process of its own: clients that come back, servers
that are stopped and killed.
"""

from __future__ import annotations

import asyncio
import importlib
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import forked
import httpx2
import pytest

from ferrule import ReAct, Run, SQLiteStore, context
from ferrule.testing import ScriptedLM

pytest.importorskip("starlette", reason="needs the extra: pip install 'ferrule[ui]'")

APPS = Path(__file__).parents[2] / "examples" / "apps"
QUICK, SLOW = "Measure for 0.1 s, and publish it.", "Measure for 2 s, and publish it."

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def client() -> Iterator[ModuleType]:
    sys.path.insert(0, str(APPS))
    yield importlib.import_module("service_client")
    sys.path.remove(str(APPS))


class Host:
    """Where the server lives: a folder and a port, and the process that serves it now."""

    def __init__(self, client: ModuleType, folder: Path) -> None:
        self.client, self.folder = client, folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.runs = f"http://127.0.0.1:{self.port}/runs"
        self.server: forked.Forked | None = None

    def start(self) -> None:
        """`python service_client.py serve PORT`, and wait until it answers."""
        program = APPS / "service_client.py"
        self.server = forked.Forked(program, "serve", str(self.port), cwd=self.folder)
        while self.server.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.02)
        pytest.fail(self.server.ended().stderr)

    def stop(self, number: int = signal.SIGTERM) -> None:
        assert self.server is not None
        self.server.send_signal(number)
        assert self.server.wait() == -number
        self.server = None

    def post(self, task: str) -> str:
        answer = httpx2.post(self.runs, json={"task": task}, timeout=60)
        assert answer.status_code == 202
        return f"{self.runs}/{answer.json()['id']}"

    def until(
        self,
        is_last: Callable[[dict[str, Any]], bool],
        run: str,
        after: str = "0",
    ) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for each in self.client.follow(run, after):
            found.append(each)
            if is_last(each[1]):
                return found
        raise AssertionError(f"the stream ended: {found}")

    def decide(
        self,
        run: str,
        events: list[tuple[str, dict[str, Any]]],
        answer: Any = "yes",
    ) -> httpx2.Response:
        [question] = [
            event["question"]["id"] for _, event in events if event["type"] == "QuestionAsked"
        ]
        return httpx2.post(
            f"{run}/decisions",
            json={"question": question, "answer": answer},
            timeout=60,
        )

    def board(self) -> list[str]:
        with closing(sqlite3.connect(self.folder / "service.db")) as db, db:
            return [text for (text,) in db.execute("SELECT text FROM board")]


@pytest.fixture
def host(client: ModuleType, tmp_path: Path) -> Iterator[Host]:
    host = Host(client, tmp_path)
    host.start()
    yield host
    if host.server is not None:
        host.server.kill()
        host.server.wait()


def begins(event: dict[str, Any]) -> bool:
    return (
        event["type"] == "CallStarted"
    )  # an event that is kept: a slow client may have missed all others


def waits(event: dict[str, Any]) -> bool:
    return event["type"] == "RunFinished" and event["status"] == "waiting"


def is_done(event: dict[str, Any]) -> bool:
    return event["type"] == "RunFinished" and event["status"] == "done"


def kept(events: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, str]]:
    """Ids and types of the events that have an id of their own."""
    passing = {"CallProgress", "CallDelta", "TextDelta", "ThoughtDelta", "FieldDelta"}
    return [(number, event["type"]) for number, event in events if event["type"] not in passing]


def test_a_client_that_comes_back_gets_every_event_once(host: Host) -> None:
    run = host.post(QUICK)
    seen = host.until(begins, run)
    seen += host.until(waits, run, seen[-1][0])
    assert host.decide(run, seen).status_code == 202
    seen += host.until(is_done, run, seen[-1][0])
    whole = host.until(is_done, run)
    assert kept(seen) == kept(whole)
    assert len({number for number, _ in kept(whole)}) == len(kept(whole))
    middle = kept(whole)[7][0]
    assert kept(host.until(is_done, run, middle)) == kept(whole)[8:]
    assert host.board() == ["21 degrees"]


def test_a_stop_lets_the_running_call_end_and_keeps_the_runs(host: Host) -> None:
    waiting, running = host.post(QUICK), host.post(SLOW)
    asked = host.until(waits, waiting)
    before = host.until(begins, running)
    host.stop()
    host.start()
    after = host.until(waits, running, before[-1][0])
    calls = [
        event["type"]
        for _, event in before + after
        if event["type"] in {"CallStarted", "CallFinished"}
    ]
    assert calls == ["CallStarted", "CallFinished"]  # the call that was running is not repeated
    for run, events in ((waiting, asked), (running, after)):
        assert host.decide(run, events).status_code == 202
        host.until(is_done, run)
    assert host.board() == ["21 degrees"] * 2


def test_a_stop_ends_the_streams_of_those_who_follow(host: Host) -> None:
    run = host.post(QUICK)
    host.until(waits, run)
    follower = host.client.follow(run, "0")
    assert not waits(next(follower)[1])
    host.stop()
    assert waits(list(follower)[-1][1])  # the response ended, and was whole


def test_a_run_survives_a_kill(host: Host) -> None:
    run = host.post(SLOW)
    before = host.until(begins, run)
    host.stop(signal.SIGKILL)
    host.start()
    after = host.until(waits, run, before[-1][0])
    assert host.decide(run, after, {"text": "mild"}).status_code == 202
    done = host.until(is_done, run, after[-1][0])
    assert done[-1][1]["prediction"]["outputs"]["answer"].endswith("The board says: mild.")
    assert host.board() == ["mild"]


def test_an_end_whose_events_were_lost_in_a_crash_is_told_by_the_next_process(host: Host) -> None:
    run = host.post(QUICK)
    for is_last in (waits, is_done):
        whole = host.until(is_last, run)
        host.stop(signal.SIGKILL)
        with closing(sqlite3.connect(host.folder / "service.db")) as db, db:
            db.execute(
                "DELETE FROM events WHERE id > ?",
                (whole[-4][0],),
            )  # the question and the end, or a step and the end
        host.start()
        again = host.until(is_last, run, whole[-4][0])
        assert again[-1][1]["status"] == whole[-1][1]["status"]
        if is_last is waits:
            assert host.decide(run, again).status_code == 202
    assert again[-1][1]["prediction"]["outputs"] == whole[-1][1]["prediction"]["outputs"]


def test_a_decision_of_another_process_is_carried_out(host: Host) -> None:
    run = host.post(QUICK)
    host.until(waits, run)
    store = SQLiteStore(host.folder / "service.db")
    [line] = Run.list(store, status="waiting")
    store.decide(line.id, line.questions[0].deny("Not today.").signed(by="joe"))
    host.until(is_done, run)
    assert host.board() == []


def test_what_does_not_exist_or_does_not_wait_is_refused(host: Host) -> None:
    assert httpx2.get(f"{host.runs}/none/events", timeout=60).status_code == 404
    assert httpx2.post(host.runs, json={}, timeout=60).status_code == 400
    run = host.post(QUICK)
    asked = host.until(waits, run)
    assert (
        httpx2.post(
            f"{run}/decisions",
            json={"question": "none", "answer": "yes"},
            timeout=60,
        ).status_code
        == 400
    )
    assert host.decide(run, asked).status_code == 202
    host.until(is_done, run)
    assert host.decide(run, asked).status_code in {400, 409}
    assert host.board() == ["21 degrees"]


def test_fastapi_takes_the_service(client: ModuleType, tmp_path: Path) -> None:
    from fastapi import FastAPI

    service = client.Service(
        ReAct("task -> answer", [client.measure]),
        str(tmp_path / "service.db"),
    )
    app = FastAPI(
        routes=service.app.routes,
        lifespan=service.lifespan,
        exception_handlers=service.app.exception_handlers,
    )

    async def talk() -> str:
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app),
            base_url="http://service",
        ) as http:
            assert (await http.get("/runs/none/events")).status_code == 404
            with context(lm=ScriptedLM([{"name": "finish", "args": {"answer": "done"}}])):
                started = await http.post("/runs", json={"task": "Do nothing."})
            return (await http.get(f"/runs/{started.json()['id']}/events")).text

    assert '"outputs": {"answer": "done"}' in asyncio.run(talk())
    service.db.close()


def test_a_run_that_a_person_decides_after_many_others_goes_on(
    client: ModuleType,
    tmp_path: Path,
) -> None:
    """`Run.list` has the latest 100 runs, unless it is told otherwise."""
    service = client.Service(
        ReAct("task -> answer", [client.publish]),
        str(tmp_path / "service.db"),
        sqlite3.connect(":memory:"),
    )
    asks = {"name": "publish", "args": {"text": "mild"}}
    done = {"name": "finish", "args": {"answer": "done"}}

    async def serve() -> str:
        with context(lm=ScriptedLM([asks, *[done] * 101, done])):
            waiting = await service.agent.astart(
                task="Publish it.",
                store=service.store,
                deps=service.deps,
            )
            for _ in range(101):
                await service.agent.astart(
                    task="Do nothing.",
                    store=service.store,
                    deps=service.deps,
                )
            service.store.decide(waiting.id, waiting.pending[0].deny())
            sweeper = asyncio.create_task(service.resume_unfinished())
            for _ in range(600):
                if service.store.summary(waiting.id).status == "done":
                    break
                await asyncio.sleep(0.1)
            sweeper.cancel()
        return service.store.summary(waiting.id).status

    assert asyncio.run(serve()) == "done"
    service.db.close()
    service.deps.close()
