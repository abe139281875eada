"""What every wire needs to read a provider's JSON: nothing is taken for granted."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import from_json

from ferrule.errors import BadRequestError, ConfigurationError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

Json = dict[str, Any]


_ELSEWHERE = "If it comes again, the server may speak another protocol: check `base_url=` and `wire=`."


def no_answer(found: str, body: Json) -> str:
    """What to say of an answer with nothing in it."""
    return f"the answer has {found}: {shown(body)}. Ask again. {_ELSEWHERE}"


def decoded(body: bytes) -> Json:
    """A body as a JSON object; raises `BadRequestError` that says what came instead."""
    body = body.removeprefix(BOM_UTF8)  # RFC 8259, section 8.1: a parser may ignore it
    try:
        value = from_json(body)
    except ValueError:
        value = _slowly(body)
    if not isinstance(value, dict):
        msg = f"expected a JSON object, got {shown(value)}. {_ELSEWHERE}"
        raise BadRequestError(msg)
    return cast("Json", value)


def _slowly(body: bytes) -> Any:
    """What the fast parser refuses: lone surrogates, which the slow one reads, and everything that is no JSON."""
    text = body.decode("utf-8", "replace").strip()
    if not text:
        msg = f"the answer is empty. Ask again. {_ELSEWHERE}"
        raise BadRequestError(msg)
    if text.startswith("<"):
        msg = f"expected JSON, got a page of HTML or XML: {shown(text)}. Is the base URL right? It mostly ends in `/v1`."
        raise BadRequestError(msg)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"the answer is no JSON ({error}): {shown(text)}. If it was cut off, ask again. {_ELSEWHERE}"
        raise BadRequestError(msg) from error


def mapping(value: Any) -> Json:
    """The value, or an empty object in place of anything else."""
    return cast("Json", value) if isinstance(value, dict) else {}


def text_of(value: Any) -> str | None:
    """The value if it is text and not empty."""
    return value if isinstance(value, str) and value else None


def listed(value: Any) -> list[Any]:
    """The value, or an empty list in place of anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def count_of(value: Any) -> int:
    """The value if it is a whole number above nothing, or 0."""
    return value if type(value) is int and value > 0 else 0


def refuse_settings(names: Iterable[str]) -> None:
    """Raise `ConfigurationError` for settings that would say what the request itself says; none is well."""
    if found := ", ".join(f"`{name}`" for name in sorted(names)):
        msg = f"{found}: the request says it, and no setting may. To force a field of the body, use `extra={{...}}`."
        raise ConfigurationError(msg)
