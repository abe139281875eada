"""Servers whose chat templates demand turns of a form, as Gemma's and Mistral's do, over HTTP on
loopback.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from itertools import pairwise

import pytest
from agent_script import fields, native_step, text_step
from sdk_clients import openai_client
from wire_servers import serve

from ferrule import LM, Image, Message, Messages, Predict, ReAct, Request, Text, context, tool
from ferrule.errors import BadRequestError, MaxTurnsReachedError
from ferrule.models.turns import Turns, demands_alternation
from ferrule.testing import ScriptedLM

USERS = Request(
    Messages(
        [Message("system", "s"), Message("user", "a"), Message("user", "b"), Message("user", "c")],
    ),
)
TEMPLATES = {
    "gemma": "Conversation roles must alternate user/assistant/user/assistant/...",
    "mistral": "After the optional system message, conversation roles must alternate user and assistant roles except for tool calls and results.",
    "llama.cpp": "While executing CallExpression at line 19: Error: Jinja Exception: Conversation roles must alternate user/assistant",
    "bedrock": 'messages: roles must alternate between "user" and "assistant", but found multiple "user" roles in a row',
    "perplexity": "After the (optional) system message(s), user or tool message(s) should alternate with assistant message(s).",
    "deepseek": "deepseek-reasoner does not support successive user or assistant messages (messages[1] and messages[2] in your input).",
}
NO_SYSTEM = {
    "gemma": "System role not supported",
    "mistral": "Only user and assistant roles are supported!",
    "google": "Developer instruction is not enabled for models/gemma-3-27b-it",
}


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


class Template:
    """A model behind a template that refuses other turns."""

    def __init__(
        self,
        answers=(),
        words=TEMPLATES["gemma"],
        *,
        status: int = 400,
        no_system: str = "",
    ) -> None:
        self.answers = list(answers)
        self.words, self.status, self.no_system = words, status, no_system
        self.refused = 0
        self.taken: list[Request] = []

    def __call__(self, request):
        roles = [message.role for message in request.messages]
        if self.no_system and roles[0] == "system":
            self.refused += 1
            raise BadRequestError(self.no_system, status=self.status)
        roles = roles[roles[0] == "system" :]
        if any(role != ("user", "assistant")[place % 2] for place, role in enumerate(roles)):
            self.refused += 1
            raise BadRequestError(self.words, status=self.status)
        self.taken.append(request)
        return self.answers.pop(0) if self.answers else "fine"


def talk(request) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in request.messages]


async def last_of(stream):
    return [item async for item in stream][-1]


WAYS = {
    "complete": lambda lm: lm.complete(USERS),
    "acomplete": lambda lm: asyncio.run(lm.acomplete(USERS)),
    "stream": lambda lm: list(lm.stream(USERS))[-1],
    "astream": lambda lm: asyncio.run(last_of(lm.astream(USERS))),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wire", ["openai_chat", "openai_responses"])
def test_turns_of_one_role_are_merged_where_the_server_demands_it(way, wire, caplog):
    """Asked once more, and remembered for the model and its copies."""
    template = Template()
    with (
        serve(ScriptedLM(by=template)) as server,
        caplog.at_level(logging.WARNING, "ferrule.models"),
    ):
        lm = LM(server.base_url, model="m", wire=wire)
        assert [WAYS[way](each).text for each in (lm, lm, lm.copy(temperature=1))] == ["fine"] * 3
    assert template.refused == 1
    assert talk(template.taken[0]) == [("system", "s"), ("user", "a\n\nb\n\nc")]
    assert [record.module for record in caplog.records] == ["turns"]


def test_any_other_server_gets_the_turns_as_they_are():
    """The default prompts stay equal."""
    lm = ScriptedLM(["fine"])
    with serve(lm) as server:
        server.lm().complete(USERS)
    assert talk(lm.requests[0]) == talk(USERS)


@pytest.mark.parametrize("words", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("status", [400, 500])
def test_the_refusal_is_known_by_its_words(words, status):
    """Llama.cpp's server used to answer with status 500."""
    with serve(ScriptedLM(by=Template(words=words, status=status))) as server:
        assert server.lm(max_retries=0).complete(USERS).text == "fine"


@pytest.mark.parametrize("words", NO_SYSTEM.values(), ids=NO_SYSTEM)
def test_a_system_message_that_is_refused_begins_the_first_question(words):
    template = Template(no_system=words)
    with serve(ScriptedLM(by=template)) as server:
        assert server.lm().complete(USERS).text == "fine"
    assert talk(template.taken[0]) == [("user", "s\n\na\n\nb\n\nc")]


def test_a_refusal_that_merging_cannot_mend_is_raised():
    odd = Request(Messages([Message("assistant", "a"), Message("user", "b")]))
    with (
        serve(ScriptedLM(by=Template())) as server,
        pytest.raises(BadRequestError, match="must alternate"),
    ):
        server.lm().complete(odd)


@pytest.mark.parametrize(
    "words",
    ["messages must not be empty", "the role `bot` is unknown", "tool roles are not supported"],
)
def test_other_refusals_of_messages_are_not_taken_for_it(words):
    assert not demands_alternation(BadRequestError(words))
    assert not Turns().learn(BadRequestError(words), USERS, USERS)


def test_pictures_stay_in_their_place():
    picture = Image(url="https://example.com/a.png")
    turns = Turns()
    turns.merges = True
    [merged] = turns.accepted(
        Request(
            Messages(
                [
                    Message("user", "a"),
                    Message("user", (Text(text="b"), picture)),
                    Message("user", "c"),
                ],
            ),
        ),
    ).messages
    assert merged.content == (Text(text="a"), Text(text="b"), picture, Text(text="c"))


