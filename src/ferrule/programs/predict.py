"""`Predict` and `ChainOfThought`: ask a model for outputs, given the inputs; with tools, if there are any."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ferrule.adapters.fields import calls_output
from ferrule.concurrency import offload
from ferrule.errors import ConfigurationError, InputError, SignatureError
from ferrule.programs.asking.ask import (
    as_native,
    ask_model,
    check_positive,
    choose_calls,
    list_demos,
    make_asker,
    rejected,
    split_inputs,
    validated,
)
from ferrule.programs.asking.native_outputs import adapt_to_model, add_native_outputs
from ferrule.programs.calling import give_name
from ferrule.programs.module import Module
from ferrule.tools.toolbox import Toolbox
from ferrule.values.outcome import Prediction
from ferrule.values.signatures.compiled import InvalidOutputsError
from ferrule.values.signatures.fields import declare
from ferrule.values.signatures.signature import Signature, as_signature
from ferrule.values.typed import D, P, S

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from ferrule.acts import Act, Flow
    from ferrule.adapters.adapter import Adapter
    from ferrule.programs.asking.validators import OutputValidator
    from ferrule.tools.tool import Tool
    from ferrule.tools.toolbox import ToolServer
    from ferrule.values.conversation.exchange import Calls, Response
    from ferrule.values.conversation.message import Messages

Validator = TypeVar("Validator", bound="Callable[..., object]")
_OWN = ("lm", "config", "demos", "max_turns")
_REASONING = "What leads to the answer, step by step."
OPTIONS = (
    "auto_execute_tools", "calls", "compact", "config", "demos", "enable_user_clarification", "intention", "limits", "lm", "max_iters",
    "max_turns", "name", "native", "parallel", "policy", "require_confirmation", "signature", "stop_at_tools", "tools",
)  # fmt: skip
"""The options of all programs here. If a program lacks one of them, it is still an option, not a setting of the model."""


class Predict(Module[S, D, P]):
    """Ask a model for the outputs of a signature. With tools, the model may call them first, for at most `max_turns` turns.

    A call takes `lm=`, `config=`, `demos=`, `max_turns=` and `deps=` besides the inputs, unless an
    input has that name. `config` also holds `tool_choice` and `parallel_tool_calls`.

    Inputs of the type `Tool` or `list[Tool]` declare tools, too, after the program's own. With an
    output of the type `ToolCalls`, the model is asked once, and its calls become that output
    without being run. With `calls=None`, the adapter then has the first choice. See
    docs/how-to/tools/tool-calls.md.

    Args:
        signature: The inputs and outputs: a class, or text such as `"question -> answer: int"`.
        tools: Functions, tools, `program.as_tool()`, MCP servers, or a `Toolbox`.
        auto_execute_tools: False returns the first calls unexecuted in `prediction.tool_calls`;
        outputs missing in the answer are None. max_turns: The maximum number of turns with tool
        calls. demos: Examples of inputs and outputs for the prompt. native: True is
        `calls="native"`, False is `calls="prompted"`. calls: How the model calls tools: `"native"`,
        `"prompted"` or `"constrained"`, as for `ReAct`. lm: The model; by default the one in the
        settings. name: The program's name in events, traces and stored runs, and as a tool. config:
        Settings of the model, such as `temperature=0`; and `n=3` for three answers
        (`prediction.completions`), without tools.

    Raises:
        ConfigurationError: A keyword holds a secret (`api_key`). Pass it to the model, `LM(...,
        api_key=...)`: a program is saved. AdapterParseError: In a run, when the answer cannot be
        parsed. MaxTurnsReachedError: In a run, when the turns run out. ToolCallError: In a run, for
        an input that declares no tool.

    """

    is_predictor = True
    outputs_of: type[Signature] | None = None
    """The signature of `prediction.outputs`, if it is not the predictor's own."""

    def __init__(
        self,
        signature: Callable[P, S] | Signature | str,
        *,
        tools: Iterable[Tool | Callable[..., Any] | ToolServer] = (),
        auto_execute_tools: bool = True,
        max_turns: int = 10,
        demos: Sequence[Any] | None = None,
        native: bool | None = None,
        calls: Calls | None = None,
        lm: Any = None,
        name: str | None = None,
        **config: Any,
    ) -> None:
        self.signature = as_signature(signature)
        give_name(self, name)
        self.auto_execute_tools = auto_execute_tools
        self.max_turns = check_positive("max_turns", max_turns)
        self.demos = list_demos(demos, ConfigurationError)
        self.calls: Calls | None = choose_calls(calls, native)
        self.lm = lm
        if config:
            from ferrule.models.setting_names import check_saved, check_spelling

            check_saved(config)
            check_spelling(config.keys() - {"n"}, OPTIONS)
            if config.get("n") is not None:
                check_positive("n", config["n"])
            if not isinstance(config.get("store"), bool | None):
                msg = "`store` is a provider's setting here, True or False. A store of runs belongs to a call: `program.start(store=...)`."
                raise ConfigurationError(msg)
        self.config = config
        self.toolbox = Toolbox.of(tools)
        self.output_validators: list[OutputValidator] = []

    @property
    def native(self) -> bool | None:
        """Whether tools are declared to the model: True unless `calls` is `"prompted"`, None if the model's capabilities decide."""
        return as_native(self.calls)

    @native.setter
    def native(self, native: bool | None) -> None:
        self.calls = choose_calls(None, native)

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools by name. Read-only: give a program its tools when you make it."""
        return MappingProxyType({tool.name: tool for tool in self.toolbox})

    @property
    def is_validated(self) -> bool:
        """Whether validators check the outputs: the program's own, or those of the signature's class."""
        return bool(self.output_validators) or self.signature.__validated_by__ is not None

    def output_validator(self, function: Validator) -> Validator:
        """Check the outputs of each run: `@program.output_validator`.

        The function takes one object with the inputs and outputs as attributes. It raises
        `ToolRetry("what to change")` to let the model try again; otherwise it returns None or that
        object. A replay calls it again, so it should depend on nothing else, unless it takes a
        `Context` or is async: then its verdict is recorded. Raises `ConfigurationError` for a
        function that takes other arguments.
        """
        from ferrule.programs.asking.validators import as_validator  # late: few programs have one

        self.output_validators.append(as_validator(function))
        return function

    def validate(self, inputs: Mapping[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
        """The outputs after validation; raises `InvalidOutputsError` with the validators' objections.

        Validators whose verdict is recorded run later: see `judged`.
        """
        outputs = self.signature.validate_outputs(inputs, outputs)
        for each in self.output_validators:
            if (
                not each.is_recorded
                and (verdict := offload.run_blocking(each.judge(self.signature, inputs, outputs)))
                is not None
            ):
                raise InvalidOutputsError([("", verdict)])
        return outputs

    def judged(
        self,
        inputs: Mapping[str, Any],
        answers: Sequence[Mapping[str, Any]],
    ) -> Generator[Act, Any, Sequence[str | None]]:
        """For each answer, the objection of the validators whose verdict is recorded; None if they accept it."""
        validators = [each for each in self.output_validators if each.is_recorded]
        if not validators:
            return [None] * len(answers)
        from ferrule.programs.asking.validators import judge_answers

        return (yield from judge_answers(validators, self.signature, inputs, answers))

    def check_answer(
        self, inputs: Mapping[str, Any], adapter: Adapter, outputs: dict[str, Any], response: Response,
    ) -> Generator[Act, Any, None]:  # fmt: skip
        """Raise `AdapterParseError` with the objection of a validator whose verdict is recorded; for `ask_model`."""
        [verdict] = yield from self.judged(inputs, [outputs])
        if verdict is not None:
            raise rejected(adapter, response, outputs, [("", verdict)])

    def tool_users(self) -> Sequence[Predict]:
        """Only this predictor."""
        return (self,)

    def flow(self, /, **inputs: Any) -> Flow:
        """See the class."""
        return self.flow_for(self, inputs)

    def flow_for(self, module: Any, inputs: Mapping[str, Any]) -> Flow:
        """The flow of this predictor on behalf of the program `module`, which a `@module_callback` sees."""
        own, values, toolbox = yield from split_inputs(self.signature, inputs, _OWN, self.toolbox)
        returns_calls = calls_output(self.signature) is not None or (
            len(toolbox) and not len(self.toolbox)
        )
        is_plain = not returns_calls and not len(toolbox)
        asker = yield from make_asker(
            self.lm,
            self.config,
            own,
            calls=self.calls,
            may_ask_several=is_plain,
        )
        demos = list_demos(own.get("demos", self.demos), InputError)
        if returns_calls:
            from ferrule.programs.with_tools import (
                ask_once,
            )  # late: most predictors have no tools, and `ReAct` asks itself

            # No call is run, so the adapter may choose, too: see docs/how-to/tools/tool-calls.md.
            wanted = (
                False
                if self.native is None and asker.adapter.use_native_function_calling is False
                else self.native
            )
            return (yield from ask_once(self, asker, values, demos, toolbox, native=wanted))
        if len(toolbox):
            from ferrule.programs.with_tools import ask_in_turns

            turns = check_positive("max_turns", own.get("max_turns", self.max_turns))
            turning = ask_in_turns(
                self,
                asker,
                values,
                demos,
                toolbox,
                native=self.native,
                module=module,
                max_turns=turns,
            )
            return (yield from turning)

        signature, asker, native_outputs = adapt_to_model(self.signature, asker)

        def render(adapter: Adapter) -> Messages:
            return adapter.opening(signature, values, demos=demos)

        messages = render(asker.adapter)

        def read(adapter: Adapter, response: Response) -> dict[str, Any]:
            outputs = adapter.read(signature, response)
            whole = (
                add_native_outputs(self.signature, outputs, native_outputs, response)
                if native_outputs
                else outputs
            )
            return validated(partial(self.validate, values), adapter, response, whole)

        request = asker.request(signature, messages)
        if asker.n > 1:
            from ferrule.programs.asking.several import (
                ask_several,
            )  # late: few programs ask for several answers

            (outputs, response), *rest = yield from ask_several(
                asker,
                signature,
                request,
                render,
                read,
                judged=partial(self.judged, values),
            )
            others = [
                self.make_prediction(each, messages=messages.then(other.message()))
                for each, other in rest
            ]
            return self.make_prediction(
                outputs,
                messages=messages.then(response.message()),
                others=others,
            )
        if self.is_validated:
            check = partial(self.check_answer, values)
            outputs, response = yield from ask_model(
                asker,
                signature,
                request,
                render,
                read=read,
                check=check,
            )
        else:
            outputs, response = yield from ask_model(asker, signature, request, render)
            outputs = (
                add_native_outputs(self.signature, outputs, native_outputs, response)
                if native_outputs
                else outputs
            )
        return self.make_prediction(outputs, messages=messages.then(response.message()))

    def make_prediction(self, outputs: Mapping[str, Any], **more: Any) -> Prediction[S]:
        """Make a prediction of this signature; for the program's own use."""
        return Prediction.of(outputs, signature=self.outputs_of or self.signature, **more)

    def __repr__(self) -> str:
        tools = repr(self.toolbox).removeprefix("Toolbox(")
        return f"{self.name}({self.signature.signature!r}{f', tools={tools}' if tools != '[])' else ')'}"


