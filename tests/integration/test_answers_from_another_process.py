"""Questions that are decided in another process than the one that asked, each kind of decision for
each form of a run.

Every run asks about payments, and who is to be paid says what will be decided: ada is approved, bob
edited, cleo denied, dan replied to, and nobody answers for eve in time. The program under test is
this very file, run as a script: `start`, `decide` and `go_on` are one process each for all the
runs.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import forked
import pytest

from ferrule import (
    Context,
    EventStream,
    ReAct,
    Response,
    Run,
    RunError,
    ToolCall,
    ask,
    context,
    respond_to_confirmation,
    tool,
)
from ferrule.errors import DecisionError
from ferrule.runs import decisions as confirm
from ferrule.runs.store.sqlite.store import SQLiteStore
from ferrule.testing import ScriptedLM

PEOPLE = ("ada", "bob", "cleo", "dan", "eve")
FORMS = ("sync", "async", "stream", "astream")
DOORS = ("by id", "store", "run")
RUNS = [
    f"{form} {shape} {who}"
    for form in FORMS
    for shape in ("plain", "nested")
    for who in (*PEOPLE, "all")
]
AN_HOUR_S = 3600.0


# -- the program


def agent(folder: Path, *, nested: bool) -> ReAct:
    """Pays whoever its task names, all in one turn; itself, or through an agent of its own."""

    def paid(run_id: str, to: str, euros: int) -> str:
        with (folder / "paid").open("a") as file:
            file.write(f"{run_id}: {to} {euros}\n")
        return f"paid {to} {euros}"

    @tool(require_confirmation=True)
    def pay(to: str, euros: int, ctx: Context) -> str:
        """Pay somebody."""
        return paid(ctx.run_id, to, euros)

    @tool(require_confirmation=ask(expires_s=AN_HOUR_S))
    def pay_soon(to: str, euros: int, ctx: Context) -> str:
        """Pay somebody, if it is agreed to in time."""
        return paid(ctx.run_id, to, euros)

    cashier = ReAct("task -> answer", [pay, pay_soon], native=True)
    return (
        ReAct("errand -> answer", [cashier.as_tool("cashier", "Pays.")], native=True)
        if nested
        else cashier
    )


def answer(request: Any) -> Response:
    """What the model says: the same in every process."""
    said = [message.text for message in request.messages if message.role == "tool"]
    if said:
        return Response("", (ToolCall(name="finish", args={"answer": "; ".join(said)}, id="end"),))
    opening = request.messages[1].text
    who = [name for name in PEOPLE if name in opening]
    if any(tool["function"]["name"] == "cashier" for tool in request.tools):
        return Response(
            "",
            tuple(ToolCall(name="cashier", args={"task": name}, id=f"c {name}") for name in who),
        )
    return Response(
        "",
        tuple(
            ToolCall(
                name="pay_soon" if name == "eve" else "pay",
                args={"to": name, "euros": 5},
                id=name,
            )
            for name in who
        ),
    )


def model() -> Any:
    return context(lm=ScriptedLM(by=answer))


# -- what a process does


def start(folder: Path, store: SQLiteStore) -> dict[str, Run]:
    """Start every run in its form; each waits."""
    return {
        run_id: _started(agent(folder, nested="nested" in run_id), run_id, store) for run_id in RUNS
    }


def _started(program: ReAct, run_id: str, store: SQLiteStore) -> Run:
    form, shape, who = run_id.split()
    inputs: dict[str, Any] = {
        "errand" if shape == "nested" else "task": " ".join(PEOPLE) if who == "all" else who,
    }
    match form:
        case "sync":
            return program.start(store=store, run_id=run_id, **inputs)
        case "async":
            return asyncio.run(program.astart(store=store, run_id=run_id, **inputs))
        case _:
            return _streamed(form, program.stream(store=store, run_id=run_id, **inputs))


def _streamed(form: str, stream: Any) -> Run:
    async def through() -> None:
        async for _ in stream:
            pass

    if form == "astream":
        asyncio.run(through())
    else:
        for _ in stream:
            pass
    return stream.run


def decide(folder: Path, store: SQLiteStore) -> None:
    """Decide on everything, each question at one of the doors; on eve's when her hour is over,
    which is too late.
    """
    lines = {line.id: line for line in Run.list(store, status="waiting")}
    assert sorted(lines) == sorted(RUNS)
    late = SQLiteStore(folder / "runs.db", clock=later)
    for run_id, line in lines.items():
        for question in line.questions:
            if question.call.args["to"] != "eve":
                _decide(folder, store, run_id, question)
                continue
            confirm.time = later
            with pytest.raises(DecisionError, match="expired without a decision"):
                _decide(folder, late, run_id, question)
            confirm.time = time.time
    late.close()


def _door(run_id: str, to: str) -> str:
    form, _, _ = run_id.split()
    return DOORS[(FORMS.index(form) + PEOPLE.index(to)) % len(DOORS)]


def _decide(folder: Path, store: SQLiteStore, run_id: str, question: Any) -> None:
    to: str = question.call.args["to"]
    responses: dict[str, Any] = {
        "bob": {"data": {"euros": 3}},
        "cleo": {"approved": False, "data": "too much"},
        "dan": {"status": "feedback", "data": "ask Bob"},
    }
    decisions = {
        "bob": question.edit({"euros": 3}),
        "cleo": question.deny("too much"),
        "dan": question.reply("ask Bob"),
    }
    decision = decisions.get(to, question.approve())
    match door := _door(run_id, to):
        case "by id":
            respond_to_confirmation(
                question.id,
                **responses.get(to, {}),
                store=store,
                by="grace",
                via=door,
            )
        case "store":
            store.decide(run_id, decision.signed(by="grace", via=door))
        case _:
            Run.load(store, run_id, agent(folder, nested="nested" in run_id)).answer(
                decision.signed(by="grace", via=door),
            )


def go_on(folder: Path, store: SQLiteStore, runs: dict[str, Run] | None = None) -> None:
    """Resume every run in its form, when eve's hour is over."""
    store._clock = later  # questions expire by it
    try:
        for run_id in RUNS:
            form, shape, _ = run_id.split()
            program = agent(folder, nested=shape == "nested")
            run = runs[run_id] if runs is not None else Run.load(store, run_id, program)
            if form == "sync":
                run.resume()
            elif form == "async":
                asyncio.run(run.aresume())
            else:
                _streamed(form, EventStream(run))
            assert run.status == "done", (run_id, run.error)
    finally:
        store._clock = time.time


