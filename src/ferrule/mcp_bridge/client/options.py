"""The options of `MCPServer`: limits, filters, hooks, and how its tools are converted.

A user passes all of them as keywords of one call. `options_from` checks them and sorts them into
three structs: `ServerOptions` for the connection, the `ConversionRules` in its `rules` for how a
definition becomes a tool, and the `ShowRules` in those for how a model sees a result.

A keyword is checked here, by name (`_CHECKS`), if a wrong value would fail only later and far from
the user's code. The other ones (`confirm`, `result_mode`, ...) are checked where they are used.

A new option needs a field, a check, and, if a saved server should keep it, a line in `_SAVED`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct, field

from ferrule.encoding.encode import jsonable
from ferrule.errors import (
    ConfigurationError,
    nearest,
    refuse_async,
    refuse_awaitable,
    refuse_other_arguments,
    refuse_unknown,
    shown,
)
from ferrule.mcp_bridge.connection.handshake import PROTOCOL_MODES, ProtocolMode
from ferrule.mcp_bridge.transport.stdio import GROUPS
from ferrule.tools.mcp.showing import ShowRules
from ferrule.tools.mcp.tool import ConversionRules, rules_from

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_SAVED = (
    "timeout_s",
    "connect_timeout_s",
    "total_timeout_s",
    "tool_timeouts_s",
    "prefix",
    "allow",
    "deny",
    "max_concurrency",
    "poll_s",
    "allow_http",
    "ask_in_runs",
    "input_expires_s",
    "lock",
    "pins",
    "on_error",
    "inherit",
    "mode",
    "login_timeout_s",
)
"""The options that a saved server keeps (`MCPServer.dump_state`). Hooks are missing, because a
function cannot be saved."""
_SAVED_RULES = ("trust", "untrusted", "confirm", "lenient")
"""The fields of `ConversionRules` that a saved server keeps."""
_SAVED_SHOW_RULES = ("result_mode",)
"""The fields of `ShowRules` that a saved server keeps."""


class ServerOptions(Struct, frozen=True, kw_only=True):
    """Everything about a server except its address or command, which its `ServerSpec` has.

    Hooks run on the background loop that all connections share. Sync code that takes long blocks
    them all.
    """

    timeout_s: float = 60.0
    """Seconds without an answer or progress until a call times out."""
    connect_timeout_s: float = 30.0
    """Seconds for starting and the handshake."""
    total_timeout_s: float | None = 3600.0
    """The most seconds that a call may take. Progress restarts `timeout_s`, but not this limit.
    None: progress restarts nothing, so a call takes at most `timeout_s`."""
    tool_timeouts_s: dict[str, float] = field(default_factory=dict[str, float])
    """`timeout_s` by tool: names on the server, with `*` and `?`."""
    rules: ConversionRules = field(default_factory=ConversionRules)
    """How its tools are converted. Users pass `trust`, `confirm` etc. with the other options."""
    prefix: Literal["auto", True, False] = "auto"
    """Whether its tools are named `server__tool`: always, never, or only if another tool has the
    same name ("auto"; the toolbox decides, which knows all tools)."""
    allow: Any = None
    """Which tools to use, when listing and when calling: names with `*` and `?`, or a function of a
    definition. None: all."""
    deny: Any = None
    """Which tools to exclude, in the same form; it overrides `allow`."""
    max_concurrency: int | None = None
    """How many requests run at once."""
    poll_s: float | None = None
    """Seconds after which `changes()` lists the tools again; for servers that never notify of
    changes."""
    inherit: Sequence[str] = ("proxy", "certificates")
    """What a child process inherits besides a few harmless variables: "proxy", "certificates",
    "locale", and names of variables."""
    login_timeout_s: float = 300.0
    """Seconds for a person to log in, if the server has `auth="oauth"`."""
    open_browser: Callable[[str], Any] | Literal[False] | None = None
    """Opens the address of a log-in; it may be async, and returns False if it cannot. None: the
    system's browser. False: opens none."""
    enter_code: Callable[[str, str], Any] | None = None
    """Shows a person the address and the code of a log-in with another device, for servers that
    offer it, if there is no browser here."""
    on_error: Literal["raise", "skip"] = "raise"
    """For a program whose server cannot be connected: raise, or go on without its tools, tell the
    model, and try again later."""
    mode: ProtocolMode = "auto"
    """The revision to speak: "2026-07-28", "2025-11-25" (or an older one, if the server wants it),
    or the latest that the server speaks. A tool that asks during a call in the older way works only
    with "2025-11-25"."""
    allow_http: bool = False
    """Whether to allow http without TLS to other machines."""
    lock: Any = None
    """Path of a lock file (`ferrule.lock`) with the pinned tools. None: no pinning."""
    pins: Literal["warn", "confirm", "block"] = "warn"
    """For a tool that differs from its pin: log a warning, have a person confirm every call, or
    leave it out."""
    record: Any = None
    """Path of a file to record every request and answer in, for `MCPServer.replay`."""
    on_progress: (
        Callable[[str | None, float, float | None, str | None], Awaitable[None] | None] | None
    ) = None
    """Called on progress with tool, done, total, message."""
    on_log: Callable[[dict[str, Any]], Awaitable[None] | None] | None = None
    """Called with log messages as on the wire, plus `server` and, if only one tool is being called,
    `tool`. The server is asked for messages of all levels."""
    elicit: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]] | None = None
    """Answers `elicitation/create`: its params in, `{"action": ..., "content": ...}` out. None: the
    capability is not declared."""
    ask_in_runs: bool = False
    """Whether to declare elicitation to a server that speaks a revision before 2026-07-28, if there
    is no `elicit`. Its questions then wait in the run that makes the call; outside a run they are
    declined. True for a server that is passed to a program. Since 2026-07-28 each call declares
    elicitation itself, and this option has no effect."""
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
        """Whether a tool is allowed and not denied.

        Patterns match its name on the server, with case.
        """
        if self.deny is not None and _is_among(definition, self.deny):
            return False
        return self.allow is None or _is_among(definition, self.allow)

    def warn_of_names(self, server: str, names: Collection[str]) -> None:
        """Warn of names and patterns in `allow` and `deny` that fit no tool of the server."""
        for option in ("allow", "deny"):
            choice = getattr(self, option)
            if choice is None or callable(choice):
                continue
            for pattern in _patterns(choice):
                if any(fnmatchcase(name, pattern) for name in names):
                    continue
                similar = nearest(pattern, names)
                hint = f"it lists {', '.join(f'`{name}`' for name in sorted(names)[:20]) or 'none'}"
                if similar is not None:
                    hint = f"did you mean `{similar}`?"
                warnings.warn(
                    f"`{option}` of the MCP server `{server}` has {pattern!r}, which fits none of "
                    f"its tools: {hint}",
                    UserWarning,
                    stacklevel=2,
                )

    def saved(self) -> dict[str, Any]:
        """The options that are plain data and differ from the defaults."""
        return {
            **_saved(self, ServerOptions(), _SAVED),
            **_saved(self.rules, ConversionRules(), _SAVED_RULES),
            **_saved(self.rules.show, ShowRules(), _SAVED_SHOW_RULES),
        }


