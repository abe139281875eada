"""The command `ferrule serve`: tools and programs as an MCP server.

On standard output there is nothing but the protocol: what has to be said to a person goes to standard error.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated, Any

import typer

from ferrule.cli import arguments as choose
from ferrule.cli.safe_text import plain
from ferrule.programs.module import Module

_WRONG = 2


def serve(  # noqa: PLR0917  one parameter an option
    places: Annotated[
        list[str] | None, typer.Argument(help=".py files, folders, module[:name], or file.py:program. Default: the demo's tools.")
    ] = None,
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP, not over standard input and output.")] = False,
    host: Annotated[str, typer.Option(help="Where to listen with --http.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port with --http.")] = 8000,
    allowed_host: Annotated[list[str] | None, typer.Option(help="A name that the server may be reached by. May be repeated.")] = None,
    name: Annotated[str, typer.Option(help="What the server calls itself.")] = "ferrule",
    mask_errors: Annotated[bool, typer.Option("--mask-errors", help="Tell clients only that a tool failed, not why.")] = False,
) -> int:
    """Serve tools and programs to MCP clients: over standard input and output, or with --http on a port."""
    from ferrule.bridges.mcp.server.app import MCPApp

    try:
        with redirect_stdout(sys.stderr):  # what a file prints while it is loaded
            things = [thing for place in places or () for thing in _things(place)] or choose.tools(())
        app = MCPApp(things, name=name, mask_errors=mask_errors)

        def told(address: str) -> None:
            print(f"Serving {len(app.names)} tools on {address}. Ctrl-C ends it.", file=sys.stderr)

        app.run("http", host=host, port=port, allowed_hosts=allowed_host, on_listening=told) if http else app.run()
    except choose.WRONG as error:
        print(plain(str(error)), file=sys.stderr)
        return _WRONG
    return 0


def _things(place: str) -> list[Any]:
    """The tools of a place; or the program, where `module:name` or `file.py:name` names one."""
    where, _, name = place.rpartition(":")
    if where.endswith(".py"):
        return [choose.program_of(place)]
    tools = choose.tools([place])
    thing: object = getattr(sys.modules.get(where), name, None) if where else None
    return [thing] if isinstance(thing, Module) else [*tools]
