"""Results that the world posts: `ctx.result_url`, `result_route`, and the same address of `ui_app`."""

from __future__ import annotations

import json
import logging
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from agent_script import native_step
from otel_spans import Sent
from page_server import served
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.routing import Mount

from ferrule import (
    Context,
    Later,
    MemoryStore,
    ReAct,
    ResultLinks,
    Run,
    SQLiteStore,
    advance,
    context,
    log_to,
    result_route,
    tool,
    ui_app,
)
from ferrule.approval.result_links import ForgedTokenError
from ferrule.errors import ConfigurationError, DecisionError
from ferrule.testing import ScriptedLM
from ferrule.values.slot import Slot
from ferrule.web.guard import MOST_BODY_BYTES

SECRET = "s" * 32
LINKS = ResultLinks("https://agents.example.org/", secret=SECRET)
DONE = native_step("done", "finish", {"answer": "ok"})
REPORT = {"passed": True, "tests": 3}


class Report(BaseModel):
    passed: bool
    tests: int


class Site:
    """An agent whose tool gives its address to a build server, and what that server got."""

    def __init__(self, store: Any, begin: Callable[[Context], Any] | None = None) -> None:
        self.urls: list[str] = []
        self.store = store

        @tool
        def build(ref: str, ctx: Context) -> Report | Later:
            """Build."""
            self.urls.append(ctx.result_url)
            if begin is not None:
                return begin(ctx)
            return Later(note="The build server builds.")

        self.lm = ScriptedLM([native_step("go", "build", {"ref": "main"}), DONE])
        self.agent = ReAct("task -> answer", [build], lm=self.lm)

    def start(self, links: ResultLinks = LINKS, **settings: Any) -> Run[Any]:
        with context(result_links=links, **settings):
            return self.agent.start(task="x", store=self.store)

    @property
    def path(self) -> str:
        return self.urls[-1].removeprefix("https://agents.example.org")

    @property
    def token(self) -> str:
        return self.path.removeprefix("/results/")


@pytest.fixture
def store(tmp_path: Path) -> SQLiteStore:
    return SQLiteStore(tmp_path / "runs.db")


def routed(store: Any, **options: Any) -> Starlette:
    with context(result_links=LINKS):
        return Starlette(routes=[result_route(store, **options)])


def of_page(store: Any, **options: Any) -> Any:
    with context(result_links=LINKS):
        return ui_app(store, **options)


DOORS = pytest.mark.parametrize("door", [routed, of_page], ids=["route", "page"])


def post(address: str, path: str, body: Any = REPORT, **options: Any) -> tuple[int, Any]:
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    answer = httpx2.post(address + path, content=body, **options)
    return answer.status_code, answer.json()


# -- taken once


@DOORS
def test_a_posted_result_is_taken_and_the_run_goes_on(
    door: Callable[..., Any], store: SQLiteStore
) -> None:
    site = Site(store)
    run = site.start()
    with served(door(store)) as address:
        assert post(address, site.path) == (200, {"status": "taken"})
    assert advance(store, run.id, site.agent) == "done"
    done = Run.load(store, run.id, site.agent)
    assert json.loads(done.trajectory.steps[0].results[0].content) == REPORT
    assert [decision.via for decision in done.decisions] == ["result_url"]


@DOORS
def test_the_same_result_again_is_accepted_and_another_is_not(
    door: Callable[..., Any], store: SQLiteStore
) -> None:
    site = Site(store)
    run = site.start()
    other = {"passed": False, "tests": 3}
    with served(door(store)) as address:
        assert post(address, site.path)[0] == 200
        assert post(address, site.path)[0] == 200
        assert post(address, site.path, other)[0] == 409
        advance(store, run.id, site.agent)
        assert post(address, site.path)[0] == 200  # the run is done
        assert post(address, site.path, other)[0] == 409


def test_of_two_results_at_once_in_two_processes_one_is_taken(store: SQLiteStore) -> None:
    """Two servers, each with its own connection."""
    site = Site(store)
    run = site.start()
    results = [{"passed": True, "tests": number} for number in range(8)]
    with (
        served(routed(SQLiteStore(store.path))) as one,
        served(of_page(SQLiteStore(store.path))) as other,
        ThreadPoolExecutor(8) as pool,
    ):
        addresses = [one, other] * 4
        answers = pool.map(
            lambda pair: post(pair[0], site.path, pair[1])[0], zip(addresses, results)
        )
        statuses = list(answers)
    assert sorted(statuses) == [200, *[409] * 7]
    advance(store, run.id, site.agent)
    taken = Run.load(store, run.id, site.agent).trajectory.steps[0].results[0]
    assert json.loads(taken.content) == results[statuses.index(200)]


