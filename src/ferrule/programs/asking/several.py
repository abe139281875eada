"""Asks a model for several answers to one question (`n`), each parsed separately."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ferrule.errors import AdapterParseError
from ferrule.models.several import SeveralLM
from ferrule.programs.asking.ask import Asker, ask_model, rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from ferrule.acts import Act
    from ferrule.adapters.adapter import Adapter
    from ferrule.values.conversation.exchange import Request, Response
    from ferrule.values.conversation.message import Messages
    from ferrule.values.signatures.signature import Signature

Answers = list[tuple[dict[str, Any], "Response"]]


def ask_several(
    asker: Asker,
    signature: type[Signature],
    request: Request,
    render: Callable[[Adapter], Messages],
    read: Callable[[Adapter, Response], dict[str, Any]],
    *,
    judged: Callable[[Sequence[dict[str, Any]]], Generator[Act, Any, Sequence[str | None]]],
) -> Generator[Act, Any, Answers]:
    """The fields of each answer that can be parsed. If none can, the model must correct the first, as if it were the only one."""
    found: Answers = []
    failed: list[AdapterParseError] = []

    def read_each(adapter: Adapter, response: Response) -> dict[str, Any]:
        found.clear()
        failed.clear()
        for each in (response, *response.others):
            try:
                found.append((read(adapter, each), each))
            except AdapterParseError as error:
                failed.append(error)
        if not found:
            raise failed[0]
        return found[0][0]

    def check_each(
        adapter: Adapter,
        _fields: dict[str, Any],
        first: Response,
    ) -> Generator[Act, Any, None]:
        verdicts = yield from judged([outputs for outputs, _ in found])
        kept = [each for each, verdict in zip(found, verdicts, strict=True) if verdict is None]
        if not kept:
            (outputs, response), problem = found[0], verdicts[0] or ""
            # The model corrects the first answer, so it needs the problem of that one.
            raise (
                rejected(adapter, response, outputs, [("", problem)])
                if response is first
                else failed[0]
            )
        found[:] = kept

    several = replace(asker, lm=SeveralLM(asker.lm, asker.n))
    yield from ask_model(several, signature, request, render, read=read_each, check=check_each)
    return found
