"""Regular expressions in schemas (ECMA 262): the engine that can read them, and the work that they cause."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

_BACKTRACKS = 10_000
"""The most steps of a pattern with look-around, which only a backtracking engine can read. They take less than a millisecond."""
_STAND_IN = 0x10F800 - 0xD800
"""The distance from a lone surrogate, which has no UTF-8 form, to the private-use character that replaces it."""
_PARTS = r"(?s)\\.|\[(?:\^?\\.|[^\]\\])*\]|\{(\d+)(,?)(\d*)\}|."
_BARE = r"(?s)\\[pPu]\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]|\{\d+,?\d*\}|[\]}]"


def escape_bare_brackets(pattern: str) -> str:
    r"""Escape brackets that close nothing, as `\]` and `\}`: they are legal in ECMA 262 (annex B), but not in metaschemas up to draft 7."""
    made = re.sub(
        _BARE,
        lambda found: f"\\{found[0]}" if found[0] in {"]", "}"} else found[0],
        pattern,
    )
    return made if is_pattern(made) else pattern


def is_pattern(pattern: Any) -> bool:
    """Whether a value is a regular expression that a schema may use."""
    return isinstance(pattern, str) and (not pattern or _engine(pattern) is not None)


def is_backtracking(pattern: Any) -> bool:
    """Whether only a backtracking engine can read a regular expression."""
    return isinstance(pattern, str) and _engine(pattern) == "backtracking"


@lru_cache(maxsize=1024)
def unfolded_size(pattern: str) -> int:
    """The number of parts that counted repetitions unfold to: 120 for `(a{5}b){20}`. The engine may visit each for every character."""
    if "{" not in pattern:
        return 0
    groups: list[list[int]] = [[0, 0]]
    """For each open group, the number of its parts, and of those that counted repetitions made."""
    last = (0, 0)
    for token in re.finditer(_PARTS, pattern):
        parts, counted = last
        if token[0] == "(":
            groups.append([0, 0])
            last = (0, 0)
        elif token[1] is not None:
            times = max(int(token[1][:9]), int(token[3][:9] or 0)) + (
                token[2] == "," and not token[3]
            )
            groups[-1][0] += parts * (times - 1)
            groups[-1][1] += parts * times - counted if times > 1 else 0
            last = (parts * times, parts * times if times > 1 else counted)
        else:
            if token[0] == ")" and len(groups) > 1:
                inside = groups.pop()
                last = (inside[0], inside[1])
            elif token[0] not in "*+?|^$":
                last = (1, 0)
            else:
                continue
            groups[-1][0] += last[0]
            groups[-1][1] += last[1]
    return sum(counted for _, counted in groups)


@lru_cache(maxsize=1024)
def _engine(pattern: str) -> str | None:
    import jsonschema_rs

    plain = without_surrogates(pattern)
    for name, options in (
        ("linear", jsonschema_rs.RegexOptions()),
        ("backtracking", pattern_options()),
    ):
        try:
            jsonschema_rs.Draft202012Validator(
                {"pattern": plain},
                offline=True,
                pattern_options=options,
            )
        except ValueError:
            continue
        return name
    return None


@lru_cache(maxsize=1)
def pattern_options() -> Any:
    """The pattern options for `jsonschema_rs`."""
    import jsonschema_rs

    return jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACKS)


def without_surrogates(text: str) -> str:
    """The text with its lone surrogates replaced by private-use characters."""
    return (
        text
        if text.isascii()
        else re.sub("[\ud800-\udfff]", lambda found: chr(ord(found[0]) + _STAND_IN), text)
    )


def with_surrogates(text: str) -> str:
    """The inverse of `without_surrogates`."""
    return (
        text
        if text.isascii()
        else re.sub("[\U0010f800-\U0010ffff]", lambda found: chr(ord(found[0]) - _STAND_IN), text)
    )
