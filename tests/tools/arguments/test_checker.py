import contextlib
import string
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

from ferrule.errors import ToolArgumentsError
from ferrule.tools.tool import Tool
from ferrule.values.calls.edit import edit_arguments


class Inner(BaseModel):
    n: int
    tags: list[str] = []


class Tree(BaseModel):
    value: int
    kids: list["Tree"] = []


def search(query: str, limit: Annotated[int, Field(ge=1, le=50)] = 10, tags: list[str] = []):
    return query, limit, tags


def many(
    a: int,
    b: float = 1.5,
    c: bool = False,
    d: Optional[str] = None,
    e: list[int] = [],
    f: dict[str, float] = {},
    g: Inner | None = None,
    h: int | str = 1,
):
    return a


def prepare(function, args, **given):
    return Tool(function, **given).prepare(args)


def problems(function, args, **given):
    with pytest.raises(ToolArgumentsError) as caught:
        prepare(function, args, **given)
    return dict(caught.value.problems)


class TestTelling:
    def test_every_problem_at_once_and_the_expected_form(self):
        with pytest.raises(ToolArgumentsError) as caught:
            prepare(search, {"query": "q", "limit": 500, "tags": "a,b"})
        assert str(caught.value) == (
            "Call to `search` was not run. Fix and call again:\n"
            "- limit: 500 is over the maximum 50\n"
            '- tags: expected a list of strings, got "a,b"\n'
            'Expected: {"query": string, "limit": integer 1-50 = 10, "tags": [string] = []}'
        )

    def test_missing_unknown_and_wrong_together(self):
        assert problems(search, {"limit": "x", "qery": "q"}) == {
            "qery": "there is no such argument, did you mean `query`?",
            "query": "is missing, expected a string",
            "limit": 'expected an integer 1-50, got "x"',
        }

    def test_no_traceback_and_no_address(self):
        with pytest.raises(ToolArgumentsError) as caught:
            prepare(many, {"a": object(), "g": {"n": "x"}, "h": []})
        assert "Traceback" not in str(caught.value)
        assert "http" not in str(caught.value)
        assert "0x" not in str(caught.value)

    def test_paths_lead_into_models_and_lists(self):
        def use(filters: list[Inner], tree: Tree, pick: Inner | list[int] = []): ...

        assert problems(
            use,
            {
                "filters": [{"n": 1}, {"n": "x", "tags": ["a", 3.5, None]}],
                "tree": {"value": 1, "kids": [{"kids": []}]},
                "pick": "x",
            },
        ) == {
            "filters.1.n": 'expected an integer, got "x"',
            "filters.1.tags.2": "expected a string, got null",
            "tree.kids.0.value": "is missing, expected an integer",
            "pick": 'expected an object {"n": integer, "tags": [string] = []} or a list of integers, got "x"',
        }

    def test_bounds_lengths_and_choices_are_named(self):
        def use(
            low: Annotated[int, Field(ge=3)] = 3,
            above: Annotated[float, Field(gt=0)] = 1,
            step: Annotated[int, Field(multiple_of=5)] = 5,
            word: Annotated[str, Field(min_length=2, max_length=4)] = "ab",
            code: Annotated[str, Field(pattern="^[a-z]+$")] = "a",
            some: Annotated[list[int], Field(min_length=2)] = [1, 2],
            pick: Literal["x", "y"] = "x",
        ): ...

        assert problems(
            use,
            {
                "low": 1,
                "above": 0,
                "step": 7,
                "word": "abcde",
                "code": "A",
                "some": [1],
                "pick": "z",
            },
        ) == {
            "low": "1 is under the minimum 3",
            "above": "0 must be greater than 0",
            "step": "7 is not a multiple of 5",
            "word": '"abcde" has more than 4 characters',
            "code": '"A" does not match the pattern ^[a-z]+$',
            "some": "has 1 items, expected at least 2",
            "pick": 'expected one of "x", "y", got "z"',
        }

    def test_the_users_own_validators_are_heard(self):
        class Even(BaseModel):
            n: int

            @field_validator("n")
            @classmethod
            def _even(cls, n):
                if n == 0:
                    return 1 // n
                if n % 2:
                    raise ValueError("must be even")
                return n

        def use(x: Even): ...

        assert problems(use, {"x": {"n": 3}}) == {"x.n": "3 is refused: must be even"}
        assert "ZeroDivisionError" in problems(use, {"x": {"n": 0}})[""]

    def test_what_is_no_object_is_told(self):
        for junk in ([1], 3, "x", "[1]", True, object()):
            assert "expected an object" in problems(search, junk)[""]


