"""Two runs, or two evaluations, side by side: what differs.

Everything is text in two columns. So a person sees at once whether a row differs, and the words
that differ are marked in it.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, field

from ferrule.programs.lifecycle.evaluate import EvaluatedItem, Evaluation
from ferrule.runs.evaluations import EvaluationFigures
from ferrule.runs.protocols import Summary
from ferrule.runs.story import Beat
from ferrule.values.conversation.exchange import Usage
from ferrule.web.markup import MOST_SHOWN, date, money, pretty, span, with_gaps
from ferrule.web.steps import calls_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ferrule.runs.protocols import Store
    from ferrule.web.reading import Read
    from ferrule.web.steps import CallInStep

_MOST_WORDS = 1_500
"""Longer texts are marked as a whole: finding the words that differ would take seconds."""
_MOST_STEPS = 400
"""Of each run, so many steps are compared."""
_WORD = re.compile(r"\w+\s*|\W")

Segment = tuple[str, bool]
"""A piece of a text, and whether the other text lacks it."""


class Pair(Struct, kw_only=True):
    """One row: what both runs have under a name. None is for a run without it."""

    name: str
    first: str | None
    second: str | None
    change: str = ""
    """For numbers, how the second differs, in words."""
    is_figure: bool = False
    """Whether no words in it are marked."""

    @property
    def differs(self) -> bool:
        """Whether the two are not the same."""
        return self.first != self.second

    @property
    def marked(self) -> tuple[list[Segment], list[Segment]]:
        """Both texts in pieces, those that differ marked."""
        first, second = self.first or "", self.second or ""
        if self.is_figure or not self.differs or self.first is None or self.second is None:
            return [(first, False)], [(second, False)]
        return _marked(first, second)


class ComparedStep(Struct, kw_only=True):
    """One step of each run; None is for a run without such a step."""

    first: Beat | None
    second: Beat | None
    pairs: list[Pair] = field(default_factory=list[Pair])

    @property
    def differs(self) -> bool:
        """Whether something in the steps is not the same."""
        return any(pair.differs for pair in self.pairs)


class ComparedRuns(Struct, kw_only=True):
    """Two runs, the one that started earlier first."""

    first: Summary
    second: Summary
    program: list[Pair]
    inputs: list[Pair]
    figures: list[Pair]
    steps: list[ComparedStep]
    left_out: int = 0
    """How many steps of the longer run are not compared."""

    @property
    def is_same(self) -> bool:
        """Whether the programs, the inputs and all steps are the same."""
        pairs = [*self.program, *self.inputs]
        return not any(pair.differs for pair in pairs) and not any(
            step.differs for step in self.steps
        )


def compare_runs(
    first: Read, second: Read, summaries: tuple[Summary, Summary], prompts: tuple[str, str]
) -> ComparedRuns:
    """Two runs side by side. `prompts` are their first system messages, if they are known."""
    program = _program_pairs(first, second, summaries)
    if any(prompts):
        program = [pair for pair in program if not pair.name.startswith("Instructions")]
        program.append(Pair(name="System message", first=prompts[0], second=prompts[1]))
    return ComparedRuns(
        first=summaries[0],
        second=summaries[1],
        program=program,
        inputs=_named_pairs(first.inputs, second.inputs),
        figures=_figures(*summaries),
        steps=_compared_steps(first.story.beats[:_MOST_STEPS], second.story.beats[:_MOST_STEPS]),
        left_out=max(0, max(first.turns, second.turns) - _MOST_STEPS),
    )


# -- the programs, the inputs and the figures


def _program_pairs(first: Read, second: Read, summaries: tuple[Summary, Summary]) -> list[Pair]:
    before, after = _program_facts(first), _program_facts(second)
    before["Program"], after["Program"] = summaries[0].program, summaries[1].program
    names = list(dict.fromkeys(["Program", *before, *after]))
    return [Pair(name=name, first=before.get(name), second=after.get(name)) for name in names]


def _program_facts(run: Read) -> dict[str, str]:
    """What a run's head says of its program, and the models that answered."""
    facts: dict[str, str] = {}
    models = dict.fromkeys(beat.model for beat in run.story.beats if beat.model)
    if models:
        facts["Model"] = ", ".join(models)
    fingerprint: Any = run.head.get("fingerprint") or {}
    predictors: dict[str, Any] = fingerprint.get("predictors") or {}
    for path, predictor in predictors.items():
        where = ""
        if len(predictors) > 1:
            where = f" of {path}"
        facts[f"Signature{where}"] = predictor["signature"]
        if predictor.get("instructions"):
            facts[f"Instructions{where}"] = predictor["instructions"]
        if predictor["tools"]:
            # With the beginning of the digest: two versions of a tool have the same name.
            tools = [f"{name} ({digest[:6]})" for name, digest in predictor["tools"].items()]
            facts[f"Tools{where}"] = ", ".join(sorted(tools))
    return facts


