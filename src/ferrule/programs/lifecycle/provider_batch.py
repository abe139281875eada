"""`batch(..., via="provider")`: the requests of many runs through a provider's batch API.

The runs execute as in any batch, all at once, and each waits for the answer to its request. When
all of them wait or have ended, what is new goes to the provider as one batch, or several if it is
too large for one. So the repairs of a first round are the second one. Answers reach their runs as
each batch ends.

**No request is sent twice.** A request has an id made of the secret of its stored run, the number
of its model's earlier answers, and its body: it is the same in every process that resumes the
batch. Before a resumed batch submits anything, it lists the provider's batches: what one of them
holds is awaited, not sent. Nothing has to be noted, so a kill at any moment changes nothing. The
same holds for a submission whose answer was lost: it is looked for before it is made again.

Anthropic keeps no key of ours with a batch, and shows the ids of its requests only at its end. A
batch in progress that may be ours (no older than this one, no larger) is awaited before the rest
is submitted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from functools import partial
from hashlib import sha256
from hmac import HMAC
from typing import TYPE_CHECKING, Any

from ferrule.concurrency.offload import in_worker_thread, run_or_cancel
from ferrule.errors import BadRequestError, ConfigurationError, LMError, UnavailableError
from ferrule.models.batches import BATCH_PRICE, BatchRequest
from ferrule.models.hosted import LM
from ferrule.settings import current, lm_override_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.models.batches import BatchAPI, Results, SentBatch
    from ferrule.models.wires.wire import Rendered
    from ferrule.values.conversation.exchange import Request, Response

DEFAULT_POLL_S = 30.0
_SETTLES_S = 5.0
"""How long a new batch may take to appear in the provider's list."""
_SKEW_S = 3600.0
"""By how much the provider's clock may differ from the store's."""
_GONE = 404
_MOST_SUBMISSIONS = 5
"""How often a batch is submitted whose submission fails, each time after a look at the list."""
_LINE_BYTES = 512
"""What a line of a batch has besides the body of its request, generously."""
_log = logging.getLogger("ferrule.models")


def check_asks_once(program: Any) -> None:
    """Raise `ConfigurationError` for a program whose requests cannot go through a batch API."""
    problem = program.why_not_batched
    if problem:
        raise ConfigurationError(
            f"`{program.name}` cannot go through a provider's batch API: {problem} Leave out "
            '`via="provider"`.'
        )
    lm = lm_override_of(program) or program.lm or current().lm
    if lm is not None:  # otherwise the program itself says so
        check_model(lm)


def check_model(lm: Any) -> LM:
    """The model, if its provider has a batch API; raises `ConfigurationError` otherwise."""
    if isinstance(lm, LM) and lm.batch_api() is not None:
        return lm
    name = getattr(lm, "name", None) or type(lm).__name__
    raise ConfigurationError(
        f'`via="provider"` needs a model whose provider has a batch API, found {name} '
        f"({type(lm).__name__}). It takes `LM` of openai (wires openai_chat and openai_responses) "
        'or anthropic (its own wire), also at another address: `LM("openai/...", base_url=...)`.'
    )


class _Sent:
    """A batch at the provider, and what is known of it."""

    def __init__(
        self, state: SentBatch, ids: frozenset[str] | None, *, is_old: bool = False
    ) -> None:
        self.state = state
        self.ids = ids
        """The ids of its requests; None while the provider does not show them."""
        self.is_old = is_old
        """Whether it had ended before this process looked for it."""
        self.results: Results | None = None
        """Its results; None while it is in progress."""

    def result(self, request_id: str) -> bytes | LMError:
        """The result of one of its requests, when it has ended."""
        result = (self.results or {}).get(request_id)
        if result is not None:
            return result
        return UnavailableError(
            f"the batch {self.state.id} ended without a result for this request. "
            "`retry_failed=True` sends it again."
        )


class _Waiting:
    """A request whose run waits for its answer."""

    def __init__(self, request: BatchRequest) -> None:
        self.request = request
        self.answer: asyncio.Future[bytes | LMError] = asyncio.get_running_loop().create_future()
        self.batch: _Sent | None = None
        """The batch that has it; None for a request that is not placed yet."""