class TestCoercion:
    def test_numbers_in_strings_pass_and_words_do_not(self):
        """api.md 1, D8."""
        found = prepare(many, {"a": "7", "b": "2.5", "c": "true"})
        assert found.named["a"] == 7
        assert found.named["b"] == 2.5
        assert found.named["c"] is True
        assert found.repairs == ("string_to_number", "string_to_boolean")
        assert problems(many, {"a": "x"}) == {"a": 'expected an integer, got "x"'}

    def test_texts_in_lists_and_objects_that_become_numbers_are_repairs_too(self):
        def nested(
            counts: dict[str, int],
            flags: list[bool],
            table: list[dict[str, float]],
            words: list[str],
        ) -> str:
            return ""

        plain = {"counts": {"a": 1}, "flags": [True], "table": [{"x": 1.5}], "words": ["7"]}
        assert prepare(nested, plain).repairs == ()
        assert prepare(nested, {**plain, "counts": {"a": "1"}}).repairs == ("string_to_number",)
        assert prepare(nested, {**plain, "flags": ["true"], "table": [{"x": "1.5"}]}).repairs == (
            "string_to_boolean",
            "string_to_number",
        )

    @pytest.mark.parametrize(
        ("given", "repairs"),
        [
            ({"flag": 0}, ("number_to_boolean",)),
            ({"flags": [1, True]}, ("number_to_boolean",)),
            ({"rows": [[False], [0.0]]}, ("number_to_boolean",)),
            ({"named": {"a": 1}}, ("number_to_boolean",)),
            ({"flag": False, "flags": [True], "rows": [[]], "named": {"a": False}}, ()),
        ],
    )
    def test_numbers_that_become_booleans_are_repairs(self, given, repairs):
        """Python says that `[0] == [False]`."""

        def switch(
            flag: bool = True,
            flags: list[bool] = [],
            rows: list[list[bool]] = [],
            named: dict[str, bool] = {},
        ) -> str:
            return ""

        assert prepare(switch, given).repairs == repairs

    @pytest.mark.parametrize(
        "args",
        [
            {"a": True},
            {"a": 1, "b": False},
            {"a": 1, "e": [1, True]},
            {"a": 1, "f": {"k": True}},
            {"a": 1, "g": {"n": True}},
        ],
    )
    def test_a_boolean_is_never_a_number(self, args):
        """api.md 1 (ours: `True` for 1 is a slip that costs)."""
        [(path, text)] = problems(many, args).items()
        assert path in {"a", "b", "e.1", "f.k", "g.n"}
        assert text.startswith("expected a")
        assert text.endswith(("got true", "got false"))

    def test_a_boolean_where_one_fits_stays_one(self):
        """ours."""

        def use(x: bool | int, y: Any = None, z: list[bool] = []): ...

        found = prepare(use, {"x": True, "y": [True], "z": [False]})
        assert found.named == {"x": True, "y": [True], "z": [False]}
        assert found.repairs == ()

    def test_floats_without_a_fraction_are_integers(self):
        """api.md 1."""
        assert prepare(many, {"a": 3.0}).named["a"] == 3
        assert "a" in problems(many, {"a": 3.5})

    def test_numbers_where_text_is_wanted_become_text_by_name(self):
        """api.md 1 (ours: models send numbers for strings)."""
        found = prepare(search, {"query": 5, "tags": [1, "a", 2.5]})
        assert (found.named["query"], found.named["tags"]) == ("5", ["1", "a", "2.5"])
        assert set(found.repairs) == {"number_to_string"}

    def test_infinities_are_shown_as_json(self):
        """ours: where the function takes them at all."""

        def scale(by: Annotated[float, Field(allow_inf_nan=True)]): ...

        assert prepare(scale, {"by": float("inf")}).shown["by"] == "Infinity"

    @pytest.mark.parametrize(
        "value",
        ["nan", "inf", "-Infinity", "1e999", 10**400, float("nan"), float("-inf")],
        ids=range(7),
    )
    def test_a_number_that_is_not_finite_is_refused(self, value):
        """JSON's numbers are finite, and a tool that adds up should not add `nan`."""

        def pay(
            amount: float,
            shares: list[float] = [],
            limit: float | None = None,
            **more: float,
        ): ...

        for args in (
            {"amount": value},
            {"amount": 1, "shares": [value]},
            {"amount": 1, "limit": value},
            {"amount": 1, "k": value},
        ):
            [(_, text)] = problems(pay, args).items()
            assert text.endswith("is not a finite number")
        assert problems(pay, {"amount": "1e999"}) == {"amount": '"1e999" is not a finite number'}

    def test_a_function_that_says_so_takes_any_number(self):
        """By its type, or by what it does without the argument."""

        def wait(
            seconds: Annotated[float, Field(allow_inf_nan=True)],
            most: float = float("inf"),
            anything: Any = None,
        ): ...

        found = prepare(wait, {"seconds": "nan", "most": "inf", "anything": float("inf")}).named
        assert repr(found) == "{'seconds': nan, 'most': inf, 'anything': inf}"

    @pytest.mark.parametrize("value", [1e20, -1e20, "1e20", 7.0, "7.0", 2.0**63], ids=repr)
    def test_a_float_of_any_size_without_a_fraction_is_an_integer(self, value):
        """Api.md 1: it fits the schema."""
        found = prepare(many, {"a": value, "e": [value]})
        assert found.named["a"] == int(float(value))
        assert found.shown["e"] == [int(float(value))]
        assert type(found.named["a"]) is int

    def test_a_whole_number_under_a_schema_given_by_hand_reaches_the_function_as_an_integer(self):
        """A function without types has no other coercion."""

        def use(**kwargs): ...

        inner = {"type": "object", "properties": {"k": {"type": ["integer", "null"]}}}
        schema = {
            "properties": {
                "n": {"type": "integer"},
                "rows": {"items": {"type": "integer"}},
                "deep": inner,
                "x": {"type": "number"},
            },
        }
        found = prepare(
            use,
            {"n": 7.0, "rows": [1.0], "deep": {"k": 2.0}, "x": 3.0},
            schema=schema,
        ).named
        assert repr(found) == "{'n': 7, 'rows': [1], 'deep': {'k': 2}, 'x': 3.0}"
        assert problems(use, {"n": 7.5}, schema=schema) == {"n": "expected an integer, got 7.5"}


