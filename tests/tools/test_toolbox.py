import threading

import pytest

from ferrule.errors import DuplicateToolError, ToolDefinitionError, UnknownToolError
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import Toolbox
from ferrule.values.conversation.exchange import Declarations


def add(a: int, b: int) -> int:
    return a + b


def other() -> str:
    return "other"


def test_holds_tools_in_order_and_finds_them_by_either_name():
    """U9, F6, api.md 2."""
    dotted = Tool(add, "math.add")
    box = Toolbox([dotted, other])
    assert box.names == box.keys() == ("math.add", "other")
    assert [tool.name for tool in box] == ["math.add", "other"]
    assert box.get("math.add") is box.get("math_dot_add") is box["math.add"] is dotted
    assert box.get("nothing") is None
    assert "other" in box
    assert dotted in box
    assert "nothing" not in box
    assert 3 not in box
    assert len(box) == 2
    assert box.values() == box.tools
    assert dict(box.items()) == {"math.add": dotted, "other": box["other"]}


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownToolError, match="`add`, `other`"):
        Toolbox([add, other])["nothing"]


def test_hands_its_declarations_out_made_once():
    box = Toolbox([add, other])
    assert isinstance(box.declarations, Declarations)
    assert box.declarations is box.declarations
    assert [each["function"]["name"] for each in box.declarations] == ["add", "other"]
    assert box.declarations[0] is box["add"].declaration


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(DuplicateToolError, match="two tools named `add`"):
        Toolbox([add, Tool(other, "add")])
    with pytest.raises(ValueError):
        Toolbox([add, add])


def test_a_name_that_collides_with_anothers_wire_name_is_refused():
    """api.md 2."""
    # A legal name that looks like an escape is escaped itself, so that only a name equal to
    # another's wire name collides.
    with pytest.raises(DuplicateToolError, match="one wire name"):
        Toolbox([Tool(add, "a.b"), Tool(other, "a_dot_b")])
    with pytest.raises(DuplicateToolError, match="one wire name"):
        Toolbox([Tool(other, "a_dot_b"), Tool(add, "a.b")])


@pytest.mark.parametrize(
    "wrong",
    [3, None, "add", {"add": add}, [3], ["add"], [None]],
    ids=range(7),
)
def test_what_is_no_list_of_tools_is_refused(wrong):
    with pytest.raises(ToolDefinitionError):
        Toolbox(wrong)


def test_a_single_tool_is_no_list_of_tools():
    """It is a pydantic model, which can be read like a list of its fields."""
    with pytest.raises(
        ToolDefinitionError,
        match=r"Tools come as a list of tools or functions, found Tool\('add'\)",
    ):
        Toolbox(Tool(add))


def test_faults_of_a_definition_surface_when_it_is_built():
    class Opaque: ...

    def odd(thing: Opaque): ...

    with pytest.raises(
        ToolDefinitionError,
        match="`odd` cannot become a tool: the type of `thing`",
    ):
        Toolbox([odd])


def test_takes_iterators_and_other_toolboxes():
    """ours: `Toolbox([*box, more])` and `Toolbox(box)`."""
    box = Toolbox(iter([add]))
    assert Toolbox(box) == box
    assert Toolbox([*box, other]).names == ("add", "other")
    assert hash(Toolbox([add])) == hash(Toolbox([add]))
    assert Toolbox([add]) != Toolbox([other])
    assert not Toolbox([])
    assert repr(box) == "Toolbox([add])"


def test_finding_a_tool_among_a_thousand_looks_at_one():
    """By name, without comparing tools."""
    box = Toolbox([Tool(add, f"t{i}") for i in range(1000)])
    compared = []

    class Watched(str):
        __slots__ = ()

        def __eq__(self, theirs):
            compared.append(theirs)
            return str.__eq__(self, theirs)

        __hash__ = str.__hash__

    assert box.get(Watched("t999")).name == "t999"
    assert len(compared) <= 3


