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

from ferrule.approval.direct_calls import consent
from ferrule.settings import with_settings_of_call
from ferrule.tools.arguments.checker import Checker
from ferrule.tools.definition.attributes import (
    STORED_FIELDS,
    ToolAttributes,
    constructor_arguments,
    instance_state,
)
from ferrule.tools.definition.binding import (
    bind_positional,
    bound_method,
    fill_context,
    split_context,
)
from ferrule.tools.definition.constructor import define_tool
from ferrule.tools.definition.deps import accept_no_deps
from ferrule.tools.definition.export import call_schema, tool_line, tool_state
from ferrule.tools.definition.options import ToolOptions, read_options
from ferrule.tools.definition.parameters import Parameters, build_parameters
from ferrule.tools.execution.run import (
    acall_directly,
    arun_directly,
    call_directly,
    run_directly,
    run_tool,
)
from ferrule.values.calls.call import CheckedArguments
from ferrule.values.content.type import Type
from ferrule.values.tracebacks import callers_frames

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ferrule.tools.mcp.checker import MCPChecker
    from ferrule.tools.mcp.tool import Caller
    from ferrule.values.calls.call import ToolResult
    from ferrule.values.calls.context import Context

_names_in_process: set[str] = set()


class Tool(ToolAttributes, Type):
    """A callable that a model may call.

    Three ways to make one are accepted: `Tool(function)` with DSPy's further arguments,
    `@tool(...)`, and `Tool("name", "description", function, schema)`. Name, description (the
    docstring), types and schema are read from the function unless they are given. Calling the tool,
    `tool(...)` or `await tool.acall(...)`, checks and coerces the arguments and then runs the
    function; what the function raises passes through.

    Args:
        func_or_name: The function, or the tool's name.
        positional: After a function: name, description, `args`, `arg_types` and `arg_desc`. After a
            name: description, `callable`, `schema` and `mcp_server`.
        func: The function. Without one, the tool is only declared: it needs `schema`, and cannot
            run, or its `result` is from outside.
        callable: Another spelling of `func`. A first parameter named `self` or `caller` is then
            filled by `tool.call(caller, ...)`.
        name: The tool's name; the function's by default.
        description: What the tool does, for the model; the docstring by default.
        desc: Another spelling of `description`.
        args: By parameter, a description or a JSON schema that replaces the one read from the
            function.
        arg_types: By parameter, a type that replaces the annotation.
        arg_desc: By parameter, a description.
        schema: A JSON schema of all arguments.
        mcp_server: The name of the MCP server that has the tool.
        mcp: That server's definition of the tool.
        require_confirmation: True, `"destructive"`, `ask(...)` or a function of the arguments:
            whether a person must agree to a call.
        effect: What a call changes: `"read"`, `"idempotent"`, `"transactional"` or `"once"` (the
            default). A crashed call with effect `"once"` is not repeated.
        reconcile: Called with the call's key and arguments before a repetition. Returns the call's
            result, `NotDone` or `Unknown`.
        unknown: What to do if it is unknown whether a crashed call ran: `"ask"` a person, `"tell"`
            the model, or `"fail"`.
        timeout_s: The time limit of a call in seconds.
        concurrent: Whether calls of one step may run at the same time. `Toolbox(concurrent=False)`
            turns it off for all its tools.
        retries: How often in a row the model may try again after a call that it made wrong
            (arguments that do not fit, `ToolRetry`). After that, the tool no longer runs. None: no
            bound. It does not repeat calls by itself.
        result: `"outside"` if the result of a call comes later, by `deliver`: nothing runs here. A
            function then only declares the arguments and the type of the result; its body is `...`.
            `"page"` is the same, and the page of a chat may give the result (`AGUI`, `VercelAI`).
        within_s: Seconds after which the model reads that no result from outside came; None to wait
            without end.
        returns: The type of a result from outside, or its JSON schema, for a tool without a
            function. None takes any JSON value.
        untrusted: Whether others may have written what it returns, such as a mail or a page. Rules
            with `call(after="untrusted")` and `call(tainted=True)` look at it. True by default for
            tools of MCP servers.

    Raises:
        ToolDefinitionError: A model could not call the tool, or an option is unknown.

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
    retries: int | None = None
    """How often in a row the model may try again after a wrong call."""
    result: str = "function"
    """Where the result of a call comes from: `"function"`, `"outside"` or `"page"`."""
    within_s: float | None = None
    """The deadline of a result from outside."""
    returns: Any = None
    """The type of a result from outside that was given without a function."""
    untrusted: bool = False
    """Whether others may have written what it returns."""
    mcp_server: str | None
    """None for a local tool."""
    if TYPE_CHECKING:
        _checker: Checker | MCPChecker | None
        _declaration: dict[str, Any] | None

    def __init__(
        self,
        func_or_name: Callable[..., Any] | str | None = None,
        *positional: Any,
        **options: Unpack[ToolOptions],
    ) -> None:
        values, with_caller = read_options((func_or_name, *positional), options)
        definition, function_spec = define_tool(values, with_caller=with_caller)
        _names_in_process.add(definition.name)
        # `BaseModel.__init__` would build a validator, and run it on fields that are computed only
        # when they are read.
        object.__setattr__(self, "__dict__", instance_state(definition, function_spec))
        object.__setattr__(self, "__pydantic_fields_set__", set(STORED_FIELDS))
        object.__setattr__(self, "__pydantic_extra__", None)
        object.__setattr__(self, "__pydantic_private__", None)

    # -- from other things

    @classmethod
    def of(cls, thing: Any) -> Tool:
        """Make a tool from any of the usual things. A `Tool` is unchanged.

        These are a callable, a LangChain tool, an entry of an MCP server's list, and a declaration
        (canonical or flat).
        """
        function: Any = thing.func if isinstance(thing, Tool) else thing
        is_function = isinstance(function, FunctionType)
        if is_function and function.__code__.co_varnames[:1] != ("self",):
            return thing if isinstance(thing, Tool) else cls(thing)
        # late: most tools are functions
        from ferrule.tools.sources import refuse_without_object, tool_options

        refuse_without_object(function)
        if isinstance(thing, Tool):
            return thing
        return cls(**tool_options(thing))

    @classmethod
    def from_langchain(cls, tool: Any) -> Tool:
        """Make a tool from a LangChain `BaseTool`, sync or async."""
        from ferrule.tools.sources import langchain_options

        return cls(**langchain_options(tool))

    @overload
    @classmethod
    def from_mcp_tool(cls, mcp_tool: Any, server_id: str, **options: Any) -> Tool: ...
    @overload
    @classmethod
    def from_mcp_tool(cls, session: Caller, tool: Any, **options: Any) -> Tool: ...
    @classmethod
    def from_mcp_tool(cls, *which: Any, **options: Any) -> Tool:
        """Make a tool from an MCP server's tool.

        `(session, tool)` calls it through that session, `(mcp_tool, server_id)` only declares it.
        The MCP tool is the SDK's object or a dict. `options` are `name=` and the fields of
        `ConversionRules` and `ShowRules`: `trust=`, `confirm=`, ... Raises `ToolDefinitionError`
        for an entry that cannot be called.
        """
        from ferrule.tools.mcp.tool import read_mcp_tool_options

        return cls(**read_mcp_tool_options(which, options))

    @classmethod
    def from_file(cls, filepath: str | Path, *, strict: bool = False) -> Tool | None:
        """Load the function that is named like its file. Runs the file.

        Returns None if there is no such function; `strict` raises `ToolLoadError` instead.
        """
        from ferrule.tools.files import load_file

        return load_file(filepath, cls._from_file, strict=strict)

    @classmethod
    def load(
        cls,
        filepath: str | Path | None = None,
        file_name: str | list[str] | None = None,
        *,
        strict: bool = False,
    ) -> list[Tool]:
        """Load the tools in a folder, all or some by name, or in one file. Runs the files.

        The default folder is `tools`.
        """
        from ferrule.tools.files import load_folder

        return load_folder(
            filepath, file_name, cls._from_file, lambda tool: tool.name, strict=strict
        )

    @classmethod
    def _from_file(cls, name: str, value: Any) -> Tool:
        if isinstance(value, Tool):
            return value
        return cls(name, None, value)

    @model_validator(mode="wrap")
    @classmethod
    def _from_anything(cls, value: Any, _handler: Any) -> Tool:
        # A pydantic field of this type accepts anything that can become a tool.
        return cls.of(value)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy of the tool with some options changed."""
        del deep
        return type(self)(**constructor_arguments(self._definition, update))

    # -- description

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of all arguments: a copy.

        For a tool of an MCP server, this is the schema that the server gave.
        """
        if self.mcp is not None:
            return copy.deepcopy(self.mcp.input_schema)
        return copy.deepcopy(self._parameters().schema)

    @property
    def declaration(self) -> dict[str, Any]:
        """The canonical `{"type": "function", "function": {...}}`.

        It is built once and shared: do not change it.
        """
        declaration = self._declaration
        if declaration is None:
            function = {
                "name": self.wire_name,
                "description": self.desc,
                "parameters": self._parameters().schema,
            }
            declaration = {"type": "function", "function": function}
            vars(self)["_declaration"] = declaration
        return declaration

    @property
    def secret_arguments(self) -> tuple[str, ...]:
        """The arguments whose Python type is secret (`SecretStr`): people see stars.

        None of an MCP server's tool: its schema could hide what runs.
        """
        if self.mcp is not None:
            return ()
        return self._parameters().secrets

    def format_as_litellm_function_call(self) -> dict[str, Any]:
        """`declaration` under DSPy's name: a copy.

        Arguments with a default are not required; the schema states the default.
        """
        return copy.deepcopy(self.declaration)

    to_openai_schema = format_as_litellm_function_call
    """The same, under udspy's name."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON schema of one call: intention, name, arguments."""
        return call_schema(self.name, self.parameters)

    def format(self) -> str:
        """The tool as one line of a prompt."""
        return tool_line(self.name, self.desc, self._parameters().schema)

    def dump_state(self) -> dict[str, Any]:
        """Name, description, schema and flags as plain data, without the function."""
        return tool_state(self._definition, self.parameters)

    def __str__(self) -> str:
        return self.format()

    # -- calls

    def prepare(self, args: dict[str, Any]) -> CheckedArguments:
        """Repair, coerce and check arguments. Raises `ToolArgumentsError` with every problem."""
        return self._checked_by().prepare(args)

    def invoke(self, checked: CheckedArguments) -> Any:
        """Run the function on checked arguments, without another check or question."""
        if self.func is None or self.takes_context or self.result != "function":
            return run_tool(self, checked)
        return self.func(*checked.positional, **checked.named)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Check the arguments and run the function.

        An async tool raises `AsyncToolError`, unless the settings convert it.
        """
        with callers_frames:
            checked = self._ready(args, kwargs)
            if self.mcp is None:
                return run_directly(self, checked)
            from ferrule.tools.mcp.tool import plain_value

            return plain_value(call_directly(self, checked))

    @with_settings_of_call
    async def acall(self, /, *args: Any, **kwargs: Any) -> Any:
        """Check the arguments and run the function without blocking the loop.

        An async function runs on the loop, a sync one in a thread.
        """
        with callers_frames:
            checked = self._ready(args, kwargs)
            if self.mcp is None:
                return await arun_directly(self, checked)
            from ferrule.tools.mcp.tool import plain_value

            return plain_value(await acall_directly(self, checked))

    def call_result(self, /, **kwargs: Any) -> ToolResult:
        """Call the tool and return the whole `ToolResult`.

        For a tool of an MCP server, its `value` is the `MCPResult` with every block.
        """
        return call_directly(self, self._ready((), kwargs))

    @with_settings_of_call
    async def acall_result(self, /, **kwargs: Any) -> ToolResult:
        """As `call_result`, without blocking the loop."""
        return await acall_directly(self, self._ready((), kwargs))

    @with_settings_of_call
    async def call(self, caller: Any, /, **kwargs: Any) -> Any:
        """`acall` with a caller, which fills a first parameter named `self` or `caller`."""
        if self.mcp is not None:
            return await self.acall(**kwargs)
        checked = self._ready((), kwargs)
        if self._function_spec.caller:
            positional = (caller, *checked.positional[1:])
            checked = CheckedArguments(positional, checked.named, checked.shown, checked.repairs)
        return await arun_directly(self, checked)

    def with_context(
        self, arguments: CheckedArguments, context: Context[Any], caller: Any
    ) -> CheckedArguments:
        """Put the `Context` and the caller into checked arguments, unless they are there."""
        if self._function_spec.context and not context.has_deps:
            accept_no_deps(self, context)
        return fill_context(self._function_spec, arguments, context, caller)

    def by_name(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], Context[Any] | None]:
        """The arguments of a call in Python by name, and the `Context` among them."""
        context = None
        if self.takes_context:
            args, kwargs, context = split_context(args, kwargs)
        if args:
            kwargs = bind_positional(self.name, self._function_spec.order, args, kwargs)
        return kwargs, context

    def _ready(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CheckedArguments:
        """Check the arguments of a direct call.

        Raises `ConfirmationRequired` or `ConfirmationRejected` if a person must agree.
        """
        kwargs, context = self.by_name(args, kwargs)
        checked = self.prepare(kwargs)
        # If only the hints of an MCP server ask for consent, a caller in Python code is not asked.
        asks = self.mcp is None or getattr(self.func, "asks_directly", True)
        if self.require_confirmation and asks:
            checked = consent(self, checked)
        if context is None:
            return checked
        return self.with_context(checked, context, None)

    def _parameters(self) -> Parameters:
        return self._checked_by().parameters

    def _checked_by(self) -> Checker | MCPChecker:
        """The checker of the arguments, built on first use: it needs the schema."""
        checker = self._checker
        if checker is None:
            checker = self._make_checker()
            vars(self)["_checker"] = checker
        return checker

    def _make_checker(self) -> Checker | MCPChecker:
        if self.mcp is None:
            parameters = build_parameters(self.name, self._function_spec, self._definition)
            return Checker(self.name, self._function_spec, parameters)
        from ferrule.tools.mcp.checker import MCPChecker

        lenient = getattr(self.func, "lenient", True)
        return MCPChecker(self.name, self.mcp.input_schema, lenient=lenient)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Tool: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Tool:
        """Bind a tool made of a method, as Python binds methods; other tools are unchanged."""
        function = bound_method(self.func, instance, owner)
        if function is None:
            return self
        return self.model_copy(update={"func": function})


def names_in_process() -> frozenset[str]:
    """The names of all tools that were made in this process.

    The policy of the settings is for all programs, for served tools and for direct calls: a rule
    of it is misspelled only if there is no such tool at all.
    """
    return frozenset(_names_in_process)


def note_name(name: str) -> None:
    """Note the name of a tool that is not a `Tool`: the model's provider runs it."""
    _names_in_process.add(name)
