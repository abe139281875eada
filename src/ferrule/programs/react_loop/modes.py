"""The two ways in which a model takes a step of `ReAct`: in text, or as native tool calls.

A mode writes the request for a turn, parses the answer, and renders finished steps. Everything that
both share is in `loop.py`.

Both modes read more than they ask for, because models answer in the form that they were trained on
and not always in the one of the prompt. In text mode, the fields of a step have any type, a missing
`next_tool_args` means no arguments, and native calls or calls in another notation count. In native
mode, a text counts as an answer if it can be one. What no reading explains becomes the `problem` of
the turn or an `AdapterParseError`, and the model is asked again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

from msgspec import Struct

from ferrule.adapters.native_text import text_output
from ferrule.adapters.parse import CUT_OFF
from ferrule.encoding.encode import json_text
from ferrule.encoding.loose import unfenced
from ferrule.encoding.written import split_digits
from ferrule.errors import AdapterParseError
from ferrule.programs.asking.ask import read_text_answer
from ferrule.programs.asking.asker import Asker
from ferrule.programs.asking.native_reader import NativeReader
from ferrule.programs.code_mode.snippets import RUN_CODE
from ferrule.programs.react_loop.step import step_signature
from ferrule.programs.tool_use.finish import asking_for_finish, text_is_not_read
from ferrule.tools.definition.export import (
    add_intention,
    take_intention,
    write_intention,
)
from ferrule.tools.read_result import shown_to_model
from ferrule.tools.toolbox import Toolbox
from ferrule.values.calls.call import CallFault, ToolCall, ToolResult
from ferrule.values.calls.confidence import with_confidence
from ferrule.values.calls.offered import calls_in_answer, holds_calls, under_offered_names
from ferrule.values.calls.secrets import Secrets
from ferrule.values.conversation.exchange import Declarations, Response, has_answer
from ferrule.values.conversation.message import Message, Messages, shorten, tool_message
from ferrule.values.signatures.fields import declare
from ferrule.values.signatures.output_checks import AS_WRITTEN
from ferrule.values.signatures.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.adapters.adapter import Adapter
    from ferrule.values.conversation.exchange import FieldReader, Request
    from ferrule.values.outcome import Step


_CALLS = "tool_calls"
"""The key of calls that the model wrote in another form than the prompt asks for."""


class Turn(Struct):
    """One turn of the model: calls, an answer in plain text, or what is unreadable (`problem`)."""

    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    outputs: Mapping[str, Any] | None = None
    """The signature's outputs, if the model answered without `finish`."""
    problem: str = ""
    response: Response | None = None
    is_text: bool = False
    """Whether the problem is that the model answered in text, and the outputs are not text."""


class Mode(Protocol):
    """Asks for steps, parses them, and renders them for the next request."""

    @property
    def signature(self) -> type[Signature]:
        """The signature that the prompt asks for, with the loop's instructions."""
        ...

    @property
    def reader(self) -> Callable[[Adapter], FieldReader] | None:
        """Makes the reader that splits a streamed answer into fields; None: the adapter's own."""
        ...

    def request(self, steps: Sequence[Step]) -> Request:
        """A request that shows these steps, all rendered again."""
        ...

    def request_after(self, messages: Messages) -> Request:
        """A request that continues these messages."""
        ...

    def messages(self, adapter: Adapter, steps: Sequence[Step]) -> Messages:
        """The messages of `request`, rendered by another adapter."""
        ...

    def read(self, adapter: Adapter, response: Response) -> dict[str, Any]:
        """The fields of an answer; raises `AdapterParseError` if the model must repair it."""
        ...

    def turn(self, fields: Mapping[str, Any], response: Response, index: int) -> Turn:
        """Make a turn from an answer and its fields; `index` is its number."""
        ...

    def render(
        self, step: Step, index: int, turn: Turn | None, news: str = ""
    ) -> tuple[Message, ...]:
        """A step as messages.

        `turn` is the turn it came from, if that is still known; `news` describes changes of the
        tools.
        """
        ...


def _is_summary(step: Step) -> bool:
    """Whether a step without calls is a summary of older steps (`compaction.py`).

    Only a summary's result has a name.
    """
    return bool(step.results) and bool(step.results[0].name)


