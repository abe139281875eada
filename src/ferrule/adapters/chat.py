"""`ChatAdapter`: each field below a marker of its own, `[[ ## answer ## ]]`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.json_object import JSONAdapter
from ferrule.adapters.render import Shown, unmarked_text, value_pieces, without_none
from ferrule.adapters.streaming.markers import MarkReader, Marks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic.fields import FieldInfo

    from ferrule.values.content.convert import Piece
    from ferrule.values.conversation.exchange import FieldReader
    from ferrule.values.signatures.signature import Signature

_JSON = JSONAdapter()
_BEGINNING = re.compile(r"\[\[(?=[ \t]*##)")


class ChatAdapter(Adapter):
    """Fields below markers: the form that most models write best. What it cannot read is asked for once more by `fallback`."""

    __slots__ = ()

    def __init__(self, *, use_native_function_calling: bool | None = False, fallback: Adapter | None = _JSON, repairs: int = 1) -> None:
        super().__init__(use_native_function_calling=use_native_function_calling, fallback=fallback, repairs=repairs)

    def structure(self, shown: Shown) -> str:
        """See `Adapter`."""
        fields = "\n\n".join(f"[[ ## {name} ## ]]\n{{{name}}}" for name in (*shown.inputs, *shown.outputs))
        return (
            "Messages have the form below: each field stands under its marker, text as it is and everything else as JSON.\n\n"
            f"{fields}\n\n[[ ## {_end(shown.outputs)} ## ]]"
        )

    def reminder(self, outputs: Sequence[str]) -> str:
        """See `Adapter`."""
        if not outputs:
            return ""
        marks = ", then ".join(f"`[[ ## {name} ## ]]`" for name in outputs)
        return f"Answer with the fields {marks}, and end with `[[ ## {_end(outputs)} ## ]]`."

    def drawn_fields(self, fields: Mapping[str, Any]) -> list[Piece]:
        """See `Adapter`."""
        pieces: list[Piece] = []
        for name, value in fields.items():
            between = "\n\n" if pieces else ""
            if (text := unmarked_text(value, _spelled)) is not None:
                pieces.append(f"{between}[[ ## {name} ## ]]\n{text}")
            else:
                pieces += (f"{between}[[ ## {name} ## ]]\n", *value_pieces(value))
        return pieces

    def drawn_answer(self, fields: Mapping[str, Any]) -> list[Piece]:
        """See `Adapter`."""
        return [*self.drawn_fields(fields), f"\n\n[[ ## {_end(fields)} ## ]]"]

    def raw_fields(self, signature: type[Signature], text: str) -> Mapping[str, Any]:
        """See `Adapter`."""
        return _marks(signature).split(text)

    def outside(self, signature: type[Signature], text: str) -> str:
        """See `Adapter`."""
        return _marks(signature).outside(text)

    def reader(self, signature: type[Signature]) -> FieldReader:
        """See `Adapter`."""
        return MarkReader(_marks(signature))


def _spelled(json: str) -> str:
    # Only strings of JSON can hold the beginning of a marker, and in these any character may be written as an escape.
    return _BEGINNING.sub(r"[\\u005b", json) if "[[" in json else json


def _marks(signature: type[Signature]) -> Marks:
    return signature.kept(Marks, lambda: _marks_of(signature.output_fields))


def _marks_of(outputs: Mapping[str, FieldInfo]) -> Marks:
    structured = [name for name, field in outputs.items() if without_none(field.annotation) is not str]
    return Marks(outputs, _end(outputs), structured=structured)


def _end(outputs: Any) -> str:
    return "completed" if "completed" not in outputs else "end_of_answer"
