"""`OTel`: an observer that makes OpenTelemetry spans and metrics of a run's events.

In: events. Out: `invoke_agent`, `chat` and `execute_tool` spans by the GenAI conventions
(`names.py`), each current while its work executes. Nothing is patched, and a replay sends no
events. Each segment of a run, from rest to rest, is a span with links to earlier ones.
"""

from __future__ import annotations

import json
import os
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from ferrule import events
from ferrule.errors import ConfigurationError, checks_keywords, shown
from ferrule.settings import lm_override_of, setting
from ferrule.telemetry.otel import names
from ferrule.telemetry.otel.api import load_api, own_version
from ferrule.telemetry.otel.attributes import (
    about_answer,
    about_model,
    about_request,
    about_run,
    about_session,
    about_tool,
    about_usage,
    error_of_result,
    error_type,
)
from ferrule.telemetry.otel.content import ContentAttributes, OperationDetails
from ferrule.telemetry.otel.known import Known
from ferrule.telemetry.otel.metrics import Metrics
from ferrule.telemetry.otel.people import ASKED, WAITS, PersonEvents
from ferrule.telemetry.otel.spans import OpenSpan, Spans, agent_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ferrule.events import Event
    from ferrule.values.conversation.exchange import Response
    from ferrule.values.provider_tools import ProviderCall

_FIRST, _LAST, _STATE, _COUNT = "first_traceparent", "traceparent", "tracestate", "segment"
"""The notes of a run: the contexts of its first and its last segment, and how many there were."""


