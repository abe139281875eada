"""udspy's models, settings and callbacks over the core's.

`LM("gpt-4o")`, `OpenAILM(client=...)`, `settings.configure(aclient=...)`.
"""

# udspy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportIndexIssue=false

import copy
import json
import os
from abc import ABC, abstractmethod
from functools import wraps
from types import SimpleNamespace

import ferrule
from ferrule.concurrency.offload import run_async
from ferrule.models.providers import PROVIDERS
from ferrule.models.wires.any_answer import response_of
from ferrule.models.wires.openai_chat import render
from ferrule.values.conversation.message import openai_message


class BaseLM(ferrule.BaseLM, ABC):
    """Base class of your own models.

    Write `async def acomplete(self, messages, *, model, tools, stream, **kwargs)`, which answers
    in OpenAI's form.
    """

    model = None

    def __init_subclass__(cls, *, takes_requests=False, **keywords):
        super().__init_subclass__(**keywords)
        if "acomplete" in vars(cls) and not takes_requests:
            cls.acomplete = _taking_requests(cls.acomplete)

    @abstractmethod
    async def acomplete(self, messages, *, model=None, tools=None, stream=False, **kwargs):
        """One answer, in OpenAI's form."""

    def complete(self, messages, **kwargs):
        """`acomplete` in sync code."""
        return run_async(self.acomplete(messages, **kwargs))

    def __call__(self, prompt=None, **kwargs):
        if isinstance(prompt, list):
            return self.complete(prompt, **kwargs)
        return super().__call__(prompt, **kwargs)

    async def acall(self, prompt=None, **kwargs):
        if isinstance(prompt, list):
            return await self.acomplete(prompt, **kwargs)
        return await super().acall(prompt, **kwargs)


def _taking_requests(acomplete):
    """A model's own `acomplete`, which also answers the requests of the core."""

    @wraps(acomplete)
    async def answering(self, messages, **kwargs):
        if not isinstance(messages, ferrule.Request):
            return await acomplete(self, messages, **kwargs)
        body = json.loads(render(messages, model=self.model or "", settings=self.settings))
        body.setdefault("tools", None)
        return response_of(await acomplete(self, body.pop("messages"), stream=False, **body))

    return answering


class OpenAILM(BaseLM, takes_requests=True):
    """A model behind your `client` or, without one, on a server that ferrule itself connects to."""

    def __init__(
        self,
        api_key="",
        base_url=None,
        default_model=None,
        client=None,
        provider="openai",
        **options,
    ):
        if client is None and not isinstance(api_key, str | None):
            client, api_key = api_key, ""  # udspy's first argument may be the client
        self._api_key, self._base_url, self._options = api_key or None, base_url, options
        self.client = client
        self._core = None
        self.default_model, self.provider = default_model, provider

    @property
    def core(self):
        """The core's model, which is asked."""
        if self._core is None:
            if not self.default_model:
                raise ValueError("No model specified and no default_model set")
            self._core = self._make_core()
        return self._core

    def _make_core(self):
        if self.client is not None:
            return ferrule.LM.from_client(self.client, self.default_model, **self.settings)
        name = f"{self.provider}/{self.default_model}"
        if self._base_url:
            name = self.default_model
        options = {**self._options, **self.settings}
        return ferrule.LM(name, base_url=self._base_url, api_key=self._api_key, **options)

    @property
    def model(self):
        return self.default_model

    @property
    def name(self):
        if not self.default_model:
            return self.provider
        return self.core.name

    @property
    def capabilities(self):
        return self.core.capabilities

    @property
    def is_hosted(self):
        return self.core.is_hosted

    def context_tokens(self):
        return self.core.context_tokens()

    # Copies share the connections of the core's model: each call of a module may make one.

    def copy(self, **settings):
        other = super().copy(**settings)
        if self.default_model:
            other._core = self.core.copy(**settings)
        return other

    def with_model(self, model):
        """Another model on the same server."""
        other = copy.copy(self)
        other.default_model = model
        if self.default_model:
            other._core = with_model(self.core, model)
        return other

    def complete(self, messages, **kwargs):
        if isinstance(messages, ferrule.Request) and self._is_asked_by_core():
            return self.core.complete(messages)
        return super().complete(messages, **kwargs)

    async def acomplete(self, messages, *, model=None, tools=None, stream=False, **kwargs):
        if isinstance(messages, ferrule.Request):
            return await self.core.acomplete(messages)
        model = model or self.default_model
        if not model:
            raise ValueError("No model specified and no default_model set")
        if self.client is None:
            raise ferrule.errors.ConfigurationError(
                "Messages go to a client as they are, and this model has none: pass "
                "`OpenAILM(client=AsyncOpenAI(...))`, or ask it with `lm(messages=[...])`."
            )
        if tools:
            kwargs["tools"] = tools
        arguments = {"max_tokens": 8000, **self.settings, **kwargs}
        return await self.client.chat.completions.create(
            model=model, messages=messages, stream=stream, **arguments
        )

    def stream(self, request):
        if self._is_asked_by_core():
            yield from self.core.stream(request)
        else:
            yield from super().stream(request)

    async def astream(self, request):
        stream = super().astream
        if self._is_asked_by_core():
            stream = self.core.astream
        async for item in stream(request):
            yield item

    def _is_asked_by_core(self):
        """Whether no subclass answers by an `acomplete` of its own."""
        return type(self).acomplete is OpenAILM.acomplete


