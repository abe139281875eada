"""A batch through a provider, killed five times where it hurts: no request is sent twice.

The provider is a real HTTP server on loopback that counts what it takes; the client is a process of
its own, which ends by SIGKILL.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import forked
import pytest
from batch_server import BatchProvider, answer_of, batch_server

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENT = Path(__file__).parents[1] / "batch_client.py"
OPENAI, ANTHROPIC = "openai/gpt-5-mini", "anthropic/claude-sonnet-4-5"
WORST_S = 120.0
POINTS = {
    OPENAI: ["uploaded", "created", "looked", "results", "stored", "created"],
    ANTHROPIC: ["created", "looked", "results", "stored", "created"],
}
"""Where the client dies, one death after the other: the last one with its batch of repairs
submitted, and the answer to that not read.
"""


def first_answer_is_wrong() -> Callable[[str], str]:
    """Answers one item in ten wrongly at first, so that there is a second batch."""
    spoiled: set[int] = set()

    def answer(prompt: str) -> str:
        number = int(re.findall(r"What is (\d+) x 7", prompt)[-1])
        if number % 10 == 3 and number not in spoiled:
            spoiled.add(number)
            return "[[ ## answer ## ]]\nseven"
        return answer_of(prompt)

    return answer


class Client:
    """The client's process, which dies at a point of the provider's, or when it has stored a part
    of the answers.
    """

    def __init__(self, name: str, url: str, store: Path, count: int) -> None:
        self.store = store
        self.code: int | None = None
        self.words = (CLIENT, name, url, store, str(count))
        self.has_started = threading.Event()

    def start(self) -> None:
        """Start it, once the provider knows where it is to die."""
        self.process = forked.Forked(*self.words)
        self.has_started.set()

    def kill(self) -> None:
        self.has_started.wait()
        self.process.kill()
        self.code = self.process.ended().returncode

    def kill_once_stored(self) -> None:
        import sqlite3

        until = time.monotonic() + WORST_S
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with closing(sqlite3.connect(f"file:{self.store}?mode=ro", uri=True)) as db, db:
                    [[done]] = db.execute("SELECT count(*) FROM ferrule_runs WHERE status = 'done'")
            except sqlite3.OperationalError:
                done = 0
            if done >= 50:
                break
            time.sleep(0.005)
        self.kill()


@pytest.mark.parametrize(
    ("name", "count"),
    [(OPENAI, 100), (ANTHROPIC, 100), pytest.param(OPENAI, 1_000, marks=pytest.mark.long)],
)
def test_a_batch_that_is_killed_five_times_sends_no_request_twice(name, count, tmp_path):
    provider = BatchProvider(first_answer_is_wrong(), looks=3)
    deaths: list[str] = []
    with batch_server(provider) as url:
        for point in POINTS[name]:
            client = Client(name, url, tmp_path / "runs.db", count)
            if point == "stored":
                client.start()
                client.kill_once_stored()
            else:
                died = threading.Event()

                def hook(at: str, point=point, client=client, died=died) -> None:
                    if at == point:
                        client.kill()
                        died.set()

                provider.hook = hook
                client.start()
                assert died.wait(WORST_S)
                provider.hook = lambda at: None
            assert client.code == -signal.SIGKILL
            deaths.append(point)
        client = Client(name, url, tmp_path / "runs.db", count)
        client.start()
        ended = client.process.ended()
    assert ended.returncode == 0, ended.stderr
    assert deaths == POINTS[name]
    assert ended.stdout.split() == [str(7 * sum(range(count))), str(count + count // 10)]
    assert set(provider.taken.values()) == {1}
    assert sum(provider.taken.values()) == count + count // 10
    assert [len(batch.requests) for batch in provider.batches] == [count // 10, count]
