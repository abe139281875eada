"""The two ways a model takes a step of `ReAct`: in the text of its answer, or as native tool calls.

A mode asks for one turn, and says how a finished step looks in the next request. All else, the loop itself, is the same for both.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from ferrule.errors import AdapterParseError
from ferrule.programs.asking.ask import Asker, ask
from ferrule.programs.instructions import loop_instructions
from ferrule.tools.definition.intention import DESCRIPTION, add_intention, take_intention, write_intention
from ferrule.values.calls.call import CallFault, ToolCall, ToolResult
from ferrule.values.conversation.message import Message, Messages, tool_message
from ferrule.values.record import Record, replace
from ferrule.values.signatures.signature import OutputField, Signature

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from ferrule.adapters.adapter import Adapter
    from ferrule.programs.predict import Predict
    from ferrule.tools.toolbox import Toolbox
    from ferrule.values.content.parts import Content
    from ferrule.values.conversation.exchange import Declarations, Request, Response
    from ferrule.values.run.act import Act
    from ferrule.values.run.outcome import Step


class Turn(Record):
    """What the model did in one turn: calls, or an answer in plain text, or nothing that can be read (`problem`)."""

    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    outputs: Mapping[str, Any] | None = None
    """The signature's outputs, where the model answered without `finish`."""
    problem: str = ""
    response: Response | None = None


class Mode(Protocol):
    """How steps are asked for and shown."""

    def request(self, steps: Sequence[Step]) -> Request:
        """A request that shows these steps, rendered anew."""
        ...

    def request_after(self, messages: Messages) -> Request:
        """A request that goes on from these messages."""
        ...

    def turn(self, request: Request, steps: Sequence[Step], index: int) -> Generator[Act, Any, Turn]:
        """Ask for the next turn. `steps` are those the request shows, `index` numbers the turn."""
        ...

    def shown(self, step: Step, index: int, turn: Turn | None, news: str = "") -> tuple[Message, ...]:
        """A step as messages; `turn` is what it came from, where that is still at hand; `news` what changed in the tools, in words."""
        ...


def clipped(content: Content, limit: int) -> Content:
    """Text with its middle cut out where it is longer than `limit` characters."""
    if not isinstance(content, str) or len(content) <= limit:
        return content
    half = limit // 2
    return f"{content[:half]}\n… ({len(content) - 2 * half} characters left out) …\n{content[-half:]}"


class TextMode(Record):
    """Steps as the fields `next_thought`, `next_tool_name`, `next_tool_args`; each finished step is one user message."""

    how: Asker
    signature: type[Signature]
    """With the loop's instructions, the tools and the three fields."""
    values: Mapping[str, Any]
    demos: Sequence[Any]
    observation_chars: int

    def request(self, steps: Sequence[Step]) -> Request:
        """See `Mode`."""
        return self.request_after(self._messages(self.how.adapter, steps))

    def request_after(self, messages: Messages) -> Request:
        """See `Mode`."""
        return self.how.request(self.signature, messages)

    def _messages(self, adapter: Adapter, steps: Sequence[Step]) -> Messages:
        opening = adapter.opening(self.signature, self.values, demos=self.demos)
        return opening.then(*[self._shown(adapter, step, i) for i, step in enumerate(steps)]) if steps else opening

    def turn(self, request: Request, steps: Sequence[Step], index: int) -> Generator[Act, Any, Turn]:
        """See `Mode`."""

        def render(adapter: Adapter) -> Messages:
            return self._messages(adapter, steps)

        try:
            fields, response = yield from ask(self.how, self.signature, request, render, read=self._read)
        except AdapterParseError as error:
            return Turn(problem=str(error))
        thought = fields.get("next_thought")
        calls = _named_calls(fields.get("next_tool_name"), fields.get("next_tool_args"), index)
        if fields.get("next_intention"):
            calls = _meant(calls, fields["next_intention"])
        return Turn("" if thought is None else str(thought), calls, response=response)

    def _read(self, adapter: Adapter, response: Response) -> dict[str, Any]:
        try:
            return _read_step(adapter, response)
        except AdapterParseError as error:
            raise _of_asked(error, self.signature) from error.__cause__

    def shown(self, step: Step, index: int, turn: Turn | None, news: str = "") -> tuple[Message, ...]:
        """See `Mode`."""
        del turn
        return (self._shown(self.how.adapter, step, index, news),)

    def _shown(self, adapter: Adapter, step: Step, i: int, news: str = "") -> Message:
        fields: dict[str, Any] = {f"thought_{i}": step.thought}
        meant = [call.intention for call in step.calls if call.intention is not None]
        if meant:
            fields[f"intention_{i}"] = meant[0] if len(meant) == 1 else meant
        fields[f"tool_name_{i}"] = step.entry("tool_name")
        fields[f"tool_args_{i}"] = step.entry("tool_args")
        contents = [clipped(result.content, self.observation_chars) for result in step.results]
        fields[f"observation_{i}"] = contents[0] if len(contents) == 1 else contents
        if news:
            fields[f"tools_{i}"] = news
        return adapter.step_message(fields)


