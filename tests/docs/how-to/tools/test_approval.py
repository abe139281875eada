"""The claims of docs/how-to/tools/approval.md."""

from __future__ import annotations

import pytest

from ferrule import (
    MemoryStore,
    Module,
    Policy,
    Prediction,
    Question,
    Run,
    ToolCall,
    allow,
    context,
    gather,
)
from ferrule.acts import AskPerson
from ferrule.errors import DecisionError


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test. A4-A8, U80, U116."""
    execute("docs/how-to/tools/approval.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/tools/approval.md") == []


class Sure(Module):
    def flow(self, what):
        [decision] = yield AskPerson(
            (
                Question(
                    "confirm",
                    f"Sure about {what}?",
                    ToolCall(name="sure", args={"what": what}),
                    expires_s=60,
                ),
            ),
        )
        return Prediction(kind=decision.kind, args=dict(decision.args))


class Both(Module):
    def __init__(self) -> None:
        self.sure = Sure()

    async def aforward(self):
        one, other = await gather(self.sure.acall(what="one"), self.sure.acall(what="other"))
        return Prediction(one=one.kind, other=other.args)


def test_a_program_that_asks_itself_waits_in_a_store_with_the_questions_of_all_branches() -> None:
    store = MemoryStore()
    waiting = Both().start(store=store, run_id="r")
    assert [question.text for question in waiting.pending] == [
        "Sure about one?",
        "Sure about other?",
    ]
    for question, said in zip(
        Run.list(store)[0].questions,
        ("no", '{"what": "third"}'),
        strict=True,
    ):
        store.decide("r", question.decide(said))
    assert Run.load(store, "r", Both()).resume().prediction.toDict() == {
        "one": "deny",
        "other": {"what": "third"},
    }


def test_policies_do_not_apply_to_a_question_of_a_program_and_a_clarification_takes_no_edit() -> (
    None
):
    with context(policy=Policy([allow("*")])):
        assert Sure().start(what="this").status == "waiting"
    [question] = Sure().start(what="this").pending
    with pytest.raises(DecisionError):
        Question("clarify", "Why?", question.call).edit({"what": "that"})
