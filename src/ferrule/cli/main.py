"""The command `ferrule`: where a person at a terminal comes in.

`main` is the entry point; the commands themselves stand in `commands.py`, which needs the extra `ferrule[cli]`.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ferrule.cli.entry import entered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (those of the process where none are given); returns its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)

    def commands() -> Callable[[], int]:
        from ferrule.cli.commands.ask import run

        return partial(run, given)

    return entered(commands)


def process() -> None:
    """The command as a process of its own: `main`, and then an end that no tool can spoil."""
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError):  # there is none (a descriptor was closed), or nobody reads it any more
            stream.flush()
    # Not `sys.exit`: after Ctrl-C a tool may still be at work in its thread, and an interpreter that shuts down around it can abort.
    os._exit(code)


if __name__ == "__main__":
    process()
