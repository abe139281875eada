"""Fields between tags: `<answer>...</answer>`, as `XMLAdapter` describes them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ferrule.adapters.render import render_parts, render_text, write_verbatim
from ferrule.encoding.mark import Mark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.values.content.convert import Piece


def render_tags(fields: Mapping[str, Any]) -> list[Piece]:
    """Render fields with their values, each between its tags."""
    pieces: list[Piece] = []
    for name, value in fields.items():
        between = "\n" if pieces else ""
        pieces.append(f"{between}<{name}>\n")
        text = render_text(name, value, _escape, _escape_json)
        if text is not None:
            pieces.append(text)
        else:
            pieces += render_parts(name, value, _escape)
        pieces.append(f"\n</{name}>")
    return pieces


@lru_cache(maxsize=256)
def end_tag(name: str) -> Mark:
    """The mark that a field's value must not contain."""
    return Mark("<", rf"/{re.escape(name)}\s*>")


def _escape(name: str, text: str) -> str:
    return write_verbatim(text, end_tag(name).escape(text))


def _escape_json(name: str, json: str) -> str:
    # An escaped end tag in a string: without `<`, reading an answer leaves it unchanged.
    json = re.sub(rf"<(?=\\+/{re.escape(name)}\s*>)", r"\\u003c", json)
    return json.replace("</", r"<\/")
