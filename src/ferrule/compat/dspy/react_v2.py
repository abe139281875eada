"""DSPy's second agent, `ReActV2`, which DSPy 3.5 calls `ReAct`.

Each turn is one answer of a predictor with the outputs `next_thought` and `tool_calls`. The turns
are events of a `History`, which the prediction returns and the next call may continue. A call of
`submit` has the outputs.

The calls go through `call_tool`, so policies, questions, effects and records are the core's.
"""

# DSPy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportReturnType=false

from __future__ import annotations

import logging
from typing import Any, Optional

from pydantic import TypeAdapter

import ferrule
from ferrule.compat.dspy.checked_adapters import ChatAdapter
from ferrule.compat.dspy.modules import Module, Predict
from ferrule.compat.dspy.tools import Tool, with_dspys_tools
from ferrule.compat.dspy.values import Prediction, ToolCalls
from ferrule.programs.tool_use.finish import outputs_in
from ferrule.values.signatures.signature import as_signature

_logger = logging.getLogger("ferrule.compat.dspy")
_SUBMIT = {"type": "function", "function": {"name": "submit"}}


class ReActV2(Module):
    """An agent that calls tools turn by turn, and ends with a call of `submit`.

    `prediction.termination_reason` is `"submit"`; `"forced_submit"`, if it was made to end; or what
    stopped it: `"max_iters"`, `"parse_error"`, `"context_window_exceeded"`, `"empty_tool_calls"`.
    """

    def __init__(self, signature, tools, max_iters=20):
        super().__init__()
        self.signature = as_signature(signature)
        self.max_iters = max_iters
        self.toolbox = ferrule.Toolbox(with_dspys_tools(tools))
        if any(tool.name == "submit" for tool in self.toolbox.tools):
            raise ValueError("`submit` is reserved by ReActV2 as the final-output tool.")
        self.submit = _submit_tool(self.signature)
        self.react = Predict(self._step_signature())

    @property
    def tools(self):
        return {tool.name: tool for tool in (*self.toolbox, self.submit)}

    def _step_signature(self) -> Any:
        inputs = self.signature.input_fields
        fields: dict[str, Any] = {}
        for name, field in inputs.items():
            # Only the first turn has them: later ones have them in the history.
            described = ferrule.InputField(desc=field.description)
            fields[name] = (Optional[field.annotation], described)  # noqa: UP045  a value
        fields["history"] = (ferrule.History, ferrule.InputField())
        fields["tools"] = (list[ferrule.Tool], ferrule.InputField())
        fields["next_thought"] = (ferrule.Reasoning, ferrule.OutputField())
        fields["tool_calls"] = (ToolCalls, ferrule.OutputField())
        outputs, names = _listed(self.signature.output_fields), _listed(inputs)
        instructions = [
            self.signature.instructions,
            f"You are an Agent. Use the supplied tools to produce {outputs} from {names}.",
            "Call tools when more information is needed.",
            f"When the final answer is ready, call `submit` with {outputs}.",
        ]
        return ferrule.Signature(fields, "\n".join(filter(None, instructions)))

    def forward(self, max_iters=None, history=None, **inputs):
        history = _own_history(history)
        reason = "max_iters"
        for turn in range(max_iters or self.max_iters):
            try:
                step = self._ask(history, inputs)
            except (ferrule.AdapterParseError, ValueError) as error:
                _logger.warning("ReActV2 ends its loop after an unreadable answer: %s", error)
                reason = "parse_error"
                break
            except ferrule.errors.ContextOverflowError:
                _logger.warning("ReActV2 ends its loop: the context window is exceeded.")
                reason = "context_window_exceeded"
                break
            calls = _with_ids(step.tool_calls, turn)
            if not calls:
                reason = "empty_tool_calls"
                break
            outputs = self._take_turn(history, inputs, step, calls)
            inputs = {}
            if outputs is not None:
                return Prediction(**outputs, history=history, termination_reason="submit")
        return self._forced_submit(history, inputs, reason, turn=max_iters or self.max_iters)

    def _ask(self, history: Any, inputs: Any, **config: Any) -> Any:
        """One answer. Only the first turn has inputs, and only its prompt names them."""
        absent = [name for name in self.signature.input_fields if name not in inputs]
        return self.react(
            signature=self.react.signature.delete(*absent),
            history=self._for_model(history),
            tools=[*self.tools.values()],
            config=config,
            **inputs,
        )

    def _for_model(self, history: Any) -> Any:
        """The history with the inputs of each event as a message.

        A turn of a history has only fields of the signature, and that of a later turn lacks them.
        """
        entries: list[Any] = []
        for event in history.messages:
            given = {name: event[name] for name in self.signature.input_fields if name in event}
            if "role" in event or not given:
                entries.append(event)
                continue
            absent = [name for name in self.signature.input_fields if name not in given]
            signature = self.react.signature.delete("history", "tools", *absent)
            adapter = ferrule.settings.adapter or ChatAdapter()
            text = adapter.format_user_message_content(signature, given)
            entries.append({"role": "user", "content": text})
            rest = {name: value for name, value in event.items() if name not in given}
            if rest:
                entries.append(rest)
        return ferrule.History(entries)

    def _forced_submit(self, history: Any, inputs: Any, reason: str, *, turn: int) -> Any:
        """Ask once more, for `submit`."""
        ended = Prediction(history=history, termination_reason=reason)
        try:
            step = self._ask(history, inputs, tool_choice=_SUBMIT, reasoning_effort=None)
        except (ferrule.FerruleError, ValueError) as error:
            _logger.warning("ReActV2 could not end with `submit`: %s", error)
            return ended
        calls = [call for call in _with_ids(step.tool_calls, turn) if call.name == "submit"]
        if not calls:
            return ended
        outputs = self._take_turn(history, inputs, step, calls)
        if outputs is None:
            return ended
        return Prediction(**outputs, history=history, termination_reason="forced_submit")

    def _take_turn(self, history: Any, inputs: Any, step: Any, calls: Any) -> Any:
        """Run the calls, and add the turn to the history; the outputs, if `submit` gave them."""
        values: list[Any] = []
        are_errors: list[bool] = []
        outputs = None
        for call in calls:
            value, is_error = self._result_of(call)
            values.append(value)
            are_errors.append(is_error)
            if call.name == "submit" and not is_error:
                outputs = value
        results = ferrule.ToolCallResults.from_tool_calls_and_values(
            ToolCalls(tool_calls=calls), values, are_errors
        )
        event = dict(inputs)
        if step.next_thought is not None:
            event["next_thought"] = step.next_thought
        event["tool_calls"] = ToolCalls(tool_calls=calls, tool_call_results=results)
        history.messages.append({**event, **(outputs or {})})
        return outputs

    def _result_of(self, call: Any) -> tuple[Any, bool]:
        """The value of a call, or the text of its error; and whether it is an error."""
        tool = self.tools.get(call.name)
        if tool is None:
            return f"Unknown tool: {call.name}", True
        if tool is self.submit:
            outputs, problems = outputs_in(call, self.signature.plan)
            if problems:
                text = "; ".join(f"{name}: {problem}" for name, problem in problems)
                return f"Execution error in submit: {text}", True
            return outputs, False
        try:
            return ferrule.call_tool(tool, **call.args), False
        except (ferrule.ToolError, ferrule.ConfirmationRejected) as error:
            return str(error), True


