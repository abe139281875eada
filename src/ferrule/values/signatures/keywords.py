"""The keywords of `InputField` and `OutputField`: their own, those of `pydantic.Field`, and others, which are ignored as in DSPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ferrule.errors import SignatureError, nearest

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import FunctionType

OWN = ("prefix", "format", "parser")
"""DSPy's keywords, which are kept in the field's `json_schema_extra`."""
_NEAR = 0.8


def check_keywords(role: str, given: Collection[str]) -> None:
    """Raise `SignatureError` for an unknown keyword that looks like a known one, because pydantic would ignore it."""
    if not given:
        return
    from pydantic import Field  # late: its module is slow to load

    known = {*OWN, "desc", *(cast("FunctionType", Field).__kwdefaults__ or {}), "default"}
    for name in given:
        near = nearest(name, known, cutoff=_NEAR) if name not in known else None
        if near is not None:
            raise SignatureError(
                f"`{role.title()}Field` has no keyword `{name}`: did you mean `{near}`?",
            )
