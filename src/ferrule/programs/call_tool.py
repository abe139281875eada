"""`call_tool`: a tool call by a program's own code, with the checks, policies, questions and record of a model's call."""

from __future__ import annotations

import inspect
from types import NoneType
from typing import TYPE_CHECKING, Any

from ferrule.errors import ConfirmationRejected, SignatureError, ToolDefinitionError, ToolError, shown
from ferrule.programs.module import Module
from ferrule.programs.tool_use.use import use_tools
from ferrule.runs.run import acall_program, call_program
from ferrule.tools.definition.inspect_function import return_type
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import Toolbox
from ferrule.values.calls.call import ToolCall, ToolResult
from ferrule.values.encoding.encode import is_exact
from ferrule.values.run.act import Act, AskPerson, CallTools, ReadConditions, RuleCalls
from ferrule.values.signatures.signature import OutputField, Signature

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ferrule.values.content.parts import Content


def call_tool(tool: Tool | Callable[..., Any], /, **arguments: Any) -> Any:
    """Call a tool from a `forward`, and record the result; a resumed run gets the recorded result.

    It is a call like one by a model: policies, grants and `require_confirmation` hold, and the run waits for a decision; the tool's
    `effect` says what happens after a crash. Outside a run, a call that needs a decision raises `ConfirmationRequired`, as a program does.

    Args:
        tool: The tool, or a function to make one of.
        arguments: The tool's arguments, by name.

    Returns:
        The result, as the type that the function says it returns. It is read from the text that a model would see, because a run records
        this text. A function without a return type, and a tool of an MCP server, give the text itself, or parts such as images.

    Raises:
        ToolArgumentsError: The arguments do not fit.
        ConfirmationRejected: A person or a policy denied the call, or a person replied instead. Its `message` is what they said.
        ToolError: The tool failed, or its result is not of the type it says. When the tool has just run, its own error is the cause.
        ToolDefinitionError: The type that it returns is not known at run time, or has no form in JSON.

    """
    program, named = _program(tool, arguments)
    return call_program(program, (), named)


async def acall_tool(tool: Tool | Callable[..., Any], /, **arguments: Any) -> Any:
    """`call_tool` on an event loop."""
    program, named = _program(tool, arguments)
    return await acall_program(program, (), named)


def _program(thing: Any, arguments: dict[str, Any]) -> tuple[_OneCall, dict[str, Any]]:
    """The call as a program, and its arguments as they may be shown; these name its place in the run. Defaults may differ in a replay."""
    tool = Tool.of(thing)
    read = _reader(tool)
    checked = tool.prepare(arguments)
    secrets = checked.secrets
    given = {name: value if name in secrets or is_exact(value) else checked.shown[name] for name, value in arguments.items()}
    return _OneCall(tool, given, read), {name: checked.shown.get(name, value) for name, value in given.items()}


class _OneCall(Module):
    """One call of a tool, as a program."""

    def __init__(self, tool: Tool, arguments: dict[str, Any], read: Callable[[Content], Any]) -> None:
        self._tool, self._arguments, self._read = tool, arguments, read

    @property
    def name(self) -> str:
        return self._tool.wire_name  # it stands in the places of the journal

    def flow(self, /, **_shown: Any) -> Generator[Act, Any, Any]:
        conditions = yield ReadConditions(None)
        call = ToolCall.unchecked(self._tool.name, self._arguments, f"call_tool_{conditions.place[1]}")
        acts = use_tools(Toolbox([self._tool]), [call], None, conditions)
        answer: Any = None
        result: ToolResult | None = None  # as the tool gave it: for a model, a note on changed arguments is added
        while True:
            try:
                act = acts.send(answer)
            except StopIteration as end:
                return self._value(result or end.value[0])
            answer = yield act
            if type(act) is CallTools:
                [result] = answer
            elif type(act) is AskPerson and (said := answer[0]).kind in {"deny", "reply"}:
                raise ConfirmationRejected(said.text or "The call was denied.", confirmation_id=said.question_id, tool_call=call)
            elif type(act) is RuleCalls and answer[0] is not None and answer[0].verdict == "deny":
                raise ConfirmationRejected(answer[0].reason or "A policy forbids this call.", tool_call=call)

    def _value(self, result: ToolResult) -> Any:
        if result.is_error:
            raise ToolError(str(result.content)) from result.error
        return self._read(result.content)


def _reader(tool: Tool) -> Callable[[Content], Any]:
    """Reads a result of the tool as the type that its function returns."""
    kind = return_type(tool.func) if tool.func is not None and tool.mcp is None else inspect.Parameter.empty
    if any(kind is each for each in (inspect.Parameter.empty, Any, str, ToolResult)):
        return lambda content: content
    if kind is None or kind is NoneType:
        return lambda _: None
    cannot = f"`call_tool` cannot read what `{tool.name}` returns"
    if isinstance(kind, str):
        raise ToolDefinitionError(f"{cannot}: the type {shown(kind)} is not known in the module of the function.")
    try:
        check = Signature({"result": (kind, OutputField())}).output_checks["result"]
    except SignatureError as error:
        raise ToolDefinitionError(f"{cannot}: {error}") from error

    def read(content: Content) -> Any:
        if not isinstance(content, str):
            return content[0] if len(content) == 1 else content
        try:
            return check(content)
        except ValueError as error:
            found = f"{error}. It is: {shown(content)}"
            raise ToolError(f"The result of `{tool.name}` is not of the type that it returns, {shown(kind)}: {found}") from None

    return read
