"""The rules of `OfflineLM`: choose the tool that shares words with a question, and fill its arguments from the question."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, cast

from ferrule.models.wires.payload import Json, mapping
from ferrule.testing.offline.example import example

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from ferrule.testing.offline.task import OfferedTool

_WORD = re.compile(r"[^\W\d_]+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_STOP = frozenset(
    re.findall(
        r"\w+",
        "a about all also an and any are as at be been by can could did do does for from give given had has have he her his how i "
        "if in into is it its just let like me more my need no not of on one or our out over please she should show so some tell "
        "than that the their them then there these they this to too up use us using want was we were what when where which who "
        "will with would you your",
    )
)
_OPERATION = r"(?:\*\*|[-+*/%^])"
_SUM = re.compile(rf"[(\d.][\d.\s()]*(?:\s*{_OPERATION}[\d.\s()+-]*[\d)])+")
_SPOKEN = (
    (r"\bplus\b", "+"),
    (r"\bminus\b", "-"),
    (r"\b(?:times|multiplied by)\b", "*"),
    (r"\bdivided by\b", "/"),
    ("\u00d7", "*"),
    ("\u00f7", "/"),
)
_NAMED = (
    ("+", "add plus sum"),
    ("-", "subtract minus"),
    ("*", "multiply times product"),
    ("/", "divide quotient"),
)
_CALCULATES = frozenset(
    {
        "arithmetic",
        "calculat",
        "comput",
        "evaluat",
        "expression",
        "math",
        "mathematical",
        "formula",
        "sum",
    }
)
_MONTHS = [
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
]
_ISO_DATE = re.compile(r"\b(\d{4})-(\d{1,2})-(\d{1,2})\b")
_DAY_FIRST = re.compile(
    rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({'|'.join(_MONTHS)}),? (\d{{4}})\b", re.IGNORECASE
)
_MONTH_FIRST = re.compile(
    rf"\b({'|'.join(_MONTHS)}) (\d{{1,2}})(?:st|nd|rd|th)?,? (\d{{4}})\b", re.IGNORECASE
)
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_QUOTED = re.compile(r"\"([^\"]+)\"|“([^”]+)”|(?<!\w)'([^']+)'(?!\w)|`([^`]+)`")
_PLACE = re.compile(
    r"\b(?:in|for|at|from|to|near|of)\s+((?:[^\W\d_a-z][\w'’-]*)(?:\s+[^\W\d_a-z][\w'’-]*)*)"  # noqa: RUF001
)
_PLACE_WORDS = frozenset(
    {"city", "location", "place", "country", "town", "region", "address", "destination", "origin"}
)
_DATE_WORDS = frozenset(
    {
        "date",
        "day",
        "when",
        "start",
        "end",
        "since",
        "until",
        "deadline",
        "birthday",
        "departure",
        "return",
    }
)
_LONGEST = 4000
"""How many characters of a question are searched for arithmetic: the search takes quadratic time."""
_LEAST = 3
"""The lowest score of a tool that fits: a shared word counts 3 in its name, 1 in its description or a parameter."""


def stem(word: str) -> str:
    """A word without common English endings, so that `adding` and `adds` match `add`."""
    word = word.lower()
    for ending in ("ation", "ator", "ing", "ies", "ed", "es", "or", "e", "s"):
        if word.endswith(ending) and len(word) - len(ending) > 2:
            return word.removesuffix(ending)
    return word


def words(text: str) -> set[str]:
    """The stems of a text's words, without stop words."""
    found = _WORD.findall(_CAMEL.sub(" ", text.replace("_", " ")))
    return {stem(word) for word in found if word.lower() not in _STOP and len(word) > 1}


def best_tool(
    question: str, tools: Sequence[OfferedTool], called: AbstractSet[str]
) -> OfferedTool | None:
    """The best fitting tool not called yet, or None if none fits well enough."""
    asked = words(question)
    found = sums(question)
    if called:
        # A second tool must share a word in its name, and a sum is calculated only once.
        is_done = any(
            _calculates(tool) or _operations(found) & words(tool.name)
            for tool in tools
            if tool.name in called
        )
        found = [] if is_done else found
        tools = [
            tool for tool in tools if asked & words(tool.name) or (found and _calculates(tool))
        ]
    asked |= _operations(found)
    scored = [
        (_score(asked, tool, has_sum=found != []), -place, tool)
        for place, tool in enumerate(tools)
        if tool.name not in called
    ]
    best = max(scored, key=lambda entry: entry[:2], default=None)
    return None if best is None or best[0] < _LEAST else best[2]


