"""The protocols that providers speak: each is a module of pure functions (`Wire`), imported when first used.

`response_of` reads an answer of any provider: it recognises the protocol by the names of fields.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from ferrule.encoding.encode import jsonable, with_whole_characters
from ferrule.errors import BadRequestError, ConfigurationError, MissingContentError, shown
from ferrule.record import replace
from ferrule.values.conversation.exchange import CallPiece, Delta, Response
from ferrule.values.conversation.thoughts import ThoughtSplitter, split_thoughts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ferrule.models.providers import Dialect
    from ferrule.models.wires.payload import Json
    from ferrule.values.conversation.exchange import Request
    from ferrule.values.conversation.thoughts import Kind

WIRES: Mapping[str, str] = {
    name: f"ferrule.models.wires.{name}"
    for name in ("openai_chat", "openai_responses", "anthropic", "gemini")
}
"""The package of each wire: its module `codec` is the `Wire`, and `stream.Assembly` assembles streamed answers."""


class Assembly(Protocol):
    """One streamed answer: `feed` it bytes, `end` it, then take `response()`."""

    @property
    def is_done(self) -> bool:
        """Whether the server has sent the end of its answer."""
        ...

    def feed(self, piece: bytes) -> Iterator[Delta]:
        """Take the next bytes of the body, cut anywhere; yield the pieces in them."""
        ...

    def end(self) -> Iterator[Delta]:
        """End the body; yield the remaining pieces."""
        ...

    def response(self) -> Response:
        """The whole answer, equal to that of the unstreamed body; raises `UnavailableError` if the stream broke off."""
        ...


class Wire(Protocol):
    """The client's side of one protocol. A module satisfies it."""

    def path(self, model: str, *, stream: bool = False) -> str:
        """The path after the base URL, with a query if the protocol needs one."""
        ...

    def headers(self, key: str | None) -> dict[str, str]:
        """The headers that carry the key, and others that the protocol requires."""
        ...

    def render(
        self,
        request: Request,
        *,
        model: str,
        settings: Mapping[str, Any],
        stream: bool = False,
        dialect: Dialect = ...,
    ) -> bytes:
        """The body of a request. Settings of the request override the model's `settings`; None omits a setting.

        The same messages give the same bytes in every request, so that providers can cache the
        beginning of a conversation.
        """
        ...

    def read(self, payload: Json | bytes) -> Response:
        """The answer in a body.

        Raises `BadRequestError` if there is none, `MissingContentError` if it is empty,
        `RefusalError` if it was withheld.
        """
        ...


def wire(name: str) -> Wire:
    """The wire with this name."""
    if name not in WIRES:
        raise ConfigurationError(f"`wire` is one of {', '.join(WIRES)}, found {shown(name)}.")
    return cast("Wire", import_module(f"{WIRES[name]}.codec"))


def assembly(name: str, request: Request) -> Assembly:
    """A new `Assembly` of a wire, for the streamed answer to a request."""
    return ThoughtsApart(import_module(f"{WIRES[name]}.stream").Assembly(), request)


