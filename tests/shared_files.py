"""Test data that may lie beside the checkout, in `../shared`: only the tests in `shared_data/` read
it.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def shared_file(path: str) -> Path:
    """A file of `../shared`; a module that asks for one that is not there is skipped."""
    found = Path(__file__).parents[2] / "shared" / path
    if not found.is_file():
        pytest.skip("`../shared` is not beside this checkout", allow_module_level=True)
    return found
