"""Batches through a provider's batch API: what is sent, what comes back, and what is never sent
twice.
"""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest
from batch_server import Batch, BatchProvider, answer_of, batch_server

from ferrule import (
    LM,
    AdapterParseError,
    ChainOfThought,
    FallbackLM,
    Limits,
    MemoryStore,
    Message,
    Messages,
    Module,
    Predict,
    Prices,
    ReAct,
    RemoteMCP,
    Request,
    context,
)
from ferrule.errors import (
    BadRequestError,
    ConfigurationError,
    LimitReachedError,
    LMError,
    UnavailableError,
)
from ferrule.models.batches import BatchRequest
from ferrule.testing import ScriptedLM

WIRES = {
    "openai_chat": ("openai/gpt-5-mini", {}),
    "openai_responses": ("openai/gpt-5-mini", {"wire": "openai_responses"}),
    "anthropic": ("anthropic/claude-sonnet-4-5", {}),
}


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> str:
    return request.param


def model(url: str, wire: str = "openai_chat", **settings: Any) -> LM:
    name, options = WIRES[wire]
    return LM(name, base_url=url, api_key="k", max_retries=0, **options, **settings)


def questions(count: int) -> list[dict[str, Any]]:
    return [{"question": f"What is {number} x 7?"} for number in range(count)]


def run_batch(lm: Any, count: int = 5, **options: Any) -> Any:
    options = {"via": "provider", "poll_s": 0.01, "progress": False, **options}
    return Predict("question -> answer: int", lm=lm).batch(questions(count), **options)


def answers(results: Any) -> list[Any]:
    return [getattr(result, "answer", type(result)) for result in results]


def assert_nothing_sent_twice(provider: BatchProvider) -> None:
    assert set(provider.taken.values()) <= {1}


# -- sending and collecting


def test_one_batch_answers_all_items_at_half_the_price(wire):
    provider = BatchProvider()
    with batch_server(provider) as url, context(prices=Prices()):
        results = run_batch(model(url, wire))
        [whole] = [result.cost for result in results[:1]]
    assert answers(results) == [0, 7, 14, 21, 28]
    assert provider.creations == 1
    assert sum(provider.taken.values()) == 5
    full = {"anthropic": 1000 * 3e-6 + 500 * 15e-6}.get(wire, 1000 * 0.25e-6 + 500 * 2e-6)
    assert whole == pytest.approx(full / 2)
    assert results.cost == pytest.approx(5 * full / 2)


def test_a_batch_names_the_unreleased_features_of_its_requests():
    question = Messages([Message("user", "What is 1 x 7?")])
    server = RemoteMCP(label="docs", url="https://mcp.example")
    provider = BatchProvider()
    with batch_server(provider) as url:
        lm = model(url, "anthropic")
        sent = lm.rendered_for_batch(Request(question, provider_tools=(server,)))
        plain = lm.rendered_for_batch(Request(question))
        requests = [BatchRequest("a", *sent), BatchRequest("b", *plain)]
        lm.batch_api().submit(requests, "key")
    assert plain.headers == {}
    assert [headers["anthropic-beta"] for headers in provider.headers] == ["mcp-client-2025-11-20"]


def test_own_prices_are_halved_too():
    with (
        batch_server(BatchProvider()) as url,
        context(prices=Prices(extra={"gpt-5-mini": (1.0, 2.0)})),
    ):
        assert run_batch(model(url), 1).cost == pytest.approx((1000 * 1.0 + 500 * 2.0) / 2e6)


def test_an_async_batch_goes_the_same_way(wire):
    provider = BatchProvider()

    async def main(url: str) -> Any:
        program = Predict("question -> answer: int", lm=model(url, wire))
        return await program.abatch(questions(3), via="provider", poll_s=0.01, progress=False)

    with batch_server(provider) as url:
        assert answers(asyncio.run(main(url))) == [0, 7, 14]


def test_repairs_go_into_the_next_batch(wire):
    spoiled: set[str] = set()

    def answer(prompt: str) -> str:
        number = re.findall(r"What is (\d+) x 7", prompt)[-1]
        if int(number) % 2 and number not in spoiled:
            spoiled.add(number)
            return "[[ ## answer ## ]]\nseven"
        return answer_of(prompt)

    provider = BatchProvider(answer)
    with batch_server(provider) as url:
        results = run_batch(model(url, wire))
    assert answers(results) == [0, 7, 14, 21, 28]
    assert [len(batch.requests) for batch in provider.batches] == [2, 5]
    assert results.usage.calls == 7


