"""`ferrule ui`, as ratios to what it stands on: `scripts/page-bench.sh`.

Needs ferrule[ui] and a quiet machine.

Figures: `runs` (a page of 100 of 10,000 runs, to `store.list(limit=100)`), `run` (a page of a run
with 200 turns, to `store.load`: the first view, measured by itself and in pairs with the load;
later ones; and the turns before, which the page fetches when it is there), `entry` (CPU of the
5,000th entry on a live page, to the 50th), `commit` (from a commit to the page, to the poll
interval), `idle` (CPU of ten open pages), `open` (a run's speed with a page open, to that without),
`import` (of the application, to the libraries). Each line has the ratio, its bound, and what was
measured. Linux only: CPU comes from /proc.

A page is one request to the application without a socket: guard, routing, a thread, all queries,
HTML, bytes. `store.load` reads the texts of all entries and parses none. A first view is that of a
process that has never shown the run; it has the latest turns. Both are the least CPU of many
rounds.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from ferrule import ReAct, Response, SQLiteStore, ToolCall, Usage, context, tool
from ferrule.testing import ScriptedLM
from ferrule.web import pages
from ferrule.web.reading import LATEST, Readings
from ferrule.web.ui import ui_app

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

TURNS, RUNS, POLL_S = 200, 10_000, 0.1


@tool
def look_up_order(order: str) -> str:
    """Look an order up."""
    return f"Order {order}: 2 kettles, paid 59.80 euros on 3 November, delivered on 6 November."


def agent_run(store: SQLiteStore, run_id: str, turns: int) -> float:
    """Run an agent; returns how long it took."""

    def by(request: Any) -> Response:
        turn = sum(each.role == "tool" for each in request.messages)
        last = ToolCall(name="finish", args={"answer": "It was delivered."})
        call = (
            last
            if turn == turns - 1
            else ToolCall(name="look_up_order", args={"order": f"A-{turn}"})
        )
        return Response(
            "",
            (call,),
            "I look at the order once more.",
            usage=Usage(1240, 86, calls=1),
            model="gpt-5-mini",
            cost=0.0012,
        )

    with context(lm=ScriptedLM(by=by)):
        began = time.perf_counter()
        run = ReAct("message -> answer", [look_up_order], max_iters=turns + 1).start(
            message="Where is it?",
            store=store,
            run_id=run_id,
        )
        took = time.perf_counter() - began
    assert run.status == "done", run.error
    return took


def tell(name: str, ratio: float, bound: str, **measured: float) -> None:
    """One line."""
    print(
        f"{name:34} {ratio:8.3f}   bound {bound:24} {'  '.join(f'{key} {value:.3f}' for key, value in measured.items())}",
        flush=True,
    )


def least_ms(work: Callable[[], object], rounds: int = 101) -> float:
    """The CPU of the cheapest of some rounds."""
    took: list[float] = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        took.append((time.process_time() - began) * 1000)
    return min(took)


def least_page_ms(
    app: Callable[[], Any],
    path: str,
    rounds: int = 101,
    query: bytes = b"",
) -> float:
    """The CPU of the cheapest of some requests, each to what `app` returns, after `before`; on one
    event loop, as in a server.
    """

    async def measure() -> float:
        took: list[float] = []
        for _ in range(rounds):
            get = getter(app(), path, query)
            began = time.process_time()
            await get()
            took.append((time.process_time() - began) * 1000)
        return min(took)

    return asyncio.run(measure())


def first_view_to_load(store: SQLiteStore, run_id: str, rounds: int = 301) -> float:
    """The median of many first views of a run, each divided by the load right before it: the
    machine's speed changes while they go on.
    """

    async def measure() -> float:
        ratios: list[float] = []
        for _ in range(rounds):
            get = getter(ui_app(store), f"/runs/{run_id}")
            began = time.process_time()
            store.load(run_id)
            loaded = time.process_time()
            await get()
            ratios.append((time.process_time() - loaded) / (loaded - began))
        return statistics.median(ratios)

    return asyncio.run(measure())


def getter(app: Any, path: str, query: bytes = b"") -> Callable[[], Coroutine[Any, Any, bytes]]:
    """Get a page from the application, without a socket."""
    key = app.sessions.enter(next(iter(app.sessions.links.values())))
    headers = [(b"host", b"127.0.0.1:80"), (b"cookie", f"ferrule-80={key}".encode())]
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": headers,
        "root_path": "",
    }

    async def once() -> bytes:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request"}

        async def send(message: Any) -> None:
            sent.append(message)

        await app({**scope, "server": ("127.0.0.1", 80), "scheme": "http"}, receive, send)
        assert sent[0]["status"] == 200, sent
        return b"".join(each.get("body", b"") for each in sent)

    return once


def page_of_runs(folder: Path) -> None:
    """A page of 100 of 10,000 runs."""
    store = SQLiteStore(folder / "many.db", full_sync=False)
    store.list()
    usage, statuses = (
        '{"input_tokens": 1240, "output_tokens": 86, "calls": 3}',
        ("done", "done", "done", "failed", "cancelled", "running"),
    )
    rows = [
        (
            f"order-{k:05d}",
            ("Support", "Billing")[k % 2],
            statuses[k % 6],
            1.79e9 + k,
            1.79e9 + k + 20,
            usage if k % 2 else None,
        )
        for k in range(RUNS)
    ]
    insert = "INSERT INTO ferrule_runs (id, program, status, created_at, updated_at, questions, head, usage) VALUES (?, ?, ?, ?, ?, '[]', '{}', ?)"
    store._file.write(
        lambda db: db.executemany(insert, rows),
    )  # ten thousand real runs would take minutes
    app = ui_app(store)
    page, query = least_page_ms(lambda: app, "/"), least_ms(lambda: store.list(limit=100))
    tell(
        "page of 100 of 10,000 runs",
        page / query,
        "5 x list(limit=100)",
        page_ms=page,
        list_ms=query,
    )


def page_of_a_run(folder: Path) -> None:
    """A page of a run with 200 turns: at its first view, later, and what no first view can go
    below.
    """
    store = SQLiteStore(folder / "long.db", full_sync=False)
    agent_run(store, "r", TURNS)
    app = ui_app(store)
    load, texts = least_ms(lambda: store.load("r")), store.load("r").entries
    later = least_page_ms(lambda: app, "/runs/r")
    first = least_page_ms(lambda: ui_app(store), "/runs/r")
    in_pairs = first_view_to_load(store, "r")
    earlier = least_page_ms(
        lambda: ui_app(store),
        "/runs/r",
        15,
        f"before={TURNS - LATEST}".encode(),
    )
    parsed, read = (
        least_ms(lambda: [json.loads(each) for each in texts], 15),
        least_ms(lambda: Readings(store).read("r")),
    )
    tell("page of 200 turns, later views", later / load, "5 x load", page_ms=later, load_ms=load)
    tell(
        "page of 200 turns, first view",
        first / load,
        "5 x load",
        page_ms=first,
        load_ms=load,
        read_ms=read,
    )
    tell("  in pairs with the load, median", in_pairs, "5 x load")
    tell(
        f"  the {TURNS - LATEST} earlier turns",
        earlier / (parsed + load),
        "5 x load + json.loads",
        page_ms=earlier,
        json_ms=parsed,
    )


def long_journal() -> Iterator[tuple[str, ...]]:
    """The entries of a run, turn by turn, for ever."""
    with tempfile.TemporaryDirectory() as place:
        store = SQLiteStore(Path(place) / "few.db", full_sync=False)
        agent_run(store, "r", 3)
        forms = [json.loads(each) for each in store.load("r").entries[:3]]
        store.close()
    assert [each["kind"] for each in forms] == ["model", "begun", "result"], forms
    turn = 0
    while True:
        slots = (f"{2 * turn}", f"{2 * turn + 1}.0", f"{2 * turn + 1}.0")
        yield tuple(
            json.dumps({**form, "slot": slot}) for form, slot in zip(forms, slots, strict=True)
        )
        turn += 1


def head_of_a_run(store: SQLiteStore) -> str:
    agent_run(store, "a head", 2)
    return store.load("a head").head


def live_entries(folder: Path) -> None:
    """CPU of an entry on a live page, early and late."""
    store = SQLiteStore(folder / "live.db", full_sync=False)
    lease = store.create("live", program="ReAct", head=head_of_a_run(store))
    app = ui_app(store)
    found = Request(
        {
            "type": "http", "method": "GET", "path": "/runs/live/live", "query_string": b"after=0", "headers": [],
            "path_params": {"id": "live"},
            "ferrule.session": app.sessions.find(app.sessions.enter(next(iter(app.sessions.links.values()))) or ""),
            "server": ("127.0.0.1", 80), "scheme": "http", "root_path": "",
        },
    )  # fmt: skip
    given: list[Callable[[], Any]] = []
    stream, pages.live = pages.live, lambda _, read: given.append(read)
    try:
        asyncio.run(app.pages.run_live(found))
    finally:
        pages.live = stream
    cpu: list[float] = []
    for number, turn in enumerate(long_journal()):
        if number == 5_000 // 3 + 40:
            break
        for each in turn:
            store.append(lease, each)
            began = time.process_time()
            list(given[0]())
            cpu.append((time.process_time() - began) * 1000)
    early, late = statistics.median(cpu[30:130]), statistics.median(cpu[4_950:5_050])
    tell(
        "CPU of the 5,000th live entry",
        late / early,
        "1.5 x the 50th",
        late_ms=late,
        early_ms=early,
    )


# -- with a server of its own


class Server:
    """`ferrule ui` as a process."""

    def __init__(self, path: str) -> None:
        command = [
            sys.executable,
            "-m",
            "ferrule",
            "ui",
            "--no-open",
            "--port",
            "0",
            "--store",
            path,
        ]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        link = self.process.stdout.readline().partition(": ")[2].strip()
        self.host, _, token = link.removeprefix("http://").partition("/")
        answer = self._get(f"/{token}", {})
        self.cookie = answer.getheader("set-cookie", "").partition(";")[0]

    def _get(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.request("GET", path, headers=headers)
        return connection.getresponse()

    def stream(self, path: str) -> http.client.HTTPResponse:
        """A live page, after its first events."""
        return self._get(path, {"Cookie": self.cookie})

    def cpu_s(self) -> float:
        """What the process used so far."""
        fields = (
            Path(f"/proc/{self.process.pid}/stat")
            .read_text(encoding="utf-8")
            .rpartition(")")[2]
            .split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def commit_to_page(folder: Path) -> None:
    """From the return of a commit to the event in the browser's socket."""
    store = SQLiteStore(folder / "commit.db", full_sync=False)
    lease = store.create("live", program="ReAct", head=head_of_a_run(store))
    server = Server(store.path)
    live = server.stream("/runs/live/live?after=0")
    seen: list[float] = []
    threading.Thread(
        target=lambda: [
            seen.append(time.perf_counter()) for line in live if line.startswith(b"id: ")
        ],
        daemon=True,
    ).start()
    time.sleep(1)
    took: list[float] = []
    for turn in long_journal():
        store.append(lease, turn[0])
        at, known = time.perf_counter(), len(seen)
        while len(seen) == known and time.perf_counter() - at < 5:
            time.sleep(0.001)
        took.append(seen[known] - at)
        time.sleep(0.2 + random.random() / 5)  # so that it meets the poll at any moment
        if len(took) == 60:
            break
    server.end()
    middle = statistics.median(took)
    tell(
        "commit -> page, median",
        middle / POLL_S,
        "2 x poll interval",
        median_ms=middle * 1000,
        worst_ms=max(took) * 1000,
    )


