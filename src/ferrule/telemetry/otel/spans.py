"""Open spans: each is current while its work executes, and its end restores the context before it.

OpenTelemetry's context carries the innermost span, and flows into tasks and worker threads with the
work. Spans whose end sends no event, such as those of cancelled calls, end with the program around
them.
"""

from __future__ import annotations

import re
from math import nan
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ferrule.telemetry.otel import names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ferrule.events import Event

_KEY_OF_CALL = re.compile(r":[0-9a-f]{12}#\d+$")


class OpenSpan:
    """A span that has not ended, with what its end needs.

    What most spans do not have is a default of the class, which costs them no memory.
    """

    span: Any = None
    context: Any = None
    """The context with this span."""
    before: Any = None
    """The context to restore; None if this one was not made current."""
    is_muted = False
    """A sampler left it, or a span around it, out."""
    is_over = False
    first_chunk_s: float | None = None
    facts: Mapping[str, Any] = {}
    """Its attributes that metrics have as well."""
    event_attributes: dict[str, Any] | None = None
    """Of a model call with an event: the attributes of its request, with content."""
    tool: Any = None
    """Of a call of an MCP server: its tool."""
    spent: tuple[float, ...] = ()
    """Of a program: input, output and cached tokens, and cost; empty before its first answer."""
    seen: tuple[int, Any] = (0, None)
    """How many messages of a program's conversation were sent, and the last of them."""
    notes: dict[str, str]
    asked: dict[str, float]
    """Of a run: its questions that wait, and when each was asked."""

    def __init__(
        self, kind: str, name: str, key: tuple[str, str], depth: int, around: OpenSpan | None
    ) -> None:
        self.kind = kind
        """`program`, `model` or `tool`."""
        self.name = name
        self.key = key
        self.depth = depth
        self.around = around
        self.inside: dict[int, OpenSpan] = {}
        """Spans in it that have not ended."""
        self.began = perf_counter()
        if kind == "program":
            self.notes, self.asked = {}, {}

    @property
    def program(self) -> OpenSpan:
        """The program that it is, or is in; itself for a call outside one."""
        span = self
        while span.kind != "program" and span.around is not None:
            span = span.around
        return span

    def add(self, sent: float, received: float, cached: float, cost: float | None) -> None:
        """Add what a program spent; its cost is NaN once that of one answer is unknown."""
        if self.kind != "program":
            return
        if cost is None:
            cost = nan
        spent = self.spent or (0, 0, 0, 0.0)
        self.spent = spent[0] + sent, spent[1] + received, spent[2] + cached, spent[3] + cost

    @property
    def seconds(self) -> float:
        """How long it has been open."""
        return perf_counter() - self.began


class Spans:
    """The open spans of one observer."""

    def __init__(self, api: Any, tracer: Any) -> None:
        self._api = api
        self._tracer = tracer
        self._get_current = api.get_current
        self._key = api.create_key("ferrule")
        self.programs: dict[tuple[str, str], OpenSpan] = {}
        """Programs that have not ended, by run and path."""

    @property
    def here(self) -> OpenSpan | None:
        """The innermost span that is open here."""
        return self._get_current().get(self._key)

    def around(self, event: Event) -> OpenSpan | None:
        """The span in which an event happens; None outside all.

        Opens the span of a program that goes on after a pause, which has no start event.
        """
        here = self.here
        if here is not None and here.depth == event.depth:
            return here
        if here is None and not event.depth:
            return None
        program = self.programs.get((event.run_id, event.parent_span_id))
        if program is None and event.depth and event.type != "RunStarted":
            program = self._reopen(event.run_id, event.root_id, event.parent_span_id, event.depth)
        return program or here

    def _reopen(self, run_id: str, root_id: str, span_id: str, depth: int) -> OpenSpan | None:
        """The span of a program inside a run that was begun in an earlier execution of the run."""
        key = run_id, span_id
        opened = self.programs.get(key)
        if opened is not None or span_id in {root_id, ""}:
            return opened
        *outer, last = span_id.split("/")
        while len(outer) > 1 and _is_no_program(outer[-1]):
            outer.pop()
        around = self._reopen(run_id, root_id, "/".join(outer), depth - 1)
        opened = OpenSpan("program", agent_name(last), key, depth, around)
        attributes = {
            names.OPERATION: "invoke_agent",
            names.AGENT_NAME: opened.name,
            names.RUN_ID: run_id,
        }
        return self.open(opened, f"invoke_agent {opened.name}", attributes)

    def open(
        self,
        opened: OpenSpan,
        name: str,
        attributes: Mapping[str, Any],
        *,
        is_client: bool = False,
        links: Any = None,
        prepare: Callable[[Any], Any] | None = None,
        is_current: bool = False,
    ) -> OpenSpan:
        """Start a span. `is_current`: make it current here; `prepare` changes the context first."""
        api, around, here = self._api, opened.around, self._get_current()
        opened.facts = attributes
        if around is not None and around.is_muted:
            # Samplers leave out what is inside a span that they left out: it is not even made.
            opened.is_muted, opened.span, context = True, around.span, here
        else:
            context = here
            if around is not None and around.before is None and around.context is not None:
                # The span around was reopened, and never made current: it is not in the context.
                context = around.context
            if is_client:
                kind = api.SpanKind.CLIENT
            else:
                kind = api.SpanKind.INTERNAL
            span = self._tracer.start_span(name, context, kind, attributes, links)
            is_sampled = span.get_span_context().trace_flags.sampled
            opened.span = span
            opened.is_muted = not span.is_recording() and not is_sampled
            context = api.set_span_in_context(span, context)
        if around is not None:
            around.inside[id(opened)] = opened
        if opened.kind == "program":
            self.programs[opened.key] = opened
        if is_current:
            opened.before = here
            if prepare is not None:
                context = prepare(context)
            context = api.set_value(self._key, opened, context)
            api.attach(context)
        opened.context = context
        return opened

    def close(self, opened: OpenSpan, end: Callable[[OpenSpan], None] | None = None) -> None:
        """End a span and restore the context before it.

        Spans in it that are still open end first; `end` is called with each.
        """
        for inner in reversed(tuple(opened.inside.values())):
            if end is not None:
                end(inner)
            self.close(inner, end)
        if opened.around is not None:
            opened.around.inside.pop(id(opened), None)
        if opened.kind == "program":
            self.programs.pop(opened.key, None)
        opened.is_over = True
        is_shared = opened.around is not None and opened.span is opened.around.span  # where muted
        try:
            if not is_shared:
                opened.span.end()
        finally:  # also if an exporter raises
            self._leave(opened)

    def _leave(self, opened: OpenSpan) -> None:
        context, before = opened.context, opened.before
        # The span is in its own context: this frees the memory without the garbage collector.
        opened.context = opened.before = None
        # Where another context is current, such as the garbage collector's, there is nothing to
        # restore. Without `detach`, which logs an error there.
        if before is not None and self._get_current() is context:
            self._api.attach(before)


def agent_name(segment: str) -> str:
    """The name of a program inside a run, by the last segment of its path.

    That is the name of the tool that it is, or of its class.
    """
    return _KEY_OF_CALL.sub("", segment)


def _is_no_program(segment: str) -> bool:
    """Whether a segment of a path names a step, a branch or a recorded value, not a program."""
    return segment.replace(".", "").isdigit() or segment.startswith(("gather#", "once:"))
