"""Programs with signatures, adapters, demos and histories from DSPy's public pages, in our own
words.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

import pytest
from ferrule.compat.dspy.utils import DummyLM
from pydantic import BaseModel

from ferrule.compat import dspy
from ferrule.testing import ScriptedLM


def test_sentiment_in_one_line() -> None:
    """Signatures: a signature as a string, with a type."""
    dspy.configure(lm=DummyLM([{"sentiment": True}]))
    assert (
        dspy.Predict("sentence -> sentiment: bool")(sentence="It's a charming journey.").sentiment
        is True
    )


def test_instructions_of_a_string_signature() -> None:
    """Signatures: `dspy.Signature("...", instructions="...")`."""
    toxicity = dspy.Predict(
        dspy.Signature("comment -> toxic: bool", instructions="Mark insults as toxic."),
    )
    dspy.configure(lm=(lm := DummyLM([{"toxic": False}])))
    assert toxicity(comment="You are lovely.").toxic is False
    assert "Mark insults" in lm.history[-1]["messages"][0]["content"]


class Emotion(dspy.Signature):
    """Classify the emotion."""

    sentence: str = dspy.InputField()
    sentiment: Literal["sadness", "joy", "love", "anger"] = dspy.OutputField()


def test_classification() -> None:
    """Signatures: a class with a `Literal`."""
    dspy.configure(lm=DummyLM([{"sentiment": "joy"}]))
    assert dspy.Predict(Emotion)(sentence="I won!").sentiment == "joy"


class CheckCitation(dspy.Signature):
    """Verify that the text follows from the context."""

    context: str = dspy.InputField(desc="facts that are true here")
    text: str = dspy.InputField()
    faithfulness: bool = dspy.OutputField()
    evidence: dict[str, list[str]] = dspy.OutputField(desc="what supports each claim")


def test_citation_faithfulness() -> None:
    """Signatures: several typed outputs, with reasoning first."""
    answer = {
        "reasoning": "It says so.",
        "faithfulness": False,
        "evidence": {"goals": ["scored twice"]},
    }
    dspy.configure(lm=DummyLM([answer]))
    found = dspy.ChainOfThought(CheckCitation)(
        context="Lee scored twice.",
        text="Lee scored three times.",
    )
    assert found.toDict() == answer
    assert found.reasoning == "It says so."


class Container:
    class Query(BaseModel):
        text: str

    class Score(BaseModel):
        score: float


class QueryResult(BaseModel):
    text: str
    score: float


def test_custom_types() -> None:
    """Signatures: models of the caller's scope in a string, also nested ones."""
    signature = dspy.Signature(
        "query: Container.Query -> score: Container.Score, best: QueryResult",
    )
    dspy.configure(lm=DummyLM([{"score": {"score": 0.5}, "best": {"text": "a", "score": 1}}]))
    found = dspy.Predict(signature)(query=Container.Query(text="x"))
    assert (found.score, found.best) == (Container.Score(score=0.5), QueryResult(text="a", score=1))


def test_signatures_made_from_signatures() -> None:
    """Signatures: append, prepend, delete, with_instructions, with_updated_fields, equality."""
    base = dspy.Signature("question -> answer")
    longer = base.append("confidence", dspy.OutputField(), type_=float).prepend(
        "context",
        dspy.InputField(),
        type_=list[str],
    )
    assert list(longer.fields) == ["context", "question", "answer", "confidence"]
    assert longer.delete("context", "confidence").equals(base)
    assert base.with_instructions("Be brief.").instructions == "Be brief."
    assert dspy.signatures.ensure_signature("question -> answer").equals(base)


class Entity(BaseModel):
    name: str
    kind: Literal["person", "place"]


class Extract(dspy.Signature):
    """Extract the entities of a mail, and whether it is urgent."""

    subject: str = dspy.InputField()
    body: str = dspy.InputField()
    entities: list[Entity] = dspy.OutputField()
    urgency: Literal["low", "high"] = dspy.OutputField()


