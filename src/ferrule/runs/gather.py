"""`gather`: several programs at once inside a `forward`, each with its own slots in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule import settings
from ferrule.settings import Scope
from ferrule.values.run.act import Suspended

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ferrule.runs.state import Frame


async def gather(*branches: Awaitable[Any]) -> list[Any]:
    """Like `asyncio.gather(a.acall(...), b.acall(...))`, with results in order, but replayable even if branches are equal.

    Every branch runs as far as it can: if some wait for a person, all their questions are pending together. Otherwise the first error, in
    branch order, is raised after all have ended.
    """
    import asyncio

    here = settings.scope()
    frame: Frame | None = here.frame
    frames = [None] * len(branches) if frame is None else frame.branches(len(branches))

    async def carry(branch: Awaitable[Any], inside: Frame | None) -> Any:
        with settings.entered(Scope(here.overrides, inside, here.call)):
            return await branch

    tasks = [asyncio.ensure_future(carry(branch, inside)) for branch, inside in zip(branches, frames, strict=True)]
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [each for each in ended if isinstance(each, BaseException)]
    failed = [each for each in errors if not isinstance(each, Suspended)]
    if failed:
        raise failed[0]
    if errors:
        raise Suspended([question for each in errors if isinstance(each, Suspended) for question in each.questions])
    return ended
