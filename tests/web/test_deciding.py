"""Decisions on the page (`web/deciding.py`)."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from agent_script import native_step
from page_server import Client, Stream, served
from page_store import REFUND, finish, start, support

from ferrule import (
    Module,
    Policy,
    Prediction,
    ReAct,
    Run,
    SQLiteStore,
    Tool,
    ToolCall,
    ask,
    context,
    under,
)
from ferrule.acts import AskPerson
from ferrule.approval.decisions import read_decision
from ferrule.approval.question import Question
from ferrule.encoding.safe_text import reveal
from ferrule.encoding.stored import parse_json
from ferrule.testing import ScriptedLM
from ferrule.web.forms import HTMLForm
from ferrule.web.reading import decided
from ferrule.web.ui import ui_app


def question_of(store: SQLiteStore, run_id: str) -> Any:
    [found] = store.summary(run_id).questions
    return found


def fields_of(store: SQLiteStore, run_id: str) -> dict[str, str]:
    """What a browser sends if nothing is changed."""
    found: dict[str, str] = {
        "digest": question_of(store, run_id).digest,
        "back": "run",
        "words": "",
    }
    for top in _form(store, run_id).fields:
        for leaf in top.leaves():
            found[leaf.name] = reveal(leaf.text).replace("\n", "\r\n")
            if leaf.is_null and leaf.kind == "text":
                found[f"null:{leaf.name}"] = "1"
    return found


def _form(store: SQLiteStore, run_id: str) -> Any:
    from ferrule.web.pages import question_form
    from ferrule.web.reading import AskedQuestion

    return question_form(
        AskedQuestion(run=store.summary(run_id), question=question_of(store, run_id)),
    )


def decide(client: Client, store: SQLiteStore, run_id: str, do: str, **changed: str) -> Any:
    question = question_of(store, run_id)
    path = f"/runs/{run_id}/questions/{question.id}"
    form = {
        **(fields_of(store, run_id) if question.kind == "confirm" else {"digest": question.digest}),
        "do": do,
    }
    return client.post(
        path,
        {**form, **{name.replace("__", ":"): value for name, value in changed.items()}},
    )


def decision_on(store: SQLiteStore, run_id: str) -> Any:
    [text] = store.load(run_id).decisions
    return read_decision(parse_json(text))


def test_a_form_sent_unchanged_is_a_plain_approval(ann: Any, store: SQLiteStore) -> None:
    for run_id in ("order-1042", "order-1040"):
        assert decide(ann, store, run_id, "approve").status == 303
        made = decision_on(store, run_id)
        assert (made.kind, made.args, made.by, made.via) == ("approve", {}, "ann", "web")


@pytest.mark.parametrize("expires_s", [1e12, 1e300])
def test_a_question_that_expires_after_the_last_date_hides_no_other(
    ann: Any,
    store: SQLiteStore,
    expires_s: float,
) -> None:
    with context(policy=Policy([ask("refund", expires_s=expires_s)])):
        start(store, "late", "Pay.", REFUND)
    for path in ("/inbox", "/runs/late"):
        page = ann.get(path)
        assert page.status == 200
        assert "9999-12-31T23:59:59Z" in page.text


MORE = ["Text for the model", "Approve this one, and the next", "calls of refund in this run with"]
"""Behind a summary: who only approves needs none of it."""


def test_the_name_of_a_field_and_the_note_beside_it_are_words_of_their_own(ann: Any) -> None:
    """What may be left empty says so."""
    page = ann.get("/runs/order-1042").text
    labels = [
        " ".join(re.sub("<[^>]+>", "", each).split())
        for each in re.findall(
            r"<label for=[^>]*>(.*?)</label>", page.partition("people-of")[0], re.DOTALL
        )
    ]
    assert labels == ["order", "euros", "reason optional", "notify optional", *MORE]


def test_only_what_differs_is_sent_and_the_run_goes_on_with_it(
    ann: Any,
    store: SQLiteStore,
) -> None:
    """A changed amount."""
    answer = decide(ann, store, "order-1042", "approve", v__euros="12.5", by="eve", person="eve")
    assert (answer.status, answer.headers["location"]) == (
        303,
        f"/runs/order-1042#q-{question_of(store, 'order-1042').id}",
    )
    made = decision_on(store, "order-1042")
    assert (made.kind, made.args, made.by) == ("edit", {"euros": 12.5}, "ann")
    with context(lm=ScriptedLM([finish("Paid.")])):
        run = Run.load(store, "order-1042", support()).resume()
    assert run.status == "done"
    assert "Refunded 12.50 euros" in run.trajectory["observation_1"]
    page = ann.get("/runs/order-1042").text
    assert "Approved with changes" in page
    assert "by ann via web" in page


def text_of(page: str) -> str:
    """What a reader sees of the first question."""
    found = re.search(r"<article class=.question.*?</article>", page, re.DOTALL)
    return " ".join(re.sub("<[^>]+>", " ", found[0] if found else "").split())


def test_after_a_decision_a_heading_says_what_was_decided_and_the_page_what_comes_next(
    ann: Any,
    store: SQLiteStore,
) -> None:
    """At once, on the page of the run, in the inbox and in the list.

    It still asked, and the run still waited.
    """
    assert (
        '<p class="waits" data-key="w" data-v="3"><a href="/inbox">3 questions wait for a decision</a>'
        in ann.get("/").text
    )
    decide(ann, store, "order-1042", "approve", v__euros="20", v__notify="false")
    page = ann.get("/runs/order-1042").text
    assert re.match(
        r"Approved: refund ?, with euros 20 instead of 29\.9 and notify no instead of yes order A-1042"
        r" euros The model wrote 29\.9 now 20 reason arrived broken notify The model wrote yes now no"
        r" Decided by ann via web at [0-9:]+ Nothing more to do here\. The run continues when a worker or ferrule resume takes it\.$",
        text_of(page),
    )
    assert "waiting, </span>decided</span>" in page
    assert "The run continues when" in ann.get("/inbox").text
    runs = ann.get("/").text
    assert "2 questions wait for a decision" in runs
    assert "continues when a worker or <code>ferrule resume</code> takes it" in runs


SKU = "KETTLE-" + "X" * 60


@pytest.mark.parametrize(
    ("case", "more", "said"),
    [
        ("order-1042 approve", {}, "Approved: refund order A-1042"),
        ("order-1042 deny", {"words": "Too much."}, "Denied: refund Decided by ann via web at"),
        ("order-1042 reply", {"words": "Later."}, "Answered: refund Decided by ann via web at"),
        ("order-1042 always", {"calls": "3", "which": "any"}, "Approved: refund , and 3 further calls order A-1042"),
        ("order-1031 reply", {"words": "A-1031"}, "Answered Decided by ann via web at"),
        ("order-1040 approve", {"v:note": "Hi", "v:carrier": '"post"', "v:labels": "", "v:lines": "[]"}, "Approved: send_parcel , with 4 changes "),
        ("order-1040 approve", {"v:note": SKU}, f"Approved: send_parcel , with note {SKU[:60]}… instead of empty text "),
    ],
)  # fmt: skip
def test_each_decision_has_its_heading(
    ann: Any,
    store: SQLiteStore,
    case: str,
    more: dict[str, str],
    said: str,
) -> None:
    run_id, do = case.split()
    assert decide(ann, store, run_id, do, **more).status == 303
    assert text_of(ann.get(f"/runs/{run_id}").text).startswith(said)


def test_a_secret_that_was_typed_is_shown_nowhere(ann: Any, store: SQLiteStore) -> None:
    """It stood in the decision, on three pages."""
    assert decide(ann, store, "order-1040", "approve", **{"v:pin": "S3CR3T"}).status == 303
    pages = [ann.get(path).text for path in ("/inbox", "/runs/order-1040")]
    assert "with <code>pin</code> changed</h2>" in pages[0]
    assert decide(ann, store, "order-1040", "deny").status == 409
    pages.append(decide(ann, store, "order-1040", "deny").text)
    with context(lm=ScriptedLM([finish("Sent.")])):
        Run.load(store, "order-1040", support()).resume()
    pages.append(ann.get("/runs/order-1040").text)
    assert "Approved with changes" in pages[-1]
    assert not any("S3CR3T" in each for each in pages)


def test_a_whole_number_is_shown_without_decimals_and_typing_it_changes_nothing() -> None:
    """`30.0` in the field, and `30` typed over it was "approved with changes"."""
    form = HTMLForm(
        {"type": "object", "properties": {"euros": {"type": "number"}}},
        {"euros": 30.0},
    )
    assert [each.text for each in form.fields] == ["30"]
    assert form.edits(form.read({"v:euros": "30"})) == {}
    assert form.edits({"euros": 30}) == {}
    assert form.edits({"euros": True}) == {"euros": True}
    assert form.changed({"euros": 31.0, "other": ""}) == [
        ("euros", "31", "30"),
        ("other", "empty text", "no value"),
    ]


NULL = {"type": "null"}


def sent_back(form: HTMLForm) -> dict[str, str]:
    """What a browser sends of the form if nothing is changed.

    A page shows invisible characters as escapes.
    """
    leaves = [leaf for top in form.fields for leaf in top.leaves() if leaf.kind != "fixed"]
    nulls = {f"null:{leaf.name}": "1" for leaf in leaves if leaf.is_null and leaf.kind == "text"}
    return {**{leaf.name: reveal(leaf.text).replace("\n", "\r\n") for leaf in leaves}, **nulls}


@pytest.mark.parametrize(
    ("schema", "args"),
    [
        ({"type": "string"}, {"a": "Dear \U0001f468\u200d\U0001f469\u200d\U0001f467,\r\n\r\nbye"}),
        ({"type": "string"}, {"a": "\\u200d and \u200d"}),
        ({"type": "string"}, {"a": "a\rb\x00\U000e0041"}),
        ({"type": "array", "items": {"type": "string"}}, {"a": ["a\rb", "\u202e"]}),
        ({}, {"a": {"k": "\U000e0041"}}),
        ({"enum": ["x\u200dy", "b"]}, {"a": "x\u200dy"}),
        ({"enum": ["a", None]}, {"a": None}),
        ({"enum": [1, 2]}, {"a": 2.0}),
        ({"type": "array", "items": {"$ref": "#/$defs/E"}}, {"a": ["red"]}),
        ({"type": "integer", "default": 5}, {}),
        ({"anyOf": [{"type": "number"}, NULL], "default": None}, {}),
        ({"anyOf": [{"type": "number"}, NULL]}, {}),
        ({"type": "object", "properties": {"z": {"type": "string"}, "d": {"type": "integer", "default": 3}}}, {"a": {"z": "1"}}),
        ({"type": ["boolean", "string"]}, {"a": "x"}),
        ({"type": ["integer", "string", "null"]}, {"a": None}),
        ({"type": "array", "items": {"type": ["integer", "string"]}}, {"a": [1, "x"]}),
        ({"oneOf": [{"$ref": "#/properties/a"}]}, {"a": "x"}),
        ({"type": "string", "format": ["date"]}, {"a": "x"}),
    ],
    ids=str,
)  # fmt: skip
def test_a_form_sent_as_it_was_shown_changes_nothing(schema: Any, args: dict[str, Any]) -> None:
    """A call approved unchanged got `\u200d` as text into its arguments, and a type that is a list
    ended the page.
    """
    given = {**args, "p\u200dq": "1", "p\\u200dq": "2"}
    names = {"p\u200dq": {"type": "string"}, "p\\u200dq": {"type": "string"}}
    whole = {
        "type": "object",
        "properties": {"a": schema, **names},
        "$defs": {"E": {"type": "string", "enum": ["red", "blue"]}},
    }
    form = HTMLForm(whole, given)
    values = form.read(sent_back(form))
    if schema.get("format") != ["date"]:  # with no schema at all nothing fits
        assert form.edits(values) == {}


def test_what_was_typed_comes_back_as_it_was_typed(ann: Any, store: SQLiteStore) -> None:
    """An emoji of several characters came back with their escapes, and was sent so."""
    typed = "\U0001f468\u200d\U0001f469"
    answer = decide(
        ann,
        store,
        "order-1042",
        "approve",
        words=typed,
        v__reason=f"for the {typed}",
        v__euros="much",
    )
    assert answer.status == 422
    assert answer.text.count(typed) == 2


def test_what_is_typed_beside_an_invisible_character_leaves_it_there() -> None:
    form = HTMLForm(
        {"type": "object", "properties": {"a": {"type": "string"}}},
        {"a": "co\u00adop\r\nbye"},
    )
    assert form.read({"v:a": "my co\\u00adop\\u000d\r\nbye\r\n"}) == {"a": "my co\u00adop\r\nbye\n"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "format": "date"}, "tomorrow"),
        ({"type": "string", "format": "uri"}, "a b"),
        ({"type": "integer"}, 10**399),
        ({"type": "number"}, 1e300),
    ],
    ids=str,
)
def test_no_field_has_a_type_that_a_browser_empties(schema: Any, value: Any) -> None:
    """A date field shows no date for `tomorrow`, a number field no number of 400 digits."""
    form = HTMLForm({"type": "object", "properties": {"a": schema}}, {"a": value})
    [item] = form.fields
    assert item.kind in {"text", "number"}
    assert item.text == (value if isinstance(value, str) else json.dumps(value))


PAY: Any = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer"},
        "urgent": {"type": "boolean"},
        "to\nwhom": {"type": "string"},
        "note": {"type": "string"},
    },
}
PAID = {"amount": 5000, "urgent": True, "to\nwhom": "Eve", "note": "x", "force": True}


@pytest.mark.parametrize(
    ("changed", "edits", "removed"),
    [
        ({"v:amount": ""}, {}, ("amount",)),
        ({"v:urgent": ""}, {}, ("urgent",)),
        ({"v:note": ""}, {"note": ""}, ()),
        ({"out:v:note": "1"}, {}, ("note",)),
        ({"v:force": ""}, {}, ("force",)),
        ({"v:force": "false"}, {"force": False}, ()),
        ({"v:to%0Awhom": "Ada"}, {"to\nwhom": "Ada"}, ()),
        ({"out:v:to%0Awhom": "1", "v:amount": "5"}, {"amount": 5}, ("to\nwhom",)),
        ({}, {}, ()),
    ],
    ids=str,
)
def test_an_argument_that_is_emptied_or_left_out_is_removed(
    changed: Any, edits: Any, removed: Any
) -> None:
    """The call ran with the old 5000, and a name with a line break was never found."""
    form = HTMLForm(PAY, PAID)
    values = form.read({**sent_back(form), **changed})
    assert values is not None
    assert (form.edits(values), form.removed(values)) == (edits, removed)


@pytest.mark.parametrize(
    "changed",
    [{"v:note": "hi", "null:v:note": "1"}, {"v:other": "hi", "out:v:other": "1"}],
    ids=str,
)
def test_a_text_that_was_typed_and_a_box_that_says_there_is_none_are_refused(changed: Any) -> None:
    """Without JavaScript, the box stayed ticked, and the call ran without the text."""
    note = {"anyOf": [{"type": "string"}, NULL], "default": None}
    schema = {"type": "object", "properties": {"note": note, "other": {"type": "string"}}}
    form = HTMLForm(schema, {"note": None, "other": "x"})
    assert form.read({**sent_back(form), **changed}) is None
    assert [leaf.problem for top in form.fields for leaf in top.leaves() if leaf.problem] == [
        "There is a text, and a box that says there is none. Clear one of them."
    ]


class Pay(Module):
    """A program that asks about a call of a server's tool."""

    def flow(self, call: Any) -> Any:
        question = Question(
            "confirm",
            "",
            ToolCall(name="pay", args=call),
            fingerprint="f",
            schema=PAY,
            raw=call,
            server="shop",
            effect="once",
            description="Pays.",
        )
        [decision] = yield AskPerson((question,))
        return Prediction(kind=decision.kind)