class Processor(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.extract = dspy.ChainOfThought(Extract)
        self.summarize = dspy.Predict("entities: list[str], body -> summary")

    def forward(self, subject: str, body: str) -> dspy.Prediction:
        found = self.extract(subject=subject, body=body)
        names = [each.name for each in found.entities]
        return dspy.Prediction(
            entities=names,
            urgency=found.urgency,
            summary=self.summarize(entities=names, body=body).summary,
        )


def test_email_extraction() -> None:
    """Email extraction: a module of two predictors that returns a prediction of its own."""
    entities = [{"name": "Ann", "kind": "person"}]
    dspy.configure(
        lm=DummyLM(
            [
                {"reasoning": "r", "entities": entities, "urgency": "high"},
                {"summary": "Ann calls."},
            ],
        ),
    )
    found = Processor()(subject="Hi", body="Call Ann")
    assert (found.entities, found.urgency, found.summary) == (["Ann"], "high", "Ann calls.")


def test_code_generation() -> None:
    """Code: `dspy.Code["python"]` takes the code out of its fence."""

    class Generate(dspy.Signature):
        """Write code."""

        question: str = dspy.InputField()
        code: dspy.Code["java"] = dspy.OutputField()

    dspy.configure(lm=(lm := DummyLM([{"code": "```java\nint x = 1;\n```"}])))
    assert dspy.Predict(Generate)(question="x?").code.code == "int x = 1;"
    assert "java" in lm.history[-1]["messages"][0]["content"]


def test_code_analysis() -> None:
    """Code: code as an input is text in the prompt."""

    class Analyze(dspy.Signature):
        """Say how complex it is."""

        code: dspy.Code["python"] = dspy.InputField()
        result: str = dspy.OutputField()

    dspy.configure(lm=(lm := DummyLM([{"result": "O(1)"}])))
    assert dspy.Predict(Analyze)(code="def f(): return 1").result == "O(1)"
    assert "def f(): return 1" in lm.history[-1]["messages"][-1]["content"]


def test_image_input() -> None:
    """Signatures: `dspy.Image` as an input."""
    dspy.configure(lm=(lm := DummyLM([{"answer": "A dog"}])))
    found = dspy.Predict("image: dspy.Image, question: str -> answer")(
        image=dspy.Image(url="data:image/png;base64,AAAA"),
        question="What is it?",
    )
    assert found.answer == "A dog"
    assert any(part["type"] == "image_url" for part in lm.history[-1]["messages"][-1]["content"])


def test_wrong_inputs_warn(caplog: pytest.LogCaptureFixture) -> None:
    """Predict: unknown, missing and ill-typed inputs are warnings; the question is asked all the
    same.
    """
    dspy.configure(lm=(lm := DummyLM([{"answer": "a"}] * 3)))
    predict = dspy.Predict("question, k: int -> answer")
    with caplog.at_level(logging.WARNING):
        assert predict(question="q", k="many", more=1).answer == "a"
        assert predict(question="q").answer == "a"
    told = [record.getMessage() for record in caplog.records]
    assert "Type mismatch for field 'k': expected int" in told[1]
    assert told[0].startswith(
        "Input contains fields not in signature. These fields will be ignored: ['more']",
    )
    assert (
        told[2]
        == "Not all input fields were provided to module. Present: ['question']. Missing: ['k']."
    )
    assert "many" in lm.history[0]["messages"][-1]["content"]
    caplog.clear()
    with dspy.context(warn_on_type_mismatch=False), caplog.at_level(logging.WARNING):
        assert predict(question="q", k="many").answer == "a"
    assert caplog.records == []


# -- adapters


def test_messages_of_the_chat_adapter() -> None:
    """Adapters: `ChatAdapter().format(signature, demos, inputs)` returns messages in OpenAI's form."""
    signature = dspy.Signature("question -> answer")
    demos = [{"question": "What is 1+1?", "answer": "2"}]
    messages = dspy.ChatAdapter().format(signature, demos, {"question": "What is 2+2?"})
    assert [each["role"] for each in messages] == ["system", "user", "assistant", "user"]
    assert "[[ ## question ## ]]\nWhat is 2+2?" in messages[-1]["content"]


class ScienceNews(BaseModel):
    text: str
    scientists: list[str]


class News(dspy.Signature):
    """Get news about the field."""

    field: str = dspy.InputField()
    year: int = dspy.InputField()
    articles: int = dspy.InputField()
    news: list[ScienceNews] = dspy.OutputField()


@pytest.mark.parametrize(
    "adapter",
    [dspy.ChatAdapter(), dspy.JSONAdapter(), dspy.XMLAdapter()],
    ids=repr,
)
def test_one_program_with_three_adapters(adapter: Any) -> None:
    """Adapters: `configure(adapter=...)`; a dummy writes the form that is asked for."""
    dspy.configure(lm=DummyLM([{"news": [{"text": "t", "scientists": ["Ada"]}]}]), adapter=adapter)
    assert dspy.Predict(News)(field="CS", year=2018, articles=1).news == [
        ScienceNews(text="t", scientists=["Ada"]),
    ]


def test_answer_in_another_form_falls_back() -> None:
    """Adapters: an answer in JSON to `ChatAdapter`."""
    dspy.configure(lm=ScriptedLM(['{"answer": "42"}']), adapter=dspy.ChatAdapter())
    assert dspy.Predict("question -> answer")(question="?").answer == "42"


class Brief(dspy.ChatAdapter):
    """Adds a line to the system message, and refuses long answers."""

    def format_system_message(self, signature):
        return f"{super().format_system_message(signature)}\nBe brief."

    def parse(self, signature, completion):
        if len(completion) > 200:
            raise dspy.AdapterParseError(
                adapter_name="Brief",
                signature=signature,
                lm_response=completion,
                message="too long",
            )
        return super().parse(signature, completion)


def test_adapter_of_ones_own() -> None:
    """Adapters: a subclass overrides pieces, and raises DSPy's error."""
    dspy.configure(
        lm=(lm := DummyLM([{"answer": "ok"}, {"answer": "x" * 300}])),
        adapter=Brief(fallback=None, repairs=0),
    )
    predict = dspy.Predict("question -> answer")
    assert predict(question="?").answer == "ok"
    assert lm.history[-1]["messages"][0]["content"].endswith("Be brief.")
    with pytest.raises(dspy.AdapterParseError, match="too long") as caught:
        predict(question="?")
    assert caught.value.adapter_name == "Brief"


def test_demos() -> None:
    """Predict: `demos` of examples, and one call's own."""
    dspy.configure(lm=(lm := DummyLM([{"answer": "4"}] * 2)))
    predict = dspy.Predict("question -> answer")
    predict.demos = [dspy.Example(question="1+1?", answer="2").with_inputs("question")]
    predict(question="2+2?")
    predict(question="2+2?", demos=[])
    assert [len(each["messages"]) for each in lm.history] == [4, 2]


def test_dummy_follows_examples() -> None:
    """DummyLM: `follow_examples=True`, and answers by a part of the question."""
    demos = [dspy.Example(question="What color is the sky?", answer="blue")]
    dspy.configure(lm=DummyLM([], follow_examples=True))
    assert (
        dspy.Predict("question -> answer", demos=demos)(question="What color is the sky?").answer
        == "blue"
    )
    dspy.configure(lm=DummyLM({"grass": {"answer": "green"}}))
    assert dspy.Predict("question -> answer")(question="And the grass?").answer == "green"


# -- histories


class QA(dspy.Signature):
    """Answer the question."""

    question: str = dspy.InputField()
    history: dspy.History = dspy.InputField()
    answer: str = dspy.OutputField()


def test_conversation() -> None:
    """Conversation history: turns are added with the prediction's outputs."""
    dspy.configure(lm=(lm := DummyLM([{"answer": "Paris"}, {"answer": "Yes"}])))
    predict, history = dspy.Predict(QA), dspy.History(messages=[])
    for question in ["Capital of France?", "Are you sure?"]:
        outputs = predict(question=question, history=history)
        history.messages.append({"question": question, **outputs})
    assert [each["answer"] for each in history.messages] == ["Paris", "Yes"]
    assert [each["role"] for each in lm.history[-1]["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


def test_conversation_with_demos() -> None:
    """Conversation history: demos with a history of their own."""
    dspy.configure(lm=(lm := DummyLM([{"answer": "Yes"}])))
    predict = dspy.Predict(QA)
    demo = dspy.Example(
        question="Sure?",
        history=dspy.History(messages=[{"question": "Capital of Germany?", "answer": "Berlin"}]),
        answer="Yes, Berlin.",
    )
    predict.demos.append(demo)
    predict(
        question="Sure?",
        history=dspy.History(messages=[{"question": "Capital of Spain?", "answer": "Madrid"}]),
    )
    told = "\n".join(each["content"] for each in lm.history[-1]["messages"])
    assert all(each in told for each in ["Berlin", "Madrid", "Yes, Berlin."])


def test_conversation_without_a_history() -> None:
    """Conversation history: a first turn that leaves the history out."""
    dspy.configure(lm=DummyLM([{"answer": "Paris"}]))
    assert dspy.Predict(QA)(question="Capital of France?").answer == "Paris"