class NativeMode(Record):
    """Steps as native tool calls: an assistant message with the calls, and one tool message for each."""

    how: Asker
    signature: type[Signature]
    """With the loop's instructions and no outputs: they are the arguments of `finish`."""
    outputs: type[Signature]
    """The program's own signature, for an answer in plain text."""
    values: Mapping[str, Any]
    demos: Sequence[Any]
    declarations: Declarations
    intention: bool
    """Whether the declarations ask for it."""
    observation_chars: int

    def request(self, steps: Sequence[Step]) -> Request:
        """See `Mode`."""
        opening = self.how.adapter.opening(self.signature, self.values, demos=self.demos, native=True)
        shown = [message for i, step in enumerate(steps) for message in self.shown(step, i, None)]
        return self.request_after(opening.then(*shown) if shown else opening)

    def request_after(self, messages: Messages) -> Request:
        """See `Mode`."""
        return self.how.request(self.signature, messages, tools=self.declarations)

    def turn(self, request: Request, steps: Sequence[Step], index: int) -> Generator[Act, Any, Turn]:
        """See `Mode`."""
        del index

        def render(adapter: Adapter) -> Messages:
            del adapter
            return self.request(steps).messages

        fields, response = yield from ask(self.how, self.signature, request, render, read=self._read, reader=_Thoughts)
        thought = response.text or response.reasoning or ""
        if response.tool_calls:
            calls = tuple(map(take_intention, response.tool_calls)) if self.intention else response.tool_calls
            return Turn(thought, calls, response=response)
        if not thought.strip():
            return Turn(problem="The answer was empty. Call a tool, or call `finish`.", response=response)
        return Turn(thought, outputs=fields, response=response)

    def _read(self, adapter: Adapter, response: Response) -> dict[str, Any]:
        if response.tool_calls or not response.text:
            return {}
        try:
            return adapter.read(self.outputs, response, lenient=True)
        except AdapterParseError:
            return {}  # plain words are an end of the loop as well; the extractor makes outputs of them

    def shown(self, step: Step, index: int, turn: Turn | None, news: str = "") -> tuple[Message, ...]:
        """See `Mode`."""
        del index, news  # the declarations say it
        if turn is not None and turn.response is not None:
            said = turn.response.message()
        else:
            said = Message("assistant", step.thought, tuple(map(write_intention, step.calls)))
        if not step.calls:
            return (said, *(Message("user", result.content) for result in step.results))
        return (said, *[self._result(result) for result in step.results])

    def _result(self, result: ToolResult) -> Message:
        content = clipped(result.content, self.observation_chars)
        return tool_message(result if content is result.content else replace(result, content=content))


class _Thoughts:
    """Beside native calls, whatever a model says is its thought."""

    def feed(self, text: str) -> Sequence[tuple[str, str]]:
        return (("next_thought", text),)

    def finish(self) -> Sequence[tuple[str, str]]:
        return ()


def text_mode(
    how: Asker, predict: Predict, values: Mapping[str, Any], toolbox: Toolbox, *, intention: bool, observation_chars: int
) -> TextMode:
    """Text mode for one run."""
    signature = _text_signature(predict.signature, toolbox, intention=intention)
    return TextMode(how, signature, values, predict.demos, observation_chars)


def native_mode(
    how: Asker, predict: Predict, values: Mapping[str, Any], toolbox: Toolbox, *, intention: bool, observation_chars: int
) -> NativeMode:
    """Native mode for one run."""
    base = predict.signature
    declarations = _asking(toolbox) if intention else toolbox.declarations
    signature = _native_signature(base)
    return NativeMode(how, signature, base, values, predict.demos, declarations, intention, observation_chars)


