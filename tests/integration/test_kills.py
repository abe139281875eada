"""A run that is killed with SIGKILL comes to the same end, and does nothing twice (`tests/killing.py`; all of it: `make kill-test`)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

KILLING = Path(__file__).parents[1] / "killing.py"

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")]


def test_nothing_is_done_twice_wherever_the_process_is_killed() -> None:
    """A10, R2-R7, R10: some forty of the kills; answer, effects, keys, rows and questions are compared after each."""
    found = subprocess.run([sys.executable, str(KILLING), "--every", "8", "--twice", "3"], capture_output=True, text=True, check=False)
    said = found.stdout + found.stderr
    counted = re.search(r"^kills: (\d+), duplicates: (\d+)$", found.stdout, re.MULTILINE)
    assert counted is not None, said
    assert (found.returncode, counted[2]) == (0, "0"), said
    assert int(counted[1]) >= 35
