"""How a person at the terminal logs in to MCP servers."""

from __future__ import annotations

import sys
from typing import Any

from ferrule.cli.screen import say
from ferrule.encoding.safe_text import one_line

_LONGEST_ADDRESS = 4_000


def login_options() -> dict[str, Any]:
    """The options of a server for this terminal.

    Without a person at it, a log-in fails with the command to run.
    """
    if any(stream is None or not stream.isatty() for stream in (sys.stdin, sys.stderr)):
        return {"open_browser": False}
    return ask_to_log_in()


def ask_to_log_in() -> dict[str, Any]:
    """The options of a server that ask for a log-in on standard error.

    With a browser if there is one, otherwise with a device code.
    """
    from ferrule.mcp_bridge.login.login import has_browser

    open_browser = _open_browser if has_browser() else None
    return {"open_browser": open_browser, "enter_code": show_code}


def _open_browser(address: str) -> bool:
    import webbrowser

    show_address(address)
    return webbrowser.open(address)


def show_address(address: str) -> None:
    """Show where to log in."""
    say(f"Log in here, if no browser opens:\n  {one_line(address, _LONGEST_ADDRESS)}")


def show_code(address: str, code: str) -> None:
    """Show where to enter a device code."""
    say(f"To log in, open {one_line(address)} on any device and enter the code {one_line(code)}")
