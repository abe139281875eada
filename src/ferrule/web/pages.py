"""The pages that only read: the list of runs, one run, the inbox, and the whole of a long value."""

from __future__ import annotations

import base64
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlencode

from starlette.responses import HTMLResponse, Response

from ferrule.errors import StoreError
from ferrule.runs.store.listing import stored_head
from ferrule.web import reading
from ferrule.web.forms import HTMLForm, means
from ferrule.web.guard import Refused
from ferrule.web.live import live
from ferrule.web.markup import (
    MOST_SHOWN,
    WORDS,
    beats_html,
    literal,
    picture_type,
    pretty,
    time_of_day,
)
from ferrule.web.reading import version_of
from ferrule.web.render import fill_template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from starlette.requests import Request

    from ferrule.approval.question import Decision, Question
    from ferrule.runs.protocols import Store, Summary
    from ferrule.runs.story import Beat
    from ferrule.web.live import PageEvent, Watch
    from ferrule.web.work import Work


R = TypeVar("R")
_MOST_NOTED = 500


class Pages:
    """The pages over one store."""

    def __init__(
        self,
        store: Store,
        watch: Watch,
        *,
        title: str,
        work: Work | None = None,
        is_read_only: bool = False,
    ) -> None:
        self.store = store
        self.watch = watch
        self.work = work
        self.is_read_only = is_read_only
        self._title = title
        self._readings = reading.Readings(store)

    def html(
        self,
        request: Request,
        name: str,
        *,
        status: int = 200,
        stream: str = "",
        **values: Any,
    ) -> HTMLResponse:
        """A whole page."""
        page = {
            "place": request.url.path,
            "stream": stream,
            "store": self._title,
            "waiting": reading.count_waiting(self.store),
        }
        return HTMLResponse(
            self.part(request, name, now=time(), **page, **values),
            status_code=status,
        )

    def part(self, request: Request, name: str, **values: Any) -> str:
        """A template, filled with these values and those that all templates use."""
        session = request.scope["ferrule.session"]
        common = {
            "person": session.person,
            "csrf": session.csrf,
            "can_write": not self.is_read_only,
            "has_chat": self.can_chat,
        }
        return fill_template(name, **common, **values)

    @property
    def can_chat(self) -> bool:
        """Whether there is a program whose inputs can be typed."""
        return self.work is not None and self.work.schema is not None and not self.is_read_only

    # -- the list of runs
    # --------------------------------------------------------------------------------------------

    def runs(self, request: Request) -> Response:
        """`/`."""
        found = reading.page_of_runs(self.store, request.query_params)
        query = {"status": found.status, "program": found.program, "q": found.search}
        asked = {key: value for key, value in query.items() if value}
        stream = "/live?" + urlencode({**asked, "before": found.before})
        return self.html(
            request,
            "runs.html",
            stream=stream,
            runs=found,
            statuses=reading.STATUSES,
            query=partial(_query, asked),
        )

    async def runs_live(self, request: Request) -> Response:
        """`/live`."""
        sent = ""

        def read() -> Iterator[PageEvent]:
            nonlocal sent
            runs = reading.page_of_runs(self.store, request.query_params)
            html = self.part(
                request,
                "live.html",
                page="runs",
                runs=runs,
                now=time(),
                waiting=reading.count_waiting(self.store),
            )
            mark = version_of(
                [
                    (each.id, each.updated_at, each.status, each.leased, each.decided)
                    for each in runs.lines
                ],
            )
            if mark != sent:
                sent = mark
                yield "", html

        return live(self.watch, read)

    # -- one run
    # -----------------------------------------------------------------------------------------------------

    def run(self, request: Request) -> Response:
        """`/runs/ID`."""
        return self.html(request, "run.html", **self.run_values(request))

    def run_values(self, request: Request) -> dict[str, Any]:
        """What the page of a run shows."""
        before = read_number(request.query_params.get("before", ""))
        found, run = self._run(request, None if before is None else 0), self._summary(request)
        base = f"/runs/{request.path_params['id']}"
        with found.lock:
            end = found.turns if before is None else min(before, found.turns)
            most = (
                reading.BEATS
                if before is not None
                else reading.FEW
                if found.turns <= reading.FEW
                else reading.LATEST
            )
            first = max(0, end - most)
            beats = beats_html(found.turns_between(first, end), base, found.shown)
        place = f"{base}/live?after={found.story.entries}{'&in=chat' if _in_chat(request) else ''}"
        asked = [self.question(request, each) for each in reading.asked(self.store, run)]
        return {
            "stream": place if end == found.turns else "", "run": run, "read": found, "base": base, "beats": beats, "first": first,
            "end": end, "asked": asked, "draft": None, "actions": self._actions(request, run, found.head),
            "answer": self._answer(request, run, found.head),
        }  # fmt: skip

    async def run_live(self, request: Request) -> Response:
        """`/runs/ID/live`."""
        after = request.headers.get("last-event-id") or request.query_params.get("after", "0")
        seen = read_number(after) or 0
        found: reading.Read | None = None
        key: Any = None
        sent, drafted = "", -1

        def read() -> Iterator[PageEvent]:
            nonlocal found, key
            if found is None:
                found = self._run(request, seen)
                key = found.head.get("key")
            with found.lock:
                found.more()
                if (
                    seen > found.story.entries or found.head.get("key") != key
                ):  # the page shows steps of the run before
                    raise Refused(
                        404,
                        "The run that this page shows was deleted or redacted. Reload the page.",
                    )
                yield from news(found)

        def news(found: reading.Read) -> Iterator[PageEvent]:
            nonlocal seen, sent, drafted
            run = self.store.summary(found.run_id)
            draft = self.work.draft(run.id) if self.work is not None else None
            version = draft.version if draft is not None else 0
            beats = found.since(seen)
            mark = version_of(run)
            if beats or mark != sent or version != drafted:
                values: dict[str, Any] = {"run": run, "read": found, "beats": beats, "asked": None}
                if mark != sent:
                    values |= {
                        "asked": [self.question(request, each) for each in reading.asked(self.store, run)],
                        "actions": self._actions(request, run, found.head), "answer": self._answer(request, run, found.head),
                    }  # fmt: skip
                shown = draft.shown(MOST_SHOWN) if draft is not None else None
                html = self.part(
                    request,
                    "live.html",
                    page="run",
                    draft=shown,
                    now=time(),
                    **values,
                )
                seen, sent, drafted = (
                    found.story.entries,
                    mark,
                    version,
                )  # last: what failed comes again
                yield str(seen), html

        return live(self.watch, read)

    def _actions(self, request: Request, run: Summary, head: Mapping[str, Any]) -> dict[str, Any]:
        """What a person can do with a run now."""
        is_here = self.work is not None and run.id in self.work.at_work
        waits = bool(reading.undecided(run))
        at_rest = (
            run.status not in {"done", "queued"}
            and not run.leased
            and not is_here
            and not waits
            and not head.get("redacted")
        )
        fits = at_rest and self.work is not None and self.work.fits(head)
        place = self.work.place if self.work is not None else ""
        command = reading.command_line(run.id, place, self._title) if at_rest and not fits else ""
        can_resume = fits and not self.is_read_only
        made: dict[str, Any] = {
            "can_stop": run.status in {"queued", "running", "waiting"},
            "can_resume": can_resume,
            "command": command,
        }
        return {
            **made,
            "back": "chat" if _in_chat(request) else "run",
            "version": version_of(made, request.scope["ferrule.session"].csrf),
        }

    def _answer(
        self,
        request: Request,
        run: Summary,
        head: Mapping[str, Any],
    ) -> dict[str, Any] | None:
        """The outputs of a run, for the chat."""
        if (
            self.work is None
            or not _in_chat(request)
            or run.status != "done"
            or not self.work.fits(head)
        ):
            return None
        return self.work.outputs(run.id)

    def text(self, request: Request) -> Response:
        """`/runs/ID/text/FIRST/WHAT`: a long value as a file."""
        return _download(self._value(request), request.path_params["what"])

    def picture(self, request: Request) -> Response:
        """`/runs/ID/picture/FIRST/CALL/PART`."""
        beat = self._beat(request)
        number, at = request.path_params["call"], request.path_params["part"]
        result: Any = cast("Any", beat.calls[number]).result if number < len(beat.calls) else None
        part: Any = (
            result.content[at]
            if result is not None
            and not isinstance(result.content, str)
            and at < len(result.content)
            else None
        )
        picture = picture_of(part)
        if picture is None:
            raise Refused(404, "There is no such picture.")
        return Response(picture[1], media_type=picture[0])

    def _value(self, request: Request) -> str:
        beat = self._beat(request)
        what = request.path_params["what"]
        if what in {"text", "reasoning", "error"}:
            return getattr(beat, what)
        written, _, part = what.partition(".")
        if (number := read_number(written)) is None or number >= len(beat.calls):
            raise Refused(404, "There is no such value.")
        call = beat.calls[number]
        if part == "result" and call.result is not None:
            from ferrule.values.content.convert import (
                content_text,
            )  # late, with pydantic: a list of runs needs none of it

            return content_text(call.result.content)
        if part in {"args", "written"}:
            return pretty(getattr(call, part))
        raise Refused(404, "There is no such value.")

    # -- the inbox
    # ---------------------------------------------------------------------------------------------------

    def inbox(self, request: Request) -> Response:
        """`/inbox`."""
        waiting, damaged = reading.inbox(self.store)
        asked = [self.question(request, each) for each in waiting]
        return self.html(request, "inbox.html", stream="/inbox/live", asked=asked, damaged=damaged)

    async def inbox_live(self, request: Request) -> Response:
        """`/inbox/live`. A question that is gone stays on the page, with its decision."""
        known: dict[str, reading.AskedQuestion] = {}
        gone: dict[str, reading.AskedQuestion] = {}
        sent = ""

        def read() -> Iterator[PageEvent]:
            nonlocal sent
            waiting, damaged = reading.inbox(self.store)
            now_there = {each.question.id for each in waiting}
            for question_id in known.keys() - now_there:
                each = known[question_id]
                decision = reading.find_decision(self.store, each.run.id, question_id)
                del known[question_id]  # last: after a store that failed it comes again
                gone[question_id] = reading.AskedQuestion(
                    run=each.run,
                    question=each.question,
                    decision=decision,
                )
            known.update({each.question.id: each for each in waiting})
            mark = version_of(
                sorted(gone),
                [(each.question.id, each.decision) for each in waiting],
                damaged,
            )
            if mark != sent:
                sent = mark
                asked = [self.question(request, each) for each in waiting]
                asked += [
                    self.question(request, each, next="gone")
                    for key, each in gone.items()
                    if key not in now_there
                ]
                count = sum(each.decision is None for each in waiting)
                yield (
                    "",
                    self.part(
                        request,
                        "live.html",
                        page="inbox",
                        asked=asked,
                        damaged=damaged,
                        waiting=count,
                        now=time(),
                    ),
                )

        return live(self.watch, read)

    # -- parts
    # -------------------------------------------------------------------------------------------------------

    def question(
        self,
        request: Request,
        asked: reading.AskedQuestion,
        **said: Any,
    ) -> dict[str, Any]:
        """What the template of a question shows. `said` is what a person typed that did not fit."""
        question = asked.question
        form = said.pop("form", None) or question_form(asked)
        back = (
            "inbox"
            if request.url.path.startswith("/inbox")
            else "chat"
            if _in_chat(request)
            else "run"
        )
        next_step = said.pop("next", "") or (
            self._next(asked.run) if asked.decision is not None else ""
        )
        edits = asked.decision.args if asked.decision is not None else {}
        values, notes = form or HTMLForm({}, question.call.args), _notes(question)
        for each in values.all:
            each.note = notes.pop(each.label, "")
        args, before = values.shown(edits), values.shown({})
        version = version_of(
            question,
            asked.decision,
            next_step,
            request.scope["ferrule.session"].csrf,
        )
        return {
            "run": asked.run, "question": question, "decision": asked.decision, "form": form, "notes": notes, "back": back,
            "next": next_step, "changed": values.changed(edits), "args": args,
            "marks": {name: (before.get(name), args[name]) for name in edits}, "problem": "", "sent": {}, "version": version, **said,
        }  # fmt: skip

    def _next(self, run: Summary) -> str:
        """What a run waits for after a decision."""
        if reading.undecided(run):
            return "others"
        if run.leased or (self.work is not None and run.id in self.work.at_work):
            return "on"
        can_resume = (
            self.work is not None
            and not self.is_read_only
            and self.work.fits(stored_head(self.store, run.id))
        )
        return "resume" if can_resume else "waits"

    def _run(self, request: Request, since: int | None = None) -> reading.Read:
        return found_run(
            partial(self._readings.read, reading.id_from_path(request.path_params["id"]), since),
        )

    def _beat(self, request: Request) -> Beat:
        first = request.path_params["first"]
        found = self._run(request, first)
        try:
            with found.lock:
                return found.beat(first)
        except StoreError as error:
            raise Refused(404, str(error)) from error

    def _summary(self, request: Request) -> Summary:
        return found_run(
            partial(self.store.summary, reading.id_from_path(request.path_params["id"])),
        )


