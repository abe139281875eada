"""DSPy's `ProgramOfThought` and `CodeAct`: agents whose model writes Python.

The code runs in the interpreter of the core's code mode (`docs/how-to/tools/code.md`). It calls
tools with `await`, and each call is ruled, approved and recorded.
"""

# DSPy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

from typing import Any

import ferrule
from ferrule.compat.dspy.modules import ReAct
from ferrule.compat.dspy.values import Prediction
from ferrule.values.outcome import recast


class CodeAct(ReAct):
    """The model writes Python that calls the tools.

    `prediction.trajectory` has `generated_code_0` and `code_output_0`, or `observation_0` for code
    that failed, and so on.
    """

    def __init__(self, signature, tools, max_iters=5, interpreter_factory=None, **options):
        if interpreter_factory is not None:
            raise ferrule.errors.ConfigurationError(
                "The code runs in ferrule's own interpreter: leave `interpreter_factory` out. Its "
                "bounds are `calls=CodeMode(seconds=..., memory_mb=...)`."
            )
        options.setdefault("calls", "code")
        super().__init__(signature, tools, max_iters, **options)

    def flow(self, /, **inputs):
        prediction = yield from super().flow(**inputs)
        outputs = {name: prediction[name] for name in prediction if name != "trajectory"}
        snippets = self._snippets(prediction)
        return recast(prediction, Prediction, {**snippets, **outputs})

    def _snippets(self, prediction: Any) -> dict[str, Any]:
        snippets: dict[str, Any] = {}
        index = 0
        for step in prediction._trajectory.steps:
            for call, result in zip(step.calls, step.results, strict=True):
                if call.name != "run_code":
                    continue
                snippets[f"generated_code_{index}"] = call.args.get("code", "")
                key = f"code_output_{index}"
                if result.is_error:
                    key = f"observation_{index}"
                snippets[key] = str(result.content)
                index += 1
        return {"trajectory": snippets}


class ProgramOfThought(CodeAct):
    """The model writes Python that computes the outputs."""

    def __init__(self, signature, max_iters=3, interpreter_factory=None, **options):
        super().__init__(signature, (), max_iters, interpreter_factory, **options)

    def _snippets(self, prediction: Any) -> dict[str, Any]:
        return {}
