"""Lower a schema for one target, in one pass.

The pass walks the original schema from its root and builds a new one. At each schema:

1. `_schema` follows references: a `$ref` becomes a definition of the lowered schema, which is
   lowered on first use.
2. `_flat` merges the parts of an `allOf`, because no target accepts it.
3. `_union` lowers the branches of `anyOf` and `oneOf`; `_node` lowers everything else: it keeps the
   keywords that the target accepts, turns the others into notes for the model, and lowers objects,
   dictionaries, lists and tuples inside.

Whatever the lowered schema does not express is a `SchemaLoss` with a JSON pointer into the
original. The argument `pointer` of every method is that place.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

from ferrule.schema.lowering.merge import (
    admits_null,
    are_exclusive,
    inlined_references,
    may_be_list_or_dictionary,
    merge,
)
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
from ferrule.schema.lowering.unions import admit_null, any_of, null_apart, one_or_list
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
    members,
    unescape_step,
)
from ferrule.schema.references import StepBudget, requires_itself

_UNIONS = ("anyOf", "oneOf")
# A small schema can expand without end.
_LARGEST = 8_000
"""The most schemas that are lowered, with inlined ones."""
_MOST_PARTS = 50_000
"""The most parts that are merged, and the most schemas that are searched for recursion."""
_CONSTRAINING = TYPE_OF.keys() | ELSEWHERE | {*_UNIONS, "type", "enum", "const", "allOf"}
"""Keywords beside a `$ref` that a value must fit too."""


class LoweringPass:
    """One pass and its results. Make `LoweringPass(schema, rules)`, then call `lowered()` once."""

    def __init__(self, root: Schema, rules: Rules) -> None:
        self._root = root
        self._rules = rules
        self.losses: list[SchemaLoss] = []
        self.stand_ins: list[Schema] = []
        """The lowered properties in which null means "left out"."""
        self.pairs: list[Schema] = []
        """The lowered items of lists that replace dictionaries: each is one key with its value."""
        self._definitions: dict[str, Schema] = {}
        self._names: dict[str, str] = {"#": ""}
        """The name of each definition in use, by its reference."""
        self._name_counts = Counter[str]()
        """How many definitions wanted the same name."""
        self._open = {"#"}
        """The references whose definitions are being lowered."""
        self._inlined: set[str] = set()
        """The references whose targets are being inlined."""
        self._left = _LARGEST
        """How many more schemas are lowered."""
        self._null_fits: dict[str, bool] = {}
        """Whether null fits a reference, as far as it was asked."""
        self._requires_itself: dict[str, bool] = {}
        """Whether a reference contains itself outside optional properties, as far as asked."""
        self._merge_budget = StepBudget(_MOST_PARTS)
        self._search_budget = StepBudget(_MOST_PARTS)

    def lowered(self) -> Schema:
        """The lowered schema. Its root is an object, as every provider requires for a tool."""
        lowered = self._node(self._without_union_at_root(), "")
        if self._definitions:
            lowered["$defs"] = self._definitions
        return lowered

    def _lose(self, path: str, keyword: str, lost: str, *, breaking: bool = False) -> None:
        self.losses.append(SchemaLoss(path, keyword, lost, breaking and self._rules.strict))

    # -- references, `allOf`

    def _schema(self, schema: Any, pointer: str) -> Schema:
        """Lower any schema."""
        if schema is False:
            self._lose(
                pointer, "false", "a schema that accepts nothing cannot be expressed", breaking=True
            )
            return {}
        if is_object(schema):
            schema = _without_single_part(schema)
        else:
            schema = {}
        if isinstance(schema.get("$ref"), str):
            return self._reference(schema, pointer)
        inlined = set(inlined_references(schema))
        self._left -= 1
        if inlined & self._inlined or self._left < 0:
            self._lose(
                pointer,
                "$ref",
                "this schema contains itself, or expands too far; its form is not enforced",
                breaking=True,
            )
            return {}
        self._inlined |= inlined
        schema = self._flat(schema, pointer)
        union = next((key for key in _UNIONS if is_list(schema.get(key))), None)
        if union is None:
            lowered = self._node(schema, pointer)
        else:
            lowered = self._union(schema, union, pointer)
        self._inlined -= inlined
        return lowered

    def _flat(self, schema: Schema, pointer: str) -> Schema:
        """Merge `allOf` (which turns `const` into `enum`); add the type that keywords imply."""
        schema, clashes = merge([schema], self._root, self._merge_budget)
        for key in clashes:
            self._lose(
                pointer,
                "allOf",
                f"the values of `{key}` in the parts of `allOf` cannot be merged; "
                f"one of them is kept",
            )
        if "$ref" in schema:
            self._lose(pointer, "$ref", f"`{schema['$ref']}` is not in the schema", breaking=True)
        if not schema.keys() & {"type", "enum", *_UNIONS}:
            kinds = {TYPE_OF[key] for key in schema if key in TYPE_OF}
            if len(kinds) == 1:
                schema = {"type": kinds.pop(), **schema}
        return schema

    def _reference(self, schema: Schema, pointer: str) -> Schema:
        reference: str = schema["$ref"]
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        target = find_pointer(reference, self._root)
        if target is None:
            self._lose(pointer, "$ref", f"`{reference}` is not in the schema", breaking=True)
            return self._node(self._flat(siblings, pointer), pointer)
        if reference in self._open and not self._may_recur(reference):
            self._lose(
                pointer,
                "$ref",
                f"`{reference}` contains itself; its form is enforced the first time only",
                breaking=True,
            )
            bare: Schema = {}
            if is_object(target) and "type" in target:
                bare["type"] = target["type"]
            return self._annotated(bare, schema)
        if _CONSTRAINING & siblings.keys():
            return self._schema({"allOf": [{"$ref": reference}, siblings]}, pointer)
        name = self._defined(reference, target)
        if name:
            lowered_reference = f"#/$defs/{escape_step(name)}"
        else:
            lowered_reference = "#"
        return self._annotated({"$ref": lowered_reference}, schema)

    def _may_recur(self, reference: str) -> bool:
        """Whether the target accepts a definition that contains itself in this way."""
        if self._rules.recursive == "anywhere":
            return True
        if self._rules.recursive is None:
            return False
        if reference not in self._requires_itself:
            self._requires_itself[reference] = requires_itself(
                reference, self._root, self._search_budget
            )
        return not self._requires_itself[reference]

    def _defined(self, reference: str, target: Any) -> str:
        """The name of a definition, which is lowered on first use."""
        if reference in self._names:
            return self._names[reference]
        plain_name = name = unescape_step(reference.rpartition("/")[2])
        while name in self._definitions:
            self._name_counts[plain_name] += 1
            name = f"{plain_name}_{self._name_counts[plain_name] + 1}"
        self._names[reference] = name
        # Reserves its place: definitions are in the order of first use.
        self._definitions[name] = {}
        self._open.add(reference)
        self._definitions[name] = self._schema(target, reference[1:])
        self._open.discard(reference)
        return name

    # -- annotations

    def _annotated(self, lowered: Schema, schema: Schema) -> Schema:
        """The lowered schema with the title, description and other annotations of the original."""
        notes, annotations = self._annotations(schema)
        is_reference = "$ref" in lowered
        if (is_reference and (notes or annotations)) or annotations.keys() & lowered.keys():
            # `$ref` must stand alone, and of two descriptions both are kept.
            lowered = {"anyOf": [lowered]}
        return add_notes({**annotations, **lowered}, *notes)

    def _annotations(self, schema: Schema) -> tuple[list[str], Schema]:
        """Notes on the annotations that the target does not accept, and those that it does."""
        notes: list[str] = []
        annotations: Schema = {}
        for key, value in schema.items():
            if key in DESCRIBED or (key in ANNOTATIONS and key in self._rules.keeps):
                annotations[key] = copy.deepcopy(value)
        for key in ("default", "examples"):
            if key in schema and key not in self._rules.keeps:
                notes.append(describe_keyword(key, schema[key]))
        return notes, annotations

    # -- unions

    def _without_union_at_root(self) -> Schema:
        """The root as one object with the properties of every branch.

        No provider accepts a union there.
        """
        schema = self._flat({"type": "object", **self._root}, "")
        for key in _UNIONS:
            branches = [
                merge([branch], self._root, self._merge_budget)[0]
                for branch in schema.pop(key, None) or ()
                if is_object(branch)
            ]
            if not branches:
                continue
            self._lose(
                "",
                key,
                "which arguments go together is not enforced: a tool takes one object, not a union",
            )
            schema |= _joined_branches(schema, branches)
        # Tools without arguments are often declared as `{"type": "object"}`.
        has_form = schema.get("properties") or schema.get("patternProperties")
        if not has_form and "additionalProperties" not in schema:
            schema["properties"] = {}
        return {**schema, "type": "object"}

    def _union(self, schema: Schema, key: str, pointer: str) -> Schema:
        branches: list[Any] = [branch for branch in schema[key] if branch is not False]
        for other in _UNIONS[_UNIONS.index(key) + 1 :]:
            if other in schema:
                self._lose(pointer, other, f"`{other}` beside `{key}` is not enforced")
        for other in sorted(ELSEWHERE & schema.keys()):
            self._lose(pointer, other, f"not enforced: {describe_keyword(other, schema[other])}")
        if key == "oneOf" and not are_exclusive(branches, self._root, self._merge_budget):
            self._lose(pointer, "oneOf", "that only one of the forms fits is not enforced")
        self._tell_look_alikes(branches, key, pointer)
        lowered = self._branches(schema, branches, key, pointer)
        if not lowered:
            return self._schema(False, pointer)
        return self._annotated(any_of(lowered), schema)

    def _tell_look_alikes(self, forms: list[Any], key: str, pointer: str) -> None:
        """Tell a loss where a list and a dictionary are both possible for a value of these forms.

        Strict modes know no dictionaries: they are written as lists of keys and values.
        """
        if self._rules.strict and may_be_list_or_dictionary(forms, self._root, self._merge_budget):
            self._lose(
                pointer,
                key,
                "an empty list and an empty dictionary look the same: one may be read as the other",
            )

    def _branches(
        self, schema: Schema, branches: list[Any], key: str, pointer: str
    ) -> list[Schema]:
        """The lowered branches of a union, each with the keywords beside the union."""
        shared = {
            name: value
            for name, value in schema.items()
            if name in TYPE_OF or name in {"type", "enum"}
        }
        lowered: list[Schema] = []
        for i, branch in enumerate(branches):
            merged = branch
            if shared:
                both = [branch if is_object(branch) else {}, shared]
                merged, clashes = merge(both, self._root, self._merge_budget)
                for clash in clashes:
                    self._lose(
                        pointer,
                        clash,
                        f"`{clash}` beside `{key}` cannot be merged with that of branch {i}, "
                        f"which is kept",
                    )
            lowered.append(self._schema(merged, f"{pointer}/{key}/{i}"))
        return lowered

    # -- everything else

    def _node(self, schema: Schema, pointer: str) -> Schema:
        """Lower a schema without references, `allOf` and unions."""
        notes, annotations = self._annotations(schema)
        if is_list(schema.get("enum")):
            schema = self._enumerated(schema, pointer, notes)
        kinds = declared_types(schema)
        if not kinds and self._rules.strict:
            self._lose(
                pointer,
                "type",
                "strict mode supports no value of any form: each form must be declared",
                breaking=True,
            )
        # Not at the root, which has to be an object.
        becomes_pairs = bool(pointer) and self._rules.strict and is_dictionary(schema, kinds)
        lowered: Schema = {}
        for key, value in schema.items():
            if key in annotations:
                lowered[key] = annotations[key]
            elif key in {"type", "enum"}:
                lowered[key] = copy.deepcopy(value)
            elif key in STRUCTURE or (key == "propertyNames" and becomes_pairs):
                continue  # lowered below
            elif _constrains(key, kinds):
                is_whole = kinds == ["integer"] and type(value) is int
                self._bound(lowered, key, value, pointer, notes, is_whole=is_whole)
        if becomes_pairs:
            self._dictionary(lowered, schema, pointer, notes)
        elif "object" in kinds:
            self._object(lowered, schema, pointer)
        if "array" in kinds:
            self._array(lowered, schema, pointer, notes)
        lowered = add_notes(lowered, *notes)
        lists_null = "null" in kinds and None in (lowered.get("enum") or ())
        if lists_null and "null" not in self._rules.enums:
            return null_apart(lowered)
        return lowered

    def _bound(
        self,
        lowered: Schema,
        key: str,
        value: Any,
        pointer: str,
        notes: list[str],
        *,
        is_whole: bool,
    ) -> None:
        """Lower a keyword that bounds a value."""
        keeps = self._rules.keeps
        if accepts_keyword(self._rules, key, value):
            lowered[key] = copy.deepcopy(value)
            return
        if key == "unevaluatedProperties" and value is False and self._rules.strict:
            return  # strict mode closes every object
        if key == "exclusiveMinimum" and is_whole and "minimum" in keeps:
            lowered["minimum"] = max(value + 1, lowered.get("minimum", value + 1))
            return
        if key == "exclusiveMaximum" and is_whole and "maximum" in keeps:
            lowered["maximum"] = min(value - 1, lowered.get("maximum", value - 1))
            return
        if key == "minItems" and key in keeps:
            lowered[key] = self._rules.most_min_items
        note = describe_keyword(key, value)
        notes.append(note)
        self._lose(pointer, key, f"not enforced; the description says it: {note}")

    def _enumerated(self, schema: Schema, pointer: str, notes: list[str]) -> Schema:
        """Add the types of an enumeration's values; drop one that the target does not accept."""
        kinds = declared_types(schema)
        values: list[Any] = schema["enum"]
        if kinds:
            values = [value for value in values if fits_type(value, kinds)]
        if not values:
            self._lose(
                pointer,
                "enum",
                "an enumeration that no value fits cannot be expressed",
                breaking=True,
            )
            return {key: value for key, value in schema.items() if key != "enum"}
        kinds = kinds or list(dict.fromkeys(json_type(value) for value in values))
        others = {key: value for key, value in schema.items() if key not in {"type", "enum"}}
        if values == [None]:
            return {"type": "null", **others}
        if kinds == ["boolean"] and set(values) == {True, False}:
            return {"type": "boolean", **others}
        if {json_type(value) for value in values} - self._rules.enums - {"null"}:
            note = describe_keyword("enum", values)
            notes.append(note)
            self._lose(pointer, "enum", f"not enforced; the description says it: {note}")
            return {"type": one_or_list(kinds), **others}
        rest = {key: value for key, value in schema.items() if key != "type"}
        return {"type": one_or_list(kinds), **rest, "enum": values}

    def _object(self, lowered: Schema, schema: Schema, pointer: str) -> None:
        properties: dict[str, Any] = dict(members(schema, "properties"))
        required: dict[str, None] = dict.fromkeys(schema.get("required") or ())
        more: Any = schema.get("additionalProperties")
        for name in required:
            properties.setdefault(name, more if is_object(more) else {})
        if self._rules.strict:
            self._check_names_are_fixed(schema, pointer)
            # A property that accepts nothing means that it must be missing.
            properties = {
                name: part
                for name, part in properties.items()
                if part is not False or name in required
            }
        elif members(schema, "patternProperties"):
            self._lose(
                pointer,
                "patternProperties",
                "not enforced; properties of any name and form are accepted",
            )
            more = None
        lowered_properties: dict[str, Schema] = {}
        pointers = {name: f"{pointer}/properties/{escape_step(name)}" for name in properties}
        for name, part in properties.items():
            lowered_properties[name] = self._schema(part, pointers[name])
        if self._rules.all_required:
            for name, part in lowered_properties.items():
                if name not in required:
                    optional = self._optional(part, properties[name], pointers[name])
                    lowered_properties[name] = optional
            required = dict.fromkeys(lowered_properties)
        if lowered_properties or self._rules.strict:
            lowered["properties"] = lowered_properties
        if required or self._rules.all_required:
            lowered["required"] = list(required)
        if self._rules.strict:
            lowered["additionalProperties"] = False
        elif is_object(more):
            lowered["additionalProperties"] = self._schema(more, f"{pointer}/additionalProperties")
        elif more is not None:
            lowered["additionalProperties"] = more

    def _check_names_are_fixed(self, schema: Schema, pointer: str) -> None:
        """Record a loss if the model may choose names of properties: no strict mode allows it."""
        more: Any = schema.get("additionalProperties")
        patterns = members(schema, "patternProperties")
        if patterns or more is True or is_object(more):
            self._lose(
                pointer,
                "patternProperties" if patterns else "additionalProperties",
                "properties with names that the model chooses are not supported",
                breaking=True,
            )
        elif more is None and "properties" not in schema:
            self._lose(
                pointer,
                "properties",
                "strict mode supports no object of any form: each property must be named",
                breaking=True,
            )

    def _dictionary(self, lowered: Schema, schema: Schema, pointer: str, notes: list[str]) -> None:
        """Lower a dictionary to a list of its keys and values.

        Strict modes require every property to be named.
        """
        name_rules: list[Any] = []
        if schema.get("propertyNames", True) not in (True, None, {}):
            name_rules.append(schema["propertyNames"])
        value, keyword = schema.get("additionalProperties"), "additionalProperties"
        for pattern, part in members(schema, "patternProperties").items():  # at most one
            value, keyword = part, f"patternProperties/{escape_step(pattern)}"
            if pattern:
                name_rules.append({"pattern": pattern})
        key: Schema = {"type": "string"}
        if name_rules:
            key["allOf"] = name_rules
        pair = {
            "key": self._schema(key, f"{pointer}/propertyNames"),
            "value": self._schema(value, f"{pointer}/{keyword}"),
        }
        item: Schema = {
            "type": "object",
            "properties": pair,
            "required": list(pair),
            "additionalProperties": False,
        }
        self.pairs.append(item)
        kinds = ["array" if kind == "object" else kind for kind in declared_types(lowered)]
        lowered |= {"type": one_or_list(kinds), "items": item}
        notes.append("A list of keys and values, each key once.")
        self._lose(
            pointer,
            keyword.partition("/")[0],
            "that keys are unique is not enforced; the description says it",
        )

    def _optional(self, lowered: Schema, schema: Any, pointer: str) -> Schema:
        """Make an optional property required and nullable: null means "left out"."""
        if admits_null(schema, self._root, self._null_fits):
            if not is_object(schema) or "default" not in schema:
                self._lose(
                    pointer,
                    "required",
                    "null and a missing property are the same: the model can only write null",
                )
            return lowered
        nullable = add_notes(admit_null(lowered), "Null: left out.")
        self.stand_ins.append(nullable)
        return nullable

    def _array(self, lowered: Schema, schema: Schema, pointer: str, notes: list[str]) -> None:
        # Before 2020-12, a list under `items` describes the first items.
        for key in ("prefixItems", "items"):
            if schema.get(key) and is_list(schema[key]):
                self._tuple(lowered, schema, key, pointer, notes)
                return
        if schema.get("items") is not None and schema["items"] is not True:
            lowered["items"] = self._schema(schema["items"], f"{pointer}/items")
        elif self._rules.strict:
            self._lose(
                pointer,
                "items",
                "strict mode supports no list of anything: the form of its items must be declared",
                breaking=True,
            )

    def _tuple(
        self, lowered: Schema, schema: Schema, key: str, pointer: str, notes: list[str]
    ) -> None:
        """Lower a list whose first items, under `key`, have forms of their own."""
        prefix: list[Any] = schema[key]
        keeps = self._rules.keeps
        if key == "prefixItems":
            rest_key = "items"
        else:
            rest_key = "additionalItems"
        rest: Any = schema.get(rest_key, True)
        if schema.get("maxItems", len(prefix) + 1) <= len(prefix):
            rest = False
        first = [self._schema(part, f"{pointer}/{key}/{i}") for i, part in enumerate(prefix)]
        after: list[Schema] = []
        if rest is not False:
            after = [self._schema(rest, f"{pointer}/{rest_key}")]
        elif "maxItems" in keeps:
            lowered["maxItems"] = min(len(prefix), schema.get("maxItems", len(prefix)))
        if "prefixItems" in keeps:
            lowered["prefixItems"] = first
            if after and after != [{}]:
                lowered["items"] = after[0]
            return
        self._tell_look_alikes([*prefix, rest], key, pointer)
        lowered["items"] = any_of([*first, *after])
        is_uniform = all(form == first[0] for form in [*first, *after])
        has_end = rest is False and "maxItems" not in keeps
        if not is_uniform or has_end:
            note = describe_keyword(key, [part if is_object(part) else {} for part in prefix])
            notes.append(note)
            self._lose(
                pointer,
                key,
                f"the order of the items is not enforced; the description says it: {note}",
            )


