"""DSPy's small modules that choose among several answers, or make one of them.

`BestOfN`, `Refine`, `majority` and `MultiChainComparison`.
"""

# DSPy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAssignmentType=false, reportReturnType=false

from __future__ import annotations

import inspect
import logging
from collections import Counter
from typing import Any

import ferrule
from ferrule.compat.dspy.evaluation import normalize_text
from ferrule.compat.dspy.modules import Module, Predict
from ferrule.compat.dspy.settings import settings
from ferrule.compat.dspy.values import Prediction
from ferrule.encoding.encode import json_text, jsonable
from ferrule.values.signatures.signature import as_signature

_logger = logging.getLogger("ferrule.compat.dspy")


class BestOfN(Module):
    """Runs a module up to N times, and returns the prediction with the highest reward.

    `reward_fn(inputs, prediction)` returns a number. A reward of at least `threshold` ends the
    attempts. An attempt that fails is left out; more than `fail_count` of them raise the error, and
    so does it if all failed.
    """

    def __init__(self, module, N, reward_fn, threshold, fail_count=None):
        super().__init__()
        self.module, self.N, self.reward_fn = module, N, reward_fn
        self.threshold = threshold
        self.fail_count = fail_count or N

    def forward(self, **inputs):
        best, best_reward = None, -float("inf")
        advice: dict[str, str] = {}
        failures = 0
        for attempt in range(1, self.N + 1):
            module = _for_an_attempt(self.module, advice)
            seen = _Seen(module)
            try:
                with ferrule.context(callbacks=[*ferrule.settings.callbacks, seen]):
                    prediction = module(**inputs)
                reward = self.reward_fn(inputs, prediction)
            except Exception as error:
                failures += 1
                _logger.warning("Attempt %d of %d failed: %r", attempt, self.N, error)
                is_last = attempt == self.N and best is None
                if failures > self.fail_count or is_last:
                    raise
                continue
            if reward > best_reward:
                best, best_reward = prediction, reward
            if self.threshold is not None and reward >= self.threshold:
                break
            if attempt < self.N:
                advice = self.advice(inputs, prediction, reward, seen.calls)
        return best

    def advice(self, inputs, prediction, reward, calls):
        """What to tell each predictor in the next attempt, by its name."""
        del inputs, prediction, reward, calls
        return {}


class Refine(BestOfN):
    """`BestOfN` that tells the predictors, before each further attempt, what to do differently."""

    def __init__(self, module, N, reward_fn, threshold, fail_count=None):
        super().__init__(module, N, reward_fn, threshold, fail_count)
        # Private, so that it is not one of the predictors that are saved.
        self._ask_for_advice = Predict(OfferFeedback)

    def advice(self, inputs, prediction, reward, calls):
        modules = {
            name: {
                "signature": predictor.signature.signature,
                "instructions": predictor.signature.instructions,
            }
            for name, predictor in self.module.named_predictors()
        }
        asked = {
            "program_code": _source(type(self.module)),
            "modules_defn": json_text(modules),
            "program_inputs": _shown(inputs),
            "program_trajectory": _shown(calls),
            "program_outputs": _shown(dict(prediction)),
            "reward_code": _source(self.reward_fn),
            "target_threshold": self.threshold,
            "reward_value": float(reward),
            "module_names": [*modules],
        }
        try:
            return self._ask_for_advice(**asked).advice
        except ferrule.FerruleError as error:
            _logger.warning("There is no advice for the next attempt: %r", error)
            return {}


class OfferFeedback(ferrule.Signature):
    """Find out which modules of a program are the cause of a reward below the threshold.

    For each of them, give concrete advice for the next attempt with the same or similar inputs. The
    module sees neither this attempt nor your discussion, only the advice. For a module that is not
    a cause, the advice is N/A.
    """

    program_code: str = ferrule.InputField(desc="The code of the program")
    modules_defn: str = ferrule.InputField(desc="The fields and instructions of each module")
    program_inputs: str = ferrule.InputField(desc="The inputs of the program")
    program_trajectory: str = ferrule.InputField(desc="The inputs and outputs of each module")
    program_outputs: str = ferrule.InputField(desc="The outputs of the program")
    reward_code: str = ferrule.InputField(desc="The code of the reward function")
    target_threshold: float | None = ferrule.InputField(desc="The reward that is wanted")
    reward_value: float = ferrule.InputField(desc="The reward of these outputs")
    module_names: list[str] = ferrule.InputField(desc="The modules that may get advice")
    discussion: str = ferrule.OutputField(desc="Which module went wrong, where and why")
    advice: dict[str, str] = ferrule.OutputField(
        desc="For each module, in which cases it made mistakes, and what to do in them; or N/A"
    )


