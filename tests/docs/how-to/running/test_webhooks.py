"""docs/how-to/running/webhooks.md holds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from ferrule import ReAct, tool
from ferrule.testing import ScriptedLM

ROOT = Path(__file__).parents[4]


def test_the_receiver_of_the_page_passes_a_question_on_to_slack(execute) -> None:
    pytest.importorskip("starlette")
    import httpx2
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from ferrule.web.reading import inbox
    from ferrule.web.webhook import message_of, signed_headers

    page = execute("docs/how-to/running/webhooks.md")
    posted: list[str] = []

    @tool(effect="once", require_confirmation=True)
    def refund(order: str, euros: float) -> str:
        """Pay money back."""
        return "paid"

    async def hooks_slack_com(request: Request) -> JSONResponse:
        posted.append((await request.json())["text"])
        return JSONResponse({"ok": True})

    async def deliver(secret: str) -> int:
        headers = signed_headers(secret, "a-question", body)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=page["app"])) as client:
            response = await client.post("http://x/ferrule", content=body, headers=headers)
        return response.status_code

    fake = Starlette(routes=[Route("/{path:path}", hooks_slack_com, methods=["POST"])])
    page["slack"] = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=fake))
    call = {"name": "refund", "args": {"order": "A-1042", "euros": 29.9}}
    agent = ReAct("task -> answer", [refund], name="Desk", lm=ScriptedLM([call]))
    run = agent.start(task="It broke.", store=page["store"])
    [question] = [
        asked for asked in inbox(page["store"])[0] if asked.question.id == run.pending[0].id
    ]
    body = json.dumps(message_of(question, "https://runs.example.org")).encode()
    assert asyncio.run(deliver("a" * 32)) == 401
    assert posted == []
    assert asyncio.run(deliver(page["SECRET"])) == 204
    [text] = posted
    assert text.startswith(f"*Desk* asks: <https://runs.example.org/runs/{run.id}#q-")
    assert "|refund: order A-1042, euros 29.9>" in text
    assert "cannot be undone" in text


def test_the_receiver_has_twenty_lines() -> None:
    page = (ROOT / "docs/how-to/running/webhooks.md").read_text(encoding="utf-8")
    receiver = page.partition("## A receiver for Slack")[2].split("```python\n")[1]
    lines = [line for line in receiver.partition("\n```")[0].splitlines() if line.strip()]
    assert len(lines) <= 20
