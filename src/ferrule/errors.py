"""The errors that ferrule raises.

```
FerruleError
├── SignatureError (ValueError, TypeError)       a signature is invalid
├── InputError (ValueError, TypeError)           a program was called with invalid inputs
├── ConfigurationError (ValueError)              a setting is missing, invalid or contradicts one
│   └── MissingKeyError                          a provider's key is not set; names its variable
├── ToolError
│   ├── ToolDefinitionError (ValueError, TypeError)   a function cannot become a tool
│   │   ├── DuplicateToolError                   two tools have one name
│   │   └── ToolLoadError                        a file of tools cannot be loaded
│   ├── UnknownToolError (ValueError)            no tool has this name
│   ├── ToolArgumentsError (ValueError)          the arguments are invalid; lists every problem
│   ├── AsyncToolError (RuntimeError, ValueError)     an async tool was called from sync code
│   ├── ToolTimeoutError (TimeoutError)          a tool took longer than its `timeout_s`
│   ├── ToolExecutionError (RuntimeError)        `ToolCall.execute`: the function raised
│   ├── ToolRetry                                raised BY a tool: asks the model to change its call
│   └── ToolStop                                 raised BY a tool: ends the run with this error
├── BoundaryError (ValueError)                   a call or an answer is invalid; has `code`, `raw`
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

from __future__ import annotations

import copyreg
import re
from contextlib import contextmanager
from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from types import FunctionType
    from typing import Self

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
    "check_flag",
    "checks_keywords",
    "naming_failure",
    "nearest",
    "refuse_async",
    "refuse_awaitable",
    "refuse_other_arguments",
    "refuse_unknown",
    "shown",
]

P = ParamSpec("P")
R = TypeVar("R")


def shown(value: object, limit: int = 200) -> str:
    """`repr` of a value, shortened for a message."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001
        text = object.__repr__(value)
    if len(text) <= limit:
        return text
    return f"{text[: limit - 1]}… ({len(text)} characters)"


def check_flag(name: str, value: object) -> None:
    """Raise `ConfigurationError` for an option that is neither True nor False.

    Any other object would count as one of them: the text "false", of a file, as true.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"`{name}` is True or False, found {shown(value)}.")


def nearest(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The most likely meaning of a misspelled name among `names`; None if none is similar."""
    from difflib import get_close_matches  # late: most programs misspell nothing

    return next(iter(get_close_matches(name, list(names), n=1, cutoff=cutoff)), None)


def refuse_unknown(
    what: str, names: Iterable[str], known: Collection[str], *, where: str = ""
) -> None:
    """Raise `ConfigurationError` for a keyword that `what` does not accept.

    The message suggests the nearest one, or lists all; if these are many, it says `where` they are.
    """
    for name in names:
        if name not in known:
            near = nearest(name, known)
            if near:
                remedy = f"Did you mean `{near}`?"
            elif where:
                remedy = f"Its options are in {where}."
            else:
                remedy = f"It has: {', '.join(f'`{option}`' for option in known)}."
            raise ConfigurationError(f"`{what}` has no option `{name}`. {remedy}")


