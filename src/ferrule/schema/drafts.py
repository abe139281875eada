"""The drafts of JSON Schema: which one a schema is written in, and a schema as part of another.

Many schemas do not name their draft: servers and programs leave `$schema` out. A few keywords have
another form in older drafts, and there it tells: `items` with a list (2019-09 and before), `$id`
with the name of an anchor (draft 7 and before), a boolean `exclusiveMinimum` (draft 4). Read in the
latest draft, such a schema would refuse every value.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ferrule.schema.nodes import Schema, is_list, is_object
from ferrule.schema.references import SchemaReferences, join_pointer, parts

if TYPE_CHECKING:
    from collections.abc import Iterator

DRAFT_4 = "http://json-schema.org/draft-04/schema"
DRAFT_7 = "http://json-schema.org/draft-07/schema"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
LATEST_DRAFT = "https://json-schema.org/draft/2020-12/schema"
DRAFTS = {
    DRAFT_4: "Draft4Validator",
    "http://json-schema.org/draft-06/schema": "Draft6Validator",
    DRAFT_7: "Draft7Validator",
    DRAFT_2019: "Draft201909Validator",
    LATEST_DRAFT: "Draft202012Validator",
}
IGNORE_SIBLINGS = frozenset({"Draft4Validator", "Draft6Validator", "Draft7Validator"})
"""Drafts that ignore the keywords beside `$ref`."""
EXCLUSIVE = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
"""Bounds that are booleans in draft 4, where they change the other one."""
_BESIDE_REFERENCE = frozenset({"$ref", "$defs", "definitions"})
_NAMES = ("$schema", "$id", "id", "$anchor", "$recursiveAnchor")
_IN_POINTERS = "/~$"
"""Characters of JSON pointers that may stand in a URI."""
_DYNAMIC = ("$dynamicRef", "$recursiveRef")


def named_draft(schema: Any) -> str | None:
    """The draft that a schema names in `$schema`; None if it names none."""
    named: Any = schema.get("$schema") if is_object(schema) else None
    if isinstance(named, str):
        return named.removesuffix("#")
    return None


def draft_of(schema: Any) -> str:
    """The draft of a schema: the one that it names, or the latest that has its forms."""
    named = named_draft(schema)
    if named in DRAFTS:
        return named
    latest = {_latest_draft(node) for node in schema_nodes(schema)}
    for draft in DRAFTS:  # the oldest first
        if draft in latest:
            return draft
    return LATEST_DRAFT


def _latest_draft(node: Schema) -> str:
    """The latest draft in which the keywords of one node have their form."""
    if any(isinstance(node.get(keyword), bool) for keyword in EXCLUSIVE):
        return DRAFT_4
    name: Any = node.get("$id")
    if isinstance(name, str) and name.startswith("#") and name != "#":  # now an `$anchor`
        return DRAFT_7
    if is_list(node.get("items")) or isinstance(node.get("$recursiveAnchor"), bool):
        return DRAFT_2019
    return LATEST_DRAFT


def problem_of_draft(node: Schema, draft: str) -> str:
    """Why a node is not of its schema's draft, as the end of a sentence; empty if it is."""
    if "prefixItems" in node and draft != LATEST_DRAFT:
        return f"has `prefixItems`, which {draft} does not have: use `items` with a list"
    if is_list(node.get("items")) and draft == LATEST_DRAFT:
        return "has a list for `items`, which is called `prefixItems` since 2020-12"
    for keyword in EXCLUSIVE:
        if isinstance(node.get(keyword), bool) and draft != DRAFT_4:
            return f"has {node[keyword]} for `{keyword}`, which must be a number"
    return ""


def schema_nodes(schema: Any) -> Iterator[Schema]:
    """All objects among a schema and the schemas inside it."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if is_object(node):
            yield node
            waiting += [part for _, _, part in parts(node)]


def as_part(schema: Schema, pointer: str) -> Schema:
    """A schema as the part at `pointer` of a schema of the latest draft.

    A schema is the root of its references. As a part, it is not the root any more: its references
    get the pointers that their targets have there. Keywords get their latest form.
    """
    part = copy.deepcopy(schema)
    draft = draft_of(part)
    references = SchemaReferences(part)
    if _is_dynamic(part):
        # As a resource of its own, it stays the root of its references.
        return {"$id": f"urn:ferrule:{quote(pointer)}", **part}
    referring: list[tuple[Schema, Any]] = []
    for node in list(schema_nodes(part)):
        for keyword in _DYNAMIC:
            if keyword in node and "$ref" not in node:
                node["$ref"] = node.pop(keyword)
        targets = references.targets(node) if "$ref" in node else None
        if targets:
            referring.append((node, targets[0][1]))
    for node in list(schema_nodes(part)):
        _write_latest(node, ignores_siblings=DRAFTS[draft] in IGNORE_SIBLINGS)
    places = {id(node): place for place, node in _places(part, pointer)}
    for node, target in referring:
        if isinstance(target, bool):  # it has no identity
            del node["$ref"]
            node["allOf"] = [*node.get("allOf", ()), target]
        elif id(target) in places:
            node["$ref"] = f"#{quote(places[id(target)], safe=_IN_POINTERS)}"
    return part


def _is_dynamic(schema: Schema) -> bool:
    """Whether what a reference refers to may depend on the path to it."""
    refers = any(keyword in node for node in schema_nodes(schema) for keyword in _DYNAMIC)
    has_anchors = any("$dynamicAnchor" in node for node in schema_nodes(schema))
    has_resources = any("$id" in node for node in schema_nodes(schema) if node is not schema)
    return refers and (has_anchors or has_resources)


def _write_latest(node: Schema, *, ignores_siblings: bool) -> None:
    """Give the keywords of one node the forms of the latest draft."""
    for name in _NAMES:
        if not is_object(node.get(name)):
            node.pop(name, None)
    if ignores_siblings and "$ref" in node:
        for keyword in node.keys() - _BESIDE_REFERENCE:
            del node[keyword]
    if is_list(node.get("items")):
        node["prefixItems"] = node.pop("items")
        if "additionalItems" in node:
            node["items"] = node.pop("additionalItems")
    for exclusive, inclusive in EXCLUSIVE.items():
        if node.get(exclusive) is False:
            del node[exclusive]
        elif node.get(exclusive) is True:
            del node[exclusive]
            if inclusive in node:
                node[exclusive] = node.pop(inclusive)
    dependencies: Any = node.pop("dependencies", {})
    if is_object(dependencies):
        for name, needed in dependencies.items():
            keyword = "dependentRequired" if is_list(needed) else "dependentSchemas"
            node[keyword] = {**node.get(keyword, {}), name: needed}


def _places(schema: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    """A schema and the schemas inside it, with their pointers."""
    waiting: list[tuple[str, Any]] = [(pointer, schema)]
    while waiting:
        place, node = waiting.pop()
        yield place, node
        if is_object(node):
            waiting += [(join_pointer(place, key, step), part) for key, step, part in parts(node)]
