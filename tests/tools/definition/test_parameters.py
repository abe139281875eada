import enum
import json
import sqlite3
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Protocol, Union

import pytest
from pydantic import AliasChoices, BaseModel, Field, SecretStr
from typing_extensions import TypedDict

from ferrule.errors import ToolArgumentsError, ToolDefinitionError
from ferrule.tools.tool import Tool
from ferrule.values.calls.edit import edit_arguments


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class User(BaseModel):
    name: str
    age: int = 0


@dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict, total=False):
    deep: bool


def one(kind: Any, **given: Any) -> Tool:
    def take(value):
        return value

    return Tool(take, arg_types={"value": kind}, **given)


POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
    "required": ["x"],
    "additionalProperties": False,
}
USER = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "default": 0}},
    "required": ["name"],
}
TYPES = [
    (str, {"type": "string"}, "a", "a"),
    (int, {"type": "integer"}, 1, 1),
    (float, {"type": "number"}, 1, 1.0),
    (bool, {"type": "boolean"}, True, True),
    (list, {"type": "array", "items": {}}, [1, "a"], [1, "a"]),
    (dict, {"type": "object", "additionalProperties": True}, {"a": 1}, {"a": 1}),
    (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, None),
    (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3", 3),
    (Literal["a", 2], {"enum": ["a", 2]}, 2, 2),
    (Colour, {"enum": ["red", "blue"], "type": "string"}, "red", Colour.RED),
    (list[str], {"type": "array", "items": {"type": "string"}}, ["a"], ["a"]),
    (
        dict[str, int],
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"a": "1"},
        {"a": 1},
    ),
    (
        tuple[int, str],
        {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "string"}],
            "minItems": 2,
            "maxItems": 2,
        },
        [1, "a"],
        (1, "a"),
    ),
    (
        set[str],
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        ["a", "a"],
        {"a"},
    ),
    (
        Union[int, list[int]],
        {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]},
        [1],
        [1],
    ),
    (
        datetime,
        {"type": "string", "format": "date-time"},
        "2024-01-02T03:04:05Z",
        datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
    ),
    (date, {"type": "string", "format": "date"}, "2024-01-02", date(2024, 1, 2)),
    (timedelta, {"type": "string", "format": "duration"}, "PT1H", timedelta(hours=1)),
    (
        uuid.UUID,
        {"type": "string", "format": "uuid"},
        "12345678123456781234567812345678",
        uuid.UUID(int=0x12345678123456781234567812345678),
    ),
    (Path, {"type": "string", "format": "path"}, "a/b", Path("a/b")),
    (User, USER, {"name": "a"}, User(name="a")),
    (Optional[User], {"anyOf": [USER, {"type": "null"}]}, {"name": "a"}, User(name="a")),
    (list[User], {"type": "array", "items": USER}, [{"name": "a"}], [User(name="a")]),
    (Point, POINT, {"x": "1"}, Point(1)),
    (
        Options,
        {
            "type": "object",
            "properties": {"deep": {"type": "boolean"}},
            "additionalProperties": False,
        },
        {"deep": True},
        {"deep": True},
    ),
    (
        Annotated[int, Field(ge=1, description="d")],
        {"type": "integer", "minimum": 1, "description": "d"},
        1,
        1,
    ),
    (bytes, {"type": "string", "format": "binary"}, "a", b"a"),
    (Any, {}, [{}], [{}]),
    (object, {}, 3, 3),
]


TYPE_NAMES = [
    f"{place} {kind}" for place, (kind, *_) in enumerate(TYPES)
]  # numbered: Python 3.14 prints `Optional[int]` as `int | None`


class _Tag(BaseModel, frozen=True):
    name: str


class _Filter(BaseModel):
    tags: frozenset[str] = frozenset()


def test_a_default_is_written_as_json_and_alike_in_every_process():
    """An approval from another process fits the tool's declaration only if the declaration is the
    same; NaN is not JSON.
    """
    names = {f"name {i}" for i in range(20)}

    def find(
        most: float = float("inf"),
        least: list[float | None] = [float("nan"), None],
        rule: _Filter = _Filter(tags=frozenset(names)),
        tags: frozenset[_Tag] = frozenset([_Tag(name=each) for each in names]),
    ): ...

    properties = Tool(find).parameters["properties"]
    assert {name: each["default"] for name, each in properties.items()} == {
        "most": "Infinity",
        "least": ["NaN", None],
        "rule": {"tags": sorted(names)},
        "tags": [{"name": each} for each in sorted(names)],
    }


@pytest.mark.parametrize(("kind", "schema", "given", "taken"), TYPES, ids=TYPE_NAMES)
def test_types_have_standard_schemas_and_arrive_as_themselves(kind, schema, given, taken):
    made = one(kind)
    assert made.args == {"value": schema}
    assert made.parameters["required"] == ["value"]
    assert made(value=given) == taken
    assert type(made(value=given)) is type(taken)


