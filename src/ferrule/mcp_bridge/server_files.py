"""Files of MCP servers as editors write them.

Claude Desktop and Code, Cursor, VS Code, Gemini CLI and Zed agree on entries with a `command` or an
address, and differ in the key above them, in comments, and in variables. Sources, all read in
November 2026: code.visualstudio.com/docs/agents/reference/mcp-configuration,
code.claude.com/docs/en/mcp, cursor.com/docs/mcp, geminicli.com/docs/tools/mcp-server,
zed.dev/docs/ai/mcp.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import ConfigurationError, shown
from ferrule.mcp_bridge.redact import escaped

if TYPE_CHECKING:
    from collections.abc import Callable

    Inputs = Mapping[str, str] | Callable[[dict[str, Any]], str | None]

_KEYS = ("mcpServers", "servers", "context_servers", "mcp.servers")
_STDIO, _HTTP = {"local"}, {"remote", "streamable-http", "streamablehttp", "streamable_http"}
_LOGIN = {"oauth", "auth"}
_FILTERS = {
    "includeTools": "allow",
    "excludeTools": "deny",
    "disabledTools": "deny",
    "tools": "allow",
}
"""Keys with names of tools: Gemini CLI, Windsurf, Copilot CLI."""
_COMMENT = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:[^"\\\n]|\\.)*")|,(?=\s*[}\]])')
_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<what>[^{}]*)\}")
_INPUT = "input:"
_WHOLE_VARIABLE = re.compile(r"((?:[A-Za-z]+ )?)\$([A-Z_][A-Z0-9_]*)")
"""Gemini CLI writes `$NAME` without braces; ferrule reads it where it is the whole value, or
follows a word like `Bearer`."""


class ServerFile:
    """The servers of one file or mapping."""

    def __init__(
        self,
        source: str | PathLike[str] | Mapping[str, Any],
        workspace: str | PathLike[str] | None = None,
        *,
        logs_in: bool = False,
    ) -> None:
        self._logs_in = logs_in
        path: Path | None = None
        content: Mapping[str, Any]
        if isinstance(source, str) or not hasattr(source, "keys"):
            if not isinstance(source, (str, PathLike)):
                raise ConfigurationError(
                    "MCP servers are loaded from the path of a file, or from a mapping like its "
                    f"content; found {shown(source)}."
                )
            path = Path(source)
            content = _read_json(path)
        else:
            content = cast("Mapping[str, Any]", source)
        sections = [content, *_records([content.get("mcp")])]  # VS Code's settings have one
        servers = _servers_in(sections)
        if servers is None:
            raise ConfigurationError(
                'An MCP server file is {"mcpServers": {name: {...}}}; '
                f"found the keys {shown(list(content))}."
            )
        if workspace is not None:
            folder = Path(workspace)
        else:
            folder = _project_of(path)
        self._values = {
            "workspaceFolder": str(folder),
            "workspaceFolderBasename": folder.name,
            "userHome": str(Path.home()),
            "cwd": str(Path.cwd()),
            "pathSeparator": os.sep,
            "/": os.sep,
        }
        self._input_entries: dict[Any, dict[str, Any]] = {}
        for section in sections:
            for entry in _records(section.get("inputs")):
                self._input_entries[entry.get("id")] = entry
        self.entries: dict[str, Any] = {
            name: self._entry(entry) for name, entry in servers.items() if not _is_off(entry)
        }
        """The enabled entries, by name, for `MCPServer.from_state`."""

    def inputs(self, source: Inputs | None) -> dict[str, str]:
        """The values of the `${input:id}` in use.

        They come from a mapping, or are asked for once each; else they have the default in the
        file. Others are missing.
        """
        values: dict[str, str] = {}
        for name in dict.fromkeys(_input_names(self.entries)):
            entry = {"id": name, **self._input_entries.get(name, {})}
            value: Any = None
            if isinstance(source, Mapping):
                value = cast("Mapping[str, str]", source).get(name)
            elif source is not None:
                value = source(entry)
            if value is None:
                value = entry.get("default")
            if isinstance(value, str):
                values[name] = value
        return values

    def _entry(self, raw_entry: Any) -> Any:
        """An entry in the one form that `MCPServer.from_state` takes."""
        if not isinstance(raw_entry, dict):
            return raw_entry
        entry: dict[str, Any] = {
            key: self._read(value) for key, value in cast("dict[str, Any]", raw_entry).items()
        }
        if isinstance(entry.get("command"), dict):  # an older form of Zed
            command = entry.pop("command")
            entry["command"] = command.get("path")
            entry["args"] = command.get("args")
            entry["env"] = command.get("env")
        if isinstance(entry.get("httpUrl"), str):
            entry["type"] = "http"
            entry["url"] = entry["httpUrl"]
        kind = str(entry.get("type", "")).lower()
        if kind in _STDIO:
            entry["type"] = "stdio"
        elif kind in _HTTP:
            entry["type"] = "http"
        _plain_values(entry)
        if self._logs_in and _may_log_in(entry):
            entry["auth"] = "oauth"
        entry["options"] = {**_filters(entry), **(entry.get("options") or {})}
        return entry

    def _read(self, value: Any) -> Any:
        """A value with its references in ferrule's form.

        Paths are filled in, and `${env:NAME}` becomes `${NAME}`.
        """
        if isinstance(value, str):
            return _REFERENCE.sub(self._reference, value)
        if isinstance(value, list):
            return [self._read(part) for part in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {name: self._read(part) for name, part in cast("dict[str, Any]", value).items()}
        return value

    def _reference(self, match: re.Match[str]) -> str:
        name: str | None = match["what"]
        if name is None:  # an escaped one
            return match[0]
        if name in self._values:
            return escaped(self._values[name])
        return f"${{{name.removeprefix('env:')}}}"


def _servers_in(sections: list[Mapping[str, Any]]) -> dict[str, Any] | None:
    for section in sections:
        for key in _KEYS:
            if isinstance(section.get(key), dict):
                return section[key]
    return None


def _plain_values(entry: dict[str, Any]) -> None:
    """Write variables and paths of an entry as ferrule reads them."""
    for key in ("env", "headers"):
        if isinstance(entry.get(key), dict):
            entry[key] = {
                name: _plain_value(value) for name, value in entry[key].items() if value is not None
            }
    for key in ("command", "cwd", "envFile"):
        if key in entry:
            entry[key] = _from_home(entry[key])
    if isinstance(entry.get("args"), list):
        entry["args"] = [_from_home(arg) for arg in entry["args"]]


def _may_log_in(entry: Mapping[str, Any]) -> bool:
    """Whether an entry names a remote server, and no credentials of its own."""
    has_token = any(name.lower() == "authorization" for name in entry.get("headers") or ())
    return "command" not in entry and not has_token and not _LOGIN & entry.keys()


def _filters(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ferrule for an editor's lists of tools."""
    filters: dict[str, Any] = {}
    for key, option in _FILTERS.items():
        if isinstance(entry.get(key), list) and entry[key] != ["*"]:
            filters[option] = entry[key]
    return filters


