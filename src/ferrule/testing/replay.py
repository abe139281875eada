"""Recordings of a model's answers: `RecordLM` writes the file, `ReplayLM` answers from it.

The file has JSON lines. The first names the model; each of the others holds `key` (the request's
digest), `asked` (the request as lines of text, for diffs), and `answer`. Requests hold no keys of
providers; a key in a text is removed.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from difflib import SequenceMatcher, unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec.structs import asdict

from ferrule.encoding.encode import json_bytes, json_text
from ferrule.encoding.stored import check_fields, reading
from ferrule.errors import ConfigurationError, FerruleError, ScriptError, checks_keywords, shown
from ferrule.forms import set_fields, usage_form
from ferrule.models.calls_in_text import is_hosted, option_of
from ferrule.models.model import BaseLM, answer_of, as_model, check_text_calls
from ferrule.models.providers import PROVIDERS
from ferrule.models.wires.payload import Json, decode
from ferrule.testing.scripted import LocalLM
from ferrule.values.calls.call import ToolCall
from ferrule.values.conversation.exchange import Capabilities, Delta, Request, Response, Usage
from ferrule.values.provider_tools import Citation, ProviderCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from ferrule.models.model import Model

_DIFF_LINES = 60
_SHORTEST_KEY = 8
"""Shorter values are placeholders such as `none`: removing them would damage texts."""


class RecordLM(BaseLM):
    """Wraps a model, and writes its answers to a file. Errors are raised, not recorded.

    `mode="append"` adds answers to the file; with `"new"`, the first answer replaces it. With
    `"once"`, a file that exists answers in place of the model, like `ReplayLM`, and stays
    unchanged; if there is none, answers are recorded.
    """

    @checks_keywords
    def __init__(
        self, lm: Any, path: str | Path, *, mode: Literal["once", "new", "append"] = "append"
    ) -> None:
        if mode not in {"once", "new", "append"}:
            raise ConfigurationError(
                f"`mode` of `RecordLM` is 'once', 'new' or 'append', found {shown(mode)}."
            )
        self._file: _File | None = None
        if mode == "once" and Path(path).exists():
            self._lm = ReplayLM(path)
        else:
            self._lm = as_model(lm)
            is_new = mode == "new"
            self._file = _File(Path(path), self._lm, is_new=is_new)
        self.name = self._lm.name
        self.capabilities = self._lm.capabilities
        self.is_free = getattr(self._lm, "is_free", False)

    def complete(self, request: Request) -> Response:
        """The model's answer, recorded."""
        return self._recorded(request, answer_of(self._lm, self._lm.complete(request)))

    async def acomplete(self, request: Request) -> Response:
        """The model's answer, recorded."""
        return self._recorded(request, answer_of(self._lm, await self._lm.acomplete(request)))

    def _recorded(self, request: Request, response: Response) -> Response:
        if self._file is not None:
            self._file.add(request, response)
        return response

    def stream(self, request: Request) -> Iterator[Delta | Response]:
        """The model's answer piece by piece, recorded at its end."""
        stream = self._lm.stream(request)
        try:
            for item in stream:
                if isinstance(item, Response):
                    self._recorded(request, item)
                yield item
        finally:
            cast("Any", stream).close()

    async def astream(self, request: Request) -> AsyncIterator[Delta | Response]:
        """The model's answer piece by piece, recorded at its end."""
        stream = self._lm.astream(request)
        try:
            async for item in stream:
                if isinstance(item, Response):
                    self._recorded(request, item)
                yield item
        finally:
            await cast("Any", stream).aclose()


class ReplayLM(LocalLM):
    """Answers requests from a file.

    An unknown request raises a `ScriptError` that shows a diff to the nearest recording. A request
    recorded several times gets its answers in that order; after the last, it raises or, with
    `repeat=True`, gets the last again.
    """

    @checks_keywords
    def __init__(self, path: str | Path, *, repeat: bool = False) -> None:
        self._path = Path(path)
        self._repeat = repeat
        self._lock = threading.Lock()
        self._used: dict[str, int] = defaultdict(int)
        head, entries = _read(self._path)
        self._answers: dict[str, list[Response]] = defaultdict(list)
        self._asked: dict[str, list[str]] = {}
        for entry in entries:
            self._answers[entry["key"]].append(entry["answer"])
            self._asked.setdefault(entry["key"], entry["asked"])
        self.name = str(head.get("lm") or "replay")
        with reading(f"The first line of {self._path}", ConfigurationError):
            known = dict(head.get("capabilities", {}))
            if known.get("provider_tools") is not None:
                known["provider_tools"] = tuple(known["provider_tools"])
            self.capabilities = check_fields(Capabilities(**known))
        self.text_calls = check_text_calls(head.get("text_calls"))
        self.is_hosted = head.get("is_hosted") is True

    def complete(self, request: Request) -> Response:
        """The recorded answer."""
        key = request.digest
        answers = self._answers.get(key)
        if answers is None:
            raise ScriptError(self._missed(request))
        with self._lock:
            position = self._used[key]
            self._used[key] = position + 1
        if position < len(answers):
            return answers[position]
        if self._repeat:
            return answers[-1]
        raise ScriptError(
            f"{self._path} holds {len(answers)} answers to this request, and it was asked "
            f"{position + 1} times. Record it again, or use `repeat=True`."
        )

    def _missed(self, request: Request) -> str:
        asked = _lines(request)
        head = f"{self._path} holds no answer to this request"
        if not self._asked:
            return f"{head}, nor to any other: record one with `RecordLM`."
        matcher = SequenceMatcher(b=asked, autojunk=False)

        def likeness(lines: list[str]) -> float:
            matcher.set_seq1(lines)
            return matcher.ratio()

        nearest = max(self._asked.values(), key=likeness)
        diff = list(unified_diff(nearest, asked, "recorded", "asked now", n=1, lineterm=""))
        if not diff:
            return (
                f"{head}: it differs from a recorded one only in what is not shown "
                "(values of settings). Record it again."
            )
        lines = [f"{head}. The nearest one differs:"]
        lines += [line[:500] for line in diff[:_DIFF_LINES]]
        if len(diff) > _DIFF_LINES:
            lines.append(f"... ({len(diff) - _DIFF_LINES} more lines)")
        return "\n".join(lines)


