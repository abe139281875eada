"""Runs over MCP servers that ask: suspended in one process, answered in a second, finished in a
third (M57-M60).

The program under test is this very file, run as a script: `start`, `answer`, `go_on`. The server is
`tests/asking_server.py`, in both eras.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import mcp_servers
import pytest

import ferrule
from ferrule.errors import DecisionError, MCPTimeoutError
from ferrule.mcp_bridge.client.mcp_server import MCPServer
from ferrule.programs.react import ReAct
from ferrule.runs.run import Run
from ferrule.runs.store.sqlite.store import MemoryStore, SQLiteStore
from ferrule.testing.scripted import ScriptedLM

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")

SERVER = Path(__file__).parents[1] / "asking_server.py"
SCRIPT: list[Any] = [
    {"name": "note", "args": {"text": "one"}},
    {"name": "pay", "args": {"what": "rent"}},
    {"name": "book", "args": {"what": "table"}},
    {"name": "finish", "args": {"answer": "booked"}},
]


def server(folder: Path, era: str, **options: Any) -> MCPServer:
    return MCPServer.stdio(
        sys.executable,
        [str(SERVER), era, str(folder / "calls")],
        name="hall",
        ask_in_runs=True,
        **options,
    )


def agent(folder: Path, era: str, **options: Any) -> ReAct:
    """An agent with a local tool, and the tools of a server that nobody said to trust."""

    @ferrule.tool(effect="idempotent")
    def note(text: str) -> str:
        """Note something."""
        return f"noted {text}"

    return ReAct("task -> answer", [note, *server(folder, era, **options).tools])


class Replaying(ScriptedLM):
    """Answers by how many answers are in the request already: the same in every process."""

    def complete(self, request: Any) -> Any:
        steps = sum(message.role == "assistant" for message in request.messages)
        return ScriptedLM([SCRIPT[steps]]).complete(request)


def called(folder: Path) -> list[str]:
    return [
        line.removeprefix("call ")
        for line in (folder / "calls").read_text().splitlines()
        if line.startswith("call")
    ]


def main(what: str, folder: Path, era: str) -> None:
    store = SQLiteStore(folder / "runs.db")
    ferrule.configure(lm=Replaying([]))
    if what == "start":
        run = agent(folder, era, confirm=True).start(task="Book a table.", store=store, run_id="r")
    elif what == "go_on":
        run = Run.load(store, "r", agent(folder, era, confirm=True)).resume()
    else:
        [line] = Run.list(store, status="waiting")
        [question] = line.questions
        store.decide(line.id, question.decide(what).signed("ann", "test"))
        sys.stdout.write(json.dumps(vars_of(question)))
        return
    observed = (
        [str(each) for name, each in run.trajectory.items() if name.startswith("observation")]
        if run.status == "done"
        else []
    )
    sys.stdout.write(
        json.dumps({"status": run.status, "error": str(run.error), "observed": observed}),
    )


def vars_of(question: Any) -> dict[str, Any]:
    return {
        name: getattr(question, name) for name in ("kind", "text", "server", "original", "form")
    }


def process(what: str, folder: Path, era: str) -> dict[str, Any]:
    done = forked.run(__file__, what, folder, era)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_run_waits_for_consent_and_for_two_forms_over_six_processes(
    tmp_path: Path,
    era: str,
) -> None:
    """The server, the tool's name there and the arguments are shown; no process lives while the run
    waits.
    """
    assert process("start", tmp_path, era)["status"] == "waiting"
    assert (
        called(tmp_path) == []
    )  # `pay` is declared destructive: it is asked about before anything is sent
    asked = process("yes", tmp_path, era)
    assert asked["kind"] == "confirm"
    assert (asked["server"], asked["original"]) == ("hall", "pay")
    assert (
        asked["text"]
        == "Confirm execution of pay ('pay' of the MCP server 'hall') with args: {\"what\":\"rent\"}? (yes/no)"
    )

    assert process("go_on", tmp_path, era)["status"] == "waiting"
    assert called(tmp_path) == ["pay"]
    assert process("yes", tmp_path, era)["original"] == "book"

    assert process("go_on", tmp_path, era)["status"] == "waiting"
    form = process('{"name": "Ann"}', tmp_path, era)
    assert form["kind"] == "input"
    assert form["form"]["required"] == ["name"]
    assert "'hall' asks for `name` (string), `title`" in form["text"]
    assert "Who are you?" in form["text"]

    assert process("go_on", tmp_path, era)["status"] == "waiting"
    assert "How many seats?" in process("2", tmp_path, era)["text"]
    ended = process("go_on", tmp_path, era)

    assert ended["status"] == "done", ended
    assert json.loads(ended["observed"][2]) == [{"title": "Dr", "name": "Ann"}, {"seats": 2}]
    assert called(tmp_path) == ["pay", "book", "book", "book"]


# -- in one process


def model(*steps: Any) -> ScriptedLM:
    return ScriptedLM([*steps, {"name": "finish", "args": {"answer": "done"}}])


def started(folder: Path, era: str, *steps: Any, **options: Any) -> Any:
    with ferrule.context(lm=model(*steps)):
        return agent(folder, era, trust=True, confirm=False, **options).start(task="x")


def resumed(run: Any) -> Any:
    with ferrule.context(lm=model()):
        return run.resume()


def killed_in_its_last_call(run: Any) -> Run:
    """The run as a crash in the last call that began leaves it."""
    text = json.loads(run.to_json())
    at = max(k for k, entry in enumerate(text["journal"]) if entry["kind"] == "begun")
    return Run.from_json(
        json.dumps(
            {**text, "journal": text["journal"][: at + 1], "status": "running", "questions": []},
        ),
        run.program,
    )


BOOK: Any = {"name": "book", "args": {}}


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_resuming_without_an_answer_sends_nothing(tmp_path: Path, era: str) -> None:
    run = started(tmp_path, era, BOOK)
    first = run.pending
    assert resumed(run).status == "waiting"
    assert run.pending == first
    assert called(tmp_path) == ["book"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_question_that_is_declined_ends_as_the_server_likes(tmp_path: Path, era: str) -> None:
    """The model gets a normal observation."""
    run = started(tmp_path, era, BOOK)
    run.answer(run.pending[0].deny())
    assert resumed(run).status == "done"
    assert run.trajectory["observation_0"] == "not booked: {'action': 'decline'}"


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_one_that_nobody_answers_in_time_is_cancelled(
    tmp_path: Path,
    era: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A deadline for questions."""
    run = started(tmp_path, era, BOOK, input_expires_s=60)
    ends = run.pending[0].expires_at
    monkeypatch.setattr("ferrule.runs.driver.approval.time", lambda: ends + 1)
    assert resumed(run).status == "done"
    assert run.trajectory["observation_0"] == "not booked: {'action': 'cancel'}"


