"""What holds for all tests: properties are not timed."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no fault of the code under test.
settings.register_profile("ferrule", deadline=None)
settings.load_profile("ferrule")
