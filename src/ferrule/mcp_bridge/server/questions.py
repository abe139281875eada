"""Questions of a server to the person at an MCP client.

Until 2025-11-25 the server sends `elicitation/create` and waits. From 2026-07-28 on it answers the
call with `input_required`, and the client calls again with the answer and a sealed state. The state
proves that this question was asked about this call; an answer without it is ignored.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from secrets import token_hex
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct

from ferrule.mcp_bridge.server.result import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.mcp_bridge.server.context import MCPCall

APPROVE, ANSWER, FORM = "approve", "answer", "form"
"""What a question wants: yes or no, a text, or the fields of another server's form."""

_FIELDS: dict[str, dict[str, Any]] = {
    APPROVE: {
        "type": "boolean",
        "title": "Run it",
        "description": "Whether the call may be run as shown.",
    },
    ANSWER: {"type": "string", "title": "Answer"},
}
_MOST_TICKETS = 10_000


class PersonAnswer(Struct, frozen=True):
    """The outcome of a question."""

    verdict: Literal["yes", "no", "cannot", "host"]
    """`cannot`: the client cannot ask; `host`: only the host may decide."""
    text: str = ""
    """The person's text, for a question that wants text."""
    content: dict[str, Any] | None = None
    """The filled-in form, for a question with a form."""


async def ask_client(
    call: MCPCall,
    question: str,
    state: str,
    wants: str = APPROVE,
    form: Mapping[str, Any] | None = None,
) -> PersonAnswer | Any:
    """The person's answer; or the SDK's `InputRequiredResult`, to be returned to the client.

    `state` identifies the question. It travels through the client, sealed, and comes back with the
    answer. `wants` is `APPROVE`, `ANSWER` or `FORM`; `form` is the schema of the last.
    """
    if not _can_ask(call):
        return PersonAnswer("cannot")
    question = replace_surrogates(question.removesuffix(" (yes/no)"))  # the form says so itself
    if form is None:
        form = {"type": "object", "properties": {wants: _FIELDS[wants]}, "required": [wants]}
    if is_modern(call.request):
        return _ask_by_retry(call, question, state, wants, dict(form))
    from mcp.shared.exceptions import MCPError, NoBackChannelError

    try:
        answer = await call.request.session.elicit_form(
            question, dict(form), related_request_id=call.request.request_id
        )
    except (NoBackChannelError, MCPError):
        return PersonAnswer("cannot")
    return _read_answer(answer, wants)


def _can_ask(call: MCPCall) -> bool:
    """Whether the client declares that it can show a form to a person."""
    capabilities = call.request.session.client_capabilities
    elicitation = None
    if capabilities is not None:
        elicitation = capabilities.elicitation
    if elicitation is None:
        return False
    # `{}` means forms, as before there were other kinds.
    return elicitation.form is not None or elicitation.url is None


def is_modern(request: Any) -> bool:
    """Whether calls are answered with questions: the client's revision is 2026-07-28 or later."""
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    return request.protocol_version in MODERN_PROTOCOL_VERSIONS


def returned_state(call: MCPCall) -> str | None:
    """The state that came back with this call: a question's, or the tool's own."""
    if is_modern(call.request):
        return call.params.request_state
    return None


def _ask_by_retry(
    call: MCPCall, question: str, state: str, wants: str, form: dict[str, Any]
) -> PersonAnswer | Any:
    """The answer that came with this call, if it belongs to the question; else the question."""
    import mcp_types as types

    answers: dict[str, Any] = call.params.input_responses or {}
    if wants in answers and call.params.request_state == state:
        return _read_answer(answers[wants], wants)
    request = types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=question, requested_schema=form)
    )
    return types.InputRequiredResult(input_requests={wants: request}, request_state=state)


def _read_answer(result: Any, wants: str) -> PersonAnswer:
    if getattr(result, "action", None) != "accept":
        return PersonAnswer("no")
    raw: Any = getattr(result, "content", None)
    content = {}
    if isinstance(raw, dict):
        content = cast("dict[str, Any]", raw)
    value = content.get(wants)
    if wants == FORM:
        return PersonAnswer("yes", content=content)
    if wants == ANSWER and isinstance(value, str):
        return PersonAnswer("yes", value)
    if wants == APPROVE and value is True:
        return PersonAnswer("yes")
    return PersonAnswer("no")


class Tickets:
    """Single-use ids of questions, so that each answer counts once in this process. Thread-safe.

    Only used tickets are kept, as another worker may get the answer. If there are too many, the
    oldest is forgotten, and every ticket up to it counts as used.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._used: list[str] = []
        """In order."""
        self._forgotten = ""
        """The latest ticket that was forgotten."""

    def new(self) -> str:
        """A new ticket. Later tickets sort after earlier ones."""
        return f"{time.time_ns():020}{token_hex(8)}"

    def use(self, ticket: str) -> bool:
        """Use a ticket; False if it was used before."""
        with self._lock:
            index = bisect_left(self._used, ticket)
            is_used = index < len(self._used) and self._used[index] == ticket
            if is_used or ticket <= self._forgotten:
                return False
            self._used.insert(index, ticket)
            if len(self._used) > _MOST_TICKETS:
                self._forgotten = self._used.pop(0)
            return True
