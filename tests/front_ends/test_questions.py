"""Questions of every kind on a page, made by hand, and what a page may answer to each."""

from __future__ import annotations

from typing import Any

import pytest
from front_pages import AGUIClient, UIClient

from ferrule import AGUI, Decision, Question, ToolCall, VercelAI
from ferrule.errors import DecisionError
from ferrule.events import QuestionAsked, RunFinished, RunStarted

FORM = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
BODY = {"threadId": "t", "runId": "r", "messages": []}


class Waiting:
    id = "run"

    def __init__(self, kind: Any, expires_at: float = 0.0) -> None:
        form = FORM if kind == "input" else None
        self.pending = [
            Question(
                kind,
                "What now?",
                ToolCall(name="book", args={"x": 1}, id="c1"),
                "q1",
                form=form,
                path="1.0/scout/",
                expires_at=expires_at,
            ),
        ]

    @property
    def events(self) -> list[Any]:
        told = [
            RunStarted(None, {}),
            QuestionAsked(self.pending[0], path="1.0/scout", depth=1),
            RunFinished(status="waiting"),
        ]
        for event in told:
            event.run_id = event.root_id = self.id
        return told


@pytest.mark.parametrize("kind", ["confirm", "unknown", "migration", "clarify", "input", "result"])
def test_each_kind_is_an_interrupt_with_the_form_of_its_answer(kind: str) -> None:
    client = AGUIClient()
    client.receive("".join(AGUI(BODY)(Waiting(kind).events)))
    [interrupt] = client.interrupts
    assert (interrupt["id"], interrupt["toolCallId"]) == ("run:q1", "run/1.0/scout/c1")
    assert interrupt["subagentRunId"] == "run/1.0/scout"
    assert interrupt["expiresAt"] == "1970-01-01T00:00:00+00:00"
    fields = set(interrupt["responseSchema"]["properties"])
    approval = {"approved", "reason"} | (
        {"editedArgs"} if kind not in {"unknown", "result"} else set()
    )
    assert fields == {"clarify": {"answer"}, "input": {"city"}}.get(kind, approval)


@pytest.mark.parametrize("expires_at", [1e12, 1e300])
def test_a_question_that_expires_after_the_last_date_has_that_date(expires_at: float) -> None:
    client = AGUIClient()
    client.receive("".join(AGUI(BODY)(Waiting("confirm", expires_at).events)))
    assert client.interrupts[0]["expiresAt"] == "9999-12-31T23:59:59+00:00"


@pytest.mark.parametrize("kind", ["confirm", "unknown", "migration", "clarify", "input", "result"])
def test_each_kind_is_an_approval_or_a_data_part(kind: str) -> None:
    client = UIClient()
    client.receive("".join(VercelAI()(Waiting(kind).events)))
    parts = [part for part in client.parts if part["type"] == "data-question"]
    assert len(client.calls("approval-requested")) == (kind not in {"clarify", "input", "result"})
    assert [part["id"] for part in parts] == (
        ["run:q1"] if kind in {"clarify", "input", "result"} else []
    )


def decided(kind: str, answer: Any) -> Decision:
    if isinstance(answer, tuple):
        part = {
            "type": "tool-book",
            "toolCallId": "run/1.0/scout/c1",
            "state": "output-available",
            "output": answer[0],
        }
        body: Any = {"id": "c", "messages": [{"id": "run", "role": "assistant", "parts": [part]}]}
        front: Any = VercelAI(body)
    else:
        front = AGUI(
            {
                **BODY,
                "resume": [{"interruptId": "run:q1", "status": "resolved", "payload": answer}],
            },
        )
    assert front.run_id == "run"
    [found] = front.decisions(Waiting(kind))
    return found


@pytest.mark.parametrize("answer", [{"city": "Rome"}, "Rome", ({"city": "Rome"},), ("Rome",)])
def test_a_form_is_filled_by_its_fields_or_the_only_value(answer: Any) -> None:
    found = decided("input", answer)
    assert (found.kind, found.text) == ("reply", '{"city":"Rome"}')


@pytest.mark.parametrize("answer", [{"approved": True}, ({"city": "Rome"},)])
def test_a_result_from_outside_does_not_come_from_the_page(answer: Any) -> None:
    with pytest.raises(DecisionError, match="from outside"):
        decided("result", answer)


@pytest.mark.parametrize("answer", [{"answer": "Rome"}, "Rome", ("Rome",)])
def test_a_question_of_the_model_is_answered_by_a_text(answer: Any) -> None:
    found = decided("clarify", answer)
    assert (found.kind, found.text, found.via) == (
        "reply",
        "Rome",
        "vercel" if isinstance(answer, tuple) else "ag-ui",
    )


def test_an_answer_of_another_form_is_refused() -> None:
    for kind, answer in (
        ("input", 5),
        ("input", (5,)),
        ("migration", True),
        ("unknown", {"approved": True, "editedArgs": {"x": 2}}),
    ):
        with pytest.raises(DecisionError):
            decided(kind, answer)
