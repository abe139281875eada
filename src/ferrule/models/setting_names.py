"""Names of settings: which are common, which are arguments of ferrule, and which are misspelled.

A setting goes to the provider as it is. So a name that belongs elsewhere (`timeout`, `max_steps`)
would be sent, perhaps with a key, and at best be ignored. These checks refuse it, and say what to
write instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.encode import opaque_text
from ferrule.errors import ConfigurationError, nearest, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

_ARGUMENTS = frozenset(
    {
        "model",
        "base_url",
        "wire",
        "api_key",
        "headers",
        "connect_timeout_s",
        "read_timeout_s",
        "timeout_s",
        "max_retries",
        "capabilities",
        "strict_tools",
        "text_calls",
        "max_concurrency",
        "requests_per_minute",
        "send_reasoning",
    }
)
"""The arguments of `LM` that are not settings of requests."""
_COMMON = frozenset(
    {
        "confidence",
        "extra",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "metadata",
        "min_p",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt_cache",
        "prompt_cache_key",
        "reasoning",
        "reasoning_effort",
        "repetition_penalty",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream_options",
        "temperature",
        "thinking",
        "tool_choice",
        "top_k",
        "top_logprobs",
        "top_p",
        "typical_p",
        "user",
        "verbosity",
    }
)
"""Settings that many providers accept."""
_SECRET = frozenset({"api_key", "apikey", "key", "token", "headers"})
"""Settings that may hold a key."""
_REMEDIES: dict[str, str] = {
    "api_base": "It is called `base_url`.",
    "apikey key token": "It is called `api_key`.",
    "timeout": "It is called `timeout_s` and is in seconds.",
    "num_retries": "It is called `max_retries`.",
    "retries": (
        "`LM(..., max_retries=...)` repeats requests, and `Limits(same_error=...)` bounds a "
        "model's mistakes."
    ),
    "cache": "ferrule caches no answers; `RecordLM` and `ReplayLM` replay them.",
    "n": (
        "A program asks for several answers: `Predict(..., n=3)`, or `config={'n': 3}` of a call."
    ),
    "functions": "Give tools to the program.",
    "toolsets mcp_servers builtin_tools": "Functions and MCP servers stand in the list of tools.",
    "prepare_tools prepare_output_tools": (
        "`tools_for=` chooses the tools of a run. A tool changes those of the next step: it "
        "returns `Load(...)`, `Unload(...)`, or a `@module_callback`."
    ),
    "interrupt_before interrupt_after interrupt_on": (
        "A run waits for a person before a call: `Tool(..., require_confirmation=True)`, or a "
        "`Policy` with `ask(...)`."
    ),
    "history_processors pre_model_hook": (
        "`ReAct(..., compact=...)` shortens a conversation; a model around a model changes "
        "requests."
    ),
    "post_model_hook event_stream_handler": (
        "Observers see what happens (`configure(callbacks=[...])`); `@program.output_validator` "
        "checks outputs."
    ),
    "handoffs managed_agents": "Another agent is a tool: `agent.as_tool('name')`.",
    "description": (
        "What a program is for is its signature's docstring; of one that is a tool, "
        "`program.as_tool(description=...)`."
    ),
    "model_type": (
        "ferrule knows the protocol by the provider; `LM(..., wire=...)` names another one."
    ),
    "model_settings": "Pass each setting by its name: `temperature=0`.",
    "callbacks hooks step_callbacks verbose": "Observers are set by `configure(callbacks=[...])`.",
    "middleware": (
        "Observers see what happens (`configure(callbacks=[...])`); a model around a model "
        "changes requests and answers."
    ),
    "adapter prices max_workers": (
        "Set it with `configure(...)` or, for a block, with `context(...)`."
    ),
    "usage_limits": (
        "Set `Limits` with `ReAct(..., limits=...)` or, for a block, with `context(limits=...)`."
    ),
    "max_steps max_iterations recursion_limit": (
        "The limit of an agent's steps is `ReAct(..., max_iters=...)`."
    ),
    "tool_use_behavior": (
        "An agent ends with the result of a tool by `ReAct(..., stop_at_tools=[...])`."
    ),
    "deps checkpointer": "Give it to a call, such as `program.start(...)`.",
    "run_id thread_id configurable": (
        "A run is named when it starts: `program.start(run_id=...)`."
    ),
    "deps_type context_schema": "A tool declares the type: `ctx: Context[Deps]`.",
    "system_prompt role backstory": (
        "Instructions are the signature's: its docstring, or `Signature('a -> b', '...')`; those "
        "of one run are `instructions=`."
    ),
    "output_type output_schema response_model result_type output_pydantic": (
        "The outputs are fields of the signature."
    ),
    "output_validator output_validators guardrails input_guardrails output_guardrails "
    "final_answer_checks": (
        "`@program.output_validator` checks outputs, the type of an input checks the input, and a "
        "`Policy` rules on calls."
    ),
    "arg_desc arg_types args concurrent desc effect mcp_server reconcile result returns schema "
    "unknown untrusted within_s": (
        "It is an option of a tool, `Tool(function, ...)`; `ReAct(..., parallel=False)` runs one "
        "call at a time."
    ),
    "keep keep_turns search shelf skills spill_over": (
        "It is an option of the tools: `ReAct('a -> b', Toolbox([...], ...))`."
    ),
    "cost observation_chars per_tool same_error steps tokens tool_calls tool_s wall_s": (
        "It is one of the `Limits`: `ReAct(..., limits=Limits(...))`."
    ),
    "history message_history session memory": ("A conversation is an input of the type `History`."),
}
"""Names that are not settings of any provider, but options of ferrule or another library.

