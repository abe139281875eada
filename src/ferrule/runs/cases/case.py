"""`Case`: the inputs of a run, and what a program should do with them; files of cases; grading.

A file of cases is JSON that a person reads and edits. Each case has its inputs by name, and its
expectations as texts, written as in Python: `"called('refund', euros=le(30))"`.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, field
from msgspec.structs import force_setattr

from ferrule.encoding.encode import digest_of, json_text, jsonable
from ferrule.encoding.safe_text import one_line
from ferrule.errors import ConfigurationError, StoreError, checks_keywords, shown
from ferrule.record import CheckedStruct
from ferrule.runs.cases.conduct import conduct_in, conduct_of
from ferrule.runs.cases.expectations import (
    Expectation,
    Judgement,
    asked_person,
    called,
    in_order,
    never,
)
from ferrule.runs.cases.reading import read_expectation
from ferrule.runs.journal.encode import read_entry
from ferrule.runs.journal.entry import Entry
from ferrule.runs.run import Run
from ferrule.runs.store.listing import head_of
from ferrule.values.outcome import Prediction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ferrule.runs.cases.conduct import Conduct, MadeCall
    from ferrule.runs.protocols import Store

_VERSION = 1
_MOST_CHARS = 60
"""Of the name of a case that is made from a run."""
_MOST_ARGUMENT_CHARS = 200
"""Of an argument's value in an expectation that is made from a run; a longer one is left out."""


class Case(Struct, metaclass=CheckedStruct, frozen=True, kw_only=True):
    """Inputs, and what a program should do with them.

    It is also the mapping of its inputs, so that a list of cases is a `devset` of `Evaluate`.
    """

    inputs: Mapping[str, Any]
    """By name, as JSON data."""
    expect: Sequence[Expectation] = ()
    """What the run should do; all of them must hold."""
    outputs: Mapping[str, Any] | None = None
    """The outputs that are expected, as JSON data; None for any."""
    name: str = ""
    program: str = ""
    """The name of the program; empty for any."""

    def __post_init__(self) -> None:
        force_setattr(self, "expect", tuple(self.expect))
        for expectation in self.expect:
            if not isinstance(cast("Any", expectation), Expectation):
                raise ConfigurationError(
                    "`expect` of a case is a list of `called(...)`, `never(...)` and the like; "
                    f"found {shown(expectation)}."
                )

    def judge(self, source: Any) -> Judgement:
        """Whether a `Run` or a `Prediction` is as expected, and why not."""
        problems: list[str] = []
        if self.outputs is not None:
            problems += _differing_outputs(self.outputs, jsonable(dict(_outputs_of(source))))
        return self._judged(conduct_of(source), problems)

    def judge_conduct(self, conduct: Conduct) -> Judgement:
        """Whether the calls of a run are as expected, apart from its outputs."""
        return self._judged(conduct, [])

    def _judged(self, conduct: Conduct, problems: list[str]) -> Judgement:
        judgements = [expectation.judge(conduct) for expectation in self.expect]
        problems += [judgement.feedback for judgement in judgements if not judgement]
        return Judgement(not problems, "\n".join(problems))

    @property
    def key(self) -> str:
        """Identifies the inputs: a digest of them."""
        return _key_of(self.inputs)

    def keys(self) -> Iterable[str]:
        """The names of the inputs."""
        return self.inputs.keys()

    def __getitem__(self, name: str) -> Any:
        return self.inputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.inputs)

    def __len__(self) -> int:
        return len(self.inputs)

    def __contains__(self, name: object) -> bool:
        return name in self.inputs


def meets_case(case: Case, prediction: Any) -> Judgement:
    """A metric of `Evaluate`, whose devset are cases: whether the prediction is as expected."""
    return case.judge(prediction)


def _key_of(inputs: Mapping[str, Any]) -> str:
    return digest_of(dict(sorted(jsonable(dict(inputs)).items())), 24)


def _outputs_of(source: Any) -> Mapping[str, Any]:
    prediction = source
    if isinstance(source, Run):
        prediction = cast("Run[Any]", source).prediction
    if isinstance(prediction, Prediction):
        return cast("Prediction[Any]", prediction)
    raise ConfigurationError(
        f"The outputs of a case are compared with those of a run or a prediction; "
        f"found {shown(cast('object', source))}."
    )


