"""The groups of figures that `make bench` measures, with a function for each."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Self

from libraries import ENVIRONMENT, FLOOR, HERE, LIBRARIES, OURS, Library, Worker, python, script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from report import Table

TEXT = "ferrule, calls in text"


class Bench:
    """One run of the benchmarks: the installed libraries, their processes, and the table."""

    def __init__(self, table: Table, *, tiny: bool, wanted: list[str]) -> None:
        self.table, self.tiny = table, tiny
        always = {FLOOR, OURS, TEXT}
        self._named = [
            each
            for each in LIBRARIES
            if not wanted
            or each.name in always
            or any(each.name.startswith(name) for name in wanted)
        ]
        self._versions = {
            each.distribution: each.version() for each in self._named if each.distribution
        }
        self.libraries = [
            each
            for each in self._named
            if each.distribution is None or self._versions[each.distribution]
        ]
        self._workers: dict[str, Worker] = {}
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._workers.values():
            each.end()

    def versions(self) -> dict[str, str | None]:
        """The versions of the libraries; None for those that are not installed."""
        return self._versions

    def start(self, group: str) -> None:
        """Print on stderr which group begins, and when."""
        print(f"[{time.monotonic() - self._began:4.0f} s] {group}", file=sys.stderr, flush=True)

    def worker(self, library: Library) -> Worker:
        """The process of a library, started on first use."""
        if library.name not in self._workers:
            self._workers[library.name] = Worker(library)
        return self._workers[library.name]

    def _drop(self, library: Library) -> None:
        worker = self._workers.pop(library.name, None)
        if worker is not None:
            worker.end()

    def rounds(
        self,
        libraries: list[Library],
        rounds: int,
        ask: Callable[[Library], Any],
        *,
        once: bool = False,
    ) -> tuple[dict[str, list[Any]], dict[str, str]]:
        """Ask all libraries in turns; return their answers of each round, and why some failed. None means that a library lacks the feature.

        With `once`, libraries other than ferrule only answer in the first round.
        """
        found: dict[str, list[Any]] = {each.name: [] for each in libraries}
        failed: dict[str, str] = {}
        for number in range(rounds):
            for library in libraries:
                if library.name in failed or (
                    once and number and library.name not in {FLOOR, OURS, TEXT}
                ):
                    continue
                try:
                    answer = ask(library)
                except (RuntimeError, TimeoutError) as error:
                    if library.name in {FLOOR, OURS, TEXT}:
                        raise  # ours must run
                    failed[library.name] = (
                        TOO_LONG if isinstance(error, TimeoutError) else f"failed: {error}"
                    )
                    self._drop(library)
                    continue
                if answer is None:
                    failed[library.name] = "has none"
                else:
                    found[library.name].append(answer)
        return {name: each for name, each in found.items() if name not in failed}, {
            name: note for name, note in failed.items() if note != "has none"
        }


def steps(bench: Bench) -> None:
    """A step in process, by length of the run and driver. Measurements that take too long are left out, with a note."""
    slow: set[str] = set()
    for turns in (2,) if bench.tiny else (10, 100, 1000):
        repeats, rounds = (
            (1, 1) if bench.tiny else {10: (200, 7), 100: (25, 5), 1000: (5, 7)}[turns]
        )  # 0.1 s of ours
        for kind in ("sync", "async"):

            def ask(
                library: Library,
                kind: str = kind,
                turns: int = turns,
                repeats: int = repeats,
            ) -> Any:
                is_heavy = library.name not in {FLOOR, OURS, TEXT}
                times, within_s = repeats, None
                if is_heavy:  # a slow phase of the machine is short compared to their runs
                    times, within_s = (
                        (min(repeats, 30) if turns <= 10 else 1),
                        (LONGEST_S if turns == 1000 else None),
                    )
                return bench.worker(library).ask(
                    "steps",
                    kind=kind,
                    turns=turns,
                    repeats=times,
                    within_s=within_s,
                )

            libraries = [each for each in bench.libraries if each.name not in slow]
            found, failed = bench.rounds(libraries, rounds, ask, once=turns == 1000)
            bench.table.add(
                f"step of {turns}, {kind}",
                "us",
                found,
                failed | dict.fromkeys(slow, "left out"),
            )
            slow |= {name for name, note in failed.items() if note == TOO_LONG}
        slow |= {name for name, each in found.items() if turns == 100 and min(each) > 3000}


LONGEST_S = 30
TOO_LONG = f"left out: more than {LONGEST_S} s a run"


def first(bench: Bench) -> None:
    """Import, and a whole program up to its first finished run."""
    rounds = 1 if bench.tiny else 7
    named = [each for each in bench.libraries if each.names]
    timed = "import time\n{}\nprint(time.process_time())"
    bare = [float(python("-c", timed.format("pass"))) for _ in range(rounds)]
    programs: list[float] = []

    def cost_ms(code: str, interpreter: str, processes: int) -> float:
        found = [
            float(python("-c", timed.format(code), interpreter=interpreter))
            for _ in range(processes)
        ]
        return 1e3 * (min(found) - min(bare))

    def imported(library: Library) -> float:
        processes = (
            5 if library.name in {FLOOR, OURS} else 1
        )  # one of them is short, and may fall into a slow phase of the machine
        if (
            library.name == OURS
        ):  # in the same rounds, because the speed of the machine changes between rounds
            programs.append(cost_ms(FIRST_RUN, library.python, processes))
        return cost_ms(library.names, library.python, processes)

    found, failed = bench.rounds(named, rounds, imported)
    bench.table.add("import", "ms", found, failed)
    bench.table.add(
        "first run, beside the import of pydantic",
        "ms",
        {FLOOR: found[FLOOR], OURS: programs},
    )

    def ran(library: Library) -> float:
        worker = Worker(library)
        try:
            return 1e3 * worker.ask("first")
        finally:
            worker.end()

    found, failed = bench.rounds(named, rounds, ran)
    found[OURS] = programs
    bench.table.add("first run", "ms", found, failed)


FIRST_RUN = """
from ferrule import ReAct, configure
from ferrule.testing import ScriptedLM
configure(lm=ScriptedLM([{'name': 'add', 'args': {'a': 1, 'b': 2}}, {'name': 'finish', 'args': {'answer': 3}}]))
def add(a: int, b: int) -> int:
    'Add.'
    return a + b
