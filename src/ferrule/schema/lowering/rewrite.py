"""Replace keywords that a grammar cannot express with ones that it can.

A model under a grammar cannot write anything else, so the new schema should be the narrower one:
what it admits, the old one admits, and so does the Python type behind a format. (Python has no
29 February 2023 and no year 0, which some formats have.) A narrower rule costs little: the model
writes `2026-01-31`, not another spelling of the date. Where no narrower rule exists, such as one
that compares two items, the rule is dropped, and the answer must be checked.
"""

from __future__ import annotations

import re
from itertools import combinations
from math import floor, log10
from typing import TYPE_CHECKING, Any, ClassVar

from ferrule.schema.nodes import Schema, declared_types, is_list, is_object, members

if TYPE_CHECKING:
    from collections.abc import Callable

_MONTH_AND_DAY = (
    r"(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8])"
)
_DATE = rf"(?:[1-9][0-9]{{3}})-(?:{_MONTH_AND_DAY})"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_ZONE = r"(?:Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9])"
_LABEL = r"[a-z0-9](?:[a-z0-9]{0,30}|[a-z0-9]{1,15}-[a-z0-9]{1,15})"
_HOST = rf"(?:{_LABEL}\.){{1,3}}[a-z]{{2,12}}"
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-%s[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_V4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_V6 = r"(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"
_PATH = r"(?:/[A-Za-z0-9._~-]{1,60}){0,8}/?"

_MINUTES = r"(?:[0-9]{1,5}M|(?:[0-9]{1,5}M)?[0-9]{1,5}S)"
_HOURS = rf"(?:[0-9]{{1,5}}H|(?:[0-9]{{1,5}}H)?{_MINUTES})"

_FILES = {
    "file-path": "an existing file",
    "directory-path": "an existing directory",
    "new-path": "a path that does not exist",
}
"""Formats of pydantic that depend on the disk, and what they require."""
FORMATS = {
    "date": _DATE,
    "time": f"{_TIME}{_ZONE}",
    "date-time": f"{_DATE}T{_TIME}{_ZONE}",
    "duration": rf"P(?:[0-9]{{1,5}}D|(?:[0-9]{{1,5}}D)?T{_HOURS})",
    "email": rf"[A-Za-z0-9]{{1,30}}(?:[._+-][A-Za-z0-9]{{1,10}}){{0,3}}@{_HOST}",
    "hostname": _HOST,
    "uuid": _UUID % "[1-5]",
    **{f"uuid{version}": _UUID % version for version in range(1, 9)},
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
}
"""Patterns of whole texts, each narrower than the format, and than what pydantic accepts."""
_LARGEST_INTEGER, _LARGEST_NUMBER = 10**18 - 1, 1e18
"""The bounds if a schema sets none.

The engine's automata of numbers end there, and Python reads some numbers in JSON as infinite.
"""
_MOST_CHOICES = 6
"""The most choices of which all subsets are listed: 64."""
_LOOK_AROUND = re.compile(r"\(\?(?:[=!]|<[=!])")
_BEYOND_AUTOMATA = re.compile(r"\\[1-9bBk]")
"""Backreferences and word boundaries."""
_ESCAPE_SET_OR_DOT = re.compile(r"\\.|\[|\]|\.", re.DOTALL)
_SPACE = r"\t\n\v\f\r "
"""The blanks of `\\s`, as members of a set."""


class Rewritten:
    """A schema in the form that a grammar accepts."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.narrower: list[tuple[str, str]] = []
        """For each rule that is now narrower: its keyword, and how."""
        self.beyond: list[tuple[str, str]] = []
        """For each rule that is no longer enforced: its keyword, and what is not."""
        kinds = declared_types(schema)
        for keyword, rewrite in self._rewrites.items():
            if keyword in self.schema and (not kinds or _KIND[keyword] in kinds):
                rewrite(self, self.schema[keyword])
        if "enum" in schema:
            return
        if "integer" in kinds:
            self._set(**self._limits(_LARGEST_INTEGER))
        if "number" in kinds:
            self._set(**self._widen_gap(self._limits(_LARGEST_NUMBER)))

    def _set(self, **keywords: Any) -> None:
        self.schema = {**self.schema, **keywords}

    def _drop(self, *keywords: str) -> None:
        self.schema = {key: value for key, value in self.schema.items() if key not in keywords}

    def _limits(self, largest: float) -> dict[str, float]:
        """Take both bounds of a number out of the schema, and return one keyword for each.

        Both are in the range where the engine's automata are right.
        """
        low = self._limit("minimum", "exclusiveMinimum", -largest)
        high = self._limit("maximum", "exclusiveMaximum", largest)
        self._drop("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
        return dict([low, high])

    def _limit(self, plain: str, exclusive: str, furthest: float) -> tuple[str, float]:
        """The keyword and the value of the tighter of two bounds; `furthest` without any.

        `furthest` is the lowest number for a lower bound, and the highest for an upper one.
        """
        bounds = {key: self.schema[key] for key in (plain, exclusive) if key in self.schema}
        if isinstance(bounds.get(exclusive), bool):  # draft 4: it says what the other one means
            is_exclusive = bounds.pop(exclusive)
            if is_exclusive and plain in bounds:
                bounds = {exclusive: bounds[plain]}
        if not bounds:
            return plain, furthest
        is_lower_bound = furthest < 0
        if is_lower_bound:
            value = max(bounds.values())
            admits_no_number = value > -furthest
        else:
            value = min(bounds.values())
            admits_no_number = value < -furthest
        key = plain
        if bounds.get(exclusive) == value:
            key = exclusive
        if abs(value) <= abs(furthest):
            return key, value
        if admits_no_number:  # of those that the engine can write
            self.beyond.append((key, f"numbers beyond {abs(furthest):g} are not enforced"))
        return key, furthest

    def _widen_gap(self, limits: dict[str, float]) -> dict[str, float]:
        """Move an excluded whole-number bound that is less than 1 from the other bound.

        llguidance 1.9 would admit that number.
        """
        low, high = limits.values()
        moved: dict[str, float] = {}
        for key, value in limits.items():
            is_whole_and_excluded = key.startswith("exclusive") and value == int(value)
            if not is_whole_and_excluded or not 0 < high - low < 1:
                moved[key] = value
                continue
            step = 10.0 ** (floor(log10(high - low)) - 3)  # a thousandth of the gap, or less
            if value == low:
                new_key, near = "minimum", round(value + step, 15)
            else:
                new_key, near = "maximum", round(value - step, 15)
            self.narrower.append((key, f"numbers between {value} and {near} are left out"))
            moved[new_key] = near
        return moved

    def _format(self, value: Any) -> None:
        self._drop("format")
        if value in _FILES:
            self.beyond.append(("format", f"that it is {_FILES[value]} is not enforced"))
        elif value in FORMATS:
            if "pattern" in self.schema:
                self.beyond.append(("format", f"`{value}` beside `pattern` is not enforced"))
                return
            self._set(pattern=f"^{FORMATS[value]}$")
            self.narrower.append(("format", f"`{value}` in its usual form only"))

    def _content(self, value: Any) -> None:
        self._drop("contentEncoding")
        if value not in _BY_ENCODING or "pattern" in self.schema:
            self.beyond.append(("contentEncoding", f"`{value}` is not enforced"))
            return
        self._set(pattern=f"^{FORMATS[_BY_ENCODING[value]]}$")
        self.narrower.append(("contentEncoding", f"`{value}` without padding"))

    def _media(self, value: Any) -> None:
        self._drop("contentMediaType", "contentSchema")
        self.beyond.append(("contentMediaType", f"that the text is `{value}` is not enforced"))

    def _pattern(self, value: Any) -> None:
        is_text = isinstance(value, str)
        if is_text and not _LOOK_AROUND.search(value) and not _BEYOND_AUTOMATA.search(value):
            self._set(pattern=_engine_pattern(value))
            return
        self._drop("pattern")
        unreadable = "lookaround, a word boundary or a backreference"
        reason = f"the pattern {value} has {unreadable}, and is not enforced"
        self.beyond.append(("pattern", reason))

    def _unique(self, value: Any) -> None:
        self._drop("uniqueItems")
        if value is not True or self.schema.get("maxItems", 2) < 2:
            return
        items: Any = self.schema.get("items")
        choices: list[Any] | None = None
        if is_object(items) and is_list(items.get("enum")) and "prefixItems" not in self.schema:
            choices = items["enum"]
        least = int(self.schema.get("minItems") or 0)
        if choices is not None and least <= len(choices) <= _MOST_CHOICES:
            # All lists without a repetition, in one order: a grammar cannot compare two items.
            most = min(len(choices), int(self.schema.get("maxItems", len(choices))))
            self._drop("items", "minItems", "maxItems")
            self._set(enum=_subsets(choices, least, most), type="array")
            self.narrower.append(("uniqueItems", "the items come in the order of the enumeration"))
        elif least <= 1:
            self._set(maxItems=1)
            self.narrower.append(("uniqueItems", "at most one item: a grammar cannot compare two"))
        else:
            self.beyond.append(("uniqueItems", "that items are unique is not enforced"))

    def _names(self, value: Any) -> None:
        self._drop("propertyNames")
        names = _listed(value)
        more: Any = self.schema.get("additionalProperties", True)
        if names is not None and "patternProperties" not in self.schema:
            self._name_properties(names, more)
            return
        pattern = None
        if is_object(value):
            pattern = value.get("pattern")
        if isinstance(pattern, str) and not self.schema.get("properties"):
            self._set(patternProperties={pattern: more}, additionalProperties=False)
        elif value not in (True, {}, {"type": "string"}):
            self.beyond.append(("propertyNames", "the names of properties are not enforced"))

    def _name_properties(self, names: list[Any], more: Any) -> None:
        """Declare the properties that a list of names allows."""
        declared = members(self.schema, "properties")
        properties: Schema = {}
        for name in names:
            if isinstance(name, str) and (name in declared or more is not False):
                properties[name] = declared.get(name, more)
        self._set(properties=properties, additionalProperties=False)
        self.narrower.append(
            ("propertyNames", "the properties come in the order of the enumeration")
        )

    def _least_properties(self, value: Any) -> None:
        named, required = members(self.schema, "properties"), set(self.schema.get("required") or ())
        if value <= len(required):
            self._drop("minProperties")
        elif named and not required and value == 1:
            return
        elif named or value > 1:
            self._drop("minProperties")
            self.beyond.append(
                ("minProperties", f"that there are at least {value} properties is not enforced")
            )

    def _most_properties(self, value: Any) -> None:
        named = members(self.schema, "properties")
        closed = named and self.schema.get("additionalProperties") in (None, False)
        if closed and len(named) <= value:
            self._drop("maxProperties")
        elif named:
            self._drop("maxProperties")
            self.beyond.append(
                ("maxProperties", f"that there are at most {value} properties is not enforced")
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


_BY_ENCODING = {"base64": "byte", "base64url": "base64url"}
"""The format of a text by its `contentEncoding`."""


def _listed(names: Any) -> list[Any] | None:
    """The names that `propertyNames` lists; None if it does not list them."""
    if not is_object(names):
        return None
    if "enum" in names:
        if is_list(names["enum"]):
            return names["enum"]
        return None
    if "const" in names:
        return [names["const"]]
    return None


def _subsets(choices: list[Any], least: int, most: int) -> list[list[Any]]:
    """All lists of different choices, in their order."""
    subsets: list[list[Any]] = []
    for size in range(least, most + 1):
        subsets += [list(subset) for subset in combinations(choices, size)]
    return subsets


def _engine_pattern(pattern: str) -> str:
    r"""Translate a pattern of ECMA 262 to the engine's dialect.

    There, `.` also matches a carriage return, and `\s` matches more.
    """
    pieces: list[str] = []
    in_set = False
    end = 0
    for match in _ESCAPE_SET_OR_DOT.finditer(pattern):
        pieces.append(pattern[end : match.start()])
        end = match.end()
        pieces.append(_engine_token(match[0], in_set=in_set))
        if match[0] == "[":
            in_set = True
        elif match[0] == "]":
            in_set = False
    pieces.append(pattern[end:])
    return "".join(pieces)


def _engine_token(token: str, *, in_set: bool) -> str:
    """A token of a pattern in the engine's dialect. With `in_set`, it is between brackets."""
    match token:
        case "." if not in_set:
            return r"[^\n\r\u2028\u2029]"
        case r"\s":
            if in_set:
                return _SPACE
            return f"[{_SPACE}]"
        case r"\S" if not in_set:
            return r"[^\s\u{feff}]"
        case r"\/":
            return "/"
        case _:
            return token


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
        ]
    }
