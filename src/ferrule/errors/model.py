"""Errors of models, and of scripted models in tests."""

from __future__ import annotations

from ferrule.errors.answer import BoundaryError
from ferrule.errors.error import FerruleError


class LMError(FerruleError):
    """A model could not answer. `provider`, `status` and `request_id` are None if unknown."""

    def __init__(
        self, message: str, *, provider: str | None = None, status: int | None = None, request_id: str | None = None,
        retry_after_s: float | None = None, raw: object = None,
    ) -> None:  # fmt: skip
        self.provider, self.status, self.request_id, self.retry_after_s, self.raw = provider, status, request_id, retry_after_s, raw
        where = [*([f"status {status}"] if status is not None else []), *([f"request {request_id}"] if request_id else [])]
        super().__init__(f"{f'{provider}: ' if provider else ''}{message}{' (' + ', '.join(where) + ')' if where else ''}")


class UnavailableError(LMError):
    """There is no connection, or a timeout or a 5xx status: a later attempt may succeed."""

    is_retryable = True


class RateLimitError(UnavailableError):
    """Status 429: too many requests. `retry_after_s` is the wait that the provider asks for, or None."""


class AuthenticationError(LMError):
    """Status 401 or 403: the key is wrong or may not use this model."""


class RefusalError(LMError):
    """The model, or a filter of its provider, refused to answer."""


class ContextOverflowError(LMError):
    """The prompt is longer than the model's context window."""


class BadRequestError(LMError):
    """Any other 4xx status, or a malformed response, such as HTML or truncated JSON."""


class ConstraintError(LMError):
    """An answer cannot be constrained: its schema has no grammar, the budget is too small for any answer, or a token was refused."""


class MissingContentError(BadRequestError, BoundaryError):
    """A response has no choice or no message; `raw` is the response."""


class ScriptError(FerruleError, AssertionError):
    """A scripted or replayed model got a request that is not in its script, or did not use up the script."""
