"""Snippets: code of the model that calls tools, as acts of the program that runs it.

The model has one tool, `run_code`. Its code sees the program's tools as `async` functions. Where it
awaits some, it stops, and these are calls like any other: checked, ruled by policies, asked of a
person, run and recorded one by one. What comes of a call is a value, or an exception that the code
may catch.

The run's journal holds the answers of the calls, and nothing of the interpreter. A resumed run
executes its snippets again, with the recorded answers; what depends on the machine, a limit of time
or memory, is recorded when it is met.
"""

from __future__ import annotations

import ast
import json
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ferrule import events
from ferrule.acts import CallTools, Once, RuleCalls, Tell
from ferrule.encoding.encode import json_text
from ferrule.errors import ConfigurationError, DuplicateToolError, RunError
from ferrule.programs.call_tool import type_of_result
from ferrule.programs.code_mode.arguments import arguments_by_name
from ferrule.programs.code_mode.interpreter import (
    CodeMode,
    CodeSession,
    CodeValue,
    HostCall,
    Stop,
    check_installed,
    too_many,
    with_advice,
)
from ferrule.programs.code_mode.stubs import (
    ERRORS,
    HEADER,
    CodeFunction,
    checked_stubs,
    functions_of,
    stubs_of,
)
from ferrule.programs.instructions import is_builtin
from ferrule.programs.tool_use.use import check_call, use_tools
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import Toolbox
from ferrule.values.calls.call import ToolCall, ToolResult
from ferrule.values.calls.in_code import PlaceInCode, numbered_lines
from ferrule.values.content.parts import Text
from ferrule.values.conversation.message import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from ferrule.acts import Act, Conditions
    from ferrule.approval.policy import Policy
    from ferrule.programs.tool_use.dynamic import Host
    from ferrule.programs.tool_use.use import UsingTools
    from ferrule.values.content.parts import Content

RUN_CODE = "run_code"
_WHEN_TO_RUN = """\
Run Python that calls the functions below, and read what it prints and its last expression. Await \
each call; `await asyncio.gather(...)` (after `import asyncio`) makes several at the same time. \
Variables stay for the next code. A call raises ToolArgumentsError, ToolError or ToolDeniedError \
(with the reason; do not repeat a denied call). There are no files, network, packages or classes \
with bases. Print only what you need.

"""
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "The Python code."}},
    "required": ["code"],
    "additionalProperties": False,
}
_NEWS = f"The functions of `{RUN_CODE}` have changed, as the result says."
_BEGINNING = 200
"""The characters of a large value that the model reads."""
_LINES_AROUND = 10
"""The lines of a long snippet that a question shows before and after the call."""


class _Snippet(Struct):
    """One call of `run_code` at work."""

    call: ToolCall
    code: str
    thought: str
    calls: int = 0
    """The number of calls of tools so far."""
    ran: int = 0
    """How many of them have run."""
    denied: dict[str, str] = field(default_factory=dict[str, str])
    """By name and arguments, why a person or a policy denied a call."""
    notes: list[str] = field(default_factory=list[str])
    """What the model must know besides the output."""
    changes: list[ToolResult] = field(default_factory=list[ToolResult])
    """The results that change the tools of the run."""
    output: str = ""
    """What it printed."""
    value: CodeValue | None = None
    """The value of its last expression, unless it is None."""