class TestRepairs:
    @pytest.mark.parametrize(
        ("args", "named", "repairs"),
        [
            ('{"a": 1}', {"a": 1}, ("doubly_encoded",)),
            ('"{\\"a\\": 1}"', {"a": 1}, ("doubly_encoded",)),
            ("{'a': 1, 'c': True}", {"a": 1, "c": True}, ("doubly_encoded",)),
            ({"arguments": {"a": 1}}, {"a": 1}, ("single_key_wrapper",)),
            ({"input": '{"a": 1}'}, {"a": 1}, ("doubly_encoded", "single_key_wrapper")),
            ({"many": {"a": 1}}, {"a": 1}, ("single_key_wrapper",)),
            ({"a": 1, "e": "[1, 2]"}, {"a": 1, "e": [1, 2]}, ("stringified_list",)),
            (
                {"a": 1, "e": "[1, '2']"},
                {"a": 1, "e": [1, 2]},
                ("python_literal", "string_to_number"),
            ),
            ({"a": 1, "e": "(1, 2)"}, {"a": 1, "e": [1, 2]}, ("python_literal",)),
            ({"a": 1, "f": '{"k": 2}'}, {"a": 1, "f": {"k": 2.0}}, ("stringified_object",)),
            (
                {"a": 1, "g": '{"n": "3", "tags": "[\\"x\\"]"}'},
                {"a": 1, "g": Inner(n=3, tags=["x"])},
                ("stringified_object", "string_to_number", "stringified_list"),
            ),
            ({"a": 1, "c": "False"}, {"a": 1, "c": False}, ("string_to_boolean",)),
            ({"a": 1, "b": None}, {"a": 1, "b": 1.5}, ("null_as_default",)),
            ({"a": 1, "e": ["1"]}, {"a": 1, "e": [1]}, ("string_to_number",)),
        ],
    )
    def test_are_named(self, args, named, repairs):
        found = prepare(many, args)
        assert {name: found.named[name] for name in named} == named
        assert found.repairs == repairs

    @pytest.mark.parametrize("none", [None, "", "  ", {}])
    def test_no_arguments_mean_none(self, none):
        def nothing(): ...

        assert prepare(nothing, none).named == {}
        assert "a" in problems(many, none)

    def test_a_wrapper_is_opened_only_where_that_fits_and_the_raw_does_not(self):
        def raw(input: dict): ...

        def text(input: str): ...

        assert prepare(raw, {"input": {"input": {}}}).named == {"input": {"input": {}}}
        assert prepare(text, {"input": {"input": "x"}}).named == {"input": "x"}
        assert prepare(many, {"args": {"a": 1}}).named["a"] == 1
        assert problems(many, {"args": {"z": 1}}).keys() == {"args", "a"}
        assert problems(many, {"other": {"a": 1}}).keys() == {"other", "a"}

    def test_nothing_is_guessed(self):
        """Two objects, or junk, are errors."""
        for junk in ('{"a": 1} {"a": 2}', "a=1", '{"a": 1', "[{}]", '{"a": NaN}'):
            assert problems(many, junk)
        assert problems(many, {"a": 1, "e": "1,2"})
        assert problems(many, {"a": 1, "e": "{1, 2}"})
        assert problems(many, {"a": "__import__('os')"})
        assert problems(many, {"a": 1, "f": "{1: 2}"})

    def test_text_that_is_wanted_as_text_stays(self):
        def say(text: str, maybe: str | list[str] = "", anything: Any = None): ...

        args = {"text": "[1]", "maybe": '["a"]', "anything": "{}"}
        assert prepare(say, args).named == args

    def test_null_for_a_required_argument_is_no_default(self):
        assert problems(many, {"a": None}) == {"a": "expected an integer, got null"}

    def test_what_is_shown_is_apart_from_what_the_function_gets(self):
        """A tool that changes its list does not change what a person is asked or what is
        journalled.
        """
        found = prepare(many, {"a": 1, "e": [1], "f": {"k": 1.0}})
        found.named["e"].append(2)
        found.named["f"]["z"] = 3.0
        assert found.shown["e"] == [1]
        assert found.shown["f"] == {"k": 1.0}

    def test_many_threads_may_meet_a_new_tool_at_once(self):
        """ours: what is made on first use may be made twice, never halfway."""
        for _ in range(20):
            made = Tool(many)
            with ThreadPoolExecutor(8) as pool:
                found = list(
                    pool.map(
                        lambda n, made=made: made.prepare({"a": str(n), "e": [n]}).named["a"],
                        range(8),
                    ),
                )
            assert found == list(range(8))

    def test_the_given_arguments_are_never_changed(self):
        args = {"a": "1", "g": '{"n": 1}', "e": "[1]"}
        before = dict(args)
        prepare(many, args)
        assert args == before