def test_values_that_do_not_fit_the_form_are_refused_and_the_question_stays(tmp_path: Path) -> None:
    run = started(tmp_path, "modern", BOOK)
    [question] = run.pending
    with pytest.raises(DecisionError, match="name"):
        run.answer(question.fill({"name": 7}))
    with pytest.raises(DecisionError, match="name"):
        run.answer(question.reply("{}"))
    run.answer(question.fill({"name": "Ann"}))
    assert resumed(run).pending[0].text.endswith("How many seats?")


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_page_is_shown_with_its_host_and_opened_by_nobody(tmp_path: Path, era: str) -> None:
    """Url mode."""
    run = started(tmp_path, era, {"name": "page", "args": {}})
    [question] = run.pending
    assert (question.url, question.form) == ("https://login.example/x?y=1", None)
    assert "open a page on login.example: https://login.example/x?y=1" in question.text
    run.answer(question.approve())
    assert resumed(run).status == "done"
    assert run.trajectory["observation_0"] == (
        '{"action": "accept"}' if era == "legacy" else "[null]"
    )


@pytest.mark.parametrize(
    ("era", "told"),
    [("legacy", "not booked: {'action': 'decline'}"), ("modern", "nobody can be asked")],
)
def test_outside_a_run_nobody_is_asked(tmp_path: Path, era: str, told: str) -> None:
    """The headless default."""
    with server(tmp_path, era) as tools:
        assert tools["book"]() == told