def checks_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function or a constructor raise `ConfigurationError` for an unknown keyword.

    Python raises a `TypeError`, which suggests another name only since 3.13, and only if it is a
    name of the same function. `tests/test_face.py` holds every public name to it.
    """
    code = cast("FunctionType", function).__code__
    known = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    name = function.__name__
    if name in {"__init__", "__new__"}:
        known = known[1:]
    names = frozenset(known)

    def refuse(args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        match name:
            case "__init__":
                what = type(args[0]).__name__  # a subclass without an `__init__` of its own
            case "__new__":
                what = args[0].__name__
            case _:
                what = name
        refuse_unknown(what, keywords, known)

    if iscoroutinefunction(function):

        @wraps(function)
        async def checked_async(*args: P.args, **keywords: P.kwargs) -> Any:
            if not keywords.keys() <= names:
                refuse(args, keywords)
            return await function(*args, **keywords)

        return cast("Callable[P, R]", checked_async)

    @wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> R:
        if not keywords.keys() <= names:
            refuse(args, keywords)
        return function(*args, **keywords)

    return checked


class FerruleError(Exception):
    """Base class of all errors.

    `code` is a stable word per class (`unknown_tool`); `is_retryable`: whether a later attempt may
    succeed.
    """

    code: str = "ferrule"
    is_retryable: bool = False
    usage: Any = None
    """The `Usage` of the run that ended with this error; None if no run did.

    Other exceptions that end a run get this attribute and `cost`, too."""
    cost: float | None = None
    """The cost of that run in US dollars, or None if it is unknown."""
    _made_of: ClassVar[tuple[str, ...]] = ()
    """The arguments of `__init__` that a stored run keeps of its error; none for a text alone.

    They are attributes of the same names, or `message`."""

    @property
    def facts(self) -> dict[str, Any]:
        """What an equal error is made of, for a run that is stored.

        The arguments of `__init__`; and `is_retryable`, where it is not that of the class.
        """
        facts = {name: getattr(self, name, None) for name in self._made_of}
        if "message" in facts:
            facts["message"] = str(self)
        # Set after `__init__`, for example on a `RateLimitError` of a quota that is used up.
        is_retryable = vars(self).get("is_retryable")
        if is_retryable is not None and is_retryable != type(self).is_retryable:
            facts["is_retryable"] = is_retryable
        return facts

    @classmethod
    def made_again(cls, text: str, facts: Mapping[str, Any]) -> Self:
        """An error of a stored run, from its text and its `facts`."""
        arguments = dict(facts)
        is_retryable = arguments.pop("is_retryable", None)
        if arguments:
            error = cls(**arguments)
            error.args = (text,)  # as it was, also where a newer version words it otherwise
        else:
            error = cls(text)
        if isinstance(is_retryable, bool):
            error.is_retryable = is_retryable
        return error

    def __init_subclass__(cls) -> None:
        if "code" not in vars(cls):
            cls.code = "_".join(
                re.findall("[A-Z]+(?![a-z])|[A-Z][a-z]+", cls.__name__.removesuffix("Error"))
            ).lower()

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class with the message, but many classes build their message
        # from other arguments. The state sets `args`, which holds the message.
        state = {**self.__dict__, "args": self.args}
        return cast("Any", copyreg).__newobj__, (type(self),), state


def refuse_async(
    function: object, what: str, instead: str = "write `def`, not `async def`"
) -> None:
    """Raise `ConfigurationError` for an async function in place of a plain one.

    The coroutine it returns would count as true.
    """
    import inspect  # late: asyncio programs have loaded it anyway

    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004
    ):
        raise ConfigurationError(
            f"{what} is a plain function, found {shown(function)}, which is async: {instead}."
        )


def refuse_other_arguments(function: Any, what: str, argument: str) -> None:
    """Raise `ConfigurationError` for a function that cannot be called with one argument.

    Later, where it is called, the error would be one of a run.
    """
    import inspect  # late: most programs have no such function

    try:
        parameters = inspect.signature(function)
    except (ValueError, TypeError):  # a function in C may have no signature
        return
    try:
        parameters.bind(argument)
    except TypeError:
        raise ConfigurationError(
            f"{what} takes one argument, {argument}; found {shown(function)}, "
            f"which takes `{parameters}`."
        ) from None


def refuse_awaitable(value: Any, what: str) -> Any:
    """Return a value; raise `ConfigurationError` if it is awaitable, which would count as true."""
    if hasattr(value, "__await__"):
        getattr(value, "close", bool)()
        raise ConfigurationError(
            f"{what} is not awaited, and returned {shown(value)}. Use a plain function."
        )
    return value


@contextmanager
def naming_failure(what: Callable[[], str]) -> Generator[None]:
    """For a block that calls a function of the user's rules: its exception names `what` failed.

    It becomes a `ConfigurationError`: a rule that fails has decided nothing.
    """
    try:
        yield
    except (ConfigurationError, Warning):  # a warning is raised where warnings are errors
        raise
    except Exception as error:
        raise ConfigurationError(f"{what()} raised {shown(error)}.") from error


class SignatureError(FerruleError, ValueError, TypeError):
    """A signature is invalid: a malformed string, an unknown type, a repeated field."""


class InputError(FerruleError, ValueError, TypeError):
    """A program was called with missing, unknown or wrongly typed inputs.

    `problems` holds the known problems as `(input, text)`.
    """

    problems: Sequence[tuple[str, str]] = ()
    _made_of = ("message", "problems")

    @checks_keywords
    def __init__(self, message: str = "", problems: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.problems = _pairs(problems)


class ConfigurationError(FerruleError, ValueError):
    """A setting is missing, invalid, or contradicts another one."""


@contextmanager
def importing(needs: str) -> Generator[None]:
    """Import optional packages in this block.

    Raises `ConfigurationError` if that fails, with `needs`: what needs which package, and the
    command that installs it.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(import_problem(needs, error)) from error