Each line has one or several names, and what to write instead.
"""
_REMEDY_OF_NAME: dict[str, str] = {}
for _names, _remedy in _REMEDIES.items():
    _REMEDY_OF_NAME.update(dict.fromkeys(_names.split(), _remedy))
_NO_SETTINGS = _ARGUMENTS.union(_REMEDY_OF_NAME)


def check_settings(settings: Iterable[str]) -> None:
    """Raise `ConfigurationError` for settings that are arguments of ferrule."""
    for name in sorted(_NO_SETTINGS.intersection(settings)):
        if name in _ARGUMENTS:
            raise ConfigurationError(
                f"`{name}` is not a setting of a request. Make a model with it and pass that: "
                f"`lm=LM(..., {name}=...)`, or give it to your own client."
            )
        raise ConfigurationError(f"`{name}` is not a setting of a model. {_REMEDY_OF_NAME[name]}")


def check_values(settings: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for a value that is not JSON data: a function, NaN, an infinity.

    It would be sent as text, and a server that knows no such setting ignores it.
    """
    check_finite(settings)
    for name, value in settings.items():
        if opaque_text(value) is not None:
            raise ConfigurationError(
                f"`{name}` would be sent to the model as a setting, which is JSON data; found "
                f"{shown(value)}."
            )
    extra = settings.get("extra")
    if extra is not None and not isinstance(extra, Mapping):
        raise ConfigurationError(
            f"`extra` takes a mapping of fields of the request's body, found {shown(extra)}."
        )


def check_finite(settings: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for a NaN or an infinity, at any depth."""
    for name, value in settings.items():
        if _holds_non_finite(value):
            raise ConfigurationError(
                f"`{name}` would be sent to the model as a setting, and JSON has neither NaN nor "
                f"infinite numbers; found {shown(value)}."
            )


def _holds_non_finite(value: Any) -> bool:
    waiting: list[Any] = [value]
    seen: set[int] = set()  # a value may contain itself
    for part in waiting:  # grows meanwhile
        if isinstance(part, float):
            if not isfinite(part):
                return True
        elif id(part) not in seen:
            seen.add(id(part))
            if isinstance(part, Mapping):
                waiting.extend(cast("Mapping[Any, Any]", part).values())
            elif isinstance(part, list | tuple | set | frozenset):
                waiting.extend(cast("list[Any]", part))
    return False


def check_spelling(settings: Iterable[str], options: Iterable[str] = ()) -> None:
    """`check_settings`, and raise for a probable misspelling.

    It may be one of a setting, or of one of a program's `options`.
    """
    check_settings(settings)
    for name in settings:
        if name in options:
            remedy = ""
            if name in {"limits", "policy"}:
                remedy = f": set it with `context({name}=...)`"
            elif name == "max_iters":
                remedy = ": `max_turns` bounds a `Predict` with tools"
            raise ConfigurationError(
                f"`{name}` is not a setting of a model, "
                f"and this program has no such option{remedy}."
            )
        if name in _COMMON:
            continue
        close = nearest(name, [*options, *sorted(_COMMON | _ARGUMENTS)], cutoff=0.8)
        if close:
            raise ConfigurationError(
                f"`{name}` is not a known setting. Did you mean `{close}`? A setting of your "
                f"provider with this very name goes into `extra={{{name!r}: ...}}`."
            )


def check_attribute(lm: Any, name: str) -> None:
    """Raise `AttributeError` if a setting or an argument is set as an attribute of a model.

    No request would see it. A user's subclass may have attributes of its own.
    """
    if name not in _COMMON and name not in _ARGUMENTS:
        return
    if not type(lm).__module__.startswith("ferrule.models.") or hasattr(lm, name):
        return
    remedy = f"make the model with it, `LM(..., {name}=...)`"
    if name in _COMMON:
        remedy = f"`lm.copy({name}=...)` is the model with it"
    raise AttributeError(f"A model has no attribute `{name}`: {remedy}.")


def check_saved(settings: Iterable[str]) -> None:
    """Raise `ConfigurationError` for settings that hold a key and would be written to a file."""
    check_settings(sorted(_SECRET.intersection(settings)))
