"""Signatures: what a program takes, what it gives, and what the model is told about both.

A signature is a class, `class QA(Signature)` with fields, or made of text, `Signature("question -> answer: int")`; the methods that change
one give a new class. It is an ordinary pydantic model as well, so that `QA.model_construct(**outputs)` has typed attributes. All that is
derived of the fields (validators, schema, an adapter's rendered prompt) is made once and kept with the class.
"""

# ruff: noqa: N805  the methods of a metaclass are handed a class

from __future__ import annotations

import copyreg
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, overload

from pydantic import BaseModel, ConfigDict, PydanticUserError, create_model
from pydantic.fields import FieldInfo

from ferrule.errors import SignatureError, shown
from ferrule.values.signatures.class_body import OUTDATED, Absent, prepare, refuse_name, written
from ferrule.values.signatures.compiled import Plan, planned
from ferrule.values.signatures.fields import InputField, OutputField, description_of, is_untyped, renewed, role_of

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass

    from ferrule.values.signatures.output_checks import OutputCheck
else:
    ModelMetaclass = type(BaseModel)

__all__ = ["InputField", "OutputField", "Signature", "SignatureType", "as_signature"]

T = TypeVar("T")


if TYPE_CHECKING:
    _told = property
else:

    class _told(property):  # noqa: N801  used like `property`
        """A property of signatures that hides while a class is made, so that fields may have its name."""

        def __get__(self, signature: Any, kind: Any = None) -> Any:
            if signature is None or "__plan__" in signature.__dict__:
                return super().__get__(signature, kind)
            try:
                return signature.__dict__[self.fget.__name__]
            except KeyError:
                raise AttributeError from None


