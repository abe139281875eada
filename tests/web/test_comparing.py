"""Two runs side by side."""

from __future__ import annotations

import html
import re
from types import SimpleNamespace
from typing import Any

import pytest
from page_server import Client, served
from page_store import answer, call, finish, look_up_order, photo, start

from ferrule import Evaluate, MemoryStore, Predict, ReAct, Signature, context
from ferrule.testing import ScriptedLM
from ferrule.web.ui import ui_app

LATE = "My order A-1 is late."


def desk(instructions: str = "Help.", *tools: Any) -> ReAct:
    signature = Signature("message -> answer", instructions)
    return ReAct(signature, [look_up_order, *tools])


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    asked = answer("", call("look_up_order", order="A-1"))
    start(store, "old", LATE, asked, finish("It comes today."), program=desk())
    other = answer("", call("look_up_order", order="A-2"))
    program = desk("Help politely.", photo)
    start(store, "new", LATE, other, finish("It comes on Friday."), program=program)
    start(store, "same", LATE, asked, finish("It comes today."), program=desk())
    return store


@pytest.fixture
def ann(store: MemoryStore) -> Any:
    app = ui_app(store, people=["ann"])
    with served(app) as address:
        yield Client(address, app.links["ann"])


def rows(page: str) -> dict[str, tuple[str, str]]:
    """The rows that differ, by name."""
    found = re.findall(
        r'<tr class="differs"><th scope="row">(.*?)</th>\s*<td[^>]*>(.*?)</td>\s*<td[^>]*>(.*?)</td>',
        page,
        re.DOTALL,
    )
    plain = [tuple(html.unescape(re.sub("<.*?>", "", cell)) for cell in row) for row in found]
    return {name: (first, second) for name, first, second in plain}


def test_what_differs_between_two_runs_is_marked(ann: Client) -> None:
    page = ann.get("/compare?run=new&run=old").text
    differing = rows(page)
    # The one that started earlier comes first, whatever the address says.
    assert differing["Instructions of react"][0].startswith("Help.")
    assert differing["look_up_order: order"] == ("A-1", "A-2")
    assert differing["answer: answer"] == ("It comes today.", "It comes on Friday.")
    assert "photo" in differing["Tools of react"][1]
    assert "message" not in differing
    assert "<ins>on Friday</ins>" in page


def test_two_runs_that_did_the_same_are_said_to_be_the_same(ann: Client) -> None:
    page = ann.get("/compare?run=old&run=same").text
    assert "the inputs and all steps are the same" in page
    assert "answer: answer" not in rows(page)


def test_a_step_that_only_one_run_has_stands_alone(store: MemoryStore, ann: Client) -> None:
    asked = answer("", call("look_up_order", order="A-1"))
    again = answer("", call("photo", order="A-1"))
    start(
        store, "longer", LATE, asked, again, finish("It comes today."), program=desk("Help.", photo)
    )
    page = ann.get("/compare?run=old&run=longer").text
    assert "only in B" in page
    assert "Step 2 and 3: the same" in page


def test_the_other_run_is_chosen_from_the_list_or_by_its_id(ann: Client) -> None:
    assert ann.get("/").text.count('form="compare" name="run"') == 3
    page = ann.get("/compare?run=old").text
    assert "/compare?run=old&run=new" in page
    assert ann.get("/compare?run=old&run=nowhere").status == 404
    assert ann.get("/compare?run=old&run=new&run=same").status == 400


def test_the_prompts_of_the_page_s_program_are_compared_as_they_were_sent(
    store: MemoryStore,
) -> None:
    with context(lm=ScriptedLM([])):
        app = ui_app(store, desk(), people=["ann"])
    with served(app) as address:
        page = Client(address, app.links["ann"]).get("/compare?run=old&run=same").text
    assert "System message" in page
    assert "look_up_order" in page


# -- two evaluations

CASES = [{"message": text, "good": text} for text in ("a", "b", "c", "d")]


def evaluated(store: MemoryStore, name: str, answers: dict[str, str]) -> None:
    def model(request: Any) -> dict[str, Any]:
        word = request.messages[-1].text.split("[[ ## message ## ]]")[-1].split()[0]
        return {"outputs": {"answer": answers.get(word, word)}}

    def exact(example: Any, prediction: Any) -> Any:
        is_right = example["good"] == prediction.answer
        return SimpleNamespace(score=is_right, feedback="" if is_right else "Not the same.")

    program = Predict("message -> answer", lm=ScriptedLM(by=model))
    Evaluate(CASES, exact, inputs=["message"], store=store, evaluation_id=name)(program)


def test_two_evaluations_say_which_items_changed() -> None:
    store = MemoryStore()
    evaluated(store, "v1", {"b": "x", "d": "y"})
    evaluated(store, "v2", {"a": "z", "d": "w"})
    app = ui_app(store, people=["ann"])
    with served(app) as address:
        ann = Client(address, app.links["ann"])
        listed = ann.get("/evaluations").text
        assert listed.count('name="of"') == 2
        assert "exact <b>0.5</b>" in listed
        page = ann.get("/evaluations?of=v2&of=v1").text
        assert ann.get("/evaluations?of=v1").status == 400
        assert ann.get("/evaluations?of=v1&of=v3").status == 404
        assert ann.get("/?evaluation=v1").text.count("data-item data-key") == 4
    assert "1 improved, 1 worsened, 2 the same; of the same, 1 with another answer." in page
    sections = re.findall(
        r'<section aria-label="(\w[^"]*)">.*?<th scope="row">(\w+)', page, re.DOTALL
    )
    assert sections == [("Worse", "a"), ("Better", "b"), ("The same score, another answer", "d")]
    assert "Not the same." in page
    assert page.count("/compare?run=v1.") == 3


def test_without_evaluations_the_page_says_how_to_make_one(ann: Client) -> None:
    assert "No evaluations yet" in ann.get("/evaluations").text
    assert 'href="/evaluations"' not in ann.get("/").text
