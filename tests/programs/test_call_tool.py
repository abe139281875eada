"""Tool calls by a program's own code: checked, approved and recorded like those of a model."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, LiteralString

import pytest
from pydantic import AfterValidator, BaseModel, Field, SecretStr

import ferrule
from ferrule import (
    ConfirmationRejected,
    ConfirmationRequired,
    Context,
    Image,
    Limits,
    MemoryStore,
    Module,
    Policy,
    Prediction,
    Run,
    SQLiteStore,
    Tool,
    ToolError,
    ToolResult,
    ToolRetry,
    acall_tool,
    call_tool,
    deny,
    gather,
    tool,
)
from ferrule.errors import ToolArgumentsError, ToolDefinitionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal
    from pathlib import Path


@dataclass
class Seat:
    """A seat on a train."""

    row: int
    letter: str


Doubled = Annotated[dt.timedelta, AfterValidator(lambda given: 2 * given)]


class Part(BaseModel):
    """Has a field that its JSON leaves out."""

    number: int
    made: int = Field(exclude=True)

    def __init__(self, number: int, **more: Any) -> None:
        super().__init__(number=number, **more)


class Color(Enum):
    """Has values that JSON does not have."""

    RED = (255, 0, 0)


class Desk(Module):
    """Finds a seat, and books it."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

        @tool(effect="read")
        def find(day: dt.date) -> Seat:
            """Find a seat."""
            self.calls.append(day)
            return Seat(len(self.calls), "A")

        @tool(require_confirmation=True)
        async def book(seat: Seat, euros: int = 9) -> str:
            """Book a seat."""
            self.calls.append((seat, euros))
            return "12"

        self.find, self.book = find, book

    def forward(self, day: str) -> Prediction:
        seat = call_tool(self.find, day=dt.date.fromisoformat(day))
        return Prediction(seat=seat, code=call_tool(self.book, seat=seat))


class AsyncDesk(Desk):
    """The same with `await`."""

    async def aforward(self, day: str) -> Prediction:
        seat = await acall_tool(self.find, day=dt.date.fromisoformat(day))
        return Prediction(seat=seat, code=await acall_tool(self.book, seat=seat))


@pytest.mark.parametrize("kind", [Desk, AsyncDesk])
@pytest.mark.parametrize("is_awaited", [False, True], ids=["sync", "async"])
def test_a_call_waits_for_a_person_and_runs_once(
    kind: type[Desk],
    is_awaited: bool,
    tmp_path: Path,
) -> None:
    desk = kind()

    async def through() -> None:
        await desk.astart(day="2026-12-01", store=store, run_id="r")
        run = Run.load(store, "r", desk)
        run.answer(run.pending[0].approve())
        await run.aresume()

    with closing(SQLiteStore(tmp_path / "runs.db")) as store:
        if is_awaited:
            asyncio.run(through())
        else:
            desk.start(day="2026-12-01", store=store, run_id="r")
            run = Run.load(store, "r", desk)
            assert (
                run.pending[0].text
                == 'Confirm execution of book with args: {"seat":{"row":1,"letter":"A"},"euros":9}? (yes/no)'
            )
            assert desk.calls == [dt.date(2026, 12, 1)]
            run.answer(run.pending[0].approve())
            run.resume()
        ended = Run.load(store, "r", desk)
        assert (ended.status, ended.prediction.code) == ("done", "12")
    assert desk.calls == [dt.date(2026, 12, 1), (Seat(1, "A"), 9)]


def test_a_person_changes_the_arguments() -> None:
    run = (desk := Desk()).start(day="2026-12-01")
    run.answer(run.pending[0].approve(euros=7))
    assert run.resume().prediction.code == "12"
    assert desk.calls[1:] == [(Seat(1, "A"), 7)]


