"""udspy's modules over the core's programs.

Their calls take `history=` and `resume_state=`, their streams have udspy's events, and tools that a
callback loads stay loaded.

udspy has no run that waits. A call that needs a person raises `ConfirmationRequired`; the user
notes the decision under the question's id (`respond_to_confirmation`), and makes the same call
again. So a module keeps the runs that wait, and a call with the inputs of one of them, whose
question is decided by now, resumes it (`_decided_run`).
"""

# udspy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportGeneralTypeIssues=false

import copy
import inspect
from contextlib import contextmanager
from functools import partial
from types import FunctionType

import ferrule
from ferrule.compat.udspy import models, values
from ferrule.runs.run import is_inside_run

_MOST_WAITING = 10
"""How many runs that wait a module keeps; users may never come back to older ones."""


class Module(ferrule.Module):
    """Base class of your own modules, which write `aexecute` or `forward`.

    The core runs them as programs.
    """

    adapter = model = callbacks = None
    loaded = None
    """The tools after a module callback changed them; taken over when the call ends."""

    @property
    def itself(self):
        """The module, also where a callback has a `ModuleView` of it, which lets it read only."""
        return self

    def __init_subclass__(cls, **keywords):
        super().__init_subclass__(**keywords)
        # The core reads these attributes to know which method to run, and how.
        methods = set()
        for base in cls.__mro__:
            if base not in {Module, ferrule.Module}:
                methods |= vars(base).keys()
        written = methods & {"aexecute", "aforward", "forward", "flow"}
        cls.is_flow = written <= {"flow"}
        cls.is_async = bool(written & {"aexecute", "aforward"})
        cls.is_only_async = cls.is_async and "forward" not in written

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "aexecute":  # as a method of the class, see `__init_subclass__`
            vars(self).update(is_flow=False, is_async=True, is_only_async=True)

    def __delattr__(self, name):
        super().__delattr__(name)
        if name == "aexecute":
            for flag in ("is_flow", "is_async", "is_only_async"):
                del vars(self)[flag]

    def __call__(self, *, resume_state=None, history=None, **inputs):
        with (
            self._core_call(resume_state, inputs, history) as (program, program_inputs),
            self._settings(),
        ):
            return self._finished(program.__call__(**program_inputs), history)

    @ferrule.settings.with_settings_of_call
    async def acall(self, *, resume_state=None, history=None, **inputs):
        with (
            self._core_call(resume_state, inputs, history) as (program, program_inputs),
            self._settings(),
        ):
            return self._finished(await program.acall(**program_inputs), history)

    def astream(self, *, resume_state=None, history=None, **inputs):
        # Not async: the settings are those of this call, not those of the first `anext`.
        with self._settings():
            overrides = ferrule.settings.all_in_force()
        return self._events(overrides, resume_state, history, inputs)

    async def _events(self, overrides, resume_state, history, inputs):
        with self._core_call(resume_state, inputs, history, is_streamed=True) as (
            program,
            program_inputs,
        ):
            with ferrule.settings.overriding(overrides):
                stream = program.stream(**program_inputs)
            async with stream:
                convert = _Events(self)
                async for event in stream:
                    for item in convert(event):
                        yield item
            yield self._finished(stream.prediction, history)

    forward, aexecute = __call__, acall

    @ferrule.settings.with_settings_of_call
    async def aforward(self, *, resume_state=None, **inputs):
        # The core calls this in a run, to execute the module; users call it to start one.
        if self._writes_aexecute() and resume_state is None and is_inside_run():
            return await self._execute(inputs)
        return await self.acall(resume_state=resume_state, **inputs)

    def _writes_aexecute(self):
        return "aexecute" in vars(self) or type(self).aexecute is not Module.aexecute

    def _takes_stream(self):
        """Whether the module's own `aexecute` has a parameter for it."""
        return self._writes_aexecute() and "stream" in inspect.signature(self.aexecute).parameters

    async def _execute(self, inputs):
        try:
            return await self.aexecute(**inputs)
        except ferrule.ConfirmationRequired as error:
            error.saved_state = await self.asuspend(error)
            raise

    # These two resume the core's run. A module that overrides `aresume` resumes by that instead.

    def resume(self, user_response, saved_state):
        return self(resume_state=_core_state(saved_state, user_response))

    @ferrule.settings.with_settings_of_call
    async def aresume(self, user_response, saved_state):
        return await self.acall(resume_state=_core_state(saved_state, user_response))

    def suspend(self, exception):
        return exception

    async def asuspend(self, exception):
        return exception

    def init_module(self, tools=None):
        users_tools = [
            tool
            for tool in tools or ()
            if getattr(tool, "name", "") not in {"finish", "user_clarification"}
        ]
        self.tool_users()[0].toolbox = ferrule.Toolbox(users_tools)

    def _settings(self):
        changes = {}
        if self.adapter is not None:
            changes["adapter"] = self.adapter
        if self.model:
            changes["lm"] = models.with_model(models.settings.lm, self.model)
        if models.settings.default_kwargs:
            lm = changes.get("lm", models.settings.lm)
            changes["lm"] = lm.copy(**models.settings.default_kwargs)
        if self.callbacks:
            changes["callbacks"] = models.Hooks.of(self.callbacks)
        return ferrule.context(**changes)

    @contextmanager
    def _core_call(self, state, inputs, history, *, is_streamed=False):
        """The core's program and keywords for a call, and udspy's words for the core's errors.

        If the same call asked a question before, and it is decided by now, its run resumes.
        """
        if self.is_flow and type(self).flow is ferrule.Module.flow:
            raise NotImplementedError(f"{type(self).__name__} must implement aexecute() method")
        inputs.pop("stream", None)
        response = inputs.pop("user_response", "yes")
        waiting = vars(self).setdefault("_waiting", [])
        program = self
        if not inputs.pop("auto_execute_tools", True):
            program = copy.copy(self)
            program.auto_execute_tools = False
        state = state or _decided_run(waiting, inputs)
        if state is not None and not isinstance(state, ferrule.ResumeState):
            state = values.ResumeState(state, response)
        arguments = {"resume_state": state}
        if isinstance(state, values.ResumeState) and type(self).aresume is not Module.aresume:
            program = copy.copy(self)
            program.aexecute = partial(self.aresume, state.user_response, state.exception)
            arguments = {}
        elif isinstance(state, values.ResumeState):
            arguments = {"resume_state": _core_state(state)}
        elif state is None:
            arguments = inputs
            self._check_inputs(inputs)
            if self._takes_stream():
                arguments["stream"] = is_streamed
            if history is not None:
                arguments["history"] = self._core_history(history)
        try:
            with values.under_udspys_names():
                # The core's methods, which those of this class override.
                yield super(Module, program), arguments
        except ferrule.errors.MaxTurnsReachedError as error:
            error.args = (f"Max turns ({self.max_turns}) reached without final answer",)
            raise
        except ferrule.ConfirmationRequired as error:
            if error.run is not None:
                others = [run for run in waiting if run is not error.run]
                waiting[:] = [*others, error.run][-_MOST_WAITING:]
                steps = values.episodes(error.context["trajectory"])
                error.context = {**error.context, "trajectory": steps, "stream": False}
                error.args = (error.question,)
            raise

    def _check_inputs(self, inputs):
        if not hasattr(self, "signature"):
            return
        for name, field in self.signature.input_fields.items():
            if field.is_required() and name not in inputs:
                raise ferrule.InputError(f"Missing required input field: {name}")

    def _core_history(self, history):
        if hasattr(self, "signature"):
            return ferrule.History(history.messages)
        return history

    def _finished(self, prediction, history):
        if self.loaded is not None:
            self.init_module(self.loaded)
            self.loaded = None
        if not isinstance(prediction, ferrule.Prediction):
            return prediction
        if history is not None:  # udspy changes the history that it was given
            history.messages[:] = values.History(prediction.messages).messages
        return self._prediction(prediction)

    def _prediction(self, prediction, **more):
        calls = [
            values.ToolCall.unchecked(**vars(call)) for call in prediction.tool_calls.tool_calls
        ]
        return values.Prediction(self, calls, prediction, **prediction, **more)