class OTel:
    """Sends a run's spans and metrics to OpenTelemetry: `configure(callbacks=[OTel()])`.

    Needs `ferrule[otel]`; the SDK is yours.

    Args:
        tracer_provider: By default the global one, as of the first run that starts with an SDK; the
            same for the other providers.
        meter_provider: Where the metrics go.
        logger_provider: Where events with content go.
        content: Whether messages, arguments, results, reasons and people's names are sent: on spans
            (True, `"span_only"`), in an event of each model call (`"event_only"`, which holds
            messages only), or both (`"span_and_event"`). None reads
            `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`; if that is not set, nothing is
            sent.
        messages: With content: `"new"` for the messages that no earlier span of the run has,
            `"all"` for the whole request each time.
        redact: With content: called last with what a value is (its attribute) and a copy of the
            value, as JSON data; returns what is sent. If it raises, the value is left out.
        baggage: Whether MCP servers are sent the baggage of the caller.
        names: `"1.41.0"` or `"latest"`, see docs/how-to/running/observability.md. None reads
            `OTEL_SEMCONV_STABILITY_OPT_IN`.

    Raises:
        ConfigurationError: `opentelemetry-api` is not installed, or an argument is wrong.

    """

    @checks_keywords
    def __init__(
        self,
        *,
        tracer_provider: Any = None,
        meter_provider: Any = None,
        logger_provider: Any = None,
        content: bool | Literal["span_only", "event_only", "span_and_event"] | None = None,
        messages: Literal["new", "all"] = "new",
        redact: Callable[[str, Any], Any] | None = None,
        baggage: bool = False,
        names: Literal["1.41.0", "latest"] | None = None,
    ) -> None:
        self._api = load_api()
        self._providers = tracer_provider, meter_provider, logger_provider
        _check_option("messages", messages, ("new", "all"))
        on_spans, self._has_events = _captured(content)
        self._rendered = ContentAttributes(redact, is_whole=messages == "all")
        self._content: ContentAttributes | None = None
        if on_spans:
            self._content = self._rendered
        self._details: OperationDetails | None = None
        self._latest = _is_latest(names)
        self._sends_baggage = baggage
        self._spans: Spans | None = None
        self._metrics: Metrics | None = None
        self._setting_up = Lock()
        self._models = Known[dict[str, Any]]()
        self._tools = Known[tuple[dict[str, Any], dict[str, Any]]]()
        self._programs = Known[dict[str, str]]()
        self._people = PersonEvents(self._content)
        self._receivers: dict[type[Event], Callable[[Spans, Any], None]] = {
            events.RunStarted: self._program_started,
            events.RunFinished: self._program_finished,
            events.ModelCalled: self._model_called,
            events.ModelAnswered: self._model_answered,
            events.CallStarted: self._call_started,
            events.CallFinished: self._call_finished,
            events.ProviderCallStarted: self._provider_call_started,
            events.ProviderCallFinished: self._provider_call_finished,
            **self._people.receives,
            events.TextDelta: self._delta,
            events.FieldDelta: self._delta,
            events.ThoughtDelta: self._delta,
            events.CallDelta: self._delta,
        }
        self._needed = frozenset(self._receivers)
        self._needed_muted = frozenset(
            (events.RunFinished, events.CallStarted, events.CallFinished, *self._people.receives)
        )
        """The events that are needed of a run that is not sampled, without metrics and events of
        model calls. Calls to MCP servers have a context anyway."""

    wants_details = False
    """Events of an adapter's work are not made for this observer."""

    @property
    def is_idle(self) -> bool:
        """Whether there is no SDK yet, for spans, metrics or events: new runs are not observed."""
        return self._ready() is None

    def __call__(self, event: Event) -> None:
        """Receive one event."""
        receive = self._receivers.get(type(event))
        if receive is None:
            return
        spans = self._ready()
        if spans is not None:
            receive(spans, event)

    def _ready(self) -> Spans | None:
        """The open spans of this observer; None as long as there is no SDK."""
        if self._spans is None:
            self._set_up()
        return self._spans

    def _set_up(self) -> None:
        """Take the providers, once there is an SDK."""
        api, (tracers, meters, loggers) = self._api, self._providers
        tracers = tracers or api.get_tracer_provider()
        meters = meters or api.get_meter_provider()
        loggers = loggers or api.get_logger_provider()
        has_tracers = not isinstance(tracers, api.no_tracers)
        has_meters = not isinstance(meters, api.no_meters)
        has_loggers = self._has_events and not isinstance(loggers, api.no_loggers)
        if not (has_tracers or has_meters or has_loggers):
            return
        scope = "ferrule", own_version()
        with self._setting_up:  # two first runs may get here at once
            if self._spans is not None:
                return
            if has_meters:
                meter = meters.get_meter(*scope, names.SCHEMA_URL)
                self._metrics = Metrics(meter, latest=self._latest)
                self._people.metrics = self._metrics
            if has_loggers:
                logger = loggers.get_logger(*scope, schema_url=names.SCHEMA_URL)
                self._details = OperationDetails(api, logger)
            self._spans = Spans(api, tracers.get_tracer(*scope, names.SCHEMA_URL))

    # -- programs

    def open_run(self, event: events.RunStarted, notes: dict[str, str]) -> frozenset[type[Event]]:
        """A run begins or goes on: open a span, linked to the run's first and last ones.

        Returns which types of events are needed from now on.
        """
        spans = self._ready()
        if spans is None:
            return self._needed
        segment = int(notes.get(_COUNT, "0")) + 1
        links = self._links(notes) + self._deciders(notes)
        more = {names.RUN_SEGMENT: segment, **about_run(event.metadata, event.title)}
        opened = self._open_program(spans, event, links, more)
        opened.notes = notes
        opened.asked = json.loads(notes.get(ASKED, "{}"))
        # The note goes first: a crash from here on must not leave a question that waits.
        if notes.pop(WAITS, None) and self._metrics is not None:
            self._metrics.waits(-1)
        carrier: dict[str, str] = {}
        self._api.inject(carrier, opened.context)
        if _LAST in carrier:
            notes.pop(_STATE, None)
            notes.update(carrier)
            notes.setdefault(_FIRST, carrier[_LAST])
            notes[_COUNT] = str(segment)
        if opened.is_muted and self._metrics is None and self._details is None:
            return self._needed_muted
        return self._needed

    def note_caller(self, notes: dict[str, str]) -> None:
        """A run is submitted, or a question decided: note the span that is current here.

        The next segment of the run, which may be in another process, is linked to it.
        """
        if self._ready() is not None:
            self._api.inject(notes)

    def _links(self, notes: Mapping[str, str]) -> list[Any]:
        """Links to the last and the first segment, which may be the same."""
        links: list[Any] = []
        parents = [notes[key] for key in (_LAST, _FIRST) if key in notes]
        for parent in dict.fromkeys(parents):
            carrier = {"traceparent": parent}
            if parent == notes.get(_LAST) and _STATE in notes:
                carrier[_STATE] = notes[_STATE]
            links.append(self._api.Link(self._api.span_context(carrier)))
        return links

    def _deciders(self, notes: dict[str, str]) -> list[Any]:
        """Links to the spans in which the questions of the last pause were decided.

        Their notes hold for one segment.
        """
        carriers = json.loads(notes.pop("deciders", "[]"))
        return [
            self._api.Link(self._api.span_context(carrier))
            for carrier in carriers
            if "traceparent" in carrier
        ]

    def _program_started(self, spans: Spans, event: events.RunStarted) -> None:
        if (event.run_id, event.span_id) not in spans.programs:  # else `open_run` opened it
            self._open_program(spans, event)

    def _open_program(
        self, spans: Spans, event: Event, links: Any = None, more: Mapping[str, Any] | None = None
    ) -> OpenSpan:
        program: Any = getattr(event, "program", None)
        name = program.name
        if event.path:
            name = agent_name(event.path.rpartition("/")[2])
        parent = spans.current
        if event.depth:
            parent = spans.parent_of(event)
        opened = OpenSpan("program", name, (event.run_id, event.span_id), event.depth, parent)
        attributes = {
            names.OPERATION: "invoke_agent",
            names.AGENT_NAME: name,
            names.RUN_ID: event.run_id,
            **(more or {}),
            **self._about_its_model(program),
        }
        conversation = setting("extra").get("conversation_id")
        if conversation is not None:
            attributes[names.CONVERSATION_ID] = str(conversation)
        spans.open(opened, f"invoke_agent {name}", attributes, links=links, is_current=True)
        if opened.span.is_recording():
            opened.span.set_attributes(self._about_program(program))
        return opened

    def _about_its_model(self, program: Any) -> dict[str, Any]:
        """Provider and name of the model of a program that has one.

        A program with others inside may have several, and has none of its own.
        """
        if not hasattr(program, "lm"):
            return {}
        lm = lm_override_of(program) or program.lm or setting("lm")
        if not hasattr(lm, "complete"):
            return {}
        facts = self._about_model(lm)
        wanted = (names.PROVIDER, names.REQUEST_MODEL)
        return {name: facts[name] for name in wanted if name in facts}

    def _about_program(self, program: Any) -> dict[str, str]:
        attributes = self._programs.get(program)
        if attributes is not None:
            return attributes
        attributes = {
            names.AGENT_ID: getattr(program, "fingerprint", None),
            names.AGENT_VERSION: getattr(program, "version", None),
        }
        texts = {name: value for name, value in attributes.items() if isinstance(value, str)}
        return self._programs.put(program, texts)

    def _program_finished(self, spans: Spans, event: events.RunFinished) -> None:
        opened = spans.programs.get((event.run_id, event.span_id))
        if opened is None:
            return
        is_waiting = event.status == "waiting"
        error = None
        if event.error is not None and not is_waiting:
            error = error_type(event.error)
        span = opened.span
        if span.is_recording():
            span.set_attributes({names.RUN_STATUS: event.status, **about_usage(opened.spent)})
            if error is not None:
                self._fail(span, error, event.error)
        if self._metrics is not None:
            self._metrics.program(opened, error)
            if is_waiting and not event.depth:
                self._metrics.waits(1)
        if opened.parent is not None and opened.spent:
            opened.parent.program.add_usage(*opened.spent)
        spans.close(opened, partial(self._cut_off, is_waiting=is_waiting))

    def _cut_off(self, opened: OpenSpan, *, is_waiting: bool) -> None:
        """End what sent no end of its own: it was cancelled, or a question waits inside."""
        error = None
        if not is_waiting and opened.span.is_recording():
            error = "cancelled"
            self._fail(opened.span, error, None, "The run ended first.")
        if opened.kind == "tool" and self._metrics is not None:
            self._metrics.tool(opened, error)

    def _fail(self, span: Any, error: str, raised: BaseException | None, text: str = "") -> None:
        span.set_attribute(names.ERROR_TYPE, error)
        description = None
        if self._content is not None:
            description = self._content.text("error", text or str(raised))
        span.set_status(self._api.ERROR, description)

    # -- models

    def _model_called(self, spans: Spans, event: events.ModelCalled) -> None:
        parent = spans.parent_of(event)
        has_event = self._details is not None and self._details.is_wanted
        is_muted = parent is not None and parent.is_muted
        if is_muted and self._metrics is None and not has_event:
            return
        facts = self._about_model(event.lm)
        opened = OpenSpan("model", "", (event.run_id, ""), event.depth, parent)
        program = opened.program
        attributes = facts
        if has_event or not is_muted:
            attributes = {**facts, **about_request(event.lm, event.request)}
            if event.attempt != 1:
                attributes[names.ATTEMPT] = event.attempt
            if names.CONVERSATION_ID in program.common_attributes:
                attributes[names.CONVERSATION_ID] = program.common_attributes[names.CONVERSATION_ID]
        title = f"chat {facts[names.REQUEST_MODEL]}"
        spans.open(opened, title, attributes, is_client=True, is_current=True)
        opened.common_attributes = facts
        on_span = self._content is not None and opened.span.is_recording()
        if not has_event and not on_span:
            return
        content, program.seen = self._rendered.of_request(event.request, program.seen)
        if self._content is not None:
            opened.span.set_attributes(content)
        if has_event:
            opened.event_attributes = {**attributes, **content}

    def _about_model(self, lm: Any) -> dict[str, Any]:
        return self._models.get(lm) or self._models.put(lm, about_model(lm))

    def _delta(self, spans: Spans, _: Event) -> None:
        opened = spans.current
        if opened is None or opened.kind != "model" or opened.first_chunk_s is not None:
            return
        opened.first_chunk_s = opened.seconds
        if opened.span.is_recording():
            attributes = {names.STREAM: True, names.FIRST_CHUNK_S: opened.first_chunk_s}
            opened.span.set_attributes(attributes)

    def _model_answered(self, spans: Spans, event: events.ModelAnswered) -> None:
        opened = spans.current
        if opened is None or opened.kind != "model" or opened.is_over:
            return
        error = None
        if event.error is not None:
            error = error_type(event.error)
        if event.response is not None:
            self._note_answer(opened, event.response)
        if error is not None:
            self._fail(opened.span, error, event.error)
        if opened.event_attributes is not None and self._details is not None:
            if error is not None:
                opened.event_attributes[names.ERROR_TYPE] = error
            self._details.emit(opened.context, opened.event_attributes)
        if self._metrics is not None:
            self._metrics.model(opened, event.response, error)
        spans.close(opened)

    def _note_answer(self, opened: OpenSpan, response: Response) -> None:
        """Add what an answer says to its span and its event, and what it cost to the program."""
        usage = response.usage
        opened.program.add_usage(
            usage.input_tokens, usage.output_tokens, usage.cached_tokens, response.cost
        )
        if not opened.span.is_recording() and opened.event_attributes is None:
            return
        attributes = about_answer(response)
        content: dict[str, Any] = {}
        if opened.event_attributes is not None or self._content is not None:
            content = self._rendered.of_response(response)
        if opened.event_attributes is not None:
            opened.event_attributes |= {**attributes, **content}
        if self._content is not None:
            attributes |= content
        if attributes:
            opened.span.set_attributes(attributes)

    # -- tools

    def _call_started(self, spans: Spans, event: events.CallStarted) -> None:
        parent = spans.parent_of(event)
        call, tool = event.call, event.tool
        known = self._tools.get(tool)
        if known is None or known[0][names.TOOL_NAME] != call.name:
            known = self._tools.put(tool, about_tool(call.name, tool))
        on_metrics, on_spans = known
        is_remote = names.MCP_METHOD in on_spans
        prepare: Callable[[Any], Any] | None = None
        if is_remote and not self._sends_baggage:
            prepare = self._api.without_baggage
        is_muted = parent is not None and parent.is_muted
        if is_muted and self._metrics is None and prepare is None:
            return
        attributes = on_spans
        if not is_muted:
            slot = event.path.rpartition("/")[2]
            attributes = {**on_spans, names.TOOL_CALL_ID: call.id or "", names.SLOT: slot}
            if call.confidence is not None:
                attributes[names.CONFIDENCE] = call.confidence
        opened = OpenSpan("tool", call.name, (event.run_id, ""), event.depth, parent)
        if is_remote:
            opened.tool = tool
        title = f"execute_tool {call.name}"
        spans.open(opened, title, attributes, is_current=True, prepare=prepare)
        opened.common_attributes = on_metrics
        if self._content is not None and opened.span.is_recording():
            opened.span.set_attributes(self._content.value(names.TOOL_ARGUMENTS, call.args))

    def _call_finished(self, spans: Spans, event: events.CallFinished) -> None:
        opened = spans.current
        if opened is None or opened.kind != "tool" or opened.is_over:
            return
        if opened.name != event.call.name:
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

    # -- tools that the model's provider runs: spans inside that of the model call

    def _provider_call_started(self, spans: Spans, event: events.ProviderCallStarted) -> None:
        parent = spans.current
        if parent is None or parent.kind != "model" or parent.is_over or parent.is_muted:
            return
        call = event.call
        on_metrics = {
            names.OPERATION: "execute_tool",
            names.TOOL_NAME: call.name,
            names.TOOL_TYPE: "extension",
        }
        # Not current: the provider runs several at once, and nothing here happens inside one.
        opened = OpenSpan("tool", call.name, (event.run_id, call.id or ""), event.depth, parent)
        attributes = {**on_metrics, names.TOOL_CALL_ID: call.id or ""}
        spans.open(opened, f"execute_tool {call.name}", attributes)
        opened.common_attributes = on_metrics

    def _provider_call_finished(self, spans: Spans, event: events.ProviderCallFinished) -> None:
        parent, call = spans.current, event.call
        if parent is None or parent.kind != "model":
            return
        for opened in tuple(parent.children.values()):
            if opened.kind == "tool" and opened.key == (event.run_id, call.id or ""):
                self._end_provider_call(spans, opened, call)
                return

    def _end_provider_call(self, spans: Spans, opened: OpenSpan, call: ProviderCall) -> None:
        error = None
        if call.is_error:
            error = "tool_error"
        if opened.span.is_recording():
            if self._content is not None:
                opened.span.set_attributes(
                    {
                        **self._content.value(names.TOOL_ARGUMENTS, dict(call.args)),
                        **self._content.value(names.TOOL_RESULT, call.result or ""),
                    }
                )
            if error is not None:
                self._fail(opened.span, error, None, call.result or "")
        if self._metrics is not None:
            self._metrics.tool(opened, error)
        spans.close(opened)


