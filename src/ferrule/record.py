"""`Record` and `MutableRecord`: base classes of plain slotted values (a `Record` is frozen); and `Log`, an append-only sequence.

Records are like `@dataclass(frozen=True, slots=True)`, but generate no code at import. A dataclass
compiles its methods when it is defined, which takes half a millisecond, and ferrule has more than
sixty values. A record compiles its `__init__` after a few instances, and then costs the same as a
dataclass. Until then, a loop fills the fields: most classes have few instances in a short program.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    dataclass_transform,
    overload,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from inspect import Signature

_MISSING: Any = object()
_FEW = 32
"""The instances of one class that are made without a compiled `__init__`: compiling it takes as long as making a hundred of these."""
P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound="_Plain")


class _Spec:
    """The settings of one field."""

    __slots__ = ("compare", "default", "factory", "init", "kw_only", "repr")

    def __init__(
        self,
        default: Any,
        factory: Any,
        *,
        init: bool,
        compare: bool,
        shown: bool,
    ) -> None:
        self.default = default
        self.factory = factory
        self.init = init
        self.compare = compare
        self.repr = shown
        self.kw_only = False


def field(
    *,
    default: Any = _MISSING,
    default_factory: Callable[[], Any] = _MISSING,
    init: bool = True,
    compare: bool = True,
    repr: bool = True,
) -> Any:
    """A field with settings, like `dataclasses.field`."""
    return _Spec(default, default_factory, init=init, compare=compare, shown=repr)


class _Kind(type):
    """The metaclass of records. Turns annotations into slots before the class exists."""

    __record_fields__: dict[str, _Spec]

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, kw_only: bool = False, weak: bool = False,
    ) -> Any:  # fmt: skip
        specs: dict[str, _Spec] = {
            key: spec
            for base in reversed(bases)
            for key, spec in getattr(base, "__record_fields__", {}).items()
        }
        own: list[str] = []
        for key, annotation in namespace.get("__annotations__", {}).items():
            if str(annotation).startswith(("ClassVar", "typing.ClassVar")):
                continue
            given = namespace.pop(key, _MISSING)
            spec = (
                given
                if isinstance(given, _Spec)
                else _Spec(given, _MISSING, init=True, compare=True, shown=True)
            )
            spec.kw_only = kw_only
            specs[key] = spec
            own.append(key)
        namespace["__slots__"] = (*own, "__weakref__") if weak else tuple(own)
        namespace["__record_fields__"] = specs
        namespace["__match_args__"] = tuple(
            key for key, spec in specs.items() if spec.init and not spec.kw_only
        )
        made: Any = super().__new__(mcs, name, bases, namespace)
        if "__init__" not in namespace:
            made.__init__ = _first_init(made)
        return made

    @property
    def __signature__(cls) -> Signature:
        """The constructor's arguments, for `help` and `inspect.signature`."""
        from inspect import signature  # late: few programs ask

        init: Any = cls.__init__
        found = signature(_compiled(cls) if init.__module__ == __name__ else init)
        return found.replace(parameters=list(found.parameters.values())[1:])


def _first_init(cls: Any) -> Any:
    """The `__init__` for a class's first instances. Several threads may call it at once."""
    made = 0

    def __init__(self: Any, *args: Any, **keywords: Any) -> None:  # noqa: N807
        nonlocal made
        made += 1
        values = _values(cls, args, keywords) if made <= _FEW else None
        if (
            values is None
        ):  # enough instances, or arguments that the compiled one refuses as any function does
            if vars(cls)["__init__"] is __init__:
                cls.__init__ = _compiled(cls)
            cls.__init__(self, *args, **keywords)
            return
        is_mutable = cls.__setattr__ is object.__setattr__
        for key, value in values.items():
            if is_mutable:
                setattr(self, key, value)
            else:
                getattr(cls, key).__set__(self, value)
        if hasattr(cls, "__post_init__"):
            self.__post_init__()

    return __init__


def _values(cls: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any] | None:
    """The value of every field; None if the arguments do not fit."""
    specs: dict[str, _Spec] = cls.__record_fields__
    positional = cls.__match_args__
    values = dict(zip(positional, args, strict=False)) | keywords
    if len(args) > len(positional) or len(values) < len(args) + len(keywords):
        return None
    for key, spec in specs.items():
        if key not in values:
            values[key] = spec.default if spec.factory is _MISSING else spec.factory()
            if values[key] is _MISSING and spec.init:
                return None
        elif not spec.init:
            return None
    return values if len(values) == len(specs) else None


