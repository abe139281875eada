"""udspy's modules over the core's programs: calls with `history=` and `resume_state=`, udspy's events, tools that stay loaded."""

# udspy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportGeneralTypeIssues=false

import copy
from contextlib import contextmanager

import ferrule
from ferrule.compat.udspy import models, values
from ferrule.runs.run import is_inside_run


class Module(ferrule.Module):
    """Base class of your own modules, which write `aexecute` or `forward`. The core runs them as programs."""

    adapter = model = callbacks = loaded = None
    itself = property(lambda self: self)

    def __init_subclass__(cls, **keywords):
        super().__init_subclass__(**keywords)
        above = [vars(each) for each in cls.__mro__ if each not in {Module, ferrule.Module}]
        written = {
            name
            for each in above
            for name in ("aexecute", "aforward", "forward", "flow")
            if name in each
        }
        cls.is_flow, cls.is_async = written <= {"flow"}, bool(written & {"aexecute", "aforward"})
        cls.is_only_async = cls.is_async and "forward" not in written

    def __call__(self, *, resume_state=None, history=None, **inputs):
        with self._asked(resume_state, inputs, history) as (program, given), self._settings():
            return self._finished(program.__call__(**given), history)

    async def acall(self, *, resume_state=None, history=None, **inputs):
        with self._asked(resume_state, inputs, history) as (program, given), self._settings():
            return self._finished(await program.acall(**given), history)

    async def astream(self, *, resume_state=None, history=None, **inputs):
        with self._asked(resume_state, inputs, history) as (program, given):
            async with program.stream(**given) as stream:
                events, convert = aiter(stream), _Events(self)
                while True:
                    with (
                        self._settings()
                    ):  # ends before each `yield`: the caller must not get these settings
                        event = await anext(events, None)
                    if event is None:
                        break
                    for each in convert(event):
                        yield each
            yield self._finished(stream.prediction, history)

    forward, aexecute = __call__, acall

    async def aforward(self, *, resume_state=None, **inputs):
        if (
            type(self).aexecute is Module.aexecute
            or resume_state is not None
            or not is_inside_run()
        ):
            return await self.acall(resume_state=resume_state, **inputs)
        return await self.aexecute(**inputs)

    def resume(self, user_response, saved_state):
        return self(resume_state=saved_state, user_response=user_response)

    async def aresume(self, user_response, saved_state):
        return await self.acall(resume_state=saved_state, user_response=user_response)

    def suspend(self, exception):
        return exception

    async def asuspend(self, exception):
        return exception

    def init_module(self, tools=None):
        own = [
            tool
            for tool in tools or ()
            if getattr(tool, "name", "") not in {"finish", "user_clarification"}
        ]
        self.tool_users()[0].toolbox = ferrule.Toolbox(own)

    def _settings(self):
        lm = self.model and models.of_model(models.settings.lm, self.model)
        own = {
            "adapter": self.adapter,
            "lm": lm,
            "callbacks": self.callbacks and list(map(models.as_hooks, self.callbacks)),
        }
        return ferrule.context(**{name: each for name, each in own.items() if each is not None})

    @contextmanager
    def _asked(self, state, inputs, history):
        """The core's program and keywords for a call. If the same call asked a question that is decided by now, its run resumes."""
        inputs.pop("stream", None)
        said, waiting, made = (
            inputs.pop("user_response", "yes"),
            vars(self).setdefault("_waiting", []),
            self,
        )
        if not inputs.pop("auto_execute_tools", True):
            made = copy.copy(self)
            made.auto_execute_tools = False
        again = [
            run for run in waiting if {**run.inputs, "history": None} == {**inputs, "history": None}
        ]
        decided = [
            run
            for run in again
            if {each.id for each in run.pending} & values.get_confirmation_context().keys()
        ]
        state = state or (decided[0] if decided else None)
        if state is not None and not isinstance(state, ferrule.ResumeState):
            state = ferrule.ResumeState(state, None if said == "yes" else said)
        for name, field in (
            () if state or not hasattr(self, "signature") else self.signature.input_fields.items()
        ):
            if field.is_required() and name not in inputs:
                raise ferrule.InputError(f"Missing required input field: {name}")
        told = (
            {}
            if history is None
            else {
                "history": ferrule.History(history.messages)
                if hasattr(self, "signature")
                else history,
            }
        )
        try:
            yield super(Module, made), {"resume_state": state} if state else {**inputs, **told}
        except ferrule.MaxTurnsReachedError as error:
            error.args = (f"Max turns ({self.max_turns}) reached without final answer",)
            raise
        except ferrule.ConfirmationRequired as error:
            if error.run is not None:
                waiting[:] = [*(run for run in waiting[-9:] if run is not error.run), error.run]
                error.context = {
                    **error.context,
                    "trajectory": values.episodes(error.context["trajectory"]),
                    "stream": False,
                }
            raise

    def _finished(self, found, history):
        if self.loaded is not None:
            self.loaded = self.init_module(self.loaded)
        if not isinstance(found, ferrule.Prediction):
            return found
        if history is not None:
            history.messages[:] = values.History(found.messages).messages
        return self._prediction(found)

    def _prediction(self, found, **more):
        calls = [values.ToolCall.unchecked(**vars(call)) for call in found.tool_calls.tool_calls]
        return values.Prediction(self, calls, found, **found, **more)


