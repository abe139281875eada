"""The commands on stored runs: `ferrule runs`, `show`, `approve`, `deny`, `reply`, `cancel` and `resume`.

Only `resume` loads a program; the others read and write the store. None waits for input.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from msgspec.structs import replace

from ferrule import settings
from ferrule.approval.question import DECIDED
from ferrule.cli.arguments import find_program, make_deps, model_setting, text_or_stdin
from ferrule.cli.commands.tools import DEPS, JSON  # noqa: TC001  typer reads annotations at run time
from ferrule.cli.exit_code import ExitCode
from ferrule.cli.prompt import read_edits, user_name
from ferrule.cli.screen import call_text, in_options, print_json, say, usage_document, usage_text
from ferrule.cli.stores import DEFAULT_STORE, StorePlace, is_dsn, open_store
from ferrule.encoding.encode import json_text, jsonable
from ferrule.encoding.safe_text import one_line, printable, reveal
from ferrule.encoding.stored import LAST_TIME, reading
from ferrule.errors import ConfigurationError, StoreError
from ferrule.runs.protocols import check_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ferrule.approval.question import Decision, Question
    from ferrule.runs.protocols import Store, Stored, Summary

_Run = Annotated[str, typer.Argument(metavar="RUN", help="The id of the run, or its beginning.")]
_QuestionId = Annotated[
    str | None,
    typer.Argument(
        metavar="QUESTION",
        help="The id of the question, or its beginning, if several wait.",
    ),
]


_LEGEND = "(4.0 is the first call of act 4, or its first decision; p: verdicts on the next calls; ?: asked in a call, or after a crash)"
_LONG_S = 60.0
"""After so long, a run that has work counts as stuck."""
_MOST_LISTED = 20
"""Ids that an error lists."""


def list_runs(
    status: Annotated[
        str | None,
        typer.Option(
            help="Only runs that are queued, running, waiting, done, failed or cancelled.",
        ),
    ] = None,
    stuck: Annotated[
        bool,
        typer.Option(
            "--stuck",
            help="Only runs with work that no worker can take, with the reason.",
        ),
    ] = False,
    store: StorePlace = DEFAULT_STORE,
    as_json: JSON = False,
) -> int:
    """List stored runs with their open questions. The most recently changed run comes first."""
    check_status(status, "--status")
    with open_store(store) as opened:
        runs = opened.list(status=status, limit=None)
        if stuck:
            runs = _stuck_runs(runs, opened, has_workers=is_dsn(store))
    if as_json:
        return print_json(list(map(_line_document, runs)), indent=None)
    for each in runs:
        _print(
            f"{_shown_id(each.id)}  {each.status:<9}  {_time(each.updated_at)}  {each.program}{_note(each)}",
        )
        for question in each.questions:
            _print(f"    {_question_line(each, question)}")
    return ExitCode.DONE


def show_run(
    run: _Run,
    store: StorePlace = DEFAULT_STORE,
    as_json: JSON = False,
    as_html: Annotated[
        bool,
        typer.Option("--html", help="Print the run as one HTML file."),
    ] = False,
) -> int:
    """Show a run: inputs, journal and questions."""
    if as_json and as_html:
        raise ConfigurationError("`--json` and `--html` exclude each other.")
    with open_store(store) as opened:
        found = _find_run(opened, run)
        if as_html:
            from ferrule.web.ui import run_as_html

            _print(run_as_html(opened, found.id))
            return ExitCode.DONE
        stored = opened.load(found.id)
    with reading(f"The run {found.id!r} in the store"):
        shown = _run_document(found, stored) if as_json else "\n".join(_run_lines(found, stored))
    if isinstance(shown, str):
        _print(shown)
        return ExitCode.DONE
    return print_json(shown, indent=None)


def approve_call(
    run: _Run,
    question: _QuestionId = None,
    edit: Annotated[
        list[str] | None,
        typer.Option("--edit", help="A changed argument, as name=value. May be repeated."),
    ] = None,
    store: StorePlace = DEFAULT_STORE,
) -> int:
    """Approve a waiting call, unchanged or with changed arguments."""

    def decide(asked: Question) -> Decision:
        changes = read_edits(asked, edit) if edit else {}
        if asked.kind == "input":
            return asked.fill(changes)
        return asked.edit(changes) if edit else asked.approve()

    return _decide(store, run, question, decide)


def deny_call(
    run: _Run,
    question: _QuestionId = None,
    why: Annotated[str, typer.Option("--why", help="The reason, for the model.")] = "",
    store: StorePlace = DEFAULT_STORE,
) -> int:
    """Deny a waiting call."""
    return _decide(store, run, question, lambda asked: asked.deny(why))


def reply_to_question(
    run: _Run,
    text: Annotated[
        str,
        typer.Argument(
            help="The answer for the model; the call does not run. `-` reads standard input.",
        ),
    ],
    question: Annotated[
        str | None,
        typer.Option("--question", help="The id of the question, if several wait."),
    ] = None,
    store: StorePlace = DEFAULT_STORE,
) -> int:
    """Answer a question of the model or program. A reply can also be the result of a call that may have run."""
    answer = text_or_stdin(text)
    return _decide(store, run, question, lambda asked: asked.reply(answer))


def cancel_run(run: _Run, store: StorePlace = DEFAULT_STORE) -> int:
    """Cancel a run. A waiting run is cancelled immediately, a running one before its next step."""
    with open_store(store) as opened:
        found = _find_run(opened, run)
        opened.cancel(found.id)
    _print(f"{_shown_id(found.id)}: cancelled")
    return ExitCode.DONE


def resume_run(
    run: _Run,
    program: Annotated[
        str,
        typer.Option(help="The program of the run: module:attribute, or file.py:attribute."),
    ],
    store: StorePlace = DEFAULT_STORE,
    lm: Annotated[
        str | None,
        typer.Option(
            help="The model, as provider/model. Default: the model that the program sets.",
        ),
    ] = None,
    deps: DEPS = None,
    max_recoveries: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How often the run may have killed its process before it is marked as failed. Default: 5.",
        ),
    ] = None,
) -> int:
    """Resume a run until it ends or waits. Exit code: 0 if it is done, 1 if it failed, 3 if a person must decide."""
    from ferrule.runs.run import Run

    with open_store(store) as opened:
        opened.max_recoveries = opened.max_recoveries if max_recoveries is None else max_recoveries
        found, loads = _find_run(opened, run).id, find_program(program)
        loaded = Run.load(
            opened,
            found,
            loads,
            deps=make_deps(deps),
        )
        with settings.context(**model_setting(lm)):
            loaded.resume()
        is_kept = loaded.status != "failed" or opened.summary(found).status == "failed"
    if is_kept:  # a run that could not begin, such as one without a model, stays what it was
        _print(f"{_shown_id(loaded.id)}: {loaded.status}")
    for question in loaded.pending:
        _print(f"    {question.id}  {_question_text(question)}")
    if loaded.status == "done":
        _print(json_text(loaded.prediction))
        return ExitCode.DONE
    if loaded.error is not None:
        say(f"{type(loaded.error).__name__}: {in_options(loaded.error)}")
    return ExitCode.WAITING if loaded.status == "waiting" else ExitCode.FAILED


def _stuck_runs(runs: list[Summary], store: Any, *, has_workers: bool) -> list[Summary]:
    """The runs that have work and no process, with the reason in `error`; without those that only just have it, or wait for their turn."""
    from ferrule.runs.store.postgres.tickets import in_turn

    now, comes = store.now(), in_turn(store) if has_workers else set[str]()
    return [
        found for each in runs if (found := _stuck(each, now - each.updated_at, comes)) is not None
    ]


def _stuck(run: Summary, since_s: float, in_turn: set[str]) -> Summary | None:
    if run.leased or not (
        run.status in {"queued", "running"} or (run.status == "waiting" and run.decided)
    ):
        return None
    if run.error is not None:
        return run
    if since_s < _LONG_S or run.id in in_turn:
        return None
    what = {"running": "Its process died", "waiting": "Its question is decided"}.get(
        run.status,
        "It is queued",
    )
    return replace(run, error=f"{what}, and no worker has taken it up for {since_s:.0f} s.")


def _note(run: Summary) -> str:
    """What a status alone does not say: the error, or that the process of a run is gone."""
    is_interrupted = run.status == "running" and not run.leased and run.error is None
    note = (
        "interrupted: no process executes it; `ferrule resume` continues it"
        if is_interrupted
        else run.error
    )
    return f"  ({_barred(note)})" if note else ""


def _find_run(store: Store, run_id: str) -> Summary:
    try:
        return store.summary(run_id)
    except StoreError:
        runs = {each.id: each for each in store.list(limit=None)}
        if run_id in runs:  # it is damaged
            raise
    return _choose_one(run_id, runs, "run")


def _choose_one(prefix: str | None, candidates: Mapping[str, Any], noun: str) -> Any:
    """The candidate with this id, or the only one whose id begins so; without a prefix the only one."""
    alike = [each for each in candidates if prefix is None or (prefix and each.startswith(prefix))]
    chosen = [each for each in alike if each == prefix] or alike
    if len(chosen) != 1:
        of = f" of the id {prefix!r}" if prefix is not None else ""
        listed = chosen or list(candidates)
        more = f" and {len(listed) - _MOST_LISTED} more" if len(listed) > _MOST_LISTED else ""
        there = (", ".join(map(_shown_id, listed[:_MOST_LISTED])) or "none") + more
        raise StoreError(
            f"{'Several' if chosen else 'No'} {noun}{'s' if chosen else ''}{of}; there are: {there}.",
        )
    return candidates[chosen[0]]


def _decide(
    path: str,
    run: str,
    question: str | None,
    decide: Callable[[Question], Decision],
) -> int:
    with open_store(path) as store:
        found = _find_run(store, run)
        asked = _choose_one(question, {each.id: each for each in found.questions}, "question")
        decision = decide(asked).signed(user_name(), "cli")
        store.decide(found.id, decision)
    _print(
        f"{_shown_id(found.id)} {asked.id}: {DECIDED[decision.kind]}. It takes effect when the run is resumed.",
    )
    return ExitCode.DONE


def _run_document(run: Summary, stored: Stored) -> dict[str, Any]:
    """A run with its journal as JSON; see docs/reference/cli.md."""
    head = json.loads(stored.head)
    entries = [
        {**_shown_entry(json.loads(entry)), "at": at}
        for entry, at in zip(stored.entries, stored.times, strict=True)
    ]
    return {
        **_line_document(run),
        "args": head["args"],
        "inputs": head["inputs"],
        "journal": entries,
    }


def _run_lines(run: Summary, stored: Stored) -> Iterator[str]:
    """A run with its journal for a person."""
    yield f"{_shown_id(run.id)}  {run.status}  {run.program}{_note(run)}"
    yield f"  started {_time(run.created_at)}, last change {_time(run.updated_at)}"
    if run.usage.calls:
        yield f"  {usage_text(run.usage)}"
    for name, value in json.loads(stored.head)["inputs"].items():
        yield f"  {name} = {_cut(json_text(value))}"
    for entry in map(json.loads, stored.entries):
        kind, text = _entry_words(entry)
        yield f"  {entry['slot']:<8} {kind:<8} {_cut(text)}"
    if stored.entries:
        yield f"  {_LEGEND}"
    for question in run.questions:
        yield f"  {_question_line(run, question)}"


def _line_document(run: Summary) -> dict[str, Any]:
    """One line of the list as JSON data; see docs/reference/cli.md."""
    return {**jsonable(run), "usage": usage_document(run.usage), "cost": run.cost}


def _shown_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry without what only ferrule needs: data for the provider, and the key of a call."""
    value: Any = entry["value"]
    if entry["kind"] == "model":
        value = {name: each for name, each in value.items() if name not in {"extra", "others"}}
    elif entry["kind"] == "begun" and isinstance(value, dict):
        value = {
            name: each for name, each in cast("dict[str, Any]", value).items() if name != "key"
        }
    return {**entry, "value": value}


