"""`XMLAdapter`: each field between tags, `<answer>...</answer>`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.json_object import JSONAdapter
from ferrule.adapters.render import Shown, unmarked_text, value_pieces
from ferrule.adapters.streaming.buffer import Held, starts_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ferrule.values.content.convert import Piece
    from ferrule.values.conversation.exchange import FieldReader
    from ferrule.values.signatures.signature import Signature

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
    end tag was forgotten, the value ends with the line before the next field's tag, or with the text. An opening tag behind other words of
    its line may only be spoken of: the field begins anew where its tag starts a line, and if that comes before the end tag, the tag spoken
    of counts as one whose end tag was forgotten.
    """

    __slots__ = ("closing", "ending", "next_field", "next_own", "opening")

    def __init__(self, names: Iterable[str]) -> None:
        names = tuple(names)
        known = "|".join(map(re.escape, names)) or r"(?!)"
        self.opening = re.compile(rf"<({known})(?:\s[^<>]*)?>")
        self.closing = {name: re.compile(rf"</{re.escape(name)}\s*>") for name in names}
        self.ending = {name: re.compile(rf"</{re.escape(name)}\s*>|<({known})(?:\s[^<>]*)?>") for name in names}
        """An end tag, or an opening tag that may stand for one."""
        self.next_field = re.compile(rf"^[ \t]*<(?:{known})(?:\s[^<>]*)?>", re.MULTILINE)
        self.next_own = {name: re.compile(rf"^[ \t]*<{re.escape(name)}(?:\s[^<>]*)?>", re.MULTILINE) for name in names}

    def split(self, text: str) -> dict[str, str]:
        """The text between each field's tags."""
        return {name: text[start:end].strip() for name, start, end in self.values(text, 0, {})}

    def values(self, text: str, at: int, opened: dict[str, bool]) -> Iterator[tuple[str, int, int]]:
        """Name, beginning and end of each value from a place on, more than once of fields begun anew.

        `opened` are the fields seen, and whether their tag was more than spoken of.
        """
        search = _Search(text)
        is_behind_end = False
        while opening := self.opening.search(text, at):
            name, start = opening[1], opening.end()
            is_first_of_line = starts_line(text, opening.start())
            is_meant = is_first_of_line or (is_behind_end and not text[at : opening.start()].strip(" \t"))
            closing = search.first(self.closing[name], start)
            own = None if is_meant else search.first(self.next_own[name], start)
            is_behind_end = closing is not None and (own is None or closing.start() < own.start())
            if closing is not None and is_behind_end:
                end, at = closing.span()
            else:
                following = search.first(self.next_field, start)
                at = end = following.start() if following else len(text)
            if _begins(opened, name, is_first_of_line=is_first_of_line, is_meant=is_meant):
                yield name, start, end

    def outside(self, text: str) -> str:
        """What stands before the first field's tag."""
        opening = self.opening.search(text)
        return text[: opening.start()] if opening else text


def _begins(opened: dict[str, bool], name: str, *, is_first_of_line: bool, is_meant: bool) -> bool:
    """Whether a value begins with a tag; notes it among those seen."""
    if name in opened and (opened[name] or not is_first_of_line):
        return False
    opened[name] = is_meant
    return True