def test_without_the_option_the_older_era_is_not_told_that_it_may_ask(tmp_path: Path) -> None:
    bare = MCPServer.stdio(sys.executable, [str(SERVER), "legacy", str(tmp_path / "calls")])
    bare.connect()
    assert bare.client.questions.hook is None
    bare.close()


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_hook_is_asked_before_the_run(tmp_path: Path, era: str) -> None:
    async def elicit(params: dict[str, Any]) -> dict[str, Any]:
        return {"action": "accept", "content": {"asked": params["message"]}}

    run = started(tmp_path, era, BOOK, elicit=elicit)
    assert json.loads(run.trajectory["observation_0"]) == [
        {"asked": "Who are you?"},
        {"asked": "How many seats?"},
    ]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_calls_of_one_turn_wait_side_by_side_and_each_gets_its_own_answers(
    tmp_path: Path,
    era: str,
) -> None:
    calls = [
        ferrule.ToolCall(name=name, args={"what": name}, id=str(k))
        for k, name in enumerate(("book", "pay", "book"))
    ]
    calls[2] = calls[2].changed(args={"what": "b"})

    async def whole() -> Any:
        asking = await server(tmp_path, era, trust=True, confirm=False).atools()
        with ferrule.context(lm=ScriptedLM([ferrule.Response(tool_calls=tuple(calls))])):
            run = await ReAct("task -> answer", [*asking], native=True).astart(task="x")
        for names in (("Ann", "Bob"), ("3", "4")):
            assert [each.call.args for each in run.pending] == [{"what": "book"}, {"what": "b"}]
            for question, said in zip(run.pending, names, strict=True):
                run.answer(question.decide(said))
            with ferrule.context(lm=model()):
                await run.aresume()
        return run

    run = asyncio.run(whole())
    assert run.status == "done", run.error
    found = [
        json.loads(str(result.content))
        for result in run.trajectory.steps[0].results
        if result.name == "book"
    ]
    assert [(each[0]["name"], each[1]["seats"]) for each in found] == [("Ann", 3), ("Bob", 4)]
    assert called(tmp_path).count("pay") == 1


def test_a_crash_after_the_answer_is_a_call_that_may_have_run(tmp_path: Path) -> None:
    """What is left by a question is made again unasked; what is left by a crash is not."""
    run = started(tmp_path, "legacy", BOOK)
    run.answer(run.pending[0].fill({"name": "Ann"}))
    resumed(run)
    run.answer(run.pending[0].fill({"seats": 2}))
    resumed(run)
    with ferrule.context(lm=model()):
        again = killed_in_its_last_call(run).resume()
        assert [each.kind for each in again.pending] == ["unknown"]
        again.answer(again.pending[0].approve())
        assert again.resume().status == "done", again.error
    assert json.loads(again.trajectory["observation_0"])[1] == {"seats": 2}


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("how", ["approve", "reply", "deny"])
def test_a_crash_between_two_questions_leaves_a_call_that_any_decision_settles(
    tmp_path: Path,
    era: str,
    how: str,
) -> None:
    """Its earlier questions are not replayed once the call has a result, and are found again if it
    is made again.
    """
    run = started(tmp_path, era, BOOK)
    run.answer(run.pending[0].fill({"name": "Ann"}))
    resumed(run)
    with ferrule.context(lm=model()):
        again = killed_in_its_last_call(run).resume()
        [unknown] = again.pending
        again.answer(
            {
                "approve": unknown.approve(),
                "reply": unknown.reply("booked"),
                "deny": unknown.deny(),
            }[how],
        )
        again.resume()
        if how == "approve":
            [seats] = again.pending
            assert seats.kind == "input"
            again.answer(seats.fill({"seats": 2}))
            again.resume()
    assert again.status == "done", again.error


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_question_of_a_server_expires_by_the_clock_of_the_store(tmp_path: Path, era: str) -> None:
    """The machine may be ten minutes behind."""
    store = MemoryStore(clock=lambda: time.time() + 600)
    with ferrule.context(lm=model(BOOK)):
        run = agent(tmp_path, era, trust=True, confirm=False, input_expires_s=300).start(
            task="x",
            store=store,
        )
    assert run.pending[0].expires_at == pytest.approx(time.time() + 900, abs=100)
    run.answer(run.pending[0].fill({"name": "Ann"}))
    assert resumed(run).status == "waiting"
    assert "seats" in str(run.pending[0].form)


def test_a_server_that_takes_no_answer_for_an_error_is_asked_again_when_there_is_one(
    tmp_path: Path,
) -> None:
    run = started(tmp_path, "legacy", {"name": "book", "args": {"what": "strict"}})
    for values in ({"name": "Ann"}, {"seats": 2}):
        run.answer(run.pending[0].edit(values))  # as `respond_to_confirmation(id, data=...)` has it
        resumed(run)
    assert json.loads(run.trajectory["observation_0"])[1] == {"seats": 2}