class TestBySchemaOnly:
    SCHEMA: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1},
            "mode": {"enum": ["a", "b"]},
            "deep": {
                "type": "object",
                "properties": {"x": {"type": "boolean"}},
                "required": ["x"],
                "additionalProperties": False,
            },
        },
        "required": ["n"],
        "additionalProperties": False,
    }

    def test_a_remote_tool_is_coerced_and_checked_like_any_other(self):
        """U15, api.md 1, P16."""
        remote = Tool("far", schema=self.SCHEMA)
        found = remote.prepare({"n": "7", "deep": '{"x": "true"}'})
        assert found.named == found.shown == {"n": 7, "deep": {"x": True}}
        assert found.repairs == ("string_to_number", "stringified_object", "string_to_boolean")

    def test_every_problem_is_told(self):
        remote = Tool("far", schema=self.SCHEMA)
        with pytest.raises(ToolArgumentsError) as caught:
            remote.prepare({"n": 0, "mode": "c", "deep": {"y": 1}, "zzz": 1})
        assert dict(caught.value.problems) == {
            "zzz": "there is no such argument",
            "n": "0 is under the minimum 1",
            "mode": 'expected one of "a", "b", got "c"',
            "deep.y": "there is no such argument",
            "deep.x": "is missing, expected true or false",
        }
        with pytest.raises(ToolArgumentsError) as caught:
            remote.prepare({"n": 0, "mode": "c", "deep": {"y": 1}})
        assert dict(caught.value.problems) == {
            "n": "0 is under the minimum 1",
            "mode": 'expected one of "a", "b", got "c"',
            "deep.y": "there is no such argument",
            "deep.x": "is missing, expected true or false",
        }

    def test_a_boolean_is_no_number_there_either(self):
        """api.md 1."""
        with pytest.raises(ToolArgumentsError, match="n: expected an integer >= 1, got true"):
            Tool("far", schema=self.SCHEMA).prepare({"n": True})

    def test_a_schema_jsonschema_refuses_is_a_fault_of_the_definition(self):
        from ferrule.errors import ToolDefinitionError

        with pytest.raises(ToolDefinitionError):
            Tool(
                "far",
                schema={"type": "object", "properties": {"a": {"dependentRequired": 3}}},
            ).prepare({"a": 1})


