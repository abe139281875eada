"""Convert to message content: from OpenAI's lists of parts, and from values that contain parts.

A part (an image, a sound, a file) may be deep inside a value: `list[dict[str, Image]]`. It leaves
the value in two ways:

- *For a model*, `render` and `pieces_of` write the value as JSON, with each part packed between two
  markers (`Type.serialize_model`), and then cut the text at the markers. Text may imitate the
  markers, and must not become a part. So the parts in the value are counted first; a text with
  another number of markers is written again with its own ones escaped.
- *For a file*, `marked_parts` replaces each part by a JSON object with the key `$part`, and
  `read_marked` reads it back without loss.

The classes of parts are imported inside functions: they take long to build, and most programs have
no parts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from ferrule.encoding.encode import inside_of, json_text
from ferrule.encoding.mark import Mark
from ferrule.errors import InputError, shown
from ferrule.values.content.parts import Audio, File, Image, Text, read_data_url
from ferrule.values.content.type import PART_END, PART_START, Type, split_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import TypeIs

    from ferrule.values.content.parts import Content, Part

    Piece = str | Part
    """A piece of text, or a part that is not text."""

_PART_KEY = "$part"
_BINARY_PREFIX = "data:application/octet-stream;base64,"
_PART_MARK = Mark("<", "</?ferrule-part>>")
_MAX_DEPTH = 20
"""Values nested deeper than this are not searched for parts."""


# -- content


def content_text(content: Content) -> str:
    """Content as plain text; other parts are named in brackets."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text if isinstance(part, Text) else f"[{part!r}]" for part in content)


def is_part(value: Any) -> TypeIs[Part]:
    """Whether a value is a part of a message."""
    # Nothing but a `Type` can be a part.
    if not isinstance(value, Type):
        return False
    return isinstance(value, (Text, Image, Audio, File))


def content_of(pieces: Sequence[Piece]) -> Content:
    """Join pieces into content: a plain string if all are text, otherwise parts.

    Adjacent texts are joined.
    """
    if all(isinstance(piece, str) for piece in pieces):
        return "".join(cast("Sequence[str]", pieces))
    joined: list[Piece] = []
    for piece in pieces:
        text = piece.text if isinstance(piece, Text) else piece
        if isinstance(text, str) and joined and isinstance(joined[-1], str):
            joined[-1] += text
        elif text != "":
            joined.append(text)
    if all(isinstance(piece, str) for piece in joined):
        return "".join(cast("list[str]", joined))
    return tuple(Text(text=piece) if isinstance(piece, str) else piece for piece in joined)


def read_content(value: Any) -> Content:
    """Read a message's content in OpenAI's form: a text, a list of parts, or None.

    Raises `InputError` for anything else.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if is_part(value):
        return content_of([value])
    if not isinstance(value, (list, tuple)):
        raise InputError(
            f"The content of a message must be a string or a list of parts, found {shown(value)}."
        )
    return content_of([read_part(part) for part in cast("list[Any]", value)])


def read_part(value: Any) -> Part:
    """Read one part in OpenAI's form; a part is returned unchanged."""
    if is_part(value):
        return value
    if isinstance(value, str):
        return Text(text=value)
    form: Mapping[str, Any] = {}
    if isinstance(value, Mapping):
        form = cast("Mapping[str, Any]", value)
    try:
        match form.get("type"):
            case "text":
                return Text(text=form["text"])
            case "image_url":
                # Some clients send the address itself in place of OpenAI's `{"url": ...}`.
                image = form["image_url"]
                return _media(Image, image if isinstance(image, str) else image["url"])
            case "input_audio":
                return read_sound(form["input_audio"])
            case "file":
                file = form["file"]
                return _media(File, file["file_data"], name=file.get("filename") or "file")
            case _:
                pass
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InputError(
            f"A part of type {form['type']!r} is incomplete or not valid: {reason}"
        ) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"A part of type {form['type']!r} is incomplete: {shown(form)}."
        ) from error
    raise InputError(
        f"There is no such part of a message: {shown(cast('object', value))}. "
        "Its type is 'text', 'image_url', 'input_audio' or 'file'."
    )


def read_sound(sound: Mapping[str, Any]) -> Audio:
    """Read the `input_audio` of OpenAI's audio part.

    It may have an address in place of the bytes, as `Audio.format` writes it.
    """
    data = sound["data"]
    file_type = sound.get("format", "wav")
    is_address = ":" in data  # base64 has no colon
    if not is_address:
        return Audio(data=data, media_type=f"audio/{file_type}")
    if file_type == "wav":
        return Audio(url=data)  # `wav` is also written where the type is unknown
    return Audio(url=data, media_type=f"audio/{file_type}")


def _media(kind: Any, address: str, **fields: Any) -> Any:
    inline = read_data_url(address)
    if inline is None:
        return kind(url=address, **fields)
    media_type, data = inline
    if media_type:
        fields["media_type"] = media_type
    return kind(data=data, **fields)


# -- values as a model sees them


