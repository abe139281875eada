"""`Outliner`: makes the outlines of a run. It takes each entry of the journal once.

The words of an outline are what a search finds: the inputs, the outputs, the names of tools, their
arguments, errors, and what people said. Both databases get the same words, made by `words_in`, so
that they find the same runs. No secret is among them: inputs and outputs are the ones that the
store itself keeps, with stars for secret types, and entries are taken as people see them
(`Entry.shown`).
"""

from __future__ import annotations

import unicodedata
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from ferrule.encoding.encode import json_text, jsonable
from ferrule.encoding.pattern import pattern
from ferrule.encoding.safe_text import one_line
from ferrule.runs.journal.encode import PARTS
from ferrule.runs.journal.spending import spent
from ferrule.runs.outline import NameUse, Outline
from ferrule.values.content.convert import content_text
from ferrule.values.outcome import Prediction
from ferrule.values.slot import Slot, innermost_call

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ferrule.runs.journal.entry import Entry
    from ferrule.runs.state import RunState
    from ferrule.values.conversation.exchange import Usage

_BETWEEN_OUTLINES_S = 1.0
"""While a run executes, lists learn of it after so many seconds."""
_LONGEST_LINE = 200
"""Characters of the first input, and of the first output."""
_MOST_CHARACTERS = 4_000
"""Of one value, so many characters are searched."""
_MOST_WORDS = 4_000
"""Of one run, so many words are searched."""
_LONGEST_WORD = 40
"""Longer words are cut: they are data, not text."""
# A letter of a script that is written without spaces (Thai, Lao, Khmer, Chinese, Japanese) is a
# word: a search for a part of a sentence finds it.
_WORD = pattern(
    "[\u0e00-\u0eff\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
    "|[^\\W_\u0e00-\u0eff\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)
_ENDS_A_STEP = frozenset({"model", "failure", "limit"})
_TAG = "$ferrule"
"""The key that marks a JSON object in a head; see `document.py`."""
_MEDIA = frozenset(PARTS) - {"text"}


def words_in(text: str) -> list[str]:
    """The words of a text, without case and accents; signs separate them.

    A query is taken apart in the same way.
    """
    if not text.isascii():
        letters = unicodedata.normalize("NFKD", text)
        text = "".join([letter for letter in letters if not unicodedata.combining(letter)])
    return [word[:_LONGEST_WORD] for word in _WORD.findall(text.casefold())]


def begins(word: str) -> bool:
    """Whether a word of a query also finds words that begin so.

    Too many begin with one or two letters, such as the first one of the order A-77.
    """
    return len(word) > 2


def known_words(
    run_id: str, program: str, title: str, metadata: Mapping[str, Any] | None
) -> Iterator[str]:
    """The words of what the store itself knows of a run."""
    for text in (run_id, program, title):
        yield from words_in(text)
    yield from _words_of_value(metadata)


class Outliner:
    """Makes the outlines of one run."""

    def __init__(self) -> None:
        self._entries = 0
        """How many entries of the journal it has taken."""
        self._words: dict[str, None] = {}
        self._steps = 0
        self._tools: dict[str, list[int]] = {}
        """By name, how many calls a tool had, and how many of them failed."""
        self._tool_seconds: dict[str, float] = {}
        self._model_seconds: dict[str, float] = {}
        self._begun_at: dict[str, float] = {}
        """By slot, when a call began."""
        self._told_at = self._wrote_at = monotonic()

    def begin(self) -> None:
        """An execution begins: the time since the last one does not count."""
        self._told_at = self._wrote_at = monotonic()
        self._begun_at.clear()

    def is_due_after(self, entry: Entry) -> bool:
        """Note the time of an entry that was just written.

        Returns whether a list should learn of what happened since the last outline.
        """
        now = monotonic()
        slot = str(entry.slot)
        if entry.kind == "begun":
            self._begun_at[slot] = now
        elif entry.kind == "model":
            # The request was made about when the entry before was written.
            _add(self._model_seconds, entry.value.model or "", now - self._wrote_at)
        elif entry.kind == "result":
            begun_at = self._begun_at.pop(slot, None)
            if begun_at is not None:
                _add(self._tool_seconds, entry.value.name, now - begun_at)
        self._wrote_at = now
        return now - self._told_at >= _BETWEEN_OUTLINES_S

    def outline(self, run: RunState, inputs: Mapping[str, Any]) -> Outline:
        """The outline of a run now. `inputs` is the result of `inputs_form`."""
        entries = run.journal.entries
        if len(entries) < self._entries:  # they are read again
            self._entries = self._steps = 0
            self._tools.clear()
        if not self._words:
            self._take_words(known_words(run.id, run.program.name, run.about.title, None))
            self._take_words(_words_of_value(run.about.metadata))
            self._take_words(_words_of_value(inputs["args"]))
            self._take_words(_words_of_value(list(inputs["inputs"].values())))
        own_since = 0
        if run.forked_from is not None:
            own_since = run.forked_from.entries
        for number in range(self._entries, len(entries)):
            self._take(entries[number], is_own=number >= own_since)
        self._entries = len(entries)
        answered = ""
        if run.status == "done":
            outputs = _outputs(run.outcome)
            self._take_words(_words_of_value(outputs))
            answered = _first_line(outputs)
        if run.error is not None:
            self._take_words(words_in(str(run.error)[:_MOST_CHARACTERS]))
        usage = own_usage = spent(entries)
        if own_since:
            own_usage = spent(entries[own_since:])
        return Outline(
            asked=_first_line([*inputs["args"], *inputs["inputs"].values()]),
            answered=answered,
            steps=self._steps,
            seconds=self._seconds(),
            usage=usage,
            uses=(*self._tool_uses(), *self._model_uses(own_usage)),
            words=tuple(self._words),
        )

    def told(self) -> None:
        """The store has the last outline: the next one counts time from now on."""
        self._told_at = monotonic()
        self._tool_seconds.clear()
        self._model_seconds.clear()

    def _seconds(self) -> float:
        return monotonic() - self._told_at

    def _take(self, entry: Entry, *, is_own: bool) -> None:
        entry = entry.shown()
        value: Any = entry.value
        match entry.kind:
            case "model":
                for call in value.tool_calls:
                    self._take_words(words_in(call.name))
                    self._take_words(_words_of_value(call.args))
            case "result":
                self._take_words(words_in(value.name))
                if is_own:
                    counts = self._tools.setdefault(value.name, [0, 0])
                    counts[0] += 1
                    counts[1] += value.is_error
                if value.is_error:
                    self._take_words(words_in(content_text(value.content)[:_MOST_CHARACTERS]))
            case "failure":
                self._take_words(words_in(str(value)[:_MOST_CHARACTERS]))
            case "decision":
                self._take_words(_words_of_value([value.text, value.by, value.args]))
            case _:
                pass
        if entry.kind in _ENDS_A_STEP and not innermost_call(Slot(entry.slot)):
            self._steps += 1

    def _take_words(self, words: Iterable[str]) -> None:
        for word in words:
            if len(self._words) >= _MOST_WORDS:
                return
            self._words[word] = None

    def _tool_uses(self) -> Iterator[NameUse]:
        for name, (calls, failed) in self._tools.items():
            seconds = self._tool_seconds.get(name, 0.0)
            yield NameUse("tool", _line(name), calls, failed, seconds=seconds)

    def _model_uses(self, usage: Usage) -> Iterator[NameUse]:
        for name, of_model in usage.by_model.items():
            seconds = self._model_seconds.get(name, 0.0)
            tokens, cost = of_model.total_tokens, of_model.cost or 0.0
            yield NameUse(
                "model", _line(name), of_model.calls, tokens=tokens, cost=cost, seconds=seconds
            )


def first_outline(run: RunState, inputs: Mapping[str, Any]) -> Outline:
    """The outline of a run that has not begun."""
    return replace(Outliner().outline(run, inputs), seconds=0.0)


def _add(sums: dict[str, float], name: str, seconds: float) -> None:
    sums[name] = sums.get(name, 0.0) + seconds


def _outputs(outcome: Any) -> list[Any]:
    """What a program returned, as JSON data with stars for secret types."""
    if isinstance(outcome, Prediction):
        outputs = cast("Prediction[Any]", outcome)
        return list(jsonable(dict(outputs)).values())
    return [jsonable(outcome)]


def _first_line(values: Iterable[Any]) -> str:
    """The first value that is a text, or else the first of all, on one line."""
    values = list(map(_unmarked, values))
    for value in values:
        if isinstance(value, str) and value.strip():
            return _line(value)
    for value in values:
        if value not in (None, "", [], {}):
            return _line(json_text(value))
    return ""


def _line(text: str) -> str:
    """A text of a model or a person as a database can hold it: without NUL and lone surrogates."""
    return one_line(text[:_MOST_CHARACTERS], _LONGEST_LINE)


def _unmarked(value: Any) -> Any:
    """An input without the mark of its type."""
    if isinstance(value, dict):
        marked = cast("dict[str, Any]", value)
        if marked.get(_TAG) in {"typed", "dict"}:
            return marked.get("value")
    return cast("Any", value)


def _words_of_value(value: Any) -> Iterator[str]:
    """The words of JSON data. Pictures, audio and files have none, and neither do names of keys."""
    if isinstance(value, str):
        yield from words_in(value[:_MOST_CHARACTERS])
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, (int, float)):
        yield from words_in(str(value))
    elif isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        tag = items.get(_TAG)
        if tag == "tool":
            yield from words_in(str(items.get("name")))
        elif tag not in _MEDIA:
            for key, item in items.items():
                if key != _TAG:
                    yield from _words_of_value(item)
    elif isinstance(value, (list, tuple)):
        for item in cast("Iterable[Any]", value):
            yield from _words_of_value(item)
