"""Models behind real SDK clients, which speak to a real server on loopback (L5, E22)."""

from __future__ import annotations

import asyncio
import functools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from raw_server import begin, end, raw_server
from sdk_clients import (
    anthropic_client,
    async_anthropic_client,
    async_openai_client,
    openai_client,
)
from wire_servers import serve

from ferrule.concurrency.offload import run_async
from ferrule.errors import (
    BadRequestError,
    ConfigurationError,
    ContextOverflowError,
    RateLimitError,
    UnavailableError,
)
from ferrule.models.hosted import LM
from ferrule.models.model import BaseLM
from ferrule.net.sse import event
from ferrule.testing.scripted import ScriptedLM
from ferrule.values.calls.call import ToolCall
from ferrule.values.conversation.exchange import Declarations, Delta, Request, Response, Usage
from ferrule.values.conversation.message import Message, Messages

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
        },
    },
}
ASKED = Request(
    Messages([Message("system", "Be brief."), Message("user", "add ü")]),
    Declarations([ADD]),
)
CALLS = (
    ToolCall(name="add", args={"a": 1, "b": "ü"}, id="c1"),
    ToolCall(name="add", args={}, id="c2"),
)
ANSWER = Response("thinking aloud", CALLS, None, "tool_calls", None, Usage(3, 4, 2, 1))

CLIENTS: dict[str, tuple[Any, str | None]] = {
    "openai": (openai_client, None),
    "openai_async": (async_openai_client, None),
    "openai_responses": (openai_client, "openai_responses"),
    "openai_responses_async": (async_openai_client, "openai_responses"),
    "anthropic": (anthropic_client, None),
    "anthropic_async": (async_anthropic_client, None),
}
clients = pytest.mark.parametrize(("make", "wire"), CLIENTS.values(), ids=CLIENTS.keys())


async def closing(client: Any, work: Any) -> Any:
    """Work on a loop, with the client closed on that loop: its connections belong to it."""
    try:
        return await work
    finally:
        await closed(client)


async def closed(client: Any) -> None:
    found = client.close()
    if found is not None:
        await found


async def collected(stream: Any) -> list[Any]:
    return [item async for item in stream]


async def last_of(stream: Any) -> Any:
    return (await collected(stream))[-1]


WAYS: dict[str, Any] = {
    "complete": lambda lm: lm.complete(ASKED),
    "acomplete": lambda lm: lm.acomplete(ASKED),
    "stream": lambda lm: list(lm.stream(ASKED))[-1],
    "astream": lambda lm: last_of(lm.astream(ASKED)),
}


def asked(client: Any, lm: BaseLM, way: str) -> Response:
    """One answer in one way; an async client that sync code asked is closed on the loop that served
    it.
    """
    if way.startswith("a"):
        return asyncio.run(closing(client, WAYS[way](lm)))
    try:
        return WAYS[way](lm)
    finally:
        run_async(closed(client))


@clients
@pytest.mark.parametrize("way", WAYS)
def test_calls_and_text_come_through_every_real_client(make, wire, way):
    """Whole and streamed, from a sync and an async client, for sync and async callers."""
    with serve(ScriptedLM(by=lambda request: ANSWER)) as served:
        client = make(served.base_url)
        found = asked(
            client,
            LM.from_client(client, "m", wire=wire, temperature=0.5, max_tokens=99),
            way,
        )
        [body] = served.requests
    assert (found.text, found.tool_calls, found.finish_reason) == (ANSWER.text, CALLS, "tool_calls")
    assert (found.usage.output_tokens, found.model) == (4, "m")
    assert body["temperature"] == 0.5
    assert 99 in {
        body.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")
    }
    assert "ü" in str(body.get("messages") or body["input"])


def test_a_stream_of_a_real_client_comes_in_pieces():
    with (
        serve(ScriptedLM(["one two three"])) as served,
        openai_client(served.base_url) as client,
    ):
        *deltas, _ = LM.from_client(client, "m").stream(ASKED)
    assert deltas == [Delta("one "), Delta("two "), Delta("three")]


