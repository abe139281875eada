import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.errors import ToolDefinitionError
from ferrule.tools.definition.names import own_name, wire_name


@pytest.mark.parametrize("name", ["add", "a", "A-b_9", "x" * 64, "server__tool", "_x", "_", "-", "_x222222_"])
def test_a_legal_name_goes_as_it_is(name):
    """U9, api.md 2."""
    assert wire_name(name) == name == own_name(name)


@pytest.mark.parametrize(
    ("name", "wire"),
    [("github.search", "github_dot_search"), ("Google Search", "Google_x20_Search"), ("größe", "gr_xf6__xdf_e")],
)
def test_other_characters_are_written_out(name, wire):
    """api.md 2."""
    assert wire_name(name) == wire
    assert own_name(wire) == name


@pytest.mark.parametrize("name", ["", " ", "\n", "a\nb", "a\x00", "\u200b", "\ud800", "x" * 65, "é" * 20])
def test_what_cannot_be_mapped_is_refused(name):
    """U9, api.md 2."""
    with pytest.raises(ToolDefinitionError):
        wire_name(name)


NAMES = st.text(st.sampled_from("ab_x2ed-.ot f é/"), min_size=1, max_size=12) | st.text(
    st.characters(codec="utf-8"),
    min_size=1,
    max_size=7,
)


@settings(deadline=None)
@given(NAMES)
def test_every_name_is_refused_or_read_back_exactly(name):
    """api.md 2: reversible, and so no two names share a wire name."""
    try:
        wire = wire_name(name)
    except ToolDefinitionError:
        return
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wire)
    assert own_name(wire) == name
