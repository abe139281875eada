"""The list of runs: what an address asks for, one page of it, and all of it as a file."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

from msgspec import Struct
from starlette.responses import StreamingResponse

from ferrule.encoding.encode import is_column_text, json_text
from ferrule.errors import InputError
from ferrule.runs.about import read_pairs
from ferrule.runs.protocols import RunFilter, RunOrder, Summary
from ferrule.web.reading import PAGE, STATUSES, can_go_on, id_in_path, undecided, version_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from starlette.responses import Response

    from ferrule.approval.question import Question
    from ferrule.runs.protocols import Store

_DAY_S = 86_400.0
PERIODS = {
    "hour": ("last hour", 3_600.0),
    "day": ("last 24 hours", _DAY_S),
    "week": ("last 7 days", 7 * _DAY_S),
    "month": ("last 30 days", 30 * _DAY_S),
}
"""What an address calls a period, its words, and its seconds."""
ORDERS: dict[str, RunOrder] = {
    "updated": "updated",
    "started": "created",
    "time": "duration",
    "steps": "steps",
    "tokens": "tokens",
    "cost": "cost",
}
"""What an address calls an order."""
PARAMETERS = (
    "status", "q", "program", "tool", "model", "evaluation", "failed", "metadata", "assigned",
    "period", "from", "to", "min", "max", "order", "up", "before",
)  # fmt: skip
"""What an address may say."""
_KEYS = {
    "status": "status", "q": "search", "program": "program", "tool": "tool", "model": "model",
    "failed": "tool_failed", "evaluation": "evaluation", "metadata": "metadata",
    "assigned": "assigned", "period": "since", "from": "since",
    "to": "until", "min": "min_cost", "max": "max_cost",
}  # fmt: skip
"""What each parameter is in a `RunFilter`. A day of `from` counts more than a period."""
_MOST_IN_A_ROW = 300
_AT_ONCE = 500
"""How many runs an export reads at once."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet reads a cell that begins so as a formula."""
_COLUMNS = (
    "id", "title", "program", "status", "asked", "answered", "error", "started", "changed",
    "seconds", "steps", "tokens", "cost", "metadata",
)  # fmt: skip


class ListQuery(Struct, frozen=True, kw_only=True):
    """What an address asks for. Values that do not fit are left out, as if they were not there."""

    wanted: RunFilter
    texts: dict[str, str]
    """The parameters that fit, by name, as they were written: fields and links repeat them."""
    order: RunOrder
    ascending: bool
    before: tuple[float, str] | None

    @property
    def filters(self) -> dict[str, str]:
        """The parameters that choose runs, besides their state."""
        others = {"status", "order", "up", "before"}
        return {name: text for name, text in self.texts.items() if name not in others}

    @property
    def cleared(self) -> dict[str, str]:
        """For `address`: the list without its filters."""
        return dict.fromkeys(self.filters, "")

    @property
    def query(self) -> str:
        """The parameters as the query of an address, without the page."""
        return self.address("").removeprefix("?")

    def address(self, path: str = "/", **changes: str) -> str:
        """The address of another list: with these parameters, and without those that are empty."""
        texts = {name: text for name, text in {**self.texts, **changes}.items() if text}
        if "before" not in changes:
            texts.pop("before", None)
        if not texts:
            return path
        return f"{path}?{urlencode(texts)}"

    def sorted_by(self, order: str) -> str:
        """The address of this list, sorted by a column: downwards first, then upwards."""
        is_current = ORDERS[order] == self.order
        up = "1" if is_current and not self.ascending else ""
        return self.address(order="" if order == "updated" else order, up=up)

    def direction(self, order: str) -> str:
        """For `aria-sort`: how the list is sorted by a column."""
        if ORDERS[order] != self.order:
            return "none"
        return "ascending" if self.ascending else "descending"

    def words(self) -> list[tuple[str, str]]:
        """The filters in words, each with the address of the list without it."""
        texts = self.filters
        words: list[tuple[str, str]] = []
        names = {
            "q": "words",
            "metadata": "for",
            "assigned": "assigned to",
            "min": "at least $",
            "max": "at most $",
        }
        for name, text in texts.items():
            shown = f"{names.get(name, name)} {text}"
            if name == "failed":
                shown = "a call failed"
            elif name == "period":
                shown = PERIODS[text][0]
            elif name in {"from", "to"}:
                shown = f"{name} {text} (UTC)"
            words.append((shown, self.address(**{name: ""})))
        return words


