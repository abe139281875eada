"""Read calls written as Python: `f(a=1, b="x")`, and lists of them, quoted or not.

Values are literals, unquoted words, which are read as text, or what `expressions` reads.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.loose import LooseReader
from ferrule.text_calls.drafts import COST_OF_ATTEMPT, Draft, Effort, Group, faulty
from ferrule.text_calls.expressions import NoCallError, UnreadableError, read_expression

if TYPE_CHECKING:
    from ferrule.text_calls.offers import Offer, OfferedTools

_CALLEE = re.compile(r"(?P<name>[^\W\d](?:[\w.:/-]|\\_)*(?: [\w.:/-]+){0,6})[*`]{0,3}[ \t]?\(")
_KEYWORD = re.compile(r"((?:\w|\\_)+)\s*=(?!=)\s*")
_BLANK = re.compile(r"\s*(?:(?:#[^\n]{0,300}|\\\r?)\n\s*){0,20}")
"""With comments and continued lines."""
_TOKEN = re.compile(
    r"""'{3}.*?'{3}|"{3}.*?"{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
    r"""|[\[\](){},]|[^'"\[\](){},\\]+|\\.|.""",
    re.DOTALL,
)
_BETWEEN = re.compile(r"(?:[\s,;'\"`]|\\\r?\n)*")
_JAVA_CONSTRUCTOR = re.compile(r"new\s+[\w.]{1,100}\s*(?:<[\w\s.,<>?]{0,100}>)?\s*(?=[(\[{])")
_PARAMETER = r"\*{0,2}[^\W\d]\w*\b(?:\s{0,9}:[^,'\"()]{1,60})?(?:\s{0,9}=\s{0,9}\w+\b)?"
_SIGNATURE = re.compile(rf"\s*+(?:{_PARAMETER}(?:\s*,\s*{_PARAMETER}){{0,40}})?\s*")
_PLACEHOLDER = re.compile(r"\.{3}|\u2026|[=(,]\s*<[\w ./-]{1,60}>")
_NATIVE = frozenset({"single_quotes", "python_literals", "numbers", "trailing_comma"})
"""Repairs of JSON that are not mistakes in Python."""
_LONGEST_EXPRESSION = 5_000
_DEEPEST = 20
"""The most brackets that are open in the arguments of a call.

So a name with a parenthesis that never closes, again and again, is not read to its end each time.
"""