def _operations(found: Iterable[str]) -> set[str]:
    """Words for the operators in sums."""
    return {
        stem(word)
        for each in found
        for sign, named in _NAMED
        for word in named.split()
        if sign in each
    }


def _score(asked: set[str], tool: OfferedTool, *, has_sum: bool) -> int:
    named = words(tool.name)
    described = words(tool.description) - named
    parameters = [
        word
        for name, schema in _parameters(tool)
        for word in words(f"{name} {mapping(schema).get('description') or ''}")
    ]
    score = (
        3 * len(asked & named)
        + len(asked & described)
        + len(asked & (set(parameters) - named - described))
    )
    return score + (6 if has_sum and _calculates(tool) else 0)


def _calculates(tool: OfferedTool) -> bool:
    if not any(_type(mapping(schema)) == "string" for _, schema in _parameters(tool)):
        return False  # nowhere to write a sum
    said = words(
        f"{tool.name} {tool.description} {' '.join(name for name, _ in _parameters(tool))}"
    )
    return bool(said & {stem(word) for word in _CALCULATES})


def _parameters(tool: OfferedTool) -> Iterable[tuple[str, Any]]:
    return mapping(tool.parameters.get("properties")).items()


def sums(question: str) -> list[str]:
    """The arithmetic in a question: `17 * 23`, `(2 + 3) / 4`, `3 plus 4`."""
    question = question[:_LONGEST]
    for spoken, sign in _SPOKEN:
        question = re.sub(spoken, sign, question, flags=re.IGNORECASE)
    question = _ISO_DATE.sub(" ", question)
    found = [match[0].strip(" .") for match in _SUM.finditer(question)]
    return [_balanced(each) for each in found if re.search(rf"\d[\s)]*{_OPERATION}", each)]


def _balanced(expression: str) -> str:
    """The expression without brackets that belong to the sentence."""
    while expression.count("(") > expression.count(")") and expression.startswith("("):
        expression = expression[1:].strip()
    while expression.count(")") > expression.count("(") and expression.endswith(")"):
        expression = expression[:-1].strip()
    return expression


def dates(question: str) -> list[str]:
    """The dates in a question, in order, in ISO form."""
    found = [
        (match.start(), match[1], match[2], match[3]) for match in _ISO_DATE.finditer(question)
    ]
    found += [
        (match.start(), match[3], str(_month(match[2])), match[1])
        for match in _DAY_FIRST.finditer(question)
    ]
    found += [
        (match.start(), match[3], str(_month(match[1])), match[2])
        for match in _MONTH_FIRST.finditer(question)
    ]
    result: list[str] = []
    for _, year, month, day in sorted(found):
        try:
            result.append(date(int(year), int(month), int(day)).isoformat())
        except ValueError:  # 30 February
            continue
    return result


def _month(name: str) -> int:
    return _MONTHS.index(name.lower()) + 1


@dataclass(slots=True)
class _Material:
    """Pieces of a question to fill arguments with; each is used once, except for the last of its kind."""

    question: str
    sums: list[str] = field(default_factory=list[str])
    dates: list[str] = field(default_factory=list[str])
    numbers: list[str] = field(default_factory=list[str])
    quotes: list[str] = field(default_factory=list[str])
    places: list[str] = field(default_factory=list[str])
    used: dict[str, int] = field(default_factory=dict[str, int])

    def next(self, kind: str) -> str | None:
        pieces: list[str] = getattr(self, kind)
        if not pieces:
            return None
        place = self.used.get(kind, 0)
        self.used[kind] = place + 1
        return pieces[min(place, len(pieces) - 1)]


