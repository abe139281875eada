"""Programs with tools, agents and dynamic tools from udspy's public pages, in our own words: they
run with the import changed.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from ferrule.compat.udspy.adapter import ChatAdapter
from ferrule.compat.udspy.confirmation import ConfirmationRequired
from pydantic import Field

from ferrule.compat import udspy
from ferrule.compat.udspy import (
    InputField,
    OutputField,
    Predict,
    ReAct,
    Signature,
    Tool,
    module_callback,
    tool,
)


class QA(Signature):
    """Answer questions with the tools."""

    question: str = InputField()
    answer: str = OutputField()


@tool(name="Calculator", description="Calculate with two numbers")
def calculator(
    operation: Literal["add", "multiply"] = Field(description="What to do"),
    a: float = Field(description="The first number"),
    b: float = Field(description="The second number"),
) -> float:
    return a + b if operation == "add" else a * b


@tool(name="search", description="Search for facts")
def search(
    query: str = Field(description="What to search for"),
    limit: int = Field(default=3, description="How many"),
) -> str:
    return f"{limit} results for {query}"


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


def finish(**outputs: Any) -> dict[str, Any]:
    return call("finish", **outputs)


# -- tools


def test_a_tool_shows_its_schema() -> None:
    """Tool reference: `@tool`."""
    assert (calculator.name, calculator.desc, calculator.description) == (
        "Calculator",
        *["Calculate with two numbers"] * 2,
    )
    assert calculator.parameters["required"] == ["operation", "a", "b"]
    assert calculator.args["a"] == {"type": "number", "description": "The first number"}
    assert calculator.format().startswith(
        "Calculator, whose description is <desc>Calculate with two numbers</desc>.",
    )
    assert calculator("add", 2, 3) == 5


def test_a_tool_of_a_plain_function() -> None:
    """Tool reference: the constructor."""

    def add(x: int, y: int) -> int:
        """Add two numbers."""
        return x + y

    adder = Tool(add, name="adder", description="Adds numbers")
    assert (adder.name, adder(x=1, y=2), adder.require_confirmation) == ("adder", 3, False)


def test_a_tool_is_awaited() -> None:
    """Tool reference: `acall` of async and of sync functions."""

    @tool(name="fetch", description="Fetch a page")
    async def fetch(url: str = Field(...)) -> str:
        await asyncio.sleep(0)
        return f"Data from {url}"

    async def main() -> list[Any]:
        return [await fetch.acall(url="x"), await calculator.acall(operation="multiply", a=2, b=4)]

    assert asyncio.run(main()) == ["Data from x", 8]


def test_the_adapter_makes_openais_schema_of_a_tool() -> None:
    """Tool reference: `ChatAdapter().format_tool_schema`."""
    found = ChatAdapter().format_tool_schema(calculator)
    assert (found["type"], found["function"]["name"]) == ("function", "Calculator")
    assert found["function"]["parameters"] == calculator.parameters
    assert udspy.Tools(tools=[calculator]).format().startswith("(1): Calculator, whose")


def test_predict_calls_tools_by_itself(model) -> None:
    """Tool calling: the automatic loop."""
    lm = model(call("Calculator", operation="multiply", a=157, b=234), {"answer": "36738"})
    predictor = Predict(QA, tools=[calculator, search], max_turns=5)
    result = predictor(question="What is 157 times 234?")
    assert result.answer == "36738"
    assert lm.requests[1].messages[-1].text == "36738.0"


def test_predict_with_one_tool_and_a_signature_of_its_own(model) -> None:
    """Tool reference: usage with Predict."""

    @tool(name="get_weather", description="Get current weather")
    def get_weather(city: str = Field(description="City name")) -> str:
        return f"Weather in {city}: sunny"

    class WeatherQuery(Signature):
        """Get weather information."""

        city: str = InputField()
        weather: str = OutputField()

    model(call("get_weather", city="Oslo"), {"weather": "Sunny"})
    assert Predict(WeatherQuery, tools=[get_weather])(city="Oslo")["weather"] == "Sunny"


def test_calls_are_returned_unexecuted_and_run_by_hand(model) -> None:
    """Tool calling: `auto_execute_tools=False`, and the results in the history."""
    model(call("Calculator", operation="add", a=10, b=20), {"answer": "30"})
    predictor = Predict(QA, tools=[calculator])
    history = udspy.History()
    result = predictor(question="10 + 20?", auto_execute_tools=False, history=history)
    assert not result.is_final
    for wanted in result.native_tool_calls:
        assert (wanted.name, wanted["name"], wanted["id"]) == (
            "Calculator",
            "Calculator",
            wanted.call_id,
        )
        assert '"operation": "add"' in wanted["arguments"]
        history.add_tool_result(wanted.call_id, str(predictor.tools[wanted.name](**wanted.args)))
    assert predictor(question="So?", history=history).answer == "30"


def test_optional_arguments_have_defaults(model) -> None:
    """Tool reference: optional parameters."""
    model(call("search", query="tents"), {"answer": "ok"})
    history = udspy.History()
    Predict(QA, tools=[search])(question="q", history=history)
    assert [message["content"] for message in history.messages if message["role"] == "tool"] == [
        "3 results for tents",
    ]


def test_an_error_of_a_tool_is_told_to_the_model(model) -> None:
    """Tool reference: errors are observations; the text of one is the tool's own."""

    @tool(name="divide", description="Divide")
    def divide(a: float = Field(...), b: float = Field(...)) -> str:
        return "Error: cannot divide by zero" if b == 0 else str(a / b)

    model(call("divide", a=1, b=0), {"answer": "impossible"})
    history = udspy.History()
    assert Predict(QA, tools=[divide])(question="1/0?", history=history).answer == "impossible"
    assert history.messages[3]["content"] == "Error: cannot divide by zero"


