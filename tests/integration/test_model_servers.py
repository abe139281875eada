"""llama.cpp's server with random weights, and LiteLLM's proxy with mock answers: what they say of
ours, and we of theirs. (L3, L4)
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from model_servers import ALTERNATING, litellm_proxy, llama_server
from raw_server import raw_server, reply

from ferrule import LM, Image, Message, Messages, Request, Text, ToolCall
from ferrule.errors import BadRequestError, ConstraintError, ContextOverflowError, RateLimitError
from ferrule.values.conversation.exchange import Declarations, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.skipif(
        sys.platform == "win32",
        reason="the servers are started by their POSIX paths",
    ),
]
CALL = ToolCall(name="add", args={"a": 1}, id="call_1")
HISTORY = Messages([
    Message("system", "Be brief."), Message("user", "hi"), Message("assistant", "ho"), Message("user", "add"),
    Message("assistant", "", (CALL,)), Message("tool", "3", tool_call_id="call_1", name="add"),
])  # fmt: skip
_ARGUMENTS = {"x": {"type": "integer"}, "label": {"type": "string", "maxLength": 20}}
_SCHEMA = {
    "type": "object",
    "properties": _ARGUMENTS,
    "required": ["x"],
    "additionalProperties": False,
}
PLACE = Declarations([{"type": "function", "function": {"name": "place", "parameters": _SCHEMA}}])
USERS = Request(Messages([Message("system", "s"), Message("user", "a"), Message("user", "b")]))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with llama_server(tmp_path_factory.mktemp("llama")) as url:
        yield url


@pytest.fixture(scope="module")
def strict_llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with llama_server(tmp_path_factory.mktemp("strict"), ALTERNATING) as url:
        yield url


QUOTA = '{"error": {"message": "You exceeded your current quota, please check your plan and billing details.", "code": "insufficient_quota"}}'


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    slow = reply('{"error": {"message": "slow down"}}', "429 x", retry_after="700")
    with raw_server(reply(QUOTA, "429 x")) as spent, raw_server(slow) as limited:
        models = {
            "mock": {"model": "openai/gpt-4o-mini", "mock_response": "It is 42."},
            "spent": {"model": "openai/m", "api_base": spent.base_url},
            "limited": {"model": "openai/m", "api_base": limited.base_url},
        }
        with litellm_proxy(tmp_path_factory.mktemp("proxy"), models) as url:
            yield url


@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses", "anthropic"])
def test_llama_takes_a_history_on_every_wire(llama, wire):
    lm = LM(
        llama,
        model="m",
        wire=wire,
        max_tokens=4,
        max_retries=0,
        temperature=0,
    )  # by chance, its first token ends the answer
    assert lm.complete(Request(HISTORY)).usage.output_tokens > 0
    assert list(lm.stream(Request(HISTORY)))[-1].usage.output_tokens > 0


def test_llama_tells_its_window(llama):
    assert LM(llama, model="m").context_tokens() == 4096


def test_llama_says_what_it_cannot_do_and_is_asked_once(llama):
    picture = Message("user", (Text(text="?"), Image(data="aGk=", media_type="image/png")))
    with pytest.raises(BadRequestError, match="image input is not supported") as raised:
        LM(llama, model="m", max_tokens=4).complete(Request(Messages([picture])))
    assert "Tried" not in str(raised.value)
    with pytest.raises(ContextOverflowError):
        LM(llama, model="m", max_tokens=4)("x" * 9000)


def test_a_template_of_llama_gets_alternating_turns(strict_llama):
    lm = LM(strict_llama, model="m", max_tokens=4, max_retries=0)
    assert lm.complete(USERS).usage.output_tokens > 0
    assert lm._turns.merges


@pytest.fixture(scope="module")
def long_llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with llama_server(tmp_path_factory.mktemp("long"), most_tokens=2000) as url:
        yield url


def test_llama_with_random_weights_writes_valid_calls_under_its_grammar(long_llama):
    pytest.importorskip("llguidance", reason="needs the extra: pip install 'ferrule[local]'")
    """C15."""
    lm = LM(long_llama, model="m", temperature=1.0, max_retries=0, max_tokens=2000).constrained(
        thought_chars=30,
    )
    for seed in range(20):
        found = lm.complete(
            Request(
                USERS.messages, PLACE, "required", shape=Shape("call"), settings={"seed": seed}
            ),
        )
        [call] = found.tool_calls
        assert (call.name, call.args.keys() - {"label"}, type(call.args["x"])) == (
            "place",
            {"x"},
            int,
        )
    assert lm._known[0].name == "llguidance grammar"


def test_litellm_ignores_constraints_and_is_told_apart(proxy):
    with pytest.raises(ConstraintError, match="ignores constraints"):
        LM(proxy, model="mock").constrained().complete(
            Request(USERS.messages, PLACE, "required", shape=Shape("call")),
        )


def test_litellm_reports_the_cost(proxy):
    found = LM(proxy, model="mock").complete(USERS)
    assert (found.text, (found.cost or 0) > 0) == ("It is 42.", True)
    *_, streamed = LM(proxy, model="mock").stream(USERS)
    assert streamed.text == "It is 42."


def test_litellm_passes_on_the_wait_and_the_spent_quota(proxy):
    with pytest.raises(RateLimitError) as limited:
        LM(proxy, model="limited").complete(USERS)
    assert limited.value.retry_after_s == 700
    with pytest.raises(RateLimitError) as spent:
        LM(proxy, model="spent").complete(USERS)
    assert "Tried" not in str(spent.value)
