# ruff: noqa: F821, F722  the odd signatures are what is tested
import dataclasses
import functools
import sys
import types
import typing
from typing import Annotated, NotRequired

import pytest
from pydantic import BaseModel, Field
from pydantic_core import PydanticUndefined
from typing_extensions import Doc, TypedDict, Unpack

from ferrule.errors import ToolDefinitionError
from ferrule.tools.definition.inspect_function import (
    description_in,
    doc_of,
    field_of,
    inspect_function,
    is_required,
    name_of,
    parameter_docs,
)
from ferrule.tools.tool import Tool

GOOGLE = """Find things.

Args:
    query: What to find,
        on two lines.
    limit (int, optional): How many.
    *rest: More.

Returns:
    Things.
"""
NUMPY = """Find things.

Parameters
----------
query : str
    What to find,
    on two lines.
limit : int, optional
    How many.

Returns
-------
list
    Things.
"""
SPHINX = """Find things.

:param query: What to find,
    on two lines.
:param int limit: How many.
:returns: Things.
"""


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_parameters_are_described_by_the_docstring(doc):
    found = parameter_docs(doc)
    assert found["query"] == "What to find, on two lines."
    assert found["limit"] == "How many."


@pytest.mark.parametrize(
    "doc",
    [
        "",
        "Find things.",
        "Args",
        "Args:",
        "Args:\n",
        ":param",
        "Parameters\n----------\n",
        "Args:\n  :::\n\n---",
        "\ud800 Args:\n  x: y",
        "Act.\n\n: :param a: x\n",
    ],
)
def test_odd_docstrings_say_nothing_and_break_nothing(doc):
    parameter_docs(doc)


def test_descriptions_that_are_written_win_over_the_docstring():
    def find(
        query: Annotated[str, Field(description="own")],
        limit: int = Field(default=3),
        page: Annotated[int, "bare"] = 1,
        tone: Annotated[str, Doc("docs")] = "",
    ):
        """Find.

        Args:
            query: from the docstring
            limit: from the docstring
            page: from the docstring
        """

    assert {name: each["description"] for name, each in Tool(find).args.items()} == {
        "query": "own",
        "limit": "from the docstring",
        "page": "bare",
        "tone": "docs",
    }
    assert Tool(find, arg_desc={"query": "given"}).args["query"]["description"] == "given"


def test_annotations_as_text_are_read(monkeypatch):
    module = types.ModuleType("made_of_text")
    monkeypatch.setitem(sys.modules, "made_of_text", module)
    space = vars(module)
    exec(
        "from __future__ import annotations\n"
        "from typing import Optional, Annotated\n"
        "from pydantic import BaseModel, Field\n"
        "class Model(BaseModel):\n    x: int\n    next: Optional[Model] = None\n"
        "def use(model: Model, many: Annotated[list[Model], Field(max_length=2)], n: 'int | None' = None): return model\n",
        space,
    )
    made = Tool(space["use"])
    assert made(model={"x": "1"}, many=[{"x": 2}]).x == 1
    assert made.args["many"]["maxItems"] == 2


def test_text_inside_types_is_read():
    def use(
        kids: list["Later"],
        by: dict[str, "typing.Optional[Later]"],
        word: typing.Literal["Later", "int"],
    ):
        return kids

    assert Tool(use)(kids=[{"x": 1}], by={}, word="Later") == [Later(1)]


def test_names_that_the_function_closes_over_are_found():
    class Local:
        pass

    def use(x: "Alias"):
        return Alias, x

    Alias = int
    assert Tool(use)(x="3") == (int, 3)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax of PEP 695")
def test_type_parameters_are_found_where_annotations_are_text():
    space = {}
    exec(
        "from __future__ import annotations\n"
        "def first[T: int](x: list[T]) -> T: return x[0]\n"
        "class Box[T: int]:\n"
        "    def __init__(self, x: T) -> None: self.x = x\n"
        "    def add(self, y: T) -> T: return self.x + y\n"
        "    def __call__(self, y: T) -> T: return self.x * y\n",
        space,
    )
    made = Tool(space["Box"])(x="2")
    assert made.x == 2
    assert Tool(space["first"])(x=["2"]) == 2
    assert Tool(made.add)(y="3") == 5
    assert Tool(made)(y="3") == 6


