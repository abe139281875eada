"""Read a callable: its name, its documentation, its parameters.

The signature and its types are read when a tool is made, so that errors in them appear there;
descriptions of single parameters are read from the docstring later.

`*args` is ignored, since a model passes arguments by name. `**kwargs` allows further names. A
parameter that a `partial` binds by name, or that is annotated `Context`, is not offered to the
model. A text in `Annotated[int, "the page"]` is a description, as is a `Doc`.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from typing import Any, cast

from msgspec import Struct
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typing_extensions import ReadOnly, get_type_hints, is_typeddict

from ferrule.errors import ToolDefinitionError, shown
from ferrule.values.calls.context import Context
from ferrule.values.signatures.fields import has_text

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_DOCUMENTS_PARAMETERS = (
    r"(?mi)^[ \t]*((keyword )?arg(ument)?s|(other )?param(eter)?s)[ \t]*+:?[ \t\r]*+$|[:@]param\b"
)
"""A heading of Google's or NumPy's style, or a field of Sphinx's."""
_PLAIN = (bool, int, float, str, list, dict)
_LIBRARIES = sys.stdlib_module_names | {"pydantic", "pydantic_settings", "typing_extensions"}


class Parameter(Struct, frozen=True):
    """One parameter that a model may fill."""

    name: str
    annotation: Any
    """Its type with metadata, never as text; `Any` if unknown."""
    default: Any = PydanticUndefined
    """The default, the `FieldInfo` of the signature, or `PydanticUndefined`."""
    may_be_missing: bool = False
    """Whether it is optional without a default (a key of an unpacked `TypedDict`)."""


class FunctionSpec(Struct, frozen=True):
    """Name, documentation and parameters of a callable."""

    name: str
    """Empty for a lambda."""
    doc: str
    """The whole docstring, dedented."""
    parameters: tuple[Parameter, ...]
    order: tuple[str, ...] = ()
    """The parameters that Python accepts by position, in that order."""
    positional_only: tuple[str, ...] = ()
    """The positional-only ones among them."""
    extra: Any = None
    """The type of `**kwargs`; None without `**kwargs`."""
    caller: bool = False
    """Whether a first parameter named `self` or `caller` is left out: the caller fills it."""
    context: str = ""
    """The parameter that takes a `Context`, also left out; empty if there is none."""
    context_at: int | None = None
    """Its position among the arguments, if it is positional-only."""
    context_hint: Any = None
    """Its annotation, as written in the source."""


def inspect_function(
    function: Callable[..., Any],
    arg_types: Mapping[str, Any],
    *,
    with_caller: bool = False,
    readable: bool = True,
) -> FunctionSpec:
    """Read a callable; `arg_types` replace its annotations.

    Raises `ToolDefinitionError` for an unknown type, and for a signature that cannot be read. With
    `readable=False`, such a signature counts as `**kwargs` instead.
    """
    name, doc = name_of(function), doc_of(function)
    try:
        signature = inspect.signature(_bind_classmethod(function))
    except (ValueError, TypeError, NameError) as error:
        if not readable:
            return FunctionSpec(name, doc, (), extra=Any)
        raise ToolDefinitionError(
            f"`{name or shown(function)}` cannot become a tool: its signature cannot be read "
            f"({error}). Wrap it in a function of your own, or give `schema=`."
        ) from error
    parameters = list(signature.parameters.values())
    has_caller = with_caller and _starts_with_caller(function, parameters)
    if has_caller:
        del parameters[0]
    bound = bound_names(function)
    parameters = [parameter for parameter in parameters if parameter.name not in bound]
    for parameter in parameters:
        is_typed = parameter.annotation is not parameter.empty or parameter.name in arg_types
        if parameter.name == "ctx" and not is_typed and readable:
            raise ToolDefinitionError(
                f"`{name}`: `ctx` has no type. If it is the context of the run, which the model "
                "does not give, write `ctx: Context`; else give it the type of an argument."
            )
    annotations = {
        parameter.name: parameter.annotation
        for parameter in parameters
        if parameter.annotation is not parameter.empty
    }
    # The annotation of the context may not be importable here, so it is left out of the types
    # that must be known. An alias of `Context` shows only when the types are known.
    context = _first_name(annotations, lambda hint: is_context_annotation(function, hint))
    other_annotations = {name: hint for name, hint in annotations.items() if name != context}
    hints = _resolve_annotations(function, name, other_annotations, arg_types)
    context = context or _first_name(hints, lambda hint: find_context(hint) is not None)
    context_at = None
    for position, parameter in enumerate(parameters):
        if parameter.name == context and parameter.kind is parameter.POSITIONAL_ONLY:
            context_at = position
    parameters = [parameter for parameter in parameters if parameter.name != context]
    offered, extra = _offered_parameters(parameters, hints)
    # A wrapper takes `*args` with `**kwargs`, and passes on what comes by name. Alone, `*values`
    # would stay empty in each call, and nothing would say so.
    if readable and extra is None:
        for parameter in parameters:
            if parameter.kind is parameter.VAR_POSITIONAL:
                raise ToolDefinitionError(
                    f"`{name}` cannot become a tool: a model gives arguments by name, so "
                    f"`*{parameter.name}` would always be empty. Take a list: "
                    f"`{parameter.name}: list[...]`."
                )
    order = tuple(parameter.name for parameter in parameters if parameter.kind in _BY_POSITION)
    # `singledispatch` needs its first argument by position.
    dispatched = ()
    if hasattr(function, "dispatch"):
        dispatched = order[:1]
    positional_only = tuple(
        parameter.name
        for parameter in parameters
        if parameter.kind is parameter.POSITIONAL_ONLY or parameter.name in dispatched
    )
    return FunctionSpec(
        name,
        doc,
        offered,
        order,
        positional_only,
        extra,
        has_caller,
        context,
        context_at,
        annotations.get(context),
    )


