"""`Predict` and `ChainOfThought`: ask a model for outputs, given the inputs.

With tools, the model may call them before it answers.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, cast

from ferrule import events
from ferrule.acts import Tell
from ferrule.adapters.fields import calls_output
from ferrule.errors import (
    BadRequestError,
    ConfigurationError,
    InputError,
    SignatureError,
    check_flag,
)
from ferrule.models.setting_names import check_saved, check_spelling, check_values
from ferrule.programs.asking.ask import ask_model, ask_several, rejected
from ferrule.programs.asking.asker import (
    calls_natively,
    check_calls,
    check_inputs_of_call,
    check_positive,
    declares_tools,
    list_demos,
    make_asker,
    split_inputs,
)
from ferrule.programs.asking.native import adapt_to_model, add_native_outputs
from ferrule.programs.asking.output_form import enforcing
from ferrule.programs.asking.refusals import refuses_format
from ferrule.programs.asking.validators import Judged, as_validator, judge_answers
from ferrule.programs.calling import give_name
from ferrule.programs.code_mode.interpreter import CodeMode, code_mode
from ferrule.programs.code_mode.snippets import check_tools_of_code
from ferrule.programs.module import Module
from ferrule.programs.tool_use.chosen import Choices, check_choices, choose_for_run
from ferrule.programs.with_tools import ask_in_turns, ask_once
from ferrule.tools.toolbox import Toolbox
from ferrule.values.outcome import Prediction, Step, Trajectory
from ferrule.values.signatures.compiled import InvalidOutputsError
from ferrule.values.signatures.fields import declare
from ferrule.values.signatures.signature import Signature, as_signature
from ferrule.values.typed import D, P, S

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from ferrule.acts import Act, Flow
    from ferrule.adapters.adapter import Adapter
    from ferrule.programs.asking.asker import Asker
    from ferrule.programs.asking.native import NativeOutputs
    from ferrule.programs.asking.validators import OutputValidator
    from ferrule.programs.tool_use.chosen import Each
    from ferrule.tools.tool import Tool
    from ferrule.tools.toolbox import ToolServer
    from ferrule.values.conversation.exchange import Calls, Response
    from ferrule.values.conversation.message import Messages
    from ferrule.values.provider_tools import ProviderTool

Validator = TypeVar("Validator", bound="Callable[..., object]")
_OPTIONS_OF_CALL = ("lm", "config", "demos", "max_turns")
_REASONING = "What leads to the answer, step by step."
OPTIONS = (
    "auto_execute_tools",
    "calls",
    "compact",
    "config",
    "demos",
    "enable_user_clarification",
    "instructions",
    "intention",
    "limits",
    "lm",
    "max_iters",
    "max_turns",
    "name",
    "native",
    "on_limit",
    "parallel",
    "policy",
    "reasoning_description",
    "require_confirmation",
    "signature",
    "stop_at_tools",
    "tools",
    "tools_each",
    "tools_for",
)
"""The options of all programs here.

