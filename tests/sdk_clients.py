"""Clients of the providers' own SDKs, for a server on loopback.

The SDKs are imported when a test wants a client: they take four seconds, and every worker of the
suite reads every file of tests. Without an SDK, the test is skipped (`scripts/check-core.sh`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import anthropic
    import openai


def openai_client(url: str, key: str = "k") -> openai.OpenAI:
    sdk = pytest.importorskip("openai")
    return sdk.OpenAI(base_url=url, api_key=key, max_retries=0)


def async_openai_client(url: str, key: str = "k") -> openai.AsyncOpenAI:
    sdk = pytest.importorskip("openai")
    return sdk.AsyncOpenAI(base_url=url, api_key=key, max_retries=0)


def anthropic_client(url: str, key: str = "k") -> anthropic.Anthropic:
    sdk = pytest.importorskip("anthropic")
    return sdk.Anthropic(base_url=url.removesuffix("/v1"), api_key=key, max_retries=0)


def async_anthropic_client(url: str, key: str = "k") -> anthropic.AsyncAnthropic:
    sdk = pytest.importorskip("anthropic")
    return sdk.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key=key, max_retries=0)
