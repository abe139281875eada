"""The commands `ferrule tools`, `lint` and `serve`; and the arguments that commands share."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import redirect_stdout
from functools import partial
from hmac import compare_digest
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from msgspec.structs import asdict
from rich.text import Text

from ferrule.cli.arguments import find_attribute, find_program, load_tools, open_servers
from ferrule.cli.exit_code import ExitCode
from ferrule.cli.screen import console_on, print_json, say
from ferrule.cli.stores import sqlite_place
from ferrule.encoding.safe_text import one_line, printable
from ferrule.errors import ConfigurationError, DuplicateToolError
from ferrule.net.loopback import is_loopback
from ferrule.programs.module import Module
from ferrule.schema.lowering.lower import TARGETS, SchemaLoss, Target, lower_tools
from ferrule.tools.definition.attributes import describe_confirmation
from ferrule.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from ferrule.tools.tool import Tool

PLACES = Annotated[
    list[str] | None,
    typer.Argument(help=".py files, folders, or module[:name]. Default: four sample tools."),
]
MCP = Annotated[
    list[str] | None,
    typer.Option(
        "--mcp",
        help="An MCP server: a command line, a URL, or an editor's JSON file. May be repeated.",
    ),
]
JSON = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document on standard output, and nothing else."),
]
LM_OF_PROGRAM = Annotated[
    str | None,
    typer.Option(
        "--lm", help="The model, as provider/model. Default: the model that the program sets."
    ),
]
DEPS = Annotated[
    str | None,
    typer.Option(
        "--deps",
        help="What tools get as `ctx.deps`: module:factory, where factory is a function without "
        "arguments, or a value.",
    ),
]
_NO_DESCRIPTION = "the model has only the name to go by: write a docstring"
_FOLDERS = re.compile(r".*[./\\]")
_TOKEN_VARIABLE = "FERRULE_SERVE_TOKEN"  # noqa: S105  a name
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""RFC 6750, section 2.1."""
_EVERY_MODEL = "every model"
Loss = tuple[Target | Literal["every model"], str, SchemaLoss]
"""A target, the name of a tool, and what the tool's schema loses there."""


def list_tools(places: PLACES = None, as_json: JSON = False, mcp: MCP = None) -> int:
    """List tools.

    For each: what a call changes, when it asks a person, and the schema of the arguments.
    """
    with open_servers(mcp or (), trusted=False, alone=not places) as servers:
        own_tools: list[Tool] = []
        if places or not servers:
            own_tools = load_tools(places or ())
        toolbox = Toolbox([*servers, *own_tools])
        declarations = toolbox.declarations
        if servers and not own_tools and all(server.is_away for server in servers):
            return ExitCode.FAILED
    if as_json:
        return print_json(list(declarations))
    console = console_on(sys.stdout)
    for tool in toolbox:
        console.print(Text(printable(tool.name), "bold cyan"))
        console.print(Text(indent(printable(str(tool.desc or "")), "  ")), soft_wrap=True)
        asks = describe_confirmation(tool.require_confirmation)
        console.print(
            Text(f"  effect: {tool.effect}; asks a person: {asks}", "dim"), soft_wrap=True
        )
        schema = printable(json.dumps(tool.parameters, indent=2, ensure_ascii=False))
        console.print(Text(indent(schema, "  "), "dim"), soft_wrap=True)
    return ExitCode.DONE


def lint_tools(
    places: PLACES = None,
    target: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(TARGETS)}. May be repeated. Default: all.")
    ] = None,
    as_json: JSON = False,
) -> int:
    """Show what providers do not enforce in schemas, and which tools have no description.

    Exit code: 0 if nothing is lost, 1 if something is.
    """
    targets = choose_targets(target or ())
    losses = find_losses(places or (), targets)
    if as_json:
        print_json(
            [{"target": target, "tool": tool, **asdict(loss)} for target, tool, loss in losses]
        )
    else:
        _print_losses(console_on(sys.stdout), losses, targets)
    return ExitCode.FAILED if losses else ExitCode.DONE


def choose_targets(names: Sequence[str]) -> tuple[Target, ...]:
    """The targets with these names; all without names.

    Raises `ConfigurationError` for an unknown name.
    """
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        raise ConfigurationError(
            f"There is no target {unknown[0]!r}; there are: {', '.join(TARGETS)}."
        )
    return tuple(target for target in TARGETS if target in names or not names)


def find_losses(places: Sequence[str], targets: Sequence[Target]) -> list[Loss]:
    """What the tools of these places lose: with every model, then target by target."""
    toolbox = Toolbox(load_tools(places))
    own_names = {tool.wire_name: tool.name for tool in toolbox}
    all_losses: list[Loss] = [
        (_EVERY_MODEL, tool.name, SchemaLoss("", "description", _NO_DESCRIPTION))
        for tool in toolbox
        if not str(tool.desc or "").strip()
    ]
    for target in targets:
        for name, losses in lower_tools(toolbox.declarations, target).losses.items():
            for loss in losses:
                all_losses.append((target, own_names[name], loss))
    return all_losses


def _print_losses(console: Console, losses: Sequence[Loss], targets: Sequence[Target]) -> None:
    sections: list[str] = [*targets]
    if any(target == _EVERY_MODEL for target, _, _ in losses):
        sections.insert(0, _EVERY_MODEL)
    for target in sections:
        console.print(Text(target, "bold cyan"))
        lines = [_loss_line(tool, loss) for other, tool, loss in losses if other == target]
        for line in lines or ["  nothing is lost"]:
            console.print(Text(line), soft_wrap=True)


def _loss_line(tool: str, loss: SchemaLoss) -> str:
    path = one_line(loss.path) or "the whole"
    return f"  {printable(tool)}  {path}  {loss.keyword}: {one_line(loss.lost)}"


