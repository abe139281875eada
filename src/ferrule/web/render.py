"""Pages, and parts of them, from templates.

Texts in a page come from models and tools, so a template trusts none: they are escaped, and
characters that a reader would not see (`reveal`) are shown as codes. The exceptions are texts that
a person typed, which are shown as typed, and HTML that `markup` made of escaped texts.
"""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrule.approval.call_view import LONG, means
from ferrule.encoding.safe_text import one_line, reveal
from ferrule.encoding.stored import LAST_TIME
from ferrule.values.calls.in_code import numbered_lines
from ferrule.web import markup, reading, steps, timeline, values

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ferrule.runs.story import Beat

FOLDER = Path(__file__).parent / "assets"
TITLES = {
    "confirm": ("Approve ", "?"),
    "clarify": ("The program asks", ""),
    "unknown": ("Did ", " run?"),
    "migration": ("The program has changed: ", ""),
    "input": ("A server asks: ", ""),
    "result": ("Waiting for the result of ", ""),
}
"""The title of a question, by its kind: the texts before and after the name of the tool.

A question of the kind `clarify` has no tool.
"""
_REFUSALS = {
    200: "Logged out",
    401: "Open your link",
    409: "Not possible now",
    500: "Something went wrong",
    503: "The store is not available",
}
"""The title of a page that refuses, where the phrase of HTTP says little."""


def fill_template(name: str, **values: Any) -> str:
    """A page, or a part of one, as HTML."""
    return _templates().get_template(name).render(values)


def steps_html(groups: Iterable[Sequence[Beat]], base: str, shown: dict[int, str]) -> list[str]:
    """Steps of the run at `base`, those that failed in the same way together.

    `shown` keeps the HTML of each step, by its first entry, until the step changes.
    """
    group_html = _templates().globals["step"].group
    parts: list[str] = []
    for group in groups:
        first = group[0].first
        if len(group) > 1:
            parts.append(group_html(group, base, markup.MOST_SHOWN))
            continue
        if first not in shown:
            shown[first] = group_html(group, base, markup.MOST_SHOWN)
        parts.append(shown[first])
    return parts


def refusal_page(status: int, text: str) -> bytes:
    """A page with a status and a reason."""
    title = _REFUSALS.get(status) or HTTPStatus(status).phrase
    return fill_template("refused.html", status=status, title=title, text=text).encode()


@cache
def _templates() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment: Any = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
        auto_reload=False,
    )
    environment.filters.update(
        one_line=one_line,
        pretty=markup.pretty,
        literal=markup.literal,
        clock=markup.time_of_day,
        date=markup.date,
        iso=markup.iso,
        span=markup.span,
        run_id=reading.id_in_path,
        number=markup.with_gaps,
        money=markup.money,
        score=markup.score,
        coded=markup.coded,
    )
    environment.globals.update(
        state_html=markup.state_html,
        time_html=markup.time_html,
        markdown_html=markup.markdown,
        exact_html=markup.exact_html,
        json_tree=values.json_tree,
        grouped_steps=timeline.grouped_steps,
        numbered_lines=numbered_lines,
        calls_of=steps.calls_of,
        pictures_of=steps.pictures_of,
        text_of=steps.text_of,
        read_note=steps.read_note,
        means=means,
        LONG=LONG,
        metadata_query=markup.metadata_query,
        version_of=reading.version_of,
        LAST_TIME=LAST_TIME,
        MOST_SHOWN=markup.MOST_SHOWN,
        WORDS=markup.WORDS,
        TITLES=TITLES,
    )
    # Loaded once: `import` in a template costs as much as a table each time.
    for name in ("step", "timeline", "parts"):
        environment.globals[name] = environment.get_template(f"{name}.html").module
    environment.globals["people_of"] = environment.get_template("people.html").module
    return environment


def _visible(value: Any) -> Any:
    """Make invisible characters of a text visible, unless a person typed it (`TypedText`)."""
    if type(value) is str:
        return reveal(value)
    return value
