"""Convert to message content: from OpenAI's lists of parts, and from values that contain images and other parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from ferrule.encoding.encode import inside_of, json_text
from ferrule.encoding.mark import Mark
from ferrule.errors import InputError, shown
from ferrule.values.content.type import PART_END, PART_START, Type, split_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import TypeIs

    from ferrule.values.content.parts import Audio, Content, Part

    Piece = str | Part
    """A piece of text, or a part that is not text."""

_MARK = "$part"
_BINARY = "data:application/octet-stream;base64,"
_PART = Mark("<", "</?ferrule-part>>")
_MOST_BITS = 64
_DEEPEST = 20
"""Values nested deeper than this are not searched for parts."""


def content_text(content: Content) -> str:
    """Content as plain text; other parts are named in brackets."""
    if isinstance(content, str):
        return content
    from ferrule.values.content.parts import Text

    return "\n".join(part.text if isinstance(part, Text) else f"[{part!r}]" for part in content)


def is_part(value: Any) -> TypeIs[Part]:
    """Whether a value is a part of a message. The classes of parts are imported only if it may be one: most programs have none."""
    if not isinstance(value, Type):
        return False
    from ferrule.values.content.parts import Audio, File, Image, Text

    return isinstance(value, (Text, Image, Audio, File))


def content_of(pieces: Sequence[Piece]) -> Content:
    """Join pieces into content: a plain string if all are text, otherwise parts. Adjacent texts are joined."""
    try:
        # Nearly always there is only text. Without a `cast`, which would cost a call for every
        # message.
        return "".join(pieces)  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType]
    except TypeError:
        pass
    from ferrule.values.content.parts import Text

    joined: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Text):
            piece = piece.text  # noqa: PLW2901  from here on a text like any other
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif piece != "":
            joined.append(piece)
    if all(isinstance(piece, str) for piece in joined):
        return "".join(cast("list[str]", joined))
    return tuple(Text(text=piece) if isinstance(piece, str) else piece for piece in joined)


def read_content(value: Any) -> Content:
    """Read a message's content in OpenAI's form: a text, a list of parts, or None. Raises `InputError` for anything else."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if is_part(value):
        return content_of([value])
    if not isinstance(value, (list, tuple)):
        raise InputError(
            f"The content of a message must be a string or a list of parts, found {shown(value)}.",
        )
    return content_of([read_part(each) for each in cast("list[Any]", value)])


def read_part(value: Any) -> Part:
    """Read one part in OpenAI's form; a part is returned unchanged."""
    if is_part(value):
        return value
    from ferrule.values.content.parts import File, Image, Text

    if isinstance(value, str):
        return Text(text=value)
    part: Mapping[str, Any] = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
    try:
        match part.get("type"):
            case "text":
                return Text(text=part["text"])
            case "image_url":
                address = part["image_url"]
                return _media(Image, address if isinstance(address, str) else address["url"])
            case "input_audio":
                return read_sound(part["input_audio"])
            case "file":
                return _media(
                    File,
                    part["file"]["file_data"],
                    name=part["file"].get("filename") or "file",
                )
            case _:
                pass
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"A part of type {part['type']!r} is incomplete: {shown(part)}.",
        ) from error
    msg = f"There is no such part of a message: {shown(cast('object', value))}. Its type is 'text', 'image_url', 'input_audio' or 'file'."
    raise InputError(msg)


def read_sound(sound: Mapping[str, Any]) -> Audio:
    """Read the `input_audio` of OpenAI's audio part. It may have an address in place of the bytes, as `Audio.format` writes it."""
    from ferrule.values.content.parts import Audio

    data, kind = sound["data"], sound.get("format", "wav")
    if ":" not in data:
        return Audio(data=data, media_type=f"audio/{kind}")
    return (
        Audio(url=data) if kind == "wav" else Audio(url=data, media_type=f"audio/{kind}")
    )  # the first is the default, and may be unknown


def _media(kind: Any, address: str, **more: Any) -> Any:
    from ferrule.values.content.parts import read_data_url

    found = read_data_url(address)
    if found is None:
        return kind(url=address, **more)
    media_type, data = found
    return kind(data=data, **({"media_type": media_type} if media_type else {}), **more)


def render(value: Any) -> Content:
    """A tool's return value as a model sees it: text unchanged, images and other parts as parts, anything else as JSON."""
    if (
        type(value) is int and value.bit_length() < _MOST_BITS
    ):  # a common result: 2 % of a step without this line
        return str(value)
    if is_part(value):
        return (value,)
    if isinstance(value, (list, tuple)) and any(is_part(each) for each in cast("list[Any]", value)):
        return tuple(part for each in cast("list[Any]", value) for part in _parts(render(each)))
    if isinstance(value, str):
        return (
            str.__str__(value)
            if type(value).__str__ is str.__str__
            else json.loads(json_text(value))
        )
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _text_of_bytes(bytes(value))  # pyright: ignore[reportUnknownArgumentType]
    text = json_text(cast("object", value))
    if PART_START in text and (pieces := pieces_of(value)) is not None:
        return content_of(pieces)
    return (
        json.loads(text) if text.startswith('"') else text
    )  # a date, or an object without a form in JSON


