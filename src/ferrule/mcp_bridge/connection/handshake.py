"""Agreeing with a server on a version of MCP, and what every request of that version carries.

Up to 2025-11-25 there is a handshake (`initialize`); from 2026-07-28 on there is none: the client
asks `server/discover`, and every request names its version. A server that does not know
`server/discover` may never answer it. So the question has a short timeout, and its outcome is
remembered for reconnects. A server that answers too late refuses the handshake with an error that
lists the versions it speaks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from ferrule.mcp_bridge.errors import CONNECTION_CLOSED, UnspokenModeError
from ferrule.record import MutableRecord, Record, field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.mcp_bridge.transport.http import GuardedClient

ProtocolMode = Literal["auto", "2025-11-25", "2026-07-28"]
PROTOCOL_MODES: tuple[ProtocolMode, ...] = get_args(ProtocolMode)
_PROBE_S = 1.5
"""How long a child process may take to answer `server/discover`. One that never does is still connected within 3 s."""
_REMOTE_PROBE_S = 8.0
_SECOND_PROBE_S = 10.0
UNSUPPORTED_VERSION = -32022
_REJECTED = (401, 403, 429)
_SERVER_ERROR = 500
_NAMED_BY = {
    "tools/call": "name", "prompts/get": "name", "resources/read": "uri",
    "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId",
}  # fmt: skip
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Levels of log messages, in rising order (RFC 5424, section 6.2.1)."""
TASKS = "io.modelcontextprotocol/tasks"
"""The extension by which a server may answer a call with a task."""


class KnownEra(MutableRecord):
    """Which handshake a server takes; kept over reconnects."""

    discovered: Any = None
    """The SDK's `DiscoverResult`, from a server of 2026-07-28 or later."""
    is_legacy: bool = False
    mode: ProtocolMode = "auto"
    """What the user chose."""

    def forget(self) -> None:
        """Ask again at the next connection: the server may have been replaced."""
        self.discovered, self.is_legacy = None, False


class Handshake(Record, kw_only=True):
    """What client and server agreed on."""

    version: str = ""
    is_modern: bool = False
    server: dict[str, Any] = field(default_factory=dict[str, Any])
    instructions: str | None = None
    capabilities: dict[str, Any] = field(default_factory=dict[str, Any])
    client_capabilities: dict[str, Any] = field(default_factory=dict[str, Any])
    log_level: str | None = None
    session_id: str | None = None
    """Of a session over HTTP, before 2026-07-28."""

    @property
    def listens(self) -> bool:
        """Whether the client must open a stream to be notified of changed lists."""
        return self.is_modern and any(
            self.notifies_of(kind) for kind in ("tools", "resources", "prompts")
        )

    def notifies_of(self, kind: str) -> bool:
        """Whether the server declares that it notifies of changes in this list."""
        found = self.capabilities.get(kind)
        return isinstance(found, dict) and bool(cast("dict[str, Any]", found).get("listChanged"))

    def prepare_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        meta: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None,
    ) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Parameters and options of a request in this version. Headers mirror the body (revision 2026-07-28, "Transports")."""
        from mcp_types import (
            CLIENT_CAPABILITIES_META_KEY,
            CLIENT_INFO_META_KEY,
            LOG_LEVEL_META_KEY,
            PROTOCOL_VERSION_META_KEY,
        )

        body = dict(params) if params is not None else {}
        own: dict[str, Any] = {}
        sent = {"mcp-protocol-version": self.version, **(headers or {})}
        if self.is_modern:
            from mcp.shared.inbound import encode_header_value

            own = {
                PROTOCOL_VERSION_META_KEY: self.version,
                CLIENT_INFO_META_KEY: client_info(),
                CLIENT_CAPABILITIES_META_KEY: self.client_capabilities,
                **({LOG_LEVEL_META_KEY: self.log_level} if self.log_level else {}),
            }
            sent["mcp-method"] = method
            name = body.get(_NAMED_BY.get(method, ""))
            if isinstance(name, str):
                sent["mcp-name"] = encode_header_value(name)
        all_meta: dict[str, Any] = {**own, **(body.get("_meta") or {}), **(meta or {})}
        if all_meta:
            body["_meta"] = all_meta
        return (body or None), {"headers": sent}


def client_info() -> dict[str, Any]:
    """The name and version that ferrule gives to a server."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return {"name": "ferrule", "version": version("ferrule")}
    except PackageNotFoundError:  # run from source
        return {"name": "ferrule", "version": "0"}


def wire_form(model: Any) -> Any:
    """A model of the SDK as JSON data, under the protocol's names."""
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


