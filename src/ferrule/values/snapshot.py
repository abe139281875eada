"""Copies of values that a run keeps, so that nothing that happens later changes what it began with.

A replay begins with the inputs as they were. A caller, a `forward` or a tool may change a list or a
model in place, as any code may: so the run keeps a copy, and gives away copies. Whatever can be
changed in place and is stored by its parts is copied part by part: containers, models of pydantic,
dataclasses. All else, such as a tool or a connection, is shared.
"""

from __future__ import annotations

import copy
from collections import deque
from typing import Any, cast

from ferrule.encoding.encode import SCALARS, is_read_once
from ferrule.errors import InputError
from ferrule.values.content.type import Type
from ferrule.values.conversation.history import History


def snapshot(value: Any) -> Any:
    """A copy of a value, with its generators read.

    Raises `InputError` for a container that contains itself.
    """
    try:
        return _Copying(reads=True).copy(value)
    except RecursionError:
        raise InputError(
            "An input contains itself, or is nested too deeply to be stored for a replay."
        ) from None


def own_copy(value: Any) -> Any:
    """A copy of a value. Generators stay unread, for the `forward` to read."""
    try:
        return _Copying(reads=False).copy(value)
    except RecursionError:
        return value


class _Copying:
    def __init__(self, *, reads: bool) -> None:
        self._reads = reads
        self._records: dict[int, Any] = {}
        """The copies of models and dataclasses by the id of the original: they may form circles."""

    def copy(self, value: Any) -> Any:
        kind = cast("type[Any]", type(value))
        if kind in SCALARS:  # most inputs
            return value
        if kind is dict:
            return {key: self.copy(item) for key, item in value.items()}
        if kind is list:
            return [self.copy(item) for item in value]
        if kind is tuple:
            return tuple([self.copy(item) for item in value])
        if kind is History:
            return value.copy()
        if isinstance(value, Type):
            return value
        if hasattr(kind, "__pydantic_fields__") or hasattr(kind, "__dataclass_fields__"):
            return self._copy_record(value)
        if issubclass(kind, (dict, list, set, deque, bytearray)):
            return self._copy_container(value)
        if self._reads and is_read_once(value):
            return [self.copy(item) for item in value]
        return value

    def _copy_record(self, record: Any) -> Any:
        if id(record) in self._records:
            return self._records[id(record)]
        copied = self._records[id(record)] = copy.copy(record)
        names = {*getattr(record, "__dict__", {}), *getattr(record, "__dataclass_fields__", {})}
        # The fields that are not declared, where a model of pydantic allows them.
        if getattr(record, "__pydantic_extra__", None):
            names.add("__pydantic_extra__")
        for name in names:
            if hasattr(record, name):
                # Past the validation and the freezing of its class: the values are the same.
                object.__setattr__(copied, name, self.copy(getattr(record, name)))
        return copied

    def _copy_container(self, container: Any) -> Any:
        """A set or an array of bytes, or a container of a subclass, such as a `defaultdict`."""
        copied = copy.copy(container)
        if isinstance(container, dict):
            for key, item in cast("dict[Any, Any]", container).items():
                copied[key] = self.copy(item)
        elif isinstance(container, (list, deque)):
            for number, item in enumerate(cast("list[Any]", container)):
                copied[number] = self.copy(item)
        return copied
