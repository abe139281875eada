"""Finds out whether an argument of a call comes from a text that others may have written.

An argument is *tainted* if its value, or a part of it of 12 or more characters, occurs in an
untrusted result and not in the user's words. Both are compared without what a model changes when it
copies: case, accents, spaces, punctuation, invisible characters. A result is also read as it is
after decoding: entities of HTML, escapes of URLs, JSON and mails, base64, "at" and "dot".

Short values are also looked for backwards and in rot13.

In a long value, an address may be shorter than such a part. So addresses and hosts in it (of mails
and pages) and long numbers are also looked for by themselves. They are all that is looked for in
prose, if a rule says so (`tainted="values"`): a summary repeats what it sums up.

The search is linear in the size of the results, and keeps no index. A part of 12 bytes that two
texts have in common contains 8 bytes whose place in the second text is a multiple of 4. So of the
8-byte windows of the arguments, those that are also aligned blocks of a result have every common
part around them. These candidates are then compared. More comparisons than a bound allows count as
found: a doubt never lets a call through.
"""

from __future__ import annotations

import base64
import codecs
import html
import math
import re
import sys
import unicodedata
from contextlib import suppress
from decimal import Decimal
from functools import cache
from itertools import compress, count, islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from msgspec import Struct

from ferrule.encoding.safe_text import one_line, reveal
from ferrule.schema.nodes import is_object, is_sequence
from ferrule.values.content.convert import content_text
from ferrule.values.content.parts import Content, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

PART_CHARS = 12
"""The size of a part of a value that makes it tainted."""
_BLOCK_BYTES = 8
_STRIDE_BYTES = 4
_CHUNK_BLOCKS = 8_192
_MOST_COMPARISONS = 500_000
"""Of candidates of one call: about 100 ms."""
_MOST_OCCURRENCES = 20_000
"""Of a short value inside other words, before it counts as found."""
_WORD_CHARS = 8
"""A shorter value must occur as a word: `13` does not occur in `2013`."""
_MOST_WORDS = 12
"""Of a value; a longer text is prose."""
_MOST_DECODED = 1_000
"""Words of one result that are read as base64 and as hexadecimal digits."""
_MOST_UNDONE = 3
"""Encodings within one another that are decoded."""
_DISGUISED = range(6, 100)
"""The sizes of values that are also looked for backwards and so on."""
_MOST_BYTES_DISGUISED = 100_000
_MOST_NAMED = 3
"""Arguments that a reason names."""

_GAP = re.compile(r"[\W_]+")
_LOOKALIKES = str.maketrans(
    # Cyrillic, then Greek, then the dotless i.
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u04bb\u043a"
    "\u03bf\u03b1\u03bd\u03b9\u03c1\u03c5\u03ba\u0131",
    "aeopcyxijsdhkoavipuki",
)
_NO_WORD = "".join(chr(code) for code in range(128) if not chr(code).isalnum())
_FROM_URL_ALPHABET = str.maketrans("-_", "+/")
_ASCII_GAPS = bytes(code for code in range(128) if not chr(code).isalnum())
_NUMBER = re.compile(r"\d(?:[\d.,'\u2019\u00a0\u202f]*\d)?")
_DECIMALS = re.compile(r"[.,](\d{1,2})$")
_ADDRESS = re.compile(r"\S*(?:@|://|www\.|\w\.\w\w|\d{7})\S*")
_HOST = re.compile(r"[\w-]+(?:\.[\w-]+)+")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{12,}={0,2}")
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|=([0-9A-F]{2})|=\r?\n")
_SPELLED = re.compile(r"at[\s)\]}>_-]+[\w-]+(?:\.|[\s(\[{<_-]+dot[\s)\]}>_-]+)\w")
"""In an address with words for its signs: `ada (at) example dot com`."""
_SPELLED_CHARS = 64
"""Before and after such a place, that may belong to the address."""
_SIGN = re.compile(
    r"[\s(\[{<_-]+(?:at|dot)[\s)\]}>_-]+",
)


