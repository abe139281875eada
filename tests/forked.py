"""Programs in processes of their own that have ferrule imported when they begin.

A new interpreter imports for a second or two before it does what a test is about, and the suite
starts hundreds of programs. These are forked from one process that has imported ferrule and the MCP
SDK (the fork server of `multiprocessing`). They have a folder, an environment and files for their
output, and are killed and stopped as other processes are. Where the start or the end of an
interpreter is part of the promise (what is imported, `atexit`, Ctrl-C), use `subprocess`.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

IMPORTED = [
    "anyio._backends._asyncio",
    "ferrule.cli.commands.runs",
    "ferrule.cli.main",
    "ferrule.mcp_bridge.client.mcp_server",
    "ferrule.mcp_bridge.server.app",
    "ferrule.models.hosted",
    "ferrule.programs.react",
    "ferrule.runs.run",
    "ferrule.runs.store.sqlite.store",
    "ferrule.testing",
    "mcp.server.mcpserver",
    "pytest",  # for files of tests that are programs too
    "uvicorn",
]
"""What the fork server imports; what is not installed is left out."""


class Forked:
    """A program that runs: `words` are what stands after `python` on a command line."""

    def __init__(
        self, *words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> None:
        self.args = [str(word) for word in words]
        # Removed by `ended`. A `TemporaryDirectory` warns when it is collected, in any later test.
        self._folder = Path(tempfile.mkdtemp())
        self._result: subprocess.CompletedProcess[str] | None = None
        self._process = _context().Process(
            target=_begin,
            args=(
                self.args,
                str(cwd or Path.cwd()),
                {**os.environ, **(env or {})},
                str(self._folder / "output"),
                str(self._folder / "errors"),
            ),
            daemon=True,
        )
        self._process.start()

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int:
        return self.ended().returncode

    def poll(self) -> int | None:
        return self._process.exitcode

    @property
    def output(self) -> str:
        """What it has written to its standard output."""
        file = self._folder / "output"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def ended(self, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Wait for the end: the code and what was written."""
        if self._result is not None:
            return self._result
        self._process.join(timeout_s)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            raise subprocess.TimeoutExpired(self.args, timeout_s)
        errors = self._folder / "errors"
        self._result = subprocess.CompletedProcess(
            self.args,
            code,
            self.output,
            errors.read_text(encoding="utf-8") if errors.exists() else "",
        )
        shutil.rmtree(self._folder)
        return self._result


def run(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return Forked(*words, **options).ended()


def start_fork_server() -> None:
    """Start it now, so that it is not among the processes that a test may have left behind."""
    if _context().get_start_method() == "forkserver":
        forkserver.ensure_running()


@functools.cache
def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def _begin(
    words: list[str], folder: str, environment: dict[str, str], output: str, errors: str
) -> None:
    """Be the program, as `python` would make it."""
    for number, path in ((1, output), (2, errors)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # noqa: SIM115
        2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
    )
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    try:
        _run(*words)
    finally:
        sys.stdout.flush()
        _save_coverage()


def _run(what: str, *rest: str) -> None:
    if what == "-c":
        code, *arguments = rest
        sys.argv[:], sys.path[0:0] = ["-c", *arguments], [""]
        exec(compile(code, "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})
    elif what == "-m":
        module, *arguments = rest
        sys.argv[:], sys.path[0:0] = [module, *arguments], [str(Path.cwd())]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv[:], sys.path[0:0] = [what, *rest], [str(Path(what).resolve().parent)]
        runpy.run_path(what, run_name="__main__")


def _save_coverage() -> None:
    """A process of `multiprocessing` ends without `atexit`, by which `coverage` would save."""
    coverage = sys.modules.get("coverage")
    if coverage is not None and (measuring := coverage.Coverage.current()) is not None:
        measuring.save()
