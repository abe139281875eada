"""Which draft a schema is written in, and a schema as a part of another one."""

from __future__ import annotations

from typing import Any

import pytest

from ferrule import Tool
from ferrule.errors import ToolArgumentsError, ToolDefinitionError
from ferrule.schema.drafts import DRAFT_4, DRAFT_7, DRAFT_2019, LATEST_DRAFT, as_part, draft_of
from ferrule.schema.validator import Validator

DRAFT_6 = "http://json-schema.org/draft-06/schema"
TUPLE = {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}
EXCLUSIVE = {"type": "integer", "minimum": 0, "exclusiveMinimum": True}
PAIR = {"type": "array", "prefixItems": [{"type": "integer"}]}
FORMS: dict[str, tuple[dict[str, Any], str, list[Any], list[Any]]] = {
    "a list of items": (TUPLE, DRAFT_2019, [["a", 1], ["a"], []], [[1, "a"]]),
    "a list of items, and no further ones": (
        {**TUPLE, "additionalItems": False},
        DRAFT_2019,
        [["a", 1]],
        [["a", 1, 2]],
    ),
    "a boolean bound": (EXCLUSIVE, DRAFT_4, [1], [0, -1]),
    "a boolean bound that does not hold": (
        {"maximum": 3, "exclusiveMaximum": False},
        DRAFT_4,
        [3],
        [4],
    ),
    "both": ({**TUPLE, "items": [EXCLUSIVE]}, DRAFT_4, [[1]], [[0]]),
    "an anchor as id": (
        {"$ref": "#text", "definitions": {"t": {"$id": "#text", "type": "string"}}},
        DRAFT_7,
        ["a"],
        [1],
    ),
    "a boolean recursive anchor": (
        {
            "$recursiveAnchor": True,
            "type": ["object", "null"],
            "additionalProperties": {"$recursiveRef": "#"},
        },
        DRAFT_2019,
        [{"a": {"b": None}}, None],
        [3, {"a": 3}],
    ),
    "nothing that tells": (PAIR, LATEST_DRAFT, [[1]], [["a"]]),
    "a property that is called as a keyword": (
        {"properties": {"items": {"type": "string"}, "exclusiveMinimum": True}},
        LATEST_DRAFT,
        [{"items": "a"}],
        [{"items": 1}],
    ),
}


def take(**arguments: Any) -> str:
    """Take anything."""
    return str(arguments)


def accepts(tool: Tool, value: Any) -> bool:
    try:
        tool.prepare({"value": value})
    except ToolArgumentsError:
        return False
    return True


def whole(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"value": schema}, "required": ["value"]}


@pytest.mark.parametrize("name", FORMS)
def test_a_schema_that_names_no_draft_is_read_in_the_latest_one_that_has_its_forms(name):
    schema, draft, valid, invalid = FORMS[name]
    assert draft_of(schema) == draft
    validator = Validator(schema)
    assert [validator.is_valid(value) for value in [*valid, *invalid]] == [
        *(True for _ in valid),
        *(False for _ in invalid),
    ]


@pytest.mark.parametrize("name", [name for name in FORMS if name != "an anchor as id"])
@pytest.mark.parametrize("way", ["schema", "args"])
def test_a_tool_takes_schemas_of_every_form_as_a_whole_and_for_an_argument(name, way):
    schema, _, valid, invalid = FORMS[name]
    if way == "args":
        tool = Tool(take, args={"value": schema})
    elif "$recursiveAnchor" in schema:
        return  # as a whole, its root is that of the tool
    else:
        tool = Tool(take, schema=whole(schema))
    assert [accepts(tool, value) for value in [*valid, *invalid]] == [
        *(True for _ in valid),
        *(False for _ in invalid),
    ]


