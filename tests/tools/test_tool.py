import asyncio
import contextvars
import copy
import functools
import pickle
import sys
import threading
from datetime import datetime
from typing import Annotated, Literal, Optional

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from ferrule.errors import ConfirmationRequired, ToolArgumentsError, ToolDefinitionError, ToolError
from ferrule.schema.python_types import convert_input_schema_to_tool_args
from ferrule.tools.decorator import tool
from ferrule.tools.tool import Tool
from ferrule.values.content.type import Type


@tool(name="calculator", description="Perform arithmetic operations")
def calculator(
    operation: str = Field(description="add, subtract, multiply, or divide"),
    a: float = Field(description="First number"),
    b: float = Field(description="Second number"),
) -> float:
    """Execute arithmetic operation."""
    return {"add": a + b, "multiply": a * b}[operation]


CALCULATOR = {
    "type": "object",
    "properties": {
        "operation": {"type": "string", "description": "add, subtract, multiply, or divide"},
        "a": {"type": "number", "description": "First number"},
        "b": {"type": "number", "description": "Second number"},
    },
    "required": ["operation", "a", "b"],
}


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool
def decorated(x: int) -> int:
    """Twice."""
    return 2 * x


async def fetch(url: str) -> str:
    return f"from {url}"


class Node(BaseModel):
    value: int
    kids: list["Node"] = []


class TestDecorator:
    def test_gives_a_tool_with_name_and_description(self):
        assert isinstance(calculator, Tool)
        assert (calculator.name, calculator.description, calculator.desc) == (
            "calculator",
            *["Perform arithmetic operations"] * 2,
        )
        assert calculator.func.__name__ == "calculator"
        assert calculator.require_confirmation is False

    def test_takes_name_and_whole_docstring_from_the_function(self):
        @tool()
        def measure(x: int):
            """Measure it.

            With care.
                And more.
            """

        assert measure.name == "measure"
        assert measure.description == "Measure it.\n\nWith care.\n    And more."

    def test_without_a_docstring_the_description_is_empty(self):
        @tool()
        def bare(x: int): ...

        assert bare.description == ""
        assert bare.declaration["function"]["description"] == ""
        assert bare.format() == 'bare. It takes arguments {"x":{"type":"integer"}}.'

    def test_takes_the_confirmation_by_keyword_only(self):
        with pytest.raises(TypeError):
            tool("name", "description", True)

    def test_works_without_parentheses(self):
        assert isinstance(decorated, Tool)
        assert decorated(3) == 6

    def test_takes_a_function_with_keywords(self):
        """ours: `tool(function, effect=...)` is neither form of a decorator, but plainly meant."""
        assert tool(add, effect="read").effect == "read"
        assert tool(add, "Another text").description == "Another text"

    def test_works_on_async_functions(self):
        assert asyncio.run(tool(fetch).acall(url="x")) == "from x"

    def test_keeps_what_python_looks_for_on_a_function(self):
        assert decorated.__name__ == "decorated"
        assert decorated.__doc__ == "Twice."
        assert decorated.__module__ == __name__
        assert decorated.__wrapped__ is decorated.func

    def test_on_a_method_binds_like_one(self):
        class Counter:
            def __init__(self, start):
                self.start = start

            @tool
            def up(self, by: int = 1) -> int:
                """Count."""
                return self.start + by

            @tool
            @classmethod
            def kind(cls, loud: bool = False) -> str:
                return cls.__name__

            @tool
            @staticmethod
            def twice(x: int) -> int:
                return 2 * x

            other = decorated

        counter = Counter(5)
        assert counter.up(by="2") == 7
        assert counter.up.parameters["properties"] == {"by": {"default": 1, "type": "integer"}}
        assert counter.up == counter.up
        assert counter.up != Counter(6).up
        assert Counter.kind() == counter.kind() == "Counter"
        assert Counter.twice(2) == counter.twice(2) == 4
        assert counter.other is decorated
        assert counter.other(4) == 8

    @pytest.mark.skipif(
        sys.version_info >= (3, 13),
        reason="a classmethod wraps no other descriptor from Python 3.13 on",
    )
    def test_below_a_classmethod_it_binds_the_class(self):
        """A model would have to fill `cls`."""

        class Counter:
            @classmethod
            @tool
            def named(cls, loud: bool = False) -> str:
                return cls.__name__

        assert Counter.named(loud=True) == Counter().named() == "Counter"
        assert list(Counter().named.args) == ["loud"]

    def test_on_an_inherited_method_binds_too(self):
        class First:
            @tool
            def who(self) -> str:
                return type(self).__name__

        class Second(First): ...

        assert Second().who() == "Second"


