from __future__ import annotations

import asyncio
import pickle
import threading
from typing import Any

import pytest

from ferrule.concurrency import offload
from ferrule.errors import ConfirmationRequired, ToolDefinitionError, ToolStop
from ferrule.tools.execution.run import arun_call, run_call
from ferrule.tools.execution.tool_changes import (
    Load,
    ModuleCallback,
    Unload,
    digest,
    module_callback,
)
from ferrule.tools.tool import Tool
from ferrule.values.calls.call import CheckedCall, ToolCall, ToolResult


class FakeModule:
    """What a view of a program does, written down."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def load(self, *names: str) -> str:
        self.asked.append(("load", *names))
        return "loaded"

    def unload(self, *names: str) -> str:
        self.asked.append(("unload", *names))
        return "unloaded"

    def settled(self) -> Any:
        return {"added": {"new": "d"}, "removed": []}


class FakeHost:
    def __init__(self) -> None:
        self.module = FakeModule()

    def context(self) -> FakeHost:
        return self


def checked(returned: Any, host: Any) -> CheckedCall:
    tool = Tool(lambda: returned, "load")
    return CheckedCall(ToolCall(name="load", args={}, id="c1"), tool, tool.prepare({}), host)


def ran(call: CheckedCall, driver: str) -> ToolResult:
    return asyncio.run(arun_call(call)) if driver == "async" else run_call(call)


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_marked_function_keeps_its_name_and_can_be_called() -> None:
    @module_callback
    def add(context: Any) -> str:
        """Add."""
        return f"to {context}"

    assert isinstance(add, ModuleCallback)
    assert (add.__name__, add.__doc__, add("me")) == ("add", "Add.", "to me")
    assert repr(add) == "<module callback add>"


def test_the_result_has_the_callbacks_text_and_change(driver: str) -> None:
    host = FakeHost()
    found = ran(checked(module_callback(lambda context: f"seen {context is host}"), host), driver)
    assert found == ToolResult(
        "load",
        "seen True",
        "c1",
        change={"added": {"new": "d"}, "removed": []},
    )


def test_a_sync_callback_blocks_no_event_loop() -> None:
    """It runs where a sync tool runs, in the pool; an async one on the loop."""
    seen: list[Any] = []

    def sync(context: Any) -> str:
        seen.append((offload.in_worker(), threading.current_thread() is threading.main_thread()))
        return ""

    async def later(context: Any) -> str:
        seen.append(threading.current_thread() is threading.main_thread())
        return ""

    ran(checked(module_callback(sync), FakeHost()), "async")
    ran(checked(module_callback(later), FakeHost()), "async")
    assert seen == [(True, False), True]


def test_an_awaitable_of_a_text_is_awaited(driver: str) -> None:
    """A sync callback may return one."""

    async def text() -> str:
        return "later"

    assert (
        ran(checked(module_callback(lambda context: text()), FakeHost()), driver).content == "later"
    )


@pytest.mark.parametrize(
    "error",
    [ToolStop("enough"), ConfirmationRequired("sure?")],
    ids=["stop", "ask"],
)
def test_a_callback_may_end_the_run_or_ask(error: Exception, driver: str) -> None:
    """The wall lets through what it lets through for tools."""

    def stop(context: Any) -> str:
        raise error

    with pytest.raises(type(error)):
        ran(checked(module_callback(stop), FakeHost()), driver)


@pytest.mark.parametrize(
    ("kind", "asked"),
    [(Load, "load"), (Unload, "unload")],
    ids=["load", "unload"],
)
def test_names_are_handed_to_the_program(kind: Any, asked: str, driver: str) -> None:
    host = FakeHost()
    assert ran(checked(kind("billing.*", "clock"), host), driver).content == f"{asked}ed"
    assert host.module.asked == [(asked, "billing.*", "clock")]
    assert repr(kind("billing.*", "clock")) == f"{kind.__name__}('billing.*', 'clock')"
    assert pickle.loads(pickle.dumps(kind("clock"))).names == ("clock",)


@pytest.mark.parametrize("names", [(), (["a", "b"],), (3,)], ids=["none", "a_list", "a_number"])
def test_names_are_texts(names: Any) -> None:
    with pytest.raises(ToolDefinitionError, match=r"Load\('billing"):
        Load(*names)


def test_a_digest_is_of_what_a_model_is_told() -> None:
    """Another function behind the same declaration is the same tool; another word in it is another."""
    assert digest(Tool(lambda: 1, "a", "b")) == digest(Tool(lambda: 2, "a", "b"))
    assert digest(Tool(lambda: 1, "a", "b")) != digest(Tool(lambda: 1, "a", "c"))
    assert len(digest(Tool(lambda: 1, "a", "b"))) == 16
