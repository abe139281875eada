"""Any value as JSON: never an error, always valid, the same everywhere."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import os
import pathlib
import subprocess
import sys
import types
import uuid
from collections import ChainMap, OrderedDict, deque
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    TypeAdapter,
    computed_field,
    model_serializer,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass

from ferrule.encoding.encode import (
    TYPE_NAMES,
    escape_surrogates,
    fits,
    is_plain,
    json_bytes,
    json_text,
    jsonable,
    object_text,
)
from ferrule.values.conversation.exchange import Shape
from ferrule.values.conversation.message import Message
from ferrule.values.outcome import Prediction, Step, Trajectory

SRC = Path(__file__).parents[3] / "src"


class Bad:
    """Raises wherever it can."""

    def __str__(self) -> str:
        raise KeyError("str")

    def __repr__(self) -> str:
        raise KeyError("repr")


class BadDict(dict):
    def items(self):
        raise KeyError("items")

    def __iter__(self):
        raise KeyError("iter")


class BadMapping(ChainMap):
    def __iter__(self):
        raise KeyError("iter")

    def __str__(self) -> str:
        return "a bad mapping"


class OddText(str):
    __slots__ = ()

    def __str__(self):
        return 5


class Colour(str, enum.Enum):
    RED = "r\ud800"


class Point(NamedTuple):
    x: Any
    y: Any = 0


@dataclasses.dataclass
class Box:
    content: Any


class Model(BaseModel):
    content: Any = None


class BareNaN(Model):
    model_config = ConfigDict(ser_json_inf_nan="constants")


class Failing(Model):
    @model_serializer
    def _fail(self):
        raise KeyError("serializer")


class Computing(Model):
    @computed_field
    @property
    def more(self) -> int:
        raise ZeroDivisionError


def strict(made: bytes) -> Any:
    """The value of JSON as RFC 8259 has it: no bare NaN, UTF-8."""

    def refuse(name: str) -> None:
        raise AssertionError(f"bare {name}")

    return json.loads(made.decode("utf-8"), parse_constant=refuse)


texts = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates too
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | texts
    | st.binary(max_size=5)
    | st.sampled_from([4299, 4300, 5000]).map(lambda digits: -(10**digits))
    | st.builds(Bad)
    | st.sampled_from(
        [
            OddText("odd"),
            Colour.RED,
            Bad,
            decimal.Decimal("NaN"),
            1j,
            range(3),
            ...,
            memoryview(b"ab"),
        ],
    )
    | st.datetimes()
    | st.uuids()
    | st.decimals()
)
keys = (
    texts
    | st.integers()
    | st.floats()
    | st.none()
    | st.booleans()
    | st.binary(max_size=3)
    | st.tuples(texts, st.integers())
)
hashables = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | texts
    | st.frozensets(texts, max_size=3)
)


def containers(inner):
    return (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(deque)
        | st.dictionaries(texts, inner, max_size=3).map(types.MappingProxyType)
        | st.dictionaries(texts, inner, max_size=3).map(BadDict)
        | st.dictionaries(texts, inner, max_size=3).map(BadMapping)
        | st.sets(hashables, max_size=4)
        | st.frozensets(hashables, max_size=4)
        | inner.map(Box)
        | inner.map(Point)
        | st.one_of(
            *(
                inner.map(lambda each, kind=kind: kind(content=each))
                for kind in (Model, BareNaN, Failing, Computing)
            ),
        )
        | inner.map(lambda each: (each for _ in [1]))
        | inner.map(looped)
    )


def looped(value):
    """A list, a dict and a box that hold one another and themselves."""
    box, mapping = Box(value), {}
    cycle = [value, mapping, box]
    mapping["back"] = cycle
    box.content = [box, cycle]
    return cycle


values = st.recursive(scalars, containers, max_leaves=12)


@given(values)
def test_any_value_becomes_valid_json(value):
    """Cycles, lone surrogates, NaN, sets, broken objects: a tool may return anything (D6, P48), and
    a run goes on.
    """
    strict(json_bytes(value))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=15,
)


@given(json_values)
def test_what_is_json_already_comes_back_as_it_was(value):
    """Unicode, nested, large integers: no precision loss."""
    assert jsonable(value) == value
    assert type(jsonable(value)) is type(value)


@given(values)
def test_its_own_json_is_its_fixed_point(value):
    """What was written once is read and written the same."""
    once = jsonable(value)
    assert jsonable(once) == once


@given(json_values)
def test_the_slow_path_writes_what_the_fast_path_writes(value):
    """One broken neighbour must not change how a value looks."""
    alone = json_bytes(value)
    beside = json_bytes([value, {"x"}])
    assert beside == b"[" + alone + b',["x"]]'


def test_sets_are_in_order_wherever_they_stand():
    """A digest or a prompt that holds a set is the same in every process (R13: replay compares
    them).
    """
    names = {f"name {i}" for i in range(20)}
    ordered = sorted(names)
    for holder in (
        names,
        [names],
        {"k": (names,)},
        Box(names),
        Model(content=[names]),
        Prediction(found=names),
        Point({"a": names}),
        ChainMap({"k": names}),
    ):
        text = json_text(holder)
        assert json.dumps(ordered, separators=(",", ":")) in text, text
    assert jsonable({3, 20, 100}) == [3, 20, 100]
    assert jsonable({frozenset("ab"), frozenset("a"), "b", 2, None}) == [
        "b",
        2,
        ["a", "b"],
        ["a"],
        None,
    ]


class Tag(BaseModel, frozen=True):
    name: str


class Tagged(BaseModel):
    count: int = Field(1, serialization_alias="theCount")
    tags: frozenset[Tag] = Field(alias="theTags")
    pairs: dict[str, set[tuple[Tag, int]]] = {}

    @computed_field
    @property
    def first(self) -> set[Tag]:
        return {Tag(name="c")}


@pydantic_dataclass
class TaggedBox:
    tags: set[Tag]


def test_a_set_of_models_is_a_list_in_order_also_inside_a_model():
    """Pydantic's serialiser cannot make a set of dicts, and the whole model became the text of its
    `repr`, in any order.
    """
    tags = {Tag(name=name) for name in "defabc"}
    written = [{"name": name} for name in "abcdef"]
    model = Tagged(theTags=tags, pairs={"k": {(Tag(name="b"), 2), (Tag(name="a"), 1)}})
    assert jsonable(model) == {
        "theCount": 1,
        "theTags": written,
        "pairs": {"k": [[{"name": "a"}, 1], [{"name": "b"}, 2]]},
        "first": [{"name": "c"}],
    }
    assert jsonable([RootModel[set[Tag]](tags), TaggedBox(tags)]) == [written, {"tags": written}]
    names = {f"name {i}" for i in range(20)}
    assert jsonable([RootModel[set[str]](names), RootModel[tuple[set[str]]]((names,))]) == [
        sorted(names),
        [sorted(names)],
    ]


class Tree(BaseModel):
    root: set[str]
    name: str = ""


def test_a_model_with_a_field_named_root_is_written_whole():
    assert jsonable(Tree(root={"b", "a"}, name="oak")) == {"root": ["a", "b"], "name": "oak"}


class Packed(BaseModel):
    model_config = ConfigDict(
        ser_json_bytes="base64",
        val_json_bytes="base64",
        ser_json_timedelta="float",
        extra="allow",
    )
    data: bytes
    age: dt.timedelta = dt.timedelta(1)
    tags: set[str] = set()
    note: str = "\ud800"


def test_a_model_beside_a_set_is_written_by_its_own_rules_for_json():
    """Bytes that are no text were lost, although the model's configuration says base64."""
    packed = Packed(data=b"\xff\x00", more=b"\xfe")
    written = {"data": "_wA=", "age": 86400.0, "tags": [], "note": "\ud800", "more": "_g=="}
    assert jsonable(packed) == written
    assert jsonable([packed, {"x"}]) == [written, ["x"]]
    assert jsonable(packed.model_copy(update={"tags": {"b", "a"}, "note": ""})) == {
        **written,
        "tags": ["a", "b"],
        "note": "",
    }


