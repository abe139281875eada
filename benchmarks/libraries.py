"""The libraries that are compared, and a process for each, which runs `peer.py`."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# No downloads and no tracing: set-up over the network is not a cost of a library. Modules stay
# compiled, as in an installation.
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
} | {
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENAI_API_KEY": "x",
}


@dataclass(frozen=True)
class Library:
    """A row of the table: a way to write an agent."""

    name: str
    module: str
    distribution: str | None
    """The distribution that must be installed, besides the benchmarks' own requirements."""
    names: str
    """The names that a program with one agent imports."""
    function: str = "make"
    form: str = "native"
    """The form in which model_server.py answers."""

    @property
    def python(self) -> str:
        """The interpreter of the library's venv: DSPy's dependencies conflict with those of the others."""
        own = HERE.parent / ".venv-bench-dspy" / "bin" / "python"
        return str(own) if self.distribution == "dspy" and own.is_file() else sys.executable

    def version(self) -> str | None:
        """The installed version; None if there is none."""
        if self.distribution is None:
            return None
        asked = f"from importlib.metadata import version; print(version({self.distribution!r}))"
        found = subprocess.run(
            [self.python, "-c", asked],
            check=False,
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
        )
        return found.stdout.strip() or None


FLOOR, OURS = "floor", "ferrule"
LIBRARIES = [
    Library(FLOOR, "floor", None, "from pydantic import BaseModel, TypeAdapter"),
    Library(
        OURS,
        "ours",
        "ferrule",
        "from ferrule import tool, ReAct; from ferrule.testing import ScriptedLM",
    ),
    Library("ferrule, calls in text", "ours", "ferrule", "", "make_text", "text"),
    Library(
        "smolagents",
        "smolagents_agent",
        "smolagents",
        "from smolagents import Model, Tool, ToolCallingAgent",
        form="smolagents",
    ),
    Library(
        "langgraph",
        "langgraph_agent",
        "langgraph",
        "from langchain.agents import create_agent",
    ),
    Library(
        "udspy",
        "udspy_react",
        "udspy",
        "from udspy import ReAct, Signature, Tool",
        form="udspy",
    ),
    Library(
        "pydantic-ai",
        "pydantic_ai_agent",
        "pydantic-ai-slim",
        "from pydantic_ai import Agent, Tool",
    ),
    Library(
        "openai-agents",
        "openai_agents",
        "openai-agents",
        "from agents import Agent, Runner, function_tool",
    ),
    Library("dspy ReActV2", "dspy_react", "dspy", "from dspy import ReActV2", "make_v2", "dspy_v2"),
    Library("dspy ReAct", "dspy_react", "dspy", "from dspy import ReAct", form="dspy"),
]


class Worker:
    """The process of one library, which answers requests one after another."""

    def __init__(self, library: Library) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  `end` closes it
        command = [library.python, str(HERE / "peer.py"), library.module, library.function]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process = subprocess.Popen(command, text=True, env=ENVIRONMENT, **pipes)

    def ask(self, figure: str, *, within_s: float | None = None, **parameters: Any) -> Any:
        """Get a figure of the library. Raises `RuntimeError` with the last line of its errors, or `TimeoutError` if it takes too long."""
        with suppress(BrokenPipeError):  # it has already failed; its errors say why
            self._process.stdin.write(json.dumps({"figure": figure, **parameters}) + "\n")
            self._process.stdin.flush()
        if within_s is not None and not select.select([self._process.stdout], [], [], within_s)[0]:
            self._process.kill()
            raise TimeoutError
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(
                (self._errors.read().strip() or "it ended without a word").splitlines()[-1][:300],
            )
        return json.loads(line)

    def end(self) -> None:
        """End the process."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with suppress(BrokenPipeError):  # it has already ended
                self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def python(*arguments: str, interpreter: str = sys.executable) -> str:
    """Run a program, and return the last line that it prints."""
    found = subprocess.run(
        [interpreter, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    return found.stdout.strip().splitlines()[-1]


def script(name: str, *arguments: str, interpreter: str = sys.executable) -> Any:
    """Run a script of this folder, and return the JSON that it prints."""
    return json.loads(python(str(HERE / name), *arguments, interpreter=interpreter))
