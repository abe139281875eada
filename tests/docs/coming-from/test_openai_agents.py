"""The claims of docs/coming-from/openai-agents.md."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import pytest
from pydantic import AfterValidator, field_validator

from ferrule import InputError, InputField, OutputField, Predict, ScriptedLM, Signature

PAGE = "docs/coming-from/openai-agents.md"


def test_the_program_here_runs(execute) -> None:
    execute(PAGE)


@pytest.mark.skipif(importlib.util.find_spec("agents") is None, reason="the other library is not among the pins for development")
def test_the_program_there_runs(run_before) -> None:
    run_before(PAGE)


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links(PAGE) == []


def polite(ticket: str) -> str:
    if "stupid" in ticket:
        raise ValueError("be polite")
    return ticket


class Guarded(Signature):
    """Answer the ticket."""

    ticket: Annotated[str, AfterValidator(polite)] = InputField()
    reply: str = OutputField()


class GuardedLater(Signature):
    """Answer the ticket."""

    ticket: str = InputField()
    reply: str = OutputField()

    check = field_validator("ticket")(polite)


@pytest.mark.parametrize(("signature", "asked"), [(Guarded, 0), (GuardedLater, 1)])
def test_a_validator_in_the_type_of_an_input_refuses_it_before_the_model_is_asked(signature: type[Signature], asked: int) -> None:
    lm = ScriptedLM([{"outputs": {"reply": "x"}}])
    with pytest.raises(InputError, match="be polite"):
        Predict(signature)(ticket="stupid lamp", lm=lm)
    assert len(lm.requests) == asked
