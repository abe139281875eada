"""Locks of modules in the child of a fork."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def renew_in_child(module: dict[str, Any], **locks: Callable[[], object]) -> None:
    """Replace locks of a module (its `globals()`) in the child of a fork: a thread of the parent may have held them."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
        os.register_at_fork(
            after_in_child=lambda: module.update({name: make() for name, make in locks.items()}),
        )
