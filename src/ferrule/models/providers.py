"""Known providers: address, key variable, dialect, and the capabilities of their models.

No entry was tested against the live service. A rule from a page or a report names its source.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from ferrule.errors import ConfigurationError, MissingKeyError, nearest, shown
from ferrule.record import Record, field, replace
from ferrule.values.content.type import thinks
from ferrule.values.conversation.exchange import Capabilities

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Dialect(Record):
    """How a provider's chat completions differ from the common form."""

    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings that the provider names differently: ours to theirs."""
    stream_usage: bool = True
    """Whether a stream reports tokens only if `stream_options` asks for them; if False, it always does, or refuses the field."""
    wants_reasoning: bool = False
    """Whether the reasoning of earlier tool calls must be sent back."""
    longest_id: int | None = None
    """The longest id of a call; longer ones are shortened. None: no limit, as gateways keep signatures in ids (litellm, PR 16895)."""


class Provider(Record):
    """A provider of models, or your own server."""

    name: str
    base_url: str
    """The URL without the wire's path, such as `/chat/completions`. Names in braces are environment variables."""
    key_variable: str | None = None
    """The environment variable that holds the key; None for your own servers, which need none."""
    other_variables: tuple[str, ...] = ()
    """Variables to read if the first is not set."""
    dialect: Dialect = Dialect()
    capabilities: Capabilities = field(default_factory=Capabilities)
    wire: str = "openai_chat"
    """The protocol at `base_url`."""
    elsewhere: Mapping[str, str] = field(default_factory=dict[str, str])
    """Base URLs of other wires, if they differ."""


_READS = Capabilities(json_schema=True)
_SEES = Capabilities(json_schema=True, images=True)
_HEARS = Capabilities(json_schema=True, images=True, audio=True)
# OpenAI's reasoning models refuse `max_tokens`; all its models take the newer name. Longer ids: 400
# (autogen, issue 6377).
_OPENAI = Dialect({"max_tokens": "max_completion_tokens"}, longest_id=40)
_GOOGLE = "https://generativelanguage.googleapis.com/v1beta"
_VERTEX = (
    "https://{GOOGLE_CLOUD_LOCATION}-aiplatform.googleapis.com/v1/projects/{GOOGLE_CLOUD_PROJECT}"
    "/locations/{GOOGLE_CLOUD_LOCATION}/endpoints/openapi"
)