class Limited(BaseLM):
    def complete(self, request: Request) -> Response:
        raise RateLimitError("slow down", status=429)


@clients
def test_errors_of_a_client_are_errors_of_the_house(make, wire):
    """With provider, status and the provider's message."""
    with serve(Limited()) as served:
        client = make(served.base_url)
        with pytest.raises(RateLimitError, match="slow down") as raised:
            asked(client, LM.from_client(client, "m", wire=wire), "complete")
    assert raised.value.status == 429
    assert f"{raised.value.provider}." in type(raised.value.__cause__).__module__ + "."
    assert raised.value.__cause__ is not None


MID_STREAM = {
    "overflow": (
        {"message": "This model's maximum context length is 8 tokens", "code": 400},
        ContextOverflowError,
    ),
    "limit": ({"message": "slow down", "type": "rate_limit_error"}, RateLimitError),
    "overloaded": ({"message": "overloaded", "type": "overloaded_error"}, UnavailableError),
    "bad": ({"message": "no such field", "type": "invalid_request_error"}, BadRequestError),
}


@pytest.mark.parametrize("way", ["stream", "astream"])
@pytest.mark.parametrize("name", ["openai", "anthropic"])
@pytest.mark.parametrize(("error", "kind"), MID_STREAM.values(), ids=MID_STREAM)
def test_an_error_in_mid_stream_keeps_its_class(name, way, error, kind):
    """As an error with a status."""
    if name == "openai":
        begun = b'data: {"choices": [{"index": 0, "delta": {"content": "he"}}]}\n\n'
        sent = begun + event({"error": error})
    else:
        message = {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": "m",
            "usage": {"input_tokens": 1},
        }
        sent = event({"type": "message_start", "message": message}, "message_start") + event(
            {"type": "error", "error": error},
            "error",
        )
    make, wire = CLIENTS[f"{name}_async" if way == "astream" else name]
    with raw_server(begin(sent, end)) as server:
        client = make(server.base_url)
        with pytest.raises(kind, match=error["message"]) as raised:
            asked(client, LM.from_client(client, "m", wire=wire), way)
    assert type(raised.value) is kind


def test_a_server_that_is_down_is_unavailable():
    with (
        openai_client("http://127.0.0.1:1/v1") as client,
        pytest.raises(UnavailableError, match="Connection"),
    ):
        LM.from_client(client, "m").complete(ASKED)


class Traced:
    """A tracer's wrapper: no class of an SDK, the same `create`."""

    def __init__(self, answer: Any) -> None:
        self.seen: list[dict[str, Any]] = []
        self.answer = answer
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    def create(self, **body: Any) -> Any:
        self.seen.append(body)
        return self.answer


SAID = {"choices": [{"message": {"content": "hi", "tool_calls": None}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    "answer",
    [
        SAID,
        SimpleNamespace(
            choices=[
                SimpleNamespace(
                    message=SimpleNamespace(content="hi", tool_calls=None),
                    finish_reason="stop",
                ),
            ],
        ),
    ],
    ids=["dict", "objects"],
)
def test_whatever_has_the_same_create_is_a_client(answer):
    """Attribute objects and dicts are accepted."""
    client = Traced(answer)
    lm = LM.from_client(client, "m", top_p=0.1)
    assert lm("hello") == "hi"
    assert client.seen == [
        {"model": "m", "top_p": 0.1, "messages": [{"role": "user", "content": "hello"}]},
    ]
    assert repr(lm) == "ClientLM('openai/m', top_p=0.1)"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{"message": {"content": "hi"}}]},
        SimpleNamespace(choices=[{"message": {"content": "hi"}}]),
    ],
)
def test_a_client_that_does_not_stream_answers_at_once(answer, is_async):
    """A wrapper or a stand-in, which may ignore `stream=True`."""

    def create(**body: Any) -> Any:
        return answer

    async def acreate(**body: Any) -> Any:
        return answer

    lm = LM.from_client(
        SimpleNamespace(
            chat=SimpleNamespace(
                completions=SimpleNamespace(create=acreate if is_async else create),
            ),
        ),
        "m",
    )
    found = asyncio.run(collected(lm.astream(ASKED))) if is_async else list(lm.stream(ASKED))
    assert [found[0], found[1].text] == [Delta("hi"), "hi"]