class _Route:
    """The requests for one model, and the batches that may have them."""

    def __init__(self, api: BatchAPI, *, is_resumed: bool) -> None:
        self.api = api
        self.must_list = is_resumed
        """Whether the provider may have batches of ours that are not known here."""
        self.is_resumed = is_resumed
        """Whether the list is still to be read for the first time."""
        self.waiting: dict[str, _Waiting] = {}
        """By the id of the request."""
        self.sent: list[_Sent] = []
        self.failures = 0
        """How many submissions in a row failed."""

    @property
    def unplaced(self) -> list[_Waiting]:
        """The requests that no batch has, as far as is known."""
        return [waiting for waiting in self.waiting.values() if waiting.batch is None]

    @property
    def is_unsure(self) -> bool:
        """Whether a batch in progress may have requests that are not placed."""
        return any(sent.ids is None and sent.results is None for sent in self.sent)


class ProviderRequests:
    """Sends the requests of a batch's runs; see the head of this module.

    `carry` does the work until it is cancelled. It raises what concerns the whole batch.
    """

    def __init__(
        self, batch_id: str, *, size: int, since: float | None, poll_s: float, retries_failed: bool
    ) -> None:
        self.price_factor = BATCH_PRICE
        self._key = sha256(batch_id.encode()).hexdigest()[:16]
        self._size = size
        self._is_resumed = since is not None
        self._since = (time.time() if since is None else since) - _SKEW_S
        self._poll_s = poll_s
        self._retries_failed = retries_failed
        self._at_work = size
        """How many items neither wait for an answer nor have ended."""
        self._is_quiet = asyncio.Event()
        """Set when no item is at work any more."""
        self._routes: dict[tuple[str, str], _Route] = {}

    # -- for the runs

    async def answer(self, mark: bytes, lm: Any, request: Request) -> Response:
        """See `BatchRequests`."""
        lm = check_model(lm)
        while True:
            sent = lm.rendered_for_batch(request)
            result = await self._result(mark, lm, sent)
            try:
                if isinstance(result, bytes):
                    return lm.answer_in_batch(request, result)
                raise result
            except BadRequestError as error:
                # Many requests of a batch are refused for one reason: the first teaches all.
                if not lm.learns_from(error, request) and lm.rendered_for_batch(request) == sent:
                    raise

    def end_item(self) -> None:
        """Count an item that has ended."""
        self._rest()

    async def _result(self, mark: bytes, lm: LM, sent: Rendered) -> bytes | LMError:
        digest = HMAC(mark, sent.body, sha256).hexdigest()[:40]
        waiting = _Waiting(BatchRequest(f"{self._key}-{digest}", sent.body, sent.headers))
        route = self._route(lm)
        route.waiting[waiting.request.id] = waiting
        self._rest()
        try:
            return await waiting.answer
        finally:
            if waiting.answer.cancelled():  # a delivered one was counted when it was delivered
                self._at_work += 1
                route.waiting.pop(waiting.request.id, None)

    def _route(self, lm: LM) -> _Route:
        route = self._routes.get((lm.url, lm.name))
        if route is None:
            api = lm.batch_api()
            assert api is not None  # noqa: S101  `check_model` has looked
            route = self._routes[lm.url, lm.name] = _Route(api, is_resumed=self._is_resumed)
        return route

    def _rest(self) -> None:
        self._at_work -= 1
        if self._at_work == 0:
            self._is_quiet.set()

    def _deliver(self, route: _Route, waiting: _Waiting, result: bytes | LMError) -> None:
        route.waiting.pop(waiting.request.id, None)
        if waiting.answer.done():
            return
        # Counted now, not when its task goes on: `carry` must not think that all is quiet.
        self._at_work += 1
        waiting.answer.set_result(result)

    # -- sending and collecting

    async def carry(self) -> None:
        """Send what is new whenever all items wait; look at the batches in progress meanwhile."""
        while True:
            self._is_quiet.clear()
            if self._at_work == 0:
                for route in self._routes.values():
                    await self._place(route)
            wait_s = None
            if any(route.waiting for route in self._routes.values()):
                wait_s = self._poll_s
            try:
                async with asyncio.timeout(wait_s):
                    await self._is_quiet.wait()
            except TimeoutError:
                for route in self._routes.values():
                    await self._collect(route)

    async def _place(self, route: _Route) -> None:
        """Find each new request in a batch of the provider, or submit it."""
        self._assign(route)
        if route.must_list:
            # Twice: the last submission before a kill may not be in the list yet.
            for pause_s in (0.0, min(self._poll_s, _SETTLES_S)):
                if not route.unplaced:
                    break
                await asyncio.sleep(pause_s)
                try:
                    await self._list(route)
                except UnavailableError as error:
                    self._note_failure(route, error)
                    return  # it is looked for again at the next turn
                self._assign(route)
            route.must_list = route.is_resumed = False
        if route.is_unsure:
            return
        for part in _parts(route.unplaced, route.api):
            if not await self._submit(route, part):
                return

    def _assign(self, route: _Route) -> None:
        """Give new requests to the batches that have them; the newest batch decides."""
        batches = sorted(route.sent, key=lambda sent: sent.state.created_at, reverse=True)
        for waiting in route.unplaced:
            request_id = waiting.request.id
            for sent in batches:
                if sent.ids is None or request_id not in sent.ids:
                    continue
                if sent.results is None:
                    waiting.batch = sent
                    break
                result = sent.result(request_id)
                is_to_repeat = sent.is_old and self._retries_failed and isinstance(result, LMError)
                if not is_to_repeat:
                    self._deliver(route, waiting, result)
                    break

    async def _list(self, route: _Route) -> None:
        """Note the batches of the account that may have requests of ours."""
        states = await in_worker_thread(partial(route.api.listed, self._key, self._since))
        known = {sent.state.id for sent in route.sent}
        for state in states:
            is_possible = state.is_ours or (state.is_ours is None and state.size <= self._size)
            if state.id in known or state.refusal or not is_possible:
                continue
            ids = None
            with suppress(BadRequestError):  # the provider has deleted the file
                ids = await in_worker_thread(partial(route.api.ids, state))
            sent = _Sent(state, ids, is_old=state.has_ended and route.is_resumed)
            if state.has_ended:
                await self._read_results(route, sent)
            route.sent.append(sent)

    async def _submit(self, route: _Route, part: list[_Waiting]) -> bool:
        """Submit one batch. Returns False if it is unknown whether the provider took it."""
        requests = [waiting.request for waiting in part]
        try:
            state = await run_or_cancel(partial(route.api.submit, requests, self._key))
        except UnavailableError as error:
            self._note_failure(route, error)
            route.must_list = True
            return False
        route.failures = 0
        sent = _Sent(state, frozenset(request.id for request in requests))
        route.sent.append(sent)
        for waiting in part:
            waiting.batch = sent
        return True

    def _note_failure(self, route: _Route, error: UnavailableError) -> None:
        """Count a failure of a submission, or of the look for it; raise it after several."""
        route.failures += 1
        if route.failures == _MOST_SUBMISSIONS:
            raise error
        _log.warning("A submission of a batch failed, and is looked for: %s", error)

    async def _collect(self, route: _Route) -> None:
        """Look at the batches in progress; deliver the results of those that have ended."""
        for sent in route.sent:
            if sent.results is not None:
                continue
            try:
                sent.state = await in_worker_thread(partial(route.api.look, sent.state))
                if sent.state.has_ended:
                    await self._read_results(route, sent)
            except BadRequestError as error:
                if error.status != _GONE:
                    raise
                sent.results = {}  # deleted on the provider's page: only its own requests fail
            except UnavailableError as error:  # a wait of hours outlives an outage
                _log.warning("The batch %s is looked at again later: %s", sent.state.id, error)
                continue
            if sent.state.refusal:
                raise BadRequestError(
                    f"the provider refused the batch {sent.state.id}: {sent.state.refusal}"
                )
            if sent.results is not None:
                for waiting in [*route.waiting.values()]:
                    if waiting.batch is sent:
                        self._deliver(route, waiting, sent.result(waiting.request.id))

    async def _read_results(self, route: _Route, sent: _Sent) -> None:
        try:
            sent.results = await in_worker_thread(partial(route.api.results, sent.state))
        except BadRequestError:
            if not sent.is_old:
                raise
            sent.results = {}  # the provider deletes results after a month
        if sent.ids is None:
            sent.ids = frozenset(sent.results)


def _parts(waiting: Iterable[_Waiting], api: BatchAPI) -> Iterable[list[_Waiting]]:
    """The requests of each batch: no more than its provider takes."""
    part: list[_Waiting] = []
    size = 0
    for item in waiting:
        length = len(item.request.body) + _LINE_BYTES
        if part and (len(part) == api.most_requests or size + length > api.most_bytes):
            yield part
            part, size = [], 0
        part.append(item)
        size += length
    if part:
        yield part
