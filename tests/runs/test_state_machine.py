"""Runs under random interleavings of start, answer, crash, resume and cancel.

Several runs of one agent, which calls a nested agent for each of some names at once; the nested one pays after a person agreed. A crash
kills the process at a random write of the journal: what is left is what was written, and the decisions that were given and not yet used.
Whatever happens, and in whatever order:

- a payment is made at most once for each time that a person approved it, and never without;
- a decision is used once: no two entries of a journal hold the same one, and giving it again changes nothing;
- a run that comes to its end ends with what the decisions say, by both drivers, and a replay of it ends the same and does nothing.

Requirements: A1, A2, A5, A10, A11, A12, A15, A16, R3, R4, V4.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

from agent_script import native_step
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ferrule import Decision, ReAct, Response, Run, ToolCall, context, tool
from ferrule.errors import DecisionError
from ferrule.runs.journal.encode import entry_text, read_entry
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.journal import Journal
from ferrule.testing import ScriptedLM

_NAMES = ("ann", "bob", "cleo")
_DRIVERS = strategies.sampled_from(["sync", "async"])
_WHICH = strategies.integers(0, 99)


class _Killed(BaseException):
    """The process is gone."""


class _Case:
    """One run, and what is known of it outside: payments made, and decisions given."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.paid: Counter[str] = Counter()
        self.approved: Counter[str] = Counter()
        self.ends: dict[str, str] = {}
        """For each name what came of it, by the latest decision."""
        self.pays: dict[str, str] = {}
        """Which name was approved, by the id of the question."""
        self.given: list[Decision] = []
        self.asked = 0

        @tool(require_confirmation=True)
        async def pay(name: str) -> str:
            """Pay somebody."""
            self.paid[name.rstrip("!")] += 1
            return f"paid {name}"

        cashier = ReAct("who -> receipt", [pay], native=True).as_tool("cashier", "Pays.")
        self.agent = ReAct("question -> answer: list[str]", [cashier], native=True)
        self.lm = ScriptedLM(by=self._answer)
        self.run = Run(self.agent, (), {"question": "q"})

    def _answer(self, request: Any) -> Any:
        self.asked += 1
        opening, last = request.messages[1].text, request.messages[-1]
        if any(declared["function"]["name"] == "pay" for declared in request.tools):
            who = opening
            return (
                native_step("e", "finish", {"receipt": last.text})
                if last.role == "tool"
                else native_step("p", "pay", {"name": who})
            )
        if last.role == "tool":
            return native_step(
                "e",
                "finish",
                {
                    "answer": [
                        message.text for message in request.messages if message.role == "tool"
                    ],
                },
            )
        return Response(
            "",
            tuple(ToolCall(name="cashier", args={"who": name}) for name in self.names),
        )

    def execute(self, driver: str) -> None:
        with context(lm=self.lm):
            if driver == "sync":
                self.run.resume()
            else:
                asyncio.run(self.run.aresume())

    def rebuilt(self) -> Run:
        """The run as another process finds it."""
        again = Run(self.agent, (), {"question": "q"}, run_id=self.run.id)
        again.key = self.run.key
        again.journal = Journal(map(read_entry, map(entry_text, self.run.journal.entries)))
        used = {
            entry.value.question_id for entry in again.journal.entries if entry.kind == "decision"
        }
        again.answers = {
            each.question_id: each for each in self.given if each.question_id not in used
        }
        return again

    def decide(self, which: int, how: str) -> None:
        question = self.run.pending[which % len(self.run.pending)]
        name = question.call.args["name"]
        match how:
            case "approve":
                decision, end = question.approve(), f"paid {name}"
            case "edit" if question.kind == "confirm":
                decision, end = question.approve(name=f"{name}!"), f"paid {name}!"
            case "deny":
                decision, end = (
                    question.deny(),
                    "A person decided against" if question.kind == "confirm" else "It is not known",
                )
            case _:
                decision, end = question.reply("said"), "said"
        self.run.answer(decision)
        self.given.append(decision)
        self.ends[name.rstrip("!")] = end
        if end.startswith("paid"):
            self.approved[name.rstrip("!")] += 1
            self.pays[question.id] = name.rstrip("!")

    def cancel(self) -> None:
        self.run.cancel()
        used = {
            entry.value.question_id
            for entry in self.run.journal.entries
            if entry.kind == "decision"
        }
        for decision in [
            each for each in self.given if each.question_id not in used
        ]:  # these count for nothing any more
            self.given.remove(decision)
            if decision.question_id in self.pays:
                self.approved[self.pays.pop(decision.question_id)] -= 1