assert ReAct('question -> answer: int', tools=[add], native=True)(question='1+2?').answer == 3
"""


def http(bench: Bench) -> None:
    """Concurrent agents against a server on loopback. The floor, a bare loop with the client, and ferrule run again next to each library.

    Values are medians of three runs; other libraries run only once with 200 agents, because that
    takes half a minute.
    """
    turns = 2 if bench.tiny else 10
    close = [each for each in bench.libraries if each.name in {FLOOR, OURS}]
    others = [each for each in bench.libraries if each.name not in {FLOOR, OURS, TEXT}]
    server = subprocess.Popen(
        [sys.executable, str(HERE / "model_server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    with server:
        base = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        for agents in (2,) if bench.tiny else (20, 200):

            def ask(library: Library, agents: int = agents) -> Any:
                return bench.worker(library).ask(
                    "http",
                    url=f"{base}/{library.form}/{turns}/v1",
                    agents=agents,
                    turns=turns,
                )

            cpu: dict[str, list[float]] = {each.name: [] for each in close}
            rate: dict[str, list[float]] = {each.name: [] for each in close}
            beside: list[tuple[str, float, float]] = []
            notes: dict[str, str] = {}
            for library in others or [close[0]]:
                answers, _ = bench.rounds(close, 1 if bench.tiny else 3, ask)
                for each in close:
                    cpu[each.name].append(median(answer["cpu_us"] for answer in answers[each.name]))
                    rate[each.name].append(
                        median(answer["requests_s"] for answer in answers[each.name]),
                    )
                if library in close:
                    continue
                answers, failed = bench.rounds(
                    [library],
                    1 if bench.tiny or agents > 20 else 3,
                    ask,
                )
                notes |= failed
                for name, each in answers.items():
                    beside.append(
                        (
                            name,
                            *(
                                median(answer[key] for answer in each)
                                for key in ("cpu_us", "requests_s")
                            ),
                        ),
                    )
            bench.table.add(f"HTTP, {agents} agents", "us a request", cpu)
            for name, taken, _ in beside:
                ours, floor = (cpu[each][_round(others, name)] for each in (OURS, FLOOR))
                bench.table.one(
                    f"HTTP, {agents} agents",
                    name,
                    "us a request",
                    taken,
                    to_ours=taken / ours,
                    to_floor=taken / floor,
                )
            bench.table.add(f"HTTP, {agents} agents", "us a request", {}, notes)
            bench.table.add(f"HTTP, {agents} agents, rate", "requests/s", rate)
            for name, _, reached in beside:
                bench.table.one(
                    f"HTTP, {agents} agents, rate",
                    name,
                    "requests/s",
                    reached,
                    to_ours=reached / rate[OURS][_round(others, name)],
                )
        server.stdin.close()


def _round(libraries: list[Library], name: str) -> int:
    return next(i for i, each in enumerate(libraries) if each.name == name)


def memory(bench: Bench) -> None:
    """Memory of agents that wait in their last tool call: 1,000 in one process, 100 for slow libraries."""

    def ask(library: Library) -> Any:
        many = library.name in {FLOOR, OURS, TEXT}
        worker = Worker(library)
        try:
            return worker.ask(
                "memory",
                agents=5 if bench.tiny else 1000 if many else 100,
                turns=2 if bench.tiny else 10,
            )
        finally:
            worker.end()

    found, failed = bench.rounds(bench.libraries, 1, ask)
    bench.table.add("memory an agent of 10 steps", "KB", found, failed)


def tools(bench: Bench) -> None:
    """The time to make a tool from a function with five parameters, and for a checked call of it if the library has that."""
    libraries = [each for each in bench.libraries if each.function == "make"]
    found, failed = bench.rounds(
        libraries,
        1 if bench.tiny else 5,
        lambda each: bench.worker(each).ask("tools", repeats=2 if bench.tiny else 50),
    )
    for key, figure in (
        ("make_us", "a tool"),
        ("schema_us", "a tool with its schema"),
        ("call_us", "a checked call"),
    ):
        samples = {
            name: [one[key] for one in each] for name, each in found.items() if key in each[0]
        }
        bench.table.add(figure, "us", samples, failed if key == "schema_us" else None)


def parallel(bench: Bench) -> None:
    """The wall time of eight calls of 100 ms in one turn."""
    libraries = [
        each for each in bench.libraries if each.form in {"native", "smolagents", "dspy_v2"}
    ]
    for kind in ("slow", "slow async"):
        found, failed = bench.rounds(
            libraries,
            1 if bench.tiny else 3,
            lambda each, kind=kind: bench.worker(each).ask("parallel", kind=kind),
        )
        bench.table.add(
            f"8 calls at once, {'async' if kind == 'slow async' else 'sync'}",
            "ms, wall",
            found,
            failed,
        )


def tokens(bench: Bench) -> None:
    """The prompts that a run of 20 steps sends, and the share of them that a provider's prompt cache can serve."""

    def ask(library: Library) -> Any:
        return bench.worker(library).ask("tokens", form=library.form, turns=2 if bench.tiny else 20)

    found, failed = bench.rounds(bench.libraries, 1, ask)
    bench.table.add(
        "prompts of a run of 20 steps",
        "characters",
        {name: [each[0]["characters"]] for name, each in found.items()},
        failed,
    )
    bench.table.add(
        "share that repeats the request before",
        "",
        {name: [each[0]["prefix_share"]] for name, each in found.items()},
    )
    shares = script("tool_loads.py", "2" if bench.tiny else "20")
    for kind, share in shares.items():
        bench.table.add(f"share that repeats, {kind}", "", {OURS: [share]})


