"""The base class of all errors, errors of signatures, inputs and settings, and helpers for messages: `shown`, `nearest`."""

from __future__ import annotations

import copyreg
import re
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from types import FunctionType

P = ParamSpec("P")


def shown(value: object, limit: int = 200) -> str:
    """`repr` of a value, shortened for a message."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  a `__repr__` may raise anything
        text = object.__repr__(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}… ({len(text)} characters)"


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The most likely meaning of a misspelled name among `names`; None if none is similar."""
    from difflib import get_close_matches  # late: most programs misspell nothing

    return next(iter(get_close_matches(name, list(names), n=1, cutoff=cutoff)), None)


def refuse_unknown(what: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise `ConfigurationError` for a keyword that `what` does not accept; the message suggests the nearest one, or lists all."""
    for name in given:
        if name not in known:
            near = nearest(name, known)
            cure = f"Did you mean `{near}`?" if near else f"It has: {', '.join(f'`{each}`' for each in known)}."
            raise ConfigurationError(f"`{what}` has no option `{name}`. {cure}")


def checks_keywords(init: Callable[P, None]) -> Callable[P, None]:
    """Make a keyword-only `__init__` raise `ConfigurationError` for an unknown keyword, instead of Python's `TypeError`."""
    what, known = init.__qualname__.partition(".")[0], cast("FunctionType", init).__kwdefaults__ or {}

    @wraps(init)
    def checked(*args: P.args, **keywords: P.kwargs) -> None:
        refuse_unknown(what, keywords, known)
        init(*args, **keywords)

    return checked


class FerruleError(Exception):
    """Base class of all errors. `code` is a stable word per class (`unknown_tool`); `is_retryable`: whether a later attempt may succeed."""

    code: str = "ferrule"
    is_retryable: bool = False

    def __init_subclass__(cls) -> None:
        if "code" not in vars(cls):
            cls.code = "_".join(re.findall("[A-Z]+(?![a-z])|[A-Z][a-z]+", cls.__name__.removesuffix("Error"))).lower()

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class with the message, but many classes build their message from other arguments.
        return copyreg.__newobj__, (type(self),), {**self.__dict__, "args": self.args}  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


def refuse_async(function: object, what: str, instead: str = "write `def`, not `async def`") -> None:
    """Raise `ConfigurationError` for an async function in place of a plain one: the coroutine it returns would count as true."""
    import inspect  # late: asyncio programs have loaded it anyway

    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(type(function), "__call__", None)):  # noqa: B004
        raise ConfigurationError(f"{what} is a plain function, found {shown(function)}, which is async: {instead}.")


def refuse_awaitable(value: Any, what: str) -> Any:
    """Return a value; raise `ConfigurationError` if it is awaitable, which would count as true."""
    if hasattr(value, "__await__"):
        getattr(value, "close", bool)()
        raise ConfigurationError(f"{what} is not awaited, and returned {shown(value)}. Use a plain function.")
    return value


class SignatureError(FerruleError, ValueError, TypeError):
    """A signature is invalid: a malformed string, an unknown type, a repeated field."""


class InputError(FerruleError, ValueError, TypeError):
    """A program was called with missing, unknown or wrongly typed inputs. `problems` holds the known problems as `(input, text)`."""

    problems: Sequence[tuple[str, str]] = ()

    def __init__(self, message: str = "", problems: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class ConfigurationError(FerruleError, ValueError):
    """A setting is missing, invalid, or contradicts another one."""


class MissingKeyError(ConfigurationError):
    """A provider's key is not set. The message names the environment variable."""