@pytest.mark.parametrize(("kind", "schema", "given", "taken"), TYPES, ids=TYPE_NAMES)
def test_what_is_shown_can_be_passed_again(kind, schema, given, taken):
    """U74, U86, api.md (an edit is laid over what was shown)."""
    first = one(kind).prepare({"value": given})
    again = one(kind).prepare(first.shown)
    assert again.named == first.named == {"value": taken}
    assert again.shown == first.shown


def test_decimals_arrive_exactly():
    """No precision is lost."""
    assert one(Decimal)(value="0.1000000000000000055") == Decimal("0.1000000000000000055")
    assert one(int)(value=10**30) == 10**30


def test_a_type_without_a_json_form_is_reported_with_its_parameter():
    class Opaque: ...

    for kind in (Opaque, Callable[[int], int], list[Opaque]):
        made = one(kind)
        with pytest.raises(ToolDefinitionError, match="`value`"):
            _ = made.declaration

    def mixed(a: int, b: Opaque, **c: Opaque): ...

    with pytest.raises(ToolDefinitionError, match="`b`"):
        _ = Tool(mixed).parameters


def test_a_typed_kwargs_without_a_json_form_is_reported():
    class Opaque: ...

    def odd(**more: Opaque): ...

    with pytest.raises(ToolDefinitionError, match=r"`\*\*`"):
        _ = Tool(odd).parameters


def test_defaults_without_a_json_form_are_left_out_of_what_is_shown():
    sentinel = object()

    def odd(x: int = sentinel, y: Any = sentinel):  # type: ignore[assignment]
        return x is sentinel and y is sentinel

    made = Tool(odd)
    assert made.parameters == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {}},
        "required": [],
    }
    assert made() is True
    assert made.prepare({}).shown == {}


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (
            Annotated[int, Field(default=None)],
            {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        ),
        (
            Annotated[int, Field(ge=1), Field(default=None), "how many"],
            {
                "anyOf": [{"minimum": 1, "type": "integer"}, {"type": "null"}],
                "default": None,
                "description": "how many",
            },
        ),
        (
            Annotated[Literal["a", None], Field(default=None)],  # noqa: PYI061
            {"enum": ["a", None], "default": None},
        ),
    ],
)
def test_a_default_none_may_stand_in_the_annotation(hint, schema):
    """The argument was required, though its schema said `default`."""

    def use(x: hint, y: int = 1):
        return x, y

    made = Tool(use)
    assert (made.args["x"], made.parameters["required"]) == (schema, [])
    assert (made(), made(x=None), made(y=2)) == ((None, 1), (None, 1), (None, 2))


def test_defaults_of_richer_types_are_shown_as_json():
    def odd(
        colour: Colour = Colour.RED,
        user: User = User(name="a"),
        when: date = date(2024, 1, 2),
        many: set[str] = frozenset({"b", "a"}),
    ):
        return colour, user, when

    made = Tool(odd)
    assert made.args["colour"]["default"] == "red"
    assert made.args["user"]["default"] == {"name": "a", "age": 0}
    assert made.prepare({}).shown == {
        "colour": "red",
        "user": {"name": "a", "age": 0},
        "when": "2024-01-02",
        "many": ["a", "b"],
    }
    assert made() == (Colour.RED, User(name="a"), date(2024, 1, 2))


def test_secrets_are_masked_in_what_is_shown():
    """api.md 9."""
    found = one(SecretStr).prepare({"value": "hush"})
    assert "hush" not in str(found.shown)
    assert found.named["value"].get_secret_value() == "hush"


