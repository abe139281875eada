"""What a server tells and asks between answers, handed to our own hooks as plain data.

In: hooks that take and give the protocol's JSON. Out: the callbacks of the SDK's session. What a hook raises is logged, ends nothing
but the one message, and is not told to the server.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from ferrule.values.record import Record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Ask = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

log = logging.getLogger("ferrule.mcp")

_CHANGED = {
    "notifications/tools/list_changed": "tools",
    "notifications/resources/list_changed": "resources",
    "notifications/prompts/list_changed": "prompts",
}


class Hooks(Record, kw_only=True):
    """What a connection tells, and whom it asks; all on the background loop.

    `changed(kind)` with `tools`, `resources`, `prompts` or `resource:<uri>`; `logged(params)` a log message as on the wire. `elicit`,
    `sample` and `roots` answer the server's questions with the protocol's plain data; a capability is declared only where its hook is set.
    """

    changed: Callable[[str], None]
    logged: Callable[[dict[str, Any]], Awaitable[None] | None] | None = None
    log_level: str | None = None
    elicit: Ask | None = None
    sample: Ask | None = None
    roots: Callable[[], Awaitable[list[dict[str, Any]]]] | None = None

    def capabilities(self) -> dict[str, Any]:
        """What the client says that it can do."""
        return {
            **({"elicitation": {"form": {}, "url": {}}} if self.elicit is not None else {}),
            **({"sampling": {}} if self.sample is not None else {}),
            **({"roots": {"listChanged": True}} if self.roots is not None else {}),
        }


def client_info() -> dict[str, Any]:
    """How ferrule presents itself to a server."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return {"name": "ferrule", "version": version("ferrule")}
    except PackageNotFoundError:  # run from source
        return {"name": "ferrule", "version": "0"}


def plain(model: Any) -> Any:
    """A value of the SDK as it stood on the wire."""
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def callbacks(hooks: Hooks) -> dict[str, Any]:
    """The keyword arguments for `mcp.ClientSession`."""
    import mcp_types as types

    no_answer = types.ErrorData(code=types.INTERNAL_ERROR, message="The client could not answer.")

    async def told(message: Any) -> None:
        method = getattr(message, "method", "")
        if method in _CHANGED:
            hooks.changed(_CHANGED[method])
        elif method == "notifications/resources/updated":
            hooks.changed(f"resource:{message.params.uri}")

    async def logged(params: Any) -> None:
        if hooks.logged is not None:
            waiting = hooks.logged(plain(params))
            if waiting is not None:
                await waiting

    async def elicit(_: Any, params: Any) -> Any:
        assert hooks.elicit is not None  # noqa: S101  set only where the hook is there
        return await _told_nothing("elicit", hooks.elicit(plain(params)), types.ElicitResult, types.ElicitResult(action="cancel"))

    async def sample(_: Any, params: Any) -> Any:
        assert hooks.sample is not None  # noqa: S101  the same
        return await _told_nothing("sample", hooks.sample(plain(params)), types.CreateMessageResult, no_answer)

    async def roots(_: Any) -> Any:
        assert hooks.roots is not None  # noqa: S101  the same
        return await _told_nothing("roots", _rooted(hooks.roots()), types.ListRootsResult, no_answer)

    return {
        "message_handler": told,
        "logging_callback": logged,
        "elicitation_callback": elicit if hooks.elicit is not None else None,
        "sampling_callback": sample if hooks.sample is not None else None,
        "list_roots_callback": roots if hooks.roots is not None else None,
        "client_info": types.Implementation.model_validate(client_info()),
    }


async def _rooted(roots: Awaitable[list[dict[str, Any]]]) -> dict[str, Any]:
    return {"roots": await roots}


async def _told_nothing(name: str, answer: Awaitable[dict[str, Any]], kind: Any, instead: Any) -> Any:
    """What a hook answers; where it breaks, `instead`: its error is for our log, and not for a stranger."""
    try:
        found = kind.model_validate(await answer)
        json.dumps(plain(found), allow_nan=False, ensure_ascii=False).encode()
    except Exception:
        log.exception("The hook `%s` raised, or answered what cannot be sent.", name)
        return instead
    return found