def kept(bench: Bench) -> None:
    """Runs stored in memory, SQLite and Postgres, compared to LangGraph's checkpointers. Also in wall time: commits wait for the disk."""
    turns, rounds, repeats = (2, 1, 1) if bench.tiny else (50, 3, 2)
    libraries = [each for each in bench.libraries if each.name in {OURS, "langgraph"}]
    with tempfile.TemporaryDirectory() as folder, _postgres(tiny=bench.tiny) as postgres:
        if postgres is None:
            print(
                "runs kept in Postgres are left out: set BENCH_POSTGRES, or install Postgres and psycopg",
            )
        for store in ("memory", "sqlite", *(["postgres"] if postgres else [])):

            def ask(library: Library, store: str = store) -> Any:
                place = (
                    postgres if store == "postgres" else str(Path(folder) / f"{library.name}.db")
                )
                return bench.worker(library).ask(
                    "kept",
                    store=store,
                    place=place,
                    turns=turns,
                    repeats=repeats,
                )

            found, failed = bench.rounds(libraries, rounds, ask)
            for key, figure in (
                ("cpu_us", f"step kept in {store}"),
                ("wall_us", f"step kept in {store}, wall"),
            ):
                bench.table.add(
                    figure,
                    "us",
                    {name: [each[key] for each in answers] for name, answers in found.items()},
                    failed,
                )
    _runs(bench)


