"""Find where a value does not fit a schema: each place, with the keyword that refuses it.

The validator's own list of errors grows exponentially with the depth of nested unions. Here the
validator only answers yes or no, and the walk continues where it answers no. It does not look into
the branches of a union: the model may have meant any of them.
"""

from __future__ import annotations

import contextlib
from functools import reduce
from itertools import chain
from operator import getitem
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from ferrule.schema.drafts import IGNORE_SIBLINGS
from ferrule.schema.nodes import is_list, is_object, is_sequence
from ferrule.schema.patterns import with_surrogates
from ferrule.schema.references import join_pointer
from ferrule.schema.validator import UncheckableError, Validator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST = 50
"""The most failures reported. A model has no use for more, and each costs time."""
_MOST_CHECKS = 1_000_000
"""The most checks of one walk. Beyond them, it reports what it has."""
_CHEAP = 1_000
"""Up to this many schemas at one place, a check counts as one."""
_Path = tuple[str | int, ...]
UNCHECKED = "unchecked"
"""Stands for the keyword if a value cannot be checked."""
NO_KEYWORD = ""
"""Stands for the keyword if no single one is to blame."""


class Failure(Struct, frozen=True):
    """A value that a schema refuses, and the keyword that refuses it."""

    path: _Path
    keyword: str
    """The keyword that refuses the value, `UNCHECKED` or `NO_KEYWORD`."""
    bound: Any
    """The keyword's value, or why the value cannot be checked."""
    value: Any
    schema: Any
    """The schema that contains the keyword."""
    names: tuple[str, ...] = ()
    """The missing or unknown names, as `plain_json` writes them."""


def find_failures(validator: Validator, value: Any) -> list[Failure]:
    """The failures of a value, at most 50; empty if it fits."""
    failures: list[Failure] = []
    try:
        plain = validator.plain(value)
        if validator.accepts("", plain):
            return []
    except UncheckableError as error:
        return [Failure((), UNCHECKED, str(error), value, validator.schema)]
    try:
        walk = _Walk(validator)
        for failure in walk.failures(_Spot("", validator.schema, plain, ())):
            failures.append(failure)
            if len(failures) == _MOST:
                break
    except (ValueError, RecursionError):  # the walk found no reason: the whole value is refused
        pass
    if not failures:
        return [Failure((), NO_KEYWORD, None, value, validator.schema)]
    return [_with_original(failure, value) for failure in failures]


def _with_original(failure: Failure, value: Any) -> Failure:
    """The failure with the original value, including its lone surrogates."""
    path = tuple(_original_step(step) for step in failure.path)
    shown = failure.value
    if isinstance(shown, str):
        shown = with_surrogates(shown)
    elif is_object(shown) or is_list(shown):
        with contextlib.suppress(LookupError, TypeError):  # under a key that is not text
            shown = reduce(getitem, cast("Any", path), value)
    return replace(failure, path=path, value=shown)


def _original_step(step: str | int) -> str | int:
    if isinstance(step, str):
        return with_surrogates(step)
    return step


class _OutOfChecksError(ValueError):
    """The walk has used up its checks."""


class _Spot(Struct, frozen=True):
    """A value, and a schema that refuses it."""

    pointer: str
    """The schema's place in the root schema, as a JSON pointer."""
    schema: Any
    value: Any
    path: _Path

    def failure(self, keyword: str, names: tuple[str, ...] = ()) -> Failure:
        """The failure of this value by one keyword."""
        bound: Any = None
        if is_object(self.schema):
            bound = self.schema.get(keyword)
        return Failure(self.path, keyword, bound, self.value, self.schema, names)

    def under(self, keyword: str, step: str | int | None = None) -> str:
        """The pointer of a schema under a keyword."""
        return join_pointer(self.pointer, keyword, step)

    def inside(self, step: str | int, pointer: str, schema: Any) -> _Spot:
        """The spot of a property or an item."""
        return _Spot(pointer, schema, self.value[step], (*self.path, step))

    def again(self, pointer: str, schema: Any) -> _Spot:
        """The spot of the same value for another schema."""
        return _Spot(pointer, schema, self.value, self.path)


