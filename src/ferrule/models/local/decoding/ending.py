"""Finds the shortest text that completes an unfinished value, for when the budget of tokens runs out.

The text is read along the schema of the grammar. Where the schema leaves a choice, such as between
tools, all readings that fit are followed.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ferrule.models.local.decoding.scalars import compact, rest_of_character
from ferrule.schema.nodes import Schema, members

if TYPE_CHECKING:
    from ferrule.models.local.decoding.shortest import Shortest

Reading = tuple[frozenset[int], bytes | None]
"""The positions where a value may end; and if the text ends inside the value, the shortest text that completes it."""

_NONE: Reading = (frozenset(), None)
_WHOLE = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NUMBER = re.compile(rb"[-+.0-9eE]+")


def ending(shortest: Shortest, text: bytes, closer: bytes = b"") -> tuple[bytes | None, bool]:
    """The shortest completion of a text, or None if none is known; and whether the text ends where any character may follow.

    The `closer` comes after the value, and the text may already contain its beginning.
    """
    reader = _Reader(shortest, text)
    try:
        done, found = reader.value(shortest.root, 0)
    except RecursionError:
        return None, False
    rests = [closer[len(text) - each :] for each in done if closer.startswith(text[each:])]
    rests += [found + closer] if found is not None else []
    return min(rests, key=len, default=None), reader.in_text and not reader.in_pattern


class _Reader:
    """Reads one text along the schema."""

    def __init__(self, shortest: Shortest, text: bytes) -> None:
        self._shortest = shortest
        self._text = text
        self._known: dict[tuple[int, int], Reading] = {}
        self.in_text = self.in_pattern = False

    def value(self, node: Schema, at: int) -> Reading:
        """Read a value of this schema that begins here."""
        if at == len(self._text):
            return frozenset(), self._shortest.of(node)
        key = (id(node), at)
        if key not in self._known:
            self._known[key] = _NONE  # for a definition that refers only to itself
            self._known[key] = self._read(node, at)
        return self._known[key]

    def _read(self, node: Schema, at: int) -> Reading:
        if "$ref" in node:
            return self.value(self._shortest.target(node), at)
        if "enum" in node:
            return _best([self._literal(compact(each), at) for each in node["enum"]])
        if "anyOf" in node:
            return _best([self.value(each, at) for each in node["anyOf"]])
        match node.get("type"), self._text[at : at + 1]:
            case "object", b"{":
                return self._object(node, at + 1)
            case "array", b"[":
                return self._array(node, at + 1)
            case "string", b'"':
                return self._string(node, at)
            case "boolean", _:
                return _best([self._literal(b"true", at), self._literal(b"false", at)])
            case "null", _:
                return self._literal(b"null", at)
            case (("integer" | "number"), _):
                return self._number(node, at)
            case _:
                return _NONE

    def _literal(self, literal: bytes, at: int) -> Reading:
        found = self._text[at : at + len(literal)]
        if found == literal:
            return frozenset([at + len(literal)]), None
        if not literal.startswith(found):
            return _NONE
        self.in_pattern = self.in_pattern or literal[:1] == b'"'
        return frozenset(), literal[len(found) :]

    def _number(self, node: Schema, at: int) -> Reading:
        found = _NUMBER.match(self._text, at)
        if found is None:
            return _NONE
        ending = self._shortest.scalars.ending(node, found[0])
        if ending == b"":
            return frozenset([found.end()]), None
        return _NONE if ending is None or found.end() < len(self._text) else (frozenset(), ending)

    def _string(self, node: Schema, at: int) -> Reading:
        found = _WHOLE.match(self._text, at)
        whole = found[0] if found else self._text[at:]
        if "pattern" in node:
            self.in_pattern = self.in_pattern or found is None
            ending = self._shortest.scalars.ending(node, whole)
            return (
                _NONE
                if ending is None
                else (frozenset([found.end()]), None)
                if found
                else (frozenset(), ending)
            )
        rest = b"" if found else rest_of_character(whole)
        size = len(
            json.loads(
                (whole if found else whole + rest + b'"').decode(errors="replace"),
                strict=False,
            ),
        )
        least, most = node.get("minLength", 0), node.get("maxLength", size)
        if size > most or (found and size < least):
            return _NONE
        if found:
            return frozenset([found.end()]), None
        self.in_text = True
        return frozenset(), rest + b"a" * (least - size) + b'"'

    def key(self, schema: Schema, at: int) -> Reading:
        """Read the name of an additional property that begins here."""
        return self._string(schema, at) if self._text[at : at + 1] == b'"' else _NONE

    def _array(self, node: Schema, at: int) -> Reading:
        text, shortest = self._text, self._shortest
        places, more = node.get("prefixItems") or (), node.get("items")
        least, most = node.get("minItems", 0), node.get("maxItems")
        done: set[int] = set()
        endings: list[bytes | None] = []

        def item(i: int) -> Any:
            return places[i] if i < len(places) else more

        def tail(i: int) -> bytes | None:
            rest = [shortest.of(item(each)) for each in range(i, least)]
            return (
                b"".join(b"," + each for each in rest if each is not None) + b"]"
                if None not in rest
                else None
            )

        waiting, seen = [(0, at)], {(0, at)}
        while waiting:
            i, here = waiting.pop()
            if i >= least:
                if here == len(text):
                    endings.append(b"]")
                elif text[here : here + 1] == b"]":
                    done.add(here + 1)
            start = here if i == 0 else here + 1
            if here == len(text):
                after, own = tail(i + 1), shortest.of(item(i))
                endings.append(
                    (b"," if i else b"") + own + after
                    if own is not None and after is not None
                    else None,
                )
            elif (
                (i == 0 or text[here : here + 1] == b",")
                and (most is None or i < most)
                and isinstance(item(i), dict)
            ):
                ends, rest = self.value(item(i), start)
                after = tail(i + 1) if rest is not None else None
                endings.append(rest + after if rest is not None and after is not None else None)
                fresh = {(i + 1, each) for each in ends} - seen
                seen |= fresh
                waiting += fresh
        return frozenset(done), min(
            (each for each in endings if each is not None),
            key=len,
            default=None,
        )

    def _object(self, node: Schema, at: int) -> Reading:
        return _ObjectReading(self, self._shortest, node, self._text).read(at)


class _ObjectReading:
    """Reads the properties of one object: optional ones may be missing, and additional ones come last."""

    def __init__(self, reader: _Reader, shortest: Shortest, node: Schema, text: bytes) -> None:
        self._reader, self._shortest, self._text = reader, shortest, text
        self._named, self._rests = shortest.properties(node)
        self._least = node.get("minProperties", 0)
        patterns = members(node, "patternProperties")
        pattern, value = (
            next(iter(patterns.items())) if patterns else (None, node.get("additionalProperties"))
        )
        self._open: Any = value if isinstance(value, dict) else None
        self._key: Schema = (
            {"type": "string"} if pattern is None else {"type": "string", "pattern": pattern}
        )
        self._done: set[int] = set()
        self._endings: list[bytes | None] = []
        self._waiting: list[tuple[int, int, bool]] = []
        self._seen: set[tuple[int, int, bool]] = set()

    def read(self, at: int) -> Reading:
        self._go_on(0, at, is_first=True)
        while self._waiting:
            k, here, is_first = self._waiting.pop()
            rest = self._rests[k]
            if rest == b"}" and (not is_first or not self._least):
                if here == len(self._text):
                    self._endings.append(b"}")
                elif self._text[here : here + 1] == b"}":
                    self._done.add(here + 1)
            for m in range(k, len(self._named)):
                key, value, is_required = self._named[m]
                self._field(key, value, here, m + 1, is_first=is_first)
                if is_required:
                    break
            else:
                if self._open is not None:
                    self._open_field(here, is_first=is_first)
        return frozenset(self._done), min(
            (each for each in self._endings if each is not None),
            key=len,
            default=None,
        )

    def _go_on(self, k: int, at: int, *, is_first: bool = False) -> None:
        if (k, at, is_first) not in self._seen:
            self._seen.add((k, at, is_first))
            self._waiting.append((k, at, is_first))

    def _field(self, key: bytes, value: Any, at: int, k: int, *, is_first: bool) -> None:
        literal = key if is_first else b"," + key
        found, rest = self._text[at : at + len(literal)], self._rests[k]
        if found == literal:
            ends, ending = self._reader.value(value, at + len(literal))
            self._endings.append(ending + rest if ending is not None and rest is not None else None)
            for each in ends:
                self._go_on(k, each)
        elif literal.startswith(found):
            own = self._shortest.of(value)
            self._endings.append(
                literal[len(found) :] + own + rest
                if own is not None and rest is not None
                else None,
            )
            self._reader.in_pattern = True

    def _open_field(self, at: int, *, is_first: bool) -> None:
        if not is_first:
            if self._text[at : at + 1] != b",":
                return
            at += 1
        own = self._shortest.of(self._open)
        if at == len(self._text):
            key = (
                b'""'
                if "pattern" not in self._key
                else self._shortest.scalars.ending(self._key, b"")
            )
            self._endings.append(
                key + b":" + own + b"}" if key is not None and own is not None else None,
            )
            return
        ends, ending = self._reader.key(self._key, at)
        self._endings.append(
            ending + b":" + own + b"}" if ending is not None and own is not None else None,
        )
        for each in ends:
            self._field(b":", self._open, each, len(self._named), is_first=True)


def _best(readings: list[Reading]) -> Reading:
    done = frozenset[int]().union(*(each for each, _ in readings))
    return done, min((each for _, each in readings if each is not None), key=len, default=None)
