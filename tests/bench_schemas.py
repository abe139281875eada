"""Two hundred schemas of the kinds that JSONSchemaBench has, and what a grammar makes of any
schema.

The kinds: functions as models are asked to call them, objects of Kubernetes, events of Snowplow,
configuration files from GitHub. Each has the keywords, drafts, references and habits that such
schemas have. They are made here by chance from fixed seeds; none is copied.
"""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema

from ferrule.errors import ConstraintError
from ferrule.models.local.constraint import Constraint
from ferrule.schema.lowering.bound import Bounds
from ferrule.testing import byte_vocabulary, random_walk

WORDS = (
    "name", "id", "url", "title", "status", "owner", "region", "port", "size", "created", "tags",
    "labels", "mode", "path", "image", "version", "enabled", "count", "amount", "email", "note",
)  # fmt: skip
_DRAFT_4, _DRAFT_7 = (
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-07/schema#",
)
_Schema = dict[str, Any]


class _Maker:
    """Draws the parts of one schema."""

    def __init__(self, kind: str, number: int) -> None:
        self.chance = random.Random(f"{kind} {number}")
        self.number = number

    def names(self, least: int, most: int) -> list[str]:
        return self.chance.sample(WORDS, self.chance.randint(least, most))

    def often(self, share: float) -> bool:
        return self.chance.random() < share

    def one(self, *of: Any) -> Any:
        return self.chance.choice(of)

    def required(self, names: list[str]) -> list[str]:
        return [each for each in names if self.often(0.5)]


def glaive(number: int) -> _Schema:
    """The parameters of a function."""
    made = _Maker("glaive", number)

    def value(depth: int) -> _Schema:
        kind = made.one(
            "string",
            "string",
            "integer",
            "number",
            "boolean",
            "enum",
            "array",
            "object" if depth else "string",
        )
        if kind == "enum":
            return {"type": "string", "enum": made.names(2, 5), "description": "One of them."}
        if kind == "array":
            return {"type": "array", "items": value(0), "description": "Some."}
        if kind == "object":
            names = made.names(1, 4)
            return {
                "type": "object",
                "properties": {each: value(depth - 1) for each in names},
                "required": made.required(names),
            }
        return {
            "type": kind,
            "description": f"The {kind}.",
            **({"format": "date"} if kind == "string" and made.often(0.2) else {}),
        }

    names = made.names(0, 6)
    return {
        "type": "object",
        "properties": {each: value(2) for each in names},
        "required": made.required(names),
    }


def kubernetes(number: int) -> _Schema:
    """An object of an API, with definitions that refer to one another."""
    made = _Maker("kubernetes", number)
    extension = made.one(
        {"x-kubernetes-patch-strategy": "merge"},
        {"x-kubernetes-list-type": "atomic"},
        {},
    )

    def leaf() -> _Schema:
        return made.one(
            {"type": "string", "description": "Text."},
            {"type": ["string", "null"]},
            {
                "type": "integer",
                "format": made.one("int32", "int64"),
                **({"minimum": 0} if made.often(0.3) else {}),
            },
            {"type": "boolean"},
            {"oneOf": [{"type": "string"}, {"type": "integer"}], "format": "int-or-string"},
            {"type": "object", "additionalProperties": {"type": "string"}},
            {"type": ["array", "null"], "items": {"type": ["string", "null"]}, **extension},
            {"type": "string", "format": made.one("date-time", "byte", "double")},
            {"$ref": "#/definitions/Quantity"},
            {
                "type": "array",
                "items": {"$ref": f"#/definitions/{made.one('Selector', 'Port', 'Node')}"},
            },
        )

    meta, spec = made.names(3, 8), made.names(3, 10)
    definitions: _Schema = {
        "Quantity": made.one({"type": "string"}, {"oneOf": [{"type": "string"}, {"type": "number"}]}),
        "Selector": {"properties": {"key": {"type": "string"}, "values": {"type": "array", "items": {"type": "string"}}}, "required": ["key"]},
        "Port": {"type": "object", "properties": {"port": {"type": "integer", "minimum": 1, "maximum": 65535}, "protocol": {"enum": ["TCP", "UDP"]}}},
        "Node": {"type": "object", "properties": {"value": leaf(), "children": {"type": "array", "items": {"$ref": "#/definitions/Node"}}}},
        "Meta": {"type": "object", "properties": {each: leaf() for each in meta}, "required": made.required(meta)},
        "Spec": {"type": ["object", "null"], "properties": {each: leaf() for each in spec}, "required": made.required(spec)},
    }  # fmt: skip
    properties = {
        "apiVersion": {"type": ["string", "null"], "enum": ["v1", "apps/v1"]},
        "kind": {"type": "string", "enum": [made.one("Pod", "Service", "Job")]},
        "metadata": {"$ref": "#/definitions/Meta", "description": "Standard metadata."},
        "spec": {"$ref": "#/definitions/Spec"},
    }
    if made.often(0.2):
        properties["raw"] = {"x-kubernetes-preserve-unknown-fields": True}
    return {
        "$schema": _DRAFT_7,
        "type": "object",
        "properties": properties,
        "required": ["kind", "metadata"],
        "definitions": definitions,
    }


