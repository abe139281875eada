"""Settings, and ferrule's one ContextVar.

`configure(...)` sets them for the whole process, `with context(...)` for a block, with its tasks
and worker threads. Environment variables and blocks of other threads never change them. A program
reads its settings once, when it is called.

The same ContextVar also carries the frame of the current run, if any, to nested programs and tools.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from ferrule.errors import ConfigurationError, refuse_async, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from contextvars import Token
    from typing import Literal, TypedDict, Unpack

    class Changes(TypedDict, total=False):
        """Settings as keyword arguments; see `Settings`."""

        lm: Any
        adapter: Any
        allow_tool_async_sync_conversion: bool
        callbacks: Sequence[Any]
        max_workers: int | None
        limits: Any
        prices: Any
        policy: Any
        mcp_confirm: bool | Literal["unhinted"] | None
        extra: Mapping[str, Any]


A = TypeVar("A")
R = TypeVar("R")

_NO_OVERRIDES: Mapping[str, Any] = {}


class Settings(SimpleNamespace):
    """One consistent, immutable set of settings."""

    lm: Any
    """The model for programs without their own."""
    adapter: Any
    """The adapter for programs without their own; None means `ChatAdapter(use_native_function_calling=None)`."""
    allow_tool_async_sync_conversion: bool
    """Whether `tool(...)` of an async tool runs it on the background loop instead of raising."""
    callbacks: tuple[Any, ...]
    """Observers: objects with `on_module_start`, `on_tool_end` and so on, or functions that take one event."""
    max_workers: int | None
    """The default number of concurrent runs in `batch`; None means 8."""
    limits: Any
    """Bounds on each run (`runs.limits.Limits`); None for no limit."""
    prices: Any
    """Prices for models that do not report their cost (`telemetry.prices.Prices`), or None."""
    policy: Any
    """Rules that allow, deny or ask about calls by models (`values.confirmation.policy.Policy`); None leaves it to each tool."""
    mcp_confirm: Any
    """The default `confirm=` of MCP servers and tools, for tools listed from then on: True, False, "unhinted" or None."""
    extra: Mapping[str, Any]
    """Settings of your own code, by name. Like all settings, they reach tasks and worker threads."""

    def __init__(self, **values: Any) -> None:
        none: dict[str, Any] = dict.fromkeys(
            ("lm", "adapter", "max_workers", "limits", "prices", "policy", "mcp_confirm"),
        )
        super().__init__(
            **none
            | {"allow_tool_async_sync_conversion": False, "callbacks": (), "extra": {}}
            | values,
        )

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(
            f"Settings do not change: `{name}` is set with `configure` or, for a block, with `context`.",
        )


class Scope:
    """The settings, frame and tool call in force. Immutable; each tool call gets a new one."""

    __slots__ = ("call", "frame", "is_adapters_work", "overrides")

    def __init__(
        self,
        overrides: Mapping[str, Any] = _NO_OVERRIDES,
        frame: Any = None,
        call: Any = None,
        *,
        is_adapters_work: bool = False,
    ) -> None:
        self.overrides = overrides
        self.frame = frame
        """The frame of the run whose `forward` is executing here, or None."""
        self.call = call
        """The tool call that is executing here (see `runs.observers`), or None."""
        self.is_adapters_work = is_adapters_work
        """Whether a run's adapter is at work here: the run itself sends the adapter's events."""

    @property
    def tell(self) -> Any:
        """Sends an event to the observers of the current tool call or run; None if there are none."""
        place = self.call if self.call is not None else self.frame
        return place.tell if place is not None else None


_OF_ADAPTERS = ("opening", "request", "read", "repairs")
_configured = Settings()
_NAMES = frozenset(vars(_configured))
_NO_CLASSES = {
    "limits": ("limits, not their", "..."),
    "prices": ("prices, not their", ""),
    "policy": ("a policy, not its", "..."),
    "lm": ("a model, not its", "..."),
    "adapter": ("an adapter, not its", ""),
}
"""Settings that must be instances, with words for the error about a class."""
_nowhere = Scope()
_scope: ContextVar[Scope] = ContextVar("ferrule_scope", default=_nowhere)
_configuring = Lock()


def _after_fork() -> None:
    global _configuring
    _configuring = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def configure(**changes: Unpack[Changes]) -> None:
    """Change settings for the whole process; docs/reference/settings.md lists them. Raises `ConfigurationError` for an unknown name."""
    global _configured
    checked = _checked(changes)
    with _configuring:
        _configured = Settings(**vars(_configured) | checked)


@contextmanager
def context(**changes: Unpack[Changes]) -> Generator[None]:
    """Change settings for a `with` block, and for the asyncio tasks and ferrule threads that it starts; not for threads of your own."""
    scope = _scope.get()
    with entered(Scope({**scope.overrides, **_checked(changes)}, scope.frame, scope.call)):
        yield


def current() -> Settings:
    """The settings in force here."""
    overrides = _scope.get().overrides
    return Settings(**{**vars(_configured), **overrides}) if overrides else _configured


def setting(name: str) -> Any:
    """One setting in force here. Cheaper than `current()`, which builds all of them."""
    overrides = _scope.get().overrides
    return overrides[name] if name in overrides else getattr(_configured, name)


def is_observed() -> bool:
    """Whether an event would reach an observer: of the current run or tool call, or the callbacks outside of one."""
    here = _scope.get()
    inside = here.call if here.call is not None else here.frame
    return (
        bool(here.overrides.get("callbacks", _configured.callbacks))
        if inside is None
        else inside.tell is not None
    )


def frozen(here: Settings) -> Mapping[str, Any]:
    """Overrides that fix every setting, so that a later `configure` does not change them."""
    return vars(here)


def scope() -> Scope:
    """The scope in force here: settings, frame, tool call."""
    return _scope.get()


def run_in(here: Scope, function: Callable[[A], R], argument: A) -> R:
    """Call a function in a scope. The scope stays in force in the current context afterwards, so run this in a copy of the context."""
    _scope.set(here)
    return function(argument)


def enter(here: Scope) -> Token[Scope]:
    """Put a scope in force until `leave`. Where an interrupt could come before the token is stored, use `entered`."""
    return _scope.set(here)


def leave(token: Token[Scope]) -> None:
    """Restore the scope from before `enter`."""
    # A block inside a generator may end in a different context from the one it began in (an async
    # fixture, an abandoned stream). There the scope was never in force, so there is nothing to
    # restore.
    try:  # noqa: SIM105  `suppress` costs more than the rest of this function
        _scope.reset(token)
    except ValueError:
        pass


def restore_scope(here: Scope) -> None:
    """Put a scope in force again, after an interrupt that may have come while a block was ending."""
    _scope.set(here)


class entered:  # noqa: N801  used like a function; a class costs a third of `@contextmanager`, at every call
    """Put another scope in force for a block."""

    __slots__ = ("_before", "_here", "_token")

    def __init__(self, here: Scope) -> None:
        self._here = here

    def __enter__(self) -> None:
        self._before = _scope.get()
        try:
            self._token: Token[Scope] = _scope.set(self._here)
        except (
            BaseException
        ):  # Ctrl-C came just after: without `__enter__`, `__exit__` will not run
            _scope.set(self._before)
            raise

    def __exit__(self, *_: object) -> None:
        leave(self._token)


def _checked(settings: Changes) -> dict[str, Any]:
    changes: dict[str, Any] = {**settings}
    unknown = sorted(changes.keys() - _NAMES)
    if unknown:
        raise ConfigurationError(
            f"There is no setting {', '.join(map(repr, unknown))}. Settings are: {', '.join(sorted(_NAMES))}.",
        )
    if "callbacks" in changes:
        callbacks = changes["callbacks"]
        if not isinstance(callbacks, (list, tuple)):
            raise ConfigurationError(f"`callbacks` takes a list, found {shown(callbacks)}.")
        for each in cast("Sequence[Any]", callbacks):
            hooks = {
                name: hook
                for kind in type(each).__mro__
                for name, hook in vars(kind).items()
                if name.startswith("on_")
            }
            if isinstance(
                each,
                type,
            ):  # calling a class with each event would only make objects and drop the event
                raise ConfigurationError(
                    f"`callbacks` takes observers, not their classes: configure(callbacks=[{each.__name__}(...)]).",
                )
            if not callable(each) and not any(name.startswith("on_") for name in dir(each)):
                what = "functions of an event, or objects with methods such as `on_tool_end`"
                raise ConfigurationError(f"`callbacks` takes {what}; found {shown(each)}.")
            refuse_async(each, "An observer in `callbacks`")
            for name, hook in hooks.items():
                refuse_async(hook, f"`{name}` of an observer in `callbacks`")
        changes = {**changes, "callbacks": tuple(callbacks)}  # pyright: ignore[reportUnknownArgumentType]
    workers = changes.get("max_workers")
    if workers is not None and (
        not isinstance(workers, int) or isinstance(workers, bool) or workers < 1
    ):
        raise ConfigurationError(
            f"`max_workers` is a whole number from 1, or None; found {shown(workers)}.",
        )
    if (
        not any(changes.get("mcp_confirm") is each for each in (None, True, False))
        and changes["mcp_confirm"] != "unhinted"
    ):
        raise ConfigurationError(
            f"`mcp_confirm` is True, False, 'unhinted' or None; found {shown(changes['mcp_confirm'])}.",
        )
    for name, (meant, given) in _NO_CLASSES.items():
        if isinstance(changes.get(name), type):
            raise ConfigurationError(
                f"`{name}` takes {meant} class: configure({name}={changes[name].__name__}({given})).",
            )
    check_limits(changes.get("limits"))
    _check_prices(changes.get("prices"))
    check_policy(changes.get("policy"))
    _check_lm(changes.get("lm"))
    _check_adapter(changes.get("adapter"))
    return changes


def check_limits(limits: Any) -> None:
    """Raise `ConfigurationError` for anything but limits or None, such as a dict of them."""
    if limits is not None and (isinstance(limits, type) or not hasattr(limits, "are_shared")):
        raise ConfigurationError(f"`limits` takes `Limits(...)`, found {shown(limits)}.")


def _check_prices(prices: Any) -> None:
    if prices is not None and not hasattr(prices, "cost_of"):
        raise ConfigurationError(f"`prices` takes `Prices(...)`, found {shown(prices)}.")


def check_policy(policy: Any) -> None:
    """Raise `ConfigurationError` for anything but a policy or None, such as a rule, or a list of rules."""
    if policy is not None and (isinstance(policy, type) or not hasattr(policy, "rule_for")):
        raise ConfigurationError(
            f"`policy` takes a `Policy([allow(...), ask(...), deny(...)])`, found {shown(policy)}.",
        )


def _check_lm(lm: Any) -> None:
    if isinstance(lm, str):
        raise ConfigurationError(f"`lm` takes a model, not its name: configure(lm=LM({lm!r})).")


def _check_adapter(adapter: Any) -> None:
    # Recognised by the methods that programs use: adapters live in a higher layer, and a user's
    # adapter need not be a subclass.
    missing = [name for name in _OF_ADAPTERS if adapter is not None and not hasattr(adapter, name)]
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        raise ConfigurationError(
            f"`adapter` takes an adapter, such as `JSONAdapter()`; found {shown(adapter)}, which has no {names}.",
        )


class _View(ModuleType):
    """The class of this module: it refuses assignments to settings, which would hide the real ones."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _NAMES:
            raise AttributeError(
                f"Settings are set with `configure({name}=...)` or, for a block, `with context({name}=...)`.",
            )
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _View


def __getattr__(name: str) -> Any:
    """Read a setting in force as an attribute of this module: `ferrule.settings.lm`."""
    if name in _NAMES:
        return getattr(current(), name)
    raise AttributeError(
        f"There is no setting `{name}`. Settings are: {', '.join(sorted(_NAMES))}.",
    )
