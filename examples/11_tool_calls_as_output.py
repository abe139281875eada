"""Tool calls as an output: the model returns calls, your code runs them, and the history carries the results."""

from ferrule import History, InputField, OutputField, Predict, Signature, Tool, ToolCalls, context
from ferrule.testing import ScriptedLM


def stock(item: str) -> int:
    """Count the pieces of an item that are left."""
    return {"rope": 12, "torch": 3}[item]


class Answer(Signature):
    """Answer the question, or say what you need to know first."""

    history: History = InputField()
    question: str = InputField()
    tools: list[Tool] = InputField()
    calls: ToolCalls | None = OutputField()
    answer: str | None = OutputField()


lm = ScriptedLM(
    [
        {
            "text": "I look it up.",
            "tool_calls": [
                {"name": "stock", "args": {"item": "rope"}},
                {"name": "stock", "args": {"item": "boat"}},
            ],
        },
        "[[ ## answer ## ]]\nThere are 12 ropes; I know of no boats.",
    ],
)
with context(lm=lm):
    ask = Predict(Answer)
    first = ask(question="How many ropes and boats are left?", tools=[stock], history=History())
    print("wanted:", *[f"{call.name}({call.args})" for call in first.calls.tool_calls])

    # The calls run here, in parallel. A call that fails gives a result, too.
    results = first.calls.execute_all([stock])
    print("found:", *[result.text for result in results], sep="\n  ")

    history = first.history
    history.add_tool_results(results)
    second = ask(question="So?", tools=[stock], history=history)
    print("answer:", second.answer)

assert [result.is_error for result in results] == [False, True]
assert [message.role for message in lm.requests[1].messages] == [
    "system",
    "user",
    "assistant",
    "tool",
    "tool",
    "user",
]
assert second.answer == "There are 12 ropes; I know of no boats."
lm.assert_done()
