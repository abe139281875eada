"""The commands `ferrule mcp login` and `ferrule mcp logout`."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferrule.cli.exit_code import ExitCode
from ferrule.cli.logins import ask_to_log_in, show_address, show_code
from ferrule.cli.screen import say
from ferrule.concurrency.offload import run_async
from ferrule.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from ferrule.mcp_bridge.client.mcp_server import MCPServer
    from ferrule.mcp_bridge.login.credentials import CredentialStore

PLACE = Annotated[
    str,
    typer.Argument(
        metavar="URL|FILE:NAME",
        help="A server's address, or the name of a server in an editor's file.",
    ),
]

mcp_app = typer.Typer(
    help="Log in to MCP servers, or log out.", no_args_is_help=True, rich_markup_mode=None
)


@mcp_app.command("login")
def log_in(
    place: PLACE,
    client_id: Annotated[
        str,
        typer.Option(help="The id of a client that is registered with the authorization server."),
    ] = "",
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65_535, help="The port for the browser's answer. 0: any free port."
        ),
    ] = 0,
    device: Annotated[
        bool,
        typer.Option(
            "--device", help="Log in with a code on another device, if the server offers it."
        ),
    ] = False,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Show the address instead of opening a browser.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="How many seconds to wait for the log-in.")
    ] = 300.0,
) -> int:
    """Log in to an MCP server.

    Programs and other commands use the log-in until it expires, or until `ferrule mcp logout`.
    """
    options: dict[str, Any] = {**ask_to_log_in(), "login_timeout_s": timeout}
    if device:
        options |= {"open_browser": False, "enter_code": show_code}
    elif no_browser:
        options["open_browser"] = show_address
    server = find_server(place, client_id, port, options)
    with closing(server):
        server.connect()
    if _store_of(server).path.exists():
        say(f"You are logged in to {server.name}.")
    else:
        say(f"{server.name} does not require a log-in.")
    return ExitCode.DONE


@mcp_app.command("logout")
def log_out(place: PLACE) -> int:
    """Forget the log-in to an MCP server."""
    server = find_server(place, "", 0, {})
    was_logged_in = run_async(_store_of(server).delete())
    if was_logged_in:
        say(f"You are logged out of {server.name}.")
    else:
        say(f"There was no log-in to {server.name}.")
    return ExitCode.DONE


def find_server(place: str, client_id: str, port: int, options: dict[str, Any]) -> MCPServer:
    """The server of an address or of `FILE:NAME`.

    Raises `ConfigurationError` if a person cannot log in to it.
    """
    from ferrule.mcp_bridge.client.mcp_server import MCPServer, mcp
    from ferrule.mcp_bridge.login.oauth import OAuth

    if place.startswith(("http://", "https://")):
        return mcp(place, auth=OAuth(client_id=client_id, callback_port=port), **options)
    if client_id or port:
        msg = (
            "`--client-id` and `--port` are for an address. "
            "A server of a file has them in its `oauth`."
        )
        raise ConfigurationError(msg)
    path, colon, name = place.rpartition(":")
    if not colon:
        raise ConfigurationError(f"`ferrule mcp` takes an address or FILE:NAME, found {place!r}.")
    servers = MCPServer.load(path, on_error="raise", auth="oauth", **options)
    if name not in servers or servers[name].spec.oauth is None:
        names = [key for key, server in servers.items() if server.spec.oauth is not None]
        raise ConfigurationError(
            f"{path!r} has no server {name!r} to log in to; it has {shown(names)}."
        )
    return servers[name]


def _store_of(server: MCPServer) -> CredentialStore:
    from ferrule.mcp_bridge.login.credentials import CredentialStore

    return CredentialStore(server.spec.expanded().url)
