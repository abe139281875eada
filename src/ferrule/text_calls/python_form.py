"""Read calls written as Python: `f(a=1, b="x")`, and lists of them, quoted or not.

Nothing is evaluated: values are literals, arithmetic on literal numbers, or unquoted words, which
are read as text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, cast

from ferrule.encoding.loose import LooseReader
from ferrule.encoding.written import read_float
from ferrule.text_calls.expressions import (
    UnreadableError,
    arithmetic,
    is_constructor,
    number,
    read_constructor,
)
from ferrule.text_calls.offers import Draft, Effort, Offer, OfferedTools
from ferrule.text_calls.shapes import CallFault

_CALLEE = re.compile(r"(?P<name>[^\W\d](?:[\w.:/-]|\\_)*(?: [\w.:/-]+){0,6})[*`]{0,3}[ \t]?\(")
_KEYWORD = re.compile(r"((?:\w|\\_)+)\s*=(?!=)\s*")
_BLANK = re.compile(
    r"\s*(?:(?:#[^\n]{0,300}|\\\r?)\n\s*){0,20}"
)  # with comments and continued lines
_PLAIN = re.compile(
    r"""(?:"([^"\\\n]*)"|'([^'\\\n]*)'"""
    r"""|(-?(?:0|[1-9]\d{0,300})(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)"""
    r"""|(True|False|None))(?=\s*[,)])"""
)
_TOKEN = re.compile(
    r"""'{3}.*?'{3}|"{3}.*?"{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
    r"""|[\[\](){},]|[^'"\[\](){},]+|.""",
    re.DOTALL,
)
_BARE = re.compile(r"[^\W_][\w .:/@+&%$°-]*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_KNOWN_ESCAPES = frozenset("\\'\"abfnrtv01234567xuUN\n")
_BETWEEN = re.compile(r"(?:[\s,;'\"`]|\\\r?\n)*")
_CONSTRUCTOR = re.compile(r"new\s+[\w.]{1,100}\s*(?:<[\w\s.,<>?]{0,100}>)?\s*(?=[(\[{])")
_PARAMETER = r"\*{0,2}[^\W\d]\w*\b(?:\s{0,9}:[^,'\"()]{1,60})?(?:\s{0,9}=\s{0,9}\w+\b)?"
_SIGNATURE = re.compile(rf"\s*+(?:{_PARAMETER}(?:\s*,\s*{_PARAMETER}){{0,40}})?\s*")
_PLACEHOLDER = re.compile(r"\.{3}|\u2026|[=(,]\s*<[\w ./-]{1,60}>")
_NATIVE = frozenset(
    {"single_quotes", "python_literals", "numbers", "trailing_comma"}
)  # not mistakes in Python
_CONSTANTS = {
    "True": True,
    "False": False,
    "None": None,
    "true": True,
    "false": False,
    "null": None,
}
_TYPE_NAMES = frozenset(
    {
        "str",
        "string",
        "int",
        "integer",
        "float",
        "number",
        "bool",
        "boolean",
        "list",
        "dict",
        "array",
        "object",
        "any",
    }
)
_LONGEST_EXPRESSION = 5_000


class NoCallError(ValueError):
    """The text is not a call of an offered tool."""


def is_python_call(text: str, offset: int) -> bool:
    """Whether a name and a parenthesis are at a position."""
    return _CALLEE.match(text, offset) is not None


def read_python_call(
    text: str, offset: int, offers: OfferedTools, effort: Effort
) -> tuple[Draft, int] | None:
    """The call at a position, and its end."""
    callee = _CALLEE.match(text, offset)
    if callee is None or effort.left <= 0:
        return None
    offer = offers.get(callee["name"])
    if offer is None:
        return None
    reader = _Arguments(text, offer, effort)
    if "\\" in callee["name"]:
        reader.note("escapes")
    try:
        end = reader.read(callee.end())
    except (ValueError, RecursionError):
        return None
    if reader.problem:
        reason = f"the call of `{offer.name}` has no value for {reader.problem}"
        return Draft(
            offer, {}, fault=CallFault("invalid_tool_call_arguments", reason, text[offset:end])
        ), end
    return Draft(offer, reader.args, tuple(reader.repairs)), end


def read_unreadable(
    text: str, offset: int, offers: OfferedTools, effort: Effort
) -> tuple[Draft, int] | None:
    """A call with a fault, if its arguments cannot be read; None without a call."""
    callee = _CALLEE.match(text, offset)
    offer = offers.get(callee["name"]) if callee is not None and effort.left > 0 else None
    if callee is None or offer is None:
        return None
    end = _closing(text, callee.end())
    effort.spend((end or callee.end() + 2 * _LONGEST_EXPRESSION) - offset)
    if (
        end is None
        or _PLACEHOLDER.search(text, callee.end(), end)
        or _SIGNATURE.fullmatch(text, callee.end(), end - 1)
    ):
        return None
    reason = (
        f"the arguments of `{offer.name}` cannot be read: "
        "write them as JSON, or as name=value with plain values"
    )
    return Draft(
        offer, {}, fault=CallFault("invalid_tool_call_arguments", reason, text[offset:end])
    ), end


def _closing(text: str, offset: int) -> int | None:
    """The position after the parenthesis that closes a call."""
    opened = ["("]
    for token in _TOKEN.finditer(text, offset, offset + 2 * _LONGEST_EXPRESSION):
        mark = token[0]
        if mark in "([{":
            opened.append(mark)
        elif mark in ")]}" and (opener := "([{"[")]}".index(mark)]) in opened:
            while opened.pop() != opener:  # not closed itself
                pass
            if not opened:
                return token.end()
    return None


def read_python_calls(
    text: str, offset: int, offers: OfferedTools, effort: Effort
) -> tuple[list[Draft], int]:
    """The calls from a position on, with blanks, commas or semicolons between; and their end."""
    drafts: list[Draft] = []
    end = offset
    while True:
        found = read_python_call(text, _skip(_BETWEEN, text, offset), offers, effort)
        if found is None:
            return drafts, end
        drafts.append(found[0])
        offset = end = found[1]


def read_python_list(
    text: str, offset: int, offers: OfferedTools, effort: Effort, *, is_marked: bool = False
) -> tuple[list[Draft], int] | None:
    """`[f(a=1), g()]` or a tuple, also with quotes around the calls.

    The bracket may be missing at the end of the text.
    An unreadable call becomes a call with a fault if it is beside other calls, or if a tag
    announces the list.
    """
    drafts: list[Draft] = []
    is_sure = True
    closing = "]" if text.startswith("[", offset) else ")"
    pos = offset + 1
    while True:
        quote = _skip(_BETWEEN, text, pos)
        ended = drafts and (quote >= len(text) or text.startswith(closing, quote))
        if ended and not (is_sure or any(each.args for each in drafts)):
            return None
        if ended and quote < len(text):
            return drafts, quote + 1
        if ended:
            return [
                each._replace(repairs=(*each.repairs, "missing_closing_bracket")) for each in drafts
            ], quote
        found = read_python_call(text, quote, offers, effort)
        if found is not None:
            drafts.append(found[0])
            pos = found[1]
            continue
        quoted = _quoted(text, quote - 1, offers, effort) if text[quote - 1] in "\"'" else None
        if quoted is None:
            fault = read_unreadable(text, quote, offers, effort)
            if fault is None:
                return None
            is_sure = is_marked
            quoted = [fault[0]], fault[1]
        drafts += quoted[0]
        pos = quoted[1]


def _quoted(
    text: str, offset: int, offers: OfferedTools, effort: Effort
) -> tuple[list[Draft], int] | None:
    """The calls inside a string with escapes."""
    try:
        inside, end = LooseReader(text).value(offset, 0)
    except ValueError:
        effort.spend(len(text) - offset)
        return None
    if not isinstance(inside, str):
        return None
    drafts, last = read_python_calls(inside, 0, offers, effort)
    return (drafts, end) if drafts and not inside[last:].strip(" ;,") else None


class _Arguments:
    """One pass over the arguments in the parentheses of a call."""

    def __init__(self, text: str, offer: Offer, effort: Effort) -> None:
        self.text = text
        self.offer = offer
        self.effort = effort
        self.args: dict[str, Any] = {}
        self.repairs: list[str] = []
        self.problem = ""
        """The first argument that is code, and why it has no value."""
        self._positional: list[Any] = []

    def note(self, repair: str) -> None:
        if repair not in self.repairs:
            self.repairs.append(repair)

    def read(self, offset: int) -> int:
        """Read up to the closing parenthesis; returns the position after it."""
        offset = self._blank(offset)
        while not self.text.startswith(")", offset):
            keyword = _KEYWORD.match(self.text, offset)
            if keyword is not None:
                key = keyword[1]
                if "\\" in key:
                    self.note("escapes")
                    key = key.replace("\\", "")
                if key in self.args:
                    raise NoCallError(key)
                self.args[key], offset = self._value(
                    keyword.end(), key, self.offer.properties.get(key)
                )
            elif self.text.startswith("**{", offset):
                spread, offset = self._value(offset + 2, "", {"properties": self.offer.properties})
                self.args.update(cast("dict[str, Any]", spread))
            else:
                schemas = list(self.offer.properties.values())
                place = len(self._positional)
                value, offset = self._value(
                    offset, "", schemas[place] if place < len(schemas) else None
                )
                self._positional.append(value)
                if self.args:
                    raise NoCallError("a value without a name behind one with a name")
            offset = self._blank(offset)
            if self.text.startswith(",", offset):
                offset = self._blank(offset + 1)
            elif not self.text.startswith(")", offset):
                raise NoCallError(self.text[offset : offset + 20])
        self._place()
        return offset + 1

    def _blank(self, offset: int) -> int:
        return _skip(_BLANK, self.text, offset)

    def _place(self) -> None:
        """Assign positional values to the parameters, in order."""
        values = self._positional
        names = list(self.offer.properties)
        if (
            len(values) == 1
            and isinstance(values[0], dict)
            and not self.args
            and cast("dict[str, Any]", values[0]).keys() <= set(names)
        ):
            self.args = cast("dict[str, Any]", values[0])
            return
        if len(values) > len(names) or set(names[: len(values)]) & self.args.keys():
            raise NoCallError("more values than parameters")
        self.args = {**dict(zip(names, values, strict=False)), **self.args}

    def _value(self, offset: int, key: str, schema: Any) -> tuple[Any, int]:
        plain = _PLAIN.match(self.text, offset)
        if plain is not None:
            double, single, number, word = plain.groups()
            if word is not None:
                return _CONSTANTS[word], plain.end()
            if number is not None:
                return (
                    read_float(number) if any(mark in number for mark in ".eE") else int(number)
                ), plain.end()
            return (single if double is None else double), plain.end()
        reader = LooseReader(self.text)
        try:
            value, end = reader.value(offset, 0)
        except ValueError:
            return self._expression(offset, key, schema)
        if not self.text.startswith((",", ")"), self._blank(end)):
            return self._expression(offset, key, schema)
        for repair in reader.repairs:
            if repair not in _NATIVE:
                self.note(repair)
        return value, end

    def _expression(self, offset: int, key: str, schema: Any) -> tuple[Any, int]:
        """A value that is not a simple literal."""
        offset = self._blank(offset)
        constructor = _CONSTRUCTOR.match(self.text, offset)
        end = self._end(offset if constructor is None else constructor.end())
        source = self.text[offset:end].strip()
        if not self.effort.spend(end - offset) or not source or len(source) > _LONGEST_EXPRESSION:
            raise NoCallError(source[:20])
        if constructor is not None and key:  # as in Java: kept as text, as it has no Python value
            self.note("unquoted_strings")
            return source, end
        try:
            tree = ast.parse(
                source if "r'" in source or 'r"' in source else _ESCAPE.sub(_as_python, source),
                mode="eval",
            ).body
        except (SyntaxError, ValueError, MemoryError):
            return self._bare(source, key), end
        try:
            return self._literal(tree, key, schema, source), end
        except UnreadableError as error:
            self.problem = self.problem or f"`{key}`: {error}" if key else str(error)
            return None, end
        except (ArithmeticError, TypeError) as error:
            raise NoCallError(source[:20]) from error

    def _end(self, offset: int) -> int:
        """The end of the argument at a position: its comma, or the closing parenthesis."""
        depth = 0
        furthest = min(offset + 2 * _LONGEST_EXPRESSION, len(self.text))
        for token in _TOKEN.finditer(self.text, offset, furthest):
            mark = token[0]
            if mark in ("'", '"'):  # It is not closed: each later one would search to the end, too.
                break
            if mark in "([{":
                depth += 1
            elif depth == 0 and mark in ",)":
                return token.start()
            elif mark in ")]}":
                depth -= 1
            if depth < 0:
                break
        self.effort.spend(2 * _LONGEST_EXPRESSION)
        raise NoCallError("no end")

    def _bare(self, source: str, key: str) -> str:
        """An unquoted word. The name of a type means that the text is a signature, not a call."""
        if not key or source.lower() in _TYPE_NAMES:
            raise NoCallError(source)
        if not _BARE.fullmatch(source) and not re.fullmatch(
            r"\w+(?:\.\w+|\[[\w'\".:-]*\])+", source
        ):
            raise NoCallError(source)
        self.note("unquoted_strings")
        return source

    def _literal(self, node: ast.expr, key: str, schema: Any = None, source: str = "") -> Any:
        match node:
            case ast.Constant(value=str() | int() | float() | None):
                return node.value
            case ast.List() | ast.Tuple() | ast.Set() | ast.Dict() | ast.Call():
                return self._made(node, key, schema, source)
            case ast.JoinedStr(values=pieces):
                return "".join(str(self._literal(each, "")) for each in pieces)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                value = number(self._literal(operand, ""))
                return -value if isinstance(sign, ast.USub) else value
            case ast.BinOp(left=left, op=ast.Add(), right=right) if isinstance(
                first := self._literal(left, ""), str
            ):
                return first + str(self._literal(right, ""))
            case ast.BinOp(left=left, op=operator, right=right):
                return arithmetic(operator, self._literal(left, ""), self._literal(right, ""))
            case ast.Name(id=word) if word in _CONSTANTS:
                self.note("json_literals")
                return _CONSTANTS[word]
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self._bare(ast.unparse(node), key)
            case _:
                raise NoCallError(type(node).__name__)

    def _made(self, node: ast.expr, key: str, schema: Any, source: str) -> Any:
        """A list, a dict, or the value of a constructor."""
        match node:
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [self._literal(each, key, _inside(schema, "items")) for each in items]
            case ast.Dict(keys=keys, values=values):
                if None in keys:
                    raise NoCallError("a dict in a dict")
                names = [str(self._literal(cast("ast.expr", each), "")) for each in keys]
                return {
                    name: self._literal(each, key, _inside(schema, "properties", name))
                    for name, each in zip(names, values, strict=True)
                }
            case ast.Call(
                func=ast.Name(id="list" | "tuple" | "set" | "frozenset"),
                args=[ast.List() | ast.Tuple() | ast.Set() as items],
                keywords=[],
            ):
                return self._literal(items, key, schema)
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=named) if all(
                each.arg for each in named
            ):
                return {
                    str(each.arg): self._literal(
                        each.value, key, _inside(schema, "properties", str(each.arg))
                    )
                    for each in named
                }
            case ast.Call() if is_constructor(node):
                value, repair = read_constructor(node, source or ast.unparse(node), schema)
                self.note(repair)
                return value
            case _:
                raise NoCallError(type(node).__name__)


def _skip(pattern: re.Pattern[str], text: str, offset: int) -> int:
    """The position after a pattern that may be empty."""
    match = pattern.match(text, offset)
    return offset if match is None else match.end()


def _inside(schema: Any, *keys: str) -> Any:
    """The schema of a part, if the schema has one."""
    for key in keys:
        schema = cast("Mapping[str, Any]", schema).get(key) if isinstance(schema, Mapping) else None
    return schema


def _as_python(escape: re.Match[str]) -> str:
    """Double the backslash of an unknown escape, about which Python would warn."""
    return escape[0] if escape[1] in _KNOWN_ESCAPES else f"\\{escape[0]}"


def are_signatures(drafts: list[Draft], *, is_whole: bool) -> bool:
    """Whether all values are the unquoted names of parameters, as in `add(a, b)`.

    An `add(a)` that is the whole text is still a call.
    """
    return all(
        "unquoted_strings" in draft.repairs
        and len(draft.args) > (1 if is_whole else 0)
        and all(
            isinstance(value, str) and value in draft.offer.properties
            for value in draft.args.values()
        )
        for draft in drafts
    )
