"""Settings: for the process, for a block; read as one consistent whole."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from contextvars import copy_context
from pathlib import Path

import pytest
from agent_script import fields
from msgspec import structs

from ferrule import ChatAdapter, JSONAdapter, Limits, Policy, Predict, settings
from ferrule.concurrency import offload
from ferrule.errors import ConfigurationError
from ferrule.settings import Scope, Settings, configure, context, current, entered
from ferrule.testing import ScriptedLM

SRC = Path(__file__).parents[1] / "src"


@pytest.fixture(autouse=True)
def _as_before():
    before = settings._configured
    settings._configured = Settings()
    yield
    settings._configured = before


def test_configure_holds_for_the_process_and_context_for_its_block():
    configure(lm="model".upper)
    with context(lm=None, allow_tool_async_sync_conversion=True):
        assert current() == Settings(lm=None, allow_tool_async_sync_conversion=True)
        with context(max_workers=3):
            assert current() == Settings(allow_tool_async_sync_conversion=True, max_workers=3)
        assert current().max_workers is None
    assert current().lm is not None
    assert current().allow_tool_async_sync_conversion is False


def test_a_block_is_left_by_an_error_too():
    with pytest.raises(KeyError), context(max_workers=3):
        raise KeyError
    assert current().max_workers is None


def test_configure_inside_a_block_does_not_override_the_block():
    """What a block sets holds in it; what it does not set follows `configure`."""
    with context(max_workers=3):
        configure(max_workers=5, allow_tool_async_sync_conversion=True)
        assert current() == Settings(max_workers=3, allow_tool_async_sync_conversion=True)
    assert current().max_workers == 5


def test_settings_in_force_are_read_as_attributes():
    """DSPy's `settings.lm` is `ferrule.settings.lm`."""
    with context(max_workers=7):
        assert settings.max_workers == 7
    assert settings.max_workers is None
    with pytest.raises(AttributeError, match="There is no setting `temperature`"):
        _ = settings.temperature


def test_a_worker_thread_sees_the_block_it_was_started_in():
    """Inherited by workers."""
    with context(max_workers=3):
        assert offload.submit(lambda: current().max_workers).result() == 3
        assert offload.run_with_timeout(lambda: current().max_workers, 60, "t") == 3
    assert offload.submit(lambda: current().max_workers).result() is None


def test_the_background_loop_sees_the_block_too():
    async def look():
        return current().max_workers

    with context(max_workers=3):
        assert offload.run_async(look()) == 3
    assert offload.run_async(look()) is None


def test_tasks_and_threads_do_not_see_each_others_blocks():
    """Contextvar-scoped, safe in threads and tasks."""

    async def one(number: int, meet: asyncio.Barrier) -> int:
        with context(max_workers=number):
            await meet.wait()  # all are inside their blocks now
            return current().max_workers

    async def all_of_them() -> list[int]:
        meet = asyncio.Barrier(20)
        return await asyncio.gather(*(one(number, meet) for number in range(1, 21)))

    assert asyncio.run(all_of_them()) == list(range(1, 21))

    found: dict[int, int] = {}
    meet = threading.Barrier(8)

    def in_thread(number: int) -> None:
        with context(max_workers=number):
            meet.wait()
            found[number] = current().max_workers

    threads = [threading.Thread(target=in_thread, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: number for number in range(1, 9)}


def test_a_task_keeps_the_settings_it_was_created_under():
    """Inherited by tasks, also after the block was left."""

    async def look():
        await asyncio.sleep(0)
        return current().max_workers

    async def main():
        with context(max_workers=3):
            task = asyncio.ensure_future(look())
        return await task, await look()

    assert asyncio.run(main()) == (3, None)


def test_a_block_left_in_another_context_is_left_quietly():
    """An async fixture enters and leaves a block in two contexts; there is nothing to put back, and
    nothing to raise.
    """

    def fixture():
        with context(max_workers=3):
            yield current().max_workers

    generator = fixture()
    assert copy_context().run(next, generator) == 3
    assert current().max_workers is None
    assert copy_context().run(next, generator, "left") == "left"
    assert current().max_workers is None


def test_an_unknown_setting_is_named_with_those_there_are():
    for sets in (configure, lambda **changes: context(**changes).__enter__()):
        with pytest.raises(ConfigurationError, match=r"`top_p`. It has: `adapter`, `allow"):
            sets(top_p=1, temperature=0)
        with pytest.raises(ConfigurationError, match=r"`polcy`. Did you mean `policy`"):
            sets(polcy=None)
    assert current() == Settings()


async def listen(event):
    """An observer that nothing awaits."""


class Listener:
    async def on_event(self, event):
        """The same, as a method."""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"lm": "openai/gpt"},
            r"`lm` takes a model, not its name: configure\(lm=LM\('openai/gpt'\)\)",
        ),
        (
            {"lm": ScriptedLM},
            r"`lm` takes a model, not its class: configure\(lm=ScriptedLM\(...\)\)",
        ),
        (
            {"adapter": "json"},
            r"`adapter` takes an adapter, such as `JSONAdapter\(\)`; found 'json', which has no `opening`, `request`, `read`",
        ),
        ({"adapter": ""}, "found '', which has no"),
        (
            {"adapter": JSONAdapter},
            r"`adapter` takes an adapter, not its class: configure\(adapter=JSONAdapter\(\)\)",
        ),
        (
            {"limits": Limits},
            r"`limits` takes limits, not their class: configure\(limits=Limits\(...\)\)",
        ),
        (
            {"policy": Policy},
            r"`policy` takes a policy, not its class: configure\(policy=Policy\(...\)\)",
        ),
        ({"limits": 5}, r"`limits` takes `Limits\(...\)`, found 5"),
        (
            {"policy": "ask"},
            r"`policy` takes a `Policy\(\[allow\(...\), ask\(...\), deny\(...\)\]\)`, found 'ask'",
        ),
        ({"callbacks": print}, "`callbacks` takes a list, found <built-in"),
        ({"callbacks": None}, "`callbacks` takes a list, found None"),
        (
            {"callbacks": [Listener]},
            r"`callbacks` takes observers, not their classes: configure\(callbacks=\[Listener\(...\)\]\)",
        ),
        (
            {"callbacks": [3]},
            "`callbacks` takes functions of an event, or objects with methods such as `on_tool_end`; found 3",
        ),
        (
            {"callbacks": [listen]},
            "An observer in `callbacks` is a plain function, found <function listen",
        ),
        (
            {"callbacks": [Listener()]},
            "`on_event` of an observer in `callbacks` is a plain function",
        ),
        ({"max_workers": 0}, "`max_workers` is a whole number from 1, or None; found 0"),
        ({"max_workers": True}, "found True"),
        ({"max_workers": "8"}, "found '8'"),
    ],
    ids=[
        "lm_name",
        "lm_class",
        "adapter_name",
        "adapter_empty",
        "adapter_class",
        "limits_class",
        "policy_class",
        "limits_number",
        "policy_name",
        "callback_alone",
        "callbacks_none",
        "callback_class",
        "callback_number",
        "callback_async",
        "callback_async_method",
        "workers_zero",
        "workers_bool",
        "workers_text",
    ],
)
def test_a_setting_of_the_wrong_kind_is_refused_and_nothing_changes(changes, says):
    """Refused when it is set, not when it is used."""
    with pytest.raises(ConfigurationError, match=says):
        configure(**changes)
    assert current() == Settings()


