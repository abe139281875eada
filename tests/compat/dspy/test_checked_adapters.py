"""Subclasses and options of DSPy's adapters that ferrule would ignore are refused, with a remedy."""

from __future__ import annotations

import re
from typing import Any

import pytest

import ferrule
from ferrule.compat.dspy import Adapter, ChatAdapter, JSONAdapter, XMLAdapter
from ferrule.compat.dspy.checked_adapters import REFUSED_METHODS
from ferrule.errors import ConfigurationError


@pytest.mark.parametrize("name", REFUSED_METHODS)
def test_a_method_that_would_not_be_called_is_refused_with_what_to_do_instead(name: str) -> None:
    expected = rf"^`Made\.{name}` would not be called: {re.escape(REFUSED_METHODS[name])}\.$"
    for kind in (Adapter, ChatAdapter, JSONAdapter, XMLAdapter):
        with pytest.raises(ConfigurationError, match=expected):
            type("Made", (kind,), {name: lambda self: None})


def test_a_method_of_a_mixin_is_refused_as_well() -> None:
    class Mixin:
        def process_chunk(self) -> None: ...

    with pytest.raises(ConfigurationError, match="process_chunk"):
        type("Made", (Mixin, ChatAdapter), {})


def test_other_methods_may_be_overridden() -> None:
    class Brief(ChatAdapter):
        def format_task_description(self, signature: Any) -> str:
            return "Be brief."

    system = Brief().opening(ferrule.Signature("a -> b"), {"a": "x"})[0]
    assert system.text.endswith("Be brief.")


@pytest.mark.parametrize(
    ("make", "instead"),
    [
        (lambda: ChatAdapter(callbacks=[print]), "configure(callbacks=[...])"),
        (lambda: JSONAdapter([print]), "configure(callbacks=[...])"),
        (lambda: XMLAdapter(use_json_adapter_fallback=False), "`fallback=None`"),
        (lambda: ChatAdapter(native_response_types=[]), "`Reasoning`"),
    ],
    ids=["by name", "by position", "fallback", "native types"],
)
def test_an_option_that_ferrule_does_not_have_is_refused_with_what_to_use(
    make: Any,
    instead: str,
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(instead)):
        make()


def test_an_adapter_with_options_of_its_own_takes_them() -> None:
    class Mine(ChatAdapter):
        def __init__(self, callbacks: Any) -> None:
            super().__init__()
            self.callbacks = callbacks

    assert Mine([1]).callbacks == [1]
