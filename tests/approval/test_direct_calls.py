"""Direct calls that ask first: consent is for the very call, in this process, and is used once."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, Field, Json, SecretStr

from ferrule import (
    ConfirmationRejected,
    ConfirmationRequired,
    Grant,
    Module,
    Policy,
    ReAct,
    Response,
    Tool,
    ToolCall,
    allow,
    ask,
    confirm_first,
    context,
    deny,
    get_confirmation_status,
    gt,
    respond_to_confirmation,
    tool,
)
from ferrule.approval import direct_calls as confirmed
from ferrule.errors import ConfigurationError, DecisionError, ToolArgumentsError
from ferrule.testing import ScriptedLM


class Log:
    def __init__(self) -> None:
        self.ran: list[Any] = []

        @tool(require_confirmation=True)
        def rm(path: str, depth: int = Field(default=1, description="How deep.")) -> str:
            """Remove."""
            self.ran.append((path, depth))
            return path

        self.rm = rm


@pytest.fixture
def log() -> Log:
    return Log()


def asked(made: Tool, **args: Any) -> ConfirmationRequired:
    with pytest.raises(ConfirmationRequired) as raised:
        made(**args)
    return raised.value


def test_a_call_asks_and_runs_once_after_it_was_approved(log: Log) -> None:
    error = asked(log.rm, path="a")
    assert error.question == 'Confirm execution of rm with args: {"path":"a","depth":1}? (yes/no)'
    assert (error.tool_call.name, error.tool_call.args, error.tool_call.id) == (
        "rm",
        {"path": "a", "depth": 1},
        None,
    )
    assert get_confirmation_status(error.confirmation_id) == "pending"
    respond_to_confirmation(error.confirmation_id)
    assert log.rm("a") == "a"
    assert get_confirmation_status(error.confirmation_id) == "approved"
    assert asked(log.rm, path="a").confirmation_id != error.confirmation_id
    assert log.ran == [("a", 1)]


def test_a_question_in_the_middle_of_another_tool_says_what_to_do(log: Log) -> None:
    """The outer tool cannot wait; decided by id, the run asks whether it is to run again."""

    @tool
    def outer() -> str:
        """Remove by way of a function that asks."""
        return str(log.rm(path="a"))

    calls = [
        Response("", (ToolCall(name="outer", args={}),)),
        Response("", (ToolCall(name="finish", args={"answer": "ok"}),)),
    ]
    with context(lm=ScriptedLM(calls)):
        run = ReAct("task -> answer", [outer], native=True).start(task="x")
        assert isinstance(run.error, ConfirmationRequired)
        assert "Give the agent `rm` itself as a tool" in str(run.error)
        assert (
            run.error.question
            == 'Confirm execution of rm with args: {"path":"a","depth":1}? (yes/no)'
        )
        respond_to_confirmation(run.error.confirmation_id)
        run.resume()
        assert run.pending[0].kind == "unknown"
        run.answer(run.pending[0].approve())
        assert run.resume().status == "done"
    assert log.ran == [("a", 1)]


def test_a_direct_call_is_approved_by_itself_and_by_no_grant(log: Log) -> None:
    """A grant would be good for later calls of a run, and there is none."""
    asking = asked(log.rm, path="a")
    found = confirmed.asked_directly(asking.confirmation_id)
    assert found is not None
    with pytest.raises(DecisionError, match="made outside any run"):
        confirmed.decide_directly(found.question.approve(always=Grant()))
    with pytest.raises(ConfirmationRequired):
        log.rm(path="a")
    assert log.ran == []


def test_a_decision_on_a_direct_call_is_not_changed_afterwards(log: Log) -> None:
    asking = asked(log.rm, path="a")
    changed = {"path": "b"}
    respond_to_confirmation(asking.confirmation_id, data=changed)
    changed["path"] = "c"
    log.rm(path="a")
    assert log.ran == [("b", 1)]


def test_sync_and_async_calls_share_the_question() -> None:
    """An async tool too."""

    @tool(require_confirmation=True)
    async def fetch(url: str) -> str:
        """Fetch."""
        return url

    async def twice() -> str:
        with pytest.raises(ConfirmationRequired) as raised:
            await fetch.acall(url="a")
        respond_to_confirmation(raised.value.confirmation_id)
        return await fetch.acall(url="a")

    assert asyncio.run(twice()) == "a"


def test_a_denial_is_told_apart_from_a_question_and_is_for_that_request_alone(log: Log) -> None:
    """Fields `message`, `confirmation_id`, `tool_call`."""
    first = asked(log.rm, path="a")
    respond_to_confirmation(first.confirmation_id, approved=False, data="too deep")
    with pytest.raises(ConfirmationRejected) as raised:
        log.rm(path="a")
    assert (raised.value.message, raised.value.confirmation_id) == (
        "too deep",
        first.confirmation_id,
    )
    assert raised.value.tool_call.args == {"path": "a", "depth": 1}
    asked(log.rm, path="a")
    assert log.ran == []


def test_feedback_runs_nothing_and_is_told(log: Log) -> None:
    respond_to_confirmation(
        asked(log.rm, path="a").confirmation_id,
        data="use trash",
        status="feedback",
    )
    with pytest.raises(ConfirmationRejected, match="use trash"):
        log.rm(path="a")


def test_an_edit_is_laid_over_what_was_shown_checked_and_used_once(log: Log) -> None:
    """Defaults are real ones."""
    error = asked(log.rm, path="a")
    with pytest.raises(ToolArgumentsError):
        respond_to_confirmation(error.confirmation_id, data={"depth": "deep"})
    assert get_confirmation_status(error.confirmation_id) == "pending"
    respond_to_confirmation(error.confirmation_id, data={"path": "b"})
    assert log.rm(path="a") == "b"
    assert log.ran == [("b", 1)]


def test_an_edit_leaves_what_it_does_not_name_as_it_was_shown() -> None:
    """To check once more what was checked would change it, or refuse it."""
    got: list[tuple[str, int, list[int]]] = []

    @tool(require_confirmation=True)
    def order(
        what: str,
        dozens: Annotated[int, AfterValidator(lambda n: n * 12)],
        sizes: Json[list[int]],
    ) -> None:
        """Order."""
        got.append((what, dozens, sizes))

    error = asked(order, what="eggs", dozens=2, sizes="[4]")
    assert error.tool_call.args == {"what": "eggs", "dozens": 24, "sizes": [4]}
    respond_to_confirmation(error.confirmation_id, data={"what": "ducks"})
    order(what="eggs", dozens=2, sizes="[4]")
    assert got == [("ducks", 24, [4])]


def test_a_decision_is_for_the_tool_and_the_arguments_that_were_shown(log: Log) -> None:
    """Other arguments, a tool of another name, another definition."""
    respond_to_confirmation(asked(log.rm, path="a").confirmation_id)
    asked(log.rm, path="b")
    asked(Log().rm, path="a")
    asked(log.rm.model_copy(update={"name": "erase"}), path="a")
    asked(log.rm.model_copy(update={"desc": "Remove it all."}), path="a")
    assert log.rm(path="a") == "a"


class Door:
    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []

        @tool(require_confirmation=True)
        def login(user: str, password: SecretStr) -> None:
            """Log in."""
            self.got.append((user, password.get_secret_value()))

        self.login = login


def test_an_edit_of_one_argument_leaves_a_secret_one_as_it_was() -> None:
    door = Door()
    respond_to_confirmation(
        asked(door.login, user="ann", password="s3cr3t").confirmation_id,
        data={"user": "bob"},
    )
    door.login(user="ann", password="s3cr3t")
    assert door.got == [("bob", "s3cr3t")]


def test_a_decision_on_one_secret_is_for_no_other() -> None:
    """The arguments are others, though they look alike."""
    door = Door()
    respond_to_confirmation(asked(door.login, user="ann", password="s3cr3t").confirmation_id)
    asked(door.login, user="ann", password="other")
    assert door.got == []


def test_deciding_twice_differently_or_on_an_unknown_id_is_an_error(log: Log) -> None:
    key = asked(log.rm, path="a").confirmation_id
    respond_to_confirmation(key)
    respond_to_confirmation(key)
    with pytest.raises(DecisionError, match="decided already: approved"):
        respond_to_confirmation(key, approved=False)
    with pytest.raises(DecisionError):
        respond_to_confirmation(key[::-1])


def test_a_decision_of_another_thread_counts_and_forty_callers_run_it_once(log: Log) -> None:
    key = asked(log.rm, path="a").confirmation_id
    thread = threading.Thread(target=respond_to_confirmation, args=(key,))
    thread.start()
    thread.join()

    def attempt(_: int) -> bool:
        try:
            log.rm(path="a")
        except ConfirmationRequired:
            return False
        return True

    with ThreadPoolExecutor(40) as pool:
        assert sum(pool.map(attempt, range(40))) == 1
    assert log.ran == [("a", 1)]


class Point(BaseModel):
    x: int


def test_arguments_of_any_type_are_asked_about() -> None:
    """Models, times, UUIDs, bytes, sets."""

    @tool(require_confirmation=True)
    def keep(point: Point, at: dt.datetime, key: uuid.UUID, raw: bytes, tags: set[str]) -> str:
        """Keep."""
        return f"{point.x} {at.year} {key.int} {raw!r} {sorted(tags)}"

    given: dict[str, Any] = {
        "point": Point(x=1), "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "key": uuid.UUID(int=3), "raw": b"x", "tags": {"b", "a"},
    }  # fmt: skip
    error = asked(keep, **given)
    respond_to_confirmation(error.confirmation_id)
    assert keep(**given) == "1 2026 3 b'x' ['a', 'b']"


def test_a_method_that_asks_is_the_same_call_each_time() -> None:
    """A bound method is made anew at each access."""

    class Disk:
        @tool(require_confirmation=True)
        def wipe(self, name: str) -> str:
            """Wipe."""
            return name

    disk, other = Disk(), Disk()
    respond_to_confirmation(asked(disk.wipe, name="a").confirmation_id)
    asked(other.wipe, name="a")
    assert disk.wipe(name="a") == "a"


def test_a_decision_on_one_object_is_for_no_other() -> None:
    """All objects of a class look alike in a question."""
    ran: list[Any] = []

    class Account:
        @confirm_first
        def withdraw(self, euros: int) -> None:
            ran.append((self, euros))

    @tool(require_confirmation=True)
    def close(account: Any) -> None:
        ran.append(account)

    mine, theirs = Account(), Account()
    for call in (lambda each: each.withdraw(5), close):
        with pytest.raises(ConfirmationRequired) as raised:
            call(mine)
        respond_to_confirmation(raised.value.confirmation_id)
        with pytest.raises(ConfirmationRequired):
            call(theirs)
        call(mine)
    assert ran == [(mine, 5), mine]


def test_a_call_runs_with_the_defaults_that_were_shown() -> None:
    """A factory makes another value when the call is made again."""
    ran: list[Any] = []

    @tool(require_confirmation=True)
    def order(article: str, number: str = Field(default_factory=lambda: uuid.uuid4().hex)) -> None:
        ran.append((article, number))

    first = asked(order, article="ink")
    respond_to_confirmation(first.confirmation_id)
    order("ink")
    second = asked(order, article="ink")
    respond_to_confirmation(second.confirmation_id, data={"article": "pen"})
    order("ink")
    assert ran == [
        ("ink", first.tool_call.args["number"]),
        ("pen", second.tool_call.args["number"]),
    ]
    third = asked(order, article="ink")
    respond_to_confirmation(third.confirmation_id)
    assert asked(order, article="pen").confirmation_id != third.confirmation_id


def test_the_oldest_questions_are_forgotten(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is bounded, and what fell out of it runs nothing."""
    monkeypatch.setattr(confirmed, "_table", {})
    monkeypatch.setattr(confirmed, "_MOST_QUESTIONS", 2)
    first = asked(log.rm, path="a").confirmation_id
    asked(log.rm, path="b")
    asked(log.rm, path="c")
    with pytest.raises(DecisionError):
        respond_to_confirmation(first)


