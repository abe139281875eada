"""The program that the page was opened with.

Its runs execute in threads of this process, and stream their answers to the page; the schema of its
inputs becomes a form.
"""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import to_jsonable_python

from ferrule import events
from ferrule.errors import ConfigurationError, FerruleError, RunError
from ferrule.runs.driver.execution import execute
from ferrule.runs.run import Run
from ferrule.runs.store.fingerprint import differences, program_fingerprint
from ferrule.tools.execution.run import attempt
from ferrule.values.conversation.history import History
from ferrule.values.masked import masked_request
from ferrule.values.outcome import Prediction
from ferrule.values.signatures.fields import adapter_of, history_input, input_check

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.events import Event
    from ferrule.runs.protocols import Store, Summary
    from ferrule.values.conversation.exchange import Request

_MOST_RUNS = 64
"""At once. Each has a thread."""
_PATIENCE_S = 10.0
"""How long a page waits for a new run to appear in the store."""
_MOST_OUTPUTS = 500
_MOST_KNOWN = 10_000


class AnswerDraft(Struct):
    """What the model has said of the answer that is being written."""

    version: int = 0
    thought: list[str] = field(default_factory=list[str])
    texts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """By output field; under an empty name the text that belongs to none."""
    calls: dict[int, str] = field(default_factory=dict[int, str])
    """The names of the calls so far, by their place."""

    def take(self, event: Event) -> None:
        """An event of the run. What happens inside a tool is not shown."""
        if event.parent_id or event.depth:
            return
        match event:
            case events.ThoughtDelta(text=text):
                self.thought.append(text)
            case events.FieldDelta(field=name, text=text):
                self.texts.setdefault(name, []).append(text)
            case events.TextDelta(text=text):
                self.texts.setdefault("", []).append(text)
            case events.Preamble(field=name, text=text):
                self.texts.pop(name, None)
                if text:
                    self.texts[""] = [text]
            case events.CallDelta(index=index, name=name):
                self.calls[index] = name
            case (
                events.ModelCalled()
                | events.ModelAnswered()
                | events.AttemptFailed()
                | events.RunFinished()
            ):
                self.thought, self.texts, self.calls = [], {}, {}
            case _:
                return
        self.version += 1

    def shown(self, most: int) -> dict[str, Any] | None:
        """The draft for a template, with the last `most` characters of each text.

        None if there is nothing.
        """
        # Copies, because the thread of the run goes on writing.
        thought = "".join(list(self.thought))[-most:]
        texts = {name: "".join(list(pieces))[-most:] for name, pieces in list(self.texts.items())}
        texts = {name: text for name, text in texts.items() if text}
        calls = [name for name in list(self.calls.values()) if name and name != "finish"]
        if not (thought or texts or calls):
            return None
        return {"thought": thought, "texts": texts, "calls": calls}


class _Execution(Struct):
    """One run that executes here."""

    draft: AnswerDraft = field(default_factory=AnswerDraft)
    begun: threading.Event = field(default_factory=threading.Event)
    """Set when the run is in the store, or has ended."""
    error: FerruleError | None = None

    def take(self, event: Event) -> None:
        self.draft.take(event)
        self.begun.set()


