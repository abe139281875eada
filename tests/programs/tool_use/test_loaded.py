"""Tools that were loaded from the shelf and are put back when they are not called. (P66, P73)"""

from __future__ import annotations

from typing import Any

import pytest
from agent_script import fields, text_step

import ferrule
from ferrule.programs.predict import Predict
from ferrule.programs.react import ReAct
from ferrule.runs.run import Run
from ferrule.testing.scripted import ScriptedLM
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import Toolbox

FINISH = {"name": "finish", "args": {"answer": "done"}}


def box(**options: Any) -> Toolbox:
    def about(name: str) -> Tool:
        return Tool(lambda: f"{name} is up", f"{name}_status", f"Say whether {name} is up.")

    return Toolbox(
        [about(each) for each in ("mail", "search", "payments", "queue")],
        search="bm25",
        keep=["mail_status"],
        **options,
    )


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


CALLS = [
    call("search_tools", query="payments", limit=1),
    call("search_tools", query="queue", limit=1),
    call("queue_status"),
    call("queue_status"),
    call("mail_status"),
    call("mail_status"),
    call("mail_status"),
]


def names(request: Any) -> list[str]:
    return [each["function"]["name"] for each in request.tools]


FIXED = ["mail_status", "search_tools", "finish"]


def test_what_was_not_called_for_so_many_turns_is_put_back_and_the_declarations_before_it_stay() -> (
    None
):
    lm = ScriptedLM([*CALLS, FINISH])
    ReAct("task -> answer", box(keep_turns=3))(task="x", lm=lm)
    assert [names(each)[3:] for each in lm.requests] == [
        [],
        ["payments_status"],
        ["payments_status", "queue_status"],
        ["payments_status", "queue_status"],
        ["queue_status"],
        ["queue_status"],
        ["queue_status"],
        [],
    ]
    assert all(names(each)[:3] == FIXED for each in lm.requests)
    for one, other in zip(lm.requests, lm.requests[1:], strict=False):
        assert list(other.messages)[: len(one.messages)] == list(one.messages)


def test_in_text_the_model_reads_that_a_tool_was_put_back_and_the_prompt_stays() -> None:
    steps = [
        *(text_step("", each["name"], each["args"]) for each in CALLS),
        text_step("", "finish"),
        fields(reasoning="", answer="done"),
    ]
    lm = ScriptedLM(steps)
    ReAct("task -> answer", box(keep_turns=3), native=False)(task="x", lm=lm)
    assert (
        "Put back, as not called for 3 turns: `payments_status`. Load them again"
        in lm.requests[4].messages[-1].text
    )
    assert lm.requests[5].messages[0] == lm.requests[0].messages[0]


def test_a_tool_that_was_put_back_is_loaded_again_and_counts_anew() -> None:
    calls = [CALLS[0], call("mail_status"), CALLS[0], call("payments_status"), FINISH]
    lm = ScriptedLM(calls)
    prediction = ReAct("task -> answer", box(keep_turns=1))(task="x", lm=lm)
    assert [names(each)[3:] for each in lm.requests] == [
        [],
        ["payments_status"],
        [],
        ["payments_status"],
        ["payments_status"],
    ]
    assert prediction.trajectory["observation_3"] == "payments is up"


def test_without_it_loaded_tools_stay() -> None:
    lm = ScriptedLM([*CALLS, FINISH])
    ReAct("task -> answer", box())(task="x", lm=lm)
    assert names(lm.requests[-1])[3:] == ["payments_status", "queue_status"]


def test_predict_puts_them_back_too() -> None:
    lm = ScriptedLM([*CALLS, "[[ ## answer ## ]]\nsix\n\n[[ ## completed ## ]]"])
    Predict("task -> answer", tools=box(keep_turns=3))(task="x", lm=lm)
    assert "payments_status" in names(lm.requests[3])
    assert "payments_status" not in names(lm.requests[4])


def test_a_stored_run_puts_back_the_same_tools_when_it_is_resumed() -> None:
    lm, store = ScriptedLM([*CALLS, FINISH]), ferrule.MemoryStore()
    agent = ReAct("task -> answer", box(keep_turns=3))
    with ferrule.context(lm=lm):
        run = agent.start(task="x", store=store, run_id="r")
        assert Run.load(store, "r", agent).prediction == run.prediction
    assert len(lm.requests) == 8


def test_a_toolbox_of_a_toolbox_keeps_the_number() -> None:
    assert Toolbox(box(keep_turns=3)).keep_turns == 3
    named = [Tool(str.upper, "up")]
    assert (
        Toolbox(named, keep_turns=3) == Toolbox(named, keep_turns=3) != Toolbox(named, keep_turns=2)
    )
    for wrong in (0, True, "3"):
        with pytest.raises(ferrule.errors.ToolDefinitionError, match="keep_turns"):
            box(keep_turns=wrong)
