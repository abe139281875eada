"""The demo: questions that an agent answers with real tools, over HTTP.

The answers are checked: the exit code is 1 if one is wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ferrule import settings
from ferrule.cli.arguments import open_model
from ferrule.cli.commands.ask import follow_stream
from ferrule.cli.exit_code import ExitCode
from ferrule.cli.sample_tools import TOOLS
from ferrule.cli.screen import Screen, console_on
from ferrule.encoding.safe_text import one_line
from ferrule.programs.react import ReAct
from ferrule.runs.store.sqlite.store import SQLiteStore
from ferrule.testing.scripted import ScriptedLM
from ferrule.tools.decorator import tool

if TYPE_CHECKING:
    from rich.console import Console

    from ferrule.runs.run import Run


@dataclass(frozen=True, slots=True)
class _Question:
    text: str
    tool: str
    """The tool that the agent must call."""
    expected: str
    """What the answer must contain."""


QUESTIONS = (
    _Question("What is (0.1 + 0.2) * 10**20?", "calculate", "30000000000000000000"),
    _Question("How many days are there between 2024-02-28 and 2026-03-03?", "days_between", "734"),
    _Question('Search the documents: what is a "trajectory"?', "search_documents", "step"),
)
_MCP_QUESTION = _Question("What is 12345679 * 81?", "calculate", "999999999")
_MCP_PACKAGES = ("mcp-server-calculator==0.2.1", "mcp<2")
"""A server of another project, and the version of the SDK that it needs.

