"""Explain in words why a value does not match a schema, so that a model or a person can mend it.

A problem is a pair: the dotted path (`filters.0.name`), and a text with what was expected and what
was found.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import escape_surrogates
from ferrule.errors import nearest
from ferrule.schema.failures import NO_KEYWORD, UNCHECKED, find_failures
from ferrule.schema.nodes import is_object, is_sequence
from ferrule.schema.patterns import with_surrogates
from ferrule.schema.validator import Validator
from ferrule.schema.words import describe_expected, format_number, shorten_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ferrule.schema.failures import Failure
    from ferrule.schema.nodes import Schema

Problem = tuple[str, str]
Path = tuple[str | int, ...]

MOST_PROBLEMS = 50
"""The most problems reported for one call: a model has no use for more."""
_LONGEST_NAME = 100
_MOST_UNKNOWN = 10
"""The most unknown arguments that are named. The rest are counted."""
_PHRASES = {
    "minimum": "{got} is under the minimum {bound}",
    "maximum": "{got} is over the maximum {bound}",
    "exclusiveMinimum": "{got} must be greater than {bound}",
    "exclusiveMaximum": "{got} must be less than {bound}",
    "minLength": "{got} has fewer than {bound} characters",
    "maxLength": "{got} has more than {bound} characters",
    "minItems": "has {count} items, expected at least {bound}",
    "maxItems": "has {count} items, expected at most {bound}",
    "pattern": "{got} does not match the pattern {bound}",
}


class SchemaCheck:
    """Explains in words, with paths, why a value does not match: `SchemaCheck(schema)(value)`.

    The schema may be of any draft and come from others: from an MCP server, or from the author of
    the tool behind a form. Nothing is fetched, and unknown keywords are ignored.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def __call__(self, value: Any) -> tuple[str, ...]:
        """The problems; empty for a value that matches. An unusable schema is a problem, too."""
        try:
            failures = find_failures(self._validator, value)
        except ValueError as error:
            return (f"the schema cannot be used: {error}",)
        problems = explain_failures(failures, self._schema)
        return tuple(f"{path}: {text}" if path else text for path, text in problems)

    @cached_property
    def _validator(self) -> Validator:
        return Validator(self._schema, lenient=True)


def explain_failures(failures: Iterable[Failure], schema: Schema) -> list[Problem]:
    """The problems of a value that does not fit a schema, without duplicates."""
    problems: list[Problem] = []
    for failure in failures:
        properties: Any = {}
        if is_object(failure.schema):
            properties = failure.schema.get("properties", {})
        if not failure.names:
            problems.append((dotted_path(failure.path), _explain_failure(failure, schema)))
        elif failure.keyword == "additionalProperties":
            # Only the names that are shown need to be readable: there may be thousands.
            shown = map(with_surrogates, failure.names[:_MOST_UNKNOWN])
            names = [*shown, *failure.names[_MOST_UNKNOWN:]]
            problems += unknown_arguments(names, properties, failure.path)
        else:
            for name in failure.names:
                path = dotted_path((*failure.path, name))
                problems.append(missing_argument(path, properties.get(name, True), schema))
    return list(dict.fromkeys(problems))


def unknown_arguments(
    names: Sequence[object], known: Iterable[str], path: Path = ()
) -> list[Problem]:
    """The problems of arguments that no parameter takes; of many, only the first are named."""
    candidates = list(known)
    problems: list[Problem] = []
    for name in names[:_MOST_UNKNOWN]:
        short, text = _unknown_argument(name, candidates)
        problems.append((dotted_path((*path, short)), text))
    more = len(names) - len(problems)
    if more:
        problems.append((dotted_path(path), f"there are {more:,} more arguments that do not exist"))
    return problems


def missing_argument(name: str, schema: Any, root: Schema) -> Problem:
    """The problem of an absent argument, whose schema is `schema`."""
    expected = describe_expected(schema, root)
    text = "is missing"
    if expected != "any value":
        text += f", expected {expected}"
    return escape_surrogates(name), text


def dotted_path(path: Iterable[str | int]) -> str:
    """A path in the form that a model reads."""
    return escape_surrogates(".".join(str(step) for step in path))


def format_bound(value: Any) -> str:
    """A limit of a schema, such as a minimum, as text."""
    if isinstance(value, (int, float)):
        return format_number(value)
    return str(value)


def _unknown_argument(name: object, names: Iterable[str]) -> Problem:
    text = name
    if not isinstance(text, str):  # a key of a Python dict
        text = repr(name)
    if len(text) > _LONGEST_NAME:
        text = f"{text[: _LONGEST_NAME - 1]}…"
    problem = "there is no such argument"
    similar = nearest(text, names)
    if similar:
        problem += f", did you mean `{similar}`?"
    return escape_surrogates(text), problem


def _explain_failure(failure: Failure, root: Schema) -> str:
    keyword, bound, got = failure.keyword, failure.bound, shorten_json(failure.value)
    if keyword == UNCHECKED:
        return str(bound)  # the reason
    if failure.schema is False:
        return f"there must be no value, got {got}"
    if keyword in _PHRASES:
        count = 0
        if is_sequence(failure.value):
            count = len(failure.value)
        return _PHRASES[keyword].format(got=got, bound=format_bound(bound), count=count)
    if keyword in {NO_KEYWORD, "type", "enum", "const", "anyOf", "oneOf"}:
        return f"expected {describe_expected(failure.schema, root)}, got {got}"
    return f"{got} breaks the rule {shorten_json({keyword: bound})}"
