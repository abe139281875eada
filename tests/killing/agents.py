"""The scenarios: what an agent is told to do, by which tools, in which mode, and what a person says
to it.

A turn of the model is a text: `"pay 1"` is one call, `"pay 3 + fetch 4"` are two at once. Every
call names what it does to the world.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from agent_script import text_step
from wire_servers import serve

from ferrule import (
    LM,
    BaseLM,
    Context,
    FallbackLM,
    Grant,
    Later,
    Load,
    NotDone,
    ReAct,
    Request,
    Response,
    Tool,
    Toolbox,
    ToolCall,
    module_callback,
)
from ferrule.errors import DecisionError, UnavailableError
from ferrule.testing import ScriptedLM
from killing import stores
from killing.world import RUN, World

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ferrule import Decision, Question

EFFECTS = {
    "look": "read", "unlock": "read", "train": "read", "survey": "read",
    "pay": "once", "pay_later": "once", "refund": "once", "desk.refund": "once", "sign": "once", "wipe": "once", "hint": "once or told",
    "fetch": "idempotent", "fetch_later": "idempotent", "deposit": "idempotent",
    "order": "transactional", "ship": "reconciled",
    "halt": "idempotent", "drop": "idempotent",
    "build": "once", "remind": "idempotent", "promise": "idempotent",
    "slip": "idempotent", "slip_later": "idempotent",
}  # fmt: skip
CLERK = ("pay {n}1", "refund {n}2", "order {n}3 + fetch {n}4")
"""What the agent that is a tool does with `n`."""


@dataclass(frozen=True)
class Scenario:
    """One kind of run."""

    name: str
    turns: tuple[str, ...]
    decisions: Mapping[str, str] = field(default_factory=dict[str, str])
    """What a person says to the question about a call, if not `approve`: `edit 9`, `deny`, `reply`,
    `grant 2`.
    """
    is_native: bool = True
    is_async: bool = False
    wire: str = ""
    """The protocol of the model, if it is on the other side of a socket."""
    full_sync: bool = False
    roles: tuple[str, ...] = ()
    """What the first processes do, if it is not `worker` and `person` in turn."""
    falls_back: bool = False
    """Whether the first model fails in the middle of the run, and a second one goes on."""
    is_read: bool = False
    """Whether each process reads the run that it loaded, its trajectory and messages, before it
    goes on.
    """
    decides_singly: bool = False
    """Whether a person decides one question at a time, the last one first, and the run goes on
    after each.
    """
    asks_at_once: int = 1
    """How many calls of models may be under way at once, so that one strike leaves as many without
    an answer.
    """
    snippets: int = 0
    """In how many pieces of code the model makes its calls, if it makes them in code."""
    is_fork: bool = False
    """Whether the run is a fork of one that got to its first question, or as far as its process
    lived.
    """
    is_spawned: bool = False
    """Whether its processes are new interpreters and not forks."""
    chooses: Literal["run", "step"] | None = None
    """How often functions choose its instructions and tools, which differ in each process."""

    @cached_property
    def questions(self) -> frozenset[str]:
        """The calls that a person must be asked about: all that ask, but for those that a grant
        covers.
        """
        asked, granted = set[str](), 0
        for what in self._whats():
            if what.split()[0] in {"refund", "desk.refund", "sign"}:
                granted -= 1
                if granted < 0:
                    asked.add(what)
                    match self.decisions.get(what, "approve").split():
                        case ["grant", calls]:
                            granted = int(calls)
                        case _:
                            granted = 0
        return frozenset(asked)

    @cached_property
    def calls(self) -> dict[str, str]:
        """What must have happened in the end, with the kind of its effect."""
        return dict(self._calls())

    def _calls(self) -> Iterator[tuple[str, str]]:
        for what in self._whats():
            name, n = what.split()
            if name in {"part", "skill"}:  # a read: nothing happens in the world
                continue
            match self.decisions.get(what, "approve").split():
                case ["edit", other]:
                    yield f"{name} {other}", EFFECTS[name]
                case ["deny" | "reply"]:
                    pass
                case _:
                    yield f"{name} {n}", EFFECTS[name]

    def _whats(self) -> Iterator[str]:
        for each in (each for turn in self.turns for each in turn.split(" + ")):
            if each.startswith("clerk "):
                yield from (
                    inner for turn in CLERK for inner in turn.format(n=each.split()[1]).split(" + ")
                )
            else:
                yield each


EVERY = (
    "look 0",
    "pay 1",
    "fetch 2",
    "pay 3 + fetch 4 + order 5",
    "ship 6",
    "refund 7",
    "order 8",
    "fetch_later 9",
    "deposit 10",
)
"""Every effect; three calls at once; a question; an async tool."""
ONE_BY_ONE = ("look 0", "pay 1", "fetch 2", "order 3", "refund 4", "pay 5", "hint 6", "order 7")
CAREFUL = ("refund 1 + refund 2", "pay 3", "refund 4", "refund 5", "order 6", "refund 7")

TOGETHER = ("refund 1 + refund 2 + pay 3 + refund 4", "clerk 5 + refund 6 + clerk 7 + refund 8")
"""Several questions of one step: its own, and those of agents below."""
SAID = {"refund 2": "edit 92", "refund 4": "deny", "refund 8": "reply"}

SLIPPING = (
    "look 0",
    "slip 1",
    "pay 2",
    "slip_later 3 + fetch 4",
    "refund 5 + slip 6",
    "order 7",
    "slip_later 8",
)
"""Tools out of which a `CancelledError` comes, though nobody cancelled."""

OUTSIDE = (
    "build 1",
    "remind 2",
    "build 3 + build 4 + pay 5",
    "promise 6",
    "refund 7 + remind 8",
    "build 9",
)
"""Results from outside, and messages to the run: of its own tools, and of the world that delivers.
"""

LONG = ("survey 1", "pay 2", "part 1 + survey 3", "refund 4", "part 3 + order 5", "part 1")
"""Results that the model is not shown whole, and reads later."""

CHOSEN = ("look 0", "skill 1 + pay 2", "fetch 3", "refund 4 + skill 5", "order 6", "pay 7")
"""A skill is read, and what the agent is told and offered is chosen when the run begins."""

WIRES = ("openai_chat", "openai_responses", "anthropic", "gemini")
_IN_CODE = (
    "refund 1", "pay 2 + look 3", "order 4", "fetch 5 + refund 6", "ship 7", "deposit 8 + pay_later 9",
    "hint 10", "order 11 + refund 12",
)  # fmt: skip
"""Every effect, and questions among them: calls that are gathered, and others that are not."""


def _of_calls(count: int) -> tuple[str, ...]:
    """The turns with the first calls of `_IN_CODE`."""
    calls = [what for turn in _IN_CODE for what in turn.split(" + ")][:count]
    turns = [" + ".join(what for what in turn.split(" + ") if what in calls) for turn in _IN_CODE]
    return tuple(filter(None, turns))


def _in_code(count: int) -> Scenario:
    """One piece of code with so many calls: over one of the wires, or written in text."""
    wire = (*WIRES, "")[count % 5]
    return Scenario(
        f"code of {count} calls, {wire or 'text'}",
        _of_calls(count),
        {"refund 6": "deny"},
        is_native=bool(wire),
        is_async=count % 2 == 0,
        wire=wire,
        snippets=1,
    )


AT_ONCE = (
    "build 1 + halt 2",
    "remind 3 + drop 4",
    "halt 5 + drop 6 + build 7 + pay 8",
    "promise 9 + halt 10",
    "refund 11 + drop 12",
)
"""Results from outside, messages to the run, and calls that hang until they are cancelled,
together.
"""

SCENARIOS = (
    Scenario("every effect", EVERY),
    Scenario("every effect, async", EVERY, is_async=True),
    Scenario("text mode", ONE_BY_ONE, is_native=False),
    Scenario("text mode, async", ONE_BY_ONE, is_native=False, is_async=True),
    Scenario("nested agents", ("look 0", "clerk 1 + clerk 2", "pay 3", "clerk 4"), asks_at_once=2),
    Scenario("nested agents, async", ("clerk 1 + clerk 2", "clerk 4", "pay 3"), is_async=True, asks_at_once=2),
    Scenario("in parallel", ("pay 1 + pay 2 + pay 3 + fetch 4", "order 5 + order 6 + pay_later 7 + ship 8", "refund 9 + refund 10 + hint 11")),
    Scenario("in parallel, async", ("pay_later 1 + pay_later 2 + fetch_later 3", "order 5 + order 6 + pay 7 + ship 8"), is_async=True),
    Scenario("edits", CAREFUL, {"refund 1": "edit 91", "refund 2": "deny", "refund 4": "edit 94", "refund 5": "reply"}),
    Scenario("cancelled tools", SLIPPING),
    Scenario("cancelled tools, async", SLIPPING, is_async=True),
    Scenario("fallback in mid-run", ("look 0", *EVERY[1:7]), falls_back=True),
    Scenario("fallback in mid-run, async", ("look 0", "clerk 1", "pay 3", "order 8"), is_async=True, falls_back=True, asks_at_once=2),
    Scenario("read when loaded", EVERY, is_read=True),
    Scenario("read when loaded, async", (*CAREFUL, "slip 8"), {"refund 4": "edit 94"}, is_async=True, is_read=True, falls_back=True),
    Scenario("asked together", TOGETHER, SAID, decides_singly=True, asks_at_once=2),
    Scenario("asked together, async", TOGETHER, SAID, is_async=True, decides_singly=True, asks_at_once=2),
    Scenario("decided meanwhile", ("sign 1 + sign 2 + pay 3", "sign 4 + clerk 5 + sign 6"), decides_singly=True, asks_at_once=2),
    Scenario("decided meanwhile, async", ("sign 1 + sign 2 + sign 3", "look 4"), is_async=True, decides_singly=True),
    Scenario("grants", tuple(f"refund {n}" for n in range(1, 7)), {"refund 1": "grant 2", "refund 4": "grant 1"}),
    Scenario("a model over HTTP", ONE_BY_ONE, wire="openai_chat"),
    Scenario("a model over HTTP, async", ONE_BY_ONE, wire="openai_chat", is_async=True),
    Scenario("loaded tools", ("unlock 0", "desk.refund 1", "train 2", "wipe 3", "desk.refund 4"), {"desk.refund 4": "edit 44"}),
    Scenario("told of the unknown", ("hint 1", "order 2", "hint 3 + hint 4", "look 5", "hint 6")),
    Scenario("full sync", ONE_BY_ONE, full_sync=True),
    Scenario("cancelled", ONE_BY_ONE, roles=("worker", "canceller", "worker", "person", "canceller")),
    Scenario("the world answers", OUTSIDE),
    Scenario("the world answers, async", OUTSIDE, is_async=True),
    Scenario("an end at once", AT_ONCE),
    Scenario("an end at once, async", AT_ONCE, is_async=True),
    Scenario("an end at once, code", ("halt 1 + pay 2", "drop 3", "fetch 4 + halt 5", "drop 6"), snippets=2),
    Scenario("a fork", EVERY, is_fork=True),
    Scenario("a fork, async", ("pay 1 + fetch 2 + order 3", "deposit 4", "clerk 5 + refund 6", "pay 7"), is_fork=True, is_async=True, asks_at_once=2),
    Scenario("a fork, code", EVERY, is_fork=True, snippets=2),
    Scenario("spawned", EVERY, is_spawned=True),
    Scenario("long results", LONG),
    Scenario("long results, async", LONG, is_async=True),
    Scenario("chosen for the run", CHOSEN, chooses="run"),
    Scenario("chosen for each step, async", CHOSEN, chooses="step", is_async=True),
    Scenario("code", EVERY, snippets=2),
    Scenario("code, async", EVERY, snippets=2, is_async=True),
    Scenario("code with edits", CAREFUL, {"refund 1": "edit 91", "refund 2": "deny", "refund 4": "edit 94", "refund 5": "reply"}, snippets=2),
    Scenario("code in text", ONE_BY_ONE, snippets=2, is_native=False),
    Scenario("code with an agent", ("look 0", "clerk 1", "pay 3 + refund 4"), snippets=2),
    *map(_in_code, range(1, 13)),
)  # fmt: skip

# One call at a time: a sync tool in a thread cannot be stopped, so its effect may come after a
# person was asked about it.
_ALONE = (
    "look 0", "pay 1", "fetch 2", "order 3", "refund 4", "pay 5", "hint 6", "order 7", "deposit 8", "pay 9",
    "order 10", "ship 11", "pay 12",
)  # fmt: skip
_AWAITED = (
    "look 0", "pay_later 1", "fetch_later 2", "order 3", "pay_later 4 + fetch_later 5", "order 6",
    "pay_later 7", "look 8", "order 9",
)  # fmt: skip
INTERRUPTED = (
    Scenario("interrupted", _ALONE, full_sync=True),
    Scenario("interrupted, async", _AWAITED, is_async=True),
    Scenario("interrupted, text mode", _ALONE, is_native=False),
    Scenario(
        "interrupted, cancelled tools",
        ("look 0", "slip 1", "pay 2", "slip_later 3", "order 4", "slip 5", "pay 6"),
        is_read=True,
    ),
    Scenario(
        "interrupted, cancelled tools, async",
        ("look 0", "slip_later 1", "pay_later 2", "slip_later 3", "order 4"),
        is_async=True,
        falls_back=True,
    ),
    Scenario("interrupted code, text", _ALONE, is_native=False, snippets=2),
    Scenario("interrupted code, async", _AWAITED, is_async=True, snippets=2),
    *[Scenario(f"interrupted code, {wire}", _ALONE, wire=wire, snippets=2) for wire in WIRES],
)
"""Those whose processes get Ctrl-C."""


# -- the model
# ---------------------------------------------------------------------------------------------------


def answer_to(world: World, scenario: Scenario, request: Request) -> Response | str:
    """The model's answer.

    It follows from the conversation alone, so a fresh process goes on where the dead one was.
    """
    world.act("model", request.digest)
    if scenario.chooses is not None:
        [told] = re.findall(r"Your word is \d+", request.messages[0].text)
        if scenario.chooses == "run":
            told += f", with {[tool['function']['name'] for tool in request.tools]}"
        world.note(f"chosen {told}")
    opening = request.messages[1].text
    # A native conversation opens with the value of the only input, a text with its marker.
    clerk = re.fullmatch(r"(\d+)", opening) or re.search(r"## n ## \]\]\s*(\d+)", opening)
    turns = tuple(turn.format(n=clerk[1]) for turn in CLERK) if clerk else scenario.turns
    is_code = bool(scenario.snippets) and not clerk
    if is_code:
        size = -(-len(turns) // scenario.snippets)
        turns = tuple(_code(turns[first : first + size]) for first in range(0, len(turns), size))
    if scenario.is_native:
        turn = sum(message.role == "assistant" for message in request.messages)
        # What the run was told counts, too, but not what it was told at any time (`speaker`).
        seen = [
            message.text
            for message in request.messages[2:]  # after the task
            if message.role != "assistant" and not message.text.startswith(("word ", "Completed."))
        ]
    else:
        seen = re.findall(
            r"\[\[ ## observation_\d+ ## \]\]\n(.*?)\s*(?=\n\[\[ ## |\Z)",
            "\n".join(message.text for message in request.messages[1:]),
            re.DOTALL,
        )
        turn = len(seen)
    if turn >= len(turns):
        calls = [_finish(" | ".join(line for text in seen for line in text.splitlines()))]
    elif is_code:
        calls = [ToolCall(name="run_code", args={"code": turns[turn]}, id=f"code{turn}")]
    else:
        calls = [_call(each) for each in turns[turn].split(" + ")]
    if not scenario.is_native:
        return text_step("next", calls[0].name, calls[0].args)
    return Response("next", tuple(calls))


_SAY = """\
import asyncio