def post(ann: Any, store: SQLiteStore, do: str, **changed: str) -> Any:
    question = question_of(store, "pay")
    sent = {"digest": question.digest, "do": do, **sent_back(_form(store, "pay")), **changed}
    return ann.post(f"/runs/pay/questions/{question.id}", sent)


def test_an_approval_of_further_calls_never_drops_what_was_typed(
    ann: Any, store: SQLiteStore
) -> None:
    """Typed 5, ran 5000, and a grant for more."""
    Pay().start(call=PAID, store=store, run_id="pay")
    answer = post(ann, store, "always", calls="3", **{"v:amount": "5"})
    assert (answer.status, "You changed the values" in answer.text) == (422, True)
    assert 'name="v:amount" type="text" value="5"' in answer.text
    assert post(ann, store, "always", calls="3").status == 303
    assert decision_on(store, "pay").grant.calls == 3


class Write(Module):
    """A program that asks about a call with a path."""

    def flow(self, path: str) -> Any:
        call = ToolCall(name="write", args={"path": path, "text": "a"})
        [decision] = yield AskPerson((Question("confirm", "", call, fingerprint="f"),))
        return Prediction(kind=decision.kind)


def test_further_calls_in_the_folder_of_the_path_are_approved(ann: Any, store: SQLiteStore) -> None:
    Write().start(path="src/a.py", store=store, run_id="write")
    page = ann.get("/runs/write").text
    assert '<option value="folder">path in src, and any other arguments</option>' in page
    question = question_of(store, "write")
    sent = {"digest": question.digest, "do": "always", "calls": "3", "which": "folder"}
    assert ann.post(f"/runs/write/questions/{question.id}", sent).status == 303
    grant = decision_on(store, "write").grant
    assert (grant.calls, grant.args) == (3, {"path": under("src")})


