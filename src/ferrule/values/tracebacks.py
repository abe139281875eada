"""Trim the tracebacks of a caller's errors, so that the last line is the caller's own.

An error of ferrule's own code (a bug) keeps all frames. With `FERRULE_FULL_TRACEBACK=1` in the
environment, every error does.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, cast

from ferrule.errors import FerruleError

if TYPE_CHECKING:
    from collections.abc import Iterator

FULL = "FERRULE_FULL_TRACEBACK"
_PASSING_ON = frozenset({"_perform_forward", "prediction", "call_program", "acall_program"})
"""Functions of ferrule that only pass on errors of other code.

For the first, it is the `TypeError` for wrong arguments of a `forward`.
"""
# As the names of code objects have it: with its links, which `resolve` would follow. Not by
# `pathlib`, which takes long to import.
PACKAGE = os.path.normpath(f"{__file__}/../..") + os.sep


class _CallersFrames:
    """`with callers_frames:` goes around the code of a public entry point.

    It has no state, and costs almost nothing without an error.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Python raises the error again with the traceback set here, and does not add the frame of
        # the `with` statement.
        if error is not None:
            trim(error)


callers_frames = _CallersFrames()


def trim(error: BaseException) -> None:
    """Remove the frames of ferrule, and of libraries that it called, from an error and its causes.

    Interrupts keep all frames.
    """
    if not isinstance(error, Exception) or os.environ.get(FULL, "0") not in {"", "0"}:
        return
    for related in with_causes(error):
        related.__traceback__ = _trimmed(related, related.__traceback__)


def with_causes(
    error: BaseException, *, without: BaseException | None = None
) -> Iterator[BaseException]:
    """The error, its causes and contexts, and the errors in groups, each once.

    `without` is left out, and errors that are reached only through it.
    """
    seen = {id(without)}
    todo: list[BaseException | None] = [error]
    while todo:
        related = todo.pop()
        if related is None or id(related) in seen:
            continue
        seen.add(id(related))
        yield related
        todo += (related.__cause__, related.__context__)
        if isinstance(related, BaseExceptionGroup):
            todo += cast("tuple[BaseException, ...]", related.exceptions)


def _trimmed(error: BaseException, trace: TracebackType | None) -> TracebackType | None:
    whole = trace
    callers: list[TracebackType] = []
    is_ours = False
    function = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        is_foreign = code.co_filename.startswith((*foreign_folders(), "<"))
        if code.co_filename.startswith(PACKAGE):
            is_ours = True
            function = code.co_name
        elif not is_ours or not is_foreign:  # a library that ferrule called is left out, too
            is_ours = False
            callers.append(trace)
        trace = trace.tb_next
    # An error that ends in ferrule's frames, and is not one that ferrule raises on purpose, is a
    # bug of ferrule: its frames are what a report needs.
    if is_ours and not isinstance(error, FerruleError) and function not in _PASSING_ON:
        return whole
    trimmed = None
    for entry in reversed(callers):  # as copies, because a run keeps the whole traceback
        trimmed = TracebackType(trimmed, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return trimmed


@cache
def foreign_folders() -> tuple[str, ...]:
    """Folders of code that is not the user's: this package, the standard library, packages."""
    import site
    import sysconfig

    folders: list[str | None] = []
    if hasattr(site, "getsitepackages"):  # some virtual environments lack it
        folders += [*site.getsitepackages(), site.getusersitepackages()]
    folders += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    # Each ends with a separator, so that `/lib/python3` is not the start of `/lib/python3x`.
    with_separator = [folder.rstrip(os.sep) + os.sep for folder in folders if folder]
    return (PACKAGE, *dict.fromkeys(with_separator))


def without_traces(error: BaseException) -> None:
    """Remove the tracebacks of an error and its causes.

    Each traceback keeps all callers' frames and their objects alive.
    """
    # Not of an error that the caller is handling, in an `except` around the run.
    for cause in with_causes(error, without=sys.exception()):
        cause.__traceback__ = None
