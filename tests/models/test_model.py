from __future__ import annotations

import asyncio
import copy
import json
import logging
import pickle
import subprocess
import sys
import threading

import openai
import pytest
from raw_server import raw_server, reply

from ferrule import Predict
from ferrule.errors import (
    BadRequestError,
    ConfigurationError,
    InputError,
    MissingKeyError,
    RefusalError,
)
from ferrule.models.hosted import LM
from ferrule.models.model import BaseLM, Model, as_model
from ferrule.values.conversation.exchange import Capabilities, Delta, Request, Response
from ferrule.values.conversation.message import Message, Messages

ASKED = Request(Messages([Message("user", "hi")]))
KEY = "sk-very-secret-0123456789"


class Shouting(BaseLM):
    def complete(self, request):
        return Response(
            request.messages[-1].text.upper(),
            reasoning=threading.current_thread().name,
        )


async def collected(stream) -> list:
    return [item async for item in stream]


# -- a model made of one method


def test_a_model_needs_one_method():
    lm = Shouting()
    assert isinstance(lm, Model)
    assert as_model(lm) is lm
    assert lm("hi") == "HI"
    assert lm.complete(ASKED).text == "HI"
    assert asyncio.run(lm.acall("hi")) == "HI"
    assert (lm.name, lm.capabilities) == ("Shouting", Capabilities())


def test_async_answers_are_made_in_a_worker_thread():
    """A slow `complete` must not hold up the loop."""
    assert asyncio.run(Shouting().acomplete(ASKED)).reasoning != threading.current_thread().name


def test_a_stream_is_one_delta_and_the_whole():
    lm = Shouting()
    whole = lm.complete(ASKED)
    assert list(lm.stream(ASKED)) == [Delta("HI", whole.reasoning or ""), whole]
    assert [type(item) for item in asyncio.run(collected(lm.astream(ASKED)))] == [Delta, Response]


def test_an_empty_answer_streams_as_the_whole_alone():
    class Silent(BaseLM):
        def complete(self, request):
            return Response()

    assert list(Silent().stream(ASKED)) == [Response()]
    assert Silent()("hi") == ""


def test_a_model_without_complete_says_what_to_write():
    with pytest.raises(NotImplementedError, match="must define `complete"):
        BaseLM().complete(ASKED)


def test_a_conversation_may_be_messages_or_dicts():
    lm = Shouting()
    assert (
        lm(messages=[{"role": "system", "content": "x"}, {"role": "user", "content": "dict"}])
        == "DICT"
    )
    assert lm(messages=[Message("user", "message")]) == "MESSAGE"
    assert asyncio.run(lm.acall(messages=[Message("user", "a")])) == "A"


def test_settings_of_a_call_go_with_its_request():
    seen = []

    class Watching(BaseLM):
        def complete(self, request):
            seen.append(dict(request.settings))
            return Response("x")

    lm = Watching().copy(temperature=1, top_p=1)
    lm("hi", temperature=0)
    assert seen == [{"temperature": 0, "top_p": 1}]


@pytest.mark.parametrize(
    ("args", "kwargs", "kind"),
    [
        ((), {}, ConfigurationError),
        (("hi",), {"messages": []}, ConfigurationError),
        ((3,), {}, ConfigurationError),
        ((ASKED,), {}, ConfigurationError),
        ((), {"messages": []}, InputError),
        ((), {"messages": "hi"}, InputError),
        ((), {"messages": [3]}, InputError),
        ((), {"messages": {"role": "user"}}, InputError),
    ],
    ids=range(8),
)
def test_what_is_no_question_is_refused(args, kwargs, kind):
    with pytest.raises(kind):
        Shouting()(*args, **kwargs)


def test_a_refusal_without_text_is_raised():
    class Unwilling(BaseLM):
        def complete(self, request):
            return Response(None, refusal="I won't.")

    with pytest.raises(RefusalError, match="I won't"):
        Unwilling()("hi")


def test_copies_do_not_change_the_original():
    lm = Shouting()
    hot = lm.copy(temperature=1)
    assert (dict(lm.settings), dict(hot.settings)) == ({}, {"temperature": 1})
    assert dict(hot.copy(top_p=0).settings) == {"temperature": 1, "top_p": 0}
    assert copy.deepcopy(hot) is hot


# -- anything that has `complete`


class Duck:
    def __init__(self, answer):
        self.answer = answer

    def complete(self, request):
        return self.answer


def test_an_object_with_complete_becomes_a_model():
    lm = as_model(Duck(Response("quack")))
    assert isinstance(lm, Model)
    assert lm.name == "Duck"
    assert list(lm.stream(ASKED)) == [Delta("quack"), Response("quack")]
    assert asyncio.run(lm.acomplete(ASKED)).text == "quack"
    assert asyncio.run(collected(lm.astream(ASKED)))[-1].text == "quack"
    assert as_model(lm) is lm


