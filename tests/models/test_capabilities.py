"""Capability profiles: native or text is chosen per model, with an override (E65)."""

from __future__ import annotations

import pytest

from ferrule import LM, Capabilities


@pytest.mark.parametrize(
    ("model", "native"),
    [
        ("ollama/gemma3:4b", False),
        ("ollama/llama2", False),
        ("ollama/llama3.1", True),
        ("ollama/qwen3", True),
        ("ollama/qwen:4b", False),
        ("openai/gpt-5-mini", True),
        ("groq/llama2", True),
    ],
)
def test_a_model_that_takes_no_tools_is_known(model, native):
    assert LM(model).capabilities.native_tools is native


@pytest.mark.parametrize(
    ("model", "schema"),
    [
        ("openai/gpt-4", False),
        ("openai/gpt-4-turbo", False),
        ("openai/gpt-3.5-turbo", False),
        ("openai/gpt-4o", True),
        ("openai/gpt-4.1", True),
        ("anthropic/claude-3-5-sonnet-20241022", False),
        ("anthropic/claude-opus-4-1", True),
        ("anthropic/claude-sonnet-4-20250514", False),
        ("anthropic/claude-sonnet-4-5", True),
    ],
)
def test_a_model_older_than_answer_schemas_is_known(model, schema):
    assert LM(model).capabilities.json_schema is schema


def test_what_the_user_says_of_a_model_holds():
    """An override both ways."""
    assert LM(
        "ollama/gemma3",
        capabilities=Capabilities(native_tools=True),
    ).capabilities.native_tools
    assert not LM(
        "openai/gpt-5",
        capabilities=Capabilities(native_tools=False),
    ).capabilities.native_tools