class Source(Struct):
    """A result of the run that others than its user may have written."""

    tool: str
    number: int
    """The number of its call among the calls of the run, from 1; 0 if it is of an earlier turn."""
    content: Content
    _texts: _Texts | None = None

    def __str__(self) -> str:
        name = one_line(reveal(self.tool))
        if self.number == 0:
            return f"the result of `{name}` in an earlier turn"
        return f"the result of `{name}` (call {self.number})"

    @property
    def texts(self) -> _Texts:
        """The texts in which values are looked for: its own, and decoded. Made once."""
        if self._texts is None:
            self._texts = _Texts(_readings(content_text(self.content)))
        return self._texts

    @property
    def is_all_text(self) -> bool:
        """Whether it has no images or other parts in which nothing can be looked for."""
        if isinstance(self.content, str):
            return True
        return all(isinstance(part, Text) for part in self.content)


def tainted_arguments(
    args: Mapping[str, Any],
    schema: Mapping[str, Any],
    sources: Sequence[Source],
    words: Sequence[str],
    *,
    in_prose: bool = True,
) -> str:
    """Which arguments of a call are tainted, and where each comes from; empty if none is.

    Args:
        args: The checked arguments, as JSON.
        schema: The schema of the arguments. A value that it lists, or its default, is its author's.
        sources: The untrusted results.
        words: The user's words.
        in_prose: Whether parts of prose count, besides the addresses in it.

    """
    if not sources:
        return ""
    sought = _Sought(_Texts(words), in_prose=in_prose)
    for name, value in _values(args, schema, schema):
        sought.add(name, value)
    found: dict[str, str] = {}
    for source in sources:
        here = sought.found_in(source.texts)
        for name in sought.names:
            if name in here:
                found.setdefault(name, f"comes from {source}")
        if not source.is_all_text:
            for name in sought.names:
                found.setdefault(name, f"may come from {source}, which is not all text")
    if not found and sought.is_given_up:
        name = sought.names[0]
        found[name] = "may come from an untrusted result: there is too much text to compare"
    named = [f"`{one_line(reveal(name))}` {where}" for name, where in found.items()]
    if len(named) > _MOST_NAMED:
        named[_MOST_NAMED:] = [f"and {len(named) - _MOST_NAMED} more do"]
    return "; ".join(named)


# -- the values of a call


