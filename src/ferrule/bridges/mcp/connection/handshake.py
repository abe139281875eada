"""Agreeing on a version of MCP, and what every request of that version carries.

Two eras: up to 2025-11-25 a handshake (`initialize`), from 2026-07-28 none (`server/discover`, and every request says its version itself).
A server that knows nothing of the second may also never answer; so the question is short, its outcome is remembered for reconnects, and
what comes late is not lost: a server that answered too late refuses the handshake by a code that says which versions it speaks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from ferrule.bridges.mcp.connection.callbacks import client_info, plain
from ferrule.values.record import Changing, Record, field

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.bridges.mcp.connection.callbacks import Hooks
    from ferrule.bridges.mcp.transport.http import GuardedClient

PROBE_S = 1.5
"""How long a child process may take to answer the question for the newer era (M12: connected within 3 s when it never does)."""
REMOTE_PROBE_S = 8.0
_SECOND_PROBE_S = 10.0
UNSUPPORTED_VERSION = -32022
_CONNECTION_CLOSED = -32000
_REJECTED = (401, 403, 429)
_SERVER_ERROR = 500
_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


class Remembered(Changing):
    """What a server was found to be, kept over reconnects."""

    discovered: Any = None
    """The SDK's `DiscoverResult` of a server of the newer era."""
    is_legacy: bool = False

    def forget(self) -> None:
        """Ask again at the next connection: the server may have become another."""
        self.discovered, self.is_legacy = None, False


class Wire(Record, kw_only=True):
    """What was agreed on."""

    version: str = ""
    is_modern: bool = False
    server: dict[str, Any] = field(default_factory=dict[str, Any])
    instructions: str | None = None
    capabilities: dict[str, Any] = field(default_factory=dict[str, Any])
    client_capabilities: dict[str, Any] = field(default_factory=dict[str, Any])
    log_level: str | None = None

    @property
    def listens(self) -> bool:
        """Whether changes of lists come on a stream that must be asked for."""
        return self.is_modern and any(self.tells_of(kind) for kind in ("tools", "resources", "prompts"))

    def tells_of(self, kind: str) -> bool:
        """Whether the server says that it tells of changes in this list."""
        found = self.capabilities.get(kind)
        return isinstance(found, dict) and bool(cast("dict[str, Any]", found).get("listChanged"))

    def stamped(
        self, method: str, params: Mapping[str, Any] | None, meta: Mapping[str, Any] | None, headers: Mapping[str, str] | None
    ) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Parameters and options of a request, as this version wants them: its headers mirror the body (2026-07-28, basic/transports)."""
        from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, LOG_LEVEL_META_KEY, PROTOCOL_VERSION_META_KEY

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
        whole: dict[str, Any] = {**own, **(body.get("_meta") or {}), **(meta or {})}
        if whole:
            body["_meta"] = whole
        return (body or None), {"headers": sent}


async def negotiate(session: Any, remembered: Remembered, hooks: Hooks, *, remote: GuardedClient | None) -> Wire:
    """Agree with the server, by what is remembered or by asking. Raises the SDK's error where there is nothing to agree on."""
    if remembered.discovered is not None and remote is not None:
        session.adopt(remembered.discovered)  # stateless: nothing has to be said; a process that was started anew is asked again
    elif not (remembered.is_legacy and await _is_legacy_still(session)):
        await _ask(session, remote)
    remembered.is_legacy = session.discover_result is None
    remembered.discovered = session.discover_result
    wire = Wire(
        version=session.protocol_version,
        is_modern=session.discover_result is not None,
        server=plain(session.server_info) if session.server_info is not None else {},
        instructions=session.instructions,
        capabilities=plain(session.server_capabilities) if session.server_capabilities is not None else {},
        client_capabilities=hooks.capabilities(),
        log_level=hooks.log_level,
    )
    if hooks.log_level and not wire.is_modern and "logging" in wire.capabilities:
        await session.send_request(_set_level(hooks.log_level), _empty())
    return wire


async def _is_legacy_still(session: Any) -> bool:
    from mcp.shared.exceptions import MCPError as SDKError

    try:
        await session.initialize()
    except SDKError as error:
        if error.code != UNSUPPORTED_VERSION:
            raise
        return False
    return True


def _set_level(level: str) -> Any:
    import mcp_types as types

    return types.SetLevelRequest.model_validate({"method": "logging/setLevel", "params": {"level": level}})


def _empty() -> Any:
    import mcp_types as types

    return types.EmptyResult


async def _ask(session: Any, remote: GuardedClient | None) -> None:
    from mcp.shared.exceptions import MCPError as SDKError
    from mcp_types import DiscoverResult
    from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS
    from pydantic import ValidationError

    version, within = LATEST_MODERN_VERSION, PROBE_S if remote is None else REMOTE_PROBE_S
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
            if offered and not any(each not in MODERN_PROTOCOL_VERSIONS and each < LATEST_MODERN_VERSION for each in offered):
                raise
        if raw is not None:
            try:
                found = DiscoverResult.model_validate(raw)
            except ValidationError:
                found = None
            if found is not None and any(each in found.supported_versions for each in MODERN_PROTOCOL_VERSIONS):
                session.adopt(found)
                return
        try:
            await session.initialize()
        except SDKError as error:
            common = [each for each in MODERN_PROTOCOL_VERSIONS if each in _offered(error)]
            if not common or attempt == 2:  # noqa: PLR2004  the second and last
                raise
            version, within = common[-1], _SECOND_PROBE_S
            continue
        return


def _offered(error: Any) -> list[str]:
    """The versions that a server names when it refuses ours."""
    data: Any = error.error.data
    found: Any = cast("dict[str, Any]", data).get("supported") if error.code == UNSUPPORTED_VERSION and isinstance(data, dict) else None
    return [each for each in cast("list[Any]", found) if isinstance(each, str)] if isinstance(found, list) else []


def _is_final(error: Any, remote: GuardedClient | None) -> bool:
    """Whether the older handshake cannot fare better: nobody is there, or nobody may come in."""
    note = remote.last if remote is not None else None
    if note is None:
        return error.code == _CONNECTION_CLOSED and error.message == "Connection closed"
    return note.status is None or note.status in _REJECTED or note.status >= _SERVER_ERROR
