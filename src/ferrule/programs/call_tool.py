"""`call_tool`: lets a program's own code call a tool.

The call has the checks, policies, questions and records of a model's call.
"""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Coroutine,
    Mapping,
)
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    LiteralString,
    Never,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    overload,
)

from ferrule.acts import Act, CallTools, RuleCalls, Within
from ferrule.encoding.encode import is_plain, json_text, with_whole_characters
from ferrule.errors import (
    ConfirmationRejected,
    SignatureError,
    ToolDefinitionError,
    ToolError,
    shown,
)
from ferrule.programs.module import Module
from ferrule.programs.tool_use.use import use_tools
from ferrule.runs.run import acall_program, call_program
from ferrule.schema.inline import INEXPRESSIBLE, SchemaGenerator, json_schema_of
from ferrule.schema.nodes import admitted_types
from ferrule.settings import with_settings_of_call
from ferrule.tools.arguments.given_schema import json_view
from ferrule.tools.definition.inspect_function import return_type
from ferrule.tools.definition.parameters import SHOWN_AS_STARS
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import Toolbox
from ferrule.values.calls.call import ToolCall, ToolResult
from ferrule.values.calls.edit import Coerced
from ferrule.values.content.convert import bytes_of_text
from ferrule.values.content.parts import Text
from ferrule.values.signatures.fields import SignatureField, adapter_of
from ferrule.values.signatures.output_checks import members_of, reading_check
from ferrule.values.signatures.signature import OutputField, Signature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Generator as Acts

    from ferrule.approval.question import Decision
    from ferrule.values.calls.context import Context
    from ferrule.values.content.parts import Content
    from ferrule.values.signatures.output_checks import OutputCheck

P = ParamSpec("P")
R = TypeVar("R")

_AS_SHOWN = (inspect.Parameter.empty, Any, object, str, LiteralString, Never, NoReturn, ToolResult)
"""Return types for which `call_tool` returns the result as a model sees it."""
_READ_TO_THE_END = (AsyncGenerator, AsyncIterable, AsyncIterator)
_AWAITED = (Awaitable, Coroutine)
_NOT_TEXT = frozenset({"object", "array"})


if TYPE_CHECKING:

    class _AnyTool(Protocol):
        """A tool whose function is not known.

        Type checkers take the attribute as one that may be set. So a decorated function, whose
        attribute has the types of the function, does not fit.
        """

        func: Callable[..., Any] | None


# A tool of unknown types; then the kinds of functions, from special to general: an async generator,
# which is read to its end, an async function, and any other. A `Context` in the first place is not
# an argument of the call. In another place it cannot be left out for type checkers: pass that of
# the program.
@overload
def call_tool(tool: _AnyTool, /, *args: Any, **arguments: Any) -> Any: ...
@overload
def call_tool(
    tool: Callable[Concatenate[Context[Any], P], AsyncIterator[R]],
    /,
    *args: P.args,
    **arguments: P.kwargs,
) -> list[R]: ...
@overload
def call_tool(
    tool: Callable[P, AsyncIterator[R]], /, *args: P.args, **arguments: P.kwargs
) -> list[R]: ...
@overload
def call_tool(
    tool: Callable[Concatenate[Context[Any], P], Coroutine[Any, Any, R]],
    /,
    *args: P.args,
    **arguments: P.kwargs,
) -> R: ...
@overload
def call_tool(
    tool: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **arguments: P.kwargs
) -> R: ...
@overload
def call_tool(
    tool: Callable[Concatenate[Context[Any], P], R], /, *args: P.args, **arguments: P.kwargs
) -> R: ...
@overload
def call_tool(tool: Callable[P, R], /, *args: P.args, **arguments: P.kwargs) -> R: ...
def call_tool(tool: Any, /, *args: Any, **arguments: Any) -> Any:
    """Call a tool from a `forward`, and record the result; a resumed run gets the recorded result.

    Policies, grants and `require_confirmation` apply as for a model's call, and the run waits for
    the decision. The tool's `effect` decides what happens after a crash. Outside a run, a call that
    needs a decision raises `ConfirmationRequired`, as a program does.

    Args:
        tool: The tool, or a function to make into one.
        args: The tool's arguments.
        arguments: Its arguments by name. The tool gets these objects; the journal and a question
            show them as JSON. A `Context` among them may be left out: each call has its own.

    Returns:
        The result, as the function's declared return type. It is parsed from the text that a model
        would see, because a run records this text. For a function without a return type, and a tool
        of an MCP server, the text itself, or parts such as images.

    Raises:
        ToolArgumentsError: The arguments do not fit.
        ConfirmationRejected: A person or a policy denied the call, or a person replied instead. Its
            `message` is the reason or the reply.
        ToolError: The tool failed, or its result does not fit the return type. If the tool has just
            run, its own error is the cause.
        ToolDefinitionError: The return type is not known at run time, has no form in JSON, holds a
            secret, or is a union whose values look the same in the text (`int | str`).

    """
    program, named = _program(tool, args, arguments)
    return call_program(program, (), named)


