"""The store of a command: a file of SQLite, or a Postgres by its DSN."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferrule.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Generator

    from ferrule.runs.store.postgres.store import PostgresStore

STORE_VARIABLE = "FERRULE_STORE"
DEFAULT_STORE = "ferrule.db"
StorePlace = Annotated[
    str,
    typer.Option(
        "--store",
        envvar=STORE_VARIABLE,
        show_envvar=True,
        help="The SQLite file with the runs, or postgresql://...",
    ),
]
QueueName = Annotated[str, typer.Option("--queue", help="The queue of the workers.")]
DEFAULT_QUEUE = "ferrule"
_DSN = re.compile(r"postgres(ql)?://|(\w+\s*=)")


def is_dsn(place: str) -> bool:
    """Whether a store is a Postgres: a URL, or `key=value` pairs of libpq."""
    return _DSN.match(place) is not None and not Path(place).exists()


def read_dsn(place: str) -> tuple[str, Any]:
    """The DSN of libpq, and the value of our own parameter `liveness`.

    `?liveness=heartbeat` is for a pooler that shares sessions.
    """
    parameter = re.search(r"[?&\s]liveness\s*=\s*(\w*)", place)
    if parameter is None:
        return place, "session"
    before, after = place[: parameter.start()], place[parameter.end() :]
    # The parameter that follows takes over the question mark.
    if parameter[0].startswith("?") and after.startswith("&"):
        after = "?" + after[1:]
    return before + after, parameter[1]


def postgres_store(place: str, **engine: Any) -> PostgresStore:
    """The store at a DSN, whose decisions call its workers.

    `engine` are options of `DBOSEngine`.
    """
    from ferrule.runs.store.dbos import DBOSEngine
    from ferrule.runs.store.postgres.store import PostgresStore

    os.environ.pop(STORE_VARIABLE, None)  # processes of tools do not inherit it
    dsn, liveness = read_dsn(place)
    return PostgresStore(dsn, liveness=liveness, engine=DBOSEngine(**engine))


def sqlite_place(place: str, command: str) -> str:
    """The place of a SQLite file.

    Raises `ConfigurationError` for a DSN: it may hold a password, and would become a file's name.
    """
    if is_dsn(place):
        msg = (
            f"`ferrule {command}` keeps runs in a SQLite file only: --store FILE. "
            "Found a DSN of Postgres."
        )
        raise ConfigurationError(msg)
    return place


@contextmanager
def open_store(place: str, *, must_exist: bool = True) -> Generator[Any]:
    """The store, until the block ends.

    Raises `ConfigurationError` if it `must_exist` and there is none.
    """
    from ferrule.runs.store.sqlite.store import SQLiteStore

    if is_dsn(place):
        store: Any = postgres_store(place, queue=DEFAULT_QUEUE)
    elif not must_exist or Path(place).is_file():
        store = SQLiteStore(place)
    else:
        msg = (
            f"There is no file {place!r}. "
            "Name the store with --store FILE, or --store postgresql://..."
        )
        raise ConfigurationError(msg)
    try:
        yield store
    finally:
        store.close()
