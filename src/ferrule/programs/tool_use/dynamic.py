"""Tools that change while a program runs.

A flow with tools makes one `Host` for its run. A tool that returns a `@module_callback`
(`tools/execution/tool_changes.py`) gets a `ModuleView`: the user's program as this run sees it; the
program itself is never changed. The call's result carries the changes, as names and digests. The
flow applies them at the end of the turn, in the order of the calls; a replay does the same and runs
no callback.

A journal holds no functions, so a resumed run has to find the tools that it had loaded, by name and
digest (`Host._find`). The process remembers those of its latest runs; another process finds them in
the program, on its shelf, among the tools that were passed to `Run.load`, or in the lists of MCP
servers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from msgspec import Struct, field
from msgspec.structs import replace

from ferrule.approval.policy import warn_of_rules
from ferrule.concurrency.forking import ForkLock
from ferrule.errors import DuplicateToolError, RunCancelledError, RunError, shown
from ferrule.programs.instructions import describe_new_tools, is_builtin
from ferrule.record import CheckedStruct
from ferrule.tools.execution.tool_changes import digest
from ferrule.tools.read_result import is_reader
from ferrule.tools.tool import Tool, names_in_process
from ferrule.tools.toolbox import RESERVED, Toolbox
from ferrule.values.conversation.history import History
from ferrule.values.outcome import Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from ferrule.acts import Conditions
    from ferrule.tools.shelf import Shelf
    from ferrule.values.calls.call import ToolResult

_MOST_RUNS = 256
"""The number of runs in this process whose loaded tools are remembered.

They resume without `Run.load(tools=...)`.
"""
_Loaded = dict[tuple[str, str], "Tool"]
_loaded: OrderedDict[Hashable, _Loaded] = OrderedDict()
"""The tools loaded by each run, by `Conditions.place`.

Finished runs stay: one that is loaded later is replayed for its prediction.
"""
_loading = ForkLock()


def _no_history() -> History:
    return History()


class ModuleContext(Struct, metaclass=CheckedStruct, frozen=True):
    """The argument of a `@module_callback`."""

    module: Any
    """The user's program as this run sees it: a `ModuleView`."""
    trajectory: Trajectory = field(default_factory=Trajectory)
    """The finished steps of the run, without the current turn."""
    input_args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The inputs of the run, by name."""
    history: History = field(default_factory=_no_history)
    """The conversation before the current turn, without the system message."""


class Owner(Protocol):
    """The flow that a host belongs to, as the host uses it."""

    toolbox: Toolbox
    """The tools offered now, including the built-in ones."""

    @property
    def module(self) -> Any:
        """The user's program."""
        ...

    @property
    def shelf(self) -> Shelf | None:
        """Tools that can be loaded by name."""
        ...

    def context(self, view: ModuleView) -> ModuleContext:
        """The argument of a callback."""
        ...

    def check(self, tools: Sequence[Tool]) -> None:
        """Raise `ToolDefinitionError` for tools that this program cannot offer."""
        ...


