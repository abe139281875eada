"""An agent as a web service: clients and the server may disconnect or stop, and come back. `service_client.py` serves one and talks to it.

POST /runs {"task": ...}                                    starts a run; answers with its id when the run is in the store
GET  /runs/ID/events                                        its events as SSE: all, or those after the `Last-Event-ID`
POST /runs/ID/decisions {"question": ID, "answer": "yes"}   or "no", an object of changed arguments, words for the model
"""

import asyncio
import json
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import ferrule

STATUS_CODES = {KeyError: 400, ferrule.errors.StoreError: 404, ferrule.errors.DecisionError: 409}
GOES_ON, UNFINISHED, ENDED = (
    {"running", "cancelled"},
    ("running", "cancelled", "waiting"),
    {"done", "failed"},
)  # `stop` leaves `cancelled`
PASSING = (
    ferrule.events.CallProgress,
    ferrule.events.CallDelta,
    ferrule.events.TextDelta,
    ferrule.events.ThoughtDelta,
    ferrule.events.FieldDelta,
    ferrule.events.Preamble,
)


class Service:
    """The runs that this process executes, the events of all runs, and a queue for each follower."""

    def __init__(self, agent: ferrule.ReAct, path: str, deps: object = None) -> None:
        self.agent, self.store, self.deps = agent, ferrule.SQLiteStore(path), deps
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute(
            "CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, run_id TEXT, data TEXT, status TEXT)",
        )
        self.executing: dict[ferrule.Run, asyncio.Task[None]] = {}
        self.followers: set[tuple[str, asyncio.Queue]] = set()
        start, events = (
            Route("/runs", self.start, methods=["POST"]),
            Route("/runs/{id}/events", self.events),
        )
        decide = Route("/runs/{id}/decisions", self.decide, methods=["POST"])
        refuse = dict.fromkeys(
            STATUS_CODES,
            lambda _, error: JSONResponse({"error": str(error)}, STATUS_CODES[type(error)]),
        )
        self.app = Starlette(
            routes=[start, events, decide],
            exception_handlers=refuse,
            lifespan=self.lifespan,
        )

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        loop, end = asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM)
        # uvicorn ends the lifespan last, when all responses have ended. But a stream of events ends by `stop`: so that comes first.
        signal.signal(
            signal.SIGTERM,
            lambda *given: (asyncio.run_coroutine_threadsafe(self.stop(), loop), end(*given)),
        )
        self.sweeper = asyncio.create_task(self.resume_unfinished())
        yield
        await self.stop()

    async def stop(self) -> None:
        """Let the steps that are running end, start no others, and end the event streams. The next process resumes the runs."""
        self.sweeper.cancel()
        for run in [run for run in self.executing if run.status == "running"]:
            run.cancel(grace_s=None)
        await asyncio.gather(*self.executing.values())
        for _, queue in self.followers:
            queue.put_nowait(None)

    async def resume_unfinished(self) -> None:
        """Resume, now and every second, the runs that a crash, a stop or a decision in another process left with work."""
        while True:
            for line in [
                line
                for status in UNFINISHED
                for line in ferrule.Run.list(self.store, status=status, limit=None)
            ]:
                if not line.leased and (line.status in GOES_ON or line.decided):
                    with suppress(ferrule.FerruleError):  # another process was faster
                        await self.execute(
                            ferrule.EventStream(
                                ferrule.Run.load(self.store, line.id, self.agent, deps=self.deps),
                            ),
                        )
            await asyncio.sleep(1)

    async def execute(self, stream: ferrule.EventStream) -> None:
        """Execute a run in its own task, with or without followers. Returns when the run is in the store and this process has its lease."""
        events = stream.follow()
        self.tell(await anext(events))

        async def tell_all() -> None:
            async for event in events:
                self.tell(event)
            del self.executing[stream.run]

        self.executing[stream.run] = asyncio.create_task(tell_all())

    def tell(self, event: ferrule.Event) -> None:
        """Store an event, and send it to the followers. Pieces of text and progress are not stored, and have no id."""
        row = (
            json.dumps(event.as_json()),
            event.status
            if isinstance(event, ferrule.events.RunFinished) and event.depth == 0
            else "",
        )
        insert, values = (
            "INSERT INTO events (run_id, data, status) VALUES (?, ?, ?)",
            (event.run_id, *row),
        )
        number = None if isinstance(event, PASSING) else self.db.execute(insert, values).lastrowid
        for queue in [queue for run_id, queue in self.followers if run_id == event.run_id]:
            queue.put_nowait((number, *row))

    async def start(self, request: Request) -> JSONResponse:
        stream = self.agent.stream(
            task=(await request.json())["task"],
            store=self.store,
            deps=self.deps,
        )
        await self.execute(stream)
        return JSONResponse({"id": stream.run.id}, 202)

    async def events(self, request: Request) -> StreamingResponse:
        run = ferrule.Run.load(
            self.store,
            request.path_params["id"],
            self.agent,
            deps=self.deps,
        )  # a `StoreError` if there is none
        last, _ = self.db.execute(
            "SELECT status, max(id) FROM events WHERE run_id = ?",
            (run.id,),
        ).fetchone()
        if run.status not in {*GOES_ON, last} and run.id not in {
            other.id for other in self.executing
        }:
            for event in run.events()[
                -1 - len(run.pending) :
            ]:  # after a crash between the last step and the storing of its events
                self.tell(event)
        return StreamingResponse(
            self.follow(run.id, int(request.headers.get("last-event-id", 0))),
            media_type="text/event-stream",
        )

    async def follow(self, run_id: str, after: int) -> AsyncIterator[str]:
        self.followers.add(
            follower := (run_id, queue := asyncio.Queue()),
        )  # first: no event may be lost between stored and new ones
        rows = self.db.execute(
            "SELECT id, data, status FROM events WHERE run_id = ? AND id > ? ORDER BY id",
            (run_id, after),
        ).fetchall()
        try:
            while None not in rows:
                yield "".join(
                    f"id: {number}\ndata: {data}\n\n" if number else f"data: {data}\n\n"
                    for number, data, _ in rows
                )
                if any(status in ENDED for _, _, status in rows[-1:]):
                    break
                rows = [await queue.get()]
        finally:
            self.followers.remove(follower)

    async def decide(self, request: Request) -> JSONResponse:
        body, run = (
            await request.json(),
            ferrule.Run.load(self.store, request.path_params["id"], self.agent, deps=self.deps),
        )
        question = {question.id: question for question in run.pending}[body["question"]]
        run.answer(question.decide(body["answer"]).signed(via="web"))
        with suppress(ferrule.errors.StoreError):  # `resume_unfinished` was faster
            await self.execute(ferrule.EventStream(run))
        return JSONResponse({"id": run.id}, 202)
