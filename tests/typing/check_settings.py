"""What type checkers say of settings and models. Checked by mypy; nothing here is executed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import ferrule
from ferrule import (
    LM,
    BaseLM,
    ChatAdapter,
    Delta,
    JSONAdapter,
    Request,
    Response,
    XMLAdapter,
    configure,
    context,
    settings,
)
from ferrule.testing import ScriptedLM


class Shouting(BaseLM):
    """A model of one method."""

    def complete(self, request: Request) -> Response:
        """Shout."""
        return Response(text=request.messages[-1].text.upper())


def what_must_check() -> None:
    configure(lm=LM("openai/gpt-5-mini", temperature=0), adapter=JSONAdapter(), callbacks=[print])
    with context(lm=Shouting(), adapter=ChatAdapter(fallback=XMLAdapter())):
        ferrule.settings.configure(allow_tool_async_sync_conversion=True)
    settings.lm
    assert_type(Shouting()("hi"), str)
    assert_type(LM("ollama/qwen3").copy(temperature=1), LM)
    request = Request(
        ferrule.Messages([ferrule.Message("user", "hi")]),
        tools=[ferrule.Tool(print).to_openai_schema()],
    )
    assert_type(Shouting().complete(request), Response)
    assert_type(Shouting().stream(request), Iterator[Delta | Response])
    assert_type(Shouting().astream(request), AsyncIterator[Delta | Response])
    ScriptedLM(
        [
            "text",
            {"name": "f", "args": {}},
            [ferrule.ToolCall(name="f")],
            Response("x"),
            ValueError("no"),
            lambda asked: asked.digest,
        ],
    )
    assert_type(LM("openai/gpt-5-mini", timeout_s=3, temperature=0), LM)
    assert_type(LM(model="openai/gpt-5-mini", timeout_s=3, temperature=0), LM)
    assert_type(ferrule.__version__, str)


def what_must_not() -> None:
    configure(lmm=None)  # type: ignore[call-arg]
    configure(max_workers="3")  # type: ignore[arg-type]
    LM("openai/gpt-5-mini", timeout_s="3")  # type: ignore[arg-type]
    Response(3)  # type: ignore[arg-type]
    ChatAdapter(repairs="3")  # type: ignore[arg-type]
    ferrule.nothing  # type: ignore[attr-defined]
    answer: int = Shouting()("hi")  # type: ignore[assignment]
    del answer
