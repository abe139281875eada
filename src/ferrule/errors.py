"""Every error ferrule raises on purpose.

```
FerruleError
├── SignatureError (ValueError, TypeError)       a signature makes no sense
├── InputError (ValueError, TypeError)           a program was called with wrong inputs
├── ConfigurationError (ValueError)              a setting is missing or contradicts another
│   └── MissingKeyError                          a provider's key is not set; names the variable
├── ToolError
│   ├── ToolDefinitionError (ValueError, TypeError)   a function cannot become a tool
│   │   ├── DuplicateToolError                   two tools of one name
│   │   └── ToolLoadError                        a file of tools could not be loaded
│   ├── UnknownToolError (ValueError)            no tool of that name
│   ├── ToolArgumentsError (ValueError)          the arguments do not fit; lists every problem
│   ├── AsyncToolError (RuntimeError)            an async tool was called from sync code
│   ├── ToolTimeoutError (TimeoutError)          a tool took longer than its `timeout_s`
│   ├── ToolExecutionError (RuntimeError)        `ToolCall.execute`: the function raised; the cause is kept
│   ├── ToolRetry                                raised BY a tool: the model should change its call
│   └── ToolStop                                 raised BY a tool: the whole run ends with this error
├── BoundaryError (ValueError)                   what passes between program and model does not fit; carries `code` and `raw`
│   ├── ToolCallError                            a tool call, a declaration or a request
│   └── AdapterParseError                        a model's answer cannot be read as the signature's outputs
├── LMError
│   ├── UnavailableError                         no connection, a timeout, or a 5xx
│   │   └── RateLimitError                       429
│   ├── AuthenticationError                      401, 403
│   ├── RefusalError                             the model or its provider declined
│   ├── ContextOverflowError                     the prompt is longer than the model's window
│   └── BadRequestError                          any other 4xx, or an answer that is no answer
│       └── MissingContentError (BoundaryError)  a response without choices or without a message
├── MCPError                                     anything about an MCP server
│   ├── MCPConnectionError                       not reached, not started, or lost
│   ├── MCPTimeoutError (TimeoutError)           no answer in time
│   ├── MCPProtocolError                         an error of the protocol; carries `code` and `data`
│   └── MCPToolError (ToolError, RuntimeError)   the tool itself said that it failed
├── ScriptError (AssertionError)                 a scripted or replayed model drifted from its script
├── RunError
│   ├── TooManyFaultsError                       the model made too many bad steps in a row
│   ├── MaxTurnsReachedError                     `Predict` with tools ran out of turns
│   ├── LimitReachedError                        a program reached one of its limits
│   ├── ReplayMismatchError                      a program did something else than its journal says
│   ├── DecisionError (ValueError)               a decision that fits no pending question
│   ├── StoreError                               a store could not keep or give a run; nothing was half written
│   └── RunCancelledError                        the run was cancelled
├── ConfirmationRequired                         a person must decide before the run can go on
└── ConfirmationRejected                         a person decided against a call made directly
```
"""

from __future__ import annotations

import copyreg
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def shown(value: object, limit: int = 200) -> str:
    """`repr` of a value, shortened for a message."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  a foreign `__repr__` may raise anything, and the error itself must still be told
        text = object.__repr__(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}… ({len(text)} characters)"


class FerruleError(Exception):
    """The root: `except FerruleError` catches whatever ferrule raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Python's own way would call the class with its message, which many of these classes make themselves, from other arguments.
        return copyreg.__newobj__, (type(self),), {**self.__dict__, "args": self.args}  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


class SignatureError(FerruleError, ValueError, TypeError):
    """A signature makes no sense: a bad string form, an unknown type, a field named twice."""


class InputError(FerruleError, ValueError, TypeError):
    """A program was called with missing, unknown or ill-typed inputs."""


class ConfigurationError(FerruleError, ValueError):
    """A setting is missing or contradicts another one."""


class MissingKeyError(ConfigurationError):
    """A provider's key is not set; the message names the environment variable, never a value."""


class ToolError(FerruleError):
    """Anything about tools."""


class ToolDefinitionError(ToolError, ValueError, TypeError):
    """A function, file or declaration cannot become a tool."""


class DuplicateToolError(ToolDefinitionError):
    """Two tools of one name, or whose wire names collide."""


class ToolLoadError(ToolDefinitionError):
    """A file or folder of tools could not be loaded."""


class UnknownToolError(ToolError, ValueError):
    """No tool of that name; `names` are the ones there are."""

    def __init__(self, name: str, names: Sequence[str]) -> None:
        self.name, self.names = name, tuple(names)
        known = ", ".join(f"`{each}`" for each in self.names) or "none"
        super().__init__(f"There is no tool `{name}`. Available tools: {known}.")


