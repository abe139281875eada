"""What a run leaves behind."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.encoding.encode import json_text
from ferrule.values.calls.call import ToolCall, ToolResult
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.content.parts import Image, Text
from ferrule.values.conversation.exchange import Usage
from ferrule.values.conversation.message import Message, Messages
from ferrule.values.log import Log
from ferrule.values.outcome import Prediction, Step, Trajectory

ONE = Step(
    "think",
    (ToolCall(name="add", args={"a": 1}, id="c1"),),
    (ToolResult("add", "2", "c1", value=object()),),
)
TWO = Step(
    "both",
    (ToolCall(name="add", args={"a": 1}), ToolCall(name="sub")),
    (
        ToolResult("add", "2"),
        ToolResult(
            "sub",
            (Text(text="see"), Image(url="https://x/y")),
            is_error=True,
            error=KeyError("x"),
        ),
    ),
)
NONE = Step("no idea")

AGAIN = pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))],
    ids=["copy", "deepcopy", "pickle"],
)


# -- trajectories


def test_a_trajectory_reads_as_seed_000s_mapping():
    """U131, api.md 5: `thought_0`, `tool_name_0`, `tool_args_0`, `observation_0`; a turn of several
    calls has lists.
    """
    assert dict(Trajectory([ONE, TWO, NONE])) == {
        "thought_0": "think",
        "tool_name_0": "add",
        "tool_args_0": {"a": 1},
        "observation_0": "2",
        "thought_1": "both",
        "tool_name_1": ["add", "sub"],
        "tool_args_1": [{"a": 1}, {}],
        "observation_1": ["2", "see\n[Image(https://x/y, image/png)]"],
        "thought_2": "no idea",
        "tool_name_2": None,
        "tool_args_2": {},
        "observation_2": None,
    }


def test_a_trajectory_is_json():
    """JSON-serialisable."""
    trajectory = Trajectory([ONE, TWO, NONE])
    assert (
        json.loads(json.dumps(dict(trajectory)))
        == dict(trajectory)
        == json.loads(json_text(trajectory))
    )


NO_KEYS = ["", "thought", "thought_", "thought_1", "thought_-1", "thought_00", "thought_0 ", "thought_٠", "thought_²", "other_0", "_0", "tool_0",
           "thought_" + "9" * 5000, "thought_0_0", "Thought_0", 0, None, ("thought", 0), b"thought_0"]  # fmt: skip


@pytest.mark.parametrize("key", NO_KEYS, ids=range(len(NO_KEYS)))
def test_what_is_no_key_of_a_trajectory_is_not_in_it(key):
    """A mapping's `in`, `get` and `[]` agree with its keys, for any question."""
    trajectory = Trajectory([ONE])
    assert key not in trajectory
    assert trajectory.get(key, "none") == "none"
    with pytest.raises(KeyError):
        trajectory[key]


@given(st.lists(st.sampled_from([ONE, TWO, NONE]), max_size=12))
def test_a_trajectory_has_four_keys_a_step_and_all_are_in_it(steps):
    trajectory = Trajectory(steps)
    assert len(trajectory) == len(list(trajectory)) == 4 * len(steps)
    assert all(key in trajectory for key in trajectory)
    assert list(trajectory.steps) == steps
    assert bool(trajectory) == bool(steps)


def test_a_trajectory_grows_by_a_view():
    first = Trajectory([ONE])
    longer = first.then(TWO)
    assert (len(first.steps), len(longer.steps)) == (1, 2)
    assert longer.steps._items is first.steps._items
    assert Trajectory(longer.steps) == longer
    assert isinstance(Trajectory([ONE]).steps, Log)


def test_trajectories_are_compared_by_what_was_seen():
    """Call ids differ between protocols."""
    other = Step(
        "think",
        (ToolCall(name="add", args={"a": 1}, id="other"),),
        (ToolResult("add", "2", "other"),),
    )
    assert Trajectory([ONE]) == Trajectory([other]) == dict(Trajectory([ONE]))
    assert Trajectory([ONE]) != Trajectory([TWO])
    assert Trajectory() == {}
    assert repr(Trajectory()) == "<Trajectory of 0 steps>"


@AGAIN
def test_a_trajectory_is_copied_and_pickled_whatever_its_tools_returned(again):
    """The values that tools returned need not be copied, and may not even be able to."""
    unpicklable = Step(
        "",
        (ToolCall(name="f"),),
        (ToolResult("f", "text", value=(each for each in "ab"), error=ZeroDivisionError()),),
    )
    trajectory = Trajectory([ONE, unpicklable])
    twin = again(trajectory)
    assert twin == trajectory
    assert list(twin.steps) == list(trajectory.steps)
    longer = twin.then(TWO)
    assert (len(longer.steps), len(twin.steps), len(trajectory.steps)) == (3, 2, 2)


# -- predictions

MESSAGES = Messages([Message("system", "s"), Message("user", "hi"), Message("assistant", "42")])


def full() -> Prediction:
    calls = [ToolCall(name="add", args={"a": [1]}, id="c1")]
    made = Prediction.of(
        {"answer": [42], "why": {"a": 1}},
        trajectory=Trajectory([ONE]),
        messages=MESSAGES,
        reason="max_iters",
        calls=calls,
    )
    made.counted(Usage(1, 2, 3, 4))
    return made


def test_outputs_are_read_as_attributes_and_as_items():
    prediction = Prediction(answer=42, why=None)
    assert (prediction.answer, prediction["answer"], prediction.why, prediction["why"]) == (
        42,
        42,
        None,
        None,
    )
    assert dict(prediction) == {**prediction} == prediction.toDict() == {"answer": 42, "why": None}
    assert len(prediction) == 2
    assert "answer" in prediction
    assert prediction.get("other") is None


