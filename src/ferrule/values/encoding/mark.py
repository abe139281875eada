"""`Mark`: a mark of a text form, such as the end of a fence, escaped inside values."""

from __future__ import annotations

import re

from ferrule.values.encoding.pattern import pattern


class Mark:
    r"""A mark that no value may hold. `escape` breaks each one in a text with a backslash, and `unescape` returns the text.

    The backslash stands behind the first character of the mark: `[\[ ## a ## ]]`. A mark that was escaped before gets one more, so
    different texts stay different.
    """

    __slots__ = ("_escaped", "_whole")

    def __init__(self, first: str, rest: str, flags: re.RegexFlag = re.NOFLAG) -> None:
        """`first` and `rest` are the patterns of the first character and of what follows it, where the pattern ends in linear time."""
        self._whole = pattern(rf"({first}\\*)(?={rest})", flags)
        self._escaped = pattern(rf"({first}\\*)\\(?={rest})", flags)

    def escape(self, text: str) -> str:
        """The text without the mark."""
        return self._whole.sub(r"\1\\", text)

    def unescape(self, text: str) -> str:
        """The text that `escape` took. A text that needed no escape is unchanged."""
        return self._escaped.sub(r"\1", text)
