"""`python -m ferrule.testing`: an OpenAI-compatible server on loopback, in its own process."""

from __future__ import annotations

import sys
import time

from ferrule.testing.offline.model import AutoLM
from ferrule.testing.server.server import serve


def main(arguments: list[str] | None = None) -> None:
    """Serve until interrupted; the first line written is the base URL."""
    from argparse import ArgumentParser

    parser = ArgumentParser(
        "python -m ferrule.testing",
        description="An OpenAI-compatible server on 127.0.0.1, with AutoLM as its model.",
    )
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    chosen = parser.parse_args(arguments)
    with serve(AutoLM(), port=chosen.port) as served:
        sys.stdout.write(f"{served.base_url}\n")
        sys.stdout.flush()
        try:
            while True:
                # On Windows, Ctrl-C interrupts a sleep, but not a wait for an event.
                time.sleep(3600)
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
