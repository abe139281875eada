"""Checking a value against a JSON schema that an MCP server gave, of any draft.

The schema is used unchanged and nothing is fetched: a value fits a reference that leads out of the schema. It also fits what cannot be
checked here, such as a pattern with a look-ahead, as the server checks again. Patterns take time linear in the text: Python's own `re`
takes minutes for `(a+)+$`.
"""

from __future__ import annotations

import contextlib
import re
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import SchemaError, SchemaValidator, ValidationError

from ferrule.tools.arguments.checker import Checker
from ferrule.tools.arguments.nested import fit_numbers
from ferrule.tools.arguments.problems import Problem, explain_jsonschema
from ferrule.tools.definition.inspect_function import FunctionSpec
from ferrule.tools.definition.parameters import Parameters
from ferrule.tools.mcp.safety import scrub_schema
from ferrule.values.calls.call import CheckedArguments
from ferrule.values.encoding.encode import jsonable
from ferrule.values.schema.fast_check import quick_check
from ferrule.values.schema.nodes import Schema, is_list, is_object
from ferrule.values.schema.words import shorten_json

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEEPEST = 100
_OTHER_MEANING = re.compile(r"&&|--|~~|\[[^\]\\]*\[")
"""Syntax with another meaning than in ECMA 262: set operations and nested sets of characters."""


class Validator:
    """All errors of a value, as `jsonschema` reports them: `Validator(schema)(value)`."""

    def __init__(self, schema: Schema) -> None:
        from jsonschema import Draft202012Validator
        from jsonschema.validators import extend, validator_for  # pyright: ignore[reportUnknownVariableType]  untyped
        from referencing import Registry

        kind: Any = validator_for(schema, default=Draft202012Validator)  # pyright: ignore[reportUnknownVariableType]
        refers = {name: _lenient_reference(kind.VALIDATORS[name]) for name in ("$ref", "$dynamicRef") if name in kind.VALIDATORS}
        registry = cast("Any", Registry)()  # empty: fetches nothing
        patterns = {"pattern": _pattern, "patternProperties": _pattern_properties}
        others = {"additionalProperties": _additional(kind.VALIDATORS["additionalProperties"])}
        if _mentions(schema, "patternProperties") and "unevaluatedProperties" in kind.VALIDATORS:
            others["unevaluatedProperties"] = _accept_any  # the library would use Python's `re`; the server checks
        self._kind: Any = extend(kind, {**refers, **patterns, **others})(schema, registry=registry)

    def __call__(self, value: Any) -> list[Any]:
        """`jsonschema`'s errors; if the schema breaks off, those before."""
        found: list[Any] = []
        try:
            for each in self._kind.iter_errors(value):
                found.append(each)  # noqa: PERF402  keeps the errors found before a RecursionError
        except RecursionError:  # a schema that only refers to itself
            pass
        return found


