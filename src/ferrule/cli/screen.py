"""A run on the terminal: its events drawn as they come, then its outputs.

Whatever a model or a tool wrote passes through `plain_text` and is printed as text, never as markup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ferrule.cli.safe_text import one_line, plain, shortened
from ferrule.values.content.parts import content_text
from ferrule.values.encoding.encode import json_text
from ferrule.values.run import event as events

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

    from ferrule.values.calls.call import ToolCall, ToolResult
    from ferrule.values.run.outcome import Prediction, Step


def console_on(file: IO[str]) -> Console:
    """A console that reads nothing into the text it prints: no markup, no emoji codes, no colours of its own finding."""
    return Console(file=file, markup=False, emoji=False, highlight=False)


class Screen:
    """Draws one run: give it the events one by one."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._is_thinking = False
        self._latest_call = ""
        self._finished: set[str] = set()

    def heard(self, event: events.Event) -> None:
        """Draw one event. What a program inside a tool tells is left out: the tool's call stands for it."""
        if event.parent_id:
            return
        match event:
            case events.ThoughtDelta(text=text):
                self._think(text)
            case events.AttemptFailed(reason=reason):
                self._line("", f"That answer could not be used, so the model is asked again. {one_line(reason, 200)}", "yellow")
            case events.CallStarted(call=call):
                self._call(call)
            case events.CallProgress():
                self._line("· ", _progress_text(event), "dim")
            case events.CallFinished(call=call, result=result):
                self._finished.add(call.id or "")
                self._result(call, result)
            case events.Custom(name=name, payload=payload):
                self._line("· ", f"{name}: {one_line(json_text(payload))}", "dim")
            case events.StepFinished(step=step):
                self._step_finished(step)
            case events.RunFinished():
                self._thought_ended()
            case _:
                pass

    def outputs(self, prediction: Prediction) -> None:
        """The end of a run: what it found, and what it took."""
        self._thought_ended()
        for name, value in prediction.items():
            shown = plain(value if isinstance(value, str) else json_text(value))
            self.console.print(Panel(Text(shown), title=Text(plain(name)), title_align="left", border_style="green"))
        if prediction.reason:
            self._line("", f"The run ended early ({prediction.reason}); this is what could be said until then.", "yellow")
        self.console.print(Text(_cost(prediction), "dim"))

    def _think(self, piece: str) -> None:
        piece = plain(piece)
        if not self._is_thinking:
            piece = piece.lstrip()
            if not piece:
                return
            self.console.print(Text("• "), end="")
            self._is_thinking = True
        self.console.print(Text(piece.replace("\n", "\n  "), "italic"), end="", soft_wrap=True)

    def _thought_ended(self) -> None:
        if self._is_thinking:
            self.console.print()
            self._is_thinking = False

    def _line(self, sign: str, text: str, style: str) -> None:
        """Text that begins with a sign; further lines stand under the first."""
        self._thought_ended()
        grid = Table.grid()
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(f"  {sign}", Text(shortened(text), style))
        self.console.print(grid)

    def _call(self, call: ToolCall) -> None:
        self._latest_call = call.id or ""
        self._line("", call_text(call.name, call.args), "cyan")

    def _result(self, call: ToolCall, result: ToolResult) -> None:
        # Calls of one turn run together: a result that does not stand under its own call says whose it is.
        whose = "" if (call.id or "") == self._latest_call else f"{call.name}: "
        self._line("→ ", whose + (content_text(result.content) or "(nothing)"), "red" if result.is_error else "green")

    def _step_finished(self, step: Step) -> None:
        """Draw what no other event told: calls that were not run, and answers that held none."""
        if not step.calls:
            for result in step.results:
                self._line("→ ", content_text(result.content), "red")
        for call, result in zip(step.calls, step.results, strict=False):
            if (call.id or "") not in self._finished and call.name != "finish":
                self._call(call)
                self._result(call, result)
        self._thought_ended()


def call_text(name: str, args: Mapping[str, Any]) -> str:
    """A call as one writes it in Python: `add(a=1, b=2)`, on one line."""
    return one_line(f"{name}({', '.join(f'{key}={json_text(value)}' for key, value in args.items())})")


def _progress_text(event: events.CallProgress) -> str:
    counted = "" if event.done is None else f"{event.done:g}" if event.total is None else f"{event.done:g} of {event.total:g}"
    return one_line(" ".join(part for part in (counted, event.message) if part) or "working")


def _cost(prediction: Prediction) -> str:
    usage, steps = prediction.usage, len(prediction.trajectory.steps)
    tokens = f", {usage.total_tokens:,} tokens" if usage.total_tokens else ""
    return f"{_counted(steps, 'step')}, {_counted(usage.calls, 'model call')}{tokens}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
