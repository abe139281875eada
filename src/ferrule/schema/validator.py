"""Check values against JSON schemas of any draft from 4 on, in bounded time.

Nothing outside the schema is read.

The checks are made by `jsonschema_rs`. It ends the process on values that are nested very deeply,
refuses values that are not plain JSON, and never finishes on some schemas of a few hundred bytes.
So values are made plain first, and such schemas are refused.
"""

from __future__ import annotations

import math
import threading
from typing import Any, cast
from urllib.parse import quote

from ferrule.encoding.encode import jsonable
from ferrule.schema.drafts import DRAFTS, IGNORE_SIBLINGS, draft_of, named_draft, schema_nodes
from ferrule.schema.nodes import Schema, is_list, is_object, members
from ferrule.schema.patterns import (
    escape_bare_brackets,
    is_backtracking,
    is_pattern,
    pattern_options,
    unfolded_size,
    without_surrogates,
)
from ferrule.schema.references import (
    REFERENCES,
    SchemaReferences,
    TooMuchWorkError,
    count_work,
)

_DEEPEST = 100
_DEEPEST_SCHEMA = 150
_LARGEST_SCHEMA = 200_000
_MOST_CHECKS = 50_000_000
"""The limit for a value's size times the schemas that may apply to one place in it.

So many checks take about a second.
"""
_MOST_PARTS, _FEW_PARTS = 10_000, 100
"""The most parts that a pattern may unfold to, and the number up to which no text is too long."""
_MOST_MATCHED = 100_000_000
"""The limit for a value's characters times the parts that its schema's patterns unfold to.

So many take about a second.
"""
_SCALARS = frozenset({int, float, bool, type(None)})
_STEP = "x-ferrule-step"
_MOST_STEPS = 200_000
"""The most references followed in one check, if they must be counted.

So many take about half a second.
"""
_ENCODINGS = ("contentEncoding", "contentMediaType")
"""Keywords treated as notes, although drafts 6 and 7 allow a validator to check them."""


class UncheckableError(ValueError):
    """A value that cannot be checked: it is nested too deeply, or too large for its schema."""


