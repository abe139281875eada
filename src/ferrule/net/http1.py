"""HTTP/1.1 as bytes (RFC 9112): writes requests and reads answers, without doing any I/O.

`h11` implements all of HTTP/1.1, for both sides, and took two fifths of the cost of a request. A
client that only posts needs little of it. The tests compare the two on random answers, cut
anywhere.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ferrule.errors import ConfigurationError
from ferrule.record import Record
from ferrule.values.display import Concealed

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_HEAD = 100 * 1024
_LONGEST_CHUNK_HEAD = 4096
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_STATUS = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_BLANK = re.compile(rb"\r?\n\r?\n")
_FOLD = re.compile(r"\r?\n[ \t]+")
_LINE_END = re.compile(r"\r?\n")
_FRAMING = frozenset({"content-length", "transfer-encoding"})
_WITHOUT_BODY = (204, 304)


class HTTPSyntaxError(ValueError):
    """These bytes are not HTTP/1.1, or end too early."""


class Head(Record):
    """The head of an answer. Names of headers are in lower case; values of the same name are joined by commas."""

    status: int
    headers: dict[str, str]


def request_head(host: str, target: str, headers: Mapping[str, str]) -> bytes:
    """The head of a POST, up to the length of its body; names of headers are in lower case.

    Raises `HTTPSyntaxError` for characters that a header may not hold, such as a line end.
    """
    lines = (
        [f"POST {target} HTTP/1.1"]
        if "host" in headers
        else [f"POST {target} HTTP/1.1", f"host: {host}"]
    )
    for name, value in headers.items():
        if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise HTTPSyntaxError(
                f"the header {name!r} contains characters that headers do not allow",
            )
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "content-length: "]).encode("latin-1")


def own_headers(given: Mapping[str, str]) -> dict[str, str]:
    """The headers that the user adds to every request, names in lower case. Raises `ConfigurationError` for one that cannot be sent."""
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]  users pass anything
            found = f"{type(name).__name__} and {type(value).__name__}"
            raise ConfigurationError(
                f"`headers` holds names and values as text, found {found} ({name!r}).",
            )
        if name.lower() in _FRAMING:
            raise ConfigurationError(
                f"`headers` cannot contain {name!r}: ferrule sets it for each request. Leave it out.",
            )
        if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None or not value.isascii():
            raise ConfigurationError(
                f"The header {name!r} contains characters that headers do not allow (line ends, or other than ASCII).",
            )
    return {name.lower(): Concealed(value) for name, value in given.items()}


class AnswerReader:
    """Reads the answers of a connection, one after another. `feed` it bytes; take a `head`, then each `piece` of the body."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._looked_at = 0
        """How many bytes were searched for a blank line: the next search starts there."""
        self._has_ended = False
        self._is_broken = False
        self._is_kept = False
        self._left: int | None = 0
        """How many bytes of the body, or of its chunk, are still to come; None: all until the connection closes."""
        self._is_chunked = False
        self._is_after_chunk = False
        self.is_read = True
        """Whether the last answer was read to its end."""

    def feed(self, data: bytes, *, is_broken: bool = False) -> None:
        """Take the next bytes; empty means that the connection closed. If it broke, a body that ends with the connection was cut off."""
        if data:
            self._bytes += data
        else:
            self._is_broken = is_broken and not self._has_ended
            self._has_ended = True

    @property
    def is_reusable(self) -> bool:
        """Whether the connection may carry another request: the answer was read, nothing came after it, and the server keeps it open."""
        return self.is_read and self._is_kept and not self._bytes and not self._has_ended

    def head(self) -> Head | None:
        """Return the next head; None if it needs more bytes. Raises `HTTPSyntaxError`."""
        while (text := self._until_blank_line()) is not None:
            first, *lines = _LINE_END.split(_FOLD.sub(" ", text))
            found = _STATUS.fullmatch(first)
            if found is None:
                raise HTTPSyntaxError(
                    f"the answer does not begin with a status line of HTTP/1.1: {first[:100]!r}",
                )
            status, headers = int(found[2]), _headers(lines)
            if status >= 200:
                self._frame(status, headers, is_newer=found[1] == "1")
                return Head(status, headers)
            if status == 101:
                raise HTTPSyntaxError("the server changes to another protocol")
        return None

    def piece(self) -> bytes | None:
        """Return the next piece of the body, `b""` at its end; None if it needs more bytes. Raises `HTTPSyntaxError`."""
        while self._left == 0 and not self.is_read:
            if not self._is_chunked:
                self.is_read = True
            elif not self._next_chunk():
                return None
        if self.is_read:
            return b""
        if self._left is not None:
            if not self._bytes:
                return self._nothing_yet()
            piece = bytes(self._bytes[: self._left])
            del self._bytes[: self._left]
            self._left -= len(piece)
            return piece
        piece = bytes(self._bytes)
        self._bytes.clear()
        if not piece and (self._is_broken or not self._has_ended):
            return self._nothing_yet()
        self.is_read = not piece
        return piece

    # -- the parts
    # ----------------------------------------------------------------------------------------------

    def _until_blank_line(self, start: int = 0) -> str | None:
        """Take the text before the next blank line, and drop the line; None if it has not arrived."""
        found = _BLANK.search(self._bytes, max(start, self._looked_at))
        if found is None:
            self._looked_at = max(len(self._bytes) - 3, 0)
            if len(self._bytes) > _LONGEST_HEAD:
                raise HTTPSyntaxError(f"the answer has headers of more than {_LONGEST_HEAD} bytes")
            return self._nothing_yet()
        text = self._bytes[start : found.start()].decode("latin-1")
        del self._bytes[: found.end()]
        self._looked_at = 0
        return text

    def _next_chunk(self) -> bool:
        """Begin the next chunk, or end the body; False if it needs more bytes."""
        waiting = self._bytes
        start = 2 if self._is_after_chunk else 0
        if start and not b"\r\n".startswith(bytes(waiting[:start])):
            raise HTTPSyntaxError(
                f"a chunk of the answer does not end where it says: {bytes(waiting[:100])!r}",
            )
        end = waiting.find(b"\n", start, start + _LONGEST_CHUNK_HEAD)
        if end < 0:
            if len(waiting) > start + _LONGEST_CHUNK_HEAD:
                raise HTTPSyntaxError(
                    f"a chunk of the answer has an invalid size: {bytes(waiting[:100])!r}",
                )
            self._nothing_yet()
            return False
        found = _CHUNK.fullmatch(waiting[start:end].removesuffix(b"\r"))
        if found is None:
            raise HTTPSyntaxError(
                f"a chunk of the answer has an invalid size: {bytes(waiting[:100])!r}",
            )
        self._left = int(found[1], 16)
        if self._left == 0:
            trailers = self._until_blank_line(end)
            if trailers is None:
                return False
            _headers(_LINE_END.split(_FOLD.sub(" ", trailers))[1:])
            self.is_read = True
        else:
            del waiting[: end + 1]
            self._is_after_chunk = True
        return True

    def _nothing_yet(self) -> None:
        if self._has_ended:
            where = (
                "in the middle of its answer"
                if self._bytes or not self.is_read
                else "without an answer"
            )
            raise HTTPSyntaxError(f"the server closed the connection {where}")

    def _frame(self, status: int, headers: dict[str, str], *, is_newer: bool) -> None:
        """Find out how the body ends (RFC 9112, 6.3)."""
        self._left, self._is_chunked, self._is_after_chunk, self.is_read = 0, False, False, False
        options = headers.get("connection", "").lower()
        self._is_kept = is_newer and "close" not in options
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if status in _WITHOUT_BODY:
            return
        if coding is not None:
            if coding.lower() != "chunked":
                raise HTTPSyntaxError(
                    f"the answer has an unknown `transfer-encoding`: {coding[:100]!r}",
                )
            self._is_chunked = True
        elif length is None:
            self._left, self._is_kept = None, False
        else:
            lengths = {each.strip() for each in length.split(",")}
            first = lengths.pop()
            if lengths or not first.isascii() or not first.isdigit() or len(first) > 15:
                raise HTTPSyntaxError(
                    f"the answer has an invalid `content-length`: {length[:100]!r}",
                )
            self._left = int(first)


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or _NAME.fullmatch(name) is None or "\r" in value or "\0" in value:
            raise HTTPSyntaxError(f"the answer has a malformed header line: {line[:100]!r}")
        key, text = name.lower(), value.strip(" \t")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers
