"""`Matcher`: decides which tokens may come next in one sequence under a constraint."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ferrule.errors import ConstraintError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.models.local.grammar import Answer, Grammar
    from ferrule.models.local.vocabulary import Vocabulary


class Matcher:
    """The state of one sequence. Not shared between threads.

    A refused token, a failed engine or a mask without any token raises `ConstraintError`. From then
    on, the matcher stays failed.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        grammar: Grammar,
        start: Any,
        read: Callable[[str], Answer],
    ) -> None:
        self.tokens: list[int] = []
        """The accepted tokens, without the end token."""
        self._vocabulary, self._grammar, self._read = vocabulary, grammar, read
        self._eos = frozenset(self._vocabulary.eos)
        self._engine = start.deep_copy()
        self._padding = bytes(4 * -(-self._vocabulary.size // 32) - len(self._ends()))
        self._ended = False
        self._failure = ""
        self._check()

    @property
    def is_finished(self) -> bool:
        """Whether the answer is complete: it has ended, or only its end can follow."""
        if self._failure or self._engine.is_error():
            return False
        return self._ended or self._engine.is_stopped()

    @property
    def text(self) -> str:
        """The text so far. A special token that opens a call has its text here; other special tokens have none."""
        opener = self._grammar.opener_id
        if opener is None or opener not in self.tokens:
            return self._vocabulary.decode(self.tokens).decode(errors="replace")
        at = self.tokens.index(opener)
        before, after = (
            self._vocabulary.decode(self.tokens[:at]),
            self._vocabulary.decode(self.tokens[at + 1 :]),
        )
        return (
            before.decode(errors="replace")
            + self._grammar.form.opener
            + after.decode(errors="replace")
        )

    def mask(self) -> bytes:
        """The tokens that may come next: a bit for each id, in little-endian words of 32 bits; 1 is allowed. Padded ids are 0."""
        if self._failure:
            self._fail(self._failure)
        if self.is_finished:
            return self._ends() + self._padding
        made: bytes = self._engine.compute_bitmask()
        self._check()
        if made.count(0) == len(made):
            self._fail("no token may come next")
        return made + self._padding

    def fill(self, address: int) -> None:
        """Write `mask()` to memory, such as `row.ctypes.data` of numpy or `row.data_ptr()` of torch, of 4 bytes for each 32 ids."""
        import ctypes

        made = self.mask()
        ctypes.memmove(address, made, len(made))

    def apply(self, row: Any) -> None:
        """Set the logits of tokens that cannot come next to minus infinity, in place, in a row of numpy or torch."""
        made = self.mask()
        if hasattr(row, "ctypes"):
            np: Any = import_module("numpy")
            allowed: Any = np.unpackbits(np.frombuffer(made, np.uint8), bitorder="little")[
                : len(row)
            ].astype(bool)
            row[: len(allowed)][~allowed] = -np.inf
            row[len(allowed) :] = -np.inf
            return
        torch: Any = import_module("torch")
        words: Any = torch.frombuffer(bytearray(made), dtype=torch.uint8)
        bits: Any = (words.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1
        allowed = bits.flatten()[: len(row)].bool().to(row.device)
        row[: len(allowed)].masked_fill_(~allowed, float("-inf"))
        row[len(allowed) :] = float("-inf")

    def accept(self, token: int) -> None:
        """Advance by this token. Raises `ConstraintError` if it cannot come next."""
        if self._failure:
            self._fail(self._failure)
        if token in self._eos:
            if not self._ended and not (
                self._engine.is_accepting() and not self._engine.is_error()
            ):
                self._fail("the text was ended before the answer was whole")
            self._ended = True
            return
        if self._ended:
            self._fail(f"token {token} came after the end")
        if token >= len(self._vocabulary.tokens) or not self._engine.consume_token(token):
            error = self._engine_error()
            self._fail(
                f"token {token} may not come after {self.text[-60:]!r}{f': {error}' if error else ''}",
            )
        self._check()
        self.tokens.append(token)

    def answer(self) -> Answer:
        """The answer, read and validated. Raises `ConstraintError` if it is incomplete, `ToolCallError` if it does not fit its schema."""
        if not self.is_finished:
            raise ConstraintError(
                f"The answer is incomplete and has no call: {self._failure or self.text[-200:]!r}",
            )
        return self._read(self.text)

    def copy(self) -> Matcher:
        """An independent matcher in the same state."""
        made = copy.copy(self)
        made.tokens, made._engine = list(self.tokens), self._engine.deep_copy()  # noqa: SLF001  its own class
        return made

    def _ends(self) -> bytes:
        """The mask of the tokens that end a text."""
        made = bytearray(4 * -(-len(self._vocabulary.tokens) // 32))
        for each in self._vocabulary.eos:
            made[each // 8] |= 1 << each % 8
        return bytes(made)

    def _check(self) -> None:
        if error := self._engine_error():
            self._fail(error)

    def _engine_error(self) -> str:
        """Why the engine failed; empty if it did not."""
        return str(self._engine.get_error()).partition("\n")[0] if self._engine.is_error() else ""

    def _fail(self, why: str) -> None:
        self._failure = why
        raise ConstraintError(f"The constrained answer failed: {why}")
