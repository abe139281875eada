"""`Predict` and `ChainOfThought`: inputs to outputs by asking a model, with tools if there are any."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from ferrule.adapters.render import calls_output
from ferrule.errors import (
    AdapterParseError,
    BadRequestError,
    ConfigurationError,
    InputError,
    MaxTurnsReachedError,
    SignatureError,
    ToolCallError,
)
from ferrule.programs.asking.ask import (
    Asker,
    adapt_to_model,
    add_native_outputs,
    ask_model,
    calls_natively,
    make_asker,
    refuses_tools,
)
from ferrule.programs.asking.keywords import check_positive, list_demos, split_inputs
from ferrule.programs.instructions import answer_or_call_instructions, call_first_instructions
from ferrule.programs.module import Module
from ferrule.programs.tool_use.dynamic import Host, ModuleContext, ModuleView
from ferrule.programs.tool_use.use import has_changes, use_tools
from ferrule.tools.toolbox import Toolbox
from ferrule.values.calls.call import CallFault, ToolCall, ToolCalls, ToolResult
from ferrule.values.conversation.exchange import NO_TOOLS, Response
from ferrule.values.conversation.history import History
from ferrule.values.conversation.message import Message, Messages, tool_message
from ferrule.values.record import replace
from ferrule.values.run import event as events
from ferrule.values.run.act import Act, Flow, Tell
from ferrule.values.run.outcome import Prediction, Step, Trajectory
from ferrule.values.signatures.signature import OutputField, Signature, as_signature

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from ferrule.adapters.adapter import Adapter
    from ferrule.programs.tool_use.live import LiveTools
    from ferrule.tools.tool import Tool
    from ferrule.tools.toolbox import ToolServer
    from ferrule.values.conversation.exchange import Request

_OWN = ("lm", "config", "demos", "max_turns")


class Predict(Module):
    """Ask a model for the outputs of a signature. With tools, the model may call them first, for at most `max_turns` turns.

    With `auto_execute_tools=False`, the first calls are returned unexecuted in `prediction.tool_calls`, and the outputs are None. `native`
    chooses between native calls and calls in text; None leaves it to the model's capabilities. Other keywords are sampling settings
    (`temperature=0`). A call takes `lm=`, `config=`, `demos=` and `max_turns=` besides the inputs, unless an input has that name; `config`
    also holds `tool_choice` and `parallel_tool_calls`.

    Inputs of the type `Tool` or `list[Tool]` declare tools too, after the program's own. With an output of the type `ToolCalls` the model
    is asked once, and its calls are that output; they are not run. `native=None` then leaves the choice to the adapter first. See
    docs/tool-calls.md.

    Raises:
        ConfigurationError: A keyword holds a key (`api_key`). It belongs to the model, `LM(..., api_key=...)`; here it would be saved.
        AdapterParseError: In a run, when the answer cannot be parsed.
        MaxTurnsReachedError: In a run, when the turns run out.
        ToolCallError: In a run, for an input that declares no tool.

    """

    is_predictor = True

    def __init__(
        self,
        signature: type[Signature] | str,
        *,
        tools: Iterable[Tool | Callable[..., Any] | ToolServer] = (),
        auto_execute_tools: bool = True,
        max_turns: int = 10,
        demos: Sequence[Any] | None = None,
        native: bool | None = None,
        **config: Any,
    ) -> None:
        self.signature = as_signature(signature)
        self.auto_execute_tools = auto_execute_tools
        self.max_turns = check_positive("max_turns", max_turns)
        self.demos = list_demos(demos, ConfigurationError)
        self.native = native
        self.lm = config.pop("lm", None)
        if config:
            from ferrule.models.providers import check_saved  # late: few programs have settings of their own

            check_saved(config)
        self.config = config
        self.toolbox = Toolbox.of(tools)

    @property
    def tools(self) -> dict[str, Tool]:
        """The tools by name."""
        return {tool.name: tool for tool in self.toolbox}

    def flow(self, /, **inputs: Any) -> Flow:
        """See the class."""
        return self.flow_for(self, inputs)

    def flow_for(self, module: Any, inputs: Mapping[str, Any]) -> Flow:
        """The flow of the program `module` that this predictor works for. A `@module_callback` sees that program."""
        own, given, toolbox = split_inputs(self.signature, inputs, _OWN, self.toolbox)
        values = self.signature.check_inputs(given)
        asker = yield from make_asker(self.lm, self.config, own, native=self.native)
        demos = list_demos(own.get("demos", self.demos), InputError)
        if calls_output(self.signature) is not None or (len(toolbox) and not len(self.toolbox)):
            # No call is run, so the adapter may choose too: see docs/tool-calls.md.
            wanted = False if self.native is None and asker.adapter.use_native_function_calling is False else self.native
            return (yield from _native_or_text(asker, wanted, partial(_OneAnswer, self, asker, values, demos, toolbox)))
        if len(toolbox):
            turns = check_positive("max_turns", own.get("max_turns", self.max_turns))
            make = partial(_Turns, self, asker, values, demos, toolbox, module=module, max_turns=turns)
            return (yield from _native_or_text(asker, self.native, make))

        signature, asker, native_outputs = adapt_to_model(self.signature, asker)

        def render(adapter: Adapter) -> Messages:
            return adapter.opening(signature, values, demos=demos)

        messages = render(asker.adapter)
        outputs, response = yield from ask_model(asker, signature, asker.request(signature, messages), render)
        if native_outputs:
            outputs = add_native_outputs(self.signature, outputs, native_outputs, response)
        return Prediction.of(outputs, messages=messages.then(response.message()))

    def __repr__(self) -> str:
        return f"{self.name}({self.signature.signature!r})"


class ChainOfThought(Module):
    """`Predict` that reasons first: it adds an output `reasoning` before the others, unless the signature has one.

    Raises `SignatureError` if an input is called `reasoning`.
    """

    def __init__(self, signature: type[Signature] | str, **keywords: Any) -> None:
        self.signature = as_signature(signature)
        self.predict = Predict(self._with_reasoning(self.signature), **keywords)

    @staticmethod
    def _with_reasoning(signature: type[Signature]) -> type[Signature]:
        if "reasoning" in signature.output_fields:
            return signature
        if "reasoning" in signature.input_fields:
            msg = (
                f"`ChainOfThought` adds an output `reasoning`, and `{signature.__name__}` has an input of that name: "
                f"give the input another name, or use `Predict`."
            )
            raise SignatureError(msg)
        return signature.prepend("reasoning", OutputField(desc="What leads to the answer, step by step."), str)

    @property
    def tools(self) -> dict[str, Tool]:
        """The tools by name."""
        return self.predict.tools

    def flow(self, /, **inputs: Any) -> Flow:
        """See the class."""
        if type(self.predict).flow is Predict.flow:
            return self.predict.flow_for(self, inputs)
        return self.predict.flow(**inputs)


def _native_or_text(asker: Asker, wanted: bool | None, make: Callable[..., _WithTools]) -> Generator[Act, Any, Prediction]:
    """Native calls or calls in text. If the program did not choose, a model that refuses native calls is asked once more in text."""
    native = calls_natively(asker, wanted)
    conversation = make(native=native)
    try:
        return (yield from conversation.flow())
    except BadRequestError as error:
        if not native or wanted is not None or conversation.tail or not refuses_tools(asker, error):
            raise
    return (yield from make(native=False).flow())


class _WithTools:
    """One run of `Predict` with tools, called natively or in text."""

    def __init__(
        self, predict: Predict, asker: Asker, values: dict[str, Any], demos: Sequence[Any], toolbox: Toolbox, *, native: bool
    ) -> None:
        self.predict = predict
        self.toolbox = toolbox
        self.values = values
        self.demos = demos
        self.native = native
        self.asked, self.asker, self.native_outputs = adapt_to_model(predict.signature, asker)
        self.signature = self.asked
        self.tail: list[Message] = []
        """The messages since the opening."""

    def render(self, adapter: Adapter) -> Messages:
        return adapter.opening(self.signature, self.values, demos=self.demos, native=self.native).then(*self.tail)

    def request(self, messages: Messages | None = None) -> Request:
        tools = self.toolbox.declarations if self.native else NO_TOOLS
        shown = self.render(self.asker.adapter) if messages is None else messages
        return self.asker.request(self.signature, shown, tools=tools)

    def outputs(self, fields: dict[str, Any], response: Response, *, with_calls: bool) -> dict[str, Any]:
        if not self.native_outputs:
            return fields
        return add_native_outputs(self.predict.signature, fields, self.native_outputs, response, is_partial=with_calls)

    def flow(self, /) -> Generator[Act, Any, Prediction]:
        raise NotImplementedError


class _OneAnswer(_WithTools):
    """One answer, whose calls are not run: they are an output, or returned with the prediction."""

    def __init__(self, *args: Any, native: bool) -> None:
        super().__init__(*args, native=native)
        if not native and len(self.predict.toolbox):  # tools of the inputs are rendered as inputs
            self.signature = _may_call(self.signature, self.predict.toolbox)

    def flow(self, /) -> Generator[Act, Any, Prediction]:
        request = self.request()
        fields, response = yield from ask_model(self.asker, self.signature, request, self.render, read=self._read)
        calls = fields.get(calls_output(self.signature) or "")
        outputs = self.outputs(fields, response, with_calls=bool(calls))
        return Prediction.of(outputs, messages=request.messages.then(response.message()), calls=calls.tool_calls if calls else ())

    def _read(self, adapter: Adapter, response: Response) -> dict[str, Any]:
        return adapter.read(self.signature, response, lenient=self.native, tools=self.toolbox.declarations)


class _Turns(_WithTools):
    """Turns: calls are run and their results shown, until the model answers."""

    def __init__(self, *args: Any, native: bool, module: Any, max_turns: int) -> None:
        super().__init__(*args, native=native)
        self.module = module
        self.shelf = self.predict.toolbox.shelf
        self.max_turns = max_turns
        self.host = Host(self, self.asker.conditions)
        self.live: LiveTools | None = None
        if self.predict.toolbox.servers or self.predict.toolbox.has_remote:
            from ferrule.programs.tool_use.live import LiveTools  # late: most programs have no tools of servers

            self.live = LiveTools.of(self.predict.toolbox, self.host, self.asker.conditions)
        self.trajectory = Trajectory()
        if not native:
            self.signature = _may_call_first(self.signature, self.toolbox)

    def context(self, view: ModuleView) -> ModuleContext:
        said = [message for message in self.render(self.asker.adapter) if message.role != "system"]
        return ModuleContext(view, self.trajectory, dict(self.values), History(messages=said))

    def check(self, tools: Sequence[Tool]) -> None:
        """See `dynamic.Owner`."""

    def flow(self, /) -> Generator[Act, Any, Prediction]:
        predict, asker, max_turns = self.predict, self.asker, self.max_turns
        request = self.request()
        messages = request.messages
        calls: tuple[ToolCall, ...] = ()
        for turn in range(max_turns):
            fields, response = yield from ask_model(asker, self.signature, request, self.render, read=self._read)
            calls = tuple(call if call.id else call.with_id(f"call_{turn}_{k}") for k, call in enumerate(fields.pop(_CALLS, ())))
            if not calls:
                messages = request.messages.then(response.message())
                outputs = self.outputs(fields, response, with_calls=False)
                return Prediction.of(outputs, trajectory=self.trajectory, messages=messages)
            if not predict.auto_execute_tools:
                said = response.message()
                messages = request.messages.then(replace(said, tool_calls=calls) if self.native else said)
                nothing = dict.fromkeys(predict.signature.output_fields)
                return Prediction.of(nothing, trajectory=self.trajectory, messages=messages, calls=calls)
            results: list[ToolResult] = yield from use_tools(self.toolbox, calls, self.host, asker.conditions, thought=response.text or "")
            news = ""
            if has_changes(results):
                results, news = self.host.apply(results)
            step = Step(response.text or "" if self.native else "", calls, tuple(results))
            self.trajectory = self.trajectory.then(step)
            yield Tell(events.StepFinished(turn, step))
            if self.live is not None:
                news = "\n".join(filter(None, (news, (yield from self.live.refresh()))))
            new = self._messages(response, results, turn, news)
            self.tail += new
            messages = request.messages.then(*new)
            # In text the system message stays the same after a change of tools: a later message has the news.
            request = self.request(messages) if news else request.following(messages)
        raise MaxTurnsReachedError(max_turns, calls)

    def _read(self, adapter: Adapter, response: Response) -> dict[str, Any]:
        """The outputs, or the calls under `_CALLS`."""
        if response.tool_calls:
            return {_CALLS: response.tool_calls}
        if self.native:
            return adapter.read(self.signature, response, lenient=True)
        try:
            fields = adapter.read(self.signature, response, tools=self.toolbox.declarations)
        except AdapterParseError as error:
            bad = error.__cause__
            if isinstance(bad, ToolCallError) and bad.index is not None:  # the fault becomes the result of that call
                return {_CALLS: (ToolCall(name=bad.tool or "", fault=CallFault(bad.code, str(bad), str(bad.raw), bad.index)),)}
            fields = error.parsed
            if not fields.get(_CALLS) and not fields.keys() >= self.asked.output_fields.keys():
                raise
        calls = fields.pop(_CALLS, None)
        return {_CALLS: tuple(calls.tool_calls)} if calls else fields

    def _messages(self, response: Response, results: Sequence[ToolResult], turn: int, news: str) -> list[Message]:
        """A turn as the model sees it in the next request."""
        if self.native:
            return [response.message(), *map(tool_message, results)]
        names = (
            (f"observation_{turn}", results[0].content)
            if len(results) == 1
            else (f"observations_{turn}", [{"name": result.name, "result": result.content} for result in results])
        )
        fields = dict([names, *([(f"tools_{turn}", news)] if news else [])])
        return [replace(response.message(), tool_calls=()), self.asker.adapter.step_message(fields)]


_CALLS = "tool_calls"


@lru_cache(maxsize=256)
def _may_call(signature: type[Signature], toolbox: Toolbox) -> type[Signature]:
    return signature.with_instructions(answer_or_call_instructions(signature, toolbox))


@lru_cache(maxsize=256)
def _may_call_first(signature: type[Signature], toolbox: Toolbox) -> type[Signature]:
    """The signature for calls in text: with an output for the calls, and the tools in the instructions."""
    field = OutputField(desc="Calls to make before you answer; empty when you can answer.")
    return signature.prepend(_CALLS, field, ToolCalls | None).with_instructions(call_first_instructions(signature, toolbox))
