"""Separate the thoughts that a model writes into its text from the answer, whole or streamed.

Servers without a parser for a model's reasoning send it in the text, as in `<think>...</think>`:
at the start of the answer, between tags of `_CLOSING_TAGS`. The chat templates of DeepSeek and Qwen
put the opening tag into the prompt, so that the answer holds only the closing one.

The splitter is a small state machine. It reads one of:

- *head*: the start of the answer, or the text after a block of thoughts: blanks, marks, a block;
- *thought*: a block of thoughts, up to its closing tag;
- *prose*: an answer that begins with words; if a closing tag follows, the words were thoughts;
- *text*: the answer itself, which passes unchanged to its end.

A tag may be cut anywhere by the stream. Text that may still become part of a tag waits in a buffer,
so that the joined result never depends on the cuts. When in doubt, text stays text: a lost answer
is worse than a visible thought.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ferrule.values.conversation.exchange import Request, Response

# The channels of gpt-oss. Format: OpenAI's "Harmony response format".
_START = "<|start|>assistant"
_ANALYSIS = "<|channel|>analysis<|message|>"
_FINAL = "<|channel|>final<|message|>"
_END = "<|end|>"

_CLOSING_TAGS: dict[str, str] = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "[think]": "[/think]",
    "◁think▷": "◁/think▷",
    _ANALYSIS: _END,
    _START + _ANALYSIS: _END,
}
"""Each opening tag with its closing one, in lower case."""
_ANSWER_MARKS = frozenset({_START, _FINAL, _START + _FINAL})
"""Marks before the answer itself."""
_LONE_CLOSING_TAGS = frozenset(_CLOSING_TAGS.values()) - {_END}
"""Tags that end thoughts without an opening tag. `<|end|>` does not: it ends answers, too."""
_TAGS = tuple(
    sorted({*_CLOSING_TAGS, *_LONE_CLOSING_TAGS, *_ANSWER_MARKS, _END}, key=len, reverse=True)
)
"""All tags, the longest first: a tag may be the beginning of another."""
_TAG_BEGINNINGS = frozenset(tag[:end] for tag in _TAGS for end in range(1, len(tag)))
_LONGEST_TAG = max(map(len, _TAGS))
_FIRST_CHARACTERS = frozenset(tag[0] for tag in _TAGS)
_STARTS_OF_FORMS = frozenset("{[<`")
"""The first characters of an answer in a form: a JSON object, a field's marker, a tag, a fence."""
_NOT_THOUGHTS = _STARTS_OF_FORMS | _FIRST_CHARACTERS
"""These and the first characters of tags.

An answer that begins with one of them, but not with a tag, holds no thoughts.
"""
_OPENING_QUOTES = frozenset("`\"'([{“«")
_CLOSING_QUOTES = frozenset("`\"')]}.,;:!?”»")
_ENDS_OF_SENTENCES = frozenset(".!?:;…)]}\"'`*。")

Kind = Literal["text", "thought", "closed"]
"""`closed`: all the text so far was thoughts, whose opening tag is not part of the answer."""


@cache
def _tag_pattern() -> re.Pattern[str]:
    """Any tag. Compiled on first use: most answers have none."""
    return re.compile("|".join(map(re.escape, _TAGS)), re.IGNORECASE)


def split_thoughts(response: Response, request: Request | None = None) -> Response:
    """Move the thoughts at the start of a response's text into its reasoning.

    A response without any, or split before, is unchanged. `request` is the request that it answers:
    a tag that is a field of the answer's form is not a thought.
    """
    text = response.text or ""
    if not _may_hold_thoughts(text):
        return response
    splitter = ThoughtSplitter(request, follows_reasoning=bool(response.reasoning))
    thoughts: list[str] = []
    texts: list[str] = []
    for kind, piece in (*splitter.feed(text), *splitter.finish()):
        match kind:
            case "thought":
                thoughts.append(piece)
            case "text":
                texts.append(piece)
            case "closed":
                thoughts = ["".join(texts).strip()]
                texts = []
    if not splitter.has_split:
        return response
    reasoning = (response.reasoning or "") + "".join(thoughts)
    return replace(response, text="".join(texts) or None, reasoning=reasoning or None)