def _compiled(cls: Any) -> Any:
    """Compile the class's `__init__`, field by field."""
    arguments, values, names = _fields_in_code(cls)
    body = [f"self.{key} = {value}" for key, value in values.items()]
    if cls.__setattr__ is not object.__setattr__:
        closed: list[str] = []
        for i, (key, value) in enumerate(values.items()):
            names[f"_set{i}"] = getattr(cls, key).__set__
            closed.append(f"_set{i}(self, {value})")
        body = _filled_open(cls, names, body, closed) if _may_set_class() else closed
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    made_init = _function("__init__", ["self", *arguments], body or ["pass"], names)
    made_init.__qualname__ = f"{cls.__qualname__}.__init__"
    return made_init


def _filled_open(
    cls: Any,
    names: dict[str, Any],
    opened: list[str],
    closed: list[str],
) -> list[str]:
    """Code that fills a frozen instance while it has the class `_open_class`. Not for a subclass's instance: its layout may differ."""
    names |= {
        "_class": cls,
        "_open": _open_class(cls),
        "_set_class": vars(object)["__class__"].__set__,
    }
    steps = ["_set_class(self, _open)", *opened, "self.__class__ = _class"]
    return [
        "if type(self) is _class:",
        *(f"    {line}" for line in steps),
        "else:",
        *(f"    {line}" for line in closed or ["pass"]),
    ]


def _may_set_class() -> bool:
    """Whether setting an object's class is cheap: Python without the GIL stops all threads for it."""
    return getattr(sys, "_is_gil_enabled", lambda: True)()


def _open_class(cls: Any) -> Any:
    """An unfrozen subclass with the same layout, because calling a field's descriptor takes ten times as long as setting an attribute."""
    kept = {
        key: found.slot
        for key in cls.__record_fields__
        if hasattr(found := getattr(cls, key), "slot")
    }
    open_to_changes = {
        "__slots__": (),
        "__init__": object.__init__,
        "__setattr__": object.__setattr__,
        "__delattr__": object.__delattr__,
    }
    return type.__new__(_Kind, cls.__name__, (cls,), kept | open_to_changes)


def _fields_in_code(cls: Any) -> tuple[list[str], dict[str, str], dict[str, Any]]:
    """For a function that makes an instance: its arguments, the expression for each field's value, and the names that these use."""
    names: dict[str, Any] = {"_MISSING": _MISSING}
    positional: list[str] = []
    keyword: list[str] = []
    values: dict[str, str] = {}
    for i, (key, spec) in enumerate(cls.__record_fields__.items()):
        names[f"_default{i}"] = spec.default
        # `dict[str, int]()` returns a `dict` and takes five times as long as `dict()`.
        names[f"_make{i}"] = getattr(spec.factory, "__origin__", spec.factory)
        made = f"_make{i}()" if spec.factory is not _MISSING else f"_default{i}"
        if spec.init:
            optional = (
                "=_MISSING"
                if spec.factory is not _MISSING
                else f"=_default{i}"
                if spec.default is not _MISSING
                else ""
            )
            (keyword if spec.kw_only else positional).append(key + optional)
            values[key] = (
                f"{made} if {key} is _MISSING else {key}" if spec.factory is not _MISSING else key
            )
        else:
            values[key] = made
    return [*positional, *(["*", *keyword] if keyword else [])], values, names


def _function(name: str, arguments: list[str], body: list[str], names: dict[str, Any]) -> Any:
    source = [f"def {name}({', '.join(arguments)}):", *(f"    {line}" for line in body)]
    exec("\n".join(source), names)  # noqa: S102  made only from a class's own fields, as in dataclasses
    return names[name]


def maker(cls: Callable[P, T]) -> Callable[P, T]:
    """A function that makes records of a class in a third of the time that the class takes: for records that every step makes.

    It fills an instance of an unfrozen subclass, and then sets the class of that instance. Unlike
    `__init__`, it is compiled at import, in a tenth of a millisecond. Where setting a class is
    slow, this returns the class itself.
    """
    if not _may_set_class():
        return cls
    arguments, values, names = _fields_in_code(cls)
    names |= {"_class": cls, "_open": _open_class(cls)}
    filling = [f"self.{key} = {value}" for key, value in values.items()]
    return _function(
        "make",
        arguments,
        ["self = _open()", *filling, "self.__class__ = _class", "return self"],
        names,
    )


