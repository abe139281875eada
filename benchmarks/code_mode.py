"""Code that calls tools, beside native calls and beside the code modes of other libraries.

`python code_mode.py` prints one table. For each task, a script plays what a model writes: native
calls one step after another, as the results allow, or one piece of code. All libraries ask it over
HTTP, in OpenAI's protocol. A request takes 300 ms, as a fast provider's does, and four characters
of a request count as a token, so that all are counted alike. The last row is the time of one call
inside a piece of code, without a store. Libraries that are not installed are left out; for all,
`pip install '.[code]' 'pydantic-ai-harness[code-mode]' 'pydantic-ai-slim[openai]'
'smolagents[openai]'`.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import re
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ferrule import LM, CodeMode, ReAct, Response, ToolCall
from ferrule.testing import ScriptedLM, serve

if TYPE_CHECKING:
    from ferrule import Request

REQUEST_S = 0.3
CHARACTERS_OF_A_TOKEN = 4
INNER_CALLS = 400
"""Fewer than pydantic-ai allows by default in one piece of code."""
INNER_ROUNDS = 5
Calls = list[tuple[str, dict[str, Any]]]
Play = Generator[Calls, list[Any], None]
Answer = Callable[["Request"], Response | str]
Tools = Sequence[Callable[..., Any]]

_made = {"calls": 0}


def _count() -> None:
    """Count a call of a tool: all libraries must make the same ones."""
    _made["calls"] += 1


def orders() -> list[dict[str, Any]]:
    """List all orders."""
    _count()
    return [
        {"id": number, "customer": number % 50, "euros": 5.0 + number, "late": number % 67 == 66}
        for number in range(200)
    ]


def customer(number: int) -> dict[str, Any]:
    """Look up a customer."""
    _count()
    return {"number": number, "name": f"customer {number}", "country": "NP" if number % 2 else "PT"}


def refund(order: int, euros: float) -> str:
    """Refund an order."""
    _count()
    return f"refunded {euros} for {order}"


def page(cursor: int) -> dict[str, Any]:
    """Read a page of the log; `next` is the cursor of the next one."""
    _count()
    lines = [f"{cursor}.{line} request served in {cursor * line} ms" for line in range(20)]
    return {"lines": lines, "next": cursor + 1 if cursor < 9 else None}


def follow(node: int) -> int:
    """Follow the link of a node."""
    _count()
    return node * 7 % 101


def price(item: str) -> float:
    """Look up a price."""
    _count()
    return float(len(item))


_tries = {"count": 0}


def flaky(n: int) -> str:
    """Fetch a value from an unreliable service."""
    _count()
    _tries["count"] += 1
    if _tries["count"] % 3:
        raise OSError("try again")
    return f"value {n}"


def is_valid(item: str) -> bool:
    """Check an item."""
    _count()
    return not item.endswith("3")


def write(item: str) -> str:
    """Write an item."""
    _count()
    return f"wrote {item}"


_polls = {"count": 0}


def status(job: int) -> str:
    """The status of a job."""
    _count()
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
    tools: Tools
    natively: Callable[[], Any]
    code: str


TASKS = (
    Task("filter 200 orders, refund three", [orders, refund], filter_natively,
         "for order in await orders():\n    if order['late']:\n        print(await refund(order=order['id'], euros=order['euros']))"),
    Task("join two tools", [orders, customer], join_natively,
         "numbers = sorted({o['customer'] for o in await orders() if o['euros'] > 195})\nfor n in numbers:\n    print((await customer(number=n))['name'])"),
    Task("ten pages", [page], paginate_natively,
         "cursor = 0\nslow = 0\nwhile cursor is not None:\n    result = await page(cursor=cursor)\n    slow += sum(int(line.split()[-2]) > 100 for line in result['lines'])\n    cursor = result['next']\nslow"),
    Task("a chain of ten", [follow], chain_natively,
         "node = 1\nfor _ in range(10):\n    node = await follow(node=node)\nnode"),
    Task("retry three times", [flaky], retry_natively,
         "for n in range(3):\n    while True:\n        try:\n            print(await flaky(n=n))\n            break\n        except ToolError:\n            pass"),
    Task("branch five times", [customer, refund, write], branch_natively,
         "for n in range(5):\n    found = await customer(number=n)\n    if found['country'] == 'NP':\n        print(await refund(order=n, euros=5.0))\n    else:\n        print(await write(item=found['name']))"),
    Task("sum of 30 prices", [price], sum_natively,
         "import asyncio\nsum(await asyncio.gather(*[price(item='x' * n) for n in range(1, 31)]))"),
    Task("validate, then write", [is_valid, write], validate_natively,
         "for n in range(5):\n    if await is_valid(item=f'item {n}'):\n        print(await write(item=f'item {n}'))"),
    Task("poll until done", [status], poll_natively,
         "while await status(job=1) != 'done':\n    pass"),
    Task("search and refine", [orders, customer, refund], refine_natively,
         "for order in await orders():\n    if order['late'] and (await customer(number=order['customer']))['country'] == 'PT':\n        print(await refund(order=order['id'], euros=order['euros']))"),
)  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """What a run took."""

    calls: int
    requests: int
    tokens: int
    seconds: float


# -- the libraries, and what the model writes for each


def _calls(calls: Calls, number: int) -> Response:
    numbered = [
        ToolCall(name=name, args=args, id=f"{number}.{place}")
        for place, (name, args) in enumerate(calls)
    ]
    return Response(None, tuple(numbered))


def _native(task: Task) -> Answer:
    play = task.natively()

    def answer(request: Request) -> Response:
        results: list[Any] = []
        for message in reversed(request.messages):
            if message.role != "tool":
                break
            results.insert(0, _value(message.text))
        try:
            calls = play.send(results) if results else next(play)
        except StopIteration:
            calls = [("finish", {"answer": "done"})]
        return _calls(calls, len(request.messages))

    return answer


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _in_code(task: Task) -> Answer:
    def answer(request: Request) -> Response:
        if request.messages[-1].role == "tool":
            return _calls([("finish", {"answer": "done"})], 2)
        return _calls([("run_code", {"code": task.code})], 1)

    return answer


def _in_code_of_pydantic_ai(task: Task) -> Answer:
    code = task.code.replace("ToolError", "Exception")

    def answer(request: Request) -> Response | str:
        if request.messages[-1].role == "tool":
            return "done"
        return _calls([("run_code", {"code": code})], 1)

    return answer


def _in_code_of_smolagents(task: Task) -> Answer:
    # Its functions are not async.
    code = re.sub(r"await asyncio\.gather\(\*(\[.*\])\)", r"\1", task.code)
    code = code.replace("import asyncio\n", "").replace("await ", "")
    # Not `Exception`, which is what its `break` raises.
    code = code.replace("ToolError", "OSError")

    def answer(request: Request) -> str:
        written = code
        if any(message.role == "assistant" for message in request.messages):
            written = "final_answer('done')"
        return f"Thought: next.\n<code>\n{written}\n</code>"

    return answer


def _run_ferrule(tools: Tools, url: str, task: str, options: dict[str, Any]) -> None:
    agent = ReAct("task -> answer", [*tools], max_iters=50, **options)
    agent(task=task, lm=LM(url, model="served", api_key="x"))


def _run_natively(tools: Tools, url: str, task: str) -> None:
    _run_ferrule(tools, url, task, {"native": True})


def _run_in_code(tools: Tools, url: str, task: str) -> None:
    _run_ferrule(tools, url, task, {"calls": CodeMode(calls=INNER_CALLS)})


def _run_pydantic_ai(tools: Tools, url: str, task: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai_harness import CodeMode as TheirCodeMode

    provider = OpenAIProvider(base_url=url, api_key="x")
    agent = Agent(
        OpenAIChatModel("served", provider=provider),
        tools=[*tools],
        capabilities=[TheirCodeMode(max_tool_calls=INNER_CALLS)],
    )
    asyncio.run(agent.run(task))


def _run_smolagents(tools: Tools, url: str, task: str) -> None:
    from smolagents import CodeAgent, OpenAIModel
    from smolagents.monitoring import LogLevel

    agent = CodeAgent(
        tools=[_for_smolagents(function) for function in tools],
        model=OpenAIModel("served", api_base=url, api_key="x"),
        verbosity_level=LogLevel.OFF,
    )
    agent.run(task)


def _for_smolagents(function: Callable[..., Any]) -> Any:
    from smolagents import tool

    # It wants a docstring that describes each argument.
    parameters = [name for name in function.__annotations__ if name != "return"]
    lines = [f"    {name}: The {name}." for name in parameters]
    documented = _copy(function)
    documented.__doc__ = "\n".join([function.__doc__ or "", "", "Args:", *lines])
    return tool(documented)


def _copy(function: Callable[..., Any]) -> Any:
    import functools
    import types

    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__)
    return functools.update_wrapper(copy, function)


@dataclass(frozen=True)
class Library:
    """A library in one of its modes."""

    name: str
    package: str
    run: Callable[[Tools, str, str], None]
    plays: Callable[[Task], Answer]

    @property
    def version(self) -> str:
        """Its version, or nothing if it is not installed."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return ""


