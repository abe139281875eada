"""Mutants of the library, each of which the kill test must catch: `scripts/mutants.sh`.

A mutant is a copy of the tree in which some lines are replaced. It counts as caught if the kill
test counts a fault of the class that belongs to it. A text that is not found exactly once is an
error, so a mutant cannot fall silent when the library changes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """Replacements in `src/ferrule/runs`, where they must be caught, and as what."""

    name: str
    edits: tuple[tuple[str, str], ...]
    kind: str
    only: str
    """The scenarios or races to run, as for `--only`."""
    ways: tuple[str, ...]


KILLS = ("--kills", "120", "--races", "0", "--interrupts", "0")
RACES = ("--kills", "0", "--races", "40", "--interrupts", "0")
INTERRUPTS = ("--kills", "0", "--races", "0", "--interrupts", "200")
MUTANTS = (
    Mutant(
        "no fencing",
        (
            ("if token != lease.token:", "if False:"), ("if current_owner != owner:", "if False:"),
            ("token = ? AND owner = ? AND cancelled <= ?", "(token = ? OR TRUE) AND (owner = ? OR TRUE) AND cancelled <= ?"),
            ("token = column4 AND owner = ? AND NOT cancelled", "(owner = ? OR TRUE) AND NOT cancelled"),
        ),
        "duplicates", "stopped", RACES,
    ),
    Mutant("begun calls re-run", (('effect = self.recorded.get("effect")', "return True"),), "duplicates", "every effect", KILLS),
    Mutant(
        "begun calls of nested agents re-run",
        (("    if not starts and (waits", "    if (not starts or frame.path) and (waits"),),
        "duplicates", "nested", KILLS,
    ),
    Mutant(
        "transactional result outside its transaction",
        (("        sink(entry)\n", ""), ("journal.entries.append(entry)  # the", "journal.add(entry)  # the")),
        "duplicates", "every effect", KILLS,
    ),
    Mutant(
        "decision not marked taken",
        (("db.execute(_TAKE_DECISION, (self.lease.run_id, self.consumes))", "pass"),),
        "wrong", "edits", KILLS,
    ),
    Mutant(
        "run ends before it has heard all",
        (("            heard = run.heard\n", "            heard = None\n"),),
        "lost", "speaker", RACES,
    ),
    Mutant(
        "message not marked taken",
        (("            consumes = entry.value.question_id\n", "            consumes = entry.value.question_id if '~said.' not in entry.slot else None\n"),),
        "wrong", "the world answers", KILLS,
    ),
    Mutant(
        "lease never checked",
        (("if self._is_alive(owner, until, now) or settles_s:", "if False:"),),
        "duplicates", "slow owner", RACES,
    ),
    Mutant(
        "interrupt leaves a transaction",
        (("with db:  # an exception from here on rolls back, also Ctrl-C", "if True:"),),
        "stuck", "interrupted", INTERRUPTS,
    ),
)  # fmt: skip
CONTROL = Mutant(
    "nothing changed",
    (),
    "",
    "",
    ("--kills", "60", "--races", "10", "--interrupts", "20"),
)


def main() -> int:
    """Print a line for each mutant (with an argument, of those whose names contain it); returns how
    many were not caught.
    """
    missed = 0
    for mutant in (CONTROL, *MUTANTS):
        if not all(part in mutant.name for part in sys.argv[1:]):
            continue
        with tempfile.TemporaryDirectory() as folder:
            problem = mutate(Path(folder), mutant) or try_out(Path(folder), mutant)
        missed += problem is not None
        sys.stdout.write(f"{mutant.name}: {problem or ('caught' if mutant.kind else 'no fault')}\n")
        sys.stdout.flush()
    return missed


def mutate(copy: Path, mutant: Mutant) -> str | None:
    """Copy the tree, and replace the lines; returns what is wrong with the mutant."""
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(
        Path(__file__).parent,
        copy / "tests" / "killing",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copy(ROOT / "tests" / "agent_script.py", copy / "tests")
    shutil.copytree(ROOT / "tests" / "wire_servers", copy / "tests" / "wire_servers")
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in (copy / "src" / "ferrule" / "runs").rglob("*.py")
    }
    for old, new in mutant.edits:
        found = [path for path, text in texts.items() for _ in range(text.count(old))]
        if len(found) != 1:
            return f"NOT MADE: {old.strip()!r} stands in the library {len(found)} times, not once"
        texts[found[0]] = texts[found[0]].replace(old, new)
        found[0].write_text(texts[found[0]], encoding="utf-8")
    return None


def try_out(copy: Path, mutant: Mutant) -> str | None:
    """Run the kill test on the copy; returns what it did not find."""
    command = [
        sys.executable,
        "-m",
        "killing",
        *mutant.ways,
        "--only",
        mutant.only,
        *(("--until", mutant.kind) if mutant.kind else ()),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(copy / "src"), str(copy / "tests")]),
    }
    home = [sys.executable, "-c", "import ferrule; print(ferrule.__file__)"]
    where = subprocess.run(
        home,
        env=environment,
        cwd=copy,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if not Path(where).is_relative_to(copy):
        return f"NOT TRIED: python imports {where.strip()}"
    found = subprocess.run(
        command,
        env=environment,
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    counts = dict(re.findall(r"(\w+): (\d+)", found.stdout.rpartition("kills:")[2]))
    is_caught = counts.get(mutant.kind, "0") != "0" if mutant.kind else found.returncode == 0
    return None if is_caught else f"NOT CAUGHT:\n{found.stdout}{found.stderr}"


if __name__ == "__main__":
    sys.exit(main())