def test_reasoning_first_is_one_request():
    def answer(prompt: str) -> str:
        return f"[[ ## reasoning ## ]]\nEasy.\n\n{answer_of(prompt)}"

    with batch_server(BatchProvider(answer)) as url:
        program = ChainOfThought("question -> answer: int", lm=model(url))
        results = program.batch(questions(2), via="provider", poll_s=0.01, progress=False)
    assert answers(results) == [0, 7]


def test_a_batch_larger_than_the_provider_takes_is_split(monkeypatch):
    monkeypatch.setattr("ferrule.models.batches.OpenAIBatches.most_requests", 2)
    provider = BatchProvider()
    with batch_server(provider) as url:
        assert answers(run_batch(model(url))) == [0, 7, 14, 21, 28]
    assert sorted(len(batch.requests) for batch in provider.batches) == [1, 2, 2]


def test_results_are_handed_over_as_they_come_and_observers_see_each_call():
    seen: list[Any] = []
    kinds: list[str] = []
    with (
        batch_server(BatchProvider()) as url,
        context(callbacks=[lambda event: kinds.append(type(event).__name__)]),
    ):
        run_batch(
            model(url), 3, on_result=lambda index, result: seen.append((index, result.answer))
        )
    assert sorted(seen) == [(0, 0), (1, 7), (2, 14)]
    assert (kinds.count("ModelCalled"), kinds.count("ModelAnswered")) == (3, 3)


# -- what is refused before anything is sent


class Own(Module):
    def __init__(self) -> None:
        self.step = Predict("question -> answer")

    def forward(self, question: str) -> Any:
        return self.step(question=question)


class OwnFlow(Predict):
    def flow(self, /, **inputs: Any) -> Any:
        yield from super().flow(**inputs)
        return (yield from super().flow(**inputs))


def look_up(word: str) -> str:
    """Look a word up."""
    return word


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (ReAct("question -> answer", [look_up]), "one after another"),
        (Predict("question -> answer", tools=[look_up]), "tools lead to several requests"),
        (Predict("question -> answer", n=3), "several answers"),
        (Own(), "one after another"),
        (OwnFlow("question -> answer"), "one after another"),
        (ChainOfThought("question -> answer", tools=[look_up]), "tools lead to several"),
    ],
    ids=["ReAct", "tools", "n", "forward", "flow", "ChainOfThought with tools"],
)
def test_programs_of_several_requests_are_refused(program, reason):
    provider = BatchProvider()
    with (
        batch_server(provider) as url,
        context(lm=model(url)),
        pytest.raises(ConfigurationError, match=reason),
    ):
        program.batch(questions(2), via="provider", progress=False)
    assert (provider.files, provider.creations) == ({}, 0)


@pytest.mark.parametrize(
    "lm",
    [
        ScriptedLM([]),
        LM("http://localhost:1/v1", model="own"),
        LM("groq/llama", api_key="k"),
        LM("anthropic/claude-sonnet-4-5", wire="openai_chat", api_key="k"),
        FallbackLM([LM("openai/gpt-5-mini", api_key="k"), ScriptedLM([])]),
    ],
    ids=["scripted", "own server", "groq", "another wire", "fallback"],
)
def test_models_without_a_known_batch_api_are_refused(lm):
    with pytest.raises(ConfigurationError, match="needs a model whose provider has a batch API"):
        run_batch(lm)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 3},
        {"max_concurrency": 3},
        {"poll_s": 0},
        {"poll_s": "1"},
        {"via": "post"},
        {"via": None, "poll_s": 1},
    ],
    ids=str,
)
def test_options_that_do_not_go_with_it_are_refused(options):
    provider = BatchProvider()
    with batch_server(provider) as url, pytest.raises(ConfigurationError):
        run_batch(model(url), **options)
    assert provider.creations == 0


def test_a_batch_inside_a_run_is_refused():
    class Outer(Module):
        def forward(self) -> Any:
            return run_batch(LM("openai/gpt-5-mini", api_key="k"))

    with pytest.raises(ConfigurationError, match="inside a run"):
        Outer()()


# -- errors