def test_its_keys_are_its_outputs_alone_and_it_is_json():
    """JSON-serialisable, and only output fields as keys."""
    prediction = full()
    assert list(prediction) == ["answer", "why"]
    assert json.loads(json.dumps(dict(prediction))) == {"answer": [42], "why": {"a": 1}}
    assert (
        json.loads(prediction.to_json())
        == json.loads(json_text(prediction))
        == {"answer": [42], "why": {"a": 1}}
    )


def test_what_stands_beside_the_outputs():
    """Usage totals; U131: the trajectory."""
    prediction = full()
    assert prediction.trajectory == Trajectory([ONE])
    assert prediction.usage == prediction.get_lm_usage() == Usage(1, 2, 3, 4)
    assert prediction.messages is MESSAGES
    assert prediction.reason == "max_iters"
    assert prediction.tool_calls == ToolCalls(
        tool_calls=[ToolCall(name="add", args={"a": [1]}, id="c1")],
    )
    bare = Prediction(answer=1)
    assert (bare.trajectory, bare.usage, bare.messages, bare.reason) == (
        Trajectory(),
        Usage(),
        None,
        None,
    )
    assert not bare.tool_calls


TAKEN = ["trajectory", "usage", "messages", "reason", "tool_calls", "history", "items", "keys", "values", "get", "of", "counted", "toDict", "to_json", "self",
         "cls", "outputs", "get_lm_usage", "calls", "_outputs", "__class__", "__dict__"]  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_an_output_may_have_any_name(name):
    """What is named like something beside the outputs goes first as an attribute; what is named
    like a method is reached as an item.
    """
    for prediction in (
        Prediction(**{name: "mine", "answer": 42}),
        Prediction.of({name: "mine", "answer": 42}, reason="limit", trajectory=Trajectory([ONE])),
    ):
        assert prediction[name] == "mine"
        assert dict(prediction) == {**prediction} == {name: "mine", "answer": 42}
        assert (list(prediction), prediction.answer) == ([name, "answer"], 42)
        assert prediction == Prediction.of(
            {name: "mine", "answer": 42},
            trajectory=prediction._trajectory,
        )
        assert json.loads(prediction.to_json()) == {name: "mine", "answer": 42}
        assert pickle.loads(pickle.dumps(prediction)) == copy.deepcopy(prediction) == prediction
        if not name.startswith("_") and not hasattr(Prediction, name):
            assert getattr(prediction, name) == "mine"


def test_an_output_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(
        AttributeError,
        match="`anser` is not an output of this prediction; its outputs are: answer, why",
    ):
        _ = full().anser
    with pytest.raises(AttributeError, match="its outputs are: none"):
        _ = Prediction().answer
    assert not hasattr(full(), "_private")
    with pytest.raises(KeyError):
        full()["anser"]


def test_a_prediction_does_not_follow_a_dict_it_was_made_of():
    outputs = {"answer": 1}
    prediction = Prediction.of(outputs)
    outputs["answer"] = 2
    prediction.toDict()["answer"] = 3
    assert prediction.answer == 1


def test_predictions_are_compared_by_outputs_and_trajectory():
    assert Prediction(a=1) == Prediction(a=1) != Prediction(a=2)
    assert Prediction.of({"a": 1}, trajectory=Trajectory([ONE])) != Prediction(a=1)
    assert Prediction(a=1) != {"a": 1}
    assert repr(full()) == "Prediction(answer=[42], why={'a': 1})"


@AGAIN
def test_a_prediction_is_copied_and_pickled_with_all_that_stands_beside(again):
    """A queue, a cache, a process pool."""
    prediction = full()
    twin = again(prediction)
    assert twin == prediction
    assert (twin.usage, twin.reason, twin.messages, twin.tool_calls) == (
        prediction.usage,
        prediction.reason,
        MESSAGES,
        prediction.tool_calls,
    )
    assert twin.messages.digest == MESSAGES.digest
    assert again(Prediction()) == Prediction()


def test_a_deep_copy_is_independent():
    prediction = full()
    twin = copy.deepcopy(prediction)
    twin["answer"].append(43)
    assert prediction.answer == [42]


def test_the_history_is_one_object_that_results_may_be_added_to():
    made = Prediction.of({"answer": 1}, messages=Messages([Message("user", "q")]))
    made.history.add_message("user", "more")
    assert [each.text for each in made.history.messages] == ["q", "more"]


def test_a_mapping_says_which_steps_are_kept():
    """DSPy's way to shorten a trajectory; other entries stand in the place of steps, and calls stay
    what they were.
    """
    steps = [
        Step(
            f"thought {i}",
            (ToolCall(name="read", args={"n": i}, id=f"c{i}"),),
            (ToolResult("read", f"page {i}", f"c{i}"),),
        )
        for i in range(3)
    ]
    whole = Trajectory(steps)
    assert whole.kept_by(whole) is whole
    assert list(whole.kept_by(dict([*whole.items()][4:])).steps) == steps[1:]
    kept = whole.kept_by(
        {
            "summary": "two pages",
            "thought_2": "short",
            "observation_2": "p",
            "thought_7": 7,
            "tool_args_1": {},
        },
    )
    assert [step.results[0].content for step in kept.steps] == ["two pages", "p", "7", "page 1"]
    assert [step.thought for step in kept.steps] == ["", "short", "", "thought 1"]
    assert [step.calls for step in kept.steps] == [(), steps[2].calls, (), steps[1].calls]
