"""`Tool`: a callable a model may call; and `@tool`.

In: a function. Out: a frozen value that knows its name, its schema and its rules, and is still callable. Making one reads the
signature only; schema and validator are made when first needed, and kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable  # noqa: TC003  pydantic reads the annotations
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Self, TypeVar, Unpack, overload

from pydantic import ConfigDict, model_validator

from ferrule.errors import ToolDefinitionError
from ferrule.tools.definition import attributes
from ferrule.tools.definition.constructor import define_tool, name_arguments
from ferrule.tools.definition.export import call_schema, tool_line, tool_state
from ferrule.tools.execution.consent import consent, needs_person
from ferrule.tools.execution.run import acall_directly, aexecute, call_directly, execute
from ferrule.tools.sources import remote
from ferrule.values.calls.call import CheckedArguments
from ferrule.values.content.custom_type import Type

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ferrule.tools.arguments.checker import Checker
    from ferrule.tools.definition.constructor import ToolDefinition
    from ferrule.tools.definition.flags import Flags
    from ferrule.tools.definition.inspect_function import FunctionSpec
    from ferrule.tools.definition.mcp import MCPDefinition
    from ferrule.tools.mcp.tool import Caller
    from ferrule.values.calls.call import ToolResult
    from ferrule.values.calls.context import Context

P = ParamSpec("P")
R = TypeVar("R")


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
    description = attributes.Description()  # pyright: ignore[reportAssignmentType]  on the class it is what it was

    if TYPE_CHECKING:
        wire_name: str
        """The name in the form that every provider takes."""
        schema: dict[str, Any]  # pyright: ignore[reportIncompatibleMethodOverride]  as `description`
        mcp: MCPDefinition | None
        """All that its MCP server says of it, its name there and its schemas as given; None for a local tool."""
        title: str | None
        icons: list[dict[str, Any]] | None
        annotations: dict[str, Any] | None
        output_schema: dict[str, Any] | None
        meta: dict[str, Any] | None
        execution: dict[str, Any] | None
        says_once: bool
        """Whether `effect="once"` was said of it, and not only taken for granted."""
        takes_context: bool
        """Whether the run fills a parameter of it: a `Context`, or in seed 004's form the caller."""
        _given: ToolDefinition
        _found: FunctionSpec
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
        **flags: Unpack[Flags],
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        description: str | None = None,
        callable: Callable[..., Any] | None = None,
        schema: Mapping[str, Any] | None = None,
        mcp_server: str | None = None,
        **flags: Unpack[Flags],
    ) -> None: ...
    @overload
    def __init__(self, *, func: Callable[..., Any], **keywords: Any) -> None: ...
    def __init__(self, *positional: Any, **keywords: Any) -> None:
        try:
            made, found = define_tool(**name_arguments(positional, keywords))
        except TypeError as error:
            if isinstance(error, ToolDefinitionError):
                raise
            msg = f"`Tool` does not take these arguments: {str(error).removeprefix('given() ')}."
            raise ToolDefinitionError(msg) from None
        # Not by pydantic's way: everything was checked already, and `args` and its like are made when they are asked for.
        object.__setattr__(self, "__dict__", attributes.instance_state(made, found))
        object.__setattr__(self, "__pydantic_fields_set__", set(attributes.READY))
        object.__setattr__(self, "__pydantic_extra__", None)
        object.__setattr__(self, "__pydantic_private__", None)

    # -- making one of something else -------------------------------------------------------------------------

    @classmethod
    def of(cls, thing: Any) -> Tool:
        """A tool out of a tool, a callable, a LangChain tool, an entry of an MCP list, or a declaration in the canonical or flat form."""
        from ferrule.tools.sources.langchain import tool_parts

        return thing if isinstance(thing, Tool) else cls(**tool_parts(thing))

    @classmethod
    def from_langchain(cls, tool: Any) -> Tool:
        """A LangChain `BaseTool` as a tool, sync and async."""
        from ferrule.tools.sources.langchain import langchain_parts

        return cls(**langchain_parts(tool))

    @overload
    @classmethod
    def from_mcp_tool(cls, mcp_tool: Any, server_id: str, **options: Any) -> Tool: ...
    @overload
    @classmethod
    def from_mcp_tool(cls, session: Caller, tool: Any, **options: Any) -> Tool: ...
    @classmethod
    def from_mcp_tool(cls, *which: Any, **options: Any) -> Tool:
        """A tool of an MCP server: `(session, tool)` calls through that session, `(mcp_tool, server_id)` only knows where it comes from.

        The tool is the SDK's object or a dict. `options` are `name=`, and those of `ConversionRules` and `ShowRules`: `trust=`, `confirm=`,
        ... Raises `ToolDefinitionError` for an entry that could not be called.
        """
        from ferrule.tools.mcp.tool import parts_of

        return cls(**parts_of(which, options))

    @classmethod
    def from_file(cls, filepath: str | Path, *, strict: bool = False) -> Tool | None:
        """The tool in a Python file: its function named like the file. None for a file without one; `strict` raises `ToolLoadError`."""
        from ferrule.tools.sources.files import load_file

        return load_file(filepath, cls._from_file, strict=strict)

    @classmethod
    def load(cls, filepath: str | Path | None = None, file_name: str | list[str] | None = None, *, strict: bool = False) -> list[Tool]:
        """The tools in a folder (`tools` when not told), all or some by name, or in one file. Runs the files."""
        from ferrule.tools.sources.files import load_folder

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
        return type(self)(**{**attributes.constructor_arguments(self._given), **(update or {})})

    # -- what it says of itself -------------------------------------------------------------------------------

    @property
    def parameters(self) -> dict[str, Any]:
        """The complete JSON schema of the arguments: a copy. Of a tool of an MCP server it is the one that the server gave."""
        return copy.deepcopy(self._checked_by().parameters.schema if self.mcp is None else self.mcp.input_schema)

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
        return tool_line(self.name, self.desc, self._checked_by().parameters.schema)

    def dump_state(self) -> dict[str, Any]:
        """Name, description, schema and flags as plain data, without the function."""
        return tool_state(self._given, self.parameters)

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
        return attributes.importable_name(self) or (_again, (type(self), attributes.constructor_arguments(self._given)))

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
        checked = self._ready(args, kwargs)
        return execute(self, checked, is_direct=True) if self.mcp is None else remote.value(self, checked)

    async def acall(self, /, *args: Any, **kwargs: Any) -> Any:
        """Check the arguments and run without blocking the loop: an async function on it, a sync one in the pool."""
        checked = self._ready(args, kwargs)
        return await (aexecute(self, checked) if self.mcp is None else remote.avalue(self, checked))

    def call_result(self, /, **kwargs: Any) -> ToolResult:
        """As calling it, for the whole `ToolResult`: of a tool of an MCP server its `value` is the `MCPResult` with every block."""
        return call_directly(self, self._ready((), kwargs))

    async def acall_result(self, /, **kwargs: Any) -> ToolResult:
        """As `call_result`, without blocking the loop."""
        return await acall_directly(self, self._ready((), kwargs))

    async def call(self, caller: Any, /, **kwargs: Any) -> Any:
        """`acall` for a caller (seed 004): a first parameter that is named `self` or `caller` is given it."""
        if self.mcp is not None:
            return await self.acall(**kwargs)
        checked = self._ready((), kwargs)
        if self._found.caller:
            checked = CheckedArguments((caller, *checked.positional[1:]), checked.named, checked.shown, checked.repairs)
        return await aexecute(self, checked)

    def with_context(self, arguments: CheckedArguments, context: Context[Any], caller: Any) -> CheckedArguments:
        """Checked arguments with what the run fills in its places, where nobody has put anything yet."""
        return attributes.fill_context(self._found, arguments, context, caller)

    def _ready(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CheckedArguments:
        """Checked arguments of a direct call; raises `ConfirmationRequired` or `ConfirmationRejected` where a person has a say."""
        context = None
        if self.takes_context:
            args, kwargs, context = attributes.split_context(args, kwargs)
        checked = self.prepare(attributes.bind_positional(self.name, self._found.order, args, kwargs) if args else kwargs)
        if self.require_confirmation and remote.asks_directly(self._given) and needs_person(self, checked.shown):
            checked = consent(self, checked)
        return checked if context is None else attributes.fill_context(self._found, checked, context, None)

    def _checked_by(self) -> Checker:
        checker = self._checker
        if checker is None:
            checker = vars(self)["_checker"] = remote.checker_of(self._found, self._given)
        return checker

    if not TYPE_CHECKING:
        schema = attributes.GivenSchema()

        def __getattr__(self, name: str) -> Any:
            return attributes.late_attribute(name, self._given, self._found, lambda: self._checked_by().parameters)

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
        if instance is None or not isinstance(function, FunctionType) or not attributes.is_method(function, type(instance)):
            return self
        return self.model_copy(update={"func": function.__get__(instance, owner)})


def _again(kind: type[Tool], made: dict[str, Any]) -> Tool:
    return kind(**made)
