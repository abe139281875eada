"""Telling clients that what is served has changed.

In: a change, from any thread. Out: `notifications/.../list_changed` to the sessions of the handshake era, and an event on the streams that
newer clients opened with `subscriptions/listen`. Clients live on the loops that serve them: each is told there.
"""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

What = Literal["tools", "prompts", "resources"]


class Changes:
    """Who is to be told. It is also the SDK's `SubscriptionBus` of the newer era."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._listeners: dict[object, tuple[Callable[[Any], None], asyncio.AbstractEventLoop]] = {}
        self._sessions: dict[Any, asyncio.AbstractEventLoop] = {}
        self._sending: set[asyncio.Task[None]] = set()

    # -- clients of the newer era ---------------------------------------------------------------------------------

    async def publish(self, event: Any) -> None:
        """Tell the streams that asked for it (the SDK's word)."""
        self.tell_streams(event)
        await asyncio.sleep(0)

    def subscribe(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        """Add a stream (the SDK's word); what is returned takes it away again."""
        token = object()
        with self._lock:
            self._listeners[token] = (listener, asyncio.get_running_loop())

        def leave() -> None:
            with self._lock:
                self._listeners.pop(token, None)

        return leave

    def tell_streams(self, event: Any) -> None:
        """As `publish`, from any thread."""
        with self._lock:
            listeners = list(self._listeners.values())
        for listener, loop in listeners:
            if not loop.is_closed():
                loop.call_soon_threadsafe(listener, event)

    # -- clients of the handshake era -----------------------------------------------------------------------------

    def add_session(self, connection: Any) -> None:
        """A client has shaken hands; it is forgotten when its connection ends."""
        with self._lock:
            self._sessions[connection] = asyncio.get_running_loop()
        connection.exit_stack.callback(self._forget, connection)

    def _forget(self, connection: Any) -> None:
        with self._lock:
            self._sessions.pop(connection, None)

    # -- both -----------------------------------------------------------------------------------------------------

    def tell(self, what: What) -> None:
        """One of the lists has changed. From any thread."""
        from mcp.server.subscriptions import PromptsListChanged, ResourcesListChanged, ToolsListChanged

        self.tell_streams({"tools": ToolsListChanged, "prompts": PromptsListChanged, "resources": ResourcesListChanged}[what]())
        with self._lock:
            sessions = list(self._sessions.items())
        for connection, loop in sessions:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._send, connection, what)

    def _send(self, connection: Any, what: What) -> None:
        # Held until it is done: the loop itself keeps only weak references to tasks.
        task = asyncio.get_running_loop().create_task(_sent(connection, what))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)


async def _sent(connection: Any, what: What) -> None:
    import anyio

    send = {
        "tools": connection.send_tool_list_changed,
        "prompts": connection.send_prompt_list_changed,
        "resources": connection.send_resource_list_changed,
    }[what]
    try:
        await send()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
        return  # it is leaving just now
