"""Instructions and tools that functions of the user choose for a run, from its `Context`.

Both functions are called once when a program begins, before its first request, and what they return
is recorded: a replay does not ask again. So the beginning of the prompt stays the same within a
run, and a resumed run goes on with the prompt that it had, whatever its `deps` say by then. With
`tools_each="step"`, the tools are chosen again after each step. The messages so far stay the same;
the model is told what has changed, as when it loads tools itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from msgspec import Struct

from ferrule.acts import Act, Once
from ferrule.errors import ConfigurationError, refuse_awaitable, shown
from ferrule.programs.instructions import is_builtin
from ferrule.tools.definition.deps import ContextParameter, context_parameter
from ferrule.tools.definition.inspect_function import name_of
from ferrule.tools.read_result import is_reader
from ferrule.tools.skills.shelf import skills_prompt
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import RESERVED, Toolbox

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from ferrule.programs.tool_use.dynamic import Host
    from ferrule.values.outcome import Step

Each = Literal["run", "step"]
_AT_BEGIN = "instructions_and_tools"
_AFTER_STEP = "tools_of_step"
_FORMS = {
    "instructions": "a text, or a function of the `Context` that returns one",
    "tools_for": "a function of the `Context` that returns the names of tools",
}


class ChoosingFunction(Struct, frozen=True):
    """A function of the user that is asked in each run."""

    function: Callable[..., Any]
    context: ContextParameter | None
    is_async: bool
    what: str
    """Its name in errors."""

    async def ask(self, call: Callable[..., Any]) -> Any:
        """What it returns. `call` comes from a `Once` with `runs_code`."""
        returned = await call(
            self.function, context=self.context, is_async=self.is_async, what=self.what
        )
        return refuse_awaitable(returned, self.what)


class Choices(Struct, frozen=True):
    """What the functions of one program choose; each is None if there is none."""

    instructions: str | ChoosingFunction | None = None
    tools_for: ChoosingFunction | None = None
    each: Each = "run"

    @property
    def functions(self) -> list[ChoosingFunction]:
        """The functions that are asked."""
        both = (self.instructions, self.tools_for)
        return [function for function in both if isinstance(function, ChoosingFunction)]


def check_choices(instructions: Any, tools_for: Any, tools_each: Any) -> Choices:
    """The options of a program; raises `ConfigurationError` for others."""
    text: str | ChoosingFunction | None = None
    if isinstance(instructions, str):
        text = instructions
    elif instructions is not None:
        text = _as_function(instructions, "instructions")
    choose_tools = None
    if tools_for is not None:
        choose_tools = _as_function(tools_for, "tools_for")
    if tools_each not in {"run", "step"}:
        raise ConfigurationError(f"`tools_each` is 'run' or 'step'; found {shown(tools_each)}.")
    if tools_each == "step" and choose_tools is None:
        raise ConfigurationError("`tools_each` says how often `tools_for` is called: pass it, too.")
    return Choices(text, choose_tools, tools_each)


def _as_function(function: Any, option: str) -> ChoosingFunction:
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(f"`{option}` is {_FORMS[option]}; found {shown(function)}.")
    call: Any = getattr(type(function), "__call__", None)  # noqa: B004  of an object
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    what = f"`{option}`, the function {name_of(function) or shown(function)},"
    return ChoosingFunction(function, _context_of(function, option), is_async, what)


def _context_of(function: Any, option: str) -> ContextParameter | None:
    """The parameter for the `Context`: the only one that the function must get, if it has one."""
    context = context_parameter(function)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function in C may have no signature
        return ContextParameter("ctx", 0, is_named=False, deps_type=Any)
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
    ]
    if context is None and positional:
        context = ContextParameter(positional[0].name, 0, is_named=False, deps_type=Any)
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        and (context is None or parameter.name != context.name)
    ]
    if required:
        raise ConfigurationError(
            f"`{option}` is called with the `Context` of the run and nothing else; "
            f"{shown(function)} also needs {', '.join(f'`{name}`' for name in required)}."
        )
    return context


# -- at the beginning of a run


def choose_for_run(choices: Choices, toolbox: Toolbox) -> Generator[Act, Any, tuple[str, Toolbox]]:
    """The instructions of this run, empty if there are none, and the tools that it offers."""
    text = ""
    if isinstance(choices.instructions, str):
        text = choices.instructions
    if not choices.functions:
        return _with_skills(text, toolbox), toolbox

    async def ask(call: Callable[..., Any]) -> list[Any]:
        chosen_text, chosen_names = None, None
        if isinstance(choices.instructions, ChoosingFunction):
            chosen_text = _text(await choices.instructions.ask(call), choices.instructions)
        if choices.tools_for is not None:
            chosen_names = _names(await choices.tools_for.ask(call), toolbox, choices.tools_for)
        if chosen_text is None and chosen_names is None:
            return []
        return [chosen_text, chosen_names]

    recorded = yield Once(ask, _AT_BEGIN, runs_code=True)
    if not recorded:
        return _with_skills(text, toolbox), toolbox
    chosen_text, names = recorded
    if chosen_text is not None:
        text = chosen_text
    if names is not None:
        toolbox = _only(toolbox, names)
    return _with_skills(text, toolbox), toolbox


def _with_skills(text: str, toolbox: Toolbox) -> str:
    """The instructions, and the list of the skills that the model can read."""
    skills = toolbox.cached_value(skills_prompt, lambda: skills_prompt(toolbox))
    if text and skills:
        return f"{text}\n\n{skills}"
    return text or skills


def _text(returned: Any, function: ChoosingFunction) -> str | None:
    if returned is None or isinstance(returned, str):
        return returned
    raise ConfigurationError(f"{function.what} returns a text or None; found {shown(returned)}.")


def _names(returned: Any, toolbox: Toolbox, function: ChoosingFunction) -> list[str] | None:
    """The names of the tools that were returned, in the order of the toolbox; None for all."""
    if returned is None:
        return None
    if isinstance(returned, str) or not isinstance(returned, Iterable):
        raise ConfigurationError(
            f"{function.what} returns a list of tools or of their names, or None for all of them; "
            f"found {shown(returned)}."
        )
    wanted: set[str] = set()
    for tool in cast("Iterable[Any]", returned):
        name = tool
        if not isinstance(tool, str):
            name = Tool.of(tool).name
        wanted.add(name)
    unknown = wanted.difference(toolbox.names, RESERVED)
    if unknown:
        raise ConfigurationError(
            f"{function.what} returns names of the program's tools. There is no tool "
            f"{shown(min(unknown))}; the tools are: {', '.join(toolbox.names) or 'none'}."
        )
    # Results that are cut tell the model to call it, whichever tools are left.
    wanted |= {tool.name for tool in toolbox if is_reader(tool)}
    return [name for name in toolbox.names if name in wanted]


def _only(toolbox: Toolbox, names: Sequence[str]) -> Toolbox:
    """The tools with these names. Those that a newer version of the program lacks are left out."""
    if len(names) == len(toolbox):
        return toolbox

    def make() -> Toolbox:
        return Toolbox([tool for tool in toolbox if tool.name in names])

    return toolbox.cached_value((_only, tuple(names)), make)


# -- after a step


class ChangesTools(Protocol):
    """What changes the tools of a run between its turns, such as `LiveTools`."""

    def begin(self) -> Generator[Act, Any, str]:
        """A note for the model before the first request; empty for none."""
        ...

    def refresh(self, step: Step) -> Generator[Act, Any, str]:
        """Change the tools after a step; returns a description for the model."""
        ...


class ChosenTools:
    """Keeps to the tools that were chosen, after each step of a run.

    It stands before what else changes the tools of a run, which would offer a tool that was left
    out when a server lists its tools again.
    """

    def __init__(
        self, choices: Choices, toolbox: Toolbox, host: Host, live: ChangesTools | None
    ) -> None:
        self._choices = choices
        self._all = toolbox
        """The tools from which the function chooses."""
        self._host = host
        self._live = live
        self._names = frozenset(host.owner.toolbox.names)

    def begin(self) -> Generator[Act, Any, str]:
        """See `LiveTools.begin`."""
        if self._live is None:
            return ""
        return (yield from self._live.begin())

    def refresh(self, step: Step) -> Generator[Act, Any, str]:
        """Choose again, after other changes. Returns a description of all changes for the model."""
        notes: list[str] = []
        if self._live is not None:
            note = yield from self._live.refresh(step)
            if note:
                notes.append(note)
        if self._choices.each == "step":
            yield from self._choose_again()
        note = self._apply()
        if note:
            notes.append(note)
        return "\n".join(notes)

    def _choose_again(self) -> Generator[Act, Any, None]:
        function = cast("ChoosingFunction", self._choices.tools_for)

        async def ask(call: Callable[..., Any]) -> list[Any]:
            names = _names(await function.ask(call), self._all, function)
            return [] if names is None else [names]

        recorded = yield Once(ask, _AFTER_STEP, runs_code=True)
        self._names = frozenset(self._all.names)
        if recorded:
            self._names = frozenset(recorded[0])

    def _apply(self) -> str:
        """Offer the tools that are chosen by now; returns a description of the change."""
        owner = self._host.owner
        offered = {tool.name: tool for tool in owner.toolbox}
        tools = [
            offered.get(tool.name, tool)  # a server may have changed it
            for tool in self._all
            if tool.name in self._names
        ]
        all_names = set(self._all.names)
        # Built-in tools, and those that the run has loaded, are not for the function to choose.
        others = [tool for tool in owner.toolbox if tool.name not in all_names]
        builtin = [tool for tool in others if is_builtin(tool)]
        loaded = [tool for tool in others if not is_builtin(tool)]
        after = Toolbox([*tools, *loaded, *builtin])
        if set(after.names) == offered.keys():
            return ""
        added = [tool for tool in after if tool.name not in offered]
        removed = [name for name in offered if name not in after.names]
        owner.toolbox = after
        return self._host.describe(added, removed)
