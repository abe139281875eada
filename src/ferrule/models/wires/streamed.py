"""What streamed answers of all protocols need: thoughts apart from text, and whole characters.

And answers that come in another way than asked for: whole instead of streamed, or streamed instead
of whole.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ferrule.encoding.encode import jsonable, with_whole_characters
from ferrule.errors import LMError
from ferrule.models.wires.wire import wire
from ferrule.values.conversation.exchange import CallPiece, Delta, Response
from ferrule.values.conversation.thoughts import ThoughtSplitter, split_thoughts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ferrule.models.wires.wire import Assembly
    from ferrule.values.conversation.exchange import Request
    from ferrule.values.conversation.thoughts import Kind

_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""How a stream of events begins."""


def assembly(name: str, request: Request) -> Assembly:
    """A new `Assembly` of a wire, for the streamed answer to a request."""
    return ThoughtsApart(wire(name).Assembly(), request)


def is_event_stream(body: bytes) -> bool:
    """Whether a body is a stream of events."""
    return body.removeprefix(BOM_UTF8).lstrip().startswith(_FIELDS)


def read_stream(name: str, body: bytes) -> Response:
    """The answer in the whole body of a stream."""
    reader = wire(name).Assembly()
    for _ in (*reader.feed(body), *reader.end()):
        pass
    return reader.response()


class UnlabelledAnswer:
    """An `Assembly` for an answer whose headers do not say how it comes.

    It is whole if it begins with `{`, else a stream.
    """

    def __init__(self, whole: Assembly, stream: Assembly) -> None:
        self._whole = whole
        self._chosen = stream
        self._begin: bytes | None = b""
        """The bytes so far, while they are blank; None once the form is known."""

    @property
    def is_done(self) -> bool:
        """See `Assembly`."""
        return self._chosen.is_done

    @property
    def so_far(self) -> Response | None:
        """See `Assembly`."""
        return self._chosen.so_far

    def feed(self, piece: bytes) -> Iterator[Delta]:
        """See `Assembly`."""
        if self._begin is not None:
            piece = self._begin + piece
            text = piece.removeprefix(BOM_UTF8).lstrip()
            if not text:
                self._begin = piece
                return iter(())
            self._begin = None
            if text.startswith(b"{"):
                self._chosen = self._whole
        return self._chosen.feed(piece)

    def end(self) -> Iterator[Delta]:
        """See `Assembly`."""
        return self._chosen.end()

    def response(self) -> Response:
        """See `Assembly`."""
        return self._chosen.response()


class ThoughtsApart:
    """Wraps an `Assembly`: turns thoughts at the start of its text into reasoning.

    It also joins texts that came together, and characters that were cut in two. Text before a
    closing tag without an opening one is not kept back: it is streamed as text, and only
    `response()` makes it reasoning.
    """

    def __init__(self, assembly: Assembly, request: Request) -> None:
        self._assembly = assembly
        self._request = request
        self._splitter = ThoughtSplitter(request, unopened=False)
        self._halves = _Halves()
        self._told: Response | None = None
        """What the pieces so far tell of the model and the tokens."""

    @property
    def is_done(self) -> bool:
        """See `Assembly`."""
        return self._assembly.is_done

    @property
    def so_far(self) -> Response | None:
        """See `Assembly`."""
        return self._assembly.so_far

    def feed(self, piece: bytes) -> Iterator[Delta]:
        """See `Assembly`."""
        for delta in _joined(map(self._halves.join, self._assembly.feed(piece))):
            for part in self._split(delta):
                yield self._with_what_is_known(part)

    def end(self) -> Iterator[Delta]:
        """See `Assembly`."""
        for delta in self._assembly.end():
            yield from self._split(self._halves.join(delta))
        for delta in self._halves.rest():
            yield from self._split(delta)
        yield from _deltas(self._splitter.finish())

    def response(self) -> Response:
        """See `Assembly`."""
        return split_thoughts(self._halves.join_response(self._assembly.response()), self._request)

    def _with_what_is_known(self, delta: Delta) -> Delta:
        so_far = self._assembly.so_far
        if so_far is self._told:
            return delta
        self._told = so_far
        return replace(delta, so_far=so_far)

    def _split(self, delta: Delta) -> Iterator[Delta]:
        if delta.reasoning:
            self._splitter.follow_reasoning()
            yield Delta(reasoning=delta.reasoning)
        if delta.text:
            yield from _deltas(self._splitter.feed(delta.text))
        if delta.provider_call is not None:
            yield from _deltas(self._splitter.finish())
            yield Delta(provider_call=delta.provider_call, is_running=delta.is_running)
        if delta.call is not None:
            yield Delta(call=delta.call)


