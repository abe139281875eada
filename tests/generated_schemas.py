"""Schemas by chance with the keywords of real tools, and values for them.

The values are ours, or those of hypothesis-jsonschema, which fit more often: texts for patterns and
formats, and combined keywords. Its newest release (0.23.1) calls `many.more()`, which hypothesis
has replaced by an iterator; `_Many` has both.
"""

from __future__ import annotations

import inspect
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from hypothesis import assume, reject
from hypothesis import strategies as st
from hypothesis.internal.conjecture.utils import many
from hypothesis_jsonschema import _from_schema, from_schema
from hypothesis_jsonschema._canonicalise import HypothesisRefResolutionError
from pydantic import BaseModel, Field, create_model
from referencing.exceptions import Unresolvable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NAMES = st.sampled_from(
    [
        "a",
        "b",
        "name",
        "type",
        "items",
        "a b",
        "a-b",
        "ä",
        "",
        "x1",
        "x2",
        "$id0",
        "self",
        "args",
        "properties",
    ],
)
TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            "a",
            "ab",
            "7",
            "1.5",
            "true",
            "null",
            "none",
            "[1]",
            '{"a": 1}',
            "abc",
            "2026-11-22",
            "ä",
            "😀",
            "x" * 12,
        ],
    ),
    st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), max_size=6),
)
SCALARS = st.one_of(
    TEXTS,
    st.integers(-12, 12),
    st.sampled_from([0.5, -1.5, 2.0, 10**12, 1e300]),
    st.booleans(),
    st.none(),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)
PATTERNS = {
    "^[a-z]+$": "abc",
    "^x": "x1",
    "[0-9]{2}": "a42",
    "^(a|b)?$": "a",
    "^[0-9]{4}-[0-9]{2}$": "2026-11",
}
"""Patterns that mean the same in ECMA 262 and Python, where `\\d` also has the digits of other
scripts; and a text for each.
"""
_NOTES = st.fixed_dictionaries(
    {},
    optional={
        "description": st.just("Some words."),
        "title": st.just("A"),
        "examples": st.just([1]),
        "x-order": st.just(3),
    },
)


def _numbers(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    bounds = {
        "minimum": st.integers(-5, 3),
        "maximum": st.integers(3, 9),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
    }
    exclusive = {"exclusiveMinimum": st.integers(-5, 2), "exclusiveMaximum": st.integers(4, 9)}
    return st.fixed_dictionaries({"type": st.just(kind)}, optional={**bounds, **exclusive})


_LEAVES = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={
            "minLength": st.integers(0, 3),
            "maxLength": st.integers(3, 6),
            "format": st.sampled_from(["date", "email", "uri", "uuid"]),
        },
    ),
    st.sampled_from(sorted(PATTERNS)).map(lambda pattern: {"type": "string", "pattern": pattern}),
    _numbers("integer"),
    _numbers("number"),
    st.sampled_from(
        [
            {"type": "boolean"},
            {"type": "null"},
            {},
            True,
            {"type": ["string", "null"]},
            {"type": ["integer", "boolean"]},
        ],
    ),
    st.lists(SCALARS, min_size=1, max_size=4, unique_by=repr).map(lambda values: {"enum": values}),
    st.lists(st.sampled_from(["a", "b", "7", "A"]), min_size=1, max_size=3, unique=True).map(
        lambda values: {"type": "string", "enum": values},
    ),
    SCALARS.map(lambda value: {"const": value}),
    st.sampled_from([{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/tree"}]),
)


def _lists(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    optional = {
        "items": inner,
        "minItems": st.integers(0, 2),
        "maxItems": st.integers(2, 4),
        "uniqueItems": st.booleans(),
    }
    return st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            **optional,
            "contains": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
        },
    )


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.lists(NAMES, max_size=2, unique=True)
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, max_size=3)},
        optional={
            "required": names,
            "additionalProperties": st.one_of(st.booleans(), inner),
            "patternProperties": st.dictionaries(
                st.sampled_from(["^x", "[0-9]"]),
                inner,
                min_size=1,
                max_size=1,
            ),
            "minProperties": st.integers(0, 1),
            "maxProperties": st.integers(2, 4),
            "propertyNames": st.just({"maxLength": 5}),
            "dependentRequired": st.dictionaries(NAMES, names, max_size=1),
        },
    )


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    some = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        some.map(lambda each: {"anyOf": each}),
        some.map(lambda each: {"oneOf": each}),
        some.map(lambda each: {"allOf": each}),
        inner.map(lambda each: {"anyOf": [each, {"type": "null"}]}),
        inner.map(lambda each: {"not": each}),
        st.fixed_dictionaries({"if": inner, "then": inner}, optional={"else": inner}),
    )


