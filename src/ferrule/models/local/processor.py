"""`ConstraintProcessor`: a constraint for your own call of `generate`, with transformers or llama-cpp-python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.errors import ConstraintError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ferrule.models.local.constraint import Constraint
    from ferrule.models.local.grammar import Answer
    from ferrule.models.local.matcher import Matcher


class ConstraintProcessor:
    """A logits processor that admits only tokens that fit the constraint. For one call of `generate`; create a new one for the next.

    ```text
    processor = ConstraintProcessor(constraint, budget=300)
    model.generate(**inputs, logits_processor=[processor], max_new_tokens=300)         # transformers, also with several rows
    llama.create_completion(prompt, logits_processor=LogitsProcessorList([processor]))  # llama-cpp-python
    ```
    With a `budget`, each answer ends within so many tokens. Beam search raises `ConstraintError`:
    it returns to abandoned tokens.
    """

    def __init__(self, constraint: Constraint, *, budget: int | None = None) -> None:
        self._constraint = constraint
        self._budget = budget
        self._rows: list[list[int]] = []
        """The tokens of each row at the last step."""
        self._matchers: list[Matcher] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Set the scores of tokens that cannot come next to minus infinity, in place."""
        is_batch = len(input_ids.shape) > 1
        rows: list[list[int]] = input_ids.tolist() if is_batch else [input_ids.tolist()]
        self._follow(rows)
        for matcher, row in zip(self._matchers, scores if is_batch else [scores], strict=True):
            matcher.apply(row)
        return scores

    def answers(self, sequences: Any) -> list[Answer]:
        """The answers in the result of `generate`, which includes the prompts. Raises `ConstraintError` for an answer that was cut off."""
        rows: list[list[int]] = (
            sequences.tolist()
            if hasattr(sequences, "tolist")
            else [list(each) for each in sequences]
        )
        self._follow(rows)
        return [each.answer() for each in self._matchers]

    def _follow(self, rows: list[list[int]]) -> None:
        if not self._matchers:
            self._matchers = [self._constraint.matcher(self._budget) for _ in rows]
        elif len(rows) != len(self._rows) or any(
            now[: len(before)] != before for now, before in zip(rows, self._rows, strict=True)
        ):
            msg = "The processor follows one `generate` without beam search. Make another one for the next, and set `num_beams=1`."
            raise ConstraintError(msg)
        else:
            for matcher, now, before in zip(self._matchers, rows, self._rows, strict=True):
                _accept(matcher, now[len(before) :])
        self._rows = rows


def _accept(matcher: Matcher, tokens: Sequence[int]) -> None:
    for token in tokens:
        if matcher.is_finished:
            return  # the rest is padding
        matcher.accept(token)
