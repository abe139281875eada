"""Parts of a message: text, image, audio, file.

Each part is a `Type`: the same class is used in signatures (`photo: Image`), in tool results and in
messages.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict
from pydantic_core import core_schema

from ferrule.encoding.pattern import pattern
from ferrule.errors import InputError, shown
from ferrule.record import CheckedModel
from ferrule.values.content.type import Type


class Text(CheckedModel, Type):
    """Plain text among other parts of a message: `Text(text="Look at this:")`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    text: str

    def format(self) -> list[dict[str, Any]]:
        """OpenAI's text part."""
        return [{"type": "text", "text": self.text}]


def media_type_of(name: str) -> str | None:
    """The MIME type of a file by its name.

    Python's own table comes first: on Windows, any program may change the system's table.
    """
    from mimetypes import MimeTypes, guess_type

    return MimeTypes().guess_type(name, strict=False)[0] or guess_type(name)[0]


_SCHEME = pattern(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:")
"""The scheme of an address.

Neither a drive letter of Windows, nor `file:`, which no provider can read.
"""
_DATA_URL = pattern(r"(?s)data:([^;,]*)(?:;[^,]*)?;base64,(.*)")


def read_data_url(address: str) -> tuple[str, str] | None:
    """The MIME type, perhaps empty, and the base64 of a `data:` URL (RFC 2397).

    Returns None for any other address.
    """
    match = _DATA_URL.fullmatch(address)
    if match is None:
        return None
    return match[1], match[2]


def is_base64(text: str) -> bool:
    """Whether a text is base64 as providers take it: with padding, without spaces or line breaks.

    The alphabet is that of RFC 4648, section 4, without the `-` and `_` of addresses.
    """
    try:
        binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # `binascii.Error`, or a character beyond ASCII
        return False
    return True


class _Media(CheckedModel, Type):
    """Media content: either bytes, as base64 in `data`, or an address in `url`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    data: str | None = None
    """Base64, without the `data:` prefix."""
    url: str | None = None
    media_type: str = "application/octet-stream"
    """The MIME type, such as `image/png`."""

    def __new__(cls, *args: Any, **fields: Any) -> Self:
        """Refuse mistakes that pydantic would not explain: positional values, and raw bytes."""
        takes_positional = cls.__init__ is not BaseModel.__init__  # DSPy's `Image` has its own
        if args and not takes_positional:
            raise cls._misuse(args[0])
        if isinstance(fields.get("data"), bytes):
            raise cls._misuse(fields["data"])
        if takes_positional:
            return object.__new__(cls)
        return super().__new__(cls, **fields)

    @classmethod
    def _misuse(cls, value: Any) -> InputError:
        return InputError(
            f"`{cls.__name__}` takes an address or base64 by name; found {shown(value, 60)}. "
            f"Use {cls._ways()}."
        )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        schema = super().__get_pydantic_core_schema__(source, handler)
        model = handler.resolve_ref_schema(schema)
        # If there is such a function, it is this one, or a subclass's own, which may accept the
        # values that this one refuses.
        if model["schema"]["type"] != "function-before":
            model["schema"] = core_schema.no_info_before_validator_function(
                cls._refuse_content, model["schema"]
            )
        return schema

    @classmethod
    def _refuse_content(cls, value: Any) -> Any:
        """Explain how to make a part from an address, a path or bytes.

        Pydantic's own error would ask for a dictionary.
        """
        if isinstance(value, str | bytes | Path):
            raise ValueError(
                f"should be an object with `url` or `data`, or an instance of {cls.__name__}: "
                f"{cls._ways()}"
            )
        return value

    @classmethod
    def _ways(cls) -> str:
        name = cls.__name__
        return (
            f"`{name}(url=...)` for an address, `{name}.from_file(path)`, "
            f"or `{name}.from_bytes(content, media_type)`"
        )

    def model_post_init(self, context: Any, /) -> None:
        """Check that the part has exactly one of `data` and `url`, and that base64 is valid.

        A provider would refuse the whole request.
        """
        del context
        if (self.data is None) == (self.url is None):
            raise ValueError(
                f"`{type(self).__name__}` takes exactly one of `data` (base64) and `url`."
            )
        if self.url is not None and _SCHEME.match(self.url) is None:
            kind = type(self).__name__
            raise ValueError(
                f"The `url` of `{kind}` is an address such as `https://...` or `data:...`, found "
                f"{shown(self.url)}. For a file on this machine use `{kind}.from_file(path)`, for "
                f"bytes `{kind}.from_bytes(content, media_type)`."
            )
        inline = inline_data(self)
        if inline is not None and not is_base64(inline[1]):
            raise ValueError(
                f"The content of `{type(self).__name__}` is not valid base64 (letters, digits, `+` "
                "and `/`, with padding, without spaces or line breaks); found "
                f"{shown(inline[1], 60)}. Use {self._ways()}."
            )

    @classmethod
    def from_bytes(cls, content: bytes, media_type: str) -> Self:
        """Make a part from bytes."""
        return cls(data=base64.b64encode(content).decode(), media_type=media_type)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Make a part from a file. The MIME type is guessed from the name."""
        return cls.from_bytes(
            Path(path).read_bytes(), media_type_of(str(path)) or "application/octet-stream"
        )

    @classmethod
    def from_path(cls, path: str | Path) -> Self:
        """`from_file` under DSPy's name."""
        return cls.from_file(path)

    @property
    def address(self) -> str:
        """The `url`, or a `data:` URL made from the bytes (RFC 2397)."""
        if self.url is not None:
            return self.url
        return f"data:{self.media_type};base64,{self.data}"

    def __repr__(self) -> str:
        source = self.url
        if source is None:
            # Three bytes are four characters of base64. The content itself would fill a log.
            source = f"{len(self.data or '') * 3 // 4} bytes"
        return f"{type(self).__name__}({source}, {self.media_type})"


class Image(_Media):
    """A picture: `Image.from_path("a.png")` or `Image(url="https://...")`.

    It is also made by `Image.from_bytes(content, "image/png")`, or with base64 in `data`.
    ferrule does not download a `url`; the provider does.
    """

    media_type: str = "image/png"

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Make a part from a file. The MIME type is guessed from the name.

        Raises `InputError` if it is not an image's.
        """
        media_type = media_type_of(str(path)) or "image/"
        if not media_type.startswith("image/"):
            if media_type.startswith("audio/"):
                other = "Audio"
            else:
                other = "File"
            raise InputError(
                f"`{cls.__name__}` takes the file of an image; found {str(path)!r} ({media_type}). "
                f"Use `{other}.from_path(path)`."
            )
        return super().from_file(path)

    def format(self) -> list[dict[str, Any]]:
        """OpenAI's image part."""
        return [{"type": "image_url", "image_url": {"url": self.address}}]


class Audio(_Media):
    """A sound: `Audio.from_path("a.wav")`.

    It is also made by `Audio.from_bytes(content, "audio/wav")`, or with base64 in `data`.
    """

    media_type: str = "audio/wav"

    def format(self) -> list[dict[str, Any]]:
        """OpenAI's audio part, which is defined for bytes only."""
        media_type, data = inline_data(self) or (self.media_type, self.url)
        subtype = media_type.rpartition("/")[2].removeprefix("x-")
        # OpenAI uses file extensions.
        extension = {"mpeg": "mp3", "wave": "wav"}.get(subtype, subtype)
        return [{"type": "input_audio", "input_audio": {"data": data, "format": extension}}]


class File(_Media):
    """Any other file, such as a PDF: `File.from_path("a.pdf")` or `File(url="https://...")`.

    It is also made by `File.from_bytes(content, "application/pdf")`, or with base64 in `data`.
    """

    name: str = "file"

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Make a part from a file, with its name."""
        return super().from_file(path).model_copy(update={"name": Path(path).name})

    def format(self) -> list[dict[str, Any]]:
        """OpenAI's file part."""
        return [{"type": "file", "file": {"filename": self.name, "file_data": self.address}}]


def inline_data(part: _Media) -> tuple[str, str] | None:
    """The MIME type and the base64 of a part that contains its bytes, in `data` or a `data:` URL.

    Returns None for any other address.
    """
    if part.data is not None:
        return part.media_type, part.data
    inline = read_data_url(part.url or "")
    if inline is None:
        return None
    media_type, data = inline
    return media_type or part.media_type, data


Part = Text | Image | Audio | File
Content = str | tuple[Part, ...]
