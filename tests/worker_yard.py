"""A store on Postgres with its worker processes, for tests and for `python -m killing.workers`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import worker_program
from page_server import Client

from ferrule import DBOSEngine, PostgresStore
from ferrule.cli.stores import read_dsn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from postgres_server import PostgresServer

TESTS = Path(__file__).parent
WITHIN_S = 120.0


class Yard:
    """A store, its workers, and what their tools did."""

    def __init__(
        self,
        server: PostgresServer,
        schema: str,
        folder: Path,
        *,
        pooler: str = "",
        max_recoveries: int = 5,
    ) -> None:
        self.max_recoveries = max_recoveries
        self.server, self.schema, self.folder = server, schema, folder
        self.dsn = f"{pooler}?liveness=heartbeat" if pooler else server.dsn
        self.dbos = f"dbos_{schema}"
        self.engine = DBOSEngine(schema=self.dbos)
        dsn, liveness = read_dsn(self.dsn)
        self.store = PostgresStore(dsn, schema=schema, liveness=liveness, engine=self.engine)
        self.workers: list[subprocess.Popen[bytes]] = []

    def worker(
        self,
        *options: str,
        program: Path | None = None,
        tool_s: float = 0.0,
        dsn: str = "",
    ) -> subprocess.Popen[bytes]:
        """A worker process, once it is ready."""
        made = self.start(None, *options, program=program, tool_s=tool_s, dsn=dsn)
        log = self.folder / f"worker{len(self.workers) - 1}.log"
        self.until(lambda: "Ready" in log.read_text() or made.poll() is not None)
        assert made.poll() is None, log.read_text()
        return made

    def start(
        self,
        place: int | None,
        *options: str,
        program: Path | None = None,
        tool_s: float = 0.0,
        dsn: str = "",
    ) -> subprocess.Popen[bytes]:
        """A worker process, in the place of another one; `dsn` is its own way to Postgres."""
        found = program or TESTS / "worker_program.py"
        environment = {
            "EFFECTS": str(self.folder),
            "TOOL_S": str(tool_s),
            "FERRULE_STORE": dsn or self.dsn,
        }
        with (self.folder / f"worker{len(self.workers) if place is None else place}.log").open(
            "w",
        ) as log:
            made = subprocess.Popen(
                [*self.ferrule, "worker", f"{found}:agent", *options], env={**self.environment, **environment}, stderr=log,
            )  # fmt: skip
        if place is None:
            self.workers.append(made)
        else:
            self.workers[place] = made
        return made

    @property
    def ferrule(self) -> list[str]:
        """The command, for the schemas of this test."""
        code = (
            "import ferrule.cli.stores as s, ferrule.runs.store.dbos as d\n"
            f"s.postgres_store = lambda dsn, **o: __import__('ferrule').PostgresStore(s.read_dsn(dsn)[0], schema={self.schema!r}, "
            f"liveness=s.read_dsn(dsn)[1], max_recoveries={self.max_recoveries}, engine=d.DBOSEngine(schema={self.dbos!r}, **o))\n"
            "import ferrule.cli.commands.worker as w; w.postgres_store = s.postgres_store\n"
            "from ferrule.cli.main import process; process()"
        )
        return [sys.executable, "-c", code]

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        return {**os.environ, "FERRULE_STORE": self.dsn, "PYTHONPATH": path}

    def command(self, *arguments: str) -> str:
        """What a command prints."""
        found = subprocess.run(
            [*self.ferrule, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
        )
        assert found.returncode == 0, found.stderr
        return found.stdout

    @contextmanager
    def page(self, *options: str) -> Generator[Client]:
        """`ferrule ui` in a process of its own, and a person before it.

        Raises if the page wrote a traceback.
        """
        log = self.folder / "ui.log"
        command = [*self.ferrule, "ui", *options, "--port", "0", "--no-open", "--person", "ann"]
        environment = {**self.environment, "EFFECTS": str(self.folder)}
        with (
            log.open("w") as errors,
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as page,
        ):
            try:
                found = re.search(
                    r"(http://[^/]+)(/\S+)",
                    page.stdout.readline() if page.stdout is not None else "",
                )
                assert found is not None, log.read_text()
                yield Client(found[1], found[2])
            finally:
                page.terminate()
        assert "Traceback" not in log.read_text(), log.read_text()

    def submit(self, *tasks: str, **options: Any) -> list[str]:
        return [
            worker_program.agent.submit(
                store=self.store,
                run_id=task.replace(" ", "-"),
                task=task,
                **options,
            )
            for task in tasks
        ]

    def until(self, is_so: Callable[[], Any]) -> Any:
        ends = time.monotonic() + WITHIN_S
        while not (found := is_so()):
            assert time.monotonic() < ends, [
                (each.id, each.status, each.error, each.leased)
                for each in self.store.list(limit=None)
            ]
            time.sleep(0.05)
        return found

    def all_are(self, status: str) -> Callable[[], bool]:
        return lambda: {each.status for each in self.store.list(limit=None)} == {status}

    def did(self) -> Counter[str]:
        file = self.folder / "effects"
        return Counter(file.read_text().split("\n")[:-1] if file.exists() else [])

    def sql(self, text: str, *values: Any) -> list[Any]:
        """What a statement finds; `dbos.` is the schema of DBOS."""

        def work(db: Any) -> list[Any]:
            found = db.execute(text.replace("dbos.", f"{self.dbos}."), values)
            return found.fetchall() if found.description is not None else []

        return self.store.transaction(work)

    def tickets(self) -> Counter[str]:
        return Counter(row[0] for row in self.sql("SELECT status FROM dbos.workflow_status"))

    def close(self) -> None:
        for each in self.workers:
            if each.poll() is None:
                each.kill()
            each.wait()
        self.store.close()
