"""The SDK's low-level server for the served tools, for all revisions of the protocol.

The tools check their arguments, not the SDK. The state of a question, which travels through the client, is sealed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.bridges.mcp.errors import missing_extra
from ferrule.bridges.mcp.server.context import connection_of, set_log_level
from ferrule.bridges.mcp.server.result import make_serializable
from ferrule.errors import UnknownToolError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ferrule.bridges.mcp.server.call import CallRunner
    from ferrule.bridges.mcp.server.notifications import ChangeNotifier
    from ferrule.bridges.mcp.server.tools import ServedTool


def build_server(
    about: Mapping[str, Any],
    offered: Mapping[str, ServedTool],
    calls: CallRunner,
    changes: ChangeNotifier,
    *,
    keys: Sequence[str | bytes] | None,
    list_ttl_s: float,
) -> Any:
    """An `mcp.server.Server`. `about` holds its `name`, `version`, `title`, `instructions`; `offered` may change while it serves."""
    changing_server = _changing_server()
    import mcp_types as types
    from mcp.server import CacheHint
    from mcp.server.caching import CACHEABLE_METHODS
    from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
    from mcp.server.subscriptions import ListenHandler
    from mcp.shared.exceptions import MCPError

    async def list_tools(context: Any, params: Any) -> Any:
        del context, params
        return make_serializable(types.ListToolsResult(tools=[types.Tool.model_validate(each.entry) for each in list(offered.values())]))

    async def call_tool(context: Any, params: Any) -> Any:
        served = offered.get(params.name)
        if served is None:
            raise MCPError(types.INVALID_PARAMS, str(UnknownToolError(params.name, list(offered))))
        try:
            found = await calls.run(served, context, params)
        except MCPError as error:
            error.error = make_serializable(error.error)
            raise
        return make_serializable(types.CallToolResult.model_validate(found) if isinstance(found, dict) else found)

    async def set_level(context: Any, params: Any) -> Any:
        set_log_level(context, params.level)
        return types.EmptyResult()

    async def initialized(context: Any, params: Any) -> None:
        del params
        changes.add_session(connection_of(context))

    def schema_of(name: str) -> dict[str, Any] | None:
        return offered[name].entry["inputSchema"] if name in offered else None

    hints: Any = dict.fromkeys(CACHEABLE_METHODS, CacheHint(ttl_ms=int(list_ttl_s * 1000)))
    options: dict[str, Any] = dict(about)
    server = changing_server(
        **options,
        cache_hints=hints,
        get_tool_input_schema=schema_of,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_subscriptions_listen=ListenHandler(changes),
    )
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)
    server.add_notification_handler("notifications/initialized", types.NotificationParams, initialized)
    security = RequestStateSecurity(keys=list(keys)) if keys is not None else RequestStateSecurity.ephemeral()
    server.middleware.append(RequestStateBoundary(security, default_audience=about["name"]))
    return server


def _changing_server() -> Any:
    """A subclass of the SDK's server that declares changing lists. Raises an error that names the extra if the SDK is missing."""
    try:
        from mcp.server import NotificationOptions, Server
    except ModuleNotFoundError as error:
        raise missing_extra(error) from error

    class ChangingServer(Server[Any]):
        def create_initialization_options(self, notification_options: Any = None, *args: Any, **more: Any) -> Any:
            # Transports pass no options, and the default declares that lists never change.
            every = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
            return super().create_initialization_options(notification_options or every, *args, **more)

    return ChangingServer
