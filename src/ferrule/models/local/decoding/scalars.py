"""The shortest ending of an unfinished scalar: numbers and strings with a pattern need a search, other strings only their length."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ferrule.models.local.vocabulary import BYTES, make_matcher

if TYPE_CHECKING:
    from ferrule.schema.nodes import Schema

_CUT_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*(\\(?:u[0-9a-fA-F]{0,3})?)$")
_MOST_KEPT, _MOST_LEVELS, _MOST_STATES = 3_000, 120, 40
_WRITER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class Scalars:
    """Searches for endings, byte by byte with the engine. Results are cached."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, bytes], bytes | None] = {}
        self._starts: dict[str, Any] = {}

    def ending(self, node: Schema, begun: bytes) -> bytes | None:
        """The shortest text that completes a scalar; None if the scalar cannot begin like this."""
        return self._ending(
            json.dumps({**node, "x-guidance": {"whitespace_flexible": False}}),
            begun,
        )

    def _ending(self, body: str, begun: bytes) -> bytes | None:
        key = body, begun
        if key not in self._found:
            if len(self._found) > _MOST_KEPT:
                self._found.clear()
            self._found[key] = self._search(body, begun)
        return self._found[key]

    def _search(self, body: str, begun: bytes) -> bytes | None:
        if body not in self._starts:
            self._starts[body] = make_matcher(
                BYTES.tokenizer,
                f"%llguidance {{}}\nstart: %json {body}\n",
            )
        first = self._starts[body].deep_copy()
        if first.is_error() or (begun and first.try_consume_tokens(list(begun)) < len(begun)):
            return None
        if begun:  # a suffix of the shortest scalar completes most others, too
            cut, whole = rest_of_character(begun), self._ending(body, b"") or b""
            known = [cut + whole[len(whole) - size :] for size in range(len(whole) + 1)]
        else:
            known = [self._ending(each, b"") or b"" for each in _anchored(body)]
        found = next((each for each in known if _ends_with(first, each)), None)
        if found is None:
            found = _short_ending(first, b"")
            if found is None and "pattern" in body:
                found = _short_ending(first, json.loads(body)["pattern"].encode())
            found = None if found is None else _without_more(first, found)
        return found


def _anchored(body: str) -> list[str]:
    """For a pattern that may match anywhere: a schema whose texts match as a whole, among which a search finds the shortest."""
    node: Schema = json.loads(body)
    pattern = node.get("pattern", "^$")
    if pattern.startswith("^") and pattern.endswith("$"):
        return []
    return [json.dumps({**node, "pattern": f"^(?:{pattern.removeprefix('^').removesuffix('$')})$"})]


def _ends_with(matcher: Any, rest: bytes) -> bool:
    return matcher.validate_tokens([*rest, *BYTES.eos]) == len(rest) + 1


def _short_ending(first: Any, wanted: bytes) -> bytes | None:
    """Search breadth-first for an accepted text. Only one of several states that look equal is followed, so that the search ends.

    States look equal if they admit the same next bytes and, if any bytes are `wanted`, were reached
    by the same one of them.
    """
    level: list[tuple[bytes, Any]] = [(b"", first)]
    for _ in range(_MOST_LEVELS):
        following: dict[tuple[bytes, int], tuple[bytes, Any]] = {}
        for text, matcher in level:
            if matcher.is_accepting():
                return text
            mask: bytes = matcher.compute_bitmask()[:32]
            for byte in dict.fromkeys(
                [
                    *(each for each in b'"' + wanted if mask[each // 8] >> each % 8 & 1),
                    *_edges(mask),
                ],
            ):
                after = matcher.deep_copy()
                if after.consume_token(byte):
                    key = after.compute_bitmask(), byte if byte in wanted else 0
                    following.setdefault(key, (text + bytes([byte]), after))
        level = list(following.values())[:_MOST_STATES]
    return None


def _without_more(matcher: Any, rest: bytes) -> bytes:
    """Remove from an ending all parts that it does not need: a state that looked equal may have been nearer to the end."""
    for size in range(len(rest) - 1, 0, -1):
        for at in range(len(rest) - size + 1):
            if _ends_with(matcher, shorter := rest[:at] + rest[at + size :]):
                return _without_more(matcher, shorter)
    return rest


def compact(value: Any) -> bytes:
    """A constant as the engine writes it, in compact JSON."""
    return _WRITER.encode(value).encode()


def rest_of_character(text: bytes) -> bytes:
    """The bytes that complete a character or an escape cut off at the end of a JSON text."""
    cut = _CUT_ESCAPE.search(text)
    if cut is not None and cut[1] == rb"\u007":
        return b"f"
    if cut is not None:
        return {0: b"n", 1: b"0000", 2: b"000", 3: b"00", 4: b"0"}[len(cut[1]) - 1]
    return rest_of_utf8(text)


def rest_of_utf8(text: bytes) -> bytes:
    """The bytes that complete a multibyte character cut off at the end of a text."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte >= 0xC0:
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            if back >= size:
                return b""
            second = {0xE0: b"\xa0", 0xF0: b"\x90"}.get(byte, b"\x80")
            return (second if back == 1 else b"\x80") + b"\x80" * (size - back - 1)
        if byte < 0x80:
            return b""
    return b""


def _edges(mask: bytes) -> list[int]:
    """The first and the last byte of each run of admitted bytes."""
    bits = int.from_bytes(mask, "little")
    starts, ends = bits & ~(bits << 1), bits & ~(bits >> 1)
    return [i for i in range(256) if (starts | ends) >> i & 1]
