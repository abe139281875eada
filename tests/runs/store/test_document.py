"""A run on paper: the same again in any process, and refused where the program is another one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from threading import Lock
from typing import Annotated, Any

import pytest
from agent_script import native_step
from pydantic import AfterValidator, BaseModel, Field, PrivateAttr, SecretStr

import ferrule
from ferrule.errors import InputError, ReplayMismatchError, RunError, StoreError
from ferrule.programs.module import Module
from ferrule.programs.predict import Predict
from ferrule.programs.react import ReAct
from ferrule.runs.limits import Limits
from ferrule.runs.run import Run
from ferrule.runs.store.sqlite.store import MemoryStore
from ferrule.testing.scripted import ScriptedLM
from ferrule.tools.tool import Tool
from ferrule.values.calls.call import ToolCall
from ferrule.values.content.parts import Image
from ferrule.values.conversation.history import History
from ferrule.values.outcome import Prediction
from ferrule.values.signatures.signature import InputField, OutputField, Signature


class Trip(BaseModel):
    to: str
    at: datetime


class Plan(Signature):
    """Plan it."""

    trip: Trip = InputField()
    days: list[datetime] = InputField()
    photo: Image = InputField()
    key: SecretStr = InputField()
    history: History = InputField()
    answer: str = OutputField()


class Plain(Module):
    """A program without a signature."""

    def __init__(self, program: Any) -> None:
        self.inner = program

    def forward(self, task: str, trip: Trip | None = None, **more: Any) -> Any:
        return self.inner(task=f"{task} {trip.to if trip else more}")


@ferrule.tool(require_confirmation=True)
def book(room: int) -> str:
    """Book a room."""
    return f"booked {room}"


def agent() -> ReAct:
    return ReAct("task -> answer", [book])


ASKING = [{"name": "book", "args": {"room": 7}}, {"name": "finish", "args": {"answer": "yes"}}]
TRIP = Trip(to="Rome", at=datetime(2026, 11, 1, tzinfo=UTC))


def answers(*script: Any) -> Any:
    return ferrule.context(lm=ScriptedLM(list(script)))


def waiting() -> Run:
    with answers(ASKING[0]):
        return agent().start(task="a room")


def test_the_round_trip_is_the_identity() -> None:
    """And there is no pickle in it, only JSON with a version."""
    run = waiting()
    text = run.to_json()
    again = Run.from_json(text, agent())
    assert json.loads(text)["ferrule_run"] == 1
    assert again.to_json() == text
    assert (again.id, again.status, again.pending, again.inputs, again.journal) == (
        run.id,
        "waiting",
        run.pending,
        run.inputs,
        run.journal,
    )


def test_a_run_goes_on_from_its_document_with_the_same_question_ids() -> None:
    """The model is not asked again for the approved call, and the inputs are not given again."""
    run = waiting()
    again = Run.from_json(run.to_json(), agent())
    again.answer(run.pending[0].approve())
    with answers(ASKING[1]):
        again.resume()
    assert again.prediction.answer == "yes"
    assert again.trajectory["observation_0"] == "booked 7"


def test_a_run_with_pictures_in_its_history_goes_on_from_its_document() -> None:
    """The conversation is what it was, to the byte."""
    photo = Image(url="https://example.org/cat.png")

    def looking() -> ReAct:
        pay = Tool(lambda: "paid", "pay", require_confirmation=True)
        fields_ = {
            "history": (History, InputField()),
            "photo": (Image, InputField()),
            "answer": (str, OutputField()),
        }
        return ReAct(Signature(fields_, "Look."), [pay], native=True)

    with answers(native_step("p", "pay", {})):
        run = looking().start(history=History([{"photo": photo, "answer": "a cat"}]), photo=photo)
    again = Run.from_json(run.to_json(), looking())
    again.answer(again.pending[0].approve())
    with answers(native_step("f", "finish", {"answer": "the same"})):
        again.resume()
    assert again.prediction.answer == "the same"


class Framed(BaseModel):
    title: str
    picture: Image


def test_a_model_with_a_picture_is_an_input_that_comes_back() -> None:
    framed = Framed(title="t", picture=Image(url="https://example.org/cat.png"))
    run = Run(
        Predict(
            Signature({"framed": (Framed, InputField()), "answer": (str, OutputField())}, "Look."),
        ),
        (),
        {"framed": framed},
    )
    assert Run.from_json(run.to_json(), run.program).inputs == {"framed": framed}


def test_a_decision_that_was_put_but_not_used_is_in_the_document() -> None:
    """Counters, answers and all."""
    run = waiting()
    run.answer(run.pending[0].deny("no"))
    again = Run.from_json(run.to_json(), agent())
    assert again.answers == run.answers
    assert again.decisions == run.decisions


def test_a_run_that_is_done_gives_its_prediction_again_and_asks_nobody() -> None:
    """Prediction and trajectory are made of the journal; no model is there to be asked."""
    run = waiting()
    run.answer(run.pending[0].approve())
    with answers(ASKING[1]):
        run.resume()
    again = Run.from_json(run.to_json(), agent())
    with answers():
        assert again.prediction == run.prediction
        assert again.trajectory == run.trajectory
        assert again.usage == run.usage
    assert again.status == "done"


def test_a_failed_run_says_why_in_its_document() -> None:
    """Status and error."""
    with answers(ValueError("lost")):
        run = agent().start(task="x")
    again = Run.from_json(run.to_json(), agent())
    assert again.status == "failed"
    with pytest.raises(RunError, match="lost"):
        _ = again.prediction


def other(name: str) -> ReAct:
    def changed(room: str) -> str:
        """Book a room."""
        return room

    tools = {"schema": [Tool(changed, name="book")], "gone": []}.get(name, [book])
    return ReAct("task -> answer: int" if name == "signature" else "task -> answer", tools)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("schema", "tool `book` of `react`"),
        ("gone", "tool `book` of `react`"),
        ("signature", "signature of `react`"),
    ],
)
def test_a_program_that_changed_loads_and_both_sides_are_known(change: str, said: str) -> None:
    """Never silently run; what differs goes into the journal."""
    run = waiting()
    again = Run.from_json(run.to_json(), other(change))
    [(_what, (then, now))] = [each for each in again.changed.items() if each[0].startswith(said)]
    assert then != now
    assert (now == "absent") is (change == "gone")
    assert (
        again.status
        == Run.from_json(run.to_json(), other(change), migrate=True).status
        == "waiting"
    )


def test_a_program_that_no_longer_takes_an_input_of_the_run_is_refused() -> None:
    """Most likely it is another program; `migrate=True` tries."""
    text = waiting().to_json()
    with pytest.raises(
        ReplayMismatchError,
        match=r"\(task -> answer\) .*\(question -> answer\) .*no input `task`.*migrate=True",
    ):
        Run.from_json(text, ReAct("question -> answer", [book]))
    assert (
        Run.from_json(text, ReAct("question -> answer", [book]), migrate=True).status == "waiting"
    )


def test_a_forward_that_no_longer_takes_an_input_of_the_run_is_refused() -> None:
    """When it is loaded, not by a `TypeError` that fails the run."""

    class Before(Module):
        def forward(self, task: str) -> str:
            return task

    class After(Module):
        def forward(self, question: str) -> str:
            return question

    After.__qualname__ = Before.__qualname__
    text = Before().start(task="x").to_json()
    with pytest.raises(
        ReplayMismatchError,
        match=r"inputs \['task'\].*After.forward\(question: .*`migrate=True`",
    ):
        Run.from_json(text, After())
    assert Run.from_json(text, After(), migrate=True).status == "done"


def test_an_unknown_word_for_migrate_is_refused() -> None:
    with pytest.raises(InputError, match="`migrate` is True or False; found 'yes'"):
        Run.from_json(waiting().to_json(), agent(), migrate="yes")  # type: ignore[arg-type]


def test_another_class_of_program_is_refused() -> None:
    with pytest.raises(ReplayMismatchError, match=r"program ReAct.*program Plain"):
        Run.from_json(waiting().to_json(), Plain(agent()))


class Inside(Module):
    """A program whose agent stands behind a leading underscore."""

    def __init__(self, program: Any) -> None:
        self._inner = program

    def forward(self, task: str) -> Any:
        return self._inner(task=task)


def test_a_change_behind_a_leading_underscore_is_seen() -> None:
    lm = ScriptedLM(ASKING)
    with ferrule.context(lm=lm):
        text = Inside(agent()).start(task="t").to_json()
    assert Run.from_json(text, Inside(agent())).changed == {}
    assert list(Run.from_json(text, Inside(other("schema"))).changed) == [
        "tool `book` of `_inner.react`",
    ]


class Album(Signature):
    """Sort it."""

    photos: list[Image] | None = InputField()
    history: History = InputField()
    trip: Trip = InputField()
    checked: list[Annotated[int, AfterValidator(abs)]] = InputField()
    answer: str = OutputField()


@pytest.mark.parametrize("text", ['{"ferrule_run":2}', "{}"])
def test_a_document_of_another_version_is_refused(text: str) -> None:
    """Versioned."""
    with pytest.raises(StoreError, match="this ferrule reads version 1"):
        Run.from_json(text, agent())


def test_typed_inputs_media_and_history_come_back_as_they_were() -> None:
    """Inputs are read back through the signature's own checks."""
    history = History([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}])
    given = {
        "trip": TRIP,
        "days": [TRIP.at],
        "photo": Image(data="QQ=="),
        "key": SecretStr("s3cr3t"),
        "history": history,
    }
    program = Predict(Plan)
    with answers("[[ ## answer ## ]]\ngo\n[[ ## completed ## ]]"):
        run = program.start(**given)
    text = run.to_json()
    again = Run.from_json(text, program)
    assert {name: again.inputs[name] for name in ("trip", "days", "photo")} == {
        name: given[name] for name in ("trip", "days", "photo")
    }
    assert again.inputs["history"].messages == history.messages
    assert "s3cr3t" not in text  # R17
    assert again.inputs["key"] == SecretStr("**********")
    with answers():
        assert again.prediction.answer == "go"


