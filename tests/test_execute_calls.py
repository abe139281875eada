"""Calls run by hand: `ToolCall.execute` and its like."""

from __future__ import annotations

import asyncio
import functools
import threading
import warnings
from contextvars import ContextVar
from math import sqrt  # noqa: F401  an import that a call must not find
from os import getcwd  # noqa: F401  the same
from typing import Any

import pytest

from ferrule.encoding.repair import read_json  # noqa: F401  a plain function of another module
from ferrule.encoding.repair import read_json as borrowed  # noqa: F401
from ferrule.errors import (
    AsyncToolError,
    ConfirmationRequired,
    DuplicateToolError,
    FerruleError,
    ToolArgumentsError,
    ToolCallError,
    ToolDefinitionError,
    ToolExecutionError,
    ToolRetry,
    ToolStop,
    UnknownToolError,
)
from ferrule.runs.decisions import respond_to_confirmation
from ferrule.tools.decorator import tool
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import Toolbox
from ferrule.values.calls.call import ToolCall, ToolResult
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.content.parts import Image, Text

FOUND_BY_NAME = "The call ran a function that was found by name"
place: ContextVar[str] = ContextVar("place", default="nowhere")


def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


def raising() -> None:
    raise ZeroDivisionError("by zero")


async def aadd(a: int, b: int = 1) -> int:
    """Add, later."""
    await asyncio.sleep(0)
    return a + b


@tool
def tool_add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


@tool(name="renamed")
def another_name(a: int) -> int:
    return a


@tool
async def tool_aadd(a: int, b: int = 1) -> int:
    """Add, later."""
    return a + b


@functools.wraps(add)
def wrapped(*args: Any, **kwargs: Any) -> Any:
    return add(*args, **kwargs)


class CallableThing:
    def __call__(self) -> int:
        return 1


called = CallableThing()
call_add = ToolCall(name="add", args={"a": 1, "b": 2}, id="c1")


# -- a dict, a list


def test_a_call_runs_on_a_function_of_a_dict():
    """Dict name -> function."""
    assert call_add.execute({"add": add}) == 3
    assert call_add.execute(functions={"add": lambda a, b: a * b}) == 2
    assert ToolCall(name="now").execute({"now": lambda: None}) is None
    assert call_add.execute({"add": tool_add, 5: add}) == 3


def test_a_call_runs_on_a_tool_of_a_list():
    """List of `Tool`s; plain functions go by their name."""
    assert ToolCall(name="tool_add", args={"a": 1}).execute([another_name, tool_add]) == 2
    assert ToolCall(name="renamed", args={"a": 1}).execute((tool_add, another_name)) == 1
    assert call_add.execute([add]) == 3
    assert call_add.execute(each for each in [add]) == 3
    assert ToolCall(name="tool_add", args={"a": 1}).execute(Toolbox([tool_add])) == 2


def test_a_tool_of_a_list_checks_and_coerces_its_arguments():
    """The list form validates and coerces."""
    assert ToolCall(name="tool_add", args={"a": "7"}).execute([tool_add]) == 8
    with pytest.raises(ToolArgumentsError, match="Call to `tool_add` was not run"):
        ToolCall(name="tool_add", args={"a": "x"}).execute([tool_add])
    with pytest.raises(ToolArgumentsError):
        ToolCall(name="tool_add").execute({"tool_add": tool_add})


def test_a_tool_is_found_by_its_wire_name_too():
    """The model was shown that name (api.md 2)."""
    dotted = Tool(add, name="math.add")
    assert dotted.wire_name != "math.add"
    assert ToolCall(name=dotted.wire_name, args={"a": 1}).execute([dotted]) == 2


def test_a_name_that_is_not_there_is_a_value_error_that_lists_the_others():
    """`ValueError` when not found."""
    with pytest.raises(
        ValueError,
        match=r"There is no tool `mul`. Available tools: `add`, `sub`.",
    ) as caught:
        ToolCall(name="mul").execute({"add": add, "sub": add})
    assert isinstance(caught.value, UnknownToolError)
    for none in ({}, [], ()):
        with pytest.raises(UnknownToolError, match="Available tools: none"):
            call_add.execute(none)