NODES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(_lists(inner), _objects(inner), _combined(inner)),
    max_leaves=6,
)
_DEFS = {
    "leaf": {"type": "integer", "minimum": 0},
    "tree": {"type": "object", "properties": {"a": {"$ref": "#/$defs/tree"}}, "required": []},
}


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """The schema of a tool's arguments: an object, with definitions."""
    root = {**draw(_objects(NODES)), **draw(_NOTES), "$defs": _DEFS}
    for key in draw(st.sampled_from([(), (), (), ("anyOf",), ("allOf",), ("if", "then")])):
        root[key] = [draw(_objects(NODES))] if key in {"anyOf", "allOf"} else draw(_objects(NODES))
    if draw(st.integers(0, 5)) == 0:
        root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return root


class Values:
    """Makes values that fit a schema more often than not."""

    def __init__(self, draw: st.DrawFn, definitions: Mapping[str, Any]) -> None:
        self._draw = draw
        self._definitions = definitions

    def of(self, node: Any, depth: int = 4) -> Any:
        if not isinstance(node, dict) or not depth or self._draw(st.integers(0, 11)) == 0:
            return self._draw(JSON)
        some = [
            *node.get("anyOf", []),
            *node.get("oneOf", []),
            *node.get("allOf", []),
            *([node["then"]] if "then" in node else []),
        ]
        if "const" in node:
            return node["const"]
        if "enum" in node:
            return self._draw(st.sampled_from(node["enum"]))
        if "$ref" in node:
            return self.of(self._definitions[node["$ref"].rpartition("/")[2]], depth - 1)
        if some and "type" not in node:
            return self.of(self._draw(st.sampled_from(some)), depth)
        kind = node.get("type")
        return self._of_type(
            self._draw(st.sampled_from(kind)) if isinstance(kind, list) else kind,
            node,
            depth,
        )

    def _of_type(self, kind: str | None, node: dict[str, Any], depth: int) -> Any:
        match kind:
            case "string" if "pattern" in node:
                return PATTERNS[node["pattern"]]
            case "string":
                return self._draw(TEXTS)[: node.get("maxLength", 99)].ljust(
                    node.get("minLength", 0),
                    "z",
                )
            case "integer" | "number":
                return self._draw(st.one_of(st.integers(-4, 8), st.sampled_from([3, 4.0, 0.5])))
            case "boolean":
                return self._draw(st.booleans())
            case "null":
                return None
            case "array":
                return self._list(node, depth)
            case "object":
                return self._object(node, depth)
            case _:
                return self._draw(JSON)

    def _list(self, node: dict[str, Any], depth: int) -> list[Any]:
        placed, others = node.get("prefixItems", []), node.get("items", node.get("contains", True))
        size = self._draw(st.integers(node.get("minItems", 0), 3))
        return [
            self.of(placed[at] if at < len(placed) else others, depth - 1) for at in range(size)
        ]

    def _object(self, node: dict[str, Any], depth: int) -> dict[str, Any]:
        required = node.get("required", [])
        made = {
            name: self.of(each, depth - 1)
            for name, each in node.get("properties", {}).items()
            if name in required or self._draw(st.booleans())
        }
        made |= {name: self._draw(SCALARS) for name in required if name not in made}
        if self._draw(st.integers(0, 4)) == 0:
            made[self._draw(NAMES)] = self._draw(JSON)
        return made


