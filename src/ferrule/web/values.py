"""Values for a reader: JSON that folds, lists of records as tables, Markdown as HTML.

A value is shown so only where nothing is lost: numbers keep their digits, an object with a repeated
name stays text, and a text without Markdown stays as it was written.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

from msgspec import Struct, field

from ferrule.encoding.safe_text import reveal

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST = 20_000
"""Characters of a JSON text that is shown as a tree."""
_DEEPEST = 30
_OPEN_DEPTH, _OPEN_ITEMS = 2, 20
"""Deeper and longer ones begin folded."""
_MOST_COLUMNS = 12
_FEWEST_ROWS = 2

NodeKind = Literal["text", "number", "word", "list", "object", "table"]


class JSONNode(Struct, kw_only=True):
    """One value of a JSON text."""

    kind: NodeKind
    text: str = ""
    """A scalar as JSON writes it; a text without its quotes."""
    items: list[tuple[str, JSONNode]] = field(default_factory=list["tuple[str, JSONNode]"])
    """By name, or by position."""
    columns: list[str] = field(default_factory=list[str])
    """Of a table: a list of objects of scalars with the same names."""
    is_open: bool = True

    @property
    def size(self) -> str:
        """How many items it has, in words."""
        count = len(self.items)
        noun = "fields" if self.kind == "object" else "items"
        if count == 1:
            noun = noun[:-1]
        return f"{count} {noun}"


class _Digits(str):
    """A number as it was written."""

    __slots__ = ()


def json_tree(text: str) -> JSONNode | None:
    """The tree of a text that is a JSON object or list; None for any other text."""
    if len(text) > _LONGEST or text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(
            text,
            parse_int=_Digits,
            parse_float=_Digits,
            parse_constant=_refuse,
            object_pairs_hook=_object_of,
        )
        if not value:
            return None
        return _node(value, 0)
    except (ValueError, RecursionError):
        return None


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON.")


def _object_of(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("A name is repeated.")
    return value


def _node(value: Any, depth: int) -> JSONNode:
    if depth > _DEEPEST:
        raise ValueError("Too deep for a tree.")
    match value:
        case _Digits():
            return JSONNode(kind="number", text=str(value))
        case str():
            return JSONNode(kind="text", text=value)
        case dict():
            pairs = list(cast("dict[str, Any]", value).items())
            return _with_items("object", pairs, depth)
        case list():
            entries = cast("list[Any]", value)
            items = [(str(number), entry) for number, entry in enumerate(entries)]
            node = _with_items("list", items, depth)
            if _is_table(entries):
                node.kind = "table"
                node.columns = list(entries[0])
            return node
        case _:
            return JSONNode(kind="word", text=json.dumps(value))


def _with_items(kind: NodeKind, pairs: list[tuple[str, Any]], depth: int) -> JSONNode:
    is_open = depth < _OPEN_DEPTH and len(pairs) <= _OPEN_ITEMS
    items = [(name, _node(item, depth + 1)) for name, item in pairs]
    return JSONNode(kind=kind, items=items, is_open=is_open)


def _is_table(entries: list[Any]) -> bool:
    if len(entries) < _FEWEST_ROWS or not isinstance(entries[0], dict):
        return False
    names = list(cast("dict[str, Any]", entries[0]))
    if not 0 < len(names) <= _MOST_COLUMNS:
        return False
    for entry in entries:
        if not isinstance(entry, dict) or list(cast("dict[str, Any]", entry)) != names:
            return False
        if any(isinstance(cell, dict | list) for cell in cast("dict[str, Any]", entry).values()):
            return False
    return True


# -- Markdown

_PLAIN = frozenset({"paragraph_open", "paragraph_close", "inline", "text", "softbreak"})
_SCHEMES = frozenset({"http", "https", "mailto"})


def markdown_html(text: str, *, has_links: bool) -> str | None:
    """A text of Markdown as HTML without anything active; None for a text without Markdown.

    HTML in the text stays text, a picture becomes its description, and a link shows its host, so
    that its words cannot hide where it leads. Without `has_links`, a link is its words and address.
    """
    parser = _parser()
    tokens: list[Any] = parser.parse(text)
    if all(_is_plain(token) for token in tokens):
        return None
    for token in tokens:
        match token.type:
            case "heading_open":  # the page has its own outline of headings
                token.tag = "p"
                token.attrs = {"class": "heading"}
            case "heading_close":
                token.tag = "p"
            case "th_open" | "td_open":  # an alignment is a style, which the page's policy refuses
                token.attrs = {}
            case _:
                pass
        if token.children:
            token.children = _with_safe_links(token.children, has_links=has_links)
    # Only now: a reference such as `&#x202e;` is a character after the parsing.
    return reveal(parser.renderer.render(tokens, parser.options, {}))


@cache
def _parser() -> Any:
    # Imported here: a page without an answer needs no Markdown.
    from markdown_it import MarkdownIt

    options = {"html": False, "breaks": True}
    return MarkdownIt("commonmark", options).enable(["table", "strikethrough"])


def _is_plain(token: Any) -> bool:
    return token.type in _PLAIN and all(_is_plain(child) for child in token.children or ())


def _with_safe_links(children: list[Any], *, has_links: bool) -> list[Any]:
    from markdown_it.token import Token

    shown: list[Any] = []
    is_link, where = False, ""  # links are not nested
    for token in children:
        match token.type:
            case "image":
                words = token.content or "picture"
                shown.append(Token("text", "", 0, content=f"[{words}: {token.attrs.get('src')}]"))
            case "link_open":
                where = str(token.attrs.get("href", ""))
                host = _host_of(where)
                is_link = has_links and bool(host)
                if is_link:
                    token.attrs = {"href": where, "rel": "noopener noreferrer nofollow"}
                    where = host
                    shown.append(token)
            case "link_close":
                if is_link:
                    shown.append(token)
                shown.append(Token("text", "", 0, content=f" ({where})"))
            case _:
                shown.append(token)
    return shown


def _host_of(address: str) -> str:
    """The host of a link that may be followed; empty for any other link."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    if parts.scheme not in _SCHEMES:
        return ""
    return parts.hostname or parts.path
