"""What a server sends between answers: notifications and questions, passed to hooks as plain JSON.

An exception of a hook is logged and ends only that message. The server does not see its text.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

from ferrule.mcp_bridge.connection.handshake import client_info, wire_form
from ferrule.record import Record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ferrule.mcp_bridge.connection.handshake import Handshake

    Hook = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

log = logging.getLogger("ferrule.mcp")

_CHANGED = {
    "notifications/tools/list_changed": "tools",
    "notifications/resources/list_changed": "resources",
    "notifications/prompts/list_changed": "prompts",
}
_KINDS = {
    "ToolsListChanged": "tools",
    "ResourcesListChanged": "resources",
    "PromptsListChanged": "prompts",
}
ELICITATION: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
"""The capability of a client that answers a server's questions."""
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_UNKNOWN_METHOD = -32601


class Hooks(Record, kw_only=True):
    """Where a connection passes notifications and questions; all hooks run on the background loop.

    `changed(kind)` gets `tools`, `resources`, `prompts` or `resource:<uri>`; `logged(params)` a log
    message as on the wire. `elicit`, `sample` and `roots` answer questions of the server; a
    capability is declared only if its hook is set.
    """

    changed: Callable[[str], None]
    logged: Callable[[dict[str, Any]], Awaitable[None] | None] | None = None
    log_level: str | None = None
    elicit: Hook | None = None
    sample: Hook | None = None
    roots: Callable[[], Awaitable[list[dict[str, Any]]]] | None = None

    def capabilities(self) -> dict[str, Any]:
        """The capabilities that the client declares."""
        return {
            **(ELICITATION if self.elicit is not None else {}),
            **({"sampling": {}} if self.sample is not None else {}),
            **({"roots": {"listChanged": True}} if self.roots is not None else {}),
        }


def callbacks(hooks: Hooks) -> dict[str, Any]:
    """The keyword arguments for `mcp.ClientSession`."""
    import mcp_types as types

    no_answer = types.ErrorData(code=types.INTERNAL_ERROR, message="The client could not answer.")

    async def notified(message: Any) -> None:
        method = getattr(message, "method", "")
        if method in _CHANGED:
            hooks.changed(_CHANGED[method])
        elif method == "notifications/resources/updated":
            hooks.changed(f"resource:{message.params.uri}")

    async def logged(params: Any) -> None:
        if hooks.logged is not None:
            waiting = hooks.logged(wire_form(params))
            if waiting is not None:
                await waiting

    async def elicit(_: Any, params: Any) -> Any:
        assert hooks.elicit is not None  # noqa: S101  declared only if the hook is set
        return await elicited(hooks.elicit, wire_form(params))

    async def sample(_: Any, params: Any) -> Any:
        assert hooks.sample is not None  # noqa: S101  the same
        return await _answer(
            "sample",
            hooks.sample(wire_form(params)),
            types.CreateMessageResult,
            no_answer,
        )

    async def listed_roots() -> dict[str, Any]:
        assert hooks.roots is not None  # noqa: S101  the same
        return {"roots": await hooks.roots()}

    async def roots(_: Any) -> Any:
        return await _answer("roots", listed_roots(), types.ListRootsResult, no_answer)

    return {
        "message_handler": notified,
        "logging_callback": logged,
        "elicitation_callback": elicit if hooks.elicit is not None else None,
        "sampling_callback": sample if hooks.sample is not None else None,
        "list_roots_callback": roots if hooks.roots is not None else None,
        "client_info": types.Implementation.model_validate(client_info()),
    }


async def elicited(hook: Hook, params: dict[str, Any]) -> Any:
    """The answer of an `elicit` hook, as a model of the SDK: `cancel` if the hook raises, or its answer is none."""
    import mcp_types as types

    async def ask() -> dict[str, Any]:
        return await hook(params)

    return await _answer("elicit", ask(), types.ElicitResult, types.ElicitResult(action="cancel"))


async def _answer(name: str, answer: Awaitable[dict[str, Any]], kind: Any, otherwise: Any) -> Any:
    """A hook's answer, or `otherwise` if it raises: the server must not see the error's text."""
    try:
        found = kind.model_validate(await answer)
        json.dumps(wire_form(found), allow_nan=False, ensure_ascii=False).encode()
    except Exception:
        log.exception("The hook `%s` raised, or its answer cannot be sent.", name)
        return otherwise
    return found


async def listen_for_changes(
    session: Any,
    handshake: Handshake,
    changed: Callable[[str], None],
) -> None:
    """Read the stream on which a server of 2026-07-28 or later notifies of changed lists, until cancelled.

    A stream that drops is opened again after a growing wait. The server replays nothing, so every
    list then counts as changed. Returns if the server has no such stream.
    """
    from mcp.client.subscriptions import SubscriptionLost, listen
    from mcp.shared.exceptions import MCPError as SDKError

    wanted = {kind for kind in _KINDS.values() if handshake.notifies_of(kind)}
    wait_s = _FIRST_WAIT_S
    is_again = False
    while True:
        try:
            async with listen(
                session,
                tools_list_changed="tools" in wanted,
                resources_list_changed="resources" in wanted,
                prompts_list_changed="prompts" in wanted,
            ) as stream:
                wait_s = _FIRST_WAIT_S
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
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
