"""An agent that searches and looks pages up, measured; an agent that fails scores zero.

After DSPy's tutorial on agents.
"""

import dspy
from dspy.utils import DummyLM

PAGES = {
    "Oslo": "Oslo | The capital of Norway. It was called Kristiania until 1925.",
    "Bergen": "Bergen | A port in the west of Norway.",
}


def search_pages(query: str) -> list[str]:
    """Returns the titles of pages that have a word of the query."""
    words = query.lower().split()
    return [title for title, text in PAGES.items() if any(word in text.lower() for word in words)]


def lookup_page(title: str) -> str:
    """Returns the text of a page, if it exists."""
    return PAGES[title]


instructions = "Find all titles of pages that one needs to judge the claim."
signature = dspy.Signature("claim -> titles: list[str]", instructions)
react = dspy.ReAct(signature, tools=[search_pages, lookup_page], max_iters=5)


def safe_react(claim: str):
    try:
        return react(claim=claim)
    except Exception:
        return dspy.Prediction(titles=[])


def finds_all(example, prediction, trace=None):
    return set(example.titles) <= set(prediction.titles)


devset = [
    dspy.Example(claim="Oslo was once Kristiania.", titles=["Oslo"]).with_inputs("claim"),
    dspy.Example(claim="Bergen is a port.", titles=["Bergen"]).with_inputs("claim"),
    dspy.Example(claim="Tromsø is a port.", titles=["Tromsø"]).with_inputs("claim"),
]


def step(thought, name, **args):
    return {"next_thought": thought, "next_tool_name": name, "next_tool_args": args}


lm = DummyLM(
    [
        step("I look for the old name.", "search_pages", query="kristiania"),
        step("I read it.", "lookup_page", title="Oslo"),
        step("That is all.", "finish"),
        {"reasoning": "Its page says so.", "titles": ["Oslo"]},
        step("I look for the port.", "search_pages", query="port"),
        step("That is all.", "finish"),
        {"reasoning": "Its page says so.", "titles": ["Bergen"]},
        step("I read it.", "lookup_page", title="Tromsø"),
        step("There is no page.", "finish"),
        {"reasoning": "There is no page.", "titles": []},
    ]
)
with dspy.context(lm=lm):
    result = dspy.Evaluate(devset=devset, metric=finds_all, num_threads=1)(safe_react)

assert result.score == 66.67
[first, second, third] = [prediction for _, prediction, _ in result.results]
assert first.trajectory["tool_name_0"] == "search_pages"
assert first.trajectory["observation_0"] == ["Oslo"]
assert first.trajectory["observation_1"].startswith("Oslo | The capital")
assert second.titles == ["Bergen"]
assert "Execution error in lookup_page" in third.trajectory["observation_0"]
assert "thought_2" in first.trajectory
