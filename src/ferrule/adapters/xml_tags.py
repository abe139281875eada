"""`XMLAdapter`: each field between tags, `<answer>...</answer>`.  (Floor 3.)"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.draw import Shown, unmarked_text, value_pieces
from ferrule.adapters.json_object import JSONAdapter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ferrule.values.content import Piece
    from ferrule.values.exchange import FieldReader
    from ferrule.values.signature import Signature

_JSON = JSONAdapter()


class XMLAdapter(Adapter):
    """Fields between tags. The tags are all there is of XML: texts stand between them as they are, nothing escaped.

    In JSON the slash of `</` is written as an escape, which means the same, so that no value ends before its end.
    """

    __slots__ = ()

    def __init__(self, *, use_native_function_calling: bool | None = False, fallback: Adapter | None = _JSON, repairs: int = 1) -> None:
        super().__init__(use_native_function_calling=use_native_function_calling, fallback=fallback, repairs=repairs)

    def structure(self, shown: Shown) -> str:
        """See `Adapter`."""
        fields = "\n".join(f"<{name}>\n{{{name}}}\n</{name}>" for name in (*shown.inputs, *shown.outputs))
        return (
            "Messages have the form below: each field stands between tags of its name, text as it is without any escaping, everything else "
            f"as JSON.\n\n{fields}"
        )

    def reminder(self, outputs: Sequence[str]) -> str:
        """See `Adapter`."""
        if not outputs:
            return ""
        return f"Answer with {', then '.join(f'`<{name}>`' for name in outputs)}, each closed by its end tag."

    def drawn_fields(self, fields: Mapping[str, Any]) -> list[Piece]:
        """See `Adapter`."""
        pieces: list[Piece] = []
        for name, value in fields.items():
            between = "\n" if pieces else ""
            if (text := unmarked_text(value, _spelled)) is not None:
                pieces.append(f"{between}<{name}>\n{text}\n</{name}>")
            else:
                pieces += (f"{between}<{name}>\n", *value_pieces(value), f"\n</{name}>")
        return pieces

    def raw_fields(self, signature: type[Signature], text: str) -> Mapping[str, Any]:
        """See `Adapter`."""
        return signature.kept(Tags, lambda: Tags(signature.output_fields)).split(text)

    def outside(self, signature: type[Signature], text: str) -> str:
        """See `Adapter`."""
        return signature.kept(Tags, lambda: Tags(signature.output_fields)).outside(text)

    def reader(self, signature: type[Signature]) -> FieldReader:
        """See `Adapter`."""
        return TagReader(signature.kept(Tags, lambda: Tags(signature.output_fields)))


def _spelled(json: str) -> str:
    return json.replace("</", r"<\/")


class Tags:
    """The tags of one signature.

    The first opening tag of a field counts, and its value ends with the first end tag of that name: other tags inside are text. Where the
    end tag was forgotten, the value ends with the line before the next field's tag, or with the text.
    """

    __slots__ = ("closing", "next_field", "opening")

    def __init__(self, names: Iterable[str]) -> None:
        names = tuple(names)
        known = "|".join(map(re.escape, names)) or r"(?!)"
        self.opening = re.compile(rf"<({known})(?:\s[^<>]*)?>")
        self.closing = {name: re.compile(rf"</{re.escape(name)}\s*>") for name in names}
        self.next_field = re.compile(rf"^[ \t]*<(?:{known})(?:\s[^<>]*)?>", re.MULTILINE)

    def split(self, text: str) -> dict[str, str]:
        """The text between each field's tags."""
        found: dict[str, str] = {}
        at = 0
        while opening := self.opening.search(text, at):
            name, start = opening[1], opening.end()
            closing = self.closing[name].search(text, start)
            if closing is None:
                following = self.next_field.search(text, start)
                at = end = following.start() if following else len(text)
            else:
                end, at = closing.span()
            found.setdefault(name, text[start:end].strip())
        return found

    def outside(self, text: str) -> str:
        """What stands before the first field's tag."""
        opening = self.opening.search(text)
        return text[: opening.start()] if opening else text


class TagReader:
    """Splits a streamed answer as `Tags.split` splits a whole one, and never hands out a piece of a field's tags."""

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self._text = ""
        """What is not settled yet."""
        self._name = ""
        """The field whose value is being read."""
        self._seen: set[str] = set()
        self._is_shown = self._has_begun = False

    def feed(self, text: str) -> list[tuple[str, str]]:
        """See `FieldReader`."""
        self._text += text
        pieces: list[tuple[str, str]] = []
        while self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[tuple[str, str]]:
        """What was held back, once no more text comes."""
        pieces: list[tuple[str, str]] = []
        if self._name:
            self._emit(pieces, len(self._text))
        self._text = self._name = ""
        return pieces

    def _step(self, pieces: list[tuple[str, str]]) -> bool:
        if self._name:
            closing = self._tags.closing[self._name].search(self._text)
            if closing is None:
                self._emit(pieces, self._certain())
                return False
            self._emit(pieces, closing.start())
            # What `_emit` left is blank, up to the end tag.
            self._text = self._text[self._text.index(closing[0]) + len(closing[0]) :]
            self._name = ""
            return True
        opening = self._tags.opening.search(self._text)
        if opening is None:
            self._text = self._text[self._certain() :]
            return False
        self._name, self._has_begun = opening[1], False
        self._is_shown = self._name not in self._seen
        self._seen.add(self._name)
        self._text = self._text[opening.end() :]
        return True

    def _certain(self) -> int:
        """Up to where the text can no longer turn into a tag."""
        at = self._text.rfind("<")
        if at < 0:
            return len(self._text)
        tail = self._text[at:]
        tags = [f"</{self._name}"] if self._name else [f"<{name}" for name in self._tags.closing]
        is_open = any(tag.startswith(tail) or (tail.startswith(tag) and tail[len(tag)].isspace()) for tag in tags)
        return at if is_open else len(self._text)

    def _emit(self, pieces: list[tuple[str, str]], end: int) -> None:
        """Hand out the text up to a place, without the blanks around the whole value."""
        piece = self._text[:end]
        blank = 0 if self._has_begun else len(piece) - len(piece.lstrip())
        value = piece[blank:].rstrip()
        if value:
            self._has_begun = True
            self._text = self._text[blank + len(value) :]
            if self._is_shown:
                pieces.append((self._name, value))
