"""Answers that keep to their schemas while they are written: no token that breaks a call can come
next.
"""

import json
import random
import sys
import threading
from datetime import date
from typing import Annotated, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field

from ferrule import Tool
from ferrule.errors import ConstraintError, ToolCallError
from ferrule.models.local.constraint import CONSTRAINTS, Constraint
from ferrule.models.local.grammar import CallForm
from ferrule.models.local.vocabulary import TOKENIZERS, Vocabulary
from ferrule.testing import byte_vocabulary, random_walk

pytest.importorskip("llguidance", reason="needs the extra: pip install 'ferrule[local]'")


class Address(BaseModel):
    street: str = Field(min_length=1, max_length=30)
    postcode: str = Field(pattern=r"^\d{4} ?[A-Z]{2}$")


class Node(BaseModel):
    label: Literal["a", "b"]
    children: list["Node"] = Field(default=[], max_length=2)


def order(
    item: Literal["book", "pen"],
    count: Annotated[int, Field(ge=1, le=9)],
    address: Address,
    gift: bool = False,
) -> str:
    """Order something."""
    return ""


def plan(tree: Node, due: date) -> str:
    """Plan."""
    return ""


def search(
    query: Annotated[str, Field(max_length=20)],
    tags: Annotated[list[str], Field(max_length=2)] = [],
) -> str:
    """Search."""
    return ""


def weigh(grams: Annotated[float, Field(gt=0, lt=1000)], limit: int | None = None) -> str:
    """Weigh."""
    return ""


def stop() -> str:
    """Stop."""
    return ""


TOOLS = [Tool(each) for each in (order, plan, search, weigh, stop)]
DECLARATIONS = [each.declaration for each in TOOLS]
BYTES = byte_vocabulary()


def allowed(mask: bytes) -> list[int]:
    return [8 * i + bit for i, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]


def one(schema: dict, **options) -> Constraint:
    return Constraint.of_schema(BYTES, schema, **options)


def written(constraint: Constraint, text: str):
    matcher = constraint.matcher()
    for token in text.encode():
        matcher.accept(token)
    return matcher


@pytest.mark.parametrize("seed", range(10))
def test_whatever_a_model_without_knowledge_writes_is_a_valid_call(seed):
    constraint = Constraint.of_calls(BYTES, DECLARATIONS)
    chance = random.Random(seed)
    for _ in range(10):
        matcher = random_walk(constraint, chance)
        found = json.loads(matcher.text)
        assert list(found) == ["intention", "name", "arguments"]
        tool = next(each for each in TOOLS if each.name == found["name"])
        jsonschema.validate(found["arguments"], tool.declaration["function"]["parameters"])
        call = matcher.answer().calls[0]
        assert (call.name, call.args, call.intention) == (
            found["name"],
            found["arguments"],
            found["intention"],
        )
        tool(**call.args)


@pytest.mark.parametrize("number", [1, 5, 50, 200])
def test_a_call_is_of_one_of_any_number_of_tools_and_takes_that_tools_arguments(number):
    inner = {
        "type": "object",
        "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["x"],
    }
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{i}",
                "parameters": {
                    "type": "object",
                    "properties": {f"p{i}": {"$ref": "#/$defs/Inner"}},
                    "required": [f"p{i}"],
                    "$defs": {"Inner": inner if i % 2 else {"type": "boolean"}},
                },
            },
        }
        for i in range(number)
    ]
    constraint = Constraint.of_calls(BYTES, tools, form=CallForm(intention=False))
    chance = random.Random(number)
    for _ in range(20):
        call = random_walk(constraint, chance).answer().calls[0]
        i = int(call.name.removeprefix("tool_"))
        assert list(call.args) == [f"p{i}"]
        assert (
            isinstance(call.args[f"p{i}"], dict) if i % 2 else isinstance(call.args[f"p{i}"], bool)
        )


def test_the_grammar_is_made_of_a_copy_of_the_schemas():
    before = json.dumps(DECLARATIONS)
    Constraint.of_calls(BYTES, DECLARATIONS)
    assert json.dumps(DECLARATIONS) == before


def test_after_a_tool_is_removed_its_name_cannot_be_written():
    calls = CallForm(intention=False)
    both, alone = (
        Constraint.of_calls(BYTES, DECLARATIONS, form=calls),
        Constraint.of_calls(BYTES, DECLARATIONS[1:], form=calls),
    )
    written(both, '{"name":"order')
    with pytest.raises(ConstraintError, match="may not come"):
        written(alone, '{"name":"order')


def test_the_arguments_of_another_tool_cannot_be_written():
    constraint = Constraint.of_calls(BYTES, DECLARATIONS, form=CallForm(intention=False))
    with pytest.raises(ConstraintError):
        written(constraint, '{"name":"stop","arguments":{"query"')