Module.is_flow, Module.is_async = (
    True,
    False,
)  # so that the core raises for a module without its own method


class _WithTools(Module):
    def __init__(self, signature, *given, adapter=None, model=None, callbacks=None, **options):
        made = signature if isinstance(signature, type) else values.Signature.from_string(signature)
        if "history" not in made.fields:
            body = {
                "history": ferrule.InputField(),
                "__annotations__": {"history": ferrule.History | None},
                "__doc__": made.instructions,
            }
            made = type(made)(made.__name__, (made,), {**body, "__module__": made.__module__})
        super().__init__(made, *given, **options)
        self.adapter, self.model, self.callbacks = adapter or values.ChatAdapter(), model, callbacks

    tool_schemas = property(lambda self: self.adapter.format_tool_schemas(self.tools.values()))
    kwargs = property(
        lambda self: {**models.settings.default_kwargs, **self.tool_users()[0].config},
    )


class Predict(_WithTools, ferrule.Predict):
    pass


class ChainOfThought(_WithTools, ferrule.ChainOfThought):
    pass


class ReAct(_WithTools, ferrule.ReAct):
    react_signature = property(lambda self: self.react.signature)
    extract_signature = property(lambda self: self.extract.signature)

    def __init__(self, signature, tools=(), *, max_iters=10, enable_ask_to_user=False, **options):
        super().__init__(
            signature,
            tools,
            max_iters,
            enable_user_clarification=enable_ask_to_user,
            **options,
        )

    def _prediction(self, found, **more):
        steps = values.episodes(found.trajectory)
        return super()._prediction(
            found,
            reasoning=steps[-1]["thought"] if steps else "",
            trajectory=steps,
            **more,
        )


class _Events:
    """Converts the core's events to udspy's."""

    def __init__(self, module):
        self.modules, self.open = {"": module}, None

    def __call__(self, event):
        module = next(
            each for path, each in reversed(self.modules.items()) if event.path.startswith(path)
        )
        match event:
            case ferrule.RunStarted(depth=depth) if depth:
                self.modules[event.path] = event.program
            case ferrule.FieldDelta(field=name, text=text):
                yield from self._piece(values.OutputStreamChunk, module, name, text)
            case ferrule.ThoughtDelta(text=text) if (
                isinstance(module, ChainOfThought) or "reasoning" in module.signature.output_fields
            ):
                yield from self._piece(values.OutputStreamChunk, module, "reasoning", text)
            case ferrule.ThoughtDelta(text=text):
                yield from self._piece(values.ThoughtStreamChunk, module, "thought", text)
            case ferrule.ModelAnswered() | ferrule.AttemptFailed():
                yield from self._piece(values.OutputStreamChunk, module, None, "")
            case ferrule.Custom(payload=payload):
                yield payload
            case ferrule.RunFinished(prediction=ferrule.Prediction() as found, depth=depth) if (
                depth and isinstance(module, Module)
            ):
                yield module._prediction(found)

    def _piece(self, kind, module, name, text):
        """Yield the end of the previous field, if another one begins, and the next piece; without a name, only the end."""
        last, said = self.open, ""
        if last and last.field_name == name:
            said = last.content
        elif last:
            yield type(last)(last.module, last.field_name, "", last.content, is_complete=True)
        self.open = name and kind(module, name, text, said + text, is_complete=False)
        yield from [self.open] if name else []