class Runs(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cases: list[_Case] = []

    def _case(self, which: int) -> _Case:
        return self.cases[which % len(self.cases)]

    @precondition(lambda self: len(self.cases) < 3)
    @rule(names=strategies.permutations(_NAMES), count=strategies.integers(1, 3), driver=_DRIVERS)
    def start(self, names: list[str], count: int, driver: str) -> None:
        case = _Case(tuple(names[:count]))
        self.cases.append(case)
        case.execute(driver)
        assert [question.call.args["name"] for question in case.run.pending] == names[:count]

    @precondition(lambda self: any(case.run.pending for case in self.cases))
    @rule(
        which=_WHICH,
        question=_WHICH,
        how=strategies.sampled_from(["approve", "edit", "deny", "reply"]),
    )
    def answer(self, which: int, question: int, how: str) -> None:
        case = [case for case in self.cases if case.run.pending][
            which % sum(bool(case.run.pending) for case in self.cases)
        ]
        open_questions = {each.id for each in case.run.pending} - {
            each.question_id for each in case.given
        }
        if not open_questions:
            return
        case.run.pending = tuple(
            sorted(case.run.pending, key=lambda each: each.id not in open_questions),
        )
        case.decide(question % len(open_questions), how)

    @precondition(lambda self: any(case.given for case in self.cases))
    @rule(which=_WHICH, decision=_WHICH)
    def answer_once_more(self, which: int, decision: int) -> None:
        given = [case for case in self.cases if case.given]
        case = given[which % len(given)]
        waiting = dict(case.run.answers)
        with suppress(DecisionError):
            case.run.answer(case.given[decision % len(case.given)])
        assert case.run.answers == waiting

    @precondition(lambda self: self.cases)
    @rule(which=_WHICH, driver=_DRIVERS)
    def resume(self, which: int, driver: str) -> None:
        case = self._case(which)
        if case.run.status != "done":
            case.execute(driver)
            assert case.run.status in {"waiting", "done"}, case.run.error

    @precondition(lambda self: self.cases)
    @rule(which=_WHICH)
    def cancel(self, which: int) -> None:
        case = self._case(which)
        was = case.run.status
        if was == "waiting":
            case.cancel()
        else:
            case.run.cancel()
        assert case.run.status == ("cancelled" if was == "waiting" else was)

    @precondition(lambda self: self.cases)
    @rule(which=_WHICH, at=strategies.integers(0, 12))
    def crash(self, which: int, at: int) -> None:
        """Go on, and be killed at the write of this number, or at rest where there are not that
        many.
        """
        case = self._case(which)
        left = [at]

        def kill(entry: Entry) -> None:
            del entry
            left[0] -= 1
            if left[0] < 0:
                raise _Killed

        if case.run.status != "done":
            case.run.journal.sink = kill
            with suppress(_Killed):
                case.execute("async")
        case.run = case.rebuilt()

    @invariant()
    def no_payment_without_an_approval_of_its_own(self) -> None:
        for case in self.cases:
            assert all(count <= case.approved[name] for name, count in case.paid.items()), (
                case.paid,
                case.approved,
            )

    @invariant()
    def no_decision_is_used_twice(self) -> None:
        for case in self.cases:
            used = [
                entry.value.question_id
                for entry in case.run.journal.entries
                if entry.kind == "decision"
            ]
            assert len(used) == len(set(used))
            assert set(used) <= {each.question_id for each in case.given}

    @invariant()
    def an_end_is_what_the_decisions_say(self) -> None:
        for case in self.cases:
            if case.run.status == "done":
                found = case.run.prediction.answer
                assert len(found) == len(case.names)
                assert all(
                    case.ends[name] in text for name, text in zip(case.names, found, strict=True)
                ), (found, case.ends)
                assert all(
                    case.paid[name] >= 1
                    for name in case.names
                    if case.ends[name].startswith("paid")
                )

    def teardown(self) -> None:
        for case in self.cases:
            if case.run.status == "done":
                paid, asked = Counter(case.paid), case.asked
                again = case.rebuilt()
                with context(lm=case.lm):
                    assert again.resume().prediction == case.run.prediction
                assert (case.paid, case.asked) == (paid, asked)


TestRuns = Runs.TestCase
TestRuns.settings = settings(max_examples=settings().max_examples * 2 // 3, stateful_step_count=30)