class TestConstructor:
    def test_takes_udspys_arguments(self):
        made = Tool(
            add,
            "adder",
            "Adds",
            require_confirmation=True,
            desc="Adds",
            args={"a": "the first"},
        )
        assert (made.name, made.desc, made.require_confirmation) == ("adder", "Adds", True)
        assert Tool(add, desc="Adds").description == "Adds"

    def test_refuses_two_different_descriptions(self):
        with pytest.raises(ToolDefinitionError, match="two values for `description`"):
            Tool(add, description="one", desc="two")

    def test_takes_dspys_arguments_by_position_and_by_name(self):
        by_position = Tool(
            add,
            "adder",
            "Adds",
            {"a": {"type": "integer", "minimum": 0}},
            {"a": int},
            {"a": "the first"},
        )
        by_name = Tool(
            func=add,
            name="adder",
            desc="Adds",
            args={"a": {"type": "integer", "minimum": 0}},
            arg_types={"a": int},
            arg_desc={"a": "the first"},
        )
        assert by_position == by_name
        assert by_position.args["a"] == {
            "type": "integer",
            "minimum": 0,
            "description": "the first",
        }

    def test_takes_what_api_md_calls_its_first_argument(self):
        """api.md, signatures."""
        assert Tool(func_or_name=add) == Tool(add)
        assert Tool(func_or_name="x", schema={}).name == "x"

    def test_takes_seed_004s_arguments_by_position_and_by_name(self):
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        for made in (
            Tool("adder", "Adds", add, schema, "server"),
            Tool(
                name="adder",
                description="Adds",
                callable=add,
                schema=schema,
                mcp_server="server",
            ),
        ):
            assert (made.name, made.description, made.mcp_server) == ("adder", "Adds", "server")
            assert made.parameters == schema
            assert made(a=2) == 3
        assert Tool("adder", callable=add).description == "Add two numbers."
        assert Tool("adder", None, add).parameters == Tool(add).parameters
        assert Tool(add).mcp_server is None

    def test_needs_a_function_or_a_schema(self):
        for arguments in ({"name": "x"}, {}, {"name": "x", "description": "y"}):
            with pytest.raises(ToolDefinitionError, match="needs a function"):
                Tool(**arguments)
        assert Tool("x", schema={"type": "object", "properties": {}}).func is None

    def test_refuses_what_it_does_not_know(self):
        """ours: a misspelt keyword is an error that names it."""
        with pytest.raises(ToolDefinitionError, match="require_confirm"):
            Tool(add, require_confirm=True)
        with pytest.raises(ToolDefinitionError, match="twice"):
            Tool(add, "adder", name="other")
        with pytest.raises(ToolDefinitionError, match="at most"):
            Tool(add, *["x"] * 9)

    @pytest.mark.parametrize("thing", [3, None, [add], {"name": 3}, object(), b"x"])
    def test_refuses_what_cannot_be_called(self, thing):
        with pytest.raises(ToolDefinitionError):
            Tool(thing)
        with pytest.raises(TypeError):
            Tool(thing)

    @pytest.mark.parametrize("timeout_s", [float("inf"), 1e10])
    def test_a_time_limit_that_no_thread_can_wait_for_is_none(self, timeout_s):
        """`OverflowError` ended each call that took a moment."""
        assert Tool(add, timeout_s=timeout_s).timeout_s is None

    @pytest.mark.parametrize(
        "wrong",
        [
            {"effect": "twice"},
            {"timeout_s": 0},
            {"timeout_s": -1},
            {"timeout_s": True},
            {"timeout_s": "5"},
            {"timeout_s": float("nan")},
            {"name": ""},
            {"name": 3},
            {"name": "a\nb"},
            {"name": "x" * 65},
            {"description": 3},
            {"args": ["a"]},
            {"args": {"a": 3}},
            {"args": {1: "x"}},
            {"args": {"zzz": "unknown"}},
            {"args": {"a": {"type": "strange"}}},
            {"args": {"a": {"pattern": "("}}},
            {"args": {"a": {"$ref": "#/$defs/Gone"}}},
            {"args": {"a": {"minimum": "3"}}},
            {"args": {"a": {"required": "a"}}},
            {"args": {"a": {"properties": {"q": 3}}}},
            {"args": {"a": "x"}, "schema": {"type": "object"}},
            {"schema": {"type": "array"}},
            {"schema": []},
            {"schema": {"type": "object", "properties": {"b": {}}}},
            {"schema": {"type": "object", "properties": {"a": {}, "zzz": {}}}},
            {"arg_types": {"zzz": int}},
            {"arg_desc": {"zzz": "text"}},
            {"arg_desc": {"a": 3}},
        ],
    )
    def test_reports_what_is_wrong_where_it_is_made(self, wrong):
        with pytest.raises(ToolDefinitionError):
            Tool(add, **wrong)

    def test_a_lambda_needs_a_name(self):
        with pytest.raises(ToolDefinitionError, match="needs a name"):
            Tool(lambda x: x)
        assert Tool(lambda x: x, name="echo")(x=1) == 1

    def test_descriptions_of_single_arguments_make_a_valid_schema(self):
        made = Tool(add, args={"a": "the first"})
        assert made.parameters == {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "the first"},
                "b": {"type": "integer", "default": 1},
            },
            "required": ["a"],
        }

    def test_schemas_of_arguments_replace_the_inferred_ones_and_are_checked(self):
        """Seed 000: with `args={...}`, the inference for `args` is skipped. So `b` is hidden."""
        made = Tool(add, args={"a": {"type": "integer", "maximum": 3}})
        assert made.parameters == {
            "type": "object",
            "properties": {"a": {"type": "integer", "maximum": 3}},
            "required": ["a"],
        }
        assert made(a="3") == 4
        assert made.prepare({"a": 3}).shown == {"a": 3}
        with pytest.raises(ToolArgumentsError, match="a: 4 is over the maximum 3"):
            made(a=4)
        with pytest.raises(ToolArgumentsError, match="b: there is no such argument"):
            made(a=1, b=2)
        for copied in (made.model_copy(), made.model_copy(update={"name": "other"})):
            assert copied.parameters == made.parameters

    def test_an_argument_that_is_listed_with_a_text_keeps_its_inferred_schema(self):
        made = Tool(add, args={"a": {"type": "integer", "maximum": 3}, "b": "the second"})
        assert made.args == {
            "a": {"type": "integer", "maximum": 3},
            "b": {"type": "integer", "default": 1, "description": "the second"},
        }
        assert made(a=1, b=2) == 3

    def test_a_function_that_cannot_be_called_without_a_hidden_argument_is_refused(self):
        def book(city: str, nights: int, note: str = "") -> str:
            return city

        with pytest.raises(ToolDefinitionError, match="`args` of `book` leaves out `nights`"):
            Tool(book, args={"city": {"type": "string"}, "note": {"type": "string"}})

        def place(city: str, nights: int = 1, note: str = "", /) -> str:
            return f"{city} {nights} {note}"

        with pytest.raises(ToolDefinitionError, match=r"`nights`.*before `note`"):
            Tool(place, args={"city": {"type": "string"}, "note": {"type": "string"}})
        assert Tool(place, args={"city": {"type": "string"}})(city="Rome") == "Rome 1 "

    def test_options_of_a_hidden_argument_change_nothing(self):
        made = Tool(
            add,
            args={"a": {"type": "integer"}},
            arg_types={"a": int, "b": float},
            arg_desc={"b": "the second"},
        )
        assert made.args == {"a": {"type": "integer"}}
        assert (made.arg_types, made.arg_desc) == ({"a": int}, {})

    def test_a_bridge_keeps_optional_arguments_optional(self):
        """Seed 000: `convert_input_schema_to_tool_args` is for one's own bridge."""
        schema = {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "where"},
                "days": {"type": "integer"},
                "unit": {"type": "string", "default": "C"},
            },
            "required": ["city"],
        }
        args, arg_types, arg_desc = convert_input_schema_to_tool_args(schema)

        def send(**kwargs):
            return kwargs

        bridge = Tool(send, "weather", "d", args=args, arg_types=arg_types, arg_desc=arg_desc)
        for made in (bridge, bridge.model_copy(update={"name": "other"}), copy.deepcopy(bridge)):
            assert made.parameters["required"] == ["city"]
            assert made.args == schema["properties"]
            assert made(city="Rome") == {"city": "Rome", "unit": "C"}
            assert made(city="Rome", days="3") == {"city": "Rome", "days": 3, "unit": "C"}
            with pytest.raises(ToolArgumentsError, match="city: is missing"):
                made(days=3)

        def forecast(city: str, days: int = 1, unit: str = "C") -> str:
            return f"{city} {days} {unit}"

        made = Tool(forecast, args=args, arg_types=arg_types, arg_desc=arg_desc)
        assert made.parameters["required"] == ["city"]
        assert made(city="Rome") == "Rome 1 C"

    def test_a_whole_schema_is_recognised_in_args(self):
        schema = {
            "type": "object",
            "properties": {"a": {"type": "integer", "enum": [1, 2]}},
            "required": ["a"],
        }
        made = Tool(add, args=schema)
        assert made.parameters == schema
        assert made(a=2) == 3
        with pytest.raises(ToolArgumentsError, match=r"a: expected one of 1, 2, got 5"):
            made(a=5)
        with pytest.raises(ToolArgumentsError, match="b: there is no such argument"):
            made(a=1, b=2)

    def test_parameters_named_type_and_properties_are_not_taken_for_a_schema(self):
        def make(type: str, properties: dict) -> str:
            return type

        made = Tool(
            make,
            args={"type": "object", "properties": {"type": "object", "description": "what it has"}},
        )
        assert made.args["type"] == {"type": "string", "description": "object"}

    def test_manual_args_may_name_more_where_the_function_takes_kwargs(self):
        def free(**kwargs):
            return kwargs

        made = Tool(free, args={"x": "a number", "y": {"type": "integer", "default": 3}})
        assert made.parameters["properties"] == {
            "x": {"description": "a number"},
            "y": {"type": "integer", "default": 3},
        }
        assert made.parameters["required"] == ["x"]
        assert made(x=1, y="2", z=3) == {"x": 1, "y": 2, "z": 3}
        with pytest.raises(ToolArgumentsError, match="x: is missing"):
            made(y=1)

    def test_arg_types_stand_in_for_annotations(self):
        """The shape that MCP bridges use."""

        def free(**kwargs):
            return kwargs

        made = Tool(
            free,
            "mcp",
            "desc",
            {"n": {"type": "object"}, "k": {"type": "integer", "default": 2}},
            {"n": Node, "k": int},
            {"n": "a tree"},
        )
        assert made(n={"value": "1"}) == {"n": Node(value=1), "k": 2}
        assert made.arg_types == {"n": Node, "k": int}
        assert made.arg_desc == {"n": "a tree"}

    def test_arg_types_and_arg_desc_are_readable(self):
        def look(page: Annotated[int, Field(ge=1)], where: str = "here"):
            """Look.

            Args:
                page: which page
                where: the place
            """

        made = Tool(look, arg_desc={"where": "another word"})
        assert made.arg_types == {"page": int, "where": str}
        assert made.arg_desc == {"page": "which page", "where": "another word"}
        assert made.args["page"] == {"type": "integer", "minimum": 1, "description": "which page"}
        assert made.args["where"] == {
            "type": "string",
            "default": "here",
            "description": "another word",
        }


