"""Read arguments in tags: one tag, or a key and a value, for each.

A value has no escapes. It ends at its own closing tag where the next argument, the end of the call
or the end of the text follows; that tag elsewhere is a part of the value. Only a value without such
an end may have a wrong closing tag, or none.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ferrule.encoding.ahead import Ahead
from ferrule.encoding.pattern import pattern
from ferrule.encoding.repair import read_json
from ferrule.schema.nodes import Schema, branches_of, declared_types, is_list, json_type
from ferrule.text_calls.marks import TAG, Tag, argument_templates, folded, mark_at

if TYPE_CHECKING:
    from ferrule.text_calls.drafts import Effort
    from ferrule.text_calls.json_form import Values
    from ferrule.text_calls.offers import Offer

_TYPES: dict[str, str] = {"any": "", "str": "string"}
_LONGEST_KEY = 120
_BLANK = re.compile(r"\s*")
_BETWEEN_SECTIONS = pattern(r"\]\]>((?:(?!\]\]>).)*?)<!\[CDATA\[", re.DOTALL)
"""The end of a section of CDATA, the text behind it, and the beginning of the next section.

The text is part of the value. There is none where a `]]>` of the value is written as two sections.
"""
_ESCAPED = frozenset({"param"})
"""Words with which arguments begin in which `<` is written `&lt;` (MiniCPM).

Others have no escapes.
"""


class AmbiguousError(ValueError):
    """The text of a call can be read in more than one way, or breaks off."""


class _Opening(NamedTuple):
    """The beginning of an argument."""

    key: str
    more: str
    """What the tag says about the value's type."""
    start: int
    """Where the value starts."""
    closing: str
    """The value's own closing tag."""


