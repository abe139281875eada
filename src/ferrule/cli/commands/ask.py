"""The command `ferrule ask`: run a program, show its events, and ask the person when it waits."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferrule import settings
from ferrule.cli import arguments as parse

# Typer reads annotations at run time.
from ferrule.cli.commands.tools import DEPS, JSON, MCP  # noqa: TC001
from ferrule.cli.exit_code import ExitCode
from ferrule.cli.prompt import ask_at_terminal
from ferrule.cli.screen import Screen, console_on, in_options, print_json, say, usage_document
from ferrule.cli.stores import sqlite_place
from ferrule.encoding.safe_text import one_line, reveal
from ferrule.errors import ConfigurationError, FerruleError
from ferrule.programs.react import ReAct
from ferrule.runs.about import read_pairs, refuse_about
from ferrule.runs.run import Run
from ferrule.runs.store.sqlite.store import SQLiteStore
from ferrule.runs.stream import EventStream

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from ferrule.approval.question import Decision, Question
    from ferrule.events import Event
    from ferrule.tools.tool import Tool
    from ferrule.values.outcome import Prediction

_RESERVED = ("trajectory", "usage", "reason")
"""Keys that the JSON document has besides the outputs."""


def ask_question(
    question: Annotated[
        str,
        typer.Argument(
            help="The question: the first input of the signature. `-` reads standard input."
        ),
    ],
    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tools",
            help="A .py file, a folder, or module[:name] with tools. May be repeated. "
            "Default: four sample tools.",
        ),
    ] = None,
    signature: Annotated[str, typer.Option(help="The inputs and outputs.")] = "question -> answer",
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="Another input, as name=value. May be repeated."),
    ] = None,
    lm: Annotated[
        str | None,
        typer.Option(
            help="The model, as provider/model. Default: the embedded one, which needs no key."
        ),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="The address of the model's server. Default: its provider's.")
    ] = None,
    text_calls: Annotated[
        str | None,
        typer.Option(
            help="Whether calls in the text of its answers are read: never, rescue or always. "
            "Default: by the model."
        ),
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            help="chat, json, xml (calls in the text), or native. Default: what the model supports."
        ),
    ] = None,
    max_iters: Annotated[int, typer.Option(min=1, help="The maximum number of steps.")] = 20,
    as_json: JSON = False,
    mcp: MCP = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Run tools of --mcp servers without confirmation.")
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(
            "--store", help="Keep the run in this SQLite file, for `ferrule show` and others."
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="RUN", help="Continue this run of --store with these tools."
        ),
    ] = None,
    deps: DEPS = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata",
            metavar="NAME=VALUE",
            help="Who and what the run is for; no model sees it. May be repeated.",
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="The title of the run, for lists.")] = None,
) -> int:
    """Answer a question with tools, and show each step as it happens."""
    chosen_adapter, native = parse.choose_adapter(adapter)
    with parse.open_servers(mcp or (), trusted=yes, alone=not tools) as servers:
        if servers and yes:
            names = ", ".join(server.name for server in servers)
            say(f"--yes: the tools of {names} run without confirmation.")
        own_tools: list[Tool] = []
        if tools or not servers:
            own_tools = parse.load_tools(tools or ())
        agent = ReAct(signature, [*servers, *own_tools], max_iters, native=native)
        values = parse.parse_inputs(agent.signature, question, inputs or ())
        if as_json:
            _refuse_reserved(agent.signature.plan.outputs)
        model = parse.choose_model(lm, base_url, text_calls)
        with settings.context(lm=model, adapter=chosen_adapter):
            if lm is None:
                say(parse.EMBEDDED_NOTE)
            options = {"deps": parse.make_deps(deps)}
            if metadata:
                options["metadata"] = read_pairs(metadata)
            if title is not None:
                options["title"] = title
            with _open_stream(agent, values, store, resume, options) as stream:
                return _run(stream, store, as_json=as_json)


def _refuse_reserved(outputs: Iterable[str]) -> None:
    for name in outputs:
        if name in _RESERVED:
            msg = (
                f"With --json, an output cannot be named `{name}`: the document uses this key. "
                "Choose another name."
            )
            raise ConfigurationError(msg)


@contextmanager
def _open_stream(
    agent: ReAct,
    values: dict[str, Any],
    store: str | None,
    run_id: str | None,
    options: dict[str, Any],
) -> Generator[EventStream]:
    """The stream of a new run, or of the run with this id in the file `store`.

    A new run is kept in `store`, if there is one. `options` are its `deps`, `metadata` and `title`.
    """
    if run_id is not None:
        # A stored run has its metadata and its title already.
        refuse_about({name: value for name, value in options.items() if name != "deps"})
    if store is None:
        if run_id is not None:
            raise ConfigurationError(
                "`--resume` needs the file that holds the run: add `--store FILE`."
            )
        yield agent.bind(**values).stream(**options)
        return
    if run_id is not None and not Path(store).is_file():
        raise ConfigurationError(f"There is no file {store!r} with runs to resume.")
    sqlite = SQLiteStore(sqlite_place(store, "ask"))
    try:
        if run_id is None:
            yield agent.bind(**values).stream(store=sqlite, **options)
        else:
            yield EventStream(Run.load(sqlite, run_id, agent, deps=options["deps"]))
    finally:
        sqlite.close()


def _run(stream: EventStream, store: str | None, *, as_json: bool) -> int:
    """Execute the run of a stream and show it; returns the exit code."""
    console = console_on(sys.stderr if as_json else sys.stdout)
    screen = Screen(console)
    on_event = screen.draw
    if as_json:
        on_event = _ignore
    ask = None
    if sys.stdin is not None and sys.stdin.isatty() and console.file.isatty():
        ask = partial(ask_at_terminal, console=console)
    run = follow_stream(stream, on_event=on_event, ask=ask)
    if store is not None:
        file = quote(store)  # the person copies the command
        say(f"Run {run.id} is kept in {file}: ferrule show {run.id} --store {file}")
    match run.status:
        case "done" if as_json:
            return print_json(_document(run.prediction))
        case "done":
            screen.draw_outputs(run.prediction)
            return ExitCode.DONE
        case "waiting":
            reason = "The input ended without a decision"
            if ask is None:
                reason = "This is not a terminal"
            return _say_waiting(run, store, reason)
        case _:
            return say(f"The run failed. {failure_text(run.error)}", ExitCode.FAILED)


def _say_waiting(run: Run, store: str | None, reason: str) -> int:
    """Say what the run waits for, and how to go on; returns the exit code."""
    for question in run.pending:
        say(f"Waiting for a person: {one_line(reveal(question.text), 2_000)}")
    remedy = "Run the command again at a terminal."
    if store is not None:
        remedy = (
            f"Decide with `ferrule approve {run.id} --store {quote(store)}` "
            f"and repeat the command with --resume {run.id}."
        )
    return say(f"{reason}, so the call was not run. {remedy}", ExitCode.WAITING)


def failure_text(error: BaseException | None) -> str:
    """What a person reads of the error that ended a run."""
    if error is None:
        return ""
    if isinstance(error, FerruleError):
        return in_options(error)
    return f"{type(error).__name__}: {in_options(error)}"


def _ignore(event: Event) -> None:
    """Show nothing: with `--json`, only the document is printed."""


def follow_stream(
    stream: EventStream,
    *,
    on_event: Callable[[Event], None],
    ask: Callable[[Question], Decision | None] | None = None,
) -> Run:
    """Execute the run of a stream, and ask a person whenever it waits.

    Returns it when it is `done` or `failed`, or `waiting` without a decision. Raises only
    interrupts; `run.error` holds other errors.
    """
    run = stream.run
    while True:
        _consume(stream, on_event)
        if run.status != "waiting" or ask is None:
            return run
        for question in run.pending:
            decision = ask(question)
            if decision is None:
                return run
            run.answer(decision)
        stream = EventStream(run)


def _consume(stream: EventStream, on_event: Callable[[Event], None]) -> None:
    """Take all events of a stream. An error that ended its run is not raised: the run has it."""
    try:
        for event in stream:
            on_event(event)
    except BaseException as error:
        if error is stream.run.error and isinstance(error, Exception):
            return
        raise


def _document(prediction: Prediction) -> dict[str, Any]:
    usage = usage_document(prediction.usage)
    return {
        **prediction,
        "trajectory": dict(prediction.trajectory),
        "usage": usage,
        "reason": prediction.reason,
    }
