"""Runs read without their journals: the lines of a list, in SQL, and the head of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.runs.journal.encode import parse_object, read_question, read_usage
from ferrule.runs.protocols import Summary
from ferrule.values.conversation.exchange import Usage
from ferrule.values.encoding.stored import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.runs.protocols import Store

NO_ENTRIES = 1 << 31
"""More than a journal has: `Store.load(run_id, after=NO_ENTRIES)` reads a run without its entries."""
_COLUMNS = "id, program, status, created_at, updated_at, questions, error, recoveries, usage, owner"


def stored_head(store: Store, run_id: str) -> dict[str, Any]:
    """The head of a run in a store. Raises `StoreError` if there is none, or if it is damaged."""
    return parse_object(store.load(run_id, after=NO_ENTRIES).head, "the head of a run")


def condition(status: str | None, program: str | None, before: tuple[float, str] | None) -> tuple[str, tuple[Any, ...]]:
    """The condition of a list, for `summaries`; its order makes `before` exact also for runs that changed at one time."""
    at, run_id = before or (None, None)
    parts = {"status = ?": (status,), "program = ?": (program,), "(updated_at, id) < (?, ?)": (at, run_id)}
    wanted = {part: values for part, values in parts.items() if values[0] is not None}
    return ("WHERE " + " AND ".join(wanted) if wanted else ""), tuple([value for values in wanted.values() for value in values])


def summaries(
    db: Any, where: str, values: tuple[Any, ...], *, limit: int | None, until: str, is_alive: Callable[[str, float | None], bool]
) -> list[Summary]:
    """The runs that fulfil a condition, most recently changed first. `where` is a constant text with a `?` for each value.

    `until` is the expression of when a lease ends; `is_alive` takes its owner and that time.
    """
    order = "ORDER BY updated_at DESC, id DESC" + ("" if limit is None else f" LIMIT {int(limit)}")
    rows = db.execute(f"SELECT {_COLUMNS}, {until} FROM runs {where} {order}", values).fetchall()  # noqa: S608  callers pass constants
    by_run: dict[str, list[str]] = {}
    for run_id, question_id in db.execute("SELECT run_id, question_id FROM decisions WHERE NOT taken").fetchall():
        by_run.setdefault(run_id, []).append(question_id)
    return [_summary(row, tuple(by_run.get(row[0], ())), is_alive) for row in rows]


def _summary(row: Any, decided: tuple[str, ...], is_alive: Callable[[str, float | None], bool]) -> Summary:
    run_id, program, status, created_at, updated_at, questions, error, recoveries, usage, owner, until = row
    return Summary(
        id=run_id, program=program, status=status, created_at=created_at, updated_at=updated_at, recoveries=recoveries,
        questions=tuple(map(read_question, parse_json(questions))) if status == "waiting" else (),
        error=str(parse_json(error)["text"]) if error is not None else None,
        usage=read_usage(parse_json(usage)) if usage is not None else Usage(),
        leased=owner is not None and is_alive(owner, until), decided=decided,
    )  # fmt: skip