class Snippets:
    """The code of one run of a program."""

    def __init__(
        self, bounds: CodeMode, conditions: Conditions, policy: Policy | None = None
    ) -> None:
        self.bounds = bounds
        self.news = ""
        """Says that snippets have changed the tools. Their results have the changes."""
        self._conditions = conditions
        self._policy = policy
        self._toolbox: Toolbox | None = None
        self._tools = Toolbox()
        """Those of the toolbox that code can call."""
        self._offered = Toolbox()
        self._functions: Mapping[str, CodeFunction] = {}
        self._names: dict[str, str] = {}
        """The names in code of all tools that the run has had, by their own."""
        self._session: CodeSession | None = None
        self._is_closed = False
        self._beginning: Mapping[str, Any] = {}
        """The time and the seed of the run's code."""
        self._number = 0
        """Counts the snippets."""

    def offer(self, toolbox: Toolbox) -> Toolbox:
        """Take the program's tools; returns what the model is offered.

        That is `run_code` and the built-in tools.
        """
        if toolbox is self._toolbox:
            return self._offered
        self._toolbox = toolbox
        builtin = [tool for tool in toolbox if is_builtin(tool)]
        self._tools = Toolbox([tool for tool in toolbox if not is_builtin(tool)])
        functions = functions_of(self._tools, self._names)
        if self._session is not None:
            stubs = {name: function.stub for name, function in self._functions.items()}
            changed = [new for name, new in functions.items() if stubs.get(name) != new.stub]
            self._session.define(_declaration(changed), is_checked=True)
        self._functions = functions
        self._offered = Toolbox((_run_code_tool(functions.values()), *builtin))
        return self._offered

    def describe(self, added: Iterable[Tool], removed: Iterable[str]) -> str:
        """Describe a change of the tools to the model, which knows them as functions."""
        stubs = stubs_of(functions_of(added, self._names).values())
        parts: list[str] = []
        if stubs:
            parts.append(f"From the next code on, there are these functions too:\n\n{stubs}")
        gone = ", ".join(f"`{self._names.get(name, name)}`" for name in removed)
        if gone:
            parts.append(f"No longer there: {gone}")
        return "\n\n".join(parts)

    def take_news(self) -> str:
        """The changes of the tools since the last time, in words."""
        news, self.news = self.news, ""
        return news

    def close(self) -> None:
        """End the interpreter of the run, which has ended or waits."""
        self._is_closed = True
        self._end_session()

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def use(self, calls: Sequence[ToolCall], host: Host, *, thought: str) -> UsingTools:
        """Run the calls of a turn one after another; returns one result for each."""
        results: list[ToolResult] = []
        for call in calls:
            if call.name == RUN_CODE:
                results.append((yield from self._use_code(call, host, thought)))
            else:
                results += yield from use_tools(
                    self._offered, [call], host, self._conditions, thought=thought
                )
        return results

    def _use_code(
        self, call: ToolCall, host: Host, thought: str
    ) -> Generator[Act, Any, ToolResult]:
        checked = check_call(self._offered, call)
        if isinstance(checked, ToolResult):
            if self._conditions.is_observed:
                yield Tell(events.CallRefused(call, checked))
            return checked
        # Half of a surrogate pair has no form in UTF-8, which the interpreter reads.
        code = checked.arguments.named["code"].encode("utf-8", "replace").decode()
        snippet = _Snippet(checked.call, code, thought)
        yield Tell(events.CallStarted(checked.call, checked.tool))
        error = yield from self._run(snippet, host)
        if snippet.changes:
            self._change_tools(snippet, host)
        content = self._report(snippet, error)
        result = ToolResult(
            RUN_CODE, content, call.id, is_error=bool(error), repairs=checked.call.repairs
        )
        yield Tell(events.CallFinished(checked.call, result))
        return result

    def _change_tools(self, snippet: _Snippet, host: Host) -> None:
        """Change the tools as the calls of a snippet say. Its result tells of the new ones."""
        results, description = host.apply(snippet.changes)
        snippet.notes += [_text_of(result.content) for result in results if result.is_error]
        if description:
            snippet.notes.append(description)
            self.news = _NEWS
            self.offer(host.owner.toolbox)  # a second snippet of this turn may call them

    # -- one snippet

    def _run(self, snippet: _Snippet, host: Host) -> Generator[Act, Any, str]:
        """Run a snippet to its end; returns its error, or an empty text."""
        self._number += 1
        if len(snippet.code) > self.bounds.code_chars:
            return (
                f"The code was not run: it has {len(snippet.code):,} characters, "
                f"more than {self.bounds.code_chars:,}. Write a shorter piece."
            )
        if not self._beginning:
            self._beginning = yield Once(_begin, "code")
        name = f"result_{self._number}"
        code = _with_named_result(snippet.code, name)
        if code == snippet.code:
            name = ""

        def start(*, is_checked: bool = True) -> Stop | None:
            return self._open().start(
                code, self._functions, result_name=name, is_checked=is_checked
            )

        stop = yield from self._advance(start, unchecked=partial(start, is_checked=False))
        while stop is None and self._session is not None and self._session.pending:
            answers = yield from self._answer(snippet, self._session.pending, host)
            stop = yield from self._advance(partial(self._session.answer, answers))
        if self._session is not None:
            snippet.output = self._session.output
        if stop is None:
            return self._end_of(snippet)
        if stop.kind == "stopped":
            self._end_session()
            return (
                f"The code was stopped: {stop.reason}. Calls that it made have taken effect. "
                "All variables are lost."
            )
        return f"The code was not run, because it does not fit the functions:\n{stop.reason}"

    def _end_of(self, snippet: _Snippet) -> str:
        """Take the value of a snippet that ran to its end; returns its error."""
        session = self._open()
        snippet.notes += [
            f"`{host_call.function}` in line {host_call.line} was not awaited, so it did not run."
            for host_call in session.unawaited
        ]
        snippet.value = session.value
        return session.error

    def _open(self) -> CodeSession:
        """The interpreter of the run, started before the first snippet."""
        if self._session is None:
            self._session = CodeSession(
                self.bounds,
                checked_stubs(self._functions.values()),
                seed=self._beginning["seed"],
                time_s=self._beginning["time_s"],
                is_replay=self._conditions.is_resumed,
            )
            self._session.define(ERRORS)
        if self._is_closed:  # meanwhile, by a run that left this thread behind
            self._end_session()
            raise RunError("The run of this code has ended.")
        return self._session

    def _advance(
        self, work: Callable[[], Stop | None], unchecked: Callable[[], Stop | None] | None = None
    ) -> Generator[Act, Any, Stop | None]:
        """Let the interpreter work; returns why it stopped early, as the run recorded it.

        `unchecked` starts a snippet that passed its check when it first ran, with other tools.
        """
        # An empty batch takes a number among the acts. What is recorded without one (a stop,
        # refused calls, rulings of a policy) is found by its name before the next act, and a loop
        # in the code may record it again and again without a call that runs.
        yield CallTools(())
        stops: list[Stop] = []

        def make() -> list[str]:
            stop = work()
            if stop is None:
                return []
            stops.append(stop)
            return [stop.kind, stop.reason]

        recorded = yield Once(make, "code stopped", only_if_true=True, waits=True, rebuilds=True)
        if recorded:
            return Stop(*recorded)
        if stops and unchecked is not None:
            return unchecked()
        return stops[0] if stops else None

    # -- its calls

    def _answer(
        self, snippet: _Snippet, host_calls: Sequence[HostCall], host: Host
    ) -> Generator[Act, Any, dict[int, Any]]:
        """Make the calls at which a snippet waits; returns the interpreter's answers, by id."""
        answers: dict[int, Any] = {}
        calls: dict[str, tuple[HostCall, ToolCall]] = {}
        notes: dict[str | None, str] = {}
        for host_call in host_calls:
            snippet.calls += 1
            try:
                call = self._call_of(snippet, host_call)
            except _RefusedError as refused:
                answers[host_call.id] = refused.answer
                continue
            calls[call.id or ""] = host_call, call
            host.called.add(call.name)
            notes[call.id] = _note(snippet, host_call, together=len(host_calls))
        if not calls:
            return answers
        acts = use_tools(
            self._tools,
            [call for _, call in calls.values()],
            host,
            self._conditions,
            thought=snippet.thought,
            policy=self._policy,
            notes=notes,
            records_refusals=True,
        )
        outcomes = yield from _outcomes(acts)
        for id_, (host_call, call) in calls.items():
            outcome = outcomes[id_]
            snippet.ran += outcome.has_run
            if outcome.denial is not None:
                snippet.denied[_key(call)] = outcome.denial
            if outcome.result.change is not None:
                snippet.changes.append(outcome.result)
            if outcome.note:
                snippet.notes.append(f"Line {host_call.line}: {outcome.note}")
            answers[host_call.id] = self._answer_of(host_call, outcome)
        return answers

    def _call_of(self, snippet: _Snippet, host_call: HostCall) -> ToolCall:
        """The call of a tool that a snippet makes; raises `_RefusedError` if it cannot be one."""
        if snippet.calls > self.bounds.calls:
            raise _RefusedError("RuntimeError", too_many(self.bounds.calls))
        function = self._functions[host_call.function]
        try:
            args = arguments_by_name(function, host_call)
        except TypeError as error:
            raise _RefusedError("TypeError", str(error)) from None
        size = len(json_text(args))
        if size > self.bounds.argument_chars:
            raise _RefusedError(
                "ValueError",
                f"the arguments of {function.name}() have {size:,} characters, "
                f"more than {self.bounds.argument_chars:,}",
            )
        place = PlaceInCode(snippet.call.id or "", snippet.calls, host_call.line)
        call = ToolCall.unchecked(function.tool.name, args, str(place))
        denial = snippet.denied.get(_key(call))
        if denial is not None:
            raise _RefusedError("PermissionError", f"{denial} (denied before, and not asked again)")
        return call

    def _answer_of(self, host_call: HostCall, outcome: _Outcome) -> dict[str, Any]:
        if outcome.denial is not None:
            return _exception("PermissionError", outcome.denial)
        result = outcome.result
        if not result.is_error:
            tool = self._functions[host_call.function].tool
            return {"return_value": _value_of(tool, result.content)}
        kind = "ValueError" if result.is_fault else "RuntimeError"
        return _exception(kind, _text_of(result.content))

    def _report(self, snippet: _Snippet, error: str) -> str:
        """What the model reads: the output, the value, the error, and what it must know besides."""
        parts = [snippet.output.rstrip("\n")]
        if snippet.value is not None:
            name = f"result_{self._number}"
            parts.append(_described(name, snippet.value, self.bounds.value_chars))
        parts += [*snippet.notes, self._bounded(with_advice(error))]
        text = "\n".join(part for part in parts if part)
        return text or "The code ran, and printed nothing."

    def _bounded(self, error: str) -> str:
        """An error as long as a result may be: its words may be a tool's, or code's own."""
        return str(shorten(error, self.bounds.output_chars))


