"""The exit codes of the command `ferrule`."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command tells the shell."""

    DONE = 0
    FAILED = 1
    """The run or the command failed, or `lint` found a part of a schema that a provider drops."""
    USAGE = 2
    """The command line is wrong, or the tools cannot be loaded."""
    WAITING = 3
    """A question waits for a person, and the command has no terminal to ask it."""
    INTERRUPTED = 130
    """Ctrl-C: 128 + SIGINT."""
