"""Options that let a command decide on the question of a run without a terminal."""

from __future__ import annotations

import json


def named_question(runs: str, run_id: str) -> list[str]:
    """`--yes --question ID`, from the output of `ferrule runs --json`."""
    for run in json.loads(runs):
        if run["id"] == run_id:
            [question] = [
                question["id"]
                for question in run["questions"]
                if question["id"] not in run["decided"]
            ]
            return ["--yes", "--question", question]
    raise LookupError(run_id)