def test_types_that_cannot_be_found_are_all_named():
    def use(a: "Missing", b: int, c: list["Gone"], d: "not ! python"): ...

    with pytest.raises(
        ToolDefinitionError,
        match=r"`use`.*`a: Missing`.*`c: .*Gone.*`d: not ! python",
    ) as caught:
        Tool(use)
    assert "b: " not in str(caught.value)
    assert Tool(use, arg_types={"a": int, "c": list, "d": str}).args["a"] == {"type": "integer"}


def test_a_return_type_that_cannot_be_found_does_no_harm():
    """Nothing is read from it."""

    def use(a: int) -> "Missing":
        return a

    assert Tool(use)(a=1) == 1


def test_keyword_dictionaries_are_parameters():
    """PEP 692."""

    class Options(TypedDict):
        size: int
        colour: NotRequired[str]

    def draw(x: int, **options: Unpack[Options]):
        return x, options

    made = Tool(draw)
    assert made.parameters == {
        "type": "object",
        "properties": {
            "x": {"type": "integer"},
            "size": {"type": "integer"},
            "colour": {"type": "string"},
        },
        "required": ["x", "size"],
    }
    assert made(x=1, size="2") == (1, {"size": 2})


POSTPONED = """
from __future__ import annotations
from typing import Annotated, NotRequired, Required, TypedDict, Unpack

class Size(TypedDict):
    width: int
    height: NotRequired[int]
    depth: Annotated[NotRequired[int], "in mm"]

class Options(Size, total=False):
    colour: str
    ink: Required[Annotated[str, "its name"]]

def draw(**options: Unpack[Options]):
    return options
"""


def test_keys_of_keyword_dictionaries_are_required_as_they_say_where_annotations_are_text(
    monkeypatch,
):
    """Python counts them without reading the text; `total` holds for the keys of its own class."""
    module = types.ModuleType("postponed")
    monkeypatch.setitem(sys.modules, "postponed", module)
    exec(POSTPONED, vars(module))
    made = Tool(module.draw)
    assert made.parameters["required"] == ["width", "ink"]
    assert made.parameters["properties"]["depth"] == {"description": "in mm", "type": "integer"}
    assert made(width=1, ink="red") == {"width": 1, "ink": "red"}


def test_what_a_partial_binds_is_not_offered():
    def power(base: int, exponent: int, plus: int = 0): ...

    assert [
        each.name for each in inspect_function(functools.partial(power, exponent=2), {}).parameters
    ] == ["base", "plus"]
    assert [
        each.name
        for each in inspect_function(
            functools.partial(functools.partial(power, 2), plus=1),
            {},
        ).parameters
    ] == ["exponent"]


def test_a_function_that_dispatches_gets_its_first_argument_by_position():
    """Every call failed: `functools.singledispatch` looks at no keyword."""

    @functools.singledispatch
    def double(value: int | str, times: int = 2) -> str:
        """Double it."""
        return f"{value * times}"

    @double.register
    def _(value: str, times: int = 2) -> str:
        return f"the text {value * times}"

    tool = Tool(double)
    assert (tool(value=3), tool(value="a"), tool(times=3, value="b"), tool(3, 4)) == (
        "6",
        "the text aa",
        "the text bbb",
        "12",
    )


def test_names_and_docs_of_all_kinds():
    @dataclasses.dataclass
    class Plain:
        x: int

    class Documented:
        """Its docs."""

    class Child(Documented):
        def method(self):
            """Own."""

    class Grandchild(Child):
        def method(self): ...

    class Call:
        def __call__(self): ...

    assert (name_of(len), name_of(Plain), name_of(Call()), name_of(lambda: 0)) == (
        "len",
        "Plain",
        "Call",
        "",
    )
    assert doc_of(Plain) == ""
    assert doc_of(Documented) == "Its docs."
    assert doc_of(Call()) == ""
    assert doc_of(Grandchild().method) == "Own."
    assert (
        doc_of(
            functools.partial(test_a_return_type_that_cannot_be_found_does_no_harm),
        )
        == "Nothing is read from it."
    )
    assert doc_of(lambda: 0) == ""


def test_a_callable_object_is_described_by_its_call():
    """Before its class is asked, and whether that says anything or not."""

    class Call:
        def __call__(self):
            """Do it."""

    class Documented(Call):
        """A class."""

        def __call__(self): ...

    class Silent(Documented):
        def __call__(self): ...

    class Mute:
        """Only this."""

        def __call__(self): ...

    assert doc_of(Call()) == "Do it."
    assert doc_of(Documented()) == "Do it."
    assert doc_of(Silent()) == "Do it."
    assert doc_of(Mute()) == "Only this."


