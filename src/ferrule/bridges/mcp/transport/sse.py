"""A stream of server-sent events, heard before the SDK reads it.

In: a response of either MCP transport over HTTP. Out: the same events with what could be mended, and notes of the requests whose answer
cannot be read or never came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urljoin, urlsplit

from ferrule.bridges.mcp.transport.messages import LARGEST, Note, excerpt, heard

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

EVENTS = "text/event-stream"


class Notebook(Protocol):
    """Whoever notes what became of requests."""

    answers_apart: bool
    waits_for: Callable[[Any], bool] | None

    def note(self, asked: Any, note: Note) -> None:
        """Keep what became of a request."""
        ...

    def answered(self, asked: Any) -> None:
        """Its answer came after all."""
        ...


def heard_events(response: Any, notebook: Notebook, asked: Any) -> Any:
    """A response in the place of this one, for the SDK to read. `asked` is the request that was posted, None for a stream of its own."""
    import httpx2

    class Heard(httpx2.AsyncByteStream):
        """Made here, as its base comes late."""

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for each in _events(response, notebook, asked):
                yield each

        async def aclose(self) -> None:
            await response.aclose()

    hidden = ("content-encoding", "content-length", "transfer-encoding")
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in hidden]
    return httpx2.Response(response.status_code, headers=headers, stream=Heard(), request=response.request)


async def _events(response: Any, notebook: Notebook, asked: Any) -> AsyncGenerator[bytes]:
    import httpx2

    is_answered = asked is None
    try:
        async for event in httpx2.EventSource(response, max_event_size=LARGEST):
            data: str = event.data
            if event.event == "endpoint" and notebook.answers_apart:
                _refuse_other_origin(str(response.request.url), data)
            if event.event == "message" and data:
                is_answer, data = _heard(data, notebook, asked)
                is_answered = is_answered or is_answer
            yield _written(event, data)
    except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
        if not is_answered:
            notebook.note(asked, Note(text=f"the answer broke off: {said_by(error)}", cause=error))
        raise
    if not is_answered:
        notebook.note(asked, Note(text="the answer broke off: the stream ended without it"))


def _heard(data: str, notebook: Notebook, asked: Any) -> tuple[bool, str]:
    """Whether it ends the wait for an answer, and what the SDK may read."""
    from mcp_types import JSONRPCError, JSONRPCResponse

    text = data.encode("utf-8", "replace")
    found = heard(text)
    if found.message is None:
        if asked is not None:  # the SDK takes it for the answer
            notebook.note(asked, Note(was_answered=True, text=f"an event that cannot be read: {excerpt(text)}"))
        return True, data
    if not isinstance(found.message, JSONRPCError | JSONRPCResponse):
        return False, data
    number = found.message.id if asked is None else asked
    if not found.broken:
        notebook.answered(number)
    elif asked is not None or (notebook.waits_for is not None and notebook.waits_for(number)):
        notebook.note(number, Note(was_answered=True, text=found.broken))
    return True, found.message.model_dump_json(by_alias=True, exclude_unset=True)


def _written(event: Any, data: str) -> bytes:
    fields = [("event", event.event), ("id", event.id), ("retry", "" if event.retry is None else str(event.retry))]
    lines = [f"{name}: {value}" for name, value in fields if value]
    lines += [f"data: {line}" for line in data.split("\n")] if data else []
    return ("\n".join(lines) + "\n\n").encode("utf-8", "replace")


def _refuse_other_origin(url: str, endpoint: str) -> None:
    """The SDK refuses it as well, but then tells nobody."""
    import httpx2

    here, there = urlsplit(url), urlsplit(urljoin(url, endpoint))
    if (here.scheme, here.netloc) != (there.scheme, there.netloc):
        msg = f"the server wants messages sent to another origin, {there.scheme}://{there.hostname}"
        raise httpx2.SSEError(msg)


def said_by(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
