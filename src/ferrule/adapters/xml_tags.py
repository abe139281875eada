"""`XMLAdapter`: each field between tags, as in `<answer>...</answer>`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, cast
from xml.etree import ElementTree

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.fields import calls_output
from ferrule.adapters.json_object import JSONAdapter
from ferrule.adapters.render import read_verbatim
from ferrule.adapters.streaming import Buffer, Unescaped, starts_line
from ferrule.adapters.tags import end_tag, render_tags
from ferrule.errors import checks_keywords
from ferrule.schema.nodes import is_object, members
from ferrule.values.content.type import TEXTS
from ferrule.values.signatures.fields import without_none

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from xml.etree.ElementTree import Element

    from ferrule.adapters.fields import PromptFields
    from ferrule.values.content.convert import Piece
    from ferrule.values.conversation.exchange import FieldReader
    from ferrule.values.signatures.signature import Signature

_JSON = JSONAdapter()
_PARTIAL_ESCAPE = re.compile(r"<(?:\\+(?:/\w*\s*)?)?\Z")


class XMLAdapter(Adapter):
    r"""Writes each field between tags.

    Only the tags are XML: text between them is not escaped, except its own end tag. A value never
    holds its own end tag: in text it becomes `<\/answer>`, and in JSON the slash of each `</` is
    escaped.
    """

    writes_native_text = True

    __slots__ = ()

    @checks_keywords
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

    def structure(self, fields: PromptFields) -> str:
        """See `Adapter`."""
        form = (
            "Messages have the form below: each field stands between tags of its name, text as it "
            "is without any escaping, everything else as JSON."
        )
        names = (*fields.inputs, *fields.outputs)
        example = "\n".join(f"<{name}>\n{{{name}}}\n</{name}>" for name in names)
        return f"{form}\n\n{example}"

    def reminder(self, outputs: Sequence[str]) -> str:
        """See `Adapter`."""
        if not outputs:
            return ""
        tags = ", then ".join(f"`<{name}>`" for name in outputs)
        return f"Answer with {tags}, each closed by its end tag."

    def render_fields(self, fields: Mapping[str, Any]) -> list[Piece]:
        """See `Adapter`."""
        return render_tags(fields)

    def unescape(self, name: str, text: str) -> str:
        """See `Adapter`."""
        return read_verbatim(end_tag(name).unescape(text))

    def raw_fields(self, signature: type[Signature], text: str) -> Mapping[str, Any]:
        """See `Adapter`."""
        values = _tags(signature).split(text)
        return {
            name: _read_nested(signature, name, value) if value.startswith("<") else value
            for name, value in values.items()
        }

    def outside(self, signature: type[Signature], text: str) -> str:
        """See `Adapter`."""
        return _tags(signature).outside(text)

    def reader(self, signature: type[Signature]) -> FieldReader:
        """See `Adapter`."""
        return Unescaped(
            TagReader(_tags(signature)),
            lambda name, text: end_tag(name).unescape(text),
            _PARTIAL_ESCAPE,
        )


def _tags(signature: type[Signature]) -> Tags:
    return signature.cached_value(Tags, lambda: Tags(signature.plan.outputs))


# -- values as nested tags

_BARE_AMPERSAND = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#\d+|#x[0-9a-fA-F]+);)")
_MOST_LEVELS = 32


class _UnreadableError(ValueError):
    """The tags do not determine a value."""


def _read_nested(signature: type[Signature], name: str, text: str) -> Any:
    """Read a value that may be written as nested tags where JSON was asked for.

    Models write `<name>K2</name><height>8611</height>` for an object. Returns the object or array,
    or the text if its tags are not well-formed or do not fit the output's schema. Texts inside it
    stay strings: the check of the output turns them into numbers.
    """
    is_text = without_none(signature.plan.outputs[name].annotation) in TEXTS
    if is_text or calls_output(signature) == name:
        return text
    if "<!--" in text or "<?" in text:
        return text  # the parser would drop it
    whole = dict(signature.plan.output_schema())
    try:
        # No entity can be declared inside an element, so a text cannot make the parser expand one.
        root = ElementTree.fromstring(f"<v>{_BARE_AMPERSAND.sub('&amp;', text)}</v>")  # noqa: S314
        return _value_of(whole, members(whole, "properties")[name], root, _MOST_LEVELS)
    except (ElementTree.ParseError, _UnreadableError, UnicodeEncodeError):
        # The last: a lone surrogate, which XML cannot hold.
        return text


def _value_of(whole: dict[str, Any], schema: Any, node: Element, levels: int) -> Any:
    schema = _resolved(whole, schema)
    kind = schema.get("type")
    children = list(node)
    text = node.text or ""
    has_text = bool("".join([text, *(child.tail or "" for child in children)]).strip())
    if not levels or node.attrib or (children and has_text):
        raise _UnreadableError
    if kind == "array":
        tags = {child.tag for child in children}
        if len(tags) > 1 or (not children and has_text):
            raise _UnreadableError
        items = schema.get("items", {})
        return [_value_of(whole, items, child, levels - 1) for child in children]
    if not children and kind != "object":
        return text.strip()
    is_union = kind is None and "anyOf" in schema
    if kind not in {None, "object"} or is_union or (not children and has_text):
        raise _UnreadableError
    nodes: dict[str, list[Element]] = {}
    for child in children:
        nodes.setdefault(child.tag, []).append(child)
    return {
        tag: _property_value(whole, _property_schema(schema, tag), same_tag, levels - 1)
        for tag, same_tag in nodes.items()
    }


def _property_value(whole: dict[str, Any], schema: Any, nodes: list[Element], levels: int) -> Any:
    """The value of a property: one tag, or one for each item of an array."""
    schema = _resolved(whole, schema)
    is_repeated = len(nodes) > 1
    if schema.get("type") == "array" and (is_repeated or not len(nodes[0])):
        if not is_repeated and not (nodes[0].text or "").strip():
            return []
        items = schema.get("items", {})
        return [_value_of(whole, items, node, levels) for node in nodes]
    if is_repeated and schema.get("type") is not None:
        raise _UnreadableError
    if not is_repeated:
        return _value_of(whole, schema, nodes[0], levels)
    return [_value_of(whole, schema, node, levels) for node in nodes]


def _property_schema(schema: dict[str, Any], name: str) -> Any:
    properties = members(schema, "properties")
    if name in properties:
        return properties[name]
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        return cast("dict[str, Any]", more)
    return {}


def _resolved(whole: dict[str, Any], schema: Any) -> dict[str, Any]:
    """The schema that a reference leads to, or the only alternative to `null`."""
    for _ in range(_MOST_LEVELS):
        if not is_object(schema):
            return {}
        choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
        if "$ref" in schema:
            schema = members(whole, "$defs").get(schema["$ref"].removeprefix("#/$defs/"), {})
        elif len(choices) == 1:
            schema = choices[0]
        else:
            return schema
    return {}


# -- splitting an answer


class Tags:
    """The tags of a signature's output fields.

    The first opening tag of a field starts its value, and the last end tag of that name before the
    next field's tag ends it; other tags inside are text. Without an end tag, the value ends before
    the line of the next field's tag, or with the text. An opening tag after other words on its line
    may be a mention ("I put it in <answer> below"): the field starts again where its tag starts a
    line. If that line comes before the end tag, the mention had no end tag.
    """

    __slots__ = ("closing", "ending", "next_field", "next_same", "opening")

    def __init__(self, names: Collection[str]) -> None:
        known = "|".join(map(re.escape, names)) or r"(?!)"
        self.opening = re.compile(rf"<({known})(?:\s[^<>]*)?>")
        self.closing = {name: re.compile(rf"</{re.escape(name)}\s*>") for name in names}
        self.ending = {
            name: re.compile(rf"</{re.escape(name)}\s*>|<({known})(?:\s[^<>]*)?>") for name in names
        }
        """An end tag, or an opening tag that may replace a missing one."""
        self.next_field = re.compile(rf"^[ \t]*<(?:{known})(?:\s[^<>]*)?>", re.MULTILINE)
        self.next_same = {
            name: re.compile(rf"^[ \t]*<{re.escape(name)}(?:\s[^<>]*)?>", re.MULTILINE)
            for name in names
        }

    def split(self, text: str) -> dict[str, str]:
        """Return the text between each field's tags."""
        return {name: text[start:end].strip() for name, start, end in self.values(text, 0, {})}

    def values(
        self, text: str, offset: int, opened: dict[str, bool]
    ) -> Iterator[tuple[str, int, int]]:
        """Yield the name, start and end of each value after an offset.

        A field that starts again is yielded twice. `opened` holds the fields seen so far, and
        whether their tag was more than a mention.
        """
        search = _Search(text)
        follows_end_tag = False
        while opening := search.first(self.opening, offset):
            name, start = opening[1], opening.end()
            is_first_of_line = starts_line(text, opening.start())
            has_text_before = bool(text[offset : opening.start()].strip(" \t"))
            is_real = is_first_of_line or (follows_end_tag and not has_text_before)
            closing = search.first(self.closing[name], start)
            if is_real:
                restart = None
            else:
                restart = search.first(self.next_same[name], start)
            if closing is not None and restart is not None and restart.start() <= closing.start():
                closing = None
            follows_end_tag = closing is not None
            if closing is not None:
                end, offset = self._last_closing(search, name, closing)
            else:
                following = search.first(self.next_field, start)
                offset = end = following.start() if following else len(text)
            if _begins(opened, name, is_first_of_line=is_first_of_line, is_real=is_real):
                yield name, start, end

    def _last_closing(self, search: _Search, name: str, closing: re.Match[str]) -> tuple[int, int]:
        """The span of the last end tag of a field before the next opening tag."""
        span = closing.span()
        following = search.first(self.opening, closing.end())
        while another := search.first(self.closing[name], span[1]):
            if following and following.start() <= another.start():
                break
            span = another.span()
        return span

    def outside(self, text: str) -> str:
        """Return the text before the first field's tag."""
        opening = self.opening.search(text)
        if opening is None:
            return text
        return text[: opening.start()]


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

    def first(self, pattern: re.Pattern[str], offset: int) -> re.Match[str] | None:
        """Return the first match after an offset; offsets never decrease."""
        match = self._latest.get(pattern)
        if pattern not in self._latest or (match is not None and match.start() < offset):
            match = self._latest[pattern] = pattern.search(self._text, offset)
        return match


