"""`OTel`: an observer that makes OpenTelemetry spans and metrics of a run's events.

In: events. Out: `invoke_agent`, `chat` and `execute_tool` spans by the GenAI conventions
(`names.py`), each current while its work executes. Nothing is patched, and a replay sends no
events. Each segment of a run, from rest to rest, is a span with links to earlier ones.
"""

from __future__ import annotations

import json
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from ferrule import events
from ferrule.errors import checks_keywords
from ferrule.settings import setting
from ferrule.telemetry.otel import names
from ferrule.telemetry.otel.api import load_api, own_version
from ferrule.telemetry.otel.attributes import (
    about_answer,
    about_model,
    about_request,
    about_session,
    about_tool,
    about_usage,
    error_of_result,
    error_type,
)
from ferrule.telemetry.otel.content import ContentAttributes, OperationDetails
from ferrule.telemetry.otel.known import Known
from ferrule.telemetry.otel.metrics import Metrics
from ferrule.telemetry.otel.options import captures, is_latest, one_of
from ferrule.telemetry.otel.people import ASKED, WAITS, PersonEvents
from ferrule.telemetry.otel.spans import OpenSpan, Spans, agent_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ferrule.events import Event

_FIRST, _LAST, _STATE, _COUNT = "first_traceparent", "traceparent", "tracestate", "segment"
"""What is kept with a run: the contexts of its first and its last segment, and how many there were."""


