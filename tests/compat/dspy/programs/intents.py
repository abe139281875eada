"""What a customer wants: a choice among labels, by an ensemble of two prompts.

After DSPy's tutorials on classification and on modules of your own.
"""

from typing import Literal

import dspy
from dspy.utils import DummyLM

Label = Literal["card_lost", "card_arrival", "top_up_failed"]


class Intent(dspy.Signature):
    """Choose the intent of a customer of a bank."""

    text: str = dspy.InputField()
    hint: str = dspy.InputField()
    label: Label = dspy.OutputField()
    confidence: float = dspy.OutputField()


class Ensemble(dspy.Module):
    """Asks twice, with and without a hint, and takes the surer answer."""

    def __init__(self):
        super().__init__()
        self.hint = dspy.Predict("text -> hint")
        self.choose = dspy.ChainOfThought(Intent)

    def forward(self, text):
        hint = self.hint(text=text).hint
        answers = [self.choose(text=text, hint=given) for given in ("", hint)]
        return max(answers, key=lambda answer: answer.confidence)


def is_right(example, prediction, trace=None):
    return example.label == prediction.label


trainset = [
    dspy.Example(text="My card is gone!", hint="It cannot be found.", label="card_lost"),
    dspy.Example(text="Where is my new card?", hint="It was ordered.", label="card_arrival"),
]
devset = [
    example.with_inputs("text")
    for example in (
        dspy.Example(text="Someone stole my card", label="card_lost"),
        dspy.Example(text="I cannot add money", label="top_up_failed"),
    )
]


def choice(label, confidence):
    return {"reasoning": "By its words.", "label": label, "confidence": confidence}


lm = DummyLM(
    [
        {"hint": "A theft."},
        choice("card_arrival", 0.4),
        choice("card_lost", 0.9),
        {"hint": "Money."},
        choice("top_up_failed", 0.8),
        choice("card_lost", 0.3),
    ]
)
dspy.configure(lm=lm, track_usage=True)
program = Ensemble()
program.choose.predict.demos = trainset
result = dspy.Evaluate(devset=devset, metric=is_right, num_threads=1, failure_score=0.0)(program)

assert result.score == 100.0
assert result.results[0][1].confidence == 0.9
prompt = "\n".join(str(message["content"]) for message in lm.history[1]["messages"])
assert "Choose the intent of a customer of a bank." in prompt
assert "Where is my new card?" in prompt
assert "top_up_failed" in prompt
assert [example.label for example, _, _ in result.results] == ["card_lost", "top_up_failed"]
