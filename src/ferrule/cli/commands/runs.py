"""The commands on stored runs.

`ferrule runs`, `show`, `approve`, `deny`, `reply`, `cancel`, `resume` and `fork`.

Only `resume` and `fork` load a program; the others read and write the store. `approve`, `deny` and
`reply` print the call and ask at the terminal: a person decides on what stands there, not on what
the run asked when he last looked. Without a terminal, `--yes` needs the question by name. Its id is
made from the call, so that a run that has moved on does not take the decision.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from msgspec.structs import replace

from ferrule import settings
from ferrule.approval.call_view import view_call
from ferrule.approval.cancellation import is_cancellation, slot_of
from ferrule.approval.message import is_message
from ferrule.approval.question import DECIDED
from ferrule.cli.arguments import find_program, make_deps, model_setting, text_or_stdin

# Typer reads annotations at run time.
from ferrule.cli.commands.tools import DEPS, JSON, LM_OF_PROGRAM  # noqa: TC001
from ferrule.cli.exit_code import ExitCode
from ferrule.cli.prompt import json_or_text, read_edits, user_name
from ferrule.cli.run_table import draw_runs, read_time, seconds_text
from ferrule.cli.screen import (
    call_text,
    console_on,
    in_options,
    print_json,
    say,
    usage_document,
    usage_text,
    write_text,
)
from ferrule.cli.stores import DEFAULT_STORE, StorePlace, is_dsn, open_store
from ferrule.encoding.encode import json_text, jsonable
from ferrule.encoding.safe_text import one_line, reveal
from ferrule.encoding.stored import LAST_TIME, parse_json, reading
from ferrule.errors import ConfigurationError, StoreError, shown
from ferrule.programs.code_mode.snippets import RUN_CODE
from ferrule.runs.about import read_pairs
from ferrule.runs.journal.cut import forked_from
from ferrule.runs.journal.encode import entry_form, read_entry
from ferrule.runs.protocols import check_status
from ferrule.runs.store.listing import decisions_of
from ferrule.values.calls.call import FROM_TEXT
from ferrule.values.calls.in_code import numbered_lines, place_in_code
from ferrule.values.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ferrule.approval.message import When
    from ferrule.approval.question import Decision, Question
    from ferrule.runs.protocols import Store, Stored, Summary
    from ferrule.runs.run import Run

_Run = Annotated[str, typer.Argument(metavar="RUN", help="The id of the run, or its beginning.")]
_QuestionId = Annotated[
    str | None,
    typer.Option(
        "--question",
        metavar="ID",
        help="The question: the beginning of its id or of its digest. Needed if several wait, and "
        "with --yes.",
    ),
]
_Yes = Annotated[
    bool, typer.Option("--yes", help="Do not ask; the question must be named by --question.")
]


_LEGEND = (
    "(4.0 is the first call of act 4; 4.0?a0: whether it may run; ~policy: verdicts on the next "
    "calls; other marks with ?: asked in a call, or after a crash)"
)
_LONG_S = 60.0
"""After so long, a run that has work counts as stuck."""
_SHORTEST_NAME = 8
"""The fewest characters of an id or a digest that name a question with `--yes`."""
_MOST_LISTED = 20
"""Ids that an error lists."""


def list_runs(
    search: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]...",
            help="Only runs that have these words, or words that begin so, in their inputs, "
            "outputs, calls, errors, metadata, title or id.",
        ),
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(
            help="Only runs that are queued, running, waiting, done, failed or cancelled."
        ),
    ] = None,
    program: Annotated[str | None, typer.Option(help="Only runs of this program.")] = None,
    tool: Annotated[str | None, typer.Option(help="Only runs that called this tool.")] = None,
    tool_failed: Annotated[
        bool,
        typer.Option("--tool-failed", help="Only runs in which a call (of --tool) failed."),
    ] = False,
    model: Annotated[str | None, typer.Option(help="Only runs that this model answered.")] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata",
            metavar="NAME=VALUE",
            help="Only runs that were started with this metadata. May be repeated.",
        ),
    ] = None,
    evaluation: Annotated[
        str | None, typer.Option(metavar="ID", help="Only runs that this evaluation scored.")
    ] = None,
    assigned: Annotated[
        str | None,
        typer.Option(metavar="PERSON", help="Only runs that are assigned to this person."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only runs that changed since: 24h, 7d or 2026-11-28."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only runs that changed last before.")
    ] = None,
    min_cost: Annotated[
        float | None, typer.Option(help="Only runs that cost so many US dollars or more.")
    ] = None,
    order: Annotated[
        str, typer.Option(help="updated, created, duration, steps, tokens or cost.")
    ] = "updated",
    ascending: Annotated[
        bool, typer.Option("--ascending", help="The smallest value first.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="How many runs at most. Default: all.")
    ] = None,
    stuck: Annotated[
        bool,
        typer.Option(
            "--stuck", help="Only runs with work that no worker can take, with the reason."
        ),
    ] = False,
    store: StorePlace = DEFAULT_STORE,
    as_json: JSON = False,
) -> int:
    """List stored runs with their open questions. The most recently changed run comes first."""
    check_status(status, "--status")
    with open_store(store) as opened:
        now = opened.now()
        wanted: dict[str, Any] = {
            "status": status,
            "program": program,
            "tool": tool,
            "model": model,
            "search": " ".join(search or ()),
            "tool_failed": tool_failed or None,
            "metadata": read_pairs(metadata or ()),
            "evaluation": evaluation,
            "assigned": assigned,
            "min_cost": min_cost,
        }
        if since is not None:
            wanted["since"] = read_time(since, now, "--since")
        if until is not None:
            wanted["until"] = read_time(until, now, "--until")
        runs = opened.list(order=order, ascending=ascending, limit=limit, **wanted)
        if stuck:
            runs = _stuck_runs(runs, opened, has_workers=is_dsn(store))
    if as_json:
        return print_json(list(map(_line_document, runs)), indent=None)
    draw_runs(
        console_on(sys.stdout),
        runs,
        shown_id=_shown_id,
        shown_time=_time,
        note=_note,
        below=lambda run: [f"    {_question_line(run, question)}" for question in run.questions],
    )
    return ExitCode.DONE


def show_run(
    run: _Run,
    store: StorePlace = DEFAULT_STORE,
    as_json: JSON = False,
    as_html: Annotated[
        bool, typer.Option("--html", help="Print the run as one HTML file.")
    ] = False,
) -> int:
    """Show a run: inputs, journal and questions."""
    if as_json and as_html:
        raise ConfigurationError("`--json` and `--html` exclude each other.")
    with open_store(store) as opened:
        summary = _find_run(opened, run)
        if as_html:
            # Imported here, because it needs the extra `ferrule[ui]`.
            from ferrule.web.ui import run_as_html

            write_text(run_as_html(opened, summary.id))
            return ExitCode.DONE
        stored = opened.load(summary.id)
    with reading(f"The run {summary.id!r} in the store"):
        # Read as a whole before the first line is printed: the run may be damaged.
        document = _run_document(summary, stored)
        text = "\n".join(_run_lines(summary, stored))
    if as_json:
        return print_json(document, indent=None)
    write_text(text)
    return ExitCode.DONE


def approve_call(
    run: _Run,
    question: _QuestionId = None,
    edit: Annotated[
        list[str] | None,
        typer.Option("--edit", help="A changed argument, as name=value. May be repeated."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="NAME",
            help="An argument to remove, so that its default applies. May be repeated.",
        ),
    ] = None,
    yes: _Yes = False,
    store: StorePlace = DEFAULT_STORE,
) -> int:
    """Approve a waiting call, unchanged or with changed arguments."""

    def decide(asked: Question) -> Decision:
        changes = {}
        if edit:
            changes = read_edits(asked, edit)
        if asked.kind == "input":
            return asked.fill(changes)
        if edit or without:
            return asked.edit(changes, removed=without or ())
        return asked.approve()

    return _decide(store, run, question, decide, asks=not yes)


def deny_call(
    run: _Run,
    question: _QuestionId = None,
    why: Annotated[str, typer.Option("--why", help="The reason, for the model.")] = "",
    yes: _Yes = False,
    store: StorePlace = DEFAULT_STORE,
) -> int:
    """Deny a waiting call."""
    return _decide(store, run, question, lambda asked: asked.deny(why), asks=not yes)


def reply_to_question(
    run: _Run,
    text: Annotated[
        str,
        typer.Argument(
            help="The answer for the model; the call does not run. `-` reads standard input."
        ),
    ],
    question: _QuestionId = None,
    yes: _Yes = False,
    store: StorePlace = DEFAULT_STORE,
) -> int:
    """Answer a question of the model or program.

    A reply can also be the result of a call that may have run.
    """
    answer = text_or_stdin(text)
    return _decide(store, run, question, lambda asked: asked.reply(answer), asks=not yes)


def deliver_to_call(
    run: _Run,
    key: Annotated[str, typer.Argument(help="The key with which the call waits for its result.")],
    value: Annotated[
        str,
        typer.Argument(metavar="JSON", help="The result, as JSON. `-` reads standard input."),
    ],
    store: StorePlace = DEFAULT_STORE,
) -> int:
    """Deliver the result of a call that waits for it from outside."""
    text = text_or_stdin(value)
    try:
        result = parse_json(text)
    except (ValueError, RecursionError):
        raise ConfigurationError(
            f"The result is JSON, such as '{{\"ok\": true}}' or '\"text\"'; found {shown(text)}."
        ) from None
    with open_store(store) as opened:
        summary = _find_run(opened, run)
        opened.deliver(summary.id, key, result, by=user_name())
    delivered = f"{_shown_id(summary.id)} {_cut(key)}: delivered."
    write_text(f"{delivered} It takes effect when the run is resumed.")
    return ExitCode.DONE


def say_to_run(
    run: _Run,
    text: Annotated[
        str,
        typer.Argument(help="The message to the agent. `-` reads standard input."),
    ],
    after: Annotated[
        bool,
        typer.Option("--after", help="For when it has answered, not for its next request."),
    ] = False,
    store: StorePlace = DEFAULT_STORE,
) -> int:
    """Say something to the agent of a run that executes or waits."""
    message = text_or_stdin(text)
    when: When = "next"
    effect = "The next request of the agent has it."
    if after:
        when = "after"
        effect = "The agent reads it when it has answered."
    with open_store(store) as opened:
        summary = _find_run(opened, run)
        opened.say(summary.id, message, when=when, by=user_name(), via="cli")
    write_text(f"{_shown_id(summary.id)}: said. {effect}")
    return ExitCode.DONE


def cancel_run(
    run: _Run,
    call: Annotated[
        str | None,
        typer.Option(
            "--call",
            metavar="ID",
            help="Cancel only this call: its id, or its place as `ferrule show` prints it.",
        ),
    ] = None,
    result: Annotated[
        str | None,
        typer.Option("--result", help="With --call: what the model reads as its result."),
    ] = None,
    store: StorePlace = DEFAULT_STORE,
) -> int:
    """Cancel a run, or one call of it, at once."""
    if result is not None and call is None:
        raise ConfigurationError("`--result` is the result of a call: name it with `--call ID`.")
    with open_store(store) as opened:
        summary = _find_run(opened, run)
        if call is None:
            opened.cancel(summary.id)
            what = _shown_id(summary.id)
        else:
            opened.cancel_call(summary.id, call, result=result, by=user_name(), via="cli")
            what = f"{_shown_id(summary.id)} {_cut(call)}"
    write_text(f"{what}: cancelled")
    return ExitCode.DONE


def resume_run(
    run: _Run,
    program: Annotated[
        str, typer.Option(help="The program of the run: module:attribute, or file.py:attribute.")
    ],
    store: StorePlace = DEFAULT_STORE,
    lm: LM_OF_PROGRAM = None,
    deps: DEPS = None,
    max_recoveries: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How often the run may have killed its process before it is marked as failed. "
            "Default: 5.",
        ),
    ] = None,
) -> int:
    """Resume a run until it ends or waits.

    Exit code: 0 if it is done, 1 if it failed, 3 if a person must decide.
    """
    from ferrule.runs.run import Run

    with open_store(store) as opened:
        if max_recoveries is not None:
            opened.max_recoveries = max_recoveries
        run_id = _find_run(opened, run).id
        loaded = Run.load(opened, run_id, find_program(program), deps=make_deps(deps))
        with settings.context(**model_setting(lm)):
            loaded.resume()
        # A run that could not begin, such as one without a model, keeps its status in the store.
        has_changed = loaded.status != "failed" or opened.summary(run_id).status == "failed"
    return _show_end(loaded, has_changed=has_changed)


def fork_run(
    run: _Run,
    program: Annotated[
        str,
        typer.Option(help="The program of the new run: module:attribute, or file.py:attribute."),
    ],
    at_step: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Keep the first N steps. Default: all that the run has."
        ),
    ] = None,
    at: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="Keep what came before this place, as `ferrule show` prints it.",
        ),
    ] = "",
    change: Annotated[
        list[str] | None,
        typer.Option("--input", help="A changed input, as name=value. May be repeated."),
    ] = None,
    message: Annotated[
        list[str] | None,
        typer.Option("--say", metavar="TEXT", help="A message to the agent. May be repeated."),
    ] = None,
    store: StorePlace = DEFAULT_STORE,
    lm: LM_OF_PROGRAM = None,
    deps: DEPS = None,
) -> int:
    """Begin a new run with the first steps of a run, and continue it until it ends or waits.

    These steps are not done again. Exit codes as of `ferrule resume`.
    """
    from ferrule.runs.run import Run

    with open_store(store) as opened, settings.context(**model_setting(lm)):
        original = Run.load(
            opened, _find_run(opened, run).id, find_program(program), deps=make_deps(deps)
        )
        inputs = _changed_inputs(change or (), original.inputs)
        forked = original.fork(at_step=at_step, at=at, inputs=inputs, messages=message or ())
        forked.resume()
    return _show_end(forked, has_changed=True)


def _changed_inputs(words: Iterable[str], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """`name=value` as inputs. A value is JSON, unless the input is a text by now."""
    changed: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise ConfigurationError(f"`--input` is name=value; found {word!r}.")
        changed[name] = value
        if not isinstance(inputs.get(name), str):
            changed[name] = json_or_text(value)
    return changed


def _show_end(loaded: Run[Any], *, has_changed: bool) -> int:
    """Print how an execution ended; returns the exit code."""
    if has_changed:
        write_text(f"{_shown_id(loaded.id)}: {loaded.status}")
    for question in loaded.pending:
        write_text(f"    {question.id}  {_question_text(question)}")
    if loaded.status == "done":
        write_text(json_text(loaded.prediction))
        return ExitCode.DONE
    if loaded.error is not None:
        say(f"{type(loaded.error).__name__}: {in_options(loaded.error)}")
    if loaded.status == "waiting":
        return ExitCode.WAITING
    return ExitCode.FAILED


def _stuck_runs(runs: list[Summary], store: Any, *, has_workers: bool) -> list[Summary]:
    """The runs that have work and no process, with the reason in `error`.

    Without those that only just have it, or that wait for their turn.
    """
    from ferrule.runs.store.postgres.tickets import in_turn

    now = store.now()
    if has_workers:
        waiting_for_turn = in_turn(store)
    else:
        waiting_for_turn = set[str]()
    stuck_runs: list[Summary] = []
    for run in runs:
        if run.leased or not _has_work(run):
            continue
        waited_s = now - run.updated_at
        if run.error is not None:
            stuck_runs.append(run)
        elif waited_s >= _LONG_S and run.id not in waiting_for_turn:
            stuck_runs.append(replace(run, error=_stuck_reason(run, waited_s)))
    return stuck_runs


def _has_work(run: Summary) -> bool:
    return run.status in {"queued", "running"} or (run.status == "waiting" and bool(run.decided))


def _stuck_reason(run: Summary, waited_s: float) -> str:
    match run.status:
        case "running":
            what = "Its process died"
        case "waiting":
            what = "Its question is decided"
        case _:
            what = "It is queued"
    return f"{what}, and no worker has taken it up for {waited_s:.0f} s."


def _note(run: Summary) -> str:
    """What a status alone does not say: the error, or that the process of a run is gone."""
    note = run.error
    if note is None and run.status == "running" and not run.leased:
        note = "interrupted: no process executes it; `ferrule resume` continues it"
    if note:
        return f"  ({_barred(note)})"
    return ""


def _find_run(store: Store, run_id: str) -> Summary:
    try:
        return store.summary(run_id)
    except StoreError:
        runs = {run.id: run for run in store.list(limit=None)}
        if run_id in runs:  # it is damaged
            raise
    return _choose_one(run_id, runs, "run")


def _choose_one(prefix: str | None, candidates: Mapping[str, Any], noun: str) -> Any:
    """The candidate with this id, or the only one whose id begins so.

    Without a prefix, the only candidate.
    """
    if prefix is None:
        matching = list(candidates)
    elif prefix in candidates:
        matching = [prefix]
    else:
        matching = [key for key in candidates if prefix and key.startswith(prefix)]
    if len(matching) == 1:
        return candidates[matching[0]]
    if matching and prefix is None:
        what = f"Several {noun}s wait: name one"
    elif matching:
        what = f"The id of several {noun}s begins with {prefix!r}"
    elif not candidates:
        raise StoreError(f"There is no {noun}.")
    else:
        what = f"There is no {noun} {prefix!r}; there are"
    listed = matching or list(candidates)
    ids = ", ".join(map(_shown_id, listed[:_MOST_LISTED]))
    if len(listed) > _MOST_LISTED:
        ids += f" and {len(listed) - _MOST_LISTED} more"
    raise StoreError(f"{what}: {ids}.")


def _decide(
    path: str,
    run: str,
    question: str | None,
    decide: Callable[[Question], Decision],
    *,
    asks: bool,
) -> int:
    if not asks and len(question or "") < _SHORTEST_NAME:
        raise ConfigurationError(
            f"`--yes` decides without asking, so it needs the question: `--question ID`, with at "
            f"least {_SHORTEST_NAME} characters of its id or its digest, found {question!r}. "
            "`ferrule show RUN` lists them."
        )
    with open_store(path) as store:
        summary = _find_run(store, run)
        chosen = _choose_question(question, summary.questions)
        decision = decide(chosen).signed(user_name(), "cli")
        if asks and not _is_confirmed(summary, chosen, decision):
            say("Nothing was decided.")
            return ExitCode.FAILED
        store.decide(summary.id, decision)
    decided = f"{_shown_id(summary.id)} {chosen.id}: {DECIDED[decision.kind]}."
    write_text(f"{decided} It takes effect when the run is resumed.")
    write_text(f"    {_decided_call(chosen, decision)}")
    return ExitCode.DONE


def _choose_question(name: str | None, questions: Iterable[Question]) -> Question:
    """The question whose id, or whose digest, begins so; without a name, the only one."""
    by_id = {question.id: question for question in questions}
    by_digest = {question.digest: question for question in by_id.values()}
    matching = [digest for digest in by_digest if name and digest.startswith(name)]
    if len(matching) == 1 and len(by_digest) == len(by_id):
        return by_digest[matching[0]]
    return _choose_one(name, by_id, "question")


def _is_confirmed(run: Summary, question: Question, decision: Decision) -> bool:
    """Show a person the call and the decision, and ask whether it is meant."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigurationError(
            f"There is no terminal to ask at. The run {run.id!r} asks: {reveal(question.text)} To "
            f"decide on this question without being asked, add `--yes --question {question.id}`."
        )
    say(f"{_shown_id(run.id)}  {run.program}")
    say(f"{question.id}  {_question_text(question)}")
    say(f"{DECIDED[decision.kind]}: {_decided_call(question, decision)}")
    sys.stderr.write("Is this your decision? (y/n) ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().casefold() in {"y", "yes"}


def _decided_call(question: Question, decision: Decision) -> str:
    """The call with the arguments that the decision gives it, and the words that go with it."""
    lines = [question.call.name]
    shown = decision.masked(question.secrets)
    # Whole, on a line each: a person decides on all of it.
    for name, value in {**question.call.args, **shown.args}.items():
        if name not in decision.removed:
            lines.append(f"{name} = {json_text(value)}")
    lines += [f"without {name}" for name in decision.removed]
    if decision.text:
        lines.append(f"with the text {json_text(decision.text)}")
    return _barred(reveal("\n".join(lines)))


def _run_document(run: Summary, stored: Stored) -> dict[str, Any]:
    """A run with its journal as JSON; see docs/reference/cli.md."""
    head = json.loads(stored.head)
    entries = [
        {**_shown_entry(_masked(entry)), "at": written_at}
        for entry, written_at in zip(stored.entries, stored.times, strict=True)
    ]
    return {
        **_line_document(run),
        "args": head["args"],
        "inputs": head["inputs"],
        "forked_from": _origin_document(head),
        "journal": entries,
    }


def _origin_document(head: Mapping[str, Any]) -> dict[str, str] | None:
    origin = forked_from(head)
    if origin is None:
        return None
    return {"run_id": origin.run_id, "at": origin.at}


def _run_lines(run: Summary, stored: Stored) -> Iterator[str]:
    """A run with its journal for a person."""
    yield f"{_shown_id(run.id)}  {run.status}  {run.program}{_note(run)}"
    yield f"  started {_time(run.created_at)}, last change {_time(run.updated_at)}"
    if run.title:
        yield f"  title: {_cut(run.title)}"
    if run.metadata:
        yield f"  metadata: {_cut(json_text(run.metadata))}"
    if run.usage.calls:
        yield f"  {usage_text(run.usage)}"
    head = json.loads(stored.head)
    origin = forked_from(head)
    if origin is not None:
        where = f", before {reveal(origin.at)}" if origin.at else ""
        yield f"  forked from {_shown_id(origin.run_id)}{where}"
    for name, value in head["inputs"].items():
        yield f"  {name} = {_cut(json_text(value))}"
    facts = _Facts()
    for entry, written_at in zip(map(_masked, stored.entries), stored.times, strict=True):
        kind, text = _entry_words(entry)
        yield f"  {entry['slot']:<8} {kind:<8} {_cut(text)}{facts.of(entry, written_at)}"
        if kind == "model":
            yield from _lines_of_code(entry["value"])
    if stored.entries:
        yield f"  {_LEGEND}"
    for question in run.questions:
        yield f"  {_question_line(run, question)}"
    for decision in decisions_of(stored):
        if is_message(decision):
            yield f"  not read yet: {_cut(decision.text)}"
        elif is_cancellation(decision):
            yield f"  {slot_of(decision):<8} is being cancelled"


class _Facts:
    """What each step of a run took, in time and tokens."""

    def __init__(self) -> None:
        self._before: float | None = None
        """When the entry before was written."""
        self._begun: dict[str, float] = {}

    def of(self, entry: Mapping[str, Any], written_at: float | None) -> str:
        """The facts of the next entry, in brackets."""
        kind, slot = entry["kind"], entry["slot"]
        began_at = None
        if kind == "model":
            began_at = self._before
        elif kind == "result":
            began_at = self._begun.pop(slot, None)
        elif kind == "begun" and written_at is not None:
            self._begun[slot] = written_at
        self._before = written_at
        facts: list[str] = []
        if began_at is not None and written_at is not None:
            facts.append(seconds_text(max(0.0, written_at - began_at)))
        if kind == "model":
            usage = entry["value"]["usage"]
            tokens = usage[0] + usage[1]
            if tokens:
                facts.append(f"{tokens:,} tokens")
            cost = entry["value"].get("cost")
            if cost:
                facts.append(f"${cost:.4f}")
        if not facts:
            return ""
        return f"  ({', '.join(facts)})"


def _lines_of_code(response: Mapping[str, Any]) -> Iterator[str]:
    """The code in the calls of an answer, line by line."""
    for call in response.get("tool_calls", ()):
        code = call["args"].get("code")
        if call["name"] != RUN_CODE or not isinstance(code, str):
            continue
        for number, line in numbered_lines(code):
            yield f"      | {number:3} {reveal(line)[:160]}"


def _line_document(run: Summary) -> dict[str, Any]:
    """One line of the list as JSON data; see docs/reference/cli.md."""
    document: dict[str, Any] = {
        **jsonable(run),
        "usage": usage_document(run.usage),
        "cost": run.cost,
    }
    for form, question in zip(document["questions"], run.questions, strict=True):
        form["shown"] = jsonable(view_call(question))
    return document


def _masked(text: str) -> dict[str, Any]:
    """A stored entry with stars for secrets."""
    entry: dict[str, Any] = json.loads(text)
    if entry.pop("secrets", None):
        entry = entry_form(read_entry(text).shown())
        del entry["secrets"]
    return entry


def _shown_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry without what only ferrule needs: data for the provider, and the key of a call."""
    value: Any = entry["value"]
    if entry["kind"] == "model":
        hidden = {"extra", "others"}
    elif entry["kind"] == "begun" and isinstance(value, dict):
        hidden = {"key"}
    else:
        return entry
    fields = cast("dict[str, Any]", value)
    return {**entry, "value": {name: fields[name] for name in fields if name not in hidden}}


def _entry_words(entry: Mapping[str, Any]) -> tuple[str, str]:
    """The kind of an entry, and what it holds."""
    value, kind, digest = entry["value"], entry["kind"], str(entry["digest"])
    if kind == "once" and digest.startswith("policy "):
        return "policy", _rulings_text(json.loads(digest.removeprefix("policy ")), value)
    if Slot(entry["slot"]).is_later:
        return "waits", str(value["text"])
    # The time when the question there counts as denied.
    if kind == "once" and isinstance(value, float) and entry["slot"].endswith("?"):
        question_id, _, call = digest.partition(" ")
        return "question", f"{question_id} until {_time(value)}: {call}"
    return kind, _entry_text(kind, value, digest)


def _rulings_text(calls: list[Any], rulings: list[Any]) -> str:
    """What a policy ruled on calls; it does not rule on each."""
    texts: list[str] = []
    for call, ruling in zip(calls, rulings, strict=False):
        if ruling is None:
            continue
        verdict, reason = ruling[:2]
        text = f"{verdict} {call[0]}"
        if reason:
            text += f": {reason}"
        texts.append(text)
    return "; ".join(texts)


def _call_text(call: Mapping[str, Any]) -> str:
    text = call_text(call["name"], call["args"])
    if FROM_TEXT in call.get("repairs", ()):
        text += " (read from text)"
    if call.get("confidence") is not None:
        text += f" (confidence {call['confidence']:.2f})"
    return text


def _entry_text(kind: str, value: Any, digest: str) -> str:
    match kind:
        case "model":
            calls = [_call_text(call) for call in value.get("tool_calls", ())]
            return " ".join([value.get("text") or "", *calls]).strip()
        case "failure":
            return f"{value['type']}: {value['text']}"
        case "limit":
            return f"the limit {value['name']} = {value['limit']} is reached"
        case "begun":
            return digest
        case "result":
            content = value["content"]
            if not isinstance(content, str):
                content = json_text(content)
            if value.get("is_error"):
                verb = "failed"
            else:
                verb = "returned"
            place = place_in_code(value.get("call_id"))
            if place is not None:
                verb += f" to line {place.line}"
            return f"{value['name']} {verb}: {content}"
        case "decision":
            return _decision_text(value, digest)
        case "once":
            return f"{digest.partition(' ')[0]} = {json_text(value)}"
        case _:
            return json_text(value)


def _decision_text(decision: Mapping[str, Any], digest: str) -> str:
    words = [decision["kind"]]
    if decision["args"]:
        words.append(f"with {json_text(decision['args'])}")
    if decision.get("removed"):
        words.append(f"without {', '.join(decision['removed'])}")
    if decision["text"]:
        words.append(decision["text"])
    if decision["by"]:
        words.append(f"by {decision['by']}")
    if decision["via"]:
        words.append(f"via {decision['via']}")
    if decision["at"]:
        words.append(f"at {_time(decision['at'])}")
    text = " ".join(words)
    # The call is last, so that a long one does not cut off the name of the person.
    _, _, call = digest.partition(" ")
    if call:
        return f"{text}: {call}"
    return text


def _time(seconds: float) -> str:
    if seconds > LAST_TIME:
        return f"{seconds:.0e} seconds after 1970"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _question_line(run: Summary, question: Question) -> str:
    if question.id in run.decided:
        state = "decided"
    else:
        state = "waiting"
    return f"{question.id}  {state}  {_question_text(question)}"


def _question_text(question: Question) -> str:
    # A person decides on exactly this text, so it shows invisible characters by their numbers.
    return _barred(reveal(question.text))


def _barred(text: str) -> str:
    """The text with a bar before each further line: none of them looks like a line of the list."""
    return text.replace("\n", "\n      | ")


def _shown_id(run_id: str) -> str:
    """An id on one line. Any text may be an id."""
    return reveal(run_id).replace("\n", "\\u000a").replace("\t", "\\u0009")


def _cut(text: str) -> str:
    return one_line(reveal(text), 160)
