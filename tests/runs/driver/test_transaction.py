"""What a tool can do with `ctx.db`, and what it cannot.

What becomes of the call is in `test_effects.py`.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from ferrule import Context, ReAct, SQLiteStore, Tool, context
from ferrule.errors import ToolError
from ferrule.runs.driver import transaction as module
from ferrule.runs.driver.transaction import Database
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@pytest.fixture
def db() -> Generator[sqlite3.Connection]:
    """In a transaction."""
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    db.execute("CREATE TABLE orders (n INTEGER PRIMARY KEY)")
    db.execute("BEGIN IMMEDIATE")
    yield db
    db.close()


def count(db: sqlite3.Connection) -> int:
    return db.execute("SELECT count(*) FROM orders").fetchone()[0]


def test_a_statement_gives_its_rows(db: sqlite3.Connection) -> None:
    """Read as those of sqlite3 are."""
    database = Database(db)
    made = database.execute("INSERT INTO orders VALUES (:n)", {"n": 5})
    assert (made.rowcount, made.lastrowid, made.description) == (1, 5, None)
    assert (
        database.executemany("INSERT INTO orders VALUES (?)", [(6,), (7,), (8,), (9,)]).rowcount
        == 4
    )
    found = database.execute("SELECT n FROM orders ORDER BY n")
    assert found.description[0][0] == "n"
    assert (
        found.fetchone(),
        found.fetchmany(2),
        next(iter(found)),
        found.fetchall(),
        list(found),
    ) == (
        (5,),
        [(6,), (7,)],
        (8,),
        [(9,)],
        [],
    )


@pytest.mark.parametrize("size", [0, 2, 3, 7])
def test_many_sets_of_parameters_are_all_written_and_counted(
    db: sqlite3.Connection,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever pieces they go in."""
    monkeypatch.setattr(module, "_AT_ONCE", 3)
    assert (
        Database(db)
        .executemany("INSERT INTO orders VALUES (?)", ((n,) for n in range(size)))
        .rowcount
        == size
    )
    assert count(db) == size


@pytest.mark.parametrize(
    "sql",
    [
        "commit",
        " ROLLBACK",
        "-- so\nEnd",
        "/* so */ savepoint a",
        ";BEGIN",
        "PRAGMA journal_mode=OFF",
        pytest.param("\ufeffCOMMIT", id="mark"),
    ],
)
def test_a_tool_cannot_end_the_transaction_itself(db: sqlite3.Connection, sql: str) -> None:
    """It is for the run to commit it, with the result."""
    database = Database(db)
    with pytest.raises(ToolError, match="a tool must not execute"):
        database.execute(sql)
    with pytest.raises(ToolError, match="a tool must not execute"):
        database.executemany(sql, [])
    assert database.execute("SELECT 'commit'").fetchone() == ("commit",)
    assert db.in_transaction


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM ferrule_entries",
        'UPDATE "FERRULE_decisions" SET answer = 1',
        "SELECT * FROM main.[ferrule_runs]",
        "CREATE TRIGGER t AFTER INSERT ON orders BEGIN DELETE FROM ferrule_runs; END",
    ],
)
def test_a_tool_does_not_reach_the_journals_and_the_decisions(
    db: sqlite3.Connection, sql: str
) -> None:
    """A tool that passes on what a model wrote could have approved a call, or dropped all runs."""
    database = Database(db)
    for execute in (database.execute, lambda sql: database.executemany(sql, [])):
        with pytest.raises(ToolError, match="are ferrule's"):
            execute(sql)
    assert database.execute("SELECT ?", ("ferrule_runs",)).fetchone() == ("ferrule_runs",)
    assert database.execute("SELECT 1 AS my_ferrule_note").fetchone() == (1,)


def test_rows_are_no_way_to_the_connection(db: sqlite3.Connection) -> None:
    """A cursor would be."""
    rows: Any = Database(db).execute("SELECT 1")
    assert not {"connection", "execute", "executemany", "executescript"} & set(dir(rows))


def test_nothing_is_done_after_the_end(db: sqlite3.Connection) -> None:
    """A thread that was given up after a timeout must not write into somebody else's transaction."""
    database = Database(db)
    rows = database.execute("SELECT 1")
    database.end()
    for late in (
        lambda: database.execute("SELECT 1"),
        lambda: database.executemany("SELECT 1", []),
        rows.fetchone,
        rows.fetchall,
    ):
        with pytest.raises(ToolError, match="has ended"):
            late()


def test_a_generator_that_goes_on_after_the_end_is_not_read_on(db: sqlite3.Connection) -> None:
    """The thread of a call that timed out is let go at the next row."""
    database = Database(db)
    read: list[int] = []

    def numbers() -> Generator[tuple[int]]:
        for n in range(100):
            read.append(n)
            if n == 2:
                database.end()
            yield (n,)

    with pytest.raises(ToolError, match="has ended"):
        database.executemany("INSERT INTO orders VALUES (?)", numbers())
    assert (read, count(db)) == ([0, 1, 2], 0)


def test_the_end_stops_a_statement_that_runs_and_waits_until_it_is_out() -> None:
    """Else what it writes would come after the transaction."""
    begun, stopped = threading.Event(), threading.Event()
    done: list[str] = []

    class Connection:
        in_transaction = True

        def execute(self, sql: str, parameters: Any) -> Any:
            begun.set()
            assert stopped.wait(60)
            done.append("out")
            raise sqlite3.OperationalError("interrupted")

        def interrupt(self) -> None:
            stopped.set()

    database = Database(Connection())

    def work() -> None:
        with pytest.raises(sqlite3.OperationalError):
            database.execute("INSERT ...")

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(60)
    database.end()
    done.append("ended")
    thread.join(60)
    assert done == ["out", "ended"]


def test_nothing_is_written_behind_a_statement_that_has_undone_the_transaction(
    db: sqlite3.Connection,
) -> None:
    """It would be written for good, at once."""
    database = Database(db)
    database.execute("INSERT INTO orders VALUES (1)")
    assert not database.undone
    with pytest.raises(sqlite3.IntegrityError):
        database.execute("INSERT OR ROLLBACK INTO orders VALUES (1)")
    assert database.undone
    for more in (
        lambda: database.execute("INSERT INTO orders VALUES (2)"),
        lambda: database.executemany("INSERT ...", [(3,)]),
    ):
        with pytest.raises(ToolError, match="has rolled back its transaction"):
            more()
    assert count(db) == 0


@pytest.mark.parametrize("uses", [True, False])
def test_a_transactional_tool_that_did_not_use_its_database_is_named_in_the_log(
    uses: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Written to a file, the same line would be written again after a crash, and nobody would be
    asked.
    """

    def lend(ctx: Context) -> str:
        if uses:
            ctx.db.execute("SELECT 1")
        return "lent"

    agent = ReAct("task -> answer", [Tool(lend, effect="transactional")], native=True)
    script = ScriptedLM(
        [{"name": "lend", "args": {}}, {"name": "finish", "args": {"answer": "lent"}}],
    )
    with closing(SQLiteStore(tmp_path / "runs.db")) as store, context(lm=script):
        assert agent.start(store=store, task="?").status == "done"
    assert [
        "lend has effect='transactional' and did not use ctx.db" in each for each in caplog.messages
    ] == [True] * (not uses)
