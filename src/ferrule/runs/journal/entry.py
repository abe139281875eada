"""`Entry`: one recorded answer in the journal of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from ferrule.values.conversation.exchange import Request

EntryKind = Literal["model", "failure", "limit", "begun", "result", "decision", "once", "migrated"]


class Entry(Struct):
    """One line of a journal: where in the program (`slot`) something was asked, and the answer."""

    slot: str
    kind: EntryKind
    question: str | Request
    """The digest of the question.

    Or a model request, whose digest is computed when a store or a replay needs it: it covers the
    whole conversation."""
    value: Any = None
    """The answer: `Response`, the error itself, `ToolResult`, `Decision`, or any JSON value."""

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


Sink = Callable[[Entry], None]
"""Makes one entry durable before it returns.

An optional `async def later(entry)` does the same without blocking the loop. If cancelled, it
raises the cancellation only when the write has ended; a write that failed is its cause."""
