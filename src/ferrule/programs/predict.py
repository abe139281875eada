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
from ferrule.programs.asking.ask import Asker, ask, asker
from ferrule.programs.asking.native_or_text import calls_natively, refuses_tools, with_memory
from ferrule.programs.asking.native_types import adapted, completed
from ferrule.programs.asking.options import at_least_one, listed_demos, split
from ferrule.programs.instructions import listed_tools, tools_instructions
from ferrule.programs.module import Module
from ferrule.programs.tool_use.dynamic import Host, ModuleContext, ModuleView, changes
from ferrule.programs.tool_use.inputs import declared
from ferrule.programs.tool_use.use import use
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
    """Ask for the outputs of a signature. With tools, the model may call them first, for at most `max_turns` turns.

    `auto_execute_tools=False` hands the first calls back unexecuted, as `prediction.tool_calls`, the outputs None. `native` chooses between
    structured calls and calls in the text; None goes by what the model can. Further keywords are sampling settings (`temperature=0`).
    A call takes `lm=`, `config=`, `demos=` and `max_turns=` beside the inputs, unless an input has that name; `config` also holds
    `tool_choice` and `parallel_tool_calls`.

    Inputs of the type `Tool` or `list[Tool]` declare tools as well, behind the program's own. With an output of the type `ToolCalls` the
    model is asked once, and the calls it makes are that output: they are run by nobody. `native=None` then goes by the adapter, and by what
    the model can. See docs/tool-calls.md.
    Raises `ConfigurationError` for a keyword that holds a key (`api_key`): it is the model's, `LM(..., api_key=...)`, and would be saved.
    A run raises `AdapterParseError` when the answer cannot be read, `MaxTurnsReachedError` when the turns run out, `ToolCallError` for what
    declares no tool.
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
        self.max_turns = at_least_one("max_turns", max_turns)
        self.demos = listed_demos(demos, ConfigurationError)
        self.native = native
        self.lm = config.pop("lm", None)
        if config:
            from ferrule.models.providers import check_saved  # late: most programs have no settings of their own

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
        """The flow of a program, `module`, that this predictor does the work of: the one that a `@module_callback` is shown."""
        own, inputs = split(self.signature, inputs, _OWN)
        given, toolbox = declared(self.signature, inputs, self.toolbox)
        values = self.signature.check_inputs(given)
        how = with_memory((yield from asker(self.lm, self.config, own)), self.native)
        demos = listed_demos(own.get("demos", self.demos), InputError)
        if calls_output(self.signature) is not None or (len(toolbox) and not len(self.toolbox)):
            # Where nothing is run, the adapter has a say as well: see docs/tool-calls.md.
            wanted = False if self.native is None and how.adapter.use_native_function_calling is False else self.native
            return (yield from _either_way(how, wanted, partial(_Once, self, how, values, demos, toolbox)))
        if len(toolbox):
            turns = at_least_one("max_turns", own.get("max_turns", self.max_turns))
            return (
                yield from _either_way(how, self.native, partial(_Turns, self, how, values, demos, toolbox, module=module, max_turns=turns))
            )

        signature, how, taken = adapted(self.signature, how)

        def render(adapter: Adapter) -> Messages:
            return adapter.opening(signature, values, demos=demos)

        messages = render(how.adapter)
        outputs, response = yield from ask(how, signature, how.request(signature, messages), render)
        if taken:
            outputs = completed(self.signature, outputs, taken, response)
        return Prediction.of(outputs, messages=messages.then(response.message()))

    def __repr__(self) -> str:
        return f"{self.name}({self.signature.signature!r})"


class ChainOfThought(Module):
    """`Predict` that reasons first: one more output, `reasoning`, before the others.

    A signature that has an output of that name is used as it is. Raises `SignatureError` for one that has such an input.
    """

    def __init__(self, signature: type[Signature] | str, **keywords: Any) -> None:
        self.signature = as_signature(signature)
        self.predict = Predict(self._reasoned(self.signature), **keywords)

    @staticmethod
    def _reasoned(signature: type[Signature]) -> type[Signature]:
        """The signature with the output it reasons in."""
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


def _either_way(how: Asker, wanted: bool | None, make: Callable[..., _WithTools]) -> Generator[Act, Any, Prediction]:
    """Native calls or calls in text, as is wanted; where nothing is, and a model that said it could refuses tools, text, once."""
    native = calls_natively(how, wanted)
    asked = make(native=native)
    try:
        return (yield from asked.flow())
    except BadRequestError as error:
        if not native or wanted is not None or asked.tail or not refuses_tools(how, error):
            raise
    return (yield from make(native=False).flow())


class _WithTools:
    """One run of `Predict` with tools, in one of the two ways."""

    def __init__(
        self, predict: Predict, how: Asker, values: dict[str, Any], demos: Sequence[Any], toolbox: Toolbox, *, native: bool
    ) -> None:
        self.predict = predict
        self.toolbox = toolbox
        self.values = values
        self.demos = demos
        self.native = native
        self.asked, self.how, self.taken = adapted(predict.signature, how)
        self.signature = self.asked
        self.tail: list[Message] = []
        """What was said since the opening."""

    def render(self, adapter: Adapter) -> Messages:
        return adapter.opening(self.signature, self.values, demos=self.demos, native=self.native).then(*self.tail)

    def request(self) -> Request:
        return self.how.request(self.signature, self.render(self.how.adapter), tools=self.toolbox.declarations if self.native else NO_TOOLS)

    def outputs(self, fields: dict[str, Any], response: Response, *, with_calls: bool) -> dict[str, Any]:
        """All outputs: those that were read, and those that their own type reads from the answer (D31)."""
        return completed(self.predict.signature, fields, self.taken, response, is_partial=with_calls) if self.taken else fields

    def flow(self, /) -> Generator[Act, Any, Prediction]:
        raise NotImplementedError


class _Once(_WithTools):
    """One question: the calls of the answer are an output, or nobody's."""

    def __init__(self, *args: Any, native: bool) -> None:
        super().__init__(*args, native=native)
        if not native and len(self.predict.toolbox):  # those of the inputs are told as inputs
            self.signature = _with_listed(self.signature, self.predict.toolbox)

    def flow(self, /) -> Generator[Act, Any, Prediction]:
        request = self.request()
        fields, response = yield from ask(self.how, self.signature, request, self.render, read=self._read)
        calls = fields.get(calls_output(self.signature) or "")
        outputs = self.outputs(fields, response, with_calls=bool(calls))
        return Prediction.of(outputs, messages=request.messages.then(response.message()), calls=calls.tool_calls if calls else ())

    def _read(self, adapter: Adapter, response: Response) -> dict[str, Any]:
        return adapter.read(self.signature, response, lenient=self.native, tools=self.toolbox.declarations)


