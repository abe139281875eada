"""Commands start, or say in one line what they need."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from ferrule.cli.main import MISSING_EXTRA, main, run_loaded


@pytest.mark.parametrize(
    ("module", "missing"),
    [("main", "typer"), ("main", "rich"), ("demo.__main__", "rich")],
)
def test_without_the_extra_there_is_one_line_and_no_traceback(module: str, missing: str) -> None:
    """The line names the extra."""
    program = f"import sys; sys.modules[{missing!r}] = None; from ferrule.cli.{module} import main; sys.exit(main())"
    run = subprocess.run(
        [sys.executable, "-c", program, "tools"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (1, "", f"{MISSING_EXTRA}\n")


def test_another_missing_module_is_not_taken_for_the_extra() -> None:

    def load():
        raise ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere")

    with pytest.raises(ModuleNotFoundError):
        run_loaded(load)


def test_the_exit_code_is_that_of_the_command() -> None:
    assert run_loaded(lambda: lambda: 7) == 7


def test_importing_ferrule_and_the_entry_points_loads_no_terminal_library() -> None:
    """`import ferrule` stays light, and a missing extra is reported."""
    program = "import sys, ferrule, ferrule.cli.main, ferrule.cli.demo.__main__; print(*({'rich', 'typer'} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == ""


def test_the_version_is_shown_by_the_command_and_by_python_m_ferrule(capsys) -> None:
    assert run_loaded(lambda: lambda: main(["--version"])) == 0
    shown = capsys.readouterr().out
    assert shown == f"ferrule {version('ferrule')}\n"
    run = subprocess.run(
        [sys.executable, "-m", "ferrule", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == shown


def test_a_file_or_a_pipe_gets_utf_8_also_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """There Python writes a code page, which has no arrow, and with which JSON and HTML are broken."""
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    for platform, written in (("linux", b"?\n"), ("win32", "\u2192\n".encode())):
        out = io.TextIOWrapper(io.BytesIO(), encoding="cp1252", newline="\n")
        with monkeypatch.context() as there:
            there.setattr(sys, "platform", platform)
            there.setattr(sys, "stdout", out)
            assert run_loaded(lambda: lambda: sys.stdout.write("\u2192\n")) == 2
        out.flush()
        assert out.buffer.getvalue() == written  # type: ignore[attr-defined]


@pytest.mark.skipif(sys.platform == "win32", reason="another signal plays that of Windows")
def test_the_signal_that_windows_sends_ends_the_command_as_sigterm_does() -> None:
    program = (
        "import os, signal\nsignal.SIGBREAK = signal.SIGUSR1\nfrom ferrule.cli import main\n"
        "main.main = lambda: os.kill(os.getpid(), signal.SIGUSR1)\nmain.process()"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (128 + signal.SIGUSR1, "")


@pytest.mark.skipif(sys.platform == "win32", reason="a signal of POSIX")
def test_ctrl_c_while_the_command_loads_ends_it_without_a_traceback() -> None:
    program = (
        "import os, signal\nfrom ferrule.cli import main\n"
        "main.main = lambda: os.kill(os.getpid(), signal.SIGINT)\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nmain.process()"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (130, "\nInterrupted.\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device plays a full disk")
@pytest.mark.parametrize("buffered", [True, False])
def test_output_that_a_full_disk_refuses_is_a_failure_and_no_traceback(*, buffered: bool) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "ferrule", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=env,
        )
    assert run.returncode == 1
    assert "No space left" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX closes the stream")
def test_a_closed_standard_output_takes_nothing_and_fails_nothing() -> None:
    command = ["sh", "-c", 'exec "$0" -m ferrule --version >&-', sys.executable]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_a_place_that_this_user_may_not_read_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    assert main(["runs", "--store", "locked/runs.db"]) == 1
    assert (
        capsys.readouterr().err
        == "The command stopped: [Errno 13] Permission denied: 'locked/runs.db'\n"
    )
