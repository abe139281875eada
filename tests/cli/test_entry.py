"""A door opens, or says in one line what it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ferrule.cli.entry import MISSING_EXTRA, entered


@pytest.mark.parametrize(("module", "missing"), [("main", "typer"), ("main", "rich"), ("demo.__main__", "rich")])
def test_without_the_extra_there_is_one_line_and_no_traceback(module: str, missing: str) -> None:
    """Issue 7: a missing extra is named."""
    program = f"import sys; sys.modules[{missing!r}] = None; from ferrule.cli.{module} import main; sys.exit(main())"
    run = subprocess.run([sys.executable, "-c", program, "tools"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (1, "", f"{MISSING_EXTRA}\n")


def test_another_missing_module_is_not_taken_for_the_extra() -> None:
    """Ours."""

    def load():
        raise ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere")

    with pytest.raises(ModuleNotFoundError):
        entered(load)


def test_a_door_s_exit_code_is_handed_on() -> None:
    """Ours."""
    assert entered(lambda: lambda: 7) == 7


def test_the_face_and_the_entries_load_no_terminal_library() -> None:
    """Ours: `import ferrule` stays light, and a missing extra can be told."""
    program = "import sys, ferrule, ferrule.cli.main, ferrule.cli.demo.__main__; print(*({'rich', 'typer'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