class Own:
    """A user's adapter: all that programs use of one, and no subclass."""

    repairs, fallback, use_native_function_calling = 0, None, None

    def __init__(self) -> None:
        self.opening, self.request, self.read = (
            ChatAdapter().opening,
            ChatAdapter().request,
            ChatAdapter().read,
        )


def test_an_adapter_is_known_by_what_it_can_do():
    """A user's own need not be a subclass."""
    mine = Own()
    with context(adapter=mine, lm=ScriptedLM([fields(answer="yes")])):
        assert current().adapter is mine
        assert Predict("q -> answer")(q="x").answer == "yes"
        with context(adapter=None):
            assert current().adapter is None


def test_a_list_of_callbacks_is_copied():
    """Settings that were read do not change afterwards."""
    mine = [print]
    configure(callbacks=mine)
    before = current()
    mine.append(repr)
    assert before.callbacks == current().callbacks == (print,)


def test_settings_cannot_be_changed_in_place():
    """One consistent set; changed by `configure` and `context` alone."""
    with pytest.raises(AttributeError):
        current().lm = print


def test_no_environment_variable_changes_a_setting():
    """Configuration is never overridden by an environment variable."""
    names = ["LM", "ADAPTER", "MAX_WORKERS", "CALLBACKS", "ALLOW_TOOL_ASYNC_SYNC_CONVERSION"]
    spellings = [
        spelt
        for name in names
        for spelt in (name, f"FERRULE_{name}", f"ferrule_{name.lower()}", f"DSPY_{name}")
    ]
    program = "from ferrule.settings import *; assert current() == Settings(); configure(max_workers=3); assert current().max_workers == 3"
    environment = {**os.environ, **dict.fromkeys(spellings, "7"), "PYTHONPATH": str(SRC)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_frozen_settings_hold_whatever_configure_does_meanwhile():
    """Architecture, station 1: settings are read once into a frozen context."""
    configure(max_workers=3)
    with entered(Scope(structs.asdict(current()))):
        configure(max_workers=5)
        assert current().max_workers == 3
    assert current().max_workers == 5


def test_settings_keep_the_frame_of_the_run_they_are_set_in():
    """`with context(...)` inside a program must not cut it off from its run."""
    frame = object()
    with entered(Scope(frame=frame)), context(max_workers=3):
        assert settings.scope().frame is frame
        assert current().max_workers == 3
    assert settings.scope().frame is None


def test_two_threads_that_configure_at_once_lose_nothing():
    """Each sets its own name, and both hold afterwards."""
    for _ in range(200):
        settings._configured = Settings()
        meet = threading.Barrier(2)
        changes = [{"max_workers": 3}, {"allow_tool_async_sync_conversion": True}]
        threads = [
            threading.Thread(target=lambda each=each, meet=meet: (meet.wait(), configure(**each)))
            for each in changes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert current() == Settings(max_workers=3, allow_tool_async_sync_conversion=True)


def test_assigning_to_a_setting_says_how_it_is_set():
    with pytest.raises(AttributeError, match=r"configure\(lm=\.\.\.\)"):
        settings.lm = 1
    assert settings.lm is settings.current().lm
