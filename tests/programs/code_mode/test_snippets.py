"""Code of the model that calls tools: every call in it is checked, ruled, asked of a person and
recorded.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import subprocess
import sys
import threading
import time
from contextlib import closing
from importlib.util import find_spec
from math import inf, nan
from typing import Any

import forked
import pytest
from agent_script import STEPS, fields
from pydantic import BaseModel

from ferrule import (
    MCPServer,
    MemoryStore,
    Policy,
    Predict,
    ReAct,
    Response,
    Run,
    SQLiteStore,
    Tool,
    Toolbox,
    ToolCall,
    ask,
    context,
    deny,
    gt,
    module_callback,
    tool,
)
from ferrule.errors import ConfigurationError, DuplicateToolError
from ferrule.events import Migrated
from ferrule.programs.code_mode.interpreter import CodeMode, CodeSession
from ferrule.programs.code_mode.stubs import MODULES
from ferrule.testing import ScriptedLM

pytestmark = pytest.mark.skipif(
    find_spec("pydantic_monty") is None, reason="needs the extra: pip install 'ferrule[code]'"
)


@pytest.fixture(params=["text", "native"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


class Sum(BaseModel):
    """What a tool of a server returns."""

    total: int


class Shop:
    """Tools that note what they were called with."""

    def __init__(self) -> None:
        self.done: list[Any] = []

        @tool
        def orders(limit: int = 5) -> list[dict[str, float]]:
            """List orders."""
            return [{"id": number, "euros": 10.0 * number} for number in range(limit)]

        @tool
        def refund(order: int, euros: float) -> str:
            """Refund an order."""
            self.done.append((order, euros))
            return f"refunded {order}"

        @tool
        async def fetch(name: str) -> str:
            """Fetch a page."""
            self.done.append(name)
            return name.upper()

        @tool
        def fail() -> str:
            """Fail."""
            raise OSError("no disk")

        self.orders, self.refund, self.fetch, self.fail = orders, refund, fetch, fail
        self.tools = [orders, refund, fetch, fail]


@pytest.fixture
def shop() -> Shop:
    return Shop()


def scripted(*codes: str, mode: str = "native") -> ScriptedLM:
    step = STEPS[mode]
    steps = [step("t", "run_code", {"code": code}) for code in codes]
    return ScriptedLM([*steps, step("f", "finish", {"answer": "ok"})])


def outputs(
    shop: Shop, *codes: str, mode: str = "native", driver: str = "sync", **options: Any
) -> list[str]:
    """What the model read of each snippet."""
    options.setdefault("calls", "code")
    options.setdefault("native", mode == "native")
    program = ReAct("question -> answer: str", shop.tools, **options)
    with context(lm=scripted(*codes, mode=mode)):
        if driver == "sync":
            prediction = program(question="q")
        else:
            prediction = asyncio.run(program.acall(question="q"))
    steps = prediction.trajectory.steps[: len(codes)]
    return [str(step.results[0].content) for step in steps]


def test_calls_of_a_snippet_run_and_their_values_are_values(shop, mode, driver) -> None:
    code = (
        "total = 0.0\n"
        "for order in await orders(limit=3):\n"
        "    print(await refund(int(order['id']), order['euros']))\n"
        "    total += order['euros']\n"
        "total"
    )
    [output] = outputs(shop, code, mode=mode, driver=driver)
    assert output == "refunded 0\nrefunded 1\nrefunded 2\nresult_1 = 30.0"
    assert shop.done == [(0, 0.0), (1, 10.0), (2, 20.0)]


def test_the_model_has_one_tool_whose_description_has_the_functions(shop) -> None:
    lm = scripted("1")
    with context(lm=lm):
        ReAct("question -> answer", shop.tools, calls="code")(question="q")
    run_code, finish = lm.requests[0].tools
    assert (run_code["function"]["name"], finish["function"]["name"]) == ("run_code", "finish")
    description = run_code["function"]["description"]
    assert "async def refund(order: int, euros: float) -> str:" in description
    assert "async def orders(limit: int = 5) -> list[dict[str, float]]:" in description


def test_variables_live_as_long_as_the_run(shop) -> None:
    assert outputs(shop, "a = 1\na + 1", "a + result_1") == ["result_1 = 2", "result_2 = 3"]
    assert "`a`" in outputs(shop, "a")[0] or "a" in outputs(shop, "print(a)")[0]


def test_gathered_calls_are_one_batch(shop) -> None:
    code = "import asyncio\nawait asyncio.gather(fetch('a'), fetch(name='b'))"
    assert outputs(shop, code) == ["result_1 = ['A', 'B']"]
    store = MemoryStore()
    with context(lm=scripted(code)):
        run = ReAct("question -> answer", shop.tools, calls="code").start(question="q", store=store)
    slots = [entry.slot for entry in run.journal.entries if entry.kind == "result"]
    assert len({slot.split(".")[0] for slot in slots}) == 1


def test_gathered_calls_are_made_in_the_order_of_the_code(shop) -> None:
    """The interpreter names them in any order; a replay must find them where they were."""
    names = [str(number) for number in range(8)]
    calls = ", ".join(f"fetch({name!r})" for name in names)
    with context(lm=scripted(f"import asyncio\nawait asyncio.gather({calls})")):
        program = ReAct("question -> answer", shop.tools, calls="code")
        run = program.start(question="q", store=MemoryStore())
    results = [entry for entry in run.journal.entries if entry.kind == "result"]
    by_slot = sorted(results, key=lambda entry: entry.slot)
    assert [entry.value.content for entry in by_slot] == names


def test_in_text_the_code_may_stand_in_a_fence(shop) -> None:
    text = (
        "[[ ## next_thought ## ]]\nI count.\n[[ ## next_tool_name ## ]]\nrun_code\n"
        "[[ ## next_tool_args ## ]]\n```python\nlen(await orders(limit=4))\n```\n"
        "[[ ## completed ## ]]"
    )
    lm = ScriptedLM([text, STEPS["text"]("f", "finish", {"answer": "ok"})])
    with context(lm=lm):
        program = ReAct("question -> answer", shop.tools, calls="code", native=False)
        prediction = program(question="q")
    assert prediction.trajectory.steps[0].results[0].content == "result_1 = 4"
    assert "in a fence" in lm.requests[0].messages[0].text


def test_wrong_arguments_are_found_before_anything_runs(shop) -> None:
    [output] = outputs(shop, "await refund(1, 2.0)\nawait refund('x', 5.0)")
    assert "does not fit" in output
    assert "main.py:2" in output
    assert shop.done == []


def test_a_call_that_is_not_awaited_is_named(shop) -> None:
    [output] = outputs(shop, "call = refund(1, 2.0)\n5")
    assert "`refund` in line 1 was not awaited" in output
    assert shop.done == []


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("fail()", "ToolError"),
        ('refund(**json.loads(\'{"order": 1, "euros": "x"}\'))', "ToolArgumentsError"),
        ("refund(**json.loads('{\"order\": 1}'))", "ToolArgumentsError"),
    ],
)
def test_what_comes_of_a_call_can_be_caught(shop, call: str, error: str) -> None:
    code = f"import json\ntry:\n    await {call}\nexcept {error} as problem:\n    print('caught', problem)"
    [output] = outputs(shop, code)
    assert output.startswith("caught ")


def test_an_error_that_is_not_caught_is_shown_with_its_line(shop) -> None:
    [output] = outputs(shop, "a = 1\nawait fail()\n")
    assert "line 2" in output
    assert "no disk" in output


def test_each_call_that_needs_consent_is_asked_with_its_line(shop, mode) -> None:
    code = "for number in range(3):\n    await refund(number, 100.0 * number)"
    policy = Policy([ask("refund", euros=gt(50))])
    with context(lm=scripted(code, mode=mode)):
        program = ReAct(
            "question -> answer", shop.tools, calls="code", policy=policy, native=mode == "native"
        )
        run = program.start(question="q", store=MemoryStore())
        asked = []
        while run.status == "waiting":
            [question] = run.pending
            asked.append(question.call.args)
            assert ">   2     await refund" in question.text
            run.answer(question.approve())
            run.resume()
    assert asked == [{"order": 1, "euros": 100.0}, {"order": 2, "euros": 200.0}]
    assert shop.done == [(0, 0.0), (1, 100.0), (2, 200.0)]
    assert run.status == "done"


def test_a_denied_call_is_an_exception_and_is_not_asked_again(shop) -> None:
    code = (
        "for attempt in range(3):\n"
        "    try:\n"
        "        await refund(1, 2.0)\n"
        "    except ToolDeniedError as error:\n"
        "        print(error)\n"
    )
    with context(lm=scripted(code)):
        program = ReAct(
            "question -> answer", shop.tools, calls="code", policy=Policy([ask("refund")])
        )
        run = program.start(question="q", store=MemoryStore())
        run.answer(run.pending[0].deny("too much"))
        run.resume()
    assert run.status == "done"
    assert shop.done == []
    [line, *others] = run.prediction.trajectory.steps[0].results[0].content.splitlines()
    assert line == "too much"
    assert len(others) == 2
    assert all("not asked again" in other for other in others)


def test_a_policy_denies_each_call_whatever_the_code_catches(shop) -> None:
    code = (
        "for number in range(5):\n"
        "    try:\n"
        "        await refund(number, 2.0)\n"
        "    except BaseException:\n"
        "        pass\n"
    )
    outputs(shop, code, policy=Policy([deny("refund")]))
    assert shop.done == []


def test_an_edit_runs_as_edited_and_the_model_reads_of_it(shop) -> None:
    with context(lm=scripted("print(await refund(1, 100.0))")):
        program = ReAct(
            "question -> answer", shop.tools, calls="code", policy=Policy([ask("refund")])
        )
        run = program.start(question="q", store=MemoryStore())
        run.answer(run.pending[0].edit({"euros": 5.0}))
        run.resume()
    assert shop.done == [(1, 5.0)]
    content = run.prediction.trajectory.steps[0].results[0].content
    assert content.splitlines()[0] == "refunded 1"
    assert "A person changed the arguments" in content


_PROCESS = """
import sys
from ferrule import ReAct, Run, SQLiteStore, context, tool
from ferrule.testing import ScriptedLM
from agent_script import native_step

