"""Every type that pydantic knows: what its grammar admits, it takes."""

import random

import pytest
from argument_types import SAY_LESS, TYPES, rejected

from ferrule import Tool
from ferrule.errors import ConstraintError, ToolArgumentsError
from ferrule.local import CallForm
from ferrule.models.local.constraint import Constraint
from ferrule.testing import byte_vocabulary, random_walk

pytest.importorskip("llguidance", reason="needs the extra: pip install 'ferrule[local]'")


@pytest.mark.parametrize("name", TYPES)
def test_a_random_walk_over_the_grammar_of_a_type_is_a_value_of_the_type(name):
    assert rejected(name, 5) == []


@pytest.mark.parametrize(("kind", "text"), SAY_LESS.values(), ids=SAY_LESS)
def test_a_type_whose_schema_says_less_refuses_the_value_before_the_tool_runs(kind, text):
    def take(value: kind) -> None:  # pyright: ignore[reportInvalidTypeForm]
        raise AssertionError

    take.__annotations__["value"] = kind
    tool = Tool(take)
    constraint = Constraint.of_calls(
        byte_vocabulary(),
        [tool.declaration],
        form=CallForm(intention=False),
    )
    call = constraint.read(f'{{"name":"take","arguments":{{"value":{text}}}}}').calls[0]
    with pytest.raises(ToolArgumentsError):
        tool(**call.args)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "string", "not": {"const": "x"}}, "not"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]}, "oneOf"),
        ({"if": {"type": "string"}, "then": {"minLength": 1}}, "if"),
        (
            {"type": "array", "uniqueItems": True, "minItems": 2, "items": {"type": "integer"}},
            "uniqueItems",
        ),
        ({"type": "array", "contains": {"const": 1}}, "contains"),
        ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 2}, "minProperties"),
        (
            {"type": "object", "patternProperties": {"^a": {}, "^ab": {"type": "null"}}},
            "patternProperties",
        ),
        (
            {"type": "object", "patternProperties": {"^a": {"type": "null"}}, "required": ["ab"]},
            "patternProperties",
        ),
        ({"type": "integer", "minimum": 10**30}, "minimum"),
        ({"type": "string", "format": "file-path"}, "format"),
        ({"type": "string", "contentMediaType": "application/json"}, "contentMediaType"),
    ],
)
def test_what_a_grammar_cannot_say_is_never_widened_in_silence(schema, keyword):
    with pytest.raises(ConstraintError, match=f"`{keyword}`"):
        Constraint.of_schema(byte_vocabulary(), schema)
    partial = Constraint.of_schema(byte_vocabulary(), schema, partial=True)
    assert partial.level == {"": "partial"}
    assert keyword in {loss.keyword for loss in partial.losses[""] if loss.breaking}


@pytest.mark.parametrize(
    "draft_4",
    [{"minimum": 0, "exclusiveMinimum": True}, {"minimum": 1, "exclusiveMinimum": False}],
)
def test_bounds_of_draft_4_are_read(draft_4):
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "number",
        "maximum": 1,
        "multipleOf": 1,
        **draft_4,
    }
    constraint = Constraint.of_schema(byte_vocabulary(), schema)
    assert random_walk(constraint, random.Random(1)).answer().value == 1
