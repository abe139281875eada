"""A program of your own, in plain Python: it calls other programs and is used like them."""

from ferrule import Module, Predict, Prediction, configure
from ferrule.testing import ScriptedLM


class Summary(Module):
    """Summarise, and shorten until it fits."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.summarize = Predict("document -> summary")
        self.shorten = Predict("summary, longest: int -> shorter")

    def forward(self, document: str) -> Prediction:
        """Ask once for a summary, then at most three times for a shorter one."""
        summary = self.summarize(document=document).summary
        for _ in range(3):
            if len(summary) <= self.longest:
                break
            summary = self.shorten(summary=summary, longest=self.longest).shorter
        return Prediction(summary=summary)


lm = ScriptedLM(
    [
        "[[ ## summary ## ]]\nA ring that binds a tool's head to its handle.\n\n[[ ## completed ## ]]",
        "[[ ## shorter ## ]]\nA ring on a tool.\n\n[[ ## completed ## ]]",
    ],
)
configure(lm=lm)
program = Summary(longest=20)
prediction = program(document="A ferrule is a ring or cap, usually of metal, that ...")
print(prediction.summary)
print([name for name, _ in program.named_predictors()])

assert prediction.summary == "A ring on a tool."
lm.assert_done()
assert [name for name, _ in program.named_predictors()] == ["summarize", "shorten"]
