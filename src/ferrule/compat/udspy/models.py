"""udspy's models, settings and callbacks over the core's: `LM("gpt-4o")`, `OpenAILM(client=...)`, `settings.configure(aclient=...)`."""

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
    client = client if client is not None or isinstance(api_key, str) else api_key
    if client is not None:
        made = ferrule.LM.from_client(client, default_model)
    else:
        name = default_model if base_url else f"{provider}/{default_model}"
        made = ferrule.LM(name, base_url=base_url, api_key=api_key or None, **options)
    vars(made).update(client=client, model=default_model)
    return made


def LM(model, api_key=None, base_url=None, **options):
    """`LM("gpt-4o")`, `LM("groq/llama-3-70b")`, `LM("llama2", base_url=...)`: without a known prefix it is a model of OpenAI."""
    provider, _, name = (
        model.partition("/") if model.partition("/")[0] in PROVIDERS else ("openai", "", model)
    )
    where = base_url or os.environ.get("UDSPY_LM_OPENAI_COMPATIBLE_BASE_URL")
    return OpenAILM(
        api_key or os.environ.get("UDSPY_LM_API_KEY") or "",
        where,
        name,
        provider=provider,
        **options,
    )


def of_model(lm, model):
    """Another model on the same server."""
    made = lm.copy()
    vars(made).update(_model=model, model=model, name=f"{lm.name.partition('/')[0]}/{model}")
    return made


class BaseCallback:
    on_module_start = on_module_end = on_lm_start = on_lm_end = on_tool_start = on_tool_end = (
        lambda *_, **__: None
    )


def as_hooks(own):
    """Adapt a callback of udspy to the core's hooks."""

    def on_lm_start(call_id, lm, inputs):
        asked = inputs["request"]
        more = {
            "model": getattr(lm, "model", lm.name),
            "messages": list(map(openai_message, asked.messages)),
            "tools": list(asked.tools),
        }
        own.on_lm_start(call_id, lm, {**asked.settings, **more})

    return SimpleNamespace(
        own=own, on_module_start=own.on_module_start, on_module_end=own.on_module_end, on_lm_start=on_lm_start, on_lm_end=own.on_lm_end,
        on_tool_start=lambda call_id, name, args: own.on_tool_start(call_id, SimpleNamespace(name=name), args),
        on_tool_end=lambda call_id, result, error: own.on_tool_end(call_id, result.content, error),
    )  # fmt: skip


class Settings:
    """The core's settings. Sampling settings go to the model, and to one that replaces it."""

    callbacks = property(
        lambda _: [getattr(each, "own", each) for each in ferrule.settings.callbacks],
    )
    default_kwargs = property(lambda _: dict(getattr(ferrule.settings.lm, "defaults_of_all", {})))

    @property
    def lm(self):
        if ferrule.settings.lm is None:
            raise RuntimeError(
                "LM not configured. Call udspy.settings.configure() first: settings.configure(lm=LM('gpt-4o', api_key=...)).",
            )
        return ferrule.settings.lm

    def configure(self, lm=None, callbacks=None, **more):
        ferrule.configure(**self._changes(lm, callbacks, **more))

    def context(self, lm=None, callbacks=None, **more):
        return ferrule.context(**self._changes(lm, callbacks, **more))

    def get(self, key, default=None):
        return self.callbacks if key == "callbacks" else default

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
        client = aclient if aclient is not None else client
        if client is not None:
            lm = OpenAILM(client=client, default_model=model or "gpt-4o-mini")
        elif lm is None and (api_key or base_url or (model and ferrule.settings.lm is None)):
            lm = LM(model or "gpt-4o-mini", api_key, base_url)
        if defaults or (lm is not None and self.default_kwargs):
            defaults = {**self.default_kwargs, **defaults}
            lm = (lm if lm is not None else self.lm).copy(**defaults)
            lm.defaults_of_all = defaults
        changes = {} if callbacks is None else {"callbacks": list(map(as_hooks, callbacks))}
        return changes if lm is None else {**changes, "lm": lm}


settings = Settings()
