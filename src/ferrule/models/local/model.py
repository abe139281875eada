"""`InProcessLM`: a model in this process, made by `LM("local:...")` and `LM("llama_cpp:...")`."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any, Self, cast

from msgspec.structs import replace

from ferrule.concurrency.offload import in_worker_thread
from ferrule.errors import ConfigurationError, ContextOverflowError
from ferrule.models.learning import Learned, LearningLM
from ferrule.models.local.backends.backend import Sampling, check_no_server
from ferrule.models.local.stream import AnswerStream
from ferrule.models.local.task import Options, can_constrain, task_of
from ferrule.models.local.template import template_message, text_message, tools_as_text
from ferrule.models.model import check_text_calls
from ferrule.models.setting_names import check_spelling
from ferrule.values.conversation.exchange import Capabilities, Response, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping

    from ferrule.models.local.backends.backend import Backend
    from ferrule.models.local.task import ConstrainedTask
    from ferrule.models.model import TextCalls
    from ferrule.values.conversation.exchange import Delta, Request

_DEFAULT_OPTIONS = Options()
_MOST_TOKENS = 1 << 20
"""The most tokens of an answer if the model's window is unknown."""


class InProcessLM(LearningLM):
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
        options: Options = _DEFAULT_OPTIONS,
        text_calls: TextCalls | None = None,
        **settings: Any,
    ) -> None:
        check_spelling(settings)
        Sampling.of(settings)  # refuses what a local model does not have
        self.name = name
        self.settings: Mapping[str, Any] = settings
        self.capabilities = capabilities or _capabilities_of(backend)
        self.text_calls = check_text_calls(text_calls)
        self._options = options
        self._backend = backend
        self._learned = Learned()

    def copy(self, **settings: Any) -> Self:
        """The same weights with other settings."""
        Sampling.of(settings)  # refuses what a local model does not have
        return super().copy(**settings)

    def _complete(self, request: Request) -> Response:
        return self._whole(request, lambda: False)

    async def _acomplete(self, request: Request) -> Response:
        stopped = Event()
        try:
            return await in_worker_thread(lambda: self._whole(request, stopped.is_set))
        finally:
            stopped.set()

    def _whole(self, request: Request, is_stopped: Callable[[], bool]) -> Response:
        *_, response = self._pieces(request, is_stopped)
        return cast("Response", response)

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
        self, request: Request, is_stopped: Callable[[], bool]
    ) -> Iterator[Delta | Response]:
        """The answer piece by piece, and the whole `Response` last."""
        backend = self._backend
        sampling = Sampling.of({**self.settings, **request.settings})
        messages, tools = self._conversation(request)
        prompt = backend.prompt(messages, tools, sampling.extra or {})
        room = self._room_after(prompt)
        max_tokens = room
        if sampling.max_tokens is not None:
            max_tokens = min(sampling.max_tokens, room)
        sampling = replace(sampling, max_tokens=max_tokens)
        task = self._task_of(request)
        matcher = None
        if task is not None:
            matcher = task.matcher
            # A stop sequence could cut a constrained answer in the middle of its JSON.
            sampling = replace(sampling, stop=())

        reads_calls = self.text_calls != "never"
        answer = AnswerStream(backend.text, request, sampling, task, reads_calls=reads_calls)
        for token in backend.generate(prompt, sampling, matcher):
            yield from answer.feed(token)
            if answer.is_stopped or is_stopped():
                break
        is_cut_by_window = len(answer.tokens) == room
        if matcher is not None and not matcher.is_finished and is_cut_by_window:
            # Not the reason "length": a shorter conversation helps, more `max_tokens` do not.
            raise ContextOverflowError(
                f"the prompt leaves {room} tokens of the context window, and the answer did not "
                "end within them"
            )
        yield from answer.end()
        yield replace(
            answer.response(),
            model=self.name,
            usage=Usage(len(prompt), len(answer.tokens), calls=1),
            cost=0.0,
        )

    def _task_of(self, request: Request) -> ConstrainedTask | None:
        has_form = request.form is not None or request.shape is not None
        if not has_form or not self.capabilities.json_schema:
            return None
        return task_of(request, self._backend.vocabulary, self._options)

    def _conversation(
        self, request: Request
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """The messages and tool declarations for the chat template.

        A template without tool support gets all of it as text.
        """
        tools: list[dict[str, Any]] | None = None
        if request.tools and request.tool_choice != "none":
            tools = list(request.tools)
        if self._backend.reads_tools:
            return [template_message(message) for message in request.messages], tools
        messages = [text_message(message) for message in request.messages]
        if tools is not None:
            messages.insert(0, {"role": "system", "content": tools_as_text(tools)})
        return messages, None

    def _room_after(self, prompt: list[int]) -> int:
        """How many tokens of the context window are left for the answer."""
        window = self._backend.window
        if window is None:
            return _MOST_TOKENS
        if len(prompt) >= window:
            raise ContextOverflowError(
                f"the prompt has {len(prompt)} tokens, and the context window of `{self.name}` "
                f"holds {window}"
            )
        return window - len(prompt)


def _capabilities_of(backend: Backend) -> Capabilities:
    has_engine = can_constrain()
    return Capabilities(
        native_tools=backend.reads_tools,
        parallel_tools=backend.reads_tools,
        json_schema=has_engine,
        context_tokens=backend.window,
        constrained_calls=has_engine,
    )


def local_lm(name: str, settings: dict[str, Any]) -> InProcessLM:
    """Load the model with a name such as `"local:PATH_OR_ID"`."""
    kind, _, source = name.partition(":")
    check_no_server(name, settings)
    if not source:
        raise ConfigurationError(
            "Which model? Name a folder or a model of the Hugging Face Hub: "
            f'LM("{kind}:PATH_OR_ID").'
        )
    options = Options(**_pop(settings, "thought_chars", "partial"))
    # Each backend imports a package that few users have.
    if kind == "llama_cpp":
        from ferrule.models.local.backends.llama_cpp import LlamaBackend

        loading = _pop(settings, "context_tokens", "gpu_layers")
        backend: Backend = LlamaBackend(source, **loading)
    else:
        from ferrule.models.local.backends.transformers import TransformersBackend

        loading = _pop(settings, "device", "dtype")
        backend = TransformersBackend(source, **loading)
    return InProcessLM(name, backend, options=options, **settings)


def _pop(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    """Remove these settings, and return those that were there."""
    return {name: settings.pop(name) for name in names if name in settings}