def test_a_whole_schema_is_kept_as_it_is():
    schema = {
        "type": "object",
        "properties": {
            "p": {"$ref": "#/$defs/P"},
            "q": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
        "required": ["p"],
        "$defs": {"P": {"type": "array", "items": {"type": "string"}}},
        "additionalProperties": False,
        "x-own": 1,
    }

    def free(**kwargs):
        return kwargs

    made = Tool(free, schema=schema)
    assert made.parameters == schema
    assert made(p=["a"], q="3") == {"p": ["a"], "q": 3}
    with pytest.raises(ToolArgumentsError, match="r: there is no such argument"):
        made(p=[], r=1)
    assert Tool(free, schema={}).parameters == {}


def test_a_whole_schema_open_to_more_takes_more():
    def free(**kwargs):
        return kwargs

    assert Tool(free, schema={"type": "object", "properties": {"a": {"type": "integer"}}})(b=1) == {
        "b": 1,
    }
    with pytest.raises(ToolArgumentsError, match="b: expected an integer"):
        Tool(free, schema={"type": "object", "additionalProperties": {"type": "integer"}})(b="x")


def test_an_optional_argument_the_schema_hides_keeps_its_default():
    def act(a: int, secret: str = "default"):
        return a, secret

    made = Tool(
        act,
        schema={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    )
    assert made(a=1) == (1, "default")
    with pytest.raises(ToolArgumentsError):
        made(a=1, secret="mine")


def test_a_parameter_with_several_aliases_is_known_by_each():
    """Also where a call has to be mended, or was edited."""

    def book(
        seat: Annotated[str, Field(validation_alias=AliasChoices("seat_no", "seatNumber"))],
        tags: list[str] = [],
    ):
        return seat, tags

    made = Tool(book)
    for args in (
        {"seat_no": "1A", "tags": '["a"]'},
        {"arguments": {"seatNumber": "1A", "tags": ["a"]}},
        {"seat_no": "1A", "tags": ["a"]},
    ):
        assert made.prepare(args).named == {"seat": "1A", "tags": ["a"]}
    assert edit_arguments(
        made.prepare({"seatNumber": "1A"}),
        {"seat": "2B"},
        made,
    ).named == {"seat": "2B", "tags": []}


def _free(**given: Any) -> dict[str, Any]:
    return given


DRAFT_4 = {
    "$schema": "http://json-schema.org/draft-04/schema#",
    "type": "object",
    "properties": {"a": {"type": "integer"}},
}


def test_a_schema_without_required_goes_out_without_it_and_takes_calls():
    """Draft 4 forbids an empty `required`."""
    made = Tool(_free, name="t", schema=DRAFT_4)
    assert made.parameters == DRAFT_4
    assert made(a="1") == {"a": 1}


BOTH_WAYS = pytest.mark.parametrize(
    "made",
    [
        lambda schema: Tool(_free, name="t", schema=schema),
        lambda schema: Tool.from_mcp_tool({"name": "t", "inputSchema": schema}, "s"),
    ],
    ids=["by hand", "of a server"],
)
GIVEN: list[dict[str, Any]] = [
    DRAFT_4,
    {
        "title": "T",
        "type": "object",
        "x-vendor": {"a": [1]},
        "required": ["b"],
        "properties": {"b": {"pattern": "^a"}, "a": {"nullable": True}},
    },
    {"type": "object"},
    {"additionalProperties": {"type": "integer"}, "type": "object"},
    {
        "description": "d",
        "additionalProperties": True,
        "type": "object",
        "properties": {},
        "definitions": {},
        "examples": [{}],
    },
    {
        "properties": {"": {"type": "integer"}},
        "$comment": "c",
        "type": "object",
        "minProperties": 0,
        "allOf": [{"required": []}],
    },
]


@pytest.mark.parametrize("schema", GIVEN, ids=range(len(GIVEN)))
@BOTH_WAYS
def test_a_declaration_goes_out_as_it_was_given(
    made: Callable[[Any], Tool],
    schema: dict[str, Any],
):
    assert json.dumps(made(schema).declaration["function"]["parameters"]) == json.dumps(schema)


def test_a_schema_that_names_its_arguments_by_patterns_takes_them():
    schema = {
        "type": "object",
        "patternProperties": {"^x-": {"type": "integer"}},
        "additionalProperties": False,
    }
    made = Tool(_free, name="t", schema=schema)
    assert made.parameters == schema
    assert made(**{"x-a": 1}) == {"x-a": 1}
    with pytest.raises(ToolArgumentsError, match="x-a: expected an integer"):
        made(**{"x-a": "many"})
    with pytest.raises(ToolArgumentsError, match="y: there is no such argument"):
        made(y=1)
    assert '"^x-"' in made.format()


def test_a_function_may_name_what_its_schema_names_by_patterns():
    def act(x1: int, x2: int = 0) -> int:
        return x1 + x2

    made = Tool(
        act,
        schema={
            "type": "object",
            "patternProperties": {"^x": {"type": "integer"}},
            "additionalProperties": False,
        },
    )
    assert made(x1=1, x2=2) == 3


def test_an_argument_may_have_an_empty_name():
    made = Tool(
        _free,
        name="t",
        schema={"type": "object", "properties": {"": {"type": "integer"}}, "required": [""]},
    )
    assert made(**{"": 1}) == {"": 1}
    with pytest.raises(ToolArgumentsError, match="expected an integer"):
        made(**{"": "many"})


@pytest.mark.parametrize("more", [{}, {"type": "object"}])
def test_a_schema_that_is_a_reference_goes_out_as_one_and_is_followed(more: dict[str, Any]):
    schema = {
        **more,
        "$ref": "#/$defs/A",
        "$defs": {
            "A": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        },
    }
    made = Tool(_free, name="t", schema=schema)
    assert made.parameters == schema
    assert made(a=1) == {"a": 1}
    with pytest.raises(ToolArgumentsError, match=r'a: is missing(.|\n)*Expected: \{"a": integer\}'):
        made(b=1)
    assert "no arguments" not in made.format()
    assert '"a":{"type":"integer"}' in made.format()

    def act(a: int) -> int:
        return a

    assert Tool(act, schema=schema)(a=2) == 2


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^[!--]+$", "+"),
        (r"^[\w--_]+$", "_"),
        ("^a--b$", "a--b"),
        ("^[a&&b]+$", "&"),
        ("^[--a]+$", "A"),
    ],
)
def test_a_pattern_is_read_as_ecma_262_reads_it(pattern: str, text: str):
    """The engine's own language has operators on classes: `--`, `&&`, `~~`."""
    assert Tool(_free, name="t", schema={"properties": {"a": {"pattern": pattern}}})(a=text) == {
        "a": text,
    }


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        (r"^\d+$", "12", "\u0661"),
        (r"^\w+$", "a_1", "\u00e4"),
        ("^a$", "a", "a\n"),
        ("^[!--]+$", "+", "a"),
        (r"^\p{L}+$", "\u00e4", "1"),
        ("^(?=a)", "ab", "b"),
    ],
)
@BOTH_WAYS
def test_patterns_by_hand_and_of_mcp_servers_are_in_one_language(
    made: Callable[[Any], Tool],
    pattern: str,
    fits: str,
    does_not: str,
):
    tool = made({"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}})
    assert tool.prepare({"a": fits}).shown == {"a": fits}
    with pytest.raises(ToolArgumentsError, match="does not match the pattern"):
        tool.prepare({"a": does_not})


@pytest.mark.parametrize(
    "draft",
    [
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2020-12/schema",
    ],
)
@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        (r"^\[.*]$", "[a]", "[a"),
        (r"^\{.*}$", "{a}", "{a"),
        (r"^[a}]{2}]\]\p{L}$", "a}]]é", "a]]é"),
        (r"^\\]$", "\\]", "]"),
    ],
)
@BOTH_WAYS
def test_brackets_that_close_nothing_stand_for_themselves_in_every_draft(
    made: Callable[[Any], Tool],
    pattern: str,
    fits: str,
    does_not: str,
    draft: str,
):
    """ECMA 262, annex B.

    The metaschemas up to draft 7 are checked more strictly than the later ones.
    """
    values = {
        "type": "object",
        "$schema": draft,
        "properties": {"a": {"type": "string", "pattern": pattern}},
    }
    names = {
        "type": "object",
        "$schema": draft,
        "patternProperties": {pattern: {"type": "integer"}},
        "additionalProperties": False,
    }
    assert made(values).prepare({"a": fits}).repairs == ()
    assert made(names).prepare({fits: 1}).repairs == ()
    with pytest.raises(ToolArgumentsError, match="does not match"):
        made(values).prepare({"a": does_not})
    with pytest.raises(ToolArgumentsError):
        made(names).prepare({does_not: 1})