class ModuleView:
    """A program as one call of one run sees it.

    `tools` are the run's tools, and changes to them stay in the run. All other public attributes
    are the program's own, and read-only.
    """

    __slots__ = ("_after", "_before", "_host", "_owner")

    def __init__(self, host: Host) -> None:
        self._host = host
        self._owner = host.owner  # a callback may keep the view and read it after the run
        self._before = self._after = self._owner.toolbox

    @property
    def toolbox(self) -> Toolbox:
        """The tools in order, including the built-in ones."""
        return self._after

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools by name, including the built-in ones. Read-only; `init_module` changes them."""
        return MappingProxyType(dict(self._after.items()))

    def init_module(self, tools: Iterable[Tool | Callable[..., Any]] | None = None) -> None:
        """Offer these tools and the built-in ones, which need not be listed.

        None offers only the built-in ones. Raises `DuplicateToolError` for two tools with
        one name, and `ToolDefinitionError` for an object that is not a tool. Then nothing changes.
        """
        listed = Toolbox(() if tools is None else tools)
        # A reader of long results, too: earlier results tell the model to call it.
        kept = [tool for tool in self._before if is_builtin(tool) or is_reader(tool)]
        named = Toolbox([tool for tool in listed if not is_builtin(tool) and not is_reader(tool)])
        self._owner.check(named.tools)
        self._after = Toolbox((*kept, *named))

    def load(self, *names: str) -> str:
        """Offer tools of the toolbox's shelf, by name or glob; returns a description of it."""
        return self._move(names, loading=True)

    def unload(self, *names: str) -> str:
        """Put tools back on the shelf, by name or glob; returns a description of the change."""
        return self._move(names, loading=False)

    def _move(self, names: Iterable[str], *, loading: bool) -> str:
        """Load or unload tools of the shelf; returns a description of the change."""
        shelf = self._owner.shelf
        offered = {tool.name for tool in self.toolbox}
        matching: dict[str, Tool] = {}
        unknown: list[str] = []
        for name in names:
            tools = []
            if shelf is not None:
                tools = shelf.matching(name)
            if not tools:
                unknown.append(f"No tool on the shelf is called {name!r}.")
            matching.update((tool.name, tool) for tool in tools)
        moved = {name: tool for name, tool in matching.items() if (name in offered) is not loading}
        if loading:
            self.init_module([*self.toolbox, *moved.values()])
        else:
            self.init_module([tool for tool in self.toolbox if tool.name not in moved])
        if loading:
            heading, unmoved_heading = "Loaded, and ready to be called:", "There already"
        else:
            heading, unmoved_heading = "No longer there:", "Not loaded"
        lines: list[str] = []
        if moved:
            lines += [heading, *map(_first_line, moved.values())]
        lines += unknown
        unmoved = ", ".join(f"`{name}`" for name in matching if name not in moved)
        if unmoved:
            lines.append(f"{unmoved_heading}: {unmoved}.")
        return "\n".join(lines)

    def settled(self) -> dict[str, Any] | None:
        """The change, in the form that a result carries, or None.

        The host remembers the tools themselves.
        """
        added = [tool for tool in self.toolbox if self._before.get(tool.name) != tool]
        removed = [tool.name for tool in self._before if self.toolbox.get(tool.name) != tool]
        if not added and not removed:
            return None
        digests = {tool.name: digest(tool) for tool in added}
        self._host.remember({(tool.name, digests[tool.name]): tool for tool in added})
        return {"added": digests, "removed": removed}

    def __getattr__(self, name: str) -> Any:
        # `copy` makes a view without `_owner`, which would be looked up here for ever.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._owner.module, name)

    def __repr__(self) -> str:
        names = ", ".join(self.toolbox.names)
        return f"<{self._owner.module!r} in a run, with {names or 'no tools'}>"


