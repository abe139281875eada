"""Trim the tracebacks of a caller's errors: without ferrule's frames, the last line is the caller's own.

An error of ferrule's own code (a bug) keeps all frames. With `FERRULE_FULL_TRACEBACK=1` in the
environment, every error does.
"""

from __future__ import annotations

import os
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, cast

from ferrule.errors import FerruleError

if TYPE_CHECKING:
    from collections.abc import Iterator

FULL = "FERRULE_FULL_TRACEBACK"
_PASSING_ON = frozenset({"_perform_forward", "prediction", "call_program", "acall_program"})
"""Functions of ferrule that only pass on errors of other code: the first, the `TypeError` for wrong arguments of a `forward`."""
PACKAGE = (
    os.path.normpath(f"{__file__}/../..") + os.sep
)  # as code has it: with its links. `pathlib` takes long to import


class _CallersFrames:
    """`with callers_frames:` goes around the code of a public entry point. It has no state, and costs almost nothing without an error."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: object,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Python raises the error again with the traceback set here, and does not add the frame of
        # the `with` statement.
        if error is not None:
            trim(error)


callers_frames = _CallersFrames()


def trim(error: BaseException) -> None:
    """Remove the frames of ferrule, and of libraries that ferrule called, from the tracebacks of an error and its causes.

    Interrupts keep all frames.
    """
    if not isinstance(error, Exception) or os.environ.get(FULL, "0") not in {"", "0"}:
        return
    for each in with_causes(error):
        each.__traceback__ = _trimmed(each, each.__traceback__)


def with_causes(
    error: BaseException,
    *,
    without: BaseException | None = None,
) -> Iterator[BaseException]:
    """The error, its causes and contexts, and the errors in groups, each once; except `without` and errors reached only through it."""
    seen = {id(without)}
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        todo += (each.__cause__, each.__context__)
        if isinstance(each, BaseExceptionGroup):
            todo += cast("tuple[BaseException, ...]", each.exceptions)


def _trimmed(error: BaseException, trace: TracebackType | None) -> TracebackType | None:
    whole, kept = trace, list[TracebackType]()
    is_ours, function = False, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith(PACKAGE):
            is_ours, function = True, code.co_name
        elif not (
            is_ours and code.co_filename.startswith((*foreign_folders(), "<"))
        ):  # a library that ferrule called is left out, too
            is_ours = False
            kept.append(trace)
        trace = trace.tb_next
    if is_ours and not isinstance(error, FerruleError) and function not in _PASSING_ON:
        return whole
    made = None
    for each in reversed(kept):  # made as copies, because a run keeps the whole traceback
        made = TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made


@cache
def foreign_folders() -> tuple[str, ...]:
    """Folders of code that is not the user's: this package, the standard library, installed packages."""
    import site
    import sysconfig

    installed = (
        [*site.getsitepackages(), site.getusersitepackages()]
        if hasattr(site, "getsitepackages")
        else []
    )
    library = [sysconfig.get_path(each) for each in ("stdlib", "platstdlib", "purelib", "platlib")]
    return (
        PACKAGE,
        *dict.fromkeys(f"{each.rstrip(os.sep)}{os.sep}" for each in (*installed, *library) if each),
    )
