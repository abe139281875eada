"""Convert an MCP server's tool to a `Tool`.

`mcp_tool_options` turns an entry of `tools/list`, and a `Caller` that can call it, into the
arguments of `Tool(...)`. `tool.mcp` is the server's whole definition. The SDK is not imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from fnmatch import fnmatchcase
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, cast

from msgspec import Struct, field
from msgspec.structs import astuple, replace

from ferrule.approval.policy import Rule
from ferrule.concurrency.cancellation import is_task_cancelled
from ferrule.errors import MCPConnectionError, MCPError, MCPToolError, ToolDefinitionError, shown
from ferrule.record import PartlyCompared
from ferrule.settings import scope, setting
from ferrule.tools.mcp.names import usable_name
from ferrule.tools.mcp.result import MCPResult, asks_for_input, read_result
from ferrule.tools.mcp.safety import fence_untrusted, scrub
from ferrule.tools.mcp.showing import RESULT_MODES, ShowRules
from ferrule.tools.mcp_definition import MCPDefinition, as_plain, read_definition
from ferrule.values.content.parts import Text

if TYPE_CHECKING:
    from ferrule.values.calls.call import ToolResult
    from ferrule.values.content.parts import Content, Part

_Choice = bool | Literal["unhinted"] | Callable[..., Any] | None
Confirm = _Choice | Callable[[MCPDefinition], _Choice] | Mapping[str, _Choice]
"""Whether a person must confirm calls.

It is one choice for all tools, a function of the definition, or choices by globs of names, of which
the first match applies. A choice is:

- True or False, or a function of the arguments in their place.
- "unhinted": unless a hint says that the tool only reads or destroys nothing.
- None: only if a hint says that it destroys something.
"""
OnInput = Callable[["RemoteCall", dict[str, Any], Mapping[str, Any]], Awaitable[Any]]
"""Maps `(call, arguments, raw result)` to the result of the continued call.

It may raise, so that a run waits for a person.
"""
_REACTS_WITHIN_S = 2.0
"""The event loop of a session counts as blocked if it does not react for this long."""
_NO_TASKS = "It can only be called as a task, which sessions of the SDK cannot do."


class Caller(Protocol):
    """Calls the tools of one server: an SDK `ClientSession` of 1.x or 2.x, or an `MCPServer`.

    Optional attributes: `name` (of the server) and `read_resource(uri)`. If it has both `call` and
    `acall`, `call_tool` may be awaited on any event loop, and so be called from sync code.
    """

    def call_tool(self, name: str, arguments: dict[str, Any] | None = None, /) -> Awaitable[Any]:
        """Call a tool. Returns its result, as the SDK's object or as plain data.

        Raises an `MCPError` if there was no answer.
        """
        ...


class ConversionRules(Struct, frozen=True, kw_only=True):
    """How to convert the tools of a server."""

    trust: bool = False
    """Whether the server's hints decide the effect.

    A tool that only reads, or whose calls may be repeated, then runs again after a crash."""
    untrusted: bool = True
    """Whether others than the user may have written what its tools return."""
    confirm: Confirm = None
    lenient: bool = True
    """Whether to repair arguments that nearly fit ("3" for 3). The call's `repairs` lists them."""
    timeout_s: float | None = None
    concurrent: bool = True
    most_description: int | None = None
    """The longest description shown to a model, in characters; None for no limit.

    `tool.mcp.description` is never cut."""
    on_input: OnInput | None = None
    """Answers a server that needs input to continue (`resultType: input_required`), if no hook did.

    Without it, the call fails."""
    show: ShowRules = field(default_factory=ShowRules)


