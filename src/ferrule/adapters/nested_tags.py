"""Read a value that a model wrote as nested tags, `<name>K2</name><height>8611</height>`, where JSON was asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ferrule.schema.nodes import is_object, members

if TYPE_CHECKING:
    from collections.abc import Mapping
    from xml.etree.ElementTree import Element

_BARE_AMPERSAND = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#\d+|#x[0-9a-fA-F]+);)")
_MOST_LEVELS = 32


class _UnreadableError(ValueError):
    """The tags do not determine a value."""


def read_tags(schema: Mapping[str, Any], name: str, text: str) -> Any:
    """Return the object or array of an output, or the text if its tags are not well-formed or do not fit the output's schema.

    Texts inside it stay strings: the check of the output turns them into numbers.
    """
    from xml.etree import ElementTree as ET

    whole: dict[str, Any] = dict(schema)
    if "<!--" in text or "<?" in text:
        return text  # the parser would drop it
    try:
        # No entity can be declared inside an element, so a text cannot make the parser expand one.
        root = ET.fromstring(f"<v>{_BARE_AMPERSAND.sub('&amp;', text)}</v>")  # noqa: S314  see above
        return _value(whole, members(whole, "properties")[name], root, _MOST_LEVELS)
    except (
        ET.ParseError,
        _UnreadableError,
        UnicodeEncodeError,
    ):  # the last: a lone surrogate, which XML cannot hold
        return text


def _value(whole: dict[str, Any], schema: Any, node: Element, levels: int) -> Any:
    schema = _resolved(whole, schema)
    kind = schema.get("type")
    inside = list(node)
    said = [node.text or "", *(each.tail or "" for each in inside)]
    if not levels or node.attrib or (inside and "".join(said).strip()):
        raise _UnreadableError
    if kind == "array":
        items = schema.get("items", {})
        if len({each.tag for each in inside}) > 1 or (not inside and "".join(said).strip()):
            raise _UnreadableError
        return [_value(whole, items, each, levels - 1) for each in inside]
    if not inside and kind != "object":
        return said[0].strip()
    if (
        (kind is not None and kind != "object")
        or (kind is None and "anyOf" in schema)
        or (not inside and said[0].strip())
    ):
        raise _UnreadableError
    found: dict[str, Any] = {}
    for tag, nodes in _by_tag(inside).items():
        found[tag] = _property(whole, _of_property(schema, tag), nodes, levels - 1)
    return found


def _property(whole: dict[str, Any], schema: Any, nodes: list[Element], levels: int) -> Any:
    """The value of a property: one tag, or one for each item of an array."""
    of = _resolved(whole, schema)
    if of.get("type") == "array" and (len(nodes) > 1 or not len(nodes[0])):
        if len(nodes) == 1 and not (nodes[0].text or "").strip():
            return []
        return [_value(whole, of.get("items", {}), each, levels) for each in nodes]
    if len(nodes) > 1 and of.get("type") is not None:
        raise _UnreadableError
    found = [_value(whole, of, each, levels) for each in nodes]
    return found if len(nodes) > 1 else found[0]


def _by_tag(nodes: list[Element]) -> dict[str, list[Element]]:
    found: dict[str, list[Element]] = {}
    for node in nodes:
        found.setdefault(node.tag, []).append(node)
    return found


def _of_property(schema: dict[str, Any], name: str) -> Any:
    more = schema.get("additionalProperties")
    return members(schema, "properties").get(name, more if isinstance(more, dict) else {})


def _resolved(whole: dict[str, Any], schema: Any) -> dict[str, Any]:
    """The schema that a reference leads to, or the only alternative to `null`."""
    found = schema
    for _ in range(_MOST_LEVELS):
        if not is_object(found):
            return {}
        choices: list[Any] = [each for each in found.get("anyOf", ()) if each != {"type": "null"}]
        if "$ref" in found:
            found = members(whole, "$defs").get(found["$ref"].removeprefix("#/$defs/"), {})
        elif len(choices) == 1:
            found = choices[0]
        else:
            return found
    return {}