class Spoils(BatchProvider):
    """Answers the request for 1 x 7 as told."""

    def __init__(self, line: dict[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self.line = line

    def openai_line(self, batch: Batch, request_id: str, body: dict[str, Any]) -> Any:
        if "What is 1 x" in str(body):
            return True, {"id": "x", "custom_id": request_id, **self.line}
        return super().openai_line(batch, request_id, body)

    def anthropic_line(self, request_id: str, body: dict[str, Any]) -> Any:
        if "What is 1 x" in str(body):
            return {"custom_id": request_id, "result": self.line}
        return super().anthropic_line(request_id, body)


_REFUSED = {"error": {"message": "content is odd", "type": "invalid_request_error"}}
ERRORS = {
    "refused": (
        "openai_chat",
        {"response": {"status_code": 400, "body": _REFUSED}, "error": None},
        BadRequestError,
    ),
    "limited": (
        "openai_chat",
        {"response": {"status_code": 429, "body": {"error": {"message": "slow down"}}}},
        UnavailableError,
    ),
    "expired": (
        "openai_chat",
        {"response": None, "error": {"code": "batch_expired", "message": "too late"}},
        UnavailableError,
    ),
    "not an answer": (
        "openai_chat",
        {"response": {"status_code": 200, "body": [1, 2]}, "error": None},
        LMError,
    ),
    "another kind of line": ("openai_chat", {"response": 5}, UnavailableError),
    "errored": (
        "anthropic",
        {"type": "errored", "error": {"type": "error", **_REFUSED}},
        BadRequestError,
    ),
    "expired there": ("anthropic", {"type": "expired"}, UnavailableError),
    "canceled": ("anthropic", {"type": "canceled"}, UnavailableError),
    "no message": ("anthropic", {"type": "succeeded"}, LMError),
    "no type": ("anthropic", {"kind": 3}, UnavailableError),
}


@pytest.mark.parametrize("name", ERRORS)
def test_the_error_of_one_item_is_its_own(name):
    wire, line, kind = ERRORS[name]
    with batch_server(Spoils(line)) as url:
        results = run_batch(model(url, wire), 3, return_exceptions=True)
    assert answers(results)[::2] == [0, 14]
    assert isinstance(results[1], kind)


def test_a_failed_item_is_sent_again_only_when_asked_for(wire):
    lines: dict[str, Any] = {"response": {"status_code": 429, "body": {}}, "error": None}
    if wire == "anthropic":
        lines = {"type": "expired"}
    provider, store = Spoils(lines), MemoryStore()
    options = {"store": store, "batch_id": "b", "return_exceptions": True}
    with batch_server(provider) as url:
        lm = model(url, wire)
        assert isinstance(run_batch(lm, 3, **options)[1], UnavailableError)
        again = run_batch(lm, 3, **options)
        assert isinstance(again[1], Exception)
        assert provider.creations == 1
        provider.line = {}
        provider.openai_line = BatchProvider.openai_line.__get__(provider)
        provider.anthropic_line = BatchProvider.anthropic_line.__get__(provider)
        assert answers(run_batch(lm, 3, **options, retry_failed=True)) == [0, 7, 14]
    assert [len(batch.requests) for batch in provider.batches] == [1, 3]


def test_an_answer_that_no_repair_helped_is_asked_again_when_asked_for():
    is_good = threading.Event()

    def answer(prompt: str) -> str:
        return answer_of(prompt) if is_good.is_set() else "[[ ## answer ## ]]\nseven"

    provider, store = BatchProvider(answer), MemoryStore()
    options = {"store": store, "batch_id": "b", "return_exceptions": True}
    with batch_server(provider) as url:
        lm = model(url)
        assert isinstance(run_batch(lm, 1, **options)[0], AdapterParseError)
        is_good.set()
        assert answers(run_batch(lm, 1, **options, retry_failed=True)) == [0]
    assert_nothing_sent_twice(provider)


def _without_first(lines: list[bytes]) -> list[bytes]:
    return lines[1:]


def _twice(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines for _ in range(2)]


def _junk(lines: list[bytes]) -> list[bytes]:
    others = [b"", b"{", b"[]", b'{"custom_id": 5}', b"\xff", b'{"custom_id":"other"}']
    return [*others, *lines, b"null"]


@pytest.mark.parametrize(
    ("change", "missing"), [(_without_first, 1), (_twice, 0), (_junk, 0), (lambda lines: [], 3)]
)
def test_lines_that_are_missing_repeated_or_junk(wire, change, missing):
    provider = BatchProvider()
    provider.lines = change
    with batch_server(provider) as url:
        results = run_batch(model(url, wire), 3, return_exceptions=True)
    failed = [result for result in results if isinstance(result, Exception)]
    assert [type(error) for error in failed] == [UnavailableError] * missing
    for number, result in enumerate(results):
        assert isinstance(result, Exception) or result.answer == 7 * number
    assert sum(run.usage.calls for run in results.runs) == 3 - missing
    assert_nothing_sent_twice(provider)


def test_of_two_results_of_one_request_the_answer_counts_and_the_first_of_two(wire):
    """A server that answers twice, differently, and for requests that nobody made."""

    def lying(lines: list[bytes]) -> list[bytes]:
        others = [
            line.replace(b"ferrule", b"x").replace(b'custom_id": "', b'custom_id": "z')
            for line in lines
        ]
        wrong = [re.sub(rb"(answer ## \]\]\\n)\d+", rb"\g<1>999", line) for line in lines]
        error = b'{"custom_id": "%b", "error": {"message": "no"}, "result": {"type": "expired"}}'
        ids = [re.search(rb'custom_id": "([^"]+)', line)[1] for line in lines]
        return [*others, *[error % name for name in ids], *lines[::-1], *wrong]

    provider = BatchProvider()
    provider.lines = lying
    with batch_server(provider) as url:
        assert answers(run_batch(model(url, wire), 3)) == [0, 7, 14]


def test_a_batch_that_is_cancelled_on_the_providers_page_keeps_the_answers_that_it_has(wire):
    class Cancelled(BatchProvider):
        def openai_batch(self, batch: Batch) -> dict[str, Any]:
            files = {"output_file_id": f"out_{batch.id}", "error_file_id": None}
            if batch.status == "in_progress":
                files = {"output_file_id": None, "error_file_id": None}
            return {**super().openai_batch(batch), **files}

        def anthropic_line(self, request_id: str, body: dict[str, Any]) -> Any:
            if "What is 1 x" in str(body):
                return {"custom_id": request_id, "result": {"type": "canceled"}}
            return super().anthropic_line(request_id, body)

    provider = Cancelled(looks=2)
    provider.end_status = "cancelled"
    if wire != "anthropic":
        provider.lines = lambda lines: [line for line in lines if b"7\\n\\n" not in line]
    with batch_server(provider) as url:
        results = run_batch(model(url, wire), 3, return_exceptions=True)
    assert answers(results)[::2] == [0, 14]
    assert isinstance(results[1], UnavailableError)
    assert provider.creations == 1


@pytest.mark.parametrize("status", ["expired", "cancelled"])
def test_a_batch_that_ended_early_fails_what_it_did_not_answer(status):
    provider = BatchProvider()
    provider.end_status = status
    provider.lines = _without_first
    with batch_server(provider) as url:
        results = run_batch(model(url), 3, return_exceptions=True)
    failed = sum(isinstance(result, UnavailableError) for result in results)
    assert failed == (1 if status == "expired" else 3)


def test_a_batch_that_the_provider_refuses_as_a_whole_ends_the_batch_and_may_be_sent_again():
    provider, store = BatchProvider(), MemoryStore()
    provider.end_status = "failed"
    with batch_server(provider) as url:
        lm = model(url)
        with pytest.raises(BadRequestError, match="line 1 is not valid"):
            run_batch(lm, store=store, batch_id="b", return_exceptions=True)
        provider.end_status = "completed"
        assert answers(run_batch(lm, store=store, batch_id="b")) == [0, 7, 14, 21, 28]
    assert provider.creations == 2


def test_a_key_that_is_refused_ends_the_batch_and_leaves_its_items_to_a_resume():
    provider, store = BatchProvider(), MemoryStore()
    provider.fail = lambda method, path: 401
    with batch_server(provider) as url:
        lm = model(url)
        with pytest.raises(LMError) as raised:
            run_batch(lm, store=store, batch_id="b", return_exceptions=True)
        assert raised.value.status == 401
        provider.fail = lambda method, path: None
        assert answers(run_batch(lm, store=store, batch_id="b")) == [0, 7, 14, 21, 28]


def test_a_form_that_the_server_refuses_is_sent_in_the_other_form():
    class Renamed(BatchProvider):
        def openai_line(self, batch: Batch, request_id: str, body: dict[str, Any]) -> Any:
            if "max_completion_tokens" in body:
                fault = {"error": {"message": "Unsupported parameter: max_completion_tokens"}}
                response = {"status_code": 400, "body": fault}
                return True, {"custom_id": request_id, "response": response}
            return super().openai_line(batch, request_id, body)

    provider = Renamed()
    with batch_server(provider) as url:
        assert answers(run_batch(model(url, max_tokens=500), 3)) == [0, 7, 14]
    assert [len(batch.requests) for batch in provider.batches] == [3, 3]


# -- a server that fails or lies


@pytest.mark.parametrize("status", [500, 429, 0], ids=["fails", "is busy", "hangs up"])
def test_an_outage_while_a_batch_is_in_progress_is_outlived(wire, status):
    provider = BatchProvider(looks=2)
    left = [4]

    def fail(method: str, path: str) -> int | None:
        if method == "GET" and left[0]:
            left[0] -= 1
            return status
        return None

    provider.fail = fail
    with batch_server(provider) as url:
        assert answers(run_batch(model(url, wire), 2)) == [0, 7]
    assert provider.creations == 1


def test_a_batch_that_is_gone_fails_only_its_own_requests(wire, monkeypatch):
    monkeypatch.setattr("ferrule.models.batches.OpenAIBatches.most_requests", 2)
    monkeypatch.setattr("ferrule.models.batches.AnthropicBatches.most_requests", 2)
    provider = BatchProvider()
    provider.fail = lambda method, path: 404 if path.endswith("batch_1") else None
    with batch_server(provider) as url:
        results = run_batch(model(url, wire), 4, return_exceptions=True)
    assert [type(result) for result in results[:2]] == [UnavailableError] * 2
    assert answers(results)[2:] == [14, 21]


def test_an_outage_while_a_lost_submission_is_looked_for_is_outlived(wire):
    lists = {"/v1/batches": [0], "/v1/messages/batches": [0]}

    class Loses(BatchProvider):
        def take(self, requests: Any, **more: Any) -> Batch:
            super().take(requests, **more)
            if self.creations == 1:
                raise ConnectionError
            return self.batches[0]

    def fail(method: str, path: str) -> int | None:
        count = lists.get(path.partition("?")[0])
        if method != "GET" or count is None:
            return None
        count[0] += 1
        return 500 if count[0] <= 2 else None

    provider = Loses()
    provider.fail = fail
    with batch_server(provider) as url:
        assert answers(run_batch(model(url, wire), 3)) == [0, 7, 14]
    assert provider.creations == 1
    assert_nothing_sent_twice(provider)


@pytest.mark.parametrize("time", [None, "soon", -5, True, 10**30], ids=str)
def test_a_batch_of_an_unreadable_time_is_found_by_a_resumed_one(wire, time):
    class Timeless(BatchProvider):
        def openai_batch(self, batch: Batch) -> dict[str, Any]:
            return {**super().openai_batch(batch), "created_at": time}

        def anthropic_batch(self, batch: Batch) -> dict[str, Any]:
            return {**super().anthropic_batch(batch), "created_at": time}

    provider, store = Timeless(looks=10**6), MemoryStore()
    options = {"store": store, "batch_id": "b"}

    async def interrupted(lm: LM) -> None:
        items = questions(2)
        options_of_batch = {"via": "provider", "poll_s": 0.01, "progress": False, **options}
        work = asyncio.ensure_future(
            Predict("question -> answer: int", lm=lm).abatch(items, **options_of_batch)
        )
        while not provider.creations:
            await asyncio.sleep(0.01)
        work.cancel()
        await asyncio.wait([work])

    with batch_server(provider) as url:
        lm = model(url, wire)
        asyncio.run(interrupted(lm))
        provider.looks = 1
        for batch in provider.batches:
            batch.looks_left = 1
        assert answers(run_batch(lm, 2, **options)) == [0, 7]
    assert_nothing_sent_twice(provider)


def test_a_status_that_nobody_knows_is_waited_out(wire):
    class Odd(BatchProvider):
        def openai_batch(self, batch: Batch) -> dict[str, Any]:
            fields = super().openai_batch(batch)
            if batch.status == "in_progress":
                fields["status"] = {"held": "by the provider"}
            return fields

        def anthropic_batch(self, batch: Batch) -> dict[str, Any]:
            fields = super().anthropic_batch(batch)
            if batch.status == "in_progress":
                fields["processing_status"] = 7
            return fields

    with batch_server(Odd(looks=3)) as url:
        assert answers(run_batch(model(url, wire), 2)) == [0, 7]


def test_a_submission_whose_answer_was_lost_is_found_and_not_made_again(wire):
    class Loses(BatchProvider):
        def take(self, requests: Any, **more: Any) -> Batch:
            super().take(requests, **more)
            if self.creations == 1:
                raise ConnectionError
            return self.batches[0]

    provider = Loses()
    with batch_server(provider) as url:
        assert answers(run_batch(model(url, wire), 3)) == [0, 7, 14]
    assert provider.creations == 1
    assert_nothing_sent_twice(provider)


def test_a_submission_that_fails_is_made_again_and_then_given_up(wire):
    provider = BatchProvider()
    left = [2]

    def fail(method: str, path: str) -> int | None:
        if method == "POST" and path.endswith("/batches") and left[0]:
            left[0] -= 1
            return 503
        return None

    provider.fail = fail
    with batch_server(provider) as url:
        assert answers(run_batch(model(url, wire), 2)) == [0, 7]
        left[0] = 99
        with pytest.raises(UnavailableError):
            run_batch(model(url, wire), 2)
    assert left[0] == 99 - 5


def test_a_list_that_never_ends_is_left():
    class Repeats(BatchProvider):
        def listed(self, after: str | None) -> Any:
            del after
            return self.batches[:1], True

    provider, store = Repeats(), MemoryStore()
    provider.fail = lambda method, path: 401 if "/files" in path and method == "POST" else None
    with batch_server(provider) as url:
        with pytest.raises(LMError):
            run_batch(model(url), store=store, batch_id="b")
        provider.fail = lambda method, path: None
        assert answers(run_batch(model(url), store=store, batch_id="b")) == [0, 7, 14, 21, 28]


@pytest.mark.parametrize("batch_id", [None, 5, "", "../../keys", "x" * 1000])
def test_an_answer_to_a_submission_without_an_id_is_a_lost_one(batch_id):
    class Odd(BatchProvider):
        is_first = True

        def openai_batch(self, batch: Batch) -> Any:
            fields = super().openai_batch(batch)
            if self.is_first:
                self.is_first = False
                fields["id"] = batch_id
            return fields

    provider = Odd()
    with batch_server(provider) as url:
        assert answers(run_batch(model(url), 2)) == [0, 7]
    assert provider.creations == 1


# -- a resume


def test_results_that_a_killed_process_did_not_read_are_not_paid_again(wire):
    provider, store = BatchProvider(looks=10_000), MemoryStore()
    taken = threading.Event()
    provider.hook = lambda point: taken.set() if point == "created" else None

    async def main(url: str) -> None:
        program = Predict("question -> answer: int", lm=model(url, wire))
        task = asyncio.create_task(
            program.abatch(
                questions(4), via="provider", poll_s=0.01, progress=False, store=store, batch_id="b"
            )
        )
        await asyncio.to_thread(taken.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with batch_server(provider) as url:
        asyncio.run(main(url))
        provider.batches[0].looks_left = 1
        results = run_batch(model(url, wire), 4, store=store, batch_id="b")
    assert answers(results) == [0, 7, 14, 21]
    assert provider.creations == 1


def test_batches_of_others_are_left_alone(wire):
    provider, store = BatchProvider(page=2), MemoryStore()
    with batch_server(provider) as url:
        lm = model(url, wire)
        for number in range(5):
            run_batch(lm, 3, store=MemoryStore(), batch_id=f"other{number}")
        provider.fail = lambda method, path: 401 if method == "POST" else None
        with pytest.raises(LMError):
            run_batch(lm, 3, store=store, batch_id="b")
        provider.fail = lambda method, path: None
        assert answers(run_batch(lm, 3, store=store, batch_id="b")) == [0, 7, 14]
    assert provider.creations == 6
    assert_nothing_sent_twice(provider)


def test_a_new_store_asks_anew(wire):
    provider = BatchProvider()
    with batch_server(provider) as url:
        for _ in range(2):
            run_batch(model(url, wire), 3, store=MemoryStore(), batch_id="b")
    assert provider.creations == 2


def test_a_limit_of_the_batch_holds_between_its_rounds():
    provider = BatchProvider(lambda prompt: "[[ ## answer ## ]]\nseven")
    with batch_server(provider) as url:
        results = run_batch(model(url), 4, limits=Limits(tokens=1000), return_exceptions=True)
    assert {type(result) for result in results} == {LimitReachedError}
    assert provider.creations == 1