class PythonForm:
    """Reads calls in Python at given positions of a text."""

    def __init__(self, text: str, offers: OfferedTools, effort: Effort) -> None:
        self._text = text
        self._offers = offers
        self._effort = effort
        self._values = LooseReader(text)

    def is_at(self, offset: int) -> bool:
        """Whether a name and a parenthesis are at a position."""
        return _CALLEE.match(self._text, offset) is not None

    def call(self, offset: int) -> Group | None:
        """The call at a position."""
        offer, start = self._callee(offset)
        if offer is None:
            return None
        reader = _Arguments(self._text, offer, self._values, self._effort)
        if "\\" in self._text[offset:start]:
            reader.note("escapes")
        try:
            end = reader.read(start)
        except (ValueError, RecursionError):
            return None
        draft = Draft(offer, reader.args, tuple(reader.repairs))
        if reader.problem:
            reason = f"the call of `{offer.name}` has no value for {reader.problem}"
            draft = faulty(offer, reason, self._text[offset:end])
        return Group([draft], end)

    def unreadable(self, offset: int) -> Group | None:
        """A call with a fault, if its arguments cannot be read; None without a call."""
        text = self._text
        offer, start = self._callee(offset)
        if offer is None:
            return None
        end = self._closing(start)
        if end is None or _PLACEHOLDER.search(text, start, end):
            return None
        if _SIGNATURE.fullmatch(text, start, end - 1):
            return None
        reason = (
            f"the arguments of `{offer.name}` cannot be read: "
            "write them as JSON, or as name=value with plain values"
        )
        return Group([faulty(offer, reason, text[offset:end])], end)

    def sequence(self, offset: int, *, is_marked: bool = False) -> Group | None:
        """`[f(a=1), g()]` or a tuple, also with quotes around the calls.

        The bracket may be missing at the end of the text. An unreadable call becomes a call with a
        fault if it is beside other calls, or if a tag announces the list.
        """
        text = self._text
        drafts: list[Draft] = []
        is_sure = True
        closing = "]" if text.startswith("[", offset) else ")"
        begin = offset
        offset += 1
        while True:
            start = _skip(_BETWEEN, text, offset)
            is_cut = start >= len(text)
            if drafts and (is_cut or text.startswith(closing, start)):
                break
            group = self.call(start)
            if group is None and text[start - 1] in "\"'":
                group = self._quoted(start - 1)
            if group is None:
                group = self.unreadable(start)
                is_sure = is_marked
            if group is None:
                self._effort.spend(start - begin)  # read for nothing
                return None
            drafts += group.drafts
            offset = group.end
        if not is_sure and not any(draft.args for draft in drafts):
            return None
        if not is_cut:
            return Group(drafts, start + 1)
        repairs = ("missing_closing_bracket",)
        return Group(
            [draft._replace(repairs=(*draft.repairs, *repairs)) for draft in drafts], start
        )

    def _callee(self, offset: int) -> tuple[Offer | None, int]:
        """The tool whose name is at a position, and the position of its arguments."""
        callee = _CALLEE.match(self._text, offset)
        if callee is None or self._effort.left <= 0:
            return None, offset
        return self._offers.get(callee["name"]), callee.end()

    def _quoted(self, offset: int) -> Group | None:
        """The calls inside a string with escapes."""
        try:
            inside, end = self._values.next_value(offset)
        except ValueError:
            return None
        if not isinstance(inside, str):
            return None
        self._effort.spend(COST_OF_ATTEMPT + end - offset)  # it is read once more
        form = PythonForm(inside, self._offers, self._effort)
        drafts: list[Draft] = []
        last = 0
        while True:
            group = form.call(_skip(_BETWEEN, inside, last))
            if group is None:
                break
            drafts += group.drafts
            last = group.end
        return Group(drafts, end) if drafts and not inside[last:].strip(" ;,") else None

    def _closing(self, offset: int) -> int | None:
        """The position after the parenthesis that closes a call."""
        opened = ["("]
        for token in _TOKEN.finditer(self._text, offset, offset + 2 * _LONGEST_EXPRESSION):
            mark = token[0]
            if mark in "([{":
                opened.append(mark)
                if len(opened) > _DEEPEST:
                    self._effort.spend(token.end() - offset)
                    return None
            elif mark in ")]}":
                opener = "([{"[")]}".index(mark)]
                if opener in opened:
                    while opened.pop() != opener:  # not closed itself
                        pass
                if not opened:
                    return token.end()
        self._effort.spend(2 * _LONGEST_EXPRESSION)
        return None


