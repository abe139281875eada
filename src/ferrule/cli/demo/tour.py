"""The demo: three questions answered with real tools over HTTP, and a recorded conversation of a real model played again.

The answers are checked: the exit code is 1 where one is wrong.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ferrule import settings
from ferrule.cli.arguments import model
from ferrule.cli.demo import mcp as demo_mcp
from ferrule.cli.demo import recorded
from ferrule.cli.follow import carry
from ferrule.cli.safe_text import one_line
from ferrule.cli.sample_tools import TOOLS
from ferrule.cli.screen import Screen, console_on
from ferrule.programs.react import ReAct
from ferrule.values.calls.call import ToolResult
from ferrule.values.content.parts import content_text
from ferrule.values.record import replace
from ferrule.values.run import event as events

if TYPE_CHECKING:
    from rich.console import Console

    from ferrule.cli.demo.recorded import Recording
    from ferrule.values.run.outcome import Prediction

_SHOWN_TURNS = 4


@dataclass(frozen=True, slots=True)
class Question:
    """A question of the demo, and what its answer must hold."""

    text: str
    tool: str
    expected: str


QUESTIONS = (
    Question("What is (0.1 + 0.2) * 10**20?", "calculate", "30000000000000000000"),
    Question("How many days are there between 2024-02-28 and 2026-03-03?", "days_between", "734"),
    Question('Search the documents: what is a "trajectory"?', "search_documents", "step"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one question."""

    question: Question
    text: str
    tools: str
    """The names of the tools that were called."""
    is_right: bool


def run() -> int:
    """Run the demo; returns its exit code."""
    console = console_on(sys.stdout)
    console.print(Text("ferrule binds a language model to tools: your Python functions, which it may call to answer a question.\n", "bold"))
    console.print(
        "This demo needs no key, and a network for one part only, which is left out without. In the place of a language model stands "
        "OfflineLM: rules, no neural network, behind a real HTTP server on this machine that speaks OpenAI's protocol. The agent (ReAct) "
        "and the tools are those one uses with any model.\n"
    )
    console.print(f"The tools are four Python functions: {', '.join(function.__name__ for function in TOOLS)}.\n")
    answers = _answered(console)
    foreign = _asked_of_a_server(console)
    answers += [foreign] if foreign is not None else []
    conversation = _played(console, recorded.load())
    _summed_up(console, answers, conversation)
    return 0 if all(answer.is_right for answer in answers) and conversation is not False else 1


def _answered(console: Console) -> list[Answer]:
    agent = ReAct("question -> answer", TOOLS, max_iters=5)
    answers: list[Answer] = []
    with model(None, None) as lm, settings.context(lm=lm):
        for number, question in enumerate(QUESTIONS, 1):
            console.print(Rule(Text(f"{number}. {question.text}", "bold"), align="left"))
            screen = Screen(console)
            ended = carry(agent, {"question": question.text}, hear=screen.heard)
            if ended.status == "done":
                screen.outputs(ended.prediction)
                answers.append(_checked(question, ended.prediction))
            else:
                console.print(Text(f"The run is {ended.status}: {ended.error}", "red"))
                answers.append(Answer(question, str(ended.error), "", is_right=False))
            console.print()
    return answers


def _asked_of_a_server(console: Console) -> Answer | None:
    """One more question, with the tool of an MCP server out of the package index; None where that is not to be had."""
    console.print(Rule(Text("A tool that lives on an MCP server", "bold"), align="left"))
    command, why = demo_mcp.command()
    if not command:
        console.print(Text(f"(The MCP server of this part is left out: {why}.)\n", "dim"))
        return None
    from ferrule.bridges.mcp.client.mcp_server import MCPServer

    console.print(Text(f"{demo_mcp.PACKAGES[0]} runs in a process of its own. Its tools are trusted here: nobody is asked.\n", "dim"))
    server = MCPServer.stdio(command[0], name="calculator", trust=True, confirm=False)
    question = Question(demo_mcp.QUESTION, demo_mcp.TOOL, demo_mcp.EXPECTED)
    screen = Screen(console)
    try:
        with model(None, None) as lm, settings.context(lm=lm):
            ended = carry(ReAct("question -> answer", [server], max_iters=5), {"question": question.text}, hear=screen.heard)
        if ended.status != "done":
            console.print(Text(f"The run is {ended.status}: {ended.error}", "red"))
            return Answer(question, str(ended.error), "", is_right=False)
        screen.outputs(ended.prediction)
        return _checked(question, ended.prediction)
    finally:
        server.close()
        console.print()


def _checked(question: Question, prediction: Prediction) -> Answer:
    """Right is an answer that holds what it must, and that a tool was called for."""
    called = [call.name for step in prediction.trajectory.steps for call in step.calls if call.name != "finish"]
    text = str(prediction["answer"])
    return Answer(question, text, ", ".join(called), question.tool in called and question.expected in text.casefold())


def _played(console: Console, recording: Recording | None) -> bool | None:
    """Whether the recorded conversation came out as recorded; None where there is no recording."""
    if recording is None:
        console.print(Text("(No recorded conversations lie beside this checkout, so that part of the demo is left out.)\n", "dim"))
        return None
    console.print(Rule(Text("A recorded conversation of gpt-4o with an airline's tools, played again", "bold"), align="left"))
    console.print(Text("The model's words and the tools' results are recorded; the calls are checked and run by ferrule.\n", "dim"))
    screen = Screen(console)

    def hear(event: events.Event) -> None:
        if isinstance(event, (events.CallStarted, events.CallFinished)):
            screen.heard(_brief(event))

    same = True
    for turn in recording.turns[:_SHOWN_TURNS]:
        _say(console, "customer", one_line(turn.message))
        said = recording.play(turn, hear)
        same = same and said == turn.answer
        _say(console, "agent", one_line(said))
        console.print()
    return same


def _say(console: Console, who: str, text: str) -> None:
    line = Table.grid(padding=(0, 2))
    line.add_row(Text(who.ljust(8), "bold"), Text(text))
    console.print(line)


def _brief(event: events.Event) -> events.Event:
    """A finished call with a result of one line: whole records of customers would fill the screen."""
    if not isinstance(event, events.CallFinished):
        return event
    shown = ToolResult(event.result.name, one_line(content_text(event.result.content), 150), is_error=event.result.is_error)
    return replace(event, result=shown)


def _summed_up(console: Console, answers: list[Answer], conversation: bool | None) -> None:
    console.print(Rule(Text("What you saw", "bold"), align="left"))
    table = Table("question", "tool the agent chose", "answer", "", box=None, header_style="dim", pad_edge=False)
    for answer in answers:
        sign = Text("right", "green") if answer.is_right else Text("WRONG", "red")
        table.add_row(Text(answer.question.text), Text(one_line(answer.tools, 60)), Text(one_line(answer.text, 80)), sign)
    console.print(table)
    right = sum(answer.is_right for answer in answers)
    console.print(f"\n{right} of {len(answers)} answers are right. A right one was found by an agent that chose a tool and called it.")
    if conversation is not None:
        how = "word for word as it was recorded" if conversation else "NOT as it was recorded"
        console.print(f"The conversation with the airline came out {how} (its first {_SHOWN_TURNS} turns).")
    console.print('\nTry it yourself:  .venv/bin/ferrule ask "How many days are there between 2026-01-01 and 2026-12-24?"')
    console.print("With a model:     add --lm openai/gpt-5-mini (or another; its key comes from the usual environment variable)")
    console.print("Read on:          docs/getting-started.md, and examples/01_first_agent.py to 13_mcp.py")
