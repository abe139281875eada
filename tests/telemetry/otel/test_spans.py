"""Programs, model calls and tool calls as spans: which there are, what they say, and what is
current where.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import re
import subprocess
import sys
import threading
import time
import warnings
from typing import Any, ClassVar

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from otel_spans import Sent

from ferrule import (
    ChatAdapter,
    Module,
    OTel,
    Policy,
    Predict,
    ProviderCall,
    ReAct,
    Response,
    Run,
    SQLiteStore,
    ToolCall,
    ToolStop,
    Usage,
    WebSearch,
    allow,
    context,
    events,
    gather,
    is_cancelled,
    tool,
)
from ferrule.errors import ConfigurationError, RateLimitError
from ferrule.testing import ScriptedLM

ADD = {"name": "add", "args": {"a": 1, "b": 2}}
BAD = {"name": "bad", "args": {}}
PAY = {"name": "pay", "args": {"euros": 3}}
DONE = {"name": "finish", "args": {"answer": "yes"}}
DRIVERS = ["sync", "async", "stream", "astream"]


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def bad() -> str:
    """Fail."""
    raise ValueError("no")


@tool(require_confirmation=True)
def pay(euros: int) -> str:
    """Pay an amount."""
    return f"paid {euros}"


def carry(program: Any, driver: str, **inputs: Any) -> Any:
    """Run a program to its rest; returns the run."""
    match driver:
        case "sync":
            return program.start(**inputs)
        case "async":
            return asyncio.run(program.astart(**inputs))
        case "stream":
            stream = program.stream(**inputs)
            list(stream)
            return stream.run
        case _:

            async def follow() -> Any:
                stream = program.astream(**inputs)
                async for _ in stream:
                    pass
                return stream.run

            return asyncio.run(follow())


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(caplog: pytest.LogCaptureFixture) -> Any:
    before = otel_context.get_current()
    yield
    assert otel_context.get_current() is before
    assert [record for record in caplog.records if record.name.startswith("opentelemetry")] == []


# -- the tree


def test_the_span_of_a_run_says_which_program_and_how_it_ended(sent: Sent) -> None:
    lm = ScriptedLM([ADD, DONE])
    agent = ReAct("task -> answer", [add], native=True)
    agent.version = "2"
    with context(callbacks=[sent.observer], lm=lm):
        run = agent.start(task="x", run_id="r1")
    span = sent.one("invoke_agent ReAct")
    assert span.kind == SpanKind.INTERNAL
    assert span.parent is None
    found = dict(span.attributes)
    assert len(found.pop("gen_ai.agent.id")) == 16
    assert found == {
        "gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": "scripted", "gen_ai.request.model": "scripted", "gen_ai.agent.name": "ReAct", "gen_ai.agent.version": "2",
        "ferrule.run.id": run.id, "ferrule.run.segment": 1, "ferrule.run.status": "done",
    }  # fmt: skip
    assert span.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.41.0"


def test_the_span_of_a_run_says_what_the_run_is_for(sent: Sent) -> None:
    metadata = {"user": "ada", "conversation": 17, "tier": 2, "tags": ["a", {"b": None}]}
    with context(callbacks=[sent.observer], lm=ScriptedLM(["[[ ## a ## ]]\n1"])):
        Predict("q -> a")(q="?", metadata=metadata, title="A bill")
    attributes = sent.one("invoke_agent Predict").attributes or {}
    names = ("ferrule.run.title", "ferrule.run.metadata.", "user.", "gen_ai.conversation.")
    assert {key: value for key, value in attributes.items() if key.startswith(names)} == {
        "ferrule.run.title": "A bill",
        "ferrule.run.metadata.user": "ada",
        "ferrule.run.metadata.conversation": 17,
        "ferrule.run.metadata.tier": 2,
        "ferrule.run.metadata.tags": '["a",{"b":null}]',
        "user.id": "ada",
        "gen_ai.conversation.id": "17",
    }


def test_a_caller_names_the_conversation(sent: Sent) -> None:
    with context(
        callbacks=[sent.observer],
        lm=ScriptedLM(["[[ ## answer ## ]]\nx"]),
        extra={"conversation_id": "c-7"},
    ):
        Predict("question -> answer")(question="x")
    assert sent.one("invoke_agent Predict").attributes["gen_ai.conversation.id"] == "c-7"


class Counting(ScriptedLM):
    """A model of a provider, by its name and its address."""

    name = "mistral/mistral-large"
    url = "https://api.mistral.ai/v1/chat/completions"
    settings: ClassVar[Any] = {
        "temperature": 0.5,
        "max_tokens": 100,
        "stop": "END",
        "seed": 7,
        "n": 1,
        "api": object(),
    }


def test_a_model_call_says_what_was_asked_and_what_came(sent: Sent) -> None:
    """Names of providers are the convention's; tokens and cost add up in the programs around it."""
    lm = Counting(
        [
            Response(
                "[[ ## answer ## ]]\nyes",
                usage=Usage(10, 5, 4, 1),
                model="mistral-large-2411",
                cost=0.25,
                finish_reason="stop",
                body={"id": "m1"},
            ),
        ],
    )
    with context(callbacks=[sent.observer], lm=lm):
        Predict("question -> answer")(question="x")
    span = sent.one("chat mistral-large")
    assert span.kind == SpanKind.CLIENT
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "mistral_ai", "gen_ai.request.model": "mistral-large",
        "server.address": "api.mistral.ai", "server.port": 443,
        "gen_ai.request.temperature": 0.5, "gen_ai.request.max_tokens": 100, "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.response.id": "m1", "gen_ai.response.model": "mistral-large-2411", "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 5, "gen_ai.usage.cache_read.input_tokens": 4, "operation.cost": 0.25,
    }  # fmt: skip
    whole = sent.one("invoke_agent Predict").attributes
    assert (
        whole["gen_ai.usage.input_tokens"],
        whole["gen_ai.usage.output_tokens"],
        whole["operation.cost"],
    ) == (10, 5, 0.25)


