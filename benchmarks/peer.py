"""Measures one library: `python peer.py MODULE FUNCTION` reads one JSON request per line, and answers each with one JSON line.

A request names a figure and its parameters: `{"figure": "parallel", "kind": "slow"}`. The process
keeps running, so that libraries can take turns: a slow phase of the machine affects them all. The
answer and the number of tool calls of each run are checked after the clock stops.
"""

from __future__ import annotations

import time

START_S = (
    time.process_time()
)  # before the imports below: a library that needs them, too, pays for them

import importlib  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402


class Measured:
    """One library: its module and the function that makes its agent."""

    def __init__(self, module: str, function: str) -> None:
        self._module = importlib.import_module(f"peers.{module}")
        self._make = getattr(self._module, function)
        self._agents: dict = {}
        self._runner = None
        self.calls = 0

    def add(self, a: int, b: int) -> int:
        """Count the call and add."""
        self.calls += 1
        return a + b

    def await_(self, coroutine):
        """Run a coroutine; all runs share one event loop, as in a server."""
        import asyncio

        self._runner = self._runner or asyncio.Runner()
        # Not `Runner.run`: it sets and resets the Ctrl-C handler for each run, which takes 20 us
        # that a server pays only once.
        return self._runner.get_loop().run_until_complete(coroutine)

    def tool(self, kind: str):
        """The tool as the library sees it: a function named `add`, with types and a docstring."""
        import asyncio

        measured = self

        def add(a: int, b: int) -> int:
            """Add two integers."""
            return measured.add(a, b)

        def slow(a: int, b: int) -> int:
            """Add two integers."""
            time.sleep(0.1)
            return measured.add(a, b)

        async def add_async(a: int, b: int) -> int:
            """Add two integers."""
            return measured.add(a, b)

        async def slow_async(a: int, b: int) -> int:
            """Add two integers."""
            await asyncio.sleep(0.1)
            return measured.add(a, b)

        made = {"sync": add, "slow": slow, "async": add_async, "slow async": slow_async}[kind]
        made.__name__ = "add"
        return made

    def run(self, kind: str, turns: int, at_once: int = 1) -> dict | None:
        """CPU and wall seconds of one run; short runs are preceded by one that is not measured. None if the library lacks this driver."""
        from peers.script import ANSWER, Script

        key = (kind, turns, at_once)
        is_async = kind.endswith("async")
        if key not in self._agents:
            agent = self._make(Script(turns, at_once), self.tool(kind), turns)
            self._agents[key] = agent
            if turns < 1000 and (agent.arun if is_async else agent.run) is not None:
                self._once(agent, is_async=is_async)
        agent = self._agents[key]
        if (agent.arun if is_async else agent.run) is None:
            return None
        self.calls = 0
        cpu, wall = time.process_time(), time.perf_counter()
        answer = self._once(agent, is_async=is_async)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        assert answer == ANSWER, answer
        assert self.calls == turns * at_once, (self.calls, turns, at_once)
        return {"cpu_s": cpu, "wall_s": wall}

    def _once(self, agent, *, is_async: bool):
        return self.await_(agent.arun()) if is_async else agent.run()

    def steps(self, kind: str, turns: int, repeats: int) -> float | None:
        """CPU microseconds per step, the lowest of a few runs."""
        found = [self.run(kind, turns) for _ in range(repeats)]
        return None if found[0] is None else 1e6 * min(each["cpu_s"] for each in found) / turns

    def parallel(self, kind: str) -> float | None:
        """Milliseconds of a run whose model makes 8 calls of 100 ms in one turn."""
        found = self.run(kind, 1, 8)
        return None if found is None else 1e3 * found["wall_s"]

    def first(self) -> float:
        """CPU seconds from the start of this process to the end of its first run, whose model makes one call."""
        from peers.script import ANSWER, Script

        agent = self._make(Script(1), self.tool("sync"), 1)
        assert (agent.run() if agent.run is not None else self.await_(agent.arun())) == ANSWER
        return time.process_time() - START_S

    def memory(self, agents: int, turns: int) -> float | None:
        """Kilobytes per agent, with `agents` in one process that wait in their last tool call."""
        import asyncio
        import gc
        from pathlib import Path

        from peers.script import ANSWER, Script

        waiting, all_wait, go = [], asyncio.Event(), asyncio.Event()

        async def add(a: int, b: int) -> int:
            """Add two integers."""
            if a == turns - 1:
                waiting.append(a)
                if len(waiting) >= agents:
                    all_wait.set()
                await go.wait()
            return a + b

        def resident() -> int:
            gc.collect()
            return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4

        agent = self._make(Script(turns), add, turns)
        if agent.arun is None:
            return None

        async def all_of_them(count: int) -> float:
            before = resident()
            running = [asyncio.ensure_future(agent.arun()) for _ in range(count)]
            await asyncio.wait(
                [*running, asyncio.ensure_future(all_wait.wait())],
                return_when=asyncio.FIRST_COMPLETED,
            )
            used = (resident() - before) / count
            go.set()
            assert await asyncio.gather(*running) == [ANSWER] * count
            return used

        async def main() -> float:
            nonlocal agents
            wanted, agents = agents, min(agents, 20)
            await all_of_them(agents)  # objects made once per process do not count
            agents = wanted
            waiting.clear()
            all_wait.clear()
            go.clear()
            return await all_of_them(agents)

        return asyncio.run(main())

    def http(self, url: str, agents: int, turns: int) -> dict:
        """Client CPU microseconds per request, and requests per second, of `agents` running at once."""
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        from peers.script import ANSWER

        key = ("http", turns)
        if key not in self._agents:
            is_async = self._make(url, self.tool("async"), turns).arun is not None
            self._agents[key] = self._make(url, self.tool("async" if is_async else "sync"), turns)
        agent = self._agents[key]

        async def together(count):
            return await asyncio.gather(*(agent.arun() for _ in range(count)))

        def in_threads(count):
            with ThreadPoolExecutor(count) as pool:
                return [each.result() for each in [pool.submit(agent.run) for _ in range(count)]]

        def all_of_them(count):
            return self.await_(together(count)) if agent.arun is not None else in_threads(count)

        all_of_them(2)
        self.calls = 0
        cpu, wall = time.process_time(), time.perf_counter()
        answers = all_of_them(agents)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        assert answers == [ANSWER] * agents
        assert self.calls == agents * turns, (self.calls, agents, turns)
        requests = agents * (turns + 1)
        return {"cpu_us": 1e6 * cpu / requests, "requests_s": requests / wall}

    def tokens(self, form: str, turns: int) -> dict:
        """The prompts that one run sends, in thousands of characters, and the share that repeats the beginning of the previous request."""
        from itertools import pairwise
        from os.path import commonprefix

        from model_server import in_thread
        from peers.script import ANSWER

        bodies: list[bytes] = []
        url = f"{in_thread(bodies)}/{form}/{turns}/v1"
        is_async = self._make(url, self.tool("async"), turns).arun is not None
        agent = self._make(url, self.tool("async" if is_async else "sync"), turns)
        self.calls = 0
        assert self._once(agent, is_async=is_async) == ANSWER
        assert self.calls == turns
        texts = [_prompt(json.loads(body)) for body in bodies]
        again = sum(len(commonprefix([one, other])) for one, other in pairwise(texts))  # noqa: RUF071  characters are meant
        total = sum(map(len, texts))
        return {"requests": len(texts), "characters": total, "prefix_share": again / total}

    def tools(self, repeats: int) -> dict:
        """Microseconds to make a tool with its schema from a function with five parameters, and for a checked call of it."""

        def one_tool():
            def book(
                city: str,
                nights: int,
                price: float,
                breakfast: bool = False,
                guests: list[str] | None = None,
            ) -> str:
                """Book a hotel.

                Args:
                    city: where
                    nights: how many
                    price: at most
                    breakfast: whether
                    guests: their names

                """
                return f"{city} {nights} {price} {breakfast} {guests}"

            return book

        functions = [one_tool() for _ in range(repeats + 1)]
        self._module.describe(functions.pop())
        cpu = time.process_time()
        made = [self._module.describe(each) for each in functions]
        cpu = (time.process_time() - cpu) / repeats
        names = made[0].get("properties", made[0])
        assert set(names) == {"city", "nights", "price", "breakfast", "guests"}, names
        return {"schema_us": 1e6 * cpu, **self._direct(one_tool, repeats)}

    def _direct(self, one_tool, repeats: int) -> dict:
        """The times to make a tool without its schema, and for a checked call; empty if the library only calls tools within a run."""
        if not hasattr(self._module, "direct"):
            return {}
        function, functions = one_tool(), [one_tool() for _ in range(repeats)]
        call = self._module.direct(function)
        arguments = {
            "city": "Rome",
            "nights": 3,
            "price": 99.5,
            "breakfast": True,
            "guests": ["Ada", "Bob"],
        }
        wanted = function(**arguments)
        assert call(**arguments) == wanted
        cpu = time.process_time()
        for each in functions:
            self._module.direct(each)
        made = time.process_time() - cpu
        cpu = time.process_time()
        for _ in range(10 * repeats):
            call(**arguments)
        return {
            "make_us": 1e6 * made / repeats,
            "call_us": 1e6 * (time.process_time() - cpu) / (10 * repeats),
        }

    def kept(self, store: str, place: str, turns: int, repeats: int) -> dict:
        """CPU and wall microseconds per step of a run kept in a store."""
        from peers.script import ANSWER, Script

        with self._module.saver(store, place) as saver:
            if hasattr(saver, "setup"):
                saver.setup()
            agent = self._make(Script(turns), self.tool("sync"), turns, store=saver)
            assert agent.run() == ANSWER
            cpu, wall = [], []
            for _ in range(repeats):
                self.calls = 0
                cpu_from, wall_from = time.process_time(), time.perf_counter()
                assert agent.run() == ANSWER
                wall.append(time.perf_counter() - wall_from)
                cpu.append(time.process_time() - cpu_from)
                assert self.calls == turns
        return {"cpu_us": 1e6 * min(cpu) / turns, "wall_us": 1e6 * min(wall) / turns}


def _prompt(body: dict) -> str:
    """The prompt in the order that the model reads: tools, then messages."""
    return "\n".join(
        json.dumps(each)
        for each in [body.get("tools", []), body.get("response_format"), *body["messages"]]
    )


def main() -> None:
    measured = Measured(sys.argv[1], sys.argv[2])
    answers = sys.stdout
    sys.stdout = sys.stderr  # so that output of a library is not taken for an answer
    for line in sys.stdin:
        request = json.loads(line)
        found = getattr(measured, request.pop("figure"))(**request)
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
