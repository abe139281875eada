"""The traceback of an error that a caller made shows the caller's lines alone."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import ferrule
from ferrule import InputError, Module, Predict, ReAct, Tool, ToolStop
from ferrule.programs.predict import Predict as PredictClass
from ferrule.testing import ScriptedLM


def frames(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def is_positive(number: int) -> bool:
    """Check a number."""
    raise ToolStop(f"no: {number}")


class Broken(Module):
    def __init__(self, inner=None) -> None:
        self.inner = inner

    def forward(self, text: str):
        return self.inner(text=text) if self.inner else json.loads(text)


class BrokenAsync(Module):
    async def aforward(self, text: str):
        await asyncio.sleep(0)
        return json.loads(text)


def test_wrong_inputs_show_the_line_of_the_call():
    with pytest.raises(InputError) as caught:
        Predict("question -> answer")(queston="?")
    assert frames(caught.value) == ["test_wrong_inputs_show_the_line_of_the_call"]
    with pytest.raises(TypeError) as wrong:
        Broken()(words="?")
    assert frames(wrong.value) == ["test_wrong_inputs_show_the_line_of_the_call"]


def test_an_error_of_a_forward_shows_the_call_and_the_forward_and_what_it_called():
    with pytest.raises(ValueError, match="Expecting") as caught:
        Broken(Broken())(text="{")
    assert frames(caught.value) == [
        "test_an_error_of_a_forward_shows_the_call_and_the_forward_and_what_it_called", "forward", "forward", "loads", "decode",
        "raw_decode",
    ]  # fmt: skip


def test_an_async_program_shows_the_same():
    async def main():
        return await BrokenAsync().acall(text="{")

    with pytest.raises(ValueError, match="Expecting") as caught:
        asyncio.run(main())
    assert frames(caught.value)[-5:] == ["main", "aforward", "loads", "decode", "raw_decode"]
    with pytest.raises(ValueError, match="Expecting") as again:
        BrokenAsync()(text="{")
    assert frames(again.value)[:2] == ["test_an_async_program_shows_the_same", "aforward"]


def test_an_error_that_a_tool_raises_through_shows_the_tools_line():
    agent = ReAct("question -> answer", [is_positive])
    call = [{"name": "is_positive", "args": {"number": 7}}]
    with ferrule.context(lm=ScriptedLM(call)), pytest.raises(ToolStop) as caught:
        agent(question="?")
    assert frames(caught.value) == [
        "test_an_error_that_a_tool_raises_through_shows_the_tools_line",
        "is_positive",
    ]
    with ferrule.context(lm=ScriptedLM(call)), pytest.raises(ToolStop) as caught:
        list(agent.stream(question="?"))
    assert frames(caught.value) == [
        "test_an_error_that_a_tool_raises_through_shows_the_tools_line",
        "is_positive",
    ]
    with ferrule.context(lm=ScriptedLM(call)), pytest.raises(ToolStop) as caught:
        agent.batch([{"question": "?"}])
    assert frames(caught.value) == [
        "test_an_error_that_a_tool_raises_through_shows_the_tools_line",
        "is_positive",
    ]


def test_a_tool_called_directly_shows_the_caller_and_the_function():
    with pytest.raises(ToolStop) as caught:
        Tool(is_positive)(number=7)
    assert frames(caught.value) == [
        "test_a_tool_called_directly_shows_the_caller_and_the_function",
        "is_positive",
    ]
    with pytest.raises(ferrule.errors.ToolArgumentsError) as wrong:
        Tool(is_positive)(number="many")
    assert frames(wrong.value) == ["test_a_tool_called_directly_shows_the_caller_and_the_function"]


def test_causes_are_trimmed_too():
    class Wrapping(Module):
        def forward(self, text: str):
            try:
                return Broken()(text=text)
            except ValueError as error:
                raise LookupError("wrapped") from error

    with pytest.raises(LookupError) as caught:
        Wrapping()(text="{")
    cause = caught.value.__cause__
    assert cause is not None
    assert frames(cause)[:2] == ["forward", "forward"]


def test_a_fault_of_ferrule_itself_keeps_its_frames(monkeypatch):
    def fails(self, **inputs):
        raise KeyError("a bug")
        yield

    code = compile(
        "def fails(self, **inputs):\n    raise KeyError('a bug')\n    yield\n",
        ferrule.programs.predict.__file__,
        "exec",
    )
    names: dict = {}
    exec(code, names)
    monkeypatch.setattr(PredictClass, "flow", names["fails"])
    with pytest.raises(KeyError) as caught:
        Predict("question -> answer")(question="?")
    assert "drive" in frames(caught.value)


def test_the_whole_traceback_is_kept_where_the_environment_says_so(monkeypatch):
    monkeypatch.setenv("FERRULE_FULL_TRACEBACK", "1")
    with pytest.raises(InputError) as caught:
        Predict("question -> answer")(queston="?")
    assert "_perform_program" in frames(caught.value)


def test_a_run_that_failed_keeps_the_whole_traceback_for_a_debugger():
    with ferrule.context(lm=ScriptedLM([])):
        run = Broken().start(text="{")
    with pytest.raises(ValueError, match="Expecting"):
        _ = run.prediction
    assert "_perform_program" in [frame.name for frame in traceback.extract_tb(run.trace)]


def test_a_package_that_is_reached_by_a_link_shows_the_same(tmp_path):
    """As below `/tmp` of macOS, which is a link; code names its file with the link."""
    link = tmp_path / "link"
    try:
        link.symlink_to(Path(ferrule.__file__).parents[1], target_is_directory=True)
    except OSError:
        pytest.skip("links are not allowed here")
    program = "import traceback\nimport ferrule\ntry:\n    ferrule.Predict('a -> b')(c=1)\nexcept ferrule.InputError as error:\n    "
    program += (
        "print(ferrule.__file__)\n    print(len(traceback.extract_tb(error.__traceback__)))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(link)},
        capture_output=True,
        text=True,
        check=True,
    )
    file, frames_shown = found.stdout.splitlines()
    assert (file.startswith(str(link)), frames_shown) == (True, "1")


def test_a_run_that_cannot_be_stored_shows_the_line_of_the_call():
    """The tutorial's second start of a ticket, say."""
    store = ferrule.MemoryStore()
    Broken().submit(store=store, run_id="r", text="{")
    with pytest.raises(ferrule.errors.StoreError, match="already") as caught:
        Broken().start(store=store, run_id="r", text="{")
    assert frames(caught.value) == ["test_a_run_that_cannot_be_stored_shows_the_line_of_the_call"]
    with pytest.raises(ferrule.errors.StoreError, match="already") as submitted:
        Broken().submit(store=store, run_id="r", text="{")
    assert frames(submitted.value) == [
        "test_a_run_that_cannot_be_stored_shows_the_line_of_the_call",
    ]
