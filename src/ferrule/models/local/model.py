"""`InProcessLM`: a model in this process, made by `LM("local:...")` and `LM("llama_cpp:...")`."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any, Self, cast

from ferrule.concurrency.offload import in_worker_thread
from ferrule.errors import ConfigurationError, ContextOverflowError
from ferrule.models.local.backends.backend import Sampling
from ferrule.models.local.stream import AnswerStream
from ferrule.models.local.task import Options, can_constrain, task_of
from ferrule.models.local.template import template_message, text_message, tools_as_text
from ferrule.models.model import TurnsLM
from ferrule.models.providers import check_spelling
from ferrule.models.turns import Turns
from ferrule.record import replace
from ferrule.values.conversation.exchange import Capabilities, Response, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping

    from ferrule.models.local.backends.backend import Backend
    from ferrule.values.conversation.exchange import Delta, Request

_FROM_A_SERVER = frozenset({
    "base_url", "wire", "api_key", "headers", "connect_timeout_s", "read_timeout_s", "timeout_s", "max_retries", "max_concurrency",
    "requests_per_minute", "strict_tools",
})  # fmt: skip
"""Arguments of `LM` that only apply to a model behind an address."""
_OPTIONS = Options()
_ENDLESS = 1 << 20
"""The most tokens of an answer if the model's window is unknown."""


class InProcessLM(TurnsLM):
    """A model in this process. Copies and threads share its weights.

    The answer is generated token by token. Leaving a stream, or cancelling a task, stops the
    generation before the next token.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        *,
        capabilities: Capabilities | None = None,
        options: Options = _OPTIONS,
        **settings: Any,
    ) -> None:
        check_spelling(settings)
        Sampling.of(settings)
        self.name = name
        self.settings: Mapping[str, Any] = settings
        able = can_constrain()
        self.capabilities = capabilities or Capabilities(
            native_tools=backend.reads_tools, parallel_tools=backend.reads_tools, json_schema=able, context_tokens=backend.window,
            constrained_calls=able,
        )  # fmt: skip
        self._options = options
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

    def _pieces(
        self,
        request: Request,
        is_stopped: Callable[[], bool],
    ) -> Iterator[Delta | Response]:
        """The answer piece by piece, and the whole `Response` last."""
        sampling = Sampling.of({**self.settings, **request.settings})
        backend = self._backend
        prompt = backend.prompt(*self._shown(request), sampling.extra or {})
        most = self._room(len(prompt), sampling.max_tokens)
        task = (
            task_of(request, backend.vocabulary, self._options)
            if self._is_constrained(request)
            else None
        )
        if task is not None:
            task.begin(most, is_rest=most != sampling.max_tokens)
        sampling = replace(sampling, max_tokens=most, stop=sampling.stop if task is None else ())
        answer = AnswerStream(backend.text, request, sampling, task)
        for token in backend.generate(prompt, sampling, task.matcher if task is not None else None):
            yield from answer.feed(token)
            if answer.is_stopped or is_stopped():
                break
        yield from answer.end()
        yield replace(
            answer.response(),
            model=self.name,
            usage=Usage(len(prompt), len(answer.tokens), calls=1),
            cost=0.0,
        )

    def _is_constrained(self, request: Request) -> bool:
        return self.capabilities.json_schema and (
            request.form is not None or request.shape is not None
        )

    def _shown(self, request: Request) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """The messages and tool declarations for the chat template; a template without tool support gets it all as text."""
        tools = [*request.tools] if request.tools and request.tool_choice != "none" else None
        if self._backend.reads_tools:
            return [template_message(each) for each in request.messages], tools
        messages = [text_message(each) for each in request.messages]
        return [
            {"role": "system", "content": tools_as_text(tools)},
            *messages,
        ] if tools else messages, None

    def _room(self, used: int, wanted: int | None) -> int:
        window = self._backend.window
        if window is not None and used >= window:
            raise ContextOverflowError(
                f"the prompt has {used} tokens, and the context window of `{self.name}` holds {window}",
            )
        left = _ENDLESS if window is None else window - used
        return left if wanted is None else min(wanted, left)


def local_lm(name: str, settings: dict[str, Any]) -> InProcessLM:
    """Load the model with a name such as `"local:PATH_OR_ID"`."""
    kind, _, source = name.partition(":")
    if refused := sorted(_FROM_A_SERVER.intersection(settings)):
        raise ConfigurationError(
            f"`{name}` runs in this process and takes no `{refused[0]}`: only a model behind an address does.",
        )
    if not source:
        raise ConfigurationError(
            f'Which model? Name a folder or a model of the Hugging Face Hub: LM("{kind}:PATH_OR_ID").',
        )
    own = Options(
        **{each: settings.pop(each) for each in ("thought_chars", "partial") if each in settings},
    )
    if kind == "llama_cpp":
        from ferrule.models.local.backends.llama_cpp import LlamaBackend as Loaded

        names = ("context_tokens", "gpu_layers")
    else:
        from ferrule.models.local.backends.transformers import TransformersBackend as Loaded

        names = ("device", "dtype")
    loading: dict[str, Any] = {each: settings.pop(each) for each in names if each in settings}
    return InProcessLM(name, Loaded(source, **loading), options=own, **settings)
