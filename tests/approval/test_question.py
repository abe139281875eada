"""Questions, and what a person says as a decision."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import Field, SecretStr

from ferrule import Decision, Grant, Question, Tool, ToolCall, under
from ferrule.approval.asking import question_about, tool_fingerprint
from ferrule.approval.decisions import (
    accept,
    allowed_call,
    call_as_decided,
    plain_decision,
    read_decision,
)
from ferrule.approval.input_form import (
    agree_to_form,
    describe_form,
    fill_form,
    form_fields,
    read_form,
    secret_fields,
)
from ferrule.encoding.encode import json_text
from ferrule.errors import DecisionError
from ferrule.values.calls.call import CheckedCall
from ferrule.values.calls.secrets import STARS

ASKED = Question(
    "confirm",
    "Sure?",
    ToolCall(name="rm", args={"path": "a", "force": False}),
    "q1",
    "f",
    raw={"path": "a", "depth": 1},
)
CLARIFY = Question(
    "clarify",
    "Which?",
    ToolCall(name="user_clarification", args={"question": "Which?"}),
    "q2",
)


@pytest.mark.parametrize(
    "said",
    ["yes", "y", " YES ", "Y", True],
    ids=["yes", "y", "spaced", "upper", "true"],
)
def test_yes_in_any_case_approves(said: object) -> None:
    assert ASKED.decide(said) == Decision("q1", "approve")


@pytest.mark.parametrize(
    "said",
    ["no", "N", " No\n", False],
    ids=["no", "upper", "spaced", "false"],
)
def test_no_in_any_case_denies(said: object) -> None:
    assert ASKED.decide(said) == Decision("q1", "deny")


@pytest.mark.parametrize(
    "said",
    [
        '{"path": "b"}',
        {"path": "b"},
        '{"edit": {"name": "rm", "args": {"path": "b"}}}',
        {"edit": {"args": {"path": "b"}}},
    ],
    ids=["json", "mapping", "edit", "edit_without_name"],
)
def test_a_json_object_edits(said: object) -> None:
    assert ASKED.decide(said) == Decision("q1", "edit", args={"path": "b"})


def test_an_argument_that_is_named_edit_is_an_argument() -> None:
    asked = replace(ASKED, call=ToolCall(name="change", args={"edit": "x"}))
    assert asked.decide('{"edit": {"name": "y"}}').args == {"edit": {"name": "y"}}


def test_an_edit_never_changes_the_tool() -> None:
    with pytest.raises(DecisionError, match="names 'shell'"):
        ASKED.decide('{"edit": {"name": "shell", "args": {"path": "b"}}}')
    with pytest.raises(DecisionError, match="An edit is"):
        ASKED.decide('{"edit": {"tool": "shell", "args": {}}}')


@pytest.mark.parametrize(
    "said",
    ["{}", {}, '{"edit": {"name": "rm", "args": {}}}'],
    ids=["text", "mapping", "form"],
)
def test_an_edit_that_changes_nothing_is_no_approval(said: object) -> None:
    with pytest.raises(DecisionError, match="changes nothing"):
        ASKED.decide(said)
    with pytest.raises(DecisionError, match="changes nothing"):
        ASKED.edit({})


@pytest.mark.parametrize("args", [5, None, "path", ["path"], [("path", "b")]], ids=repr)
def test_an_edit_that_is_no_mapping_is_refused(args: Any) -> None:
    """What a page has sent, for example: it raised errors about iterables."""
    with pytest.raises(DecisionError, match="An edit takes the changed arguments by name"):
        ASKED.edit(args)


@given(st.text(min_size=1))
def test_no_text_but_a_clear_yes_runs_the_call_as_it_is(said: str) -> None:
    """Property. Other text is feedback, or an edit that is a JSON object."""
    if said.strip() == "{}":
        return
    decision = ASKED.decide(said)
    assert (decision.kind == "approve") is (said.strip().casefold() in {"y", "yes"})


@pytest.mark.parametrize("said", ["[1]", '"yes"', "{broken", "yes please", "null"])
def test_anything_else_is_feedback(said: str) -> None:
    assert ASKED.decide(said) == Decision("q1", "reply", text=said)


def test_what_is_said_to_a_question_of_the_model_is_its_answer() -> None:
    assert CLARIFY.decide("yes") == Decision("q2", "reply", text="yes")
    assert CLARIFY.decide('{"path": "b"}').kind == "reply"


def test_a_decision_goes_as_it_is_and_nonsense_does_not_go() -> None:
    assert ASKED.decide(ASKED.deny("why")) == ASKED.deny("why")
    with pytest.raises(DecisionError, match="A decision is"):
        ASKED.decide(7)  # type: ignore[arg-type]


def test_the_digest_names_what_is_shown() -> None:
    others = [
        replace(ASKED, fingerprint="g"),
        replace(ASKED, call=ASKED.call.changed(name="cp")),
        replace(ASKED, call=ASKED.call.changed(args={"path": "b"})),
    ]
    assert len({each.digest for each in (ASKED, *others)}) == 4
    assert replace(ASKED, text="Again?", id="q9").digest == ASKED.digest
    assert ASKED.approve().shown == ASKED.digest


def test_changes_are_told_between_what_was_written_and_what_would_run() -> None:
    """Raw -> prepared."""
    assert ASKED.changes == {"force": (None, False), "depth": (1, None)}
    assert CLARIFY.changes == {}


def test_a_fingerprint_changes_with_the_definition_and_the_effect() -> None:
    def pay(amount: int) -> None:
        """Pay."""

    tools = [
        Tool(pay),
        Tool(pay, description="Pay at once."),
        Tool(pay, effect="read"),
        Tool(pay, name="pay_out"),
    ]
    assert len({tool_fingerprint(tool) for tool in tools}) == len(tools)


PAY = {"name": "pay", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": False}}


@pytest.mark.parametrize(
    "change",
    [
        {"annotations": {"destructiveHint": True}},
        {"annotations": {"readOnlyHint": False, "title": "Look"}},
        {"annotations": None},
        {"title": "Look at a bill"},
        {"outputSchema": {"type": "object"}},
    ],
    ids=str,
)
def test_a_server_that_changes_what_it_says_of_a_tool_needs_a_new_approval(change: Any) -> None:
    """A grant for a tool that only read covered it when it had become destructive."""
    before, after = (
        Tool.from_mcp_tool(entry, "shop", confirm=True) for entry in (PAY, {**PAY, **change})
    )
    asked = question_about(checked(before))
    grant = asked.bound(Grant())
    assert grant.covers("pay", asked.fingerprint, {})
    changed = question_about(checked(after))
    assert not grant.covers("pay", changed.fingerprint, {})
    with pytest.raises(DecisionError, match="does not fit"):
        accept(changed, asked.approve(), now=0)


def checked(tool: Any) -> CheckedCall:
    return CheckedCall(ToolCall(name=tool.name, args={}), tool, tool.prepare({}))


def test_who_decided_is_no_part_of_what_was_decided() -> None:
    signed = ASKED.approve().signed("ada", "web")
    assert signed == ASKED.approve()
    assert (signed.by, signed.via) == ("ada", "web")


def test_a_grant_names_arguments_of_the_tool() -> None:
    """One with a misspelled name was taken, and each call was asked about again."""
    schema = {"type": "object", "properties": {"to": {}, "note": {}}}
    asked = replace(ASKED, schema=schema)
    with pytest.raises(DecisionError, match="has no argument `too`"):
        asked.approve(always=Grant(args={"too": "Ada"}))
    for args in ({"note": "*"}, dict.fromkeys(ASKED.call.args, "*"), {}):
        assert asked.approve(always=Grant(args=args)).grant is not None
    taking_any = replace(ASKED, schema={**schema, "additionalProperties": True})
    assert taking_any.approve(always=Grant(args={"too": "Ada"})).grant is not None


def test_always_is_for_an_approval_as_it_is() -> None:
    grant = ASKED.approve(always=Grant()).grant
    assert grant is not None
    assert (grant.tool, grant.fingerprint) == ("rm", "f")
    assert grant.covers("rm", "f", {"force": False, "path": "a"})
    with pytest.raises(DecisionError, match="this call alone"):
        ASKED.approve(always=Grant(), path="b")


FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "default": 3},
        "kind": {"type": "string", "enum": ["a", "b"], "default": "a"},
        "odd": True,
    },
    "required": ["name"],
}
ONE = {
    "type": "object",
    "properties": {"seats": {"type": "integer"}, "note": {"type": "string", "default": ""}},
}
YES = {"type": "object", "properties": {"approve": {"type": "boolean"}}}
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def asked(form: Any) -> Question:
    return Question("input", "?", ToolCall(name="book"), "q", form=form)


def test_what_is_left_out_has_its_default() -> None:
    """SEP-1034."""
    assert fill_form(FORM, {"name": "Ann", "age": 4}) == {"age": 4, "kind": "a", "name": "Ann"}
    assert fill_form(None, {}) == {}


def test_the_fields_are_told_with_choices_and_defaults() -> None:
    assert describe_form(FORM) == (
        '`name` (string), `age` (integer, default 3, may be left out), `kind` ("a" or "b", default "a", may be left out), '
        "`odd` (any, may be left out)"
    )
    assert describe_form(None) == "no fields"


@pytest.mark.parametrize(
    ("form", "said", "content"),
    [
        (ONE, "2", {"seats": 2}),
        (ONE, "two", {"seats": "two"}),
        (ONE, '{"note": "x"}', {"note": "x"}),
        (YES, "true", {"approve": True}),
    ],
    ids=["number", "word", "object", "boolean"],
)
def test_one_value_needs_no_object(form: Any, said: str, content: Any) -> None:
    assert read_form(form, said) == content


def test_a_text_stays_a_text_though_it_reads_as_json() -> None:
    assert read_form({"properties": {"name": {"type": "string"}}}, "7") == {"name": "7"}


def test_a_word_that_could_be_any_of_several_fields_is_refused_with_all_of_them() -> None:
    with pytest.raises(DecisionError, match=r"`name` \(string\)"):
        read_form(FORM, "Ann")


def test_a_plain_yes_agrees_to_a_form_of_one_boolean_and_to_defaults() -> None:
    assert (agree_to_form(YES), agree_to_form(FORM), agree_to_form(None)) == (
        {"approve": True},
        {},
        {},
    )
    assert json.loads(asked(YES).decide("yes").text) == {"approve": True}
    assert asked(YES).decide("no").kind == "deny"
    assert json.loads(asked(ONE).decide({"seats": 1}).text) == {"note": "", "seats": 1}


def test_an_approval_of_a_form_fills_it() -> None:
    assert json.loads(asked(ONE).approve(seats=1).text) == {"note": "", "seats": 1}
    assert json.loads(asked(YES).approve().text) == {"approve": True}


def test_what_is_said_to_a_form_is_a_decision_a_boolean_an_object_or_text() -> None:
    with pytest.raises(DecisionError, match="A decision is"):
        asked(ONE).decide(7)  # type: ignore[arg-type]


def test_only_a_question_with_a_form_is_filled() -> None:
    with pytest.raises(DecisionError, match="kind `input`"):
        Question("confirm", "?", ToolCall(name="book"), "q").fill({})


def test_a_question_is_another_one_when_something_else_is_asked() -> None:
    assert asked(ONE).digest != asked(YES).digest
    assert asked(ONE).fill({"seats": 1}).shown == asked(ONE).digest


@given(
    form=st.dictionaries(st.sampled_from(["properties", "required", "type"]), ANY_JSON),
    said=st.text(),
)
def test_any_form_and_any_words_give_values_or_a_refusal(form: Any, said: str) -> None:
    assert isinstance(form_fields(form), dict)
    try:
        found = read_form(form, said)
    except DecisionError:
        return
    assert isinstance(found, dict)


def test_a_change_of_the_arguments_changes_the_digest_of_a_question_that_was_shown() -> None:
    question = replace(ASKED, call=ToolCall(name="rm", args={"path": "a"}))
    shown = question.digest
    question.call.args["path"] = "b"
    assert question.digest != shown


def test_an_edit_removes_arguments_that_the_call_has() -> None:
    decision = ASKED.edit({"path": "b"}, removed=["force"])
    assert (decision.kind, decision.args, decision.removed) == ("edit", {"path": "b"}, ("force",))
    assert ASKED.decide('{"edit": {"removed": ["force"]}}') == ASKED.edit({}, removed=["force"])
    assert read_decision(json.loads(json_text(decision))) == decision
    assert plain_decision(decision) == decision
    for args, removed in (({}, ["depth"]), ({"path": "b"}, ["path"])):
        with pytest.raises(DecisionError, match="removes arguments that the call has"):
            ASKED.edit(args, removed=removed)
    with pytest.raises(DecisionError, match="names the arguments that it removes"):
        plain_decision(replace(decision, removed=("force", 1)))


@pytest.mark.parametrize("is_default", [True, False], ids=["default", "no default"])
def test_a_removed_argument_does_not_run(is_default: bool) -> None:
    """The call ran with the old value."""
    properties: Any = {"amount": {"type": "integer"}}
    if is_default:
        properties["amount"]["default"] = 1
    tool = Tool.from_mcp_tool(
        {"name": "pay", "inputSchema": {"type": "object", "properties": properties}}, "shop"
    )
    call = CheckedCall(
        ToolCall(name="pay", args={"amount": 5000}), tool, tool.prepare({"amount": 5000})
    )
    decision = question_about(call).edit({}, removed=["amount"])
    assert allowed_call(call, decision, has_run=None).arguments.shown == {}
    assert call_as_decided(call, decision).args == {}


def test_the_default_of_a_removed_argument_runs() -> None:
    def pay(to: str, amount: int = 1) -> None:
        """Pay."""

    tool = Tool(pay)
    args = {"to": "Ada", "amount": 5000}
    call = CheckedCall(ToolCall(name="pay", args=args), tool, tool.prepare(args))
    allowed = allowed_call(call, question_about(call).edit({}, removed=["amount"]), has_run=None)
    assert allowed.arguments.shown == {"to": "Ada", "amount": 1}


@pytest.mark.parametrize(
    ("schema", "message", "is_secret"),
    [
        ({"type": "string", "format": "password"}, "", True),
        ({"type": "string", "writeOnly": True}, "", True),
        ({"type": "string", "title": "Your API key"}, "", True),
        ({"type": "string", "description": "The PIN of your card"}, "", True),
        ({"type": "string"}, "Type your password", True),
        ({"type": "boolean"}, "Do you know your password?", False),
        ({"type": "string"}, "Which city? Spinning passes opinions.", False),
    ],
    ids=str,
)
def test_a_form_that_asks_for_a_secret_is_found(schema: Any, message: str, is_secret: bool) -> None:
    form = {"type": "object", "properties": {"field": schema}}
    assert secret_fields(form, message) == (["field"] if is_secret else [])


# -- always in this folder


@pytest.mark.parametrize(
    ("args", "folders"),
    [
        ({"path": "src/a.py", "text": "and/or not"}, {"path": "src"}),
        ({"path": "a.py"}, {"path": "."}),
        ({"sourceFile": "in.txt", "target": "out/b"}, {"sourceFile": ".", "target": "out"}),
        ({"where": "notes"}, {"where": "."}),  # its schema says that it is a path
        ({"path": "src/../a.py"}, None),
        ({"path": "/a.py"}, None),
        ({"path": "src/a.py", "target": "~/b"}, None),
        ({"paths": ["src/a.py"]}, None),
        ({"text": "a", "link": "https://a/b"}, None),
    ],
)
def test_a_grant_for_a_folder_covers_every_path_of_the_call(
    args: dict[str, Any], folders: dict[str, str] | None
) -> None:
    schema = {"properties": {"where": {"type": "string", "format": "path"}}}
    asked = Question("confirm", "?", ToolCall(name="f", args=args), "q", "f", schema=schema)
    grant = asked.grant_for_folder()
    if folders is None:
        assert grant is None
    else:
        assert grant is not None
        assert grant.args == {name: under(folder) for name, folder in folders.items()}
        assert asked.approve(always=grant).grant is not None


def test_a_server_gets_no_grant_for_a_folder_that_only_it_knows() -> None:
    def asked(path: str) -> Question:
        return Question("confirm", "?", ToolCall(name="f", args={"path": path}), server="files")

    assert asked("src/a.py").grant_for_folder() is None
    assert asked("/srv/a.py").grant_for_folder() == Grant(args={"path": under("/srv")})


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("confirm", lambda question: question.approve()),
        ("unknown", lambda question: question.approve()),
        ("clarify", lambda question: question.reply("text")),
        ("input", lambda question: question.fill({})),
        ("migration", lambda question: question.edit({"path": "b"})),
    ],
)
def test_the_first_way_to_answer_is_one_that_the_question_takes(kind: Any, call: Any) -> None:
    fields = {"type": "object", "properties": {}}
    asked = replace(ASKED, kind=kind, form=fields, schema=fields)
    assert isinstance(call(asked), Decision)
    written = re.search(r"question\.(\w+)\(", asked.ways)
    assert written is not None
    assert written[1] in call.__code__.co_names


def test_a_question_for_a_result_is_answered_with_a_delivery() -> None:
    asked = replace(ASKED, kind="result", key="build-7")
    with pytest.raises(DecisionError):
        asked.approve()
    assert asked.ways.startswith("`run.deliver('build-7', value)`")


@pytest.mark.parametrize("kind", ["confirm", "migration"])
def test_an_edit_of_an_argument_that_the_tool_does_not_have_is_refused(kind: Any) -> None:
    """It fits no call: a button would have said "recorded", and the run would have asked again."""
    schema: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}
    asked = replace(ASKED, kind=kind, schema=schema, id="q1")
    with pytest.raises(DecisionError, match="no argument `pth`, so the edit would be") as caught:
        asked.edit({"pth": "b"})
    assert caught.value.reason == "unfit"
    with pytest.raises(DecisionError, match="`pth`"):
        accept(asked, Decision("q1", "edit", args={"pth": "b"}), now=0.0)
    open_ended = replace(asked, schema={**schema, "additionalProperties": True})
    for question in (open_ended, replace(ASKED, kind="confirm", schema=None)):
        assert question.edit({"pth": "b"}).args == {"pth": "b"}


@pytest.mark.parametrize(
    ("args", "raw"),
    [
        ({"api-key": "hunter2"}, {"api-key": STARS}),
        ({"arguments": {"key": "hunter2"}}, {"arguments": {"key": STARS}}),
        ({"parameters": '{"key": "hunter2"}'}, {"parameters": STARS}),
        ({"key": "hunter2", "n": "2"}, {"key": STARS, "n": "2"}),
    ],
)
def test_a_question_never_shows_a_secret_by_whatever_name_the_model_wrote_it(args, raw):
    def use(key: Annotated[SecretStr, Field(alias="api-key")], n: int = 1) -> None: ...

    made = Tool(use)
    call = ToolCall(name="use", args=args)
    thought = "I use hunter2." if "parameters" not in args else ""
    question = question_about(CheckedCall(call, made, made.prepare(args)), thought=thought)
    assert question.raw == raw
    assert "hunter2" not in str(question)
    assert "hunter2" not in question.thought
