"""A provider's batch API on loopback: OpenAI's files and batches, Anthropic's message batches.

It checks what it gets with the providers' own types, counts each request that it takes, and calls a
hook at the points where a client may die. Subclasses and options make it lie.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime
from email.parser import BytesParser
from email.policy import HTTP
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

Json = dict[str, Any]


@cache
def checks() -> dict[str, TypeAdapter[Any]]:
    """The SDKs' own types of what a client sends. Their import takes seconds."""
    from anthropic.types.beta.messages.batch_create_params import BatchCreateParams as BetaOrder
    from anthropic.types.messages.batch_create_params import BatchCreateParams as AnthropicOrder
    from openai.types.batch_create_params import BatchCreateParams
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

    return {
        "/v1/batches": TypeAdapter(BatchCreateParams),
        "/v1/messages/batches": TypeAdapter(AnthropicOrder),
        "beta": TypeAdapter(BetaOrder),
        "/v1/chat/completions": TypeAdapter(CompletionCreateParamsNonStreaming),
        "/v1/responses": TypeAdapter(ResponseCreateParamsNonStreaming),
    }


def answer_of(question: str) -> str:
    """The answer to the last question in a prompt: the number in it, times seven."""
    number = re.findall(r"What is (\d+) x 7", question)[-1]
    return f"[[ ## answer ## ]]\n{int(number) * 7}\n\n[[ ## completed ## ]]"


class Batch:
    """One batch: its requests by their ids, and when it ends."""

    def __init__(self, number: int, requests: dict[str, Json], looks: int, **more: Any) -> None:
        self.id = f"batch_{number}"
        self.requests = requests
        self.looks_left = looks
        self.created_at = time.time()
        self.more = more
        self.status = "in_progress"


