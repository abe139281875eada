"""Usage is what limits count: the tokens that a run shows are those that its limits compare."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_script import native_step

from ferrule import (
    BaseLM,
    Context,
    EventStream,
    FallbackLM,
    Limits,
    MemoryStore,
    Module,
    Predict,
    Prediction,
    Prices,
    ReAct,
    Request,
    Response,
    Run,
    SQLiteStore,
    Tool,
    ToolStop,
    Usage,
    context,
    events,
    tool,
)
from ferrule.errors import LimitReachedError, RateLimitError, UnavailableError
from ferrule.testing import ScriptedLM
from ferrule.values.conversation.exchange import Delta

OUTER = Usage(10, 1, 0, 1)
INNER = Usage(900, 100, 0, 1)


def _answer(request: Any) -> Any:
    """The outer agent calls its tool, and finishes; a program inside answers with more tokens."""
    if not request.tools:
        text = "[[ ## answer ## ]]\n42\n\n[[ ## completed ## ]]"
        return Response(text, usage=INNER, cost=0.5, model="large")
    name, args = "finish", {"answer": "a"}
    if request.messages[-1].role != "tool":
        name, args = request.tools[0]["function"]["name"], {}
    calls = native_step("t", name, args).tool_calls
    return Response("", calls, usage=OUTER, cost=0.1, model="small")


@pytest.fixture(autouse=True)
def _lm() -> Any:
    with context(lm=ScriptedLM(by=_answer)):
        yield


inner = Predict("question -> answer")


def agent(function: Callable[..., Any], **keywords: Any) -> ReAct:
    return ReAct("question -> answer", [Tool(function, "work", "Work.")], native=True, **keywords)


def calls() -> str:
    return inner(question="1").answer


async def acalls() -> str:
    return (await inner.acall(question="1")).answer


def starts() -> str:
    return inner.start(question="1").prediction.answer


def streams() -> str:
    stream = inner.stream(question="1")
    for _ in stream:
        pass
    return stream.prediction.answer


def fails() -> str:
    inner(question="1")
    raise ValueError("after it")


def has_the_answer_thrown_away() -> str:
    agent(calls)(question="2")
    return "x"


def runs_a_batch() -> str:
    inner.batch([{"question": "1"}, {"question": "2"}], progress=False)
    return "x"


def runs_a_forward() -> str:
    class Twice(Module):
        def __init__(self) -> None:
            self.inner = inner

        def forward(self) -> Prediction:
            return Prediction(answers=[inner(question=each).answer for each in "12"])

    Twice()()
    return "x"


def calls_a_tool() -> str:
    """A tool that is called directly is a part of the call."""
    return Tool(calls, "helper")()


FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "call": (calls, 1, 0),
    "async call": (acalls, 1, 0),
    "start": (starts, 1, 0),
    "stream": (streams, 1, 0),
    "failing": (fails, 1, 0),
    "agent": (has_the_answer_thrown_away, 1, 2),
    "batch": (runs_a_batch, 2, 0),
    "forward": (runs_a_forward, 2, 0),
    "tool": (calls_a_tool, 1, 0),
}
"""What a tool's function does, and how often it asks `large` and `small`."""


def _runs(program: ReAct, **options: Any) -> list[Run]:
    return [
        program.start(question="q", **options),
        asyncio.run(program.astart(question="q", **options)),
    ]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_programs_that_a_function_calls_count_in_the_usage(name: str) -> None:
    function, larges, smalls = FUNCTIONS[name]
    for run in _runs(agent(function)):
        smalls_of_run = smalls + 2
        assert run.prediction.usage == run.usage
        assert run.usage.by_model == {
            "large": Usage(900 * larges, 100 * larges, 0, larges, cost=0.5 * larges),
            "small": Usage(
                10 * smalls_of_run,
                1 * smalls_of_run,
                0,
                smalls_of_run,
                cost=pytest.approx(0.1 * smalls_of_run),
            ),
        }
        assert run.usage.cost == pytest.approx(0.5 * larges + 0.1 * smalls_of_run)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_limit_has_counted_what_the_usage_shows(name: str) -> None:
    function, *_ = FUNCTIONS[name]
    for run in _runs(agent(function, limits=Limits(tokens=500))):
        assert isinstance(run.error, LimitReachedError)
        assert run.root is None
        assert run.error.usage == run.usage
        assert run.usage.total_tokens > 500


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_resumed_run_counts_what_was_spent_before(name: str, tmp_path: Path) -> None:
    """The journal has it, so that limits hold in another process."""
    function, *_ = FUNCTIONS[name]
    store = SQLiteStore(tmp_path / "runs.db")
    program = agent(function, limits=Limits(tokens=500))
    with store:
        run = program.start(question="q", store=store)
        again = Run.load(store, run.id, agent(function))
        assert again.usage == run.usage
        assert again.usage.by_model == run.usage.by_model
        tokens = run.usage.total_tokens
        again.resume(limits=Limits(tokens=tokens))
        assert isinstance(again.error, LimitReachedError)
        assert again.usage == run.usage
        assert again.resume(limits=Limits(tokens=tokens + 1)).status == "done"
        assert store.summary(run.id).usage == again.usage