class TestAbuse:
    def test_half_surrogates_pass_as_values_and_are_told_as_names(self):
        """ours."""
        assert prepare(search, {"query": "\ud800"}).named["query"] == "\ud800"
        with pytest.raises(ToolArgumentsError) as caught:
            prepare(search, {"query": "q", "\ud800": 1, "limit": "\udfff"})
        str(caught.value).encode()

    def test_a_value_that_compares_by_element_is_passed_on(self):
        """As numpy's arrays do: the result of `==` is neither true nor false."""

        class Answers:
            def __bool__(self):
                raise ValueError("The truth value of an array is ambiguous.")

        class Array:
            __hash__ = None  # type: ignore[assignment]

            def __eq__(self, other):
                return Answers()

        array = Array()

        def use(x: Any, y: list[Any] = []): ...

        assert prepare(use, {"x": array}).named["x"] is array
        assert prepare(use, {"x": 1, "y": [array]}).named["y"][0] is array

    def test_names_that_are_no_text_are_told(self):
        """ours."""
        assert problems(search, {1: 2, None: 3, "query": "q"}).keys() == {"1", "None"}

    def test_depth_ends_in_an_error_or_a_value_and_never_in_a_crash(self):
        """ours."""
        deep: Any = []
        tree: Any = {"value": 1}
        for _ in range(20_000):
            deep = [deep]
            tree = {"value": 1, "kids": [tree]}

        def use(x: Any = None, y: Tree | None = None, z: list[list[int]] = []): ...

        assert problems(use, {"y": tree})
        assert problems(use, {"z": deep})
        text = "[" * 100_000
        assert problems(use, {"z": text})
        with contextlib.suppress(ToolArgumentsError):
            prepare(use, {"x": deep})

    def test_a_value_that_contains_itself_ends_too(self):
        """ours."""
        circle: list[Any] = []
        circle.append(circle)

        def use(x: list[Any] = [], y: int = 1): ...

        with contextlib.suppress(ToolArgumentsError):
            prepare(use, {"x": circle})

    def test_huge_arguments_are_shortened_in_the_message(self):
        with pytest.raises(ToolArgumentsError) as caught:
            prepare(many, {"a": "x" * 1_000_000, "y" * 1_000_000: 1})
        assert len(str(caught.value)) < 2_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda each: (
        st.lists(each, max_size=4)
        | st.dictionaries(
            st.text(max_size=4) | st.sampled_from(["n", "tags", "value", "kids", "a"]),
            each,
            max_size=4,
        )
    ),
    max_leaves=12,
)
NAMES = st.sampled_from([*"abcdefgh", "arguments", "input", "zzz"])
MANY = Tool(many)
REMOTE = Tool("far", schema=TestBySchemaOnly.SCHEMA)
SEARCH = Tool(search)


def nested(
    tree: Tree,
    by: dict[str, list[Inner]] = {},
    pick: Inner | list[int] | Literal["x"] | None = None,
): ...


NESTED = Tool(nested)


@settings(deadline=None)
@given(
    st.dictionaries(
        NAMES
        | st.sampled_from(["n", "mode", "deep", "query", "limit", "tags", "tree", "by", "pick"]),
        JSON,
        max_size=6,
    )
    | JSON,
)
def test_junk_is_taken_or_refused_and_never_anything_else(args):
    for each in (MANY, REMOTE, SEARCH, NESTED):
        try:
            found = each.prepare(args)
        except ToolArgumentsError as error:
            told = str(error).encode()
            assert told
        else:
            each.prepare(found.shown)


SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(),
    str: st.text(st.characters(codec="utf-8")),
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    type(None): st.none(),
}
TYPED = st.recursive(
    st.sampled_from(list(SIMPLE)).map(lambda kind: (kind, SIMPLE[kind])),
    lambda each: (
        each.map(lambda pair: (list[pair[0]], st.lists(pair[1], max_size=3)))
        | each.map(
            lambda pair: (
                dict[str, pair[0]],
                st.dictionaries(st.text(string.ascii_letters, max_size=3), pair[1], max_size=3),
            ),
        )
        | each.map(lambda pair: (Optional[pair[0]], st.none() | pair[1]))
    ),
    max_leaves=3,
)


