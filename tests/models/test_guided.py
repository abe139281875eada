"""`LM(...).constrained()`: servers that hold calls to a grammar or a schema, and servers that
ignore it.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from ferrule import LM, Message, Messages, ReAct, Request, tool
from ferrule.errors import ConstraintError, RateLimitError, UnavailableError
from ferrule.testing import ScriptedLM, serve
from ferrule.values.conversation.exchange import Declarations, Shape

pytest.importorskip("llguidance", reason="needs the extra: pip install 'ferrule[local]'")


@tool
def double(n: int) -> int:
    """Twice a number."""
    return 2 * n


CALL = Request(
    Messages([Message("user", "Twice 21?")]),
    Declarations([double.declaration]),
    "required",
    shape=Shape("call"),
)
WRITTEN = '{"name":"double","arguments":{"n":21}}'
FIELDS = ("grammar", "structured_outputs", "guided_json", "response_format")


class Server:
    """Answers as a server that reads one field of the body, or none, and ignores the others."""

    def __init__(self, field: str = "", *answers: str) -> None:
        self.field, self.answers, self.bodies = field, list(answers), []

    def __call__(self, request):
        body = {
            **request.settings,
            **({"response_format": request.shape} if request.shape is not None else {}),
        }
        self.bodies.append((body, request))
        if body.get("max_tokens") == 64:  # the probe
            constraint = body.get(self.field)
            text = json.dumps(getattr(constraint, "schema", constraint), default=str)
            return '{"word": "ferrule-probe-7f3a"}' if "ferrule-probe-7f3a" in text else "Hello!"
        return self.answers.pop(0)


def guided(server, **options):
    return LM(server.base_url, model="m", max_retries=0).constrained(thought_chars=40, **options)


@pytest.mark.parametrize("field", FIELDS)
def test_the_field_that_a_server_obeys_is_found_once_and_used(field):
    prefix = "I double.<tool_call>" if field == "grammar" else ""
    obedient = Server(field, prefix + WRITTEN, prefix + WRITTEN)
    with serve(ScriptedLM(by=obedient)) as server:
        lm = guided(server)
        found = [lm.complete(CALL), lm.copy(temperature=1.0).complete(CALL)]
    assert [
        (each.tool_calls[0].name, each.tool_calls[0].args, each.finish_reason) for each in found
    ] == [("double", {"n": 21}, "tool_calls")] * 2
    assert found[0].text == ("I double." if prefix else None)
    probes = FIELDS.index(field) + 1
    assert len(obedient.bodies) == probes + 2
    body, request = obedient.bodies[-1]
    assert field in body
    assert not {*FIELDS} - {field} & body.keys()
    assert not request.tools
    assert "double" in request.messages[0].text


def test_a_server_that_ignores_every_form_is_told_apart():
    with (
        serve(ScriptedLM(by=Server())) as server,
        pytest.raises(ConstraintError, match="ignores constraints") as raised,
    ):
        guided(server).complete(CALL)
    assert [
        each in str(raised.value)
        for each in (
            "llguidance grammar: ignored",
            "guided_json: ignored",
            "response_format: ignored",
        )
    ] == [True] * 3


@pytest.mark.parametrize(
    "answer",
    [
        "Twice 21 is 42.",
        '{"name":"halve","arguments":{}}',
        '{"name":"double","arguments":{"n":"x"}}',
        '{"name":"dou',
    ],
)
def test_an_answer_that_does_not_keep_to_its_constraint_is_an_error_and_no_call(answer):
    with (
        serve(ScriptedLM(by=Server("guided_json", answer))) as server,
        pytest.raises(ConstraintError, match="did not follow its guided_json"),
    ):
        guided(server).complete(CALL)


def test_a_server_that_is_not_there_says_nothing_about_constraints():
    with serve(ScriptedLM([])) as server:
        address = server.base_url
    with pytest.raises(UnavailableError):
        LM(address, model="m", max_retries=0).constrained().complete(CALL)


@pytest.mark.parametrize(
    "busy",
    [RateLimitError("slow down", status=429), UnavailableError("Loading model", status=503)],
)
def test_a_busy_server_says_nothing_about_constraints(busy):
    """Nor is another form than the best one remembered for it."""
    obedient = Server("grammar", "I double.<tool_call>" + WRITTEN)
    answers = iter([busy])
    with serve(ScriptedLM(by=lambda request: next(answers, None) or obedient(request))) as server:
        lm = guided(server)
        with pytest.raises(type(busy)):
            lm.complete(CALL)
        assert lm.complete(CALL).tool_calls[0].args == {"n": 21}


def test_other_requests_pass_unchanged_and_stream():
    plain = Request(CALL.messages)
    with serve(ScriptedLM(by=lambda request: "It is 42.")) as server:
        lm = guided(server)
        assert lm.complete(plain).text == "It is 42."
        assert len(list(lm.stream(plain))) > 2
        assert "grammar" not in server.requests[0]


def test_async_code_gets_the_same():
    async def ask(lm):
        found = await lm.acomplete(CALL)
        streamed = [each async for each in lm.astream(CALL)]
        return found, streamed

    with serve(ScriptedLM(by=Server("structured_outputs", WRITTEN, WRITTEN))) as server:
        found, streamed = asyncio.run(ask(guided(server)))
    assert found.tool_calls[0].args == {"n": 21}
    assert streamed[-1].tool_calls == found.tool_calls

    with (
        serve(ScriptedLM(by=Server())) as server,
        pytest.raises(ConstraintError, match="ignores constraints"),
    ):
        asyncio.run(guided(server).acomplete(CALL))


def test_an_agent_runs_on_it_and_sees_its_steps_as_text():
    finish = '{"name":"finish","arguments":{"answer":42}}'
    obedient = Server("guided_json", WRITTEN, finish)
    with serve(ScriptedLM(by=obedient)) as server:
        found = ReAct("question -> answer: int", [double])(question="Twice 21?", lm=guided(server))
    assert (found.answer, found.trajectory["observation_0"]) == (42, "42")
    _, last = obedient.bodies[-1]
    assert [each.text for each in last.messages][-2:] == [
        '<tool_call>{"name":"double","arguments":{"n":21}}',
        "Result of double: 42",
    ]
