"""`InProcessLM`: a model in this process, made by `LM("local:...")` and `LM("llama_cpp:...")`."""

from __future__ import annotations

import json
from hashlib import sha256
from threading import Event
from typing import TYPE_CHECKING, Any, Self, cast

from ferrule.concurrency.offload import in_worker_thread
from ferrule.errors import ConfigurationError, ContextOverflowError
from ferrule.models.local.backend import Sampling
from ferrule.models.local.stream import AnswerStream
from ferrule.models.model import TurnsLM
from ferrule.models.providers import check_spelling
from ferrule.models.turns import Turns
from ferrule.values.conversation.exchange import Capabilities, Response, Usage
from ferrule.values.conversation.message import openai_message
from ferrule.values.record import replace

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping

    from ferrule.models.local.backend import Backend
    from ferrule.values.conversation.exchange import Delta, Request
    from ferrule.values.conversation.message import Message

_FROM_A_SERVER = frozenset({
    "base_url", "wire", "api_key", "headers", "connect_timeout_s", "read_timeout_s", "timeout_s", "max_retries", "max_concurrency",
    "requests_per_minute", "strict_tools",
})  # fmt: skip
"""Arguments of `LM` that only a model behind an address has."""
_ENDLESS = 1 << 20
"""Tokens of an answer of a model whose window is unknown."""


class InProcessLM(TurnsLM):
    """A model in this process. Copies and threads share its weights.

    The answer is generated token by token. Leaving a stream, or cancelling a task, ends the work before the next token.
    """

    def __init__(self, name: str, backend: Backend, *, capabilities: Capabilities | None = None, **settings: Any) -> None:
        check_spelling(settings)
        Sampling.of(settings)
        self.name = name
        self.settings: Mapping[str, Any] = settings
        self.capabilities = capabilities or Capabilities(
            native_tools=backend.reads_tools, parallel_tools=backend.reads_tools, context_tokens=backend.window
        )
        self._backend = backend
        self._turns = Turns()

    def copy(self, **settings: Any) -> Self:
        """The same weights with other settings."""
        Sampling.of(settings)
        return super().copy(**settings)

    def _complete(self, request: Request) -> Response:
        return self._finish(request, Event())

    async def _acomplete(self, request: Request) -> Response:
        stopped = Event()
        try:
            return await in_worker_thread(lambda: self._finish(request, stopped))
        finally:
            stopped.set()

    def _finish(self, request: Request, stopped: Event) -> Response:
        *_, last = self._pieces(request, stopped.is_set)
        return cast("Response", last)

    def _stream(self, request: Request) -> Iterator[Delta | Response]:
        yield from self._pieces(request, lambda: False)

    async def _astream(self, request: Request) -> AsyncGenerator[Delta | Response]:
        stopped = Event()
        pieces = self._pieces(request, stopped.is_set)
        try:
            while (item := await in_worker_thread(lambda: next(pieces, None))) is not None:
                yield item
        finally:
            stopped.set()

    def _pieces(self, request: Request, is_stopped: Callable[[], bool]) -> Iterator[Delta | Response]:
        """The answer piece by piece, then whole."""
        sampling = Sampling.of({**self.settings, **request.settings})
        backend = self._backend
        tools = [*request.tools] if request.tools and request.tool_choice != "none" else None
        prompt = backend.prompt([_template_message(each) for each in request.messages], tools, sampling.extra or {})
        sampling = replace(sampling, max_tokens=self._room(len(prompt), sampling.max_tokens))
        answer = AnswerStream(backend.text, request, sampling)
        for token in backend.generate(prompt, sampling, None):
            yield from answer.feed(token)
            if answer.is_stopped or is_stopped():
                break
        yield from answer.end()
        yield replace(answer.response(), model=self.name, usage=Usage(len(prompt), len(answer.tokens), calls=1))

    def _room(self, used: int, wanted: int | None) -> int:
        window = self._backend.window
        if window is not None and used >= window:
            raise ContextOverflowError(f"the prompt has {used} tokens, and the context window of `{self.name}` holds {window}")
        left = _ENDLESS if window is None else window - used
        return left if wanted is None else min(wanted, left)


def local_lm(name: str, settings: dict[str, Any]) -> InProcessLM:
    """The model that a name such as `"local:PATH_OR_ID"` means. Loads its weights."""
    kind, _, source = name.partition(":")
    if refused := sorted(_FROM_A_SERVER.intersection(settings)):
        raise ConfigurationError(f"`{name}` runs in this process and takes no `{refused[0]}`: only a model behind an address does.")
    if not source:
        raise ConfigurationError(f'Which model? Name a folder or a model of the Hugging Face Hub: LM("{kind}:PATH_OR_ID").')
    options = {each: settings.pop(each) for each in ("device", "dtype") if each in settings}
    from ferrule.models.local.transformers_backend import TransformersBackend

    return InProcessLM(name, TransformersBackend(source, **options), **settings)


def _template_message(message: Message) -> dict[str, Any]:
    """A message as chat templates take it: text content, arguments of calls as objects, ids that all templates accept."""
    shape = openai_message(message)
    shape["content"] = message.text
    if message.tool_calls:
        shape["tool_calls"] = [_template_call(each) for each in shape["tool_calls"]]
    if message.tool_call_id is not None:
        shape["tool_call_id"] = _template_id(message.tool_call_id)
    if message.name is not None:
        shape["name"] = message.name
    if message.reasoning:
        shape["reasoning_content"] = message.reasoning
    return shape


def _template_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:  # a call that could not be read
        arguments = function["arguments"]
    own = {"id": _template_id(call["id"])} if "id" in call else {}
    return {**call, **own, "function": {**function, "arguments": arguments}}


def _template_id(call_id: str) -> str:
    """Nine letters and digits: Mistral's templates accept no other ids."""
    return sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]
