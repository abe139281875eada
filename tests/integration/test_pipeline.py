"""`examples/apps/pipeline.py`, ended in the middle by its 300th call of the model: what was read
before is not read again.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import forked
import pytest

APP = Path(__file__).parents[2] / "examples" / "apps" / "pipeline.py"
ENDED, WORKERS = 9, 16

# Only the model is replaced: by itself, counted.
DRIVER = """
import os, pathlib, runpy, sys
app = runpy.run_path(sys.argv[1])
model, calls = app["model"], []

def counted(request):
    calls.append(1)
    if len(calls) == int(sys.argv[2]):
        os._exit(int(sys.argv[3]))
    return model(request)

app["job"].__globals__["model"] = counted
if not pathlib.Path("documents").exists():
    app["write_documents"](pathlib.Path("documents"))
app["job"]()
print(len(calls))
"""


def job(folder: Path, *, ends_at: int) -> subprocess.CompletedProcess[str]:
    return forked.run("-c", DRIVER, APP, str(ends_at), str(ENDED), cwd=folder)


@pytest.mark.integration
def test_a_job_that_ended_in_the_middle_goes_on_where_it_was(tmp_path: Path) -> None:
    assert job(tmp_path, ends_at=300).returncode == ENDED
    resumed = job(tmp_path, ends_at=0)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    *report, calls = resumed.stdout.splitlines()
    whole = (
        (APP.parents[2] / "tests" / "golden" / "apps" / "pipeline.txt")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    assert report == whole[1:]  # all but "killed"
    assert (
        int(calls) <= 509 - 299 + WORKERS
    )  # 504 answers and five refusals; those in flight are asked for again

    again = job(tmp_path, ends_at=0)
    assert again.stdout.splitlines() == [*report, "0"]  # `retry_failed=True` would ask again
    lines = [
        json.loads(line)
        for line in (tmp_path / "invoices.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert sorted(line["document"] for line in lines) == [
        f"{number:03}.txt" for number in range(500)
    ]
    assert sum("error" in line for line in lines) == 9