class _TextMode(Struct):
    """Steps as the fields `next_thought`, `next_tool_name` and `next_tool_args`.

    Each finished step is one user message.
    """

    asker: Asker
    signature: type[Signature]
    """Inputs, the loop's instructions with the tools, and the three fields."""
    program_signature: type[Signature]
    """The signature of the agent, for earlier turns of a history, which have its outputs."""
    values: Mapping[str, Any]
    demos: Sequence[Any]
    toolbox: Toolbox
    observation_chars: int
    spill_over: int | None
    reader: None = None

    def request(self, steps: Sequence[Step]) -> Request:
        return self.request_after(self.messages(self.asker.adapter, steps))

    def request_after(self, messages: Messages) -> Request:
        return self.asker.request(self.signature, messages, secrets=self.toolbox.secrets)

    def messages(self, adapter: Adapter, steps: Sequence[Step]) -> Messages:
        opening = adapter.opening(
            self.signature, self.values, demos=self.demos, whole=self.program_signature
        )
        return opening.then(
            *[self._step_message(adapter, step, index) for index, step in enumerate(steps)]
        )

    def turn(self, fields: Mapping[str, Any], response: Response, index: int) -> Turn:
        thought = fields.get("next_thought")
        if thought is None:
            thought = ""
        else:
            thought = str(thought)
        if _CALLS in fields:
            calls = _with_ids(fields[_CALLS], index)
        else:
            calls = _read_calls(fields.get("next_tool_name"), fields.get("next_tool_args"), index)
            if fields.get("next_intention"):
                calls = _with_intentions(calls, fields["next_intention"])
        calls = under_offered_names(calls, self.toolbox)
        if not response.tool_calls:  # a wire says how sure structured calls are
            calls = with_confidence(calls, response.tokens)
        return Turn(thought, calls, response=response)

    def read(self, adapter: Adapter, response: Response) -> dict[str, Any]:
        try:
            return adapter.read(_lenient_step_signature(), response)
        except AdapterParseError as error:
            # Models often leave out the arguments of a tool without parameters: accept that.
            # Unreadable arguments are a problem.
            unreadable = {name for name, _ in error.problems} - error.absent
            if error.parsed.get("next_tool_name") and "next_tool_args" not in unreadable:
                return error.parsed
            calls, rest = response.tool_calls, response.text
            if not calls and self.asker.reads_other_forms:
                calls, rest = calls_in_answer(rest, response.reasoning, self.toolbox)
            if not calls:
                raise _without_other_fields(error, self.signature) from error.__cause__
            return {"next_thought": rest or error.parsed.get("next_thought"), _CALLS: calls}

    def render(
        self, step: Step, index: int, turn: Turn | None, news: str = ""
    ) -> tuple[Message, ...]:
        del turn
        return (self._step_message(self.asker.adapter, step, index, news),)

    def _step_message(self, adapter: Adapter, step: Step, index: int, news: str = "") -> Message:
        if step.said:
            return adapter.step_message({f"user_message_{index}": step.said})
        if not step.calls and _is_summary(step):
            return adapter.step_message({f"observation_{index}": step.results[0].content})
        contents = [
            shorten(call.result or "", self.observation_chars) for call in step.provider_calls
        ]
        contents += [
            shown_to_model(result, self.observation_chars, self.spill_over).content
            for result in step.results
        ]
        intentions = [call.intention for call in step.calls if call.intention is not None]
        fields: dict[str, Any] = {f"thought_{index}": step.thought}
        if intentions:
            fields[f"intention_{index}"] = _one_or_all(intentions)
        fields[f"tool_name_{index}"] = step.entry("tool_name")
        fields[f"tool_args_{index}"] = step.entry("tool_args")
        fields[f"observation_{index}"] = _one_or_all(contents)
        if news:
            fields[f"tools_{index}"] = news
        return adapter.step_message(fields)


