"""Questions that an MCP server asks a person during a call (elicitation).

In: the questions of one call, in the protocol's form. Out: people's answers, or a waiting run. A
waiting call has no result: its questions and the server's state are journalled at the slot of the
call plus `?i1`, a person's answer at `?i1.0`. When the run resumes, the call is made again with the
answers. `mcp_bridge/client/client.py` makes the call and answers the server; this module imports
nothing of MCP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import urlsplit

from msgspec import Struct, field
from msgspec.structs import replace

from ferrule import events
from ferrule.acts import Suspended
from ferrule.approval.asking import mcp_origin, tool_fingerprint
from ferrule.approval.input_form import describe_form, read_form, secret_fields
from ferrule.approval.question import Decision, Question
from ferrule.encoding.encode import json_text
from ferrule.encoding.stored import check_fields, reading
from ferrule.errors import MCPProtocolError
from ferrule.runs.decisions import register
from ferrule.runs.driver.approval import decision_in_time, is_void, now
from ferrule.runs.journal.entry import Entry
from ferrule.tools.mcp.safety import scrub

if TYPE_CHECKING:
    from ferrule.runs.state import Frame
    from ferrule.values.calls.call import CheckedCall
    from ferrule.values.slot import Slot

MOST_ROUNDS = 10
"""The maximum number of times that one call may return with questions."""


class _Round(Struct):
    """The questions with which one execution of the call returned."""

    questions: dict[str, dict[str, Any]]
    """Parameters of `elicitation/create`, by the server's key."""
    goes_on: bool = False
    """Whether the server continues from its state; otherwise it starts again and asks again."""
    state: Any = None
    """The server's state, returned to it unchanged."""
    answered: dict[str, Any] = field(default_factory=dict[str, Any])
    """Answers given without a person."""
    expires_at: float | None = None
    expires_s: float | None = None
    """Seconds until the questions expire, from when they are asked.

    Not journalled: `expires_at` is."""
    decisions: dict[str, Decision] = field(default_factory=dict[str, Decision])

    def form(self) -> dict[str, Any]:
        """The round as the journal holds it."""
        return {
            "questions": self.questions,
            "goes_on": self.goes_on,
            "state": self.state,
            "answered": self.answered,
            "expires_at": self.expires_at,
        }


