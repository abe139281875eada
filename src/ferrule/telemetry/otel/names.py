"""The names of the OpenTelemetry GenAI conventions that are emitted, and the version each is of.

The conventions are in development. Names are those of version 1.41.0 of
`open-telemetry/semantic-conventions`, the last one that has them; since then they are in
`open-telemetry/semantic-conventions-genai`, which has no release yet. What comes from there is said
below.
"""

from __future__ import annotations

SEMCONV_VERSION = "1.41.0"
SCHEMA_URL = f"https://opentelemetry.io/schemas/{SEMCONV_VERSION}"
LATEST = "066d4a7f356f8600de6f10c42874626ab88692fb"
"""The commit of `semantic-conventions-genai` that `names="latest"` follows."""

# -- spans

OPERATION = "gen_ai.operation.name"
AGENT_NAME = "gen_ai.agent.name"
AGENT_ID = "gen_ai.agent.id"
AGENT_VERSION = "gen_ai.agent.version"
CONVERSATION_ID = "gen_ai.conversation.id"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
OUTPUT_TYPE = "gen_ai.output.type"
CHOICE_COUNT = "gen_ai.request.choice.count"
STREAM = "gen_ai.request.stream"
FIRST_CHUNK_S = "gen_ai.response.time_to_first_chunk"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
"""Of `semantic-conventions-genai`."""
COST = "operation.cost"
"""Not in any convention: the name that pydantic-ai uses, in US dollars."""
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_DESCRIPTION = "gen_ai.tool.description"
ERROR_TYPE = "error.type"
MCP_METHOD = "mcp.method.name"
MCP_VERSION = "mcp.protocol.version"
MCP_SESSION = "mcp.session.id"

SETTINGS = {
    "temperature": ("gen_ai.request.temperature", float),
    "top_p": ("gen_ai.request.top_p", float),
    "top_k": ("gen_ai.request.top_k", float),
    "max_tokens": ("gen_ai.request.max_tokens", int),
    "max_completion_tokens": ("gen_ai.request.max_tokens", int),
    "frequency_penalty": ("gen_ai.request.frequency_penalty", float),
    "presence_penalty": ("gen_ai.request.presence_penalty", float),
    "seed": ("gen_ai.request.seed", int),
}
"""Settings of a request, with their attribute and its type."""
STOP_SEQUENCES = "gen_ai.request.stop_sequences"

RUN_TITLE = "ferrule.run.title"
RUN_METADATA = "ferrule.run.metadata."
"""The beginning of the names of a run's metadata."""
USER_ID = "user.id"

# -- content

INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
TOOL_DEFINITIONS = "gen_ai.tool.definitions"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

OPERATION_DETAILS = "gen_ai.client.inference.operation.details"
"""The event of a model call. It holds the content if spans must not."""

# -- metrics

TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105  a count of tokens
TOKEN_MODALITY = "gen_ai.token.modality"  # noqa: S105
TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105
LATEST_USAGE = "gen_ai.client.inference.usage"
"""With `names="latest"`: the prefix of the counters that replace `gen_ai.client.token.usage`."""
MODEL_DURATION = "gen_ai.client.operation.duration"
FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
TOOL_DURATION = "gen_ai.execute_tool.duration"
"""Of `semantic-conventions-genai`, like the next."""
AGENT_DURATION = "gen_ai.invoke_agent.duration"
QUESTION_WAIT = "ferrule.question.wait"
RUNS_WAITING = "ferrule.runs.waiting"

TOKEN_BUCKETS = (
    1,
    4,
    16,
    64,
    256,
    1024,
    4096,
    16384,
    65536,
    262144,
    1048576,
    4194304,
    16777216,
    67108864,
)
DURATION_BUCKETS = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
)
FIRST_CHUNK_BUCKETS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
)
WAIT_BUCKETS = (1, 10, 60, 600, 3600, 21600, 86400, 604800)
"""Ours: a person may take a week."""

# -- ferrule's own

RUN_ID = "ferrule.run.id"
RUN_SEGMENT = "ferrule.run.segment"
RUN_STATUS = "ferrule.run.status"
ATTEMPT = "ferrule.attempt"
EFFECT = "ferrule.tool.effect"
SLOT = "ferrule.call.slot"
CONFIDENCE = "ferrule.call.confidence"
SINCE = "ferrule.messages.since"

PROVIDER_NAMES = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""The convention's names of providers that have another one here."""
