"""The content blocks of an MCP result.

A `Block` keeps the server's whole block, and decides how a model sees it: as text, as a content
part, or as a line that describes it. Bytes never become text.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec import Struct

from ferrule.record import PartlyCompared
from ferrule.schema.nodes import is_list, is_object
from ferrule.tools.mcp_definition import as_plain
from ferrule.values.content.parts import Audio, File, Image, Part, Text

_IMAGES = frozenset({"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"})
"""The images that providers accept. For an SVG or a TIFF, they would reject the whole request."""
_FILES = frozenset({"application/pdf"})
_UNKNOWN = "application/octet-stream"


class Block(PartlyCompared, Struct, frozen=True):
    """One content block."""

    _not_compared = frozenset({"reader"})

    raw: dict[str, Any]
    """The block as the server sent it, under the protocol's names."""
    part: Part | None
    """Its content: text, image, audio or file. None for a link, a damaged block and an unknown type."""
    reader: Callable[[str], Any] | None = None

    def __repr__(self) -> str:
        return f"Block({self.part!r})" if self.part is not None else f"Block({self._description()})"

    @property
    def type(self) -> str:
        """`text`, `image`, `audio`, `resource`, `resource_link`, or a type of the server's own."""
        found = self.raw.get("type")
        return found if isinstance(found, str) else "unknown"

    @property
    def text(self) -> str | None:
        """Its own text, or its resource's."""
        return self.part.text if isinstance(self.part, Text) else None

    @property
    def uri(self) -> str | None:
        """The URI of a link or a resource."""
        found = self.raw.get("uri", self._resource.get("uri"))
        return found if isinstance(found, str) else None

    @property
    def media_type(self) -> str | None:
        """Its MIME type, as the server gave it."""
        found = self.raw.get("mimeType", self._resource.get("mimeType"))
        return found if isinstance(found, str) else None

    @property
    def audience(self) -> tuple[str, ...]:
        """The audience: `user`, `assistant`, both, or empty if the server does not specify it."""
        found: Any = self._annotations.get("audience")
        return tuple(each for each in found if isinstance(each, str)) if is_list(found) else ()

    @property
    def priority(self) -> float | None:
        """Its priority, from 0 (optional) to 1 (required)."""
        found = self._annotations.get("priority")
        return (
            float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None
        )

    @property
    def is_for_user_only(self) -> bool:
        """Whether it is for the user only, not for the model."""
        return self.audience == ("user",)

    @property
    def _annotations(self) -> Mapping[str, Any]:
        found = self.raw.get("annotations")
        return found if is_object(found) else {}

    @property
    def _resource(self) -> Mapping[str, Any]:
        found = self.raw.get("resource")
        return found if is_object(found) else {}

    def read(self) -> Any:
        """Fetch a link's resource from its server. Returns the result of the server's `read_resource`; await it if that is async.

        Raises `ValueError` for a block without a URI or a server.
        """
        if self.uri is None or self.reader is None:
            msg = f"A block of type `{self.type}` cannot be read: {'it has no `uri`' if self.uri is None else 'its server is not at hand'}."
            raise ValueError(msg)
        return self.reader(self.uri)

    def shown(self) -> tuple[Part, ...]:
        """The content for a model: a text, a part, or a line that describes the block. Such a line also precedes a resource's text."""
        if self.part is None or (
            isinstance(self.part, File) and self.part.media_type not in _FILES
        ):
            return (Text(text=self._description()),)
        if isinstance(self.part, Image) and self.part.media_type.lower() not in _IMAGES:
            return (Text(text=self._description()),)
        if self.type == "resource" and isinstance(self.part, Text):
            return (Text(text=f"{self._description()}\n{self.part.text}"),)
        return (self.part,)

    def _description(self) -> str:
        said = [self.type.replace("_", " "), *([self.uri] if self.uri else [])]
        names = [
            each
            for each in (self.raw.get("name"), self.raw.get("title"))
            if isinstance(each, str) and each != self.uri
        ]
        said += dict.fromkeys(names)
        said += [self.media_type] if self.media_type else []
        size = _size(self.raw.get("data", self._resource.get("blob")), self.raw.get("size"))
        said += [f"{size} bytes"] if size is not None else []
        about = self.raw.get("description")
        return f"[{', '.join(said)}{f': {about}' if isinstance(about, str) and about else ''}]"


def read_block(raw: Any, reader: Callable[[str], Any] | None = None) -> Block:
    """Make a block from anything that the server sent. A value that is not an object becomes the `value` of an `unknown` block."""
    plain = as_plain(raw)
    if not isinstance(plain, Mapping):
        return Block({"type": "unknown", "value": plain}, None, reader)
    found = dict(cast("Mapping[str, Any]", plain))
    return Block(found, _part(found), reader)


def _part(raw: dict[str, Any]) -> Part | None:
    match raw:
        case {"type": "text", "text": str(text)}:
            return Text(text=text)
        case {"type": "image", "data": str(data)} if _is_base64(data):
            return Image(data=data, media_type=_mime(raw, "image/png"))
        case {"type": "audio", "data": str(data)} if _is_base64(data):
            return Audio(data=data, media_type=_mime(raw, "audio/wav"))
        case {"type": "resource", "resource": resource} if is_object(resource):
            return _resource_part(resource)
        case _:
            return None


def _resource_part(resource: dict[str, Any]) -> Part | None:
    match resource:
        case {"text": str(text)}:
            return Text(text=text)
        case {"blob": str(data)} if _is_base64(data):
            mime = _mime(resource, _UNKNOWN)
            if mime.startswith("image/"):
                return Image(data=data, media_type=mime)
            if mime.startswith("audio/"):
                return Audio(data=data, media_type=mime)
            uri = resource.get("uri")
            name = uri.rstrip("/").rpartition("/")[2] if isinstance(uri, str) else ""
            return File(data=data, media_type=mime, name=name or "file")
        case _:
            return None


def _mime(raw: dict[str, Any], otherwise: str) -> str:
    found = raw.get("mimeType")
    return found if isinstance(found, str) and "/" in found else otherwise


def _is_base64(data: str) -> bool:
    try:
        binascii.a2b_base64(data, strict_mode=True)
    except ValueError:  # `binascii.Error`, or a character beyond ASCII
        return False
    return True


def _size(data: Any, stated: Any) -> int | None:
    if isinstance(data, str):
        return len(data.rstrip("=")) * 3 // 4
    return stated if isinstance(stated, int) and not isinstance(stated, bool) else None
