"""Open spans: each is current while its work executes, and its end restores the context before it.

OpenTelemetry's context carries the innermost span, and flows into tasks and worker threads with the
work. So the parent of a span is usually the current one. It is not where a run goes on after a
pause: a program inside it began in an earlier segment, and sends no second start event. Its span is
then opened again, when the first event from inside it arrives (`_reopen`).

Spans whose end sends no event, such as those of cancelled calls, end with their parent.
"""

from __future__ import annotations

import re
from math import nan
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ferrule.telemetry.otel import names
from ferrule.values.slot import is_branch_or_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ferrule.events import Event

_KEY_OF_CALL = re.compile(r":[0-9a-f]{12}#\d+$")


class OpenSpan:
    """A span that has not ended, with what its end needs.

    Attributes that most spans do not have are defaults of the class, which cost them no memory.
    """

    span: Any = None
    context: Any = None
    """The context with this span."""
    outer_context: Any = None
    """The context to restore; None if this one was not made current."""
    is_muted = False
    """Whether a sampler left it out, or one of the spans around it."""
    is_over = False
    first_chunk_s: float | None = None
    common_attributes: Mapping[str, Any] = {}
    """The attributes that its metrics have as well."""
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
        self, kind: str, name: str, key: tuple[str, str], depth: int, parent: OpenSpan | None
    ) -> None:
        self.kind = kind
        """`program`, `model` or `tool`."""
        self.name = name
        self.key = key
        self.depth = depth
        self.parent = parent
        self.children: dict[int, OpenSpan] = {}
        """Spans in it that have not ended, by `id()`."""
        self.began = perf_counter()
        if kind == "program":
            self.notes, self.asked = {}, {}

    @property
    def program(self) -> OpenSpan:
        """The innermost program that it is, or is in; itself for a call outside all programs."""
        span = self
        while span.kind != "program" and span.parent is not None:
            span = span.parent
        return span

    def add_usage(self, sent: float, received: float, cached: float, cost: float | None) -> None:
        """Add what a program spent: tokens, and cost."""
        if self.kind != "program":
            return
        if cost is None:
            cost = nan  # one unknown cost makes every later sum unknown
        before = self.spent or (0, 0, 0, 0.0)
        added = (sent, received, cached, cost)
        self.spent = tuple(total + more for total, more in zip(before, added, strict=True))

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
    def current(self) -> OpenSpan | None:
        """The innermost span that is open in this task or thread."""
        return self._get_current().get(self._key)

    def parent_of(self, event: Event) -> OpenSpan | None:
        """The span in which an event happens; None outside all."""
        current = self.current
        if current is not None and current.depth == event.depth:
            return current
        if current is None and not event.depth:
            return None
        program = self.programs.get((event.run_id, event.parent_span_id))
        if program is None and event.depth and event.type != "RunStarted":
            program = self._reopen(event.run_id, event.root_id, event.parent_span_id, event.depth)
        return program or current

    def _reopen(self, run_id: str, root_id: str, span_id: str, depth: int) -> OpenSpan | None:
        """The span of a program that began in an earlier segment of its run; else None.

        The run itself has a span from the start of each segment.
        """
        key = run_id, span_id
        opened = self.programs.get(key)
        if opened is not None or span_id in {root_id, ""}:
            return opened
        *outer, last = span_id.split("/")
        while len(outer) > 1 and _names_no_program(outer[-1]):
            outer.pop()
        parent = self._reopen(run_id, root_id, "/".join(outer), depth - 1)
        opened = OpenSpan("program", agent_name(last), key, depth, parent)
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
        """Start a span, and note it as a child of its parent.

        With `is_current`, it is current in this task or thread from now on; `prepare` then changes
        the context before.
        """
        api, parent, current = self._api, opened.parent, self._get_current()
        opened.common_attributes = attributes
        if parent is not None and parent.is_muted:
            # Samplers leave out what is inside a span that they left out: it is not even made.
            opened.is_muted, opened.span, context = True, parent.span, current
        else:
            context = current
            if parent is not None and parent.outer_context is None and parent.context is not None:
                # The parent was reopened, and never made current: it is not in the context.
                context = parent.context
            if is_client:
                kind = api.SpanKind.CLIENT
            else:
                kind = api.SpanKind.INTERNAL
            span = self._tracer.start_span(name, context, kind, attributes, links)
            is_sampled = span.get_span_context().trace_flags.sampled
            opened.span = span
            opened.is_muted = not span.is_recording() and not is_sampled
            context = api.set_span_in_context(span, context)
        if parent is not None:
            parent.children[id(opened)] = opened
        if opened.kind == "program":
            self.programs[opened.key] = opened
        if is_current:
            opened.outer_context = current
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
        for inner in reversed(tuple(opened.children.values())):
            if end is not None:
                end(inner)
            self.close(inner, end)
        if opened.parent is not None:
            opened.parent.children.pop(id(opened), None)
        if opened.kind == "program":
            self.programs.pop(opened.key, None)
        opened.is_over = True
        # A muted span is the one of its parent, which ends later.
        is_shared = opened.parent is not None and opened.span is opened.parent.span
        try:
            if not is_shared:
                opened.span.end()
        finally:  # also if an exporter raises
            self._leave(opened)

    def _leave(self, opened: OpenSpan) -> None:
        """Make the context from before the span current."""
        context, outer_context = opened.context, opened.outer_context
        # The span is in its own context: this frees the memory without the garbage collector.
        opened.context = opened.outer_context = None
        # A generator may be closed in another context, such as the garbage collector's, where there
        # is nothing to restore. OpenTelemetry's `detach` would log an error there.
        if outer_context is not None and self._get_current() is context:
            self._api.attach(outer_context)


def agent_name(segment: str) -> str:
    """The name of a program inside a run, by the last segment of its path.

    That is the name of the tool that it is, or of its class, without the key of a call.
    """
    return _KEY_OF_CALL.sub("", segment)


def _names_no_program(segment: str) -> bool:
    """Whether a segment of a path names a step, a branch or a recorded value, not a program."""
    return segment.replace(".", "").isdigit() or is_branch_or_value(segment)