@tool(require_confirmation=True)
def refund(order: int) -> str:
    "Refund."
    with open(sys.argv[2], "a") as file:
        file.write(f"{order}\\n")
    return "ok"

@tool(effect="read")
def dice() -> int:
    "Roll."
    import random
    return random.randint(1, 10**9)

CODE = '''
import random
rolled = [await dice(), random.randint(1, 10**9)]
for number in range(3):
    await refund(number)
rolled
'''
lm = ScriptedLM(
    [native_step("a", "run_code", {"code": "first = await dice()\\nfirst"}),
     native_step("b", "run_code", {"code": CODE}),
     native_step("c", "run_code", {"code": "assert first == result_1\\nprint(rolled == result_2)"}),
     native_step("d", "finish", {"answer": "ok"})][int(sys.argv[4]):]
)
agent = ReAct("question -> answer", [refund, dice], calls="code", lm=lm)
store = SQLiteStore(sys.argv[1])
if sys.argv[3] == "start":
    run = agent.start(question="q", store=store, run_id="r")
else:
    run = Run.load(store, "r", agent)
    run.answer(run.pending[0].approve())
    run.resume()
print(run.status, run.pending and run.pending[0].call.args)
if run.status == "done":
    print(run.prediction.trajectory.steps[2].results[0].content)
