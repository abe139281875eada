"""Split a streamed JSON object into fields."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

_BEGIN = re.compile(r'\{\s*"')
_PLAIN = re.compile(r'[^"\\]+')
_ESCAPE = re.compile(r'\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|["\\/bfnrt])')
_HIGH = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_PART_OF_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}(\\(u[0-9a-fA-F]{0,3})?)?\Z")
_PART_OF_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{0,3})?\Z")
_STRUCTURE = re.compile(r'["{}\[\],]')

State = Literal["before", "key", "colon", "value", "text", "other", "after", "done"]


class JSONReader:
    """Splits one streamed JSON object into fields: strings unescaped, other values as JSON. Emits nothing after invalid JSON."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._seen: set[str] = set()
        self._text = ""
        self._at = 0
        self._state: State = "before"
        self._name = ""
        self._depth = 0
        self._in_string = False

    def feed(self, text: str) -> list[tuple[str, str]]:
        """See `FieldReader`."""
        self._text = self._text[self._at :] + text
        self._at = 0
        pieces: list[tuple[str, str]] = []
        while self._state != "done" and getattr(self, f"_read_{self._state}")(pieces):
            pass
        if self._state == "done":
            self._text, self._at = "", 0
        return pieces

    def finish(self) -> list[tuple[str, str]]:
        """End the answer. Nothing is kept back: an unfinished value is not a value."""
        self._state = "done"
        return []

    def _emit(self, pieces: list[tuple[str, str]], piece: str) -> None:
        if piece and self._name:
            pieces.append((self._name, piece))

    def _next(self) -> str:
        """The next non-blank character, or an empty string if it has not arrived."""
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _read_before(self, pieces: list[tuple[str, str]]) -> bool:
        del pieces
        found = _BEGIN.search(self._text, self._at)
        if found is None:
            brace = self._text.rfind("{", self._at)
            self._at = brace if brace >= 0 and not self._text[brace + 1 :].strip() else len(self._text)
            return False
        self._at = found.end() - 1
        self._state = "key"
        return True

    def _read_key(self, pieces: list[tuple[str, str]]) -> bool:
        del pieces
        if self._next() != '"':
            self._state = "done" if self._next() else "key"
            return False
        end = self._at + 1
        while True:
            plain = _PLAIN.match(self._text, end)
            end = plain.end() if plain else end
            mark = self._text[end : end + 1]
            if mark != "\\":
                break
            end += 2
        if mark != '"':
            return False
        try:
            name: str = json.loads(self._text[self._at : end + 1])
        except ValueError:
            self._state = "done"
            return False
        # The first of two equal keys counts: its text is already emitted.
        self._name = name if name in self._names and name not in self._seen else ""
        self._seen.add(name)
        self._at, self._state = end + 1, "colon"
        return True

    def _read_colon(self, pieces: list[tuple[str, str]]) -> bool:
        del pieces
        mark = self._next()
        if mark != ":":
            self._state = "done" if mark else "colon"
            return False
        self._at += 1
        self._state = "value"
        return True

    def _read_value(self, pieces: list[tuple[str, str]]) -> bool:
        del pieces
        mark = self._next()
        if not mark:
            return False
        self._at += mark == '"'
        self._state = "text" if mark == '"' else "other"
        self._depth, self._in_string = 0, False
        return True

    def _read_text(self, pieces: list[tuple[str, str]]) -> bool:
        text, at = self._text, self._at
        parts: list[str] = []
        while at < len(text):
            plain = _PLAIN.match(text, at)
            if plain:
                parts.append(plain[0])
                at = plain.end()
                continue
            if text[at] == '"':
                self._state = "after"
                break
            escape = _ESCAPE.match(text, at)
            if _PART_OF_ESCAPE.match(text, at) or _PART_OF_PAIR.match(text, at):
                break  # wait for the rest
            if escape is None:
                self._state = "done"
                break
            parts.append(json.loads(f'"{escape[0]}"'))
            at = escape.end()
        self._at = at + (self._state == "after")
        self._emit(pieces, "".join(parts))
        return self._state == "after"

    def _read_other(self, pieces: list[tuple[str, str]]) -> bool:
        start = at = self._at
        text = self._text
        while at < len(text):
            if self._in_string:
                plain = _PLAIN.match(text, at)
                if plain:
                    at = plain.end()
                elif text[at] == '"':
                    self._in_string, at = False, at + 1
                elif at + 1 == len(text):
                    break  # wait for the escaped character
                else:
                    at += 2
                continue
            found = _STRUCTURE.search(text, at)
            if found is None:
                at = len(text)
                break
            at, mark = found.end(), found[0]
            if mark in "}," and self._depth == 0:
                at -= 1
                self._state = "after"
                break
            self._depth += (mark in "{[") - (mark in "}]")
            self._in_string = mark == '"'
        piece = text[start:at]
        # Trailing blanks are part of the value only if more of it follows.
        shown = piece if self._in_string else piece.rstrip()
        self._at = at if self._state == "after" else start + len(shown)
        self._emit(pieces, shown)
        return self._state == "after"

    def _read_after(self, pieces: list[tuple[str, str]]) -> bool:
        del pieces
        mark = self._next()
        if not mark:
            return False
        self._at += 1
        self._state = "key" if mark == "," else "done"
        return mark == ","
