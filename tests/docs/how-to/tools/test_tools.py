"""The claims of docs/how-to/tools/tools.md."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from ferrule import Limits, Policy, ReAct, Tool, deny
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute("docs/how-to/tools/tools.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/tools/tools.md") == []


def refund(invoice: str) -> str:
    """Pay an invoice back."""
    return f"{invoice} is paid back"


def by_declared_name(request):
    """A model can only use the names that it was sent."""
    if request.messages[-1].role == "tool":
        return {"name": "finish", "args": {"answer": "done"}}
    return {"name": request.tools[0]["function"]["name"], "args": {"invoice": "A"}}


def first_result(**options):
    agent = ReAct("task -> answer", [Tool(refund, "billing.refund")], **options)
    step = agent(task="Pay A back.", lm=ScriptedLM(by=by_declared_name)).trajectory.steps[0]
    return step.calls[0].name, step.results[0].name, step.results[0].content


def test_a_native_call_has_the_wire_name() -> None:
    assert first_result() == ("billing_dot_refund", "billing_dot_refund", "A is paid back")


def test_a_call_in_text_has_the_tools_own_name() -> None:
    lm = ScriptedLM(
        [
            {"name": "billing.refund", "args": {"invoice": "A"}},
            {"name": "finish", "args": {"answer": "done"}},
        ],
    )
    agent = ReAct("task -> answer", [Tool(refund, "billing.refund")], native=False)
    assert agent(task="Pay A back.", lm=lm).trajectory["tool_name_0"] == "billing.refund"
    assert "billing.refund" in lm.requests[0].messages[0].text
    assert "billing_dot_refund" not in lm.requests[0].messages[0].text


@pytest.mark.parametrize(
    ("name", "is_denied"),
    [("billing.*", True), ("billing.refund", True), ("billing_dot_refund", False)],
)
def test_a_policy_has_the_tools_own_name(name: str, is_denied: bool) -> None:
    if not is_denied:
        with pytest.raises(ConfigurationError, match=r"did you mean `billing\.refund`"):
            first_result(policy=Policy([deny(name)]))
        return
    assert ("forbids" in first_result(policy=Policy([deny(name)]))[2]) is is_denied


def test_a_connection_of_sqlite_fails_in_another_thread_even_if_calls_run_one_at_a_time() -> None:
    db = sqlite3.connect(":memory:")

    def count() -> int:
        """Count."""
        return db.execute("SELECT 3").fetchone()[0]

    def observed(agent: ReAct, *, is_async: bool = False) -> str:
        lm = ScriptedLM(
            [{"name": "count", "args": {}}, {"name": "finish", "args": {"answer": "3"}}],
        )
        found = (
            asyncio.run(agent.acall(task="Count.", lm=lm))
            if is_async
            else agent(task="Count.", lm=lm)
        )
        return found.trajectory["observation_0"]

    one_at_a_time = ReAct("task -> answer", [count], parallel=False)
    assert observed(one_at_a_time) == "3"
    assert "ProgrammingError" in observed(one_at_a_time, is_async=True)
    assert "ProgrammingError" in observed(
        ReAct("task -> answer", [Tool(count, timeout_s=60)], parallel=False),
    )
    assert "ProgrammingError" in observed(
        ReAct("task -> answer", [count], parallel=False, limits=Limits(tool_s=60)),
    )
    db.close()