"""


def test_a_run_goes_on_in_the_middle_of_a_loop_in_other_processes(tmp_path) -> None:
    def process(what: str, answers: int) -> str:
        words = ("-c", _PROCESS, tmp_path / "runs.db", tmp_path / "done", what, str(answers))
        ran = forked.run(*words)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert process("start", 0) == "waiting {'order': 0}\n"
    assert process("resume", 2) == "waiting {'order': 1}\n"
    assert process("resume", 2) == "waiting {'order': 2}\n"
    assert process("resume", 2) == "done ()\nTrue\n"
    assert (tmp_path / "done").read_text() == "0\n1\n2\n"


def test_the_model_reads_the_same_in_each_process() -> None:
    """The order of a set of Python depends on the process; a replay must find the same request."""
    script = (
        "from ferrule import ReAct\n"
        "from ferrule.testing import ScriptedLM\n"
        "from agent_script import native_step\n"
        "code = \"{'a', 'b', 'c', 'dd', 'eee'}\"\n"
        "lm = ScriptedLM([native_step('t', 'run_code', {'code': code}),\n"
        "    native_step('f', 'finish', {'answer': 'ok'})])\n"
        "prediction = ReAct('question -> answer', [], calls='code')(question='q', lm=lm)\n"
        "print(prediction.trajectory.steps[0].results[0].content)\n"
    )
    shown = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": "tests", "PYTHONHASHSEED": seed},
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert shown == {"result_1 = {'a', 'b', 'c', 'dd', 'eee'}\n"}


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set when a snippet begins."""
    event = threading.Event()
    start = CodeSession.start

    def noted(session: CodeSession, *args: Any, **options: Any) -> Any:
        event.set()
        return start(session, *args, **options)

    monkeypatch.setattr(CodeSession, "start", noted)
    return event


