"""`Evaluate`: runs a program on examples, scores its answers, and compares two evaluations."""

from __future__ import annotations

import asyncio
import csv
import inspect
import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from ferrule.concurrency import offload
from ferrule.concurrency.cancellation import raising_errors
from ferrule.encoding.encode import digest_of, json_text, jsonable
from ferrule.encoding.safe_text import one_line
from ferrule.errors import ConfigurationError, InputError, checks_keywords, shown
from ferrule.programs.lifecycle.batch import check_workers
from ferrule.runs.cases.expectations import Expectation
from ferrule.runs.evaluations import ItemScore
from ferrule.tools.definition.inspect_function import name_of
from ferrule.values.typed import plan_of

if TYPE_CHECKING:
    from ferrule.programs.lifecycle.batch import BatchResults
    from ferrule.runs.limits import Limits
    from ferrule.runs.protocols import Store
    from ferrule.values.conversation.exchange import Usage

Metric = Callable[..., Any]
"""`metric(example, prediction)`, or with `trace` as a third argument; sync or async.

It returns a number or a boolean; or an object with `score`, and `feedback` in words. Or it is an
expectation of `ferrule.cases`, such as `called("refund")`, on the calls that a run made.
"""
_MOST_CHARS = 32
"""Of a cell of the table."""
_MOST_WORDS = 120
"""Characters of a cell with feedback or an error, which is the last one of its row."""
_MOST_ROWS = 50


class EvaluatedItem(Struct, frozen=True):
    """One example with the program's answer and its scores."""

    example: Mapping[str, Any]
    """The inputs and the expected values, as they were given."""
    prediction: Any
    """The program's prediction; None if it failed."""
    scores: Mapping[str, float]
    """By metric. An item that failed, or whose metric raised, has the `failure_score`."""
    error: BaseException | None = None
    """What the program raised, or the metric."""
    feedback: str = ""
    """What the metrics say in words."""
    run: Any = None
    """The run of the item; None inside another run."""

    @property
    def key(self) -> str:
        """Identifies the example in another evaluation: a digest of its values."""
        return digest_of(jsonable(dict(self.example)), 24)


class ChangedItem(Struct, frozen=True):
    """An example with other scores in two evaluations."""

    before: EvaluatedItem
    after: EvaluatedItem
    change: float
    """How much the score of the first metric has risen."""


class Comparison(Struct, frozen=True):
    """Two evaluations of the same examples."""

    improved: Sequence[ChangedItem]
    worsened: Sequence[ChangedItem]
    same: int
    only_before: Sequence[EvaluatedItem]
    """The examples that only the first evaluation has."""
    only_after: Sequence[EvaluatedItem]

    def __str__(self) -> str:
        text = f"{len(self.improved)} improved, {len(self.worsened)} worsened, {self.same} the same"
        missing = len(self.only_before) + len(self.only_after)
        if missing:
            text += f"; {missing} in one evaluation only"
        return text


