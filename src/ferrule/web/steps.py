"""The values that the template of a step (`step.html`) shows: calls, states and results."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ferrule.programs.code_mode.snippets import RUN_CODE
from ferrule.runs.story import CallBeat
from ferrule.values.calls.in_code import place_in_code
from ferrule.values.content.convert import content_text
from ferrule.values.content.parts import Image

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.runs.story import Beat
    from ferrule.values.calls.call import ToolResult
    from ferrule.values.content.parts import Part

_LINE_OF_CODE = re.compile(r"([> ]) +(\d+) (.*)")
"""A line in a question about a call that code made (`code_mode/snippets.py`)."""
_PICTURE_STARTS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


class CallInStep(Struct, kw_only=True):
    """A call as a step shows it."""

    call: CallBeat
    number: int
    """Its place among the calls of the step, by which its values have addresses."""
    state: str
    is_answer: bool = False
    """Whether it is the end of an agent, whose arguments are the answer."""
    answer: str | None = None
    """The answer, if it is one text."""
    line: int = 0
    """The line of the code that made it; 0 for a call of the model."""
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    code: str | None = None
    """The code that the model wrote as this call."""
    calls_by_line: dict[int, list[CallInStep]] = field(
        default_factory=dict[int, "list[CallInStep]"]
    )
    """The calls that the code made, by the line of it that made them."""

    @property
    def took_s(self) -> float | None:
        """How long it took; None if it is not known."""
        if self.call.begun_at is None or self.call.ended_at is None:
            return None
        return self.call.ended_at - self.call.begun_at


class QuestionNote(Struct, kw_only=True):
    """The note of a question (what a person must know besides the call), split for the page."""

    text: str
    """The note without its lines of code."""
    lines: list[tuple[int, str, bool]]
    """The lines of code: number, line, and whether it is the one that is asked about."""


class Picture(Struct, frozen=True):
    """A picture in a result."""

    type: str
    size: int
    """In bytes, about."""


def calls_of(beat: Beat) -> list[CallInStep]:
    """The calls that the model made in a step. Each call of code has the calls that it made."""
    calls = [_call_in_step(call, number) for number, call in enumerate(beat.calls)]
    code_calls = {call.call.call_id: call for call in calls if call.code is not None}
    outer: list[CallInStep] = []
    for call in calls:
        place = place_in_code(call.call.call_id)
        if place is None or place.code_call not in code_calls:
            outer.append(call)
        else:
            code_call = code_calls[place.code_call]
            code_call.calls_by_line.setdefault(place.line, []).append(call)
    return outer


def _call_in_step(call: CallBeat, number: int) -> CallInStep:
    # An agent's end does not run, so it has no result: its arguments are the answer.
    if call.name == "finish" and call.result is None and not call.begun:
        outputs = list((call.written or {}).values())
        answer = None
        if len(outputs) == 1 and isinstance(outputs[0], str):
            [answer] = outputs
        return CallInStep(call=call, number=number, state="done", is_answer=True, answer=answer)
    shown = CallInStep(call=call, number=number, state=_state_of(call))
    args = call.args if call.args is not None else call.written
    shown.args = args or {}
    code = shown.args.get("code")
    if call.name == RUN_CODE and isinstance(code, str):
        shown.code = code
        shown.args = {name: value for name, value in shown.args.items() if name != "code"}
    place = place_in_code(call.call_id)
    if place is not None:
        shown.line = place.line
    return shown


def _state_of(call: CallBeat) -> str:
    if call.name == RUN_CODE and call.result is None:
        return "code"  # the journal has its calls, which follow, but no result of its own
    if call.result is not None:
        return "failed" if call.result.is_error else "done"
    if call.is_refused:
        return "denied" if call.decisions[-1].kind == "deny" else "answered"
    if call.begun:
        return "running"
    if call.decisions:
        return "approved"
    return "not run" if call.is_past or call.problem else "asked"


def read_note(note: str) -> QuestionNote:
    """The parts of a question's note."""
    text_lines: list[str] = []
    lines: list[tuple[int, str, bool]] = []
    for line in note.split("\n"):
        numbered = _LINE_OF_CODE.fullmatch(line)
        if numbered is None:
            text_lines.append(line)
        else:
            lines.append((int(numbered[2]), numbered[3], numbered[1] == ">"))
    return QuestionNote(text="\n".join(text_lines).strip("\n"), lines=lines)


def pictures_of(result: ToolResult) -> dict[int, Picture]:
    """The pictures of a result that are safe to show, by their places among its parts."""
    if isinstance(result.content, str):
        return {}
    pictures: dict[int, Picture] = {}
    for place, part in enumerate(result.content):
        media_type = picture_type(part)
        if media_type and isinstance(part, Image):
            base64_chars = len(part.data or "")
            pictures[place] = Picture(media_type, base64_chars * 3 // 4)
    return pictures


def text_of(result: ToolResult, without: Iterable[int] = ()) -> str:
    """The text of a result, without the parts at these places."""
    if isinstance(result.content, str):
        return result.content
    left_out = set(without)
    parts = [part for place, part in enumerate(result.content) if place not in left_out]
    return content_text(tuple(parts))


def picture_type(part: Part) -> str:
    """The type of a picture that is safe to show, by its first bytes; empty for anything else."""
    if not isinstance(part, Image) or not part.data:
        return ""
    try:
        start = b64decode(part.data[:16])  # the first 12 bytes
    except ValueError:
        return ""
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    for magic, media_type in _PICTURE_STARTS.items():
        if start.startswith(magic):
            return media_type
    return ""