def test_what_was_learnt_is_pickled():
    """A worker process need not be refused again."""
    template = Template()
    with serve(ScriptedLM(by=template)) as server:
        lm = server.lm()
        lm.complete(USERS)
        assert pickle.loads(pickle.dumps(lm)).complete(USERS).text == "fine"
    assert template.refused == 1


def test_a_client_of_the_users_learns_it_too():
    template = Template()
    with (
        serve(ScriptedLM(by=template)) as server,
        openai_client(server.base_url) as client,
    ):
        lm = LM.from_client(client, "m")
        assert [lm.complete(USERS).text, list(lm.stream(USERS))[-1].text] == ["fine", "fine"]
    assert template.refused == 1


STEPS = [
    text_step("hm", "add", {"a": 1, "b": 2}),
    text_step("hm", "add", {"a": 3, "b": 4}),
    text_step("done", "finish"),
]


def test_an_agent_in_text_mode_goes_on_and_its_prompt_only_grows():
    """Past steps are merged with the question, and each body begins with the one before it, except
    its end.
    """
    template = Template([*STEPS, fields(reasoning="r", answer="7")])
    with serve(ScriptedLM(by=template)) as server:
        assert (
            ReAct("question -> answer", [add], native=False)(question="?", lm=server.lm()).answer
            == "7"
        )
        bodies = server.requests
    assert template.refused == 1
    assert [[message.role for message in request.messages] for request in template.taken[:3]] == [
        ["system", "user"],
    ] * 3
    texts = [request.messages[1].text for request in template.taken[:3]]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert "observation_1" in texts[2]
    assert len(bodies) == 5


def test_an_agent_with_native_calls_goes_on_in_text():
    """Such a template has no place for calls and their results."""
    native = native_step("hm", "add", {"a": 1, "b": 2})
    template = Template([native, *STEPS[1:], fields(reasoning="r", answer="7")])
    with serve(ScriptedLM(by=template)) as server:
        lm = server.lm()
        assert ReAct("question -> answer", [add])(question="?", lm=lm).answer == "7"
        assert template.refused == 2  # of the calls, and of two user turns
        template.answers = [text_step("done", "finish"), fields(reasoning="r", answer="8")]
        assert ReAct("question -> answer", [add])(question="?", lm=lm).answer == "8"
    assert template.refused == 2


def test_predict_keeps_working():
    template = Template([fields(answer="7")])
    with serve(ScriptedLM(by=template)) as server:
        assert (
            Predict("question -> answer", demos=[{"question": "a", "answer": "b"}])(
                question="?",
                lm=server.lm(),
            ).answer
            == "7"
        )


def calls_in_fields(*calls) -> str:
    return fields(tool_calls=[{"name": name, "args": args} for name, args in calls])


def test_predict_with_native_calls_goes_on_in_text():
    """Its calls so far are told as text, and none of them runs again."""
    made: list[tuple[int, int]] = []

    @tool
    def plus(a: int, b: int) -> int:
        """Add."""
        made.append((a, b))
        return a + b

    both = {
        "text": "hm",
        "tool_calls": [
            {"name": "plus", "args": {"a": 1, "b": 2}},
            {"name": "plus", "args": {"a": 3, "b": 4}},
        ],
    }
    template = Template([both, calls_in_fields(("plus", {"a": 3, "b": 7})), fields(answer="10")])
    with serve(ScriptedLM(by=template)) as server:
        lm = server.lm()
        prediction = Predict("question -> answer", tools=[plus])(question="3 + 3 + 4?", lm=lm)
        assert (prediction.answer, sorted(made)) == (
            "10",
            [(1, 2), (3, 4), (3, 7)],
        )  # two of them ran at once
        assert [len(step.calls) for step in prediction.trajectory.steps] == [2, 1]
        assert template.refused == 1
        roles = [[message.role for message in request.messages] for request in template.taken]
        assert roles == [["system", "user", *["assistant", "user"] * turns] for turns in (0, 1, 2)]
        asked, last = (request.messages for request in template.taken[1:])
        assert '"name":"plus","args":{"a":3,"b":4}' in asked[2].text
        assert '"result":"7"' in asked[3].text or '"result":7' in asked[3].text
        assert talk(template.taken[2])[:4] == talk(template.taken[1])
        assert "observation_1" in last[-1].text
        template.answers = [fields(answer="5")]
        assert Predict("question -> answer", tools=[plus])(question="?", lm=lm).answer == "5"
    assert template.refused == 1


def test_predict_that_went_on_in_text_counts_its_turns_and_replays():
    """A refused request is no turn, and a resumed run asks no model."""
    native = {"name": "add", "args": {"a": 1, "b": 2}}
    template = Template([native, calls_in_fields(("add", {"a": 3, "b": 3})), fields(answer="6")])
    predict = Predict("question -> answer", tools=[add], max_turns=3)
    with serve(ScriptedLM(by=template)) as server, context(lm=server.lm()):
        run = predict.start(question="?")
        assert run.prediction.answer == "6"
        asked = len(server.requests)
        run.status = "failed"  # as after a crash: everything is in the journal
        assert run.resume().prediction.answer == "6"
        assert len(server.requests) == asked
        template.answers = [
            native,
            calls_in_fields(("add", {"a": 3, "b": 3})),
            calls_in_fields(("add", {"a": 3, "b": 4})),
        ]
        with pytest.raises(MaxTurnsReachedError):
            predict(question="?", lm=server.lm())


def test_predict_that_insists_on_native_calls_raises():
    native = {"name": "add", "args": {"a": 1, "b": 2}}
    with (
        serve(ScriptedLM(by=Template([native]))) as server,
        pytest.raises(BadRequestError, match="must alternate"),
    ):
        Predict("question -> answer", tools=[add], native=True)(question="?", lm=server.lm())
