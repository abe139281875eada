"""Who is named in a sentence: a typed extraction, measured, saved and loaded.

After DSPy's tutorial on the extraction of entities.
"""

import tempfile
from pathlib import Path

import dspy
from dspy.utils import DummyLM

SENTENCES = [
    ("Ada Lovelace wrote to Charles Babbage .", ["Ada Lovelace", "Charles Babbage"]),
    ("The ship left Oslo in May .", []),
    ("Grace Hopper spoke in Boston .", ["Grace Hopper"]),
]


class ExtractPeople(dspy.Signature):
    """Find the people that the tokens name. One text for each person, with the whole name."""

    tokens: list[str] = dspy.InputField(desc="a sentence, as tokens")
    people: list[str] = dspy.OutputField(desc="all people, in the order of the tokens")


def has_all_people(example, prediction, trace=None):
    return prediction.people == example.people


devset = [
    dspy.Example(tokens=sentence.split(), people=people).with_inputs("tokens")
    for sentence, people in SENTENCES
]
answers = [
    {"reasoning": "Two names.", "people": ["Ada Lovelace", "Charles Babbage"]},
    {"reasoning": "A town is not a person.", "people": []},
    {"reasoning": "A name and a town.", "people": ["Grace Hopper", "Boston"]},
]
extract = dspy.ChainOfThought(ExtractPeople)
evaluate = dspy.Evaluate(
    devset=devset, metric=has_all_people, num_threads=1, provide_traceback=True
)
with dspy.context(lm=DummyLM([*answers])):
    before = evaluate(extract)

# An instruction that helps is kept in a file, as an optimizer would leave it.
better = ExtractPeople.instructions + " Towns are not people."
extract.predict.signature = extract.predict.signature.with_instructions(better)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "people.json"
    extract.save(path)
    again = dspy.ChainOfThought(ExtractPeople)
    again.load(path)
again.set_lm(DummyLM([*answers[:2], {"reasoning": "One name.", "people": ["Grace Hopper"]}]))
after = evaluate(again)

assert "Towns are not people." in again.predict.signature.instructions
assert (before.score, after.score) == (66.67, 100.0)
assert [score for _, _, score in before.results] == [True, True, False]
assert after.results[2][1].people == ["Grace Hopper"]
