"""Programs with confirmations from udspy's public pages, in our own words: they run with the import
changed.
"""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ferrule.compat.udspy.confirmation import (
    clear_all_confirmations,
    clear_confirmation,
    get_confirmation_context,
)
from pydantic import Field

import ferrule
from ferrule.compat.udspy import (
    ConfirmationRejected,
    ConfirmationRequired,
    InputField,
    Module,
    OutputField,
    Prediction,
    ReAct,
    ResumeState,
    Signature,
    confirm_first,
    get_confirmation_status,
    respond_to_confirmation,
    tool,
)

DELETED: list[str] = []


@pytest.fixture(autouse=True)
def nothing_deleted() -> None:
    DELETED.clear()


@tool(name="delete_file", description="Delete a file", require_confirmation=True)
def delete_file(path: str = Field(description="Which file")) -> str:
    DELETED.append(path)
    return f"Deleted {path}"


@tool(name="search", description="Search")
def search(query: str = Field(...)) -> str:
    return f"Found {query}"


class Task(Signature):
    """Do the task with the tools."""

    task: str = InputField()
    result: str = OutputField()


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


DELETE, DONE = call("delete_file", path="/tmp/a"), call("finish", result="done")


def agent() -> ReAct:
    return ReAct(Task, tools=[search, delete_file], max_iters=5)


@confirm_first
def write(path: str, content: str = "") -> str:
    return f"Wrote {content!r} to {path}"


def asked(function: Any, *args: Any, **keywords: Any) -> ConfirmationRequired:
    with pytest.raises(ConfirmationRequired) as raised:
        function(*args, **keywords)
    return raised.value


# -- functions


def test_a_function_runs_after_its_approval() -> None:
    """Confirmation reference: `@confirm_first`."""
    error = asked(write, "/tmp/a", content="x")
    assert error.question.startswith("Confirm execution of write with args: ")
    assert (error.tool_call.name, error.tool_call.args) == (
        "write",
        {"path": "/tmp/a", "content": "x"},
    )
    respond_to_confirmation(error.confirmation_id, approved=True)
    assert write("/tmp/a", content="x") == "Wrote 'x' to /tmp/a"


def test_a_function_runs_with_changed_arguments() -> None:
    """Confirmation reference: `data=`."""
    error = asked(write, "/tmp/a", "x")
    respond_to_confirmation(
        error.confirmation_id,
        approved=True,
        data={"path": "/tmp/safe", "content": "y"},
    )
    assert write("/tmp/a", "x") == "Wrote 'y' to /tmp/safe"


def test_a_rejected_function_raises_something_else() -> None:
    """Confirmation reference: `ConfirmationRejected`."""
    error = asked(write, "/tmp/a")
    respond_to_confirmation(error.confirmation_id, approved=False, status="rejected")
    with pytest.raises(ConfirmationRejected) as raised:
        write("/tmp/a")
    assert raised.value.confirmation_id == error.confirmation_id


def test_an_async_function_asks_too() -> None:
    """Confirmation reference: async functions."""

    @confirm_first
    async def remove(path: str) -> str:
        await asyncio.sleep(0)
        return f"removed {path}"

    async def main() -> str:
        try:
            return await remove("/tmp/a")
        except ConfirmationRequired as e:
            respond_to_confirmation(e.confirmation_id)
            return await remove("/tmp/a")

    assert asyncio.run(main()) == "removed /tmp/a"


def test_each_thread_confirms_its_own_calls() -> None:
    """Confirmation reference: thread safety."""
    barrier = threading.Barrier(3)

    def worker(number: int) -> str:
        error = asked(write, f"/tmp/{number}")
        barrier.wait(60)
        respond_to_confirmation(error.confirmation_id)
        return write(f"/tmp/{number}")

    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(worker, range(3))) == [f"Wrote '' to /tmp/{k}" for k in range(3)]


def test_the_status_and_the_context_of_confirmations() -> None:
    """Confirmation reference: `get_confirmation_status`, `get_confirmation_context` and the
    clearing of it.
    """
    first, second = asked(write, "a").confirmation_id, asked(write, "b").confirmation_id
    assert get_confirmation_status(first) == get_confirmation_status("unknown") == "pending"
    respond_to_confirmation(first)
    respond_to_confirmation(second, approved=True, data={"path": "c"})
    assert {key: each["status"] for key, each in get_confirmation_context().items()} == {
        first: "approved",
        second: "edited",
    }
    clear_confirmation(first)
    assert list(get_confirmation_context()) == [second]
    clear_all_confirmations()
    assert get_confirmation_context() == {}


