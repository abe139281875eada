"""Settings, and ferrule's one ContextVar.

`configure(...)` sets them for the whole process, `with context(...)` for a block, with its tasks
and worker threads. Environment variables and blocks of other threads never change them. A program
reads its settings once, when it is called: a stream that is read after the block, or a coroutine
that is awaited there, has the settings of the block (`all_in_force`, `with_settings_of_call`).

The same ContextVar also carries the frame of the current run, if any, to nested programs and tools.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial, wraps
from math import inf
from types import ModuleType
from typing import TYPE_CHECKING, Any, Never, TypeVar, cast

from msgspec import Struct, structs

from ferrule.concurrency.forking import ForkLock
from ferrule.concurrency.halting import DEFAULT_GRACE_S
from ferrule.errors import (
    ConfigurationError,
    refuse_async,
    refuse_other_arguments,
    refuse_unknown,
    shown,
)
from ferrule.values.tracebacks import callers_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence
    from contextvars import Token
    from typing import Literal, TypedDict, Unpack

    class Changes(TypedDict, total=False):
        """Settings as keyword arguments; see `Settings`."""

        lm: Any
        adapter: Any
        allow_tool_async_sync_conversion: bool
        callbacks: Sequence[Any]
        grace_s: float | None
        max_workers: int | None
        limits: Any
        prices: Any
        policy: Any
        mcp_confirm: bool | Literal["unhinted"] | None
        result_links: Any
        extra: Mapping[str, Any]


A = TypeVar("A")
R = TypeVar("R")
AsyncMethod = TypeVar("AsyncMethod", bound="Callable[..., Coroutine[Any, Any, Any]]")

_NO_OVERRIDES: Mapping[str, Any] = {}


class Settings(Struct, frozen=True, kw_only=True):
    """One consistent, immutable set of settings."""

    lm: Any = None
    """The model for programs without their own."""
    adapter: Any = None
    """The adapter for programs without their own.

    None means `ChatAdapter(use_native_function_calling=None)`.
    """
    allow_tool_async_sync_conversion: bool = False
    """Whether `tool(...)` of an async tool runs it on the background loop instead of raising."""
    callbacks: tuple[Any, ...] = ()
    """Observers: functions of one event, or objects with `on_module_start`, `on_tool_end`, ..."""
    grace_s: float | None = DEFAULT_GRACE_S
    """For how many seconds a tool whose run is cancelled may end by itself.

    None: for as long as it takes. Then a sync tool runs in the thread of its run.
    """
    max_workers: int | None = None
    """The default number of concurrent runs in `batch`; None means 8."""
    limits: Any = None
    """Bounds on each run (`runs.limits.Limits`); None for no limit."""
    prices: Any = None
    """Prices for models that do not report their cost (`telemetry.prices.Prices`), or None."""
    policy: Any = None
    """Rules that allow, deny or ask about calls by models (`approval.policy.Policy`).

    None leaves it to each tool.
    """
    mcp_confirm: Any = None
    """The default `confirm=` of MCP servers and tools that are listed from then on.

    True, False, "unhinted" or None.
    """
    result_links: Any = None
    """Where results from outside are sent (`approval.result_links.ResultLinks`), or None."""
    extra: Mapping[str, Any] = {}
    """Settings of your own code, by name. Like all settings, they reach tasks and workers."""
    lm_overrides: tuple[tuple[Any, Any], ...] = ()
    """Programs with the models that replace theirs: set by `Module.override`, innermost last."""


class Scope(Struct, frozen=True, eq=False):
    """The settings, frame and tool call in force. Each tool call gets a new one."""

    overrides: Mapping[str, Any] = _NO_OVERRIDES
    frame: Any = None
    """The frame of the run whose `forward` is executing here, or None."""
    call: Any = None
    """The tool call that is executing here (see `runs.observers`), or None."""
    is_adapters_work: bool = False
    """Whether a run's adapter is at work here: the run itself sends the adapter's events."""

    @property
    def tell(self) -> Any:
        """Sends an event to the observers of the tool call or run here; None without any."""
        if self.call is not None:
            return self.call.tell
        if self.frame is not None:
            return self.frame.tell
        return None


_NAMES = frozenset(Settings.__struct_fields__)
_configured = Settings()
_configuring = ForkLock()
_outermost = Scope()
_scope: ContextVar[Scope] = ContextVar("ferrule_scope", default=_outermost)


def configure(*unnamed: Never, **changes: Unpack[Changes]) -> None:
    """Change settings for the whole process; docs/reference/settings.md lists them.

    Raises `ConfigurationError` for an unknown name.
    """
    global _configured
    _refuse_unnamed("configure", unnamed)
    checked = _checked("configure", {**changes})
    with _configuring.lock:
        _configured = structs.replace(_configured, **checked)


def _refuse_unnamed(caller: str, unnamed: tuple[Any, ...]) -> None:
    if unnamed:
        raise ConfigurationError(
            f"`{caller}` takes settings by their names, such as `{caller}(lm=...)`; "
            f"found {shown(unnamed[0])} without one."
        )


@contextmanager
def context(*unnamed: Never, **changes: Unpack[Changes]) -> Generator[None]:
    """Change settings for a `with` block.

    They also hold in the asyncio tasks and ferrule threads that the block starts, but not in
    threads of your own.
    """
    _refuse_unnamed("context", unnamed)
    scope = _scope.get()
    overrides = {**scope.overrides, **_checked("context", {**changes})}
    with entered(Scope(overrides, scope.frame, scope.call)):
        yield


@contextmanager
def overriding_lm(program: Any, lm: Any) -> Generator[None]:
    """Replace the models of a program, and of all that it calls, for a block."""
    here = _scope.get()
    programs = (*setting("lm_overrides"), (program, lm))
    with entered(Scope({**here.overrides, "lm_overrides": programs}, here.frame, here.call)):
        yield


def lm_override_of(program: Any) -> Any:
    """The model that replaces those of a program here; None without a block around it."""
    for overridden, lm in reversed(setting("lm_overrides")):
        if overridden is program:
            return lm
    return None


def current() -> Settings:
    """The settings in force here."""
    overrides = _scope.get().overrides
    if not overrides:
        return _configured
    return structs.replace(_configured, **overrides)


def setting(name: str) -> Any:
    """One setting in force here. Cheaper than `current()`, which builds all of them."""
    overrides = _scope.get().overrides
    if name in overrides:
        return overrides[name]
    return getattr(_configured, name)


def all_in_force() -> Mapping[str, Any]:
    """All settings in force here, for work that begins later (`under`)."""
    return structs.asdict(current())


def is_observed() -> bool:
    """Whether an event would reach an observer: of the current run or tool call, or a callback."""
    scope = _scope.get()
    if scope.call is None and scope.frame is None:
        return bool(setting("callbacks"))
    return scope.tell is not None


# -- scopes


scope: Callable[[], Scope] = _scope.get
"""The scope in force here: settings, frame, tool call."""
enter: Callable[[Scope], Token[Scope]] = _scope.set
"""Put a scope in force until `leave`.

