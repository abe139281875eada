"""The content blocks of an MCP result.

A `Block` keeps the server's whole block, and decides how a model sees it: as text, as a content
part, or as a line that describes it. Bytes never become text.

A server may send anything. So the properties of a `Block` read `raw` with care: a field of a wrong
type counts as missing, and a block that does not fit the protocol has no `part` but is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec import Struct

from ferrule.record import PartlyCompared
from ferrule.schema.nodes import is_list, is_object
from ferrule.tools.mcp_definition import as_plain
from ferrule.values.content.parts import Audio, File, Image, Part, Text, is_base64

_IMAGES = frozenset({"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"})
"""The images that providers accept. For an SVG or a TIFF, they would reject the whole request.
`image/jpg` is not a registered type, but servers send it."""
_FILES = frozenset({"application/pdf"})
"""The files that providers accept."""
_UNKNOWN_TYPE = "application/octet-stream"


class Block(PartlyCompared, Struct, frozen=True):
    """One content block."""

    _not_compared = frozenset({"reader"})

    raw: dict[str, Any]
    """The block as the server sent it, under the protocol's names."""
    part: Part | None
    """Its text, image, audio or file. None for a link, a damaged block and an unknown type."""
    reader: Callable[[str], Any] | None = None
    """Fetches the resource of a URI: `read_resource` of the server or session that sent the block.

    None if there is no such method."""

    def __repr__(self) -> str:
        if self.part is None:
            return f"Block({self._description()})"
        return f"Block({self.part!r})"

    @property
    def type(self) -> str:
        """`text`, `image`, `audio`, `resource`, `resource_link`, or a type of the server's own."""
        return _text_or_none(self.raw.get("type")) or "unknown"

    @property
    def text(self) -> str | None:
        """The text of a `text` block, or of a `resource` block with text; else None."""
        if not isinstance(self.part, Text):
            return None
        return self.part.text

    @property
    def uri(self) -> str | None:
        """The URI of a link or a resource."""
        return _text_or_none(self.raw.get("uri", self._resource.get("uri")))

    @property
    def media_type(self) -> str | None:
        """The MIME type of a link or a resource, an image or audio, as the server stated it."""
        return _text_or_none(self.raw.get("mimeType", self._resource.get("mimeType")))

    @property
    def audience(self) -> tuple[str, ...]:
        """The audience: `user`, `assistant`, both, or empty if the server does not specify it."""
        audience = self._annotations.get("audience")
        if not is_list(audience):
            return ()
        return tuple(role for role in audience if isinstance(role, str))

    @property
    def priority(self) -> float | None:
        """Its priority, from 0 (optional) to 1 (required)."""
        priority = self._annotations.get("priority")
        if not isinstance(priority, int | float) or isinstance(priority, bool):
            return None
        return float(priority)

    @property
    def is_for_user_only(self) -> bool:
        """Whether it is for the user only, not for the model."""
        return self.audience == ("user",)

    @property
    def _annotations(self) -> Mapping[str, Any]:
        return _object_or_empty(self.raw.get("annotations"))

    @property
    def _resource(self) -> Mapping[str, Any]:
        return _object_or_empty(self.raw.get("resource"))

    def read(self) -> Any:
        """Fetch a link's resource from its server.

        Returns the result of the server's `read_resource`; await it if that is async. Raises
        `ValueError` for a block without a URI or a server.
        """
        if self.uri is None:
            raise ValueError(f"A block of type `{self.type}` cannot be read: it has no `uri`.")
        if self.reader is None:
            raise ValueError(
                f"A block of type `{self.type}` cannot be read: what called its server has no "
                f"`read_resource`. Read {self.uri!r} through an `MCPServer`."
            )
        return self.reader(self.uri)

    def shown(self) -> tuple[Part, ...]:
        """The content for a model: a text, a part, or a line that describes the block.

        Such a line also precedes a resource's text, because the text alone does not say where it
        comes from.
        """
        match self.part:
            case Text(text=text) if self.type == "resource":
                return (Text(text=f"{self._description()}\n{text}"),)
            case Text() | Audio():
                return (self.part,)
            case Image(media_type=media_type) if media_type.lower() in _IMAGES:
                return (self.part,)
            case File(media_type=media_type) if media_type in _FILES:
                return (self.part,)
            case _:
                return (Text(text=self._description()),)

    def _description(self) -> str:
        """The block in one line, such as `[resource link, file:///a.csv, a.csv, text/csv]`."""
        facts = [self.type.replace("_", " ")]
        if self.uri:
            facts.append(self.uri)
        facts += self._names()
        if self.media_type:
            facts.append(self.media_type)
        size = _size(self.raw.get("data", self._resource.get("blob")), self.raw.get("size"))
        if size is not None:
            facts.append(f"{size} bytes")
        line = ", ".join(facts)
        description = _text_or_none(self.raw.get("description"))
        if description:
            line = f"{line}: {description}"
        return f"[{line}]"

    def _names(self) -> list[str]:
        """Its name and its title, unless they repeat the URI or each other."""
        names = [_text_or_none(self.raw.get("name")), _text_or_none(self.raw.get("title"))]
        return [name for name in dict.fromkeys(names) if name is not None and name != self.uri]