def _constrains(key: str, kinds: list[str]) -> bool:
    """Whether a keyword constrains values of these types; of any type if there are none."""
    if key in TYPE_OF:
        return not kinds or applies_to(key, kinds)
    return key in ELSEWHERE


def _without_single_part(schema: Schema) -> Schema:
    """The schema with the only part of its `allOf` in place of it, which keeps a single `$ref`."""
    parts: Any = schema.get("allOf")
    if not parts or len(parts) != 1 or not is_object(parts[0]):
        return schema
    if schema.keys() & parts[0].keys():
        return schema
    others = {key: value for key, value in schema.items() if key != "allOf"}
    return {**others, **parts[0]}


def _joined_branches(schema: Schema, branches: list[Schema]) -> Schema:
    """The `properties` and `required` of an object and of all branches of its union."""
    properties: dict[str, Any] = {}
    for branch in reversed(branches):  # of two with one name, the first branch's
        properties |= members(branch, "properties")
    wanted = [dict.fromkeys(branch.get("required") or ()) for branch in branches]
    in_all = [name for name in wanted[0] if all(name in names for names in wanted)]
    required = [*(schema.get("required") or ()), *in_all]
    return {
        "properties": {**properties, **members(schema, "properties")},
        "required": list(dict.fromkeys(required)),
    }
