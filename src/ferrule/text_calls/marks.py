# ruff: noqa: RUF002  tokens of models have such bars
"""Tags and tokens in a text, and what each means by the table of dialects.

A spelling is not a dialect. The words of a tag are compared without case and separators; a prefix
(`seed:`, `x_`, `｜DSML｜`) and a suffix (`:opensource`, `_6124c78e`) are its spelling, in which
the closing tag must agree.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from ferrule.encoding.pattern import pattern
from ferrule.text_calls.dialects import DIALECTS, RESULTS, SHOWN, STOPS, THOUGHTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.text_calls.dialects import TextForm

Meaning = Literal[
    "announces", "names", "separates", "ends", "argument", "thought", "result", "shown", "stops", ""
]

TAG = pattern(
    r"(?:\]<\]\w{1,30}\[>\[)?(?:"
    r"<\|(?:open|close)\|>[^<>\n]{1,160}<\|sep\|>"
    r"|<[/|\uff5c]{0,3}[^\W\d][^<>\n]{0,160}>"
    r"|<<\w{1,30}>>"
    r"|\[/?[A-Z][A-Z_]{2,30}\]"
    r"|[◁<]/?think▷)"
)
"""Any tag or token."""
_NAMING = pattern(r'\s(\w+)="\{(?:name|key)\}"')
_ENDINGS = frozenset({"end", "suffix", "stop"})
_BARS = "|\uff5c"


class Tag(NamedTuple):
    """One tag or token, wherever it is."""

    word: str
    """Its letters without case, separators and spelling."""
    closes: bool
    value: str | None
    """The name that it carries, as in `<function=f>`."""
    more: str
    """Its other attributes."""
    spelling: str
    role: Meaning
    text: str

    @property
    def element(self) -> str:
        """The name of an element without attributes: `query` for `<query>`."""
        return self.text.rsplit("<", 1)[-1].rstrip(">").strip()

    @property
    def closing(self) -> str:
        """The closing tag of this opening tag."""
        if self.text.startswith("<|open|>"):
            return f"<|close|>{self.text[8:].split('<', 1)[0].split(' ', 1)[0]}<|sep|>"
        offset = self.text.rfind("<")
        head = self.text[offset + 1 :].rstrip(">").rstrip("/")
        head = head.split("=", 1)[0]
        if self.value is not None:
            head = _without_attribute(head)
        return f"{self.text[:offset]}</{head.strip()}>"


def mark_at(text: str, offset: int) -> Tag | None:
    """The mark at a position."""
    found = TAG.match(text, offset)
    return None if found is None else mark_of(found[0])


@lru_cache(maxsize=2048)
def mark_of(tag: str) -> Tag:
    """The meaning of a tag, given with its brackets."""
    namespace = ""
    if tag.startswith("]<]"):
        namespace = tag[: tag.find("[>[") + 3]
    parts = _parts(tag.removeprefix(namespace))
    word, spelling = _word(parts.words)
    role = _role(word, closes=parts.closes)
    if role == "names" and parts.value is None:
        role = "announces" if word in _vocabulary().announcing else ""
    elif role == "announces" and parts.value is not None:
        role = "names"
    spelling = namespace + spelling
    return Tag(word, parts.closes, parts.value, parts.more, spelling, role, tag)


def is_ending(mark: Tag) -> bool:
    """Whether a mark ends what another begins: by its slash, or by its words."""
    return mark.closes or not _ENDINGS.isdisjoint(_pieces(mark))


def are_pair(opening: Tag, ending: Tag) -> bool:
    """Whether two marks have the same words, apart from those for beginning and ending."""
    return _stem(opening) == _stem(ending)


def _pieces(mark: Tag) -> list[str]:
    return [piece.casefold() for piece in re.findall(r"[^\W_]+", mark.text.split("=", 1)[0])]


def _stem(mark: Tag) -> str:
    opens_or_ends = _ENDINGS | {"begin", "start", "prefix", "of", "open", "close", "sep"}
    return "".join([piece for piece in _pieces(mark) if piece not in opens_or_ends])


def folded(words: str) -> str:
    """Letters and digits only, without case."""
    return "".join([letter for letter in words if letter.isalnum()]).casefold()


class _Parts(NamedTuple):
    """A tag of a text or of a template, taken apart; the fields as in `Tag`."""

    words: str
    """All before the value, without brackets, bars and the attribute that has the name."""
    closes: bool
    value: str | None = None
    more: str = ""


def _parts(tag: str) -> _Parts:
    prefix = ""
    if tag.startswith(("<|open|>", "<|close|>")):
        closes = tag.startswith("<|close|>")
        inner = tag.split("|>", 1)[1].split("<", 1)[0]
        prefix = "open "
    else:
        bare = tag.strip("<>[]◁▷")
        closes = "/" in bare[:2] or (bare[-1:] in _BARS and bare[:1] not in _BARS)
        inner = bare.lstrip("/|\uff5c").rstrip("|\uff5c")
    head, is_assigned, rest = inner.partition("=")
    if not is_assigned:
        return _Parts(prefix + head, closes)
    return _Parts(prefix + _without_attribute(head), closes, *_attribute(rest.lstrip()))


def _attribute(rest: str) -> tuple[str, str]:
    quote = rest[:1]
    if quote and quote in "\"'":
        value, _, more = rest[1:].partition(quote)
        return value, more
    value, _, more = rest.partition(" ")
    return value, more


class _Vocabulary:
    """The words of the tags of the table, by their meaning."""

    def __init__(self) -> None:
        self.announcing: set[str] = set()
        self.naming = {"tool", "call"}
        self.separating: set[tuple[str, bool]] = set()
        self.ending: set[str] = set()
        self.arguments: dict[str, list[str]] = {}
        """The templates of arguments, by the word with which they begin."""
        self.others: dict[str, Meaning] = dict.fromkeys(_all_folded(STOPS), "stops")
        self.others |= dict.fromkeys(_all_folded(RESULTS), "result")
        self.others |= dict.fromkeys(_all_folded(SHOWN), "shown")
        self.words = {"openthink", *self.naming, *self.others}
        for row in DIALECTS:
            self._add(row)
        for word in ("arg", "argument"):
            self.arguments[word] = self.arguments["parameter"]
            self.words.add(word)

    def _add(self, row: TextForm) -> None:
        slots = [row.call.find("{"), row.call.rfind("{")]
        for tag in TAG.finditer(row.call):
            word, closes = _plain(tag[0])
            self.words.add(word)
            if "{name}" in tag[0]:
                self.naming.add(word)
            elif tag.start() < slots[0]:
                self.announcing.add(word)
            elif tag.start() < slots[1]:
                self.separating.add((word, closes))
            elif not closes:
                self.ending.add(word)
        words = [_plain(tag)[0] for tag in TAG.findall(row.argument)]
        self.words.update(words)
        if words and row.argument not in self.arguments.setdefault(words[0], []):
            self.arguments[words[0]].append(row.argument)


@cache
def _vocabulary() -> _Vocabulary:
    return _Vocabulary()


def _all_folded(words: Iterable[str]) -> list[str]:
    return [folded(word) for word in words]


def _plain(tag: str) -> tuple[str, bool]:
    """The word of a tag of the table, and whether it closes. All its letters count."""
    parts = _parts(tag)
    return folded(parts.words), parts.closes


@cache
def _naming_attributes() -> frozenset[str]:
    """The attributes in which the templates have a name: `tool` in `<call tool="{name}">`."""
    templates = [template for row in DIALECTS for template in (row.call, row.argument)]
    return frozenset(_NAMING.findall(" ".join(templates)))


def _without_attribute(head: str) -> str:
    """The words of a tag before its `=`, without the attribute that has the name."""
    words = head.split()
    if len(words) > 1 and words[-1] in _naming_attributes():
        return " ".join(words[:-1])
    return head


def argument_templates(word: str) -> list[str]:
    """How arguments are written that begin with this word."""
    return _vocabulary().arguments.get(word, [])


def separates(mark: Tag) -> bool:
    """Whether a mark stands between a tool's name and its arguments."""
    return (mark.word, mark.closes) in _vocabulary().separating


def _word(words: str) -> tuple[str, str]:
    """The known word in the words of a tag, and its spelling; all letters if there is none."""
    whole = folded(words)
    known = _vocabulary().words
    if whole in known:
        return whole, ""
    pieces = re.findall(r"[^\W_]+|[\W_]+", words)[:16]
    last = len(pieces)
    ends = [last]
    for index in range(last - 1, 0, -1):
        if ":" in pieces[index] or (
            index == last - 1 and any(letter.isdigit() for letter in pieces[index])
        ):
            ends.append(index)
    for end in ends:
        for start in range(last):
            word = folded("".join(pieces[start:end]))
            if word in known:
                return word, "".join(pieces[:start]) + "…" + "".join(pieces[end:])
    return whole, ""


def _role(word: str, *, closes: bool) -> Meaning:
    known = _vocabulary()
    if word in known.others:
        return known.others[word]
    if word == "cot" or any(stem in word for stem in THOUGHTS):
        return "thought"
    if (word, closes) in known.separating and word not in known.announcing:
        return "separates"
    if word in known.ending or (closes and word in known.words):
        return "ends"
    if word in known.arguments:
        return "argument"
    if word in known.naming:
        return "names"
    if word in known.announcing:
        return "announces"
    return ""
