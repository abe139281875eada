"""`FallbackLM`: several models in order; if one fails, the next gets the request."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self, cast

from msgspec.structs import replace

from ferrule import settings as running
from ferrule.errors import ConfigurationError, LMError, UnavailableError, checks_keywords, shown
from ferrule.events import ModelFellBack
from ferrule.models.model import BaseLM, as_model
from ferrule.values.conversation.exchange import Capabilities, Delta, Response

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from ferrule.models.model import Model
    from ferrule.values.conversation.exchange import Request

_log = logging.getLogger("ferrule.models")


class FallbackLM(BaseLM):
    """Several models in order: if one fails, the next gets the request.

    ```python
    FallbackLM([LM("openai/gpt-5-mini"), LM("anthropic/claude-haiku-4-5")])
    ```
    Observers get the event `ModelFellBack`. `on` holds the errors that make it fall back, by
    default `UnavailableError` with its subclass `RateLimitError`. A stream that has begun does not
    fall back. Each request starts with the first model, which makes its own retries first
    (`max_retries`). The capabilities are those that all models share. `response.model` names the
    model that answered.
    """

    @checks_keywords
    def __init__(
        self,
        models: Iterable[Any],
        *,
        on: type[LMError] | tuple[type[LMError], ...] = UnavailableError,
    ) -> None:
        self.models = _models_in(models)
        self.on = on if isinstance(on, tuple) else (on,)
        for kind in self.on:
            if not isinstance(kind, type) or not issubclass(kind, LMError):
                raise ConfigurationError(
                    f"`on` is one or several classes of `LMError`, found {shown(on)}."
                )
        self.name = " or ".join(lm.name for lm in self.models)
        self.capabilities = _shared([lm.capabilities for lm in self.models])
        self.is_free = all(getattr(lm, "is_free", False) for lm in self.models)

    def complete(self, request: Request) -> Response:
        """The answer of the first model that does not fail."""
        for lm, following in self._in_order():
            try:
                return _named(lm, lm.complete(request))
            except self.on as error:
                _fall_back(lm, following, error)
        raise AssertionError  # the last model returns or raises

    async def acomplete(self, request: Request) -> Response:
        """The same, without blocking the loop."""
        for lm, following in self._in_order():
            try:
                return _named(lm, await lm.acomplete(request))
            except self.on as error:
                _fall_back(lm, following, error)
        raise AssertionError  # the last model returns or raises

    def stream(self, request: Request) -> Iterator[Delta | Response]:
        """The answer of the first model that does not fail before its answer begins."""
        for lm, following in self._in_order():
            item = None
            try:
                for item in lm.stream(request):
                    yield _named(lm, item)
                break
            except self.on as error:
                _fall_back(lm, following if item is None else None, error)

    async def astream(self, request: Request) -> AsyncGenerator[Delta | Response]:
        """The same, without blocking the loop."""
        for lm, following in self._in_order():
            item = None
            try:
                async with aclosing(
                    cast("AsyncGenerator[Delta | Response]", lm.astream(request))
                ) as items:
                    async for item in items:
                        yield _named(lm, item)
                break
            except self.on as error:
                _fall_back(lm, following if item is None else None, error)

    def context_tokens(self) -> int | None:
        """The smallest context window of the models; None if none is known."""
        sizes = [lm.context_tokens() for lm in self.models if isinstance(lm, BaseLM)]
        return min(filter(None, sizes), default=None)

    def copy(self, **settings: Any) -> Self:
        """The same models with other settings."""
        models: list[Model] = []
        for lm in self.models:
            models.append(lm.copy(**settings) if isinstance(lm, BaseLM) else lm)
        other = super().copy()
        other.models = tuple(models)
        return other

    def __repr__(self) -> str:
        return f"FallbackLM([{', '.join(map(repr, self.models))}])"

    def _in_order(self) -> Iterator[tuple[Model, Model | None]]:
        """Each model, with the next one or None."""
        return zip(self.models, (*self.models[1:], None), strict=True)


def _models_in(models: Any) -> tuple[Model, ...]:
    if isinstance(models, str) or not isinstance(models, Iterable):
        text = shown(cast("object", models))
        raise ConfigurationError(f"`FallbackLM` takes a list of models, found {text}.")
    adapted = tuple(map(as_model, cast("Iterable[Any]", models)))
    if not adapted:
        raise ConfigurationError("`FallbackLM` takes a list of models, found an empty one.")
    return adapted


def _fall_back(lm: Model, following: Model | None, error: LMError) -> None:
    """Raise the error if there is no next model; otherwise send observers `ModelFellBack`."""
    if following is None:
        raise error
    _log.warning("%s failed (%s), so %s is asked", lm.name, error, following.name)
    tell = running.scope().tell
    if tell is not None:
        tell(ModelFellBack(lm.name, following.name, error))


def _named(lm: Model, item: Any) -> Any:
    """An item of a stream; a response gets the name of the model that answered."""
    if isinstance(item, Delta) and item.so_far is not None:
        return replace(item, so_far=_named(lm, item.so_far))
    if not isinstance(item, Response):
        return item
    return replace(item, model=item.model or lm.name, answered_by=item.answered_by or lm.name)


def _shared(capabilities: list[Capabilities]) -> Capabilities:
    """The capabilities that all models have."""

    def all_have(name: str) -> bool:
        return all(getattr(model, name) for model in capabilities)

    windows = [model.context_tokens for model in capabilities if model.context_tokens is not None]
    schema_target = capabilities[0].schema_target
    if any(model.schema_target != schema_target for model in capabilities):
        schema_target = None
    kinds = [model.provider_tools or () for model in capabilities]
    shared_kinds = [kind for kind in kinds[0] if all(kind in others for others in kinds)]
    return Capabilities(
        native_tools=all_have("native_tools"),
        parallel_tools=all_have("parallel_tools"),
        json_schema=all_have("json_schema"),
        streaming=all_have("streaming"),
        images=all_have("images"),
        audio=all_have("audio"),
        json_object=all_have("json_object"),
        constrained_calls=all_have("constrained_calls"),
        context_tokens=min(windows, default=None),
        schema_target=schema_target,
        schema_with_tools=all_have("schema_with_tools"),
        shows_schema=all_have("shows_schema"),
        provider_tools=tuple(shared_kinds),
    )
