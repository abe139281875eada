"""All benchmarks, side by side in one run: `make bench`. Prints one table, and writes `benchmarks/results.json`.

A full run also draws `docs/images/speed.svg`, and writes the README's section on speed, which
states only its figures. `ONLY=steps,http` selects groups, and `PEERS=smolagents,langgraph`
libraries. `--tiny` uses the smallest counts, to show that all works, and writes no file. Libraries
that are not installed are named and skipped. `FERRULE_CORPUS=folder` names model outputs for the
table of recovered calls (quality.py), `BENCH_POSTGRES=postgresql://...` a database for runs stored
in Postgres (by default, one is started).

Each library has its own process, and they take turns within a round, because other work on the
machine slows down whatever runs. A value is the lowest of all rounds; a ratio is the median of the
ratios within each round. Times are CPU time of the library's process, unless the figure says
otherwise; work of a process before its first turn, such as network set-up, does not count.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import groups
from groups import Bench
from libraries import HERE
from report import Table, picture, summary

README = HERE.parent / "README.md"
PICTURE = HERE.parent / "docs" / "images" / "speed.svg"


def main() -> None:
    tiny = "--tiny" in sys.argv
    only = [name for name in os.environ.get("ONLY", "").split(",") if name]
    unknown = set(only) - groups.GROUPS.keys()
    if unknown:
        sys.exit(
            f"make bench: no group is called {', '.join(sorted(unknown))}; the groups are {', '.join(groups.GROUPS)}.",
        )
    table = Table()
    with Bench(
        table,
        tiny=tiny,
        wanted=[name for name in os.environ.get("PEERS", "").split(",") if name],
    ) as bench:
        versions = bench.versions()
        print(
            f"Python {_python()}, "
            + ", ".join(f"{name} {found}" for name, found in versions.items() if found),
        )
        for name, found in versions.items():
            if not found:
                print(
                    f"{name} is not installed and left out (see requirements/bench.in and bench-dspy.in)",
                )
        print(table.header())
        for name, group in groups.GROUPS.items():
            if not only or name in only:
                bench.start(name)
                group(bench)
    exceeded = table.print_limits()
    if not tiny:
        about = {"python": _python(), "machine": _machine(), "date": _today(), "versions": versions}
        (HERE / "results.json").write_text(
            json.dumps({**about, "rows": table.as_json()}, indent=1) + "\n",
            encoding="utf-8",
        )
        if not only:
            where = f"{about['machine']}, Python {about['python']}, {about['date']}"
            PICTURE.write_text(picture(table, where), encoding="utf-8")
            _write_section(summary(table, where))
        sys.exit(bool(exceeded))


def _write_section(text: str) -> None:
    """Replace the README's section on speed, its last."""
    before = README.read_text(encoding="utf-8").partition("## Speed\n")[0]
    README.write_text(f"{before}## Speed\n\n{text}\n", encoding="utf-8")


def _python() -> str:
    """Its version, and whether it was built with the optimisations that CPython leaves out by default."""
    is_optimised = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return platform.python_version() + (
        " (built with --enable-optimizations)" if is_optimised else ""
    )


def _machine() -> str:
    model = next(
        (
            line.split(":")[1].strip()
            for line in _lines("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} cores ({model}), {platform.system()}"


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines() if Path(path).is_file() else []


def _today() -> Any:
    return subprocess.run(
        ["date", "+%Y-%m-%d"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


if __name__ == "__main__":
    main()