Where an interrupt could come before the token is stored, use `entered`.
"""


def run_in(scope: Scope, function: Callable[[A], R], argument: A) -> R:
    """Call a function in a scope.

    The scope stays in force in the current context afterwards, so run this in a copy of it.
    """
    _scope.set(scope)
    return function(argument)


def leave(token: Token[Scope]) -> None:
    """Restore the scope from before `enter`."""
    # A block inside a generator may end in a different context from the one it began in (an async
    # fixture, an abandoned stream). There the scope was never in force, so there is nothing to
    # restore.
    with suppress(ValueError):
        _scope.reset(token)


def restore_scope(scope: Scope) -> None:
    """Put a scope in force again, after an interrupt that may have come at a block's end."""
    _scope.set(scope)


@contextmanager
def entered(scope: Scope) -> Generator[None]:
    """Put another scope in force for a block."""
    before = _scope.get()
    token: Token[Scope] | None = None
    try:
        token = _scope.set(scope)
        yield
    finally:
        if token is not None:
            leave(token)
        else:  # Ctrl-C came before the token was stored
            _scope.set(before)


@contextmanager
def overriding(overrides: Mapping[str, Any]) -> Generator[None]:
    """Put other settings in force for a block; the frame and the tool call stay those here."""
    here = _scope.get()
    with entered(Scope(overrides, here.frame, here.call)):
        yield


