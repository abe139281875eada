"""Make text from models and tools safe to show on a terminal or a page.

`printable` removes escape sequences and control characters; `reveal` shows each invisible character
as an escape; `exact` shows a text so that no other text looks the same.

A character is invisible by its properties in the Unicode Character Database: its general category
is a control, a format, a surrogate, private use, or a separator of lines or paragraphs; or it is a
Default_Ignorable_Code_Point. That property includes all bidi controls except the Arabic letter
mark, which is a format, and the code points that Unicode reserves for invisible characters to come.
No property says that a symbol has a blank glyph: its name does.
"""

from __future__ import annotations

import json
from functools import lru_cache
from unicodedata import category, name

from ferrule.encoding.pattern import pattern

_ESCAPES = pattern(
    # operating system commands: titles, links, the clipboard
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    # device control and private strings
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c\n]*(?:\x1b\\|\x9c)?"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours, cursor, screen
    r"|\x1b[ -/]*[0-~]?"  # two-character escapes
)
_STRIPPED = pattern(
    # Control characters except tab and line feed.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    # Changes of the writing direction, which make text read as something else.
    "\u200e\u200f\u202a-\u202e\u2066-\u2069\u061c"
    "\ufeff\u2028\u2029]"
)
IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""The ranges of Default_Ignorable_Code_Point, for a class of a regular expression.

They are the whole property in DerivedCoreProperties.txt of Unicode 14 to 17; `\\p{DI}` of Perl has
the same. `unicodedata` does not have the property."""
_IGNORABLE = pattern(f"[{IGNORABLE}]")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_BLANK_NAMES = ("BLANK", "FILLER", "NULL NOTEHEAD")
"""How the names of symbols with a blank glyph end, such as BRAILLE PATTERN BLANK."""
_SURROGATES = pattern("[\ud800-\udfff]")


def printable(text: str) -> str:
    """The text without escape sequences and control characters.

    Line feeds and tabs stay, lone surrogates become `\ufffd`.
    """
    text = text.replace("\r\n", "\n")
    return _SURROGATES.sub("\ufffd", _STRIPPED.sub("", _ESCAPES.sub("", text)))


@lru_cache(4096)
def is_hidden(character: str) -> bool:
    """Whether a reader does not see a character. Line feeds and tabs have a visible effect."""
    if character in "\n\t":
        return False
    if category(character) in _INVISIBLE or _IGNORABLE.match(character):
        return True
    return name(character, "").endswith(_BLANK_NAMES)


def reveal(text: str) -> str:
    """The text with each invisible character as an escape, for a person who must approve it."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join([_escape(letter) if is_hidden(letter) else letter for letter in text])


def exact(text: str, *, is_json: bool = False) -> str:
    """As `reveal`, but different texts never look the same.

    Blanks that look like a plain one, or that end a line, are escapes too. A backslash is doubled
    where it could be read as the start of an escape, except in JSON, where it is doubled already.
    """
    if is_json:
        letters = [json.dumps(letter)[1:-1] if _is_unclear(letter) else letter for letter in text]
        return "".join(letters)
    return "\n".join([_exact_line(line) for line in text.split("\n")])


def _exact_line(line: str) -> str:
    end = len(line.rstrip(" "))
    if end == len(line) and line.isascii() and line.isprintable() and "\\" not in line:
        return line
    letters: list[str] = []
    backslashes = 0
    for index, letter in enumerate(line):
        is_escaped = index >= end or _is_unclear(letter)
        if is_escaped or letter in "uU":
            letters.append("\\" * backslashes)
        letters.append(_escape(letter) if is_escaped else letter)
        if letter == "\\":
            backslashes += 1
        else:
            backslashes = 0
    return "".join(letters)


def _is_unclear(character: str) -> bool:
    """Whether a character is hidden, or a blank that is not the plain one."""
    return is_hidden(character) or (character != " " and category(character) == "Zs")


def _escape(character: str) -> str:
    code = ord(character)
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\u{code:04x}"


class TypedText(str):
    """Text that a person typed.

    It is shown to them unchanged, because they would send whatever they see in its place.
    """

    __slots__ = ()


def conceal(text: str, original: str) -> str:
    """Put the original's invisible characters back into a person's edit of `reveal(original)`.

    An escape that the original has as plain text stays. If the original has no invisible
    characters, returns a `TypedText`.
    """
    hidden = {character for character in original if is_hidden(character)}
    if not hidden:
        return TypedText(text)
    for character in hidden:
        escape = _escape(character)
        if escape not in original:
            text = text.replace(escape, character)
    return text


def clip_lines(text: str, *, characters: int = 1_200, lines: int = 15) -> str:
    """Printable text of at most `characters` and `lines`; a last line says how much is missing."""
    text = printable(text).strip("\n")
    beginning = "\n".join(text[:characters].split("\n")[:lines])
    missing = len(text) - len(beginning)
    if missing == 0:
        return text
    return f"{beginning}\n… ({missing} more characters)"


def one_line(text: str, characters: int = 400) -> str:
    """Printable text on one line, truncated to `characters`."""
    text = " ".join(printable(text).split())
    if len(text) <= characters:
        return text
    return f"{text[: characters - 1]}…"