def _is_among(definition: Any, choice: Any) -> bool:
    if callable(choice):
        return bool(refuse_awaitable(choice(definition), "`allow` or `deny` of an MCP server"))
    return any(fnmatchcase(definition.name, pattern) for pattern in _patterns(choice))


def _patterns(choice: str | Iterable[str]) -> Iterable[str]:
    if isinstance(choice, str):
        return (choice,)
    return sorted(choice)


def _saved(values: Struct, defaults: Struct, names: tuple[str, ...]) -> dict[str, Any]:
    saved: dict[str, Any] = {}
    for name in names:
        value = getattr(values, name)
        if value != getattr(defaults, name) and _is_plain(value):
            saved[name] = jsonable(value)
    return saved


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(part) for part in cast("Mapping[str, Any]", value).values())
    return not callable(value)


# -- checking


def options_from(values: Mapping[str, Any], arguments: Iterable[str] = ()) -> ServerOptions:
    """Options by name. `arguments` are the other keywords that the caller has.

    Raises `ConfigurationError` for an unknown name and for a value of the wrong kind.
    """
    # `rules` and `show` hold the structs inside; a user passes their fields instead.
    server_names = set(ServerOptions.__struct_fields__) - {"rules"}
    rule_names = {*ConversionRules.__struct_fields__, *ShowRules.__struct_fields__} - {"show"}
    # `timeout_s` is a field of both structs. The server's is the one that a user sets.
    rule_names -= server_names
    known = sorted({*server_names, *rule_names, *arguments})
    refuse_unknown("MCPServer", values, known, where="docs/reference/settings.md")
    for name, value in values.items():
        if name in _CHECKS:
            check_option(name, value)
    options = {name: value for name, value in values.items() if name in server_names}
    rules = rules_from({name: value for name, value in values.items() if name in rule_names})
    return ServerOptions(rules=rules, **options)