@pytest.mark.parametrize(
    ("decide", "message"),
    [
        (lambda each: each.deny("Too dear."), "Too dear."),
        (lambda each: each.deny(), "The call was denied."),
        (lambda each: each.reply("Take row 7."), "Take row 7."),
    ],
    ids=["deny", "deny without a reason", "reply"],
)
def test_a_call_that_a_person_does_not_approve_raises(
    decide: Callable[[Any], Any],
    message: str,
) -> None:
    run = (desk := Desk()).start(day="2026-12-01")
    asked = run.pending[0]
    run.answer(decide(asked))
    error = run.resume().error
    assert isinstance(error, ConfirmationRejected)
    assert (error.message, error.confirmation_id, error.tool_call.name) == (
        message,
        asked.id,
        "book",
    )
    assert desk.calls == [dt.date(2026, 12, 1)]


def test_a_policy_denies_a_call() -> None:
    desk = Desk()
    with ferrule.context(policy=Policy([deny("book", reason="Closed.")])):
        error = desk.start(day="2026-12-01").error
    assert isinstance(error, ConfirmationRejected)
    assert error.message == "Closed."


def test_a_policy_denies_a_call_as_a_person_changed_it() -> None:
    desk = Desk()
    with ferrule.context(policy=Policy([deny("book", euros=100, reason="Too dear.")])):
        run = desk.start(day="2026-12-01")
        run.answer(run.pending[0].approve(euros=100))
        error = run.resume().error
    assert isinstance(error, ConfirmationRejected)
    assert (
        error.message
        == "A policy forbids the call as it was edited; it was not run. Reason: Too dear."
    )
    assert desk.calls == [dt.date(2026, 12, 1)]


def test_outside_a_run_a_call_that_needs_a_person_raises_with_a_run_that_waits() -> None:
    desk = Desk()
    with pytest.raises(ConfirmationRequired) as caught:
        call_tool(desk.book, seat={"row": 1, "letter": "B"})
    run = caught.value.run
    run.answer(run.pending[0].approve())
    assert run.resume().prediction == "12"
    assert call_tool(desk.find, day="2026-12-01") == Seat(2, "A")
    assert asyncio.run(acall_tool(desk.find, day="2026-12-01")) == Seat(3, "A")


def returns(kind: Any, value: Any) -> Any:
    def made() -> Any:
        """Return it."""
        return value

    made.__annotations__["return"] = kind
    return call_tool(made)


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (int, 4, 4),
        (str, "4", "4"),
        (str | None, None, None),
        (None, None, None),
        (type(None), None, None),
        (Any, {"a": 1}, '{"a":1}'),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (tuple[int, str], (1, "x"), (1, "x")),
        (dt.date, dt.date(2026, 12, 1), dt.date(2026, 12, 1)),
        (list[Seat], [Seat(1, "B")], [Seat(1, "B")]),
        (Annotated[int, Field(gt=0)], 4, 4),
        (Image, Image(url="https://example.org/a.png"), Image(url="https://example.org/a.png")),
        (ToolResult, ToolResult("made", "seen"), "seen"),
        (object, "42", "42"),
        (LiteralString, "[1]", "[1]"),
        (
            list[Image],
            [Image(url="https://example.org/a.png")],
            [Image(url="https://example.org/a.png")],
        ),
        (
            tuple[str, Image],
            ("a", Image(url="https://example.org/a.png")),
            ("a", Image(url="https://example.org/a.png")),
        ),
        (bytes, b"\xff\x00", b"\xff\x00"),
        (bytes, b"text", b"text"),
        (str | Seat | None, Seat(1, "B"), Seat(1, "B")),
        (str | list[int | str], [5, "5"], [5, "5"]),
        (str | Image, "none", "none"),
        (Literal["none"] | str, "none", "none"),  # noqa: PYI051  a hint for editors
        (Literal["none"] | int, 5, 5),
    ],
    ids=str,
)
def test_a_result_has_the_type_that_the_function_returns(kind: Any, value: Any, found: Any) -> None:
    assert returns(kind, value) == found


def test_without_a_type_the_result_is_the_text_that_a_model_would_see() -> None:
    def made():  # type: ignore[no-untyped-def]
        """Return it."""
        return {"a": 1}

    assert call_tool(made) == '{"a":1}'
    assert call_tool(Tool("declared", "", lambda: 4)) == "4"