@contextlib.contextmanager
def _postgres(*, tiny: bool) -> Iterator[str | None]:
    """The address of a Postgres: BENCH_POSTGRES, or our own server that syncs each commit; None if there is none."""
    sys.path.append(str(HERE.parent / "tests"))
    from postgres_server import PostgresServer, none_here

    dsn = os.environ.get("BENCH_POSTGRES")
    if dsn or tiny or none_here():
        yield dsn
        return
    server = PostgresServer(is_durable=True)
    try:
        yield server.dsn
    finally:
        server.close()


def _runs(bench: Bench) -> None:
    """The cost of ferrule's stores by themselves."""
    tiny = ["--tiny"] if bench.tiny else []
    commits, waiting, long, loaded = (
        script("runs.py", figure, *tiny) for figure in ("commits", "waiting", "long", "loaded")
    )
    together = script("runs.py", "together", *tiny)
    for name, found in together["ms"].items():
        bench.table.one(
            f"kept runs of ten steps, {together['runs']} at once",
            name,
            "ms a run",
            found,
            note=f"{together['times as many'][name]} x as many",
        )
    for name, found in commits["us"].items():
        bench.table.one(
            "a journal entry",
            name,
            "us",
            found[0],
            to_floor=commits["ratio"][name][0],
            note=f"{commits['bytes an entry']} bytes",
        )
    for name, found in waiting["ms"].items():
        bench.table.one(f"{waiting['runs']:,} runs that wait in one file", name, "ms", found[0])
    for name, found in waiting["bytes"].items():
        bench.table.one("a run that waits", name, "bytes", found)
    for turns, found in long.items():
        for name, each in found.items():
            bench.table.one(
                f"a kept run of {turns}, a step",
                name,
                "bytes" if name == "bytes" else "us",
                each[0],
            )
    for turns, found in loaded.items():
        bench.table.one(f"a loaded run of {turns}, a step", "load, read, list", "us", found)


def observers(bench: Bench) -> None:
    """The cost of observers for a step of ferrule."""
    found = script("observers.py", *(("2", "1") if bench.tiny else ("50", "15")))
    ours = found.pop("none")
    bench.table.add("step with an observer", "us", {OURS: ours} | found)


def quality(bench: Bench) -> None:
    """Tool calls recovered from raw model text, by model, and the time to read a text."""
    corpus = os.environ.get("FERRULE_CORPUS")
    if corpus is None:
        print(
            "FERRULE_CORPUS is not set: calls are recovered from four samples (see benchmarks/quality.py)",
        )
    readers = {OURS: sys.executable} | {
        str(each.distribution): each.python
        for each in bench.libraries
        if each.distribution == "dspy"
    }
    found = {
        name: script("quality.py", name, *([corpus] if corpus else []), interpreter=each)
        for name, each in readers.items()
    }
    for name, each in found.items():
        right, total = (sum(column) for column in zip(*each["recovered"].values(), strict=True))
        bench.table.one(
            "calls recovered",
            name,
            "%",
            100 * right / total,
            note=f"{right} of {total}",
        )
        for model, (some, outputs) in each["recovered"].items():
            bench.table.one(
                f"calls recovered: {model}"[:42],
                name,
                "%",
                100 * some / outputs,
                note=f"{some} of {outputs}",
            )
    bench.table.add(
        "reading a text",
        "us",
        {name: [each["us_a_text"]] for name, each in found.items()},
    )


def mcp(bench: Bench) -> None:
    """Calls of MCP tools compared to the SDK's bare session, and the cost of broken servers."""
    if importlib.util.find_spec("mcp") is None:
        print("mcp is not installed and left out")
        return
    found = script("mcp_calls.py", *(("2", "1") if bench.tiny else ("300", "5")))
    least = found["SDK session, async"]
    for name, taken in found.items():
        bench.table.one(
            "a call of an MCP tool",
            name,
            "ms, wall",
            taken,
            note=f"{taken / least:.2f} x the SDK",
        )
    found = script("mcp_faults.py", *(("6", "0") if bench.tiny else ("200", "50")))
    for name in ("without faults", "with faults"):
        bench.table.one(
            f"{found['turns']} turns with five MCP servers",
            name,
            "s, wall",
            found[name],
        )


def walk(bench: Bench) -> None:
    """How many files of ferrule one call passes through."""
    for name, walked in script("walk.py").items():
        bench.table.one(
            "files of ferrule on the way",
            name,
            "files",
            walked["files"],
            note=f"{walked['changes']} changes of file",
        )


GROUPS: dict[str, Callable[[Bench], None]] = {
    each.__name__: each
    for each in (
        steps,
        first,
        http,
        memory,
        tools,
        parallel,
        tokens,
        kept,
        observers,
        quality,
        mcp,
        walk,
    )
}
