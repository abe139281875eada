"""Questions to the person at the client, in all revisions of the protocol.

Until 2025-11-25 the server sends `elicitation/create` and waits. From 2026-07-28 on it answers the call with `input_required`, and the
client calls again with the answer and a sealed state. The state proves that this question was asked about this call; an answer without it
is ignored.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from secrets import token_hex
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, cast

from ferrule.bridges.mcp.server.result import replace_surrogates
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
    """Single-use ids of questions, so that each answer counts once in this process. Thread-safe.

    Only used tickets are kept, as another worker may get the answer. If there are too many, the oldest is forgotten, and every ticket up to
    it counts as used.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._used: list[str] = []
        self._forgotten = ""

    def new(self) -> str:
        """A new ticket. Later tickets sort after earlier ones."""
        return f"{time.time_ns():020}{token_hex(8)}"

    def use(self, ticket: str) -> bool:
        """Use a ticket; False if it was used before."""
        with self._lock:
            at = bisect_left(self._used, ticket)
            if ticket <= self._forgotten or self._used[at : at + 1] == [ticket]:
                return False
            self._used.insert(at, ticket)
            if len(self._used) > _MOST_TICKETS:
                self._forgotten = self._used.pop(0)
            return True


class PersonAnswer(Record):
    """The outcome of a question."""

    said: Literal["yes", "no", "cannot", "host"]
    """`cannot`: the client cannot ask; `host`: only the host may decide."""
    text: str = ""
    """The person's text, for a question that wants text."""
    content: dict[str, Any] | None = None
    """The filled-in form, for a question with a form."""


async def ask_client(
    place: MCPCall, question: str, state: str, wants: str = APPROVE, form: Mapping[str, Any] | None = None
) -> PersonAnswer | Any:
    """The person's answer; or the SDK's `InputRequiredResult` with the question, to be returned to the client.

    `state` identifies the question. It travels through the client, sealed, and comes back with the answer. `wants` is `APPROVE` for yes or
    no, `ANSWER` for a text, `FORM` for the fields of `form`, which another server asks for.
    """
    if not can_ask(place):
        return PersonAnswer("cannot")
    question = replace_surrogates(question.removesuffix(" (yes/no)"))  # the form says so itself
    fields = {"type": "object", "properties": {wants: _FIELDS[wants]}, "required": [wants]} if form is None else dict(form)
    if is_modern(place):
        return _by_retry(place, question, state, wants, fields)
    from mcp.shared.exceptions import MCPError, NoBackChannelError

    try:
        answer = await place.request.session.elicit_form(question, fields, related_request_id=place.request.request_id)
    except (NoBackChannelError, MCPError):
        return PersonAnswer("cannot")
    return _answer(answer, wants)


def can_ask(place: MCPCall) -> bool:
    """Whether the client declares that it can show a form to a person."""
    capabilities = place.request.session.client_capabilities
    found = capabilities.elicitation if capabilities is not None else None
    return found is not None and (found.form is not None or found.url is None)  # `{}` means forms, as before there were other kinds


def is_modern(place: MCPCall) -> bool:
    """Whether the client's revision answers calls with questions."""
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    return place.request.protocol_version in MODERN_PROTOCOL_VERSIONS


def returned_state(place: MCPCall) -> str | None:
    """The state that came back with this call: a question's, or the tool's own."""
    return place.params.request_state if is_modern(place) else None


def _by_retry(place: MCPCall, question: str, state: str, wants: str, form: dict[str, Any]) -> PersonAnswer | Any:
    import mcp_types as types

    given: dict[str, Any] = place.params.input_responses or {}
    if wants in given and place.params.request_state == state:
        return _answer(given[wants], wants)
    asking = types.ElicitRequest(params=types.ElicitRequestFormParams(message=question, requested_schema=form))
    return types.InputRequiredResult(input_requests={wants: asking}, request_state=state)


def _answer(result: Any, wants: str) -> PersonAnswer:
    found: Any = getattr(result, "content", None)
    content: dict[str, Any] = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if wants == FORM:
        return PersonAnswer("yes", content=content) if getattr(result, "action", None) == "accept" else PersonAnswer("no")
    value = content.get(wants) if getattr(result, "action", None) == "accept" else None
    if wants == ANSWER:
        return PersonAnswer("yes", value) if isinstance(value, str) else PersonAnswer("no")
    return PersonAnswer("yes" if value is True else "no")