def test_a_token_is_for_one_call(store: SQLiteStore) -> None:
    """Neither for another call of its run, nor for another run."""
    first, second = Site(store), Site(store)
    first.start()
    run = second.start()
    with served(routed(store)) as address:
        assert post(address, first.path)[0] == 200
    assert Run.load(store, run.id, second.agent).resume().status == "waiting"
    assert first.path != second.path

    [question] = run.pending
    read = LINKS.read(second.token)
    assert read.is_for(question.call)
    assert not read.is_for(question.call.changed(args={"ref": "dev"}))


# -- what is refused


@pytest.fixture
def site(store: SQLiteStore) -> Site:
    return Site(store)


@pytest.fixture
def address(store: SQLiteStore) -> Generator[str]:
    with served(routed(store)) as address:
        yield address


def changed(token: str) -> str:
    last = "A" if token[-1] != "A" else "B"
    return token[:-1] + last


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(changed, id="signature"),
        pytest.param(lambda token: "A" + token[1:], id="content"),
        pytest.param(lambda token: token + "=", id="spelling"),
        pytest.param(lambda token: token.partition(".")[0], id="no signature"),
        pytest.param(lambda token: token.partition(".")[0] + ".", id="empty signature"),
        pytest.param(lambda token: token + "." + token, id="twice"),
        pytest.param(lambda token: "x" * 5000 + token, id="long"),
        pytest.param(lambda _: "junk", id="junk"),
        pytest.param(lambda _: "%00%ff.%ff", id="no text"),
        pytest.param(lambda _: "ü.ü", id="not ascii"),
    ],
)
@DOORS
def test_a_forged_token_opens_nothing(
    door: Callable[..., Any], forge: Callable[[str], str], site: Site, store: SQLiteStore
) -> None:
    run = site.start()
    with served(door(store)) as address:
        assert post(address, f"/results/{forge(site.token)}")[0] == 404
    assert store.load(run.id).decisions == []


def test_a_token_of_another_secret_is_forged(site: Site, address: str) -> None:
    site.start(ResultLinks("https://agents.example.org", secret="t" * 32))
    assert post(address, site.path)[0] == 404


def test_an_earlier_secret_is_accepted_and_the_first_one_signs() -> None:
    old = ResultLinks("https://x", secret="o" * 32)
    both = ResultLinks("https://x", secret=["n" * 32, "o" * 32])
    call = ("run", Slot("1.0"), "build", {})
    assert both.read(old.token(*call)).run_id == "run"
    assert ResultLinks("https://x", secret="n" * 32).read(both.token(*call)).run_id == "run"
    with pytest.raises(ForgedTokenError):
        old.read(both.token(*call))


def test_an_expired_address_says_so(site: Site, address: str) -> None:
    links = ResultLinks("https://agents.example.org", secret=SECRET, valid_s=1e-9)
    site.start(links)
    with pytest.raises(DecisionError, match="expired"):
        links.read(site.token)
    assert post(address, site.path)[0] == 410


def test_a_result_after_the_deadline_is_too_late(store: SQLiteStore, address: str) -> None:
    site = Site(store, lambda _: Later(within_s=1e-9))
    run = site.start()
    assert post(address, site.path)[0] == 410
    advance(store, run.id, site.agent)
    assert post(address, site.path)[0] == 410  # the model has read that none came
    assert "did not come within" in site.lm.requests[-1].messages[-1].text


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_nothing_is_taken_for_a_run_that_is_gone(
    end: str, site: Site, address: str, store: SQLiteStore
) -> None:
    run = site.start()
    getattr(store, end)(run.id)
    assert post(address, site.path) == (410, {"error": "No result is awaited here any more."})


def test_nothing_is_taken_for_a_call_that_ended_without_waiting(
    store: SQLiteStore, address: str
) -> None:
    site = Site(store, lambda _: "built at once")
    site.start()
    assert post(address, site.path)[0] == 410


