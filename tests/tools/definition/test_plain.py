"""Parameters of plain types: the same schema and the same arguments as with pydantic's validator, which is not built for them."""

from __future__ import annotations

import json
import typing
from typing import Any, Optional

import pytest

from ferrule import Tool, ToolArgumentsError
from ferrule.tools.arguments.checker import Checker
from ferrule.tools.definition import parameters
from ferrule.tools.definition.inspect_function import inspect_function
from ferrule.tools.definition.plain import plain_parameters

TYPES = [str, int, float, bool]
NAN = float("nan")
VALUES: list[Any] = [
    "a", "", "7", "true", "\ud800", "[]", '["a"]', "null", 1, 0, True, 1.5, 2.0, NAN, None, [], ["a"], ["a", "b"], [1], [1, True], [1.5],
    [1, 2.5], [NAN], [None], [["a"]], ("a",), {"a": 1}, {1},
]  # fmt: skip
REQUIRED = object()


def tool_of(kind: Any, default: Any = REQUIRED) -> Tool:
    def act(x: Any = None) -> Any:
        return x

    act.__defaults__ = () if default is REQUIRED else (default,)
    act.__annotations__ = {"x": kind}
    act.__doc__ = 'Act.\n\nArgs:\n    x: What to act on, with a "quote".'
    return Tool(act)


def forms(kind: Any) -> list[Any]:
    return [
        kind,
        list[kind],
        kind | None,
        list[kind] | None,
        Optional[kind],
        None | kind,
        typing.List[kind],
    ]


@pytest.mark.parametrize("kind", [form for kind in TYPES for form in forms(kind)], ids=str)
class TestEachPlainType:
    DEFAULTS: typing.ClassVar[list[Any]] = [
        REQUIRED,
        None,
        "a",
        1,
        1.5,
        True,
        [],
        ["a"],
        [1, 2],
        [1.5],
        [False],
        NAN,
        ("a",),
        7,
    ]

    def test_it_has_the_schema_that_pydantic_gives(self, kind, monkeypatch):
        quick = {
            i: json.dumps(tool_of(kind, default).declaration)
            for i, default in enumerate(self.DEFAULTS)
        }
        monkeypatch.setattr(parameters, "plain_parameters", lambda found: ())
        assert quick == {
            i: json.dumps(tool_of(kind, default).declaration)
            for i, default in enumerate(self.DEFAULTS)
        }

    def test_it_takes_and_refuses_what_pydantic_does(self, kind):
        tool = tool_of(kind)
        assert tool._checked_by().parameters.plain
        full = Checker("act", tool._found, tool._checked_by().parameters)
        for value in VALUES:
            assert outcome(tool, value) == outcome(full, value), value

    def test_a_default_fills_a_missing_argument_as_with_pydantic(self, kind):
        for default in self.DEFAULTS:
            tool = tool_of(kind, default)
            full = Checker("act", tool._found, tool._checked_by().parameters)
            assert outcome(tool) == outcome(full), default


def outcome(checker: Any, value: Any = REQUIRED) -> Any:
    try:
        found = checker.prepare({} if value is REQUIRED else {"x": value})
    except ToolArgumentsError as error:
        return str(error)
    return repr((found.positional, found.named, found.shown, found.repairs, found.secrets))


@pytest.mark.parametrize(
    "kind",
    [
        list,
        typing.List,
        dict,
        list[list[int]],
        list[int | None],
        int | str,
        int | str | None,
        None,
        Any,
        list[int, str],
        set[int],
    ],
    ids=str,
)
def test_any_other_type_is_left_to_pydantic(kind):
    def act(x):
        return x

    act.__annotations__ = {"x": kind}
    assert plain_parameters(inspect_function(act, {})) == ()


def test_a_tool_changes_neither_the_record_of_its_call_nor_the_callers_list():
    def book(guests: list[str], more: list[int] | None = None, rooms: list[int] = [1]) -> str:
        guests.append("x")
        rooms.append(2)
        return f"{guests} {more} {rooms}"

    tool, guests = Tool(book), ["Ada"]
    checked = tool.prepare({"guests": guests})
    for _ in range(2):
        assert tool(guests=guests) == "['Ada', 'x'] None [1, 2]"
    tool.invoke(checked)
    assert guests == ["Ada"]
    assert checked.shown == {"guests": ["Ada"], "more": None, "rooms": [1]}
    assert tool.parameters["properties"]["rooms"]["default"] == [1]


def test_an_edit_of_one_argument_keeps_the_lists_beside_it():
    from ferrule.values.calls.edit import edit_arguments

    def book(guests: list[str], nights: int = 1) -> str:
        return f"{guests} {nights}"

    tool = Tool(book)
    edited = edit_arguments(tool.prepare({"guests": ["Ada"]}), {"nights": 2}, tool.prepare)
    assert (edited.named, edited.shown) == ({"guests": ["Ada"], "nights": 2},) * 2
