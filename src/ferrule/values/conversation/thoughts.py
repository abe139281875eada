"""Separate the thoughts that a model writes into its text, as in `<think>...</think>`, from the answer, whole or streamed.

Servers without a parser for a model's reasoning send it in the text: at the start of the answer,
between tags of `_KINDS`. The chat templates of DeepSeek and Qwen put the opening tag into the
prompt, so that the answer holds only the closing one.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ferrule.values.conversation.exchange import Request, Response

_START, _ANALYSIS, _FINAL, _END = (
    "<|start|>assistant",
    "<|channel|>analysis<|message|>",
    "<|channel|>final<|message|>",
    "<|end|>",
)
"""The channels of gpt-oss. Format: OpenAI's "Harmony response format"."""
_KINDS: dict[str, str] = {
    **{f"<{name}>": f"</{name}>" for name in ("think", "thinking", "thought", "reasoning")},
    "[think]": "[/think]",
    "◁think▷": "◁/think▷",
    _ANALYSIS: _END,
    _START + _ANALYSIS: _END,
}
"""Each opening tag with its closing one, in lower case."""
_NOTHING = frozenset({_START, _FINAL, _START + _FINAL})
"""Marks before the answer itself."""
_CLOSING = frozenset(_KINDS.values()) - {_END}
_TAGS = tuple(sorted({*_KINDS, *_CLOSING, *_NOTHING, _END}, key=len, reverse=True))
_BEGINNINGS = frozenset(tag[:end] for tag in _TAGS for end in range(1, len(tag)))
_LONGEST = max(map(len, _TAGS))
_FIRST = frozenset(tag[0] for tag in _TAGS)
_NO_PROSE = frozenset("{[<`")
"""The first characters of an answer in a form: a JSON object, a field's marker, a tag, a fence."""
_NO_THOUGHTS = _NO_PROSE | _FIRST
"""These and the first characters of tags. An answer that begins with one of them, but not with a tag, holds no thoughts."""
_OPENING_QUOTES, _CLOSING_QUOTES = frozenset("`\"'([{“«"), frozenset("`\"')]}.,;:!?”»")
_ENDS_OF_SENTENCES = frozenset(".!?:;…)]}\"'`*。")

Kind = Literal["text", "thought", "closed"]
"""`closed`: all the text so far was thoughts, whose opening tag is not part of the answer."""


@cache
def _tag() -> re.Pattern[str]:
    """Any tag. Compiled on first use: most answers have none."""
    return re.compile("|".join(map(re.escape, _TAGS)), re.IGNORECASE)


def split_thoughts(response: Response, request: Request | None = None) -> Response:
    """Move the thoughts at the start of a response's text into its reasoning. A response without any, or split before, is unchanged.

    `request` is the request that it answers: a tag that is a field of the answer's form is not a
    thought.
    """
    text = response.text or ""
    head = text.lstrip()  # no copy if the text does not begin with a blank
    if head[:2].lower() in _BEGINNINGS:
        if _tag().match(head) is None:
            return response
    elif head[:1] in _NO_THOUGHTS or not ("</" in text or "[/" in text or "◁/" in text):
        return response
    splitter = ThoughtSplitter(request, follows_reasoning=bool(response.reasoning))
    parts: dict[Kind, list[str]] = {"thought": [], "text": []}
    for kind, piece in (*splitter.feed(text), *splitter.finish()):
        if kind == "closed":
            parts = {"thought": ["".join(parts["text"]).strip()], "text": []}
        else:
            parts[kind].append(piece)
    if not splitter.has_split:
        return response
    reasoning = (response.reasoning or "") + "".join(parts["thought"])
    return replace(response, text="".join(parts["text"]) or None, reasoning=reasoning or None)


