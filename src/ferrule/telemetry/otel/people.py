"""Questions, decisions, rules and answers that could not be used, as span events of the program around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule import events
from ferrule.encoding.encode import json_text
from ferrule.telemetry.otel import names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ferrule.events import Event
    from ferrule.telemetry.otel.content import ContentAttributes
    from ferrule.telemetry.otel.metrics import Metrics
    from ferrule.telemetry.otel.spans import Spans

ASKED = "asked_at"
"""What is kept with a run: when each of its open questions was asked."""
WAITS = "waits"
"""Kept with a run from its questions until it goes on: it is counted as one that waits."""


class PersonEvents:
    """Makes the span events. What was said, and by whom, is content."""

    def __init__(self, content: ContentAttributes | None) -> None:
        self._content = content
        self.metrics: Metrics | None = None
        self.receives: dict[type[Event], Callable[[Spans, Any], None]] = {
            events.QuestionAsked: self._question_asked, events.Decided: self._decided,
            events.RuleUsed: self._rule_used, events.AttemptFailed: self._attempt_failed,
        }  # fmt: skip

    def _add_event(
        self,
        spans: Spans,
        event: Event,
        name: str,
        attributes: Mapping[str, Any],
        **content: str,
    ) -> None:
        opened = spans.around(event)
        if opened is not None and opened.span.is_recording():
            texts = (
                {}
                if self._content is None
                else {
                    f"{name}.{key}": self._content.text(f"{name}.{key}", text)
                    for key, text in content.items()
                }
            )
            opened.span.add_event(
                name,
                {**attributes, **{key: text for key, text in texts.items() if text}},
            )

    def _question_asked(self, spans: Spans, event: events.QuestionAsked) -> None:
        question = event.question
        run = spans.programs.get((event.run_id, event.root_id))
        if run is not None:
            run.asked.setdefault(question.id, event.at)
            run.notes[ASKED], run.notes[WAITS] = json_text(run.asked), "1"
        about = {
            "ferrule.question.id": question.id,
            "ferrule.question.kind": question.kind,
            names.TOOL_NAME: question.call.name,
        }
        self._add_event(spans, event, "ferrule.question", about, text=question.text)

    def _decided(self, spans: Spans, event: events.Decided) -> None:
        decision = event.decision
        run = spans.programs.get((event.run_id, event.root_id))
        about: dict[str, Any] = {
            "ferrule.question.id": event.question.id, "ferrule.decision.kind": decision.kind,
            "ferrule.decision.via": decision.via.partition(":")[0],
        }  # fmt: skip
        asked_at = run.asked.pop(event.question.id, None) if run is not None else None
        if run is not None and asked_at is not None:
            run.notes[ASKED] = json_text(run.asked)
            about["ferrule.decision.waited_s"] = waited_s = max(
                0.0,
                (decision.at or event.at) - asked_at,
            )
            if self.metrics is not None:
                self.metrics.decided(event.question.kind, waited_s)
        self._add_event(spans, event, "ferrule.decision", about, by=decision.by, text=decision.text)

    def _rule_used(self, spans: Spans, event: events.RuleUsed) -> None:
        about = {"ferrule.rule.verdict": event.verdict, names.TOOL_NAME: event.call.name}
        self._add_event(spans, event, "ferrule.rule", about, text=event.rule)

    def _attempt_failed(self, spans: Spans, event: events.AttemptFailed) -> None:
        self._add_event(
            spans,
            event,
            "ferrule.attempt_failed",
            {names.ATTEMPT: event.attempt},
            reason=event.reason,
        )
