"""`ferrule runs`, `show`, `approve`, `deny`, `reply`, `cancel`, `resume`: another process, another
day, no terminal.
"""

from __future__ import annotations

import io
import json
import re
import sqlite3
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import ferrule
from ferrule import Context, Response, Tool, ToolCall, advance
from ferrule.approval.decisions import read_decision
from ferrule.cli.main import main
from ferrule.cli.screen import call_text
from ferrule.programs.react import ReAct
from ferrule.runs.store.sqlite.store import SQLiteStore
from ferrule.testing.scripted import ScriptedLM

PROGRAM = '''
import ferrule

@ferrule.tool(require_confirmation=True)
def pay(euros: int, to: str = "ann") -> str:
    """Pay."""
    return f"paid {euros} to {to}"

class Finishing(ferrule.testing.ScriptedLM):
    def complete(self, request):
        return ferrule.testing.ScriptedLM([{"name": "finish", "args": {"answer": "ok"}}]).complete(request)

agent = ferrule.ReAct("task -> answer", [pay])
agent.set_lm(Finishing([]))
no_program = 7
'''


class Terminal(io.StringIO):
    """Standard input of a person who answers each question with the same word."""

    word = "y"

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:
        del size
        return f"{self.word}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "billing", raising=False)
    (tmp_path / "billing.py").write_text(PROGRAM)
    monkeypatch.setattr(sys, "stdin", Terminal())
    return tmp_path


def agent(asks: Any = True) -> ReAct:
    @ferrule.tool(require_confirmation=asks)
    def pay(euros: int, to: str = "ann") -> str:
        """Pay."""
        return f"paid {euros} to {to}"

    return ReAct("task -> answer", [pay])


def waiting(*ids: str, calls: int = 1) -> None:
    """Runs that wait, in `ferrule.db`."""
    store = SQLiteStore()
    for each in ids:
        asked = [{"name": "pay", "args": {"euros": 3 + k}} for k in range(calls)]
        with ferrule.context(lm=ScriptedLM([asked])):
            assert (
                agent().start(task="the \x1b[31mbill\u202e", store=store, run_id=each).status
                == "waiting"
            )
    store.close()


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(words) == code
    out, err = capsys.readouterr()
    assert (out == "") == (code in {1, 2})
    return out or err


def question_ids(capsys: Any) -> list[str]:
    return [each["id"] for each in json.loads(said(capsys, "runs", "--json"))[0]["questions"]]


def test_a_run_is_listed_approved_and_resumed_without_a_terminal(here: Path, capsys: Any) -> None:
    """Ids are printed, codes tell how it ended, and nothing blocks."""
    waiting("bill-7")
    listed = said(capsys, "runs")
    assert "bill-7  waiting" in listed
    assert 'waiting  Confirm execution of pay with args: {"euros":3,"to":"ann"}? (yes/no)' in listed
    assert question_ids(capsys)[0] in said(
        capsys,
        "resume",
        "bill-7",
        "--program",
        "billing:agent",
        code=3,
    )
    assert "approved. It takes effect when the run is resumed" in said(capsys, "approve", "bill-7")
    assert "  decided  Confirm" in said(capsys, "runs", "--status", "waiting")
    assert (
        said(capsys, "resume", "bill", "--program", "billing:agent")
        == 'bill-7: done\n{"answer":"ok"}\n'
    )
    assert "paid 3 to ann" in said(capsys, "show", "bill-7")


def test_a_run_is_forked_and_shown_with_its_origin(here: Path, capsys: Any) -> None:
    waiting("bill-7")
    said(capsys, "deny", "bill-7")
    said(capsys, "resume", "bill-7", "--program", "billing:agent")
    program = ("--program", "billing:agent")
    forked = said(
        capsys,
        "fork",
        "bill-7",
        *program,
        "--at-step",
        "1",
        "--say",
        "Be kind",
        "--input",
        "task=12",
    )
    fork_id = forked.partition(":")[0]
    assert forked == f'{fork_id}: done\n{{"answer":"ok"}}\n'
    shown = said(capsys, "show", fork_id)
    assert "forked from bill-7, before 2" in shown
    assert 'task = "12"' in shown
    assert "Be kind" in shown
    document = json.loads(said(capsys, "show", fork_id, "--json"))
    assert document["forked_from"] == {"run_id": "bill-7", "at": "2"}
    assert json.loads(said(capsys, "show", "bill-7", "--json"))["forked_from"] is None
    asked = said(capsys, "fork", "bill-7", *program, "--at", "1.0?a0", code=3)
    assert ": waiting" in asked
    assert "no entry at" in said(capsys, "fork", "bill-7", *program, "--at", "x", code=2)
    assert "name=value" in said(capsys, "fork", "bill-7", *program, "--input", "x", code=2)


class Secretive:
    """A run whose journal holds what is nobody's business: sealed thoughts of the provider, and the
    key of a call.
    """

    @staticmethod
    def agent() -> Any:
        def note(text: str, ctx: Context) -> str:
            """Note a text."""
            return text

        return ferrule.ReAct("task -> answer", [ferrule.Tool(note)], native=True)

    @staticmethod
    def lm() -> Any:
        usage = ferrule.Usage(10, 5, 0, 1)
        calls = [
            ferrule.ToolCall(name="note", args={"text": "x"}),
            ferrule.ToolCall(name="finish", args={"answer": "a"}),
        ]
        made = [
            ferrule.Response(
                "",
                (each,),
                usage=usage,
                model="m",
                cost=0.25,
                extra={"sealed": "sealed thoughts"},
            )
            for each in calls
        ]
        return ferrule.context(lm=ScriptedLM(made))


