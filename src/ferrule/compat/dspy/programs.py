"""DSPy's modules, streams and saved states, each in a few lines over the core."""

# DSPy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAssignmentType=false
# pyright: reportReturnType=false

from __future__ import annotations

import copy
import json
import logging
from collections import namedtuple
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ferrule
from ferrule import settings as core
from ferrule.compat.dspy.values import (
    LM,
    BaseCallback,
    Example,
    Observer,
    Prediction,
    observers,
    settings,
    under_dspys_names,
    without_rollout,
)
from ferrule.concurrency.offload import in_worker_thread
from ferrule.values.signatures.signature import as_signature

_logger = logging.getLogger("ferrule.compat.dspy")
_OPTIONS = {"lm", "config", "demos", "max_turns", "max_iters", "limits", "deps", "resume_state"}


class Module(ferrule.Module):
    def __init__(self, callbacks=None):
        self.callbacks = callbacks or ()

    @contextmanager
    def _as_in_dspy(self, args: Any, inputs: Any) -> Any:
        if args and self.is_flow:
            msg = f"Positional arguments are not allowed when calling `dspy.{self.name}`, must use keyword arguments"
            raise ValueError(
                f"{msg} that match your signature input fields: '{', '.join(self.signature.input_fields)}'.",
            )
        if self.is_flow and not (
            inputs.get("lm") or settings.lm or any(each.lm for each in self.predictors())
        ):
            raise ValueError(
                "No LM is loaded. Please configure the LM using `dspy.configure(lm=dspy.LM(...))`.",
            )
        around = (
            {"callbacks": [*core.current().callbacks, *observers(self.callbacks)]}
            if getattr(self, "callbacks", ())
            else {}
        )
        with under_dspys_names(), ferrule.context(**around):
            yield

    def __call__(self, /, *args, **inputs):
        with self._as_in_dspy(args, inputs):
            return super().__call__(*args, **inputs)

    async def acall(self, /, *args, **inputs):
        with self._as_in_dspy(args, inputs):
            return await super().acall(*args, **inputs)

    named_parameters, parameters = ferrule.Module.named_predictors, ferrule.Module.predictors
    inspect_history = staticmethod(ferrule.inspect_history)
    batch = lambda self, examples, num_threads=None, **options: Parallel(num_threads, **options)(
        [(self, each) for each in examples],
    )
    dump_state = lambda self, json_mode=True: {
        name: each.dump_state() for name, each in self.named_predictors()
    }

    def load_state(self, state, *, tools=(), allow_unsafe_lm_state=False):
        for name, each in self.named_predictors():
            each.load_state(state[name])

    def save(self, path, save_program=False, modules_to_serialize=None):
        if save_program or Path(path).suffix != ".json":
            raise ferrule.ConfigurationError(
                "ferrule saves no code: `save` writes the state, to a file whose name ends with `.json`.",
            )
        state = {
            **self.dump_state(),
            "metadata": {"dependency_versions": {"ferrule": ferrule.__version__}},
        }
        Path(path).write_bytes(
            f"{json.dumps(state, indent=2, ensure_ascii=False)}\n".encode(
                errors="backslashreplace"
            ),
        )  # surrogates

    def load(self, path, *, tools=(), allow_pickle=False, allow_unsafe_lm_state=False):
        self.load_state(json.loads(Path(path).read_text(encoding="utf-8")), tools=tools)


