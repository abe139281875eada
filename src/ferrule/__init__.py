"""ferrule binds language models to tools.

The names that programs write daily are names of this package, and are loaded when they are first
used, so that `import ferrule` stays cheap. The others are in public submodules: `ferrule.events`,
`ferrule.errors`, `ferrule.acts`, `ferrule.cases`, `ferrule.schemas`, `ferrule.local`,
`ferrule.testing` and `ferrule.mcp_bridge`. `docs/architecture.md` describes the modules behind
them.
"""

from __future__ import annotations

from importlib import import_module

_HOMES = {
    "ferrule.errors": (
        "AdapterParseError", "ConfirmationRejected", "ConfirmationRequired", "FerruleError",
        "InputError", "LMError", "RunError", "ToolError", "ToolRetry", "ToolStop",
    ),
    "ferrule.settings": ("configure", "context"),
    "ferrule.values.calls.call": ("ToolCall", "ToolResult"),
    "ferrule.values.calls.tool_calls": ("ToolCalls",),
    "ferrule.values.calls.context": ("Context", "NotDone", "Unknown"),
    "ferrule.values.calls.later": ("Later",),
    "ferrule.values.calls.results": ("ToolCallResults",),
    "ferrule.events": ("Event",),
    "ferrule.values.conversation.compact": ("Compact",),
    "ferrule.values.conversation.exchange": (
        "CallPiece", "Capabilities", "Delta", "Request", "Response", "Usage",
    ),
    "ferrule.values.conversation.history": ("History",),
    "ferrule.values.conversation.message": ("Message", "Messages"),
    "ferrule.values.outcome": ("Prediction", "Step", "Trajectory"),
    "ferrule.values.provider_tools": (
        "Citation", "CodeExecution", "FileSearch", "Location", "ProviderCall", "ProviderTool",
        "RemoteMCP", "WebFetch", "WebSearch",
    ),
    "ferrule.values.content.parts": ("Audio", "File", "Image", "Text"),
    "ferrule.values.content.type": ("Reasoning", "Type"),
    "ferrule.approval.paths": ("under",),
    "ferrule.approval.policy": (
        "Grant", "Policy", "allow", "ask", "call", "deny", "ge", "gt", "le", "lt", "review",
    ),
    "ferrule.programs.tool_use.reviewing": ("Review",),
    "ferrule.approval.question": ("Decision", "Question"),
    "ferrule.approval.result_links": ("ResultLinks",),
    "ferrule.values.signatures.signature": ("InputField", "OutputField", "Signature"),
    "ferrule.tools.execution.tool_changes": (
        "Load", "ModuleCallback", "Unload", "module_callback",
    ),
    "ferrule.tools.decorator": ("confirm_first", "tool"),
    "ferrule.tools.server_tools": ("convert_mcp_tool",),
    "ferrule.tools.search": ("defer_tools",),
    "ferrule.schema.python_types": ("convert_input_schema_to_tool_args",),
    "ferrule.tools.tool": ("Tool",),
    "ferrule.tools.skills.shelf": ("Skills",),
    "ferrule.tools.toolbox": ("Toolbox",),
    "ferrule.adapters.adapter": ("Adapter",),
    "ferrule.adapters.chat": ("ChatAdapter",),
    "ferrule.adapters.json_object": ("JSONAdapter",),
    "ferrule.adapters.xml_tags": ("XMLAdapter",),
    "ferrule.models.fallback": ("FallbackLM",),
    "ferrule.models.hosted": ("LM",),
    "ferrule.models.model": ("BaseLM",),
    "ferrule.programs.code_mode.interpreter": ("CodeMode",),
    "ferrule.runs.decisions": ("get_confirmation_status", "respond_to_confirmation"),
    "ferrule.runs.forward": ("aask_person", "aonce", "ask_person", "gather", "once"),
    "ferrule.runs.limits": ("Limits",),
    "ferrule.runs.observers": ("emit_event", "inspect_history", "is_cancelled", "progress"),
    "ferrule.runs.run": ("Run",),
    "ferrule.runs.store.postgres.store": ("PostgresStore",),
    "ferrule.runs.store.sqlite.store": ("MemoryStore", "SQLiteStore"),
    "ferrule.runs.protocols": ("Store",),
    "ferrule.runs.stream": ("EventStream",),
    "ferrule.runs.store.dbos": ("DBOSEngine",),
    "ferrule.front_ends.ag_ui": ("AGUI",),
    "ferrule.front_ends.vercel": ("VercelAI",),
    "ferrule.mcp_bridge.client.mcp_server": ("MCPServer", "mcp"),
    "ferrule.mcp_bridge.server.app": ("serve",),
    "ferrule.telemetry.logs": ("log_to",),
    "ferrule.telemetry.prices": ("Prices",),
    "ferrule.telemetry.otel.observer": ("OTel",),
    "ferrule.programs.call_tool": ("acall_tool", "call_tool"),
    "ferrule.programs.tool_use.dynamic": ("ModuleContext", "ModuleView"),
    "ferrule.programs.module": ("Module",),
    "ferrule.programs.predict": ("ChainOfThought", "Predict"),
    "ferrule.programs.react": ("ReAct",),
    "ferrule.programs.lifecycle.advance": ("aadvance", "advance"),
    "ferrule.programs.lifecycle.evaluate": ("Evaluate", "Evaluation"),
    "ferrule.programs.lifecycle.batch": ("BatchResults",),
    "ferrule.programs.lifecycle.resume": ("ResumeState", "arun_until_done", "run_until_done"),
    "ferrule.web.ui": ("result_route", "ui_app"),
    "ferrule.web.webhook": ("Webhook", "read_webhook"),
}  # fmt: skip
"""Which module each public name lives in."""
_SUBMODULES = (
    "acts",
    "cases",
    "errors",
    "events",
    "local",
    "mcp_bridge",
    "schemas",
    "settings",
    "testing",
)
"""The public submodules: `ferrule.events` needs no import of its own."""

_HOME = {name: home for home, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
# Both checkers want literals.
__all__ = sorted(  # noqa: PLE0605
    [*_HOME, *_SUBMODULES]  # pyright: ignore[reportUnsupportedDunderAll]
)


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return import_module(f"ferrule.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"ferrule has no `{name}`.{_place_of(name)}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def _place_of(name: str) -> str:
    """Where a name is public, if a submodule has it: ` It is in ferrule.events.`."""
    for submodule in _SUBMODULES:
        if name in getattr(import_module(f"ferrule.{submodule}"), "__all__", ()):
            return f" It is in ferrule.{submodule}."
    return ""


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
