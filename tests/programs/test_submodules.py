"""The programs inside a program, by what they are called."""

from __future__ import annotations

from typing import Any

from ferrule import Module, Predict, Prediction, Tool
from ferrule.testing import ScriptedLM


class Hidden(Module):
    """A program whose parts stand behind leading underscores."""

    def __init__(self) -> None:
        self._draft = Predict("q -> draft", tools=[Tool(len, "size", "Size.")])
        self._more = {"x": [Predict("q -> more")]}
        self.answer = Predict("q, draft -> answer")

    def forward(self, q: str) -> Prediction:
        return self.answer(q=q, draft=self._draft(q=q).draft)


class Outer(Module):
    """The same part under several names, the private one first."""

    def __init__(self) -> None:
        self._kept = Predict("q -> a")
        self.inner = Hidden()
        self.shown = self._kept
        self.also = self.inner._draft
        self.parts = [Predict("a -> b"), (Predict("c -> d"),)]


def names(program: Module) -> list[str]:
    return [name for name, _ in program.named_predictors()]


def test_parts_behind_a_leading_underscore_are_listed_behind_the_others() -> None:
    """As DSPy does; they were not saved, and not given the model."""
    assert names(Hidden()) == ["answer", "_draft", "_more['x'][0]"]
    assert [name for name, _ in Hidden().named_sub_modules()] == [
        "self",
        "answer",
        "_draft",
        "_more['x'][0]",
    ]


def test_what_has_a_public_name_keeps_it() -> None:
    """Saved states hold on to the names."""
    public = ["inner.answer", "shown", "also", "parts[0]", "parts[1][0]"]
    assert names(Outer()) == [*public, "inner._more['x'][0]"]


def test_set_lm_reaches_private_parts() -> None:
    """Issue 2: `set_lm`."""
    program, model = Hidden(), ScriptedLM([])
    program.set_lm(model)
    assert program._draft.lm is program._more["x"][0].lm is program.get_lm() is model


def test_a_copy_shares_the_tools_of_private_parts() -> None:
    program = Hidden()
    other = program.deepcopy()
    assert other._draft is not program._draft
    assert other._draft.tools["size"] is program._draft.tools["size"]


def test_back_references_and_caches_that_hold_themselves_end_the_walk() -> None:
    """What is behind an underscore need not be a tree."""
    program = Hidden()
    cache: dict[Any, Any] = {"numbers": list(range(10_000))}
    cache["self"] = cache
    program._cache = cache
    program.answer._parent = program
    assert names(program) == ["answer", "_draft", "_more['x'][0]"]
