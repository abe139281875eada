"""Make a `ToolDefinition` from the options of `Tool(...)`.

Everything that can be checked without building a schema is checked here, so that a mistake shows
where the tool is made. A `ToolDefinitionError` names the tool.
"""

from __future__ import annotations

import copy
import dis
import inspect
from collections.abc import Callable, Mapping
from itertools import pairwise
from threading import TIMEOUT_MAX
from types import FunctionType
from typing import Any, TypeGuard, cast, get_args

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic_core import PydanticUndefined

from ferrule.approval.policy import Rule
from ferrule.errors import ToolDefinitionError, refuse_async, refuse_other_arguments, shown
from ferrule.schema.nodes import Schema, is_object, names_elsewhere
from ferrule.schema.python_types import InputArguments
from ferrule.tools.definition.inspect_function import (
    FunctionSpec,
    Parameter,
    doc_of,
    field_of,
    inspect_function,
    is_required,
    name_of,
)
from ferrule.tools.definition.options import Effect, WhenUnknown, WhereFrom
from ferrule.tools.definition.result_type import check_returns
from ferrule.tools.definition.schema_rules import check_object_schema, check_schema
from ferrule.tools.mcp_definition import MCPDefinition

_WORDS_FOR_CONFIRMATION = ("destructive", "host")


class ToolDefinition(Struct, frozen=True):
    """The options of `Tool(...)`, checked."""

    func: Callable[..., Any] | None
    name: str
    description: str
    args: dict[str, str | Schema] = field(default_factory=dict[str, str | Schema])
    """By parameter: a text that describes it, or its whole schema.

    With a schema among them, these are all arguments, and other parameters keep their defaults.
    """
    schema: Schema | None = None
    """An object schema for all parameters, which replaces the one read from the function."""
    arg_types: dict[str, Any] = field(default_factory=dict[str, Any])
    arg_desc: dict[str, str] = field(default_factory=dict[str, str])
    mcp_server: str | None = None
    mcp: MCPDefinition | None = None
    """The definition that its MCP server gave. Its input schema is used unchanged."""
    require_confirmation: Any = False
    effect: str = "once"
    says_effect: bool = False
    """Whether the effect was given, and is not only the default."""
    reconcile: Callable[..., Any] | None = None
    unknown: str = "ask"
    timeout_s: float | None = None
    concurrent: bool = True
    retries: int | None = None
    """How often the model may try again after a call that it made wrong; None: no such bound."""
    result: str = "function"
    """Where the result of a call comes from: the function, `"outside"`, by `deliver`, or the
    `"page"` of a chat."""
    within_s: float | None = None
    """The deadline of a result from outside."""
    returns: Any = None
    """The type of a result from outside, or its JSON schema, if no function declares it."""
    untrusted: bool = False
    """Whether others than the user and the developers may have written what it returns."""
    with_caller: bool = False
    """Whether the function came as `callable`, in the Proxy Base Agent's manner: a first parameter
    named `self` or `caller` is then filled by the caller, not by the model."""


