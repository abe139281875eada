"""`python -m ferrule.cli.demo.__main__`, which is `make demo`: a whole run on the terminal, without a key.

What it shows stands in `tour.py`, which needs the extra `ferrule[cli]`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ferrule.cli.entry import entered

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> int:
    """Run the demo; returns its exit code, 0 where every answer was right."""

    def tour() -> Callable[[], int]:
        from ferrule.cli.demo.tour import run

        return run

    return entered(tour)


if __name__ == "__main__":
    sys.exit(main())
