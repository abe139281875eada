from __future__ import annotations

from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from ferrule.values.encoding.plain import TYPE_NAMES, fits, is_plain


class Level(IntEnum):
    LOW = 1


@pytest.mark.parametrize("kind", TYPE_NAMES, ids=TYPE_NAMES.values())
def test_plain_types_are_named_as_pydantic_names_them(kind):
    assert is_plain(kind)
    assert TypeAdapter(kind).json_schema() == {"type": TYPE_NAMES[kind]}


@pytest.mark.parametrize("other", [list, Level, int | None, "int", None, list[int], {}, type(None)], ids=str)
def test_everything_else_is_not_plain(other):
    assert not is_plain(other)


@given(
    st.sampled_from(list(TYPE_NAMES)),
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()), st.just(Level.LOW)),
)
def test_what_fits_is_what_pydantic_takes_unchanged(kind, value):
    """F6: nothing is waved through that the validator would refuse or change."""
    if fits(kind, value):
        found = TypeAdapter(kind).validate_python(value, strict=True)
        assert type(found) is type(value)
        assert found == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1, True, "1.5"], ids=str)
def test_numbers_without_a_json_form_and_other_types_do_not_fit(value):
    assert not fits(float, value)
