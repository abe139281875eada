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
    """Whether a first parameter named `self` or `caller` is left out, because the caller fills it."""
    context: str = ""
    """The parameter that takes a `Context`, also left out; empty if there is none."""
    context_at: int | None = None
    """Its position among the arguments, if it is positional-only."""
    context_hint: Any = None
    """Its annotation, as written in the source."""


def inspect_function(
    function: Callable[..., Any],
    types_given: Mapping[str, Any],
    *,
    with_caller: bool = False,
    readable: bool = True,
) -> FunctionSpec:
    """Read a callable; `types_given` replace its annotations.

    Raises `ToolDefinitionError` for an unknown type, and for a signature that cannot be read. With
    `readable=False`, such a signature counts as `**kwargs` instead.
    """
    name, doc = name_of(function), doc_of(function)
    try:
        signature = inspect.signature(_bind_classmethod(function))
    except (ValueError, TypeError, NameError) as error:
        if not readable:
            return FunctionSpec(name, doc, (), extra=Any)
        msg = (
            f"`{name or shown(function)}` cannot become a tool: its signature cannot be read ({error}). "
            "Wrap it in a function of your own, or give `schema=`."
        )
        raise ToolDefinitionError(msg) from error
    found, bound = list(signature.parameters.values()), bound_names(function)
    caller = (
        with_caller
        and bool(found)
        and found[0].name in {"self", "caller"}
        and found[0].kind in _BY_POSITION
    )
    caller = caller and not is_context_annotation(function, found[0].annotation)
    if caller:
        del found[0]
    found = [each for each in found if each.name not in bound]
    annotations = {
        each.name: each.annotation for each in found if each.annotation is not each.empty
    }
    context = next(
        (each for each, hint in annotations.items() if is_context_annotation(function, hint)),
        "",
    )
    hints = _resolve_annotations(
        function,
        name,
        {each: hint for each, hint in annotations.items() if each != context},
        types_given,
    )
    context = context or next((each for each, hint in hints.items() if find_context(hint)), "")
    context_at = next(
        (
            k
            for k, each in enumerate(found)
            if each.name == context and each.kind is each.POSITIONAL_ONLY
        ),
        None,
    )
    found = [each for each in found if each.name != context]
    parameters: list[Parameter] = []
    extra: Any = None
    for each in found:
        if each.kind is each.VAR_KEYWORD:
            more, extra = _unpack_options(hints.get(each.name, Any))
            parameters += more
        elif each.kind is not each.VAR_POSITIONAL:
            default = PydanticUndefined if each.default is each.empty else each.default
            hint = hints.get(each.name, _type_of_default(default))
            parameters.append(Parameter(each.name, hint, default))
    order = tuple(each.name for each in found if each.kind in _BY_POSITION)
    dispatched = (
        order[:1] if hasattr(function, "dispatch") else ()
    )  # `singledispatch` needs its first argument by position
    only = tuple(
        each.name for each in found if each.kind is each.POSITIONAL_ONLY or each.name in dispatched
    )
    return FunctionSpec(
        name,
        doc,
        tuple(parameters),
        order,
        only,
        extra,
        caller,
        context,
        context_at,
        annotations.get(context),
    )


def name_of(function: Any) -> str:
    """The name of a callable; empty for a lambda."""
    inner = _inner(function)
    name = getattr(inner, "__name__", None) or type(inner).__name__
    return "" if name == "<lambda>" else str(name)


def doc_of(function: Any) -> str:
    """The docstring, whole and dedented."""
    inner = _inner(function)
    if isinstance(inner, type):
        return _doc_of_class(inner)
    doc = _inherited_doc(inner) if inspect.ismethod(inner) else inspect.getdoc(inner) or ""
    if inspect.isroutine(inner):
        return doc
    kind = cast("type[Any]", type(inner))
    is_own = doc and doc != inspect.getdoc(kind)
    return doc if is_own else _first_docstring(kind, "__call__") or _doc_of_class(kind)


def _doc_of_class(kind: type[Any]) -> str:
    doc = inspect.getdoc(kind) or ""
    holder = next((each for each in kind.__mro__ if vars(each).get("__doc__")), kind)
    # `dataclass` replaces a missing docstring with the signature; the docstrings of `object`,
    # `dict` or `BaseModel` describe themselves.
    is_foreign = holder is not kind and holder.__module__.partition(".")[0] in _LIBRARIES
    return "" if is_foreign or doc.startswith(f"{kind.__name__}(") else doc


