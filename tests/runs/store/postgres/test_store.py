"""A store of Postgres where it differs from a file: connections that break, clocks that are wrong,
many processes, poolers, passwords.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cutting_proxy import CuttingProxy
from postgres_server import INSISTS, PASSWORD, Pooler, PostgresServer, free_port, no_pooler_here

from ferrule import Context, PostgresStore, ReAct, Run, context, tool
from ferrule.errors import ConfigurationError, RunTakenError, StoreError
from ferrule.runs.protocols import Lease
from ferrule.runs.store.postgres.tables import LEASE_ENDS
from ferrule.testing import ScriptedLM

HEAD = json.dumps({"questions": [], "error": None, "answers": []})


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[CuttingProxy]:
    made = CuttingProxy(postgres.port)
    yield made
    made.close()


def settled(store: PostgresStore) -> PostgresStore:
    """A store that has been connected for long."""
    store.setup()
    assert store._server._since is not None
    store._server._since -= 1000
    return store


def until(is_so: Callable[[], Any]) -> None:
    ends = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.02)


# -- connections that break


def test_an_append_is_one_round_trip(
    postgres: PostgresServer,
    proxy: CuttingProxy,
    schema: str,
    opened: Any,
) -> None:
    """Fence, number, entry and decision are one statement."""
    store = opened(postgres.dsn_at(proxy.port), schema=schema)
    store._presence._beat_or_drop = lambda: (
        None
    )  # before its thread begins: a beat under way would be counted
    lease = store.create("r", program="P", head=HEAD)
    before = proxy.requests
    for k in range(4):
        store.append(lease, str(k))
    store.append(lease, "decision", consumes="q1")
    assert proxy.requests - before == 5


def test_a_run_is_read_taken_and_released_in_few_round_trips(
    postgres: PostgresServer, proxy: CuttingProxy, schema: str, opened: Any,
) -> None:  # fmt: skip
    """What reads is one statement.

    What writes is one between BEGIN and COMMIT; a lease locks the run and reads it before.
    """
    store = opened(postgres.dsn_at(proxy.port), schema=schema)
    store._presence._beat_or_drop = lambda: None
    lease = store.create("r", program="P", head=HEAD)
    store.append(lease, "entry")
    store.release(lease, status="queued", head=HEAD)

    def requests(work: Callable[[], Any]) -> int:
        before = proxy.requests
        work()
        return proxy.requests - before

    reads = [lambda: store.load("r"), lambda: store.summary("r"), store.list, store.now]
    assert [requests(each) for each in reads] == [1, 1, 1, 1]
    taken: list[Any] = []
    assert requests(lambda: taken.append(store.take("r", after=0))) == 5
    assert (
        requests(lambda: store.append(taken[0].lease, "next")) == 1
    )  # its number is known from the lease
    assert requests(lambda: store.release(taken[0].lease, status="done", head=HEAD)) == 3
    assert store.load("r").entries == ["entry", "next"]


def test_an_entry_that_is_not_awaited_to_its_end_does_not_hold_up_the_next(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
) -> None:
    """Entries of a run are written in the order in which they were given, so each must be written."""
    store = opened(postgres.dsn, schema=schema)
    lease = store.create("r", program="P", head=HEAD)

    async def work() -> None:
        first = [asyncio.ensure_future(store.aappend(lease, str(k))) for k in range(20)]
        await asyncio.sleep(0)
        for each in first:
            each.cancel()
        assert await asyncio.wait_for(store.aappend(lease, "last"), 60)

    asyncio.run(work())
    assert store.load("r").entries == [*map(str, range(20)), "last"]


def test_a_lease_makes_no_heartbeat_while_others_know_this_process(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It beats every two seconds.

    To wake it for each run cost a commit and two switches of threads.
    """
    store = opened(postgres.dsn, schema=schema)
    store.release(store.create("first", program="P", head=HEAD), status="done", head=HEAD)
    woken: list[None] = []
    monkeypatch.setattr(store._presence._wake, "set", lambda: woken.append(None))
    for k in range(5):
        store.release(store.create(str(k), program="P", head=HEAD), status="done", head=HEAD)
    assert woken == []


@pytest.mark.parametrize("what", ["cuts_answers", "cuts_requests"])
def test_an_append_whose_connection_broke_is_there_once(
    postgres: PostgresServer,
    proxy: CuttingProxy,
    schema: str,
    opened: Any,
    what: str,
) -> None:
    """Whether the server wrote it or not."""
    store = opened(postgres.dsn_at(proxy.port), schema=schema)
    lease = store.create("r", program="P", head=HEAD)
    store._presence._beat_or_drop = lambda: None
    for k in range(6):
        if k % 2:
            setattr(proxy, what, 1)
        assert store.append(lease, str(k))
        assert asyncio.run(store.aappend(lease, f"{k}a"))
    assert store.load("r").entries == [f"{k}{each}" for k in range(6) for each in ("", "a")]


