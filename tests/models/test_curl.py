"""A request as a command of `curl` (`LM.curl`): the body as it is sent, and no key."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from ferrule import LM, Message, Messages, Request
from ferrule.testing import ScriptedLM, serve

REQUEST = Request(Messages([Message("user", 'It\'s `x` "y" \\ $HOME\nand é')]))


@pytest.mark.parametrize(
    ("model", "header"),
    [
        ("openai/gpt-5-mini", "authorization: Bearer $OPENAI_API_KEY"),
        ("anthropic/claude-x", "x-api-key: $ANTHROPIC_API_KEY"),
        ("gemini/gemini-x", "x-goog-api-key: $GEMINI_API_KEY"),
    ],
)
def test_a_command_names_the_variable_of_the_key(
    model: str,
    header: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variable = header.partition("$")[2]
    monkeypatch.setenv(variable, "a-key-that-nobody-sees")
    command = LM(model).curl(REQUEST)
    assert f'-H "{header}"' in command
    assert "nobody" not in command


def test_whatever_could_be_a_key_is_a_variable() -> None:
    lm = LM(
        "http://127.0.0.1:9/v1?api-version=2&code=5ecret",
        model="m",
        api_key="5ecret-key",
        headers={"X-Tenant": "5ecret"},
        extra={"note": "5ecret-key"},
    )
    command = lm.curl(REQUEST)
    assert "5ecret" not in command
    assert "?api-version=2&code=$CODE" in command
    assert '-H "x-tenant: $X_TENANT"' in command


def test_the_body_is_the_one_that_is_sent() -> None:
    def answer(request: Any) -> str:
        return request.messages[-1].text

    with serve(ScriptedLM(by=answer)) as server:
        lm = LM(server.base_url, model="m", temperature=0)
        words = shlex.split(lm.curl(REQUEST).replace("\\\n", ""))
        assert words[:2] == ["curl", f"{server.base_url}/chat/completions"]
        body = json.loads(words[-1])
        assert lm.complete(REQUEST).text == REQUEST.messages[0].text
    assert body == {
        "model": "m",
        "temperature": 0,
        "messages": [{"role": "user", "content": REQUEST.messages[0].text}],
    }


def test_a_question_is_a_request() -> None:
    lm = LM("http://127.0.0.1:9/v1", model="m", temperature=0)
    assert lm.curl("Who?") == lm.curl(Request(Messages([Message("user", "Who?")])))