# `__init_subclass__` does not run for this class. Without a method of its own it counts as a flow,
# for which the core raises a clear error.
Module.is_flow = True
Module.is_async = False


def _core_state(state, response="yes"):
    """The core's state of a question; raises `DecisionError` if no run waits for its answer."""
    if isinstance(state, ferrule.ResumeState):
        state, response = state.exception or state.run, state.response
    if response == "yes":  # a decision that was made already holds
        return ferrule.ResumeState(state)
    return ferrule.ResumeState(state, response)


def _decided_run(waiting, inputs):
    """The run of the same call whose question is decided by now; None if there is none."""
    decided = values.get_confirmation_context().keys()
    for run in waiting:
        # Not the history: users append to it between the calls.
        not_compared = {"history": None, "stream": None}
        is_same_call = {**run.inputs, **not_compared} == {**inputs, **not_compared}
        if is_same_call and {question.id for question in run.pending} & decided:
            return run
    return None


class _WithTools(Module):
    def __init__(self, signature, *args, adapter=None, model=None, callbacks=None, **options):
        if not isinstance(signature, type):
            signature = values.Signature.from_string(signature)
        if "history" not in signature.fields:
            signature = _with_history(signature)
        if args:
            args = (_with_udspys_names(args[0]), *args[1:])
        else:
            options["tools"] = _with_udspys_names(options.get("tools") or ())
        if callbacks is not None:
            models.Hooks.of(callbacks)  # refuses what is not a list
        super().__init__(signature, *args, **options)
        self.adapter = adapter or values.ChatAdapter()
        self.model, self.callbacks = model, callbacks

    @property
    def tool_schemas(self):
        return self.adapter.format_tool_schemas(self.tools.values())

    @property
    def kwargs(self):
        return {**models.settings.default_kwargs, **self.tool_users()[0].config}


