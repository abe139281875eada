"""The tools of the demo, and of `ferrule ask` without `--tools`. All work offline.

Arithmetic, dates, and a search in ferrule's documents.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ferrule.errors import ToolRetry, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_LONGEST_EXPRESSION = 500
_MOST_BITS = 10_000
"""The largest numbers (about 3,000 digits): a short expression can exceed all memory."""

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
}
# Signs that people type.
_TYPED_SIGNS = str.maketrans(
    {"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "^": "**"}  # noqa: RUF001
)
_ARITHMETIC = re.compile(r"[0-9eE_.+\-*/%()\s]*")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def calculate(expression: str) -> str:
    """Compute an arithmetic expression exactly, without rounding.

    Args:
        expression: Numbers, + - * / // % **, and parentheses, such as "(0.1 + 0.2) * 3".

    """
    written = _THOUSANDS.sub("", expression.translate(_TYPED_SIGNS)).strip()
    if len(written) > _LONGEST_EXPRESSION:
        msg = (
            f"The expression has {len(written)} characters; "
            f"at most {_LONGEST_EXPRESSION} are computed. Split it."
        )
        raise ToolRetry(msg)
    if not _ARITHMETIC.fullmatch(written):
        raise _not_arithmetic(expression)
    try:
        tree = ast.parse(written, mode="eval")
        return _number_text(_value(tree.body, written))
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise _not_arithmetic(expression) from error
    except ZeroDivisionError as error:
        raise ToolRetry(f"{expression!r} divides by zero.") from error


def _value(node: ast.expr, written: str) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            return _bounded(Fraction(number))
        case ast.Constant(value=float()):
            # The text, not the float: the float of 0.1 is not a tenth.
            return _decimal(ast.get_source_segment(written, node) or "")
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, written)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, written)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left, written), _value(right, written))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            compute = _BINARY[type(sign)]
            return _bounded(Fraction(compute(_value(left, written), _value(right, written))))
        case _:
            raise _not_arithmetic(ast.get_source_segment(written, node) or written)


def _not_arithmetic(found: str) -> ToolRetry:
    return ToolRetry(
        f"{shown(found)} is not arithmetic. Use numbers, + - * / // % ** and parentheses only."
    )


def _decimal(text: str) -> Fraction:
    number = Decimal(text.replace("_", ""))
    if abs(number.adjusted()) * 4 > _MOST_BITS:
        raise ToolRetry(f"{text} is too large or too small to compute with.")
    return _bounded(Fraction(number))


def _power(number: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        msg = (
            f"The power {_number_text(exponent)} is not a whole number; "
            "the result would not be exact."
        )
        raise ToolRetry(msg)
    bits = max(number.numerator.bit_length(), number.denominator.bit_length())
    if bits > 1 and abs(exponent.numerator) * bits > _MOST_BITS:
        raise ToolRetry(f"The power {_number_text(exponent)} gives too large a number.")
    return Fraction(number**exponent.numerator)


def _bounded(number: Fraction) -> Fraction:
    if max(number.numerator.bit_length(), number.denominator.bit_length()) > _MOST_BITS:
        raise ToolRetry("The result is too large a number.")
    return number


def _number_text(number: Fraction) -> str:
    """The number as 3, 0.25, or 1/3 with an approximation."""
    if number.denominator == 1:
        return str(number.numerator)
    # A fraction has finitely many decimal places if its denominator has no factors but 2 and 5.
    twos = fives = 0
    rest = number.denominator
    while rest % 2 == 0:
        twos += 1
        rest //= 2
    while rest % 5 == 0:
        fives += 1
        rest //= 5
    if rest != 1:
        return f"{number} (about {_approximation(number)})"
    places = max(twos, fives)
    digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[:-places]}.{digits[-places:]}"


def _approximation(number: Fraction) -> str:
    try:
        return f"{float(number):.10g}"
    except OverflowError:
        return f"{Decimal(number.numerator) / Decimal(number.denominator):.10g}"


def days_between(start: date, end: date) -> int:
    """Count how many days are between two dates.

    Args:
        start: The first date, as YYYY-MM-DD.
        end: The second date, as YYYY-MM-DD. The count is negative where it comes first.

    """
    return (end - start).days


def date_after(start: date, days: int) -> str:
    """Add a number of days to a date; returns the date that many days later, and its weekday.

    Args:
        start: The date to count from, as YYYY-MM-DD.
        days: How many days later; negative for earlier.

    """
    try:
        day = start + timedelta(days=days)
    except OverflowError as error:
        raise ToolRetry(f"{days} days after {start} is outside the years 1 to 9999.") from error
    return f"{day.isoformat()}, a {_WEEKDAYS[day.weekday()]}"


_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def search_documents(query: str) -> str:
    """Search ferrule's own documents (its documentation) and quote the passage that fits best.

    Args:
        query: The words to look for.

    """
    words = _words(query)
    if not words:
        raise ToolRetry("The query has no words. Name what to look for.")
    passages = _passages()
    # Rare words weigh more.
    weights = {word: 1 / (1 + sum(word in passage.words for passage in passages)) for word in words}
    phrase = query.casefold().strip()
    scored = [
        (passage.score(weights, phrase), -len(passage.text), passage.text, passage.place)
        for passage in passages
    ]
    score, _, text, place = max(scored, default=(0.0, 0, "", ""))
    if not score:
        return f"No passage of ferrule's documents mentions {' or '.join(sorted(words))}."
    return _BOLD.sub(r"\1", text) + f" ({place})"


TOOLS: tuple[Callable[..., object], ...] = (calculate, days_between, date_after, search_documents)
"""In the order in which models see them."""


@dataclass(frozen=True, slots=True)
class _Passage:
    """One paragraph, list item or table row."""

    text: str
    place: str
    words: frozenset[str]

    def score(self, weights: Mapping[str, float], phrase: str) -> float:
        """The sum of the weights of the words in it.

        More for the whole phrase, most for the phrase in bold.
        """
        weight = sum(weight for word, weight in weights.items() if word in self.words)
        folded = self.text.casefold()
        if f"**{phrase}**" in folded:
            return weight * 4
        if phrase in folded:
            return weight * 2
        return weight


_BOLD = re.compile(r"(?<!\w)\*\*(.+?)\*\*(?!\w)")
"""Bold text in Markdown; `2**10` is a power."""
_WORD = re.compile(r"\w+")
_FEW_WORDS = frozenset(
    _WORD.findall(
        "a about an and are as at be by can could do does documentation documents ferrule for "
        "from how i if in is it me of on or say search tell "
        "that the this to what when where which who why with you"
    )
)
"""Words that say nothing about the subject of a question."""
_FEWEST_WORDS = 5
"""Shorter passages are headings and the like."""


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold())) - _FEW_WORDS


@lru_cache(maxsize=1)
def _passages() -> tuple[_Passage, ...]:
    return tuple(
        _Passage(text, place, _words(text))
        for place, document in _documents()
        for text in _paragraphs(document)
    )


def _documents() -> Iterator[tuple[str, str]]:
    """The pages of a checkout; of an installed package, the docstrings of its modules."""
    package = Path(__file__).parent.parent
    checkout = package.parent.parent  # `.parents[n]` would fail for a package right under the root
    pages = [checkout / "README.md", *sorted((checkout / "docs").rglob("*.md"))]
    if (checkout / "pyproject.toml").is_file() and pages[0].is_file():
        for page in pages:
            yield page.relative_to(checkout).as_posix(), page.read_text(encoding="utf-8")
        return
    for module in sorted(package.rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
        yield f"ferrule/{module.relative_to(package).as_posix()}", docstring or ""


def _paragraphs(document: str) -> Iterator[str]:
    """Prose, list items and table rows as one line each.

    Without code, headings and lists of links.
    """
    prose = re.sub(r"^```.*?^```\s*$", "", document, flags=re.MULTILINE | re.DOTALL)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-|]|\d+\.) )", prose):
        text = " ".join(block.split())
        if not text.startswith(("#", "<!--", "- [")) and len(_WORD.findall(text)) >= _FEWEST_WORDS:
            yield (
                text.removeprefix("- ").removeprefix("| ").removesuffix(" |").replace(" | ", " — ")
            )
