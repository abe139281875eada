"""Reads a Postgres DSN. It may hold a password, so no message shows it."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import Any

from ferrule.errors import ConfigurationError
from ferrule.net.loopback import is_loopback


def load_psycopg() -> Any:
    """Import psycopg. Its types are not used: ferrule is type-checked without it, too."""
    try:
        return import_module("psycopg")
    except ImportError as error:
        raise ConfigurationError(
            "`PostgresStore` needs psycopg: pip install 'ferrule[postgres]'.",
        ) from error


def check_dsn(dsn: str) -> None:
    """Warn about a DSN that may send passwords and runs unencrypted. Raises `ConfigurationError` if it is not a DSN."""
    given = given_by(dsn)
    hosts = (given.get("host") or os.environ.get("PGHOST") or "").split(",")
    mode = given.get("sslmode") or os.environ.get("PGSSLMODE") or "prefer"
    far = [
        host for host in hosts if host and not host.startswith(("/", "@")) and not is_loopback(host)
    ]
    if far and mode not in {"require", "verify-ca", "verify-full"}:
        msg = (
            f"The connection to Postgres on {far[0]} may be unencrypted (`sslmode={mode}`): add `sslmode=verify-full` to the DSN, or "
            "`sslmode=require`, which does not check the server's certificate."
        )
        warnings.warn(msg, RuntimeWarning, stacklevel=4)


def given_by(dsn: str) -> dict[str, Any]:
    """The parts of a DSN, by libpq's names. Raises `ConfigurationError` if it is not a DSN, without showing it."""
    psycopg = load_psycopg()
    try:
        return dict(psycopg.conninfo.conninfo_to_dict(dsn))
    except (
        psycopg.Error,
        ValueError,
        AttributeError,
    ):  # the last: None, for example from an unset variable
        msg = "This is not a Postgres DSN: postgresql://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full, or 'host=... dbname=...'."
        raise ConfigurationError(msg) from None  # libpq's message may show the password


def place_of(dsn: str) -> str:
    """Host, port and database of a DSN, for messages: without user and password."""
    given = given_by(dsn)
    host, port = (
        given.get(name) or os.environ.get(f"PG{name.upper()}") for name in ("host", "port")
    )
    base = given.get("dbname") or os.environ.get("PGDATABASE") or ""
    return f"postgresql://{host or ''}{f':{port}' if port else ''}/{base}"