def test_a_path_in_doubt_has_no_folder(ann: Any, store: SQLiteStore) -> None:
    Write().start(path="src/../a.py", store=store, run_id="write")
    assert 'value="folder"' not in ann.get("/runs/write").text
    question = question_of(store, "write")
    sent = {"digest": question.digest, "do": "always", "calls": "3", "which": "folder"}
    assert ann.post(f"/runs/write/questions/{question.id}", sent).status == 422
    assert store.load("write").decisions == []


def test_a_removal_is_recorded_and_the_page_says_so(ann: Any, store: SQLiteStore) -> None:
    Pay().start(call=PAID, store=store, run_id="pay")
    assert post(ann, store, "approve", **{"v:amount": ""}).status == 303
    assert decision_on(store, "pay").removed == ("amount",)
    assert text_of(ann.get("/runs/pay").text).startswith(
        "Approved: pay , with amount left out instead of 5000 from the server shop urgent yes"
    )


def test_a_call_that_is_not_shown_whole_has_no_approval(ann: Any, store: SQLiteStore) -> None:
    Pay().start(call={**PAID, "note": "x" * 300_000}, store=store, run_id="pay")
    page = ann.get("/runs/pay").text
    assert "'note' has 300,000 characters" in page
    assert 'value="approve"' not in page
    assert 'value="always"' not in page
    question = question_of(store, "pay")
    for do in ("approve", "always"):
        sent = {"digest": question.digest, "do": do, "calls": "3"}
        assert ann.post(f"/runs/pay/questions/{question.id}", sent).status == 422
    assert store.load("pay").decisions == []
    sent = {"digest": question.digest, "do": "deny"}
    assert ann.post(f"/runs/pay/questions/{question.id}", sent).status == 303


