"""A policy as JSON data, stored with the runs that it governs.

Rules are stored by value, so that a run keeps them wherever it resumes. A function among the
conditions is stored as `module:qualname` and imported when the run resumes. Nothing finds a lambda
or an object with a state again: a policy that has one needs a name, `Policy(rules, name="house")`,
and a policy of that name must be in force when the run resumes.
"""

from __future__ import annotations

import importlib
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import astuple

from ferrule.approval.paths import Under
from ferrule.approval.policy import CallCondition, Compared, Policy, Rule
from ferrule.encoding.encode import jsonable
from ferrule.encoding.stored import check_fields
from ferrule.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_COMPARISONS = {"compared": Compared, "under": Under}
"""The conditions that are data, by the word that stands for them in the stored form."""


def policy_form(policy: Policy) -> dict[str, Any]:
    """A policy as JSON data.

    The rules are None if they cannot be stored. Raises `ConfigurationError` if the policy then has
    no name.
    """
    name = getattr(policy, "name", "")
    try:
        form = _rules_form(policy)
    except _NotStorable as refusal:
        if not name:
            raise ConfigurationError(
                f"The policy of a stored run is stored with it, and {refusal} cannot be. Write a "
                "function of a module in its place, or give the policy a name, "
                "`Policy([...], name='house')`: a policy of that name must then be in force when "
                "the run resumes."
            ) from None
        form = {"rules": None}
    return {"name": name, **form}


def read_policy(form: Mapping[str, Any], in_force: Policy | None) -> Policy:
    """The policy that a run was started with.

    The one in force if it has the same name, which may be a newer version; otherwise the stored
    rules. Raises `ConfigurationError` if there are neither.
    """
    name = form["name"]
    for policy in _with_those_around(in_force):
        if name and getattr(policy, "name", "") == name:
            return policy
    if form["rules"] is None:
        raise ConfigurationError(
            f"This run was started under the policy {name!r}, and no policy of that name is in "
            "force here. Set it with `configure(policy=...)` or `context(policy=...)`, or resume "
            "with another one: `run.resume(policy=...)`."
        )
    around = form.get("around")
    return Policy(
        [_read_rule(rule, name) for rule in form["rules"]],
        form["otherwise"],
        name=name,
        around=None if around is None else read_policy(around, in_force),
        loaded_later=form.get("loaded_later", ()),
    )


def _with_those_around(policy: Policy | None) -> Iterator[Policy]:
    while policy is not None:
        yield policy
        policy = getattr(policy, "around", None)


class _NotStorable(Exception):  # noqa: N818  a signal within this module, not an error
    """Raised with words for a condition, or a policy, that has no form as data."""


def _rules_form(policy: Policy) -> dict[str, Any]:
    if type(policy) is not Policy:
        raise _NotStorable(f"{shown(policy)}, a class of your own,")
    form: dict[str, Any] = {
        "otherwise": policy.otherwise,
        "rules": [_rule_form(rule) for rule in policy.rules],
    }
    if policy.loaded_later:
        form["loaded_later"] = list(policy.loaded_later)
    if policy.around is not None:
        form["around"] = policy_form(policy.around)
    return form


def _rule_form(rule: Rule) -> dict[str, Any]:
    form: dict[str, Any] = {
        "verdict": rule.verdict,
        "tool": rule.tool,
        "where": {name: _condition_form(rule, name) for name in rule.where},
    }
    if rule.reason:
        form["reason"] = rule.reason
    if rule.expires_s is not None:
        form["expires_s"] = rule.expires_s
    if isinstance(rule.when, CallCondition):
        form["when"] = _when_form(rule.when)
    elif rule.when is not None:
        path = _path_of(rule.when)
        if path is None:
            raise _NotStorable(f"the condition {shown(rule.when)} in {rule.verdict}(...)")
        form["when"] = {"function": path}
    if rule.by is not None:
        path = _path_of(rule.by)
        if path is None:
            raise _NotStorable(f"the reviewer {shown(rule.by)}")
        form["by"] = path
        form["timeout_s"] = rule.timeout_s
    return form


def _when_form(when: CallCondition) -> dict[str, Any]:
    form: dict[str, Any] = {}
    if when.rescued is not None:
        form["rescued"] = when.rescued
    if when.confidence is not None:
        form["confidence"] = list(astuple(when.confidence))
    if when.after is not None:
        form["after"] = when.after
    if when.tainted is not None:
        form["tainted"] = when.tainted
    return form


def _condition_form(rule: Rule, name: str) -> list[Any]:
    condition = rule.where[name]
    for word, comparison in _COMPARISONS.items():
        if isinstance(condition, comparison):
            return [word, *map(jsonable, astuple(condition))]
    if not callable(condition):
        return ["value", jsonable(condition)]
    path = _path_of(condition)
    if path is None:
        raise _NotStorable(f"the condition {shown(condition)} on `{name}` in {rule.verdict}(...)")
    return ["function", path]


def _path_of(condition: Any) -> str | None:
    """`module:qualname` of a function that another process finds there; None for any other."""
    if not isinstance(condition, FunctionType):
        return None
    path = f"{condition.__module__}:{condition.__qualname__}"
    try:
        found = _function_at(path)
    except (AttributeError, ImportError, ValueError):
        return None
    return path if found is condition else None


def _function_at(path: str) -> FunctionType:
    """The function of this path. Raises `AttributeError`, `ImportError` or `ValueError`."""
    module_name, _, qualname = path.partition(":")
    # A stored run is trusted like a database, but a database must not name code to run: only plain
    # functions that a module defines itself, and none of Python's own modules.
    if module_name.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        raise ValueError(f"{path!r} is a function of Python's standard library")
    value: Any = importlib.import_module(module_name)
    for name in qualname.split("."):
        value = getattr(value, name)
    is_defined_there = isinstance(value, FunctionType) and value.__module__ == module_name
    if not is_defined_there or value.__qualname__ != qualname:
        raise ValueError(f"{path!r} is not a function that is defined there")
    return cast("FunctionType", value)


def _read_rule(form: Mapping[str, Any], policy_name: str) -> Rule:
    fields = dict(form)
    fields["where"] = {
        name: _read_condition(condition, policy_name) for name, condition in form["where"].items()
    }
    if "when" in form:
        fields["when"] = _read_when(form["when"], policy_name)
    if "by" in form:
        fields["by"] = _read_function(form["by"], policy_name)
    return check_fields(Rule(**fields))


def _read_when(form: Mapping[str, Any], policy_name: str) -> Any:
    if "function" in form:
        return _read_function(form["function"], policy_name)
    fields = dict(form)
    if "confidence" in fields:
        fields["confidence"] = check_fields(Compared(*fields["confidence"]))
    return check_fields(CallCondition(**fields))


def _read_condition(form: Any, policy_name: str) -> Any:
    word, *values = form
    if word in _COMPARISONS:
        return _COMPARISONS[word](*values)
    if word == "value":
        [value] = values
        return value
    [path] = values
    return _read_function(path, policy_name)


def _read_function(path: Any, policy_name: str) -> FunctionType:
    """The function of a stored condition; raises `ConfigurationError` if it is not there."""
    try:
        return _function_at(path)
    except (AttributeError, ImportError, ValueError) as error:
        named = f" {policy_name!r}" if policy_name else ""
        raise ConfigurationError(
            f"This run was started under a policy{named} with the function {path!r} as a "
            f"condition, which is not found here ({error}). Put it back, or resume with another "
            "policy: `run.resume(policy=...)`."
        ) from error
