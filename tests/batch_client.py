"""A process that runs one batch through a provider: `python batch_client.py MODEL URL STORE COUNT`."""

from __future__ import annotations

import sys

from ferrule import LM, Predict, SQLiteStore


def main(model: str, url: str, store: str, count: str) -> None:
    """Run the batch, and write the sum of its answers and of its tokens."""
    program = Predict("question -> answer: int", lm=LM(model, base_url=url, api_key="k"))
    results = program.batch(
        [{"question": f"What is {number} x 7?"} for number in range(int(count))],
        store=SQLiteStore(store, full_sync=False, max_recoveries=20),
        batch_id="sums",
        via="provider",
        poll_s=0.05,
        progress=False,
    )
    sys.stdout.write(f"{sum(result.answer for result in results)} {results.usage.calls}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
