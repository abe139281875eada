"""Signatures: a program's inputs, its outputs and its instructions.

A signature is a class, `class QA(Signature)` with fields, or made from text, `Signature("question
-> answer: int")`. Methods that change one return a new class. It is also a pydantic model. Values
derived from its fields, such as an adapter's prompt, are computed once and kept.

The properties and methods belong to the metaclass, because a program works with the class: an
instance only holds the values of one answer. Fields of a signature may have the names of these
properties (`fields`, `instructions`, ...), which is why they hide while a class is being made.
"""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast, dataclass_transform

from pydantic import BaseModel, ConfigDict, PydanticUserError

from ferrule.encoding.encode import escape_surrogates
from ferrule.errors import SignatureError, shown
from ferrule.values.signatures.compiled import (
    CompiledSignature,
    class_fields,
    compile_signature,
    compiled,
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
from ferrule.values.signatures.text_form import read_fields

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
        """A property of signatures, hidden while a class is being made.

        Pydantic asks a class for an attribute of each field's name. If it found the property, it
        would take that for the field's default.
        """

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
    """The metaclass of signatures: their properties, and the methods that derive new ones."""

    __plan__: CompiledSignature | None
    __validated_by__: type[BaseModel] | None
    """The class with the pydantic validators of the outputs: this one, or its original."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any
    ) -> Any:
        """Make a signature from a class body.

        Raises a `SignatureError` that names the field and the reason.
        """
        is_root = not any(isinstance(base, SignatureType) for base in bases)
        if not is_root:
            # A field of a first subclass may hide a property. In a subclass of that one, the class
            # above already has the property, and a field of the name would change its meaning.
            has_parent_signature = any(
                isinstance(base, SignatureType) and base is not Signature for base in bases
            )
            if has_parent_signature:
                reserved = _METHODS | _PROPERTIES
            else:
                reserved = _METHODS
            prepare_class_body(name, namespace, reserved=reserved)
        try:
            signature: Any = super().__new__(cls, name, bases, namespace, **kwargs)
            if not is_root and not signature.__pydantic_fields_complete__:
                # Annotations as text may name types local to a function, whose frame is this many
                # frames up.
                signature.model_rebuild(raise_errors=False, _parent_namespace_depth=3)
        except PydanticUserError as error:
            reason = str(error).splitlines()[0]
            raise SignatureError(f"`{name}` is not a valid signature: {reason}") from error
        signature.__instructions__ = None
        signature.__validated_by__ = None
        signature.__plan__ = None
        if is_root:
            return signature
        signature.__instructions__ = inherited_instructions(bases, namespace)
        decorators = signature.__pydantic_decorators__
        if decorators.field_validators or decorators.model_validators:
            signature.__validated_by__ = signature
        if signature.__pydantic_fields_complete__:
            plan = compile_signature(signature, class_fields(signature))
            if plan.inputs and not plan.outputs:
                raise SignatureError(
                    f"`{name}` has no outputs. Give it at least one `OutputField()`."
                )
            signature.__plan__ = plan
        # Otherwise a type is not defined yet (classes that refer to each other): the first use of
        # `plan` compiles the fields.
        return signature

    # Type checkers read the parameters of a call from the fields: see `Signature` below.
    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            """`Signature("a -> b")` makes a signature; calling a signature makes an instance."""
            if cls is Signature and (args or "signature" in kwargs):
                return _from_form(*args, **kwargs)
            return super().__call__(*args, **kwargs)

    # -- fields and instructions

    @_property
    def plan(cls) -> CompiledSignature:
        """Everything that is derived from the fields."""
        if cls.__plan__ is None:
            if cls is Signature:
                # The root has no fields. Without its properties, fields may have their names.
                raise AttributeError
            cls.__plan__ = compile_signature(cls, class_fields(cls))
        return cls.__plan__

    @_property
    def instructions(cls) -> str:
        """The instructions for the model."""
        return cls.plan.instructions

    @_property
    def input_fields(cls) -> dict[str, FieldInfo]:
        """The inputs by name, in order. Do not change it."""
        return infos_of(compiled(cls).inputs, cast("Any", cls).model_fields)

    @_property
    def output_fields(cls) -> dict[str, FieldInfo]:
        """The outputs by name, in order. Do not change it."""
        return infos_of(compiled(cls).outputs, cast("Any", cls).model_fields)

    @_property
    def fields(cls) -> dict[str, FieldInfo]:
        """All fields by name, inputs first."""
        return {**cls.input_fields, **cls.output_fields}

    @_property
    def signature(cls) -> str:
        """The names of the fields: `"question, k -> answer"`."""
        plan = compiled(cls)
        return f"{', '.join(plan.inputs)} -> {', '.join(plan.outputs)}"

    @_property
    def defaults(cls) -> dict[str, Any]:
        """The default values of the optional inputs."""
        return cls.plan.defaults()

    # -- checking

    def check_inputs(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Coerce inputs and fill in defaults.

        Raises an `InputError` that names all unknown, missing and ill-typed inputs.
        """
        return compiled(cls).check_inputs(cls.__name__, values)

    def check_output(cls, name: str, value: Any, *, is_value: bool = False) -> Any:
        """Coerce one output from a value or a text; with `is_value`, a string is a value first.

        Raises `ValueError`, worded for a model.
        """
        plan = compiled(cls)
        check = plan.output_checks.get(name)
        if check is None:
            known = ", ".join(plan.outputs) or "none"
            raise ValueError(f"there is no output `{name}`; the outputs are: {known}")
        return check(value, is_value=is_value)

    def validate_outputs(cls, inputs: Mapping[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
        """Run the signature's pydantic validators on checked outputs, and return the result.

        Raises `InvalidOutputsError`.
        """
        if cls.__validated_by__ is None:
            return outputs
        return run_validators(cls.__validated_by__, inputs, outputs)

    def output_default(cls, name: str) -> Any:
        """The value of an optional output that an answer leaves out."""
        return compiled(cls).output_default(name)

    def output_schema(cls) -> dict[str, Any]:
        """A copy of the JSON Schema of an object with the outputs."""
        return deepcopy(cls.plan.output_schema())

    def cached_value(cls, key: Any, make: Callable[[], T]) -> T:
        """The value of `make()`, computed once for this signature and `key`.

        A cache for values that other modules derive from the signature.
        """
        cache = compiled(cls).cache
        if key not in cache:
            # Two threads may both compute the value. `setdefault` gives both the same one.
            return cache.setdefault(key, make())
        return cache[key]

    @_property
    def output_checks(cls) -> Mapping[str, OutputCheck]:
        """The functions that `check_output` calls, by name."""
        return compiled(cls).output_checks

    # -- copies with changes

    def with_instructions(cls: type[T], instructions: str) -> type[T]:
        """A copy with other instructions."""
        # `cls` is a variable for type checkers only: the copy has the fields of this class.
        signature: Any = cls
        copied: Any = _make_class(signature, compiled(signature).fields, instructions)
        return copied

    def append_instructions(cls, instructions: str) -> type[Signature]:
        """A copy with more instructions, after a blank line."""
        return _make_class(cls, cls.plan.fields, f"{cls.instructions}\n\n{instructions}")

    def append(cls, name: str, field: Any, type_: Any = None) -> type[Signature]:
        """A copy with one more field after those of its role."""
        return cls._insert(None, name, field, type_)

    def prepend(cls, name: str, field: Any, type_: Any = None) -> type[Signature]:
        """A copy with one more field before those of its role."""
        return cls._insert(0, name, field, type_)

    def insert(cls, index: int, name: str, field: Any, type_: Any = None) -> type[Signature]:
        """A copy with one more field, inserted among those of its role.

        A negative index counts from the end: -1 appends.
        """
        return cls._insert(index, name, field, type_)

    def _insert(cls, index: int | None, name: str, field: Any, type_: Any) -> type[Signature]:
        """See `insert`; None appends."""
        new_field = as_field(field)
        if new_field is None:
            raise SignatureError(
                f"Field `{name}` must be made by `InputField()` or `OutputField()`, "
                f"found {shown(field)}."
            )
        plan = cls.plan
        if name in plan.fields:
            raise SignatureError(
                f"`{cls.__name__}` has a field `{name}` already. "
                "Choose another name, or use `with_updated_fields`."
            )
        inputs, outputs = list(plan.inputs.items()), list(plan.outputs.items())
        siblings = inputs if new_field.role == "input" else outputs
        if index is None:
            position = len(siblings)
        else:
            position = index
        if position < 0:
            position += len(siblings) + 1
        if not 0 <= position <= len(siblings):
            raise SignatureError(
                f"Field `{name}` cannot stand at {index}: "
                f"`{cls.__name__}` has {len(siblings)} {new_field.role}s."
            )
        annotation = type_
        if annotation is None:
            annotation = new_field.annotation
        if annotation is None:
            annotation = str
        copied = copy_field(new_field, annotation=annotation, untyped=new_field.is_untyped)
        siblings.insert(position, (name, copied))
        return _make_class(cls, dict(inputs + outputs), plan.author_instructions)

    def delete(cls, *names: str) -> type[Signature]:
        """A copy without some fields.

        It may have no outputs, as a program may get them elsewhere.
        """
        fields = cls.plan.fields
        unknown = ", ".join(f"`{name}`" for name in names if name not in fields)
        if unknown:
            known = ", ".join(fields) or "none"
            raise SignatureError(f"`{cls.__name__}` has no field {unknown}; it has: {known}.")
        remaining = {name: field for name, field in fields.items() if name not in names}
        return _make_class(cls, remaining, cls.plan.author_instructions)

    def with_updated_fields(cls, name: str, type_: Any = None, **changes: Any) -> type[Signature]:
        """A copy with another type or other options (`desc`, `default`, ...) for one field."""
        fields = cls.plan.fields
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise SignatureError(f"`{cls.__name__}` has no field `{name}`; it has: {known}.")
        changed = copy_field(fields[name], annotation=type_, keep_bounds=False, **changes)
        return _make_class(cls, {**fields, name: changed}, cls.plan.author_instructions)

    # -- comparing, saving

    def equals(cls, other: Any) -> bool:
        """Whether a model sees no difference: instructions and fields are the same.

        The names of the classes may differ.
        """
        return isinstance(other, SignatureType) and cls.plan.content == other.plan.content

    # Pydantic compares and hashes classes while it makes them, before there is a plan.

    def __eq__(cls, other: object) -> bool:
        if cls is other:
            return True
        if not isinstance(other, SignatureType) or cls.__dict__.get("__plan__") is None:
            return False
        return cls.equals(other)

    def __hash__(cls) -> int:
        plan = cls.__dict__.get("__plan__")
        if plan is None:
            return type.__hash__(cls)
        return plan.hash

    def dump_state(cls) -> dict[str, Any]:
        """Instructions and descriptions as JSON data; types stay in code."""
        fields = [
            {"name": name, "desc": field.description} for name, field in cls.plan.fields.items()
        ]
        return {"instructions": cls.instructions, "fields": fields}

    def load_state(cls, state: Mapping[str, Any]) -> type[Signature]:
        """A copy with the instructions and descriptions of a dumped signature.

        Raises `SignatureError` if the fields differ.
        """
        descriptions = {entry["name"]: entry.get("desc") for entry in state.get("fields", ())}
        fields = cls.plan.fields
        if descriptions.keys() != fields.keys():
            different = sorted(descriptions.keys() ^ fields.keys())
            raise SignatureError(
                f"The saved state belongs to another signature than `{cls.__name__}`: "
                f"they differ in {', '.join(f'`{name}`' for name in different)}."
            )
        updated = {
            name: copy_field(field, desc=descriptions[name]) for name, field in fields.items()
        }
        instructions = state.get("instructions")
        if instructions == cls.instructions:
            # They may be the default instructions, which follow the fields.
            instructions = cls.plan.author_instructions
        return _make_class(cls, updated, instructions)

    def __repr__(cls) -> str:
        if cls.__dict__.get("__plan__") is None:
            return super().__repr__()
        return f"{cls.__name__}({cls.signature})"


_PUBLIC_ATTRIBUTES = {
    name: value for name, value in vars(SignatureType).items() if not name.startswith("_")
}
_PROPERTIES = frozenset(
    name for name, value in _PUBLIC_ATTRIBUTES.items() if isinstance(value, property)
)
_METHODS = frozenset(_PUBLIC_ATTRIBUTES) - _PROPERTIES


class Signature(BaseModel, metaclass=SignatureType):
    """Subclass it with `InputField`s and `OutputField`s; the docstring is the instruction.

    Or call it: `Signature("a, b: int -> c")`.
    """

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
    if not isinstance(thing, SignatureType):
        return _from_form(thing, instructions)
    if thing is Signature:
        raise SignatureError(
            "`Signature` itself has no fields: subclass it, "
            "or write `Signature('question -> answer')`."
        )
    if instructions is not None:
        thing = thing.with_instructions(instructions)
    return cast("type[Signature]", thing)


def _from_form(
    signature: Any,
    instructions: str | None = None,
    *,
    custom_types: Mapping[str, Any] | None = None,
) -> type[Signature]:
    if isinstance(signature, SignatureType):
        return as_signature(signature, instructions)
    form: object = signature
    if isinstance(form, str):
        fields = read_fields(form, custom_types)
    elif isinstance(form, Mapping):
        fields = declared_fields(cast("Mapping[str, Any]", form))
    else:
        raise SignatureError(
            "A signature is a subclass of `Signature`, a string like 'a, b -> c', "
            f"or a mapping of fields; found {shown(form)}."
        )
    signature_class = _make_class(Signature, fields, instructions, "StringSignature")
    if not signature_class.plan.outputs:
        raise SignatureError(
            f"A signature needs at least one output after `->`; found {shown(signature)}."
        )
    return signature_class


def _make_class(
    cls: SignatureType,
    fields: Mapping[str, SignatureField],
    instructions: str | None,
    name: str | None = None,
    validated_by: type[BaseModel] | None = None,
) -> type[Signature]:
    """A class like `cls` with these fields and instructions."""
    # Users pass anything.
    if instructions is not None and not isinstance(instructions, str):
        raise SignatureError(f"`instructions` must be a string, found {shown(instructions)}.")
    name = name or cls.__name__
    for field_name in fields:
        check_name(name, field_name, _METHODS)
    docstring = instructions
    if instructions:
        # Python accepts no lone surrogates in a docstring.
        docstring = escape_surrogates(instructions)
    body: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": name,
        "__doc__": docstring,
        "__annotations__": {
            field_name: Annotated[field.annotated, field.info()]
            for field_name, field in fields.items()
        },
    }
    # The new class inherits from the nearest class without fields, because inherited fields cannot
    # be removed or reordered. That class may have methods.
    base = next(
        ancestor
        for ancestor in cast("Any", cls.__mro__)
        if issubclass(ancestor, Signature) and not _has_fields(ancestor)
    )
    # Pydantic's metaclass, not `SignatureType`, makes the class: the fields are checked already.
    signature: Any = _ModelMetaclass.__new__(cast("Any", type(base)), name, (base,), body)
    signature.__instructions__ = instructions
    signature.__validated_by__ = validated_by or cls.__validated_by__
    if any(has_text(field.annotation) for field in fields.values()):
        # Pydantic has resolved the types that are written as text.
        fields = class_fields(signature)
    signature.__plan__ = compile_signature(signature, fields)
    return signature


def _has_fields(cls: SignatureType) -> bool:
    if cls is Signature:
        return False
    if cls.__plan__:
        return bool(cls.__plan__.fields)
    return bool(cast("Any", cls).model_fields)


def _pickled(cls: SignatureType) -> str | tuple[Any, ...]:
    """Pickle a signature by name if its module has it under that name.

    Otherwise, as for one made from text, by its fields.
    """
    named: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        named = getattr(named, part, None)
    if named is cls:
        return cls.__qualname__
    plan = cls.plan
    arguments = (
        Signature,
        plan.fields,
        plan.author_instructions,
        cls.__name__,
        cls.__validated_by__,
    )
    return _make_class, arguments


copyreg.pickle(SignatureType, _pickled)