async def say(call):
    try:
        return await call
    except (ToolDeniedError, ToolError) as error:
        return str(error)

"""


def _code(turns: Sequence[str]) -> str:
    """A snippet with the calls of these turns, which prints what came of each.

    Turns of one call, one after another, are a loop.
    """
    lines: list[str] = []
    for is_alone, group in groupby(turns, key=lambda turn: " + " not in turn):
        calls = [[what.split() for what in turn.split(" + ")] for turn in group]
        if is_alone:
            pairs = ", ".join(f"({_function(name)}, {n})" for [(name, n)] in calls)
            lines.append(f"for tool, n in [{pairs}]:\n    print(await say(tool(n)))\n")
            continue
        for turn in calls:
            said = ", ".join(f"say({_function(name)}(n={n}))" for name, n in turn)
            lines.append(f"print(*await asyncio.gather({said}), sep='\\n')\n")
    return _SAY + "".join(lines)


def _function(tool_name: str) -> str:
    return tool_name.replace(".", "_")


def _call(what: str) -> ToolCall:
    name, n = what.split()
    if name == "part":  # of the long result of an earlier call, which the model was not shown
        args: dict[str, Any] = {"call": f"c{n}", "start": 50_000, "length": 30}
        return ToolCall(name="read_result", args=args, id=f"p{n}")
    if name == "skill":
        return ToolCall(name="read_skill", args={"skill": "kind-letters"}, id=f"s{n}")
    return ToolCall(name=name, args={"n": int(n)}, id=f"c{n}")


def _finish(answer: str) -> ToolCall:
    return ToolCall(name="finish", args={"answer": answer})


@contextmanager
def served(root: Path) -> Iterator[str]:
    """The model behind a socket, in a process of its own; yields its address.

    The task of a run names its folder in `root`.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        scenarios = {scenario.name: scenario for scenario in (*SCENARIOS, *INTERRUPTED)}

        def by(request: Request) -> Response | str:
            opening = request.messages[1].text
            task = re.fullmatch(r"(\S+)", opening) or re.search(r"task ## \]\]\s*(\S+)", opening)
            if task is None:
                return "no task"
            world = World(root / task[1])
            return answer_to(world, scenarios[world.scenario], request)

        with serve(ScriptedLM(by=by)) as server:
            os.write(write, server.base_url.encode())
            os.close(write)
            signal.pause()
    os.close(write)
    with os.fdopen(read) as pipe:
        address = pipe.read()
    try:
        yield address
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