def test_no_entry_is_lost_or_doubled_while_connections_are_cut_at_random(
    postgres: PostgresServer,
    proxy: CuttingProxy,
    schema: str,
    opened: Any,
) -> None:
    """Four threads, one run each, and one that they share."""
    store, chance = opened(postgres.dsn_at(proxy.port), schema=schema), random.Random(5)
    shared, leases = (
        store.create("shared", program="P", head=HEAD),
        [store.create(f"r{k}", program="P", head=HEAD) for k in range(4)],
    )
    over, written, cuts = threading.Event(), [0] * 4, []

    def cut() -> None:
        then = [-1] * 4
        while not over.wait(chance.uniform(0.005, 0.05)):
            if all(
                now > before or now == 40 for now, before in zip(written, then, strict=True)
            ):  # on a slow machine, each gets through once
                then = list(written)
                proxy.cut()
                cuts.append(then)

    def write(k: int) -> None:
        for at in range(40):
            store.append(leases[k], f"{at}")
            store.append(shared, f"{k} {at}")
            written[k] += 1

    cutter = threading.Thread(target=cut)
    cutter.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    over.set()
    cutter.join()
    assert cuts
    assert [store.load(f"r{k}").entries for k in range(4)] == [[str(at) for at in range(40)]] * 4
    found = store.load("shared").entries
    assert [[each for each in found if each.startswith(f"{k} ")] for k in range(4)] == [
        [f"{k} {at}" for at in range(40)] for k in range(4)
    ]
    assert len(found) == 160


def test_a_request_that_arrives_late_writes_nothing_a_second_time(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
) -> None:
    """Of a connection that was given up, after its entry was written by another."""
    store = opened(postgres.dsn, schema=schema)
    lease = store.create("r", program="P", head=HEAD)
    line = store._presence.line(lease)
    assert store.append(lease, "a")
    line.number = 0  # as the first attempt knew it
    assert store.append(lease, "a")
    assert store.load("r").entries == ["a"]


def test_a_commit_whose_answer_is_lost_counts_as_what_it_was(
    postgres: PostgresServer,
    proxy: CuttingProxy,
    schema: str,
    opened: Any,
) -> None:
    """Postgres is asked whether it was committed; a tool's transaction is not done again."""
    store = opened(postgres.dsn_at(proxy.port), schema=schema)
    lease = store.create("r", program="P", head=HEAD)
    store._presence._beat_or_drop = lambda: None
    done: list[str] = []

    def work(db: Any, cuts: str) -> None:
        store.append(lease, f"{cuts} {len(done)}")
        db.execute("SELECT 1")
        done.append(cuts)
        if cuts == "before":
            proxy.cut()

    store.transact(lease, lambda db: work(db, "none"))
    commit = store._server._was_committed
    asked: list[bool] = []
    store._server._was_committed = lambda xid: asked.append(commit(xid)) or asked[-1]
    original = type(store._server)._transact

    def lose_the_answer(begin: str, inner: Any) -> Any:
        def last(db: Any) -> Any:
            found = inner(db)
            proxy.cuts_answers = 1
            return found

        return original(store._server, begin, last)

    store._server._transact = lose_the_answer
    store.transact(lease, lambda db: work(db, "answer"))
    del store._server._transact
    assert asked == [True]
    with pytest.raises(StoreError, match="Nothing was written"):
        store.transact(lease, lambda db: work(db, "before"))
    assert done == ["none", "answer", "before"]
    assert store.append(lease, "after")
    assert store.load("r").entries == ["none 0", "answer 1", "after"]


def test_a_commit_of_which_nothing_is_known_is_said_so(
    postgres: PostgresServer,
    proxy: CuttingProxy,
    schema: str,
    opened: Any,
) -> None:
    """Its answer was lost, and Postgres stays away."""
    store = opened(postgres.dsn_at(proxy.port), schema=schema, lease_s=1.0)
    store.setup()

    def work(db: Any) -> None:
        db.execute(f"CREATE TABLE {schema}.there (n int)")
        proxy.is_down, proxy.cuts_answers = True, 1

    with pytest.raises(
        StoreError,
        match=r"broke in a commit\. It is not known whether the commit was made\.",
    ):
        store.transaction(work)
    proxy.is_down = False
    assert store.transaction(
        lambda db: db.execute(f"SELECT count(*) FROM {schema}.there").fetchone(),
    ) == (0,)  # it was


