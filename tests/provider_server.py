"""A server on loopback that answers as Anthropic or OpenAI would, with tools that it runs itself.

Each request is validated by the types of the provider's own SDK before it is answered.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Json = dict[str, Any]


class Provider:
    """The server's side: its answers in order, and the requests that came."""

    def __init__(self, answers: list[Json], check: Callable[[Json], object]) -> None:
        self.answers = answers
        self.check = check
        self.bodies: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self.problems: list[str] = []
        self.url = ""

    def answer(self, body: Json, headers: dict[str, str]) -> tuple[int, Json]:
        try:
            self.check(body)
        except ValueError as error:
            self.problems.append(str(error))
            return 400, {"error": {"type": "invalid_request_error", "message": str(error)}}
        self.bodies.append(body)
        self.headers.append(headers)
        return 200, self.answers[len(self.bodies) - 1]


@contextmanager
def provider(
    answers: list[Json],
    check: Callable[[Json], object],
    events: Callable[[Json], list[tuple[str, Json]]],
) -> Iterator[Provider]:
    """Serve these answers; `events` makes the events of a streamed one."""
    side = Provider(answers, check)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, answer = side.answer(body, headers)
            if status == 200 and (body.get("stream") or "alt=sse" in self.path):
                lines = [
                    f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events(answer)
                ]
                content, kind = "".join(lines).encode(), "text/event-stream"
            else:
                content, kind = json.dumps(answer).encode(), "application/json"
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    side.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield side
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert side.problems == []


# -- Anthropic


def check_anthropic(body: Json) -> None:
    from anthropic.types.beta.message_create_params import (
        MessageCreateParamsNonStreaming,
        MessageCreateParamsStreaming,
    )

    kind = MessageCreateParamsStreaming if body.get("stream") else MessageCreateParamsNonStreaming
    _validate(kind, body)


def message(*content: Json, stop: str = "end_turn", **usage: Any) -> Json:
    """A message of Anthropic's, checked by its SDK."""
    from anthropic.types.beta import BetaMessage

    body = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 20, **usage},
    }
    adapter_of(BetaMessage).validate_python(body)
    return body


def anthropic_events(body: Json) -> list[tuple[str, Json]]:
    """A message as its events, with texts and arguments in pieces."""
    start = {**body, "content": [], "stop_reason": None}
    events: list[Json] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(body["content"]):
        deltas: list[Json] = []
        first = dict(block)
        if block["type"] == "text":
            first = {"type": "text", "text": ""}
            deltas += [
                {"type": "citations_delta", "citation": citation}
                for citation in block.get("citations") or ()
            ]
            deltas += [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
        elif "input" in block:
            first["input"] = {}
            deltas += [
                {"type": "input_json_delta", "partial_json": piece}
                for piece in _pieces(json.dumps(block["input"]))
            ]
        events.append({"type": "content_block_start", "index": index, "content_block": first})
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": body["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": body["usage"]})
    events.append({"type": "message_stop"})
    return [(event["type"], event) for event in events]


def searched(query: str, *pages: tuple[str, str], call_id: str = "srvtoolu_1") -> tuple[Json, Json]:
    """A web search and its results, as blocks."""
    call = {
        "type": "server_tool_use",
        "id": call_id,
        "name": "web_search",
        "input": {"query": query},
    }
    results = [
        {
            "type": "web_search_result",
            "url": url,
            "title": title,
            "encrypted_content": "EqgfCioIARgB",
            "page_age": None,
        }
        for title, url in pages
    ]
    return call, {"type": "web_search_tool_result", "tool_use_id": call_id, "content": results}


def cited(text: str, title: str, url: str, quote: str) -> Json:
    """A text that cites a page."""
    citation = {
        "type": "web_search_result_location",
        "url": url,
        "title": title,
        "encrypted_index": "Eo8BCioI",
        "cited_text": quote,
    }
    return {"type": "text", "text": text, "citations": [citation]}


def anthropic(*answers: Json) -> Any:
    return provider(list(answers), check_anthropic, anthropic_events)


# -- OpenAI


def check_openai(body: Json) -> None:
    from openai.types.responses.response_create_params import (
        ResponseCreateParamsNonStreaming,
        ResponseCreateParamsStreaming,
    )

    kind = ResponseCreateParamsStreaming if body.get("stream") else ResponseCreateParamsNonStreaming
    _validate(kind, body)


def openai_response(*output: Json) -> Json:
    """A response of OpenAI's, checked by its SDK."""
    from openai.types.responses import Response

    body = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "gpt-5",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "store": False,
        "usage": {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 120,
        },
    }
    adapter_of(Response).validate_python(body)
    return body


def openai_events(body: Json) -> list[tuple[str, Json]]:
    """A response as its events."""
    events: list[Json] = [
        {"type": "response.created", "response": {**body, "output": [], "status": "in_progress"}}
    ]
    for index, item in enumerate(body["output"]):
        begun = {**item, "status": "in_progress"}
        if item["type"] == "message":
            begun["content"] = []
        elif item["type"] == "function_call":
            begun["arguments"] = ""
        events.append({"type": "response.output_item.added", "output_index": index, "item": begun})
        if item["type"] == "message":
            events += [
                {
                    "type": "response.output_text.delta",
                    "output_index": index,
                    "item_id": item["id"],
                    "content_index": 0,
                    "delta": piece,
                }
                for piece in _pieces(item["content"][0]["text"])
            ]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": body})
    return [(event["type"], event) for event in events]


def openai_search(query: str, *urls: str, item_id: str = "ws_1") -> Json:
    """A web search as an item."""
    sources = [{"type": "url", "url": url} for url in urls]
    action = {"type": "search", "query": query, "queries": [query], "sources": sources}
    return {"type": "web_search_call", "id": item_id, "status": "completed", "action": action}


def openai_message(text: str, *annotations: Json) -> Json:
    part = {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}
    return {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def openai(*answers: Json) -> Any:
    return provider(list(answers), check_openai, openai_events)


def _validate(kind: Any, body: Json) -> None:
    # The SDK's `Iterable` fields validate lazily: dumping walks them.
    adapter = adapter_of(kind)
    adapter.dump_python(adapter.validate_python(body))


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Made once: pydantic takes half a second for the types of an SDK."""
    return TypeAdapter(kind)


def _pieces(text: str) -> list[str]:
    return [text[start : start + 7] for start in range(0, len(text), 7)] or [""]
