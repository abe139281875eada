"""The claims of docs/how-to/models/batches.md.

What it says of resumes and errors is proved in tests/programs/lifecycle/test_provider_batch.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from batch_server import BatchProvider, batch_server

from ferrule import LM
from ferrule.models.batches import AnthropicBatches, OpenAIBatches

if TYPE_CHECKING:
    import pytest


def test_every_block_of_the_page_runs_and_the_batch_is_sent(
    execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = execute("docs/how-to/models/batches.md")
    monkeypatch.setattr("ferrule.programs.lifecycle.provider_batch.DEFAULT_POLL_S", 0.01)

    def mood(prompt: str) -> str:
        return f"[[ ## mood ## ]]\n{'good' if 'love' in prompt else 'bad'}"

    with batch_server(BatchProvider(mood)) as url:
        page["classify"].set_lm(LM("openai/gpt-5-mini", base_url=url, api_key="k"))
        assert page["label"](["I love it", "It broke"]) == ["good", "bad"]


def test_the_limits_of_the_providers_are_those_of_the_page() -> None:
    assert (OpenAIBatches.most_requests, OpenAIBatches.most_bytes) == (50_000, 200_000_000)
    assert (AnthropicBatches.most_requests, AnthropicBatches.most_bytes) == (100_000, 256_000_000)


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/models/batches.md") == []
