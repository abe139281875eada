"""DSPy's modules over the core's."""

# DSPy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportReturnType=false

from __future__ import annotations

import copy
import json
import logging
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import ferrule
from ferrule import settings as core
from ferrule.adapters.render import type_name
from ferrule.compat.dspy.checked_adapters import ChatAdapter
from ferrule.compat.dspy.errors import ContextWindowExceededError, under_dspys_names
from ferrule.compat.dspy.models import without_rollout
from ferrule.compat.dspy.saved import dump_predictor, read_predictor, read_states
from ferrule.compat.dspy.settings import observers, settings
from ferrule.compat.dspy.tools import with_dspys_tools
from ferrule.compat.dspy.values import Example, Prediction
from ferrule.concurrency.offload import in_worker_thread
from ferrule.encoding.stored import reading
from ferrule.net.pace import Slots
from ferrule.programs.lifecycle.saving import read_file
from ferrule.programs.react_loop import step as _core_step
from ferrule.values.signatures.fields import adapter_of
from ferrule.values.signatures.signature import as_signature

_logger = logging.getLogger("ferrule.compat.dspy")
_DEFAULT_ADAPTER = ChatAdapter(use_native_function_calling=None)
"""DSPy's prompts; the model's capabilities choose how tools are called."""
_OPTIONS = {"lm", "config", "demos", "max_turns", "max_iters", "limits", "deps", "resume_state"}
"""Keywords of a call that are not inputs."""


class Module(ferrule.Module):
    inspect_history = staticmethod(ferrule.inspect_history)

    def __init__(self, callbacks=None):
        self.callbacks = callbacks or ()

    @contextmanager
    def _as_in_dspy(self, args: Any, inputs: Any) -> Any:
        """Check a call as DSPy does; within, this module's callbacks and DSPy's errors apply."""
        if args and self.is_flow:
            names = [*self.signature.input_fields]
            first = next(iter(names), "field")
            raise ValueError(
                f"Positional arguments are not allowed when calling `dspy.{self.name}`, must use "
                f"keyword arguments that match your signature input fields: '{', '.join(names)}'. "
                f"For example: `predict({first}=input_value, ...)`."
            )
        if self.is_flow and not self._has_model(inputs):
            raise ValueError(
                "No LM is loaded. Please configure the LM using `dspy.configure(lm=dspy.LM(...))`."
            )
        changes: dict[str, Any] = {}
        if core.current().adapter is None:
            changes["adapter"] = _DEFAULT_ADAPTER
        if getattr(self, "callbacks", ()):
            changes["callbacks"] = [*core.current().callbacks, *observers(self.callbacks)]
        with under_dspys_names(), ferrule.context(**changes):
            yield

    def _has_model(self, inputs: Any) -> bool:
        if inputs.get("lm") or settings.lm:
            return True
        return any(predictor.lm for predictor in self.predictors())

    def __call__(self, /, *args, **inputs):
        with self._as_in_dspy(args, inputs):
            return super().__call__(*args, **inputs)

    @core.with_settings_of_call
    async def acall(self, /, *args, **inputs):
        with self._as_in_dspy(args, inputs):
            return await super().acall(*args, **inputs)

    def named_sub_modules(self, type_=None, skip_compiled=False):
        """The programs inside, of this type; `skip_compiled` has no effect without optimizers."""
        for path, program in super().named_sub_modules():
            if type_ is None or isinstance(program, type_):
                yield path, program

    def named_parameters(self):
        return self.named_predictors()

    def parameters(self):
        return self.predictors()

    def batch(self, examples, num_threads=None, **options):
        return Parallel(num_threads, **options)([(self, example) for example in examples])

    def dump_state(self, json_mode=True):
        return {name: predictor.dump_state() for name, predictor in self.named_predictors()}

    def load_state(self, state, *, tools=(), allow_unsafe_lm_state=False):
        predictors = self.named_predictors()
        for loaded in read_states(predictors, state, with_addresses=allow_unsafe_lm_state):
            loaded.take()

    def save(self, path, save_program=False, modules_to_serialize=None):
        if save_program or Path(path).suffix != ".json":
            raise ferrule.errors.ConfigurationError(
                "ferrule saves no code: `save` writes the state, to a file whose name ends with "
                "`.json`."
            )
        versions = {"dependency_versions": {"ferrule": ferrule.__version__}}
        state = {**self.dump_state(), "metadata": versions}
        text = f"{json.dumps(state, indent=2, ensure_ascii=False)}\n"
        # A lone surrogate has no UTF-8: it is written as its escape, which JSON reads back.
        Path(path).write_bytes(text.encode(errors="backslashreplace"))

    def load(self, path, *, tools=(), allow_pickle=False, allow_unsafe_lm_state=False):
        self.load_state(
            read_file(path),
            tools=tools,
            allow_unsafe_lm_state=allow_unsafe_lm_state,
        )