def _parts(content: Content) -> tuple[Part, ...]:
    from ferrule.values.content.parts import Text

    return (Text(text=content),) if isinstance(content, str) else content


def _text_of_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        import base64  # late: most bytes are text

        return f"{_BINARY}{base64.b64encode(value).decode()}"


def bytes_of_text(text: str) -> bytes:
    """The inverse of `render` for bytes: the bytes of a text that it wrote."""
    if not text.startswith(_BINARY):
        return text.encode()
    import base64

    return base64.b64decode(text.removeprefix(_BINARY))


def marked_parts(value: Any, depth: int = 0) -> Any:
    """The value with each part replaced by a JSON object that `read_marked` turns back into the part."""
    if is_part(value):
        return {_MARK: type(value).__name__, **value.__dict__}
    if depth > _DEEPEST or not _count(value, depth):
        return value
    if isinstance(value, Mapping):
        return {
            key: marked_parts(each, depth + 1)
            for key, each in cast("Mapping[Any, Any]", value).items()
        }
    if isinstance(value, (list, tuple)):
        return [marked_parts(each, depth + 1) for each in cast("list[Any]", value)]
    # Models and sets are written in their own JSON form (aliases, excluded fields, order), in which
    # parts are packed.
    text = json_text(value)
    is_sure = text.count(PART_START) == text.count(PART_END) == _count(value, depth)
    return _unpacked(json.loads(text)) if is_sure else value


def _unpacked(form: Any) -> Any:
    if isinstance(form, str) and form.startswith(PART_START) and form.endswith(PART_END):
        return {_MARK: split_parts(form)}
    if isinstance(form, dict):
        return {key: _unpacked(each) for key, each in cast("dict[str, Any]", form).items()}
    return [_unpacked(each) for each in cast("list[Any]", form)] if isinstance(form, list) else form


def read_marked(value: Any) -> Any:
    """The inverse of `marked_parts`."""
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        if _MARK in found:
            with suppress(
                InputError,
                ValidationError,
                TypeError,
            ):  # a user's own data may look like a marked part
                return _read_mark(
                    found[_MARK],
                    {name: each for name, each in found.items() if name != _MARK},
                )
        return {key: read_marked(each) for key, each in found.items()}
    return (
        [read_marked(each) for each in cast("list[Any]", value)]
        if isinstance(value, list)
        else value
    )


def _read_mark(mark: Any, fields: dict[str, Any]) -> Any:
    from ferrule.values.content.parts import Audio, File, Image, Text

    kind = next((each for each in (Text, Image, Audio, File) if each.__name__ == mark), None)
    if kind is not None and fields.keys() == kind.model_fields.keys():
        return kind(**fields)
    found = cast("list[Any]", mark) if isinstance(mark, list) and not fields else []
    if not found:
        raise TypeError("no marked part")
    parts = [read_part(each) for each in found]
    return parts[0] if len(parts) == 1 else parts


def pieces_of(value: Any) -> list[Piece] | None:
    """Split a value that contains parts into pieces: the parts, and JSON between them. Returns None for a value without parts.

    Only values of a `Type` become parts: text that looks like a packed part stays text.
    """
    if value is None or isinstance(value, (str, int, float)):
        return None
    if is_part(value):
        return [value]
    count = _count(value, 0)
    if not count:
        return None
    if isinstance(value, (list, tuple)) and all(
        isinstance(each, Type) for each in cast("list[Any]", value)
    ):
        return [
            piece
            for each in cast("list[Any]", value)
            for piece in pieces_of(each) or [json_text(each)]
        ]
    form = value.format() if isinstance(value, Type) else None
    return (
        list(map(_one_piece, cast("list[Any]", form)))
        if isinstance(form, list)
        else _split(value, count)
    )


def _one_piece(form: Any) -> Piece:
    from ferrule.values.content.parts import Text

    part = read_part(form)
    return part.text if isinstance(part, Text) else part


def _split(value: Any, count: int) -> list[Piece]:
    text = json_text(value)
    if (
        text.count(PART_START) != count or text.count(PART_END) != count
    ):  # a text imitates a packed part
        text = json_text(_without_marks(value, 0))
    if text.count(PART_START) != count or text.count(PART_END) != count:
        return [text]
    # In JSON, a packed part has quotes around it, which stay in the text.
    parts = split_parts(text, in_json=True)
    return [text] if isinstance(parts, str) else [_one_piece(each) for each in parts]


def _without_marks(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _PART.escape(value)
    if isinstance(value, dict) and depth <= _DEEPEST:
        found = cast("dict[Any, Any]", value)
        return {
            _without_marks(key, depth + 1): _without_marks(each, depth + 1)
            for key, each in found.items()
        }
    if isinstance(value, (list, tuple)) and depth <= _DEEPEST:
        return [_without_marks(each, depth + 1) for each in cast("list[Any]", value)]
    return cast("Any", value)


def _count(value: Any, depth: int) -> int:
    """The number of values inside that become packed parts when the value is written as JSON."""
    if depth > _DEEPEST or value is None or isinstance(value, (str, bytes, int, float)):
        return 0
    if isinstance(value, Type) and isinstance(value.format(), list):
        return 1
    return sum(_count(each, depth + 1) for each in inside_of(value))
