"""Signatures: a program's inputs, its outputs and its instructions.

A signature is a class, `class QA(Signature)` with fields, or made from text, `Signature("question
-> answer: int")`. Methods that change one return a new class. It is also a pydantic model. Values
derived from its fields, such as an adapter's prompt, are made once and kept.
"""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast, dataclass_transform

from pydantic import BaseModel, ConfigDict, PydanticUserError

from ferrule.encoding.encode import escape_surrogates
from ferrule.errors import SignatureError, shown
from ferrule.values.signatures.compiled import (
    CompiledSignature,
    class_fields,
    compile_signature,
    infos_of,
    run_validators,
)
from ferrule.values.signatures.fields import (
    OUTDATED,
    Absent,
    InputField,
    OutputField,
    SignatureField,
    as_field,
    check_name,
    copy_field,
    declared_fields,
    has_text,
    inherited_instructions,
    prepare_class_body,
)

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass as _ModelMetaclass
    from pydantic.fields import FieldInfo

    from ferrule.values.signatures.output_checks import OutputCheck

__all__ = ["InputField", "OutputField", "Signature", "SignatureType", "as_signature"]

T = TypeVar("T")

if TYPE_CHECKING:
    _property = property
else:
    _ModelMetaclass = type(BaseModel)

    class _property(property):  # noqa: N801  used like `property`
        """A property of signatures, hidden while a class is being made, so that a field may have its name."""

        def __get__(self, signature: Any, kind: Any = None) -> Any:
            if signature is None:
                return self
            if "__plan__" in signature.__dict__:
                return self.fget(signature)
            try:
                return signature.__dict__[self.fget.__name__]
            except KeyError:
                raise AttributeError from None