def check_tools_of_code(tools: Toolbox) -> None:
    """Check the tools of a program whose model calls them in code.

    Raises `ConfigurationError` without the interpreter and for tools that the model's provider
    searches, and `DuplicateToolError` for a tool that is named like the tool for code.
    """
    check_installed()
    if any(tool.kind == "tool_search" for tool in tools.provider_tools):
        raise ConfigurationError(
            "With `calls='code'`, no tools are declared that the model's provider could search. "
            'Use `Toolbox(search="bm25")`, or leave out `calls=`.'
        )

    def check(listed: Iterable[Tool]) -> None:
        if any(tool.name == RUN_CODE for tool in listed):
            raise DuplicateToolError(
                f"A tool cannot be called `{RUN_CODE}` with `calls='code'`: it is the name of the "
                "tool for code. Give yours another: Tool(function, name=...)."
            )

    tools.when_listed(check)


def _run_code_tool(functions: Iterable[CodeFunction]) -> Tool:
    """The tool that the model calls, with all functions in its description."""
    return Tool(RUN_CODE, _WHEN_TO_RUN + stubs_of(functions), _not_called, _SCHEMA)


def _not_called(code: str) -> str:
    raise NotImplementedError(code)


def _begin() -> dict[str, Any]:
    return {"seed": random.getrandbits(32), "time_s": float(int(time.time()))}