def render(value: Any) -> Content:
    """A tool's return value as a model sees it.

    Text is unchanged, images and other parts are parts, and anything else is JSON.
    """
    if is_part(value):
        return (value,)
    if isinstance(value, (list, tuple)):
        items = cast("list[Any]", value)
        if any(is_part(item) for item in items):
            return tuple(part for item in items for part in _parts(render(item)))
    if isinstance(value, str):
        if type(value).__str__ is str.__str__:
            return str.__str__(value)
        # A member of a string `Enum` has a text of its own, which is not its value.
        return json.loads(json_text(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _text_of_bytes(bytes(value))  # pyright: ignore[reportUnknownArgumentType]
    text = json_text(cast("object", value))
    if PART_START in text:
        pieces = pieces_of(value)
        if pieces is not None:
            return content_of(pieces)
    if text.startswith('"'):  # a date, or an object without a form in JSON
        return json.loads(text)
    return text


def _parts(content: Content) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(text=content),)
    return content


def _text_of_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        import base64  # late: most bytes are text

        return f"{_BINARY_PREFIX}{base64.b64encode(value).decode()}"


def bytes_of_text(text: str) -> bytes:
    """The inverse of `render` for bytes: the bytes of a text that it wrote."""
    if not text.startswith(_BINARY_PREFIX):
        return text.encode()
    import base64

    return base64.b64decode(text.removeprefix(_BINARY_PREFIX))


# -- values as JSON data


def marked_parts(value: Any, depth: int = 0) -> Any:
    """The value with each part replaced by a JSON object.

    `read_marked` turns the object back into the part.
    """
    if is_part(value):
        return {_PART_KEY: type(value).__name__, **value.__dict__}
    if depth > _MAX_DEPTH or not _count_packed(value, depth):
        return value
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return {key: marked_parts(item, depth + 1) for key, item in mapping.items()}
    if isinstance(value, (list, tuple)):
        return [marked_parts(item, depth + 1) for item in cast("list[Any]", value)]
    # Models and sets are written in their own JSON form (aliases, excluded fields, order), in which
    # parts are packed.
    text = json_text(value)
    if text.count(PART_START) == text.count(PART_END) == _count_packed(value, depth):
        return _mark_packed(json.loads(text))
    return value


def _mark_packed(form: Any) -> Any:
    """JSON data in which each packed part is replaced by a marked object."""
    if isinstance(form, str) and form.startswith(PART_START) and form.endswith(PART_END):
        return {_PART_KEY: split_parts(form)}
    if isinstance(form, dict):
        return {key: _mark_packed(item) for key, item in cast("dict[str, Any]", form).items()}
    if isinstance(form, list):
        return [_mark_packed(item) for item in cast("list[Any]", form)]
    return form


def read_marked(value: Any) -> Any:
    """The inverse of `marked_parts`."""
    if isinstance(value, dict):
        form = cast("dict[str, Any]", value)
        if _PART_KEY in form:
            # A user's own data may look like a marked part. It then stays as it is.
            with suppress(InputError, ValidationError, TypeError):
                return _read_marked_part(form)
        return {key: read_marked(item) for key, item in form.items()}
    if isinstance(value, list):
        return [read_marked(item) for item in cast("list[Any]", value)]
    return value


def _read_marked_part(form: dict[str, Any]) -> Any:
    """The part, or the list of parts, of a marked object. Raises `TypeError` for other objects."""
    mark = form[_PART_KEY]
    fields = {name: value for name, value in form.items() if name != _PART_KEY}
    for kind in (Text, Image, Audio, File):
        if kind.__name__ == mark and fields.keys() == kind.model_fields.keys():
            return kind(**fields)
    if not isinstance(mark, list) or not mark or fields:
        raise TypeError("not a marked part")
    parts = [read_part(part) for part in cast("list[Any]", mark)]
    return parts[0] if len(parts) == 1 else parts


# -- values in pieces


def pieces_of(value: Any) -> list[Piece] | None:
    """Split a value that contains parts into pieces: the parts, and JSON between them.

    Returns None for a value without parts. Only values of a `Type` become parts: text that looks
    like a packed part stays text.
    """
    if value is None or isinstance(value, (str, int, float)):
        return None
    if is_part(value):
        return [value]
    count = _count_packed(value, 0)
    if not count:
        return None
    if isinstance(value, (list, tuple)):
        items = cast("list[Any]", value)
        if all(isinstance(item, Type) for item in items):
            return [piece for item in items for piece in pieces_of(item) or [json_text(item)]]
    if isinstance(value, Type):
        form = value.format()
        if isinstance(form, list):
            return [_read_piece(part) for part in cast("list[Any]", form)]
    return _split(value, count)


def _read_piece(form: Any) -> Piece:
    part = read_part(form)
    return part.text if isinstance(part, Text) else part


def _split(value: Any, count: int) -> list[Piece]:
    """The pieces of a value's JSON, in which `count` parts are packed."""
    text = json_text(value)
    if not _has_packed(text, count):  # a text in it imitates a packed part
        text = json_text(_without_marks(value, 0))
    if not _has_packed(text, count):
        return [text]
    # In JSON, a packed part has quotes around it, which stay in the text.
    parts = split_parts(text, in_json=True)
    if isinstance(parts, str):
        return [text]
    return [_read_piece(part) for part in parts]


def _has_packed(text: str, count: int) -> bool:
    return text.count(PART_START) == count and text.count(PART_END) == count


def _without_marks(value: Any, depth: int) -> Any:
    """The value, with the markers of parts escaped in its own texts."""
    if isinstance(value, str):
        return _PART_MARK.escape(value)
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, dict):
        mapping = cast("dict[Any, Any]", value)
        return {
            _without_marks(key, depth + 1): _without_marks(item, depth + 1)
            for key, item in mapping.items()
        }
    if isinstance(value, (list, tuple)):
        return [_without_marks(item, depth + 1) for item in cast("list[Any]", value)]
    return value


def _count_packed(value: Any, depth: int) -> int:
    """The number of values inside that become packed parts when the value is written as JSON."""
    if depth > _MAX_DEPTH or value is None or isinstance(value, (str, bytes, int, float)):
        return 0
    if isinstance(value, Type) and isinstance(value.format(), list):
        return 1
    return sum(_count_packed(item, depth + 1) for item in inside_of(value))
