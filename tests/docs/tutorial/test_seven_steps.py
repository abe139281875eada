"""docs/tutorial/seven-steps.md, done as a reader does it: each file is saved, each command is run,
each output is compared.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import forked
import httpx2
import pytest
from named_question import named_question

pytest.importorskip("typer", reason="needs the extra: pip install 'ferrule[cli]'")

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "tutorial" / "seven-steps.md"
BLOCK = re.compile(
    r"^(?:<!-- (?P<note>[\w.]+) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
FILE = re.compile(r"^<!-- (\w+\.py) -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.integration


@contextmanager
def served(command: str, folder: Path, env: dict[str, str]) -> Iterator[str]:
    """A command that serves until it is ended, and the address that it prints."""
    process = subprocess.Popen(
        shlex.split(command),
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        lines = iter(process.stdout.readline, "")
        yield next(
            found[0] for line in lines if (found := re.search(r"http://127\.0\.0\.1:\S+", line))
        )
    finally:
        process.terminate()
        process.communicate()


def wait_until_ready(address: str) -> int:
    for _ in range(1200):
        try:
            return httpx2.get(address, follow_redirects=True).status_code
        except httpx2.TransportError:
            time.sleep(0.05)
    pytest.fail(f"nothing answers at {address}")


@pytest.mark.skipif(sys.platform == "win32", reason="the commands are for a POSIX shell")
def test_a_reader_gets_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with ExitStack() as servers:
        read(tmp_path, servers)


def read(tmp_path: Path, servers: ExitStack) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    page = PAGE.read_text(encoding="utf-8").replace("8000", str(port))
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": "",
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "200",
        "BROWSER": "true",
    }
    output = ""
    for block in BLOCK.finditer(page):
        match block["kind"], block["note"]:
            case "python", str(name):
                (tmp_path / name).write_text(block["text"], encoding="utf-8")
            case "sh", "install":
                pass  # done: the tests run in a venv that has ferrule
            case "sh", "serves" if "uvicorn" in block["text"]:
                wait_until_ready(
                    servers.enter_context(served(block["text"].strip(), tmp_path, env)),
                )
            case "sh", "serves":
                with served(
                    f"{block['text'].strip()} --no-open --port 0",
                    tmp_path,
                    env,
                ) as address:
                    assert wait_until_ready(address) == 200
            case "sh", note:
                command = block["text"]
                if command.startswith("ferrule approve"):  # a reader has a terminal
                    runs = in_a_shell("ferrule runs --json", tmp_path, env)
                    words = shlex.split(command)
                    command = shlex.join([*words, *named_question(runs.stdout, words[2])])
                run = in_a_shell(command, tmp_path, env)
                assert (run.returncode != 0) == (note == "fails"), run.stdout + run.stderr
                output = run.stdout
            case "text", _:
                assert doctest.OutputChecker().check_output(
                    block["text"],
                    output if output.endswith("\n") else f"{output}\n",
                    doctest.ELLIPSIS,
                ), output

    tickets = f"http://127.0.0.1:{port}/tickets"
    assert httpx2.post(f"{tickets}/ticket-2", json={"ticket": "Again."}).status_code == 409
    assert httpx2.get(f"{tickets}/unknown").status_code == 404


def in_a_shell(
    commands: str, folder: Path, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Command lines, one after the other, with the output of all and the code of the last."""
    ends = [line_in_a_shell(line, folder, env) for line in commands.splitlines()]
    output, errors = ("".join(texts) for texts in zip(*((e.stdout, e.stderr) for e in ends)))
    return subprocess.CompletedProcess(commands, ends[-1].returncode, output, errors)


def line_in_a_shell(
    line: str, folder: Path, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """One that only starts `python` or `ferrule` is spared its imports."""
    words = shlex.split(line)
    while re.fullmatch(r"[A-Z]+=\w+", words[0]):
        name, _, value = words.pop(0).partition("=")
        env = {**env, name: value}
    match words:
        case ["python", *arguments]:
            return forked.run(*arguments, cwd=folder, env=env)
        case ["ferrule", *arguments]:
            return forked.run("-m", "ferrule", *arguments, cwd=folder, env=env)
    return subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def saved(folder: Path, *, version: int) -> None:
    """The stand-in for the model, and the program as it is after so many listings."""
    files = FILE.findall(PAGE.read_text(encoding="utf-8"))
    (folder / "model.py").write_text(files[0][1], encoding="utf-8")
    (folder / "desk.py").write_text(
        [text for name, text in files if name == "desk.py"][version - 1],
        encoding="utf-8",
    )


def test_in_step_3_enter_alone_asks_again(tmp_path: Path) -> None:
    saved(tmp_path, version=3)
    run = subprocess.run(
        [sys.executable, "desk.py"],
        cwd=tmp_path,
        input="\n\nyes\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.count("(yes/no)") == 3
    assert run.stdout.endswith("We refunded 80 euros.\n")


def test_in_step_5_a_tool_without_an_effect_makes_a_person_answer_whether_it_happened(
    tmp_path: Path,
) -> None:
    saved(tmp_path, version=4)
    desk = (tmp_path / "desk.py").read_text(encoding="utf-8")
    plain = re.sub(r"    ctx\.db.*\n", "", desk.replace('effect="transactional", ', ""))
    (tmp_path / "desk.py").write_text(plain, encoding="utf-8")
    resume = ["resume", "ticket-1", "--program", "desk:agent"]

    def ferrule(*words: str, **env: str) -> tuple[int, str]:
        if words and words[0] in {"approve", "reply"}:
            words = (*words, *named_question(ferrule("runs", "--json")[1], words[1]))
        command = ["-m", "ferrule", *words] if words else ["desk.py"]
        run = forked.run(*command, cwd=tmp_path, env=env)
        return run.returncode, run.stdout

    assert ferrule() == (0, "ticket-1 is waiting\n")
    assert ferrule("approve", "ticket-1")[0] == 0
    assert ferrule(*resume, CRASH="1")[0] == 1
    code, asked = ferrule(*resume)
    assert (code, "refund may have run" in asked) == (3, True)
    assert ferrule("reply", "ticket-1", "We refunded 80 euros.")[0] == 0
    assert ferrule(*resume)[1].startswith("ticket-1: done\n")


def test_every_block_of_the_page_that_is_no_file_runs(execute, tmp_path: Path) -> None:
    """The files run above; what is left is the line for a real model."""
    rest = tmp_path / "rest.md"
    rest.write_text(FILE.sub("", PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    execute(str(rest))


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/tutorial/seven-steps.md") == []


def test_there_are_seven_steps() -> None:
    assert re.findall(r"^## (\d)\.", PAGE.read_text(encoding="utf-8"), re.MULTILINE) == list(
        "1234567",
    )
