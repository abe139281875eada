"""The server's side of Anthropic, Gemini and OpenAI Responses: `serve` answers in all four
protocols, so that each wire meets a real server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.testing import serve as serve_chat
from ferrule.testing.server import openai_chat
from wire_servers import anthropic, gemini, openai_responses

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ferrule.testing import Served

PROTOCOLS = {
    "/chat/completions": openai_chat,
    "/responses": openai_responses,
    "/messages": anthropic,
    ":generateContent": gemini,
    ":streamGenerateContent": gemini,
}


def serve(lm: Any) -> AbstractContextManager[Served]:
    """`ferrule.testing.serve`, in all four protocols."""
    return serve_chat(lm, protocols=PROTOCOLS)