def test_the_card_has_who_asks_for_what_and_what_the_call_does(
    ann: Any, store: SQLiteStore
) -> None:
    Pay().start(call=PAID, store=store, run_id="pay")
    for address in ("/runs/pay", "/inbox"):
        card = text_of(ann.get(address).text[ann.get(address).text.index("about pay") - 200 :])
        for part in (
            "The server says: Pays.",
            "Has an effect that cannot be undone, so the call is never repeated automatically.",
            "Asked by Pay,",
            "for call {",
        ):
            assert part in card


def test_items_of_a_list_are_read_by_the_schema_that_they_refer_to() -> None:
    schema = {
        "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/E"}}},
        "$defs": {"E": {"enum": ["red", "blue"], "type": "string"}},
    }
    assert HTMLForm({"type": "object", **schema}, {"a": ["red"]}).read({"v:a": "red\nblue"}) == {
        "a": ["red", "blue"],
    }


def test_null_differs_from_the_empty_text(ann: Any, store: SQLiteStore) -> None:
    assert decide(ann, store, "order-1042", "approve", v__reason="").status == 303
    assert decision_on(store, "order-1042").args == {"reason": ""}
    both = decide(ann, store, "order-1040", "approve", **{"v__address/zip": "1234"})
    assert (both.status, "a box that says there is none" in both.text) == (422, True)


