"""The five tools of `constrained.py` in the form of each provider, as golden files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import constrained
import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import asdict

from ferrule.errors import ToolArgumentsError, ToolCallError
from ferrule.schema.lowering.lower import TARGETS, Target, lower_schema, lower_tools
from ferrule.schema.nodes import is_object, subschemas

GOLDEN = Path(__file__).parent / "golden"
REFUSED: dict[Target, frozenset[str]] = {
    "openai-strict": frozenset(
        {
            "minLength",
            "maxLength",
            "uniqueItems",
            "default",
            "examples",
            "prefixItems",
            "patternProperties",
        },
    ),
    "anthropic": frozenset(
        {
            "minLength",
            "maxLength",
            "maxItems",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "multipleOf",
            "prefixItems",
            "patternProperties",
        },
    ),
    "gemini": frozenset(
        {
            "minLength",
            "maxLength",
            "pattern",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
            "default",
        },
    ),
}
"""Keywords that the provider refuses or ignores; `const`, `oneOf` and the like, all of them."""
ANY = frozenset(
    {"const", "oneOf", "allOf", "not", "discriminator", "if", "propertyNames", "minProperties"},
)
PAIRS = [{"key": "a", "value": 1}, {"key": "b", "value": "x"}]
PLAN: dict[str, Any] = {
    "label": "goal",
    "text": "t",
    "parts": [{"label": "step", "text": "u", "parts": []}],
}
ORDER: dict[str, Any] = {
    "item": "pen",
    "count": 2,
    "address": {"street": "S", "postcode": "1234 AB"},
}
WRITTEN: dict[Target, dict[str, tuple[Any, Any]]] = {
    "openai-strict": {
        "order": ({**ORDER, "tags": None}, ORDER),
        "plan": (
            {"tree": {**PLAN, "parts": None}, "due": None},
            {"tree": {"label": "goal", "text": "t"}, "due": None},
        ),
        "search": (
            {"query": "q", "limit": None, "kinds": ["page"]},
            {"query": "q", "kinds": ["page"]},
        ),
        "pay": ({"amount": 1.5, "iban": "NL00ABCD0123456789"},) * 2,
        "label": ({"values": PAIRS, "note": None}, {"values": {"a": 1, "b": "x"}, "note": None}),
    },
    "anthropic": {
        "label": ({"values": PAIRS}, {"values": {"a": 1, "b": "x"}}),
        "search": ({"query": "q"},) * 2,
    },
    "gemini": {"plan": ({"tree": PLAN},) * 2, "label": ({"values": {"a": 1}},) * 2},
}
"""What a model writes, and what the tool gets."""


@pytest.mark.parametrize("target", TARGETS)
def test_the_five_tools_are_lowered_as_the_golden_file_says(target: Target) -> None:
    """For each tool the schema, the places that the decoder converts, and the constraints that the
    provider does not enforce.
    """
    found = lower_tools(constrained.DECLARATIONS, target)
    made = {
        declared["function"]["name"]: {
            "strict": sent["function"].get("strict", False),
            "parameters": sent["function"]["parameters"],
            "stand_ins": sorted(lowered.stand_ins)
            if (lowered := found.lowered.get(declared["function"]["name"]))
            else [],
            "pairs": sorted(lowered.pairs) if lowered else [],
            "losses": [asdict(loss) for loss in found.losses.get(declared["function"]["name"], ())],
        }
        for declared, sent in zip(constrained.DECLARATIONS, found.tools, strict=True)
    }
    path = GOLDEN / f"{target}.json"
    if os.environ.get("FERRULE_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{json.dumps(made, indent=2)}\n", encoding="utf-8")
    assert made == json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("target", TARGETS)
def test_no_keyword_that_a_provider_refuses_is_left(target: Target) -> None:
    for name, lowered in lower_tools(constrained.DECLARATIONS, target).lowered.items():
        assert lowered.schema["type"] == "object", name
        waiting: list[Any] = [lowered.schema]
        while waiting:
            each = waiting.pop()
            if not is_object(each):
                continue
            assert not each.keys() & (ANY | REFUSED[target]), (name, each)
            assert "$ref" not in each or len(each) == 1, (name, each)
            if target != "gemini" and each.get("type") == "object":
                assert each["additionalProperties"] is False
                assert each["properties"]
            waiting += [inner for _, _, inner in subschemas(each)]


@pytest.mark.parametrize(
    ("target", "name"),
    [(target, name) for target in WRITTEN for name in WRITTEN[target]],
)
def test_what_a_model_writes_comes_back_as_the_tool_takes_it(target: Target, name: str) -> None:
    """And defaults apply where a null stood for leaving out."""
    written, expected = WRITTEN[target][name]
    lowered = lower_tools(constrained.DECLARATIONS, target).lowered[name]
    Draft202012Validator(lowered.schema).validate(written)
    assert lowered.restored(written) == expected
    assert constrained.TOOLS[name](**lowered.restored(written)) == constrained.TOOLS[name](
        **expected,
    )


@pytest.mark.parametrize(
    ("target", "name", "wrong"),
    [
        (
            "openai-strict",
            "order",
            {**ORDER, "address": {"street": "", "postcode": "1234 AB"}, "tags": None},
        ),
        ("openai-strict", "label", {"values": [PAIRS[0], PAIRS[0]], "note": None}),
        ("anthropic", "order", {**ORDER, "count": 100}),
        ("anthropic", "search", {"query": "q", "limit": 51}),
        ("anthropic", "pay", {"amount": 0, "iban": "NL00ABCD0123456789"}),
        ("gemini", "pay", {"amount": 10_000, "iban": "NL00ABCD0123456789"}),
        ("gemini", "pay", {"amount": 1, "iban": "?"}),
    ],
)
def test_what_a_provider_does_not_enforce_is_refused_before_the_tool_runs(
    target: Target,
    name: str,
    wrong: Any,
) -> None:
    """Each loss is a constraint that the tool itself checks."""
    lowered = lower_schema(constrained.TOOLS[name].parameters, target)
    Draft202012Validator(lowered.schema).validate(wrong)
    with pytest.raises((ToolArgumentsError, ToolCallError)):
        constrained.TOOLS[name](**lowered.restored(wrong))