LIBRARIES = (
    Library("native calls", "ferrule", _run_natively, _native),
    Library("code", "ferrule", _run_in_code, _in_code),
    Library(
        "pydantic-ai CodeMode", "pydantic-ai-harness", _run_pydantic_ai, _in_code_of_pydantic_ai
    ),
    Library("smolagents CodeAgent", "smolagents", _run_smolagents, _in_code_of_smolagents),
)


def measure(library: Library, task: Task) -> Figures:
    """Run a task with a library."""
    _tries["count"] = _polls["count"] = _made["calls"] = 0
    with serve(ScriptedLM(by=library.plays(task))) as served:
        begun = time.perf_counter()
        library.run(task.tools, served.base_url, task.name)
        seconds = time.perf_counter() - begun
        sizes = [len(body) for body in served.bodies]
    requests = len(sizes)
    tokens = sum(sizes) // CHARACTERS_OF_A_TOKEN
    return Figures(_made["calls"], requests, tokens, seconds + REQUEST_S * requests)


def inner_call_ms(library: Library) -> float:
    """The time of one call inside a piece of code: the lowest of some rounds."""

    def seconds(calls: int) -> float:
        code = f"for n in range({calls}):\n    await follow(node=n)"
        figures = measure(library, Task("inner", [follow], chain_natively, code))
        assert figures.calls == calls, f"{library.name} made {figures.calls} calls, not {calls}"
        return figures.seconds

    few = min(seconds(10) for _ in range(INNER_ROUNDS))
    many = min(seconds(INNER_CALLS) for _ in range(INNER_ROUNDS))
    return (many - few) / (INNER_CALLS - 10) * 1000


