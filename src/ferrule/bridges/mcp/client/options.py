"""How a server is to be used: limits, filters and hooks."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, cast

from ferrule.errors import ConfigurationError, shown
from ferrule.tools.mcp.names import is_allowed
from ferrule.tools.mcp.result import ShowRules
from ferrule.tools.mcp.tool import ConversionRules, rules_of
from ferrule.values.encoding.encode import jsonable
from ferrule.values.record import Record, field

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

SAVED = (
    "timeout_s", "connect_timeout_s", "total_timeout_s", "tool_timeouts_s", "prefix", "allow", "deny", "max_concurrency", "poll_s",
    "log_level", "allow_http", "ask_in_runs", "input_expires_s", "lock", "pins",
)  # fmt: skip
"""What is kept when a server is saved, as far as it is plain data."""
SAVED_RULES = ("trust", "confirm", "lenient")


class ServerOptions(Record, kw_only=True):
    """Everything about a server but where it is. Hooks run on the background loop; they must not wait for it in sync code."""

    timeout_s: float = 60.0
    """Seconds without an answer or progress after which a call is given up."""
    connect_timeout_s: float = 30.0
    """Seconds for starting, and for agreeing on a version."""
    total_timeout_s: float | None = 3600.0
    """Seconds after which a call is given up, whatever progress it reports and `timeout_s` says; None: no progress prolongs a call."""
    tool_timeouts_s: dict[str, float] = field(default_factory=dict[str, float])
    """`timeout_s` by tool: names of the server, with `*` and `?`."""
    rules: ConversionRules = field(default_factory=ConversionRules)
    """How its tools are taken: `trust`, `confirm`, `lenient` and their like are given beside the other options."""
    prefix: Literal["auto", True, False] = "auto"
    """Whether its tools are called `server__tool`: always, never, or where a name is taken."""
    allow: Any = None
    """Which tools there are, for the model and at a call: names with `*` and `?`, or a function of a definition. None: all."""
    deny: Any = None
    """Which are not, in the same form; it has the last word."""
    max_concurrency: int | None = None
    """How many requests may be under way at once."""
    poll_s: float | None = None
    """Seconds after which `changes()` lists the tools again although the server said nothing; for servers that never tell."""
    log_level: str | None = None
    """From which level on the server shall send its log messages."""
    allow_http: bool = False
    """Whether http without TLS may leave this machine."""
    lock: Any = None
    """Path of a lock file (`ferrule.lock`) that says what the server's tools were. None: nothing is pinned."""
    pins: Literal["warn", "confirm", "block"] = "warn"
    """What becomes of a tool that is not as it was pinned: a warning; a person is asked about every call; it is left out."""
    record: Any = None
    """Path of a file that every request and its answer are written into, for `MCPServer.replay`."""
    detector: Callable[[str], Any] | None = None
    """Looks at each description and returns complaints, which become findings."""
    on_progress: Callable[[str | None, float, float | None, str | None], Awaitable[None] | None] | None = None
    """Told of progress: tool, done, of how much, message."""
    on_log: Callable[[dict[str, Any]], Awaitable[None] | None] | None = None
    """Told of log messages, as on the wire, with `server` and, where only one call is under way, `tool` added."""
    on_tools_changed: Callable[[tuple[str, ...], tuple[str, ...], tuple[str, ...]], None] | None = None
    """Told, by `changes()` and `refresh()`, which tools were added, removed and changed."""
    elicit: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]] | None = None
    """Answers `elicitation/create`: its params in, `{"action": ..., "content": ...}` out. None: the capability is not declared."""
    ask_in_runs: bool = False
    """Whether a server of the older era is told that it may ask: its questions then wait in the run that the call is a part of, and are
    declined outside any. On for a server that a program is given as it is; the newer era learns it call by call. `elicit` comes first."""
    input_expires_s: float | None = None
    """Seconds after which a question that waits in a run counts as cancelled; None: never."""
    sample: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]] | None = None
    """Answers `sampling/createMessage`. None: the capability is not declared."""
    roots: Callable[[], Awaitable[list[dict[str, Any]]]] | None = None
    """Answers `roots/list`. None: the capability is not declared."""

    def timeout_for(self, tool: str | None) -> float:
        """The time of one call: by tool, or the server's."""
        if tool is not None:
            for pattern, seconds in self.tool_timeouts_s.items():
                if fnmatchcase(tool, pattern):
                    return seconds
        return self.timeout_s

    def passes(self, definition: Any) -> bool:
        """Whether a tool passes the filters; `definition` has its name on the server."""
        return is_allowed(definition, self.allow, self.deny)

    def saved(self) -> dict[str, Any]:
        """What differs from the defaults and is plain data."""
        return {**_saved(self, ServerOptions(), SAVED), **_saved(self.rules, ConversionRules(), SAVED_RULES)}


