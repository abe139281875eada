"""What a list and a search know of real runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from ferrule import Predict, ReAct, Response, SQLiteStore, ToolCall, tool
from ferrule.runs.store import outliner
from ferrule.runs.store.outliner import words_in
from ferrule.testing import ScriptedLM
from ferrule.values.conversation.exchange import Usage


@tool
def refund(order: str, cents: int) -> str:
    """Pay a customer back."""
    if cents > 1000:
        raise ValueError("over the limit of Zurich")
    return "paid"


def call(**args: Any) -> Response:
    return Response(
        tool_calls=(ToolCall(name="refund", args=args, id="c"),),
        usage=Usage(10, 5),
        model="gpt",
        cost=0.5,
    )


END = Response(
    tool_calls=(ToolCall(name="finish", args={"answer": "Paid\nback."}, id="end"),),
    model="gpt",
    cost=0.25,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "runs.db") as store:
        yield store


def agent(*answers: Response, **options: Any) -> ReAct:
    return ReAct("question, tone -> answer", tools=[refund], lm=ScriptedLM(answers), native=True)


def test_a_run_has_its_first_input_and_output_and_counts(store: SQLiteStore) -> None:
    program = agent(call(order="A-77", cents=5000), call(order="A-77", cents=500), END)
    program.start(question="Refund\n  order 77", tone="kind", store=store)
    [line] = store.list()
    assert (line.asked, line.answered) == ("Refund order 77", "Paid back.")
    assert line.steps == 3
    assert line.seconds > 0
    [found] = store.list(tool="refund", tool_failed=True, model="gpt", min_cost=0.5)
    assert found == line


@pytest.mark.parametrize("search", ["order 77", "kind", "5000", "zurich", "paid back", "ReAct"])
def test_inputs_outputs_arguments_and_errors_are_found(store: SQLiteStore, search: str) -> None:
    program = agent(call(order="A-77", cents=5000), END)
    program.start(question="Refund order 77", tone="kind", store=store)
    assert len(store.list(search=search)) == 1


def test_a_run_at_work_is_found_and_shows_how_far_it_is(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outliner, "_BETWEEN_OUTLINES_S", 0.0)
    seen: list[Any] = []

    def answer(request: Any) -> Response:
        seen.append(store.list(search="refund")[0])
        return [call(order="A-77", cents=5), END][len(seen) - 1]

    program = ReAct("question -> answer", tools=[refund], lm=ScriptedLM(by=answer), native=True)
    program.start(question="Refund it", store=store)
    assert [(line.status, line.steps) for line in seen] == [("running", 0), ("running", 1)]
    assert seen[1].usage.total_tokens == 15


def test_no_secret_is_in_the_file(store: SQLiteStore) -> None:
    """Neither in the words of a search, nor in a line of the list."""

    @tool
    def login(user: str, password: SecretStr) -> str:
        """Log in."""
        return f"hello {user}"

    answer = Response(
        "password=correcthorse",
        (ToolCall(name="login", args={"user": "ada", "password": "correcthorse"}, id="c"),),
    )
    program = ReAct("question -> answer", [login], lm=ScriptedLM([answer, END]), native=True)
    program.start(question="Log in", store=store)
    assert len(store.list(search="ada")) == 1
    assert store.list(search="correcthorse") == []
    with store._file.lock:
        [[words]] = store._file.read(
            lambda db: db.execute("SELECT words FROM ferrule_search").fetchall()
        )
    assert "correcthorse" not in words


def test_a_fork_counts_only_what_it_did_itself(store: SQLiteStore) -> None:
    program = agent(call(order="A", cents=1), END)
    run = program.start(question="Refund it", tone="", store=store)
    program.lm = ScriptedLM([END])
    run.fork(at_step=1).resume()
    assert sorted(line.steps for line in store.list()) == [2, 2]
    uses = store._file.read(
        lambda db: db.execute("SELECT calls FROM ferrule_used WHERE kind = 'tool'").fetchall()
    )
    assert uses == [(1,)]


def test_pictures_are_not_searched_and_long_texts_are_cut(store: SQLiteStore) -> None:
    program = Predict("question -> answer", lm=ScriptedLM([Response("[[ ## answer ## ]]\nyes")]))
    program.start(question="first " + "word " * 5000 + "last", store=store)
    assert len(store.list(search="first")) == 1
    assert store.list(search="last") == []
    assert len(store.list()[0].asked) == 200


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("issue_refund(order='A-77')", ["issue", "refund", "order", "a", "77"]),
        ("Straße ÉTÉ", ["strasse", "ete"]),
        ("北京 hotel", ["北", "京", "hotel"]),
        ("\ud800 \x00", []),
        ("x" * 100, ["x" * 40]),
    ],
)
def test_words_are_without_case_accents_and_signs(text: str, words: list[str]) -> None:
    assert words_in(text) == words


@pytest.mark.parametrize("text", ["\ud800", "a\0b", "x" * 1_000_000])
def test_what_no_database_holds_as_it_is_stops_no_run(any_store: Any, text: str) -> None:
    """Names and texts come from models, people and servers; Postgres has no NUL."""
    strange = Response(
        tool_calls=(ToolCall(name=f"find{text}", args={text: text}, id="c"),), model=text
    )
    end = Response(tool_calls=(ToolCall(name="finish", args={"answer": text}, id="end"),))
    run = agent(strange, end).start(question=text, tone=text, store=any_store)
    assert (run.status, run.error) == ("done", None)
    [line] = any_store.list()
    assert line.status == "done"
    assert "\0" not in line.asked + line.answered