def test_a_result_before_the_tool_has_returned_is_to_be_sent_again(
    store: SQLiteStore, address: str
) -> None:
    answers: list[Any] = []

    def begin(ctx: Context) -> Later:
        answers.append(httpx2.post(address + site.path, json=REPORT))
        return Later()

    site = Site(store, begin)
    site.start()
    assert [answer.status_code for answer in answers] == [503]
    assert answers[0].headers["retry-after"] == "2"
    assert post(address, site.path)[0] == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"", 400, id="empty"),
        pytest.param(b"passed", 400, id="no JSON"),
        pytest.param(b'{"passed": NaN, "tests": 3}', 400, id="NaN"),
        pytest.param(b"\xff\xfe", 400, id="no text"),
        pytest.param(b"[" * 100_000, 400, id="deep"),
        pytest.param(b"9" * 10_000, 400, id="long number"),
        pytest.param(b'"\\ud800"', 422, id="half a character"),
        pytest.param(b"null", 422, id="null"),
        pytest.param(b'{"passed": true}', 422, id="incomplete"),
        pytest.param(b" " * (MOST_BODY_BYTES + 1), 413, id="huge"),
    ],
)
def test_a_body_that_is_no_result_changes_nothing(
    body: bytes, status: int, site: Site, address: str, store: SQLiteStore
) -> None:
    run = site.start()
    assert post(address, site.path, body)[0] == status
    assert store.load(run.id).decisions == []
    assert post(address, site.path)[0] == 200


def test_a_body_without_a_length_is_cut_off_when_it_is_too_long(site: Site, address: str) -> None:
    site.start()

    def long_body() -> Generator[bytes]:
        for _ in range(32):
            yield b" " * 65536

    try:
        status = httpx2.post(address + site.path, content=long_body()).status_code
    except httpx2.TransportError:  # the server has closed the connection
        status = 413
    assert status == 413


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
def test_a_result_is_only_posted(method: str, site: Site, address: str) -> None:
    site.start()
    assert httpx2.request(method, address + site.path).status_code == 405


def test_a_page_that_only_reads_takes_no_result(site: Site, store: SQLiteStore) -> None:
    run = site.start()
    with served(of_page(store, read_only=True)) as address:
        assert httpx2.post(address + site.path, json=REPORT).status_code in {401, 403}
    assert store.load(run.id).decisions == []


def test_a_store_that_fails_asks_for_the_result_again(
    site: Site, store: SQLiteStore, tmp_path: Path
) -> None:
    site.start()
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"no database" * 1000)
    with served(routed(SQLiteStore(damaged))) as address:
        assert post(address, site.path)[0] == 503


# -- what continues the run


@pytest.mark.parametrize("is_async", [False, True])
def test_the_function_of_the_route_continues_the_run(is_async: bool, store: SQLiteStore) -> None:
    site = Site(store)
    ended: list[str] = []

    def go_on(run_id: str) -> None:
        ended.append(advance(store, run_id, site.agent))

    async def ago_on(run_id: str) -> None:
        go_on(run_id)

    run = site.start()
    with served(routed(store, on_delivered=ago_on if is_async else go_on)) as address:
        assert post(address, site.path)[0] == 200
        assert post(address, site.path)[0] == 200
    assert ended == ["done", "done"]
    assert Run.load(store, run.id, site.agent).prediction.answer == "ok"


def test_a_failure_to_continue_is_mended_when_the_result_comes_again(store: SQLiteStore) -> None:
    site = Site(store)
    site.start()
    fails = [True, False]

    def go_on(run_id: str) -> None:
        if fails.pop(0):
            raise ConnectionError("no queue")

    with served(routed(store, on_delivered=go_on)) as address:
        assert httpx2.post(address + site.path, json=REPORT).status_code == 500
        assert post(address, site.path)[0] == 200


def test_the_page_continues_a_run_of_its_chat_also_after_a_restart(store: SQLiteStore) -> None:
    site = Site(store)
    with context(result_links=LINKS):
        site.agent.start(task="x", store=store, run_id="chat-0123abcd")
        app = ui_app(SQLiteStore(store.path), site.agent)
    with served(app) as address:
        assert post(address, site.path)[0] == 200
        deadline = time.monotonic() + 60
        while store.summary("chat-0123abcd").status != "done" and time.monotonic() < deadline:
            time.sleep(0.01)
    assert store.summary("chat-0123abcd").status == "done"


def test_the_route_may_be_mounted_below_a_path(site: Site, store: SQLiteStore) -> None:
    links = ResultLinks("https://agents.example.org/agents", secret=SECRET)
    site.start(links)
    with context(result_links=links):
        app = Starlette(routes=[Mount("/agents", routes=[result_route(store)])])
    with served(app) as address:
        assert post(address, site.path)[0] == 200


# -- the token stays secret


