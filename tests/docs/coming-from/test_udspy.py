"""The claims of docs/coming-from/udspy.md, and its table."""

from __future__ import annotations

import re

import pytest
from name_tables import name_in, resolve, rows_of

import ferrule
from ferrule.compat import udspy
from ferrule.compat.udspy import models, modules, values

PAGE = "docs/coming-from/udspy.md"
HEAD, ROWS = rows_of(PAGE)

EXPORTED = frozenset(
    re.findall(
        r"\w+",
        """
    settings LM OpenAILM Signature InputField OutputField make_signature Module Predict Prediction ChainOfThought ReAct BaseCallback with_callbacks
    ACTIVE_CALL_ID module_callback ModuleCallback ModuleContext PredictContext ReactContext ConfirmationRequired ConfirmationRejected
    ConfirmationStatus ApprovalData ResumeState confirm_first get_confirmation_status respond_to_confirmation ChatAdapter History StreamEvent
    OutputStreamChunk emit_event Tool tool Tools ToolCall ToolCalls
""",
    ),
)
"""The names that `import *` brings from udspy 0.1.8."""

OF_PARTS = {
    "Hooks",
    "with_model",
    "forget_direct",
    "episodes",
    "contextmanager",
    "is_inside_run",
    "replace",
    "openai_message",
    "SimpleNamespace",
    "PROVIDERS",
    "ABC",
    "FunctionType",
    "attrgetter",
    "TypeAdapter",
    "ValidationError",
    "abstractmethod",
    "create_model",
    "partial",
    "render",
    "response_of",
    "run_async",
    "under_udspys_names",
    "wraps",
}
"""What the facade's own modules use."""


def test_every_block_of_the_page_runs(execute) -> None:
    """Style: a page's claims have a test."""
    execute(PAGE)


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links(PAGE) == []


def test_the_page_has_one_table_of_four_columns() -> None:
    assert HEAD == ["udspy", "here", "in the core", "what differs"]
    assert [
        row for row in ROWS if len(row) != 4 or row[1] not in {"same", "facade", "replacement"}
    ] == []
    names = [name_in(row[0]) for row in ROWS]
    assert len(names) == len(set(names))


def test_every_name_of_udspy_and_of_the_facade_is_in_the_table() -> None:
    own = {
        name
        for part in (models, modules, values)
        for name, found in vars(part).items()
        if not name.startswith("_")
        and type(found).__name__ != "module"
        and name not in {"Any", "Literal"}
    }
    assert (EXPORTED | own | udspy._MISSING) - {name_in(row[0]) for row in ROWS} == OF_PARTS


@pytest.mark.parametrize(
    ("name", "kind", "core"),
    [pytest.param(*row[:3], id=row[0].strip("`")) for row in ROWS],
)
def test_every_row_tells_the_truth(name: str, kind: str, core: str) -> None:
    """What is `same` is ferrule's own, a `facade` name exists, a `replacement` does not, and its
    core name exists.
    """
    name = name_in(name)
    resolve(ferrule, name_in(core))
    if kind == "replacement":
        with pytest.raises((AttributeError, ImportError)):
            resolve(udspy, name)
    else:
        with ferrule.context(
            lm=ferrule.testing.ScriptedLM([]),
        ):  # some names are those of a model that is configured
            found = resolve(udspy, name)
        if "." not in name and (kind == "same" or hasattr(ferrule, name)):
            assert (found is resolve(ferrule, name)) is (kind == "same")


def test_a_name_that_is_missing_refers_to_the_page() -> None:
    """Compatibility: nothing differs silently."""
    with pytest.raises(ImportError, match=r"has no `Episode`. docs/coming-from/udspy\.md"):
        exec("from ferrule.compat.udspy.module import Episode")
    with pytest.raises(AttributeError, match=r"docs/coming-from/udspy\.md"):
        _ = udspy.Predikt
