"""The batch APIs of providers: many requests in one order, answered within a day at half the price.

OpenAI takes a file of requests and then a batch that names it; Anthropic takes the requests
themselves. Both answer with a file of lines in any order, each with the id that its request got
here. These classes only translate; `programs/lifecycle/provider_batch.py` decides what to send.

A submission is the one request here that must not be repeated blindly: the provider may have taken
an order whose answer was lost. So it is sent once, and whoever gets an `UnavailableError` looks
into `listed` before it submits again. OpenAI keeps our key with a batch. Anthropic keeps nothing
but the ids of the requests, which it shows when the batch has ended.

Formats: OpenAI's "Batch" and "Files", Anthropic's "Message Batches", November 2026.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlencode, urlsplit, urlunsplit
from uuid import uuid4

from msgspec import Raw, Struct, ValidationError, field
from msgspec.json import Decoder

from ferrule.encoding.encode import json_bytes
from ferrule.errors import BadRequestError, LMError, UnavailableError, shown
from ferrule.models.wires.payload import Json, count_of, decode, list_of, mapping, text_of
from ferrule.net.errors import payload_error, status_error
from ferrule.net.transport import joined_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ferrule.net.transport import HTTPTransport

L = TypeVar("L")

BATCH_PRICE = 0.5
"""What a request costs in a batch, as a part of its price: at OpenAI and Anthropic, half."""
_KEY = "ferrule_batch"
"""The name of our key in the metadata of a batch at OpenAI."""
_PAGE = 100
_MOST_PAGES = 1_000
_SAFE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""The ids of a provider become a part of addresses."""
_ENDED = frozenset({"completed", "expired", "cancelled", "failed"})
_log = logging.getLogger("ferrule.models")


class BatchRequest(Struct, frozen=True):
    """A request of a batch."""

    id: str
    """Its id in results: at most 64 letters, digits, `-` and `_`."""
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the body needs in headers."""


class SentBatch(Struct, frozen=True):
    """A batch as the provider describes it."""

    id: str
    created_at: float
    """Seconds since 1970, by the provider's clock."""
    has_ended: bool = False
    refusal: str = ""
    """Why the provider took none of its requests; empty for one that it took."""
    is_ours: bool | None = None
    """Whether it has our key; None if the provider keeps no keys."""
    size: int = 0
    """How many requests it has."""
    requests_file: str = ""
    result_files: tuple[str, ...] = ()


Results = dict[str, bytes | LMError]
"""By the ids of requests: the body of an answer as its wire reads it, or why there is none."""


class BatchAPI(Protocol):
    """The batch API of one provider, for one model."""

    most_requests: int
    """The most requests in a batch."""
    most_bytes: int
    """The most bytes in a batch."""

    def submit(self, requests: Sequence[BatchRequest], key: str) -> SentBatch:
        """Submit a batch, with a key where the provider keeps one.

        Raises `UnavailableError` if it is unknown whether the provider took it.
        """
        ...

    def listed(self, key: str, since: float) -> list[SentBatch]:
        """The batches of the account that were made since then, newest first."""
        ...

    def look(self, batch: SentBatch) -> SentBatch:
        """The batch as it is now."""
        ...

    def ids(self, batch: SentBatch) -> frozenset[str] | None:
        """The ids of its requests; None if the provider does not show them before it has ended."""
        ...

    def results(self, batch: SentBatch) -> Results:
        """The results of a batch that has ended. A request may have none, whatever was promised."""
        ...


