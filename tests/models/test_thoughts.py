"""Thoughts in the text of an answer, asked for without a program: whole and streamed, over HTTP and
through a client.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ferrule.models.hosted import LM
from ferrule.testing.scripted import ScriptedLM
from ferrule.testing.server.server import serve
from ferrule.values.conversation.exchange import Delta, Request, Response
from ferrule.values.conversation.message import Message, Messages

ASKED = Request(Messages([Message("user", "Which city?")]))


@pytest.mark.parametrize(
    "text",
    ["<think>\nhm, yes\n</think>\n\nParis it is.", "hm, yes\n</think>\n\nParis it is."],
    ids=["opened", "unopened"],
)
def test_a_model_over_http_tells_them_apart(text: str) -> None:
    with serve(ScriptedLM(by=lambda _: text)) as server:
        lm = LM(server.base_url, model="m")
        whole = lm.complete(ASKED)
        *deltas, streamed = lm.stream(ASKED)
        assert lm("Which city?") == "Paris it is."
    assert isinstance(streamed, Response)
    assert (
        (whole.text, whole.reasoning)
        == (streamed.text, streamed.reasoning)
        == ("Paris it is.", "hm, yes")
    )
    if text.startswith("<"):
        assert deltas == [
            Delta("", "hm,"),
            Delta("", " yes"),
            Delta("Paris "),
            Delta("it "),
            Delta("is."),
        ]


def test_a_model_behind_a_client_tells_them_apart() -> None:
    def create(**_: object) -> dict[str, object]:
        return {
            "choices": [
                {"message": {"content": "<think>hm</think>Paris."}, "finish_reason": "stop"},
            ],
        }

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    found = LM.from_client(client, model="m").complete(ASKED)
    assert (found.text, found.reasoning) == ("Paris.", "hm")
