"""The command `ferrule chat`: a conversation with a program, at a terminal or through a pipe.

This thread reads lines and another one carries out the turns, so that a person can steer or stop
the agent while it works. Lines that are not commands are taken in order, each when the turn before
it rests: as an answer if a question waits, else as the next message.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from shlex import quote
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ferrule import events, settings
from ferrule.cli.arguments import (
    find_program,
    make_deps,
    model_setting,
    parse_pairs,
    question_input,
)
from ferrule.cli.commands.ask import failure_text, follow_stream

# Typer reads annotations at run time.
from ferrule.cli.commands.tools import DEPS, LM_OF_PROGRAM  # noqa: TC001
from ferrule.cli.exit_code import ExitCode
from ferrule.cli.prompt import ask_at_terminal, user_name
from ferrule.cli.screen import Screen, console_on, in_options, say
from ferrule.cli.stores import STORE_VARIABLE, open_store
from ferrule.encoding.safe_text import printable
from ferrule.errors import ConfigurationError, FerruleError
from ferrule.values.conversation.history import History
from ferrule.values.signatures.fields import history_input

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from ferrule.programs.module import Module
    from ferrule.runs.protocols import Store
    from ferrule.runs.run import Run
    from ferrule.values.outcome import Prediction

_HELP = """\
/say TEXT          tell the agent while it works
/cancel            stop the turn (as Ctrl-C does)
/approve [always]  let the call run that waits
/deny [REASON]     do not let it run
/new               begin a new conversation
/quit              end (as the end of the input does)
Any other line is a message, or the answer to the question that waits."""
_LONGEST_END_S = 10.0
"""How long a turn that was cancelled may take to end when the chat ends."""


def chat_with(
    program: Annotated[
        str, typer.Argument(help="The program: module:attribute, or file.py:attribute.")
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="Another input of each turn, as name=value. May be repeated."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            envvar=STORE_VARIABLE,
            show_envvar=True,
            help="Keep each turn as a run in this SQLite file, or postgresql://...",
        ),
    ] = None,
    lm: LM_OF_PROGRAM = None,
    deps: DEPS = None,
) -> int:
    """Talk with a program. /help lists what can be said besides messages."""
    loaded_program, loaded_deps = find_program(program), make_deps(deps)
    if getattr(loaded_program, "signature", None) is None:
        raise ConfigurationError(
            f"{program!r} has no signature, so there is no input for a message. "
            "Chat with a `ReAct` or `Predict` program."
        )
    opening: AbstractContextManager[Any] = nullcontext()
    if store is not None:
        opening = open_store(store, must_exist=False)
    with opening as opened, settings.context(**model_setting(lm)):
        chat = _Chat(loaded_program, inputs or [], opened, loaded_deps, console_on(sys.stdout))
        code = chat.converse(input)
    if code == ExitCode.WAITING and store is not None and chat.run is not None:
        say(f"Decide with `ferrule approve {chat.run.id} --store {quote(store)}`.")
    return code


class _Chat:
    """One conversation: its turns, and the lines that no turn has taken yet."""

    def __init__(
        self,
        program: Module,
        inputs: list[str],
        store: Store | None,
        deps: Any,
        console: Console,
    ) -> None:
        self.run: Run[Any] | None = None
        """The run of the latest turn."""
        self._program: Any = program
        signature = self._program.signature
        self._store = store
        self._deps = deps
        self._console = console
        self._message_input = question_input(signature)
        self._further_inputs = parse_pairs(signature, inputs, self._message_input)
        self._history_input = history_input(signature.plan.inputs)
        self._history = History()
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        """Lines for the thread of the turns. None: the input has ended."""
        self._is_typed = sys.stdin.isatty()
        self._code = ExitCode.DONE

    def converse(self, read_line: Callable[[], str]) -> ExitCode:
        """Read lines until they end; returns the code of the latest turn."""
        if not self._history_input:
            say("The program has no input of the type `History`: it does not see earlier turns.")
        context = copy_context()
        turns = Thread(target=context.run, args=(self._carry_out,), daemon=True)
        turns.start()
        try:
            while turns.is_alive() and self._handle_next(read_line):
                pass
        finally:
            self._lines.put(None)
        try:
            turns.join()
        except KeyboardInterrupt:
            self._cancel()
            turns.join(_LONGEST_END_S)
        return self._code

    def _handle_next(self, read_line: Callable[[], str]) -> bool:
        """Read a line and act on it. Returns False at the end."""
        try:
            line = read_line().strip()
        except EOFError:
            return False
        except KeyboardInterrupt:
            return self._cancel()
        if not line.startswith("/"):
            if line:
                self._lines.put(line)
            return True
        command, _, text = line.partition(" ")
        text = text.strip()
        match command:
            case "/approve" if text in {"", "always"}:
                self._lines.put(text or "y")
            case "/deny":
                self._lines.put(text or "n")
            case "/say" if text:
                self._steer(text)
            case "/cancel":
                if not self._cancel():
                    self._note("Nothing is at work.")
            case "/new":
                self._lines.put(line)
            case "/quit":
                self._cancel()
                return False
            case _:
                self._note(_HELP)
        return True

    def _cancel(self) -> bool:
        """Cancel the turn; returns False if there is none."""
        run = self.run
        if run is None or run.status not in {"running", "waiting"}:
            return False
        run.cancel()
        self._lines.put("/cancel")  # for a question that waits for a line
        return True

    def _steer(self, text: str) -> None:
        if self.run is None or self.run.status not in {"running", "waiting"}:
            self._note("Nothing is at work: write it without /say.")
            return
        try:
            self.run.say(text, by=user_name(), via="terminal")
        except FerruleError as error:  # it has just ended
            self._note(in_options(error))

    def _carry_out(self) -> None:
        """In the thread of the turns: one after the other, until the input ends."""
        while True:
            self._console.print(Text("> ", "bold"), end="")
            line = self._get_line()
            if line is None:
                return
            if line == "/cancel":  # the turn has ended
                continue
            if line == "/new":
                self._history = History()
                continue
            try:
                self._turn(line)
            except FerruleError as error:
                self._code = ExitCode.FAILED
                self._note(in_options(error))

    def _turn(self, message: str) -> None:
        values = {**self._further_inputs, self._message_input: message}
        if self._history_input:
            values[self._history_input] = self._history
        answer = _Answer(self._console, self._program.signature.plan.outputs)
        options: dict[str, Any] = {"deps": self._deps}
        if self._store is not None:
            options["store"] = self._store
        stream = self._program.bind(**values).stream(**options)
        self.run = stream.run
        ask = partial(ask_at_terminal, console=self._console, read_line=self._next_line)
        run = follow_stream(stream, on_event=answer.draw, ask=ask)
        if run.status != "done":
            answer.end_text()
        match run.status:
            case "done":
                self._code = ExitCode.DONE
                answer.draw_end(run.prediction)
                if self._history_input:
                    self._history = run.prediction.history
            case "waiting":
                self._code = ExitCode.WAITING
                say("The input ended without a decision, so the call was not run.")
            case "cancelled":
                self._code = ExitCode.INTERRUPTED
                self._note("Cancelled. The conversation goes on without this turn.")
            case _:
                self._code = ExitCode.FAILED
                self._note(f"The turn failed. {failure_text(run.error)}")

    def _next_line(self) -> str:
        """A line for a question. Raises `EOFError` if the input or the turn has ended."""
        while True:
            line = self._get_line()
            if line is None:
                self._lines.put(None)  # for `_carry_out`
            if line is None or line == "/cancel":
                raise EOFError
            if line != "/new":
                return line
            self._note("A question waits: answer it, or /cancel the turn, before /new.")

    def _get_line(self) -> str | None:
        line = self._lines.get()
        if not self._is_typed:  # a terminal shows what is typed
            self._console.print(Text(printable(line or "")))
        return line

    def _note(self, text: str) -> None:
        self._console.print(Text(printable(text), "yellow"))


class _Answer:
    """Draws a turn: its steps as `ferrule ask` does, and an answer in text as it comes."""

    def __init__(self, console: Console, outputs: dict[str, Any]) -> None:
        self._console = console
        self._screen = Screen(console)
        self._text_output = ""
        if len(outputs) == 1:
            [(name, field)] = outputs.items()
            if field.annotation is str:
                self._text_output = name
        self._text = ""
        """The answer so far, which is on the screen."""

    def draw(self, event: events.Event) -> None:
        """Draw one event. Events of programs inside a tool are left out."""
        if event.parent_id:
            return
        match event:
            case events.FieldDelta(field=self._text_output, text=text):
                self._text += text
                self._console.print(Text(printable(text)), end="", soft_wrap=True)
            case events.Preamble() if self._text:  # the text was none of the answer
                self.end_text()
            case events.AttemptFailed() | events.CallStarted():
                self.end_text()
                self._screen.draw(event)
            case _:
                self._screen.draw(event)

    def draw_end(self, prediction: Prediction) -> None:
        """Draw the outputs that are not on the screen, and what the turn cost."""
        drawn = ""
        if self._text and prediction[self._text_output] == self._text:
            drawn = self._text_output
        self.end_text()
        self._screen.draw_outputs(prediction, drawn)

    def end_text(self) -> None:
        """End the line of a text that is not an answer, or not the whole one."""
        if self._text:
            self._console.print()
            self._text = ""