class Host:
    """The tools of one run, and the changes that calls make to them."""

    def __init__(
        self,
        owner: Owner,
        conditions: Conditions,
        *,
        concurrent: bool,
        describe: Callable[[Sequence[Tool], Sequence[str]], str] = describe_new_tools,
        keeps_whole: bool = False,
    ) -> None:
        self.keeps_whole = keeps_whole
        """Whether results stay whole, because the model can read what it is not shown."""
        self.concurrent = concurrent
        """Whether calls of one step may run at the same time."""
        self.faults: dict[str, int] = {}
        """By tool with `retries`, how many of its latest calls in a row were the model's faults."""
        self.called: set[str] = set()
        """The tools that code of the current turn called. The turn's own calls are in its step."""
        self.describe = describe
        if conditions.policy is not None and not conditions.is_resumed:
            warn_of_rules(conditions.policy, names_in_process().union(RESERVED))
        # Weak, because the owner holds the host: a run's memory is freed at its end.
        self._owner = ref(owner)
        self._first_tools = owner.toolbox
        self._extra_tools = conditions.extra_tools
        self._run_key = conditions.place
        self._loaded_here: _Loaded = {}
        """The tools that this execution of the run loaded, by name and digest."""
        self.server_tools: Callable[[], Iterable[Tool]] = tuple
        """Returns the tools that MCP servers list now: a resumed run may have had one of them."""

    @property
    def owner(self) -> Owner:
        """The flow that these tools belong to. Raises `RunCancelledError` if it has ended."""
        owner = self._owner()
        if owner is None:
            raise RunCancelledError(
                "The program that these tools belong to has ended; "
                "its tools can no longer be changed."
            )
        return owner

    def context(self) -> ModuleContext:
        """The argument of a callback, with a new view.

        Calls of one turn do not see each other's unfinished changes.
        """
        return self.owner.context(ModuleView(self))

    def remember(self, tools: _Loaded) -> None:
        """Remember loaded tools, by name and digest: the run may need them when resumed."""
        self._loaded_here.update(tools)
        if self._run_key is None:  # acts answered by hand: there is no run to resume
            return
        with _loading.lock:
            _loaded.setdefault(self._run_key, {}).update(tools)
            _loaded.move_to_end(self._run_key)
            while len(_loaded) > _MOST_RUNS:
                _loaded.popitem(last=False)

    def apply(self, results: Sequence[ToolResult]) -> tuple[list[ToolResult], str]:
        """Apply the changes that results carry, in order.

        Returns the results for the model, and a description of the change. If two
        calls of one turn load different tools with one name, the later result becomes an error.
        Raises `RunError` for a tool that a resumed run had loaded and that is not found now.
        """
        shown_results: list[ToolResult] = []
        before = self.owner.toolbox
        toolbox = before
        for result in results:
            if result.change is not None:
                try:
                    toolbox = self._apply_one(toolbox, result.change)
                except DuplicateToolError as error:
                    content = f"The tools were not changed. {error}"
                    failed = replace(result, content=content, is_error=True, change=None)
                    shown_results.append(failed)
                    continue
            shown_results.append(result)
        self.owner.toolbox = toolbox
        added = [tool for tool in toolbox if before.get(tool.name) is not tool]
        removed = [tool.name for tool in before if toolbox.get(tool.name) is None]
        return shown_results, self.describe(added, removed)

    def _apply_one(self, toolbox: Toolbox, change: Mapping[str, Any]) -> Toolbox:
        """The tools after one change. Raises `DuplicateToolError` for two tools with one name."""
        removed: list[str] = change["removed"]
        added: dict[str, str] = change["added"]
        remaining = [tool for tool in toolbox if tool.name not in removed]
        # An earlier call of the turn may have added the same tool.
        remaining_digests = {tool.name: digest(tool) for tool in remaining if tool.name in added}
        new_tools: list[Tool] = []
        for name, tool_digest in added.items():
            if remaining_digests.get(name) == tool_digest:
                continue
            replaced = None
            if name in removed:
                replaced = toolbox.get(name)
            new_tools.append(self._find(name, tool_digest, replaced))
        # New tools go to the end, so that the beginning of the prompt stays the same.
        return Toolbox((*remaining, *new_tools))

    def _find(self, name: str, tool_digest: str, replaced: Tool | None) -> Tool:
        """Find a tool by name and digest.

        This execution may have loaded it; or it is passed to `Run.load`, the program's own, on its
        shelf, or listed by a server now; or this process loaded it before. It replaced `replaced`,
        so it is another tool, even if both have equal declarations.
        """
        loaded = self._loaded_here.get((name, tool_digest))
        if loaded is not None and loaded != replaced:
            return loaded
        extra_tools = map(Tool.of, self._extra_tools)
        candidates = (*extra_tools, *self._first_tools, *(self.owner.shelf or ()))
        namesakes = [tool for tool in candidates if tool.name == name and tool != replaced]
        for tool in namesakes:
            if digest(tool) == tool_digest:
                return tool
        for tool in self.server_tools():
            if tool.name == name and digest(tool) == tool_digest:
                return tool
        if namesakes:
            # A newer version of the tool: each call is checked against it.
            return namesakes[0]
        # Only now: a run that is resumed with another program has the tools of that program, as in
        # another process. A tool that a callback made may be nowhere else.
        loaded = self._remembered(name, tool_digest)
        if loaded is not None and loaded != replaced:
            return loaded
        why = "it is neither the program's own nor on its shelf"
        if replaced is not None:
            why = "it replaced a tool of this name, and only that tool is there"
            if digest(replaced) == tool_digest:
                why = "it replaced a tool with an equal declaration, and only that tool is there"
        raise RunError(
            f"The run had loaded the tool {shown(name)}, which is not found now: {why}. "
            f"Pass it: Run.load(..., tools=[{name}])."
        )

    def _remembered(self, name: str, tool_digest: str) -> Tool | None:
        """The tool as an earlier execution of the run loaded it in this process."""
        if self._run_key is None:
            return None
        with _loading.lock:
            return _loaded.get(self._run_key, {}).get((name, tool_digest))


def _first_line(tool: Tool) -> str:
    """A tool with the first line of its description."""
    description = tool.desc.strip()
    if not description:
        return f"- {tool.name}"
    return f"- {tool.name}: {description.splitlines()[0]}".rstrip(": ")