def serve_tools(
    places: Annotated[
        list[str] | None,
        typer.Argument(
            help=".py files, folders, module[:name], or file.py:program. "
            "Default: four sample tools."
        ),
    ] = None,
    http: Annotated[
        bool, typer.Option("--http", help="Serve over HTTP instead of standard input and output.")
    ] = False,
    host: Annotated[str, typer.Option(help="The address to listen on with --http.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on with --http.")] = 8000,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="A host name that requests may use. May be repeated.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="The bearer token of clients. Other users can see it: "
            f"{_TOKEN_VARIABLE} or --token-file hides it."
        ),
    ] = None,
    token_file: Annotated[str | None, typer.Option(help="A file that holds the token.")] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Answer other machines without a token.")
    ] = False,
    name: Annotated[str, typer.Option(help="The server's name.")] = "ferrule",
    mask_errors: Annotated[
        bool, typer.Option("--mask-errors", help="Hide from clients why a tool failed.")
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(
            help="A SQLite file for the runs of programs, so that clients' tasks continue "
            "after a restart."
        ),
    ] = None,
) -> int:
    """Serve tools and programs to MCP clients.

    The transport is standard input and output or, with --http, HTTP.
    """
    from ferrule.mcp_bridge.server.app import MCPApp
    from ferrule.runs.store.sqlite.store import SQLiteStore

    verify_token = None
    if http:
        verify_token = _token_check(host, token, token_file, no_token=no_token)
    elif token is not None or token_file is not None or no_token:
        raise ConfigurationError("A token is for HTTP: add `--http`.")
    with redirect_stdout(sys.stderr):  # what the files print while they load
        served = _served(places or ())
    run_store = None
    if store is not None:
        run_store = SQLiteStore(sqlite_place(store, "serve"))
    try:
        app = MCPApp(served, name=name, mask_errors=mask_errors, store=run_store)
    except DuplicateToolError as error:
        problem = str(error).partition(". ")[0]
        raise DuplicateToolError(
            f"{problem}: name each place once, and tools of several files as `module:name`."
        ) from error
    if not http:
        app.run()
        return ExitCode.DONE

    def announce(address: str) -> None:
        say(f"Serving {len(app.names)} tools on {address}. Ctrl-C ends it.")
        if token is not None:
            say(
                "Note: other users of this machine can see a token on the command line. "
                f"{_TOKEN_VARIABLE} or --token-file hides it."
            )

    app.run(
        "http",
        host=host,
        port=port,
        allowed_hosts=allowed_host,
        on_listening=announce,
        verify_token=verify_token,
    )
    return ExitCode.DONE


def _token_check(
    host: str, token: str | None, token_file: str | None, *, no_token: bool
) -> Callable[[str], bool] | None:
    """The check of a client's token; None if every client is served.

    Raises `ConfigurationError` if other machines could call without a token.
    """
    expected = _read_token(token, token_file)
    if expected is not None:
        if no_token:
            raise ConfigurationError("`--no-token` and a token exclude each other.")
        return partial(_is_token, expected)
    if not no_token and not is_loopback(host):
        msg = (
            f"Other machines can reach `{host}`, and there is no token. "
            f"Set `{_TOKEN_VARIABLE}` or pass `--token-file`; `--no-token` serves everyone."
        )
        raise ConfigurationError(msg)
    return None


def _read_token(token: str | None, token_file: str | None) -> str | None:
    """The token of `--token`, of the file, or else of the environment.

    It leaves the environment, so that the processes of tools do not inherit it.
    """
    inherited = os.environ.pop(_TOKEN_VARIABLE, None)
    if token is not None and token_file is not None:
        raise ConfigurationError("`--token` and `--token-file` exclude each other.")
    if token is not None:
        source = "--token"
    elif token_file is not None:
        source = token_file
        try:
            token = Path(token_file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"The token file {token_file!r} cannot be read: {error}"
            ) from error
    else:
        source = _TOKEN_VARIABLE
        token = inherited or None
    if token is not None and not _TOKEN.fullmatch(token):
        msg = (
            f"The token of `{source}` is not a bearer token: "
            "write letters, digits and `-._~+/` without blanks."
        )
        raise ConfigurationError(msg)
    return token


def _is_token(expected: str, sent: str) -> bool:
    return compare_digest(sent.encode(), expected.encode())


def _served(places: Sequence[str]) -> list[Any]:
    """The tools and programs of these places; without any, the sample tools."""
    served: list[Any] = []
    for place in places:
        served += _tools_or_program(place, _served_name(place, places))
    return served or load_tools(())


def _served_name(place: str, places: Sequence[str]) -> str:
    """The name of what is at `module:name` or `file.py:name`.

    With the name of the file before it, if another place has the same name.
    """
    file, _, name = place.rpartition(":")
    is_unique = all(other == place or other.rpartition(":")[2] != name for other in places)
    if is_unique:
        return name
    stem = _FOLDERS.sub("", file.removesuffix(".py"))
    return f"{stem}_{name}"


def _tools_or_program(place: str, served_name: str) -> list[Any]:
    """The tools of a place, or the one program or tool at `module:name` or `file.py:name`.

    A single one is served under `served_name`.
    """
    from ferrule.mcp_bridge.server.tools import serve_one

    module, _, name = place.rpartition(":")
    if module.endswith(".py"):
        return [serve_one(find_program(place), served_name)]
    is_module_name = bool(module) and "/" not in module and "\\" not in module
    if is_module_name:
        value = find_attribute(place, "tool")
        if isinstance(value, Module):
            return [serve_one(cast("Module", value), served_name)]
    tools = load_tools([place])
    if served_name != name and len(tools) == 1:
        return [serve_one(tools[0], served_name)]
    return list(tools)
