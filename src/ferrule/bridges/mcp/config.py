"""Files of MCP servers: `{"mcpServers": {...}}`, as other programs write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike


def entries_of(source: str | PathLike[str] | Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a `{"mcpServers": {...}}` file or mapping, by name, without the disabled ones. Raises `ConfigurationError`."""
    found = source if not isinstance(source, str) and hasattr(source, "keys") else _read(Path(cast("Any", source)))
    whole = cast("Mapping[str, Any]", found)
    servers: Any = whole.get("mcpServers", whole.get("servers"))
    if not isinstance(servers, dict):
        msg = f'A file of MCP servers is {{"mcpServers": {{name: {{...}}}}}}; found the keys {shown(list(whole))}.'
        raise ConfigurationError(msg)
    return {name: each for name, each in cast("dict[str, Any]", servers).items() if not _is_off(each)}


def _is_off(entry: Any) -> bool:
    return isinstance(entry, dict) and cast("dict[str, Any]", entry).get("disabled") is True


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"The file of MCP servers {str(path)!r} cannot be read: {error}."
        raise ConfigurationError(msg) from error
    if isinstance(found, dict):
        return cast("dict[str, Any]", found)
    msg = f"The file of MCP servers {str(path)!r} must hold an object, found {type(found).__name__}."
    raise ConfigurationError(msg)
