"""Tools that a chat page declares and runs: allowed by the server, called by the model, answered by
the page's next request.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from front_pages import messages_of

from ferrule import (
    AGUI,
    EventStream,
    InputError,
    MemoryStore,
    Policy,
    ReAct,
    Response,
    Run,
    SQLiteStore,
    Tool,
    ToolCall,
    VercelAI,
    ask,
    context,
    tool,
)
from ferrule.errors import ConfigurationError, DecisionError
from ferrule.testing import ScriptedLM
from ferrule.tools.mcp.safety import hidden_characters

LOCATE = {
    "name": "locate",
    "description": "Where the user is.",
    "parameters": {"type": "object", "properties": {"precise": {"type": "boolean"}}},
}
ASKED = {"id": "u1", "role": "user", "content": "Where am I?"}
PLACE = {"lat": 41.9, "lon": 12.5}
WHERE = {"name": "locate", "args": {"precise": True}}
DONE = {"name": "finish", "args": {"answer": "In Rome."}}


@tool(require_confirmation=True)
def book(hotel: str) -> str:
    """Book a hotel."""
    return f"booked {hotel}"


@tool(result="outside")
def review(text: str) -> str:
    """Ask the reviewers."""


def agent() -> ReAct:
    """As each process makes it."""
    signature = "question, history: History, tools: list[Tool] -> answer"
    return ReAct(signature, [book, review], native=True)


class AGUIPage:
    """What a client of AG-UI keeps of a conversation."""

    def __init__(
        self, *declared: Any, allowed: Any = ("locate",), run_id: str | None = None
    ) -> None:
        self.declared, self.allowed = list(declared or [LOCATE]), allowed
        self.messages: list[dict[str, Any]] = [ASKED]
        self.events: list[dict[str, Any]] = []
        self.run_id = run_id

    def front(self) -> AGUI:
        body = {"threadId": "t", "runId": "r", "messages": self.messages, "tools": self.declared}
        return AGUI(body, page_tools=self.allowed)

    def send(self, store: Any) -> Run[Any]:
        front = self.front()
        if front.run_id:
            run = Run.load(store, front.run_id, agent())
            for decision in front.decisions(run, by="ann"):
                run.answer(decision)
            stream = EventStream(run)
        else:
            inputs = {"question": front.text, "history": front.history, "tools": front.tools}
            stream = agent().stream(**inputs, store=store, run_id=self.run_id)
        self.events = messages_of("".join(front(stream)))
        self.take()
        return stream.run

    def take(self) -> None:
        calls: dict[str, dict[str, Any]] = {}
        for event in self.events:
            match event:
                case {"type": "TOOL_CALL_START", "toolCallId": key, "toolCallName": name}:
                    calls[key] = {"id": key, "function": {"name": name, "arguments": ""}}
                    self.messages.append(
                        {"id": key, "role": "assistant", "toolCalls": [calls[key]]}
                    )
                case {"type": "TOOL_CALL_ARGS", "toolCallId": key, "delta": delta}:
                    calls[key]["function"]["arguments"] += delta
                case {"type": "TOOL_CALL_RESULT", "messageId": key}:
                    result = {name: event[name] for name in ("toolCallId", "content")}
                    self.messages.append({"id": key, "role": "tool", **result})
                case _:
                    pass

    def pending(self) -> list[tuple[str, dict[str, Any]]]:
        answered = {m.get("toolCallId") for m in self.messages if m["role"] == "tool"}
        calls = [call for m in self.messages for call in m.get("toolCalls", [])]
        return [
            (each["id"], json.loads(each["function"]["arguments"]))
            for each in calls
            if each["id"] not in answered
        ]

    def answer(self, key: str, output: Any = None, error: str = "") -> None:
        content = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        message = {"id": f"m-{key}", "role": "tool", "toolCallId": key, "content": content}
        self.messages.append({**message, "error": error} if error else message)


class VercelPage:
    """What `useChat` keeps of a conversation."""

    def __init__(
        self, *declared: Any, allowed: Any = ("locate",), run_id: str | None = None
    ) -> None:
        self.declared, self.allowed = list(declared or [LOCATE]), allowed
        parts = [{"type": "text", "text": "Where am I?"}]
        self.messages: list[dict[str, Any]] = [{"id": "u1", "role": "user", "parts": parts}]
        self.events: list[dict[str, Any]] = []
        self.run_id = run_id

    def front(self) -> VercelAI:
        body = {"id": "t", "messages": self.messages, "tools": self.declared}
        return VercelAI(body, page_tools=self.allowed)

    send = AGUIPage.send

    def take(self) -> None:
        for event in self.events:
            match event:
                case {"type": "start", "messageId": key} if len(self.messages) == 1:
                    self.messages.append({"id": key, "role": "assistant", "parts": []})
                case {"type": "tool-input-available", "toolCallId": key, "toolName": name}:
                    part = {"type": f"tool-{name}", "toolCallId": key, "state": "input-available"}
                    self.messages[1]["parts"].append({**part, "input": event["input"]})
                case {"type": "tool-output-available", "toolCallId": key, "output": output}:
                    self.part(key).update(state="output-available", output=output)
                case _:
                    pass

    def part(self, key: str) -> dict[str, Any]:
        return next(part for part in self.messages[1]["parts"] if part.get("toolCallId") == key)

    def pending(self) -> list[tuple[str, dict[str, Any]]]:
        parts = self.messages[1]["parts"]
        return [(p["toolCallId"], p["input"]) for p in parts if p.get("state") == "input-available"]

    def answer(self, key: str, output: Any = None, error: str = "") -> None:
        if error:
            self.part(key).update(state="output-error", errorText=error)
        else:
            self.part(key).update(state="output-available", output=output)


PAGES = pytest.mark.parametrize("Page", [AGUIPage, VercelPage])


def results_in(run: Run[Any]) -> list[Any]:
    return [result for step in run.trajectory.steps for result in step.results]


@PAGES
def test_the_model_calls_a_tool_of_the_page_and_the_next_request_has_its_result(Page: Any) -> None:
    page, store = Page(), MemoryStore()
    lm = ScriptedLM([WHERE, DONE])
    with context(lm=lm):
        run = page.send(store)
        assert "locate" in [each["function"]["name"] for each in lm.requests[0].tools]
        assert run.status == "waiting"
        [(key, args)] = page.pending()
        assert args == {"precise": True}
        page.answer(key, PLACE)
        run = page.send(store)
    assert run.prediction.answer == "In Rome."
    [located, _] = results_in(run)
    assert json.loads(located.content) == PLACE
    assert [(d.via, d.by) for d in run.decisions] == [(page.front().via, "ann")]


def test_an_ag_ui_run_that_waits_for_the_page_is_complete_and_names_its_calls() -> None:
    page, store = AGUIPage(), MemoryStore()
    with context(lm=ScriptedLM([WHERE])):
        page.send(store)
    [(key, _)] = page.pending()
    assert page.events[-1]["outcome"] == {"type": "success", "pendingToolCallIds": [key]}


def test_the_ai_sdk_gets_the_call_and_no_question() -> None:
    page, store = VercelPage(), MemoryStore()
    with context(lm=ScriptedLM([WHERE])):
        page.send(store)
    kinds = [event["type"] for event in page.events]
    assert "tool-input-available" in kinds
    assert not {"data-question", "tool-approval-request"} & {*kinds}
    assert page.events[-1]["finishReason"] == "tool-calls"


@PAGES
def test_it_survives_a_restart_of_the_server_and_of_the_page(Page: Any, tmp_path: Path) -> None:
    """Everything is read again from the file: neither the agent nor the page has the tool."""
    path, page = tmp_path / "runs.db", Page()
    with context(lm=ScriptedLM([WHERE])), SQLiteStore(path) as store:
        page.send(store)
    page.declared, page.allowed = [], ()
    [(key, _)] = page.pending()
    page.answer(key, PLACE)
    with context(lm=ScriptedLM([DONE])), SQLiteStore(path) as store:
        assert page.send(store).prediction.answer == "In Rome."


@PAGES
def test_a_reloaded_page_gets_the_call_again_from_the_journal(Page: Any) -> None:
    page, store = Page(), MemoryStore()
    with context(lm=ScriptedLM([WHERE, DONE])):
        run = page.send(store)
        reloaded = Page()
        reloaded.events = messages_of("".join(reloaded.front()(run.events())))
        reloaded.take()
        assert reloaded.pending() == page.pending()
        reloaded.answer(reloaded.pending()[0][0], PLACE)
        assert reloaded.send(store).status == "done"


@PAGES
def test_a_result_that_is_sent_again_is_taken_once(Page: Any) -> None:
    """The connection was lost after the page had sent it."""
    page, store = Page(), MemoryStore()
    with context(lm=ScriptedLM([WHERE, DONE])):
        page.send(store)
        page.answer(page.pending()[0][0], PLACE)
        front = page.front()
        run = page.send(store)
        assert front.decisions(Run.load(store, run.id, agent())) == []
        other = Page()
        other.messages = json.loads(json.dumps(front._messages).replace("41.9", "0"))
        with pytest.raises(DecisionError, match="is not waiting"):
            other.front().decisions(Run.load(store, run.id, agent()))


@PAGES
def test_of_several_calls_the_page_may_answer_one_first(Page: Any) -> None:
    calls = tuple(ToolCall(name="locate", args={"precise": p}, id=str(p)) for p in (True, False))
    page, store = Page(), MemoryStore()
    with context(lm=ScriptedLM([Response("", calls), DONE])):
        page.send(store)
        (first, _), (second, _) = page.pending()
        page.answer(second, "second")
        assert page.send(store).status == "waiting"
        page.answer(first, "first")
        run = page.send(store)
    assert [result.content for result in results_in(run)][:2] == ["first", "second"]


@PAGES
def test_the_model_reads_that_the_tool_of_the_page_failed(Page: Any) -> None:
    page, store = Page(), MemoryStore()
    lm = ScriptedLM([WHERE, DONE])
    with context(lm=lm):
        page.send(store)
        page.answer(page.pending()[0][0], error="The user said no.")
        run = page.send(store)
    assert results_in(run)[0].is_error
    assert "The page says: The user said no." in lm.requests[-1].messages[-1].text


@PAGES
def test_an_id_with_a_slash_names_its_run(Page: Any) -> None:
    page, store = Page(run_id="chat/5%2F"), MemoryStore()
    with context(lm=ScriptedLM([WHERE, DONE])):
        page.send(store)
        page.answer(page.pending()[0][0], PLACE)
        assert page.front().run_id == "chat/5%2F"
        assert page.send(store).status == "done"


# -- the server decides what a page may do


@PAGES
@pytest.mark.parametrize(
    ("allowed", "names"),
    [((), []), (["locate"], ["locate"]), (["ui_*"], ["ui_pick"]), (["*"], ["locate", "ui_pick"])],
)
def test_a_page_declares_only_what_the_server_allows(
    Page: Any, allowed: Any, names: list[str]
) -> None:
    page = Page(LOCATE, {"name": "ui_pick", "description": "", "parameters": {}}, allowed=allowed)
    assert [each.name for each in page.front().tools] == names


def test_tools_by_name_are_read_too() -> None:
    """As some pages of the AI SDK send them."""
    tools = {"locate": {"description": "Where.", "inputSchema": {"type": "object"}}}
    body = {"id": "t", "messages": [], "tools": tools}
    [located] = VercelAI(body, page_tools=["locate"]).tools
    assert (located.name, located.desc, located.result) == ("locate", "Where.", "page")


@pytest.mark.parametrize("wrong", ["locate", [5], [""], None, {"locate": True}])
def test_the_allowed_tools_are_a_list_of_names(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="page_tools"):
        AGUI(None, page_tools=wrong)


@PAGES
@pytest.mark.parametrize(
    "declared",
    [
        pytest.param({**LOCATE, "parameters": [5]}, id="no schema"),
        pytest.param({**LOCATE, "parameters": {"type": "string"}}, id="no object"),
        pytest.param({**LOCATE, "description": 5}, id="no text"),
        pytest.param({**LOCATE, "name": "loc\u200bate"}, id="hidden character in the name"),
        pytest.param({**LOCATE, "name": ""}, id="no name"),
        pytest.param({**LOCATE, "description": "x" * 200_000}, id="long"),
        pytest.param({**LOCATE, "parameters": {"type": "object", "$ref": "#/x"}}, id="dangling"),
    ],
)
def test_a_tool_that_a_model_could_not_call_is_refused_or_left_out(
    Page: Any, declared: dict[str, Any]
) -> None:
    with suppress(InputError):
        assert Page(declared, allowed=["*"]).front().tools == []


def test_a_page_declares_not_endlessly_many_tools() -> None:
    many = [{**LOCATE, "name": f"tool_{number}"} for number in range(200)]
    with pytest.raises(InputError, match="at most 128"):
        AGUIPage(*many, allowed=["tool_*"]).front()


def test_a_page_cannot_take_the_name_of_a_tool_of_the_program() -> None:
    for name in ("book", "finish"):
        page = AGUIPage({**LOCATE, "name": name}, allowed=["*"])
        with context(lm=ScriptedLM([DONE])):
            run = page.send(MemoryStore())
        assert run.status == "failed", name
        assert page.events[-1]["type"] == "RUN_ERROR"


@PAGES
def test_a_page_gives_no_result_but_those_of_its_tools(Page: Any) -> None:
    """Neither of a tool with a result from elsewhere, nor of a call that waits for an approval."""
    for step in (
        {"name": "review", "args": {"text": "x"}},
        {"name": "book", "args": {"hotel": "x"}},
    ):
        page, store = Page(), MemoryStore()
        with context(lm=ScriptedLM([step])):
            run = page.send(store)
            page.answer(page.pending()[0][0], "yes")
            with pytest.raises(DecisionError):
                page.front().decisions(Run.load(store, run.id, agent()))


@PAGES
def test_what_a_page_writes_is_cleaned_and_counts_as_untrusted(Page: Any) -> None:
    hidden = "\u202ereversed\u202c \U000e0041\u001b[31m"
    schema = {"type": "object", "properties": {"q": {"type": "string", "description": hidden}}}
    page, store = Page({**LOCATE, "description": hidden, "parameters": schema}), MemoryStore()
    lm = ScriptedLM([{"name": "locate", "args": {"q": "x"}}, DONE])
    with context(lm=lm):
        page.send(store)
        declaration = next(each for each in lm.requests[0].tools if "locate" in str(each))
        assert declaration["function"]["description"] == "reversed "
        described = declaration["function"]["parameters"]["properties"]["q"]["description"]
        assert described == "reversed "
        page.answer(page.pending()[0][0], {"place": hidden, hidden: [hidden]})
        run = page.send(store)
    [located, _] = results_in(run)
    assert "reversed" in located.content
    assert hidden_characters(located.content) == {}
    assert located.untrusted


@PAGES
def test_rules_hold_for_tools_of_the_page(Page: Any) -> None:
    with context(lm=ScriptedLM([WHERE]), policy=Policy([ask("locate")])):
        assert Page().send(MemoryStore()).pending[0].kind == "confirm"


# -- a tool of the page that the server declares


@PAGES
def test_the_server_may_declare_a_tool_of_the_page_with_a_type(Page: Any) -> None:
    @tool(result="page")
    def locate(precise: bool = False) -> dict[str, float]:
        """Where the user is."""

    assert isinstance(locate, Tool)
    program = ReAct("question -> answer", [locate], native=True)
    page, store = Page({}, allowed=()), MemoryStore()
    with context(lm=ScriptedLM([WHERE, DONE])):
        stream = program.stream(question="q", store=store)
        page.events = messages_of("".join(page.front()(stream)))
        page.take()
        [(key, _)] = page.pending()
        page.answer(key, "nowhere")
        run = Run.load(store, stream.run.id, program)
        [unfit] = page.front().decisions(run)
        with pytest.raises(DecisionError, match="does not fit"):
            run.answer(unfit)
        if isinstance(page, AGUIPage):
            page.messages.pop()
        page.answer(key, PLACE)
        for decision in page.front().decisions(run):
            run.answer(decision)
        assert run.resume().status == "done"


# -- the state of an AG-UI page


def test_the_page_shares_its_state_and_context_and_gets_the_agents_changes() -> None:
    from ferrule import emit_event

    @tool
    def plan(city: str) -> str:
        """Plan."""
        emit_event("state", {"city": city, "days": []})
        emit_event("state_delta", [{"op": "add", "path": "/days/-", "value": 1}])
        return "planned"

    context_entry = {"description": "The open page", "value": "Trips"}
    body = {"threadId": "t", "runId": "r", "messages": [ASKED], "state": {"city": "Rome"}}
    front = AGUI({**body, "context": [context_entry]})
    assert (front.state, front.context) == ({"city": "Rome"}, [context_entry])
    planner = ReAct("question, state: dict -> answer", [plan], native=True)
    lm = ScriptedLM([{"name": "plan", "args": {"city": "Rome"}}, DONE])
    with context(lm=lm):
        events = messages_of("".join(front(planner.stream(question="q", state=front.state))))
    states = [event for event in events if event["type"].startswith("STATE")]
    assert states == [
        {"type": "STATE_SNAPSHOT", "snapshot": {"city": "Rome", "days": []}},
        {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/days/-", "value": 1}]},
    ]
