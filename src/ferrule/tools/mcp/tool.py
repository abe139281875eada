"""A tool of an MCP server as what a `Tool` is made of.

In: an entry of `tools/list`, and whoever can call it: a `Caller`. Out: the arguments for `Tool(...)`. What the server says is kept whole on
`tool.mcp`; what is made of its hints, and how results are shown, is settled here. Nothing of the SDK is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol, cast

from ferrule.errors import MCPConnectionError, MCPToolError, ToolDefinitionError, shown
from ferrule.tools.definition.mcp import MCPDefinition, as_plain, read_definition
from ferrule.tools.mcp.names import own_names
from ferrule.tools.mcp.result import MCPResult, ShowRules, asks_for_input, result_of
from ferrule.tools.mcp.safety import fence_untrusted, scrubbed
from ferrule.values.content.parts import Text
from ferrule.values.record import Record, field, replace

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ferrule.values.calls.call import ToolResult
    from ferrule.values.content.parts import Content

Confirm = bool | Callable[[MCPDefinition], bool | Callable[..., Any]] | Mapping[str, bool | Callable[..., Any]] | None
"""Whether a person is asked first, whatever the hints say: for all tools; by the definition; or by globs of names, the first that fits.
A function of the arguments may stand where a bool does."""
OnInput = Callable[["RemoteCall", dict[str, Any], Mapping[str, Any]], "Awaitable[Any]"]
"""`(call, arguments, raw result)` to the result of the call gone on with. It may raise instead, so that a run waits for a person."""
_NO_TASKS = "It can only be called as a task, which MCP clients on this SDK cannot do."


class Caller(Protocol):
    """Who can call a tool of one server: an SDK `ClientSession` of 1.x or 2.x is one, as is an `MCPServer`.

    Optional attributes: `name` (of the server), `read_resource(uri)`, and `call` with `acall`, which tell that `call_tool` may be awaited
    on any event loop, so that sync code may call too.
    """

    def call_tool(self, name: str, arguments: dict[str, Any] | None = None, /) -> Awaitable[Any]:
        """What the tool of that name returned: the SDK's object, or plain data. Raises an `MCPError` where there was no answer."""
        ...


class ConversionRules(Record, kw_only=True):
    """How tools of a server are taken."""

    trust: bool = False
    """Whether its hints count. Without it, every call by a model asks."""
    confirm: Confirm = None
    lenient: bool = True
    """Whether arguments that nearly fit are mended ("3" for 3); what was mended is on the call's `repairs`."""
    timeout_s: float | None = None
    concurrent: bool = True
    most_description: int | None = None
    """Characters of a description that the model is shown; None for all of them. `tool.mcp.description` is whole."""
    on_input: OnInput | None = None
    """Asked where a server wants input before it goes on, and nobody gave it (`resultType: input_required`). Without it the call failed."""
    show: ShowRules = field(default_factory=ShowRules)


class RemoteCall(Record):
    """The function of a tool that lives on a server: called with checked arguments, it returns a `ToolResult` with the whole result."""

    caller: Any
    definition: MCPDefinition
    name: str
    server: str | None = None
    lenient: bool = True
    asks_directly: bool = False
    """Whether code that calls the tool by hand is asked too. Not for a hint's sake: who writes the call has decided."""
    show: ShowRules = field(default_factory=ShowRules)
    on_input: OnInput | None = None
    note: str = ""
    """What a person is shown first who is asked about a call."""
    home: Any = field(default=None, compare=False, repr=False)
    """The loop that a bare SDK session lives on."""

    @property
    def runs_anywhere(self) -> bool:
        """Whether sync code may call: an `MCPServer` says so by having both `call` and `acall`."""
        return all(callable(getattr(self.caller, each, None)) for each in ("call", "acall"))

    async def __call__(self, /, **arguments: Any) -> ToolResult:
        """Call, and read what comes back. Raises an `MCPError` where there is no result."""
        own = self.definition.name
        if self.definition.needs_task:
            raise MCPToolError(f"`{own}` was not called. {_NO_TASKS}", server=self.server, tool=own, phase="call", may_have_run=False)
        if self.home is not None:
            self._refuse_other_loops()
        raw = await self.caller.call_tool(own, arguments)
        if asks_for_input(raw):
            if self.on_input is None:
                said = "the server asked for input that nobody here can give, and the call was not finished"
                raise MCPToolError(f"`{own}`: {said}.", server=self.server, tool=own, phase="input", data=raw)
            raw = await self.on_input(self, arguments, as_plain(raw))
        found = result_of(
            raw,
            output_schema=self.definition.output_schema,
            rules=self.show,
            reader=getattr(self.caller, "read_resource", None),
            server=self.server,
            tool=own,
        )
        result = found.as_tool_result(self.name, server=self.server, tool=own)
        return replace(result, content=_fenced(result.content, self.server or own)) if self.show.fence else result

    def _refuse_other_loops(self) -> None:
        import asyncio

        if asyncio.get_running_loop() is not self.home:
            raise MCPConnectionError(
                f"`{self.name}` belongs to a session of the MCP SDK, which only works on the event loop that opened it: "
                "await it there, with `acall`, or connect with `ferrule.mcp(...)`, whose tools work everywhere.",
                server=self.server, tool=self.definition.name, phase="call", may_have_run=False,
            )  # fmt: skip

    def __getstate__(self) -> list[Any]:
        return [None if name == "home" else getattr(self, name) for name in type(self).__record_fields__]


