"""The arguments of `Tool(...)`, in DSPy's or the name-first order, checked and sorted into a `ToolDefinition`.

Checks everything that it can without building a schema. A `ToolDefinitionError` names the tool.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from threading import TIMEOUT_MAX
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeGuard, get_args

from pydantic_core import PydanticUndefined

from ferrule.errors import ToolDefinitionError, nearest, refuse_async, shown
from ferrule.record import Record, field, replace
from ferrule.schema.nodes import (
    Schema,
    find_pointer,
    is_list,
    is_object,
    names_elsewhere,
    subschemas,
)
from ferrule.schema.patterns import is_pattern
from ferrule.schema.validator import work_problem
from ferrule.tools.definition.inspect_function import (
    FunctionSpec,
    Parameter,
    doc_of,
    field_of,
    inspect_function,
    is_required,
    name_of,
)

if TYPE_CHECKING:
    from ferrule.tools.definition.mcp import MCPDefinition

Effect = Literal["read", "idempotent", "transactional", "once"]
WhenUnknown = Literal["ask", "tell", "fail"]
_TYPES = {"string", "integer", "number", "boolean", "object", "array", "null"}
_NUMBERS = (
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
)
_FUNCTION_FIRST = ("func", "name", "description", "args", "arg_types", "arg_desc")
_NAME_FIRST = ("name", "description", "callable", "schema", "mcp_server")


class Flags(TypedDict, total=False):
    """The options that every form of `Tool(...)` and `@tool(...)` takes; see the fields of the same names in `Tool`."""

    require_confirmation: bool | str | Callable[[dict[str, Any]], object]
    effect: Effect | None
    reconcile: Callable[..., Any] | None
    unknown: WhenUnknown
    timeout_s: float | None
    concurrent: bool


class ToolDefinition(Record):
    """The arguments of `Tool(...)`, checked."""

    func: Callable[..., Any] | None
    name: str
    description: str
    args: dict[str, str | Schema] = field(default_factory=dict[str, str | Schema])
    """By parameter: a text that describes it, or its whole schema."""
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
    with_caller: bool = False
    """Whether a first parameter named `self` or `caller` is filled by the caller, not by the model."""


def define_tool(
    positional: tuple[Any, ...],
    options: Mapping[str, Any],
) -> tuple[ToolDefinition, FunctionSpec]:
    """Check the arguments of `Tool(...)`. Returns the definition, and the specification of the function."""
    given = _name_positional(positional, options)
    mcp, schema, effect = given["mcp"], given["schema"], given["effect"]
    require_confirmation = given["require_confirmation"]
    function, with_caller = _function(
        given["func"],
        given["callable"],
        schema if mcp is None else mcp.input_schema,
        given["name"],
    )
    if function is not None and getattr(
        function,
        "__confirm_first__",
        False,
    ):  # made by `@confirm_first`
        asking: Any = function  # one layer only: other wrappers stay
        function, require_confirmation = asking.__wrapped__, require_confirmation or True
    own_name = (
        given["name"]
        if given["name"] is not None
        else name_of(function)
        if function is not None
        else ""
    )
    if not isinstance(own_name, str):
        raise ToolDefinitionError(f"A tool's name must be text, found {shown(own_name)}.")
    if not own_name:
        raise ToolDefinitionError(
            f"A tool needs a name; {shown(function)} has none. Give one: Tool(function, name=...).",
        )
    text = _description(own_name, given["description"], given["desc"])
    single, whole = _by_hand(own_name, given["args"], schema, function)
    types = _mapping(own_name, "arg_types", given["arg_types"])
    found = (
        inspect_function(function, types, with_caller=with_caller, readable=whole is None)
        if function is not None
        else FunctionSpec(own_name, "", (), extra=Any)
    )
    made = ToolDefinition(
        func=function,
        name=own_name,
        description=text if text is not None else doc_of(function) if function is not None else "",
        args=single,
        schema=whole,
        arg_types=types,
        arg_desc=_texts(own_name, "arg_desc", given["arg_desc"]),
        mcp_server=given["mcp_server"],
        mcp=mcp,
        require_confirmation=_confirmation(own_name, require_confirmation),
        effect=_one_of(own_name, "effect", "once" if effect is None else effect, get_args(Effect)),
        says_effect=effect is not None,
        reconcile=_reconcile(own_name, given["reconcile"]),
        unknown=_one_of(own_name, "unknown", given["unknown"], get_args(WhenUnknown)),
        timeout_s=_timeout(own_name, given["timeout_s"]),
        concurrent=bool(given["concurrent"]),
        with_caller=with_caller,
    )
    _check_agreement(made, found)
    return made, _add_typed_extras(found, single, types)


def unknown_options(unknown: Iterable[str]) -> ToolDefinitionError:
    """The error for keywords that `Tool(...)` does not take, with the nearest valid keyword for each."""
    names = {*_FUNCTION_FIRST, *_NAME_FIRST, "desc", *Flags.__annotations__}
    said = [(each, nearest(each, names)) for each in unknown]
    text = ", ".join(
        f"`{each}`{f' (did you mean `{near}`?)' if near else ''}" for each, near in said
    )
    return ToolDefinitionError(f"`Tool` has no option {text}.")


# -- its parts
# ----------------------------------------------------------------------------------------------------


def _name_positional(positional: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the positional arguments among them. The first argument decides their order."""
    order = _NAME_FIRST if positional and isinstance(positional[0], str) else _FUNCTION_FIRST
    if len(positional) > len(order):
        raise ToolDefinitionError(
            f"`Tool` takes at most {len(order)} arguments by position ({', '.join(order)}), found {len(positional)}.",
        )
    found = dict(zip(order, positional, strict=False))
    twice = sorted(name for name in found if options[name] is not None)
    if twice:
        raise ToolDefinitionError(
            f"`Tool` was given {', '.join(f'`{each}`' for each in twice)} twice: once by position and once by name.",
        )
    return {**options, **found}