def _inherited_doc(method: types.MethodType) -> str:
    # `inspect.getdoc` would look the method up in the class, and a tool there would bind itself
    # once more.
    owner: type[Any] = (
        method.__self__ if isinstance(method.__self__, type) else type(method.__self__)
    )
    return (
        inspect.cleandoc(method.__doc__)
        if isinstance(method.__doc__, str)
        else _first_docstring(owner, method.__name__)
    )


def _first_docstring(owner: type[Any], name: str) -> str:
    """The first docstring of a method in a class and its bases. `inspect.getdoc` finds one for every `__call__`."""
    # Classes without the method are skipped: None, the default of `get`, has a docstring of its own
    # since Python 3.13.
    found: list[Any] = [
        getattr(vars(each)[name], "__doc__", None) for each in owner.__mro__ if name in vars(each)
    ]
    return next((inspect.cleandoc(each) for each in found if isinstance(each, str)), "")


def parameter_docs(doc: str) -> dict[str, str]:
    """The description of each parameter in a docstring (Google, NumPy or Sphinx), by name."""
    if not any(word in doc.lower() for word in ("arg", "param")) or not re.search(
        _DOCUMENTS_PARAMETERS,
        doc,
    ):
        return {}
    import docstring_parser

    try:
        parsed = docstring_parser.parse(doc)
    except (docstring_parser.ParseError, IndexError):  # the second: a line that begins with `: :`
        return {}
    # `x, y : int` describes both.
    said = [
        (name.strip(" *"), each.description)
        for each in parsed.params
        for name in each.arg_name.split(",")
    ]
    return {name: " ".join(text.split()) for name, text in said if text}


def field_of(parameter: Parameter) -> FieldInfo:
    """A parameter's annotation and default as one pydantic field."""
    if isinstance(parameter.default, FieldInfo):
        return FieldInfo.from_annotated_attribute(parameter.annotation, parameter.default)
    return FieldInfo.from_annotation(parameter.annotation)


def is_required(parameter: Parameter) -> bool:
    """Whether the function cannot be called without the parameter."""
    default = parameter.default
    if parameter.may_be_missing or (
        default is not PydanticUndefined and not isinstance(default, FieldInfo)
    ):
        return False
    return field_of(parameter).is_required()


def description_in(field: FieldInfo) -> str | None:
    """The description in a field: its own, a text in the metadata, or a `Doc`."""
    if field.description is not None:
        return field.description
    texts = (
        each if isinstance(each, str) else getattr(each, "documentation", None)
        for each in field.metadata
    )
    return next((text for text in texts if isinstance(text, str)), None)


# -- annotations
# --------------------------------------------------------------------------------------------------

_QUALIFIERS = (typing.Required, typing.NotRequired, ReadOnly)
_WRAPPINGS = (functools.partial, staticmethod, classmethod)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _inner(function: Any) -> Any:
    while isinstance(function, _WRAPPINGS):
        function = (
            cast("Any", function).func
            if isinstance(function, functools.partial)
            else cast("Any", function).__func__
        )
    return function


def _bind_classmethod(function: Any) -> Any:
    # A `classmethod` in the body of its class cannot be called yet. Bound to any class, it shows
    # its signature.
    return function.__get__(None, object) if isinstance(function, classmethod) else function  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def bound_names(function: Any) -> set[str]:
    """The parameters that a `partial` binds by name."""
    bound: set[str] = set()
    while isinstance(function, functools.partial):
        partial = cast("functools.partial[Any]", function)
        bound |= partial.keywords.keys()
        function = partial.func
    return bound


def _type_of_default(default: Any) -> Any:
    value = default.default if isinstance(default, FieldInfo) else default
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    return kind if kind in _PLAIN else Any


def find_context(hint: Any) -> Any:
    """The `Context` or `Context[Deps]` in a type: the type itself, or inside `Context | None` or `Annotated`. None if there is none."""
    if typing.get_origin(hint) in {typing.Annotated, typing.Union, types.UnionType}:
        return next(
            (found for each in typing.get_args(hint) if (found := find_context(each)) is not None),
            None,
        )
    return hint if hint is Context or typing.get_origin(hint) is Context else None


def is_context_annotation(function: Any, hint: Any) -> bool:
    """Whether an annotation is a context type, or text that starts with a name of `Context`; the rest may not be importable here."""
    if not isinstance(hint, str):
        return find_context(hint) is not None
    if "Context" not in hint:
        return False
    first, *more = re.split(r"[^\w.]", hint.strip(" '\""), maxsplit=1)[0].split(".")
    place: Any = next(
        (space[first] for space in reversed(_namespaces(function)) if first in space),
        None,
    )
    for part in more:
        place = getattr(place, part, None)
    return place is Context


