"""Copies of a program's attributes."""

from __future__ import annotations

import copy
from typing import Any, cast


def copied(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy; or the value itself, if it holds something that cannot be copied, such as a lock, a socket or a generator."""
    attempt = dict(memo)  # a separate memo: a copy that fails leaves unfinished objects there
    try:
        found = copy.deepcopy(value, attempt)
    except TypeError as error:
        if "cannot pickle" not in str(error):
            raise
        return value
    kept = attempt.pop(
        id(attempt),
        [],
    )  # here `copy` keeps copied objects alive, by an id that is free when `attempt` is gone
    memo.update(attempt)
    cast("Any", memo).setdefault(id(memo), []).extend(kept)
    return found
