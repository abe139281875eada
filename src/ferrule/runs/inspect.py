"""The latest model calls, for a person to read."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from ferrule.runs.observers import exchanges
from ferrule.values.encoding.encode import json_text

if TYPE_CHECKING:
    from ferrule.values.conversation.exchange import Request, Response


def inspect_history(n: int = 1, *, file: TextIO | None = None) -> None:
    """Print the last `n` model calls of this process, oldest first: messages, the tools' names, the answer or the error. 100 are kept."""
    out = file or sys.stdout
    for lm, request, answer in list(exchanges)[-n:] if n > 0 else []:
        print(f"=== {getattr(lm, 'name', type(lm).__name__)}", file=out)
        _print_request(request, out)
        if isinstance(answer, str):
            print("--- failed", file=out)
            print(answer, file=out)
        else:
            _print_response(answer, out)


def _print_request(request: Request, out: TextIO) -> None:
    for message in request.messages:
        print(f"--- {message.role}", file=out)
        print(message.text, file=out)
        for call in message.tool_calls:
            print(f"  call {call.id}: {call.name} {json_text(call.args)}", file=out)
    if len(request.tools):
        print(f"--- tools: {', '.join(tool['function']['name'] for tool in request.tools)}", file=out)


def _print_response(response: Response, out: TextIO) -> None:
    print("--- answer", file=out)
    if response.reasoning:
        print(f"(reasoning) {response.reasoning}", file=out)
    if response.text:
        print(response.text, file=out)
    for call in response.tool_calls:
        print(f"  call {call.id}: {call.name} {json_text(call.args)}", file=out)
    print(f"--- {response.usage.input_tokens} tokens in, {response.usage.output_tokens} out", file=out)