def _fenced(content: Content, source: str) -> Content:
    if isinstance(content, str):
        return fence_untrusted(content, source)
    return tuple([Text(text=fence_untrusted(each.text, source)) if isinstance(each, Text) else each for each in content])


def mcp_parts(
    entry: Any,
    *,
    caller: Caller | None = None,
    server: str | None = None,
    name: str | None = None,
    rules: ConversionRules | None = None,
) -> dict[str, Any]:
    """The arguments for `Tool(...)`. Without a `caller` the tool has no function: `connect_mcp_tools` gives it one.

    Raises `ToolDefinitionError` for an entry that could not be called.
    """
    rules = rules if rules is not None else ConversionRules()
    definition = read_definition(entry)
    own = name if name is not None else own_names({server or "server": [definition.name]}, prefix=False)[server or "server"][0]
    asks, by_hand = confirmation_of(definition, rules)
    known = getattr(caller, "name", None) if server is None else server
    known = known if isinstance(known, str) else None
    function = None
    if caller is not None:
        function = RemoteCall(caller, definition, own, known, rules.lenient, by_hand, rules.show, rules.on_input, home=_home(caller))
    described = scrubbed(definition.description)
    most = rules.most_description
    if most is not None and len(described) > most:
        described = f"{described[:most].rstrip()}…"
    return {
        "func": function,
        "name": own,
        "description": f"({_NO_TASKS}) {described}".rstrip() if definition.needs_task else described,
        "mcp_server": known,
        "require_confirmation": asks,
        "effect": effect_of(definition, trust=rules.trust),
        "timeout_s": rules.timeout_s,
        "concurrent": rules.concurrent,
        "mcp": definition,
    }


def parts_of(which: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """The arguments for `Tool(...)` of `(session, tool)`, the seed 000 form, or of `(mcp_tool, server_id)`, that of seed 004."""
    options = dict(options)
    given = [*which, *(options.pop(each) for each in ("session", "tool", "mcp_tool", "server_id") if each in options)]
    name, rules = options.pop("name", None), rules_from(options)
    match given:
        case [entry, str(server)]:
            return mcp_parts(entry, server=server, name=name, rules=rules)
        case [session, entry] if callable(getattr(session, "call_tool", None)):
            return mcp_parts(entry, caller=session, name=name, rules=rules)
        case _:
            found = ", ".join(shown(each, 80) for each in given)
            msg = f"`Tool.from_mcp_tool` takes a session and a tool, or a tool and the name of its server; found {found or 'nothing'}."
            raise ToolDefinitionError(msg)


def rules_from(options: dict[str, Any]) -> ConversionRules:
    """Rules out of keywords: those of `ConversionRules` and of `ShowRules`."""
    ours = {key: value for key, value in options.items() if key in ConversionRules.__record_fields__}
    shows = {key: value for key, value in options.items() if key in ShowRules.__record_fields__}
    unknown = sorted(options.keys() - ours.keys() - shows.keys())
    if unknown:
        msg = f"Tools of an MCP server take no option {', '.join(f'`{each}`' for each in unknown)}."
        raise ToolDefinitionError(msg)
    made = ConversionRules(**ours)
    return replace(made, show=replace(made.show, **shows)) if shows else made


# -- what hints are worth -------------------------------------------------------------------------------------------


def confirmation_of(definition: MCPDefinition, rules: ConversionRules) -> tuple[Any, bool]:
    """Whether a person is asked first, as `require_confirmation` has it; and whether somebody said so, beyond the hints.

    By the hints of a trusted server: not for what only reads, nor for what says that it destroys nothing; all else asks.
    """
    said: Any = rules.confirm
    if isinstance(said, Mapping):
        by_name = cast("Mapping[str, Any]", said)
        said = next((by_name[glob] for glob in by_name if fnmatchcase(definition.name, glob)), None)
    elif callable(said):
        said = said(definition)
    if said is not None:
        return said, bool(said)
    if not rules.trust:
        return True, False
    return not (definition.hint("readOnlyHint") is True or definition.hint("destructiveHint") is False), False


def effect_of(definition: MCPDefinition, *, trust: bool) -> str:
    """What a call does to the world, so far as the hints of a trusted server tell; `once` where they do not count."""
    if trust and definition.hint("readOnlyHint") is True:
        return "read"
    return "idempotent" if trust and definition.hint("idempotentHint") is True else "once"


def _home(caller: Any) -> Any:
    """The running loop, where the caller is a session of the SDK: it hangs on any other."""
    if not type(caller).__module__.startswith("mcp."):
        return None
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def plain_value(result: ToolResult) -> Any:
    """What a direct call returns; raises `MCPToolError`, a `RuntimeError`, where the tool said that it failed."""
    if result.error is not None:
        raise result.error
    return result.value.value if isinstance(result.value, MCPResult) else result.value