class Predict(Module, ferrule.Predict):
    def __init__(self, signature, callbacks=None, **options):
        ferrule.Predict.__init__(self, signature, **without_rollout(options))
        self.callbacks = callbacks or ()

    def flow_for(self, module, inputs):
        program, inputs = self.loosened(inputs)
        return Prediction.dressed((yield from ferrule.Predict.flow_for(program, module, inputs)))

    def loosened(self, inputs: Any) -> tuple[Any, dict[str, Any]]:
        """The program and inputs, changed so that the core accepts them: DSPy only warns about inputs that the core refuses."""
        given = {
            **inputs,
            **({"config": without_rollout(inputs["config"])} if "config" in inputs else {}),
        }
        signature = as_signature(given.pop("signature", self.signature))
        fields = signature.plan.inputs
        if unknown := [name for name in given if name not in fields and name not in _OPTIONS]:
            text = "Input contains fields not in signature. These fields will be ignored: %s. Expected fields: %s."
            _logger.warning(text, unknown, [*fields])
        given = {name: value for name, value in given.items() if name not in unknown}
        try:
            signature.check_inputs({name: given[name] for name in fields if name in given})
            misfits: list[str] = []
        except ferrule.InputError as error:
            misfits = [
                name
                for name, _ in error.problems
                if name in given and not _is_of_tools(fields[name])
            ]
        for name in misfits if settings.warn_on_type_mismatch else ():
            text = "Type mismatch for field '%s': expected %s based on given Signature, but the provided value is incompatible: %s."
            _logger.warning(
                text,
                name,
                getattr(fields[name].annotation, "__name__", fields[name].annotation),
                given[name],
            )
        if missing := [
            name for name, field in fields.items() if name not in given and field.is_required
        ]:
            _logger.warning(
                "Not all input fields were provided to module. Present: %s. Missing: %s.",
                [*given],
                missing,
            )
            signature = signature.delete(*missing)
        for name in misfits:
            signature = signature.with_updated_fields(name, type_=Any)
        program = self if signature is self.signature else copy.copy(self)
        program.signature = signature
        return program, given

    reset = lambda self: vars(self).update(lm=None, demos=[])
    update_config = lambda self, **config: vars(self).update(config={**self.config, **config})
    get_config = lambda self: self.config

    def dump_state(self, json_mode=True):
        signature = {
            "instructions": self.signature.instructions,
            "fields": [_field(*each) for each in self.signature.plan.fields.items()],
        }
        demos = [Example(each).toDict() for each in self.demos]
        return {
            "traces": [],
            "train": [],
            "demos": demos,
            "signature": signature,
            "lm": self.lm.dump_state() if self.lm else None,
        }

    def load_state(self, state, *, tools=(), allow_unsafe_lm_state=False):
        names, saved = [*self.signature.fields], state["signature"]["fields"]
        if len(names) != len(saved):
            raise ferrule.ConfigurationError(
                f"The state belongs to another signature than `{self.signature}`: it has {len(saved)} fields.",
            )
        fields = [
            {"name": name, "desc": each["description"].replace(f"${{{name}}}", "")}
            for name, each in zip(names, saved, strict=True)
        ]
        self.signature = self.signature.load_state(
            {"instructions": state["signature"]["instructions"], "fields": fields},
        )
        self.demos, self.lm = (
            [Example(each) for each in state["demos"]],
            LM(**state["lm"]) if state["lm"] else None,
        )


_is_of_tools = lambda field: bool(
    ferrule.Tool.extract_custom_type_from_annotation(field.annotation),
)
"""Whether a field takes tools. DSPy accepts functions for them, too."""


def _field(name: str, field: Any) -> dict[str, Any]:
    return {
        "prefix": f"{name.replace('_', ' ').title()}:",
        "description": field.description or f"${{{name}}}",
    }


class ChainOfThought(Module, ferrule.ChainOfThought):
    def __init__(self, signature, callbacks=None, **options):
        ferrule.ChainOfThought.__init__(self, signature, **options)
        self.predict.__class__, self.callbacks = Predict, callbacks or ()


class ReAct(Module, ferrule.ReAct):
    def __init__(self, signature, tools, max_iters=20, **options):
        ferrule.ReAct.__init__(
            self,
            signature,
            tools,
            max_iters,
            **{"enable_user_clarification": False, **options},
        )
        self.react.__class__ = self.extract.predict.__class__ = Predict

    truncate_trajectory = lambda self, trajectory: dict([*trajectory.items()][4:])

    def flow(self, /, **inputs):
        program, program.truncate_trajectory = (
            copy.copy(self),
            lambda found: self.truncate_trajectory(dict(found)),
        )
        program.react, inputs = self.react.loosened(inputs)
        return Prediction.dressed((yield from ferrule.ReAct.flow(program, **inputs)))


class ReActV2(ReAct):
    def flow(self, /, **inputs):
        found = yield from super().flow(**inputs)
        found["termination_reason"] = "submit" if found.reason is None else "forced_submit"
        return found


class Parallel:
    def __init__(self, num_threads=None, max_errors=None, **options):
        self.num_threads, self.max_errors, self.options = num_threads, max_errors, options

    def __call__(self, pairs, num_threads=None):
        calls = [
            {"module": module, "example": example, **self.options} for module, example in pairs
        ]
        options = {
            "progress": not self.options.get("disable_progress_bar"),
            "timeout": self.options.get("timeout"),
        }
        results, failed, errors = _Call().batch(
            calls,
            num_threads or self.num_threads,
            return_failed_examples=True,
            **options,
        )
        for call, error in zip(failed, errors, strict=True):
            _logger.error("Error for example %s: %r", call["example"], error)
        if len(errors) >= (self.max_errors or settings.max_errors):
            raise errors[-1]
        return (
            (results, [call["example"] for call in failed], errors)
            if self.options.get("return_failed_examples")
            else results
        )


class _Call(ferrule.Module):
    def forward(self, module, example, access_examples=True, **_):
        if isinstance(example, Example) and access_examples:
            return module(**example.inputs())
        return (
            module(*example)
            if isinstance(example, tuple)
            else module(**example)
            if isinstance(example, dict)
            else module(example)
        )