class SignatureType(ModelMetaclass):
    """The class of signatures: what can be asked of one, and how others are made of it."""

    __plan__: Plan | None

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, derived: tuple[str | None] | None = None, **kwargs: Any
    ) -> Any:
        """Make a signature of a class body; raises `SignatureError` that names the field and the reason.

        `derived` holds the instructions of one that is made of another; its outputs may be missing.
        """
        is_root = not any(isinstance(base, SignatureType) for base in bases)
        if not is_root:
            above = [base for base in bases if isinstance(base, SignatureType) and base is not Signature]
            prepare(name, namespace, taken=_METHODS | _PROPERTIES if above else _METHODS)
        try:
            made: Any = super().__new__(cls, name, bases, namespace, **kwargs)
            if not made.__pydantic_fields_complete__:
                # Types that are local to a function, written as text: pydantic knows where its models look for them.
                made.model_rebuild(raise_errors=False, _parent_namespace_depth=3)
        except PydanticUserError as error:
            msg = f"`{name}` is no signature: {str(error).splitlines()[0]}"
            raise SignatureError(msg) from error
        made.__instructions__ = derived[0] if derived else None if is_root else written(bases, namespace)
        made.__plan__ = None
        if made.__pydantic_fields_complete__ and not is_root:
            made.__plan__ = planned(made)
            if made.__plan__.inputs and not made.__plan__.outputs and not derived:
                msg = f"`{name}` has no outputs. Give it at least one `OutputField()`."
                raise SignatureError(msg)
        return made

    @overload
    def __call__(
        cls,
        signature: str | Mapping[str, Any],
        instructions: str | None = None,
        *,
        custom_types: Mapping[str, Any] | None = None,
    ) -> type[Signature]: ...
    @overload
    def __call__(cls: type[T], **fields: Any) -> T: ...  # pyright: ignore[reportInconsistentOverload]
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """`Signature("a -> b")` makes a signature; a signature itself makes values of its fields."""
        if cls is Signature and (args or "signature" in kwargs):
            return _from_form(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    # -- what it says ---------------------------------------------------------------------------------------------

    @_told
    def plan(cls) -> Plan:
        """All that is derived of the fields."""
        found = cls.__plan__
        if found is None:
            if cls is Signature:
                raise AttributeError  # the root has no fields; so fields may be called `instructions` or `signature`
            found = cls.__plan__ = planned(cls)
        return found

    @_told
    def instructions(cls) -> str:
        """What the model is told to do."""
        return cls.plan.instructions

    @_told
    def input_fields(cls) -> dict[str, FieldInfo]:
        """The inputs by name, in order; not to be changed."""
        return (cls.__plan__ or cls.plan).inputs

    @_told
    def output_fields(cls) -> dict[str, FieldInfo]:
        """The outputs by name, in order; not to be changed."""
        return (cls.__plan__ or cls.plan).outputs

    @_told
    def fields(cls) -> dict[str, FieldInfo]:
        """All fields by name, inputs first."""
        return {**cls.plan.inputs, **cls.plan.outputs}

    @_told
    def signature(cls) -> str:
        """The names: `"question, k -> answer"`."""
        return f"{', '.join(cls.plan.inputs)} -> {', '.join(cls.plan.outputs)}"

    @_told
    def defaults(cls) -> dict[str, Any]:
        """The inputs that may be left out, with their values."""
        return cls.plan.defaults()

    # -- what it checks -------------------------------------------------------------------------------------------

    def check_inputs(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs as their types, defaults filled in. Raises `InputError` that names all unknown, missing and ill-typed ones at once."""
        return (cls.__plan__ or cls.plan).check_inputs(cls.__name__, given)

    def check_output(cls, name: str, value: Any, *, is_value: bool = False) -> Any:
        """One output as its type, from a value or a text (`is_value`: a string is a value first). Raises `ValueError` a model can read."""
        check = (cls.__plan__ or cls.plan).output_checks.get(name)
        if check is None:
            msg = f"there is no output `{name}`; the outputs are: {', '.join(cls.plan.outputs) or 'none'}"
            raise ValueError(msg)
        return check(value, is_value=is_value)

    def output_schema(cls) -> dict[str, Any]:
        """The JSON Schema of an object that holds the outputs; a copy."""
        from copy import deepcopy

        return deepcopy(cls.plan.output_schema())

    def kept(cls, key: Any, make: Callable[[], T]) -> T:
        """What `make` gives, made once for this signature and key: for all that is derived of a signature elsewhere."""
        kept = (cls.__plan__ or cls.plan).kept
        return kept[key] if key in kept else kept.setdefault(key, make())

    @_told
    def output_checks(cls) -> Mapping[str, OutputCheck]:
        """What `check_output` calls, by name: for those who read many answers."""
        return (cls.__plan__ or cls.plan).output_checks

    # -- others like it -------------------------------------------------------------------------------------------

    def with_instructions(cls, instructions: str) -> type[Signature]:
        """The same fields with other instructions."""
        if not isinstance(instructions, str):
            msg = f"Instructions are a text, found {shown(instructions)}."
            raise SignatureError(msg)
        return _made(cls, cls.fields, instructions)

    def append(cls, name: str, field: Any, type_: Any = None) -> type[Signature]:
        """The same with one more field behind those of its role."""
        return cls.insert(sys.maxsize, name, field, type_)

    def prepend(cls, name: str, field: Any, type_: Any = None) -> type[Signature]:
        """The same with one more field before those of its role."""
        return cls.insert(0, name, field, type_)

    def insert(cls, index: int, name: str, field: Any, type_: Any = None) -> type[Signature]:
        """The same with one more field at a place among those of its role; a negative index counts from the end, -1 is the end."""
        role = role_of(field) if isinstance(field, FieldInfo) else None
        if role is None:
            msg = f"Field `{name}` must be made by `InputField()` or `OutputField()`, found {shown(field)}."
            raise SignatureError(msg)
        if name in cls.fields:
            msg = f"`{cls.__name__}` has a field `{name}` already. Choose another name, or use `with_updated_fields`."
            raise SignatureError(msg)
        mine = list((cls.input_fields if role == "input" else cls.output_fields).items())
        at = index if index >= 0 else len(mine) + 1 + index
        if not 0 <= at <= len(mine) and index != sys.maxsize:
            msg = f"Field `{name}` cannot stand at {index}: `{cls.__name__}` has {len(mine)} {role}s."
            raise SignatureError(msg)
        annotation = type_ if type_ is not None else field.annotation if field.annotation is not None else str
        mine.insert(at, (name, cast("Any", renewed(field, annotation=annotation, untyped=is_untyped(field)))))
        others = cls.output_fields if role == "input" else cls.input_fields
        return _made(cls, {**dict(mine), **others} if role == "input" else {**others, **dict(mine)}, cls.plan.said)

    def delete(cls, *names: str) -> type[Signature]:
        """The same without some fields. Unlike in other forms no output need be left: a program may have its outputs elsewhere."""
        unknown = [name for name in names if name not in cls.fields]
        if unknown:
            msg = f"`{cls.__name__}` has no field {', '.join(f'`{name}`' for name in unknown)}; it has: {', '.join(cls.fields) or 'none'}."
            raise SignatureError(msg)
        return _made(cls, {name: field for name, field in cls.fields.items() if name not in names}, cls.plan.said)

    def with_updated_fields(cls, name: str, type_: Any = None, **changes: Any) -> type[Signature]:
        """The same with another type or declaration (`desc`, `default`, ...) of one field."""
        if name not in cls.fields:
            msg = f"`{cls.__name__}` has no field `{name}`; it has: {', '.join(cls.fields) or 'none'}."
            raise SignatureError(msg)
        keeps = type_ is None
        changed = cast(
            "Any", renewed(cls.fields[name], annotation=type_, keep_bounds=False, untyped=keeps and is_untyped(cls.fields[name]), **changes)
        )
        return _made(cls, {**cls.fields, name: changed}, cls.plan.said)

    # -- comparing, saving ----------------------------------------------------------------------------------------

    def equals(cls, other: Any) -> bool:
        """Whether a model would see no difference: the same instructions and fields, whatever the classes are called."""
        return isinstance(other, SignatureType) and cls.plan.content == other.plan.content

    def __eq__(cls, other: object) -> bool:
        return cls is other or (isinstance(other, SignatureType) and cls.__dict__.get("__plan__") is not None and cls.equals(other))

    def __hash__(cls) -> int:
        plan = cls.__dict__.get("__plan__")
        return type.__hash__(cls) if plan is None else hash((plan.instructions, *plan.inputs, *plan.outputs))

    def dump_state(cls) -> dict[str, Any]:
        """Instructions and descriptions as JSON data; types stay in code."""
        return {
            "instructions": cls.instructions,
            "fields": [{"name": name, "desc": description_of(field)} for name, field in cls.fields.items()],
        }

    def load_state(cls, state: Mapping[str, Any]) -> type[Signature]:
        """The same with the instructions and descriptions of a dumped one. Raises `SignatureError` where the fields differ."""
        saved = {entry["name"]: entry.get("desc") for entry in state.get("fields", ())}
        if saved.keys() != cls.fields.keys():
            differ = ", ".join(f"`{name}`" for name in sorted(saved.keys() ^ cls.fields.keys()))
            msg = f"The saved state is of another signature than `{cls.__name__}`: they differ in {differ}."
            raise SignatureError(msg)
        updated: dict[str, Any] = {name: renewed(field, untyped=is_untyped(field), desc=saved[name]) for name, field in cls.fields.items()}
        given = state.get("instructions")
        return _made(cls, updated, given if given != cls.instructions else cls.plan.said)

    def __repr__(cls) -> str:
        return f"{cls.__name__}({cls.signature})" if cls.__dict__.get("__plan__") is not None else super().__repr__()


_METHODS = frozenset(name for name, value in vars(SignatureType).items() if not name.startswith("_") and not isinstance(value, property))
_PROPERTIES = frozenset(name for name, value in vars(SignatureType).items() if not name.startswith("_") and isinstance(value, property))


class Signature(BaseModel, metaclass=SignatureType):
    """Subclass it with `InputField`s and `OutputField`s; the docstring is the instruction. Or call it: `Signature("a, b: int -> c")`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        arbitrary_types_allowed=True, defer_build=True, ignored_types=(Absent,), protected_namespaces=()
    )
    if not TYPE_CHECKING:
        locals().update({name: Absent() for name in OUTDATED})


def as_signature(thing: Any, instructions: str | None = None, *, custom_types: Mapping[str, Any] | None = None) -> type[Signature]:
    """A signature out of a signature, its string form, or a mapping of fields."""
    if isinstance(thing, SignatureType):
        if thing is Signature:
            msg = "`Signature` itself has no fields: subclass it, or write `Signature('question -> answer')`."
            raise SignatureError(msg)
        found = cast("type[Signature]", thing)
        return found if instructions is None else found.with_instructions(instructions)
    return _from_form(thing, instructions, custom_types=custom_types)


def _from_form(signature: Any, instructions: str | None = None, *, custom_types: Mapping[str, Any] | None = None) -> type[Signature]:
    if isinstance(signature, SignatureType):
        return as_signature(signature, instructions)
    if instructions is not None and not isinstance(instructions, str):
        msg = f"Instructions are a text, found {shown(instructions)}."
        raise SignatureError(msg)
    fields: dict[str, Any] = {}
    if isinstance(signature, str):
        from ferrule.values.signatures.text_form import MISSING, read_signature

        for written in read_signature(signature, custom_types):
            declare = InputField if written.role == "input" else OutputField
            field = declare() if written.default is MISSING else declare(written.default)
            fields[written.name] = renewed(field, annotation=_none_as_type(written.annotation), untyped=written.is_untyped)
    elif isinstance(signature, Mapping):
        for name, given in cast("Mapping[str, Any]", signature).items():
            pair = cast("tuple[Any, ...]", given) if isinstance(given, tuple) else (None, given)
            kind, field = pair if len(pair) == 2 else (None, None)  # noqa: PLR2004  type and field
            if not isinstance(field, FieldInfo) or role_of(field) is None:
                found = shown(pair if isinstance(given, tuple) else given)
                msg = f"Field `{name}` must be an `InputField()` or `OutputField()`, or a pair (type, field); found {found}."
                raise SignatureError(msg)
            fields[name] = renewed(field, annotation=kind if kind is not None else str, untyped=kind is None)
    else:
        msg = f"A signature is a class, a text like 'question -> answer', or a mapping of fields; found {shown(cast('object', signature))}."
        raise SignatureError(msg)
    made = _made(Signature, fields, instructions, "StringSignature")
    if not made.output_fields:
        msg = f"A signature needs at least one output behind `->`; found {shown(cast('object', signature))}."
        raise SignatureError(msg)
    return made


def _none_as_type(annotation: Any) -> Any:
    return type(None) if annotation is None else annotation


def _made(cls: SignatureType, fields: Mapping[str, Any], instructions: str | None, name: str | None = None) -> type[Signature]:
    """A class of these fields: `FieldInfo`s of another signature, or pairs as `renewed` gives them."""
    pairs: dict[str, Any] = {
        each: field if isinstance(field, tuple) else renewed(field, untyped=is_untyped(field)) for each, field in fields.items()
    }
    for each in pairs:
        refuse_name(name or cls.__name__, each, _METHODS)
    make = cast("Callable[..., Any]", create_model)
    kwargs = {"derived": (instructions,)}
    return make(name or cls.__name__, __base__=Signature, __doc__=instructions, __module__=cls.__module__, __cls_kwargs__=kwargs, **pairs)


def _pickled(cls: SignatureType) -> str | tuple[Any, ...]:
    """By its name where a module holds it under that; else by its fields, as a text form has no module to be found in."""
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is cls:
        return cls.__qualname__
    fields = {name: renewed(field, untyped=is_untyped(field)) for name, field in cls.fields.items()}
    return _made, (Signature, fields, cls.plan.said, cls.__name__)


copyreg.pickle(SignatureType, _pickled)
