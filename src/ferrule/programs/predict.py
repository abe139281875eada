"""`Predict` and `ChainOfThought`: inputs to outputs by asking a model, with tools if there are any.  (Floor 5.)"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ferrule.errors import AdapterParseError, ConfigurationError, MaxTurnsReached
from ferrule.programs.ask import Asker, ask, asker
from ferrule.programs.instructions import tools_instructions
from ferrule.programs.module import Module
from ferrule.programs.use import use
from ferrule.tools.toolbox import Toolbox
from ferrule.values import event as events
from ferrule.values.act import Act, Flow, Tell
from ferrule.values.call import ToolCall, ToolCalls, ToolResult
from ferrule.values.exchange import NO_TOOLS, Response
from ferrule.values.message import Message, Messages, tool_message
from ferrule.values.outcome import Prediction, Step, Trajectory
from ferrule.values.record import replace
from ferrule.values.signature import OutputField, Signature, as_signature

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from ferrule.adapters.adapter import Adapter
    from ferrule.tools.tool import Tool

_OWN = ("lm", "config", "demos", "max_turns")


class Predict(Module):
    """Ask for the outputs of a signature. With tools, the model may call them first, for at most `max_turns` turns.

    `auto_execute_tools=False` hands the first calls back unexecuted, as `prediction.tool_calls`, the outputs None. `native` chooses between
    structured calls and calls in the text; None goes by what the model can. Further keywords are sampling settings (`temperature=0`).
    A call takes `lm=`, `config=`, `demos=` and `max_turns=` beside the inputs, unless an input has that name.
    Raises `AdapterParseError` when the answer cannot be read, `MaxTurnsReached` when the turns run out.
    """

    is_predictor = True

    def __init__(
        self,
        signature: type[Signature] | str,
        *,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        auto_execute_tools: bool = True,
        max_turns: int = 10,
        demos: Sequence[Any] = (),
        native: bool | None = None,
        **config: Any,
    ) -> None:
        self.signature = as_signature(signature)
        self.auto_execute_tools = auto_execute_tools
        self.max_turns = _at_least_one("max_turns", max_turns)
        self.demos = list(demos)
        self.native = native
        self.lm = config.pop("lm", None)
        self.config = config
        self.toolbox = Toolbox(tools)

    @property
    def tools(self) -> dict[str, Tool]:
        """The tools by name."""
        return {tool.name: tool for tool in self.toolbox}

    def flow(self, /, **inputs: Any) -> Flow:
        """See the class."""
        own, inputs = split(self.signature, inputs, _OWN)
        values = self.signature.check_inputs(inputs)
        how = asker(self.lm, self.config, own)
        demos = own.get("demos", self.demos)
        if len(self.toolbox):
            turns = _at_least_one("max_turns", own.get("max_turns", self.max_turns))
            return (yield from _Turns(self, how, values, demos).flow(turns))

        def render(adapter: Adapter) -> Messages:
            return adapter.opening(self.signature, values, demos=demos)

        messages = render(how.adapter)
        outputs, response = yield from ask(how, self.signature, how.request(self.signature, messages), render)
        return Prediction.of(outputs, messages=messages.then(response.message()))

    def __repr__(self) -> str:
        return f"{self.name}({self.signature.signature!r})"


class ChainOfThought(Module):
    """`Predict` that reasons first: one more output, `reasoning`, before the others."""

    def __init__(self, signature: type[Signature] | str, **keywords: Any) -> None:
        self.signature = as_signature(signature)
        reasoned = self.signature.prepend("reasoning", OutputField(desc="What leads to the answer, step by step."), str)
        self.predict = Predict(reasoned, **keywords)

    @property
    def tools(self) -> dict[str, Tool]:
        """The tools by name."""
        return self.predict.tools

    def flow(self, /, **inputs: Any) -> Flow:
        """See the class."""
        return (yield from self.predict.flow(**inputs))


def split(signature: type[Signature], inputs: Mapping[str, Any], own: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A call's keywords: those that are the program's own, and the inputs. An input field wins over a keyword of its name."""
    mine = {name for name in own if name in inputs and name not in signature.input_fields}
    if not mine:
        return {}, dict(inputs)
    return {name: inputs[name] for name in mine}, {name: value for name, value in inputs.items() if name not in mine}


