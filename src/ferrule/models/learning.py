"""Models behind a server that may refuse a request's form, and what they learn from a refusal.

Servers of one protocol differ in details that no list of providers has. If a server refuses such a
detail with a 400 that names it, the request is sent again in the other form, once, and the model
keeps to that form:

- messages whose roles do not alternate (`Turns`);
- reasoning of earlier answers: opaque blocks, which are then left out, and the field
  `reasoning_content`, which some servers refuse and others require;
- `max_tokens`, which some call `max_completion_tokens`, and the reverse;
- `stream_options`;
- tools that are added or removed within the conversation.

Opaque blocks (`Message.extra`: encrypted reasoning, signed thoughts) can be read only by their
author, so a request to any other host, account or model leaves them out from the start. What people
can read in them stays in the message: its text, its calls and, as text, its reasoning.
"""

from __future__ import annotations

import logging
import re
from contextlib import aclosing
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from msgspec.structs import replace

from ferrule.encoding.encode import json_bytes
from ferrule.errors import BadRequestError
from ferrule.models.model import BaseLM
from ferrule.models.providers import Dialect
from ferrule.models.setting_names import check_attribute
from ferrule.models.turns import Turns
from ferrule.values.conversation.exchange import Response
from ferrule.values.conversation.message import AUTHOR, Messages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

    from ferrule.values.calls.call import ToolCall
    from ferrule.values.conversation.exchange import Delta, Request
    from ferrule.values.conversation.message import Author, Message

_log = logging.getLogger("ferrule.models")

_REFUSES_BLOCKS = re.compile(
    # OpenAI: "The encrypted content ... could not be verified", "Item 'rs_1' of type 'reasoning'
    # was provided without its required following item", "Item with id 'rs_1' not found".
    r"encrypted[ _]content|of type .reasoning|\brs_\w+"
    # Anthropic: "Invalid `signature` in `thinking` block", "... blocks cannot be modified".
    r"|signature|thinking\W{1,3}blocks?"
    # Gemini and OpenRouter, by the names of their fields.
    r"|thought_?signature|extra_content|reasoning_details",
    re.IGNORECASE,
)
_REFUSES_ADDITIONS = re.compile(
    # Anthropic names the block, the beta or the role, OpenAI the item or "Invalid 'input': value
    # did not match any expected variant".
    r"tool_(?:addition|removal)|additional_tools|inline-tools|anthropic-beta|\brole\b"
    r"|Invalid 'input",
    re.IGNORECASE,
)
_REASONING_FIELD = "reasoning_content"
_IS_MISSING = re.compile(
    r"missing|required|must be|must (?:also )?(?:have|include|contain|provide)"
)
"""DeepSeek: "must be passed back"; Kimi: "is missing in assistant tool call message"."""
_IS_UNKNOWN = re.compile(
    r"(?:not|n't|un) ?support|unrecogni[sz]ed|unknown|unexpected|(?:not|n't) (?:permitted|allowed)"
    r"|extra (?:inputs?|fields?)|no such|does(?: not|n't) exist",
    re.IGNORECASE,
)
_LIMITS = (("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens"))
"""Both names of the limit of an answer, each with the other."""