class _HTTP:
    """Requests to the addresses around that of a model."""

    def __init__(
        self,
        transport: HTTPTransport,
        path: str,
        authorize: Callable[[], tuple[Mapping[str, str], str | None]],
    ) -> None:
        self._transport = transport.beside()
        self._path = path
        self._authorize = authorize
        self._parts = urlsplit(transport.url)
        self._base = self._parts.path.removesuffix(path)

    def _get(self, path: str, **query: str | int) -> bytes:
        auth, key = self._authorize()
        return self._transport.exchange(self._address(path, query), None, auth, key)

    def _post(
        self,
        path: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        once: bool = False,
    ) -> Json:
        auth, key = self._authorize()
        content = self._transport.exchange(
            self._address(path, {}),
            body,
            {**auth, **(headers or {})},
            key,
            content_type=content_type,
            may_repeat=not once,
        )
        try:
            return decode(content)
        except BadRequestError as error:
            if once:  # the order was taken, as far as its status says, but not under which id
                raise UnavailableError(
                    f"the answer to a submission cannot be read: {error}"
                ) from error
            raise

    def _address(self, path: str, query: Mapping[str, str | int]) -> str:
        queries = [text for text in (self._parts.query, urlencode(query)) if text]
        return urlunsplit(self._parts._replace(path=self._base + path, query="&".join(queries)))

    def _pages(
        self, path: str, cursor: str, read: Callable[[Json], SentBatch]
    ) -> Iterable[list[SentBatch]]:
        """The pages of a list. A server that repeats a page ends it."""
        query: dict[str, str | int] = {"limit": _PAGE}
        seen: set[str] = set()
        for _ in range(_MOST_PAGES):
            page = decode(self._get(path, **query))
            batches: list[SentBatch] = []
            for entry in list_of(page.get("data")):
                batch = read(mapping(entry))
                if batch.id and batch.id not in seen:
                    seen.add(batch.id)
                    batches.append(batch)
            if not batches:
                return
            yield batches
            if page.get("has_more") is not True:
                return
            query[cursor] = batches[-1].id

    def _since(self, pages: Iterable[list[SentBatch]], since: float) -> list[SentBatch]:
        newer: list[SentBatch] = []
        for page in pages:
            # One whose time cannot be read may be ours.
            batches = [batch for batch in page if not 0 < batch.created_at < since]
            newer += batches
            if not batches:
                break
        return sorted(newer, key=lambda batch: batch.created_at, reverse=True)


class OpenAIBatches(_HTTP):
    """Batches of OpenAI, for chat completions and for responses."""

    most_requests = 50_000
    most_bytes = 200_000_000

    def submit(self, requests: Sequence[BatchRequest], key: str) -> SentBatch:
        """See `BatchAPI`."""
        endpoint = f"/v1{self._path}"
        lines: list[bytes] = []
        for request in requests:
            head = json_bytes({"custom_id": request.id, "method": "POST", "url": endpoint})
            lines.append(b'%b,"body":%b}\n' % (head.removesuffix(b"}"), request.body))
        boundary = uuid4().hex.encode()
        form = (
            b'--%b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            b'--%b\r\nContent-Disposition: form-data; name="file"; filename="requests.jsonl"\r\n'
            b"Content-Type: application/jsonl\r\n\r\n%b\r\n--%b--\r\n"
        ) % (boundary, boundary, b"".join(lines), boundary)
        # A file alone does nothing: it may be uploaded twice.
        form_type = f"multipart/form-data; boundary={boundary.decode()}"
        answer = self._post("/files", form, content_type=form_type)
        file = _id_of(answer.get("id"))
        if not file:
            raise BadRequestError(f"the answer to an upload has no id of a file: {shown(answer)}")
        order = {
            "input_file_id": file,
            "endpoint": endpoint,
            "completion_window": "24h",
            "metadata": {_KEY: key},
        }
        batch = self._read(self._post("/batches", json_bytes(order), once=True), key)
        if not batch.id:
            raise UnavailableError("the answer to a submission has no id of a batch")
        return batch

    def listed(self, key: str, since: float) -> list[SentBatch]:
        """See `BatchAPI`."""
        pages = self._pages("/batches", "after", lambda fields: self._read(fields, key))
        return self._since(pages, since)

    def look(self, batch: SentBatch) -> SentBatch:
        """See `BatchAPI`."""
        return self._read({**decode(self._get(f"/batches/{batch.id}")), "id": batch.id}, "")

    def ids(self, batch: SentBatch) -> frozenset[str] | None:
        """See `BatchAPI`: they are in the file that was uploaded."""
        if not batch.requests_file:
            return None
        content = self._get(f"/files/{batch.requests_file}/content")
        return frozenset(line.custom_id for line in _lines(content, _OpenAILine))

    def results(self, batch: SentBatch) -> Results:
        """See `BatchAPI`. Answers are in one file, errors in another."""
        results: Results = {}
        for file in batch.result_files:
            for line in _lines(self._get(f"/files/{file}/content"), _OpenAILine):
                _keep(results, line.custom_id, self._result(line))
        return results

    def _result(self, line: _OpenAILine) -> bytes | LMError:
        response = line.response
        if response is None or line.error:
            fault = mapping(line.error)
            return UnavailableError(
                f"the batch has no answer to this request: "
                f"{fault.get('code') or 'no code'}: {fault.get('message') or 'no message'}"
            )
        body = bytes(response.body)
        if 200 <= response.status_code < 300:
            return body
        error, _ = status_error(response.status_code, {}, body, provider=self._transport.provider)
        return error

    def _read(self, fields: Json, key: str) -> SentBatch:
        status = text_of(fields.get("status"))
        refusal = ""
        if status == "failed":
            errors = list_of(mapping(fields.get("errors")).get("data"))
            reasons = [text_of(mapping(error).get("message")) or "" for error in errors[:3]]
            refusal = "; ".join(filter(None, reasons)) or "no reason given"
        files = [fields.get("output_file_id"), fields.get("error_file_id")]
        created_at = fields.get("created_at")
        if isinstance(created_at, bool) or not isinstance(created_at, (int, float)):
            created_at = 0.0
        return SentBatch(
            id=_id_of(fields.get("id")),
            created_at=float(created_at),
            has_ended=status in _ENDED,
            refusal=refusal,
            is_ours=mapping(fields.get("metadata")).get(_KEY) == key,
            size=count_of(mapping(fields.get("request_counts")).get("total")),
            requests_file=_id_of(fields.get("input_file_id")),
            result_files=tuple(filter(None, map(_id_of, files))),
        )


