"""What a person does: decide on a question, cancel or resume a run, chat with the program."""

from __future__ import annotations

import logging
import re
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode

from msgspec.structs import replace
from starlette.responses import RedirectResponse, Response

from ferrule.approval.call_view import refuse_unseen
from ferrule.approval.policy import Grant
from ferrule.encoding.encode import digest_of, json_text
from ferrule.encoding.safe_text import TypedText, reveal
from ferrule.errors import DecisionError, FerruleError, InputError, StoreError
from ferrule.runs.store.listing import stored_head
from ferrule.web import reading
from ferrule.web.forms import HTMLForm
from ferrule.web.guard import Refused
from ferrule.web.inbox import InboxQuery, brief_of, groups_of, shape_of
from ferrule.web.markup import WORDS
from ferrule.web.pages import Pages, decided_text, existing_run, question_form, read_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from ferrule.approval.message import When
    from ferrule.approval.question import Decision, Question
    from ferrule.runs.protocols import Store, Summary
    from ferrule.runs.story import CallBeat
    from ferrule.web.work import Work

_log = logging.getLogger("ferrule.web")
_MOST_CALLS = 1_000_000
_MOST_LATEST = 1_000
_TURN = re.compile(r"(chat-[0-9a-f]{8})(?:\.([0-9]{1,6}))?")
_TURNS = 20
"""Earlier ones that a chat shows."""
_TICK = "read:"
"""The start of the name of a checkbox of one call; the id of its question follows."""
_RECENT, _MOST_WORDS = 10, 90