def _row(name: str, figures: Sequence[Figures]) -> str:
    requests = " / ".join(str(figure.requests) for figure in figures)
    tokens = " / ".join(f"{figure.tokens:,}" for figure in figures)
    seconds = " / ".join(f"{figure.seconds:.1f}" for figure in figures)
    return f"| {name} | {requests} | {tokens} | {seconds} |"


def _sum(figures: Sequence[Figures]) -> Figures:
    return Figures(
        sum(figure.calls for figure in figures),
        sum(figure.requests for figure in figures),
        sum(figure.tokens for figure in figures),
        sum(figure.seconds for figure in figures),
    )


def main() -> None:
    """Print the table; with `--tiny`, only for the chain of ten with ferrule."""
    if "--tiny" in sys.argv:
        native, code = (measure(library, TASKS[3]) for library in LIBRARIES[:2])
        print(_row(TASKS[3].name, [native, code]))
        return
    libraries = [library for library in LIBRARIES if library.version]
    for library in LIBRARIES:
        print(f"{library.name}: {library.package} {library.version or 'is not installed'}")
    print(f"\nEach cell: {' / '.join(library.name for library in libraries)}\n")
    print("| task | requests | prompt tokens | seconds |")
    print("|---|---|---|---|")
    for library in libraries:
        measure(library, TASKS[3])  # imports, and starts what it needs
    columns: list[list[Figures]] = [[] for _ in libraries]
    for task in TASKS:
        figures = [measure(library, task) for library in libraries]
        calls = {figure.calls for figure in figures}
        assert len(calls) == 1, f"{task.name}: not the same calls, {figures}"
        for column, figure in zip(columns, figures, strict=True):
            column.append(figure)
        print(_row(task.name, figures))
    print(_row("all ten", [_sum(column) for column in columns]))
    in_code = [library for library in libraries if library.plays is not _native]
    inner = " / ".join(f"{inner_call_ms(library):.2f}" for library in in_code)
    print(f"| a call inside code, ms | | | {inner} |")


if __name__ == "__main__":
    main()