def define_tool(
    options: Mapping[str, Any], *, with_caller: bool
) -> tuple[ToolDefinition, FunctionSpec]:
    """Check options under the core's names (see `read_options`).

    Returns the definition, and the specification of the function.
    """
    mcp: MCPDefinition | None = options["mcp"]
    function: Any = options["func"]
    require_confirmation = options["require_confirmation"]
    given_schema = options["schema"]
    if mcp is not None:
        given_schema = mcp.input_schema
    if function is None:
        if options["result"] == "function":
            _refuse_missing_function(given_schema, options["name"])
        with_caller = True
    else:
        _check_function(function, has_schema=given_schema is not None)
    if getattr(function, "__confirm_first__", False):
        # Made by `@confirm_first`: the tool asks instead. Only this layer goes; others stay.
        function = cast("Any", function).__wrapped__
        require_confirmation = require_confirmation or True
    name = _read_name(options["name"], function)
    description = options["description"]
    if description is not None and not isinstance(description, str):
        raise ToolDefinitionError(
            f"The description of `{name}` must be text, found {shown(description)}."
        )
    args, schema = _read_args(name, options["args"], options["schema"], function)
    arg_types = _read_mapping(name, "arg_types", options["arg_types"])
    if function is None and given_schema is None and schema is None:
        # A tool whose result comes from outside: its arguments are those that it names.
        parameters = tuple(
            Parameter(parameter, arg_types.get(parameter, Any))
            for parameter in {**args, **arg_types}
        )
        function_spec = FunctionSpec(name, "", parameters)
    elif function is None:
        function_spec = FunctionSpec(name, "", (), extra=Any)
    else:
        function_spec = inspect_function(
            function, arg_types, with_caller=with_caller, readable=schema is None
        )
        if description is None:
            description = doc_of(function)
    says_effect = options["effect"] is not None
    effect = options["effect"] if says_effect else "once"
    definition = ToolDefinition(
        func=function,
        name=name,
        description=description or "",
        args=args,
        schema=schema,
        arg_types=arg_types,
        arg_desc=_read_texts(name, "arg_desc", options["arg_desc"]),
        mcp_server=options["mcp_server"],
        mcp=mcp,
        require_confirmation=_read_confirmation(name, require_confirmation),
        effect=_read_choice(name, "effect", effect, get_args(Effect)),
        says_effect=says_effect,
        reconcile=_read_reconcile(name, options["reconcile"]),
        unknown=_read_choice(name, "unknown", options["unknown"], get_args(WhenUnknown)),
        timeout_s=_read_seconds(name, "timeout_s", options["timeout_s"]),
        concurrent=_read_flag(name, "concurrent", options["concurrent"]),
        retries=_read_retries(name, options["retries"]),
        result=_read_choice(name, "result", options["result"], get_args(WhereFrom)),
        within_s=_read_seconds(name, "within_s", options["within_s"]),
        returns=options["returns"],
        untrusted=_read_untrusted(name, options),
        with_caller=with_caller,
    )
    _check_agreement(definition, function_spec)
    function_spec = _without_hidden(name, function_spec, args)
    return definition, _add_typed_extras(function_spec, args, arg_types)


# -- the function and its name


def _refuse_missing_function(schema: Any, name: Any) -> None:
    """Raise unless there is a schema: a tool without a function is only declared."""
    if schema is not None:
        return
    which = ""
    if name:
        which = f" for {shown(name)}"
    raise ToolDefinitionError(
        "`Tool` needs a function, or, for a tool that lives elsewhere, `schema=` or "
        f'`result="outside"`; found neither{which}.'
    )


def _check_function(function: Any, *, has_schema: bool) -> None:
    kind = cast("Any", type(function))
    if hasattr(kind, "acall_result"):
        # A tool of a tool would lose the first one's confirmation, time limit and effect.
        raise ToolDefinitionError(
            f"`{function.name}` is a tool already. A copy with another name is "
            "`tool.model_copy(update={'name': ...})`."
        )
    if getattr(function, "__makes_tool__", False):
        raise ToolDefinitionError(
            "`tool(...)` without a function is a decorator: put it before a function. "
            '`Tool(name=..., args=..., result="outside")` declares a tool without one.'
        )
    if not callable(function) and not isinstance(function, classmethod):
        raise ToolDefinitionError(
            f"A tool is made of a function or another callable, found {shown(function)}."
        )
    if not has_schema and not isinstance(function, FunctionType):
        _refuse_tool_object(function)


def _refuse_tool_object(thing: Any) -> None:
    """Raise for a program or another library's tool: an object that takes any arguments.

    Its class and its `__call__` do not describe the tool, so a model would see another name and no
    arguments.
    """
    named = getattr(thing, "metadata", thing)  # LlamaIndex's tools have their name there
    if isinstance(thing, type) or not isinstance(getattr(named, "name", None), str):
        return
    if not _takes_any_arguments(thing):
        return
    kind = cast("type[Any]", type(thing))
    if hasattr(kind, "as_tool"):
        raise ToolDefinitionError(
            f"`{named.name}` is a program, not a function. Pass `program.as_tool()`."
        )
    raise ToolDefinitionError(
        f"The arguments of `{named.name}` cannot be read: it is an object of the class "
        f"`{kind.__module__}.{kind.__qualname__}`, not a function. Pass the function that it was "
        "made of, or a function that calls it."
    )