If a program lacks one of them, it is still an option, not a setting of the model.
"""


class Predict(Module[S, D, P]):
    """Ask a model for the outputs of a signature.

    With tools, the model may call them first, for at most `max_turns` turns. A call takes `lm=`,
    `config=`, `demos=`, `max_turns=` and `deps=` besides the inputs, unless an input has that name.
    `config` also holds `tool_choice` and `parallel_tool_calls`.

    Inputs of the type `Tool` or `list[Tool]` declare tools, too, after the program's own. With an
    output of the type `ToolCalls`, the model is asked once, and its calls become that output
    without being run. With `calls=None`, the adapter then has the first choice. See
    docs/how-to/tools/tool-calls.md.

    Args:
        signature: The inputs and outputs: a class, or text such as `"question -> answer: int"`.
        tools: Functions, tools, `program.as_tool()`, MCP servers, or a `Toolbox`; and tools that
            the model's provider runs, such as `WebSearch()`.
        auto_execute_tools: False returns the first calls unexecuted in `prediction.tool_calls`;
            outputs missing in the answer are None.
        max_turns: The maximum number of turns with tool calls.
        demos: Examples of inputs and outputs for the prompt.
        calls: How the model calls tools: `"native"`, `"prompted"`, `"constrained"` or `"code"`, as
            for `ReAct`. `native=True` and `native=False` are other spellings of the first two.
        instructions: Further instructions for each run, as for `ReAct`; so are `tools_for` and
            `tools_each`.
        tools_for: The tools that a run offers.
        tools_each: How often they are chosen.
        lm: The model; by default the one in the settings.
        name: The program's name in events, traces and stored runs, and as a tool.
        config: Settings of the model, such as `temperature=0`; and `n=3` for three answers
            (`prediction.completions`), without tools.

    Raises:
        ConfigurationError: A keyword holds a secret (`api_key`). Pass it to the model,
            `LM(..., api_key=...)`: a program is saved.
        AdapterParseError: In a run, when the answer cannot be parsed.
        MaxTurnsReachedError: In a run, when the turns run out.
        ToolCallError: In a run, for an input that declares no tool.

    """

    is_predictor = True
    outputs_have_format = True
    """Whether typed outputs travel in the provider's format, where it enforces one."""
    outputs_of: type[Signature] | None = None
    """The signature of `prediction.outputs`, if it is not the predictor's own."""

    def __init__(
        self,
        signature: Callable[P, S] | Signature | str,
        *,
        tools: Iterable[Tool | Callable[..., Any] | ToolServer | ProviderTool] = (),
        auto_execute_tools: bool = True,
        max_turns: int = 10,
        demos: Sequence[Any] | None = None,
        calls: Calls | Literal["code"] | CodeMode | None = None,
        instructions: str | Callable[..., Any] | None = None,
        tools_for: Callable[..., Any] | None = None,
        tools_each: Each = "run",
        lm: Any = None,
        name: str | None = None,
        **config: Any,
    ) -> None:
        self.signature = as_signature(signature)
        give_name(self, name)
        check_flag("auto_execute_tools", auto_execute_tools)
        self.auto_execute_tools = auto_execute_tools
        self.max_turns = check_positive("max_turns", max_turns)
        self.demos = list_demos(demos, ConfigurationError)
        self.code: CodeMode | None = code_mode(calls)
        if self.code is not None:
            calls = None
        self.calls: Calls | None = check_calls(calls, config)
        self.lm = lm
        _check_config(config)
        self.config = config
        self.toolbox = Toolbox.of(tools)
        self.choices: Choices = check_choices(instructions, tools_for, tools_each)
        """What functions of the user choose in each run."""
        if self.code is not None:
            self._check_code()
        self.output_validators: list[OutputValidator] = []

    def _check_code(self) -> None:
        if not self.auto_execute_tools or calls_output(self.signature) is not None:
            raise ConfigurationError(
                "`calls='code'` runs the calls of the model's code, so it does not go with "
                "`auto_execute_tools=False` or an output of the type `ToolCalls`."
            )
        check_tools_of_code(self.toolbox)

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools by name. Read-only: give a program its tools when you make it."""
        return MappingProxyType({tool.name: tool for tool in self.toolbox})

    @property
    def program_signature(self) -> type[Signature]:
        """The signature of the program whose outputs these are: here, the predictor's own."""
        return self.signature

    @property
    def is_validated(self) -> bool:
        """Whether validators check the outputs: the program's, or those of the signature."""
        return bool(self.output_validators) or self.program_signature.__validated_by__ is not None

    def output_validator(self, function: Validator) -> Validator:
        """Check the outputs of each run: `@program.output_validator`.

        The function takes one object with the inputs and outputs as attributes. It raises
        `ToolRetry("what to change")` to let the model try again; otherwise it returns None or that
        object. Its verdict is recorded, so that a replay does not call it again. Raises
        `ConfigurationError` for a function that takes other arguments.
        """
        self.output_validators.append(as_validator(function))
        return function

    def judged(
        self, inputs: Mapping[str, Any], answers: Sequence[dict[str, Any]]
    ) -> Generator[Act, Any, list[Judged]]:
        """For each answer, its outputs after validation, or the objections of validators."""
        if not self.is_validated:
            return [(outputs, []) for outputs in answers]
        signature = self.program_signature
        return (yield from judge_answers(self.output_validators, signature, inputs, answers))

    def check_answer(
        self,
        inputs: Mapping[str, Any],
        adapter: Adapter,
        outputs: dict[str, Any],
        response: Response,
    ) -> Generator[Act, Any, dict[str, Any]]:
        """The outputs after validation, for `ask_model`.

        Raises `AdapterParseError` with the objections of validators.
        """
        [(accepted, problems)] = yield from self.judged(inputs, [outputs])
        if accepted is None:
            error = rejected(adapter, response, outputs, problems)
            raise error from InvalidOutputsError(problems)
        return accepted

    def check_inputs(self, inputs: Mapping[str, Any]) -> None:
        """See `Module.check_inputs`."""
        if type(self).flow is Predict.flow:  # a flow of a subclass may take other inputs
            check_inputs_of_call(self.signature, inputs, _OPTIONS_OF_CALL)

    @property
    def takes_messages(self) -> bool:
        """Whether it has tools, and calls them: see `Module.takes_messages`."""
        if not self.auto_execute_tools or calls_output(self.signature) is not None:
            return False
        has_provider_tools = bool(self.toolbox.provider_tools)
        return bool(self.toolbox.servers) or has_provider_tools or bool(len(self.toolbox))

    @property
    def why_not_batched(self) -> str:
        """See `Module.why_not_batched`."""
        if type(self).flow is not Predict.flow:
            return super().why_not_batched
        if self.takes_messages:
            return (
                "its tools lead to several requests, one after another, and a batch takes hours "
                "for each."
            )
        if (self.config.get("n") or 1) > 1:
            return "`n` asks for several answers. Give it each input several times instead."
        return ""

    def tool_users(self) -> Sequence[Predict]:
        """Only this predictor."""
        return (self,)

    def flow(self, /, **inputs: Any) -> Flow:
        """See the class."""
        return self.flow_for(self, inputs)

    def flow_for(self, module: Any, inputs: Mapping[str, Any]) -> Flow:
        """The flow of this predictor on behalf of a program, which a `@module_callback` sees."""
        options, values, toolbox = yield from split_inputs(
            self.signature, inputs, _OPTIONS_OF_CALL, self.toolbox
        )
        all_tools = toolbox
        text, toolbox = yield from choose_for_run(self.choices, all_tools)
        predictor = self
        if text:
            predictor = self._instructed(text)
        answering = predictor._flow_with(  # noqa: SLF001  a copy of this one
            options, values, all_tools, toolbox, module
        )
        return (yield from answering)

    def _instructed(self, text: str) -> Self:
        """A copy with further instructions, for one run."""
        instructed = copy(self)
        instructed.signature = self.signature.append_instructions(text)
        instructed.outputs_of = self.outputs_of or self.signature
        return instructed

    def _flow_with(
        self,
        options: dict[str, Any],
        values: dict[str, Any],
        all_tools: Toolbox,
        toolbox: Toolbox,
        module: Any,
    ) -> Flow:
        has_tools = bool(len(toolbox))
        # Without tools of its own, the program cannot know what calls of an input's tools are for.
        only_inputs_have_tools = has_tools and not len(self.toolbox)
        returns_calls = calls_output(self.signature) is not None or only_inputs_have_tools
        asker = yield from make_asker(
            self.lm,
            self.config,
            options,
            calls=self.calls,
            may_ask_several=not (returns_calls or has_tools or self.toolbox.provider_tools),
            provider_tools=self.toolbox.provider_tools_of_run(),
        )
        demos = list_demos(options.get("demos", self.demos), InputError)
        if returns_calls:
            native = declares_tools(self.calls)
            if native is None and asker.adapter.use_native_function_calling is False:
                # No call runs, so the adapter may choose: see docs/how-to/tools/tool-calls.md.
                native = False
            return (yield from ask_once(self, asker, values, demos, toolbox, native=native))
        native = declares_tools(self.calls)
        # The answer after a search is plain text, as after calls of the program's own tools.
        if has_tools or (asker.provider_tools and calls_natively(asker, native)):
            answering = ask_in_turns(
                self,
                asker,
                values,
                demos,
                toolbox,
                native=native,
                all_tools=all_tools,
                module=module,
                max_turns=check_positive("max_turns", options.get("max_turns", self.max_turns)),
            )
            return (yield from answering)
        return (yield from self._ask_without_tools(asker, values, demos))

    def _ask_without_tools(self, asker: Asker, values: Mapping[str, Any], demos: list[Any]) -> Flow:
        signature, asker, native_outputs = adapt_to_model(self.signature, asker)
        asking = partial(self._ask, signature, values, demos, native_outputs)
        enforcing_asker = None
        if self.outputs_have_format:
            enforcing_asker = enforcing(asker, signature)
        if enforcing_asker is not None:
            try:
                return (yield from asking(enforcing_asker))
            except BadRequestError as error:
                if not refuses_format(asker.lm, error):
                    raise
        return (yield from asking(asker))

    def _ask(
        self,
        signature: type[Signature],
        values: Mapping[str, Any],
        demos: list[Any],
        native_outputs: NativeOutputs,
        asker: Asker,
    ) -> Flow:
        def render(adapter: Adapter) -> Messages:
            return adapter.opening(signature, values, demos=demos)

        def read(adapter: Adapter, response: Response) -> dict[str, Any]:
            outputs = adapter.read(signature, response)
            return add_native_outputs(self.signature, outputs, native_outputs, response)

        messages = render(asker.adapter)
        request = asker.request(signature, messages)
        more: dict[str, Any] = {}
        if asker.n > 1:
            judge = partial(self.judged, values)
            answers = yield from ask_several(asker, signature, request, render, read, judge=judge)
            (outputs, response), *others = answers
            return self.make_prediction(
                outputs,
                messages=messages.then(response.message()),
                others=[
                    self.make_prediction(other, messages=messages.then(other_response.message()))
                    for other, other_response in others
                ],
            )
        if self.is_validated:
            check = partial(self.check_answer, values)
            asking = ask_model(asker, signature, request, render, read=read, check=check)
            outputs, response = yield from asking
        else:
            outputs, response = yield from ask_model(asker, signature, request, render)
            # A missing native output is not a reason to ask again: the model cannot write it.
            outputs = add_native_outputs(self.signature, outputs, native_outputs, response)
        step = Step(response.text or "").with_provider_part(response)
        if step.has_provider_part:
            more["trajectory"] = Trajectory([step])
            yield Tell(events.StepFinished(0, step))
        return self.make_prediction(outputs, messages=messages.then(response.message()), **more)

    def make_prediction(self, outputs: Mapping[str, Any], **more: Any) -> Prediction[S]:
        """Make a prediction of this signature; for the program's own use."""
        return Prediction.of(outputs, signature=self.outputs_of or self.signature, **more)

    def __repr__(self) -> str:
        return f"{self.name}({self.program_signature.signature!r}{_shown_tools(self)})"


