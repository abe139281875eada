"""The command `ferrule ui`: a page over a store, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ferrule.cli.exit_code import ExitCode
from ferrule.cli.prompt import user_name
from ferrule.cli.screen import say
from ferrule.errors import ConfigurationError
from ferrule.models.http.loopback import is_loopback


def show_page(  # noqa: PLR0917  one parameter an option
    store: Annotated[str, typer.Option("--store", help="The SQLite file with the runs.")] = "ferrule.db",
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port. If it is taken, the next free one.")] = 7300,
    allowed_host: Annotated[
        list[str] | None, typer.Option("--allowed-host", help="A name of the server besides this machine's own. May be repeated.")
    ] = None,
    person: Annotated[
        list[str] | None, typer.Option("--person", help="Who decides; each gets a link. Default: you. May be repeated.")
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every decision.")] = False,
) -> int:
    """Show runs, and decide on questions, in a browser."""
    from ferrule.runs.store.sqlite import SQLiteStore
    from ferrule.web.ui import ui_app

    names = allowed_host or []
    if not is_loopback(host) and not names:
        msg = (
            f"`--host {host}` lets other machines reach the page. Say under which name with --allowed-host NAME, and put a proxy with TLS "
            "before it: the page itself speaks plain HTTP."
        )
        raise ConfigurationError(msg)
    opened = SQLiteStore(store)
    app = ui_app(opened, people=person or [user_name()], allowed_hosts=names, read_only=read_only)
    if not Path(store).is_file():
        raise ConfigurationError(f"There is no file {store!r}. Name the store with --store FILE.")
    from ferrule.web.server import serve_page

    def tell(links: dict[str, str]) -> None:
        for name, link in links.items():
            print(f"{name or 'Open'}: {link}", flush=True)
        say("Each link is as good as a password. Ctrl-C ends the page, and the links with it.")
        if not no_open:
            import webbrowser

            webbrowser.open(next(iter(links.values())))

    try:
        serve_page(app, host=host, port=port, on_listening=tell)
    finally:
        opened.close()
    return ExitCode.DONE