def snowplow(number: int) -> _Schema:
    """An event that describes itself."""
    made = _Maker("snowplow", number)

    def value() -> _Schema:
        return made.one(
            {"type": "string", "maxLength": made.one(64, 255, 4096)},
            {"type": ["string", "null"], "minLength": 1, "maxLength": made.one(32, 255)},
            {"type": "integer", "minimum": 0, "maximum": made.one(255, 32767, 2147483647)},
            {"type": ["integer", "null"], "minimum": -1, "maximum": 99},
            {"type": "number", "minimum": 0, "exclusiveMinimum": made.one(True, False)},
            {"type": ["boolean", "null"]},
            {"type": "string", "enum": made.names(2, 6)},
            {"type": ["string", "null"], "enum": [*made.names(1, 3), None]},
            {
                "type": "string",
                "format": made.one("date-time", "uuid", "uri", "email", "ipv4", "hostname"),
                "maxLength": 255,
            },
            {
                "type": "string",
                "pattern": made.one(
                    "^[A-Z]{2}$",
                    r"^\d{4}-\d{2}$",
                    "^(?:[0-9a-f]{2}:){5}[0-9a-f]{2}$",
                ),
                "maxLength": 36,
            },
            {
                "type": "array",
                "items": {"type": "string", "maxLength": 50},
                "minItems": 1,
                "maxItems": made.one(3, 10),
            },
            {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"id": {"type": "integer"}},
                    "additionalProperties": False,
                },
            },
        )

    names = made.names(2, 9)
    made_of: _Schema = {each: value() for each in names}
    described = {
        "vendor": "com.acme",
        "name": f"event_{number}",
        "format": "jsonschema",
        "version": "1-0-0",
    }
    needs = {"dependencies": {names[0]: [names[1]]}} if made.often(0.1) else {}
    return {"$schema": _DRAFT_4, "self": described, "type": "object", "properties": made_of, "required": made.required(names), "additionalProperties": False, **needs}  # fmt: skip


