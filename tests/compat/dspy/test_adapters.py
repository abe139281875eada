"""What users call of DSPy's adapters themselves: `adapter(lm, ...)`, `parse`, and pieces."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Literal

import pytest
from ferrule.compat.dspy.adapters.chat_adapter import FieldInfoWithName
from ferrule.compat.dspy.adapters.utils import parse_value
from ferrule.compat.dspy.utils import DummyLM

from ferrule.compat import dspy

KINDS = [dspy.ChatAdapter, dspy.JSONAdapter, dspy.XMLAdapter]


class Calling(DummyLM):
    """A model that takes native calls, and keeps what it was asked."""

    supports_function_calling = True

    def __call__(self, prompt=None, messages=None, **kwargs):
        self.asked = kwargs
        return super().__call__(messages=messages, **kwargs)


def look(at: str) -> str:
    """Look at a thing."""
    return at


class Look(dspy.Signature):
    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    tool_calls: dspy.ToolCalls = dspy.OutputField()


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_asks_a_model_and_returns_the_fields_of_each_answer(kind: Any) -> None:
    adapter, signature = kind(), dspy.make_signature("question -> answer")
    lm = DummyLM([{"answer": "Paris"}, {"answer": "Rome"}], adapter=adapter)
    assert adapter(lm, {}, signature, [], {"question": "?"}) == [{"answer": "Paris"}]
    answers = asyncio.run(adapter.acall(lm, {}, signature, [], {"question": "?"}))
    assert answers == [{"answer": "Rome"}]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{}, {"parallel_tool_calls": False}])
def test_an_adapter_asks_for_parallel_calls_unless_the_call_says_otherwise(
    kind: Any, settings: Any
) -> None:
    adapter = kind(use_native_function_calling=True, parallel_tool_calls=True)
    lm = Calling([{}])
    inputs = {"question": "?", "tools": [dspy.Tool(look)]}
    with suppress(dspy.AdapterParseError):  # the answer is empty
        adapter(lm, settings, Look, [], inputs)
    assert lm.asked["tool_choice"] == "auto"
    assert lm.asked["parallel_tool_calls"] is settings.get("parallel_tool_calls", True)


def test_without_native_calls_settings_of_calls_are_left_out() -> None:
    settings = {"tools": [{"type": "function"}], "tool_choice": "auto", "temperature": 0.5}
    lm = Calling([{"answer": "a"}])
    adapter = dspy.ChatAdapter(use_native_function_calling=False)
    signature = dspy.make_signature("question -> answer")
    assert adapter(lm, settings, signature, [], {"question": "?"}) == [{"answer": "a"}]
    assert lm.asked == {"temperature": 0.5}
    assert "tools" in settings


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_cannot_be_parsed_raises_dspys_error(kind: Any) -> None:
    signature = dspy.Signature("question -> answer: int, note")
    adapter = kind()
    written = adapter.format_assistant_message_content(signature, {"answer": "many"})
    with pytest.raises(dspy.AdapterParseError) as caught:
        adapter.parse(signature, written)
    error = caught.value
    assert (error.adapter_name, error.signature) == (kind.__name__, signature)
    assert error.lm_response == written
    assert "Failed to parse field `answer`" in str(error)
    assert "Field `note` is missing." in str(error)
    assert "failed to parse the LM response" in str(error)


def test_an_overridden_parse_may_call_the_adapters() -> None:
    class Mine(dspy.ChatAdapter):
        def parse(self, signature, completion):
            return {"answer": super().parse(signature, completion)["answer"].upper()}

    predict = dspy.Predict("question -> answer", lm=DummyLM([{"answer": "a"}]))
    with dspy.context(adapter=Mine()):
        assert predict(question="?").answer == "A"
    assert dspy.ChatAdapter.overridden == frozenset()
    assert Mine.overridden == {"parse"}


def test_fields_are_written_by_name_and_info() -> None:
    info = dspy.Signature("question -> answer").output_fields["answer"]
    fields = {FieldInfoWithName(name="answer", info=info): "Paris"}
    written = dspy.XMLAdapter().format_field_with_value(fields)
    assert written == "<answer>\nParis\n</answer>"
    assert dspy.ChatAdapter().format_field_with_value(fields) == "[[ ## answer ## ]]\nParis"
    assert dspy.JSONAdapter().format_field_with_value(fields, "assistant") == '{"answer":"Paris"}'


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (123, str, "123"),
        (None, str, "None"),
        ("42", int, 42),
        ("[1, 2]", list[int], [1, 2]),
        ("{'a': 1}", dict, {"a": 1}),
        ("Literal[p]", Literal["p", "q"], "p"),
        ("'q'", Literal["p", "q"], "q"),
        ("text with [x]", str | None, "text with [x]"),
        (None, int | None, None),
    ],
)
def test_a_value_is_parsed_into_its_type(value: Any, annotation: Any, expected: Any) -> None:
    assert parse_value(value, annotation) == expected


def test_a_value_of_another_type_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="should be 'p' or 'q'"):
        parse_value("r", Literal["p", "q"])


# -- XML

XML = dspy.Signature("question -> code: str, data: dict")


def streamed(adapter: Any, text: str, size: int) -> dict[str, str]:
    reader = adapter.reader(XML)
    fields: dict[str, str] = {}
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    for pieces in (*map(reader.feed, chunks), reader.finish()):
        for name, piece in pieces:
            fields[name] = fields.get(name, "") + piece
    return fields


@pytest.mark.parametrize(
    "code",
    [
        "a && b",
        "a &amp;&amp; b",
        "</code> & <x>",
        r"<\/code>",
        "<![CDATA[ x ]]> &",
        "&#60;&#x3c;",
        "null",
        " blanks ",
        "&copy=1",
        "<",
        "x ]]> y",
    ],
)
def test_a_text_is_escaped_as_in_xml_and_read_back(code: str) -> None:
    adapter = dspy.XMLAdapter()
    outputs = {"code": code, "data": {"a": "&amp; <![CDATA[x]]> </data>"}}
    written = adapter.format_assistant_message_content(XML, outputs)
    assert adapter.parse(XML, written) == outputs
    for size in (1, 3, 1000):
        assert streamed(adapter, written, size)["code"].strip() == code.strip()


def test_sections_and_entities_of_a_model_are_read() -> None:
    adapter = dspy.XMLAdapter()
    answer = (
        "<code>a &amp;&amp; &#98; <![CDATA[&& <c> &amp;]]></code>\n"
        '<data><![CDATA[{"a": "&"}]]></data>'
    )
    expected = "a && b && <c> &amp;"
    assert adapter.parse(XML, answer) == {"code": expected, "data": {"a": "&"}}
    for size in (1, 2, 3, 1000):
        assert streamed(adapter, answer, size)["code"] == expected


def test_the_prompt_says_that_answers_are_escaped() -> None:
    system = dspy.XMLAdapter().format_system_message(XML)
    assert "`&amp;` for `&` and `&lt;` for `<`" in system
    assert "without any escaping" not in system


# -- names


def test_a_missing_name_is_not_an_attribute_and_cannot_be_imported() -> None:
    assert not hasattr(dspy, "GEPA")
    assert not hasattr(dspy.teleprompt, "GEPA")
    with pytest.raises(ImportError, match="has no optimizers"):
        exec("from ferrule.compat.dspy.teleprompt import GEPA")
    with pytest.raises(ImportError, match="cannot import name"):
        exec("from ferrule.compat.dspy import Predikt")


def test_every_submodule_of_dspy_can_be_imported() -> None:
    exec("import ferrule.compat.dspy.utils.callback_context")
    exec("from ferrule.compat.dspy.evaluate.metrics import answer_exact_match")
    assert dspy.clients.base_lm.BaseLM is dspy.BaseLM


def test_modules_inside_are_found_by_type() -> None:
    class Mine(dspy.Module):
        def __init__(self):
            self.think = dspy.ChainOfThought("a -> b")

    names = [name for name, _ in Mine().named_sub_modules()]
    assert names == ["self", "think", "think.predict"]
    assert [name for name, _ in Mine().named_sub_modules(dspy.Predict)] == ["think.predict"]