class BatchProvider:
    """What the server knows, and how it answers. Override or set what should be otherwise."""

    def __init__(
        self, answer: Callable[[str], str] = answer_of, *, looks: int = 1, page: int = 100
    ) -> None:
        self.answer = answer
        self.looks = looks
        self.page = page
        self.files: dict[str, bytes] = {}
        self.batches: list[Batch] = []
        self.taken: Counter[str] = Counter()
        """How often each request was taken, by its id and body."""
        self.creations = 0
        self.headers: list[dict[str, str]] = []
        """Those of each request that was posted, names in lower case."""
        self.hook: Callable[[str], None] = lambda point: None
        self.end_status = "completed"
        self.lines: Callable[[list[bytes]], list[bytes]] = lambda lines: lines[::-1]
        """Changes the lines of results: by default, their order."""
        self.fail: Callable[[str, str], int | None] = lambda method, path: None
        """A status with which to fail instead."""
        self.usage = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}

    # -- what is taken

    def take(self, requests: dict[str, Json], **more: Any) -> Batch:
        for request_id, body in requests.items():
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", request_id)
            self.taken[f"{request_id} {json.dumps(body, sort_keys=True)}"] += 1
        self.creations += 1
        batch = Batch(self.creations, requests, self.looks, **more)
        self.batches.insert(0, batch)
        return batch

    def look(self, batch: Batch) -> None:
        if batch.status == "in_progress":
            batch.looks_left -= 1
            if batch.looks_left <= 0:
                batch.status = self.end_status

    # -- OpenAI

    def openai_batch(self, batch: Batch) -> Json:
        ended = batch.status == "completed" or batch.status == "expired"
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.more["endpoint"],
            "input_file_id": batch.more["file"],
            "completion_window": "24h",
            "status": batch.status,
            "created_at": int(batch.created_at),
            "metadata": batch.more["metadata"],
            "output_file_id": f"out_{batch.id}" if ended else None,
            "error_file_id": f"err_{batch.id}" if ended else None,
            "errors": {"object": "list", "data": [{"message": "line 1 is not valid"}]},
            "request_counts": {"total": len(batch.requests), "completed": 0, "failed": 0},
        }

    def openai_line(self, batch: Batch, request_id: str, body: Json) -> tuple[bool, Json]:
        """A line of results, and whether it is an error."""
        if batch.more["endpoint"] == "/v1/responses":
            output = {
                "type": "message",
                "id": "m",
                "role": "assistant",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": self.answer(str(body)), "annotations": []}
                ],
            }
            usage = {"input_tokens": 1000, "output_tokens": 500, "total_tokens": 1500}
            answer = {
                "id": "r",
                "object": "response",
                "status": "completed",
                "model": body["model"],
            }
            answer |= {"output": [output], "usage": usage}
        else:
            message = {"role": "assistant", "content": self.answer(str(body["messages"]))}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer = {"id": "c", "object": "chat.completion", "created": 0, "model": body["model"]}
            answer |= {"choices": [choice], "usage": self.usage}
        response = {"status_code": 200, "request_id": "req", "body": answer}
        return False, {"id": "x", "custom_id": request_id, "response": response, "error": None}

    def openai_file(self, name: str) -> bytes:
        if name in self.files:  # results do not change once they were written
            return self.files[name]
        kind, _, batch_id = name.partition("_")
        [batch] = [batch for batch in self.batches if batch.id == batch_id]
        lines: list[bytes] = []
        for request_id, body in batch.requests.items():
            is_error, line = self.openai_line(batch, request_id, body)
            if is_error == (kind == "err"):
                lines.append(json.dumps(line).encode())
        return self.files.setdefault(name, b"\n".join(self.lines(lines)))

    # -- Anthropic

    def anthropic_batch(self, batch: Batch) -> Json:
        is_over = batch.status != "in_progress"
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        counts["succeeded" if is_over else "processing"] = len(batch.requests)
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if is_over else "in_progress",
            "request_counts": counts,
            "created_at": datetime.fromtimestamp(batch.created_at, UTC).isoformat(),
            "expires_at": datetime.fromtimestamp(batch.created_at + 86400, UTC).isoformat(),
            "results_url": "http://127.0.0.1:1/stolen" if is_over else None,
        }

    def anthropic_line(self, request_id: str, body: Json) -> Json:
        message = {
            "id": "msg",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [{"type": "text", "text": self.answer(str(body["messages"]))}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1000, "output_tokens": 500, "service_tier": "batch"},
        }
        return {"custom_id": request_id, "result": {"type": "succeeded", "message": message}}

    def anthropic_results(self, batch: Batch) -> bytes:
        if batch.id in self.files:
            return self.files[batch.id]
        lines = [
            json.dumps(self.anthropic_line(request_id, body)).encode()
            for request_id, body in batch.requests.items()
        ]
        return self.files.setdefault(batch.id, b"\n".join(self.lines(lines)))

    # -- lists

    def listed(self, after: str | None) -> tuple[list[Batch], bool]:
        first = 0
        if after:
            first = [batch.id for batch in self.batches].index(after) + 1
        return self.batches[first : first + self.page], len(self.batches) > first + self.page


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    @property
    def provider(self) -> BatchProvider:
        return self.server.provider  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.provider.headers.append({name.lower(): value for name, value in self.headers.items()})
        if self._fails():
            return
        path = self.path.partition("?")[0]
        if path == "/v1/files":
            self._upload(body)
            return
        order = json.loads(body)
        check = checks()[path]
        if "anthropic-beta" in self.headers:
            check = checks()["beta"]
        check.validate_python(order, strict=False)
        if path == "/v1/batches":
            requests = self._requests_in(order["input_file_id"], order["endpoint"])
            batch = self.provider.take(
                requests,
                endpoint=order["endpoint"],
                file=order["input_file_id"],
                metadata=order["metadata"],
            )
            answer = self.provider.openai_batch(batch)
        else:
            requests = {item["custom_id"]: item["params"] for item in order["requests"]}
            assert len(requests) == len(order["requests"])
            batch = self.provider.take(requests)
            answer = self.provider.anthropic_batch(batch)
        self.provider.hook("created")
        self._send(answer)

    def _upload(self, body: bytes) -> None:
        head = f"Content-Type: {self.headers['content-type']}\r\n\r\n".encode()
        form = BytesParser(policy=HTTP).parsebytes(head + body)
        fields = {
            part.get_param("name", header="content-disposition"): part for part in form.iter_parts()
        }
        assert fields["purpose"].get_content() == "batch"
        name = f"file-{len(self.provider.files)}"
        self.provider.files[name] = fields["file"].get_payload(decode=True)
        self.provider.hook("uploaded")
        self._send({"id": name, "object": "file", "purpose": "batch"})

    def _requests_in(self, file: str, endpoint: str) -> dict[str, Json]:
        requests: dict[str, Json] = {}
        for line in self.provider.files[file].splitlines():
            entry = json.loads(line)
            assert entry.keys() == {"custom_id", "method", "url", "body"}
            assert (entry["method"], entry["url"]) == ("POST", endpoint)
            assert entry["custom_id"] not in requests
            checks()[endpoint].validate_python(entry["body"], strict=False)
            requests[entry["custom_id"]] = entry["body"]
        return requests

    def do_GET(self) -> None:
        if self._fails():
            return
        provider = self.provider
        path, _, query = self.path.partition("?")
        options = dict(pair.split("=") for pair in query.split("&") if pair)
        parts = path.removeprefix("/v1/").split("/")
        match parts:
            case ["files", name, "content"]:
                self._content(provider.openai_file(name))
            case ["batches"]:
                batches, more = provider.listed(options.get("after"))
                self._send(
                    {"data": [provider.openai_batch(each) for each in batches], "has_more": more}
                )
            case ["messages", "batches"]:
                batches, more = provider.listed(options.get("after_id"))
                data = [provider.anthropic_batch(each) for each in batches]
                self._send({"data": data, "has_more": more})
            case ["batches", name]:
                self._send(provider.openai_batch(self._looked_at(name)))
            case ["messages", "batches", name]:
                self._send(provider.anthropic_batch(self._looked_at(name)))
            case ["messages", "batches", name, "results"]:
                [batch] = [batch for batch in provider.batches if batch.id == name]
                self._content(provider.anthropic_results(batch))

    def _looked_at(self, name: str) -> Batch:
        [batch] = [batch for batch in self.provider.batches if batch.id == name]
        self.provider.look(batch)
        self.provider.hook("looked")
        return batch

    def _fails(self) -> bool:
        status = self.provider.fail(self.command, self.path)
        if status is None:
            return False
        if status == 0:  # hang up
            self.close_connection = True
            self.connection.close()
            return True
        self._send({"error": {"message": f"made to fail with {status}", "code": None}}, status)
        return True

    def _send(self, body: Json, status: int = 200) -> None:
        self._content(json.dumps(body).encode(), status, point="")

    def _content(self, content: bytes, status: int = 200, point: str = "results") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        half = len(content) // 2
        self.wfile.write(content[:half])
        self.wfile.flush()
        if point:
            self.provider.hook(point)
        self.wfile.write(content[half:])
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is not an error; a failed check answers nothing."""


@contextmanager
def batch_server(provider: BatchProvider) -> Generator[str]:
    """Serve a provider on loopback; yields the base URL."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.provider = provider  # type: ignore[attr-defined]
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