LINE = {
    "assigned",
    "scores",
    "feedback",
    "asked",
    "answered",
    "steps",
    "seconds",
    "id",
    "program",
    "status",
    "error",
    "created_at",
    "updated_at",
    "recoveries",
    "leased",
    "questions",
    "decided",
    "usage",
    "cost",
    "title",
    "metadata",
}
COUNTS = {
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "calls",
    "reasoning_tokens",
    "cache_write_tokens",
    "cost",
}


def test_the_json_of_a_run_has_the_documented_keys_with_times_and_cost(
    here: Path,
    capsys: Any,
) -> None:
    """One document each; `show` has the line of `runs` and more."""
    with Secretive.lm(), closing(SQLiteStore()) as store:
        Secretive.agent().start(task="?", store=store, run_id="r")
    [line] = json.loads(said(capsys, "runs", "--json"))
    shown = json.loads(said(capsys, "show", "r", "--json"))
    assert (line.keys(), shown.keys()) == (
        LINE,
        LINE | {"args", "inputs", "forked_from", "journal"},
    )
    assert {name: shown[name] for name in LINE} == line
    assert (line["usage"].keys(), line["usage"]["by_model"]["m"].keys()) == (
        COUNTS | {"by_model"},
        COUNTS,
    )
    assert (
        line["cost"],
        line["usage"]["cost"],
        line["usage"]["input_tokens"],
        line["usage"]["calls"],
    ) == (0.5, 0.5, 20, 2)
    assert [entry["kind"] for entry in shown["journal"]] == ["model", "begun", "result", "model"]
    assert all(
        line["created_at"] <= entry["at"] <= line["updated_at"] for entry in shown["journal"]
    )
    assert (shown["args"], shown["inputs"], shown["status"]) == ([], {"task": "?"}, "done")
    assert "2 model calls, 30 tokens, 0.5000 US dollars" in said(capsys, "show", "r")


def test_the_json_shows_no_secret_that_the_text_does_not(here: Path, capsys: Any) -> None:
    with Secretive.lm(), closing(SQLiteStore()) as store:
        Secretive.agent().start(task="?", store=store, run_id="r")
        head = json.loads(store.load("r").head)
        keys = [
            json.loads(entry)["value"].get("key")
            for entry in store.load("r").entries
            if '"begun"' in entry
        ]
    shown = said(capsys, "show", "r", "--json") + said(capsys, "runs", "--json")
    assert len(keys) == 1
    assert [secret for secret in ("sealed thoughts", head["key"], *keys) if secret in shown] == []


def test_an_edit_changes_arguments_and_a_file_names_the_program(here: Path, capsys: Any) -> None:
    waiting("r")
    said(capsys, "approve", "r", "--edit", "euros=5", "--edit", "to=7")
    said(capsys, "resume", "r", "--program", "billing.py:agent")
    assert "paid 5 to 7" in said(capsys, "show", "r")


def test_a_denial_is_told_to_the_model_with_its_reason_and_its_author(
    here: Path,
    capsys: Any,
    monkeypatch: Any,
) -> None:
    """Who, from where."""
    monkeypatch.setattr("ferrule.cli.commands.runs.user_name", lambda: "ann")
    waiting("r")
    said(capsys, "deny", "r", "--why", "too dear")
    assert "decided already by ann: denied" in said(capsys, "approve", "r", code=1)
    said(capsys, "resume", "r", "--program", "billing:agent")
    [decision] = [
        each["value"]
        for each in json.loads(said(capsys, "show", "r", "--json"))["journal"]
        if each["kind"] == "decision"
    ]
    assert (decision["kind"], decision["text"], decision["by"], decision["via"]) == (
        "deny",
        "too dear",
        "ann",
        "cli",
    )


@pytest.mark.parametrize(
    ("words", "said", "kind"),
    [
        (("approve",), {}, "approve"),
        (("approve", "--edit", "euros=5"), {"data": {"euros": 5}}, "edit"),
        (("deny", "--why", "too dear"), {"approved": False, "data": "too dear"}, "deny"),
        (("reply", "ask ann"), {"data": "ask ann", "status": "feedback"}, "reply"),
    ],
    ids=["approve", "edit", "deny", "reply"],
)
def test_a_decision_leaves_the_same_record_by_whatever_way_it_comes(
    here: Path,
    capsys: Any,
    words: Any,
    said: Any,
    kind: str,
) -> None:
    """The command line, an id, and the run itself, one way of deciding each."""
    waiting("cli", "id", "run")
    store = SQLiteStore()
    assert main([words[0], "cli", *words[1:]]) == 0
    ferrule.respond_to_confirmation(_waits(store, "id"), **said, store=store)
    run = ferrule.Run.load(store, "run", agent())
    [question] = run.pending
    run.answer(getattr(question, kind)(*([said["data"]] if "data" in said else [])))
    left: list[Any] = []
    for each in ("cli", "id", "run"):
        run = ferrule.Run.load(store, each, agent())
        with ferrule.context(lm=ScriptedLM([{"name": "finish", "args": {"answer": "ok"}}])):
            run.resume()
        [decision] = run.decisions
        assert decision.at is not None
        left.append(
            (
                decision.kind,
                decision.text,
                decision.args,
                decision.shown,
                decision.grant,
                run.trajectory["observation_0"],
            ),
        )
    store.close()
    capsys.readouterr()
    assert left[0][0] == kind
    assert left == [left[0]] * 3


