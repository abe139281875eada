"""The programs behind the stored runs and the saved programs that `make.py` makes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, model_validator

import ferrule
from ferrule import (
    Context,
    Grant,
    History,
    Image,
    InputField,
    Limits,
    Load,
    Module,
    OutputField,
    Policy,
    Predict,
    Prediction,
    ReAct,
    Response,
    Signature,
    Tool,
    Toolbox,
    ToolCall,
    ToolStop,
    Type,
    Unload,
    ask,
    module_callback,
    tool,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ferrule import Decision, Question

DOT = Image(
    data="iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
)
YEARS_100_S = 3_155_760_000.0


# -- types


class Person(BaseModel):
    """Who wrote a ticket."""

    name: str
    tags: list[str] = []


class Ticket(BaseModel):
    """What somebody asks for."""

    number: int
    author: Person


class Color(Type):
    """A type with a form of its own for models."""

    name: str

    @classmethod
    def description(cls) -> str:
        """What a model should know of it."""
        return "A color by its English name."

    @model_validator(mode="before")
    @classmethod
    def read(cls, value: Any) -> Any:
        """From its own form, too."""
        return {"name": value.removeprefix("the color ")} if isinstance(value, str) else value

    def format(self) -> str:
        """As a model sees it."""
        return f"the color {self.name}"


class Desk(Signature):
    """Work on a ticket."""

    ticket: Ticket = InputField(desc="the ticket")
    history: History = InputField()
    answer: str = OutputField()
    people: list[Person] = OutputField(desc="everybody involved")


class Gallery(Signature):
    """Describe pictures."""

    photo: Image = InputField()
    more: list[Image] | None = InputField()
    color: Color = InputField()
    caption: str = OutputField()


# -- tools: each effect is a line in the run's `deps`


@tool(require_confirmation=True)
def pay(to: str, amount: float, ctx: Context) -> str:
    """Pay an amount."""
    ctx.deps.append(f"pay {to} {amount}")
    return f"paid {amount} to {to}"


@tool
def charge(account: str, ctx: Context) -> str:
    """Charge an account; a second charge is a second charge."""
    ctx.deps.append(f"charge {account}")
    return f"charged {account}"


@tool(effect="idempotent")
def write(text: str, ctx: Context) -> str:
    """Write a text."""
    ctx.deps.append(f"write {text}")
    return f"wrote {text}"


@tool(effect="read")
def camera(place: str, ctx: Context) -> Image:
    """Take a picture."""
    ctx.deps.append(f"camera {place}")
    return DOT


@tool(require_confirmation=ask(expires_s=2))
def hurry(what: str, ctx: Context) -> str:
    """Do something that a person must allow at once."""
    ctx.deps.append(f"hurry {what}")
    return f"hurried {what}"


@tool
def stop() -> str:
    """Stop the run with an error."""
    raise ToolStop("the tool stops the run")


@tool(require_confirmation=True)
def wipe(account: str, ctx: Context) -> str:
    """Wipe an account."""
    ctx.deps.append(f"wipe {account}")
    return f"wiped {account}"


@tool
def unlock(user: str) -> object:
    """Load the tools of a user."""

    @module_callback
    def change(context: Any) -> str:
        context.module.init_module(tools=[*context.module.tools.values(), wipe])
        return f"loaded wipe for {user}"

    return change


@tool
def lock() -> object:
    """Unload the tools of a user."""

    @module_callback
    def change(context: Any) -> str:
        context.module.init_module(
            tools=[each for name, each in context.module.tools.items() if name != "wipe"],
        )
        return "unloaded wipe"

    return change


# -- programs


def clerk() -> ReAct:
    """Native calls, a type of our own, a history."""
    return ReAct(Desk, [pay, write], native=True)


def writer() -> ReAct:
    """The text protocol."""
    return ReAct("task -> answer", [pay, write, charge], native=False)


def worker() -> ReAct:
    """Tools with effects of all kinds."""
    return ReAct("task -> answer", [charge, write, stop], native=True)


def office() -> ReAct:
    """An agent with an agent as a tool."""
    cashier = ReAct("bill -> receipt", [pay, charge], native=True).as_tool(
        "cashier",
        "Pays one bill.",
    )
    return ReAct("bills: list[str] -> summary", [cashier, write], native=True)


def painter() -> ReAct:
    """Pictures among the inputs and the results."""
    return ReAct(Gallery, [camera, pay], native=True)


def careful() -> ReAct:
    """A policy that asks about large amounts, with a time limit that has not passed."""
    rules = Policy(
        [
            ask("pay", amount=ferrule.gt(100), expires_s=YEARS_100_S),
            ferrule.allow("pay"),
            ferrule.deny("charge", reason="no charges"),
        ],
    )
    return ReAct("task -> answer", [pay, charge], native=True, policy=rules)


def hasty() -> ReAct:
    """A tool whose question has expired when the run is loaded."""
    return ReAct("task -> answer", [hurry], native=True)


def changing() -> ReAct:
    """Tools that come and go."""
    return ReAct("task -> answer", [unlock, lock], native=True)


def shelved() -> ReAct:
    """Tools from a shelf."""

    def fetch(group: str) -> Load:
        """Load a group of tools."""
        return Load(f"{group}.*")

    def drop() -> Unload:
        """Unload all of them."""
        return Unload("ops.*")

    return ReAct(
        "task -> answer",
        Toolbox([fetch, drop], shelf=[Tool(wipe.func, "ops.wipe", require_confirmation=True)]),
        native=True,
    )


def limited() -> ReAct:
    """An agent that reaches its limit, and answers there."""
    limits = Limits(steps=1)
    return ReAct("task -> answer", [write], native=True, limits=limits, on_limit="extract")


class Team(Module):
    """Plain Python over programs, one of them behind a leading underscore."""

    def __init__(self) -> None:
        self.plan = Predict("task -> steps: list[str]")
        self.workers = {"payer": ReAct("step -> result", [pay, write], native=True)}
        self._judge = Predict("result -> verdict")

    def forward(self, task: str, ticket: Ticket) -> Prediction:
        """Plan, do every step, judge the last."""
        result = str(ticket.number)
        for step in self.plan(task=task).steps:
            result = self.workers["payer"](step=f"{step} for {ticket.author.name}").result
        return self._judge(result=result)


def captioner() -> Predict:
    """One model call."""
    return Predict(Gallery)


# -- scripts


def call(name: str, /, **args: Any) -> Response:
    """One native call, with an id that depends on nothing else."""
    ident = hashlib.sha256(json.dumps([name, args], sort_keys=True).encode()).hexdigest()[:8]
    return Response(f"Now {name}.", (ToolCall(name=name, args=args, id=f"c_{ident}"),))


def step(name: str, /, **args: Any) -> str:
    """One call in the text protocol."""
    return (
        f"[[ ## next_thought ## ]]\nNow {name}.\n\n[[ ## next_tool_name ## ]]\n{name}\n\n"
        f"[[ ## next_tool_args ## ]]\n{json.dumps(args)}\n\n[[ ## completed ## ]]"
    )


def said(**outputs: str) -> str:
    """Outputs in the text protocol."""
    return "\n\n".join(
        [
            *(f"[[ ## {name} ## ]]\n{value}" for name, value in outputs.items()),
            "[[ ## completed ## ]]",
        ],
    )


@dataclass(frozen=True)
class Scenario:
    """One stored run: its program, what the model answers, and how the run is left and continued."""

    program: Callable[..., Any]
    inputs: Any
    """A function, so that nothing is shared between two runs."""
    script: Sequence[Any]
    """All answers of the model, from the start to the end."""
    asked: int
    """How many of them were recorded when the run was left."""
    decide: Callable[[Question], Decision | None] = lambda question: question.approve()
    """Decides a question, or leaves it (None)."""
    before: Callable[[Question], Decision] | None = None
    """Decides the first question before the run is left."""
    dies_at: str | None = None
    """The process is killed in the middle of the tool call with this effect; None: while the model
    is asked.
    """
    raises: Any = None
    """What the model raises when the run is left."""
    tools: Sequence[Any] = ()
    """Tools that the run had loaded and its program does not know."""


def task(text: str = "Do it.") -> Callable[[], dict[str, Any]]:
    """Inputs of most programs here."""
    return lambda: {"task": text}


def ticket() -> dict[str, Any]:
    """Inputs of `clerk`."""
    history = History()
    history.add_user_message("Hello.")
    history.add_assistant_message("Good morning.")
    return {"ticket": Ticket(number=7, author=Person(name="Ann", tags=["new"])), "history": history}


def pictures() -> dict[str, Any]:
    """Inputs of `painter` and `captioner`."""
    return {
        "photo": DOT,
        "more": [DOT, Image(url="https://example.org/dot.png")],
        "color": Color(name="red"),
    }


DONE = call("finish", answer="done")
PEOPLE = [{"name": "Ann", "tags": ["new"]}, {"name": "Bob", "tags": []}]

WAITING: dict[str, Scenario] = {
    "edited": Scenario(
        clerk, ticket, [call("write", text="a"), call("pay", to="Ada", amount=5), call("finish", answer="paid", people=PEOPLE)], 2,
        decide=lambda question: question.approve(amount=1.5),
    ),
    "granted": Scenario(
        clerk, ticket,
        [*[call("pay", to=to, amount=5) for to in ("Ada", "Ada", "Bob", "Ada", "Ada")], call("finish", answer="paid", people=[])], 3,
        before=lambda question: question.approve(always=Grant(calls=2)), decide=lambda question: question.deny("Not Bob."),
    ),
    "text": Scenario(
        writer, task(), [step("write", text="a"), step("pay", to="Ada", amount=5), step("finish", answer="refused")], 2,
        decide=lambda question: question.deny("Too much."),
    ),
    "text_reply": Scenario(
        writer, task(), [step("pay", to="Ada", amount=5), step("pay", to="Ada", amount=4), step("finish", answer="paid")], 1,
        decide=lambda question: question.approve() if question.call.args["amount"] == 4 else question.reply("Pay 4."),
    ),
    "nested": Scenario(
        office, lambda: {"bills": ["ann", "bob"]},
        [
            call("cashier", bill="ann"), call("pay", to="ann", amount=20), call("finish", receipt="ann paid"),
            call("cashier", bill="bob"), call("charge", account="b"), call("pay", to="bob", amount=30), call("finish", receipt="bob paid"),
            call("finish", summary="both paid"),
        ], 6, before=lambda question: question.approve(amount=15),
    ),
    "pictures": Scenario(
        painter, pictures, [call("camera", place="hall"), call("pay", to="Ada", amount=5), call("finish", caption="a dot")], 2,
    ),
    "policy": Scenario(
        careful, task(),
        [call("pay", to="Ada", amount=5), call("charge", account="a"), call("pay", to="Ada", amount=500), DONE], 3,
    ),
    "expired": Scenario(hasty, task(), [call("hurry", what="it"), DONE], 1, decide=lambda _: None),
    "loaded": Scenario(
        changing, task(), [call("unlock", user="ada"), call("wipe", account="7"), call("lock"), call("wipe", account="8"), DONE], 2,
        tools=[wipe],
    ),
    "shelf": Scenario(shelved, task(), [call("fetch", group="ops"), call("ops.wipe", account="7"), call("drop"), DONE], 2),
    "team": Scenario(
        Team, lambda: {"task": "Pay.", "ticket": Ticket(number=7, author=Person(name="Ann"))},
        [
            said(steps='["one", "two"]'), call("write", text="one"), call("finish", result="wrote one"),
            call("pay", to="Ada", amount=5), call("finish", result="paid"), said(verdict="good"),
        ], 4,
    ),
}  # fmt: skip

CRASHED: dict[str, Scenario] = {
    "first": Scenario(worker, task(), [call("write", text="a"), DONE], 0),
    "between": Scenario(worker, task(), [call("charge", account="a"), call("write", text="a"), DONE], 1),
    "once": Scenario(
        worker, task(), [call("write", text="a"), call("charge", account="a"), DONE], 2, dies_at="charge a",
        decide=lambda question: question.reply("charged by then"),
    ),
    "once_again": Scenario(worker, task(), [call("charge", account="a"), DONE], 1, dies_at="charge a"),
    "idempotent": Scenario(worker, task(), [call("charge", account="a"), call("write", text="a"), DONE], 2, dies_at="write a"),
    "text": Scenario(
        writer, task(), [step("write", text="a"), step("charge", account="a"), step("finish", answer="done")], 2, dies_at="charge a",
    ),
    "nested": Scenario(
        office, lambda: {"bills": ["ann"]},
        [call("cashier", bill="ann"), call("charge", account="ann"), call("finish", receipt="ann paid"), call("finish", summary="paid")],
        2, dies_at="charge ann",
    ),
    "pictures": Scenario(
        painter, pictures, [call("camera", place="hall"), call("camera", place="yard"), call("finish", caption="a dot")], 2, dies_at="camera yard",
    ),
}  # fmt: skip

ENDED: dict[str, Scenario] = {
    "done": Scenario(clerk, ticket, [call("write", text="a"), call("finish", answer="done", people=PEOPLE)], 2),
    "caption": Scenario(captioner, pictures, [said(caption="a dot")], 1),
    "limit": Scenario(limited, task(), [call("write", text="a"), said(reasoning="no steps left", answer="out of steps")], 2),
    "failed": Scenario(
        worker, task(), [call("write", text="a"), DONE], 1, raises=ferrule.errors.AuthenticationError("no such key", provider="test", status=401),
    ),
    "stopped": Scenario(worker, task(), [call("stop"), DONE], 1, decide=lambda question: question.reply("It did not stop.")),
    "cancelled": Scenario(writer, task(), [step("pay", to="Ada", amount=5)], 1),
}  # fmt: skip

STORES = {"waiting": WAITING, "crashed": CRASHED, "ended": ENDED}


# -- saved programs


@dataclass(frozen=True)
class Saved:
    """One saved program."""

    fresh: Callable[[], Any]
    """The program without what was saved."""
    dress: Callable[[Any], None]
    """Give it what is saved."""


def _with_demos(program: Any) -> None:
    program.demos = [
        {"photo": DOT, "more": None, "color": {"name": "blue"}, "caption": "a point"},
        {"caption": "no picture"},
    ]
    program.signature = program.signature.with_instructions("Describe pictures in two words.")
    program.config["temperature"] = 0.5


def _team(program: Team) -> None:
    program.plan.demos = [{"task": "Eat.", "steps": ["cook", "eat"]}]
    program._judge.signature = program._judge.signature.with_updated_fields(
        "verdict",
        desc="good or bad",
    )


SAVED = {"captioner": Saved(captioner, _with_demos), "team": Saved(Team, _team)}
