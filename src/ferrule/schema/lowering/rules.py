"""The part of JSON Schema that each provider accepts, with its source.

A keyword that the provider does not accept becomes a sentence in the description of its schema
(`describe_keyword`): the model reads the rule, but the provider does not enforce it. The arguments
are checked against the whole schema when they arrive.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from ferrule.encoding.encode import json_text
from ferrule.record import CheckedStruct
from ferrule.schema.words import LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.schema.nodes import Schema

ProviderTarget = Literal["openai-strict", "anthropic", "gemini"]
Target = Literal[ProviderTarget, "grammar"]
"""A provider, or a grammar that constrains the text of a local model while it writes."""

ANNOTATIONS = frozenset({"title", "description", "default", "examples"})
"""The keywords that constrain no values, and that tell the model something.

Others that constrain no values (`$comment`, `deprecated`, `x-...`) are dropped.
"""
DESCRIBED = frozenset({"title", "description"})
"""The annotations that every target accepts."""
TYPE_OF = {
    **dict.fromkeys(["minLength", "maxLength", "pattern", "format"], "string"),
    **dict.fromkeys(
        ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"], "number"
    ),
    **dict.fromkeys(
        ["items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"], "array"
    ),
    **dict.fromkeys(["contains", "minContains", "maxContains", "unevaluatedItems"], "array"),
    **dict.fromkeys(
        ["properties", "required", "additionalProperties", "patternProperties", "propertyNames"],
        "object",
    ),
    **dict.fromkeys(
        ["minProperties", "maxProperties", "dependentRequired", "dependentSchemas"], "object"
    ),
    **dict.fromkeys(["dependencies", "unevaluatedProperties"], "object"),
}
"""The JSON type that each of these keywords constrains; a value of another type passes."""
STRUCTURE = frozenset(
    {
        "items",
        "prefixItems",
        "additionalItems",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
    }
)
"""Keywords for the structure of an array or an object, which are lowered together."""
ELSEWHERE = frozenset({"not", "if", "then", "else"})
"""Keywords for values of any type, which no target accepts."""


class SchemaLoss(Struct, metaclass=CheckedStruct, frozen=True):
    """A rule of a schema that its lowered form does not express."""

    path: str
    """A JSON pointer (RFC 6901) into the original schema.

    A part of an `allOf` is reported at the schema with the `allOf`, and a keyword beside a union in
    the union's branches, where lowering puts it.
    """
    keyword: str
    """The keyword; `strict` if strict mode itself is lost."""
    lost: str
    """What happens to the rule, in words for the author of the tool."""
    breaking: bool = False
    """Whether the target's strict mode cannot accept the schema.

    The tool is then sent without strict mode. A grammar has no such mode. There, True means that it
    admits more than the schema, so that an answer must be checked, and False that it admits less.
    """


class Rules(Struct, frozen=True, kw_only=True):
    """The rules of one target for schemas."""

    strict: bool
    """Whether objects must be closed, and every value must have a declared form."""
    all_required: bool = False
    """Whether every property must be required; an optional one then becomes nullable."""
    recursive: Literal["anywhere", "in options"] | None = None
    """Where a definition may contain itself; `in options`: in properties that are not required."""
    keeps: frozenset[str]
    """The accepted keywords, of those that some targets do not accept."""
    formats: frozenset[str]
    """The accepted values of `format`."""
    enums: frozenset[str]
    """The JSON types of the values that an `enum` may contain."""
    most_min_items: int | None = None
    """The largest `minItems`; None for no limit."""
    most_repeats: int | None = None
    """The largest number in a pattern's quantifiers; None for no limit."""


_SCALARS = frozenset({"string", "integer", "number", "boolean", "null"})
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})