def test_a_nested_argument_is_sent_whole(ann: Any, store: SQLiteStore) -> None:
    assert (
        decide(
            ann,
            store,
            "order-1040",
            "approve",
            **{"v__address/city": "Delft"},
            v__labels="fragile",
        ).status
        == 303
    )
    assert decision_on(store, "order-1040").args == {
        "address": {"street": "Oudegracht 12", "city": "Delft", "zip": None},
        "labels": ["fragile"],
    }


@pytest.mark.parametrize(
    ("run_id", "changed", "said"),
    [
        ("order-1042", {"v__euros": "900"}, "900 is over the maximum 500"),
        ("order-1042", {"v__euros": "much"}, "Expected a number."),
        ("order-1042", {"v__euros": ""}, "Expected a number."),
        ("order-1040", {"v__lines": "[{"}, "This is not JSON."),
        ("order-1040", {"v__lines": '[{"sku": "x", "count": 0}]'}, "0 is under the minimum 1"),
        ("order-1040", {"v__carrier": '"pigeon"'}, "pigeon"),
    ],
    ids=str,
)
def test_what_does_not_fit_comes_back_at_its_field_with_all_that_was_typed(
    ann: Any,
    store: SQLiteStore,
    run_id: str,
    changed: dict[str, str],
    said: str,
) -> None:
    [(_, typed)] = changed.items()
    answer = decide(ann, store, run_id, "approve", words="my words", **changed)
    assert answer.status == 422
    assert said in answer.text
    assert "my words" in answer.text
    assert typed in answer.text or "carrier" in str(changed)
    assert 'aria-invalid="true"' in answer.text
    assert store.load(run_id).decisions == []


def test_a_form_that_comes_back_says_whether_it_has_changes(ann: Any, store: SQLiteStore) -> None:
    """Its button said "Approve", and the approval of further calls was there to be refused."""
    changed = decide(ann, store, "order-1040", "approve", **{"v:lines": "one kettle"}).text
    assert 'data-changed="Approve with changes">Approve with changes</button>' in changed
    assert "Approve them all" not in changed
    unchanged = decide(ann, store, "order-1040", "always", calls="0").text
    assert 'data-changed="Approve with changes">Approve</button>' in unchanged
    assert "Approve them all" in unchanged


@pytest.mark.parametrize(("value", "is_hidden"), [(None, False), ("S3CR3T", True)])
def test_stars_stand_for_a_secret_that_is_there(value: str | None, is_hidden: bool) -> None:
    pin = {"anyOf": [{"type": "string", "format": "password"}, {"type": "null"}], "default": None}
    form = HTMLForm({"type": "object", "properties": {"pin": pin}}, {"pin": value})
    assert [field.hides_value for field in form.fields] == [is_hidden]


def test_deny_reply_and_always(ann: Any, store: SQLiteStore) -> None:
    assert decide(ann, store, "order-1042", "deny", words="Too much.\r\nAsk again.").status == 303
    assert (decision_on(store, "order-1042").kind, decision_on(store, "order-1042").text) == (
        "deny",
        "Too much.\nAsk again.",
    )
    assert decide(ann, store, "order-1031", "reply", words="A-1031").status == 303
    assert (decision_on(store, "order-1031").kind, decision_on(store, "order-1031").text) == (
        "reply",
        "A-1031",
    )
    for calls in ("", "0", "-1", "x", "9" * 30, "00000001" + "9" * 6, "00000001" + "9" * 5_000):
        assert decide(ann, store, "order-1040", "always", calls=calls, which="any").status == 422
    assert decide(ann, store, "order-1040", "always", calls="3", which="any").status == 303
    grant = decision_on(store, "order-1040").grant
    assert (grant.calls, grant.args, grant.tool) == (3, "any", "send_parcel")


