import asyncio
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from ferrule.errors import (
    ConfirmationRequired,
    ToolArgumentsError,
    ToolCallError,
    ToolRetry,
    ToolStop,
    UnknownToolError,
)
from ferrule.tools.execution.run import arun_call, attempt, run_call
from ferrule.tools.tool import Tool
from ferrule.values.calls.call import CheckedCall, ToolCall, ToolResult, failure, to_result
from ferrule.values.content.parts import Audio, File, Image, Text


def checked(function, args=None, name=None, **given):
    made = Tool(
        function,
        name or getattr(function, "__name__", "f").replace("<lambda>", "f"),
        **given,
    )
    call = ToolCall(name=made.name, args=args or {}, id="call-1")
    return CheckedCall(call, made, made.prepare(call.args))


def ran(function, args=None, **given):
    """The result, the same from both drivers."""
    one = run_call(checked(function, args, **given))
    two = asyncio.run(arun_call(checked(function, args, **given)))
    assert (one.content, one.is_error, one.is_fault) == (two.content, two.is_error, two.is_fault)
    return one


def rendered(value):
    call = ToolCall(name="f", id="call-1")
    return to_result(call, value).content


class User(BaseModel):
    name: str


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int


Pair = namedtuple("Pair", "a b")  # noqa: PYI024


class Opaque: ...


class Loud(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "LOUD"


IMAGE = Image(data="aGk=")


class TestReturned:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("text", "text"),
            ("", ""),
            (None, "null"),
            ([None], "[null]"),
            (True, "true"),
            (3, "3"),
            (-3, "-3"),
            (10**30, str(10**30)),
            (0.5, "0.5"),
            (float("nan"), "NaN"),
            ([1, "a"], '[1,"a"]'),
            ((1, 2), "[1,2]"),
            ({"b": 1, "a": "ü"}, '{"b":1,"a":"ü"}'),
            ({1: 2}, '{"1":2}'),
            ({"x", "a", "m"}, '["a","m","x"]'),
            ({"k": [{"x", "a"}, frozenset({3, 1})]}, '{"k":[["a","x"],[1,3]]}'),
            (User(name="a"), '{"name":"a"}'),
            ([User(name="a")], '[{"name":"a"}]'),
            (Point(1), '{"x":1}'),
            (Pair(1, 2), "[1,2]"),
            (deque([1]), "[1]"),
            (OrderedDict(a=1), '{"a":1}'),
            (Colour.RED, "red"),
            (Decimal("0.10"), "0.10"),
            (date(2024, 1, 2), "2024-01-02"),
            (datetime(2024, 1, 2, tzinfo=UTC), "2024-01-02T00:00:00Z"),
            (b"bytes", "bytes"),
            (bytearray(b"x"), "x"),
            (b"\xff\x00", "data:application/octet-stream;base64,/wA="),
            (ValueError("odd"), "odd"),
            (Loud("x"), "x"),
            ({}, "{}"),
            ([], "[]"),
        ],
    )
    def test_any_value_renders(self, value, text):
        assert rendered(value) == text

    @pytest.mark.filterwarnings("ignore:The tool .* has no form in JSON")
    def test_objects_without_a_form_have_no_address(self):
        for value in (Opaque(), [Opaque()], {"k": Opaque()}, len, Opaque, lambda: 0):
            text = rendered(value)
            assert "0x" not in text
            assert text
            assert text == rendered(value)

    def test_equal_values_render_equally_in_every_process(self):
        """The order of a set differs from process to process."""
        program = (
            "from ferrule.values.calls.call import ToolCall, to_result\n"
            "print(to_result(ToolCall(name='f'), {'k': {'a', 'b', 'c', 'd'}, 'l': [{'x', 'y', 'z'}]}).content)"
        )
        found = {
            subprocess.run(
                [sys.executable, "-c", program],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for seed in ("1", "2", "3")
        }
        assert len(found) == 1

    def test_pictures_and_files_stay_parts(self):
        file = File(data="aGk=", name="a.txt")
        assert rendered(IMAGE) == (IMAGE,)
        assert rendered([IMAGE, "caption", Audio(data="aGk="), {"k": 1}, None]) == (
            IMAGE,
            Text(text="caption"),
            Audio(data="aGk="),
            Text(text='{"k":1}'),
            Text(text="null"),
        )
        assert rendered((file,)) == (file,)

    def test_a_result_that_a_tool_made_itself_is_kept(self):
        """ours: `tool.call_result` of an MCP tool."""
        found = run_call(checked(lambda: ToolResult("other", "bad", "x", is_error=True), name="f"))
        assert (found.name, found.content, found.call_id, found.is_error) == (
            "f",
            "bad",
            "call-1",
            True,
        )

    @pytest.mark.filterwarnings("ignore:The tool .* has no form in JSON")
    def test_the_value_itself_is_kept_beside(self):
        value = Opaque()
        found = ran(lambda: value)
        assert found.value is value
        assert found.error is None
        assert (found.name, found.call_id, found.is_error) == ("f", "call-1", False)

    def test_half_surrogates_cycles_and_depth_render(self):
        circle: list = []
        circle.append(circle)
        deep: list = []
        for _ in range(5000):
            deep = [deep]
        for value in ("\ud800", ["\ud800"], {"\ud800": 1}, circle, deep):
            assert isinstance(rendered(value), str)

    @pytest.mark.filterwarnings("ignore:The tool .* has no form in JSON")
    def test_an_object_that_cannot_even_be_printed_renders(self):
        class Broken:
            def __str__(self):
                raise ValueError("no")

            __repr__ = __str__

        assert "Broken" in rendered(Broken())

    @settings(deadline=None)
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
            lambda each: (
                st.lists(each)
                | st.dictionaries(st.text() | st.integers(), each)
                | st.frozensets(st.text())
            ),
            max_leaves=8,
        ),
    )
    def test_whatever_it_is_it_renders_and_twice_the_same(self, value):
        assert rendered(value) == rendered(value)