class Deciding:
    """The addresses that take a POST."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._store = pages.store
        self._latest: dict[tuple[str, str], Any] = {}
        """The latest decisions of this process: who sent which form.

        A session ends with the process, so no older form can come again.
        """

    def decide(self, request: Request) -> Response:
        """`/runs/ID/questions/QUESTION`."""
        run_id = reading.id_from_path(request.path_params["id"])
        question_id = request.path_params["question"]
        person = request.scope["ferrule.session"].person
        sent: Mapping[str, str] = request.scope["ferrule.form"]
        sender = person, dict(sent)
        asked = self._find(run_id, question_id)
        if asked is None:
            if self._latest.get((run_id, question_id)) == sender:
                return _back(request)
            return self._too_late(request, run_id, question_id)
        if sent.get("digest") != asked.question.digest:
            asks = reveal(asked.question.text)
            raise Refused(409, f"This question has changed. The run asks now: {asks}")
        form = question_form(asked)
        try:
            decision = _decision(asked, form, sent)
            if decision is None:
                return self._misfit(request, asked, form, sent, "")
            next_id = self._next_in_inbox(request, question_id)
            self._store.decide(run_id, decision.signed(person, "web"))
            self._latest[run_id, question_id] = sender
            while len(self._latest) > _MOST_LATEST:
                del self._latest[next(iter(self._latest))]
        except DecisionError as error:
            if self._is_over(run_id, question_id):
                return self._too_late(request, run_id, question_id)
            return self._misfit(request, asked, form, sent, str(error))
        self._go_on(run_id)
        if sent.get("back") == "inbox":
            done = WORDS.get(decision.kind, decision.kind)
            self._pages.tell(request, f"{done}: {brief_of(asked.question)}")
            if next_id and self._is_gone(run_id, question_id):
                return _back(request, question=next_id)
        return _back(request)

    def _next_in_inbox(self, request: Request, question_id: str) -> str:
        """The undecided question after this one, to which the keys go on."""
        if request.scope["ferrule.form"].get("back") != "inbox":
            return ""
        lines = [
            asked.question.id
            for group in groups_of(self._pages.inbox_lines(request)[0])
            for asked in group.asked
            if asked.decision is None or asked.question.id == question_id
        ]
        if question_id not in lines:
            return ""
        later = lines[lines.index(question_id) + 1 :]
        return later[0] if later else ""

    def _is_gone(self, run_id: str, question_id: str) -> bool:
        """Whether the run has used a decision, so that the inbox shows the question no longer."""
        run = self._store.summary(run_id)
        return run.status != "waiting" or question_id not in {
            question.id for question in run.questions
        }

    def decide_many(self, request: Request) -> Response:
        """`/inbox/review`: one decision on equal calls, those that are ticked."""
        sent: Mapping[str, str] = request.scope["ferrule.form"]
        ticked = {
            name.removeprefix(_TICK): digest
            for name, digest in sent.items()
            if name.startswith(_TICK)
        }
        shape, what = sent.get("shape", ""), sent.get("do", "")
        if what not in {"approve", "deny"}:
            raise Refused(400, "This form has no such button.")
        waiting = {asked.question.id: asked for asked in reading.inbox(self._store)[0]}
        done: list[str] = []
        problems: list[str] = []
        for question_id, digest in ticked.items():
            asked = waiting.get(question_id)
            problem = self._refusal(request, asked, digest, shape)
            if not problem and asked is not None:
                problem = self._decide_one(request, asked, what, sent.get("words", ""))
            if problem:
                problems.append(problem)
            elif asked is not None:
                done.append(asked.run.id)
        for run_id in dict.fromkeys(done):
            try:
                self._go_on(run_id)
            except Refused as refused:
                problems.append(refused.text)
        word = "Approved" if what == "approve" else "Denied"
        text = f"{word}: {len(done)} of {len(ticked)} ticked calls."
        if not ticked:
            text = "No call was ticked. Nothing was decided."
        self._pages.tell(request, " ".join([text, *dict.fromkeys(problems)]))
        has_more = any(
            shape_of(asked) == shape
            for question_id, asked in waiting.items()
            if question_id not in ticked
        )
        if has_more:
            return RedirectResponse(f"/inbox/review?{urlencode({'shape': shape})}", 303)
        return RedirectResponse("/inbox", 303)

    def _refusal(
        self,
        request: Request,
        asked: reading.AskedQuestion | None,
        digest: str,
        shape: str,
    ) -> str:
        """Why one of several ticked calls is not decided; empty if it may be."""
        if asked is None or asked.decision is not None:
            return "One was decided meanwhile."
        if asked.question.digest != digest:
            return "One has changed since the page was made."
        if not shape or shape_of(asked) != shape:
            return "One is not of the same shape."
        if not self._pages.may(request, "decide", asked.run.program):
            return "Your role does not permit one of them."
        return ""

    def _decide_one(
        self, request: Request, asked: reading.AskedQuestion, what: str, words: str
    ) -> str:
        """Decide one of several calls; returns why it could not be done."""
        question = asked.question
        try:
            if what == "approve":
                refuse_unseen(question)
                decision = question.approve()
            else:
                decision = question.deny(words.strip())
            person = request.scope["ferrule.session"].person
            self._store.decide(asked.run.id, decision.signed(person, "web"))
        except (DecisionError, StoreError) as error:
            return str(error)
        return ""

    def _go_on(self, run_id: str) -> None:
        """Resume a run of the program of this page after its last decision."""
        work = self._pages.work
        if work is None:
            return
        run = self._store.summary(run_id)
        if run.leased or reading.undecided(run) or not work.fits(stored_head(self._store, run_id)):
            return
        try:
            work.resume(run_id)
        except FerruleError as error:
            raise Refused(
                409, f"The decision was recorded, but the run does not continue: {error}"
            ) from error

    def go_on_after_result(self, run_id: str) -> None:
        """Resume a run of the program of this page after a result from outside."""
        try:
            self._go_on(run_id)
        except Refused as refused:  # the sender cannot mend it
            _log.warning("The run %s has its result. %s", run_id, refused.text)

    def assign(self, request: Request) -> Response:
        """`/runs/ID/assign`: who looks at the run."""
        sent: Mapping[str, str] = request.scope["ferrule.form"]
        person = sent.get("to") or sent.get("person", "").strip()
        try:
            self._store.assign(self._run(request).id, person)
        except InputError as error:
            raise Refused(409, str(error)) from error
        return _back(request, question=sent.get("question", ""), part="people")

    def add_note(self, request: Request) -> Response:
        """`/runs/ID/note`: a text for other people."""
        sent: Mapping[str, str] = request.scope["ferrule.form"]
        author = request.scope["ferrule.session"].person
        text = sent.get("note", "").replace("\r\n", "\n")
        try:
            self._store.add_note(self._run(request).id, text, author=author)
        except InputError as error:
            raise Refused(409, str(error)) from error
        return _back(request, question=sent.get("question", ""), part="people")

    def say(self, request: Request) -> Response:
        """`/runs/ID/say`: a message to the agent of the run."""
        run_id = reading.id_from_path(request.path_params["id"])
        sent: Mapping[str, str] = request.scope["ferrule.form"]
        text = sent.get("text", "")
        when: When = "next"
        if sent.get("after"):
            when = "after"
        # A browser may send a form twice. A changed text is another message.
        key = f"{sent.get('key', '')}:{digest_of(text)}"
        person = request.scope["ferrule.session"].person
        existing_run(partial(self._store.summary, run_id))
        try:
            self._store.say(run_id, text, when=when, by=person, via="page", key=key)
        except DecisionError as error:
            raise Refused(409, str(error)) from error
        return _back(request)

    def ask_to_cancel(self, request: Request) -> Response:
        """`/runs/ID/cancel`, as a page: what would end, and the button."""
        if not self._pages.may(request, "administer"):
            raise Refused(403, "Your role on this page does not permit to cancel a run.")
        run = self._run(request)
        if run.status not in {"queued", "running", "waiting"}:
            raise Refused(409, f"The run is {run.status}: there is nothing to cancel.")
        return self._pages.html(
            request,
            "cancel.html",
            run=run,
            at_work=self._at_work(request, run),
            questions=reading.undecided(run),
        )

    def cancel(self, request: Request) -> Response:
        """`/runs/ID/cancel`, as a form. The next page says what has ended."""
        run = self._run(request)
        at_work, questions = self._at_work(request, run), reading.undecided(run)
        try:
            self._store.cancel(run.id)
        except StoreError as error:
            raise Refused(409, str(error)) from error
        ended = [
            f"The call of {call.name} was at work, and may have taken effect." for call in at_work
        ]
        ended += [
            f"The question about {question.call.name} is withdrawn." for question in questions
        ]
        self._pages.tell(request, " ".join(["The run is cancelled.", *ended]))
        return _back(request)

    def _run(self, request: Request) -> Summary:
        run_id = reading.id_from_path(request.path_params["id"])
        return existing_run(partial(self._store.summary, run_id))

    def _at_work(self, request: Request, run: Summary) -> list[CallBeat]:
        """The calls of a run that have begun and not ended."""
        if run.status != "running":
            return []
        read = self._pages.run_of(request)
        with read.lock:
            return read.story.at_work()

    def cancel_call(self, request: Request) -> Response:
        """`/runs/ID/cancel-call`: ends one call; the model reads the text that was typed."""
        run_id = reading.id_from_path(request.path_params["id"])
        sent: Mapping[str, str] = request.scope["ferrule.form"]
        person = request.scope["ferrule.session"].person
        existing_run(partial(self._store.summary, run_id))
        try:
            self._store.cancel_call(
                run_id,
                sent.get("call", ""),
                result=sent.get("result", "").strip() or None,
                by=person,
                via="page",
            )
        except DecisionError as error:
            raise Refused(409, str(error)) from error
        return _back(request)

    def resume(self, request: Request) -> Response:
        """`/runs/ID/resume`. The run goes on in a thread here; its page follows the journal."""
        run_id = reading.id_from_path(request.path_params["id"])
        work = self._pages.work
        try:
            if work is None or not work.fits(stored_head(self._store, run_id)):
                raise Refused(
                    409,
                    "This page serves another program than that of the run. "
                    "Resume the run with `ferrule resume`.",
                )
            work.resume(run_id)
        except FerruleError as error:
            raise Refused(409, str(error)) from error
        return _back(request)

    def fork(self, request: Request) -> Response:
        """`/runs/ID/fork`: a new run goes on from a place of this one. Shows its page."""
        run_id = reading.id_from_path(request.path_params["id"])
        sent: Mapping[str, str] = request.scope["ferrule.form"]
        work = self._work_of(request)
        if not sent.get("at"):
            raise Refused(400, "The form does not say from where.")
        # A browser may send a form twice.
        new_id = digest_of((run_id, sent["at"], sent.get("key", "")), 32)
        try:
            if not _is_there(self._store, new_id):
                inputs = None
                if "inputs" in sent:
                    form = HTMLForm(work.schema or {}, work.inputs(run_id))
                    values = form.read(sent)
                    if values is None:
                        return self._again(request, form, sent["at"], status=422)
                    inputs = work.typed(form.edits(values))
                work.fork(run_id, sent["at"], new_id, inputs)
        except (FerruleError, ValueError) as error:
            raise Refused(409, str(error)) from error
        return RedirectResponse(f"/runs/{reading.id_in_path(new_id)}", 303)

    def ask_to_fork(self, request: Request) -> Response:
        """`/runs/ID/again?at=SLOT`: a form with the inputs, to run again with others."""
        run_id = reading.id_from_path(request.path_params["id"])
        if not self._pages.may(request, "administer"):
            raise Refused(403, "Your role on this page does not permit this.")
        work = self._work_of(request)
        if work.schema is None:
            raise Refused(409, "The inputs of this program cannot be typed in a form.")
        form = HTMLForm(work.schema, work.inputs(run_id))
        return self._again(request, form, request.query_params.get("at", ""))

    def _again(self, request: Request, form: HTMLForm, at: str, *, status: int = 200) -> Response:
        return self._pages.html(
            request,
            "again.html",
            status=status,
            run=self._run(request),
            form=form,
            at=at,
            key=secrets.token_urlsafe(12),
        )

    def _work_of(self, request: Request) -> Work:
        """The program of the page, if it is that of the run."""
        run_id = self._run(request).id
        work = self._pages.work
        if work is None or not work.fits(stored_head(self._store, run_id)):
            raise Refused(
                409,
                "This page serves another program than that of the run. "
                "Fork the run with `ferrule fork`.",
            )
        return work

    def _find(self, run_id: str, question_id: str) -> reading.AskedQuestion | None:
        """The question, if it waits.

        Decided or not, because a second equal decision is accepted.
        """
        run = existing_run(partial(self._store.summary, run_id))
        for question in run.questions:
            if question.id == question_id:
                return reading.AskedQuestion(run=run, question=question)
        return None

    def _is_over(self, run_id: str, question_id: str) -> bool:
        run = self._store.summary(run_id)
        waiting = {question.id for question in run.questions}
        return question_id in run.decided or question_id not in waiting

    def _too_late(self, request: Request, run_id: str, question_id: str) -> Response:
        decision = reading.find_decision(self._store, run_id, question_id)
        asked = self._find(run_id, question_id)
        card = None
        if asked is not None and decision is not None:
            card = self._pages.question(request, replace(asked, decision=decision))
        values: dict[str, Any] = {
            "outcome": decided_text(decision),
            "decision": decision,
            "card": card,
            "run_id": run_id,
            "asked_now": reading.undecided(existing_run(partial(self._store.summary, run_id))),
        }
        return self._pages.html(request, "decided.html", status=409, **values)

    def _misfit(
        self,
        request: Request,
        asked: reading.AskedQuestion,
        form: HTMLForm | None,
        sent: Mapping[str, str],
        problem: str,
    ) -> Response:
        """The question again, with what was typed and what does not fit."""
        typed = {name: TypedText(text) for name, text in sent.items()}
        card = self._pages.question(
            request, asked, form=form, sent=typed, problem=problem, back=sent.get("back", "run")
        )
        return self._pages.html(request, "question_page.html", status=422, card=card)


def _back(request: Request, *, question: str = "", part: str = "") -> Response:
    """To the page that a form was on, and there to the question that it decided, or another.

    Or, on the page of a run, to a part of it.
    """
    run_id = request.path_params["id"]
    back = request.scope["ferrule.form"].get("back")
    if back == "chat":  # it begins at its end, where the message is typed
        return RedirectResponse(f"/chat/{run_id}", 303)
    address = f"/runs/{run_id}"
    if back == "inbox":
        address = "/inbox"
        query = InboxQuery.of(dict(parse_qsl(request.scope["ferrule.form"].get("filter", ""))))
        if query.text:
            address += f"?{query.text}"
    question = question or request.path_params.get("question", "")
    if part and back != "inbox":
        address += f"#{part}"
    elif question:
        address += f"#q-{quote(question)}"
    return RedirectResponse(address, 303)


class Chat:
    """The pages of a conversation.

    Each turn is an ordinary run of the program, and the next one gets the turns before it.
    """

    def __init__(self, pages: Pages, work: Work) -> None:
        self._pages = pages
        self._work = work
        self._store = pages.store

    def begin(self, request: Request) -> Response:
        """`/chat`."""
        return self._page(request, self._form(), "")

    def turn(self, request: Request) -> Response:
        """`/chat/ID`."""
        return self._page(request, self._form(), request.path_params["id"])

    def send(self, request: Request) -> Response:
        """A message, at either address."""
        part = request.path_params.get("id", "")
        form = self._form()
        values = form.read(request.scope["ferrule.form"])
        if values is None:
            problem = "A value in the form is not valid. Nothing was sent."
            return self._page(request, form, part, problem=problem)
        message = self._work.message
        if message and not str(values.get(message) or "").strip():
            return self._page(request, form, part, problem="Write a message first.")
        try:
            run_id = self._next(reading.id_from_path(part), self._work.typed(values))
        except (FerruleError, ValueError) as error:
            return self._page(request, form, part, problem=str(error))
        return RedirectResponse(f"/chat/{reading.id_in_path(run_id)}", 303)

    def _next(self, before: str, inputs: dict[str, Any]) -> str:
        """Begin the run that follows; returns its id."""
        run_id, work = _new_id(), self._work
        if work.history:
            inputs[work.history] = work.turns(None)
        if before and work.history:
            run, run_id = self._store.summary(before), _next_id(before)
            if run.status in {"queued", "running", "waiting"}:
                raise DecisionError(
                    "The previous turn has not ended: "
                    "wait for its answer, decide its question, or stop it."
                )
            inputs[work.history] = work.turns(run)
            if _is_there(self._store, run_id):
                raise DecisionError(
                    "This conversation continued elsewhere. "
                    "Open its latest turn in the list of runs."
                )
        work.start(inputs, run_id)
        return run_id

    def _form(self) -> HTMLForm:
        return HTMLForm(self._work.schema or {}, {})

    def _page(self, request: Request, form: HTMLForm, part: str, *, problem: str = "") -> Response:
        work = self._work
        main = next((item for item in form.fields if item.label == work.message), None)
        rest = [item for item in form.fields if item is not main]
        values: dict[str, Any] = {
            "form": form,
            "main": main,
            "rest": rest,
            "problem": problem,
            "program": work.program.name,
            "keeps": bool(work.history),
            "part": part,
            "message": work.message,
            "history": work.history,
            "needs_rest": any(item.problem or item.required for item in rest),
            "status": 422 if problem else 200,
        }
        if not part:
            recent = [
                {"run": run, "text": self._first_words(run.id)}
                for run in self._store.list(program=work.program.name, limit=_RECENT)
            ]
            return self._pages.html(request, "chat.html", run=None, recent=recent, **values)
        shown = self._pages.run_values(request)
        if shown["run"].program != work.program.name:
            return RedirectResponse(f"/runs/{part}", 303)
        turns = [self._turn(run_id) for run_id in _earlier_ids(shown["run"].id, _TURNS)]
        earlier = [turn for turn in turns if turn is not None]
        return self._pages.html(request, "chat.html", recent=(), earlier=earlier, **shown, **values)

    def _first_words(self, run_id: str) -> str:
        try:
            text = reading.inputs_in(stored_head(self._store, run_id)).get(self._work.message)
        except StoreError:  # deleted meanwhile, or damaged, which its own page shows
            return ""
        if not isinstance(text, str):
            return ""
        return " ".join(text[:_MOST_WORDS].split())

    def _turn(self, run_id: str) -> dict[str, Any] | None:
        """An earlier turn: its inputs and its answer."""
        if not _is_there(self._store, run_id):
            return None
        run = self._store.summary(run_id)
        head = stored_head(self._store, run_id)
        answer = None
        if run.status == "done" and self._work.fits(head):
            answer = self._work.outputs(run_id)
        return {"run": run, "inputs": reading.inputs_in(head), "answer": answer}


def _new_id() -> str:
    """The id of the first run of a conversation."""
    return f"chat-{secrets.token_hex(4)}"


def _next_id(run_id: str) -> str:
    """The id of the run that follows: `chat-00c0ffee.2` after `chat-00c0ffee`.

    Any other run begins a conversation.
    """
    turn = _TURN.fullmatch(run_id)
    if turn is None:
        return _new_id()
    number = int(turn[2] or 1)
    return f"{turn[1]}.{number + 1}"


def _earlier_ids(run_id: str, most: int) -> list[str]:
    """The ids of the turns before this one, oldest first."""
    turn = _TURN.fullmatch(run_id)
    if turn is None:
        return []
    number = int(turn[2] or 1)
    earlier = range(max(1, number - most), number)
    return [f"{turn[1]}.{k}" if k > 1 else turn[1] for k in earlier]


def _is_there(store: Store, run_id: str) -> bool:
    try:
        existing_run(partial(store.summary, run_id))
    except Refused:
        return False
    return True


def _decision(
    asked: reading.AskedQuestion, form: HTMLForm | None, sent: Mapping[str, str]
) -> Decision | None:
    """The decision that was sent; None if the form does not fit.

    Raises `DecisionError` for one that makes no sense.
    """
    question = asked.question
    words = sent.get("words", "").replace("\r\n", "\n")
    match sent.get("do"):
        case "deny":
            return question.deny(words)
        case "reply":
            if not words.strip():
                raise DecisionError("Write an answer first.")
            return question.reply(words)
        case "approve" if question.kind == "input":
            return _filled(question, form, sent)
        case "approve":
            return _approved(question, form, sent)
        case "always":
            approval = _approved(question, form, sent)
            if approval is None or approval.kind == "approve":
                return approval and question.approve(always=_grant(question, sent))
            raise DecisionError(
                "You changed the values, and an approval of further calls is for the call as it "
                "is shown. Approve this call with the changes, or undo them."
            )
        case _:
            raise DecisionError("This form has no such button.")


def _filled(question: Question, form: HTMLForm | None, sent: Mapping[str, str]) -> Decision | None:
    if form is None:
        return question.reply("{}")
    values = form.read(sent)
    if values is None:
        return None
    return question.reply(json_text(values))


def _approved(
    question: Question, form: HTMLForm | None, sent: Mapping[str, str]
) -> Decision | None:
    """An approval of the call as it is shown, or with what was changed in the form."""
    refuse_unseen(question)
    if form is None:
        return question.approve()
    values = form.read(sent)
    if values is None:
        return None
    edits, removed = form.edits(values), form.removed(values)
    if question.kind == "migration":  # its edit replaces all arguments
        return question.edit(values)
    if edits or removed:
        return question.edit(edits, removed=removed)
    return question.approve()


def _grant(question: Question, sent: Mapping[str, str]) -> Grant:
    calls = read_number(sent.get("calls", "").strip()) or 0
    if not 0 < calls <= _MOST_CALLS:
        raise DecisionError("Enter the number of further calls, at least 1.")
    match sent.get("which"):
        case "any":
            return Grant(args="any", calls=calls)
        case "folder":
            grant = question.grant_for_folder()
            if grant is None:
                raise DecisionError(
                    "This call has no path in a folder to approve further calls for."
                )
            return replace(grant, calls=calls)
        case _:
            return Grant(calls=calls)