def test_a_function_that_throws_is_a_runtime_error_with_its_cause():
    """`RuntimeError` when the function throws, cause kept."""
    for functions in ({"raising": raising}, [raising], [Tool(raising)]):
        with pytest.raises(
            RuntimeError,
            match="Execution error in `raising`: ZeroDivisionError: by zero",
        ) as caught:
            ToolCall(name="raising").execute(functions)
        assert isinstance(caught.value, ToolExecutionError)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(RuntimeError, match=r"TypeError: .*unexpected keyword") as caught:
        ToolCall(name="add", args={"x": 1}).execute([add])
    assert isinstance(caught.value.__cause__, TypeError)


def test_stop_iteration_from_a_function_is_a_runtime_error_like_any_other():
    """Let out, it would end a generator somewhere above."""

    def stop() -> None:
        raise StopIteration(5)

    with pytest.raises(ToolExecutionError) as caught:
        ToolCall(name="stop").execute([stop])
    assert isinstance(caught.value.__cause__, StopIteration)
    with pytest.raises(ToolExecutionError) as caught:
        asyncio.run(_awaited(ToolCall(name="stop").aexecute([stop])))
    assert isinstance(caught.value.__cause__, StopIteration)


async def _awaited(coroutine: Any) -> Any:
    return await coroutine


@pytest.mark.parametrize(
    "error",
    [ToolRetry("metres, please"), ToolStop("enough"), ConfirmationRequired("Sure?")],
    ids=lambda each: type(each).__name__,
)
def test_what_a_tool_says_on_purpose_comes_through_as_it_is(error):
    """`ToolStop` and a person's question mean the same by hand."""

    def say() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        ToolCall(name="say").execute([say])
    assert caught.value is error


