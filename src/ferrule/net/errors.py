"""Errors of providers as `LMError`s, of the matching class.

With the provider's message and without the key. Pure functions of a status, headers and a body in
any of the shapes that providers use.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ferrule.errors import (
    AuthenticationError,
    BadRequestError,
    ContextOverflowError,
    LMError,
    RateLimitError,
    RefusalError,
    UnavailableError,
)
from ferrule.values.tracebacks import with_causes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import TypeIs

E = TypeVar("E", bound=LMError)

HIGHEST_COST = 1e15
"""The highest cost of an answer that is believed, in US dollars.

NaN is not below it: it would exceed no limit, and cannot be stored.
"""
_REQUEST_IDS = ("x-request-id", "request-id", "x-amzn-requestid", "cf-ray")
_LONGEST = 1000
"""The most characters of a provider's message that an error shows."""
_HARMLESS = 4
"""Errors may show this many characters of a key. A shorter key is not treated as secret."""

_OVERFLOW_CODES = frozenset(
    {
        "context_length_exceeded",
        "exceed_context_size_error",
        "model_context_window_exceeded",
        "string_above_max_length",
    }
)
_OVERFLOW = re.compile(
    r"context[ _](?:length|window|size|limit)|maximum (?:context|prompt|input)"
    r"|(?:prompt|input|request) (?:is )?too (?:long|large)(?! for model)"
    r"|too many (?:input )?tokens(?! per)"
    r"|exceeds? the (?:max|available context|model)[^.]*token"
    r"|token count[^.]*(?:exceeds|only supports)|reduce the length of"
    r"|(?:prompt|tokens) exceeds? max(?:imum)? length|exceeded model token limit"
    r"|exceed max message tokens|ContextWindowExceeded"
    r"|maximum model length|context the overflows|range of input length"
    r"|`inputs` (?:must have less than|tokens \+)",
    re.IGNORECASE,
)
_REFUSAL_CODES = frozenset(
    {
        "content_filter",
        "content_policy_violation",
        "responsibleaipolicyviolation",
        "moderation_blocked",
        "safety",
        "bio_policy",
        "misalignment_policy_violation",
        "image_content_policy_violation",
        "data_inspection_failed",
        "datainspectionfailed",
    }
)
_REFUSAL = re.compile(
    r"content (?:management )?policy|content filter|flagged (?:by|as|for)|requires moderation"
    r"|safety system|content exists risk",
    re.IGNORECASE,
)
_QUOTA_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "budget_exceeded"})
_QUOTA = re.compile(
    r"insufficient_quota|exceeded your current quota, please check your plan", re.IGNORECASE
)
"""Gateways keep the words, but not always the code.

Gemini uses them for per-minute limits too, then with the time to wait.
"""
_PERMANENT = re.compile(
    r"(?:not|n't|un) ?support|requires (?:the )?--|jinja|(?:must|should) alternate"
    r"|does not match the expected [\w.-]+ format",
    re.IGNORECASE,
)
"""How llama.cpp words requests that it can never serve, with status 500: a retry would fail too."""
_ADVICE: Mapping[type[LMError], str] = {
    UnavailableError: "The server failed: ask again later, or look at its log.",
    RateLimitError: "Ask again later, or set `max_concurrency=` and `requests_per_minute=`.",
    AuthenticationError: (
        "Check the key (`api_key=`, or the provider's environment variable), and whether it may "
        "use this model."
    ),
    ContextOverflowError: (
        "Shorten the inputs, the demos or the history, or use a model with a larger context window."
    ),
}
_DELAY = re.compile(rb'"retryDelay":\s*"([0-9]{1,6}(?:\.[0-9]{1,9})?)s"')
"""Google's `google.rpc.RetryInfo`, in the body of a 429."""
_CODE_KEYS = ("code", "type", "status", "status_code", "http_code")
_TITLE = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)


def status_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    provider: str | None = None,
    secret: str | None = None,
) -> tuple[LMError, bool]:
    """The error for an answer with an error status, and whether to send the request again."""
    # Before the key is removed: a key such as `x` would change the words.
    message, codes = _read_body(body)
    kind = _kind(status, message, codes)
    if _is_secret(secret):
        for form in {secret, secret.replace("/", "\\/")}:  # JSON may escape a slash
            body = body.replace(form.encode(), b"[key]")
    public_message = redact_key(_read_body(body)[0], secret)
    wait_s = retry_after_s(headers)
    if wait_s is None:
        wait_s = _delay_in(body)
    error = kind(
        public_message or f"HTTP {status} and no message",
        provider=provider,
        status=status,
        request_id=redact_key(request_id(headers) or "", secret) or None,
        retry_after_s=wait_s,
    )
    is_spent = _is_spent(message, codes, wait_s)
    if _is_elsewhere(status, message) or not (message or kind in _ADVICE):
        add_advice(error, "Is the base URL right? Most end in `/v1`.")
    elif not is_spent:
        add_advice(error, _ADVICE.get(kind))
    error.is_retryable = issubclass(kind, UnavailableError) and not is_spent
    return error, error.is_retryable


