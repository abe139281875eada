"""ferrule binds language models to tools.

Everything public is a name of this package and is loaded when it is first used, so that `import
ferrule` stays cheap. `docs/architecture.md` describes the modules behind it.
"""

from __future__ import annotations

from importlib import import_module

_HOMES = {
    "ferrule.errors": (
        "AdapterParseError", "AsyncToolError", "AuthenticationError", "BadRequestError", "BoundaryError", "ConfigurationError",
        "ConfirmationRejected", "ConfirmationRequired", "ConstraintError", "ContextOverflowError", "DecisionError", "DuplicateToolError",
        "FerruleError", "InputError", "LMError", "LimitReachedError", "MCPConnectionError", "MCPError", "MCPProtocolError",
        "MCPTimeoutError", "MCPToolError", "MaxTurnsReachedError", "MissingContentError", "MissingKeyError", "RateLimitError",
        "RefusalError", "ReplayMismatchError", "RunCancelledError", "RunError", "RunTakenError", "ScriptError", "SignatureError",
        "StoreError", "TooManyFaultsError", "ToolArgumentsError", "ToolCallError", "ToolDefinitionError", "ToolError", "ToolExecutionError",
        "ToolLoadError", "ToolRetry", "ToolStop", "ToolTimeoutError", "UnavailableError", "UnknownOutcomeError",
        "UnknownToolError",
    ),
    "ferrule.settings": ("configure", "context"),
    "ferrule.acts": (
        "AskPerson", "CallModel", "CallTools", "Conditions", "Once", "RecallCalls", "RuleCalls",
        "Tell", "Within",
    ),
    "ferrule.values.calls.call": ("ToolCall", "ToolResult"),
    "ferrule.values.calls.tool_calls": ("ToolCalls",),
    "ferrule.values.calls.context": ("Context", "NotDone", "Unknown"),
    "ferrule.values.calls.results": ("ToolCallResults",),
    "ferrule.events": (
        "AttemptFailed", "CallDelta", "CallFinished", "CallProgress", "CallRefused", "CallStarted", "Compacted", "Custom", "Decided",
        "Event", "FieldDelta", "Formatted", "Migrated", "ModelAnswered", "ModelCalled", "ModelFellBack", "ParseFinished", "ParseStarted",
        "QuestionAsked", "Resumed", "RuleUsed", "RunFinished", "RunStarted", "ServerUnavailable", "StepFinished", "TextDelta",
        "ThoughtDelta",
    ),
    "ferrule.values.conversation.compact": ("Compact",),
    "ferrule.values.conversation.exchange": ("CallPiece", "Capabilities", "Delta", "Request", "Response", "Usage"),
    "ferrule.values.conversation.history": ("History",),
    "ferrule.schema.lowering.lower": ("LoweredSchema", "LoweredTools", "lower_schema", "lower_tools"),
    "ferrule.schema.lowering.rules": ("SchemaLoss",),
    "ferrule.values.conversation.message": ("Message", "Messages"),
    "ferrule.values.outcome": ("Prediction", "Step", "Trajectory"),
    "ferrule.values.content.parts": ("Audio", "File", "Image", "Text"),
    "ferrule.values.content.type": ("Reasoning", "Type"),
    "ferrule.approval.policy": ("Grant", "Policy", "allow", "ask", "deny", "ge", "gt", "le", "lt"),
    "ferrule.approval.question": ("Decision", "Question"),
    "ferrule.values.signatures.signature": ("InputField", "OutputField", "Signature"),
    "ferrule.tools.execution.tool_changes": ("Load", "ModuleCallback", "Unload", "module_callback"),
    "ferrule.tools.decorator": ("confirm_first", "tool"),
    "ferrule.tools.server_tools": ("connect_mcp_tools", "convert_mcp_tool", "estimate_mcp_tokens", "find_shadowed_tools"),
    "ferrule.tools.search": ("defer_tools",),
    "ferrule.tools.mcp_definition": ("MCPDefinition",),
    "ferrule.tools.mcp.result": ("MCPResult",),
    "ferrule.tools.mcp.safety": ("MCPFinding", "fence_untrusted", "scan_mcp_definition"),
    "ferrule.schema.python_types": ("convert_input_schema_to_tool_args",),
    "ferrule.tools.tool": ("Tool",),
    "ferrule.tools.toolbox": ("Toolbox",),
    "ferrule.adapters.adapter": ("Adapter",),
    "ferrule.adapters.chat": ("ChatAdapter",),
    "ferrule.adapters.json_object": ("JSONAdapter",),
    "ferrule.adapters.xml_tags": ("XMLAdapter",),
    "ferrule.models.fallback": ("FallbackLM",),
    "ferrule.models.hosted": ("LM",),
    "ferrule.models.local.constraint": ("Constraint",),
    "ferrule.models.local.grammar": ("CallForm",),
    "ferrule.models.local.processor": ("ConstraintProcessor",),
    "ferrule.models.local.vocabulary": ("Vocabulary",),
    "ferrule.models.model": ("BaseLM",),
    "ferrule.testing.offline.model": ("AutoLM", "OfflineLM"),
    "ferrule.testing.replay": ("RecordLM", "ReplayLM"),
    "ferrule.testing.scripted": ("ScriptedLM",),
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
    "ferrule.mcp_bridge.login.oauth": ("OAuth",),
    "ferrule.mcp_bridge.sampling": ("sampling",),
    "ferrule.mcp_bridge.server.app": ("MCPApp", "serve"),
    "ferrule.mcp_bridge.server.context": ("MCPCall", "current_mcp_call"),
    "ferrule.mcp_bridge.client.group": ("connect_all",),
    "ferrule.telemetry.logs": ("log_to",),
    "ferrule.telemetry.prices": ("Prices",),
    "ferrule.telemetry.otel.observer": ("OTel",),
    "ferrule.programs.call_tool": ("acall_tool", "call_tool"),
    "ferrule.programs.tool_use.dynamic": ("ModuleContext", "ModuleView"),
    "ferrule.programs.module": ("Module",),
    "ferrule.programs.predict": ("ChainOfThought", "Predict"),
    "ferrule.programs.react": ("ReAct",),
    "ferrule.programs.lifecycle.advance": ("aadvance", "advance"),
    "ferrule.programs.lifecycle.batch": ("BatchResults",),
    "ferrule.programs.lifecycle.resume": ("ResumeState", "arun_until_done", "run_until_done"),
    "ferrule.web.ui": ("ui_app",),
}  # fmt: skip
"""Which module each public name lives in."""

_HOME = {name: home for home, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = sorted([*_HOME, "settings"])  # noqa: PLE0605  # pyright: ignore[reportUnsupportedDunderAll]  a table is the one list of names


def __getattr__(name: str) -> object:
    if name == "settings":  # the module itself: `ferrule.settings.lm`
        return import_module("ferrule.settings")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"ferrule has no `{name}`.")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
