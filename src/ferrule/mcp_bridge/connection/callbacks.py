"""What a server sends between answers: notifications and questions, passed to hooks as plain JSON.

An exception of a hook is logged and ends only that message. The server does not see its text.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ferrule.mcp_bridge.connection.handshake import LEVELS, client_info, wire_form

if TYPE_CHECKING:
    from ferrule.mcp_bridge.connection.handshake import Handshake


log = logging.getLogger("ferrule.mcp")

ELICITATION: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
"""The capability of a client that answers a server's questions."""

_LIST_OF_METHOD = {
    "notifications/tools/list_changed": "tools",
    "notifications/resources/list_changed": "resources",
    "notifications/prompts/list_changed": "prompts",
}
_LIST_OF_EVENT = {
    "ToolsListChanged": "tools",
    "ResourcesListChanged": "resources",
    "PromptsListChanged": "prompts",
}
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_UNKNOWN_METHOD = -32601
_PROGRESS = "notifications/progress"
_LONGEST_ID = 20
"""More digits than the id of a request ever has."""

Hook = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers a question of the server: its parameters, and the result."""

Progress = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Takes how much of a call is done, of how much, and a message."""


class Hooks(Struct, frozen=True, kw_only=True):
    """Where a connection passes notifications and questions; all hooks run on the background loop.

    `changed(kind)` gets `tools`, `resources`, `prompts` or `resource:<uri>`; `logged(params)` a log
    message as on the wire. `elicit`, `sample` and `roots` answer questions of the server; a
    capability is declared only if its hook is set.
    """

    changed: Callable[[str], None]
    logged: Callable[[dict[str, Any]], Awaitable[None] | None] | None = None
    elicit: Hook | None = None
    sample: Hook | None = None
    roots: Callable[[], Awaitable[list[dict[str, Any]]]] | None = None

    def capabilities(self) -> dict[str, Any]:
        """The capabilities that the client declares."""
        declared: dict[str, Any] = {}
        if self.elicit is not None:
            declared.update(ELICITATION)
        if self.sample is not None:
            declared["sampling"] = {}
        if self.roots is not None:
            declared["roots"] = {"listChanged": True}
        return declared

    @property
    def log_level(self) -> str | None:
        """The lowest level of log messages to ask for: all of them, if a hook takes them."""
        return LEVELS[0] if self.logged is not None else None


def callbacks(hooks: Hooks) -> dict[str, Any]:
    """The keyword arguments for `mcp.ClientSession`."""
    import mcp_types as types

    no_answer = types.ErrorData(code=types.INTERNAL_ERROR, message="The client could not answer.")

    async def notified(message: Any) -> None:
        method = getattr(message, "method", "")
        if method in _LIST_OF_METHOD:
            hooks.changed(_LIST_OF_METHOD[method])
        elif method == "notifications/resources/updated":
            hooks.changed(f"resource:{message.params.uri}")

    async def logged(params: Any) -> None:
        if hooks.logged is not None:
            waiting = hooks.logged(wire_form(params))
            if waiting is not None:
                await waiting

    arguments: dict[str, Any] = {
        "message_handler": notified,
        "logging_callback": logged,
        "client_info": types.Implementation.model_validate(client_info()),
    }
    # The SDK declares a capability for each callback that it gets, so one without a hook stays out.
    if hooks.elicit is not None:
        elicit_hook = hooks.elicit

        async def elicit(_: Any, params: Any) -> Any:
            return await elicited(elicit_hook, wire_form(params))

        arguments["elicitation_callback"] = elicit
    if hooks.sample is not None:
        sample_hook = hooks.sample

        async def sample(_: Any, params: Any) -> Any:
            answer = sample_hook(wire_form(params))
            return await _answer("sample", answer, types.CreateMessageResult, no_answer)

        arguments["sampling_callback"] = sample
    if hooks.roots is not None:
        roots_hook = hooks.roots

        async def list_roots() -> dict[str, Any]:
            return {"roots": await roots_hook()}

        async def roots(_: Any) -> Any:
            return await _answer("roots", list_roots(), types.ListRootsResult, no_answer)

        arguments["list_roots_callback"] = roots
    return arguments