async def negotiate(
    session: Any,
    known: KnownEra,
    client_capabilities: dict[str, Any],
    log_level: str | None,
    *,
    remote: GuardedClient | None,
) -> Handshake:
    """Agree with the server by the handshake that is known to work, or find out. Raises the SDK's error if there is no common version."""
    if known.discovered is not None and remote is not None:
        session.adopt(
            known.discovered,
        )  # stateless, so nothing to send; a child process that was started again is asked again
    elif known.mode == "auto":
        if not (known.is_legacy and await _is_legacy_still(session)):
            await _discover(session, remote)
    else:
        await _speak(session, known.mode, remote)
    known.is_legacy = session.discover_result is None
    known.discovered = session.discover_result
    capabilities: dict[str, Any] = (
        wire_form(session.server_capabilities) if session.server_capabilities is not None else {}
    )
    if session.discover_result is not None and TASKS in capabilities.get("extensions", {}):
        client_capabilities = {**client_capabilities, "extensions": {TASKS: {}}}
    found = Handshake(
        version=session.protocol_version,
        is_modern=session.discover_result is not None,
        server=wire_form(session.server_info) if session.server_info is not None else {},
        instructions=session.instructions,
        capabilities=capabilities,
        client_capabilities=client_capabilities,
        log_level=log_level,
        session_id=remote.session_id if remote is not None else None,
    )
    if log_level and not found.is_modern and "logging" in found.capabilities:
        import mcp_types as types

        request = types.SetLevelRequest.model_validate(
            {"method": "logging/setLevel", "params": {"level": log_level}},
        )
        await session.send_request(request, types.EmptyResult)
    return found


async def _speak(session: Any, mode: ProtocolMode, remote: GuardedClient | None) -> None:
    """Agree on the revision that the user chose."""
    from mcp.shared.exceptions import MCPError as SDKError
    from mcp_types import DiscoverResult
    from pydantic import ValidationError

    try:
        if mode == "2025-11-25":
            await session.initialize()
            return
        found = DiscoverResult.model_validate(await session.send_discover(mode))
        if mode in found.supported_versions:
            session.adopt(found)
            return
        said = f"it speaks {', '.join(found.supported_versions)}"
    except ValidationError:
        said = "its answer is not a list of versions"
    except SDKError as error:
        if _is_final(error, remote):
            raise
        said = f"it answered with error {error.code}: {error.message}"
    raise UnspokenModeError(f"it does not speak {mode}, which `mode` requires: {said}")


async def _is_legacy_still(session: Any) -> bool:
    from mcp.shared.exceptions import MCPError as SDKError

    try:
        await session.initialize()
    except SDKError as error:
        if error.code != UNSUPPORTED_VERSION:
            raise
        return False
    return True


async def _discover(session: Any, remote: GuardedClient | None) -> None:
    from mcp.shared.exceptions import MCPError as SDKError
    from mcp_types import DiscoverResult
    from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS
    from pydantic import ValidationError

    version, within = LATEST_MODERN_VERSION, _PROBE_S if remote is None else _REMOTE_PROBE_S
    for attempt in (1, 2):
        raw: Any = None
        try:
            async with asyncio.timeout(within):
                raw = await session.send_discover(version)
        except TimeoutError:
            pass
        except SDKError as error:
            if _is_final(error, remote):
                raise
            offered = _offered(error)
            common = [each for each in MODERN_PROTOCOL_VERSIONS if each in offered]
            if common and attempt == 1:
                version, within = common[-1], _SECOND_PROBE_S
                continue
            if offered and not any(
                each not in MODERN_PROTOCOL_VERSIONS and each < LATEST_MODERN_VERSION
                for each in offered
            ):
                raise
        if raw is not None:
            try:
                found = DiscoverResult.model_validate(raw)
            except ValidationError:
                found = None
            if found is not None and any(
                each in found.supported_versions for each in MODERN_PROTOCOL_VERSIONS
            ):
                session.adopt(found)
                return
        try:
            await session.initialize()
        except SDKError as error:
            common = [each for each in MODERN_PROTOCOL_VERSIONS if each in _offered(error)]
            if not common or attempt == 2:
                raise
            version, within = common[-1], _SECOND_PROBE_S
            continue
        return


def _offered(error: Any) -> list[str]:
    """The versions that a server lists when it refuses ours."""
    data: Any = error.error.data
    found: Any = (
        cast("dict[str, Any]", data).get("supported")
        if error.code == UNSUPPORTED_VERSION and isinstance(data, dict)
        else None
    )
    return (
        [each for each in cast("list[Any]", found) if isinstance(each, str)]
        if isinstance(found, list)
        else []
    )


def _is_final(error: Any, remote: GuardedClient | None) -> bool:
    """Whether the older handshake would fail too: no server is there, or it rejects the client."""
    note = remote.last if remote is not None else None
    if note is None:
        return error.code == CONNECTION_CLOSED and error.message == "Connection closed"
    return note.status is None or note.status in _REJECTED or note.status >= _SERVER_ERROR