class _Seen:
    """An observer that keeps what the predictors of a program were asked and answered."""

    def __init__(self, module: Any) -> None:
        self.names = {id(predictor): name for name, predictor in module.named_predictors()}
        self.calls: list[dict[str, Any]] = []
        self._inputs: dict[str, tuple[str, Any]] = {}

    def __call__(self, event: ferrule.Event) -> None:
        match event:
            case ferrule.events.RunStarted(program=program, inputs=inputs):
                name = self.names.get(id(program))
                if name is not None:
                    self._inputs[event.span_id] = (name, dict(inputs))
            case ferrule.events.RunFinished(prediction=prediction):
                name, inputs = self._inputs.pop(event.span_id, ("", None))
                if name and prediction is not None:
                    self.calls.append(
                        {"module_name": name, "inputs": inputs, "outputs": dict(prediction)}
                    )


def _for_an_attempt(module: Any, advice: dict[str, str]) -> Any:
    """A copy of a module whose models vary their answers, with advice in the instructions."""
    module = module.deepcopy()
    for name, predictor in module.named_predictors():
        lm = predictor.lm or settings.lm
        if lm is not None:
            predictor.lm = lm.copy(temperature=1.0)
        text = advice.get(name, "N/A").strip()
        if text and text != "N/A":
            instructions = f"{predictor.signature.instructions}\n\nAdvice from an earlier attempt: "
            predictor.signature = predictor.signature.with_instructions(instructions + text)
    return module


def _source(thing: Any) -> str:
    for code in (thing, type(thing)):
        try:
            return inspect.getsource(code)
        except (TypeError, OSError):  # not written in a file, or not in Python
            continue
    return repr(thing)


def _shown(value: Any) -> str:
    return json_text(jsonable(value))


def _normalized(text: Any) -> Any:
    return normalize_text(str(text)) or None


def majority(prediction_or_completions, normalize=_normalized, field=None):
    """The most common answer, of the last output or of `field`; the first of those that are equal.

    Answers that `normalize` turns into None are not counted.
    """
    completions = prediction_or_completions
    if isinstance(completions, ferrule.Prediction):
        completions = completions.completions
    completions = [dict(completion) for completion in completions]
    field = field or [*completions[0]][-1]
    values = [completion[field] for completion in completions]
    if normalize is not None:
        values = [normalize(value) for value in values]
    counted = [value for value in values if value is not None] or values
    [(most_common, _)] = Counter(counted).most_common(1)
    return Prediction.from_completions([completions[values.index(most_common)]])


class MultiChainComparison(Module):
    """Makes one answer of M attempts: `compare(completions, question=...)`."""

    def __init__(self, signature, M=3, temperature=0.7, **config):
        super().__init__()
        self.M = M
        signature = as_signature(signature)
        *_, self.last_key = signature.output_fields
        for number in range(1, M + 1):
            attempt = ferrule.InputField(desc="An attempt of a student: its reasoning and answer")
            signature = signature.append(f"reasoning_attempt_{number}", attempt, str)
        rationale = ferrule.OutputField(desc="The corrected reasoning, after all attempts")
        signature = signature.prepend("rationale", rationale, str)
        self.predict = Predict(signature, temperature=temperature, **config)

    def forward(self, completions, **inputs):
        if len(completions) != self.M:
            raise ValueError(
                f"`MultiChainComparison(M={self.M})` compares {self.M} attempts; found "
                f"{len(completions)}. Pass `M=` when you make it."
            )
        attempts = {}
        for number, completion in enumerate(completions, 1):
            reasoning = completion.get("rationale", completion.get("reasoning"))
            attempts[f"reasoning_attempt_{number}"] = (
                f"I think: {_first_line(reasoning)} My answer is: "
                f"{_first_line(completion[self.last_key])}"
            )
        return self.predict(**attempts, **inputs)


def _first_line(text: Any) -> str:
    return str(text or "").strip().partition("\n")[0]
