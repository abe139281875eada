"""The claims of docs/coming-from/dspy.md, and its table."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest
from name_tables import name_in, resolve, rows_of

import ferrule
from ferrule.compat import dspy
from ferrule.compat.dspy.checked_adapters import REFUSED_METHODS

ROOT = Path(__file__).parents[3]
PAGE = "docs/coming-from/dspy.md"
HEAD, ROWS = rows_of(PAGE)

EXPORTED = frozenset(
    re.findall(
        r"\w+",
        """
    Adapter AdapterParseError Audio AvatarOptimizer BaseCallback BaseLM BaseModule BestOfN BetterTogether BootstrapFewShot
    BootstrapFewShotWithOptuna BootstrapFewShotWithRandomSearch BootstrapFinetune BootstrapRS COPRO ChainOfThought ChatAdapter
    Choice Citations Code CodeAct CodeExecutionError CodeInterpreter CodeInterpreterError ColBERTv2 CompleteAndGrounded
    Completions ContextWindowExceededError DSPyError Document DummyLM DummyVectorizer EM Embedder Embeddings EmbeddingsWithScores
    Ensemble Evaluate EvaluationResult Example File FinalOutput Flex GEPA History Image InferRules InputField JSONAdapter KNN
    KNNFewShot LM LMAuthError LMBillingError LMCollectionLimitError LMConfigurationError LMError LMInvalidRequestError
    LMLockTimeoutError LMNotConfiguredError LMProviderError LMRateLimitError LMServerError LMStreamAssemblyError LMTimeoutError
    LMTransportError LMUnexpectedError LMUnsupportedFeatureError LMUnsupportedModelError LabeledFewShot LocalInterpreter MIPROv2
    Module MultiChainComparison Noul OldField OldInputField OldOutputField OutputField Parallel Predict Prediction
    ProgramOfThought Provider PythonInterpreter RLM ReAct ReActV2 ReAnchor Reasoning Refine Retrieve SIMBA SandboxSerializable
    Score SemanticF1 Signature SignatureMeta StatusMessage StatusMessageProvider StreamListener StreamResponse Tool
    ToolCallResults ToolCalls TrainingJob TwoStepAdapter Type TypeSafe XMLAdapter answer_exact_match answer_passage_match
    apply_sync_streaming asyncify bootstrap_trace_data configure configure_cache configure_dspy_loggers context
    disable_litellm_logging disable_logging download dummy_rm enable_litellm_logging enable_logging ensure_signature experimental
    infer_prefix inspect_history is_retryable_lm_error load load_settings majority make_signature normalize_text
    pretty_print_history resolve_interpreter_factory settings streamify streaming_response syncify track_usage with_callbacks
""",
    ),
)
"""What `import dspy` and its pages offer in DSPy 3.4.1, without modules."""


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute(PAGE)


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links(PAGE) == []


def test_the_page_has_one_table_of_four_columns() -> None:
    """Compatibility: one table with every public name."""
    assert HEAD == ["DSPy", "here", "in the core", "what differs"]
    assert [
        row for row in ROWS if len(row) != 4 or row[1] not in {"same", "facade", "replacement"}
    ] == []
    names = [name_in(row[0]) for row in ROWS]
    assert len(names) == len(set(names))


def test_the_page_names_every_method_of_adapters_that_is_refused() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    section = text.partition("## Methods of adapters")[2].partition("## What still differs")[0]
    items = re.findall(r"^- ([^:]*):", section, re.MULTILINE)
    named = {name for item in items for name in re.findall(r"`(\w+)`", item)}
    assert named == {*REFUSED_METHODS}


def test_every_name_of_dspy_and_of_the_facade_is_in_the_table() -> None:
    """Compatibility: every public name of DSPy's pages, and every name that the facade has."""
    names = {name_in(row[0]) for row in ROWS}
    beside = {"Any", "annotations", "RENAMED", "MISSING"}
    own = {
        name
        for name in vars(dspy)
        if not name.startswith("_") and not isinstance(getattr(dspy, name), ModuleType)
    } - beside
    tables = {*dspy.RENAMED, *" ".join(dspy.MISSING.values()).split()}
    assert (EXPORTED | own | tables) - names == {"ModuleType"}


@pytest.mark.parametrize(
    ("name", "kind", "core"),
    [pytest.param(*row[:3], id=row[0].strip("`")) for row in ROWS],
)
def test_every_row_tells_the_truth(name: str, kind: str, core: str) -> None:
    """Compatibility: what is `same` is ferrule's own, a `facade` name exists, a `replacement`
    raises and its core name exists.
    """
    name = name_in(name)
    resolve(ferrule, name_in(core))
    if kind == "replacement":
        if "." not in name:
            with pytest.raises((ImportError, AttributeError), match=r"docs/coming-from/dspy\.md"):
                getattr(dspy, name)
    else:
        found = resolve(dspy, name)
        if kind == "same" and "." not in name:
            assert found is resolve(ferrule, name)
        if kind == "facade" and "." not in name:
            assert found is not getattr(ferrule, name, None)


def test_every_page_of_dspy_that_the_facade_knows_can_be_imported() -> None:
    """Compatibility: submodule paths work, as attributes and in imports; a misspelled one does not."""
    assert dspy.adapters.chat_adapter.ChatAdapter is dspy.ChatAdapter
    assert (
        importlib.import_module("ferrule.compat.dspy.adapters.types.tool").ToolCalls
        is dspy.ToolCalls
    )
    assert (
        importlib.import_module("ferrule.compat.dspy.dsp.utils.settings").settings is dspy.settings
    )
    with pytest.raises(ImportError):
        importlib.import_module("ferrule.compat.dspy.adaptres")
    with pytest.raises(ImportError, match="has no optimizers"):
        exec("from ferrule.compat.dspy.teleprompt import BootstrapFewShot")
    with pytest.raises(ImportError, match=r"`program\.batch"):
        exec("from ferrule.compat.dspy.datasets import HotPotQA")
    with pytest.raises(AttributeError, match="neither has `ferrule`"):
        _ = dspy.Predikt