def test_cancelling_does_not_wait_for_code_at_work(shop, begun) -> None:
    async def cancelled() -> None:
        program = ReAct("question -> answer", shop.tools, calls=CodeMode(seconds=600))
        task = asyncio.create_task(program.acall(question="q"))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with context(lm=scripted("while True:\n    pass")):
        asyncio.run(cancelled())


def test_an_interpreter_that_starts_after_its_run_was_cancelled_is_closed(
    shop, monkeypatch
) -> None:
    is_starting, may_go_on, is_closed = threading.Event(), threading.Event(), threading.Event()
    start, close = CodeSession.__init__, CodeSession.close

    def slow_start(session: CodeSession, *args: Any, **options: Any) -> None:
        is_starting.set()
        may_go_on.wait(60)
        start(session, *args, **options)

    def noted_close(session: CodeSession) -> None:
        close(session)
        is_closed.set()

    monkeypatch.setattr(CodeSession, "__init__", slow_start)
    monkeypatch.setattr(CodeSession, "close", noted_close)

    async def cancelled() -> None:
        program = ReAct("question -> answer", shop.tools, calls="code")
        task = asyncio.create_task(program.acall(question="q"))
        await asyncio.to_thread(is_starting.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with context(lm=scripted("1 + 1")):
        asyncio.run(cancelled())
    may_go_on.set()
    assert is_closed.wait(60)


@pytest.mark.parametrize("store", [None, MemoryStore()], ids=["in memory", "stored"])
@pytest.mark.parametrize(
    "code",
    [
        "while True:\n    pass",
        "while True:\n    print('at work')",
        "class Slow:\n    def __repr__(self):\n        while True:\n            pass\nSlow()",
    ],
)
def test_ctrl_c_ends_code_at_work(shop, begun, code: str, store) -> None:
    def interrupt() -> None:
        begun.wait()
        time.sleep(0.1)  # so that the code is at work; sooner is as right
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    lm = scripted(code)
    program = ReAct("question -> answer", shop.tools, calls=CodeMode(seconds=600), lm=lm)
    with pytest.raises(KeyboardInterrupt):
        program.start(question="q", store=store)
    assert len(lm.requests) == 1


def test_making_an_agent_starts_no_server() -> None:
    server = MCPServer.stdio("no-such-command", name="away")
    ReAct("question -> answer", [server], calls="code")
    assert not server.is_connected


def test_a_refused_call_stays_refused_when_the_run_resumes(shop) -> None:
    code = (
        "import json\n"
        "try:\n"
        '    await refund(**json.loads(\'{"order": "x", "euros": 1}\'))\n'
        "except ToolArgumentsError:\n"
        "    pass\n"
        "await refund(7, 100.0)\n"
    )
    with context(lm=scripted(code)):
        program = ReAct(
            "question -> answer", shop.tools, calls="code", policy=Policy([ask("*", euros=gt(50))])
        )
        run = program.start(question="q", store=MemoryStore())
        assert run.pending[0].call.args == {"order": 7, "euros": 100.0}
        run.answer(run.pending[0].approve())
        run.resume()
    assert run.status == "done"
    assert shop.done == [(7, 100.0)]


def test_a_loaded_run_is_read_with_its_snippets(shop, tmp_path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    with context(lm=scripted("a = len(await orders())\na", "a + 1")):
        program = ReAct("question -> answer", shop.tools, calls="code")
        program.start(question="q", store=store, run_id="r")
        loaded = Run.load(store, "r", program)
        steps = loaded.prediction.trajectory.steps
    assert [step.results[0].content for step in steps[:2]] == ["result_1 = 5", "result_2 = 6"]
    store.close()


@pytest.mark.parametrize(
    ("code", "bounds", "words"),
    [
        ("while True:\n    pass", {"seconds": 0.1}, "time limit"),
        ("'a' * 100_000_000", {"memory_mb": 5}, "memory limit"),
        ("def f(n: int) -> int:\n    return f(n + 1)\nf(0)", {}, "RecursionError"),
        ("print('x' * 10_000)", {"output_chars": 100}, "the rest is left out"),
        ("for n in range(20):\n    print('x' * 1_000_000)", {}, "the rest is left out"),
        ("['x' * 100] * 100", {"value_chars": 50}, "a list of 100 items"),
        ("for n in range(10):\n    await fetch(str(n))", {"calls": 3}, "no more than 3 calls"),
    ],
)
def test_each_bound_is_a_clear_error(shop, code: str, bounds: dict[str, Any], words: str) -> None:
    [output, after] = outputs(shop, code, "1 + 1", calls=CodeMode(**bounds))
    assert words in output
    assert after == "result_2 = 2"


def test_a_value_whose_text_cannot_be_made_is_an_error_about_that_value(shop) -> None:
    code = "class Odd:\n    def __repr__(self):\n        raise ValueError('no text')\nOdd()"
    [output, after] = outputs(shop, code, "1 + 1")
    assert output == "The value of the last line cannot be shown: ValueError: no text"
    assert after == "result_2 = 2"


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.environ['HOME']",
        "open('/etc/passwd').read()",
        "import ferrule",
        "import subprocess",
        "().__class__.__bases__[0].__subclasses__()",
        "__import__('os').system('true')",
        "import socket",
        "refund.__globals__",
        "refund.__self__",
    ],
)
def test_a_snippet_reaches_nothing_of_the_host(shop, code: str) -> None:
    [output] = outputs(shop, f"{code}\nawait refund(1, 1.0)")
    assert shop.done == []
    assert "Error" in output or "error" in output