def test_a_draft_that_is_named_wins_over_forms():
    assert draft_of({**TUPLE, "$schema": f"{DRAFT_6}#"}) == DRAFT_6
    assert draft_of({**EXCLUSIVE, "$schema": "https://example.org/mine"}) == DRAFT_4


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({**TUPLE, "$schema": LATEST_DRAFT}, "a list for `items`, .* `prefixItems` since 2020-12"),
        ({"allOf": [TUPLE, PAIR]}, "`prefixItems`, which .*2019-09.* does not have"),
        ({**EXCLUSIVE, "$schema": DRAFT_7}, "True for `exclusiveMinimum`, which must be a number"),
        ({"exclusiveMaximum": "3"}, "'3' for `exclusiveMaximum`, which must be a number"),
        ({"minContains": "a"}, "cannot be used"),
    ],
    ids=["named", "mixed", "a later draft", "no bound", "no form at all"],
)
@pytest.mark.parametrize("way", ["schema", "args"])
def test_a_schema_that_would_refuse_every_call_is_refused_when_the_tool_is_defined(
    schema, words, way
):
    if way == "args":
        options: dict[str, Any] = {"args": {"value": schema}}
    elif "$schema" in schema:
        options = {"schema": {**whole(schema), "$schema": schema["$schema"]}}
    else:
        options = {"schema": whole(schema)}
    with pytest.raises(ToolDefinitionError, match=words):
        Tool(take, **options)


TREE = {
    "type": "object",
    "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#/properties/left"}},
    "additionalProperties": False,
}
ROOTED: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "the whole": (TREE, {"left": {"right": {}}}, {"left": {"up": {}}}),
    "a definition": (
        {"items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}},
        [1],
        ["a"],
    ),
    "a name with signs": (
        {"$ref": "#/$defs/a%25b~1c%22", "$defs": {'a%b/c"': {"type": "integer"}}},
        1,
        "a",
    ),
    "an item of a list": ({"items": [{"type": "integer"}, {"$ref": "#/items/0"}]}, [1, 2], [1, "a"]),
    "an anchor": ({"items": {"$ref": "#n"}, "$defs": {"n": {"$anchor": "n", "type": "null"}}}, [None], [1]),
    "an address": (
        {
            "$id": "https://example.org/a",
            "items": {"$ref": "b"},
            "$defs": {"b": {"$id": "b", "type": "integer"}},
        },
        [1],
        ["a"],
    ),
    "a boolean": ({"properties": {"no": {"$ref": "#/$defs/n"}}, "$defs": {"n": False}}, {}, {"no": 1}),
    "a dependency": (
        {"dependencies": {"a": ["b"], "c": {"$ref": "#/definitions/d"}}, "definitions": {"d": {"required": ["d"]}}},
        {"a": 1, "b": 1, "c": 1, "d": 1},
        {"c": 1},
    ),
    "siblings that draft 7 ignores": (
        {
            "$schema": f"{DRAFT_7}#",
            "$ref": "#/definitions/n",
            "maximum": 3,
            "definitions": {"n": {"type": "integer"}},
        },
        5,
        "a",
    ),
    "an anchor on the way": (
        {
            "$dynamicAnchor": "node",
            "type": "object",
            "additionalProperties": {"$dynamicRef": "#node"},
        },
        {"a": {"b": {}}},
        {"a": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROOTED)
def test_the_schema_of_an_argument_is_the_root_of_its_own_references(name):
    schema, valid, invalid = ROOTED[name]
    tool = Tool(take, args={"value": schema})
    assert (accepts(tool, valid), accepts(tool, invalid)) == (True, False)


def test_a_part_says_in_its_declaration_where_its_references_lead():
    assert as_part({"items": {"$ref": "#"}}, "/properties/a") == {
        "items": {"$ref": "#/properties/a"}
    }
    given = {"items": {"$ref": "#"}}
    as_part(given, "/properties/a")
    assert given == {"items": {"$ref": "#"}}


def test_one_tool_may_have_arguments_of_several_drafts():
    def place(point: tuple[int, int], **more: Any) -> str:
        """Place a point."""
        return f"{point} {more}"

    tool = Tool(place, args={"point": "Where.", "old": TUPLE, "oldest": EXCLUSIVE})
    good = {"point": [1, 2], "old": ["a", 1], "oldest": 1}
    tool.prepare(good)
    for name, value in {"point": ["a"], "old": ["a", "b"], "oldest": 0}.items():
        with pytest.raises(ToolArgumentsError, match=name):
            tool.prepare({**good, name: value})