class _Walk:
    def __init__(self, validator: Validator) -> None:
        self._validator = validator
        self._seen: set[tuple[str, _Path]] = set()
        self._refused = 0
        self._left = _MOST_CHECKS * min(1.0, _CHEAP / validator.work)

    def _fits(self, pointer: str, value: Any) -> bool:
        self._left -= 1
        if self._left < 0:
            raise _OutOfChecksError
        return self._validator.accepts(pointer, value)

    def failures(self, spot: _Spot) -> Iterator[Failure]:
        """The failures of a value that does not fit."""
        if (spot.pointer, spot.path) in self._seen:
            return
        self._seen.add((spot.pointer, spot.path))
        before = self._refused
        if is_object(spot.schema):
            keywords: tuple[str, ...] = tuple(spot.schema)
            if "$ref" in spot.schema and self._validator.kind in IGNORE_SIBLINGS:
                keywords = ("$ref",)
            for keyword in keywords:
                for failure in self._of_keyword(keyword, spot):
                    self._refused += 1
                    yield failure
        if self._refused == before:
            yield spot.failure(_blamed(spot.schema))

    def _of_keyword(self, keyword: str, spot: _Spot) -> Iterator[Failure]:
        if keyword in _UNIONS:
            yield from self._of_union(keyword, spot)
        elif keyword in _OTHER_SCHEMAS:
            yield from self._through(self._others(keyword, spot))
        elif keyword in _OF_OBJECTS and is_object(spot.value):
            yield from self._of_object(keyword, spot)
        elif keyword in _OF_LISTS and is_list(spot.value):
            yield from self._of_list(keyword, spot)
        elif keyword in _ALONE:
            yield from self._of_keyword_alone(keyword, spot)

    def _through(self, spots: Iterable[_Spot]) -> Iterator[Failure]:
        for spot in spots:
            if not self._fits(spot.pointer, spot.value):
                self._refused += 1  # even if another schema has reported it already
                yield from self.failures(spot)

    def _of_union(self, keyword: str, spot: _Spot) -> Iterator[Failure]:
        if keyword == "not":
            is_refused = self._fits(spot.under(keyword), spot.value)
        else:
            fitting = sum(
                self._fits(spot.under(keyword, i), spot.value)
                for i in range(len(spot.schema[keyword]))
            )
            is_refused = not fitting or (keyword == "oneOf" and fitting > 1)
        if is_refused:
            yield spot.failure(keyword)

    def _others(self, keyword: str, spot: _Spot) -> Iterator[_Spot]:
        """The schemas that a keyword applies to the same value."""
        bound: Any = spot.schema[keyword]
        match keyword:
            case "allOf":
                for i, part in enumerate(bound):
                    yield spot.again(spot.under(keyword, i), part)
            case "if":
                branch = "else"
                if self._fits(spot.under("if"), spot.value):
                    branch = "then"
                if branch in spot.schema:
                    yield spot.again(spot.under(branch), spot.schema[branch])
            case "dependentSchemas" | "dependencies":
                if not is_object(spot.value):
                    return
                for name, part in bound.items():
                    if name in spot.value and not is_list(part):
                        yield spot.again(spot.under(keyword, name), part)
            case _:
                for target, schema in self._validator.references.targets(spot.schema) or ():
                    yield spot.again(target, schema)

    def _of_object(self, keyword: str, spot: _Spot) -> Iterator[Failure]:
        bound: Any = spot.schema[keyword]
        value: dict[str, Any] = spot.value
        match keyword:
            case "required":
                if not is_list(bound):  # a boolean in draft 3
                    return
                missing = tuple(name for name in bound if name not in value)
                if missing:
                    yield spot.failure(keyword, missing)
            case "dependentRequired":
                wanted = [bound[name] for name in bound if name in value]
                missing = tuple(name for name in chain(*wanted) if name not in value)
                if missing:
                    yield spot.failure(keyword, missing)
            case "properties":
                yield from self._through(
                    spot.inside(name, spot.under(keyword, name), part)
                    for name, part in bound.items()
                    if name in value
                )
            case "patternProperties":
                for pattern, part in bound.items():
                    under = spot.under(keyword, pattern)
                    names = self._named(pattern, value)
                    yield from self._through(spot.inside(name, under, part) for name in names)
            case "propertyNames":
                yield from self._through(
                    _Spot(spot.under(keyword), bound, name, spot.path) for name in value
                )
            case _:
                yield from self._of_other_names(spot)

    def _of_other_names(self, spot: _Spot) -> Iterator[Failure]:
        keyword = "additionalProperties"
        known: Any = spot.schema.get("properties", {})
        by_pattern = {
            name
            for pattern in spot.schema.get("patternProperties", ())
            for name in self._named(pattern, spot.value)
        }
        others = tuple(name for name in spot.value if name not in known and name not in by_pattern)
        more: Any = spot.schema[keyword]
        if more is not False:
            yield from self._through(
                spot.inside(name, spot.under(keyword), more) for name in others
            )
        elif others:
            yield spot.failure(keyword, others)

    def _named(self, pattern: str, value: dict[str, Any]) -> list[str]:
        matches = self._validator.compile({"pattern": pattern}).is_valid
        return [name for name in value if matches(name)]

    def _of_list(self, keyword: str, spot: _Spot) -> Iterator[Failure]:
        bound: Any = spot.schema[keyword]
        value: list[Any] = spot.value
        if keyword == "contains":
            fitting = sum(self._fits(spot.under(keyword), item) for item in value)
            least = spot.schema.get("minContains", 1)
            most = spot.schema.get("maxContains", len(value))
            if not least <= fitting <= most:
                yield spot.failure(keyword)
        elif is_list(bound):
            yield from self._through(
                spot.inside(i, spot.under(keyword, i), part)
                for i, part in enumerate(bound[: len(value)])
            )
        else:
            # Before 2020-12, a list under `items` describes the first items, and `additionalItems`
            # means nothing without one.
            first_key = "prefixItems"
            if keyword == "additionalItems":
                first_key = "items"
            first: Any = spot.schema.get(first_key, ())
            if not is_sequence(first):
                return
            yield from self._through(
                spot.inside(i, spot.under(keyword), bound) for i in range(len(first), len(value))
            )

    def _of_keyword_alone(self, keyword: str, spot: _Spot) -> Iterator[Failure]:
        bound: Any = spot.schema[keyword]
        if isinstance(bound, bool) and keyword in _EXCLUSIVE:
            return
        alone = {keyword: bound}
        if keyword in _LIMITS:
            for key in _EXCLUSIVE:
                if isinstance(spot.schema.get(key), bool):
                    alone[key] = spot.schema[key]
        error = next(iter(self._validator.compile(alone).iter_errors(spot.value)), None)
        if error is None:
            return
        if type(error.kind).__name__ in _REGEX_FAILURES:
            reason = f"it takes too long to be matched with the pattern {bound}"
            yield replace(spot.failure(UNCHECKED), bound=reason)
        else:
            yield spot.failure(keyword)


