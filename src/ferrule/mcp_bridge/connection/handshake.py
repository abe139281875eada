"""Agreeing with a server on a version of MCP, and what every request of that version carries.

Up to revision 2025-11-25 there is a handshake (`initialize`). From 2026-07-28 on there is none: the
client asks `server/discover`, and every request names its version.

The policy of `mode="auto"` is that of the SDK's own client: ask `server/discover` first; whatever
answers with something other than a list of modern versions gets the older handshake. Four points
differ, and are the reason why the SDK's private probe cannot be used:

- A server that does not know `server/discover` may never answer it, so the question has a short
  time limit. A server that was merely slow to start refuses the handshake with an error that lists
  its versions, and is then asked again, with more time.
- Where no server answers at all, or it rejects the client (401, 403, 429, 5xx), the handshake would
  fail too, with a worse error. The first error is raised instead.
- Of the answer to `initialize`, only the version must be valid. A server without a name, or with a
  list where its capabilities belong, works as well. If it refuses the version and names others, the
  newest of these that the client speaks is tried.
- The outcome is remembered in `KnownEra`, so that a reconnect does not ask again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args

from msgspec import Struct, field

from ferrule.errors import shown
from ferrule.mcp_bridge.errors import CONNECTION_CLOSED, HandshakeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.mcp_bridge.transport.http import GuardedClient

ProtocolMode = Literal["auto", "2025-11-25", "2026-07-28"]
PROTOCOL_MODES: tuple[ProtocolMode, ...] = get_args(ProtocolMode)

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Levels of log messages, in rising order (RFC 5424, section 6.2.1)."""
TASKS = "io.modelcontextprotocol/tasks"
"""The extension by which a server may answer a call with a task."""
UNSUPPORTED_VERSION = -32022

_PROBE_S = 1.5
"""How long a child process may take to answer `server/discover`. A server that never does is still
connected within three seconds."""
_REMOTE_PROBE_S = 8.0
"""The same for a server behind an address."""
_SECOND_PROBE_S = 10.0
"""The same for a server that is known to answer, and was slow."""
_REJECTED = (401, 403, 429)
_SERVER_ERROR = 500
_NAMED_BY = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The parameter that the header `Mcp-Name` repeats, by method."""


class KnownEra(Struct):
    """Which handshake a server takes; kept over reconnects."""

    discovered: Any = None
    """The SDK's `DiscoverResult`, from a server of 2026-07-28 or later."""
    is_legacy: bool = False
    mode: ProtocolMode = "auto"
    """What the user chose."""

    def forget(self) -> None:
        """Ask again at the next connection: the server may have been replaced."""
        self.discovered = None
        self.is_legacy = False


class Handshake(Struct, frozen=True, kw_only=True):
    """What client and server agreed on."""

    version: str = ""
    is_modern: bool = False
    server: dict[str, Any] = field(default_factory=dict[str, Any])
    instructions: str | None = None
    capabilities: dict[str, Any] = field(default_factory=dict[str, Any])
    client_capabilities: dict[str, Any] = field(default_factory=dict[str, Any])
    log_level: str | None = None
    session_id: str | None = None
    """The id of a session over HTTP, before 2026-07-28."""

    @property
    def listens(self) -> bool:
        """Whether the client must open a stream to be notified of changed lists."""
        if not self.is_modern:
            return False
        return any(self.notifies_of(kind) for kind in ("tools", "resources", "prompts"))

    def notifies_of(self, kind: str) -> bool:
        """Whether the server declares that it notifies of changes in this list."""
        capability = self.capabilities.get(kind)
        if not isinstance(capability, dict):
            return False
        return bool(cast("dict[str, Any]", capability).get("listChanged"))

    def prepare_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        meta: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None,
    ) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """The parameters of a request in this version, and the options for the SDK's dispatcher.

        Headers mirror the body (revision 2026-07-28, "Transports").
        """
        body = dict(params or {})
        sent_headers = {"mcp-protocol-version": self.version, **(headers or {})}
        all_meta: dict[str, Any] = {}
        if self.is_modern:
            all_meta.update(self._request_meta())
            sent_headers.update(_routing_headers(method, body))
        all_meta.update(body.get("_meta") or {})
        all_meta.update(meta or {})
        if all_meta:
            body["_meta"] = all_meta
        return (body or None), {"headers": sent_headers}

    def _request_meta(self) -> dict[str, Any]:
        """What every modern request says about the client, because no handshake did."""
        from mcp_types import (
            CLIENT_CAPABILITIES_META_KEY,
            CLIENT_INFO_META_KEY,
            LOG_LEVEL_META_KEY,
            PROTOCOL_VERSION_META_KEY,
        )

        meta = {
            PROTOCOL_VERSION_META_KEY: self.version,
            CLIENT_INFO_META_KEY: client_info(),
            CLIENT_CAPABILITIES_META_KEY: self.client_capabilities,
        }
        if self.log_level:
            meta[LOG_LEVEL_META_KEY] = self.log_level
        return meta