class Validator:
    """Checks values against a schema: `Validator(schema).is_valid(value)`.

    A `lenient` one accepts any schema, and ignores references that lead out of it and patterns that
    are not regular expressions. Raises `ValueError` for a schema that causes too much work and,
    unless `lenient`, for one that is not a JSON schema.
    """

    def __init__(self, schema: Schema | bool, *, lenient: bool = False) -> None:
        self.schema: Any = _own(schema)
        self.kind = DRAFTS[draft_of(self.schema)]
        self.references = SchemaReferences(self.schema)
        self.work = count_work(self.references, is_backtracking)
        self._unfolded = _unfolded(self.schema)
        self._steps: _Steps | None = None
        if self.work == math.inf:
            self._steps, self.work = _Steps(), 1.0
            _count_references(self.schema, has_siblings=self.kind not in IGNORE_SIBLINGS)
            self.references = SchemaReferences(self.schema)
        self._parts: dict[str, Any] = {}
        self._registry: Any = None
        try:
            self._compiled = self.compile(self.schema)
        except ValueError as error:
            if not lenient:
                raise ValueError(getattr(error, "message", str(error))) from None
            self._compiled = self._compile_readable()

    def is_valid(self, value: Any) -> bool:
        """Whether a value fits. A value that cannot be checked does not fit."""
        try:
            return self.accepts("", self.plain(value))
        except ValueError:
            return False

    def accepts(self, pointer: str, plain: Any) -> bool:
        """Whether plain JSON fits the schema at a JSON pointer into this one.

        Raises `ValueError` if it cannot be checked.
        """
        fits: bool = self._part(pointer).is_valid(plain)
        if self._steps is not None and self._steps.left < 0:
            raise UncheckableError(
                "it takes too many checks, as the definitions of its schema refer to each other"
            )
        return fits

    def plain(self, value: Any) -> Any:
        """A value as plain JSON, for the check that follows. Raises `UncheckableError`."""
        if self._steps is not None:
            self._steps.left = _MOST_STEPS
        plain_value, size = plain_json(value)
        if size * self.work > _MOST_CHECKS:
            raise UncheckableError("it is too large to be checked against its schema")
        if (
            self._unfolded > _FEW_PARTS
            and _characters(plain_value) * self._unfolded > _MOST_MATCHED
        ):
            raise UncheckableError("it is too large to be checked against its schema")
        return plain_value

    def _part(self, pointer: str) -> Any:
        """The compiled validator of the schema at a JSON pointer into this one."""
        if not pointer:
            return self._compiled
        if pointer not in self._parts:
            import jsonschema_rs

            # Not the default base, which would be the referring schema.
            base = _base(self.schema)
            if self._registry is None:
                draft = getattr(jsonschema_rs, self.kind.removesuffix("Validator"))
                self._registry = jsonschema_rs.Registry([(base, self.schema)], draft=draft)
            self._parts[pointer] = self.compile(
                {"$ref": f"{base}#{quote(pointer, safe='/~')}"}, registry=self._registry
            )
        return self._parts[pointer]

    def compile(self, schema: Any, registry: Any = None) -> Any:
        """Make a `jsonschema_rs` validator for a schema of this draft. Raises `ValueError`."""
        import jsonschema_rs

        kind = getattr(jsonschema_rs, self.kind)
        keywords: dict[str, Any] = {}
        if self._steps is not None:
            keywords["keywords"] = {_STEP: self._steps.keyword()}
        return kind(
            schema,
            offline=True,
            validate_formats=False,
            pattern_options=pattern_options(),
            registry=registry,
            **keywords,
        )

    def _compile_readable(self) -> Any:
        """Make a validator from the readable parts of the schema."""
        has_unread = False
        for node in schema_nodes(self.schema):
            if self.references.targets(node) is None:
                for key in REFERENCES:
                    node.pop(key, None)
            if not is_pattern(node.get("pattern", "")):
                del node["pattern"]
            patterns = members(node, "patternProperties")
            unreadable = [pattern for pattern in patterns if not is_pattern(pattern)]
            for pattern in unreadable:
                del patterns[pattern]
            if unreadable:  # they may be the names of "additional" properties
                has_unread = True
                node.pop("additionalProperties", None)
        if has_unread:
            for node in schema_nodes(self.schema):
                node.pop("unevaluatedProperties", None)
        try:
            return self.compile(self.schema)
        except ValueError:
            self.schema = True
            return self.compile(True)


class _Steps(threading.local):
    """Counts the references that one check follows.

    Beyond the limit nothing fits, so that the check ends soon.
    """

    left = _MOST_STEPS

    def keyword(self) -> type:
        """The class of a schema keyword that counts one step."""
        steps = self

        class Step:
            def __init__(self, *where: object) -> None:
                del where

            def validate(self, value: object) -> None:
                del value
                steps.left -= 1
                if steps.left < 0:
                    raise ValueError("no steps left")

        return Step


def _count_references(schema: Any, *, has_siblings: bool) -> None:
    """Put the keyword that counts a step before every reference.

    No other part of the schema changes its place, so that pointers into it stay right.
    """
    for node in list(schema_nodes(schema)):
        if has_siblings and not is_list(node.get("allOf", [])):
            continue  # such a schema does not compile
        followed = [{key: node.pop(key)} for key in REFERENCES if key in node]
        if not followed:
            continue
        if not has_siblings:
            for key in node.keys() - {"$defs", "definitions", "$id", "id", "$schema"}:
                del node[key]
        counted = [{"allOf": [{_STEP: True}, reference]} for reference in followed]
        node["allOf"] = [*node.get("allOf", ()), *counted]


