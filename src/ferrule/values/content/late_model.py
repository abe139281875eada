"""`LateModelType`: the metaclass of models that pydantic builds when something first needs their fields, validator or schema.

The first model that pydantic builds loads `pydantic.fields`, which takes a third as long as all of `import pydantic`. A process that makes
and reads calls, tools and signatures, but has pydantic validate and dump none, does not pay for it (docs/decisions/0013).
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydantic._internal._model_construction import ModelMetaclass
    from pydantic.fields import FieldInfo
    from typing_extensions import TypeIs
else:
    ModelMetaclass = type(BaseModel)

_BODY, _BUILT = "__late_body__", "__late_class__"
_ATTRIBUTES = (
    *("__class_vars__", "__private_attributes__", "__pydantic_complete__", "__pydantic_computed_fields__", "__pydantic_core_schema__"),
    *("__pydantic_custom_init__", "__pydantic_extra_info__", "__pydantic_fields__", "__pydantic_generic_metadata__"),
    *("__pydantic_post_init__", "__pydantic_serializer__", "__pydantic_setattr_handlers__", "__pydantic_validator__", "__signature__"),
)
"""What pydantic gives to the class of each model. Its decorators are missing: nothing reads them before the fields."""
_LOCK = RLock()
_building: dict[type, int] = {}
"""The classes that are being built, each with its thread."""


class _LateField:
    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def late_field(make: Callable[[], Any]) -> Any:
    """A field of a late class, by a function that calls `pydantic.Field`."""
    return _LateField(make)


class _Existing(ABCMeta):
    """Stands below pydantic's metaclass, which asks it for a new class: it returns the class that exists already."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> Any:
        cls = namespace.pop(_BUILT, None)
        if cls is None:
            return super().__new__(mcs, name, bases, namespace, **kwargs)
        known: set[str] = {*vars(cls)}
        for key in namespace.keys() - known - {"__classcell__"} | {"model_config", "__annotations__"}:
            type.__setattr__(cls, key, namespace[key])
        return cls


class LateModelType(ModelMetaclass, _Existing):
    """A class with the keyword `late` is built late; its subclasses without the keyword are built at once, as any model."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        late: bool | Callable[[], dict[str, Any]] = False,
        **kwargs: Any,
    ) -> Any:
        """Make the class; if it is late, without pydantic and without the defaults of its fields.

        `late` may be a function that returns the annotations of the fields with all that pydantic should know of them.
        """
        if not late:
            return super().__new__(mcs, name, bases, namespace, **kwargs)
        fields = namespace.get("__annotations__", {}).keys() - {"model_config"}
        own = {key: value for key, value in namespace.items() if key not in fields}
        made = cast("Any", ABCMeta.__new__)(mcs, name, (_awaiting(), *bases), own)
        type.__setattr__(made, _BODY, {**namespace, **({"__annotations__": _LateField(late)} if callable(late) else {})})
        return made


def build(cls: Any) -> None:
    """Have pydantic build a class that is late and not built yet. Several threads may ask at once."""
    with _LOCK:
        own: dict[str, Any] = {**vars(cls)}
        body: dict[str, Any] | None = own.get(_BODY)
        if body is None or cls in _building:
            return
        _building[cls] = get_ident()
        try:
            made = {key: value.make() if isinstance(value, _LateField) else value for key, value in body.items()}
            # Without the parent's namespace: names in annotations are the module's, not those of the first caller.
            kwargs: Any = {"__pydantic_reset_parent_namespace__": False}
            ModelMetaclass.__new__(cast("Any", type(cls)), cls.__name__, cls.__bases__, {**made, _BUILT: cls}, **kwargs)
            type.__delattr__(cls, _BODY)
        finally:
            del _building[cls]


def is_field_info(value: Any) -> TypeIs[FieldInfo]:
    """Whether a value is pydantic's `FieldInfo`. As long as `pydantic.fields` is not loaded, none is."""
    fields = sys.modules.get("pydantic.fields")
    return fields is not None and isinstance(value, fields.FieldInfo)


def is_late(cls: type) -> bool:
    """Whether the class has not been built."""
    return _BODY in vars(cls)


def is_building(cls: type) -> bool:
    """Whether this thread is building the class."""
    return bool(_building) and _building.get(cls) == get_ident()


class _Awaited:
    """An attribute that pydantic gives to the class of each model: reading it has the class built."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: Any) -> Any:
        if is_late(owner) and not is_building(owner):
            build(owner)
            return getattr(owner, self._name)
        for value in self._above(owner):
            return value.__get__(None, owner) if hasattr(value, "__get__") else value
        raise AttributeError(self._name)

    def _above(self, owner: Any) -> Iterator[Any]:
        classes: tuple[type, ...] = owner.__mro__
        found = (vars(each)[self._name] for each in classes if self._name in vars(each))
        return (value for value in found if not isinstance(value, _Awaited))


_AWAITED = {name: _Awaited(name) for name in _ATTRIBUTES}


def _awaiting() -> type:
    """A base with the awaited attributes. They cannot stand in the class itself, where pydantic looks for what it has built.

    Each class has its own: one that all share would stand above the bases, which may have been built.
    """
    return type("Late", (), {"__slots__": (), "__module__": __name__, **_AWAITED})