def test_a_tool_of_the_shelf_is_callable_after_it_was_loaded(shop) -> None:
    from ferrule import Load

    @tool
    def load_refund() -> Load:
        """Load the refund."""
        return Load("refund")

    program = ReAct("question -> answer", Toolbox([load_refund], shelf=[shop.refund]), calls="code")
    with context(lm=scripted("print(await load_refund())", "await refund(1, 2.0)")):
        prediction = program(question="q")
    assert shop.done == [(1, 2.0)]
    assert prediction.trajectory.steps[1].results[0].content == "result_2 = 'refunded 1'"


def test_events_show_the_code_and_each_call(shop) -> None:
    seen = []
    with context(lm=scripted("await refund(1, 2.0)"), callbacks=[seen.append]):
        ReAct("question -> answer", shop.tools, calls="code")(question="q")
    calls = [(event.type, event.call.name) for event in seen if event.type.startswith("Call")]
    calls = [pair for pair in calls if pair[0] in {"CallStarted", "CallFinished"}]
    assert calls == [
        ("CallStarted", "run_code"),
        ("CallStarted", "refund"),
        ("CallFinished", "refund"),
        ("CallFinished", "run_code"),
    ]


@pytest.mark.parametrize("value", ["cod", 5, "CODE"])
def test_another_value_of_calls_is_refused(shop, value: Any) -> None:
    with pytest.raises(ConfigurationError, match='"code"'):
        ReAct("question -> answer", shop.tools, calls=value)


