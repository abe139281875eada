"""HTML made by functions, for the list of runs: a template's macro for each row costs much more.

All text is escaped, and invisible characters are shown by their numbers.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import lru_cache
from time import localtime, strftime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from markupsafe import Markup

from ferrule.approval.call_view import whole_number
from ferrule.approval.question import DECIDED
from ferrule.encoding.encode import json_text
from ferrule.encoding.safe_text import reveal
from ferrule.web.reading import can_go_on
from ferrule.web.values import markdown_html

if TYPE_CHECKING:
    from ferrule.approval.call_view import ArgumentView
    from ferrule.runs.protocols import Summary

MOST_SHOWN = 20_000
"""Characters of one value on a page; the whole is a download."""
WORDS = {kind: word.capitalize() for kind, word in DECIDED.items()}
"""What a person decided."""
_MOST_IN_A_ROW = 300
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def _safe(text: str) -> str:
    """Text as HTML.

    Most texts are short: `markupsafe.escape`, which makes a `Markup`, takes four times as long.
    """
    return _escaped(reveal(text))


def _escaped(text: str) -> str:
    """Text without invisible characters as HTML."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&#34;").replace("'", "&#39;")


def state_html(run: Summary) -> Markup:
    """The state of a run."""
    if run.status == "running" and not run.leased:  # its process ended
        return _status("running", "interrupted")
    return _status("waiting", "decided") if can_go_on(run) else _status(run.status)


@lru_cache(64)
def _status(status: str, shown: str = "") -> Markup:
    before = f'<span class="unseen">{_safe(status)}, </span>' if shown else ""
    return _marked(
        f'<span class="status s-{_safe(shown or status)}">{before}{_safe(shown or status)}</span>'
    )


def time_html(at: float, now: float) -> Markup:
    """How long ago something was, kept true by the page's script; after a day, its date."""
    return _marked(_time(at, now))


def _time(at: float, now: float) -> str:
    text, past = iso(at), round(max(0, now - at))
    if past >= _DAY:  # "1 d ago" may be yesterday or the day before
        return f'<time datetime="{text}" title="{date(at)}">{date(at)[:10]}</time>'
    # Whole seconds, because the page's script, which updates the text, writes it so.
    ago = f"{past} s"
    if past >= _MINUTE:
        ago = span(past)
    return f'<time datetime="{text}" title="{date(at)}" data-ago="{at!r}">{ago} ago</time>'


def metadata_query(name: str, value: Any) -> str:
    """The query of the runs that have this metadata, too."""
    return urlencode({"metadata": f"{name}={json_text(value)}"})


# -- parts of steps and questions


def exact_html(argument: ArgumentView) -> Markup:
    """The value of an argument that a person must decide on, in full.

    Marks made by the style sheet tell a line break from a wrapped line, and a tab from blanks.
    """
    value = _escaped(argument.text)
    if argument.type == "text":
        value = value.replace("\n", '<span class="nl"></span>\n')
        value = value.replace("\t", '<span class="tab">\t</span>')
    return _marked(value)


def markdown(text: str, *, has_links: bool) -> Markup | None:
    """A text of Markdown as HTML; None for a text without Markdown."""
    html = markdown_html(text, has_links=has_links)
    if html is None:
        return None
    return _marked(html)


def _marked(html: str) -> Markup:
    """HTML made here, in which every text is escaped."""
    return Markup(html)  # noqa: S704


def coded(text: str) -> Markup:
    """A message of ours as HTML. Text between backticks becomes code."""
    parts = [_safe(part) for part in text.split("`")]
    if len(parts) % 2 == 0:  # a backtick without its partner
        return _marked(_safe(text))
    for number in range(1, len(parts), 2):
        parts[number] = f"<code>{parts[number]}</code>"
    return _marked("".join(parts))


# -- values as text


def pretty(value: Any) -> str:
    """A value as text for a reader: text unchanged, anything else as indented JSON."""
    return (
        value
        if isinstance(value, str)
        else json.dumps(whole_number(value), ensure_ascii=False, indent=2)
    )


def literal(value: Any) -> str:
    """A value as JSON on one line."""
    return json.dumps(whole_number(value), ensure_ascii=False)


def time_of_day(at: float | None) -> str:
    """A time of day, of the server's time zone."""
    return strftime("%H:%M:%S", localtime(at)) if at is not None else ""


def date(at: float) -> str:
    """A date and time of the server's time zone, with the zone."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def iso(at: float) -> str:
    """A time in UTC."""
    return _iso(int(at))


@lru_cache(4096)
def _iso(at: int) -> str:
    return f"{datetime.fromtimestamp(at, UTC).isoformat()[:19]}Z"


def span(seconds: float | None) -> str:
    """A duration, in the unit in which it is short."""
    if seconds is None or seconds < 0:
        return ""
    if seconds >= _DAY:
        return f"{seconds / _DAY:.0f} d"
    if seconds >= _HOUR:
        return f"{seconds / _HOUR:.0f} h"
    if seconds >= _MINUTE:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def with_gaps(value: int) -> str:
    """A number with a thin gap between thousands."""
    return f"{value:,}".replace(",", "\u2009")


def score(value: float) -> str:
    """A score of a metric."""
    return f"{value:.3g}"


def money(value: float) -> str:
    """US dollars."""
    return f"${value:.2f}" if value >= 1 else f"${value:.4f}"