class ThoughtSplitter:
    """Separates thoughts from text in a streamed answer. The joined result does not depend on how the stream is cut into pieces.

    A block of thoughts ends at its closing tag or with the answer; blanks around it are dropped.
    Another block may follow. Without an opening tag, a closing tag ends thoughts if the answer
    begins with prose, if no opening tag comes before it, and if it is outside code and not
    mentioned in a sentence.
    """

    def __init__(
        self,
        request: Request | None = None,
        *,
        unopened: bool = True,
        follows_reasoning: bool = False,
    ) -> None:
        self.has_split = False
        """Whether a thought or a tag was found."""
        self._request = request
        self._unopened = unopened
        self._is_gap_due = self._follows_reasoning = follows_reasoning
        self._text: str = ""
        """Buffered text that may still become part of a tag."""
        self._lead: list[str] = []
        """The blanks before that text, while there is nothing else."""
        self._state: Literal["head", "thought", "prose", "text"] = "head"
        self._closing = ""
        self._blanks: list[str] = []
        """The blanks after the thoughts so far, which belong to them if more follow."""
        self._has_begun = False
        self._prose = _Prose()

    def follow_reasoning(self) -> None:
        """Note that the provider itself sent reasoning: the answer then has no thoughts without an opening tag."""
        self._is_gap_due = self._follows_reasoning = True
        if self._state == "prose":
            self._state = "text"

    def feed(self, text: str) -> list[tuple[Kind, str]]:
        """Take the next piece of the text. Returns the pieces that are certain by now."""
        if self._state == "text" and not self._text:
            return [("text", text)]
        if self._lead and text.isspace():
            self._lead.append(text)
            return []
        self._text = "".join((*self._lead, self._text, text))
        self._lead.clear()
        return list(self._read(is_last=False))

    def finish(self) -> list[tuple[Kind, str]]:
        """End the text, or its part before a call. Returns the buffered pieces."""
        if not self._text and not self._lead:
            return []
        self._text = "".join((*self._lead, self._text))
        self._lead.clear()
        return list(self._read(is_last=True))

    def _read(self, *, is_last: bool) -> Iterator[tuple[Kind, str]]:
        state = None
        while state != self._state:  # each state reads until it cannot go on
            state = self._state
            if state == "head":
                yield from self._read_head(is_last=is_last)
            elif state == "thought":
                yield from self._read_thought(is_last=is_last)
            elif state == "prose":
                yield from self._read_prose(is_last=is_last)
        if self._state == "text" and self._text:
            text, self._text = self._text, ""
            yield "text", text

    def _read_head(self, *, is_last: bool) -> Iterator[tuple[Kind, str]]:
        while True:
            rest = self._text.lstrip()
            tag = _tag().match(rest)
            if not is_last and not rest:
                self._lead, self._text = [self._text] if self._text else [], ""
                return
            if not is_last and rest.lower() in _BEGINNINGS:
                return
            mark = tag[0].lower() if tag else ""
            if mark in _KINDS and not self._is_field(mark):
                self._text, self._closing, self._state = rest[len(mark) :], _KINDS[mark], "thought"
                self.has_split, self._has_begun = True, False
                return
            is_empty_block = mark in _CLOSING and not self.has_split and not self._follows_reasoning
            if mark not in _NOTHING and not is_empty_block:
                break
            self._text, self.has_split = rest[len(mark) :], True
        if self.has_split:
            self._text = rest
        is_prose = (
            rest[:1] not in _NO_PROSE
            and self._unopened
            and not self.has_split
            and not self._follows_reasoning
        )
        self._state = "prose" if is_prose else "text"
        yield from ()

    def _is_field(self, tag: str) -> bool:
        """Whether the tag is a field of the answer's form, as `<reasoning>` if an adapter writes fields as tags."""
        form = self._request.form if self._request is not None else None
        name = tag[1:-1]
        fields = form.schema.get("properties", ()) if form is not None else ()
        return form is not None and name in fields and tag in form.write(dict.fromkeys(fields, ""))

    def _read_thought(self, *, is_last: bool) -> Iterator[tuple[Kind, str]]:
        text, at, end = self._text, 0, len(self._text)
        while found := _tag().search(text, at):
            at = found.end()
            if found[0].lower() == self._closing:
                is_quoted = text[found.start() - 1 : found.start()] == "`"
                if is_quoted and at == len(text) and not is_last:
                    end = found.start() - 1
                    break
                if is_quoted and text[at : at + 1] == "`":
                    continue
                yield from self._thought(text[: found.start()])
                self._text, self._state = text[at:], "head"
                self._blanks.clear()
                return
        else:
            end = len(text) if is_last else max(at, _safe_end(text, behind="`"))
        self._text = text[end:]
        yield from self._thought(text[:end])

    def _thought(self, text: str) -> Iterator[tuple[Kind, str]]:
        bare = text.rstrip()
        if bare:
            self._blanks.append(bare)
            whole = "".join(self._blanks)
            whole = whole if self._has_begun else whole.lstrip()
            gap = "\n\n" if self._is_gap_due and not self._has_begun else ""
            self._has_begun = self._is_gap_due = True
            self._blanks.clear()
            yield "thought", gap + whole
        self._blanks.append(text[len(bare) :])

    def _read_prose(self, *, is_last: bool) -> Iterator[tuple[Kind, str]]:
        text, done, at = self._text, 0, 0
        end = len(text) if is_last else _safe_end(text)
        while found := _tag().search(text, at):
            start, at = found.span()
            if at == len(text) and not is_last:
                end = start  # the character after it shows whether it is a mention
                break
            self._prose.read(text[done:start])
            done = start
            mark = found[0].lower()
            if mark in _KINDS and not self._prose.is_in_code:
                self._state = "text"  # a block in the middle stays text, with its closing tag
                return
            if (
                mark in _CLOSING
                and not self._prose.is_in_code
                and not self._prose.is_mention(text[at : at + 1])
            ):
                self._text, self._state, self.has_split, self._is_gap_due = (
                    text[at:],
                    "head",
                    True,
                    True,
                )
                if start:
                    yield "text", text[:start]
                yield "closed", ""
                return
        end = max(end, done)
        self._prose.read(text[done:end])
        self._text = text[end:]
        if end:
            yield "text", text[:end]


