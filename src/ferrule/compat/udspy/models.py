"""udspy's models, settings and callbacks over the core's.

`LM("gpt-4o")`, `OpenAILM(client=...)`, `settings.configure(aclient=...)`.
"""

# udspy's names override those of the core, and accept anything.
# pyright: basic
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportIndexIssue=false

import os
from types import SimpleNamespace

import ferrule
from ferrule.models.providers import PROVIDERS
from ferrule.values.conversation.message import openai_message


def OpenAILM(
    api_key="",
    base_url=None,
    default_model="gpt-4o-mini",
    client=None,
    provider="openai",
    **options,
):
    """A model behind your `client` or, without one, on a server that ferrule itself connects to."""
    if client is None and not isinstance(api_key, str):
        client = api_key  # udspy's first argument may be the client
    if client is not None:
        lm = ferrule.LM.from_client(client, default_model)
    else:
        name = f"{provider}/{default_model}"
        if base_url:
            name = default_model
        lm = ferrule.LM(name, base_url=base_url, api_key=api_key or None, **options)
    vars(lm).update(client=client, model=default_model)
    return lm


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
        self.on_module_start = callback.on_module_start
        self.on_module_end = callback.on_module_end
        self.on_lm_end = callback.on_lm_end

    def on_lm_start(self, call_id, lm, inputs):
        request = inputs["request"]
        body = {
            **request.settings,
            "model": getattr(lm, "model", lm.name),
            "messages": [openai_message(message) for message in request.messages],
            "tools": list(request.tools),
        }
        self.callback.on_lm_start(call_id, lm, body)

    def on_tool_start(self, call_id, name, args):
        self.callback.on_tool_start(call_id, SimpleNamespace(name=name), args)

    def on_tool_end(self, call_id, result, error):
        self.callback.on_tool_end(call_id, result.content, error)


class Settings:
    """The core's settings. Sampling settings go to the model, and to one that replaces it."""

    @property
    def callbacks(self):
        return [getattr(hooks, "callback", hooks) for hooks in ferrule.settings.callbacks]

    @property
    def default_kwargs(self):
        return dict(getattr(ferrule.settings.lm, "defaults_of_all", {}))

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
        if defaults or (lm is not None and self.default_kwargs):
            if lm is None:
                lm = self.lm
            defaults = {**self.default_kwargs, **defaults}
            lm = lm.copy(**defaults)
            lm.defaults_of_all = defaults
        changes = {}
        if callbacks is not None:
            changes["callbacks"] = [Hooks(callback) for callback in callbacks]
        if lm is not None:
            changes["lm"] = lm
        return changes


settings = Settings()
