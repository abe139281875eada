"""`XMLAdapter`: each field between tags, as in `<answer>...</answer>`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.buffer import Buffer, Unescaped, starts_line
from ferrule.adapters.json_object import JSONAdapter
from ferrule.adapters.render import (
    Shown,
    calls_output,
    read_verbatim,
    render_parts,
    render_text,
    write_verbatim,
)
from ferrule.encoding.mark import Mark
from ferrule.values.content.type import TEXTS
from ferrule.values.signatures.fields import without_none

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from ferrule.values.content.convert import Piece
    from ferrule.values.conversation.exchange import FieldReader
    from ferrule.values.signatures.signature import Signature

_JSON = JSONAdapter()
_PARTIAL_ESCAPE = re.compile(r"<(?:\\+(?:/\w*\s*)?)?\Z")


class XMLAdapter(Adapter):
    r"""Writes each field between tags. Only the tags are XML: text between them is not escaped, except its own end tag.

    A value never holds its own end tag: in text it becomes `<\/answer>`, and in JSON the slash of
    each `</` is escaped.
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        use_native_function_calling: bool | None = False,
        fallback: Adapter | None = _JSON,
        repairs: int = 1,
    ) -> None:
        super().__init__(
            use_native_function_calling=use_native_function_calling,
            fallback=fallback,
            repairs=repairs,
        )

    def structure(self, shown: Shown) -> str:
        """See `Adapter`."""
        fields = "\n".join(
            f"<{name}>\n{{{name}}}\n</{name}>" for name in (*shown.inputs, *shown.outputs)
        )
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
            if (text := render_text(name, value, _escape, _escape_json)) is not None:
                pieces.append(f"{between}<{name}>\n{text}\n</{name}>")
            else:
                pieces += (
                    f"{between}<{name}>\n",
                    *render_parts(name, value, _escape),
                    f"\n</{name}>",
                )
        return pieces

    def unescape(self, name: str, text: str) -> str:
        """See `Adapter`."""
        return read_verbatim(_end_tag(name).unescape(text) if f"/{name}" in text else text)

    def raw_fields(self, signature: type[Signature], text: str) -> Mapping[str, Any]:
        """See `Adapter`."""
        found = _tags(signature).split(text)
        return {
            name: _read_value(signature, name, value) if value.startswith("<") else value
            for name, value in found.items()
        }

    def outside(self, signature: type[Signature], text: str) -> str:
        """See `Adapter`."""
        return _tags(signature).outside(text)

    def reader(self, signature: type[Signature]) -> FieldReader:
        """See `Adapter`."""
        return Unescaped(
            TagReader(_tags(signature)),
            lambda name, text: _end_tag(name).unescape(text),
            _PARTIAL_ESCAPE,
        )


def _tags(signature: type[Signature]) -> Tags:
    return signature.kept(Tags, lambda: Tags(signature.plan.outputs))


def _read_value(signature: type[Signature], name: str, text: str) -> Any:
    if (
        without_none(signature.plan.outputs[name].annotation) in TEXTS
        or calls_output(signature) == name
    ):
        return text
    from ferrule.adapters.nested_tags import read_tags  # late: few answers need it

    return read_tags(signature.plan.output_schema(), name, text)


@lru_cache(maxsize=256)
def _end_tag(name: str) -> Mark:
    return Mark("<", rf"/{re.escape(name)}\s*>")


def _escape(name: str, text: str) -> str:
    return write_verbatim(text, _end_tag(name).escape(text) if f"/{name}" in text else text)


def _escape_json(name: str, json: str) -> str:
    if (
        "\\/" in json
    ):  # an escaped end tag in a string: without `<`, reading an answer leaves it unchanged
        json = re.sub(rf"<(?=\\+/{re.escape(name)}\s*>)", r"\\u003c", json)
    return json.replace("</", r"<\/")