def _differing_outputs(expected: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    for name, value in expected.items():
        if name not in found:
            yield f"There is no output `{name}`; it should be {shown(value)}."
        elif found[name] != value:
            yield f"The output `{name}` is {shown(found[name])}; it should be {shown(value)}."


# -- files


def write_cases(cases: Iterable[Case], path: str | Path) -> None:
    """Write cases to a file of JSON, which `read_cases` reads."""
    Path(path).write_text(f"{cases_text(cases)}\n", encoding="utf-8")


def cases_text(cases: Iterable[Case]) -> str:
    """Cases as JSON text for people: indented, with all letters as they are."""
    form = {"ferrule_cases": _VERSION, "cases": [_case_form(case) for case in cases]}
    return json.dumps(form, indent=2, ensure_ascii=False)


def _case_form(case: Case) -> dict[str, Any]:
    form: dict[str, Any] = {}
    if case.name:
        form["name"] = case.name
    if case.program:
        form["program"] = case.program
    form["inputs"] = jsonable(dict(case.inputs))
    form["expect"] = [_text_of(expectation) for expectation in case.expect]
    if case.outputs is not None:
        form["outputs"] = jsonable(dict(case.outputs))
    return form


def _text_of(expectation: Expectation) -> str:
    text = str(expectation)
    try:
        is_same = read_expectation(text) == expectation
    except ConfigurationError:
        is_same = False
    if not is_same:
        raise ConfigurationError(
            f"{text} cannot be written to a file: its conditions are values, patterns, "
            "comparisons and `under(...)`, not functions."
        )
    return text


def read_cases(path: str | Path) -> list[Case]:
    """Read cases from a file of `write_cases` or of `ferrule cases`.

    Raises `ConfigurationError` for a file that has none, with the number of the wrong case.
    """
    try:
        form: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"The cases in {str(path)!r} cannot be read: {error}.") from None
    if not isinstance(form, dict) or cast("Any", form).get("ferrule_cases") != _VERSION:
        raise ConfigurationError(
            f"{str(path)!r} has no cases of this version: it is a JSON object with "
            f'`"ferrule_cases": {_VERSION}` and a list `"cases"`; found '
            f"{shown(cast('object', form))}."
        )
    forms: Any = cast("dict[str, Any]", form).get("cases")
    if not isinstance(forms, list):
        raise ConfigurationError(f"`cases` in {str(path)!r} is a list; found {shown(forms)}.")
    cases: list[Case] = []
    for number, case_form in enumerate(cast("list[Any]", forms), 1):
        try:
            cases.append(_read_case(case_form))
        except ConfigurationError as error:
            raise ConfigurationError(f"Case {number} of {str(path)!r}: {error}") from None
    return cases


_TYPES: Mapping[str, tuple[type[Any], str]] = {
    "name": (str, "a text"),
    "program": (str, "a text"),
    "inputs": (dict, "an object"),
    "expect": (list, "a list"),
    "outputs": (dict, "an object"),
}


def _read_case(form: Any) -> Case:
    if not isinstance(form, dict):
        raise ConfigurationError(f"A case is an object with `inputs` and `expect`; found {form!r}.")
    fields = dict(cast("dict[str, Any]", form))
    for name, value in fields.items():
        if name not in _TYPES:
            known = ", ".join(f"`{key}`" for key in _TYPES)
            raise ConfigurationError(f"A case has no {name!r}; it has {known}.")
        kind, words = _TYPES[name]
        if not isinstance(value, kind):
            raise ConfigurationError(f"`{name}` of a case is {words}; found {shown(value)}.")
    if "inputs" not in fields:
        raise ConfigurationError("A case needs `inputs`.")
    expect = [read_expectation(text) for text in fields.pop("expect", ())]
    return Case(expect=expect, **fields)


# -- stored runs


class GradedRun(Struct, frozen=True):
    """A stored run, held against the case with its inputs."""

    run_id: str
    case: Case
    judgement: Judgement


class Grades(Struct, metaclass=CheckedStruct):
    """The runs of a store, held against cases."""

    runs: list[GradedRun] = field(default_factory=list[GradedRun])
    without_run: list[Case] = field(default_factory=list[Case])
    """The cases whose inputs no finished run has."""
    without_case: int = 0
    """The number of finished runs whose inputs no case has."""
    unread: dict[str, str] = field(default_factory=dict[str, str])
    """By the id of a run, why it cannot be read."""

    @property
    def failed(self) -> list[GradedRun]:
        """The runs that are not as expected."""
        return [graded for graded in self.runs if not graded.judgement]


class _StoredConduct(Struct, frozen=True):
    run_id: str
    program: str
    inputs: Mapping[str, Any]
    entries: tuple[Entry, ...]


@checks_keywords
def cases_of(store: Store, *, program: str | None = None, with_outputs: bool = False) -> list[Case]:
    """A case for each finished run of a store, in the order of their ends.

    It expects the calls of the run with their arguments, and their order if the model answered
    between them; it expects that what a person denied does not run, and that a person is asked
    where one was. The calls of programs called as tools are left to those. Of runs with equal
    inputs the last one counts.

    Args:
        store: The store.
        program: Only the runs of the program with this name.
        with_outputs: Also expect the outputs with which the agent ended the run.

    """
    cases: dict[tuple[str, str], Case] = {}
    for stored in _finished_runs(store, program, {}):
        case = _case_of(stored, with_outputs=with_outputs)
        key = stored.program, case.key
        cases.pop(key, None)  # so that a later run also takes a later place
        cases[key] = case
    return list(cases.values())


