"""Vercel's AI SDK: a run's events as chunks of its message stream, approval, and what `useChat`
sends.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from front_pages import UIClient, drafted, messages_of

from ferrule import (
    EventStream,
    InputError,
    MemoryStore,
    Predict,
    ReAct,
    Run,
    VercelAI,
    context,
    progress,
    tool,
)
from ferrule.errors import DecisionError
from ferrule.testing import ScriptedLM

USER = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Book it."}]}
BODY = {"id": "c1", "trigger": "submit-message", "messages": [USER]}


@tool(require_confirmation=True)
def book(hotel: str, nights: int = 1) -> str:
    """Book a hotel."""
    return f"booked {hotel} for {nights}"


@tool
def fail(text: str) -> str:
    """Fail."""
    progress("failing")
    raise ValueError(text)


agent = ReAct(
    "question -> answer, stars: list[int]",
    [book, fail],
    native=True,
    enable_user_clarification=True,
)
BOOK = {"name": "book", "args": {"hotel": "Ritz"}}


def finish(answer: str = "Done.", stars: Any = (5,)) -> dict[str, Any]:
    return {
        "name": "finish",
        "args": {"answer": answer, "stars": list(stars) if isinstance(stars, tuple) else stars},
    }


def ask(
    client: UIClient,
    store: MemoryStore | None = None,
    program: Any = agent,
    **more: Any,
) -> Run[Any]:
    stream = program.stream(question="q", **more, **({"store": store} if store else {}))
    client.receive("".join(VercelAI(BODY)(stream)))
    return stream.run


def go_on(client: UIClient, store: MemoryStore, program: Any = agent) -> Run[Any]:
    front = VercelAI(client.body(USER))
    run = Run.load(store, front.run_id, program)
    for decision in front.decisions(run):
        run.answer(decision)
    client.receive("".join(front(EventStream(run))))
    return run


def test_a_run_is_one_message_with_a_step_for_each_answer_of_the_model() -> None:
    client = UIClient()
    run = ask(
        client,
        lm=ScriptedLM(
            [
                {"text": "Hm.", "tool_calls": [{"name": "fail", "args": {"text": "no"}}]},
                finish("Bien sûr 🎉"),
            ],
        ),
    )
    assert client.id == run.id
    kinds = [part["type"] for part in client.parts]
    assert kinds == [
        "step-start",
        "text",
        "tool-fail",
        "step-start",
        "text",
        "text",
        "data-outputs",
    ]
    assert client.said == ["Hm.", "Bien sûr 🎉", "[5]"]
    assert client.parts[1]["providerMetadata"] == {"ferrule": {"preamble": True}}
    assert "ValueError: no" in client.calls("output-error")[0]["errorText"]
    assert client.parts[-1]["data"] == {"answer": "Bien sûr 🎉", "stars": [5]}
    assert client.chunks[-1]["finishReason"] == "stop"
    [told] = [chunk for chunk in client.chunks if chunk["type"] == "data-progress"]
    assert (told["data"]["toolCallId"], told["transient"]) == (client.parts[2]["toolCallId"], True)
    steps = [chunk["type"] for chunk in client.chunks if chunk["type"].endswith("-step")]
    assert steps == ["start-step", "finish-step"] * 2


def test_the_response_is_a_stream_of_the_sdk() -> None:
    front = VercelAI(BODY)
    assert (front.thread_id, front.text, front.run_id) == ("c1", "Book it.", "")
    assert front.media_type == "text/event-stream"
    assert front.headers["x-vercel-ai-ui-message-stream"] == "v1"


def test_the_texts_of_an_answer_that_could_not_be_used_are_void() -> None:
    client = UIClient()
    ask(client, lm=ScriptedLM([finish("Take", "bad"), finish("Take two.", (2,))]))
    assert client.said == ["Take two.", "[2]"]


def test_a_failed_run_and_a_cancelled_one() -> None:
    client = UIClient()
    ask(client, program=Predict("question -> answer"), lm=ScriptedLM([""] * 9))
    assert client.chunks[-1] == {"type": "error", "errorText": "The run failed: AdapterParseError."}

    @tool
    def stop() -> str:
        """Stop."""
        stream.run.cancel()
        return "stopped"

    stream = ReAct("question -> answer", [stop], native=True).stream(
        question="q",
        lm=ScriptedLM([{"name": "stop", "args": {}}]),
    )
    client.receive("".join(VercelAI(BODY)(stream)))
    assert client.chunks[-1] == {"type": "abort"}


@pytest.mark.parametrize("at_once", [False, True])
def test_what_several_programs_inside_write_is_a_part_each(at_once: bool) -> None:
    client = UIClient()
    client.receive("".join(VercelAI(BODY)(drafted(at_once=at_once, best=2))))
    first = ["Draft 0 is long."] if at_once else ["Draft 0 is long.", "Draft 1 is long."]
    assert client.said == [*first, "Draft 2 is long."]


def test_approval_goes_on_in_the_same_message() -> None:
    client, store = UIClient(), MemoryStore()
    with context(lm=ScriptedLM([BOOK, finish()])):
        run = ask(client, store)
        [call] = client.calls("approval-requested")
        assert call["input"] == {"hotel": "Ritz", "nights": 1}
        assert client.chunks[-1]["finishReason"] == "tool-calls"
        client.decide(approved=True)
        go_on(client, store)
    assert client.calls("output-available")[0]["output"] == "booked Ritz for 1"
    assert client.said == ["Done.", "[5]"]
    assert Run.load(store, run.id, agent).decisions[0].via == "vercel"


def test_a_denied_call_is_denied_and_the_model_gets_the_reason() -> None:
    client, store = UIClient(), MemoryStore()
    with context(lm=ScriptedLM([{"tool_calls": [BOOK, BOOK]}, finish()])):
        ask(client, store)
        client.decide(approved=False, reason="Too dear.")
        run = go_on(client, store)
    assert len(client.calls("output-denied")) == 2
    assert "Too dear." in run.trajectory["observation_0"][0]


def test_a_question_of_the_model_is_answered_by_the_output_of_its_call() -> None:
    client, store = UIClient(), MemoryStore()
    with context(
        lm=ScriptedLM([{"name": "user_clarification", "args": {"question": "Which?"}}, finish()]),
    ):
        ask(client, store)
        [part] = [part for part in client.parts if part["type"] == "data-question"]
        assert part["data"]["text"] == "Which?"
        call = next(
            each for each in client.parts if each.get("toolCallId") == part["data"]["toolCallId"]
        )
        call.update(state="output-available", output="The Ritz.")  # as `addToolOutput` does
        run = go_on(client, store)
    assert "The Ritz." in run.trajectory["observation_0"]


def test_an_agent_inside_shows_its_calls_and_not_its_words() -> None:
    scout = ReAct("place -> report", [book], native=True)
    guide = ReAct("question -> answer", [scout.as_tool("scout"), book], native=True)
    steps = [
        {"tool_calls": [BOOK, {"name": "scout", "args": {"place": "Rome"}}]},
        {"text": "inner thought", "tool_calls": [{"name": "book", "args": {"hotel": "Roma"}}]},
        {"name": "finish", "args": {"report": "sunny"}},
        {"name": "finish", "args": {"answer": "Both."}},
    ]
    client, store = UIClient(), MemoryStore()
    with context(lm=ScriptedLM(steps)):
        ask(client, store, guide)
        client.decide(approved=True)  # the agent's own question, and that of the agent inside
        go_on(client, store, guide)
    assert sorted(call["output"] for call in client.calls("output-available")) == [
        "booked Ritz for 1",
        "booked Roma for 1",
        "sunny",
    ]
    assert client.said == ["Both."]
    assert not [part for part in client.parts if part["type"] == "reasoning"]
    assert [bool(part["toolMetadata"]) for part in client.parts if part["type"] == "tool-book"] == [
        False,
        True,
    ]
    history = VercelAI({**BODY, "messages": [USER, client.body()["messages"][0], USER]}).history
    roles = [message.role for message in history.as_messages(lambda _: [])]
    assert roles == ["user", "assistant", "tool", "tool", "assistant"]


def test_the_second_client_a_forged_id_and_a_question_that_is_gone_get_an_error() -> None:
    client, other, store = UIClient(), UIClient(), MemoryStore()
    with context(lm=ScriptedLM([BOOK, finish()])):
        run = ask(client, store)
        other.id, other.parts = client.id, [dict(part) for part in client.parts]
        client.decide(approved=True)
        other.decide(approved=False)
        go_on(client, store)
        with pytest.raises(DecisionError, match="is not waiting for"):
            go_on(other, store)
    other.parts[-1]["approval"]["id"] = f"{run.id}:0000"
    with pytest.raises(DecisionError, match="is not waiting for"):
        VercelAI(other.body(USER)).decisions(Run.load(store, run.id, agent))


def test_an_output_in_place_of_an_approval_is_refused() -> None:
    client, store = UIClient(), MemoryStore()
    with context(lm=ScriptedLM([BOOK])):
        run = ask(client, store)
        client.parts[-1].update(state="output-available", output="Booked, believe me.")
        with pytest.raises(DecisionError, match="waits for an approval"):
            go_on(client, store)
    assert Run.load(store, run.id, agent).status == "waiting"


def test_a_page_that_comes_back_gets_the_whole_message_again() -> None:
    async def both() -> tuple[str, str]:
        stream = agent.astream(
            question="q",
            lm=ScriptedLM([{"name": "fail", "args": {"text": "no"}}, finish()]),
        )
        first = VercelAI(BODY)(stream.follow())
        chunks = [chunk async for chunk in first]
        return "".join(chunks), "".join([chunk async for chunk in VercelAI()(stream.follow())])

    first, again = asyncio.run(both())
    assert messages_of(first) == messages_of(again)


def test_a_page_that_comes_back_to_a_stored_run_sees_its_calls_and_is_asked_again() -> None:
    client, store = UIClient(), MemoryStore()
    with context(lm=ScriptedLM([{"text": "Hm.", "tool_calls": [BOOK]}, finish()])):
        run = ask(client, store)
        fresh = UIClient()
        fresh.receive("".join(VercelAI()(Run.load(store, run.id, agent).events())))
        assert (
            fresh.calls("approval-requested")[0]["approval"]
            == client.calls("approval-requested")[0]["approval"]
        )
        fresh.decide(approved=True)
        go_on(fresh, store)
    assert fresh.said == ["Hm.", "Done.", "[5]"]


def test_events_may_be_iterated_either_way() -> None:
    events = list(agent.stream(question="q", lm=ScriptedLM([finish()])))

    async def collect() -> list[str]:
        return [chunk async for chunk in VercelAI(BODY)(events)]

    assert asyncio.run(collect()) == list(VercelAI(BODY)(events))


def test_messages_with_steps_and_files_are_a_history() -> None:
    done = {
        "toolCallId": "x/1",
        "state": "output-available",
        "input": {"hotel": "Ritz"},
        "output": {"ok": True},
    }
    parts = [
        {"type": "step-start"},
        {"type": "text", "text": "void", "providerMetadata": {"ferrule": {"void": True}}},
        {"type": "tool-book", **done},
        {
            "type": "dynamic-tool",
            "toolName": "other",
            "toolCallId": "x/2",
            "state": "input-available",
            "input": {},
        },
        {"type": "step-start"},
        {"type": "text", "text": "Booked."},
    ]
    picture = {
        "type": "file",
        "mediaType": "image/png",
        "url": "data:image/png;base64,iVBORw0KGgo=",
    }
    local = {"type": "file", "mediaType": "image/png", "url": "file:///etc/passwd"}
    messages = [
        USER,
        {"id": "a", "role": "assistant", "parts": parts},
        {**USER, "parts": [*USER["parts"], picture, local]},
    ]
    front = VercelAI({"id": "c", "messages": messages})
    found = front.history.as_messages(lambda _: [])
    assert [(message.role, message.text) for message in found] == [
        ("user", "Book it."),
        ("assistant", ""),
        ("tool", '{"ok":true}'),
        ("assistant", "Booked."),
    ]
    assert found[1].tool_calls[0].args == {"hotel": "Ritz"}
    assert [part["type"] for part in front.content] == ["text", "image_url"]


@pytest.mark.parametrize(
    "junk",
    [
        None.__class__,
        [],
        {},
        {"id": "c"},
        {"id": "c", "messages": [5]},
        {"id": "c", "messages": [{"role": "user"}]},
        {
            "id": "c",
            "messages": [
                {"role": "assistant", "parts": [{"type": "tool-x", "state": "approval-responded"}]},
            ],
        },
        {
            "id": "c",
            "messages": [
                {
                    "role": "assistant",
                    "parts": [
                        {
                            "state": "approval-responded",
                            "approval": {"id": "r:a", "approved": "yes"},
                        },
                    ],
                },
            ],
        },
        {
            "id": "c",
            "messages": [
                {
                    "role": "assistant",
                    "parts": [
                        {"state": "approval-responded", "approval": {"id": "a", "approved": True}},
                    ],
                },
            ],
        },
    ],
)
def test_a_request_of_junk_is_an_input_error(junk: Any) -> None:
    with pytest.raises(InputError):
        VercelAI(junk)


def test_odd_values_in_parts_break_nothing() -> None:
    odd = [
        5,
        {},
        {"type": "tool-", "toolCallId": 5},
        {"type": "text", "text": None},
        {"type": "tool-a", "toolCallId": "a", "state": "output-error", "input": "{"},
    ]
    front = VercelAI({"id": "c", "messages": [{"role": "assistant", "parts": odd}, USER]})
    assert front.text == "Book it."