class LearningLM(BaseLM):
    """Base class of models that learn from what their server refuses.

    A subclass sends requests in `_complete`, `_acomplete`, `_stream` and `_astream`. They get each
    request in the form that the server accepts, as far as it is known.
    """

    _learned: Learned

    def __setattr__(self, name: str, value: Any) -> None:
        check_attribute(self, name)
        object.__setattr__(self, name, value)

    def author(self) -> Author | None:
        """Who writes the answers, for the data that only their author can read; None if unknown."""
        return None

    def complete(self, request: Request) -> Response:
        """One answer."""
        sent = self._learned.accepted(request, self)
        try:
            return self._signed(self._complete(sent))
        except BadRequestError as error:
            if not self._learned.learn(error, request, sent, self):
                raise
        return self.complete(request)

    async def acomplete(self, request: Request) -> Response:
        """One answer, without blocking the loop; cancelling closes the request."""
        sent = self._learned.accepted(request, self)
        try:
            return self._signed(await self._acomplete(sent))
        except BadRequestError as error:
            if not self._learned.learn(error, request, sent, self):
                raise
        return await self.acomplete(request)

    def stream(self, request: Request) -> Iterator[Delta | Response]:
        """The answer piece by piece; leaving the loop closes the request."""
        sent = self._learned.accepted(request, self)
        has_begun = False
        try:
            for item in self._stream(sent):
                has_begun = True
                yield self._signed(item)
        except BadRequestError as error:
            # The pieces of an answer that has begun cannot be taken back.
            if has_begun or not self._learned.learn(error, request, sent, self):
                raise
            yield from self.stream(request)

    async def astream(self, request: Request) -> AsyncGenerator[Delta | Response]:
        """The answer piece by piece.

        Leaving the loop and closing the generator, or cancelling, closes the request.
        """
        sent = self._learned.accepted(request, self)
        has_begun = False
        try:
            async with aclosing(self._astream(sent)) as items:
                async for item in items:
                    has_begun = True
                    yield self._signed(item)
        except BadRequestError as error:
            if has_begun or not self._learned.learn(error, request, sent, self):
                raise
            async with aclosing(self.astream(request)) as items:
                async for item in items:
                    yield item

    def _complete(self, request: Request) -> Response:
        raise NotImplementedError

    async def _acomplete(self, request: Request) -> Response:
        raise NotImplementedError

    def _stream(self, request: Request) -> Iterator[Delta | Response]:
        raise NotImplementedError

    def _astream(self, request: Request) -> AsyncGenerator[Delta | Response]:
        raise NotImplementedError

    def _signed(self, item: Any) -> Any:
        """An item of an answer; the whole answer says who wrote it."""
        if isinstance(item, Response):
            return signed(item, self.author())
        return item


def signed(response: Response, author: Author | None) -> Response:
    """The answer with its author, if it has data that only the author can read."""
    if author is None or not response.extra:
        return response
    return replace(response, extra={**response.extra, AUTHOR: to_builtins(author)})


