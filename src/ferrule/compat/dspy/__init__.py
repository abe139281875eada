"""`import ferrule.compat.dspy as dspy`: DSPy's names with DSPy's behaviour, over ferrule.

Any other name is ferrule's own, or raises an error that says what to use instead.
"""

# pyright: basic
# pyright: reportUnusedImport=false

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import ferrule
from ferrule.compat.dspy.checked_adapters import Adapter, ChatAdapter, JSONAdapter, XMLAdapter
from ferrule.compat.dspy.programs import (
    ChainOfThought,
    Module,
    Parallel,
    Predict,
    ReAct,
    ReActV2,
    StatusMessage,
    StatusMessageProvider,
    StreamListener,
    StreamResponse,
    asyncify,
    streamify,
    syncify,
)  # fmt: skip
from ferrule.compat.dspy.values import (
    LM,
    AdapterParseError,
    BaseCallback,
    BaseLM,
    Code,
    ContextWindowExceededError,
    DummyLM,
    Example,
    Image,
    Prediction,
    Settings,
    ToolCalls,
    format_error_for_lm,
    settings,
)  # fmt: skip
from ferrule.values.signatures.signature import as_signature as ensure_signature

configure, context = settings.configure, settings.context
make_signature, SignatureMeta, BaseModule = ferrule.Signature, type(ferrule.Signature), Module
configure_cache = enable_logging = disable_logging = lambda **_: None
is_retryable_lm_error = lambda error: getattr(error, "is_retryable", False)

_RENAMED = (
    "DSPyError:FerruleError LMAuthError:AuthenticationError LMConfigurationError:ConfigurationError LMInvalidRequestError:BadRequestError "
    "LMNotConfiguredError:MissingKeyError LMProviderError:LMError LMRateLimitError:RateLimitError LMServerError:UnavailableError "
    "LMTimeoutError:UnavailableError LMTransportError:UnavailableError LMUnsupportedModelError:BadRequestError"
)
RENAMED = {name: core for name, _, core in (pair.partition(":") for pair in _RENAMED.split())}
"""DSPy's names for things that ferrule names differently."""
MISSING = {
    "ferrule has no optimizers: write instructions and `demos`": "AvatarOptimizer BetterTogether BootstrapFewShot BootstrapRS COPRO "
    "BootstrapFewShotWithOptuna BootstrapFewShotWithRandomSearch BootstrapFinetune Ensemble GEPA InferRules KNN KNNFewShot LabeledFewShot "
    "MIPROv2 Provider ReAnchor SIMBA Teleprompter TrainingJob",
    "use `program.batch(...)`, and compare": "Evaluate EvaluationResult MultiChainComparison SemanticF1 DataLoader GSM8K HotPotQA MATH",
    "use `n=`, `@program.output_validator` or a loop in a `forward`": "Assert BestOfN Refine Suggest majority",
    "give `ReAct` a tool for it": "CodeAct CodeInterpreter ColBERTv2 Embedder Embeddings ProgramOfThought PythonInterpreter RLM Retrieve",
    "create the program again and call `program.load(path)`: states hold no code": "load",
    "subclass `Type` or `ChatAdapter`": "BAMLAdapter Citations Document TwoStepAdapter TypeSafe",
    "use `get_lm_usage()`, `stream(...)` or `callbacks`": "UsageTracker apply_sync_streaming streaming_response track_usage with_callbacks",
}
"""Missing names: what to do instead, and the names."""
_PAGES = (
    "adapters adapters.base adapters.chat_adapter adapters.json_adapter adapters.xml_adapter adapters.types adapters.types.audio "
    "adapters.types.base_type adapters.types.code adapters.types.file adapters.types.history adapters.types.image adapters.types.reasoning "
    "adapters.types.tool clients clients.base_lm clients.lm datasets dsp dsp.utils dsp.utils.settings evaluate predict "
    "predict.chain_of_thought predict.parallel predict.predict predict.react predict.react_v2 primitives primitives.example "
    "primitives.module primitives.prediction retrievers signatures signatures.field signatures.signature streaming streaming.messages "
    "streaming.streamify streaming.streaming_listener teleprompt utils utils.asyncify utils.callback utils.dummies utils.exceptions "
    "utils.mcp utils.syncify"
)


def __getattr__(name: str) -> Any:
    """Look up a name of ferrule, or raise an error that says what to use instead of DSPy's."""
    if not name.startswith("_") and hasattr(ferrule, RENAMED.get(name, name)):
        return getattr(ferrule, RENAMED.get(name, name))
    for instead, names in MISSING.items():
        if name in names.split():
            raise ImportError(
                f"`dspy.{name}` is not in ferrule: {instead}. See docs/coming-from/dspy.md.",
            )
    raise AttributeError(
        f"`ferrule.compat.dspy` has no `{name}`, and neither has `ferrule`. See docs/coming-from/dspy.md.",
    )


class _Page(ModuleType):
    """A submodule of DSPy: each has all names of the facade."""

    def __getattr__(self, name: str) -> Any:
        return sys.modules.get(f"{self.__name__}.{name}") or getattr(sys.modules[__name__], name)


for _name in _PAGES.split():
    sys.modules[f"{__name__}.{_name}"] = _Page(f"{__name__}.{_name}")
    if "." not in _name:
        globals()[_name] = sys.modules[f"{__name__}.{_name}"]
