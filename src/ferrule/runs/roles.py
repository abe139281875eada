"""What a run needs of others: of its program, and of its place in a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ferrule.runs.protocols import Store
    from ferrule.values.run.act import Flow


class Program(Protocol):
    """What a run needs of a program: a flow of acts, or a plain `forward`."""

    @property
    def is_flow(self) -> bool:
        """Whether `flow` yields acts; else `forward` and `aforward` are plain Python."""
        ...

    @property
    def is_async(self) -> bool:
        """Whether there is an `aforward`."""
        ...

    @property
    def is_only_async(self) -> bool:
        """Whether there is an `aforward` and no `forward`."""
        ...

    @property
    def name(self) -> str:
        """What journals and events call it."""
        ...

    def flow(self, *args: Any, **inputs: Any) -> Flow:
        """The program as a generator of acts."""
        ...

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """The program in plain Python."""
        ...

    async def aforward(self, *args: Any, **inputs: Any) -> Any:
        """`forward` on an event loop."""
        ...


class Keeping(Protocol):
    """A run's place in a store (`runs/store/stored_run.py`)."""

    store: Store

    @property
    def is_open(self) -> bool:
        """Whether the lease is held."""
        ...

    def open(self) -> None:
        """Lease the run, before an execution."""
        ...

    def close(self) -> None:
        """Write down how it rests, and give the lease back."""
        ...