@st.composite
def schemas_with_arguments(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A schema, and arguments that fit it or nearly do."""
    schema = draw(schemas())
    made = [Values(draw, _DEFS).of(schema) for _ in range(4)]
    return schema, [each for each in made if isinstance(each, dict)]


class _Many(many):
    """Also with `more()`, for hypothesis-jsonschema."""

    _steps: Any = None

    def more(self) -> bool:
        if self._steps is None:
            self._steps = iter(self.__enter__())
        return next(self._steps, self) is None


_from_schema.cu = SimpleNamespace(many=_Many)


@st.composite
def schemas_with_fitting_arguments(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A schema, and arguments by hypothesis-jsonschema: two that fit, but for keywords that it does
    not know, and two that nearly do.
    """
    schema = draw(schemas())
    values = from_schema(schema)
    assume(not values.is_empty)
    try:
        fitting = draw(values), draw(values)
    # A definition refers to itself, or stands in a keyword unknown to the library; or one of the
    # library's own assertions fails.
    except (HypothesisRefResolutionError, Unresolvable, AssertionError):
        reject()
    # It takes `int(1e300)` for the constant 1e300, and so does `jsonschema`. As JSON, 1e300 is
    # another number: a 1 and 300 zeros.
    assume(str(int(1e300)) not in json.dumps(fitting))
    name = draw(st.sampled_from([*fitting[0], "a"]))
    return schema, [
        *fitting,
        {**fitting[0], name: draw(JSON)},
        {key: each for key, each in fitting[1].items() if key != name},
    ]


def model_of(types: list[Any]) -> type[BaseModel]:
    """A model with fields of these types, of which every second has a default."""
    fields = {
        f"f{at}": (each, None) if at % 2 and each is not Any else (each, ...)
        for at, each in enumerate(types)
    }
    return create_model("Made", **fields)


_PLAIN = st.sampled_from(
    [int, float, str, bool, Literal["a", "b"], Literal[1, 2], Annotated[int, Field(ge=0, le=5)], Annotated[float, Field(gt=0)], Any,
     Annotated[str, Field(min_length=1, max_length=3)], Annotated[str, Field(pattern="^[a-z]+$")], int | None, str | int, None],
)  # fmt: skip
TYPES: st.SearchStrategy[Any] = st.recursive(
    _PLAIN,
    lambda inner: st.one_of(
        inner.map(lambda each: list[each]),
        inner.map(lambda each: Annotated[list[each], Field(max_length=2)]),
        inner.map(lambda each: dict[str, each]),
        inner.map(lambda each: each | None if each is not None and each is not Any else each),
        st.lists(inner, min_size=1, max_size=3).map(model_of),
    ),
    max_leaves=4,
)


@st.composite
def functions_with_arguments(draw: st.DrawFn) -> tuple[Callable[..., str], list[dict[str, Any]]]:
    """A function with annotated parameters, and arguments that fit them or nearly do."""
    types = draw(st.lists(TYPES, min_size=1, max_size=3))

    def act(**given: Any) -> str:
        return str(given)

    kind = inspect.Parameter.KEYWORD_ONLY
    act.__signature__ = inspect.Signature(
        [inspect.Parameter(f"p{at}", kind, annotation=each) for at, each in enumerate(types)],
        return_annotation=str,
    )
    schema = create_model(
        "Arguments",
        **{f"p{at}": (each, ...) for at, each in enumerate(types)},
    ).model_json_schema()
    made = [
        Values(draw, schema.get("$defs", {})).of({"type": "object", **schema}) for _ in range(4)
    ]
    return act, [each for each in made if isinstance(each, dict)]
