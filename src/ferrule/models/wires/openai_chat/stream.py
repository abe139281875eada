"""A streamed chat completion: from bytes to `Delta`s, and to the `Response` of the whole answer.

Chunks are assembled into the body of an unstreamed answer, which `read` reads.
Format: the chunk objects of OpenAI's API reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_text
from ferrule.encoding.repair import strict_json
from ferrule.models.wires.openai_chat.decode import (
    REASONING,
    content_of,
    read,
    reasoning_of,
    usage_of,
)
from ferrule.models.wires.payload import (
    Json,
    cost_of,
    count_of,
    decode_event,
    list_of,
    mapping,
    text_of,
)
from ferrule.net.errors import is_error, payload_error
from ferrule.net.sse import EventAssembly
from ferrule.values.conversation.exchange import CallPiece, Delta, Response

if TYPE_CHECKING:
    from collections.abc import Iterator


_OF_TEXT = frozenset({"role", "content"})
"""The fields of a piece that holds text."""


class Assembly(EventAssembly):
    """One streamed answer: `feed` it bytes, `end` it, then take `response()`."""

    def __init__(self) -> None:
        super().__init__()
        self._body: Json = {}
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._thoughts_field = "reasoning"
        """The name of their field."""
        self._refusals: list[str] = []
        self._reasoning_details: list[Any] = []
        self._calls: list[_StreamedCall] = []
        self._odd_calls: Any = None
        """A value other than a list in place of the calls; `read` reports it to the model."""
        self._function: _StreamedCall | None = None
        """The one call of a server that uses the deprecated `function_call`."""
        self._reason: str | None = None
        self._tokens: list[Any] = []
        self._has_begun = False

    def response(self) -> Response:
        """The whole answer; raises `UnavailableError` if the stream broke off."""
        self._check_ended(self.is_done or self._reason, self._has_begun)
        if not self._has_begun:
            return read({**self._body, "choices": []})
        choice = {
            "index": 0,
            "message": self._message(),
            "finish_reason": self._reason,
            "logprobs": {"content": self._tokens},
        }
        return read({**self._body, "choices": [choice]})

    def _message(self) -> Json:
        text: str | None = "".join(self._texts)
        has_calls = bool(self._calls) or self._function is not None
        if not text and has_calls:
            text = None
        calls = [call.whole() for call in sorted(self._calls, key=attrgetter("index"))]
        message: Json = {
            "role": "assistant",
            "content": text,
            self._thoughts_field: "".join(self._thoughts),
            "refusal": "".join(self._refusals),
            "reasoning_details": self._reasoning_details,
            "tool_calls": calls or self._odd_calls,
        }
        if self._function is not None:
            message["function_call"] = self._function.whole()["function"]
        return message

    def _event(self, data: bytes) -> Iterator[Delta]:
        chunk = decode_event(data)
        if is_error(chunk, "choices"):
            raise payload_error(chunk)
        for key in ("id", "model", "usage"):
            if chunk.get(key):
                self._body[key] = chunk[key]
        usage = mapping(chunk.get("usage"))
        if usage:
            model = text_of(self._body.get("model"))
            self.so_far = Response(None, usage=usage_of(usage), model=model, cost=cost_of(usage))
        for entry in list_of(chunk.get("choices")):
            choice = mapping(entry)
            if not count_of(choice.get("index")):  # only the first choice is read
                yield from self._choice(choice)

    def _choice(self, choice: Json) -> Iterator[Delta]:
        if choice.get("error"):
            raise payload_error(choice)
        self._reason = text_of(choice.get("finish_reason")) or self._reason
        if choice.get("logprobs"):
            self._tokens += list_of(mapping(choice["logprobs"]).get("content"))
        piece = mapping(choice.get("delta")) or mapping(choice.get("message"))
        if piece or self._reason is not None:
            self._has_begun = True
        text, thought = content_of(piece.get("content"))
        # Most pieces are a token of text, with nothing else to look for.
        has_more = not piece.keys() <= _OF_TEXT
        if has_more:
            if piece.get(REASONING):
                self._thoughts_field = REASONING
            thought = reasoning_of(piece) or thought
        if text or thought:
            self._texts.append(text or "")
            self._thoughts.append(thought or "")
            yield Delta(text or "", thought or "")
        if has_more:
            refusal = piece.get("refusal")
            if isinstance(refusal, str):
                self._refusals.append(refusal)
            self._reasoning_details += list_of(piece.get("reasoning_details"))
            yield from self._take_calls(piece)

    def _take_calls(self, piece: Json) -> Iterator[Delta]:
        entries = piece.get("tool_calls")
        if entries and not isinstance(entries, list):
            self._odd_calls = entries
        for entry in list_of(entries):
            fields = mapping(entry)
            yield self._call_of(fields).take(fields)
        function = piece.get("function_call")
        if isinstance(function, dict):
            if self._function is None:
                self._function = _StreamedCall(0)
            yield self._function.take({"function": function})

    def _call_of(self, entry: Json) -> _StreamedCall:
        """The call that a piece belongs to.

        Known by its index; if a server sends none (or always 0), by its id or name.
        """
        call: _StreamedCall | None = None
        index = entry.get("index")
        if type(index) is int:
            for known in self._calls:
                if known.index == index:
                    call = known
        elif self._calls:
            call = self._calls[-1]
            index = call.index + 1
        else:
            index = 0
        if call is None or call.is_followed_by(entry):
            call = _StreamedCall(index, len(self._calls))
            self._calls.append(call)
        return call


@dataclass(slots=True)
class _StreamedCall:
    """A tool call that arrives in pieces."""

    index: int
    position: int = 0
    """How many calls began before this one. Some servers send the same `index` for all."""
    id: str = ""
    names: list[str] = field(default_factory=list[str])
    """The pieces of its name."""
    arguments: list[str] = field(default_factory=list[str])
    """The pieces of its arguments' text."""
    extra: Any = None

    @property
    def name(self) -> str:
        return "".join(self.names)

    def take(self, entry: Json) -> Delta:
        """Add a piece; return it as a `Delta`."""
        function = mapping(entry.get("function"))
        call_id = text_of(entry.get("id"))
        self._take_name(text_of(function.get("name")), is_same_id=call_id == self.id)
        if call_id is not None:
            self.id = call_id
        piece = _arguments_text(function.get("arguments"))
        if piece:
            self.arguments.append(piece)
        self.extra = entry.get("extra_content") or self.extra
        return Delta(call=CallPiece(self.position, self.id, self.name, piece))

    def _take_name(self, name: str | None, *, is_same_id: bool) -> None:
        # A name may come in pieces. But servers that repeat the id in every chunk, or send it only
        # once, may also repeat the whole name.
        if name is None:
            return
        has_arguments = any(self.arguments)
        if name == self.name and (is_same_id or has_arguments):
            return
        if has_arguments and name in self.names:
            self.names = [name]
        else:
            self.names.append(name)

    def is_followed_by(self, entry: Json) -> bool:
        """Whether a piece without an index of its own begins another call.

        It has a different id, or a name once this call is whole.
        """
        call_id = entry.get("id")
        if call_id and self.id:
            return call_id != self.id
        function = mapping(entry.get("function"))
        name = text_of(function.get("name"))
        if name is None:
            return False
        is_repeated = name in {self.name, *self.names} and not function.get("arguments")
        return not is_repeated and self._is_whole()

    def _is_whole(self) -> bool:
        try:
            return isinstance(strict_json("".join(self.arguments)), dict)
        except ValueError:
            return False

    def whole(self) -> Json:
        """The call in the form of an unstreamed answer."""
        call: Json = {
            "type": "function",
            "function": {"name": self.name, "arguments": "".join(self.arguments)},
        }
        if self.id:
            call["id"] = self.id
        if self.extra:
            call["extra_content"] = self.extra
        return call


def _arguments_text(arguments: Any) -> str:
    """The text of a piece of arguments; some servers send them as an object."""
    if arguments is None:
        return ""
    if isinstance(arguments, str):
        return arguments
    return json_text(arguments)