class TestAsAValue:
    def test_is_a_pydantic_model_and_a_type_with_dspys_fields(self):
        assert issubclass(Tool, Type)
        assert {"func", "name", "desc", "args", "arg_types", "arg_desc"} <= Tool.model_fields.keys()
        assert Type.extract_custom_type_from_annotation(list[dict[str, Tool]]) == [Tool]
        assert isinstance(Tool.description(), str)

    def test_is_immutable(self):
        made = Tool(add)
        for name in ("name", "func", "args", "require_confirmation", "nonsense"):
            with pytest.raises((ValidationError, AttributeError)):
                setattr(made, name, "x")
        with pytest.raises((ValidationError, AttributeError)):
            del made.name

    def test_unknown_attributes_raise(self):
        for name in ("nonsense", "_nonsense", "__nonsense__"):
            with pytest.raises(AttributeError):
                getattr(decorated, name)
        assert not hasattr(decorated, "parse_args")

    def test_equal_by_meaning_before_and_after_use(self):
        one, two = Tool(add), Tool(add)
        assert one == two
        one(a=1)
        _ = one.parameters, one.args, one.declaration
        assert one == two
        assert hash(one) == hash(two)
        assert len({one, two}) == 1
        assert one != Tool(add, "other")
        assert one != Tool(add, effect="read")
        assert one != Tool(add, args={"a": "text"})
        assert one != "add"

    def test_copies_are_itself(self):
        """A deep copy of a program shares its tools."""
        assert copy.copy(decorated) is decorated
        assert copy.deepcopy([decorated])[0] is decorated

    def test_can_be_made_again_with_changes(self):
        """ours: `model_copy` never keeps what was made of the old fields."""
        made = Tool(add)
        _ = made.declaration
        assert (
            made.model_copy(update={"description": "Sums."}).desc
            == made.model_copy(update={"desc": "Sums."}).description
            == "Sums."
        )
        other = made.model_copy(update={"name": "plus", "effect": "read"})
        assert (
            other.name,
            other.wire_name,
            other.declaration["function"]["name"],
            other.effect,
        ) == ("plus", "plus", "plus", "read")
        assert other(1, 2) == 3

    def test_that_was_made_by_its_name_takes_another_function(self):
        """The first one came as `callable`, and no tool has both."""
        made = Tool("plus", "Sums.", add)
        assert made.model_copy(update={"func": lambda a, b: a - b})(3, 2) == 1
        assert made.model_copy(update={"callable": lambda a, b: a - b})(3, 2) == 1

    def test_that_was_made_by_its_name_of_a_method_binds_like_one(self):
        class Adder:
            base = 10

            def add(self, x: int) -> int:
                return self.base + x

            plus = Tool("plus", "Adds to the base.", add)

        assert Adder().plus(1) == 11

    def test_pickles_where_its_function_does(self):
        """ours."""
        made = Tool(add, effect="read")
        assert pickle.loads(pickle.dumps(made)) == made
        assert pickle.loads(pickle.dumps(decorated)) is decorated

    def test_reading_never_changes_the_schema(self):
        made = Tool(add)
        before = copy.deepcopy(made.parameters)
        for each in (
            made.parameters,
            made.args,
            made.to_openai_schema(),
            made.format_as_litellm_function_call(),
            made.to_dict(),
            made.dump_state(),
        ):
            each.clear()
        made.parameters["properties"]["a"]["type"] = "string"
        made.args["a"]["type"] = "string"
        made.arg_types["a"] = str
        made.to_openai_schema()["function"]["parameters"]["required"].clear()
        str(made)
        assert made.parameters == before

    def test_does_not_keep_a_schema_somebody_may_change(self):
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        made = Tool(add, schema=schema)
        schema["properties"]["a"]["type"] = "string"
        assert made.args["a"] == {"type": "integer"}

    def test_the_state_is_plain_data(self):
        state = Tool(add, require_confirmation=lambda args: True, timeout_s=3).dump_state()
        assert state == {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": Tool(add).parameters,
            "require_confirmation": True,
            "effect": "once",
            "timeout_s": 3.0,
            "concurrent": True,
            "mcp_server": None,
        }
        TypeAdapter(dict).dump_json(state)

    def test_a_declaration_in_anthropics_form_keeps_its_schema(self):
        made = Tool.of(
            {
                "name": "find",
                "description": "Find.",
                "input_schema": {"type": "object", "properties": {"q": {}}},
            },
        )
        assert list(made.args) == ["q"]

    def test_a_field_of_tools_takes_what_can_become_one(self):
        found = TypeAdapter(list[Tool]).validate_python(
            [add, decorated, {"name": "far", "parameters": {}}],
        )
        assert [each.name for each in found] == ["add", "decorated", "far"]
        assert found[1] is decorated
        with pytest.raises(ValidationError):
            TypeAdapter(Tool).validate_python(3)

    def test_as_a_field_it_is_dumped_as_its_text(self):
        assert decorated.model_dump() == decorated.format()

    def test_is_a_value_of_its_own_class_when_subclassed(self):
        class Special(Tool): ...

        assert type(Special(add).model_copy()) is Special


