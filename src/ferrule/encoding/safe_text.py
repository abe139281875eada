"""Make text from models and tools safe to show on a terminal or a page.

`printable` removes escape sequences and control characters; `reveal` shows each invisible character
as an escape.
"""

from __future__ import annotations

from unicodedata import category

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
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and line feed
    # changes of the writing direction, which make text read as something else
    "\u200e\u200f\u202a-\u202e\u2066-\u2069\u061c"
    "\ufeff\u2028\u2029]"
)
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_SURROGATES = pattern("[\ud800-\udfff]")


def printable(text: str) -> str:
    """The text without escape sequences and control characters.

    Line feeds and tabs stay, lone surrogates become `\ufffd`.
    """
    text = text.replace("\r\n", "\n")
    return _SURROGATES.sub("\ufffd", _STRIPPED.sub("", _ESCAPES.sub("", text)))


def reveal(text: str) -> str:
    """The text with each invisible character as an escape, for a person who must approve it."""
    if text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(
        f"\\u{ord(each):04x}" if each not in "\n\t" and category(each) in _INVISIBLE else each
        for each in text
    )


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
    if original.isprintable():
        hidden = set[str]()
    else:
        hidden = {each for each in original if each not in "\n\t" and category(each) in _INVISIBLE}
    if not hidden:
        return TypedText(text)
    for each in hidden:
        escape = reveal(each)
        if escape not in original:
            text = text.replace(escape, each)
    return text


def clip_lines(text: str, *, characters: int = 1_200, lines: int = 15) -> str:
    """Printable text of at most `characters` and `lines`; a last line says how much is missing."""
    text = printable(text).strip("\n")
    kept = "\n".join(text[:characters].split("\n")[:lines])
    missing = len(text) - len(kept)
    if missing == 0:
        return text
    return f"{kept}\n… ({missing} more characters)"


def one_line(text: str, characters: int = 400) -> str:
    """Printable text on one line, truncated to `characters`."""
    text = " ".join(printable(text).split())
    if len(text) <= characters:
        return text
    return f"{text[: characters - 1]}…"