@lru_cache(maxsize=256)
def _asking(toolbox: Toolbox) -> Declarations:
    return add_intention(toolbox, without="finish")  # its arguments are the outputs


@lru_cache(maxsize=256)
def _text_signature(base: type[Signature], toolbox: Toolbox, *, intention: bool) -> type[Signature]:
    names: Any = Literal[tuple(tool.name for tool in toolbox)]  # pyright: ignore[reportInvalidTypeArguments]  made of what is there
    signature = _without_outputs(base).with_instructions(loop_instructions(base, toolbox, native=False))
    signature = signature.append("next_thought", OutputField(desc="What you think of the situation and what to do next."), str)
    if intention:
        signature = signature.append("next_intention", OutputField(desc=DESCRIPTION), str)
    signature = signature.append("next_tool_name", OutputField(desc="The tool to call next."), names)
    return signature.append("next_tool_args", OutputField(desc="The tool's arguments."), dict[str, Any])


@lru_cache(maxsize=256)
def _native_signature(base: type[Signature]) -> type[Signature]:
    return _without_outputs(base).with_instructions(loop_instructions(base, (), native=True))


def _without_outputs(base: type[Signature]) -> type[Signature]:
    for name in base.output_fields:
        base = base.delete(name)
    return base


_STEP = Signature("situation -> next_thought: Any, next_intention: Any = None, next_tool_name: Any, next_tool_args: Any")
"""What a step is read with: more lenient than what the model is told, so that its slips become observations."""


def _read_step(adapter: Adapter, response: Response) -> dict[str, Any]:
    try:
        return adapter.read(_STEP, response)
    except AdapterParseError as error:
        # A tool that takes nothing is often named without arguments; arguments that are there but unreadable are a problem.
        unreadable = {name for name, _ in error.problems} - error.absent
        if not error.parsed.get("next_tool_name") or "next_tool_args" in unreadable:
            raise
        return error.parsed


def _of_asked(error: AdapterParseError, signature: type[Signature]) -> AdapterParseError:
    """The error without problems of a field that `_STEP` has and this model was not asked for: no model can mend those."""
    asked = {"", *signature.output_fields}
    problems = [(name, problem) for name, problem in error.problems if name in asked]
    absent = error.absent & asked
    return AdapterParseError(error.adapter, error.text, problems, parsed=error.parsed, absent=absent, code=error.code, raw=error.raw)


def _named_calls(name: Any, args: Any, index: int) -> tuple[ToolCall, ...]:
    """The step's calls: one, or several where the model gave lists of equal length."""
    if isinstance(args, str):  # an answer in JSON may hold the arguments as a string of JSON
        args = _STEP.check_output("next_tool_args", args)
    if isinstance(name, list) and isinstance(args, list) and len(name) == len(args):  # pyright: ignore[reportUnknownArgumentType]
        return tuple(_call(each, given, f"call_{index}_{k}") for k, (each, given) in enumerate(zip(name, args, strict=True)))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(name, list) and len(name) == 1:  # pyright: ignore[reportUnknownArgumentType]
        name = name[0]  # pyright: ignore[reportUnknownVariableType]
    return (_call(name, args, f"call_{index}_0"),)


def _meant(calls: tuple[ToolCall, ...], said: Any) -> tuple[ToolCall, ...]:
    """The calls with what the model said of them: one text for all, or one for each."""
    several = cast("list[Any]", said) if isinstance(said, list) else []
    each: list[Any] = several if len(several) == len(calls) else [cast("Any", said)] * len(calls)
    return tuple([call.changed(intention=str(why)) for call, why in zip(calls, each, strict=True)])


def _call(name: Any, args: Any, call_id: str) -> ToolCall:
    name = str(name).strip().strip("`\"'")
    if isinstance(args, str) and not args.strip():
        args = None
    if args is None or isinstance(args, dict):
        return ToolCall.unchecked(name, dict(args or {}), call_id)  # pyright: ignore[reportUnknownArgumentType]
    raw = args if isinstance(args, str) else json.dumps(args, default=str)
    reason = f"its arguments must be a JSON object of argument names and values, found {type(args).__name__}"
    return ToolCall(name=name, id=call_id, fault=CallFault("invalid_tool_call_arguments", reason, raw))


def fault_result(problem: str) -> ToolResult:
    """What a step without any call leaves as its observation."""
    return ToolResult("", problem, is_error=True, is_fault=True)
