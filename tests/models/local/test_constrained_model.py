"""Constrained answers of a model in this process: whatever it wants to write, its calls and outputs
are valid.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from ferrule import (
    ChatAdapter,
    JSONAdapter,
    Message,
    Messages,
    Predict,
    ReAct,
    Request,
    XMLAdapter,
    context,
    tool,
)
from ferrule.errors import ConstraintError, ContextOverflowError
from ferrule.models.local.backends.backend import Sampling
from ferrule.models.local.model import InProcessLM
from ferrule.models.local.task import Options
from ferrule.testing import byte_vocabulary
from ferrule.values.conversation.exchange import Declarations, Shape

pytest.importorskip("llguidance", reason="needs the extra: pip install 'ferrule[local]'")

END, OPENER = 256, 257


class Wanting:
    """A model that wants to write a text of its own, and otherwise the smallest or the largest
    byte: it knows nothing of constraints.
    """

    window: int | None = 20_000
    vocabulary = byte_vocabulary()

    def __init__(
        self,
        text: str = "",
        *,
        otherwise: str = "smallest",
        reads_tools: bool = True,
    ) -> None:
        self.wanted = [
            OPENER if each == "\0" else ord(each) for each in text.replace("<tool_call>", "\0")
        ]
        self.otherwise, self.reads_tools = otherwise, reads_tools
        self.messages: list[dict] = []
        self.samplings: list[Sampling] = []

    def prompt(self, messages, tools, variables):
        self.messages = messages
        return [0] * 10

    def generate(self, prompt, sampling, matcher):
        self.samplings.append(sampling)
        wanted = list(self.wanted)
        for _ in range(sampling.max_tokens):
            if matcher is None:
                if not wanted:
                    return
                yield wanted.pop(0)
                continue
            mask = matcher.mask()
            allowed = [
                at for at in range(len(self.vocabulary.tokens)) if mask[at // 8] >> at % 8 & 1
            ]
            if wanted and wanted[0] in allowed:
                token = wanted.pop(0)
            else:
                token = (
                    END if END in allowed else allowed[0 if self.otherwise == "smallest" else -1]
                )
            matcher.accept(token)
            if token == END:
                return
            yield token
            if matcher.is_finished:
                return

    def text(self, tokens):
        return b"".join(self.vocabulary.tokens[each] for each in tokens).decode(errors="replace")


class Point(BaseModel):
    x: Annotated[int, Field(ge=1, le=9)]
    label: Literal["a", "b"]


@tool
def place(point: Point, note: Annotated[str, Field(max_length=10)] = "") -> str:
    """Place a point."""
    return f"{point.label}{point.x}"


HI = Messages([Message("user", "hi")])
CALL = Request(HI, Declarations([place.declaration]), "required", shape=Shape("call"))
SHORT = Options(thought_chars=0)


@pytest.mark.parametrize(
    "wanted",
    [
        '{"name":"shout","arguments":{}}',
        '{"name":"place","arguments":{"point":{"x":99',
        "I will not call.",
    ],
)
@pytest.mark.parametrize("otherwise", ["smallest", "largest"])
def test_a_model_that_wants_illegal_tokens_writes_a_valid_call(wanted, otherwise):
    """Whatever the model wants."""
    found = InProcessLM(
        "m",
        Wanting(wanted, otherwise=otherwise),
        options=SHORT,
        max_tokens=400,
    ).complete(CALL)
    [call] = found.tool_calls
    assert call.name == "place"
    assert 1 <= call.args["point"]["x"] <= 9
    assert found.finish_reason == "tool_calls"
    assert place(**call.args)


def test_a_thought_comes_first_and_is_streamed_before_the_call():
    lm = InProcessLM(
        "m",
        Wanting('I think.<tool_call>{"name":"place"'),
        options=Options(thought_chars=40),
        max_tokens=400,
    )
    *pieces, whole = lm.stream(CALL)
    assert whole.text == "".join(each.text for each in pieces) == "I think."
    assert (
        [each.call.name for each in pieces if each.call]
        == [call.name for call in whole.tool_calls]
        == ["place"]
    )


def test_an_answer_without_a_call_is_possible_unless_one_is_demanded():
    lm = InProcessLM(
        "m",
        Wanting("No call is needed."),
        options=Options(thought_chars=40),
        max_tokens=400,
    )
    free = lm.complete(Request(HI, CALL.tools, shape=CALL.shape))
    assert (free.text, free.tool_calls) == ("No call is needed.", ())


def test_only_the_named_tool_is_called_and_none_if_none_may_be():
    @tool
    def other() -> str:
        """Other."""
        return ""

    tools = Declarations([other.declaration, place.declaration])
    lm = InProcessLM("m", Wanting(), options=SHORT, max_tokens=400)
    named = lm.complete(
        Request(HI, tools, {"type": "function", "function": {"name": "place"}}, shape=CALL.shape),
    )
    assert [each.name for each in named.tool_calls] == ["place"]
    assert not lm.complete(Request(HI, tools, "none", shape=CALL.shape)).tool_calls


@pytest.mark.parametrize("max_tokens", [12, 20])
def test_a_call_that_the_most_tokens_cut_is_not_a_call(max_tokens):
    lm = InProcessLM("m", Wanting(), options=SHORT, max_tokens=max_tokens)
    response = lm.complete(CALL)
    assert (response.tool_calls, response.text, response.finish_reason) == ((), None, "length")
    *pieces, whole = lm.stream(CALL)
    assert pieces == []
    assert whole == response


def test_a_call_that_the_end_of_the_window_cuts_is_an_overflow():
    class Full(Wanting):
        window: int | None = 30

    with pytest.raises(ContextOverflowError, match="leaves 20 tokens of the context window"):
        InProcessLM("m", Full(), options=SHORT).complete(CALL)
    with pytest.raises(ContextOverflowError, match="leaves 20 tokens of the context window"):
        list(InProcessLM("m", Full(), options=SHORT).stream(CALL))


def test_an_agent_whose_window_is_full_drops_its_oldest_steps_and_ends():
    class Small(Wanting):
        window: int | None = 1_000

        def prompt(self, messages, tools, variables):
            return [0] * sum(300 if message["role"] == "tool" else 10 for message in messages)

    lm = InProcessLM("m", Small('{"name":"place"' * 5), options=SHORT, max_tokens=600)
    agent = ReAct("question -> answer: int", [place], max_iters=5, enable_user_clarification=False)
    assert isinstance(agent(question="?", lm=lm).answer, int)


def test_a_schema_that_no_grammar_enforces_is_refused_by_name_or_validated_on_request():
    odd = {
        "type": "object",
        "properties": {"a": {"type": "integer", "not": {"const": 3}}},
        "required": ["a"],
    }
    declared = Declarations([{"type": "function", "function": {"name": "odd", "parameters": odd}}])
    request = Request(HI, declared, "required", shape=Shape("call"))
    backend = Wanting('{"name":"odd","arguments":{"a":1}}')
    with pytest.raises(ConstraintError, match=r"`odd`.*\n?.*`not`"):
        InProcessLM("m", backend, options=SHORT).complete(request)
    assert not backend.samplings
    found = InProcessLM(
        "m",
        backend,
        options=Options(thought_chars=0, partial=True),
        max_tokens=300,
    ).complete(request)
    assert found.tool_calls[0].args == {"a": 1}


@pytest.mark.parametrize(
    "adapter",
    [ChatAdapter(), JSONAdapter(), XMLAdapter()],
    ids=["chat", "json", "xml"],
)
@pytest.mark.parametrize("otherwise", ["smallest", "largest"])
def test_typed_outputs_never_fail_to_parse_with_any_adapter(adapter, otherwise):
    lm = InProcessLM(
        "m",
        Wanting("I refuse to answer in any form.", otherwise=otherwise),
        max_tokens=2000,
    )
    with context(lm=lm, adapter=adapter):
        found = Predict("question -> answer: int, kind: Literal['x', 'y'], sure: bool")(
            question="?",
        )
    assert isinstance(found.answer, int)
    assert found.kind in {"x", "y"}
    assert len(lm._backend.samplings) == 1


def test_nested_outputs_are_constrained_too():
    from ferrule import InputField, OutputField, Signature

    class Where(Signature):
        """Where is it?"""

        question: str = InputField()
        point: Point = OutputField()
        others: list[Point] = OutputField()

    found = Predict(Where)(question="?", lm=InProcessLM("m", Wanting(), max_tokens=4000))
    assert isinstance(found.point, Point)


@pytest.mark.parametrize("calls", [None, "constrained"])
def test_an_agent_takes_valid_steps_and_ends(calls):
    lm = InProcessLM("m", Wanting(), options=Options(thought_chars=20), max_tokens=600)
    agent = ReAct(
        "question -> answer: int",
        [place],
        max_iters=3,
        calls=calls,
        enable_user_clarification=False,
    )
    found = agent(question="?", lm=lm)
    assert isinstance(found.answer, int)
    assert all(not result.is_fault for step in found.trajectory.steps for result in step.results)


def test_a_template_that_knows_no_tools_gets_them_and_their_calls_as_text():
    backend = Wanting(reads_tools=False)
    lm = InProcessLM("m", backend, options=SHORT, max_tokens=400)
    first = lm.complete(CALL)
    lm.complete(
        CALL.following(
            HI.then(first.message(), Message("tool", "a1", tool_call_id="x", name="place")),
        ),
    )
    told, _, said, result = backend.messages
    assert (told["role"], '"name":"place"' in told["content"].replace(" ", "")) == ("system", True)
    assert said["content"].startswith("<tool_call>{")
    assert result == {"role": "user", "content": "Result of place: a1"}