def _routing_headers(method: str, body: Mapping[str, Any]) -> dict[str, str]:
    from mcp.shared.inbound import encode_header_value

    headers = {"mcp-method": method}
    name = body.get(_NAMED_BY.get(method, ""))
    if isinstance(name, str):
        headers["mcp-name"] = encode_header_value(name)
    return headers


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


class Sender(Protocol):
    """Sends a request, and returns its raw result: the SDK's dispatcher."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: Any = None
    ) -> dict[str, Any]:
        """The result; raises the SDK's error."""
        ...


class _Opening(Struct, frozen=True):
    """What the steps of a handshake share."""

    session: Any
    sender: Sender
    client_capabilities: dict[str, Any]
    within_s: float


async def negotiate(
    session: Any,
    sender: Sender,
    known: KnownEra,
    client_capabilities: dict[str, Any],
    log_level: str | None,
    *,
    remote: GuardedClient | None,
    within_s: float,
) -> Handshake:
    """Agree with the server by the handshake that is known to work, or find out which one does.

    Raises the SDK's error if the server refuses, and `HandshakeError` for an answer that cannot be
    accepted.
    """
    opening = _Opening(session, sender, client_capabilities, within_s)
    if known.discovered is not None and remote is not None:
        # Without a handshake there is nothing to send. A child process that was started again may
        # be another version, and is asked again.
        session.adopt(known.discovered)
    elif known.mode != "auto":
        await _speak(opening, known.mode, remote)
    elif not (known.is_legacy and await _is_still_legacy(opening)):
        await _find_out(opening, remote)
    known.discovered = session.discover_result
    known.is_legacy = session.discover_result is None

    handshake = _handshake_of(session, client_capabilities, log_level, remote)
    if log_level and not handshake.is_modern and "logging" in handshake.capabilities:
        await _set_log_level(session, log_level)
    return handshake


def _handshake_of(
    session: Any,
    client_capabilities: dict[str, Any],
    log_level: str | None,
    remote: GuardedClient | None,
) -> Handshake:
    is_modern = session.discover_result is not None
    capabilities: dict[str, Any] = {}
    if session.server_capabilities is not None:
        capabilities = wire_form(session.server_capabilities)
    server: dict[str, Any] = {}
    if session.server_info is not None:
        server = wire_form(session.server_info)
    if is_modern and TASKS in capabilities.get("extensions", {}):
        client_capabilities = {**client_capabilities, "extensions": {TASKS: {}}}
    return Handshake(
        version=session.protocol_version,
        is_modern=is_modern,
        server=server,
        instructions=session.instructions,
        capabilities=capabilities,
        client_capabilities=client_capabilities,
        log_level=log_level,
        session_id=remote.session_id if remote is not None else None,
    )


async def _set_log_level(session: Any, level: str) -> None:
    # Not `set_logging_level`, which warns that logging is deprecated: servers still use it.
    import mcp_types as types

    request = types.SetLevelRequest.model_validate(
        {"method": "logging/setLevel", "params": {"level": level}}
    )
    await session.send_request(request, types.EmptyResult)


async def _speak(opening: _Opening, mode: ProtocolMode, remote: GuardedClient | None) -> None:
    """Agree on the revision that the user chose."""
    from mcp.shared.exceptions import MCPError as SDKError
    from mcp_types import DiscoverResult
    from pydantic import ValidationError

    try:
        if mode == "2025-11-25":
            await _initialize(opening)
            return
        session = opening.session
        discovered = DiscoverResult.model_validate(await session.send_discover(mode))
        if mode in discovered.supported_versions:
            session.adopt(discovered)
            return
        answer = f"it speaks {', '.join(discovered.supported_versions)}"
    except ValidationError:
        answer = "its answer is not a list of versions"
    except SDKError as error:
        if _is_final(error, remote):
            raise
        answer = f"it answered with error {error.code}: {error.message}"
    raise HandshakeError(f"it does not speak {mode}, which `mode` requires: {answer}")


async def _is_still_legacy(opening: _Opening) -> bool:
    """Whether the older handshake, which this server took before, works again."""
    from mcp.shared.exceptions import MCPError as SDKError

    try:
        await _initialize(opening)
    except SDKError as error:
        if error.code != UNSUPPORTED_VERSION:
            raise
        return False
    return True


async def _find_out(opening: _Opening, remote: GuardedClient | None) -> None:
    """Ask for modern versions first, then try the older handshake."""
    from mcp.shared.exceptions import MCPError as SDKError
    from pydantic import ValidationError

    session = opening.session
    within_s = _PROBE_S
    if remote is not None:
        within_s = _REMOTE_PROBE_S
    try:
        async with asyncio.timeout(within_s):
            await session.discover()  # asks once more if the server lists a common version
        return
    except SDKError as error:
        if _is_final(error, remote) or _is_too_new(error):
            raise
    except (TimeoutError, ValidationError, RuntimeError):
        # No answer, one that is not a list of versions, or a list without a modern version.
        pass

    try:
        await _initialize(opening)
    except SDKError as error:
        if not _modern_versions(error):
            raise
        # It knows `server/discover` after all, and was only too slow to answer it.
        try:
            async with asyncio.timeout(_SECOND_PROBE_S):
                await session.discover()
        except TimeoutError:
            raise error from None


