"""What the values of ferrule add to the structs of msgspec and the models of pydantic.

A struct compares and shows all its fields. A few values carry something that is not part of what
they say: who decided, when an event was sent, a secret. They are `PartlyCompared`.

A struct or a model that is made with a misspelled field raises an error that names no other field,
or ignores it. Those that users make have the metaclass `CheckedStruct` or the mixin `CheckedModel`,
and raise one that names the nearest field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import StructMeta

from ferrule.errors import refuse_unknown


class PartlyCompared:
    """A mixin for a `Struct`, listed before it: `class Answer(PartlyCompared, Struct)`.

    It goes before `Struct` because Python takes the first `__eq__` that it finds.
    """

    __slots__ = ()

    _not_compared: ClassVar[frozenset[str]] = frozenset()
    """The fields that equality and hash ignore."""
    _not_shown: ClassVar[frozenset[str]] = frozenset()
    """The fields that `repr` leaves out."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(
            getattr(self, name) == getattr(other, name)
            for name in _fields(self)
            if name not in self._not_compared
        )

    def __hash__(self) -> int:
        if not _config(self).frozen:
            raise TypeError(f"unhashable type: {type(self).__name__!r}")
        compared = (name for name in _fields(self) if name not in self._not_compared)
        return hash(tuple(getattr(self, name) for name in compared))

    def __repr__(self) -> str:
        fields = (
            f"{name}={getattr(self, name)!r}"
            for name in _fields(self)
            if name not in self._not_shown
        )
        return f"{type(self).__qualname__}({', '.join(fields)})"


def _fields(struct: Any) -> tuple[str, ...]:
    return struct.__struct_fields__


def _config(struct: Any) -> Any:
    return struct.__struct_config__


class CheckedStruct(StructMeta):
    """The metaclass of a struct that refuses unknown fields with `refuse_unknown`.

    A metaclass, because a struct has no `__init__`: its class is what a user calls. It makes the
    creation slower. Structs that a run makes for each token or event do not have it.
    """

    if not TYPE_CHECKING:  # type checkers shall see the fields of the struct

        def __call__(self, *values: Any, **fields: Any) -> Any:
            """Make a struct."""
            try:
                return super().__call__(*values, **fields)
            except TypeError:
                if fields.keys() <= set(self.__struct_fields__):
                    raise
            return refuse_unknown(self.__name__, fields, self.__struct_fields__)


class CheckedModel:
    """A mixin for a pydantic model, listed before it: unknown fields raise `ConfigurationError`.

    It checks what Python code passes, and nothing that pydantic validates, such as JSON.
    """

    if not TYPE_CHECKING:

        def __new__(cls, *_values: Any, **fields: Any) -> Any:
            """Make a model, which pydantic then fills."""
            if not fields.keys() <= cls.model_fields.keys():
                refuse_unknown(cls.__name__, fields, _names_of_fields(cls))
            return super().__new__(cls)


def _names_of_fields(model: Any) -> list[str]:
    """The names of a model's fields, with their aliases."""
    names = list(model.model_fields)
    for info in model.model_fields.values():
        aliases = getattr(info.validation_alias, "choices", [info.validation_alias])
        names += [alias for alias in aliases if isinstance(alias, str) and alias not in names]
    return names
