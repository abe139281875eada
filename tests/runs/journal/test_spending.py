"""What a run has spent, by its journal."""

from __future__ import annotations

import pickle

from ferrule import Prediction, Response, Usage
from ferrule.runs.journal.entry import Entry
from ferrule.runs.journal.spending import spending, spent


def answer(slot: str, usage: Usage, model: str | None = None, cost: float | None = None) -> Entry:
    return Entry(slot, "model", "d", Response("hi", usage=usage, model=model, cost=cost))


def test_answers_are_added_up_whole_and_by_model() -> None:
    """Those of programs inside too; other entries count nothing."""
    entries = [
        answer("0", Usage(10, 5, 4, 1, 3, 2), "a", 0.1),
        Entry("1.0", "spent", "", {"tokens": 99}),
        answer("1.0/inner/0", Usage(1, 1, 0, 1), "b", 0.2),
        answer("2", Usage(2, 2, 0, 1), "a", 0.3),
    ]
    found = spent(entries)
    assert found == Usage(13, 8, 4, 3, 3, 2, 0.6)
    assert found.by_model == {"a": Usage(12, 7, 4, 2, 3, 2, 0.4), "b": Usage(1, 1, 0, 1, cost=0.2)}


def test_one_unknown_cost_makes_the_sum_unknown_but_not_that_of_other_models() -> None:
    found = spent([answer("0", Usage(calls=1), "a", 0.1), answer("1", Usage(calls=1))])
    assert (found.cost, found.by_model[""].cost, found.by_model["a"].cost) == (None, None, 0.1)


def test_a_journal_without_answers_has_spent_nothing() -> None:
    assert spent([]) == Usage()


def test_a_prediction_adds_up_when_it_is_asked_and_knows_no_later_answers() -> None:
    entries = [answer("0", Usage(1, 1, 0, 1), "a", 0.5)]
    made = Prediction(b="B")
    made.counted(spending(entries))
    entries.append(answer("1", Usage(9, 9, 0, 1), "a", 0.5))
    again = pickle.loads(pickle.dumps(made))
    assert (
        (made.usage, made.cost) == (again.usage, again.cost) == (Usage(1, 1, 0, 1, cost=0.5), 0.5)
    )
