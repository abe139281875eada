"""The inbox: questions as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferrule.approval.call_view import shortened
from ferrule.encoding.safe_text import one_line

if TYPE_CHECKING:
    from ferrule.approval.question import Question

_MOST_WORDS = 300


def brief_of(question: Question) -> str:
    """A question on one line, shortened: enough to know it again, not to decide on it."""
    if question.kind in {"clarify", "input"}:
        return one_line(question.text, _MOST_WORDS)
    args: list[str] = []
    for name, value in question.call.args.items():
        text = value if isinstance(value, str) else shortened(value)
        args.append(f"{name} {text}")
    return one_line(f"{question.call.name}: {', '.join(args)}", _MOST_WORDS)
