"""Streams one answer of a local model from its tokens: handles stop sequences, thoughts, and calls in the model's own form."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ferrule.text_calls.find import find
from ferrule.values.calls.call import ToolCall
from ferrule.values.conversation.exchange import Delta, Response
from ferrule.values.conversation.thoughts import ThoughtSplitter, split_thoughts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ferrule.models.local.backends.backend import Sampling
    from ferrule.models.local.task import ConstrainedTask
    from ferrule.values.conversation.exchange import Request
    from ferrule.values.conversation.thoughts import Kind

_INCOMPLETE = "\ufffd"
_MAY_ANNOUNCE = re.compile(r"[<\[{`(\n|]")
"""A call in any form that models use begins with one of these characters, or on a new line."""


class AnswerStream:
    """Turns tokens into pieces of text, without incomplete characters, possible beginnings of stop sequences, or calls."""

    def __init__(
        self,
        text_of: Callable[[Sequence[int]], str],
        request: Request,
        sampling: Sampling,
        task: ConstrainedTask | None,
    ) -> None:
        self.tokens: list[int] = []
        self.is_stopped = False
        """Whether a stop sequence was generated."""
        self._text_of = text_of
        self._request = request
        self._sampling = sampling
        self._task = task
        self._streamed_chars = 0
        self._splitter = ThoughtSplitter(request, unopened=False)
        self._texts: list[str] = []
        self._kept = ""
        """Text that may begin a stop sequence."""
        self._read = self._done = 0
        """The text of the first `_read` tokens was taken. Decoding starts at `_done`, a step earlier: the blank before a word needs it."""
        self._held: list[str] | None = [] if task is not None and not task.is_call else None
        """Text that may be a call, kept back from the stream; None before any."""

    def feed(self, token: int) -> Iterator[Delta]:
        """Take the next token; yield the text that is now certain."""
        self.tokens.append(token)
        before = self._text_of(self.tokens[self._done : self._read])
        whole = self._text_of(self.tokens[self._done :])
        if len(whole) > len(before) and not whole.endswith(_INCOMPLETE):
            self._done, self._read = self._read, len(self.tokens)
            yield from self._take(whole[len(before) :])

    def end(self) -> Iterator[Delta]:
        """End the answer; yield the rest of its text, and its calls."""
        if not self.is_stopped:
            before = self._text_of(self.tokens[self._done : self._read])
            rest, self._kept = (
                self._kept + self._text_of(self.tokens[self._done :])[len(before) :],
                "",
            )
            self._texts.append(rest)
            yield from self._deltas(self._splitter.feed(rest))
        yield from self._deltas(self._splitter.finish())

        response = self.response()
        if self._task is not None:
            rest = (response.text or "")[self._streamed_chars :]
        else:
            rest = "".join(self._held or ()) if not response.tool_calls else ""
        if rest:
            yield Delta(rest)
        for delta in response.deltas():
            if delta.call is not None:
                yield delta

    def response(self) -> Response:
        """The whole answer. Raises `ToolCallError` for a constrained answer that does not fit its schema."""
        text = "".join(self._texts)
        if self._task is not None:
            return self._task.response(text)
        is_cut = not self.is_stopped and len(self.tokens) >= (
            self._sampling.max_tokens or len(self.tokens) + 1
        )
        response = split_thoughts(
            Response(text or None, finish_reason="length" if is_cut else "stop"),
            self._request,
        )
        if not self._request.tools or self._request.tool_choice == "none" or not response.text:
            return response
        found, rest = find(response.text, self._request.tools)
        if not found:
            return response
        calls = tuple([ToolCall.unchecked(**fields) for fields in found])
        return Response(
            rest or None,
            calls,
            response.reasoning,
            "length" if is_cut else "tool_calls",
        )

    def _take(self, piece: str) -> Iterator[Delta]:
        text, self._kept = self._kept + piece, ""
        if self._sampling.stop:
            ends = [at for each in self._sampling.stop if (at := text.find(each)) >= 0]
            if ends:
                self.is_stopped, text = True, text[: min(ends)]
            else:
                keep = max(_overlap(text, each) for each in self._sampling.stop)
                text, self._kept = text[: len(text) - keep], text[len(text) - keep :]
        self._texts.append(text)
        yield from self._deltas(self._splitter.feed(text))

    def _deltas(self, pieces: Sequence[tuple[Kind, str]]) -> Iterator[Delta]:
        for kind, piece in pieces:
            if not piece:
                continue
            if kind == "thought":
                yield Delta(reasoning=piece)
            elif self._held is not None:
                self._held.append(piece)
            else:
                found = _MAY_ANNOUNCE.search(piece) if self._request.tools else None
                said = piece[: found.start()] if found else piece
                if found:
                    self._held = [piece[found.start() :]]
                if said:
                    self._streamed_chars += len(said)
                    yield Delta(said)


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text could begin the stop sequence."""
    return next(
        (
            size
            for size in range(min(len(stop) - 1, len(text)), 0, -1)
            if text.endswith(stop[:size])
        ),
        0,
    )