class TestSchema:
    def test_of_the_seeds_calculator_is_exactly_the_printed_one(self):
        assert calculator.parameters == CALCULATOR
        assert list(calculator.parameters) == ["type", "properties", "required"]

    def test_args_is_the_properties_dict(self):
        assert calculator.args == CALCULATOR["properties"]

    def test_the_canonical_declaration_has_every_name(self):
        wanted = {
            "type": "function",
            "function": {
                "name": "calculator",
                "description": "Perform arithmetic operations",
                "parameters": CALCULATOR,
            },
        }
        assert (
            calculator.declaration
            == calculator.to_openai_schema()
            == calculator.format_as_litellm_function_call()
            == wanted
        )
        assert calculator.declaration is calculator.declaration

    def test_arguments_with_a_default_are_not_required_and_say_it(self):
        assert Tool(add).parameters["required"] == ["a"]
        assert Tool(add).args["b"]["default"] == 1

    def test_without_parameters_it_is_valid_for_every_provider(self):
        def now() -> str: ...

        assert Tool(now).parameters == {"type": "object", "properties": {}, "required": []}

    def test_constraints_are_shown_and_enforced(self):
        def search(
            limit: Annotated[int, Field(ge=1, le=50, description="how many")],
            code: str = Field(max_length=3, pattern="^[a-z]+$", default="abc"),
        ):
            return limit, code

        made = Tool(search)
        assert made.args == {
            "limit": {"type": "integer", "minimum": 1, "maximum": 50, "description": "how many"},
            "code": {"type": "string", "maxLength": 3, "pattern": "^[a-z]+$", "default": "abc"},
        }
        assert made(limit=50) == (50, "abc")
        with pytest.raises(ToolArgumentsError) as caught:
            made(limit=51, code="ABCD")
        assert [path for path, _ in caught.value.problems] == ["limit", "code"]

    def test_recursive_models_keep_definitions_and_work(self):
        def grow(tree: Node) -> Node:
            return tree

        made = Tool(grow)
        assert made.parameters["$defs"].keys() == {"Node"}
        assert made(tree={"value": "1", "kids": [{"value": 2}]}) == Node(
            value=1,
            kids=[Node(value=2)],
        )
        with pytest.raises(ToolArgumentsError, match=r"tree\.kids\.0\.value"):
            made(tree={"value": 1, "kids": [{"value": "x"}]})
        assert len(made.format()) < 1000

    def test_models_are_inlined(self):
        class Inner(BaseModel):
            title: str

        class Outer(BaseModel):
            inner: Inner
            many: list[Inner] = []

        def use(outer: Outer, maybe: Optional[Inner] = None): ...

        parameters = Tool(use).parameters
        assert "$ref" not in str(parameters)
        assert "$defs" not in parameters
        assert parameters["properties"]["outer"]["properties"]["inner"] == {
            "type": "object",
            "properties": {"title": {"type": "string"}},
            "required": ["title"],
        }

    def test_two_tools_with_models_of_one_name_do_not_mix(self):
        def first():
            class Thing(BaseModel):
                a: list["Thing"]

            return Thing

        def second():
            class Thing(BaseModel):
                b: int

            return Thing

        one, two = first(), second()
        one.model_rebuild(_types_namespace={"Thing": one})

        def use_one(x: one): ...

        def use_two(x: two): ...

        assert Tool(use_one).parameters["$defs"]["Thing"]["required"] == ["a"]
        assert Tool(use_two).args["x"]["required"] == ["b"]

        def use_both(x: one, y: two): ...

        both = Tool(use_both).parameters
        assert "$ref" in str(both["properties"]["x"])
        assert both["properties"]["y"]["required"] == ["b"]

    def test_the_form_of_one_call(self):
        def odd(parameters: dict) -> str: ...

        shape = Tool("odd", "Odd", odd).to_dict()
        assert list(shape["properties"]) == ["intention", "name", "arguments"]
        assert shape["required"] == ["intention", "name", "arguments"]
        assert shape["properties"]["intention"]["type"] == "string"
        assert shape["properties"]["intention"]["description"]
        assert shape["properties"]["name"]["const"] == "odd"
        assert list(shape["properties"]["arguments"]["properties"]) == ["parameters"]

        def nothing(): ...

        assert Tool(nothing).to_dict()["properties"]["arguments"] == {
            "type": "object",
            "properties": {},
            "required": [],
        }

    def test_the_form_of_one_call_of_a_recursive_schema_resolves(self):
        from jsonschema import Draft202012Validator

        def grow(tree: Node): ...

        shape = Tool(grow).to_dict()
        check = Draft202012Validator(shape)
        call = {
            "intention": "to see",
            "name": "grow",
            "arguments": {"tree": {"value": 1, "kids": [{"value": 2}]}},
        }
        assert check.is_valid(call)
        call["arguments"]["tree"]["kids"][0]["value"] = "x"
        assert not check.is_valid(call)