class Arguments:
    """Reads the arguments of the calls of one text."""

    def __init__(self, text: str, values: Values, effort: Effort) -> None:
        self._text = text
        self._values = values
        self._effort = effort
        self._ahead = Ahead(text)
        self._spellings: dict[str, str] = {}
        """The spelling of each word with which arguments begin, fixed by its first use."""
        self.closings: set[str] = set()
        """The closing tags of all values. One that is left over shows that a value was cut."""

    def read(
        self, offset: int, offer: Offer, closings: tuple[str, ...]
    ) -> tuple[dict[str, Any], int, list[str]]:
        """The arguments from a position on, their end, and the repairs that they needed.

        `closings` are the closing tags of the call and of what is around it, innermost first.
        Raises `AmbiguousError` where the text leaves open what an argument is.
        """
        args: dict[str, Any] = {}
        repairs: list[str] = []
        opening = self._opening(self.blank(offset), offer)
        while opening is not None:
            schema = offer.properties.get(opening.key)
            value_end, offset = self._ends(opening, offer, closings, repairs)
            self.closings.add(opening.closing)
            value = self._decode(self._text[opening.start : value_end], schema, opening.more)
            if opening.key not in args:
                args[opening.key] = value
            elif "array" in kinds_of(schema):
                listed: Any = args[opening.key]
                joined: list[Any] = listed if is_list(listed) else [listed]
                args[opening.key] = [*joined, *(value if is_list(value) else [value])]
            else:
                raise AmbiguousError(f"`{opening.key}` is there more than once")
            opening = self._opening(self.blank(offset), offer)
        for key, value in args.items():
            is_one = not isinstance(value, (list, dict)) and kinds_of(
                offer.properties.get(key)
            ) == {"array"}
            if is_one and isinstance(value, str) and value[:1] not in ("[", ""):
                args[key] = [value]
        return args, offset, repairs

    def blank(self, offset: int) -> int:
        """The position after blanks."""
        blank = _BLANK.match(self._text, offset)
        return offset if blank is None else blank.end()

    def follows(self, offset: int, closings: tuple[str, ...]) -> bool:
        """Whether the end of a call follows: its closing tags, or the end of the text."""
        offset = self.blank(offset)
        for closing in closings:
            if not self._text.startswith(closing, offset):
                break
            offset = self.blank(offset + len(closing))
        else:
            return True
        mark = mark_at(self._text, offset)
        if mark is None:
            return offset >= len(self._text)
        return mark.role in ("stops", "announces", "names", "ends") and (
            not mark.closes or mark.text in closings
        )

    def _opening(self, offset: int, offer: Offer) -> _Opening | None:
        mark = mark_at(self._text, offset)
        if mark is None or mark.closes:
            return None
        for template in argument_templates(mark.word):
            if self._spellings.setdefault(mark.word, mark.spelling) != mark.spelling:
                return None
            if mark.value is not None:
                start = offset + len(mark.text)
                more = mark.more + (" escaped" if mark.word in _ESCAPED else "")
                return _Opening(html.unescape(mark.value), more, start, mark.closing)
            opening = self._pair(offset + len(mark.text), template)
            if opening is not None:
                return opening
        if argument_templates(mark.word):
            return None
        key = mark.element
        is_known = key in offer.properties or not offer.closed
        if mark.text[0] == "[" or not is_known or not key.replace("-", "_").isidentifier():
            return None
        return _Opening(key, "", offset + len(mark.text), mark.closing)

    def _pair(self, offset: int, template: str) -> _Opening | None:
        """A key and the beginning of its value, as `template` says after its first tag."""
        _, _, pattern = template.partition("{key}")
        before_value, _, closing = pattern.partition("{value}")
        key_end = offset
        more = ""
        end = self._text.find("<", offset, offset + _LONGEST_KEY)
        if before_value == "=":
            key_end = self._text.find("=", offset, offset + _LONGEST_KEY)
            if key_end < 0 or 0 <= end < key_end:
                return None
            start, opened = key_end + 1, None
        else:
            if end < 0:
                return None
            key_end = start = end
            opened: Tag | None = None
            for tag in TAG.findall(before_value):
                if "{" in tag:
                    continue
                mark = mark_at(self._text, self.blank(start))
                wanted = folded(tag)
                if mark is None or mark.word != wanted or mark.closes != tag.startswith("</"):
                    return None
                start = self.blank(start) + len(mark.text)
                opened = mark
                if wanted.endswith("type") and not mark.closes:  # the type that the model names
                    type_end = self._text.find("<", start, start + _LONGEST_KEY)
                    more = f' type="{self._text[start:type_end].strip()}"'
                    start = max(start, type_end)
        key = self._text[offset:key_end].strip()
        if opened is not None and closing.startswith("</"):
            closing = opened.closing
        return _Opening(key, more, start, closing) if key else None

    def last_end(self, literal: str, offset: int) -> int:
        """The first of a literal that a mark or the end of the text follows, or else the first.

        -1 if the literal is not ahead.
        """
        end = self._ahead.search(
            f"end {literal}", offset, lambda start: self._followed(literal, start)
        )
        return end if end >= 0 else self._ahead.find(literal, offset)

    def _followed(self, literal: str, offset: int) -> int:
        position = self._text.find(literal, offset)
        while position >= 0:
            following = self.blank(position + len(literal))
            if following >= len(self._text) or mark_at(self._text, following) is not None:
                return position
            position = self._text.find(literal, following)
        return -1

    def _ends(
        self, opening: _Opening, offer: Offer, closings: tuple[str, ...], repairs: list[str]
    ) -> tuple[int, int]:
        """Where the value ends, and where the text goes on."""
        offset = opening.start
        if "string" not in kinds_of(offer.properties.get(opening.key)):
            # A list or an object ends where its JSON does, whatever tags its texts hold.
            json_end = self._end_of_json(self.blank(offset))
            if json_end >= 0 and self._text.startswith(opening.closing, json_end):
                return json_end, json_end + len(opening.closing)
        position = self._ahead.find(opening.closing, offset)
        while position >= 0 and self._effort.left > 0:
            end = position + len(opening.closing)
            if self._goes_on(end, offer, closings):
                return position, end
            position = self._ahead.find(opening.closing, end)
        named = f"</{opening.key}>"
        position = self._ahead.find(named, offset)
        if position >= 0 and self._goes_on(position + len(named), offer, closings):
            repairs.append("wrong_tag")
            return position, position + len(named)
        for tag in TAG.finditer(self._text, offset):
            if not self._effort.spend(tag.end() - tag.start()):
                break
            following = self._opening(tag.start(), offer)
            is_next = following is not None and following.key in offer.properties
            if is_next or tag[0] in closings:
                repairs.append("missing_tag")
                return tag.start(), tag.start()
        raise AmbiguousError(f"the text ends within the value of `{opening.key}`")

    def _end_of_json(self, offset: int) -> int:
        """The position after a list or an object, and blanks; -1 if there is none."""
        if self._text[offset : offset + 1] not in ("[", "{"):
            return -1
        value = self._values.at(offset)
        return -1 if value is None else self.blank(value.end)

    def _goes_on(self, offset: int, offer: Offer, closings: tuple[str, ...]) -> bool:
        self._effort.spend(0)
        return (
            self.follows(offset, closings) or self._opening(self.blank(offset), offer) is not None
        )

    def _decode(self, value: str, schema: Any, more: str) -> Any:
        """A value by its schema: text stays text, all else is JSON or nested tags."""
        if value.startswith(("\n", "\r\n")) and value.endswith("\n"):
            value = value.removeprefix("\r").removeprefix("\n")
            value = value.removesuffix("\n").removesuffix("\r")
        bare = value.strip()
        if bare.startswith("<![CDATA[") and bare.endswith("]]>"):
            inside = bare[len("<![CDATA[") : -len("]]>")]
            value = bare = _BETWEEN_SECTIONS.sub(r"\1", inside)
        elif "escaped" in more:
            value = html.unescape(value)
            bare = value.strip()
        kinds = kinds_of(schema)
        if _says_text(more) or (kinds == {"string"} and not bare.startswith('"')):
            return value
        nested = self._nested(bare, schema, kinds)
        if nested is not None:
            return nested
        try:
            decoded, _ = read_json(bare)
        except ValueError:
            return value
        if "string" not in kinds:
            is_text = not kinds and not isinstance(decoded, (dict, list)) and not _says_type(more)
            return value if is_text else cast("Any", decoded)
        if isinstance(decoded, str):
            is_quoted = value == f'"{decoded}"'
            return decoded if is_quoted else value
        is_meant = json_type(decoded) in kinds & {"object", "array", "null"}
        return decoded if is_meant else value

    def _nested(self, bare: str, schema: Any, kinds: set[str]) -> Any:
        """An object or a list whose parts are tags; None if it is not one."""
        if not bare.startswith(("<", "]<]")) or not kinds & {"object", "array"}:
            return None
        parts = self._parts(bare)
        if parts is None:
            return None
        if "array" in kinds:
            return [self._part(part, schema_of_part(schema, "items")) for _, part in parts]
        found: dict[str, Any] = {}
        for key, part in parts:
            value = self._part(part, schema_of_part(schema, "properties", key))
            if key in found:
                listed = found[key] if isinstance(found[key], list) else [found[key]]
                found[key] = [*listed, value]
            else:
                found[key] = value
        return found

    def _part(self, part: str, schema: Any) -> Any:
        if schema is None and self._parts(part.strip()):
            kind = "array" if part.strip().startswith("<item>") else "object"
            return self._decode(part, {"type": kind}, "")
        if schema is None:
            try:
                return read_json(part.strip())[0]
            except ValueError:
                return part
        return self._decode(part, schema, "")

    def _parts(self, bare: str) -> list[tuple[str, str]] | None:
        """The tags of a text that is all tags, with what is in each."""
        parts: list[tuple[str, str]] = []
        offset = 0
        while offset < len(bare):
            mark = mark_at(bare, offset)
            if mark is None or mark.closes or not self._effort.spend(0):
                return None
            start = offset + len(mark.text)
            end = _matching(bare, start, mark.text, mark.closing, self._effort)
            if end is None:
                return None
            parts.append((mark.element, bare[start:end]))
            offset = end + len(mark.closing)
            while bare[offset : offset + 1].isspace():
                offset += 1
        return parts or None