class Predict(Module, ferrule.Predict):
    outputs_have_format = False  # the prompts are DSPy's, with its markers

    def __init__(self, signature, callbacks=None, **options):
        ferrule.Predict.__init__(self, signature, **without_rollout(options))
        self.callbacks = callbacks or ()

    def flow_for(self, module, inputs):
        program, inputs = self.loosened(inputs)
        prediction = yield from super(Predict, program).flow_for(module, inputs)
        return Prediction.from_core(prediction)

    def loosened(self, inputs: Any) -> tuple[Any, dict[str, Any]]:
        """The program and inputs, changed so that the core accepts them.

        DSPy only warns about inputs that the core refuses: unknown, missing, or of another type.
        """
        inputs = dict(inputs)
        if "config" in inputs:
            inputs["config"] = without_rollout(inputs["config"])
        signature = as_signature(inputs.pop("signature", self.program_signature))
        fields = signature.plan.inputs
        unknown = [name for name in inputs if name not in fields and name not in _OPTIONS]
        if unknown:
            _logger.warning(
                "Input contains fields not in signature. These fields will be ignored: %s. "
                "Expected fields: %s.",
                unknown,
                [*fields],
            )
        inputs = {name: value for name, value in inputs.items() if name not in unknown}
        misfits = _misfits(signature, inputs)
        if settings.warn_on_type_mismatch:
            for name, value in inputs.items():
                if name in fields and not _has_type(fields[name], value):
                    _logger.warning(
                        "Type mismatch for field '%s': expected %s based on given Signature, but "
                        "the provided value is incompatible: %s.",
                        name,
                        type_name(fields[name].annotation),
                        value,
                    )
        missing = [
            name for name, field in fields.items() if name not in inputs and field.is_required
        ]
        if missing:
            _logger.warning(
                "Not all input fields were provided to module. Present: %s. Missing: %s.",
                [*inputs],
                missing,
            )
            signature = signature.delete(*missing)
        for name in misfits:
            signature = signature.with_updated_fields(name, type_=Any)
        if signature is self.program_signature:
            return self, inputs
        program = copy.copy(self)
        program.signature = signature
        return program, inputs

    def reset(self):
        self.lm = None
        self.traces = []
        self.train = []
        self.demos = []

    def update_config(self, **config):
        self.config = {**self.config, **config}

    def get_config(self):
        return self.config

    def dump_state(self, json_mode=True):
        return dump_predictor(self)

    def load_state(self, state, *, tools=(), allow_unsafe_lm_state=False):
        with reading("The state of a predictor", ferrule.errors.ConfigurationError):
            loaded = read_predictor(self, state, with_addresses=allow_unsafe_lm_state)
        loaded.take()
        return self


def _misfits(signature: Any, inputs: dict[str, Any]) -> list[str]:
    """The inputs whose values do not fit their types."""
    fields = signature.plan.inputs
    try:
        signature.check_inputs({name: inputs[name] for name in fields if name in inputs})
    except ferrule.InputError as error:
        names = [name for name, _ in error.problems]
        return [name for name in names if name in inputs and not _takes_tools(fields[name])]
    return []


