"""Programs to JSON and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_script import fields, native_step

from ferrule import (
    ChainOfThought,
    Image,
    InputField,
    Module,
    OutputField,
    Predict,
    ReAct,
    Signature,
    Tool,
    Toolbox,
    tool,
)
from ferrule.errors import ConfigurationError, ToolDefinitionError
from ferrule.testing import ScriptedLM


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@tool(name="add")
def other_add(a: int, b: int, c: int = 0) -> int:
    """Add up to three integers."""
    return a + b + c


def test_a_program_comes_back_as_it_was(tmp_path: Path) -> None:
    """Signature, demos, settings."""
    before = Predict(
        "question -> answer: int",
        demos=[{"question": "a", "answer": 1}],
        temperature=0.5,
    )
    before.signature = before.signature.with_instructions("Be brief.")
    before.save(tmp_path / "program.json")
    after = Predict("question -> answer: int")
    after.load(tmp_path / "program.json")
    assert (after.signature, after.demos, after.config) == (
        before.signature,
        before.demos,
        before.config,
    )
    lm = ScriptedLM([fields(answer=3)])
    assert after(question="q", lm=lm).answer == 3
    assert "Be brief." in lm.requests[0].messages[0].text


class Seen(Signature):
    """Say what is seen."""

    photo: Image = InputField()
    animal: str = OutputField()


def test_pictures_in_demos_are_pictures_again(tmp_path: Path) -> None:
    photo = Image.from_bytes(b"PNG", "image/png")
    first, again = Predict(Seen, demos=[{"photo": photo, "animal": "cat"}]), Predict(Seen)
    first.save(tmp_path / "program.json")
    again.load(tmp_path / "program.json")
    seen = []
    for program in (first, again):
        with ScriptedLM([fields(animal="dog")]) as lm:
            program(photo=photo, lm=lm)
            seen.append(lm.requests[0].messages)
    assert seen[0] == seen[1]
    assert photo in seen[1][1].content


def test_an_agents_tools_travel_as_data_and_are_bound_again_by_name(tmp_path: Path) -> None:
    """No function in the file; bound from the tools given, or from those the agent has."""
    path = tmp_path / "agent.json"
    ReAct("question -> answer: int", [add]).save(path)
    state = json.loads(path.read_text())
    assert [each["name"] for each in state["predictors"]["react"]["tools"]] == ["add"]
    assert "add" not in state["predictors"]["react"]["signature"]["instructions"]
    empty = ReAct("question -> answer: int", [])
    with pytest.raises(ToolDefinitionError, match="add"):
        empty.load(path)
    empty.load(path, tools=[add])
    lm = ScriptedLM(
        [native_step("a", "add", {"a": 1, "b": 2}), native_step("e", "finish", {"answer": 3})],
    )
    assert empty(question="q", lm=lm).trajectory["observation_0"] == "3"


def test_a_tool_that_changed_is_told(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    ReAct("question -> answer: int", [add]).save(path)
    with pytest.warns(UserWarning, match="tool `add` of `react` changed"):
        ReAct("question -> answer: int", [other_add]).load(path)


def test_a_loaded_signature_reaches_the_loop_and_finish(tmp_path: Path) -> None:
    """Instructions and descriptions of outputs."""
    path = tmp_path / "agent.json"
    before = ReAct("question -> answer: int", [])
    changed = before.signature.with_instructions("Think of ducks.").with_updated_fields(
        "answer",
        desc="how many ducks",
    )
    before.react.signature = changed
    before.save(path)
    after = ReAct("question -> answer: int", [])
    after.load(path)
    lm = ScriptedLM([native_step("e", "finish", {"answer": 3})])
    assert after(question="q", lm=lm).answer == 3
    assert "Think of ducks." in lm.requests[0].messages[0].text
    assert b"how many ducks" in lm.requests[0].tools.json
    assert after.signature.instructions == "Think of ducks."


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"ferrule": 99},
        {"ferrule": 1},
        {"ferrule": 1, "predictors": None},
        {"ferrule": 1, "predictors": {"other": {}}},
        {"ferrule": 1, "predictors": {"self": {}}},
        {"ferrule": 1, "predictors": {"self": None}},
        {"ferrule": 1, "predictors": {"self": {"signature": "x -> y"}}},
        [],
        None,
        "text",
    ],
    ids=range(11),
)
def test_what_is_no_state_of_this_program_is_refused_and_nothing_changes(
    state: Any,
    tmp_path: Path,
) -> None:
    """All or nothing."""
    program = Predict("question -> answer", tools=[Tool(add)])
    before = program.dump_state()
    with pytest.raises(ConfigurationError):
        program.load_state(state)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(state))
    with pytest.raises(ConfigurationError):
        program.load(path)
    assert program.dump_state() == before


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"<html>"], ids=range(4))
def test_a_file_that_is_no_saved_program_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"broken\.json is not a saved program"):
        Predict("question -> answer").load(path)


class Hidden(Module):
    """A program with a part behind a leading underscore."""

    def __init__(self) -> None:
        self._draft = Predict("q -> draft")
        self.answer = Predict("q, draft -> answer")


def test_parts_behind_a_leading_underscore_are_saved_too() -> None:
    """As DSPy does; they were left out without a word."""
    before, after = Hidden(), Hidden()
    before._draft.demos = [{"q": "a", "draft": "b"}]
    after.load_state(before.dump_state())
    assert after._draft.demos == [{"q": "a", "draft": "b"}]


def test_a_state_without_the_private_parts_is_refused() -> None:
    """A state names all predictors."""
    state = Hidden().dump_state()
    del state["predictors"]["_draft"]
    with pytest.raises(ConfigurationError, match=r"this program has \['_draft', 'answer'\]"):
        Hidden().load_state(state)


@pytest.mark.parametrize("name", ["api_key", "apikey", "key", "token", "headers"])
def test_a_key_among_the_settings_is_never_written(tmp_path: Path, name: str) -> None:
    """Refused where it is given, and where the file would be written."""
    for make in (Predict, ChainOfThought):
        with pytest.raises(ConfigurationError, match=f"`{name}` is not a setting") as caught:
            make("question -> answer", **{name: "sk-2"})
        assert "sk-2" not in str(caught.value)
    program = ReAct("question -> answer", [add])
    program.react.config[name] = "sk-2"
    with pytest.raises(ConfigurationError, match=f"`{name}` is not a setting"):
        program.save(tmp_path / "program.json")
    assert list(tmp_path.iterdir()) == []


def test_a_saved_search_is_asked_for_by_its_name():
    tools = [add, Tool(add, name="plus")]
    saved = ReAct("q -> a", Toolbox(tools, search="bm25", keep=["plus"])).dump_state()
    with pytest.raises(ToolDefinitionError) as caught:
        ReAct("q -> a", [add]).load_state(saved)
    assert 'Toolbox(tools, search="bm25")' in str(caught.value)
    assert "load(path, tools=[plus])" in str(caught.value)


def test_a_loaded_program_puts_tools_back_on_the_shelf_as_before():
    def agent() -> ReAct:
        return ReAct(
            "question -> answer",
            Toolbox(
                [add],
                shelf=[other_add.model_copy(update={"name": "other_add"})],
                keep_turns=3,
                concurrent=False,
            ),
        )

    loaded = agent()
    loaded.load_state(agent().dump_state())
    assert loaded.react.toolbox == agent().react.toolbox


def test_tools_of_a_server_that_is_missing_are_asked_for_by_the_server():
    remote = Tool("echo", "Echo.", None, {"type": "object"}, "kit")
    saved = ReAct("q -> a", [remote]).dump_state()
    with pytest.raises(
        ToolDefinitionError,
        match="The tools echo are of the MCP server `kit`: make the program with this server",
    ):
        ReAct("q -> a", [add]).load_state(saved)


def test_a_state_of_another_version_is_refused() -> None:
    program = Predict("question -> answer")
    with pytest.raises(
        ConfigurationError,
        match="This state has version 9; this ferrule reads version 1",
    ):
        program.load_state({**program.dump_state(), "ferrule": 9})


def test_half_a_surrogate_pair_in_a_demo_is_saved_and_comes_back(tmp_path: Path) -> None:
    """`save` raised after it had emptied the file, and the program that was saved before was lost."""
    path, demos = tmp_path / "program.json", [{"question": "\ud83d", "answer": "ä"}]
    Predict("question -> answer", demos=demos).save(path)
    again = Predict("question -> answer")
    again.load(path)
    assert again.demos == demos
    assert "ä" in path.read_text(encoding="utf-8")