def test_a_program_in_plain_python_declares_its_inputs_by_annotations() -> None:
    """Positional and named."""
    with answers(ASKING[0]):
        run = Plain(agent()).bind("a room", trip=TRIP).start()
    again = Run.from_json(run.to_json(), Plain(agent()))
    assert (again.args, again.inputs) == (("a room",), {"trip": TRIP})
    again.answer(again.pending[0].approve())
    with answers(ASKING[1]):
        assert again.resume().prediction.answer == "yes"


class Booking(BaseModel, strict=True):
    """Its types are read from JSON only."""

    day: date
    seats: tuple[int, str]


def test_a_strict_model_comes_back_as_the_signature_or_the_annotation_declares_it() -> None:
    booking = Booking(day=date(2024, 2, 29), seats=(1, "a"))
    assert _kept_as(list[Booking], [booking]) is None
    asked = Predict(Signature({"booking": (Booking, InputField()), "answer": (str, OutputField())}))
    run = Run(asked, (), {"booking": booking})
    assert Run.from_json(run.to_json(), asked).inputs == {"booking": booking}


def test_a_key_in_the_settings_of_a_call_is_not_kept() -> None:
    """A run that is kept begins with what it was given; an input that is called `config` is the
    program's own.
    """
    store = ferrule.MemoryStore()
    with pytest.raises(
        ferrule.errors.ConfigurationError, match="`api_key` is not a setting of a request"
    ):
        Predict("q -> a").start(q="hi", lm=ScriptedLM([]), config={"api_key": "sk-2"}, store=store)
    assert store.list() == []
    run = Predict("config: dict -> a").start(config={"api_key": "sk-2"}, store=store)
    assert run.to_json()


