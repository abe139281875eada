"""What holds for all tests: properties are not timed."""

from __future__ import annotations

import bisect
import gc
import itertools
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import postgres_server
import pytest
from hypothesis import settings

from ferrule import MemoryStore, PostgresStore, SQLiteStore
from ferrule.net import retries

# A busy machine is no fault of the code under test.
# A quarter of the usual 100 examples: properties are a fifth of the suite, and each run of it draws
# others. `scripts/long-tests.sh` draws more of each, and `make fuzz` very many of some.
settings.register_profile("ferrule", deadline=None, max_examples=25)
settings.register_profile("many", deadline=None, max_examples=200)
settings.register_profile("long", deadline=None, max_examples=1500)  # `make fuzz`
settings.load_profile("ferrule")

# Started in the background of a shell, a process ignores SIGINT, and so do all it starts: the tests
# of Ctrl-C would wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Each new client of HTTP reads all certificates that the machine trusts, for 50 ms. The tests' servers
# are on loopback, so they and the processes that they start trust one that signs nothing. The long
# tests may install packages.
if not os.environ.get("FERRULE_LONG_TEST"):
    os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("certificate.pem"))


@pytest.fixture
def retries_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed request to a model is repeated at once."""
    monkeypatch.setattr(retries, "wait_s", lambda error, number: 0.0)


TESTS = Path(__file__).parent
ROOMS = sorted(each for each in TESTS.iterdir() if each.is_dir() or each.match("test_*.py"))


def rooms_for(worker: int, workers: int) -> list[Path]:
    """The folders and files of all tests, in the order in which one of several workers takes them.

    Each worker must import all test files. pytest rewrites their asserts, which takes twice as long
    as the import, and keeps the result. So in a fresh checkout, each worker begins with the files
    of its own part, and finds those of the others done.
    """
    files = [len(list(room.rglob("test_*.py"))) for room in ROOMS]
    begun = list(itertools.accumulate(files, initial=0))
    first = bisect.bisect_left(begun, worker * begun[-1] // workers)
    return ROOMS[first:] + ROOMS[:first]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect the tests without a garbage collector, and hide them from it while they run.

    They and the modules that they import are millions of objects, and each full collection would
    look at all of them: a third of the time here, and a second for each `gc.collect()` of a test.
    """
    config = session.config
    worker = getattr(config, "workerinput", None)
    if worker is not None and [Path(config.rootpath, each) for each in config.args] == [TESTS]:
        number = int(worker["workerid"].removeprefix("gw"))
        config.args[:] = map(str, rooms_for(number, worker["workercount"]))
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


# First, because pytest then puts the tests of one fixture side by side.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that are marked `long`, unless FERRULE_LONG_TEST asks for them.

    Each has a shorter one beside it, or repeats with real processes what unit tests prove.
    """
    if hasattr(config, "workerinput"):
        # Whatever file a worker began with: all must list the tests in one order.
        items.sort(key=lambda item: str(item.path))
    if os.environ.get("FERRULE_LONG_TEST"):
        return
    long = [item for item in items if item.get_closest_marker("long") is not None]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item.get_closest_marker("long") is None]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Save what `scripts/coverage.sh` measured: pytest-xdist kills a worker that needs more than 10
    s to exit, as on a busy machine.
    """
    coverage = sys.modules.get("coverage")
    if coverage is not None and (measuring := coverage.Coverage.current()) is not None:
        measuring.save()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In `scripts/check-core.sh`, skip a file of tests that imports what no test needs of ferrule
    alone. An import of ferrule's own still fails.
    """
    report = yield
    error = (
        report.call.excinfo.value if os.environ.get("FERRULE_CORE_TEST") and report.failed else None
    )
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    if error is not None:
        importer = [
            name
            for frame, _ in traceback.walk_tb(error.__traceback__)
            if not (name := frame.f_code.co_filename).startswith("<")
        ][-1]
        if Path(importer).is_relative_to(Path(__file__).parent):
            report.outcome, report.longrepr = (
                "skipped",
                (str(collector.path), 0, f"Skipped: needs {error.name}"),
            )
    return report


@pytest.fixture(scope="module", autouse=True)
def collect_after_each_file() -> Iterator[None]:
    """What a file of tests left open fails its last test, and not some later one of another file."""
    yield
    gc.collect()


@pytest.fixture
def busy_switching() -> Iterator[None]:
    """Threads change places as often as they can, except under `scripts/coverage.sh`: CPython 3.11
    cannot begin to trace two threads at once.
    """
    before = sys.getswitchinterval()
    if sys.gettrace() is None:
        sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What this test logs: a thread that an earlier test left behind may still ask its model again,
    and say so.
    """
    older = set(threading.enumerate()) - {threading.current_thread()}

    def is_ours(record: logging.LogRecord) -> bool:
        return record.module != "retries" or threading.current_thread() not in older

    caplog.handler.addFilter(is_ours)
    yield caplog
    caplog.handler.removeFilter(is_ours)


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_server.PostgresServer]:
    """A Postgres for this session; a test that needs it is skipped where there is none, unless
    FERRULE_PG_TEST insists.
    """
    why = postgres_server.none_here()
    if why is not None:
        (pytest.fail if postgres_server.INSISTS else pytest.skip)(f"needs Postgres: {why}")
    server = postgres_server.PostgresServer()
    yield server
    server.close()


_schemas = itertools.count(1)


@pytest.fixture
def schema() -> str:
    """The name of a schema that no other test of this session uses."""
    return f"test_{next(_schemas)}"


@pytest.fixture(params=["memory", "file", "postgres"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Opens a store of each kind; again, as another process would, at the same place."""
    opened: list[Any] = []

    def open_again() -> Any:
        if request.param == "postgres":
            dsn = request.getfixturevalue("postgres").dsn
            opened.append(PostgresStore(dsn, schema=request.getfixturevalue("schema")))
            opened[-1].setup()
        elif request.param == "file":
            opened.append(SQLiteStore(tmp_path / "runs.db"))
        elif not opened:
            opened.append(MemoryStore())
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()


@pytest.fixture
def any_store(open_store: Callable[[], Any]) -> Any:
    """A store of each kind."""
    return open_store()
