"""Answers that end within a budget of tokens, whatever a model writes."""

import json
import random

import pytest

from ferrule import ConstraintError
from ferrule.models.local.constraint import Constraint
from ferrule.models.local.decoding.ending import ending
from ferrule.models.local.decoding.shortest import Shortest
from ferrule.models.local.grammar import CallForm
from ferrule.models.local.vocabulary import Vocabulary
from ferrule.testing import byte_vocabulary, random_walk

pytest.importorskip("llguidance", reason="needs the extra: pip install 'ferrule[local]'")

BYTES = byte_vocabulary()
TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "inside": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
            },
            "required": ["name", "inside"],
        },
    },
}
SCHEMAS = {
    "a text": {"type": "string"},
    "a text with a pattern": {"type": "string", "pattern": r"^[A-Z]{3}-\d{2,}(?:;[a-z]+)*$"},
    "a text of some length": {"type": "string", "minLength": 5, "maxLength": 9},
    "a number": {"type": "number", "minimum": -3, "exclusiveMaximum": 2},
    "a date": {"type": "string", "format": "date"},
    "an address": {"type": "string", "format": "email", "maxLength": 99},
    "a text that ends in a form": {"type": "string", "pattern": "(?:abc|xyz)$"},
    "any value": {},
    "a list of anything": {"type": "array", "items": True},
    "a tree": TREE,
    "a list of lists": {"type": "array", "items": {"$ref": "#"}},
    "an open object": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
    "names with a pattern": {"type": "object", "patternProperties": {"^x_[a-z]+$": {"type": "boolean"}}, "minProperties": 1},
    "a tuple": {"type": "array", "prefixItems": [{"type": "string"}, {"enum": ["one", 2, None]}], "minItems": 2, "items": {"type": "null"}},
    "a union": {"anyOf": [{"type": "integer"}, {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"]}, {"const": "ä\n"}]},
}  # fmt: skip


def tokens_of(constraint, text: bytes):
    matcher = constraint.matcher()
    for each in text:
        matcher.accept(each)
    return matcher


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_every_budget_that_the_shortest_answer_fits_in_is_kept(schema):
    constraint = Constraint.of_schema(BYTES, schema)
    chance = random.Random(1)
    for extra in [0, 0, 1, 2, 3, 5, 8, 13, 30, 60]:
        budget = constraint.shortest_tokens + extra
        matcher = random_walk(constraint, chance, budget)
        assert len(matcher.tokens) <= budget
        matcher.answer()
    with pytest.raises(ConstraintError, match=f"takes {constraint.shortest_tokens} tokens"):
        constraint.matcher(constraint.shortest_tokens - 1)


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_the_ending_of_whatever_was_begun_is_taken_and_of_nothing_it_is_the_shortest_answer(schema):
    constraint = Constraint.of_schema(BYTES, schema)
    shortest = Shortest(constraint.grammar.schema)
    for seed in range(4):
        text = bytes(random_walk(constraint, random.Random(seed), 80).tokens)
        for i in range(len(text) + 1):
            rest, _ = ending(shortest, text[:i])
            assert rest is not None
            assert tokens_of(constraint, text[:i] + rest).mask() is not None
            json.loads(text[:i] + rest)
            constraint.read((text[:i] + rest).decode())


def test_the_shortest_answer_of_a_pattern_has_nothing_that_it_can_do_without():
    shortest = {
        "email": '"0@0.aa"',
        "hostname": '"0.aa"',
        "uri": '"http://0.aa"',
        "ipv6": '"0:0:0:0:0:0:0:0"',
    }
    for name, text in shortest.items():
        assert Constraint.of_schema(
            BYTES,
            {"type": "string", "format": name},
        ).shortest_tokens == len(text)


def test_a_thought_and_the_call_after_it_share_the_budget():
    tool = {
        "type": "function",
        "function": {
            "name": "say",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
        },
    }
    for opener in ("<tool_call>", "<x>"):
        constraint = Constraint.of_calls(
            BYTES,
            [tool],
            form=CallForm(thought_chars=200, opener=opener, closer="</x>"),
        )
        for seed in range(8):
            budget = constraint.shortest_tokens + 5 * seed
            matcher = random_walk(constraint, random.Random(seed), budget)
            assert len(matcher.tokens) <= budget
            assert matcher.answer().calls[0].name == "say"


def test_free_text_ends_within_its_budget_or_becomes_a_call_that_does():
    tool = {
        "type": "function",
        "function": {
            "name": "say",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
        },
    }
    constraint = Constraint.of_calls(BYTES, [tool], form=CallForm(call=False, intention=False))
    for seed in range(12):
        matcher = random_walk(constraint, random.Random(seed), 10 * seed)
        assert len(matcher.tokens) <= 10 * seed
        matcher.answer()


def test_while_the_budget_is_large_every_token_of_the_grammar_may_come():
    constraint = Constraint.of_schema(BYTES, TREE)
    bounded, free = constraint.matcher(5_000), constraint.matcher()
    for token in b'{"name":"an oak","inside":[{"name':
        assert bounded.mask() == free.mask()
        bounded.accept(token)
        free.accept(token)


def test_near_the_end_a_long_choice_cannot_be_made_and_a_short_one_can():
    constraint = Constraint.of_schema(BYTES, {"enum": ["yes", "perhaps tomorrow"]})
    matcher = constraint.matcher(8)
    matcher.accept(ord('"'))
    assert matcher.mask() == b"".join(
        bytes([1 << ord("y") % 8 if i == ord("y") // 8 else 0]) for i in range(36)
    )


def test_tokens_of_several_bytes_end_within_the_budget():
    words = [
        b'{"',
        b'":',
        b'","',
        b'"}',
        b'"}}',
        b"[[",
        b"]]",
        b"the ",
        b"name",
        b'"name":',
        "ä".encode(),
        "ä".encode()[:1],
        b'"inside":[',
        b"]}",
    ]
    vocabulary = Vocabulary(
        [*(bytes([i]) for i in range(256)), *words, b"</s>"],
        eos=[256 + len(words)],
    )
    constraint = Constraint.of_schema(vocabulary, TREE)
    assert constraint.shortest_tokens < Constraint.of_schema(BYTES, TREE).shortest_tokens
    for seed in range(20):
        budget = constraint.shortest_tokens + seed
        matcher = random_walk(constraint, random.Random(seed), budget)
        assert len(matcher.tokens) <= budget
        matcher.answer()


def test_a_copy_has_a_budget_of_its_own():
    matcher = Constraint.of_schema(BYTES, {"type": "string"}).matcher(20)
    matcher.accept(ord('"'))
    other = matcher.copy()
    for _ in range(18):
        matcher.accept(ord("x"))
    assert matcher.mask() != other.mask()