def test_a_tool_named_run_code_is_refused() -> None:
    @tool
    def run_code(code: str) -> str:
        """Run."""
        return code

    with pytest.raises(DuplicateToolError):
        ReAct("question -> answer", [run_code], calls="code")


@pytest.mark.parametrize(
    "bounds",
    [{"seconds": 0}, {"calls": True}, {"memory_mb": "1"}, {"seconds": nan}, {"calls": inf}],
)
def test_a_bound_is_a_finite_number_above_zero(bounds: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        CodeMode(**bounds)


# -- Predict


def test_predict_calls_tools_in_code(shop, mode) -> None:
    calls = {"name": "run_code", "args": {"code": "len(await orders(limit=4))"}}
    if mode == "native":
        answers = [calls, "four"]
    else:
        answers = [fields(tool_calls=[calls], answer=""), fields(tool_calls=[], answer="four")]
    with context(lm=ScriptedLM(answers)):
        program = Predict(
            "question -> answer", tools=shop.tools, calls="code", native=mode == "native"
        )
        prediction = program(question="q")
    assert prediction.answer == "four"
    assert prediction.trajectory.steps[0].results[0].content == "result_1 = 4"


@pytest.mark.parametrize(
    ("signature", "options"),
    [("question -> answer", {"auto_execute_tools": False}), ("question -> calls: ToolCalls", {})],
)
def test_predict_refuses_code_that_would_not_run(shop, signature: str, options: Any) -> None:
    with pytest.raises(ConfigurationError, match="ToolCalls"):
        Predict(signature, tools=shop.tools, calls="code", **options)


# -- for people


LATE = "\nfor number in range(3):\n    await refund(number, 1.0 * number)\n"


@pytest.fixture
def waiting(shop, tmp_path) -> Any:
    """A run whose code waits for the answer to its third call, and the place of its store."""
    place = tmp_path / "runs.db"
    policy = Policy([ask("refund", euros=gt(1.5))])
    with context(lm=scripted(LATE)), closing(SQLiteStore(place)) as store:
        program = ReAct("question -> answer", shop.tools, calls="code", policy=policy)
        [question] = program.start(question="q", store=store, run_id="r").pending
    return place, question


def test_the_terminal_shows_the_code_and_the_line_of_each_call(waiting, capsys) -> None:
    from ferrule.cli.main import main

    place, _ = waiting
    main(["show", "r", "--store", str(place)])
    shown = capsys.readouterr().out
    code = (
        "      |   2 for number in range(3):\n      |   3     await refund(number, 1.0 * number)\n"
    )
    assert code in shown
    assert "refund returned to line 3: refunded 0" in shown


def test_a_question_shows_the_line_and_how_many_calls_have_run(waiting) -> None:
    _, question = waiting
    assert question.note.splitlines() == [
        "Line 3 of the model's code. 2 of its calls have already run.",
        "    2 for number in range(3):",
        ">   3     await refund(number, 1.0 * number)",
    ]


def test_a_question_says_that_calls_are_made_together(shop) -> None:
    code = "import asyncio\nawait asyncio.gather(*[refund(n, 5.0) for n in range(3)])"
    with context(lm=scripted(code)):
        policy = Policy([ask("refund")])
        program = ReAct("question -> answer", shop.tools, calls="code", policy=policy)
        first, *_ = program.start(question="q", store=MemoryStore()).pending
    assert first.note.startswith(
        "Line 2 of the model's code. None of its calls has run yet. "
        "This one is made together with 2 more."
    )


def test_the_page_shows_each_call_beside_its_line_and_marks_the_line_of_a_question(
    waiting, capsys
) -> None:
    pytest.importorskip("starlette")
    from ferrule.cli.main import main

    place, _ = waiting
    main(["show", "r", "--store", str(place), "--html"])
    page = capsys.readouterr().out
    line = '<li value="3"><code>    await refund(number, 1.0 * number)</code><div class="made">'
    code, marked = page.split(line)
    assert '<li value="2"><code>for number in range(3):</code></li>' in code
    calls, question = marked.split('<section class="question"')
    assert calls.count('aria-label="Call') == 2
    assert "refunded 0" in calls
    assert "refunded 1" in calls
    assert (
        '<li value="3"><mark><span class="unseen">This line: </span>'
        "<code>    await refund(number, 1.0 * number)</code></mark></li>"
    ) in question


@pytest.mark.parametrize(
    "attempts",
    [
        "await fetch(str(number))",  # denied by the policy
        'await refund(**json.loads(\'{"order": "x"}\'))',  # refused by the check
        "await refund()",  # refused before it is a call
    ],
)
def test_calls_that_never_ran_have_places_of_their_own(shop, attempts: str) -> None:
    """A resumed run finds each of them where it was."""
    code = (
        "import json\n"
        "for number in range(4):\n"
        "    try:\n"
        f"        {attempts}\n"
        "    except Exception as error:\n"
        "        print(number, error)\n"
        "print(await refund(7, 100.0))\n"
    )
    policy = Policy([deny("fetch", reason="no pages"), ask("*", euros=gt(50))])
    with context(lm=scripted(code.replace("refund()", "refund(*json.loads('[1, 2, 3]'))"))):
        program = ReAct("question -> answer", shop.tools, calls="code", policy=policy)
        run = program.start(question="q", store=MemoryStore())
        before = [(entry.slot, entry.kind) for entry in run.journal.entries]
        assert len(set(before)) == len(before)
        run.answer(run.pending[0].approve())
        run.resume()
    assert run.status == "done"
    assert shop.done == [(7, 100.0)]
    assert not any(isinstance(event, Migrated) for event in run.events())


# -- tools that come and go


def statuses(*services: str) -> Toolbox:
    """A toolbox with one tool for each service, found by a search."""

    def about(service: str) -> Tool:
        def status(region: str = "eu") -> str:
            return f"{service} is up in {region}"

        return Tool(status, f"{service}.status", f"Say whether {service} is up.")

    tools = [about(service) for service in ("mail", *services)]
    return Toolbox(tools, search="bm25", keep=["mail.status"], keep_turns=2)


def with_tools(toolbox: Toolbox) -> Any:
    """Stands in for a `Shop`."""

    class WithTools:
        tools = toolbox

    return WithTools()


def test_a_search_in_code_finds_functions_for_the_next_code_with_their_types(mode) -> None:
    first, second, third = outputs(
        with_tools(statuses("payments", "search")),
        "await search_tools('payments', limit=1)\nawait payments_status()",
        "print(await search_tools('payments', limit=1))",
        "await payments_status(region='us')",
        mode=mode,
    )
    assert "Name `payments_status` used when not defined" in first
    assert "those that earlier code loaded" in first
    assert "async def payments_status(region: str = 'eu') -> str:" in second
    assert third == "result_3 = 'payments is up in us'"


def test_two_pieces_of_code_in_one_turn_may_load_and_call() -> None:
    codes = ["await search_tools('payments', limit=1)", "await payments_status()"]
    calls = [ToolCall(name="run_code", args={"code": code}) for code in codes]
    lm = ScriptedLM([Response(None, tuple(calls)), {"name": "finish", "args": {"answer": "ok"}}])
    with context(lm=lm):
        program = ReAct("question -> answer", statuses("payments"), calls="code")
        prediction = program(question="q")
    loaded, called = prediction.trajectory.steps[0].results
    assert "async def payments_status" in loaded.content
    assert called.content == "result_2 = 'payments is up in eu'"


def test_a_loaded_tool_that_code_calls_is_not_put_back() -> None:
    calling = ["await payments_status()"] * 4
    *_, last = outputs(
        with_tools(statuses("payments")), "await search_tools('payments', limit=1)", *calling
    )
    assert last == "result_5 = 'payments is up in eu'"
    *_, idle = outputs(
        with_tools(statuses("payments")),
        "await search_tools('payments', limit=1)",
        *["1"] * 3,
        "await payments_status()",
    )
    assert "payments is up" not in idle


def test_a_tool_whose_arguments_change_is_checked_as_it_is_now() -> None:
    @tool
    def change() -> Any:
        """Change the other tool."""

        @module_callback
        def now(context: Any) -> str:
            def act(text: str) -> str:
                return text

            tools = [found for name, found in context.module.tools.items() if name != "act"]
            context.module.init_module(tools=[*tools, Tool(act, "act", "Act.")])
            return "changed"

        return now

    @tool
    def act(number: int) -> int:
        """Act."""
        return number

    before, changed, after, wrong = outputs(
        with_tools(Toolbox([change, act])),
        "await act(1)",
        "await change()",
        "await act('x')",
        "await act(1)",
    )
    assert before == "result_1 = 1"
    assert "async def act(text: str) -> str:" in changed
    assert after == "result_3 = 'x'"
    assert "Expected `str`" in wrong


def test_tools_of_an_mcp_server_are_typed_functions() -> None:
    mcp_server = pytest.importorskip("mcp.server")
    remote = mcp_server.MCPServer("adder")

    @remote.tool()
    def add(a: int, b: int = 2) -> Sum:
        """Add."""
        return Sum(total=a + b)

    with closing(MCPServer.in_memory(remote, trust=True, confirm=False)) as server:
        right, wrong, field = outputs(
            with_tools([server]),
            "(await add(1))['total']",
            "await add('x')",
            "(await add(1))['sum']",
        )
    assert right == "result_1 = 3"
    assert "invalid-argument-type" in wrong
    assert "invalid-key" in field or "Unknown key" in field


# -- Python that the interpreter does not run


@pytest.mark.parametrize(
    ("code", "instead"),
    [
        ("class A(Exception):\n    pass", "a dict, a function or a dataclass"),
        ("def f():\n    yield 1\nlist(f())", "Fill a list and return it"),
        ("a = [1]\ndel a[0]", "Use `pop`"),
        ("type X = int", "Write the type itself"),
        ("async for x in orders():\n    pass", "write `for` without `async`"),
        ("import asyncio\nasyncio.create_task(orders())", "`gather`, `run` and `sleep`"),
        ("import pandas", "the modules are asyncio, base64"),
        ("import statistics", "the modules are asyncio, base64"),
        ("open('x')", "built-in ones except those for files"),
        ("import os\nos.environ", "no files, network or environment"),
    ],
)
def test_python_that_does_not_run_is_named_with_what_to_write_instead(
    shop, code: str, instead: str
) -> None:
    [output] = outputs(shop, code)
    assert output.splitlines()[-1].startswith("Instead: ")
    assert instead in output


@pytest.mark.parametrize(
    "code",
    [
        "list(map(str, [1])) == ['1'] and list(filter(None, [0, 1])) == [1]",
        "format(1.5, '.2f') == '1.50'",
        "def f():\n    global y\n    y = True\nf()\ny",  # the checker warns
    ],
)
def test_python_that_runs_is_not_refused_by_the_checker(shop, code: str) -> None:
    assert outputs(shop, code) == ["result_1 = True"]


@pytest.mark.parametrize("module", MODULES)
def test_the_modules_that_an_error_names_are_there(shop, module: str) -> None:
    assert outputs(shop, f"import {module}\n1") == ["result_1 = 1"]


def test_a_long_error_is_bounded(shop) -> None:
    [output] = outputs(shop, "raise ValueError('x' * 100_000)", calls=CodeMode(output_chars=500))
    assert "ValueError" in output
    assert len(output) < 1_000