@dataclass_transform(kw_only_default=True, field_specifiers=(InputField, OutputField))
class SignatureType(_ModelMetaclass):
    """The metaclass of signatures: their properties, and the methods that make new signatures from them."""

    __plan__: CompiledSignature | None
    __validated_by__: type[BaseModel] | None
    """The class with the pydantic validators of the outputs: this one, or the one it was made from."""

    def __new__(
        cls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        **kwargs: Any,
    ) -> Any:
        """Make a signature from a class body. Raises a `SignatureError` that names the field and the reason."""
        is_root = not any(isinstance(base, SignatureType) for base in bases)
        if not is_root:
            above = [
                base for base in bases if isinstance(base, SignatureType) and base is not Signature
            ]
            prepare_class_body(
                name,
                namespace,
                reserved=_METHODS | _PROPERTIES if above else _METHODS,
            )
        try:
            made: Any = super().__new__(cls, name, bases, namespace, **kwargs)
            if not is_root and not made.__pydantic_fields_complete__:
                # For annotations as text that name types local to a function, pydantic looks this
                # many frames up.
                made.model_rebuild(raise_errors=False, _parent_namespace_depth=3)
        except PydanticUserError as error:
            raise SignatureError(
                f"`{name}` is not a valid signature: {str(error).splitlines()[0]}",
            ) from error
        made.__instructions__ = None if is_root else inherited_instructions(bases, namespace)
        made.__validated_by__ = made.__plan__ = None
        if is_root:
            return made
        own = made.__pydantic_decorators__
        made.__validated_by__ = made if own.field_validators or own.model_validators else None
        if made.__pydantic_fields_complete__:
            made.__plan__ = compile_signature(made, class_fields(made))
            if made.__plan__.inputs and not made.__plan__.outputs:
                raise SignatureError(
                    f"`{name}` has no outputs. Give it at least one `OutputField()`.",
                )
        return made

    if (
        not TYPE_CHECKING
    ):  # type checkers read the parameters of a call from the fields: see `Signature` below

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            """`Signature("a -> b")` makes a signature; calling a signature makes an instance with values of its fields."""
            if cls is Signature and (args or "signature" in kwargs):
                return _from_form(*args, **kwargs)
            return super().__call__(*args, **kwargs)

    # -- fields and instructions
    # ----------------------------------------------------------------------------------

    @_property
    def plan(cls) -> CompiledSignature:
        """Everything that is derived from the fields."""
        found = cls.__plan__
        if found is None:
            if cls is Signature:
                raise AttributeError  # the root has no fields, so that fields may be called `instructions` or `signature`
            found = cls.__plan__ = compile_signature(cls, class_fields(cls))
        return found

    @_property
    def instructions(cls) -> str:
        """The instructions for the model."""
        return cls.plan.instructions

    @_property
    def input_fields(cls) -> dict[str, FieldInfo]:
        """The inputs by name, in order. Do not change it."""
        return infos_of((cls.__plan__ or cls.plan).inputs, cast("Any", cls).model_fields)

    @_property
    def output_fields(cls) -> dict[str, FieldInfo]:
        """The outputs by name, in order. Do not change it."""
        return infos_of((cls.__plan__ or cls.plan).outputs, cast("Any", cls).model_fields)

    @_property
    def fields(cls) -> dict[str, FieldInfo]:
        """All fields by name, inputs first."""
        return {**cls.input_fields, **cls.output_fields}

    @_property
    def signature(cls) -> str:
        """The names of the fields: `"question, k -> answer"`."""
        return f"{', '.join(cls.plan.inputs)} -> {', '.join(cls.plan.outputs)}"

    @_property
    def defaults(cls) -> dict[str, Any]:
        """The default values of the optional inputs."""
        return cls.plan.defaults()

    # -- checking
    # -------------------------------------------------------------------------------------------------

    def check_inputs(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Coerce inputs and fill in defaults. Raises an `InputError` that names all unknown, missing and ill-typed inputs."""
        return (cls.__plan__ or cls.plan).check_inputs(cls.__name__, given)

    def check_output(cls, name: str, value: Any, *, is_value: bool = False) -> Any:
        """Coerce one output from a value or a text; with `is_value`, a string is a value first. Raises `ValueError`, worded for a model."""
        check = (cls.__plan__ or cls.plan).output_checks.get(name)
        if check is None:
            raise ValueError(
                f"there is no output `{name}`; the outputs are: {', '.join(cls.plan.outputs) or 'none'}",
            )
        return check(value, is_value=is_value)

    def validate_outputs(cls, inputs: Mapping[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
        """Run the signature's pydantic validators on checked outputs, and return the result. Raises `InvalidOutputsError`."""
        return (
            outputs
            if cls.__validated_by__ is None
            else run_validators(cls.__validated_by__, inputs, outputs)
        )

    def output_default(cls, name: str) -> Any:
        """The value of an optional output that an answer leaves out."""
        return (cls.__plan__ or cls.plan).output_default(name)

    def output_schema(cls) -> dict[str, Any]:
        """A copy of the JSON Schema of an object with the outputs."""
        from copy import deepcopy

        return deepcopy(cls.plan.output_schema())

    def kept(cls, key: Any, make: Callable[[], T]) -> T:
        """The value of `make()`, made once for this signature and `key`: a cache for values that other modules derive."""
        kept = (cls.__plan__ or cls.plan).cache
        return kept[key] if key in kept else kept.setdefault(key, make())

    @_property
    def output_checks(cls) -> Mapping[str, OutputCheck]:
        """The functions that `check_output` calls, by name."""
        return (cls.__plan__ or cls.plan).output_checks

    # -- copies with changes
    # --------------------------------------------------------------------------------------

    def with_instructions(cls: type[T], instructions: str) -> type[T]:
        """A copy with other instructions."""
        return cast("Any", _made(cls, cls.plan.fields, instructions))  # pyright: ignore  `cls` is of this metaclass, too

    def append_instructions(cls, instructions: str) -> type[Signature]:
        """A copy with more instructions, after a blank line."""
        return _made(cls, cls.plan.fields, f"{cls.instructions}\n\n{instructions}")

    def append(cls, name: str, field: Any, type_: Any = None) -> type[Signature]:
        """A copy with one more field after those of its role."""
        return cls.insert(sys.maxsize, name, field, type_)

    def prepend(cls, name: str, field: Any, type_: Any = None) -> type[Signature]:
        """A copy with one more field before those of its role."""
        return cls.insert(0, name, field, type_)

    def insert(cls, index: int, name: str, field: Any, type_: Any = None) -> type[Signature]:
        """A copy with one more field, inserted among those of its role. A negative index counts from the end: -1 appends."""
        given = as_field(field)
        if given is None:
            raise SignatureError(
                f"Field `{name}` must be made by `InputField()` or `OutputField()`, found {shown(field)}.",
            )
        plan = cls.plan
        if name in plan.fields:
            raise SignatureError(
                f"`{cls.__name__}` has a field `{name}` already. Choose another name, or use `with_updated_fields`.",
            )
        mine, others = (
            (plan.inputs, plan.outputs) if given.role == "input" else (plan.outputs, plan.inputs)
        )
        at = index if index >= 0 else len(mine) + 1 + index
        if not 0 <= at <= len(mine) and index != sys.maxsize:
            raise SignatureError(
                f"Field `{name}` cannot stand at {index}: `{cls.__name__}` has {len(mine)} {given.role}s.",
            )
        annotation = (
            type_
            if type_ is not None
            else given.annotation
            if given.annotation is not None
            else str
        )
        entries = list(mine.items())
        entries.insert(
            at,
            (name, copy_field(given, annotation=annotation, untyped=given.is_untyped)),
        )
        return _made(
            cls,
            {**dict(entries), **others} if given.role == "input" else {**others, **dict(entries)},
            plan.own_instructions,
        )

    def delete(cls, *names: str) -> type[Signature]:
        """A copy without some fields. It may have no outputs, as a program may get them elsewhere."""
        fields = cls.plan.fields
        unknown = [name for name in names if name not in fields]
        if unknown:
            msg = f"`{cls.__name__}` has no field {', '.join(f'`{name}`' for name in unknown)}; it has: {', '.join(fields) or 'none'}."
            raise SignatureError(msg)
        return _made(
            cls,
            {name: field for name, field in fields.items() if name not in names},
            cls.plan.own_instructions,
        )

    def with_updated_fields(cls, name: str, type_: Any = None, **changes: Any) -> type[Signature]:
        """A copy with another type or other options (`desc`, `default`, ...) for one field."""
        fields = cls.plan.fields
        if name not in fields:
            raise SignatureError(
                f"`{cls.__name__}` has no field `{name}`; it has: {', '.join(fields) or 'none'}.",
            )
        changed = copy_field(fields[name], annotation=type_, keep_bounds=False, **changes)
        return _made(cls, {**fields, name: changed}, cls.plan.own_instructions)

    # -- comparing, saving
    # ----------------------------------------------------------------------------------------

    def equals(cls, other: Any) -> bool:
        """Whether a model sees no difference: instructions and fields are the same. The names of the classes may differ."""
        return isinstance(other, SignatureType) and cls.plan.content == other.plan.content

    def __eq__(cls, other: object) -> bool:
        return cls is other or (
            isinstance(other, SignatureType)
            and cls.__dict__.get("__plan__") is not None
            and cls.equals(other)
        )

    def __hash__(cls) -> int:
        plan = cls.__dict__.get("__plan__")
        return type.__hash__(cls) if plan is None else plan.hash

    def dump_state(cls) -> dict[str, Any]:
        """Instructions and descriptions as JSON data; types stay in code."""
        fields = [
            {"name": name, "desc": field.description} for name, field in cls.plan.fields.items()
        ]
        return {"instructions": cls.instructions, "fields": fields}

    def load_state(cls, state: Mapping[str, Any]) -> type[Signature]:
        """A copy with the instructions and descriptions of a dumped signature. Raises `SignatureError` if the fields differ."""
        saved = {entry["name"]: entry.get("desc") for entry in state.get("fields", ())}
        fields = cls.plan.fields
        if saved.keys() != fields.keys():
            differ = ", ".join(f"`{name}`" for name in sorted(saved.keys() ^ fields.keys()))
            raise SignatureError(
                f"The saved state belongs to another signature than `{cls.__name__}`: they differ in {differ}.",
            )
        updated = {name: copy_field(field, desc=saved[name]) for name, field in fields.items()}
        given = state.get("instructions")
        return _made(
            cls,
            updated,
            given if given != cls.instructions else cls.plan.own_instructions,
        )

    def __repr__(cls) -> str:
        return (
            f"{cls.__name__}({cls.signature})"
            if cls.__dict__.get("__plan__") is not None
            else super().__repr__()
        )


_METHODS = frozenset(
    name
    for name, value in vars(SignatureType).items()
    if not name.startswith("_") and not isinstance(value, property)
)
_PROPERTIES = frozenset(
    name
    for name, value in vars(SignatureType).items()
    if not name.startswith("_") and isinstance(value, property)
)


class Signature(BaseModel, metaclass=SignatureType):
    """Subclass it with `InputField`s and `OutputField`s; the docstring is the instruction. Or call it: `Signature("a, b: int -> c")`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        arbitrary_types_allowed=True,
        defer_build=True,
        ignored_types=(Absent,),
        protected_namespaces=(),
    )
    if TYPE_CHECKING:

        def __new__(cls, *args: Any, **fields: Any) -> Any: ...  # noqa: D102
        def __init__(self, *args: Any, **fields: Any) -> None: ...


for _name in OUTDATED:
    setattr(Signature, _name, Absent())


def as_signature(thing: Any, instructions: str | None = None) -> type[Signature]:
    """Make a signature from a signature, its string form, or a mapping of fields."""
    if isinstance(thing, SignatureType):
        if thing is Signature:
            raise SignatureError(
                "`Signature` itself has no fields: subclass it, or write `Signature('question -> answer')`.",
            )
        return cast(
            "type[Signature]",
            thing if instructions is None else thing.with_instructions(instructions),
        )
    return _from_form(thing, instructions)


def _from_form(
    signature: Any,
    instructions: str | None = None,
    *,
    custom_types: Mapping[str, Any] | None = None,
) -> type[Signature]:
    if isinstance(signature, SignatureType):
        return as_signature(signature, instructions)
    if isinstance(signature, str):
        from ferrule.values.signatures.text_form import read_fields

        fields = read_fields(signature, custom_types)
    elif isinstance(signature, Mapping):
        fields = declared_fields(cast("Mapping[str, Any]", signature))
    else:
        what = "a subclass of `Signature`, a string like 'a, b -> c', or a mapping of fields"
        raise SignatureError(f"A signature is {what}; found {shown(cast('object', signature))}.")
    made = _made(Signature, fields, instructions, "StringSignature")
    if not made.plan.outputs:
        raise SignatureError(
            f"A signature needs at least one output after `->`; found {shown(cast('object', signature))}.",
        )
    return made


def _made(
    cls: SignatureType,
    fields: Mapping[str, SignatureField],
    instructions: str | None,
    name: str | None = None,
    validated_by: Any = None,
) -> type[Signature]:
    """A class with these fields."""
    if instructions is not None and not isinstance(instructions, str):  # pyright: ignore[reportUnnecessaryIsInstance]  users pass anything
        raise SignatureError(f"`instructions` must be a string, found {shown(instructions)}.")
    name = name or cls.__name__
    for each in fields:
        check_name(name, each, _METHODS)
    base = next(
        each
        for each in cast("Any", cls.__mro__)
        if issubclass(each, Signature) and not _has_fields(each)
    )  # it may have methods
    doc = instructions and escape_surrogates(
        instructions,
    )  # Python accepts no lone surrogates in a docstring
    body: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": name, "__doc__": doc}
    body["__annotations__"] = {
        each: Annotated[field.annotated, field.info()] for each, field in fields.items()
    }

    made: Any = _ModelMetaclass.__new__(cast("Any", type(base)), name, (base,), body)
    made.__instructions__, made.__validated_by__ = (
        instructions,
        validated_by or cls.__validated_by__,
    )
    is_unread = any(
        has_text(field.annotation) for field in fields.values()
    )  # pydantic reads types that are text
    made.__plan__ = compile_signature(made, class_fields(made) if is_unread else fields)
    return made


def _has_fields(cls: SignatureType) -> bool:
    return cls is not Signature and bool(
        cls.__plan__.fields if cls.__plan__ else cast("Any", cls).model_fields,
    )


def _pickled(cls: SignatureType) -> str | tuple[Any, ...]:
    """Pickle a signature by name if its module has it under that name, and otherwise by its fields, as one made from text."""
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is cls:
        return cls.__qualname__
    return _made, (
        Signature,
        cls.plan.fields,
        cls.plan.own_instructions,
        cls.__name__,
        cls.__validated_by__,
    )


copyreg.pickle(SignatureType, _pickled)
