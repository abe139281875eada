from __future__ import annotations

import asyncio
import pickle
import threading
from copy import deepcopy

import pytest
from agent_script import fields
from wire_servers import serve

from ferrule import (
    LM,
    BaseLM,
    Capabilities,
    Delta,
    FallbackLM,
    Message,
    Messages,
    Predict,
    Request,
    Response,
)
from ferrule.errors import AuthenticationError, ConfigurationError, RateLimitError, UnavailableError
from ferrule.events import ModelFellBack
from ferrule.testing import ScriptedLM

ASKED = Request(Messages([Message("user", "hi")]))
BUSY = RateLimitError("slow down", status=429)
DOWN = UnavailableError("it is down", status=503)


class Named(BaseLM):
    """Answers, or fails, and counts how often it was asked."""

    def __init__(self, name: str, answer, **can) -> None:
        self.name, self.answer, self.capabilities = name, answer, Capabilities(**can)
        self.asked: list[Request] = []

    def complete(self, request):
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return Response(self.answer)


async def last_of(stream):
    return [item async for item in stream][-1]


WAYS = {
    "complete": lambda lm: lm.complete(ASKED),
    "acomplete": lambda lm: asyncio.run(lm.acomplete(ASKED)),
    "stream": lambda lm: list(lm.stream(ASKED))[-1],
    "astream": lambda lm: asyncio.run(last_of(lm.astream(ASKED))),
}
ways = pytest.mark.parametrize("way", WAYS)


@ways
@pytest.mark.parametrize("error", [BUSY, DOWN], ids=["busy", "down"])
def test_the_next_model_is_asked_where_one_fails(way, error):
    first, second, third = Named("a", error), Named("b", "fine"), Named("c", "unused")
    found = WAYS[way](FallbackLM([first, second, third]))
    assert (found.text, found.model) == ("fine", "b")
    assert [len(each.asked) for each in (first, second, third)] == [1, 1, 0]


@ways
def test_other_errors_are_raised(way):
    second = Named("b", "fine")
    with pytest.raises(AuthenticationError):
        WAYS[way](FallbackLM([Named("a", AuthenticationError("no")), second]))
    assert second.asked == []


@ways
def test_the_program_says_after_which_errors(way):
    lm = FallbackLM(
        [Named("a", AuthenticationError("no")), Named("b", "fine")],
        on=(AuthenticationError, UnavailableError),
    )
    assert WAYS[way](lm).text == "fine"


@ways
def test_the_error_of_the_last_model_is_raised(way):
    with pytest.raises(UnavailableError, match="it is down"):
        WAYS[way](FallbackLM([Named("a", BUSY), Named("b", DOWN)]))


class Breaking(Named):
    """Streams a piece, then fails."""

    def stream(self, request):
        yield Delta("he")
        raise DOWN

    async def astream(self, request):
        yield Delta("he")
        raise DOWN


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_an_answer_that_has_begun_is_not_begun_again(way):
    second = Named("b", "fine")
    with pytest.raises(UnavailableError):
        WAYS[way](FallbackLM([Breaking("a", ""), second]))
    assert second.asked == []


def test_real_servers_take_turns():
    with serve(ScriptedLM([BUSY, "first"])) as busy, serve(ScriptedLM(["second"])) as idle:
        lm = FallbackLM([busy.lm(max_retries=0), LM(idle.base_url, model="m", wire="anthropic")])
        assert [lm("hi"), lm("hi")] == ["second", "first"]


def test_a_run_reports_it():
    first = Named("a", BUSY)
    program = Predict("question -> answer", lm=FallbackLM([first, Named("b", fields(answer="42"))]))
    events: list = []
    with program.stream(question="?") as stream:
        events.extend(stream)
        prediction = stream.prediction
    [fell] = [event for event in events if isinstance(event, ModelFellBack)]
    assert (fell.model, fell.following, fell.error, bool(fell.run_id)) == ("a", "b", BUSY, True)
    assert prediction.answer == "42"


def test_its_capabilities_are_those_that_all_models_have():
    can = FallbackLM(
        [
            Named("a", "x", images=True, json_schema=True, context_tokens=1000),
            Named("b", "x", json_schema=True, parallel_tools=False),
            Named("c", "x", json_schema=True, context_tokens=500),
        ],
    ).capabilities
    assert can == Capabilities(
        json_schema=True, parallel_tools=False, context_tokens=500, provider_tools=()
    )


def test_a_copy_has_copies_of_all_models():
    lm = FallbackLM([LM("openai/a", temperature=0), LM("groq/b")])
    hot = lm.copy(temperature=1)
    assert [each.settings for each in hot.models] == [{"temperature": 1}] * 2
    assert [each.settings for each in lm.models] == [{"temperature": 0}, {}]
    assert deepcopy(lm) is lm
    assert repr(lm) == "FallbackLM([LM('openai/a', temperature=0), LM('groq/b')])"


def test_it_is_pickled_without_keys():
    lm = FallbackLM([LM("openai/a", api_key="sk-secret"), LM("groq/b")])
    found = pickle.dumps(lm)
    assert b"sk-secret" not in found
    assert pickle.loads(found).name == "openai/a or groq/b"


def test_it_is_made_of_models():
    for wrong in ([], ["openai/a"], [LM]):
        with pytest.raises(ConfigurationError):
            FallbackLM(wrong)
    for wrong in ("openai/gpt-5-mini", ScriptedLM([])):
        with pytest.raises(ConfigurationError, match="`FallbackLM` takes a list of models, found"):
            FallbackLM(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="classes of `LMError`"):
        FallbackLM([Named("a", "x")], on=ValueError)  # type: ignore[arg-type]


def test_threads_share_it():
    lm = FallbackLM([Named("a", BUSY), Named("b", "fine")])
    found: list = []
    threads = [threading.Thread(target=lambda: found.append(lm("hi"))) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == ["fine"] * 8