_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""How a stream of events begins."""


def read_body(codec: Wire, name: str, body: bytes) -> Response:
    """The answer in a body. Some gateways stream unasked, or label a stream as JSON."""
    try:
        return codec.read(body)
    except BadRequestError:
        if not body.removeprefix(BOM_UTF8).lstrip().startswith(_FIELDS):
            raise
    reader: Assembly = import_module(f"{WIRES[name]}.stream").Assembly()
    for _ in (*reader.feed(body), *reader.end()):
        pass
    return reader.response()


class UnlabelledAnswer:
    """An `Assembly` for an answer whose headers do not say how it comes: whole if it begins with `{`, else as a stream."""

    def __init__(self, whole: Assembly, stream: Assembly) -> None:
        self._whole = whole
        self._reader = stream
        self._begun = b""
        self._is_known = False

    @property
    def is_done(self) -> bool:
        """See `Assembly`."""
        return self._reader.is_done

    def feed(self, piece: bytes) -> Iterator[Delta]:
        """See `Assembly`."""
        if not self._is_known:
            piece = self._begun = self._begun + piece
            start = piece.removeprefix(BOM_UTF8).lstrip()
            if not start:
                return iter(())
            self._is_known = True
            self._reader = self._whole if start.startswith(b"{") else self._reader
        return self._reader.feed(piece)

    def end(self) -> Iterator[Delta]:
        """See `Assembly`."""
        return self._reader.end()

    def response(self) -> Response:
        """See `Assembly`."""
        return self._reader.response()


class ThoughtsApart:
    """Wraps an `Assembly`: turns thoughts at the start of its text into reasoning, and joins characters that were cut in two.

    Text before a closing tag without an opening one is not kept back: it is streamed as text, and
    only `response()` makes it reasoning.
    """

    def __init__(self, assembly: Assembly, request: Request) -> None:
        self._assembly = assembly
        self._request = request
        self._splitter = ThoughtSplitter(request, unopened=False)
        self._halves = _Halves()

    @property
    def is_done(self) -> bool:
        """See `Assembly`."""
        return self._assembly.is_done

    def feed(self, piece: bytes) -> Iterator[Delta]:
        """See `Assembly`."""
        yield from self._split(map(self._halves.join, self._assembly.feed(piece)))

    def end(self) -> Iterator[Delta]:
        """See `Assembly`."""
        yield from self._split(map(self._halves.join, self._assembly.end()))
        yield from self._split(self._halves.rest())
        yield from self._deltas(self._splitter.finish())

    def response(self) -> Response:
        """See `Assembly`."""
        return split_thoughts(self._halves.join_response(self._assembly.response()), self._request)

    def _split(self, deltas: Iterator[Delta]) -> Iterator[Delta]:
        for delta in deltas:
            if delta.reasoning:
                self._splitter.follow_reasoning()
                yield Delta(reasoning=delta.reasoning)
            if delta.text:
                yield from self._deltas(self._splitter.feed(delta.text))
            if delta.call is not None:
                yield Delta(call=delta.call)

    def _deltas(self, pieces: list[tuple[Kind, str]]) -> Iterator[Delta]:
        for kind, piece in pieces:
            yield Delta(reasoning=piece) if kind == "thought" else Delta(piece)


_FIRST_HALF, _LAST_HALF = "\ud800", "\udbff"


class _Halves:
    """Joins characters that were cut in two: a server that splits text by UTF-16 units may send the halves of one in two events."""

    def __init__(self) -> None:
        self._kept: dict[str | int, str] = {}
        """First halves of characters, by the `Delta`'s field or the call's index."""
        self._has_met_one = False

    def join(self, delta: Delta) -> Delta:
        """The piece, with the half kept back from the previous one, and without a half at its own end."""
        text, thought, call = delta.text, delta.reasoning, delta.call
        are_whole = (not text or text[-1] < _FIRST_HALF) and (
            not thought or thought[-1] < _FIRST_HALF
        )
        if are_whole and not self._kept and (call is None or call.arguments[-1:] < _FIRST_HALF):
            return delta
        call = (
            None
            if call is None
            else replace(call, arguments=self._whole(call.index, call.arguments))
        )
        return Delta(self._whole("text", text), self._whole("reasoning", thought), call)

    def rest(self) -> Iterator[Delta]:
        """The kept halves that no second half followed."""
        for place, half in self._kept.items():
            if isinstance(place, int):
                yield Delta(call=CallPiece(place, arguments=half))
            else:
                yield Delta(half) if place == "text" else Delta(reasoning=half)

    def join_response(self, found: Response) -> Response:
        """The whole answer with halves joined, if any were met."""
        if not self._has_met_one:
            return found
        calls = tuple([call.changed(args=jsonable(call.args)) for call in found.tool_calls])
        joined = {
            name: jsonable(getattr(found, name))
            for name in ("text", "reasoning", "refusal", "extra")
        }
        return replace(found, tool_calls=calls, **joined)

    def _whole(self, place: str | int, piece: str) -> str:
        if not piece:
            return piece
        piece = self._kept.pop(place, "") + piece
        if _FIRST_HALF <= piece[-1] <= _LAST_HALF:
            self._has_met_one = True
            self._kept[place] = piece[-1]
            piece = piece[:-1]
        return with_whole_characters(piece)


# -- answers of any provider
# ----------------------------------------------------------------------------------------

_SIGNS = {
    "choices": "openai_chat",
    "candidates": "gemini",
    "promptFeedback": "gemini",
    "output": "openai_responses",
}
_OF_MESSAGES = ("content", "tool_calls", "function_call")


def response_of(answer: Any) -> Response:
    """Read a `Response` from an answer: the JSON of a body, an object of a provider's client, a bare message, or text.

    Raises `MissingContentError` for anything else, and for an empty answer.
    """
    if isinstance(answer, Response):
        return answer
    if isinstance(answer, str):
        return Response(answer, raw=answer)
    body = body_of(answer)
    if not body:
        raise MissingContentError(f"this is not a model's answer: {shown(answer)}", raw=answer)
    name = next((name for sign, name in _SIGNS.items() if sign in body), None)
    if (
        name is None
        and isinstance(body.get("content"), list)
        and not any(key in body for key in _OF_MESSAGES[1:])
    ):
        name = "anthropic"
    if name is None and any(key in body for key in _OF_MESSAGES):
        name, body = "openai_chat", {"choices": [{"message": body}]}
    try:
        return wire(name or "openai_chat").read(body)
    except MissingContentError as error:
        error.raw = answer
        raise


def is_answer(thing: Any) -> bool:
    """Whether an object has a field of an answer in some provider's form."""
    fields = (*_SIGNS, *_OF_MESSAGES)
    return (
        any(name in thing for name in fields)
        if isinstance(thing, Mapping)
        else any(hasattr(thing, name) for name in fields)
    )


def body_of(answer: Any) -> dict[str, Any]:
    """The JSON of an answer: a pydantic model, an object with attributes, a mapping; empty for anything else."""
    if callable(dump := getattr(answer, "model_dump", None)):
        # Unset fields were not sent. Clients put undeclared types into their unions, about which
        # pydantic would warn.
        return cast("dict[str, Any]", dump(mode="json", exclude_unset=True, warnings=False))
    found = _as_json(answer)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _as_json(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_json(each) for each in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {
            str(name): _as_json(each) for name, each in cast("Mapping[Any, Any]", value).items()
        }
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return {
            name: _as_json(each)
            for name, each in cast("dict[str, Any]", vars(value)).items()
            if not name.startswith("_")
        }
    return jsonable(value)