@pytest.mark.parametrize(
    "function",
    [{"name": "stop"}, {"name": "stop", "parameters": {}}, {"name": "stop", "parameters": None}],
)
def test_a_tool_without_parameters_is_called_with_an_empty_object(function):
    constraint = Constraint.of_calls(
        BYTES,
        [{"type": "function", "function": function}],
        form=CallForm(intention=False),
    )
    assert random_walk(constraint, random.Random(1)).text == '{"name":"stop","arguments":{}}'


def test_special_tokens_and_padded_ids_never_come_within_an_answer():
    padded = byte_vocabulary(size=320)
    matcher = Constraint.of_schema(padded, {"type": "string"}).matcher()
    assert len(matcher.mask()) == 40
    for token in b'"some text':
        assert max(allowed(matcher.mask())) < 256
        matcher.accept(token)
    matcher.accept(ord('"'))
    assert matcher.is_finished
    assert allowed(matcher.mask()) == [256]
    matcher.accept(256)
    assert allowed(matcher.mask()) == [256]
    with pytest.raises(ConstraintError, match="after the end"):
        matcher.accept(ord("x"))


@pytest.mark.parametrize("token", [ord("x"), 256, 257, 300, 4_000])
def test_a_refused_token_raises_and_the_matcher_stays_failed(token):
    matcher = Constraint.of_schema(byte_vocabulary(size=320), {"type": "integer"}).matcher()
    with pytest.raises(ConstraintError):
        matcher.accept(token)
    assert not matcher.is_finished
    with pytest.raises(ConstraintError):
        matcher.accept(ord("1"))
    with pytest.raises(ConstraintError):
        matcher.mask()
    with pytest.raises(ConstraintError):
        matcher.answer()


def test_an_engine_that_gives_up_is_an_error_and_no_finished_answer():
    """A failed matcher of the engine admits the end alone and looks finished."""
    endless = {"type": "object", "properties": {"b": {"$ref": "#"}}, "required": ["b"]}
    matcher = one({"anyOf": [endless]}).matcher()
    with pytest.raises(ConstraintError, match="Too many items"):  # noqa: PT012  in a mask or after a token
        for token in b'{"b":{"b":':
            matcher.mask()
            matcher.accept(token)
    assert not matcher.is_finished
    with pytest.raises(ConstraintError):
        matcher.mask()


def test_a_mask_without_a_token_is_an_error(monkeypatch):
    matcher = one({"type": "integer"}).matcher()

    class Cleared:
        def __getattr__(self, name):
            return getattr(engine, name)

        def compute_bitmask(self):
            return bytes(len(engine.compute_bitmask()))

    engine = matcher._engine
    monkeypatch.setattr(matcher, "_engine", Cleared())
    with pytest.raises(ConstraintError, match="no token may come next"):
        matcher.mask()


def test_masks_change_rows_of_numpy_in_place_and_padded_ids_are_closed():
    """Without torch."""
    numpy = pytest.importorskip("numpy")
    row = numpy.zeros(320, dtype=numpy.float32)
    matcher = Constraint.of_schema(byte_vocabulary(size=320), {"type": "boolean"}).matcher()
    matcher.apply(row)
    assert [each for each in range(320) if row[each] == 0] == sorted(b"tf")
    words = numpy.zeros(10, dtype=numpy.int32)
    matcher.fill(words.ctypes.data)
    assert words.tobytes() == matcher.mask()


def test_a_cut_answer_has_no_call():
    matcher = written(one({"type": "object", "properties": {"a": {"type": "string"}}}), '{"a":"b')
    assert not matcher.is_finished
    with pytest.raises(ConstraintError, match="is incomplete"):
        matcher.answer()


def test_there_is_no_whitespace_between_the_tokens_of_json():
    with pytest.raises(ConstraintError):
        written(one({"type": "object", "properties": {"a": {}}}), "{ ")


@pytest.mark.parametrize("opener", ["<tool_call>", "[CALL]"])
def test_a_thought_of_bounded_length_comes_before_the_call_and_cannot_contain_the_opener(opener):
    constraint = Constraint.of_calls(
        BYTES,
        DECLARATIONS,
        form=CallForm(thought_chars=40, opener=opener),
    )
    for seed in range(40):
        matcher = random_walk(constraint, random.Random(seed))
        answer = matcher.answer()
        assert len(answer.calls) == 1
        assert len(answer.thought) <= 40
        assert opener not in answer.thought
        assert (257 in matcher.tokens) == (opener == "<tool_call>")


def test_the_name_of_a_special_opener_cannot_be_spelled_in_a_thought():
    matcher = Constraint.of_calls(BYTES, DECLARATIONS, form=CallForm(thought_chars=40)).matcher()
    for token in b"hm <tool_call":
        matcher.accept(token)
    assert ord(">") not in allowed(matcher.mask())


