"""The command `ferrule serve`: tools and programs as an MCP server. Standard output carries the protocol and nothing else."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated, Any

import typer

from ferrule.cli.arguments import find_program, load_tools
from ferrule.cli.exit_code import ExitCode
from ferrule.cli.screen import say
from ferrule.programs.module import Module


def serve_tools(  # noqa: PLR0917  one parameter an option
    places: Annotated[
        list[str] | None, typer.Argument(help=".py files, folders, module[:name], or file.py:program. Default: the demo's tools.")
    ] = None,
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP instead of standard input and output.")] = False,
    host: Annotated[str, typer.Option(help="The address to listen on with --http.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on with --http.")] = 8000,
    allowed_host: Annotated[list[str] | None, typer.Option(help="A host name that requests may use. May be repeated.")] = None,
    name: Annotated[str, typer.Option(help="The server's name.")] = "ferrule",
    mask_errors: Annotated[bool, typer.Option("--mask-errors", help="Hide from clients why a tool failed.")] = False,
) -> int:
    """Serve tools and programs to MCP clients: over standard input and output, or with --http on a port."""
    from ferrule.bridges.mcp.server.app import MCPApp

    with redirect_stdout(sys.stderr):  # what the files print while they load
        served = [each for place in places or () for each in _tools_or_program(place)] or load_tools(())
    app = MCPApp(served, name=name, mask_errors=mask_errors)

    def announce(address: str) -> None:
        say(f"Serving {len(app.names)} tools on {address}. Ctrl-C ends it.")

    app.run("http", host=host, port=port, allowed_hosts=allowed_host, on_listening=announce) if http else app.run()
    return ExitCode.DONE


def _tools_or_program(place: str) -> list[Any]:
    """The tools of a place, or the program that `module:name` or `file.py:name` names."""
    where, _, name = place.rpartition(":")
    if where.endswith(".py"):
        return [find_program(place)]
    tools = load_tools([place])
    named: object = getattr(sys.modules.get(where), name, None) if where else None
    return [named] if isinstance(named, Module) else [*tools]