def test_what_a_tool_does_with_the_store_belongs_to_its_transaction(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
) -> None:
    """It reads what it wrote, and all is undone together."""
    store = opened(postgres.dsn, schema=schema)
    lease = store.create("r", program="P", head=HEAD)
    seen: list[Any] = []

    def work(db: Any) -> None:
        store.append(lease, "x")
        store.note(lease, HEAD.replace("[]", "[1]", 1))
        store.transact(
            lease,
            lambda inner: inner.execute(f"CREATE TABLE {schema}.inner_one (n int)"),
        )
        found = store.load("r")
        seen.append(
            (
                found.entries,
                found.head == HEAD,
                db.execute(f"SELECT * FROM {schema}.inner_one").fetchall(),
            ),
        )
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        store.transact(lease, work)
    assert seen == [(["x"], False, [])]
    assert (store.load("r").entries, store.load("r").head) == ([], HEAD)
    assert store.transaction(
        lambda db: db.execute("SELECT to_regclass(%s)", (f"{schema}.inner_one",)).fetchone(),
    ) == (None,)


def test_a_connection_that_fails_before_it_is_used_is_closed(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in the last question that a new one is asked."""
    import psycopg

    made: list[Any] = []
    connect = psycopg.connect
    monkeypatch.setattr(
        psycopg,
        "connect",
        lambda *given, **options: made.append(connect(*given, **options)) or made[-1],
    )
    monkeypatch.setattr("ferrule.runs.store.postgres.server._UPTIME", "SELECT no_such_function()")
    with pytest.raises(StoreError, match="no_such_function"):
        opened(postgres.dsn, schema=schema).list()
    assert [each.closed for each in made] == [True]


@pytest.mark.parametrize("has_poll", [True, False])
def test_an_idle_connection_that_ended_is_not_used(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
    has_poll: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pooler or an administrator may end any. Windows has no `poll`."""
    if not has_poll:
        monkeypatch.delattr("select.poll")
    store = opened(postgres.dsn, schema=schema)
    store.create("r", program="P", head=HEAD)
    assert store._server._idle
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ferrule' AND pid <> pg_backend_pid()"
    import psycopg

    with psycopg.connect(postgres.dsn) as admin:
        admin.execute(end)
    assert store.summary("r").status == "running"


def test_a_store_has_few_connections(postgres: PostgresServer, schema: str, opened: Any) -> None:
    """One for each thread that writes, and one for the heartbeat."""
    name = f"few_{schema}"
    store = opened(f"{postgres.dsn}?application_name={name}", schema=schema)
    leases = [store.create(f"r{k}", program="P", head=HEAD) for k in range(4)]
    seen: list[int] = []

    def write(lease: Lease) -> None:
        for at in range(30):
            store.append(lease, str(at))
            seen.append(
                store.transaction(
                    lambda db: db.execute(
                        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s",
                        (name,),
                    ).fetchone()[0],
                ),
            )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, leases))
    assert max(seen) <= 2 + 4


# -- clocks and processes


