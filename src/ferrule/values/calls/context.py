"""`Context`, which gives a tool access to its current call; and the answers of `reconcile=`.

A tool gets a context by annotating a parameter with it. The parameter is not in the schema, and a
model cannot set it. A `forward` and an output validator get theirs in the same way.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, Protocol, cast

from typing_extensions import TypeVar

from ferrule.errors import ConfigurationError, checks_keywords

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ferrule.values.calls.call import ToolCall, ToolResult

Deps = TypeVar("Deps", default=Any)
HOW_TO_GIVE_DEPS = (
    "Pass them: program(..., deps=...), program.start(..., deps=...), run.resume(deps=...), "
    "Run.load(..., deps=...), or `--deps module:factory` of `ferrule ask` and `ferrule resume`; "
    "in a test of a tool, Context(deps=...)."
)


def key_of(run_id: str, slot: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """The idempotency key of one call of one run.

    `slot` is its position, `arguments` are plain JSON. The key must be equal in every process, so
    it depends on nothing else.
    """
    parts = json.dumps([run_id, slot, tool, arguments], sort_keys=True)
    return sha256(parts.encode()).hexdigest()


class NotDone:
    """A tool's `reconcile=` returns it if the effect has not happened, so that the call must run.

    It may return the class or an instance.
    """

    is_shown_to_a_model = False


class Unknown:
    """A tool's `reconcile=` returns it if it cannot find out whether the effect has happened.

    It may return the class or an instance.
    """

    is_shown_to_a_model = False


class RunSoFar(Protocol):
    """What a context reads of its run."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """See `Context.inputs`."""
        ...

    @property
    def calls(self) -> Sequence[tuple[ToolCall, ToolResult]]:
        """See `Context.calls`."""
        ...

    @property
    def sources(self) -> Sequence[Any]:
        """See `Context.sources`."""
        ...

    @property
    def user_words(self) -> Sequence[str]:
        """See `Context.user_words`."""
        ...

    def results_here(self) -> Sequence[ToolResult]:
        """The results of the program that makes this call, the latest first."""
        ...


class Context(Generic[Deps]):
    """The current call of a tool.

    A run makes one for each call; make one yourself, `Context(deps=...)`, to test a tool.

    In a `forward`, an output validator and a condition of a rule it has `deps`, `run_id`, `inputs`,
    `calls` and `cancelled`; the rest belongs to calls.
    """

    __slots__ = (
        "_db",
        "_deps",
        "_is_over",
        "_may_lack_deps",
        "_result_url",
        "_so_far",
        "_stopped",
        "_tell",
        "call_id",
        "key",
        "run_id",
    )

    run_id: str
    """The run's id; empty outside a run."""
    call_id: str
    """The model's id of the call, or its position if the model gave none.

    It changes when the model is retried; `key` does not.
    """
    key: str
    """64 hexadecimal digits, different for every call.

    They are the same in every attempt of this call, in any process.
    """

    @checks_keywords
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
        so_far: RunSoFar | None = None,
        result_url: str | Callable[[], str] = "",
    ) -> None:
        self.run_id = run_id
        self.call_id = call_id
        self.key = key
        self._deps = deps
        self._may_lack_deps = False
        self._db = db
        self._tell = tell
        self._stopped = stopped
        self._so_far = so_far
        self._result_url = result_url
        self._is_over = False

    @property
    def deps(self) -> Deps:
        """The run's argument `deps=`: connections, secrets, the user. Not journalled.

        Raises `ConfigurationError` if none was passed.
        """
        if self._deps is None and not self._may_lack_deps:
            raise ConfigurationError(
                f"`ctx.deps` was read, and no `deps` were passed. {HOW_TO_GIVE_DEPS}"
            )
        return cast("Deps", self._deps)

    @property
    def has_deps(self) -> bool:
        """Whether `deps` were passed."""
        return self._deps is not None

    def without_deps(self) -> None:
        """Let `deps` be None: the tool declares `Context[X | None]`."""
        self._may_lack_deps = True

    @property
    def db(self) -> Any:
        """The store's database, in a transaction that also records the result.

        It is for tools with `effect="transactional"`. It has `execute` and `executemany`, like
        `sqlite3.Connection`, which return rows. Its writes are committed together with the
        result; if the tool raises or times out, they are rolled
        back. For other tools it raises `ConfigurationError`.
        """
        if self._db is None:
            raise ConfigurationError(
                '`ctx.db` is for tools with `effect="transactional"`, in a run with a store: '
                "program.start(store=SQLiteStore(...), ...)."
            )
        return self._db

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs of the run, by name: a copy, which cannot be changed. Empty outside a run."""
        if self._so_far is None:
            return {}
        return self._so_far.inputs

    @property
    def calls(self) -> Sequence[tuple[ToolCall, ToolResult]]:
        """The calls of the run that have ended, each with its result, in the order of their ends.

        They include those of programs inside it. The arguments are as they ran, and secrets are
        stars. Empty outside a run.
        """
        if self._so_far is None:
            return ()
        return self._so_far.calls

    def results_here(self) -> Sequence[ToolResult]:
        """The whole results of the program that makes this call, the latest first.

        Without those of programs around it, and inside it. Empty outside a run.
        """
        if self._so_far is None:
            return ()
        return self._so_far.results_here()

    @property
    def result_url(self) -> str:
        """The address to which the world posts the result of this call, as JSON.

        For a tool that returns `Later`. It has a signed token for this call alone, which permits to
        deliver the result: give it only to the service that does. Raises `ConfigurationError`
        without the setting `result_links`, or if the run has no store.
        """
        if callable(self._result_url):
            return self._result_url()
        if not self._result_url:
            raise ConfigurationError(
                "`ctx.result_url` is for a tool that a run calls. In a test of the tool, pass one: "
                "Context(result_url='https://...')."
            )
        return self._result_url

    @property
    def sources(self) -> Sequence[Any]:
        """The results so far that others than the user may have written.

        Each has the `tool`, the `number` of the call and the `content`. Empty outside a run.
        """
        if self._so_far is None:
            return ()
        return self._so_far.sources

    @property
    def user_words(self) -> Sequence[str]:
        """What people said in the run: its inputs, messages, replies and edits, earlier turns.

        Empty outside a run.
        """
        if self._so_far is None:
            return ()
        return self._so_far.user_words

    @property
    def cancelled(self) -> bool:
        """Whether the result is no longer needed.

        The run was cancelled, the call timed out, or it has ended. A long sync tool should
        check this from time to time and return: its thread cannot be stopped from outside.
        """
        return self._is_over or (self._stopped is not None and self._stopped())

    def progress(
        self, message: str = "", *, done: float | None = None, total: float | None = None
    ) -> None:
        """Report the call's progress to the run's observers."""
        if self._tell is not None:
            self._tell(message, done, total)

    def end(self) -> None:
        """Mark the call as ended; the runner calls this."""
        self._is_over = True

    def __repr__(self) -> str:
        # `deps` may hold secrets.
        return f"Context(run_id={self.run_id!r}, call_id={self.call_id!r}, key={self.key!r})"
