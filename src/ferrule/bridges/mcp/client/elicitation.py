"""What a server asks during a call, taken to a hook, or to the run that the call is a part of.

A question comes in one of two ways. Up to 2025-11-25 the server asks while the call is open, and does not say which call it means; so a
server that may ask a run works on its calls one after another. From 2026-07-28 on the question is the result of the call, and the call is
made again with the answer. A run that has no answer yet waits: the open call is told `cancel`, and made again when a person has answered.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from ferrule import settings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from ferrule.bridges.mcp.client.options import ServerOptions
    from ferrule.bridges.mcp.connection.handshake import Wire

MOST_ROUNDS = 10
"""How often one call may come back with questions."""
_ELICIT = "elicitation/create"
_STATE_WAIT_S = 0.05
_ELICITS: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}


class Asking:
    """Whom a server's questions go to."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self.in_runs = options.ask_in_runs
        """Whether runs are there to take the questions of a server of the older era, which learns that when it is connected."""
        self._turn = asyncio.Lock()
        self._inputs: Any = None

    @property
    def hook(self) -> Any:
        """What answers `elicitation/create` while a call is open; None: the capability is not declared."""
        return self._options.elicit or (self._pushed if self.in_runs else None)

    def inputs(self) -> Any:
        """Where the run that a call is a part of takes questions; None outside any run, and where a hook takes them."""
        if self._options.elicit is not None or self._options.rules.on_input is not None:
            return None
        return getattr(settings.scope().call, "inputs", None)

    @asynccontextmanager
    async def turn(self, inputs: Any, wire: Wire | None) -> AsyncGenerator[None]:
        """The time of one call; of a server of the older era that may ask a run, one after another."""
        if self._options.elicit is not None or not self.in_runs or wire is None or wire.is_modern:
            yield
            return
        async with self._turn:
            self._inputs = inputs
            try:
                yield
            finally:
                self._inputs = None

    async def _pushed(self, params: dict[str, Any]) -> dict[str, Any]:
        if self._inputs is None:  # a call outside any run, without a hook: nobody is there
            return {"action": "decline"}
        return self._inputs.pushed(params, self._options.input_expires_s)

    def meta(self, inputs: Any, wire: Wire | None, meta: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The `_meta` of a call. In the newer era each says what can be asked during it: a run can be, nobody cannot."""
        if self._options.elicit is not None or wire is None or not wire.is_modern:
            return meta
        able = {key: value for key, value in wire.client_capabilities.items() if key != "elicitation"}
        able |= _ELICITS if inputs is not None else {}
        if able == wire.client_capabilities:
            return meta
        from mcp_types import CLIENT_CAPABILITIES_META_KEY

        return {CLIENT_CAPABILITIES_META_KEY: able, **(meta or {})}

    async def answered(self, result: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What hooks answer to the questions of a result, by its keys; and the parameters of those that they do not.

        Of a question that is none for a person, there is None in the place of its parameters.
        """
        asked = result.get("inputRequests")
        if not isinstance(asked, dict) or not asked:
            await asyncio.sleep(_STATE_WAIT_S)  # only its state: it wants to be asked again
            return {}, {}
        found: dict[str, Any] = {}
        left: dict[str, Any] = {}
        for key, question in cast("dict[str, dict[str, Any]]", asked).items():
            method: str = question.get("method", "")
            params: dict[str, Any] = question.get("params") or {}
            answer = await self._by_hook(method, params)
            if answer is None:
                left[key] = params if method == _ELICIT else None
            else:
                found[key] = answer
        return found, left

    def takes(self, left: Mapping[str, Any]) -> bool:
        """Whether all of these are questions that a person can answer."""
        return None not in left.values()

    async def _by_hook(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        options = self._options
        if method == _ELICIT and options.elicit is not None:
            return await options.elicit(params)
        if method == "sampling/createMessage" and options.sample is not None:
            return await options.sample(params)
        if method == "roots/list" and options.roots is not None:
            return {"roots": await options.roots()}
        return None