RULES: dict[Target, Rules] = {
    # OpenAI, guide "Structured model outputs", section "Supported schemas", as of 2026-08.
    "openai-strict": Rules(
        strict=True,
        all_required=True,
        recursive="anywhere",
        formats=_FORMATS,
        enums=_SCALARS,
        keeps=_NUMBERS | {"pattern", "format", "minItems", "maxItems"},
    ),
    # Anthropic, "Structured outputs", section "JSON Schema limitations"; "Strict tool use". As of
    # 2026-10.
    "anthropic": Rules(
        # The page excludes "quantifiers with large ranges" and names no number; a request with one
        # fails as a whole.
        strict=True,
        formats=_FORMATS | {"uri"},
        enums=_SCALARS,
        most_min_items=1,
        most_repeats=50,
        keeps=frozenset({"pattern", "format", "minItems", "default"}),
    ),
    # Gemini, `parametersJsonSchema` of a FunctionDeclaration, with the keywords that the API
    # reference lists for `responseJsonSchema`, as of 2026-11. Not the older `parameters`: there one
    # unknown keyword fails the whole request, and tuples and `$ref` cannot be said.
    "gemini": Rules(
        strict=False,
        recursive="in options",
        formats=frozenset({"date-time", "date", "time"}),
        enums=frozenset({"string", "integer", "number"}),
        keeps=frozenset({"minimum", "maximum", "minItems", "maxItems", "format", "prefixItems"}),
    ),
    # llguidance 1.9, docs/json_schema.md, as narrowed by `rewrite.py`, which leaves no format and
    # no `Any`.
    "grammar": Rules(
        strict=False,
        recursive="anywhere",
        formats=frozenset(),
        enums=_SCALARS | {"object", "array"},
        keeps=_NUMBERS
        | {"pattern", "minLength", "maxLength", "minItems", "maxItems", "prefixItems"}
        | {"minProperties", "maxProperties"},
    ),
}

_WORDS = {
    **{keyword: f"{words.capitalize()}." for keyword, words in LIMITS.items()},
    "pattern": "Matches the pattern {}",  # no full stop: it would read as a part of the pattern
    "format": "In the format {}.",
    "default": "Default: {}.",
    "enum": "One of {}.",
    "prefixItems": "Items in this order: {}.",
    "not": "Must not fit {}.",
    "contains": "Holds an item that fits {}.",
    "examples": "Examples: {}.",
}
_LONGEST = 300
"""The most characters of a keyword's value in a description.

A description is a hint for the model, not a specification.
"""
_REPEATS = re.compile(r"\{(\d+)(?:,(\d*))?\}")
"""A counted quantifier: `{3}`, `{3,}` or `{3,7}`."""
_BEYOND_AUTOMATA = re.compile(r"\(\?(?!:)|\\[1-9bBkpP]")
"""What no automaton can match: groups with an option or a look-around, backreferences, word
boundaries. Classes of Unicode (`\\p`) are here because providers refuse them, too."""


def describe_keyword(keyword: str, value: Any) -> str:
    """Describe a keyword in a sentence for the model."""
    if keyword == "uniqueItems":
        return "No item twice."
    is_bare = isinstance(value, str) and keyword in {"pattern", "format"}
    if is_bare:
        text = value
    else:
        text = json_text(value)
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}..."
    return _WORDS.get(keyword, f"{keyword}: {{}}.").replace("{}", text)


def add_notes(schema: Schema, *notes: str) -> Schema:
    """The schema with these sentences appended to its description."""
    if not notes:
        return schema
    before = str(schema.get("description") or "").rstrip()
    if before and before[-1] not in ".!?:)`":
        before += "."
    return {**schema, "description": " ".join([before, *notes]).strip()}


def accepts_keyword(rules: Rules, keyword: str, value: Any) -> bool:
    """Whether the target accepts this keyword with this value."""
    if keyword not in rules.keeps:
        return False
    match keyword:
        case "format":
            return value in rules.formats
        case "pattern":
            # Providers compile patterns to automata.
            if not isinstance(value, str) or _BEYOND_AUTOMATA.search(value):
                return False
            return rules.most_repeats is None or _repeats(value) <= rules.most_repeats
        case "minItems":
            return rules.most_min_items is None or value <= rules.most_min_items
        case _:
            return True


def _repeats(pattern: str) -> int:
    """The largest number in a pattern's quantifiers."""
    most = 0
    for least, greatest in _REPEATS.findall(pattern):
        # The first digits are enough; Python reads 4,300 digits at most.
        most = max(most, int(least[:9]), int(greatest[:9] or 0))
    return most


def applies_to(keyword: str, kinds: Iterable[str]) -> bool:
    """Whether a keyword of `TYPE_OF` constrains values of these JSON types."""
    kind = TYPE_OF[keyword]
    return kind in kinds or (kind == "number" and "integer" in kinds)
