"""`Entry`: one recorded answer in the journal of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from ferrule.approval.question import Decision
from ferrule.values.calls.secrets import Secrets
from ferrule.values.conversation.exchange import Request, Response
from ferrule.values.masked import masked_response

if TYPE_CHECKING:
    from ferrule.approval.question import Question

EntryKind = Literal[
    "model", "failure", "limit", "begun", "result", "decision", "once", "spent", "migrated"
]


class Entry(Struct):
    """One line of a journal: where in the program (`slot`) something was asked, and the answer."""

    slot: str
    kind: EntryKind
    question: str | Request
    """The digest of the question.

    Or a model request, whose digest is computed when a store or a replay needs it: it covers the
    whole conversation."""
    value: Any = None
    """The answer: `Response`, the error itself, `ToolResult`, `Decision`, or any JSON value.

    An entry of the kind `spent` is not an answer: it says what was spent at its slot besides the
    answers of models (`spending.py`)."""

    secrets: Secrets = field(default_factory=dict[str, Any])
    """By tool, the arguments that `shown` masks in the answer of a model, or in an edit."""

    def shown(self) -> Entry:
        """The entry as people see it: with stars for secrets."""
        value = self.value
        if not self.secrets:
            return self
        if isinstance(value, Response):
            return replace(self, value=masked_response(value, self.secrets))
        if isinstance(value, Decision):
            names = [name for names in self.secrets.values() for name in names]
            return replace(self, value=value.masked(names))
        return self

    @property
    def digest(self) -> str:
        """A digest of the question: equal questions have equal digests.

        The digest of a model request is recorded, but not compared.
        """
        if not isinstance(self.question, str):
            self.question = self.question.digest
        return self.question

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self._whole() == other._whole()

    __hash__ = None  # pyright: ignore[reportAssignmentType]  mutable and compared by content

    def __repr__(self) -> str:
        return f"Entry{self._whole()!r}"

    def _whole(self) -> tuple[str, EntryKind, str, Any]:
        return self.slot, self.kind, self.digest, self.value


def secrets_of(question: Question) -> Secrets:
    """The secrets of an entry with the decision on a question: an edit may have some."""
    if not question.secrets:
        return {}
    return {question.call.name: question.secrets}


Sink = Callable[[Entry], None]
"""Makes one entry durable before it returns.

An optional `async def later(entry)` does the same without blocking the loop. If cancelled, it
raises the cancellation only when the write has ended; a write that failed is its cause."""
