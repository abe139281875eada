"""A support desk, as examples/apps/support_desk.py: tickets, refunds that a person decides, and
crashes.

Without arguments, it runs the story of that example, each step in a process of its own, and asserts
how it ends.
"""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing

from ferrule import (
    Context,
    Policy,
    ReAct,
    Run,
    SQLiteStore,
    ToolRetry,
    allow,
    configure,
    le,
    tool,
)
from ferrule.testing import ScriptedLM

FILE = "desk.db"
TABLES = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer, article, paid, refunded DEFAULT 0);
CREATE TABLE tickets (id INTEGER PRIMARY KEY, customer, text, reply);
INSERT INTO orders (customer, article, paid)
    VALUES ('ann', 'lamp', 80), ('bob', 'mug', 12), ('cid', 'tent', 300), ('dee', 'rope', 45);
INSERT INTO tickets (customer, text)
    VALUES ('ann', 'It broke.'), ('bob', 'No handle.'), ('cid', 'It leaks.'), ('dee', 'Too short.');
"""


def query(sql, *values):
    with closing(sqlite3.connect(FILE, isolation_level=None)) as db:
        return db.execute(sql, values).fetchall()


@tool(effect="read")
def list_orders(ctx: Context[str]) -> list[dict[str, int | str]]:
    """List the customer's orders: number, article, euros paid and refunded."""
    rows = query("SELECT id, article, paid, refunded FROM orders WHERE customer = ?", ctx.deps)
    return [dict(zip(("id", "article", "paid", "refunded"), row, strict=True)) for row in rows]


@tool(effect="transactional", require_confirmation=True)
def refund(order: int, euros: int, ctx: Context[str]) -> str:
    """Refund an order of the customer, or a part of it."""
    changed = ctx.db.execute(
        "UPDATE orders SET refunded = refunded + ? "
        "WHERE id = ? AND customer = ? AND ? BETWEEN 1 AND paid - refunded",
        (euros, order, ctx.deps, euros),
    ).rowcount
    if not changed:
        raise ToolRetry(f"{euros} euros of order {order} cannot be refunded.")
    return f"We refunded {euros} euros."


agent = ReAct(
    "ticket -> reply",
    [list_orders, refund],
    policy=Policy([allow("refund", euros=le(20))]),
)


def play(request):
    results = [message.text for message in request.messages if message.role == "tool"]
    if not results:
        return {"name": "list_orders", "args": {}}
    if len(results) == 1:
        [order] = json.loads(results[0])
        return {"name": "refund", "args": {"order": order["id"], "euros": order["paid"]}}
    if "crash" in sys.argv:
        os._exit(1)  # after the refund, before the reply
    return {"name": "finish", "args": {"reply": results[1]}}


def work(store):
    configure(lm=ScriptedLM(by=play))
    known = {line.id for line in Run.list(store, limit=None)}
    for number, customer, text in query(
        "SELECT id, customer, text FROM tickets WHERE reply IS NULL"
    ):
        run_id = f"ticket-{number}"
        if run_id not in known:
            run = agent.start(ticket=text, store=store, run_id=run_id, deps=customer)
        else:
            run = Run.load(store, run_id, agent, deps=customer)
            if run.status != "done":
                run.resume()
        if run.status == "done":
            query("UPDATE tickets SET reply = ? WHERE id = ?", run.prediction.reply, number)


def decide(store, run_id, said):
    for line in Run.list(store, status="waiting", limit=None):
        if line.id == run_id:
            [question] = line.questions
            store.decide(run_id, question.decide(said).signed(by="joe", via="desk"))


def main(command, *words):
    store = SQLiteStore(FILE)
    if command == "open":
        with closing(sqlite3.connect(FILE)) as db:
            db.executescript(TABLES)
    elif command == "work":
        work(store)
    else:
        decide(store, *words)


def story():
    def step(*words, code=0):
        assert subprocess.run([sys.executable, __file__, *words], check=False).returncode == code

    step("open")
    step(
        "work", "crash", code=1
    )  # bob's refund needs no person: it is made, and then the process dies
    step("work")
    waiting = [line.id for line in Run.list(SQLiteStore(FILE), status="waiting", limit=None)]
    assert sorted(waiting) == ["ticket-1", "ticket-3", "ticket-4"]
    step("decide", "ticket-1", "yes")
    step("decide", "ticket-3", '{"euros": 150}')
    step("decide", "ticket-4", "Offer an exchange.")
    step("work", "crash", code=1)
    step("work")
    assert query("SELECT article, refunded FROM orders") == [
        ("lamp", 80),
        ("mug", 12),
        ("tent", 150),
        ("rope", 0),
    ]
    replies = [reply for (reply,) in query("SELECT reply FROM tickets ORDER BY id")]
    assert replies[:2] == ["We refunded 80 euros.", "We refunded 12 euros."]
    assert "150" in replies[2]
    assert replies[3] == "Offer an exchange."


if __name__ == "__main__":
    if sys.argv[1:]:
        main(*sys.argv[1:])
    else:
        story()
