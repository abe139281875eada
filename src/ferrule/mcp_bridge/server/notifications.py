"""Notifying clients of changed lists, from any thread.

Clients of the handshake get `notifications/.../list_changed`; newer clients get an event on the
streams that they opened with `subscriptions/listen`. Each client is notified on the loop that
serves it.
"""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

ListKind = Literal["tools", "prompts", "resources"]


class ChangeNotifier:
    """The clients to notify. It is also the SDK's `SubscriptionBus`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._listeners: dict[object, tuple[Callable[[Any], None], asyncio.AbstractEventLoop]] = {}
        self._sessions: dict[Any, asyncio.AbstractEventLoop] = {}
        self._sending: set[asyncio.Task[None]] = set()

    # -- clients from 2026-07-28 on

    async def publish(self, event: Any) -> None:
        """Send an event to all streams (a method of `SubscriptionBus`)."""
        self.tell_streams(event)
        await asyncio.sleep(0)

    def subscribe(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        """Add a stream (a method of `SubscriptionBus`); returns a function that removes it."""
        token = object()
        with self._lock:
            self._listeners[token] = (listener, asyncio.get_running_loop())

        def leave() -> None:
            with self._lock:
                self._listeners.pop(token, None)

        return leave

    def tell_streams(self, event: Any) -> None:
        """`publish` from any thread."""
        with self._lock:
            listeners = list(self._listeners.values())
        for listener, loop in listeners:
            if not loop.is_closed():
                loop.call_soon_threadsafe(listener, event)

    # -- clients before 2026-07-28

    def add_session(self, connection: Any) -> None:
        """Add a client after its handshake, until its connection ends."""
        with self._lock:
            self._sessions[connection] = asyncio.get_running_loop()
        connection.exit_stack.callback(self._forget, connection)

    def _forget(self, connection: Any) -> None:
        with self._lock:
            self._sessions.pop(connection, None)

    # -- both

    def tell(self, what: ListKind) -> None:
        """Notify all clients of a changed list, from any thread."""
        self.tell_streams(_event_of(what))
        with self._lock:
            sessions = list(self._sessions.items())
        for connection, loop in sessions:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._send, connection, what)

    def _send(self, connection: Any, what: ListKind) -> None:
        # Kept until it is done, as the loop has only weak references to tasks.
        task = asyncio.get_running_loop().create_task(_notify(connection, what))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)


def _event_of(what: ListKind) -> Any:
    from mcp.server.subscriptions import PromptsListChanged, ResourcesListChanged, ToolsListChanged

    match what:
        case "tools":
            return ToolsListChanged()
        case "prompts":
            return PromptsListChanged()
        case "resources":
            return ResourcesListChanged()


async def _notify(connection: Any, what: ListKind) -> None:
    import anyio

    try:
        match what:
            case "tools":
                await connection.send_tool_list_changed()
            case "prompts":
                await connection.send_prompt_list_changed()
            case "resources":
                await connection.send_resource_list_changed()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
        return  # the client is disconnecting
