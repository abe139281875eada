"""Live pages: server-sent events over raw sockets (`web/live.py`, `web/pages.py`)."""

from __future__ import annotations

import asyncio
import http.client
import re
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from page_server import Client, Stream, served
from page_store import answer, call, finish, start, support

from ferrule import MemoryStore, Run, SQLiteStore, context
from ferrule.errors import StoreError
from ferrule.testing import ScriptedLM
from ferrule.web.live import Watch
from ferrule.web.ui import ui_app

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def stream(client: Client, path: str, last_id: str = "") -> Generator[Stream]:
    made = Stream(client, path, last_id)
    try:
        yield made
    finally:
        made.close()


def steps_in(html: str) -> list[int]:
    return [int(each) for each in re.findall(r'aria-label="Step (\d+)"', html)]


def test_a_run_of_another_store_object_appears_in_the_list(ann: Any, store: SQLiteStore) -> None:
    """Live."""
    with stream(ann, "/live") as live:
        assert 'data-into="rows"' in live.event()
        start(store, "order-2000", "x", finish("y"))
        html = live.event()
        while "order-2000" not in html:
            html = live.event()
        assert html.index("order-2000") < html.index("order-1009")


def test_the_steps_of_a_run_come_as_they_are_written_and_none_twice(tmp_path: Any) -> None:
    """A page that comes back names the last event that it has."""
    store = SQLiteStore(tmp_path / "r.db", full_sync=False)
    gates = [threading.Event() for _ in range(3)]

    def by(request: Any) -> Any:
        turn = sum(each.role == "tool" for each in request.messages)
        gates[turn].wait(30)
        return finish("done") if turn == 2 else answer("", call("look_up_order", order=f"A-{turn}"))

    def run() -> None:
        with context(lm=ScriptedLM(by=by)):
            support().start(message="x", store=store, run_id="r")

    app = ui_app(store, people=["ann"])
    worker = threading.Thread(target=run)
    with served(app) as address:
        ann = Client(address, app.links["ann"])
        worker.start()
        while not store.list():
            time.sleep(0.01)
        with stream(ann, "/runs/r/live?after=0") as live:
            assert "running" in live.event()
            gates[0].set()
            html = live.event()
            while "delivered on 6 November" not in html:
                html = live.event()
            assert steps_in(html) == [1]
            last = live.last_id
        gates[1].set()
        gates[2].set()
        worker.join(30)
        with stream(ann, "/runs/r/live?after=0", last) as live:
            html = live.event()
            assert steps_in(html) == [2, 3], "what is new, and nothing of what was there"
            assert "done" in html
            assert live.last_id == str(len(store.load("r").entries))
        with stream(ann, f"/runs/r/live?after={live.last_id}") as again:
            assert steps_in(again.event()) == []
    store.close()


def test_a_question_decided_elsewhere_is_replaced_by_who_decided_what(
    ann: Any,
    store: SQLiteStore,
) -> None:
    """While it waits to be used, and after its run went on."""
    [question] = store.summary("order-1042").questions
    with stream(ann, "/inbox/live") as live:
        assert question.id in live.event()
        store.decide("order-1042", question.deny("Too much.").signed("bob", "cli"))
        html = live.event()
        while "Too much." not in html:
            html = live.event()
        assert "Denied" in html
        assert "by bob via cli" in html
        with context(lm=ScriptedLM([finish("Not paid.")])):
            Run.load(store, "order-1042", support()).resume()
        html = live.event()
        assert question.id in html
        assert "by bob via cli" in html


def test_a_run_that_is_deleted_is_said_so(ann: Any, store: SQLiteStore) -> None:
    with stream(ann, "/runs/order-1009/live") as live:
        live.event()
        store.delete("order-1009")
        assert "has no run" in live.event()


@pytest.mark.parametrize("answers", [1, 12])
def test_a_run_that_took_the_id_of_a_deleted_one_is_not_mixed_with_it(
    app: Any,
    ann: Any,
    store: SQLiteStore,
    answers: int,
) -> None:
    """The page went on to show the steps of the run before, under the state of the new one."""
    steps = [answer("", call("look_up_order", order=f"A-{k}")) for k in range(answers - 1)]
    with stream(ann, "/runs/order-1009/live") as live:
        live.event()
        last = live.last_id
        with app.pages._readings.read("order-1009").lock:  # the stream sees both at once
            store.delete("order-1009")
            start(store, "order-1009", "Another customer.", *steps, finish("Good day."))
        assert "The run that this page shows was deleted or redacted." in live.event()
        assert live.kind == "gone"
    if answers == 1:
        with stream(ann, "/runs/order-1009/live", last_id=last) as again:
            assert "The run that this page shows was deleted or redacted." in again.event()


def test_a_stream_outlives_trouble_with_its_store(ann: Any, store: SQLiteStore) -> None:
    """It says what is wrong, and goes on where it was as soon as the file is back.

    A page had to be loaded anew.
    """
    path, elsewhere = Path(store.path), Path(store.path + ".moved")
    program: Any = support()
    with stream(ann, "/runs/order-1042/live?after=0") as live, stream(ann, "/inbox/live") as inbox:
        assert steps_in(live.event()) == [1, 2]
        asked = inbox.event()
        path.rename(elsewhere)
        for each in (live, inbox):
            assert "was deleted, moved or replaced" in each.event()
            assert each.kind == "trouble"
        elsewhere.rename(path)
        for each in (live, inbox):
            assert (each.event(), each.kind) == ("", "trouble"), "all is well again"
        [question] = store.summary("order-1042").questions
        store.decide("order-1042", question.deny("Too much.").signed("bob", "cli"))
        with context(lm=ScriptedLM([finish("Not paid.")])):
            Run.load(store, "order-1042", program).resume()
        told = live.event()
        while "s-done" not in told:
            told += live.event()
        assert steps_in(told) == [2, 3], "the one that was decided on, and the one that is new"
        assert live.last_id == str(len(store.load("order-1042").entries))
        told = inbox.event()
        while "by bob via cli" not in told:
            told = inbox.event()
        assert question.id in asked