def arguments(question: str, tool: OfferedTool) -> Json:
    """Arguments for a tool from a question; a missing required one gets the smallest value that fits."""
    undated = _MONTH_FIRST.sub(" ", _DAY_FIRST.sub(" ", _ISO_DATE.sub(" ", question)))
    material = _Material(
        question,
        sums(question),
        dates(question),
        _NUMBER.findall(re.sub(r"(?<=\d),(?=\d{3}\b)", "", undated)),
        [next(filter(None, match.groups())) for match in _QUOTED.finditer(question)],
        _PLACE.findall(undated),
    )
    required = tool.parameters.get("required") or ()
    values: Json = {}
    for name, schema in _parameters(tool):
        found = _found(name, mapping(schema), material, tool, is_required=name in required)
        if found is not None:
            values[name] = found
        elif name in required:
            values[name] = example(schema, defs=tool.parameters)
    return values


def _found(
    name: str, schema: Json, material: _Material, tool: OfferedTool, *, is_required: bool
) -> Any:
    options = schema.get("enum")
    if isinstance(options, list):
        asked = words(material.question)
        return next(
            (option for option in cast("list[Any]", options) if words(str(option)) & asked), None
        )
    kind = _type(schema)
    if kind in {"integer", "number"}:
        # A number is used twice only for a required argument.
        if not is_required and material.used.get("numbers", 0) >= len(material.numbers):
            return None
        number = material.next("numbers")
        if number is None:
            return None
        if kind == "number" and "." in number:
            return float(number)
        return int(float(number))
    if kind == "array":
        return _list(mapping(schema.get("items")), material)
    if kind != "string":
        return None
    return _words_for(name, schema, material, tool, is_required=is_required)


def _list(items: Json, material: _Material) -> list[Any] | None:
    kind = _type(items)
    if kind in {"integer", "number"} and material.numbers:
        return [float(each) if "." in each else int(each) for each in material.numbers]
    return list(material.quotes) or None if kind == "string" else None


def _words_for(
    name: str, schema: Json, material: _Material, tool: OfferedTool, *, is_required: bool
) -> str | None:
    said = {word.lower() for word in _WORD.findall(_CAMEL.sub(" ", name.replace("_", " ")))}
    about = words(f"{name} {schema.get('description') or ''}")
    if material.sums and about & {stem(word) for word in _CALCULATES}:
        return material.next("sums")
    if schema.get("format") in {"date", "date-time"} or said & _DATE_WORDS:
        found = material.next("dates")
        return f"{found}T00:00:00Z" if found and schema.get("format") == "date-time" else found
    if material.places and (said & _PLACE_WORDS or about & {stem(word) for word in _PLACE_WORDS}):
        return material.next("places")
    if schema.get("pattern") or schema.get("format"):
        return next((word for word in _tokens(material.question) if _fits(schema, word)), None)
    if not is_required:
        return None
    return (
        material.next("quotes")
        or _keywords(material.question, tool)
        or material.question.strip()
        or None
    )


def _tokens(question: str) -> list[str]:
    return [token.strip(".,;:!?()\"'") for token in question.split()]


def _fits(schema: Json, word: str) -> bool:
    pattern = schema.get("pattern")
    shapes = {
        "email": r"[^@\s]+@[^@\s]+\.\w+",
        "uri": r"\w+://\S+",
        "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    }
    try:
        return (
            bool(word)
            and re.search(
                pattern
                if isinstance(pattern, str)
                else shapes.get(str(schema.get("format")), "(?!)"),
                word,
            )
            is not None
        )
    except re.error:
        return False


def _keywords(question: str, tool: OfferedTool) -> str:
    """The question without stop words and words of the tool's name."""
    names = words(tool.name)
    kept = [
        token
        for token in _tokens(question)
        if token and token.lower() not in _STOP and stem(token) not in names
    ]
    return " ".join(kept)


def _type(schema: Json) -> str:
    kind = schema.get("type")
    for option in (
        [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())] if kind is None else ()
    ):
        if mapping(option).get("type") not in {None, "null"}:
            return _type(mapping(option))
    if isinstance(kind, list):
        kind = next((each for each in cast("list[Any]", kind) if each != "null"), None)
    if kind is not None:
        return str(kind)
    if schema.keys() & {"$ref", "allOf", "properties", "const"}:
        return ""
    return "string"
