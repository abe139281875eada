from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AliasChoices,
    Base64Bytes,
    BaseModel,
    Field,
    Json,
    RootModel,
    Secret,
    SecretStr,
    field_serializer,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass

from ferrule.errors import ToolArgumentsError
from ferrule.tools.tool import Tool
from ferrule.values.calls.edit import edit_arguments

Doubled = Annotated[int, AfterValidator(lambda value: value * 2)]


class Price(BaseModel):
    cents: int

    @field_serializer("cents")
    def _as_text(self, cents: int) -> str:
        return f"{cents / 100:.2f}"


class Item(BaseModel):
    count: int = Field(serialization_alias="cnt")
    size: int = Field(1, validation_alias=AliasChoices("Size", "s"))
    secret: int = Field(2, exclude=True)
    note: str = ""


class Order(BaseModel):
    items: list[Item] = Field(serialization_alias="orderItems")
    by_name: dict[str, Item | None] = {}
    total: RootModel[tuple[Item, int]] | None = None


class Pair(NamedTuple):
    item: Item
    number: int


@dataclass
class Crate:
    items: deque[Item]


@pydantic_dataclass
class Boxed:
    item: Item
    pair: Pair
    crate: Crate


def editing(function, args, changes, schema=None):
    made = Tool(function, args=schema)
    before = made.prepare(args)
    return before, edit_arguments(before, changes, made), made


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Doubled, 3),
        (list[Doubled], [1, 2]),
        (Price, {"cents": 1250}),
        (Price, Price(cents=1250)),
        (Json[list[int]], "[1, 2]"),
        (Base64Bytes, "aGVsbG8="),
        (SecretStr, "s3cr3t"),
        (timedelta, 5),
        (Any, {"deep": [1, {"x": None}]}),
        (Annotated[str, Field(min_length=1)], "text"),
        (tuple[int, str], ["1", "a"]),
    ],
)
def test_what_nobody_edited_runs_as_it_was_shown(hint, value):
    """To check a value again may change it, or refuse it."""

    def use(x: hint, n: int = 1): ...

    before, after, _ = editing(use, {"x": value}, {"n": "2"})
    assert after.shown == {**before.shown, "n": 2}
    assert after.named == {**before.named, "n": 2}
    assert after.secrets == before.secrets


def test_what_was_edited_is_checked_anew_once():
    def use(x: Doubled, price: Price): ...

    before, after, made = editing(use, {"x": 3, "price": {"cents": 5}}, {"x": "4"})
    assert (before.shown["x"], after.shown["x"], after.named["x"]) == (6, 8, 8)
    with pytest.raises(ToolArgumentsError, match="expected an integer"):
        edit_arguments(before, {"x": "four"}, made)
    with pytest.raises(ToolArgumentsError, match="no such argument"):
        edit_arguments(before, {"y": 1}, made)


def test_a_default_that_is_made_anew_each_time_stays_the_one_that_was_shown():
    made_so_far = iter(range(100))

    def use(x: int, key: int = Field(default_factory=lambda: next(made_so_far))): ...

    before, after, _ = editing(use, {"x": 1}, {"x": 2})
    assert after.shown == {"x": 2, "key": before.shown["key"]}
    assert after.named == after.shown


@pytest.mark.parametrize("name", ["kind", "type"])
def test_an_edit_may_use_the_name_or_the_alias_of_what_was_given(name):
    """A form shows the schema's names, which are the aliases."""

    def use(x: Doubled, kind: int = Field(default=1, alias="type")): ...

    made = Tool(use)
    edited = edit_arguments(made.prepare({"x": 1, "type": 2}), {name: "5"}, made)
    assert (edited.named, edited.shown) == ({"x": 2, "kind": 5}, {"x": 2, "kind": 5})
    again = edit_arguments(edited, {"type": 6}, made)
    assert again.named == {"x": 2, "kind": 6}


def test_an_edit_may_use_the_name_or_the_alias_of_what_was_left_out():
    def use(x: Doubled, kind: int = Field(default=1, alias="type")): ...

    for name in ("kind", "type"):
        before, after, _ = editing(use, {"x": 3}, {name: 5})
        assert (before.shown, after.shown) == ({"x": 6, "kind": 1}, {"x": 6, "kind": 5})
    _, after, _ = editing(use, {"x": 3, "type": 4}, {"kind": 5})
    assert after.named == {"x": 6, "kind": 5}
    _, after, _ = editing(use, {"x": 3, "type": 4}, {"x": 4})
    assert after.named == {"x": 8, "kind": 4}