@settings(deadline=None)
@given(st.data())
def test_for_any_signature_arguments_that_fit_come_back_equal(data):
    """And pass through the schema that is shown to the model."""
    from jsonschema import Draft202012Validator

    kinds = data.draw(st.dictionaries(st.text("abc_", min_size=1, max_size=3), TYPED, max_size=4))
    values = {name: data.draw(strategy) for name, (_, strategy) in kinds.items()}

    def free(**kwargs):
        return kwargs

    made = Tool(free, arg_types={name: kind for name, (kind, _) in kinds.items()})
    assert Draft202012Validator(made.parameters).is_valid(values)
    found = made.prepare(values)
    assert found.named == values
    assert found.shown == values
    assert found.repairs == ()
    assert made(**values) == values


def test_a_tool_that_takes_any_name_takes_more_than_a_thousand():
    def count(**kwargs: int) -> int:
        return len(kwargs)

    assert Tool(count)(**{f"a{i}": i for i in range(1_500)}) == 1_500


def test_a_thousand_unknown_arguments_are_reported_beside_one_that_does_not_fit():
    """Only more than a thousand are refused without a look at the others."""
    unknown = {f"a{i}": i for i in range(1_000)}
    assert "limit" in problems(
        search,
        {"query": "q", "limit": "many"} | dict(list(unknown.items())[:999]),
    )
    assert "limit" not in problems(
        search,
        {"query": "q", "limit": "many"} | unknown | {"one_more": 1},
    )


class Size(Enum):
    SMALL = "small"


class Turn(Enum):
    LEFT = 1


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (Literal[Size.SMALL], "small", Size.SMALL),
        (Literal[Size.SMALL], Size.SMALL, Size.SMALL),
        (Literal[Size.SMALL, "small"], "small", "small"),
        (list[Literal[Size.SMALL]], ["small"], [Size.SMALL]),
        (dict[Literal[Size.SMALL], int] | None, {"small": 1}, {Size.SMALL: 1}),
        (Annotated[Literal[Size.SMALL, Turn.LEFT], "a choice"], 1, Turn.LEFT),
    ],
)
def test_a_literal_of_an_enums_members_is_read_by_their_values(kind, value, read):
    """The schema offers the values, and pydantic accepts the members alone."""

    def use(choice):
        return choice

    assert repr(Tool(use, arg_types={"choice": kind})(choice=value)) == repr(read)


def test_a_literal_of_an_enums_members_accepts_no_other_value():
    def use(choice: Literal[Turn.LEFT], size: Literal[Size.SMALL]): ...

    assert problems(use, {"choice": True, "size": "tall"}) == {
        "choice": "expected 1, got true",
        "size": 'expected "small", got "tall"',
    }


class Booking(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date
    seats: tuple[int, ...]
    size: Size
    number: int


def test_a_strict_model_reads_arguments_as_json():
    """No call could ever fit, because JSON has no dates, tuples and enums."""

    def book(booking: Booking, **more: Booking):
        return booking, more

    fits = {"day": "2026-01-01", "seats": [1, 2], "size": "small", "number": 1}
    found = Booking(day=date(2026, 1, 1), seats=(1, 2), size=Size.SMALL, number=1)
    assert Tool(book)(booking=fits) == (found, {})
    assert Tool(book)(booking=found, other=fits) == (found, {"other": found})
    assert prepare(book, {"booking": fits}).repairs == ()
    assert problems(book, {"booking": {**fits, "day": "soon", "number": 1.5}}).keys() >= {
        "booking.day",
        "booking.number",
    }


def test_a_strict_model_refuses_python_values_of_another_type():
    def use(booking: Booking):
        return booking

    assert problems(
        use,
        {
            "booking": {
                "day": datetime(2026, 1, 1, 5, tzinfo=UTC),
                "seats": (1,),
                "size": Size.SMALL,
                "number": 1,
            },
        },
    ).keys() == {"booking.day"}


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
    def book(guests: list[str], nights: int = 1) -> str:
        return f"{guests} {nights}"

    tool = Tool(book)
    edited = edit_arguments(tool.prepare({"guests": ["Ada"]}), {"nights": 2}, tool)
    assert (edited.named, edited.shown) == ({"guests": ["Ada"], "nights": 2},) * 2
