"""Convert an MCP server's tool to a `Tool`.

`mcp_tool_options` turns an entry of `tools/list`, and a `Caller` that can call it, into the
arguments of `Tool(...)`. `tool.mcp` is the server's whole definition. The SDK is not imported.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from ferrule.approval.policy import Rule
from ferrule.errors import MCPConnectionError, MCPError, MCPToolError, ToolDefinitionError, shown
from ferrule.record import Record, field, replace
from ferrule.settings import setting
from ferrule.tools.definition.export import LONGEST, wire_name
from ferrule.tools.definition.mcp import MCPDefinition, as_plain, read_definition
from ferrule.tools.mcp.result import MCPResult, asks_for_input, read_result
from ferrule.tools.mcp.safety import fence_untrusted, scrub
from ferrule.tools.mcp.showing import RESULT_MODES, ShowRules
from ferrule.values.content.parts import Text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from ferrule.values.calls.call import ToolResult
    from ferrule.values.content.parts import Content

_Choice = bool | Literal["unhinted"] | Callable[..., Any] | None
Confirm = _Choice | Callable[[MCPDefinition], _Choice] | Mapping[str, _Choice]
"""Whether a person must confirm calls: one choice for all tools, a function of the definition, or choices by globs of names, of which the
first match applies. A function of the arguments may replace a bool. "unhinted": unless a hint says
that the tool only reads or destroys
nothing. None: only if a hint says that it destroys something."""
OnInput = Callable[["RemoteCall", dict[str, Any], Mapping[str, Any]], "Awaitable[Any]"]
"""Maps `(call, arguments, raw result)` to the result of the continued call. It may raise, so that a run waits for a person."""
_DIGEST = 8
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
_NO_TASKS = "It can only be called as a task, which sessions of the SDK cannot do."


class Caller(Protocol):
    """Calls the tools of one server: an SDK `ClientSession` of 1.x or 2.x, or an `MCPServer`.

    Optional attributes: `name` (of the server) and `read_resource(uri)`. If it has both `call` and
    `acall`, `call_tool` may be awaited on any event loop, and so be called from sync code.
    """

    def call_tool(self, name: str, arguments: dict[str, Any] | None = None, /) -> Awaitable[Any]:
        """Call a tool. Returns its result, as the SDK's object or as plain data. Raises an `MCPError` if there was no answer."""
        ...


class ConversionRules(Record, kw_only=True):
    """How to convert the tools of a server."""

    trust: bool = False
    """Whether the server's hints decide the effect: a tool that only reads, or whose calls may be repeated, runs again after a crash."""
    confirm: Confirm = None
    lenient: bool = True
    """Whether to repair arguments that nearly fit ("3" for 3). The call's `repairs` lists the repairs."""
    timeout_s: float | None = None
    concurrent: bool = True
    most_description: int | None = None
    """The longest description shown to a model, in characters; None for no limit. `tool.mcp.description` is never cut."""
    on_input: OnInput | None = None
    """Answers a server that needs input to continue (`resultType: input_required`) if no hook did. Without it, the call fails."""
    show: ShowRules = field(default_factory=ShowRules)


