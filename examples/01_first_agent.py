"""An agent with one tool: the model calls a Python function, sees the result, and answers."""

from ferrule import ReAct, configure
from ferrule.testing import ScriptedLM


def count_letter(word: str, letter: str) -> int:
    """Count how often a letter occurs in a word."""
    return word.lower().count(letter.lower())


# A script replaces the model, so this runs anywhere. With a real model: configure(lm=LM("openai/gpt-5-mini")).
lm = ScriptedLM(
    [
        {
            "text": "I count rather than guess.",
            "tool_calls": [{"name": "count_letter", "args": {"word": "strawberry", "letter": "r"}}],
        },
        {"name": "finish", "args": {"answer": 3}},
    ],
)
configure(lm=lm)

agent = ReAct("question -> answer: int", tools=[count_letter])
prediction = agent(question="How often does the letter r occur in 'strawberry'?")

for step in prediction.trajectory.steps:
    for call, result in zip(step.calls, step.results, strict=True):
        print(f"{call.name}({call.args}) -> {result.text}")
print("answer:", prediction.answer)

assert prediction.toDict() == {"answer": 3}
assert prediction.trajectory["observation_0"] == "3"
lm.assert_done()