class _Turns(_WithTools):
    """Turn after turn: the calls are run, and their results shown, until there is an answer."""

    def __init__(self, *args: Any, native: bool, module: Any, max_turns: int) -> None:
        super().__init__(*args, native=native)
        self.module = module
        self.shelf = self.predict.toolbox.shelf
        self.max_turns = max_turns
        self.host = Host(self, self.how.conditions)
        self.live: LiveTools | None = None
        if self.predict.toolbox.servers or self.predict.toolbox.has_remote:
            from ferrule.programs.tool_use.live import live_tools  # late: most programs have no tools of servers

            self.live = live_tools(self.predict.toolbox, self.host, is_resumed=self.how.conditions.is_resumed)
        self.trajectory = Trajectory()
        if not native:
            self.signature = _with_calls(self.signature, self.toolbox)

    def context(self, view: ModuleView) -> ModuleContext:
        """See `dynamic.Owner`."""
        said = [message for message in self.render(self.how.adapter) if message.role != "system"]
        return ModuleContext(view, self.trajectory, dict(self.values), History(messages=said))

    def check(self, tools: Sequence[Tool]) -> None:
        """See `dynamic.Owner`."""

    def flow(self, /) -> Generator[Act, Any, Prediction]:
        predict, how, max_turns = self.predict, self.how, self.max_turns
        request = self.request()
        messages = request.messages
        calls: tuple[ToolCall, ...] = ()
        for turn in range(max_turns):
            fields, response = yield from ask(how, self.signature, request, self.render, read=self._read)
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
            results: list[ToolResult] = yield from use(self.toolbox, calls, self.host, self.how.conditions, thought=response.text or "")
            news = ""
            if changes(results):
                results, news = self.host.applied(results)
            step = Step(response.text or "" if self.native else "", calls, tuple(results))
            self.trajectory = self.trajectory.then(step)
            yield Tell(events.StepFinished(turn, step))
            if self.live is not None:
                news = "\n".join(filter(None, (news, (yield from self.live.news()))))
            new = self._shown(response, results, turn, news)
            self.tail += new
            messages = request.messages.then(*new)
            request = self._with_other_tools(messages) if news else request.following(messages)
        raise MaxTurnsReachedError(max_turns, calls)

    def _with_other_tools(self, messages: Messages) -> Request:
        """The next request after a change of tools. In text its system message stays as it was: the news of the tools came after it."""
        if self.native:
            return self.how.request(self.signature, messages, tools=self.toolbox.declarations)
        return self.how.request(self.signature, messages)

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
            if isinstance(bad, ToolCallError) and bad.index is not None:  # the model is told of it as of any other fault
                return {_CALLS: (ToolCall(name=bad.tool or "", fault=CallFault(bad.code, str(bad), str(bad.raw), bad.index)),)}
            fields = error.parsed
            if not fields.get(_CALLS) and not fields.keys() >= self.asked.output_fields.keys():
                raise
        calls = fields.pop(_CALLS, None)
        return {_CALLS: tuple(calls.tool_calls)} if calls else fields

    def _shown(self, response: Response, results: Sequence[ToolResult], turn: int, news: str) -> list[Message]:
        """A turn as the model sees it in the next one."""
        if self.native:
            return [response.message(), *map(tool_message, results)]
        names = (
            (f"observation_{turn}", results[0].content)
            if len(results) == 1
            else (f"observations_{turn}", [{"name": result.name, "result": result.content} for result in results])
        )
        fields = dict([names, *([(f"tools_{turn}", news)] if news else [])])
        return [replace(response.message(), tool_calls=()), self.how.adapter.step_message(fields)]


_CALLS = "tool_calls"


@lru_cache(maxsize=256)
def _with_listed(signature: type[Signature], toolbox: Toolbox) -> type[Signature]:
    return signature.with_instructions(listed_tools(signature, toolbox))


@lru_cache(maxsize=256)
def _with_calls(signature: type[Signature], toolbox: Toolbox) -> type[Signature]:
    """The signature for a model without native calls: one more output that holds calls, and the tools in the instructions."""
    described = OutputField(desc="Calls to make before you answer; empty when you can answer.")
    return signature.prepend(_CALLS, described, ToolCalls | None).with_instructions(tools_instructions(signature, toolbox))