def _with_history(signature):
    """The signature with an optional `history`, which every call of udspy may have."""
    members = {
        "history": ferrule.InputField(),
        "__annotations__": {"history": ferrule.History | None},
        "__doc__": signature.instructions,
        "__module__": signature.__module__,
    }
    return type(signature)(signature.__name__, (signature,), members)


def _with_udspys_names(tools):
    """Tools of which those that are functions have udspy's names."""
    if not isinstance(tools, list | tuple):
        return tools
    return [values.Tool.of(tool) if isinstance(tool, FunctionType) else tool for tool in tools]


class Predict(_WithTools, ferrule.Predict):
    pass


class ChainOfThought(_WithTools, ferrule.ChainOfThought):
    predict_class = Predict

    def __init__(self, signature, *args, **options):
        super().__init__(signature, *args, **options)
        if isinstance(signature, str):
            signature = values.Signature.from_string(signature)
        self.original_signature = signature


class ReAct(_WithTools, ferrule.ReAct):
    def __init__(self, signature, tools=(), *, max_iters=10, enable_ask_to_user=False, **options):
        options["enable_user_clarification"] = enable_ask_to_user
        super().__init__(signature, tools, max_iters, **options)

    @property
    def react_signature(self):
        return self.react.signature

    @property
    def extract_signature(self):
        return self.extract.signature

    def _prediction(self, prediction, **more):
        steps = values.episodes(prediction.trajectory)
        reasoning = ""
        if steps:
            reasoning = steps[-1]["thought"]
        return super()._prediction(prediction, reasoning=reasoning, trajectory=steps, **more)


class _Events:
    """Converts the core's events to udspy's."""

    def __init__(self, module):
        self.modules = {"": module}
        """The modules that have begun, by their path."""
        self.open = None
        """The last piece of the field that is being written."""

    def __call__(self, event):
        module = self._module_at(event.path)
        match event:
            case ferrule.events.RunStarted(depth=depth):
                if depth:
                    self.modules[event.path] = event.program
            case ferrule.events.FieldDelta(field=name, text=text):
                yield from self._piece(values.OutputStreamChunk, module, name, text)
            case ferrule.events.ThoughtDelta(text=text):
                if _has_reasoning(module):
                    yield from self._piece(values.OutputStreamChunk, module, "reasoning", text)
                else:
                    yield from self._piece(values.ThoughtStreamChunk, module, "thought", text)
            case (
                ferrule.events.ModelAnswered()
                | ferrule.events.AttemptFailed()
                | ferrule.events.Preamble()
            ):
                yield from self._close()
            case ferrule.events.Custom(payload=payload):
                yield payload
            case ferrule.events.RunFinished(
                prediction=ferrule.Prediction() as prediction, depth=depth
            ):
                if depth and isinstance(module, Module):
                    yield module._prediction(prediction)

    def _module_at(self, path):
        for known, module in reversed(self.modules.items()):
            if path.startswith(known):
                return module
        raise LookupError(path)

    def _piece(self, kind, module, name, text):
        """Yield the end of the previous field, if another one begins, and the next piece."""
        before = ""
        if self.open and self.open.field_name == name:
            before = self.open.content
        else:
            yield from self._close()
        self.open = kind(module, name, text, before + text, is_complete=False)
        yield self.open

    def _close(self):
        last, self.open = self.open, None
        if last:
            yield type(last)(last.module, last.field_name, "", last.content, is_complete=True)


def _has_reasoning(module):
    """Whether a thought of the model is an output, not a thought between steps."""
    return isinstance(module, ChainOfThought) or "reasoning" in module.signature.output_fields