class TestRaised:
    def test_errors_become_results_with_type_and_message(self):
        def divide(a: int, b: int) -> float:
            return a / b

        def share(a: int, b: int) -> float:
            return divide(a, b)  # the key is 12345

        found = ran(share, {"a": 1, "b": 0})
        assert re.sub(r"line \d+", "line N", found.content) == (
            "Execution error in share: ZeroDivisionError: division by zero\n"
            '  File "test_run.py", line N, in share\n'
            '  File "test_run.py", line N, in divide'
        )
        assert isinstance(found.error, ZeroDivisionError)
        assert (found.is_error, found.is_fault) == (True, False)

    def test_async_errors_too(self):
        async def fail():
            raise RuntimeError("gone")

        assert ran(fail).content.startswith(
            'Execution error in fail: RuntimeError: gone\n  File "test_run.py", line ',
        )

    def test_an_exception_group_shows_the_exceptions_inside_without_their_paths(self):
        """A `TaskGroup` raises one whose message has only the number of them."""
        import asyncio

        async def refused(port: int):
            raise ConnectionError(f"{Path.home()}/{port}.sock: refused")

        async def fetch():
            async with asyncio.TaskGroup() as group:
                group.create_task(refused(1))
                group.create_task(refused(2))

        first, *rest = re.sub(r"line \d+", "line N", ran(fetch).content).split("\n")
        assert first.endswith(": unhandled errors in a TaskGroup (2 sub-exceptions)")
        assert rest == [
            '  File "test_run.py", line N, in fetch',
            "- ConnectionError: 1.sock: refused",
            '    File "test_run.py", line N, in refused',
            "- ConnectionError: 2.sock: refused",
            '    File "test_run.py", line N, in refused',
        ]

    def test_an_exception_group_of_many_and_of_groups_stays_short(self):
        def fail():
            group = ExceptionGroup("deep", [ValueError(str(number)) for number in range(1_000)])
            for _ in range(50):
                group = ExceptionGroup("around", [group])
            raise group

        assert ran(fail).content.count("\n") < 20

    def test_frames_are_the_users_own_and_few(self):
        """No frame of ferrule, the library or what is installed."""
        import json

        def deep(n: int) -> str:
            return json.loads("{") if n == 0 else deep(n - 1)

        found = ran(deep, {"n": 30})
        assert "decoder.py" not in found.content
        assert "execute.py" not in found.content
        assert found.content.count("test_run.py") <= 3

    def test_local_paths_are_cut_unless_the_call_named_them(self):
        secret = str(Path.home() / "private" / "notes.txt")

        def read(path: str = "") -> str:
            raise FileNotFoundError(2, "No such file or directory", path or secret)

        assert ran(read).content.startswith(
            "Execution error in read: FileNotFoundError: [Errno 2] No such file or directory: 'notes.txt'",
        )
        assert secret in ran(read, {"path": secret}).content
        inside = str(Path(tempfile.gettempdir()) / "x" / "y.db")

        def fail():
            raise ValueError(
                f"{inside}: locked; see https://example.org/home/docs and a/b or /v1/chat at {Path.cwd()}/src/x.py",
            )

        text = ran(fail).content
        assert "y.db: locked; see https://example.org/home/docs and a/b or /v1/chat at x.py" in text

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            pytest.param(
                "cannot read /etc/app/shelf.toml: no key",
                "cannot read shelf.toml: no key",
                id="settings",
            ),
            pytest.param(
                "path=/usr/lib/app/shelf.toml, line 3",
                "path=shelf.toml, line 3",
                id="program",
            ),
            pytest.param("config:/srv/app/shelf.toml", "config:shelf.toml", id="after a colon"),
            pytest.param(
                "see file:///usr/share/app/shelf.toml",
                "see file://shelf.toml",
                id="address of a file",
            ),
            pytest.param(
                r"cannot read D:\work\app\shelf.toml",
                "cannot read shelf.toml",
                id="drive",
            ),
            pytest.param(
                "GET http://host:80/etc/shelf and C:/etc/x",
                "GET http://host:80/etc/shelf and C:/etc/x",
                id="no path from the root",
            ),
        ],
    )
    def test_paths_in_the_message_of_an_exception_are_cut_wherever_they_stand(
        self,
        message,
        expected,
    ):
        def fail():
            raise ValueError(message)

        assert f"ValueError: {expected}\n" in ran(fail).content

    def test_addresses_are_cut(self):
        def fail():
            raise ValueError(object())

        assert "0x" not in ran(fail).content

    def test_an_error_without_a_message_has_its_type(self):
        """An error always has a message."""

        def fail():
            raise KeyError

        assert ran(fail).content.startswith("Execution error in fail: KeyError\n")

    def test_an_error_that_cannot_be_printed_is_still_told(self):
        class OddError(Exception):
            def __str__(self):
                raise ValueError("no")

        def fail():
            raise OddError

        assert ran(fail).content.startswith("Execution error in fail: OddError")

    def test_a_generator_is_read_and_its_error_is_the_tools_error(self):
        """A generator runs the tool's code when it is read, so a failure there must not look like a
        result.
        """

        def lines(whole: bool):
            yield 1
            if not whole:
                raise RuntimeError("half way")

        async def chunks():
            yield 1

        assert (ran(lines, {"whole": True}).content, ran(lines, {"whole": True}).value) == (
            "[1]",
            [1],
        )
        assert ran(lines, {"whole": False}).content.startswith(
            "Execution error in lines: RuntimeError: half way",
        )

        async def broken():
            yield 1
            raise RuntimeError("half way")

        assert (ran(chunks).content, ran(chunks).value) == ("[1]", [1])
        assert ran(broken).content.startswith("Execution error in broken: RuntimeError: half way")

    def test_the_items_of_an_async_generator_count_for_the_time_limit(self):
        """Its code runs when it is read."""

        async def endless():
            while True:
                yield 1
                await asyncio.sleep(0.001)

        assert "did not finish within 0.05 s" in ran(endless, timeout_s=0.05).content

    def test_a_request_to_retry_is_a_fault_with_its_own_words(self):
        """api.md, ToolRetry."""

        def book(seat: str):
            raise ToolRetry("1A is taken.")

        found = ran(book, {"seat": "1A"})
        assert (found.content, found.is_error, found.is_fault) == ("1A is taken.", True, True)

    def test_a_request_to_retry_without_words_says_so(self):
        """The model got an empty result."""

        def book():
            raise ToolRetry

        assert ran(book).content == "The call was not accepted: change it and try again."

    def test_bad_arguments_of_a_tool_inside_are_no_fault_of_the_model(self):
        """ours: the model's own call was right."""
        inner = Tool(lambda n: n, "inner", arg_types={"n": int})

        def outer():
            return inner(n="x")

        found = ran(outer)
        assert found.content.startswith(
            "Execution error in outer: ToolArgumentsError: Call to `inner` was not run",
        )
        assert found.is_fault is False

    def test_stopping_asking_and_interrupting_pass_through(self):
        """U68, U75, A15, api.md."""
        for error in (
            ToolStop("enough"),
            ConfirmationRequired("sure?"),
            KeyboardInterrupt(),
            SystemExit(1),
            GeneratorExit(),
        ):

            def fail(error=error):
                raise error

            call = CheckedCall(
                ToolCall(name="f"),
                made := Tool(lambda f=fail: f(), "f", schema={}),
                made.prepare({}),
            )
            with pytest.raises(type(error)):
                run_call(call)

        def stop():
            raise ToolStop("enough")

        def ask():
            raise ConfirmationRequired("sure?")

        for function, kind in ((stop, ToolStop), (ask, ConfirmationRequired)):
            with pytest.raises(kind):
                asyncio.run(arun_call(checked(function)))

    def test_a_tool_that_asks_inside_a_tool_is_heard(self):
        """Tools calling tools."""
        inner = Tool(lambda: "done", "inner", require_confirmation=True)
        with pytest.raises(ConfirmationRequired, match="inner"):
            run_call(checked(inner.__call__, name="outer"))

    def test_a_timeout_is_an_error_the_loop_can_report(self):
        free = threading.Event()
        try:
            found = run_call(checked(lambda: free.wait(60), name="slow", timeout_s=0.02))
        finally:
            free.set()
        assert found.content.startswith(
            "Execution error in slow: ToolTimeoutError: `slow` did not finish within 0.02 s.",
        )
        assert found.is_error

    def test_a_declared_tool_fails_with_a_reason(self):
        far = Tool("far", schema={})
        found = run_call(CheckedCall(ToolCall(name="far"), far, far.prepare({})))
        assert "no function here" in found.content
        assert found.is_error


