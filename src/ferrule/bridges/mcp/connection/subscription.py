"""The stream on which a server of the newer era tells that a list changed.

Opened again after it dropped, with growing waits; nothing is replayed on it, so after a gap every list counts as changed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.bridges.mcp.connection.handshake import Wire

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
_KINDS = {"ToolsListChanged": "tools", "ResourcesListChanged": "resources", "PromptsListChanged": "prompts"}
_UNKNOWN_METHOD = -32601


async def listen_for_changes(session: Any, wire: Wire, changed: Callable[[str], None]) -> None:
    """Listen until cancelled, or until the server turns out not to have such a stream."""
    from mcp.client.subscriptions import SubscriptionLost, listen
    from mcp.shared.exceptions import MCPError as SDKError

    wanted = {kind for kind in _KINDS.values() if wire.tells_of(kind)}
    wait_s = FIRST_WAIT_S
    is_again = False
    while True:
        try:
            async with listen(
                session,
                tools_list_changed="tools" in wanted,
                resources_list_changed="resources" in wanted,
                prompts_list_changed="prompts" in wanted,
            ) as stream:
                wait_s = FIRST_WAIT_S
                if is_again:
                    for kind in wanted:
                        changed(kind)
                async for event in stream:
                    kind = _KINDS.get(type(event).__name__)
                    if kind is not None:
                        changed(kind)
        except (SubscriptionLost, TimeoutError):
            pass
        except SDKError as error:
            if error.code == _UNKNOWN_METHOD:
                return
        is_again = True
        await asyncio.sleep(wait_s)
        wait_s = min(wait_s * 2, LONGEST_WAIT_S)