class Learned:
    """What one model's server accepts, as learned so far; copies of the model share it."""

    def __init__(
        self, dialect: Dialect | None = None, *, send_reasoning: bool | None = None
    ) -> None:
        self.turns = Turns()
        self.dialect = dialect or Dialect()
        if send_reasoning is not None:
            mode = "always" if send_reasoning else "never"
            self.dialect = replace(self.dialect, reasoning=mode)
        self._send_reasoning = send_reasoning
        self._refused: set[bytes] = set()
        """Digests of the blocks that were refused."""
        self._has_learned_field = False
        self._has_renamed_limit = False

    def accepted(self, request: Request, lm: LearningLM) -> Request:
        """The request in the form that the server accepts."""
        sent = self.turns.accepted(self._readable(_with_unique_ids(request), lm))
        if sent.tool_changes and len(sent.messages) != len(request.messages):
            # A change names the number of messages before it, which is now another one.
            return replace(sent, tool_changes=(), first_tools=None)
        return sent

    def learn(
        self, error: BadRequestError, request: Request, sent: Request, lm: LearningLM
    ) -> bool:
        """Learn from a refusal. Returns whether the request may now succeed in another form."""
        text = str(error)
        readable = self._readable(_with_unique_ids(request), lm)
        if error.status is None:  # an error of a chat template, or not one of the server
            return self.turns.learn(error, readable, sent)
        if sent.tool_changes and self.dialect.tool_additions and _REFUSES_ADDITIONS.search(text):
            self.dialect = replace(self.dialect, tool_additions=False)
            return True
        if _REASONING_FIELD in text:
            return self._learn_reasoning_field(text, sent)
        if _REFUSES_BLOCKS.search(text) and self._refuse_blocks(sent):
            _log.warning(
                "%s: reasoning of earlier answers is no longer sent, because it was refused "
                "(`send_reasoning=False` leaves it out from the start): %s",
                lm.name,
                error,
            )
            return True
        if self._learn_limit(text, {**lm.settings, **request.settings}):
            return True
        if "stream_options" in text and self.dialect.stream_usage:
            self.dialect = replace(self.dialect, stream_usage=False)
            return True
        return self.turns.learn(error, readable, sent)

    # -- reasoning

    def _readable(self, request: Request, lm: LearningLM) -> Request:
        """The request without the blocks that the server cannot read, or has refused."""
        # In most conversations, all blocks can be read. This is known without a look at each
        # message, so that a step costs the same in a long conversation.
        if not self._refused:
            authors = request.messages.authors
            if self._send_reasoning is True:
                return request
            if self._send_reasoning is None and (
                not authors or authors == frozenset([lm.author()])
            ):
                return request
        author = lm.author()
        messages: list[Message] = []
        for message in request.messages:
            if message.extra and self._is_foreign(message, author):
                messages.append(message.without_extra)
            else:
                messages.append(message)
        return request.following(Messages(messages))

    def _is_foreign(self, message: Message, author: Author | None) -> bool:
        if self._send_reasoning is False or _digest_of(message) in self._refused:
            return True
        if self._send_reasoning is True or message.author is None:
            return False
        return message.author != author

    def _refuse_blocks(self, sent: Request) -> bool:
        """Remember the blocks of a request as refused. Returns whether there are any."""
        blocks = {_digest_of(message) for message in sent.messages if message.extra}
        self._refused |= blocks
        return bool(blocks)

    def _learn_reasoning_field(self, text: str, sent: Request) -> bool:
        """Learn whether every call needs its reasoning as text, or none may have it."""
        if not any(message.tool_calls for message in sent.messages):
            return False
        mode = "never"
        if _IS_MISSING.search(text) and not _IS_UNKNOWN.search(text):
            mode = "always"
        # Once in either direction: a server that refuses both forms would be asked forever.
        if self.dialect.reasoning == mode or self._has_learned_field:
            return False
        self._has_learned_field = True
        self.dialect = replace(self.dialect, reasoning=mode)
        return True

    # -- settings

    def _learn_limit(self, text: str, settings: Mapping[str, Any]) -> bool:
        """Learn the other name of the limit of an answer, if the server refuses this one."""
        if self._has_renamed_limit or not _IS_UNKNOWN.search(text):
            return False
        names = self.dialect.names
        sent = {names.get(name, name) for name, value in settings.items() if value is not None}
        for name, other in _LIMITS:
            if name in sent and re.search(rf"\b{name}\b", text):
                self.dialect = replace(self.dialect, names={**names, name: other, other: other})
                self._has_renamed_limit = True
                return True
        return False


def _with_unique_ids(request: Request) -> Request:
    """The request with a different id for every call.

    A run gives its calls unique ids, but a history may hold those of several runs. Providers refuse
    an id that is repeated, or give the result of one call to the other.
    """
    if not request.messages.repeats_ids:
        return request
    used: set[str] = set()
    open_ids: dict[str, list[str]] = {}
    """By the original id, the new ids of the latest calls, in the order of their results."""
    messages: list[Message] = []
    for message in request.messages:
        if message.tool_calls:
            messages.append(_with_new_ids(message, used, open_ids))
        elif message.tool_call_id in open_ids:
            new_ids = open_ids[message.tool_call_id]
            new_id = new_ids[0]
            if len(new_ids) > 1:  # the last one stays, for a result that is repeated
                new_ids.pop(0)
            messages.append(replace(message, tool_call_id=new_id))
        else:
            messages.append(message)
    return request.following(Messages(messages))


def _with_new_ids(message: Message, used: set[str], open_ids: dict[str, list[str]]) -> Message:
    calls: list[ToolCall] = []
    new_ids: dict[str, list[str]] = {}
    for call in message.tool_calls:
        if call.id is None:
            calls.append(call)
            continue
        new_id, count = call.id, 1
        while new_id in used:
            count += 1
            new_id = f"{call.id}_{count}"
        used.add(new_id)
        new_ids.setdefault(call.id, []).append(new_id)
        calls.append(call.with_id(new_id))
    open_ids.update(new_ids)
    return replace(message, tool_calls=tuple(calls))


def _digest_of(message: Message) -> bytes:
    return sha256(json_bytes(message.extra)).digest()