@pytest.mark.parametrize("do", ["", "revoke", "edit", "APPROVE"])
def test_no_other_button_does_anything(ann: Any, store: SQLiteStore, do: str) -> None:
    assert decide(ann, store, "order-1042", do).status == 422
    assert store.load("order-1042").decisions == []


def test_an_answer_needs_words(ann: Any, store: SQLiteStore) -> None:
    answer = decide(ann, store, "order-1031", "reply", words="  ")
    assert (answer.status, "Write an answer first." in answer.text) == (422, True)


def test_the_same_decision_twice_is_one_and_another_persons_is_told_who_was_first(
    ann: Any,
    bob: Any,
    store: SQLiteStore,
) -> None:
    assert [
        decide(ann, store, "order-1042", "approve", v__euros="12").status for _ in range(2)
    ] == [303, 303]
    for answer in (
        decide(bob, store, "order-1042", "approve", v__euros="12"),
        decide(bob, store, "order-1042", "deny"),
    ):
        assert answer.status == 409
        assert "by ann" in answer.text
        assert "via web" in answer.text
        assert text_of(answer.text).startswith(
            "Approved: refund , with euros 12 instead of 29.9 order A-1042 euros",
        )
        assert re.search(
            r"Decided by ann via web at [0-9:]{8} Nothing more to do here\. The run continues when ",
            text_of(answer.text),
        )
    assert decision_on(store, "order-1042").by == "ann"


def test_the_same_form_once_more_is_no_fault_after_the_run_went_on(
    ann: Any,
    bob: Any,
    store: SQLiteStore,
) -> None:
    """A double click, or a page that is reloaded; another decision, or another person, is told who
    was first.
    """
    question = question_of(store, "order-1042")
    path = f"/runs/order-1042/questions/{question.id}"
    form = {**fields_of(store, "order-1042"), "do": "approve", "v:euros": "12"}
    assert ann.post(path, form).status == 303
    with context(lm=ScriptedLM([finish("Paid.")])):
        assert Run.load(store, "order-1042", support()).resume().status == "done"
    assert ann.post(path, form).status == 303
    assert ann.post(path, {**form, "v:euros": "13"}).status == 409
    assert bob.post(path, form).status == 409


def test_a_question_that_is_gone_says_who_decided(ann: Any, store: SQLiteStore) -> None:
    """After the run went on."""
    question = question_of(store, "order-1042")
    store.decide("order-1042", question.deny("no").signed("carl", "cli"))
    with context(lm=ScriptedLM([finish("Not paid.")])):
        Run.load(store, "order-1042", support()).resume()
    answer = ann.post(
        f"/runs/order-1042/questions/{question.id}",
        {"do": "approve", "digest": question.digest},
    )
    assert (answer.status, "Denied by carl via cli at " in answer.text) == (409, True)
    assert ann.post("/runs/order-1042/questions/unknown", {"do": "approve"}).status == 409
    assert ann.post("/runs/nowhere/questions/unknown", {"do": "approve"}).status == 404


def test_a_decision_on_something_else_than_is_asked_now_is_refused(
    ann: Any,
    store: SQLiteStore,
) -> None:
    """The digest."""
    question = question_of(store, "order-1042")
    for digest in ("", "0" * 20):
        answer = ann.post(
            f"/runs/order-1042/questions/{question.id}",
            {"do": "approve", "digest": digest},
        )
        assert answer.status == 409
    assert store.load("order-1042").decisions == []


def test_a_decision_on_an_earlier_question_gets_the_question_that_the_run_asks_now(
    ann: Any, store: SQLiteStore
) -> None:
    question = question_of(store, "order-1042")
    store.decide("order-1042", question.deny("no"))
    with context(lm=ScriptedLM([REFUND])):
        assert Run.load(store, "order-1042", support()).resume().status == "waiting"
    answer = ann.post(
        f"/runs/order-1042/questions/{question.id}", {"do": "approve", "digest": question.digest}
    )
    now = question_of(store, "order-1042")
    assert answer.status == 409
    assert f"/runs/order-1042#q-{now.id}" in answer.text
    assert store.load("order-1042").decisions == []


def test_a_cancelled_run_is_cancelled_once(ann: Any, store: SQLiteStore) -> None:
    assert ann.post("/runs/order-1042/cancel").status == 303
    assert store.summary("order-1042").status == "cancelled"
    assert ann.post("/runs/order-1009/cancel").status == 409


