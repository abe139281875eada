"""The command `ferrule lint`: what tools lose on their way to a provider.

In: where tools are, and the providers meant. Out: a line for each loss, and whether there is one as the exit code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from ferrule.cli import arguments as choose
from ferrule.cli.safe_text import one_line, plain
from ferrule.errors import ConfigurationError
from ferrule.tools.toolbox import Toolbox
from ferrule.values.record import fields_of
from ferrule.values.schema.lowering.lower import TARGETS, SchemaLoss, Target, lower_tools

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console

Finding = tuple[Target, str, SchemaLoss]
"""A target, a tool by its name, and what the tool loses there."""


def targets(names: Sequence[str]) -> tuple[Target, ...]:
    """The targets of these names; all where none is given. Raises `ConfigurationError` for a name that is none."""
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        msg = f"There is no target {unknown[0]!r}; there are: {', '.join(TARGETS)}."
        raise ConfigurationError(msg)
    return tuple(target for target in TARGETS if target in names or not names)


def findings(places: Sequence[str], asked: Sequence[Target]) -> list[Finding]:
    """What the tools of these places lose, target by target. Raises what `choose.tools` raises."""
    toolbox = Toolbox(choose.tools(places))
    own_names = {tool.wire_name: tool.name for tool in toolbox}
    return [
        (target, own_names[name], loss)
        for target in asked
        for name, losses in lower_tools(toolbox.declarations, target).losses.items()
        for loss in losses
    ]


def document(found: Iterable[Finding]) -> list[dict[str, Any]]:
    """The findings as JSON: objects with `target`, `tool`, `path`, `keyword`, `lost` and `breaking`."""
    return [{"target": target, "tool": tool, **fields_of(loss)} for target, tool, loss in found]


def show(console: Console, found: Sequence[Finding], asked: Sequence[Target]) -> None:
    """Print the findings under their targets; a target where nothing is lost says so."""
    for target in asked:
        lines = list(_lines(each for each in found if each[0] == target))
        console.print(Text(target, "bold cyan"))
        for line in lines or ["  nothing is lost"]:
            console.print(Text(line), soft_wrap=True)


def _lines(found: Iterable[Finding]) -> Iterator[str]:
    for _, tool, loss in found:
        yield f"  {plain(tool)}  {one_line(loss.path) or 'the whole'}  {loss.keyword}: {one_line(loss.lost)}"
