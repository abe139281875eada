import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.schema.failures import find_failures
from ferrule.schema.patterns import is_pattern
from ferrule.schema.validator import (
    UncheckableError,
    Validator,
    plain_json,
    schema_problem,
    work_problem,
)

DRAFT = "http://json-schema.org/draft-{}/schema#"

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 12)
    | st.floats(-4, 12, allow_nan=False).map(lambda each: round(each, 1))
    | st.text("abx1", max_size=5),
    lambda inside: (
        st.lists(inside, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b", "c", "x-1", ""]), inside, max_size=4)
    ),
    max_leaves=12,
)
small = st.integers(0, 4)
leaves = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                [
                    "string",
                    "integer",
                    "number",
                    "boolean",
                    "null",
                    "object",
                    "array",
                    ["integer", "null"],
                ],
            ),
        },
    ),
    st.fixed_dictionaries({"enum": st.lists(json_values, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"const": json_values}),
    st.fixed_dictionaries(
        {},
        optional={
            "minimum": small,
            "exclusiveMaximum": st.integers(2, 9),
            "multipleOf": st.integers(1, 3),
        },
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "minLength": small,
            "maxLength": small,
            "pattern": st.sampled_from(["^a", "b$", "[0-9]", "^(?!a)"]),
        },
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "minItems": small,
            "maxItems": small,
            "uniqueItems": st.booleans(),
            "minProperties": small,
        },
    ),
    st.booleans(),
    st.sampled_from([{"$ref": "#/$defs/d"}, {"$ref": "#"}]),
)
names = st.sampled_from(["a", "b", "c"])


def combined(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inside, min_size=1, max_size=3)
    return st.one_of(
        st.fixed_dictionaries(
            {},
            optional={
                "properties": st.dictionaries(names, inside, max_size=3),
                "required": st.lists(names, unique=True, max_size=2),
                "additionalProperties": inside,
                "patternProperties": st.dictionaries(
                    st.sampled_from(["^x-", "a"]),
                    inside,
                    max_size=1,
                ),
                "propertyNames": st.sampled_from([{"maxLength": 2}, True]),
            },
        ),
        st.fixed_dictionaries(
            {},
            optional={"items": inside, "prefixItems": several, "contains": inside},
        ),
        st.fixed_dictionaries(
            {},
            optional={"anyOf": several, "oneOf": several, "allOf": several, "not": inside},
        ),
        st.fixed_dictionaries({"if": inside}, optional={"then": inside, "else": inside}),
        st.fixed_dictionaries(
            {
                "properties": st.dictionaries(names, inside, max_size=2),
                "unevaluatedProperties": st.booleans(),
            },
        ),
    )


schemas = st.recursive(leaves, combined, max_leaves=6)


@given(
    schema=schemas,
    definition=leaves.filter(lambda each: not isinstance(each, dict) or "$ref" not in each),
    value=json_values,
)
def test_it_agrees_with_the_reference_implementation(schema, definition, value):
    """And what it refuses, it can tell."""
    root = {"$defs": {"d": definition}, **schema} if isinstance(schema, dict) else schema
    try:
        expected = jsonschema.Draft202012Validator(root).is_valid(value)
    except BaseException as error:  # `{"$ref": "#"}` alone: a `RecursionError`, or a panic of the reference's native map about one
        if type(error).__name__ in {"RecursionError", "PanicException"}:
            return
        raise
    validator = Validator(root)
    assert validator.is_valid(value) is expected
    failures = find_failures(validator, value)
    assert (not failures) is expected
    for each in failures:
        found = value
        for step in each.path:
            found = found[step]


@pytest.mark.parametrize(
    ("schema", "fits", "does_not"),
    [
        ({"$schema": DRAFT.format("04"), "minimum": 3, "exclusiveMinimum": True}, 4, 3),
        (
            {
                "$schema": DRAFT.format("07"),
                "items": [{"type": "integer"}],
                "additionalItems": False,
            },
            [1],
            [1, 2],
        ),
        ({"$schema": DRAFT.format("07"), "dependencies": {"a": ["b"]}}, {"b": 1}, {"a": 1}),
        (
            {
                "$schema": DRAFT.format("06"),
                "definitions": {"s": {"type": "string"}},
                "$ref": "#/definitions/s",
                "maxLength": 1,
            },
            "abc",
            3,
        ),
        (
            {
                "$schema": "https://json-schema.org/draft/2019-09/schema",
                "dependentRequired": {"a": ["b"]},
            },
            {"b": 1},
            {"a": 1},
        ),
        ({"$schema": "https://a.example/own", "prefixItems": [{"type": "string"}]}, ["a"], [1]),
    ],
)
def test_each_draft_has_its_own_rules(schema, fits, does_not):
    validator = Validator(schema)
    assert validator.is_valid(fits)
    assert find_failures(validator, fits) == []
    assert not validator.is_valid(does_not)
    assert find_failures(validator, does_not)