@pytest.mark.parametrize("answer", [None, 3])
def test_a_stream_that_is_none_is_told(answer):
    lm = LM.from_client(
        SimpleNamespace(
            chat=SimpleNamespace(completions=SimpleNamespace(create=lambda **body: answer)),
        ),
        "m",
    )
    with pytest.raises(BadRequestError, match="the client returned no answer"):
        list(lm.stream(ASKED))


def test_an_answer_that_is_none_is_told():
    with pytest.raises(BadRequestError, match="'oops'"):
        LM.from_client(Traced("oops"), "m").complete(ASKED)


@pytest.mark.parametrize(
    ("client", "model", "wire", "words"),
    [
        (object(), "m", None, "subclass `BaseLM`"),
        (Traced(SAID), "", None, "Which model"),
        (Traced(SAID), "m", "gemini", "openai_chat"),
        ("gpt-5", "m", None, "subclass `BaseLM`"),
    ],
    ids=["no_client", "no_model", "no_such_wire", "a_name"],
)
def test_what_is_no_client_is_told(client, model, wire, words):
    with pytest.raises(ConfigurationError, match=words):
        LM.from_client(client, model, wire=wire)


def test_litellm_is_an_extra(monkeypatch):
    """The error names it."""
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(ConfigurationError, match=r"ferrule\[litellm\]"):
        LM.from_litellm("openai/m")


def test_litellm_is_asked_through_its_two_doors(monkeypatch):
    """Sync and async, whole and streamed; its own settings are its own.

    As litellm 1.106 was seen to do, for it is not installed here.
    """
    seen: list[dict[str, Any]] = []

    def completion(model, messages=(), **rest):
        seen.append({"model": model, **rest})
        return iter(CHUNKS) if rest.get("stream") else SAID

    def wrapped(function):
        return functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))

    @wrapped
    async def acompletion(model, messages=(), **rest):
        seen.append({"model": model, **rest})
        return later(CHUNKS) if rest.get("stream") else SAID

    module = ModuleType("litellm")
    module.completion, module.acompletion = wrapped(completion), acompletion  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "litellm", module)
    lm = LM.from_litellm("bedrock/m", num_retries=3, api_base="http://there")
    assert [WAYS[way](lm).text for way in ("complete", "stream")] == ["hi", "hi"]
    assert [asyncio.run(WAYS[way](lm)).text for way in ("acomplete", "astream")] == ["hi", "hi"]
    assert all(
        body["model"] == "bedrock/m"
        and body["num_retries"] == 3
        and body["api_base"] == "http://there"
        for body in seen
    )
    assert len(seen) == 4