def _starts_with_caller(function: Any, parameters: list[inspect.Parameter]) -> bool:
    if not parameters:
        return False
    first = parameters[0]
    if first.name not in {"self", "caller"} or first.kind not in _BY_POSITION:
        return False
    return not is_context_annotation(function, first.annotation)


def _first_name(hints: Mapping[str, Any], condition: Callable[[Any], bool]) -> str:
    """The first parameter whose annotation meets a condition; empty if there is none."""
    return next((name for name, hint in hints.items() if condition(hint)), "")


def _offered_parameters(
    parameters: list[inspect.Parameter], hints: Mapping[str, Any]
) -> tuple[tuple[Parameter, ...], Any]:
    """The parameters that a model may fill, and the type of further arguments."""
    offered: list[Parameter] = []
    extra: Any = None
    for parameter in parameters:
        name = parameter.name
        if parameter.kind is parameter.VAR_KEYWORD:
            options, extra = _unpack_options(hints.get(name, Any))
            offered += options
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            default = parameter.default
            if default is parameter.empty:
                default = PydanticUndefined
            hint = hints.get(name, _type_of_default(default))
            offered.append(Parameter(name, hint, default))
    return tuple(offered), extra


def name_of(function: Any) -> str:
    """The name of a callable; empty for a lambda."""
    inner = _inner(function)
    name = getattr(inner, "__name__", None) or type(inner).__name__
    if name == "<lambda>":
        return ""
    return str(name)


def doc_of(function: Any) -> str:
    """The docstring, whole and dedented."""
    inner = _inner(function)
    if isinstance(inner, type):
        return _doc_of_class(inner)
    if inspect.ismethod(inner):
        doc = _inherited_doc(inner)
    else:
        doc = inspect.getdoc(inner) or ""
    if inspect.isroutine(inner):
        return doc
    # An object: its own docstring, not that of its class; else that of `__call__`.
    kind = cast("type[Any]", type(inner))
    if doc and doc != inspect.getdoc(kind):
        return doc
    return _first_docstring(kind, "__call__") or _doc_of_class(kind)


def _doc_of_class(kind: type[Any]) -> str:
    doc = inspect.getdoc(kind) or ""
    holder = next((base for base in kind.__mro__ if vars(base).get("__doc__")), kind)
    # The docstrings of `object`, `dict` or `BaseModel` describe themselves, not a tool.
    if holder is not kind and holder.__module__.partition(".")[0] in _LIBRARIES:
        return ""
    # `dataclass` replaces a missing docstring with the signature.
    if doc.startswith(f"{kind.__name__}("):
        return ""
    return doc


def _inherited_doc(method: types.MethodType) -> str:
    if isinstance(method.__doc__, str):
        return inspect.cleandoc(method.__doc__)
    # `inspect.getdoc` would look the method up in the class, and a tool there would bind itself
    # once more.
    owner: Any = method.__self__
    if not isinstance(owner, type):  # a method of an instance, not of a class
        owner = cast("Any", type(owner))
    return _first_docstring(owner, method.__name__)


def _first_docstring(owner: type[Any], name: str) -> str:
    """The first docstring of a method in a class and its bases.

    `inspect.getdoc` finds one for every `__call__`. Classes without the method are skipped: None,
    the default of `get`, has a docstring of its own since Python 3.13.
    """
    for base in owner.__mro__:
        if name in vars(base):
            doc = getattr(vars(base)[name], "__doc__", None)
            if isinstance(doc, str):
                return inspect.cleandoc(doc)
    return ""