@pytest.fixture
def audited() -> Iterator[list[str]]:
    """What this process opens, and where it connects to."""
    seen: list[str] = []
    is_on = [True]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if is_on[0] and event in {
            "open",
            "socket.connect",
            "socket.getaddrinfo",
            "urllib.Request",
            "subprocess.Popen",
        }:
            seen.append(f"{event} {args[:1]}")

    Validator({"type": "object"}).is_valid({})  # imports what it needs
    sys.addaudithook(hook)
    yield seen
    is_on[0] = False


def test_nothing_is_opened_or_fetched(tmp_path, audited):
    """Native code is not seen by an audit hook, so a server and a file are looked at too."""
    file = tmp_path / "schema.json"
    file.write_text('{"type": "string"}')
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        audited.clear()
        for outside in (address, file.as_uri(), f"{address}#/a", "json-schema:///other"):
            for schema in (
                {"$ref": outside},
                {"properties": {"a": {"$ref": outside}}},
                {"$schema": outside},
                {"$id": outside.partition("#")[0], "$ref": "sibling"},
                {"$dynamicRef": outside},
                {"properties": {"a": {"$schema": outside}}},
            ):
                assert schema_problem(schema) == ""
                lenient = Validator(schema, lenient=True)
                assert lenient.is_valid({"a": 3})
                assert find_failures(lenient, {"a": 3}) == []
        with pytest.raises(ValueError, match="not present"):
            Validator({"$ref": file.as_uri()})
        assert audited == []
        with pytest.raises(TimeoutError):
            server.accept()


def nested(depth: int, value: Any = 1) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def test_a_value_that_is_nested_too_deeply_is_refused_and_ends_nothing():
    """The native validator would overflow the stack."""
    validator = Validator({"items": {"$ref": "#"}})
    assert validator.is_valid(nested(90))
    for depth in (150, 100_000):
        assert not validator.is_valid(nested(depth))
        [failure] = find_failures(validator, nested(depth))
        assert (failure.keyword, failure.bound) == ("unchecked", "it is nested too deeply")


def test_values_that_contain_themselves_are_refused():
    value: list[Any] = []
    value.append(value)
    assert not Validator({}).is_valid(value)


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"type": "string", "maxLength": 1}, "\ud800", True),
        ({"const": "\ud800"}, "\ud800", True),
        ({"const": "\ud800"}, "\ud801", False),
        ({"required": ["\udfff"]}, {"\udfff": 1}, True),
        ({"required": ["\udfff"]}, {"\ud800": 1}, False),
        ({"pattern": "^\ud800$"}, "\ud800", True),
        ({"type": "integer"}, 10**40, True),
        pytest.param({"type": "integer"}, 10**5000, True, id="huge"),
        ({"maximum": 10**30}, 10**30 + 1, False),
        ({"const": 2**53 + 1}, 2**53, False),
        ({"type": "number"}, float("nan"), False),
        ({"type": "number"}, float("inf"), False),
        ({"type": "integer"}, 7.0, True),
        ({"type": "integer"}, True, False),
        ({"enum": [1]}, True, False),
        ({"type": "array"}, (1, 2), True),
        ({"properties": {"1": {"type": "string"}}}, {1: 2}, False),
        ({"type": "string"}, b"a", True),
        ({"type": "object"}, 3j, False),
        ({"contentEncoding": "base64", "$schema": DRAFT.format("07")}, "?", True),
        ({"format": "email", "$schema": DRAFT.format("07")}, "?", True),
        ({"multipleOf": 0.01}, 19.99, True),
    ],
    ids=ascii,
)
def test_odd_values_are_answered(schema, value, fits):
    """Never `UnicodeEncodeError`, and never another raw error of the validator."""
    validator = Validator(schema)
    assert validator.is_valid(value) is fits
    assert (find_failures(validator, value) == []) is fits


@given(
    st.recursive(
        st.text() | st.integers() | st.floats() | st.none(),
        lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
    ),
)
def test_plain_json_keeps_every_value_that_has_a_json_form(value):
    plain, size = plain_json(value)
    assert size >= 1
    text = json.dumps(value)
    if "\\ud" not in text and "NaN" not in text:
        assert plain == value


def test_a_pattern_takes_no_more_than_linear_time():
    """Python's `re` would take longer than the universe is old."""
    validator = Validator({"pattern": "^(a+)+$"})
    assert validator.is_valid("a" * 1_000_000)
    assert not validator.is_valid("a" * 1_000_000 + "!")


