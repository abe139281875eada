"""Checking against schemas of strangers.

In: a JSON schema that an MCP server gave, of any draft. Out: a validator that works on it as it is, and never fetches anything: what a
reference leads out to is taken to fit. So is what the schema says in a way that cannot be checked here (a pattern with a look-ahead, a
reference to nothing): the server checks once more. Patterns are matched in time that grows with the text alone, whatever they are: Python's
own `re` takes minutes for `(a+)+$`.
"""

from __future__ import annotations

import contextlib
import re
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import SchemaError, SchemaValidator, ValidationError

from ferrule.tools.arguments.checker import Checker
from ferrule.tools.arguments.numbers import fit_numbers
from ferrule.tools.arguments.problems import Problem, explain_jsonschema
from ferrule.tools.definition.inspect_function import FunctionSpec
from ferrule.tools.definition.parameters import Parameters
from ferrule.tools.mcp.safety import scrubbed_schema
from ferrule.values.calls.call import CheckedArguments
from ferrule.values.encoding.encode import jsonable
from ferrule.values.schema.fast_check import quick_check
from ferrule.values.schema.nodes import Schema, is_list, is_object
from ferrule.values.schema.words import shorten_json

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEEPEST = 100
_READ_OTHERWISE = re.compile(r"&&|--|~~|\[[^\]\\]*\[")
"""What means something else here than in ECMA 262: operations on sets of characters, and sets in sets."""


class MCPChecker(Checker):
    """Checks the calls of one tool of a server against the schema that the server gave."""

    def __init__(self, tool: str, schema: Schema, *, lenient: bool) -> None:
        super().__init__(
            tool, FunctionSpec(tool, "", (), extra=Any), Parameters(view(schema), None, None, by_hand=True, names={}, open=True)
        )
        self._original = schema
        self._lenient = lenient

    def prepare(self, args: Any) -> CheckedArguments:
        """Arguments that fit, mended where that is wanted; `ToolArgumentsError` otherwise."""
        plain = args if isinstance(args, str) or args is None else jsonable(args)
        if self._lenient:
            return self._thoroughly(plain)
        given: Any = {} if plain is None else plain
        found = self._attempt(given, []) if is_object(given) else [("", f"expected an object of arguments, got {shorten_json(given)}")]
        if isinstance(found, CheckedArguments):
            return found
        raise self._error(found)

    def _attempt(self, args: dict[str, Any], notes: list[str]) -> CheckedArguments | list[Problem]:
        args, _ = fit_numbers(args, self.parameters.schema)  # a server may read `7.0` as no integer
        problems = self._broken(args)
        return problems or CheckedArguments((), args, args, tuple(dict.fromkeys(notes)))

    def _broken(self, payload: dict[str, Any]) -> list[Problem]:
        if self._quick is not None and self._quick(payload):
            return []
        if _depth(payload) > _DEEPEST:
            return [("", "the arguments are nested too deeply")]
        return explain_jsonschema(self._full(payload), self.parameters.schema)

    @cached_property
    def _full(self) -> Any:
        return Validator(self._original)


class Validator:
    """All errors of a value, as `jsonschema` tells them: `Validator(schema)(value)`."""

    def __init__(self, schema: Schema) -> None:
        from jsonschema import Draft202012Validator
        from jsonschema.validators import extend, validator_for  # pyright: ignore[reportUnknownVariableType]  untyped
        from referencing import Registry

        kind: Any = validator_for(schema, default=Draft202012Validator)  # pyright: ignore[reportUnknownVariableType]
        refers = {name: _followed(kind.VALIDATORS[name]) for name in ("$ref", "$dynamicRef") if name in kind.VALIDATORS}
        registry = cast("Any", Registry)()  # it knows nothing and fetches nothing
        patterns = {"pattern": _pattern, "patternProperties": _pattern_properties}
        others = {"additionalProperties": _additional(kind.VALIDATORS["additionalProperties"])}
        if _mentions(schema, "patternProperties") and "unevaluatedProperties" in kind.VALIDATORS:
            others["unevaluatedProperties"] = _left_to_the_server  # the library would match by Python's `re` for it
        self._kind: Any = extend(kind, {**refers, **patterns, **others})(schema, registry=registry)

    def __call__(self, value: Any) -> list[Any]:
        """`jsonschema`'s errors; those up to the place where the schema itself cannot be followed."""
        found: list[Any] = []
        try:
            for each in self._kind.iter_errors(value):
                found.append(each)  # noqa: PERF402  what was found before the schema breaks off is kept
        except RecursionError:  # of a schema that only refers to itself
            pass
        return found


class SchemaCheck:
    """Problems of a value, in words: `SchemaCheck(schema)(value)`. What plainly fits costs little."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._quick = quick_check(schema)

    def __call__(self, value: Any) -> tuple[str, ...]:
        """Each with its path; none for a value that fits."""
        if self._quick is not None and self._quick(value):
            return ()
        return tuple(f"{path}: {text}" if path else text for path, text in explain_jsonschema(self._full(value), self._schema))

    @cached_property
    def _full(self) -> Validator:
        return Validator(self._schema)


def view(schema: Schema) -> Schema:
    """The schema as it is shown: with `properties`, which providers want, and without characters that nobody sees."""
    shown = scrubbed_schema(schema)
    return shown if "properties" in shown else {**shown, "properties": {}}


def _followed(follow: Any) -> Any:
    """A keyword that refers, where there is something to refer to; what is elsewhere, or nowhere, refuses nothing."""

    def check(validator: Any, reference: Any, value: Any, schema: Any) -> Iterator[Any]:
        from referencing.exceptions import Unresolvable

        with contextlib.suppress(Unresolvable):
            yield from follow(validator, reference, value, schema) or ()

    return check


# -- patterns -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> SchemaValidator | None:
    if _READ_OTHERWISE.search(pattern):
        return None
    try:
        return SchemaValidator({"type": "str", "pattern": pattern})
    except SchemaError:
        return None


def _matches(pattern: Any, text: Any) -> bool | None:
    """Whether a pattern is found in a text; None where that cannot be told here: ECMA 262 has forms that are not read."""
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
    """`additionalProperties` for the names that surely match no pattern beside it."""

    def check(validator: Any, more: Any, value: Any, schema: Any) -> Iterator[Any]:
        patterns = schema.get("patternProperties")
        if patterns and validator.is_type(value, "object"):
            value = {name: each for name, each in value.items() if all(_matches(it, name) is False for it in patterns)}
            schema = {key: each for key, each in schema.items() if key != "patternProperties"}
        yield from follow(validator, more, value, schema) or ()

    return check


def _left_to_the_server(validator: Any, more: Any, value: Any, schema: Any) -> tuple[()]:
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


def _depth(value: Any) -> int:
    """How deeply lists and objects are nested, counted no further than is allowed."""
    layer, depth = [value], 0
    while layer and depth <= _DEEPEST:
        layer = [
            inside
            for each in layer
            for inside in (each.values() if is_object(each) else each if is_list(each) else ())
            if is_object(inside) or is_list(inside)
        ]
        depth += 1
    return depth