def test_each_try_to_get_a_readable_answer_is_a_span(sent: Sent) -> None:
    """The program's span says that one was not readable, and not what it was."""
    lm = ScriptedLM(["my secret is 7", "[[ ## number ## ]]\n7"])
    with context(callbacks=[sent.observer], lm=lm, adapter=ChatAdapter()):
        Predict("question -> number: int")(question="x")
    assert [span.attributes.get("ferrule.attempt") for span in sent.spans[1:]] == [None, 2]
    [failed] = sent.one("invoke_agent Predict").events
    assert (failed.name, dict(failed.attributes)) == (
        "ferrule.attempt_failed",
        {"ferrule.attempt": 1},
    )


def test_a_model_that_fails_is_an_error_without_its_text(sent: Sent) -> None:
    """The class of the error, in the model's span and the run's."""
    lm = ScriptedLM([RateLimitError("the key sk-123 is over its limit")])
    with context(callbacks=[sent.observer], lm=lm):
        run = Predict("question -> answer").start(question="x")
    assert run.status == "failed"
    for span in sent.spans:
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
        assert (span.attributes["error.type"], span.events) == ("RateLimitError", ())


def test_a_tool_call_says_which_tool_and_why_it_failed(sent: Sent) -> None:
    """One span a call, whatever becomes of it."""

    @tool(effect="idempotent", timeout_s=0.01)
    async def hangs() -> str:
        """Hang."""
        await asyncio.sleep(60)
        return ""

    agent = ReAct("task -> answer", [add, bad, hangs], native=True)
    script = [[ADD, BAD, {"name": "hangs", "args": {}}, {"name": "nothing", "args": {}}], DONE]
    with context(callbacks=[sent.observer], lm=ScriptedLM(script)):
        asyncio.run(agent.acall(task="x"))
    assert sorted(name for name in sent.names if name.startswith("execute")) == [
        "execute_tool add",
        "execute_tool bad",
        "execute_tool hangs",
    ]
    span = sent.one("execute_tool add")
    assert (span.kind, span.status.status_code) == (SpanKind.INTERNAL, StatusCode.UNSET)
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add", "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "call_0", "gen_ai.tool.description": "Add.", "ferrule.tool.effect": "once", "ferrule.call.slot": "1.0",
    }  # fmt: skip
    errors = {
        name: sent.one(f"execute_tool {name}").attributes["error.type"] for name in ("bad", "hangs")
    }
    assert errors == {"bad": "ValueError", "hangs": "timeout"}
    assert sent.one("execute_tool hangs").status.status_code == StatusCode.ERROR
    assert sent.one("execute_tool hangs").attributes["ferrule.tool.effect"] == "idempotent"


