"""`log_to`: events of runs as records of Python's `logging`.

Records hold names and numbers only: no message, argument, result or reason is logged.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ferrule import events
from ferrule.errors import ConfigurationError, checks_keywords, shown
from ferrule.values.outcome import Prediction

if TYPE_CHECKING:
    from collections.abc import Callable


class _Segment(Struct):
    """What a run did since it began, or went on."""

    program: str
    began: float
    depth: int
    """Of its events: those of programs inside it are deeper."""
    steps: int = 0
    tokens: int = 0


class log_to:  # noqa: N801  an observer that is made like the result of a function
    """An observer that logs runs: `configure(callbacks=[log_to("ferrule", level="INFO")])`.

    The loggers are `{name}.runs`, `{name}.models` and `{name}.tools`. INFO: a run starts, waits,
    continues, ends. WARNING: an answer that could not be used. DEBUG: calls of models and tools.
    Records below `level` are not made. Their fields (`run_id`, `program`, `tool`, `model`,
    `status`, `steps`, `tokens`, `cost`, `seconds`, ...) are attributes of the record. Handlers are
    yours to add.
    """

    @checks_keywords
    def __init__(self, name: str = "ferrule", *, level: int | str = "INFO") -> None:
        number: Any = level
        if isinstance(level, str):
            number = logging.getLevelNamesMapping().get(level.upper())
        if not isinstance(number, int) or isinstance(number, bool):
            raise ConfigurationError(
                f"`level` is a level of Python's logging, such as 'INFO'; found {shown(level)}."
            )
        self._level = number
        self._runs = logging.getLogger(f"{name}.runs")
        self._models = logging.getLogger(f"{name}.models")
        self._tools = logging.getLogger(f"{name}.tools")
        self._known: dict[str, _Segment] = {}
        self._logs: dict[type[events.Event], Callable[[Any], None]] = {
            events.RunStarted: self._run_started,
            events.Resumed: self._resumed,
            events.RunFinished: self._run_finished,
            events.StepFinished: self._step_finished,
            events.Migrated: self._migrated,
            events.ModelCalled: self._model_called,
            events.ModelAnswered: self._model_answered,
            events.AttemptFailed: self._attempt_failed,
            events.CallStarted: self._call_started,
            events.CallFinished: self._call_finished,
            events.ProviderCallFinished: self._provider_call_finished,
        }

    def __call__(self, event: events.Event) -> None:
        """Log one event, if it is of a kind that is logged."""
        log = self._logs.get(type(event))
        if log is not None:
            log(event)

    def _log(
        self,
        event: events.Event,
        logger: logging.Logger,
        level: int,
        text: str,
        *values: Any,
        **fields: Any,
    ) -> None:
        if level < self._level or not logger.isEnabledFor(level):
            return
        fields = {"run_id": event.run_id, "path": event.path, **fields}
        extra = {name: value for name, value in fields.items() if value is not None}
        logger.log(level, text, *values, extra=extra)

    def _debug(
        self, event: events.Event, logger: logging.Logger, text: str, *values: Any, **fields: Any
    ) -> None:
        self._log(event, logger, logging.DEBUG, text, *values, **fields)

    def _info(self, event: events.Event, text: str, *values: Any, **fields: Any) -> None:
        self._log(event, self._runs, logging.INFO, text, *values, **fields)

    # -- runs

    def _run_started(self, event: events.RunStarted) -> None:
        name = _name(event.program)
        if event.run_id in self._known:  # a program inside the run
            text = "%s begins in the run %s"
            self._debug(event, self._runs, text, name, event.run_id, program=name)
            return
        self._known[event.run_id] = _Segment(name, event.at, event.depth)
        self._info(
            event,
            "The run %s of %s begins",
            event.run_id,
            name,
            program=name,
            title=event.title or None,
            metadata=event.metadata or None,
        )

    def _resumed(self, event: events.Resumed) -> None:
        name, steps = _name(event.program), len(event.trajectory.steps)
        self._known[event.run_id] = _Segment(name, event.at, event.depth, steps)
        text = "The run %s of %s resumes after %d steps"
        self._info(event, text, event.run_id, name, steps, program=name, steps=steps)

    def _run_finished(self, event: events.RunFinished) -> None:
        segment = self._known.get(event.run_id) or _Segment("", event.at, 0)
        if event.depth > segment.depth:
            text = "A program in the run %s is %s"
            self._debug(event, self._runs, text, event.run_id, event.status)
            return
        self._known.pop(event.run_id, None)
        seconds = event.at - segment.began
        tokens, cost = segment.tokens, None
        if isinstance(event.prediction, Prediction):
            usage = event.prediction.get_lm_usage()
            tokens, cost = usage.total_tokens, usage.cost
        error_type = _kind_of(event.error)
        status: str = event.status
        if error_type is not None:
            status = f"{status} ({error_type})"
        self._info(
            event,
            "The run %s of %s is %s: %d steps, %d tokens, %.3f s",
            event.run_id,
            segment.program,
            status,
            segment.steps,
            tokens,
            seconds,
            status=event.status,
            steps=segment.steps,
            tokens=tokens,
            cost=cost,
            seconds=seconds,
            program=segment.program,
            error_type=error_type,
        )

    def _step_finished(self, event: events.StepFinished) -> None:
        segment = self._known.get(event.run_id)
        if segment is not None:
            segment.steps += 1

    def _migrated(self, event: events.Migrated) -> None:
        self._info(event, "The run %s continues with another version of its program", event.run_id)

    # -- models

    def _model_called(self, event: events.ModelCalled) -> None:
        name = _name(event.lm)
        self._debug(event, self._models, "%s is called", name, model=name, attempt=event.attempt)

    def _model_answered(self, event: events.ModelAnswered) -> None:
        response = event.response
        if response is None:
            kind = _kind_of(event.error)
            self._debug(event, self._models, "A model failed (%s)", kind, error_type=kind)
            return
        tokens = response.usage.total_tokens
        segment = self._known.get(event.run_id)
        if segment is not None:
            segment.tokens += tokens
        self._debug(
            event,
            self._models,
            "%s answered with %d tokens",
            response.model or "A model",
            tokens,
            model=response.model,
            tokens=tokens,
            cost=response.cost,
            finish_reason=response.finish_reason,
        )

    def _attempt_failed(self, event: events.AttemptFailed) -> None:
        text = "An answer could not be used (attempt %d)"
        self._log(event, self._models, logging.WARNING, text, event.attempt, attempt=event.attempt)

    # -- tools

    def _call_started(self, event: events.CallStarted) -> None:
        call = event.call
        self._debug(event, self._tools, "%s is called", call.name, tool=call.name, call_id=call.id)

    def _provider_call_finished(self, event: events.ProviderCallFinished) -> None:
        call = event.call
        text = "%s failed at the provider" if call.is_error else "%s returned at the provider"
        self._debug(
            event,
            self._tools,
            text,
            call.name,
            tool=call.name,
            call_id=call.id,
            is_error=call.is_error,
        )

    def _call_finished(self, event: events.CallFinished) -> None:
        call, is_error = event.call, event.result.is_error
        self._debug(
            event,
            self._tools,
            "%s failed" if is_error else "%s returned",
            call.name,
            tool=call.name,
            call_id=call.id,
            is_error=is_error,
            error_type=_kind_of(event.result.error),
        )


def _name(value: Any) -> str:
    return str(getattr(value, "name", "") or type(value).__name__)


def _kind_of(error: BaseException | None) -> str | None:
    if error is None:
        return None
    return type(error).__name__