def _check_config(config: Mapping[str, Any]) -> None:
    """Check the settings of the model that a program is made with."""
    if not config:
        return
    check_saved(config)
    check_spelling(config.keys() - {"n"}, OPTIONS)
    check_values(config)
    if config.get("n") is not None:
        check_positive("n", config["n"])
    if not isinstance(config.get("store"), bool | None):
        raise ConfigurationError(
            "`store` is a provider's setting here, True or False. A store of runs belongs to a "
            "call: `program.start(store=...)`."
        )


def _shown_tools(predictor: Predict[Any, Any, Any]) -> str:
    """The tools of a predictor, for its `repr`."""
    # Not its length, which connects to MCP servers.
    tools = repr(predictor.toolbox).removeprefix("Toolbox(").removesuffix(")")
    if tools == "[]":
        return ""
    return f", tools={tools}"


class ChainOfThought(Module[S, D, P]):
    """A `Predict` that lets the model reason first.

    It adds an output `reasoning` before the others, unless the signature has one.
    `reasoning_description` describes that output to the model; with None, it adds none. Raises
    `SignatureError` if an input is called `reasoning`.
    """

    predict_class: ClassVar[type[Predict[Any, Any, Any]]] = Predict
    """The class of the predictor inside."""

    def __init__(
        self,
        signature: Callable[P, S] | Signature | str,
        *,
        reasoning_description: str | None = _REASONING,
        lm: Any = None,
        name: str | None = None,
        **keywords: Any,
    ) -> None:
        signature = as_signature(signature)
        self.reasoning_description = reasoning_description
        give_name(self, name)
        reasoning = self._with_reasoning(signature, reasoning_description)
        self.predict = self.predict_class(reasoning, lm=lm, **keywords)
        self.predict.outputs_of = signature

    @staticmethod
    def _with_reasoning(signature: type[Signature], description: str | None) -> type[Signature]:
        if description is None or "reasoning" in signature.plan.outputs:
            return signature
        if "reasoning" in signature.plan.inputs:
            raise SignatureError(
                f"`ChainOfThought` adds an output `reasoning`, and `{signature.__name__}` has an "
                "input of that name: give the input another name, or use `Predict`."
            )
        field = declare("output", description)
        return signature.cached_value(
            (ChainOfThought, description), lambda: signature.prepend("reasoning", field, str)
        )

    @property
    def signature(self) -> type[Signature]:
        """The inputs and outputs, without the added `reasoning`."""
        return cast("type[Signature]", self.predict.outputs_of)

    @signature.setter
    def signature(self, signature: type[Signature] | str) -> None:
        signature = as_signature(signature)
        self.predict.signature = self._with_reasoning(signature, self.reasoning_description)
        self.predict.outputs_of = signature

    @property
    def why_not_batched(self) -> str:
        """See `Module.why_not_batched`."""
        if type(self).flow is not ChainOfThought.flow:
            return super().why_not_batched
        return self.predict.why_not_batched

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
        return f"{self.name}({self.signature.signature!r}{_shown_tools(self.predict)})"

    def check_inputs(self, inputs: Mapping[str, Any]) -> None:
        """See `Module.check_inputs`."""
        if type(self).flow is ChainOfThought.flow:
            self.predict.check_inputs(inputs)

    def output_validator(self, function: Validator) -> Validator:
        """Like `Predict.output_validator`."""
        return self.predict.output_validator(function)

    def tool_users(self) -> Sequence[Predict]:
        """The predictor inside, which asks the model."""
        return (self.predict,)

    def flow(self, /, **inputs: Any) -> Flow:
        """See the class."""
        # A `@module_callback` sees this program, unless the predictor has a flow of its own.
        if type(self.predict).flow is Predict.flow:
            return self.predict.flow_for(self, inputs)
        return self.predict.flow(**inputs)