CHUNKS = [
    {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": reason}]}
    for piece, reason in (("h", None), ("i", "stop"))
]


async def later(chunks: list[Any]) -> Any:
    for chunk in chunks:
        yield chunk


def test_settings_of_another_library_are_refused_for_sdk_clients():
    with pytest.raises(ConfigurationError, match="max_retries"):
        LM.from_client(Traced(SAID), "m", num_retries=3)


@pytest.mark.parametrize(
    "name",
    ["api_key", "strict_tools", "max_retries", "timeout_s", "base_url"],
)
def test_what_is_the_clients_own_business_is_no_setting(name):
    """Else a key would go into the body."""
    with pytest.raises(ConfigurationError, match=f"`{name}`.*client"):
        LM.from_client(Traced(SAID), "m", **{name: "sk-2"})
    with pytest.raises(ConfigurationError, match=f"`{name}`.*client"):
        LM.from_client(Traced(SAID), "m").copy(**{name: "sk-2"})


@pytest.mark.parametrize("name", ["api_key", "max_retries", "timeout_s", "base_url", "timeout"])
@pytest.mark.parametrize(
    "ask",
    [lambda lm, asked: lm.complete(asked), lambda lm, asked: list(lm.stream(asked))],
    ids=["whole", "streamed"],
)
def test_what_is_the_clients_own_business_is_no_setting_of_a_request(ask, name):
    """The client is not asked at all."""
    client = Traced(SAID)
    with pytest.raises(ConfigurationError, match=f"`{name}` is not a setting"):
        ask(LM.from_client(client, "m"), Request(ASKED.messages, settings={name: "sk-2"}))
    assert client.seen == []


SWITCHES: dict[str, Any] = {
    "two_runs": (
        lambda lm: asyncio.run(lm.acomplete(ASKED)),
        lambda lm: asyncio.run(lm.acomplete(ASKED)),
    ),
    "sync_then_async": (lambda lm: lm.complete(ASKED), lambda lm: asyncio.run(lm.acomplete(ASKED))),
    "async_then_sync": (
        lambda lm: asyncio.run(last_of(lm.astream(ASKED))),
        lambda lm: lm.complete(ASKED),
    ),
    "async_then_stream": (
        lambda lm: asyncio.run(lm.acomplete(ASKED)),
        lambda lm: asyncio.run(last_of(lm.astream(ASKED))),
    ),
}


@pytest.mark.parametrize(("first", "then"), SWITCHES.values(), ids=SWITCHES.keys())
@pytest.mark.parametrize("kind", ["openai_async", "anthropic_async"])
def test_an_async_client_on_a_second_event_loop_is_told(kind, first, then):
    """Its connections belong to the first.

    The SDKs raise a bare `RuntimeError`, or hang; models of one client share its loop.
    """
    with serve(ScriptedLM(by=lambda request: ANSWER)) as served:
        client = CLIENTS[kind][0](served.base_url)
        send = client._client.send

        async def send_and_close(*args: Any, **kwargs: Any) -> Any:
            answer = await send(*args, **kwargs)
            await answer.aread()
            await (
                client._client.aclose()
            )  # on its own loop, so that this test leaves no socket open
            return answer

        client._client.send = send_and_close
        assert first(LM.from_client(client, "m")).text == ANSWER.text
        with pytest.raises(ConfigurationError, match="one event loop"):
            then(LM.from_client(client, "m").copy(temperature=1))
        assert len(served.requests) == 1


def test_an_async_client_serves_sync_code_as_often_as_it_likes():
    with serve(ScriptedLM(by=lambda request: ANSWER)) as served:
        client = CLIENTS["openai_async"][0](served.base_url)
        lm = LM.from_client(client, "m")
        assert [WAYS[way](lm).text for way in ("complete", "stream", "complete")] == [
            ANSWER.text,
        ] * 3
        run_async(closed(client))


def test_an_async_stand_in_serves_any_loop():
    """What is no client of an SDK may well have no connections."""

    class Pretended:
        def __init__(self) -> None:
            self.chat = SimpleNamespace(completions=self)

        async def create(self, **body: Any) -> Any:
            return SAID

    lm = LM.from_client(Pretended(), "m")
    assert [asyncio.run(lm.acomplete(ASKED)).text for _ in range(2)] == ["hi", "hi"]


def test_a_create_that_is_replaced_later_is_the_one_called():
    """Tracers and tests patch the client of a model that exists already."""
    client = Traced(SAID)
    lm = LM.from_client(client, "m")
    client.chat.completions.create = lambda **_: {
        "choices": [{"message": {"content": "patched"}, "finish_reason": "stop"}],
    }
    assert lm("hello") == "patched"
