"""Rules that decide in a person's stead: what they cover, and that a doubt never lets a call
through.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import (
    Grant,
    Policy,
    ReAct,
    Tool,
    Toolbox,
    allow,
    ask,
    configure,
    context,
    deny,
    ge,
    gt,
    le,
    lt,
)
from ferrule.approval.policy import arguments_digest
from ferrule.approval.question import Decision
from ferrule.approval.stored_policy import policy_form, read_policy
from ferrule.encoding.encode import jsonable
from ferrule.errors import ConfigurationError
from ferrule.testing import ScriptedLM


class Size(Enum):
    LARGE = "large"


def verdict(policy: Policy, tool: str, **args: object) -> str | None:
    rule = policy.rule_for(tool, args)
    return rule.verdict if rule is not None else None


def test_patterns_choose_tools_and_arguments() -> None:
    """Globs over tool and arguments."""
    policy = Policy(
        [
            allow("search*"),
            ask("pay", amount=gt(100)),
            deny("shell*"),
            deny("write", path="/etc/*"),
        ],
    )
    assert verdict(policy, "search_web", q="x") == "allow"
    assert verdict(policy, "pay", amount=101) == "ask"
    assert verdict(policy, "pay", amount=100) is None
    assert verdict(policy, "shell_run") == "deny"
    with pytest.warns(UserWarning, match=r"`path`.*under"):
        assert verdict(policy, "write", path="/etc/passwd") == "deny"
    assert verdict(policy, "write", path="notes") is None
    assert verdict(policy, "SEARCH") is None


def test_the_strictest_rule_counts_whatever_the_order() -> None:
    for rules in ([allow("*"), deny("rm"), ask("rm")], [ask("rm"), deny("rm"), allow("*")]):
        assert verdict(Policy(rules), "rm") == "deny"
    assert verdict(Policy([allow("*"), ask("r*")]), "rm") == "ask"


def test_rules_of_a_generator_hold_for_every_call() -> None:
    """Checking the rules read them, and no call was denied."""
    policy = Policy(map(deny, ["shell", "rm"]))  # type: ignore[arg-type]
    assert [verdict(policy, name) for name in ("rm", "shell", "rm", "ls")] == [
        "deny",
        "deny",
        "deny",
        None,
    ]


def test_otherwise_is_for_what_no_rule_covers() -> None:
    assert verdict(Policy([allow("search")], otherwise="deny"), "other") == "deny"
    assert verdict(Policy([allow("search")], otherwise="deny"), "search") == "allow"


@pytest.mark.parametrize(
    ("condition", "below", "at", "above"),
    [(gt(5), 0, 0, 1), (ge(5), 0, 1, 1), (lt(5), 1, 0, 0), (le(5), 1, 1, 0)],
    ids=["gt", "ge", "lt", "le"],
)
def test_conditions_compare(condition, below: int, at: int, above: int) -> None:
    assert [condition(4.5), condition(5), condition(6)] == [bool(below), bool(at), bool(above)]


@pytest.mark.parametrize(
    "value",
    ["5000", None, True, [], float("nan")],
    ids=["text", "none", "bool", "empty", "nan"],
)
def test_what_cannot_be_compared_counts_against_the_call(value: object) -> None:
    """`allow` stays silent; a list without elements gives neither a reason to ask."""
    assert verdict(Policy([allow("pay", amount=lt(100))]), "pay", amount=value) is None
    if value != []:
        assert verdict(Policy([ask("pay", amount=gt(100))]), "pay", amount=value) == "ask"


@pytest.mark.parametrize(
    ("condition", "fitting", "others"),
    [
        (500, ["500", "500.00", "5E+2", 500.0], ["50", "five", "0500", "٥٠٠", True]),
        (Decimal("1.10"), ["1.1", 1.1], ["1.11", 1]),
        (Decimal("0.12345678901234567890"), ["0.12345678901234567890"], ["0.123456789012345678"]),
        (date(2026, 1, 1), ["2026-01-01"], ["2026-01-02"]),
        (Size.LARGE, ["large"], ["small"]),
        ({"a"}, [["a"]], [["b"], ["a", "b"]]),
        (gt(Decimal("99.5")), ["100", 100, "1E+3"], ["99.5", "9.6E+1", 99]),
        (gt(date(2026, 1, 1)), ["2026-01-02"], ["2025-12-31"]),
    ],
    ids=str,
)
def test_a_rule_judges_values_as_json_has_them(condition, fitting: list, others: list) -> None:
    """`deny("pay", amount=500)` let a `Decimal` of 500 through: JSON has it as a text."""
    for policy in (Policy([deny("pay", x=condition)]), stored(Policy([deny("pay", x=condition)]))):
        assert [verdict(policy, "pay", x=value) for value in fitting] == ["deny"] * len(fitting)
        assert [verdict(policy, "pay", x=value) for value in others] == [None] * len(others)


def stored(policy: Policy) -> Policy:
    """The policy that a stored run keeps."""
    return read_policy(json.loads(json.dumps(policy_form(policy))), None)


@pytest.mark.parametrize(
    "bound",
    [
        None,
        True,
        [1],
        float("nan"),
        float("inf"),
        datetime(2026, 1, 1, tzinfo=UTC),
        timedelta(1),
        b"x",
    ],
)
def test_a_bound_that_no_argument_compares_with_is_refused(bound: Any) -> None:
    """It counted as a doubt, also when the rule was stored as something else."""
    for compare in (gt, ge, lt, le):
        with pytest.raises(ConfigurationError, match="take a number, a text or a date"):
            compare(bound)


def test_a_list_is_allowed_only_if_all_of_it_is_and_denied_if_any_of_it_is() -> None:
    policy = Policy([allow("cp", files="docs-*"), deny("cp", files="*.key")])
    assert verdict(policy, "cp", files=["docs-a", "docs-b"]) == "allow"
    assert verdict(policy, "cp", files=["docs-a", "b"]) is None
    assert verdict(policy, "cp", files=["docs-a", "docs-a.key"]) == "deny"


def test_a_missing_argument_fits_no_rule_and_true_is_not_one() -> None:
    assert verdict(Policy([allow("f", x="*")]), "f") is None
    assert verdict(Policy([allow("f", x=1)]), "f", x=True) is None
    assert verdict(Policy([allow("f", where={"reason": "x"})]), "f", reason="x") == "allow"


def test_a_policy_of_something_else_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="A policy is made of"):
        Policy([lambda args: True])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="otherwise"):
        Policy([], otherwise="perhaps")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="expires_s"):
        ask("f", expires_s=0)
    with pytest.raises(ConfigurationError, match="expires_s"):
        ask("f", expires_s="3")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"list of `allow.*found .*deny.*shell"):
        Policy(deny("shell"))  # type: ignore[arg-type]
    for rule in (allow, ask, deny):
        with pytest.raises(
            ConfigurationError,
            match=f"`{rule.__name__}` takes a tool's name or a pattern, .* found <function",
        ):
            rule(verdict)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="`policy` takes"):
        configure(policy="deny")


@pytest.mark.parametrize(
    "condition", [re.compile("E.*"), object()], ids=["regular expression", "object"]
)
def test_a_condition_that_no_argument_can_meet_is_refused(condition: Any) -> None:
    """A `deny` with a regular expression was a glob, and one with an object never matched."""
    for make in (
        lambda: allow("pay", to=condition),
        lambda: deny("pay", to=condition),
        lambda: Grant(args={"to": condition}),
    ):
        with pytest.raises(ConfigurationError, match="A condition of a rule is a value of JSON"):
            make()


@pytest.mark.parametrize("several", [["Eve", "Bob"], ("Eve", "Bob"), {"Eve", "Bob"}], ids=type)
def test_a_list_is_not_compared_with_an_argument_that_is_never_one(several: Any) -> None:
    """`deny("pay", to=["Eve", "Bob"])` means one of them, and never matched."""

    def pay(to: str, tags: list[str], either: str | list[str] = "") -> str:
        return "paid"

    with pytest.raises(ConfigurationError, match=r"compares `to` of `pay`, a string, with a list"):
        ReAct("q -> a", [pay], policy=Policy([deny("pay", to=several)]))
    ReAct("q -> a", [pay], policy=Policy([deny("pay", tags=["a"]), deny("pay", either=["a"])]))


def test_a_condition_that_is_async_is_refused_for_its_coroutine_would_count_as_true() -> None:
    async def is_friend(to: str) -> bool:
        return to == "Ada"

    with pytest.raises(ConfigurationError, match=r"The condition on `to` .* is async: write `def`"):
        allow("pay", to=is_friend)
    with pytest.raises(ConfigurationError, match="is not awaited"):
        Policy([allow("pay", to=lambda to: is_friend(to))]).rule_for("pay", {"to": "Eve"})


def test_a_rule_is_also_what_a_tool_may_require() -> None:
    """`require_confirmation=ask(...)`."""
    assert ask(amount=gt(100))({"amount": 101}) is True
    assert ask(amount=gt(100))({"amount": 7}) is False
    assert ask(amount=gt(100))({"amount": "seven"}) is True
    assert ask(amount=gt(100))({"amount": "7"}) is False


def given_on(shown: dict[str, object], /, **how: object) -> Grant:
    return Grant(**how, tool="rm", fingerprint="f", same=arguments_digest(shown))  # type: ignore[arg-type]


def test_a_grant_covers_what_it_says_and_no_other_tool_or_definition() -> None:
    """It is for one definition of the tool."""
    same = given_on({"path": "a"})
    assert same.covers("rm", "f", {"path": "a"})
    assert not same.covers("rm", "f", {"path": "b"})
    assert not same.covers("cp", "f", {"path": "a"})
    assert not same.covers("rm", "g", {"path": "a"})
    assert not same.covers("rm", "f", {"path": "a"}, inside="other_agent")
    assert given_on({}, args="any").covers("rm", "f", {"path": "b"})
    pattern = given_on({}, args={"path": "tmp-*"})
    assert pattern.covers("rm", "f", {"path": "tmp-x"})
    assert not pattern.covers("rm", "f", {"path": "etc-x"})


@given(
    st.dictionaries(
        st.sampled_from(["path", "Path", "x"]),
        st.integers() | st.text(max_size=3),
        max_size=3,
    ),
)
def test_a_pattern_with_stars_alone_never_covers_a_call_without_that_argument(
    args: dict[str, object],
) -> None:
    """Property."""
    assert given_on({}, args={"path": "*"}).covers("rm", "f", args) is ("path" in args)


@pytest.mark.parametrize("seconds", [0, -1, "60", True, math.nan, math.inf])
def test_a_time_that_a_run_cannot_keep_is_refused(seconds: Any) -> None:
    """The run failed with a message about its journal."""
    with pytest.raises(ConfigurationError, match="`expires_s` is a number of seconds above 0"):
        ask("pay", expires_s=seconds)
    assert ask("pay", expires_s=0.5).expires_s == 0.5


@pytest.mark.parametrize(
    "how",
    [
        {"args": "all"}, {"calls": 0}, {"calls": "3"}, {"calls": True}, {"until": math.inf}, {"until": math.nan}, {"until": "x"},
        {"args": {"path": lambda _: True}}, {"args": ["path"]}, {"calls": 1.5}, {"until": "noon"},
    ],
    ids=lambda how: "function" if isinstance(how.get("args"), dict) else str(how),
)  # fmt: skip
def test_a_grant_that_makes_no_sense_is_refused(how: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        Grant(**how)  # type: ignore[arg-type]


def test_a_decision_with_its_grant_survives_json() -> None:
    made = Decision(
        "q",
        "approve",
        by="ada",
        via="web",
        at=1.5,
        shown="d",
        grant=given_on({"path": "a"}, calls=2),
    )
    again = Decision(**jsonable(made))
    assert again == made
    assert (again.by, again.via, again.at, again.shown) == ("ada", "web", 1.5, "d")


# -- conditions that fail, and patterns for paths


def is_large(amount: Any) -> bool:
    return amount > 100


def test_a_condition_that_raises_names_the_tool_the_rule_and_the_argument() -> None:
    policy = Policy([ask("p*", amount=is_large)])
    with pytest.raises(
        ConfigurationError, match=r"`pay`.*ask\('p\*'.*`amount`.*TypeError"
    ) as raised:
        verdict(policy, "pay", amount="many")
    assert isinstance(raised.value.__cause__, TypeError)


@pytest.mark.parametrize(
    "requirement", [ask(amount=is_large), lambda args: is_large(args["amount"])]
)
def test_a_tools_own_condition_that_raises_names_the_tool(requirement: Any) -> None:
    def pay(amount: str) -> str:
        """Pay."""
        return amount

    agent = ReAct(
        "task -> answer",
        [Tool(pay, require_confirmation=requirement)],
        lm=ScriptedLM([{"name": "pay", "args": {"amount": "many"}}]),
    )
    with pytest.raises(ConfigurationError, match=r"`pay`.*TypeError"):
        agent(task="x")


@pytest.mark.parametrize(
    ("pattern", "value", "warns"),
    [
        ("src/*", "src/../etc", True),
        ("*.py", "src/a.py", True),
        ("*", "src/a.py", False),
        ("src/a.py", "src/a.py", False),
        ("C:*", "C:\\a", True),
        ("A*", "Ada", False),
        ("https://a/*", "https://a/b", False),
        ("git *", "git push origin/main", False),
    ],
)
def test_a_pattern_for_a_path_warns_and_names_under(pattern: str, value: str, warns: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        verdict(Policy([allow("f", path=pattern)]), "f", path=value)
        given_on({}, args={"path": pattern}).covers("rm", "f", {"path": value})
    assert len(caught) == 2 * warns
    assert all("`under" in str(warning.message) for warning in caught)


# -- rules that name no tool


def run_shell(command: str) -> str:
    """Run a command."""
    return command


def agent_under(policy: Policy | None, **options: Any) -> ReAct:
    call = {"name": "run_shell", "args": {"command": "ls"}}
    lm = ScriptedLM([call, {"name": "finish", "args": {"answer": "done"}}])
    return ReAct("task -> answer", [run_shell], policy=policy, lm=lm, **options)


def test_a_rule_of_an_agents_own_policy_names_its_tools() -> None:
    with pytest.raises(ConfigurationError, match=r"deny\('run_shel'\).*`run_shell`"):
        agent_under(Policy([deny("run_shel")]))
    with pytest.raises(ConfigurationError, match=r"deny\('bash'\).*`run_shell`"):
        agent_under(Policy([allow("*")], around=Policy([deny("bash")])))
    with pytest.raises(ConfigurationError, match=r"`comand`.*`run_shell`.*`command`"):
        agent_under(Policy([deny("run_shell", comand="rm*")]))
    for rule in (deny("run_shell", command="rm*"), ask("run_*", anything=1), deny("finish")):
        agent_under(Policy([rule]))


def test_a_pattern_of_an_agents_own_policy_that_fits_nothing_warns() -> None:
    with pytest.warns(UserWarning, match=r"ask\('zzz\*'\)"):
        agent_under(Policy([ask("zzz*")]))


def test_tools_that_are_loaded_later_are_declared() -> None:
    rules = [deny("deploy"), ask("db_drop"), deny("zzz*")]
    policy = Policy(rules, loaded_later=["deploy", "db_*", "zzz1"])
    agent_under(policy)
    assert read_policy(jsonable(policy_form(policy)), None) == policy
    for later in ("deploy", [1], 5):
        with pytest.raises(ConfigurationError, match="`loaded_later` is a list"):
            Policy(rules, loaded_later=later)  # type: ignore[arg-type]


def test_tools_on_the_shelf_count() -> None:
    shelved = Toolbox([], shelf=[run_shell])
    ReAct("task -> answer", shelved, policy=Policy([deny("run_shell", command="rm*")]))
    with pytest.raises(ConfigurationError, match="run_shell"):
        ReAct("task -> answer", shelved, policy=Policy([deny("run_shel")]))


@pytest.mark.parametrize("name", ["run_shel", "no_such_tool", "no_such_tool_*"])
def test_a_rule_of_the_settings_that_fits_no_tool_warns_when_a_program_runs(name: str) -> None:
    with context(policy=Policy([deny(name)])), pytest.warns(UserWarning, match=f"deny.'{name[:8]}"):
        agent_under(None)(task="x")


def test_the_policy_of_the_settings_may_name_tools_of_any_program() -> None:
    def of_another_agent() -> str:
        """Do nothing."""
        return ""

    def called_directly() -> str:
        """Do nothing."""
        return ""

    ReAct("task -> answer", [of_another_agent])
    Tool(called_directly)
    names = ["of_another_agent", "of_anoth*", "called_directly", "late"]
    policy = Policy([deny(name) for name in names], loaded_later=["late"])
    with context(policy=policy):
        agent_under(None)(task="x")


def test_a_tools_own_rule_names_its_arguments() -> None:
    with pytest.raises(ConfigurationError, match=r"`comand`.*`command`"):
        ReAct("task -> answer", [Tool(run_shell, require_confirmation=ask(comand="rm*"))])