class Scripted(BaseLM):
    """The model in this process."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        super().__init__()
        self._world = world
        self._scenario = scenario

    def complete(self, request: Request) -> Response:
        found = answer_to(self._world, self._scenario, request)
        return found if isinstance(found, Response) else Response(found)


class Failing(Scripted):
    """A model that thinks aloud, and fails from the third turn on."""

    def complete(self, request: Request) -> Response:
        if sum(message.role == "assistant" for message in request.messages) >= 2:
            raise UnavailableError("The first model is down.")
        return msgspec.structs.replace(super().complete(request), reasoning="thought of the first")


# -- the agent
# ---------------------------------------------------------------------------------------------------


def agent_in(world: World, scenario: Scenario, server: str) -> tuple[ReAct, tuple[Any, ...]]:
    """The agent, whose tools act in a world, and the tools that it can load.

    `server` is the address of the HTTP model.
    """
    tools, shelf = _tools(world, scenario)
    own = [tools[name] for name in tools if name != "wipe"]
    lm: BaseLM = Scripted(world, scenario)
    if scenario.wire:
        lm = LM(server, model="m", api_key="", wire=scenario.wire)
    if scenario.falls_back:
        lm = FallbackLM([Failing(world, scenario), lm])
    if any("clerk" in turn for turn in scenario.turns):
        clerk = ReAct("n: int -> answer", tools=tuple(own), native=scenario.is_native)
        clerk.set_lm(lm)
        own.append(clerk.as_tool("clerk", "Works on `n`."))
    spill_over = None
    if any("survey" in turn for turn in scenario.turns):
        spill_over = 20_000
    skills = None
    if any("skill" in turn for turn in scenario.turns):
        skills = Path(__file__).parent / "skills"
    options: dict[str, Any] = {}
    if scenario.chooses is not None:
        options = {
            "instructions": lambda: f"Your word is {os.getpid()}.",
            "tools_for": lambda: _in_another_order(agent),
            "tools_each": scenario.chooses,
        }
    agent = ReAct(
        "task -> answer",
        tools=Toolbox(own, shelf=shelf, spill_over=spill_over, skills=skills),
        native=scenario.is_native,
        calls="code" if scenario.snippets else None,
        **options,
    )
    agent.set_lm(lm)
    return agent, (tools["wipe"], *shelf)


def _in_another_order(agent: ReAct) -> list[str]:
    """The names of an agent's own tools, in another order in each process."""
    names = [name for name in agent.tools if name != "finish"]
    Random(os.getpid()).shuffle(names)
    return names