class _Search:
    """Finds the next match of several patterns, going through the text once for each."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: dict[re.Pattern[str], re.Match[str] | None] = {}

    def first(self, pattern: re.Pattern[str], at: int) -> re.Match[str] | None:
        """The first match from a place on; places only ever grow."""
        found = self._found.get(pattern)
        if pattern not in self._found or (found is not None and found.start() < at):
            found = self._found[pattern] = pattern.search(self._text, at)
        return found


class TagReader:
    """Splits a streamed answer as `Tags.split` splits a whole one, and never hands out a piece of a field's tags.

    Where a field's tag starts a line within a value, it is in doubt whether the value's end tag was forgotten: what follows is kept until
    that end tag comes, or the end of the answer.
    """

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self._held = Held()
        self._later: list[str] = []
        """Text within what may become a tag: it decides nothing."""
        self._waits: Literal["", "opening", "closing"] = ""
        self._name = ""
        """The field whose value is being read."""
        self._opened: dict[str, bool] = {}
        self._is_shown = self._is_meant = False
        self._is_behind_end = False
        """Whether nothing but blanks came since an end tag."""
        self._doubtful: list[str] | None = None
        """What came since the tag that may have ended the value."""

    def feed(self, text: str) -> list[tuple[str, str]]:
        """See `FieldReader`."""
        if self._decides_nothing(text):
            self._later.append(text)
            return []
        pieces = self._read(text)
        self._held.let_go()
        return pieces

    def finish(self) -> list[tuple[str, str]]:
        """What was held back, once no more text comes."""
        pieces = self._read("")
        held = self._held
        if self._name and self._doubtful is None:
            self._tell(pieces, held.last(len(held.text)))
        elif self._name:
            rest = self._rest()
            values = self._tags.values(rest, 1, self._opened)
            pieces += [(name, value) for name, start, end in values if (value := rest[start:end].strip())]
        self._held, self._name, self._doubtful = Held(), "", None
        return pieces

    def _decides_nothing(self, text: str) -> bool:
        if self._waits == "opening":
            return "<" not in text and ">" not in text
        return self._waits == "closing" and not text.strip()

    def _read(self, text: str) -> list[tuple[str, str]]:
        self._held.text = "".join([self._held.text, *self._later, text])
        self._later.clear()
        pieces: list[tuple[str, str]] = []
        while self._to_end(pieces) if self._name else self._to_opening():
            pass
        return pieces

    def _to_opening(self) -> bool:
        """Settle the text up to and with the next opening tag; False where there is none."""
        held = self._held
        opening = self._tags.opening.search(held.text, held.at)
        end = self._certain() if opening is None else opening.start()
        if held.text[held.at : end].strip(" \t"):
            self._is_behind_end = False
        if opening is None:
            held.at = end
            return False
        is_first_of_line = starts_line(held.text, end)
        self._name, self._is_meant = opening[1], is_first_of_line or self._is_behind_end
        self._is_shown = _begins(self._opened, self._name, is_first_of_line=is_first_of_line, is_meant=self._is_meant)
        self._is_behind_end = False
        held.open(opening.end())
        return True

    def _to_end(self, pieces: list[tuple[str, str]]) -> bool:
        """Settle the value up to the next tag that may end it; False where there is none."""
        held = self._held
        found = self._tags.ending[self._name].search(held.text, held.at)
        if found is None:
            self._settle(pieces, self._certain())
            return False
        at, end = found.span()
        if found[1] is None:
            self._close(pieces, at, end)
            return True
        if starts_line(held.text, at):
            self._settle(pieces, at)
            if self._doubtful is None:
                self._doubtful = []
            if found[1] == self._name and not self._is_meant:
                held.text, self._name, self._doubtful = self._rest(), "", None
                held.open(1)
                return True
        self._settle(pieces, end)
        return True

    def _close(self, pieces: list[tuple[str, str]], at: int, end: int) -> None:
        """The value ends with its end tag: what was doubtful is part of it."""
        held = self._held
        if self._doubtful is not None:
            before = "".join([*self._doubtful, held.text[held.at : at]])
            held.text, held.at = before + held.text[at:], 0
            at, end = len(before), len(before) + end - at
        self._tell(pieces, held.last(at))
        held.open(end)
        self._name, self._doubtful, self._is_behind_end = "", None, True

    def _rest(self) -> str:
        """The text from the tag on that ended the value, below the line that it ends with."""
        return "".join(["\n", *(self._doubtful or ()), self._held.text[self._held.at :]])

    def _settle(self, pieces: list[tuple[str, str]], end: int) -> None:
        held = self._held
        if self._doubtful is None:
            self._tell(pieces, held.take(end))
        else:
            self._doubtful.append(held.text[held.at : end])
            held.at = end

    def _tell(self, pieces: list[tuple[str, str]], value: str) -> None:
        if value and self._is_shown:
            pieces.append((self._name, value))

    def _certain(self) -> int:
        """Up to where the text can no longer turn into a tag that counts."""
        text = self._held.text
        self._waits = ""
        at = text.rfind("<", self._held.at)
        if at < 0:
            return len(text)
        tail = text[at:]
        closing = f"</{self._name}"
        if self._name and (closing.startswith(tail) or (tail.startswith(closing) and not tail[len(closing) :].strip())):
            self._waits = "closing" if tail[-1].isspace() else ""
            return at
        if self._name and not starts_line(text, at):
            return len(text)
        for name in self._tags.closing:
            opening = f"<{name}"
            if opening.startswith(tail):
                return at
            if tail.startswith(opening) and tail[len(opening)].isspace():
                self._waits = "opening"
                return at
        return len(text)