def test_a_tool_call_says_how_sure_the_model_is_of_it(sent: Sent) -> None:
    doubtful = ToolCall(name="add", args=ADD["args"], confidence=0.4)
    script = [[doubtful], [BAD], DONE]
    with context(callbacks=[sent.observer], lm=ScriptedLM(script)):
        ReAct("task -> answer", [add, bad], native=True)(task="x")
    assert sent.one("execute_tool add").attributes["ferrule.call.confidence"] == 0.4
    assert "ferrule.call.confidence" not in sent.one("execute_tool bad").attributes


@pytest.mark.parametrize("driver", DRIVERS)
def test_calls_that_never_end_have_one_span_each(sent: Sent, driver: str) -> None:
    """A tool that stops the run, and one that is cancelled with it."""
    begun = threading.Event()

    async def waits() -> str:
        """Wait."""
        begun.set()
        await asyncio.sleep(60)
        return ""

    async def stops() -> str:
        """Stop."""
        while not begun.is_set():
            await asyncio.sleep(0)
        raise ToolStop("stop")

    agent = ReAct(
        "task -> answer",
        [waits if "async" in driver or driver == "astream" else add, stops],
        native=True,
    )
    if driver in {"sync", "stream"}:
        begun.set()
    calls = [
        {"name": "waits", "args": {}} if driver in {"async", "astream"} else ADD,
        {"name": "stops", "args": {}},
    ]
    with context(
        callbacks=[sent.observer],
        lm=ScriptedLM([calls]),
        allow_tool_async_sync_conversion=True,
    ):
        try:
            carry(agent, driver, task="x")
        except ToolStop:
            assert "stream" in driver
    assert len([name for name in sent.names if name.startswith("execute")]) == 2
    assert all(span.end_time for span in sent.spans)
    assert sent.one("invoke_agent ReAct").attributes["error.type"] == "ToolStop"


def test_programs_called_in_a_forward_and_in_a_function_are_below_what_calls_them(
    sent: Sent,
) -> None:
    def looks_up(word: str) -> str:
        """Look a word up with a program."""
        return Predict("word -> meaning")(word=word).meaning

    class Two(Module):
        def __init__(self) -> None:
            self.first = Predict("question -> answer")
            self.agent = ReAct("task -> answer", [looks_up], native=True)

        async def aforward(self, question: str) -> Any:
            await gather(self.first.acall(question=question), self.first.acall(question=question))
            return await self.agent.acall(task=question)

    answer = "[[ ## answer ## ]]\nx"
    lm = ScriptedLM(
        [
            answer,
            answer,
            {"name": "looks_up", "args": {"word": "w"}},
            "[[ ## meaning ## ]]\nm",
            DONE,
        ],
    )
    with context(callbacks=[sent.observer], lm=lm):
        asyncio.run(Two().acall(question="q"))
    predict = ["invoke_agent Predict", "chat scripted"]
    assert sent.tree() == [
        [
            "invoke_agent Two",
            predict,
            predict,
            [
                "invoke_agent ReAct",
                "chat scripted",
                ["execute_tool looks_up", predict],
                "chat scripted",
            ],
        ],
    ]


def test_calls_that_code_makes_itself_are_spans_of_their_own(sent: Sent) -> None:
    """Without a run around them."""
    with (
        context(callbacks=[sent.observer]),
        sent.provider.get_tracer("mine").start_as_current_span("mine"),
    ):
        tool(add)(a=1, b=2)
        ScriptedLM(["hello"])("hi")
        with pytest.raises(ValueError, match="no"):
            tool(bad)()
    assert sent.tree() == [["mine", "execute_tool add", "chat scripted", "execute_tool bad"]]
    assert sent.one("execute_tool bad").attributes["error.type"] == "ValueError"