def check_option(name: str, value: Any) -> None:
    """Check one option of `_CHECKS`; raises `ConfigurationError` for a value of the wrong kind."""
    check = _CHECKS[name]
    if value is None and check.may_be_none:
        return
    if not check.fits(value):
        if check.may_be_none:
            wanted = f"{check.wanted} or None"
        else:
            wanted = check.wanted
        raise ConfigurationError(
            f"`{name}` of an MCP server must be {wanted}, found {shown(value)}."
        )


class _Check(Struct, frozen=True):
    """What a value of an option must be."""

    fits: Callable[[Any], bool]
    wanted: str
    """The values that fit, in words: "must be a path"."""
    may_be_none: bool = False


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is_finite_seconds(value: Any) -> bool:
    """For seconds that are stored with a run: JSON has no infinity."""
    return _is_seconds(value) and value < math.inf


def _are_seconds_by_tool(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    pairs = cast("Mapping[Any, Any]", value)
    return all(isinstance(name, str) and _is_seconds(seconds) for name, seconds in pairs.items())


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0  # `True` is not a count


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_prefix(value: Any) -> bool:
    return isinstance(value, bool) or value == "auto"


def _is_path(value: Any) -> bool:
    return isinstance(value, str | PathLike)


def _is_opener(value: Any) -> bool:
    return value is False or callable(value)


def _are_names(value: Any) -> bool:
    # A filter runs in sync code too, and the coroutine of an async one would always count as true.
    what = "`allow` or `deny` of an MCP server"
    refuse_async(value, what)
    if callable(value):
        refuse_other_arguments(value, what, "the definition of a tool")
    if isinstance(value, list | tuple | set | frozenset):
        return all(isinstance(name, str) for name in cast("Iterable[Any]", value))
    return isinstance(value, str) or callable(value)


def _are_inheritable(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return all(_is_inheritable(name) for name in cast("list[Any]", value))


def _is_inheritable(name: Any) -> bool:
    if not isinstance(name, str):
        return False
    # Names of variables have capitals. A word in lower case is meant as a group: refuse it if there
    # is no such group, because it is probably misspelt.
    return name in GROUPS or (name.isidentifier() and name != name.lower())


def _one_of(*choices: str) -> _Check:
    def fits(value: Any) -> bool:
        return isinstance(value, str) and value in choices

    return _Check(fits, f"one of {', '.join(choices)}")


_SECONDS = _Check(_is_seconds, "a number of seconds greater than zero")
_SECONDS_OR_NONE = _Check(_is_seconds, "a number of seconds greater than zero", may_be_none=True)
_NAMES = _Check(_are_names, "names with `*`, a function of a definition", may_be_none=True)
_PATH = _Check(_is_path, "a path", may_be_none=True)
_FUNCTION = _Check(callable, "a function", may_be_none=True)
_BOOL = _Check(_is_bool, "True or False")
_CHECKS = {
    "timeout_s": _SECONDS,
    "connect_timeout_s": _SECONDS,
    "login_timeout_s": _SECONDS,
    "total_timeout_s": _SECONDS_OR_NONE,
    "poll_s": _SECONDS_OR_NONE,
    "input_expires_s": _Check(
        _is_finite_seconds, "a number of seconds greater than zero", may_be_none=True
    ),
    "tool_timeouts_s": _Check(
        _are_seconds_by_tool, "a mapping of names to seconds greater than zero"
    ),
    "prefix": _Check(_is_prefix, "'auto', True or False"),
    "allow": _NAMES,
    "deny": _NAMES,
    "max_concurrency": _Check(_is_count, "a whole number greater than zero", may_be_none=True),
    "inherit": _Check(_are_inheritable, f"a list of {', '.join(GROUPS)} and names of variables"),
    "open_browser": _Check(_is_opener, "a function or False", may_be_none=True),
    "on_error": _one_of("raise", "skip"),
    "mode": _one_of(*PROTOCOL_MODES),
    "pins": _one_of("warn", "confirm", "block"),
    "lock": _PATH,
    "record": _PATH,
    "elicit": _FUNCTION,
    "sample": _FUNCTION,
    "roots": _FUNCTION,
    "on_progress": _FUNCTION,
    "on_log": _FUNCTION,
    "on_input": _FUNCTION,
    "enter_code": _FUNCTION,
    "allow_http": _BOOL,
    "ask_in_runs": _BOOL,
    "trust": _BOOL,
    "untrusted": _BOOL,
    "lenient": _BOOL,
    "concurrent": _BOOL,
    "user_blocks": _BOOL,
    "fence": _BOOL,
    "strict_output": _BOOL,
}