class TestCalling:
    def test_by_position_and_by_name(self):
        made = Tool(add)
        assert made(2, 3) == made(a=2, b=3) == made(2, b=3) == 5

    def test_wrong_positions_raise_type_errors_like_the_function(self):
        with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
            Tool(add)(1, 2, 3)
        with pytest.raises(TypeError, match="multiple values for argument 'a'"):
            Tool(add)(1, a=2)

    def test_models_arrive_as_instances(self):
        class User(BaseModel):
            name: str

        def greet(
            users: list[list[User]],
            boss: Optional[User] = None,
            by: dict[str, User] | None = None,
            one: User | int = 3,
        ):
            return users, boss, by, one

        got = Tool(greet)(
            users=[[{"name": "a"}]],
            boss={"name": "b"},
            by={"k": {"name": "c"}},
            one={"name": "d"},
        )
        assert got == ([[User(name="a")]], User(name="b"), {"k": User(name="c")}, User(name="d"))
        assert Tool(greet)(users=[[User(name="a")]])[0] == [[User(name="a")]]

    def test_models_of_annotations_that_are_strings_arrive_as_instances(self):
        """Written in quotes, or by `from __future__ import annotations`."""

        def quoted(
            users: "list[Node]",
            boss: "Optional[Node]" = None,
            by: "dict[str, Node] | None" = None,
            one: "Node | str" = "x",
        ):
            return users, boss, by, one

        space = {"Node": Node, "Optional": Optional}
        head = "users: list[Node], boss: Optional[Node] = None, by: dict[str, Node] | None = None, one: Node | str = 'x'"
        exec(
            f"from __future__ import annotations\ndef late({head}):\n    return users, boss, by, one",
            space,
        )
        for function in (quoted, space["late"]):
            got = Tool(function)(
                users=[{"value": 1}],
                boss={"value": 2},
                by={"k": {"value": 3}},
                one={"value": 4},
            )
            assert got == ([Node(value=1)], Node(value=2), {"k": Node(value=3)}, Node(value=4))

    def test_wrong_arguments_name_tool_and_parameter_and_run_nothing(self):
        ran = []

        def note(x: int, y: str):
            ran.append(x)

        with pytest.raises(ToolArgumentsError) as caught:
            Tool(note)(x="no", z=3)
        assert caught.value.tool == "note"
        assert dict(caught.value.problems).keys() == {"x", "y", "z"}
        assert not ran

    def test_errors_of_the_function_reach_the_caller_unchanged(self):
        error = KeyError("gone")

        def fail():
            raise error

        with pytest.raises(KeyError) as caught:
            Tool(fail)()
        assert caught.value is error
        with pytest.raises(KeyError) as caught:
            asyncio.run(Tool(fail).acall())
        assert caught.value is error

    def test_mutable_defaults_are_not_shared(self):
        def collect(
            x: int,
            into: list = [],
            more: dict = Field(default={}),
            fresh: list = Field(default_factory=list),
        ):
            for each in (into, fresh):
                each.append(x)
            more[x] = x
            return into, more, fresh

        made = Tool(collect)
        made(1)
        assert made(2) == ([2], {2: 2}, [2])

    def test_names_of_pythons_own_and_of_pydantic_work(self):
        for name in (
            "self",
            "func",
            "name",
            "instance",
            "schema",
            "json",
            "copy",
            "model_config",
            "model_dump",
            "_x",
            "args",
            "kwargs",
            "caller",
            "cls",
        ):
            space = {}
            exec(f"def odd({name}: int, other: str = 'o'):\n    return {name}", space)
            made = Tool(space["odd"])
            assert made(**{name: "3"}) == 3
            assert asyncio.run(made.acall(**{name: 4})) == 4
            assert list(made.args) == [name, "other"]

    def test_names_of_json_schema_survive(self):
        def odd(
            title: str,
            default: int,
            examples: list,
            definitions: dict,
            additionalProperties: bool,
            properties: str = "p",
            required: str = "r",
        ):
            return title

        made = Tool(odd)
        names = [
            "title",
            "default",
            "examples",
            "definitions",
            "additionalProperties",
            "properties",
            "required",
        ]
        assert list(made.args) == names
        assert all(f'"{name}"' in made.format() for name in names)
        assert made("t", 1, [], {}, True) == "t"

    def test_unannotated_parameters_take_the_type_of_their_default(self):
        def loose(a, n=3, s="x", f=0.5, b=False, z=None, items=(1,)):
            return a, n, s, f, b, z, items

        made = Tool(loose)
        assert made.args == {
            "a": {},
            "n": {"default": 3, "type": "integer"},
            "s": {"default": "x", "type": "string"},
            "f": {"default": 0.5, "type": "number"},
            "b": {"default": False, "type": "boolean"},
            "z": {"default": None},
            "items": {"default": [1]},
        }
        assert made(a=object) == (object, 3, "x", 0.5, False, None, (1,))
        assert made.prepare(made.prepare({"a": 1}).shown).named["n"] == 3

    def test_none_as_a_default_admits_none(self):
        def lax(limit: int = None, when: Annotated[datetime, Field(description="d")] = None):  # noqa: RUF013
            return limit

        made = Tool(lax)
        assert made(limit=None) is None
        assert made.prepare(made.prepare({}).shown).shown == {"limit": None, "when": None}

    def test_positional_only_parameters_are_called_by_name(self):
        def divide(a: int, b: int = 2, /, *, exact: bool = False):
            return a / b

        assert Tool(divide)(a=6, b=3) == Tool(divide)(6, 3) == 2
        assert Tool(divide)(6) == 3
        assert Tool(divide).prepare({"a": 6}).shown == {"a": 6, "b": 2, "exact": False}

    def test_further_arguments_follow_the_rules(self):
        def free(x: int, *rest: str, **more: int):
            return x, rest, more

        made = Tool(free)
        assert made.parameters == {
            "type": "object",
            "properties": {"x": {"type": "integer"}},
            "required": ["x"],
            "additionalProperties": {"type": "integer"},
        }
        assert made(x=1, y="2") == (1, (), {"y": 2})
        with pytest.raises(ToolArgumentsError, match="y: expected an integer"):
            made(x=1, y="no")
        with pytest.raises(TypeError):
            made(1, 2)

    def test_aliases_of_parameters_work_both_ways(self):
        def mail(sender: Annotated[str, Field(alias="from")], n: int = 1):
            return sender, n

        made = Tool(mail)
        assert list(made.args) == ["from", "n"]
        assert made(**{"from": "me"}) == made(sender="me") == ("me", 1)
        with pytest.raises(ToolArgumentsError, match="same argument"):
            made(**{"from": "me", "sender": "you"})
        with pytest.raises(ToolArgumentsError, match="from: is missing, expected a string"):
            made()

    def test_of_a_declared_tool_says_that_there_is_no_function(self):
        remote = Tool(
            "far",
            "Far away",
            schema={"type": "object", "properties": {"x": {"type": "integer"}}},
        )
        with pytest.raises(ToolError, match="no function here"):
            remote(x=1)
        with pytest.raises(ToolError, match="no function here"):
            asyncio.run(remote.acall(x=1))
        with pytest.raises(ToolError, match="no function here"):
            remote.invoke(remote.prepare({"x": 1}))
        with pytest.raises(ToolArgumentsError):
            remote(x="no")

    def test_invoke_runs_what_was_checked(self):
        """ours: the driver checks first."""
        made = Tool(add)
        assert made.invoke(made.prepare({"a": "2", "b": 3})) == 5

    def test_sync_functions_run_beside_the_loop_with_the_callers_context(self):
        here = contextvars.ContextVar("here")
        free = threading.Event()

        def wait() -> str:
            assert free.wait(60)
            return here.get()

        async def main():
            here.set("caller")
            task = asyncio.create_task(Tool(wait).acall())
            await asyncio.sleep(0)
            free.set()  # only reached while the tool waits if the loop is free
            return await task

        assert asyncio.run(main()) == "caller"

    def test_literal_arguments(self):
        def pick(colour: Literal["red", "green"]):
            return colour

        assert Tool(pick)("red") == "red"
        with pytest.raises(ToolArgumentsError, match='expected one of "red", "green", got "blue"'):
            Tool(pick)("blue")