class AnthropicBatches(_HTTP):
    """Message batches of Anthropic."""

    most_requests = 100_000
    most_bytes = 256_000_000

    def submit(self, requests: Sequence[BatchRequest], key: str) -> SentBatch:
        """See `BatchAPI`. The provider keeps no key."""
        del key
        items = [
            b'{"custom_id":"%b","params":%b}' % (request.id.encode(), request.body)
            for request in requests
        ]
        order = b'{"requests":[%b]}' % b",".join(items)
        headers: dict[str, str] = {}
        for request in requests:
            headers = joined_headers(headers, request.headers)
        answer = self._post("/messages/batches", order, headers=headers, once=True)
        batch = self._read(answer)
        if not batch.id:
            raise UnavailableError("the answer to a submission has no id of a batch")
        return batch

    def listed(self, key: str, since: float) -> list[SentBatch]:
        """See `BatchAPI`."""
        del key
        return self._since(self._pages("/messages/batches", "after_id", self._read), since)

    def look(self, batch: SentBatch) -> SentBatch:
        """See `BatchAPI`."""
        fields = decode(self._get(f"/messages/batches/{batch.id}"))
        return self._read({**fields, "id": batch.id})

    def ids(self, batch: SentBatch) -> frozenset[str] | None:
        """See `BatchAPI`."""
        del batch
        return None

    def results(self, batch: SentBatch) -> Results:
        """See `BatchAPI`."""
        # Not from `results_url`: the key goes only to the server that was named here.
        results: Results = {}
        for line in _lines(self._get(f"/messages/batches/{batch.id}/results"), _AnthropicLine):
            _keep(results, line.custom_id, self._result(line))
        return results

    def _result(self, line: _AnthropicLine) -> bytes | LMError:
        if line.result.type == "succeeded":
            return bytes(line.result.message)
        if line.result.type == "errored":
            error = payload_error(mapping(line.result.error))
            error.provider = self._transport.provider
            return error
        return UnavailableError(
            f"the batch has no answer to this request: it is {line.result.type or 'of no type'}"
        )

    def _read(self, fields: Json) -> SentBatch:
        counts = mapping(fields.get("request_counts"))
        return SentBatch(
            id=_id_of(fields.get("id")),
            created_at=_seconds(fields.get("created_at")),
            has_ended=fields.get("processing_status") == "ended",
            size=sum(count_of(count) for count in counts.values()),
        )


# -- lines of results


class _OpenAIResponse(Struct):
    status_code: int = 0
    body: Raw = field(default_factory=Raw)


class _OpenAILine(Struct):
    """A line of results, or of requests, of which only the id is read."""

    custom_id: str
    response: _OpenAIResponse | None = None
    error: Any = None


class _AnthropicResult(Struct):
    type: str = ""
    message: Raw = field(default_factory=Raw)
    error: Any = None


class _AnthropicLine(Struct):
    custom_id: str
    result: _AnthropicResult


def _lines(content: bytes, kind: type[L]) -> Iterable[L]:
    """The lines of a file. One that cannot be read is left out: its request has no result."""
    decoder = Decoder(kind)
    for text in content.splitlines():
        if not text.strip():
            continue
        try:
            yield decoder.decode(text)
        except (ValidationError, ValueError, RecursionError) as error:
            _log.warning("A line of a batch cannot be read, and is left out: %s", error)


def _keep(results: Results, request_id: str, result: bytes | LMError) -> None:
    """Keep the first result of a request, and an answer rather than an error."""
    first = results.get(request_id)
    if first is None or (isinstance(first, LMError) and not isinstance(result, LMError)):
        results[request_id] = result


# -- fields


def _id_of(value: Any) -> str:
    """The id of a file or a batch; empty for anything that cannot be one."""
    if isinstance(value, str) and _SAFE_ID.fullmatch(value):
        return value
    return ""


def _seconds(text: Any) -> float:
    """A time as Anthropic writes it, in seconds since 1970; 0 for anything else."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return 0.0
