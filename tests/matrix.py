"""The tests on every Python of this machine: `python tests/matrix.py [3.13 3.14t ...] [-- arguments
of pytest]`; `scripts/matrix.sh` runs it whole.

The Pythons are those on the PATH, those of pyenv and those of uv. Each gets a venv of its own,
`.venv-3.13`, with the pins of `requirements/dev.txt`, and all tests. A Python that the project
names in its classifiers and that the machine does not have is named at the end; it is no failure,
but a version that was asked for is. The exit code says whether all that ran were green.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINS = ROOT / "requirements" / "dev.txt"
NOT_FREE_THREADED = PINS.with_name("not-free-threaded.txt")
UV = Path(sys.executable).with_name("uv")
OLDEST = (3, 11)
FREE_THREADED = (3, 13)
"""The first Python with a free-threaded build."""


def main() -> int:
    """Run the tests on each Python, and print what came out."""
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    asked, extra = sys.argv[1:split], sys.argv[split + 1 :]
    found, wanted = installed(), asked or promised()
    results = {name: "not on this machine" for name in wanted if name not in found}
    failed = bool(asked and results)
    for name, python in found.items():
        if asked and name not in wanted:
            continue
        print(f"== Python {name} ({python})", flush=True)  # noqa: T201
        results[name] = tested(name, python, extra)
        failed = failed or results[name] != "passed"
    print("\n".join(["", *(f"{name:<6} {results[name]}" for name in sorted(results, key=order))]))  # noqa: T201
    return int(failed)


def promised() -> list[str]:
    """The versions in the classifiers of the project, with their free-threaded builds."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "classifiers"
    ]
    versions = [
        each.removeprefix("Programming Language :: Python :: ")
        for each in told
        if "Python :: 3." in each
    ]
    return [*versions, *(f"{each}t" for each in versions if order(each)[0] >= FREE_THREADED)]


def installed() -> dict[str, Path]:
    """The newest interpreter of each version, by name: `3.13`, `3.13t`."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    path = os.pathsep.join([*map(str, pyenv.glob("versions/3.*/bin")), os.environ.get("PATH", "")])
    listed = run(
        UV,
        "python",
        "list",
        "--only-installed",
        "--output-format",
        "json",
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
    )
    found: dict[str, tuple[tuple[int, ...], Path]] = {}
    for each in json.loads(listed.stdout):
        parts = each["version_parts"]
        version = tuple(parts[part] for part in ("major", "minor", "patch"))
        is_threaded = each["variant"] == "freethreaded"
        if (
            each["implementation"] != "cpython"
            or version[:2] < OLDEST
            or each["variant"] not in ("default", "freethreaded")
        ):
            continue
        # A shim of pyenv stands for another interpreter, which is listed too.
        name, python = f"{version[0]}.{version[1]}{'t' * is_threaded}", Path(each["path"])
        if "shims" not in python.parts and (name not in found or found[name][0] < version):
            found[name] = version, python
    return {name: found[name][1] for name in sorted(found, key=order)}


def tested(name: str, python: Path, extra: list[str]) -> str:
    """Install the pins and run the tests; the outcome in words."""
    venv = ROOT / f".venv-{name}"
    own, stamp = venv / "bin" / "python", venv / ".matrix"
    state = hashlib.sha256(
        PINS.read_bytes() + (ROOT / "pyproject.toml").read_bytes() + str(python).encode(),
    ).hexdigest()
    left_out = ("--excludes", NOT_FREE_THREADED) if name.endswith("t") else ()
    if not stamp.exists() or stamp.read_text() != state:
        for step in (
            ("venv", "--clear", "--python", python, venv),
            (
                "pip",
                "install",
                "--python",
                own,
                "--no-deps",
                "--require-hashes",
                "--requirement",
                PINS,
                *left_out,
            ),
            (
                "pip",
                "install",
                "--python",
                own,
                "--no-deps",
                "--no-build-isolation",
                "--editable",
                ROOT,
            ),
        ):
            if run(UV, "--quiet", *step).returncode:
                return "its packages could not be installed"
        stamp.write_text(state)
    return "passed" if run(own, "-m", "pytest", "--quiet", *extra).returncode == 0 else "FAILED"


def run(*command: object, **how: object) -> subprocess.CompletedProcess[bytes]:
    """A command in the checkout."""
    return subprocess.run(list(map(str, command)), cwd=ROOT, check=False, **how)  # type: ignore[call-overload]


def order(name: str) -> tuple[tuple[int, ...], bool]:
    """Sorts 3.9 before 3.13, and a free-threaded build after the other."""
    return tuple(map(int, name.rstrip("t").split("."))), name.endswith("t")


if __name__ == "__main__":
    sys.exit(main())