def test_text_in_place_of_a_response_will_do():
    assert as_model(Duck("quack")).complete(ASKED) == Response("quack")


def test_what_else_an_object_has_is_used():
    class Whole(Duck):
        name = "mallard"
        capabilities = Capabilities(native_tools=False)

        async def acomplete(self, request):
            return Response("async")

        def stream(self, request):
            yield Delta("st")
            yield Response("stream")

    lm = as_model(Whole("sync"))
    assert (lm.name, lm.capabilities.native_tools) == ("mallard", False)
    assert asyncio.run(lm.acomplete(ASKED)).text == "async"
    assert list(lm.stream(ASKED))[-1].text == "stream"
    assert asyncio.run(collected(lm.astream(ASKED)))[-1].text == "async"


def test_an_object_that_fits_the_protocol_is_taken_as_it_is():
    class Full(Duck):
        name, capabilities = "full", Capabilities()
        acomplete = stream = astream = Duck.complete

    full = Full("x")
    assert as_model(full) is full


def test_an_async_complete_is_told_apart():
    """And no coroutine is left unawaited."""

    class Async:
        async def complete(self, request):
            return Response("x")

    with pytest.raises(ConfigurationError, match="acomplete"):
        as_model(Async()).complete(ASKED)


def test_what_complete_returns_must_be_an_answer():
    with pytest.raises(BadRequestError, match="must return a `Response`"):
        as_model(Duck({"text": "x"})).complete(ASKED)


@pytest.mark.parametrize(
    "bad",
    ["openai/gpt-5", Shouting, None, 3, object(), lambda request: "x"],
    ids=["name", "class", "none", "int", "obj", "fn"],
)
def test_what_is_no_model_is_refused_with_advice(bad):
    with pytest.raises(ConfigurationError, match=r"LM\(|Shouting\(|BaseLM"):
        as_model(bad)


# -- over HTTP