def _at_least_one(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  users pass anything
        msg = f"`{name}` must be a whole number of at least 1, found {value!r}."
        raise ConfigurationError(msg)
    return value


class _Turns:
    """One run of `Predict` with tools: the conversation so far and how to go on with it."""

    def __init__(self, predict: Predict, how: Asker, values: dict[str, Any], demos: Sequence[Any]) -> None:
        self.predict = predict
        self.how = how
        self.values = values
        self.demos = demos
        self.native = how.capabilities.native_tools if predict.native is None else predict.native
        self.signature = predict.signature if self.native else _with_calls(predict.signature, predict.toolbox)
        self.tail: list[Message] = []

    def render(self, adapter: Adapter) -> Messages:
        return adapter.opening(self.signature, self.values, demos=self.demos).then(*self.tail)

    def flow(self, /, max_turns: int) -> Generator[Act, Any, Prediction]:
        predict, how = self.predict, self.how
        messages = self.render(how.adapter)
        request = how.request(self.signature, messages, tools=predict.toolbox.declarations if self.native else NO_TOOLS)
        trajectory = Trajectory()
        calls: tuple[ToolCall, ...] = ()
        for turn in range(max_turns):
            fields, response = yield from ask(how, self.signature, request, self.render, read=self._read)
            calls = tuple(call if call.id else call.with_id(f"call_{turn}_{k}") for k, call in enumerate(fields.pop(_CALLS, ())))
            if not calls:
                messages = request.messages.then(response.message())
                return Prediction.of(fields, trajectory=trajectory, messages=messages)
            if not predict.auto_execute_tools:
                return Prediction.of(dict.fromkeys(predict.signature.output_fields), trajectory=trajectory, messages=messages, calls=calls)
            results: list[ToolResult] = yield from use(predict.toolbox, calls)
            step = Step(response.text or "" if self.native else "", calls, tuple(results))
            trajectory = trajectory.then(step)
            yield Tell(events.StepFinished(turn, step))
            new = self._shown(response, results, turn)
            self.tail += new
            request = request.following(request.messages.then(*new))
        raise MaxTurnsReached(max_turns, calls)

    def _read(self, adapter: Adapter, response: Response) -> dict[str, Any]:
        """The outputs, or the calls under `_CALLS`."""
        if response.tool_calls:
            return {_CALLS: response.tool_calls}
        if self.native:
            return adapter.read(self.signature, response, lenient=True)
        try:
            fields = adapter.read(self.signature, response)
        except AdapterParseError as error:
            fields = error.parsed
            if not fields.get(_CALLS) and any(name != _CALLS for name, _ in error.problems):
                raise
        calls = fields.pop(_CALLS, None)
        return {_CALLS: tuple(calls.tool_calls)} if calls else fields

    def _shown(self, response: Response, results: Sequence[ToolResult], turn: int) -> list[Message]:
        """A turn as the model sees it in the next one."""
        if self.native:
            return [response.message(), *map(tool_message, results)]
        names = (
            (f"observation_{turn}", results[0].content)
            if len(results) == 1
            else (f"observations_{turn}", [{"name": result.name, "result": result.content} for result in results])
        )
        return [replace(response.message(), tool_calls=()), self.how.adapter.step_message(dict([names]))]


_CALLS = "tool_calls"


@lru_cache(maxsize=256)
def _with_calls(signature: type[Signature], toolbox: Toolbox) -> type[Signature]:
    """The signature for a model without native calls: one more output that holds calls, and the tools in the instructions."""
    described = OutputField(desc="Calls to make before you answer; empty when you can answer.")
    return signature.prepend(_CALLS, described, ToolCalls).with_instructions(tools_instructions(signature, toolbox))