def _waits(store: SQLiteStore, run_id: str) -> str:
    return next(each.questions[0].id for each in store.list() if each.id == run_id)


def test_a_reply_is_what_the_model_gets_for_the_call(here: Path, capsys: Any) -> None:
    waiting("r")
    said(capsys, "reply", "r", "it was paid on Monday")
    said(capsys, "resume", "r", "--program", "billing:agent")
    assert "decision reply it was paid on Monday" in said(capsys, "show", "r")


def test_of_several_questions_one_is_named_by_the_beginning_of_its_id(
    here: Path,
    capsys: Any,
) -> None:
    """Each is answered by id."""
    waiting("r", calls=2)
    first, second = question_ids(capsys)
    assert "Several questions" in said(capsys, "approve", "r", code=1)
    said(capsys, "approve", "r", "--question", second[:6])
    said(capsys, "reply", "r", "no", "--question", first)
    assert "decided already" in said(capsys, "deny", "r", "--question", second, code=1)


def test_a_decision_is_shown_with_its_call_before_it_counts(here: Path, capsys: Any) -> None:
    waiting("r")
    assert main(["approve", "r", "--edit", "to=eve"]) == 0
    out, asked = capsys.readouterr()
    assert 'pay\n      | euros = 3\n      | to = "eve"' in asked
    assert 'pay\n      | euros = 3\n      | to = "eve"' in out


def test_an_argument_is_removed_by_its_name(here: Path, capsys: Any) -> None:
    waiting("r")
    out = said(capsys, "approve", "r", "--without", "to")
    assert "without to" in out
    assert "to = " not in out
    with closing(SQLiteStore()) as store:
        [decision] = map(read_decision, map(json.loads, store.load("r").decisions))
    assert (decision.kind, decision.removed) == ("edit", ("to",))