@overload
async def acall_tool(tool: _AnyTool, /, *args: Any, **arguments: Any) -> Any: ...
@overload
async def acall_tool(
    tool: Callable[Concatenate[Context[Any], P], AsyncIterator[R]],
    /,
    *args: P.args,
    **arguments: P.kwargs,
) -> list[R]: ...
@overload
async def acall_tool(
    tool: Callable[P, AsyncIterator[R]], /, *args: P.args, **arguments: P.kwargs
) -> list[R]: ...
@overload
async def acall_tool(
    tool: Callable[Concatenate[Context[Any], P], Coroutine[Any, Any, R]],
    /,
    *args: P.args,
    **arguments: P.kwargs,
) -> R: ...
@overload
async def acall_tool(
    tool: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **arguments: P.kwargs
) -> R: ...
@overload
async def acall_tool(
    tool: Callable[Concatenate[Context[Any], P], R], /, *args: P.args, **arguments: P.kwargs
) -> R: ...
@overload
async def acall_tool(tool: Callable[P, R], /, *args: P.args, **arguments: P.kwargs) -> R: ...
@with_settings_of_call
async def acall_tool(tool: Any, /, *args: Any, **arguments: Any) -> Any:
    """`call_tool` on an event loop."""
    program, named = _program(tool, args, arguments)
    return await acall_program(program, (), named)


def _program(
    thing: Any, args: tuple[Any, ...], arguments: dict[str, Any]
) -> tuple[_OneCall, dict[str, Any]]:
    """The call as a program, and its arguments as they may be shown.

    These identify the call, so they lack defaults, which may change.
    """
    tool = Tool.of(thing)
    read = _reader(tool)
    arguments, _ = tool.by_name(args, arguments)  # the run makes a `Context` of the call's own
    checked = tool.prepare(arguments)
    if isinstance(checked, Coerced):
        arguments = checked.given  # by parameter name
    as_shown = {
        name: checked.shown.get(name, json_view(value)) for name, value in arguments.items()
    }
    return _OneCall(tool, arguments, read), as_shown


class _OneCall(Module):
    """One call of a tool, as a program."""

    def __init__(
        self, tool: Tool, arguments: dict[str, Any], read: Callable[[Content], Any]
    ) -> None:
        self._tool, self._arguments, self._read = tool, arguments, read
        vars(self)["name"] = tool.wire_name  # it is part of the slots in the journal

    def flow(self, /, **as_shown: Any) -> Acts[Act, Any, Any]:
        conditions = yield Within(lm=None)
        call_id = f"call_tool_{conditions.place[1]}"
        call = ToolCall.unchecked(self._tool.name, self._arguments, call_id)
        shown_call = call.changed(args=as_shown)  # in errors: without secrets
        acts = use_tools(Toolbox([self._tool]), [call], None, conditions)
        answer: Any = None
        # As the tool returned it: the result for a model may have a note on changed arguments.
        result: ToolResult | None = None
        while True:
            try:
                act = acts.send(answer)
            except StopIteration as end:
                return self._value(result or end.value[0])
            answer = yield act
            # A model reads in its result that the call did not run; the program's code is raised.
            match act:
                case CallTools(consents=consents):
                    for consent in filter(None, consents):
                        _raise_if_denied(consent.decision, shown_call)
                    [(checked, result)] = act.allowed(answer)
                    if checked.refused is not None:
                        raise ConfirmationRejected(checked.refused, tool_call=shown_call)
                case RuleCalls() if answer[0] is not None and answer[0].verdict == "deny":
                    raise ConfirmationRejected(
                        answer[0].reason or "A policy forbids this call.", tool_call=shown_call
                    )
                case _:
                    pass

    def _value(self, result: ToolResult) -> Any:
        if result.is_error:
            raise ToolError(str(result.content)) from result.error
        content = result.content
        if isinstance(content, str):
            content = with_whole_characters(content)
        return self._read(content)


