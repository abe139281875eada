"""Reads an expectation from its text, as a file of cases has it. Nothing is executed."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, cast

from ferrule.approval.paths import under
from ferrule.approval.policy import call, ge, gt, le, lt
from ferrule.errors import ConfigurationError, shown
from ferrule.runs.cases.expectations import (
    Expectation,
    asked_person,
    at_least,
    at_most,
    called,
    cost_under,
    in_order,
    never,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_EXPECTATIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (asked_person, at_least, at_most, called, cost_under, in_order, never)
}
_CONDITIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function for function in (call, ge, gt, le, lt, under)
}
_FUNCTIONS = {**_EXPECTATIONS, **_CONDITIONS}


def read_expectation(text: Any) -> Expectation:
    """Read `called('refund', euros=le(30))`: the text of an expectation, as `str` writes it.

    Raises `ConfigurationError` for anything else: arguments are literals and conditions.
    """
    if not isinstance(text, str):
        raise ConfigurationError(_refusal(text, "it is not a text"))
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ConfigurationError(_refusal(text, f"it cannot be read ({error})")) from None
    try:
        value = _value(node)
    except ConfigurationError as error:
        raise ConfigurationError(_refusal(text, str(error))) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(_refusal(text, f"its arguments do not fit ({error})")) from None
    if not isinstance(value, Expectation):
        raise ConfigurationError(_refusal(text, "it is no condition on a run"))
    return value


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Call(func=ast.Name(id=name)):
            function = _FUNCTIONS.get(name)
            if function is None:
                known = ", ".join(sorted(_FUNCTIONS))
                raise ConfigurationError(f"there is no {name!r} here, only {known}")
            # `None` for the name of a keyword is `**`, which is not a literal.
            if any(argument.arg is None for argument in node.keywords):
                raise ConfigurationError("`**` cannot be used here")
            named = {
                cast("str", argument.arg): _value(argument.value) for argument in node.keywords
            }
            return function(*map(_value, node.args), **named)
        case ast.Dict() if all(key is not None for key in node.keys):
            keys = [ast.literal_eval(cast("ast.expr", key)) for key in node.keys]
            return dict(zip(keys, map(_value, node.values), strict=True))
        case ast.List():
            return list(map(_value, node.elts))
        case _:
            return ast.literal_eval(node)


def _refusal(text: Any, problem: str) -> str:
    return (
        f"An expectation is written as in Python, such as `called('refund', euros=le(30))`; found "
        f"{shown(text)}: {problem}."
    )
