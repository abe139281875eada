"""The demo: questions that the embedded model answers with real tools, on this machine.

The answers are checked, and the count of right ones is shown. The model may err on another kind of
machine, so a wrong answer is not a failure of the demo: a run that fails is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ferrule import settings
from ferrule.approval.policy import Policy, ask, call, lt
from ferrule.cli.arguments import choose_model
from ferrule.cli.commands.ask import follow_stream
from ferrule.cli.exit_code import ExitCode
from ferrule.cli.sample_tools import TOOLS
from ferrule.cli.screen import Screen, console_on
from ferrule.encoding.safe_text import one_line
from ferrule.errors import ConfigurationError, RefusalError
from ferrule.events import ModelCalled
from ferrule.programs.react import ReAct
from ferrule.runs.run import Run
from ferrule.runs.store.sqlite.store import SQLiteStore
from ferrule.tools.decorator import tool

if TYPE_CHECKING:
    from rich.console import Console

    from ferrule.approval.question import Decision, Question


@dataclass(frozen=True, slots=True)
class _Question:
    text: str
    tools: tuple[str, ...]
    """The tools that the agent must call; none if it must refuse the question."""
    expected: str
    """What the answer must contain."""


QUESTIONS = (
    _Question("What is (0.1 + 0.2) * 10**20?", ("calculate",), "30000000000000000000"),
    _Question("Count the days between 2026-01-01 and 2026-12-24", ("days_between",), "357"),
    _Question(
        "Compute 2**64 and count the days from 2026-01-01 to 2026-12-24",
        ("calculate", "days_between"),
        "18446744073709551616",
    ),
    _Question("What date is 100 days after 2026-01-15?", ("date_after",), "2026-04-25"),
    _Question("Tell me a joke", (), "no tool fits"),
)
_MCP_QUESTION = _Question("Compute sqrt(144)", ("calculate",), "12")
_UNSURE = 0.4
"""Below this confidence, the demo asks before a call runs."""
_POLICY = Policy([ask("*", when=call(confidence=lt(_UNSURE)))])
_MCP_PACKAGES = ("mcp-server-calculator==0.2.1", "mcp<2")
"""A server of another project, and the version of the SDK that it needs.

