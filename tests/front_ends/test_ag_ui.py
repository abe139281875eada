"""AG-UI: a run's events as its events, approval as interrupts, and a client that comes back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from front_pages import AGUIClient, drafted, messages_of

from ferrule import (
    AGUI,
    AdapterParseError,
    EventStream,
    History,
    InputError,
    MemoryStore,
    Module,
    Predict,
    Prediction,
    ProviderCall,
    ReAct,
    Response,
    Run,
    Usage,
    WebSearch,
    context,
    emit_event,
    progress,
    tool,
)
from ferrule.errors import DecisionError
from ferrule.testing import ScriptedLM

USER = {"id": "u1", "role": "user", "content": "Book it."}


@tool(require_confirmation=True)
def book(hotel: str, nights: int = 1) -> str:
    """Book a hotel."""
    return f"booked {hotel} for {nights}"


@tool
def fail(text: str) -> str:
    """Fail."""
    raise ValueError(text)


agent = ReAct(
    "question -> answer, stars: list[int]",
    [book, fail],
    native=True,
    enable_user_clarification=True,
)


def body(*messages: dict[str, Any], run_id: str = "r1", **more: Any) -> dict[str, Any]:
    return {
        "threadId": "t1",
        "runId": run_id,
        "messages": list(messages or (USER,)),
        "tools": [],
        "context": [],
        "state": {},
        **more,
    }


def answers(client: AGUIClient, payload: Any, status: str = "resolved") -> list[dict[str, Any]]:
    return [
        {"interruptId": each["id"], "status": status, "payload": payload}
        for each in client.interrupts
    ]


def text_of(chunks: Any) -> str:
    return "".join(chunks)


def finish(answer: str = "Done.", stars: Any = (5,)) -> dict[str, Any]:
    return {
        "name": "finish",
        "args": {"answer": answer, "stars": list(stars) if isinstance(stars, tuple) else stars},
    }


def booked(client: AGUIClient, store: MemoryStore, **more: Any) -> Run[Any]:
    """A run that waits for the approval of a call."""
    stream = agent.stream(question="Book it.", store=store, **more)
    client.receive(text_of(AGUI(body())(stream)))
    return stream.run


def resumed(
    client: AGUIClient,
    store: MemoryStore,
    payload: Any,
    program: Any = agent,
    status: str = "resolved",
) -> Run[Any]:
    front = AGUI(body(*client.messages, run_id="r2", resume=answers(client, payload, status)))
    run = Run.load(store, front.run_id, program)
    for decision in front.decisions(run, by="ada"):
        run.answer(decision)
    client.receive(text_of(front(EventStream(run))))
    return run


# -- a run


def test_a_run_streams_thoughts_calls_results_and_each_output_as_its_own_message() -> None:
    client = AGUIClient(USER)
    steps = [
        {"text": "I fail first.", "tool_calls": [{"name": "fail", "args": {"text": "no"}}]},
        finish("Bien sûr 🎉", (5, 4)),
    ]
    events = client.receive(text_of(AGUI(body())(agent.stream(question="q", lm=ScriptedLM(steps)))))
    assert events[0] == {
        "type": "RUN_STARTED",
        "threadId": "t1",
        "runId": "r1",
        "protocolVersion": "1.0",
    }
    assert [message["role"] for message in client.messages] == [
        "user",
        "assistant",
        "assistant",
        "tool",
        "assistant",
        "assistant",
    ]
    assert client.messages[1]["content"] == "I fail first."
    assert [event["value"] for event in events if event["type"] == "CUSTOM"][:1] == [
        {"messageId": client.messages[1]["id"]},
    ]
    assert client.messages[2]["toolCalls"][0]["function"] == {
        "name": "fail",
        "arguments": '{"text":"no"}',
    }
    assert "ValueError: no" in client.results[0]
    assert client.said == ["I fail first.", "Bien sûr 🎉", "[5,4]"]
    assert events[-1]["outcome"] == {"type": "success"}
    assert events[-1]["result"] == {"answer": "Bien sûr 🎉", "stars": [5, 4]}
    preamble, answer, _ = [event for event in events if event["type"] == "TEXT_MESSAGE_START"]
    assert "metadata" not in preamble
    assert answer["metadata"] == {"ferrule": {"field": "answer"}}


def test_calls_in_text_are_shown_as_calls_and_their_fields_are_not() -> None:
    steps = [
        '[[ ## next_thought ## ]]\nhm\n\n[[ ## next_tool_name ## ]]\nfail\n\n[[ ## next_tool_args ## ]]\n{"text": "no"}\n\n[[ ## completed ## ]]',
        "[[ ## next_thought ## ]]\nenough\n\n[[ ## next_tool_name ## ]]\nfinish\n\n[[ ## next_tool_args ## ]]\n{}\n\n[[ ## completed ## ]]",
        "[[ ## reasoning ## ]]\nr\n\n[[ ## answer ## ]]\nThree\n\n[[ ## completed ## ]]",
    ]
    client = AGUIClient(USER)
    client.receive(
        text_of(
            AGUI(body())(
                ReAct("question -> answer", [fail], native=False).stream(
                    question="q",
                    lm=ScriptedLM(steps),
                ),
            ),
        ),
    )
    assert [
        message["content"] for message in client.messages if message["role"] == "reasoning"
    ] == ["hm", "enough", "r"]
    assert client.said == ["Three"]
    assert len(client.results) == 1


def test_an_answer_that_could_not_be_used_leaves_the_conversation() -> None:
    client = AGUIClient(USER)
    lm = ScriptedLM([finish("Take", "bad"), finish("Take two.", (2,))])
    client.receive(text_of(AGUI(body())(agent.stream(question="q", lm=lm))))
    assert client.said == ["Take two.", "[2]"]
    client = AGUIClient(USER)
    lm = ScriptedLM(["[[ ## answer ## ]]\nabc\n", "[[ ## answer ## ]]\n7\n"])
    client.receive(
        text_of(AGUI(body())(Predict("question -> answer: int").stream(question="q", lm=lm))),
    )
    assert client.said == ["7"]


def test_a_program_of_ones_own_shows_its_output_not_that_of_a_program_inside() -> None:
    class Loud(Module):
        def __init__(self) -> None:
            self.inner = Predict("question -> answer")

        def forward(self, question: str) -> Prediction:
            return Prediction(answer=self.inner(question=question).answer.upper())

    client = AGUIClient(USER)
    with context(lm=ScriptedLM(["[[ ## answer ## ]]\nhello\n"])):
        client.receive(text_of(AGUI(body())(Loud().stream(question="q"))))
    assert client.said == ["HELLO"]


def test_what_a_program_inside_wrote_before_it_failed_leaves_the_conversation() -> None:
    class Careful(Module):
        def __init__(self) -> None:
            self.inner = Predict("question -> count: int")

        def forward(self, question: str) -> Prediction:
            try:
                return Prediction(answer=self.inner(question=question).count)
            except AdapterParseError:
                return Prediction(answer="unknown")

    client = AGUIClient(USER)
    with context(lm=ScriptedLM(["[[ ## count ## ]]\nmany\n"] * 9)):
        client.receive(text_of(AGUI(body())(Careful().stream(question="q"))))
    assert client.said == ["unknown"]


@pytest.mark.parametrize("best", [0, 1, 2])
@pytest.mark.parametrize("at_once", [False, True])
def test_what_several_programs_inside_write_is_never_mixed(at_once: bool, best: int) -> None:
    client = AGUIClient(USER)
    chunks = text_of(AGUI(body())(drafted(at_once=at_once, best=best)))
    client.receive(chunks)
    assert client.said == [f"Draft {best} is long."]
    shown = "".join(
        each.get("delta", "|") for each in messages_of(chunks) if each["type"].startswith("TEXT_")
    )
    of_each = [f"Draft {number} is long." for number in (range(1 if at_once else 3))]
    assert [text for text in shown.split("|") if text][: len(of_each)] == of_each


def test_an_empty_answer_is_a_run_that_failed_and_its_text_stays_private() -> None:
    client = AGUIClient(USER)
    events = client.receive(
        text_of(
            AGUI(body())(
                Predict("question -> answer").stream(question="q", lm=ScriptedLM([""] * 9)),
            ),
        ),
    )
    assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "AdapterParseError")
    assert events[-1]["message"] == "The run failed: AdapterParseError."
    front = AGUI(body(), error_text=str)
    events = client.receive(
        text_of(front(Predict("question -> answer").stream(question="q", lm=ScriptedLM([""] * 9)))),
    )
    assert "answer" in events[-1]["message"]


def test_a_run_that_could_not_begin_and_events_that_break_off_are_errors() -> None:
    client = AGUIClient(USER)
    events = client.receive(text_of(AGUI(body())(agent.stream(question="q"))))
    assert events[-1]["type"] == "RUN_ERROR"
    told = list(agent.stream(question="q", lm=ScriptedLM([finish()])))
    events = client.receive(text_of(AGUI(body())(told[:-1])))
    assert events[-1]["type"] == "RUN_ERROR"
    events = client.receive(text_of(AGUI(body())([])))
    assert [event["type"] for event in events] == ["RUN_ERROR"]


def test_an_error_of_the_programs_own_ends_the_stream_in_order() -> None:
    class Broken(Module):
        def forward(self, question: str) -> Prediction:
            raise ZeroDivisionError(question)

    async def collect() -> str:
        return text_of([chunk async for chunk in AGUI(body())(Broken().astream(question="q"))])

    for chunks in (text_of(AGUI(body())(Broken().stream(question="q"))), asyncio.run(collect())):
        assert AGUIClient(USER).receive(chunks)[-1]["code"] == "ZeroDivisionError"


def test_a_cancelled_run_is_neither_a_success_nor_an_error() -> None:
    client = AGUIClient(USER)

    @tool
    def stop() -> str:
        """Stop."""
        stream.run.cancel()
        return "stopped"

    stream = ReAct("question -> answer", [stop], native=True).stream(
        question="q",
        lm=ScriptedLM([{"name": "stop", "args": {}}]),
    )
    events = client.receive(text_of(AGUI(body())(stream)))
    assert events[-1]["outcome"] == {"type": "cancelled"}
    assert "result" not in events[-1]


def test_a_client_that_leaves_cancels_the_run_of_its_stream() -> None:
    async def leave() -> str:
        stream = agent.astream(
            question="q",
            lm=ScriptedLM([{"name": "fail", "args": {"text": "no"}}, finish()]),
        )
        chunks = aiter(AGUI(body())(stream))
        await anext(chunks)
        await chunks.aclose()
        return stream.run.status

    assert asyncio.run(leave()) == "cancelled"


def test_progress_and_custom_events_are_custom() -> None:
    @tool
    def work() -> str:
        """Work."""
        progress("half", done=1, total=2)
        emit_event("chart", {"x": [1, None]})
        return "ok"

    stream = ReAct("question -> answer", [work], native=True).stream(
        question="q",
        lm=ScriptedLM([{"name": "work", "args": {}}, {"name": "finish", "args": {"answer": "a"}}]),
    )
    events = AGUIClient(USER).receive(text_of(AGUI(body())(stream)))
    first, second = [event for event in events if event["type"] == "CUSTOM"]
    call = next(event for event in events if event["type"] == "TOOL_CALL_START")
    assert first["value"] == {
        "toolCallId": call["toolCallId"],
        "message": "half",
        "done": 1.0,
        "total": 2.0,
    }
    assert (second["name"], second["value"]) == ("chart", {"x": [1, None]})


def test_a_call_that_the_models_provider_runs_is_custom_and_no_call_of_the_page() -> None:
    found = ProviderCall("web_search", {"query": "x"}, "a page", id="ws_1")
    lm = ScriptedLM([Response("yes", usage=Usage(1, 1, calls=1), provider_calls=(found,))])
    program = Predict("question -> answer", tools=[WebSearch()], lm=lm)
    stream = program.stream(question="?")
    told = AGUIClient(USER).receive(text_of(AGUI(body())(stream)))
    custom = [event["value"] for event in told if event.get("name") == "provider_call"]
    assert [value["is_running"] for value in custom] == [True, False]
    assert custom[1]["result"] == "a page"
    assert not any(event["type"].startswith("TOOL_CALL") for event in told)


def test_agents_inside_are_subagents_and_what_they_do_is_theirs() -> None:
    scout = ReAct("place -> report", [fail], native=True)
    guide = ReAct("question -> answer", [scout.as_tool("scout")], native=True)
    steps = [
        {
            "tool_calls": [
                {"name": "scout", "args": {"place": "Rome"}},
                {"name": "scout", "args": {"place": "Oslo"}},
            ],
        },
        {"name": "fail", "args": {"text": "no"}},
        {"name": "finish", "args": {"report": "sunny"}},
        {"name": "finish", "args": {"report": "rainy"}},
        {"name": "finish", "args": {"answer": "Both."}},
    ]
    client = AGUIClient(USER)
    events = client.receive(text_of(AGUI(body())(guide.stream(question="q", lm=ScriptedLM(steps)))))
    assert client.agents == ["scout", "scout"]
    assert client.said[-1] == "Both."
    started = [event for event in events if event["type"] == "SUBAGENT_STARTED"]
    calls = [
        event["toolCallId"]
        for event in events
        if event["type"] == "TOOL_CALL_START" and event["toolCallName"] == "scout"
    ]
    assert {event["parentToolCallId"] for event in started} == set(calls)
    ids = [event["toolCallId"] for event in events if event["type"] == "TOOL_CALL_START"]
    assert len(ids) == len(set(ids)) == 3


def test_lone_surrogates_become_marks_and_pairs_stay() -> None:
    lm = ScriptedLM([finish("a\ud83d b\udc00 \ud83d\ude00", ())])
    chunks = text_of(AGUI(body())(agent.stream(question="q", lm=lm)))
    chunks.encode()
    assert AGUIClient(USER).receive(chunks)[-1]["result"]["answer"] == "a� b� 😀"


def test_a_text_of_five_megabytes_arrives_whole() -> None:
    long = "ä" * 2_500_000
    client = AGUIClient(USER)
    client.receive(text_of(AGUI(body())(agent.stream(question="q", lm=ScriptedLM([finish(long)])))))
    assert client.said[0] == long


def test_equal_ids_of_a_server_are_different_calls_on_the_page() -> None:
    same = {"name": "fail", "args": {"text": "no"}, "id": "call_0"}
    client = AGUIClient(USER)
    client.receive(
        text_of(AGUI(body())(agent.stream(question="q", lm=ScriptedLM([same, same, finish()])))),
    )
    assert (
        len({message["toolCallId"] for message in client.messages if message["role"] == "tool"})
        == len(client.results)
        == 2
    )


def test_equal_ids_in_one_answer_are_different_calls_on_the_page() -> None:
    client = AGUIClient(USER)
    calls = [{"name": "fail", "args": {"text": text}, "id": "call_0"} for text in ("one", "two")]
    client.receive(
        text_of(
            AGUI(body())(
                agent.stream(question="q", lm=ScriptedLM([{"tool_calls": calls}, finish()])),
            ),
        ),
    )
    arguments = [
        message["toolCalls"][0]["function"]["arguments"]
        for message in client.messages
        if "toolCalls" in message
    ]
    assert arguments == ['{"text":"one"}', '{"text":"two"}']
    assert sorted(text.partition("\n")[0] for text in client.results) == [
        f"Execution error in fail: ValueError: {text}" for text in ("one", "two")
    ]


# -- approval

BOOK = {"name": "book", "args": {"hotel": "Ritz"}}


def test_a_question_is_an_interrupt_and_the_next_request_decides() -> None:
    client, store = AGUIClient(USER), MemoryStore()
    with context(lm=ScriptedLM([BOOK, finish()])):
        run = booked(client, store)
        [interrupt] = client.interrupts
        assert (interrupt["reason"], interrupt["toolCallId"]) == (
            "tool_call",
            client.messages[-1]["toolCalls"][0]["id"],
        )
        assert interrupt["metadata"]["ferrule"]["args"] == {"hotel": "Ritz", "nights": 1}
        assert set(interrupt["responseSchema"]["properties"]["editedArgs"]["properties"]) == {
            "hotel",
            "nights",
        }
        resumed(client, store, {"approved": True})
    assert client.results == ["booked Ritz for 1"]
    assert client.said[0] == "Done."
    [decision] = Run.load(store, run.id, agent).decisions
    assert (decision.via, decision.by, decision.kind) == ("ag-ui", "ada", "approve")


@pytest.mark.parametrize(
    ("payload", "status", "result"),
    [
        (
            {"approved": True, "editedArgs": {"hotel": "Savoy", "nights": 3}},
            "resolved",
            "booked Savoy for 3",
        ),
        ({"approved": True, "editedArgs": {"hotel": "Savoy"}}, "resolved", "booked Savoy for 1"),
        (
            {"approved": True, "editedArgs": {"hotel": "Ritz", "nights": 1}},
            "resolved",
            "booked Ritz for 1",
        ),
        (True, "resolved", "booked Ritz for 1"),
        ({"approved": False, "reason": "Too dear."}, "resolved", "Too dear."),
        (None, "cancelled", "did not decide"),
    ],
)
def test_a_decision_in_each_form(payload: Any, status: str, result: str) -> None:
    client, store = AGUIClient(USER), MemoryStore()
    with context(lm=ScriptedLM([BOOK, finish()])):
        booked(client, store)
        resumed(client, store, payload, status=status)
    assert result in client.results[0]
    assert len(client.results) == 1
    assert client.events[-1]["outcome"] == {"type": "success"}


@pytest.mark.parametrize(
    "payload",
    [
        None,
        "yes",
        {},
        {"approved": "yes"},
        {"approved": True, "editedArgs": []},
        {"approved": True, "editedArgs": {}},
    ],
)
def test_an_answer_that_is_none_raises_and_the_run_waits_on(payload: Any) -> None:
    client, store = AGUIClient(USER), MemoryStore()
    with context(lm=ScriptedLM([BOOK])):
        run = booked(client, store)
        with pytest.raises(DecisionError, match=r"approval|editedArgs"):
            resumed(client, store, payload)
    assert Run.load(store, run.id, agent).status == "waiting"


def test_the_second_of_two_clients_and_a_forged_id_get_an_error() -> None:
    client, store = AGUIClient(USER), MemoryStore()
    with context(lm=ScriptedLM([BOOK, finish()])):
        run = booked(client, store)
        front = AGUI(body(resume=answers(client, True)))
        other = AGUI(body(resume=answers(client, False)))
        first, second = Run.load(store, run.id, agent), Run.load(store, run.id, agent)
        first.answer(front.decisions(first)[0])
        with pytest.raises(DecisionError, match="decided already"):
            second.answer(other.decisions(second)[0])
        list(front(EventStream(first)))
        late = Run.load(store, run.id, agent)
        with pytest.raises(DecisionError, match="is not waiting for"):
            other.decisions(late)
    forged = AGUI(
        body(resume=[{"interruptId": f"{run.id}:0000", "status": "resolved", "payload": True}]),
    )
    with pytest.raises(DecisionError, match="is not waiting for"):
        forged.decisions(Run.load(store, run.id, agent))


def test_a_question_of_the_model_is_answered_with_text() -> None:
    client, store = AGUIClient(USER), MemoryStore()
    ask = {"name": "user_clarification", "args": {"question": "Which?"}}
    with context(lm=ScriptedLM([ask, finish()])):
        booked(client, store)
        assert (client.interrupts[0]["reason"], client.interrupts[0]["message"]) == (
            "input_required",
            "Which?",
        )
        resumed(client, store, {"answer": "The Ritz."})
    assert client.results == ["The Ritz."]


def test_an_agent_inside_asks_and_two_calls_of_one_turn_ask_one_after_the_other() -> None:
    scout = ReAct("place -> report", [book], native=True)
    guide = ReAct("question -> answer", [scout.as_tool("scout"), book], native=True)
    steps = [
        {"tool_calls": [{"name": "scout", "args": {"place": "Rome"}}, BOOK]},
        {"name": "book", "args": {"hotel": "Roma"}},
        {"name": "finish", "args": {"report": "sunny"}},
        {"name": "finish", "args": {"answer": "Both."}},
    ]
    client, store = AGUIClient(USER), MemoryStore()
    with context(lm=ScriptedLM(steps)):
        client.receive(text_of(AGUI(body())(guide.stream(question="q", store=store))))
        asked = []
        while client.interrupts:
            asked += [each["metadata"]["ferrule"]["args"]["hotel"] for each in client.interrupts]
            ended = [event for event in client.events if event["type"] == "SUBAGENT_FINISHED"]
            assert all(
                event["outcome"]["type"] == "suspended" for event in ended if "result" not in event
            )
            resumed(client, store, True, program=guide)
    assert sorted(asked) == ["Ritz", "Roma"]
    assert sorted(client.results) == ["booked Ritz for 1", "booked Roma for 1", "sunny"]
    calls = [call["id"] for message in client.messages for call in message.get("toolCalls", ())]
    assert len(calls) == len(set(calls)) == 3
    assert client.said[-1] == "Both."


# -- a client that comes back


def test_a_client_that_kept_a_part_gets_the_rest_and_nothing_twice() -> None:
    lm = ScriptedLM(
        [
            {"text": "Hm hm.", "tool_calls": [{"name": "fail", "args": {"text": "no"}}]},
            finish("One two three.", (1, 2)),
        ],
    )

    async def run() -> tuple[list[str], EventStream[Any]]:
        stream = agent.astream(question="q", lm=lm)
        return [chunk async for chunk in AGUI(body())(stream.follow())], stream

    async def again(messages: list[dict[str, Any]], stream: EventStream[Any]) -> str:
        return text_of(
            [chunk async for chunk in AGUI(body(*messages, run_id="r2"))(stream.follow())],
        )

    async def cut_everywhere() -> None:
        chunks, stream = await run()
        whole = AGUIClient(USER)
        whole.receive(text_of(chunks))
        frames = [f"data: {json.dumps(event)}\n\n" for event in messages_of(text_of(chunks))]
        for end in range(1, len(frames)):
            client = AGUIClient(dict(USER))
            client.receive_part("".join(frames[:end]))
            client.receive(await again(client.messages, stream))
            assert sorted(map(_shown, client.messages)) == sorted(map(_shown, whole.messages))

    asyncio.run(cut_everywhere())


def _shown(message: dict[str, Any]) -> tuple[Any, ...]:
    calls = [
        (call["id"], json.loads(call["function"]["arguments"]))
        for call in message.get("toolCalls", ())
    ]
    return message["id"], message["role"], str(message.get("content")), str(calls)


def test_an_agent_that_ended_in_the_journal_ends_its_thoughts_first() -> None:
    scout = ReAct("place -> report", [], native=True)
    guide = ReAct("question -> answer", [scout.as_tool("scout")], native=True)
    report = {"reasoning": "Hm.", "tool_calls": [{"name": "finish", "args": {"report": "sunny"}}]}
    steps = [
        {"name": "scout", "args": {"place": "Rome"}},
        report,
        {"name": "finish", "args": {"answer": "Go."}},
    ]
    with context(lm=ScriptedLM(steps)):
        run = guide.start(question="q", store=MemoryStore())
    client = AGUIClient(USER)
    events = client.receive(text_of(AGUI(body())(run.events())))
    kinds = [event["type"] for event in events if event.get("subagentRunId")]
    assert kinds[-3:] == ["REASONING_MESSAGE_END", "REASONING_END", "SUBAGENT_FINISHED"]
    assert client.said == ["Go."]


def test_a_page_that_comes_back_to_a_waiting_run_is_asked_again_from_the_journal() -> None:
    client, store = AGUIClient(USER), MemoryStore()
    with context(lm=ScriptedLM([{"text": "Hm.", "tool_calls": [BOOK]}, finish()])):
        run = booked(client, store)
        fresh = AGUIClient(USER)
        fresh.receive(text_of(AGUI(body(run_id="r9"))(Run.load(store, run.id, agent).events())))
        assert fresh.interrupts == client.interrupts
        assert [message["id"] for message in fresh.messages if message["role"] == "assistant"] == [
            message["id"] for message in client.messages if message["role"] == "assistant"
        ]
        resumed(fresh, store, True)
        done = AGUIClient(USER)
        done.receive(text_of(AGUI(body(run_id="r9"))(Run.load(store, run.id, agent).events())))
    assert done.said == fresh.said == ["Hm.", "Done.", "[5]"]
    assert done.results == fresh.results


# -- requests


def test_the_messages_are_a_history_and_the_last_words() -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "book", "arguments": '{"hotel":"Ritz"}'},
    }
    lost = {"id": "c2", "type": "function", "function": {"name": "book", "arguments": "{"}}
    front = AGUI(
        body(
            {"id": "0", "role": "system", "content": "Obey the page."},
            {"id": "1", "role": "user", "content": [{"type": "text", "text": "Look"}, _image()]},
            {"id": "2", "role": "reasoning", "content": "hm"},
            {"id": "3", "role": "assistant", "toolCalls": [call]},
            {"id": "4", "role": "assistant", "toolCalls": [lost]},
            {"id": "5", "role": "tool", "toolCallId": "c1", "content": "ok"},
            {"id": "6", "role": "assistant", "content": "inner", "subagentRunId": "x"},
            {"id": "7", "role": "assistant", "content": "Booked."},
            {"id": "8", "role": "user", "content": "Thanks, and now?"},
        ),
    )
    assert front.text == "Thanks, and now?"
    assert [(message.role, message.text) for message in front.history.as_messages(lambda _: [])][
        1:
    ] == [
        ("assistant", ""),
        ("tool", "ok"),
        ("assistant", "Booked."),
    ]
    assert (
        front.history[0]["content"][1]["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="
    )
    assert isinstance(front.history, History)


def _image() -> dict[str, Any]:
    return {
        "type": "image",
        "source": {"type": "data", "value": "iVBORw0KGgo=", "mimeType": "image/png"},
    }


@pytest.mark.parametrize(
    "junk",
    [
        [],
        "text",
        {},
        {"threadId": "t", "runId": 1, "messages": []},
        {"threadId": "", "runId": "r", "messages": []},
        {"threadId": "t", "runId": "r"},
        {"threadId": "t", "runId": "r", "messages": ["x"]},
        {"threadId": "t", "runId": "r", "messages": [{"role": "user", "content": 5}]},
        {
            "threadId": "t",
            "runId": "r",
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image",
                            "source": {"type": "data", "value": "!!", "mimeType": "image/png"},
                        }
                    ],
                }
            ],
        },
        {"threadId": "t", "runId": "r", "messages": [], "resume": [{}]},
        {"threadId": "t", "runId": "r", "messages": [], "resume": {"a": 1}},
        {
            "threadId": "t",
            "runId": "r",
            "messages": [],
            "resume": [{"interruptId": "x", "status": "maybe"}],
        },
        {
            "threadId": "t",
            "runId": "r",
            "messages": [],
            "resume": [{"interruptId": "x", "status": "cancelled"}],
        },
        {
            "threadId": "t",
            "runId": "r",
            "messages": [],
            "resume": [{"interruptId": ":x", "status": "cancelled"}],
        },
        {
            "threadId": "t",
            "runId": "r",
            "messages": [],
            "resume": [{"interruptId": "x:", "status": "cancelled"}],
        },
    ],
)
def test_a_request_of_junk_is_an_input_error(junk: Any) -> None:
    with pytest.raises(InputError):
        AGUI(junk)


def test_a_request_answers_a_question_once() -> None:
    yes, no = (
        {"interruptId": "r1:q1", "status": status, "payload": True}
        for status in ("resolved", "cancelled")
    )
    assert AGUI(body(resume=[yes, yes])).run_id == "r1"
    with pytest.raises(InputError, match="two answers to 'r1:q1'"):
        AGUI(body(resume=[yes, no]))


def test_parts_that_are_no_use_are_skipped() -> None:
    parts = [
        {"type": "image", "source": {"type": "url", "value": "file:///etc/passwd"}},
        {"type": "video", "source": {"type": "data", "value": "AAAA", "mimeType": "video/mp4"}},
        {"type": "image", "source": {"type": "file", "value": "id"}},
        {"type": "thing"},
        {"type": "text", "text": "Hi"},
        "junk",
    ]
    assert AGUI(body({"id": "1", "role": "user", "content": parts})).text == "Hi"


def test_two_equal_decisions_at_once_resume_the_run_once() -> None:
    client, store, ran = AGUIClient(USER), MemoryStore(), list[str]()

    @tool(require_confirmation=True)
    async def pay(to: str) -> str:
        """Pay."""
        ran.append(to)
        await asyncio.sleep(0.05)
        return "paid"

    payer = ReAct("question -> answer", [pay], native=True)

    async def decide() -> str:
        front = AGUI(body(*client.messages, run_id="r2", resume=answers(client, True)))
        run = Run.load(store, front.run_id, payer)
        for decision in front.decisions(run):
            run.answer(decision)
        return text_of([chunk async for chunk in front(EventStream(run))])

    async def both() -> list[str]:
        return await asyncio.gather(decide(), decide())

    with context(
        lm=ScriptedLM(
            [
                {"name": "pay", "args": {"to": "Ada"}},
                {"name": "finish", "args": {"answer": "Paid."}},
            ],
        ),
    ):
        client.receive(text_of(AGUI(body())(payer.stream(question="q", store=store))))
        ends = [messages_of(chunks)[-1] for chunks in asyncio.run(both())]
    assert ran == ["Ada"]
    assert sorted(end["type"] for end in ends) == ["RUN_ERROR", "RUN_FINISHED"]
    assert next(end["code"] for end in ends if end["type"] == "RUN_ERROR") == "RunTakenError"


def test_an_answer_before_a_message_to_the_run_stays_on_the_page() -> None:
    """The answer after it is another text."""
    client = AGUIClient(USER)

    def answer(request: Any) -> Any:
        if "second" not in request.messages[-1].text:
            stream.run.say("And the second night?", by="ada")
            return finish("One night.", (3,))
        return finish("Two nights.", (4,))

    stream = agent.stream(question="q", lm=ScriptedLM(by=answer))
    events = client.receive(text_of(AGUI(body())(stream)))
    assert client.said == ["One night.", "[3]", "Two nights.", "[4]"]
    customs = [(event["name"], event["value"]) for event in events if event["type"] == "CUSTOM"]
    assert customs == [("said", {"text": "And the second night?", "by": "ada"})]