@checks_keywords
def grade(store: Store, cases: Iterable[Case], *, program: str | None = None) -> Grades:
    """Hold the finished runs of a store against the cases with their inputs. No model is asked.

    Outputs are compared only where an agent ended its run with them (`finish`).
    """
    by_key: dict[str, list[Case]] = {}
    for case in cases:
        by_key.setdefault(case.key, []).append(case)
    grades, met = Grades(), set[int]()
    for stored in _finished_runs(store, program, grades.unread):
        fitting = [
            case
            for case in by_key.get(_key_of(stored.inputs), ())
            if case.program in ("", stored.program)
        ]
        if not fitting:
            grades.without_case += 1
            continue
        conduct = conduct_in(stored.entries)
        for case in fitting:
            met.add(id(case))
            judgement = case.judge_conduct(conduct)
            outputs = _outputs_in(stored.entries)
            if case.outputs is not None and outputs is not None:
                differing = [*_differing_outputs(case.outputs, outputs)]
                if differing:
                    feedback = "\n".join([*differing, judgement.feedback]).strip()
                    judgement = Judgement(False, feedback)
            grades.runs.append(GradedRun(stored.run_id, case, judgement))
    grades.without_run = [case for same in by_key.values() for case in same if id(case) not in met]
    return grades


def _finished_runs(
    store: Store, program: str | None, unread: dict[str, str]
) -> Iterator[_StoredConduct]:
    """The finished runs of a store, the oldest first; `unread` takes those that are damaged."""
    for summary in reversed(store.list(status="done", program=program, limit=None)):
        try:
            stored = store.load(summary.id)
            head = head_of(stored)
            if head.get("redacted"):
                raise StoreError("it was redacted")
            entries = tuple([read_entry(text) for text in stored.entries])
            yield _StoredConduct(summary.id, summary.program, head["inputs"], entries)
        except (StoreError, KeyError) as error:  # a damaged run hides no other one
            unread[summary.id] = str(error)


def _case_of(stored: _StoredConduct, *, with_outputs: bool) -> Case:
    outputs = None
    if with_outputs:
        outputs = _outputs_in(stored.entries)
    return Case(
        name=_name_of(stored),
        program=stored.program,
        inputs=stored.inputs,
        expect=tuple(_expected(conduct_in(stored.entries).calls)),
        outputs=outputs,
    )


def _name_of(stored: _StoredConduct) -> str:
    values = [value for value in stored.inputs.values() if isinstance(value, str)]
    if not values:
        return stored.run_id
    return one_line(values[0], _MOST_CHARS)


def _expected(calls: Sequence[MadeCall]) -> Iterator[Expectation]:
    own = [made for made in calls if made.depth == 0]
    # Of equal calls only the first: a model that looks twice does no other thing.
    first_of_kind = {_pattern(made): made.turn for made in reversed(own) if made.ran}
    kinds = sorted(first_of_kind, key=[_pattern(made) for made in own].index)
    # Calls of one answer run at the same time, so their order says nothing.
    first_of_turn = {first_of_kind[kind]: kind for kind in reversed(kinds)}
    ordered = [kind for kind in kinds if kind in first_of_turn.values()]
    if len(ordered) > 1:
        yield in_order(*ordered)
        kinds = [kind for kind in kinds if kind not in ordered]
    yield from kinds
    for made in own:
        if made.asked:
            name, arguments = _exact(made.call.name), _arguments(made)
            yield asked_person(name, where=arguments)
            if not made.ran and _pattern(made) not in first_of_kind:
                yield never(name, where=arguments)


def _pattern(made: MadeCall) -> Expectation:
    return called(_exact(made.call.name), where=_arguments(made))


def _arguments(made: MadeCall) -> dict[str, Any]:
    """Conditions that the arguments of a call meet: their values."""
    return {
        name: _exact(value)
        for name, value in made.call.args.items()
        if len(json_text(value)) <= _MOST_ARGUMENT_CHARS
    }


def _exact(value: Any) -> Any:
    """A condition that only this value meets: a text is a pattern otherwise."""
    if isinstance(value, str):
        return glob.escape(value)
    return value


def _outputs_in(entries: Sequence[Entry]) -> Mapping[str, Any] | None:
    """The outputs with which an agent ended its run; None if they are not in the journal."""
    for entry in reversed(entries):
        if entry.kind == "model" and "/" not in entry.slot:
            for call in entry.shown().value.tool_calls:
                if call.name == "finish":
                    return call.args
            return None
    return None