def parameter_docs(doc: str) -> dict[str, str]:
    """The description of each parameter in a docstring (Google, NumPy or Sphinx), by name."""
    if not any(word in doc.lower() for word in ("arg", "param")):
        return {}
    if not re.search(_DOCUMENTS_PARAMETERS, doc):
        return {}
    import docstring_parser  # late: most docstrings document no parameters

    try:
        parsed = docstring_parser.parse(doc)
    except (docstring_parser.ParseError, IndexError):  # the second: a line that begins with `: :`
        return {}
    descriptions: dict[str, str] = {}
    for param in parsed.params:
        if param.description:
            text = " ".join(param.description.split())
            for name in param.arg_name.split(","):  # `x, y : int` describes both
                descriptions[name.strip(" *")] = text
    return descriptions


def field_of(parameter: Parameter) -> FieldInfo:
    """A parameter's annotation and default as one pydantic field."""
    if isinstance(parameter.default, FieldInfo):
        return FieldInfo.from_annotated_attribute(parameter.annotation, parameter.default)
    return FieldInfo.from_annotation(parameter.annotation)


def is_required(parameter: Parameter) -> bool:
    """Whether the function cannot be called without the parameter."""
    default = parameter.default
    if parameter.may_be_missing:
        return False
    if default is not PydanticUndefined and not isinstance(default, FieldInfo):
        return False
    return field_of(parameter).is_required()


def description_in(field: FieldInfo) -> str | None:
    """The description in a field: its own, a text in the metadata, or a `Doc`."""
    if field.description is not None:
        return field.description
    for item in field.metadata:
        text = item
        if not isinstance(item, str):
            text = getattr(item, "documentation", None)
        if isinstance(text, str):
            return text
    return None


# -- annotations

_QUALIFIERS = (typing.Required, typing.NotRequired, ReadOnly)
_WRAPPINGS = (functools.partial, staticmethod, classmethod)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _inner(function: Any) -> Any:
    """The function inside partials, static methods and class methods."""
    while isinstance(function, _WRAPPINGS):
        if isinstance(function, functools.partial):
            function = cast("Any", function).func
        else:
            function = cast("Any", function).__func__
    return function


def _bind_classmethod(function: Any) -> Any:
    """The function; a class method bound to any class, so that it shows its signature.

    In the body of its class, a `classmethod` cannot be called yet.
    """
    if not isinstance(function, classmethod):
        return function
    return cast("Any", function).__get__(None, object)


def bound_names(function: Any) -> set[str]:
    """The parameters that a `partial` binds by name."""
    bound: set[str] = set()
    while isinstance(function, functools.partial):
        partial = cast("functools.partial[Any]", function)
        bound |= partial.keywords.keys()
        function = partial.func
    return bound


def _type_of_default(default: Any) -> Any:
    if isinstance(default, FieldInfo):
        value = default.default
    else:
        value = default
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    return kind if kind in _PLAIN else Any


def find_context(hint: Any) -> Any:
    """The `Context` or `Context[Deps]` in a type; None if there is none.

    It is the type itself, or inside `Context | None` or `Annotated`.
    """
    origin = typing.get_origin(hint)
    if hint is Context or origin is Context:
        return hint
    if origin in {typing.Annotated, typing.Union, types.UnionType}:
        for member in typing.get_args(hint):
            context = find_context(member)
            if context is not None:
                return context
    return None


def is_context_annotation(function: Any, hint: Any) -> bool:
    """Whether an annotation is a context type, or text that starts with a name of `Context`.

    The rest of the text may not be importable here.
    """
    if not isinstance(hint, str):
        return find_context(hint) is not None
    if "Context" not in hint:
        return False
    dotted_name = re.split(r"[^\w.]", hint.strip(" '\""), maxsplit=1)[0]
    first, *more = dotted_name.split(".")
    value: Any = None
    for namespace in reversed(_namespaces(function)):
        if first in namespace:
            value = namespace[first]
            break
    for part in more:
        value = getattr(value, part, None)
    return value is Context


def _unpack_options(hint: Any) -> tuple[list[Parameter], Any]:
    """The parameters of `**kwargs: Unpack[Options]` (PEP 692), or the type of further arguments."""
    arguments = typing.get_args(hint)
    if not arguments or not is_typeddict(arguments[0]):
        return [], hint
    options: Any = arguments[0]
    parameters: list[Parameter] = []
    for name, qualified in get_type_hints(options, include_extras=True).items():
        kind, is_required_here = _strip_qualifiers(qualified)
        # `__required_keys__` does not evaluate annotations that are text: for them it reflects only
        # the class's `total`.
        if is_required_here is None:
            is_required_here = name in options.__required_keys__
        parameters.append(Parameter(name, kind, may_be_missing=not is_required_here))
    return parameters, None