def _raise_if_denied(decision: Decision | None, shown_call: ToolCall) -> None:
    if decision is not None and decision.kind in {"deny", "reply"}:
        raise ConfirmationRejected(
            decision.text or "The call was denied.",
            confirmation_id=decision.question_id,
            tool_call=shown_call,
        )


def _reader(tool: Tool) -> Callable[[Content], Any]:
    """Make a function that reads a result of the tool as the type that its function returns."""
    kind = type_of_result(tool)
    if any(kind is shown_kind for shown_kind in _AS_SHOWN):
        return lambda content: content
    if kind is None or kind is NoneType:
        return lambda _: None
    if kind is bytes:
        return lambda content: bytes_of_text(content) if isinstance(content, str) else content
    check = _check_of(kind, f"`call_tool` cannot read what `{tool.name}` returns")

    def read(content: Content) -> Any:
        problems: list[str] = []
        for value in _values_of(content):
            try:
                return check(value)
            except ValueError as error:
                problems.append(str(error))
        raise ToolError(
            f"The result of `{tool.name}` is not of the type that it returns, {shown(kind)}: "
            f"{problems[0]}. It is: {shown(content)}"
        )

    return read


def type_of_result(tool: Tool) -> Any:
    """The return type of the tool's function, as a run records its value."""
    is_declared = tool.func is None and tool.returns is not None
    if is_declared and not isinstance(tool.returns, Mapping):
        return tool.returns
    if tool.func is None or tool.mcp is not None:
        return inspect.Parameter.empty
    kind = return_type(tool.func)
    origin = get_origin(kind)
    if origin in _READ_TO_THE_END:
        return list[get_args(kind)[:1] or (Any,)]
    if origin in _AWAITED:
        return get_args(kind)[-1]
    return kind


def _check_of(kind: Any, cannot: str) -> OutputCheck:
    if isinstance(kind, str):
        raise ToolDefinitionError(
            f"{cannot}: the type {shown(kind)} is not known in the module of the function."
        )
    try:
        signature = Signature({"result": (kind, OutputField())})
        check = reading_check(signature.plan.outputs["result"])
        schema: dict[str, Any] = {}
        if not is_plain(kind):
            adapter = adapter_of(signature.plan.outputs["result"])
            schema = adapter.json_schema(schema_generator=SchemaGenerator)
    except INEXPRESSIBLE as error:
        raise ToolDefinitionError(
            f"{cannot}: {shown(kind)} has no form in JSON ({error.args[0]})."
        ) from error
    except SignatureError as error:
        raise ToolDefinitionError(f"{cannot}: {error}") from error
    if SHOWN_AS_STARS in json_text(schema):
        raise ToolDefinitionError(
            f"{cannot}: {shown(kind)} holds a secret, which a run records as stars."
        )
    members = list(members_of(kind))
    like_text = [member for member in members if _is_like_text(member)]
    if str in members and like_text:
        raise ToolDefinitionError(
            f"{cannot}: {shown(kind)} is recorded as text, which does not tell "
            f"{shown(like_text[0])} from a `str`. "
            "Return one type, or an object that holds the value."
        )
    return check


def _is_like_text(member: Any) -> bool:
    """Whether values of a type are recorded as text that a `str` could also be.

    Numbers and dates are.
    """
    if member is NoneType or (isinstance(member, type) and issubclass(member, str)):
        return False
    choices = get_args(member)
    if get_origin(member) is Literal and all(isinstance(choice, str) for choice in choices):
        return False
    schema = json_schema_of(adapter_of(SignatureField(member, {})))
    return not (admitted_types(schema, schema) or _NOT_TEXT) <= _NOT_TEXT


def _values_of(content: Content) -> Iterator[Any]:
    """The values that a function may have returned if this content shows it."""
    if isinstance(content, str):
        yield content
        return
    if len(content) == 1:
        yield content[0]
    yield [part.text if isinstance(part, Text) else part for part in content]
    yield list(content)
