"""Reasoning that only its author can read, and other details that a server refuses, over HTTP on
loopback.

Each provider here is a server that signs its answers for the key and the model that asked, and that
refuses what was signed for anybody else.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import ExitStack, contextmanager
from typing import Any

import forked
import pytest
from raw_server import raw_server, reply
from sdk_clients import anthropic_client, openai_client

from ferrule import (
    LM,
    FallbackLM,
    History,
    Message,
    Messages,
    ReAct,
    Request,
    ToolCall,
    tool,
)
from ferrule.errors import BadRequestError
from ferrule.models.wires.wire import WIRES, wire
from ferrule.values.conversation.message import Author

wires = pytest.mark.parametrize("wire_name", WIRES)
SECRET = re.compile(rb"secret/[^\"\\]+")
REFUSALS = {
    "openai_chat": "reasoning_details could not be verified",
    "openai_responses": "The encrypted content gAAA could not be verified.",
    "anthropic": "messages.1.content.0: Invalid `signature` in `thinking` block",
    "gemini": "Corrupted thought signature.",
}


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def answer(wire_name: str, secret: str, call: str, **args: Any) -> dict[str, Any]:
    """An answer with a call, and with reasoning that carries `secret`."""
    text, call_id = json.dumps(args), f"call_{call}"
    match wire_name:
        case "openai_chat":
            details = [{"type": "reasoning.encrypted", "data": secret}]
            function = {"name": call, "arguments": text}
            calls = [{"id": call_id, "type": "function", "function": function}]
            message = {"content": None, "reasoning_details": details, "tool_calls": calls}
            return {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
        case "openai_responses":
            thought = {"type": "reasoning", "id": "rs_1", "summary": []}
            item = {"type": "function_call", "call_id": call_id, "name": call, "arguments": text}
            return {"output": [{**thought, "encrypted_content": secret}, item]}
        case "anthropic":
            thought = {"type": "thinking", "thinking": "hm", "signature": secret}
            block = {"type": "tool_use", "id": call_id, "name": call, "input": args}
            return {"content": [thought, block], "stop_reason": "tool_use"}
        case _:
            part = {"functionCall": {"name": call, "args": args}, "thoughtSignature": secret}
            return {"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}


class Provider:
    """Answers with `add`, then with `finish`; fails from the request `down_from` on."""

    def __init__(self, wire_name: str, *, down_from: int = 100, takes_none: bool = False) -> None:
        self.wire, self.down_from, self.takes_none = wire_name, down_from, takes_none
        self.base_url = ""
        self.bodies: list[bytes] = []
        self.refused = 0

    def __call__(self, connection: Any) -> None:
        headers, body = connection.server.requests[-1]
        if len(self.bodies) >= self.down_from:
            reply('{"error": {"message": "down"}}', "503 x")(connection)
            return
        self.bodies.append(body)
        fields = json.loads(body)
        keys = (headers.get(name) for name in ("authorization", "x-api-key", "x-goog-api-key"))
        mine = f"secret/{self.base_url}/{next(filter(None, keys), '')}/{fields.get('model')}"
        secrets = {secret.decode() for secret in SECRET.findall(body)}
        if secrets - {mine} or (secrets and self.takes_none):
            self.refused += 1
            reply(json.dumps({"error": {"message": REFUSALS[self.wire]}}), "400 x")(connection)
            return
        if b"call_add" in body or b"functionResponse" in body:
            whole = answer(self.wire, mine, "finish", answer="3")
        else:
            whole = answer(self.wire, mine, "add", a=1, b=2)
        reply(json.dumps(whole))(connection)

    def lm(self, key: str = "key-of-ada", model: str = "m", **settings: Any) -> LM:
        return LM(
            self.base_url, model=model, wire=self.wire, api_key=key, max_retries=0, **settings
        )


@contextmanager
def running(provider: Provider):
    with raw_server(provider) as server:
        provider.base_url = server.base_url
        yield provider


def agent(lm: Any) -> ReAct:
    program = ReAct("question -> answer", [add], native=True)
    program.lm = lm
    return program


async def last_of(stream: Any) -> Any:
    return [item async for item in stream][-1]


WAYS = {
    "complete": lambda lm, request: lm.complete(request),
    "acomplete": lambda lm, request: asyncio.run(lm.acomplete(request)),
    "stream": lambda lm, request: list(lm.stream(request))[-1],
    "astream": lambda lm, request: asyncio.run(last_of(lm.astream(request))),
}
ways = pytest.mark.parametrize("way", WAYS)


def talk(lm: LM, way: str = "complete") -> Request:
    """A conversation with an answer of `lm`, and the result of its call."""
    question = Message("user", "1 + 2?")
    first = WAYS[way](lm, Request(Messages([question])))
    result = Message("tool", "3", tool_call_id=first.tool_calls[0].id, name="add")
    return Request(Messages([question, first.message(), result]))


@wires
@ways
def test_reasoning_goes_back_to_who_wrote_it(wire_name, way):
    with running(Provider(wire_name)) as provider:
        lm = provider.lm()
        WAYS[way](lm, talk(lm, way))
        assert provider.refused == 0
        assert SECRET.search(provider.bodies[-1])


@wires
@ways
@pytest.mark.parametrize("other", ["host", "key", "model"])
def test_nobody_else_gets_it_but_the_call_and_the_result(wire_name, way, other):
    with running(Provider(wire_name)) as provider, running(Provider(wire_name)) as elsewhere:
        request = talk(provider.lm())
        lms = {
            "host": elsewhere.lm(),
            "key": provider.lm("key-of-bob"),
            "model": provider.lm(model="n"),
        }
        WAYS[way](lms[other], request)
        assert (provider.refused, elsewhere.refused) == (0, 0)
        body = [*provider.bodies, *elsewhere.bodies][-1]
        assert not SECRET.search(body)
        assert b"add" in body
        # Nothing is lost: its author still gets it in the same conversation.
        WAYS[way](provider.lm(), request)
        assert SECRET.search(provider.bodies[-1])


@wires
def test_an_agent_falls_back_in_mid_run(wire_name):
    with (
        running(Provider(wire_name, down_from=1)) as first,
        running(Provider(wire_name)) as second,
    ):
        lm = FallbackLM([first.lm(), second.lm("key-of-bob", "n")])
        assert agent(lm)(question="1 + 2?").answer == "3"
        assert (len(first.bodies), len(second.bodies), second.refused) == (1, 1, 0)


@wires
def test_a_next_turn_with_another_model_leaves_it_out(wire_name):
    with running(Provider(wire_name)) as provider:
        program = ReAct("question, history: History -> answer", [add], native=True)
        first = program(question="1 + 2?", history=History(), lm=provider.lm())
        history = History(messages=[*first.history.messages])
        restored = History.model_validate_json(history.model_dump_json())
        program(question="Again?", history=restored, lm=provider.lm(model="n"))
        assert provider.refused == 0


SCRIPT = """
import json, sys
from ferrule import LM, ReAct, Run, tool
from ferrule.runs.store.sqlite.store import SQLiteStore

