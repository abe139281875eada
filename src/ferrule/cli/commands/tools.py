"""The command `ferrule tools`, and the arguments that commands share."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.text import Text

from ferrule.cli import arguments as parse
from ferrule.cli.exit_code import ExitCode
from ferrule.cli.safe_text import printable
from ferrule.cli.screen import console_on, print_json, say
from ferrule.tools.toolbox import Toolbox

PLACES = Annotated[list[str] | None, typer.Argument(help=".py files, folders, or module[:name]. Default: the demo's tools.")]
MCP = Annotated[
    list[str] | None,
    typer.Option("--mcp", help="An MCP server: a command line, a URL, or a JSON file with `mcpServers`. May be repeated."),
]
JSON = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else.")]


def list_tools(places: PLACES = None, as_json: JSON = False, mcp: MCP = None) -> int:
    """List tools and the schemas of their arguments."""
    with parse.open_servers(mcp or (), trusted=False) as servers:
        own = parse.load_tools(places or ()) if places or not servers else []
        toolbox = Toolbox([*servers, *own])
        declarations = toolbox.declarations
        for server in servers:
            for text in (*(each.reason for each in server.dropped), *(each.what for each in server.findings)):
                say(f"Note: {server.name}: {text}")
    if as_json:
        return print_json(list(declarations))
    console = console_on(sys.stdout)
    for tool in toolbox:
        console.print(Text(printable(tool.name), "bold cyan"))
        console.print(Text(_indent(printable(str(tool.desc or "")))), soft_wrap=True)
        schema = printable(json.dumps(tool.parameters, indent=2, ensure_ascii=False))
        console.print(Text(_indent(schema), "dim"), soft_wrap=True)
    return ExitCode.DONE


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" if line else "" for line in text.split("\n"))
