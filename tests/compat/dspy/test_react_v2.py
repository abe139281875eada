"""DSPy's second agent, and the version of DSPy that the facade follows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import asdict

import ferrule
from ferrule import settings
from ferrule.compat import dspy
from ferrule.errors import ConfigurationError, ContextOverflowError
from ferrule.testing import ScriptedLM


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = settings.current()
    yield
    ferrule.configure(**asdict(before))


def lookup(query: str, most: int = 3) -> str:
    """Look something up."""
    return f"found {query}"


def broken(query: str) -> str:
    """Fail."""
    raise KeyError("no such row")


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


def ask(*answers: Any, **inputs: Any) -> tuple[Any, ScriptedLM]:
    lm = ScriptedLM(list(answers))
    agent = dspy.ReActV2("question -> answer: int", [lookup, broken])
    with dspy.context(lm=lm):
        return agent(**{"question": "How many?", **inputs}), lm


def results_in(event: dict[str, Any]) -> list[tuple[Any, bool]]:
    results = event["tool_calls"].tool_call_results.tool_call_results
    return [(result.value, result.is_error) for result in results]


def test_an_agent_ends_with_submit_and_returns_its_history() -> None:
    prediction, lm = ask(
        [call("lookup", query="cats"), call("broken", query="x")], call("submit", answer="4")
    )
    assert (prediction.answer, prediction.termination_reason) == (4, "submit")
    assert "trajectory" not in prediction
    first, last = prediction.history.messages
    assert first["question"] == "How many?"
    assert "question" not in last
    (found, failed), (problem, is_error) = results_in(first)
    assert (found, failed, is_error) == ("found cats", False, True)
    assert "no such row" in problem
    assert (last["answer"], results_in(last)) == (4, [({"answer": 4}, False)])
    # The second request shows the question and the results as messages.
    roles = [message.role for message in lm.requests[1].messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user"]
    texts = [message.text or "" for message in lm.requests[1].messages]
    assert [("How many?" in text) for text in texts] == [False, True, *[False] * 4]


def test_a_history_is_continued_and_not_changed() -> None:
    before, _ = ask(call("lookup", query="cats"), call("submit", answer=4))
    stored = json.loads(json.dumps(before.history.model_dump(mode="json")))
    for history in (before.history, stored):
        prediction, lm = ask(call("submit", answer=5), question="And dogs?", history=history)
        assert prediction.answer == 5
        assert (len(before.history.messages), len(prediction.history.messages)) == (2, 3)
        text = "\n".join(message.text or "" for message in lm.requests[0].messages)
        assert text.index("How many?") < text.index("found cats") < text.index("And dogs?")


def test_ids_of_calls_in_text_are_different_in_each_turn() -> None:
    def step(name: str, **args: Any) -> dict[str, Any]:
        return {"next_thought": "t", "tool_calls": {"name": name, "args": args}}

    lm = dspy.DummyLM(
        [step("lookup", query="a"), step("lookup", query="b"), step("submit", answer=1)]
    )
    with dspy.context(lm=lm):
        prediction = dspy.ReActV2("question -> answer: int", [lookup])(question="q")
    ids = [event["tool_calls"].tool_calls[0].id for event in prediction.history.messages]
    assert ids == ["call_0_0", "call_1_0", "call_2_0"]
    assert prediction.history.messages[0]["next_thought"] == "t"


def test_an_unknown_tool_and_wrong_outputs_are_results_that_the_model_reads() -> None:
    prediction, _ = ask(
        call("lokup", query="x"), call("submit", answer="many"), call("submit", answer=3)
    )
    [(unknown, _)], [(wrong, is_error)], _ = map(results_in, prediction.history.messages)
    assert unknown == "Unknown tool: lokup"
    assert is_error
    assert "answer" in wrong
    assert prediction.answer == 3


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([call("lookup", query="a")] * 2, "forced_submit"),
        (["[[ ## next_thought ## ]]\nNothing to do\n\n[[ ## completed ## ]]"], "forced_submit"),
        ([ContextOverflowError("too long")], "forced_submit"),
    ],
    ids=["max_iters", "empty_tool_calls", "context_window_exceeded"],
)
def test_an_agent_that_does_not_end_is_asked_for_submit(answers: list[Any], reason: str) -> None:
    prediction, lm = ask(*answers, call("submit", answer=9), max_iters=2)
    assert (prediction.answer, prediction.termination_reason) == (9, reason)
    assert lm.requests[-1].tool_choice == {"type": "function", "function": {"name": "submit"}}


def test_an_agent_that_never_submits_says_what_stopped_it() -> None:
    prediction, _ = ask(*[call("lookup", query="a")] * 3, max_iters=2)
    assert prediction.termination_reason == "max_iters"
    assert "answer" not in prediction
    assert len(prediction.history.messages) == 2


def test_policies_hold_and_a_call_may_wait_for_a_person() -> None:
    done: list[str] = []

    @ferrule.tool(require_confirmation=True)
    def delete(path: str) -> str:
        """Delete a file."""
        done.append(path)
        return "deleted"

    lm = ScriptedLM([call("delete", path="a"), call("submit", answer="ok")])
    agent = dspy.ReActV2("task -> answer", [delete])
    with dspy.context(lm=lm):
        run = agent.start(task="t")
        assert (run.status, done) == ("waiting", [])
        run.answer(run.pending[0].approve())
        run.resume()
    assert (run.prediction.answer, done, len(lm.requests)) == ("ok", ["a"], 2)


def test_an_agent_works_on_an_event_loop() -> None:
    lm = ScriptedLM([call("lookup", query="a"), call("submit", answer=1)])
    with dspy.context(lm=lm):
        agent = dspy.ReActV2("question -> answer: int", [lookup])
        assert asyncio.run(agent.acall(question="q")).answer == 1


def test_the_tool_submit_is_reserved() -> None:
    def submit() -> None:
        """Submit."""

    with pytest.raises(ValueError, match="`submit` is reserved"):
        dspy.ReActV2("question -> answer", [submit])
    agent = dspy.ReActV2("question -> answer", [lookup])
    assert [*agent.tools] == ["lookup", "submit"]
    assert agent.tools["submit"](answer="Paris") == {"answer": "Paris"}


def test_the_version_chooses_the_agent() -> None:
    from ferrule.compat.dspy import modules

    assert dspy.ReAct is modules.ReAct
    with dspy.context(version="3.4"):
        assert dspy.ReAct is modules.ReAct
    with dspy.context(version="3.5"):
        assert dspy.ReAct is dspy.predict.ReAct is dspy.ReActV2
    with pytest.raises(ConfigurationError, match=r"3\.3, 3\.4, 3\.5"):
        dspy.configure(version="4")


def test_the_version_chooses_which_arguments_are_required() -> None:
    for tool in (dspy.Tool(lookup), dspy.ReAct("a -> b", [lookup]).tools["lookup"]):
        for version, required in (
            ("3.3", ["query", "most"]),
            ("3.4", ["query"]),
            ("3.5", ["query"]),
        ):
            with dspy.context(version=version):
                declaration = tool.format_as_litellm_function_call()
            assert declaration["function"]["parameters"]["required"] == required


def test_a_tool_of_an_mcp_server_returns_text_or_its_structured_value() -> None:
    types = pytest.importorskip("mcp.types")

    class Session:
        async def call_tool(self, name: str, arguments: Any = None, **more: Any) -> Any:
            text = types.TextContent(type="text", text="plain")
            return types.CallToolResult(content=[text], structuredContent={"n": 1})

    listed = types.Tool(name="x", description="d", inputSchema={"type": "object", "properties": {}})
    for convert in (dspy.utils.mcp.convert_mcp_tool, dspy.Tool.from_mcp_tool):
        assert asyncio.run(convert(Session(), listed).acall()) == "plain"
        assert asyncio.run(convert(Session(), listed, result_mode="text").acall()) == "plain"
        structured = convert(Session(), listed, result_mode="structured")
        assert asyncio.run(structured.acall()) == {"n": 1}
        with pytest.raises(ValueError, match="Unsupported MCP result mode"):
            convert(Session(), listed, result_mode="both")
