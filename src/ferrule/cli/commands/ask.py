"""The commands `ferrule ask`, `tools` and `lint`; `serve` and those on kept runs stand in modules of their own.

Exit codes: 0 answered, 1 the run failed or `lint` found a loss, 2 the command line is wrong, 3 a person must decide and none is there,
130 interrupted.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ferrule import settings
from ferrule.cli import arguments as choose
from ferrule.cli.commands import lint
from ferrule.cli.commands import runs as runs_commands
from ferrule.cli.commands.serve import serve
from ferrule.cli.follow import carry
from ferrule.cli.prompt import ask_person
from ferrule.cli.safe_text import one_line, plain
from ferrule.cli.screen import Screen, console_on
from ferrule.errors import ConfigurationError, FerruleError, MCPError
from ferrule.programs.react import ReAct
from ferrule.tools.toolbox import Toolbox
from ferrule.values.encoding.encode import jsonable
from ferrule.values.schema.lowering.lower import TARGETS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferrule.runs.run import Run
    from ferrule.values.run.event import Event
    from ferrule.values.run.outcome import Prediction

ANSWERED, FAILED, WRONG, WAITING, INTERRUPTED = 0, 1, 2, 3, 130
_BESIDE = ("trajectory", "usage", "reason")
"""What stands beside the outputs in the JSON document."""


def _exit(code: int, **_: Any) -> None:
    raise typer.Exit(code)


app = typer.Typer(
    name="ferrule",
    result_callback=_exit,
    help="Ask a language model that may use your tools.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_Places = Annotated[
    list[str] | None,
    typer.Option("--tools", help="A .py file, a folder, or module[:name] with tools. May be repeated. Default: the demo's."),
]
_Servers = Annotated[
    list[str] | None,
    typer.Option("--mcp", help="An MCP server: a command line, an address, or a JSON file of `mcpServers`. May be repeated."),
]


def run(arguments: Sequence[str]) -> int:
    """Run the command line; returns its exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)  # a file of tools that was passed over; nobody should miss it
        warnings.showwarning = _notice  # a line for a person, without the place in the source
        try:
            app(list(arguments), prog_name="ferrule")
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else FAILED
    return ANSWERED


def _notice(message: Warning | str, *_: Any, **__: Any) -> None:
    _say(f"Note: {message}")


@app.command()
def ask(  # noqa: PLR0917  one parameter an option
    question: Annotated[str, typer.Argument(help="What you want to know; the first input of the signature.")],
    tools: _Places = None,
    signature: Annotated[str, typer.Option(help="What goes in and what comes out.")] = "question -> answer",
    inputs: Annotated[list[str] | None, typer.Option("--input", help="A further input, as name=value. May be repeated.")] = None,
    lm: Annotated[str | None, typer.Option(help="The model, as provider/model. Default: OfflineLM, rules that need no key.")] = None,
    base_url: Annotated[str | None, typer.Option(help="Where the model of --lm listens, if not at its provider's.")] = None,
    adapter: Annotated[
        str | None, typer.Option(help="chat, json, xml (the calls stand in the text), or native. Default: what the model can.")
    ] = None,
    max_iters: Annotated[int, typer.Option(min=1, help="At most so many steps.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else, on standard output.")] = False,
    mcp: _Servers = None,
    yes: Annotated[bool, typer.Option("--yes", help="Trust the servers of --mcp: nobody is asked before their tools run.")] = False,
) -> int:
    """Answer a question with tools, and show each step as it happens."""
    with choose.servers(mcp or (), trusted=yes) as servers:
        if servers and yes:
            _say(f"With --yes, the tools of {', '.join(each.name for each in servers)} run without asking anybody.")
        asked = (lm, base_url, adapter)
        return _asked(question, (tools or (), servers), signature, inputs or (), asked, max_iters=max_iters, as_json=as_json)


def _asked(
    question: str,
    given: tuple[Sequence[str], Sequence[Any]],
    signature: str,
    inputs: Sequence[str],
    model: tuple[str | None, str | None, str | None],
    *,
    max_iters: int,
    as_json: bool,
) -> int:
    (places, servers), (lm, base_url, adapter) = given, model
    try:
        shaping, native = choose.adapter(adapter)
        own = choose.tools(places) if places or not servers else []
        native = True if lm is None else native  # `OfflineLM` calls declared tools only
        agent = ReAct(signature, [*servers, *own], max_iters, native=native)
        values = choose.inputs(agent.signature, question, inputs)
        if as_json and (taken := [name for name in agent.signature.output_fields if name in _BESIDE]):
            msg = f"With --json an output cannot be called `{taken[0]}`: the document has that beside the outputs. Choose another name."
            raise ConfigurationError(msg)
        with choose.model(lm, base_url) as asked:
            if lm is None:
                _say(choose.OFFLINE)
            with settings.context(lm=asked, adapter=shaping):
                return _shown(agent, values, as_json=as_json)
    except choose.WRONG as error:
        return _say(str(error), WRONG)
    except KeyboardInterrupt:
        return _say("\nInterrupted.", INTERRUPTED)


