"""`ferrule chat`: a conversation with a program, from lines of a terminal or a pipe."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ferrule.cli.main import main
from ferrule.runs.store.sqlite.store import SQLiteStore

PROGRAM = '''
import threading
from ferrule import History, InputField, Module, OutputField, Predict, ReAct, Signature, Tool
from ferrule.testing import ScriptedLM

asked, began, go_on = threading.Event(), threading.Event(), threading.Event()


class Desk(Signature):
    """Help a customer."""

    history: History = InputField(default_factory=History)
    message: str = InputField()
    reply: str = OutputField()


class ToneDesk(Desk):
    tone: str = InputField()


def refund(euros: float) -> str:
    """Refund."""
    return f"refunded {euros}"


def work() -> str:
    """Work."""
    began.set()
    go_on.wait(60)
    return "worked"


def answer(request):
    last = request.messages[-1]
    messages = [message.text for message in request.messages if message.role == "user"]
    if last.role == "tool":
        return f"The tool says: {last.text}"
    for name, args in (("refund", {"euros": 5.0}), ("work", {})):
        if f"please {name}" in last.text:
            asked.set()
            return {"name": name, "args": args}
    if "fail" in last.text:
        raise ValueError("out of order")
    return f"{len(messages)} messages, the last is {last.text}"


lm = ScriptedLM(by=answer)
desk = ReAct(Desk, [Tool(refund, require_confirmation=True), work], lm=lm, native=True)
tone_desk = ReAct(ToneDesk, [work], lm=lm, native=True)
plain = Predict("question -> answer", lm=ScriptedLM(by=lambda request: {"outputs": {"answer": "yes"}}))


class Bare(Module):
    def forward(self, text: str) -> str:
        return text


bare = Bare()
'''
Talk = Callable[..., tuple[int, str]]


@pytest.fixture
def talk(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Talk]:
    """Says these lines to a program of the file; returns the exit code and what was printed.

    A function among the lines is called, and says what it returns.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("FERRULE_STORE", raising=False)
    (tmp_path / "shop.py").write_text(PROGRAM)

    def say(*lines: str | Callable[[], str], program: str = "desk", options: tuple[str, ...] = ()):
        given = iter(lines)

        def read_line() -> str:
            line = next(given, None)
            if line is None:
                raise EOFError
            return line if isinstance(line, str) else line()

        monkeypatch.setattr(builtins, "input", read_line)
        code = main(["chat", f"shop.py:{program}", *options])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    yield say
    for name in [name for name in sys.modules if "shop" in name]:
        del sys.modules[name]


def shop() -> Any:
    [module] = [module for name, module in sys.modules.items() if name.endswith("shop")]
    return module


def test_each_turn_sees_the_turns_before_it(talk: Talk) -> None:
    code, text = talk("hello", "", "again")
    assert code == 0
    assert "1 messages, the last is hello" in text
    assert "2 messages, the last is again" in text


def test_a_new_conversation_forgets_the_former(talk: Talk) -> None:
    _, text = talk("hello", "/new", "again")
    assert "1 messages, the last is again" in text


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("/approve", "refunded 5.0"),
        ("y", "refunded 5.0"),
        ("edit euros=3", "refunded 3.0"),
        ("/deny", "A person decided against this call"),
        ("/deny Too much.", "Too much."),
        ("Too much.", "Too much."),
    ],
)
def test_the_next_line_decides_the_question_that_waits(talk: Talk, line: str, result: str) -> None:
    code, text = talk("please refund", line, "thanks")
    assert code == 0
    assert f"The tool says: {result}" in text.replace("\n", " ") or result in text
    assert "the last is thanks" in text


def test_an_approval_can_hold_for_the_rest_of_the_turn(talk: Talk) -> None:
    code, text = talk("please refund", "/approve always")
    assert code == 0
    assert "refunded 5.0" in text


def test_an_input_that_ends_before_a_decision_leaves_the_run_in_the_store(talk: Talk) -> None:
    code, text = talk("please refund", options=("--store", "runs.db"))
    with SQLiteStore("runs.db") as store:
        [kept] = store.list(status="waiting")
    assert code == 3
    assert f"ferrule approve {kept.id} --store runs.db" in text


def test_what_is_said_while_the_agent_works_reaches_its_next_request(talk: Talk) -> None:
    def steer() -> str:
        assert shop().began.wait(60)
        return "/say Be brief."

    def let_go() -> str:
        shop().go_on.set()
        return ""

    code, text = talk("please work", steer, let_go)
    assert code == 0
    assert "the last is Be brief." in text


def test_a_turn_that_is_cancelled_is_left_out_of_the_conversation(talk: Talk) -> None:
    def cancel() -> str:
        assert shop().began.wait(60)
        threading.Timer(0.1, shop().go_on.set).start()
        return "/cancel"

    code, text = talk("please work", cancel, "hello")
    assert code == 0
    assert "Cancelled" in text
    assert "1 messages, the last is hello" in text


def test_ctrl_c_cancels_the_turn_and_not_the_chat(talk: Talk) -> None:
    def interrupt() -> str:
        assert shop().began.wait(60)
        shop().go_on.set()
        raise KeyboardInterrupt

    code, text = talk("please work", interrupt, "hello")
    assert code == 0
    assert "the last is hello" in text


def test_ctrl_c_without_a_turn_ends_the_chat(talk: Talk) -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    assert talk(interrupt, "hello")[0] == 0


@pytest.mark.parametrize("end", ["/quit", "/cancel"])
def test_a_question_that_waits_can_be_left(talk: Talk, end: str) -> None:
    def when_asked() -> str:
        assert shop().asked.wait(60)
        return end

    code, text = talk("please refund", when_asked)
    assert code in {3, 130}
    assert "refunded" not in text


def test_a_turn_that_fails_does_not_end_the_chat(talk: Talk) -> None:
    code, text = talk("fail", "hello")
    assert code == 0
    assert "The turn failed." in text
    assert "1 messages, the last is hello" in text
    assert talk("fail")[0] == 1


def test_a_further_input_holds_for_each_turn(talk: Talk) -> None:
    code, text = talk("hello", "again", program="tone_desk", options=("--input", "tone=curt"))
    assert code == 0
    assert text.count("curt") == 2


def test_a_program_without_a_history_says_so(talk: Talk) -> None:
    code, text = talk("hello", program="plain")
    assert code == 0
    assert "it does not see earlier turns" in text
    assert "yes" in text


def test_a_program_without_a_signature_is_refused(talk: Talk) -> None:
    code, text = talk("hello", program="bare")
    assert code == 2
    assert "has no signature" in text


@pytest.mark.parametrize("line", ["/help", "/unknown", "/say"])
def test_other_commands_list_the_commands(talk: Talk, line: str) -> None:
    assert "/cancel            stop the turn" in talk(line)[1]


@pytest.mark.parametrize("line", ["/say hello", "/cancel"])
def test_a_command_for_a_turn_says_that_there_is_none(talk: Talk, line: str) -> None:
    assert "Nothing is at work" in talk(line)[1]
