"""`SeveralLM`: asks a model for several answers, in one request if its wire supports that, else in concurrent ones."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from ferrule.concurrency.offload import result_or_run, run_blocking, submit
from ferrule.errors import BadRequestError, LMError
from ferrule.models.model import BaseLM, answer_of
from ferrule.values.conversation.exchange import Request, Response, Usage, total_cost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ferrule.models.model import Model

_CHOICES = {"openai_chat": "choices", "gemini": "candidates"}
"""The wires that can return several answers to one request, and the field that holds them."""
_NO_USAGE = Usage()


class SeveralLM(BaseLM):
    """Asks `lm` for `n` answers. Each response has the other `n - 1` in `others`, and the usage of all."""

    def __init__(self, lm: Model, n: int) -> None:
        self._lm, self._n = lm, n
        self.name, self.capabilities = lm.name, lm.capabilities
        self.settings: Mapping[str, Any] = getattr(lm, "settings", {})
        self._wire: str = getattr(lm, "wire", "")
        self._is_instant: bool = getattr(lm, "is_instant", False)
        self.is_free = getattr(lm, "is_free", False)

    def complete(self, request: Request) -> Response:
        """The answers as one response."""
        return run_blocking(self._answer(request, self._in_threads))

    async def acomplete(self, request: Request) -> Response:
        """`complete` without blocking the loop; cancelling closes the requests."""
        return await self._answer(request, self._in_tasks)

    async def _answer(
        self,
        request: Request,
        ask: Callable[[list[Request]], Awaitable[list[Response]]],
    ) -> Response:
        found: list[Response] = []
        if self._wire in _CHOICES:
            with suppress(
                BadRequestError,
            ):  # some models of these wires refuse it; a request for one answer shows any other problem
                found = self._split(*await ask([self._asking(request)]))
        if missing := self._n - len(found):
            found += await ask([request] * missing)
        return self._joined(request, found)

    async def _in_threads(self, requests: list[Request]) -> list[Response]:
        calls = [partial(self._lm.complete, each) for each in requests]
        if (
            len(calls) == 1 or self._is_instant
        ):  # in sequence, so that the answers of a script keep their order
            return [each() for each in calls]
        futures = [submit(each) for each in calls]
        return list(map(result_or_run, futures, calls))

    async def _in_tasks(self, requests: list[Request]) -> list[Response]:
        tasks = [asyncio.ensure_future(self._lm.acomplete(each)) for each in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for each in tasks:
                each.cancel()

    def _asking(self, request: Request) -> Request:
        extra: dict[str, Any] = {
            **(self.settings.get("extra") or {}),
            **(request.settings.get("extra") or {}),
        }
        if self._wire == "gemini":
            extra["generationConfig"] = {
                **(extra.get("generationConfig") or {}),
                "candidateCount": self._n,
            }
        else:
            extra["n"] = self._n
        settings = {**request.settings, "extra": extra}
        return Request(
            request.messages,
            request.tools,
            request.tool_choice,
            request.parallel,
            request.shape,
            settings,
            request.form,
        )

    def _split(self, response: Response) -> list[Response]:
        """Split a response into its answers; a server may return fewer than requested."""
        from ferrule.models.wires.wire import wire

        name, body = _CHOICES[self._wire], response.raw
        read, found = wire(self._wire).read, [response]
        choices: list[Any] = (
            cast("dict[str, Any]", body).get(name) or [] if isinstance(body, dict) else []
        )
        for each in choices[1 : self._n]:
            with suppress(LMError):  # a withheld answer
                found.append(replace(read({**body, name: [each]}), usage=_NO_USAGE, cost=None))
        return found

    def _joined(self, request: Request, found: Sequence[Response]) -> Response:
        first, *others = [answer_of(self._lm, each, request) for each in found]
        usage = sum([each.usage for each in others], first.usage)
        cost = total_cost(
            [each.cost for each in (first, *others) if each.cost is not None or each.usage.calls],
        )
        return replace(first, usage=usage, cost=cost, others=tuple(others))