class OTel:
    """Sends a run's spans and metrics to OpenTelemetry: `configure(callbacks=[OTel()])`. Needs `ferrule[otel]`; the SDK is yours.

    Args:
        tracer_provider: By default the global one, as of the first run that starts with an SDK; the
        same for the other providers. meter_provider: Where the metrics go. logger_provider: Where
        events with content go. content: Whether messages, arguments, results, reasons and people's
        names are sent: on spans (True, `"span_only"`), in an event
            of each model call (`"event_only"`, which holds messages only), or both
            (`"span_and_event"`). None reads `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`;
            if that is not set, nothing is sent.
        messages: With content: `"new"` for the messages that no earlier span of the run has,
        `"all"` for the whole request each time. redact: With content: called last with what a value
        is (its attribute) and a copy of the value, as JSON data; returns what is sent.
            If it raises, the value is left out.
        baggage: Whether MCP servers are sent the baggage of the caller. names: `"1.41.0"` or
        `"latest"`, see docs/how-to/running/observability.md. None reads
        `OTEL_SEMCONV_STABILITY_OPT_IN`.

    Raises:
        ConfigurationError: `opentelemetry-api` is not installed, or an argument is wrong.

    """

    @checks_keywords
    def __init__(
        self, *, tracer_provider: Any = None, meter_provider: Any = None, logger_provider: Any = None,
        content: bool | Literal["span_only", "event_only", "span_and_event"] | None = None,
        messages: Literal["new", "all"] = "new", redact: Callable[[str, Any], Any] | None = None, baggage: bool = False,
        names: Literal["1.41.0", "latest"] | None = None,
    ) -> None:  # fmt: skip
        self._api = load_api()
        self._providers = tracer_provider, meter_provider, logger_provider
        is_whole = one_of("messages", messages, ("new", "all")) == "all"
        on_spans, self._has_events = captures(content)
        self._rendered = ContentAttributes(redact, is_whole=is_whole)
        self._content = self._rendered if on_spans else None
        self._details: OperationDetails | None = None
        self._latest = is_latest(names)
        self._sends_baggage = baggage
        self._spans: Spans | None = None
        self._metrics: Metrics | None = None
        self._setting_up = Lock()
        self._models = Known[dict[str, Any]]()
        self._tools = Known[tuple[dict[str, Any], dict[str, Any]]]()
        self._programs = Known[dict[str, str]]()
        self._people = PersonEvents(self._content)
        self._on: dict[type[Event], Callable[[Spans, Any], None]] = {
            events.RunStarted: self._program_started, events.RunFinished: self._program_finished,
            events.ModelCalled: self._model_called, events.ModelAnswered: self._model_answered,
            events.CallStarted: self._call_started, events.CallFinished: self._call_finished,
            **self._people.receives,
            **dict.fromkeys((events.TextDelta, events.FieldDelta, events.ThoughtDelta, events.CallDelta), self._delta),
        }  # fmt: skip
        self._needed = frozenset(self._on)
        self._needed_muted = frozenset(
            (events.RunFinished, events.CallStarted, events.CallFinished, *self._people.receives),
        )
        """Of a run that is not sampled, without metrics and events of model calls. Calls to MCP servers have a context anyway."""

    wants_details = False
    """Events of an adapter's work are not needed, and not made for this observer."""

    @property
    def is_idle(self) -> bool:
        """Whether there is no SDK yet, neither for spans nor for metrics or events: then a run that starts is not observed."""
        return (self._spans or self._set_up()) is None

    def __call__(self, event: Event) -> None:
        """Receive one event."""
        work = self._on.get(type(event))
        if work is not None:
            spans = self._spans or self._set_up()
            if spans is not None:
                work(spans, event)

    def _set_up(self) -> Spans | None:
        """Take the providers, once there is an SDK."""
        api, (tracers, meters, loggers) = self._api, self._providers
        tracers, meters = tracers or api.get_tracer_provider(), meters or api.get_meter_provider()
        loggers = loggers or api.get_logger_provider()
        has_loggers = self._has_events and not isinstance(loggers, api.no_loggers)
        if (
            isinstance(tracers, api.no_tracers)
            and isinstance(meters, api.no_meters)
            and not has_loggers
        ):
            return None
        about = "ferrule", own_version()
        with self._setting_up:  # two first runs may get here at once
            if self._spans is None:
                if not isinstance(meters, api.no_meters):
                    self._people.metrics = self._metrics = Metrics(
                        meters.get_meter(*about, names.SCHEMA_URL),
                        latest=self._latest,
                    )
                if has_loggers:
                    self._details = OperationDetails(
                        api,
                        loggers.get_logger(*about, schema_url=names.SCHEMA_URL),
                    )
                self._spans = Spans(api, tracers.get_tracer(*about, names.SCHEMA_URL))
        return self._spans

    # -- programs
    # ------------------------------------------------------------------------------------------------

    def open_run(self, event: events.RunStarted, notes: dict[str, str]) -> frozenset[type[Event]]:
        """A run begins, or goes on: in a new span, linked to its first and its last one. Returns which types of events are needed."""
        spans = self._spans or self._set_up()
        if spans is None:
            return self._needed
        segment = int(notes.get(_COUNT, "0")) + 1
        opened = self._open_program(
            spans,
            event,
            self._links(notes) + self._deciders(notes),
            {names.RUN_SEGMENT: segment},
        )
        opened.notes = notes
        opened.asked = json.loads(notes.get(ASKED, "{}"))
        if (
            notes.pop(WAITS, None) and self._metrics is not None
        ):  # a crash from here on leaves no question that waits
            self._metrics.waits(-1)
        found: dict[str, str] = {}
        self._api.inject(found, opened.context)
        if _LAST in found:
            notes.pop(_STATE, None)
            notes.update(found)
            notes.setdefault(_FIRST, found[_LAST])
            notes[_COUNT] = str(segment)
        return (
            self._needed_muted
            if opened.is_muted and self._metrics is None and self._details is None
            else self._needed
        )

    def note_caller(self, notes: dict[str, str]) -> None:
        """A run is submitted, or a question decided: the next segment, in another process, is linked to the span that is current here."""
        if (self._spans or self._set_up()) is not None:
            self._api.inject(notes)

    def _links(self, notes: Mapping[str, str]) -> list[Any]:
        made: list[Any] = []
        for parent in dict.fromkeys(notes[key] for key in (_LAST, _FIRST) if key in notes):
            carrier = {
                "traceparent": parent,
                **(
                    {_STATE: notes[_STATE]}
                    if parent == notes.get(_LAST) and _STATE in notes
                    else {}
                ),
            }
            made.append(self._api.Link(self._api.span_context(carrier)))
        return made

    def _deciders(self, notes: dict[str, str]) -> list[Any]:
        """Links to the spans in which the questions of the last pause were decided; their notes hold for one segment."""
        found = json.loads(notes.pop("deciders", "[]"))
        return [
            self._api.Link(self._api.span_context(each)) for each in found if "traceparent" in each
        ]

    def _program_started(self, spans: Spans, event: events.RunStarted) -> None:
        if (event.run_id, event.span_id) not in spans.programs:  # else `open_run` opened it
            self._open_program(spans, event)

    def _open_program(
        self,
        spans: Spans,
        event: Event,
        links: Any = None,
        more: Mapping[str, Any] | None = None,
    ) -> OpenSpan:
        program: Any = getattr(event, "program", None)
        key = event.run_id, event.span_id
        name = agent_name(event.path.rpartition("/")[2]) if event.path else program.name
        opened = OpenSpan(
            "program",
            name,
            key,
            event.depth,
            spans.here if not event.depth else spans.around(event),
        )
        attributes = {
            names.OPERATION: "invoke_agent",
            names.AGENT_NAME: name,
            names.RUN_ID: event.run_id,
            **(more or {}),
        }
        attributes |= self._about_its_model(program)
        conversation = setting("extra").get("conversation_id")
        if conversation is not None:
            attributes[names.CONVERSATION_ID] = str(conversation)
        found = spans.open(opened, f"invoke_agent {name}", attributes, links=links, is_current=True)
        if found.span.is_recording():
            found.span.set_attributes(self._about_program(program))
        return found

    def _about_its_model(self, program: Any) -> dict[str, Any]:
        """Provider and name of the model of a program that has one: a program with others inside may have several."""
        lm = (program.lm or setting("lm")) if hasattr(program, "lm") else None
        facts = self._about_model(lm) if hasattr(lm, "complete") else {}
        return {
            name: facts[name] for name in (names.PROVIDER, names.REQUEST_MODEL) if name in facts
        }

    def _about_program(self, program: Any) -> dict[str, str]:
        found = self._programs.get(program)
        if found is None:  # once: it takes longer than many steps
            pairs = ((names.AGENT_ID, "fingerprint"), (names.AGENT_VERSION, "version"))
            found = {
                name: value
                for name, of in pairs
                if isinstance(value := getattr(program, of, None), str)
            }
            self._programs.put(program, found)
        return found

    def _program_finished(self, spans: Spans, event: events.RunFinished) -> None:
        opened = spans.programs.get((event.run_id, event.span_id))
        if opened is None:
            return
        is_waiting = event.status == "waiting"
        error = None if event.error is None or is_waiting else error_type(event.error)
        span = opened.span
        if span.is_recording():
            span.set_attributes({names.RUN_STATUS: event.status, **about_usage(opened.spent)})
            if error is not None:
                self._fail(span, error, event.error)
        if self._metrics is not None:
            self._metrics.program(opened, error)
            if is_waiting and not event.depth:
                self._metrics.waits(1)
        if opened.around is not None and opened.spent:
            opened.around.program.add(*opened.spent)
        spans.close(opened, self._cut_off)

    def _cut_off(self, opened: OpenSpan) -> None:
        """Measure a call whose end sent no event: it was cancelled, or waits inside."""
        if opened.kind == "tool" and self._metrics is not None:
            self._metrics.tool(opened, None)

    def _fail(self, span: Any, error: str, raised: BaseException | None, text: str = "") -> None:
        span.set_attribute(names.ERROR_TYPE, error)
        about = None if self._content is None else self._content.text("error", text or str(raised))
        span.set_status(self._api.ERROR, about)

    # -- models
    # --------------------------------------------------------------------------------------------------

    def _model_called(self, spans: Spans, event: events.ModelCalled) -> None:
        around = spans.around(event)
        has_event = self._details is not None and self._details.is_wanted
        is_muted = around is not None and around.is_muted
        if is_muted and self._metrics is None and not has_event:
            return
        lm = event.lm
        facts = self._about_model(lm)
        opened = OpenSpan("model", "", (event.run_id, ""), event.depth, around)
        program, about = opened.program, facts
        if has_event or not is_muted:
            about = {**facts, **about_request(lm, event.request)}
            if event.attempt != 1:
                about[names.ATTEMPT] = event.attempt
            if names.CONVERSATION_ID in program.facts:
                about[names.CONVERSATION_ID] = program.facts[names.CONVERSATION_ID]
        span = spans.open(
            opened,
            f"chat {facts[names.REQUEST_MODEL]}",
            about,
            is_client=True,
            is_current=True,
        ).span
        opened.facts = facts
        if has_event or (self._content is not None and span.is_recording()):
            content, program.seen = self._rendered.of_request(event.request, program.seen)
            if self._content is not None:
                span.set_attributes(content)
            opened.told = {**about, **content} if has_event else None

    def _about_model(self, lm: Any) -> dict[str, Any]:
        return self._models.get(lm) or self._models.put(lm, about_model(lm))

    def _delta(self, spans: Spans, _: Event) -> None:
        opened = spans.here
        if opened is not None and opened.kind == "model" and opened.first_chunk_s is None:
            opened.first_chunk_s = opened.seconds
            if opened.span.is_recording():
                opened.span.set_attributes(
                    {names.STREAM: True, names.FIRST_CHUNK_S: opened.first_chunk_s},
                )

    def _model_answered(self, spans: Spans, event: events.ModelAnswered) -> None:
        opened = spans.here
        if opened is None or opened.kind != "model" or opened.is_over:
            return
        response, error = event.response, None if event.error is None else error_type(event.error)
        is_recording, told = opened.span.is_recording(), opened.told
        if response is not None:
            usage = response.usage
            opened.program.add(
                usage.input_tokens,
                usage.output_tokens,
                usage.cached_tokens,
                response.cost,
            )
            if is_recording or told is not None:
                about = about_answer(response)
                if told is not None or self._content is not None:
                    content = self._rendered.of_response(response)
                    opened.told = told = None if told is None else {**told, **about, **content}
                    about = about if self._content is None else {**about, **content}
                if about:
                    opened.span.set_attributes(about)
        if error is not None:
            self._fail(opened.span, error, event.error)
            told = None if told is None else {**told, names.ERROR_TYPE: error}
        if told is not None and self._details is not None:
            self._details.emit(opened.context, told)
        if self._metrics is not None:
            self._metrics.model(opened, response, error)
        spans.close(opened)

    # -- tools
    # ---------------------------------------------------------------------------------------------------

    def _call_started(self, spans: Spans, event: events.CallStarted) -> None:
        around = spans.around(event)
        call, tool = event.call, event.tool
        found = self._tools.get(tool)
        if found is None or found[0][names.TOOL_NAME] != call.name:
            found = self._tools.put(tool, about_tool(call.name, tool))
        facts, about = found
        is_remote = names.MCP_METHOD in about
        prepare = self._api.without_baggage if is_remote and not self._sends_baggage else None
        is_muted = around is not None and around.is_muted
        if is_muted and self._metrics is None and prepare is None:
            return
        opened = OpenSpan("tool", call.name, (event.run_id, ""), event.depth, around)
        if not is_muted:
            about = {
                **about,
                names.TOOL_CALL_ID: call.id or "",
                names.SLOT: event.path.rpartition("/")[2],
            }
        if is_remote:
            opened.tool = tool
        span = spans.open(
            opened,
            f"execute_tool {call.name}",
            about,
            is_current=True,
            prepare=prepare,
        ).span
        opened.facts = facts
        if self._content is not None and span.is_recording():
            span.set_attributes(self._content.value(names.TOOL_ARGUMENTS, call.args))

    def _call_finished(self, spans: Spans, event: events.CallFinished) -> None:
        opened = spans.here
        if (
            opened is None
            or opened.kind != "tool"
            or opened.is_over
            or opened.name != event.call.name
        ):
            return
        result, span = event.result, opened.span
        error = error_of_result(result)
        if span.is_recording():
            if opened.tool is not None:
                span.set_attributes(about_session(opened.tool))
            if self._content is not None:
                span.set_attributes(self._content.of_result(result))
            if error is not None:
                self._fail(span, error, result.error, str(result.content))
        if self._metrics is not None:
            self._metrics.tool(opened, error)
        spans.close(opened)