@pytest.mark.parametrize("words", [["approve", "r"], ["deny", "r"], ["reply", "r", "paid"]])
def test_a_no_at_the_terminal_decides_nothing(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    waiting("r")
    monkeypatch.setattr(Terminal, "word", "")
    assert main(words) == 1
    assert "Nothing was decided." in capsys.readouterr().err
    assert "  waiting  Confirm" in said(capsys, "runs")


@pytest.mark.parametrize("words", [["approve", "r"], ["deny", "r"], ["reply", "r", "paid"]])
@pytest.mark.parametrize("options", [[], ["--yes"], ["--yes", "--question", "a"]], ids=repr)
def test_without_a_terminal_a_decision_names_its_question(
    here: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    options: list[str],
) -> None:
    waiting("r")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert "--question" in said(capsys, *words, *options, code=2)
    assert "  waiting  Confirm" in said(capsys, "runs")


@pytest.mark.parametrize("part", ["id", "digest"])
def test_a_decision_on_a_question_that_the_run_no_longer_asks_is_refused(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """The run moved from three euros for ann to another call after the person had looked."""
    waiting("r")
    with closing(SQLiteStore()) as store:
        [question] = store.summary("r").questions
    name = getattr(question, part)[:10]
    run_of_other_call = ["--yes", "--question", name]
    said(capsys, "deny", "r", *run_of_other_call)
    other = [{"name": "pay", "args": {"euros": 5000, "to": "eve"}}]
    with closing(SQLiteStore()) as store, ferrule.context(lm=ScriptedLM([other])):
        ferrule.Run.load(store, "r", agent()).resume()
    assert "There is no question" in said(capsys, "approve", "r", *run_of_other_call, code=1)
    assert "  waiting  Confirm" in said(capsys, "runs")


def test_a_run_is_cancelled_from_the_command_line(here: Path, capsys: Any) -> None:
    waiting("r")
    assert said(capsys, "cancel", "r") == "r: cancelled\n"
    assert "r  cancelled" in said(capsys, "runs")


def test_a_call_that_waits_is_cancelled_from_the_command_line(here: Path, capsys: Any) -> None:
    waiting("r")
    with closing(SQLiteStore()) as store:
        [question] = store.summary("r").questions
        ids = ["--call", question.id, "--result", "no need"]
        assert said(capsys, "cancel", "r", *ids) == f"r {question.id}: cancelled\n"
        [text] = store.load("r").decisions
    assert json.loads(text)["text"] == "no need"
    assert "At work are: none" in said(capsys, "cancel", "r", "--call", "nope", code=1)
    assert "--call" in said(capsys, "cancel", "r", "--result", "x", code=2)


def test_a_call_at_work_is_cancelled_from_the_command_line(here: Path, capsys: Any) -> None:
    reached, freed = threading.Event(), threading.Event()

    def hang() -> str:
        reached.set()
        freed.wait(60)
        return "late"

    call = Response("", (ToolCall(name="hang", args={}, id="c0"),))
    answer = Response("", (ToolCall(name="finish", args={"answer": "over"}, id="c1"),))
    program = ferrule.ReAct("task -> answer", [Tool(hang, "hang", "Hangs.")], native=True)

    def work() -> None:
        lm = ScriptedLM([call, answer])
        with closing(SQLiteStore()) as store, ferrule.context(lm=lm, grace_s=0):
            program.start(task="t", store=store, run_id="r")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert reached.wait(60)
    assert said(capsys, "cancel", "r", "--call", "c0", "--result", "skip") == "r c0: cancelled\n"
    thread.join(60)
    freed.set()
    shown = said(capsys, "show", "r")
    assert "hang returned: skip" in shown
    assert "over" in shown


def test_what_a_model_wrote_cannot_steer_the_terminal(here: Path, capsys: Any) -> None:
    """Escapes and turned text are shown, or gone."""
    waiting("r")
    for words in (("runs",), ("show", "r")):
        assert not {"\x1b", "\u202e"} & set(said(capsys, *words))


def test_a_call_is_shown_with_what_is_invisible_wherever_it_is_read(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal, and the question of a command without a terminal, left it out."""
    store = SQLiteStore("ferrule.db")
    with ferrule.context(
        lm=ScriptedLM([{"name": "pay", "args": {"euros": 5, "to": "x\u202ey"}}]),
    ):
        run = agent().start(task="t", store=store, run_id="r")
    assert 'model    pay(euros=5, to="x\\u202ey")' in said(capsys, "show", "r")
    monkeypatch.setattr(sys, "stdin", None)
    assert '"to":"x\\u202ey"' in said(capsys, "approve", "r", code=2)
    store.close()
    assert 'pay(euros=5, to="x\\u202ey")' in call_text("pay", run.pending[0].raw)


def test_a_question_may_wait_longer_than_there_are_years(here: Path, capsys: Any) -> None:
    with (
        closing(SQLiteStore()) as store,
        ferrule.context(lm=ScriptedLM([{"name": "pay", "args": {"euros": 1}}])),
    ):
        assert (
            agent(ferrule.ask(expires_s=1e12)).start(task="Pay.", store=store, run_id="r").status
            == "waiting"
        )
    assert 'confirm until 1e+12 seconds after 1970: pay {"euros":1,"to":"ann"}' in said(
        capsys,
        "show",
        "r",
    )


def test_neither_the_id_of_a_run_nor_its_error_makes_a_line_of_the_list(
    here: Path,
    capsys: Any,
) -> None:
    store, fake = SQLiteStore(), "\nfake  done       2026-11-27 07:27:28Z  ReAct"
    with ferrule.context(lm=ScriptedLM([RuntimeError(f"no answer{fake}")])):
        assert agent().start(task="x", store=store, run_id=f"r{fake}").status == "failed"
    store.close()
    listed, shown = said(capsys, "runs"), said(capsys, "show", "r")
    missing, cancelled = said(capsys, "show", "nope", code=1), said(capsys, "cancel", "r", code=1)
    assert not any(
        line.startswith("fake")
        for each in (listed, shown, missing, cancelled)
        for line in each.split("\n")
    )
    assert "r\\u000afake  done" in listed
    assert "no answer\n      | fake  done" in shown


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        pytest.param(
            ("runs", "--store", "other.db"),
            2,
            "There is no file 'other.db'",
            id="no file",
        ),
        pytest.param(("show", "x"), 1, "There is no run 'x'; there are: r2, r1", id="no run"),
        pytest.param(("cancel", ""), 1, "There is no run ''", id="no name of a run"),
        pytest.param(
            ("approve", "r1", "--question", ""),
            1,
            "There is no question ''",
            id="no name of a question",
        ),
        pytest.param(
            ("runs", "--status", "bogus"),
            2,
            "running, waiting, done, failed, cancelled; found 'bogus'",
            id="no status",
        ),
        pytest.param(("show", "r"), 1, "The id of several runs begins with 'r'", id="two runs"),
        pytest.param(
            ("approve", "r1", "--edit", "euros"),
            1,
            "cannot be read at 'euros'",
            id="no edit",
        ),
        pytest.param(
            ("resume", "r1", "--program", "billing"),
            2,
            "module:attribute",
            id="no attribute",
        ),
        pytest.param(
            ("resume", "r1", "--program", "billing:no_program"),
            2,
            "is not a program: found 7",
            id="no program",
        ),
        pytest.param(
            ("resume", "r1", "--program", "billing:no_progam"),
            2,
            "`billing` has no program `no_progam`. Did you mean `no_program`?",
            id="a misspelled program",
        ),
        pytest.param(
            ("resume", "r1", "--program", "absent.py:agent"),
            2,
            "cannot be loaded",
            id="no file of a program",
        ),
        pytest.param(
            ("resume", "r1", "--program", "absent_module:agent"),
            2,
            "absent_module",
            id="no module",
        ),
        pytest.param(
            ("resume", "r1", "--program", "billing:agent", "--max-recoveries", "-1"),
            2,
            "Invalid value for '--max-recoveries'",
            id="no number",
        ),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_made(
    here: Path,
    capsys: Any,
    words: Any,
    code: int,
    message: str,
) -> None:
    """No empty store is left by a slip of the fingers."""
    waiting("r1", "r2")
    assert message in said(capsys, *words, code=code)
    assert not (here / "other.db").exists()


@pytest.mark.parametrize("column", ["head FROM ferrule_runs", "entry FROM ferrule_entries"])
@pytest.mark.parametrize(
    "found",
    [
        "",
        "{",
        "[]",
        "null",
        '{"v": 1, "slot": 1, "kind": "result", "digest": "", "value": 7, "inputs": [], "args": 0}',
    ],
)
def test_a_damaged_run_is_one_message_whichever_way_it_is_shown(
    here: Path,
    capsys: Any,
    column: str,
    found: str,
) -> None:
    waiting("r")
    name, _, table = column.split()
    with closing(sqlite3.connect("ferrule.db")) as db, db:
        db.execute(f"UPDATE {table} SET {name} = ?", (found,))
    assert "damaged" in said(capsys, "show", "r", code=1)
    for how in ("--json", "--html"):
        assert main(["show", "r", how]) in {0, 1}


def test_a_damaged_run_does_not_keep_others_from_their_decisions(here: Path, capsys: Any) -> None:
    """Those that are named by their whole ids."""
    waiting("bad", "good", "good-2")
    with closing(sqlite3.connect("ferrule.db")) as db, db:
        db.execute("UPDATE ferrule_runs SET questions = '[' WHERE id = 'bad'")
    for words, code in ((("runs",), 0), (("show", "bad"), 1), (("approve", "bad"), 1)):
        assert "The run 'bad' in the store cannot be read: damaged" in said(
            capsys,
            *words,
            code=code,
        )
    listed = said(capsys, "runs", code=0)
    assert listed.count("euros") == 2, "the questions of the others"
    assert "The id of several runs begins with 'goo'" in said(capsys, "approve", "goo", code=1)
    assert "approved" in said(capsys, "approve", "good")
    assert "euros" in said(capsys, "show", "good")


def test_a_run_that_fails_says_why_and_ends_with_code_1(here: Path, capsys: Any) -> None:
    (here / "billing.py").write_text(
        PROGRAM.replace(
            "agent.set_lm(Finishing([]))", "agent.set_lm(ferrule.testing.ScriptedLM([]))"
        ),
    )
    waiting("r")
    said(capsys, "approve", "r")
    assert main(["resume", "r", "--program", "billing:agent"]) == 1
    out, err = capsys.readouterr()
    assert out == "r: failed\n"
    assert err.startswith("ScriptError: ")
    assert "r  failed" in said(capsys, "runs")


SHOP = """
from pathlib import Path
import ferrule

class Shop:
    def __init__(self, owner="ann"):
        self.owner = owner

def make():
    return Shop("bob")

shop = Shop("eve")
wrong = "no shop"
empty = None

def needs(owner):
    return Shop(owner)

def fails():
    raise OSError("no database")

async def later():
    return Shop()

@ferrule.tool(require_confirmation=True)
def pay(euros: int, ctx: ferrule.Context[Shop], to: str = "ann") -> str:
    "Pay."
    Path("paid").write_text(ctx.deps.owner)
    return f"{ctx.deps.owner} paid {euros} to {to}"

class Finishing(ferrule.testing.ScriptedLM):
    def complete(self, request):
        return ferrule.testing.ScriptedLM([{"name": "finish", "args": {"answer": "ok"}}]).complete(request)

agent = ferrule.ReAct("task -> answer", [pay])
agent.set_lm(Finishing([]))
"""


@pytest.fixture
def shop(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run with an approved call of a tool that needs deps."""
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    (here / "shop.py").write_text(SHOP)
    waiting("r")
    said(capsys, "approve", "r")
    return here


@pytest.mark.parametrize(
    ("program", "deps", "owner"),
    [
        ("shop:agent", "shop:make", "bob"),
        ("shop:agent", "shop:Shop", "ann"),
        ("shop:agent", "shop:shop", "eve"),
        ("shop.py:agent", "shop.py:make", "bob"),
    ],
)
def test_resume_takes_deps_from_a_function_a_class_or_a_value(
    shop: Path,
    capsys: Any,
    program: str,
    deps: str,
    owner: str,
) -> None:
    """api.md, 21."""
    said(capsys, "resume", "r", "--program", program, "--deps", deps)
    assert f"{owner} paid 3 to ann" in said(capsys, "show", "r")


@pytest.mark.parametrize(
    ("deps", "says"),
    [
        (None, "--deps module:factory"),
        ("shop:wrong", "of the type `str`"),
        ("shop:absent", "`shop` has no deps `absent`"),
        ("shop:empty", "`--deps shop:empty` is None"),
        ("shop:needs", "is called without arguments"),
        ("shop:fails", "`--deps shop:fails` raised OSError: no database"),
        ("shop:later", "is async"),
        ("shop", "Name the deps as module:attribute"),
        ("no_such_module:make", "neither a file, nor a folder, nor a module"),
    ],
)
def test_resume_without_the_deps_that_a_tool_needs_runs_nothing(
    shop: Path,
    capsys: Any,
    deps: str | None,
    says: str,
) -> None:
    """api.md, 21: an exit code for scripts, and the run still waits with its decision."""
    assert says in said(
        capsys,
        "resume",
        "r",
        "--program",
        "shop:agent",
        *(["--deps", deps] if deps else []),
        code=2,
    )
    assert not (shop / "paid").exists()
    assert "decided" in said(capsys, "runs", "--status", "waiting")
    said(capsys, "resume", "r", "--program", "shop:agent", "--deps", "shop:make")
    assert (shop / "paid").read_text() == "bob"


def test_a_run_is_shown_with_times_and_who_decided(
    here: Path,
    capsys: Any,
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr("ferrule.cli.commands.runs.user_name", lambda: "ann")
    waiting("r")
    said(capsys, "approve", "r", "--edit", "euros=5")
    said(capsys, "resume", "r", "--program", "billing:agent")
    shown = said(capsys, "show", "r")
    stamp = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ"
    assert re.search(f"started {stamp}, last change {stamp}", shown)
    assert "pay(euros=3)" in shown
    assert re.search(rf'edit with \{{"euros":5\}} by ann via cli at {stamp}', shown)
    assert "pay returned: paid 5 to ann" in shown


def test_errors_speak_of_options_of_the_command(here: Path, capsys: Any) -> None:
    (here / "bare.py").write_text(PROGRAM.replace("agent.set_lm(Finishing([]))", ""))
    waiting("r")
    said(capsys, "approve", "r")
    assert main(("resume", "r", "--program", "bare.py:agent")) == 1
    assert "Add `--lm provider/model`." in capsys.readouterr().err
    (here / "other.py").write_text(PROGRAM.replace("task -> answer", "question -> answer"))
    waiting("r2")
    message = said(capsys, "resume", "r2", "--program", "other.py:agent", code=1)
    assert "--program" in message
    assert "migrate=" not in message


def test_a_run_that_nobody_takes_up_is_listed_as_stuck_with_the_reason(
    here: Path,
    capsys: Any,
) -> None:
    """One that was just submitted is not, and neither is one that waits for a person."""
    waiting("asks")
    clock = [time.time() - 3600]
    with closing(SQLiteStore(clock=lambda: clock[0])) as store:
        for run_id in ("old", "unfit", "ended"):
            agent().submit(store=store, task="x", run_id=run_id)
        assert advance(store, "unfit", ferrule.Predict("a -> b")) == "queued"
        store.cancel("ended")
        clock[0] += 3600
        agent().submit(store=store, task="x", run_id="new")
    assert main(["runs", "--stuck"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["unfit", "old"]
    assert "No worker has its program `ReAct`; there are: Predict." in lines[0]
    assert "It is queued, and no worker has taken it up for 36" in lines[1]


def test_whether_a_run_is_stuck_goes_by_the_clock_of_its_store(
    here: Path,
    capsys: Any,
    monkeypatch: Any,
) -> None:
    """Not by that of the machine where a person looks."""
    with closing(SQLiteStore()) as store:
        agent().submit(store=store, task="x", run_id="new")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    assert main(["runs", "--stuck"]) == 0
    assert capsys.readouterr().out == ""


def test_a_run_whose_process_died_is_listed_as_interrupted(
    here: Path,
    capsys: Any,
    monkeypatch: Any,
) -> None:
    """Its status is still `running`; the JSON says it with `leased`."""
    with closing(SQLiteStore()) as store:
        lease = store.create("r", program="ReAct", head='{"inputs": {}, "args": []}')
        assert "r  running " in (listed := said(capsys, "runs"))
        assert "interrupted" not in listed
        monkeypatch.setattr("ferrule.runs.store.sqlite.store.is_dead", lambda owner: True)
        for command in (("runs",), ("show", "r")):
            assert (
                "ReAct  (interrupted: no process executes it; `ferrule resume` continues it)"
                in said(capsys, *command)
            )
        [line] = json.loads(said(capsys, "runs", "--json"))
        assert (line["id"], line["status"], line["leased"], line["error"]) == (
            lease.run_id,
            "running",
            False,
            None,
        )


def test_a_journal_is_shown_in_words_with_a_legend(here: Path, capsys: Any) -> None:
    waiting("r")
    said(capsys, "deny", "r", "--why", "too dear")
    shown = said(capsys, "show", "r")
    assert re.search(r"^  1~policy +policy   ask pay$", shown, re.MULTILINE)
    assert "4.0 is the first call of act 4" in shown


def test_a_decision_is_shown_with_the_call_that_it_decided(
    here: Path,
    capsys: Any,
    monkeypatch: Any,
) -> None:
    """Who decided what, also if several calls of one step wait; and until when a question waits, as
    a time that a person can read.
    """
    monkeypatch.setattr("ferrule.cli.commands.runs.user_name", lambda: "ann")
    (here / "billing.py").write_text(
        PROGRAM.replace(
            "require_confirmation=True",
            "require_confirmation=ferrule.ask(expires_s=3600)",
        ),
    )
    script = [
        [{"name": "pay", "args": {"euros": 1}}, {"name": "pay", "args": {"euros": 2, "to": "bob"}}],
    ]
    with closing(SQLiteStore()) as store, ferrule.context(lm=ScriptedLM(script)):
        run = agent(ferrule.ask(expires_s=3600)).start(task="Pay.", store=store, run_id="r")
        first, second = (question.id for question in run.pending)
    said(capsys, "approve", "r", "--question", first)
    said(capsys, "deny", "r", "--question", second, "--why", "too dear")
    said(capsys, "resume", "r", "--program", "billing.py:agent")
    shown = said(capsys, "show", "r")
    at = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"
    assert re.search(
        rf'1\.0\?a0 +decision approve by ann via cli at {at}: pay {{"euros":1,"to":"ann"}}',
        shown,
    )
    assert re.search(
        rf'1\.1\?a0 +decision deny too dear by ann via cli at {at}: pay {{"euros":2,"to":"bob"}}',
        shown,
    )
    assert re.search(
        rf'1\.1\?a0\? +question confirm until {at}: pay {{"euros":2,"to":"bob"}}', shown
    )


def test_a_decision_is_named_as_the_pages_name_it(here: Path, capsys: Any) -> None:
    waiting("a", "b", "c", "d")
    assert "approved. " in said(capsys, "approve", "a")
    assert "approved with changes. " in said(capsys, "approve", "b", "--edit", "euros=4")
    assert "denied. " in said(capsys, "deny", "c")
    assert "answered. " in said(capsys, "reply", "d", "paid on Monday")


def test_an_edit_that_does_not_fit_is_shown_line_by_line(here: Path, capsys: Any) -> None:
    """No line of a question can pass for a line of the list."""
    waiting("r")
    said(capsys, "approve", "r", "--edit", "euros=many")
    for command, code in (
        (("resume", "r", "--program", "billing:agent"), 3),
        (("runs",), 0),
        (("show", "r"), 0),
    ):
        shown = said(capsys, *command, code=code)
        assert "\\n" not in shown
        assert "\n      | - euros: expected an integer" in shown
        assert "\n      | Confirm execution of pay" in shown


def test_a_parked_run_goes_on_with_the_option_that_the_message_names(
    here: Path,
    capsys: Any,
    monkeypatch: Any,
) -> None:
    waiting("r")
    said(capsys, "approve", "r")
    with closing(SQLiteStore(max_recoveries=0)) as store:
        taken = store.take("r", after=0)
        monkeypatch.setattr("ferrule.runs.store.sqlite.store.is_dead", lambda owner: True)
        monkeypatch.setattr("ferrule.runs.store.sql_store.is_held", lambda run_id, token: None)
        resume = ("resume", "r", "--program", "billing:agent")
        message = said(capsys, *resume, "--max-recoveries", "0", code=1)
        assert "crashed 1 times, and was marked as failed" in message
        assert "to continue anyway, add `--max-recoveries 1`." in message
        assert said(capsys, *resume, "--max-recoveries", "1").startswith("r: done")
        del taken  # until here nothing gave its lease back


def test_json_keeps_every_character_of_an_id_and_an_argument(here: Path, capsys: Any) -> None:
    """A program that reads it decides on what would run: no character may be missing, in any
    encoding.
    """
    store = SQLiteStore("ferrule.db")
    with ferrule.context(
        lm=ScriptedLM([{"name": "pay", "args": {"euros": 5, "to": "x\u202ey \u00e9"}}]),
    ):
        agent().start(task="t", store=store, run_id="\u202er")
    store.close()
    for words in (("runs", "--json"), ("show", "\u202er", "--json")):
        text = said(capsys, *words)
        found = json.loads(text)
        [run] = found if isinstance(found, list) else [found]
        assert text.isascii()
        assert run["id"] == "\u202er"
        assert run["questions"][0]["call"]["args"]["to"] == "x\u202ey \u00e9"


def test_an_error_lists_the_ids_that_begin_so_and_not_thousands(here: Path, capsys: Any) -> None:
    waiting("a1", "a2", *(f"b{number}" for number in range(25)))
    assert said(capsys, "show", "a", code=1) == "The id of several runs begins with 'a': a2, a1.\n"
    missing = said(capsys, "show", "nope", code=1)
    assert missing.count(",") == 19
    assert missing.endswith(" and 7 more.\n")


def test_a_run_that_could_not_begin_is_not_called_failed(here: Path, capsys: Any) -> None:
    (here / "bare.py").write_text(PROGRAM.replace("agent.set_lm(Finishing([]))", ""))
    waiting("r")
    said(capsys, "approve", "r")
    assert "No language model is set" in said(
        capsys,
        "resume",
        "r",
        "--program",
        "bare.py:agent",
        code=1,
    )
    assert "r  waiting" in said(capsys, "runs")


@pytest.mark.parametrize(
    ("command", "usage"),
    [("ui", "[program]\n"), ("worker", "{PROGRAM}...\n")],
)
def test_the_usage_marks_what_is_optional_or_repeated_once(
    capsys: pytest.CaptureFixture[str],
    command: str,
    usage: str,
) -> None:
    assert main([command, "--help"]) == 0
    assert usage in capsys.readouterr().out


def test_a_run_is_shown_in_one_form(here: Path, capsys: Any) -> None:
    waiting("r")
    assert "`--json` and `--html` exclude each other" in said(
        capsys,
        "show",
        "r",
        "--json",
        "--html",
        code=2,
    )


BUILDING = '''
import ferrule

@ferrule.tool
def build(ref: str) -> dict[str, int] | ferrule.Later:
    """Build."""
    return ferrule.Later(key="build-7")

class Building(ferrule.testing.ScriptedLM):
    def complete(self, request):
        name = "finish" if len(request.messages) > 3 else "build"
        args = {"answer": "ok"} if name == "finish" else {"ref": "main"}
        return ferrule.testing.ScriptedLM([{"name": name, "args": args}]).complete(request)

agent = ferrule.ReAct("task -> answer", [build])
agent.set_lm(Building([]))
'''


def test_a_result_is_delivered_from_the_command_line(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "site_builder.py").write_text(BUILDING)
    monkeypatch.delitem(sys.modules, "site_builder", raising=False)
    from ferrule.cli.arguments import find_program

    with SQLiteStore() as store:
        find_program("site_builder:agent").start(task="x", store=store, run_id="b-1")
    assert "build-7" in said(capsys, "runs")
    assert "JSON" in said(capsys, "deliver", "b-1", "build-7", "not json", code=2)
    assert "does not fit" in said(capsys, "deliver", "b-1", "build-7", "5", code=1)
    assert "build-7: delivered" in said(capsys, "deliver", "b-1", "build-7", '{"tests": 3}')
    assert "b-1: done" in said(capsys, "resume", "b-1", "--program", "site_builder:agent")
    assert '{"tests":3}' in said(capsys, "show", "b-1").replace(" ", "")


def test_a_message_is_said_from_the_command_line(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "site_talker.py").write_text(BUILDING)
    monkeypatch.delitem(sys.modules, "site_talker", raising=False)
    from ferrule.cli.arguments import find_program

    agent = find_program("site_talker:agent")
    with SQLiteStore() as store:
        agent.start(task="x", store=store, run_id="b-1")
    assert "b-1: said" in said(capsys, "say", "b-1", "Use the cache.")
    assert "says something" in said(capsys, "say", "b-1", " ", code=1)
    assert "not read yet: Use the cache." in said(capsys, "show", "b-1")
    said(capsys, "deliver", "b-1", "build-7", '{"tests": 3}')
    said(capsys, "resume", "b-1", "--program", "site_talker:agent")
    shown = said(capsys, "show", "b-1")
    assert "not read yet" not in shown
    assert "say Use the cache." in shown
    assert "via cli" in shown
    assert "b-1' is done" in said(capsys, "say", "b-1", "More.", code=1)


def test_a_message_for_after_the_answer_is_said_from_the_command_line(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "site_later.py").write_text(BUILDING)
    monkeypatch.delitem(sys.modules, "site_later", raising=False)
    from ferrule.cli.arguments import find_program

    with SQLiteStore() as store:
        find_program("site_later:agent").start(task="x", store=store, run_id="b-1")
        said(capsys, "say", "b-1", "Then deploy.", "--after")
        [text] = store.load("b-1").decisions
        assert json.loads(text)["kind"] == "say_after"


def test_runs_are_found_by_what_they_are_for(here: Path, capsys: Any) -> None:
    lm = ferrule.testing.ScriptedLM([{"name": "finish", "args": {"answer": "ok"}}] * 3)
    with ferrule.context(lm=lm), closing(SQLiteStore()) as store:
        for run_id, user in (("a", "ada"), ("b", "bob"), ("c", 7)):
            agent(asks=False).start(
                task="?",
                store=store,
                run_id=run_id,
                title=f"A bill \x1f for {user}".replace("\x1f", "\u200b"),
                metadata={"user": user},
            )
    found = said(capsys, "runs", "--metadata", "user=ada")
    assert "A bill \\u200b for ada" in found
    assert "bob" not in found
    [line] = json.loads(said(capsys, "runs", "--metadata", "user=7", "--json"))
    assert (line["id"], line["metadata"]) == ("c", {"user": 7})
    assert json.loads(said(capsys, "runs", "--metadata", 'user="7"', "--json")) == []
    shown = said(capsys, "show", "b")
    assert "title: A bill" in shown
    assert 'metadata: {"user":"bob"}' in shown
    assert main(["runs", "--metadata", "ada"]) != 0
    assert "name=value" in capsys.readouterr().err


def test_runs_are_searched_filtered_sorted_and_limited(here: Path, capsys: Any) -> None:
    with Secretive.lm(), closing(SQLiteStore()) as store:
        Secretive.agent().start(task="Pay Ann", store=store, run_id="a")
    with Secretive.lm(), closing(SQLiteStore()) as store:
        Secretive.agent().start(task="Pay Bob", store=store, run_id="b")

    def listed(*words: str) -> list[str]:
        return [line["id"] for line in json.loads(said(capsys, "runs", *words, "--json"))]

    assert listed("pay") == ["b", "a"]
    assert listed("PAY", "ann") == ["a"]
    assert listed("--limit", "1", "--order", "created", "--ascending") == ["a"]
    assert listed("--model", "m", "--min-cost", "0.4", "--since", "1h", "--program", "ReAct") == [
        "b",
        "a",
    ]
    assert listed("--until", "1h") == listed("--tool-failed") == listed("--tool", "no") == []
    assert listed("--assigned", "ann") == listed("--evaluation", "v1") == []
    assert "Pay Ann" in said(capsys, "runs", "ann")
    assert main(["runs", "--since", "soon"]) == 2
    assert main(["runs", "--order", "size"]) == 2


def test_the_steps_of_a_run_say_what_they_took(here: Path, capsys: Any) -> None:
    with Secretive.lm(), closing(SQLiteStore()) as store:
        Secretive.agent().start(task="?", store=store, run_id="r")
    shown = said(capsys, "show", "r")
    assert re.search(r"model .*  \(15 tokens, \$0\.2500\)", shown)
    assert re.search(r"result .*  \(\d+ ms\)", shown)
