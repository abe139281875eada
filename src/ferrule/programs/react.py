"""`ReAct`: an agent that thinks, calls tools and reads their results, until it knows the outputs.

This module has only the class, which imports its parts when an agent is made, so that importing it
stays cheap. The loop: `react_loop/`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ferrule.errors import ConfigurationError, check_flag
from ferrule.programs.asking.asker import (
    DEFAULT_ADAPTER,
    check_calls,
    check_inputs_of_call,
    check_positive,
)
from ferrule.programs.calling import give_name
from ferrule.programs.code_mode.interpreter import CodeMode, code_mode
from ferrule.programs.module import Module
from ferrule.programs.predict import ChainOfThought, Predict
from ferrule.programs.react_loop.agent import (
    OPTIONS_OF_CALL,
    OnLimit,
    check_bounded_tools,
    check_code_mode,
    check_on_limit,
    check_policy_of_agent,
    check_signature,
    check_stops,
    check_tools,
    extracting,
    format_trajectory,
    make_extractor,
    tool_names,
)
from ferrule.programs.react_loop.loop import run_react
from ferrule.programs.react_loop.step import StepPredict, with_builtin
from ferrule.programs.tool_use.chosen import check_choices
from ferrule.runs.limits import Limits
from ferrule.settings import check_limits, check_policy, setting
from ferrule.values.conversation.compact import Compact
from ferrule.values.typed import D, P, S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ferrule.acts import Flow
    from ferrule.approval.policy import Policy
    from ferrule.programs.predict import Validator
    from ferrule.programs.tool_use.chosen import Each
    from ferrule.tools.tool import Tool
    from ferrule.tools.toolbox import Toolbox, ToolServer
    from ferrule.values.conversation.exchange import Calls
    from ferrule.values.outcome import Trajectory
    from ferrule.values.provider_tools import ProviderTool
    from ferrule.values.signatures.signature import Signature


class ReAct(Module[S, D, P]):
    """An agent: the model calls tools until it returns the outputs.

    `prediction.trajectory` has the steps. The tool `finish` is built in. If a tool fails, a call is
    invalid, or outputs passed to `finish` do not fit, the model sees the error as the result. At
    `max_iters`, or when outputs were refused `limits.same_error` times, the model must answer from
    the steps so far, and `prediction.reason` says why.

    A call takes `max_iters=`, `limits=`, `on_limit=`, `lm=`, `config=`, `demos=` and `deps=`
    besides the inputs.
    Agents given as tools use the same `lm`, unless they have their own.

    Args:
        signature: The inputs and outputs: a class, or text such as `"question -> answer: int"`.
        tools: Functions, tools, `program.as_tool()`, MCP servers, or a `Toolbox`; and tools that
            the model's provider runs, such as `WebSearch()`.
        max_iters: The maximum number of steps.
        calls: How the model calls tools: `"native"` by tool declarations, `"prompted"` in the text
            of its answer, `"constrained"` by declarations with the answer constrained to a valid
            call. None: the model's capabilities decide, constrained first. `native=True` and
            `native=False` are other spellings of the first two. `"code"`, or a `CodeMode` with its
            bounds: in Python that the model writes, with one tool, `run_code`.
        intention: Whether the model says why it makes each call: `call.intention`, which is not
            passed to the tool.
        limits: Limits of the agent and everything that it calls.
        on_limit: What happens at one of the limits. `"raise"`: `LimitReachedError`, which carries
            the run, so that it can continue with a larger limit. `"extract"`: one more model call
            answers from the steps so far, and `prediction.reason` names the limit.
        enable_user_clarification: Whether the model also has the tool `user_clarification`, which
            asks a person. The run then waits, and a plain call raises `ConfirmationRequired`.
        policy: Which calls run, which need a decision, and which are denied.
        parallel: False runs the calls of one step one at a time, in their order: for tools that
            share state.
        compact: When to leave out old messages: at a number of tokens, at a share of the context
            such as `0.8`, or a `Compact`.
        stop_at_tools: Tools, functions or names. When one of them has returned, the run ends after
            that step with its result as output.
        instructions: Further instructions for each run: a text, or a function of its `Context`,
            called once a run. See docs/how-to/agents/per-run.md.
        tools_for: A function of the `Context` that returns the names of the tools that a run
            offers.
        tools_each: How often it is called: once a `"run"`, or also after each `"step"`.
        demos: Examples of inputs and outputs for the prompt.
        lm: The model; by default the one in the settings.
        name: The agent's name in events, traces and stored runs, and as a tool.
        config: Settings of the model, such as `temperature=0`.

    Raises:
        ConfigurationError: An option is unknown or invalid, or a rule of the policy names a tool or
            an argument that the agent does not have.
        SignatureError: The signature is invalid, or has a field name that the agent reserves.
        ToolDefinitionError: One of `tools` cannot become a tool.
        LimitReachedError: In a run, at a limit, unless `on_limit="extract"`.
        TooManyFaultsError: In a run, after `limits.same_error` steps in a row in which all calls
            were faulty.

    """

    step_class: ClassVar[type[StepPredict[Any, Any, Any]]] = StepPredict
    """The class of `react`."""
    extractor_class: ClassVar[type[ChainOfThought[Any, Any, Any]]] = ChainOfThought
    """The class of `extract`."""

    def __init__(
        self,
        signature: Callable[P, S] | Signature | str,
        tools: Iterable[Tool | Callable[..., Any] | ToolServer | ProviderTool],
        max_iters: int = 20,
        *,
        calls: Calls | Literal["code"] | CodeMode | None = None,
        intention: bool = False,
        limits: Limits | None = None,
        on_limit: OnLimit = "raise",
        enable_user_clarification: bool = False,
        policy: Policy | None = None,
        parallel: bool = True,
        compact: Compact | float | None = None,
        stop_at_tools: Iterable[Tool | Callable[..., Any] | str] = (),
        instructions: str | Callable[..., Any] | None = None,
        tools_for: Callable[..., Any] | None = None,
        tools_each: Each = "run",
        demos: Sequence[Any] | None = None,
        lm: Any = None,
        name: str | None = None,
        **config: Any,
    ) -> None:
        signature = check_signature(signature)
        of_predict = config.keys() & {"max_turns", "auto_execute_tools"}
        if of_predict:
            raise ConfigurationError(
                f"`ReAct` has no option `{min(of_predict)}`: "
                "it runs the calls, and `max_iters` limits its steps."
            )
        give_name(self, name)
        self.max_iters = check_positive("max_iters", max_iters)
        self.code: CodeMode | None = code_mode(calls)
        if self.code is not None:
            calls = None
        self.calls: Calls | None = check_calls(calls, config)
        for name, flag in (
            ("intention", intention),
            ("parallel", parallel),
            ("enable_user_clarification", enable_user_clarification),
        ):
            check_flag(name, flag)
        self.intention = intention
        check_limits(limits)
        if limits is None:
            self.limits = Limits()
        else:
            self.limits = limits
        self.on_limit: OnLimit = check_on_limit(on_limit)
        check_policy(policy)
        self.policy = policy
        self.parallel = parallel
        self.compact: Compact | None = None
        if compact is not None:
            self.compact = Compact.of(compact)
        self.stop_at_tools = tool_names(stop_at_tools)
        # Signature and tools belong to the predictor, so that they are saved, loaded and changed in
        # one place.
        self.react = self.step_class(
            signature, tools=check_tools(tools, intention=intention), demos=demos, lm=lm, **config
        )
        self.react.asks_for_intention = intention
        self.react.choices = check_choices(instructions, tools_for, tools_each)
        self.enable_user_clarification = enable_user_clarification
        check_stops(self.stop_at_tools, self.react)
        check_bounded_tools(self.limits, self.react)
        if self.code is not None:
            check_code_mode(self)
        check_policy_of_agent(policy, self.react)
        self.extract = make_extractor(self.react, self.extractor_class)

    @property
    def signature(self) -> type[Signature]:
        """The inputs and outputs."""
        return self.react.program_signature

    @signature.setter
    def signature(self, signature: type[Signature] | str) -> None:
        signature = check_signature(signature)
        self.extract.signature = extracting(signature)
        self.react.signature = signature

    @property
    def enable_user_clarification(self) -> bool:
        """Whether the model has the tool `user_clarification`."""
        return self.react.has_clarification

    @enable_user_clarification.setter
    def enable_user_clarification(self, enable: bool) -> None:
        self.react.has_clarification = enable

    @property
    def lm(self) -> Any:
        """The model of the loop. Setting it sets the extractor's, too."""
        return self.react.lm

    @lm.setter
    def lm(self, lm: Any) -> None:
        self.set_lm(lm)

    @property
    def demos(self) -> list[Any]:
        """The examples in the prompt of the loop."""
        return self.react.demos

    @demos.setter
    def demos(self, demos: list[Any]) -> None:
        self.react.demos = demos

    @property
    def toolbox(self) -> Toolbox:
        """The tools, including the built-in ones, as `calls="prompted"` lists them."""
        return with_builtin(
            self.signature,
            self.react.toolbox,
            clarification=self.enable_user_clarification,
            native=False,
        )

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools by name, including the built-in ones. Read-only."""
        return MappingProxyType({tool.name: tool for tool in self.toolbox})

    def __repr__(self) -> str:
        return f"{self.name}{repr(self.react).removeprefix(self.react.name)}"

    def output_validator(self, function: Validator) -> Validator:
        """Like `Predict.output_validator`.

        The model sees the function's objection, and still has its tools.
        """
        return self.react.output_validator(function)

    def check_inputs(self, inputs: Mapping[str, Any]) -> None:
        """See `Module.check_inputs`."""
        if type(self).flow is ReAct.flow:  # a flow of a subclass may take other inputs
            check_inputs_of_call(self.signature, inputs, OPTIONS_OF_CALL)

    @property
    def takes_messages(self) -> bool:
        """True: see `Module.takes_messages`."""
        return True

    def tool_users(self) -> Sequence[Predict]:
        """The predictor of the loop; the extractor calls no tools."""
        return (self.react,)

    def flow(self, /, **inputs: Any) -> Flow:
        """See the class."""
        return run_react(self, inputs, self._format_trajectory)

    def truncate_trajectory(self, trajectory: Trajectory) -> Trajectory:
        """The part of a trajectory to show when it is too long for the model.

        By default, that is all but the oldest step. Override it to keep summaries.
        """
        return type(trajectory)(trajectory.steps[1:])

    def _format_trajectory(self, trajectory: Mapping[str, Any]) -> Any:
        """The trajectory as the extractor reads it: in the adapter's form, a field for each entry.

        The name is DSPy's. Override it to show the steps in another way.
        """
        return format_trajectory(trajectory, setting("adapter") or DEFAULT_ADAPTER)