def _function(
    func: Any,
    also: Any,
    schema: Any,
    name: Any,
) -> tuple[Callable[..., Any] | None, bool]:
    if func is not None and also is not None:
        raise ToolDefinitionError("`Tool` was given a function twice: as `func` and as `callable`.")
    function = func if func is not None else also
    if function is None:
        if schema is None:
            which = f" for {shown(name)}" if name else ""
            raise ToolDefinitionError(
                f"`Tool` needs a function, or, for a tool that lives elsewhere, `schema=`; found neither{which}.",
            )
        return None, True
    kind: Any = type(function)  # pyright: ignore[reportUnknownVariableType]
    if hasattr(
        kind,
        "acall_result",
    ):  # a tool: its confirmation, time limit and effect would be lost
        msg = f"`{function.name}` is a tool already. A copy with another name is `tool.model_copy(update={{'name': ...}})`."
        raise ToolDefinitionError(msg)
    if not _is_callable(function):
        raise ToolDefinitionError(
            f"A tool is made of a function or another callable, found {shown(function)}.",
        )
    if schema is None and not isinstance(function, FunctionType):
        from ferrule.tools.definition.objects import (
            refuse_tool_object,
        )  # late: most tools are functions

        refuse_tool_object(function)
    return function, func is None


def _is_callable(thing: Any) -> bool:
    return callable(thing) or isinstance(thing, classmethod)


def _description(name: str, description: Any, desc: Any) -> str | None:
    if description is not None and desc is not None and description != desc:
        msg = f"`{name}` was given two descriptions, {shown(description)} and {shown(desc)}: `desc` is `description`, give one."
        raise ToolDefinitionError(msg)
    text = description if description is not None else desc
    if text is not None and not isinstance(text, str):
        raise ToolDefinitionError(f"The description of `{name}` must be text, found {shown(text)}.")
    return text


def _by_hand(
    name: str,
    args: Any,
    schema: Any,
    function: Any,
) -> tuple[dict[str, str | Schema], Schema | None]:
    """Read `args` and `schema`. Returns the texts or schemas of single parameters, or a schema of all parameters."""
    if schema is not None and args is not None:
        raise ToolDefinitionError(f"`{name}` was given both `args` and `schema`: give one.")
    if schema is not None:
        return {}, _checked_object(name, copy.deepcopy(schema))
    single: dict[str, Any] = copy.deepcopy(_mapping(name, "args", args))
    if (
        single.get("type") == "object"
        and is_object(single.get("properties", {}))
        and "properties" not in _names(function)
    ):
        return {}, _checked_object(name, single)
    for parameter, said in single.items():
        if is_object(said):
            check_schema(f"`{name}`, parameter `{parameter}`", said)
        elif not isinstance(said, str):
            msg = f"`args` of `{name}` says {shown(said)} of `{parameter}`; it takes a text or a JSON schema for each parameter."
            raise ToolDefinitionError(msg)
    return single, None