class TestSeed004:
    def test_passes_the_caller_as_the_first_argument(self):
        def sync(self, x: int):
            return self, x

        async def is_async(caller, x: int = 2, *, key: str = "k"):
            return caller, x, key

        one, two = Tool("sync", None, sync), Tool("is_async", None, is_async)
        assert list(one.args) == ["x"]
        assert asyncio.run(one.call("agent", x="1")) == ("agent", 1)
        assert asyncio.run(two.call("agent")) == ("agent", 2, "k")
        assert one(x=1) == (None, 1)

    def test_arguments_named_like_its_own_do_not_collide(self):
        def odd(agent, self: int = 1, caller: int = 2, kwargs: int = 3):
            return agent, self, caller, kwargs

        made = Tool("odd", None, odd)
        assert list(made.args) == ["agent", "self", "caller", "kwargs"]
        assert asyncio.run(made.call("me", agent=0, self=7, caller=8, kwargs=9)) == (0, 7, 8, 9)

    def test_a_tool_that_does_not_ask_for_the_caller_never_sees_it(self):
        assert asyncio.run(Tool("add", None, add).call("agent", a=1)) == 2
        assert asyncio.run(Tool(add).call("agent", a=1)) == 2

        def named_self(self: int):
            return self

        assert (
            asyncio.run(Tool(named_self).call("agent", self=3)) == 3
        )  # not seed 004's form: an argument like any other

    def test_checks_before_it_runs(self):
        with pytest.raises(ToolArgumentsError):
            asyncio.run(Tool("add", None, add).call("agent", a="x"))

    def test_needs_no_source_code(self):
        space = {}
        exec("def made(x: int, y: str = 'k'):\n    'Made of text.'\n    return x", space)
        assert Tool(space["made"]).parameters["required"] == ["x"]