def _named_pairs(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Pair]:
    names = list(dict.fromkeys([*first, *second]))
    return [Pair(name=name, first=_text(first, name), second=_text(second, name)) for name in names]


def _text(values: Mapping[str, Any], name: str) -> str | None:
    if name not in values:
        return None
    return pretty(values[name])[:MOST_SHOWN]


def _figures(first: Summary, second: Summary) -> list[Pair]:
    cost, other_cost = first.cost or 0.0, second.cost or 0.0
    tokens, other_tokens = first.usage.total_tokens, second.usage.total_tokens
    return [
        Pair(name="State", first=first.status, second=second.status, is_figure=True),
        Pair(
            name="Started",
            first=date(first.created_at),
            second=date(second.created_at),
            is_figure=True,
        ),
        _number("Steps", first.steps, second.steps, with_gaps),
        _number("Time", first.seconds, second.seconds, span),
        _number("Tokens", tokens, other_tokens, with_gaps),
        _number("Cost", cost, other_cost, money),
    ]


def _number(name: str, first: float, second: float, form: Any) -> Pair:
    change = ""
    if first and second:
        percent = round((second / first - 1) * 100)
        if percent:
            change = f"{percent:+d} %"
    return Pair(name=name, first=form(first), second=form(second), change=change, is_figure=True)


# -- the steps


def _compared_steps(first: Sequence[Beat], second: Sequence[Beat]) -> list[ComparedStep]:
    """Steps in pairs: those that did the same things stand next to each other."""
    matcher = SequenceMatcher(
        None, [_kind_of(beat) for beat in first], [_kind_of(beat) for beat in second], False
    )
    steps: list[ComparedStep] = []
    for _, begin, end, other_begin, other_end in matcher.get_opcodes():
        for before, after in zip_longest(first[begin:end], second[other_begin:other_end]):
            steps.append(ComparedStep(first=before, second=after, pairs=_step_pairs(before, after)))
    return steps


def _kind_of(beat: Beat) -> tuple[str, ...]:
    """What a step did: the tools that it called, or that it failed."""
    if beat.error:
        return ("failure",)
    return tuple([call.name for call in beat.calls])


def _step_pairs(first: Beat | None, second: Beat | None) -> list[Pair]:
    before, after = _step_texts(first), _step_texts(second)
    names = list(dict.fromkeys([*before, *after]))
    return [Pair(name=name, first=before.get(name), second=after.get(name)) for name in names]


def _step_texts(beat: Beat | None) -> dict[str, str]:
    """The texts of a step, by what they are."""
    texts: dict[str, str] = {}
    if beat is None:
        return texts
    facts = {"says": beat.text, "failed": beat.error, "stopped": beat.limit}
    if beat.message is not None:
        facts["message"] = beat.message.text
    texts.update({name: text[:MOST_SHOWN] for name, text in facts.items() if text})
    seen: dict[str, int] = {}
    for call in _all_calls(calls_of(beat)):
        name = call.call.name
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name = f"{name} #{seen[name]}"
        texts.update(_call_texts(name, call))
    return texts


def _all_calls(calls: Iterable[CallInStep]) -> Iterable[CallInStep]:
    """Calls, each with those that its code made."""
    for call in calls:
        yield call
        for calls_of_line in call.calls_by_line.values():
            yield from _all_calls(calls_of_line)


