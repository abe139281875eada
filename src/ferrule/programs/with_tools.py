"""`Predict` with tools.

It asks for one answer that may hold calls (`ask_once`), or turn by turn until the model answers
without calls (`ask_in_turns`). Calls are native, or written in the text of the answer. If the model
refuses native calls in the middle of a conversation, the conversation continues in text.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from ferrule import events
from ferrule.acts import Act, Listen, Tell
from ferrule.adapters.fields import calls_output
from ferrule.adapters.native_text import text_output
from ferrule.errors import (
    AdapterParseError,
    BadRequestError,
    DuplicateToolError,
    MaxTurnsReachedError,
    ToolArgumentsError,
    ToolCallError,
)
from ferrule.programs.asking.ask import Answering, ask_model, read_text_answer
from ferrule.programs.asking.asker import Asker, calls_natively
from ferrule.programs.asking.native import adapt_to_model, add_native_outputs
from ferrule.programs.asking.native_reader import FormReader, NativeReader
from ferrule.programs.asking.output_form import enforcing, finishing
from ferrule.programs.asking.refusals import refuses_format, refuses_tools
from ferrule.programs.code_mode.snippets import Snippets
from ferrule.programs.instructions import (
    answer_or_call_instructions,
    call_first_instructions,
    describe_new_tools,
    is_builtin,
)
from ferrule.programs.tool_use.dynamic import Host, ModuleContext, ModuleView
from ferrule.programs.tool_use.finish import (
    add_finish,
    asking_for_finish,
    outputs_in,
    split_finish,
    text_is_not_read,
    why_void,
)
from ferrule.programs.tool_use.live import after_turns
from ferrule.programs.tool_use.use import has_changes, has_no_turn_left, use_tools
from ferrule.tools.read_result import shown_to_model
from ferrule.tools.toolbox import Toolbox
from ferrule.values.calls.call import CallFault, ToolCall, ToolResult
from ferrule.values.calls.confidence import with_confidence
from ferrule.values.calls.offered import holds_calls, under_offered_names
from ferrule.values.calls.tool_calls import ToolCalls
from ferrule.values.content.convert import content_text
from ferrule.values.conversation.exchange import NO_TOOLS, Response, has_answer
from ferrule.values.conversation.history import History, after_system
from ferrule.values.conversation.message import Message, Messages, tool_message
from ferrule.values.outcome import Prediction, Step, Trajectory
from ferrule.values.signatures.fields import declare

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ferrule.adapters.adapter import Adapter
    from ferrule.programs.code_mode.interpreter import CodeMode
    from ferrule.programs.tool_use.chosen import Choices
    from ferrule.tools.tool import Tool
    from ferrule.values.conversation.exchange import FieldReader, Request
    from ferrule.values.signatures.signature import Signature


class Asks(Protocol):
    """The attributes of `Predict` that this module uses."""

    signature: type[Signature]
    toolbox: Toolbox
    auto_execute_tools: bool
    outputs_have_format: bool
    code: CodeMode | None
    choices: Choices

    @property
    def is_validated(self) -> bool:
        """Whether validators check the outputs."""
        ...

    def check_answer(
        self,
        inputs: Mapping[str, Any],
        adapter: Adapter,
        outputs: dict[str, Any],
        response: Response,
    ) -> Generator[Act, Any, dict[str, Any]]:
        """The outputs after validation; raises `AdapterParseError` with the objections."""
        ...

    def make_prediction(self, outputs: Mapping[str, Any], **more: Any) -> Prediction:
        """A prediction of the signature."""
        ...


Predicting = Generator[Act, Any, Prediction]
_Verdict = tuple[ToolResult, dict[str, Any] | None]
"""The result of `finish`, and the outputs if it counts."""


def ask_once(
    predict: Asks,
    asker: Asker,
    values: dict[str, Any],
    demos: Sequence[Any],
    toolbox: Toolbox,
    *,
    native: bool | None,
) -> Predicting:
    """Ask for one answer.

    Its calls are not run: they are an output, or returned with the prediction.
    """
    make = partial(_OneAnswer, predict, values=values, demos=demos, toolbox=toolbox)
    return _native_or_text(asker, native, make)


def ask_in_turns(
    predict: Asks,
    asker: Asker,
    values: dict[str, Any],
    demos: Sequence[Any],
    toolbox: Toolbox,
    *,
    native: bool | None,
    all_tools: Toolbox,
    module: Any,
    max_turns: int,
) -> Predicting:
    """Ask in turns: run the model's calls and show it the results, until it answers.

    `toolbox` has those of `all_tools` that were chosen for this run. A `@module_callback` sees the
    program `module`.
    """
    make = partial(
        _Turns,
        predict,
        values=values,
        demos=demos,
        toolbox=toolbox,
        all_tools=all_tools,
        module=module,
        max_turns=max_turns,
    )
    return _formatted_or_not(predict, asker, toolbox, native, make)


def _formatted_or_not(
    predict: Asks,
    asker: Asker,
    toolbox: Toolbox,
    wanted: bool | None,
    make: Callable[..., _Turns],
) -> Predicting:
    """Choose how the outputs travel: see `output_form`.

    If the model refuses the format of the first request, ask without it.
    """
    if not predict.outputs_have_format or not calls_natively(asker, wanted):
        return (yield from _native_or_text(asker, wanted, make))
    adapted, _, _ = adapt_to_model(predict.signature, asker)
    finishing_asker = finishing(asker, adapted, toolbox)
    if finishing_asker is not None:
        with_finish = partial(make, toolbox=add_finish(toolbox, adapted), by_finish=True)
        return (yield from _native_or_text(finishing_asker, wanted, with_finish))
    enforcing_asker = enforcing(asker, adapted, has_tools=True)
    if enforcing_asker is None:
        return (yield from _native_or_text(asker, wanted, make))
    conversation = make(asker=enforcing_asker, native=True)
    try:
        return (yield from conversation.flow())
    except BadRequestError as error:
        # Later requests differ in their messages only, and their tools have run.
        if conversation.trajectory.steps:
            raise
        if wanted is None and refuses_tools(asker.lm, error):
            return (yield from make(asker=asker, native=False).flow())
        if not refuses_format(asker.lm, error):
            raise
    return (yield from _native_or_text(asker, wanted, make))


def _native_or_text(
    asker: Asker, wanted: bool | None, make: Callable[..., _WithTools]
) -> Predicting:
    """Use native calls, or calls in text.

    If the program did not choose, and the model refuses native calls, continue in text.
    """
    conversation = make(asker=asker, native=calls_natively(asker, wanted))
    try:
        return (yield from conversation.flow())
    except BadRequestError as error:
        if not conversation.native or wanted is not None or not refuses_tools(asker.lm, error):
            raise
    conversation.go_on_in_text()
    return (yield from conversation.flow())


class _WithTools:
    """One run of `Predict` with tools, called natively or in text."""

    def __init__(
        self,
        predict: Asks,
        *,
        asker: Asker,
        values: dict[str, Any],
        demos: Sequence[Any],
        toolbox: Toolbox,
        native: bool,
    ) -> None:
        self.predict = predict
        self.toolbox = toolbox
        self.values = values
        self.demos = demos
        self.native = native
        self.adapted, self.asker, self.native_outputs = adapt_to_model(predict.signature, asker)
        self.signature = self.adapted
        """The signature of the prompt: in text, it has the tools and an output for the calls."""
        self.tail: list[Message] = []
        """The messages after the opening."""
        self.calls_in = calls_output(self.signature) or _CALLS
        """The field that holds the calls of an answer."""
        self.code: Snippets | None = None
        """The code of this run, if the model calls tools in code."""

    @property
    def offered(self) -> Toolbox:
        """The tools that the model can call: in code, it has one for all."""
        if self.code is None:
            return self.toolbox
        return self.code.offer(self.toolbox)

    def go_on_in_text(self) -> None:
        """Continue with the tools listed in the prompt, not declared."""
        self.native = False

    def render(self, adapter: Adapter) -> Messages:
        opening = adapter.opening(self.signature, self.values, demos=self.demos, native=self.native)
        return opening.then(*self.tail)

    def request(self, messages: Messages | None = None) -> Request:
        if messages is None:
            messages = self.render(self.asker.adapter)
        if self.native:
            tools = self.offered.declarations
        else:
            tools = NO_TOOLS
        return self.asker.request(
            self.signature, messages, tools=tools, secrets=self.toolbox.secrets
        )

    def ask(self, request: Request) -> Answering:
        """Ask the model; returns the fields of its answer, and the response."""
        check = None
        if self.predict.is_validated:
            check = self.check_answer
        return ask_model(
            self.asker,
            self.signature,
            request,
            self.render,
            read=self.read,
            reader=self.reader,
            check=check,
        )

    def read(self, adapter: Adapter, response: Response) -> dict[str, Any]:
        """Parse the fields of an answer."""
        fields = self._read(adapter, response)
        calls = fields.get(self.calls_in)
        if calls:
            fields = {**fields, self.calls_in: self._as_offered(calls, response)}
        elif self.adapted.plan.outputs and not has_answer(response):
            raise _only_thoughts(adapter, response, self.signature)
        return fields

    def searched_tools(self) -> Sequence[Any]:
        """The tools whose calls the adapter looks for in the text, besides the form's own place.

        None natively: the driver has looked for them.
        """
        if self.native or not self.asker.reads_other_forms:
            return ()
        return self.offered.declarations

    def _as_offered(self, calls: Any, response: Response) -> Any:
        """The calls under the names of their tools, and with the confidence in them."""
        if isinstance(calls, ToolCalls):
            offered = self._as_offered(calls.tool_calls, response)
            return calls.model_copy(update={"tool_calls": list(offered)})
        calls = under_offered_names(calls, self.offered)
        if response.tool_calls:  # a wire says how sure structured calls are
            return calls
        return with_confidence(calls, response.tokens)

    def check_answer(
        self, adapter: Adapter, fields: dict[str, Any], response: Response
    ) -> Generator[Act, Any, dict[str, Any]]:
        """Validate the outputs of an answer without calls."""
        if fields.get(self.calls_in) or not self.predict.is_validated:
            return fields
        outputs = self.outputs(fields, response, with_calls=False)
        return (yield from self.predict.check_answer(self.values, adapter, outputs, response))

    def reader(self, adapter: Adapter) -> FieldReader:
        """Make the reader that splits a streamed answer into fields."""
        if not self.native:
            return adapter.reader(self.signature)
        outputs = tuple(self.signature.plan.outputs)
        read = partial(self._read, adapter)
        if not adapter.writes_as_native_text(self.signature):
            return FormReader(read, adapter.reader(self.signature), outputs)
        may_call = partial(holds_calls, self.offered.declarations)
        return NativeReader(read, may_call, text_output(self.signature), outputs)

    def _read(self, adapter: Adapter, response: Response) -> dict[str, Any]:
        raise NotImplementedError

    def outputs(
        self, fields: dict[str, Any], response: Response, *, with_calls: bool
    ) -> dict[str, Any]:
        return add_native_outputs(
            self.predict.signature, fields, self.native_outputs, response, is_partial=with_calls
        )

    def flow(self, /) -> Generator[Act, Any, Prediction]:
        raise NotImplementedError


class _OneAnswer(_WithTools):
    """One answer, whose calls are not run: they are an output, or returned with the prediction."""

    def __init__(self, predict: Asks, *, native: bool, **parts: Any) -> None:
        super().__init__(predict, native=native, **parts)
        if not native:
            self.go_on_in_text()

    def go_on_in_text(self) -> None:
        """See `_WithTools`."""
        super().go_on_in_text()
        if len(self.predict.toolbox):  # tools that inputs declare are rendered as inputs
            self.signature = _may_call(self.signature, self.predict.toolbox)

    def flow(self, /) -> Generator[Act, Any, Prediction]:
        request = self.request()
        fields, response = yield from self.ask(request)
        output = fields.get(self.calls_in)
        calls = output.tool_calls if output else ()
        outputs = self.outputs(fields, response, with_calls=bool(output))
        messages = request.messages.then(response.message())
        step = Step(response.text or "").with_provider_part(response)
        steps: list[Step] = []
        if step.has_provider_part:
            steps.append(step)
            yield Tell(events.StepFinished(0, step))
        return self.predict.make_prediction(
            outputs, messages=messages, calls=calls, trajectory=Trajectory(steps)
        )

    def _read(self, adapter: Adapter, response: Response) -> dict[str, Any]:
        return adapter.read(
            self.signature, response, lenient=self.native, tools=self.searched_tools()
        )


class _Turns(_WithTools):
    """Turns: the model's calls are run and their results shown to it, until it answers."""

    def __init__(
        self,
        predict: Asks,
        *,
        native: bool,
        all_tools: Toolbox,
        module: Any,
        max_turns: int,
        by_finish: bool = False,
        **parts: Any,
    ) -> None:
        super().__init__(predict, native=native, **parts)
        self.by_finish = by_finish
        """Whether the outputs are the arguments of a tool, `finish`, which the toolbox has."""
        if by_finish:
            self.signature = asking_for_finish(self.adapted)
        self.module = module
        self.shelf = self.predict.toolbox.shelf
        self.max_turns = self.turns_left = max_turns
        self.turn = 0
        """The number of the next turn."""
        describe = describe_new_tools
        if self.predict.code is not None:
            self.code = Snippets(self.predict.code, self.asker.conditions)
            describe = self.code.describe
        self.host = Host(
            self,
            self.asker.conditions,
            concurrent=self.predict.toolbox.concurrent,
            describe=describe,
            keeps_whole=self.predict.toolbox.spill_over is not None,
        )
        self.live = after_turns(
            self.predict.toolbox, self.host, self.asker.conditions, predict.choices, all_tools
        )
        self.trajectory = Trajectory()
        if not native:
            self.go_on_in_text()

    def go_on_in_text(self) -> None:
        """See `_WithTools`.

        Earlier turns are rendered as text, in the form in which the model must write calls.
        """
        super().go_on_in_text()
        if self.by_finish:
            self.by_finish = False
            self.signature = self.adapted
            self.toolbox = Toolbox([tool for tool in self.toolbox if not is_builtin(tool)])
        self.signature = _may_call_first(self.signature, self.offered)
        self.tail = []
        for turn, step in enumerate(self.trajectory.steps):
            if not step.calls:  # a message to the run, or the answer before it
                self.tail.append(self._message_of(step, turn))
                continue
            calls = [{"name": call.name, "args": call.args} for call in step.calls]
            answer = self.asker.adapter.answer_content(self.signature, {_CALLS: calls})
            self.tail += [Message("assistant", answer), self._observation(step.results, turn)]

    def context(self, view: ModuleView) -> ModuleContext:
        """See `dynamic.Owner`."""
        history = History(messages=after_system(self.render(self.asker.adapter)))
        return ModuleContext(view, self.trajectory, dict(self.values), history)

    def check(self, tools: Sequence[Tool]) -> None:
        """See `dynamic.Owner`."""
        if self.by_finish and any(tool.name == "finish" for tool in tools):
            raise DuplicateToolError(
                "A tool cannot be called `finish`: the outputs of this program are the arguments "
                "of a tool of that name. Give yours another: Tool(function, name=...)."
            )

    def render(self, adapter: Adapter) -> Messages:
        """See `_WithTools`. Another adapter writes how the outputs would look in its form."""
        if not self.by_finish:
            return super().render(adapter)
        signature = self.signature
        if adapter is not self.asker.adapter:
            signature = self.adapted
        opening = adapter.opening(
            signature, self.values, demos=self.demos, native=True, whole=self.adapted
        )
        return opening.then(*self.tail)

    def reader(self, adapter: Adapter) -> FieldReader:
        """See `_WithTools`."""
        if not self.by_finish:
            return super().reader(adapter)
        read = partial(self._read, adapter)
        may_call = partial(holds_calls, self.offered.declarations)
        outputs = tuple(self.adapted.plan.outputs)
        return NativeReader(read, may_call, "", outputs, last_call="finish")

    def flow(self, /) -> Generator[Act, Any, Prediction]:
        """See `_WithTools`."""
        try:
            return (yield from self._turns())
        finally:
            if self.code is not None:
                self.code.close()

    def _turns(self) -> Generator[Act, Any, Prediction]:
        if self.live is not None:
            note = yield from self.live.begin()
            self._add_to_instructions(note)
        request = self.request()
        calls: tuple[ToolCall, ...] = ()
        while not (yield from has_no_turn_left(self.asker.conditions, self.turns_left)):
            request = yield from self._listen(request)
            turn = self.turn
            fields, response = yield from self.ask(request)
            self.turn, self.turns_left = turn + 1, self.turns_left - 1
            calls = _identified(fields.pop(_CALLS, ()), turn)
            if not calls:
                outputs = self.outputs(fields, response, with_calls=False)
                messages = request.messages.then(self._answer(response, outputs))
                yield from self._note_provider_part(turn, response)
                following = yield from self._listen_after(request, messages)
                if following is None:
                    return self._prediction(messages, outputs)
                request = following
                continue
            finishes: tuple[ToolCall, ...] = ()
            if self.by_finish:
                finishes, calls = split_finish(calls)
            if not self.predict.auto_execute_tools:
                return self._unexecuted(request, fields, response, calls)

            thought = response.text or ""
            used: tuple[list[ToolResult], str] = yield from self._use(calls, thought)
            results, news = used
            answer_fields: dict[str, Any] | None = None
            if finishes:
                verdict: _Verdict = yield from self._finish(finishes, calls, results, response)
                refusal, answer_fields = verdict
                if answer_fields is None:
                    calls = (*calls, *finishes)
                    results += [replace(refusal, call_id=call.id) for call in finishes]
            step = Step(thought if self.native else "", calls, tuple(results))
            step = step.with_provider_part(response)
            self.trajectory = self.trajectory.then(step)
            yield Tell(events.StepFinished(turn, step))
            if answer_fields is not None:
                answer = replace(response.message(), tool_calls=calls)
                outputs = self.outputs(answer_fields, response, with_calls=False)
                messages = request.messages.then(
                    answer,
                    *map(tool_message, self._shown(results)),
                    self._answer(response, outputs),
                )
                following = yield from self._listen_after(request, messages)
                if following is None:
                    return self._prediction(messages, outputs)
                request = following
                continue
            if self.live is not None:
                live_news = yield from self.live.refresh(step)
                news = "\n".join(part for part in (news, live_news) if part)

            new_messages = self._messages(response, results, turn, news)
            self.tail += new_messages
            messages = request.messages.then(*new_messages)
            request = request.following(messages)
            if news:
                # The declarations change. In text mode, the system message stays the same: a later
                # message describes the change.
                request = self.request(messages).continuing(request)
        raise MaxTurnsReachedError(self.max_turns, calls)

    def _unexecuted(
        self,
        request: Request,
        fields: Mapping[str, Any],
        response: Response,
        calls: tuple[ToolCall, ...],
    ) -> Prediction:
        """The prediction with calls that the caller executes."""
        answer = response.message()
        if self.native:
            answer = replace(answer, tool_calls=calls)  # without those of `finish`
        outputs = {name: fields.get(name) for name in self.predict.signature.plan.outputs}
        return self.predict.make_prediction(
            outputs,
            trajectory=self.trajectory,
            messages=request.messages.then(answer),
            calls=calls,
        )

    # -- messages to the run

    def _listen(self, request: Request) -> Generator[Act, Any, Request]:
        """The next request, with the messages that came."""
        if not self.asker.conditions.listens:
            return request
        said: Sequence[events.Said] = (yield Listen()) or ()
        return (yield from self._with_messages(request, said))

    def _listen_after(
        self, request: Request, messages: Messages
    ) -> Generator[Act, Any, Request | None]:
        """The next request, after the answer to `request`, if a message came; otherwise None.

        `messages` end with that answer.
        """
        said: Sequence[events.Said] = ()
        if self.asker.conditions.listens:
            said = (yield Listen(ends=True)) or ()
        if not said:
            return None
        self.tail += messages[len(request.messages) :]
        last = self.trajectory.steps[-1:]
        # With a part of the provider's tools, the answer is a step already.
        if not last or last[0].calls or not last[0].has_provider_part:
            step = Step(content_text(messages[-1].content))
            self.trajectory = self.trajectory.then(step)
            yield Tell(events.StepFinished(self.turn - 1, step))
        return (yield from self._with_messages(request.following(messages), said))

    def _with_messages(
        self, request: Request, said: Sequence[events.Said]
    ) -> Generator[Act, Any, Request]:
        for message in said:
            self.turns_left = self.max_turns  # the person who speaks may ask for more
            step = Step(said=message.text)
            self.trajectory = self.trajectory.then(step)
            yield Tell(message)
            self.tail.append(self._message_of(step, len(self.trajectory.steps) - 1))
            request = request.following(request.messages.then(self.tail[-1]))
        return request

    def _message_of(self, step: Step, number: int) -> Message:
        """A step without calls as a message: one to the run, or an answer of the model."""
        if not step.said:
            return Message("assistant", step.thought)
        if self.native:
            return Message("user", step.said)
        return self.asker.adapter.step_message({f"user_message_{number}": step.said})

    def _note_provider_part(self, turn: int, response: Response) -> Generator[Act, Any, None]:
        """Add a step for an answer without calls, if the provider's own tools had a part in it."""
        step = Step(response.text or "").with_provider_part(response)
        if step.has_provider_part:
            self.trajectory = self.trajectory.then(step)
            yield Tell(events.StepFinished(turn, step))

    def _use(
        self, calls: Sequence[ToolCall], thought: str
    ) -> Generator[Act, Any, tuple[list[ToolResult], str]]:
        """The results of the calls, and the changes that they made to the tools, in words."""
        if self.code is not None:
            results = yield from self.code.use(calls, self.host, thought=thought)
            return results, self.code.take_news()
        results = yield from use_tools(
            self.toolbox, calls, self.host, self.asker.conditions, thought=thought
        )
        if not has_changes(results):
            return results, ""
        return self.host.apply(results)

    def _add_to_instructions(self, note: str) -> None:
        # The flow begins twice if the model refuses tools: it then has the note already.
        instructions = self.signature.instructions
        if note and note not in instructions:
            self.signature = self.signature.with_instructions(f"{instructions}\n\n{note}")

    def _answer(self, response: Response, outputs: dict[str, Any]) -> Message:
        """The message with these outputs, which `response` holds."""
        if not self.by_finish:
            return response.message()
        # As text: no provider accepts a call of `finish` without a result.
        content = self.asker.adapter.answer_content(self.adapted, outputs, native=True)
        return Message("assistant", content)

    def _prediction(self, messages: Messages, outputs: dict[str, Any]) -> Prediction:
        return self.predict.make_prediction(outputs, trajectory=self.trajectory, messages=messages)

    def _finish(
        self,
        finishes: Sequence[ToolCall],
        others: Sequence[ToolCall],
        results: Sequence[ToolResult],
        response: Response,
    ) -> Generator[Act, Any, _Verdict]:
        """Judge `finish`, given the other calls of its answer and their results.

        The result is that of each `finish`.
        """
        adapter = self.asker.adapter
        refusal = why_void(finishes, others, results)
        if not refusal:
            alone = replace(response, text=None, tool_calls=(finishes[0],))
            try:
                fields = self.read(adapter, alone)
                fields = yield from self.check_answer(adapter, fields, alone)
            except AdapterParseError as error:
                refusal = str(ToolArgumentsError("finish", error.problems))
            else:
                return ToolResult("finish", "Completed."), fields
        refused = ToolResult("finish", refusal, is_error=True, is_fault=True)
        if self.asker.conditions.is_observed:
            for call in finishes:
                yield Tell(events.CallRefused(call, replace(refused, call_id=call.id)))
        return refused, None

    def _read_finish(self, adapter: Adapter, response: Response) -> dict[str, Any]:
        """Parse the outputs in the arguments of `finish`, or calls besides it (as `_CALLS`).

        Text that has the form of an adapter is accepted, too.
        """
        calls = under_offered_names(response.tool_calls, self.offered)
        finishes, others = split_finish(calls)
        if others:
            return {_CALLS: calls}
        problems: Sequence[tuple[str, str]]
        if finishes:
            void = why_void(finishes, (), ())
            outputs, problems = outputs_in(finishes[0], self.adapted.plan)
            if void:
                problems = [("", void)]
            if not problems:
                return outputs
        elif has_answer(response):
            try:
                return read_text_answer(adapter, self.adapted, response)
            except AdapterParseError as error:
                if response.finish_reason == "length" or error.parsed:
                    raise
                problems = [("", text_is_not_read(self.adapted))]
        else:
            raise _only_thoughts(adapter, response, self.signature)
        text = response.text or ""
        raise AdapterParseError(
            type(adapter).__name__, text, problems, code="invalid_outputs", signature=self.adapted
        )

    def _read(self, adapter: Adapter, response: Response) -> dict[str, Any]:
        """Parse the outputs, or the calls (as `_CALLS`)."""
        if self.by_finish:
            return self._read_finish(adapter, response)
        if response.tool_calls:
            return {**self._beside_calls(adapter, response), _CALLS: response.tool_calls}
        if self.native:
            return read_text_answer(adapter, self.signature, response)
        return self._read_text(adapter, response)

    def _read_text(self, adapter: Adapter, response: Response) -> dict[str, Any]:
        try:
            fields = adapter.read(self.signature, response, tools=self.searched_tools())
        except AdapterParseError as error:
            invalid = _invalid_call(error)
            if invalid is not None:
                return {_CALLS: (invalid,)}
            fields = error.parsed
            if not fields.get(_CALLS) and not fields.keys() >= self.adapted.plan.outputs.keys():
                raise
        calls = fields.pop(_CALLS, None)
        if not calls:
            return fields
        return {**self._beside_calls(adapter, response), _CALLS: tuple(calls.tool_calls)}

    def _beside_calls(self, adapter: Adapter, response: Response) -> dict[str, Any]:
        """Outputs in the text beside calls that are returned unexecuted.

        Empty if the calls run, because the model then answers again.
        """
        if self.predict.auto_execute_tools or not response.text:
            return {}
        try:
            return adapter.read(self.signature, replace(response, tool_calls=()))
        except AdapterParseError as error:
            return error.parsed

    def _messages(
        self, response: Response, results: Sequence[ToolResult], turn: int, news: str
    ) -> list[Message]:
        """The messages that show a turn in the next request."""
        if self.native:
            return [response.message(), *map(tool_message, self._shown(results))]
        answer = replace(response.message(), tool_calls=())
        return [answer, self._observation(results, turn, news)]

    def _shown(self, results: Sequence[ToolResult]) -> list[ToolResult]:
        spill_over = self.predict.toolbox.spill_over
        if spill_over is None or self.code is not None:  # code bounds what it prints
            return list(results)
        return [shown_to_model(result, spill_over, spill_over) for result in results]

    def _observation(self, results: Sequence[ToolResult], turn: int, news: str = "") -> Message:
        """The results of a turn in text."""
        fields: dict[str, Any] = {}
        results = self._shown(results)
        if len(results) == 1:
            fields[f"observation_{turn}"] = results[0].content
        else:
            fields[f"observations_{turn}"] = [
                {"name": result.name, "result": result.content} for result in results
            ]
        if news:
            fields[f"tools_{turn}"] = news
        return self.asker.adapter.step_message(fields)