class TestConfirmation:
    @pytest.mark.parametrize(
        "needs",
        [True, "destructive", lambda args: args["a"] > 1],
        ids=["true", "word", "function"],
    )
    def test_a_direct_call_asks_before_anything_runs(self, needs):
        ran = []

        def act(a: int, b: str = "x"):
            ran.append(a)

        made = Tool(act, require_confirmation=needs)
        before = threading.active_count()
        for call in (
            lambda: made(a="2"),
            lambda: asyncio.run(made.acall(a="2")),
            lambda: asyncio.run(made.call(None, a=2)),
        ):
            with pytest.raises(ConfirmationRequired) as caught:
                call()
            assert (
                caught.value.question
                == 'Confirm execution of act with args: {"a":2,"b":"x"}? (yes/no)'
            )
            assert caught.value.tool_call.name == "act"
            assert caught.value.tool_call.args == {"a": 2, "b": "x"}
        assert threading.active_count() == before
        assert not ran

    def test_a_function_may_decide_that_nobody_is_asked(self):
        made = Tool(add, require_confirmation=lambda args: args["a"] > 1)
        assert made(a=1) == 2

    def test_bad_arguments_are_told_before_anybody_is_asked(self):
        with pytest.raises(ToolArgumentsError):
            Tool(add, require_confirmation=True)(a="x")

    def test_odd_arguments_do_not_crash_the_question(self):
        def act(when: datetime, raw: bytes, many: set[str], tree: Node): ...

        with pytest.raises(ConfirmationRequired) as caught:
            Tool(act, require_confirmation=True)(
                when=datetime(2024, 1, 2),  # noqa: DTZ001
                raw=b"\xff",
                many={"b", "a"},
                tree=Node(value=1),
            )
        assert caught.value.tool_call.args["many"] == ["a", "b"]