class TestFailure:
    @pytest.mark.parametrize(
        "error",
        [
            UnknownToolError("zzz", ["add"]),
            ToolArgumentsError("add", [("a", "is missing")], "{}"),
            ToolRetry("again"),
            ToolCallError("invalid_tool_call_arguments", "not JSON"),
        ],
        ids=lambda each: type(each).__name__,
    )
    def test_faults_of_the_call_are_marked_and_said_in_their_own_words(self, error):
        found = failure(ToolCall(name="zzz", id="7"), error)
        assert (found.name, found.content, found.call_id, found.is_error, found.is_fault) == (
            "zzz",
            str(error),
            "7",
            True,
            True,
        )
        assert found.error is error

    def test_other_errors_are_execution_errors(self):
        found = failure(ToolCall(name="add"), ValueError("odd"))
        assert (found.content, found.is_error, found.is_fault) == (
            "Execution error in add: ValueError: odd",
            True,
            False,
        )


def test_attempting_gives_the_value_or_the_error():
    """ours: the wall for code that comes with tools."""
    assert attempt(lambda: 3) == (3, None)
    value, error = attempt(lambda: 1 // 0)
    assert value is None
    assert isinstance(error, ZeroDivisionError)
    with pytest.raises(KeyboardInterrupt):
        attempt(lambda: (_ for _ in ()).throw(KeyboardInterrupt))


def test_a_sync_driver_runs_async_tools_without_the_opt_in():
    """api.md 6."""

    async def double(n: int) -> int:
        return 2 * n

    assert ran(double, {"n": 2}).content == "4"

    async def main():
        return run_call(checked(double, {"n": 2}))

    assert asyncio.run(main()).content == "4"
