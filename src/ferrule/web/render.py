"""HTML from templates. All text is escaped, and invisible characters are shown by their numbers."""

from __future__ import annotations

import json
import shlex
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from functools import cache, lru_cache
from http import HTTPStatus
from pathlib import Path
from re import compile as pattern
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from zlib import crc32

from markupsafe import Markup, escape

from ferrule.values.confirmation.question import DECIDED
from ferrule.values.content.parts import Image, content_text
from ferrule.values.encoding.safe_text import reveal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.runs.protocols import Summary
    from ferrule.runs.story import Beat

FOLDER = Path(__file__).parent
MOST_SHOWN = 20_000
"""Characters of one value on a page; the whole is a download."""
_MOST_IN_A_ROW = 300
_PLAIN_ID = pattern(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def fill_template(name: str, **values: Any) -> str:
    """A page, or a part of one, as HTML."""
    return _templates().get_template(name).render(values)


def beat_html(beat: Beat, base: str) -> Markup:
    """One beat of the run whose page is at `base`."""
    return _templates().get_template("parts.html").module.beat_of(beat, base)


def refusal_page(status: int, text: str) -> bytes:
    """A page with a status and a reason."""
    return fill_template("refused.html", status=status, title=HTTPStatus(status).phrase, text=text).encode()


@cache
def _templates() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made: Any = Environment(
        loader=FileSystemLoader(FOLDER / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=_visible, auto_reload=False,
    )  # fmt: skip
    made.filters.update(
        pretty=pretty, literal=literal, clock=time_of_day, iso=iso, span=span, run_id=id_in_path, content=content_text, number=with_gaps,
        money=money, is_picture=_is_picture,
    )  # fmt: skip
    made.globals.update(rows_html=rows_html, state_html=state_html, time_html=time_html)
    made.globals.update(version_of=version_of, MOST_SHOWN=MOST_SHOWN, TITLES=TITLES, WORDS=WORDS)
    return made


TITLES = {
    "confirm": "May this run?",
    "clarify": "The model asks",
    "unknown": "Did this run?",
    "migration": "The program has changed",
    "input": "A server asks",
}
"""What a question is about, by its kind."""
WORDS = {kind: word.capitalize() for kind, word in DECIDED.items()}
"""What a person decided."""


def _is_picture(part: Any) -> bool:
    return isinstance(part, Image)


def _visible(value: Any) -> Any:
    return reveal(value) if type(value) is str else value


# -- HTML made here: a list has a hundred rows, and a template's macro for each costs ten times as much ---------------------------------


@lru_cache(4096)
def _escaped(text: str) -> str:
    return str(escape(reveal(text)))


@lru_cache(64)
def state_html(status: str, leased: bool) -> Markup:
    """The state of a run."""
    rest = '<span class="unseen">, </span><small> at rest</small>' if status == "running" and not leased else ""
    return Markup(f'<span class="status s-{_escaped(status)}">{_escaped(status)}{rest}</span>')  # noqa: S704  every value is escaped


def time_html(at: float, now: float) -> Markup:
    """How long ago something was; the script of the page keeps it true."""
    return Markup(_time(at, now))  # noqa: S704  numbers only


def _time(at: float, now: float) -> str:
    text = iso(at)
    return f'<time datetime="{text}" title="{text}" data-ago="{at!r}">{span(now - at)} ago</time>'


def rows_html(runs: Iterable[Summary], now: float) -> Markup:
    """The lines of a list of runs."""
    return Markup("".join([_row(each, now) for each in runs]))  # noqa: S704  every text in a row is escaped


def _row(run: Summary, now: float) -> str:
    href, name = id_in_path(run.id), _escaped(run.id)
    waiting = [each for each in run.questions if each.id not in run.decided]
    chip = line = ""
    if waiting:
        chip = f'<a class="chip ask" href="/runs/{href}#asked">{len(waiting)} question{"s" if len(waiting) > 1 else ""}</a>'
    elif run.questions:
        chip = '<span class="chip">decided</span>'
    if run.error:
        line = f'<p class="error-line">{_escaped(run.error[:_MOST_IN_A_ROW])}</p>'
    elif waiting:
        first = waiting[0]
        about = f"{first.call.name} {literal(first.call.args)[:_MOST_IN_A_ROW]}" if first.kind == "confirm" else first.text[:_MOST_IN_A_ROW]
        line = f'<p class="ask-line">{_escaped(about)}</p>'
    usage, cost = run.usage, run.cost
    tokens = usage.total_tokens
    return (
        f'<tr data-item data-key="{name}" data-v="{version_of(run.updated_at, run.status, run.leased, run.decided)}">'
        f'<td class="c-status">{state_html(run.status, run.leased)}</td>'
        f'<td class="c-run"><a href="/runs/{href}">{name}</a>\n{chip}{line}</td>'
        f'<td class="c-program">{_escaped(run.program)}</td>'
        f'<td class="c-num">{usage.calls or ""}</td>'
        f'<td class="c-num">{with_gaps(tokens) if tokens else ""}</td>'
        f'<td class="c-num">{money(cost) if cost else ""}</td>'
        f'<td class="c-time">{_time(run.created_at, now)}</td>'
        f'<td class="c-time">{_time(run.updated_at, now)}</td></tr>\n'
    )


def pretty(value: Any) -> str:
    """A value as text for a reader: text unchanged, anything else as indented JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def literal(value: Any) -> str:
    """A value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def time_of_day(at: float | None) -> str:
    """A time of day, of the server's time zone."""
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S") if at is not None else ""


def iso(at: float) -> str:
    """A time in UTC."""
    return f"{datetime.fromtimestamp(at, UTC).replace(microsecond=0, tzinfo=None).isoformat()}Z"


def span(seconds: float | None) -> str:
    """A duration, in the unit in which it is short."""
    if seconds is None or seconds < 0:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    for unit, size in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return ""


def with_gaps(value: int) -> str:
    """A number with a thin gap between thousands."""
    return f"{value:,}".replace(",", "\u2009")


def money(value: float) -> str:
    """US dollars."""
    return f"${value:.2f}" if value >= 1 else f"${value:.4f}"


def version_of(*values: Any) -> str:
    """A short mark that differs if one of the values does."""
    return f"{crc32(repr(values).encode('utf-8', 'replace')):08x}"


@lru_cache(4096)
def id_in_path(run_id: str) -> str:
    """A run's id as one part of an address. Any text may be an id."""
    if _PLAIN_ID.fullmatch(run_id):
        return quote(run_id)
    return "~" + urlsafe_b64encode(run_id.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def id_from_path(part: str) -> str:
    """The run's id of `id_in_path`."""
    if not part.startswith("~"):
        return part
    try:
        coded = part[1:] + "=" * (-len(part[1:]) % 4)
        return urlsafe_b64decode(coded).decode("utf-8", "surrogatepass")
    except ValueError:
        return ""


def command_line(run_id: str, place: str, store: str) -> str:
    """What resumes a run in a terminal."""
    return f"ferrule resume {shlex.quote(run_id)} --program {shlex.quote(place or 'FILE.py:NAME')} --store {shlex.quote(store)}"
