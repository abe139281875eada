"""Files of MCP servers as editors write them: Claude Desktop and Code, Cursor, VS Code, Gemini CLI, Zed.

The editors agree on entries with a `command` or an address, and differ in the key above them, in
comments, and in variables. Sources, all read in November 2026:
code.visualstudio.com/docs/agents/reference/mcp-configuration, code.claude.com/docs/en/mcp,
cursor.com/docs/mcp, geminicli.com/docs/tools/mcp-server, zed.dev/docs/ai/mcp.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import ConfigurationError, shown
from ferrule.mcp_bridge.redact import escaped

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    Inputs = Mapping[str, str] | Callable[[dict[str, Any]], str | None]

_KEYS = ("mcpServers", "servers", "context_servers", "mcp.servers")
_STDIO, _HTTP = {"local"}, {"remote", "streamable-http", "streamablehttp", "streamable_http"}
_LOGIN = {"oauth", "auth"}
_IS_OFF = {"disabled": True, "enabled": False}
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
"""Gemini CLI writes `$NAME` without braces; ferrule reads it where it is the whole value, or follows a word like `Bearer`."""


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
        path = (
            None
            if not isinstance(source, str) and hasattr(source, "keys")
            else Path(cast("Any", source))
        )
        whole: Mapping[str, Any] = (
            cast("Mapping[str, Any]", source) if path is None else _read_json(path)
        )
        places: list[Mapping[str, Any]] = [whole, *_records([whole.get("mcp")])]
        found = next(
            (each[key] for each in places for key in _KEYS if isinstance(each.get(key), dict)),
            None,
        )
        if found is None:
            msg = f'An MCP server file is {{"mcpServers": {{name: {{...}}}}}}; found the keys {shown(list(whole))}.'
            raise ConfigurationError(msg)
        folder = Path(workspace) if workspace is not None else _project_of(path)
        self._values = {
            "workspaceFolder": str(folder), "workspaceFolderBasename": folder.name, "userHome": str(Path.home()), "cwd": str(Path.cwd()),
            "pathSeparator": os.sep, "/": os.sep,
        }  # fmt: skip
        self._asked = {
            each.get("id"): each for place in places for each in _records(place.get("inputs"))
        }
        self.entries: dict[str, Any] = {
            name: self._entry(each) for name, each in found.items() if not _is_off(each)
        }
        """The enabled entries, by name, for `MCPServer.from_state`."""

    def inputs(self, given: Inputs | None) -> dict[str, str]:
        """The values of the `${input:id}` in use: from a mapping, or asked once each; else the default in the file. Others are missing."""
        values: dict[str, Any] = {}
        for name in dict.fromkeys(_input_names(self.entries)):
            about = {"id": name, **self._asked.get(name, {})}
            if isinstance(given, Mapping):
                values[name] = cast("Mapping[str, str]", given).get(name)
            else:
                values[name] = None if given is None else given(about)
            if values[name] is None:
                values[name] = about.get("default")
        return {name: value for name, value in values.items() if isinstance(value, str)}

    def _entry(self, entry: Any) -> Any:
        """An entry in the one form that `MCPServer.from_state` takes."""
        if not isinstance(entry, dict):
            return entry
        made = {key: self._read(value) for key, value in cast("dict[str, Any]", entry).items()}
        if isinstance(made.get("command"), dict):  # an older form of Zed
            inner = made.pop("command")
            made |= {
                "command": inner.get("path"),
                "args": inner.get("args"),
                "env": inner.get("env"),
            }
        if isinstance(made.get("httpUrl"), str):
            made |= {"type": "http", "url": made["httpUrl"]}
        kind = str(made.get("type", "")).lower()
        if kind in _STDIO | _HTTP:
            made["type"] = "stdio" if kind in _STDIO else "http"
        for key in ("env", "headers"):
            if isinstance(made.get(key), dict):
                made[key] = {
                    name: _plain_value(each) for name, each in made[key].items() if each is not None
                }
        for key in ("command", "cwd", "envFile"):
            if key in made:
                made[key] = _from_home(made[key])
        if isinstance(made.get("args"), list):
            made["args"] = [_from_home(each) for each in made["args"]]
        has_token = any(each.lower() == "authorization" for each in made.get("headers") or ())
        if self._logs_in and "command" not in made and not has_token and not _LOGIN & made.keys():
            made["auth"] = "oauth"
        chosen = {
            ours: made[key]
            for key, ours in _FILTERS.items()
            if isinstance(made.get(key), list) and made[key] != ["*"]
        }
        made["options"] = {**chosen, **(made.get("options") or {})}
        return made

    def _read(self, value: Any) -> Any:
        """A value with its references in ferrule's form: paths filled in, `${env:NAME}` as `${NAME}`."""
        if isinstance(value, str):
            return _REFERENCE.sub(self._reference, value)
        if isinstance(value, list):
            return [self._read(each) for each in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {name: self._read(each) for name, each in cast("dict[str, Any]", value).items()}
        return value

    def _reference(self, found: re.Match[str]) -> str:
        what: str | None = found["what"]
        if what is None:
            return found[0]
        if what in self._values:
            return escaped(self._values[what])
        return f"${{{what.removeprefix('env:')}}}"


def _project_of(path: Path | None) -> Path:
    """The folder that `${workspaceFolder}` means: of `project/.vscode/mcp.json`, the project."""
    if path is None:
        return Path.cwd()
    folder = path.resolve().parent
    return folder.parent if folder.name.startswith(".") else folder


def _records(value: Any) -> list[dict[str, Any]]:
    return (
        [
            cast("dict[str, Any]", each)
            for each in cast("list[Any]", value)
            if isinstance(each, dict)
        ]
        if isinstance(value, list)
        else []
    )


def _is_off(entry: Any) -> bool:
    return isinstance(entry, dict) and any(
        cast("dict[str, Any]", entry).get(key) is value for key, value in _IS_OFF.items()
    )


def _input_names(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from (
            found["what"].removeprefix(_INPUT)
            for found in _REFERENCE.finditer(value)
            if (found["what"] or "").startswith(_INPUT)
        )
    elif isinstance(value, dict):
        for each in cast("dict[Any, Any]", value).values():
            yield from _input_names(each)
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _input_names(each)


def _plain_value(value: Any) -> str:
    if isinstance(value, str):
        found = _WHOLE_VARIABLE.fullmatch(value)
        return _from_home(value if found is None else f"{found[1]}${{{found[2]}}}")
    return json.dumps(value)


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
            found = json.loads(text)
        except ValueError:
            found = json.loads(_without_comments(text))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"The MCP server file {str(path)!r} cannot be read: {error}.",
        ) from error
    if isinstance(found, dict):
        return cast("dict[str, Any]", found)
    raise ConfigurationError(
        f"The MCP server file {str(path)!r} must hold an object, found {type(found).__name__}.",
    )


def _without_comments(text: str) -> str:
    """JSON from JSON with comments and trailing commas. Lines stay, so that errors name the right one."""
    bare = _COMMENT.sub(lambda found: found[1] or "\n" * found[0].count("\n"), text)
    return _TRAILING_COMMA.sub(lambda found: found[1] or "", bare)
