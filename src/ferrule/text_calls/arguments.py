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
"""In characters; also of the name of a type."""
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
    attributes: str
    """What the tag says about the value's type, such as `type="string"`."""
    start: int
    """Where the value starts."""
    closing: str
    """The value's own closing tag."""
    is_escaped: bool = False
    """Whether `<` is written `&lt;` in the value."""


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
            value = self._decode(
                self._text[opening.start : value_end],
                schema,
                opening.attributes,
                is_escaped=opening.is_escaped,
            )
            if opening.key not in args:
                args[opening.key] = value
            elif "array" in kinds_of(schema):
                # The items of a list may be arguments of the same key.
                args[opening.key] = [*_as_list(args[opening.key]), *_as_list(value)]
            else:
                raise AmbiguousError(f"`{opening.key}` is there more than once")
            opening = self._opening(self.blank(offset), offer)
        for key, value in args.items():
            # The only item of a list may be written without brackets.
            is_text = isinstance(value, str) and value[:1] not in ("[", "")
            if is_text and kinds_of(offer.properties.get(key)) == {"array"}:
                args[key] = [value]
        return args, offset, repairs

    def blank(self, offset: int) -> int:
        """The position after blanks."""
        blanks = _BLANK.match(self._text, offset)
        if blanks is None:
            return offset
        return blanks.end()

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
        if mark.closes and mark.text not in closings:
            return False
        return mark.role in ("stops", "announces", "names", "ends")

    def _opening(self, offset: int, offer: Offer) -> _Opening | None:
        mark = mark_at(self._text, offset)
        if mark is None or mark.closes:
            return None
        start = offset + len(mark.text)
        templates = argument_templates(mark.word)
        if not templates:
            # The tag may be a parameter's name, as `<city>`.
            key = mark.element
            is_known = key in offer.properties or not offer.closed
            if mark.text[0] == "[" or not is_known or not key.replace("-", "_").isidentifier():
                return None
            return _Opening(key, "", start, mark.closing)
        if self._spellings.setdefault(mark.word, mark.spelling) != mark.spelling:
            return None
        if mark.value is not None:
            key, is_escaped = html.unescape(mark.value), mark.word in _ESCAPED
            return _Opening(key, mark.more, start, mark.closing, is_escaped)
        for template in templates:
            opening = self._pair(start, template)
            if opening is not None:
                return opening
        return None

    def _pair(self, offset: int, template: str) -> _Opening | None:
        """A key and the beginning of its value, as `template` says after its first tag."""
        _, _, after_key = template.partition("{key}")
        before_value, _, closing = after_key.partition("{value}")
        key_end = self._text.find("<", offset, offset + _LONGEST_KEY)
        if before_value == "=":
            equals = self._text.find("=", offset, offset + _LONGEST_KEY)
            if equals < 0 or 0 <= key_end < equals:
                return None
            key = self._text[offset:equals].strip()
            return _Opening(key, "", equals + 1, closing) if key else None
        if key_end < 0:
            return None
        key = self._text[offset:key_end].strip()
        mark: Tag | None = None
        start = key_end
        attributes = ""
        for tag in TAG.findall(before_value):
            start = self.blank(start)
            mark = mark_at(self._text, start)
            word = folded(tag)
            if mark is None or mark.word != word or mark.closes != tag.startswith("</"):
                return None
            start += len(mark.text)
            if word.endswith("type") and not mark.closes:  # the type that the model names
                type_end = self._text.find("<", start, start + _LONGEST_KEY)
                if type_end < 0:
                    return None
                attributes = f' type="{self._text[start:type_end].strip()}"'
                start = type_end
        if mark is not None and closing.startswith("</"):
            closing = mark.closing  # in the spelling of the tag before the value
        return _Opening(key, attributes, start, closing) if key else None

    def last_end(self, literal: str, offset: int) -> int:
        """The first of a literal that a mark or the end of the text follows, or else the first.

        -1 if the literal is not ahead.
        """
        end = self._ahead.search(
            f"end {literal}", offset, lambda start: self._followed(literal, start)
        )
        if end < 0:
            return self._ahead.find(literal, offset)
        return end

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
        wrong_closing = f"</{opening.key}>"
        position = self._ahead.find(wrong_closing, offset)
        if position >= 0 and self._goes_on(position + len(wrong_closing), offer, closings):
            repairs.append("wrong_tag")
            return position, position + len(wrong_closing)
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
        if value is None:
            return -1
        return self.blank(value.end)

    def _goes_on(self, offset: int, offer: Offer, closings: tuple[str, ...]) -> bool:
        """Whether the end of the call or another argument follows."""
        self._effort.spend(0)
        if self.follows(offset, closings):
            return True
        return self._opening(self.blank(offset), offer) is not None

    def _decode(
        self, value: str, schema: Any, attributes: str = "", *, is_escaped: bool = False
    ) -> Any:
        """A value by its schema: text stays text, all else is JSON or nested tags."""
        if value.startswith(("\n", "\r\n")) and value.endswith("\n"):
            # The value has lines of its own; the breaks around them are not part of it.
            value = value.removeprefix("\r").removeprefix("\n")
            value = value.removesuffix("\n").removesuffix("\r")
        bare = value.strip()
        if bare.startswith("<![CDATA[") and bare.endswith("]]>"):
            inside = bare[len("<![CDATA[") : -len("]]>")]
            value = bare = _BETWEEN_SECTIONS.sub(r"\1", inside)
        elif is_escaped:
            value = html.unescape(value)
            bare = value.strip()
        kinds = kinds_of(schema)
        if _says_text(attributes) or (kinds == {"string"} and not bare.startswith('"')):
            return value
        nested = self._nested(bare, schema, kinds)
        if nested is not None:
            return nested
        try:
            decoded, _ = read_json(bare)
        except ValueError:
            return value
        has_type = bool(kinds) or _says_type(attributes)
        if not has_type and not isinstance(decoded, (dict, list)):
            return value
        if "string" not in kinds:
            return cast("Any", decoded)
        # The schema allows text, too: a number or a word such as `true` stays text.
        is_quoted = isinstance(decoded, str) and value == f'"{decoded}"'
        kind = json_type(cast("Any", decoded))
        if is_quoted or kind in kinds & {"object", "array", "null"}:
            return cast("Any", decoded)
        return value

    def _nested(self, bare: str, schema: Any, kinds: set[str]) -> Any:
        """An object or a list whose parts are tags; None if it is not one."""
        if not bare.startswith(("<", "]<]")) or not kinds & {"object", "array"}:
            return None
        parts = self._parts(bare)
        if parts is None:
            return None
        if "array" in kinds:
            return [self._part(part, schema_of_part(schema, "items")) for _, part in parts]
        members: dict[str, Any] = {}
        for key, part in parts:
            value = self._part(part, schema_of_part(schema, "properties", key))
            if key in members:
                members[key] = [*_as_list(members[key]), value]
            else:
                members[key] = value
        return members

    def _part(self, part: str, schema: Any) -> Any:
        if schema is not None:
            return self._decode(part, schema)
        bare = part.strip()
        if self._parts(bare):
            kind = "object"
            if bare.startswith("<item>"):
                kind = "array"
            return self._decode(part, {"type": kind})
        try:
            return read_json(bare)[0]
        except ValueError:
            return part

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
    """Where the closing tag is of a tag that is open at a position. Tags of its name nest."""
    depth = 1
    while effort.spend(0):
        end = text.find(closing, offset)
        if end < 0:
            return None
        depth += text.count(opening, offset, end) - 1
        effort.spend((end - offset) // 8)  # searching costs less than reading
        if not depth:
            return end
        offset = end + len(closing)
    return None


def _as_list(value: Any) -> list[Any]:
    if is_list(value):
        return value
    return [value]


def _says_text(attributes: str) -> bool:
    texts = ('string="true"', 'type="string"', 'type="str"')
    return any(text in attributes for text in texts)


def _says_type(attributes: str) -> bool:
    return "string=" in attributes or "type=" in attributes


def kinds_of(schema: Any) -> set[str]:
    """The JSON types that a schema allows; empty if it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    declaration = cast("Schema", schema)
    kinds = set(declared_types(declaration))
    kinds = kinds.union(*map(kinds_of, branches_of(declaration)))
    enum: Any = declaration.get("enum")
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
