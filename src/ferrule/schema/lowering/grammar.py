"""Lowering for a grammar.

The original admits every value that the lowered schema admits, unless a loss says that it is
checked later.
"""

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
    """A pass in which a loss is breaking if the grammar admits more than the schema.

    An object that names its properties has no others.
    """

    def lowered(self) -> Schema:
        """The lowered schema. Its root may have any type."""
        lowered = self._schema(self._root, "")
        if self._definitions:
            lowered = {**lowered, "$defs": self._definitions}
        return lowered

    def _lose(self, path: str, keyword: str, lost: str, *, breaking: bool = False) -> None:
        del breaking
        self.losses.append(SchemaLoss(path, keyword, lost, breaking=True))

    def _schema(self, schema: Any, pointer: str) -> Schema:
        if schema is False:
            self._lose(pointer, "false", "no value fits here")
            return {"enum": []}
        return super()._schema(schema, pointer)

    def _flat(self, schema: Schema, pointer: str) -> Schema:
        schema = super()._flat(schema, pointer)
        if schema.keys() & {"enum", "anyOf", "oneOf"}:
            return schema
        kinds = declared_types(schema)
        if not kinds:
            kinds = list(dict.fromkeys(TYPE_OF[key] for key in schema if key in TYPE_OF))
        if len(kinds) < 2:
            return schema
        if "number" in kinds:
            kinds = [kind for kind in kinds if kind != "integer"]
        return {"anyOf": [{**schema, "type": kind} for kind in kinds]}

    def _annotations(self, schema: Schema) -> tuple[list[str], Schema]:
        del schema
        return [], {}  # no model reads a grammar

    def _branches(
        self, schema: Schema, branches: list[Any], key: str, pointer: str
    ) -> list[Schema]:
        """The branches that the grammar can express; all branches if it can express none."""
        lowered = super()._branches(schema, branches, key, pointer)
        pointers = [f"{pointer}/{key}/{i}/" for i in range(len(lowered))]
        breaking = [f"{loss.path}/" for loss in self.losses if loss.breaking]
        beyond = tuple(
            branch for branch in pointers if any(path.startswith(branch) for path in breaking)
        )
        if not beyond or len(beyond) == len(pointers):
            return lowered
        for i, loss in enumerate(self.losses):
            if loss.breaking and f"{loss.path}/".startswith(beyond):
                self.losses[i] = SchemaLoss(
                    loss.path, loss.keyword, f"{loss.lost}: this branch of `{key}` is left out"
                )
        return [
            branch
            for branch, branch_pointer in zip(lowered, pointers, strict=True)
            if branch_pointer not in beyond
        ]

    def _node(self, schema: Schema, pointer: str) -> Schema:
        if "propertyNames" in schema:
            names = resolve_reference(schema["propertyNames"], self._root)
            schema = {**schema, "propertyNames": names}
        rewritten = Rewritten(schema)
        self.losses += [SchemaLoss(pointer, keyword, how) for keyword, how in rewritten.narrower]
        for keyword, what in rewritten.beyond:
            self._lose(pointer, keyword, what)
        schema = rewritten.schema
        if not declared_types(schema) and "enum" not in schema:
            for key in sorted(ELSEWHERE & schema.keys()):
                self._lose(pointer, key, f"`{key}` is not enforced")
            return self._any()
        is_array = schema.get("type") == "array" and "enum" not in schema
        if is_array and schema.get("items", True) is True:
            schema = {**schema, "items": {}}
        lowered = super()._node(schema, pointer)
        lowered.pop("description", None)  # holds only notes on losses
        return lowered

    def _any(self) -> Schema:
        """A reference to the definition of any JSON value."""
        reference = f"#/$defs/{ANY_VALUE}"
        if self._definitions.setdefault(ANY_VALUE, any_value(reference)) != any_value(reference):
            self._lose(
                "", "$defs", f"a definition has the reserved name `{ANY_VALUE}`", breaking=True
            )
        return {"$ref": reference}

    def _object(self, lowered: Schema, schema: Schema, pointer: str) -> None:
        required: Any = schema.get("required") or ()
        plain = {key: value for key, value in schema.items() if key != "patternProperties"}
        plain["properties"] = {
            name: part
            for name, part in members(schema, "properties").items()
            if part is not False or name in required
        }
        if members(schema, "patternProperties"):
            plain["additionalProperties"] = self._named_by_pattern(lowered, schema, pointer)
        else:
            plain["additionalProperties"] = _other_properties(schema)
        super()._object(lowered, plain, pointer)

    def _named_by_pattern(self, lowered: Schema, schema: Schema, pointer: str) -> Any:
        """Lower the only pattern of an object without other rules for names.

        Returns the schema of the other properties: of any form if the pattern cannot be expressed.
        """
        patterns: dict[str, Any] = members(schema, "patternProperties")
        pattern, part = next(iter(patterns.items()))
        rewritten = Rewritten({"type": "string", "pattern": pattern})
        names_properties = schema.get("properties") or schema.get("required")
        if len(patterns) > 1 or names_properties or rewritten.beyond:
            self._lose(
                pointer,
                "patternProperties",
                "the form of the properties with these names is not enforced",
            )
            return {}
        lowered_part = self._schema(part, f"{pointer}/patternProperties/{escape_step(pattern)}")
        lowered["patternProperties"] = {rewritten.schema["pattern"]: lowered_part}
        return False


def _other_properties(schema: Schema) -> Any:
    """The schema of properties without a name; False for an object that names some."""
    more: Any = schema.get("additionalProperties")
    if is_object(more):
        return more
    is_open = more is True or (more is None and "properties" not in schema)
    return {} if is_open else False