def _declaration(functions: Iterable[CodeFunction]) -> str:
    """Code that declares functions to the checker, and does nothing when it runs."""
    stubs = stubs_of(functions)
    block = f"{HEADER}{stubs}".replace("\n", "\n    ")
    return f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {block}\n"


def _with_named_result(code: str, name: str) -> str:
    """The code with its last expression assigned to a name, so that later code can use it."""
    try:
        statements = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code  # the interpreter says what is wrong
    if not statements or not isinstance(statements[-1], ast.Expr):
        return code
    last = statements[-1]
    lines = code.encode().split(b"\n")  # `ast` counts columns in bytes
    line = lines[last.lineno - 1]
    before, after = line[: last.col_offset], line[last.col_offset :]
    lines[last.lineno - 1] = b"%s%s = %s" % (before, name.encode(), after)
    return b"\n".join(lines).decode()


# -- calls


class _RefusedError(Exception):
    """A call of a snippet that cannot become a call of a tool."""

    def __init__(self, kind: str, message: str) -> None:
        self.answer = _exception(kind, message)
        super().__init__(message)


class _Outcome(Struct):
    """What came of a call: as the tool returned it, without the notes for a model."""

    result: ToolResult
    has_run: bool
    denial: str | None = None
    """Why a person or a policy denied it."""
    note: str = ""
    """What a person changed."""


