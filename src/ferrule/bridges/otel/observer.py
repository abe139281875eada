"""`OTel`: an observer that makes OpenTelemetry spans and metrics of a run's events.

In: events. Out: `invoke_agent`, `chat` and `execute_tool` spans by the GenAI conventions (`names.py`), each current while its work
executes. Nothing is patched, and a replay sends no events. Each segment of a run, from rest to rest, is a span with links to earlier ones.
"""

from __future__ import annotations

import json
from math import nan
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from ferrule.bridges.otel import names
from ferrule.bridges.otel.api import load_api
from ferrule.bridges.otel.attributes import (
    about_answer,
    about_model,
    about_name,
    about_request,
    about_tool,
    about_usage,
    error_of_result,
    error_type,
)
from ferrule.bridges.otel.content import ContentAttributes
from ferrule.bridges.otel.metrics import Metrics
from ferrule.bridges.otel.options import captures, is_latest, one_of
from ferrule.bridges.otel.spans import OpenSpan, Spans, agent_name
from ferrule.settings import setting
from ferrule.values.encoding.encode import json_text
from ferrule.values.run import event as events

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ferrule.values.run.event import Event

_FIRST, _LAST, _STATE, _COUNT, _ASKED = "first_traceparent", "traceparent", "tracestate", "segment", "asked_at"
"""What is kept with a run: the contexts of its first and its last segment, how many there were, and since when it waits."""