class ToolArgumentsError(ToolError, ValueError):
    """The arguments of a call do not fit, as said for the model; `problems`: `(path, text)`, dotted (`filters.0`), `""` for the whole."""

    def __init__(self, tool: str, problems: Sequence[tuple[str, str]], expected: str = "") -> None:
        self.tool, self.problems, self.expected = tool, tuple(problems), expected
        lines = [f"Call to `{tool}` was not run. Fix and call again:"]
        lines += [f"- {path}: {text}" if path else f"- {text}" for path, text in self.problems]
        super().__init__("\n".join([*lines, *([f"Expected: {expected}"] if expected else [])]))


class AsyncToolError(ToolError, RuntimeError):
    """An async tool was called from sync code without `allow_tool_async_sync_conversion`."""


class ToolTimeoutError(ToolError, TimeoutError):
    """A tool took longer than its `timeout_s`; a sync tool's thread is abandoned, not stopped."""

    def __init__(self, tool: str, timeout_s: float, *, abandoned: bool = False, because: str = "") -> None:
        self.tool, self.timeout_s = tool, timeout_s
        left = " It may still be running: a thread cannot be stopped from outside." if abandoned else because
        super().__init__(f"`{tool}` did not finish within {timeout_s:g} s.{left}")


class ToolExecutionError(ToolError, RuntimeError):
    """The function that `ToolCall.execute` called raised an error, which is the `__cause__` of this one."""


class ToolRetry(ToolError):  # noqa: N818  the settled public name
    """Raised by a tool to tell the model what to change; counts as a fault of the model's call."""


class ToolStop(ToolError):  # noqa: N818  the settled public name
    """Raised by a tool to end the whole run; the run's caller gets this very error."""


class BoundaryError(FerruleError, ValueError):
    """What passes between a program and a model does not fit; the same class, code and data in sync, async and streamed runs.

    `code` is one of `invalid_tool_spec`, `invalid_request` (nothing was sent); `missing_content`, `missing_required_outputs`,
    `invalid_outputs`, `invalid_tool_calls`, `invalid_tool_call`, `invalid_tool_call_arguments` (of an answer). `raw` is what was found.
    """

    code: str = ""
    raw: object = None


class ToolCallError(BoundaryError):
    """A tool call, a declaration or a request cannot be used: its `index` in a list, its `tool` if known, the `reason` in one word."""

    def __init__(
        self, code: str, message: str, *, raw: object = None, index: int | None = None, tool: str | None = None, reason: str | None = None
    ) -> None:
        self.code, self.raw, self.index, self.tool, self.reason = code, raw, index, tool, reason
        super().__init__(message)


class AdapterParseError(BoundaryError):
    """A model's answer cannot be read as the signature's outputs.

    `text` is the whole answer, `raw` that part of it which `code` is about, `problems` a tuple of `(field, what is wrong)`, `parsed` the
    outputs that could be read, `absent` the names of those that the answer does not mention at all.
    """

    def __init__(
        self, adapter: str, text: str, problems: Sequence[tuple[str, str]], *,
        parsed: Mapping[str, Any] | None = None, absent: Iterable[str] = (), code: str = "invalid_outputs", raw: object = None,
    ) -> None:  # fmt: skip
        self.code, self.raw = code, text if raw is None else raw
        self.adapter, self.text, self.problems = adapter, text, tuple(problems)
        self.parsed, self.absent = dict(parsed or {}), frozenset(absent)
        lines = [f"{adapter} could not read the model's answer:"]
        lines += [f"- {name}: {problem}" if name else f"- {problem}" for name, problem in self.problems]
        super().__init__("\n".join([*lines, f"The answer was: {shown(text, 600)}"]))


class LMError(FerruleError):
    """A model could not answer. `provider`, `status` and `request_id` are None where the provider gave none."""

    def __init__(
        self, message: str, *, provider: str | None = None, status: int | None = None, request_id: str | None = None,
        retry_after_s: float | None = None, raw: object = None,
    ) -> None:  # fmt: skip
        self.provider, self.status, self.request_id, self.retry_after_s, self.raw = provider, status, request_id, retry_after_s, raw
        where = [*([f"status {status}"] if status is not None else []), *([f"request {request_id}"] if request_id else [])]
        super().__init__(f"{f'{provider}: ' if provider else ''}{message}{' (' + ', '.join(where) + ')' if where else ''}")


class UnavailableError(LMError):
    """No connection, a timeout, or a 5xx: trying again later may help."""


class RateLimitError(UnavailableError):
    """429: too many requests; `retry_after_s` where the provider said how long."""


class AuthenticationError(LMError):
    """401 or 403: the key is wrong, or may not use this model."""


class RefusalError(LMError):
    """The model or its provider's filter declined to answer."""


class ContextOverflowError(LMError):
    """The prompt is longer than the model's window."""


class BadRequestError(LMError):
    """Any other 4xx, or an answer that is no answer (HTML, half a JSON)."""


class MissingContentError(BadRequestError, BoundaryError):
    """A response without choices, or without a message in it; `raw` is the response."""

    code = "missing_content"