def test_an_input_that_json_cannot_hold_is_refused_by_name() -> None:
    """When the run is written, not when somebody needs it."""
    with answers(ASKING[0]):
        run = Plain(agent()).start(task="x", thing=object())
    with pytest.raises(RunError, match="`thing` is <object"):
        run.to_json()


class Hidden(BaseModel):
    x: int
    hidden: str = Field("", exclude=True)
    _private: str = PrivateAttr("")


class Animal(BaseModel):
    name: str


class Dog(Animal):
    pass


class Token(BaseModel):
    key: SecretStr
    _lock: Any = PrivateAttr(default_factory=Lock)


@dataclass
class Half:
    x: float
    y: str = field(default="", init=False)


def _with(value: Any, **attributes: Any) -> Any:
    for name, each in attributes.items():
        setattr(value, name, each)
    return value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param(Hidden, Hidden(x=1, hidden="kept"), id="field that is not written"),
        pytest.param(list[Hidden], [_with(Hidden(x=1), _private="kept")], id="private attribute"),
        pytest.param(Half, _with(Half(1), y="kept"), id="field that is not read"),
        pytest.param(list[Animal], [Dog(name="rex")], id="subclass inside"),
        pytest.param(dict[str, Animal], {"rex": Dog(name="rex")}, id="subclass in a dict"),
        pytest.param(bytes, b"\xff\x00", id="bytes that are no text"),
        pytest.param(int, 10**5000, id="more digits than are read"),
        pytest.param(list[int], [10**5000], id="more digits than are read, inside"),
        pytest.param(str, "\ud83d\ude00", id="halves of a character"),
        pytest.param(list, [(1, 2)], id="tuple in a list"),
    ],
)
def test_an_input_that_would_come_back_otherwise_is_refused(kind: Any, value: Any) -> None:
    """Whatever of it JSON does not hold, or its type does not read."""
    assert "represent and restore" in str(_kept_as(kind, value))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param(Hidden, Hidden(x=1), id="model"),
        pytest.param(Half, Half(float("nan")), id="NaN inside"),
        pytest.param(float, float("nan"), id="NaN"),
        pytest.param(Token, Token(key=SecretStr("hush")), id="secret, and a lock"),
        pytest.param(tuple[int, str], (1, "a"), id="tuple"),
        pytest.param(set[int], {3, 1}, id="set"),
        pytest.param(ToolCall, ToolCall(name="book", args={"room": 7}), id="a call"),
        pytest.param(dict[int, Animal], {1: Animal(name="rex")}, id="numbers as keys"),
        pytest.param(datetime, TRIP.at, id="time"),
        pytest.param(int, 10**4000, id="many digits"),
        pytest.param(str, "\ud800x\xfc", id="half a character"),
        pytest.param(list[Image], [Image(data="QQ==")], id="images"),
        pytest.param(list[History], [History([{"role": "user", "content": "hi"}])], id="histories"),
    ],
)
def test_an_input_that_comes_back_is_kept(kind: Any, value: Any) -> None:
    """With the types that it is made of."""
    assert _kept_as(kind, value) is None


