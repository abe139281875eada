"""The pages that only read: the list of runs, one run, the inbox, and the whole of a long value."""

from __future__ import annotations

import base64
from contextlib import suppress
from functools import partial
from secrets import token_urlsafe
from time import time
from typing import TYPE_CHECKING, Any, TypeVar, cast

from starlette.responses import HTMLResponse, JSONResponse, Response

from ferrule.approval.call_view import shortened, view_call
from ferrule.approval.policy import describe_folders
from ferrule.encoding.stored import parse_json
from ferrule.errors import StoreError
from ferrule.models.providers import Dialect
from ferrule.models.wires.wire import wire
from ferrule.runs.store.listing import stored_head
from ferrule.values.content.convert import content_text
from ferrule.web import reading
from ferrule.web.forms import HTMLForm
from ferrule.web.guard import Refused
from ferrule.web.inbox import InboxQuery, SideBySide, brief_of, groups_of, why_of
from ferrule.web.live import live
from ferrule.web.markup import (
    MOST_SHOWN,
    WORDS,
    pretty,
    time_of_day,
)
from ferrule.web.people import PagePerson
from ferrule.web.reading import version_of
from ferrule.web.render import fill_template, steps_html
from ferrule.web.steps import picture_type
from ferrule.web.timeline import Timeline, grouped_steps, timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from starlette.requests import Request

    from ferrule.approval.question import Decision
    from ferrule.runs.protocols import RunNote, Store, Summary
    from ferrule.runs.story import Beat
    from ferrule.values.conversation.exchange import Request as ModelRequest
    from ferrule.web.live import PageEvent, Watch
    from ferrule.web.people import Right
    from ferrule.web.work import Work