def test_a_type_of_an_enclosing_function_is_refused_with_where_to_define_it():
    """`known where the function is written` was not true of it."""

    class Local: ...

    def look(thing: "Local"): ...

    with pytest.raises(
        ToolDefinitionError,
        match=r"not known in the module of the function. .* at module level .not inside a function",
    ):
        inspect_function(look, {})


def test_a_tool_without_a_docstring_has_no_description():
    """Since Python 3.13 `None` has a docstring, which is not the tool's."""

    class Call:
        def __call__(self): ...

    class Inherits(Call): ...

    def plain(): ...

    assert [Tool(each, name="t").desc for each in (Call(), Inherits(), plain, Call().__call__)] == [
        "",
    ] * 4


def test_a_class_is_not_described_by_what_a_library_says_of_its_own():
    """ours: pydantic's text on `BaseModel` has 2,000 characters."""

    class Point(BaseModel):
        x: int

    class Options(TypedDict):
        x: int

    class Shape(BaseModel):
        """A shape."""

    class Square(Shape): ...

    assert [doc_of(each) for each in (Point, Options, Shape, Square)] == [
        "",
        "",
        "A shape.",
        "A shape.",
    ]
    assert Tool(Point).desc == ""


@pytest.mark.parametrize(
    "doc",
    [
        "S.\n\nParameters\n----------\nx, y : int\n    The place.\n",
        "S.\n\nArgs:\n    x, y: The place.\n",
        "S.\n\nArgs:\n    x, y (int): The place.\n",
    ],
    ids=["numpy", "google", "google_typed"],
)
def test_names_that_share_a_description_have_it_each(doc):
    """Numpydoc's `x, y : int`."""
    assert parameter_docs(doc) == {"x": "The place.", "y": "The place."}


def test_required_means_that_there_is_no_default():
    def use(
        a,
        b: int = 1,
        c: int = Field(),
        d: int = Field(...),
        e: int = Field(default=1),
        f: list = Field(default_factory=list),
    ): ...

    assert {each.name for each in inspect_function(use, {}).parameters if is_required(each)} == {
        "a",
        "c",
        "d",
    }


def test_a_first_parameter_for_the_caller_is_left_out_only_on_demand():
    """P12, api.md 4."""

    def one(self, x): ...

    def two(x, caller): ...

    def three(*, caller): ...

    assert [each.name for each in inspect_function(one, {}).parameters] == ["self", "x"]
    found = inspect_function(one, {}, with_caller=True)
    assert ([each.name for each in found.parameters], found.caller) == (["x"], True)
    for function in (two, three):
        assert inspect_function(function, {}, with_caller=True).caller is False


def test_a_callable_without_a_readable_signature_is_refused_or_taken_as_it_is():
    with pytest.raises(ToolDefinitionError):
        inspect_function(max, {})
    assert inspect_function(max, {}, readable=False).parameters == ()


def test_fields_are_merged_from_annotation_and_default():
    def use(
        x: Annotated[int, Field(ge=1)] = Field(default=2, description="d"),
        y: Annotated[str, "note"] = "k",
    ): ...

    x, y = inspect_function(use, {}).parameters
    field = field_of(x)
    assert (field.default, field.description, description_in(field)) == (2, "d", "d")
    assert any(getattr(each, "ge", None) == 1 for each in field.metadata)
    assert (description_in(field_of(y)), y.default) == ("note", "k")
    assert inspect_function(lambda z: z, {}).parameters[0].default is PydanticUndefined


@dataclasses.dataclass
class Later:
    x: int


class Shift:
    def __init__(self, by: "Distance") -> None:
        self.by = by


class Distance(BaseModel):
    metres: int


def test_the_annotations_of_a_class_are_read_with_the_names_of_its_module():
    assert Tool(Shift)(by={"metres": "3"}).by == Distance(metres=3)


@pytest.mark.parametrize("blanks", ["\r\n", "args \t", "Args:\n"])
def test_a_long_docstring_is_read_in_linear_work(blanks):
    """By counting; blank lines took minutes."""

    def act(a: int) -> int:
        return a

    act.__doc__ = "Act." + blanks * (500_000 // len(blanks)) + "x"
    assert list(Tool(act).args) == ["a"]
