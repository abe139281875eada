"""Calls that become tasks of our server.

The requests are raw ones: a client of ours would follow a task to its end.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from ferrule import MemoryStore, Module, ReAct, Run, context, progress, tool
from ferrule.concurrency.offload import run_async
from ferrule.errors import ConfigurationError, MCPProtocolError
from ferrule.mcp_bridge import MCPApp
from ferrule.mcp_bridge.client.mcp_server import MCPServer
from ferrule.mcp_bridge.server.task import ServedTask
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

TASKS = "io.modelcontextprotocol/tasks"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
DECLARED = {"extensions": {TASKS: {}}, "elicitation": {"form": {}}}


class Client:
    """Sends single requests to an application in this process."""

    def __init__(self, app: MCPApp, mode: Any = "2026-07-28") -> None:
        self._server = MCPServer.in_memory(app.server, mode=mode)

    def send(
        self,
        method: str,
        capabilities: dict[str, Any] | None = None,
        **params: Any,
    ) -> dict[str, Any]:
        meta = {CAPABILITIES: DECLARED if capabilities is None else capabilities}
        return run_async(
            self._server._on_loop(
                lambda client: client.link.request(
                    method,
                    params,
                    phase="test",
                    may_repeat=False,
                    timeout_s=20,
                    meta=meta,
                ),
            ),
        )

    def call(
        self,
        name: str,
        capabilities: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> dict[str, Any]:
        return self.send("tools/call", capabilities, name=name, arguments=arguments)

    def until(self, task: dict[str, Any], status: str) -> dict[str, Any]:
        while True:
            found = self.send("tasks/get", taskId=task["taskId"])
            if found["status"] == status:
                return found
            assert found["status"] in {"working", "input_required"}, found
            time.sleep(0.02)

    def refused(
        self,
        method: str,
        capabilities: dict[str, Any] | None = None,
        **params: Any,
    ) -> MCPProtocolError:
        with pytest.raises(MCPProtocolError) as caught:
            self.send(method, capabilities, **params)
        return caught.value

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def connected() -> Iterator[Any]:
    """Makes clients, and closes them."""
    made: list[Client] = []

    def connect(app: MCPApp, **options: Any) -> Client:
        made.append(Client(app, **options))
        return made[-1]

    yield connect
    for each in made:
        each.close()


class Gate:
    """A tool that waits until the test opens it."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.calls = 0
        self.ended = ""

    async def work(self, label: str = "") -> str:
        """Wait until it is opened."""
        self.calls += 1
        progress(f"waiting {label}".strip())
        try:
            while not self.opened.is_set():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.ended = "returned"
        return f"done {label}".strip()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.opened.set()


def text_of(task: dict[str, Any]) -> str:
    return task["result"]["content"][0]["text"]


def test_a_call_that_takes_longer_than_a_moment_becomes_a_task(connected: Any, gate: Gate) -> None:
    client = connected(MCPApp([gate.work], tasks={"work": "optional"}))
    task = client.call("work", label="x")
    assert (task["resultType"], task["status"]) == ("task", "working")
    assert not {"result", "error", "inputRequests", "content", "requestState"} & task.keys()
    assert client.send("tasks/get", taskId=task["taskId"])["status"] == "working"
    gate.opened.set()
    done = client.until(task, "completed")
    assert (done["resultType"], text_of(done)) == ("complete", "done x")
    assert client.send("tasks/get", taskId=task["taskId"]) == done
    assert gate.calls == 1


def test_a_task_that_is_over_does_not_change_again() -> None:
    """A client that asks in the moment of the end got the time of the last change before it."""

    async def seen_twice() -> list[dict[str, Any]]:
        task = ServedTask("t", Any, None, None, ttl_s=60)
        task.begin(asyncio.sleep(0.01, "done"))
        while not task.work.done():
            await asyncio.sleep(0)
        first = task.as_json()
        await asyncio.sleep(0.01)
        return [first, task.as_json()]

    first, second = asyncio.run(seen_twice())
    assert first["status"] == "completed"
    assert first == second


def test_a_call_that_ends_at_once_is_answered_plainly_unless_it_must_be_a_task(
    connected: Any,
    gate: Gate,
) -> None:
    gate.opened.set()
    client = connected(
        MCPApp({"may": gate.work, "must": gate.work}, tasks={"may": "optional", "m*": "required"}),
    )
    assert client.call("may")["content"][0]["text"] == "done"
    task = client.call("must")
    assert (task["resultType"], task["status"]) == ("task", "completed")
    assert text_of(client.until(task, "completed")) == "done"