class TagReader:
    """Splits a streamed answer as `Tags.split` splits a whole one.

    It never emits a part of a field's tag.
    If a field's tag starts a line within a value, the value's end tag may be missing. The text from
    there is kept back until the end tag, or the end of the answer, decides.
    """

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self._buffer = Buffer()
        self._pending: list[str] = []
        """Text inside a possible tag, which does not decide it."""
        self._waits: Literal["", "opening", "closing"] = ""
        """The kind of tag that may have begun at the end of the text."""
        self._name = ""
        """The field whose value is parsed now, or an empty string."""
        self._opened: dict[str, bool] = {}
        """The fields seen so far, and whether their tag was more than a mention."""
        self._is_emitted = False
        """Whether the current value is emitted: a field's second value is not."""
        self._is_real = False
        """Whether the tag of the current value is more than a mention."""
        self._is_behind_end = False
        """Whether only blanks followed the last end tag."""
        self._doubtful: list[str] | None = None
        """The text after a tag that may have ended the value."""
        self._ended = ""
        """The field of the last end tag, if another end tag of it may still follow."""
        self._behind: list[str] = []
        """The text from that end tag on.

        It is part of the value if another end tag follows before the next field's tag.
        """

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
            for name, start, end in self._tags.values(rest, 1, self._opened):
                value = rest[start:end].strip()
                if value:
                    pieces.append((name, value))
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
        while self._read_to_tag(pieces):
            pass
        return pieces

    def _read_to_tag(self, pieces: list[tuple[str, str]]) -> bool:
        if self._name:
            return self._read_to_end(pieces)
        return self._read_to_opening(pieces)

    def _read_to_opening(self, pieces: list[tuple[str, str]]) -> bool:
        """Parse up to and including the next opening tag; False if there is none."""
        buffer = self._buffer
        opening = self._tags.opening.search(buffer.text, buffer.offset)
        if self._ended:
            self._read_on(pieces, opening)
        if opening is None:
            end = self._safe_end()
        else:
            end = opening.start()
        if buffer.text[buffer.offset : end].strip(" \t"):
            self._is_behind_end = False
        if opening is None:
            if self._ended:
                self._behind.append(buffer.text[buffer.offset : end])
            buffer.offset = end
            return False
        is_first_of_line = starts_line(buffer.text, end)
        self._name = opening[1]
        self._is_real = is_first_of_line or self._is_behind_end
        self._is_emitted = _begins(
            self._opened, self._name, is_first_of_line=is_first_of_line, is_real=self._is_real
        )
        self._is_behind_end, self._ended = False, ""
        buffer.open(opening.end())
        return True

    def _read_on(self, pieces: list[tuple[str, str]], opening: re.Match[str] | None) -> None:
        """Parse up to the last end tag before the next opening tag: the value extends that far."""
        buffer = self._buffer
        if opening is None:
            stop = len(buffer.text)
        else:
            stop = opening.start()
        for closing in self._tags.closing[self._ended].finditer(buffer.text, buffer.offset, stop):
            start, end = closing.span()
            value = buffer.add("".join([*self._behind, buffer.text[buffer.offset : start]]))
            if value and self._is_emitted:
                pieces.append((self._ended, value))
            buffer.offset = end
            self._behind = [closing[0]]
            self._is_behind_end = True

    def _read_to_end(self, pieces: list[tuple[str, str]]) -> bool:
        """Parse the value up to the next tag that may end it; False if there is none."""
        buffer = self._buffer
        tag = self._tags.ending[self._name].search(buffer.text, buffer.offset)
        if tag is None:
            self._emit_or_keep(pieces, self._safe_end())
            return False
        start, end = tag.span()
        opened_name = tag[1]
        if opened_name is None:
            self._close(pieces, start, end)
            return True
        if starts_line(buffer.text, start):
            self._emit_or_keep(pieces, start)
            if self._doubtful is None:
                self._doubtful = []
            if opened_name == self._name and not self._is_real:
                # The first tag was a mention, and the field starts here.
                buffer.text, self._name, self._doubtful = self._rest(), "", None
                buffer.open(1)
                return True
        self._emit_or_keep(pieces, end)
        return True

    def _close(self, pieces: list[tuple[str, str]], start: int, end: int) -> None:
        """End the value at its end tag; doubtful text is part of it."""
        buffer = self._buffer
        if self._doubtful is not None:
            before = "".join([*self._doubtful, buffer.text[buffer.offset : start]])
            buffer.text, buffer.offset = before + buffer.text[start:], 0
            start, end = len(before), len(before) + end - start
        self._emit(pieces, buffer.take(start))
        self._ended, self._behind = self._name, [buffer.text[start:end]]
        buffer.offset = end
        self._name, self._doubtful, self._is_behind_end = "", None, True

    def _rest(self) -> str:
        """The text from the tag that ended the value, with the line feed before it."""
        buffer = self._buffer
        return "".join(["\n", *(self._doubtful or ()), buffer.text[buffer.offset :]])

    def _emit_or_keep(self, pieces: list[tuple[str, str]], end: int) -> None:
        buffer = self._buffer
        if self._doubtful is None:
            self._emit(pieces, buffer.take(end))
        else:
            self._doubtful.append(buffer.text[buffer.offset : end])
            buffer.offset = end

    def _emit(self, pieces: list[tuple[str, str]], value: str) -> None:
        if value and self._is_emitted:
            pieces.append((self._name, value))

    def _safe_end(self) -> int:
        """The offset up to which the text cannot become part of a tag."""
        text = self._buffer.text
        self._waits = ""
        start = text.rfind("<", self._buffer.offset)
        if start < 0:
            return len(text)
        tail = text[start:]
        name = self._name or self._ended
        if name and _may_close(tail, name):
            self._waits = "closing" if tail[-1].isspace() else ""
            return start
        if self._name and not starts_line(text, start):
            return len(text)
        for name in self._tags.closing:
            opening = f"<{name}"
            if opening.startswith(tail):
                return start
            if tail.startswith(opening) and tail[len(opening)].isspace():
                self._waits = "opening"
                return start
        return len(text)


def _may_close(tail: str, name: str) -> bool:
    """Whether the end of a text may be the beginning of a field's end tag."""
    closing = f"</{name}"
    if closing.startswith(tail):
        return True
    return tail.startswith(closing) and not tail[len(closing) :].strip()