def read_address(query: Mapping[str, str], now: float) -> ListQuery:
    """What the parameters of an address ask for."""
    given = {
        name: value.strip()
        for name, value in query.items()
        if value.strip() and is_column_text(value)
    }
    wanted: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name, key in _KEYS.items():
        if name not in given:
            continue
        value = _read(name, given[name], now)
        if value is not None:
            wanted[key] = value
            texts[name] = given[name]
    order = ORDERS.get(given.get("order", ""), "updated")
    if order != "updated":
        texts["order"] = given["order"]
    if given.get("up") == "1":
        texts["up"] = "1"
    before = _page_start(given.get("before", ""))
    if before is not None:
        texts["before"] = given["before"]
    return ListQuery(
        wanted=cast("RunFilter", wanted),
        texts=texts,
        order=order,
        ascending="up" in texts,
        before=before,
    )


def _read(name: str, text: str, now: float) -> Any:
    """The value of a parameter for a `RunFilter`; None if its text does not fit."""
    match name:
        case "status":
            return text if text in STATUSES else None
        case "failed":
            return True if text == "1" else None
        case "metadata":
            try:
                return read_pairs([text])
            except InputError:
                return None
        case "period":
            return now - PERIODS[text][1] if text in PERIODS else None
        case "from":
            return _read_day(text, days_later=0)
        case "to":
            return _read_day(text, days_later=1)
        case "min" | "max":
            return _read_number(text)
        case _:
            return text


def _read_day(text: str, *, days_later: int) -> float | None:
    """The first second of a day in UTC, or of the day after it."""
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        return None
    return day.timestamp() + days_later * _DAY_S


def _read_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    if not 0 <= number < 1e12:
        return None
    return number


def _page_start(text: str) -> tuple[float, str] | None:
    """The value and the id of the last run on the previous page."""
    value, separator, run_id = text.partition("~")
    number = None
    if separator:
        number = _read_number(value)
    return None if number is None else (number, run_id)


def _sort_value(run: Summary, order: RunOrder) -> float:
    match order:
        case "updated":
            return run.updated_at
        case "created":
            return run.created_at
        case "duration":
            return run.seconds
        case "steps":
            return run.steps
        case "tokens":
            return run.usage.total_tokens
        case "cost":
            return run.cost or 0.0


class RunRow(Struct, frozen=True, kw_only=True):
    """One line of the list, as its template shows it."""

    run: Summary
    href: str
    face: str
    """What the run was asked, or its title; its id if it has neither."""
    about: str
    """The first input, if the face is the title."""
    note: str
    """What came of it: the output, the error, or what it waits for."""
    kind: str
    """The kind of the note: `answer`, `error` or `ask`."""
    waiting: int
    continues: bool
    version: str


class Runs(Struct, frozen=True, kw_only=True):
    """One page of the list of runs."""

    asked: ListQuery
    rows: list[RunRow]
    counts: list[tuple[str, str, int]]
    """Of each tab: its state, its address, and how many runs it has."""
    older: str
    """The address of the next page; empty if there is none."""

    @property
    def version(self) -> str:
        """A mark that differs if what the page shows does."""
        return version_of([row.version for row in self.rows], self.counts)