@app.command("tools")
def list_tools(
    places: Annotated[list[str] | None, typer.Argument(help=".py files, folders, or module[:name]. Default: the demo's tools.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the declarations as models get them, as one JSON document.")] = False,
    mcp: _Servers = None,
) -> int:
    """List tools and the schemas of their arguments."""
    try:
        with choose.servers(mcp or (), trusted=False) as servers:
            own = choose.tools(places or ()) if places or not servers else []
            toolbox = Toolbox([*servers, *own])
            _ = toolbox.tools
            for server in servers:
                for each in (*server.dropped, *server.findings):
                    _say(f"Note: {server.name}: {each.reason if hasattr(each, 'reason') else each.what}")
    except choose.WRONG as error:
        return _say(str(error), WRONG)
    except MCPError as error:
        return _say(str(error), FAILED)
    if as_json:
        return _print_json([tool.declaration for tool in toolbox])
    console = console_on(sys.stdout)
    for tool in toolbox:
        console.print(Text(plain(tool.name), "bold cyan"))
        console.print(Text(_indented(plain(str(tool.desc or "")))), soft_wrap=True)
        console.print(Text(_indented(_json_text(tool.parameters)), "dim"), soft_wrap=True)
    return ANSWERED


@app.command("lint")
def lint_tools(
    places: Annotated[list[str] | None, typer.Argument(help=".py files, folders, or module[:name]. Default: the demo's tools.")] = None,
    target: Annotated[list[str] | None, typer.Option(help=f"{', '.join(TARGETS)}. May be repeated. Default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, a list of objects, one a loss.")] = False,
) -> int:
    """Tell what the schemas of tools lose at a provider, per tool and path. Exit status: 0 if nothing is lost, 1 if something is."""
    try:
        asked = lint.targets(target or ())
        found = lint.findings(places or (), asked)
    except choose.WRONG as error:
        return _say(str(error), WRONG)
    if as_json:
        _print_json(lint.document(found))
    else:
        lint.show(console_on(sys.stdout), found, asked)
    return FAILED if found else ANSWERED


app.command("serve")(serve)
runs_commands.add_to(app)


def _shown(agent: ReAct, values: dict[str, Any], *, as_json: bool) -> int:
    """Carry the run out, show it, and tell the exit code."""
    console = console_on(sys.stderr if as_json else sys.stdout)
    screen = Screen(console)
    somebody = sys.stdin is not None and sys.stdin.isatty() and console.file.isatty()
    ended = carry(agent, values, hear=_nothing if as_json else screen.heard, ask=partial(ask_person, console=console) if somebody else None)
    match ended.status:
        case "done" if as_json:
            return _print_json(_document(ended.prediction))
        case "done":
            screen.outputs(ended.prediction)
            return ANSWERED
        case "waiting":
            for pending in ended.pending:
                _say(f"Waiting for a person: {one_line(pending.text, 2_000)}")
            return _say("Nobody is here to decide, so the call was not run. Ask again at a terminal.", WAITING)
        case _:
            return _say(_failure(ended), FAILED)


def _nothing(event: Event) -> None:
    del event


def _document(prediction: Prediction) -> dict[str, Any]:
    usage = prediction.usage
    counted = {name: getattr(usage, name) for name in ("input_tokens", "output_tokens", "cached_tokens", "calls")}
    return {**prediction, "trajectory": dict(prediction.trajectory), "usage": counted, "reason": prediction.reason}


def _failure(ended: Run) -> str:
    error = ended.error
    kind = "" if error is None or isinstance(error, FerruleError) else f"{type(error).__name__}: "
    return f"The run failed. {kind}{error}"


def _print_json(document: Any) -> int:
    import json

    # ASCII: it arrives whole whatever the encoding of standard output, and holds no control character.
    print(json.dumps(jsonable(document), indent=2))
    return ANSWERED


def _json_text(value: Any) -> str:
    import json

    return plain(json.dumps(jsonable(value), indent=2, ensure_ascii=False))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" if line else "" for line in text.split("\n"))


def _say(message: str, code: int = ANSWERED) -> int:
    print(plain(message), file=sys.stderr)
    return code
