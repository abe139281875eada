"""Questions, decisions, rules and unusable answers, as span events of the program around them."""

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
"""The note of a run that says when each of its open questions was asked."""
WAITS = "waits"
"""The note of a run that waits for a person: it is in the count of those that wait."""


class PersonEvents:
    """Makes the span events. What people said, and who they are, is content."""

    def __init__(self, content: ContentAttributes | None) -> None:
        self._content = content
        self.metrics: Metrics | None = None
        self.receives: dict[type[Event], Callable[[Spans, Any], None]] = {
            events.QuestionAsked: self._question_asked,
            events.Decided: self._decided,
            events.RuleUsed: self._rule_used,
            events.AttemptFailed: self._attempt_failed,
        }

    def _question_asked(self, spans: Spans, event: events.QuestionAsked) -> None:
        question = event.question
        run = spans.programs.get((event.run_id, event.root_id))
        if run is not None:
            run.asked.setdefault(question.id, event.at)
            run.notes[ASKED] = json_text(run.asked)
            run.notes[WAITS] = "1"
        attributes = {
            "ferrule.question.id": question.id,
            "ferrule.question.kind": question.kind,
            names.TOOL_NAME: question.call.name,
        }
        self._add_event(spans, event, "ferrule.question", attributes, text=question.text)

    def _decided(self, spans: Spans, event: events.Decided) -> None:
        decision = event.decision
        attributes: dict[str, Any] = {
            "ferrule.question.id": event.question.id,
            "ferrule.decision.kind": decision.kind,
            "ferrule.decision.via": decision.via.partition(":")[0],
        }
        run = spans.programs.get((event.run_id, event.root_id))
        if run is not None and event.question.id in run.asked:
            asked_at = run.asked.pop(event.question.id)
            run.notes[ASKED] = json_text(run.asked)
            waited_s = max(0.0, (decision.at or event.at) - asked_at)
            attributes["ferrule.decision.waited_s"] = waited_s
            if self.metrics is not None:
                self.metrics.decided(event.question.kind, waited_s)
        self._add_event(
            spans, event, "ferrule.decision", attributes, by=decision.by, text=decision.text
        )

    def _rule_used(self, spans: Spans, event: events.RuleUsed) -> None:
        attributes = {"ferrule.rule.verdict": event.verdict, names.TOOL_NAME: event.call.name}
        self._add_event(spans, event, "ferrule.rule", attributes, text=event.rule)

    def _attempt_failed(self, spans: Spans, event: events.AttemptFailed) -> None:
        attributes = {names.ATTEMPT: event.attempt}
        self._add_event(spans, event, "ferrule.attempt_failed", attributes, reason=event.reason)

    def _add_event(
        self, spans: Spans, event: Event, name: str, attributes: Mapping[str, Any], **content: str
    ) -> None:
        opened = spans.parent_of(event)
        if opened is None or not opened.span.is_recording():
            return
        texts: dict[str, str] = {}
        if self._content is not None:
            for key, value in content.items():
                text = self._content.text(f"{name}.{key}", value)
                if text:
                    texts[f"{name}.{key}"] = text
        opened.span.add_event(name, {**attributes, **texts})
