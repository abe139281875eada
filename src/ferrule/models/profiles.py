"""What single models can do otherwise than their provider's others.

Only what a source says; a model that is not here has its provider's capabilities. `LM(..., capabilities=...)` overrides both. A model that
refuses tools in spite of what stands here is found out when it is asked (`programs/asking/native_or_text.py`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ferrule.values.record import Record, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.models.providers import Provider
    from ferrule.values.conversation.exchange import Capabilities


class _Profile(Record):
    provider: str
    pattern: str
    changes: Mapping[str, Any]


_PROFILES = (
    # "... does not support tools": magentic-ui issue 206, OpenManus issue 220, Vane issue 1137 (2025-03 to 2026-05).
    _Profile("ollama", r"gemma[23]?(?:$|:)|llama2(?:$|:)|phi4(?:$|:)|orca2(?:$|:)|qwen(?:$|:)", {"native_tools": False}),
    # Schemas of an answer came with gpt-4o (guide "Structured model outputs", 2026-08).
    _Profile("openai", r"gpt-3\.5|gpt-4(?:$|-(?:0|1|32k|turbo|vision))", {"json_schema": False, "json_object": True}),
    # Schemas of an answer came with Sonnet 4.5 and Opus 4.1 (page "Structured outputs", 2026-10).
    _Profile("anthropic", r"claude-(?:instant|[23]|(?:sonnet|opus)-4(?:$|-0|-2025))", {"json_schema": False}),
)


def capabilities_of(provider: Provider, model: str) -> Capabilities:
    """What a model can do, as far as is known."""
    found = provider.capabilities
    for profile in _PROFILES:
        if profile.provider == provider.name and re.match(profile.pattern, model.lower()):
            found = replace(found, **profile.changes)
    return found