class TestKindsOfCallables:
    def test_everything_callable_introspects(self):
        class Adder:
            """The class."""

            def __call__(self, x: int, y: Annotated[int, "the second"] = 2) -> int:
                """The call."""
                return x + y

            def method(self, x: int) -> int:
                """The method."""
                return x

            @classmethod
            def of(cls, x: int) -> int:
                return x

            @staticmethod
            def plain(x: int) -> int:
                return x

        @functools.lru_cache
        def cached(x: int) -> int:
            """Cached."""
            return x

        @functools.wraps(add)
        def wrapped(*args, **kwargs):
            return add(*args, **kwargs)

        one = Adder()
        assert Tool(one).name == "Adder"
        assert Tool(one).description == "The call."
        assert Tool(one)(x="1") == 3
        assert Tool(one).args["y"]["description"] == "the second"
        for each in (one.method, Adder.of, Adder.plain, one.of, one.plain, cached):
            made = Tool(each)
            assert list(made.args) == ["x"]
            assert made(x="4") == 4
        assert Tool(one.method).description == "The method."
        assert Tool(cached).description == "Cached."
        assert Tool(wrapped).parameters == Tool(add).parameters

    def test_partials_hide_what_they_bind(self):
        def power(base: int, exponent: int, *, plus: int = 0) -> int:
            """Raise."""
            return base**exponent + plus

        by_name = Tool(functools.partial(power, exponent=2))
        assert (by_name.name, by_name.description) == ("power", "Raise.")
        assert list(by_name.args) == ["base", "plus"]
        assert by_name(base="3") == 9
        with pytest.raises(ToolArgumentsError):
            by_name(base=3, exponent=9)
        assert Tool(functools.partial(power, 2))(exponent=5) == 32

    def test_classes_are_tools_that_make_instances(self):
        made = Tool(Node)
        assert made(value="3") == Node(value=3)
        assert list(made.args) == ["value", "kids"]

    def test_builtins_work_where_they_have_a_signature(self):
        import math

        assert Tool(math.sqrt)(x=4) == 2.0
        assert Tool(len)(obj=[1]) == 1
        with pytest.raises(ToolDefinitionError, match="signature"):
            Tool(max)
        by_hand = Tool(max, schema={"type": "object", "properties": {"a": {"type": "integer"}}})
        assert by_hand.args == {"a": {"type": "integer"}}