def _kept_as(kind: Any, value: Any) -> RunError | None:
    class Typed(Module):
        def forward(self, thing: Any) -> Any:
            return thing

    Typed.forward.__annotations__["thing"] = kind
    try:
        run = Run(Typed(), (), {"thing": value})
        Run.from_json(run.to_json(), Typed())
    except RunError as error:
        return error
    return None


def test_plain_data_that_looks_like_ours_stays_what_it_is() -> None:
    """A user's own `$ferrule` key is no mark of ours."""
    given = {"$ferrule": "history", "n": [1, {"$ferrule": "tool"}]}
    with answers(ASKING[0]):
        run = Plain(agent()).start(task="x", thing=given)
    assert Run.from_json(run.to_json(), Plain(agent())).inputs["thing"] == given


def test_tools_passed_as_inputs_are_named_and_passed_again() -> None:
    """Re-created at resume from what is passed, in any version, or refused by name."""

    def add(a: int) -> int:
        """Add."""
        return a

    program = Predict("question, tools: list[Tool] -> answer", tools=[])
    with answers("[[ ## answer ## ]]\ngo\n[[ ## completed ## ]]"):
        run = program.start(question="x", tools=[Tool(add)])
    text = run.to_json()
    with pytest.raises(RunError, match=r"Pass it: Run\.load"):
        Run.from_json(text, program)
    newer = Tool(other("schema").react.tools["book"].func, name="add")
    assert Run.from_json(text, program, tools=[newer]).inputs["tools"] == [newer]
    assert [tool.name for tool in Run.from_json(text, program, tools=[add]).inputs["tools"]] == [
        "add",
    ]


def test_a_run_is_not_written_while_it_executes() -> None:
    """Half an act is no state."""
    seen: list[Any] = []

    class Peek(Module):
        def forward(self) -> Prediction:
            try:
                run.to_json()
            except RunError as error:
                seen.append(str(error))
            return Prediction(answer=1)

    from ferrule.runs.driver.execution import execute

    run = Run(Peek(), (), {})
    execute(run)
    assert "is executing" in seen[0]


@pytest.mark.parametrize(
    "changed",
    [
        {"id": 7},
        {"key": None},
        {"status": "asleep"},
        {"status": ["done"]},
        {"inputs": 7},
        {"inputs": None},
        {"args": "x"},
        {"id": None, "redacted": True},
    ],
)
def test_what_is_no_head_of_a_run_is_refused_by_name(changed: dict[str, Any]) -> None:
    form = json.loads(waiting().to_json())
    form["fingerprint"]["predictors"]["react"]["signature"] = "other -> answer"
    with pytest.raises(StoreError, match="This is not the head of a run"):
        Run.from_json(json.dumps({**form, **changed}), agent())


def test_plain_data_comes_back_equal_without_a_declared_type() -> None:
    given = {"a": 1, "b": {"c": [None, True, 1.5]}, "d": None}
    run = Run(Plain(agent()), (), {"task": "x", "thing": given})
    assert Run.from_json(run.to_json(), Plain(agent())).inputs["thing"] == given