@pytest.mark.parametrize("pattern", [r"(a+)+(?!x)c", r"(a*)*\1c", r"^(?=(a|a)*$)(a|aa)+$"])
def test_a_pattern_that_has_to_go_back_is_cut_short(pattern):
    validator = Validator({"items": {"pattern": pattern}})
    assert not validator.is_valid(["a" * 300 + "!"])
    [failure] = find_failures(validator, ["a" * 300 + "!"])
    assert failure.path == (0,)
    with pytest.raises(UncheckableError, match="too large"):
        validator.plain(["a"] * 60_000)


def test_what_is_a_pattern():
    assert is_pattern("^a")
    assert is_pattern("^(?!a)")
    assert is_pattern(r"^\p{L}$")
    for broken in ("(", r"a\Z", 3, None, "(a{1,1000}){1,1000}{1,1000}"):
        assert not is_pattern(broken)


def test_unique_items_are_found_by_hashing():
    """Comparing each with each would be 200 million comparisons of objects."""
    items = [{"a": {"b": i}} for i in range(20_000)]
    validator = Validator({"uniqueItems": True})
    assert validator.is_valid(items)
    assert not validator.is_valid([*items, {"a": {"b": 7}}])


def union(size: int) -> dict[str, Any]:
    """The schema of expressions: every class may hold every other."""
    classes = [{"$ref": f"#/$defs/C{i}"} for i in range(size)]
    held: dict[str, Any] = {"anyOf": classes}
    each = {
        f"C{i}": {
            "type": "object",
            "properties": {"left": held, "kind": {"const": i}},
            "required": ["kind"],
        }
        for i in range(size)
    }
    return {"$defs": each, "anyOf": classes}


def test_large_recursive_unions_are_checked():
    """As pydantic writes them for expressions of twenty classes."""
    validator = Validator(union(20))
    good: Any = {"kind": 0}
    bad: Any = {"kind": 99}
    for i in range(15):
        good, bad = {"kind": i, "left": good}, {"kind": i, "left": bad}
    assert validator.is_valid(good)
    assert not validator.is_valid(bad)
    assert [each.keyword for each in find_failures(validator, bad)] == ["anyOf"]


def test_a_check_of_recursive_definitions_that_would_not_end_is_cut_short():
    every = [{"items": {"$ref": f"#/$defs/d{i}"}, "type": "array"} for i in range(20)]
    hostile = {"$defs": {f"d{i}": {"anyOf": every} for i in range(20)}, "$ref": "#/$defs/d0"}
    assert work_problem(hostile) == ""
    validator = Validator(hostile)
    assert not validator.is_valid(nested(25))
    [failure] = find_failures(validator, nested(25))
    assert (failure.keyword, "too many checks" in failure.bound) == ("unchecked", True)
    assert validator.is_valid([])
    assert validator.is_valid([[]])


@pytest.mark.parametrize("beside", [1.5, True, "x", {}], ids=repr)
def test_recursive_definitions_beside_a_broken_keyword_are_no_schema(beside):
    hostile = {"properties": {"a": {"$ref": "#", "allOf": beside}}}
    with pytest.raises(ValueError, match="not of type"):
        Validator(hostile)
    assert Validator(hostile, lenient=True).is_valid({"a": {}})


@pytest.mark.parametrize(
    ("schema", "failures"),
    [
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, [("required", ("b",))]),
        (
            {"if": {"required": ["z"]}, "then": {"required": ["b"]}, "maxProperties": 0},
            [("maxProperties", ())],
        ),
        ({"dependentSchemas": {"a": {"required": ["b"]}, "z": False}}, [("required", ("b",))]),
        (
            {"dependentRequired": {"a": ["b"]}, "maxProperties": 0},
            [("dependentRequired", ("b",)), ("maxProperties", ())],
        ),
        ({"dependentRequired": {"z": ["b"]}, "maxProperties": 0}, [("maxProperties", ())]),
        (
            {"$schema": DRAFT.format("07"), "dependencies": {"a": {"required": ["b"]}, "c": ["d"]}},
            [("required", ("b",))],
        ),
        ({"$schema": DRAFT.format("07"), "dependencies": {"a": ["b"]}}, [("dependencies", ())]),
    ],
)
def test_what_depends_on_other_properties_fails_where_they_are(schema, failures):
    assert [
        (each.keyword, each.names) for each in find_failures(Validator(schema), {"a": 1})
    ] == failures


