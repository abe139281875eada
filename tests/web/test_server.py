"""The command `ferrule ui` as a process (`cli/commands/ui.py`, `web/app.py`)."""

from __future__ import annotations

import errno
import html
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
from page_server import Client, Stream
from page_store import finish, support

from ferrule import Run, SQLiteStore, context
from ferrule.cli.commands.ui import _write_redirect
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM

PAGE = ["-m", "ferrule", "ui", "--no-open"]
COMMAND = [sys.executable, "-W", "error", *PAGE]


def started(store: SQLiteStore, *options: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    process = subprocess.Popen(
        [*COMMAND, "--store", store.path, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    links: dict[str, str] = {}
    for line in process.stdout:
        found = re.match(r"Open(?: as (.*?))?: (http://\S+)", line)
        if found is None:
            assert line.startswith("Each link opens one browser"), line
            break
        links[found[1]] = found[2]
    return process, links


def client(link: str) -> Client:
    address, _, path = link.partition("/?")
    return Client(address, f"/?{path}")


@pytest.mark.integration
@pytest.mark.skipif(os.name == "nt", reason="needs SIGINT")
def test_the_command_prints_a_link_a_person_and_ends_with_ctrl_c(store: SQLiteStore) -> None:
    """Also with a page open; no program is asked for."""
    process, links = started(store, "--person", "ann", "--person", "bob", "--port", "0")
    try:
        assert [*links] == ["ann", "bob"]
        ann = client(links["ann"])
        assert "ann" in ann.get("/").text
        assert "bob" in client(links["bob"]).get("/").text
        live = Stream(ann, "/live")
        live.event()
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30)
        assert process.returncode in {0, 130}
        assert "Traceback" not in said
        assert not any(link.partition("token=")[2] in said for link in links.values())
        assert "Open as ann: " in said  # for another browser
        live.close()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.integration
def test_a_port_that_is_taken_gives_the_next_free_one(store: SQLiteStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process, links = started(store, "--port", str(port))
        try:
            [link] = links.values()
            assert int(link.split(":")[2].partition("/")[0]) > port
        finally:
            process.kill()
            process.communicate()


def test_a_port_that_windows_keeps_is_taken_as_well_and_one_of_administrators_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hyper-V keeps ports for itself, and other programs take theirs alone: both are `EACCES`
    there.
    """
    app = pytest.importorskip(
        "ferrule.web.app",
        reason="needs the extra: pip install 'ferrule[ui]'",
    )
    asked: list[int] = []

    def create(address: tuple[str, int], **_: Any) -> str:
        asked.append(address[1])
        if address[1] != 7302:
            raise PermissionError(errno.EACCES, "forbidden by its access permissions")
        return "taken"

    monkeypatch.setattr(socket, "create_server", create)
    assert app._listening_socket("127.0.0.1", 7300) == "taken"
    assert asked == [7300, 7301, 7302]
    with pytest.raises(ConfigurationError, match=r"port 80: forbidden"):
        app._listening_socket("127.0.0.1", 80)


def test_the_command_loads_no_program_and_the_others_no_page(tmp_path: Any) -> None:
    """`import ferrule` and `ferrule runs` load nothing of it."""
    program = (
        "import json, sys\nfrom ferrule.cli.main import main\nmain(['runs', '--store', sys.argv[1]])\n"
        "print(json.dumps([each for each in sys.modules if each.split('.')[0] in ('jinja2', 'starlette', 'uvicorn') or each.startswith('ferrule.web')]))"
    )
    path = tmp_path / "x.db"
    with_one = SQLiteStore(path)
    with_one.list()
    with_one.close()
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_the_application_loads_no_server_and_no_templates_before_they_are_used() -> None:
    program = (
        "import sys\nfrom ferrule import MemoryStore, ui_app\nui_app(MemoryStore())\n"
        "print([each for each in ('jinja2', 'uvicorn') if each in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


LIST = """
import sys
sys.path.insert(0, sys.argv[2])
from page_server import Client, served
from ferrule import SQLiteStore, ui_app

app = ui_app(SQLiteStore(sys.argv[1]))
with served(app) as address:
    found = Client(address, *app.links.values())
    assert "settled" in found.get("/").text
    assert found.get("/inbox").status == found.get("/static/page.css").status == 200
    print([name for name in sys.modules if name.startswith("pydantic")])
"""


@pytest.mark.parametrize("package", ["jinja2", "starlette", "uvicorn"])
def test_without_the_extra_the_command_names_it(package: str) -> None:
    """The command says what to install."""
    program = f"import sys\nsys.modules[{package!r}] = None\nfrom ferrule.cli.main import main\nsys.exit(main(['ui']))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    assert done.returncode == 2
    assert "pip install 'ferrule[ui]'" in done.stderr
    assert "Traceback" not in done.stderr


AGENT = """
import sys, time
sys.path.insert(0, sys.argv[2])
from page_store import answer, call, support
from ferrule import SQLiteStore, context
from ferrule.testing import ScriptedLM

def by(request):
    turn = sum(each.role == "tool" for each in request.messages)
    if turn == 2:
        print("two turns", flush=True)
        time.sleep(600)
    return answer("", call("look_up_order", order=f"A-{turn}"))

with context(lm=ScriptedLM(by=by)):
    support().start(message="x", store=SQLiteStore(sys.argv[1]), run_id="killed")
"""


@pytest.mark.integration
@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_neither_the_end_of_the_runs_process_nor_of_the_server_loses_or_doubles_a_step(
    store: SQLiteStore,
) -> None:
    """`kill -9` of both; the page comes back with the last event that it has."""
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, store.path, str(Path(__file__).parents[1])],
        stdout=subprocess.PIPE,
        text=True,
    )
    server, links = started(store, "--person", "ann", "--port", "0")
    seen: list[int] = []
    try:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "two turns\n"
        ann = client(links["ann"])
        live = Stream(ann, "/runs/killed/live?after=0")
        html = live.event()
        seen += steps_in(html)
        assert "a process is executing it" in html
        end(agent)
        end(server)
        live.close()
        server, links = started(store, "--person", "ann", "--port", "0")
        again = client(links["ann"])
        assert "interrupted" in again.get("/runs/killed").text
        live = Stream(again, "/runs/killed/live?after=0", live.last_id)
        html = live.event()
        seen += steps_in(html)
        with context(lm=ScriptedLM([finish("done")])):
            assert Run.load(store, "killed", support()).resume().status == "done"
        while "s-done" not in html:
            html = live.event()
            seen += steps_in(html)
        live.close()
        assert seen == [1, 2, 3]
    finally:
        for each in (agent, server):
            end(each)


def steps_in(html: str) -> list[int]:
    return [int(each) for each in re.findall(r'aria-label="Step (\d+)"', html)]


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


PROGRAM = """
import time
from ferrule import ReAct
from ferrule.testing import ScriptedLM

def by(request):
    if "hang" in request.messages[-1].text:
        time.sleep(600)
    return "[[ ## answer ## ]]\\nHello.\\n[[ ## completed ## ]]"

agent = ReAct("message -> answer", [], lm=ScriptedLM(by=by))
"""


@pytest.mark.integration
@pytest.mark.skipif(os.name == "nt", reason="needs SIGINT")
def test_ctrl_c_ends_the_page_while_a_chat_hangs_and_names_the_run(tmp_path: Path) -> None:
    """The store need not exist; the run that was cut off is there, and resumes."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    store = SQLiteStore(tmp_path / "new.db")
    process, links = started(
        store,
        str(tmp_path / "shop.py") + ":agent",
        "--person",
        "ann",
        "--port",
        "0",
    )
    try:
        ann = client(links["ann"])
        for text in ("Hello?", "Please hang."):
            page = ann.get("/chat").text
            ann.csrf = re.findall(r'name="csrf" value="(.*?)"', page)[0]
            assert ann.post("/chat", {"v:message": text}).status == 303
            while text == "Hello?" and not store.list(status="done"):
                assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30)
        [cut] = store.list(status="running")
        assert f"Interrupted: {cut.id}." in said
        assert "Traceback" not in said
        assert not cut.leased
        assert len(store.list()) == 2
    finally:
        process.kill()
        process.communicate()
        store.close()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nowhere.py:agent", "cannot be loaded"), ("broken.py:agent", "NameError"), ("fine.py:missing", "missing"), ("fine.py:x", "is not a program"),
        ("agent", "file.py:attribute"),
    ],
)  # fmt: skip
def test_a_program_that_does_not_load_is_said_so_before_anything_is_served(
    tmp_path: Path,
    place: str,
    said: str,
) -> None:
    (tmp_path / "broken.py").write_text("agent = undefined")
    (tmp_path / "fine.py").write_text("x = 1")
    done = forked.run(*PAGE, place, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "http://" not in done.stdout


@pytest.mark.parametrize("options", [(), ("--read-only",)])
def test_a_damaged_store_is_said_so_before_anything_is_served(
    tmp_path: Path,
    options: tuple[str, ...],
) -> None:
    (tmp_path / "runs.db").write_bytes(b"no database " * 2_000)
    done = forked.run(*PAGE, "--store", "runs.db", "--port", "0", *options, cwd=tmp_path)
    assert done.returncode != 0
    assert "The file is not a SQLite database, or its first bytes are damaged." in done.stderr
    assert "Traceback" not in done.stderr
    assert "http://" not in done.stdout


def test_options_of_a_program_need_one(tmp_path: Path) -> None:
    done = forked.run(*PAGE, "--lm", "openai/gpt-5", cwd=tmp_path)
    assert done.returncode == 2
    assert "are for a program" in done.stderr


@pytest.mark.integration
def test_a_page_that_only_reads_opens_the_store_for_reading(store: SQLiteStore) -> None:
    """It follows another process's writes, and could not write itself."""
    process, links = started(store, "--read-only", "--person", "ann", "--port", "0")
    try:
        ann = client(links["ann"])
        assert "read only" in ann.get("/").text
        live = Stream(ann, "/live")
        live.event()
        store.cancel("order-1042")
        assert "s-cancelled" in live.event()
        live.close()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes of files")
def test_the_browser_gets_a_private_file_and_no_token_on_its_command_line() -> None:
    """All users of a machine can read the command lines of all processes."""
    link = "http://127.0.0.1:1/?token=a&b"
    path = _write_redirect(link)
    try:
        assert path.stat().st_mode & 0o777 == 0o600
        assert "token" not in path.as_uri()
        assert f'content="0; url={html.escape(link)}"' in path.read_text()
    finally:
        path.unlink()