def test_sets_are_alike_in_processes_with_different_hashes():
    """The proof of the above."""
    program = "from ferrule.encoding.encode import json_text; print(json_text({'k': [{'a', 'b', 'c', ('d', 1), None}], 's': {'x', 'y', 'z'}}))"
    found = set()
    for seed in ("1", "2", "3", "4"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(SRC)}
        found.add(
            subprocess.run(
                [sys.executable, "-c", program],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout,
        )
    assert len(found) == 1


FORMS = [
    (float("nan"), '"NaN"'),
    ([float("inf"), -float("inf")], '["Infinity","-Infinity"]'),
    ([float("inf"), float("nan"), {1}], '["Infinity","NaN",[1]]'),
    (BareNaN(content=float("nan")), '{"content":"NaN"}'),
    ("ü\n", '"ü\\n"'),
    ({"ü": {"ö"}}, '{"ü":["ö"]}'),
    ("\ud800", '"\\ud800"'),
    ({"\ud800": "ü"}, '{"\\ud800":"\\u00fc"}'),
    (b"ab", '"ab"'),
    (b"a\xff", '"a�"'),
    (bytearray(b"a\xff"), '"a�"'),
    (10**30, "1" + "0" * 30),
    ([True, {1, 2}], "[true,[1,2]]"),
    ({None: 1, True: 2, 1.5: 3, (1, "a"): 4}, '{"None":1,"true":2,"1.5":3,"1,a":4}'),
    (
        {None: {1}, True: {2}, 1.5: {3}, (1, "a"): {4}},
        '{"None":[1],"true":[2],"1.5":[3],"1,a":[4]}',
    ),
    (OddText("odd"), '"odd"'),
    ([OddText("odd"), {1}], '["odd",[1]]'),
    ([Colour.RED], '["r\\ud800"]'),
    (dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC), '"2026-01-02T03:04:00Z"'),
    ([dt.date(2026, 1, 2), {1}], '["2026-01-02",[1]]'),
    (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    (pathlib.PurePosixPath("/a"), '"/a"'),
    (decimal.Decimal("1.10"), '"1.10"'),
    (Box([1]), '{"content":[1]}'),
    (Box({1}), '{"content":[1]}'),
    (Model(content=Model()), '{"content":{"content":null}}'),
    (Model(content="\ud800"), '{"content":"\\ud800"}'),
    (Point(1, {2}), "[1,[2]]"),
    (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
    (BadDict(a=1), '{"a":1}'),
    (BadDict(a={1}), '{"a":[1]}'),
    (types.MappingProxyType({"a": 1}), '{"a":1}'),
    (BadMapping({"a": 1}), '"a bad mapping"'),
    ((each for each in (1, 2)), "[1,2]"),
    (Prediction(answer=42, why={"a"}), '{"answer":42,"why":["a"]}'),
    (
        Trajectory([Step("t")]),
        '{"thought_0":"t","tool_name_0":null,"tool_args_0":{},"observation_0":null}',
    ),
    (Shape("json_object"), '{"kind":"json_object","schema":null,"name":"answer","strict":false}'),
]


@pytest.mark.parametrize(("value", "written"), FORMS, ids=range(len(FORMS)))
def test_known_forms_are_written_in_one_way(value, written):
    """NaN is text, for bare NaN is no JSON (RFC 8259, section 6); bytes are UTF-8; U131, U166:
    predictions and trajectories are their items.
    """
    assert json_text(value) == written


def test_what_python_reads_and_writes_no_digits_of_is_written_in_hexadecimal():
    """No precision loss; 4,300 digits are the most that `json.loads` takes."""
    for number in (10**4300, -(10**5000), 7**6000):
        for holder in (number, [number], {"k": {"a": number}}, [number, {"a"}]):
            assert hex(number) in json_text(holder)
            strict(json_bytes(holder))
    assert jsonable(10**4299) == 10**4299
    assert jsonable({10**5000: 1}) == {hex(10**5000): 1}
    assert jsonable(["1" * 5000]) == ["1" * 5000]


def test_a_cycle_is_cut_with_a_word_and_the_rest_is_kept():
    cycle: list[Any] = [1]
    cycle.append(cycle)
    assert jsonable(cycle) == [1, "(cycle)"]
    both: dict[str, Any] = {"b": Box(1)}
    both["b"].content = [both, 2]
    assert jsonable({"a": both, "c": 3}) == {"a": {"b": {"content": ["(cycle)", 2]}}, "c": 3}
    wide: list[Any] = []
    wide += [wide] * 40  # what asks each of them again would never end
    assert jsonable(wide) == ["(cycle)"] * 40


def test_one_value_in_two_places_is_no_cycle():
    shared = {"a": {1}}
    assert jsonable([shared, shared]) == [{"a": [1]}] * 2


def test_extreme_depth_is_cut():
    """`json.loads` itself would fail on it."""
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert "(too deep)" in json_text(deep)
    strict(json_bytes(deep))
    while deep != 1:  # taken apart by hand: an old Python would run out of stack when it is freed
        [deep] = deep


def test_moderate_depth_is_kept():
    """As far as the fast path goes."""
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    assert jsonable(deep) == deep


def test_a_generator_that_raises_is_named_and_not_taken_for_empty():
    """An empty list would tell the model that nothing was found."""

    def found():
        yield 1
        raise KeyError

    assert (
        json_text(found())
        == '"<generator object test_a_generator_that_raises_is_named_and_not_taken_for_empty.<locals>.found>"'
    )


def test_text_of_an_object_has_no_address():
    """Equal runs give equal text."""
    assert object_text(object()) == "<object object>"
    assert object_text(lambda: 1).endswith("<lambda>>")
    assert " at 0x" not in json_text([object(), {"a": [print, Bad()]}])
    assert object_text(Bad()).endswith("Bad object>")


def test_text_of_a_class_or_an_object_of_ferrule_does_not_name_its_module():
    """Digests are made of it, and must survive a move of ferrule's modules."""

    class Handle:
        """An object without a text of its own."""

    Handle.__module__ = "ferrule.values.content.parts"
    Handle.__qualname__ = "Handle"
    assert object_text(Handle) == "<class 'ferrule.Handle'>"
    assert object_text(Handle()) == "<ferrule.Handle object>"
    Handle.__module__ = "myferrule.values.part"
    assert object_text(Handle()) == "<myferrule.values.part.Handle object>"


def test_a_message_is_written_without_what_it_keeps_for_itself():
    """Rendered bytes are a cache, not content."""
    message = Message("user", "hi")
    assert message.json
    assert jsonable(message) == {
        "role": "user", "content": "hi", "tool_calls": [], "tool_call_id": None, "name": None, "is_error": False, "reasoning": "", "extra": None,
    }  # fmt: skip


@given(
    st.recursive(
        texts,
        lambda inside: st.lists(inside, max_size=3) | st.dictionaries(texts, inside, max_size=3),
    ),
)
def test_json_of_what_came_back_is_the_same_json(value: Any) -> None:
    """Digests of a replayed conversation are those of the live one, also where a tool returned the
    halves of one character.
    """
    assert json_bytes(jsonable(value)) == json_bytes(value)


def test_halves_of_one_character_side_by_side_are_that_character() -> None:
    """As any reader of JSON takes them; one alone stays alone."""
    assert json_bytes("\ud83d\ude00") == json_bytes("\U0001f600")
    assert jsonable({"\ud83d\ude00": "\ude00\ud83d"}) == {"\U0001f600": "\ude00\ud83d"}
    assert jsonable("\ufeff\ud83d\ude00\ud83d") == "\ufeff\U0001f600\ud83d"


class Level(IntEnum):
    LOW = 1


@pytest.mark.parametrize("kind", TYPE_NAMES, ids=TYPE_NAMES.values())
def test_plain_types_are_named_as_pydantic_names_them(kind):
    assert is_plain(kind)
    assert TypeAdapter(kind).json_schema() == {"type": TYPE_NAMES[kind]}


@pytest.mark.parametrize(
    "other",
    [list, Level, int | None, "int", None, list[int], {}, type(None)],
    ids=str,
)
def test_everything_else_is_not_plain(other):
    assert not is_plain(other)


@given(
    st.sampled_from(list(TYPE_NAMES)),
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.lists(st.integers()),
        st.just(Level.LOW),
    ),
)
def test_what_fits_is_what_pydantic_takes_unchanged(kind, value):
    """Nothing is waved through that the validator would refuse or change."""
    if fits(kind, value):
        found = TypeAdapter(kind).validate_python(value, strict=True)
        assert type(found) is type(value)
        assert found == value


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), 1, True, "1.5"],
    ids=str,
)
def test_numbers_without_a_json_form_and_other_types_do_not_fit(value):
    assert not fits(float, value)


def test_half_a_character_is_escaped_and_other_text_stays():
    assert escape_surrogates("a\ud800b") == "a\\ud800b"
    assert escape_surrogates("Grüße 🎈") == "Grüße 🎈"