def test_a_decision_is_forgotten_once_it_is_used(model) -> None:
    """Confirmation reference: it is cleared when the call has run."""
    error = asked(write, "a")
    respond_to_confirmation(error.confirmation_id)
    write("a")
    assert error.confirmation_id not in get_confirmation_context()
    model(DELETE, DONE)
    error = asked(agent(), task="t")
    respond_to_confirmation(error.confirmation_id)
    assert error.confirmation_id in get_confirmation_context()
    error.run.resume()
    assert error.confirmation_id not in get_confirmation_context()


def test_an_approval_that_was_cleared_approves_nothing(model) -> None:
    """Confirmation reference: `clear_confirmation` and `clear_all_confirmations` before the call is
    made again.
    """
    for clear in (clear_confirmation, lambda _: clear_all_confirmations()):
        error = asked(write, "b")
        respond_to_confirmation(error.confirmation_id)
        clear(error.confirmation_id)
        assert asked(write, "b").confirmation_id != error.confirmation_id
        model(DELETE, DELETE)
        program = agent()
        error = asked(program, task="t")
        respond_to_confirmation(error.confirmation_id)
        clear(error.confirmation_id)
        assert asked(program, task="t").confirmation_id != error.confirmation_id
    assert DELETED == []


def test_a_decision_on_nothing_is_an_error() -> None:
    """Different from udspy, which keeps it: an id is never known in advance."""
    with pytest.raises(ferrule.errors.DecisionError, match="No question 'test-id' is known"):
        respond_to_confirmation("test-id", approved=True)


# -- agents


def test_an_agent_is_resumed_with_yes(model) -> None:
    """ReAct: `resume` and `aresume`."""
    model(DELETE, DONE, DELETE, DONE)
    error = asked(agent(), task="Delete /tmp/a")
    assert (error.tool_call.name, error.tool_call.args) == ("delete_file", {"path": "/tmp/a"})
    result = agent().resume("yes", error)
    assert (result.result, result.trajectory[0]["observation"], DELETED) == (
        "done",
        "Deleted /tmp/a",
        ["/tmp/a"],
    )
    error = asked(agent(), task="Delete /tmp/a")
    assert asyncio.run(agent().aresume("no", error)).result == "done"
    assert DELETED == ["/tmp/a"]


def test_an_agent_is_called_again_after_the_response(model) -> None:
    """ReAct: `respond_to_confirmation`, and the same call: the model is not asked again for what it
    decided.
    """
    lm, this = model(DELETE, DONE), agent()

    async def main() -> Prediction:
        try:
            return await this.aforward(task="Delete /tmp/a")
        except ConfirmationRequired as e:
            respond_to_confirmation(e.confirmation_id, approved=True)
        return await this.aforward(task="Delete /tmp/a")

    assert asyncio.run(main()).result == "done"
    assert (DELETED, len(lm.requests)) == (["/tmp/a"], 2)


def test_a_call_with_other_inputs_is_another_run(model) -> None:
    """A response belongs to the call that asked."""
    model(DELETE, call("delete_file", path="/tmp/b"))
    this = agent()
    respond_to_confirmation(asked(this, task="Delete /tmp/a").confirmation_id)
    assert asked(this, task="Delete /tmp/b").tool_call.args == {"path": "/tmp/b"}
    assert DELETED == []


def test_a_rejected_call_of_an_agent_goes_to_its_model(model) -> None:
    """ReAct: a rejection, then the same call."""
    model(DELETE, call("finish", result="left it"))
    this = agent()
    respond_to_confirmation(
        asked(this, task="Delete").confirmation_id,
        approved=False,
        status="rejected",
    )
    assert this(task="Delete").result == "left it"
    assert DELETED == []


@pytest.mark.parametrize("is_async", [True, False])
def test_the_loop_with_a_resume_state(model, is_async: bool) -> None:
    """Confirmation examples: one loop for the start and for each question."""
    model(DELETE, call("delete_file", path="/tmp/b"), DONE)
    this, state, questions = agent(), None, []
    while True:
        try:
            result = (
                asyncio.run(this.aforward(task="t", resume_state=state))
                if is_async
                else this(task="t", resume_state=state)
            )
            break
        except ConfirmationRequired as e:
            questions.append(e.question)
            state = ResumeState(e, "yes")
            assert (state.user_response, state.tool_call.name, state.exception) == (
                "yes",
                "delete_file",
                e,
            )
    assert (result.result, DELETED, len(questions)) == ("done", ["/tmp/a", "/tmp/b"], 2)