def test_types_that_pydantic_cannot_check_or_describe_are_reported_with_their_parameter():
    class Shape(Protocol):
        sides: int

    class Unit(enum.Enum):
        METRE = object()

    for kind in (Shape, Shape | None, list[Unit]):
        with pytest.raises(ToolDefinitionError, match="`value` has no JSON form"):
            _ = one(kind).parameters


def test_a_parameter_that_no_model_can_write_is_refused_with_the_way_that_it_takes():
    """Such as a connection: it comes from the run."""
    with pytest.raises(
        ToolDefinitionError,
        match=r"`value` has no JSON form .*`ctx: Context\[\.\.\.\]`, with `deps=`, or from `functools.partial`",
    ):
        _ = one(sqlite3.Connection).parameters


def test_arguments_by_position_only_are_refused_as_no_model_can_give_them():
    def add(first: int, *others: int) -> int:
        return first + sum(others)

    with pytest.raises(ToolDefinitionError, match=r"`\*others` would always be empty"):
        Tool(add)


def test_a_wrapper_of_any_arguments_passes_on_those_that_come_by_name():
    def wrapper(*args: Any, **kwargs: Any) -> str:
        return f"{args} {kwargs}"

    assert Tool(wrapper)(city="Rome") == "() {'city': 'Rome'}"


def test_a_field_that_a_dataclass_computes_is_not_offered():
    """It was offered, and required in strict modes, and every call with it was refused."""

    @dataclass
    class Order:
        price: int
        total: int = field(init=False)

        def __post_init__(self):
            self.total = 2 * self.price

    made = one(Order)
    assert made.parameters["properties"]["value"]["required"] == ["price"]
    assert made.parameters["properties"]["value"]["properties"].keys() == {"price"}
    assert made(value={"price": 2}).total == 4
