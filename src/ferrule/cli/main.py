"""The entry point of the command `ferrule`.

The commands are in `commands/` and need the extra `ferrule[cli]`.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO, cast

from ferrule.cli.exit_code import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MISSING_EXTRA = "This command needs an extra: pip install 'ferrule[cli]'"
_PACKAGES_OF_EXTRA = frozenset({"typer", "rich", "click"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments; returns the exit code.

    Default: the arguments of the process.
    """

    def load() -> Callable[[], int]:
        from ferrule.cli.commands.app import run_command

        return partial(run_command, sys.argv[1:] if arguments is None else list(arguments))

    return run_loaded(load)


def process() -> None:
    """Run the command and end the process."""
    for name in ("SIGTERM", "SIGBREAK"):  # the second is what Windows sends
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)
    try:
        code = main()
    except SystemExit as ended:
        if isinstance(ended.code, int):
            code = ended.code
        else:
            code = ExitCode.FAILED
    except KeyboardInterrupt:  # while the command loads; afterwards typer catches it
        print("\nInterrupted.", file=sys.stderr)
        code = ExitCode.INTERRUPTED
    finally:  # the second Ctrl-C comes while the command closes its servers
        _close_servers()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except AttributeError:  # the stream is None
            pass
        except OSError as error:  # its reader is gone, or the disk is full
            code = code or ExitCode.FAILED
            if not isinstance(error, BrokenPipeError):
                with suppress(OSError):
                    print(f"The output could not be written: {error}", file=sys.stderr, flush=True)
    # `sys.exit` would shut the interpreter down around a tool that still runs in its thread after
    # Ctrl-C, and may abort.
    os._exit(code)


def _terminate(number: int, frame: object) -> NoReturn:
    """End on such a signal as `sys.exit` does, so that MCP servers are closed."""
    del frame
    sys.exit(128 + number)


def _close_servers() -> None:
    """Close the MCP servers of the command, which `os._exit` would leave behind."""
    connections = sys.modules.get("ferrule.mcp_bridge.transport.open_connections")
    if connections is not None:
        connections.close_all()


def run_loaded(load: Callable[[], Callable[[], int]]) -> int:
    """Load a command and run it; returns its exit code.

    `load` imports the command, which may lack the extra.
    """
    _prepare_streams()
    try:
        command = load()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES_OF_EXTRA:
            raise
        print(MISSING_EXTRA, file=sys.stderr)
        return ExitCode.FAILED
    return command()


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        # The caller closed it: then `print` skips it, but `write` would fail.
        if getattr(sys, name) is None:
            # Until the process ends.
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # `replace`, because a terminal may lack a character.
            stream.reconfigure(encoding=_encoding(cast("TextIO", stream)), errors="replace")


def _encoding(stream: TextIO) -> str:
    """How to write to a stream.

    A file or a pipe gets UTF-8 also on Windows, where Python takes a code page that lacks most
    characters.
    """
    is_set = "PYTHONIOENCODING" in os.environ
    if sys.platform == "win32" and not stream.isatty() and not is_set:
        return "utf-8"
    return stream.encoding


if __name__ == "__main__":
    process()