def _has_type(field: Any, value: Any) -> bool:
    """Whether a value has the type of its field, without any conversion.

    DSPy warns of text that the core would read as a number. It lets a text be a list of texts, and
    any value be None.
    """
    if value is None or field.is_untyped or _takes_tools(field):
        return True
    if field.annotation is str and isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    try:
        adapter_of(field).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _takes_tools(field: Any) -> bool:
    """Whether a field takes tools. DSPy accepts functions for them, too."""
    return bool(ferrule.Tool.extract_custom_type_from_annotation(field.annotation))


class ChainOfThought(Module, ferrule.ChainOfThought):
    predict_class = Predict

    def __init__(self, signature, callbacks=None, **options):
        ferrule.ChainOfThought.__init__(self, signature, **options)
        self.callbacks = callbacks or ()


class StepPredict(Predict, _core_step.StepPredict):
    """The predictor of an agent's steps, `agent.react`."""


class ReAct(Module, ferrule.ReAct):
    step_class = StepPredict
    extractor_class = ChainOfThought

    def __init__(self, signature, tools, max_iters=20, **options):
        ferrule.ReAct.__init__(self, signature, with_dspys_tools(tools), max_iters, **options)

    def truncate_trajectory(self, trajectory):
        """The trajectory without its first step, which has four entries.

        Raises `ContextWindowExceededError` if there is no other step.
        """
        if len(trajectory) <= 4:
            raise ContextWindowExceededError(
                message="The context window was exceeded, and the trajectory has only one tool "
                "call, which cannot be left out."
            )
        return dict([*trajectory.items()][4:])

    def _shortened(self, trajectory):
        try:
            return self.truncate_trajectory(dict(trajectory))
        except ContextWindowExceededError:
            return trajectory  # the loop sees that nothing was left out, and ends

    def flow(self, /, **inputs):
        program = copy.copy(self)
        program.truncate_trajectory = self._shortened
        if type(self)._format_trajectory is not ReAct._format_trajectory:
            program._format_trajectory = lambda trajectory: self._format_trajectory(
                dict(trajectory)
            )
        program.react, inputs = self.react.loosened(inputs)
        prediction = yield from ferrule.ReAct.flow(program, **inputs)
        return Prediction.from_core(prediction, is_of_agent=True)


class Parallel:
    def __init__(self, num_threads=None, max_errors=None, **options):
        self.num_threads, self.max_errors, self.options = num_threads, max_errors, options

    def __call__(self, pairs, num_threads=None):
        calls = [
            {"module": module, "example": example, **self.options} for module, example in pairs
        ]
        errors_so_far: list[BaseException] = []

        def stop_at_most(_, result):
            if isinstance(result, BaseException):
                errors_so_far.append(result)
                if len(errors_so_far) >= (self.max_errors or settings.max_errors):
                    raise errors_so_far[0]

        results, failed, errors = _CallOfModule().batch(
            calls,
            num_threads or self.num_threads,
            return_failed_examples=True,
            progress=not self.options.get("disable_progress_bar"),
            timeout=self.options.get("timeout"),
            on_result=stop_at_most,
        )
        for call, error in zip(failed, errors, strict=True):
            _logger.error("Error for example %s: %r", call["example"], error)
        if self.options.get("return_failed_examples"):
            return results, [call["example"] for call in failed], errors
        return results


class _CallOfModule(ferrule.Module):
    """Calls a module with an example, in any of the forms that DSPy takes."""

    def forward(self, module, example, access_examples=True, **_):
        if isinstance(example, Example) and access_examples:
            return module(**example.inputs())
        if isinstance(example, tuple):
            return module(*example)
        if isinstance(example, dict):
            return module(**example)
        return module(example)


_asyncified: list[Slots] = []
"""The slots for all programs that `asyncify` runs, as many as `async_max_workers` said last."""


def asyncify(program):
    @core.with_settings_of_call
    async def call(*args, **inputs):
        async with _slots(settings.async_max_workers).aheld():
            return await in_worker_thread(lambda: program(*args, **inputs))

    return call


def _slots(number):
    if not _asyncified or _asyncified[0].number != number:
        _asyncified[:] = [Slots(number)]
    return _asyncified[0]


def syncify(program, in_place=True):
    """Returns the program: sync code can call one that has only an `aforward` like any other."""
    return program