def LM(model, api_key=None, base_url=None, **options):
    """`LM("gpt-4o")`, `LM("groq/llama-3-70b")`, `LM("llama2", base_url=...)`.

    Without a known prefix it is a model of OpenAI.
    """
    provider, _, name = model.partition("/")
    if provider not in PROVIDERS:
        provider, name = "openai", model
    base_url = base_url or os.environ.get("UDSPY_LM_OPENAI_COMPATIBLE_BASE_URL")
    api_key = api_key or os.environ.get("UDSPY_LM_API_KEY") or ""
    return OpenAILM(api_key, base_url, name, provider=provider, **options)


def with_model(lm, model):
    """Another model on the same server."""
    if isinstance(lm, OpenAILM):
        return lm.with_model(model)
    other = lm.copy()
    vars(other).update(_model=model, model=model, name=f"{lm.name.partition('/')[0]}/{model}")
    return other


class BaseCallback:
    """Override its hooks."""

    def on_module_start(self, *_, **__):
        """A module begins."""

    on_module_end = on_lm_start = on_lm_end = on_tool_start = on_tool_end = on_module_start


class Hooks:
    """The core's hooks, which call those of a callback of udspy with udspy's arguments."""

    def __init__(self, callback):
        self.callback = callback

    @classmethod
    def of(cls, callbacks):
        """Make the hooks of a list of callbacks. Raises `ConfigurationError` for anything else."""
        if not isinstance(callbacks, (list, tuple)):
            raise ferrule.errors.ConfigurationError(
                f"`callbacks` takes a list, found {ferrule.errors.shown(callbacks)}."
            )
        return [cls(callback) for callback in callbacks]

    def on_module_start(self, call_id, module, inputs):
        self.callback.on_module_start(call_id=call_id, instance=module, inputs=_inputs(inputs))

    def on_module_end(self, call_id, prediction, error):
        self.callback.on_module_end(call_id=call_id, outputs=prediction, exception=error)

    def on_lm_start(self, call_id, lm, inputs):
        request = inputs["request"]
        body = {
            **request.settings,
            "model": getattr(lm, "model", lm.name),
            "messages": [openai_message(message) for message in request.messages],
            "tools": list(request.tools),
        }
        self.callback.on_lm_start(call_id=call_id, instance=lm, inputs=_inputs(body))

    def on_lm_end(self, call_id, response, error):
        self.callback.on_lm_end(call_id=call_id, outputs=response, exception=error)

    def on_tool_start(self, call_id, name, args):
        tool = SimpleNamespace(name=name)
        self.callback.on_tool_start(call_id=call_id, instance=tool, inputs=_inputs(args))

    def on_tool_end(self, call_id, result, error):
        self.callback.on_tool_end(call_id=call_id, outputs=result.content, exception=error)


def _inputs(arguments):
    """The arguments of a call by name, as udspy documents, and as `kwargs`, as it passes them."""
    return {**arguments, "args": (), "kwargs": dict(arguments)}


class Settings:
    """The core's settings. Sampling settings are kept apart, and go to each call of a module."""

    @property
    def callbacks(self):
        return [getattr(hooks, "callback", hooks) for hooks in ferrule.settings.callbacks]

    @property
    def default_kwargs(self):
        return dict(ferrule.settings.current().extra.get("udspy_default_kwargs", {}))

    @property
    def lm(self):
        if ferrule.settings.lm is None:
            raise RuntimeError(
                "LM not configured. Call udspy.settings.configure() first: "
                "settings.configure(lm=LM('gpt-4o', api_key=...))."
            )
        return ferrule.settings.lm

    def configure(self, lm=None, callbacks=None, **more):
        ferrule.configure(**self._changes(lm, callbacks, **more))

    def context(self, lm=None, callbacks=None, **more):
        return ferrule.context(**self._changes(lm, callbacks, **more))

    def get(self, key, default=None):
        if key == "callbacks":
            return self.callbacks
        return default

    def _changes(
        self,
        lm,
        callbacks,
        *,
        aclient=None,
        client=None,
        model=None,
        api_key=None,
        base_url=None,
        **defaults,
    ):
        model = model or os.environ.get("UDSPY_LM_MODEL") or ""
        if aclient is not None:
            client = aclient
        if client is not None:
            lm = OpenAILM(client=client, default_model=model or "gpt-4o-mini")
        elif lm is None and (api_key or base_url or (model and ferrule.settings.lm is None)):
            lm = LM(model or "gpt-4o-mini", api_key, base_url)
        changes = {}
        if callbacks is not None:
            changes["callbacks"] = Hooks.of(callbacks)
        if lm is not None:
            changes["lm"] = lm
        if defaults:
            defaults = {**self.default_kwargs, **defaults}
            extra = ferrule.settings.current().extra
            changes["extra"] = {**extra, "udspy_default_kwargs": defaults}
        return changes


settings = Settings()
