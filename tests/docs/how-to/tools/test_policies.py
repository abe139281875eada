"""The claims of docs/how-to/tools/policies.md."""

from __future__ import annotations

import pytest

from ferrule import Policy, ReAct, ask, context, deny, gt
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/how-to/tools/policies.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/tools/policies.md") == []


def pay(to: str, amount: float) -> str:
    """Pay somebody."""
    return f"paid {amount} to {to}"


def run_with(*rules):
    lm = ScriptedLM(
        [
            {"name": "pay", "args": {"to": "Ada", "amount": 500}},
            {"name": "finish", "args": {"answer": "done"}},
        ],
    )
    return ReAct("task -> answer", [pay], policy=Policy(rules)).start(task="Pay Ada.", lm=lm)


@pytest.mark.parametrize("rule", [ask("pay", amuont=gt(100)), deny("pay", amuont=500)], ids=str)
def test_a_rule_of_one_tool_about_an_argument_that_it_lacks_is_refused(rule) -> None:
    with pytest.raises(ConfigurationError, match="Did you mean `amount`"):
        run_with(rule)


@pytest.mark.parametrize("rule", [ask("pay", amuont=gt(100)), deny("pay", amuont=500)], ids=str)
def test_such_a_rule_of_the_settings_fails_the_run(rule) -> None:
    with context(policy=Policy([rule])):
        run = run_with()
    assert run.status == "failed"
    assert isinstance(run.error, ConfigurationError)


def test_a_rule_with_a_pattern_does_not_apply_to_a_tool_without_its_argument() -> None:
    assert run_with(ask("p*", amuont=gt(100))).status == "done"


def test_an_async_condition_is_refused() -> None:
    async def is_large(amount: float) -> bool:
        return amount > 100

    with pytest.raises(ConfigurationError, match="async"):
        ask("pay", amount=is_large)