def test_what_is_no_error_comes_through_as_it_is():
    """Ctrl-C."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ToolCall(name="interrupt").execute([interrupt])


def test_a_tool_that_needs_a_person_asks_before_it_runs():
    """A direct call of a tool that needs confirmation."""
    ran = []

    def careful(a: int) -> None:
        ran.append(a)

    careful = Tool(careful, require_confirmation=True)
    with pytest.raises(
        ConfirmationRequired,
        match=r"Confirm execution of careful with args: \{\"a\":1\}",
    ):
        ToolCall(name="careful", args={"a": 1}).execute([careful])
    assert ran == []


def test_of_many_calls_one_that_needs_a_person_says_that_it_did_not_run():
    """Its result holds the question, for the caller to decide and to make the call again."""
    ran: list[int] = []

    @tool(require_confirmation=True)
    def careful(a: int) -> None:
        ran.append(a)

    batch = ToolCalls.from_dict_list(
        [{"name": "careful", "args": {"a": 1}}, {"name": "add", "args": {"a": 1, "b": 2}}],
    )
    waiting = "This call waits for a person's decision; it was not run."
    for results in (
        batch.execute_all([careful, add]),
        asyncio.run(_awaited(batch.aexecute_all([careful, add]))),
    ):
        assert [(each.content, each.is_error, each.is_fault) for each in results] == [
            (waiting, True, False),
            ("3", False, False),
        ]
        error = results[0].error
    assert isinstance(error, ConfirmationRequired)
    respond_to_confirmation(error.confirmation_id, approved=False, data="not today")
    assert batch.execute_all([careful, add])[0].content == "not today"
    assert ran == []


def test_a_call_with_a_fault_never_runs():
    """A call whose arguments could not be read."""
    call = ToolCall.read({"name": "add", "args": "{bad"})
    for functions in ({"add": add}, [], [add]):
        with pytest.raises(
            ToolCallError,
            match="the arguments of `add` are not valid JSON",
        ) as caught:
            call.execute(functions)
        assert (caught.value.code, caught.value.raw, caught.value.tool) == (
            "invalid_tool_call_arguments",
            "{bad",
            "add",
        )


@pytest.mark.parametrize(
    "functions",
    [add, tool_add, "add", 5, [5], [None], [called], ["add"], {"add": 5}, {"add": "add"}],
    ids=range(10),
)
def test_what_holds_no_functions_is_refused(functions):
    with pytest.raises(ToolDefinitionError):
        call_add.execute(functions)


def test_two_functions_of_one_name_are_refused():
    """Which one would run?"""
    with pytest.raises(DuplicateToolError, match="Two of the functions are named `add`"):
        call_add.execute([add, Tool(add)])
    assert call_add.execute([add, add]) == 3


# -- async


def later(a: int, b: int) -> Any:
    return aadd(a, b)


@pytest.mark.parametrize(
    "functions",
    [{"add": aadd}, {"add": later}, {"add": tool_aadd}, {"add": functools.partial(aadd)}],
    ids=["async", "returns_one", "tool", "partial"],
)
def test_what_is_async_says_that_it_is_to_be_awaited(functions):
    """An async tool is awaited by `aexecute`, and `execute` says so; no coroutine is left behind
    (warnings are errors).
    """
    with pytest.raises(
        AsyncToolError,
        match=r"`add` is async: use `await call.aexecute\(...\)`",
    ) as caught:
        call_add.execute(functions)
    assert isinstance(caught.value, RuntimeError)
    assert asyncio.run(_awaited(call_add.aexecute(functions))) == 3


def test_a_task_that_a_function_returns_is_cancelled_by_execute():
    async def main() -> bool:
        task = asyncio.ensure_future(asyncio.sleep(60))
        with pytest.raises(AsyncToolError):
            ToolCall(name="f").execute({"f": lambda: task})
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(main())


def test_an_async_tool_runs_where_the_conversion_is_switched_on():
    """The opt-in of `tool(...)` holds here too."""
    from ferrule.settings import context

    with context(allow_tool_async_sync_conversion=True):
        assert ToolCall(name="tool_aadd", args={"a": 1}).execute([tool_aadd]) == 2


def test_aexecute_runs_what_is_sync_without_blocking_the_loop():
    async def main() -> tuple[Any, Any]:
        free = threading.Event()

        def wait() -> tuple[bool, str]:
            return free.wait(60), place.get()

        place.set("here")
        waiting = asyncio.ensure_future(ToolCall(name="wait").aexecute({"wait": wait}))
        await asyncio.sleep(0)
        free.set()
        return await waiting, await ToolCall(name="tool_add", args={"a": "1"}).aexecute([tool_add])

    assert asyncio.run(main()) == ((True, "here"), 2)


def test_aexecute_raises_what_execute_raises():
    async def araising() -> None:
        raise ZeroDivisionError("by zero")

    async def main() -> None:
        with pytest.raises(UnknownToolError):
            await call_add.aexecute({})
        with pytest.raises(ToolArgumentsError):
            await ToolCall(name="tool_aadd").aexecute([tool_aadd])
        with pytest.raises(ToolCallError):
            await ToolCall.read({"name": "add", "args": "{bad"}).aexecute([add])
        for function in (raising, araising, Tool(araising, name="raising")):
            with pytest.raises(ToolExecutionError) as caught:
                await ToolCall(name="raising").aexecute({"raising": function})
            assert isinstance(caught.value.__cause__, ZeroDivisionError)

    asyncio.run(main())


# -- whatever the caller defines


def test_without_functions_the_callers_own_are_found_with_a_warning():
    """None = look-up in the caller's own module or scope."""
    with pytest.warns(UserWarning, match=FOUND_BY_NAME) as told:
        assert call_add.execute() == 3
    assert told[0].filename == __file__

    def local(a: int) -> int:
        return a * 10

    mine = Tool(local, name="tool of mine")
    with pytest.warns(UserWarning, match=FOUND_BY_NAME):
        assert ToolCall(name="local", args={"a": 1}).execute() == 10
    with pytest.warns(UserWarning, match=FOUND_BY_NAME):
        assert ToolCall(name=mine.name, args={"a": "1"}).execute() == 10
    with pytest.warns(UserWarning, match=FOUND_BY_NAME):
        assert ToolCall(name="tool_add", args={"a": "1"}).execute() == 2
    with pytest.warns(UserWarning, match=FOUND_BY_NAME):
        assert ToolCall(name="renamed", args={"a": 1}).execute() == 1
    with pytest.warns(UserWarning, match=FOUND_BY_NAME):
        assert ToolCall(name="wrapped", args={"a": 1}).execute() == 2


