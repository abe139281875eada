"""The text of a native answer is text: shown from the first token, and told apart from a preamble."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule import Predict, ReAct, Response
from ferrule.events import AttemptFailed, FieldDelta, Preamble, TextDelta, ThoughtDelta
from ferrule.testing import ScriptedLM

CALL = {"name": "look", "args": {"n": 1}}
JSON_CALL = '{"name": "look", "arguments": {"n": 1}}'


def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


def program(kind: str, signature: str = "question -> answer") -> Any:
    if kind == "react":
        return ReAct(signature, [look], native=True)
    return Predict(signature, tools=[look], native=True)


class Page:
    """What a page shows that follows the rules of `Preamble`."""

    def __init__(self, stream: Any) -> None:
        self.preambles: list[str] = []
        self.thoughts = ""
        self.text = ""
        self.answer = ""
        self.partials: list[dict[str, Any]] = []
        self.asked_again = 0
        for event in stream:
            match event:
                case FieldDelta(text=text):
                    self.answer += text
                    self.partials.append(stream.partial())
                case TextDelta(text=text):
                    self.text += text
                case ThoughtDelta(text=text):
                    self.thoughts += text
                case Preamble(field=field, text=text):
                    assert field in {"", "answer"}
                    self.answer = self.text = ""
                    self.preambles += [text] if text else []
                    assert field not in stream.partial()
                case AttemptFailed():
                    self.asked_again += 1
                    self.answer = self.text = ""
                case _:
                    pass
        self.prediction = stream.prediction


def shown(kind: str, *answers: Any, signature: str = "question -> answer") -> Page:
    return Page(program(kind, signature).stream(question="?", lm=ScriptedLM(answers)))


@pytest.fixture(params=["react", "predict"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_an_answer_in_text_is_the_output_from_its_first_word(kind: str) -> None:
    page = shown(kind, "It is open all day.")
    assert page.partials[0] == {"answer": "It "}
    assert page.answer == page.prediction.answer == "It is open all day."
    assert (page.thoughts, page.preambles, page.text) == ("", [], "")


def test_text_before_a_call_is_a_preamble(kind: str) -> None:
    page = shown(kind, {"text": "I look.", "tool_calls": [CALL]}, "It is open.")
    assert (page.preambles, page.answer, page.thoughts) == (["I look."], "It is open.", "")


def test_blanks_before_a_call_are_nothing(kind: str) -> None:
    page = shown(kind, {"text": "\n\n", "tool_calls": [CALL]}, "It is open.")
    assert (page.preambles, page.answer) == ([], "It is open.")


def test_only_reasoning_is_a_thought(kind: str) -> None:
    page = shown(kind, {"text": "It is open.", "reasoning": "Hm."})
    assert (page.thoughts, page.answer) == ("Hm.", "It is open.")


def test_text_before_finish_is_a_preamble() -> None:
    call = {"name": "finish", "args": {"answer": "It is open."}}
    page = shown("react", {"text": "Done.", "tool_calls": [call]})
    assert (page.preambles, page.answer) == (["Done."], page.prediction.answer)


@pytest.mark.parametrize(
    "call",
    [f"<tool_call>{JSON_CALL}</tool_call>", f"```json\n{JSON_CALL}\n```", JSON_CALL],
)
@pytest.mark.parametrize("before", ["", "I look.\n"])
def test_a_call_as_text_is_not_shown(kind: str, before: str, call: str) -> None:
    page = shown(kind, before + call, "It is open.")
    assert page.preambles == ([before.strip()] if before else [])
    assert not any("{" in partial["answer"] for partial in page.partials)
    assert page.answer == "It is open."


def test_a_model_that_writes_markers_is_read_without_them(kind: str) -> None:
    page = shown(kind, "[[ ## answer ## ]]\nIt is open.\n\n[[ ## completed ## ]]")
    assert page.answer == page.prediction.answer == "It is open."
    assert not any("[[" in partial["answer"] for partial in page.partials)


def test_text_that_mentions_a_marker_is_text(kind: str) -> None:
    text = "Below `[[ ## name ## ]]` comes the name."
    page = shown(kind, text)
    assert page.answer == page.prediction.answer == text


def test_thoughts_without_an_opening_tag_are_taken_back(kind: str) -> None:
    page = shown(kind, "Let me see.\n</think>\n\nIt is open.")
    assert (page.thoughts, page.answer, page.preambles) == ("Let me see.", "It is open.", [])


def test_code_of_an_answer_is_not_held_back(kind: str) -> None:
    page = shown(kind, "So:\n```python\nprint( {1} )\n```\nThat is all.")
    assert {"answer": "So:\n```python\nprint( "} in page.partials


def test_a_json_fence_is_shown_when_it_ends(kind: str) -> None:
    text = 'So:\n```json\n{"a": 1}\n```\nThat is all of it.'
    page = shown(kind, text)
    assert page.answer == page.prediction.answer == text
    assert any(partial["answer"].endswith("That ") for partial in page.partials)


def test_text_is_asked_again_if_the_outputs_are_not_text() -> None:
    lm = ScriptedLM(["It is 42.", {"name": "finish", "args": {"answer": 42}}])
    page = Page(program("react", "question -> answer: int").stream(question="?", lm=lm))
    assert page.prediction.answer == 42
    assert page.text == "It is 42."
    assert "`finish`" in lm.requests[1].messages[-1].text
    assert "`answer`" in lm.requests[1].messages[-1].text


def test_a_model_that_only_writes_text_is_extracted_from_at_last() -> None:
    def answer(request: Any) -> Any:
        if len(request.tools):
            return "It is 42."
        return {"outputs": {"reasoning": "It says so.", "answer": 42}}

    prediction = program("react", "question -> answer: int")(question="?", lm=ScriptedLM(by=answer))
    assert (prediction.answer, prediction.reason) == (42, "same_error")


def test_a_json_object_of_the_outputs_is_an_answer() -> None:
    page = shown("react", '{"answer": 42}', signature="question -> answer: int")
    assert (page.answer, page.prediction.answer, page.text) == ("42", 42, "")


WORDS = st.sampled_from(
    [
        "It ",
        "is\n",
        "`a` ",
        "```\n",
        "```js\n",
        "{ ",
        "[1] ",
        "<b>",
        "[[ ",
        "\n\n",
        "- ",
        "##",
        "<|",
    ],
)


@settings(max_examples=settings().max_examples * 2)
@given(words=st.lists(WORDS, max_size=12), cut=st.integers(1, 5))
def test_the_pieces_of_any_text_join_to_the_answer(words: list[str], cut: int) -> None:
    text = f"Well, {''.join(words)}end"

    class Cutting(ScriptedLM):
        def stream(self, request: Any) -> Any:
            response = self.complete(request)
            from ferrule import Delta

            for start in range(0, len(text), cut):
                yield Delta(text[start : start + cut])
            yield response

    page = Page(program("react").stream(question="?", lm=Cutting([Response(text)])))
    assert page.answer == page.prediction.answer == text