async def elicited(hook: Hook, params: dict[str, Any]) -> Any:
    """The answer of an `elicit` hook, as a model of the SDK.

    It is `cancel` if the hook raises, or returns something that is not an answer.
    """
    import mcp_types as types

    async def ask() -> dict[str, Any]:
        return await hook(params)

    return await _answer("elicit", ask(), types.ElicitResult, types.ElicitResult(action="cancel"))


async def _answer(name: str, answer: Awaitable[dict[str, Any]], kind: Any, otherwise: Any) -> Any:
    """A hook's answer, or `otherwise` if it raises: the server must not see the error's text."""
    try:
        model = kind.model_validate(await answer)
        json.dumps(wire_form(model), allow_nan=False, ensure_ascii=False).encode()
    except Exception:
        log.exception("The hook `%s` raised, or its answer cannot be sent.", name)
        return otherwise
    return model


class ProgressReports:
    """Passes on the progress of calls under way.

    The SDK's dispatcher would start two tasks for each report, and tell of the last ones after the
    result.
    """

    def __init__(self) -> None:
        self.by_call: dict[int | None, Progress] = {}
        """Who takes the progress of a call, by the id of its request, which is its token."""
        self._reporting: set[asyncio.Future[None]] = set()
        """Async hooks at work."""

    def take(self, message: Any) -> bool:
        """Report the progress of a call. Returns whether the message is a report of progress."""
        if getattr(message, "method", None) != _PROGRESS:
            return False
        params: dict[str, Any] = message.params or {}
        token = _as_request_id(params.get("progressToken"))
        done = _as_number(params.get("progress"))
        if token not in self.by_call or done is None:
            return True
        text = params.get("message")
        if not isinstance(text, str):
            text = None
        try:
            waiting = self.by_call[token](done, _as_number(params.get("total")), text)
            if waiting is not None:
                reporting = asyncio.ensure_future(waiting)
                self._reporting.add(reporting)
                reporting.add_done_callback(self._reported)
        except Exception:
            log.exception("The hook `on_progress` raised.")
        return True

    def end(self) -> None:
        """Cancel the hooks at work."""
        for reporting in self._reporting:
            reporting.cancel()

    def _reported(self, reporting: asyncio.Future[None]) -> None:
        self._reporting.discard(reporting)
        if not reporting.cancelled() and reporting.exception() is not None:
            log.error("The hook `on_progress` raised.", exc_info=reporting.exception())


def _as_request_id(token: Any) -> int | None:
    """A progress token as the id of a request of ours. A server may send it back as text."""
    if isinstance(token, str) and token.isdecimal() and len(token) < _LONGEST_ID:
        return int(token)
    if isinstance(token, int) and not isinstance(token, bool):
        return token
    return None


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


async def listen_for_changes(
    session: Any, handshake: Handshake, changed: Callable[[str], None]
) -> None:
    """Read the stream on which a modern server notifies of changed lists, until cancelled.

    A stream that drops is opened again after a growing wait. The server replays nothing, so every
    list then counts as changed. Returns if the server has no such stream.
    """
    from mcp.client.subscriptions import SubscriptionLost, listen
    from mcp.shared.exceptions import MCPError as SDKError

    wanted = {kind for kind in _LIST_OF_EVENT.values() if handshake.notifies_of(kind)}
    wait_s = _FIRST_WAIT_S
    was_open = False
    while True:
        try:
            async with listen(
                session,
                tools_list_changed="tools" in wanted,
                resources_list_changed="resources" in wanted,
                prompts_list_changed="prompts" in wanted,
            ) as stream:
                wait_s = _FIRST_WAIT_S
                if was_open:
                    for kind in wanted:
                        changed(kind)
                async for event in stream:
                    kind = _LIST_OF_EVENT.get(type(event).__name__)
                    if kind is not None:
                        changed(kind)
        except (SubscriptionLost, TimeoutError):
            pass
        except SDKError as error:
            if error.code == _UNKNOWN_METHOD:
                return
        was_open = True
        await asyncio.sleep(wait_s)
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
