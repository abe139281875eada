"""Reads a Postgres DSN. It may hold a password, so no message shows it."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import Any

from ferrule.errors import ConfigurationError, importing
from ferrule.net.loopback import is_loopback


def load_psycopg() -> Any:
    """Import psycopg. Its types are not used: ferrule is type-checked without it, too."""
    with importing("`PostgresStore` needs psycopg: pip install 'ferrule[postgres]'."):
        return import_module("psycopg")


def check_dsn(dsn: str) -> None:
    """Warn about a DSN that may send passwords and runs unencrypted.

    Raises `ConfigurationError` if it is not a DSN.
    """
    parts = dsn_parts(dsn)
    hosts = (parts.get("host") or os.environ.get("PGHOST") or "").split(",")
    mode = parts.get("sslmode") or os.environ.get("PGSSLMODE") or "prefer"
    if mode in {"require", "verify-ca", "verify-full"}:
        return
    for host in hosts:
        is_socket = host.startswith(("/", "@"))
        if host and not is_socket and not is_loopback(host):
            msg = (
                f"The connection to Postgres on {host} may be unencrypted (`sslmode={mode}`): "
                "add `sslmode=verify-full` to the DSN, or `sslmode=require`, which does not check "
                "the server's certificate."
            )
            warnings.warn(msg, RuntimeWarning, stacklevel=5)
            return


def dsn_parts(dsn: str) -> dict[str, Any]:
    """The parts of a DSN, by libpq's names.

    Raises `ConfigurationError` if it is not a DSN, without showing it.
    """
    psycopg = load_psycopg()
    try:
        return dict(psycopg.conninfo.conninfo_to_dict(dsn))
    except (psycopg.Error, ValueError, AttributeError):
        # `AttributeError`: for None, as from an unset variable. Libpq's message may show the
        # password, so it is not chained.
        msg = (
            "This is not a Postgres DSN: "
            "postgresql://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=verify-full, "
            "or 'host=... dbname=...'."
        )
        raise ConfigurationError(msg) from None


def address_of(dsn: str) -> str:
    """Host, port and database of a DSN, for messages: without user and password."""
    parts = dsn_parts(dsn)
    host = parts.get("host") or os.environ.get("PGHOST") or ""
    port = parts.get("port") or os.environ.get("PGPORT")
    database = parts.get("dbname") or os.environ.get("PGDATABASE") or ""
    if port:
        host = f"{host}:{port}"
    return f"postgresql://{host}/{database}"