def test_arguments_by_position_and_further_ones_are_edited_like_others():
    def use(x: Doubled, secret: SecretStr, /, y: Doubled = 1, **more: Any):
        return x, secret.get_secret_value(), y, more

    args = {"x": 1, "secret": "s", "y": 2, "k": [1]}
    before, after, made = editing(use, args, {"y": 5})
    assert made.invoke(after) == (2, "s", 10, {"k": [1]})
    assert (after.shown["y"], after.shown["secret"]) == (10, before.shown["secret"])
    _, after, _ = editing(use, args, {"x": 7, "k": 0})
    assert made.invoke(after) == (14, "s", 4, {"k": 0})


def test_a_secret_that_comes_back_as_its_stars_is_no_change():
    """A person, or a page, may send all arguments back as they were shown, with one changed."""

    class Login(BaseModel):
        user: str
        password: SecretStr

    def use(
        to: str,
        secret: Annotated[SecretStr, Field(alias="key")],
        login: Login | None = None,
    ): ...

    args = {"to": "ann", "key": "s", "login": {"user": "ann", "password": "p"}}
    for name in ("secret", "key"):
        shown = {name: "**********", "login": {"user": "ann", "password": "**********"}}
        before, after, _ = editing(use, args, {"to": "bob", **shown})
        assert after.named == {**before.named, "to": "bob"}
        _, after, _ = editing(use, args, {"login": {"user": "bob", "password": "**********"}})
        assert after.named["login"] == Login(user="bob", password=SecretStr("p"))
        _, after, _ = editing(use, args, {name: "t"})
        assert after.named["secret"].get_secret_value() == "t"


class Card(BaseModel):
    owner: str
    number: SecretStr


STARS = "**********"


def paid_with(cards, changes, removed=()):
    """The cards, as owner and number, with which an edited call runs."""

    def pay(cards: list[Card], spare: list[SecretStr] = [], by_name: dict[str, SecretStr] = {}):
        numbers = [(card.owner, card.number.get_secret_value()) for card in cards]
        return numbers, *[value.get_secret_value() for value in [*spare, *by_name.values()]]

    made = Tool(pay)
    given = [{"owner": owner, "number": number} for owner, number in cards]
    before = made.prepare({"cards": given, "spare": ["s", "t"], "by_name": {"a": "A", "b": "B"}})
    after = edit_arguments(before, changes, made, removed=removed)
    return made.invoke(after)[0]


def card(owner: str) -> dict[str, str]:
    return {"owner": owner, "number": STARS}


ANN_AND_BOB = [("ann", "1111"), ("bob", "2222")]


@pytest.mark.parametrize(
    ("owners", "expected"),
    [
        (["bob"], [("bob", "2222")]),
        (["bob", "ann"], [("bob", "2222"), ("ann", "1111")]),
        (["bob", "bob"], [("bob", "2222"), ("bob", "2222")]),
        (["anna", "bob"], [("anna", "1111"), ("bob", "2222")]),
        (["anna", "rob"], [("anna", "1111"), ("rob", "2222")]),
    ],
)
def test_a_secret_stays_with_the_item_of_a_list_that_it_was_shown_in(owners, expected):
    """Items that were moved had the secret of their new place, so the wrong card was charged."""
    assert paid_with(ANN_AND_BOB, {"cards": [card(owner) for owner in owners]}) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"cards": [card("anna")]},  # of two items, one is gone and one was changed
        {"cards": [card("bob"), card("zoe")]},
        {"cards": [card("ann"), card("bob"), card("zoe")]},
        {"spare": [STARS]},  # one of two equal ones is gone
        {"spare": ["new", STARS, STARS]},
        {"by_name": {"z": STARS, "b": STARS}},
    ],
)
def test_stars_that_stand_for_no_secret_are_refused(changes):
    """The call would run with the stars in place of a secret."""
    with pytest.raises(ToolArgumentsError, match="Write the secret"):
        paid_with(ANN_AND_BOB, changes)


@dataclass(slots=True)
class Login:
    user: str
    password: SecretStr


def test_stars_in_any_kind_of_object_are_refused():
    def use(login: Login | None = None): ...

    with pytest.raises(ToolArgumentsError, match="Write the secret"):
        editing(use, {}, {"login": {"user": "ann", "password": STARS}})


@pytest.mark.parametrize(("old", "new"), [({"a": 1}, {"b": 2}), ([1], [2, 3])])
def test_a_secret_that_is_no_text_is_edited(old, new):
    def use(key: Secret[dict[str, int] | list[int]], n: int = 1): ...

    before, after, _ = editing(use, {"key": old}, {"key": new})
    assert after.named["key"].get_secret_value() == new
    _, after, _ = editing(use, {"key": old}, {"key": STARS, "n": 2})
    assert after.named["key"] == before.named["key"]


