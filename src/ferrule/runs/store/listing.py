"""Reads what a store has of its runs: heads, unused decisions, and the summaries of a list."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ferrule.approval.decisions import read_decision
from ferrule.encoding.stored import LAST_TIME, check_fields, parse_json, parse_object, reading
from ferrule.errors import StoreError
from ferrule.runs.decisions import results_awaited
from ferrule.runs.journal.encode import read_entry, read_question, read_usage
from ferrule.runs.protocols import Summary, check_status
from ferrule.values.conversation.exchange import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ferrule.approval.question import Decision, Question
    from ferrule.runs.protocols import Store, Stored

NO_ENTRIES = 1 << 31
"""More entries than any journal has.

`Store.load(run_id, after=NO_ENTRIES)` reads a run without its entries.
"""
_MANY = 1_000
"""A label of so many runs is no way to find few of them."""
_COLUMNS = (
    "id, program, status, created_at, updated_at, title, metadata, questions, error, recoveries, "
    "usage, owner"
)


# -- one run


def stored_head(store: Store, run_id: str) -> dict[str, Any]:
    """The head of a run in a store. Raises `StoreError` if there is none, or if it is damaged."""
    return head_of(store.load(run_id, after=NO_ENTRIES))


def head_of(stored: Stored) -> dict[str, Any]:
    """Parse the head of a run. Raises `StoreError` if it is damaged."""
    return parse_object(stored.head, "the head of a run")


def decisions_of(stored: Stored) -> list[Decision]:
    """Parse the decisions that a run has not used yet. Raises `StoreError` if one is damaged."""
    return [read_decision(parse_object(text, "a decision")) for text in stored.decisions]


def decision_in(entries: list[str], question_id: str) -> Decision | None:
    """The decision on a question in a journal; None if there is none."""
    for text in reversed(entries):
        # A journal has thousands of entries: most are skipped without parsing them.
        if question_id not in text or '"decision"' not in text:
            continue
        entry = read_entry(text)
        if entry.kind == "decision" and entry.value.question_id == question_id:
            return entry.value
    return None


def results_awaited_in(entries: list[str]) -> dict[str, Question]:
    """The questions of a journal about results from outside, by id."""
    waits = [read_entry(text) for text in entries if '?later"' in text]
    return {question.id: question for question in results_awaited(waits)}


# -- the list


def rarest_first(db: Any, labels: list[str]) -> list[tuple[str, int]]:
    """Labels with the number of their runs, of which at most `_MANY` are counted."""
    sql = "SELECT count(*) FROM (SELECT 1 FROM labels WHERE label = ? LIMIT ?) AS first"
    counted = [(label, db.execute(sql, (label, _MANY)).fetchone()[0]) for label in labels]
    return sorted(counted, key=itemgetter(1))


def condition(
    status: str | None,
    program: str | None,
    labels: list[tuple[str, int]],
    before: tuple[float, str] | None,
) -> tuple[str, tuple[Any, ...]]:
    """The SQL condition of a list, and its values, for `summaries`.

    It also compares ids, so that `before` is exact for runs with equal times. `labels` are those of
    `rarest_first`. A label of few runs leads to them directly, and they are sorted. One of many
    runs is looked up for each run, in the order of the list, until there are enough: sorting them
    all would take a hundred times as long.
    """
    terms: list[str] = []
    values: list[Any] = []
    if check_status(status) is not None:
        terms.append("status = ?")
        values.append(status)
    if program is not None:
        terms.append("program = ?")
        values.append(program)
    for number, (label, count) in enumerate(labels):
        if number == 0 and count < _MANY:
            terms.append("no IN (SELECT run FROM labels WHERE label = ?)")
        else:
            terms.append("EXISTS (SELECT 1 FROM labels WHERE label = ? AND run = no)")
        values.append(label)
    if before is not None:
        terms.append("(updated_at, id) < (?, ?)")
        values.extend(before)
    if not terms:
        return "", ()
    return "WHERE " + " AND ".join(terms), tuple(values)


def summaries(
    db: Any,
    where: str,
    values: tuple[Any, ...],
    *,
    limit: int | None,
    until: str,
    is_alive: Callable[[str, float | None], bool],
    is_one: bool = False,
) -> list[Summary]:
    """The runs that fulfil a condition, most recently changed first.

    A damaged row does not hide the others: the `error` of its summary says so. With `is_one` it
    raises `StoreError`.

    Args:
        db: The connection.
        where: The condition, a constant text with a `?` for each value.
        values: The values of the condition.
        limit: The number of runs; None for all.
        until: The SQL expression for the end of a lease.
        is_alive: Takes the owner of a lease and that time.
        is_one: Whether one run is asked for.

    """
    order = "ORDER BY updated_at DESC, id DESC"
    if limit is not None:
        order += f" LIMIT {int(limit)}"
    sql = f"""
        SELECT line.*, question_id
        FROM (SELECT {_COLUMNS}, {until} FROM runs {where} {order}) AS line
        LEFT JOIN decisions ON run_id = id AND NOT taken ORDER BY updated_at DESC, id DESC
    """
    try:
        joined_rows = db.execute(sql, values).fetchall()
    except UnicodeEncodeError:  # names of runs and programs have no lone surrogates
        return []
    rows = dict[str, Any]()
    decided_ids = dict[str, list[str]]()
    for *row, question_id in joined_rows:  # a run has one row for each decided question
        rows[row[0]] = row
        if question_id is not None:
            decided_ids.setdefault(row[0], []).append(question_id)
    return [
        _line(row, decided_ids.get(run_id, []), is_alive, is_one=is_one)
        for run_id, row in rows.items()
    ]


def _line(
    row: Any, decided_ids: list[str], is_alive: Callable[[str, float | None], bool], *, is_one: bool
) -> Summary:
    run_id, program, status, created_at, updated_at = row[:5]
    try:
        with reading(lambda: f"The run {run_id!r} in the store"):
            return _summary(row, decided_ids, is_alive)
    except StoreError as error:
        if is_one:
            raise
        return Summary(
            id=str(run_id),
            program=str(program),
            status=str(status),
            created_at=_time_or_zero(created_at),
            updated_at=_time_or_zero(updated_at),
            error=str(error),
        )


def _time_or_zero(value: Any) -> float:
    # A row that cannot be read is listed all the same, so that one bad row hides no others.
    if _is_time(value):
        return value
    return 0.0


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= LAST_TIME


def _summary(
    row: Any, decided_ids: list[str], is_alive: Callable[[str, float | None], bool]
) -> Summary:
    run_id, program, status, created_at, updated_at, *others = row
    title, metadata_text, questions_text, error_text, recoveries, usage_text, owner, until = others
    if not (_is_time(created_at) and _is_time(updated_at)):
        raise ValueError(f"the times {created_at!r} and {updated_at!r}")
    questions: tuple[Question, ...] = ()
    if status == "waiting":
        questions = _read_questions(parse_json(questions_text))
        # A decision may belong to a question that the run asked before.
        question_ids = {question.id for question in questions}
        decided_ids = [decided_id for decided_id in decided_ids if decided_id in question_ids]
    error = None
    if error_text is not None:
        error = str(parse_json(error_text)["text"])
    metadata: dict[str, Any] = {}
    if metadata_text is not None:
        metadata = parse_object(metadata_text, "the metadata of a run")
    usage = Usage()
    if usage_text is not None:
        usage = read_usage(parse_json(usage_text))
    summary = Summary(
        id=run_id,
        program=program,
        status=status,
        title=title,
        metadata=metadata,
        created_at=created_at,
        updated_at=updated_at,
        recoveries=recoveries,
        questions=questions,
        error=error,
        usage=usage,
        leased=owner is not None and is_alive(owner, until),
        decided=tuple(decided_ids),
    )
    return check_fields(summary)


def _read_questions(forms: Iterable[Any]) -> tuple[Question, ...]:
    return tuple(map(read_question, forms))