asyncify = lambda program: (
    lambda *args, **inputs: in_worker_thread(lambda: program(*args, **inputs))
)
syncify = lambda program, in_place=True: program
"""Returns the program: sync code can call one that has only an `aforward` like any other."""


StatusMessage = namedtuple("StatusMessage", "message")
StreamResponse = namedtuple(
    "StreamResponse",
    "predict_name signature_field_name chunk is_last_chunk",
)
StreamListener = namedtuple(
    "StreamListener",
    "signature_field_name predict predict_name allow_reuse",
    defaults=(None, None, False),
)


class StatusMessageProvider:
    """Override its methods; None sends no message."""

    tool_start_status_message = lambda self, instance, inputs: f"Calling tool {instance.name}..."
    tool_end_status_message = lambda self, outputs: (
        "Tool calling finished! Querying the LLM with tool calling results..."
    )
    lm_start_status_message = module_start_status_message = lambda self, instance, inputs: None
    lm_end_status_message = module_end_status_message = lambda self, outputs: None


class _Status(BaseCallback):
    """A callback that collects the provider's messages."""

    def __init__(self, provider: Any) -> None:
        self.provider, self.told = provider or StatusMessageProvider(), list[Any]()

    def __getattr__(self, hook: str) -> Any:
        message = getattr(self.provider, f"{hook.removeprefix('on_')}_status_message")
        return lambda *, call_id, exception=None, **given: self.told.append(
            message(*given.values()),
        )


class _Chunks:
    """Converts the events of a run to the items of DSPy's stream."""

    def __init__(self, program: Any, listeners: Any, provider: Any) -> None:
        self.status, self.around, self.held, self.extracts = (
            _Status(provider),
            dict[str, Any](),
            list[Any](),
            False,
        )
        self.observer, self.listened = Observer(self.status), list[tuple[str, Any, str]]()
        for field, predict, name, _ in listeners:
            found = [
                (path, each)
                for path, each in program.named_predictors()
                if each is predict or (not predict and _has(each, field))
            ]
            if len(found) != 1:
                raise ValueError(
                    f"Signature field {field} is not unique in the program: {len(found)} predictors have it.",
                )
            self.listened.append((field, found[0][1], name or found[0][0]))

    def __call__(self, event: ferrule.Event) -> list[Any]:
        self.observer(event)
        told, self.status.told = [StatusMessage(text) for text in self.status.told if text], []
        if isinstance(event, ferrule.RunStarted):
            self.around[event.path] = event.program
        if isinstance(event, ferrule.ModelCalled):
            self.extracts = (
                event.request.form is not None
                and "reasoning" in event.request.form.schema.get("properties", {})
            )
        if isinstance(event, ferrule.ModelAnswered):
            return [*told, *self._release(is_last=True)]
        if not isinstance(event, ferrule.FieldDelta | ferrule.ThoughtDelta | ferrule.TextDelta):
            return told
        if not self.listened:
            return [*told, event]
        inside = [program for path, program in self.around.items() if event.path.startswith(path)][
            -1
        ]
        thought = (
            "next_thought"
            if isinstance(inside, ferrule.ReAct) and not self.extracts
            else "reasoning"
        )
        of = thought if isinstance(event, ferrule.ThoughtDelta) else getattr(event, "field", None)
        for field, predict, name in self.listened:
            if field == of and any(predict is each for each in inside.predictors()):
                told += self._release(is_last=bool(self.held) and self.held[0][:2] != (name, field))
                self.held = [StreamResponse(name, field, event.text, is_last_chunk=False)]
        return told

    def _release(self, *, is_last: bool) -> list[Any]:
        held, self.held = self.held, []
        return [each._replace(is_last_chunk=is_last) for each in held]


_has = lambda predictor, field: field in {*predictor.signature.output_fields, "next_thought"}


def streamify(
    program,
    status_message_provider=None,
    stream_listeners=(),
    async_streaming=True,
    **options,
):
    """A function that returns a generator of pieces of the fields listened to, status messages, and finally the prediction."""
    ends = options.get("include_final_prediction_in_output_stream", True) or not stream_listeners

    def run(*args, **inputs):
        chunks, stream = (
            _Chunks(program, stream_listeners, status_message_provider),
            program.stream(*args, **inputs),
        )
        with under_dspys_names():
            for event in stream:
                yield from chunks(event)
            yield from [stream.prediction] if ends else []

    async def arun(*args, **inputs):
        chunks, stream = (
            _Chunks(program, stream_listeners, status_message_provider),
            program.astream(*args, **inputs),
        )
        with under_dspys_names():
            async for event in stream:
                for each in chunks(event):
                    yield each
            if ends:
                yield stream.prediction

    return arun if async_streaming else run
