"""`python -m ferrule.cli.demo`, or `make demo`: a whole run on the terminal, without an API key."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ferrule.cli.main import run_loaded

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> int:
    """Run the demo; returns its exit code: 0 if every answer is right."""

    def load() -> Callable[[], int]:
        # Imported inside `run_loaded`, which names the extra that is missing.
        from ferrule.cli.demo.tour import run_tour

        return run_tour

    return run_loaded(load)


if __name__ == "__main__":
    sys.exit(main())
