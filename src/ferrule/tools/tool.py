"""`Tool`: a callable a model may call; and `@tool`.  (Floor 3.)

In: a function. Out: a frozen value that knows its name, its schema and its rules, and is still callable. Making one reads the
signature only; schema and validator are made when first needed, and kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable  # noqa: TC003  pydantic reads the annotations
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, ParamSpec, Self, TypeVar, overload

from pydantic import ConfigDict, model_validator

from ferrule.errors import ToolDefinitionError, shown
from ferrule.tools.arguments import Checker
from ferrule.tools.attributes import (
    READY,
    Description,
    by_name,
    home_of,
    is_method,
    late_attribute,
    made_of,
    own_context,
    state,
    with_context,
)
from ferrule.tools.confirmed import consent, needs_person
from ferrule.tools.execute import aexecute, execute, execute_directly
from ferrule.tools.given import given, named
from ferrule.tools.parameters import parameters_of
from ferrule.tools.schema import is_object
from ferrule.tools.tool_forms import as_text, call_schema, state_of
from ferrule.values.call import CheckedArguments
from ferrule.values.custom import Type

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ferrule.tools.describe import Described
    from ferrule.tools.given import Given
    from ferrule.values.context import Context

P = ParamSpec("P")
R = TypeVar("R")
Effect = Literal["read", "idempotent", "transactional", "once"]
WhenUnknown = Literal["ask", "tell", "fail"]


class Tool(Type):
    """A callable a model may call: `Tool(function)`, `@tool`, or `Tool("name", "description", function, schema)` (seed 004).

    What is not given is read from the function: name, description (the docstring), types, schema. Calling it, with `tool(...)` or
    `await tool.acall(...)`, checks and coerces the arguments first and then runs the function; what the function raises passes through.
    Raises `ToolDefinitionError` when made of something that cannot be called by a model.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    func: Callable[..., Any] | None
    """The function; None for a tool that lives elsewhere."""
    name: str
    """Its own name. `wire_name` is the form of it that every provider takes."""
    desc: str
    args: dict[str, Any]
    """The schema of each parameter, by name: a copy."""
    arg_types: dict[str, Any]
    """The Python type of each parameter, by name: a copy."""
    arg_desc: dict[str, str]
    """What is known of each parameter in words, by name: a copy."""
    require_confirmation: Any
    """Whether a person must agree first: True, False, `"destructive"` (unless it only reads), `ask(...)` or a function of the arguments."""
    effect: str
    """What a call does to the world, and so whether it may be repeated after a crash."""
    reconcile: Any
    """Called with the call's key and its arguments before it is repeated: returns its result, `NotDone` or `Unknown`. Or None."""
    unknown: str
    """What is done where nobody can tell whether a call that may not be repeated has run: "ask" a person, "tell" the model, "fail"."""
    timeout_s: float | None
    """Seconds a call may take; None for as long as it likes."""
    concurrent: bool
    """Whether several calls of one turn may run at once."""
    mcp_server: str | None
    """The MCP server it comes from; None for a local tool."""

    # Aliases, all of them: seeds 001 and 004 call `desc` `description`; the constructor takes `callable` for `func`, `schema` for `args`.
    description = Description()  # pyright: ignore[reportAssignmentType]  on the class it is what it was

    if TYPE_CHECKING:
        wire_name: str
        """The name in the form that every provider takes."""
        says_once: bool
        """Whether `effect="once"` was said of it, and not only taken for granted."""
        takes_context: bool
        """Whether the run fills a parameter of it: a `Context`, or in seed 004's form the caller."""
        _given: Given
        _found: Described
        _checker: Checker | None
        _declaration: dict[str, Any] | None

    @overload
    def __init__(
        self,
        func_or_name: Callable[..., Any],
        name: str | None = None,
        description: str | None = None,
        args: Mapping[str, Any] | None = None,
        arg_types: Mapping[str, Any] | None = None,
        arg_desc: Mapping[str, str] | None = None,
        *,
        desc: str | None = None,
        schema: Mapping[str, Any] | None = None,
        mcp_server: str | None = None,
        require_confirmation: bool | str | Callable[..., Any] = False,
        effect: Effect = "once",
        reconcile: Callable[..., Any] | None = None,
        unknown: WhenUnknown = "ask",
        timeout_s: float | None = None,
        concurrent: bool = True,
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        description: str | None = None,
        callable: Callable[..., Any] | None = None,
        schema: Mapping[str, Any] | None = None,
        mcp_server: str | None = None,
        *,
        require_confirmation: bool | str | Callable[..., Any] = False,
        effect: Effect = "once",
        reconcile: Callable[..., Any] | None = None,
        unknown: WhenUnknown = "ask",
        timeout_s: float | None = None,
        concurrent: bool = True,
    ) -> None: ...
    @overload
    def __init__(self, *, func: Callable[..., Any], **keywords: Any) -> None: ...
    def __init__(self, *positional: Any, **keywords: Any) -> None:
        try:
            made, found = given(**named(positional, keywords))
        except TypeError as error:
            if isinstance(error, ToolDefinitionError):
                raise
            msg = f"`Tool` does not take these arguments: {str(error).removeprefix('given() ')}."
            raise ToolDefinitionError(msg) from None
        # Not by pydantic's way: everything was checked already, and `args` and its like are made when they are asked for.
        object.__setattr__(self, "__dict__", state(made, found))
        object.__setattr__(self, "__pydantic_fields_set__", set(READY))
        object.__setattr__(self, "__pydantic_extra__", None)
        object.__setattr__(self, "__pydantic_private__", None)

    # -- making one of something else -------------------------------------------------------------------------

    @classmethod
    def of(cls, thing: Any) -> Tool:
        """A tool out of a tool, a callable, a LangChain tool, or a declaration in the canonical or flat form."""
        from ferrule.tools.foreign import is_langchain_tool

        if isinstance(thing, Tool):
            return thing
        if is_langchain_tool(thing):
            return cls.from_langchain(thing)
        if is_object(thing):
            body: Any = thing.get("function", thing)
            if is_object(body) and isinstance(body.get("name"), str):
                return cls(body["name"], body.get("description") or "", None, body.get("parameters") or {})
        if callable(thing):
            return cls(thing)
        msg = f"A tool is a function, a `Tool`, or a declaration with `name`, `description` and `parameters`; found {shown(thing)}."
        raise ToolDefinitionError(msg)

    @classmethod
    def from_langchain(cls, tool: Any) -> Tool:
        """A LangChain `BaseTool` as a tool, sync and async."""
        from ferrule.tools.foreign import langchain_parts

        return cls(**langchain_parts(tool))

    @classmethod
    def from_file(cls, filepath: str | Path, *, strict: bool = False) -> Tool | None:
        """The tool in a Python file: its function named like the file. None for a file without one; `strict` raises `ToolLoadError`."""
        from ferrule.tools.load import load_file

        return load_file(filepath, cls._from_file, strict=strict)

    @classmethod
    def load(cls, filepath: str | Path | None = None, file_name: str | list[str] | None = None, *, strict: bool = False) -> list[Tool]:
        """The tools in a folder (`tools` when not told), all or some by name, or in one file. Runs the files."""
        from ferrule.tools.load import load_folder

        return load_folder(filepath, file_name, cls._from_file, lambda each: each.name, strict=strict)

    @classmethod
    def _from_file(cls, name: str, found: Any) -> Tool:
        return found if isinstance(found, Tool) else cls(name, None, found)

    @model_validator(mode="wrap")
    @classmethod
    def _from_anything(cls, value: Any, handler: Any) -> Tool:
        # A field of this type takes whatever can become a tool.
        del handler
        return cls.of(value)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """The same tool with some of what it was made of changed."""
        del deep
        return type(self)(**{**made_of(self._given), **(update or {})})

    # -- what it says of itself -------------------------------------------------------------------------------

    @property
    def parameters(self) -> dict[str, Any]:
        """The complete JSON schema of the arguments: a copy."""
        return copy.deepcopy(self._checked_by().parameters.schema)

    @property
    def declaration(self) -> dict[str, Any]:
        """The canonical `{"type": "function", "function": {...}}`: made once, shared, not to be changed."""
        found = self._declaration
        if found is None:
            body = {"name": self.wire_name, "description": self.desc, "parameters": self._checked_by().parameters.schema}
            found = vars(self)["_declaration"] = {"type": "function", "function": body}
        return found

    def format_as_litellm_function_call(self) -> dict[str, Any]:
        """The canonical declaration, under DSPy's name: a copy. Arguments with a default are not required, and say it."""
        return copy.deepcopy(self.declaration)

    def to_openai_schema(self) -> dict[str, Any]:
        """The canonical declaration, under udspy's name: a copy."""
        return copy.deepcopy(self.declaration)

    def to_dict(self) -> dict[str, Any]:
        """The JSON schema of one call: intention, name, arguments (seed 004)."""
        return call_schema(self.name, self.parameters)

    def format(self) -> str:
        """The tool in one line of a prompt."""
        return as_text(self.name, self.desc, self._checked_by().parameters.schema)

    def dump_state(self) -> dict[str, Any]:
        """Name, description, schema and flags as plain data, without the function."""
        return state_of(self._given, self.parameters)

    def __str__(self) -> str:
        return self.format()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Tool) and self._given == other._given)

    def __hash__(self) -> int:
        return hash((self.name, self.desc))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self  # frozen; and a function has no copy

    def __reduce__(self) -> Any:
        return home_of(self) or (_again, (type(self), made_of(self._given)))

    # -- checking and running ---------------------------------------------------------------------------------

    def prepare(self, args: dict[str, Any]) -> CheckedArguments:
        """Arguments mended, coerced and checked; raises `ToolArgumentsError` with every problem."""
        return (self._checker or self._checked_by()).prepare(args)

    def invoke(self, checked: CheckedArguments) -> Any:
        """Run the function on arguments that were checked, here and now: no check, no question."""
        if self.func is None or self.takes_context:
            return execute(self, checked)
        return self.func(*checked.positional, **checked.named)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Check the arguments and run. An async tool raises `AsyncToolError` unless the conversion is switched on."""
        return execute_directly(self, self._ready(args, kwargs))

    async def acall(self, /, *args: Any, **kwargs: Any) -> Any:
        """Check the arguments and run without blocking the loop: an async function on it, a sync one in the pool."""
        return await aexecute(self, self._ready(args, kwargs))

    async def call(self, caller: Any, /, **kwargs: Any) -> Any:
        """`acall` for a caller (seed 004): a first parameter that is named `self` or `caller` is given it."""
        checked = self._ready((), kwargs)
        if self._found.caller:
            checked = CheckedArguments((caller, *checked.positional[1:]), checked.named, checked.shown, checked.repairs)
        return await aexecute(self, checked)

    def with_context(self, arguments: CheckedArguments, context: Context[Any], caller: Any) -> CheckedArguments:
        """Checked arguments with what the run fills in its places, where nobody has put anything yet."""
        return with_context(self._found, arguments, context, caller)

    def _ready(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CheckedArguments:
        """Checked arguments of a direct call; raises `ConfirmationRequired` or `ConfirmationRejected` where a person has a say."""
        context = None
        if self.takes_context:
            args, kwargs, context = own_context(args, kwargs)
        checked = self.prepare(by_name(self.name, self._found.order, args, kwargs) if args else kwargs)
        if self.require_confirmation and needs_person(self, checked.shown):
            checked = consent(self, checked)
        return checked if context is None else with_context(self._found, checked, context, None)

    def _checked_by(self) -> Checker:
        checker = self._checker
        if checker is None:
            checker = Checker(self.name, self._found, parameters_of(self.name, self._found, self._given))
            vars(self)["_checker"] = checker
        return checker

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return late_attribute(name, self._given, self._found, self._checked_by)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Tool: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Tool:
        """A tool made of a method is bound like one; any other tool that is an attribute of a class stays what it is."""
        function = self.func
        if isinstance(function, classmethod):
            bound: Any = function.__get__(instance, owner)  # pyright: ignore[reportUnknownMemberType]
            return self.model_copy(update={"func": bound})
        if instance is None or not isinstance(function, FunctionType) or not is_method(function, type(instance)):
            return self
        return self.model_copy(update={"func": function.__get__(instance, owner)})


def _again(kind: type[Tool], made: dict[str, Any]) -> Tool:
    return kind(**made)