def options_of(given: Mapping[str, Any]) -> ServerOptions:
    """Options by name. Raises `ConfigurationError` for a name that is none, and for what cannot be its value."""
    known = ServerOptions.__record_fields__
    of_rules = {*ConversionRules.__record_fields__, *ShowRules.__record_fields__} - {*known, "show", "server", "tool"}
    unknown = [name for name in given if name not in known and name not in of_rules]
    if unknown:
        names = ", ".join(f"`{each}`" for each in unknown)
        msg = f"An MCP server has no option {names}. It has: {', '.join(f'`{each}`' for each in sorted({*known, *of_rules} - {'rules'}))}."
        raise ConfigurationError(msg)
    for name, value in given.items():
        if name in _WANTED:
            refuse_unfit(name, value)
    own: dict[str, Any] = {"rules": rules_of({name: value for name, value in given.items() if name in of_rules})}
    own.update((name, value) for name, value in given.items() if name in known)
    return ServerOptions(**own)


def refuse_unfit(name: str, value: Any) -> None:
    """Raises `ConfigurationError` where a value cannot be that of an option."""
    fits, wanted, may_be_none = _WANTED[name]
    if not (fits(value) or (value is None and may_be_none)):
        msg = f"`{name}` of an MCP server must be {wanted}{' or None' if may_be_none else ''}, found {shown(value)}."
        raise ConfigurationError(msg)


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _are_seconds_by_tool(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    pairs = cast("Mapping[Any, Any]", value)
    return all(isinstance(name, str) and _is_seconds(each) for name, each in pairs.items())


def _are_names(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(isinstance(each, str) for each in cast("Iterable[Any]", value))
    return isinstance(value, str) or callable(value)


def _is_one_of(*choices: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in choices


_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_PINS = ("warn", "confirm", "block")
_SECONDS = "a number of seconds greater than zero"
_WANTED: dict[str, tuple[Callable[[Any], bool], str, bool]] = {
    **dict.fromkeys(("timeout_s", "connect_timeout_s"), (_is_seconds, _SECONDS, False)),
    **dict.fromkeys(("total_timeout_s", "poll_s", "input_expires_s"), (_is_seconds, _SECONDS, True)),
    "tool_timeouts_s": (_are_seconds_by_tool, "a mapping of names to seconds greater than zero", False),
    "prefix": (lambda value: isinstance(value, bool) or value == "auto", "'auto', True or False", False),
    **dict.fromkeys(("allow", "deny"), (_are_names, "names with `*`, a function of a definition", True)),
    "max_concurrency": (lambda value: type(value) is int and value > 0, "a whole number greater than zero", True),
    "log_level": (_is_one_of(*_LEVELS), f"one of {', '.join(_LEVELS)}", True),
    "pins": (_is_one_of(*_PINS), f"one of {', '.join(_PINS)}", False),
    **dict.fromkeys(("lock", "record"), (lambda value: isinstance(value, str | PathLike), "a path", True)),
    **dict.fromkeys(
        ("elicit", "sample", "roots", "detector", "on_progress", "on_log", "on_tools_changed", "on_input"), (callable, "a function", True)
    ),
    **dict.fromkeys(
        ("allow_http", "ask_in_runs", "trust", "lenient", "concurrent", "user_blocks", "fence", "strict_output"),
        (lambda value: isinstance(value, bool), "True or False", False),
    ),
}
"""Of each option: what fits, how that is called, and whether None does, too."""


def _saved(values: Record, defaults: Record, names: tuple[str, ...]) -> dict[str, Any]:
    found = {name: getattr(values, name) for name in names if getattr(values, name) != getattr(defaults, name)}
    return {name: jsonable(value) for name, value in found.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(each) for each in cast("Mapping[str, Any]", value).values())
    return not callable(value)