def _names(function: Any) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (ValueError, TypeError, NameError):
        return frozenset()


def _checked_object(name: str, schema: Any) -> Schema:
    if not is_object(schema) or schema.get("type", "object") != "object":
        raise ToolDefinitionError(
            f"`schema` of `{name}` must be the JSON schema of an object, found {shown(schema)}.",
        )
    check_schema(f"`{name}`", schema)
    return schema


def check_schema(where: str, schema: Schema) -> None:
    """Raise `ToolDefinitionError` for a schema with unknown types, broken patterns or dangling references, or one too costly to check."""
    problem = work_problem(schema)
    if problem:
        raise ToolDefinitionError(f"The schema of {where} cannot be used: {problem}.")
    waiting: list[tuple[tuple[object, ...], Any]] = [((), schema)]
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, bool):
            continue
        problem = _problem(node, schema) if is_object(node) else f"is not a schema: {shown(node)}"
        if problem:
            raise ToolDefinitionError(
                f"The schema of {where} cannot be used: {'/'.join(map(str, path)) or 'it'} {problem}.",
            )
        waiting.extend(
            ((*path, key) if step is None else (*path, key, step), each)
            for key, step, each in subschemas(node)
        )


def _problem(node: Schema, root: Schema) -> str:
    kind = node.get("type")
    kinds: list[Any] = kind if is_list(kind) else [kind]
    if kind is not None and not all(isinstance(each, str) and each in _TYPES for each in kinds):
        return f"has the unknown type {shown(kind)}"
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        if not is_object(node.get(key, {})):
            return f"has {shown(node[key])} for `{key}`, which must be an object"
    required: Any = node.get("required", [])
    if not is_list(required) or not all(isinstance(each, str) for each in required):
        return f"has {shown(required)} for `required`, which must be a list of names"
    for key in ("enum", "anyOf", "oneOf", "allOf"):
        if not is_list(node.get(key, [])):
            return f"has {shown(node[key])} for `{key}`, which must be a list"
    for key in _NUMBERS:
        if isinstance(node.get(key, 0), bool) or not isinstance(node.get(key, 0), int | float):
            return f"has {shown(node[key])} for `{key}`, which must be a number"
    reference = node.get("$ref")
    if reference is not None and not (
        isinstance(reference, str) and find_pointer(reference, root) is not None
    ):
        return f"refers to {shown(reference)}, which is not in it"
    return _pattern_problem(
        [node["pattern"]] if "pattern" in node else [],
        node.get("patternProperties", {}),
    )


def _pattern_problem(patterns: list[Any], more: Mapping[str, Any]) -> str:
    broken = next((each for each in (*patterns, *more) if not is_pattern(each)), None)
    return (
        ""
        if broken is None
        else f"has the broken pattern {shown(broken)}: it must be a regular expression of ECMA 262"
    )