# -- agents


def test_an_agent_researches_and_calculates(model) -> None:
    """ReAct: the basic agent, and its trajectory."""
    model(
        call("search", query="Tokyo"),
        call("Calculator", operation="multiply", a=14, b=2),
        finish(answer="28 million"),
    )
    agent = ReAct(QA, tools=[search, calculator], max_iters=5)
    result = agent(question="Twice the people of Tokyo?")
    assert result.answer == "28 million"
    assert [(step["tool_name"], step["observation"]) for step in result.trajectory] == [
        ("search", "3 results for Tokyo"), ("Calculator", "28.0"), ("finish", "Completed."),
    ]  # fmt: skip


def test_an_agent_with_a_string_signature_on_a_loop(model) -> None:
    """ReAct: `aforward` and "task -> result"."""
    model(call("search", query="React"), finish(result="done"))
    agent = ReAct("task -> result", tools=[search], enable_ask_to_user=False, max_iters=5)
    assert asyncio.run(agent.aforward(task="Search for React")).result == "done"


def test_an_agent_asks_its_user(model) -> None:
    """ReAct: clarification, and `aresume` with the user's words."""
    model(call("user_clarification", question="About what?"), finish(answer="Python is a language"))
    agent = ReAct(QA, tools=[search], enable_ask_to_user=True)

    async def main() -> Any:
        try:
            return await agent.aforward(question="Tell me about it")
        except ConfirmationRequired as e:
            assert e.question == "About what?"
            return await agent.aresume("The Python language", e)

    result = asyncio.run(main())
    assert (result.answer, result.trajectory[0]["observation"]) == (
        "Python is a language",
        "The Python language",
    )


def test_an_agent_stops_at_its_last_iteration(model) -> None:
    """ReAct: `max_iters`, at construction and in a call; the answer is extracted."""
    model(
        call("search", query="a"),
        {"reasoning": "", "answer": "so far"},
        call("search", query="a"),
        {"reasoning": "", "answer": "again"},
    )
    agent = ReAct(QA, tools=[search], max_iters=1)
    assert agent(question="q").answer == "so far"
    assert agent(question="q", max_iters=1).answer == "again"


# -- dynamic tools


@tool(name="load_calculator", description="Load the calculator")
def load_calculator() -> Any:
    @module_callback
    def add_calculator(context: Any) -> str:
        current = [
            each
            for each in context.module.tools.values()
            if each.name not in ("finish", "user_clarification")
        ]
        context.module.init_module(tools=[*current, calculator])
        return "Calculator loaded"

    return add_calculator