def _exception(kind: str, message: str) -> dict[str, Any]:
    return {"exc_type": kind, "message": message}


def _key(call: ToolCall) -> str:
    return f"{call.name} {json_text(call.args)}"


def _outcomes(acts: UsingTools) -> Generator[Act, Any, dict[str, _Outcome]]:
    """Pass on the acts of a batch of calls, and note what came of each, by its id."""
    returned: dict[str | None, ToolResult] = {}
    denials: dict[str | None, str] = {}
    answer: Any = None
    while True:
        try:
            act = acts.send(answer)
        except StopIteration as end:
            results: list[ToolResult] = end.value
            break
        answer = yield act
        match act:
            case CallTools(consents=consents):
                for checked, result in act.allowed(answer):
                    returned[checked.call.id] = result
                    if checked.refused is not None:
                        denials[checked.call.id] = checked.refused
                for consent in filter(None, consents):
                    decision = consent.decision
                    if decision is not None and decision.kind == "deny":
                        reason = decision.text or "a person denied the call"
                        denials[consent.subject.call.id] = reason
            case RuleCalls(calls=calls):
                for checked, ruling in zip(calls, answer, strict=True):
                    if ruling is not None and ruling.verdict == "deny":
                        denials[checked.call.id] = ruling.reason or "a policy forbids this call"
            case _:
                pass
    outcomes: dict[str, _Outcome] = {}
    for result in results:
        id_ = result.call_id
        has_run = id_ in returned and id_ not in denials
        outcome = _Outcome(returned.get(id_, result), has_run, denials.get(id_))
        if result is not outcome.result:  # with a note for the model, in its first line
            outcome.note = _text_of(result.content).splitlines()[0]
        outcomes[id_ or ""] = outcome
    return outcomes


def _value_of(tool: Tool, content: Content) -> Any:
    """A result as a value of the snippet.

    A run records what a model would read of a result, so it is read from that: as text where the
    function returns text, otherwise as JSON, where it is JSON.
    """
    text = _text_of(content)
    if type_of_result(tool) is str:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text_of(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(
        part.text if isinstance(part, Text) else f"[{type(part).__name__}]" for part in content
    )


def _note(snippet: _Snippet, host_call: HostCall, *, together: int) -> str:
    """The code as a person sees it beside the question about one of its calls."""
    heading = f"Line {host_call.line} of the model's code. {_calls_run(snippet.ran)}"
    if together > 1:
        heading += f" This one is made together with {together - 1} more."
    shown_lines = [
        f"{'>' if number == host_call.line else ' '} {number:3} {line}"
        for number, line in numbered_lines(snippet.code)
        if abs(number - host_call.line) <= _LINES_AROUND
    ]
    return "\n".join([heading, *shown_lines, ""])


def _calls_run(count: int) -> str:
    if count == 0:
        return "None of its calls has run yet."
    if count == 1:
        return "One of its calls has already run."
    return f"{count} of its calls have already run."


def _described(name: str, value: CodeValue, most_chars: int) -> str:
    """A value for the model: in full, or what it is if it is large."""
    if len(value.text) <= most_chars:
        return f"{name} = {value.text}"
    what = f"a {value.type}"
    if value.size is not None:
        what += f" of {value.size} {'characters' if value.type == 'str' else 'items'}"
    return f"{name} holds {what}, too long to show. It begins {value.text[:_BEGINNING]}"