def test_when_two_people_press_at_once_one_decision_counts_and_the_other_is_told(
    tmp_path: Any,
) -> None:
    """25 times over 8 connections, approvals against denials."""
    store = SQLiteStore(tmp_path / "race.db", full_sync=False)
    for number in range(25):
        start(store, f"r{number}", "x", REFUND)
    app = ui_app(store, people=["ann", "bob"])
    with served(app) as address, ThreadPoolExecutor(8) as pool:
        people = {name: Client(address, app.links[name]) for name in ("ann", "bob")}
        for person in people.values():
            person.post("/nothing")
        for number in range(25):
            run_id = f"r{number}"
            question, gate = question_of(store, run_id), threading.Barrier(8)

            def press(
                name: str,
                do: str,
                question: Any = question,
                run_id: str = run_id,
                gate: Any = gate,
            ) -> tuple[str, int, str]:
                gate.wait()
                form = {"do": do, "digest": question.digest, "words": name}
                answer = people[name].post(f"/runs/{run_id}/questions/{question.id}", form)
                return name, answer.status, answer.text

            pressed = [
                pool.submit(press, *each) for each in [("ann", "approve"), ("bob", "deny")] * 4
            ]
            results = [each.result() for each in pressed]
            [made] = decided(store, run_id).values()
            assert {
                name: {status for who, status, _ in results if who == name} for name in people
            } == {name: {303} if name == made.by else {409} for name in people}
            assert all(f"by {made.by}" in text for _, status, text in results if status == 409)
    store.close()


class Review(Module):
    """A program that asks a person itself, about no tool."""

    def flow(self, draft: str) -> Any:
        [decision] = yield AskPerson(
            (
                Question(
                    "confirm",
                    "Send this letter to all customers?",
                    ToolCall(name="send", args={"draft": draft}),
                ),
            ),
        )
        return Prediction(kind=decision.kind, draft=decision.args.get("draft", draft))


def test_a_question_of_a_program_itself_is_shown_in_its_own_words_and_decided(
    ann: Any,
    store: SQLiteStore,
) -> None:
    """The page named the call only, as for a tool's."""
    Review().start(draft="Dear Ada", store=store, run_id="letter")
    assert text_of(ann.get("/runs/letter").text).startswith(
        "Approve send ? Send this letter to all customers?",
    )
    assert "Confirm execution" not in text_of(ann.get("/runs/order-1042").text)
    assert decide(ann, store, "letter", "approve").status == 303
    assert Run.load(store, "letter", Review()).resume().prediction.toDict() == {
        "kind": "approve",
        "draft": "Dear Ada",
    }


def test_a_question_about_a_call_that_was_read_from_text_says_so(tmp_path: Any) -> None:
    def pay(euros: int) -> str:
        """Pay."""
        return f"paid {euros}"

    store = SQLiteStore(tmp_path / "rescued.db")
    agent = ReAct("task -> answer", [Tool(pay, require_confirmation=True)])
    as_text = '<tool_call>{"name": "pay", "arguments": {"euros": 5}}</tool_call>'
    for run_id, call in (("text", as_text), ("native", {"name": "pay", "args": {"euros": 5}})):
        with context(lm=ScriptedLM([call])):
            agent.start(task="Pay.", store=store, run_id=run_id)
    app = ui_app(store, people=["ann"])
    with served(app) as address:
        client = Client(address, app.links["ann"])
        pages = {run_id: client.get(f"/runs/{run_id}").text for run_id in ("text", "native")}
    store.close()
    assert "as text, not as a structured call" in pages["text"]
    assert "structured call" not in pages["native"]


# -- messages to the agent


def messages_to(store: SQLiteStore, run_id: str) -> list[tuple[str, str, str]]:
    """What was said to a run and not read: text, author, time."""
    decisions = [json.loads(text) for text in store.load(run_id).decisions]
    return [(each["text"], each["by"], each["kind"]) for each in decisions if each["via"] == "page"]


def test_a_person_says_something_to_the_agent_of_a_run(ann: Client, store: SQLiteStore) -> None:
    page = ann.get("/runs/order-1042").text
    assert 'action="/runs/order-1042/say"' in page
    [key] = re.findall(r'name="key" value="([^"]+)"', page)
    answer = ann.post("/runs/order-1042/say", {"key": key, "text": "Pay <b>all</b>."})
    assert (answer.status, answer.headers["location"]) == (303, "/runs/order-1042")
    ann.post("/runs/order-1042/say", {"key": key, "text": "Pay <b>all</b>."})  # sent twice
    ann.post("/runs/order-1042/say", {"key": key, "text": "Then close it.", "after": "1"})
    assert messages_to(store, "order-1042") == [
        ("Pay <b>all</b>.", "ann", "say"),
        ("Then close it.", "ann", "say_after"),
    ]
    page = ann.get("/runs/order-1042").body.decode()
    assert "Not read yet" in page
    assert "Pay &lt;b&gt;all" in page


