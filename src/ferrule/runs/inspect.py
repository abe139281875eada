"""The latest model calls, for a person to read.  (Floor 4.)"""

from __future__ import annotations

import sys
from typing import TextIO

from ferrule.runs.observe import exchanges
from ferrule.values.jsonable import json_text


def inspect_history(n: int = 1, *, file: TextIO | None = None) -> None:
    """Print the last `n` model calls of this process, oldest first: every message, the tools' names, the answer. At most 100 are kept."""
    out = file or sys.stdout
    for lm, request, response in list(exchanges)[-n:] if n > 0 else []:
        print(f"=== {getattr(lm, 'name', type(lm).__name__)}", file=out)
        for message in request.messages:
            print(f"--- {message.role}", file=out)
            print(message.text, file=out)
            for call in message.tool_calls:
                print(f"  call {call.id}: {call.name} {json_text(call.args)}", file=out)
        if len(request.tools):
            print(f"--- tools: {', '.join(tool['function']['name'] for tool in request.tools)}", file=out)
        print("--- answer", file=out)
        if response.reasoning:
            print(f"(reasoning) {response.reasoning}", file=out)
        if response.text:
            print(response.text, file=out)
        for call in response.tool_calls:
            print(f"  call {call.id}: {call.name} {json_text(call.args)}", file=out)
        print(f"--- {response.usage.input_tokens} tokens in, {response.usage.output_tokens} out", file=out)
