"""What a person is asked, and what they decide.  (Floor 2.)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ferrule.values.record import Record, field

if TYPE_CHECKING:
    from ferrule.values.call import ToolCall


class Question(Record):
    """What a person is asked. `id` is given by the run."""

    kind: Literal["confirm", "clarify"]
    text: str
    call: ToolCall
    """The call with the very arguments that will run."""
    id: str = ""

    def approve(self, /, **edits: Any) -> Decision:
        """Run the call; with edits, run it with these arguments changed."""
        return Decision(self.id, "edit", args=edits) if edits else Decision(self.id, "approve")

    def deny(self, reason: str = "") -> Decision:
        """Do not run the call; the model is told, with the reason."""
        return Decision(self.id, "deny", text=reason)

    def reply(self, text: str) -> Decision:
        """Do not run the call; the model gets this text as what came of it."""
        return Decision(self.id, "reply", text=text)


class Decision(Record):
    """A person's answer to one question."""

    question_id: str
    kind: Literal["approve", "edit", "deny", "reply"]
    text: str = ""
    args: dict[str, Any] = field(default_factory=dict[str, Any])
    """The changed arguments of an edit, laid over those that were shown."""
