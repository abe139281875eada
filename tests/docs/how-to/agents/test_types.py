"""The claims of docs/how-to/agents/types.md.

What type checkers say of them is in tests/typing/check_types.py.
"""

from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

import ferrule
from ferrule import ChainOfThought, MemoryStore, Module, Predict, ReAct, Run
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/agents/types.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/agents/types.md") == []


@pytest.mark.parametrize("name", ["items", "keys", "values", "get", "toDict"])
def test_an_output_named_like_a_method_is_read_from_outputs_or_by_key(name: str) -> None:
    prediction = Predict(f"text -> {name}: list[str]")(
        text="ink",
        lm=ScriptedLM([{"outputs": {name: ["ink"]}}]),
    )
    assert callable(getattr(prediction, name))
    assert getattr(prediction.outputs, name) == prediction[name] == ["ink"]


def doubles(answer):
    answer.total *= 2


def another(answer):
    return answer.model_copy(update={"total": 1})


@pytest.mark.parametrize("validator", [doubles, another])
def test_an_output_validator_changes_nothing(validator) -> None:
    program = Predict("text -> total: int")
    program.output_validator(validator)
    with pytest.raises(ConfigurationError, match="only checks"):
        program(text="x", lm=ScriptedLM([{"outputs": {"total": 7}}]))


def test_a_verdict_of_any_validator_is_recorded() -> None:
    asked: list[str] = []

    def plain(answer):
        asked.append("plain")

    async def awaits(answer):
        asked.append("async")

    program = Predict("text -> total: int", lm=ScriptedLM([{"outputs": {"total": 7}}]))
    program.output_validator(plain)
    program.output_validator(awaits)
    store = MemoryStore()
    program.start(text="x", store=store, run_id="r")
    assert Run.load(store, "r", program).prediction.total == 7
    assert asked == ["plain", "async"]


def test_the_built_in_programs_have_output_validators_and_a_module_has_none() -> None:
    assert all(hasattr(each, "output_validator") for each in (Predict, ChainOfThought, ReAct))
    assert not hasattr(Module, "output_validator")


def test_load_brings_no_output_validator_back(tmp_path) -> None:
    saved, loaded = Predict("text -> total: int"), Predict("text -> total: int")
    saved.output_validator(another)
    saved.save(tmp_path / "program.json")
    loaded.load(tmp_path / "program.json")
    assert loaded(text="x", lm=ScriptedLM([{"outputs": {"total": 7}}])).total == 7


def test_the_type_of_an_input_is_checked_in_a_signature_and_not_in_a_forward() -> None:
    def refuse(text: str) -> str:
        raise ValueError(f"not {text}")

    class Ask(ferrule.Signature):
        """Answer."""

        message: Annotated[str, AfterValidator(refuse)] = ferrule.InputField()
        reply: str = ferrule.OutputField()

    class Desk(ferrule.Module):
        def forward(self, message: Annotated[str, AfterValidator(refuse)]) -> ferrule.Prediction:
            return ferrule.Prediction(reply=message)

    assert Desk()(message="this").reply == "this"
    with pytest.raises(ferrule.InputError, match="not this"):
        ferrule.Predict(Ask)(message="this", lm=ferrule.testing.ScriptedLM([]))


def test_a_validator_that_changes_its_mind_does_not_change_a_run_that_is_loaded() -> None:
    """The page: the verdict is recorded."""
    sold_out: list[str] = []
    read = ferrule.Predict("message -> article")

    @read.output_validator
    def in_stock(answer: Any) -> None:
        if answer.article in sold_out:
            raise ferrule.ToolRetry("sold out")

    with ferrule.context(lm=ferrule.testing.ScriptedLM([{"outputs": {"article": "rope"}}])):
        text = read.start(message="?").to_json()
    sold_out.append("rope")
    with ferrule.context(lm=ferrule.testing.ScriptedLM([])):
        assert ferrule.Run.from_json(text, read).prediction.article == "rope"