def import_problem(needs: str, error: ImportError) -> str:
    """What to say about an optional package that is missing, or installed and broken."""
    if isinstance(error, ModuleNotFoundError):
        return needs
    return f"{needs} It is installed, but cannot be imported: {error}"


class MissingKeyError(ConfigurationError):
    """A provider's key is not set. The message names the environment variable."""


class BoundaryError(FerruleError, ValueError):
    """A declaration, a request, a call or an answer is invalid.

    Sync, async and streamed runs raise the same class, code and data.

    `code` is one of `invalid_tool_spec`, `invalid_request` (nothing was sent); `missing_content`,
    `missing_required_outputs`, `invalid_outputs`, `invalid_tool_calls`, `invalid_tool_call`,
    `invalid_tool_call_arguments` (in an answer). `raw` is the invalid value.
    """

    raw: object = None


class ToolCallError(BoundaryError):
    """A tool call, a declaration or a request is invalid.

    `index` is its place in a list, `tool` its tool if known, `reason` one word.
    """

    _made_of = ("code", "message", "raw", "index", "tool", "reason")

    @checks_keywords
    def __init__(
        self,
        code: str,
        message: str,
        *,
        raw: object = None,
        index: int | None = None,
        tool: str | None = None,
        reason: str | None = None,
    ) -> None:
        self.code, self.raw, self.index, self.tool, self.reason = code, raw, index, tool, reason
        super().__init__(message)


class AdapterParseError(BoundaryError):
    """A model's answer cannot be parsed into the outputs of the signature.

    `text` is the whole answer, `raw` the part that `code` is about. `problems` holds pairs `(field,
    problem)`, `parsed` the outputs that could be parsed, and `absent` the names of outputs missing
    from the answer. `signature` is None if the adapter got none, and in a run that was loaded.
    """

    _made_of = ("adapter", "text", "problems", "parsed", "absent", "code", "raw")

    @checks_keywords
    def __init__(
        self,
        adapter: str,
        text: str,
        problems: Sequence[tuple[str, str]],
        *,
        signature: Any = None,
        parsed: Mapping[str, Any] | None = None,
        absent: Iterable[str] = (),
        code: str = "invalid_outputs",
        raw: object = None,
    ) -> None:
        self.adapter = adapter
        self.text = text
        self.problems = _pairs(problems)
        self.signature = signature
        self.parsed = dict(parsed or {})
        self.absent = frozenset(absent)
        self.code = code
        self.raw = text if raw is None else raw
        lines = [f"{adapter} could not read the model's answer:"]
        for name, problem in self.problems:
            lines.append(f"- {name}: {problem}" if name else f"- {problem}")
        lines.append(f"The answer was: {shown(text, 600)}")
        super().__init__("\n".join(lines))


_MAX_CHARACTERS = 8_000
"""The most characters of problems in a message.

The model corrects these, and gets the others after its next call.
"""


class ToolError(FerruleError):
    """The base class of errors about tools."""


class ToolDefinitionError(ToolError, ValueError, TypeError):
    """A function, file or declaration cannot become a tool."""


class DuplicateToolError(ToolDefinitionError):
    """Two tools have the same name, or the same wire name."""


class ToolLoadError(ToolDefinitionError):
    """A file or folder of tools cannot be loaded."""


class UnknownToolError(ToolError, ValueError):
    """No tool has this name; `names` are the available ones."""

    _made_of = ("name", "names")

    def __init__(self, name: str, names: Sequence[str]) -> None:
        self.name, self.names = name, tuple(names)
        known = ", ".join(f"`{known_name}`" for known_name in self.names) or "none"
        super().__init__(f"There is no tool `{name}`. Available tools: {known}.")