def _submit_tool(signature: Any) -> Tool:
    fields = signature.output_fields

    def submit(**outputs):
        missing = [name for name in fields if name not in outputs]
        if missing:
            raise ValueError(f"Missing required final output field(s): {', '.join(missing)}")
        return {name: outputs[name] for name in fields}

    return Tool(
        submit,
        name="submit",
        desc="Submit the final outputs for the task.",
        args={name: TypeAdapter(field.annotation).json_schema() for name, field in fields.items()},
        arg_types={name: field.annotation for name, field in fields.items()},
    )


def _listed(fields: Any) -> str:
    return ", ".join(f"`{name}`" for name in fields)


def _own_history(history: Any) -> Any:
    """The history to continue: a copy, because a program never changes its inputs."""
    if history is None:
        return ferrule.History()
    if not isinstance(history, ferrule.History):
        history = ferrule.History.model_validate(history)
    return ferrule.History([_with_ids_of_results(event) for event in history.messages])


def _with_ids_of_results(event: Any) -> Any:
    """An event whose calls have ids. DSPy stores those of the results only, in the same order."""
    calls = event.get("tool_calls")
    if "role" in event or not calls:
        return event
    calls = ToolCalls.model_validate(calls)
    results = calls.tool_call_results
    if results is None or any(call.id for call in calls.tool_calls):
        return event
    with_ids = [
        call.with_id(result.call_id)
        for call, result in zip(calls.tool_calls, results.tool_call_results, strict=False)
    ]
    return {**event, "tool_calls": ToolCalls(tool_calls=with_ids, tool_call_results=results)}


def _with_ids(calls: Any, turn: int) -> list[Any]:
    """The calls, each with an id of the run: those of a text are numbered in each answer anew."""
    if calls is None:
        return []
    with_ids = []
    for index, call in enumerate(calls.tool_calls):
        has_own_id = call.id not in {None, f"call_{index}"}
        with_ids.append(call if has_own_id else call.with_id(f"call_{turn}_{index}"))
    return with_ids
