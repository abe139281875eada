"""Known providers: address, key variable, dialect, and the capabilities of their models.

No entry was tested against the live service. A rule from a page or a report names its source.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import SplitResult, urlsplit, urlunsplit

from msgspec import Struct, field
from msgspec.structs import replace

from ferrule.errors import ConfigurationError, shown
from ferrule.values.content.type import thinks
from ferrule.values.conversation.exchange import Capabilities, SchemaTarget
from ferrule.values.provider_tools import ToolKind

if TYPE_CHECKING:
    from ferrule.values.provider_tools import ProviderTool


class Dialect(Struct, frozen=True):
    """How a provider's chat completions differ from the common form."""

    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings that the provider names differently: ours to theirs."""
    stream_usage: bool = True
    """Whether a stream reports tokens only if `stream_options` asks for them.

    If False, it always does, or refuses the field.
    """
    reasoning: Literal["received", "always", "never"] = "received"
    """Which earlier tool calls are sent with their reasoning, as `reasoning_content`.

    `received`: those that the server itself sent with it. `always`: all, even with an empty text,
    because the server refuses a call without the field.
    """
    tool_additions: bool = False
    """Whether tools that come later are sent where they come, on the wires that have a form for it.

    Otherwise they are declared with the others, which changes the beginning of the prompt.
    """
    tool_removals: bool = False
    """Whether it takes word of removed tools there, too."""
    longest_id: int | None = None
    """The longest id of a call; longer ones are shortened.

    None for no limit, because gateways keep signatures in ids (litellm, PR 16895).
    """


class Provider(Struct, frozen=True):
    """A provider of models, or your own server."""

    name: str
    base_url: str
    """The URL without the wire's path, such as `/chat/completions`.

    Names in braces are environment variables.
    """
    key_variable: str | None = None
    """The environment variable that holds the key; None for your own servers."""
    other_variables: tuple[str, ...] = ()
    """Variables to read if the first is not set."""
    dialect: Dialect = Dialect()
    capabilities: Capabilities = field(default_factory=Capabilities)
    wire: str = "openai_chat"
    """The protocol at `base_url`."""
    elsewhere: Mapping[str, str] = field(default_factory=dict[str, str])
    """Base URLs of other wires, if they differ."""
    has_passing_keys: bool = False
    """Whether a key is a token for an hour or so, which does not identify the account."""
    takes_batches: bool = False
    """Whether `models/batches.py` knows its batch API, at its own wires."""

    @property
    def is_hosted(self) -> bool:
        """Whether it is a service, not a server of your own. Every service takes a key."""
        return self.key_variable is not None


_READS = Capabilities(json_schema=True)
_SEES = Capabilities(json_schema=True, images=True)
_HEARS = Capabilities(json_schema=True, images=True, audio=True)
# These services put the schema into the model's context: it counts as tokens of the input. Others
# only enforce it: "The model doesn't automatically see the schema" (Fireworks, November 2026).
_SEES_AND_CALLS = replace(_SEES, schema_with_tools=True, shows_schema=True)
# OpenAI's reasoning models refuse `max_tokens`; all its models take the newer name. Longer ids: 400
# (autogen, issue 6377).
_OPENAI = Dialect({"max_tokens": "max_completion_tokens"}, longest_id=40)
_GOOGLE = "https://generativelanguage.googleapis.com/v1beta"
_VERTEX = (
    "https://{GOOGLE_CLOUD_LOCATION}-aiplatform.googleapis.com/v1/projects/{GOOGLE_CLOUD_PROJECT}"
    "/locations/{GOOGLE_CLOUD_LOCATION}/endpoints/openapi"
)

_PROVIDERS = (
    Provider(
        "openai",
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
        dialect=replace(_OPENAI, tool_additions=True),
        capabilities=_SEES_AND_CALLS,
        takes_batches=True,
    ),
    # Over `openai_chat`, at the same address, it ignores the shape of an answer ("OpenAI SDK
    # compatibility", November 2026).
    Provider(
        "anthropic",
        "https://api.anthropic.com/v1",
        "ANTHROPIC_API_KEY",
        dialect=Dialect(tool_additions=True, tool_removals=True),
        capabilities=_SEES_AND_CALLS,
        wire="anthropic",
        takes_batches=True,
    ),
    Provider(
        "gemini",
        _GOOGLE,
        "GEMINI_API_KEY",
        ("GOOGLE_API_KEY",),
        capabilities=replace(_HEARS, schema_with_tools=True, shows_schema=True),
        wire="gemini",
        elsewhere={"openai_chat": f"{_GOOGLE}/openai"},
    ),
    Provider(
        "openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", capabilities=_READS
    ),
    Provider("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    # `stream_options` was answered with 422 (avante.nvim issue 2347, June 2025).
    Provider(
        "mistral",
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        dialect=Dialect({"seed": "random_seed"}, stream_usage=False),
        capabilities=_READS,
    ),
    # A call without its reasoning is answered with 400:
    # api-docs.deepseek.com/guides/thinking_mode, as of November 2026.
    Provider(
        "deepseek",
        "https://api.deepseek.com/v1",
        "DEEPSEEK_API_KEY",
        dialect=Dialect(reasoning="always"),
    ),
    # "reasoning_content is missing in assistant tool call message": platform.moonshot.ai, "Use Kimi
    # K2 thinking", as of November 2026.
    Provider(
        "moonshot",
        "https://api.moonshot.ai/v1",
        "MOONSHOT_API_KEY",
        dialect=Dialect(reasoning="always"),
        capabilities=Capabilities(json_object=True),
    ),
    Provider(
        "together",
        "https://api.together.xyz/v1",
        "TOGETHER_API_KEY",
        ("TOGETHERAI_API_KEY",),
        capabilities=_READS,
    ),
    Provider("xai", "https://api.x.ai/v1", "XAI_API_KEY", capabilities=_SEES),
    Provider(
        "fireworks",
        "https://api.fireworks.ai/inference/v1",
        "FIREWORKS_API_KEY",
        capabilities=_READS,
    ),
    # The next three addresses contain names from your own account. "API version lifecycle"
    # (Azure, November 2026): keys go as tokens.
    Provider(
        "azure",
        "{AZURE_OPENAI_ENDPOINT}/openai/v1",
        "AZURE_OPENAI_API_KEY",
        dialect=_OPENAI,
        capabilities=_SEES_AND_CALLS,
    ),
    # "Invoke a model with the OpenAI Chat Completions API" (Bedrock user guide, November 2026).
    Provider(
        "bedrock",
        "https://bedrock-runtime.{AWS_REGION}.amazonaws.com/openai/v1",
        "AWS_BEARER_TOKEN_BEDROCK",
    ),
    Provider(
        "vertex",
        _VERTEX,
        "VERTEX_AI_ACCESS_TOKEN",
        ("GOOGLE_OAUTH_ACCESS_TOKEN",),
        capabilities=_HEARS,
        has_passing_keys=True,
    ),
    # It refuses `stream_options` (strandsagents.com, "Cohere", November 2026).
    Provider(
        "cohere",
        "https://api.cohere.ai/compatibility/v1",
        "COHERE_API_KEY",
        ("CO_API_KEY",),
        dialect=Dialect(stream_usage=False),
        capabilities=Capabilities(json_object=True),
    ),
    Provider("ollama", "http://localhost:11434/v1", capabilities=_READS),
    Provider("vllm", "http://localhost:8000/v1", capabilities=_READS),
    Provider("lmstudio", "http://localhost:1234/v1", capabilities=_READS),
)
PROVIDERS: Mapping[str, Provider] = {provider.name: provider for provider in _PROVIDERS}


def is_hosted_at(base_url: str) -> bool:
    """Whether an address is that of a hosted provider, by its host."""
    host = urlsplit(base_url).hostname or ""
    return any(fnmatchcase(host, pattern) for pattern in _hosts())


@cache
def _hosts() -> frozenset[str]:
    """Patterns for the hosts of hosted providers."""
    hosts = {"*.azure.com"}  # the variable in Azure's address stands for all of the host
    for provider in _PROVIDERS:
        if provider.is_hosted:
            host = urlsplit(re.sub(r"\{\w+\}", "*", provider.base_url)).netloc
            if host:
                hosts.add(host)
    return frozenset(hosts)


class _Profile(Struct, frozen=True):
    """Capabilities in which some models of a provider differ from its others."""

    provider: str
    pattern: str
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    lacks: ToolKind | None = None
    """A tool that the provider does not run for these models."""


_PROFILES = (
    # "... does not support tools": magentic-ui issue 206, OpenManus issue 220, Vane issue 1137
    # (2025-03 to 2026-05).
    _Profile(
        "ollama",
        r"gemma[23]?(?:$|:)|llama2(?:$|:)|phi4(?:$|:)|orca2(?:$|:)|qwen(?:$|:)",
        {"native_tools": False},
    ),
    # Schemas together with function calls came with Gemini 3 ("Gemini 3 Developer Guide").
    _Profile("gemini", r"(?:models/)?gemini-(?:[12]|pro)", {"schema_with_tools": False}),
    # Schemas of an answer came with gpt-4o (guide "Structured model outputs", 2026-08).
    _Profile(
        "openai",
        r"gpt-3\.5|gpt-4(?:$|-(?:0|1|32k|turbo|vision))",
        {"json_schema": False, "json_object": True, "provider_tools": ()},
    ),
    # Schemas of an answer came with Sonnet 4.5 and Opus 4.1 (page "Structured outputs", 2026-10).
    _Profile(
        "anthropic",
        r"claude-(?:instant|[23]|(?:sonnet|opus)-4(?:$|-0|-2025))",
        {"json_schema": False},
    ),
    # The web search and the sandbox came with Sonnet 3.7 and later versions of 3.5 (pages "Web
    # search tool" and "Code execution tool", 2026-10).
    _Profile(
        "anthropic",
        r"claude-(?:instant|2|3-(?:opus|sonnet|haiku)|3-5-sonnet-20240620)",
        {"provider_tools": ()},
    ),
    _Profile("gemini", r"(?:models/)?gemini-(?:1|pro)", {"provider_tools": ()}),
    # The search of tools came with gpt-5.4 (guide "Tool search", 2026-10), and at Anthropic with
    # Sonnet, Opus and Haiku 4.5 (page "Tool search tool", 2026-10).
    _Profile(
        "openai",
        r"gpt-[34]|chatgpt|codex|o\d|gpt-5(?:$|-|\.[0-3](?:$|-))",
        lacks="tool_search",
    ),
    _Profile(
        "anthropic",
        r"claude-(?:instant|[23]|(?:sonnet|opus)-4(?:$|-[01](?:$|-)|-2025))",
        lacks="tool_search",
    ),
)


OFFERS: Mapping[tuple[str, str], tuple[ToolKind, ...]] = {
    ("openai", "openai_responses"): (
        "web_search",
        "code_execution",
        "file_search",
        "remote_mcp",
        "tool_search",
    ),
    ("azure", "openai_responses"): ("web_search", "code_execution", "file_search", "remote_mcp"),
    ("xai", "openai_responses"): ("web_search", "code_execution", "file_search", "remote_mcp"),
    ("anthropic", "anthropic"): (
        "web_search",
        "web_fetch",
        "code_execution",
        "remote_mcp",
        "tool_search",
    ),
    ("gemini", "gemini"): ("web_search", "web_fetch", "code_execution", "file_search"),
}
"""The tools that each provider runs, by its name and the wire. A new provider is a row.

