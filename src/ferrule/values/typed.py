"""The type parameters of programs, and the signature that a program has at run time.

`S` is the class of a signature, `D` the type of `deps`, `P` the inputs. They exist for type
checkers. At run time, `ReAct[QA]` is `ReAct` itself: it costs nothing, and does not change
instances, pickles or saved programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Generic as Typed

    from typing_extensions import ParamSpec, TypeVar

    from ferrule.values.signatures.compiled import CompiledSignature

    S = TypeVar("S", default=Any)
    # `ReAct[S, D]` in the documentation.
    D = TypeVar("D", default=Any, contravariant=True)  # noqa: PLC0105
    P = ParamSpec("P", default=...)
else:
    S = D = P = None

    class Typed:
        """A `Generic` that does not record its type arguments."""

        __slots__ = ()

        def __class_getitem__(cls, _: Any) -> Any:
            return cls


__all__ = ["D", "P", "S", "Typed", "plan_of"]


def plan_of(program: Any) -> CompiledSignature | None:
    """The compiled signature of a program; None if it has none."""
    return getattr(getattr(program, "signature", None), "plan", None)