class Inputs:
    """The questions of one call and their answers."""

    def __init__(self, frame: Frame, slot: Slot, digest: str, checked: CheckedCall) -> None:
        self._frame = frame
        self._slot = slot
        self._digest = digest
        self._checked = checked
        self._rounds: list[_Round] = []
        self._used: set[int] = set()
        self.task: str | None = None
        """The id of the task, if the server runs the call as one.

        The client then asks for its state instead of calling again."""
        self.wanted: _Round | None = None
        """The questions with which this execution of the call returned, if any."""

    # -- for the client that makes the call

    def continuation(self) -> tuple[dict[str, Any] | None, Any]:
        """The answers by the server's keys, and its state, to continue the call with.

        `(None, None)` for a new call.
        """
        if not self._rounds or not self._rounds[-1].goes_on:
            return None, None
        last = self._rounds[-1]
        answers = dict(last.answered)
        for key, params in last.questions.items():
            answers[key] = _response(params, last.decisions[key])
        return answers, last.state

    def pushed(self, params: Mapping[str, Any], expires_s: float | None = None) -> dict[str, Any]:
        """A person's earlier answer to a question that the server asks while the call runs.

        Without an earlier answer it returns `cancel`, and the caller must end the call with `wait`.
        """
        identity = _identity(params)
        for number, earlier in enumerate(self._rounds):
            if number in self._used or earlier.goes_on:
                continue
            if _identity(earlier.questions[""]) == identity:
                self._used.add(number)
                return _response(params, earlier.decisions[""])
        if self.wanted is None:
            self.wanted = _Round({"": dict(params)}, expires_s=expires_s)
        return {"action": "cancel"}

    def want(
        self,
        questions: Mapping[str, Any],
        *,
        state: Any,
        answered: Mapping[str, Any],
        expires_s: float | None = None,
    ) -> None:
        """Note the questions in a call's result.

        `state` and `answered` are returned to the server with the answers.
        """
        asked = {key: dict(params) for key, params in questions.items()}
        self.wanted = _Round(
            asked, goes_on=True, state=state, answered=dict(answered), expires_s=expires_s
        )

    def wait(self) -> NoReturn:
        """Suspend the run until the questions (see `record`) are answered.

        Raises `MCPProtocolError` if the server asked too often.
        """
        server, original = mcp_origin(self._checked.tool)
        if len(self._rounds) >= MOST_ROUNDS:
            self.wanted = None
            raise MCPProtocolError(
                f"`{original}` of the MCP server `{server}` came back with questions "
                f"{MOST_ROUNDS} times.",
                server=server,
                tool=original,
                phase="input",
                may_have_run=True,
            )
        raise Suspended(())

    async def keep_task(self, task_id: str) -> None:
        """Journal the id of the task that the server made of the call.

        Runs on the connection's event loop, which may not be the run's.
        """
        self._frame.check_alive()
        await self._frame.run.journal.aadd(
            Entry(self._task_slot(), "once", self._digest, {"task": task_id})
        )
        self.task = task_id

    def _task_slot(self) -> Slot:
        # A question in the middle of a call ends the call, and the next execution starts another
        # task.
        return self._slot.task(sum(not earlier.goes_on for earlier in self._rounds))

    # -- for the driver

    async def record(self) -> list[Question]:
        """Journal the wanted questions before the run waits.

        Observers see each question once, when it is first asked.
        """
        run, wanted = self._frame.run, cast("_Round", self.wanted)
        if wanted.expires_s is not None:
            wanted.expires_at = await now(self._frame) + wanted.expires_s
        number = len(self._rounds) + 1
        await self._frame.write(
            Entry(self._slot.inputs(number), "once", self._digest, wanted.form())
        )
        questions = list(self._questions(number, wanted).values())
        register(run, questions)
        if self._frame.tell is not None:
            for question in questions:
                self._frame.tell.inside(self._slot)(events.QuestionAsked(question))
        return questions

    async def replay(self) -> None:
        """Read the questions of earlier executions of the call and their decisions.

        Raises `Suspended` with the undecided ones.
        """
        journal, number = self._frame.run.journal, 1
        self._take_task()
        while (slot := self._slot.inputs(number)) in journal.unread:
            entry = journal.take(slot, "once", self._digest)
            with reading(f"The questions at {slot} of the journal"):
                earlier: _Round = check_fields(_Round(**cast("Entry", entry).value))
                questions = self._questions(number, earlier)
            waiting: list[Question] = []
            for position, (key, question) in enumerate(questions.items()):
                decision = await self._decision(slot.item(position), question)
                if decision is None:
                    waiting.append(question)
                else:
                    earlier.decisions[key] = decision
            if waiting:
                register(self._frame.run, waiting)
                raise Suspended(waiting)
            self._rounds.append(earlier)
            number += 1
            if not earlier.goes_on:
                self._take_task()

    def _take_task(self) -> None:
        journal, slot = self._frame.run.journal, self._task_slot()
        entry = journal.take_optional(slot, "once", self._digest)
        with reading(f"The task at {slot} of the journal"):
            self.task = None
            if entry is not None:
                self.task = str(entry.value["task"])

    async def _decision(self, slot: Slot, question: Question) -> Decision | None:
        run = self._frame.run
        entry = run.journal.take_decision(slot)
        if entry is not None and not is_void(run, entry, question.subject):
            # The list of decisions lacks it after a crash, when only the journal is left.
            run.tally.note(run.decisions, entry.value)
            return entry.value
        decision = await decision_in_time(self._frame, question, "Nobody answered in time.")
        if decision is None:
            return None
        await self._frame.write(Entry(slot, "decision", question.digest, decision))
        run.decided(decision)
        if self._frame.tell is not None:
            self._frame.tell.inside(self._slot)(events.Decided(question, decision))
        return decision

    def _questions(self, number: int, asked: _Round) -> dict[str, Question]:
        slot = self._slot.inputs(number)
        return {
            key: self._question(slot.item(position), params, asked.expires_at)
            for position, (key, params) in enumerate(asked.questions.items())
        }

    def _question(
        self, slot: Slot, params: Mapping[str, Any], expires_at: float | None
    ) -> Question:
        tool = self._checked.tool
        server, original = mcp_origin(tool)
        # The server's words, without hidden characters that could change what a person reads.
        message = scrub(str(params.get("message", "")))
        url, form = "", None
        if params.get("mode") == "url" and params.get("url"):
            url = str(params["url"])
            # The host by itself first: a long address can hide where it leads.
            host = urlsplit(url).hostname or "?"
            wants = f"asks you to open a page on {host}: {scrub(url)}"
        else:
            schema: Any = params.get("requestedSchema")
            wants = f"asks for {describe_form(schema)}"
            if isinstance(schema, Mapping):
                form = cast("Mapping[str, Any]", schema)
        warning = ""
        secrets = secret_fields(form, message)
        if secrets:
            names = ", ".join(f"`{name}`" for name in secrets)
            warning = (
                f"Warning: {names} looks like a secret. The server gets what you type, and the run "
                "stores it. A server must not ask for a secret this way: decline.\n"
            )
        bare = Question(
            "input",
            f"{warning}The MCP server {server!r} {wants}, before {original!r} goes on. "
            f"It says: {message}",
            self._checked.call.changed(args=self._checked.arguments.shown),
            fingerprint=tool_fingerprint(tool),
            path=self._frame.path,
            expires_at=expires_at,
            server=server,
            original=original,
            form=form,
            url=url,
        )
        return replace(bare, id=self._frame.run.question_id(f"{slot} {bare.digest}"))


async def open_inputs(frame: Frame, slot: Slot, digest: str, checked: CheckedCall) -> Inputs:
    """The questions and answers at a slot so far, before the call is made (again).

    Raises `Suspended` if a person has not answered yet.
    """
    inputs, journal = Inputs(frame, slot, digest, checked), frame.run.journal
    if journal.is_paused(slot):
        starts = sum(entry.kind == "begun" and entry.slot == slot for entry in journal.entries)
        for number in range(1, starts + 1):  # earlier crashes in this call, already decided
            journal.take_optional(slot.decision(number), "decision", f"unknown {digest}")
    await inputs.replay()
    return inputs


def _identity(params: Mapping[str, Any]) -> str:
    return json_text([params.get(name) for name in ("mode", "message", "requestedSchema", "url")])


def _response(params: Mapping[str, Any], decision: Decision) -> dict[str, Any]:
    """A decision in the protocol's form."""
    if decision.via == "expiry":
        return {"action": "cancel"}
    if decision.kind == "deny":
        return {"action": "decline"}
    if params.get("mode") == "url":
        return {"action": "accept"}
    form: Any = params.get("requestedSchema")
    return {"action": "accept", "content": read_form(form, decision.text)}