class _Plain(metaclass=_Kind):
    """Equality, `repr`, copying and pickling by fields."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(
            getattr(self, name) == getattr(other, name)
            for name, spec in type(self).__record_fields__.items()
            if spec.compare
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]  a mutable value has no hash; `Record` adds one

    def __repr__(self) -> str:
        shown = (
            f"{name}={getattr(self, name)!r}"
            for name, spec in type(self).__record_fields__.items()
            if spec.repr
        )
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __getstate__(self) -> list[Any]:
        return [getattr(self, name) for name in type(self).__record_fields__]

    def __setstate__(self, state: Iterable[Any]) -> None:
        for name, value in zip(type(self).__record_fields__, state, strict=True):
            object.__setattr__(self, name, value)


@dataclass_transform(field_specifiers=(field,))
class MutableRecord(_Plain):
    """A mutable record. `class X(MutableRecord, kw_only=True)` is keyword-only.

    Its `__init__` sets attributes normally, so that a subclass's property applies. Values that
    every run or step makes are mutable records even if nothing changes them: a frozen record takes
    1.6 times as long to make.
    """


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record(_Plain):
    """A frozen record. `class X(Record, kw_only=True)` is keyword-only."""

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} is frozen; use `replace(it, {name}=...)`")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} is frozen")

    def __hash__(self) -> int:
        return hash(
            tuple(
                getattr(self, name)
                for name, spec in type(self).__record_fields__.items()
                if spec.compare
            ),
        )


class FrozenFields(dict[str, Any]):
    """The `__dict__` of a model that is made anew at each access. Setting a field raises: the change would be lost. Copies can change."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self:
            raise AttributeError(
                f"the field is frozen; use `it.model_copy(update={{{name!r}: ...}})`",
            )
        super().__setitem__(name, value)  # a cached property

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def fields_of(record: _Plain) -> dict[str, Any]:
    """A record's fields by name."""
    return {name: getattr(record, name) for name in type(record).__record_fields__}


def replace(record: R, **changes: Any) -> R:
    """A copy with some fields changed."""
    specs = type(record).__record_fields__
    kept = {
        name: getattr(record, name)
        for name, spec in specs.items()
        if spec.init and name not in changes
    }
    return type(record)(**kept, **changes)


class Log(Sequence[T], Generic[T]):
    """An immutable sequence with cheap appending: a view of the first `len(self)` items of a shared list.

    `then` returns a longer view and leaves this one unchanged. If this view ends where the shared
    list ends, the list grows in place; otherwise another view was extended first, and the list is
    copied (a fork). No lock is needed: if two threads extend one view at once, each checks whether
    the list grew by its own items only, and otherwise copies.
    """

    __slots__ = ("_items", "_length")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: list[T] = list(items)
        self._length = len(self._items)

    def then(self, *items: T) -> Self:
        """A view of these items followed by `items`."""
        shared, length = self._items, self._length
        if len(shared) == length:
            shared.extend(items)
            end = length + len(items)
            if (
                len(shared) == end
            ):  # otherwise another thread appended, too, before these items or after them
                return self._view(end)
        longer = self._view(length)
        longer._fork(items)  # noqa: SLF001  another object of this class
        return longer

    def _view(self, length: int) -> Self:
        view = object.__new__(type(self))
        view._items, view._length = self._items, length
        return view

    def _fork(self, items: tuple[T, ...]) -> None:
        """Continue with a separate list."""
        self._items = [*self._items[: self._length], *items]
        self._length = len(self._items)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return self._items[: self._length][index]
        if not -self._length <= index < self._length:
            raise IndexError(f"index {index} is outside a log of {self._length}")
        return self._items[index if index >= 0 else self._length + index]

    def __iter__(self) -> Iterator[T]:
        items = self._items
        return (items[i] for i in range(self._length))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return False
        return list(self) == list(cast("Sequence[Any]", other))

    __hash__ = None  # pyright: ignore[reportAssignmentType]  compared by content, and views of one list differ

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (list(self),))