@pytest.mark.parametrize("new", [[STARS], {"user": "ann", "password": STARS}])
def test_stars_inside_a_secret_are_refused(new):
    def use(key: Secret[list[str] | Login] | None = None): ...

    with pytest.raises(ToolArgumentsError, match="Write the secret"):
        editing(use, {}, {"key": new})


@dataclass(frozen=True)
class Key:
    owner: str
    number: SecretStr


@pytest.mark.parametrize(
    "hint",
    [set[Key], Annotated[list[Key], AfterValidator(lambda keys: sorted(keys, key=str))]],
)
def test_a_secret_never_moves_to_another_item_of_what_has_an_order_of_its_own(hint):
    def use(keys: hint): ...

    given = [{"owner": "bob", "number": "2222"}, {"owner": "ann", "number": "1111"}]
    with pytest.raises(ToolArgumentsError, match="Write the secret"):
        editing(use, {"keys": given}, {"keys": [card("ann")]})
    _, after, _ = editing(use, {"keys": given[::-1]}, {"keys": [card("ann")]})
    assert [key.number.get_secret_value() for key in after.named["keys"]] == ["1111"]


def test_equal_items_of_a_list_keep_their_secrets_where_they_stand():
    cards = [("ann", "1111"), ("ann", "2222"), ("bob", "3333")]
    changed = [card("ann"), card("ann"), {"owner": "bob", "number": "4444"}]
    assert paid_with(cards, {"cards": changed}) == [*cards[:2], ("bob", "4444")]
    same = [("ann", "1111"), ("ann", "1111"), ("bob", "3333")]
    assert paid_with(same, {"cards": [card("bob"), card("ann")]}) == [same[2], same[0]]


def test_ten_stars_that_are_a_plain_text_are_a_text():
    def write(title: str, lines: list[str]): ...

    _, after, _ = editing(write, {"title": "a", "lines": []}, {"title": STARS, "lines": [STARS]})
    assert after.named == {"title": STARS, "lines": [STARS]}


def test_a_model_is_shown_and_edited_under_the_names_of_its_schema():
    """A field that came back under the name in which its model is written was lost, and the call
    ran with the default.
    """

    def use(order: Order, boxed: Boxed): ...

    item = {"count": 3, "Size": 4, "secret": 5, "note": "n"}
    order = {"items": [item], "by_name": {"a": item, "b": None}, "total": [item, 1]}
    boxed = {"item": item, "pair": [item, 1], "crate": {"items": [item]}}
    before, after, _ = editing(
        use,
        {"order": order, "boxed": boxed},
        {"order": {**order, "items": [{**item, "note": "m"}]}},
    )
    assert before.shown == {"order": order, "boxed": boxed}
    assert after.shown == {"order": {**order, "items": [{**item, "note": "m"}]}, "boxed": boxed}
    assert (
        after.named["order"].items[0].model_copy(update={"note": "n"})
        == before.named["order"].items[0]
    )


def test_a_call_that_had_to_be_mended_is_edited_as_it_was_mended():
    """In a wrapping key, say, or as a text."""

    def use(x: Doubled, tags: list[str]): ...

    for args in ({"arguments": {"x": 3, "tags": "['a']"}}, '{"x": 3, "tags": ["a"]}'):
        _, after, _ = editing(use, args, {"tags": ["b"]})
        assert after.named == {"x": 6, "tags": ["b"]}


def test_a_schema_given_by_hand_is_asked_about_the_edited_call_too():
    def pay(amount: timedelta, note: str = ""): ...

    schema = {"amount": {"type": "number", "maximum": 60}, "note": {"type": "string"}}
    before, after, made = editing(pay, {"amount": 5}, {"note": "n"}, schema)
    assert after.named == {"amount": timedelta(seconds=5), "note": "n"}
    with pytest.raises(ToolArgumentsError, match="over the maximum"):
        edit_arguments(before, {"amount": 90}, made)


@given(st.integers(), st.integers(), st.booleans())
def test_an_edit_changes_what_it_names_and_nothing_else(x, y, is_plain):
    hint = int if is_plain else Doubled

    def use(x: hint, y: hint): ...

    before, after, made = editing(use, {"x": x, "y": x}, {"y": y})
    fresh = made.prepare({"x": x, "y": y})
    assert after.shown == fresh.shown == {**before.shown, "y": fresh.shown["y"]}
    assert after.named == fresh.named