class OTel:
    """Sends a run's spans and metrics to OpenTelemetry: `configure(callbacks=[OTel()])`. Needs `ferrule[otel]`; the SDK is yours.

    Args:
        tracer_provider: By default the global one when the first run starts; the same for `meter_provider`.
        meter_provider: Where the metrics go.
        content: Whether spans hold messages, arguments, results, reasons and the names of persons. None reads
            `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`; without it, no.
        messages: With content: `"new"` for the messages that no earlier span of the run has, `"all"` for the whole request each time.
        redact: With content: called last with what a value is (its attribute) and the value; returns what is sent. If it raises, the value
            is left out.
        baggage: Whether MCP servers are sent the baggage of the caller.
        names: `"1.41.0"` or `"latest"`, see docs/observability.md. None reads `OTEL_SEMCONV_STABILITY_OPT_IN`.

    Raises:
        ConfigurationError: `opentelemetry-api` is not installed, or an argument is wrong.

    """

    def __init__(
        self, *, tracer_provider: Any = None, meter_provider: Any = None, content: bool | None = None,
        messages: Literal["new", "all"] = "new", redact: Callable[[str, Any], Any] | None = None, baggage: bool = False,
        names: Literal["1.41.0", "latest"] | None = None,
    ) -> None:  # fmt: skip
        self._api = load_api()
        self._providers = tracer_provider, meter_provider
        is_whole = one_of("messages", messages, ("new", "all")) == "all"
        self._content = ContentAttributes(redact, is_whole=is_whole) if captures(content) else None
        self._latest = is_latest(names)
        self._sends_baggage = baggage
        self._spans: Spans | None = None
        self._metrics: Metrics | None = None
        self._is_set_up = False
        self._models: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
        self._programs: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()
        self._on: dict[type[Event], Callable[[Spans, Any], None]] = {
            events.RunStarted: self._program_started, events.RunFinished: self._program_finished,
            events.ModelCalled: self._model_called, events.ModelAnswered: self._model_answered,
            events.CallStarted: self._call_started, events.CallFinished: self._call_finished,
            events.QuestionAsked: self._question_asked, events.Decided: self._decided,
            events.RuleUsed: self._rule_used, events.AttemptFailed: self._attempt_failed,
            **dict.fromkeys((events.TextDelta, events.FieldDelta, events.ThoughtDelta, events.CallDelta), self._delta),
        }  # fmt: skip

    wants_details = False
    """Events of an adapter's work are not needed, and not made for this observer."""

    @property
    def is_idle(self) -> bool:
        """Whether there is neither an SDK for spans nor one for metrics: then runs are not observed."""
        return (self._spans if self._is_set_up else self._set_up()) is None

    def __call__(self, event: Event) -> None:
        """Receive one event."""
        work = self._on.get(type(event))
        if work is not None:
            spans = self._spans if self._is_set_up else self._set_up()
            if spans is not None:
                work(spans, event)

    def _set_up(self) -> Spans | None:
        """Take the providers. Without an SDK there is nothing to do."""
        api, (tracers, meters) = self._api, self._providers
        tracers, meters = tracers or api.get_tracer_provider(), meters or api.get_meter_provider()
        if isinstance(tracers, api.no_tracers) and isinstance(meters, api.no_meters):
            self._is_set_up = True
            return None
        from importlib.metadata import version

        if not isinstance(meters, api.no_meters):
            self._metrics = Metrics(meters.get_meter("ferrule", version("ferrule"), names.SCHEMA_URL), latest=self._latest)
        self._spans = Spans(api, tracers.get_tracer("ferrule", version("ferrule"), names.SCHEMA_URL))
        self._is_set_up = True
        return self._spans

    # -- programs ------------------------------------------------------------------------------------------------

    def open_run(self, event: events.RunStarted, notes: dict[str, str]) -> None:
        """A run begins, or goes on: in a new span, linked to the first one and the last one of the run."""
        spans = self._spans if self._is_set_up else self._set_up()
        if spans is None:
            return
        segment = int(notes.get(_COUNT, "0")) + 1
        opened = self._open_program(spans, event, self._links(notes), {names.RUN_SEGMENT: segment})
        opened.notes = notes
        opened.asked = json.loads(notes.get(_ASKED, "{}"))
        if opened.asked and self._metrics is not None:
            self._metrics.waits(-1)
        found: dict[str, str] = {}
        self._api.inject(found, opened.context)
        if _LAST in found:
            notes.pop(_STATE, None)
            notes.update(found)
            notes.setdefault(_FIRST, found[_LAST])
            notes[_COUNT] = str(segment)

    def _links(self, notes: Mapping[str, str]) -> list[Any]:
        made: list[Any] = []
        for parent in dict.fromkeys(notes[key] for key in (_LAST, _FIRST) if key in notes):
            carrier = {"traceparent": parent, **({_STATE: notes[_STATE]} if parent == notes.get(_LAST) and _STATE in notes else {})}
            made.append(self._api.Link(self._api.span_context(carrier)))
        return made

    def _program_started(self, spans: Spans, event: events.RunStarted) -> None:
        if (event.run_id, event.span_id) not in spans.programs:  # else `open_run` opened it
            self._open_program(spans, event)

    def _open_program(self, spans: Spans, event: Event, links: Any = None, more: Mapping[str, Any] | None = None) -> OpenSpan:
        program: Any = getattr(event, "program", None)
        key = event.run_id, event.span_id
        name = agent_name(event.path.rpartition("/")[2]) if event.path else program.name
        opened = OpenSpan("program", name, key, event.depth, spans.here if not event.depth else spans.around(event))
        attributes = {names.OPERATION: "invoke_agent", names.AGENT_NAME: name, names.RUN_ID: event.run_id, **(more or {})}
        conversation = setting("extra").get("conversation_id")
        if conversation is not None:
            attributes[names.CONVERSATION_ID] = str(conversation)
        found = spans.open(opened, f"invoke_agent {name}", attributes, links=links, is_current=True)
        if found.span.is_recording():
            found.span.set_attributes(self._about_program(program))
        return found

    def _about_program(self, program: Any) -> dict[str, str]:
        found = self._programs.get(program)
        if found is None:  # once: it takes longer than many steps
            pairs = ((names.AGENT_ID, "fingerprint"), (names.AGENT_VERSION, "version"))
            found = {name: value for name, of in pairs if isinstance(value := getattr(program, of, None), str)}
            self._programs[program] = found
        return found

    def _program_finished(self, spans: Spans, event: events.RunFinished) -> None:
        opened = spans.programs.get((event.run_id, event.span_id))
        if opened is None:
            return
        is_waiting = event.status == "waiting"
        error = None if event.error is None or is_waiting else error_type(event.error)
        span = opened.span
        if span.is_recording():
            span.set_attribute(names.RUN_STATUS, event.status)
            span.set_attributes(about_usage(opened.spent))
            self._fail(span, error, event.error)
        if self._metrics is not None:
            self._metrics.program(opened.seconds, opened.name, error)
            if is_waiting and not event.depth:
                self._metrics.waits(1)
        if opened.around is not None and opened.spent:
            _add(opened.around.program, opened.spent)
        spans.close(opened, self._cut_off)

    def _cut_off(self, opened: OpenSpan) -> None:
        """End what never told its end: a call that was cancelled, or waits inside."""
        if opened.kind == "tool" and self._metrics is not None:
            self._metrics.tool(opened.seconds, opened.facts, None)

    def _fail(self, span: Any, error: str | None, raised: BaseException | None = None, text: str = "") -> None:
        if error is None:
            return
        span.set_attribute(names.ERROR_TYPE, error)
        about = None if self._content is None else self._content.text("error", text or str(raised))
        span.set_status(self._api.ERROR, about)

    # -- models --------------------------------------------------------------------------------------------------

    def _model_called(self, spans: Spans, event: events.ModelCalled) -> None:
        around = spans.around(event)
        if around is not None and around.is_muted and self._metrics is None:
            return
        facts = self._about_model(event.lm)
        opened = OpenSpan("model", "", (event.run_id, ""), event.depth, around)
        found = spans.open(opened, f"chat {facts[names.REQUEST_MODEL]}", facts, is_client=True, is_current=True)
        span = found.span
        if span.is_recording():
            about = about_request(event.lm, event.request)
            if event.attempt != 1:
                about[names.ATTEMPT] = event.attempt
            if self._content is not None:
                program = found.program
                content, program.seen = self._content.of_request(event.request, program.seen)
                about |= content
            span.set_attributes(about)

    def _about_model(self, lm: Any) -> dict[str, Any]:
        if not _is_kept(lm):
            return about_model(lm)
        found = self._models.get(lm)
        if found is None:
            found = self._models[lm] = about_model(lm)
        return found

    def _delta(self, spans: Spans, _: Event) -> None:
        opened = spans.here
        if opened is not None and opened.kind == "model" and opened.first_chunk_s is None:
            opened.first_chunk_s = opened.seconds

    def _model_answered(self, spans: Spans, event: events.ModelAnswered) -> None:
        opened = spans.here
        if opened is None or opened.kind != "model" or opened.is_over:
            return
        response, error = event.response, None if event.error is None else error_type(event.error)
        facts = opened.facts
        if response is not None:
            if response.answered_by is not None:  # one of several models
                facts = {**facts, **about_name(response.answered_by)}
            if response.model is not None:
                facts = {**facts, names.RESPONSE_MODEL: response.model}
            usage = response.usage
            _add(
                opened.program,
                [usage.input_tokens, usage.output_tokens, usage.cached_tokens, nan if response.cost is None else response.cost],
            )
        if opened.span.is_recording():
            if response is not None:
                about = {**facts, **about_answer(response)} if facts is not opened.facts else about_answer(response)
                if self._content is not None:
                    about |= self._content.of_response(response)
                opened.span.set_attributes(about)
            self._fail(opened.span, error, event.error)
        if self._metrics is not None:
            self._metrics.model(opened.seconds, opened.first_chunk_s, facts, None if response is None else response.usage, error)
        spans.close(opened)

    # -- tools ---------------------------------------------------------------------------------------------------

    def _call_started(self, spans: Spans, event: events.CallStarted) -> None:
        around = spans.around(event)
        if around is not None and around.is_muted and self._metrics is None:
            return
        call, tool = event.call, event.tool
        attributes = about_tool(call.name, tool)
        opened = OpenSpan("tool", call.name, (event.run_id, ""), event.depth, around)
        is_remote = names.MCP_METHOD in attributes
        prepare = self._api.without_baggage if is_remote and not self._sends_baggage else None
        found = spans.open(opened, f"execute_tool {call.name}", attributes, is_current=True, prepare=prepare)
        span = found.span
        if span.is_recording():
            about = {names.TOOL_CALL_ID: call.id or "", names.SLOT: event.path.rpartition("/")[2]}
            if tool is not None:
                about[names.TOOL_DESCRIPTION], about[names.EFFECT] = tool.declaration["function"].get("description", ""), tool.effect
            if self._content is not None:
                about |= self._content.value(names.TOOL_ARGUMENTS, call.args)
            span.set_attributes(about)

    def _call_finished(self, spans: Spans, event: events.CallFinished) -> None:
        opened = spans.here
        if opened is None or opened.kind != "tool" or opened.is_over or opened.name != event.call.name:
            return
        result = event.result
        error = error_of_result(result)
        if opened.span.is_recording():
            if self._content is not None:
                opened.span.set_attributes(self._content.of_result(result))
            self._fail(opened.span, error, result.error, str(result.content))
        if self._metrics is not None:
            self._metrics.tool(opened.seconds, opened.facts, error)
        spans.close(opened)

    # -- people and rules: events of the span around them --------------------------------------------------------

    def _add_event(self, spans: Spans, event: Event, name: str, attributes: Mapping[str, Any], **content: str) -> None:
        opened = spans.around(event)
        if opened is not None and opened.span.is_recording():
            texts = (
                {}
                if self._content is None
                else {f"{name}.{key}": self._content.text(f"{name}.{key}", text) for key, text in content.items()}
            )
            opened.span.add_event(name, {**attributes, **{key: text for key, text in texts.items() if text}})

    def _question_asked(self, spans: Spans, event: events.QuestionAsked) -> None:
        question = event.question
        run = spans.programs.get((event.run_id, event.root_id))
        if run is not None:
            run.asked.setdefault(question.id, event.at)
            run.notes[_ASKED] = json_text(run.asked)
        about = {"ferrule.question.id": question.id, "ferrule.question.kind": question.kind, names.TOOL_NAME: question.call.name}
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
            run.notes[_ASKED] = json_text(run.asked)
            about["ferrule.decision.waited_s"] = waited_s = max(0.0, (decision.at or event.at) - asked_at)
            if self._metrics is not None:
                self._metrics.decided(event.question.kind, waited_s)
        self._add_event(spans, event, "ferrule.decision", about, by=decision.by, text=decision.text)

    def _rule_used(self, spans: Spans, event: events.RuleUsed) -> None:
        self._add_event(
            spans, event, "ferrule.rule", {"ferrule.rule.verdict": event.verdict, names.TOOL_NAME: event.call.name}, text=event.rule
        )

    def _attempt_failed(self, spans: Spans, event: events.AttemptFailed) -> None:
        self._add_event(spans, event, "ferrule.attempt_failed", {names.ATTEMPT: event.attempt}, reason=event.reason)


def _add(program: OpenSpan, spent: list[float]) -> None:
    if program.kind == "program":
        program.spent = [a + b for a, b in zip(program.spent, spent, strict=True)] if program.spent else list(spent)


def _is_kept(lm: Any) -> bool:
    """Whether a model can be a weak key."""
    return getattr(lm, "__hash__", None) is not None and hasattr(lm, "__weakref__")
