"""Constructors as arguments, as in `when=datetime(2026, 11, 22)`: text, a date in ISO 8601, or a
fault; never silence.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from ferrule import Tool, ToolCalls

PARAMETERS: dict[str, Any] = {
    "text": {"type": "string"},
    "anything": {},
    "day": {"type": "string", "format": "date"},
    "moment": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
    "clock": {"type": "string", "format": "time"},
    "span": {"type": "string", "format": "duration"},
    "price": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^\d+(\.\d+)?$"}]},
    "key": {"type": "string", "format": "uuid"},
    "whole": {"type": "integer"},
    "table": {"type": "object"},
    "days": {"type": "array", "items": {"type": "string", "format": "date"}},
    "words": {"type": "array", "items": {"type": "string"}},
    "numbers": {"type": "array", "items": {"type": "integer"}},
    "inside": {
        "type": "object",
        "properties": {"day": {"type": "string", "format": "date"}, "size": {"type": "integer"}},
    },
}
TOOLS = [
    {"name": name, "parameters": {"type": "object", "properties": {name: schema}}}
    for name, schema in PARAMETERS.items()
]

READ: list[tuple[str, str, Any]] = [
    ("text", "datetime(2026, 11, 22)", "datetime(2026, 11, 22)"),
    ("text", "datetime.date(2026, 11, 22)", "datetime.date(2026, 11, 22)"),
    ("text", "datetime.now()", "datetime.now()"),
    ("text", 'Decimal("1.50")', 'Decimal("1.50")'),
    ("text", "Point(x=1, y=[2, 3])", "Point(x=1, y=[2, 3])"),
    ("text", "np.array([1, 2])", "np.array([1, 2])"),
    ("anything", "Decimal('1.50')", "Decimal('1.50')"),
    ("day", "date(2026, 11, 22)", "2026-11-22"),
    ("day", "datetime.date(year=2026, month=11, day=2)", "2026-11-02"),
    ("day", "datetime(2026, 11, 22)", "2026-11-22"),
    ("day", "datetime(2026, 11, 22, 9, 30).date()", "2026-11-22"),
    ("day", "date.fromisoformat('2026-11-22')", "2026-11-22"),
    ("day", "datetime.strptime('22.11.2026', '%d.%m.%Y')", "2026-11-22"),
    ("day", "pd.Timestamp('2026-11-22')", "2026-11-22"),
    ("moment", "datetime(2026, 11, 22, 9, 30)", "2026-11-22T09:30:00"),
    (
        "moment",
        "datetime.datetime(2026, 11, 22, hour=9, tzinfo=timezone.utc)",
        "2026-11-22T09:00:00+00:00",
    ),
    (
        "moment",
        "datetime(2026, 11, 22, 9, tzinfo=timezone(timedelta(hours=-5)))",
        "2026-11-22T09:00:00-05:00",
    ),
    ("moment", "datetime(2026, 11, 22).isoformat()", "2026-11-22T00:00:00"),
    ("moment", "date(2026, 11, 22)", "2026-11-22T00:00:00"),
    ("clock", "time(9, 30)", "09:30:00"),
    ("span", "timedelta(days=1, hours=2)", "P1DT2H"),
    ("span", "timedelta(minutes=90)", "PT1H30M"),
    ("span", "datetime.timedelta(milliseconds=1500)", "PT1.5S"),
    ("price", 'Decimal("1.50")', "1.50"),
    ("price", "Decimal(3)", "3"),
    (
        "key",
        'uuid.UUID("01234567-89ab-4def-8123-456789abcdef")',
        "01234567-89ab-4def-8123-456789abcdef",
    ),
    ("days", "[date(2026, 11, 22), datetime(2026, 11, 23)]", ["2026-11-22", "2026-11-23"]),
    ("words", "[Word('a'), 'b']", ["Word('a')", "b"]),
    ("words", "list(('a', 'b'))", ["a", "b"]),
    ("numbers", "set([1, 2])", [1, 2]),
    ("table", "dict(a=1, b=[2])", {"a": 1, "b": [2]}),
    ("inside", "{'day': date(2026, 11, 22)}", {"day": "2026-11-22"}),
]


def call(text: str) -> Any:
    [found] = ToolCalls.from_text(text, TOOLS).tool_calls
    return found


@pytest.mark.parametrize(
    ("name", "written", "read"),
    READ,
    ids=[f"{name}={written}" for name, written, _ in READ],
)
def test_a_constructor_is_text_or_a_date(name: str, written: str, read: Any) -> None:
    for text in (
        f"{name}({name}={written})",
        f"[{name}({name}={written})]",
        f"[{name}({written})]",
        f"<tool_call>{name}({name}={written})</tool_call>",
    ):
        found = call(text)
        assert (found.name, found.args, found.fault) == (name, {name: read}, None)


def test_a_constructor_taken_as_text_is_a_repair_that_is_recorded() -> None:
    assert call("text(text=Point(1, 2))").repairs == ("unquoted_strings",)
    assert call("day(day=date(2026, 11, 22))").repairs == ("dates",)


FAULTS: list[tuple[str, str]] = [
    ("whole", "datetime(2026, 11, 22)"),
    ("whole", 'Decimal("7")'),
    ("whole", "Point(1)"),
    ("table", "datetime(2026, 11, 22)"),
    ("table", "Point(x=1)"),
    ("numbers", "[Decimal('1'), 2]"),
    ("numbers", "date(2026, 11, 22)"),
    ("day", "date(2026, 13, 1)"),
    ("day", "date(2026, 2)"),
    ("day", "date(year)"),
    ("day", "date.today()"),
    ("day", "datetime.strptime('22.11.2026', '%Y')"),
    ("day", "Point(1, 2)"),
    ("moment", "datetime.now()"),
    ("moment", "datetime(2026, 11, 22, tzinfo=ZoneInfo('Nowhere/Atall'))"),
    ("span", "timedelta(days=10**30)"),
    ("inside", "{'size': Size(3)}"),
]


@pytest.mark.parametrize(
    ("name", "written"),
    FAULTS,
    ids=[f"{name}={written}" for name, written in FAULTS],
)
def test_a_constructor_that_is_neither_is_a_fault_of_its_call(name: str, written: str) -> None:
    for text in (
        f"{name}({name}={written})",
        f"I look.\n\n{name}({name}={written})\n\nThen I go on.",
        f"[{name}({written})]",
    ):
        found = call(text)
        assert (found.name, found.args, found.fault.code) == (
            name,
            {},
            "invalid_tool_call_arguments",
        )
        assert name in found.fault.reason
        assert written in found.fault.raw


def test_the_calls_beside_such_a_fault_do_not_run_without_it() -> None:
    [found] = ToolCalls.from_text(
        "[text(text='a'), whole(whole=datetime(2026, 11, 22)), text(text='b')]",
        TOOLS,
    ).tool_calls
    assert (found.name, found.args, found.fault is None) == ("whole", {}, False)


def test_a_tool_takes_the_dates_and_decimals_that_were_read() -> None:
    def book(day: dt.date, moment: dt.datetime, price: Decimal, span: dt.timedelta) -> str:
        return f"{day!r} {moment!r} {price!r} {span!r}"

    text = "book(day=date(2026, 11, 22), moment=datetime(2026, 11, 22, 9), price=Decimal('1.50'), span=timedelta(hours=1))"
    [found] = ToolCalls.from_text(text, [Tool(book)]).tool_calls
    assert Tool(book)(**found.args) == (
        f"{dt.date(2026, 11, 22)!r} {dt.datetime.fromisoformat('2026-11-22T09:00:00')!r} {Decimal('1.50')!r} {dt.timedelta(hours=1)!r}"
    )


def test_nothing_of_a_constructor_is_run() -> None:
    for written in (
        "open('x')",
        "eval('1')",
        "os.system('true')",
        "(lambda: 1)()",
        "f().x()",
        "getattr(date, 'today')()",
    ):
        assert ToolCalls.from_text(f"text(text={written})", TOOLS).tool_calls == []