@pytest.mark.parametrize("opener", ["<tool_call>", "[CALL]"])
def test_free_text_may_come_instead_of_a_call_where_no_call_must_come(opener):
    constraint = Constraint.of_calls(
        BYTES,
        DECLARATIONS,
        form=CallForm(call=False, text_chars=30, opener=opener),
    )
    answers = [random_walk(constraint, random.Random(seed)).answer() for seed in range(60)]
    assert {len(each.calls) for each in answers} == {0, 1}
    assert all(
        bool(each.text) != bool(each.calls) for each in answers if each != answers[0].__class__()
    )


def test_a_keyword_that_a_grammar_cannot_enforce_is_told_with_tool_and_place_before_anything_is_written():
    tool = {
        "type": "function",
        "function": {
            "name": "book",
            "parameters": {
                "type": "object",
                "properties": {"seat": {"type": "integer", "not": {"const": 13}}},
            },
        },
    }
    with pytest.raises(ConstraintError, match="`book`, at `/properties/seat`, `not`"):
        Constraint.of_calls(BYTES, [tool])
    partial = Constraint.of_calls(BYTES, [tool], partial=True, form=CallForm(intention=False))
    assert partial.level == {"book": "partial"}
    assert [(each.path, each.keyword, each.breaking) for each in partial.losses["book"]] == [
        ("/properties/seat", "not", True),
    ]
    with pytest.raises(ToolCallError, match="do not fit") as caught:
        written(partial, '{"name":"book","arguments":{"seat":13}}').answer()
    assert caught.value.raw == '{"name":"book","arguments":{"seat":13}}'
    assert caught.value.tool == "book"


def test_a_schema_that_the_engine_refuses_is_told_with_its_tool():
    impossible = {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 2, "pattern": "^abc$"}},
        "required": ["a"],
    }
    tool = {"type": "function", "function": {"name": "odd", "parameters": impossible}}
    with pytest.raises(ConstraintError, match="`odd`: "):
        Constraint.of_calls(BYTES, [DECLARATIONS[0], tool])


@pytest.mark.parametrize(
    "text",
    ["", "no JSON", '{"name":"stop"}', '{"name":"halt","arguments":{}}', '{"name":"stop","arguments":{},"more":1}', '{"name":"weigh","arguments":{"grams":NaN}}',
     '{"name":"weigh","arguments":{"grams":0}}', '[{"name":"stop","arguments":{}}]'],
)  # fmt: skip
def test_the_answer_of_a_server_that_ignored_the_grammar_is_refused_with_its_text(text):
    constraint = Constraint.of_calls(BYTES, DECLARATIONS, form=CallForm(intention=False))
    with pytest.raises(ToolCallError) as caught:
        constraint.read(text)
    assert caught.value.raw == text


def test_the_same_content_gives_the_same_constraint_and_the_same_tokenizer():
    first = Constraint.of_calls(byte_vocabulary(), DECLARATIONS)
    hits, built = CONSTRAINTS.hits, TOKENIZERS.misses
    assert Constraint.of_calls(byte_vocabulary(), json.loads(json.dumps(DECLARATIONS))) is first
    assert CONSTRAINTS.hits == hits + 1
    assert TOKENIZERS.misses == built
    assert Constraint.of_calls(byte_vocabulary(), DECLARATIONS[1:]) is not first


def test_a_copy_of_a_matcher_goes_on_by_itself():
    matcher = written(one({"enum": ["ab", "ac"]}), '"a')
    other = matcher.copy()
    matcher.accept(ord("b"))
    assert allowed(other.mask()) == [ord("b"), ord("c")]
    assert other.text == '"a'


def test_matchers_of_many_threads_do_not_meet():
    constraint = Constraint.of_calls(BYTES, DECLARATIONS)
    alone = [random_walk(constraint, random.Random(seed)).text for seed in range(8)]
    texts: dict[int, str] = {}
    threads = [
        threading.Thread(
            target=lambda seed=seed: texts.__setitem__(
                seed,
                random_walk(constraint, random.Random(seed)).text,
            ),
        )
        for seed in range(8)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [texts[seed] for seed in range(8)] == alone


def test_unicode_escapes_and_deep_nesting_survive():
    nested = {"type": "array", "items": {"$ref": "#"}}
    assert written(one(nested), "[" * 60 + "]" * 60).answer().value is not None
    long = "ä😀\\n\\\\" * 2_000
    assert written(one({"type": "string"}), f'"{long}"').answer().value == json.loads(f'"{long}"')


def test_a_vocabulary_needs_an_end():
    from ferrule.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match="eos"):
        Vocabulary([b"a"], eos=[])


def test_without_the_engine_the_error_names_the_extra(monkeypatch):
    from ferrule.errors import ConfigurationError

    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'ferrule\[local\]'"):
        Constraint.of_schema(Vocabulary([b"a", b"</s>"], eos=[1]), {"const": "a"})
