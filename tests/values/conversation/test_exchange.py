"""Requests and responses."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ferrule.values.calls.call import ToolCall
from ferrule.values.conversation.exchange import (
    NO_TOOLS,
    Declarations,
    Request,
    Response,
    Shape,
    Usage,
)
from ferrule.values.conversation.message import Message, Messages

SRC = Path(__file__).parents[3] / "src"
ADD = {
    "type": "function",
    "function": {"name": "add", "description": "", "parameters": {"type": "object"}},
}
SUB = {
    "type": "function",
    "function": {"name": "sub", "description": "", "parameters": {"type": "object"}},
}
HI = Messages([Message("user", "hi")])

counts = st.integers(0, 10**12)
usages = st.builds(Usage, counts, counts, counts, counts)


@given(usages, usages, usages)
def test_usages_add_up_in_any_order(a, b, c):
    """Usage totals."""
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + Usage() == a
    assert (a + b).total_tokens == a.total_tokens + b.total_tokens
    assert sum([a, b, c], Usage()) == a + b + c


def test_declarations_are_a_sequence_whose_json_is_made_once():
    """The tools of a request are rendered once."""
    tools = Declarations([ADD, SUB])
    assert (len(tools), tools[0], list(tools), list(tools[1:])) == (2, ADD, [ADD, SUB], [SUB])
    assert ADD in tools
    assert tools.json is tools.json
    assert json.loads(tools.json) == [ADD, SUB]
    assert not NO_TOOLS
    assert NO_TOOLS.json == b"[]"
    assert repr(Declarations([])) == "Declarations([])"


def test_declarations_are_equal_exactly_where_a_model_reads_the_same():
    """Order of keys and kinds of numbers are no difference to a dict, but to a prompt they are."""
    assert Declarations([ADD]) == Declarations(tools=(dict(ADD),))
    assert hash(Declarations([ADD])) == hash(Declarations([dict(ADD)]))
    assert Declarations([ADD, SUB]) != Declarations([SUB, ADD])
    assert Declarations([{"a": 1, "b": 2}]) != Declarations([{"b": 2, "a": 1}])
    assert Declarations([{"a": 1}]) != Declarations([{"a": True}])
    assert Declarations([ADD]) != [ADD]


ADDING = Declarations([ADD])
REQUESTS = [
    Request(HI),
    Request(HI.then(Message("user", "more"))),
    Request(HI, ADDING),  # these share their tools, and what is kept with them
    Request(HI, Declarations([SUB])),
    Request(HI, ADDING, "required"),
    Request(HI, ADDING, {"type": "function", "function": {"name": "add"}}),
    Request(HI, ADDING, None, parallel=False),
    Request(HI, ADDING, None, parallel=True),
    Request(HI, shape=Shape("json_object")),
    Request(HI, shape=Shape("json_schema", {"type": "object"})),
    Request(HI, shape=Shape("json_schema", {"type": "object"}, "other")),
    Request(HI, ADDING, shape=Shape("json_object")),
    Request(HI, ADDING, settings={"temperature": 0}),
    Request(HI, settings={"temperature": 0}),
    Request(HI, settings={"temperature": 1}),
    Request(HI, settings={"stop": ["a", "b"]}),
    Request(HI, settings={"stop": ["ab"]}),
    Request(Messages()),
]


def test_a_request_takes_its_tools_as_a_list():
    """In the canonical form; `Declarations` is no public name."""
    for tools in ([ADD], (ADD,), Declarations([ADD])):
        request = Request(HI, tools=tools)
        assert request.tools == ADDING
        assert request.digest == Request(HI, ADDING).digest
    assert Request(HI, ADDING).tools is ADDING
    assert all(
        Request(HI, [SUB]).tools == Declarations([SUB]) for _ in range(40)
    )  # with the compiled `__init__`, too


def test_whatever_a_model_is_asked_changes_the_digest():
    """A request that differs is seen in a replay."""
    digests = [request.digest for request in REQUESTS]
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 32 and int(digest, 16) >= 0 for digest in digests)


def test_what_is_kept_of_one_request_is_never_taken_for_another():
    """`1` is `True` to a dict, but not in what is sent."""
    tools = Declarations([ADD])
    digests = {Request(HI, tools, None, parallel).digest for parallel in (True, 1, False, 0, None)}
    assert len(digests) == 5


@pytest.mark.parametrize("request_", REQUESTS, ids=range(len(REQUESTS)))
def test_a_following_request_is_as_if_it_were_made_anew(request_):
    """What was computed of the rest is kept, and right."""
    first = request_.digest
    longer = request_.messages.then(Message("assistant", "well"))
    following = request_.following(longer)
    anew = Request(
        Messages(list(longer)),
        request_.tools,
        request_.tool_choice,
        request_.parallel,
        request_.shape,
        request_.settings,
    )
    assert following == anew
    assert following.digest == anew.digest != first
    assert request_.digest == first


def test_a_digest_is_the_same_in_every_process():
    """A run goes on in another process, with other hashes."""
    program = (
        "from ferrule.values.conversation.exchange import *; from ferrule.values.conversation.message import *\n"
        "settings = {'stop': {'a', 'b', 'c', 'd'}, 'deep': [{'x': {'p', 'q', 'r'}}]}\n"
        "print(Request(Messages([Message('user', 'hi')]), shape=Shape('json_schema', {'enum': {'u', 'v', 'w'}}), settings=settings).digest)"
    )
    found = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(SRC)}
        found.add(
            subprocess.run(
                [sys.executable, "-c", program],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout,
        )
    assert len(found) == 1


def test_an_answer_is_the_assistants_message():
    """Calls and texts are recorded as they came."""
    call = ToolCall(name="add", args={"a": 1}, id="c1")
    assert Response("hi", (call,), reasoning="hm", extra={"x": 1}).message() == Message(
        "assistant",
        "hi",
        (call,),
        reasoning="hm",
        extra={"x": 1},
    )
    assert Response().message() == Message("assistant", "")


def test_responses_are_compared_without_the_providers_own_answer():
    """It is never journalled."""
    assert Response("a", body={"id": 1}) == Response("a", body={"id": 2})
    assert "secret" not in repr(Response("a", body="secret"))


def test_the_own_answer_of_a_provider_is_decoded_when_it_is_first_read():
    """Its objects, which few programs look at, were a fifth of what a run keeps."""
    response = Response("hi", body=b'{"id": "x", "choices": [{"n": 1.0}]}')
    again = pickle.loads(pickle.dumps(replace(response, text="ho")))
    assert response.raw == again.raw == {"id": "x", "choices": [{"n": 1.0}]}
    assert response.raw is response.raw
    assert Response(body={"id": 1}).raw == {"id": 1}
    with pytest.raises(AttributeError):
        response.raw = None


def test_a_request_can_be_copied_and_pickled_after_its_digest_was_made():
    request_ = Request(
        Messages([Message("user", "x")]),
        Declarations([{"type": "function", "function": {"name": "f"}}]),
    )
    digest = request_.digest
    for again in (copy.deepcopy(request_), pickle.loads(pickle.dumps(request_))):
        assert again == request_
        assert again.digest == digest
