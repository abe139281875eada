"""`python -m ferrule`: the command `ferrule`."""

from __future__ import annotations

from ferrule.cli.main import process

if __name__ == "__main__":
    process()
