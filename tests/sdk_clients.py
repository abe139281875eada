"""Clients of the providers' own SDKs, for a server on loopback.

The SDKs are imported when a test wants a client: they take four seconds, and every worker of the
suite reads every file of tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import anthropic
    import openai


def openai_client(url: str, key: str = "k") -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=url, api_key=key, max_retries=0)


def async_openai_client(url: str, key: str = "k") -> openai.AsyncOpenAI:
    import openai

    return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0)


def anthropic_client(url: str, key: str = "k") -> anthropic.Anthropic:
    import anthropic

    return anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key=key, max_retries=0)


def async_anthropic_client(url: str, key: str = "k") -> anthropic.AsyncAnthropic:
    import anthropic

    return anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key=key, max_retries=0)
