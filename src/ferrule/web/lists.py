"""The pages of many runs: the list, its files, saved views, the overview, and comparisons."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, cast

from starlette.responses import RedirectResponse

from ferrule.runs.store.listing import stored_head
from ferrule.web import finding
from ferrule.web.comparing import compare_evaluations, compare_runs
from ferrule.web.guard import Refused
from ferrule.web.live import live
from ferrule.web.pages import existing_run
from ferrule.web.reading import read_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from ferrule.runs.protocols import NameKind, Summary
    from ferrule.web.finding import ListQuery
    from ferrule.web.live import PageEvent
    from ferrule.web.pages import Pages

_VIEWS = "ferrule-views"
"""The cookie with the saved views: it is the browser's, not the store's."""
_MOST_VIEWS = 12
_MOST_CHOICES = 20
_MOST_ITEMS = 200
_LONGEST_NAME, _LONGEST_QUERY = 40, 300
_YEAR_S = 365 * 86_400
_KINDS: tuple[NameKind, ...] = ("program", "tool", "model", "evaluation")


class Lists:
    """The pages of many runs over one store."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._store = pages.store

    def _asked(self, request: Request) -> ListQuery:
        return finding.read_address(request.query_params, self._store.now())

    def runs(self, request: Request) -> Response:
        """`/`."""
        asked = self._asked(request)
        runs = finding.page_of_runs(self._store, asked)
        total = 0
        if not runs.rows:
            total = sum(self._store.count().values())
        return self._pages.html(
            request,
            "runs.html",
            stream=asked.address("/live", before=asked.texts.get("before", "")),
            runs=runs,
            asked=asked,
            texts={**dict.fromkeys(finding.PARAMETERS, ""), **asked.texts},
            names={kind: self._store.names(kind) for kind in _KINDS},
            periods=finding.PERIODS,
            total=total,
            views=_views_of(request),
            saves_views=not self._pages.is_read_only,
        )

    async def runs_live(self, request: Request) -> Response:
        """`/live`."""
        sent = ""

        def read() -> Iterator[PageEvent]:
            nonlocal sent
            runs = finding.page_of_runs(self._store, self._asked(request))
            if runs.version == sent:
                return
            html = self._pages.part(
                request,
                "live.html",
                page="runs",
                runs=runs,
                now=time(),
                waiting=self._pages.count_waiting(request),
            )
            sent = runs.version
            yield "", html

        return live(self._pages.watch, read)

    def overview(self, request: Request) -> Response:
        """`/overview`: the runs of a period, beside the period of the same length before it."""
        period = request.query_params.get("period", "")
        if period not in finding.PERIODS:
            period = "week"
        words, seconds = finding.PERIODS[period]
        now = self._store.now()
        current = self._store.overview(since=now - seconds, until=now)
        earlier = self._store.overview(since=now - 2 * seconds, until=now - seconds)
        longest = self._store.list(status="waiting", order="updated", ascending=True, limit=10)
        return self._pages.html(
            request,
            "overview.html",
            period=period,
            periods=finding.PERIODS,
            words=words,
            current=current,
            earlier=earlier,
            models_before={model.name: model for model in earlier.models},
            programs_before={program.name: program for program in earlier.programs},
            most=max([span.runs for span in current.spans], default=0),
            longest=[finding.row_of(run) for run in longest],
        )

    def compare(self, request: Request) -> Response:
        """`/compare?run=ID&run=ID`. With one id, a page on which to choose the other."""
        ids = request.query_params.getlist("run")
        if not 1 <= len(ids) <= 2:
            raise Refused(400, f"Two runs are compared; the address names {len(ids)}. Tick two.")
        runs = [existing_run(partial(self._store.summary, run_id.strip())) for run_id in ids]
        if len(runs) == 1:
            return self._choose_other(request, runs[0])
        first, second = sorted(runs, key=lambda run: run.created_at)
        both = compare_runs(
            existing_run(partial(read_run, self._store, first.id)),
            existing_run(partial(read_run, self._store, second.id)),
            (first, second),
            (self._system_message(first.id), self._system_message(second.id)),
        )
        return self._pages.html(request, "compare.html", both=both)

    def _choose_other(self, request: Request, run: Summary) -> Response:
        latest = self._store.list(program=run.program, limit=_MOST_CHOICES)
        others = [finding.row_of(other) for other in latest if other.id != run.id]
        return self._pages.html(request, "choose.html", run=run, others=others)

    def _system_message(self, run_id: str) -> str:
        """The first system message of a run of the page's program; empty for another program's."""
        work = self._pages.work
        if work is None or not work.fits(stored_head(self._store, run_id)):
            return ""
        return work.system_message(run_id)

    def evaluations(self, request: Request) -> Response:
        """`/evaluations`; and with `?of=NAME&of=NAME`, two of them side by side."""
        names = request.query_params.getlist("of")
        evaluations = self._store.evaluations()
        if not names:
            return self._pages.html(request, "evaluations.html", evaluations=evaluations)
        if len(names) != 2:
            raise Refused(400, f"Two evaluations are compared; you ticked {len(names)}.")
        chosen = [evaluation for evaluation in evaluations if evaluation.name in names]
        if len(chosen) != 2:
            raise Refused(404, "This store has no two such evaluations.")
        after, before = chosen
        both = compare_evaluations(self._store, before, after)
        return self._pages.html(
            request, "compare_evaluations.html", both=both, MOST_ITEMS=_MOST_ITEMS
        )

    def csv(self, request: Request) -> Response:
        """`/runs.csv`."""
        return finding.export(self._store, self._asked(request), "csv")

    def json(self, request: Request) -> Response:
        """`/runs.json`."""
        return finding.export(self._store, self._asked(request), "json")

    def save_view(self, request: Request) -> Response:
        """`/views`: save the list of an address under a name, or forget the name."""
        sent: Mapping[str, str] = request.scope["ferrule.form"]
        name = " ".join(sent.get("name", "").split())[:_LONGEST_NAME]
        query = sent.get("query", "")
        views = _views_of(request)
        if "forget" in sent:
            views.pop(sent["forget"], None)
        elif not name or len(query) > _LONGEST_QUERY:
            raise Refused(409, "A view has a name, and an address of at most 300 characters.")
        else:
            views[name] = query
        while len(views) > _MOST_VIEWS:
            del views[next(iter(views))]
        place = "/"
        if query:
            place = f"/?{query}"
        response = RedirectResponse(place, 303)
        text = urlsafe_b64encode(json.dumps(views).encode()).decode()
        response.set_cookie(_VIEWS, text, max_age=_YEAR_S, httponly=True, samesite="lax")
        return response


def _views_of(request: Request) -> dict[str, str]:
    """The queries of the views that this browser saved, by name."""
    try:
        views = json.loads(urlsafe_b64decode(request.cookies.get(_VIEWS, "")))
    except ValueError:
        return {}
    if not isinstance(views, dict):
        return {}
    items = cast("dict[str, Any]", views).items()
    return {name: query for name, query in items if isinstance(query, str)}