@pytest.mark.parametrize("mode", ["2025-11-25", "2026-07-28"])
def test_a_client_without_tasks_waits_for_the_result_and_may_not_call_what_must_be_one(
    connected: Any,
    gate: Gate,
    mode: str,
) -> None:
    gate.opened.set()
    client = connected(
        MCPApp(
            {"may": gate.work, "must": gate.work},
            tasks={"may": "optional", "must": "required"},
        ),
        mode=mode,
    )
    assert client.call("may", {})["content"][0]["text"] == "done"
    refused = client.refused("tools/call", {}, name="must", arguments={})
    assert (refused.code, refused.data) == (
        -32021,
        {"requiredCapabilities": {"extensions": {TASKS: {}}}},
    )
    assert gate.calls == 1


def test_the_methods_need_the_extension_and_a_known_task(connected: Any, gate: Gate) -> None:
    client = connected(MCPApp([gate.work], tasks={"work": "optional"}))
    for method, more in (
        ("tasks/get", {}),
        ("tasks/update", {"inputResponses": {}}),
        ("tasks/cancel", {}),
    ):
        assert client.refused(method, {}, taskId="x", **more).code == -32021
        assert client.refused(method, taskId="x", **more).code == -32602
    assert client.refused("tasks/result", taskId="x").code == -32601


def test_a_server_without_such_tools_declares_no_tasks(connected: Any, gate: Gate) -> None:
    app = MCPApp([gate.work])
    client = connected(app)
    assert "extensions" not in client.send("server/discover")["capabilities"]
    assert client.refused("tasks/get", taskId="x").code == -32601
    app.add(ReAct("question -> answer", []), "agent")
    assert client.send("server/discover")["capabilities"]["extensions"] == {TASKS: {}}
    app.remove("agent")
    assert "extensions" not in client.send("server/discover")["capabilities"]


def test_what_a_task_reports_is_its_message(connected: Any, gate: Gate) -> None:
    @tool
    async def talks() -> str:
        """Report once it is a task."""
        await asyncio.sleep(0.7)
        progress("half way")
        await gate.work()
        return "x"

    client = connected(MCPApp([talks], tasks={"*": "optional"}))
    task = client.call("talks")
    while client.send("tasks/get", taskId=task["taskId"]).get("statusMessage") != "waiting":
        time.sleep(0.02)


def test_a_cancelled_task_is_stopped_and_stays_cancelled(connected: Any, gate: Gate) -> None:
    client = connected(MCPApp([gate.work], tasks={"work": "optional"}))
    task = client.call("work")
    for _ in range(2):
        assert client.send("tasks/cancel", taskId=task["taskId"])["resultType"] == "complete"
    assert client.send("tasks/get", taskId=task["taskId"])["status"] == "cancelled"
    while gate.ended != "cancelled":
        time.sleep(0.01)


def test_cancelling_a_task_that_is_over_changes_nothing(connected: Any, gate: Gate) -> None:
    gate.opened.set()
    client = connected(MCPApp([gate.work], tasks={"work": "required"}))
    task = client.call("work")
    client.send("tasks/cancel", taskId=task["taskId"])
    assert client.send("tasks/get", taskId=task["taskId"])["status"] == "completed"


def test_a_tool_that_fails_completes_and_an_error_of_the_protocol_fails(connected: Any) -> None:
    from mcp.shared.exceptions import MCPError

    def breaks(how: str) -> str:
        """Break."""
        raise MCPError(-32050, "broken", {"at": 1}) if how == "protocol" else RuntimeError("broken")

    client = connected(MCPApp([breaks], tasks={"*": "required"}))
    done = client.until(client.call("breaks", how="tool"), "completed")
    assert (done["result"]["isError"], "broken" in text_of(done)) == (True, True)
    task = client.call("breaks", how="protocol")
    failed = client.send("tasks/get", taskId=task["taskId"])
    assert (failed["status"], failed["error"]) == (
        "failed",
        {"code": -32050, "message": "broken", "data": {"at": 1}},
    )


def test_an_ended_task_is_kept_for_its_time_to_live(connected: Any, gate: Gate) -> None:
    gate.opened.set()
    client = connected(MCPApp([gate.work], tasks={"*": "required"}, task_ttl_s=0.2))
    task = client.call("work")
    assert 0 < task["ttlMs"] <= 1000
    time.sleep(0.3)
    assert client.refused("tasks/get", taskId=task["taskId"]).code == -32602


