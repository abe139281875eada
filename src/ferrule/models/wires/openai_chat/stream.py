"""A streamed chat completion: turns bytes into `Delta`s, and into the same `Response` as the unstreamed answer.

Chunks are assembled into the body of an unstreamed answer, which `read` reads.
Format: the chunk objects of OpenAI's API reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.encode import json_text
from ferrule.encoding.repair import strict_json
from ferrule.models.wires.openai_chat.codec import content_of, read, reasoning_of
from ferrule.models.wires.payload import Json, count_of, decode_event, mapping, text_of
from ferrule.net.errors import payload_error
from ferrule.net.sse import EventAssembly
from ferrule.values.conversation.exchange import CallPiece, Delta, Response

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class _Call:
    """A tool call that arrives in pieces."""

    index: int
    place: int = 0
    """How many calls began before this one. Some servers send the same index for all."""
    id: str = ""
    names: list[str] = field(default_factory=list[str])
    arguments: list[str] = field(default_factory=list[str])
    extra: Any = None

    def take(self, entry: Json) -> Delta:
        function = mapping(entry.get("function"))
        call_id, name, arguments = (
            entry.get("id"),
            text_of(function.get("name")),
            function.get("arguments"),
        )
        repeated = isinstance(call_id, str) and call_id != "" and call_id == self.id
        if isinstance(call_id, str) and call_id:
            self.id = call_id
        # A name may come in pieces; but servers that repeat the id in every chunk, or send it once,
        # may also repeat the whole name.
        if name is not None and not ((repeated or any(self.arguments)) and name == self.name):
            self.names = (
                [name] if any(self.arguments) and name in self.names else [*self.names, name]
            )
        piece = (
            ""
            if arguments is None
            else arguments
            if isinstance(arguments, str)
            else json_text(arguments)
        )
        if piece:
            self.arguments.append(piece)
        self.extra = entry.get("extra_content") or self.extra
        return Delta(call=CallPiece(self.place, self.id, self.name, piece))

    @property
    def name(self) -> str:
        return "".join(self.names)

    def is_before(self, entry: Json) -> bool:
        """Whether a piece without an index begins another call: it has a different id, or a name once this call is complete."""
        call_id, function = entry.get("id"), mapping(entry.get("function"))
        if call_id and self.id:
            return call_id != self.id
        name = text_of(function.get("name"))
        return (
            name is not None
            and (name not in {self.name, *self.names} or bool(function.get("arguments")))
            and self._is_whole()
        )

    def _is_whole(self) -> bool:
        try:
            return isinstance(strict_json("".join(self.arguments)), dict)
        except ValueError:
            return False

    def whole(self) -> Json:
        shape: Json = {
            "type": "function",
            "function": {"name": self.name, "arguments": "".join(self.arguments)},
        }
        head = {"id": self.id} if self.id else {}
        return {**head, **shape, **({"extra_content": self.extra} if self.extra else {})}


class Assembly(EventAssembly):
    """One streamed answer: `feed` it bytes, `end` it, then take `response()`."""

    def __init__(self) -> None:
        super().__init__()
        self._body: Json = {}
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._refusal: list[str] = []
        self._details: list[Any] = []
        self._calls: list[_Call] = []
        self._no_calls: Any = None  # a value other than a list, in place of the calls
        self._function: _Call | None = None
        self._reason: str | None = None
        self._answered = False

    def response(self) -> Response:
        """The whole answer; raises `UnavailableError` if the stream broke off."""
        self._check_ended(self.is_done or self._reason, self._answered)
        if not self._answered:
            return read({**self._body, "choices": []})
        text = "".join(self._text)
        message: Json = {
            "role": "assistant",
            "content": text if text or not (self._calls or self._function) else None,
            "reasoning": "".join(self._thoughts),
            "refusal": "".join(self._refusal),
            "reasoning_details": self._details,
        }
        message["tool_calls"] = [
            call.whole() for call in sorted(self._calls, key=lambda call: call.index)
        ] or self._no_calls
        if self._function is not None:
            message["function_call"] = self._function.whole()["function"]
        return read(
            {
                **self._body,
                "choices": [{"index": 0, "message": message, "finish_reason": self._reason}],
            },
        )

    def _event(self, data: bytes) -> Iterator[Delta]:
        chunk = decode_event(data)
        if chunk.get("error") or chunk.get("object") == "error":
            raise payload_error(chunk)
        for key in ("id", "model", "usage"):
            if chunk.get(key):
                self._body[key] = chunk[key]
        choices = chunk.get("choices")
        for choice in cast("list[Any]", choices) if isinstance(choices, list) else []:
            if not count_of(mapping(choice).get("index")):  # only the first choice is read
                yield from self._choice(mapping(choice))

    def _choice(self, choice: Json) -> Iterator[Delta]:
        if choice.get("error"):
            raise payload_error(choice)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._reason = reason
        piece = mapping(choice.get("delta")) or mapping(choice.get("message"))
        self._answered = self._answered or bool(piece) or self._reason is not None
        content, thought = content_of(piece.get("content"))
        thought = reasoning_of(piece) or thought
        if isinstance(piece.get("refusal"), str):
            self._refusal.append(cast("str", piece["refusal"]))
        if isinstance(piece.get("reasoning_details"), list):
            self._details.extend(piece["reasoning_details"])
        if content or thought:
            self._text.append(content or "")
            self._thoughts.append(thought or "")
            yield Delta(content or "", thought or "")
        entries = piece.get("tool_calls")
        if isinstance(entries, list):
            for entry in cast("list[Any]", entries):
                yield self._slot(mapping(entry)).take(mapping(entry))
        else:
            self._no_calls = entries or self._no_calls
        if isinstance(piece.get("function_call"), dict):
            self._function = self._function or _Call(0)
            yield self._function.take({"function": piece["function_call"]})

    def _slot(self, entry: Json) -> _Call:
        """The call that a piece belongs to: by its index; if a server sends none (or always 0), by its id or name."""
        index = entry.get("index")
        if type(index) is int:
            known = next((call for call in reversed(self._calls) if call.index == index), None)
        else:
            known = self._calls[-1] if self._calls else None
            index = self._calls[-1].index + 1 if self._calls else 0
        if known is None or known.is_before(entry):
            known = _Call(index, len(self._calls))
            self._calls.append(known)
        return known