class RemoteCall(Record):
    """The function of a server's tool. Takes checked arguments, and returns a `ToolResult` with the whole result."""

    caller: Any
    definition: MCPDefinition
    name: str
    server: str | None = None
    lenient: bool = True
    asks_directly: bool = False
    """Whether direct calls from code need confirmation too. Hints alone do not require it: the author of the call has decided."""
    show: ShowRules = field(default_factory=ShowRules)
    on_input: OnInput | None = None
    note: str = ""
    """Text at the start of a confirmation question."""
    home: Any = field(default=None, compare=False, repr=False)
    """The event loop to which a bare SDK session is bound."""

    @property
    def runs_anywhere(self) -> bool:
        """Whether sync code may call the tool: the caller has both `call` and `acall`, as an `MCPServer` has."""
        return all(callable(getattr(self.caller, each, None)) for each in ("call", "acall"))

    @property
    def lacks_tasks(self) -> bool:
        """Whether the tool must be called as a task, which the caller, a session of the SDK, does not support."""
        return self.definition.needs_task and not self.runs_anywhere

    async def __call__(self, /, **arguments: Any) -> ToolResult:
        """Call the tool. Raises an `MCPError` if there is no result."""
        try:
            return await self._call(arguments)
        except MCPError as error:
            if self.show.fence:  # the error contains the server's text, and a model reads it
                error.args = (fence_untrusted(str(error), self.server or self.definition.name),)
            raise

    async def _call(self, arguments: dict[str, Any]) -> ToolResult:
        own = self.definition.name
        if self.lacks_tasks:
            raise MCPToolError(
                f"`{own}` was not called. {_NO_TASKS}",
                server=self.server,
                tool=own,
                phase="call",
                may_have_run=False,
            )
        if self.home is not None:
            self._refuse_other_loops()
        raw = await self.caller.call_tool(own, arguments)
        if asks_for_input(raw):
            if self.on_input is None:
                said = "the server asked for input that cannot be given here, and the call was not finished"
                raise MCPToolError(
                    f"`{own}`: {said}.",
                    server=self.server,
                    tool=own,
                    phase="input",
                    data=raw,
                )
            raw = await self.on_input(self, arguments, as_plain(raw))
        found = read_result(
            raw,
            output_schema=self.definition.output_schema,
            rules=self.show,
            reader=getattr(self.caller, "read_resource", None),
            server=self.server,
            tool=own,
        )
        content = _fence(found.content, self.server or own) if self.show.fence else found.content
        return found.as_tool_result(self.name, content, server=self.server, tool=own)

    def _refuse_other_loops(self) -> None:
        import asyncio

        if asyncio.get_running_loop() is not self.home:
            raise MCPConnectionError(
                f"`{self.name}` belongs to a session of the MCP SDK, which only works on the event loop that opened it: "
                "await it there, with `acall`, or connect with `ferrule.mcp(...)`, whose tools work everywhere.",
                server=self.server, tool=self.definition.name, phase="call", may_have_run=False,
            )  # fmt: skip

    def __getstate__(self) -> list[Any]:
        return [
            None if name == "home" else getattr(self, name) for name in type(self).__record_fields__
        ]


def _fence(content: Content, source: str) -> Content:
    if isinstance(content, str):
        return fence_untrusted(content, source)
    return tuple(
        [
            Text(text=fence_untrusted(each.text, source)) if isinstance(each, Text) else each
            for each in content
        ],
    )


def mcp_tool_options(
    entry: Any,
    *,
    caller: Caller | None = None,
    server: str | None = None,
    name: str | None = None,
    rules: ConversionRules | None = None,
) -> dict[str, Any]:
    """The arguments of `Tool(...)`. Without a `caller`, the tool has no function until `connect_mcp_tools` gives it one.

    Raises `ToolDefinitionError` for an entry that cannot be called.
    """
    rules = rules if rules is not None else ConversionRules()
    definition = read_definition(entry)
    own = (
        name if name is not None else _usable(definition.name, server or "server", definition.name)
    )
    asks, by_hand = confirmation_of(definition, rules)
    known = getattr(caller, "name", None) if server is None else server
    known = known if isinstance(known, str) else None
    function = None
    if caller is not None:
        function = RemoteCall(
            caller,
            definition,
            own,
            known,
            rules.lenient,
            by_hand,
            rules.show,
            rules.on_input,
            home=_loop_of(caller),
        )
    described = scrub(definition.description)
    most = rules.most_description
    if most is not None and len(described) > most:
        described = f"{described[:most].rstrip()}…"
    return {
        "func": function,
        "name": own,
        "description": f"({_NO_TASKS}) {described}".rstrip()
        if function is not None and function.lacks_tasks
        else described,
        "mcp_server": known,
        "require_confirmation": asks,
        "effect": effect_of(definition, trust=rules.trust),
        "timeout_s": rules.timeout_s,
        "concurrent": rules.concurrent,
        "mcp": definition,
    }