class MCPError(FerruleError):
    """Anything about an MCP server: `server` is its name, `tool` the tool's on that server, `phase` what was being done, as `call`.

    `may_have_run`: the server may have executed the call (None: unknown). HTTP has `status`, `retry_after_s`; JSON-RPC `code` and `data`.
    """

    def __init__(
        self, message: str, *, server: str | None = None, tool: str | None = None, phase: str | None = None, code: int | None = None,
        may_have_run: bool | None = None, status: int | None = None, retry_after_s: float | None = None, data: object = None,
    ) -> None:  # fmt: skip
        self.server, self.tool, self.phase, self.code, self.data = server, tool, phase, code, data
        self.may_have_run, self.status, self.retry_after_s = may_have_run, status, retry_after_s
        super().__init__(message)


class MCPConnectionError(MCPError):
    """A server could not be started or reached, or the connection was lost."""


class MCPTimeoutError(MCPError, TimeoutError):
    """A server did not answer in time."""


class MCPProtocolError(MCPError):
    """A server answered with a JSON-RPC error, or with what is no answer."""


class MCPToolError(MCPError, ToolError, RuntimeError):
    """A tool of a server reported that it failed (`isError`)."""


class ScriptError(FerruleError, AssertionError):
    """A scripted or replayed model was asked something its script does not hold, or was not asked all of it."""


class RunError(FerruleError):
    """A run could not go on."""


class TooManyFaultsError(RunError):
    """The model made too many bad steps in a row; `faults` are the texts it was given."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        last = "".join(self.faults[-1:])
        told = f"The model made {len(self.faults)} bad steps in a row, so the run was stopped. The last one: {last} Raise"
        super().__init__(f"{told} `limits=Limits(same_error=...)`, use a stronger model, or make the tool's description clearer.")


class MaxTurnsReachedError(RunError):
    """`Predict` with tools ran out of turns; `pending` are the calls the model still wanted."""

    def __init__(self, max_turns: int, pending: Sequence[Any]) -> None:
        self.max_turns, self.pending = max_turns, tuple(pending)
        names = ", ".join(f"`{call.name}`" for call in self.pending) or "none"
        super().__init__(f"No answer after {max_turns} turns; calls still wanted: {names}. Raise `max_turns`.")


class LimitReachedError(RunError):
    """A program reached one of its `Limits`: `name` says which, `limit` how much it was, `reason` is what an agent's prediction says."""

    def __init__(self, name: str, limit: float) -> None:
        self.name, self.limit, self.reason = name, limit, f"limits.{name}"
        super().__init__(f"The run was stopped: its limit {name}={limit:g} is reached. Raise it (`Limits({name}=...)`) and resume.")


class ReplayMismatchError(RunError):
    """A program did something else at a journalled place: it changed, or it is not deterministic."""

    def __init__(self, at: str, recorded: str, found: str) -> None:
        self.at, self.recorded, self.found = at, recorded, found
        told = f"Replay differs from the journal at act {at}: recorded {recorded}, now {found}. The program, its tools or its"
        super().__init__(f"{told} settings changed, or its choices depend on a clock or on chance.")


class DecisionError(RunError, ValueError):
    """A decision that fits no pending question: unknown id, decided already, or contradictory."""


class StoreError(RunError):
    """A store could not keep or give a run: full disk, no such run, another process holds it. What it was to write is not written."""


class RunCancelledError(RunError):
    """The run was cancelled; what it did so far is in its journal."""


class ConfirmationRequired(FerruleError):  # noqa: N818  the settled public name
    """A person must decide on `question`. `tool_call` has the arguments that will run, `run` is what waits (None for a direct call)."""

    def __init__(
        self, question: str, *, confirmation_id: str = "", tool_call: Any = None, run: Any = None, context: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.question, self.confirmation_id, self.tool_call = question, confirmation_id, tool_call
        self.run, self.context = run, dict(context or {})
        super().__init__(question)


class ConfirmationRejected(FerruleError):  # noqa: N818  the settled public name
    """A person decided against a call that was made directly, outside any run."""

    def __init__(self, message: str, *, confirmation_id: str = "", tool_call: Any = None) -> None:
        self.message, self.confirmation_id, self.tool_call = message, confirmation_id, tool_call
        super().__init__(message)


RENAMED: dict[str, type[FerruleError]] = {
    "AuthenticationFailed": AuthenticationError, "BadRequest": BadRequestError, "ContextOverflow": ContextOverflowError,
    "LimitReached": LimitReachedError, "MCPTimeout": MCPTimeoutError, "MaxTurnsReached": MaxTurnsReachedError,
    "MissingContent": MissingContentError, "RateLimited": RateLimitError, "Refused": RefusalError, "ReplayMismatch": ReplayMismatchError,
    "RunCancelled": RunCancelledError, "TooManyFaults": TooManyFaultsError, "Unavailable": UnavailableError,
}  # fmt: skip
"""Names of 0.1.0, kept for one version: `ferrule` still has them, and stored runs are read by them."""