def _takes_any_arguments(thing: Any) -> bool:
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (ValueError, TypeError, NameError):
        return False
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _read_name(name: Any, function: Any) -> str:
    if name is None and function is not None:
        name = name_of(function)
    if name is not None and not isinstance(name, str):
        raise ToolDefinitionError(f"A tool's name must be text, found {shown(name)}.")
    if not name:
        raise ToolDefinitionError(
            f"A tool needs a name; {shown(function)} has none. Give one: Tool(function, name=...)."
        )
    return name


# -- the arguments


def _read_args(
    name: str, args: Any, schema: Any, function: Any
) -> tuple[dict[str, str | Schema], Schema | None]:
    """Read `args` and `schema`.

    Returns the texts or schemas of single parameters, and the schema of all parameters. A schema
    of all parameters is also accepted as `args`, where migrants put it.
    """
    if schema is not None:
        if args is not None:
            raise ToolDefinitionError(f"`{name}` was given both `args` and `schema`: give one.")
        return {}, check_object_schema(name, copy.deepcopy(schema))
    by_parameter: dict[str, Any] = copy.deepcopy(_read_mapping(name, "args", args))
    if isinstance(args, InputArguments):
        by_parameter = InputArguments(by_parameter, args.required)
    if _is_object_schema(by_parameter, function):
        return {}, check_object_schema(name, by_parameter)
    for parameter, description in by_parameter.items():
        if is_object(description):
            check_schema(f"`{name}`, parameter `{parameter}`", description)
        elif not isinstance(description, str):
            raise ToolDefinitionError(
                f"`args` of `{name}` says {shown(description)} of `{parameter}`; "
                "it takes a text or a JSON schema for each parameter."
            )
    return by_parameter, None


def _is_object_schema(args: Mapping[str, Any], function: Any) -> bool:
    """Whether `args` is one schema of all parameters, and not descriptions by parameter."""
    if args.get("type") != "object" or not is_object(args.get("properties", {})):
        return False
    # A function may have parameters named `type` and `properties`.
    return "properties" not in _parameter_names(function)


def _parameter_names(function: Any) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (ValueError, TypeError, NameError):
        return frozenset()


