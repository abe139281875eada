"""What a person does: decide on a question, cancel a run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse, Response

from ferrule.errors import DecisionError, StoreError
from ferrule.values.confirmation.policy import Grant
from ferrule.values.encoding.encode import json_text
from ferrule.web import reading
from ferrule.web.guard import Refused
from ferrule.web.pages import Pages, decided_text, question_form
from ferrule.web.render import id_from_path, time_of_day

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from ferrule.values.confirmation.question import Decision
    from ferrule.web.forms import HTMLForm

_MOST_CALLS = 1_000_000


class Deciding:
    """The addresses that take a POST."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._store = pages.store

    def decide(self, request: Request) -> Response:
        """`/runs/ID/questions/QUESTION`."""
        run_id, question_id = id_from_path(request.path_params["id"]), request.path_params["question"]
        sent: Mapping[str, str] = request.scope["ferrule.form"]
        asked = self._find(run_id, question_id)
        if asked is None:
            return self._too_late(request, run_id, question_id)
        if sent.get("digest") != asked.question.digest:
            raise Refused(409, "This question shows something else by now. Load the page again, and look at it once more.")
        form = question_form(asked)
        try:
            decision = _decision(asked, form, sent)
            if decision is None:
                return self._misfit(request, asked, form, sent, "")
            self._store.decide(run_id, decision.signed(request.scope["ferrule.session"].person, "web"))
        except DecisionError as error:
            if self._is_over(run_id, question_id):
                return self._too_late(request, run_id, question_id)
            return self._misfit(request, asked, form, sent, str(error))
        back = "/inbox" if sent.get("back") == "inbox" else f"/runs/{request.path_params['id']}"
        return RedirectResponse(back, 303)

    def cancel(self, request: Request) -> Response:
        """`/runs/ID/cancel`."""
        run_id = id_from_path(request.path_params["id"])
        try:
            self._store.cancel(run_id)
        except StoreError as error:
            raise Refused(409, str(error)) from error
        return RedirectResponse(f"/runs/{request.path_params['id']}", 303)

    def _find(self, run_id: str, question_id: str) -> reading.AskedQuestion | None:
        """The question, if it waits; decided or not, because the same decision twice is no fault."""
        try:
            run = self._store.summary(run_id)
        except StoreError as error:
            raise Refused(404, "This store has no such run.") from error
        found = next((each for each in run.questions if each.id == question_id), None)
        return reading.AskedQuestion(run=run, question=found) if found is not None else None

    def _is_over(self, run_id: str, question_id: str) -> bool:
        run = self._store.summary(run_id)
        return question_id in run.decided or all(each.id != question_id for each in run.questions)

    def _too_late(self, request: Request, run_id: str, question_id: str) -> Response:
        decision = reading.find_decision(self._store, run_id, question_id)
        when = f" at {time_of_day(decision.at)}" if decision is not None and decision.at else ""
        values: dict[str, Any] = {"said": decided_text(decision), "when": when, "decision": decision, "run_id": run_id}
        return self._pages.html(request, "decided.html", status=409, **values)

    def _misfit(
        self, request: Request, asked: reading.AskedQuestion, form: HTMLForm | None, sent: Mapping[str, str], problem: str
    ) -> Response:
        """The question again, with what was typed and what does not fit."""
        shown = self._pages.question(request, asked, form=form, sent=sent, problem=problem, back=sent.get("back", "run"))
        return self._pages.html(request, "question_page.html", status=422, each=shown)


def _decision(asked: reading.AskedQuestion, form: HTMLForm | None, sent: Mapping[str, str]) -> Decision | None:
    """The decision that was sent; None if the form does not fit. Raises `DecisionError` for one that makes no sense."""
    question, words = asked.question, sent.get("words", "").replace("\r\n", "\n")
    match sent.get("do"):
        case "deny":
            return question.deny(words)
        case "reply":
            if not words.strip():
                raise DecisionError("Write an answer first.")
            return question.reply(words)
        case "always":
            return question.approve(always=_grant(sent))
        case "approve" if question.kind == "input":
            if form is None:
                return question.reply("{}")
            values = form.read(sent)
            return question.reply(json_text(values)) if values is not None else None
        case "approve" if form is not None:
            values = form.read(sent)
            edits = form.edits(values) if values is not None else {}
            make: Any = partial(question.edit, edits) if edits else question.approve
            return make() if values is not None else None
        case "approve":
            return question.approve()
        case _:
            raise DecisionError("This form has no such button.")


def _grant(sent: Mapping[str, str]) -> Grant:
    calls = sent.get("calls", "").strip()
    if not calls.isdecimal() or not 0 < int(calls[:8]) <= _MOST_CALLS:
        raise DecisionError("Say for how many further calls it holds: a number from 1 on.")
    return Grant(args="any" if sent.get("which") == "any" else "same", calls=int(calls))