class Evaluation(Sequence[EvaluatedItem]):
    """The result of `Evaluate`: its items, in the order of the examples."""

    @checks_keywords
    def __init__(
        self,
        items: Sequence[EvaluatedItem],
        metrics: Sequence[str],
        usage: Usage,
        seconds: float,
        evaluation_id: str = "",
    ) -> None:
        self.items = tuple(items)
        self.metrics = tuple(metrics)
        """The names of the metrics, in order."""
        self.usage = usage
        """Tokens and cost of all items, also of those that failed; not of the metrics."""
        self.seconds = seconds
        self.evaluation_id = evaluation_id
        """`Evaluate(store=, evaluation_id=)` with this id goes on where it stopped."""

    @property
    def score(self) -> float:
        """The mean of the first metric."""
        return self.scores[self.metrics[0]]

    @property
    def scores(self) -> dict[str, float]:
        """The mean of each metric; 0 without items."""
        return {
            name: sum(item.scores[name] for item in self.items) / max(len(self.items), 1)
            for name in self.metrics
        }

    @property
    def failed(self) -> list[EvaluatedItem]:
        """The items whose program or metric raised an error."""
        return [item for item in self.items if item.error is not None]

    @property
    def cost(self) -> float | None:
        """The cost of all items in US dollars; None if the cost of one answer is unknown."""
        return self.usage.cost

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        items: Any = self.items
        return items[index]

    def __iter__(self) -> Iterator[EvaluatedItem]:
        return iter(self.items)

    def __str__(self) -> str:
        means = ", ".join(f"{name} {mean:.3g}" for name, mean in self.scores.items())
        text = f"{len(self.items)} examples in {self.seconds:.1f} s: {means}"
        if self.failed:
            text += f"; {len(self.failed)} failed"
        if self.cost:
            text += f"; {self.cost:.4f} US dollars"
        return text

    def __repr__(self) -> str:
        return f"<Evaluation: {self}>"

    def compare(self, before: Evaluation) -> Comparison:
        """Which items have changed since an earlier evaluation, by the first metric."""
        earlier: dict[str, list[EvaluatedItem]] = {}
        for item in before.items:
            earlier.setdefault(item.key, []).append(item)
        improved: list[ChangedItem] = []
        worsened: list[ChangedItem] = []
        only_after: list[EvaluatedItem] = []
        same = 0
        for item in self.items:
            candidates = earlier.get(item.key)
            if not candidates:
                only_after.append(item)
                continue
            old = candidates.pop(0)
            change = item.scores[self.metrics[0]] - old.scores[before.metrics[0]]
            if change > 0:
                improved.append(ChangedItem(old, item, change))
            elif change < 0:
                worsened.append(ChangedItem(old, item, change))
            else:
                same += 1
        only_before = [item for items in earlier.values() for item in items]
        return Comparison(improved, worsened, same, only_before, only_after)

    def table(self, most: int | None = _MOST_ROWS) -> str:
        """The items as a table in text: the values of each example, the outputs, the scores."""
        rows = self._rows()
        shown_rows = rows if most is None else rows[:most]
        heading = list(dict.fromkeys(name for row in rows for name in row))
        cells = [heading]
        cells += [[_cell(name, row.get(name, "")) for name in heading] for row in shown_rows]
        widths = [max(len(line[column]) for line in cells) for column in range(len(heading))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in cells
        ]
        if len(shown_rows) < len(rows):
            lines.append(f"... and {len(rows) - len(shown_rows)} more")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The scores and all items as JSON text."""
        return json_text(
            {
                "evaluation_id": self.evaluation_id,
                "scores": self.scores,
                "seconds": self.seconds,
                "cost": self.cost,
                "items": self._rows(),
            }
        )

    def to_csv(self) -> str:
        """The items as CSV text, with a line of names."""
        rows = self._rows()
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _plain(value) for name, value in row.items()})
        return text.getvalue()

    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for item in self.items:
            row: dict[str, Any] = dict(jsonable(dict(item.example)))
            if item.prediction is not None:
                outputs = cast("dict[str, Any]", jsonable(item.prediction.toDict()))
                # An output with the name of an expected value stands beside it.
                row |= {
                    (f"predicted {name}" if name in row else name): value
                    for name, value in outputs.items()
                }
            row |= item.scores
            if any(other.feedback for other in self.items):
                row["feedback"] = item.feedback
            if self.failed:
                row["error"] = "" if item.error is None else shown(item.error)
            rows.append(row)
        return rows


class Evaluate:
    """Runs a program on examples and scores its answers: `Evaluate(devset, metric)(program)`."""

    @checks_keywords
    def __init__(
        self,
        devset: Iterable[Any],
        metric: Metric | Sequence[Metric] | Mapping[str, Metric],
        *,
        inputs: Sequence[str] | None = None,
        max_concurrency: int | None = None,
        store: Store | None = None,
        evaluation_id: str | None = None,
        limits: Limits | None = None,
        timeout: float | None = None,
        deps: Any = None,
        retry_failed: bool = False,
        max_errors: int | None = None,
        failure_score: float = 0.0,
        display_progress: bool = False,
        display_table: bool | int = False,
    ) -> None:
        """Prepare an evaluation.

        Args:
            devset: The examples: mappings with the inputs and the expected values.
            metric: Scores an answer (`Metric`). Several, as a list or by name, give several scores.
            inputs: The names of the inputs. By default those that the program declares; the other
                values of an example are for the metric.
            max_concurrency: How many items run at once.
            store: Keeps the run of each item. An evaluation that was killed goes on where it
                stopped: only items without an answer ask a model. Metrics score again, and
                their scores are kept with the runs (`ferrule ui` compares two evaluations).
            evaluation_id: The name of the evaluation in the store.
            limits: What all items together may spend.
            timeout: The most seconds of one item.
            deps: What the tools find in `Context.deps`.
            retry_failed: Run stored items again that failed.
            max_errors: After so many failed items, the first error is raised.
            failure_score: The score of an item that fails.
            display_progress: Show progress on standard error, if that is a terminal.
            display_table: Print the table of items; a number prints as many.

        """
        self.devset = _listed(devset)
        self.metrics = _metrics(metric)
        self.input_names = None if inputs is None else tuple(inputs)
        self.max_concurrency = max_concurrency
        self.max_errors = max_errors
        self.failure_score = failure_score
        self.display_progress = display_progress
        self.display_table = display_table
        if evaluation_id is not None and store is None:
            raise ConfigurationError(
                "`evaluation_id` names an evaluation in a store: pass `store=` too."
            )
        self._options: dict[str, Any] = {
            "store": store,
            "batch_id": evaluation_id,
            "limits": limits,
            "timeout": timeout,
            "deps": deps,
            "retry_failed": retry_failed,
        }

    def __call__(self, program: Any) -> Evaluation:
        """Run the program on all examples, and score them.

        Raises the first error after `max_errors` failed items, and `InputError` for an example
        without one of the inputs.
        """
        progress = _Progress(self)
        predictions = program.batch(
            self._inputs_for(program),
            max_concurrency=self.max_concurrency,
            on_result=progress.note,
            **self._batch_options(),
        )
        scored = offload.run_async(self._score_all(predictions))
        evaluation = self._evaluation(predictions, scored, progress)
        self._keep(evaluation)
        return self._shown(evaluation, progress)

    async def acall(self, program: Any) -> Evaluation:
        """As a call, on an event loop."""
        progress = _Progress(self)
        predictions = await program.abatch(
            self._inputs_for(program),
            max_concurrency=self.max_concurrency,
            on_result=progress.note,
            **self._batch_options(),
        )
        scored = await self._score_all(predictions)
        evaluation = self._evaluation(predictions, scored, progress)
        await offload.in_worker_thread(partial(self._keep, evaluation))
        return self._shown(evaluation, progress)

    def _batch_options(self) -> dict[str, Any]:
        return {**self._options, "progress": False, "return_exceptions": True}

    def _inputs_for(self, program: Any) -> list[dict[str, Any]]:
        names = self.input_names
        if names is None:
            names = _declared_inputs(program)
        return [_inputs_of(example, names) for example in self.devset]

    async def _score_all(self, predictions: Sequence[Any]) -> list[EvaluatedItem]:
        places = asyncio.Semaphore(check_workers(self.max_concurrency))

        async def score(number: int) -> EvaluatedItem:
            async with places:
                return await self._score(self.devset[number], predictions[number])

        return list(await asyncio.gather(*map(score, range(len(self.devset)))))

    async def _score(self, example: Any, prediction: Any) -> EvaluatedItem:
        failed = dict.fromkeys(self.metrics, self.failure_score)
        if isinstance(prediction, BaseException):
            return EvaluatedItem(example, None, failed, prediction)
        scores: dict[str, float] = {}
        feedback: list[str] = []
        try:
            for name, metric in self.metrics.items():
                with raising_errors(f"The metric `{name}`", in_task=True):
                    answer = await _call_metric(metric, example, prediction)
                scores[name], words = _read_score(name, answer)
                if words:
                    feedback.append(words)
        except Exception as error:  # noqa: BLE001  a metric of the user's; the item has failed
            return EvaluatedItem(example, prediction, {**failed, **scores}, error)
        return EvaluatedItem(example, prediction, scores, None, "\n".join(feedback))

    def _evaluation(
        self,
        results: BatchResults[Any, Any],
        scored: Sequence[EvaluatedItem],
        progress: _Progress,
    ) -> Evaluation:
        items = [replace(item, run=run) for item, run in zip(scored, results.runs, strict=True)]
        evaluation_id = results.batch_id if self._options["store"] is not None else ""
        return Evaluation(items, list(self.metrics), results.usage, progress.seconds, evaluation_id)

    def _keep(self, evaluation: Evaluation) -> None:
        """Keep the scores with the runs, for people who look at the store."""
        store: Store | None = self._options["store"]
        if store is None:
            return
        scores = {
            item.run.id: ItemScore(
                scores=item.scores, has_failed=item.error is not None, feedback=item.feedback
            )
            for item in evaluation.items
            if item.run is not None
        }
        store.score(evaluation.evaluation_id, scores)

    def _shown(self, evaluation: Evaluation, progress: _Progress) -> Evaluation:
        progress.end(evaluation)
        if self.display_table:
            most = _MOST_ROWS if self.display_table is True else int(self.display_table)
            sys.stdout.write(f"{evaluation.table(most)}\n{evaluation}\n")
        return evaluation


class _Progress:
    """A line on standard error, and the count of failed items."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._began = time.monotonic()
        self._done = self._failed = 0
        self._first_error: BaseException | None = None
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._is_shown = evaluate.display_progress and is_terminal

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def note(self, _: int, result: Any) -> None:
        """Count an item; raises the first error after too many."""
        self._done += 1
        if isinstance(result, BaseException):
            self._failed += 1
            self._first_error = self._first_error or result
        if self._is_shown:
            self._show()
        most = self._evaluate.max_errors
        if self._first_error is not None and most is not None and self._failed >= most:
            raise self._first_error

    def _show(self) -> None:
        count = len(self._evaluate.devset)
        left_s = self.seconds / self._done * (count - self._done)
        filled = 30 * self._done // count
        bar = f"{'#' * filled}{'.' * (30 - filled)}"
        minutes, seconds = divmod(round(left_s), 60)
        failed = f", {self._failed} failed" if self._failed else ""
        sys.stderr.write(f"\r[{bar}] {self._done}/{count}{failed}, {minutes}:{seconds:02} left ")
        sys.stderr.flush()

    def end(self, evaluation: Evaluation) -> None:
        if self._is_shown:
            sys.stderr.write(f"\n{evaluation}\n")