def _in_chat(request: Request) -> bool:
    return request.url.path.startswith("/chat/") or request.query_params.get("in") == "chat"


def question_form(asked: reading.AskedQuestion) -> HTMLForm | None:
    """The form of a question, if it has values to change or to give."""
    question = asked.question
    if question.kind == "input":
        return HTMLForm(dict(question.form), {}) if question.form is not None else None
    if question.kind in {"confirm", "migration"}:
        return HTMLForm(dict(question.schema or {}), question.call.args)
    return None


def _notes(question: Question) -> dict[str, str]:
    """Where the arguments that would run differ from what the model wrote, by name. Another form of the same value is no difference."""
    if question.raw is None:
        return {}
    return {
        name: f"The model wrote {literal(written)[:_MOST_NOTED]}"
        if name in question.raw
        else "Left out by the model."
        for name, (written, prepared) in question.changes.items()
        if name not in question.raw or not means(written, prepared)
    }


def picture_of(part: Any) -> tuple[str, bytes] | None:
    """The type and the bytes of a picture that is safe to show, by its first bytes; None for anything else."""
    kind = picture_type(part)
    try:
        return (kind, base64.b64decode(part.data, validate=True)) if kind else None
    except ValueError:
        return None


def decided_text(decision: Decision | None) -> str:
    """Who decided what, from where, when."""
    if decision is None:
        return "The run continued or ended without a decision on this question."
    facts = (("by", decision.by), ("via", decision.via), ("at", time_of_day(decision.at)))
    return (
        " ".join(
            [
                WORDS.get(decision.kind, decision.kind),
                *(f"{word} {fact}" for word, fact in facts if fact),
            ],
        )
        + "."
    )


def _download(text: str, name: str) -> Response:
    found = Response(text.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8")
    safe = "".join(each for each in name if each.isascii() and each.isalnum())
    found.headers["content-disposition"] = f'attachment; filename="{safe or "value"}.txt"'
    return found


def read_number(text: str) -> int | None:
    """A number that was typed, or stands in an address."""
    return int(text) if text.isdecimal() and len(text) < 12 else None


def _query(asked: Mapping[str, str], **more: Any) -> str:
    query = {key: value for key, value in {**asked, **more}.items() if value}
    return "/?" + urlencode(cast("dict[str, Any]", query)) if query else "/"


def found_run(read: Callable[[], R]) -> R:
    """The result of `read`. Raises `Refused` if the store has no such run; other errors are raised unchanged."""
    try:
        return read()
    except StoreError as error:
        if reading.is_missing(error):
            raise Refused(
                404,
                "This store has no such run: it was deleted, or is in another store.",
            ) from error
        raise
