"""Options of a server: limits, filters and hooks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, cast

from ferrule.encoding.encode import jsonable
from ferrule.errors import ConfigurationError, refuse_async, refuse_awaitable, shown
from ferrule.mcp_bridge.connection.handshake import LEVELS, PROTOCOL_MODES, ProtocolMode
from ferrule.mcp_bridge.transport.stdio import GROUPS
from ferrule.record import Record, field
from ferrule.tools.mcp.showing import ShowRules
from ferrule.tools.mcp.tool import ConversionRules, rules_from

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

_SAVED = (
    "timeout_s", "connect_timeout_s", "total_timeout_s", "tool_timeouts_s", "prefix", "allow", "deny", "max_concurrency", "poll_s",
    "log_level", "allow_http", "ask_in_runs", "input_expires_s", "lock", "pins", "on_error", "inherit", "mode",
    "login_timeout_s", "trace",
)  # fmt: skip
"""The options in a saved server, if they are plain data."""
_SAVED_RULES = ("trust", "confirm", "lenient")


class ServerOptions(Record, kw_only=True):
    """Everything about a server except where it is. Hooks run on the background loop, and must not block it with sync code."""

    timeout_s: float = 60.0
    """Seconds without an answer or progress until a call times out."""
    connect_timeout_s: float = 30.0
    """Seconds for starting and the handshake."""
    total_timeout_s: float | None = 3600.0
    """Seconds until a call times out, whatever progress it reports and whatever `timeout_s`. None: progress prolongs no call."""
    tool_timeouts_s: dict[str, float] = field(default_factory=dict[str, float])
    """`timeout_s` by tool: names on the server, with `*` and `?`."""
    rules: ConversionRules = field(default_factory=ConversionRules)
    """How its tools are converted. Pass `trust`, `confirm`, `lenient` etc. beside the other options."""
    prefix: Literal["auto", True, False] = "auto"
    """Whether its tools are named `server__tool`: always, never, or if a name is taken (which the toolbox decides)."""
    allow: Any = None
    """Which tools to use, when listing and when calling: names with `*` and `?`, or a function of a definition. None: all."""
    deny: Any = None
    """Which tools to exclude, in the same form; it overrides `allow`."""
    max_concurrency: int | None = None
    """How many requests run at once."""
    poll_s: float | None = None
    """Seconds after which `changes()` lists the tools again; for servers that never notify of changes."""
    log_level: str | None = None
    """The lowest level of log messages that the server should send."""
    inherit: Sequence[str] = ("proxy", "certificates")
    """What a child process inherits besides a few harmless variables: "proxy", "certificates", "locale", and names of variables."""
    login_timeout_s: float = 300.0
    """Seconds for a person to log in, if the server has `auth="oauth"`."""
    open_browser: Callable[[str], Any] | Literal[False] | None = None
    """Opens the address of a log-in; it may be async, and returns False if it cannot. None: the system's browser. False: opens none."""
    enter_code: Callable[[str, str], Any] | None = None
    """Shows a person the address and the code of a log-in with another device, for servers that offer it, if there is no browser here."""
    on_error: Literal["raise", "skip"] = "raise"
    """For a program whose server cannot be connected: raise, or go on without its tools, tell the model, and try again later."""
    mode: ProtocolMode = "auto"
    """The revision to speak: "2026-07-28", "2025-11-25" (or an older one, if the server wants it), or the latest that the server speaks.
    A tool that asks during a call in the older way works only with "2025-11-25"."""
    allow_http: bool = False
    """Whether to allow http without TLS to other machines."""
    trace: bool = True
    """Whether requests carry the caller's trace context and baggage: `traceparent`, `tracestate` and `baggage` in `_meta`."""
    lock: Any = None
    """Path of a lock file (`ferrule.lock`) with the pinned tools. None: no pinning."""
    pins: Literal["warn", "confirm", "block"] = "warn"
    """For a tool that differs from its pin: log a warning, have a person confirm every call, or leave it out."""
    record: Any = None
    """Path of a file to record every request and answer in, for `MCPServer.replay`."""
    detector: Callable[[str], Any] | None = None
    """Checks each description; the complaints that it returns become findings."""
    on_progress: (
        Callable[[str | None, float, float | None, str | None], Awaitable[None] | None] | None
    ) = None
    """Called on progress with tool, done, total, message."""
    on_log: Callable[[dict[str, Any]], Awaitable[None] | None] | None = None
    """Called with log messages as on the wire, plus `server` and, if only one tool is being called, `tool`."""
    on_tools_changed: Callable[[tuple[str, ...], tuple[str, ...], tuple[str, ...]], None] | None = (
        None
    )
    """Called by `changes()` and `refresh()` with the tools added, removed and changed."""
    elicit: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]] | None = None
    """Answers `elicitation/create`: its params in, `{"action": ..., "content": ...}` out. None: the capability is not declared."""
    ask_in_runs: bool = False
    """Whether to declare elicitation to a server of a version before 2026-07-28 without `elicit`: its questions wait in the run that makes
    the call, and are declined outside a run. On for a server passed to a program. From 2026-07-28 on each call declares it."""
    input_expires_s: float | None = None
    """Seconds until a question that waits in a run counts as cancelled; None: never."""
    sample: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]] | None = None
    """Answers `sampling/createMessage`. None: the capability is not declared."""
    roots: Callable[[], Awaitable[list[dict[str, Any]]]] | None = None
    """Answers `roots/list`. None: the capability is not declared."""

    def timeout_for(self, tool: str | None) -> float:
        """The timeout of one call: the tool's, or the server's."""
        if tool is not None:
            for pattern, seconds in self.tool_timeouts_s.items():
                if fnmatchcase(tool, pattern):
                    return seconds
        return self.timeout_s

    def passes(self, definition: Any) -> bool:
        """Whether a tool is allowed and not denied. Patterns match its name on the server, with case."""
        return (self.allow is None or _is_among(definition, self.allow)) and not (
            self.deny is not None and _is_among(definition, self.deny)
        )

    def saved(self) -> dict[str, Any]:
        """The options that are plain data and differ from the defaults."""
        of_rules = {
            **_saved(self.rules, ConversionRules(), _SAVED_RULES),
            **_saved(self.rules.show, ShowRules(), ("result_mode",)),
        }
        return {**_saved(self, ServerOptions(), _SAVED), **of_rules}