def test_a_local_function_comes_before_one_of_the_module():
    """The scope, then the module."""

    def add(a: int, b: int) -> str:  # hides the module's
        return f"{a} and {b}"

    with pytest.warns(UserWarning, match=FOUND_BY_NAME):
        assert call_add.execute() == "1 and 2"
    assert add(1, 2)


IN_REACH = ["sqrt", "getcwd", "read_json", "borrowed", "print", "eval", "exec", "__import__", "ToolCall", "Tool", "tool", "pytest", "CallableThing", "called",
            "call_add", "place", "annotations", "another_name", "os.system", "_pytest", "__builtins__", "self", "Image"]  # fmt: skip


@pytest.mark.parametrize("name", IN_REACH)
def test_imports_builtins_and_all_that_is_no_function_are_not_found(name):
    """[DSPy ran anything in globals]."""
    with (
        pytest.warns(UserWarning, match=FOUND_BY_NAME),
        pytest.raises(ValueError, match="There is no tool") as caught,
    ):
        ToolCall(name=name).execute()
    assert "add" in caught.value.names
    assert name not in caught.value.names


def test_an_imported_tool_is_not_found():
    program = "from ferrule.tools.decorator import tool\n@tool\ndef foreign(): return 1\ndef plain(): return 1\n"
    module: dict[str, Any] = {"__name__": "elsewhere"}
    exec(program, module)
    foreign, plain = module["foreign"], module["plain"]
    for name in ("foreign", "plain"):
        with pytest.warns(UserWarning, match=FOUND_BY_NAME), pytest.raises(UnknownToolError):
            ToolCall(name=name).execute()
    assert foreign() == plain() == 1


def test_a_lazy_thing_among_the_callers_names_is_left_alone():
    """Looking for functions must not wake proxies."""

    class Proxy:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("outside of a request")

    request = Proxy()
    with pytest.warns(UserWarning, match=FOUND_BY_NAME):
        assert call_add.execute() == 3
    assert request is not None


def test_the_look_up_is_the_callers_in_every_door():
    """`aexecute` before its first `await`, and the batch forms."""

    def here(a: int) -> int:
        return a + 100

    call = ToolCall(name="here", args={"a": 1})
    batch = ToolCalls(tool_calls=[call])

    async def main() -> int:
        return await call.aexecute()

    with pytest.warns(UserWarning, match=FOUND_BY_NAME), pytest.raises(UnknownToolError):
        asyncio.run(main())  # `here` is not of its scope
    with pytest.warns(UserWarning, match=FOUND_BY_NAME):
        coroutine = call.aexecute()
    assert asyncio.run(_awaited(coroutine)) == 101
    with pytest.warns(UserWarning, match=FOUND_BY_NAME):
        coroutine = batch.aexecute_all()
    assert [each.value for each in asyncio.run(_awaited(coroutine))] == [101]
    with pytest.warns(UserWarning, match=FOUND_BY_NAME):
        assert [each.value for each in batch.execute_all()] == [101]
    assert here(1) == 101


def test_with_functions_nothing_is_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call_add.execute([add]) == 3
        assert ToolCalls(tool_calls=[call_add]).execute_all([add])[0].value == 3


# -- many

MIXED = ToolCalls.from_dict_list(
    [
        {"name": "add", "args": {"a": 1, "b": 2}, "id": "c1"},
        {"name": "raising", "id": "c2"},
        {"name": "nobody", "id": "c3"},
        {"name": "add", "args": "{bad", "id": "c4"},
        {"name": "tool_add", "args": {"a": "x"}, "id": "c5"},
        {"name": "retry", "id": "c6"},
        {"name": "text"},
    ],
)


def retry() -> None:
    raise ToolRetry("use metres")


def text() -> str:
    return "as it is"


def expected(results: list[ToolResult]) -> None:
    assert [(each.name, each.call_id, each.is_error, each.is_fault) for each in results] == [
        ("add", "c1", False, False),
        ("raising", "c2", True, False),
        ("nobody", "c3", True, True),
        ("add", "c4", True, True),
        ("tool_add", "c5", True, True),
        ("retry", "c6", True, True),
        ("text", None, False, False),
    ]
    assert (results[0].content, results[0].value) == ("3", 3)
    assert results[1].content.startswith(
        'Execution error in raising: ZeroDivisionError: by zero\n  File "test_execute_calls.py"',
    )
    assert isinstance(results[1].error, ZeroDivisionError)
    assert results[2].content.startswith("There is no tool `nobody`")
    assert results[5].content == "use metres"
    assert results[6].content == "as it is"


