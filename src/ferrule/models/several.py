"""`SeveralLM`: asks a model for several answers.

In one request if its wire supports that, else in concurrent ones.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from ferrule.concurrency.offload import result_or_run, run_blocking, submit
from ferrule.errors import BadRequestError, LMError
from ferrule.models.learning import LearningLM, signed
from ferrule.models.model import BaseLM, answer_of
from ferrule.models.wires.wire import wire
from ferrule.values.conversation.exchange import Request, Response, Usage, total_cost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ferrule.models.model import Model

_CHOICES = {"openai_chat": "choices", "gemini": "candidates"}
"""The wires that can return several answers to one request, and the field that holds them."""
_NO_USAGE = Usage()


class SeveralLM(BaseLM):
    """Asks `lm` for `n` answers.

    Each response has the other `n - 1` in `others`, and the usage of all.
    """

    def __init__(self, lm: Model, n: int) -> None:
        self._lm = self.wrapped = lm
        self._n = n
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
        self, request: Request, ask: Callable[[list[Request]], Awaitable[list[Response]]]
    ) -> Response:
        responses: list[Response] = []
        if self._wire in _CHOICES:
            # Some models of these wires refuse it; a request for one answer shows any other
            # problem.
            with suppress(BadRequestError):
                [response] = await ask([self._request_for_several(request)])
                responses = self._split(response)
        missing = self._n - len(responses)
        if missing:
            responses += await ask([request] * missing)
        return self._joined(request, responses)

    async def _in_threads(self, requests: list[Request]) -> list[Response]:
        calls = [partial(self._lm.complete, request) for request in requests]
        if len(calls) == 1 or self._is_instant:
            # One after the other, so that the answers of a script keep their order.
            return [call() for call in calls]
        futures = [submit(call) for call in calls]
        return list(map(result_or_run, futures, calls))

    async def _in_tasks(self, requests: list[Request]) -> list[Response]:
        tasks = [asyncio.ensure_future(self._lm.acomplete(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def _request_for_several(self, request: Request) -> Request:
        extra: dict[str, Any] = {**(self.settings.get("extra") or {})}
        extra.update(request.settings.get("extra") or {})
        if self._wire == "gemini":
            config: dict[str, Any] = extra.get("generationConfig") or {}
            extra["generationConfig"] = {**config, "candidateCount": self._n}
        else:
            extra["n"] = self._n
        return Request(
            messages=request.messages,
            tools=request.tools,
            tool_choice=request.tool_choice,
            parallel=request.parallel,
            shape=request.shape,
            settings={**request.settings, "extra": extra},
            form=request.form,
        )

    def _split(self, response: Response) -> list[Response]:
        """Split a response into its answers; a server may return fewer than requested."""
        field, body = _CHOICES[self._wire], response.raw
        if not isinstance(body, dict):
            return [response]
        choices: list[Any] = cast("dict[str, Any]", body).get(field) or []
        read = wire(self._wire).read
        responses = [response]
        for choice in choices[1 : self._n]:
            with suppress(LMError):  # a withheld answer
                # The first response has the usage and the cost of all.
                other = read({**body, field: [choice]})
                other = replace(other, usage=_NO_USAGE, cost=None)
                if isinstance(self._lm, LearningLM):
                    other = signed(other, self._lm.author())
                responses.append(other)
        return responses

    def _joined(self, request: Request, responses: Sequence[Response]) -> Response:
        answers = [answer_of(self._lm, response, request) for response in responses]
        first, *others = answers
        usage = first.usage
        for answer in others:
            usage += answer.usage
        # An answer without calls of its own does not make the sum unknown.
        costs = [answer.cost for answer in answers if answer.cost is not None or answer.usage.calls]
        return replace(first, usage=usage, cost=total_cost(costs), others=tuple(others))
