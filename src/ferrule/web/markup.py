"""HTML made by functions.

A page has a hundred rows, or turns, and a template's macro for each costs many times as much.

All text is escaped, and invisible characters are shown by their numbers.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from datetime import UTC, datetime
from functools import lru_cache
from time import localtime, strftime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from markupsafe import Markup

from ferrule.approval.call_view import LONG, means, whole_number
from ferrule.approval.question import DECIDED
from ferrule.encoding.encode import json_text
from ferrule.encoding.safe_text import reveal
from ferrule.programs.code_mode.snippets import RUN_CODE
from ferrule.values.calls.in_code import numbered_lines, place_in_code
from ferrule.values.content.convert import content_text
from ferrule.values.content.parts import Image
from ferrule.web.reading import can_go_on, id_in_path, undecided, version_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.approval.call_view import ArgumentView, CallView
    from ferrule.approval.question import Decision
    from ferrule.runs.protocols import Summary
    from ferrule.runs.story import Beat, CallBeat
    from ferrule.values.calls.call import ToolResult
    from ferrule.values.content.parts import Part

MOST_SHOWN = 20_000
"""Characters of one value on a page; the whole is a download."""
WORDS = {kind: word.capitalize() for kind, word in DECIDED.items()}
"""What a person decided."""
_MOST_IN_A_ROW, _MOST_WORDS, _MOST_CHANGED = 300, 2_000, 500
_PICTURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_LINE_OF_CODE = re.compile(r"([> ]) +(\d+) (.*)")
"""A line in a question about a call that code made (`code_mode/snippets.py`)."""
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
    """How long ago something was; the script of the page keeps it true."""
    return _marked(_time(at, now))


def _time(at: float, now: float) -> str:
    text, past = iso(at), round(max(0, now - at))
    # Whole seconds, because the page's script, which updates the text, writes it so.
    ago = f"{past} s"
    if past >= _MINUTE:
        ago = span(past)
    return f'<time datetime="{text}" title="{text}" data-ago="{at!r}">{ago} ago</time>'


def rows_html(runs: Iterable[Summary], now: float) -> Markup:
    """The lines of a list of runs."""
    return _marked("".join([_row(each, now) for each in runs]))


def _row(run: Summary, now: float) -> str:
    href, name = id_in_path(run.id), _safe(run.id)
    waiting = undecided(run)
    chip = line = ""
    if waiting:
        noun = "questions" if len(waiting) > 1 else "question"
        chip = f'<a class="chip ask" href="/runs/{href}#asked">{len(waiting)} {noun}</a>'
    if run.error:
        line = f'<p class="error-line">{_safe(run.error[:_MOST_IN_A_ROW])}</p>'
    elif waiting:
        first = waiting[0]
        args = ", ".join(
            f"{key} {each if isinstance(each, str) else literal(each)}"
            for key, each in first.call.args.items()
        )
        about = f"{first.call.name}: {args}" if first.kind == "confirm" else first.text
        line = f'<p class="ask-line">{_safe(about[:_MOST_IN_A_ROW])}</p>'
    elif can_go_on(run):
        line = (
            '<p class="ask-line">continues when a worker or <code>ferrule resume</code> takes it'
            "</p>"
        )
    title = ""
    if run.title:
        title = f'<p class="run-about">{_safe(run.title)}</p>'
    usage, cost, tokens = run.usage, run.cost, run.usage.total_tokens
    version = version_of(run.updated_at, run.status, run.leased, run.decided)
    return (
        f'<tr data-item data-key="{name}" data-v="{version}">'
        f'<td class="c-status">{state_html(run)}</td>'
        f'<td class="c-run"><a href="/runs/{href}">{name}</a>\n{chip}{title}{line}</td>'
        f'<td class="c-program">{_safe(run.program)}</td>'
        f'<td class="c-num">{usage.calls or ""}</td>'
        f'<td class="c-num">{with_gaps(tokens) if tokens else ""}</td>'
        f'<td class="c-num">{money(cost) if cost else ""}</td>'
        f'<td class="c-time">{_time(run.created_at, now)}</td>'
        f'<td class="c-time">{_time(run.updated_at, now)}</td></tr>\n'
    )


def metadata_query(name: str, value: Any) -> str:
    """The query of the runs that have this metadata, too."""
    return urlencode({"metadata": f"{name}={json_text(value)}"})


# -- one turn


def beat_html(beat: Beat, base: str, most: int = MOST_SHOWN) -> Markup:
    """One beat of the run whose page is at `base`."""
    return _marked(_beat(beat, _safe(base), most))


def beats_html(beats: Iterable[Beat], base: str, shown: dict[int, str]) -> Markup:
    """Beats of one run.

    `shown` keeps the HTML of each, by its first entry, until the beat changes.
    """
    href = _safe(base)
    parts = [
        shown.get(each.first) or shown.setdefault(each.first, _beat(each, href, MOST_SHOWN))
        for each in beats
    ]
    return _marked("".join(parts))


def arguments_html(
    args: Mapping[str, Any] | None,
    changes: Mapping[str, tuple[Any, Any]],
    href: str,
    most: int = MOST_SHOWN,
) -> Markup:
    """Arguments by name. `changes` has what the model wrote, and what was prepared."""
    return _marked(_arguments(args, changes, _safe(href), most))


def review_html(shown: CallView) -> Markup:
    """All arguments of a call that a person must decide on, in full."""
    if not shown.arguments and not shown.dropped and not shown.not_shown:
        return _marked('<p class="faint">no arguments</p>')
    rows = [_reviewed(argument) for argument in shown.arguments]
    for argument in shown.dropped:
        rows.append(
            f'<div class="dropped"><dt>{_escaped(argument.name)}</dt>\n'
            f"<dd><del>{_escaped(argument.text)}</del>"
            '<p class="mark">The model wrote it; the tool does not get it.</p></dd></div>\n'
        )
    return _marked(f'<dl class="review">{"".join(rows)}</dl>')


def _reviewed(argument: ArgumentView) -> str:
    facts = "secret" if argument.is_secret else argument.type
    if argument.length > LONG:
        facts += f", {with_gaps(argument.length)} characters"
    marks: list[str] = []
    if argument.is_secret:
        marks.append("The tool gets the secret behind the stars.")
    if argument.is_default:
        marks.append("The default: the model left it out.")
    if argument.written is not None:
        marks.append(f"The model wrote {_escaped(argument.written)}")
    if argument.default is not None:
        marks.append(f"The default is {_escaped(argument.default)}")
    mark = "".join([f'<p class="mark">{text}</p>' for text in marks])
    # Marks made by the style sheet tell a line break from a wrapped line, and a tab from blanks.
    value = _escaped(argument.text)
    if argument.type == "text":
        value = value.replace("\n", '<span class="nl"></span>\n')
        value = value.replace("\t", '<span class="tab">\t</span>')
    classes = "value"
    if argument.length > LONG:
        classes += " long"
    if argument.written is not None:
        classes += " changed"
    return (
        f"<div><dt>{_escaped(argument.name)} <small>{facts}</small></dt>\n"
        f'<dd><div class="{classes}" tabindex="0">{value}</div>{mark}</dd></div>\n'
    )


def decided_html(decision: Decision, after: bool = False) -> Markup:
    """Who decided what; only who, `after` a heading that says what."""
    return _marked(_decided(decision, after))


def long_html(text: str, href: str, tag: str, most: int = MOST_SHOWN) -> Markup:
    """A text, cut if it is long; the whole is at `href`."""
    return _marked(_long(text, _safe(href), tag, most))


def _marked(html: str) -> Markup:
    """HTML made here, in which every text is escaped."""
    return Markup(html)  # noqa: S704


def _beat(beat: Beat, base: str, most: int) -> str:
    href = f"{base}/text/{beat.first}"
    owner = f" of call {_safe(beat.owner)}" if beat.owner else ""
    said: list[str] = []
    if beat.message is not None:
        said.append(_decided(beat.message))
    if beat.reasoning:
        text = _long(beat.reasoning, f"{href}/reasoning", "div", most)
        said.append(f'<details class="thought" open><summary>Thought</summary>{text}</details>')
    if beat.text:
        said.append(_long(beat.text, f"{href}/text", "div", most))
    if beat.error:
        error = _long(beat.error, f"{href}/error", "div", most)
        said.append(f'<div class="result bad"><b>The model gave no answer</b> {error}</div>')
    if beat.limit:
        said.append(f'<div class="result bad">{_safe(beat.limit)}</div>')
    if beat.changed is not None:
        pairs = [
            f"<p>{_safe(what)}: <del>{_safe(then[:_MOST_CHANGED])}</del> "
            f"<ins>{_safe(now[:_MOST_CHANGED])}</ins></p>"
            for what, (then, now) in beat.changed.items()
        ]
        said.append(f'<div class="result"><b>The program changed here</b>{"".join(pairs)}</div>')
    said += _calls(beat, base, most)
    bad = " bad" if beat.error or beat.limit else ""
    return (
        f'<article class="beat{bad}" data-item data-key="b{beat.first}" tabindex="-1"'
        f' aria-label="Step {beat.number + 1}{owner}">\n<p class="meta">{_meta(beat)}</p>\n'
        f'<div class="said">\n{"".join(said)}</div></article>\n'
    )


def _meta(beat: Beat) -> str:
    facts = [f'<b class="no">{beat.number + 1}</b>']
    if beat.program:
        facts.append(f"<span>{_safe(beat.program)}</span>")
    if beat.at is not None:
        written = iso(beat.at)
        facts.append(f'<time datetime="{written}" title="{written}">{time_of_day(beat.at)}</time>')
        if beat.begun_at is not None:
            facts.append(f"<span>{span(beat.at - beat.begun_at)}</span>")
    if beat.usage.total_tokens:
        facts.append(f"<span>{with_gaps(beat.usage.total_tokens)} tokens</span>")
    if beat.cost:
        facts.append(f"<span>{money(beat.cost)}</span>")
    if beat.model:
        facts.append(f'<span class="model">{_safe(beat.model)}</span>')
    again = f'name="at" value="{_safe(beat.slot)}" title="A new run goes on from before this step"'
    facts.append(f'<button form="again" class="quiet again" {again}>Run again from here</button>')
    return "\n".join(facts)


def _calls(beat: Beat, base: str, most: int) -> list[str]:
    """The calls of a beat. Those that code made stand beside their lines of it."""
    made: dict[str | None, dict[int, list[str]]] = {
        call.call_id: {} for call in beat.calls if call.name == RUN_CODE and call.written
    }
    outer: list[int] = []
    for number, call in enumerate(beat.calls):
        place = place_in_code(call.call_id)
        if place is None or place.code_call not in made:
            outer.append(number)
            continue
        html = _call(call, beat, number, base, most)
        made[place.code_call].setdefault(place.line, []).append(html)
    return [
        _call(beat.calls[number], beat, number, base, most, made.get(beat.calls[number].call_id))
        for number in outer
    ]


def _code_html(code: str, calls: Mapping[int, list[str]]) -> str:
    """Code with its lines numbered, and after each line the calls that it made."""
    lines: list[str] = []
    for number, line in numbered_lines(code):
        calls_html = "".join(calls.get(number, ()))
        if calls_html:
            calls_html = f'<div class="made">{calls_html}</div>'
        lines.append(f'<li value="{number}"><code>{_safe(line)}</code>{calls_html}</li>')
    return f'<ol class="snippet">{"".join(lines)}</ol>'


def note_html(note: str) -> Markup:
    """What a person must know besides a call. Code in it is shown as code, its line marked."""
    words: list[str] = []
    code: list[str] = []
    for line in note.split("\n"):
        numbered = _LINE_OF_CODE.fullmatch(line)
        if numbered is None:
            words.append(line)
            continue
        shown = f"<code>{_safe(numbered[3])}</code>"
        if numbered[1] == ">":
            shown = f'<mark><span class="unseen">This line: </span>{shown}</mark>'
        code.append(f'<li value="{numbered[2]}">{shown}</li>')
    text = "\n".join(words).strip("\n")
    html = ""
    if text:
        html = f'<div class="warn" role="note">{_safe(text)}</div>'
    if code:
        html += f'<ol class="snippet">{"".join(code)}</ol>'
    return _marked(html)


def _call(
    call: CallBeat,
    beat: Beat,
    number: int,
    base: str,
    most: int,
    in_code: Mapping[int, list[str]] | None = None,
) -> str:
    href = f"{base}/text/{beat.first}/{number}"
    if call.name == "finish" and call.result is None and not call.begun:
        args = _arguments(call.written, {}, f"{href}.written", most)
        owner = f" of call {_safe(beat.owner)}" if beat.owner else ""
        return (
            f'<section class="call answer" aria-label="Answer{owner}"><h3>Answer</h3>'
            f"{args}</section>\n"
        )
    state, name = _call_state(call), _safe(call.name)
    kind = state.replace(" ", "-")
    took = (
        f" <small>{span(call.ended_at - call.begun_at)}</small>"
        if call.begun_at is not None and call.ended_at is not None
        else ""
    )
    origin = ""
    if call.is_rescued:
        origin = ' <span class="chip">read from text</span>'
    if call.confidence is not None:
        origin += f' <span class="chip">confidence {call.confidence:.2f}</span>'
    place = place_in_code(call.call_id)
    if place is not None:
        origin += f' <span class="chip">line {place.line}</span>'
    shown_args = call.args if call.args is not None else call.written
    args = ""
    code = (shown_args or {}).get("code")
    if call.name == RUN_CODE and isinstance(code, str) and len(code) <= most:
        args = _code_html(code, in_code or {})
        shown_args = {name: value for name, value in (shown_args or {}).items() if name != "code"}
    if shown_args or not args:
        args += _arguments(shown_args, call.changes, f"{href}.args", most)
    parts = [
        f"<details><summary>Arguments</summary>{args}</details>" if state == "asked" else args,
        *map(_decided, call.decisions),
    ]
    if call.problem:
        parts.insert(0, f'<p class="error-line">{_safe(call.problem[:_MOST_WORDS])}</p>')
    if call.intention:
        parts.insert(0, f'<p class="intention">{_safe(call.intention[:_MOST_WORDS])}</p>')
    if call.begun:
        inside = "".join([_beat(each, base, most) for each in call.inside])
        parts.append(
            '<details class="inside"><summary>What happened inside</summary>'
            f'<div id="in-{_safe(call.key)}" data-noun="step">{inside}</div></details>'
        )
    if call.result is not None:
        parts.append(_result(call.result, beat, number, base, most))
    return (
        f'<section class="call k-{kind}" aria-label="Call {_safe(call.key)} of {name}">'
        f'<h3><code>{name}</code> <span class="chip c-{kind}">{state}</span>{origin}{took}</h3>'
        f"{''.join(parts)}</section>\n"
    )


def _call_state(call: CallBeat) -> str:
    if call.name == RUN_CODE and call.result is None:
        return "code"  # the journal has its calls, which follow, but no result of its own
    if call.result is not None:
        return "failed" if call.result.is_error else "done"
    if call.is_refused:
        return "denied" if call.decisions[-1].kind == "deny" else "answered"
    if call.begun:
        return "running"
    if call.decisions:
        return "approved"
    return "not run" if call.is_past or call.problem else "asked"


def _result(result: ToolResult, beat: Beat, number: int, base: str, most: int) -> str:
    said, bad = ("Error", " bad") if result.is_error else ("Result", "")
    content, shown = result.content, list[str]()
    if not isinstance(content, str):
        pictures: dict[int, Any] = {
            at: part
            for at, part in enumerate(content)
            if base and not beat.owner and picture_type(part)
        }
        shown = [
            _figure(f"{base}/picture/{beat.first}/{number}/{at}", part, at + 1, result.name)
            for at, part in pictures.items()
        ]
        content = content_text(tuple(part for at, part in enumerate(content) if at not in pictures))
    if content or not shown:
        shown.insert(0, _long(content, f"{base}/text/{beat.first}/{number}.result", "pre", most))
    return f'<div class="result{bad}"><span class="unseen">{said}: </span>{"".join(shown)}</div>'


def _figure(address: str, part: Image, number: int, tool: str) -> str:
    size = len(part.data or "") * 3 // 4
    return (
        f'<figure><img src="{address}" alt="Picture {number} in the result of {_safe(tool)}" '
        'loading="lazy">'
        f"<figcaption>{picture_type(part)}, {with_gaps(size)} bytes</figcaption></figure>"
    )


def picture_type(part: Part) -> str:
    """The type of a picture that is safe to show, by its first bytes; empty for anything else."""
    if not isinstance(part, Image) or not part.data:
        return ""
    try:
        start = b64decode(part.data[:16])
    except ValueError:
        return ""
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for first, kind in _PICTURES.items() if start.startswith(first)), "")


def _long(text: str, href: str, tag: str, most: int) -> str:
    start = ">"
    if tag == "pre":
        # A browser drops a line feed after `<pre>`: without this one, it drops that of the text.
        start = ' tabindex="0">\n'
    rest = ""
    if len(text) > most:
        rest = (
            f'<p class="cut">{with_gaps(len(text))} characters. '
            f'<a href="{href}" download>The whole text</a></p>'
        )
    return f'<{tag} class="text"{start}{_safe(text[:most])}</{tag}>{rest}'


def _arguments(
    args: Mapping[str, Any] | None, changes: Mapping[str, tuple[Any, Any]], href: str, most: int
) -> str:
    if not args:
        return '<p class="faint">no arguments</p>'
    lines: list[str] = []
    for name, value in args.items():
        text = pretty(value)
        shown = _safe(text[:most])
        if name in changes and not means(changes[name][0], value):
            shown = _change(changes[name][0], shown, most)
        if len(text) > most:
            shown += f' <a class="cut" href="{href}" download>the whole</a>'
        focusable = ""
        if len(text) > LONG:  # it may scroll
            focusable = ' tabindex="0"'
        lines.append(f"<div><dt>{_safe(name)}</dt>\n<dd{focusable}>{shown}</dd></div>")
    return f'<dl class="args">{"".join(lines)}</dl>'


def _change(written: Any, shown: str, most: int) -> str:
    """What the model wrote, and the HTML of the value that replaced it."""
    before = ""
    if written is not None:
        text = _safe(pretty(written)[:most])
        before = f'<del><span class="unseen">The model wrote </span>{text}</del> '
    return f'{before}<ins><span class="unseen">now </span>{shown}</ins>'


def _decided(decision: Decision, after: bool = False) -> str:
    kind = _safe(decision.kind)
    facts = ["Decided" if after else f"<b>{WORDS.get(decision.kind, kind)}</b>"]
    if decision.by:
        facts.append(f" by {_safe(decision.by)}")
    if decision.via:
        facts.append(f" via {_safe(decision.via)}")
    if decision.at:
        facts.append(f" at {time_of_day(decision.at)}")
    if decision.text:
        facts.append(f": <q>{_safe(decision.text[:_MOST_WORDS])}</q>")
    changed = [*decision.args, *decision.removed]
    if changed and not after:
        facts.append(f", changed: <code>{_safe(', '.join(changed)[:_MOST_WORDS])}</code>")
    return f'<p class="decided d-{kind}">{"".join(facts)}</p>\n'


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


def money(value: float) -> str:
    """US dollars."""
    return f"${value:.2f}" if value >= 1 else f"${value:.4f}"
