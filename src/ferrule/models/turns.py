"""Conversations in the turns that a chat template accepts, learned from its refusals.

The templates of Gemma, Mistral and others require user and assistant to alternate, and some take no
system message. If a server refuses a request for that reason, adjacent messages of one role are
merged, and the request is sent again. The model then merges from the start.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ferrule.record import replace
from ferrule.values.conversation.message import Message, Messages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.errors import BadRequestError
    from ferrule.values.content.parts import Content
    from ferrule.values.conversation.exchange import Request

# The wording of templates (Gemma, Llama, Mistral), vLLM, llama.cpp, Anthropic on Bedrock,
# Perplexity and DeepSeek.
_ALTERNATION = (
    r"(?:roles?|messages?|turns?)[^.]{0,20} (?:must|should)(?: be)? (?:alternat|interleav)|roles must alternate|should alternate with"
    r"|(?:successive|consecutive) (?:user|assistant)|multiple \W?user\W? roles in a row|requests alternate between"
)
_NO_SYSTEM = (
    r"system (?:role|messages?|prompts?) (?:is |are )?(?:not|un) ?support|system role must|does(?: not|n't) support (?:the )?system"
    r"|only user and assistant roles are supported|developer instruction is not enabled"
)


def demands_alternation(error: BadRequestError) -> bool:
    """Whether a server refused messages because their roles do not alternate."""
    return re.search(_ALTERNATION, str(error), re.IGNORECASE) is not None


class Turns:
    """The demands of one model's template, as learned so far; copies of the model share them."""

    def __init__(self) -> None:
        self.merges = False
        """Whether adjacent messages of one role are merged."""
        self.folds = False
        """Whether the system message is put at the start of the first user message; implies `merges`."""

    def of(self, request: Request) -> Request:
        """The request in turns that the template accepts. Call it only if `merges`."""
        return request.following(Messages(self._turns(request.messages)))

    def learn(self, error: BadRequestError, request: Request, sent: Request) -> bool:
        """Learn from a refusal. Returns whether the request may now succeed in another form."""
        folds = re.search(_NO_SYSTEM, str(error), re.IGNORECASE) is not None
        if not folds and not demands_alternation(error):
            return False
        before = self.folds, self.merges
        self.folds, self.merges = self.folds or folds, True
        if len(self.of(request).messages) == len(sent.messages):
            self.folds, self.merges = before
            return False
        if before != (self.folds, self.merges):
            import logging  # late: few templates refuse

            log = logging.getLogger("ferrule.models")
            log.warning(
                "adjacent messages of one role are merged%s: %s",
                " with the system message" if self.folds else "",
                error,
            )
        return True

    def _turns(self, messages: Iterable[Message]) -> Iterable[Message]:
        turns: list[Message] = []
        for message in messages:
            last = turns[-1] if turns else None
            own = (
                replace(message, role="user")
                if self.folds and message.role == "system"
                else message
            )
            if (
                last is None
                or last.role != own.role
                or own.role == "tool"
                or last.tool_calls
                or own.tool_calls
            ):
                turns.append(own)
            else:
                turns[-1] = Message(own.role, _joined(last.content, own.content))
        return turns


def _joined(first: Content, second: Content) -> Content:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    from ferrule.values.content.parts import Text

    return tuple(
        [
            part
            for each in (first, second)
            for part in ((Text(text=each),) if isinstance(each, str) else each)
        ],
    )
