"""`ConstraintProcessor`: a constraint for your own call of `generate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.errors import ConstraintError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferrule.models.local.constraint import Constraint
    from ferrule.models.local.grammar import Answer
    from ferrule.models.local.matcher import Matcher


class ConstraintProcessor:
    """A logits processor that admits only tokens that fit the constraint.

    It serves one call of `generate`; make a new one for the next.

    ```text
    processor = ConstraintProcessor(constraint)
    # transformers, also with several rows:
    model.generate(**inputs, logits_processor=[processor], max_new_tokens=300)
    # llama-cpp-python:
    llama.create_completion(prompt, logits_processor=LogitsProcessorList([processor]))
    ```
    Beam search raises `ConstraintError`: it returns to abandoned tokens.
    """

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._rows: list[list[int]] = []
        """The tokens of each row at the last step."""
        self._matchers: list[Matcher] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Set the scores of tokens that cannot come next to minus infinity, in place."""
        is_batch = len(input_ids.shape) > 1
        tokens = input_ids.tolist()
        self._follow(tokens if is_batch else [tokens])
        score_rows = scores if is_batch else [scores]
        for matcher, score_row in zip(self._matchers, score_rows, strict=True):
            matcher.apply(score_row)
        return scores

    def answers(self, sequences: Any) -> list[Answer]:
        """The answers in the result of `generate`, which includes the prompts.

        Raises `ConstraintError` for an answer that was cut off.
        """
        if hasattr(sequences, "tolist"):
            rows: list[list[int]] = sequences.tolist()
        else:
            rows = [list(sequence) for sequence in sequences]
        self._follow(rows)
        return [matcher.answer() for matcher in self._matchers]

    def _follow(self, rows: list[list[int]]) -> None:
        """Give each matcher the tokens that its row has gained since the last step."""
        if not self._matchers:
            self._matchers = [self._constraint.matcher() for _ in rows]
            self._rows = rows
            return
        if not self._continues(rows):
            raise ConstraintError(
                "The processor follows one `generate` without beam search. "
                "Make another one for the next, and set `num_beams=1`."
            )
        for matcher, row, earlier in zip(self._matchers, rows, self._rows, strict=True):
            _accept(matcher, row[len(earlier) :])
        self._rows = rows

    def _continues(self, rows: list[list[int]]) -> bool:
        """Whether each row begins with the tokens that it had at the last step."""
        if len(rows) != len(self._rows):
            return False
        pairs = zip(rows, self._rows, strict=True)
        return all(row[: len(earlier)] == earlier for row, earlier in pairs)


def _accept(matcher: Matcher, tokens: Sequence[int]) -> None:
    for token in tokens:
        if matcher.is_finished:
            return  # the rest is padding
        matcher.accept(token)
