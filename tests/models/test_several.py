"""Several answers to one request: in one request where the wire has that, else side by side."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from raw_server import Act, RawServer, raw_server, reply

from ferrule import LM, Message, Messages, Request, Response, Usage
from ferrule.errors import BadRequestError
from ferrule.models.several import SeveralLM
from ferrule.testing import ScriptedLM

ASKED = Request(Messages([Message("user", "Why?")]), settings={"temperature": 1})
HOW = pytest.mark.parametrize(
    "how",
    [lambda lm: lm.complete(ASKED), lambda lm: asyncio.run(lm.acomplete(ASKED))],
    ids=["sync", "async"],
)
Ask = Callable[[Any], Response]


def chat(*texts: str) -> Act:
    choices = [
        {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for i, text in enumerate(texts)
    ]
    return reply(
        json.dumps(
            {
                "choices": choices,
                "usage": {"prompt_tokens": 5, "completion_tokens": 2 * len(texts)},
            },
        ),
    )


def gemini(*texts: str) -> Act:
    found = [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"} for text in texts]
    return reply(
        json.dumps(
            {
                "candidates": found,
                "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2 * len(texts)},
            },
        ),
    )


def anthropic(text: str) -> Act:
    body = {
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }
    return reply(json.dumps(body))


def responses(text: str) -> Act:
    item = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text}],
    }
    return reply(
        json.dumps(
            {
                "status": "completed",
                "output": [item],
                "usage": {"input_tokens": 5, "output_tokens": 2},
            },
        ),
    )


def bodies(server: RawServer) -> list[dict[str, Any]]:
    return [json.loads(body) for _, body in server.requests]


def texts(response: Response) -> list[str | None]:
    return [each.text for each in (response, *response.others)]


@HOW
def test_chat_completions_answer_one_request_several_times(how: Ask) -> None:
    with raw_server(chat("a", "<think>so</think>b", "c")) as server:
        response = how(SeveralLM(LM(server.base_url, model="m"), 3))
    assert texts(response) == ["a", "b", "c"]
    assert response.others[0].reasoning == "so"
    assert response.usage == Usage(5, 6, 0, 1)
    assert [(body["n"], body["temperature"]) for body in bodies(server)] == [(3, 1)]


@HOW
def test_gemini_answers_one_request_several_times(how: Ask) -> None:
    with raw_server(gemini("a", "b")) as server:
        lm = LM(server.base_url, model="m", wire="gemini", extra={"generationConfig": {"topK": 3}})
        response = how(SeveralLM(lm, 2))
    assert texts(response) == ["a", "b"]
    assert response.usage == Usage(5, 4, 0, 1)
    assert [body["generationConfig"] for body in bodies(server)] == [
        {"temperature": 1, "topK": 3, "candidateCount": 2},
    ]


@HOW
@pytest.mark.parametrize(
    ("wire", "answer"),
    [("anthropic", anthropic), ("openai_responses", responses)],
)
def test_other_wires_are_asked_side_by_side(
    how: Ask,
    wire: str,
    answer: Callable[[str], Act],
) -> None:
    everybody = threading.Barrier(3)  # no answer before all have asked

    def together(text: str) -> Act:
        def act(connection: Any) -> None:
            everybody.wait(60)
            answer(text)(connection)

        return act

    with raw_server(together("a"), together("b"), together("c")) as server:
        response = how(SeveralLM(LM(server.base_url, model="m", wire=wire), 3))
    assert sorted(map(str, texts(response))) == ["a", "b", "c"]
    assert response.usage == Usage(15, 6, 0, 3)
    assert not any("n" in body for body in bodies(server))


@HOW
def test_a_server_that_gives_fewer_is_asked_for_the_rest(how: Ask) -> None:
    with raw_server(chat("a"), chat("b"), chat("b")) as server:
        response = how(SeveralLM(LM(server.base_url, model="m"), 3))
    assert texts(response) == ["a", "b", "b"]
    assert response.usage.calls == 3
    assert [body.get("n") for body in bodies(server)] == [3, None, None]


@HOW
def test_a_model_that_refuses_the_setting_is_asked_side_by_side(how: Ask) -> None:
    with raw_server(
        reply('{"error": {"message": "n must be 1"}}', "400 Bad Request"),
        chat("a"),
        chat("a"),
    ) as server:
        assert texts(how(SeveralLM(LM(server.base_url, model="m"), 2))) == ["a", "a"]
    assert [body.get("n") for body in bodies(server)] == [2, None, None]


@HOW
def test_what_is_wrong_with_the_request_is_raised(how: Ask) -> None:
    refused = reply('{"error": {"message": "no such model"}}', "400 Bad Request")
    with raw_server(refused) as server, pytest.raises(BadRequestError, match="no such model"):
        how(SeveralLM(LM(server.base_url, model="m"), 2))


@HOW
def test_an_answer_that_was_withheld_leaves_the_others(how: Ask) -> None:
    choices = [
        {"message": {"content": "a"}},
        {"message": {"content": None}, "finish_reason": "content_filter"},
        {"message": {"content": "c"}},
    ]
    with raw_server(reply(json.dumps({"choices": choices})), chat("d")) as server:
        assert texts(how(SeveralLM(LM(server.base_url, model="m"), 3))) == ["a", "c", "d"]


@HOW
def test_any_model_is_asked_side_by_side(how: Ask) -> None:
    lm = ScriptedLM(
        [
            Response("a", usage=Usage(calls=1), cost=1.0),
            Response("b", cost=0.5),
            Response("c", cost=0.25),
        ],
    )
    response = how(SeveralLM(lm, 3))
    assert sorted(map(str, texts(response))) == ["a", "b", "c"]
    assert response.cost == 1.75
    assert len(lm.requests) == 3


@HOW
def test_the_cost_of_answers_is_unknown_if_that_of_one_is(how: Ask) -> None:
    assert (
        how(SeveralLM(ScriptedLM(["a", Response("b", cost=0.5), Response("c", cost=0.25)]), 3)).cost
        is None
    )