class _Arguments:
    """One pass over the arguments in the parentheses of a call."""

    def __init__(self, text: str, offer: Offer, values: LooseReader, effort: Effort) -> None:
        self.args: dict[str, Any] = {}
        self.repairs: list[str] = []
        self.problem = ""
        """The first argument that is code, and why it has no value."""
        self._text = text
        self._offer = offer
        self._values = values
        self._effort = effort
        self._positional: list[Any] = []

    def note(self, repair: str) -> None:
        if repair not in self.repairs:
            self.repairs.append(repair)

    def read(self, offset: int) -> int:
        """Read up to the closing parenthesis; returns the position after it."""
        offset = self._blank(offset)
        while not self._text.startswith(")", offset):
            offset = self._blank(self._argument(offset))
            if self._text.startswith(",", offset):
                offset = self._blank(offset + 1)
            elif not self._text.startswith(")", offset):
                raise NoCallError(self._text[offset : offset + 20])
        self._assign_positional()
        return offset + 1

    def _argument(self, offset: int) -> int:
        properties = self._offer.properties
        keyword = _KEYWORD.match(self._text, offset)
        if keyword is not None:
            key = keyword[1]
            if "\\" in key:
                self.note("escapes")
                key = key.replace("\\", "")
            if key in self.args:
                raise NoCallError(key)
            self.args[key], offset = self._value(keyword.end(), key, properties.get(key))
        elif self._text.startswith("**{", offset):
            spread, offset = self._value(offset + 2, "", {"properties": properties})
            self.args.update(cast("dict[str, Any]", spread))
        elif self.args:
            raise NoCallError("a value without a name behind one with a name")
        else:
            schemas = list(properties.values())
            index = len(self._positional)
            schema = schemas[index] if index < len(schemas) else None
            value, offset = self._value(offset, "", schema)
            self._positional.append(value)
        return offset

    def _blank(self, offset: int) -> int:
        return _skip(_BLANK, self._text, offset)

    def _assign_positional(self) -> None:
        """Assign positional values to the parameters, in order."""
        values = self._positional
        names = list(self._offer.properties)
        if len(values) == 1 and isinstance(values[0], dict) and not self.args:
            whole = cast("dict[str, Any]", values[0])
            if whole.keys() <= set(names):
                self.args = whole
                return
        if len(values) > len(names) or set(names[: len(values)]) & self.args.keys():
            raise NoCallError("more values than parameters")
        self.args = {**dict(zip(names, values, strict=False)), **self.args}

    def _value(self, offset: int, key: str, schema: Any) -> tuple[Any, int]:
        try:
            value, end = self._values.next_value(offset)
        except ValueError:
            return self._expression(offset, key, schema)
        if not self._text.startswith((",", ")"), self._blank(end)):
            return self._expression(offset, key, schema)
        for repair in self._values.repairs:
            if repair not in _NATIVE:
                self.note(repair)
        return value, end

    def _expression(self, offset: int, key: str, schema: Any) -> tuple[Any, int]:
        """A value that is not a simple literal."""
        offset = self._blank(offset)
        constructor = _JAVA_CONSTRUCTOR.match(self._text, offset)
        end = self._end(offset if constructor is None else constructor.end())
        source = self._text[offset:end].strip()
        if not self._effort.spend(end - offset) or not source or len(source) > _LONGEST_EXPRESSION:
            raise NoCallError(source[:20])
        if constructor is not None and key:  # as in Java: kept as text, as it has no Python value
            self.note("unquoted_strings")
            return source, end
        try:
            value, repairs = read_expression(source, key, schema)
        except UnreadableError as error:
            if not self.problem:
                self.problem = f"`{key}`: {error}" if key else str(error)
            return None, end
        for repair in repairs:
            self.note(repair)
        return value, end

    def _end(self, offset: int) -> int:
        """The end of the argument at a position: its comma, or the closing parenthesis."""
        depth = 0
        furthest = min(offset + 2 * _LONGEST_EXPRESSION, len(self._text))
        for token in _TOKEN.finditer(self._text, offset, furthest):
            mark = token[0]
            if mark in ("'", '"'):  # It is not closed: each later one would search to the end, too.
                break
            if mark in "([{":
                depth += 1
            elif depth == 0 and mark in ",)":
                return token.start()
            elif mark in ")]}":
                depth -= 1
            if depth < 0 or depth > _DEEPEST:
                self._effort.spend(token.end() - offset)
                break
        else:
            self._effort.spend(furthest - offset)
        raise NoCallError("no end")


def _skip(pattern: re.Pattern[str], text: str, offset: int) -> int:
    """The position after a pattern that may be empty."""
    match = pattern.match(text, offset)
    return offset if match is None else match.end()


def are_signatures(drafts: list[Draft], *, is_whole: bool) -> bool:
    """Whether all values are the unquoted names of parameters, as in `add(a, b)`.

    An `add(a)` that is the whole text is still a call.
    """
    fewest = 2 if is_whole else 1
    for draft in drafts:
        if "unquoted_strings" not in draft.repairs or len(draft.args) < fewest:
            return False
        for value in draft.args.values():
            if not isinstance(value, str) or value not in draft.offer.properties:
                return False
    return True
