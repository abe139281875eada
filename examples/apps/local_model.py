"""An agent on a model in this process: `python local_model.py local:Qwen/Qwen3-0.6B`, or `llama_cpp:FILE.gguf`.

The first needs `pip install torch transformers`, the second `pip install llama-cpp-python`, and both `pip install 'ferrule[local]'`.
Without an argument, the program only says how to start it.
"""

import sys
from typing import Literal

from ferrule import LM, Predict, ReAct, tool

CITIES = {"Bern": 12, "Oslo": 4, "Rome": 21}


@tool(effect="read")
def temperature(city: Literal["Bern", "Oslo", "Rome"]) -> str:
    """Tell a city's temperature in degrees Celsius."""
    return f"{CITIES[city]} degrees in {city}"


def main(name: str) -> None:
    """Ask for typed outputs, then let an agent use its tool in two ways."""
    lm = LM(name, max_tokens=600, thought_chars=300)
    found = Predict("text -> language: Literal['English', 'French', 'German'], is_question: bool")(
        text="Wie geht es dir?",
        lm=lm,
    )
    print("typed outputs:", found.language, found.is_question)
    for calls in ("constrained", "prompted"):
        agent = ReAct(
            "question -> answer, degrees: int",
            [temperature],
            calls=calls,
            max_iters=5,
        )
        prediction = agent(question="How warm is it in Oslo?", lm=lm)
        print(f"{calls}: {prediction.answer} ({prediction.degrees})")
        for step in prediction.trajectory.steps:
            print(
                "  ",
                *[
                    f"{call.name} {call.args} -> {result.content}"
                    for call, result in zip(step.calls, step.results, strict=True)
                ],
            )


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        print("Name a model: python local_model.py local:Qwen/Qwen3-0.6B, or llama_cpp:FILE.gguf")