def test_questions_decisions_and_rules_are_events_of_the_program(sent: Sent) -> None:
    """The wait has no span; who decided is content."""
    policy = Policy([allow("add")])
    agent = ReAct("task -> answer", [add, pay], native=True)
    with context(callbacks=[sent.observer], lm=ScriptedLM([ADD, PAY, DONE]), policy=policy):
        run = agent.start(task="x")
        [question] = run.pending
        run.answer(question.approve().signed(by="ann", via="mail"))
        run.resume()
    first, second = [span for span in sent.spans if span.name == "invoke_agent ReAct"]
    assert [event.name for event in first.events] == ["ferrule.rule", "ferrule.question"]
    assert dict(first.events[0].attributes) == {
        "ferrule.rule.verdict": "allow",
        "gen_ai.tool.name": "add",
    }
    assert dict(first.events[1].attributes) == {
        "ferrule.question.id": question.id, "ferrule.question.kind": "confirm", "gen_ai.tool.name": "pay",
    }  # fmt: skip
    [decided] = second.events
    assert decided.name == "ferrule.decision"
    found = dict(decided.attributes)
    assert found.pop("ferrule.decision.waited_s") >= 0
    assert found == {
        "ferrule.question.id": question.id,
        "ferrule.decision.kind": "approve",
        "ferrule.decision.via": "mail",
    }


# -- replays


def test_a_replay_makes_no_spans(sent: Sent, tmp_path: Any) -> None:
    """Fifty steps of a run that is resumed five times are fifty model calls and fifty tool calls in
    all.
    """
    crashes = [10, 20, 30, 40, 50]

    def step(number: int) -> int:
        """One step."""
        if number in crashes:
            crashes.remove(number)
            raise KeyboardInterrupt
        return number

    steps = [{"name": "step", "args": {"number": number}} for number in range(1, 51)]
    agent = ReAct("task -> answer", [tool(step, effect="idempotent")], native=True, max_iters=60)
    store = SQLiteStore(tmp_path / "runs.db", full_sync=False)
    with context(callbacks=[sent.observer], lm=ScriptedLM([*steps, DONE])):
        with pytest.raises(KeyboardInterrupt):
            agent.start(task="x", store=store, run_id="r")
        for _ in range(5):
            run = Run.load(store, "r", agent)
            try:
                run.resume()
            except KeyboardInterrupt:
                continue
        assert run.status == "done"
    store.close()
    steps_made = [span for span in sent.spans if span.name == "execute_tool step"]
    finished = [span for span in steps_made if "error.type" not in span.attributes]
    assert sent.names.count("chat scripted") == 51
    assert sent.names.count("invoke_agent ReAct") == 6
    assert (len(finished), len(steps_made)) == (50, 55)  # five were cut off, and ran again
    assert [
        span.attributes["ferrule.run.segment"]
        for span in sent.spans
        if span.name == "invoke_agent ReAct"
    ] == [1, 2, 3, 4, 5, 6]


# -- what is current


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_span_is_current_while_its_work_executes(sent: Sent, driver: str) -> None:
    """Spans of other instrumentations are below it: of tools in threads and tasks, and of models."""
    tracer = sent.provider.get_tracer("other")

    def looks(a: int) -> int:
        """Look."""
        with tracer.start_as_current_span("query"):
            return a

    async def asks(a: int) -> int:
        """Ask."""
        with tracer.start_as_current_span("fetch"):
            await asyncio.sleep(0)
        return a

    class Posts(ScriptedLM):
        def complete(self, request: Any) -> Any:
            with tracer.start_as_current_span("POST"):
                return super().complete(request)

        async def acomplete(self, request: Any) -> Any:
            return self.complete(request)

        def stream(self, request: Any) -> Any:
            yield self.complete(request)

        async def astream(self, request: Any) -> Any:
            yield self.complete(request)

    turn = [{"name": name, "args": {"a": k}} for k in range(2) for name in ("looks", "asks")]
    agent = ReAct("task -> answer", [looks, asks], native=True)
    configured = {"lm": Posts([turn, DONE]), "allow_tool_async_sync_conversion": True}
    with context(callbacks=[sent.observer], **configured), tracer.start_as_current_span("request"):
        carry(agent, driver, task="x")
    chat, query, fetch = (
        ["chat scripted", "POST"],
        ["execute_tool looks", "query"],
        ["execute_tool asks", "fetch"],
    )
    [[request, [run, *below]]] = sent.tree()
    assert (request, run) == ("request", "invoke_agent ReAct")
    assert sorted(below) == sorted([chat, query, query, fetch, fetch, chat])