R = TypeVar("R")
_MOST_NEWS = 1_000
_MOST_OPEN = 5
"""So many questions in the inbox are open; of more, each is a line that opens."""
_MOST_TOLD = 20
"""The latest questions that a hidden page gets."""


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
        people: Mapping[str, PagePerson] | None = None,
    ) -> None:
        self.store = store
        self.watch = watch
        self.work = work
        self.is_read_only = is_read_only
        self._people = people or {}
        self._news: dict[str, str] = {}
        """By the secret of a session, what its next page says of what was done."""
        self._title = title
        self._readings = reading.Readings(store)

    def html(
        self, request: Request, name: str, *, status: int = 200, stream: str = "", **values: Any
    ) -> HTMLResponse:
        """A whole page."""
        page = {
            "place": request.url.path,
            "stream": stream,
            "store": self._title,
            "waiting": self.count_waiting(request),
            "has_evaluations": bool(self.store.names("evaluation")),
            "told": self._news.pop(request.scope["ferrule.session"].csrf, ""),
        }
        return HTMLResponse(
            self.part(request, name, now=time(), **page, **values), status_code=status
        )

    def part(self, request: Request, name: str, **values: Any) -> str:
        """A template, filled with these values and those that all templates use."""
        session = request.scope["ferrule.session"]
        is_administrator = self.may(request, "administer")
        common = {
            "person": session.person,
            "role": "read only" if self.is_read_only else self.person(request).role,
            "csrf": session.csrf,
            "may_decide": partial(self.may, request, "decide"),
            "may_administer": is_administrator,
            "people": list(self._people),
            "has_chat": self.can_chat and is_administrator,
        }
        return fill_template(name, **common, **values)

    # -- who may do what

    def person(self, request: Request) -> PagePerson:
        """Who sent a request."""
        name = request.scope["ferrule.session"].person
        return self._people.get(name) or PagePerson(name=name)

    def may(self, request: Request, right: Right, program: str = "") -> bool:
        """Whether who sent a request may do what needs a right, to a run of this program."""
        return not self.is_read_only and self.person(request).may(right, program)

    def permitted(
        self, answer: Callable[[Request], Response], needs: Right
    ) -> Callable[[Request], Response]:
        """An answer to a form, for those who may send it.

        Every form that changes a run goes through here.
        """

        def checked(request: Request) -> Response:
            person = self.person(request)
            if needs == "administer":
                is_permitted = person.may("administer")
            elif "id" in request.path_params:
                is_permitted = person.may("decide", self._summary(request).program)
            else:  # questions of several runs: each is checked where it is decided
                is_permitted = person.decides
            if not is_permitted:
                raise Refused(
                    403, f"Your role on this page is {person.role!r}: it does not permit this."
                )
            return answer(request)

        return checked

    def tell(self, request: Request, text: str) -> None:
        """Say something on the next page of this session, such as what a form has done."""
        self._news[request.scope["ferrule.session"].csrf] = text
        while len(self._news) > _MOST_NEWS:
            del self._news[next(iter(self._news))]

    def count_waiting(self, request: Request) -> int:
        """How many questions wait for a decision of this person."""
        return sum(
            count
            for program, count in self.store.count_questions().items()
            if self.person(request).may("decide", program)
        )

    @property
    def can_chat(self) -> bool:
        """Whether there is a program whose inputs can be typed."""
        return self.work is not None and self.work.schema is not None and not self.is_read_only

    # -- one run

    def run(self, request: Request) -> Response:
        """`/runs/ID`."""
        return self.html(request, "run.html", **self.run_values(request))

    def run_values(self, request: Request) -> dict[str, Any]:
        """What the page of a run shows."""
        before = read_number(request.query_params.get("before", ""))
        # An earlier page needs the run from its first entry on.
        run = self.run_of(request, since=None if before is None else 0)
        summary = self._summary(request)
        base = f"/runs/{request.path_params['id']}"
        with run.lock:
            end = run.turns
            if before is not None:
                end = min(before, run.turns)
            first = max(0, end - _beats_on_page(run, is_first_page=before is None))
            turns = run.turns_between(first, end)
            beats = steps_html(grouped_steps(turns), base, run.shown)
            line = self.timeline_of(summary, turns)
        stream = ""
        if end == run.turns:
            stream = f"{base}/live?after={run.story.entries}&first={first}"
            if _in_chat(request):
                stream += "&in=chat"
        return {
            "stream": stream,
            "run": summary,
            "read": run,
            "base": base,
            "beats": beats,
            "line": line,
            "first": first,
            "end": end,
            "draft": None,
            **self.standing(request, summary, run.head),
        }

    def timeline_of(self, run: Summary, beats: list[Beat]) -> Timeline:
        """The timeline of these steps of a run."""
        now = None
        if run.leased:
            now = self.store.now()
        return timeline(beats, run.created_at, now)

    def standing(self, request: Request, run: Summary, head: Mapping[str, Any]) -> dict[str, Any]:
        """What stands below the beats of a run: its questions, what can be done, its outputs."""
        return {
            "asked": [
                self.question(request, question) for question in reading.asked(self.store, run)
            ],
            "notes": self.store.notes(run.id),
            "actions": self._actions(request, run, head),
            "answer": self._answer(request, run, head),
        }

    async def run_live(self, request: Request) -> Response:
        """`/runs/ID/live`."""
        after = request.headers.get("last-event-id") or request.query_params.get("after", "0")
        return live(self.watch, _RunNews(self, request, read_number(after) or 0).read)

    def _actions(self, request: Request, run: Summary, head: Mapping[str, Any]) -> dict[str, Any]:
        """What a person can do with a run now."""
        is_here = self.work is not None and run.id in self.work.at_work
        could_resume = (
            run.status not in {"done", "queued"}
            and not run.leased
            and not is_here
            and not reading.undecided(run)
            and not head.get("redacted")
        )
        fits = could_resume and self.work is not None and self.work.fits(head)
        may_administer = self.may(request, "administer")
        can_fork = (
            may_administer
            and run.status != "queued"
            and not run.leased
            and not is_here
            and self.work is not None
            and self.work.fits(head)
        )
        command = ""
        if could_resume and not fits:
            place = self.work.place if self.work is not None else ""
            command = reading.command_line(run.id, place, self._title)
        actions: dict[str, Any] = {
            "has_requests": self.work is not None and self.work.fits(head),
            "can_stop": run.status in {"queued", "running", "waiting"},
            "can_resume": fits and may_administer,
            "can_fork": can_fork,
            "command": command,
        }
        csrf = request.scope["ferrule.session"].csrf
        can_say = may_administer and actions["can_stop"] and head.get("takes_messages", False)
        return {
            **actions,
            "back": "chat" if _in_chat(request) else "run",
            "version": version_of(actions, csrf),
            "say_version": version_of(csrf) if can_say else "",
            "csrf": csrf,
            "key": token_urlsafe(12),
        }

    def _answer(
        self, request: Request, run: Summary, head: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The outputs of a run, for the chat."""
        if self.work is None or not _in_chat(request) or run.status != "done":
            return None
        if not self.work.fits(head):
            return None
        return self.work.outputs(run.id)

    def text(self, request: Request) -> Response:
        """`/runs/ID/text/FIRST/WHAT`: a long value as a file."""
        return _download(self._value(request), request.path_params["what"])

    def picture(self, request: Request) -> Response:
        """`/runs/ID/picture/FIRST/CALL/PART`."""
        beat = self._beat(request)
        number, index = request.path_params["call"], request.path_params["part"]
        part = None
        if number < len(beat.calls):
            result = cast("Any", beat.calls[number]).result
            if result is not None and not isinstance(result.content, str):
                part = None
                if index < len(result.content):
                    part = result.content[index]
        picture = picture_of(part)
        if picture is None:
            raise Refused(404, "There is no such picture.")
        media_type, data = picture
        return Response(data, media_type=media_type)

    def model_request(self, request: Request) -> Response:
        """`/runs/ID/request/FIRST`: the request of a model call; with `?as=text`, as a file."""
        run = self._summary(request)
        beat = self._beat(request)
        sent = None
        if self.work is not None and self.work.fits(stored_head(self.store, run.id)):
            sent = self.work.request(run.id, beat.slot)
        if sent is None and beat.owner:
            raise Refused(
                409,
                "This request cannot be made again: the program has no such agent as a tool, or an "
                "ordinary function called the agent.",
            )
        if sent is None:
            raise Refused(
                409,
                "A run keeps only the digests of its requests, so a request is made again from the "
                "program. Open the page with the program of this run: "
                "`ferrule ui PROGRAM --store STORE`.",
            )
        lm, model_request = sent
        command = written_request(lm, model_request)
        if request.query_params.get("as") == "text":
            return _download(command, "request")
        return self.html(
            request,
            "request.html",
            run=run,
            beat=beat,
            base=f"/runs/{request.path_params['id']}",
            model=getattr(lm, "name", type(lm).__name__),
            sent=model_request,
            command=command,
            is_curl=hasattr(lm, "curl"),
        )

    def _value(self, request: Request) -> str:
        beat = self._beat(request)
        what = request.path_params["what"]
        if what in {"text", "reasoning", "error"}:
            return getattr(beat, what)
        call_number, _, part = what.partition(".")
        number = read_number(call_number)
        if number is None or number >= len(beat.calls):
            raise Refused(404, "There is no such value.")
        call = beat.calls[number]
        if part == "result" and call.result is not None:
            return content_text(call.result.content)
        if part in {"args", "written"}:
            return pretty(getattr(call, part))
        raise Refused(404, "There is no such value.")

    # -- the inbox

    def inbox(self, request: Request) -> Response:
        """`/inbox`."""
        lines, damaged, query = self.inbox_lines(request)
        address = "/inbox/live"
        if query.text:
            address += f"?{query.text}"
        return self.html(
            request,
            "inbox.html",
            stream=address,
            groups=self.inbox_cards(request, lines),
            count=sum(asked.decision is None for asked in lines),
            query=query,
            damaged=damaged,
        )

    def inbox_lines(
        self, request: Request
    ) -> tuple[list[reading.AskedQuestion], list[Summary], InboxQuery]:
        """The questions that a person may see in the inbox and asked for; and damaged runs."""
        query = InboxQuery.of(request.query_params)
        asked, damaged = reading.inbox(self.store)
        person = self.person(request)
        if person.role == "decide":
            asked = [waiting for waiting in asked if person.may("decide", waiting.run.program)]
        query.note_choices(asked)
        return [waiting for waiting in asked if query.fits(waiting)], damaged, query

    def inbox_cards(
        self, request: Request, asked: list[reading.AskedQuestion]
    ) -> list[dict[str, Any]]:
        """The questions in groups, as the template shows them."""
        is_open = len(asked) <= _MOST_OPEN
        return [
            {
                "group": group,
                "cards": [
                    {**self.question(request, waiting), "is_open": is_open}
                    for waiting in group.asked
                ],
            }
            for group in groups_of(asked)
        ]

    def review(self, request: Request) -> Response:
        """`/inbox/review?shape=...`: equal questions side by side, to decide on them together."""
        lines, _, _ = self.inbox_lines(request)
        query = request.query_params
        review = SideBySide.of(lines, query.get("shape", ""), query)
        if not review.rows:
            raise Refused(404, "No such questions wait any longer.")
        return self.html(request, "review.html", review=review)

    async def inbox_live(self, request: Request) -> Response:
        """`/inbox/live`. A question that is gone stays on the page, with its decision."""
        return live(self.watch, _InboxNews(self, request).read)

    def waiting(self, request: Request) -> Response:
        """`/waiting`: the questions that wait, for a page that is hidden and has no stream."""
        latest: list[dict[str, str]] = []
        for run in reversed(self.store.list(status="waiting", limit=_MOST_TOLD)):
            if not self.person(request).may("decide", run.program):
                continue
            latest += [
                {
                    "id": question.id,
                    "text": brief_of(question),
                    "href": f"/runs/{reading.id_in_path(run.id)}#q-{question.id}",
                }
                for question in reading.undecided(run)
            ]
        count = self.count_waiting(request)
        return JSONResponse({"count": count, "questions": latest[-_MOST_TOLD:]})

    # -- parts

    def question(
        self,
        request: Request,
        asked: reading.AskedQuestion,
        *,
        form: HTMLForm | None = None,
        next_step: str = "",
        **typed: Any,
    ) -> dict[str, Any]:
        """What the template of a question shows.

        Args:
            request: The request of the page.
            asked: The question.
            form: Its form, if a person has filled it in.
            next_step: What happens next; by default what the run waits for.
            **typed: What a person typed that did not fit: `problem` and `sent`.

        """
        question, decision = asked.question, asked.decision
        shown = view_call(question)
        grant = question.grant_for_folder()
        form = form or question_form(asked)
        edits: Mapping[str, Any] = {}
        removed: tuple[str, ...] = ()
        if decision is not None:
            edits, removed = decision.args, decision.removed
            next_step = next_step or self._next(asked.run)
        values = form or HTMLForm({}, question.call.args)
        args = values.shown(edits, removed)
        args_before = values.shown({})
        csrf = request.scope["ferrule.session"].csrf
        notes: Sequence[RunNote] = ()
        if _is_inbox(request):
            with suppress(StoreError):  # deleted meanwhile
                notes = self.store.notes(asked.run.id)
        return {
            "run": asked.run,
            "question": question,
            "shown": shown,
            "folders": describe_folders(grant) if grant is not None else "",
            "inputs": self._inputs(asked.run),
            "notes": notes,
            "decision": decision,
            "form": form,
            "back": _page_of(request),
            "filter": InboxQuery.of(request.query_params).text if _is_inbox(request) else "",
            "next": next_step,
            "changed": values.changed(edits, removed),
            "args": args,
            "brief": brief_of(question).removeprefix(f"{question.call.name}: "),
            "why": why_of(question),
            "is_open": True,
            "marks": {name: (args_before.get(name), args[name]) for name in edits},
            "problem": "",
            "sent": {},
            "version": version_of(question, decision, next_step, csrf, asked.run.assigned, notes),
            **typed,
        }

    def _inputs(self, run: Summary) -> dict[str, str]:
        """What a run was started with, shortened."""
        try:
            inputs = reading.inputs_in(stored_head(self.store, run.id))
        except StoreError:  # deleted meanwhile, or damaged, which its own page shows
            return {}
        return {name: shortened(value) for name, value in inputs.items()}

    def _next(self, run: Summary) -> str:
        """What a run waits for after a decision."""
        if reading.undecided(run):
            return "others"
        if run.leased or (self.work is not None and run.id in self.work.at_work):
            return "on"
        if self.work is None or self.is_read_only:
            return "waits"
        if self.work.fits(stored_head(self.store, run.id)):
            return "resume"
        return "waits"

    def run_of(self, request: Request, since: int | None = None) -> reading.Read:
        """The run of an address, with its latest beats and those since this entry."""
        run_id = reading.id_from_path(request.path_params["id"])
        return existing_run(partial(self._readings.read, run_id, since))

    def _summary(self, request: Request) -> Summary:
        run_id = reading.id_from_path(request.path_params["id"])
        return existing_run(partial(self.store.summary, run_id))

    def _beat(self, request: Request) -> Beat:
        first = request.path_params["first"]
        run = self.run_of(request, first)
        try:
            with run.lock:
                return run.beat(first)
        except StoreError as error:
            raise Refused(404, str(error)) from error


class _RunNews:
    """What the stream of one run's page has sent, and what is new for it."""

    def __init__(self, pages: Pages, request: Request, seen: int) -> None:
        self._pages = pages
        self._request = request
        self._run: reading.Read | None = None
        self._key: Any = None
        """The key of the run: another run with the same id has another one."""
        self._entries = seen
        """How many entries the page shows."""
        self._first = read_number(request.query_params.get("first", "")) or 0
        """The number of the first step that it shows."""
        self._version = ""
        self._draft_version = -1

    def read(self) -> Iterator[PageEvent]:
        """The event for a change of the store, if it changes the page."""
        if self._run is None:
            self._run = self._pages.run_of(self._request, self._entries)
            self._key = self._run.head.get("key")
        run = self._run
        with run.lock:
            run.more()
            if self._entries > run.story.entries or run.head.get("key") != self._key:
                raise Refused(
                    404, "The run that this page shows was deleted or redacted. Reload the page."
                )
            yield from self._news(run)

    def _news(self, run: reading.Read) -> Iterator[PageEvent]:
        pages = self._pages
        summary = pages.store.summary(run.run_id)
        draft = None
        if pages.work is not None:
            draft = pages.work.draft(summary.id)
        draft_version = draft.version if draft is not None else 0
        beats = run.since(self._entries)
        waiting = pages.count_waiting(self._request)
        version = version_of(summary, waiting, pages.store.notes(run.run_id))
        if not beats and version == self._version and draft_version == self._draft_version:
            return
        base = f"/runs/{reading.id_in_path(summary.id)}"
        turns = run.turns_between(self._first, run.turns)
        changed = {beat.first for beat in beats}
        groups = [
            group for group in grouped_steps(turns) if any(beat.first in changed for beat in group)
        ]
        values: dict[str, Any] = {
            "run": summary,
            "read": run,
            "base": base,
            "steps": steps_html(groups, base, run.shown),
            # Those that a page has by themselves, and that are in a group now.
            "joined": [beat.first for group in groups for beat in group[1:]],
            "inner": [beat for beat in beats if beat.owner],
            "line": pages.timeline_of(summary, turns),
            "waiting": waiting,
            "asked": None,
        }
        if version != self._version:
            values |= pages.standing(self._request, summary, run.head)
        html = pages.part(
            self._request,
            "live.html",
            page="run",
            draft=draft.shown(MOST_SHOWN) if draft is not None else None,
            now=time(),
            **values,
        )
        # Last: what could not be rendered is read again after the next change.
        self._entries = run.story.entries
        self._version = version
        self._draft_version = draft_version
        yield str(self._entries), html


class _InboxNews:
    """What the stream of an inbox has sent, and what is new for it."""

    def __init__(self, pages: Pages, request: Request) -> None:
        self._pages = pages
        self._request = request
        self._known: dict[str, reading.AskedQuestion] = {}
        self._gone: dict[str, reading.AskedQuestion] = {}
        """Questions that do not wait any longer, with their decisions."""
        self._version = ""

    def read(self) -> Iterator[PageEvent]:
        """The event for a change of the store, if it changes the page."""
        pages, request = self._pages, self._request
        waiting, damaged, _ = pages.inbox_lines(request)
        waiting_ids = {asked.question.id for asked in waiting}
        for question_id in self._known.keys() - waiting_ids:
            self._let_go(question_id)
        self._known.update({asked.question.id: asked for asked in waiting})
        groups = pages.inbox_cards(request, waiting)
        cards = [card for group in groups for card in group["cards"]]
        version = version_of(
            sorted(self._gone), [(card["question"].id, card["version"]) for card in cards], damaged
        )
        if version == self._version:
            return
        gone = [
            {**pages.question(request, asked, next_step="gone"), "is_open": True}
            for question_id, asked in self._gone.items()
            if question_id not in waiting_ids
        ]
        html = pages.part(
            request,
            "live.html",
            page="inbox",
            groups=groups,
            gone=gone,
            damaged=damaged,
            waiting=pages.count_waiting(request),
            now=time(),
        )
        self._version = version  # last, as in a run's news
        yield "", html

    def _let_go(self, question_id: str) -> None:
        asked = self._known[question_id]
        decision = reading.find_decision(self._pages.store, asked.run.id, question_id)
        # After the store was read: if it fails, the question is looked up again.
        del self._known[question_id]
        self._gone[question_id] = reading.AskedQuestion(
            run=asked.run, question=asked.question, decision=decision
        )


def _beats_on_page(run: reading.Read, *, is_first_page: bool) -> int:
    if not is_first_page:
        return reading.BEATS
    if run.turns <= reading.FEW:
        return reading.FEW
    return reading.LATEST


def _in_chat(request: Request) -> bool:
    return request.url.path.startswith("/chat/") or request.query_params.get("in") == "chat"


def _is_inbox(request: Request) -> bool:
    return request.url.path.startswith("/inbox")


def _page_of(request: Request) -> str:
    """The page that shows a question, to which a person returns after a decision."""
    if _is_inbox(request):
        return "inbox"
    return "chat" if _in_chat(request) else "run"


def question_form(asked: reading.AskedQuestion) -> HTMLForm | None:
    """The form of a question, if it has values to change or to give."""
    question = asked.question
    if question.kind == "input":
        if question.form is None:
            return None
        return HTMLForm(dict(question.form), {}, masks=False)
    if not question.takes_edit or view_call(question).not_shown:
        return None
    return HTMLForm(dict(question.schema or {}), question.call.args, masks=not question.server)


def written_request(lm: Any, model_request: ModelRequest) -> str:
    """A request as a command of `curl`.

    For a model that is not behind an address of HTTP, as JSON in the form of OpenAI's chat.
    """
    curl = getattr(lm, "curl", None)
    if curl is not None:
        return curl(model_request)
    body = wire("openai_chat").render(
        model_request,
        model=str(getattr(lm, "name", "")),
        settings=getattr(lm, "settings", {}),
        stream=False,
        dialect=Dialect(),
    )
    return pretty(parse_json(body.decode("utf-8", "replace")))


def picture_of(part: Any) -> tuple[str, bytes] | None:
    """The type and the bytes of a picture that is safe to show; None for anything else.

    The type is that of its first bytes.
    """
    media_type = picture_type(part)
    if not media_type:
        return None
    try:
        return media_type, base64.b64decode(part.data, validate=True)
    except ValueError:
        return None


def decided_text(decision: Decision | None) -> str:
    """Who decided what, from where, when."""
    if decision is None:
        return "The run continued or ended without a decision on this question."
    words = [WORDS.get(decision.kind, decision.kind)]
    if decision.by:
        words.append(f"by {decision.by}")
    if decision.via:
        words.append(f"via {decision.via}")
    if time_text := time_of_day(decision.at):
        words.append(f"at {time_text}")
    return " ".join(words) + "."


def _download(text: str, name: str) -> Response:
    response = Response(text.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8")
    safe = "".join(letter for letter in name if letter.isascii() and letter.isalnum())
    response.headers["content-disposition"] = f'attachment; filename="{safe or "value"}.txt"'
    return response


def read_number(text: str) -> int | None:
    """A number that a person typed, or that an address holds."""
    if text.isdecimal() and len(text) < 12:
        return int(text)
    return None


def existing_run(read: Callable[[], R]) -> R:
    """The result of `read`. Raises `Refused` if the store has no such run."""
    try:
        return read()
    except StoreError as error:
        if reading.is_missing(error):
            raise Refused(
                404, "This store has no such run: it was deleted, or is in another store."
            ) from error
        raise
