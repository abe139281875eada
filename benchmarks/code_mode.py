"""Code mode beside native calls: requests, tokens of the prompts, and time, for ten tasks.

`python code_mode.py` prints a table. For each task, a script plays what a model writes in each
mode: native calls one step after another, as the results allow, or one piece of code. A request
takes 300 ms, as a fast provider's does, and four characters of a request count as a token. The last
line is the time of one call inside a piece of code, without a store.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ferrule import CodeMode, ReAct, Response, ToolCall, tool
from ferrule.testing import ScriptedLM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ferrule import Request, Tool

REQUEST_S = 0.3
CHARACTERS_OF_A_TOKEN = 4
INNER_CALLS = 2_000
Calls = list[tuple[str, dict[str, Any]]]
Play = Generator[Calls, list[Any], None]


@tool
def orders() -> list[dict[str, Any]]:
    """List all orders."""
    return [
        {"id": number, "customer": number % 50, "euros": 5.0 + number, "late": number % 67 == 66}
        for number in range(200)
    ]


@tool
def customer(number: int) -> dict[str, Any]:
    """Look up a customer."""
    return {"number": number, "name": f"customer {number}", "country": "NP" if number % 2 else "PT"}


@tool
def refund(order: int, euros: float) -> str:
    """Refund an order."""
    return f"refunded {euros} for {order}"


@tool
def page(cursor: int) -> dict[str, Any]:
    """Read a page of the log; `next` is the cursor of the next one."""
    lines = [f"{cursor}.{line} request served in {cursor * line} ms" for line in range(20)]
    return {"lines": lines, "next": cursor + 1 if cursor < 9 else None}


@tool
def follow(node: int) -> int:
    """Follow the link of a node."""
    return node * 7 % 101


@tool
def price(item: str) -> float:
    """Look up a price."""
    return float(len(item))


_tries = {"count": 0}


@tool
def flaky(n: int) -> str:
    """Fetch a value from an unreliable service."""
    _tries["count"] += 1
    if _tries["count"] % 3:
        raise OSError("try again")
    return f"value {n}"


@tool
def is_valid(item: str) -> bool:
    """Check an item."""
    return not item.endswith("3")


@tool
def write(item: str) -> str:
    """Write an item."""
    return f"wrote {item}"


_polls = {"count": 0}


@tool
def status(job: int) -> str:
    """The status of a job."""
    _polls["count"] += 1
    return "running" if _polls["count"] % 8 else "done"


def filter_natively() -> Play:
    [found] = yield [("orders", {})]
    late = [order for order in found if order["late"]]
    yield [("refund", {"order": order["id"], "euros": order["euros"]}) for order in late]


def join_natively() -> Play:
    [found] = yield [("orders", {})]
    numbers = sorted({order["customer"] for order in found if order["euros"] > 195})
    yield [("customer", {"number": number}) for number in numbers]


def paginate_natively() -> Play:
    cursor: int | None = 0
    while cursor is not None:
        [result] = yield [("page", {"cursor": cursor})]
        cursor = result["next"]


def chain_natively() -> Play:
    node = 1
    for _ in range(10):
        [node] = yield [("follow", {"node": node})]


def retry_natively() -> Play:
    for number in range(3):
        result = "failed"
        while not str(result).startswith("value"):
            [result] = yield [("flaky", {"n": number})]


def branch_natively() -> Play:
    for number in range(5):
        [found] = yield [("customer", {"number": number})]
        if found["country"] == "NP":
            yield [("refund", {"order": number, "euros": 5.0})]
        else:
            yield [("write", {"item": found["name"]})]


def sum_natively() -> Play:
    yield [("price", {"item": "x" * number}) for number in range(1, 31)]


def validate_natively() -> Play:
    for number in range(5):
        [valid] = yield [("is_valid", {"item": f"item {number}"})]
        if valid:
            yield [("write", {"item": f"item {number}"})]


def poll_natively() -> Play:
    result = ""
    while result != "done":
        [result] = yield [("status", {"job": 1})]


def refine_natively() -> Play:
    [found] = yield [("orders", {})]
    for order in [order for order in found if order["late"]]:
        [person] = yield [("customer", {"number": order["customer"]})]
        if person["country"] == "PT":
            yield [("refund", {"order": order["id"], "euros": order["euros"]})]


@dataclass(frozen=True)
class Task:
    """What a model does in each mode."""

    name: str
    tools: Sequence[Tool]
    natively: Callable[[], Any]
    code: str


TASKS = (
    Task("filter 200 orders, refund three", [orders, refund], filter_natively,
         "for order in await orders():\n    if order['late']:\n        print(await refund(order['id'], order['euros']))"),
    Task("join two tools", [orders, customer], join_natively,
         "numbers = sorted({o['customer'] for o in await orders() if o['euros'] > 195})\nfor n in numbers:\n    print((await customer(n))['name'])"),
    Task("ten pages", [page], paginate_natively,
         "cursor = 0\nslow = 0\nwhile cursor is not None:\n    result = await page(cursor)\n    slow += sum(int(line.split()[-2]) > 100 for line in result['lines'])\n    cursor = result['next']\nslow"),
    Task("a chain of ten", [follow], chain_natively,
         "node = 1\nfor _ in range(10):\n    node = await follow(node)\nnode"),
    Task("retry three times", [flaky], retry_natively,
         "for n in range(3):\n    while True:\n        try:\n            print(await flaky(n))\n            break\n        except ToolError:\n            pass"),
    Task("branch five times", [customer, refund, write], branch_natively,
         "for n in range(5):\n    found = await customer(n)\n    if found['country'] == 'NP':\n        print(await refund(n, 5.0))\n    else:\n        print(await write(found['name']))"),
    Task("sum of 30 prices", [price], sum_natively,
         "import asyncio\nsum(await asyncio.gather(*[price('x' * n) for n in range(1, 31)]))"),
    Task("validate, then write", [is_valid, write], validate_natively,
         "for n in range(5):\n    if await is_valid(f'item {n}'):\n        print(await write(f'item {n}'))"),
    Task("poll until done", [status], poll_natively,
         "while await status(1) != 'done':\n    pass"),
    Task("search and refine", [orders, customer, refund], refine_natively,
         "for order in await orders():\n    if order['late'] and (await customer(order['customer']))['country'] == 'PT':\n        print(await refund(order['id'], order['euros']))"),
)  # fmt: skip


@dataclass
class Figures:
    """What a run took."""

    requests: int = 0
    tokens: int = 0
    seconds: float = 0.0


def measure(task: Task, *, in_code: bool) -> Figures:
    """Run a task in one of the modes."""
    figures = Figures()
    play = task.natively()

    def answer(request: Request) -> Response:
        figures.requests += 1
        shown = [message.json for message in request.messages]
        size = sum(map(len, shown)) + len(json.dumps([*request.tools]))
        figures.tokens += size // CHARACTERS_OF_A_TOKEN
        calls = _code_of(request, task) if in_code else _native_calls(request, play)
        numbered = [
            ToolCall(name=name, args=args, id=f"{figures.requests}.{number}")
            for number, (name, args) in enumerate(calls)
        ]
        return Response("next", tuple(numbered))

    options: dict[str, Any] = {"calls": "code"} if in_code else {"native": True}
    agent = ReAct("task -> answer", [*task.tools], max_iters=50, **options)
    begun = time.perf_counter()
    agent(task=task.name, lm=ScriptedLM(by=answer))
    figures.seconds = time.perf_counter() - begun + REQUEST_S * figures.requests
    return figures


def _code_of(request: Request, task: Task) -> Calls:
    if request.messages[-1].role == "tool":
        return [("finish", {"answer": "done"})]
    return [("run_code", {"code": task.code})]


def _native_calls(request: Request, play: Any) -> Calls:
    results: list[Any] = []
    for message in reversed(request.messages):
        if message.role != "tool":
            break
        results.insert(0, _value(message.text))
    try:
        return play.send(results) if results else next(play)
    except StopIteration:
        return [("finish", {"answer": "done"})]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def inner_call_ms() -> float:
    """The time of one call inside a piece of code."""

    def run(calls: int) -> float:
        task = Task(
            "inner", [follow], chain_natively, f"for n in range({calls}):\n    await follow(n)"
        )

        def answer(request: Request) -> Response:
            [(name, args)] = _code_of(request, task)
            return Response(
                "next", (ToolCall(name=name, args=args, id=str(len(request.messages))),)
            )

        agent = ReAct("task -> answer", [follow], calls=CodeMode(calls=calls))
        begun = time.perf_counter()
        agent(task="inner", lm=ScriptedLM(by=answer))
        return time.perf_counter() - begun

    run(10)
    return (run(INNER_CALLS) - run(10)) / (INNER_CALLS - 10) * 1000


def main() -> None:
    """Print the table."""
    print(
        "| task | requests, native | code | prompt tokens, native | code | seconds, native | code |"
    )
    print("|---|---|---|---|---|---|---|")
    measure(TASKS[0], in_code=True)  # starts the interpreter
    for task in TASKS:
        native, code = measure(task, in_code=False), measure(task, in_code=True)
        print(
            f"| {task.name} | {native.requests} | {code.requests} "
            f"| {native.tokens:,} | {code.tokens:,} "
            f"| {native.seconds:.1f} | {code.seconds:.1f} |"
        )
    print(f"\na call inside code: {inner_call_ms():.2f} ms")


if __name__ == "__main__":
    main()
