"""Reads runs from a store, in SQL: the summaries of a list; the head of a run, or its entries and decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.encoding.stored import LAST_TIME, check_fields, parse_json, parse_object, reading
from ferrule.errors import StoreError
from ferrule.runs.protocols import Summary, check_status
from ferrule.runs.store.statements import MOST_ENTRIES
from ferrule.values.conversation.exchange import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ferrule.approval.question import Decision, Question
    from ferrule.runs.protocols import Store, Stored

NO_ENTRIES = 1 << 31
"""More entries than any journal has: `Store.load(run_id, after=NO_ENTRIES)` reads a run without its entries."""
Written = tuple[list[str], list[float | None], list[str]]
"""The entries of a run from some number on, their times, and the decisions that it has not used."""
_COLUMNS = "id, program, status, created_at, updated_at, questions, error, recoveries, usage, owner"


def stored_head(store: Store, run_id: str) -> dict[str, Any]:
    """The head of a run in a store. Raises `StoreError` if there is none, or if it is damaged."""
    return head_of(store.load(run_id, after=NO_ENTRIES))


def head_of(stored: Stored) -> dict[str, Any]:
    """Parse the head of a run. Raises `StoreError` if it is damaged."""
    return parse_object(stored.head, "the head of a run")


def decisions_of(stored: Stored) -> list[Decision]:
    """Parse the decisions that a run has not used yet. Raises `StoreError` if one is damaged."""
    from ferrule.approval.decisions import read_decision  # late, with pydantic

    return [read_decision(parse_object(text, "a decision")) for text in stored.decisions]


def written(db: Any, run_id: str, no: int, after: int) -> Written:
    """Read everything that the run number `no` has besides its row."""
    places = (no * MOST_ENTRIES + after, (no + 1) * MOST_ENTRIES)
    rows = db.execute(
        "SELECT entry, written_at FROM entries WHERE place >= ? AND place < ? ORDER BY place",
        places,
    ).fetchall()
    decided = db.execute(
        "SELECT decision FROM decisions WHERE run_id = ? AND NOT taken ORDER BY decided_at",
        (run_id,),
    ).fetchall()
    return [row[0] for row in rows], [row[1] for row in rows], [row[0] for row in decided]


def decision_in(entries: list[str], question_id: str) -> Decision | None:
    """The decision on a question in a journal; None if there is none."""
    from ferrule.runs.journal.encode import read_entry  # late, with pydantic

    decisions = (
        read_entry(text).value
        for text in reversed(entries)
        if question_id in text and '"decision"' in text
    )
    return next(
        (each for each in decisions if getattr(each, "question_id", None) == question_id),
        None,
    )


def condition(
    status: str | None,
    program: str | None,
    before: tuple[float, str] | None,
) -> tuple[str, tuple[Any, ...]]:
    """The SQL condition of a list, and its values, for `summaries`. It compares ids, too: `before` is exact for runs with equal times."""
    at, run_id = before or (None, None)
    parts = {
        "status = ?": (check_status(status),),
        "program = ?": (program,),
        "(updated_at, id) < (?, ?)": (at, run_id),
    }
    wanted = {part: values for part, values in parts.items() if values[0] is not None}
    return ("WHERE " + " AND ".join(wanted) if wanted else ""), tuple(
        [value for values in wanted.values() for value in values],
    )


def summaries(
    db: Any, where: str, values: tuple[Any, ...], *, limit: int | None, until: str, is_alive: Callable[[str, float | None], bool],
    is_one: bool = False,
) -> list[Summary]:  # fmt: skip
    """The runs that fulfil a condition, most recently changed first. `where` is a constant text with a `?` for each value.

    `until` is the SQL expression for the end of a lease; `is_alive` takes the owner and that time.
    A damaged row does not hide the others: the `error` of its summary says so. With `is_one` it
    raises `StoreError`.
    """
    order = "ORDER BY updated_at DESC, id DESC" + ("" if limit is None else f" LIMIT {int(limit)}")
    sql = f"""
        SELECT line.*, question_id FROM (SELECT {_COLUMNS}, {until} FROM runs {where} {order}) AS line
        LEFT JOIN decisions ON run_id = id AND NOT taken ORDER BY updated_at DESC, id DESC
    """  # noqa: RUF100, S608
    rows, decided = dict[str, Any](), dict[str, list[str]]()
    try:
        lines = db.execute(sql, values).fetchall()
    except UnicodeEncodeError:  # names of runs and programs have no lone surrogates
        return []
    for *row, question_id in lines:  # a line for each decided question
        rows[row[0]] = row
        if question_id is not None:
            decided.setdefault(row[0], []).append(question_id)
    return [
        _line(row, tuple(decided.get(run_id, ())), is_alive, is_one=is_one)
        for run_id, row in rows.items()
    ]


def _line(
    row: Any,
    decided: tuple[str, ...],
    is_alive: Callable[[str, float | None], bool],
    *,
    is_one: bool,
) -> Summary:
    run_id, program, status, created_at, updated_at = row[:5]
    try:
        with reading(lambda: f"The run {run_id!r} in the store"):
            return _summary(row, decided, is_alive)
    except StoreError as error:
        if is_one:
            raise
        at = [each if _is_time(each) else 0.0 for each in (created_at, updated_at)]
        return Summary(
            id=str(run_id),
            program=str(program),
            status=str(status),
            created_at=at[0],
            updated_at=at[1],
            error=str(error),
        )


def _is_time(at: Any) -> bool:
    return isinstance(at, (int, float)) and 0 <= at <= LAST_TIME


def _summary(
    row: Any,
    decided: tuple[str, ...],
    is_alive: Callable[[str, float | None], bool],
) -> Summary:
    (
        run_id,
        program,
        status,
        created_at,
        updated_at,
        questions,
        error,
        recoveries,
        usage,
        owner,
        until,
    ) = row
    if not (_is_time(created_at) and _is_time(updated_at)):
        raise ValueError(f"the times {created_at!r} and {updated_at!r}")
    asked = _questions(parse_json(questions)) if status == "waiting" else ()
    failed = str(parse_json(error)["text"]) if error is not None else None
    spent = read_usage(parse_json(usage)) if usage is not None else Usage()
    if status == "waiting":  # otherwise they belong to the questions it asked last
        decided = tuple(
            [each for each in decided if any(each == question.id for question in asked)],
        )
    return check_fields(Summary(
        id=run_id, program=program, status=status, created_at=created_at, updated_at=updated_at, recoveries=recoveries,
        questions=asked, error=failed, usage=spent, leased=owner is not None and is_alive(owner, until), decided=decided,
    ))  # fmt: skip


def _questions(forms: Iterable[Any]) -> tuple[Question, ...]:
    from ferrule.runs.journal.encode import (
        read_question,
    )  # late: it loads pydantic, which a list without questions does not need

    return tuple(map(read_question, forms))


def read_usage(form: Mapping[str, Any]) -> Usage:
    """Read a usage from `usage_form`."""
    read: dict[str, Any] = {
        **form,
        "by_model": {name: read_usage(each) for name, each in form.get("by_model", {}).items()},
    }
    return check_fields(Usage(**read))
