"""One agent on servers that do not parse tool calls: the model's own dialect arrives as text, over each of the four wires."""

import json
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from ferrule import LM, BaseLM, ReAct, Request, tool
from ferrule.errors import BadRequestError
from ferrule.testing import ScriptedLM, serve

Dialect = Callable[..., str]
"""Writes a call, from its name and its arguments."""


class Printed(logging.Handler):
    """Prints the warning that ferrule logs once for each server, without the server's name."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the beginning of a warning."""
        print("  log: it", record.getMessage().split(" ", 1)[1][:62])


logging.getLogger("ferrule").addHandler(Printed())


@tool(effect="read")
def forecast(city: str) -> str:
    """Forecast tomorrow's weather."""
    return f"{city}: rain, 18 C"


agent = ReAct("question -> answer", [forecast])


def ask(name: str, lm: BaseLM) -> None:
    """Ask, and show what happened."""
    prediction = agent(question="Do I need an umbrella in Utrecht tomorrow?", lm=lm)
    calls = [
        f"{call.name}({call.args})" for step in prediction.trajectory.steps for call in step.calls
    ]
    print(f"{name}: {' -> '.join(calls)} -> {prediction.answer}")


# -- 1. vLLM without `--enable-auto-tool-choice` refuses declarations. ferrule puts the tools into the prompt, and says so once. --------


def hermes(name: str, **arguments: object) -> str:
    """A call as Qwen and Hermes write it, without a parser on the server."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def vllm(request: Request) -> object:
    """The server's answer, by the conversation so far."""
    if len(request.tools):
        return BadRequestError(
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        )
    has_seen = any("18 C" in message.text for message in request.messages)
    return (
        hermes("finish", answer="Yes, it rains.")
        if has_seen
        else f"I look it up.\n{hermes('forecast', city='Utrecht')}"
    )


with serve(ScriptedLM(by=vllm)) as server:
    ask("vLLM", LM(server.base_url, model="qwen3"))
    print(
        "  requests:",
        [
            f"{len(body.get('tools', []))} tools, {len(body['messages'])} messages"
            for body in server.requests
        ],
    )


# -- 2. Servers that take declarations and do not parse calls: the text is the call, not the answer. ---------------------------------


def llama(name: str, **arguments: object) -> str:
    """A call as Llama 3 writes it."""
    return f"<|python_tag|>{json.dumps({'name': name, 'parameters': arguments})}"


def mistral(name: str, **arguments: object) -> str:
    """A call as Mistral writes it."""
    return f"[TOOL_CALLS]{json.dumps([{'name': name, 'arguments': arguments}])}"


# The end of each wire's path, and its form of a plain text answer.
WIRES: dict[str, Callable[[str], object]] = {
    "/chat/completions": lambda text: {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
    },
    "/responses": lambda text: {
        "status": "completed",
        "output": [
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": text}],
            },
        ],
    },
    "/messages": lambda text: {
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
    },
    ":generateContent": lambda text: {
        "candidates": [
            {"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP"},
        ],
    },
}


@contextmanager
def server_of(dialect: Dialect) -> Generator[str]:
    """A server that another project could have written, and its address."""

    class Conversation(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            text = (
                dialect("finish", answer="Yes, it rains.")
                if b"18 C" in body
                else dialect("forecast", city="Utrecht")
            )
            write = next(write for ending, write in WIRES.items() if self.path.endswith(ending))
            content = json.dumps(write(text)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Conversation)
    Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


for dialect, wire in (
    (hermes, "openai_chat"),
    (hermes, "openai_responses"),
    (llama, "anthropic"),
    (mistral, "gemini"),
):
    with server_of(dialect) as address:
        ask(f"{dialect.__name__} over {wire}", LM(address, model=dialect.__name__, wire=wire))
