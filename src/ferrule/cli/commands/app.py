"""All commands of `ferrule`, and the exit codes of their errors."""

from __future__ import annotations

import sys
import warnings
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferrule.cli.arguments import USAGE_ERRORS
from ferrule.cli.commands import runs
from ferrule.cli.commands.ask import ask_question
from ferrule.cli.commands.cases import make_cases
from ferrule.cli.commands.chat import chat_with
from ferrule.cli.commands.logins import mcp_app
from ferrule.cli.commands.migrate import migrate_app
from ferrule.cli.commands.rules import rules_app
from ferrule.cli.commands.skill import skill_app
from ferrule.cli.commands.tools import lint_tools, list_tools, serve_tools
from ferrule.cli.commands.ui import show_page
from ferrule.cli.commands.worker import run_worker
from ferrule.cli.exit_code import ExitCode
from ferrule.cli.screen import in_options, say
from ferrule.errors import FerruleError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_COMMANDS = {
    "ask": ask_question,
    "chat": chat_with,
    "tools": list_tools,
    "lint": lint_tools,
    "serve": serve_tools,
    "runs": runs.list_runs,
    "show": runs.show_run,
    "approve": runs.approve_call,
    "deny": runs.deny_call,
    "reply": runs.reply_to_question,
    "deliver": runs.deliver_to_call,
    "say": runs.say_to_run,
    "cancel": runs.cancel_run,
    "resume": runs.resume_run,
    "fork": runs.fork_run,
    "cases": make_cases,
    "ui": show_page,
    "worker": run_worker,
}


def _exit(code: int, **_: Any) -> None:
    raise typer.Exit(code)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"ferrule {version('ferrule')}\n")
        raise typer.Exit


def _options(
    _: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Run agents that call your tools, and manage their stored runs."""


app = typer.Typer(
    name="ferrule",
    callback=_options,
    epilog='Start with: ferrule ask "How many days are there between 2026-01-01 and 2026-12-24?"',
    result_callback=_exit,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
app.add_typer(mcp_app, name="mcp")
app.add_typer(rules_app, name="rules")
app.add_typer(migrate_app, name="migrate")
app.add_typer(skill_app, name="skill")


@cache
def _parser() -> Callable[..., Any]:
    """The parser of all commands. Calling `app` would make it again for each command line."""
    return typer.main.get_command(app)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)  # files of tools that could not be loaded
        warnings.showwarning = _print_warning
        try:
            _parser()(list(arguments), prog_name="ferrule")
        except SystemExit as ended:
            if ended.code == ExitCode.INTERRUPTED:
                say("\nInterrupted.")
            if isinstance(ended.code, int):
                return ended.code
            return ExitCode.FAILED
        except FerruleError as error:
            is_usage_error = isinstance(error, USAGE_ERRORS)
            if is_usage_error:
                code = ExitCode.USAGE
            else:
                code = ExitCode.FAILED
            return say(in_options(error), code)
        except OSError as error:
            # A file that this user may not read, or a disk without room for the output.
            return say(f"The command stopped: {error}", ExitCode.FAILED)
    return ExitCode.DONE


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    say(f"Note: {message}")