def _hanging(world: World) -> list[Tool]:
    """Tools that hang until their call is cancelled, which they have done from outside."""

    def cancel(what: str, ctx: Context) -> None:
        world.store().cancel_call(ctx.run_id, ctx.call_id, result=f"{what} cancelled", by="ann")
        world.note(f"ended {what}")
        world.point("ended")

    def halt(n: int, ctx: Context) -> str:
        world.act(f"halt {n}", ctx.key)
        cancel(f"halt {n}", ctx)
        while not ctx.cancelled:
            time.sleep(0.01)
        return "late"

    async def drop(n: int, ctx: Context) -> str:
        world.act(f"drop {n}", ctx.key)
        cancel(f"drop {n}", ctx)
        await asyncio.sleep(600)
        return "late"

    return [Tool(halt, "halt", effect="idempotent"), Tool(drop, "drop", effect="idempotent")]


def _tools(world: World, scenario: Scenario) -> tuple[dict[str, Tool], list[Tool]]:
    def does(name: str) -> Any:
        def act(n: int, ctx: Context) -> str:
            return world.act(f"{name} {n}", ctx.key)

        return act

    def later(name: str) -> Any:
        async def act(n: int, ctx: Context) -> str:
            await asyncio.sleep(0)
            done = world.act(f"{name} {n}", ctx.key)
            await asyncio.sleep(0)
            return done

        return act

    def order(n: int, ctx: Context) -> str:
        world.point("order")
        stores.order(world, ctx.db, n)
        world.point("ordered")
        return f"order {n} done"

    def deposit(n: int, ctx: Context) -> str:
        world.bank(ctx.key, f"deposit {n}")
        return world.act(f"deposit {n}", ctx.key)

    def build(n: int, ctx: Context) -> str | Later:
        world.act(f"build {n}", ctx.key)
        return Later(key=f"build {n}")

    def speaks(name: str, when: Any) -> Any:
        def act(n: int, ctx: Context) -> str:
            world.store().say(ctx.run_id, f"{name} {n} said", when=when, key=f"{name} {n}")
            return world.act(f"{name} {n}", ctx.key)

        return act

    def shipped(key: str, n: int) -> Any:
        return f"ship {n} done" if world.has(f"ship {n}", key) else NotDone

    def unlock(n: int) -> Load:
        world.act(f"unlock {n}")
        return Load("desk.*")

    def train(n: int) -> Any:
        @module_callback
        def change(context: Any) -> str:
            context.module.init_module(tools=[*context.module.tools.values(), wipe])
            return world.act(f"train {n}")

        return change

    def sign(n: int, ctx: Context) -> str:
        done = world.act(f"sign {n}", ctx.key)
        # While this call runs, a person decides the next question of its step.
        store = world.store()
        judge_one(world, scenario, store, store.summary(RUN))
        return done

    wipe = Tool(does("wipe"), "wipe")
    made = [
        _surveying(world), Tool(does("look"), "look", effect="read"), Tool(does("pay"), "pay"), Tool(later("pay_later"), "pay_later"),
        Tool(does("fetch"), "fetch", effect="idempotent"), Tool(later("fetch_later"), "fetch_later", effect="idempotent"),
        Tool(deposit, "deposit", effect="idempotent"), Tool(order, "order", effect="transactional"),
        Tool(does("ship"), "ship", reconcile=shipped), Tool(does("hint"), "hint", unknown="tell"),
        Tool(does("refund"), "refund", require_confirmation=True), Tool(build, "build"),
        Tool(sign, "sign", require_confirmation=True), *_slipping(world),
        *_hanging(world),
        Tool(speaks("remind", "next"), "remind", effect="idempotent"),
        Tool(speaks("promise", "after"), "promise", effect="idempotent"),
        Tool(unlock, "unlock", effect="read"), Tool(train, "train", effect="read"), wipe,
    ]  # fmt: skip
    return {each.name: each for each in made}, [
        Tool(does("desk.refund"), "desk.refund", require_confirmation=True),
    ]


