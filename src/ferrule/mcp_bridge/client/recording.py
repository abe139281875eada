"""Recording the requests to an MCP server, and replaying them without it: for tests.

The file holds one JSON object a line: who answered, then each request with its result or error.
Arguments and results are written unchanged: check them for secrets before you share a recording.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ferrule import errors
from ferrule.encoding.encode import json_text, jsonable
from ferrule.encoding.stored import check_fields, parse_json, reading
from ferrule.errors import ConfigurationError, MCPError, MCPProtocolError, shown
from ferrule.mcp_bridge.connection.handshake import Handshake
from ferrule.record import fields_of

if TYPE_CHECKING:
    from os import PathLike

    from ferrule.mcp_bridge.connection.reconnect import Link

_VERSION = 1
_REPEATED = ("tools/list", "resources/list", "prompts/list", "resources/templates/list")
"""Requests that may come more often than recorded: the last answer is then repeated."""
_FACTS = ("server", "tool", "phase", "may_have_run", "status")


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
        self,
        method: str,
        params: dict[str, Any] | None,
        **options: Any,
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
        lines = [json_text({"method": method, "params": params, **outcome})]
        if not self._is_begun:
            self._is_begun = True
            handshake = self._link.handshake if self._link.handshake is not None else Handshake()
            wire = {
                name: value for name, value in fields_of(handshake).items() if name != "session_id"
            }  # who has it may use the session
            lines.insert(
                0,
                json_text({"ferrule_mcp": _VERSION, "name": self._name, "wire": jsonable(wire)}),
            )
            self._path.write_text("", encoding="utf-8")
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(f"{each}\n" for each in lines)


class ReplayLink:
    """Stands in for a link and its session: answers from a recording, equal requests in their recorded order."""

    def __init__(self, path: str | PathLike[str]) -> None:
        head, *lines = _read(path)
        self.is_alive = True
        self.starts = 1
        self._answers: dict[str, deque[dict[str, Any]]] = {}
        with reading(f"The recording {Path(path).name}", ConfigurationError):
            self.name = str(head["name"])
            self.handshake: Handshake = check_fields(Handshake(**head["wire"]))
            for each in lines:
                _answer(each)
                self._answers.setdefault(_key(each["method"], each["params"]), deque()).append(each)

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
        self,
        method: str,
        params: dict[str, Any] | None,
        **options: Any,
    ) -> dict[str, Any]:
        """Returns the recorded result, or raises the recorded error; `MCPProtocolError` for a request that was not recorded."""
        answers = self._answers.get(_key(method, params))
        if not answers:
            msg = f"The recording of the MCP server `{self.name}` has no (further) `{method}` with {shown(params)}."
            raise MCPProtocolError(
                msg,
                server=self.name,
                tool=options.get("tool"),
                phase=options.get("phase"),
                may_have_run=False,
            )
        found = answers[0] if method in _REPEATED and len(answers) == 1 else answers.popleft()
        answer = _answer(found)
        if isinstance(answer, MCPError):
            raise answer
        return answer

    async def close(self) -> None:
        """Does nothing."""


def _error_form(error: MCPError) -> dict[str, Any]:
    """An `MCPError` as plain data."""
    facts = {name: getattr(error, name, None) for name in (*_FACTS, "code", "data")}
    return {
        "kind": type(error).__name__,
        "text": str(error),
        **{key: jsonable(each) for key, each in facts.items() if each is not None},
    }


def _read_error(form: dict[str, Any]) -> MCPError:
    """The error of `_error_form`."""
    kind: Any = getattr(errors, form["kind"], MCPError)
    own = (
        {name: form[name] for name in ("code", "data") if name in form}
        if kind is MCPProtocolError
        else {}
    )
    return kind(form["text"], **{name: form[name] for name in _FACTS if name in form}, **own)


def _answer(line: dict[str, Any]) -> dict[str, Any] | MCPError:
    return _read_error(line["error"]) if "error" in line else dict(line["result"])


def _key(method: str, params: Any) -> str:
    return json_text([method, params])


def _read(path: str | PathLike[str]) -> list[dict[str, Any]]:
    try:
        lines = [parse_json(line) for line in Path(path).read_bytes().splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{Path(path).name} is not a recording of an MCP server: {error}.",
        ) from error
    if (
        not lines
        or not all(isinstance(each, dict) for each in lines)
        or lines[0].get("ferrule_mcp") != _VERSION
    ):
        raise ConfigurationError(
            f"{Path(path).name} is not a recording of an MCP server of version {_VERSION}: found {shown(lines[:1])}.",
        )
    return lines
