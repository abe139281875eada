import re

from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.tools.definition.export import wire_name
from ferrule.tools.mcp.tool import safe_server, unique_names


def test_a_name_that_nobody_else_has_stays():
    """M39."""
    servers = {"a": ["get-env", "echo"], "b": ["read_file"]}
    assert unique_names(servers, prefix=False) == servers


def test_a_name_that_is_taken_is_told_apart():
    """P67: local tools keep theirs."""
    [clashing, other] = unique_names({"a": ["find", "x"]}, prefix=True, taken=["a__find"])["a"]
    assert re.fullmatch(r"a__find-[0-9a-f]{8}", clashing)
    assert other == "a__x"


def test_the_prefix_can_be_always_or_never():
    """M39."""
    assert unique_names({"my server": ["find"]}, prefix=True) == {"my server": ["my_server__find"]}
    never = unique_names({"a": ["find"], "b": ["find"]}, prefix=False)
    assert never["a"] != never["b"]
    assert all(each[0].startswith("find-") for each in never.values())


def test_a_prefixed_name_that_is_taken_by_another_is_told_apart():
    names = unique_names({"a": ["b__c", "c"], "a__b": ["c"]}, prefix=True)
    flat = [each for found in names.values() for each in found]
    assert len(set(flat)) == 3


def test_a_name_that_is_too_long_is_cut_and_ends_in_a_digest():
    """M39: the same one each time."""
    [name] = unique_names({"s": ["x" * 100]}, prefix=False)["s"]
    assert re.fullmatch(r"x{55}-[0-9a-f]{8}", name)
    assert unique_names({"s": ["x" * 100]}, prefix=False)["s"] == [name]
    assert unique_names({"s": ["x" * 101]}, prefix=False)["s"] != [name]


def test_a_cut_name_that_looks_escaped_is_safe_too():
    """M39: escaping it once more would make it too long again."""
    [name] = unique_names({"s": ["_x41_" * 20]}, prefix=False)["s"]
    assert wire_name(name) == name


def test_odd_characters_go_out_in_a_form_that_providers_take():
    """M39: the tool keeps its own name, the wire has another."""
    [name] = unique_names({"s": ["we ird/näme.1:x"]}, prefix=False)["s"]
    assert name == "we ird/näme.1:x"
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wire_name(name))


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=8),
        st.lists(st.text(max_size=70) | st.sampled_from(["a", "b", "a__b", "_x41_"]), unique=True, max_size=4),
        max_size=4,
    ),
    st.booleans(),
)
def test_names_are_all_different_safe_and_the_same_each_time(servers, prefix):
    """M39."""
    made = unique_names(servers, prefix=prefix)
    wires = [wire_name(each) for names in made.values() for each in names]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", each) for each in wires)
    assert len(set(wires)) == len(wires) == sum(map(len, servers.values()))
    assert unique_names(dict(reversed(list(servers.items()))), prefix=prefix) == made


def test_the_name_of_a_server_is_made_plain():
    assert [safe_server("a b"), safe_server("--"), safe_server("…")] == ["a_b", "--", "server"]