@pytest.mark.parametrize("concurrent", [True, False])
def test_all_calls_give_results_in_order_with_errors_as_values(concurrent):
    """All calls, concurrently where asked, results in order with ids and errors as values."""
    functions = [add, raising, tool_add, retry, text]
    expected(MIXED.execute_all(functions, concurrent=concurrent))
    expected(asyncio.run(_awaited(MIXED.aexecute_all(functions, concurrent=concurrent))))
    assert ToolCalls(tool_calls=[]).execute_all(functions) == []
    assert asyncio.run(_awaited(ToolCalls(tool_calls=[]).aexecute_all(functions))) == []


def test_a_wrong_list_of_functions_is_raised_and_no_result():
    """What the programmer must mend is raised."""
    for functions in (add, [5]):
        with pytest.raises(ToolDefinitionError):
            MIXED.execute_all(functions)
        with pytest.raises(ToolDefinitionError):
            asyncio.run(_awaited(MIXED.aexecute_all(functions)))


def test_functions_may_come_from_a_generator():
    """Read once for all calls."""
    batch = ToolCalls(tool_calls=[call_add] * 3)
    assert [each.value for each in batch.execute_all(each for each in [add])] == [3, 3, 3]
    assert [
        each.value for each in asyncio.run(_awaited(batch.aexecute_all(each for each in [add])))
    ] == [3, 3, 3]


def test_calls_run_side_by_side_in_threads_with_the_callers_context():
    """Each waits for all the others."""
    meet = threading.Barrier(8)

    def wait(number: int) -> str:
        meet.wait(60)
        return f"{number} {place.get()}"

    place.set("here")
    batch = ToolCalls.from_dict_list(
        [{"name": "wait", "args": {"number": number}} for number in range(8)],
    )
    assert [each.content for each in batch.execute_all([wait])] == [
        f"{number} here" for number in range(8)
    ]
    assert [
        each.content for each in asyncio.run(_awaited(batch.aexecute_all([wait_in_tasks(8)])))
    ] == [f"{number} here" for number in range(8)]


def wait_in_tasks(parties: int) -> Any:
    waiting: list[int] = []
    all_here = asyncio.Event()

    async def wait(number: int) -> str:
        waiting.append(number)
        if len(waiting) == parties:
            all_here.set()
        await all_here.wait()
        return f"{number} {place.get()}"

    return wait


def test_a_tool_that_runs_alone_never_meets_itself():
    """`concurrent=False` of a tool holds by hand too."""
    inside = []
    threads = set()

    def alone() -> int:
        inside.append(1)
        threads.add(threading.current_thread())
        assert len(inside) == 1
        inside.pop()
        return 1

    batch = ToolCalls.from_dict_list([{"name": "alone"}, {"name": "add", "args": {"a": 1}}] * 6)
    results = batch.execute_all([Tool(alone, concurrent=False), add])
    assert [each.value for each in results] == [1, 2] * 6
    assert threads == {threading.current_thread()}
    results = asyncio.run(_awaited(batch.aexecute_all([Tool(alone, concurrent=False), add])))
    assert [each.value for each in results] == [1, 2] * 6


def test_the_very_same_call_twice_runs_twice():
    """Duplicates are kept."""
    ran = []
    batch = ToolCalls(tool_calls=[ToolCall(name="f", args={"a": 1}, id="c")] * 2)
    assert len(batch.execute_all({"f": lambda a: ran.append(a) or len(ran)})) == 2
    assert ran == [1, 1]


def test_a_thousand_calls_at_once():
    """Threads are bounded, results are not mixed up."""
    batch = ToolCalls.from_dict_list(
        [{"name": "add", "args": {"a": number}} for number in range(1000)],
    )
    most = 0

    def counted(a: int) -> int:
        nonlocal most
        most = max(most, threading.active_count())
        return a + 1

    before = threading.active_count()
    assert [each.value for each in batch.execute_all({"add": counted})] == list(range(1, 1001))
    assert most <= before + 32