def _project_of(path: Path | None) -> Path:
    """The folder that `${workspaceFolder}` means: of `project/.vscode/mcp.json`, the project."""
    if path is None:
        return Path.cwd()
    folder = path.resolve().parent
    if folder.name.startswith("."):
        return folder.parent
    return folder


def _records(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; none if it is not a list."""
    if not isinstance(value, list):
        return []
    parts = cast("list[Any]", value)
    return [cast("dict[str, Any]", part) for part in parts if isinstance(part, dict)]


def _is_off(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    settings = cast("dict[str, Any]", entry)
    return settings.get("disabled") is True or settings.get("enabled") is False


def _input_names(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        for match in _REFERENCE.finditer(value):
            name: str = match["what"] or ""
            if name.startswith(_INPUT):
                yield name.removeprefix(_INPUT)
    elif isinstance(value, dict):
        for part in cast("dict[Any, Any]", value).values():
            yield from _input_names(part)
    elif isinstance(value, list):
        for part in cast("list[Any]", value):
            yield from _input_names(part)


def _plain_value(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    match = _WHOLE_VARIABLE.fullmatch(value)
    if match is None:
        return _from_home(value)
    return f"{match[1]}${{{match[2]}}}"


def _from_home(value: Any) -> Any:
    """A text with `~` for the home folder at its beginning, as shells read it."""
    if isinstance(value, str) and (value == "~" or value.startswith(("~/", "~\\"))):
        return f"{escaped(str(Path.home()))}{value[1:]}"
    return value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = path.expanduser().read_bytes()
        text = raw.decode(json.detect_encoding(raw))
        try:
            content = json.loads(text)
        except ValueError:
            content = json.loads(_without_comments(text))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"The MCP server file {str(path)!r} cannot be read: {error}."
        ) from error
    if isinstance(content, dict):
        return cast("dict[str, Any]", content)
    raise ConfigurationError(
        f"The MCP server file {str(path)!r} must hold an object, found {type(content).__name__}."
    )


def _without_comments(text: str) -> str:
    """JSON from JSON with comments and trailing commas.

    Lines stay, so that errors name the right one. Both patterns match strings first, as their first
    group, so that what looks like a comment in a string stays.
    """
    bare = _COMMENT.sub(lambda match: match[1] or "\n" * match[0].count("\n"), text)
    return _TRAILING_COMMA.sub(lambda match: match[1] or "", bare)
