"""The program of docs/coming-from/dspy.md, on the core of ferrule."""

from ferrule import ReAct, configure
from ferrule.testing import ScriptedLM


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"It is sunny in {city}."


configure(
    lm=ScriptedLM(
        [
            {"name": "get_weather", "args": {"city": "Rome"}},
            {"name": "finish", "args": {"answer": "Sunny"}},
        ]
    )
)
agent = ReAct("question -> answer", tools=[get_weather])
result = agent(question="What is the weather in Rome?")

assert result.answer == "Sunny"
assert result.trajectory["observation_0"] == "It is sunny in Rome."
