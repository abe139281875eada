"""The tables of a Postgres store, and the SQL that differs from SQLite's.

The tables are created once, even if many processes start together.

Times are seconds since 1970 by Postgres's clock. The entries of run number `no` have the places
from `no * 2**32` on, as in SQLite; `written` counts them. Text that is compared or sorted has the
collation "C", which sorts like Python.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from ferrule.errors import ConfigurationError, StoreError

_VERSION = 2
NOW = "extract(epoch FROM clock_timestamp())::float8"
SILENT_S = 5.0
"""After this time without a heartbeat, an owner is dead if its lock is free.

For the same time, a new connection takes over no run.
"""

_TABLES = """
CREATE SCHEMA IF NOT EXISTS "{schema}";
CREATE TABLE "{schema}".runs (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text COLLATE "C" NOT NULL UNIQUE,
    program text COLLATE "C" NOT NULL, status text NOT NULL,
    created_at float8 NOT NULL, updated_at float8 NOT NULL,
    owner text, token bigint NOT NULL DEFAULT 0, written bigint NOT NULL DEFAULT 0,
    recoveries integer NOT NULL DEFAULT 0, cancelled boolean NOT NULL DEFAULT FALSE,
    said integer NOT NULL DEFAULT 0, asking integer NOT NULL DEFAULT 0,
    segment bigint NOT NULL DEFAULT 0, queue text, priority integer, queue_key text,
    expires_at float8,
    steps integer NOT NULL DEFAULT 0, seconds float8 NOT NULL DEFAULT 0,
    tokens bigint NOT NULL DEFAULT 0, cost float8 NOT NULL DEFAULT 0,
    title text NOT NULL DEFAULT '', metadata text,
    asked text NOT NULL DEFAULT '', answered text NOT NULL DEFAULT '',
    assigned text NOT NULL DEFAULT '', scores text,
    usage text, error text, questions text NOT NULL, head text NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX runs_by_change ON "{schema}".runs (updated_at, id);
CREATE INDEX runs_by_program ON "{schema}".runs (program);
CREATE INDEX runs_waiting ON "{schema}".runs (updated_at) WHERE status = 'waiting';
CREATE INDEX runs_queued ON "{schema}".runs (updated_at) WHERE status = 'queued';
CREATE INDEX runs_expiring ON "{schema}".runs (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX runs_by_owner ON "{schema}".runs (owner) WHERE owner IS NOT NULL;
CREATE TABLE "{schema}".labels (
    label text COLLATE "C" NOT NULL, run bigint NOT NULL, PRIMARY KEY (label, run)
);
CREATE INDEX labels_by_run ON "{schema}".labels (run);
CREATE TABLE "{schema}".used (
    kind text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, run bigint NOT NULL,
    program text NOT NULL, changed_at float8 NOT NULL,
    calls bigint NOT NULL, failed integer NOT NULL,
    tokens bigint NOT NULL, cost float8 NOT NULL, seconds float8 NOT NULL,
    PRIMARY KEY (kind, name, run)
);
CREATE INDEX used_by_run ON "{schema}".used (run);
CREATE TABLE "{schema}".search (run bigint PRIMARY KEY, words tsvector NOT NULL);
CREATE INDEX search_by_word ON "{schema}".search USING gin (words);
CREATE TABLE "{schema}".notes (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, run bigint NOT NULL,
    author text NOT NULL, written_at float8 NOT NULL, note text NOT NULL
);
CREATE INDEX notes_by_run ON "{schema}".notes (run);
CREATE TABLE "{schema}".entries (
    place bigint PRIMARY KEY, written_at float8, entry text NOT NULL
);
CREATE TABLE "{schema}".decisions (
    run_id text COLLATE "C" NOT NULL, question_id text COLLATE "C" NOT NULL,
    decision text NOT NULL, decided_at float8 NOT NULL, taken boolean NOT NULL DEFAULT FALSE,
    PRIMARY KEY (run_id, question_id)
);
CREATE INDEX decisions_not_taken ON "{schema}".decisions (run_id) WHERE NOT taken;
CREATE TABLE "{schema}".owners (
    name text COLLATE "C" PRIMARY KEY, lock_key bigint, seen_at float8 NOT NULL,
    lease_s float8 NOT NULL, queue text
);
CREATE TABLE "{schema}".version (number integer NOT NULL);
INSERT INTO "{schema}".version VALUES ({version});
"""

# The lock is tried as shared: otherwise, two processes that try it at once would take each other
# for a live owner. Without a lock (NULL) only the heartbeat counts.
LEASE_ENDS = (
    f"(SELECT CASE WHEN seen_at < {NOW} - {SILENT_S} "
    "AND pg_try_advisory_xact_lock_shared(lock_key) THEN 0 "
    "ELSE seen_at + lease_s END FROM ferrule_owners WHERE name = owner)"
)
"""When the lease of a row of `runs` ends: at once if its owner is silent and its lock free."""

SEEN = (
    "INSERT INTO ferrule_owners (name, lock_key, seen_at, lease_s, queue) "
    f"VALUES (?, ?, {NOW}, ?, ?) "
    f"ON CONFLICT (name) DO UPDATE SET seen_at = {NOW}, lock_key = excluded.lock_key, "
    "lease_s = excluded.lease_s, queue = excluded.queue"
)
"""A heartbeat."""

_APPEND = (
    "WITH run AS (UPDATE ferrule_runs SET written = written + 1 "
    "WHERE id = ? AND token = ? AND owner = ? AND written = ? AND NOT (cancelled AND ?) "
    "AND said <= coalesce(?::integer, said) "
    "RETURNING no, written, cancelled, said){also} "
    f"INSERT INTO ferrule_entries SELECT (no << 32) + written - 1, {NOW}, ? FROM run "
    "RETURNING (SELECT cancelled FROM run), (SELECT said FROM run)"
)
APPEND = _APPEND.format(also="")
"""Fence, number and entry in one statement.

The writer gives the number that it expects, so a retry after a lost answer does no harm.
"""
APPEND_AND_TAKE = _APPEND.format(
    also=", taken AS (UPDATE ferrule_decisions SET taken = TRUE FROM run "
    "WHERE decisions.run_id = ? AND decisions.question_id = ?)"
)

_PLACE = "((SELECT no FROM ferrule_runs WHERE id = ?) << 32)"
WRITTEN = (
    "SELECT 0 AS part, place, written_at AS at, entry AS text, NULL AS status "
    "FROM ferrule_entries "
    f"WHERE place >= {_PLACE} + ? AND place < {_PLACE} + (1::bigint << 32) "
    "UNION ALL SELECT 1, 0, decided_at, decision, NULL "
    "FROM ferrule_decisions WHERE run_id = ? AND NOT taken"
)
"""Everything that a run has besides its row, in one round trip.

Its entries from a number on, and the decisions that it has not used.
"""
STORED = (
    "SELECT -1 AS part, no AS place, 0 AS at, head AS text, status "
    f"FROM ferrule_runs WHERE id = ? UNION ALL {WRITTEN}"
)
"""`WRITTEN` with the run's head and status: one statement is one snapshot."""


def check_schema_name(schema: str) -> None:
    """Raise `ConfigurationError` for a schema name that SQL would have to quote."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
        msg = (
            "`schema` is a name of at most 63 lowercase letters, digits and underscores, "
            f"and does not begin with a digit; found {schema!r}."
        )
        raise ConfigurationError(msg)


def lock_key(name: str) -> int:
    """The key of the advisory lock with this name."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), signed=True)


@lru_cache(maxsize=1024)
def dialect(sql: str, schema: str) -> bytes:
    """Turn a shared SQL statement into one for Postgres.

    Tables have a schema in place of the prefix `ferrule_`, and `%s` replaces each `?`.
    """
    qualified = re.sub(r"\b(FROM|INTO|UPDATE|JOIN) ferrule_(\w+)", rf'\1 "{schema}".\2', sql)
    return qualified.replace("?", "%s").encode()


def set_up(connection: Any, schema: str, name: str) -> None:
    """Create the tables if there are none. Raises `StoreError` for those of another version."""
    version = _version(connection, schema)
    if version is None:
        connection.execute("BEGIN")
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key(f"ferrule {schema}"),))
        # Again: another process may have created the tables meanwhile.
        version = _version(connection, schema)
        if version is None:
            connection.execute(_TABLES.format(schema=schema, version=_VERSION))
            version = _VERSION
        connection.execute("COMMIT")
    if version != _VERSION:
        msg = (
            f"The store {name!r} has schema {version}; this ferrule reads schema {_VERSION}. "
            "Use the version of ferrule that wrote it."
        )
        raise StoreError(msg)


def _version(connection: Any, schema: str) -> int | None:
    # Not `to_regclass`: within a transaction it may keep missing a table that another transaction
    # has made meanwhile.
    table = connection.execute(
        "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'version'", (schema,)
    ).fetchone()
    if table is None:
        return None
    return connection.execute(f'SELECT number FROM "{schema}".version').fetchone()[0]
