"""Text of models and tools made fit for a terminal: nothing in it can move the cursor, change colours or hide."""

from __future__ import annotations

import re
from unicodedata import category

_ESCAPES = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # operating system commands: titles, links, the clipboard
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c\n]*(?:\x1b\\|\x9c)?"  # device control and private strings
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours, cursor, screen
    r"|\x1b[ -/]*[0-~]?"  # the short ones
)
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls but tab and line feed
    "\u200e\u200f\u202a-\u202e\u2066-\u2069\u061c"  # what turns the direction of writing: it can make text read as something else
    "\ufeff\u2028\u2029]"
)
_UNSEEN_KINDS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_SURROGATES = re.compile("[\ud800-\udfff]")


def plain(text: str) -> str:
    """The text without escape sequences and control characters; line feeds and tabs stay, lone surrogates become `\ufffd`."""
    text = text.replace("\r\n", "\n")
    return _SURROGATES.sub("\ufffd", _UNSEEN.sub("", _ESCAPES.sub("", text)))


def revealed(text: str) -> str:
    """The text with the number of every character that is not seen in its place: for a person who decides on exactly this text."""
    return "".join(f"\\u{ord(each):04x}" if each not in "\n\t" and category(each) in _UNSEEN_KINDS else each for each in text)


def shortened(text: str, *, characters: int = 1_200, lines: int = 15) -> str:
    """Plain text of at most so many characters and lines, with a last line that says how much is missing."""
    text = plain(text).strip("\n")
    kept = "\n".join(text[:characters].split("\n")[:lines])
    missing = len(text) - len(kept)
    return text if missing == 0 else f"{kept}\n… ({missing} more characters)"


def one_line(text: str, characters: int = 400) -> str:
    """Plain text on one line, shortened at its end."""
    text = " ".join(plain(text).split())
    return text if len(text) <= characters else f"{text[: characters - 1]}…"
