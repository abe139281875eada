"""Converts the parts of Gemini's contents from and to ferrule's messages.

Format: Gemini API reference, "Generating content" (`Part`), as of November 2026. A part with a
thought signature must be sent back unchanged: such turns keep their parts in `Response.extra`, and
so in `Message.extra`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.models.wires.payload import Json, list_of, mapping, placeholder, text_of
from ferrule.record import Record
from ferrule.values.calls.call import call_at
from ferrule.values.content.parts import Text, inline_data, media_type_of
from ferrule.values.conversation.message import safe_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ferrule.values.calls.call import ToolCall
    from ferrule.values.content.parts import Audio, Content, File, Image
    from ferrule.values.conversation.message import Message

WIRE = "gemini"
UNSIGNED = "skip_thought_signature_validator"
"""The signature of a call that Gemini did not make ("Thought signatures", section FAQs, as of November 2026)."""
_IN_RESULTS = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"})
"""Media types that results can carry ("Function calling", section "Multimodal function responses", as of November 2026)."""


# -- messages as parts
# ------------------------------------------------------------------------------------------


def turn_parts(message: Message, *, signed: bool = False) -> list[Json]:
    """The parts of a model's message. If calls must be `signed`, a turn whose calls have no signature gets `UNSIGNED`."""
    parts = _kept_parts(message)
    if parts is None:
        parts = content_parts(message.content) if message.content or not message.tool_calls else []
        parts += [{"functionCall": _call(call)} for call in message.tool_calls]
    if signed:
        first = next(
            (part for part in parts if "functionCall" in part),
            None,
        )  # only the first of parallel calls is signed
        if first is not None:
            first.setdefault("thoughtSignature", UNSIGNED)
    return parts


def content_parts(content: Content) -> list[Json]:
    """The content of a user's or model's message as parts."""
    if isinstance(content, str):
        return [{"text": content}]
    return [
        {"text": part.text} if isinstance(part, Text) else _media(part) for part in content
    ] or [{"text": ""}]


def result_parts(message: Message, *, name: str | None, media: bool) -> list[Json]:
    """The parts of a tool's result. `media`: whether the model accepts images and documents in it, as Gemini 3 and later do."""
    texts: list[str] = []
    carried: list[Json] = []
    for part in (
        (Text(text=message.content),) if isinstance(message.content, str) else message.content
    ):
        if isinstance(part, Text):
            texts.append(part.text)
            continue
        blob = _media(
            part,
        )  # the API has no place for a URL in a result (`FunctionResponseFileData`: not in the Gemini API)
        if media and mapping(blob.get("inlineData")).get("mimeType") in _IN_RESULTS:
            carried.append(blob)
        else:
            texts.append(placeholder(part, WIRE, "tool results"))
    # As text, not as an object: the API interprets a key `$ref` in an object (vercel/ai issue
    # 14369).
    response: Json = {"error" if message.is_error else "output": "\n".join(texts)}
    head: Json = {} if message.tool_call_id is None else {"id": message.tool_call_id}
    found: Json = {**head, "name": safe_name(name), "response": response}
    return [{"functionResponse": {**found, "parts": carried} if carried else found}]


def _media(part: Image | Audio | File) -> Json:
    inline = inline_data(part)
    if inline is not None:
        return {"inlineData": {"mimeType": inline[0], "data": inline[1]}}
    address = part.address
    kind = (
        part.media_type
        if "media_type" in part.model_fields_set
        else media_type_of(address.partition("?")[0]) or part.media_type
    )
    return {"fileData": {"mimeType": kind, "fileUri": address}}


def _call(call: ToolCall) -> Json:
    head: Json = {} if call.id is None else {"id": call.id}
    # The API accepts only objects. Invalid arguments are wrapped in one, so that the model sees
    # what it wrote.
    args: Json = (
        {"invalid_arguments": call.fault.raw}
        if call.fault is not None and call.fault.raw
        else call.args
    )
    return {**head, "name": safe_name(call.name), "args": args}


def _kept_parts(message: Message) -> list[Json] | None:
    """The original parts of a turn, with the message's calls; None if the turn came from another provider, or was changed."""
    kept = [
        mapping(part) for part in list_of(mapping((message.extra or {}).get(WIRE)).get("parts"))
    ]
    if (
        not kept
        or sum("functionCall" in part for part in kept) != len(message.tool_calls)
        or _text(kept) != message.text
    ):
        return None
    calls = iter(message.tool_calls)
    return [
        {**part, "functionCall": _call(next(calls))} if "functionCall" in part else dict(part)
        for part in kept
    ]


def _text(parts: Sequence[Mapping[str, Any]]) -> str:
    return "".join([text_of(part.get("text")) or "" for part in parts if not part.get("thought")])


# -- parts as messages
# -------------------------------------------------------------------------------------


class Turn(Record):
    """A model's turn, read from its parts."""

    text: str | None
    reasoning: str | None
    calls: tuple[ToolCall, ...]
    extra: Json | None


def read_parts(parts: list[Any]) -> Turn:
    """Read text, thoughts and calls from a model's parts, and keep the parts themselves if they must be sent back."""
    found = [present(part) for part in parts]
    texts = [
        part["text"]
        for part in found
        if isinstance(part.get("text"), str) and not part.get("thought")
    ]
    calls = [part.get("functionCall") for part in found if "functionCall" in part]
    blank: Json = {
        "functionCall": {},
    }  # the calls come from the message: a run may have given them ids
    kept = (
        [{**part, **blank} if "functionCall" in part else part for part in found if part]
        if any(map(_opaque, found))
        else None
    )
    return Turn(
        "".join(texts) if texts else None,
        "".join([text_of(part.get("text")) or "" for part in found if part.get("thought")]) or None,
        tuple([call_at(call, index) for index, call in enumerate(calls)]),
        {WIRE: {"parts": kept}} if kept else None,
    )


def present(part: Any) -> Json:
    """A part without null fields, which some gateways send."""
    return {key: value for key, value in mapping(part).items() if value is not None}


def _opaque(part: Json) -> bool:
    """Whether a part holds something that a message cannot: a signature, an image, code that the provider ran."""
    return not part.keys() <= {"text", "thought", "functionCall"}