def _entry_words(entry: Mapping[str, Any]) -> tuple[str, str]:
    """The kind of an entry, and what it holds."""
    value, kind, digest = entry["value"], entry["kind"], str(entry["digest"])
    if kind == "once" and digest.startswith("policy "):
        calls = json.loads(digest.removeprefix("policy "))
        ruled = [
            (each[0], call[0], each[1])
            for call, each in zip(calls, value, strict=False)
            if each is not None
        ]
        return "policy", "; ".join(
            f"{verdict} {name}{f': {reason}' if reason else ''}" for verdict, name, reason in ruled
        )
    if (
        kind == "once" and isinstance(value, float) and entry["slot"].endswith("?")
    ):  # when the question there counts as denied
        asked, _, call = digest.partition(" ")
        return "question", f"{asked} until {_time(value)}: {call}"
    return kind, _entry_text(kind, value, digest)


def _entry_text(kind: str, value: Any, digest: str) -> str:
    match kind:
        case "model":
            calls = [call_text(call["name"], call["args"]) for call in value.get("tool_calls", ())]
            return " ".join([value.get("text") or "", *calls]).strip()
        case "failure":
            return f"{value['type']}: {value['text']}"
        case "limit":
            return f"the limit {value['name']} = {value['limit']} is reached"
        case "begun":
            return digest
        case "result":
            content = (
                value["content"]
                if isinstance(value["content"], str)
                else json_text(value["content"])
            )
            return f"{value['name']} {'failed' if value.get('is_error') else 'returned'}: {content}"
        case "decision":
            who, way = (
                f"{word} {value[key]}" if value[key] else ""
                for word, key in (("by", "by"), ("via", "via"))
            )
            changed = f"with {json_text(value['args'])}" if value["args"] else ""
            when = f"at {_time(value['at'])}" if value["at"] else ""
            call = digest.partition(" ")[2]  # last, so that a long call does not cut off the name
            return " ".join(
                filter(None, (value["kind"], changed, value["text"], who, way, when)),
            ) + (f": {call}" if call else "")
        case "once":
            return f"{digest.partition(' ')[0]} = {json_text(value)}"
        case _:
            return json_text(value)


def _time(seconds: float) -> str:
    if seconds > LAST_TIME:
        return f"{seconds:.0e} seconds after 1970"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _question_line(run: Summary, question: Question) -> str:
    return f"{question.id}  {'decided' if question.id in run.decided else 'waiting'}  {_question_text(question)}"


def _question_text(question: Question) -> str:
    return _barred(
        reveal(question.text),
    )  # a person decides on exactly this text, so it shows invisible characters by their numbers


def _barred(text: str) -> str:
    """The text with a bar before each further line: none of them looks like a line of the list."""
    return text.replace("\n", "\n      | ")


def _shown_id(run_id: str) -> str:
    """An id on one line. Any text may be an id."""
    return reveal(run_id).replace("\n", "\\u000a").replace("\t", "\\u0009")


def _cut(text: str) -> str:
    return one_line(text, 160)


def _print(text: str) -> None:
    sys.stdout.write(f"{printable(text)}\n")
