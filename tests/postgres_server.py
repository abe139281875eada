"""A Postgres of the system for tests: its own data folder, on loopback, never as root.

`apt-get install postgresql` brings one.

`none_here()` says why there is none; `FERRULE_PG_TEST=1` (`make pg-test`) makes that an error.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

PASSWORD = "t0p-s3cret-of-tests"
INSISTS = bool(os.environ.get("FERRULE_PG_TEST"))
_AS_NOBODY: dict[str, Any] = (
    {"user": "nobody", "group": "nogroup", "extra_groups": []}
    if hasattr(os, "geteuid") and os.geteuid() == 0
    else {}
)


def run_as() -> dict[str, Any]:
    """The user of a server, for `subprocess`: Postgres and PgBouncer refuse to run as root."""
    return _AS_NOBODY


def program(name: str) -> str | None:
    """The path of a program of Postgres."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


def none_here() -> str | None:
    """Why no Postgres can be started here; None if one can."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed (pip install 'ferrule[postgres]')"
    return (
        None
        if program("initdb") and program("postgres")
        else "there is no Postgres on this machine (apt-get install postgresql)"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class PostgresServer:
    """One server. It survives `stop` and `start`: port and data stay."""

    def __init__(self, *, is_durable: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ferrule-pg-"))
        self.port = free_port()
        self._settings = ["fsync=on" if is_durable else "fsync=off", "max_connections=200"]
        self._process: subprocess.Popen[Any] | None = None
        password = self.folder / "password"
        password.write_text(PASSWORD)
        if _AS_NOBODY:
            shutil.chown(self.folder, "nobody", "nogroup")
            shutil.chown(password, "nobody", "nogroup")
        self._run(
            "initdb",
            "--no-sync",
            "-A",
            "scram-sha-256",
            "-U",
            "ferrule",
            f"--pwfile={password}",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
            "-D",
            str(self.data),
        )
        self.start()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def dsn(self) -> str:
        return self.dsn_at(self.port)

    def dsn_at(self, port: int) -> str:
        """The DSN by another port: that of a proxy or a pooler."""
        return f"postgresql://ferrule:{PASSWORD}@127.0.0.1:{port}/postgres"

    def _run(self, name: str, *arguments: str) -> None:
        found = subprocess.run(
            [program(name) or name, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            **_AS_NOBODY,
        )
        assert found.returncode == 0, found.stderr

    def start(self) -> None:
        import psycopg

        settings = [part for each in self._settings for part in ("-c", each)]
        log = (self.folder / "log").open("ab")
        command = [
            program("postgres") or "postgres",
            "-D",
            str(self.data),
            "-p",
            str(self.port),
            "-h",
            "127.0.0.1",
            "-k",
            str(self.folder),
            *settings,
        ]
        process = self._process = subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=log,
            stderr=log,
            **_AS_NOBODY,
        )
        log.close()
        deadline = time.monotonic() + 120
        while True:
            try:
                psycopg.connect(self.dsn).close()
            except psycopg.OperationalError:
                assert process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.05)
            else:
                return

    def stop(self, how: str = "fast") -> None:
        """Stop it: "fast" ends the sessions, "immediate" is a crash."""
        if self._process is not None:
            self._process.send_signal({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[how])
            self._process.wait(120)
            self._process = None

    def close(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)


def no_pooler_here() -> str | None:
    """Why no PgBouncer can be started here; None if one can."""
    return (
        None
        if _pgbouncer()
        else "there is no PgBouncer on this machine (apt-get install pgbouncer)"
    )


def _pgbouncer() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")


class Pooler:
    """A PgBouncer in transaction mode before a server."""

    def __init__(self, server: PostgresServer, *, size: int = 3) -> None:
        import psycopg

        port, folder = free_port(), server.folder
        self.dsn = server.dsn_at(port)
        (folder / "users").write_text(f'"ferrule" "{PASSWORD}"\n')
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
            f"unix_socket_dir =\nauth_type = scram-sha-256\nauth_file = {folder}/users\npool_mode = transaction\ndefault_pool_size = {size}\n",
        )
        for each in ("users", "pgbouncer.ini"):
            (folder / each).chmod(0o644)
        self._process = subprocess.Popen(
            [_pgbouncer() or "pgbouncer", "-q", str(folder / "pgbouncer.ini")],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **run_as(),
        )  # fmt: skip
        while True:
            try:
                psycopg.connect(self.dsn).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None
                time.sleep(0.05)
            else:
                return

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
