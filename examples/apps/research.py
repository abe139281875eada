"""A research agent: 100 tools of an MCP server in a process of its own, and a search that loads the few that a question needs.

`python research.py` runs the agent, which starts `python research.py serve` as its server.
"""

import sys

from ferrule import MCPServer, ReAct, Tool, Toolbox, configure, serve, tool
from ferrule.testing import ScriptedLM

FACTS = {
    "iceland": (103_000, 394_000),
    "malta": (316, 563_000),
    **{f"region{number}": (1, 1) for number in range(48)},
}


# -- the server -------------------------------------------------------------------------------------------------------


def area(country: str) -> Tool:
    """A tool for the area of one country."""
    return Tool(
        lambda: FACTS[country][0],
        f"{country}_area",
        f"The area of {country} in square kilometres.",
        effect="read",
    )


def population(country: str) -> Tool:
    """A tool for the population of one country."""
    return Tool(
        lambda: FACTS[country][1],
        f"{country}_population",
        f"How many people live in {country}.",
        effect="read",
    )


def run_server() -> None:
    """Serve two tools for each country over standard input and output. A server written with any other MCP library would do."""
    serve([make(country) for country in FACTS for make in (area, population)], name="atlas")


# -- the agent --------------------------------------------------------------------------------------------------------


@tool(effect="read")
def density(people: int, km2: int) -> float:
    """Divide a number of people by an area in square kilometres."""
    return round(people / km2, 1)


def run_agent() -> None:
    """Answer one question."""
    atlas = MCPServer.stdio(sys.executable, [__file__, "serve"], name="atlas")

    # A hundred declarations would fill the prompt. They are on a shelf instead, and `search_tools` loads what the model looks for.
    tools = Toolbox([density, atlas], search="bm25", keep=["density"])
    agent = ReAct("question -> answer, densities: dict[str, float]", tools)

    # The model's part, so that this runs offline. With a real model, only this changes: configure(lm=LM("openai/gpt-5-mini")).
    lm = ScriptedLM(
        [
            {
                "text": "I need area and population of both.",
                "tool_calls": [
                    {"name": "search_tools", "args": {"query": "iceland", "limit": 2}},
                    {"name": "search_tools", "args": {"query": "malta", "limit": 2}},
                ],
            },
            # Calls of one step run in parallel. The tool has no argument `countries`: the model sees why, and calls again.
            [
                {"name": "iceland_population", "args": {}},
                {"name": "iceland_area", "args": {}},
                {"name": "malta_population", "args": {"countries": ["malta"]}},
                {"name": "malta_area", "args": {}},
            ],
            [
                {"name": "malta_population", "args": {}},
                {"name": "density", "args": {"people": 394_000, "km2": 103_000}},
            ],
            {"name": "density", "args": {"people": 563_000, "km2": 316}},
            {
                "text": "Malta, by far.",
                "tool_calls": [
                    {
                        "name": "finish",
                        "args": {
                            "answer": "Malta.",
                            "densities": {"Iceland": 3.8, "Malta": 1781.6},
                        },
                    },
                ],
            },
        ],
    )
    configure(lm=lm)

    with atlas:
        print(f"{len(atlas.tools)} tools on the server, offered at first: {', '.join(tools.names)}")
        prediction = agent(question="Which is more densely populated, Iceland or Malta?")

    for number, step in enumerate(prediction.trajectory.steps, 1):
        for call, result in zip(step.calls, step.results, strict=True):
            print(
                f"{number}. {call.name}({', '.join(f'{name}={value!r}' for name, value in call.args.items())})",
            )
            print(
                f"     {'failed: ' if result.is_error else ''}{' '.join(str(result.content).split())}",
            )
    print("answer:", prediction.answer, prediction.densities)

    print("tools declared in each request:", [len(request.tools) for request in lm.requests])


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        run_server()
    else:
        run_agent()