def test_the_arguments_are_edited_as_json(model) -> None:
    """Confirmation examples: an edit as the response."""
    model(DELETE, DONE)
    error = asked(agent(), task="t")
    result = agent()(task="t", resume_state=ResumeState(error, json.dumps({"path": "/tmp/safe"})))
    assert "Deleted /tmp/safe" in result.trajectory[0]["observation"]


def test_feedback_goes_to_the_model(model) -> None:
    """Confirmation examples: words instead of yes or no."""
    model(DELETE, DONE)
    error = asked(agent(), task="t")
    assert (
        agent().resume("Look at it first", error).trajectory[0]["observation"] == "Look at it first"
    )
    assert DELETED == []


def test_a_helper_that_approves_what_is_safe(model) -> None:
    """Confirmation examples: a loop with a limit, in a function."""
    model(call("search", query="a"), DELETE, call("delete_file", path="/etc/a"), DONE)

    async def run(this: ReAct, most: int = 5, **inputs: Any) -> Prediction | None:
        state = None
        for _ in range(most):
            try:
                return await this.aforward(resume_state=state, **inputs)
            except ConfirmationRequired as e:
                state = ResumeState(
                    e,
                    "yes" if e.tool_call.args["path"].startswith("/tmp/") else "no",
                )
        return None

    found = asyncio.run(run(agent(), task="Clean up"))
    assert found is not None
    assert DELETED == ["/tmp/a"]


def test_a_stream_asks_and_is_resumed(model) -> None:
    """Confirmation examples: `astream` with `resume_state`."""
    model(DELETE, DONE)

    async def main() -> list[Any]:
        try:
            return [event async for event in agent().astream(task="t")]
        except ConfirmationRequired as e:
            return [event async for event in agent().astream(task="t", resume_state=e)]

    assert asyncio.run(main())[-1].result == "done"


def test_what_was_done_before_the_question_is_in_its_context(model) -> None:
    """ReAct: `e.context`."""
    model(call("search", query="files"), DELETE)
    error = asked(agent(), task="t")
    assert error.context["input_args"] == {"task": "t"}
    assert error.context["trajectory"] == [
        {
            "thought": "",
            "tool_name": "search",
            "tool_args": {"query": "files"},
            "observation": "Found files",
        },
    ]
    assert error.context["stream"] is False


def test_the_status_of_an_agents_question(model) -> None:
    """Confirmation reference: its life."""
    model(DELETE, DONE)
    error = asked(agent(), task="t")
    assert get_confirmation_status(error.confirmation_id) == "pending"
    agent().resume("yes", error)
    assert get_confirmation_status(error.confirmation_id) == "approved"


def test_a_module_of_your_own_around_an_agent(model) -> None:
    """Confirmation architecture: a question from inside reaches the caller of the outer module."""

    class Careful(Module):
        def __init__(self) -> None:
            self.agent = agent()

        async def aexecute(self, *, stream: bool = False, **inputs: Any) -> Prediction:
            found = await self.agent.aforward(task=inputs["task"])
            return Prediction(module=self, result=f"carefully {found.result}")

    model(DELETE, DONE)
    this = Careful()
    error = asked(this, task="t")
    assert asyncio.run(this.aforward(task="t", resume_state=error)).result == "carefully done"
    assert DELETED == ["/tmp/a"]


class Steps(Module):
    """Confirmation reference: a module that raises its question and resumes by itself."""

    def forward(self, **inputs: Any) -> Prediction:
        raise ConfirmationRequired("Go on?", context={"step": 5, **inputs})

    def resume(self, user_response: str, saved_state: Any) -> Prediction:
        return Prediction(output=f"{user_response} from step {saved_state.context['step']}")


def test_a_module_that_asks_by_itself_resumes_by_its_own_method() -> None:
    """Confirmation reference: integration with modules."""
    error = asked(Steps().forward, text="x")
    assert Steps().resume("yes", error).output == "yes from step 5"


def test_a_module_that_asks_by_itself_does_not_resume_by_a_state() -> None:
    """Different from udspy: no run waits."""
    error = asked(Steps(), text="x")
    with pytest.raises(ferrule.errors.DecisionError, match=r"`ferrule\.ask_person`"):
        Steps()(resume_state=error)