PROVIDERS: Mapping[str, Provider] = {
    provider.name: provider
    for provider in (
        Provider("openai", "https://api.openai.com/v1", "OPENAI_API_KEY", dialect=_OPENAI, capabilities=_SEES),
        # Over `openai_chat`, at the same address, it ignores the shape of an answer ("OpenAI SDK
        # compatibility", November 2026).
        Provider("anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", capabilities=_SEES, wire="anthropic"),
        Provider(
            "gemini", _GOOGLE, "GEMINI_API_KEY", ("GOOGLE_API_KEY",), capabilities=_HEARS, wire="gemini",
            elsewhere={"openai_chat": f"{_GOOGLE}/openai"},
        ),
        Provider("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", capabilities=_READS),
        Provider("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
        # `stream_options` was answered with 422 (avante.nvim issue 2347, June 2025).
        Provider(
            "mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY", dialect=Dialect({"seed": "random_seed"}, stream_usage=False),
            capabilities=_READS,
        ),
        # A call without its reasoning is answered with 400:
        # api-docs.deepseek.com/guides/thinking_mode, as of November 2026.
        Provider("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", dialect=Dialect(wants_reasoning=True)),
        Provider("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY", ("TOGETHERAI_API_KEY",), capabilities=_READS),
        Provider("xai", "https://api.x.ai/v1", "XAI_API_KEY", capabilities=_SEES),
        Provider("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", capabilities=_READS),
        # The next three addresses contain names from your own account. "API version lifecycle"
        # (Azure, November 2026): keys go as tokens.
        Provider("azure", "{AZURE_OPENAI_ENDPOINT}/openai/v1", "AZURE_OPENAI_API_KEY", dialect=_OPENAI, capabilities=_SEES),
        # "Invoke a model with the OpenAI Chat Completions API" (Bedrock user guide, November 2026).
        Provider("bedrock", "https://bedrock-runtime.{AWS_REGION}.amazonaws.com/openai/v1", "AWS_BEARER_TOKEN_BEDROCK"),
        Provider("vertex", _VERTEX, "VERTEX_AI_ACCESS_TOKEN", ("GOOGLE_OAUTH_ACCESS_TOKEN",), capabilities=_HEARS),
        # It refuses `stream_options` (strandsagents.com, "Cohere", November 2026).
        Provider(
            "cohere", "https://api.cohere.ai/compatibility/v1", "COHERE_API_KEY", ("CO_API_KEY",), dialect=Dialect(stream_usage=False),
            capabilities=Capabilities(json_object=True),
        ),
        Provider("ollama", "http://localhost:11434/v1", capabilities=_READS),
        Provider("vllm", "http://localhost:8000/v1", capabilities=_READS),
        Provider("lmstudio", "http://localhost:1234/v1", capabilities=_READS),
    )
}  # fmt: skip


class _Profile(Record):
    """Capabilities in which some models of a provider differ from its others."""

    provider: str
    pattern: str
    changes: Mapping[str, Any]


_PROFILES = (
    # "... does not support tools": magentic-ui issue 206, OpenManus issue 220, Vane issue 1137
    # (2025-03 to 2026-05).
    _Profile(
        "ollama",
        r"gemma[23]?(?:$|:)|llama2(?:$|:)|phi4(?:$|:)|orca2(?:$|:)|qwen(?:$|:)",
        {"native_tools": False},
    ),
    # Schemas of an answer came with gpt-4o (guide "Structured model outputs", 2026-08).
    _Profile(
        "openai",
        r"gpt-3\.5|gpt-4(?:$|-(?:0|1|32k|turbo|vision))",
        {"json_schema": False, "json_object": True},
    ),
    # Schemas of an answer came with Sonnet 4.5 and Opus 4.1 (page "Structured outputs", 2026-10).
    _Profile(
        "anthropic",
        r"claude-(?:instant|[23]|(?:sonnet|opus)-4(?:$|-0|-2025))",
        {"json_schema": False},
    ),
)


def capabilities_of(provider: Provider, model: str) -> Capabilities:
    """The capabilities of a model, as far as they are known."""
    found = provider.capabilities
    for profile in _PROFILES:
        if profile.provider == provider.name and re.match(profile.pattern, model.lower()):
            found = replace(found, **profile.changes)
    return found


_ELSEWHERE = {
    name: cure
    for names, cure in {
        "api_base": "It is called `base_url`.",
        "apikey key token": "It is called `api_key`.",
        "timeout": "It is called `timeout_s` and is in seconds.",
        "num_retries": "It is called `max_retries`.",
        "retries": "`LM(..., max_retries=...)` repeats requests, and `Limits(same_error=...)` bounds a model's mistakes.",
        "cache": "ferrule caches no answers; `RecordLM` and `ReplayLM` replay them.",
        "n": "A program asks for several answers: `Predict(..., n=3)`, or `config={'n': 3}` of a call.",
        "functions": "Give tools to the program.",
        "toolsets mcp_servers": "Functions and MCP servers stand in the list of tools.",
        "handoffs managed_agents": "Another agent is a tool: `agent.as_tool('name')`.",
        "description": "What a program is for is its signature's docstring; of one that is a tool, `program.as_tool(description=...)`.",
        "model_type": "ferrule knows the protocol by the provider; `LM(..., wire=...)` names another one.",
        "model_settings": "Pass each setting by its name: `temperature=0`.",
        "callbacks hooks step_callbacks verbose": "Observers are set by `configure(callbacks=[...])`.",
        "middleware": "Observers see what happens (`configure(callbacks=[...])`); a model around a model changes requests and answers.",
        "adapter prices max_workers": "Set it with `configure(...)` or, for a block, with `context(...)`.",
        "usage_limits": "Set `Limits` with `ReAct(..., limits=...)` or, for a block, with `context(limits=...)`.",
        "max_steps max_iterations recursion_limit": "The limit of an agent's steps is `ReAct(..., max_iters=...)`.",
        "tool_use_behavior": "An agent ends with the result of a tool by `ReAct(..., stop_at_tools=[...])`.",
        "deps checkpointer": "Give it to a call, such as `program.start(...)`.",
        "run_id thread_id configurable": "A run is named when it starts: `program.start(run_id=...)`.",
        "deps_type context_schema": "A tool declares the type: `ctx: Context[Deps]`.",
        "instructions system_prompt role backstory": "Instructions are the signature's: its docstring, or `Signature('a -> b', '...')`.",
        "output_type output_schema response_model result_type output_pydantic": "The outputs are fields of the signature.",
        "guardrails input_guardrails output_guardrails final_answer_checks": (
            "`@program.output_validator` checks outputs, the type of an input checks the input, and a `Policy` rules on calls."
        ),
        "history message_history session memory": "A conversation is an input of the type `History`.",
    }.items()
    for name in names.split()
}
"""Names that are not settings of any provider, but options of ferrule or another library; and what to write instead."""

_MAKERS = frozenset({
    "model", "base_url", "wire", "api_key", "headers", "connect_timeout_s", "read_timeout_s", "timeout_s", "max_retries", "capabilities",
    "strict_tools", "max_concurrency", "requests_per_minute",
})  # fmt: skip
"""The arguments of `LM` that are not settings of requests."""
_NO_SETTINGS = _MAKERS.union(_ELSEWHERE)
_COMMON = frozenset({
    "extra", "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_output_tokens", "max_tokens", "metadata", "min_p",
    "parallel_tool_calls", "presence_penalty", "prompt_cache", "prompt_cache_key", "reasoning", "reasoning_effort", "repetition_penalty",
    "seed", "service_tier", "stop", "store", "temperature", "thinking", "tool_choice", "top_k", "top_logprobs", "top_p", "typical_p",
    "user", "verbosity",
})  # fmt: skip
"""Settings that many providers accept."""
_LONGEST_LABEL = 63  # RFC 1035, section 2.3.4
_SECRET = frozenset({"api_key", "apikey", "key", "token", "headers"})
"""Settings that may hold a key."""


def choose(
    model: object,
    base_url: str | None,
    model_at_url: object,
    wire: str | None = None,
) -> tuple[Provider, str]:
    """The provider, and the model's name there, from `"provider/model"` or from an address and `model=`."""
    provider, name = _chosen(model, base_url, model_at_url)
    if wire is not None and wire != provider.wire:
        found = provider.elsewhere.get(wire, provider.base_url) if base_url is None else base_url
        provider = replace(provider, wire=wire, base_url=found)
    if "{" in provider.base_url and base_url is None and "://" not in str(model):
        provider = replace(provider, base_url=_filled(provider))
    return provider, name


def _filled(provider: Provider) -> str:
    """The address with its environment variables filled in; raises `ConfigurationError` that names a missing one."""

    def value(match: re.Match[str]) -> str:
        found = next(
            (
                text
                for name in (match[1], *_SAME.get(match[1], ()))
                if (text := os.environ.get(name, "").strip())
            ),
            None,
        )
        if found is None:
            msg = (
                f"`{provider.name}` has an address of your own, {provider.base_url}: set the environment variable {match[1]} "
                f"(such as {_EXAMPLES[match[1]]}), or give the whole address as `base_url=`."
            )
            raise ConfigurationError(msg)
        return found.rstrip("/")

    return re.sub(r"\{(\w+)\}", value, provider.base_url).replace(
        "//global-",
        "//",
    )  # Google's host for "global" has no prefix


_SAME = {
    "AWS_REGION": ("AWS_DEFAULT_REGION",),
}  # alternatives, read if the first variable is not set
_EXAMPLES = {
    "AZURE_OPENAI_ENDPOINT": "https://my-resource.openai.azure.com", "AWS_REGION": "us-west-2",
    "GOOGLE_CLOUD_LOCATION": "us-central1 or global", "GOOGLE_CLOUD_PROJECT": "my-project",
}  # fmt: skip


def _chosen(model: object, base_url: str | None, model_at_url: object) -> tuple[Provider, str]:
    if not isinstance(model, str) or not model.strip():
        raise ConfigurationError(
            f'The name of a model is a string such as "openai/gpt-5-mini", found {shown(model)}.',
        )
    if "://" in model:
        if base_url is not None:
            raise ConfigurationError("Two addresses: the first argument and `base_url`. Give one.")
        if not isinstance(model_at_url, str) or not model_at_url:
            raise ConfigurationError(
                f'Which model at {public(model)}? Name it: LM("{public(model)}", model="...").',
            )
        return _at(model), model_at_url
    if model_at_url is not None:
        raise ConfigurationError(
            f"Two models: {model!r} and `model={shown(model_at_url)}`. Only an address takes `model=`.",
        )
    name, slash, there = model.partition("/")
    provider = PROVIDERS.get(name)
    if provider is not None and there:
        return (provider if base_url is None else replace(provider, base_url=base_url)), there
    if base_url is not None:
        return _at(base_url), model
    if provider is not None:
        raise ConfigurationError(f'Which model of {name}? Name it: LM("{name}/...").')
    known = ", ".join(PROVIDERS)
    found = f"no provider `{name}`" if slash else f'no provider named in "{model}"'
    msg = f'There is {found}. Write "provider/model" with one of: {known}; or LM("http://host:port/v1", model="...") for any other server.'
    raise ConfigurationError(msg)


def _at(base_url: str) -> Provider:
    return Provider(
        urlsplit(address(base_url)).netloc,
        base_url,
        capabilities=Capabilities(json_schema=True),
    )


def address(base_url: str, path: str = "/chat/completions") -> str:
    """The URL of a wire's requests: the base URL and the wire's path, perhaps with a query. The base URL may already end in the path."""
    try:
        parts = urlsplit(base_url)
        _ = parts.port  # raises if it is out of range or not a number
        if not all(
            0 < len(each) <= _LONGEST_LABEL
            for each in (parts.hostname or "none").removesuffix(".").split(".")
        ):
            raise ValueError("a part of its host's name is empty or longer than 63 characters")
    except ValueError as error:
        cause = (
            error if "@" not in base_url else None
        )  # it would quote a part of a password: `pa` of `user:pa/ss@host`
        raise ConfigurationError(
            f"{public(base_url)} is not an address: {cause or 'leave the user and the password out'}.",
        ) from cause
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(
            f'A base URL looks like "https://host/v1", found {public(base_url)}.',
        )
    if "@" in parts.netloc:
        raise ConfigurationError(
            f"A base URL holds no user or password ({public(base_url)}): give the key as `api_key`.",
        )
    path, _, query = path.partition("?")
    base = parts.path.rstrip("/")
    return urlunsplit(
        parts._replace(
            path=base if base.endswith(path) else f"{base}{path}",
            query="&".join(filter(None, (query, parts.query))),
        ),
    )


def public(base_url: object) -> str:
    """An address without its secret parts: user, password and query. A password may hold any character, even `/` and `?`."""
    head, _, rest = str(base_url).partition("://")
    return f"{head}://{rest.rpartition('@')[2].partition('?')[0]}"


def check_settings(settings: Iterable[str]) -> None:
    """Raise `ConfigurationError` for settings that are arguments of ferrule: otherwise the provider would get them, perhaps with a key."""
    if _NO_SETTINGS.isdisjoint(settings):
        return
    for name in sorted(_NO_SETTINGS.intersection(settings)):
        made = f"request. Make a model with it and pass that: `lm=LM(..., {name}=...)`, or give it to your own client."
        raise ConfigurationError(
            f"`{name}` is not a setting of a {made if name in _MAKERS else f'model. {_ELSEWHERE[name]}'}",
        )


def check_spelling(settings: Iterable[str], options: Iterable[str] = ()) -> None:
    """`check_settings`, and raise for a probable misspelling of a setting or of one of a program's `options`."""
    check_settings(settings)
    for name in settings:
        if name in options:
            cure = f": set it with `context({name}=...)`" if name in {"limits", "policy"} else ""
            raise ConfigurationError(
                f"`{name}` is not a setting of a model, and this program has no such option{cure}.",
            )
        if name not in _COMMON and (
            close := nearest(name, [*options, *sorted(_COMMON | _MAKERS)], cutoff=0.8)
        ):
            hint = f"Did you mean `{close}`? A setting of your provider with this very name goes into `extra={{{name!r}: ...}}`."
            raise ConfigurationError(f"`{name}` is not a known setting. {hint}")


def set_attribute(lm: Any, name: str, value: Any) -> None:
    """Set an attribute of a model. Raises `AttributeError` for a setting or an option: no request would see it."""
    if (
        name in _COMMON | _MAKERS
        and type(lm).__module__.startswith("ferrule.models.")
        and not hasattr(lm, name)
    ):  # subclasses of users may
        right = (
            f"`lm.copy({name}=...)` is the model with it"
            if name in _COMMON
            else f"make the model with it, `LM(..., {name}=...)`"
        )
        raise AttributeError(f"A model has no attribute `{name}`: {right}.")
    object.__setattr__(lm, name, value)


def check_saved(settings: Iterable[str]) -> None:
    """Raise `ConfigurationError` for settings that hold a key and would be written to a file."""
    check_settings(sorted(_SECRET.intersection(settings)))


def key_for(provider: Provider, key: str | None, *, needed: bool) -> str | None:
    """The key of a request: the argument (`""` for none), or the environment variable. Errors name the variable, never its value."""
    where = "`api_key`"
    if key is None:
        variables = [name for name in (provider.key_variable, *provider.other_variables) if name]
        found = next((name for name in variables if os.environ.get(name, "").strip()), None)
        if found is None:
            if needed and variables:
                raise MissingKeyError(
                    f"No key for `{provider.name}`: set the environment variable {variables[0]}, or give `api_key=...`.",
                )
            return None
        where, key = f"The environment variable {found}", os.environ[found]
    if not isinstance(key, str):
        raise ConfigurationError(
            f"`api_key` is text, found a value of type `{type(key).__name__}`.",
        )
    key = key.strip()  # a key read from a file ends with a newline
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError(
            f"{where} holds characters that no key has (spaces, line ends, or other than ASCII).",
        )
    return key or None


def thought_settings(
    wire: str,
    provider: str,
    settings: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Settings to add so that a model returns its thoughts; None if it does not think, or keeps them hidden."""
    if wire == "anthropic":  # effort alone does not turn thinking on
        settings = {name: settings[name] for name in ("thinking", "extra") if name in settings}
    told = thinks(settings)
    if told is None or (wire == "openai_chat" and provider in {"openai", "azure"}):
        return None
    name = {
        "anthropic": "thinking",
        "openai_responses": "reasoning",
        "gemini": "thinkingConfig",
    }.get(wire, "")
    name = "thinking_config" if "thinking_config" in settings and wire == "gemini" else name
    given: dict[str, Any] = settings.get(name) or {}
    if (
        wire == "anthropic" and given.get("type") == "adaptive"
    ):  # omitted by default from Claude Opus 4.7 on
        return {name: {"display": "summarized", **given}}
    added = {"openai_responses": {"summary": "auto"}, "gemini": {"includeThoughts": True}}.get(wire)
    return {name: {**added, **given}} if added else told