# -- examples


def _listed(devset: Iterable[Any]) -> list[Any]:
    value = cast("object", devset)  # users pass anything
    if isinstance(value, (Mapping, str, bytes)) or not isinstance(value, Iterable):
        what = shown(cast("object", devset))
        raise InputError(
            f"`devset` is a list of examples, mappings of names to values; found {what}."
        )
    return list(cast("Iterable[Any]", value))


def _declared_inputs(program: Any) -> tuple[str, ...]:
    """The names of a program's inputs, by its signature or its `forward`."""
    plan = plan_of(program)
    if plan is not None:
        return tuple(plan.inputs)
    function = program.aforward if program.is_only_async else program.forward
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        raise ConfigurationError(
            f"`{program.name}` takes any inputs: name those of the examples, "
            "`Evaluate(devset, metric, inputs=['question'])`."
        )
    return tuple(parameter.name for parameter in parameters)


def _inputs_of(example: Any, names: Iterable[str]) -> dict[str, Any]:
    """The inputs in an example; those of DSPy's examples are named in them."""
    if getattr(example, "_input_keys", None) is not None:
        return dict(example.inputs())
    try:
        return {name: example[name] for name in names if name in example}
    except TypeError:
        raise InputError(
            f"An example is a mapping of names to values; found {shown(example)}."
        ) from None