def test_a_confirmation_within_a_task_is_answered_by_an_update(connected: Any, gate: Gate) -> None:
    """A program asks after a while: the answer continues its run."""

    @tool(require_confirmation=True)
    def pay(euros: int) -> str:
        """Pay."""
        return f"paid {euros}"

    steps = [
        {"name": "work", "args": {}},
        {"name": "pay", "args": {"euros": 3}},
        {"name": "finish", "args": {"answer": "paid"}},
    ]
    with context(lm=ScriptedLM(steps)):
        client = connected(MCPApp({"agent": ReAct("question -> answer", [gate.work, pay])}))
    task = client.call("agent", question="?")
    gate.opened.set()
    asking = client.until(task, "input_required")
    ((key, question),) = asking["inputRequests"].items()
    assert (question["method"], 'pay with args: {"euros":3}' in question["params"]["message"]) == (
        "elicitation/create",
        True,
    )
    client.send(
        "tasks/update",
        taskId=task["taskId"],
        inputResponses={"other": {"action": "accept"}},
    )
    assert (
        client.send("tasks/get", taskId=task["taskId"])["inputRequests"] == asking["inputRequests"]
    )
    assert (
        client.refused("tasks/update", taskId=task["taskId"], inputResponses={key: 7}).code
        == -32602
    )
    client.send(
        "tasks/update",
        taskId=task["taskId"],
        inputResponses={key: {"action": "accept", "content": {"approve": True}}},
    )
    assert client.until(task, "completed")["result"]["structuredContent"] == {"answer": "paid"}


def test_a_client_of_ours_follows_a_task_of_a_program_and_answers_its_questions(gate: Gate) -> None:
    @tool(require_confirmation=True)
    async def pay(euros: int) -> str:
        """Pay."""
        return f"paid {euros}"

    async def person(params: dict[str, Any]) -> dict[str, Any]:
        return {"action": "accept", "content": {"approve": True}}

    async def slowly() -> str:
        """Take longer than a moment."""
        await asyncio.sleep(0.7)
        return "rested"

    steps = [
        {"name": name, "args": args}
        for name, args in (("slowly", {}), ("pay", {"euros": 3}), ("finish", {"answer": "paid"}))
    ]
    with context(lm=ScriptedLM(steps)):
        app = MCPApp({"agent": ReAct("question -> answer", [slowly, pay])})
    server = MCPServer.in_memory(app.server, elicit=person)
    with server as tools:
        assert tools["agent"].call_result(question="?").value.structured == {"answer": "paid"}


@pytest.mark.parametrize("wrong", [{"tasks": {"work": "sometimes"}}, {"task_ttl_s": 0}])
def test_wrong_options_are_refused(gate: Gate, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"sometimes|task_ttl_s"):
        MCPApp([gate.work], **wrong)


# -- with a store


class Answers(ScriptedLM):
    """Answers by how many answers are in the request already: the same for every server."""

    def __init__(self, steps: list[Any]) -> None:
        super().__init__([])
        self.script = steps

    def complete(self, request: Any) -> Any:
        return ScriptedLM(
            [self.script[sum(each.role == "assistant" for each in request.messages)]],
        ).complete(request)


STEPS: list[Any] = [
    {"name": "work", "args": {}},
    {"name": "pay", "args": {"euros": 3}},
    {"name": "finish", "args": {"answer": "paid"}},
]


def agents(gate: Gate, store: Any, *, asks: bool = False) -> MCPApp:
    """A server of an agent, as if started anew."""

    @tool(require_confirmation=asks)
    def pay(euros: int) -> str:
        """Pay."""
        return f"paid {euros}"

    with context(lm=Answers(STEPS)):
        return MCPApp({"agent": ReAct("question -> answer", [gate.work, pay])}, store=store)


def test_the_task_of_a_program_is_its_stored_run(connected: Any, gate: Gate) -> None:
    store = MemoryStore()
    client = connected(agents(gate, store))
    task = client.call("agent", question="?")
    assert [each.id for each in Run.list(store)] == [task["taskId"]]
    gate.opened.set()
    assert client.until(task, "completed")["result"]["structuredContent"] == {"answer": "paid"}

    other = connected(agents(gate, store))  # a server that knows the store only
    assert other.until(task, "completed")["result"]["structuredContent"] == {"answer": "paid"}
    assert gate.calls == 1


