"""`Mark`: a marker of a text format, such as the end of a fence, which is escaped inside values."""

from __future__ import annotations

import re

from ferrule.encoding.pattern import pattern


class Mark:
    r"""A marker that values must not contain.

    `escape` breaks each one in a text with a backslash, and `unescape` restores the text.

    The backslash follows the first character of the mark: `[\[ ## a ## ]]`. A mark that was escaped
    before gets one more, so that different texts stay different.
    """

    __slots__ = ("_escaped", "_whole")

    def __init__(self, first: str, rest: str, flags: re.RegexFlag = re.NOFLAG) -> None:
        """Make a marker from patterns for its first character and for the text after it.

        They are as long as a match takes linear time.
        """
        self._whole = pattern(rf"({first}\\*)(?={rest})", flags)
        self._escaped = pattern(rf"({first}\\*)\\(?={rest})", flags)

    def escape(self, text: str) -> str:
        """The text, with every mark in it escaped."""
        return self._whole.sub(r"\1\\", text)

    def unescape(self, text: str) -> str:
        """The inverse of `escape`. A text that needed no escape is unchanged."""
        return self._escaped.sub(r"\1", text)