def test_a_transactional_tool_counts_too(tmp_path: Path) -> None:
    @tool(effect="transactional")
    def work(ctx: Context) -> str:
        """Work."""
        ctx.db.execute("create table if not exists t (x)")
        return inner(question="1").answer

    program = ReAct("question -> answer", [work], native=True)
    with SQLiteStore(tmp_path / "runs.db") as store:
        for run in _runs(program, store=store):
            assert run.usage.total_tokens == 22 + 1_000
            assert Run.load(store, run.id, program).usage == run.usage


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_call_that_ends_the_run_has_spent_it_too(is_async: bool) -> None:
    def stops() -> str:
        inner(question="1")
        raise ToolStop("enough")

    sync_run, async_run = _runs(agent(stops))
    run = async_run if is_async else sync_run
    assert (run.status, run.usage.total_tokens) == ("failed", 11 + 1_000)


def test_a_cancelled_call_has_spent_it_too() -> None:
    async def is_cancelled() -> str:
        await inner.acall(question="1")
        asyncio.current_task().cancel()
        await asyncio.sleep(0)
        return "x"

    store = MemoryStore()
    program = agent(is_cancelled)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(program.astart(question="q", store=store, run_id="r"))
    run = Run.load(store, "r", program)
    assert (run.status, run.usage.total_tokens) == ("cancelled", 11 + 1_000)


def test_a_run_that_fails_inside_has_spent_what_it_asked_for() -> None:
    class Fails(Module):
        def forward(self) -> Prediction:
            inner(question="1")
            raise RateLimitError("slow down")

    def calls_it() -> str:
        Fails()()
        return "x"

    run = agent(calls_it).start(question="q")
    assert run.prediction.trajectory.steps[0].results[0].is_error
    assert run.usage.total_tokens == 22 + 1_000


def test_a_run_that_is_resumed_inside_a_call_counts_once() -> None:
    """Its recorded answers are replayed, not paid for again."""
    asks = ReAct(
        "question -> answer", [Tool(lambda: "ok", "pay", require_confirmation=True)], native=True
    )

    def resumes() -> str:
        run = asks.start(question="q")
        run.answer(run.pending[0].approve())
        return run.resume().prediction.answer

    program = agent(resumes, limits=Limits(tokens=44))
    run = program.start(question="q")
    assert (run.status, run.usage) == ("done", Usage(40, 4, 0, 4, cost=0.4))


def test_a_program_inside_has_the_usage_of_its_own_part() -> None:
    """And what a program inside a tool's function spent is in that of the program around it."""
    worker = ReAct("question -> answer", [Tool(calls, "look", "Look.")], native=True)

    class Outer(Module):
        def __init__(self) -> None:
            self.worker = worker

        def forward(self) -> Prediction:
            first = self.worker(question="1")
            second = inner(question="2")
            return Prediction(spent=[first.usage.total_tokens, second.usage.total_tokens])

    prediction = Outer()()
    assert prediction.spent == [22 + 1_000, 1_000]
    assert prediction.usage.total_tokens == 22 + 2_000


# -- requests that were cut off


SO_FAR = Response(None, usage=Usage(40, 2), model="claude", cost=0.25)
CUT_OFF = Usage(40, 2, 0, 1, cost=0.25)
"""The usage of one request that was cut off."""


