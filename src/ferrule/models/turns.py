"""The turns that a model's chat template accepts, learned from its refusals.

The templates of Gemma, Mistral and others require user and assistant to alternate, and some take no
system message. If a server refuses a request for that reason, adjacent messages of one role are
merged, and the request is sent again. The model then merges from the start.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ferrule.values.content.parts import Text
from ferrule.values.conversation.message import Message, Messages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.errors import BadRequestError
    from ferrule.values.content.parts import Content
    from ferrule.values.conversation.exchange import Request

_log = logging.getLogger("ferrule.models")

# The wording of templates (Gemma, Llama, Mistral), vLLM, llama.cpp, Anthropic on Bedrock,
# Perplexity and DeepSeek.
_ALTERNATION = re.compile(
    r"(?:roles?|messages?|turns?)[^.]{0,20} (?:must|should)(?: be)? (?:alternat|interleav)"
    r"|roles must alternate|should alternate with"
    r"|(?:successive|consecutive) (?:user|assistant)|multiple \W?user\W? roles in a row"
    r"|requests alternate between",
    re.IGNORECASE,
)
_NO_SYSTEM = re.compile(
    r"system (?:role|messages?|prompts?) (?:is |are )?(?:not|un) ?support|system role must"
    r"|does(?: not|n't) support (?:the )?system|only user and assistant roles are supported"
    r"|developer instruction is not enabled",
    re.IGNORECASE,
)


def demands_alternation(error: BadRequestError) -> bool:
    """Whether a server refused messages because their roles do not alternate."""
    return _ALTERNATION.search(str(error)) is not None


class Turns:
    """The demands of one model's template, as learned so far; copies of the model share them."""

    def __init__(self) -> None:
        self.merges = False
        """Whether adjacent messages of one role are merged."""
        self.folds = False
        """Whether the system message is put at the start of the first user message.

        Implies `merges`.
        """

    def accepted(self, request: Request) -> Request:
        """The request in turns that the template accepts."""
        if not self.merges:
            return request
        return request.following(Messages(self._merged(request.messages)))

    def learn(self, error: BadRequestError, request: Request, sent: Request) -> bool:
        """Learn from a refusal. Returns whether the request may now succeed in another form."""
        refuses_system = _NO_SYSTEM.search(str(error)) is not None
        if not refuses_system and not demands_alternation(error):
            return False
        before = self.folds, self.merges
        self.folds = self.folds or refuses_system
        self.merges = True
        if len(self.accepted(request).messages) == len(sent.messages):
            # Nothing was left to merge, so the refusal has another reason.
            self.folds, self.merges = before
            return False
        if before != (self.folds, self.merges):
            system_too = " with the system message" if self.folds else ""
            _log.warning("adjacent messages of one role are merged%s: %s", system_too, error)
        return True

    def _merged(self, messages: Iterable[Message]) -> list[Message]:
        turns: list[Message] = []
        for message in messages:
            if self.folds and message.role == "system":
                message = replace(message, role="user")  # noqa: PLW2901  the one that is sent
            if turns and _can_merge(turns[-1], message):
                content = _joined(turns[-1].content, message.content)
                turns[-1] = Message(message.role, content)
            else:
                turns.append(message)
        return turns


def _can_merge(last: Message, message: Message) -> bool:
    """Whether two messages may become one: calls and results stay as they are."""
    if last.role != message.role or message.role == "tool":
        return False
    return not last.tool_calls and not message.tool_calls


def _joined(first: Content, second: Content) -> Content:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    if isinstance(first, str):
        first = (Text(text=first),)
    if isinstance(second, str):
        second = (Text(text=second),)
    return (*first, *second)