def _unpack_options(hint: Any) -> tuple[list[Parameter], Any]:
    """The parameters of `**kwargs: Unpack[Options]` (PEP 692), or else the type of further arguments."""
    inside = typing.get_args(hint)
    if not inside or not is_typeddict(inside[0]):
        return [], hint
    options: Any = inside[0]
    hints = get_type_hints(options, include_extras=True)
    more: list[Parameter] = []
    for name, each in hints.items():
        kept, is_needed = _strip_qualifiers(each)
        # `__required_keys__` does not evaluate annotations that are text: for them it reflects only
        # the class's `total`.
        needed = is_needed if is_needed is not None else name in options.__required_keys__
        more.append(Parameter(name, kept, may_be_missing=not needed))
    return more, None


def _strip_qualifiers(hint: Any) -> tuple[Any, bool | None]:
    """The type of a `TypedDict` key without `Required`, `NotRequired` and `ReadOnly`, and whether these make the key required."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        inside, *metadata = typing.get_args(hint)
        kept, is_needed = _strip_qualifiers(inside)
        return (typing.Annotated[(kept, *metadata)] if kept is not inside else hint), is_needed
    if origin not in _QUALIFIERS:
        return hint, None
    kept, is_needed = _strip_qualifiers(typing.get_args(hint)[0])
    return kept, is_needed if origin is ReadOnly else origin is typing.Required


def _resolve_annotations(
    function: Any,
    name: str,
    annotations: dict[str, Any],
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """Every annotation as a type; the given types replace annotations."""
    everything = {
        **{each: hint for each, hint in annotations.items() if each not in given},
        **given,
    }
    if not any(map(has_text, everything.values())):
        return everything
    spaces = _namespaces(function)
    try:
        return _evaluate(everything, spaces)
    except _UNREADABLE:
        problems: list[str] = []
        for each, hint in everything.items():
            try:
                _evaluate({each: hint}, spaces)
            except _UNREADABLE as error:
                problems.append(
                    f"`{each}: {hint if isinstance(hint, str) else shown(hint)}` ({error})",
                )
        which = name or shown(function)
        msg = (
            f"`{which}` cannot become a tool: the type of {', '.join(problems)} is not known in the module of the function. "
            "Import or define it at module level (not inside a function, and not only for type checking), or give `arg_types={...}`."
        )
        raise ToolDefinitionError(msg) from None


def resolve_annotation(function: Any, hint: Any) -> Any:
    """An annotation as a type, or as written if a name in it is unknown."""
    try:
        return _evaluate({"": hint}, _namespaces(function))[""] if has_text(hint) else hint
    except _UNREADABLE:
        return hint


def return_type(function: Any) -> Any:
    """The return annotation of a callable: `None` stays None, and `inspect.Parameter.empty` means that there is none."""
    inner = _inner(function)
    written = inner if inspect.isroutine(inner) else type(inner).__call__
    return resolve_annotation(
        written,
        getattr(written, "__annotations__", {}).get("return", inspect.Parameter.empty),
    )


_UNREADABLE = (NameError, SyntaxError, AttributeError, TypeError, ValueError)


def _evaluate(
    annotations: dict[str, Any],
    spaces: tuple[dict[str, Any], dict[str, Any]],
) -> dict[str, Any]:
    holder: Any = types.SimpleNamespace(__annotations__=annotations)
    return get_type_hints(holder, *spaces, include_extras=True)


def _namespaces(function: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The namespaces of a callable's annotations: its module, and its closure with its type parameters (`def f[T]`)."""
    inner = _inner(function)
    if isinstance(inner, type):
        module = sys.modules.get(inner.__module__)
        return dict[str, Any](vars(module)) if module else dict[str, Any](), _type_parameters(
            inner,
        ) | vars(inner)
    owner = getattr(inner, "__self__", None)
    if not inspect.isroutine(inner) and not hasattr(inner, "__wrapped__"):
        owner, inner = inner, type(inner).__call__
    inner = inspect.unwrap(getattr(inner, "__func__", inner))
    names = getattr(getattr(inner, "__code__", None), "co_freevars", ())
    cells = getattr(inner, "__closure__", None) or ()
    closed: dict[str, Any] = {
        name: cell.cell_contents
        for name, cell in zip(names, cells, strict=True)
        if cell != types.CellType()
    }
    module_names: dict[str, Any] = getattr(inner, "__globals__", {})
    return module_names, _type_parameters(type(owner)) | closed | _type_parameters(inner)


def _type_parameters(generic: Any) -> dict[str, Any]:
    return {each.__name__: each for each in getattr(generic, "__type_params__", ())}
