"""`import ferrule.compat.dspy as dspy`: DSPy's names with DSPy's behaviour, over ferrule.

Any other name is ferrule's own, or raises an error that says what to use instead.
"""

# pyright: basic
# pyright: reportUnusedImport=false

from __future__ import annotations

import importlib.abc
import sys
from types import ModuleType
from typing import Any

import ferrule
from ferrule.compat.dspy import modules, pages
from ferrule.compat.dspy.checked_adapters import (
    Adapter,
    ChatAdapter,
    FieldInfoWithName,
    JSONAdapter,
    XMLAdapter,
    parse_value,
)
from ferrule.compat.dspy.code_modules import CodeAct, ProgramOfThought
from ferrule.compat.dspy.errors import (
    AdapterParseError,
    ContextWindowExceededError,
    format_error_for_lm,
)
from ferrule.compat.dspy.evaluation import (
    Evaluate,
    EvaluationResult,
    answer_exact_match,
    normalize_text,
)
from ferrule.compat.dspy.models import LM, BaseLM, DummyLM
from ferrule.compat.dspy.modules import (
    ChainOfThought,
    Module,
    Parallel,
    Predict,
    asyncify,
    syncify,
)
from ferrule.compat.dspy.react_v2 import ReActV2
from ferrule.compat.dspy.settings import BaseCallback, Settings, settings
from ferrule.compat.dspy.several_answers import (
    BestOfN,
    MultiChainComparison,
    Refine,
    majority,
)
from ferrule.compat.dspy.streaming import (
    StatusMessage,
    StatusMessageProvider,
    StreamListener,
    StreamResponse,
    streamify,
)
from ferrule.compat.dspy.tools import Tool, convert_mcp_tool
from ferrule.compat.dspy.values import Code, Completions, Example, Image, Prediction, ToolCalls
from ferrule.values.signatures.signature import as_signature as ensure_signature

configure, context = settings.configure, settings.context
make_signature, SignatureMeta, BaseModule = ferrule.Signature, type(ferrule.Signature), Module


def configure_cache(**_):
    """Does nothing: ferrule has no cache, and its logging is Python's."""


convert_langchain_tool = ferrule.Tool.from_langchain

enable_logging = disable_logging = configure_cache


def is_retryable_lm_error(error):
    return getattr(error, "is_retryable", False)


RENAMED = {
    "DSPyError": "FerruleError",
    "LMAuthError": "AuthenticationError",
    "LMConfigurationError": "ConfigurationError",
    "LMInvalidRequestError": "BadRequestError",
    "LMNotConfiguredError": "MissingKeyError",
    "LMProviderError": "LMError",
    "LMRateLimitError": "RateLimitError",
    "LMServerError": "UnavailableError",
    "LMTimeoutError": "UnavailableError",
    "LMTransportError": "UnavailableError",
    "LMUnsupportedModelError": "BadRequestError",
}
"""DSPy's names for things that ferrule names differently."""
MISSING = {
    "ferrule has no optimizers: write instructions and `demos`": (
        "AvatarOptimizer BetterTogether BootstrapFewShot BootstrapFewShotWithOptuna "
        "BootstrapFewShotWithRandomSearch BootstrapFinetune BootstrapRS COPRO Ensemble GEPA "
        "InferRules KNN KNNFewShot LabeledFewShot MIPROv2 Provider ReAnchor SIMBA Teleprompter "
        "TrainingJob"
    ),
    "use `program.batch(...)`, and compare": ("SemanticF1 DataLoader GSM8K HotPotQA MATH"),
    "use `n=`, `@program.output_validator` or a loop in a `forward`": ("Assert Suggest"),
    "give `ReAct` a tool for it": (
        "CodeInterpreter ColBERTv2 Embedder Embeddings PythonInterpreter RLM Retrieve"
    ),
    "create the program again and call `program.load(path)`: states hold no code": "load",
    "subclass `Type` or `ChatAdapter`": ("BAMLAdapter Citations Document TwoStepAdapter TypeSafe"),
    "use `get_lm_usage()`, `stream(...)` or `callbacks`": (
        "UsageTracker apply_sync_streaming streaming_response track_usage with_callbacks"
    ),
}
"""Missing names: what to do instead, and the names."""


def __getattr__(name: str) -> Any:
    """Look up a name of ferrule, or raise an error that says what to use instead of DSPy's."""
    if name == "ReAct":  # looked up at each use: it depends on `configure(version=...)`
        if settings.is_version("3.5"):
            return ReActV2
        return modules.ReAct
    ferrules_name = RENAMED.get(name, name)
    for home in (ferrule, ferrule.errors, ferrule.events, ferrule.testing):
        if not name.startswith("_") and hasattr(home, ferrules_name):
            return getattr(home, ferrules_name)
    raise AttributeError(_why_missing(name) or _UNKNOWN.format(name))


_UNKNOWN = (
    "`ferrule.compat.dspy` has no `{}`, and neither has `ferrule`. See docs/coming-from/dspy.md."
)


def _why_missing(name: str) -> str:
    """What to use instead of a name of DSPy that is not here; empty for any other name."""
    for instead, names in MISSING.items():
        if name in names.split():
            return f"`dspy.{name}` is not in ferrule: {instead}. See docs/coming-from/dspy.md."
    return ""


class _Page(ModuleType):
    """A submodule of DSPy: each has all names of the facade."""

    __path__: Any = ()  # a package, so that Python asks `_MissingNames`

    def __getattr__(self, name: str) -> Any:
        return sys.modules.get(f"{self.__name__}.{name}") or getattr(sys.modules[__name__], name)


class _MissingNames(importlib.abc.MetaPathFinder):
    """Makes `from dspy import NAME` say what to use instead of a missing name.

    Python asks for a submodule of this name, because the module has no such attribute. `hasattr` is
    False, as for any other missing name.
    """

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        module, _, name = fullname.rpartition(".")
        if module == __name__ or module.startswith(f"{__name__}."):
            why = _why_missing(name)
            if why:
                raise ImportError(why, name=fullname)


sys.meta_path.append(_MissingNames())

for _name in pages.PAGES.split():
    sys.modules[f"{__name__}.{_name}"] = _Page(f"{__name__}.{_name}")
    if "." not in _name:
        globals()[_name] = sys.modules[f"{__name__}.{_name}"]
