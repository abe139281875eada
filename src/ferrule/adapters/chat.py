"""`ChatAdapter`: each field below its marker, as in `[[ ## answer ## ]]`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ferrule.adapters.adapter import Adapter
from ferrule.adapters.json_object import JSONAdapter
from ferrule.adapters.render import Shown, render_text, render_value, without_none
from ferrule.adapters.streaming.markers import MarkerReader, Markers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic.fields import FieldInfo

    from ferrule.values.content.convert import Piece
    from ferrule.values.conversation.exchange import FieldReader
    from ferrule.values.signatures.signature import Signature

_JSON = JSONAdapter()
_BEGINNING = re.compile(r"\[\[(?=[ \t]*##)")


class ChatAdapter(Adapter):
    """Writes each field below a marker, the form that most models write best. If an answer cannot be parsed, `fallback` asks again."""

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
            if (text := render_text(value, _escape_markers)) is not None:
                pieces.append(f"{between}[[ ## {name} ## ]]\n{text}")
            else:
                pieces += (f"{between}[[ ## {name} ## ]]\n", *render_value(value))
        return pieces

    def drawn_answer(self, fields: Mapping[str, Any]) -> list[Piece]:
        """See `Adapter`."""
        return [*self.drawn_fields(fields), f"\n\n[[ ## {_end(fields)} ## ]]"]

    def raw_fields(self, signature: type[Signature], text: str) -> Mapping[str, Any]:
        """See `Adapter`."""
        return _markers(signature).split(text)

    def outside(self, signature: type[Signature], text: str) -> str:
        """See `Adapter`."""
        return _markers(signature).outside(text)

    def reader(self, signature: type[Signature]) -> FieldReader:
        """See `Adapter`."""
        return MarkerReader(_markers(signature))


def _escape_markers(json: str) -> str:
    # In JSON, only a string can hold the start of a marker, and there any character may be escaped.
    return _BEGINNING.sub(r"[\\u005b", json) if "[[" in json else json


def _markers(signature: type[Signature]) -> Markers:
    return signature.kept(Markers, lambda: _build_markers(signature.output_fields))


def _build_markers(outputs: Mapping[str, FieldInfo]) -> Markers:
    structured = [name for name, field in outputs.items() if without_none(field.annotation) is not str]
    return Markers(outputs, _end(outputs), structured=structured)


def _end(outputs: Any) -> str:
    return "completed" if "completed" not in outputs else "end_of_answer"