def _read_mapping(name: str, option: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not _is_mapping(value) or not all(isinstance(parameter, str) for parameter in value):
        raise ToolDefinitionError(
            f"`{option}` of `{name}` must be a dict by parameter name, found {shown(value)}."
        )
    return dict(value)


def _is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def _read_texts(name: str, option: str, value: Any) -> dict[str, str]:
    texts = _read_mapping(name, option, value)
    for parameter, text in texts.items():
        if not isinstance(text, str):
            raise ToolDefinitionError(
                f"`{option}` of `{name}` says {shown(text)} of `{parameter}`, which must be text."
            )
    return texts


def _without_hidden(
    name: str, function_spec: FunctionSpec, args: Mapping[str, Any]
) -> FunctionSpec:
    """The function without the parameters that `args` hides.

    Raises `ToolDefinitionError` if it could not be called then.
    """
    if not any(map(is_object, args.values())):
        return function_spec
    aliases = _aliases(function_spec)
    listed = {aliases.get(key, key) for key in args}
    hidden = [parameter for parameter in function_spec.parameters if parameter.name not in listed]
    needed = [parameter.name for parameter in hidden if is_required(parameter)]
    if needed:
        raise ToolDefinitionError(
            f"`args` of `{name}` leaves out {_quoted(needed)}, which the function requires: list "
            "it, or give it a default."
        )
    names = {parameter.name for parameter in hidden}
    positional = function_spec.positional_only
    for before, after in pairwise(positional):
        if before in names and after not in names:
            raise ToolDefinitionError(
                f"`args` of `{name}` leaves out `{before}`, which is passed by position before "
                f"`{after}`: list both."
            )
    return replace(
        function_spec,
        parameters=tuple(
            parameter for parameter in function_spec.parameters if parameter.name in listed
        ),
        positional_only=tuple(key for key in positional if key in listed),
    )


def _add_typed_extras(
    function_spec: FunctionSpec, args: Mapping[str, Any], arg_types: Mapping[str, Any]
) -> FunctionSpec:
    """Add the names in `arg_types` that `**kwargs` takes, as parameters like any other."""
    if function_spec.extra is None:
        return function_spec
    known = {parameter.name for parameter in function_spec.parameters}
    extras: list[Parameter] = []
    for name, kind in arg_types.items():
        if name in known:
            continue
        schema, default = args.get(name), PydanticUndefined
        if is_object(schema) and "default" in schema:
            default = schema["default"]
        may_be_missing = isinstance(args, InputArguments) and name not in args.required
        extras.append(Parameter(name, kind, default, may_be_missing))
    return replace(function_spec, parameters=(*function_spec.parameters, *extras))


# -- the rules


def _read_choice(name: str, option: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ToolDefinitionError(
            f"`{option}` of `{name}` must be one of {', '.join(map(repr, choices))}, "
            f"found {shown(value)}."
        )
    return value


def _read_flag(name: str, option: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ToolDefinitionError(
            f"`{option}` of `{name}` must be True or False, found {shown(value)}."
        )
    return value


def _read_confirmation(name: str, requirement: Any) -> Any:
    """Check when a person is asked: a boolean, a word, an `ask(...)` or a function."""
    if isinstance(requirement, str):
        # A misspelled word would ask before every call.
        return _read_choice(name, "require_confirmation", requirement, _WORDS_FOR_CONFIRMATION)
    if not callable(requirement):
        if requirement is None:
            return False
        # An empty list would never ask.
        return _read_flag(name, "require_confirmation", requirement)
    if isinstance(requirement, Rule) and requirement.verdict != "ask":
        # Called like a function of the arguments, a rule that denies would let every call run.
        raise ToolDefinitionError(
            f"`require_confirmation` of `{name}` says when a person is asked: {requirement} "
            "belongs in a policy, `policy=Policy([...])`."
        )
    what = f"`require_confirmation` of `{name}`"
    refuse_async(requirement, what)
    refuse_other_arguments(requirement, what, "the arguments of the call as a dict")
    return requirement


def _read_reconcile(name: str, reconcile: Any) -> Callable[..., Any] | None:
    if reconcile is not None and not callable(reconcile):
        raise ToolDefinitionError(
            f"`reconcile` of `{name}` is called with the call's key and its arguments; "
            f"found {shown(reconcile)}."
        )
    return reconcile


def _read_untrusted(name: str, options: Mapping[str, Any]) -> bool:
    """Whether results are untrusted: what a server or a page returns is, unless one trusts it."""
    untrusted = options["untrusted"]
    if untrusted is None:
        is_of_server = options["mcp"] is not None or options["mcp_server"] is not None
        return is_of_server or options["result"] == "page"
    return _read_flag(name, "untrusted", untrusted)


def _read_retries(name: str, retries: Any) -> int | None:
    if retries is None or (type(retries) is int and retries >= 0):
        return retries
    raise ToolDefinitionError(
        f"`retries` of `{name}` must be a whole number of at least 0, or None for no bound; found "
        f"{shown(retries)}."
    )


def _read_seconds(name: str, option: str, seconds: Any) -> float | None:
    if seconds is None:
        return None
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not seconds > 0:
        raise ToolDefinitionError(
            f"`{option}` of `{name}` must be a number of seconds above 0, or None for no limit; "
            f"found {shown(seconds)}."
        )
    if seconds > TIMEOUT_MAX:  # no thread can wait for longer, nor needs to
        return None
    return float(seconds)


# -- agreement of the options with the function


def _check_agreement(definition: ToolDefinition, function_spec: FunctionSpec) -> None:
    """Raise if the options and the function contradict each other: no call could fit both."""
    name, schema = definition.name, definition.schema
    _check_outside(definition)
    if definition.effect == "transactional" and not _can_be_transactional(
        definition, function_spec
    ):
        raise ToolDefinitionError(
            f"`{name}` cannot be transactional: that takes a plain function (not an async one, "
            "which would hold the database while it waits) with a parameter annotated `Context`, "
            "which writes through its `db`."
        )
    if schema is None:
        option_of_names, described = "args", set(definition.args)
    else:
        option_of_names, described = "schema", set(schema.get("properties", {}))
    mentioned = {
        option_of_names: described,
        "arg_types": set(definition.arg_types),
        "arg_desc": set(definition.arg_desc),
    }
    context = function_spec.context
    if context and any(context in names for names in mentioned.values()):
        raise ToolDefinitionError(
            f"`{context}` of `{name}` is a `Context`, which the run fills: "
            "a model never sees it, and it takes no description."
        )
    parameters = {parameter.name for parameter in function_spec.parameters}
    aliases: Mapping[str, str] = {}
    if described - parameters:
        aliases = _aliases(function_spec)
    if function_spec.extra is None:
        for option, names in mentioned.items():
            unknown = sorted(names - parameters - aliases.keys())
            if unknown:
                raise ToolDefinitionError(
                    f"`{option}` of `{name}` names {_quoted(unknown)}; "
                    f"the function's parameters are: {_quoted(sorted(parameters)) or 'none'}."
                )
    if schema is not None:
        covered = described | {aliases[alias] for alias in described & aliases.keys()}
        _check_required(name, schema, function_spec, covered)


def _check_outside(definition: ToolDefinition) -> None:
    """Raise if the options about a result from outside contradict the tool."""
    name, function = definition.name, definition.func
    if definition.result == "function":
        for option in ("within_s", "returns"):
            if getattr(definition, option) is not None:
                raise ToolDefinitionError(
                    f"`{option}` of `{name}` is about a result from outside: it goes with "
                    '`result="outside"`, and a function says it itself, with '
                    "`return Later(within_s=...)` and its return type."
                )
        return
    if definition.effect == "transactional" or definition.mcp is not None:
        raise ToolDefinitionError(
            f"`{name}` runs nothing here, because its result comes from outside: it cannot be "
            "transactional, nor a tool of an MCP server."
        )
    if function is None:
        check_returns(name, definition.returns)
        return
    if definition.returns is not None:
        raise ToolDefinitionError(
            f"`{name}` has a function, whose annotation is the type of the result: leave out "
            "`returns`."
        )
    if not _is_stub(function):
        raise ToolDefinitionError(
            f"The result of `{name}` comes from the {definition.result}, so its function is never "
            "called: write `...` as its body. If the function begins something, leave out "
            "`result`, and return `Later(...)`."
        )


_OF_STUBS = frozenset(
    {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"}
    # An `async def` ends with what Python adds to every coroutine.
    | {"RETURN_GENERATOR", "POP_TOP", "CALL_INTRINSIC_1", "RERAISE", "COPY_FREE_VARS"}
)


def _is_stub(function: Any) -> bool:
    """Whether a function does nothing: its body is `...`, `pass` or a docstring."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return False
    return all(instruction.opname in _OF_STUBS for instruction in dis.get_instructions(code))


def _can_be_transactional(definition: ToolDefinition, function_spec: FunctionSpec) -> bool:
    function = definition.func
    if function is None or not function_spec.context:
        return False
    return not inspect.iscoroutinefunction(function)


def _check_required(
    name: str, schema: Schema, function_spec: FunctionSpec, covered: set[str]
) -> None:
    """Raise if a closed schema has no property for a parameter that the function requires."""
    is_closed = schema.get("additionalProperties") in (None, False)
    if not is_closed or names_elsewhere(schema):
        return
    missing = [
        parameter.name
        for parameter in function_spec.parameters
        if parameter.name not in covered and is_required(parameter)
    ]
    if missing:
        raise ToolDefinitionError(
            f"The schema of `{name}` leaves out {_quoted(missing)}, which the function requires."
        )


def _aliases(function_spec: FunctionSpec) -> dict[str, str]:
    """The parameter for each alias that a field declares."""
    aliases: dict[str, str] = {}
    for parameter in function_spec.parameters:
        alias = field_of(parameter).validation_alias
        if isinstance(alias, str):
            aliases[alias] = parameter.name
    return aliases


def _quoted(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