It is installed apart from ferrule's own version.
"""
_INSTALL_TIMEOUT_S = 40
_STORE = Path("build") / "demo.db"
"""The runs of the demo, for `ferrule ui`. Only in a checkout."""
_REFUND = {"order": "A-1042", "euros": 29.9}
"""What a person is asked about."""
_SCRIPTS = "Scripts" if os.name == "nt" else "bin"


@dataclass(frozen=True, slots=True)
class _Answer:
    question: _Question
    text: str
    called: tuple[str, ...]
    """The names of the tools that were called."""

    @property
    def is_right(self) -> bool:
        return self.question.tool in self.called and self.question.expected in self.text.casefold()


def run_tour() -> int:
    """Run the demo; returns its exit code."""
    console = console_on(sys.stdout)
    introduction = (
        "ferrule connects a language model to tools: "
        "Python functions that it can call to answer a question.\n"
    )
    console.print(Text(introduction, "bold"))
    console.print(
        "This demo needs no API key: instead of a language model, OfflineLM answers by fixed "
        "rules, behind a real HTTP server on this machine that speaks OpenAI's protocol. "
        "The agent (ReAct) and the tools work as in any real program.\n"
    )
    names = ", ".join(function.__name__ for function in TOOLS)
    console.print(f"The tools are four Python functions: {names}.\n")
    agent = ReAct("question -> answer", TOOLS, max_iters=5)
    answers: list[_Answer] = []
    for number, question in enumerate(QUESTIONS, 1):
        console.print(Rule(Text(f"{number}. {question.text}", "bold"), align="left"))
        answers.append(_ask(console, agent, question))
    answers += _ask_mcp_server(console)
    _print_summary(console, answers)
    if _is_checkout():
        _leave_question(_open_store())
        console.print(
            f"In a browser:     .venv/{_SCRIPTS}/ferrule ui --store {_STORE}    "
            "(these runs, and a refund that waits for your approval)"
        )
    is_right = all(answer.is_right for answer in answers)
    return ExitCode.DONE if is_right else ExitCode.FAILED


def _ask(console: Console, agent: ReAct, question: _Question) -> _Answer:
    screen = Screen(console)
    store = None
    if _is_checkout():
        store = _open_store()
    with open_model(None, None) as lm, settings.context(lm=lm):
        stream = agent.stream(question=question.text, store=store)
        run = follow_stream(stream, on_event=screen.draw)
    if run.status != "done":
        console.print(Text(f"The run is {run.status}: {run.error}\n", "red"))
        return _Answer(question, str(run.error), ())
    screen.draw_outputs(run.prediction)
    console.print()
    return _Answer(question, str(run.prediction["answer"]), _called_tools(run))


def _is_checkout() -> bool:
    """Whether this is a checkout, with its pages and examples, and not an installed wheel."""
    return Path("Makefile").is_file()


def _open_store() -> SQLiteStore:
    _STORE.parent.mkdir(exist_ok=True)
    return SQLiteStore(_STORE)


@tool(require_confirmation=True, effect="once")
def refund(order: str, euros: float) -> str:
    """Pay money back to a customer."""
    return f"Refunded {euros:.2f} euros for {order}."


def _leave_question(store: SQLiteStore) -> None:
    """Start a run that waits for a person, and cancel the undecided ones of earlier demos."""
    for run in store.list(status="waiting", limit=None):
        calls = [(question.call.name, question.call.args) for question in run.questions]
        if not run.decided and calls == [("refund", _REFUND)]:
            store.cancel(run.id)
    call = {"name": "refund", "args": {**_REFUND, "euros": "29.90"}}
    text = "One of two kettles came broken, so its price is paid back."
    with settings.context(lm=ScriptedLM([{"text": text, "tool_calls": [call]}])):
        ReAct("message -> answer", [refund]).start(
            message="One of my two kettles came broken.", store=store
        )


def _called_tools(run: Run) -> tuple[str, ...]:
    return tuple(
        call.name for step in run.trajectory.steps for call in step.calls if call.name != "finish"
    )


def _ask_mcp_server(console: Console) -> list[_Answer]:
    """One more answer, with the tool of an MCP server; none if the server cannot be installed."""
    console.print(Rule(Text("A tool on an MCP server", "bold"), align="left"))
    command, why_not = install_mcp_server()
    if why_not:
        console.print(Text(f"(Skipped: {why_not}.)\n", "dim"))
        return []
    from ferrule.mcp_bridge.client.mcp_server import MCPServer

    note = (
        f"{_MCP_PACKAGES[0]} runs in its own process. "
        "The demo trusts its tools: they run without confirmation.\n"
    )
    console.print(Text(note, "dim"))
    server = MCPServer.stdio(command, name="calculator", trust=True, confirm=False)
    try:
        return [_ask(console, ReAct("question -> answer", [server], max_iters=5), _MCP_QUESTION)]
    finally:
        server.close()


def install_mcp_server() -> tuple[str, str]:
    """Install the server into a venv of its own.

    Returns its command and an empty string, or an empty command and the reason.
    """
    if os.environ.get("FERRULE_DEMO_MCP") == "0":
        return "", "FERRULE_DEMO_MCP is 0"
    if find_spec("mcp") is None:
        return "", "the MCP SDK is not installed: pip install 'ferrule[mcp]'"
    if not _is_checkout():
        return "", "the demo installs the server only in a checkout"
    folder = Path("build") / "demo-mcp"
    command = folder / _SCRIPTS / "mcp-server-calculator"
    installed = folder / "ready"
    if not installed.exists():
        venv.create(folder, clear=True, with_pip=False)
        # One attempt: without a network the demo must not wait.
        options = ["install", "-qq", "--disable-pip-version-check", "--retries=0", "--timeout=10"]
        try:
            pip = subprocess.run(
                [sys.executable, "-m", "pip", "--python", str(folder), *options, *_MCP_PACKAGES],
                capture_output=True,
                check=False,
                timeout=_INSTALL_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return "", f"the server could not be installed ({type(error).__name__})"
        if pip.returncode != 0:
            return "", "the server could not be installed from the package index"
        installed.touch()
    return str(command.absolute()), ""


def _print_summary(console: Console, answers: list[_Answer]) -> None:
    console.print(Rule(Text("What you saw", "bold"), align="left"))
    table = Table(
        "question",
        "tools that the agent called",
        "answer",
        "",
        box=None,
        header_style="dim",
        pad_edge=False,
    )
    for answer in answers:
        if answer.is_right:
            sign = Text("right", "green")
        else:
            sign = Text("WRONG", "red")
        table.add_row(
            Text(answer.question.text),
            Text(one_line(", ".join(answer.called), 60)),
            Text(one_line(answer.text, 80)),
            sign,
        )
    console.print(table)
    right = sum(answer.is_right for answer in answers)
    console.print(
        f"\n{right} of {len(answers)} answers are right: "
        "the agent chose a tool, called it, and used the result."
    )
    if _is_checkout():
        command = f".venv/{_SCRIPTS}/ferrule"
    else:
        command = "ferrule"
    question = "How many days are there between 2026-01-01 and 2026-12-24?"
    console.print(f'\nTry it yourself:  {command} ask "{question}"')
    console.print(
        "With a model:     add --lm openai/gpt-5-mini (its key comes from OPENAI_API_KEY)"
    )
    if _is_checkout():
        console.print(
            "Read on:          docs/tutorial/seven-steps.md, and the programs in examples/"
        )