def _matching(text: str, offset: int, opening: str, closing: str, effort: Effort) -> int | None:
    """Where the tag ends that is open at a position. Tags of its name nest."""
    depth = 1
    while effort.spend(0):
        end = text.find(closing, offset)
        if end < 0:
            return None
        depth += text.count(opening, offset, end) - 1
        effort.spend((end - offset) // 8)
        if not depth:
            return end
        offset = end + len(closing)
    return None


def _says_text(more: str) -> bool:
    return 'string="true"' in more or 'type="string"' in more or 'type="str"' in more


def _says_type(more: str) -> bool:
    return "string=" in more or "type=" in more


def kinds_of(schema: Any) -> set[str]:
    """The JSON types that a schema allows; empty if it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    found = cast("Schema", schema)
    kinds = set(declared_types(found))
    kinds = kinds.union(*map(kinds_of, branches_of(found)))
    enum: Any = found.get("enum")
    if not kinds and is_list(enum) and any(isinstance(choice, str) for choice in enum):
        return {"string"}
    return {_TYPES.get(name, name) for name in kinds} - {""}


def schema_of_part(schema: Any, *keys: str) -> Any:
    """The schema of a part of a value, such as `"properties", "day"`; None if it has none."""
    for key in keys:
        if not isinstance(schema, Mapping):
            return None
        schema = cast("Mapping[str, Any]", schema).get(key)
    return schema
