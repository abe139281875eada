"""Runs that real worker processes carry on, over a real Postgres and DBOS.

Calls for work, deaths, restarts, limits, deployments. `make pg-test` runs all of these tests.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ferrule
from ferrule import Run

pytest.importorskip("dbos", reason="needs ferrule[dbos]")

import worker_program
from postgres_server import PASSWORD
from worker_yard import TESTS, Yard

if TYPE_CHECKING:
    from postgres_server import PostgresServer

pytestmark = pytest.mark.usefixtures("postgres")


@pytest.fixture
def yard(postgres: PostgresServer, schema: str, tmp_path: Path) -> Iterator[Yard]:
    made = Yard(postgres, schema, tmp_path)
    yield made
    made.close()


def test_runs_that_were_submitted_are_done_by_two_workers(yard: Yard) -> None:
    """Also those that were submitted before there was a worker; tickets are JSON with ids."""
    yard.submit(*[f"pays {n}" for n in range(6)])
    yard.worker()
    yard.worker()
    yard.submit(*[f"pays {n}" for n in range(6, 12)])
    yard.until(yard.all_are("waiting"))
    for each in yard.store.list():
        yard.store.decide(each.id, each.questions[0].approve().signed("ann", "cli"))
    yard.until(yard.all_are("done"))
    assert yard.did() == Counter(
        {f"{what} {n}": 1 for what in ("charge", "pay") for n in range(12)},
    )
    yard.until(lambda: "PENDING" not in yard.tickets())  # a run is done before its ticket is
    assert yard.tickets() == {"SUCCESS": 24}
    inputs = yard.sql(
        "SELECT w.workflow_uuid, i.inputs, w.serialization FROM dbos.workflow_status w JOIN dbos.workflow_input i USING (workflow_uuid)",
    )
    for ticket, kept, serialization in inputs:
        assert (json.loads(kept)["positionalArgs"], serialization) == (
            [ticket.rpartition(":")[0]],
            "portable_json",
        )
    assert Run.load(yard.store, "pays-3", worker_program.agent).prediction.answer == "ok"


def test_a_result_that_a_task_of_a_queue_delivers_calls_a_worker(yard: Yard) -> None:
    """As a task of DBOS's own queue, or of any other: another process, with the store alone."""
    yard.worker()
    yard.submit(*[f"builds {n}" for n in range(3)])
    yard.until(yard.all_are("waiting"))
    task = (
        "import sys\n"
        "from ferrule import PostgresStore\n"
        "from ferrule.runs.store.dbos import DBOSEngine\n"
        "dsn, schema, dbos = sys.argv[1:]\n"
        "store = PostgresStore(dsn, schema=schema, engine=DBOSEngine(schema=dbos))\n"
        "for n in range(3):\n"
        "    for _ in range(2):  # a task may run twice\n"
        "        store.deliver(f'builds-{n}', f'build {n}', 'built', by='queue')\n"
    )
    subprocess.run([sys.executable, "-c", task, yard.dsn, yard.schema, yard.dbos], check=True)
    yard.until(yard.all_are("done"))
    assert yard.did() == Counter(
        {f"{what} {n}": 1 for what in ("build", "charge") for n in range(3)}
    )


