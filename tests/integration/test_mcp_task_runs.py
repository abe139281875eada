"""Runs over tasks of an MCP server: killed while the task is asked for its state, and resumed in
another process.

The program under test is this very file, run as a script: `start`, `go_on`. The server is
`tests/task_server.py`, in both eras.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import forked
import pytest

import ferrule
from ferrule.mcp_bridge.client.mcp_server import MCPServer
from ferrule.programs.react import ReAct
from ferrule.runs.run import Run
from ferrule.runs.store.sqlite.store import SQLiteStore
from ferrule.testing.scripted import ScriptedLM

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

SERVER = Path(__file__).parents[1] / "task_server.py"
ERAS = ("legacy", "modern")
SCRIPT: list[Any] = [{"name": "work", "args": {}}, {"name": "finish", "args": {"answer": "ready"}}]
WORKING: dict[str, Any] = {"status": "working", "stays": True}
DONE: dict[str, Any] = {
    "status": "completed",
    "result": {"content": [{"type": "text", "text": "done"}]},
}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
QUESTION = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "Who?", "requestedSchema": FORM},
}
ASKING: dict[str, Any] = {"status": "input_required", "inputRequests": {"k1": QUESTION}}


class Replaying(ScriptedLM):
    """Answers by how many answers are in the request already: the same in every process."""

    def complete(self, request: Any) -> Any:
        steps = sum(message.role == "assistant" for message in request.messages)
        return ScriptedLM([SCRIPT[steps]]).complete(request)


def agent(folder: Path, era: str) -> ReAct:
    return ReAct(
        "task -> answer",
        [MCPServer.stdio(sys.executable, [str(SERVER), era, str(folder)], name="hall")],
    )


def main(what: str, folder: Path, era: str) -> None:
    store = SQLiteStore(folder / "runs.db")
    ferrule.configure(lm=Replaying([]))
    if what == "start":
        run = agent(folder, era).start(task="x", store=store, run_id="r")
    elif what == "astart":
        run = asyncio.run(agent(folder, era).astart(task="x", store=store, run_id="r"))
    else:
        run = Run.load(store, "r", agent(folder, era)).resume()
    sys.stdout.write(json.dumps({"status": run.status, "observed": observed(run)}))


def observed(run: Any) -> list[str]:
    return [str(each) for name, each in run.trajectory.items() if name.startswith("observation")]


def states(folder: Path, *every: dict[str, Any]) -> None:
    found = folder / "states.new"
    found.write_text(json.dumps(every))
    found.replace(folder / "states.json")


def log(folder: Path) -> list[str]:
    path = folder / "log"
    return path.read_text().splitlines() if path.exists() else []


def process(what: str, folder: Path, era: str) -> forked.Forked:
    return forked.Forked(__file__, what, folder, era)


def outcome(what: str, folder: Path, era: str) -> dict[str, Any]:
    ended = process(what, folder, era).ended()
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def killed(what: str, folder: Path, era: str, *, polls: int) -> None:
    """Run until the task was asked for its state often enough, then kill the process."""
    running = process(what, folder, era)
    while log(folder).count("tasks/get t1") < polls:
        assert running.poll() is None
        time.sleep(0.01)
    running.kill()
    assert running.ended().returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("era", "begin"),
    [
        ("legacy", "start"),
        ("modern", "astart"),
        pytest.param("legacy", "astart", marks=pytest.mark.long),
        pytest.param("modern", "start", marks=pytest.mark.long),
    ],
)
def test_a_killed_run_asks_for_the_same_task_and_does_not_call_again(
    tmp_path: Path,
    era: str,
    begin: str,
) -> None:
    states(tmp_path, WORKING)
    killed(begin, tmp_path, era, polls=2)
    killed("go_on", tmp_path, era, polls=log(tmp_path).count("tasks/get t1") + 2)  # and once more
    states(tmp_path, DONE)

    assert outcome("go_on", tmp_path, era) == {"status": "done", "observed": ["done", "Completed."]}
    assert log(tmp_path).count("call work task") == 1
    assert not any(each.startswith("tasks/cancel") for each in log(tmp_path))
    assert outcome_of_the_record(tmp_path) == ["begun", "once", "result"]


def outcome_of_the_record(folder: Path) -> list[str]:
    """The kinds of the entries about the call."""
    run = Run.load(SQLiteStore(folder / "runs.db"), "r", agent(folder, "modern"))
    slots = [(each.slot.partition("?")[0], each.kind) for each in run.journal.entries]
    called = next(slot for slot, kind in slots if kind == "begun")
    return [kind for slot, kind in slots if slot == called]


# -- in one process


def started(folder: Path, era: str) -> Any:
    with ferrule.context(lm=Replaying([])):
        return agent(folder, era).start(task="x")


def resumed(run: Any) -> Any:
    with ferrule.context(lm=Replaying([])):
        return run.resume()


@pytest.mark.parametrize("era", ERAS)
def test_a_run_waits_with_the_question_of_a_task(tmp_path: Path, era: str) -> None:
    states(tmp_path, ASKING, {**WORKING, "stays": False}, DONE)
    run = started(tmp_path, era)
    assert run.status == "waiting"
    (question,) = run.pending
    assert "'hall' asks for `name` (string), before 'work' goes on. It says: Who?" in question.text

    (tmp_path / "at").unlink(
        missing_ok=True,
    )  # the older revision asks again: there the question ended the task
    run.answer(question.fill({"name": "Ann"}))
    run = resumed(run)

    assert (run.status, observed(run)) == ("done", ["done", "Completed."])
    answer = {"action": "accept", "content": {"name": "Ann"}}
    if era == "modern":
        assert log(tmp_path).count("call work task") == 1
        assert f"tasks/update t1 {json.dumps({'k1': answer})}" in log(tmp_path)
        assert "tasks/cancel t1" not in log(tmp_path)
    else:
        assert log(tmp_path).count("call work task") == 2
        assert f"answer k1 {json.dumps(answer)}" in log(tmp_path)


@pytest.mark.parametrize("era", ERAS)
def test_a_cancelled_run_cancels_its_task(tmp_path: Path, era: str) -> None:
    states(tmp_path, WORKING)

    async def go() -> None:
        with ferrule.context(lm=Replaying([])):
            running = asyncio.ensure_future(agent(tmp_path, era).acall(task="x"))
        while "tasks/get t1" not in log(tmp_path):
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        while "tasks/cancel t1" not in log(tmp_path):
            await asyncio.sleep(0.01)

    asyncio.run(go())


@pytest.mark.parametrize("era", [pytest.param("legacy", marks=pytest.mark.long), "modern"])
def test_a_run_that_is_interrupted_cancels_its_task(tmp_path: Path, era: str) -> None:
    """Ctrl-C in sync code: the task is cancelled before the interpreter ends."""
    states(tmp_path, WORKING)
    with subprocess.Popen(
        [sys.executable, __file__, "start", str(tmp_path), era],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as running:
        while "tasks/get t1" not in log(tmp_path):
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        running.wait(timeout=60)
    assert "tasks/cancel t1" in log(tmp_path)


def test_a_run_says_with_every_request_for_the_state_that_a_task_may_ask(tmp_path: Path) -> None:
    """A server that was started again while a question waited knows nothing of the call."""
    states(tmp_path, DONE)
    started(tmp_path, "modern")
    able = json.loads((tmp_path / "able").read_text())
    assert able == {
        "elicitation": {"form": {}, "url": {}},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    }


@pytest.mark.parametrize("era", ERAS)
def test_a_task_that_the_server_forgot_is_an_observation(tmp_path: Path, era: str) -> None:
    states(tmp_path, {"rpc_error": {"code": -32602, "message": "Task not found"}})
    run = started(tmp_path, era)
    assert run.status == "done"
    assert "no longer knows the task" in observed(run)[0]
    assert log(tmp_path).count("call work task") == 1


def test_a_call_that_is_no_task_leaves_no_further_entry(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    states(tmp_path, DONE)
    run = started(tmp_path, "modern")
    assert [each.kind for each in run.journal.entries if "?" in each.slot] == []


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