def read_mcp_tool_options(which: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `Tool(...)` from `(session, tool)` or from `(mcp_tool, server_id)`."""
    options = dict(options)
    given = [
        *which,
        *(
            options.pop(each)
            for each in ("session", "tool", "mcp_tool", "server_id")
            if each in options
        ),
    ]
    name, rules = options.pop("name", None), rules_from(options)
    match given:
        case [entry, str(server)]:
            return mcp_tool_options(entry, server=server, name=name, rules=rules)
        case [session, entry] if callable(getattr(session, "call_tool", None)):
            return mcp_tool_options(entry, caller=session, name=name, rules=rules)
        case _:
            found = ", ".join(shown(each, 80) for each in given)
            msg = f"`Tool.from_mcp_tool` takes a session and a tool, or a tool and the name of its server; found {found or 'nothing'}."
            raise ToolDefinitionError(msg)


def rules_from(options: dict[str, Any]) -> ConversionRules:
    """Make rules from the keywords of `ConversionRules` and `ShowRules`."""
    ours = {
        key: value for key, value in options.items() if key in ConversionRules.__record_fields__
    }
    shows = {key: value for key, value in options.items() if key in ShowRules.__record_fields__}
    unknown = sorted(options.keys() - ours.keys() - shows.keys())
    if unknown:
        raise ToolDefinitionError(
            f"Tools of an MCP server take no option {', '.join(f'`{each}`' for each in unknown)}.",
        )
    if shows.get("result_mode", "auto") not in RESULT_MODES:
        wanted = ", ".join(map(repr, RESULT_MODES))
        raise ToolDefinitionError(
            f"`result_mode` is one of {wanted}; found {shown(shows['result_mode'])}.",
        )
    made = ConversionRules(**ours)
    return replace(made, show=replace(made.show, **shows)) if shows else made


# -- hints
# ----------------------------------------------------------------------------------------------------------


def confirmation_of(definition: MCPDefinition, rules: ConversionRules) -> tuple[Any, bool]:
    """The value of `require_confirmation`, and whether the user chose it rather than the hints. The default choice is the setting's."""
    said: Any = rules.confirm
    if isinstance(said, Mapping):
        by_name = cast("Mapping[str, Any]", said)
        said = next((by_name[glob] for glob in by_name if fnmatchcase(definition.name, glob)), None)
    elif callable(said) and not isinstance(said, Rule):  # a rule is about the arguments
        said = said(definition)
    said = setting("mcp_confirm") if said is None else said
    is_destructive = definition.hint("destructiveHint")
    match said:
        case None:
            return is_destructive is True, False
        case "unhinted":
            return is_destructive is True or not (
                definition.hint("readOnlyHint") is True or is_destructive is False
            ), False
        case str() if said != "destructive":
            raise ToolDefinitionError(
                f"`confirm` is True, False, 'unhinted', a dict of globs or a function; found {shown(said)}.",
            )
        case _:
            return said, bool(said)


def effect_of(definition: MCPDefinition, *, trust: bool) -> str:
    """The effect of a call, by the hints of a trusted server; otherwise `once`."""
    if trust and definition.hint("readOnlyHint") is True:
        return "read"
    return "idempotent" if trust and definition.hint("idempotentHint") is True else "once"


def _loop_of(caller: Any) -> Any:
    """The running loop if the caller is a session of the SDK, which hangs on any other loop; otherwise None."""
    if not type(caller).__module__.startswith("mcp."):
        return None
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def plain_value(result: ToolResult) -> Any:
    """The return value of a direct call. Raises `MCPToolError`, a `RuntimeError`, if the tool reported an error."""
    if result.error is not None:
        raise result.error
    return result.value.value if isinstance(result.value, MCPResult) else result.value


# -- names
# ----------------------------------------------------------------------------------------------------------


def unique_names(
    tools: Iterable[tuple[str, str]],
    *,
    prefix: bool,
    taken: Iterable[str] = (),
) -> dict[tuple[str, str], str]:
    """For each tool, given as (server, name there), a name that every provider accepts. Calls still use the name on the server.

    `prefix` puts `server__` before every name. A name that is too long for providers, not unique,
    or in `taken` (the names of local tools, which do not change) is cut, and ends in a digest of
    server and name. The order of the tools does not matter.
    """
    wanted = {
        (server, name): f"{safe_server(server)}__{name}" if prefix else name
        for server, name in tools
    }
    given = {key: _usable(name, *key) for key, name in wanted.items()}
    counted = Counter(map(_wire, given.values()))
    counted.update({_wire(each) for each in taken})
    return {
        key: name if counted[_wire(name)] == 1 else _with_digest(name, *key)
        for key, name in given.items()
    }


def _usable(wanted: str, server: str, name: str) -> str:
    """The name itself if providers accept it or its escaped form; otherwise a safe name."""
    try:
        wire_name(wanted)
    except ToolDefinitionError:
        return _with_digest(wanted, server, name)
    return wanted


def _wire(name: str) -> str:
    try:
        return wire_name(name)
    except ToolDefinitionError:
        return name


def _with_digest(wanted: str, server: str, name: str) -> str:
    digest = hashlib.sha256(f"{server}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[
        :_DIGEST
    ]
    plain = _OTHER.sub("_", wanted)[: LONGEST - _DIGEST - 1].strip("_")
    # A remaining `_x2f_` would be read as an escape, escaped again, and grow.
    return f"{plain.replace('_x', '-x').replace('_dot_', '-dot-') or 'tool'}-{digest}"


def safe_server(server: str) -> str:
    """A server's name as the prefix of a tool's name."""
    return _OTHER.sub("_", server).strip("_") or "server"