def _is_among(definition: Any, choice: Any) -> bool:
    if callable(choice):
        return bool(refuse_awaitable(choice(definition), "`allow` or `deny` of an MCP server"))
    patterns = (choice,) if isinstance(choice, str) else choice
    return any(fnmatchcase(definition.name, each) for each in patterns)


def options_from(given: Mapping[str, Any]) -> ServerOptions:
    """Options by name. Raises `ConfigurationError` for an unknown name and for a value of the wrong kind."""
    known = ServerOptions.__record_fields__
    of_rules = {*ConversionRules.__record_fields__, *ShowRules.__record_fields__} - {
        *known,
        "show",
        "server",
        "tool",
    }
    unknown = [name for name in given if name not in known and name not in of_rules]
    if unknown:
        names = ", ".join(f"`{each}`" for each in unknown)
        msg = f"An MCP server has no option {names}. It has: {', '.join(f'`{each}`' for each in sorted({*known, *of_rules} - {'rules'}))}."
        raise ConfigurationError(msg)
    for name, value in given.items():
        if name in _WANTED:
            check_option(name, value)
    own: dict[str, Any] = {
        "rules": rules_from({name: value for name, value in given.items() if name in of_rules}),
    }
    own.update((name, value) for name, value in given.items() if name in known)
    return ServerOptions(**own)


