"""Tools from files: each file holds one tool, the function with the file's name."""

from pathlib import Path
from tempfile import TemporaryDirectory

from ferrule import ReAct, Tool, configure
from ferrule.testing import ScriptedLM

TOOLS = {
    "area.py": 'def area(width: float, height: float) -> float:\n    """The area of a rectangle."""\n    return width * height\n',
    "shout.py": 'def shout(text: str) -> str:\n    """Say it louder."""\n    return text.upper() + "!"\n',
}

with TemporaryDirectory() as folder:
    for name, text in TOOLS.items():
        (Path(folder) / name).write_text(text, encoding="utf-8")
    everything = Tool.load(folder)
    only_area = Tool.load(folder, "area")

print([tool.name for tool in everything])

configure(
    lm=ScriptedLM(
        [
            # Two calls of one step run in parallel; the results come in call order.
            [
                {"name": "area", "args": {"width": 2, "height": 3.5}},
                {"name": "shout", "args": {"text": "done"}},
            ],
            {"name": "finish", "args": {"answer": "7.0, DONE!"}},
        ],
    ),
)
prediction = ReAct("question -> answer", everything)(
    question="How big is it? Say loudly when you are done.",
)
print(prediction.trajectory["observation_0"])

assert [tool.name for tool in everything] == ["area", "shout"]
assert [tool.name for tool in only_area] == ["area"]
assert prediction.trajectory["observation_0"] == ["7.0", "DONE!"]