_CALLS = "tool_calls"


def _identified(calls: Sequence[ToolCall], turn: int) -> tuple[ToolCall, ...]:
    """The calls of a turn; those without an id get one that is unique in the conversation."""
    return tuple(
        call if call.id else call.with_id(f"call_{turn}_{index}")
        for index, call in enumerate(calls)
    )


def _only_thoughts(
    adapter: Adapter, response: Response, signature: type[Signature]
) -> AdapterParseError:
    """The error for an answer whose outputs are all optional, and which has only thoughts."""
    problem = "there is nothing outside your thoughts: call a tool, or write the outputs"
    return AdapterParseError(
        type(adapter).__name__,
        response.text or "",
        [("", problem)],
        code="missing_required_outputs",
        signature=signature,
    )


def _invalid_call(error: AdapterParseError) -> ToolCall | None:
    """The invalid call that made an answer unreadable: its fault becomes its result."""
    cause = error.__cause__
    if not isinstance(cause, ToolCallError) or cause.index is None:
        return None
    fault = CallFault(cause.code, str(cause), str(cause.raw), cause.index)
    return ToolCall(name=cause.tool or "", fault=fault)


def _may_call(signature: type[Signature], toolbox: Toolbox) -> type[Signature]:
    """The signature for one answer in text: it lists the tools in its instructions."""
    return toolbox.cached_value(
        (_may_call, signature),
        lambda: _instructed(signature, answer_or_call_instructions(signature, toolbox)),
    )


@lru_cache(maxsize=256)
def _instructed(signature: type[Signature], instructions: str) -> type[Signature]:
    return signature.with_instructions(instructions)


def _may_call_first(signature: type[Signature], toolbox: Toolbox) -> type[Signature]:
    """The signature for turns in text.

    It has an output for the calls, and lists the tools in its instructions.
    """
    return toolbox.cached_value(
        (_may_call_first, signature),
        lambda: _calls_first(signature, call_first_instructions(signature, toolbox)),
    )


@lru_cache(maxsize=256)
def _calls_first(signature: type[Signature], instructions: str) -> type[Signature]:
    field = declare("output", "Calls to make before you answer; empty when you can answer.")
    return signature.prepend(_CALLS, field, ToolCalls | None).with_instructions(instructions)
