"""The face: one table of public names, and the same names for type checkers."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

import ferrule

STUB = Path(ferrule.__file__).with_suffix(".pyi")


def test_every_public_name_is_there_and_is_what_its_home_calls_by_that_name() -> None:
    """U161."""
    for name in ferrule.__all__:
        found = getattr(ferrule, name)
        assert isinstance(found, ModuleType) or getattr(found, "__name__", name) == name
    assert set(ferrule.__all__) <= set(dir(ferrule))


def test_type_checkers_see_the_same_names() -> None:
    """Ours: the stub beside the table."""
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    imported = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(ferrule.__all__)


def test_a_name_that_is_not_there_says_so() -> None:
    """Ours."""
    with pytest.raises(AttributeError, match="no `Nonsense`"):
        _ = ferrule.Nonsense


def test_settings_is_read_as_attributes_whatever_was_imported_first() -> None:
    """D40: the module is the view."""
    assert ferrule.settings.lm is None
    with ferrule.context(lm=ferrule.ScriptedLM([])):
        assert isinstance(ferrule.settings.lm, ferrule.ScriptedLM)
    with pytest.raises(AttributeError, match="no setting `nonsense`"):
        _ = ferrule.settings.nonsense
