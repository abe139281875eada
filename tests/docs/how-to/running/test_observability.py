"""The claims of docs/how-to/running/observability.md.

What is sent is tested in tests/telemetry/otel.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ferrule.telemetry.otel import names

pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry")

PAGE = (Path(__file__).parents[4] / "docs" / "how-to" / "running" / "observability.md").read_text(
    encoding="utf-8",
)
PREFIXES = ("gen_ai.", "ferrule.", "mcp.", "server.", "error.", "operation.")


def test_every_block_of_the_page_runs(execute) -> None:
    execute("docs/how-to/running/observability.md")


def test_no_link_of_the_page_is_broken(links) -> None:
    assert links("docs/how-to/running/observability.md") == []


def test_the_page_lists_every_name_that_is_sent() -> None:
    """With the version that it is of."""
    tables = "\n".join(line for line in PAGE.splitlines() if line.startswith("| "))
    values = [
        value for key, value in vars(names).items() if key.isupper() and isinstance(value, str)
    ]
    sent = {value for value in values if value.startswith(PREFIXES)} | {
        name for name, _ in names.SETTINGS.values()
    }
    missing = (
        sent - set(re.findall(r"`([a-z_.]+)`", tables)) - {names.LATEST_USAGE, names.TOKEN_MODALITY}
    )
    assert missing == set()
    assert names.SEMCONV_VERSION in PAGE
    assert names.LATEST[:7] in PAGE