@tool(require_confirmation=True)
def add(a: int, b: int) -> int:
    "Add."
    return a + b

with SQLiteStore(sys.argv[1]) as runs:
    begun = {kept.id for kept in runs.list()}
    for run_id, url, wire, key, model in json.loads(sys.argv[2]):
        program = ReAct("question -> answer", [add], native=True)
        program.lm = LM(url, model=model, wire=wire, api_key=key, max_retries=0)
        if run_id not in begun:
            program.start(question="1 + 2?", store=runs, run_id=run_id)
        else:
            run = Run.load(runs, run_id, program)
            run.answer(run.pending[0].approve())
            run.resume()
            print(run.prediction.answer)
"""


def test_runs_go_on_in_another_process_with_another_key_or_model(tmp_path):
    def in_a_process(jobs: list[tuple[str, ...]]) -> str:
        ended = forked.run("-c", SCRIPT, tmp_path / "runs.db", json.dumps(jobs))
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    others = [("key-of-ada", "m"), ("key-of-bob", "m"), ("key-of-ada", "n")]
    with ExitStack() as open_providers:
        providers = {
            f"{wire_name} {key} {model}": open_providers.enter_context(running(Provider(wire_name)))
            for wire_name in WIRES
            for key, model in others
        }
        starts = [
            (run_id, provider.base_url, provider.wire, *others[0])
            for run_id, provider in providers.items()
        ]
        in_a_process(starts)
        in_the_other = [
            (run_id, url, wire_name, *run_id.split()[1:]) for run_id, url, wire_name, *_ in starts
        ]
        assert in_a_process(in_the_other) == "3\n" * len(providers)
    for run_id, provider in providers.items():
        assert provider.refused == 0, run_id
        gets_it = run_id.endswith("key-of-ada m")
        assert bool(SECRET.search(provider.bodies[-1])) == gets_it, run_id


def test_the_key_cannot_be_read_from_a_stored_answer():
    with running(Provider("anthropic")) as provider:
        message = talk(provider.lm("sk-very-secret-0123456789")).messages[1]
    author = message.extra["author"]
    assert author["host"] in provider.base_url
    assert re.fullmatch("[0-9a-f]{8}", author["account"])
    assert author["model"] == "m"


@wires
@ways
def test_a_refusal_that_names_it_is_followed_by_one_request_without_it(wire_name, way):
    with running(Provider(wire_name, takes_none=True)) as provider:
        lm = provider.lm()
        request = talk(lm)
        WAYS[way](lm, request)
        assert (len(provider.bodies), provider.refused) == (3, 1)
        # What was refused once is not sent again, not even by a copy of the model.
        WAYS[way](lm.copy(temperature=0), request)
        assert provider.refused == 1


@wires
def test_a_refusal_that_names_it_is_raised_where_nothing_can_be_left_out(wire_name):
    refusal = json.dumps({"error": {"message": REFUSALS[wire_name]}})
    with raw_server(reply(refusal, "400 x")) as server:
        lm = LM(server.base_url, model="m", wire=wire_name)
        with pytest.raises(BadRequestError):
            lm("hi")
        assert len(server.requests) == 1


@wires
def test_a_setting_sends_it_to_everybody_or_to_nobody(wire_name):
    with running(Provider(wire_name)) as provider:
        request = talk(provider.lm())
        provider.lm(send_reasoning=False).complete(request)
        assert not SECRET.search(provider.bodies[-1])
        # As for a second key of the same account; the provider here refuses it at first.
        provider.lm("key-of-bob", send_reasoning=True).complete(request)
        assert [bool(SECRET.search(body)) for body in provider.bodies[-2:]] == [True, False]


CLIENTS = {
    "openai_chat": openai_client,
    "openai_responses": openai_client,
    "anthropic": anthropic_client,
}


@pytest.mark.parametrize("wire_name", CLIENTS)
def test_a_client_of_your_own_gets_what_it_wrote_and_nothing_else(wire_name):
    with running(Provider(wire_name)) as provider:
        lms = []
        for key in ("key-of-ada", "key-of-bob"):
            client = CLIENTS[wire_name](provider.base_url, key)
            lms.append(LM.from_client(client, model="m", wire=wire_name))
        request = talk(lms[0])
        lms[0].complete(request)
        assert SECRET.search(provider.bodies[-1])
        lms[1].complete(request)
        assert not SECRET.search(provider.bodies[-1])
        assert provider.refused == 0


def test_data_that_a_program_puts_there_itself_is_sent():
    """Nobody knows who wrote it."""
    for author in ({}, {"author": 5}, {"author": {"host": 1}}):
        extra = {"openai_chat": {"message": {"reasoning_details": ["x"]}}, **author}
        with raw_server(reply()) as server:
            request = Request(Messages([Message("assistant", "a", extra=extra)]))
            LM(server.base_url, model="m").complete(request)
            assert b"reasoning_details" in server.requests[0][1]


def test_the_authors_of_a_conversation_are_known_without_reading_it_again():
    """However views of it are extended."""
    ada, bob = Author.of("h", "k", "m"), Author.of("h", "l", "m")

    def by(author: Author) -> Message:
        fields = {"host": author.host, "account": author.account, "model": author.model}
        return Message("assistant", "a", extra={"author": fields})

    plain = Messages([Message("user", "q")])
    first = plain.then(by(ada))
    longer = first.then(by(bob), by(ada))
    fork = first.then(Message("user", "r"))
    assert longer.authors == {ada, bob}
    assert [view.authors for view in (plain, first, fork)] == [set(), {ada}, {ada}]


# -- reasoning as text


def spoken(field: str | None, call: str = "add") -> bytes:
    """An answer of chat completions whose reasoning is text, in this field."""
    function = {"name": call, "arguments": "{}"}
    message: dict[str, Any] = {
        "tool_calls": [{"id": "c1", "type": "function", "function": function}]
    }
    if field is not None:
        message[field] = "Hm."
    return json.dumps({"choices": [{"message": message}]}).encode()


def streamed(body: bytes) -> bytes:
    message = json.loads(body)["choices"][0]["message"]
    for index, call in enumerate(message["tool_calls"]):
        call["index"] = index
    chunk = {"choices": [{"index": 0, "delta": message, "finish_reason": "tool_calls"}]}
    return f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("field", "is_sent"), [("reasoning_content", True), ("reasoning", False), (None, False)]
)
def test_reasoning_content_goes_back_to_a_server_that_sent_it(field, is_sent, is_streamed):
    body = spoken(field)
    if is_streamed:
        first = reply(streamed(body), content_type="text/event-stream")
    else:
        first = reply(body)
    with raw_server(first, reply()) as server:
        lm = LM(server.base_url, model="kimi-k2-thinking")
        lm.complete(talk(lm, "stream" if is_streamed else "complete"))
        sent = json.loads(server.requests[1][1])["messages"][1]
    assert sent.get("reasoning_content") == ("Hm." if is_sent else None)


@pytest.mark.parametrize("provider", ["deepseek", "moonshot"])
def test_a_provider_that_requires_it_gets_it_with_every_call(provider, monkeypatch):
    """Also with a call of another model, as after a fallback."""
    monkeypatch.setenv(f"{provider.upper()}_API_KEY", "k")
    call = Message("assistant", "", (ToolCall(name="add", args={}, id="c1"),), reasoning="Hm.")
    with raw_server(reply()) as server:
        LM(f"{provider}/m", base_url=server.base_url).complete(Request(Messages([call])))
        sent = json.loads(server.requests[0][1])["messages"][0]
    assert sent["reasoning_content"] == "Hm."


MISSING = (
    "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1"
)
UNKNOWN = "'messages.1' : property 'reasoning_content' is unsupported"


@ways
def test_a_server_that_misses_it_gets_it_from_then_on(way):
    call = Message("assistant", "", (ToolCall(name="add", args={}, id="c1"),))
    request = Request(Messages([Message("user", "q"), call]))
    missing = reply(json.dumps({"error": {"message": MISSING}}), "400 x")
    with raw_server(missing, reply()) as server:
        lm = LM(server.base_url, model="m")
        WAYS[way](lm, request)
        WAYS[way](lm, request)
        sent = [json.loads(body)["messages"][1] for _, body in server.requests]
    assert [message.get("reasoning_content") for message in sent] == [None, "", ""]


@ways
def test_a_server_that_refuses_it_gets_it_no_more(way):
    refusal = reply(json.dumps({"error": {"message": UNKNOWN}}), "400 x")
    with raw_server(reply(spoken("reasoning_content")), refusal, reply()) as server:
        lm = LM(server.base_url, model="m")
        request = talk(lm)
        WAYS[way](lm, request)
        WAYS[way](lm, request)
        sent = [json.loads(body)["messages"][1] for _, body in server.requests[1:]]
    assert [message.get("reasoning_content") for message in sent] == ["Hm.", None, None]


@pytest.mark.parametrize("words", [MISSING, UNKNOWN], ids=["missing", "unknown"])
def test_a_server_that_is_never_content_is_asked_twice(words):
    refusal = reply(json.dumps({"error": {"message": words}}), "400 x")
    with raw_server(reply(spoken("reasoning_content")), refusal) as server:
        lm = LM(server.base_url, model="m")
        request = talk(lm)
        with pytest.raises(BadRequestError, match="reasoning_content"):
            lm.complete(request)
        assert len(server.requests) == 3


def test_the_setting_is_for_reasoning_as_text_too():
    call = Message("assistant", "", (ToolCall(name="add", args={}, id="c1"),), reasoning="Hm.")
    with raw_server(reply(spoken("reasoning_content")), reply()) as server:
        request = talk(LM(server.base_url, model="m"))
        LM(server.base_url, model="m", send_reasoning=False).complete(request)
        LM(server.base_url, model="m", send_reasoning=True).complete(Request(Messages([call])))
        sent = [json.loads(body)["messages"] for _, body in server.requests[1:]]
    assert "reasoning_content" not in sent[0][1]
    assert sent[1][0]["reasoning_content"] == "Hm."


def test_every_wire_leaves_out_the_name_of_the_author():
    extra = {"author": {"host": "my-host", "account": "0123abcd", "model": "m"}}
    request = Request(Messages([Message("user", "q"), Message("assistant", "a", extra=extra)]))
    for name in WIRES:
        assert b"my-host" not in wire(name).render(request, model="m", settings={})


# -- settings


NAMES = {
    "max_tokens": "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    "max_completion_tokens": '[{"type":"extra_forbidden","loc":["body","max_completion_tokens"],"msg":"Extra inputs are not permitted"}]',
}


@ways
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("status", ["400 x", "422 x"])
def test_a_limit_that_is_refused_is_sent_under_its_other_name(way, name, status):
    """Once, and then for every request of the model and its copies."""
    other = next(other for other in NAMES if other != name)
    refusal = reply(json.dumps({"error": {"message": NAMES[name]}}), status)
    with raw_server(refusal, reply()) as server:
        lm = LM(server.base_url, model="m", **{name: 7})
        for each in (lm, lm, lm.copy(temperature=0)):
            WAYS[way](each, Request(Messages([Message("user", "q")])))
        sent = [json.loads(body) for _, body in server.requests]
    assert [body.get(name) for body in sent] == [7, None, None, None]
    assert [body.get(other) for body in sent] == [None, 7, 7, 7]


@pytest.mark.parametrize(
    "words", [NAMES["max_tokens"] + NAMES["max_completion_tokens"], "max_tokens is too large: 9999"]
)
def test_a_limit_that_is_refused_in_both_forms_or_for_its_value_is_an_error(words):
    refusal = reply(json.dumps({"error": {"message": words}}), "400 x")
    with raw_server(refusal) as server:
        with pytest.raises(BadRequestError):
            LM(server.base_url, model="m", max_tokens=9999)("hi")
        assert len(server.requests) == (1 if "large" in words else 2)


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_stream_options_that_are_refused_are_left_out(way):
    words = '[{"type":"extra_forbidden","loc":["body","stream_options"]}]'
    refusal = reply(json.dumps({"detail": words}), "422 x")
    with raw_server(refusal, reply()) as server:
        lm = LM(server.base_url, model="m")
        for _ in range(2):
            WAYS[way](lm, Request(Messages([Message("user", "q")])))
        sent = ["stream_options" in json.loads(body) for _, body in server.requests]
    assert sent == [True, False, False]


@pytest.mark.parametrize("value", [None, False])
def test_stream_options_can_be_left_out_from_the_start(value):
    with raw_server(reply()) as server:
        list(
            LM(server.base_url, model="m", stream_options=value).stream(
                Request(Messages([Message("user", "q")]))
            )
        )
        assert b"stream_options" not in server.requests[0][1]


# -- ids of calls


def ids_in(value: Any) -> tuple[list[str], list[str]]:
    """The ids of the calls in a body of any wire, and of the results, in order."""
    calls: list[str] = []
    results: list[str] = []
    match value:
        case {"type": "function", "id": call_id} | {"type": "tool_use", "id": call_id}:
            calls.append(call_id)
        case {"type": "function_call", "call_id": call_id} | {"functionCall": {"id": call_id}}:
            calls.append(call_id)
        case {"tool_call_id": call_id} | {"tool_use_id": call_id}:
            results.append(call_id)
        case {"type": "function_call_output", "call_id": call_id}:
            results.append(call_id)
        case {"functionResponse": {"id": call_id}}:
            results.append(call_id)
        case dict() | list():
            for inner in value.values() if isinstance(value, dict) else value:
                inner_calls, inner_results = ids_in(inner)
                calls += inner_calls
                results += inner_results
    return calls, results


def turn(*numbers: int) -> list[Message]:
    """Calls that are numbered from 0 in each answer, and their results."""
    calls = [ToolCall(name="add", args={"a": n}, id="call_0") for n in numbers]
    results = [Message("tool", f"{n}", tool_call_id="call_0", name="add") for n in numbers]
    return [Message("user", "q"), Message("assistant", "", tuple(calls)), *results]


@wires
@pytest.mark.parametrize(
    "history",
    [turn(1) + turn(2), turn(1, 2), turn(1, 2) + turn(3) + turn(4, 5, 6)],
    ids=["turns", "one answer", "both"],
)
def test_ids_of_calls_are_unique_in_a_request_and_each_result_keeps_its_call(wire_name, history):
    with raw_server(reply(json.dumps(answer(wire_name, "s", "add")))) as server:
        lm = LM(server.base_url, model="m", wire=wire_name)
        lm.complete(Request(Messages(history)))
        calls, results = ids_in(json.loads(server.requests[0][1]))
    assert calls == results
    assert len(set(calls)) == len(calls) == sum(len(each.tool_calls) for each in history)


@wires
def test_a_server_that_repeats_an_id_gets_unique_ones(wire_name):
    """In a run, with its signed blocks in their places; and in the next turn."""
    with running(Numbering(wire_name)) as provider:
        program = ReAct("question, history: History -> answer", [add], native=True)
        lm = provider.lm()
        first = program(question="1 + 2?", history=History(), lm=lm)
        names = [call.id for message in first.messages for call in message.tool_calls]
        assert len(set(names)) == len(names) == 2
        program(question="Again?", history=first.history, lm=lm)
    for body in provider.bodies:
        calls, results = ids_in(json.loads(body))
        assert len(set(calls)) == len(calls)
        assert set(results) <= set(calls)
    # A signed block stays before the call that it was written for.
    if wire_name == "anthropic":
        kinds = [
            [block["type"] for block in message["content"]]
            for message in json.loads(provider.bodies[2])["messages"]
            if message["role"] == "assistant"
        ]
        assert kinds == [["thinking", "tool_use"], ["thinking", "tool_use"]]


class Numbering(Provider):
    """Gives every call the same id: `add` twice, then `finish`."""

    def __call__(self, connection: Any) -> None:
        _, body = connection.server.requests[-1]
        count = len(self.bodies)
        self.bodies.append(body)
        args = {"answer": "3"} if count % 3 == 2 else {"a": 1, "b": count}
        whole = answer(self.wire, "s", "finish" if count % 3 == 2 else "add", **args)
        text = json.dumps(whole).replace("call_add", "call_0").replace("call_finish", "call_0")
        if self.wire == "gemini":
            text = text.replace('"functionCall": {', '"functionCall": {"id": "call_0", ')
        reply(text)(connection)


def test_repeated_ids_are_known_however_a_conversation_is_extended():
    first, second = Messages(turn(1)), turn(2)
    longer = first.then(*second)
    assert (first.repeats_ids, longer.repeats_ids) == (False, True)
    fork = first.then(Message("assistant", "", (ToolCall(name="add", args={}, id="call_1"),)))
    assert not fork.repeats_ids
    assert (fork.has_call("call_1"), longer.has_call("call_1")) == (True, False)
    assert [view.has_call("call_0") for view in (Messages(), first, longer, fork)] == [
        False,
        True,
        True,
        True,
    ]
