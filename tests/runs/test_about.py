"""Who and what a run is for: its metadata and its title."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import ferrule
from ferrule import History, InputError, MemoryStore, Module, Predict, ReAct, Run, Signature, tool
from ferrule.events import RunStarted
from ferrule.runs.about import about, digests
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ABOUT: dict[str, Any] = {"metadata": {"user": "ada", "tier": 2}, "title": "A bill"}


@pytest.fixture
def lm() -> Iterator[ScriptedLM]:
    """A model that always answers `42`."""
    model = ScriptedLM([{"outputs": {"answer": "42"}}] * 20)
    with ferrule.context(lm=model):
        yield model


def program() -> Any:
    return Predict("question -> answer")


def test_every_way_to_start_a_run_takes_them(lm: ScriptedLM) -> None:
    seen: list[Any] = []
    agent = program()
    bound = agent.bind(question="?")
    store = MemoryStore()

    async def on_a_loop() -> None:
        await agent.acall(question="?", **ABOUT)
        await agent.astart(question="?", **ABOUT)
        await bound.acall(**ABOUT)
        await bound.astart(**ABOUT)
        async for _ in agent.astream(question="?", **ABOUT):
            pass
        await agent.abatch([{"question": "?", **ABOUT}])

    with ferrule.context(callbacks=[seen.append]):
        agent(question="?", **ABOUT)
        agent.start(question="?", **ABOUT)
        list(agent.stream(question="?", **ABOUT))
        bound(**ABOUT)
        bound.start(**ABOUT)
        list(bound.stream(**ABOUT))
        agent.batch([{"question": "?", **ABOUT}])
        asyncio.run(on_a_loop())
    started = [event for event in seen if isinstance(event, RunStarted)]
    assert [(event.metadata, event.title) for event in started] == [
        (ABOUT["metadata"], ABOUT["title"])
    ] * 13
    submitted = agent.submit(question="?", store=store, **ABOUT)
    assert store.summary(submitted).title == "A bill"
    assert [line.id for line in store.list(metadata=ABOUT["metadata"])] == [submitted]


def test_no_model_sees_them(lm: ScriptedLM) -> None:
    program()(question="?", metadata={"user": "SECRET-1"}, title="SECRET-2")
    assert "SECRET" not in repr(lm.requests)


def test_a_run_keeps_them_in_a_store_and_as_json(lm: ScriptedLM) -> None:
    store, agent = MemoryStore(), program()
    run = agent.start(question="?", store=store, **ABOUT)
    loaded = Run.load(store, run.id, agent)
    read = Run.from_json(run.to_json(), agent)
    for one in (run, loaded, read):
        assert (one.metadata, one.title) == (ABOUT["metadata"], ABOUT["title"])
    [begun, *_] = loaded.events()
    assert isinstance(begun, RunStarted)
    assert (begun.metadata, begun.title) == (ABOUT["metadata"], ABOUT["title"])
    assert begun.as_json()["metadata"] == ABOUT["metadata"]


def test_the_metadata_of_a_run_is_a_copy(lm: ScriptedLM) -> None:
    given: dict[str, Any] = {"tags": ["a"]}
    run = program().start(question="?", metadata=given)
    given["tags"].append("b")
    run.metadata["user"] = "bob"
    assert run.metadata == {"tags": ["a"]}


def test_an_input_of_that_name_wins(lm: ScriptedLM) -> None:
    review = Predict("title, metadata -> answer")
    run = review.start(title="Moby Dick", metadata="m", run_title="T", run_metadata={"user": "u"})
    assert run.inputs == {"title": "Moby Dick", "metadata": "m"}
    assert (run.title, run.metadata) == ("T", {"user": "u"})
    assert Predict("run_title -> answer").start(run_title="x", title="T").title == "T"


def test_a_forward_that_takes_any_input_gets_them_as_inputs() -> None:
    class Anything(Module):
        def forward(self, **inputs: Any) -> Any:
            return ferrule.Prediction(got=sorted(inputs))

    run = Anything().start(title="t", run_title="T", run_metadata={"a": 1})
    assert (run.prediction.got, run.title, run.metadata) == (["title"], "T", {"a": 1})


WRONG: dict[str, Callable[[], Any]] = {
    "both names": lambda: program()(question="?", title="a", run_title="b"),
    "a text": lambda: program()(question="?", metadata="user=ada"),
    "an object": lambda: program()(question="?", metadata={"user": object()}),
    "a set": lambda: program()(question="?", metadata={"user": {1}}),
    "a tuple, which would come back as a list": lambda: about({"a": (1, 2)}, None),
    "not a number": lambda: about({"a": float("nan")}, None),
    "half a character": lambda: about({"a": "\ud800"}, None),
    "half a character in a key": lambda: about({"a": {"\ud800": 1}}, None),
    "a number as a name": lambda: about({1: "a"}, None),
    "an empty name": lambda: about({" ": "a"}, None),
    "a name with the sign of a command line": lambda: about({"a=b": "a"}, None),
    "a number as a key": lambda: about({"a": {1: 2}}, None),
    "too many names": lambda: about({f"n{k}": k for k in range(65)}, None),
    "too much": lambda: about({"a": "x" * 16_000}, None),
    "a title of two lines": lambda: about(None, "a\nb"),
    "a title that is no text": lambda: about(None, 7),
    "a long title": lambda: about(None, "x" * 201),
    "a terminal's control code": lambda: about(None, "\x1b[2J"),
    "a program that is called in a batch": lambda: program().batch(
        [{"question": "?", "metadata": 7}]
    ),
    "metadata of a batch": lambda: program().batch([], metadata=7),
    "metadata to list": lambda: MemoryStore().list(metadata={"a": {1}}),
}


@pytest.mark.parametrize("what", WRONG)
def test_anything_else_is_refused(lm: ScriptedLM, what: str) -> None:
    with pytest.raises(InputError):
        WRONG[what]()
    assert not lm.requests


def test_a_deep_value_is_refused_and_not_a_crash() -> None:
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InputError):
        about({"a": value}, None)


def test_a_title_and_a_value_may_have_any_characters_of_a_line(lm: ScriptedLM) -> None:
    store = MemoryStore()
    value = "ädä 👩‍👧 \x00 ' \" %"
    program().start(question="?", store=store, title="👩‍👧 ädä", metadata={"user": value})
    [line] = store.list(metadata={"user": value})
    assert (line.title, line.metadata) == ("👩‍👧 ädä", {"user": value})


def test_equal_json_values_are_found_by_each_other() -> None:
    equal = [{"a": 1, "b": {"x": 1, "y": [2.0]}}, {"b": {"y": [2], "x": 1.0}, "a": 1.0}]
    assert set(digests(equal[0])) == set(digests(equal[1]))
    different = [{"a": 1}, {"a": "1"}, {"a": True}, {"a": None}, {"a": [1]}, {"b": 1}]
    assert len({digests(metadata)[0] for metadata in different}) == len(different)


def test_items_of_a_batch_have_those_of_the_batch_and_their_own(lm: ScriptedLM) -> None:
    store, agent = MemoryStore(), program()
    items = [
        {"question": "a", "title": "one"},
        {"question": "b", "metadata": {"user": "bob"}},
        agent.bind(question="c"),
    ]
    results = agent.batch(items, store=store, batch_id="b", metadata={"job": 7, "user": "ada"})
    assert [(run.title, run.metadata) for run in results.runs] == [
        ("one", {"job": 7, "user": "ada"}),
        ("", {"job": 7, "user": "bob"}),
        ("", {"job": 7, "user": "ada"}),
    ]
    # What an item is about is not a part of what it asks: a resumed batch finds its runs.
    items[0] = {"question": "a", "title": "another"}
    again = agent.batch(items, store=store, batch_id="b")
    assert [run.id for run in again.runs] == [run.id for run in results.runs]
    assert len(lm.requests) == 3


def test_a_call_inside_a_run_belongs_to_it(lm: ScriptedLM) -> None:
    class Two(Module):
        def __init__(self, **options: Any) -> None:
            self.inner = program()
            self.options = options

        def forward(self, question: str) -> Any:
            return self.inner(question=question, **self.options)

    seen: list[Any] = []
    with ferrule.context(callbacks=[seen.append]):
        Two().start(question="?", **ABOUT)
    assert [event.title for event in seen if isinstance(event, RunStarted)] == ["A bill", ""]
    run = Two(title="Mine").start(question="?")
    assert isinstance(run.error, InputError)


def test_a_run_that_a_tool_starts_has_the_metadata_of_the_run_around_it() -> None:
    store = MemoryStore()
    reader = program()

    @tool
    def read(user: str | None = None) -> str:
        """Read."""
        if user is None:
            return reader(question="?").answer
        run = reader.start(question="?", store=store, metadata={"user": user})
        return run.prediction.answer

    script = [
        {"name": "read", "args": {}},
        {"outputs": {"answer": "1"}},
        {"name": "read", "args": {"user": "bob"}},
        {"outputs": {"answer": "2"}},
        {"name": "finish", "args": {"answer": "3"}},
    ]
    seen: list[Any] = []
    agent = ReAct("question -> answer", [read], native=True)
    with ferrule.context(lm=ScriptedLM(script), callbacks=[seen.append]):
        agent.start(question="?", store=store, **ABOUT).prediction
    started = [event for event in seen if isinstance(event, RunStarted)]
    assert [(event.metadata, event.title) for event in started] == [
        ({"user": "ada", "tier": 2}, "A bill"),
        ({"user": "ada", "tier": 2}, ""),
        ({"user": "bob", "tier": 2}, ""),
    ]
    assert len(store.list(metadata={"tier": 2})) == 2


def test_a_resumed_run_keeps_its_own() -> None:
    @tool(require_confirmation=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    script = [{"name": "pay", "args": {}}, {"name": "finish", "args": {"answer": "3"}}]
    agent = ReAct("question -> answer", [pay], native=True)
    with ferrule.context(lm=ScriptedLM(script)):
        with pytest.raises(ferrule.ConfirmationRequired) as waiting:
            agent(question="?", **ABOUT)
        with pytest.raises(InputError, match="keeps its `title`"):
            agent(resume_state=waiting.value, title="Another")
        agent(resume_state=waiting.value)
    assert waiting.value.run.title == "A bill"


def test_they_leave_a_store_with_the_inputs(lm: ScriptedLM) -> None:
    store, agent = MemoryStore(), program()
    for run_id in ("kept", "redacted", "deleted"):
        agent.start(question="?", store=store, run_id=run_id, **ABOUT)
    store.redact("redacted")
    store.delete("deleted")
    assert [line.id for line in store.list(metadata={"user": "ada"})] == ["kept"]
    line = store.summary("redacted")
    assert (line.title, line.metadata) == ("", {})
    assert "ada" not in store.load("redacted").head


def test_a_history_and_other_inputs_are_not_touched(lm: ScriptedLM) -> None:
    signature = Signature("history: History, question -> answer", custom_types={"History": History})
    agent = Predict(signature)
    run = agent.start(history=History(messages=[]), question="?", title="T")
    assert (sorted(run.inputs), run.title) == (["history", "question"], "T")