def test_a_missing_key_is_named_when_the_model_is_asked(monkeypatch):
    """Not when it is made."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    lm = LM("openai/gpt-5-mini")
    for ask in (
        lm.complete,
        lambda request: next(lm.stream(request)),
        lambda request: asyncio.run(lm.acomplete(request)),
    ):
        with pytest.raises(MissingKeyError, match="OPENAI_API_KEY"):
            ask(ASKED)


def test_keys_are_read_when_a_request_goes_out(monkeypatch):
    with raw_server(reply()) as server:
        lm = LM("groq/llama", base_url=server.base_url)
        lm.complete(ASKED)
        monkeypatch.setenv("GROQ_API_KEY", f" {KEY}\n")
        lm.complete(ASKED)
        assert [headers.get("authorization") for headers, _ in server.requests] == [
            None,
            f"Bearer {KEY}",
        ]


def test_settings_headers_and_the_models_name_go_out():
    with raw_server(reply()) as server:
        lm = LM(server.base_url, model="org/m", headers={"X-Title": "t"}, temperature=0.5)
        lm.copy(temperature=None, top_p=1)("hi", seed=3)
        headers, body = server.requests[0]
    assert headers["x-title"] == "t"
    assert json.loads(body) == {
        "model": "org/m",
        "top_p": 1,
        "seed": 3,
        "messages": [{"role": "user", "content": "hi"}],
    }


def test_a_model_does_not_show_its_key(caplog):
    caplog.set_level(logging.DEBUG)
    with raw_server(reply("{}", "500 x"), reply()) as server:
        lm = LM(
            server.base_url,
            model="m",
            api_key=KEY,
            headers={"X-Key": KEY},
            user=KEY,
            temperature=0,
        )
        lm.complete(ASKED)
    assert KEY not in caplog.text
    assert KEY not in repr(lm)
    assert "temperature=0" in repr(lm)
    assert KEY not in f"{lm} {lm._transport!r} {lm.copy(a=KEY)!r}"


@pytest.mark.parametrize(
    "copied",
    [lambda lm: lm.copy(temperature=0), copy.copy],
    ids=["copy", "copy.copy"],
)
def test_a_copy_sends_the_key_that_the_model_was_given(copied):
    """A pickle leaves it behind, a copy does not."""
    with raw_server(reply()) as server:
        copied(LM(server.base_url, model="m", api_key=KEY)).complete(ASKED)
    assert server.requests[0][0]["authorization"] == f"Bearer {KEY}"


def test_a_pickled_model_leaves_its_key_at_home():
    lm = LM("openai/gpt-5-mini", api_key=KEY, temperature=0)
    pickled = pickle.dumps(lm)
    assert KEY.encode() not in pickled
    again = pickle.loads(pickled)
    assert (again.name, again.settings) == (lm.name, lm.settings)


def test_capabilities_are_the_providers_unless_told():
    assert LM("openai/x").capabilities.json_schema
    assert not LM(
        "openai/x",
        capabilities=Capabilities(native_tools=False),
    ).capabilities.native_tools


def test_a_key_that_cannot_be_one_is_not_repeated(monkeypatch):
    for bad in ("sk secret", "sk-ü", "sk\nsecret"):
        with pytest.raises(ConfigurationError, match="no key has") as caught:
            LM("openai/x", api_key=bad).complete(ASKED)
        assert bad not in str(caught.value)
    monkeypatch.setenv("OPENAI_API_KEY", "sk secret")
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        LM("openai/x").complete(ASKED)


def test_importing_models_loads_no_client():
    program = (
        "import sys; from ferrule.models.hosted import LM; from ferrule.testing.scripted import ScriptedLM; LM('openai/x');"
        "print([name for name in ('httpx2', 'asyncio', 'ssl') if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("answer", ["x", None, {"text": "x"}, Response(5)], ids=repr)
def test_asking_a_model_by_hand_says_that_it_returns_no_response(answer):
    """It was a raw `AttributeError`; sync, async and streamed."""

    class Odd(BaseLM):
        def complete(self, request):
            return answer

    ways = (
        lambda lm: lm("hi"),
        lambda lm: asyncio.run(lm.acall("hi")),
        lambda lm: list(lm.stream(Request(Messages([Message("user", "hi")])))),
    )
    for ask in ways:
        with pytest.raises(ConfigurationError, match=r"`Odd` answered with .*return a `Response`"):
            ask(Odd())


def test_a_complete_of_ones_own_that_is_async_is_told_what_it_is_called():
    """A coroutine is no answer."""

    class Late(BaseLM):
        async def complete(self, request):
            return Response("x")

    with pytest.raises(ConfigurationError, match=r"`Late\.complete` is async. Name it `acomplete`"):
        Late()("hi")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("temperature", r"`lm.copy\(temperature=...\)` is the model with it"),
        ("max_retries", r"make the model with it, `LM\(..., max_retries="),
    ],
)
def test_a_setting_that_is_set_as_an_attribute_is_refused_with_what_to_write(name, words):
    """No request would see it."""
    lm = LM("openai/gpt-5-mini")
    with pytest.raises(AttributeError, match=words):
        setattr(lm, name, 1)
    lm.label = "mine"
    assert (lm.copy(temperature=1).settings, lm.label) == ({"temperature": 1}, "mine")


def test_a_model_of_ones_own_may_have_attributes_of_any_name():
    class Warm(LM):
        def __init__(self) -> None:
            super().__init__("openai/gpt-5-mini")
            self.temperature = 1

    assert Warm().temperature == 1


def test_neither_repr_nor_vars_of_a_model_show_its_key():
    lm = LM("openai/gpt-5-mini", api_key=KEY, headers={"X-Api-Key": KEY})

    def shown(value, depth=3):
        inside = (
            "".join(shown(each, depth - 1) for each in vars(value).values())
            if depth and hasattr(value, "__dict__")
            else ""
        )
        return repr(value) + inside

    assert KEY not in repr(lm)
    assert KEY not in repr(vars(lm))
    assert KEY not in shown(lm._transport)


def test_a_key_and_a_header_that_are_not_shown_are_sent():
    with raw_server(reply()) as server:
        LM("openai/m", base_url=server.base_url, api_key=KEY, headers={"X-Own": KEY}).complete(
            ASKED,
        )
        headers, _ = server.requests[0]
    assert (headers["authorization"], headers["x-own"]) == (f"Bearer {KEY}", KEY)


# -- settings that JSON does not have


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_setting_that_json_does_not_have_is_refused_where_it_is_given(number):
    """It would be sent as the text "NaN"."""
    lm = LM("openai/gpt-5", api_key=KEY)
    for wrong in ({"temperature": number}, {"extra": {"a": [1.0, {"b": number}]}}):
        (name,) = wrong
        with pytest.raises(ConfigurationError, match=f"`{name}`.*neither NaN nor"):
            LM("openai/gpt-5", api_key=KEY, **wrong)
        with pytest.raises(ConfigurationError, match=f"`{name}`.*neither NaN nor"):
            lm.copy(**wrong)
        with pytest.raises(ConfigurationError, match=f"`{name}`.*neither NaN nor"):
            lm("hi", **wrong)
        with pytest.raises(ConfigurationError, match=f"`{name}`.*neither NaN nor"):
            Predict("a -> b", **wrong)


def test_a_setting_of_a_client_is_finite_too():
    client = openai.OpenAI(api_key=KEY)
    with pytest.raises(ConfigurationError, match="neither NaN nor"):
        LM.from_client(client, "m", temperature=float("nan"))