def test_an_agent_loads_a_calculator_and_keeps_it(model) -> None:
    """Dynamic tools: the calculator; its tools afterwards."""
    script = (
        call("load_calculator"),
        call("Calculator", operation="multiply", a=157, b=834),
        finish(answer="130938"),
    )
    model(*script)
    agent = ReAct(QA, tools=[load_calculator], max_iters=5)
    assert "Calculator" not in agent.tools
    result = agent(question="157 * 834?")
    assert [step["observation"] for step in result.trajectory] == [
        "Calculator loaded",
        "130938.0",
        "Completed.",
    ]
    assert set(agent.tools) == {"load_calculator", "Calculator", "finish"}
    model(call("Calculator", operation="add", a=1, b=1), finish(answer="2"))
    assert agent(question="1 + 1?").answer == "2"


def test_tools_are_loaded_by_category(model) -> None:
    """Dynamic tools: a category that is loaded twice, and one that there is not."""

    @tool(name="load_tools", description="Load tools by category")
    def load_tools(category: str = Field(...)) -> Any:
        @module_callback
        def add_tools(context: Any) -> str:
            new = {"math": [calculator], "web": [search]}.get(category)
            if new is None:
                return f"Unknown category: {category}"
            context.module.init_module(tools=[*context.module.tools.values(), *new])
            return f"Loaded {len(new)} {category} tools"

        return add_tools

    model(
        *[call("load_tools", category=each) for each in ("math", "games", "math", "web")],
        finish(answer="ok"),
    )
    agent = ReAct(QA, tools=[load_tools])
    observations = [step["observation"] for step in agent(question="q").trajectory]
    assert observations[:4] == [
        "Loaded 1 math tools",
        "Unknown category: games",
        "Loaded 1 math tools",
        "Loaded 1 web tools",
    ]
    assert set(agent.tools) == {"load_tools", "Calculator", "search", "finish"}


def test_predict_loads_tools_too(model) -> None:
    """Dynamic tools: `Predict`, whose callback sees the history; an async callback."""

    @tool(name="load", description="Load")
    def load() -> Any:
        @module_callback
        async def add(context: Any) -> str:
            context.module.init_module(tools=[*context.module.tools.values(), calculator])
            return f"loaded after {len(context.history.messages)} message"

        return add

    history = udspy.History()
    model(call("load"), call("Calculator", operation="add", a=1, b=2), {"answer": "3"})
    predictor = Predict(QA, tools=[load])
    assert predictor(question="1 + 2?", history=history).answer == "3"
    assert "Calculator" in predictor.tools
    assert len(predictor.tool_schemas) == 2
    assert [message["content"] for message in history.messages if message["role"] == "tool"] == [
        "loaded after 1 message",
        "3.0",
    ]


def test_a_callback_sees_the_steps_and_the_inputs(model) -> None:
    """Dynamic tools: `context.trajectory` and `context.input_args`; an explanation instead of a
    change.
    """

    @tool(name="explain", description="Explain")
    def explain() -> Any:
        @module_callback
        def tell(context: Any) -> str:
            return f"{len(context.trajectory)} steps, {context.trajectory[0]['tool_name']}, {context.input_args['question']}"

        return tell

    model(call("search", query="a"), call("explain"), finish(answer="ok"))
    assert (
        ReAct(QA, tools=[search, explain])(question="why?").trajectory[1]["observation"]
        == "1 steps, search, why?"
    )


def test_a_module_is_given_other_tools_by_hand(model) -> None:
    """Modules: `init_module` outside a run; built-in tools stay."""
    agent = ReAct(QA, tools=[search])
    agent.init_module(tools=[calculator])
    assert set(agent.tools) == {"Calculator", "finish"}
    agent.init_module()
    assert set(agent.tools) == {"finish"}
    model(finish(answer="nothing to call"))
    assert agent(question="q").answer == "nothing to call"


def test_a_callback_is_told_from_a_value() -> None:
    """Dynamic tools: `is_module_callback`, and a callback that is called directly."""

    @module_callback
    def mine(context: Any) -> str:
        return f"in {type(context.module).__name__}"

    assert [udspy.is_module_callback(each) for each in (mine, len, "x")] == [True, False, False]
    assert mine(udspy.ModuleContext(module=Predict(QA))) == "in Predict"
