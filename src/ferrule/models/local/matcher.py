"""`Matcher`: decides which tokens may come next in one sequence under a constraint."""

from __future__ import annotations

import copy
import ctypes
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from ferrule.errors import ConstraintError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ferrule.models.local.grammar import Answer, Grammar
    from ferrule.models.local.vocabulary import Vocabulary


class Matcher:
    """The state of one sequence. Not shared between threads.

    A refused token, a failed engine or a mask without any token raises `ConstraintError`. From then
    on, the matcher stays failed.
    """

    def __init__(
        self, vocabulary: Vocabulary, grammar: Grammar, start: Any, read: Callable[[str], Answer]
    ) -> None:
        self.tokens: list[int] = []
        """The accepted tokens, without the end token."""
        self._vocabulary = vocabulary
        self._grammar = grammar
        self._read = read
        self._eos = frozenset(vocabulary.eos)
        self._engine = start.deep_copy()
        self._end_mask = _mask_of(vocabulary.eos, len(vocabulary.tokens))
        self._padding = bytes(_mask_bytes(vocabulary.size) - len(self._end_mask))
        """The part of a mask for ids without a token, which the engine does not know."""
        self._ended = False
        self._failure = ""
        self._check_engine()

    @property
    def is_finished(self) -> bool:
        """Whether the answer is complete: it has ended, or only its end can follow."""
        # A failed matcher of the engine looks finished.
        if self._failure or self._engine.is_error():
            return False
        return self._ended or self._engine.is_stopped()

    @property
    def text(self) -> str:
        """The text so far.

        A special token that opens a call has its text here; other special tokens have none.
        """
        opener_id = self._grammar.opener_id
        if opener_id is None or opener_id not in self.tokens:
            return self._decoded(self.tokens)
        position = self.tokens.index(opener_id)
        before = self._decoded(self.tokens[:position])
        after = self._decoded(self.tokens[position + 1 :])
        return f"{before}{self._grammar.form.opener}{after}"

    def _decoded(self, tokens: list[int]) -> str:
        return self._vocabulary.decode(tokens).decode(errors="replace")

    def mask(self) -> bytes:
        """The tokens that may come next: a bit for each id, 1 if it is allowed.

        The bits are in little-endian words of 32 bits. Ids without a token are 0.
        """
        if self._failure:
            self._fail(self._failure)
        if self.is_finished:
            return self._end_mask + self._padding
        mask: bytes = self._engine.compute_bitmask()
        self._check_engine()
        if not any(mask):
            self._fail("no token may come next")
        return mask + self._padding

    def fill(self, address: int) -> None:
        """Write `mask()` to memory of 4 bytes for each 32 ids.

        The address may be `row.ctypes.data` of numpy or `row.data_ptr()` of torch.
        """
        mask = self.mask()
        ctypes.memmove(address, mask, len(mask))

    def apply(self, row: Any) -> None:
        """Set the logits of tokens that cannot come next to minus infinity, in place.

        The row is one of numpy or torch.
        """
        mask = self.mask()
        if hasattr(row, "ctypes"):
            np: Any = import_module("numpy")
            bits: Any = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
            allowed: Any = bits[: len(row)].astype(bool)
            row[: len(allowed)][~allowed] = -np.inf
            row[len(allowed) :] = -np.inf
            return
        torch: Any = import_module("torch")
        octets: Any = torch.frombuffer(bytearray(mask), dtype=torch.uint8)
        bits = (octets.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1
        allowed = bits.flatten()[: len(row)].bool().to(row.device)
        row[: len(allowed)].masked_fill_(~allowed, float("-inf"))
        row[len(allowed) :] = float("-inf")

    def accept(self, token: int) -> None:
        """Advance by this token. Raises `ConstraintError` if it cannot come next."""
        if self._failure:
            self._fail(self._failure)
        if token in self._eos:
            self._end()
            return
        if self._ended:
            self._fail(f"token {token} came after the end")
        if token >= len(self._vocabulary.tokens) or not self._engine.consume_token(token):
            error = self._engine_error()
            why = ""
            if error:
                why = f": {error}"
            self._fail(f"token {token} may not come after {self.text[-60:]!r}{why}")
        self._check_engine()
        self.tokens.append(token)

    def _end(self) -> None:
        is_whole = self._engine.is_accepting() and not self._engine.is_error()
        if not self._ended and not is_whole:
            self._fail("the text was ended before the answer was whole")
        self._ended = True

    def answer(self) -> Answer:
        """The answer, read and validated.

        Raises `ConstraintError` if it is incomplete, `ToolCallError` if it does not fit its schema.
        """
        if not self.is_finished:
            what = self._failure or self.text[-200:]
            raise ConstraintError(f"The answer is incomplete and has no call: {what!r}")
        return self._read(self.text)

    def copy(self) -> Matcher:
        """An independent matcher in the same state."""
        other = copy.copy(self)
        other.tokens = list(self.tokens)
        other._engine = self._engine.deep_copy()  # noqa: SLF001  its own class
        return other

    def _check_engine(self) -> None:
        error = self._engine_error()
        if error:
            self._fail(error)

    def _engine_error(self) -> str:
        """Why the engine failed; empty if it did not."""
        if not self._engine.is_error():
            return ""
        return str(self._engine.get_error()).partition("\n")[0]

    def _fail(self, why: str) -> NoReturn:
        self._failure = why
        raise ConstraintError(f"The constrained answer failed: {why}")


def _mask_bytes(number_of_ids: int) -> int:
    """The length of a mask in bytes: whole words of 32 bits."""
    words = (number_of_ids + 31) // 32
    return 4 * words


def _mask_of(ids: Iterable[int], number_of_ids: int) -> bytes:
    mask = bytearray(_mask_bytes(number_of_ids))
    for token in ids:
        mask[token // 8] |= 1 << token % 8
    return bytes(mask)
