"""`Tool`: a function with a name, a schema and rules, which a model may call.

Making a tool reads only the function's signature. Schema and validator are built on first use and
kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable  # noqa: TC003  pydantic reads the annotations
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack, overload

from pydantic import ConfigDict, model_validator

from ferrule.tools.arguments.exact_checker import ExactChecker
from ferrule.tools.definition import attributes
from ferrule.tools.definition.constructor import define_tool, unknown_options
from ferrule.tools.definition.deps import accept_no_deps
from ferrule.tools.definition.export import call_schema, tool_line, tool_state
from ferrule.tools.definition.parameters import build_parameters
from ferrule.tools.execution.run import (
    acall_directly,
    arun_directly,
    call_directly,
    run_directly,
    run_tool,
)
from ferrule.values.calls.call import CheckedArguments
from ferrule.values.content.type import Type
from ferrule.values.tracebacks import callers_frames, trim

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ferrule.tools.definition.constructor import Effect, Flags, WhenUnknown
    from ferrule.tools.definition.mcp import MCPDefinition
    from ferrule.tools.mcp.schema_check import MCPChecker
    from ferrule.tools.mcp.tool import Caller
    from ferrule.values.calls.call import ToolResult
    from ferrule.values.calls.context import Context


class Tool(attributes.ToolAttributes, Type, late=True):
    """A callable that a model may call: `Tool(function)`, `@tool`, or `Tool("name", "description", function, schema)`.

    Name, description (the docstring), types and schema are read from the function unless they are
    given. Calling the tool, `tool(...)` or `await tool.acall(...)`, checks and coerces the
    arguments and then runs the function; what the function raises passes through.

    Args:
        func_or_name: The function, or the tool's name. After a name, the positional arguments are
        description, `callable`, `schema` and
            `mcp_server`. After a function they are name, description, `args`, `arg_types` and
            `arg_desc`.
        positional: The positional arguments described above. name: The tool's name. description:
        What the tool does, for the model. args: By parameter, a description or a JSON schema that
        replaces the one read from the function. arg_types: By parameter, a type that replaces the
        annotation. arg_desc: By parameter, a description. desc: The same as `description`. func:
        `func_or_name` as a keyword. callable: The function. Its first parameter, if named `self` or
        `caller`, is filled by `tool.call(caller, ...)`. schema: A JSON schema of all arguments.
        Without a function, the tool is only declared: it cannot run. mcp_server: The name of the
        MCP server that has the tool. mcp: That server's definition of the tool.
        require_confirmation: True, `"destructive"`, `ask(...)` or a function of the arguments:
        whether a person must agree to a call. effect: What a call changes: `"read"`,
        `"idempotent"`, `"transactional"` or `"once"` (the default). A crashed call with effect
            `"once"` is not repeated.
        reconcile: Called with the call's key and arguments before a repetition. Returns the call's
        result, `NotDone` or `Unknown`. unknown: What to do if it is unknown whether a crashed call
        ran: `"ask"` a person, `"tell"` the model, or `"fail"`. timeout_s: The time limit of a call
        in seconds. concurrent: Whether calls of one step may run at the same time.
        `Toolbox(concurrent=False)` turns it off for all its tools. keywords: No other option is
        accepted; a misspelled one raises.

    Raises:
        ToolDefinitionError: A model could not call the tool.

    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    func: Callable[..., Any] | None
    """The function; None for a tool that is only declared."""
    name: str
    """The tool's own name. `wire_name` is the form that every provider accepts."""
    desc: str
    args: dict[str, Any]
    """The schema of each parameter, by name: a copy."""
    arg_types: dict[str, Any]
    """The Python type of each parameter, by name: a copy."""
    arg_desc: dict[str, str]
    """The description of each parameter that has one, by name: a copy."""
    require_confirmation: Any
    effect: str
    reconcile: Any
    unknown: str
    timeout_s: float | None
    """None for no limit."""
    concurrent: bool
    mcp_server: str | None
    """None for a local tool."""
    if TYPE_CHECKING:
        _checker: ExactChecker | MCPChecker | None
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
    def __init__(  # pyright: ignore[reportInconsistentOverload]  the first argument has two names
        self,
        func_or_name: Callable[..., Any] | str | None = None,
        *positional: Any,
        name: str | None = None,
        description: str | None = None,
        args: Mapping[str, Any] | None = None,
        arg_types: Mapping[str, Any] | None = None,
        arg_desc: Mapping[str, str] | None = None,
        desc: str | None = None,
        func: Callable[..., Any] | None = None,
        callable: Callable[..., Any] | None = None,
        schema: Mapping[str, Any] | None = None,
        mcp_server: str | None = None,
        mcp: MCPDefinition | None = None,
        require_confirmation: bool | str | Callable[[dict[str, Any]], object] = False,
        effect: Effect | None = None,
        reconcile: Callable[..., Any] | None = None,
        unknown: WhenUnknown = "ask",
        timeout_s: float | None = None,
        concurrent: bool = True,
        **keywords: Any,
    ) -> None:
        options = dict(locals())
        if keywords:
            raise unknown_options(keywords)
        made, found = define_tool(
            (func_or_name, *positional) if positional or func_or_name is not None else (),
            options,
        )
        # `BaseModel.__init__` would build a validator, and run it on fields that are computed only
        # when they are read.
        object.__setattr__(self, "__dict__", attributes.instance_state(made, found))
        object.__setattr__(self, "__pydantic_fields_set__", set(attributes.READY))
        object.__setattr__(self, "__pydantic_extra__", None)
        object.__setattr__(self, "__pydantic_private__", None)

    # -- from other things
    # -------------------------------------------------------------------------------------

    @classmethod
    def of(cls, thing: Any) -> Tool:
        """Make a tool from a callable, a LangChain tool, an MCP list entry or a declaration (canonical or flat). A `Tool` is unchanged."""
        if isinstance(thing, (Tool, FunctionType)):
            return thing if isinstance(thing, Tool) else cls(thing)
        from ferrule.tools.sources import tool_parts  # late: most tools are functions

        return cls(**tool_parts(thing))

    @classmethod
    def from_langchain(cls, tool: Any) -> Tool:
        """Make a tool from a LangChain `BaseTool`, sync or async."""
        from ferrule.tools.sources import langchain_parts

        return cls(**langchain_parts(tool))

    @overload
    @classmethod
    def from_mcp_tool(cls, mcp_tool: Any, server_id: str, **options: Any) -> Tool: ...
    @overload
    @classmethod
    def from_mcp_tool(cls, session: Caller, tool: Any, **options: Any) -> Tool: ...
    @classmethod
    def from_mcp_tool(cls, *which: Any, **options: Any) -> Tool:
        """Make a tool from an MCP server's tool: `(session, tool)` calls it through that session, `(mcp_tool, server_id)` only declares it.

        The MCP tool is the SDK's object or a dict. `options` are `name=` and the fields of
        `ConversionRules` and `ShowRules`: `trust=`, `confirm=`, ... Raises `ToolDefinitionError`
        for an entry that cannot be called.
        """
        from ferrule.tools.mcp.tool import read_mcp_tool_options

        return cls(**read_mcp_tool_options(which, options))

    @classmethod
    def from_file(cls, filepath: str | Path, *, strict: bool = False) -> Tool | None:
        """Load the function that is named like its file. Returns None if there is none; `strict` raises `ToolLoadError`. Runs the file."""
        from ferrule.tools.sources import load_file

        return load_file(filepath, cls._from_file, strict=strict)

    @classmethod
    def load(
        cls,
        filepath: str | Path | None = None,
        file_name: str | list[str] | None = None,
        *,
        strict: bool = False,
    ) -> list[Tool]:
        """Load the tools in a folder (default `tools`), all or some by name, or in one file. Runs the files."""
        from ferrule.tools.sources import load_folder

        return load_folder(
            filepath,
            file_name,
            cls._from_file,
            lambda each: each.name,
            strict=strict,
        )

    @classmethod
    def _from_file(cls, name: str, found: Any) -> Tool:
        return found if isinstance(found, Tool) else cls(name, None, found)

    @model_validator(mode="wrap")
    @classmethod
    def _from_anything(cls, value: Any, _handler: Any) -> Tool:
        # A pydantic field of this type accepts anything that can become a tool.
        return cls.of(value)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy of the tool with some options changed."""
        del deep
        return type(self)(**attributes.constructor_arguments(self._given, update))

    # -- description
    # -------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of all arguments: a copy. For a tool of an MCP server, the schema that the server gave."""
        return copy.deepcopy(
            self._checked_by().parameters.schema if self.mcp is None else self.mcp.input_schema,
        )

    @property
    def declaration(self) -> dict[str, Any]:
        """The canonical `{"type": "function", "function": {...}}`, built once and shared: do not change it."""
        found = self._declaration
        if found is None:
            body = {
                "name": self.wire_name,
                "description": self.desc,
                "parameters": self._checked_by().parameters.schema,
            }
            found = vars(self)["_declaration"] = {"type": "function", "function": body}
        return found

    def format_as_litellm_function_call(self) -> dict[str, Any]:
        """`declaration` under DSPy's name: a copy. Arguments with a default are not required; the schema states the default."""
        return copy.deepcopy(self.declaration)

    to_openai_schema = format_as_litellm_function_call
    """The same, under udspy's name."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON schema of one call: intention, name, arguments."""
        return call_schema(self.name, self.parameters)

    def format(self) -> str:
        """The tool as one line of a prompt."""
        return tool_line(self.name, self.desc, self._checked_by().parameters.schema)

    def dump_state(self) -> dict[str, Any]:
        """Name, description, schema and flags as plain data, without the function."""
        return tool_state(self._given, self.parameters)

    def __str__(self) -> str:
        return self.format()

    # -- calls
    # -------------------------------------------------------------------------------------------------

    def prepare(self, args: dict[str, Any]) -> CheckedArguments:
        """Repair, coerce and check arguments. Raises `ToolArgumentsError` with every problem."""
        return (self._checker or self._checked_by()).prepare(args)

    def invoke(self, checked: CheckedArguments) -> Any:
        """Run the function on checked arguments, without another check or question."""
        if self.func is None or self.takes_context:
            return run_tool(self, checked)
        return self.func(*checked.positional, **checked.named)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Check the arguments and run the function. An async tool raises `AsyncToolError`, unless the settings convert it."""
        try:  # what `callers_frames` does, without its cost
            checked = self._ready(args, kwargs)
            if self.mcp is None:
                return run_directly(self, checked)
            from ferrule.tools.mcp.tool import plain_value

            return plain_value(call_directly(self, checked))
        except BaseException as error:
            trim(error)
            raise

    async def acall(self, /, *args: Any, **kwargs: Any) -> Any:
        """Check the arguments and run the function without blocking the loop: an async function on it, a sync one in a thread."""
        with callers_frames:
            checked = self._ready(args, kwargs)
            if self.mcp is None:
                return await arun_directly(self, checked)
            from ferrule.tools.mcp.tool import plain_value

            return plain_value(await acall_directly(self, checked))

    def call_result(self, /, **kwargs: Any) -> ToolResult:
        """Call the tool and return the whole `ToolResult`. For a tool of an MCP server, its `value` is the `MCPResult` with every block."""
        return call_directly(self, self._ready((), kwargs))

    async def acall_result(self, /, **kwargs: Any) -> ToolResult:
        """As `call_result`, without blocking the loop."""
        return await acall_directly(self, self._ready((), kwargs))

    async def call(self, caller: Any, /, **kwargs: Any) -> Any:
        """`acall` with a caller, which fills a first parameter named `self` or `caller`."""
        if self.mcp is not None:
            return await self.acall(**kwargs)
        checked = self._ready((), kwargs)
        if self._found.caller:
            checked = CheckedArguments(
                (caller, *checked.positional[1:]),
                checked.named,
                checked.shown,
                checked.repairs,
            )
        return await arun_directly(self, checked)

    def with_context(
        self,
        arguments: CheckedArguments,
        context: Context[Any],
        caller: Any,
    ) -> CheckedArguments:
        """Put the `Context` and the caller into checked arguments, unless they are there already."""
        if self._found.context and not context.has_deps:
            accept_no_deps(self, context)
        return attributes.fill_context(self._found, arguments, context, caller)

    def _ready(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CheckedArguments:
        """Check the arguments of a direct call. Raises `ConfirmationRequired` or `ConfirmationRejected` if a person must agree."""
        args, kwargs, context = (
            attributes.split_context(args, kwargs) if self.takes_context else (args, kwargs, None)
        )
        checked = self.prepare(
            attributes.bind_positional(self.name, self._found.order, args, kwargs)
            if args
            else kwargs,
        )
        # If only the hints of an MCP server ask for consent, a caller in Python code is not asked.
        if self.require_confirmation and (
            self.mcp is None or getattr(self.func, "asks_directly", True)
        ):
            from ferrule.approval.direct_calls import consent

            checked = consent(self, checked)
        return checked if context is None else self.with_context(checked, context, None)

    def _checked_by(self) -> ExactChecker | MCPChecker:
        checker = self._checker
        if checker is None:
            if self.mcp is None:
                checker = ExactChecker(
                    self.name,
                    self._found,
                    build_parameters(self.name, self._found, self._given),
                )
            else:
                from ferrule.tools.mcp.schema_check import MCPChecker

                checker = MCPChecker(
                    self.name,
                    self.mcp.input_schema,
                    lenient=getattr(self.func, "lenient", True),
                )
            vars(self)["_checker"] = checker
        return checker

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Tool: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Tool:
        """Bind a tool made of a method, as Python binds methods; any other tool is returned unchanged."""
        function = attributes.bound_method(self.func, instance, owner)
        return self if function is None else self.model_copy(update={"func": function})
