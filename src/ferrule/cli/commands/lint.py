"""The command `ferrule lint`: what the schemas of tools lose at each provider."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ferrule.cli.arguments import load_tools
from ferrule.cli.commands.tools import JSON, PLACES  # noqa: TC001  typer reads annotations at run time
from ferrule.cli.exit_code import ExitCode
from ferrule.cli.safe_text import one_line, printable
from ferrule.cli.screen import console_on, print_json
from ferrule.errors import ConfigurationError
from ferrule.tools.toolbox import Toolbox
from ferrule.values.record import fields_of
from ferrule.values.schema.lowering.lower import TARGETS, SchemaLoss, Target, lower_tools

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

Loss = tuple[Target, str, SchemaLoss]
"""A target, the name of a tool, and what the tool's schema loses there."""


def lint_tools(
    places: PLACES = None,
    target: Annotated[list[str] | None, typer.Option(help=f"{', '.join(TARGETS)}. May be repeated. Default: all.")] = None,
    as_json: JSON = False,
) -> int:
    """Show what tools' schemas lose at a provider, per tool and path. Exit status: 0 if nothing is lost, 1 if something is."""
    targets = choose_targets(target or ())
    losses = find_losses(places or (), targets)
    if as_json:
        print_json([_as_dict(loss) for loss in losses])
    else:
        _print_losses(console_on(sys.stdout), losses, targets)
    return ExitCode.FAILED if losses else ExitCode.DONE


def choose_targets(names: Sequence[str]) -> tuple[Target, ...]:
    """The targets with these names; all without names. Raises `ConfigurationError` for an unknown name."""
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        msg = f"There is no target {unknown[0]!r}; there are: {', '.join(TARGETS)}."
        raise ConfigurationError(msg)
    return tuple(target for target in TARGETS if target in names or not names)


def find_losses(places: Sequence[str], targets: Sequence[Target]) -> list[Loss]:
    """What the tools of these places lose, target by target."""
    toolbox = Toolbox(load_tools(places))
    own_names = {tool.wire_name: tool.name for tool in toolbox}
    return [
        (target, own_names[name], loss)
        for target in targets
        for name, losses in lower_tools(toolbox.declarations, target).losses.items()
        for loss in losses
    ]


def _as_dict(found: Loss) -> dict[str, Any]:
    target, tool, loss = found
    return {"target": target, "tool": tool, **fields_of(loss)}


def _print_losses(console: Console, losses: Sequence[Loss], targets: Sequence[Target]) -> None:
    for target in targets:
        console.print(Text(target, "bold cyan"))
        lines = [
            f"  {printable(tool)}  {one_line(loss.path) or 'the whole'}  {loss.keyword}: {one_line(loss.lost)}"
            for where, tool, loss in losses
            if where == target
        ]
        for line in lines or ["  nothing is lost"]:
            console.print(Text(line), soft_wrap=True)
