"""A batch of extractions, in each library: `python extractions.py` prints a line for each.

2,000 texts become typed records (`--tiny`: 50), 64 at once, in a process for each library, over
HTTP against `model_server.py`. Each library extracts as its documentation says. A few extractions
come first and are not measured. CPU is that of the library's process; `no_library` is a bare loop
over `httpx2`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from pydantic import BaseModel

HERE = Path(__file__).parent
EXTRACTIONS = 50 if "--tiny" in sys.argv else 2000
AT_ONCE = 64
WARM_UP = 64
TASK = "Extract the order."
TEXTS = [f"Order {number}: two ropes and a tent for Ada in Rome." for number in range(EXTRACTIONS)]
Extract = Callable[[list[str]], Awaitable[list["Order"]]]
"""The records in some texts."""


class Item(BaseModel):
    """One line of an order."""

    name: str
    count: int


class Order(BaseModel):
    """What a text says of an order."""

    customer: str
    city: str
    items: list[Item]
    euros: float
    express: bool


def ours(url: str) -> Extract:
    from ferrule import LM, InputField, OutputField, Predict, Signature

    class Reading(Signature):
        """Extract the order."""

        text: str = InputField()
        order: Order = OutputField()

    program = Predict(Reading, lm=LM("openai/gpt-4o", base_url=url, api_key="x"))

    async def extract(texts: list[str]) -> list[Order]:
        inputs = [{"text": text} for text in texts]
        return [record.order for record in await program.abatch(inputs, max_concurrency=AT_ONCE)]

    return extract


def no_library(url: str) -> Extract:
    import httpx2

    form = {
        "type": "json_schema",
        "json_schema": {"name": "o", "schema": Order.model_json_schema()},
    }

    async def extract(texts: list[str]) -> list[Order]:
        async with httpx2.AsyncClient(base_url=url, timeout=None) as client:

            async def one(text: str) -> Order:
                messages = [
                    {"role": "system", "content": TASK},
                    {"role": "user", "content": text},
                ]
                body = {"model": "m", "messages": messages, "response_format": form}
                answer = await client.post("/chat/completions", json=body)
                return Order.model_validate_json(answer.json()["choices"][0]["message"]["content"])

            return await _at_once(one, texts)

    return extract


def pydantic_ai(url: str) -> Extract:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(base_url=url, api_key="x"))
    agent = Agent(model, output_type=Order, instructions=TASK)

    async def one(text: str) -> Order:
        return (await agent.run(text)).output

    return lambda texts: _at_once(one, texts)


def langchain(url: str) -> Extract:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="gpt-4o", base_url=url, api_key="x").with_structured_output(Order)

    def extract(texts: list[str]) -> Awaitable[list[Order]]:
        inputs = [[("system", TASK), ("user", text)] for text in texts]
        return model.abatch(inputs, {"max_concurrency": AT_ONCE})

    return extract


def openai_agents(url: str) -> Extract:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(disabled=True)
    model = OpenAIChatCompletionsModel("gpt-4o", AsyncOpenAI(base_url=url, api_key="x"))
    agent = Agent(name="extract", instructions=TASK, model=model, output_type=Order)

    async def one(text: str) -> Order:
        return (await Runner.run(agent, text)).final_output

    return lambda texts: _at_once(one, texts)


LIBRARIES = {
    library.__name__: library
    for library in (no_library, ours, pydantic_ai, langchain, openai_agents)
}


async def _at_once(one: Callable[[str], Awaitable[Order]], texts: list[str]) -> list[Order]:
    free = asyncio.Semaphore(AT_ONCE)

    async def in_turn(text: str) -> Order:
        async with free:
            return await one(text)

    return await asyncio.gather(*map(in_turn, texts))


async def measure(library: str, url: str) -> dict[str, float]:
    """CPU of one extraction, and extractions a second."""
    extract = LIBRARIES[library](url)
    await extract(TEXTS[:WARM_UP])
    cpu, wall = time.process_time(), time.perf_counter()
    orders = await extract(TEXTS)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert [order.customer for order in orders] == ["Ada"] * EXTRACTIONS
    return {"cpu_ms": 1e3 * cpu / EXTRACTIONS, "a_second": EXTRACTIONS / wall}


def main() -> None:
    server = subprocess.Popen(
        [sys.executable, HERE / "model_server.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    url = f"http://127.0.0.1:{server.stdout.readline().strip()}/record/0/v1"
    print(f"{EXTRACTIONS} extractions, {AT_ONCE} at once     CPU of one      a second", flush=True)
    try:
        for library in LIBRARIES:
            command = [sys.executable, __file__, *sys.argv[1:], library, url]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{library:32} {done.stderr.strip().splitlines()[-1]}", flush=True)
                continue
            figures = json.loads(done.stdout)
            cells = f"{figures['cpu_ms']:8.2f} ms {figures['a_second']:13.0f}"
            print(f"{library:32} {cells}", flush=True)
    finally:
        server.terminate()


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[-2] in LIBRARIES:
        print(json.dumps(asyncio.run(measure(*sys.argv[-2:]))))
    else:
        main()
