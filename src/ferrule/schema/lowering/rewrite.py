"""Replace keywords that a grammar cannot express with ones that it can. The old schema admits every value that the new one admits.

The Python type behind a format accepts less than the format allows: Python has no 29 February 2023
and no year 0.
"""

from __future__ import annotations

import re
from itertools import combinations
from math import floor, log10
from typing import TYPE_CHECKING, Any, ClassVar

from ferrule.schema.nodes import Schema, declared_types, is_list, is_object, members

if TYPE_CHECKING:
    from collections.abc import Callable

_DATE = r"(?:[1-9][0-9]{3})-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_ZONE = r"(?:Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9])"
_LABEL = r"[a-z0-9](?:[a-z0-9]{0,30}|[a-z0-9]{1,15}-[a-z0-9]{1,15})"
_HOST = rf"(?:{_LABEL}\.){{1,3}}[a-z]{{2,12}}"
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-%s[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_V4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_V6 = r"(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"
_PATH = r"(?:/[A-Za-z0-9._~-]{1,60}){0,8}/?"

FORMATS = {
    "date": _DATE,
    "time": f"{_TIME}{_ZONE}",
    "date-time": f"{_DATE}T{_TIME}{_ZONE}",
    "duration": r"P(?:[0-9]{1,5}D|(?:[0-9]{1,5}D)?T(?:[0-9]{1,5}H|(?:[0-9]{1,5}H)?(?:[0-9]{1,5}M|(?:[0-9]{1,5}M)?[0-9]{1,5}S)))",
    "email": rf"[A-Za-z0-9]{{1,30}}(?:[._+-][A-Za-z0-9]{{1,10}}){{0,3}}@{_HOST}",
    "hostname": _HOST,
    **{name: _UUID % (version or "[1-5]") for name, version in {"uuid": "", **{f"uuid{i}": str(i) for i in range(1, 9)}}.items()},
    "ipv4": _V4,
    "ipv6": _V6,
    "ipvanyaddress": _V4,
    "ipv4network": rf"{_V4}/32",
    "ipv6network": rf"{_V6}/128",
    "ipvanynetwork": rf"{_V4}/32",
    "ipv4interface": rf"{_V4}/(?:[12]?[0-9]|3[0-2])",
    "ipv6interface": rf"{_V6}/(?:[1-9]?[0-9]|1[01][0-9]|12[0-8])",
    "ipvanyinterface": rf"{_V4}/(?:[12]?[0-9]|3[0-2])",
    "uri": rf"https?://{_HOST}(?::[1-9][0-9]{{0,3}})?{_PATH}(?:\?[A-Za-z0-9=&_.-]{{0,200}})?",
    "multi-host-uri": rf"https?://{_HOST}{_PATH}",
    "base64url": "(?:[A-Za-z0-9_-]{4})*",
    "byte": "(?:[A-Za-z0-9+/]{4})*",
}  # fmt: skip
"""Patterns of whole texts. Each is narrower than the format, and than the texts that pydantic accepts."""
_OF_A_PLACE = {
    "file-path": "an existing file",
    "directory-path": "an existing directory",
    "new-path": "a path that does not exist",
}
_LARGEST_INTEGER, _LARGEST_NUMBER = 10**18 - 1, 1e18
"""The bounds if a schema sets none: the engine's automata of numbers end there, and Python reads some numbers in JSON as infinite."""
_MOST_SUBSETS = 6
_LOOK = re.compile(r"\(\?(?:[=!]|<[=!])")
_ESCAPED_OR_SET = re.compile(r"\\.|\[|\]|\.", re.DOTALL)
_SPACE = r"\t\n\v\f\r "


class Rewritten:
    """A schema in the form that a grammar accepts. `narrower` and `beyond` list `(keyword, what happened)`."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.narrower: list[tuple[str, str]] = []
        self.beyond: list[tuple[str, str]] = []
        kinds = declared_types(schema)
        for keyword, rewrite in self._rewrites.items():
            if keyword in self.schema and (not kinds or _KIND[keyword] in kinds):
                rewrite(self, self.schema[keyword])
        for kind, largest in (("integer", _LARGEST_INTEGER), ("number", _LARGEST_NUMBER)):
            if kind in kinds and "enum" not in schema:
                self._within(largest, is_whole=kind == "integer")

    def _set(self, **keywords: Any) -> None:
        self.schema = {**self.schema, **keywords}

    def _drop(self, *keywords: str) -> None:
        self.schema = {key: value for key, value in self.schema.items() if key not in keywords}

    def _within(self, largest: float, *, is_whole: bool) -> None:
        """Set both bounds of a number, once each, in the range where the engine's automata are right."""
        limits: dict[str, float] = {}
        for name, sign in (("inimum", 1), ("aximum", -1)):
            plain, strict = f"m{name}", f"exclusiveM{name}"
            found = {key: self.schema[key] for key in (plain, strict) if key in self.schema}
            if isinstance(found.get(strict), bool):  # draft 4
                found = {strict if found[strict] else plain: found[plain]} if plain in found else {}
            key, value = max(
                found.items(),
                key=lambda each: (sign * each[1], each[0] == strict),
                default=(plain, -sign * largest),
            )
            if sign * value > largest:
                self.beyond.append((key, f"numbers beyond {largest:g} are not enforced"))
            limits[key] = value if abs(value) <= largest else -sign * largest
        self._drop("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
        self._set(**(limits if is_whole else self._apart(limits)))

    def _apart(self, limits: dict[str, float]) -> dict[str, float]:
        """Move an excluded whole-number bound that is less than 1 from the other bound: llguidance 1.9 would admit that number."""
        low, high = limits.values()
        made: dict[str, float] = {}
        for key, value in limits.items():
            if key.startswith("exclusive") and value == int(value) and 0 < high - low < 1:
                step = 10.0 ** (floor(log10(high - low)) - 3)
                near = round(value + step if value == low else value - step, 15)
                self.narrower.append((key, f"numbers between {value} and {near} are left out"))
                made["minimum" if value == low else "maximum"] = near
            else:
                made[key] = value
        return made

    def _format(self, value: Any) -> None:
        self._drop("format")
        if value in _OF_A_PLACE:
            self.beyond.append(("format", f"that it is {_OF_A_PLACE[value]} is not enforced"))
        elif value in FORMATS:
            if "pattern" in self.schema:
                self.beyond.append(("format", f"`{value}` beside `pattern` is not enforced"))
                return
            self._set(pattern=f"^{FORMATS[value]}$")
            self.narrower.append(("format", f"`{value}` in its usual form only"))

    def _content(self, value: Any) -> None:
        self._drop("contentEncoding")
        if value in {"base64", "base64url"} and "pattern" not in self.schema:
            self._set(pattern=f"^{FORMATS['byte' if value == 'base64' else 'base64url']}$")
            self.narrower.append(("contentEncoding", f"`{value}` without padding"))
        else:
            self.beyond.append(("contentEncoding", f"`{value}` is not enforced"))

    def _media(self, value: Any) -> None:
        self._drop("contentMediaType", "contentSchema")
        self.beyond.append(("contentMediaType", f"that the text is `{value}` is not enforced"))

    def _pattern(self, value: Any) -> None:
        if not isinstance(value, str) or _LOOK.search(value) or re.search(r"\\[1-9bBk]", value):
            self._drop("pattern")
            self.beyond.append(
                (
                    "pattern",
                    f"the pattern {value} has lookaround, a word boundary or a backreference, and is not enforced",
                ),
            )
            return
        self._set(pattern=_engine_pattern(value))

    def _unique(self, value: Any) -> None:
        self._drop("uniqueItems")
        if value is not True or self.schema.get("maxItems", 2) < 2:
            return
        items: Any = self.schema.get("items")
        listed = items.get("enum") if is_object(items) else None
        least = int(self.schema.get("minItems") or 0)
        if (
            is_list(listed)
            and least <= len(listed) <= _MOST_SUBSETS
            and "prefixItems" not in self.schema
        ):
            most = min(len(listed), int(self.schema.get("maxItems", len(listed))))
            self._drop("items", "minItems", "maxItems")
            self._set(
                enum=[
                    list(each) for n in range(least, most + 1) for each in combinations(listed, n)
                ],
                type="array",
            )
            self.narrower.append(("uniqueItems", "the items come in the order of the enumeration"))
        elif least <= 1:
            self._set(maxItems=1)
            self.narrower.append(("uniqueItems", "at most one item: a grammar cannot compare two"))
        else:
            self.beyond.append(("uniqueItems", "that items are unique is not enforced"))

    def _names(self, value: Any) -> None:
        self._drop("propertyNames")
        listed = (
            value.get("enum", [value["const"]] if "const" in value else None)
            if is_object(value)
            else None
        )
        more: Any = self.schema.get("additionalProperties", True)
        if is_list(listed) and "patternProperties" not in self.schema:
            named = members(self.schema, "properties")
            self._set(
                properties={
                    name: named.get(name, more)
                    for name in listed
                    if isinstance(name, str) and (name in named or more is not False)
                },
                additionalProperties=False,
            )
            self.narrower.append(
                ("propertyNames", "the properties come in the order of the enumeration"),
            )
        elif (
            is_object(value)
            and isinstance(value.get("pattern"), str)
            and not self.schema.get("properties")
        ):
            self._set(patternProperties={value["pattern"]: more}, additionalProperties=False)
        elif value not in (True, {}, {"type": "string"}):
            self.beyond.append(("propertyNames", "the names of properties are not enforced"))

    def _least_properties(self, value: Any) -> None:
        named, required = members(self.schema, "properties"), set(self.schema.get("required") or ())
        if value <= len(required):
            self._drop("minProperties")
        elif named and not required and value == 1:
            return
        elif named or value > 1:
            self._drop("minProperties")
            self.beyond.append(
                ("minProperties", f"that there are at least {value} properties is not enforced"),
            )

    def _most_properties(self, value: Any) -> None:
        named = members(self.schema, "properties")
        closed = named and self.schema.get("additionalProperties") in (None, False)
        if closed and len(named) <= value:
            self._drop("maxProperties")
        elif named:
            self._drop("maxProperties")
            self.beyond.append(
                ("maxProperties", f"that there are at most {value} properties is not enforced"),
            )

    _rewrites: ClassVar[dict[str, Callable[[Rewritten, Any], None]]] = {
        "format": _format,
        "contentEncoding": _content,
        "contentMediaType": _media,
        "pattern": _pattern,
        "uniqueItems": _unique,
        "propertyNames": _names,
        "minProperties": _least_properties,
        "maxProperties": _most_properties,
    }


_KIND = {
    **dict.fromkeys(["format", "contentEncoding", "contentMediaType", "pattern"], "string"),
    "uniqueItems": "array",
    **dict.fromkeys(["propertyNames", "minProperties", "maxProperties"], "object"),
}


def _engine_pattern(pattern: str) -> str:
    r"""Translate a pattern of ECMA 262 to the engine's dialect, where `.` also matches a carriage return, and `\s` matches more."""
    made: list[str] = []
    inside = False
    at = 0
    for found in _ESCAPED_OR_SET.finditer(pattern):
        made.append(pattern[at : found.start()])
        at = found.end()
        made.append(_in_engine(found[0], inside=inside))
        inside = True if found[0] == "[" else False if found[0] == "]" else inside
    return "".join([*made, pattern[at:]])


def _in_engine(piece: str, *, inside: bool) -> str:
    match piece:
        case "." if not inside:
            return r"[^\n\r\u2028\u2029]"
        case r"\s":
            return _SPACE if inside else f"[{_SPACE}]"
        case r"\S" if not inside:
            return r"[^\s\u{feff}]"
        case r"\/":
            return "/"
        case _:
            return piece


def any_value(reference: str) -> Schema:
    """The schema of any JSON value, stored under this reference."""
    return {
        "anyOf": [
            {"type": "null"},
            {"type": "boolean"},
            {"type": "number", "minimum": -_LARGEST_NUMBER, "maximum": _LARGEST_NUMBER},
            {"type": "string"},
            {"type": "array", "items": {"$ref": reference}},
            {"type": "object", "additionalProperties": {"$ref": reference}},
        ],
    }