def _call_texts(name: str, shown: CallInStep) -> dict[str, str]:
    if shown.is_answer:
        written = cast("Mapping[str, Any]", shown.call.written or {})
        return {f"answer: {key}": pretty(value)[:MOST_SHOWN] for key, value in written.items()}
    texts = {f"{name}: {key}": pretty(value)[:MOST_SHOWN] for key, value in shown.args.items()}
    if shown.code is not None:
        texts[f"{name}: code"] = shown.code[:MOST_SHOWN]
    outcome = shown.state
    if shown.call.result is not None:
        outcome = text_of(shown.call.result)[:MOST_SHOWN]
        if shown.call.result.is_error:
            outcome = f"failed: {outcome}"
    texts[f"{name} returned"] = outcome
    return texts


# -- two evaluations

ItemPair = tuple[EvaluatedItem | None, EvaluatedItem | None]


class ComparedEvaluations(Struct, kw_only=True):
    """Two evaluations, the one that was scored earlier first."""

    before: EvaluationFigures
    after: EvaluationFigures
    metrics: list[str]
    words: str
    """How many items changed."""
    worse: list[ItemPair]
    better: list[ItemPair]
    answers: list[ItemPair]
    """Items with the same score and another answer."""
    alone: list[ItemPair]
    """Items that only one of the evaluations has."""


def compare_evaluations(
    store: Store, before: EvaluationFigures, after: EvaluationFigures
) -> ComparedEvaluations:
    """Which items changed, as `Evaluation.compare` says it, and whose answers did."""
    metrics = list(dict.fromkeys([*after.scores, *before.scores]))
    first, second = _stored_evaluation(store, before), _stored_evaluation(store, after)
    changes = second.compare(first)
    changed = {change.after.key for change in (*changes.improved, *changes.worsened)}
    earlier = {item.key: item for item in first.items}
    answers: list[ItemPair] = []
    for item in second.items:
        old = earlier.get(item.key)
        if old is not None and item.key not in changed and _outcome(old) != _outcome(item):
            answers.append((old, item))
    return ComparedEvaluations(
        before=before,
        after=after,
        metrics=metrics,
        words=str(changes),
        worse=[(change.before, change.after) for change in changes.worsened],
        better=[(change.before, change.after) for change in changes.improved],
        answers=answers,
        alone=[
            *((item, None) for item in changes.only_before),
            *((None, item) for item in changes.only_after),
        ],
    )


def _stored_evaluation(store: Store, figures: EvaluationFigures) -> Evaluation:
    """An evaluation as far as the store knows it: its runs with their scores."""
    zeros = dict.fromkeys(figures.scores, 0.0)
    items: list[EvaluatedItem] = []
    for run in store.list(evaluation=figures.name, limit=None, order="created", ascending=True):
        # The id of such a run ends with a digest of its inputs: it is the same in each evaluation.
        key = run.id.removeprefix(f"{figures.name}.")
        items.append(
            EvaluatedItem(
                {"item": key}, None, {**zeros, **run.scores}, feedback=run.feedback, run=run
            )
        )
    return Evaluation(items, list(figures.scores) or [""], Usage(), 0.0, figures.name)


def _outcome(item: EvaluatedItem) -> tuple[str, str, str | None]:
    return item.run.status, item.run.answered, item.run.error


# -- the words that differ


def _marked(first: str, second: str) -> tuple[list[Segment], list[Segment]]:
    words, other_words = _WORD.findall(first), _WORD.findall(second)
    if max(len(words), len(other_words)) > _MOST_WORDS:
        return [(first, True)], [(second, True)]
    matcher = SequenceMatcher(None, words, other_words, False)
    before: list[Segment] = []
    after: list[Segment] = []
    for tag, begin, end, other_begin, other_end in matcher.get_opcodes():
        is_marked = tag != "equal"
        if begin < end:
            before.append(("".join(words[begin:end]), is_marked))
        if other_begin < other_end:
            after.append(("".join(other_words[other_begin:other_end]), is_marked))
    return before, after
