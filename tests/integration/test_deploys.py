"""A run started by one version of a program and resumed by the next one, each in its own process,
from the command line.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import forked
import pytest
from named_question import named_question

from ferrule.cli.main import main

pytest.importorskip("typer", reason="needs the extra: pip install 'ferrule[cli]'")

PROGRAM = '''
import os
import ferrule

def did(what):
    with open("did.txt", "a") as file:
        print(what, file=file)

@ferrule.tool
def look(order: str) -> str:
    """Look an order up."""
    did(f"look {order}")
    return f"{order} is paid"

@ferrule.tool(require_confirmation=True)
def refund(order: str) -> str:
    """Refund an order."""
    did(f"refund {order}")
    return f"refunded {order}"

class Model(ferrule.BaseLM):
    """Says the next step of the script by how many results it was shown; a number in `answers.txt` for each request."""

    name = "scripted"
    capabilities = ferrule.Capabilities(native_tools=True)

    def complete(self, request):
        results = sum(message.role == "tool" for message in request.messages)
        with open("answers.txt", "a") as file:
            print(results, file=file)
        name, args = SCRIPT[min(results, len(SCRIPT) - 1)]
        return ferrule.Response("Thinking.", tool_calls=(ferrule.ToolCall(name=name, args=args, id=f"c{results}"),))

SCRIPT = [("look", {"order": "A1"}), ("refund", {"order": "A1"}), ("finish", {"answer": "Done."})]

def make():
    return ferrule.ReAct(ferrule.Signature("task -> answer", "Help customers."), [look, refund], native=True)

desk = make()
desk.set_lm(Model())

if __name__ == "__main__":
    run = desk.start(task="Refund A1.", store=ferrule.SQLiteStore("runs.db"), run_id="r1")
    print(run.status, run.error)
'''
LOOK, REFUND = "@ferrule.tool\ndef look", "@ferrule.tool(require_confirmation=True)\ndef refund"
NO_LOOK = ("[look, refund]", "[refund]")
NO_REFUND = ("[look, refund]", "[look]")
RENAMED = ("def refund(order: str)", "def refund(number: str, order: None = None)")


class Desk:
    """A folder with the program, its store, and what its tools did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def deploy(self, *changes: tuple[str, str]) -> None:
        text = PROGRAM
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (self.folder / "desk.py").write_text(text)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return forked.run(*words, cwd=self.folder)

    def start(self) -> str:
        done = self.run("desk.py")
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[0]

    def ferrule(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command that loads no program: in this process, where it starts much faster."""
        if words[0] in {"approve", "deny", "reply"}:
            words = (*words, *named_question(self.ferrule("runs", "--json").stdout, words[1]))
        output, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(output), redirect_stderr(errors):
            code = main([*words, "--store", str(self.folder / "runs.db")])
        return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())

    def approve(self) -> None:
        assert (done := self.ferrule("approve", "r1")).returncode == 0, done.stderr

    def resume(self) -> subprocess.CompletedProcess[str]:
        """In a process of its own, which has the deployed version of the program."""
        words = ["resume", "r1", "--program", "desk.py:desk", "--store", "runs.db"]
        return self.run("-m", "ferrule", *words)

    @property
    def did(self) -> list[str]:
        file = self.folder / "did.txt"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def requests(self) -> int:
        return len((self.folder / "answers.txt").read_text().split())

    def shown(self) -> dict[str, Any]:
        return json.loads(self.ferrule("show", "r1", "--json").stdout)

    @property
    def notes(self) -> dict[str, list[str]]:
        found = [
            entry["value"]["differs"]
            for entry in self.shown()["journal"]
            if entry["kind"] == "migrated"
        ]
        return {what: each for differs in found for what, each in differs.items()}


@pytest.fixture(scope="module")
def waiting_desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    desk.deploy()
    assert desk.start() == "waiting"
    assert desk.did == ["look A1"]
    return desk.folder


@pytest.fixture
def desk(tmp_path: Path, waiting_desk: Path) -> Desk:
    """With a run that waits for the approval of a refund."""
    shutil.copytree(waiting_desk, tmp_path, dirs_exist_ok=True)
    return Desk(tmp_path)


@pytest.mark.parametrize(
    ("changes", "noted"),
    [
        pytest.param([("Look an order up.", "Look an order up in the shop.")], "tool `look` of `react`", id="a docstring"),
        pytest.param([("task -> answer", "task -> answer, note")], "signature of `react`", id="an output"),
        pytest.param([("[look, refund]", "[look, refund, extra]"), ("class Model", "def extra() -> str:\n    '''More.'''\n\nclass Model")],
                     "tool `extra` of `react`", id="an added tool"),
        pytest.param([NO_LOOK], "tool `look` of `react`", id="a removed tool that ran"),
        pytest.param([("def look(order: str)", "def look(number: str)")], "tool `look` of `react`", id="a renamed argument of a tool that ran"),
    ],
)  # fmt: skip
def test_an_approved_run_goes_on_with_the_next_version(
    desk: Desk,
    changes: list[tuple[str, str]],
    noted: str,
) -> None:
    """What was done is not done again, what was approved runs, and the journal says what differs."""
    desk.approve()
    desk.deploy(
        *changes,
        ('{"answer": "Done."}', '{"answer": "Done.", "note": "n"}')
        if "note" in str(changes)
        else ("Done.", "Done."),
    )
    done = desk.resume()
    assert done.returncode == 0, done.stderr + done.stdout
    assert desk.did == ["look A1", "refund A1"]
    assert desk.requests == 3
    assert {noted, "model request"} <= desk.notes.keys()
    assert desk.notes[noted][0] != desk.notes[noted][1]


def test_a_new_version_of_ferrules_own_prompts_strands_no_run(desk: Desk) -> None:
    """As if its templates had changed."""
    desk.approve()
    desk.deploy(("import ferrule\n", "import ferrule\nfrom ferrule.programs import instructions\n"), (
        "desk = make()", ("for name in dir(instructions):\n"
        "    if isinstance(getattr(instructions, name), str) and not name.startswith('__'):\n"
        "        setattr(instructions, name, getattr(instructions, name) + ' Anew.')\n"
        "desk = ferrule.ReAct(ferrule.Signature('task -> answer', 'Help customers. Anew.'), [look, refund], native=True)")))  # fmt: skip
    assert desk.resume().returncode == 0
    assert desk.did == ["look A1", "refund A1"]


@pytest.mark.parametrize(
    "change",
    [
        ("Refund an order.", "Refund an order twice."),
        ("require_confirmation=True", "require_confirmation=True, effect='idempotent'"),
    ],
    ids=["declaration", "effect"],
)
def test_an_approval_runs_nothing_that_was_not_shown(desk: Desk, change: tuple[str, str]) -> None:
    """Another definition is asked about anew; then it runs once."""
    desk.approve()
    desk.deploy(change)
    assert desk.resume().returncode == 3
    assert desk.did == ["look A1"]
    desk.approve()
    assert desk.resume().returncode == 0
    assert desk.did == ["look A1", "refund A1"]


@pytest.mark.parametrize(
    ("change", "is_approved"),
    [(NO_REFUND, True), (RENAMED, False)],
    ids=["the tool is gone", "its argument is renamed"],
)
def test_a_pending_call_that_no_longer_fits_becomes_a_question(
    desk: Desk,
    change: tuple[str, str],
    is_approved: bool,
) -> None:
    """It does not run; a reply is its result."""
    if is_approved:
        desk.approve()
    desk.deploy(change)
    assert desk.resume().returncode == 3
    [question] = desk.shown()["questions"]
    assert question["kind"] == "migration"
    assert (
        'refund with args: {"order":"A1"} was waiting to run. The program has changed since.'
        in question["text"]
    )
    assert "cannot run as shown" in desk.ferrule("approve", "r1").stderr
    assert desk.ferrule("reply", "r1", "Ann refunded it by hand.").returncode == 0
    done = desk.resume()
    assert done.returncode == 0, done.stderr + done.stdout
    assert desk.did == ["look A1"]
    assert "Ann refunded it by hand." in str(
        [entry["value"] for entry in desk.shown()["journal"] if entry["kind"] == "decision"],
    )


def test_a_pending_call_with_a_renamed_argument_runs_as_edited(desk: Desk) -> None:
    """An edit replaces all its arguments."""
    desk.deploy(("def refund(order: str)", "def refund(number: str)"), ('f"refund {order}"', 'f"refund {number}"'),
                ('f"refunded {order}"', 'f"refunded {number}"'))  # fmt: skip
    assert desk.resume().returncode == 3
    assert desk.ferrule("approve", "r1", "--edit", "number=A1").returncode == 0
    done = desk.resume()
    assert done.returncode == 0, done.stderr + done.stdout
    assert desk.did == ["look A1", "refund A1"]


def test_a_run_that_waited_over_two_versions_loads_with_a_third(desk: Desk) -> None:
    """Each version that acted is in the journal."""
    desk.deploy(NO_REFUND)
    assert desk.resume().returncode == 3
    desk.deploy(NO_REFUND, ("Look an order up.", "Look."))
    assert desk.ferrule("deny", "r1").returncode == 0
    assert desk.resume().returncode == 0
    assert {"tool `refund` of `react`", "tool `look` of `react`"} <= desk.notes.keys()
    assert desk.resume().returncode == 1  # it is done


@pytest.mark.parametrize("gone", [True, False])
def test_a_call_that_had_begun_before_a_crash_and_no_longer_fits_is_asked_about(
    desk: Desk,
    gone: bool,
) -> None:
    """It may have run, and nothing runs again."""
    desk.approve()
    desk.deploy(('did(f"refund {order}")', 'did(f"refund {order}"); os._exit(9)'))
    assert desk.resume().returncode == 9
    desk.deploy(NO_REFUND if gone else RENAMED)
    assert desk.resume().returncode == 3
    [question] = desk.shown()["questions"]
    assert question["kind"] == "migration"
    assert "may have run" in question["text"]
    assert desk.ferrule("reply", "r1", "It was refunded.").returncode == 0
    assert desk.resume().returncode == 0
    assert desk.did == ["look A1", "refund A1"]


# -- another order of acts

FIRST = ("desk = make()", ("class Desk(ferrule.Module):\n    def __init__(self):\n        self.react = make()\n"
         "    def flow(self, task):\n        return (yield from self.react.flow(task=task))\n\ndesk = Desk()"))  # fmt: skip
SECOND = (
    FIRST[0],
    FIRST[1].replace(
        "        return (",
        '        yield ferrule.acts.Once(lambda: 1, "clock")\n        return (',
    ),
)


def test_another_order_of_acts_is_a_mismatch_that_shows_both_sides(tmp_path: Path) -> None:
    """And the run keeps waiting."""
    desk = Desk(tmp_path)
    desk.deploy(FIRST)
    assert desk.start() == "waiting"
    desk.approve()
    desk.deploy(SECOND)
    refused = desk.resume()
    assert refused.returncode == 1
    assert "ReplayMismatchError" in refused.stderr
    assert "recorded model" in refused.stderr
    assert "now once clock" in refused.stderr
    assert desk.shown()["status"] == "waiting"
    assert desk.did == ["look A1"]