class CutOff(BaseLM):
    """Streams a piece that says what it has cost so far; then the stream breaks, or waits."""

    name = "test/cut-off"

    def __init__(self, *, breaks: int = 1, so_far: Response = SO_FAR) -> None:
        self.breaks, self.so_far = breaks, so_far

    def complete(self, request: Request) -> Response:
        return Response("[[ ## answer ## ]]\n42\n\n[[ ## completed ## ]]", usage=INNER, cost=0.5)

    def stream(self, request: Request) -> Any:
        yield Delta("[[ ## ans")
        yield Delta("wer ## ]]", so_far=self.so_far)
        self.breaks -= 1
        if self.breaks >= 0:
            raise UnavailableError("the line broke")
        yield self.complete(request)

    async def astream(self, request: Request) -> Any:
        yield Delta("[[ ## answer ## ]]\nhello", so_far=self.so_far)
        await asyncio.Event().wait()
        yield self.complete(request)


def _broken(program: Any, **options: Any) -> Run:
    stream = program.stream(question="q", **options)
    with pytest.raises(UnavailableError):
        list(stream)
    return stream.run


def test_a_stream_that_breaks_off_counts_what_is_known() -> None:
    store = MemoryStore()
    with context(lm=CutOff(breaks=2)):
        run = _broken(inner, store=store)
        assert (run.usage, run.usage.by_model) == (CUT_OFF, {"claude": CUT_OFF})
        again = Run.load(store, run.id, inner)
        with pytest.raises(UnavailableError):  # in another process, and at the same place
            list(EventStream(again))
        assert again.usage == Usage(80, 4, 0, 2, cost=0.5)
        list(EventStream(again))
    assert again.prediction.usage == Usage(980, 104, 0, 3, cost=1.0)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_limits_count_what_is_known_of_it(is_loaded: bool) -> None:
    store = MemoryStore()
    with context(lm=CutOff(), limits=Limits(tokens=42)):
        run = _broken(inner, store=store)
        if is_loaded:
            run = Run.load(store, run.id, inner)
        assert isinstance(run.resume().error, LimitReachedError)
        assert run.usage == CUT_OFF


def test_a_reader_that_leaves_in_mid_answer_has_spent_it_too() -> None:
    async def leave() -> Run:
        stream = inner.astream(question="q")
        async for event in stream:
            if isinstance(event, events.FieldDelta):
                break
        await stream.aclose()
        return stream.run

    with context(lm=CutOff()):
        run = asyncio.run(leave())
    assert (run.status, run.usage) == ("cancelled", CUT_OFF)


def test_its_cost_is_computed_if_the_provider_sends_none() -> None:
    so_far = Response(None, usage=Usage(1_000, 0), model="claude")
    prices = Prices(extra={"claude": (2.0, 8.0), "test/cut-off": (2.0, 8.0)})
    with context(lm=CutOff(so_far=so_far), prices=prices):
        assert _broken(inner).cost == 0.002


def test_the_model_behind_a_fallback_is_named() -> None:
    so_far = Response(None, usage=Usage(40, 2))
    lm = FallbackLM([ScriptedLM([UnavailableError("down")]), CutOff(so_far=so_far)])
    with context(lm=lm):
        assert list(_broken(inner).usage.by_model) == ["test/cut-off"]


def test_it_counts_in_the_usage_of_a_program_around_it() -> None:
    class Tries(Module):
        def __init__(self) -> None:
            self.inner = inner

        def forward(self, question: str) -> Prediction:
            try:
                self.inner(question=question)
            except UnavailableError:
                return Prediction(answer="none")
            raise AssertionError

    with context(lm=CutOff()):
        stream = Tries().stream(question="q")
        list(stream)
    assert stream.prediction.usage == CUT_OFF


def test_an_answer_counts_as_a_call_whatever_its_model_counts() -> None:
    """A scripted `Response` with a usage of its own was no call."""
    answer = "[[ ## answer ## ]]\n42\n\n[[ ## completed ## ]]"
    lm = ScriptedLM([Response(answer, usage=Usage(10, 5)), Response(answer)])
    assert inner(question="q", lm=lm).usage == Usage(10, 5, 0, 1)
    assert inner(question="q", lm=lm).usage == Usage(calls=1)