def test_of_a_schema_with_a_pattern_that_no_engine_reads_the_rest_is_checked():
    unread = "(?<x"
    text = Validator({"properties": {"b": {"pattern": unread, "minLength": 2}}}, lenient=True)
    assert (text.is_valid({"b": "yy"}), text.is_valid({"b": "y"})) == (True, False)
    names = {unread: {"type": "integer"}, "^a": {"type": "integer"}}
    closed = Validator(
        {"patternProperties": names, "additionalProperties": False, "unevaluatedProperties": False},
        lenient=True,
    )
    assert (closed.is_valid({"a1": 1}), closed.is_valid({"a1": "x"})) == (True, False)
    assert closed.is_valid({"q": "x"})  # the pattern that was not read might admit it


def test_beside_a_recursive_reference_an_old_draft_checks_nothing_else():
    schema = {
        "$schema": DRAFT.format("07"),
        "properties": {"a": {"$ref": "#", "maxProperties": 0}},
        "required": ["b"],
    }
    assert Validator(schema).is_valid({"b": 1, "a": {"b": 2}})
    looping = {
        "$schema": DRAFT.format("07"),
        "properties": {"a": {"$ref": "#/properties/a", "maxProperties": 0}},
    }
    assert Validator(looping).is_valid({"a": {"x": 1, "y": 2}})


def test_the_failures_of_nested_unions_are_no_tree():
    """A validator's own list has six to the power of forty entries here."""
    kinds = [
        {
            "type": "object",
            "properties": {"kind": {"const": k}, "left": {"$ref": "#"}},
            "required": ["kind", "left"],
        }
        for k in "abcdef"
    ]
    value: Any = "x"
    for i in range(40):
        value = {"kind": "abcdef"[i % 6], "left": value}
    assert len(find_failures(Validator({"oneOf": [*kinds, {"type": "integer"}]}), value)) == 1


def test_not_more_than_fifty_failures_are_told():
    assert len(find_failures(Validator({"items": {"type": "string"}}), [1] * 100_000)) == 50


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "strng"}, "at type"),
        ({"properties": {"a": {"required": "x"}}}, "at properties/a/required"),
        ({"pattern": 5}, "at pattern"),
        ({"$schema": 5}, "at $schema"),
        ({"minimum": float("nan")}, "at minimum"),
        (nested(200), "nested too deeply"),
    ],
)
def test_what_is_no_schema_is_told_with_its_place(schema, problem):
    assert problem in schema_problem(schema)


def test_a_schema_is_never_changed():
    schema = {
        "type": "string",
        "$schema": "https://a.example/own",
        "contentEncoding": "base64",
        "pattern": "(",
    }
    before = dict(schema)
    Validator(schema, lenient=True)
    assert schema_problem(schema) == ""
    assert schema == before


def test_python_dicts_that_share_parts_are_counted_as_what_they_spell():
    shared: dict[str, Any] = {}
    for _ in range(60):
        shared = {"anyOf": [shared, shared]}
    assert "too" in work_problem(shared)
    ring: dict[str, Any] = {}
    ring["not"] = ring
    assert "nested too deeply" in work_problem(ring)


SMALL_STACK = """
import threading
from ferrule.schema.failures import find_failures
from ferrule.schema.validator import Validator

def check():
    inner = {"type": ["array", "object", "integer"], "items": {"$ref": "#/$defs/d0"}, "properties": {"a": {"$ref": "#/$defs/d0"}}}
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(40)}
    wrapped = inner
    for _ in range(48):
        wrapped = {"anyOf": [{"type": "string"}, wrapped, {"type": "boolean"}]}
    for schema in ({"$ref": "#/$defs/d0", "$defs": {**chain, "d40": inner}}, {"$ref": "#/$defs/d0", "$defs": {"d0": wrapped}}):
        for value in (1, None):
            for i in range(99):
                value = [value] if i % 2 else {"a": value}
            validator = Validator(schema)
            print(validator.is_valid(value), len(find_failures(validator, value)) > 0)

threading.stack_size(512 * 1024)
thread = threading.Thread(target=check)
thread.start()
thread.join()
"""


def test_what_is_just_within_the_bounds_fits_a_stack_of_512_kb():
    """With half of that, Python itself ends on 900 nested generators."""
    ended = subprocess.run(
        [sys.executable, "-c", SMALL_STACK],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout.split()) == (0, ["True", "False", "False", "True"] * 2)


def test_rules_for_a_password_may_look_around_a_few_times_and_not_without_end():
    """Three patterns with look-around at one place were too many."""
    rules = [r"^(?=.*[a-z])", r"^(?=.*[A-Z])", r"^(?=.*[0-9])", r"^(?!.*\s)", r"^(?=.{8,})"]
    validator = Validator({"type": "string", "allOf": [{"pattern": rule} for rule in rules]})
    assert validator.is_valid("Passw0rdly")
    assert not validator.is_valid("password")
    with pytest.raises(ValueError, match="checks"):
        Validator({"anyOf": [{"pattern": f"^(?!a{number})"} for number in range(60)]})