class _File:
    """A recording file, to which answers are appended."""

    def __init__(self, path: Path, lm: Model, *, is_new: bool) -> None:
        self._path = path
        self._is_new = is_new
        self._head = {
            "ferrule": "recording",
            "version": 1,
            "lm": lm.name,
            "capabilities": asdict(lm.capabilities),
            # Whose calls in text are read: a replay must decide the same.
            "text_calls": option_of(lm),
            "is_hosted": is_hosted(lm),
        }
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"recording {self._path}"

    def add(self, request: Request, response: Response) -> None:
        entry = {"key": request.digest, "asked": _lines(request), "answer": _answer(response)}
        line = _without_keys(json_bytes(entry)) + b"\n"
        with self._lock, self._path.open("a+b") as file:
            if self._is_new:
                file.truncate(0)
                self._is_new = False
            size = file.seek(0, os.SEEK_END)
            if size == 0:
                line = json_bytes(self._head) + b"\n" + line
            else:
                file.seek(size - 1)
                if file.read(1) != b"\n":  # an earlier recorder was killed in the middle of a line
                    line = b"\n" + line
            file.write(line)


def _without_keys(line: bytes) -> bytes:
    """The line without the keys of providers that the environment holds."""
    variables: set[str | None] = set()
    for provider in PROVIDERS.values():
        variables.update((provider.key_variable, *provider.other_variables))
    for variable in filter(None, variables):
        key = os.environ.get(variable, "").strip()
        if len(key) >= _SHORTEST_KEY:
            line = line.replace(json_bytes(key)[1:-1], b"[key]")
    return line


def _lines(request: Request) -> list[str]:
    """A request as lines of text for diffs, without settings that may be secret."""
    lines = [f"tool {json_text(tool)}" for tool in request.tools]
    settings: dict[str, Any] = {}
    for name, value in sorted(request.settings.items()):
        settings[name] = value if isinstance(value, (bool, int, float)) else "…"
    rest = {
        "tool_choice": request.tool_choice,
        "parallel": request.parallel,
        "shape": request.shape,
        "settings": settings,
    }
    lines += [f"{name} {json_text(value)}" for name, value in rest.items() if value]
    for message in request.messages:
        lines += [f"{message.role}: {line}" for line in message.text.splitlines() or [""]]
        lines += [f"{message.role} calls {call}" for call in message.tool_calls]
    return lines


def _answer(response: Response) -> Json:
    fields = {
        "text": response.text,
        "tool_calls": [call.model_dump() for call in response.tool_calls],
        "reasoning": response.reasoning,
        "finish_reason": response.finish_reason,
        "refusal": response.refusal,
        "usage": usage_form(response.usage),
        "model": response.model,
        "cost": response.cost,
        "extra": response.extra,
        "provider_calls": [set_fields(call) for call in response.provider_calls],
        "citations": [set_fields(citation) for citation in response.citations],
    }
    return {name: value for name, value in fields.items() if value is not None and value != []}


def _response(fields: Json) -> Response:
    calls = tuple([ToolCall.read(call) for call in fields.get("tool_calls", ())])
    known: Json = {
        **fields,
        "tool_calls": calls,
        "usage": check_fields(Usage(**fields.get("usage", {}))),
        "provider_calls": tuple(
            [check_fields(ProviderCall(**call)) for call in fields.get("provider_calls", ())]
        ),
        "citations": tuple(
            [check_fields(Citation(**citation)) for citation in fields.get("citations", ())]
        ),
    }
    return check_fields(Response(**known))


def _read(path: Path) -> tuple[Json, list[Json]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"The recording {path} cannot be read: {error.strerror or error}. "
            f"Make one with `RecordLM(lm, {str(path)!r})`."
        ) from error
    lines = content.split(b"\n")
    head: Json = {}
    entries: list[Json] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = decode(line)
            if number == 1 and "ferrule" in entry:
                head = entry
            else:
                asked = [str.__str__(line) for line in entry["asked"]]
                entries.append(
                    {
                        "key": str.__str__(entry["key"]),
                        "asked": asked,
                        "answer": _response(entry["answer"]),
                    }
                )
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            FerruleError,
        ) as error:
            if number == len(lines):
                break  # the recorder was killed in the middle of its last line
            raise ConfigurationError(
                f"Line {number} of {path} is not a recording: {shown(line)}."
            ) from error
    return head, entries
