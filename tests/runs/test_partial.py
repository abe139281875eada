"""`stream.partial()` never goes backwards: what it has shown of an answer stays, and grows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ferrule import (
    ChatAdapter,
    Delta,
    InputField,
    JSONAdapter,
    OutputField,
    Predict,
    ReAct,
    Signature,
    XMLAdapter,
    context,
)
from ferrule.testing import ScriptedLM


class Place(BaseModel):
    city: str
    zip: int


class Person(BaseModel):
    name: str
    home: Place | None = None
    seen: list[Place] = []
    notes: dict[str, Place] = {}


class Report(Signature):
    """Report."""

    question: str = InputField()
    title: str = OutputField()
    people: list[Person] = OutputField()
    boss: Person | None = OutputField()
    count: int = OutputField()
    note: str | None = OutputField()


WORD = st.sampled_from(["a", "Ada", 'say "hi"', "{x}", "1", "[[", "null", "n"])
PLACE = st.builds(Place, city=WORD, zip=st.integers(0, 99_999))
PERSON = st.builds(
    Person,
    name=WORD,
    home=st.none() | PLACE,
    seen=st.lists(PLACE, max_size=2),
    notes=st.dictionaries(WORD, PLACE, max_size=2),
)
OUTPUTS = st.fixed_dictionaries(
    {
        "title": WORD,
        "people": st.lists(PERSON, max_size=3),
        "boss": st.none() | PERSON,
        "count": st.integers(0, 999),
        "note": st.none() | st.sampled_from(["nothing", "no", "Nullify it."]),
    },
)


class Cutting(ScriptedLM):
    """Streams in pieces of one size."""

    def __init__(self, answers: list[Any], size: int) -> None:
        super().__init__(answers)
        self.size = size

    def stream(self, request: Any) -> Any:
        response = self.complete(request)
        text = response.text or ""
        for start in range(0, len(text), self.size):
            yield Delta(text[start : start + self.size])
        for delta in response.deltas():
            if delta.call is None:
                continue
            written = delta.call.arguments
            for start in range(0, len(written), self.size):
                piece = type(delta.call)(0, "c", "finish", written[start : start + self.size])
                yield Delta(call=piece)
        yield response


def assert_forward(before: Any, after: Any) -> None:
    """What was shown is still there: a text or a list is as long or longer, an object has as much."""
    if isinstance(before, BaseModel):
        assert isinstance(after, BaseModel)
        before, after = before.model_dump(), after.model_dump()
    match before:
        case dict():
            assert before.keys() <= after.keys()
            for name, value in before.items():
                assert_forward(value, after[name])
        case list():
            assert len(before) <= len(after)
            for earlier, later in zip(before, after, strict=False):
                assert_forward(earlier, later)
        case str():
            assert after.startswith(before)
        case None:
            pass
        case _:
            assert before == after


def assert_never_backwards(stream: Any) -> None:
    shown: dict[str, Any] = {}
    for _ in stream:
        partial = stream.partial()
        assert_forward(shown, partial)
        shown = partial
    assert shown == dict(stream.prediction.items())


@given(outputs=OUTPUTS, size=st.integers(1, 9))
@pytest.mark.parametrize("adapter", [ChatAdapter(), JSONAdapter(), XMLAdapter()], ids=type)
def test_a_marked_answer(adapter: Any, outputs: dict[str, Any], size: int) -> None:
    with context(adapter=adapter):
        lm = Cutting([{"outputs": outputs}], size)
        assert_never_backwards(Predict(Report).stream(question="?", lm=lm))


@given(outputs=OUTPUTS, size=st.integers(1, 9))
def test_the_arguments_of_finish(outputs: dict[str, Any], size: int) -> None:
    written = {name: _plain(value) for name, value in outputs.items()}
    lm = Cutting([{"name": "finish", "args": written}], size)
    assert_never_backwards(ReAct(Report, [], native=True).stream(question="?", lm=lm))


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def test_an_object_that_begins_in_an_optional_field_hides_nothing() -> None:
    class People(Signature):
        """List."""

        question: str = InputField()
        people: list[Person] = OutputField()

    written = '[[ ## people ## ]]\n[{"name": "Ada", "home": {"city": "Rome", "zip": 1}}]'
    stream = Predict(People).stream(question="?", lm=Cutting([written], 1))
    shown = []
    for _ in stream:
        people = stream.partial().get("people")
        if people and people not in shown:
            shown.append(people)
    assert [Person(name="Ada")] in shown
    assert shown[-1] == [Person(name="Ada", home=Place(city="Rome", zip=1))]
    assert [] not in shown[1:]