def _strip_qualifiers(hint: Any) -> tuple[Any, bool | None]:
    """The type of a `TypedDict` key without `Required`, `NotRequired` and `ReadOnly`.

    Also returns whether these make the key required; None if they do not say.
    """
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        inner, *metadata = typing.get_args(hint)
        kind, is_required_here = _strip_qualifiers(inner)
        if kind is not inner:
            hint = typing.Annotated[(kind, *metadata)]
        return hint, is_required_here
    if origin not in _QUALIFIERS:
        return hint, None
    kind, is_required_here = _strip_qualifiers(typing.get_args(hint)[0])
    if origin is ReadOnly:
        return kind, is_required_here
    return kind, origin is typing.Required


def _resolve_annotations(
    function: Any, function_name: str, annotations: dict[str, Any], arg_types: Mapping[str, Any]
) -> dict[str, Any]:
    """Every annotation as a type; `arg_types` replace annotations."""
    hints = {name: hint for name, hint in annotations.items() if name not in arg_types}
    hints.update(arg_types)
    if not any(map(has_text, hints.values())):
        return hints
    namespaces = _namespaces(function)
    try:
        return _evaluate(hints, namespaces)
    except _UNREADABLE:
        problems = _unreadable_hints(hints, namespaces)
        raise ToolDefinitionError(
            f"`{function_name or shown(function)}` cannot become a tool: the type of "
            f"{', '.join(problems)} is not known in the module of the function. Import or define "
            "it at module level (not inside a function, and not only for type checking), or give "
            "`arg_types={...}`."
        ) from None


def _unreadable_hints(
    hints: Mapping[str, Any], namespaces: tuple[dict[str, Any], dict[str, Any]]
) -> list[str]:
    problems: list[str] = []
    for name, hint in hints.items():
        try:
            _evaluate({name: hint}, namespaces)
        except _UNREADABLE as error:
            if isinstance(hint, str):
                written = hint
            else:
                written = shown(hint)
            problems.append(f"`{name}: {written}` ({error})")
    return problems


def resolve_annotation(function: Any, hint: Any) -> Any:
    """An annotation as a type, or as written if a name in it is unknown."""
    if not has_text(hint):
        return hint
    try:
        return _evaluate({"": hint}, _namespaces(function))[""]
    except _UNREADABLE:
        return hint


def return_type(function: Any) -> Any:
    """The return annotation of a callable.

    `None` stays None, and `inspect.Parameter.empty` means that there is none.
    """
    inner = _inner(function)
    if inspect.isroutine(inner):
        written = inner
    else:
        written = type(inner).__call__
    return resolve_annotation(
        written, getattr(written, "__annotations__", {}).get("return", inspect.Parameter.empty)
    )


_UNREADABLE = (NameError, SyntaxError, AttributeError, TypeError, ValueError)


def _evaluate(
    annotations: dict[str, Any], spaces: tuple[dict[str, Any], dict[str, Any]]
) -> dict[str, Any]:
    holder: Any = types.SimpleNamespace(__annotations__=annotations)
    return get_type_hints(holder, *spaces, include_extras=True)


def _namespaces(function: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The namespaces of a callable's annotations.

    These are its module, and its closure with its type parameters (`def f[T]`).
    """
    inner = _inner(function)
    if isinstance(inner, type):
        module = sys.modules.get(inner.__module__)
        module_names: dict[str, Any] = dict(vars(module)) if module else {}
        return module_names, _type_parameters(inner) | vars(inner)
    owner = getattr(inner, "__self__", None)
    if not inspect.isroutine(inner) and not hasattr(inner, "__wrapped__"):
        owner, inner = inner, type(inner).__call__
    inner = inspect.unwrap(getattr(inner, "__func__", inner))
    names = getattr(getattr(inner, "__code__", None), "co_freevars", ())
    cells = getattr(inner, "__closure__", None) or ()
    closure: dict[str, Any] = {
        name: cell.cell_contents
        for name, cell in zip(names, cells, strict=True)
        if cell != types.CellType()
    }
    globals_of_function: dict[str, Any] = getattr(inner, "__globals__", {})
    local_names = _type_parameters(type(owner)) | closure | _type_parameters(inner)
    return globals_of_function, local_names


def _type_parameters(generic: Any) -> dict[str, Any]:
    parameters = getattr(generic, "__type_params__", ())
    return {parameter.__name__: parameter for parameter in parameters}
