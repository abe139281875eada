"""The claims of docs/how-to/models/structured-outputs.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ferrule import LM

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "models" / "structured-outputs.md"


def test_every_block_of_the_page_runs_and_prints_what_the_page_says(execute, printed) -> None:
    execute("docs/how-to/models/structured-outputs.md")
    printed("docs/how-to/models/structured-outputs.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/models/structured-outputs.md") == []


def _rows() -> list[tuple[str, str | None]]:
    """Each provider of the table with the dialect of its row."""
    rows: list[tuple[str, str | None]] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 3 or "`" not in cells[0] or cells[0].startswith("the same"):
            continue
        dialect = cells[2].strip("`") or None
        providers = re.findall(r"`([a-z]+)(?:/\.\.\.)?`", cells[0])
        rows += [(provider, dialect) for provider in providers]
    return rows


@pytest.mark.parametrize(("provider", "dialect"), _rows())
def test_the_models_of_a_provider_enforce_the_dialect_of_their_row(
    provider: str, dialect: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://x.openai.azure.com")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "global")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "x")
    assert LM(f"{provider}/newest-1", api_key="k").capabilities.schema_target == dialect
