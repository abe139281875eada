"""Parts of a message: text, image, audio, file.

Each is a `Type`: the same class is used in signatures (`photo: Image`), in tool results and in messages.
"""

from __future__ import annotations

import base64
import mimetypes
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import ConfigDict

from ferrule.values.content.custom_type import Type


class Text(Type):
    """Plain text beside other parts."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    text: str

    def format(self) -> list[dict[str, Any]]:
        """OpenAI's text part."""
        return [{"type": "text", "text": self.text}]


class _Media(Type):
    """Bytes as base64 in `data`, or an address in `url`; exactly one of them."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    data: str | None = None
    """Base64, without the `data:` prefix."""
    url: str | None = None
    media_type: str = "application/octet-stream"
    """MIME type, `image/png` for instance."""

    def model_post_init(self, context: Any, /) -> None:
        """Check that the part has exactly one of `data` and `url`."""
        del context
        if (self.data is None) == (self.url is None):
            msg = f"`{type(self).__name__}` takes exactly one of `data` (base64) and `url`."
            raise ValueError(msg)

    @classmethod
    def from_bytes(cls, content: bytes, media_type: str) -> Self:
        """A part with these bytes."""
        return cls(data=base64.b64encode(content).decode(), media_type=media_type)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """A part with a file's bytes; the MIME type is guessed from the name."""
        guessed, _ = mimetypes.guess_type(str(path))
        return cls.from_bytes(Path(path).read_bytes(), guessed or "application/octet-stream")

    @property
    def address(self) -> str:
        """The `url`, or a `data:` URL made of the bytes (RFC 2397)."""
        return self.url if self.url is not None else f"data:{self.media_type};base64,{self.data}"

    def __repr__(self) -> str:
        what = self.url if self.url is not None else f"{len(self.data or '') * 3 // 4} bytes"
        return f"{type(self).__name__}({what}, {self.media_type})"


class Image(_Media):
    """A picture."""

    media_type: str = "image/png"

    def format(self) -> list[dict[str, Any]]:
        """OpenAI's image part."""
        return [{"type": "image_url", "image_url": {"url": self.address}}]


class Audio(_Media):
    """A sound."""

    media_type: str = "audio/wav"

    def format(self) -> list[dict[str, Any]]:
        """OpenAI's audio part, which can hold bytes only."""
        kind = self.media_type.rpartition("/")[2].removeprefix("x-")
        kind = {"mpeg": "mp3", "wave": "wav"}.get(kind, kind)  # OpenAI uses file extensions
        return [{"type": "input_audio", "input_audio": {"data": self.data or self.address, "format": kind}}]


class File(_Media):
    """Any other file."""

    name: str = "file"

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """A part with a file's bytes and name."""
        return super().from_file(path).model_copy(update={"name": Path(path).name})

    def format(self) -> list[dict[str, Any]]:
        """OpenAI's file part."""
        return [{"type": "file", "file": {"filename": self.name, "file_data": self.address}}]


Part = Text | Image | Audio | File
Content = str | tuple[Part, ...]


def content_text(content: Content) -> str:
    """Content as plain text; other parts are named in brackets."""
    return content if isinstance(content, str) else "\n".join(part.text if isinstance(part, Text) else f"[{part!r}]" for part in content)
