"""The shortest value of every schema within a grammar."""

from __future__ import annotations

import json
from typing import Any

from ferrule.models.local.decoding.scalars import Scalars, compact
from ferrule.schema.nodes import Schema, find_pointer, is_object, members


class Shortest:
    """The shortest texts under one schema of a grammar. Objects have their properties in order, and there is no whitespace."""

    def __init__(self, schema: Schema) -> None:
        self.root = schema
        self.scalars = Scalars()
        self._nodes: dict[int, Schema] = {}
        self._shortest: dict[int, bytes] = {}
        self._properties: dict[int, tuple[list[tuple[bytes, Any, bool]], list[bytes | None]]] = {}
        self._collect(schema)
        changes = True
        while changes:  # definitions may contain each other: each pass settles one more level
            changes = False
            for key, node in self._nodes.items():
                made = self._shortest_of(node)
                if made is not None and (
                    key not in self._shortest or len(made) < len(self._shortest[key])
                ):
                    self._shortest[key] = made
                    changes = True
        self.longest_choice = max(
            (each for node in self._nodes.values() for each in self._choices(node)),
            key=len,
            default=b"",
        )
        """Of all choices, the one whose shortest text is longest: it lengthens an ending most."""

    def _collect(self, schema: Any) -> None:
        waiting: list[Any] = [schema]
        while waiting:
            node = waiting.pop()
            if not is_object(node) or id(node) in self._nodes:
                continue
            self._nodes[id(node)] = node
            for key in ("properties", "patternProperties", "$defs"):
                waiting += members(node, key).values()
            waiting += [
                *(node.get("anyOf") or ()),
                *(node.get("prefixItems") or ()),
                node.get("items"),
                node.get("additionalProperties"),
            ]

    def of(self, node: Any) -> bytes | None:
        """The shortest value of a schema within this one; None if it has none, or none is known yet."""
        return self._shortest.get(id(node))

    def properties(self, node: Schema) -> tuple[list[tuple[bytes, Any, bool]], list[bytes | None]]:
        """The key, schema and `required` of each named property of an object; and for each, the shortest text from there to the end."""
        if id(node) not in self._properties:
            required = node.get("required") or ()
            named = [
                (compact(name) + b":", each, name in required)
                for name, each in members(node, "properties").items()
            ]
            rests: list[bytes | None] = [b"}"]
            for key, each, is_required in reversed(named):
                rest, own = rests[-1], self.of(each)
                if is_required:
                    rest = None if rest is None or own is None else b"," + key + own + rest
                rests.append(rest)
            self._properties[id(node)] = named, rests[::-1]
        return self._properties[id(node)]

    def target(self, node: Schema) -> Schema:
        """The schema that a reference leads to."""
        return find_pointer(node["$ref"], self.root)

    def _choices(self, node: Schema) -> list[bytes]:
        """The shortest text of each choice that a writer has at this node."""
        found = [self.of(each) for each in node.get("anyOf") or ()] + [
            compact(each) for each in node.get("enum") or ()
        ]
        found += [
            b"," + compact(name) + b":" + (self.of(each) or b"")
            for name, each in members(node, "properties").items()
        ]
        return [
            each
            for each in [
                *found,
                self.of(node.get("items")),
                self.of(node.get("additionalProperties")),
            ]
            if each is not None
        ]

    def _shortest_of(self, node: Schema) -> bytes | None:
        if "$ref" in node:
            return self.of(self.target(node))
        if "enum" in node:
            return min(map(compact, node["enum"]), key=len, default=None)
        if "anyOf" in node:
            return min(
                (each for branch in node["anyOf"] if (each := self.of(branch)) is not None),
                key=len,
                default=None,
            )
        match node.get("type"):
            case "object":
                return self._shortest_object(node)
            case "array":
                places = node.get("prefixItems") or ()
                items = [
                    self.of(places[i] if i < len(places) else node.get("items"))
                    for i in range(node.get("minItems", 0))
                ]
                return (
                    b"[" + b",".join(each for each in items if each is not None) + b"]"
                    if None not in items
                    else None
                )
            case "string" if "pattern" not in node:
                return b'"' + b"a" * node.get("minLength", 0) + b'"'
            case "boolean":
                return b"true"
            case "null":
                return b"null"
            case _:
                return self.scalars.ending(node, b"")

    def _shortest_object(self, node: Schema) -> bytes | None:
        named = members(node, "properties")
        fields = [
            (name, self.of(named[name])) for name in named if name in (node.get("required") or ())
        ]
        if not fields and node.get("minProperties", 0):
            each = [
                (name, made)
                for name, value in named.items()
                if (made := self.of(value)) is not None
            ]
            for pattern, value in members(node, "patternProperties").items():
                key, made = (
                    self.scalars.ending({"type": "string", "pattern": pattern}, b""),
                    self.of(value),
                )
                each += [(json.loads(key), made)] if key is not None and made is not None else []
            more = self.of(node.get("additionalProperties"))
            each += [("", more)] if more is not None else []
            fields = sorted(each, key=lambda field: len(field[0]) + len(field[1]))[:1]
            if not fields:
                return None
        if any(made is None for _, made in fields):
            return None
        return (
            b"{"
            + b",".join(compact(name) + b":" + made for name, made in fields if made is not None)
            + b"}"
        )