def _values(value: Any, schema: Any, root: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The texts and numbers in the arguments that are not of the tool's author, with names."""
    schema = _resolved(schema, root)
    if value is None or isinstance(value, bool) or _is_of_author(value, schema, root):
        return
    if is_object(value):
        known = schema.get("properties")
        properties: Mapping[str, Any] = known if is_object(known) else {}
        for key, item in value.items():
            path = f"{name}.{key}" if name else key
            if key not in properties and name:
                yield path, key
            yield from _values(item, properties.get(key, {}), root, path)
    elif is_sequence(value):
        for index, item in enumerate(value):
            yield from _values(item, schema.get("items", {}), root, f"{name}[{index}]")
    elif isinstance(value, (str, int, float)):
        yield name, value


def _resolved(schema: Any, root: Any) -> Mapping[str, Any]:
    """A schema, or the one that it refers to."""
    for _ in range(8):
        if not is_object(schema):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        target: Any = root
        for part in reference[2:].split("/"):
            target = target.get(part) if is_object(target) else None
        schema = target
    return {}


def _is_of_author(value: Any, schema: Mapping[str, Any], root: Any) -> bool:
    """Whether the schema lists this value, or has it as its default."""
    for key in ("default", "const"):
        if key in schema and _is_same(schema[key], value):
            return True
    listed = schema.get("enum")
    if is_sequence(listed) and any(_is_same(item, value) for item in listed):
        return True
    for key in ("anyOf", "oneOf", "allOf"):
        forms = schema.get(key)
        if not is_sequence(forms):
            continue
        if any(_is_of_author(value, _resolved(form, root), root) for form in forms):
            return True
    return False


def _is_same(first: Any, second: Any) -> bool:
    return type(first) is type(second) and first == second


class _Sought:
    """The values of a call that are looked for, without those that are the user's words."""

    def __init__(self, words: _Texts, *, in_prose: bool) -> None:
        self.names: list[str] = []
        """The arguments that are not wholly the user's words."""
        self.is_given_up = False
        """Whether the search was too long somewhere."""
        self._words = words
        self._in_prose = in_prose
        self._said: set[str] | None = None
        self._values: list[tuple[str, _Value]] = []
        """The values that are looked for as a whole."""
        self._parts: dict[int, list[tuple[bytes, int, str]]] = {}
        """By each 8-byte block: the parts that contain it, at which place, and whose they are."""
        self._comparisons_left = _MOST_COMPARISONS

    def add(self, name: str, thing: Any) -> None:
        """Look for a value, unless the user said it."""
        value = _Value(thing)
        if not value.packed or value.is_in(self._words):
            return
        self.names.append(name)
        if self._in_prose or not value.is_prose:
            if len(value.packed) < PART_CHARS or value.numbers or value.disguises:
                self._values.append((name, value))
            self._add_parts(name, value.packed)
        for text in {*_ADDRESS.findall(value.folded), *_HOST.findall(value.folded)}:
            address = _Value(text)
            if not address.packed or address.is_in(self._words):
                continue
            self._values.append((name, address))
            self._add_parts(name, address.packed)

    def _add_parts(self, name: str, packed: str) -> None:
        said = self._said_parts()
        for start in range(len(packed) - PART_CHARS + 1):
            text = packed[start : start + PART_CHARS]
            if text in said:
                continue
            part = text.encode()
            for place in range(len(part) - _BLOCK_BYTES + 1):
                block = int.from_bytes(part[place : place + _BLOCK_BYTES], sys.byteorder)
                self._parts.setdefault(block, []).append((part, place, name))

    def _said_parts(self) -> set[str]:
        """The parts of the user's words."""
        if self._said is None:
            packed = self._words.packed.decode()
            starts = range(len(packed) - PART_CHARS + 1)
            self._said = {packed[start : start + PART_CHARS] for start in starts}
        return self._said

    def found_in(self, texts: _Texts) -> set[str]:
        """The names of the arguments that occur in these texts."""
        found = {name for name, value in self._values if value.is_found_in(texts)}
        if self._parts:
            self._find_parts(texts.packed, found)
        return found

    def _find_parts(self, packed: bytes, found: set[str]) -> None:
        wanted, view = frozenset(self._parts), memoryview(packed)
        for start in (0, _STRIDE_BYTES):
            whole = (len(packed) - start) // _BLOCK_BYTES * _BLOCK_BYTES
            if whole <= 0:
                continue
            blocks: Any = view[start : start + whole].cast("Q")
            for first in range(0, len(blocks), _CHUNK_BLOCKS):
                chunk = blocks[first : first + _CHUNK_BLOCKS]
                if wanted.isdisjoint(chunk):
                    continue
                for number in compress(count(), map(wanted.__contains__, chunk)):
                    place = start + (first + number) * _BLOCK_BYTES
                    self._confirm(chunk[number], packed, place, found)

    def _confirm(self, block: int, packed: bytes, place: int, found: set[str]) -> None:
        """Add the arguments of which a whole part occurs around this block."""
        for part, offset, name in self._parts[block]:
            self._comparisons_left -= 1
            if self._comparisons_left < 0:
                self.is_given_up = True
                return
            if place >= offset and packed.startswith(part, place - offset):
                found.add(name)


class _Value:
    """A value as it is looked for as a whole."""

    def __init__(self, value: Any) -> None:
        self._is_text = isinstance(value, str)
        text = value
        if not self._is_text:
            text = f"{Decimal(repr(value)):f}" if math.isfinite(value) else str(value)
        self.folded = _folded(text)
        self.packed = _GAP.sub("", self.folded)
        self.numbers: frozenset[str] = frozenset()
        if _NUMBER.fullmatch(self.folded.strip().lstrip("+-$\u20ac\u00a3")):
            self.numbers = frozenset(map(_number_form, _NUMBER.findall(self.folded)))

    @property
    def disguises(self) -> tuple[bytes, ...]:
        """How a text may give it to a model to decode, besides what is decoded in texts."""
        if len(self.packed) not in _DISGUISED:
            return ()
        return self.packed[::-1].encode(), codecs.encode(self.packed, "rot13").encode()

    def is_found_in(self, texts: _Texts) -> bool:
        """Whether the texts have it, perhaps in disguise; a long one is found by its parts."""
        is_short = len(self.packed) < PART_CHARS
        if (is_short or self.numbers) and self.is_in(texts):
            return True
        if len(texts.packed) > _MOST_BYTES_DISGUISED:
            return False
        return any(disguise in texts.packed for disguise in self.disguises)

    def is_in(self, texts: _Texts) -> bool:
        """Whether the texts have it: a number in any form, a short word as a word of its own."""
        if not self.numbers.isdisjoint(texts.numbers):
            return True
        if not self._is_text:
            return False
        if self._is_short_word:
            return texts.has_word(self.packed)
        return self.packed.encode() in texts.packed

    @property
    def is_prose(self) -> bool:
        """Whether it is a text of more than a few words."""
        return len(self.folded.split()) > _MOST_WORDS

    @property
    def _is_short_word(self) -> bool:
        # Languages without spaces have no words of their own.
        if len(self.packed) >= _WORD_CHARS or not self.packed.isascii():
            return False
        return self.packed == self.folded.strip(_NO_WORD)


class _Texts:
    """Texts in which values are looked for."""

    def __init__(self, texts: Iterable[str]) -> None:
        folded = [_folded(text) for text in texts]
        self.folded = "\n".join(folded)
        # No value has the sign between two texts.
        self.packed = b"\x00".join(map(_packed, folded))
        self._numbers: frozenset[str] | None = None

    @property
    def numbers(self) -> frozenset[str]:
        """The numbers in the texts, each in one form."""
        if self._numbers is None:
            self._numbers = frozenset(map(_number_form, set(_NUMBER.findall(self.folded))))
        return self._numbers

    def has_word(self, word: str) -> bool:
        """Whether the texts have a word that is not a part of a longer one."""
        start = self.folded.find(word)
        for _ in range(_MOST_OCCURRENCES):
            if start < 0:
                return False
            end = start + len(word)
            around = self.folded[max(start - 1, 0) : start] + self.folded[end : end + 1]
            if not any(map(str.isalnum, around)):
                return True
            start = self.folded.find(word, start + 1)
        return True


# -- the forms of a text


def _readings(text: str) -> Iterator[str]:
    """A text as it is, and decoded where it has escapes."""
    yield text
    decoded = text
    for _ in range(_MOST_UNDONE):
        before = decoded
        decoded = _undone(before)
        if decoded == before:
            break
        yield decoded
    lower = decoded.lower()
    for match in _SPELLED.finditer(lower):
        around = slice(max(match.start() - _SPELLED_CHARS, 0), match.start() + _SPELLED_CHARS)
        yield _SIGN.sub(" ", lower[around])
    for match in islice(_BASE64.finditer(text), _MOST_DECODED):
        word = match[0].rstrip("=").translate(_FROM_URL_ALPHABET)
        with suppress(ValueError):
            yield base64.b64decode(word + "=" * (-len(word) % 4)).decode()
        with suppress(ValueError):  # hexadecimal digits are letters of base64
            yield bytes.fromhex(word).decode()


def _undone(text: str) -> str:
    """A text with its escapes decoded once."""
    if "&" in text:
        text = html.unescape(text)
    if "%" in text:
        text = unquote(text)
    if "\\" in text or "=" in text:
        text = _ESCAPE.sub(_unescaped, text)
    return text


def _unescaped(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    return chr(int(code, 16)) if code else ""


def _folded(text: str) -> str:
    """A text without case, accents, and signs that are not seen."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKD", text.casefold()).translate(_unseen())


@cache
def _unseen() -> dict[int, int | None]:
    """What becomes of signs that are not seen, and of letters that look like those of Latin."""
    categories = {"Mn", "Me", "Cf"}
    codes = range(sys.maxunicode + 1)
    unseen = [code for code in codes if unicodedata.category(chr(code)) in categories]
    return {**dict.fromkeys(unseen), **_LOOKALIKES}


def _packed(folded: str) -> bytes:
    """A folded text without anything but letters and digits."""
    if folded.isascii():
        return folded.encode().translate(None, _ASCII_GAPS)
    return _GAP.sub("", folded).encode(errors="surrogatepass")


def _number_form(text: str) -> str:
    """A number in one form: `1,500.50`, `1.500,50` and `1500.5` are equal."""
    decimals = _DECIMALS.search(text)
    whole, part = text, ""
    if decimals is not None:
        whole, part = text[: decimals.start()], decimals[1].rstrip("0")
    digits = "".join(re.findall(r"\d", whole)).lstrip("0") or "0"
    return f"{digits}.{part}" if part else digits