def test_another_server_with_the_store_asks_the_question_and_goes_on(
    connected: Any,
    gate: Gate,
) -> None:
    store = MemoryStore()
    first = connected(agents(gate, store, asks=True))
    task = first.call("agent", question="?")
    gate.opened.set()
    first.until(task, "input_required")

    other = connected(agents(gate, store, asks=True))
    ((key, _),) = other.until(task, "input_required")["inputRequests"].items()
    other.send(
        "tasks/update",
        taskId=task["taskId"],
        inputResponses={key: {"action": "accept", "content": {"approve": True}}},
    )
    assert other.until(task, "completed")["result"]["structuredContent"] == {"answer": "paid"}
    assert gate.calls == 1


def test_a_task_at_work_in_one_server_is_working_for_another(connected: Any, gate: Gate) -> None:
    store = MemoryStore()
    client = connected(agents(gate, store))
    task = client.call("agent", question="?")
    other = connected(agents(gate, store))
    assert other.send("tasks/get", taskId=task["taskId"])["status"] == "working"
    gate.opened.set()
    assert client.until(task, "completed")["result"]["structuredContent"] == {"answer": "paid"}
    assert other.until(task, "completed")["result"]["structuredContent"] == {"answer": "paid"}
    assert gate.calls == 1


def test_a_cancelled_task_is_cancelled_for_every_server(connected: Any, gate: Gate) -> None:
    store = MemoryStore()
    client = connected(agents(gate, store))
    task = client.call("agent", question="?")
    client.send("tasks/cancel", taskId=task["taskId"])
    assert client.send("tasks/get", taskId=task["taskId"])["status"] == "cancelled"
    other = connected(agents(gate, store))
    assert other.send("tasks/get", taskId=task["taskId"])["status"] == "cancelled"
    gate.opened.set()


def test_a_run_of_another_name_is_no_task(connected: Any, gate: Gate) -> None:
    store = MemoryStore()
    gate.opened.set()
    client = connected(agents(gate, store))
    done = client.call("agent", question="?")
    assert done["structuredContent"] == {"answer": "paid"}
    (line,) = Run.list(store)
    assert client.refused("tasks/get", taskId=f"{line.id}x").code == -32602
    assert client.refused("tasks/get", taskId=line.id.partition(".")[0]).code == -32602


class Fails(Module):
    """Fails."""

    async def aforward(self, question: str) -> str:
        await asyncio.sleep(0.7)
        raise RuntimeError(question)


def test_a_failed_program_is_an_error_result_for_every_server(connected: Any) -> None:
    store = MemoryStore()
    client = connected(MCPApp({"fails": Fails()}, store=store))
    task = client.call("fails", question="why")
    done = client.until(task, "completed")
    assert (done["result"]["isError"], "why" in text_of(done)) == (True, True)
    again = connected(MCPApp({"fails": Fails()}, store=store)).until(task, "completed")
    assert again["result"]["isError"]


def test_a_task_belongs_to_the_owner_of_the_token_that_made_it(gate: Gate) -> None:
    gate.opened.set()
    app = MCPApp([gate.work], tasks={"*": "required"})
    about = {CAPABILITIES: DECLARED, "io.modelcontextprotocol/protocolVersion": "2026-07-28"}

    async def send(
        web: httpx2.AsyncClient,
        who: str,
        method: str,
        name: str,
        /,
        **params: Any,
    ) -> dict[str, Any]:
        headers = {
            "authorization": f"Bearer {who}", "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28", "mcp-method": method, "mcp-name": name,
        }  # fmt: skip
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": about}}
        said = (await web.post("/mcp", json=body, headers=headers)).text
        found: dict[str, Any] = json.loads(said.partition("data: ")[2] or said)
        return found

    async def go() -> None:
        asgi = app.asgi(verify_token=lambda token: token)
        async with (
            asgi.router.lifespan_context(asgi),
            httpx2.AsyncClient(
                transport=httpx2.ASGITransport(asgi),
                base_url="http://127.0.0.1:8000",
            ) as web,
        ):
            task = (await send(web, "ann", "tools/call", "work", name="work", arguments={}))[
                "result"
            ]["taskId"]
            assert (await send(web, "ann", "tasks/get", task, taskId=task))["result"][
                "status"
            ] == "completed"
            assert (await send(web, "bob", "tasks/get", task, taskId=task))["error"][
                "code"
            ] == -32602
            assert (await send(web, "ann", "tasks/get", "other", taskId=task))["error"][
                "code"
            ] == -32020

    asyncio.run(go())