class ToolArgumentsError(ToolError, ValueError):
    """The arguments of a call are invalid.

    `problems` holds pairs `(path, text)`: a dotted path (`filters.0`), or `""` for the whole.
    """

    _made_of = ("tool", "problems", "expected")

    @checks_keywords
    def __init__(self, tool: str, problems: Sequence[tuple[str, str]], expected: str = "") -> None:
        self.tool, self.problems, self.expected = tool, _pairs(problems), expected
        lines = [f"Call to `{tool}` was not run. Fix and call again:", *_lines(self.problems)]
        if expected:
            lines.append(f"Expected: {expected}")
        super().__init__("\n".join(lines))


def _pairs(problems: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The problems as tuples; those of a stored error are lists."""
    return tuple([(place, problem) for place, problem in problems])


def _lines(problems: Sequence[tuple[str, str]]) -> Iterator[str]:
    room = _MAX_CHARACTERS
    for index, (path, text) in enumerate(problems):
        if path:
            line = f"- {path}: {text}"
        else:
            line = f"- {text}"
        room -= len(line)
        # The first problem is shown however long it is.
        if room < 0 and index > 0:
            yield f"- and {len(problems) - index} more"
            return
        yield line


class AsyncToolError(ToolError, RuntimeError, ValueError):
    """An async tool was called from sync code without `allow_tool_async_sync_conversion`."""


class ToolTimeoutError(ToolError, TimeoutError):
    """A tool took longer than its `timeout_s`.

    The thread of a sync tool is abandoned and may still run.
    """

    _made_of = ("tool", "timeout_s")

    @checks_keywords
    def __init__(
        self, tool: str, timeout_s: float, *, abandoned: bool = False, because: str = ""
    ) -> None:
        self.tool, self.timeout_s = tool, timeout_s
        if abandoned:
            because = " It may still be running: a thread cannot be stopped from outside."
        super().__init__(f"`{tool}` did not finish within {timeout_s:g} s.{because}")


class ToolExecutionError(ToolError, RuntimeError):
    """The function that `ToolCall.execute` called raised an error, which is the `__cause__`."""


class ToolRetry(ToolError):
    """Raise it in a tool to tell the model what to change.

    It counts as a fault of the model's call.
    """


class ToolStop(ToolError):
    """Raise it in a tool to end the run. The caller of the run gets this error."""


class ConfirmationRequired(FerruleError):
    """A person must decide on `question`.

    `tool_call` has the arguments that will run; `run` is the waiting run, None for a direct call.
    The message is the question, and what to do: the `ways` in which it can be answered.
    """

    @checks_keywords
    def __init__(
        self,
        question: str,
        *,
        confirmation_id: str = "",
        tool_call: Any = None,
        run: Any = None,
        context: Mapping[str, Any] | None = None,
        ways: str = "`run.answer(question.approve())`, or with `.deny()` or `.reply(text)`",
    ) -> None:
        self.question = question
        self.confirmation_id = confirmation_id
        self.tool_call = tool_call
        self.run = run
        self.context = dict(context or {})
        message = question
        if run is not None:
            message = (
                f"{question}\nThe run {run.id} waits. Let `run = error.run` and "
                f"`question = run.pending[0]`; answer with {ways}, and go on with `run.resume()`. "
                "`program.start(...)` returns such a run instead of raising: "
                "docs/how-to/tools/approval.md."
            )
        super().__init__(message)


class ConfirmationRejected(FerruleError):
    """A person denied a direct call, or a question of `ask_person`.

    A direct call is made outside a run, or through `call_tool`.
    """

    _made_of = ("message", "confirmation_id")

    @checks_keywords
    def __init__(self, message: str, *, confirmation_id: str = "", tool_call: Any = None) -> None:
        self.message, self.confirmation_id, self.tool_call = message, confirmation_id, tool_call
        super().__init__(message)


class LMError(FerruleError):
    """A model could not answer. `provider`, `status` and `request_id` are None if unknown."""

    _made_of = ("message", "provider", "status", "request_id", "retry_after_s")

    @checks_keywords
    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        status: int | None = None,
        request_id: str | None = None,
        retry_after_s: float | None = None,
        raw: object = None,
    ) -> None:
        self.provider = provider
        self.status = status
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        self.raw = raw
        details: list[str] = []
        if status is not None:
            details.append(f"status {status}")
        if request_id:
            details.append(f"request {request_id}")
        if details:
            message = f"{message} ({', '.join(details)})"
        if provider:
            message = f"{provider}: {message}"
        super().__init__(message)


class UnavailableError(LMError):
    """There is no connection, or a timeout or a 5xx status: a later attempt may succeed."""

    is_retryable = True


class RateLimitError(UnavailableError):
    """Status 429: too many requests.

    `retry_after_s` is the wait that the provider asks for, or None.
    """


class AuthenticationError(LMError):
    """Status 401 or 403: the key is wrong or may not use this model."""


class RefusalError(LMError):
    """The model, or a filter of its provider, refused to answer."""


class ContextOverflowError(LMError):
    """The prompt is longer than the model's context window."""


class BadRequestError(LMError):
    """Any other 4xx status, or a malformed response, such as HTML or truncated JSON."""


class ConstraintError(LMError):
    """An answer cannot be constrained: its schema has no grammar, or a token was refused."""


class MissingContentError(BadRequestError, BoundaryError):
    """A response has no choice or no message; `raw` is the response."""


class ScriptError(FerruleError, AssertionError):
    """Requests differ from the script of a scripted or replayed model.

    It got a request that is not in its script, or did not use up the script.
    """


class MCPError(FerruleError):
    """Base class of errors of MCP servers.

    `server` is its name, `tool` the tool's name there, `phase` the operation, such as `call`.

    `may_have_run` says whether the call may have run (None: unknown). HTTP errors have `status` and
    `retry_after_s`; JSON-RPC errors have `data`, and a number as `code`.
    """

    _made_of = (
        "message",
        "server",
        "tool",
        "phase",
        "code",
        "may_have_run",
        "status",
        "retry_after_s",
        "data",
    )

    @checks_keywords
    def __init__(
        self,
        message: str,
        *,
        server: str | None = None,
        tool: str | None = None,
        phase: str | None = None,
        code: int | None = None,
        may_have_run: bool | None = None,
        status: int | None = None,
        retry_after_s: float | None = None,
        data: object = None,
    ) -> None:
        self.server, self.tool, self.phase, self.data = server, tool, phase, data
        self.code: Any = self.code if code is None else code
        self.may_have_run, self.status, self.retry_after_s = may_have_run, status, retry_after_s
        super().__init__(message)

    @property
    def is_retryable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True for a lost connection, a timeout, 429 and 5xx.

        For a call only if it has certainly not run.
        """
        is_lost = isinstance(self, (MCPConnectionError, MCPTimeoutError)) and self.phase != "login"
        return (is_lost or self.status in {429, 500, 502, 503, 504}) and not self.may_have_run


class MCPConnectionError(MCPError):
    """A server cannot be started or reached, or the connection was lost."""


class MCPTimeoutError(MCPError, TimeoutError):
    """A server did not answer in time."""


class MCPProtocolError(MCPError):
    """A server answered with a JSON-RPC error or a malformed message."""


class MCPToolError(  # pyright: ignore[reportIncompatibleVariableOverride]
    MCPError,
    ToolError,
    RuntimeError,
):
    """A tool of a server reported a failure (`isError`)."""


class RunError(FerruleError):
    """The base class of errors that end a run or an operation on it."""


class TooManyFaultsError(RunError):
    """The model made too many faulty steps in a row.

    `faults` are the messages that it got about them.
    """

    _made_of = ("faults",)

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        last = self.faults[-1] if self.faults else ""
        if not last.endswith((".", "!", "?")):
            last += "."
        super().__init__(
            f"The model made {len(self.faults)} faulty steps in a row, so the run was stopped. "
            f"The last fault: {last} Raise `limits=Limits(same_error=...)`, use a stronger model, "
            "or make the tool's description clearer."
        )


class MaxTurnsReachedError(RunError, RuntimeError):
    """`Predict` with tools ran out of turns; `pending` are the calls the model still wanted."""

    _made_of = ("max_turns", "pending")

    def __init__(self, max_turns: int, pending: Sequence[Any]) -> None:
        self.max_turns, self.pending = max_turns, tuple(pending)
        names = ", ".join(f"`{call.name}`" for call in self.pending) or "none"
        super().__init__(
            f"No answer after {max_turns} turns; calls still wanted: {names}. Raise `max_turns`."
        )


class LimitReachedError(RunError):
    """A program reached one of its `Limits`: `name`, whose value is `limit`.

    `reason` is as in an agent's prediction. `trajectory` has the steps so far, `usage` what the run
    has spent, and `run` is the run, which continues with `run.resume(limits=...)`. These three are
    None in the run that reached the limit, until it has ended. `is_of_batch`: the limit is that of
    a whole batch. `problem` says why the last answer could not be read, if the limit kept the model
    from correcting it; the cause is then the error of the parser.
    """

    @checks_keywords
    def __init__(
        self, name: str, limit: float, *, is_of_batch: bool = False, problem: str = ""
    ) -> None:
        self.name, self.limit, self.reason = name, limit, f"limits.{name}"
        self.is_of_batch = is_of_batch
        self.problem = problem
        self.run: Any = None
        self._trajectory: Any = None
        if is_of_batch:
            super().__init__(
                f"The batch was stopped at its limit {name}={limit:g}. With a store, the same call "
                "with a larger limit continues it."
            )
            return
        remedy = f"Continue it with a larger one: `error.run.resume(limits=Limits({name}=...))`."
        if problem:
            # An agent that answers from its steps at a limit has tried that.
            super().__init__(
                f"The run was stopped at its limit {name}={limit:g}, before the model could "
                f"correct its last answer, which could not be read: {problem}. {remedy}"
            )
            return
        super().__init__(
            f"The run was stopped at its limit {name}={limit:g}. {remedy} An agent with "
            '`on_limit="extract"` answers from its steps instead.'
        )

    @property
    def facts(self) -> dict[str, Any]:
        """The arguments with which an equal error is made, as JSON data."""
        facts: dict[str, Any] = {"name": self.name, "limit": self.limit}
        if self.is_of_batch:
            facts["is_of_batch"] = True
        if self.problem:
            facts["problem"] = self.problem
        return facts

    def after(self, problem: str) -> LimitReachedError:
        """The error where the limit kept a model from correcting an answer with this problem."""
        return LimitReachedError(
            self.name, self.limit, is_of_batch=self.is_of_batch, problem=problem
        )

    @property
    def trajectory(self) -> Any:
        """The steps so far: those of the program that reached the limit, or else of the run."""
        if self._trajectory is None and self.run is not None:
            steps_of_run = self.run.trajectory  # a loaded run is rebuilt now, which may set ours
            if self._trajectory is None:
                return steps_of_run
        return self._trajectory

    @trajectory.setter
    def trajectory(self, trajectory: Any) -> None:
        self._trajectory = trajectory


class UnknownOutcomeError(RunError):
    """It is unknown whether a call ran, and its tool has `unknown="fail"`."""


class ReplayMismatchError(RunError):
    """A program differs from its journal: it changed, or it is not deterministic."""

    _made_of = ("at", "recorded", "found")

    @checks_keywords
    def __init__(self, at: str, recorded: str, found: str, *, is_read: bool = False) -> None:
        self.at, self.recorded, self.found = at, recorded, found
        if is_read:
            remedy = "To read the run, load it with the version of the program that executed it."
        else:
            remedy = "Continue the run with the version of the program that it began with."
        super().__init__(
            f"Replay differs from the journal at act {at}: recorded {recorded}, now {found}. "
            "The program, its tools or its settings changed, or its choices depend on a clock or "
            f"on chance. {remedy}"
        )


class DecisionError(RunError, ValueError):
    """A decision does not match a pending question.

    Unknown id, decided already, or contradictory. `reason` says which, for code that answers the
    sender:

    - `"unknown"`: no such question waits.
    - `"decided"`: the question has another decision.
    - `"expired"`: the decision came too late.
    - `"early"`: the call does not wait yet. The same result is accepted in a moment.
    - `"unfit"`: anything else; another decision may be accepted.
    """

    _made_of = ("message", "reason")

    @checks_keywords
    def __init__(self, message: str, *, reason: str = "unfit") -> None:
        self.reason = reason
        super().__init__(message)


class StoreError(RunError):
    """A store cannot write or read a run.

    The disk is full, the run unknown, or leased to another process. Nothing was written.
    """


class RunTakenError(StoreError):
    """Another process, or an earlier execution in this process, is executing the run now."""


class RunCancelledError(RunError):
    """The run was cancelled. Its journal keeps what it did."""