class Tags:
    """The tags of a signature's output fields.

    The first opening tag of a field starts its value, and the last end tag of that name before the
    next field's tag ends it; other tags inside are text. Without an end tag, the value ends before
    the line of the next field's tag, or with the text. An opening tag after other words on its line
    may be a mention ("I put it in <answer> below"): the field starts again where its tag starts a
    line. If that line comes before the end tag, the mention had no end tag.
    """

    __slots__ = ("closing", "ending", "next_field", "next_own", "opening")

    def __init__(self, names: Collection[str]) -> None:
        known = "|".join(map(re.escape, names)) or r"(?!)"
        self.opening = re.compile(rf"<({known})(?:\s[^<>]*)?>")
        self.closing = {name: re.compile(rf"</{re.escape(name)}\s*>") for name in names}
        self.ending = {
            name: re.compile(rf"</{re.escape(name)}\s*>|<({known})(?:\s[^<>]*)?>") for name in names
        }
        """An end tag, or an opening tag that may replace a missing one."""
        self.next_field = re.compile(rf"^[ \t]*<(?:{known})(?:\s[^<>]*)?>", re.MULTILINE)
        self.next_own = {
            name: re.compile(rf"^[ \t]*<{re.escape(name)}(?:\s[^<>]*)?>", re.MULTILINE)
            for name in names
        }

    def split(self, text: str) -> dict[str, str]:
        """Return the text between each field's tags."""
        return {name: text[start:end].strip() for name, start, end in self.values(text, 0, {})}

    def values(self, text: str, at: int, opened: dict[str, bool]) -> Iterator[tuple[str, int, int]]:
        """Yield the name, start and end of each value after a position; a field that starts again is yielded twice.

        `opened` holds the fields seen so far, and whether their tag was more than a mention.
        """
        search = _Search(text)
        follows_end_tag = False
        while opening := search.first(self.opening, at):
            name, start = opening[1], opening.end()
            is_first_of_line = starts_line(text, opening.start())
            is_real = is_first_of_line or (
                follows_end_tag and not text[at : opening.start()].strip(" \t")
            )
            closing = search.first(self.closing[name], start)
            own = None if is_real else search.first(self.next_own[name], start)
            follows_end_tag = closing is not None and (own is None or closing.start() < own.start())
            if closing is not None and follows_end_tag:
                end, at = closing.span()
                following = search.first(self.opening, at)
                while (closing := search.first(self.closing[name], at)) and (
                    not following or closing.start() < following.start()
                ):
                    end, at = closing.span()
            else:
                following = search.first(self.next_field, start)
                at = end = following.start() if following else len(text)
            if _begins(opened, name, is_first_of_line=is_first_of_line, is_real=is_real):
                yield name, start, end

    def outside(self, text: str) -> str:
        """Return the text before the first field's tag."""
        opening = self.opening.search(text)
        return text[: opening.start()] if opening else text


def _begins(opened: dict[str, bool], name: str, *, is_first_of_line: bool, is_real: bool) -> bool:
    """Whether a tag starts a value. Adds the field to `opened`."""
    if name in opened and (opened[name] or not is_first_of_line):
        return False
    opened[name] = is_real
    return True


