"""A store of many runs, and how long it takes to find some: `python -m tests.many_runs FILE
[COUNT]`.

Makes COUNT runs (2,000 by default) of a support desk over two weeks, unless the file has them, and
prints milliseconds of the processor as JSON. In the second week, one model answers more slowly.
Look at the file with `ferrule ui --store FILE`.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ferrule import MemoryStore, Predict, Response, SQLiteStore, ToolCall
from ferrule.approval.question import Question
from ferrule.forms import record_form
from ferrule.runs.about import about
from ferrule.runs.outline import NameUse, Outline
from ferrule.runs.store.outliner import words_in
from ferrule.testing import ScriptedLM
from ferrule.values.conversation.exchange import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

DAY_S = 86_400
DAYS = 14
BATCH = 1_000
ROUNDS = 7
CUSTOMERS = [
    "Acme",
    "Globex",
    "Initech",
    "Umbrella",
    "Hooli",
    "Stark",
    "Wayne",
    "Tyrell",
    "Soylent",
]
PROGRAMS = {"Support": 0.7, "Billing": 0.2, "Research": 0.1}
MODELS = {"openai/gpt-5-mini": 0.5, "anthropic/claude-haiku-4-5": 0.35, "openai/gpt-5": 0.15}
SLOWER = "anthropic/claude-haiku-4-5"
ASKS = [
    "Refund order {order} of {customer}: the parcel never came",
    "Why was {customer} charged twice for order {order}?",
    "Change the delivery address of order {order} for {customer}",
    "Write a summary of what {customer} complained about in October",
    "Cancel the subscription of {customer} at the end of the month",
]
ERRORS = {
    "refund": "The payment provider answered 503 for order {order}",
    "find_order": "There is no order {order}",
    "send_mail": "The mailbox of {customer} is full",
}


class Desk:
    """Makes runs of a support desk, the same ones each time."""

    def __init__(self, end: float) -> None:
        self._chance = random.Random(7)
        self._end = end
        self.now = 0.0
        store = MemoryStore()
        answer = Response("[[ ## answer ## ]]\n42")
        Predict("question -> answer", lm=ScriptedLM([answer])).start(
            question="?", store=store, run_id="r"
        )
        self._head = json.loads(store.load("r").head)

    def fill(self, store: SQLiteStore, count: int) -> None:
        """Store so many runs, the oldest first."""
        self.now = self._end - DAYS * DAY_S
        lease = store.create("filler", program="filler", head="{}")
        for first in range(0, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            store.transact(lease, lambda _, numbers=numbers: self._keep(store, numbers, count))
        store.delete("filler")

    def _keep(self, store: SQLiteStore, numbers: range, count: int) -> None:
        for number in numbers:
            self.now = self._end - DAYS * DAY_S * (1 - number / count)
            self._keep_one(store, number, is_last=number > count - 40)

    def _keep_one(self, store: SQLiteStore, number: int, *, is_last: bool) -> None:
        chance = self._chance
        run_id = f"{chance.getrandbits(128):032x}"
        customer = chance.choice(CUSTOMERS)
        order = f"A-{10_000 + number}"
        asked = chance.choice(ASKS).format(order=order, customer=customer)
        program = chance.choices([*PROGRAMS], [*PROGRAMS.values()])[0]
        model = chance.choices([*MODELS], [*MODELS.values()])[0]
        steps = chance.randint(1, 6)
        seconds_a_call = chance.lognormvariate(0.6, 0.5)
        if model == SLOWER and self.now > self._end - 7 * DAY_S:
            seconds_a_call *= 1.8
        tokens = steps * chance.randint(400, 3_000)
        cost = tokens * 2e-6
        failing = ""
        if chance.random() < 0.06:
            failing = chance.choice([*ERRORS])
        error = ERRORS.get(failing, "").format(order=order, customer=customer)
        status = "failed" if error and chance.random() < 0.8 else "done"
        if is_last and chance.random() < 0.4:
            status = "waiting"
        uses = [NameUse("model", model, steps, 0, tokens, cost, steps * seconds_a_call)]
        for name in chance.sample([*ERRORS], 2):
            uses.append(NameUse("tool", name, 1, int(name == failing), seconds=0.4))
        if failing and failing not in {use.name for use in uses}:
            uses.append(NameUse("tool", failing, 1, 1, seconds=0.4))
        answered = ""
        if status == "done":
            answered = f"Done: I have answered {customer} about order {order}."
        user = chance.choice(["ada", "grace", "linus"])
        facts = f"{run_id} {program} {asked} {answered} {error} {user} {' '.join(ERRORS)}"
        outline = Outline(
            asked=asked,
            answered=answered,
            steps=steps,
            seconds=steps * seconds_a_call + 0.8,
            usage=Usage(tokens * 3 // 4, tokens // 4, calls=steps, cost=cost),
            uses=tuple(uses),
            words=tuple(dict.fromkeys(words_in(facts))),
        )
        questions: list[Any] = []
        if status == "waiting":
            call = ToolCall(
                name="refund", args={"order": order, "cents": chance.randint(500, 9000)}
            )
            questions.append(
                record_form(Question("confirm", f"Refund {order}?", call, id=run_id[:20]))
            )
        failure = {"type": "ToolError", "text": error} if status == "failed" else None
        head = json.dumps(
            {
                **self._head,
                "id": run_id,
                "program": program,
                "status": status,
                "inputs": {"question": asked},
                "questions": questions,
                "error": failure,
            }
        )
        lease = store.create(
            run_id,
            program=program,
            head=head,
            about=about({"user": user, "customer": customer}, None),
            outline=outline,
        )
        self.now += outline.seconds
        store.release(lease, status=status, head=head, outline=outline)


def milliseconds(work: Callable[[], Any]) -> float:
    """Of the processor: the median of some rounds."""
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        times.append(1e3 * (time.process_time() - began))
    return round(statistics.median(times), 1)


def main(path: Path, count: int) -> dict[str, Any]:
    """The figures."""
    if not path.exists():
        desk = Desk(time.time() - 60)
        with SQLiteStore(path, full_sync=False, clock=lambda: desk.now, lease_s=1e9) as store:
            desk.fill(store, count)
    with SQLiteStore(path) as store:
        now = store.now()
        ways: dict[str, Callable[[], Any]] = {
            "the first page": store.list,
            "counts": store.count,
            "search of one order": lambda: store.list(search="a 10007"),
            "search of a customer": lambda: store.list(search="umbr"),
            "search of a word in all": lambda: store.list(search="refund"),
            "search of three words": lambda: store.list(search="refund acme parcel"),
            "counts of a search": lambda: store.count(search="umbr"),
            "failed yesterday with a tool": lambda: store.list(
                status="failed", tool="refund", tool_failed=True, since=now - DAY_S
            ),
            "of a user": lambda: store.list(metadata={"user": "ada"}, status="failed"),
            "by cost": lambda: store.list(order="cost"),
            "overview of a week": lambda: store.overview(since=now - 7 * DAY_S, until=now),
            "overview of a month": lambda: store.overview(since=now - 30 * DAY_S, until=now),
            "names": lambda: [store.names(kind) for kind in ("program", "tool", "model")],
        }
        return {
            "runs": sum(store.count().values()),
            "ms": {n: milliseconds(w) for n, w in ways.items()},
        }


if __name__ == "__main__":
    place = Path(sys.argv[1])
    sys.stdout.write(
        json.dumps(main(place, int(sys.argv[2]) if len(sys.argv) > 2 else 2_000), indent=1) + "\n"
    )
