"""`About`: who and what a run is for, in the words of the program that starts it.

A run keeps its metadata and its title in its head. They are in events, spans and lists, and never
in a request to a model. A store finds runs by their metadata with an index of digests, one for each
name with its value: so a long value costs the index no more than a short one.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, cast

from msgspec import Struct, field

from ferrule.encoding.encode import digest_of, is_exact, json_bytes, jsonable
from ferrule.errors import InputError, shown

_MOST_NAMES = 64
_LONGEST_NAME = 100
_MOST_BYTES = 16_000
"""Of all metadata of a run, as JSON: each list of runs reads it."""
_LONGEST_TITLE = 200
_LONGEST_NOTE = 4_000
_DIGITS = 32
_NOT_IN_A_LINE = frozenset({"Cc", "Cs", "Zl", "Zp"})
_HOW = "such as {'user': 'ada', 'conversation': 'c-17'}"


class About(Struct, frozen=True):
    """Who and what a run is for."""

    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON values by name."""
    title: str = ""
    """One line; empty without a title."""

    def index(self) -> list[str]:
        """What a store indexes: a digest of each name with its value."""
        return digests(self.metadata)

    def form(self) -> dict[str, Any]:
        """Its part of a run's head."""
        form: dict[str, Any] = {}
        if self.metadata:
            form["metadata"] = dict(self.metadata)
        if self.title:
            form["title"] = self.title
        return form

    def inside(self, outer: About) -> About:
        """What a run is about that a tool of another run starts.

        It has the metadata of that run, where it has no value of its own. The title is its own.
        """
        if not outer.metadata:
            return self
        metadata = {**outer.metadata, **self.metadata}
        return about(metadata, self.title)


NOTHING = About()


def about(metadata: Any, title: Any) -> About:
    """Check the options `metadata=` and `title=` of a run; None is none.

    Raises `InputError` for what is not JSON, or is too large for a list of runs.
    """
    if metadata is None and title is None:
        return NOTHING
    return About(check_metadata({} if metadata is None else metadata), _check_title(title))


def refuse_about(options: Mapping[str, Any]) -> None:
    """Raise `InputError` if a call that resumes a run gives it other metadata or another title."""
    for name, value in options.items():
        if value is not None:
            raise InputError(
                f"A resumed run keeps its `{name}`; found {shown(value)}. Leave it out."
            )


def check_metadata(metadata: Any) -> dict[str, Any]:
    """Metadata as plain JSON data, copied. Raises `InputError` for anything else."""
    if not isinstance(metadata, Mapping):
        raise InputError(
            f"`metadata` is a mapping of JSON values, {_HOW}; found {shown(metadata)}."
        )
    values = cast("Mapping[Any, Any]", metadata)
    if len(values) > _MOST_NAMES:
        raise InputError(f"`metadata` has at most {_MOST_NAMES} names; found {len(values)}.")
    checked = {_check_name(name): _check_value(name, value) for name, value in values.items()}
    size = len(json_bytes(checked))
    if size > _MOST_BYTES:
        raise InputError(
            f"`metadata` takes at most {_MOST_BYTES:,} bytes of JSON, because each list of runs "
            f"reads it; found {size:,}. Keep the data elsewhere, and its id here."
        )
    return checked


def _check_name(name: Any) -> str:
    is_name = _is_line(name) and bool(name.strip()) and "=" not in name
    if not is_name or len(name) > _LONGEST_NAME:
        raise InputError(
            f"A name in `metadata` is a text of 1 to {_LONGEST_NAME} characters, without line "
            f"breaks and `=`; found {shown(name)}."
        )
    return name


def _check_value(name: str, value: Any) -> Any:
    problem = ""
    try:
        if not _is_json(value) or not is_exact(value):
            problem = f"found {shown(value)}"
        else:
            # Lone surrogates: no database takes them.
            json.dumps(value, ensure_ascii=False).encode()
            return jsonable(value)
    except (UnicodeEncodeError, RecursionError):
        problem = "found text that is not valid UTF-8, or values nested too deep"
    raise InputError(
        f"`metadata` has JSON values: text, numbers, booleans, None, lists and dicts with text as "
        f"keys. Under {name!r}, {problem}."
    )


def _is_json(value: Any) -> bool:
    if type(value) in {str, int, float, bool, type(None)}:
        return True
    # Exactly these types: a subclass would not come back from a store.
    if type(value) is list:
        return all(map(_is_json, cast("list[Any]", value)))
    if type(value) is dict:
        items = cast("dict[Any, Any]", value).items()
        return all(type(key) is str and _is_json(item) for key, item in items)
    return False


def _check_title(title: Any) -> str:
    if title is None:
        return ""
    if not _is_line(title) or len(title) > _LONGEST_TITLE:
        raise InputError(
            f"`title` is one line of at most {_LONGEST_TITLE} characters; found {shown(title)}."
        )
    return title.strip()


def _is_line(text: Any) -> bool:
    """Whether a value is a text without line breaks, other control codes and lone surrogates."""
    if type(text) is not str:
        return False
    return not any(unicodedata.category(character) in _NOT_IN_A_LINE for character in text)


def assignment_label(person: str) -> str:
    """What a store indexes of the person to whom a run is assigned."""
    # Two names and a value: no metadata has a digest like this.
    return digest_of(["assigned", "to", person], _DIGITS)


def check_person(person: Any) -> str:
    """The name of a person to whom a run is assigned; empty if it is not assigned.

    Raises `InputError` for what is not a short line.
    """
    if not _is_line(person) or len(person) > _LONGEST_NAME:
        raise InputError(
            f"A run is assigned to a name of at most {_LONGEST_NAME} characters on one line, or "
            f"to none with ''; found {shown(person)}."
        )
    return person.strip()


def check_note(text: Any) -> str:
    """The text of a note on a run. Raises `InputError` for what no store keeps as it is."""
    is_text = type(text) is str and bool(text.strip()) and len(text) <= _LONGEST_NOTE
    if is_text:
        is_text = not any(unicodedata.category(letter) == "Cs" or letter == "\0" for letter in text)
    if not is_text:
        raise InputError(
            f"A note is a text of 1 to {_LONGEST_NOTE:,} characters, valid UTF-8 without NUL; "
            f"found {shown(text)}."
        )
    return text.strip()


def read_pairs(pairs: Iterable[str]) -> dict[str, Any]:
    """Metadata from texts such as `user=ada`, for people who type it.

    A value is JSON if it parses, otherwise it is text. Raises `InputError` for other texts.
    """
    metadata: dict[str, Any] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name.strip():
            raise InputError(f"Metadata is written name=value; found {pair!r}.")
        try:
            metadata[name.strip()] = json.loads(value)
        except ValueError:
            metadata[name.strip()] = value
    return check_metadata(metadata)


def digests(metadata: Mapping[str, Any]) -> list[str]:
    """A digest of each name with its value. Equal JSON values have equal digests."""
    return [digest_of([name, _comparable(value)], _DIGITS) for name, value in metadata.items()]


def _comparable(value: Any) -> Any:
    """A JSON value in the one form that equals it: 1.0 is 1, and keys are sorted."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_comparable(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = sorted(cast("dict[str, Any]", value).items())
        return {key: _comparable(item) for key, item in items}
    return value
