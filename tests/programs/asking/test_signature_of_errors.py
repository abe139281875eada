"""An answer that cannot be parsed raises an error that knows the signature."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from ferrule import (
    AdapterParseError,
    ChainOfThought,
    ChatAdapter,
    JSONAdapter,
    Predict,
    Signature,
    XMLAdapter,
    context,
)
from ferrule.testing import ScriptedLM

Sum = Signature("question -> total: int", "Add.")


@pytest.mark.parametrize("adapter", [ChatAdapter, JSONAdapter, XMLAdapter])
@pytest.mark.parametrize(
    "text",
    ["no number", '{"total": 1} {"total": 2}', "[[ ## total ## ]]\nmany", "<total>many</total>"],
)
def test_parse_says_which_signature(adapter: type[Any], text: str) -> None:
    with pytest.raises(AdapterParseError) as caught:
        adapter().parse(Sum, text)
    assert caught.value.signature is Sum
    assert pickle.loads(pickle.dumps(caught.value)).signature == Sum


def test_a_program_says_which_signature() -> None:
    predict = Predict(Sum)
    with context(adapter=JSONAdapter(repairs=0)), pytest.raises(AdapterParseError) as caught:
        predict(question="?", lm=ScriptedLM(["many"]))
    assert caught.value.signature is Sum
    with context(adapter=JSONAdapter(repairs=0)), pytest.raises(AdapterParseError) as caught:
        ChainOfThought(Sum)(question="?", lm=ScriptedLM(["many"]))
    assert list(caught.value.signature.output_fields) == ["reasoning", "total"]


class _Own(ChatAdapter):
    def parse(self, signature: type[Signature], completion: str) -> dict[str, Any]:
        raise ValueError(f"no {len(signature.output_fields)} numbers in {completion}")


def test_an_overridden_parse_says_it_too() -> None:
    with (
        context(adapter=_Own(repairs=0, fallback=None)),
        pytest.raises(AdapterParseError, match="no 1 numbers") as caught,
    ):
        Predict(Sum)(question="?", lm=ScriptedLM(["many"]))
    assert caught.value.signature is Sum