def later() -> float:
    return time.time() + 2 * AN_HOUR_S


def main(what: str, folder: Path) -> None:
    store = SQLiteStore(folder / "runs.db", full_sync=False)
    with model():
        {"start": start, "decide": decide, "go_on": go_on}[what](folder, store)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    sys.exit()


# -- the test


def process(what: str, folder: Path) -> None:
    forked.run(__file__, what, folder).check_returncode()


SAID = {
    "ada": "paid ada 5",
    "bob": 'A person changed the arguments to {"to":"bob","euros":3}.\npaid bob 3',
    "cleo": "A person decided against this call; it was not run. Reason: too much",
    "dan": "ask Bob",
    "eve": "This call waited too long for a decision; it was not run.",
}
PAID = {"ada": ["ada 5"], "bob": ["bob 3"]}


def expected(run_id: str) -> dict[str, Any]:
    who = run_id.split()[2]
    names = PEOPLE if who == "all" else (who,)
    kinds = {"ada": "approve", "bob": "edit", "cleo": "deny", "dan": "reply"}
    return {
        "answer": "; ".join(SAID[name] for name in names),
        "paid": sorted(line for name in names for line in PAID.get(name, ())),
        "decided": sorted(
            ("deny", "", "expiry") if name == "eve" else (kinds[name], "grace", _door(run_id, name))
            for name in names
        ),
    }


def found(folder: Path, store: SQLiteStore, run_id: str) -> dict[str, Any]:
    run = Run.load(store, run_id, agent(folder, nested="nested" in run_id))
    paid = (line.split(": ") for line in (folder / "paid").read_text().splitlines())
    return {
        "answer": run.prediction.answer,
        "paid": sorted(what for by, what in paid if by == run_id),
        "decided": sorted((each.kind, each.by, each.via) for each in run.decisions),
    }


@pytest.mark.parametrize("goes_on", ["the_process_that_asked", "a_third_process"])
def test_every_decision_reaches_every_form_of_run_from_another_process(
    goes_on: str,
    tmp_path: Path,
) -> None:
    """Approve, edit, deny, reply and expiry; sync, async, streams; nested agents, parallel calls."""
    with model():
        store = SQLiteStore(tmp_path / "runs.db", full_sync=False)
        if goes_on == "a_third_process":
            process("start", tmp_path)
            process("decide", tmp_path)
            process("go_on", tmp_path)
        else:
            runs = start(tmp_path, store)
            process("decide", tmp_path)
            go_on(tmp_path, store, runs)
        assert {run_id: found(tmp_path, store, run_id) for run_id in RUNS} == {
            run_id: expected(run_id) for run_id in RUNS
        }
        store.close()


def test_of_forty_who_have_one_approved_run_in_hand_one_executes_it(tmp_path: Path) -> None:
    """Each with a connection and a `Run` of its own, as forty processes have; the others are told."""
    run_id, hands = "sync plain ada", 40
    stores = [SQLiteStore(tmp_path / "runs.db", full_sync=False) for _ in range(hands)]
    with model():
        _started(agent(tmp_path, nested=False), run_id, stores[0])
    runs = [Run.load(store, run_id, agent(tmp_path, nested=False)) for store in stores]
    decision = runs[0].pending[0].approve()
    together = threading.Barrier(hands)

    def contend(run: Run) -> str:
        together.wait()
        run.answer(decision)
        try:
            with model():
                return run.resume().status
        except RunError as error:
            return str(error)

    with ThreadPoolExecutor(hands) as pool:
        told = list(pool.map(contend, runs))
    for store in stores:
        store.close()
    assert (tmp_path / "paid").read_text().splitlines() == [f"{run_id}: ada 5"]
    assert told.count("done") == 1
    assert all(
        "at work on the run" in each or "finished elsewhere" in each
        for each in told
        if each != "done"
    ), told
