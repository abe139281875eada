"""`Message`, and `Messages`: the append-only log of a conversation.

A message keeps each form in which it is sent, so that no request renders it again. `Message.json`,
the form of OpenAI's chat API, is the canonical one: requests join these bytes, and the digest of a
conversation is chained over them. A *wire* is the API format of a provider.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, Self

from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from ferrule.encoding.encode import json_bytes
from ferrule.encoding.pattern import pattern
from ferrule.errors import checks_keywords
from ferrule.record import CheckedStruct
from ferrule.values.calls.call import ToolCall
from ferrule.values.content.convert import content_text
from ferrule.values.content.parts import Content, Text
from ferrule.values.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ferrule.values.calls.call import ToolResult
    from ferrule.values.content.parts import Part

Role = Literal["system", "user", "assistant", "tool"]
AUTHOR = "author"
"""The key of `Message.extra` that says who wrote the rest of it."""
_DIGITS_OF_ACCOUNT = 8
UNNAMED = "unnamed"
"""Sent as the name of a call that has none."""
_LONGEST_NAME = 64
_MOST_KEPT = 64 * 1024
"""The most bytes of a joined conversation that are kept.

Beyond this, joining is cheap compared with sending, and a copy takes room.
"""
_SAFE = pattern(r"[a-zA-Z0-9_-]+")
_UNSAFE = pattern(r"[^a-zA-Z0-9_-]")


class Author(Struct, frozen=True):
    """Who wrote an answer: a model of an account at a host.

    Only its author can read the opaque data of an answer (`Message.extra`), such as encrypted
    reasoning: another account, host or model refuses it.
    """

    host: str
    account: str = ""
    """A digest of the account's key, too short to find the key by it; empty without a key."""
    model: str = ""

    @classmethod
    def of(cls, host: str, key: str | None, model: str) -> Self:
        """The author that answers at a host with this key."""
        if not key:
            return cls(host, "", model)
        digest = sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return cls(host, digest[:_DIGITS_OF_ACCOUNT], model)


class Message(Struct, metaclass=CheckedStruct, frozen=True, dict=True):
    """One message of a conversation."""

    role: Role
    content: Content = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls of an assistant message; each has an id."""
    tool_call_id: str | None = None
    """The id of the call that a tool message answers."""
    name: str | None = None
    """The tool of a tool message."""
    is_error: bool = False
    """Whether a tool message reports a failure."""
    reasoning: str = ""
    """The model's reasoning before its answer, if the provider returns it."""
    extra: Mapping[str, Any] | None = None
    """Data that a provider needs back unchanged, such as signed reasoning blocks, by wire.

    Under `author` is who wrote it.
    """

    @cached_property
    def _forms(self) -> dict[str, bytes]:
        """The message in the form of each wire that has rendered it."""
        return {}

    @cached_property
    def author(self) -> Author | None:
        """Who wrote the data in `extra`; None if there is none, or if it is not known."""
        fields: Any = (self.extra or {}).get(AUTHOR)
        if not isinstance(fields, Mapping):
            return None
        try:
            return convert(fields, Author)
        except ValidationError:  # a program may put anything into `extra`
            return None

    @cached_property
    def without_extra(self) -> Message:
        """The message as every other author reads it. Made once: it keeps its own forms."""
        return replace(self, extra=None)

    def rendered(self, wire: str, render: Callable[[Message], bytes]) -> bytes:
        """The message in one wire's form. `render` makes it once."""
        form = self._forms.get(wire)
        if form is None:
            form = self._forms[wire] = render(self)
        return form

    @property
    def json(self) -> bytes:
        """The message in OpenAI's chat form as JSON bytes, with tool names from `safe_name`."""
        return self.rendered("openai", _openai)

    @property
    def text(self) -> str:
        """The content as plain text."""
        if isinstance(self.content, str):
            return self.content
        return content_text(self.content)


def tool_message(result: ToolResult) -> Message:
    """The message that returns a result to the model."""
    return Message("tool", result.content, (), result.call_id, result.name, result.is_error)


def shorten(content: Content, limit: int) -> Content:
    """Cut the middle out of every text that is longer than `limit` characters. Other parts stay."""
    if isinstance(content, str):
        return _without_middle(content, limit)
    texts = [part for part in content if isinstance(part, Text)]
    if all(len(text.text) <= limit for text in texts):
        return content
    parts: list[Part] = []
    for part in content:
        if isinstance(part, Text):
            part = Text(text=_without_middle(part.text, limit))  # noqa: PLW2901
        parts.append(part)
    return tuple(parts)