class RemoteCall(PartlyCompared, Struct, frozen=True):
    """The function of a server's tool.

    It takes checked arguments, and returns a `ToolResult` with the whole result.
    """

    _not_compared = _not_shown = frozenset({"home"})
    # All have one signature. Python would make it again for each tool of a server.
    __signature__: ClassVar = Signature([Parameter("arguments", Parameter.VAR_KEYWORD)])

    caller: Any
    definition: MCPDefinition
    name: str
    server: str | None = None
    lenient: bool = True
    asks_directly: bool = False
    """Whether direct calls from code need confirmation too.

    Hints alone do not require it: the author of the call has decided."""
    show: ShowRules = field(default_factory=ShowRules)
    on_input: OnInput | None = None
    note: str = ""
    """Text at the start of a confirmation question."""
    home: Any = None
    """The event loop on which a bare SDK session works. Other loops have their calls run there."""

    @property
    def runs_anywhere(self) -> bool:
        """Whether sync code may call the tool.

        The caller then has both `call` and `acall`, as an `MCPServer` has.
        """
        return all(callable(getattr(self.caller, name, None)) for name in ("call", "acall"))

    @property
    def lacks_tasks(self) -> bool:
        """Whether the tool must be called as a task, which a session of the SDK cannot do."""
        return not self.runs_anywhere and self.definition.needs_task

    async def __call__(self, /, **arguments: Any) -> ToolResult:
        """Call the tool. Raises an `MCPError` if there is no result."""
        try:
            return await self._call(arguments)
        except MCPError as error:
            if self.show.fence:  # the error contains the server's text, and a model reads it
                error.args = (fence_untrusted(str(error), self.server or self.definition.name),)
            raise

    async def _call(self, arguments: dict[str, Any]) -> ToolResult:
        tool = self.definition.name
        if self.lacks_tasks:
            raise MCPToolError(
                f"`{tool}` was not called. {_NO_TASKS}",
                server=self.server,
                tool=tool,
                phase="call",
                may_have_run=False,
            )
        if self.home is not None and asyncio.get_running_loop() is not self.home:
            return await self._call_at_home(arguments)
        raw = await self.caller.call_tool(tool, arguments)
        if asks_for_input(raw):
            if self.on_input is None:
                raise MCPToolError(
                    f"`{tool}`: the server asked for input that cannot be given here, "
                    "and the call was not finished.",
                    server=self.server,
                    tool=tool,
                    phase="input",
                    data=raw,
                )
            raw = await self.on_input(self, arguments, as_plain(raw))
        result = read_result(
            raw,
            output_schema=self.definition.output_schema,
            rules=_rules_here(self.show),
            reader=getattr(self.caller, "read_resource", None),
            server=self.server,
            tool=tool,
        )
        content = result.content
        if self.show.fence:
            content = _fence(content, self.server or tool)
        return result.as_tool_result(self.name, content, server=self.server, tool=tool)

    async def _call_at_home(self, arguments: dict[str, Any]) -> ToolResult:
        """Call the tool on the loop that opened the session: on any other, the session hangs.

        Raises `MCPConnectionError` if that loop does not react. Often it waits for this very call,
        because sync code runs in its thread: such a call would never end.
        """
        reaction: Future[None] = Future()

        def react() -> None:
            if reaction.set_running_or_notify_cancel():
                reaction.set_result(None)

        try:
            self.home.call_soon_threadsafe(react)
            await asyncio.wait_for(asyncio.wrap_future(reaction), _REACTS_WITHIN_S)
        except (RuntimeError, TimeoutError) as error:
            raise self._is_away(may_have_run=False) from error
        call = self._call(arguments)
        try:
            sent = asyncio.run_coroutine_threadsafe(call, self.home)
        except RuntimeError as error:  # the loop has just ended
            call.close()
            raise self._is_away(may_have_run=False) from error
        try:
            return await asyncio.wrap_future(sent)
        except asyncio.CancelledError as error:
            if is_task_cancelled():
                raise
            raise self._is_away(may_have_run=True) from error

    def _is_away(self, *, may_have_run: bool) -> MCPConnectionError:
        return MCPConnectionError(
            f"`{self.name}` belongs to a session of the MCP SDK, and the event loop that opened it "
            "has ended, or is blocked, as by a sync call in its own thread: await the tool there, "
            "with `acall`, or connect with `ferrule.mcp(...)`, whose tools work everywhere.",
            server=self.server,
            tool=self.definition.name,
            phase="call",
            may_have_run=may_have_run,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all fields but the event loop, which belongs to this process."""
        return type(self), astuple(replace(self, home=None))


def _rules_here(rules: ShowRules) -> ShowRules:
    """The rules for a call: in a run whose model can read long results, nothing is cut here.

    What it reads must be in the run; the program cuts what it shows.
    """
    call = scope().call
    if call is None or call.frame is None or call.checked is None:
        return rules
    if not getattr(call.checked.host, "keeps_whole", False):
        return rules
    return replace(rules, most_characters=None)


def _fence(content: Content, source: str) -> Content:
    if isinstance(content, str):
        return fence_untrusted(content, source)
    parts: list[Part] = []
    for part in content:
        if isinstance(part, Text):
            part = Text(text=fence_untrusted(part.text, source))  # noqa: PLW2901
        parts.append(part)
    return tuple(parts)


# -- conversion


def mcp_tool_options(
    entry: Any,
    *,
    caller: Caller | None = None,
    server: str | None = None,
    name: str | None = None,
    rules: ConversionRules | None = None,
) -> dict[str, Any]:
    """The options of `Tool(...)` for an entry of `tools/list`.

    Without a `caller`, the tool has no function until `connect_mcp_tools` gives it one. Raises
    `ToolDefinitionError` for an entry that cannot be called.
    """
    if rules is None:
        rules = ConversionRules()
    definition = read_definition(entry)
    if name is None:
        name = usable_name(definition.name, server or "server", definition.name)
    if server is None:
        server = _name_of(caller)
    requirement, is_chosen = confirmation_of(definition, rules)
    function = None
    if caller is not None:
        function = make_remote_call(
            definition, caller, name, server, rules, asks_directly=is_chosen
        )
    return {
        "func": function,
        "name": name,
        "description": _describe(definition, function, rules),
        "mcp_server": server,
        "require_confirmation": requirement,
        "effect": effect_of(definition, trust=rules.trust),
        "timeout_s": rules.timeout_s,
        "concurrent": rules.concurrent,
        "untrusted": rules.untrusted,
        "mcp": definition,
    }


def make_remote_call(
    definition: MCPDefinition,
    caller: Caller,
    name: str,
    server: str | None,
    rules: ConversionRules,
    *,
    asks_directly: bool,
) -> RemoteCall:
    """The function of a tool; `name` is the tool's own, and the server's is in `definition`."""
    if server is None:
        server = _name_of(caller)
    return RemoteCall(
        caller,
        definition,
        name,
        server,
        lenient=rules.lenient,
        asks_directly=asks_directly,
        show=rules.show,
        on_input=rules.on_input,
        home=_loop_of(caller),
    )


def _name_of(caller: Any) -> str | None:
    name = getattr(caller, "name", None)
    return name if isinstance(name, str) else None


def _loop_of(caller: Any) -> Any:
    """The running loop if the caller is a session of the SDK, which hangs on any other loop."""
    if not type(caller).__module__.startswith("mcp."):
        return None
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _describe(
    definition: MCPDefinition, function: RemoteCall | None, rules: ConversionRules
) -> str:
    """The description for a model: without hidden characters, and cut to the longest allowed."""
    description = scrub(definition.description)
    longest = rules.most_description
    if longest is not None and len(description) > longest:
        description = f"{description[:longest].rstrip()}…"
    if function is not None and function.lacks_tasks:
        description = f"({_NO_TASKS}) {description}".rstrip()
    return description


def read_mcp_tool_options(which: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """The options of `Tool(...)` from `(session, tool)` or from `(mcp_tool, server_id)`."""
    options = dict(options)
    arguments = list(which)
    for keyword in ("session", "tool", "mcp_tool", "server_id"):
        if keyword in options:
            arguments.append(options.pop(keyword))
    name = options.pop("name", None)
    rules = rules_from(options)
    match arguments:
        case [entry, str(server)]:
            return mcp_tool_options(entry, server=server, name=name, rules=rules)
        case [session, entry] if callable(getattr(session, "call_tool", None)):
            return mcp_tool_options(entry, caller=session, name=name, rules=rules)
        case _:
            described = ", ".join(shown(argument, 80) for argument in arguments)
            raise ToolDefinitionError(
                "`Tool.from_mcp_tool` takes a session and a tool, or a tool and the name of its "
                f"server; found {described or 'nothing'}."
            )


def rules_from(options: dict[str, Any]) -> ConversionRules:
    """Make rules from the keywords of `ConversionRules` and `ShowRules`."""
    of_conversion = ConversionRules.__struct_fields__
    of_showing = ShowRules.__struct_fields__
    unknown = [name for name in options if name not in of_conversion and name not in of_showing]
    if unknown:
        names = ", ".join(f"`{name}`" for name in sorted(unknown))
        raise ToolDefinitionError(f"Tools of an MCP server take no option {names}.")
    if options.get("result_mode", "auto") not in RESULT_MODES:
        modes = ", ".join(map(repr, RESULT_MODES))
        raise ToolDefinitionError(
            f"`result_mode` is one of {modes}; found {shown(options['result_mode'])}."
        )
    confirm = options.get("confirm")
    if isinstance(confirm, Mapping):
        for choice in cast("Mapping[str, Any]", confirm).values():
            _check_choice(choice)
    else:
        _check_choice(confirm)
    conversion = {name: value for name, value in options.items() if name in of_conversion}
    showing = {name: value for name, value in options.items() if name in of_showing}
    rules = ConversionRules(**conversion)
    if not showing:
        return rules
    return replace(rules, show=replace(rules.show, **showing))


# -- hints


def confirmation_of(definition: MCPDefinition, rules: ConversionRules) -> tuple[Any, bool]:
    """The value of `require_confirmation`, and whether the user chose it rather than the hints.

    The default choice is the setting's.
    """
    choice: Any = rules.confirm
    if isinstance(choice, Mapping):
        choice = _matching_choice(definition.name, cast("Mapping[str, Any]", choice))
    elif callable(choice) and not isinstance(choice, Rule):  # a rule is about the arguments
        choice = choice(definition)
    if choice is None:
        choice = setting("mcp_confirm")
    is_destructive = definition.hint("destructiveHint")
    if choice is None:
        return is_destructive is True, False
    if choice == "unhinted":
        is_harmless = definition.hint("readOnlyHint") is True or is_destructive is False
        return is_destructive is True or not is_harmless, False
    _check_choice(choice)  # a function may have returned anything
    return choice, bool(choice)


def _check_choice(choice: Any) -> None:
    """Raise `ToolDefinitionError` for a value that does not say whether a person must confirm."""
    if choice is None or isinstance(choice, bool) or callable(choice):
        return
    if isinstance(choice, str) and choice in {"unhinted", "destructive"}:
        return
    raise ToolDefinitionError(
        "`confirm` is True, False, 'unhinted', a dict of globs or a function; "
        f"found {shown(choice)}."
    )


def _matching_choice(name: str, by_glob: Mapping[str, Any]) -> Any:
    for glob, choice in by_glob.items():
        if fnmatchcase(name, glob):
            return choice
    return None


def effect_of(definition: MCPDefinition, *, trust: bool) -> str:
    """The effect of a call, by the hints of a trusted server; otherwise `once`."""
    if trust and definition.hint("readOnlyHint") is True:
        return "read"
    if trust and definition.hint("idempotentHint") is True:
        return "idempotent"
    return "once"


# -- direct calls


def plain_value(result: ToolResult) -> Any:
    """The return value of a direct call.

    Raises `MCPToolError`, a `RuntimeError`, if the tool reported an error.
    """
    if result.error is not None:
        raise result.error
    if isinstance(result.value, MCPResult):
        return result.value.value
    return result.value
