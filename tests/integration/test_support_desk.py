"""`examples/apps/support_desk.py`, ended before and after each write to its store: no ticket is
lost, and no refund is made twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

APP = Path(__file__).parents[2] / "examples" / "apps" / "support_desk.py"

# Each command is a fork of one process, because hundreds of new interpreters would take minutes.
DRIVER = """
import os, runpy, sys, tempfile
from ferrule import SQLiteStore

app = runpy.run_path(sys.argv[1])
ENDED = 9

def end_at(at, is_before):
    writes = 0
    def counted(method):
        def write(*args, **options):
            nonlocal writes
            writes += 1
            here = writes == at
            if here and is_before:
                os._exit(ENDED)
            result = method(*args, **options)
            if here:
                os._exit(ENDED)
            return result
        return write
    for name in ("create", "append", "transact", "release"):
        setattr(SQLiteStore, name, counted(getattr(SQLiteStore, name)))

def execute(*words, at=None, is_before=False):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if at is not None:
            end_at(at, is_before)
        app["main"](*words)
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)

def whole_story(at, is_before):
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        codes = [execute("open"), execute("work", at=at, is_before=is_before), execute("work")]
        for run in (1, 3, 4):
            codes.append(execute("decide", f"ticket-{run}", "joe", "yes"))
        codes += [execute("work", at=at, is_before=is_before), execute("work")]
        replies = [row["reply"] for row in app["query"]("SELECT reply FROM tickets ORDER BY id")]
        refunded = [row["refunded"] for row in app["query"]("SELECT refunded FROM orders ORDER BY id")]
        assert (replies, refunded) == ([f"We refunded {paid} euros." for paid in refunded], [80, 12, 300, 45]), (at, is_before, replies, refunded)
        assert set(codes) <= {0, ENDED}, codes
        return codes.count(ENDED)

stories = 0
for is_before in (True, False):
    at = 1
    while whole_story(at, is_before):  # until there are fewer writes
        at += 1
    stories += at
os.chdir("/")
print(stories)
"""


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.skipif(not hasattr(os, "fork"), reason="every command is a fork")
def test_a_crash_at_any_write_loses_no_ticket_and_repeats_no_refund() -> None:
    run = subprocess.run(
        [sys.executable, "-c", DRIVER, str(APP)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert int(run.stdout) > 60
