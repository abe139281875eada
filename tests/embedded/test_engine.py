"""The process of the embedded model: taking turns, limits, cancelling, forks, kills, memory,
network.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import platform
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ferrule import LM, Predict, ReAct, Tool, Toolbox
from ferrule.embedded.engine import engine_with
from ferrule.errors import UnavailableError
from ferrule.testing import block_network

CITIES = ("Lagos", "Lyon", "Oslo")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
can_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

pytestmark = pytest.mark.needle


def get_weather(city: str) -> str:
    """Get the current weather of a city."""
    return f"sunny in {city}"


AGENT = ReAct("question -> answer", [get_weather], max_iters=4)


def ask(city):
    return AGENT(question=f"What is the weather in {city}?").answer


def process_id():
    return engine_with(None)._child._process.pid


def test_threads_share_the_engine_without_mixing_their_conversations(lm):
    def ask_with_model(city):
        return AGENT(question=f"What is the weather in {city}?", lm=lm).answer

    with ThreadPoolExecutor(len(CITIES)) as pool:
        answers = list(pool.map(ask_with_model, CITIES))
    assert answers == [f"sunny in {city}" for city in CITIES]


def test_tasks_share_the_engine_without_mixing_their_conversations():
    async def ask_all():
        questions = [f"What is the weather in {city}?" for city in CITIES]
        return await asyncio.gather(*(AGENT.acall(question=text) for text in questions))

    answers = [prediction.answer for prediction in asyncio.run(ask_all())]
    assert answers == [f"sunny in {city}" for city in CITIES]


def test_a_conversation_continues_where_another_one_was_in_between():
    def report(city: str) -> str:
        """Get the current weather of a city."""
        other = Predict("text -> count: int")(text="I bought 3 apples")
        return f"sunny in {city}, {other.count}"

    agent = ReAct("question -> answer", [report], max_iters=4)
    assert agent(question="What is the weather in Oslo?").answer == "sunny in Oslo, 3"


def test_a_killed_process_is_one_clear_error_and_the_next_request_has_another(lm):
    assert ask("Oslo") == "sunny in Oslo"
    first = process_id()
    os.kill(first, signal.SIGSTOP)  # at work on the next request until it is killed
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lm.embed, ["x"])
        while not engine_with(None)._lock.locked():
            pass
        os.kill(first, signal.SIGKILL)
        with pytest.raises(UnavailableError, match="ended"):
            answer.result()
    assert ask("Oslo") == "sunny in Oslo"
    assert process_id() != first


def test_a_process_that_died_between_two_requests_is_replaced():
    ask("Oslo")
    os.kill(process_id(), signal.SIGKILL)
    engine_with(None)._child._process.wait()
    assert ask("Lyon") == "sunny in Lyon"


def test_a_time_limit_ends_the_request_and_the_process():
    ask("Oslo")
    first = process_id()
    with pytest.raises(UnavailableError, match="within"):
        AGENT(question="What is the weather in Oslo?", lm=LM("needle", timeout_s=1e-6))
    assert ask("Oslo") == "sunny in Oslo"
    assert process_id() != first


def test_cancelling_ends_the_request_and_the_process(lm):
    ask("Oslo")
    first = process_id()
    os.kill(first, signal.SIGSTOP)

    async def cancel():
        task = asyncio.create_task(AGENT.acall(question="What is the weather in Oslo?"))
        while not engine_with(None)._lock.locked():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert ask("Lyon") == "sunny in Lyon"
    assert process_id() != first


@can_fork
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_worker_has_its_own_engine():
    assert ask("Oslo") == "sunny in Oslo"
    parents = process_id()
    reader, writer = multiprocessing.Pipe(duplex=False)

    def work():
        writer.send((ask("Lyon"), process_id()))

    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    answer, workers = reader.recv()
    worker.join()
    assert answer == "sunny in Lyon"
    assert workers != parents
    assert ask("Paris") == "sunny in Paris"
    assert process_id() == parents


@on_linux
@pytest.mark.skipif(platform.libc_ver()[1] < "2.35", reason="an older C library")
def test_it_waits_for_no_other_processor():
    ask("Oslo")
    tasks = list(Path(f"/proc/{process_id()}/task").iterdir())
    assert len(tasks) == 1
    assert os.sched_getaffinity(process_id()) == os.sched_getaffinity(0)


@on_linux
def test_it_needs_less_than_200_megabytes():
    ask("Oslo")
    status = Path(f"/proc/{process_id()}/status").read_text()
    [peak] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    assert int(peak) < 200_000


@on_linux
def test_no_request_leaves_the_process(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NEEDLE_TELEMETRY", raising=False)
    monkeypatch.delenv("CI", raising=False)
    engine_with(None).close()
    with block_network():
        assert ask("Oslo") == "sunny in Oslo"
    folder = Path(f"/proc/{process_id()}")
    links = [str(link.readlink()) for link in (folder / "fd").iterdir()]
    assert not [link for link in links if link.startswith("socket:")]
    environment = (folder / "environ").read_bytes().split(b"\0")
    assert b"NEEDLE_TELEMETRY=0" in environment
    assert "needle" not in sys.modules  # its package, which reports its use
    assert not list(tmp_path.iterdir())
    library = Path(engine_with(None)._files["library"]).read_bytes()
    assert b"getaddrinfo" not in library


def test_a_shelf_is_searched_by_meaning():
    described = {
        "get_weather": "Get the current weather of a city.",
        "pay_invoice": "Pay an invoice.",
        "set_alarm": "Set an alarm at a time.",
        "translate_text": "Translate a text into another language.",
        "send_email": "Send an email to a person.",
        "play_song": "Play a song.",
        "book_flight": "Book a flight between two cities.",
        "cancel_order": "Cancel an order.",
    }
    tools = [Tool(lambda: "", name, description) for name, description in described.items()]
    shelf = Toolbox(tools, search="embedding").shelf
    for query, name in (
        ("transfer money for electricity bills", "pay_invoice"),
        ("music, please", "play_song"),
        ("rain tomorrow", "get_weather"),
    ):
        assert name in [tool.name for tool in shelf.search(query, 2)]


def test_texts_that_mean_the_same_have_near_vectors(lm):
    weather, forecast, refund = lm.embed(
        ["Get the weather of a city", "weather forecast for a town", "Refund an order"]
    )

    def product(first, second):
        return sum(a * b for a, b in zip(first, second, strict=True))

    assert product(weather, forecast) > product(weather, refund)