class _Search:
    """Finds the next match of several patterns, with one pass over the text for each pattern."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._latest: dict[re.Pattern[str], re.Match[str] | None] = {}
        """The latest match of each pattern."""

    def first(self, pattern: re.Pattern[str], at: int) -> re.Match[str] | None:
        """Return the first match after a position; positions never decrease."""
        found = self._latest.get(pattern)
        if pattern not in self._latest or (found is not None and found.start() < at):
            found = self._latest[pattern] = pattern.search(self._text, at)
        return found


class TagReader:
    """Splits a streamed answer as `Tags.split` splits a whole one. Never emits part of a field's tag.

    If a field's tag starts a line within a value, the value's end tag may be missing. The text from
    there is kept back until the end tag, or the end of the answer, decides.
    """

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self._buffer = Buffer()
        self._pending: list[str] = []
        """Text inside a possible tag, which does not decide it."""
        self._waits: Literal["", "opening", "closing"] = ""
        self._name = ""
        """The field whose value is parsed now, or an empty string."""
        self._opened: dict[str, bool] = {}
        self._is_emitted = self._is_real = False
        self._is_behind_end = False
        """Whether only blanks followed the last end tag."""
        self._doubtful: list[str] | None = None
        """The text after a tag that may have ended the value."""
        self._ended = ""
        """The field of the last end tag, if another end tag of it may still follow."""
        self._behind: list[str] = []
        """The text from that end tag on: part of the value if another end tag follows before the next field's tag."""

    def feed(self, text: str) -> list[tuple[str, str]]:
        """See `FieldReader`."""
        if self._changes_nothing(text):
            self._pending.append(text)
            return []
        pieces = self._read(text)
        self._buffer.discard_settled()
        return pieces

    def finish(self) -> list[tuple[str, str]]:
        """Return the text that was kept back, at the end of the answer."""
        pieces = self._read("")
        buffer = self._buffer
        if self._name and self._doubtful is None:
            self._emit(pieces, buffer.last(len(buffer.text)))
        elif self._name:
            rest = self._rest()
            pieces += [
                (name, value)
                for name, start, end in self._tags.values(rest, 1, self._opened)
                if (value := rest[start:end].strip())
            ]
        self._buffer, self._name, self._doubtful = Buffer(), "", None
        return pieces

    def _changes_nothing(self, text: str) -> bool:
        if self._waits == "opening":
            return "<" not in text and ">" not in text
        return self._waits == "closing" and not text.strip()

    def _read(self, text: str) -> list[tuple[str, str]]:
        self._buffer.text = "".join([self._buffer.text, *self._pending, text])
        self._pending.clear()
        pieces: list[tuple[str, str]] = []
        while self._read_to_end(pieces) if self._name else self._read_to_opening(pieces):
            pass
        return pieces

    def _read_to_opening(self, pieces: list[tuple[str, str]]) -> bool:
        """Parse up to and including the next opening tag; False if there is none."""
        buffer = self._buffer
        opening = self._tags.opening.search(buffer.text, buffer.at)
        if self._ended:
            self._read_on(pieces, opening)
        end = self._safe_end() if opening is None else opening.start()
        if buffer.text[buffer.at : end].strip(" \t"):
            self._is_behind_end = False
        if opening is None:
            if self._ended:
                self._behind.append(buffer.text[buffer.at : end])
            buffer.at = end
            return False
        is_first_of_line = starts_line(buffer.text, end)
        self._name, self._is_real = opening[1], is_first_of_line or self._is_behind_end
        self._is_emitted = _begins(
            self._opened,
            self._name,
            is_first_of_line=is_first_of_line,
            is_real=self._is_real,
        )
        self._is_behind_end, self._ended = False, ""
        buffer.open(opening.end())
        return True

    def _read_on(self, pieces: list[tuple[str, str]], opening: re.Match[str] | None) -> None:
        """Parse up to the last end tag before the next opening tag: the value extends that far."""
        buffer = self._buffer
        stop = len(buffer.text) if opening is None else opening.start()
        for closing in self._tags.closing[self._ended].finditer(buffer.text, buffer.at, stop):
            at, end = closing.span()
            value = buffer.add("".join([*self._behind, buffer.text[buffer.at : at]]))
            if value and self._is_emitted:
                pieces.append((self._ended, value))
            buffer.at, self._behind, self._is_behind_end = end, [closing[0]], True

    def _read_to_end(self, pieces: list[tuple[str, str]]) -> bool:
        """Parse the value up to the next tag that may end it; False if there is none."""
        buffer = self._buffer
        found = self._tags.ending[self._name].search(buffer.text, buffer.at)
        if found is None:
            self._emit_or_keep(pieces, self._safe_end())
            return False
        at, end = found.span()
        if found[1] is None:
            self._close(pieces, at, end)
            return True
        if starts_line(buffer.text, at):
            self._emit_or_keep(pieces, at)
            self._doubtful = [] if self._doubtful is None else self._doubtful
            if found[1] == self._name and not self._is_real:
                buffer.text, self._name, self._doubtful = self._rest(), "", None
                buffer.open(1)
                return True
        self._emit_or_keep(pieces, end)
        return True

    def _close(self, pieces: list[tuple[str, str]], at: int, end: int) -> None:
        """End the value at its end tag; doubtful text is part of it."""
        buffer = self._buffer
        if self._doubtful is not None:
            before = "".join([*self._doubtful, buffer.text[buffer.at : at]])
            buffer.text, buffer.at = before + buffer.text[at:], 0
            at, end = len(before), len(before) + end - at
        self._emit(pieces, buffer.take(at))
        self._ended, self._behind = self._name, [buffer.text[at:end]]
        buffer.at, self._name, self._doubtful, self._is_behind_end = end, "", None, True

    def _rest(self) -> str:
        """The text from the tag that ended the value, with the line feed before it."""
        return "".join(["\n", *(self._doubtful or ()), self._buffer.text[self._buffer.at :]])

    def _emit_or_keep(self, pieces: list[tuple[str, str]], end: int) -> None:
        buffer = self._buffer
        if self._doubtful is None:
            self._emit(pieces, buffer.take(end))
        else:
            self._doubtful.append(buffer.text[buffer.at : end])
            buffer.at = end

    def _emit(self, pieces: list[tuple[str, str]], value: str) -> None:
        if value and self._is_emitted:
            pieces.append((self._name, value))

    def _safe_end(self) -> int:
        """The position up to which the text cannot become part of a tag."""
        text = self._buffer.text
        self._waits = ""
        at = text.rfind("<", self._buffer.at)
        if at < 0:
            return len(text)
        tail = text[at:]
        name = self._name or self._ended
        closing = f"</{name}"
        if name and (
            closing.startswith(tail)
            or (tail.startswith(closing) and not tail[len(closing) :].strip())
        ):
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