def test_runs_of_a_batch_are_each_below_the_caller(sent: Sent) -> None:
    """In threads and in tasks, and the caller's own span is current again after each."""
    tracer = sent.provider.get_tracer("mine")
    program = Predict("question -> answer")
    lm = ScriptedLM(["[[ ## answer ## ]]\nx"] * 8)
    items = [{"question": str(k)} for k in range(4)]
    with context(callbacks=[sent.observer], lm=lm), tracer.start_as_current_span("mine") as mine:
        program.batch(items)
        assert trace.get_current_span() is mine
        asyncio.run(program.abatch(items))
        assert trace.get_current_span() is mine
    assert sent.tree() == [["mine", *[["invoke_agent Predict", "chat scripted"]] * 8]]


@pytest.mark.parametrize("driver", ["stream", "astream"])
def test_a_stream_that_is_left_early_ends_its_spans(sent: Sent, driver: str) -> None:
    """And leaves the reader's context as it was."""

    def works(number: int) -> int:
        """Work, from the second call on until the run is cancelled."""
        while number and not is_cancelled():
            time.sleep(0.001)
        return number

    agent = ReAct("task -> answer", [works], native=True)
    script = [{"name": "works", "args": {"number": number}} for number in (0, 1)]
    with context(callbacks=[sent.observer], lm=ScriptedLM([*script, DONE])):
        before = otel_context.get_current()
        if driver == "stream":
            with agent.stream(task="x") as stream:
                for event in stream:
                    assert otel_context.get_current() is before
                    if isinstance(event, events.CallFinished):
                        break
        else:

            async def leave() -> None:
                async with agent.astream(task="x") as stream:
                    async for event in stream:
                        assert otel_context.get_current() is before
                        if isinstance(event, events.CallFinished):
                            break

            asyncio.run(leave())
        assert otel_context.get_current() is before
    [run] = [span for span in sent.spans if span.name == "invoke_agent ReAct"]
    assert run.attributes["ferrule.run.status"] == "cancelled"
    assert all(
        span.parent is None or span.parent.span_id == run.context.span_id for span in sent.spans
    )


def test_a_cancelled_task_ends_its_spans(sent: Sent) -> None:
    """With the status cancelled, and nothing is left open."""

    async def hangs() -> str:
        """Hang."""
        asyncio.get_running_loop().call_soon(task.cancel)
        await asyncio.sleep(60)
        return ""

    async def main() -> None:
        nonlocal task
        agent = ReAct("task -> answer", [hangs], native=True)
        task = asyncio.ensure_future(agent.acall(task="x"))
        with pytest.raises(asyncio.CancelledError):
            await task

    task: Any = None
    with context(callbacks=[sent.observer], lm=ScriptedLM([{"name": "hangs", "args": {}}])):
        asyncio.run(main())
    assert sent.one("invoke_agent ReAct").attributes["ferrule.run.status"] == "cancelled"
    assert {
        name: sent.one(name).status.status_code.name
        for name in ("invoke_agent ReAct", "execute_tool hangs")
    } == {"invoke_agent ReAct": "ERROR", "execute_tool hangs": "ERROR"}
    assert not sent.observer._spans.programs