def test_keys_that_json_would_make_texts_need_a_declared_type() -> None:
    assert _kept_as(dict[int, str], {1: "a"}) is None
    with pytest.raises(RunError, match="declares no type that restores"):
        Run(Plain(agent()), (), {"task": "x", "thing": {1: "a"}}).to_json()


def test_a_model_of_one_call_cannot_be_kept_and_the_error_says_where_to_give_it() -> None:
    with pytest.raises(
        RunError,
        match=r"`lm=` of a call is not stored .*Pass it to the program, to `configure` or to `context`",
    ):
        Run(agent(), (), {"task": "x", "lm": ScriptedLM([])}).to_json()


def test_the_limits_of_a_call_are_stored_with_its_run_and_bound_it_when_it_resumes() -> None:
    """Such as what is left of a user's budget."""
    store = ferrule.MemoryStore()
    bounds = ferrule.Limits(tokens=1_000, cost=0.5, tool_calls=1)
    last = {"outputs": {"reasoning": "No more calls.", "answer": "one room"}}
    with answers(ASKING[0], last):
        inputs = {"task": "rooms", "limits": bounds, "on_limit": "extract"}
        agent().start(**inputs, store=store, run_id="r")
        again = Run.load(store, "r", agent())
        assert again.inputs["limits"] == bounds
        assert Run.from_json(again.to_json(), agent()).inputs["limits"] == bounds
        again.answer(again.pending[0].approve())
        again.resume()
    assert (again.prediction.answer, again.prediction.reason) == ("one room", "limits.tool_calls")


class _Shop:
    """A class of the application, which pydantic does not know."""


class _Annotated(ferrule.Module):
    def forward(self, task: str, thing: _Shop, deps: _Shop | None = None) -> ferrule.Prediction:
        return ferrule.Prediction(answer=task)


class _Unresolved(ferrule.Module):
    def forward(self, task: str, thing: Any) -> ferrule.Prediction:
        return ferrule.Prediction(answer=task)

    forward.__annotations__["thing"] = "OnlyForTypeCheckers"


@pytest.mark.parametrize(
    ("program", "given", "said"),
    [
        (_Annotated(), {"thing": _Shop()}, "declares no type that restores"),
        (_Annotated(), {"thing": None, "deps": _Shop()}, "Only tools get the `deps=` of a run"),
        (_Unresolved(), {"thing": _Shop()}, "declares no type that restores"),
    ],
    ids=["an annotation", "deps", "an unknown annotation"],
)
def test_an_input_whose_annotation_reads_nothing_back_is_refused_as_one_without(
    program: Any,
    given: dict[str, Any],
    said: str,
) -> None:
    """It was pydantic's own error about a core schema, or a NameError."""
    with pytest.raises(RunError, match=said):
        program.start(task="x", store=ferrule.MemoryStore(), **given)


def test_an_input_called_deps_that_cannot_be_stored_is_told_apart_from_the_deps_of_tools() -> None:
    """The error advised to pass it as `deps=`, which is what the caller had done."""

    class Shop(Module):
        def forward(self, task: str, deps: Any) -> Any:
            return deps

    with pytest.raises(
        RunError,
        match=r"`Shop` has an input called `deps`.*Only tools get the `deps=` of a run.*`context\(extra=",
    ):
        Shop().start(task="x", deps=Lock(), store=ferrule.MemoryStore())


def test_the_limits_of_a_call_are_stored_and_hold_in_the_next_process() -> None:
    """A run with `limits=` could not be stored at all."""
    limits, store = Limits(tool_calls=1, wall_s=60), MemoryStore()

    def booking() -> ReAct:
        return ReAct(
            "task -> answer",
            [book],
            lm=ScriptedLM(by=lambda _: {"name": "book", "args": {"room": 7}}),
            max_iters=3,
        )

    inputs = {"task": "x", "limits": limits, "on_limit": "extract"}
    text = booking().start(**inputs, store=store, run_id="r").to_json()
    assert Run.from_json(text, booking()).to_json() == text
    run = Run.load(store, "r", booking())
    assert run.inputs == inputs
    while run.status == "waiting":
        run.answer(run.pending[0].approve())
        run.resume()
    assert [entry.value for entry in run.journal.entries if entry.kind == "limit"] == [
        {"name": "tool_calls", "limit": 1},
    ]
