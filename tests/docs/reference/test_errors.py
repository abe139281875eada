"""The claims of docs/reference/errors.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ferrule

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
ROWS = {
    name: (parents, code)
    for name, parents, code in re.findall(
        r"^\| `(\w+)`(?: \(([^)]*)\))? \| `(\w+)` \|",
        PAGE,
        re.MULTILINE,
    )
}
ERRORS = {
    name: each
    for name in ferrule.errors.__all__
    if isinstance(each := getattr(ferrule.errors, name), type)
    and issubclass(each, ferrule.FerruleError)
}


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/reference/errors.md")


def test_every_link_of_the_page_leads_somewhere(links) -> None:
    assert links("docs/reference/errors.md") == []


def test_the_page_lists_every_public_error_once_with_its_code() -> None:
    assert {name: code for name, (_, code) in ROWS.items()} == {
        name: each.code for name, each in ERRORS.items()
    }
    assert [
        name for name in ERRORS if len(re.findall(rf"^\| `{name}`", PAGE, re.MULTILINE)) != 1
    ] == []


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_the_page_names_the_built_in_classes_of_an_error_and_its_nearer_bases(name: str) -> None:
    groups = {"FerruleError", "ToolError", "BoundaryError", "LMError", "MCPError", "RunError"}
    kind = ERRORS[name]
    named = set(re.findall(r"`(\w+)`", ROWS[name][0]))
    built_in = {each.__name__ for each in kind.__bases__ if each.__module__ == "builtins"} - {
        "Exception",
    }
    nearer = {each.__name__ for each in kind.__bases__} & ERRORS.keys() - groups
    assert built_in | nearer <= named <= {each.__name__ for each in kind.__mro__}


def test_the_errors_that_the_page_calls_retryable_are() -> None:
    assert {name for name, each in ERRORS.items() if each.is_retryable is True} == {
        "UnavailableError",
        "RateLimitError",
    }
    assert "for `UnavailableError` and `RateLimitError`" in PAGE


def test_a_class_that_the_page_calls_never_raised_is_raised_nowhere() -> None:
    source = "\n".join(
        path.read_text(encoding="utf-8") for path in (Path(ferrule.__file__).parent).rglob("*.py")
    )
    bases = re.findall(r"^\| `(\w+)`.*never directly", PAGE, re.MULTILINE)
    assert {name: re.findall(rf"raise {name}\(", source) for name in bases} == {
        name: [] for name in bases
    }


class Raising(ferrule.Module):
    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.signature = ferrule.Signature("question -> answer")

    def forward(self, question: str) -> None:
        del question
        raise self.error


ENDS = [
    ferrule.ToolStop("x"),
    ferrule.errors.ConfigurationError("x"),
    ferrule.errors.MissingKeyError("x"),
    KeyboardInterrupt(),
    SystemExit(),
]
OF_THE_RUN = [
    ferrule.errors.StoreError("x"),
    ferrule.errors.ReplayMismatchError("x", "y", "z"),
    ferrule.errors.RunCancelledError("x"),
    ferrule.errors.LimitReachedError("cost", 1),
]
RESULTS = [
    ValueError("x"),
    AssertionError("x"),
    ferrule.errors.UnavailableError("x"),
    ferrule.InputError("x"),
]


@pytest.mark.parametrize(
    "error",
    [*ENDS, *OF_THE_RUN, *RESULTS],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("nested", [False, True], ids=["a function", "a nested agent"])
def test_an_error_of_a_tool_ends_the_run_or_is_a_result_as_the_page_says(
    error: BaseException,
    nested: bool,
) -> None:
    def helper(question: str) -> None:
        """Help."""
        raise error

    tool = Raising(error).as_tool("helper", "Help.") if nested else helper
    lm = ferrule.testing.ScriptedLM(
        [
            {"name": "helper", "args": {"question": "?"}},
            {"name": "finish", "args": {"answer": "done"}},
        ],
    )
    agent = ferrule.ReAct("question -> answer", [tool])
    if error in ENDS or (nested and error in OF_THE_RUN):
        with pytest.raises(type(error)):
            agent(question="?", lm=lm)
    else:
        assert agent(question="?", lm=lm).trajectory.steps[0].results[0].is_error
