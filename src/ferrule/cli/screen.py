"""What commands print: a run's events and outputs, messages, JSON documents.

Text of models and tools passes through `printable` and is never read as markup.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ferrule import events
from ferrule.cli.exit_code import ExitCode
from ferrule.encoding.encode import json_text, jsonable
from ferrule.encoding.safe_text import clip_lines, one_line, printable, reveal
from ferrule.values.content.convert import content_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

    from ferrule.values.calls.call import ToolCall, ToolResult
    from ferrule.values.conversation.exchange import Usage
    from ferrule.values.outcome import Prediction, Step


_WIDTH = 80
"""For a terminal that says it has 0 columns: rich would print nothing there."""


def console_on(file: IO[str]) -> Console:
    """A console that prints text unchanged: no markup, no emoji codes, no automatic colours."""
    console = Console(file=file, markup=False, emoji=False, highlight=False)
    console.width = console.width or _WIDTH
    return console


def say(message: str, code: ExitCode = ExitCode.DONE) -> ExitCode:
    """Print a message for the person on standard error; returns the code."""
    print(printable(message), file=sys.stderr)
    return code


# Errors advise in terms of Python. `in_options` turns that advice into options of the command.
_OPTIONS = {
    r"Call `ferrule\.configure\([^`]*`, or give the program one: `[^`]*`\.": (
        "Add `--lm provider/model`."
    ),
    r", or give `api_key=\.\.\.`| and `wire=`": "",
    r"; `migrate=True` tries anyway": ("; name the program that started the run with --program"),
    r"`text_calls` is (.*) or None, found": r"`--text-calls` is \1, found",
    r"`base_url=[^`]*`": "`--base-url`",
    r"To serve by itself it takes `transport=\"http\"`": "To serve by itself, add `--http`",
    r"`login_timeout_s` of an MCP server": "`--timeout`",
    r"Pass them: .* Context\(deps=\.\.\.\)\.": "Add `--deps module:factory`.",
    r"(declares `Context\[ferrule_tools_(\w+)\.(\w+)\]`.* type `(?:\w+\.)*\2\.\3`\.)": (
        r"\1 A file that is imported too has two classes of each name: "
        r"give the file as `--deps \2.py:factory`."
    ),
    r"open the store with `max_recoveries=(\d+)` or more": r"add `--max-recoveries \1`",
    r"`(deps|lm)=[^`]*`": r"`--\1`",
}
"""Patterns of advice for Python, and the advice for a command line in its place."""


def in_options(error: BaseException) -> str:
    """The text of an error, with the command's options in place of Python keywords."""
    text = str(error)
    for pattern, option in _OPTIONS.items():
        text = re.sub(pattern, option, text)
    return text


def write_text(text: str) -> None:
    """Print text on standard output, with what a terminal would act on made visible."""
    sys.stdout.write(f"{printable(text)}\n")


def print_json(document: Any, *, indent: int | None = 2) -> ExitCode:
    """Print a JSON document on standard output.

    It is ASCII: safe in every encoding, and free of control characters.
    """
    print(json.dumps(jsonable(document), indent=indent))
    return ExitCode.DONE