def check_option(name: str, value: Any) -> None:
    """Raises `ConfigurationError` for a value of the wrong kind."""
    fits, wanted, may_be_none = _WANTED[name]
    if not (fits(value) or (value is None and may_be_none)):
        raise ConfigurationError(
            f"`{name}` of an MCP server must be {wanted}{' or None' if may_be_none else ''}, found {shown(value)}.",
        )


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _are_seconds_by_tool(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    pairs = cast("Mapping[Any, Any]", value)
    return all(isinstance(name, str) and _is_seconds(each) for name, each in pairs.items())


def _are_names(value: Any) -> bool:
    refuse_async(value, "`allow` or `deny` of an MCP server")
    if isinstance(value, list | tuple | set | frozenset):
        return all(isinstance(each, str) for each in cast("Iterable[Any]", value))
    return isinstance(value, str) or callable(value)


def _is_one_of(*choices: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in choices


def _are_inheritable(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(each, str) and (each in GROUPS or (each.isidentifier() and each != each.lower()))
        for each in cast("list[Any]", value)
    )


_ON_ERROR = ("raise", "skip")
_PINS = ("warn", "confirm", "block")
_SECONDS = "a number of seconds greater than zero"
_WANTED: dict[str, tuple[Callable[[Any], bool], str, bool]] = {
    **dict.fromkeys(
        ("timeout_s", "connect_timeout_s", "login_timeout_s"),
        (_is_seconds, _SECONDS, False),
    ),
    **dict.fromkeys(("total_timeout_s", "poll_s"), (_is_seconds, _SECONDS, True)),
    "input_expires_s": (lambda value: _is_seconds(value) and value < math.inf, _SECONDS, True),
    "tool_timeouts_s": (
        _are_seconds_by_tool,
        "a mapping of names to seconds greater than zero",
        False,
    ),
    "prefix": (
        lambda value: isinstance(value, bool) or value == "auto",
        "'auto', True or False",
        False,
    ),
    **dict.fromkeys(
        ("allow", "deny"),
        (_are_names, "names with `*`, a function of a definition", True),
    ),
    "max_concurrency": (
        lambda value: type(value) is int and value > 0,
        "a whole number greater than zero",
        True,
    ),
    "log_level": (_is_one_of(*LEVELS), f"one of {', '.join(LEVELS)}", True),
    "inherit": (_are_inheritable, f"a list of {', '.join(GROUPS)} and names of variables", False),
    "open_browser": (lambda value: value is False or callable(value), "a function or False", True),
    "on_error": (_is_one_of(*_ON_ERROR), f"one of {', '.join(_ON_ERROR)}", False),
    "mode": (_is_one_of(*PROTOCOL_MODES), f"one of {', '.join(PROTOCOL_MODES)}", False),
    "pins": (_is_one_of(*_PINS), f"one of {', '.join(_PINS)}", False),
    **dict.fromkeys(
        ("lock", "record"),
        (lambda value: isinstance(value, str | PathLike), "a path", True),
    ),
    **dict.fromkeys(
        (
            "elicit",
            "sample",
            "roots",
            "detector",
            "on_progress",
            "on_log",
            "on_tools_changed",
            "on_input",
            "enter_code",
        ),
        (callable, "a function", True),
    ),
    **dict.fromkeys(
        (
            "allow_http",
            "trace",
            "ask_in_runs",
            "trust",
            "lenient",
            "concurrent",
            "user_blocks",
            "fence",
            "strict_output",
        ),
        (lambda value: isinstance(value, bool), "True or False", False),
    ),
}
"""For each option: a check, its words, and whether None is allowed."""


def _saved(values: Record, defaults: Record, names: tuple[str, ...]) -> dict[str, Any]:
    found = {
        name: getattr(values, name)
        for name in names
        if getattr(values, name) != getattr(defaults, name)
    }
    return {name: jsonable(value) for name, value in found.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(each) for each in cast("Mapping[str, Any]", value).values())
    return not callable(value)
