"""`ReAct`: think, call a tool, see what came of it, until the outputs are known.  (Floor 5.)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.errors import ConfigurationError, ContextOverflow, DuplicateToolError, SignatureError, TooManyFaults
from ferrule.programs.ask import Asker, asker
from ferrule.programs.instructions import CLARIFY, extract_instructions, finish_tool
from ferrule.programs.loop_modes import Mode, Turn, clipped, fault_result, native_mode, text_mode
from ferrule.programs.module import Module
from ferrule.programs.predict import ChainOfThought, Predict, split
from ferrule.programs.use import use
from ferrule.runs.limits import Limits
from ferrule.tools.toolbox import Toolbox
from ferrule.values import event as events
from ferrule.values.act import Act, Flow, Tell
from ferrule.values.call import ToolCall, ToolResult
from ferrule.values.history import History
from ferrule.values.outcome import Prediction, Step, Trajectory
from ferrule.values.record import replace
from ferrule.values.signature import InputField, Signature, as_signature

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from ferrule.tools.tool import Tool

_OWN = ("lm", "config", "max_iters")
_TRUNCATIONS = 3
_HUGE = 2_000
"""Characters from which an observation is worth shortening when the context overflows."""


class ReAct(Module):
    """An agent over tools. Returns the signature's outputs, typed, with `.trajectory` beside them.

    `finish` and `user_clarification` are built in (`enable_user_clarification=False` leaves the second out). `native=None` uses native
    tool calls where the model can, else the text protocol; both give the same prediction. A call takes `max_iters=`, `lm=` and `config=`
    beside the inputs. Tool failures and the model's slips become observations; `TooManyFaults` is raised after `limits.same_error` slips
    in a row. At `max_iters` an answer is extracted from what is there, and `prediction.reason` says so.
    """

    def __init__(
        self,
        signature: type[Signature] | str,
        tools: Iterable[Tool | Callable[..., Any]],
        max_iters: int = 20,
        *,
        native: bool | None = None,
        limits: Limits | None = None,
        enable_user_clarification: bool = True,
    ) -> None:
        self.signature = as_signature(signature)
        self.max_iters = _checked_iters(max_iters)
        self.native = native
        self.limits = limits or Limits()
        _refuse_reserved(self.signature)
        own = Toolbox(tools)
        _refuse_builtin_names(own)
        builtin = (CLARIFY,) if enable_user_clarification else ()
        self.toolbox = Toolbox((*own, *builtin, finish_tool(self.signature, with_outputs=False)))
        self.native_toolbox = Toolbox((*own, *builtin, finish_tool(self.signature, with_outputs=True)))
        self.react = Predict(self.signature)
        trajectory = InputField(desc="The steps taken: thoughts, calls, and what came of them.")
        extracting = self.signature.append("trajectory", trajectory, str).with_instructions(extract_instructions(self.signature))
        self.extract = ChainOfThought(extracting)

    @property
    def tools(self) -> dict[str, Tool]:
        """The tools by name, the built-in ones included."""
        return {tool.name: tool for tool in self.toolbox}

    def flow(self, **inputs: Any) -> Flow:
        """See the class."""
        own, inputs = split(self.signature, inputs, _OWN)
        values = self.signature.check_inputs(inputs)
        how = asker(self.react.lm, self.react.config, own)
        native = how.capabilities.native_tools if self.native is None else self.native
        toolbox = self.native_toolbox if native else self.toolbox
        mode = (native_mode if native else text_mode)(
            how, self.react.signature, values, self.react.demos, toolbox, self.limits.observation_chars
        )
        loop = _Loop(self, mode, toolbox)
        outputs, reason = yield from loop.flow(_checked_iters(own.get("max_iters", self.max_iters)))
        if outputs is None:
            outputs = yield from self._extracted(how, values, loop)
        messages = mode.request(()).messages if loop.request is None else loop.request.messages
        return Prediction.of(outputs, trajectory=loop.trajectory, messages=messages, reason=reason)

    def _extracted(self, how: Asker, values: Mapping[str, Any], loop: _Loop) -> Generator[Act, Any, dict[str, Any]]:
        """The outputs as the extractor reads them off the trajectory."""
        own = {} if self.extract.predict.lm is not None else {"lm": how.lm}
        rounds = 0
        while True:
            steps = (how.adapter.step_message(_entries(step, i)).text for i, step in enumerate(loop.shown))
            try:
                found = yield from self.extract.flow(**values, trajectory="\n\n".join(steps), **own)
            except ContextOverflow:
                rounds += 1
                if not loop.shorten(rounds):
                    raise
            else:
                return {name: found[name] for name in self.signature.output_fields}

    def truncate_trajectory(self, trajectory: Trajectory) -> Trajectory:
        """What to show of a trajectory that no longer fits the model's window: all but the oldest step. Override it to keep summaries."""
        return Trajectory(trajectory.steps[1:])


