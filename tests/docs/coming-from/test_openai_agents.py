"""The claims of docs/coming-from/openai-agents.md."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import pytest
from pydantic import AfterValidator, field_validator

from ferrule import (
    InputError,
    InputField,
    Module,
    OutputField,
    Policy,
    Predict,
    ReAct,
    Signature,
    context,
    deny,
    gather,
    tool,
)
from ferrule.testing import ScriptedLM

PAGE = "docs/coming-from/openai-agents.md"


def test_the_program_here_runs(execute) -> None:
    execute(PAGE)


@pytest.mark.skipif(
    importlib.util.find_spec("agents") is None,
    reason="the other library is not among the pins for development",
)
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
def test_a_validator_in_the_type_of_an_input_refuses_it_before_the_model_is_asked(
    signature: type[Signature],
    asked: int,
) -> None:
    lm = ScriptedLM([{"outputs": {"reply": "x"}}])
    with pytest.raises(InputError, match="be polite"):
        Predict(signature)(ticket="stupid lamp", lm=lm)
    assert len(lm.requests) == asked


class NotForUsError(Exception):
    """What a guardrail raises."""


class Beside(Module):
    def __init__(self) -> None:
        self.check = Predict("message -> is_for_us: bool")
        self.agent = ReAct("message -> reply", [])

    async def aforward(self, message: str):
        found, said = await gather(
            self.check.acall(message=message),
            self.agent.acall(message=message),
        )
        if not found.is_for_us:
            raise NotForUsError
        return said


def test_a_guardrail_beside_the_agent_drops_its_answer_when_both_have_ended() -> None:
    def model(request):
        return (
            {"name": "finish", "args": {"reply": "x = 3"}}
            if len(request.tools)
            else {"outputs": {"is_for_us": False}}
        )

    lm = ScriptedLM(by=model, record=True)
    with context(lm=lm):
        run = Beside().start(message="Solve 2x = 6.")
    assert (run.status, type(run.error), len(lm.requests)) == ("failed", NotForUsError, 2)


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        (ReAct("q -> a", []), {"name": "finish", "args": {"a": "x"}}),
        (Predict("q -> a"), {"outputs": {"a": "x"}}),
    ],
    ids=["an agent", "one question"],
)
def test_an_exception_of_an_output_validator_ends_the_run_as_a_tripwire(program, answer) -> None:
    @program.output_validator
    def check(found) -> None:
        raise NotForUsError

    with pytest.raises(NotForUsError):
        program(q="?", lm=ScriptedLM([answer]))


def test_the_model_reads_why_a_policy_denies_a_call() -> None:
    @tool
    def send(body: str) -> str:
        """Send a mail."""
        raise AssertionError

    agent = ReAct(
        "q -> a",
        [send],
        policy=Policy([deny("send", body="*sk-*", reason="Remove the key before you call.")]),
    )
    lm = ScriptedLM(
        [
            {"name": "send", "args": {"body": "It is sk-123."}},
            {"name": "finish", "args": {"a": "x"}},
        ],
    )
    assert "Remove the key before you call." in agent(q="?", lm=lm).trajectory["observation_0"]


@tool(require_confirmation=True)
def pay(order: int) -> str:
    """Pay an order."""
    return "paid"


class Raising(Module):
    """A guardrail that raises in its branch."""

    def __init__(self) -> None:
        self.check = Predict("message -> is_for_us: bool")
        self.agent = ReAct("message -> reply", [pay])

    async def checked(self, message: str) -> None:
        if not (await self.check.acall(message=message)).is_for_us:
            raise NotForUsError

    async def aforward(self, message: str):
        return (await gather(self.checked(message), self.agent.acall(message=message)))[1]


class RaisingLater(Raising):
    """A guardrail that raises after `gather`."""

    async def aforward(self, message: str):
        found, said = await gather(
            self.check.acall(message=message),
            self.agent.acall(message=message),
        )
        if not found.is_for_us:
            raise NotForUsError
        return said


@pytest.mark.parametrize(("program", "status"), [(Raising, "failed"), (RaisingLater, "waiting")])
def test_a_guardrail_that_raises_in_its_branch_asks_no_person(
    program: type[Module],
    status: str,
) -> None:
    def model(request):
        return (
            {"name": "pay", "args": {"order": 1}}
            if len(request.tools)
            else {"outputs": {"is_for_us": False}}
        )

    with context(lm=ScriptedLM(by=model)):
        assert program().start(message="x").status == status