def test_an_interrupt_in_one_call_is_raised_by_all():
    """Ctrl-C and the like are nobody's result."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    batch = ToolCalls.from_dict_list([{"name": "add", "args": {"a": 1}}, {"name": "interrupt"}])
    for concurrent in (True, False):
        with pytest.raises(KeyboardInterrupt):
            batch.execute_all([add, interrupt], concurrent=concurrent)


def test_a_cancelled_error_of_a_function_is_its_error():
    """Nobody cancelled the call. In `aexecute_all`, its result was missing (`KeyError`)."""

    async def awaits() -> None:
        waiting = asyncio.ensure_future(asyncio.Event().wait())
        waiting.cancel()
        await waiting

    def runs_a_loop() -> None:
        asyncio.run(awaits())

    batch = ToolCalls.from_dict_list(
        [{"name": "awaits"}, {"name": "runs_a_loop"}, {"name": "add", "args": {"a": 1}}]
    )
    functions = [awaits, runs_a_loop, add]
    found = asyncio.run(_awaited(batch.aexecute_all(functions)))
    assert [each.is_error for each in found] == [True, True, False]
    assert batch.execute_all([runs_a_loop, add])[1].is_error
    for call in batch.tool_calls[:2]:
        with pytest.raises(ToolExecutionError, match="CancelledError"):
            asyncio.run(_awaited(call.aexecute(functions)))
    with pytest.raises(ToolExecutionError, match="CancelledError"):
        batch.tool_calls[1].execute(functions)


def test_cancelling_all_calls_cancels_each():
    """None is left running."""
    cancelled = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    async def main() -> None:
        task = asyncio.ensure_future(
            ToolCalls.from_dict_list([{"name": "wait"}] * 3).aexecute_all([wait]),
        )
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert cancelled == [1, 1, 1]


def test_an_async_tool_in_a_sync_batch_is_told_in_its_result():
    """Errors as values."""
    [result, other] = ToolCalls.from_dict_list(
        [{"name": "aadd", "args": {"a": 1}}, {"name": "add", "args": {"a": 1}}],
    ).execute_all([aadd, add])
    assert result.is_error
    assert "await calls.aexecute_all" in result.content
    assert other.value == 2


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ({"a": {2, 1}}, '{"a":[1,2]}'),
        (float("nan"), "NaN"),
        (b"ab", "ab"),
        (Image(url="https://x/y"), (Image(url="https://x/y"),)),
        (["see", Image(url="https://x/y")], None),
        (ToolResult("f", "made by hand", is_error=True), "made by hand"),
    ],
    ids=range(10),
)
def test_what_a_function_returns_is_shown_as_a_model_sees_it(value, content):
    """Text as it is, pictures as parts, all else as JSON."""
    [result] = ToolCalls.from_dict_list([{"name": "f", "id": "c1"}]).execute_all(
        {"f": lambda: value},
    )
    assert (result.name, result.call_id) == ("f", "c1")
    if content is None:
        assert Image(url="https://x/y") in result.content
        assert any(isinstance(part, Text) and "see" in part.text for part in result.content)
    else:
        assert result.content == content
    assert result.is_error is isinstance(value, ToolResult)


def test_every_error_of_these_doors_is_one_of_ours():
    """`except FerruleError` catches whatever ferrule raises on purpose."""
    for call, functions in [
        (call_add, {}),
        (ToolCall(name="raising"), [raising]),
        (call_add, {"add": aadd}),
        (call_add, 5),
        (call_add, {"add": 5}),
    ]:
        with pytest.raises(FerruleError):
            call.execute(functions)


def test_a_call_that_a_thread_runs_finds_none_of_the_standard_librarys_functions():
    """The caller is then `threading` itself."""
    found: list[BaseException] = []

    def run(call: ToolCall) -> None:
        thread = threading.Thread(target=call.execute)
        thread.start()
        thread.join()

    hook, threading.excepthook = threading.excepthook, lambda args: found.append(args.exc_value)
    try:
        with pytest.warns(UserWarning, match=FOUND_BY_NAME):
            run(ToolCall(name="settrace", args={"func": None}))
    finally:
        threading.excepthook = hook
    [error] = found
    assert isinstance(error, UnknownToolError)