def test_as_tool_takes_every_usual_form():
    made = Tool(add)
    assert Tool.of(made) is made
    assert Tool.of(add) == made
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    flat = Tool.of({"name": "far", "description": "Far.", "parameters": parameters})
    assert flat == Tool.of(
        {
            "type": "function",
            "function": {"name": "far", "description": "Far.", "parameters": parameters},
        },
    )
    assert flat == Tool.of(flat.declaration)
    assert flat.parameters == parameters
    for wrong in (3, None, {}, {"name": 3}, {"function": {}}, "add", b"add"):
        with pytest.raises(ToolDefinitionError):
            Tool.of(wrong)


def test_tools_on_the_shelf_are_there_and_not_offered():
    """Neither declared nor found by a call."""
    box = Toolbox([add], shelf=[other, Tool(other, "some.thing")])
    assert box.names == ("add",)
    assert box.get("some.thing") is box.get("some_dot_thing") is None
    assert [each["function"]["name"] for each in box.declarations] == ["add"]
    assert box.get("other") is None
    assert box.shelf is not None
    assert [tool.name for tool in box.shelf] == ["other", "some.thing"]
    assert Toolbox([add]).shelf is None
    assert box != Toolbox([add])
    assert box == Toolbox([add], shelf=[other, Tool(other, "some.thing")])


def test_tools_on_the_shelf_must_fit_the_others():
    """Said before a model is asked."""
    with pytest.raises(DuplicateToolError, match="two tools named `add`"):
        Toolbox([add], shelf=[Tool(other, "add")])
    with pytest.raises(ToolDefinitionError):
        Toolbox([add], shelf="other")  # type: ignore[arg-type]

    def takes_a_lock(lock: threading.Event) -> None:
        """Nothing that JSON could hold."""

    with pytest.raises(ToolDefinitionError, match="takes_a_lock"):
        Toolbox([add], shelf=[takes_a_lock])


def test_a_search_puts_all_tools_on_the_shelf_but_those_to_keep():
    """F6, api.md 2."""
    many = [Tool(other, f"thing.{i}") for i in range(1000)]
    box = Toolbox([*many, add], search="bm25", keep=["add", "thing.99?"])
    assert box.names == (*(f"thing.{i}" for i in range(990, 1000)), "add", "search_tools")
    assert box.shelf is not None
    assert len(box.shelf) == 990
    assert box["search_tools"].effect == "read"
    assert list(box["search_tools"].args) == ["query", "limit"]
    assert box["search_tools"].parameters["required"] == ["query"]


def test_a_search_over_nothing_is_not_offered():
    """Where everything is kept there is nothing to find."""
    assert Toolbox([add], search="bm25", keep=["*"]).names == ("add",)


def test_what_a_search_cannot_mean_is_refused():
    with pytest.raises(ToolDefinitionError, match="bm25"):
        Toolbox([add], search="vectors")  # type: ignore[arg-type]
    with pytest.raises(UnknownToolError, match="`nothing`"):
        Toolbox([add], search="bm25", keep=["nothing"])
    with pytest.raises(ToolDefinitionError, match="list of names"):
        Toolbox([add], search="bm25", keep="add")
    with pytest.raises(ToolDefinitionError, match="list of names"):
        Toolbox([add], search="bm25", keep=3)  # type: ignore[arg-type]
    with pytest.raises(ToolDefinitionError, match="needs a search"):
        Toolbox([add], keep=["add"])


def test_a_toolbox_of_a_toolbox_has_its_shelf():
    box = Toolbox([add], shelf=[other])
    assert Toolbox.of(box) is box
    assert Toolbox(box) == box
    assert Toolbox.of([add]) == Toolbox([add])


def test_one_tool_given_twice_is_one():
    """So that a category of tools may be loaded twice."""
    kept = Tool(add)
    box = Toolbox([kept, other, kept])
    assert box.names == ("add", "other")
    assert Toolbox([*box, *box]) == box
    assert len(Toolbox([], shelf=[kept, kept]).shelf or ()) == 1


def test_what_is_derived_from_a_toolbox_is_bounded():
    """A program may make a signature for each question, and use one toolbox for all."""
    box = Toolbox([Tool(len, "size", "Size.")])
    made = [box.cached_value(number, lambda number=number: [number]) for number in range(1000)]
    assert made == [[number] for number in range(1000)]
    assert box.cached_value(999, lambda: "made again") is made[-1]
    assert len(box._cache) <= 256
