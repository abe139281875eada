"""The program that the page was opened with: its runs in threads of this process, their streamed answers, and the schema of its inputs."""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, cast

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
from ferrule.values.outcome import Prediction
from ferrule.values.signatures.fields import adapter_of, input_check, without_none

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.events import Event
    from ferrule.runs.protocols import Store, Summary

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
        """For a template: at most so many last characters of each text. None if there is nothing."""
        thought = "".join([*self.thought])[-most:]
        texts = {
            name: text[-most:]
            for name, pieces in tuple(self.texts.items())
            if (text := "".join([*pieces]))
        }
        calls = [name for name in tuple(self.calls.values()) if name and name != "finish"]
        return (
            {"thought": thought, "texts": texts, "calls": calls}
            if thought or texts or calls
            else None
        )


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
        self._context = copy_context()  # of where the page was made, with its settings
        self._going: dict[str, _Execution] = {}
        self._lock = threading.Lock()
        self._ended = 0
        self._fingerprint = program_fingerprint(program)
        self._outputs: dict[str, dict[str, Any]] = {}
        signature = getattr(program, "signature", None)
        self._fields: Mapping[str, Any] = signature.plan.inputs if signature is not None else {}
        self.history = next(
            (
                name
                for name, each in self._fields.items()
                if without_none(each.annotation) is History
            ),
            "",
        )
        """The input that takes the earlier turns; empty if there is none."""
        self.schema = self._input_schema() if self._fields else None
        """The JSON Schema of the inputs, without the history; None if they cannot be typed."""
        properties: Any = self.schema["properties"] if self.schema is not None else {}
        texts = (
            name
            for name, each in properties.items()
            if each.get("type") == "string" and "enum" not in each and "format" not in each
        )
        self.message = next(texts, "")
        """The input that a chat message fills; empty if no input is text."""

    @property
    def version(self) -> int:
        """A number that changes whenever something is streamed here, or a run ends."""
        return self._ended + sum(each.draft.version for each in tuple(self._going.values()))

    @property
    def at_work(self) -> tuple[str, ...]:
        """The runs that execute here now."""
        return tuple(self._going)

    def draft(self, run_id: str) -> AnswerDraft | None:
        """The answer that a run is streaming here; None if it does not execute here."""
        found = self._going.get(run_id)
        return found.draft if found is not None else None

    def fits(self, head: Mapping[str, Any]) -> bool:
        """Whether a stored run is one of this very program."""
        then = head.get("fingerprint")
        return not head.get("redacted") and (
            then == self._fingerprint or (bool(then) and not differences(then, self.program))
        )

    def start(self, inputs: Mapping[str, Any], run_id: str) -> None:
        """Begin a run, and return once it is in the store. Raises the error of a run that cannot begin."""
        run: Run[Any] = Run(self.program, (), dict(inputs), run_id=run_id, deps=self._deps)
        run.keep(self._store)
        self._begin(run)

    def resume(self, run_id: str) -> None:
        """Resume a stored run. Raises the error of a run that cannot continue."""
        run: Run[Any] = Run.load(self._store, run_id, self.program, deps=self._deps)
        run.goes_on(resumed=True)
        self._begin(run)

    def _begin(self, run: Run[Any]) -> None:
        going = _Execution()
        with self._lock:
            if run.id in self._going:
                raise RunError(f"The run {run.id!r} is at work already.")
            if len(self._going) >= _MOST_RUNS:
                raise RunError(f"{_MOST_RUNS} runs are at work here; wait until one of them ends.")
            self._going[run.id] = going
        self.known[run.id] = None
        for oldest in tuple(self.known)[
            :-_MOST_KNOWN
        ]:  # its decisions are stored; it is no longer resumed here by itself
            self.known.pop(oldest, None)
        # A daemon: Ctrl-C does not wait for it. Its run goes on from its journal, like that of any
        # process that ended.
        threading.Thread(
            target=self._context.copy().run,
            args=(self._execute, run, going),
            name="ferrule-ui-run",
            daemon=True,
        ).start()
        going.begun.wait(_PATIENCE_S)
        if going.error is not None:
            raise going.error

    def _execute(self, run: Run[Any], going: _Execution) -> None:
        try:
            execute(run, observers=(going.take,), wants_deltas=True)
            if run.status == "done":
                self._keep(run.id, run.prediction)
        except FerruleError as error:  # it could not begin, or lost its lease; a failure of the program is in the store
            going.error = error
        finally:
            with self._lock:
                self._ended += 1 + going.draft.version
                del self._going[run.id]
            if run.status in {"done", "failed", "cancelled"}:
                self.known.pop(run.id, None)
            going.begun.set()

    # -- inputs and outputs
    # ------------------------------------------------------------------------------------------

    def outputs(self, run_id: str) -> dict[str, Any] | None:
        """What a run of this program returned, by a replay of its journal; None if it cannot be replayed."""
        if run_id not in self._outputs:
            found, error = attempt(
                lambda: self._context.copy().run(lambda: self._load(run_id).prediction),
            )
            if error is not None:
                return None
            self._keep(run_id, found)
        return self._outputs.get(run_id)

    def _keep(self, run_id: str, prediction: Any) -> None:
        found: Any = (
            dict(prediction.items()) if isinstance(prediction, Prediction) else {"": prediction}
        )
        self._outputs[run_id] = cast(
            "dict[str, Any]",
            to_jsonable_python(found, serialize_unknown=True, fallback=str),
        )
        while len(self._outputs) > _MOST_OUTPUTS:
            del self._outputs[next(iter(self._outputs))]

    def turns(self, run: Summary | None) -> History:
        """The conversation up to this run, as an input of the next one. A failed turn is left out."""
        if run is None:
            return History()
        if run.status == "done":
            return self._context.copy().run(lambda: self._load(run.id).prediction.history)
        return self._load(run.id).inputs.get(self.history) or History()

    def _load(self, run_id: str) -> Run[Any]:
        return Run.load(self._store, run_id, self.program, deps=self._deps)

    def typed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs as the program declares them. Raises `ValueError` for one that does not fit."""
        found: dict[str, Any] = {}
        for name, value in values.items():
            check = input_check(self._fields[name])
            try:
                found[name] = check(value) if check is not None else value
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        return found

    def _input_schema(self) -> dict[str, Any] | None:
        given = {name: each for name, each in self._fields.items() if name != self.history}
        try:
            made, rest = TypeAdapter.json_schemas(
                [(name, "validation", adapter_of(each)) for name, each in given.items()],
            )
        except PydanticUserError:  # such as a tool
            return None
        properties: dict[str, Any] = {}
        for name, each in given.items():
            schema = dict(made[name, "validation"])
            if each.description:
                schema["description"] = each.description
            if not each.is_required:
                schema["default"] = to_jsonable_python(each.get_default(), serialize_unknown=True)
            properties[name] = schema
        required = [name for name, each in given.items() if each.is_required]
        return {"type": "object", "properties": properties, "required": required, **rest}


def check_program(program: Any) -> None:
    """Raise `ConfigurationError` if it is not a program."""
    if not all(hasattr(program, name) for name in ("is_flow", "flow", "forward", "name")):
        raise ConfigurationError(
            f"The page takes a program, such as `ReAct(...)`; found {program!r}.",
        )