It is installed apart from ferrule's own version.
"""
_INSTALL_TIMEOUT_S = 40
_STORE = Path("build") / "demo.db"
"""The runs of the demo, for `ferrule ui`. Only in a checkout."""
_REFUND = "Refund 29.90 euros for order 1042"
_REFUND_ARGUMENTS = {"order": 1042, "euros": 29.9}
_CRASH = "Refund 20 euros for order 17"
_CRASHED = 9
"""The exit code of the process that crashes on purpose."""
_PAYMENTS = Path("build") / "demo-payments.txt"
"""What the tool of the crash has paid, one line each."""
_SCRIPTS = "Scripts" if os.name == "nt" else "bin"


@dataclass(frozen=True, slots=True)
class _Answer:
    question: _Question
    text: str
    called: tuple[str, ...]
    """The names of the tools that were called."""

    has_failed: bool = False
    """Whether the run ended with an error other than a refusal."""

    @property
    def is_right(self) -> bool:
        is_expected = self.question.expected in self.text.casefold()
        return self.called == self.question.tools and is_expected


def run_tour() -> int:
    """Run the demo; returns its exit code."""
    try:
        return _run()
    except ConfigurationError as error:  # the embedded model is not there, or not for this machine
        sys.stderr.write(f"{error}\n")
        return ExitCode.FAILED


def _run() -> int:
    console = console_on(sys.stdout)
    introduction = (
        "ferrule connects a language model to tools: "
        "Python functions that it can call to answer a question.\n"
    )
    console.print(Text(introduction, "bold"))
    console.print(
        "This demo needs no API key and no network: LM('needle') answers, a neural network of "
        "34 MB on this machine. It chooses tools and fills in their arguments; it does not chat, "
        "and it errs. The agent (ReAct) and the tools work as in any real program.\n"
    )
    names = ", ".join(function.__name__ for function in TOOLS)
    console.print(f"The tools are four Python functions: {names}.")
    console.print(f"A call with a confidence below {_UNSURE} needs the consent of a person.\n")
    with settings.context(lm=choose_model(None, None)):
        answers = _answer_all(console)
        if _is_checkout():
            _crash_and_resume(console)
            _leave_question(_open_store())
    _print_summary(console, answers)
    _print_things_to_try(console)
    if any(answer.has_failed for answer in answers):
        return ExitCode.FAILED
    return ExitCode.DONE


def _answer_all(console: Console) -> list[_Answer]:
    agent = ReAct("question -> answer", TOOLS, max_iters=5, policy=_POLICY)
    answers: list[_Answer] = []
    for number, question in enumerate(QUESTIONS, 1):
        console.print(Rule(Text(f"{number}. {question.text}", "bold"), align="left"))
        answers.append(_ask(console, agent, question))
    return answers + _ask_mcp_server(console)


def _ask(console: Console, agent: ReAct, question: _Question) -> _Answer:
    screen = Screen(console)
    store = None
    if _is_checkout():
        store = _open_store()
    stream = agent.stream(question=question.text, store=store)
    run = follow_stream(stream, on_event=screen.draw, ask=partial(_agree, console))
    if run.status == "done":
        screen.draw_outputs(run.prediction)
        console.print()
        return _Answer(question, str(run.prediction["answer"]), _called_tools(run))
    has_failed = not isinstance(run.error, RefusalError)
    console.print(Text(f"{_ending(question, run, has_failed=has_failed)}\n", "yellow"))
    return _Answer(question, str(run.error), (), has_failed)


def _ending(question: _Question, run: Run, *, has_failed: bool) -> str:
    """How a run without an answer ended, as a sentence."""
    if has_failed:
        return f"The run failed: {run.error}"
    if question.tools:
        return f"A tool fits. {run.error}"
    return "No tool fits, and the model says so: it makes up no answer."


def _agree(console: Console, question: Question) -> Decision:
    """Agree in place of a person, and say so."""
    console.print(Text(f"? {question.text}", "yellow"))
    console.print(Text("  (The demo agrees in your place.)", "dim"))
    return question.approve()


def _is_checkout() -> bool:
    """Whether this is a checkout, with its pages and examples, and not an installed wheel."""
    return Path("Makefile").is_file()


def _open_store() -> SQLiteStore:
    _STORE.parent.mkdir(exist_ok=True)
    return SQLiteStore(_STORE)


@tool(require_confirmation=True, effect="once")
def refund(order: int, euros: float) -> str:
    """Refund euros for an order."""
    return f"Refunded {euros:.2f} euros for order {order}."


def _leave_question(store: SQLiteStore) -> None:
    """Start a run that waits for a person, and cancel the undecided ones of earlier demos."""
    for summary in store.list(status="waiting", limit=None):
        calls = [(question.call.name, question.call.args) for question in summary.questions]
        if not summary.decided and calls == [("refund", _REFUND_ARGUMENTS)]:
            store.cancel(summary.id)
    ReAct("message -> answer", [refund]).start(message=_REFUND, store=store)


@tool(effect="once")
def pay_back(order: int, euros: float) -> str:
    """Refund euros for an order."""
    with _PAYMENTS.open("a", encoding="utf-8") as file:
        file.write(f"{euros} euros for order {order}\n")
    return f"Refunded {euros:.2f} euros for order {order}."


def _crashing_agent() -> ReAct:
    return ReAct("message -> answer", [pay_back], max_iters=3)


def crash(run_id: str) -> None:
    """Run until the tool has paid, and end this process at once, as a crash would."""
    model_calls = 0

    def die(event: Any) -> None:
        nonlocal model_calls
        if isinstance(event, ModelCalled):
            model_calls += 1
        if model_calls > 1:  # the second one comes after the tool
            os._exit(_CRASHED)

    with settings.context(lm=choose_model(None, None), callbacks=[die]):
        _crashing_agent().start(message=_CRASH, store=_open_store(), run_id=run_id)


def _crash_and_resume(console: Console) -> None:
    """A process dies after its tool has paid; this one resumes the run without paying twice."""
    console.print(Rule(Text("A crash, and a resume", "bold"), align="left"))
    _PAYMENTS.unlink(missing_ok=True)
    run_id = f"crash-{os.urandom(4).hex()}"
    command = [sys.executable, "-m", "ferrule.cli.demo", "crash", run_id]
    ended = subprocess.run(command, check=False, capture_output=True)
    if ended.returncode != _CRASHED:
        console.print("(The other process did not crash as planned.)\n")
        return
    console.print(f"Another process answered {_CRASH!r} and died after its tool had paid.")
    run = Run.load(_open_store(), run_id, _crashing_agent())
    run.resume()
    count = len(_PAYMENTS.read_text(encoding="utf-8").splitlines())
    console.print(f"This process resumed the run: {run.prediction['answer']}")
    console.print(f"Payments made: {count}.\n")


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
    agent = ReAct("question -> answer", [server], max_iters=5)
    try:
        return [_ask(console, agent, _MCP_QUESTION)]
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
        f"\n{right} of {len(answers)} answers are right. "
        "A refusal is right where no tool fits the question.\n"
    )


def _print_things_to_try(console: Console) -> None:
    """Three commands that work when they are pasted, each with what it shows."""
    question = 'ask "What date is 30 days after 2026-02-01?"'
    own_question = "your own question; for a larger model, add --lm openai/gpt-5-mini"
    if _is_checkout():
        folder = f".venv/{_SCRIPTS}"
        things = (
            (f"{folder}/ferrule {question}", own_question),
            (
                f"{folder}/ferrule ui --store {_STORE}",
                "these runs in a browser, and a refund that waits for your approval",
            ),
            (
                f"{folder}/python examples/apps/support_desk.py",
                "a support desk: refunds that a person decides, and two crashes",
            ),
        )
    else:
        things = (
            (f"ferrule {question}", own_question),
            ("ferrule tools", "the tools of the demo, as a model sees them"),
            ("ferrule skill install", "for your coding agent: how to write agents like this one"),
        )
    console.print("Three things to try:")
    for command, shows in things:
        # On one line, however narrow the terminal: it is to be copied.
        console.print(Text(f"\n  {command}", "bold"), soft_wrap=True)
        console.print(Text(f"    {shows}", "dim"))
    if _is_checkout():
        console.print("\nRead on: docs/tutorial/five-minutes.md")