def test_a_tool_of_ones_own_asks_whatever_its_function_says_of_direct_calls() -> None:
    """Only a tool of an MCP server may have hints alone that ask, and then its function says so."""

    class Remove:
        asks_directly = False

        def __call__(self, path: str) -> str:
            return path

    with pytest.raises(ConfirmationRequired):
        Tool(Remove(), "remove", require_confirmation=True)(path="a")


def test_a_condition_about_an_argument_that_the_tool_does_not_have_is_refused_before_the_call() -> (
    None
):
    """A slip of the pen would let every call through."""
    ran: list[int] = []

    @tool(require_confirmation=ask(euro=gt(100)))
    def pay(euros: int) -> None:
        """Pay."""
        ran.append(euros)

    with pytest.raises(ConfigurationError, match="that `pay` does not have"):
        pay(euros=500)
    with pytest.raises(ConfigurationError, match="that `pay` does not have"):
        ReAct("q -> a", [pay])  # an agent with such a tool cannot be made
    assert ran == []


def test_the_policy_of_the_settings_is_not_for_calls_in_code() -> None:
    """Code that calls a tool is trusted; the tool's own setting holds for it."""

    def pay(to: str) -> str:
        return f"paid {to}"

    careful = Tool(pay, "pay_carefully", require_confirmation=True)
    with context(policy=Policy([deny("pay"), allow("pay_carefully")])):
        assert Tool(pay)(to="Ada") == "paid Ada"
        with pytest.raises(ConfirmationRequired):
            careful(to="Ada")
        assert ToolCall(name="pay", args={"to": "Ada"}).execute([pay]) == "paid Ada"
        with pytest.raises(ConfirmationRequired):
            ToolCall(name="pay_carefully", args={"to": "Eve"}).execute([careful])


def test_an_async_condition_is_refused_when_the_tool_is_made() -> None:
    """It would always ask, and decide nothing."""

    async def needs(args: dict[str, Any]) -> bool:
        return args["euros"] > 100

    with pytest.raises(
        ConfigurationError,
        match="`require_confirmation` of `pay` is a plain function",
    ):
        Tool(lambda euros: None, "pay", "Pay.", require_confirmation=needs)


def test_in_a_forward_the_error_names_the_call_that_waits(log: Log) -> None:
    """The run failed with "Confirm execution of rm", and nothing said how to let it wait."""

    class Tidy(Module):
        def forward(self, path: str) -> str:
            return log.rm(path)

    run = Tidy().start(path="a")
    assert (run.status, log.ran) == ("failed", [])
    assert "with `ferrule.call_tool(rm, ...)`, the run waits" in str(run.error)
    assert "call_tool" not in str(asked(log.rm, path="a"))
