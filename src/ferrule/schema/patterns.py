"""Regular expressions in schemas (ECMA 262): which engine reads a pattern, and what it may cost.

Schemas come from others, and so do the values: a pattern must not take minutes for one value. Most
patterns are matched in a time that grows with the length of the text. Look-around and
backreferences need backtracking, which stops after `_BACKTRACKS` steps. And a counted repetition
makes any engine slow: `unfolded_size` says how many parts it stands for.

The engines want UTF-8, which has no lone surrogates. Patterns and texts with some are matched with
a private-use character in the place of each (`without_surrogates`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

_BACKTRACKS = 10_000
"""The most steps of backtracking for one value; they take less than a millisecond."""
_STAND_IN = 0x10F800 - 0xD800
"""The distance from a lone surrogate to the private-use character that replaces it."""
_PARTS = r"(?s)\\.|\[(?:\^?\\.|[^\]\\])*\]|\{(\d+)(,?)(\d*)\}|."
"""A token of a pattern: an escape, a set, a counted repetition (with groups), or one character."""
_BRACKETS = r"(?s)\\[pPu]\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]|\{\d+,?\d*\}|[\]}]"
"""All that may contain a closing bracket; a match of only a bracket closes nothing."""


def escape_bare_brackets(pattern: str) -> str:
    r"""Escape brackets that close nothing, as `\]` and `\}`.

    They are legal in ECMA 262 (annex B), but not in metaschemas up to draft 7.
    """

    def escape(match: re.Match[str]) -> str:
        if match[0] in {"]", "}"}:
            return f"\\{match[0]}"
        return match[0]

    escaped = re.sub(_BRACKETS, escape, pattern)
    if is_pattern(escaped):
        return escaped
    return pattern


def is_pattern(pattern: Any) -> bool:
    """Whether a value is a regular expression that a schema may use."""
    return isinstance(pattern, str) and (not pattern or _engine(pattern) is not None)


def is_backtracking(pattern: Any) -> bool:
    """Whether only a backtracking engine can read a regular expression."""
    return isinstance(pattern, str) and _engine(pattern) == "backtracking"


@lru_cache(maxsize=1024)
def unfolded_size(pattern: str) -> int:
    """The number of parts that counted repetitions unfold to: 120 for `(a{5}b){20}`.

    The engine may visit each for every character.
    """
    if "{" not in pattern:
        return 0
    # The pieces of each open group, outermost first. A repetition applies to the last piece: a
    # character, a set, or a group that was closed.
    groups: list[list[_Size]] = [[]]
    for token in re.finditer(_PARTS, pattern):
        pieces = groups[-1]
        if token[0] == "(":
            groups.append([])
        elif token[0] == ")" and len(groups) > 1:
            groups.pop()
            groups[-1].append(_sum(pieces))
        elif token[1] is None:
            if token[0] not in "*+?|^$":
                pieces.append(_ONE)
        elif pieces:
            pieces[-1] = _repeated(pieces[-1], token)
    return sum(_sum(pieces).counted for pieces in groups)


class _Size(NamedTuple):
    """The size of a piece of a pattern."""

    parts: int
    counted: int
    """How many of the parts counted repetitions made."""


_ONE = _Size(1, 0)


def _sum(pieces: list[_Size]) -> _Size:
    return _Size(sum(piece.parts for piece in pieces), sum(piece.counted for piece in pieces))


def _repeated(piece: _Size, repetition: re.Match[str]) -> _Size:
    least, comma, most = repetition.groups()
    # The first digits are enough; Python reads 4,300 digits at most.
    times = max(int(least[:9]), int(most[:9] or 0))
    if comma and not most:  # `{3,}`: three, and one that repeats
        times += 1
    parts = piece.parts * times
    if times > 1:
        return _Size(parts, parts)
    return _Size(parts, piece.counted)


@lru_cache(maxsize=1024)
def _engine(pattern: str) -> str | None:
    """The engine that can read a pattern: `linear`, `backtracking`, or None.

    The validator compiles the pattern when it is made, and raises `ValueError` if it cannot.
    """
    import jsonschema_rs

    engines = {"linear": jsonschema_rs.RegexOptions(), "backtracking": pattern_options()}
    schema = {"pattern": without_surrogates(pattern)}
    for name, options in engines.items():
        try:
            jsonschema_rs.Draft202012Validator(schema, offline=True, pattern_options=options)
        except ValueError:
            continue
        return name
    return None


@lru_cache(maxsize=1)
def pattern_options() -> Any:
    """The options of `jsonschema_rs` for the backtracking engine, which reads every pattern."""
    import jsonschema_rs

    return jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACKS)


def without_surrogates(text: str) -> str:
    """The text with its lone surrogates replaced by private-use characters."""
    if text.isascii():
        return text
    return re.sub("[\ud800-\udfff]", lambda match: chr(ord(match[0]) + _STAND_IN), text)


def with_surrogates(text: str) -> str:
    """The inverse of `without_surrogates`."""
    if text.isascii():
        return text
    return re.sub("[\U0010f800-\U0010ffff]", lambda match: chr(ord(match[0]) - _STAND_IN), text)
