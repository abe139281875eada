"""Lower a schema for one target, in one pass."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

from ferrule.schema.lowering.merge import admits_null, are_exclusive, inlined_references, merge
from ferrule.schema.lowering.rules import (
    ANNOTATIONS,
    DESCRIBED,
    ELSEWHERE,
    STRUCTURE,
    TYPE_OF,
    Rules,
    SchemaLoss,
    accepts_keyword,
    add_notes,
    applies_to,
    describe_keyword,
)
from ferrule.schema.lowering.unions import admit_null, any_of, null_apart
from ferrule.schema.nodes import (
    Schema,
    declared_types,
    escape_step,
    find_pointer,
    fits_type,
    is_dictionary,
    is_list,
    is_object,
    json_type,
    may_be_list_or_dictionary,
    members,
    unescape_step,
)
from ferrule.schema.references import requires_itself

_UNIONS = ("anyOf", "oneOf")
_LARGEST, _MOST_PARTS = 8_000, 50_000
"""The most schemas, including inlined ones, and the most merged parts: a small schema can expand without end."""
_ANY = "strict mode supports no value of any form: each form must be declared"


class LoweringPass:
    """One pass and its results. Make `LoweringPass(schema, rules)`, then call `lowered()` once."""

    def __init__(self, root: Schema, rules: Rules) -> None:
        self._root = root
        self._rules = rules
        self.losses: list[SchemaLoss] = []
        self.stand_ins: list[Schema] = []
        """The lowered properties in which null means "left out"."""
        self.pairs: list[Schema] = []
        """The lowered items of lists that stand for dictionaries: each is one key with its value."""
        self._definitions: dict[str, Schema] = {}
        self._names: dict[str, str] = {"#": ""}  # of each definition in use, by its reference
        self._numbers = Counter[str]()  # of definitions whose own names are equal
        self._open = {"#"}
        self._inlined: set[str] = set()  # references whose targets are being inlined
        self._left = _LARGEST
        self._null_fits: dict[str, bool] = {}
        self._requires_itself: dict[str, bool] = {}
        self._steps, self._looks = iter(range(_MOST_PARTS)), iter(range(_MOST_PARTS))

    def lowered(self) -> Schema:
        """The lowered schema. Its root is an object, as every provider requires for a tool."""
        made = self._node(self._without_union_at_root(), "")
        if self._definitions:
            made["$defs"] = self._definitions
        return made

    def _lose(self, path: str, keyword: str, lost: str, *, breaking: bool = False) -> None:
        self.losses.append(SchemaLoss(path, keyword, lost, breaking and self._rules.strict))

    def _schema(self, schema: Any, at: str) -> Schema:
        if schema is False:
            self._lose(
                at,
                "false",
                "a schema that accepts nothing cannot be expressed",
                breaking=True,
            )
            return {}
        schema = schema if is_object(schema) else {}
        if (
            len(schema.get("allOf") or ()) == 1
            and is_object(schema["allOf"][0])
            and not schema.keys() & schema["allOf"][0].keys()
        ):
            schema = {
                **{key: value for key, value in schema.items() if key != "allOf"},
                **schema["allOf"][0],
            }  # keeps a single `$ref`
        if isinstance(schema.get("$ref"), str):
            return self._reference(schema, at)
        inlined = set(inlined_references(schema))
        self._left -= 1
        if inlined & self._inlined or self._left < 0:
            self._lose(
                at,
                "$ref",
                "this schema contains itself, or expands too far; its form is not enforced",
                breaking=True,
            )
            return {}
        self._inlined |= inlined
        schema = self._flat(schema, at)
        union = next((key for key in _UNIONS if is_list(schema.get(key))), None)
        made = self._node(schema, at) if union is None else self._union(schema, union, at)
        self._inlined -= inlined
        return made

    def _flat(self, schema: Schema, at: str) -> Schema:
        """Merge `allOf` (which turns `const` into `enum`), and add the type that the other keywords imply."""
        schema, clashes = merge([schema], self._root, self._steps)
        for key in clashes:
            self._lose(
                at,
                "allOf",
                f"the values of `{key}` in the parts of `allOf` cannot be merged; one of them is kept",
            )
        if "$ref" in schema:
            self._lose(at, "$ref", f"`{schema['$ref']}` is not in the schema", breaking=True)
        if (
            "type" not in schema
            and "enum" not in schema
            and not any(key in schema for key in _UNIONS)
        ):
            kinds = list(dict.fromkeys(TYPE_OF[key] for key in schema if key in TYPE_OF))
            if len(kinds) == 1:
                schema = {"type": kinds[0], **schema}
        return schema

    def _without_union_at_root(self) -> Schema:
        """The root as one object with the properties of every branch, because no provider accepts a union there."""
        schema = self._flat({"type": "object", **self._root}, "")
        for key in _UNIONS:
            branches = [
                merge([each], self._root, self._steps)[0]
                for each in schema.pop(key, None) or ()
                if is_object(each)
            ]
            if not branches:
                continue
            self._lose(
                "",
                key,
                "which arguments go together is not enforced: a tool takes one object, not a union",
            )
            properties = {
                name: found
                for each in reversed(branches)
                for name, found in members(each, "properties").items()
            }
            wanted = [dict.fromkeys(each.get("required") or ()) for each in branches]
            required = [
                *(schema.get("required") or ()),
                *(name for name in wanted[0] if all(name in each for each in wanted)),
            ]
            schema |= {
                "properties": {**properties, **members(schema, "properties")},
                "required": list(dict.fromkeys(required)),
            }
        if (
            not schema.get("properties")
            and not schema.get("patternProperties")
            and "additionalProperties" not in schema
        ):
            schema[
                "properties"
            ] = {}  # tools without arguments are often declared as `{"type": "object"}`
        return {**schema, "type": "object"}

    def _reference(self, schema: Schema, at: str) -> Schema:
        reference: str = schema["$ref"]
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        target = find_pointer(reference, self._root)
        if target is None:
            self._lose(at, "$ref", f"`{reference}` is not in the schema", breaking=True)
            return self._node(self._flat(beside, at), at)
        if reference in self._open and not self._may_recur(reference):
            self._lose(
                at,
                "$ref",
                f"`{reference}` contains itself; its form is enforced the first time only",
                breaking=True,
            )
            return self._annotated(
                {"type": target["type"]} if is_object(target) and "type" in target else {},
                schema,
            )
        if (
            not beside.keys() <= ANNOTATIONS
            and (TYPE_OF.keys() | ELSEWHERE | {*_UNIONS, "type", "enum", "const", "allOf"})
            & beside.keys()
        ):
            return self._schema({"allOf": [{"$ref": reference}, beside]}, at)  # both must fit
        name = self._defined(reference, target)
        return self._annotated({"$ref": f"#/$defs/{escape_step(name)}" if name else "#"}, schema)

    def _may_recur(self, reference: str) -> bool:
        if self._rules.recursive == "in options" and reference not in self._requires_itself:
            self._requires_itself[reference] = requires_itself(reference, self._root, self._looks)
        return self._rules.recursive == "anywhere" or not self._requires_itself.get(reference, True)

    def _defined(self, reference: str, target: Any) -> str:
        """The name of a definition, which is lowered on first use."""
        if reference in self._names:
            return self._names[reference]
        plain = name = unescape_step(reference.rpartition("/")[2])
        while name in self._definitions:
            self._numbers[plain] += 1
            name = f"{plain}_{self._numbers[plain] + 1}"
        self._names[reference] = name
        self._definitions[
            name
        ] = {}  # reserves its place: definitions are in the order of first use
        self._open.add(reference)
        self._definitions[name] = self._schema(target, reference[1:])
        self._open.discard(reference)
        return name

    def _annotated(self, made: Schema, schema: Schema) -> Schema:
        """The lowered schema with the title, description and other annotations of the original."""
        notes, own = self._annotations(schema)
        if ("$ref" in made and (notes or own)) or own.keys() & made.keys():
            made = {
                "anyOf": [made],
            }  # `$ref` must stand alone, and of two descriptions both are kept
        return add_notes({**own, **made}, *notes)

    def _annotations(self, schema: Schema) -> tuple[list[str], Schema]:
        notes = [
            describe_keyword(key, schema[key])
            for key in ("default", "examples")
            if key in schema and key not in self._rules.keeps
        ]
        own = {
            key: schema[key]
            for key in schema
            if key in DESCRIBED or (key in ANNOTATIONS and key in self._rules.keeps)
        }
        return notes, copy.deepcopy(own)

    def _union(self, schema: Schema, key: str, at: str) -> Schema:
        branches: list[Any] = [each for each in schema[key] if each is not False]
        for other in _UNIONS[_UNIONS.index(key) + 1 :]:
            if other in schema:
                self._lose(at, other, f"`{other}` beside `{key}` is not enforced")
        for other in sorted(ELSEWHERE & schema.keys()):
            self._lose(at, other, f"not enforced: {describe_keyword(other, schema[other])}")
        if key == "oneOf" and not are_exclusive(branches, self._root, self._steps):
            self._lose(at, "oneOf", "that only one of the forms fits is not enforced")
        if self._rules.strict and may_be_list_or_dictionary(branches, self._root):
            self._lose(
                at,
                key,
                "an empty list and an empty dictionary look the same: one may be read as the other",
            )
        lowered = self._branches(schema, branches, key, at)
        return self._annotated(any_of(lowered), schema) if lowered else self._schema(False, at)

    def _branches(self, schema: Schema, branches: list[Any], key: str, at: str) -> list[Schema]:
        shared = {
            name: value
            for name, value in schema.items()
            if name in TYPE_OF or name in {"type", "enum"}
        }
        lowered: list[Schema] = []
        for i, each in enumerate(branches):
            branch: Any = each
            if shared:
                branch, clashes = merge(
                    [each if is_object(each) else {}, shared],
                    self._root,
                    self._steps,
                )
                for clash in clashes:
                    self._lose(
                        at,
                        clash,
                        f"`{clash}` beside `{key}` cannot be merged with that of branch {i}, which is kept",
                    )
            lowered.append(self._schema(branch, f"{at}/{key}/{i}"))
        return lowered

    def _node(self, schema: Schema, at: str) -> Schema:
        made: Schema = {}
        notes, own = self._annotations(schema)
        if is_list(schema.get("enum")):
            schema = self._enumerated(schema, at, notes)
        kinds = declared_types(schema)
        if not kinds and self._rules.strict:
            self._lose(at, "type", _ANY, breaking=True)
        pairs = bool(at) and self._rules.strict and is_dictionary(schema, kinds)
        for key, value in schema.items():
            if key in own:
                made[key] = own[key]
            elif key in {"type", "enum"}:
                made[key] = copy.deepcopy(value)
            elif (
                key in STRUCTURE
                or (key == "propertyNames" and pairs)
                or (key in TYPE_OF and kinds and not applies_to(key, kinds))
            ):
                continue
            elif key in TYPE_OF or key in ELSEWHERE:
                self._bound(
                    made,
                    key,
                    value,
                    at,
                    notes,
                    whole=kinds == ["integer"] and type(value) is int,
                )
        if pairs:
            self._dictionary(made, schema, at, notes)
        elif "object" in kinds:
            self._object(made, schema, at)
        if "array" in kinds:
            self._array(made, schema, at, notes)
        made = add_notes(made, *notes)
        if "null" in kinds and None in (made.get("enum") or ()) and "null" not in self._rules.enums:
            return null_apart(made)
        return made

    def _bound(
        self,
        made: Schema,
        key: str,
        value: Any,
        at: str,
        notes: list[str],
        *,
        whole: bool,
    ) -> None:
        if accepts_keyword(self._rules, key, value):
            made[key] = copy.deepcopy(value)
            return
        if key == "unevaluatedProperties" and value is False and self._rules.strict:
            return  # strict mode closes every object
        if key == "exclusiveMinimum" and whole and "minimum" in self._rules.keeps:
            made["minimum"] = max(value + 1, made.get("minimum", value + 1))
        elif key == "exclusiveMaximum" and whole and "maximum" in self._rules.keeps:
            made["maximum"] = min(value - 1, made.get("maximum", value - 1))
        else:
            if key == "minItems" and key in self._rules.keeps:
                made[key] = self._rules.most_min_items
            notes.append(describe_keyword(key, value))
            self._lose(at, key, f"not enforced; the description says it: {notes[-1]}")

    def _enumerated(self, schema: Schema, at: str, notes: list[str]) -> Schema:
        """Add the types of an enumeration's values, and drop an enumeration that the target does not accept."""
        kinds = declared_types(schema)
        values: list[Any] = [each for each in schema["enum"] if not kinds or fits_type(each, kinds)]
        if not values:
            self._lose(
                at,
                "enum",
                "an enumeration that no value fits cannot be expressed",
                breaking=True,
            )
            return {key: value for key, value in schema.items() if key != "enum"}
        kinds = kinds or list(dict.fromkeys(json_type(each) for each in values))
        typed = {
            "type": kinds[0] if len(kinds) == 1 else kinds,
            **{key: value for key, value in schema.items() if key != "type"},
        }
        strange = {json_type(each) for each in values} - self._rules.enums - {"null"}
        open_ = {key: value for key, value in typed.items() if key != "enum"}
        if values == [None]:
            return {**open_, "type": "null"}
        if kinds == ["boolean"] and set(values) == {True, False}:
            return open_
        if strange:
            notes.append(describe_keyword("enum", values))
            self._lose(at, "enum", f"not enforced; the description says it: {notes[-1]}")
            return open_
        return {**typed, "enum": values}

    def _object(self, made: Schema, schema: Schema, at: str) -> None:
        properties: dict[str, Any] = dict(members(schema, "properties"))
        required: dict[str, None] = dict.fromkeys(schema.get("required") or ())
        more: Any = schema.get("additionalProperties")
        patterns: dict[str, Any] = members(schema, "patternProperties")
        properties |= {
            name: more if is_object(more) else {} for name in required if name not in properties
        }
        if self._rules.strict:
            if patterns or more is True or is_object(more):
                key = "patternProperties" if patterns else "additionalProperties"
                self._lose(
                    at,
                    key,
                    "properties with names that the model chooses are not supported",
                    breaking=True,
                )
            elif more is None and "properties" not in schema:
                self._lose(
                    at,
                    "properties",
                    "strict mode supports no object of any form: each property must be named",
                    breaking=True,
                )
            properties = {
                name: each
                for name, each in properties.items()
                if each is not False or name in required
            }
        elif patterns:
            self._lose(
                at,
                "patternProperties",
                "not enforced; properties of any name and form are accepted",
            )
            more = None
        lowered = {
            name: self._schema(each, f"{at}/properties/{escape_step(name)}")
            for name, each in properties.items()
        }
        if self._rules.all_required:
            lowered = {
                name: each
                if name in required
                else self._optional(each, properties[name], f"{at}/properties/{escape_step(name)}")
                for name, each in lowered.items()
            }
            required = dict.fromkeys(lowered)
        if lowered or self._rules.strict:
            made["properties"] = lowered
        if required or self._rules.all_required:
            made["required"] = list(required)
        if self._rules.strict:
            made["additionalProperties"] = False
        elif more is not None:
            made["additionalProperties"] = (
                self._schema(more, f"{at}/additionalProperties") if is_object(more) else more
            )

    def _dictionary(self, made: Schema, schema: Schema, at: str, notes: list[str]) -> None:
        """Lower a dictionary to a list of its keys and values, because strict modes require every property to be named."""
        patterns = [
            (f"patternProperties/{escape_step(key)}", key, each)
            for key, each in members(schema, "patternProperties").items()
        ]
        [(place, pattern, each)] = patterns or [
            ("additionalProperties", None, schema.get("additionalProperties")),
        ]
        names = [
            found
            for found in (schema.get("propertyNames", True), pattern and {"pattern": pattern})
            if found not in (True, None, {})
        ]
        key = {"type": "string", **({"allOf": names} if names else {})}
        pair = {
            "key": self._schema(key, f"{at}/propertyNames"),
            "value": self._schema(each, f"{at}/{place}"),
        }
        self.pairs.append(
            {
                "type": "object",
                "properties": pair,
                "required": list(pair),
                "additionalProperties": False,
            },
        )
        kinds = ["array" if kind == "object" else kind for kind in declared_types(made)]
        made |= {"type": kinds[0] if len(kinds) == 1 else kinds, "items": self.pairs[-1]}
        notes.append("A list of keys and values, each key once.")
        self._lose(
            at,
            place.partition("/")[0],
            "that keys are unique is not enforced; the description says it",
        )

    def _optional(self, made: Schema, schema: Any, at: str) -> Schema:
        """Make an optional property required and nullable: null means "left out"."""
        if admits_null(schema, self._root, self._null_fits):
            if not is_object(schema) or "default" not in schema:
                self._lose(
                    at,
                    "required",
                    "null and a missing property are the same: the model can only write null",
                )
            return made
        nullable = add_notes(admit_null(made), "Null: left out.")
        self.stand_ins.append(nullable)
        return nullable

    def _array(self, made: Schema, schema: Schema, at: str, notes: list[str]) -> None:
        listed = next(
            (key for key in ("prefixItems", "items") if schema.get(key) and is_list(schema[key])),
            None,
        )
        if listed is not None:
            self._tuple(made, schema, listed, at, notes)
        elif schema.get("items") is not None and schema["items"] is not True:
            made["items"] = self._schema(schema["items"], f"{at}/items")
        elif self._rules.strict:
            self._lose(
                at,
                "items",
                "strict mode supports no list of anything: the form of its items must be declared",
                breaking=True,
            )

    def _tuple(self, made: Schema, schema: Schema, listed: str, at: str, notes: list[str]) -> None:
        prefix: list[Any] = schema[listed]
        rest: Any = schema.get("items" if listed == "prefixItems" else "additionalItems", True)
        if schema.get("maxItems", len(prefix) + 1) <= len(prefix):
            rest = False
        lowered = [self._schema(each, f"{at}/{listed}/{i}") for i, each in enumerate(prefix)]
        after = (
            []
            if rest is False
            else [
                self._schema(
                    rest,
                    f"{at}/{'items' if listed == 'prefixItems' else 'additionalItems'}",
                ),
            ]
        )
        if rest is False and "maxItems" in self._rules.keeps:
            made["maxItems"] = min(len(prefix), schema.get("maxItems", len(prefix)))
        if "prefixItems" in self._rules.keeps:
            made["prefixItems"] = lowered
            if after and after != [{}]:
                made["items"] = after[0]
            return
        made["items"] = any_of([*lowered, *after])
        if any(each != lowered[0] for each in [*lowered, *after]) or (
            rest is False and "maxItems" not in self._rules.keeps
        ):
            notes.append(
                describe_keyword(listed, [each if is_object(each) else {} for each in prefix]),
            )
            self._lose(
                at,
                listed,
                f"the order of the items is not enforced; the description says it: {notes[-1]}",
            )
