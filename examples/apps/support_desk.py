"""A support desk: an agent answers tickets with tools over a database, and a person in another process decides about refunds.

Without arguments, it executes these commands in a new folder, each in a process of its own:
$ open
$ work crash
$ work
$ waiting
$ decide ticket-1 joe yes
$ decide ticket-3 joe '{"euros": 150}'
$ decide ticket-4 joe 'Offer an exchange.'
$ work crash
$ work
$ show
"""

import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from tempfile import TemporaryDirectory
from typing import Any

from ferrule import (
    Context,
    Policy,
    ReAct,
    Request,
    Run,
    Signature,
    SQLiteStore,
    ToolRetry,
    allow,
    configure,
    le,
    tool,
)
from ferrule.testing import ScriptedLM

SCHEMA = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, article TEXT, paid INTEGER, refunded INTEGER DEFAULT 0);
CREATE TABLE tickets (id INTEGER PRIMARY KEY, customer TEXT, text TEXT, reply TEXT);
INSERT INTO orders (customer, article, paid) VALUES ('ann', 'lamp', 80), ('bob', 'mug', 12), ('cid', 'tent', 300), ('dee', 'rope', 45);
INSERT INTO tickets (customer, text) VALUES ('ann', 'It broke.'), ('bob', 'No handle.'), ('cid', 'It leaks.'), ('dee', 'Too short.');
"""


# `deps` is the customer. It is not an argument of the tools, so a model cannot ask for another customer's orders.
@tool(effect="read")
def list_orders(ctx: Context[str]) -> list[dict[str, Any]]:
    """List the customer's orders, with what was paid in euros."""
    return [
        dict(row)
        for row in query(
            "SELECT id, article, paid, refunded FROM orders WHERE customer = ?",
            ctx.deps,
        )
    ]


# The shop's tables are in the database of the runs. So a refund and the record of its result are one transaction: after a crash, both
# exist or neither. A payment service would be `effect="idempotent"`, and get `ctx.key`.
@tool(effect="transactional", require_confirmation=True)
def refund(order: int, euros: int, ctx: Context[str]) -> str:
    """Refund an order, or a part of it."""
    sql = "UPDATE orders SET refunded = refunded + ? WHERE id = ? AND customer = ? AND ? BETWEEN 1 AND paid - refunded"
    if ctx.db.execute(sql, (euros, order, ctx.deps, euros)).rowcount == 0:
        raise ToolRetry(
            f"The customer has no order {order} from which {euros} euros can be refunded.",
        )
    return f"We refunded {euros} euros."


answer_ticket = Signature(
    "ticket -> reply",
    "Answer the customer. If we owe a refund, make it first; a colleague may have to agree.",
)
agent = ReAct(
    answer_ticket,
    [list_orders, refund],
    policy=Policy([allow("refund", euros=le(20))]),
)  # a person decides about more


def model(request: Request) -> dict[str, Any]:
    """Play the model, so that this runs anywhere. With a real one: `configure(lm=LM("openai/gpt-5-mini"))`."""
    results = [message.text for message in request.messages if message.role == "tool"]
    if not results:
        return {"name": "list_orders", "args": {}}
    if len(results) == 1:
        [order] = json.loads(results[0])
        return {"name": "refund", "args": {"order": order["id"], "euros": order["paid"]}}
    if (
        sys.argv[-1] == "crash"
    ):  # the process dies here: the refund is made, but the customer has no answer
        os._exit(1)
    return {"name": "finish", "args": {"reply": results[1]}}


def work(store: SQLiteStore) -> None:
    """Start or resume the run of every open ticket. The run has the ticket's id, so a ticket has one run."""
    known = {line.id for line in Run.list(store, limit=None)}
    for number, customer, text in query(
        "SELECT id, customer, text FROM tickets WHERE reply IS NULL",
    ):
        run_id = f"ticket-{number}"
        if run_id not in known:
            run = agent.start(ticket=text, store=store, run_id=run_id, deps=customer)
        elif (
            run := Run.load(store, run_id, agent, deps=customer)
        ).status != "done":  # else it ended before it wrote the reply
            run.resume()
        print(run_id, run.status, flush=True)
        if run.status == "done":
            query("UPDATE tickets SET reply = ? WHERE id = ?", run.prediction.reply, number)


def query(sql: str, *values: Any) -> list[sqlite3.Row]:
    with closing(sqlite3.connect("desk.db", isolation_level=None)) as db:
        db.row_factory = sqlite3.Row
        return db.execute(sql, values).fetchall()


def main(*words: str) -> None:
    """Execute one command. Deciding needs only the store: no program, no model."""
    store = SQLiteStore("desk.db")  # opens the file on first use
    match words:
        case ["open"]:
            with closing(sqlite3.connect("desk.db")) as db:
                db.executescript(SCHEMA)
        case ["work", *_]:
            configure(lm=ScriptedLM(by=model))
            work(store)
        case ["waiting"]:
            for line in Run.list(store, status="waiting", limit=None):
                print(line.id, *(question.text for question in line.questions))
        case ["decide", run_id, person, said]:
            [question] = next(
                line.questions
                for line in Run.list(store, status="waiting", limit=None)
                if line.id == run_id
            )
            store.decide(run_id, question.decide(said).signed(by=person, via="desk"))
        case ["show"]:
            for row in query("SELECT id, reply FROM tickets") + query(
                "SELECT article, refunded FROM orders",
            ):
                print(*row)
        case _:
            with TemporaryDirectory() as folder:
                for line in re.findall(r"^\$ (.+)$", __doc__, re.MULTILINE):
                    print("$", line, flush=True)
                    subprocess.run(
                        [sys.executable, __file__, *shlex.split(line)],
                        cwd=folder,
                        check=False,
                    )


if __name__ == "__main__":
    main(*sys.argv[1:])
