"""The exit codes of the command `ferrule`."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command tells the shell."""

    DONE = 0
    FAILED = 1
    """The run or the command failed, or `lint` found a loss."""
    USAGE = 2
    """The command line is wrong, or the tools cannot be loaded."""
    WAITING = 3
    """A person must decide, and none is at the terminal."""
    INTERRUPTED = 130