@pytest.mark.long
def test_forty_presses_make_one_ticket(yard: Yard) -> None:
    """The decision and its ticket commit together."""
    yard.worker()
    yard.submit("pays 1")
    yard.until(yard.all_are("waiting"))
    [line] = yard.store.list()
    yard.workers[0].kill()
    yard.workers[0].wait()
    before = sum(yard.tickets().values())
    decision = line.questions[0].approve().signed("ann", "cli")
    threads = [
        threading.Thread(target=yard.store.decide, args=(line.id, decision)) for _ in range(40)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sum(yard.tickets().values()) == before + 1
    yard.worker()
    yard.until(yard.all_are("done"))
    assert yard.did()["pay 1"] == 1


def test_the_runs_of_a_killed_worker_are_done_by_the_others(yard: Yard) -> None:
    """And no ticket stays with the dead."""
    victim = yard.worker(tool_s=0.3)
    yard.worker(tool_s=0.3)
    yard.worker(tool_s=0.3)
    yard.submit(*[f"waits {n}" for n in range(24)])
    yard.until(lambda: len(yard.did()) >= 6)
    victim.kill()
    victim.wait()
    yard.until(yard.all_are("done"))
    yard.until(lambda: set(yard.tickets()) <= {"SUCCESS", "CANCELLED"})


def test_a_tool_that_exits_ends_its_run_and_not_the_worker(yard: Yard) -> None:
    worker = yard.worker()
    yard.submit("leaves 1")
    yard.until(lambda: yard.store.summary("leaves-1").status == "failed")
    yard.submit("charges 2")
    yard.until(lambda: yard.store.summary("charges-2").status == "done")
    assert yard.did() == Counter({"leave 1": 1, "charge 2": 1})
    assert worker.poll() is None


@pytest.mark.long
def test_a_ticket_that_failed_or_was_lost_is_made_anew(yard: Yard) -> None:
    """Trap 2 of the specification. The failure counts as a recovery."""
    first = yard.worker()
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    yard.submit("charges 1", "charges 2")
    yard.sql("UPDATE dbos.workflow_status SET status = 'ERROR' WHERE workflow_uuid = 'charges-1:1'")
    yard.sql("DELETE FROM dbos.workflow_status WHERE workflow_uuid = 'charges-2:1'")
    yard.worker()
    yard.until(yard.all_are("done"))
    assert yard.did() == {"charge 1": 1, "charge 2": 1}


@pytest.mark.long
def test_all_tickets_are_made_anew_after_the_queue_was_lost(yard: Yard) -> None:
    """Nothing of a run is lost with DBOS's tables."""
    first = yard.worker()
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    yard.submit("charges 1", "charges 2")
    yard.sql(f"DROP SCHEMA {yard.dbos} CASCADE")
    yard.worker("--requeue")
    yard.until(yard.all_are("done"))
    assert yard.did() == {"charge 1": 1, "charge 2": 1}


def test_a_pickled_ticket_is_not_read(yard: Yard) -> None:
    yard.worker()
    pickled = "Y29zCnN5c3RlbQooUyd0b3VjaCAvdG1wL293bmVkJwp0Ui4="  # os.system("touch /tmp/owned")
    yard.submit("charges 1")
    yard.until(yard.all_are("done"))
    yard.sql(
        "INSERT INTO dbos.workflow_status (workflow_uuid, status, name, queue_name, application_version, created_at, updated_at, priority, "
        "serialization, application_name) SELECT 'bad:1', 'ENQUEUED', name, queue_name, application_version, created_at, updated_at, 0, "
        "'py_pickle', application_name FROM dbos.workflow_status LIMIT 1",
    )
    yard.sql(
        "INSERT INTO dbos.workflow_input (workflow_uuid, inputs, retention_timestamp) VALUES ('bad:1', %s, 0)",
        pickled,
    )
    yard.until(lambda: yard.tickets()["ERROR"] == 1 or yard.tickets()["ENQUEUED"] == 0)
    assert not Path("/tmp/owned").exists()
    yard.submit("charges 2")
    yard.until(yard.all_are("done"))


@pytest.mark.long
@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_workers_outlive_a_restart_of_postgres(
    yard: Yard,
    postgres: PostgresServer,
    how: str,
) -> None:
    yard.worker(tool_s=0.1)
    yard.worker(tool_s=0.1)
    yard.submit(*[f"waits {n}" for n in range(16)])
    yard.until(lambda: len(yard.did()) >= 4)
    postgres.stop(how)
    time.sleep(1.0)
    postgres.start()
    yard.until(yard.all_are("done"))
    assert all(each.poll() is None for each in yard.workers)


@pytest.mark.long
def test_queued_and_waiting_runs_cost_a_worker_no_thread_and_no_connection(yard: Yard) -> None:
    """`scripts/pg-bench.sh` measures memory and time with ten thousand of each."""
    worker = yard.worker("--per-minute", "30", dsn=f"{yard.dsn}?application_name={yard.schema}")

    def costs() -> tuple[int, int]:
        """The most of 20 looks at the queue."""
        found: list[tuple[int, int]] = []
        for _ in range(20):
            time.sleep(0.1)
            [[connections]] = yard.sql(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s",
                yard.schema,
            )
            found.append((len(list(Path(f"/proc/{worker.pid}/task").iterdir())), connections))
        return max(each[0] for each in found), max(each[1] for each in found)

    yard.submit(*[f"pays {n}" for n in range(30)])
    yard.until(yard.all_are("waiting"))
    threads, connections = costs()
    assert connections <= 2 + 4 + 3  # Q6: those of the store, and DBOS's pool
    yard.submit(*[f"charges {n}" for n in range(300)])
    after = costs()
    assert after[0] <= threads
    assert after[1] <= connections
    assert Counter(each.status for each in yard.store.list(limit=None))["waiting"] == 30


def test_a_sweep_finds_the_ticket_of_each_run_by_an_index(yard: Yard) -> None:
    """Ids of runs have the collation "C"; with it, Postgres would read all tickets for each run."""
    yard.worker()

    def plan(db: Any) -> list[str]:
        db.execute("SET LOCAL enable_seqscan = off")
        state = yard.engine.state_of("r.id || ':' || r.segment")
        return [
            row[0]
            for row in db.execute(f"EXPLAIN SELECT ({state}) FROM {yard.schema}.runs r").fetchall()
        ]

    [line] = [line for line in yard.store.transaction(plan) if "workflow_status" in line]
    assert "Index" in line


@pytest.mark.long
def test_runs_begin_by_priority(yard: Yard) -> None:
    """A worker with one slot finds them all in the queue."""
    first = yard.worker(
        "--concurrency",
        "1",
    )  # makes the queue, whose slots a later worker may see for a moment
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    for n, priority in enumerate((9, None, 5, 1)):
        yard.submit(f"charges {n}", priority=priority)
    yard.worker("--concurrency", "1")
    yard.until(yard.all_are("done"))
    assert list(yard.did()) == ["charge 1", "charge 3", "charge 2", "charge 0"]


def test_limits_hold_and_a_waiting_run_counts_for_none(yard: Yard) -> None:
    """Of all workers, and of one key."""
    yard.worker("--total", "2", tool_s=0.1)
    yard.worker("--total", "2", tool_s=0.1)
    yard.submit(*[f"pays {n}" for n in range(8)])
    yard.until(yard.all_are("waiting"))
    assert max(map(int, (yard.folder / "most").read_text().split())) <= 2


@pytest.mark.long
def test_one_key_has_its_own_limit(yard: Yard) -> None:
    yard.worker("--per-key", "1", tool_s=0.1)
    yard.submit(*[f"charges {n}" for n in range(5)], queue_key="ann")
    yard.until(yard.all_are("done"))
    assert set((yard.folder / "most").read_text().split()) == {"1"}


@pytest.mark.long
def test_no_more_runs_begin_in_a_minute_than_the_limit(yard: Yard) -> None:
    """A rate."""
    yard.worker("--per-minute", "2")
    yard.submit("charges 1", "charges 2", "charges 3")
    yard.until(lambda: len(yard.did()) == 2)
    time.sleep(1.0)  # ten looks at the queue
    assert (len(yard.did()), yard.tickets()["ENQUEUED"]) == (2, 1)


@pytest.mark.long
def test_a_worker_that_is_told_to_end_lets_runs_come_to_rest(yard: Yard) -> None:
    yard.worker(tool_s=1.0)
    yard.submit(*[f"charges {n}" for n in range(4)])
    yard.until(lambda: len(yard.did()) == 4)
    yard.workers[0].send_signal(signal.SIGTERM)
    assert yard.workers[0].wait(60) == 0
    assert yard.all_are("done")()


@pytest.mark.long
def test_a_worker_that_is_told_to_end_twice_ends_as_after_once(yard: Yard) -> None:
    """A run that waits for a person waits on, and one in a tool comes to rest."""
    worker = yard.worker(tool_s=2.0)
    yard.submit("pays 1")
    yard.until(yard.all_are("waiting"))
    yard.submit("charges 2")
    yard.until(lambda: yard.did()["charge 2"])
    worker.send_signal(signal.SIGTERM)
    yard.until(lambda: "Stopping" in (yard.folder / "worker0.log").read_text())
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    found = {each.id: (each.status, each.recoveries, each.leased) for each in yard.store.list()}
    assert found == {"pays-1": ("waiting", 0, False), "charges-2": ("done", 0, False)}
    yard.store.decide("pays-1", yard.store.summary("pays-1").questions[0].approve())
    yard.worker()
    yard.until(yard.all_are("done"))
    assert yard.did() == {"charge 1": 1, "pay 1": 1, "charge 2": 1}


def test_runs_that_do_not_come_to_rest_in_time_go_on_elsewhere(yard: Yard) -> None:
    """Nothing is repeated that was done, nothing is lost."""
    yard.worker("--drain-s", "0.1", tool_s=60.0)
    yard.submit("waits 1", "waits 2")
    yard.until(lambda: len(yard.did()) == 2)
    yard.workers[0].send_signal(signal.SIGTERM)
    assert yard.workers[0].wait(60) == 0
    assert {(each.status, each.recoveries, each.error) for each in yard.store.list()} == {
        ("queued", 0, None),
    }
    yard.worker()
    yard.until(yard.all_are("done"))
    assert yard.did() == {"linger 1": 2, "linger 2": 2}  # a `read`, cut off in the middle


@pytest.mark.long
def test_a_blocked_thread_does_not_hold_up_the_end_of_a_worker(yard: Yard) -> None:
    """Its call may have happened, so a person is asked before it is made again (R4)."""
    yard.worker("--drain-s", "0.1", tool_s=3600.0)
    yard.submit("charges 1")
    yard.until(lambda: yard.did()["charge 1"])
    yard.workers[0].send_signal(signal.SIGTERM)
    assert yard.workers[0].wait(60) == 0
    assert {(each.status, each.recoveries, each.error) for each in yard.store.list()} == {
        ("queued", 0, None),
    }
    yard.worker()
    yard.until(yard.all_are("waiting"))
    [asked] = yard.store.summary("charges-1").questions
    assert (asked.kind, yard.did()) == ("unknown", {"charge 1": 1})


def test_a_run_waits_for_the_worker_whose_program_fits(yard: Yard, tmp_path: Path) -> None:
    """In a rolling deployment each worker takes what it fits."""
    other = tmp_path / "newer.py"
    text = (TESTS / "worker_program.py").read_text()
    newer = re.sub(r'ReAct\("task -> answer", \[.*\]\)', 'ReAct("task -> answer", [charge])', text)
    assert newer != text
    other.write_text(newer)
    yard.worker(program=other)
    yard.submit("charges 1")
    reason = yard.until(lambda: yard.store.summary("charges-1").error)
    assert reason.startswith("No worker has this version of its program `ReAct`: ")
    assert yard.store.summary("charges-1").status == "queued"
    yard.worker()
    yard.until(yard.all_are("done"))
    assert yard.did() == {"charge 1": 1}


def test_delays_and_expiries_are_kept_by_the_queue(yard: Yard) -> None:
    yard.worker()
    yard.submit("expires 1")
    yard.submit("charges 1", delay_s=3.0)
    submitted = time.time()
    yard.until(lambda: yard.store.summary("expires-1").status == "done")
    yard.until(lambda: yard.store.summary("charges-1").status == "done")
    begun = yard.store.load("charges-1").times[0]
    assert begun is not None
    assert begun > submitted + 2.0
    assert yard.did() == {"charge 1": 1}


@pytest.mark.long
def test_commands_of_other_processes_move_nothing_and_call_workers(yard: Yard) -> None:
    """And no password is shown."""
    yard.worker(tool_s=1.0)
    yard.worker(tool_s=1.0)
    yard.submit("pays 1", "waits 2")
    yard.until(lambda: len(yard.did()) == 2)
    before = yard.sql("SELECT workflow_uuid, executor_id FROM dbos.workflow_status ORDER BY 1")
    assert {line["id"] for line in json.loads(yard.command("runs", "--json"))} == {
        "pays-1",
        "waits-2",
    }
    assert yard.command("runs", "--stuck") == ""
    assert (
        yard.sql("SELECT workflow_uuid, executor_id FROM dbos.workflow_status ORDER BY 1") == before
    )
    yard.until(lambda: yard.store.summary("pays-1").status == "waiting")
    [question] = yard.store.summary("pays-1").questions
    approved = yard.command("approve", "pays-1", "--yes", "--question", question.id)
    assert PASSWORD not in yard.command("show", "pays-1") + approved
    yard.until(yard.all_are("done"))
    assert yard.did()["pay 1"] == 1
    assert all(PASSWORD not in log.read_text() for log in yard.folder.glob("*.log"))


@pytest.mark.long
def test_a_run_that_waits_for_its_turn_is_not_stuck(yard: Yard) -> None:
    """Behind a limit, or for its delay, for an hour; but it is once no worker is left."""
    worker = yard.worker("--per-minute", "1")
    yard.submit("charges 1")
    yard.until(yard.all_are("done"))
    yard.submit("charges 2", "charges 3")
    yard.submit("charges 4", delay_s=3600)
    yard.sql(f"UPDATE {yard.schema}.runs SET updated_at = updated_at - 3600")
    assert yard.command("runs", "--stuck") == ""
    worker.kill()
    worker.wait()
    listed = yard.until(lambda: yard.command("runs", "--stuck"))
    assert [line.split()[0] for line in listed.splitlines()] == [
        "charges-4",
        "charges-3",
        "charges-2",
    ]
    assert "It is queued, and no worker has taken it up for 36" in listed


def test_what_only_shows_runs_writes_nothing(yard: Yard) -> None:
    """Commands and a page that read, on connections that may not write; decisions are refused."""
    yard.worker()
    yard.submit("pays 1")
    yard.until(yard.all_are("waiting"))
    dsn, yard.dsn = yard.dsn, f"{yard.dsn}?options=-c%20default_transaction_read_only%3Don"
    assert "pays-1  waiting" in yard.command("runs")
    assert "charge returned: charged" in yard.command("show", "pays-1")
    assert "</html>" in yard.command("show", "pays-1", "--html")
    with yard.page("--read-only") as client:
        assert "pays-1" in client.get("/").text + client.get("/inbox").text
        assert "charged" in client.get("/runs/pays-1").text
        [question] = yard.store.summary("pays-1").questions
        got = client.post(
            f"/runs/pays-1/questions/{question.id}",
            {"do": "approve", "digest": question.digest, "back": "run", "v:n": "1"},
        )
        assert (got.status, "--read-only" in got.text) == (403, True)
    yard.dsn = dsn
    assert yard.store.summary("pays-1").decided == ()


def test_workers_go_on_with_a_run_that_a_chat_began(yard: Yard) -> None:
    """The page executes it until it asks; who decides elsewhere calls a worker."""
    with yard.page(f"{TESTS / 'worker_program.py'}:agent") as client:
        assert "Send" in client.get("/chat").text
        got = client.post("/chat", {"v:task": "pays 5"}, page="/chat")
        assert got.status == 303, got.text
        yard.until(yard.all_are("waiting"))
        assert "pays 5" in client.get(got.headers["location"]).text
        yard.worker()
        [line] = yard.store.list()
        yard.store.decide(line.id, line.questions[0].approve())
        yard.until(yard.all_are("done"))
        assert "ok" in client.get(got.headers["location"]).text
    assert yard.did() == {"charge 5": 1, "pay 5": 1}


@pytest.mark.long
def test_a_program_that_blocks_the_loop_keeps_its_lease(yard: Yard) -> None:
    """Longer than a silent worker counts as alive."""
    yard.worker(tool_s=8.0)
    yard.worker(tool_s=8.0)
    yard.submit("blocks 1")
    yard.until(yard.all_are("done"))
    assert yard.did() == {"block 1": 1}
    assert yard.store.summary("blocks-1").recoveries == 0


@pytest.mark.long
def test_a_deleted_run_leaves_no_ticket(yard: Yard) -> None:
    yard.worker()
    yard.submit("charges 1", "charges 2")
    yard.until(yard.all_are("done"))
    yard.store.delete("charges-1")
    assert [row[0] for row in yard.sql("SELECT workflow_uuid FROM dbos.workflow_status")] == [
        "charges-2:1",
    ]


@pytest.mark.long
def test_a_task_of_celery_carries_a_run_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine in memory, the store a file; the task is what docs/workers.md shows."""
    celery = pytest.importorskip("celery")
    monkeypatch.setattr(worker_program, "FOLDER", tmp_path)  # its tools run in this process
    store = ferrule.SQLiteStore(tmp_path / "runs.db")
    app = celery.Celery(broker="memory://", backend="cache+memory://")
    app.conf.task_always_eager = True

    @app.task(bind=True, max_retries=None)
    def carry_on(self: Any, run_id: str) -> str:
        status = ferrule.advance(store, run_id, [worker_program.agent])
        if status == "taken":
            raise self.retry(countdown=1)
        return status

    run_id = worker_program.agent.submit(store=store, task="pays 1")
    assert carry_on.delay(run_id).get() == "waiting"
    store.decide(run_id, store.summary(run_id).questions[0].approve())
    assert carry_on.delay(run_id).get() == "done"
    assert carry_on.delay(run_id).get() == "done"
    store.close()