def test_a_generator_is_read_to_its_end() -> None:
    def rows() -> Iterator[Seat]:
        """Yield seats."""
        yield Seat(1, "A")

    async def later(count: int) -> AsyncIterator[Seat]:
        """Yield seats, one after the other."""
        for row in range(count):
            yield Seat(row, "B")

    def soon() -> Awaitable[Seat]:
        """Return what is still to be awaited."""
        return anext(later(1))

    assert call_tool(rows) == [Seat(1, "A")]
    assert call_tool(later, count=2) == [Seat(0, "B"), Seat(1, "B")]
    assert call_tool(soon) == Seat(0, "B")


def test_a_type_that_is_not_known_at_run_time_is_refused_before_the_call() -> None:
    def price() -> Decimal:
        """Never run."""
        raise NotImplementedError

    with pytest.raises(
        ToolDefinitionError,
        match="`call_tool` cannot read what `price` returns: the type 'Decimal' is not known",
    ):
        call_tool(price)


class Ticket:
    """A class that JSON does not have."""


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (Ticket, "<class 'tests.programs.test_call_tool.Ticket'> has no form in JSON"),
        (list[Ticket], "has no form in JSON"),
        (dict[str, SecretStr], "holds a secret, which a run records as stars"),
        (int | str, "is recorded as text, which does not tell <class 'int'> from a `str`"),
        (Literal[5] | str, "does not tell .*5"),
        (
            Annotated[str, Field(max_length=9)] | dt.date | None,
            "does not tell <class 'datetime.date'>",
        ),
    ],
    ids=str,
)
def test_a_type_that_a_record_cannot_hold_is_refused_before_the_call(
    kind: Any,
    problem: str,
) -> None:
    ran: list[int] = []

    def pay() -> Any:
        """Pay."""
        ran.append(1)

    pay.__annotations__["return"] = kind
    with pytest.raises(ToolDefinitionError, match=problem):
        call_tool(pay)
    assert not ran


def test_a_result_of_another_type_than_it_says_is_an_error() -> None:
    with pytest.raises(
        ToolError,
        match=r"The result of `made` is not of the type that it returns, <class 'int'>: .*It is: 'four'",
    ):
        returns(int, "four")
    with pytest.raises(ToolError, match="The result of `made` is not of the type that it returns"):
        returns(dict[str, Image], {"a": Image(url="https://example.org/a.png")})


def test_a_text_is_the_same_live_and_in_a_replay() -> None:
    seen: list[str] = []

    def read() -> str:
        """Return a character in two halves, as a careless decoder does."""
        return "\ud83d\ude00"

    def forward() -> str:
        seen.append(call_tool(read))
        return ferrule.ask_person("Go on?")

    store, program = MemoryStore(), module(forward)
    [asked] = program.start(store=store, run_id="r").pending
    run = Run.load(store, "r", program)
    run.answer(asked.reply("Yes."))
    assert run.resume().status == "done"
    assert seen == ["\N{GRINNING FACE}"] * 2


def test_wrong_arguments_raise_and_nothing_is_recorded() -> None:
    run = run_in_module(lambda: call_tool(Desk().find, day="never", more=1))
    assert isinstance(run.error, ToolArgumentsError)
    assert run.journal.entries == []


@pytest.mark.parametrize(
    "error",
    [OSError("The network is gone."), ToolRetry("Try later.")],
    ids=["error", "retry"],
)
def test_a_tool_that_fails_raises_the_same_error_live_and_in_a_replay(error: Exception) -> None:
    @tool
    def fetch() -> str:
        """Fetch."""
        raise error

    causes: list[Any] = []

    def forward() -> str:
        try:
            call_tool(fetch)
        except ToolError as failure:
            causes.append(failure.__cause__)
            return ferrule.ask_person(str(failure))
        return ""

    store, program = MemoryStore(), module(forward)
    [asked] = program.start(store=store, run_id="r").pending
    run = Run.load(store, "r", program)
    run.answer(asked.reply("So be it."))
    assert str(error) in asked.text
    assert run.resume().prediction.answer == "So be it."
    assert causes == [error, None]


