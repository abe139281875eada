"""`Context`: what a tool may know and use of the call it is in; and what a `reconcile=` may say beside a result.

A tool gets one by annotating a parameter with it. The parameter is no part of the schema, and no argument of a model ever reaches it.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, cast

from typing_extensions import TypeVar

from ferrule.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Deps = TypeVar("Deps", default=Any)


def key_of(run_id: str, slot: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """Names one call of one run to services that tell repeats by a key; `slot` is its position, `arguments` are plain JSON."""
    return sha256(json.dumps([run_id, slot, tool, arguments], sort_keys=True).encode()).hexdigest()


class NotDone:
    """What a tool's `reconcile=` returns (the class or an instance): the effect has not happened, so the call is to run."""


class Unknown:
    """What a tool's `reconcile=` returns (the class or an instance): it cannot be told whether the effect has happened."""


class Context(Generic[Deps]):
    """The call that is going on. A run makes one for each call; make one by hand, `Context(deps=...)`, to test a tool alone."""

    __slots__ = ("_db", "_is_over", "_stopped", "_tell", "call_id", "deps", "key", "run_id")

    run_id: str
    """The run; empty outside of one."""
    call_id: str
    """The model's id of the call, or its position where the model gave none. Not the same after a retry of the model: see `key`."""
    key: str
    """64 hexadecimal digits: the same in every attempt of this call, in whatever process; another for any other call (`durability`, R5)."""
    deps: Deps
    """What `start(deps=...)` was given: connections, secrets, the user. Never journalled."""

    def __init__(
        self,
        *,
        run_id: str = "",
        call_id: str = "",
        key: str = "",
        deps: Deps | None = None,
        db: Any = None,
        tell: Callable[[str, float | None, float | None], None] | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> None:
        self.run_id = run_id
        self.call_id = call_id
        self.key = key
        self.deps = cast("Deps", deps)
        self._db = db
        self._tell = tell
        self._stopped = stopped
        self._is_over = False

    @property
    def db(self) -> Any:
        """The store's database, in a transaction that also records the result: for tools with `effect="transactional"`.

        It has `execute` and `executemany`, as `sqlite3.Connection` has them, which return rows to be read. What is written through it is
        there if, and only if, the result is; a tool that raises, or whose time is up, undoes it. Other tools get a `ConfigurationError`.
        """
        if self._db is None:
            msg = '`ctx.db` is for tools with `effect="transactional"`, in a run with a store: program.start(store=SQLiteStore(...), ...).'
            raise ConfigurationError(msg)
        return self._db

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more: the run was cancelled, the time was up, or the call has ended.

        A sync tool that takes long looks at this now and then and returns: its thread cannot be stopped from outside.
        """
        return self._is_over or (self._stopped is not None and self._stopped())

    def progress(self, message: str = "", *, done: float | None = None, total: float | None = None) -> None:
        """Tell the run's observers how far the call is."""
        if self._tell is not None:
            self._tell(message, done, total)

    def end(self) -> None:
        """Called by whoever ran the tool: nothing that still works on this call is waited for."""
        self._is_over = True

    def __repr__(self) -> str:
        return f"Context(run_id={self.run_id!r}, call_id={self.call_id!r}, key={self.key!r})"  # `deps` may hold secrets
