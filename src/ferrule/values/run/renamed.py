"""The names of errors in 0.1.0. Kept for one version, because stored runs use them."""

from __future__ import annotations

from ferrule import errors

RENAMED: dict[str, type[errors.FerruleError]] = {
    "AuthenticationFailed": errors.AuthenticationError, "BadRequest": errors.BadRequestError,
    "ContextOverflow": errors.ContextOverflowError, "LimitReached": errors.LimitReachedError, "MCPTimeout": errors.MCPTimeoutError,
    "MaxTurnsReached": errors.MaxTurnsReachedError,
    "MissingContent": errors.MissingContentError, "RateLimited": errors.RateLimitError, "Refused": errors.RefusalError,
    "ReplayMismatch": errors.ReplayMismatchError, "RunCancelled": errors.RunCancelledError, "TooManyFaults": errors.TooManyFaultsError,
    "Unavailable": errors.UnavailableError,
}  # fmt: skip