def module(forward: Callable[[], Any]) -> Module:
    class Program(Module):
        def forward(self) -> Prediction:
            return Prediction(answer=forward())

    return Program()


def run_in_module(forward: Callable[[], Any]) -> Run:
    return module(forward).start()


def test_calls_in_branches_wait_together_and_equal_calls_are_told_apart() -> None:
    desk = Desk()

    class Both(Module):
        async def aforward(self) -> Prediction:
            seats = [Seat(1, "A"), Seat(1, "A"), Seat(2, "B")]
            return Prediction(
                codes=await gather(*[acall_tool(desk.book, seat=each) for each in seats]),
            )

    run = Both().start(store=MemoryStore())
    for each in run.pending:
        run.answer(each.approve())
    assert len(run.pending) == 3
    assert run.resume().prediction.codes == ["12", "12", "12"]
    assert len(desk.calls) == 3


def test_a_default_that_differs_in_a_replay_is_as_it_was_approved() -> None:
    made: list[Any] = []

    @tool(require_confirmation=True)
    def pay(
        euros: int,
        on: dt.date,
        key: int = Field(default_factory=lambda: made.append(1) or len(made)),
    ) -> int:
        """Pay."""
        return key

    store, program = MemoryStore(), module(lambda: call_tool(pay, euros=3, on=dt.date(2026, 12, 1)))
    program.start(store=store, run_id="r")
    run = Run.load(store, "r", program)
    asked = run.pending[0].call.args["key"]
    run.answer(run.pending[0].approve())
    assert run.resume().prediction.answer == asked
    assert len(made) > asked


def test_a_secret_reaches_the_tool_and_is_shown_nowhere() -> None:
    seen: list[Any] = []

    @tool(require_confirmation=True)
    def login(password: Annotated[SecretStr, Field(alias="pass")]) -> None:
        """Log in."""
        seen.append(password.get_secret_value())

    events: list[Any] = []
    for name, given in itertools.product(("password", "pass"), ("hunter2", SecretStr("hunter2"))):
        with ferrule.context(callbacks=[events.append]):
            run = run_in_module(lambda name=name, given=given: call_tool(login, **{name: given}))
            assert "hunter2" not in repr(run.pending[0].call) + repr(run.journal.entries) + repr(
                events,
            )
            run.answer(run.pending[0].approve())
            assert run.resume().status == "done"
            denied = run_in_module(lambda name=name, given=given: call_tool(login, **{name: given}))
            denied.answer(denied.pending[0].deny())
            error = denied.resume().error
            assert isinstance(error, ConfirmationRejected)
            assert error.tool_call.args == {"password": "**********"}
    assert "hunter2" not in repr(events)
    assert seen == ["hunter2"] * 4


@pytest.mark.parametrize("value", [b"\xff", Part(1, made=2), Color.RED, [Part(3, made=4)]], ids=str)
def test_an_argument_that_json_changes_reaches_the_tool_as_it_is(value: Any) -> None:
    seen: list[Any] = []

    @tool
    def keep(value: Any) -> None:
        """Keep it."""
        seen.append(value)

    keep = keep.model_copy(
        update={"arg_types": {"value": list[Part] if isinstance(value, list) else type(value)}},
    )
    assert run_in_module(lambda: call_tool(keep, value=value)).status == "done"
    assert seen == [value]


def test_an_argument_without_a_form_in_json_reaches_the_tool() -> None:
    seen: list[Any] = []
    picture = Image(url="https://example.org/a.png")

    @tool(require_confirmation=True)
    def keep(
        picture: Image,
        *,
        day: Annotated[dt.date, Field(alias="on")],
        wait: Doubled,
        more: Any,
    ) -> None:
        """Keep a picture."""
        seen.append((picture, day, wait, more))

    given = {
        "picture": picture,
        "on": dt.date(2026, 12, 1),
        "wait": dt.timedelta(seconds=1),
        "more": (1, dt.date(2026, 12, 2)),
    }
    program, store = module(lambda: call_tool(keep, **given)), MemoryStore()
    program.start(store=store, run_id="r")
    run = Run.load(store, "r", program)
    run.answer(run.pending[0].approve())
    assert run.resume().status == "done"
    call_tool(keep.model_copy(update={"require_confirmation": False}), args=given)
    assert (
        seen
        == [(picture, dt.date(2026, 12, 1), dt.timedelta(seconds=2), (1, dt.date(2026, 12, 2)))] * 2
    )


