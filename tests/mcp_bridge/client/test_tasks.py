"""Calls that a server carries out as tasks, in both eras.

The server is `tests/task_server.py`, a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ferrule.errors import MCPProtocolError, MCPTimeoutError, MCPToolError
from ferrule.mcp_bridge.client.mcp_server import MCPServer

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

SERVER = Path(__file__).parents[2] / "task_server.py"
ERAS = ("legacy", "modern")
WORKING: dict[str, Any] = {"status": "working"}
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


def server(folder: Path, era: str, *states: dict[str, Any], **options: Any) -> MCPServer:
    (folder / "states.json").write_text(json.dumps(states))
    return MCPServer.stdio(sys.executable, [str(SERVER), era, str(folder)], name="hall", **options)


def log(folder: Path) -> list[str]:
    return (folder / "log").read_text().splitlines()


@pytest.mark.parametrize("era", ERAS)
def test_a_tool_that_must_be_a_task_is_called_and_gives_its_result(
    tmp_path: Path,
    era: str,
) -> None:
    with server(tmp_path, era, WORKING, WORKING, DONE) as tools:
        assert tools["work"]() == "done"
        assert "task" not in tools["work"].desc
    polls = ["tasks/get t1"] * 3
    assert log(tmp_path) == [
        "tools/list",
        "call work task",
        *polls,
        *(["tasks/result t1"] if era == "legacy" else []),
    ]


@pytest.mark.parametrize("era", ERAS)
def test_a_tool_that_may_be_a_task_is_called_plainly_if_the_client_decides(
    tmp_path: Path,
    era: str,
) -> None:
    with server(tmp_path, era, DONE) as tools:
        assert tools["may"]() == "plainly done"
    assert not any("tasks/" in each for each in log(tmp_path))


@pytest.mark.parametrize("era", ERAS)
def test_a_server_without_tasks_is_asked_for_none(tmp_path: Path, era: str) -> None:
    (tmp_path / "plain").touch()
    with server(tmp_path, era, DONE) as tools:
        assert tools["work"]() == "plainly done"
    assert log(tmp_path) == ["tools/list", "call work plain"]


@pytest.mark.parametrize("era", ERAS)
def test_the_result_of_a_task_is_checked_like_any_other(tmp_path: Path, era: str) -> None:
    content = [{"type": "text", "text": '{"n": "many"}'}]
    misfit = {
        "status": "completed",
        "result": {"content": content, "structuredContent": {"n": "many"}},
    }
    with (
        server(tmp_path, era, misfit, strict_output=True) as tools,
        pytest.raises(MCPProtocolError, match="output schema"),
    ):
        tools["counts"]()
    (tmp_path / "at").unlink()
    refused = {
        "status": "completed",
        "result": {"content": [{"type": "text", "text": "no rivers"}], "isError": True},
    }
    with server(tmp_path, era, refused) as tools, pytest.raises(MCPToolError, match="no rivers"):
        tools["work"]()


@pytest.mark.parametrize("era", ERAS)
def test_a_failed_task_raises_the_error_that_the_call_failed_with(tmp_path: Path, era: str) -> None:
    with (
        server(
            tmp_path,
            era,
            WORKING,
            {"status": "failed", "error": {"code": -32603, "message": "no disk"}},
        ) as tools,
        pytest.raises(MCPProtocolError, match="no disk") as caught,
    ):
        tools["work"]()
    assert (caught.value.code, caught.value.tool, caught.value.may_have_run) == (
        -32603,
        "work",
        True,
    )


@pytest.mark.parametrize("era", ERAS)
def test_a_task_that_the_server_cancelled_says_why(tmp_path: Path, era: str) -> None:
    with (
        server(tmp_path, era, {"status": "cancelled", "statusMessage": "too late"}) as tools,
        pytest.raises(MCPToolError, match=r"the server cancelled the task \(too late\)") as caught,
    ):
        tools["work"]()
    assert caught.value.may_have_run
    assert "tasks/cancel t1" not in log(tmp_path)


@pytest.mark.parametrize("era", ERAS)
def test_a_task_that_the_server_forgot_fails_the_call_and_is_not_made_again(
    tmp_path: Path,
    era: str,
) -> None:
    with (
        server(
            tmp_path,
            era,
            WORKING,
            {"rpc_error": {"code": -32602, "message": "Task has expired"}},
        ) as tools,
        pytest.raises(MCPToolError, match="no longer knows the task") as caught,
    ):
        tools["work"]()
    assert caught.value.may_have_run
    assert log(tmp_path).count("call work task") == 1


@pytest.mark.parametrize("era", ERAS)
def test_a_server_that_dies_meanwhile_is_started_again_and_asked_for_the_same_task(
    tmp_path: Path,
    era: str,
) -> None:
    with server(tmp_path, era, WORKING, {"exit": True}, WORKING, DONE) as tools:
        assert tools["work"]() == "done"
    assert log(tmp_path).count("call work task") == 1
    assert set(log(tmp_path)) <= {"tools/list", "call work task", "tasks/get t1", "tasks/result t1"}


@pytest.mark.parametrize("era", ERAS)
def test_a_state_that_is_none_is_asked_for_again_until_the_time_is_over(
    tmp_path: Path,
    era: str,
) -> None:
    with server(tmp_path, era, {"status": "thinking"}, {}, WORKING, DONE) as tools:
        assert tools["work"]() == "done"
    (tmp_path / "at").unlink()
    hall = server(tmp_path, era, {"status": "thinking"}, timeout_s=1)
    with hall as tools, pytest.raises(MCPProtocolError, match=r"not a state of a task: .*thinking"):
        tools["work"]()
    assert log(tmp_path)[-1] == "tasks/cancel t2"


@pytest.mark.parametrize("era", ERAS)
def test_a_server_that_does_not_answer_in_time_ends_the_call(tmp_path: Path, era: str) -> None:
    with (
        server(tmp_path, era, WORKING, {"silent": True, "stays": True}, timeout_s=0.3) as tools,
        pytest.raises(MCPTimeoutError),
    ):
        tools["work"]()


@pytest.mark.parametrize("era", ERAS)
def test_a_task_may_take_longer_than_the_time_for_an_answer_but_not_than_the_total(
    tmp_path: Path,
    era: str,
) -> None:
    with server(tmp_path, era, *[WORKING] * 120, DONE, timeout_s=2) as tools:
        assert tools["work"]() == "done"
    (tmp_path / "at").unlink()
    with (
        server(tmp_path, era, WORKING, total_timeout_s=0.4) as tools,
        pytest.raises(MCPTimeoutError, match=r"within 0\.4 s"),
    ):
        tools["work"]()
    assert log(tmp_path)[-1] == "tasks/cancel t2"


@pytest.mark.parametrize("era", ERAS)
def test_what_the_server_says_of_a_task_is_progress(tmp_path: Path, era: str) -> None:
    told: list[Any] = []
    said = [{**WORKING, "statusMessage": each} for each in ("reading", "reading", "writing")]
    with server(
        tmp_path,
        era,
        *said,
        DONE,
        on_progress=lambda *progress: told.append(progress),
    ) as tools:
        tools["work"]()
    assert told == [("work", 1, None, "reading"), ("work", 2, None, "writing")]


@pytest.mark.parametrize("era", ERAS)
def test_a_cancelled_call_cancels_its_task(tmp_path: Path, era: str) -> None:
    async def go(hall: MCPServer) -> None:
        calling = asyncio.ensure_future(hall.acall("work"))
        while not (tmp_path / "log").exists() or "tasks/get t1" not in log(tmp_path):
            await asyncio.sleep(0.01)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        while "tasks/cancel t1" not in log(tmp_path):
            await asyncio.sleep(0.01)

    hall = server(tmp_path, era, WORKING)
    with hall:
        asyncio.run(go(hall))
    assert "tasks/cancel t1" in log(tmp_path)


@pytest.mark.parametrize("era", ERAS)
def test_hooks_answer_the_questions_of_a_task(tmp_path: Path, era: str) -> None:
    asked: list[str] = []

    async def person(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params["message"])
        return {"action": "accept", "content": {"name": "Ann"}}

    with server(tmp_path, era, WORKING, ASKING, WORKING, DONE, elicit=person) as tools:
        assert tools["work"]() == "done"
    assert asked == ["Who?"]
    answer = {"action": "accept", "content": {"name": "Ann"}}
    said = (
        f"answer k1 {json.dumps(answer)}"
        if era == "legacy"
        else f"tasks/update t1 {json.dumps({'k1': answer})}"
    )
    assert said in log(tmp_path)


def test_questions_that_no_hook_answers_are_returned_and_the_task_goes_on_with_the_answers(
    tmp_path: Path,
) -> None:
    hall = server(tmp_path, "modern", ASKING, WORKING, DONE)
    with hall:
        asking = hall.call("work")
        assert (asking["resultType"], list(asking["inputRequests"])) == ("input_required", ["k1"])
        answers = {"k1": {"action": "accept", "content": {"name": "Ann"}}}
        assert (
            hall.call("work", answers=answers, state=asking["requestState"])["content"]
            == DONE["result"]["content"]
        )
    assert log(tmp_path).count("call work task") == 1


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"status": "completed"}, "not a result of a task"),
        ({"status": "failed", "error": "boom"}, "not a result of a task"),
        ({"status": "input_required"}, "not questions"),
    ],
)
def test_a_malformed_state_names_the_tool(tmp_path: Path, state: dict[str, Any], said: str) -> None:
    with (
        server(tmp_path, "modern", {**state, "stays": True}) as tools,
        pytest.raises(MCPProtocolError, match=f"`work` of .*{said}"),
    ):
        tools["work"]()


def test_a_recording_replays_a_task(tmp_path: Path) -> None:
    with server(tmp_path, "modern", WORKING, DONE, record=str(tmp_path / "tape")) as tools:
        assert tools["work"]() == "done"
    with MCPServer.replay(tmp_path / "tape") as tools:
        assert tools["work"]() == "done"


def test_a_tool_that_is_no_longer_listed_keeps_its_task(tmp_path: Path) -> None:
    """The list is read again while the task goes on."""
    hall = server(tmp_path, "modern", *[WORKING] * 10, DONE)

    async def go() -> dict[str, Any]:
        calling = asyncio.ensure_future(hall.acall("work"))
        while not (tmp_path / "log").exists() or "tasks/get t1" not in log(tmp_path):
            await asyncio.sleep(0.01)
        (tmp_path / "unlisted").touch()
        assert (await hall.arefresh()).removed == ("work",)
        return await calling

    with hall:
        assert asyncio.run(go())["content"] == DONE["result"]["content"]