def test_what_was_said_is_in_the_story_when_the_agent_has_read_it(
    ann: Client, store: SQLiteStore
) -> None:
    ann.post("/runs/order-1042/say", {"key": "k", "text": "Be kind."})
    decide(ann, store, "order-1042", "approve")
    with context(lm=ScriptedLM([finish("I paid it back.")])):
        Run.load(store, "order-1042", support()).resume()
    page = ann.get("/runs/order-1042").text
    assert "Not read yet" not in page
    assert "Said by ann via page" in re.sub(r"<[^>]+>", "", page)
    assert "Be kind." in page
    assert 'action="/runs/order-1042/say"' not in page


def test_a_page_that_follows_a_run_shows_what_others_say(
    ann: Client, bob: Client, store: SQLiteStore
) -> None:
    stream = Stream(ann, "/runs/order-1042/live")
    stream.event()
    bob.post("/runs/order-1042/say", {"key": "k", "text": "Be kind."})
    while "Be kind." not in stream.event():  # the facts of the run may come first
        pass
    stream.close()


@pytest.mark.parametrize(
    ("run_id", "form", "reason"),
    [
        ("order-1009", {"text": "More."}, "is done"),
        ("order-1003", {"text": "More."}, "is cancelled"),
        ("order-1042", {"text": "  "}, "says something"),
        ("order-1042", {}, "says something"),
    ],
)
def test_a_message_that_no_request_can_have_is_refused_on_the_page(
    ann: Client, store: SQLiteStore, run_id: str, form: dict[str, str], reason: str
) -> None:
    answer = ann.post(f"/runs/{run_id}/say", {"key": "k", **form})
    assert answer.status == 409
    assert reason in answer.text
    assert messages_to(store, run_id) == []


def test_a_message_to_no_run_is_refused(ann: Client) -> None:
    assert ann.post("/runs/nobody/say", {"text": "Hello."}).status == 404


def test_a_page_that_is_read_only_takes_no_message(store: SQLiteStore) -> None:
    app = ui_app(store, people=["ann"], read_only=True)
    with served(app) as address:
        ann = Client(address, app.links["ann"])
        assert "/say" not in ann.get("/runs/order-1042").text
        assert ann.post("/runs/order-1042/say", {"text": "Hello."}).status == 403
    assert messages_to(store, "order-1042") == []


# -- calls at work


@pytest.fixture
def hanging(store: SQLiteStore) -> Iterator[threading.Thread]:
    """A run `at-work` whose only call hangs until it is cancelled."""
    reached, freed = threading.Event(), threading.Event()

    def hang() -> str:
        reached.set()
        freed.wait(60)
        return "late"

    steps = [native_step("", "hang", {}), finish("Without it.")]
    agent = ReAct("task -> answer", [Tool(hang, "hang", "Hangs.")], native=True)

    def work() -> None:
        with context(lm=ScriptedLM(steps), grace_s=0):
            agent.start(task="t", store=store, run_id="at-work")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert reached.wait(60)
    yield thread
    freed.set()
    thread.join(60)


def test_a_person_cancels_a_call_at_work(
    ann: Client, store: SQLiteStore, hanging: threading.Thread
) -> None:
    """The button is beside the call; the model reads what was typed; then there is no button."""
    page = ann.get("/runs/at-work").text
    assert 'action="/runs/at-work/cancel-call"' in page
    [call] = re.findall(r'name="call" value="([^"]+)"', page)
    answer = ann.post("/runs/at-work/cancel-call", {"call": call, "result": "<b>Skip</b> it."})
    assert (answer.status, answer.headers["location"]) == (303, "/runs/at-work")
    hanging.join(60)
    assert store.summary("at-work").status == "done"
    page = ann.get("/runs/at-work").text
    assert "&lt;b&gt;Skip" in ann.get("/runs/at-work").body.decode()
    assert "Cancelled by ann via page" in re.sub(r"<[^>]+>", "", page)
    assert "cancel-call" not in page


@pytest.mark.parametrize(
    ("run_id", "form", "status"),
    [
        ("order-1009", {"call": "1.0"}, 409),
        ("order-1042", {"call": "nope"}, 409),
        ("order-1042", {}, 409),
        ("nobody", {"call": "1.0"}, 404),
    ],
)
def test_a_call_that_is_not_at_work_is_not_cancelled_on_the_page(
    ann: Client, run_id: str, form: dict[str, str], status: int
) -> None:
    assert ann.post(f"/runs/{run_id}/cancel-call", form).status == status


def test_a_page_that_is_read_only_cancels_no_call(
    store: SQLiteStore, hanging: threading.Thread
) -> None:
    app = ui_app(store, people=["ann"], read_only=True)
    with served(app) as address:
        ann = Client(address, app.links["ann"])
        assert "cancel-call" not in ann.get("/runs/at-work").text
        assert ann.post("/runs/at-work/cancel-call", {"call": "1.0"}).status == 403
    assert hanging.is_alive()