def _joined(deltas: Iterable[Delta]) -> Iterator[Delta]:
    """Join neighbouring texts, and neighbouring thoughts, of what came together.

    A fast model's tokens arrive by the dozen. Each piece costs every reader of the run's events.
    """
    texts: list[str] = []
    thoughts: list[str] = []
    try:
        for delta in deltas:
            is_text = bool(delta.text) and not delta.reasoning and delta.call is None
            is_thought = bool(delta.reasoning) and not delta.text and delta.call is None
            if thoughts and not is_thought:
                yield _taken(thoughts, texts)
            if texts and not is_text:
                yield _taken(thoughts, texts)
            if is_text:
                texts.append(delta.text)
            elif is_thought:
                thoughts.append(delta.reasoning)
            else:
                yield delta
    except LMError:
        if texts or thoughts:  # they came before what is wrong
            yield _taken(thoughts, texts)
        raise
    if texts or thoughts:
        yield _taken(thoughts, texts)


def _taken(thoughts: list[str], texts: list[str]) -> Delta:
    delta = Delta("".join(texts), "".join(thoughts))
    thoughts.clear()
    texts.clear()
    return delta


def _deltas(pieces: list[tuple[Kind, str]]) -> Iterator[Delta]:
    for kind, piece in pieces:
        if kind == "thought":
            yield Delta(reasoning=piece)
        else:
            yield Delta(piece)


_FIRST_HALF, _LAST_HALF = "\ud800", "\udbff"
"""The range of first halves, in UTF-16."""


class _Halves:
    """Joins characters that were cut in two.

    A server that splits text by UTF-16 units may send the halves of one character in two events.
    """

    def __init__(self) -> None:
        self._halves: dict[str | int, str] = {}
        """First halves that wait for their second, by the `Delta`'s field or the call's index."""
        self._has_met_one = False

    def join(self, delta: Delta) -> Delta:
        """The piece with the half before it, and without a half at its own end."""
        call = delta.call
        may_end_in_half = _may_end_in_half(delta.text) or _may_end_in_half(delta.reasoning)
        if call is not None:
            may_end_in_half = may_end_in_half or _may_end_in_half(call.arguments)
        if not self._halves and not may_end_in_half:
            return delta
        if call is not None:
            call = replace(call, arguments=self._joined(call.index, call.arguments))
        text = self._joined("text", delta.text)
        reasoning = self._joined("reasoning", delta.reasoning)
        return replace(delta, text=text, reasoning=reasoning, call=call)

    def rest(self) -> Iterator[Delta]:
        """The halves that no second half followed."""
        for key, half in self._halves.items():
            if isinstance(key, int):
                yield Delta(call=CallPiece(key, arguments=half))
            elif key == "text":
                yield Delta(half)
            else:
                yield Delta(reasoning=half)

    def join_response(self, response: Response) -> Response:
        """The whole answer with halves joined, if any were met."""
        if not self._has_met_one:
            return response
        return replace(
            response,
            tool_calls=tuple(
                [call.changed(args=jsonable(call.args)) for call in response.tool_calls]
            ),
            text=jsonable(response.text),
            reasoning=jsonable(response.reasoning),
            refusal=jsonable(response.refusal),
            extra=jsonable(response.extra),
        )

    def _joined(self, key: str | int, piece: str) -> str:
        if not piece:
            return piece
        piece = self._halves.pop(key, "") + piece
        if _FIRST_HALF <= piece[-1] <= _LAST_HALF:
            self._has_met_one = True
            self._halves[key] = piece[-1]
            piece = piece[:-1]
        return with_whole_characters(piece)


def _may_end_in_half(text: str) -> bool:
    return text[-1:] >= _FIRST_HALF