def _is_elsewhere(status: int, message: str) -> bool:
    """Whether the address may not be that of a model: it redirects, or knows no such path."""
    return status < 400 or (status in {404, 405} and "model" not in message.lower())


def is_error(payload: Mapping[str, Any], answer: str) -> bool:
    """Whether a body or event with a success status is an error.

    `answer` is the field that holds an answer. Without it, a status of an error is one, which some
    gateways send outside of any field `error`.
    """
    if payload.get("error") or payload.get("object") == "error" or payload.get("type") == "error":
        return True
    return answer not in payload and _status_in(_codes_of(dict(payload))) is not None


def payload_error(payload: Mapping[str, Any]) -> LMError:
    """The error in a body, or an event of a stream, with a success status.

    Gateways send it once they have begun to answer. It is treated as its own status would be.
    """
    message, codes = _message_of(dict(payload))
    status = _status_in(codes)
    wait_s = _delay_in(json.dumps(payload, default=str).encode())
    kind = _kind(status or _status_of_words(codes), message, codes)
    error = kind(message, status=status, retry_after_s=wait_s)
    is_spent = _is_spent(message, codes, wait_s)
    error.is_retryable = issubclass(kind, UnavailableError) and not is_spent
    if is_spent:
        return error
    return add_advice(error, _ADVICE.get(kind))


def _is_spent(message: str, codes: frozenset[str], wait_s: float | None) -> bool:
    """Whether a quota is spent: waiting does not help."""
    return bool(codes & _QUOTA_CODES or (wait_s is None and _QUOTA.search(message)))


def _delay_in(body: bytes) -> float | None:
    delay = _DELAY.search(body)
    if delay is None:
        return None
    return float(delay[1])


def _status_in(codes: frozenset[str]) -> int | None:
    """The status of an error among codes, such as `429`."""
    statuses = sorted(code for code in codes if re.fullmatch("[45][0-9][0-9]", code))
    if not statuses:
        return None
    return int(statuses[0])


_STATUS_BY_WORD = {
    "rate_limit": 429,
    "authentication": 401,
    "permission": 403,
    "invalid": 400,
    "not_found": 404,
}


def _status_of_words(codes: frozenset[str]) -> int:
    """The status that codes such as `rate_limit_exceeded` stand for; 500 if they say nothing."""
    for word, status in _STATUS_BY_WORD.items():
        if any(word in code for code in codes):
            return status
    return 500


def add_advice(error: E, *sentences: str | None) -> E:
    """Add sentences to an error's message, such as what to do. Returns the error."""
    for sentence in sentences:
        if sentence:
            message = str(error)
            if not message.endswith((".", "?", "!")):
                message += "."
            error.args = (f"{message} {sentence}",)
    return error


def with_provider(
    error: E,
    *,
    provider: str | None,
    response_request_id: str | None = None,
    secret: str | None = None,
    asked: str | None = None,
) -> E:
    """Add the provider, the request id and what was `asked` to an error from a wire.

    A wire does not know these.
    """
    if error.provider is not None:
        return error
    named = add_advice(type(error)(redact_key(str(error), secret), provider=provider), asked)
    named.status, named.retry_after_s = error.status, error.retry_after_s
    named.is_retryable, named.raw = error.is_retryable, error.raw
    named.request_id = error.request_id or redact_key(response_request_id or "", secret) or None
    named.__cause__ = error.__cause__
    return named