@pytest.mark.parametrize("path", ["/live", "/inbox/live", "/runs/order-1042/live"])
@pytest.mark.parametrize("reading", ["list", "load", "summary", "notes", "count_questions"])
def test_a_change_is_shown_wherever_the_store_failed_while_it_was_read(
    ann: Any,
    store: SQLiteStore,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    reading: str,
) -> None:
    """What a stream could not read to its end counts as not sent."""
    read, is_away = getattr(store, reading), False

    def fail_once(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_away
        if is_away:
            is_away = False
            raise StoreError("The disk is away.")
        return read(*args, **kwargs)

    monkeypatch.setattr(store, reading, fail_once)
    [question] = store.summary("order-1042").questions
    with stream(ann, path) as live, SQLiteStore(store.path) as elsewhere:
        live.event()
        is_away = True
        elsewhere.decide("order-1042", question.deny("Too much.").signed("bob", "cli"))
        told = live.event()
        if live.kind == "trouble":
            elsewhere.add_note("order-1009", "The disk is back.")
            assert (live.event(), live.kind) == ("", "trouble")
            told = live.event()
        assert "order-1042" in told


def test_a_stream_of_a_run_that_is_not_there_says_so_and_ends(
    ann: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with stream(ann, "/runs/nowhere/live") as live:
        assert "no such run" in live.event()
        assert live.kind == "gone"
        assert live.response.read() == b""
    assert not caplog.records


def test_streams_are_bounded_and_their_places_come_free(store: SQLiteStore) -> None:
    """The 65th is refused; one whose page is gone ends."""
    app = ui_app(store, people=["ann"])
    with served(app) as address:
        ann = Client(address, app.links["ann"])
        threads = threading.active_count()
        opened = [Stream(ann, "/live") for _ in range(64)]
        assert {each.status for each in opened} == {200}
        for each in opened:
            each.event()
        assert threading.active_count() - threads < 45, (
            "the pool of the loop, and none for a stream"
        )
        assert ann.get("/live").status == 503
        assert ann.get("/").status == 200
        for each in opened:
            each.close()
        store.cancel("order-1042")
        ends = time.monotonic() + 20
        while ann_status(ann) == 503 and time.monotonic() < ends:
            time.sleep(0.1)
        assert ann_status(ann) == 200


def ann_status(client: Client) -> int:
    with stream(client, "/live") as live:
        return live.status


@pytest.mark.parametrize("path", ["/live", "/inbox/live", "/runs/order-1042/live"])
def test_a_request_for_the_headers_of_a_stream_ends_and_takes_no_place(
    app: Any,
    ann: Any,
    path: str,
) -> None:
    connection = http.client.HTTPConnection(*ann.host.split(":"), timeout=30)
    for method, place in (("HEAD", path), ("GET", "/")):
        connection.request(method, place, headers={"Cookie": ann.cookie})
        response = connection.getresponse()
        response.read()
        assert response.status == 200
    assert app.watch.streams == 0
    connection.close()


def test_nothing_is_polled_without_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """One poll for all pages, and none without one."""
    store, asked = MemoryStore(), 0
    real = store.changes

    def counted() -> int:
        nonlocal asked
        asked += 1
        return real()

    monkeypatch.setattr(store, "changes", counted)

    async def watched() -> None:
        watch = Watch(store, poll_s=0.01)
        with watch.stream(), watch.stream():
            version = watch.version
            await watch.changed(version, 5)
            assert watch.version > version, "the first look"
            version = watch.version
            waiting = [asyncio.create_task(watch.changed(version, 30)) for _ in range(5)]
            await asyncio.sleep(0.05)
            await asyncio.to_thread(store.create, "r", program="p", head="{}")
            await asyncio.gather(*waiting)
        await asyncio.sleep(0.1)
        before = asked
        await asyncio.sleep(0.1)
        assert asked == before

    asyncio.run(watched())


def test_a_store_that_blocks_holds_up_no_page_and_its_poll_ends_with_the_last_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of its own waits for the store; there is one for all streams, and none after them."""
    store, gate = MemoryStore(), threading.Event()
    monkeypatch.setattr(store, "changes", lambda: gate.wait(30))

    def polls() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "ferrule-ui-poll"]

    before = len(polls())

    async def watched() -> None:
        watch = Watch(store, poll_s=0.01)
        with watch.stream():
            with watch.stream():
                await asyncio.sleep(0)
            assert watch.version == 0
            gate.set()
            await watch.changed(0, 30)
            assert watch.version == 1
            assert len(polls()) == before + 1
        with watch.stream():
            [*_, latest] = polls()
            await asyncio.sleep(0)
        await asyncio.to_thread(latest.join, 30)
        assert not latest.is_alive()

    asyncio.run(watched())


def test_a_stream_ends_with_its_server(store: SQLiteStore) -> None:
    """Open pages do not hold up the end."""
    app = ui_app(store, people=["ann"])
    with served(app) as address:
        live = Stream(Client(address, app.links["ann"]), "/live")
        live.event()
    live.close()