def _mapping(name: str, what: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not _is_mapping(value) or not all(isinstance(each, str) for each in value):
        raise ToolDefinitionError(
            f"`{what}` of `{name}` must be a dict by parameter name, found {shown(value)}.",
        )
    return dict(value)


def _is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def _texts(name: str, what: str, value: Any) -> dict[str, str]:
    found = _mapping(name, what, value)
    for parameter, text in found.items():
        if not isinstance(text, str):
            raise ToolDefinitionError(
                f"`{what}` of `{name}` says {shown(text)} of `{parameter}`, which must be text.",
            )
    return found


def _one_of(name: str, what: str, value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ToolDefinitionError(
            f"`{what}` of `{name}` must be one of {', '.join(map(repr, known))}, found {shown(value)}.",
        )
    return value


def _confirmation(name: str, said: Any) -> Any:
    """Check when a person is asked. A rule that denies is refused: called like a function of the arguments, it would let every call run."""
    if not callable(said):  # a misspelled word would ask before every call
        return (
            _one_of(name, "require_confirmation", said, ("destructive", "host"))
            if isinstance(said, str)
            else said
        )
    from ferrule.approval.policy import Rule  # late: few tools have a rule

    if isinstance(said, Rule) and said.verdict != "ask":
        msg = f"`require_confirmation` of `{name}` says when a person is asked: {said} belongs in a policy, `policy=Policy([...])`."
        raise ToolDefinitionError(msg)
    refuse_async(said, f"`require_confirmation` of `{name}`")
    return said


def _reconcile(name: str, reconcile: Any) -> Callable[..., Any] | None:
    if reconcile is not None and not callable(reconcile):
        raise ToolDefinitionError(
            f"`reconcile` of `{name}` is called with the call's key and its arguments; found {shown(reconcile)}.",
        )
    return reconcile


def _timeout(name: str, timeout_s: Any) -> float | None:
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        msg = f"`timeout_s` of `{name}` must be a number of seconds above 0, or None for no limit; found {shown(timeout_s)}."
        raise ToolDefinitionError(msg)
    return (
        float(timeout_s) if timeout_s <= TIMEOUT_MAX else None
    )  # no thread can wait for longer, nor needs to


def _check_agreement(made: ToolDefinition, found: FunctionSpec) -> None:
    """Raise if the options and the function contradict each other, so that no call could fit both."""
    if made.effect == "transactional" and not (
        found.context and made.func is not None and not inspect.iscoroutinefunction(made.func)
    ):
        msg = (
            f"`{made.name}` cannot be transactional: that takes a plain function (not an async one, which would hold the database while it "
            "waits) with a parameter annotated `Context`, which writes through its `db`."
        )
        raise ToolDefinitionError(msg)
    names = {each.name for each in found.parameters}
    offered = set(made.schema.get("properties", {})) if made.schema is not None else set(made.args)
    if found.context and found.context in {*offered, *made.arg_types, *made.arg_desc}:
        msg = f"`{found.context}` of `{made.name}` is a `Context`, which the run fills: a model never sees it, and it takes no description."
        raise ToolDefinitionError(msg)
    aliases = _aliases(found) if offered - names else {}
    said = {
        "schema" if made.schema is not None else "args": offered,
        "arg_types": set(made.arg_types),
        "arg_desc": set(made.arg_desc),
    }
    for what, mentioned in said.items():
        unknown = sorted(mentioned - names - aliases.keys())
        if unknown and found.extra is None:
            known = ", ".join(f"`{each}`" for each in sorted(names)) or "none"
            msg = f"`{what}` of `{made.name}` names {', '.join(f'`{each}`' for each in unknown)}; the function's parameters are: {known}."
            raise ToolDefinitionError(msg)
    if made.schema is not None:
        covered = offered | {aliases[each] for each in offered & aliases.keys()}
        missing = [
            each.name for each in found.parameters if each.name not in covered and is_required(each)
        ]
        if (
            missing
            and made.schema.get("additionalProperties") in (None, False)
            and not names_elsewhere(made.schema)
        ):
            msg = f"The schema of `{made.name}` leaves out {', '.join(f'`{each}`' for each in missing)}, which the function requires."
            raise ToolDefinitionError(msg)


def _aliases(found: FunctionSpec) -> dict[str, str]:
    fields = {each.name: field_of(each) for each in found.parameters}
    return {
        field.validation_alias: name
        for name, field in fields.items()
        if isinstance(field.validation_alias, str)
    }


def _add_typed_extras(
    found: FunctionSpec,
    single: Mapping[str, Any],
    types: Mapping[str, Any],
) -> FunctionSpec:
    """Add the names in `arg_types` that `**kwargs` takes, as parameters like any other."""
    if found.extra is None:
        return found
    known = {each.name for each in found.parameters}
    defaults = {
        name: said["default"]
        for name, said in single.items()
        if is_object(said) and "default" in said
    }
    more = [
        Parameter(name, kind, defaults.get(name, PydanticUndefined))
        for name, kind in types.items()
        if name not in known
    ]
    return replace(found, parameters=(*found.parameters, *more))
