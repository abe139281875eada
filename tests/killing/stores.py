"""The stores that the scenarios run on: a file of SQLite, or a schema of the Postgres that `python
-m killing --postgres` started.

Each is watched: a point before and after everything that it does, and before each commit of a
tool's transaction.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from ferrule import PostgresStore, SQLiteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from killing.world import World

    Store = SQLiteStore | PostgresStore

DSN = "FERRULE_KILL_DSN"
"""Set for the processes of runs that are kept in Postgres."""


def is_postgres() -> bool:
    """Whether runs are kept in Postgres here."""
    return DSN in os.environ


def name() -> str:
    """What `system_calls.c` knows the store by: a part of the path of its files, or the port of its
    server.
    """
    return (
        f":{os.environ[DSN].rpartition(':')[2].partition('/')[0]}" if is_postgres() else "/runs.db"
    )


def touch(folder: Path) -> None:
    """Make a system call on a store."""
    if is_postgres():
        import psycopg

        psycopg.connect(os.environ[DSN]).close()
    else:
        with (folder / "runs.db").open("wb", buffering=0) as file:
            file.write(b"one call")


def plain(world: World, **options: Any) -> Store:
    """The store of a run, without points."""
    return _of_kind(world, (SQLiteStore, PostgresStore), options)


def watched(world: World, **options: Any) -> Any:
    """The store of a run, with points."""
    store: Any = _of_kind(world, _WATCHED, options)
    store.world = world
    return store


def _of_kind(world: World, kinds: tuple[type[Any], type[Any]], options: dict[str, Any]) -> Any:
    if is_postgres():
        return kinds[1](os.environ[DSN], schema=_schema(world), **options)
    return kinds[0](world.place / "runs.db", **options)


@contextmanager
def opened(world: World) -> Generator[Store]:
    """The store of a run, without points, until the block ends."""
    store = plain(world)
    try:
        yield store
    finally:
        store.close()


def wait_until_free(world: World) -> None:
    """Wait until the process that was killed counts as dead: at once on this machine, but Postgres
    is asked by many.
    """
    if is_postgres():
        with opened(world) as store:
            while any(line.leased for line in store.list()):
                time.sleep(0.2)


def _schema(world: World) -> str:
    return world.place.name.lower()


# -- what a run leaves in its store, read by SQL
# -----------------------------------------------------------------


def order(world: World, db: Any, n: int) -> None:
    """An effect of a transactional tool: a row of the store's own database."""
    if is_postgres():
        db.execute(f'INSERT INTO "{_schema(world)}".orders VALUES (%s)', (n,))
    else:
        db.execute("CREATE TABLE IF NOT EXISTS orders (n INTEGER)")
        db.execute("INSERT INTO orders VALUES (?)", (n,))


def orders(world: World) -> list[int]:
    """What was ordered."""
    if is_postgres():
        return [n for (n,) in run_sql(world, "SELECT n FROM {schema}.orders ORDER BY n")]
    with closing(sqlite3.connect(world.place / "runs.db")) as db:
        try:
            return [n for (n,) in db.execute("SELECT n FROM orders ORDER BY n")]
        except sqlite3.OperationalError:  # no such table: nothing was ordered
            return []


def damage(world: World) -> str:
    """What is wrong with the store itself; empty if nothing is."""
    if not is_postgres():
        with closing(sqlite3.connect(world.place / "runs.db")) as db:
            (health,) = db.execute("PRAGMA integrity_check").fetchone()
        return "" if health == "ok" else health
    numbers = "SELECT r.id, r.written, e.place - (r.no << 32) FROM {schema}.runs r JOIN {schema}.entries e ON e.place >> 32 = r.no"
    found: dict[tuple[str, int], list[int]] = {}
    for run_id, written, number in run_sql(world, numbers + " ORDER BY e.place"):
        found.setdefault((run_id, written), []).append(number)
    gaps = [
        f"{run_id} has {written} entries, numbered {places}"
        for (run_id, written), places in found.items()
        if places != [*range(written)]
    ]
    return "; ".join(gaps)


@contextmanager
def kept(world: World) -> Generator[None]:
    """What a run needs outside its folder, until the block ends."""
    if not is_postgres():
        yield
        return
    with opened(world) as store:
        store.list()
    run_sql(world, "CREATE TABLE {schema}.orders (n INTEGER)")
    try:
        yield
    finally:
        run_sql(world, "DROP SCHEMA {schema} CASCADE")


def is_held(world: World) -> str:
    """What an interrupted process at rest keeps others from doing; empty if nothing."""
    if is_postgres():
        ends = time.monotonic() + 15
        while (
            found := [query for (query,) in run_sql(world, _OPEN) if _schema(world) in query]
        ) and time.monotonic() < ends:
            time.sleep(0.1)
        return f"open transactions: {found}" if found else ""
    if not (world.place / "runs.db").exists():
        return ""
    with closing(sqlite3.connect(world.place / "runs.db", timeout=15, isolation_level=None)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
            db.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            return str(error)
    return ""


_OPEN = "SELECT query FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"


def run_sql(world: World, text: str) -> list[Any]:
    """The rows of a statement; `{schema}` is that of the run."""
    import psycopg

    with psycopg.connect(os.environ[DSN], autocommit=True) as db:
        found = db.execute(text.replace("{schema}", f'"{_schema(world)}"').encode())
        return found.fetchall() if found.description is not None else []


# -- points
# ------------------------------------------------------------------------------------------------------


def _watching(kind: type[Any]) -> type[Any]:
    """A kind of store with a point before and after what it does."""

    class Watched(kind):
        world: World
        inside = ""
        """Added to the labels of points inside a tool's transaction: a process that is stopped
        there holds the database.
        """

        async def aappend(self, *given: Any, **named: Any) -> bool:
            self.world.point("aappend")
            going_on = await super().aappend(*given, **named)
            self.world.point("aappended")
            return going_on

        def transact(self, lease: Any, work: Callable[[Any], Any]) -> Any:
            def inside(db: Any) -> Any:
                self.inside = " inside"
                try:
                    return work(db)
                finally:
                    self.inside = ""

            self.world.point("transaction")
            found = super().transact(lease, inside)
            self.world.point("transaction done")
            return found

    for name in ("create", "take", "append", "release", "load", "decide", "say", "cancel"):
        setattr(Watched, name, _watched(getattr(kind, name), name))
    return Watched


def _watched(inner: Any, name: str) -> Any:
    def method(self: Any, *given: Any, **named: Any) -> Any:
        self.world.point(name + self.inside)
        found = inner(self, *given, **named)
        self.world.point(f"{name} done")
        return found

    return method


_WATCHED = _watching(SQLiteStore), _watching(PostgresStore)