def _surveying(world: World) -> Tool:
    """A tool with a long result."""

    def survey(n: int, ctx: Context) -> str:
        lines = [world.act(f"survey {n}", ctx.key)]
        lines += [f"{n}.{line} is well" for line in range(10_000)]
        return "\n".join(lines)

    return Tool(survey, "survey", effect="read")


def _slipping(world: World) -> list[Tool]:
    """Tools out of which a `CancelledError` comes."""

    def slip(n: int, ctx: Context) -> str:
        world.act(f"slip {n}", ctx.key)
        raise asyncio.CancelledError(f"slip {n} slipped")

    async def slip_later(n: int, ctx: Context) -> str:
        world.act(f"slip_later {n}", ctx.key)
        await asyncio.sleep(0)
        raise asyncio.CancelledError(f"slip {n} slipped")

    return [Tool(slip, effect="idempotent"), Tool(slip_later, effect="idempotent")]


# -- the person
# --------------------------------------------------------------------------------------------------


def judge_one(world: World, scenario: Scenario, store: Any, line: Any) -> None:
    """Decide on the last question of a run that has no decision yet; note it if it is accepted."""
    for question in reversed(line.questions):
        if question.kind == "confirm" and question.id not in line.decided:
            with suppress(DecisionError):  # the run has moved on
                store.decide(line.id, decide(world, scenario, question).signed("bob", "kill-test"))
                world.note(f"decided {question.id}")
            return


def decide(world: World, scenario: Scenario, question: Question) -> Decision:
    """What a person says, who knows what has happened."""
    what = f"{question.call.name} {question.call.args['n']}"
    world.note(f"asked {question.kind} {what}")
    if question.kind == "unknown":
        return question.reply(f"{what} done") if world.has(what) else question.approve()
    match scenario.decisions.get(what, "approve").split():
        case ["edit", n]:
            return question.edit({"n": int(n)})
        case ["deny"]:
            return question.deny("not this one")
        case ["reply"]:
            return question.reply("ask again next year")
        case ["grant", calls]:
            return question.approve(always=Grant(args="any", calls=int(calls)))
        case _:
            return question.approve()