def test_times_are_those_of_the_server(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine whose clock is an hour wrong."""
    store, other = (
        settled(opened(postgres.dsn, schema=schema)),
        settled(opened(postgres.dsn, schema=schema, lease_s=29.0)),
    )
    real = time.time()
    monkeypatch.setattr(time, "time", lambda: real + 3600)
    lease = store.create("r", program="P", head=HEAD)
    store.append(lease, "x")
    found, line = store.load("r"), store.summary("r")
    assert max(abs(at - real) for at in (line.created_at, line.updated_at, *found.times)) < 1800
    with pytest.raises(RunTakenError, match="Another process is at work"):
        other.take("r", after=0)
    store.release(lease, status="done", head=HEAD)


STOPPED = """
import sys, time
from ferrule import PostgresStore
from ferrule.errors import StoreError
store = PostgresStore(sys.argv[1], schema=sys.argv[2], lease_s=float(sys.argv[3]))
lease = store.create("r", program="P", head=sys.argv[4])
store.append(lease, "mine")
print("leased", flush=True)
for line in sys.stdin:
    try:
        store.append(lease, line.strip())
        print("written", flush=True)
    except StoreError as error:
        print(error, flush=True)
"""


FORKS = """
import os, sys
from ferrule import PostgresStore
from ferrule.errors import StoreError
store = PostgresStore(sys.argv[1], schema=sys.argv[2])
lease = store.create("r", program="P", head=sys.argv[3])
name = store.owner
store.append(lease, "before")
if os.fork() == 0:
    assert store.owner != name
    assert store.load("r").entries == ["before"]
    try:
        store.append(lease, "of the child")
    except StoreError as error:
        print(error, flush=True)
    store.create("of the child", program="P", head=sys.argv[3])
else:
    assert os.wait()[1] == 0
    assert store.owner == name
    store.append(lease, "after")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_the_child_of_a_fork_has_connections_and_a_name_of_its_own(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
) -> None:
    """It does not write under the leases of its parent, whose connections go on."""
    command = [sys.executable, "-c", FORKS, postgres.dsn, schema, HEAD]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "not to this process; nothing was written" in done.stdout
    store = opened(postgres.dsn, schema=schema)
    assert store.load("r").entries == ["before", "after"]
    assert {each.id for each in store.list()} == {"r", "of the child"}


def test_a_fork_that_python_did_not_make_is_noticed(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the id of the process, before it uses a connection or its name."""
    import os

    store = opened(postgres.dsn, schema=schema)
    store.setup()
    [of_the_parent], name = store._server._idle, store.owner
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 4711)
        assert store.list() == []
        assert of_the_parent not in store._server._idle
        assert " pid 4711 " in store.owner
    assert not of_the_parent.closed
    assert store.owner != name
    of_the_parent.close()


@pytest.fixture
def process(
    postgres: PostgresServer,
    schema: str,
) -> Iterator[Callable[[float], subprocess.Popen[str]]]:
    """Another process, which leases the run "r" and appends the lines that it reads."""
    started: list[subprocess.Popen[str]] = []

    def start(lease_s: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", STOPPED, postgres.dsn, schema, str(lease_s), HEAD]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "leased\n"
        return child

    yield start
    for each in started:
        each.kill()
        each.communicate()


def said(child: subprocess.Popen[str], line: str) -> str:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{line}\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


def taken(store: PostgresStore) -> bool:
    try:
        return store.take("r", after=0).lease is not None
    except RunTakenError:
        return False


def test_a_process_that_was_stopped_for_longer_than_its_lease_writes_nothing_any_more(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
    process: Any,
) -> None:
    """Its session and its lock are there all the time."""
    store = settled(opened(postgres.dsn, schema=schema))
    child = process(1.0)
    child.send_signal(signal.SIGSTOP)
    until(lambda: taken(store))
    child.send_signal(signal.SIGCONT)
    assert "taken over by another process; nothing was written" in said(child, "late")
    assert store.load("r").entries == ["mine"]


def test_a_process_that_was_stopped_for_less_keeps_its_runs(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
    process: Any,
) -> None:
    store = settled(opened(postgres.dsn, schema=schema))
    child = process(600.0)
    child.send_signal(signal.SIGSTOP)
    store.transaction(
        lambda db: db.execute(f"UPDATE {schema}.owners SET seen_at = seen_at - 60"),
    )  # silent for long, but its lock is held
    assert not taken(store)
    assert not taken(store)
    child.send_signal(signal.SIGCONT)
    assert said(child, "then") == "written"


def test_the_runs_of_a_process_that_was_killed_are_free_before_its_lease_ends(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
    process: Any,
) -> None:
    """Its lock is free, and it is silent for five seconds."""
    store = settled(opened(postgres.dsn, schema=schema))
    process(600.0).kill()
    begun = time.monotonic()
    until(lambda: taken(store))
    assert time.monotonic() - begun < 600


def test_two_that_look_at_a_dead_owner_at_once_both_see_it_dead(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
) -> None:
    """Each would hold an exclusive lock against the other."""
    import psycopg

    store = settled(opened(postgres.dsn, schema=schema))
    values = (
        f"INSERT INTO {schema}.owners VALUES ('dead', 4711, extract(epoch FROM now()) - 20, 600)"
    )
    store.transaction(lambda db: db.execute(values))
    ask = LEASE_ENDS.replace("FROM ferrule_owners", f"FROM {schema}.owners").replace(
        "name = owner",
        "name = 'dead'",
    )
    with psycopg.connect(postgres.dsn) as one, psycopg.connect(postgres.dsn) as two:
        found = [
            each.execute(f"SELECT {ask}").fetchone() for each in (one, two)
        ]  # both transactions are open
    assert found == [(0,), (0,)]
    assert store.live_owners() == set()


@pytest.mark.parametrize("how", ["is new", "was silent"])
@pytest.mark.parametrize("act", ["take", "cancel"])
def test_who_waited_for_the_row_of_a_run_sees_that_its_owner_is_alive(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
    act: str,
    how: str,
) -> None:
    """A statement that waits for a lock sees the other tables as they were before.

    The run of a living process was taken over.
    """
    store, owner = (
        settled(opened(postgres.dsn, schema=schema)),
        settled(opened(postgres.dsn, schema=schema, lease_s=29.0)),
    )
    store.release(store.create("r", program="P", head=HEAD), status="waiting", head=HEAD)
    if how == "was silent":
        owner._presence.show()
        store.transaction(
            lambda db: db.execute(f"UPDATE {schema}.owners SET seen_at = seen_at - 1000"),
        )
        owner._presence._seen_at -= 1000
    waits = "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted AND query LIKE %s"
    with ThreadPoolExecutor(1) as threads:

        def work(db: Any) -> Any:
            """Take the run for `owner`, as its own process does, while the other one waits for its
            row.
            """
            db.execute(f"SELECT id FROM {schema}.runs FOR UPDATE")
            late = threads.submit(
                (lambda: store.take("r", after=0))
                if act == "take"
                else (lambda: store.cancel("r")),
            )
            until(
                lambda: store.transaction(
                    lambda other: other.execute(waits, (f"%{schema}%",)).fetchone()[0],
                ),
            )
            owner._presence.show()
            db.execute(
                f"UPDATE {schema}.runs SET status = 'running', token = token + 1, owner = %s",
                (owner.owner,),
            )
            return late

        late = owner.transaction(work)
        if act == "take":
            with pytest.raises(RunTakenError):
                late.result(60)
        else:
            late.result(60)
            [[found]] = store.transaction(
                lambda db: db.execute(
                    f"SELECT (owner, cancelled)::text FROM {schema}.runs",
                ).fetchall(),
            )
            assert found == f'("{owner.owner}",t)'


@pytest.mark.parametrize("what", ["Postgres began", "a connection broke"])
def test_who_comes_back_takes_the_run_of_no_other(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    """After a restart of Postgres all locks are free, and living owners may not be back yet."""
    monkeypatch.setattr(
        "ferrule.runs.store.postgres.server._UPTIME",
        f"SELECT {0.5 if what == 'Postgres began' else 1000.5}::float8",
    )
    store = opened(postgres.dsn, schema=schema)
    store.setup()
    if what == "a connection broke":
        assert store._server.reachable_s() > 1000
        store._server._drop(store._server._lend(), broke=True)
    store.transaction(
        lambda db: db.execute(
            f"INSERT INTO {schema}.owners VALUES ('other', 4712, extract(epoch FROM now()) - 20, 600)",
        ),
    )
    row = f"INSERT INTO {schema}.runs (id, program, status, created_at, updated_at, owner, questions, head) VALUES ('r', 'P', 'running', 0, 0, 'other', '[]', %s)"
    store.transaction(lambda db: db.execute(row, (HEAD,)))
    with pytest.raises(RunTakenError, match="Another process is at work"):
        store.take("r", after=0)
    assert store.live_owners() == {"other"}
    settled(store)
    assert store.live_owners() == set()
    assert store.take("r", after=0).lease is not None


def test_a_new_process_takes_over_at_once_where_postgres_is_up(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else workers that are killed every few seconds and replaced would never take up a run of the
    dead.
    """
    monkeypatch.setattr("ferrule.runs.store.postgres.server._UPTIME", "SELECT 1000.5::float8")
    store = opened(postgres.dsn, schema=schema)
    store.setup()
    assert store._presence.settles_s() == 0


def test_a_worker_that_joins_is_alive_without_a_run(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
) -> None:
    """Until it leaves."""
    store, other = (
        opened(postgres.dsn, schema=schema),
        settled(opened(postgres.dsn, schema=schema, lease_s=29.0)),
    )
    store.join()
    assert other.live_owners() == {store.owner}
    store.leave()
    store.close()
    other.transaction(lambda db: db.execute(f"UPDATE {schema}.owners SET seen_at = seen_at - 6"))
    until(lambda: other.live_owners() == set())


def test_a_worker_forgets_owners_that_are_gone_for_long(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
) -> None:
    """Else each look at who is alive would try the locks of all processes that ever were."""
    store, other = (
        settled(opened(postgres.dsn, schema=schema)),
        opened(postgres.dsn, schema=schema, lease_s=29.0),
    )
    ages = {"gone": 7200, "silent": 600, "long lease": 7200}
    for at, (name, age) in enumerate(ages.items()):
        values = (name, at, age, 86_400 if name == "long lease" else 30)
        sql = f"INSERT INTO {schema}.owners VALUES (%s, %s, extract(epoch FROM now()) - %s, %s)"
        store.transaction(lambda db, values=values, sql=sql: db.execute(sql, values))

    def known() -> set[str]:
        return {
            row[0]
            for row in store.transaction(
                lambda db: db.execute(f"SELECT name FROM {schema}.owners").fetchall(),
            )
        }

    store.create(
        "r",
        program="P",
        head=HEAD,
    )  # a process that only executes a run leaves that to workers
    assert known() == {*ages, store.owner}
    other._server._drop(
        other._server.connect(),
        broke=True,
    )  # after an outage, the others may not be back yet
    other.join()
    assert known() >= {*ages}
    store.join()
    until(lambda: known() == {"silent", "long lease", store.owner, other.owner})
    for each in (store, other):
        each.leave()


def test_the_tables_are_made_once_by_ten_at_once(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
) -> None:
    stores = [opened(postgres.dsn, schema=schema, lease_s=30.0 + k) for k in range(10)]
    ready = threading.Barrier(10)

    def make(store: PostgresStore) -> None:
        ready.wait(60)
        store.create(f"r{store.lease_s}", program="P", head=HEAD)

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(make, stores))
    assert len(stores[0].list()) == 10


def test_tables_of_another_version_are_refused_by_their_number(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
) -> None:
    """And not touched."""
    opened(postgres.dsn, schema=schema).transaction(
        lambda db: db.execute(f"UPDATE {schema}.version SET number = 9"),
    )
    with pytest.raises(
        StoreError,
        match="has schema 9; this ferrule reads schema 2",
    ):
        opened(postgres.dsn, schema=schema, lease_s=29.0).list()


# -- the server


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_a_run_outlives_a_restart_of_its_server(
    schema: str,
    opened: Any,
    postgres: PostgresServer,
    how: str,
) -> None:
    """What was confirmed is there, the lease stays, and the next write waits until the server is
    back.
    """
    server = PostgresServer()
    try:
        store = settled(opened(server.dsn, schema=schema))
        lease = store.create("r", program="P", head=HEAD)
        store.append(lease, "before")
        server.stop(how)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(store.append, lease, "meanwhile")
            server.start()
            assert writing.result(60)
        until(lambda: store._presence._has_lock)
        other = settled(opened(server.dsn, schema=schema, lease_s=29.0))
        with pytest.raises(RunTakenError):
            other.take("r", after=0)
        store.release(lease, status="done", head=HEAD)
        assert store.load("r").entries == ["before", "meanwhile"]
    finally:
        server.close()


def test_a_server_that_may_lose_what_it_confirmed_is_refused(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
) -> None:
    """Unless that is wanted."""
    dsn = f"{postgres.dsn}?options=-c%20synchronous_commit%3Doff"
    with pytest.raises(StoreError, match=r"`synchronous_commit = off`.*full_sync=False"):
        opened(dsn, schema=schema).list()
    assert opened(dsn, schema=schema, full_sync=False).list() == []


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_hold_any_text_is_refused(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
    encoding: str,
) -> None:
    """Before a run is lost in it."""
    import psycopg

    name = f"{schema}_{encoding.lower()}"
    with psycopg.connect(postgres.dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(StoreError, match=f"is encoded in {encoding}.*ENCODING 'UTF8'"):
        opened(postgres.dsn.replace("/postgres", f"/{name}")).setup()


def test_text_of_every_kind_comes_back_whatever_the_client_is_set_to(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
) -> None:
    """NUL, a lone surrogate and many megabytes too."""
    store = opened(f"{postgres.dsn}?client_encoding=latin1", schema=schema)
    texts = ["€ 日本", "a\0b", "a\ud800b", "x" * 20_000_000]

    @tool(effect="read")
    def look(at: int) -> str:
        """Look."""
        return texts[at]

    script = [
        *({"name": "look", "args": {"at": at}} for at in range(len(texts))),
        {"name": "finish", "args": {"answer": "x"}},
    ]
    agent = ReAct("task -> answer", [look])
    with context(lm=ScriptedLM(script)):
        assert agent.start(task="t", store=store, run_id="r").status == "done"
        again = Run.load(store, "r", agent)
        assert [again.trajectory[f"observation_{at}"] for at in range(len(texts))] == texts


@pytest.mark.parametrize("exists", [False, True])
def test_a_role_without_permission_is_told_what_it_lacks(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
    exists: bool,
) -> None:
    """To make the tables, or to use them."""
    if exists:
        opened(postgres.dsn, schema=schema).setup()
    import psycopg

    role = f"poor_{schema}"
    with psycopg.connect(postgres.dsn) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
        if exists:
            admin.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO {role}')
    with pytest.raises(
        StoreError,
        match=f"permission denied for {'table version' if exists else 'database postgres'}",
    ):
        opened(postgres.dsn.replace("//ferrule:", f"//{role}:"), schema=schema).list()


@pytest.fixture
def pooler(postgres: PostgresServer) -> Iterator[Pooler]:
    why = no_pooler_here()
    if why is not None:
        (pytest.fail if INSISTS else pytest.skip)(f"needs PgBouncer: {why}")
    made = Pooler(postgres)
    yield made
    made.close()


def test_a_store_works_through_a_pooler_that_shares_sessions(
    pooler: Pooler,
    schema: str,
    opened: Any,
) -> None:
    """No statement is prepared, no lock is a session's, and the heartbeat alone tells who is alive."""
    store = settled(opened(pooler.dsn, schema=schema, liveness="heartbeat"))
    leases = [store.create(f"r{k}", program="P", head=HEAD) for k in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda lease: [store.append(lease, str(at)) for at in range(20)], leases))
    assert [len(store.load(f"r{k}").entries) for k in range(6)] == [20] * 6
    assert store.live_owners() == {store.owner}
    assert store.transact(leases[0], lambda db: db.execute("SELECT %s::int", (7,)).fetchone()) == (
        7,
    )
    other = settled(opened(pooler.dsn, schema=schema, liveness="heartbeat", lease_s=29.0))
    with pytest.raises(RunTakenError):
        other.take("r0", after=0)
    store._presence._beat_or_drop = lambda: None  # it is stopped
    other.transaction(lambda db: db.execute(f"UPDATE {schema}.owners SET seen_at = seen_at - 31"))
    assert other.take("r0", after=0).lease is not None


# -- passwords and names


def test_no_message_holds_the_password(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither of the store, nor of an error and its causes, nor of a log."""
    caplog.set_level(logging.DEBUG)
    store = opened(postgres.dsn, schema=schema)
    texts = [repr(store), str(store), store.owner]
    wrong = postgres.dsn.replace(PASSWORD, "wr0ng-s3cret")
    for dsn in (
        wrong,
        f"postgresql://ferrule:wr0ng-s3cret@127.0.0.1:{free_port()}/postgres",
        "postgresql://u:wr0ng-s3cret bad@h/db",
    ):
        with pytest.raises((StoreError, ConfigurationError)) as raised:
            opened(dsn, schema=schema).list()
        error: BaseException | None = raised.value
        while error is not None:
            texts += [str(error), repr(error)]
            error = error.__cause__
    texts.append(caplog.text)
    assert not [text for text in texts if "s3cret" in text]
    assert (
        texts[0]
        == f"PostgresStore('postgresql://127.0.0.1:{postgres.port}/postgres', schema='{schema}')"
    )


@pytest.mark.parametrize(
    ("dsn", "warned"),
    [
        pytest.param("postgresql://db.example.com/x", True, id="far"),
        pytest.param(
            "host=10.0.0.7,localhost dbname=x sslmode=prefer",
            True,
            id="one of two hosts",
        ),
        pytest.param("postgresql://db.example.com/x?sslmode=require", False, id="required"),
        pytest.param("postgresql://localhost/x", False, id="loopback"),
        pytest.param("host=/run/postgresql dbname=x", False, id="socket"),
        pytest.param("", False, id="defaults"),
    ],
)
def test_a_connection_that_may_be_unencrypted_is_warned_of(
    dsn: str,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    postgres: PostgresServer,
) -> None:
    """Off this machine."""
    for name in ("PGHOST", "PGSSLMODE"):
        monkeypatch.delenv(name, raising=False)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        PostgresStore(dsn, lease_s=28.0)
    assert [f"{each.category.__name__} in {Path(each.filename).name}" for each in found] == [
        "RuntimeWarning in test_store.py",
    ] * warned


def test_without_psycopg_the_extra_is_named() -> None:
    """In another process: here the heartbeats of earlier stores use it."""
    code = "import sys; sys.modules['psycopg'] = None; import ferrule; ferrule.PostgresStore('dbname=x')"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stderr.splitlines()[-1].endswith(
        "`PostgresStore` needs psycopg: pip install 'ferrule[postgres]'.",
    )


@pytest.mark.parametrize("wrong", [None, 3, Path("runs.db"), "postgres:/nowhere ="], ids=repr)
def test_anything_but_a_dsn_is_refused_without_showing_it(wrong: Any) -> None:
    pytest.importorskip("psycopg", reason="needs the extra: pip install 'ferrule[postgres]'")
    with pytest.raises(ConfigurationError, match="This is not a Postgres DSN: postgresql://USER"):
        PostgresStore(wrong)


def test_liveness_is_one_of_two_words() -> None:
    with pytest.raises(
        ConfigurationError,
        match="`liveness` is 'session' or 'heartbeat'; found 'lock'",
    ):
        PostgresStore("", liveness="lock")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["Runs", "a-b", 'a"; DROP TABLE runs; --', "1a", "", "é", "x" * 64, "ferrule\n"],
)
def test_the_name_of_a_schema_needs_no_escapes(name: str) -> None:
    with pytest.raises(ConfigurationError, match="`schema` is a name of"):
        PostgresStore("", schema=name)


def test_values_are_no_sql(postgres: PostgresServer, schema: str, opened: Any) -> None:
    """Whatever they hold."""
    store, odd = opened(postgres.dsn, schema=schema), "'; DROP TABLE runs; -- %s ? $1 \\ \"é"
    lease = store.create(odd, program=odd, head=HEAD)
    store.append(lease, odd, consumes=odd)
    assert (store.load(odd).entries, store.list(program=odd)[0].id) == ([odd], odd)


# -- whole runs


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_run_waits_and_goes_on(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
    is_async: bool,
) -> None:
    """The same program as with a file."""
    store = opened(postgres.dsn, schema=schema)

    @tool(require_confirmation=True)
    def pay(euros: int) -> str:
        return f"paid {euros}"

    agent = ReAct("task -> answer", [pay])
    with context(
        lm=ScriptedLM(
            [{"name": "pay", "args": {"euros": 3}}, {"name": "finish", "args": {"answer": "x"}}],
        ),
    ):
        run = (
            asyncio.run(agent.astart(task="t", store=store, run_id="r"))
            if is_async
            else agent.start(task="t", store=store, run_id="r")
        )
        assert run.status == "waiting"
        loaded = Run.load(store, "r", agent)
        store.decide("r", loaded.pending[0].approve())
        done = asyncio.run(loaded.aresume()) if is_async else loaded.resume()
    assert done.prediction.answer == "x"
    assert store.summary("r").status == "done"


def test_a_tool_writes_with_its_result_or_not_at_all(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
) -> None:
    """`ctx.db` is a transaction of this Postgres."""
    store, table = opened(postgres.dsn, schema=schema), f"paid_{schema}"
    store.transaction(lambda db: db.execute(f"CREATE TABLE {table} (n integer PRIMARY KEY)"))

    @tool(effect="transactional")
    def pay(ctx: Context, sql: str) -> str:
        ctx.db.executemany(f"INSERT INTO {table} VALUES (%s)", [(1,), (2,)])
        assert ctx.db.execute(f"SELECT count(*) FROM {table}").fetchone() == (2,)
        assert ctx.db.execute(f"SELECT n FROM {table} ORDER BY n").fetchmany(9) == [(1,), (2,)]
        changed = ctx.db.execute(f"UPDATE {table} SET n = n")
        assert (changed.rowcount, changed.description) == (2, None)
        assert (changed.fetchone(), changed.fetchmany(2), changed.fetchall()) == (None, [], [])
        ctx.db.execute(sql)
        return "paid"

    calls = [f"INSERT INTO {table} VALUES (1)", "SELECT 1; COMMIT", "COMMIT", "SELECT ';'"]
    script = [
        *({"name": "pay", "args": {"sql": each}} for each in calls),
        {"name": "finish", "args": {"answer": "x"}},
    ]
    with context(lm=ScriptedLM(script)):
        run = ReAct("task -> answer", [pay]).start(task="t", store=store, run_id="r")
    said = [
        json.loads(each)["value"]
        for each in store.load("r").entries
        if '"result"' in each and '"pay"' in each
    ]
    assert [bool(each.get("is_error")) for each in said] == [True, True, True, False]
    assert run.status == "done"
    assert store.transaction(lambda db: db.execute(f"SELECT count(*) FROM {table}").fetchone()) == (
        2,
    )


def test_a_statement_is_ended_with_the_call_that_waits_for_it(
    postgres: PostgresServer,
    schema: str,
    opened: Any,
) -> None:
    """Its time is over; what it wrote is undone, and the run goes on."""
    store, table = opened(postgres.dsn, schema=schema), f"slow_{schema}"
    store.transaction(lambda db: db.execute(f"CREATE TABLE {table} (n integer)"))

    @tool(effect="transactional", timeout_s=0.2)
    def pay(ctx: Context) -> str:
        ctx.db.execute(f"INSERT INTO {table} VALUES (1)")
        ctx.db.execute("SELECT pg_sleep(3600)")
        return "paid"

    with context(
        lm=ScriptedLM([{"name": "pay", "args": {}}, {"name": "finish", "args": {"answer": "x"}}]),
    ):
        run = ReAct("task -> answer", [pay]).start(task="t", store=store, run_id="r")
    assert run.status == "done"
    assert "0.2" in run.trajectory["observation_0"]
    assert store.transaction(lambda db: db.execute(f"SELECT count(*) FROM {table}").fetchone()) == (
        0,
    )
