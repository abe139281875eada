"""The command `ferrule ui`: a page over a store, in a browser."""

from __future__ import annotations

import html
import os
import tempfile
import webbrowser
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from ferrule import settings
from ferrule.cli.arguments import find_program, make_deps, model_setting

# Typer reads annotations at run time.
from ferrule.cli.commands.tools import DEPS, LM_OF_PROGRAM  # noqa: TC001
from ferrule.cli.exit_code import ExitCode
from ferrule.cli.prompt import user_name
from ferrule.cli.screen import say
from ferrule.cli.stores import DEFAULT_STORE, StorePlace, is_dsn, postgres_store
from ferrule.encoding.safe_text import printable
from ferrule.errors import ConfigurationError
from ferrule.net.loopback import is_loopback

_SECRET = "FERRULE_WEBHOOK_SECRET"  # noqa: S105  the name of a variable


def show_page(
    program: Annotated[
        str | None,
        typer.Argument(
            help="A program to chat with, and to resume its runs: "
            "module:attribute, or file.py:attribute."
        ),
    ] = None,
    store: StorePlace = DEFAULT_STORE,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port. If it is taken, the next free one.")] = 7300,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option("--allowed-host", help="Another host name of the server. May be repeated."),
    ] = None,
    person: Annotated[
        list[str] | None,
        typer.Option(
            "--person",
            help="Who uses the page; each gets a link. NAME, or NAME=ROLE: read, decide, "
            "decide:PROGRAM,... or administer. Default: you. May be repeated.",
        ),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only", help="Refuse every decision, and open a SQLite file for reading only."
        ),
    ] = False,
    webhook: Annotated[
        str | None,
        typer.Option(
            "--webhook",
            help="Post each question that waits to this address, signed with the secret in "
            f"{_SECRET}.",
        ),
    ] = None,
    page_url: Annotated[
        str | None,
        typer.Option(
            "--page-url",
            help="The address of the page as people reach it, for the webhook's links.",
        ),
    ] = None,
    lm: LM_OF_PROGRAM = None,
    deps: DEPS = None,
) -> int:
    """Show runs and decide questions in a browser. With a program, also chat with it."""
    # Imported here, because the page needs the extra `ferrule[ui]`.
    from ferrule.runs.store.sqlite.store import SQLiteStore
    from ferrule.web.ui import ui_app
    from ferrule.web.webhook import Webhook

    allowed_hosts = allowed_host or []
    if not is_loopback(host) and not allowed_hosts:
        msg = (
            f"`--host {host}` lets other machines reach the page. Say under which name with "
            "--allowed-host NAME, and put a proxy with TLS before it: the page itself speaks "
            "plain HTTP."
        )
        raise ConfigurationError(msg)
    if program is None and (lm is not None or deps is not None):
        raise ConfigurationError(
            "`--lm` and `--deps` are for a program: name it first, as file.py:attribute."
        )
    if webhook is not None and not os.environ.get(_SECRET):
        raise ConfigurationError(
            f"`--webhook` needs a secret in the environment variable {_SECRET}. Make one with "
            "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`, and give it to the "
            "receiver, too."
        )
    is_postgres = is_dsn(store)
    opened: Any = postgres_store(store) if is_postgres else SQLiteStore(store, read_only=read_only)
    options: dict[str, Any] = {
        "people": _roles(person or [user_name()]),
        "allowed_hosts": allowed_hosts,
        "read_only": read_only,
    }
    if program is None:
        app = ui_app(opened, **options)
    else:
        loaded_program, loaded_deps = find_program(program), make_deps(deps)
        with settings.context(**model_setting(lm)):
            app = ui_app(opened, loaded_program, deps=loaded_deps, place=program, **options)
    must_exist = program is None or read_only
    if must_exist and not is_postgres and not Path(store).is_file():
        raise ConfigurationError(f"There is no file {store!r}. Name the store with --store FILE.")
    opened.changes()  # a damaged store raises here, and not on every page
    from ferrule.web.app import serve_page

    def announce(links: dict[str, str]) -> None:
        for name, link in links.items():
            _print_link(name, link)
        say("Each link opens one browser, and is as good as a password. Ctrl-C ends them all.")
        address = next(iter(links.values())).partition("/?")[0]
        if webhook is not None:
            hook = Webhook(opened, webhook, secret=os.environ[_SECRET], page=page_url or address)
            started.enter_context(hook)
        if not no_open:
            own_link = address + next(iter(app.links.values()))
            path = _write_redirect(own_link)
            opened_files.append(path)
            webbrowser.open(path.as_uri())

        def print_another(name: str) -> None:
            _print_link(name, address + app.links[name])

        app.sessions.on_entered = print_another

    opened_files: list[Path] = []
    started = ExitStack()
    try:
        serve_page(app, host=host, port=port, on_listening=announce)
    finally:
        started.close()
        for file in opened_files:
            file.unlink(missing_ok=True)
        if app.work is not None and app.work.at_work:
            say(
                f"Interrupted: {', '.join(app.work.at_work)}. "
                "Each resumes from its journal with `ferrule resume` or this page."
            )
        opened.close()
    return ExitCode.DONE


def _roles(persons: list[str]) -> dict[str, str]:
    """The roles of persons, each written as NAME or NAME=ROLE."""
    roles: dict[str, str] = {}
    for text in persons:
        name, separator, role = text.rpartition("=")
        if not separator:
            name, role = text, "administer"
        if name in roles:
            raise ConfigurationError(f"`--person` names {name!r} twice.")
        roles[name] = role
    return roles


def _print_link(name: str, link: str) -> None:
    title = "Open"
    if name:
        title = f"Open as {name}"
    print(printable(f"{title}: {link}"), flush=True)


def _write_redirect(link: str) -> Path:
    """A file of this user alone that leads a browser to a link.

    All users of the machine can read the command line of a browser, where the link would stand.
    """
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="ferrule-ui-", suffix=".html", delete=False
    ) as file:  # of the mode 0600
        target = html.escape(link)
        file.write(
            '<!doctype html><meta charset="utf-8"><title>ferrule</title>'
            f'<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">ferrule</a>'
        )
    return Path(file.name)