A server at an address is trusted to have all that any provider on its wire has: it may be a
gateway.
"""


SCHEMA_TARGETS: Mapping[str, SchemaTarget] = {
    "openai_chat": "openai-strict",
    "openai_responses": "openai-strict",
    "anthropic": "anthropic",
    "gemini": "gemini",
}
"""The dialect of JSON Schema that the providers of a wire enforce.

Servers of open models (vLLM, llama.cpp, Ollama) accept more than OpenAI's.
"""


def capabilities_of(provider: Provider, model: str) -> Capabilities:
    """The capabilities of a model, as far as they are known."""
    capabilities = provider.capabilities
    lacking: set[str | None] = set()
    for profile in _PROFILES:
        if profile.provider == provider.name and re.match(profile.pattern, model.lower()):
            capabilities = replace(capabilities, **profile.changes)
            lacking.add(profile.lacks)
    capabilities = of_wire(capabilities, provider)
    kinds = [kind for kind in capabilities.provider_tools or () if kind not in lacking]
    return replace(capabilities, provider_tools=tuple(kinds))


def of_wire(capabilities: Capabilities, provider: Provider) -> Capabilities:
    """The capabilities with what follows from the provider and its wire, unless they say it.

    That is the dialect of JSON Schema, and the tools that the provider runs.
    """
    if not isinstance(capabilities, Capabilities):
        raise ConfigurationError(
            f"`capabilities` takes `Capabilities(...)`, found {shown(capabilities)}."
        )
    if capabilities.provider_tools is None:
        kinds = offered_kinds(provider.name, provider.wire, is_known=provider.name in PROVIDERS)
        capabilities = replace(capabilities, provider_tools=kinds)
    if not capabilities.json_schema or capabilities.schema_target is not None:
        return capabilities
    if provider.name == "anthropic" and provider.wire != "anthropic":
        return capabilities
    return replace(capabilities, schema_target=SCHEMA_TARGETS[provider.wire])


def offered_kinds(provider: str, wire: str, *, is_known: bool) -> tuple[ToolKind, ...]:
    """The kinds of tools that a provider runs for models on a wire."""
    if is_known:
        return OFFERS.get((provider, wire), ())
    kinds: dict[ToolKind, None] = {}
    for (_, other_wire), offered in OFFERS.items():
        if other_wire == wire:
            kinds |= dict.fromkeys(offered)
    return tuple(kinds)


def who_runs(kind: ToolKind) -> str:
    """The models whose providers run a kind of tool, as a program names them."""
    examples: list[str] = []
    for (provider, wire), kinds in OFFERS.items():
        if kind not in kinds:
            continue
        if wire == provider:
            examples.append(f'LM("{provider}/...")')
        else:
            examples.append(f'LM("{provider}/...", wire="{wire}")')
    return ", ".join(examples)


def refuse_unsupported(name: str, kinds: Iterable[str], tools: Iterable[ProviderTool]) -> None:
    """Raise `ConfigurationError` for a tool that the provider of the model `name` does not run."""
    kinds = frozenset(kinds)
    for tool in tools:
        if tool.kind not in kinds:
            raise ConfigurationError(
                f"`{name}` has no `{type(tool).__name__}`: nothing was sent. "
                f"These have it: {who_runs(tool.kind)}."
            )


_VARIABLES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "AZURE_OPENAI_ENDPOINT": ((), "https://my-resource.openai.azure.com"),
    "AWS_REGION": (("AWS_DEFAULT_REGION",), "us-west-2"),
    "GOOGLE_CLOUD_LOCATION": ((), "us-central1 or global"),
    "GOOGLE_CLOUD_PROJECT": ((), "my-project"),
}
"""The variables in addresses: others to read if the first is not set, and an example."""
_LONGEST_LABEL = 63  # RFC 1035, section 2.3.4


def choose(
    model: object, base_url: str | None, model_at_url: object, wire: str | None = None
) -> tuple[Provider, str]:
    """The provider, and the model's name there.

    They come from `"provider/model"`, or from an address and `model=`.
    """
    provider, name = _chosen(model, base_url, model_at_url)
    is_own_address = base_url is not None or "://" in str(model)
    if wire is not None and wire not in SCHEMA_TARGETS:
        raise ConfigurationError(
            f"There is no wire {shown(wire)}. There are: {', '.join(SCHEMA_TARGETS)}."
        )
    if wire is not None and wire != provider.wire:
        address_of_wire = provider.elsewhere.get(wire, provider.base_url)
        if base_url is not None:
            address_of_wire = base_url
        provider = replace(provider, wire=wire, base_url=address_of_wire)
    if "{" in provider.base_url and not is_own_address:
        provider = replace(provider, base_url=_filled(provider))
    return provider, name


def _chosen(model: object, base_url: str | None, model_at_url: object) -> tuple[Provider, str]:
    if not isinstance(model, str) or not model.strip():
        raise ConfigurationError(
            f'The name of a model is a string such as "openai/gpt-5-mini", found {shown(model)}.'
        )
    if base_url is not None and (not isinstance(base_url, str) or not base_url):
        raise ConfigurationError(
            f'`base_url` is an address such as "http://localhost:8000/v1", found {shown(base_url)}.'
        )
    if "://" in model:
        if base_url is not None:
            raise ConfigurationError("Two addresses: the first argument and `base_url`. Give one.")
        if not isinstance(model_at_url, str) or not model_at_url:
            url = public(model)
            raise ConfigurationError(f'Which model at {url}? Name it: LM("{url}", model="...").')
        return _own_server(model), model_at_url
    if model_at_url is not None:
        raise ConfigurationError(
            f"Two models: {model!r} and `model={shown(model_at_url)}`. "
            "Only an address takes `model=`."
        )
    provider_name, slash, name = model.partition("/")
    provider = PROVIDERS.get(provider_name)
    if provider is not None and name:
        if base_url is not None:
            provider = replace(provider, base_url=base_url)
        return provider, name
    if base_url is not None:
        return _own_server(base_url), model
    if provider is not None:
        raise ConfigurationError(
            f'Which model of {provider_name}? Name it: LM("{provider_name}/...").'
        )
    problem = f'no provider named in "{model}"'
    if slash:
        problem = f"no provider `{provider_name}`"
    raise ConfigurationError(
        f'There is {problem}. Write "provider/model" with one of: {", ".join(PROVIDERS)}; '
        'or LM("http://host:port/v1", model="...") for any other server.'
    )


def _own_server(base_url: str) -> Provider:
    name = urlsplit(address(base_url)).netloc
    return Provider(name, base_url, capabilities=Capabilities(json_schema=True))


def _filled(provider: Provider) -> str:
    """The address with its environment variables filled in.

    Raises `ConfigurationError` that names a missing one.
    """

    def value(match: re.Match[str]) -> str:
        variable = match[1]
        alternatives, example = _VARIABLES[variable]
        for name in (variable, *alternatives):
            text = os.environ.get(name, "").strip()
            if text:
                return text.rstrip("/")
        raise ConfigurationError(
            f"`{provider.name}` has an address of your own, {provider.base_url}: set the "
            f"environment variable {variable} (such as {example}), or give the whole address as "
            "`base_url=`."
        )

    filled = re.sub(r"\{(\w+)\}", value, provider.base_url)
    return filled.replace("//global-", "//")  # Google's host for "global" has no prefix


def address(base_url: str, path: str = "/chat/completions") -> str:
    """The URL of a wire's requests: the base URL and the wire's path, perhaps with a query.

    The base URL may already end in the path.
    """
    parts = _parts_of_address(base_url)
    path, _, query = path.partition("?")
    base_path = parts.path.rstrip("/")
    if not base_path.endswith(path):
        base_path += path
    queries = [text for text in (query, parts.query) if text]
    return urlunsplit(parts._replace(path=base_path, query="&".join(queries)))


def _parts_of_address(base_url: str) -> SplitResult:
    try:
        parts = urlsplit(base_url)
        _ = parts.port  # raises if it is out of range or not a number
        _check_host(parts.hostname)
    except ValueError as error:
        if "@" in base_url:
            # The error would quote a part of a password: `pa` of `user:pa/ss@host`.
            raise ConfigurationError(
                f"{public(base_url)} is not an address: leave the user and the password out."
            ) from None
        raise ConfigurationError(f"{public(base_url)} is not an address: {error}.") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(
            f'A base URL looks like "https://host/v1", found {public(base_url)}.'
        )
    if "@" in parts.netloc:
        raise ConfigurationError(
            f"A base URL holds no user or password ({public(base_url)}): give the key as `api_key`."
        )
    return parts


def _check_host(host: str | None) -> None:
    if not host:
        return  # refused later, with another message
    for label in host.removesuffix(".").split("."):
        if not 0 < len(label) <= _LONGEST_LABEL:
            raise ValueError("a part of its host's name is empty or longer than 63 characters")


def public(base_url: object) -> str:
    """An address without its secret parts: user, password and query.

    A password may hold any character, even `/` and `?`.
    """
    scheme, _, rest = str(base_url).partition("://")
    host_and_path = rest.rpartition("@")[2].partition("?")[0]
    return f"{scheme}://{host_and_path}"


def thought_settings(
    wire: str, provider: str, settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Settings to add so that a model returns its thoughts.

    None if it does not think, or keeps them hidden.
    """
    if wire == "anthropic":  # effort alone does not turn thinking on
        settings = {name: settings[name] for name in ("thinking", "extra") if name in settings}
    thinking = thinks(settings)
    if thinking is None:
        return None
    match wire:
        case "openai_chat" if provider in {"openai", "azure"}:
            return None
        case "openai_responses":
            return _with_keys(settings, "reasoning", {"summary": "auto"})
        case "gemini":
            if "thinking_config" in settings:
                name = "thinking_config"
            else:
                name = "thinkingConfig"
            return _with_keys(settings, name, {"includeThoughts": True})
        case "anthropic" if _is_adaptive(settings.get("thinking")):
            # Omitted by default from Claude Opus 4.7 on.
            return _with_keys(settings, "thinking", {"display": "summarized"})
        case _:
            return thinking


def _is_adaptive(thinking: Any) -> bool:
    return isinstance(thinking, dict) and cast("Any", thinking).get("type") == "adaptive"


def _with_keys(settings: Mapping[str, Any], name: str, defaults: dict[str, Any]) -> dict[str, Any]:
    """A setting with these keys, unless it has them already."""
    return {name: {**defaults, **(settings.get(name) or {})}}
