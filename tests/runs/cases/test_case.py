"""Cases, their files, and stored runs held against them (`runs/cases/case.py`)."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ferrule import Evaluate, MemoryStore, Policy, ReAct, SQLiteStore, ask, context
from ferrule import allow as allow_rule
from ferrule.cases import (
    Case,
    asked_person,
    called,
    cases_of,
    cost_under,
    grade,
    in_order,
    meets_case,
    never,
    read_cases,
    write_cases,
)
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM


def find(order: str) -> float:
    """Find an order."""
    return 30.0


def pay(order: str, euros: float, note: str = "") -> str:
    """Pay."""
    return "paid"


def made(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


def desk(**options: Any) -> ReAct:
    return ReAct("message -> reply", [find, pay], name="desk", **options)


def run_of(store: Any, message: str, *script: Any, program: Any = None) -> Any:
    lm = ScriptedLM([*script, made("finish", reply="Done.")])
    with context(lm=lm):
        return (program or desk()).start(message=message, store=store)


FIND = made("find", order="A1")
PAY = made("pay", order="A1", euros=30)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        yield MemoryStore()
        return
    with SQLiteStore(tmp_path / "runs.db") as opened:
        yield opened


# -- cases of stored runs


def test_a_case_expects_the_calls_of_its_run_in_their_order(store: Any) -> None:
    run_of(store, "Pay A1 back.", FIND, PAY)
    [case] = cases_of(store)
    assert case == Case(
        name="Pay A1 back.",
        program="desk",
        inputs={"message": "Pay A1 back."},
        expect=[
            in_order(called("find", order="A1"), called("pay", order="A1", euros=30.0, note=""))
        ],
    )
    assert case.outputs is None
    assert cases_of(store, with_outputs=True)[0].outputs == {"reply": "Done."}


def test_calls_of_one_answer_have_no_order(store: Any) -> None:
    run_of(store, "?", [made("find", order="A1"), made("find", order="B2")], PAY)
    [case] = cases_of(store)
    paid = called("pay", order="A1", euros=30.0, note="")
    assert [*case.expect] == [
        in_order(called("find", order="A1"), paid),
        called("find", order="B2"),
    ]


def test_equal_calls_are_expected_once(store: Any) -> None:
    run_of(store, "?", FIND, FIND, FIND)
    assert [*cases_of(store)[0].expect] == [called("find", order="A1")]


def test_a_run_without_calls_expects_none_in_particular(store: Any) -> None:
    run_of(store, "?")
    assert [*cases_of(store)[0].expect] == []


def test_what_a_person_denied_must_not_run(store: Any) -> None:
    program = desk(policy=Policy([ask("pay")]))
    with context(lm=ScriptedLM([PAY, made("finish", reply="x")])):
        run = program.start(message="?", store=store)
        run.answer(run.pending[0].deny("no"))
        run.resume()
    arguments = {"order": "A1", "euros": 30.0, "note": ""}
    assert [*cases_of(store)[0].expect] == [
        asked_person("pay", where=arguments),
        never("pay", where=arguments),
    ]
    assert grade(store, cases_of(store)).failed == []


def test_the_calls_of_a_program_that_is_a_tool_are_left_to_it(store: Any) -> None:
    inner = ReAct("question -> answer", [find], name="inner").as_tool("inner", "Answers.")
    program = ReAct("message -> reply", [inner])
    script = [made("inner", question="?"), made("find", order="Z"), made("finish", answer="5")]
    run_of(store, "?", *script, program=program)
    assert [*cases_of(store)[0].expect] == [called("inner", question="[?]")]


@pytest.mark.parametrize("order", ["[draft] *?", "[a-z]", "*", "*?[!x]"])
def test_a_text_with_wildcards_is_expected_as_it_is(store: Any, order: str) -> None:
    run_of(store, "?", made("find", order=order))
    cases = cases_of(store)
    assert grade(store, cases).failed == []
    other = MemoryStore()
    run_of(other, "?", made("find", order="b"))
    assert len(grade(other, cases).failed) == 1


def test_a_long_argument_is_left_out(store: Any) -> None:
    run_of(store, "?", made("pay", order="A1", euros=1, note="x" * 300))
    assert [*cases_of(store)[0].expect] == [called("pay", order="A1", euros=1.0)]


def test_of_runs_with_equal_inputs_the_last_counts(store: Any) -> None:
    run_of(store, "same", FIND)
    run_of(store, "other")
    run_of(store, "same", PAY)
    cases = cases_of(store)
    assert [case.name for case in cases] == ["other", "same"]
    assert "pay" in str(cases[1].expect)


def test_only_finished_runs_of_the_program_are_cases(store: Any) -> None:
    run_of(store, "one")
    with context(lm=ScriptedLM([RuntimeError("broken")])):
        desk().start(message="two", store=store)
    run_of(store, "three", program=ReAct("message -> reply", [find], name="other"))
    assert [case.name for case in cases_of(store, program="desk")] == ["one"]


# -- grading


def test_the_runs_of_a_store_are_held_against_the_cases_of_another(store: Any) -> None:
    before = MemoryStore()
    run_of(before, "good", FIND, PAY)
    run_of(before, "bad", FIND, PAY)
    run_of(before, "missing")
    run_of(store, "good", FIND, FIND, PAY)
    bad = run_of(store, "bad", PAY)
    run_of(store, "new")
    grades = grade(store, cases_of(before))
    assert [graded.judgement.score for graded in grades.runs] == [True, False]
    assert [graded.run_id for graded in grades.failed] == [bad.id]
    assert "no call fits called('find', order='A1')" in grades.failed[0].judgement.feedback
    assert [case.name for case in grades.without_run] == ["missing"]
    assert grades.without_case == 1


def test_outputs_are_compared_if_an_agent_ended_with_them(store: Any) -> None:
    run_of(store, "?")
    wanted = [Case(inputs={"message": "?"}, outputs={"reply": text}) for text in ("Done.", "No.")]
    assert [graded.judgement.score for graded in grade(store, wanted).runs] == [True, False]
    assert "`reply` is 'Done.'; it should be 'No.'" in str(grade(store, wanted).failed)


def test_a_case_of_another_program_does_not_apply(store: Any) -> None:
    run_of(store, "?")
    case = Case(inputs={"message": "?"}, program="other", expect=[called("find")])
    assert grade(store, [case]).runs == []


def test_a_damaged_run_hides_no_other_one(tmp_path: Path) -> None:
    import sqlite3

    with SQLiteStore(tmp_path / "runs.db") as store:
        damaged = run_of(store, "one", FIND)
        run_of(store, "two", FIND)
        cases = cases_of(store)
    with closing(sqlite3.connect(tmp_path / "runs.db")) as file, file:
        file.execute("UPDATE ferrule_runs SET head = '{' WHERE id = ?", (damaged.id,))
    with SQLiteStore(tmp_path / "runs.db") as store:
        grades = grade(store, cases)
        assert [*grades.unread] == [damaged.id]
        assert len(grades.runs) == 1
        assert len(cases_of(store)) == 1


# -- with `Evaluate`


def test_cases_are_a_devset_and_have_a_metric() -> None:
    cases = [
        Case(inputs={"message": "Pay."}, expect=[called("pay"), never("find")]),
        Case(inputs={"message": "Find."}, expect=[called("find")], outputs={"reply": "other"}),
    ]

    def model(request: Any) -> Any:
        if request.messages[-1].role == "tool":
            return made("finish", reply="Done.")
        return PAY if "Pay." in request.messages[-1].text else FIND

    result = Evaluate(cases, meets_case)(desk(lm=ScriptedLM(by=model)))
    assert [item.scores for item in result] == [{"meets_case": 1.0}, {"meets_case": 0.0}]
    assert "`reply` is 'Done.'; it should be 'other'" in result[1].feedback
    assert result.table().splitlines()[0].split()[:2] == ["message", "reply"]
    assert result.compare(result).same == 2


def test_a_case_judges_a_run() -> None:
    run = desk().start(message="?", lm=ScriptedLM([FIND, made("finish", reply="Done.")]))
    case = Case(inputs={}, expect=[called("find"), cost_under(1)], outputs={"reply": "Done."})
    assert "price of a model is not known" in case.judge(run).feedback
    with pytest.raises(ConfigurationError, match="outputs of a case"):
        case.judge(run.trajectory)


@pytest.mark.parametrize("expect", [["called('x')"], [allow_rule("x")], [None]], ids=range(3))
def test_what_is_no_expectation_is_refused(expect: Any) -> None:
    with pytest.raises(ConfigurationError, match="`expect` of a case"):
        Case(inputs={}, expect=expect)


# -- files


def test_a_file_of_cases_is_read_as_it_was_written(store: Any, tmp_path: Path) -> None:
    run_of(store, 'It\'s "ünïcode" \u2603\n', FIND, made("pay", order="[1]", euros=3, note="a\nb"))
    run_of(store, "other")
    cases = cases_of(store, with_outputs=True)
    write_cases(cases, tmp_path / "cases.json")
    assert read_cases(tmp_path / "cases.json") == cases
    assert "ünïcode ☃" in (tmp_path / "cases.json").read_text(encoding="utf-8").replace('\\"', "")


def test_a_case_that_is_not_data_is_not_written(tmp_path: Path) -> None:
    case = Case(inputs={}, expect=[called("pay", euros=lambda euros: euros > 3)])
    with pytest.raises(ConfigurationError, match="cannot be written to a file"):
        write_cases([case], tmp_path / "cases.json")
    assert not (tmp_path / "cases.json").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "has no cases"),
        ('{"cases": []}', "has no cases"),
        ('{"ferrule_cases": 2, "cases": []}', "has no cases"),
        ('{"ferrule_cases": 1}', "`cases`"),
        ('{"ferrule_cases": 1, "cases": {}}', "`cases`"),
        ('{"ferrule_cases": 1, "cases": [3]}', "Case 1"),
        ('{"ferrule_cases": 1, "cases": [{"expect": []}]}', "Case 1 .*needs `inputs`"),
        ('{"ferrule_cases": 1, "cases": [{"inputs": {}}, {"inputs": []}]}', "Case 2 .*an object"),
        ('{"ferrule_cases": 1, "cases": [{"inputs": {}, "expects": []}]}', "no 'expects'"),
        ('{"ferrule_cases": 1, "cases": [{"inputs": {}, "expect": "x"}]}', "a list"),
        ('{"ferrule_cases": 1, "cases": [{"inputs": {}, "expect": ["x("]}]}', "Case 1 .*x\\("),
    ],
    ids=range(14),
)
def test_a_file_without_cases_says_what_is_wrong(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "cases.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=problem):
        read_cases(tmp_path / "cases.json")


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.json"):
        read_cases(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match=r"bytes\.json"):
        read_cases(tmp_path / "bytes.json")


def test_a_file_without_expectations_is_a_list_of_inputs(tmp_path: Path) -> None:
    form = {"ferrule_cases": 1, "cases": [{"inputs": {"message": "x"}}]}
    (tmp_path / "cases.json").write_text(json.dumps(form), encoding="utf-8")
    assert read_cases(tmp_path / "cases.json") == [Case(inputs={"message": "x"})]