class _Loop:
    """One run of the loop: what is kept, and what of it is shown to the model."""

    def __init__(self, agent: ReAct, mode: Mode, toolbox: Toolbox) -> None:
        self.agent = agent
        self.mode = mode
        self.toolbox = toolbox
        self.trajectory = Trajectory()
        self.shown = self.trajectory.steps
        self.request: Any = None
        self.faults: list[str] = []

    def flow(self, max_iters: int) -> Generator[Act, Any, tuple[dict[str, Any] | None, str | None]]:
        """The outputs, None where they have to be extracted; and why the loop ended, if not by `finish`."""
        self.request = self.mode.request(self.shown)
        for index in range(max_iters):
            turn = yield from self._turn(index)
            if turn.outputs is not None:
                return (dict(turn.outputs) or None), None
            step, finished = yield from self._step(turn)
            whole = self.shown is self.trajectory.steps
            self.trajectory = self.trajectory.then(step)
            self.shown = self.trajectory.steps if whole else self.shown.then(step)
            yield Tell(events.StepFinished(index, step))
            if finished is not None:
                return self._outputs(finished), None
            self._count(step)
            self.request = self.request.following(self.request.messages.then(*self.mode.shown(step, len(self.shown) - 1, turn)))
        return None, "max_iters"

    def _turn(self, index: int) -> Generator[Act, Any, Turn]:
        rounds = 0
        while True:
            try:
                return (yield from self.mode.turn(self.request, self.shown, index))
            except ContextOverflow:
                rounds += 1
                if not self.shorten(rounds):
                    raise
                self.request = self.mode.request(self.shown)

    def shorten(self, rounds: int) -> bool:
        """Show less than before; False where that is no use any more. One huge observation goes first, then the oldest steps."""
        if not self.shown or rounds > _TRUNCATIONS + 1:
            return False
        longest = max((len(result.content) for step in self.shown for result in step.results), default=0)
        if rounds == 1 and longest > _HUGE:
            limit = longest // 4
            self.shown = type(self.shown)(_clipped_step(step, limit) for step in self.shown)
            return True
        shorter = self.agent.truncate_trajectory(Trajectory(self.shown)).steps
        changed = len(shorter) != len(self.shown) or shorter != self.shown
        self.shown = shorter
        return changed

    def _step(self, turn: Turn) -> Generator[Act, Any, tuple[Step, ToolCall | None]]:
        """Carry the turn out; the `finish` call, if there is one, comes last."""
        if turn.problem:
            return Step(turn.thought, (), (fault_result(turn.problem),)), None
        finish = next((call for call in turn.calls if call.name == "finish"), None)
        if finish is None:
            results: list[ToolResult] = yield from use(self.toolbox, turn.calls)
            return Step(turn.thought, turn.calls, tuple(results)), None
        others = tuple(call for call in turn.calls if call is not finish)
        results = yield from use(self.toolbox, others) if others else _none()
        calls = (*others, finish)
        return Step(turn.thought, calls, (*results, ToolResult("finish", "Completed.", finish.id))), finish

    def _outputs(self, finish: ToolCall) -> dict[str, Any] | None:
        """The outputs that `finish` carried, typed; None where they are not all there or do not fit: then they are extracted."""
        signature = self.agent.signature
        try:
            return {name: signature.check_output(name, finish.args[name]) for name in signature.output_fields}
        except (KeyError, ValueError):
            return None

    def _count(self, step: Step) -> None:
        bad = [result.content for result in step.results if result.is_fault]
        if bad and len(bad) == len(step.results):
            self.faults.append(str(bad[0]))
            if len(self.faults) >= self.agent.limits.same_error:
                raise TooManyFaults(self.faults)
        else:
            self.faults = []


def _none() -> Generator[Act, Any, list[ToolResult]]:
    return []
    yield  # pyright: ignore[reportUnreachable]  makes this a generator


def _clipped_step(step: Step, limit: int) -> Step:
    return replace(step, results=tuple(replace(result, content=clipped(result.content, limit)) for result in step.results))


def _entries(step: Step, i: int) -> dict[str, Any]:
    return {f"{key}_{i}": step.entry(key) for key in ("thought", "tool_name", "tool_args", "observation")}


def _checked_iters(value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  users pass anything
        msg = f"`max_iters` must be a whole number of at least 1, found {value!r}."
        raise ConfigurationError(msg)
    return value


def _refuse_reserved(signature: type[Signature]) -> None:
    for name, field in signature.input_fields.items():
        kept_for_history = name == "history" and field.annotation is not History
        if name in {"trajectory", *_OWN} or name.startswith("next_") or kept_for_history:
            why = "`ReAct` uses it itself" if name != "history" else "it is kept for the conversation: give it the type `History`"
            msg = f"An input of a ReAct agent cannot be called `{name}`: {why}. Choose another name."
            raise SignatureError(msg)


def _refuse_builtin_names(own: Toolbox) -> None:
    for name in ("finish", CLARIFY.name):
        if own.get(name) is not None:
            msg = (
                f"A tool cannot be called `{name}`: `ReAct` has a built-in one of that name. Give yours another: Tool(function, name=...)."
            )
            raise DuplicateToolError(msg)
