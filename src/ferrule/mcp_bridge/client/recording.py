"""Recording the requests to an MCP server, and replaying them without it: for tests.

The file holds one JSON object a line: who answered, then each request with its result or error.
Arguments and results are written unchanged: check them for secrets before you share a recording.
"""

from __future__ import annotations

from collections import deque
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from msgspec.structs import asdict

from ferrule import errors
from ferrule.encoding.encode import json_text, jsonable
from ferrule.encoding.stored import check_fields, parse_json, reading
from ferrule.errors import ConfigurationError, MCPError, MCPProtocolError, shown
from ferrule.mcp_bridge.connection.handshake import Handshake

if TYPE_CHECKING:
    from ferrule.mcp_bridge.connection.link import Link

_VERSION = 1
_REPEATED = ("tools/list", "resources/list", "prompts/list", "resources/templates/list")
"""Requests that may come more often than recorded: the last answer is then repeated."""
_FACTS = ("server", "tool", "phase", "may_have_run", "status")
"""The attributes of every `MCPError` that are recorded."""


class RecordingLink:
    """A link that records its requests."""

    def __init__(self, link: Link, path: str | PathLike[str], name: str) -> None:
        self._link = link
        self._path = Path(path)
        self._name = name
        self._is_begun = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    async def request(
        self, method: str, params: dict[str, Any] | None, **options: Any
    ) -> dict[str, Any]:
        """Send one request, and record its result or error."""
        try:
            result = await self._link.request(method, params, **options)
        except MCPError as error:
            self._write(method, params, {"error": _error_form(error)})
            raise
        self._write(method, params, {"result": result})
        return result

    def _write(self, method: str, params: dict[str, Any] | None, outcome: dict[str, Any]) -> None:
        if not self._is_begun:
            self._is_begun = True
            self._path.write_text(f"{self._head()}\n", encoding="utf-8")
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json_text({"method": method, "params": params, **outcome}) + "\n")

    def _head(self) -> str:
        handshake = self._link.handshake
        wire = asdict(handshake if handshake is not None else Handshake())
        del wire["session_id"]  # a reader of the file could use the session with it
        return json_text({"ferrule_mcp": _VERSION, "name": self._name, "wire": jsonable(wire)})


class ReplayLink:
    """Stands in for a link and its session.

    It answers from a recording, equal requests in their recorded order.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        head, *lines = _read_lines(path)
        self.is_alive = True
        self.starts = 1
        self._answers: dict[str, deque[dict[str, Any]]] = {}
        with reading(f"The recording {Path(path).name}", ConfigurationError):
            self.name = str(head["name"])
            self.handshake: Handshake = check_fields(Handshake(**head["wire"]))
            for line in lines:
                _outcome(line)  # a damaged line is an error now, not at its request
                key = _key(line["method"], line["params"])
                self._answers.setdefault(key, deque()).append(line)

    def forgive(self) -> None:
        """Does nothing: a recording has no failures to forget."""

    async def connected(self) -> Self:
        """The link itself stands in for a session."""
        return self

    async def connected_for(self, phase: str, tool: str | None) -> Self:
        """As `connected`."""
        del phase, tool
        return self

    async def request(
        self, method: str, params: dict[str, Any] | None, **options: Any
    ) -> dict[str, Any]:
        """Returns the recorded result, or raises the recorded error.

        Raises `MCPProtocolError` for a request that was not recorded.
        """
        answers = self._answers.get(_key(method, params))
        if not answers:
            raise MCPProtocolError(
                f"The recording of the MCP server `{self.name}` has no (further) `{method}` "
                f"with {shown(params)}.",
                server=self.name,
                tool=options.get("tool"),
                phase=options.get("phase"),
                may_have_run=False,
            )
        repeats = method in _REPEATED and len(answers) == 1
        if repeats:
            line = answers[0]
        else:
            line = answers.popleft()
        outcome = _outcome(line)
        if isinstance(outcome, MCPError):
            raise outcome
        return outcome

    async def close(self) -> None:
        """Does nothing."""


def _key(method: str, params: Any) -> str:
    return json_text([method, params])


def _outcome(line: dict[str, Any]) -> dict[str, Any] | MCPError:
    if "error" in line:
        return _read_error(line["error"])
    return dict(line["result"])


def _error_form(error: MCPError) -> dict[str, Any]:
    """An `MCPError` as plain data."""
    form: dict[str, Any] = {"kind": type(error).__name__, "text": str(error)}
    for name in (*_FACTS, "code", "data"):
        value = getattr(error, name, None)
        if value is not None:
            form[name] = jsonable(value)
    return form


def _read_error(form: dict[str, Any]) -> MCPError:
    """The error of `_error_form`."""
    kind: Any = getattr(errors, form["kind"], MCPError)
    if kind is MCPProtocolError:
        names = (*_FACTS, "code", "data")
    else:
        names = _FACTS
    return kind(form["text"], **{name: form[name] for name in names if name in form})


def _read_lines(path: str | PathLike[str]) -> list[dict[str, Any]]:
    if not isinstance(cast("Any", path), (str, PathLike)):
        raise ConfigurationError(f"A recording is replayed from its path, found {shown(path)}.")
    name = Path(path).name
    try:
        lines = [parse_json(line) for line in Path(path).read_bytes().splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{name} is not a recording of an MCP server: {error}.") from error
    are_objects = bool(lines) and all(isinstance(line, dict) for line in lines)
    if not are_objects or lines[0].get("ferrule_mcp") != _VERSION:
        raise ConfigurationError(
            f"{name} is not a recording of an MCP server of version {_VERSION}: "
            f"found {shown(lines[:1])}."
        )
    return lines