def page_of_runs(store: Store, asked: ListQuery) -> Runs:
    """The runs of a query, and how many there are of each state."""
    # One more than a page, to know whether there is another page.
    lines = store.list(
        order=asked.order,
        ascending=asked.ascending,
        before=asked.before,
        limit=PAGE + 1,
        **asked.wanted,
    )
    others: Any = {name: value for name, value in asked.wanted.items() if name != "status"}
    counted = store.count(**others)
    counts = [("", asked.address(status=""), sum(counted.values()))]
    counts += [(state, asked.address(status=state), counted.get(state, 0)) for state in STATUSES]
    older = ""
    if len(lines) > PAGE:
        last = lines[PAGE - 1]
        older = asked.address(before=f"{_sort_value(last, asked.order)!r}~{last.id}")
    return Runs(
        asked=asked, rows=[row_of(line) for line in lines[:PAGE]], counts=counts, older=older
    )


def row_of(run: Summary) -> RunRow:
    """A run as a line of the list."""
    waiting = undecided(run)
    continues = can_go_on(run)
    note, kind = run.answered, "answer"
    if run.error:
        note, kind = run.error, "error"
    elif waiting:
        note, kind = _question_line(waiting[0]), "ask"
    return RunRow(
        run=run,
        href=f"/runs/{id_in_path(run.id)}",
        face=run.title or run.asked or run.id,
        about=run.asked if run.title else "",
        note=note[:_MOST_IN_A_ROW],
        kind=kind,
        waiting=len(waiting),
        continues=continues,
        version=version_of(run.updated_at, run.status, run.leased, run.decided, run.assigned),
    )


def _question_line(question: Question) -> str:
    if question.kind != "confirm":
        return question.text
    arguments: list[str] = []
    for name, value in question.call.args.items():
        text = value
        if not isinstance(value, str):
            text = json_text(value)
        arguments.append(f"{name} {text}")
    return f"{question.call.name}: {', '.join(arguments)}"


# -- files


def export(store: Store, asked: ListQuery, form: str) -> Response:
    """All runs of a list as a file: `csv` or `json`."""
    if form == "csv":
        parts, media_type = _csv(store, asked), "text/csv; charset=utf-8"
    else:
        parts, media_type = _json(store, asked), "application/json"
    headers = {"content-disposition": f'attachment; filename="runs.{form}"'}
    return StreamingResponse(parts, media_type=media_type, headers=headers)


def _all_runs(store: Store, asked: ListQuery) -> Iterator[Summary]:
    before = None
    while True:
        lines = store.list(
            order=asked.order,
            ascending=asked.ascending,
            before=before,
            limit=_AT_ONCE,
            **asked.wanted,
        )
        yield from lines
        if len(lines) < _AT_ONCE:
            return
        before = _sort_value(lines[-1], asked.order), lines[-1].id


def facts_of(run: Summary) -> dict[str, Any]:
    """A run as a line of an exported file."""
    return {
        "id": run.id,
        "title": run.title,
        "program": run.program,
        "status": run.status,
        "asked": run.asked,
        "answered": run.answered,
        "error": run.error,
        "started": _utc(run.created_at),
        "changed": _utc(run.updated_at),
        "seconds": round(run.seconds, 3),
        "steps": run.steps,
        "tokens": run.usage.total_tokens,
        "cost": run.cost,
        "metadata": dict(run.metadata),
    }


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _csv(store: Store, asked: ListQuery) -> Iterator[str]:
    yield ",".join(_COLUMNS) + "\r\n"
    for run in _all_runs(store, asked):
        cells: list[Any] = []
        for value in facts_of(run).values():
            text = value
            if isinstance(value, dict):
                text = json_text(cast("Any", value)) if value else ""
            if isinstance(text, str) and text.startswith(_FORMULA):
                text = f"'{text}"
            cells.append(text)
        yield _csv_line(cells)


def _csv_line(cells: Iterable[Any]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()


def _json(store: Store, asked: ListQuery) -> Iterator[str]:
    separator = "[\n"
    for run in _all_runs(store, asked):
        yield separator + json.dumps(facts_of(run))
        separator = ",\n"
    yield "]\n" if separator == ",\n" else "[]\n"
