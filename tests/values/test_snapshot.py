"""The copies of inputs that a run keeps for its replay."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from ferrule import History
from ferrule.errors import InputError
from ferrule.values.snapshot import own_copy, snapshot


class Model(BaseModel):
    model_config = ConfigDict(extra="allow")
    items: list[Any] = []
    inner: Any = None


class Frozen(BaseModel, frozen=True):
    items: list[Any] = []


@dataclass
class Plain:
    items: list[Any] = field(default_factory=list)
    inner: Any = None


@dataclass(frozen=True, slots=True)
class Slotted:
    items: list[Any] = field(default_factory=list)


def changed(value: Any) -> None:
    """Change every list in a value in place."""
    if isinstance(value, list | deque):
        for item in value:
            changed(item)
        value.append("changed")
    elif isinstance(value, dict):
        for item in value.values():
            changed(item)
    elif isinstance(value, tuple):
        for item in value:
            changed(item)
    elif isinstance(value, set):
        value.add("changed")
    elif isinstance(value, bytearray):
        value.extend(b"changed")
    elif isinstance(value, History):
        value.add_user_message("changed")
    elif not isinstance(value, str):
        changed(value.items)
        for more in ("inner", "more"):
            if getattr(value, more, None) is not None:
                changed(getattr(value, more))


VALUES: dict[str, Any] = {
    "list": lambda: [["a"]],
    "dict": lambda: {"a": ["b"]},
    "tuple": lambda: (["a"],),
    "set": lambda: {"a"},
    "bytearray": lambda: bytearray(b"a"),
    "deque": lambda: deque([["a"]]),
    "ordered": lambda: OrderedDict(a=["b"]),
    "defaultdict": lambda: defaultdict(list, a=["b"]),
    "model": lambda: Model(items=["a"], inner=Plain(items=["b"])),
    "model with more": lambda: Model.model_validate({"items": [], "more": ["a"]}),
    "frozen model": lambda: Frozen(items=["a"]),
    "dataclass": lambda: Plain(items=[["a"]], inner=Model(items=["b"])),
    "slotted": lambda: Slotted(items=["a"]),
    "list of models": lambda: [Model(items=["a"])],
    "history": lambda: History([{"role": "user", "content": "a"}]),
}


@pytest.mark.parametrize("copy", [snapshot, own_copy])
@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_a_copy_stays_as_it_was(make: Any, copy: Any) -> None:
    value = make()
    copied = copy(value)
    assert (type(copied), copied) == (type(value), make())
    changed(value)
    assert copied == make() != value
    assert copied is not value


def test_what_is_not_stored_by_its_parts_is_shared() -> None:
    connection = object()
    copied = snapshot(Plain(inner=connection))
    assert copied.inner is connection


def test_records_may_form_a_circle() -> None:
    parent = Plain()
    parent.items.append(Plain(inner=parent))
    copied = snapshot(parent)
    assert copied is not parent
    assert copied.items[0].inner is copied


def test_a_list_in_itself_cannot_be_replayed() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InputError, match="contains itself"):
        snapshot(value)
    assert own_copy(value) is value