def _without_middle(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… ({len(text) - 2 * half} characters left out) …\n{text[-half:]}"


def openai_content(content: Content) -> Any:
    """Content in OpenAI's form: a string, or a list of parts."""
    if isinstance(content, str):
        return content
    return [openai_part for part in content for openai_part in part.format()]


def openai_message(message: Message) -> dict[str, Any]:
    """A message in OpenAI's chat form."""
    shape: dict[str, Any] = {"role": message.role, "content": openai_content(message.content)}
    if message.tool_calls:
        shape["content"] = shape["content"] or None
        shape["tool_calls"] = [call.format() for call in message.tool_calls]
    if message.tool_call_id is not None:
        shape["tool_call_id"] = message.tool_call_id
    return shape


def sent_message(message: Message) -> dict[str, Any]:
    """`openai_message` with every tool name made safe by `safe_name`."""
    shape = openai_message(message)
    for call in shape.get("tool_calls", ()):
        call["function"]["name"] = safe_name(call["function"]["name"])
    return shape


def safe_name(name: str | None) -> str:
    """The name of a call as every provider accepts it: at most 64 letters, digits, `_` and `-`.

    A model may invent any name, and its calls are sent back to it: the provider would refuse a
    request with an invalid name.
    """
    if name and len(name) <= _LONGEST_NAME and _SAFE.fullmatch(name):
        return name
    return _UNSAFE.sub("_", name or "")[:_LONGEST_NAME] or UNNAMED


def safe_id(call_id: str | None, longest: int | None = None) -> str:
    """The id of a call in at most `longest` letters, digits, `_` and `-`; a valid id is unchanged.

    Ids of other providers may have any form. Equal ids stay equal, so that a result keeps its call;
    different ids get different hashes.
    """
    known = call_id or ""
    if _SAFE.fullmatch(known) and (longest is None or len(known) <= longest):
        return known
    ending = f"_{sha256(known.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    safe = _UNSAFE.sub("_", known)
    if longest is not None:
        safe = safe[: longest - len(ending)]
    return safe + ending


def _openai(message: Message) -> bytes:
    return json_bytes(sent_message(message))


class Messages(Log[Message]):
    """A conversation, oldest message first. `then` adds messages.

    Views of one conversation share their caches: the chained digests, the joined forms, the authors
    and the ids of calls. A step adds to them and never starts again, so that the thousandth costs
    the same as the first.
    """

    __slots__ = ("_authors", "_call_places", "_digests", "_joined", "_repeats")

    @checks_keywords
    def __init__(self, items: Iterable[Message] = ()) -> None:
        super().__init__(items)
        self._authors: list[frozenset[Author]] = []
        """For each message, the authors of it and of the messages before it."""
        self._call_places: dict[str, tuple[int, int]] = {}
        """By id, where a call is first: the number of its message, and its own number there."""
        self._repeats: list[bool] = []
        """For each message, whether an id of a call is repeated in it or before it."""
        self._digests: list[bytes] = []
        self._joined: dict[str, tuple[int, bytes]] = {}
        """For each wire, the number of messages that are joined, and the joined bytes."""

    def _view(self, length: int) -> Messages:
        view = object.__new__(Messages)
        view._items = self._items
        view._length = length
        view._authors = self._authors
        view._call_places = self._call_places
        view._repeats = self._repeats
        view._digests = self._digests
        view._joined = self._joined
        return view

    def _fork(self, items: tuple[Message, ...]) -> None:
        self._authors = self._authors[: self._length]
        places = self._call_places.copy()  # a copy, because another thread may be adding one
        for call_id, (index, _) in [*places.items()]:
            if index >= self._length:
                del places[call_id]
        self._call_places = places
        self._repeats = self._repeats[: self._length]
        self._digests = self._digests[: self._length]
        forms = self._joined.copy()  # a copy, because another thread may be adding one
        self._joined = {wire: form for wire, form in forms.items() if form[0] <= self._length}
        super()._fork(items)

    def joined(self, wire: str, render: Callable[[list[Message]], list[bytes]]) -> bytes:
        """All messages in one wire's form, separated by commas.

        `render` makes the pieces of the messages that the previous request did not have. It may add
        something after the results of a turn: if a request has more results of that turn, all
        messages are rendered again.
        """
        count, form = self._joined.get(wire, (0, b""))
        if not self._continues(count):
            count, form = 0, b""
        if count < self._length:
            pieces = render(self._items[count : self._length])
            form = b",".join([form, *pieces] if form else pieces)
            if len(form) <= _MOST_KEPT:
                self._joined[wire] = self._length, form
        return form

    def _continues(self, count: int) -> bool:
        """Whether the form of the first `count` messages is the beginning of this view's form."""
        if count > self._length:
            return False  # made for a longer view
        has_more_results = count < self._length and self._items[count].role == "tool"
        return not has_more_results

    @property
    def authors(self) -> frozenset[Author]:
        """The authors of the messages; those with nothing that only their author can read aside."""
        authors, length = self._authors, self._length
        while (index := len(authors)) < length:
            known = authors[index - 1] if index else frozenset[Author]()
            author = self._items[index].author
            if author is not None and author not in known:
                known |= {author}
            # Assigned to its position, as the digests are.
            authors[index : index + 1] = [known]
        return authors[length - 1] if length else frozenset()

    @property
    def repeats_ids(self) -> bool:
        """Whether two calls have the same id."""
        repeats, length = self._repeats, self._length
        while (index := len(repeats)) < length:
            is_repeated = index > 0 and repeats[index - 1]
            for number, call in enumerate(self._items[index].tool_calls):
                place = index, number
                if call.id is not None and self._call_places.setdefault(call.id, place) != place:
                    is_repeated = True
            # Assigned to its position, as the digests are.
            repeats[index : index + 1] = [is_repeated]
        return length > 0 and repeats[length - 1]

    def has_call(self, call_id: str) -> bool:
        """Whether a call has this id."""
        _ = self.repeats_ids  # finds the places of all calls
        place = self._call_places.get(call_id)
        return place is not None and place[0] < self._length

    @property
    def digest(self) -> bytes:
        """SHA-256 chained over the rendered messages; each message is hashed once."""
        digests, length = self._digests, self._length
        while (index := len(digests)) < length:
            before = digests[index - 1] if index else b""
            digest = sha256(before + _full_json(self._items[index])).digest()
            # Assigned to its position, not appended: another thread may be computing the same one.
            digests[index : index + 1] = [digest]
        return digests[length - 1] if length else b""


def _full_json(message: Message) -> bytes:
    """A message as JSON, with the fields that the digest covers in addition to OpenAI's form."""
    if message.is_error or message.reasoning or message.extra:
        return message.json + json_bytes((message.is_error, message.reasoning, message.extra))
    return message.json
