"""`python -m ferrule.cli.demo`, or `make demo`: a whole run on the terminal, without an API key."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from ferrule.cli.main import run_loaded

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> int:
    """Run the demo; returns its exit code: 0 if no run failed."""

    def load() -> Callable[[], int]:
        # Imported inside `run_loaded`, which names the extra that is missing.
        from ferrule.cli.demo import tour

        if sys.argv[1:2] == ["crash"]:
            # The other process of the part about crashes.
            return partial(_crash, tour.crash, sys.argv[2])
        return tour.run_tour

    return run_loaded(load)


def _crash(crash: Callable[[str], None], run_id: str) -> int:
    crash(run_id)
    return 0


if __name__ == "__main__":
    sys.exit(main())