def _base(schema: Any) -> str:
    """The URI of a schema, to which pointers into it are added."""
    if is_object(schema):
        name: Any = schema.get("$id", schema.get("id"))
        if isinstance(name, str) and ":" in name:
            return name.partition("#")[0]
    return "json-schema:///root"


def schema_problem(schema: Any) -> str:
    """Why this is not a usable JSON schema; empty if it is.

    It breaks the rules of its draft, or causes too much work.

    References out of it and unreadable patterns are allowed.
    """
    import jsonschema_rs

    try:
        checkable = _own(schema)  # without unknown metaschemas, which the check would fetch
        _check_work(checkable)
    except ValueError as error:
        return str(error)
    try:
        jsonschema_rs.meta.validate(checkable)
    except jsonschema_rs.ValidationError as error:
        return f"{error.message} at {'/'.join(map(str, error.instance_path)) or 'the top'}"
    return ""


def work_problem(schema: Any) -> str:
    """Why checking against this schema would take too long; empty if it would not."""
    try:
        _check_work(_own(schema))
    except ValueError as error:
        return str(error)
    return ""


def _check_work(checkable: Any) -> None:
    """Raise `TooMuchWorkError` if checks against a schema take too long."""
    count_work(SchemaReferences(checkable), is_backtracking)
    _unfolded(checkable)


def _unfolded(schema: Any) -> int:
    """The most parts that a pattern of a schema unfolds to.

    Raises `TooMuchWorkError` if that is too many for any text.
    """
    most = 0
    for node in schema_nodes(schema):
        for pattern in (node.get("pattern"), *members(node, "patternProperties")):
            if isinstance(pattern, str):
                most = max(most, unfolded_size(pattern))
    if most > _MOST_PARTS:
        raise TooMuchWorkError(
            f"a pattern repeats so much that it unfolds to more than {_MOST_PARTS:,} parts"
        )
    return most


def _characters(plain: Any) -> int:
    """The characters of all texts in plain JSON."""
    count, waiting = 0, [plain]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            count += len(value)
        elif is_object(value):
            waiting += value
            waiting += value.values()
        elif is_list(value):
            waiting += value
    return count


def plain_json(value: Any, deepest: int = _DEEPEST, most: int | None = None) -> tuple[Any, int]:
    """A value as plain JSON, and its size. Raises `UncheckableError`."""
    size = 1

    def plain(value: Any, depth: int) -> Any:
        nonlocal size
        kind = cast("Any", type(value))
        if kind is str:
            return without_surrogates(value)
        if kind in _SCALARS:
            return value
        if kind is not dict and kind is not list and kind is not tuple:
            return plain(jsonable(value), depth)
        size += len(value)
        if depth == 0:
            raise UncheckableError("it is nested too deeply")
        if most is not None and size > most:
            raise UncheckableError("it is too large")
        if kind is dict:
            return {
                without_surrogates(str(name)): plain(part, depth - 1)
                for name, part in value.items()
            }
        return [plain(item, depth - 1) for item in value]

    return plain(value, deepest), size


def _own(schema: Any) -> Any:
    """A copy of a schema as plain JSON, to be changed and compiled.

    Without keywords that are only notes, and without unknown metaschemas.
    """
    copy, _ = plain_json(schema, _DEEPEST_SCHEMA, _LARGEST_SCHEMA)
    for node in schema_nodes(copy):
        draft = named_draft(node)
        if draft is not None and draft not in DRAFTS:
            del node["$schema"]
        for key in _ENCODINGS:
            node.pop(key, None)
    if DRAFTS[draft_of(copy)] in IGNORE_SIBLINGS:
        _escape_patterns(copy)
    return copy


def _escape_patterns(schema: Any) -> None:
    for node in schema_nodes(schema):
        if isinstance(node.get("pattern"), str):
            node["pattern"] = escape_bare_brackets(node["pattern"])
        if is_object(node.get("patternProperties")):
            node["patternProperties"] = {
                escape_bare_brackets(pattern): part
                for pattern, part in node["patternProperties"].items()
            }
