"""`LateModelType`: the metaclass of models that pydantic builds on first use of their fields, validator or schema.

Building a first model loads `pydantic.fields`, which takes a third as long as `import pydantic`. A
process that makes and reads calls, tools and signatures, but never validates or dumps them with
pydantic, avoids this (docs/decisions/0013).
"""

from __future__ import annotations

import os
import sys
from abc import ABCMeta
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic._internal._model_construction import ModelMetaclass
    from pydantic.fields import FieldInfo
    from typing_extensions import TypeIs
else:
    ModelMetaclass = type(BaseModel)

_BODY, _BUILT = "__late_body__", "__late_class__"
_LOCK = RLock()
_building: dict[type, int] = {}
"""The classes that are being built, each with its thread."""
if hasattr(os, "register_at_fork"):  # a thread of the parent may have been building
    os.register_at_fork(after_in_child=lambda: globals().update(_LOCK=RLock(), _building={}))
_ATTRIBUTES = (
    *(
        "__class_vars__",
        "__private_attributes__",
        "__pydantic_complete__",
        "__pydantic_computed_fields__",
        "__pydantic_core_schema__",
    ),
    *(
        "__pydantic_custom_init__",
        "__pydantic_extra_info__",
        "__pydantic_fields__",
        "__pydantic_generic_metadata__",
    ),
    *(
        "__pydantic_post_init__",
        "__pydantic_serializer__",
        "__pydantic_setattr_handlers__",
        "__pydantic_validator__",
        "__signature__",
    ),
)
"""The attributes that pydantic sets on each model class, except its decorators: pydantic reads those of a base from its `__dict__`."""


class _LateField:
    """A value of a class body that is made when the class is built."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def late_field(make: Callable[[], Any]) -> Any:
    """Declare a field of a late class. `make` returns its `pydantic.Field`, and is called when the class is built."""
    return _LateField(make)


class _Existing(ABCMeta):
    """Comes after pydantic's metaclass in the MRO. When pydantic asks for a new class, this returns the late class that exists already."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        **kwargs: Any,
    ) -> Any:
        cls = namespace.pop(_BUILT, None)
        if cls is None:
            return super().__new__(mcs, name, bases, namespace, **kwargs)
        known: set[str] = {*vars(cls)}
        for key in namespace.keys() - known - {"__classcell__"} | {
            "model_config",
            "__annotations__",
        }:
            type.__setattr__(cls, key, namespace[key])
        return cls


class LateModelType(ModelMetaclass, _Existing):
    """Builds a class late if it has the keyword `late`. Subclasses without the keyword are built at once, as any model."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        late: bool | Callable[[], dict[str, Any]] = False,
        **kwargs: Any,
    ) -> Any:
        """Make the class. A late one is made without pydantic, and without the defaults of its fields.

        `late` may be a function that returns the annotations of the fields, with a `FieldInfo` in
        each.
        """
        if not late:
            return super().__new__(mcs, name, bases, namespace, **kwargs)
        fields = namespace.get("__annotations__", {}).keys() - {"model_config"}
        own = {key: value for key, value in namespace.items() if key not in fields}
        made = cast("Any", ABCMeta.__new__)(mcs, name, (_awaiting(), *bases), own)
        type.__setattr__(
            made,
            _BODY,
            {**namespace, **({"__annotations__": _LateField(late)} if callable(late) else {})},
        )
        return made


def build(cls: Any) -> None:
    """Have pydantic build a late class, once. Other threads that need the class wait."""
    with _LOCK:
        own: dict[str, Any] = {**vars(cls)}
        body: dict[str, Any] | None = own.get(_BODY)
        if body is None or cls in _building:
            return
        _building[cls] = get_ident()
        try:
            made = {
                key: value.make() if isinstance(value, _LateField) else value
                for key, value in body.items()
            }
            # Without the parent's namespace: names in annotations are the module's, not those of
            # the first caller.
            kwargs: Any = {"__pydantic_reset_parent_namespace__": False}
            ModelMetaclass.__new__(
                cast("Any", type(cls)),
                cls.__name__,
                cls.__bases__,
                {**made, _BUILT: cls},
                **kwargs,
            )
            type.__delattr__(cls, _BODY)
        finally:
            del _building[cls]


def is_field_info(value: Any) -> TypeIs[FieldInfo]:
    """Whether a value is a `FieldInfo` of pydantic. It cannot be while `pydantic.fields` is not loaded."""
    fields = sys.modules.get("pydantic.fields")
    return fields is not None and isinstance(value, fields.FieldInfo)


def is_late(cls: type) -> bool:
    """Whether the class has not been built yet."""
    return _BODY in vars(cls)


def is_building(cls: type) -> bool:
    """Whether this thread is building the class."""
    return (
        bool(_building) and _building.get(cls) == get_ident()
    )  # the second is slow: a signature is hashed by Python code


class _Awaited:
    """An attribute that pydantic sets on the class of each model. Reading it builds the class."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: Any) -> Any:
        if is_late(owner) and not is_building(owner):
            build(owner)
            return getattr(owner, self._name)
        classes: tuple[type, ...] = owner.__mro__
        for each in classes:
            value: Any = vars(each).get(self._name, self)
            if not isinstance(value, _Awaited):
                return value.__get__(None, owner) if hasattr(value, "__get__") else value
        raise AttributeError(self._name)


_AWAITED = {name: _Awaited(name) for name in _ATTRIBUTES}


def _awaiting() -> type:
    """A base with the awaited attributes, which hides those of the other bases.

    The class itself must not have them, because pydantic looks there for what it has built.
    """
    return type("Late", (), {"__slots__": (), "__module__": __name__, **_AWAITED})