def github(number: int) -> _Schema:
    """A configuration file, by an author who uses all of JSON Schema."""
    made = _Maker("github", number)

    def value(depth: int) -> Any:
        inner = depth - 1
        simple = (
            {"type": "string"}, {"type": "string", "pattern": made.one("^v[0-9]+", "[a-z]$", r"^[\w.-]+/[\w.-]+$", "^(?!x)")}, {"const": made.one(1, "a", None)}, True, {},
            {"type": "string", "minLength": 1, "maxLength": 20}, {"type": "integer", "exclusiveMinimum": 0}, {"type": "number", "multipleOf": made.one(0.5, 1)},
            {"enum": [1, "two", None, True]}, {"$ref": f"#/definitions/{made.one('step', 'text', 'step/properties/name')}"}, {"type": ["string", "array"], "items": {"type": "string"}},
        )  # fmt: skip
        if not depth or made.often(0.5):
            return made.one(*simple)
        return made.one(
            {"type": "array", "items": value(inner), "minItems": made.one(0, 1, 2)},
            {"type": "array", "items": {"enum": made.names(2, 3)}, "uniqueItems": True},
            {
                "type": "array",
                "items": {"type": "string"},
                "uniqueItems": True,
                "minItems": made.one(0, 2),
            },
            {
                "type": "array",
                "items": [value(0), value(0)],
                "additionalItems": made.one(False, {"type": "null"}),
            },
            {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
            {
                "oneOf": [{"required": ["name"]}, {"required": ["id"]}],
                "properties": {"name": value(inner), "id": value(0)},
            },
            {"anyOf": [value(inner), {"type": "null"}], "default": None},
            {
                "allOf": [
                    {"$ref": "#/definitions/step"},
                    {"properties": {"extra": value(0)}, "required": ["extra"]},
                ],
            },
            {
                "type": "object",
                "patternProperties": {made.one("^x-", "^[a-z]+$", ".*"): value(0)},
                "additionalProperties": False,
            },
            {
                "type": "object",
                "additionalProperties": value(inner),
                "maxProperties": made.one(1, 5),
                "minProperties": made.one(0, 1),
            },
            {
                "type": "object",
                "propertyNames": {"pattern": "^[a-z]+$"},
                "additionalProperties": value(0),
            },
            {
                "if": {"properties": {"mode": {"const": "a"}}},
                "then": {"required": ["path"]},
                "type": "object",
            },
            {"type": "object", "properties": {"not_one": {"not": {"const": 1}}}},
            {"type": "array", "contains": {"const": "a"}},
        )

    names = made.names(1, 5)
    step = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "next": {"$ref": "#/definitions/step"}},
        "required": ["name"],
    }
    return {
        "$schema": _DRAFT_7,
        "definitions": {"step": step, "text": {"type": "string", "maxLength": 30}},
        "type": "object",
        "properties": {each: value(2) for each in names},
        "required": made.required(names),
        **made.one(
            {"additionalProperties": False},
            {"additionalProperties": True},
            {"patternProperties": {"^x-": {}}},
            {},
        ),
    }


BOUNDS = Bounds(depth=2, chars=40, items=3)
SCHEMAS: dict[str, _Schema] = {
    f"{kind.__name__} {i}": kind(i)
    for kind in (glaive, kubernetes, snowplow, github)
    for i in range(50)
}


def judged(schema: _Schema, walks: int = 6) -> tuple[str, list[str]]:
    """What a grammar makes of a schema (`exact`, `rewritten`, `partial` or `refused`), and what
    speaks against that.

    Random answers are checked with jsonschema. Of a schema that is `partial`, one that does not fit
    must break a keyword that is named.
    """
    faults: list[str] = []
    try:
        constraint = Constraint.of_schema(byte_vocabulary(), schema)
    except ConstraintError as refusal:
        try:
            constraint = Constraint.of_schema(byte_vocabulary(), schema, partial=True)
        except ConstraintError as error:
            return "refused", [] if str(error).startswith("The engine has no grammar") else [
                str(error),
            ]
        named = {loss.keyword for loss in constraint.losses[""] if loss.breaking}
        faults += [
            f"`{each}` is not in the refusal" for each in named if f"`{each}`" not in str(refusal)
        ]
    named = {loss.keyword for loss in constraint.losses.get("", ()) if loss.breaking}
    level = constraint.level[""]
    if not walks:
        return level, faults
    check = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    # Bounded, because a random walk through a recursive schema may never end.
    bounded = Constraint.of_schema(byte_vocabulary(), schema, partial=True, bounds=BOUNDS)
    for seed in range(walks):
        text = random_walk(bounded, random.Random(seed)).text
        for error in check.iter_errors(json.loads(text)):
            if level != "partial" or not _keywords(error) & named:
                faults.append(f"{text}: {error.message}")
    return level, faults


def _keywords(error: jsonschema.ValidationError) -> set[str]:
    """The keywords on the way to an error, and in the branches of a union that did not fit."""
    inner = [_keywords(each) for each in error.context or ()]
    return {str(each) for each in error.absolute_schema_path}.union(*inner)
