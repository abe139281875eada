"""`Context`, by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_calls import json_values

from ferrule.errors import ConfigurationError
from ferrule.values.calls.context import Context, key_of


def test_one_made_by_hand_serves_a_test_of_a_tool() -> None:
    context = Context(deps={"user": "ann"})
    context.progress("half", done=1, total=2)
    assert (context.deps, context.run_id, context.call_id, context.key, context.cancelled) == (
        {"user": "ann"},
        "",
        "",
        "",
        False,
    )
    with pytest.raises(ConfigurationError, match="transactional"):
        _ = context.db


def test_deps_that_were_not_passed_say_what_to_pass() -> None:
    """api.md, 21: an error where a tool reads them, instead of a None that it goes on with."""
    context = Context()
    assert not context.has_deps
    with pytest.raises(
        ConfigurationError,
        match=r"deps=\.\.\..*--deps module:factory.*Context\(deps=\.\.\.\)",
    ):
        _ = context.deps
    context.without_deps()
    assert context.deps is None


def test_does_not_show_its_deps() -> None:
    """api.md, 9: secrets come by `deps`."""
    assert "hunter2" not in repr(Context(deps="hunter2", run_id="r"))


def test_is_cancelled_when_its_call_is_over() -> None:
    stopped: list[bool] = []
    context = Context(stopped=lambda: bool(stopped))
    assert not context.cancelled
    stopped.append(True)
    assert context.cancelled
    other = Context()
    other.end()
    assert other.cancelled


@given(st.dictionaries(st.text(), json_values))
def test_a_key_does_not_depend_on_the_order_of_arguments(arguments: dict[str, object]) -> None:
    assert key_of("r", "3.0", "t", arguments) == key_of(
        "r",
        "3.0",
        "t",
        dict(reversed(arguments.items())),
    )


def test_a_key_differs_by_run_position_tool_and_arguments() -> None:
    keys = {
        key_of("r", "3.0", "t", {"a": 1}),
        key_of("s", "3.0", "t", {"a": 1}),
        key_of("r", "3.1", "t", {"a": 1}),
        key_of("r", "3.0", "u", {"a": 1}),
        key_of("r", "3.0", "t", {"a": 2}),
    }
    assert len(keys) == 5
    assert {len(key) for key in keys} == {64}


def test_a_key_is_the_same_in_another_process() -> None:
    """No salted hash goes into it."""
    code = "from ferrule.values.calls.context import key_of; print(key_of('r', '3.0', 't', {'a': {'c', }.pop(), 'b': [1]}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == key_of("r", "3.0", "t", {"b": [1], "a": "c"})
