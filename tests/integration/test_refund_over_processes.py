"""A refund: started by one process, approved on the command line, resumed by a third, which must
have the shop's connection.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import forked
import pytest
from named_question import named_question

SHOP = '''
import sqlite3
import ferrule

class Shop:
    """The shop's database: a connection, which no store can keep."""

    def __init__(self):
        self.db = sqlite3.connect("shop.db", check_same_thread=False)
        self.db.execute("CREATE TABLE IF NOT EXISTS refunds (id TEXT)")

@ferrule.tool(require_confirmation=True)
def refund(order: str, ctx: ferrule.Context{declared}) -> str:
    """Refund an order."""
    ctx.deps.db.execute("INSERT INTO refunds VALUES (?)", (order,))
    ctx.deps.db.commit()
    return "refunded"

def script(request):
    """A model that says "Refunded" whatever the tool returned."""
    asked = any("observation" in message.text for message in request.messages[1:])
    name, args = ("finish", "{{}}") if asked else ("refund", '{{"order": "A1"}}')
    return f"[[ ## next_thought ## ]]\\nt\\n\\n[[ ## next_tool_name ## ]]\\n{{name}}\\n\\n[[ ## next_tool_args ## ]]\\n{{args}}"

class Model(ferrule.BaseLM):
    name = "scripted"

    def complete(self, request):
        text = script(request) if "next_tool_name" in request.messages[0].text else "[[ ## reasoning ## ]]\\nr\\n\\n[[ ## answer ## ]]\\nRefunded."
        return ferrule.Response(text)

desk = ferrule.ReAct("question -> answer", [refund], native=False)
desk.set_lm(Model())

if __name__ == "__main__":
    run = desk.start(question="Refund A1.", store=ferrule.SQLiteStore("runs.db"), run_id="r1", deps=Shop())
    print(run.status)
'''


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return forked.run(*words, cwd=folder)


def ferrule(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-m", "ferrule", *words, "--store", "runs.db")


def refunds(folder: Path) -> str:
    code = "import sqlite3; print(sqlite3.connect('shop.db').execute('SELECT id FROM refunds').fetchall())"
    return run(folder, "-c", code).stdout.strip()


@pytest.mark.integration
@pytest.mark.parametrize("declared", ["[Shop]", ""], ids=["typed", "bare"])
def test_an_approved_refund_does_not_happen_without_deps_and_nobody_says_that_it_did(
    tmp_path: Path,
    declared: str,
) -> None:
    """api.md, 21: it was said to be done, with exit code 0."""
    pytest.importorskip("typer", reason="needs the extra: pip install 'ferrule[cli]'")
    (tmp_path / "shop.py").write_text(SHOP.format(declared=declared))
    assert run(tmp_path, "shop.py").stdout.strip() == "waiting"
    named = named_question(ferrule(tmp_path, "runs", "--json").stdout, "r1")
    assert ferrule(tmp_path, "approve", "r1", *named).returncode == 0
    without = ferrule(tmp_path, "resume", "r1", "--program", "shop:desk")
    assert without.returncode in {1, 2}
    assert "--deps module:factory" in without.stderr
    assert "Refunded" not in without.stdout
    assert refunds(tmp_path) == "[]"
    if declared:
        done = ferrule(tmp_path, "resume", "r1", "--program", "shop:desk", "--deps", "shop:Shop")
        assert (done.returncode, done.stderr) == (0, "")
        assert "Refunded." in done.stdout
        assert refunds(tmp_path) == "[('A1',)]"