def test_a_server_that_never_stops_asking_is_stopped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The most rounds."""
    monkeypatch.setattr("ferrule.runs.driver.elicitation.MOST_ROUNDS", 1)
    run = started(tmp_path, "modern", BOOK)
    run.answer(run.pending[0].fill({"name": "Ann"}))
    assert resumed(run).status == "done"
    assert "came back with questions 1 times" in run.trajectory["observation_0"]


def test_a_pushed_change_of_the_list_reaches_the_next_turn_and_the_run_goes_on_in_another_process(
    tmp_path: Path,
) -> None:
    """A real server says `list_changed` in the middle of a call.

    P69: the run that is resumed has the tool as well.
    """
    listed = [
        {"name": name, "description": f"To {name}.", "inputSchema": {"type": "object"}}
        for name in ("pay", "changed", "fly")
    ]

    def new_list() -> str:
        """Change what the server lists."""
        (tmp_path / "calls.tools").write_text(json.dumps(listed))
        return "written"

    def wait() -> str:
        """Wait for a person."""
        return "waited"

    steps = [{"name": name, "args": {}} for name in ("new_list", "changed", "fly", "book", "wait")]
    agent = ReAct(
        "task -> answer",
        [
            server(tmp_path, "legacy", trust=True, confirm=False),
            new_list,
            ferrule.Tool(wait, require_confirmation=True),
        ],
    )
    with ferrule.context(lm=ScriptedLM(steps)):
        run = agent.start(task="x")
    assert run.status == "waiting", run.error
    assert (tmp_path / "calls").read_text().count("list") == 2
    again = Run.from_json(run.to_json(), agent)
    again.answer(again.pending[0].approve())
    assert resumed(again).status == "done", again.error
    assert again.trajectory["observation_2"] == "done {}"
    assert (
        "no tool" in again.trajectory["observation_3"].lower()
        or "unknown" in again.trajectory["observation_3"].lower()
    )
    assert called(tmp_path) == ["changed", "fly"]


@pytest.mark.parametrize(
    "changed",
    [
        {"description": "To book, and to pay."},
        {"inputSchema": {"type": "object", "properties": {"what": {}}}},
    ],
)
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_an_answer_that_a_server_has_used_still_counts_when_it_describes_its_tool_anew(
    tmp_path: Path,
    era: str,
    changed: dict[str, Any],
) -> None:
    """The question that waits is asked again; the run failed, because the answer before had another
    digest.
    """
    book: dict[str, Any] = {
        "name": "book",
        "description": "To book.",
        "inputSchema": {"type": "object"},
    }
    (tmp_path / "calls.tools").write_text(json.dumps([book]))
    store = MemoryStore()
    with ferrule.context(lm=model({"name": "book", "args": {"what": "table"}})):
        run = ReAct("task -> answer", server(tmp_path, era).tools).start(
            task="x",
            store=store,
            run_id="r",
        )
        run.answer(run.pending[0].fill({"name": "Ann"}))
        [first] = run.resume().pending
        (tmp_path / "calls.tools").write_text(json.dumps([{**book, **changed}]))
        again = Run.load(store, "r", ReAct("task -> answer", server(tmp_path, era).tools)).resume()
        [second] = again.pending
        assert (first.id != second.id, first.text) == (True, second.text)
        again.answer(second.fill({"seats": 2}))
        assert again.resume().status == "done", again.error
    assert json.loads(again.trajectory["observation_0"]) == [
        {"title": "Dr", "name": "Ann"},
        {"seats": 2},
    ]
    assert called(tmp_path) == ["book"] * 3


def test_answers_of_a_hook_have_a_deadline_together(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A total deadline for questions that come back with the result."""
    now = [0.0]
    monkeypatch.setattr(
        "ferrule.mcp_bridge.client.client.time",
        SimpleNamespace(monotonic=lambda: now[0]),
    )

    async def elicit(params: dict[str, Any]) -> dict[str, Any]:
        now[0] += 100
        return {"action": "accept", "content": params}

    with (
        server(tmp_path, "modern", elicit=elicit, total_timeout_s=99) as tools,
        pytest.raises(MCPTimeoutError) as late,
    ):
        tools["book"]()
    assert late.value.phase == "input"


def test_every_field_of_a_real_servers_form_is_asked_and_its_answer_goes_back() -> None:
    """Server-everything asks for 13 fields, while its call is open."""
    everything = MCPServer.stdio(
        *_split(mcp_servers.command("everything"), "stdio"),
        trust=True,
        confirm=False,
    )
    agent_ = ReAct("task -> answer", [everything])
    with ferrule.context(lm=ScriptedLM([{"name": "trigger-elicitation-request", "args": {}}])):
        run = agent_.start(task="x")
    [question] = run.pending
    assert question.form is not None
    assert len(question.form["properties"]) == 13
    content = {
        name: field["default"]
        for name, field in question.form["properties"].items()
        if "default" in field
    }
    run.answer(question.fill({"name": "Ann"}))
    assert resumed(run).status == "done", run.error
    told = run.trajectory["observation_0"]
    assert "Ann" in told
    assert all(str(each) in told for each in content.values() if isinstance(each, str))
    everything.close()


def _split(words: list[str], *more: str) -> tuple[str, list[str]]:
    return words[0], [*words[1:], *more]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