class _Prose:
    """The place of a tag in a text: in a fence, in inline code, in a sentence."""

    def __init__(self) -> None:
        self._is_fenced = False
        self._start = ""
        """The first characters of the line."""
        self._ticks = 0
        self._last = self._last_visible = ""

    def read(self, text: str) -> None:
        """Take the next piece of the text."""
        first, *lines = text.split("\n")
        self._take(first)
        for line in lines:
            self._is_fenced ^= self._start.lstrip(" ").startswith("```")
            self._start, self._ticks, self._last = "", 0, "\n"
            self._take(line)

    def _take(self, part: str) -> None:
        if part:
            self._start += part[: max(0, 8 - len(self._start))]
            self._ticks += part.count("`")
            self._last = part[-1]
            self._last_visible = (part.rstrip() or self._last_visible)[-1:]

    @property
    def is_in_code(self) -> bool:
        """Whether code is open here."""
        return self._is_fenced or self._ticks % 2 == 1

    def is_mention(self, after: str) -> bool:
        """Whether a tag before the character `after` is a word of its sentence."""
        if not after or after in "\r\n" or self._last in {"", "\n", "\r"}:
            return False
        if self._last in _OPENING_QUOTES:
            return after in _CLOSING_QUOTES
        return self._last.isspace() and self._last_visible not in _ENDS_OF_SENTENCES


def _safe_end(text: str, behind: str = "") -> int:
    """The position up to which the text cannot become part of a tag, nor be the character `behind` before one."""
    for at in range(max(0, len(text) - _LONGEST), len(text)):
        if text[at] in _FIRST and text[at:].lower() in _BEGINNINGS:
            return at - 1 if behind and at and text[at - 1] == behind else at
    return len(text) - 1 if behind and text.endswith(behind) else len(text)