@contextmanager
def logging_server(app: Any) -> Generator[str]:
    """As uvicorn is run by default: with an access log."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, log_level="info", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)


def leaks_note(ctx: Context) -> Any:
    return Later(key=f"k {ctx.result_url}", note=f"Posts to {ctx.result_url}")


def leaks_value(ctx: Context) -> Any:
    return {"sent": ["to", ctx.result_url]}


def leaks_text(ctx: Context) -> Any:
    ctx.progress(f"Sending {ctx.result_url}")
    return f"sent to {ctx.result_url}"


def leaks_error(ctx: Context) -> Any:
    try:
        raise ConnectionError(f"no answer from {ctx.result_url}")
    except ConnectionError as error:
        raise RuntimeError("The build server is down.") from error


def keeps_it(_: Context) -> Any:
    return Later()


@DOORS
@pytest.mark.parametrize("begin", [leaks_note, leaks_value, leaks_text, leaks_error, keeps_it])
def test_the_token_is_in_no_log_trace_event_page_or_file(
    door: Callable[..., Any],
    begin: Callable[[Context], Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Even if the tool returns it, and if the sender repeats it in what it sends."""
    store = SQLiteStore(tmp_path / "runs.db")
    site = Site(store, begin)
    told: list[str] = []
    caplog.set_level(logging.DEBUG)

    def tell(event: Any) -> None:
        told.append(f"{event!r} {event.as_json()}")

    sent = Sent(content=True)
    callbacks = [tell, sent.observer, log_to(logging.getLogger("test.runs"))]
    run = site.start(callbacks=callbacks)
    with logging_server(door(store)) as address:
        for method in ("GET", "POST"):
            httpx2.request(method, address + site.path, json={**REPORT, "url": site.urls[-1]})
        httpx2.post(address + site.path, content=b"no JSON " + site.token.encode())
    with context(callbacks=callbacks):
        advance(store, run.id, site.agent)
    store.close()
    ours = [record for record in caplog.records if not record.name.startswith(("http", "h11"))]
    logged = "\n".join(logging.Formatter("%(message)s").format(record) for record in ours)
    everything = {
        "events": "\n".join(told),
        "log": logged,
        "spans": "\n".join(span.to_json() for span in sent.spans),
        "requests": repr([request.messages for request in site.lm.requests]),
        "repr": repr(run) + repr(run.trajectory) + run.to_json(),
        "files": "\n".join(path.read_bytes().decode("latin-1") for path in tmp_path.iterdir()),
    }
    assert "/results/hidden" in logged, "the access log was written"
    assert "build" in everything["spans"]
    signature = site.token.rpartition(".")[2]
    assert [place for place, text in everything.items() if signature in text] == []


def test_the_secret_is_not_shown() -> None:
    assert SECRET not in repr(LINKS)
    with pytest.raises(ConfigurationError) as raised, context(result_links=SECRET):
        raise AssertionError
    assert SECRET not in str(raised.value)


# -- where there is no address


def test_a_tool_outside_a_run_has_no_address_but_a_test_may_give_one() -> None:
    with pytest.raises(ConfigurationError, match="Context\\(result_url="):
        _ = Context().result_url
    assert Context(result_url="https://x").result_url == "https://x"


@pytest.mark.parametrize(
    ("settings", "store", "problem"),
    [
        ({}, MemoryStore(), "configure\\(result_links"),
        ({"result_links": LINKS}, None, "needs a run in a store"),
    ],
)
def test_the_error_says_what_is_missing(settings: dict[str, Any], store: Any, problem: str) -> None:
    """The model cannot repair it."""
    site = Site(store)
    with context(**settings):
        run = site.agent.start(task="x", store=store)
    assert isinstance(run.error, ConfigurationError)
    assert re.search(problem, str(run.error))


def test_the_route_needs_the_setting() -> None:
    with pytest.raises(ConfigurationError, match="result_links"):
        result_route(MemoryStore())


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_url": "agents.example.org"},
        {"base_url": 5},
        {"secret": "short"},
        {"secret": []},
        {"secret": [SECRET, "short"]},
        {"secret": b"s" * 32},
        {"valid_s": 0},
        {"valid_s": float("inf")},
        {"valid_s": True},
    ],
)
def test_the_links_check_what_they_are_given(wrong: dict[str, Any]) -> None:
    options: dict[str, Any] = {"base_url": "https://x", "secret": SECRET, **wrong}
    with pytest.raises(ConfigurationError):
        ResultLinks(options.pop("base_url"), **options)


def test_the_advice_on_a_secret_makes_one_that_is_long_enough() -> None:
    assert ResultLinks("https://x", secret=secrets.token_urlsafe(32)).valid_s == 7 * 24 * 3600
    assert re.fullmatch(
        r"ResultLinks\('https://x', secret=..., valid_s=604800\)",
        repr(ResultLinks("https://x/", secret=SECRET)),
    )