_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
_CAPTURED = {
    "true": (True, False),
    "span_only": (True, False),
    "event_only": (False, True),
    "span_and_event": (True, True),
    "no_content": (False, False),
    "false": (False, False),
    "": (False, False),
}
"""Whether spans hold content, and whether events do, by the values of the variable."""


def _captured(content: bool | str | None) -> tuple[bool, bool]:
    """Whether spans hold content, and whether events do."""
    if content is None:  # an unknown value of the variable captures nothing
        return _CAPTURED.get(os.environ.get(_CAPTURE, "").strip().lower(), (False, False))
    known = (None, True, False, "span_only", "event_only", "span_and_event")
    _check_option("content", content, known)
    return _CAPTURED[str(content).lower()]


def _is_latest(wanted: str | None) -> bool:
    """Whether the latest names are emitted."""
    if wanted is None:
        return "gen_ai_latest_experimental" in os.environ.get(_OPT_IN, "").split(",")
    _check_option("names", wanted, (names.SEMCONV_VERSION, "latest"))
    return wanted == "latest"


def _check_option(name: str, value: Any, values: tuple[Any, ...]) -> None:
    if value not in values:
        options = ", ".join(map(repr, values))
        raise ConfigurationError(f"`{name}` of `OTel` is one of {options}; found {shown(value)}.")
