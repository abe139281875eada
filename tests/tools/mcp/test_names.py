import re

from hypothesis import given
from hypothesis import strategies as st

from ferrule.tools.mcp.names import safe_server, unique_names
from ferrule.values.calls.wire_name import wire_name


def test_a_name_that_nobody_else_has_stays():
    tools = [("a", "get-env"), ("a", "echo"), ("b", "read_file")]
    assert unique_names(tools, prefix=False) == {each: each[1] for each in tools}


def test_a_name_that_is_taken_is_told_apart():
    """Local tools keep theirs."""
    names = unique_names([("a", "find"), ("a", "x")], prefix=True, taken=["a__find"])
    assert re.fullmatch(r"a__find-[0-9a-f]{8}", names["a", "find"])
    assert names["a", "x"] == "a__x"


def test_the_prefix_can_be_always_or_never():
    assert unique_names([("my server", "find")], prefix=True) == {
        ("my server", "find"): "my_server__find",
    }
    never = unique_names([("a", "find"), ("b", "find")], prefix=False)
    assert len(set(never.values())) == 2
    assert all(each.startswith("find-") for each in never.values())


def test_a_prefixed_name_that_is_taken_by_another_is_told_apart():
    names = unique_names([("a", "b__c"), ("a", "c"), ("a__b", "c")], prefix=True)
    assert len(set(names.values())) == 3


def only_name(name):
    return unique_names([("s", name)], prefix=False)["s", name]


def test_a_name_that_is_too_long_is_cut_and_ends_in_a_digest():
    """The same one each time."""
    name = only_name("x" * 100)
    assert re.fullmatch(r"x{55}-[0-9a-f]{8}", name)
    assert only_name("x" * 100) == name
    assert only_name("x" * 101) != name


def test_a_cut_name_that_looks_escaped_is_safe_too():
    """Escaping it once more would make it too long again."""
    name = only_name("_x41_" * 20)
    assert wire_name(name) == name


def test_odd_characters_go_out_in_a_form_that_providers_take():
    """The tool keeps its own name, the wire has another."""
    name = only_name("we ird/näme.1:x")
    assert name == "we ird/näme.1:x"
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wire_name(name))


@given(
    st.lists(
        st.tuples(
            st.text(max_size=8),
            st.text(max_size=70) | st.sampled_from(["a", "b", "a__b", "_x41_"]),
        ),
        unique=True,
        max_size=12,
    ),
    st.booleans(),
)
def test_names_are_all_different_safe_and_the_same_each_time(tools, prefix):
    made = unique_names(tools, prefix=prefix)
    wires = [wire_name(each) for each in made.values()]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", each) for each in wires)
    assert len(set(wires)) == len(wires) == len(tools)
    assert unique_names(tools[::-1], prefix=prefix) == made


def test_the_name_of_a_server_is_made_plain():
    assert [safe_server("a b"), safe_server("--"), safe_server("…")] == ["a_b", "--", "server"]
