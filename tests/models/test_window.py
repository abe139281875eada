from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import suppress
from types import SimpleNamespace

import pytest
from raw_server import Connection, begin, hang_up, raw_server, reply

from ferrule import LM, Capabilities, Message, Messages, Request
from ferrule.models.hosted import find_window
from ferrule.net import transport

TOLD = {
    "vllm": {"data": [{"id": "other", "max_model_len": 1}, {"id": "m", "max_model_len": 40960}]},
    "llama.cpp": {"data": [{"id": "x.gguf", "meta": {"n_ctx": 40960, "n_ctx_train": 131072}}]},
    "openrouter": {"data": [{"id": "m", "context_length": 40960}]},
    "groq": {"data": [{"id": "m", "context_window": 40960}]},
    "lmstudio": {"data": [{"id": "m", "max_context_length": 40960}]},
    "gemini": {"models": [{"name": "models/m", "inputTokenLimit": 40960}]},
}


@pytest.mark.parametrize("body", TOLD.values(), ids=TOLD)
def test_the_window_is_read_from_the_list_of_models(body):
    with raw_server(reply(json.dumps(body))) as server:
        lm = LM(server.base_url, model="m")
        assert [lm.context_tokens(), lm.context_tokens(), lm.capabilities.context_tokens] == [
            40960,
        ] * 3
        assert len(server.requests) == 1


def test_it_is_read_from_the_properties_of_llama_cpp():
    asked = []

    def fetch(url):
        asked.append(url)
        return (
            {"default_generation_settings": {"n_ctx": 4096}}
            if url.endswith("/props")
            else {"data": [{"id": "m"}]}
        )

    assert find_window("http://host:1/v1", "m", fetch) == 4096
    assert asked == ["http://host:1/v1/models", "http://host:1/props"]


WRONG = {
    "nothing": reply("{}"),
    "html": reply("<p>", content_type="text/html"),
    "list": reply("[3]"),
    "text": reply(json.dumps({"data": [{"id": "m", "max_model_len": "big"}]})),
    "other": reply(
        json.dumps({"data": [{"id": "a", "max_model_len": 1}, {"id": "b", "max_model_len": 2}]}),
    ),
    "odd_names": reply(
        json.dumps(
            {
                "data": [
                    {"id": ["m"], "max_model_len": 1},
                    {"id": {}, "name": [], "max_model_len": 2},
                ],
            },
        ),
    ),
    "404": reply("{}", "404 x"),
    "gone": hang_up,
}


@pytest.mark.parametrize("act", WRONG.values(), ids=WRONG)
def test_a_server_that_does_not_say_is_asked_once_and_nothing_fails(act):
    with raw_server(act) as server:
        lm = LM(server.base_url, model="m")
        assert lm.context_tokens() is None
        asked = server.accepted, len(server.requests)
        assert asyncio.run(lm.acontext_tokens()) is None
        assert (server.accepted, len(server.requests)) == asked


def test_what_the_user_says_is_not_asked_for():
    lm = LM("http://127.0.0.1:1/v1", model="m", capabilities=Capabilities(context_tokens=7))
    assert lm.context_tokens() == 7


def test_requests_ask_for_nothing_else():
    with raw_server(reply()) as server:
        LM(server.base_url, model="m").complete(Request(Messages([Message("user", "hi")])))
        assert len(server.requests) == 1


def test_a_loop_may_ask():
    with raw_server(reply(json.dumps(TOLD["vllm"]))) as server:
        assert asyncio.run(LM(server.base_url, model="m").acontext_tokens()) == 40960


def _drip(connection: Connection) -> None:
    """A byte now and then, until the client goes away."""
    connection.socket.settimeout(0.05)
    with suppress(OSError):
        while True:
            try:
                if not connection.socket.recv(4096):
                    return
            except TimeoutError:
                connection.send(b"1\r\n \r\n")


def test_a_list_of_models_that_drips_ends_at_the_deadline(monkeypatch):
    """The timeout was for each read, so that a byte a second held the program forever."""
    monkeypatch.setattr(transport, "_SIDE_TIMEOUT_S", 0.3)
    with raw_server(begin(b" ", _drip, content_type="application/json")) as server:
        assert LM(server.base_url, model="m").context_tokens() is None


def test_a_list_of_models_has_the_deadline_of_a_request(monkeypatch):
    """A program with `timeout_s=0.3` does not wait longer aside."""
    ends: list[float] = []

    def send(*args):
        ends.append(args[-1])
        raise TimeoutError

    monkeypatch.setattr(transport, "send", send)
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: 100.0))
    assert LM("http://127.0.0.1:1/v1", model="m", timeout_s=0.25).context_tokens() is None
    assert LM("http://127.0.0.1:1/v1", model="m", timeout_s=600).context_tokens() is None
    assert ends == [100.25] * 2 + [105.0] * 2  # of the list, and of llama.cpp's page


def test_a_list_of_models_that_expands_beyond_its_bound_is_not_read():
    listing = {"data": [{"id": "m", "max_model_len": 40960}], "padding": " " * (17 << 20)}
    bomb = gzip.compress(json.dumps(listing).encode())
    assert len(bomb) < 1 << 15
    with raw_server(reply(bomb, content_encoding="gzip")) as server:
        assert LM(server.base_url, model="m").context_tokens() is None