def idle_pages(folder: Path) -> None:
    """Ten pages that nothing happens on."""
    store = SQLiteStore(folder / "idle.db", full_sync=False)
    for number in range(5):
        agent_run(store, f"r{number}", 5)
    server = Server(store.path)
    live = [
        server.stream(path)
        for path in (
            "/live",
            "/inbox/live",
            "/runs/r1/live?after=0",
            "/runs/r2/live?after=0",
            "/live",
        )
        * 2
    ]
    time.sleep(3)
    before, began = server.cpu_s(), time.perf_counter()
    time.sleep(30)
    used = (server.cpu_s() - before) / (time.perf_counter() - began) * 100
    server.end()
    tell("10 idle pages, % of a core", used, "1 % of a core", streams=len(live))


def with_a_page_open(folder: Path) -> None:
    """A run of 500 turns, alone and with its page open."""
    store = SQLiteStore(folder / "open.db", full_sync=False)
    agent_run(store, "warm", 20)
    server = Server(store.path)
    alone: list[float] = []
    watched: list[float] = []
    for number in range(11):
        alone.append(agent_run(store, f"alone-{number}", 500))
        live = server.stream("/live")
        lister = threading.Thread(target=_drain, args=(live,), daemon=True)
        lister.start()
        time.sleep(0.3)
        watched.append(agent_run(store, f"watched-{number}", 500))
        server.end()
        lister.join(10)
        server = Server(store.path)
    server.end()
    ratio = statistics.median([one / other for one, other in zip(alone, watched, strict=True)])
    tell(
        "speed of a run with a page open",
        ratio,
        "at least 0.95",
        alone_s=statistics.median(alone),
        open_s=statistics.median(watched),
    )


