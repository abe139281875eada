"""The claims of docs/how-to/models/models.md."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ferrule import LM, Message, Messages, Request
from ferrule.errors import ConfigurationError
from ferrule.models.providers import PROVIDERS
from ferrule.models.wires.wire import WIRES, wire
from ferrule.testing import block_network

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "models" / "models.md"


def rows(heading: str) -> list[list[str]]:
    """The cells of the tables under a heading, without those of their heads."""
    section = (
        PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    )
    lines = re.findall(r"^\| `.*\|$", section, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_block_of_the_page_runs(execute, retries_do_not_wait) -> None:
    """Style: a page's claims have a test; nothing leaves the machine, and nobody waits for another
    attempt.
    """
    with block_network():
        execute("docs/how-to/models/models.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/models/models.md") == []


def test_the_table_holds_every_provider_with_its_wire_and_its_keys() -> None:
    """The usual environment variables."""
    keys = {
        provider.name: ", or ".join(
            f"`{name}`" for name in (provider.key_variable, *provider.other_variables) if name
        )
        or "none"
        for provider in PROVIDERS.values()
    }
    assert rows("Providers and keys") == [
        [f"`{name}`", f"`{PROVIDERS[name].wire}`", keys[name]] for name in PROVIDERS
    ]


def test_the_table_holds_every_wire_and_where_it_is_asked() -> None:
    assert {name: place for name, _, place in rows("Wires")} == {
        f"`{name}`": f"`{wire(name).path('MODEL')}`" for name in WIRES
    }


def test_the_options_have_the_defaults_that_the_page_says() -> None:
    parameters = inspect.signature(LM.__init__).parameters
    said = {
        name.strip("`"): int(default)
        for name, default, *_ in rows("Time, retries, errors")
        if default.isdecimal()
    }
    assert said == {name: parameters[name].default for name in said}
    assert len(said) == 4


def refused_at_once() -> list[str]:
    return [
        name
        for cells in rows("Settings")
        if cells[1] == "when the model is created"
        for name in re.findall(r"`(\w+)`", cells[0])
    ]


@pytest.mark.parametrize("name", refused_at_once())
def test_a_setting_that_the_table_refuses_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"`{name}`"):
        LM("ollama/m", **{name: 1})


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize(
    "setting",
    ["messages", "tools", "response_format", "stream", "tool_choice", "parallel_tool_calls"],
)
def test_what_the_request_says_is_refused_on_every_wire(name: str, setting: str) -> None:
    """Also the two wishes that a program may have."""
    with pytest.raises(ConfigurationError, match=f"`{setting}`"):
        LM("http://127.0.0.1:1/v1", model="m", wire=name, max_retries=0, **{setting: "x"})("hi")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("openai_chat", {"max_tokens": 321, "stop": "<end>", "reasoning_effort": "low"}),
        (
            "openai_responses",
            {"max_output_tokens": 321, "stop": "<end>", "reasoning": {"effort": "low"}},
        ),
        (
            "anthropic",
            {"max_tokens": 321, "stop_sequences": ["<end>"], "output_config": {"effort": "low"}},
        ),
        (
            "gemini",
            {
                "generationConfig": {
                    "maxOutputTokens": 321,
                    "stopSequences": ["<end>"],
                    "thinkingConfig": {"thinkingLevel": "low"},
                },
            },
        ),
    ],
    ids=list(WIRES),
)
def test_three_settings_have_the_form_of_each_wire(name: str, expected: dict[str, Any]) -> None:
    settings = {"max_tokens": 321, "stop": "<end>", "reasoning_effort": "low"}
    asked = Request(Messages([Message("user", "q")]))
    body = json.loads(wire(name).render(asked, model="gemini-3-pro", settings=settings))
    assert body.items() >= expected.items()