def _one_or_all(values: list[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    return values


class _NativeMode(Struct):
    """Steps as native tool calls.

    Each step is an assistant message with the calls, and one tool message for each call.
    """

    asker: Asker
    signature: type[Signature]
    """With the loop's instructions and no outputs: they are the arguments of `finish`."""
    program_signature: type[Signature]
    """The signature of the agent, for an answer in plain text and for earlier turns."""
    values: Mapping[str, Any]
    demos: Sequence[Any]
    declarations: Declarations
    secrets: Secrets
    """The secret arguments of the tools, by tool."""
    intention: bool
    """Whether the declarations ask for an intention."""
    observation_chars: int
    spill_over: int | None

    def reader(self, adapter: Adapter) -> FieldReader:
        return NativeReader(
            partial(self.read, adapter),
            partial(holds_calls, self.declarations),
            text_output(self.program_signature),
            tuple(self.program_signature.plan.outputs),
            last_call="finish",
        )

    def request(self, steps: Sequence[Step]) -> Request:
        return self.request_after(self.messages(self.asker.adapter, steps))

    def request_after(self, messages: Messages) -> Request:
        return self.asker.request(
            self.signature, messages, tools=self.declarations, secrets=self.secrets
        )

    def messages(self, adapter: Adapter, steps: Sequence[Step]) -> Messages:
        del adapter  # native calls look the same with any adapter
        opening = self.asker.adapter.opening(
            self.signature,
            self.values,
            demos=self.demos,
            native=True,
            whole=self.program_signature,
        )
        messages: list[Message] = []
        for index, step in enumerate(steps):
            messages += self.render(step, index, None)
        return opening.then(*messages)

    def turn(self, fields: Mapping[str, Any], response: Response, index: int) -> Turn:
        del index  # the driver gives each call its id
        thought = response.text or response.reasoning or ""
        is_cut = response.finish_reason == "length"
        if response.tool_calls:
            calls = response.tool_calls
            if self.intention:
                calls = tuple(map(take_intention, calls))
            if is_cut:
                calls = _with_reason_of_cut(calls)
            return Turn(thought, calls, response=response)
        if not has_answer(response):
            # Thoughts alone are not an answer either: the model is asked again, with its tools.
            problem = "The answer was empty"
            if thought:
                problem = "The answer had only thoughts"
            if is_cut:
                problem += f"; {CUT_OFF}"
            problem += ". Call a tool, or call `finish`."
            return Turn(thought, problem=problem, response=response)
        if not fields:
            problem = text_is_not_read(self.program_signature)
            return Turn(thought, problem=problem, response=response, is_text=True)
        return Turn(thought, outputs=fields, response=response)

    def read(self, adapter: Adapter, response: Response) -> dict[str, Any]:
        if response.tool_calls or not response.text:
            return {}
        try:
            return read_text_answer(adapter, self.program_signature, response)
        except AdapterParseError as error:
            # An answer that was cut off, or that has some of the fields, is meant to be the final
            # one: the model can repair it, and needs no reminder of `finish`.
            if response.finish_reason == "length" or error.parsed:
                raise
            fallback = adapter.fallback
            if fallback is not None and response.text.lstrip().startswith(("{", "```")):
                with suppress(AdapterParseError):
                    return fallback.read(self.program_signature, response)
            return {}  # text where the outputs are not text: `turn` asks for `finish`

    def render(
        self, step: Step, index: int, turn: Turn | None, news: str = ""
    ) -> tuple[Message, ...]:
        del index, news  # the next request's declarations show the changes
        if step.said:
            return (Message("user", step.said),)
        if turn is not None and turn.response is not None:
            answer = turn.response.message()
        elif not step.calls and _is_summary(step):
            return (Message("user", step.results[0].content),)
        else:
            answer = Message("assistant", step.thought, tuple(map(write_intention, step.calls)))
        seen: list[Message] = []
        if turn is None and step.provider_calls:
            # The provider's own form of them is not known any more.
            seen.append(Message("user", shorten(_in_words(step), self.observation_chars)))
        if not step.calls:
            return (*seen, answer, *(Message("user", result.content) for result in step.results))
        return (*seen, answer, *[self._result_message(result) for result in step.results])

    def _result_message(self, result: ToolResult) -> Message:
        return tool_message(shown_to_model(result, self.observation_chars, self.spill_over))


def _in_words(step: Step) -> str:
    """The calls that the model's provider ran, as text."""
    lines = ["What your provider's tools found:"]
    for call in step.provider_calls:
        lines.append(f"{call.name} {json_text(call.args)}: {call.result or 'done'}")
    return "\n".join(lines)


def _with_reason_of_cut(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """The calls of an answer that was cut off: a fault of the last one says so."""
    *others, last = calls
    fault = last.fault
    if fault is None:
        return calls
    reason = f"{fault.reason}; {CUT_OFF}"
    fault = CallFault(fault.code, reason, fault.raw, fault.index)
    return (*others, last.changed(fault=fault))


def make_mode(
    asker: Asker,
    program_signature: type[Signature],
    values: Mapping[str, Any],
    demos: Sequence[Any],
    toolbox: Toolbox,
    *,
    native: bool,
    intention: bool,
    most_chars: int,
    spill_over: int | None,
) -> Mode:
    """Make the mode of one run.

    Observations longer than `most_chars` characters, or `spill_over` if the model can read the
    rest, are shortened for the model.
    """
    if not native:
        signature = step_signature(program_signature, toolbox, intention=intention)
        return _TextMode(
            asker, signature, program_signature, values, demos, toolbox, most_chars, spill_over
        )
    if intention:
        declarations = _with_intention(toolbox)
    else:
        declarations = toolbox.declarations
    return _NativeMode(
        asker,
        asking_for_finish(program_signature),
        program_signature,
        values,
        demos,
        declarations,
        toolbox.secrets,
        intention,
        most_chars,
        spill_over,
    )


def _with_intention(toolbox: Toolbox) -> Declarations:
    # Not for `finish`: its arguments are the outputs. The function itself is the key of the cache.
    return toolbox.cached_value(_with_intention, lambda: add_intention(toolbox, without="finish"))


@lru_cache(maxsize=1)
def _lenient_step_signature() -> type[Signature]:
    """The signature to parse steps with: it takes fields of any type, unlike the prompt's.

    A tool that does not exist and arguments that are not an object are then faults of a call, which
    the model reads as its observation.
    """
    step = Signature(
        "situation -> next_thought: Any, next_intention: Any = None, next_tool_name: Any"
    )
    return step.append("next_tool_args", declare("output"), Annotated[Any, AS_WRITTEN])


def _without_other_fields(
    error: AdapterParseError, signature: type[Signature]
) -> AdapterParseError:
    """The error without the problems of fields that only `_lenient_step_signature` has.

    The prompt does not ask for them, so the model cannot repair them.
    """
    wanted = {"", *signature.plan.outputs}
    problems = [(name, problem) for name, problem in error.problems if name in wanted]
    return AdapterParseError(
        error.adapter,
        error.text,
        problems,
        parsed=error.parsed,
        absent=error.absent & wanted,
        code=error.code,
        raw=error.raw,
        signature=signature,
    )


def _read_calls(name: Any, args: Any, index: int) -> tuple[ToolCall, ...]:
    """The step's calls: one, or several if the model gave lists of equal length."""
    if name == RUN_CODE and isinstance(args, str):
        code = unfenced(args)
        if code is not None:
            return (_call(name, {"code": code}, f"call_{index}_0"),)
    if isinstance(args, str):  # an answer in JSON may hold the arguments as a string of JSON
        args = _lenient_step_signature().check_output("next_tool_args", args)
    if not isinstance(name, list):
        return (_call(name, args, f"call_{index}_0"),)
    names = cast("list[Any]", name)
    several_args: list[Any] = []
    if isinstance(args, list):
        several_args = cast("list[Any]", args)
    if len(names) != len(several_args):
        return (_call(_one_or_all(names), args, f"call_{index}_0"),)
    pairs = zip(names, several_args, strict=True)
    return tuple(
        [
            _call(one_name, one_args, f"call_{index}_{number}")
            for number, (one_name, one_args) in enumerate(pairs)
        ]
    )


def _with_ids(calls: Sequence[ToolCall], index: int) -> tuple[ToolCall, ...]:
    return tuple(
        [
            call if call.id else call.with_id(f"call_{index}_{number}")
            for number, call in enumerate(calls)
        ]
    )


def _with_intentions(calls: tuple[ToolCall, ...], intention: Any) -> tuple[ToolCall, ...]:
    """The calls with the model's intention: one text for all, or one for each."""
    intentions: list[Any] = [intention] * len(calls)
    if isinstance(intention, list) and len(cast("list[Any]", intention)) == len(calls):
        intentions = cast("list[Any]", intention)
    pairs = zip(calls, intentions, strict=True)
    return tuple([call.changed(intention=str(text)) for call, text in pairs])


def _call(name: Any, args: Any, call_id: str) -> ToolCall:
    name = str(name).strip().strip("`\"'")  # models quote the name as the prompt does
    if isinstance(args, dict):
        args, written = split_digits(dict(cast("dict[str, Any]", args)))
        return ToolCall.unchecked(name, args, call_id, written=written)
    if args is None or (isinstance(args, str) and not args.strip()):
        return ToolCall.unchecked(name, {}, call_id)
    if isinstance(args, str):
        raw = args
    else:
        raw = json.dumps(args, default=str)
    reason = (
        "its arguments must be a JSON object of argument names and values, "
        f"found {type(args).__name__}"
    )
    fault = CallFault("invalid_tool_call_arguments", reason, raw)
    return ToolCall(name=name, id=call_id, fault=fault)