def _drain(live: http.client.HTTPResponse) -> None:
    with suppress(OSError, http.client.HTTPException):
        live.read()


def imports(_: Path) -> None:
    """The application, to the libraries that it stands on.

    It imports uvicorn when it serves, jinja2 when it first shows something, and pydantic when it
    first shows a question or a run: so the second line has uvicorn and jinja2, and the last one a
    process that has all that an agent and its store import.
    """
    libraries = "import starlette.routing, starlette.responses, starlette.staticfiles, starlette.requests, uvicorn, jinja2"
    agent = "from ferrule import tool, ReAct, SQLiteStore; from ferrule.testing import ScriptedLM; import ferrule.runs.store.stored_run"
    page, rest = "import ferrule.web.app", "ferrule.runs.store.sqlite.store, uvicorn, jinja2"
    rows = {
        "import of the page": ("", page),
        "  and a store, uvicorn, jinja2": ("", f"{page}, {rest}"),
        "  beside an agent and its store": (agent, f"{page}, {rest}"),
    }
    for name, (before, text) in rows.items():
        pairs = [(_import_ms(before, text), _import_ms(before, libraries)) for _ in range(11)]
        ours, theirs = min(each[0] for each in pairs), min(each[1] for each in pairs)
        tell(name, ours / theirs, "1.2 x the libraries", page_ms=ours, libraries_ms=theirs)


def _import_ms(before: str, text: str) -> float:
    program = f"import time\n{before}\nbegan = time.process_time()\n{text}\nprint((time.process_time() - began) * 1000)"
    return float(
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
        ).stdout,
    )


FIGURES = {
    "runs": page_of_runs, "run": page_of_a_run, "entry": live_entries, "commit": commit_to_page, "idle": idle_pages,
    "open": with_a_page_open, "import": imports,
}  # fmt: skip


def main(wanted: list[str]) -> None:
    """Measure; the load of the machine comes first and last."""
    print(f"load of the machine: {os.getloadavg()}")
    for name in wanted or FIGURES:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            FIGURES[name](Path(place))
    print(f"load of the machine: {os.getloadavg()}")


if __name__ == "__main__":
    main(sys.argv[1:])