def _may_hold_thoughts(text: str) -> bool:
    """A cheap test that most answers fail: only the others are split."""
    head = text.lstrip()  # no copy if the text does not begin with a blank
    if head[:2].lower() in _TAG_BEGINNINGS:
        return _tag_pattern().match(head) is not None
    if head[:1] in _NOT_THOUGHTS:
        return False
    return "</" in text or "[/" in text or "◁/" in text


class ThoughtSplitter:
    """Separates thoughts from text in a streamed answer.

    The joined result does not depend on how the stream is cut into pieces.

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
        self._follows_reasoning = follows_reasoning
        self._is_gap_due = follows_reasoning
        """Whether an empty line must separate the next thought from reasoning before it."""
        self._text: str = ""
        """Buffered text that may still become part of a tag."""
        self._leading_blanks: list[str] = []
        """The blanks before that text, while there is nothing else."""
        self._state: Literal["head", "thought", "prose", "text"] = "head"
        self._closing_tag = ""
        self._blanks: list[str] = []
        """The blanks after the thoughts so far, which belong to them if more follow."""
        self._has_begun = False
        """Whether the current block of thoughts has shown more than blanks."""
        self._prose = _Prose()

    def follow_reasoning(self) -> None:
        """Note that the provider itself sent reasoning.

        The answer then has no thoughts without an opening tag.
        """
        self._is_gap_due = True
        self._follows_reasoning = True
        if self._state == "prose":
            self._state = "text"

    def feed(self, text: str) -> list[tuple[Kind, str]]:
        """Take the next piece of the text. Returns the pieces that are certain by now."""
        if self._state == "text" and not self._text:
            return [("text", text)]
        # Blanks are collected, not joined one by one, which would take quadratic time.
        if self._leading_blanks and text.isspace():
            self._leading_blanks.append(text)
            return []
        self._text = "".join((*self._leading_blanks, self._text, text))
        self._leading_blanks.clear()
        return list(self._read(is_last=False))

    def finish(self) -> list[tuple[Kind, str]]:
        """End the text, or its part before a call. Returns the buffered pieces."""
        if not self._text and not self._leading_blanks:
            return []
        self._text = "".join((*self._leading_blanks, self._text))
        self._leading_blanks.clear()
        return list(self._read(is_last=True))

    def _read(self, *, is_last: bool) -> Iterator[tuple[Kind, str]]:
        state = None
        while state != self._state:  # each state reads until it cannot go on
            state = self._state
            match state:
                case "head":
                    self._read_head(is_last=is_last)
                case "thought":
                    yield from self._read_thought(is_last=is_last)
                case "prose":
                    yield from self._read_prose(is_last=is_last)
                case "text":
                    pass
        if self._state == "text" and self._text:
            text, self._text = self._text, ""
            yield "text", text

    def _read_head(self, *, is_last: bool) -> None:
        """Skip blanks and marks, and go to the state of what follows."""
        while True:
            rest = self._text.lstrip()
            if not is_last and not rest:
                if self._text:
                    self._leading_blanks = [self._text]
                    self._text = ""
                return
            if not is_last and rest.lower() in _TAG_BEGINNINGS:
                return
            tag_match = _tag_pattern().match(rest)
            if tag_match is None:
                tag = ""
            else:
                tag = tag_match[0].lower()
            if tag in _CLOSING_TAGS and not self._is_field(tag):
                self._text = rest[len(tag) :]
                self._closing_tag = _CLOSING_TAGS[tag]
                self._state = "thought"
                self.has_split = True
                self._has_begun = False
                return
            # The template opened a block, and the model closed it at once: it did not think.
            is_empty_block = (
                tag in _LONE_CLOSING_TAGS and not self.has_split and not self._follows_reasoning
            )
            if tag not in _ANSWER_MARKS and not is_empty_block:
                break
            self._text = rest[len(tag) :]
            self.has_split = True
        if self.has_split:
            self._text = rest  # the blanks around thoughts go; those of an answer without any stay
        if self._may_be_unopened_thought(rest):
            self._state = "prose"
        else:
            self._state = "text"

    def _may_be_unopened_thought(self, answer: str) -> bool:
        """Whether the answer may be thoughts whose opening tag was part of the prompt."""
        if not self._unopened or self.has_split or self._follows_reasoning:
            return False
        return answer[:1] not in _STARTS_OF_FORMS

    def _is_field(self, tag: str) -> bool:
        """Whether the tag is a field of the answer's form.

        Some adapters write fields as tags, and a field may have the name `reasoning`.
        """
        form = None
        if self._request is not None:
            form = self._request.form
        if form is None:
            return False
        fields = form.schema.get("properties", ())
        return tag[1:-1] in fields and tag in form.write(dict.fromkeys(fields, ""))

    def _read_thought(self, *, is_last: bool) -> Iterator[tuple[Kind, str]]:
        text = self._text
        searched = 0
        while tag := _tag_pattern().search(text, searched):
            start, searched = tag.span()
            if tag[0].lower() != self._closing_tag:
                continue
            # A tag in backticks is a mention of it. The character after it decides.
            is_behind_backtick = text[start - 1 : start] == "`"
            if is_behind_backtick and searched == len(text) and not is_last:
                yield from self._pass_thought(text, start - 1)
                return
            if is_behind_backtick and text[searched : searched + 1] == "`":
                continue
            yield from self._thought(text[:start])
            self._text = text[searched:]
            self._state = "head"
            self._blanks.clear()
            return
        if is_last:
            end = len(text)
        else:
            end = max(searched, _safe_end(text, behind="`"))
        yield from self._pass_thought(text, end)

    def _pass_thought(self, text: str, end: int) -> Iterator[tuple[Kind, str]]:
        """Pass on the text up to `end`, and buffer the rest."""
        self._text = text[end:]
        yield from self._thought(text[:end])

    def _thought(self, text: str) -> Iterator[tuple[Kind, str]]:
        thought = text.rstrip()
        if thought:
            thought = "".join((*self._blanks, thought))
            self._blanks.clear()
            if not self._has_begun:
                thought = thought.lstrip()
                if self._is_gap_due:
                    thought = f"\n\n{thought}"
            self._has_begun = True
            self._is_gap_due = True
            yield "thought", thought
        self._blanks.append(text[len(text.rstrip()) :])

    def _read_prose(self, *, is_last: bool) -> Iterator[tuple[Kind, str]]:
        text = self._text
        if is_last:
            end = len(text)
        else:
            end = _safe_end(text)
        read_to = searched = 0
        while tag := _tag_pattern().search(text, searched):
            start, searched = tag.span()
            if searched == len(text) and not is_last:
                end = start  # the character after it shows whether it is a mention
                break
            self._prose.read(text[read_to:start])
            read_to = start
            if self._prose.is_in_code:
                continue
            name = tag[0].lower()
            if name in _CLOSING_TAGS:
                self._state = "text"  # a block in the middle stays text, with its closing tag
                return
            next_character = text[searched : searched + 1]
            if name in _LONE_CLOSING_TAGS and not self._prose.is_mention(next_character):
                self._text = text[searched:]
                self._state = "head"
                self.has_split = True
                self._is_gap_due = True
                if start:
                    yield "text", text[:start]
                yield "closed", ""
                return
        end = max(end, read_to)
        self._prose.read(text[read_to:end])
        self._text = text[end:]
        if end:
            yield "text", text[:end]


class _Prose:
    """The place of a tag in a text: in a fence, in inline code, in a sentence."""

    def __init__(self) -> None:
        self._is_fenced = False
        self._line_start = ""
        """The first characters of the line."""
        self._ticks = 0
        """The number of backticks in the line. An odd number leaves inline code open."""
        self._last = ""
        self._last_visible = ""

    def read(self, text: str) -> None:
        """Take the next piece of the text."""
        first, *lines = text.split("\n")
        self._take(first)
        for line in lines:
            if self._line_start.lstrip(" ").startswith("```"):
                self._is_fenced = not self._is_fenced
            self._line_start = ""
            self._ticks = 0
            self._last = "\n"
            self._take(line)

    def _take(self, part: str) -> None:
        if not part:
            return
        # Eight characters are enough for a fence, which at most three blanks indent (CommonMark).
        missing = 8 - len(self._line_start)
        if missing > 0:
            self._line_start += part[:missing]
        self._ticks += part.count("`")
        self._last = part[-1]
        visible = part.rstrip()
        if visible:
            self._last_visible = visible[-1]

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
    """The position up to which the text cannot become part of a tag.

    Nor can the character before this position be `behind`, which changes the meaning of a tag
    after it.
    """
    end = len(text)
    for start in range(max(0, end - _LONGEST_TAG), end):
        if text[start] in _FIRST_CHARACTERS and text[start:].lower() in _TAG_BEGINNINGS:
            end = start
            break
    if behind and text[:end].endswith(behind):
        return end - 1
    return end
