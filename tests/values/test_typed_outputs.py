"""`prediction.outputs`: the outputs as an instance of the signature; and type parameters, which
cost nothing at run time.
"""

from __future__ import annotations

import copy
import pickle
from functools import cached_property
from typing import Any

import pytest
from agent_script import fields, native_step
from pydantic import BaseModel

from ferrule import (
    ChainOfThought,
    EventStream,
    InputField,
    Module,
    OutputField,
    Predict,
    Prediction,
    ReAct,
    Run,
    Signature,
    Tool,
)
from ferrule.testing import ScriptedLM


class Line(BaseModel):
    article: str


class Invoice(Signature):
    """Read an invoice."""

    text: str = InputField()
    currency: str = InputField(default="EUR")
    lines: list[Line] = OutputField()
    total: float = OutputField()


ANSWER = {"lines": [{"article": "ink"}], "total": 3.5}


def look(n: int) -> int:
    """Look."""
    return n


PROGRAMS: dict[str, Any] = {
    "Predict": lambda: (Predict(Invoice), [fields(**ANSWER)]),
    "ChainOfThought": lambda: (ChainOfThought(Invoice), [fields(reasoning="r", **ANSWER)]),
    "ReAct": lambda: (ReAct(Invoice, []), [native_step("d", "finish", ANSWER)]),
    "Predict with tools": lambda: (
        Predict(Invoice, tools=[look], native=True),
        [native_step("t", "look", {"n": 1}), fields(**ANSWER)],
    ),
    "text": lambda: (
        Predict("text -> lines: list, total: float"),
        [fields(lines=["x"], total=3.5)],
    ),
}


def predicted(kind: str) -> Prediction:
    program, script = PROGRAMS[kind]()
    program.set_lm(ScriptedLM(script))
    return program(text="x")


@pytest.mark.parametrize("kind", PROGRAMS)
def test_outputs_have_exactly_the_attributes_of_the_signature(kind: str) -> None:
    """api.md, 20."""
    outputs = predicted(kind).outputs
    assert vars(outputs).keys() == {"lines", "total"}
    assert outputs.total == 3.5
    assert isinstance(outputs, Invoice) == (kind != "text")
    if kind != "text":
        assert outputs.lines == [Line(article="ink")]
        assert outputs.model_dump() == ANSWER
        assert repr(outputs) == "Invoice(lines=[Line(article='ink')], total=3.5)"


def test_the_prediction_stays_a_mapping_with_its_outputs_as_attributes() -> None:
    prediction = predicted("ChainOfThought")
    assert prediction.reasoning == "r"
    assert prediction.lines is prediction.outputs.lines
    assert list(prediction) == ["reasoning", "lines", "total"]
    assert "outputs" not in prediction


def test_an_output_called_outputs_wins() -> None:
    assert Prediction(outputs=3).outputs == 3


def test_a_prediction_without_a_signature_has_outputs_too() -> None:
    assert vars(Prediction(a=1, b=2).outputs) == {"a": 1, "b": 2}


def test_a_prediction_is_pickled_without_its_signature() -> None:
    prediction = predicted("Predict")
    again = pickle.loads(pickle.dumps(prediction))
    assert again == prediction
    assert vars(again.outputs) == vars(prediction.outputs)


@pytest.mark.parametrize(
    "kind",
    [Predict, ChainOfThought, ReAct, Module, Run, Prediction, EventStream],
)
def test_a_type_parameter_is_for_type_checkers_only(kind: Any) -> None:
    """api.md, 20: `ReAct[Invoice]` is `ReAct`, so nothing about an instance differs."""
    assert kind[Invoice] is kind
    assert kind[Invoice, Any] is kind


def test_a_program_made_with_a_type_parameter_is_saved_copied_and_shown_as_any_other() -> None:
    typed, plain = ReAct[Invoice, Any](Invoice, [Tool(look)]), ReAct(Invoice, [Tool(look)])
    assert type(typed) is ReAct
    assert vars(typed).keys() == vars(plain).keys()
    assert typed.dump_state() == plain.dump_state()
    assert repr(typed.react) == repr(plain.react)
    assert pickle.loads(pickle.dumps(typed)).dump_state() == plain.dump_state()
    assert copy.deepcopy(typed).dump_state() == plain.dump_state()


class Typed(Module[Invoice]):
    """A program of one's own with a type."""

    def forward(self, text: str) -> Prediction[Invoice]:
        return Prediction(lines=[], total=float(len(text)))


def test_a_program_of_ones_own_may_name_its_signature() -> None:
    assert Typed()(text="abc").outputs.total == 3.0


def test_an_output_cannot_be_set_there_but_in_a_copy():
    """Each access makes the object anew: the value was lost in silence."""

    class Sum(Signature):
        a: int = InputField()
        total: int = OutputField()

        @cached_property
        def double(self) -> int:
            return 2 * self.total

    prediction = Prediction.of({"total": 3}, signature=Sum)
    with pytest.raises(
        AttributeError,
        match=r"the field is frozen; use `it.model_copy\(update=\{'total': ...\}\)`",
    ):
        prediction.outputs.total = 4
    made = [
        copy.copy(prediction.outputs),
        copy.deepcopy(prediction.outputs),
        prediction.outputs.model_copy(update={"total": 4}),
    ]
    for each in made:
        each.total += 1
    assert [each.total for each in made] == [4, 4, 5]
    assert (
        prediction.outputs.total,
        prediction.outputs.double,
        prediction.outputs.model_dump(),
    ) == (3, 6, {"total": 3})