def test_a_coroutine_that_is_never_finished_leaves_no_context_behind(sent: Sent) -> None:
    """It may be collected anywhere."""

    async def never() -> str:
        """Never end."""
        await asyncio.sleep(3600)
        return ""

    agent = ReAct("task -> answer", [never], native=True)
    with context(callbacks=[sent.observer], lm=ScriptedLM([{"name": "never", "args": {}}])):
        loop = asyncio.new_event_loop()
        task = loop.create_task(agent.acall(task="x"))
        for _ in range(50):
            loop.run_until_complete(asyncio.sleep(0))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.close()
        del task
        gc.collect()
    assert not sent.observer._spans.programs


@pytest.mark.skipif(
    sys.gettrace() is not None,
    reason="what `scripts/coverage.sh` keeps would be counted",
)
@pytest.mark.parametrize(
    ("runs", "most_objects"),
    [(300, 25), pytest.param(10_000, 250, marks=pytest.mark.long)],
)
def test_thousands_of_runs_leave_nothing_behind(sent: Sent, runs: int, most_objects: int) -> None:
    """No open span, no object, no series of a metric and no log line for each; also of failed,
    async and abandoned runs.
    """
    agent = ReAct("task -> answer", [add, bad], native=True)

    def answer(request: Any) -> Any:
        number = int(re.findall(r"\d+", request.messages[1].text)[-1])
        if request.messages[-1].role == "tool":
            return ToolCall(name="finish", args={"answer": f"answer {number}"}, id=f"f{number}")
        if number % 10 == 3:
            raise RateLimitError(f"limit of {number}")
        name = ("add", "bad", f"unknown{number}")[number % 3]
        return ToolCall(
            name=name,
            args={"a": number, "b": number} if name == "add" else {},
            id=f"c{number}",
        )

    def by(request: Any) -> Response:
        return Response("", (answer(request),))

    async def some(numbers: range) -> None:
        await asyncio.gather(
            *(agent.astart(task=f"task {number}", run_id=f"run-{number}") for number in numbers),
        )

    def run(numbers: range) -> int:
        for start in numbers[::10]:
            asyncio.run(some(range(start, start + 4)))
            for number in range(start + 4, start + 9):
                agent.start(task=f"task {number}", run_id=f"run-{number}")
            with agent.stream(task=f"task {start + 9}", run_id=f"run-{start + 9}") as stream:
                next(iter(stream))
            sent.exporter.clear()
        gc.collect()
        return len(gc.get_objects())

    with context(callbacks=[sent.observer], lm=ScriptedLM(by=by)):
        before = run(range(runs // 10))
        middle = run(range(runs // 10, runs // 2))
        after = run(range(runs // 2, runs))
    # What other threads of this process make comes once; what runs leave behind comes twice.
    assert min(middle - before, after - middle) < most_objects
    assert not sent.observer._spans.programs
    assert sum(map(len, sent.points().values())) <= 30


# -- when nobody listens


def test_a_run_that_is_not_sampled_costs_no_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is rendered for a span that is not recorded, and no span is made inside it."""
    sent = Sent(sampler=ALWAYS_OFF, content=True)
    from ferrule.telemetry.otel import observer

    for name in ("about_request", "about_answer", "about_usage"):
        monkeypatch.setattr(
            observer,
            name,
            lambda *_: pytest.fail("not for a span that is not recorded"),
        )
    monkeypatch.setattr(
        observer.ContentAttributes,
        "value",
        lambda *_: pytest.fail("not for a span that is not recorded"),
    )
    with context(callbacks=[sent.observer], lm=ScriptedLM([ADD, DONE])):
        assert ReAct("task -> answer", [add], native=True)(task="x").answer == "yes"
    assert sent.spans == []
    assert sum(point.count for point in sent.points()["gen_ai.client.operation.duration"]) == 2


def test_of_a_run_that_is_not_sampled_no_events_of_model_calls_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without metrics there is no use for them.

    What a later segment of the run needs is sent: since when a question waits.
    """
    seen: list[str] = []
    receive = OTel.__call__
    monkeypatch.setattr(
        OTel,
        "__call__",
        lambda self, event: (seen.append(event.type), receive(self, event)),
    )

    @tool(require_confirmation=True)
    def pay(euros: int) -> str:
        """Pay."""
        return "paid"

    script = ScriptedLM([ADD, PAY, DONE])
    with context(callbacks=[OTel(tracer_provider=TracerProvider(sampler=ALWAYS_OFF))], lm=script):
        run = ReAct("task -> answer", [add, pay], native=True).start(task="x")
        assert json.loads(run.notes["asked_at"]).keys() == {run.pending[0].id}
        run.answer(run.pending[0].approve())
        run.resume()
    assert run.status == "done"
    assert json.loads(run.notes["asked_at"]) == {}
    assert seen == [
        "CallStarted",
        "CallFinished",
        "QuestionAsked",
        "RunFinished",
        "Decided",
        "CallStarted",
        "CallFinished",
        "RunFinished",
    ]


def test_without_an_sdk_runs_are_not_observed() -> None:
    """An observer without a listener costs a run nothing."""
    code = """
import sys
from ferrule import OTel, Predict, context
from ferrule.testing import ScriptedLM
observer = OTel()
observer.__class__.__call__ = lambda *_: sys.exit("observed")
with context(callbacks=[observer], lm=ScriptedLM(["[[ ## answer ## ]]\\nx"])):
    run = Predict("question -> answer").start(question="x")
assert run.status == "done" and run.tell is None, run.error
assert not [name for name in sys.modules if name.startswith("opentelemetry.sdk")]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_api_an_error_says_what_to_install() -> None:
    """And `import ferrule` loads none of it."""
    code = """
import sys
import ferrule
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
sys.modules["opentelemetry"] = None
ferrule.OTel
try:
    ferrule.OTel()
except ferrule.errors.ConfigurationError as error:
    assert "pip install 'ferrule[otel]'" in str(error), error
else:
    sys.exit("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_providers_are_the_global_ones_when_the_first_run_starts() -> None:
    """An observer may be configured before the SDK."""
    code = """
from ferrule import OTel, Predict, configure
from ferrule.testing import ScriptedLM
configure(callbacks=[OTel()], lm=ScriptedLM(["[[ ## answer ## ]]\\nx"]))
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
Predict("question -> answer")(question="x")
assert [span.name for span in exporter.get_finished_spans()] == ["chat scripted", "invoke_agent Predict"]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_sdk_that_comes_after_the_first_run_is_used_by_the_next() -> None:
    """A run before it, such as that of a warm-up, does not turn the observer off."""
    code = """
from ferrule import OTel, Predict, configure
from ferrule.testing import ScriptedLM
configure(callbacks=[OTel()], lm=ScriptedLM(["[[ ## answer ## ]]\\nx"] * 2))
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
Predict("question -> answer")(question="x")
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
Predict("question -> answer")(question="x")
assert [span.name for span in exporter.get_finished_spans()] == ["chat scripted", "invoke_agent Predict"]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_two_first_runs_in_two_threads_set_the_observer_up_once(sent: Sent) -> None:
    """Else spans of one of them would be lost."""
    taken: list[str] = []

    def answer(request: Any) -> Response:
        return Response("[[ ## answer ## ]]\nx")

    def run() -> None:
        with context(callbacks=[observer], lm=ScriptedLM(by=answer)):
            Predict("question -> answer")(question="x")

    class Slow(TracerProvider):
        def get_tracer(self, *about: Any, **more: Any) -> Any:
            taken.append(threading.current_thread().name)
            if len(taken) == 1:
                other.start()
                other.join(0.2)  # it comes to the same place, and waits there
            return sent.provider.get_tracer(*about, **more)

    other = threading.Thread(target=run)
    observer = OTel(tracer_provider=Slow())
    run()
    other.join()
    assert len(taken) == 1
    assert sorted(map(str, sent.tree())) == ["['invoke_agent Predict', 'chat scripted']"] * 2


@pytest.mark.parametrize("broken", ["on_start", "on_end"])
def test_a_broken_listener_changes_no_run(
    sent: Sent,
    broken: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What the SDK raises stops at the wall of the observers."""

    class Broken:
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            if broken == "on_start":
                raise RuntimeError("full")

        def on_end(self, span: Any) -> None:
            if broken == "on_end":
                raise RuntimeError("full")

        def _on_ending(self, span: Any) -> None: ...
        def shutdown(self) -> None: ...
        def force_flush(self, timeout_millis: int = 30000) -> bool:
            return True

    sent.provider.add_span_processor(Broken())
    with warnings.catch_warnings(), context(callbacks=[sent.observer], lm=ScriptedLM([ADD, DONE])):
        warnings.simplefilter("ignore", RuntimeWarning)
        run = ReAct("task -> answer", [add], native=True).start(task="x")
    assert (run.status, run.prediction.answer) == ("done", "yes")
    caplog.clear()


def test_a_broken_exporter_changes_no_run(sent: Sent, caplog: pytest.LogCaptureFixture) -> None:
    """That is the SDK's business."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

    class Broken(SpanExporter):
        def export(self, spans: Any) -> Any:
            raise RuntimeError("down")

        def shutdown(self) -> None: ...

    sent.provider.add_span_processor(SimpleSpanProcessor(Broken()))
    with (
        caplog.at_level(logging.CRITICAL),
        context(callbacks=[sent.observer], lm=ScriptedLM([ADD, DONE])),
    ):
        assert ReAct("task -> answer", [add], native=True)(task="x").answer == "yes"
    caplog.clear()


def test_wrong_options_are_refused() -> None:
    for options in ({"names": "1.36.0"}, {"messages": "some"}):
        with pytest.raises(ConfigurationError, match="of `OTel` is one of"):
            OTel(**options)
    wrong: dict[str, Any] = {"contents": True}
    with pytest.raises(
        ConfigurationError,
        match=r"`OTel` has no option `contents`. Did you mean `content`\?",
    ):
        OTel(**wrong)


def test_ferrule_without_its_metadata_and_providers_that_fail_change_no_run(
    monkeypatch: pytest.MonkeyPatch,
    sent: Sent,
) -> None:
    """A program that was made one file of has no metadata, and each of its runs failed."""
    import importlib.metadata

    def is_gone(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", is_gone)
    with context(
        callbacks=[OTel(tracer_provider=sent.provider)],
        lm=ScriptedLM(["[[ ## answer ## ]]\nRome"]),
    ):
        Predict("question -> answer")(question="q")
    assert len(sent.spans) == 2

    class Broken:
        def get_tracer(self, *_: Any) -> Any:
            raise RuntimeError("no tracer")

    lm = ScriptedLM(["[[ ## answer ## ]]\nRome"])
    with (
        context(callbacks=[OTel(tracer_provider=Broken())], lm=lm),
        pytest.warns(RuntimeWarning, match="no tracer"),
    ):
        assert Predict("question -> answer")(question="q").answer == "Rome"


@pytest.mark.parametrize("driver", ["sync", "stream"])
def test_a_call_that_the_models_provider_ran_is_a_span_inside_that_of_the_model(driver):
    found = ProviderCall("web_search", {"query": "x"}, "a page", id="ws_1")
    failed = ProviderCall("web_search", {"query": "y"}, "no luck", is_error=True, id="ws_2")
    answer = Response("yes", usage=Usage(1, 1, calls=1), provider_calls=(found, failed))
    sent = Sent(content=True)
    program = Predict("question -> answer", tools=[WebSearch()], lm=ScriptedLM([answer]))
    with context(callbacks=[sent.observer]):
        if driver == "sync":
            program(question="?")
        else:
            list(program.stream(question="?"))
    searches = ["execute_tool web_search"] * 2
    assert sent.tree() == [["invoke_agent Predict", ["chat scripted", *searches]]]
    first, second = [span for span in sent.spans if span.name == "execute_tool web_search"]
    attributes = dict(first.attributes)
    assert attributes["gen_ai.tool.name"] == "web_search"
    assert attributes["gen_ai.tool.type"] == "extension"
    assert attributes["gen_ai.tool.call.id"] == "ws_1"
    assert json.loads(attributes["gen_ai.tool.call.arguments"]) == {"query": "x"}
    assert first.status.status_code is StatusCode.UNSET
    assert second.status.status_code is StatusCode.ERROR
