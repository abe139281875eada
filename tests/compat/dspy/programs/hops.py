"""Which pages support a claim: a module that searches several times and keeps notes.

After DSPy's tutorial on multi-hop search.
"""

import dspy
from dspy.utils import DummyLM

PAGES = {
    "Kon-Tiki": "Kon-Tiki | A raft of balsa wood, which Thor Heyerdahl sailed in 1947.",
    "Thor Heyerdahl": "Thor Heyerdahl | A Norwegian explorer, born in Larvik.",
    "Larvik": "Larvik | A town in Norway, known for its ferries.",
}


def search(query: str, k: int) -> list[str]:
    words = query.lower().split()
    ranked = sorted(PAGES.values(), key=lambda page: -sum(word in page.lower() for word in words))
    return ranked[:k]


class Hops(dspy.Module):
    def __init__(self, num_docs=2, num_hops=2):
        self.num_docs, self.num_hops = num_docs, num_hops
        self.generate_query = dspy.ChainOfThought("claim, notes -> query")
        self.append_notes = dspy.ChainOfThought(
            "claim, notes, context -> new_notes: list[str], titles: list[str]"
        )

    def forward(self, claim: str) -> dspy.Prediction:
        notes, titles = [], []
        for _ in range(self.num_hops):
            query = self.generate_query(claim=claim, notes=notes).query
            context = search(query, k=self.num_docs)
            found = self.append_notes(claim=claim, notes=notes, context=context)
            notes.extend(found.new_notes)
            titles.extend(found.titles)
        return dspy.Prediction(notes=notes, titles=[*dict.fromkeys(titles)])


def recall(example, prediction, trace=None):
    found = set(prediction.titles[:5])
    share = len(found & set(example.titles)) / len(example.titles)
    if trace is not None:
        return share >= 1.0
    return share


devset = [
    dspy.Example(
        claim="The sailor of the Kon-Tiki was born in a town with ferries.",
        titles=["Kon-Tiki", "Thor Heyerdahl", "Larvik"],
    ).with_inputs("claim"),
    dspy.Example(claim="Larvik is in Norway.", titles=["Larvik"]).with_inputs("claim"),
]


def hop(query, new_notes, titles):
    return [
        {"reasoning": "What is not known yet?", "query": query},
        {"reasoning": "It is there.", "new_notes": new_notes, "titles": titles},
    ]


lm = DummyLM(
    [
        *hop("Kon-Tiki raft", ["Heyerdahl sailed it."], ["Kon-Tiki"]),
        *hop("Heyerdahl born", ["He was born in Larvik."], ["Thor Heyerdahl"]),
        *hop("Larvik", ["It is in Norway."], ["Larvik"]),
        *hop("Larvik town", [], ["Larvik"]),
    ]
)
dspy.configure(lm=lm)
program = Hops()
result = dspy.Evaluate(devset=devset, metric=recall, num_threads=1)(program)

assert result.score == 83.33
assert [round(score, 2) for _, _, score in result.results] == [0.67, 1.0]
assert result.results[0][1].notes == ["Heyerdahl sailed it.", "He was born in Larvik."]
assert [name for name, _ in program.named_predictors()] == [
    "generate_query.predict",
    "append_notes.predict",
]
assert len(lm.history) == 8
assert recall(devset[1], result.results[1][1], trace=[]) is True
