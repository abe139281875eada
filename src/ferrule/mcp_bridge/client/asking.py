"""Questions of a server during a call, passed to a hook or to the run that made the call."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from ferrule import settings
from ferrule.mcp_bridge.connection.callbacks import ELICITATION, elicited
from ferrule.mcp_bridge.connection.handshake import wire_form

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from ferrule.mcp_bridge.client.options import ServerOptions
    from ferrule.mcp_bridge.connection.handshake import Handshake

_ELICIT = "elicitation/create"
_STATE_WAIT_S = 0.05


class Asking:
    """Passes a server's questions to a hook, or to the run that made the call."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self.in_runs = options.ask_in_runs
        """Whether runs take questions. A server of a version before 2026-07-28 learns that when it is connected."""
        self._turn = asyncio.Lock()
        self._inputs: Any = None

    @property
    def hook(self) -> Any:
        """Answers `elicitation/create` while a call is open. None: the capability is not declared."""
        return self._options.elicit or (self._pass_on if self.in_runs else None)

    def inputs(self) -> Any:
        """Takes questions for the run that makes this call; None outside a run, and if a hook takes them."""
        if self._options.elicit is not None or self._options.rules.on_input is not None:
            return None
        return getattr(settings.scope().call, "inputs", None)

    @asynccontextmanager
    async def turn(self, inputs: Any, handshake: Handshake | None) -> AsyncGenerator[None]:
        """Wait for this call's turn, if calls must be made one after another."""
        if (
            self._options.elicit is not None
            or not self.in_runs
            or handshake is None
            or handshake.is_modern
        ):
            yield
            return
        async with self._turn:
            self._inputs = inputs
            try:
                yield
            finally:
                self._inputs = None

    async def _pass_on(self, params: dict[str, Any]) -> dict[str, Any]:
        if self._inputs is None:  # a call outside a run
            return {"action": "decline"}
        return self._inputs.pushed(params, self._options.input_expires_s)

    def meta(
        self,
        inputs: Any,
        handshake: Handshake | None,
        meta: Mapping[str, Any] | None,
    ) -> Mapping[str, Any] | None:
        """The `_meta` of a call. From 2026-07-28 on each call says which questions may be asked: in a run, elicitation."""
        if self._options.elicit is not None or handshake is None or not handshake.is_modern:
            return meta
        able = {
            key: value
            for key, value in handshake.client_capabilities.items()
            if key != "elicitation"
        }
        able |= ELICITATION if inputs is not None else {}
        if able == handshake.client_capabilities:
            return meta
        from mcp_types import CLIENT_CAPABILITIES_META_KEY

        return {CLIENT_CAPABILITIES_META_KEY: able, **(meta or {})}

    async def answer(self, result: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The hooks' answers to the questions of a result, by their keys; and the parameters of the other questions.

        For a question that a person cannot answer, None stands instead of its parameters.
        """
        asked = result.get("inputRequests")
        if not isinstance(asked, dict) or not asked:
            await asyncio.sleep(_STATE_WAIT_S)  # only a state: the server wants the call again
            return {}, {}
        found: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for key, question in cast("dict[str, dict[str, Any]]", asked).items():
            method: str = question.get("method", "")
            params: dict[str, Any] = question.get("params") or {}
            answer = await self._by_hook(method, params)
            if answer is None:
                rest[key] = params if method == _ELICIT else None
            else:
                found[key] = answer
        return found, rest

    async def _by_hook(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        options = self._options
        if method == _ELICIT and options.elicit is not None:
            return wire_form(await elicited(options.elicit, params))
        if method == "sampling/createMessage" and options.sample is not None:
            return await options.sample(params)
        if method == "roots/list" and options.roots is not None:
            return {"roots": await options.roots()}
        return None