class Work:
    """Executes runs of one program. `place` is what a command line calls the program."""

    def __init__(self, store: Store, program: Any, *, deps: Any = None, place: str = "") -> None:
        self.program = program
        self.place = place
        self.known: dict[str, None] = {}
        """The runs that were begun or resumed here and have not ended, the oldest first."""
        self._store = store
        self._deps = deps
        self._context = copy_context()  # with the settings of where the page was made
        self._executions: dict[str, _Execution] = {}
        self._lock = threading.Lock()
        self._ended = 0
        self._fingerprint = program_fingerprint(program)
        self._outputs: dict[str, dict[str, Any]] = {}
        signature = getattr(program, "signature", None)
        self._fields: Mapping[str, Any] = signature.plan.inputs if signature is not None else {}
        self.history = history_input(self._fields)
        """The input that takes the earlier turns; empty if there is none."""
        self.schema = None
        if self._fields:
            self.schema = self._input_schema()
        """The JSON Schema of the inputs, without the history; None if they cannot be typed."""
        self.message = self._message_input()
        """The input that a chat message fills; empty if no input is text."""

    @property
    def version(self) -> int:
        """A number that changes whenever something is streamed here, or a run ends."""
        return self._ended + sum(
            execution.draft.version for execution in tuple(self._executions.values())
        )

    @property
    def at_work(self) -> tuple[str, ...]:
        """The runs that execute here now."""
        return tuple(self._executions)

    def draft(self, run_id: str) -> AnswerDraft | None:
        """The answer that a run is streaming here; None if it does not execute here."""
        execution = self._executions.get(run_id)
        if execution is not None:
            return execution.draft
        return None

    def fits(self, head: Mapping[str, Any]) -> bool:
        """Whether a stored run is one of this very program."""
        fingerprint = head.get("fingerprint")
        if head.get("redacted") or not fingerprint:
            return False
        return fingerprint == self._fingerprint or not differences(fingerprint, self.program)

    def start(self, inputs: Mapping[str, Any], run_id: str) -> None:
        """Begin a run, and return once it is in the store.

        Raises the error of a run that cannot begin.
        """
        run: Run[Any] = Run(self.program, (), dict(inputs), run_id=run_id, deps=self._deps)
        run.keep(self._store)
        self._begin(run)

    def resume(self, run_id: str) -> None:
        """Resume a stored run. Raises the error of a run that cannot continue."""
        run: Run[Any] = Run.load(self._store, run_id, self.program, deps=self._deps)
        run.goes_on(resumed=True)
        self._begin(run)

    def fork(
        self, run_id: str, at: str, new_id: str, inputs: Mapping[str, Any] | None = None
    ) -> None:
        """Begin a run, with a new id, with what a stored run recorded before a place.

        `inputs` take the place of those of the stored run.
        """
        self._begin(self._load(run_id).fork(at=at, run_id=new_id, inputs=inputs))

    def inputs(self, run_id: str) -> dict[str, Any]:
        """The inputs of a stored run as JSON values, for a form."""
        inputs = {
            name: value
            for name, value in self._load(run_id).inputs.items()
            if name in self._fields and name != self.history
        }
        form: Any = to_jsonable_python(inputs, serialize_unknown=True, fallback=str)
        return form

    def _begin(self, run: Run[Any]) -> None:
        execution = _Execution()
        with self._lock:
            if run.id in self._executions:
                raise RunError(f"The run {run.id!r} is at work already.")
            if len(self._executions) >= _MOST_RUNS:
                raise RunError(f"{_MOST_RUNS} runs are at work here; wait until one of them ends.")
            self._executions[run.id] = execution
        self.known[run.id] = None
        # The decisions of a run that is forgotten here are stored; a person resumes it.
        for oldest in tuple(self.known)[:-_MOST_KNOWN]:
            self.known.pop(oldest, None)
        # A daemon: Ctrl-C does not wait for it. Its run goes on from its journal, like that of any
        # process that ended.
        threading.Thread(
            target=self._context.copy().run,
            args=(self._execute, run, execution),
            name="ferrule-ui-run",
            daemon=True,
        ).start()
        execution.begun.wait(_PATIENCE_S)
        if execution.error is not None:
            raise execution.error

    def _execute(self, run: Run[Any], execution: _Execution) -> None:
        try:
            execute(run, observers=(execution.take,), wants_deltas=True)
            if run.status == "done":
                self._keep(run.id, run.prediction)
        except FerruleError as error:
            # It could not begin, or lost its lease. A failure of the program is in the store.
            execution.error = error
        finally:
            with self._lock:
                self._ended += 1 + execution.draft.version
                del self._executions[run.id]
            if run.status in {"done", "failed", "cancelled"}:
                self.known.pop(run.id, None)
            execution.begun.set()

    # -- inputs and outputs

    def outputs(self, run_id: str) -> dict[str, Any] | None:
        """What a run of this program returned, by a replay of its journal.

        None if it cannot be replayed.
        """
        if run_id not in self._outputs:
            prediction, error = attempt(lambda: self._replayed(run_id))
            if error is not None:
                return None
            self._keep(run_id, prediction)
        return self._outputs.get(run_id)

    def _replayed(self, run_id: str) -> Any:
        """The prediction of a run, made with the settings of the page."""
        return self._context.copy().run(lambda: self._load(run_id).prediction)

    def request(self, run_id: str, slot: str) -> tuple[Any, Request] | None:
        """The model and the request of one model call of a run, by a replay of its journal.

        Secrets are stars. None if the replay does not come so far.
        """
        context = self._context.copy()
        sent, error = attempt(lambda: context.run(lambda: self._load(run_id).requests().get(slot)))
        if error is not None or sent is None:
            return None
        lm, request = sent
        return lm, masked_request(request)

    def system_message(self, run_id: str) -> str:
        """What the first request of a run says to the model before all else; empty if unknown."""
        context = self._context.copy()
        requests, error = attempt(lambda: context.run(lambda: self._load(run_id).requests()))
        if error is not None or not requests:
            return ""
        _, request = next(iter(requests.values()))
        first = masked_request(request).messages[:1]
        return "".join(message.text for message in first if message.role == "system")

    def _keep(self, run_id: str, prediction: Any) -> None:
        outputs = {"": prediction}
        if isinstance(prediction, Prediction):
            outputs = dict(prediction.items())
        form: Any = to_jsonable_python(outputs, serialize_unknown=True, fallback=str)
        self._outputs[run_id] = form
        while len(self._outputs) > _MOST_OUTPUTS:
            del self._outputs[next(iter(self._outputs))]

    def turns(self, run: Summary | None) -> History:
        """The conversation up to this run, as an input of the next one.

        A failed turn is left out.
        """
        if run is None:
            return History()
        if run.status == "done":
            return self._replayed(run.id).history
        return self._load(run.id).inputs.get(self.history) or History()

    def _load(self, run_id: str) -> Run[Any]:
        return Run.load(self._store, run_id, self.program, deps=self._deps)

    def typed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs as the program declares them. Raises `ValueError` for one that does not fit."""
        inputs: dict[str, Any] = {}
        for name, value in values.items():
            check = input_check(self._fields[name])
            try:
                inputs[name] = check(value) if check is not None else value
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        return inputs

    def _message_input(self) -> str:
        properties: dict[str, Any] = self.schema["properties"] if self.schema is not None else {}
        for name, schema in properties.items():
            is_text = schema.get("type") == "string"
            if is_text and "enum" not in schema and "format" not in schema:
                return name
        return ""

    def _input_schema(self) -> dict[str, Any] | None:
        fields = {
            name: input_field for name, input_field in self._fields.items() if name != self.history
        }
        try:
            schemas, definitions = TypeAdapter.json_schemas(
                [
                    (name, "validation", adapter_of(input_field))
                    for name, input_field in fields.items()
                ]
            )
        except PydanticUserError:  # such as a tool
            return None
        properties: dict[str, Any] = {}
        for name, input_field in fields.items():
            schema = dict(schemas[name, "validation"])
            if input_field.description:
                schema["description"] = input_field.description
            if not input_field.is_required:
                schema["default"] = to_jsonable_python(
                    input_field.get_default(), serialize_unknown=True
                )
            properties[name] = schema
        required = [name for name, input_field in fields.items() if input_field.is_required]
        return {"type": "object", "properties": properties, "required": required, **definitions}


def check_program(program: Any) -> None:
    """Raise `ConfigurationError` if it is not a program."""
    if not all(hasattr(program, name) for name in ("is_flow", "flow", "forward", "name")):
        raise ConfigurationError(
            f"The page takes a program, such as `ReAct(...)`; found {program!r}."
        )