def read_block(raw: Any, reader: Callable[[str], Any] | None = None) -> Block:
    """Make a block from anything that the server sent.

    A value that is not an object becomes the `value` of an `unknown` block.
    """
    plain = as_plain(raw)
    if not isinstance(plain, Mapping):
        return Block({"type": "unknown", "value": plain}, None, reader)
    fields = dict(cast("Mapping[str, Any]", plain))
    return Block(fields, _part(fields), reader)


def _part(raw: dict[str, Any]) -> Part | None:
    """The content of a block; None for a link, damaged data and an unknown type."""
    match raw:
        case {"type": "text", "text": str(text)}:
            return Text(text=text)
        case {"type": "image", "data": str(data)} if _is_content(data):
            return Image(data=data, media_type=_mime(raw, "image/png"))
        case {"type": "audio", "data": str(data)} if _is_content(data):
            return Audio(data=data, media_type=_mime(raw, "audio/wav"))
        case {"type": "resource", "resource": resource} if is_object(resource):
            return _resource_part(resource)
        case _:
            return None


def _resource_part(resource: dict[str, Any]) -> Part | None:
    match resource:
        case {"text": str(text)}:
            return Text(text=text)
        case {"blob": str(data)} if _is_content(data):
            mime = _mime(resource, _UNKNOWN_TYPE)
            if mime.startswith("image/"):
                return Image(data=data, media_type=mime)
            if mime.startswith("audio/"):
                return Audio(data=data, media_type=mime)
            return File(data=data, media_type=mime, name=_file_name(resource.get("uri")))
        case _:
            return None


def _file_name(uri: Any) -> str:
    """The last segment of a URI, as a name for the file."""
    if not isinstance(uri, str):
        return "file"
    return uri.rstrip("/").rpartition("/")[2] or "file"


def _mime(raw: dict[str, Any], default: str) -> str:
    mime = raw.get("mimeType")
    if not isinstance(mime, str) or "/" not in mime:
        return default
    return mime


def _is_content(data: str) -> bool:
    """Whether there is anything to show. Providers reject the request of an empty image."""
    return data != "" and is_base64(data)


def _size(data: Any, stated: Any) -> int | None:
    """The bytes that `data` encodes, or else the size that the server states for a link."""
    if isinstance(data, str):
        # Base64 writes three bytes as four characters. Not decoded: data may be large.
        return len(data.rstrip("=")) * 3 // 4
    if isinstance(stated, bool) or not isinstance(stated, int):
        return None
    return stated


def _text_or_none(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    return value


def _object_or_empty(value: Any) -> Mapping[str, Any]:
    if not is_object(value):
        return {}
    return value
