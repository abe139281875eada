"""What may be said of a tool beside what it is: the keywords that `Tool(...)` and `@tool(...)` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable

Effect = Literal["read", "idempotent", "transactional", "once"]
WhenUnknown = Literal["ask", "tell", "fail"]


class Flags(TypedDict, total=False):
    """See the fields of the same names in `Tool`."""

    require_confirmation: bool | str | Callable[..., Any]
    effect: Effect
    reconcile: Callable[..., Any] | None
    unknown: WhenUnknown
    timeout_s: float | None
    concurrent: bool
