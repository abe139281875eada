"""The errors that ferrule raises.

```
FerruleError
├── SignatureError (ValueError, TypeError)       a signature is invalid
├── InputError (ValueError, TypeError)           a program was called with invalid inputs
├── ConfigurationError (ValueError)              a setting is missing, invalid, or contradicts another
│   └── MissingKeyError                          a provider's key is not set; names its variable
├── ToolError
│   ├── ToolDefinitionError (ValueError, TypeError)   a function cannot become a tool
│   │   ├── DuplicateToolError                   two tools have one name
│   │   └── ToolLoadError                        a file of tools cannot be loaded
│   ├── UnknownToolError (ValueError)            no tool has this name
│   ├── ToolArgumentsError (ValueError)          the arguments are invalid; lists every problem
│   ├── AsyncToolError (RuntimeError, ValueError)     an async tool was called from sync code
│   ├── ToolTimeoutError (TimeoutError)          a tool took longer than its `timeout_s`
│   ├── ToolExecutionError (RuntimeError)        `ToolCall.execute`: the function raised; has a cause
│   ├── ToolRetry                                raised BY a tool: asks the model to change its call
│   └── ToolStop                                 raised BY a tool: ends the run with this error
├── BoundaryError (ValueError)                   a call or an answer is invalid; has `code` and `raw`
│   ├── ToolCallError                            a tool call, a declaration or a request
│   └── AdapterParseError                        a model's answer cannot be parsed
├── LMError
│   ├── UnavailableError                         no connection, a timeout, or a 5xx
│   │   └── RateLimitError                       429
│   ├── AuthenticationError                      401, 403
│   ├── RefusalError                             the model or its provider refused to answer
│   ├── ContextOverflowError                     the prompt is longer than the context window
│   ├── ConstraintError                          a local model's answer cannot be constrained
│   └── BadRequestError                          any other 4xx, or a malformed response
│       └── MissingContentError (BoundaryError)  a response without choices or without a message
├── MCPError                                     an MCP server failed
│   ├── MCPConnectionError                       the server cannot be started or reached, or is lost
│   ├── MCPTimeoutError (TimeoutError)           no answer in time
│   ├── MCPProtocolError                         a JSON-RPC error; has `code` and `data`
│   └── MCPToolError (ToolError, RuntimeError)   the tool reported a failure
├── ScriptError (AssertionError)                 requests differ from the script of a test model
├── RunError
│   ├── TooManyFaultsError                       the model made too many faulty steps in a row
│   ├── MaxTurnsReachedError (RuntimeError)      `Predict` with tools ran out of turns
│   ├── LimitReachedError                        a program reached one of its limits
│   ├── ReplayMismatchError                      a program differs from its journal
│   ├── DecisionError (ValueError)               a decision does not match a pending question
│   ├── UnknownOutcomeError                      a call may have run, and its tool says `fail`
│   ├── StoreError                               a store cannot write or read a run
│   │   └── RunTakenError                        another process executes the run
│   └── RunCancelledError                        the run was cancelled
├── ConfirmationRequired                         a person must decide before the run continues
└── ConfirmationRejected                         a person denied a direct call or a question
```
"""

from ferrule.errors.answer import AdapterParseError, BoundaryError, ToolCallError
from ferrule.errors.error import (
    ConfigurationError,
    FerruleError,
    InputError,
    MissingKeyError,
    SignatureError,
    checks_keywords,
    nearest,
    refuse_async,
    refuse_awaitable,
    refuse_unknown,
    shown,
)
from ferrule.errors.mcp import MCPConnectionError, MCPError, MCPProtocolError, MCPTimeoutError, MCPToolError
from ferrule.errors.model import (
    AuthenticationError,
    BadRequestError,
    ConstraintError,
    ContextOverflowError,
    LMError,
    MissingContentError,
    RateLimitError,
    RefusalError,
    ScriptError,
    UnavailableError,
)
from ferrule.errors.run import (
    DecisionError,
    LimitReachedError,
    MaxTurnsReachedError,
    ReplayMismatchError,
    RunCancelledError,
    RunError,
    RunTakenError,
    StoreError,
    TooManyFaultsError,
    UnknownOutcomeError,
)
from ferrule.errors.tool import (
    AsyncToolError,
    ConfirmationRejected,
    ConfirmationRequired,
    DuplicateToolError,
    ToolArgumentsError,
    ToolDefinitionError,
    ToolError,
    ToolExecutionError,
    ToolLoadError,
    ToolRetry,
    ToolStop,
    ToolTimeoutError,
    UnknownToolError,
)

__all__ = [
    "AdapterParseError",
    "AsyncToolError",
    "AuthenticationError",
    "BadRequestError",
    "BoundaryError",
    "ConfigurationError",
    "ConfirmationRejected",
    "ConfirmationRequired",
    "ConstraintError",
    "ContextOverflowError",
    "DecisionError",
    "DuplicateToolError",
    "FerruleError",
    "InputError",
    "LMError",
    "LimitReachedError",
    "MCPConnectionError",
    "MCPError",
    "MCPProtocolError",
    "MCPTimeoutError",
    "MCPToolError",
    "MaxTurnsReachedError",
    "MissingContentError",
    "MissingKeyError",
    "RateLimitError",
    "RefusalError",
    "ReplayMismatchError",
    "RunCancelledError",
    "RunError",
    "RunTakenError",
    "ScriptError",
    "SignatureError",
    "StoreError",
    "TooManyFaultsError",
    "ToolArgumentsError",
    "ToolCallError",
    "ToolDefinitionError",
    "ToolError",
    "ToolExecutionError",
    "ToolLoadError",
    "ToolRetry",
    "ToolStop",
    "ToolTimeoutError",
    "UnavailableError",
    "UnknownOutcomeError",
    "UnknownToolError",
    "checks_keywords",
    "nearest",
    "refuse_async",
    "refuse_awaitable",
    "refuse_unknown",
    "shown",
]