def request_id(headers: Mapping[str, str]) -> str | None:
    """The provider's id of the request, for its support."""
    return next((headers[name] for name in _REQUEST_IDS if headers.get(name)), None)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from `retry-after-ms` or `Retry-After` (RFC 9110, section 10.2.3).

    LiteLLM's proxy forwards the provider's header with a prefix.
    """
    for name, scale in (
        ("retry-after-ms", 0.001),
        ("retry-after", 1.0),
        ("llm_provider-retry-after", 1.0),
    ):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * scale
        except ValueError:
            seconds = _until(value)
        if seconds is not None and 0 <= seconds < float("inf"):
            return seconds
    return None


def _until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except (ValueError, OverflowError):  # the second for the offset of its time zone
        return None
    if moment.tzinfo is None:  # for the zone `-0000`, which means UTC
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def cost_in(headers: Mapping[str, str]) -> float | None:
    """The cost of an answer in US dollars, if a gateway such as LiteLLM's proxy reports it."""
    try:
        cost = float(headers.get("x-litellm-response-cost", ""))
    except ValueError:
        return None
    if 0 <= cost <= HIGHEST_COST:
        return cost
    return None


def _is_secret(key: str | None) -> TypeIs[str]:
    """Whether a key is more than a placeholder for a server that takes none, such as `x`."""
    return key is not None and len(key) >= _HARMLESS


def redact_key(message: str, secret: str | None) -> str:
    """The message without the key, which a server may echo, whole or shortened by `shown`."""
    if not _is_secret(secret):
        return message
    message = message.replace(secret, "[key]")
    # The longest prefix first: a shorter one would leave a part of the key.
    if "…" in message:
        for length in range(len(secret) - 1, _HARMLESS, -1):
            message = message.replace(f"{secret[:length]}…", "[key]…")
    return message


def redact_error(error: BaseException, secret: str | None) -> None:
    """Remove the key from all texts of an error and of its causes, which a traceback shows."""
    if not _is_secret(secret):
        return

    def redacted(arg: Any) -> Any:
        if isinstance(arg, str):
            return redact_key(arg, secret)
        return arg

    for cause in with_causes(error):
        cause.args = tuple(redacted(arg) for arg in cause.args)
        for name, value in vars(cause).items():
            if isinstance(value, str):  # the whole answer, in a `JSONDecodeError`
                setattr(cause, name, redact_key(value, secret))


def _kind(status: int, message: str, codes: frozenset[str]) -> type[LMError]:
    if status == 429:
        return RateLimitError
    if codes & _REFUSAL_CODES or (status < 500 and _REFUSAL.search(message)):
        return RefusalError
    if status in {401, 403} or "api_key_invalid" in codes:
        return AuthenticationError
    if codes & _OVERFLOW_CODES or (status in {400, 413, 422, 500} and _OVERFLOW.search(message)):
        return ContextOverflowError
    # 408: the server gave up waiting, 409: another request was in the way. Both pass.
    if status in {408, 409} or (status >= 500 and not _PERMANENT.search(message)):
        return UnavailableError
    return BadRequestError


def _read_body(body: bytes) -> tuple[str, frozenset[str]]:
    """The provider's message, and its codes in lower case."""
    text = body.decode("utf-8-sig", "replace").strip()
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        title = _TITLE.search(text[:5000])
        if title:  # a page of a proxy
            text = " ".join(title[1].split())
        return text[:_LONGEST], frozenset()
    return _message_of(value)


def _message_of(value: Any) -> tuple[str, frozenset[str]]:
    if isinstance(value, list) and value:  # Gemini wraps its error in a list
        return _message_of(cast("list[Any]", value)[0])
    if not isinstance(value, dict):
        return str(cast("object", value))[:_LONGEST], frozenset()
    body = cast("dict[str, Any]", value)
    error = body.get("error")
    if isinstance(error, dict):
        body = cast("dict[str, Any]", error)
    elif isinstance(error, str):  # Ollama
        body = {**body, "message": error}
    # FastAPI writes `detail`.
    message: Any = next((body[key] for key in ("message", "detail", "msg") if body.get(key)), body)
    if not isinstance(message, str):
        message = json.dumps(message, default=str)
    return message[:_LONGEST], _codes_of(body)


def _codes_of(error: dict[str, Any]) -> frozenset[str]:
    """The codes that say what kind of error it is, in lower case."""
    codes: set[str] = set()
    for part in (error, error.get("innererror")):  # Azure has the exact code in the inner error
        if isinstance(part, dict):
            values = [cast("dict[str, Any]", part).get(key) for key in _CODE_KEYS]
            codes.update(str(value).lower() for value in values if isinstance(value, (str, int)))
    details = error.get("details")  # Google puts the reason there
    if isinstance(details, list):
        for detail in cast("list[Any]", details):
            if not isinstance(detail, dict):
                continue
            reason = cast("dict[str, Any]", detail).get("reason")
            if reason:
                codes.add(str(reason).lower())
    return frozenset(codes)