async def _initialize(opening: _Opening) -> None:
    """The older handshake; with an older version if the server asks for it."""
    from mcp.shared.exceptions import MCPError as SDKError
    from mcp_types import InitializedNotification, InitializeResult
    from mcp_types.version import LATEST_HANDSHAKE_VERSION

    try:
        answer = await _ask_to_initialize(opening, LATEST_HANDSHAKE_VERSION)
    except SDKError as error:
        older = _older_version(error)
        if older is None:
            raise
        answer = await _ask_to_initialize(opening, older)
    opening.session.adopt(InitializeResult.model_validate(_acceptable(answer)))
    await opening.session.send_notification(InitializedNotification())


async def _ask_to_initialize(opening: _Opening, version: str) -> dict[str, Any]:
    # Not the SDK's `initialize`: it raises a bare validation error, also for what is not needed.
    params = {
        "protocolVersion": version,
        "capabilities": opening.client_capabilities,
        "clientInfo": client_info(),
    }
    options = {"timeout": opening.within_s}
    return await opening.sender.send_raw_request("initialize", params, options)


def _older_version(error: Any) -> str | None:
    """The newest version that a server names when it refuses ours, and that the client speaks."""
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    data: Any = error.error.data
    supported: Any = None
    if isinstance(data, dict):
        supported = cast("dict[str, Any]", data).get("supported")
    # Some name them only in the message: "Unsupported protocol version. Supported: 2024-11-05".
    text = f"{error.message} {supported}"
    refused = HANDSHAKE_PROTOCOL_VERSIONS[-1]
    named = [version for version in HANDSHAKE_PROTOCOL_VERSIONS if version in text]
    return max((version for version in named if version != refused), default=None)


def _acceptable(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer to `initialize` in the SDK's form; raises `HandshakeError` without a version."""
    from mcp_types import Implementation, ServerCapabilities
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
    from pydantic import ValidationError

    version = answer.get("protocolVersion")
    if version not in HANDSHAKE_PROTOCOL_VERSIONS:
        spoken = ", ".join(HANDSHAKE_PROTOCOL_VERSIONS)
        form = "without `protocolVersion`"
        if version is not None:
            form = f"with the `protocolVersion` {shown(version)}"
        raise HandshakeError(
            f"its answer to `initialize` came {form}, which must be one of {spoken}"
        )
    capabilities = _capabilities_in(answer.get("capabilities"))
    try:
        ServerCapabilities.model_validate(capabilities)
    except ValidationError as error:
        for fault in error.errors():
            capabilities.pop(str(fault["loc"][0]), None)
    server_info: Any = answer.get("serverInfo")
    try:
        Implementation.model_validate(server_info)
    except ValidationError:
        server_info = {
            "name": _text_in(server_info, "name"),
            "version": _text_in(server_info, "version"),
        }
    instructions = answer.get("instructions")
    if not isinstance(instructions, str):
        instructions = None
    return {
        "protocolVersion": version,
        "capabilities": capabilities,
        "serverInfo": server_info,
        "instructions": instructions,
    }


def _capabilities_in(value: Any) -> dict[str, Any]:
    """The capabilities of a server. PHP writes an empty object as a list."""
    if not isinstance(value, dict):
        return {}
    capabilities: dict[str, Any] = {}
    for name, capability in cast("dict[str, Any]", value).items():
        if isinstance(capability, dict):
            capabilities[name] = capability
        elif capability is not None and capability is not False:
            capabilities[name] = {}
    return capabilities


def _text_in(fields: Any, name: str) -> str:
    if not isinstance(fields, dict):
        return ""
    value = cast("dict[str, Any]", fields).get(name)
    if value is None:
        return ""
    return str(value)


def _offered_versions(error: Any) -> list[str]:
    """The versions that a server lists when it refuses ours."""
    data: Any = error.error.data
    if error.code != UNSUPPORTED_VERSION or not isinstance(data, dict):
        return []
    versions: Any = cast("dict[str, Any]", data).get("supported")
    if not isinstance(versions, list):
        return []
    return [version for version in cast("list[Any]", versions) if isinstance(version, str)]


def _modern_versions(error: Any) -> list[str]:
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    return [version for version in _offered_versions(error) if version in MODERN_PROTOCOL_VERSIONS]


def _is_too_new(error: Any) -> bool:
    """Whether a server speaks only versions that are newer than ours, so that no handshake helps.

    Versions are dates, and compare as texts.
    """
    from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS

    offered = _offered_versions(error)
    if not offered:
        return False
    return not any(
        version < LATEST_MODERN_VERSION and version not in MODERN_PROTOCOL_VERSIONS
        for version in offered
    )


def _is_final(error: Any, remote: GuardedClient | None) -> bool:
    """Whether the older handshake would fail too: no server is there, or it rejects the client."""
    note = remote.last if remote is not None else None
    if note is None:
        return error.code == CONNECTION_CLOSED and error.message == "Connection closed"
    return note.status is None or note.status in _REJECTED or note.status >= _SERVER_ERROR