def with_settings_of_call(method: AsyncMethod) -> AsyncMethod:
    """Let an async method take its settings when it is called, not when it is awaited.

    The body of an `async def` begins at the first `await`, which may come after the `with
    context(...)` of the call has ended: a call would then run without the policy of its block.
    """

    async def run(overrides: Mapping[str, Any], begin: Callable[[], Coroutine[Any, Any, R]]) -> R:
        with callers_frames, overriding(overrides):
            return await begin()

    @wraps(method)
    def call(*args: Any, **keywords: Any) -> Coroutine[Any, Any, Any]:
        return run(all_in_force(), partial(method, *args, **keywords))

    return cast("AsyncMethod", call)


# -- checks


def check_limits(limits: Any) -> None:
    """Raise `ConfigurationError` for anything but limits or None, such as a dict of them."""
    if limits is not None and (isinstance(limits, type) or not hasattr(limits, "are_shared")):
        raise ConfigurationError(f"`limits` takes `Limits(...)`, found {shown(limits)}.")


def check_policy(policy: Any) -> None:
    """Raise `ConfigurationError` for anything but a policy or None, such as a list of rules."""
    if policy is not None and (isinstance(policy, type) or not hasattr(policy, "rule_for")):
        raise ConfigurationError(
            f"`policy` takes a `Policy([allow(...), ask(...), deny(...)])`, found {shown(policy)}."
        )


# Recognised by the methods that programs use, not by their class: adapters, limits and prices live
# in higher rooms, and a user's own need not be subclasses.
_METHODS_OF_ADAPTERS = ("opening", "request", "read", "repairs")
_INSTANCES = {
    "limits": ("limits, not their", "..."),
    "prices": ("prices, not their", ""),
    "policy": ("a policy, not its", "..."),
    "result_links": ("the links, not their", "..."),
    "lm": ("a model, not its", "..."),
    "adapter": ("an adapter, not its", ""),
}
"""Settings that must be instances, with words for the error about a class."""


