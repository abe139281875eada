"""Streams one answer of a local model from its tokens.

Handles stop sequences, thoughts, and calls in the model's own form.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ferrule.values.calls.offered import calls_in_text
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
    """Turns tokens into pieces of text.

    Held back are incomplete characters, possible beginnings of stop sequences, and what may be a
    call.
    """

    def __init__(
        self,
        text_of: Callable[[Sequence[int]], str],
        request: Request,
        sampling: Sampling,
        task: ConstrainedTask | None,
        *,
        reads_calls: bool = True,
    ) -> None:
        self.tokens: list[int] = []
        self.is_stopped = False
        """Whether a stop sequence was generated."""
        self._text_of = text_of
        self._request = request
        self._sampling = sampling
        self._task = task
        self._reads_calls = reads_calls and len(request.tools) > 0 and request.tool_choice != "none"
        """Whether the text may hold calls."""
        self._splitter = ThoughtSplitter(request, unopened=False)
        self._texts: list[str] = []
        """The pieces of the text so far."""
        self._may_stop = ""
        """Text that may begin a stop sequence."""
        self._streamed_chars = 0
        # The text of the first `_read` tokens was taken. Decoding starts at `_start`, one step
        # earlier, because a tokenizer writes the blank before a word only after another word.
        self._start = 0
        self._read = 0
        self._held: list[str] | None = None
        """Text that may be a call, held back from the stream; None before any."""
        if task is not None and not task.is_call:
            self._held = []  # the text of outputs is written by the adapter, in the end

    def feed(self, token: int) -> Iterator[Delta]:
        """Take the next token; yield the text that is now certain."""
        self.tokens.append(token)
        piece = self._unread_text()
        if piece and not piece.endswith(_INCOMPLETE):
            self._start, self._read = self._read, len(self.tokens)
            yield from self._take(piece)

    def end(self) -> Iterator[Delta]:
        """End the answer; yield the rest of its text, and its calls."""
        if not self.is_stopped:
            rest = self._may_stop + self._unread_text()
            self._may_stop = ""
            self._texts.append(rest)
            yield from self._deltas(self._splitter.feed(rest))
        yield from self._deltas(self._splitter.finish())

        response = self.response()
        rest = ""
        if self._task is not None:
            rest = (response.text or "")[self._streamed_chars :]
        elif self._held and not response.tool_calls:
            rest = "".join(self._held)  # it only looked like a call
        if rest:
            yield Delta(rest)
        for delta in response.deltas():
            if delta.call is not None:
                yield delta

    def response(self) -> Response:
        """The whole answer.

        Raises `ToolCallError` for a constrained answer that does not fit its schema.
        """
        text = "".join(self._texts)
        if self._task is not None:
            return self._task.response(text)
        cut_or_stopped = "length" if self._is_cut() else "stop"
        response = split_thoughts(
            Response(text or None, finish_reason=cut_or_stopped), self._request
        )
        if not self._reads_calls or not response.text:
            return response
        calls, rest = calls_in_text(response.text, self._request.tools)
        if not calls:
            return response
        return Response(
            text=rest or None,
            tool_calls=calls,
            reasoning=response.reasoning,
            finish_reason="length" if self._is_cut() else "tool_calls",
        )

    def _is_cut(self) -> bool:
        most = self._sampling.max_tokens
        return not self.is_stopped and most is not None and len(self.tokens) >= most

    def _unread_text(self) -> str:
        """The text of the tokens that were not taken yet."""
        before = self._text_of(self.tokens[self._start : self._read])
        whole = self._text_of(self.tokens[self._start :])
        return whole[len(before) :]

    def _take(self, piece: str) -> Iterator[Delta]:
        text, self._may_stop = self._may_stop + piece, ""
        if self._sampling.stop:
            starts = [text.find(stop) for stop in self._sampling.stop if stop in text]
            if starts:
                self.is_stopped, text = True, text[: min(starts)]
            else:
                overlap = max(_overlap(text, stop) for stop in self._sampling.stop)
                certain = len(text) - overlap
                text, self._may_stop = text[:certain], text[certain:]
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
                text = self._hold_from_call(piece)
                if text:
                    self._streamed_chars += len(text)
                    yield Delta(text)

    def _hold_from_call(self, piece: str) -> str:
        """The text of a piece before a possible call; the rest is held back."""
        if not self._reads_calls:
            return piece
        announcement = _MAY_ANNOUNCE.search(piece)
        if announcement is None:
            return piece
        self._held = [piece[announcement.start() :]]
        return piece[: announcement.start()]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text could begin the stop sequence."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