def _blamed(schema: Any) -> str:
    """The keyword to blame if no other refuses; `NO_KEYWORD` if it could be one of several."""
    if not is_object(schema):
        return NO_KEYWORD
    keywords = [key for key in schema if key in _BY_THE_REST]
    if len(keywords) != 1:
        return NO_KEYWORD
    return keywords[0]


_UNIONS = frozenset({"anyOf", "oneOf", "not"})
_OTHER_SCHEMAS = frozenset(
    {"$ref", "$dynamicRef", "$recursiveRef", "allOf", "if", "dependentSchemas", "dependencies"}
)
_OF_OBJECTS = frozenset(
    {
        "required",
        "dependentRequired",
        "properties",
        "patternProperties",
        "additionalProperties",
        "propertyNames",
    }
)
_OF_LISTS = frozenset({"items", "prefixItems", "additionalItems", "contains"})
_ALONE = frozenset(
    {
        "type",
        "enum",
        "const",
        "pattern",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "maxProperties",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
    }
)
"""Keywords that do not depend on others."""
_REGEX_FAILURES = frozenset({"BacktrackLimitExceeded", "RegexEngineFailure"})
"""The validator's names for a pattern that it gave up on, which says nothing about the value."""
_LIMITS = frozenset({"minimum", "maximum"})
_EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")
"""Bounds of numbers. In draft 4, the exclusive ones are booleans that change the others."""
_BY_THE_REST = frozenset(
    {"unevaluatedProperties", "unevaluatedItems", "dependencies", "$dynamicRef", "$recursiveRef"}
)
"""Keywords that depend on other keywords, or on where the check began."""
