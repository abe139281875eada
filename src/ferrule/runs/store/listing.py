"""Reads what a store has of its runs: heads, unused decisions, and the summaries of a list."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ferrule.approval.decisions import read_decision
from ferrule.encoding.stored import LAST_TIME, check_fields, parse_json, parse_object, reading
from ferrule.errors import ConfigurationError, StoreError, shown
from ferrule.runs.decisions import results_awaited
from ferrule.runs.journal.encode import read_entry, read_question, read_usage
from ferrule.runs.protocols import RunNote, Summary
from ferrule.values.conversation.exchange import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ferrule.approval.question import Decision, Question
    from ferrule.runs.protocols import NameKind, RunFilter, RunOrder, Store, Stored

NO_ENTRIES = 1 << 31
"""More entries than any journal has.

`Store.load(run_id, after=NO_ENTRIES)` reads a run without its entries.
"""
_MANY = 1_000
"""A label of more runs than this does not narrow a search."""
_COLUMNS = (
    "id, program, status, created_at, updated_at, title, metadata, questions, error, recoveries, "
    "usage, asked, answered, steps, seconds, tokens, cost, assigned, scores, owner"
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


class Filtered(NamedTuple):
    """What a list shows, as the conditions of `condition` need it."""

    wanted: RunFilter
    labels: list[str]
    """Digests of the wanted metadata, and of the person to whom a run is assigned (`about`)."""
    matching: tuple[str, Any] | None
    """SQL for the numbers of the runs that a search finds, with its value; None without one."""


_LABELLED = "SELECT run FROM ferrule_labels WHERE label = ?"
_USED = "SELECT run FROM ferrule_used WHERE kind = ? AND name = ?"
_FAILED = "SELECT run FROM ferrule_used WHERE kind = 'tool' AND failed > 0"
_BOUNDS = {
    "since": "updated_at >= ?",
    "until": "updated_at < ?",
    "min_cost": "cost >= ?",
    "max_cost": "cost <= ?",
}
_ORDER_COLUMNS: dict[RunOrder, str] = {
    "updated": "updated_at",
    "created": "created_at",
    "duration": "seconds",
    "steps": "steps",
    "tokens": "tokens",
    "cost": "cost",
}
_MOST_NAMES = 500


def order_column(order: RunOrder) -> str:
    """The column by which a list is sorted. Raises `ConfigurationError` for another order."""
    if not isinstance(order, str) or order not in _ORDER_COLUMNS:
        raise ConfigurationError(
            f"`order` is one of {', '.join(_ORDER_COLUMNS)}; found {shown(order)}."
        )
    return _ORDER_COLUMNS[order]


def order_by(column: str, *, ascending: bool) -> str:
    """The SQL that sorts a list. Ids too, so that pages are exact where values are equal."""
    direction = "ASC" if ascending else "DESC"
    return f"ORDER BY {column} {direction}, id {direction}"


def condition(
    db: Any,
    filtered: Filtered,
    column: str = "updated_at",
    before: tuple[float, str] | None = None,
    *,
    ascending: bool = False,
) -> tuple[str, tuple[Any, ...]]:
    """The SQL condition of a list, and its values, for `summaries` and `counts`.

    `before` has the value of the column `column`, and the id, of the last line of the page before.
    """
    wanted = filtered.wanted
    terms: list[str] = []
    values: list[Any] = []
    for name in ("status", "program"):
        value = wanted.get(name)
        if value is not None:
            terms.append(f"{name} = ?")
            values.append(value)
    for name, term in _BOUNDS.items():
        value = wanted.get(name)
        if value is not None:
            terms.append(term)
            values.append(value)
    for term, term_values in _memberships(db, _subqueries(filtered)):
        terms.append(term)
        values.extend(term_values)
    if filtered.matching is not None:
        # The plus keeps the database from looking up each of a hundred thousand matches in the
        # table: it reads its index in the order of the list, and stops when it has a page.
        matching, query = filtered.matching
        terms.append(f"+no IN ({matching})")
        values.append(query)
    if before is not None:
        sign = ">" if ascending else "<"
        terms.append(f"({column}, id) {sign} (?, ?)")
        values.extend(before)
    if not terms:
        return "", ()
    return "WHERE " + " AND ".join(terms), tuple(values)


def _subqueries(filtered: Filtered) -> list[tuple[str, tuple[Any, ...]]]:
    """SQL for the numbers of the runs that have a label, or used a tool or a model."""
    wanted = filtered.wanted
    subqueries: list[tuple[str, tuple[Any, ...]]] = []
    for label in filtered.labels:
        subqueries.append((_LABELLED, (label,)))
    tool = wanted.get("tool")
    if tool is not None:
        sql = _USED
        if wanted.get("tool_failed"):
            sql = f"{_USED} AND failed > 0"
        subqueries.append((sql, ("tool", tool)))
    elif wanted.get("tool_failed"):
        subqueries.append((_FAILED, ()))
    for kind in ("model", "evaluation"):
        name = wanted.get(kind)
        if name is not None:
            subqueries.append((_USED, (kind, name)))
    return subqueries


def _memberships(
    db: Any, subqueries: list[tuple[str, tuple[Any, ...]]]
) -> list[tuple[str, tuple[Any, ...]]]:
    """Conditions that a run is among those of each subquery.

    The rarest of them, if it has few runs, leads to them directly, and they are sorted. One of many
    runs is looked up for each run, in the order of the list, until there are enough: sorting them
    all would take a hundred times as long.
    """
    counted: list[tuple[int, str, tuple[Any, ...]]] = []
    for sql, values in subqueries:
        count = f"SELECT count(*) FROM ({sql} LIMIT ?) AS first"
        counted.append((db.execute(count, (*values, _MANY)).fetchone()[0], sql, values))
    counted.sort(key=itemgetter(0))
    memberships: list[tuple[str, tuple[Any, ...]]] = []
    for number, (count, sql, values) in enumerate(counted):
        if number == 0 and count < _MANY:
            memberships.append((f"no IN ({sql})", values))
        else:
            memberships.append((f"EXISTS ({sql} AND run = no)", values))
    return memberships


def counts(db: Any, where: str, values: tuple[Any, ...]) -> dict[str, int]:
    """How many runs fulfil a condition, by status."""
    rows = db.execute(f"SELECT status, count(*) FROM ferrule_runs {where} GROUP BY status", values)
    return dict(rows.fetchall())


def names(db: Any, kind: NameKind) -> list[str]:
    """The names of the programs, tools or models of all runs, sorted."""
    column, source, values = "name", "ferrule_used WHERE kind = ? AND", (kind, kind)
    if kind == "program":
        column, source, values = "program", "ferrule_runs WHERE", ()
    # One look-up in the index for each name: DISTINCT would read a row for each run.
    rows = db.execute(
        f"WITH RECURSIVE found(name) AS (SELECT min({column}) FROM {source} TRUE UNION ALL "
        f"SELECT (SELECT min({column}) FROM {source} {column} > found.name) FROM found "
        "WHERE found.name IS NOT NULL) SELECT name FROM found WHERE name <> '' LIMIT ?",
        (*values, _MOST_NAMES),
    ).fetchall()
    return [name for (name,) in rows]


def questions_by_program(db: Any) -> dict[str, int]:
    """How many questions wait for a decision, by the program of their runs."""
    rows = db.execute(
        "SELECT program, sum(asking) FROM ferrule_runs WHERE status = 'waiting' GROUP BY program"
    ).fetchall()
    return {program: int(asking) for program, asking in rows if asking}


def notes_of(db: Any, number: int) -> list[RunNote]:
    """The notes on the run of this number, the oldest first."""
    rows = db.execute(
        "SELECT note, author, written_at FROM ferrule_notes WHERE run = ? ORDER BY no", (number,)
    ).fetchall()
    return [RunNote(text=note, author=author, at=at) for note, author, at in rows]


def summaries(
    db: Any,
    where: str,
    values: tuple[Any, ...],
    *,
    limit: int | None,
    order: str,
    until: str,
    is_alive: Callable[[str, float | None], bool],
    is_one: bool = False,
) -> list[Summary]:
    """The runs that fulfil a condition.

    A damaged row does not hide the others: the `error` of its summary says so. With `is_one` it
    raises `StoreError`.

    Args:
        db: The connection.
        where: The condition, a constant text with a `?` for each value.
        values: The values of the condition.
        limit: The number of runs; None for all.
        order: What sorts them, made by `order_by`.
        until: The SQL expression for the end of a lease.
        is_alive: Takes the owner of a lease and that time.
        is_one: Whether one run is asked for.

    """
    page = order
    if limit is not None:
        page += f" LIMIT {int(limit)}"
    # The numbers first: an index has all that finds and sorts them, and rows are large.
    sql = f"""
        SELECT line.*, question_id
        FROM (
            SELECT {_COLUMNS}, {until} FROM ferrule_runs
            WHERE no IN (SELECT no FROM ferrule_runs {where} {page})
        ) AS line
        LEFT JOIN ferrule_decisions ON run_id = id AND NOT taken {order}
    """
    joined_rows = db.execute(sql, values).fetchall()
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
    if is_time(value):
        return value
    return 0.0


def is_time(value: Any) -> bool:
    """Whether a value is a time that a date can represent, in seconds since 1970."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 <= value <= LAST_TIME


def _summary(
    row: Any, decided_ids: list[str], is_alive: Callable[[str, float | None], bool]
) -> Summary:
    run_id, program, status, created_at, updated_at, *others = row
    title, metadata_text, questions_text, error_text, recoveries, usage_text = others[:6]
    asked, answered, steps, seconds, _, _, assigned, scores_text, owner, until = others[6:]
    if not (is_time(created_at) and is_time(updated_at)):
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
    scored: dict[str, Any] = {}
    if scores_text is not None:
        scored = parse_object(scores_text, "the scores of a run")
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
        asked=asked,
        answered=answered,
        steps=steps,
        seconds=seconds,
        assigned=assigned,
        scores=scored.get("scores", {}),
        feedback=scored.get("feedback", ""),
        leased=owner is not None and is_alive(owner, until),
        decided=tuple(decided_ids),
    )
    return check_fields(summary)


def _read_questions(forms: Iterable[Any]) -> tuple[Question, ...]:
    return tuple(map(read_question, forms))
