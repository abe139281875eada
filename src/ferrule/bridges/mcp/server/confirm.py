"""Asking the person at the client, in both eras of the protocol.

In: a question. Out: what the person says, or that nobody can be asked. Until 2025-11-25 the server sends `elicitation/create` and waits.
Since 2026-07-28 the call is answered with `input_required`, and the client calls again with the answer and a sealed state, which says that
this question was put for this very call: an answer without it counts for nothing.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from secrets import token_hex
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, cast

from ferrule.bridges.mcp.server.result import whole
from ferrule.values.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.bridges.mcp.server.context import MCPCall

APPROVE, ANSWER, FORM = "approve", "answer", "form"
_FIELDS: dict[str, dict[str, Any]] = {
    APPROVE: {"type": "boolean", "title": "Run it", "description": "Whether the call may be run as shown."},
    ANSWER: {"type": "string", "title": "Answer"},
}
_MOST_TICKETS = 10_000


class Tickets:
    """What makes a question one of its kind, so that its answer counts once in this process. From any thread.

    Only what was used is remembered: a question may be answered to another worker. Where that becomes too much, the oldest is forgotten,
    and everything up to it is taken for used.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._used: list[str] = []
        self._forgotten = ""

    def new(self) -> str:
        """One that was not there before. Later ones sort after earlier ones."""
        return f"{time.time_ns():020}{token_hex(8)}"

    def use(self, ticket: str) -> bool:
        """Whether it is used for the first time."""
        with self._lock:
            at = bisect_left(self._used, ticket)
            if ticket <= self._forgotten or self._used[at : at + 1] == [ticket]:
                return False
            self._used.insert(at, ticket)
            if len(self._used) > _MOST_TICKETS:
                self._forgotten = self._used.pop(0)
            return True


class Answer(Record):
    """What came of a question."""

    said: Literal["yes", "no", "cannot", "host"]
    """`cannot`: the client has no way to ask; `host`: it is not the client's to decide."""
    text: str = ""
    """What was written, where words were asked for."""
    content: dict[str, Any] | None = None
    """What was filled in, where a form was given."""


async def asked(place: MCPCall, question: str, state: str, wants: str = APPROVE, form: Mapping[str, Any] | None = None) -> Answer | Any:
    """What the person says; or the SDK's `InputRequiredResult` that puts the question, to be returned to the client.

    `state` names what is asked about. It travels through the client, sealed, and comes back with the answer. `wants` is `APPROVE` for yes
    or no, `ANSWER` for words, `FORM` for the fields of the `form`, which another server asks for.
    """
    if not can_ask(place):
        return Answer("cannot")
    question = whole(question.removesuffix(" (yes/no)"))  # what the form asks for, it says itself
    fields = {"type": "object", "properties": {wants: _FIELDS[wants]}, "required": [wants]} if form is None else dict(form)
    if is_modern(place):
        return _by_retry(place, question, state, wants, fields)
    from mcp.shared.exceptions import MCPError, NoBackChannelError

    try:
        answer = await place.request.session.elicit_form(question, fields, related_request_id=place.request.request_id)
    except (NoBackChannelError, MCPError):
        return Answer("cannot")
    return _answer(answer, wants)


def can_ask(place: MCPCall) -> bool:
    """Whether the client says that it can put a form before a person."""
    capabilities = place.request.session.client_capabilities
    found = capabilities.elicitation if capabilities is not None else None
    return found is not None and (found.form is not None or found.url is None)  # `{}` means forms: so it was before there were others


def is_modern(place: MCPCall) -> bool:
    """Whether questions go back with the answer of a call."""
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    return place.request.protocol_version in MODERN_PROTOCOL_VERSIONS


def given_state(place: MCPCall) -> str | None:
    """The state that came back with this call: one of a question that was put for it, or of the tool's own."""
    return place.params.request_state if is_modern(place) else None


def _by_retry(place: MCPCall, question: str, state: str, wants: str, form: dict[str, Any]) -> Answer | Any:
    import mcp_types as types

    given: dict[str, Any] = place.params.input_responses or {}
    if wants in given and place.params.request_state == state:
        return _answer(given[wants], wants)
    asking = types.ElicitRequest(params=types.ElicitRequestFormParams(message=question, requested_schema=form))
    return types.InputRequiredResult(input_requests={wants: asking}, request_state=state)


def _answer(result: Any, wants: str) -> Answer:
    found: Any = getattr(result, "content", None)
    content: dict[str, Any] = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if wants == FORM:
        return Answer("yes", content=content) if getattr(result, "action", None) == "accept" else Answer("no")
    value = content.get(wants) if getattr(result, "action", None) == "accept" else None
    if wants == ANSWER:
        return Answer("yes", value) if isinstance(value, str) else Answer("no")
    return Answer("yes" if value is True else "no")