class ChainOfThought(Module[S, D, P]):
    """A `Predict` that lets the model reason first: it adds an output `reasoning` before the others, unless the signature has one.

    `reasoning_description` describes that output to the model. Raises `SignatureError` if an input
    is called `reasoning`.
    """

    def __init__(
        self,
        signature: Callable[P, S] | Signature | str,
        *,
        reasoning_description: str = _REASONING,
        lm: Any = None,
        name: str | None = None,
        **keywords: Any,
    ) -> None:
        found, self.reasoning_description = as_signature(signature), reasoning_description
        give_name(self, name)
        self.predict = Predict(
            self._with_reasoning(found, reasoning_description),
            lm=lm,
            **keywords,
        )
        self.predict.outputs_of = found

    @staticmethod
    def _with_reasoning(signature: type[Signature], description: str) -> type[Signature]:
        if "reasoning" in signature.plan.outputs:
            return signature
        if "reasoning" in signature.plan.inputs:
            msg = (
                f"`ChainOfThought` adds an output `reasoning`, and `{signature.__name__}` has an input of that name: "
                f"give the input another name, or use `Predict`."
            )
            raise SignatureError(msg)
        made = partial(signature.prepend, "reasoning", declare("output", description), str)
        return signature.kept((ChainOfThought, description), made)

    @property
    def signature(self) -> type[Signature]:
        """The inputs and outputs, without the added `reasoning`."""
        return cast("type[Signature]", self.predict.outputs_of)

    @signature.setter
    def signature(self, signature: type[Signature] | str) -> None:
        found = as_signature(signature)
        self.predict.signature = self._with_reasoning(found, self.reasoning_description)
        self.predict.outputs_of = found

    @property
    def lm(self) -> Any:
        """The model of the predictor inside."""
        return self.predict.lm

    @lm.setter
    def lm(self, lm: Any) -> None:
        self.predict.lm = lm

    @property
    def demos(self) -> list[Any]:
        """The examples of the predictor inside."""
        return self.predict.demos

    @demos.setter
    def demos(self, demos: list[Any]) -> None:
        self.predict.demos = demos

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools by name. Read-only."""
        return self.predict.tools

    def __repr__(self) -> str:
        shown = repr(self.predict).removeprefix(
            f"{self.predict.name}({self.predict.signature.signature!r}",
        )
        return f"{self.name}({self.signature.signature!r}{shown}"

    def output_validator(self, function: Validator) -> Validator:
        """Like `Predict.output_validator`."""
        return self.predict.output_validator(function)

    def tool_users(self) -> Sequence[Predict]:
        """The predictor inside, which asks the model."""
        return (self.predict,)

    def flow(self, /, **inputs: Any) -> Flow:
        """See the class."""
        if type(self.predict).flow is Predict.flow:
            return self.predict.flow_for(self, inputs)
        return self.predict.flow(**inputs)