# -- metrics


def _metrics(metric: Any) -> dict[str, Metric]:
    what = shown(metric)
    if callable(metric):
        metrics = {_name_of(metric): metric}
    elif isinstance(metric, Mapping):
        metrics = dict(cast("Mapping[str, Metric]", metric))
    elif isinstance(metric, Sequence) and not isinstance(metric, str):
        functions = cast("Sequence[Metric]", metric)
        metrics = {_name_of(function): function for function in functions}
        if len(metrics) < len(functions):
            raise ConfigurationError(
                "Two metrics have the same name: pass them by name, `{'exact': ..., 'close': ...}`."
            )
    else:
        metrics = {}
    if not metrics or not all(callable(function) for function in metrics.values()):
        raise ConfigurationError(
            "`metric` is a function of an example and a prediction, a list of such functions, or "
            f"a mapping of names to them; found {what}."
        )
    return metrics


def _name_of(metric: Metric) -> str:
    if isinstance(metric, Expectation):
        return str(metric)
    name = name_of(metric) or ""
    return name if name.isidentifier() else "score"


async def _call_metric(metric: Metric, example: Any, prediction: Any) -> Any:
    """What a metric says of an answer; a sync one runs in a thread."""
    if isinstance(metric, Expectation):
        return metric.judge(prediction)
    arguments = [example, prediction]
    with suppress(ValueError, TypeError):  # a function in C may have no signature
        signature = inspect.signature(metric)
        try:
            signature.bind(example, prediction)
        except TypeError:
            arguments.append(None)  # `trace`, which only an optimizer gives
    if hasattr(metric, "acall"):
        return await cast("Any", metric).acall(*arguments)
    call: Any = getattr(type(metric), "__call__", None)  # noqa: B004  of an object
    if inspect.iscoroutinefunction(metric) or inspect.iscoroutinefunction(call):
        return await metric(*arguments)
    return await offload.in_worker_thread(partial(metric, *arguments))


def _read_score(name: str, answer: Any) -> tuple[float, str]:
    """The score and the words in what a metric returned; raises `ConfigurationError`."""
    score = getattr(answer, "score", answer)
    feedback = getattr(answer, "feedback", None) or ""
    if isinstance(score, bool | int | float) and isfinite(score):  # one NaN is every mean
        return float(score), str(feedback)
    raise ConfigurationError(
        f"The metric `{name}` returned {shown(answer)}: a metric returns a number or a boolean, or "
        "an object with a `score`."
    )


# -- cells


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | bool):
        return value
    return json_text(value)


def _cell(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    most = _MOST_WORDS if name in ("feedback", "error") else _MOST_CHARS
    return one_line(str(_plain(value)), most)
