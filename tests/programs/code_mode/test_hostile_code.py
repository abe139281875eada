"""Code that tries to get out, to get more than it may, or to run a call that was denied."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from agent_script import native_step

import ferrule
from ferrule import Policy, ReAct, context, deny, tool
from ferrule.programs.code_mode.interpreter import CodeMode
from ferrule.testing import ScriptedLM, block_network

pytestmark = pytest.mark.skipif(
    find_spec("pydantic_monty") is None, reason="needs the extra: pip install 'ferrule[code]'"
)

SECRET = "sk-of-the-host"
BOUNDS = CodeMode(seconds=0.5, memory_mb=20, calls=20, output_chars=2_000)

ESCAPES = [
    "import os\nprint(os.environ)",
    "import os\nos.system('touch /tmp/escaped')",
    "import os\nprint(os.listdir('/'))",
    "import os\nos.getenv('HOST_SECRET')",
    "import sys\nprint(sys.modules)",
    "import subprocess\nsubprocess.run(['id'])",
    "import socket\nsocket.create_connection(('127.0.0.1', 80))",
    "import ctypes",
    "import threading",
    "import importlib\nimportlib.import_module('os').system('id')",
    "import ferrule\nferrule.configure(policy=None)",
    "import gc\ngc.get_objects()",
    "import inspect\ninspect.currentframe().f_back",
    "import pickle",
    "import builtins\nbuiltins.open('/etc/passwd')",
    "open('/etc/passwd').read()",
    "from pathlib import Path\nprint(Path('/etc/passwd').read_text())",
    "from pathlib import Path\nprint(list(Path('/').iterdir()))",
    "print(().__class__.__bases__[0].__subclasses__())",
    "print((lambda: 0).__globals__)",
    "print((lambda: 0).__code__.co_code)",
    "print(pay.__globals__)",
    "print(pay.__closure__)",
    "print(pay.__self__)",
    "print(getattr(pay, '__glo' + 'bals__'))",
    "print('{0.__class__.__init__.__globals__}'.format(pay))",
    "print(f'{pay.__class__.__mro__}')",
    "__import__('os').system('id')",
    "print(globals())",
    "print(vars())",
    "input()",
    "breakpoint()",
    "exit()",
    "help(pay)",
    'eval(\'__import__("os").system("id")\')',
    "exec('import os; os.system(\"id\")')",
    "compile('1', 'x', 'eval')",
]
EXHAUSTING = [
    "while True: pass",
    "x = 'a' * 10**9",
    "x = [0] * 10**9",
    "x = 10**10**8",
    "x = 1 << 10**10",
    "def f(n: int) -> int:\n    return f(n + 1) + 1\nf(0)",
    "x = []\nwhile True: x.append('a' * 1000)",
    "for n in range(10**12): pass",
    "print('x' * 10**7)",
    "while True: print('x' * 1000)",
    "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
    "x = {}\nfor n in range(10**8): x[n] = n",
    "sum(n * n for n in range(10**11))",
    "'%1000000000d' % 1",
    "while True:\n    await look()",
    "import time\ntime.sleep(10**6)",
]
SWALLOWING = [
    "try:\n    await pay(1)\nexcept ToolDeniedError:\n    await pay(1)",
    "for n in range(100):\n    try:\n        await pay(n)\n    except Exception:\n        pass",
    "while True:\n    try:\n        await pay(1)\n        break\n    except BaseException:\n        pass",
    "try:\n    await pay(1)\nfinally:\n    await pay(2)",
    "import asyncio\nprint(await asyncio.gather(pay(1), pay(2), return_exceptions=True))",
    "again = pay\nawait again(1)",
    "calls = {'x': pay}\nawait calls['x'](1)",
    "look = pay\nawait look(1)",
    "async def look() -> str:\n    return await pay(1)\nawait look()",
    "ToolDeniedError = ValueError\nawait pay(1)",
    "class Denied:\n    pass\ntry:\n    await pay(1)\nexcept Exception as error:\n    error.args = ()\n    await pay(1)",
    "[await pay(n) for n in range(3)]",
    "await pay(euros=1)",
    "await pay(**{'euros': 1})",
    "await pay(*[1])",
    "await hidden(1)",
    "await finish(answer='paid')",
    "await run_code(code='await pay(1)')",
    "await user_clarification('may I?')",
]


class Bank:
    def __init__(self) -> None:
        self.paid: list[float] = []

        @tool
        def pay(euros: float) -> str:
            """Pay."""
            self.paid.append(euros)
            return "paid"

        @tool(effect="read")
        def look() -> str:
            """Look."""
            return "seen"

        self.tools = [pay, look]


def run(code: str, **options: Any) -> tuple[str, Bank]:
    """What the model reads of a snippet, under a policy that denies `pay`."""
    bank = Bank()
    lm = ScriptedLM(
        [
            native_step("t", "run_code", {"code": code}),
            native_step("t", "run_code", {"code": "1 + 1"}),
            native_step("f", "finish", {"answer": "ok"}),
        ]
    )
    program = ReAct(
        "question -> answer", bank.tools, calls=BOUNDS, policy=Policy([deny("pay")]), **options
    )
    with context(lm=lm), block_network():
        prediction = program(question="q")
    first, second, _ = prediction.trajectory.steps
    assert second.results[0].content == "result_2 = 2"  # the run goes on
    return str(first.results[0].content), bank


@pytest.mark.parametrize("code", ESCAPES)
def test_code_does_not_get_out(code: str, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HOST_SECRET", SECRET)
    output, bank = run(code)
    assert SECRET not in output
    assert "root:" not in output
    assert str(Path(ferrule.__file__).parent) not in output
    assert bank.paid == []


@pytest.mark.parametrize("code", EXHAUSTING)
def test_code_gets_no_more_than_its_bounds(code: str) -> None:
    output, _ = run(code)
    assert len(output) < 5_000


@pytest.mark.parametrize("code", SWALLOWING)
def test_a_denied_call_does_not_run_whatever_the_code_does(code: str) -> None:
    _, bank = run(code)
    assert bank.paid == []


@pytest.mark.parametrize(
    "code", ["", " ", "\n", "#", "\x00", "é = 1\né", "\ud800", "x" * 10_000, "(" * 500]
)
def test_odd_code_is_an_output_or_an_error_for_the_model(code: str) -> None:
    run(code)


@pytest.mark.parametrize(
    "arguments", [{}, {"code": None}, {"code": 5}, {"code": ["1"]}, {"kode": "1"}]
)
def test_odd_arguments_of_run_code_go_back_to_the_model(arguments: dict[str, Any]) -> None:
    bank = Bank()
    lm = ScriptedLM(
        [native_step("t", "run_code", arguments), native_step("f", "finish", {"answer": "ok"})]
    )
    with context(lm=lm):
        prediction = ReAct("question -> answer", bank.tools, calls="code")(question="q")
    assert prediction.answer == "ok"