class SchemaCheck:
    """Problems of a value in words, with their paths: `SchemaCheck(schema)(value)`. Fast for values that fit."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._quick = quick_check(schema)

    def __call__(self, value: Any) -> tuple[str, ...]:
        """The problems; empty for a value that fits."""
        if self._quick is not None and self._quick(value):
            return ()
        return tuple(f"{path}: {text}" if path else text for path, text in explain_jsonschema(self._full(value), self._schema))

    @cached_property
    def _full(self) -> Validator:
        return Validator(self._schema)


class MCPChecker(Checker):
    """Checks the arguments of one tool against the schema that its server gave."""

    def __init__(self, tool: str, schema: Schema, *, lenient: bool) -> None:
        super().__init__(
            tool, FunctionSpec(tool, "", (), extra=Any), Parameters(_shown_schema(schema), None, None, by_hand=True, names={}, open=True)
        )
        self._original = schema
        self._lenient = lenient

    def prepare(self, args: Any) -> CheckedArguments:
        """Arguments that fit, repaired if `lenient`. Raises `ToolArgumentsError`."""
        plain = args if isinstance(args, str) or args is None else jsonable(args)
        given: Any = {} if plain is None else plain
        found = self._attempt(given, []) if is_object(given) else [("", f"expected an object of arguments, got {shorten_json(given)}")]
        if isinstance(found, CheckedArguments):
            return found
        if self._lenient:
            return self._prepare_with_repairs(plain)
        raise self._error(found)

    def _attempt(self, args: dict[str, Any], notes: list[str]) -> CheckedArguments | list[Problem]:
        args, _ = fit_numbers(args, self.parameters.schema)  # a server may reject `7.0` as an integer
        problems = self._schema_problems(args)
        return problems or CheckedArguments((), args, args, tuple(dict.fromkeys(notes)))

    def _schema_problems(self, payload: dict[str, Any]) -> list[Problem]:
        if self._quick is not None and self._quick(payload):
            return []
        if _is_too_deep(payload):
            return [("", "the arguments are nested too deeply")]
        return explain_jsonschema(self._full(payload), self.parameters.schema)

    @cached_property
    def _full(self) -> Any:
        return Validator(self._original)


def _shown_schema(schema: Schema) -> Schema:
    """The schema for a model: with `properties`, which providers require, and without invisible characters."""
    shown = scrub_schema(schema)
    return shown if "properties" in shown else {**shown, "properties": {}}


def _is_too_deep(value: Any) -> bool:
    layer = [value]
    for _ in range(_DEEPEST):
        inside = [each for outer in layer for each in (outer.values() if is_object(outer) else outer if is_list(outer) else ())]
        layer = [each for each in inside if is_object(each) or is_list(each)]
        if not layer:
            return False
    return True


# -- references ----------------------------------------------------------------------------------------------------


def _lenient_reference(follow: Any) -> Any:
    """A referring keyword that accepts every value if the reference leads out of the schema, or to nothing."""

    def check(validator: Any, reference: Any, value: Any, schema: Any) -> Iterator[Any]:
        from referencing.exceptions import Unresolvable

        with contextlib.suppress(Unresolvable):
            yield from follow(validator, reference, value, schema) or ()

    return check


# -- patterns -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> SchemaValidator | None:
    if _OTHER_MEANING.search(pattern):
        return None
    try:
        return SchemaValidator({"type": "str", "pattern": pattern})
    except SchemaError:
        return None


def _matches(pattern: Any, text: Any) -> bool | None:
    """Whether a text matches a pattern; None if the pattern uses syntax that is not supported here."""
    matcher = _matcher(pattern) if isinstance(pattern, str) and isinstance(text, str) else None
    if matcher is None:
        return None
    try:
        matcher.validate_python(text)
    except ValidationError as error:
        return False if error.errors()[0]["type"] == "string_pattern_mismatch" else None
    return True


def _pattern(validator: Any, pattern: Any, value: Any, schema: Any) -> Iterator[Any]:
    del schema
    from jsonschema import ValidationError as Broken

    if validator.is_type(value, "string") and _matches(pattern, value) is False:
        yield Broken(f"{value!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, value: Any, schema: Any) -> Iterator[Any]:
    del schema
    if not validator.is_type(value, "object"):
        return
    for pattern, inner in patterns.items():
        for name, each in value.items():
            if _matches(pattern, name):
                yield from validator.descend(each, inner, path=name, schema_path=pattern)


def _additional(follow: Any) -> Any:
    """`additionalProperties` for names that surely match no pattern of `patternProperties`."""

    def check(validator: Any, more: Any, value: Any, schema: Any) -> Iterator[Any]:
        patterns = schema.get("patternProperties")
        if patterns and validator.is_type(value, "object"):
            value = {name: each for name, each in value.items() if all(_matches(it, name) is False for it in patterns)}
            schema = {key: each for key, each in schema.items() if key != "patternProperties"}
        yield from follow(validator, more, value, schema) or ()

    return check


def _accept_any(validator: Any, more: Any, value: Any, schema: Any) -> tuple[()]:
    del validator, more, value, schema
    return ()


def _mentions(schema: Any, word: str) -> bool:
    rest: list[Any] = [schema]
    while rest:
        each = rest.pop()
        if is_object(each):
            if word in each:
                return True
            rest += each.values()
        elif is_list(each):
            rest += each
    return False
