"""Run the core tests of DSPy's own suite through `ferrule.compat.dspy`: `scripts/dspy-tests.sh`.

DSPy 3.3.1 and its tests are installed into a cache folder (`FERRULE_DSPY_TESTS`, else in the user's
cache); a folder with DSPy's `tests/` may be named as the argument. `core_tests.txt` lists the tests
of tools, ReAct, adapters, signatures and types: 237 with their parameters. `misses.txt` lists those
that do not pass, each with its kind and reason. Exit code 1: another test fails, or one of the list
passes. `--real` runs DSPy itself, and `--plain` leaves the private functions out that `as_dspy.py`
makes from public ones.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VERSION = "3.3.1"
PACKAGES = (f"dspy[mcp,langchain]=={VERSION}", "pytest>=9", "pytest-asyncio", "pytest-mock")
KINDS = ("private", "wording", "page")


def main(arguments: list[str]) -> int:
    """Run the tests, print a line for each kind of miss, and return the exit code."""
    is_real, is_plain = "--real" in arguments, "--plain" in arguments
    folders = [argument for argument in arguments if not argument.startswith("--")]
    home = installed()
    tests = Path(folders[0]).resolve() if folders else fetched(home)
    options = ["--extra"]
    if not is_real:
        options = ["--noconftest", "-p", "as_dspy"]
    ids = (HERE / "core_tests.txt").read_text(encoding="utf-8").split()
    command = [str(home / "bin" / "python"), "-m", "pytest", "-q", "-rA", "--tb=no", *options]
    run = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-p", "no:warnings", *ids],
        cwd=tests,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT / "src")]),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "FERRULE_DSPY_PLAIN": "1" if is_plain else "",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    line = re.compile(r"^(PASSED|FAILED|ERROR) (tests/\S+?)(?: - .*)?$", re.MULTILINE)
    outcomes = {name: outcome for outcome, name in line.findall(run.stdout)}
    if not outcomes:
        print(run.stdout, run.stderr)
        return 1
    passed = {name for name, outcome in outcomes.items() if outcome == "PASSED"}
    failed = outcomes.keys() - passed
    print(f"{run.stdout.strip().splitlines()[-1]}\npassed: {len(passed)} of 237")
    if is_real or is_plain:
        return 0
    return compared(passed, failed)


def compared(passed: set[str], failed: set[str]) -> int:
    """Compare the outcome with the list of misses; returns the exit code."""
    misses = listed()
    counts = Counter(kind for kind, _ in misses.values())
    for kind in KINDS:
        print(f"{kind}: {counts[kind]}")
        for name, (kind_of_name, reason) in sorted(misses.items()):
            if kind_of_name == kind:
                print(f"    {name}: {reason}")
    unexpected, mended = sorted(failed - misses.keys()), sorted(passed & misses.keys())
    for name in unexpected:
        print(f"FAILED, and not in misses.txt: {name}")
    for name in mended:
        print(f"passed, and in misses.txt: {name}")
    return 1 if unexpected or mended else 0


def listed() -> dict[str, tuple[str, str]]:
    """The kind and the reason of each test that does not pass."""
    misses: dict[str, tuple[str, str]] = {}
    for line in (HERE / "misses.txt").read_text(encoding="utf-8").splitlines():
        name, kind, reason = line.split(maxsplit=2)
        misses[name] = (kind, reason)
    return misses


def installed() -> Path:
    """The environment with DSPy, and with what ferrule needs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(os.environ.get("FERRULE_DSPY_TESTS") or cache / "ferrule-dspy-tests")
    python = home / "bin" / "python"
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    stamp = home / "installed"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != " ".join(PACKAGES):
        pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES, "-e", str(ROOT)], check=True)
        stamp.write_text(" ".join(PACKAGES), encoding="utf-8")
    return home


def fetched(home: Path) -> Path:
    """A checkout of DSPy, for its tests: its package does not have them."""
    checkout = home / "checkout"
    if not checkout.is_dir():
        url = "https://github.com/stanfordnlp/dspy"
        clone = ["git", "clone", "--quiet", "--depth", "1", "--branch", VERSION]
        subprocess.run([*clone, url, str(checkout)], check=True)
    # Only the tests: beside them, the package of the checkout would be imported.
    tests = home / "tests-only"
    if not tests.is_dir():
        tests.mkdir()
        (tests / "tests").symlink_to(checkout / "tests")
    return tests


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