class Screen:
    """Draws one run, event by event."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._is_thinking = False
        self._latest_call = ""
        self._finished: set[str] = set()

    def draw(self, event: events.Event) -> None:
        """Draw one event. Events of programs inside a tool are left out."""
        if event.parent_id:
            return
        match event:
            case events.ThoughtDelta(text=text):
                self._think(text)
            case events.Preamble(text=text):
                self._end_thought()
                self._think(text)
            case events.AttemptFailed(reason=reason):
                text = f"The answer could not be used: {one_line(reason, 200)}"
                self._line("", text, "yellow")
            case events.CallStarted(call=call):
                self._call(call)
            case events.CallProgress():
                self._line("· ", _progress_text(event), "dim")
            case events.CallFinished(call=call, result=result):
                self._finished.add(call.id or "")
                self._result(call, result)
            case events.ProviderCallFinished(call=call):
                self._line("", f"{call_text(call.name, call.args)}  # by the provider", "cyan")
                self._line("→ ", call.result or "(nothing)", "red" if call.is_error else "green")
            case events.Custom(name=name, payload=payload):
                self._line("· ", f"{name}: {one_line(json_text(payload))}", "dim")
            case events.Said(text=text):
                self._line("> ", text, "bold")
            case events.StepFinished(step=step):
                self._step_finished(step)
            case events.RunFinished():
                self._end_thought()
            case _:
                pass

    def draw_outputs(self, prediction: Prediction, drawn: str = "") -> None:
        """Draw the outputs of the run and what it cost.

        The output `drawn` is on the screen already.
        """
        self._end_thought()
        for name, value in prediction.items():
            if name == drawn:
                continue
            if isinstance(value, str):
                text = value
            else:
                text = json_text(value)
            panel = Panel(
                Text(printable(text)),
                title=Text(printable(name)),
                title_align="left",
                border_style="green",
            )
            self.console.print(panel)
        if prediction.reason:
            note = (
                f"The run ended early ({prediction.reason}); "
                "the outputs are based on its steps so far."
            )
            self._line("", note, "yellow")
        self.console.print(Text(_cost(prediction), "dim"))

    def _think(self, piece: str) -> None:
        piece = printable(piece)
        if not self._is_thinking:
            piece = piece.lstrip()
            if not piece:
                return
            self.console.print(Text("• "), end="")
            self._is_thinking = True
        self.console.print(Text(piece.replace("\n", "\n  "), "italic"), end="", soft_wrap=True)

    def _end_thought(self) -> None:
        if self._is_thinking:
            self.console.print()
            self._is_thinking = False

    def _line(self, sign: str, text: str, style: str) -> None:
        """Print text after a sign; further lines are indented."""
        self._end_thought()
        grid = Table.grid()
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(f"  {sign}", Text(clip_lines(text), style))
        self.console.print(grid)

    def _call(self, call: ToolCall) -> None:
        self._latest_call = call.id or ""
        text = call_text(call.name, call.args)
        if call.confidence is not None:
            text += f"  # confidence {call.confidence:.2f}"
        self._line("", text, "cyan")

    def _result(self, call: ToolCall, result: ToolResult) -> None:
        text = content_text(result.content) or "(nothing)"
        # Calls of one turn run together: a result that does not follow its own call names it.
        if (call.id or "") != self._latest_call:
            text = f"{call.name}: {text}"
        self._line("→ ", text, "red" if result.is_error else "green")

    def _step_finished(self, step: Step) -> None:
        """Draw calls that did not run, and the errors of an answer that had no calls."""
        if not step.calls:
            for result in step.results:
                self._line("→ ", content_text(result.content), "red")
        for call, result in zip(step.calls, step.results, strict=False):
            if (call.id or "") not in self._finished and call.name != "finish":
                self._call(call)
                self._result(call, result)
        self._end_thought()


def call_text(name: str, args: Mapping[str, Any]) -> str:
    """A call as Python code on one line: `add(a=1, b=2)`."""
    arguments = ", ".join(f"{key}={json_text(value)}" for key, value in args.items())
    return one_line(reveal(f"{name}({arguments})"))


def _progress_text(event: events.CallProgress) -> str:
    parts: list[str] = []
    if event.done is not None and event.total is not None:
        parts.append(f"{event.done:g} of {event.total:g}")
    elif event.done is not None:
        parts.append(f"{event.done:g}")
    if event.message:
        parts.append(event.message)
    return one_line(" ".join(parts) or "working")


def usage_text(usage: Usage) -> str:
    """Model calls, tokens and cost on one line, as far as they are known."""
    text = _count(usage.calls, "model call")
    if usage.total_tokens:
        text += f", {usage.total_tokens:,} tokens"
    if usage.cost is not None:
        text += f", {usage.cost:.4f} US dollars"
    return text


_USAGE_KEYS = (
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "calls",
    "reasoning_tokens",
    "cache_write_tokens",
    "cost",
)


def usage_document(usage: Usage) -> dict[str, Any]:
    """Tokens and cost as JSON data, always with the same keys."""
    by_model = {model: _counts(model_usage) for model, model_usage in usage.by_model.items()}
    return {**_counts(usage), "by_model": by_model}


def _counts(usage: Usage) -> dict[str, Any]:
    return {key: getattr(usage, key) for key in _USAGE_KEYS}


def _cost(prediction: Prediction) -> str:
    return f"{_count(len(prediction.trajectory.steps), 'step')}, {usage_text(prediction.usage)}"


def _count(number: int, noun: str) -> str:
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"