def _checked(caller: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The changes, once each is known to be a setting with a value that it takes."""
    unknown = [name for name in changes if name not in _NAMES]
    refuse_unknown(caller, unknown, sorted(_NAMES - {"lm_overrides"}))
    if "callbacks" in changes:
        changes["callbacks"] = _checked_callbacks(changes["callbacks"])
    if "grace_s" in changes:
        check_grace(changes["grace_s"])
    _check_workers(changes.get("max_workers"))
    _check_mcp_confirm(changes.get("mcp_confirm"))
    for name, (kind, arguments) in _INSTANCES.items():
        value = changes.get(name)
        if isinstance(value, type):
            raise ConfigurationError(
                f"`{name}` takes {kind} class: configure({name}={value.__name__}({arguments}))."
            )
    check_limits(changes.get("limits"))
    _check_prices(changes.get("prices"))
    check_policy(changes.get("policy"))
    _check_result_links(changes.get("result_links"))
    _check_lm(changes.get("lm"))
    _check_adapter(changes.get("adapter"))
    return changes


def _checked_callbacks(callbacks: Any) -> tuple[Any, ...]:
    if not isinstance(callbacks, (list, tuple)):
        raise ConfigurationError(f"`callbacks` takes a list, found {shown(callbacks)}.")
    observers: tuple[Any, ...] = tuple(cast("Sequence[Any]", callbacks))
    for observer in observers:
        _check_observer(observer)
    return observers


def _check_observer(observer: Any) -> None:
    # Calling a class with each event would only make objects, and drop the events.
    if isinstance(observer, type):
        raise ConfigurationError(
            f"`callbacks` takes observers, not their classes: "
            f"configure(callbacks=[{observer.__name__}(...)])."
        )
    if not callable(observer) and not any(name.startswith("on_") for name in dir(observer)):
        raise ConfigurationError(
            f"`callbacks` takes functions of an event, or objects with methods such as "
            f"`on_tool_end`; found {shown(observer)}."
        )
    refuse_async(observer, "An observer in `callbacks`")
    if callable(observer):
        refuse_other_arguments(observer, "An observer in `callbacks`", "the event")
    observer_class = cast("type[Any]", type(observer))
    for kind in observer_class.__mro__:
        for name, hook in vars(kind).items():
            if name.startswith("on_"):
                refuse_async(hook, f"`{name}` of an observer in `callbacks`")


def check_grace(grace_s: Any) -> None:
    """Raise `ConfigurationError` for anything but seconds from 0, or None."""
    if grace_s is None:
        return
    is_number = isinstance(grace_s, int | float) and not isinstance(grace_s, bool)
    if not is_number or not 0 <= grace_s < inf:
        raise ConfigurationError(
            f"`grace_s` is a number of seconds from 0, or None; found {shown(grace_s)}."
        )


def _check_workers(workers: Any) -> None:
    if workers is None:
        return
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ConfigurationError(
            f"`max_workers` is a whole number from 1, or None; found {shown(workers)}."
        )


def _check_mcp_confirm(confirm: Any) -> None:
    if confirm is None or isinstance(confirm, bool) or confirm == "unhinted":
        return
    raise ConfigurationError(
        f"`mcp_confirm` is True, False, 'unhinted' or None; found {shown(confirm)}."
    )


def _check_prices(prices: Any) -> None:
    if prices is not None and not hasattr(prices, "cost_of"):
        raise ConfigurationError(f"`prices` takes `Prices(...)`, found {shown(prices)}.")


def _check_result_links(links: Any) -> None:
    if links is not None and not hasattr(links, "token"):
        # What was passed is not shown: it may be the secret.
        raise ConfigurationError(
            "`result_links` takes `ResultLinks('https://...', secret=...)`, found "
            f"{type(links).__name__!r}."
        )


def _check_lm(lm: Any) -> None:
    if isinstance(lm, str):
        raise ConfigurationError(f"`lm` takes a model, not its name: configure(lm=LM({lm!r})).")


def _check_adapter(adapter: Any) -> None:
    if adapter is None:
        return
    missing = [f"`{name}`" for name in _METHODS_OF_ADAPTERS if not hasattr(adapter, name)]
    if missing:
        raise ConfigurationError(
            f"`adapter` takes an adapter, such as `JSONAdapter()`; found {shown(adapter)}, "
            f"which has no {', '.join(missing)}."
        )


# -- this module's attributes: `ferrule.settings.lm` is the model in force


class _SettingsModule(ModuleType):
    """The class of this module: it refuses assignments to settings, which would hide the real ones.

    `settings.policy = Policy(...)`, a habit from other libraries, would otherwise be ignored
    without a word. Python's reference documents this way to do it ("Customizing module attribute
    access").
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _NAMES:
            raise AttributeError(
                f"Settings are set with `configure({name}=...)` or, for a block, "
                f"`with context({name}=...)`."
            )
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _SettingsModule


def __getattr__(name: str) -> Any:
    """Read a setting in force as an attribute of this module: `ferrule.settings.lm`."""
    if name in _NAMES:
        return getattr(current(), name)
    raise AttributeError(
        f"There is no setting `{name}`. Settings are: {', '.join(sorted(_NAMES))}."
    )