def test_deps_and_limits_of_the_run_hold() -> None:
    @tool
    def who(context: Context[str]) -> str:
        """Say who."""
        return context.deps

    class Twice(Module):
        def forward(self) -> Prediction:
            return Prediction(who=[call_tool(who), call_tool(who)])

    assert Twice()(deps="Ada").who == ["Ada", "Ada"]
    with ferrule.context(limits=Limits(tool_calls=1)):
        assert "Call to `who` was not run: the limit of tool calls is reached." in str(
            Twice().start(deps="Ada").error,
        )


def test_a_method_of_the_program_is_a_tool() -> None:
    class Counter(Module):
        count = 0

        @tool
        def add(self, more: int) -> int:
            """Add."""
            self.count += more
            return self.count

        def forward(self) -> Prediction:
            return Prediction(count=call_tool(self.add, more=3))

    assert Counter()().count == 3


class Booking(Module):
    """Books by the tool that it is given, and lets some errors pass."""

    def __init__(self, book: Any, *caught: type[Exception]) -> None:
        self.book, self.caught = book, caught

    def forward(self, seat: int) -> Prediction:
        try:
            self.book(seat)
        except self.caught:
            return Prediction(done="not booked")
        return Prediction(done="booked")


def test_a_call_that_a_crash_cut_off_and_that_a_new_version_no_longer_makes_stops_it() -> None:
    """Whether it ran is unknown, so the run does not end as if there had been no such call."""
    booked: list[int] = []

    @tool
    def book(seat: int) -> str:
        booked.append(seat)
        raise SystemExit

    @tool
    def reserve(seat: int) -> str:
        booked.append(seat)
        return "reserved"

    store = MemoryStore()
    with pytest.raises(SystemExit):
        Booking(lambda seat: call_tool(book, seat=seat)).start(seat=3, store=store, run_id="r")
    run = Run.load(
        store,
        "r",
        Booking(lambda seat: call_tool(reserve, seat=seat)),
    ).resume()
    assert run.status == "failed"
    assert "recorded begun book" in str(run.error)


def test_a_call_that_a_crash_cut_off_is_not_forgotten_where_an_error_comes_before_it_now() -> None:
    """The run stops, and asks about the call when it comes to it again."""
    is_up = True

    @tool
    def book(seat: int) -> str:
        raise SystemExit

    class Inner(Module):
        def forward(self, seat: int) -> Prediction:
            if not is_up:
                raise LookupError
            return Prediction(text=call_tool(book, seat=seat))

    store, program = MemoryStore(), Booking(lambda seat: Inner()(seat=seat), LookupError)
    with pytest.raises(SystemExit):
        program.start(seat=3, store=store, run_id="r")
    is_up = False
    assert Run.load(store, "r", program).resume().status == "failed"
    is_up = True
    run = Run.load(store, "r", program).resume()
    assert [question.kind for question in run.pending] == ["unknown"]
    run.answer(run.pending[0].reply("booked by hand"))
    assert run.resume().prediction.done == "booked"


def test_arguments_may_be_given_in_order_and_a_context_is_the_calls_own() -> None:
    """The program may pass its own, as a type checker wants it where it is not the first."""
    seen: list[Any] = []

    @tool
    def add(a: int, b: int, ctx: Context) -> int:
        """Add."""
        seen.append((a, b, ctx.deps))
        return a + b

    class Adder(Module):
        def forward(self, ctx: Context) -> Prediction:
            return Prediction(sums=[call_tool(add, 1, b=2, ctx=ctx), call_tool(add, 3, 4)])

    run = Adder().start(store=MemoryStore(), deps="d")
    assert run.prediction.sums == [3, 7]
    assert seen == [(1, 2, "d"), (3, 4, "d")]
    with pytest.raises(TypeError, match="multiple values"):
        call_tool(add, 1, a=2, b=3)
