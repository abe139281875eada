"""`pattern`: a regular expression that is compiled at its first use.

A short program uses few of the expressions that it imports.
"""

from __future__ import annotations

import re
from typing import Any, cast

_METHODS = ("finditer", "findall", "fullmatch", "match", "search", "split", "sub", "subn")


def pattern(text: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """Like `re.compile`, but compiled at the first use. After that, it costs the same."""
    return cast("Any", _Late(text, flags))


class _Late:
    __slots__ = ("_flags", "_text", *_METHODS)

    def __init__(self, text: str, flags: re.RegexFlag) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:  # called until the methods are set
        compiled = re.compile(self._text, self._flags)
        for method in _METHODS:
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)
