"""Lowering for a grammar. The original admits every value that the lowered schema admits, unless a loss says it is checked later."""

from __future__ import annotations

from typing import Any

from ferrule.schema.lowering.rewrite import Rewritten, any_value
from ferrule.schema.lowering.rules import ELSEWHERE, TYPE_OF, SchemaLoss
from ferrule.schema.lowering.walk import LoweringPass
from ferrule.schema.nodes import (
    Schema,
    declared_types,
    escape_step,
    is_object,
    members,
    resolve_reference,
)

ANY_VALUE = "any value"
"""The name of the definition of any JSON value."""


class GrammarPass(LoweringPass):
    """A pass in which a loss is breaking if the grammar admits more than the schema. An object that names its properties has no others."""

    def lowered(self) -> Schema:
        """The lowered schema. Its root may have any type."""
        made = self._schema(self._root, "")
        if self._definitions:
            made = {**made, "$defs": self._definitions}
        return made

    def _lose(self, path: str, keyword: str, lost: str, *, breaking: bool = False) -> None:
        del breaking
        self.losses.append(SchemaLoss(path, keyword, lost, breaking=True))

    def _schema(self, schema: Any, at: str) -> Schema:
        if schema is False:
            self._lose(at, "false", "no value fits here")
            return {"enum": []}
        return super()._schema(schema, at)

    def _flat(self, schema: Schema, at: str) -> Schema:
        schema = super()._flat(schema, at)
        if "enum" in schema or "anyOf" in schema or "oneOf" in schema:
            return schema
        kinds = declared_types(schema) or list(
            dict.fromkeys(TYPE_OF[key] for key in schema if key in TYPE_OF),
        )
        if len(kinds) > 1:
            return {
                "anyOf": [
                    {**schema, "type": each}
                    for each in kinds
                    if each != "integer" or "number" not in kinds
                ],
            }
        return schema

    def _annotations(self, schema: Schema) -> tuple[list[str], Schema]:
        del schema
        return [], {}  # no model reads a grammar

    def _branches(self, schema: Schema, branches: list[Any], key: str, at: str) -> list[Schema]:
        """The branches that the grammar can express; all branches if it can express none."""
        lowered = super()._branches(schema, branches, key, at)
        places = [f"{at}/{key}/{i}/" for i in range(len(lowered))]
        beyond = {
            place
            for place in places
            if any(loss.breaking and f"{loss.path}/".startswith(place) for loss in self.losses)
        }
        if not beyond or len(beyond) == len(places):
            return lowered
        for i, loss in enumerate(self.losses):
            if loss.breaking and f"{loss.path}/".startswith(tuple(beyond)):
                self.losses[i] = SchemaLoss(
                    loss.path,
                    loss.keyword,
                    f"{loss.lost}: this branch of `{key}` is left out",
                )
        return [each for each, place in zip(lowered, places, strict=True) if place not in beyond]

    def _node(self, schema: Schema, at: str) -> Schema:
        if "propertyNames" in schema:
            schema = {
                **schema,
                "propertyNames": resolve_reference(schema["propertyNames"], self._root),
            }
        rewritten = Rewritten(schema)
        self.losses += [SchemaLoss(at, keyword, how) for keyword, how in rewritten.narrower]
        for keyword, what in rewritten.beyond:
            self._lose(at, keyword, what)
        schema = rewritten.schema
        if not declared_types(schema) and "enum" not in schema:
            for key in sorted(ELSEWHERE & schema.keys()):
                self._lose(at, key, f"`{key}` is not enforced")
            return self._any()
        if (
            schema.get("type") == "array"
            and "enum" not in schema
            and schema.get("items", True) is True
        ):
            schema = {**schema, "items": {}}
        made = super()._node(schema, at)
        return {
            key: value for key, value in made.items() if key != "description"
        }  # notes on losses

    def _any(self) -> Schema:
        reference = f"#/$defs/{ANY_VALUE}"
        if self._definitions.setdefault(ANY_VALUE, any_value(reference)) != any_value(reference):
            self._lose(
                "",
                "$defs",
                f"a definition has the reserved name `{ANY_VALUE}`",
                breaking=True,
            )
        return {"$ref": reference}

    def _object(self, made: Schema, schema: Schema, at: str) -> None:
        patterns: dict[str, Any] = members(schema, "patternProperties")
        more: Any = schema.get("additionalProperties")
        if not patterns:
            more = (
                more
                if is_object(more)
                else {}
                if more is True or (more is None and "properties" not in schema)
                else False
            )
        else:
            pattern, each = next(iter(patterns.items()))
            rewritten = Rewritten({"type": "string", "pattern": pattern})
            if (
                len(patterns) > 1
                or schema.get("properties")
                or schema.get("required")
                or rewritten.beyond
            ):
                self._lose(
                    at,
                    "patternProperties",
                    "the form of the properties with these names is not enforced",
                )
                more = {}
            else:
                place = f"{at}/patternProperties/{escape_step(pattern)}"
                made["patternProperties"] = {rewritten.schema["pattern"]: self._schema(each, place)}
                more = False
        required: Any = schema.get("required") or ()
        named = {
            name: each
            for name, each in members(schema, "properties").items()
            if each is not False or name in required
        }
        own = {key: value for key, value in schema.items() if key != "patternProperties"}
        super()._object(made, {**own, "properties": named, "additionalProperties": more}, at)
