"""The recipe of examples/workers, command by command: a Postgres, two workers, a page and a
terminal on one store.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from page_server import Client
from postgres_server import free_port, program, run_as

EXAMPLE = Path(__file__).parents[2] / "examples" / "workers"
WITHIN_S = 240.0

pytest.importorskip("dbos", reason="needs ferrule[dbos]")
pytestmark = pytest.mark.usefixtures("postgres")


def blocks() -> list[str]:
    """The commands of the README, a block each."""
    found = re.findall(r"```bash\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    return ["\n".join(line.strip() for line in each.strip().splitlines()) for each in found]


class Terminals:
    """Shells that begin as the README says. Their Postgres has a port that is free here."""

    def __init__(self, folder: Path, begin: str) -> None:
        self.folder = folder
        self.begin = begin
        tools = [str(Path(sys.executable).parent), str(Path(program("initdb") or "").parent)]
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([*tools, os.environ["PATH"]]),
            "PGPORT": str(free_port()),
            "BROWSER": "true",
        }
        self.opened: list[subprocess.Popen[str]] = []

    def start(
        self,
        commands: str,
        folder: Path | None = None,
        **options: Any,
    ) -> tuple[subprocess.Popen[str], Path]:
        """A terminal whose last command goes on; and the file with all that it prints."""
        log = Path(tempfile.mkstemp(dir=self.folder)[1])
        script = f"set -e\n{self.begin}\n{commands}".rsplit("\n", 1)
        with log.open("w") as out:
            child = subprocess.Popen(
                ["bash", "-c", f"{script[0]}\nexec {script[1]}"], cwd=folder or EXAMPLE, env=self.environment, text=True, stdout=out,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, **options,
            )  # fmt: skip
        self.opened.append(child)
        return child, log

    def run(self, commands: str, folder: Path | None = None, **options: Any) -> str:
        """What the commands print."""
        child, log = self.start(commands, folder, **options)
        assert child.wait(WITHIN_S) == 0, log.read_text()
        return log.read_text()

    def until(self, is_so: Callable[[], Any]) -> Any:
        ends = time.monotonic() + WITHIN_S
        while not (found := is_so()):
            assert time.monotonic() < ends, [each.read_text() for each in self.folder.glob("tmp*")]
            time.sleep(0.2)
        return found

    def close(self) -> None:
        for each in reversed(self.opened):
            if each.poll() is None:
                each.kill()
            each.wait()


@pytest.fixture
def terminals() -> Iterator[Terminals]:
    folder = Path(tempfile.mkdtemp(prefix="ferrule-recipe-"))
    begin = "\n".join(
        line for line in blocks()[0].splitlines() if not line.startswith(("cd ", "pip "))
    )
    made = Terminals(folder, begin)
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.long
def test_the_readme_is_a_recipe(terminals: Terminals) -> None:
    """Each command as it stands there; the page decides, a worker is killed, and nothing is stuck."""
    _, server, create, worker, page, submit, decide = blocks()
    home = terminals.folder / "home"
    home.mkdir()
    if run_as():
        shutil.chown(home, "nobody", "nogroup")
        terminals.folder.chmod(0o755)
    make, serve = server.splitlines()
    terminals.run(make, home, **run_as())
    terminals.start(serve, home, **run_as())
    terminals.until(
        lambda: terminals.start(create, home, **run_as())[0].wait(WITHIN_S) == 0,
    )  # once it listens

    workers = [terminals.start(worker) for _ in range(2)]
    for each, log in workers:
        terminals.until(
            lambda log=log, each=each: "Ready" in log.read_text() or each.poll() is not None,
        )
        assert each.poll() is None, log.read_text()
    shown, said = terminals.start(page)
    link = terminals.until(lambda: re.search(r"(http://\S+?)(/\S+)", said.read_text()))

    listed = submit.splitlines()
    runs = terminals.run(listed[0]).split()
    assert len(runs) == 3
    terminals.until(lambda: all_are(terminals, listed[1], "waiting"))
    approve, stuck = decide.splitlines()
    assert "approved" in terminals.run(approve.replace("RUN", runs[0]))

    client = Client(link[1], link[2])
    assert all(each in client.get("/").text for each in runs)
    approve_on_the_page(client, runs[1])
    workers[0][0].kill()
    approve_on_the_page(client, runs[2])
    terminals.until(lambda: all_are(terminals, listed[1], "done"))
    assert terminals.run(stuck) == ""

    shown.send_signal(signal.SIGINT)
    workers[1][0].send_signal(signal.SIGTERM)
    assert (shown.wait(WITHIN_S), workers[1][0].wait(WITHIN_S)) == (130, 0), said.read_text()


def all_are(terminals: Terminals, command: str, status: str) -> bool:
    lines = [line for line in terminals.run(command).splitlines() if not line.startswith(" ")]
    return [line.split()[1] for line in lines] == [status] * 3


def approve_on_the_page(client: Client, run_id: str) -> None:
    """The form of the question as the page shows it, sent unchanged."""
    text = client.get(f"/runs/{run_id}").text
    path = re.search(rf'action="(/runs/{run_id}/questions/[^"]+)"', text)
    assert path is not None, text
    form = dict(
        re.findall(
            r'name="([^"]+)" value="([^"]*)"',
            text[path.start() : text.index("</form>", path.start())],
        ),
    )
    answer = client.post(path[1], {**form, "do": "approve"})
    assert answer.status == 303, answer.text
