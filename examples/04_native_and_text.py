"""One agent, two ways to call tools: native calls, or calls written in the text. The prediction is the same."""

from ferrule import ReAct, context
from ferrule.testing import ScriptedLM


def convert(celsius: float) -> float:
    """Convert degrees Celsius to degrees Fahrenheit."""
    return celsius * 9 / 5 + 32


def text_step(thought: str, name: str, args: str) -> str:
    """A step as a model writes it without native calls."""
    return f"[[ ## next_thought ## ]]\n{thought}\n\n[[ ## next_tool_name ## ]]\n{name}\n\n[[ ## next_tool_args ## ]]\n{args}\n"


native = ScriptedLM(
    [
        {"text": "I convert it.", "tool_calls": [{"name": "convert", "args": {"celsius": 100}}]},
        {"text": "I know enough.", "tool_calls": [{"name": "finish", "args": {"answer": "212 F"}}]},
    ],
)
text = ScriptedLM(
    [
        text_step("I convert it.", "convert", '{"celsius": 100}'),
        text_step("I know enough.", "finish", "{}"),
        # Without native calls, `finish` carries no outputs: one more model call extracts them from the trajectory.
        "[[ ## reasoning ## ]]\nThe tool said 212.0.\n\n[[ ## answer ## ]]\n212 F\n\n[[ ## completed ## ]]",
    ],
)

with context(lm=native):
    by_call = ReAct("question -> answer", [convert], native=True)(
        question="How hot is boiling water in Fahrenheit?",
    )
with context(lm=text):
    by_text = ReAct("question -> answer", [convert], native=False)(
        question="How hot is boiling water in Fahrenheit?",
    )

print(by_call.answer, "=", by_text.answer)
print("tools declared:", len(native.requests[0].tools), "and", len(text.requests[0].tools))

assert by_call.answer == by_text.answer == "212 F"
assert by_call.trajectory["observation_0"] == by_text.trajectory["observation_0"] == "212.0"
