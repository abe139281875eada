"""Programs with tools from DSPy's public pages, in our own words: they run with the import changed."""

from __future__ import annotations

import asyncio
import json

import pytest
from ferrule.compat.dspy.utils import DummyLM
from pydantic import BaseModel

import ferrule
from ferrule import Capabilities
from ferrule.compat import dspy
from ferrule.errors import ContextOverflowError
from ferrule.testing import ScriptedLM


def get_weather(city: str) -> str:
    """Get the current weather of a city."""
    return f"The weather in {city} is sunny."


def search_web(query: str) -> str:
    """Search the web."""
    return f"Results for {query}"


def step(name: str, args: dict, thought: str = "Let me see.") -> dict:
    return {"next_thought": thought, "next_tool_name": name, "next_tool_args": args}


FINISH = step("finish", {})


def test_weather_agent() -> None:
    """Tools: a ReAct agent over two functions."""
    dspy.configure(
        lm=DummyLM(
            [
                step("get_weather", {"city": "Tokyo"}),
                FINISH,
                {"reasoning": "It said so.", "answer": "Sunny"},
            ],
        ),
    )
    agent = dspy.ReAct("question -> answer", tools=[get_weather, search_web], max_iters=5)
    result = agent(question="What's the weather like in Tokyo?")
    assert result.answer == "Sunny"
    assert result.trajectory == {
        "thought_0": "Let me see.",
        "tool_name_0": "get_weather",
        "tool_args_0": {"city": "Tokyo"},
        "observation_0": "The weather in Tokyo is sunny.",
        "thought_1": "Let me see.",
        "tool_name_1": "finish",
        "tool_args_1": {},
        "observation_1": "Completed.",
    }
    assert type(result.trajectory) is dict


def test_the_trajectory_of_an_agent_that_calls_no_tool_is_an_empty_dict() -> None:
    """ "Returns a dspy.Prediction carrying both the trajectory and the extracted fields"."""
    agent = dspy.ReAct("question -> answer", tools=[get_weather], native=True)
    result = agent(question="?", lm=ScriptedLM(["Sunny."]))
    assert dict(result) == {"trajectory": {}, "answer": "Sunny."}


class ToolSignature(dspy.Signature):
    """Choose tools for the question."""

    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    outputs: dspy.ToolCalls = dspy.OutputField()


CALLS = {"outputs": {"tool_calls": [{"name": "get_weather", "args": {"city": "Rome"}}]}}


def test_manual_tool_handling() -> None:
    """Tools: the model's calls as an output, executed by hand, by the functions that this module
    defines.
    """
    dspy.configure(lm=DummyLM([CALLS]))
    response = dspy.Predict(ToolSignature)(
        question="Rome?",
        tools=[dspy.Tool(get_weather), dspy.Tool(search_web)],
    )
    assert isinstance(response.outputs, dspy.ToolCalls)
    [call] = response.outputs.tool_calls
    assert (call.name, call.args) == ("get_weather", {"city": "Rome"})
    with pytest.warns(UserWarning, match="Say what may be called"):
        assert call.execute() == "The weather in Rome is sunny."


def test_calls_executed_with_a_dict_or_a_list_of_tools() -> None:
    """Tools: `execute(functions=...)`."""
    call = dspy.ToolCalls.ToolCall(name="get_weather", args={"city": "Oslo"})
    assert call.execute(functions={"get_weather": get_weather}) == call.execute(
        functions=[dspy.Tool(get_weather)],
    )
    with pytest.raises(ValueError):
        call.execute(functions={})
    with pytest.raises(RuntimeError):
        dspy.ToolCalls.ToolCall(name="broken", args={}).execute(functions={"broken": lambda: 1 / 0})


def test_functions_given_for_tools() -> None:
    """Tools: plain functions in a list of tools."""
    dspy.configure(lm=DummyLM([CALLS]))
    assert (
        len(dspy.Predict(ToolSignature)(question="Rome?", tools=[get_weather]).outputs.tool_calls)
        == 1
    )


def test_properties_of_a_tool() -> None:
    """Tools: name, description and arguments come from the function."""

    def my_function(param1: str, param2: int = 5) -> str:
        """A sample function."""
        return f"{param1} {param2}"

    tool = dspy.Tool(my_function)
    assert (tool.name, tool.desc) == ("my_function", "A sample function.")
    assert tool.args["param1"]["type"] == "string"
    assert tool.args["param2"]["default"] == 5
    assert "my_function" in str(tool)
    assert tool(param1="a") == "a 5"


def test_native_calls_with_the_chat_adapter() -> None:
    """Tools: `ChatAdapter(use_native_function_calling=True)`."""
    lm = ScriptedLM([{"name": "get_weather", "args": {"city": "Rome"}}])
    dspy.configure(lm=lm, adapter=dspy.ChatAdapter(use_native_function_calling=True))
    response = dspy.Predict(ToolSignature)(question="Rome?", tools=[dspy.Tool(get_weather)])
    assert response.outputs.format() == {
        "tool_calls": [{"name": "get_weather", "args": {"city": "Rome"}}],
    }
    assert len(lm.requests[0].tools) == 1


def test_calls_in_text_with_the_json_adapter() -> None:
    """Tools: `JSONAdapter(use_native_function_calling=False)`."""
    dspy.configure(lm=DummyLM([CALLS]), adapter=dspy.JSONAdapter(use_native_function_calling=False))
    assert (
        dspy.Predict(ToolSignature)(question="Rome?", tools=[dspy.Tool(get_weather)])
        .outputs.tool_calls[0]
        .name
        == "get_weather"
    )


def test_tool_choice_auto() -> None:
    """Tools: a predictor's `config` holds `tool_choice`."""
    lm = ScriptedLM([{"name": "get_weather", "args": {"city": "Rome"}}])
    dspy.configure(lm=lm, adapter=dspy.ChatAdapter(use_native_function_calling=True))
    dspy.Predict(ToolSignature)(
        question="Rome?",
        tools=[dspy.Tool(get_weather)],
        config={"tool_choice": "auto"},
    )
    assert lm.requests[0].tool_choice == "auto"


async def lookup(city: str) -> str:
    """Look a city up."""
    await asyncio.sleep(0)
    return f"{city}!"


def test_async_tool() -> None:
    """Tools: `await tool.acall(...)`; in sync code only with `allow_tool_async_sync_conversion`."""
    tool = dspy.Tool(lookup)
    assert asyncio.run(tool.acall(city="Bern")) == "Bern!"
    with pytest.raises(ValueError):
        tool(city="Bern")
    with dspy.context(allow_tool_async_sync_conversion=True):
        assert tool(city="Bern") == "Bern!"


def test_a_setting_can_be_assigned() -> None:
    """ "Setting settings.allow_tool_async_sync_conversion=True (or scoping it via dspy.context)"."""
    dspy.settings.allow_tool_async_sync_conversion = True
    assert dspy.Tool(lookup)(city="Bern") == "Bern!"
    dspy.settings.lm = DummyLM([{"answer": "yes"}])
    assert dspy.Predict("question -> answer")(question="?").answer == "yes"


def test_async_agent() -> None:
    """Async: `await agent.acall(...)` with async tools."""
    dspy.configure(
        lm=DummyLM(
            [step("lookup", {"city": "Bern"}), FINISH, {"reasoning": "r", "answer": "Bern!"}],
        ),
    )
    result = asyncio.run(dspy.ReAct("question -> answer", tools=[lookup]).acall(question="Bern?"))
    assert (result.answer, result.trajectory["observation_0"]) == ("Bern!", "Bern!")


class Profile(BaseModel):
    name: str
    email: str


class Flight(BaseModel):
    id: str
    price: float


PROFILES = {"Adam": Profile(name="Adam", email="adam@example.com")}
FLIGHTS = [Flight(id="DA123", price=200.0)]
BOOKED: list[str] = []


def get_user_info(name: str) -> Profile | None:
    """Fetch the profile of a user."""
    return PROFILES.get(name)


def fetch_flights(origin: str, destination: str) -> list[Flight]:
    """Fetch flights between two airports."""
    return FLIGHTS


def book(flight: Flight, user: Profile) -> str:
    """Book a flight for a user."""
    BOOKED.append(f"{flight.id} for {user.name}")
    return BOOKED[-1]


class AirlineService(dspy.Signature):
    """You are an airline's agent. Use the tools to fulfil the request."""

    user_request: str = dspy.InputField()
    process_result: str = dspy.OutputField(
        desc="what was done, with the numbers that the user needs",
    )


def test_airline_agent() -> None:
    """Customer service agent: observations are the values of the tools, and arguments become their
    models.
    """
    dspy.configure(
        lm=DummyLM(
            [
                step("get_user_info", {"name": "Adam"}),
                step("fetch_flights", {"origin": "SFO", "destination": "JFK"}),
                step(
                    "book",
                    {
                        "flight": {"id": "DA123", "price": 200},
                        "user": {"name": "Adam", "email": "adam@example.com"},
                    },
                ),
                FINISH,
                {"reasoning": "Done.", "process_result": "Booked DA123."},
            ],
        ),
    )
    result = dspy.ReAct(AirlineService, tools=[get_user_info, fetch_flights, book])(
        user_request="Book me SFO to JFK, I am Adam",
    )
    assert result.process_result == "Booked DA123."
    assert result.trajectory["observation_0"] == PROFILES["Adam"]
    assert result.trajectory["observation_1"] == FLIGHTS
    assert BOOKED == ["DA123 for Adam"]


def test_agent_goes_on_after_an_error_of_a_tool() -> None:
    """ReAct: an error of a tool is an observation."""

    def broken(x: int) -> int:
        """Fail."""
        raise RuntimeError("out of order")

    dspy.configure(
        lm=DummyLM([step("broken", {"x": 1}), FINISH, {"reasoning": "r", "answer": "no"}]),
    )
    result = dspy.ReAct("question -> answer", tools=[broken])(question="?")
    assert result.trajectory["observation_0"].startswith("Execution error in broken")
    assert "out of order" in result.trajectory["observation_0"]


def test_max_iters_of_one_call() -> None:
    """ReAct: `max_iters=` at the call; the answer is extracted from what is known."""
    dspy.configure(
        lm=DummyLM([step("get_weather", {"city": "a"}), {"reasoning": "r", "answer": "sunny"}]),
    )
    result = dspy.ReAct("question -> answer", tools=[get_weather])(question="?", max_iters=1)
    assert result.answer == "sunny"
    assert "thought_1" not in result.trajectory


class MemoryTools:
    """Notes of a user."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def store_memory(self, content: str) -> str:
        """Store a note."""
        self.notes.append(content)
        return f"Stored: {content}"

    def search_memories(self, query: str) -> list[str]:
        """Search the notes."""
        return [note for note in self.notes if query in note]


class MemoryAgent(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryTools()
        self.react = dspy.ReAct(
            "user_input -> response",
            tools=[self.memory.store_memory, self.memory.search_memories],
            max_iters=6,
        )

    def forward(self, user_input: str):
        return self.react(user_input=user_input)


def test_memory_agent() -> None:
    """Memory agent: methods as tools, in a module of one's own."""
    answers = [
        step("store_memory", {"content": "likes tea"}),
        FINISH,
        {"reasoning": "r", "response": "Noted."},
    ]
    answers += [
        step("search_memories", {"query": "tea"}),
        FINISH,
        {"reasoning": "r", "response": "Tea."},
    ]
    dspy.configure(lm=DummyLM(answers))
    agent = MemoryAgent()
    assert agent(user_input="I like tea").response == "Noted."
    assert agent("What do I like?").trajectory["observation_0"] == ["likes tea"]


class Financial(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tools = [self.price, search_web]
        self.react = dspy.ReAct("query: str -> analysis: str, confidence: float", tools=self.tools)

    @staticmethod
    def price(ticker: str) -> dict:
        """The price of a share."""
        return {"ticker": ticker, "price": 10.5}

    def forward(self, query: str):
        return self.react(query=query)


def test_finance_agent() -> None:
    """Finance agent: typed outputs, a static method as a tool, named predictors of the agent
    inside.
    """
    dspy.configure(
        lm=DummyLM(
            [
                step("price", {"ticker": "F"}),
                FINISH,
                {"reasoning": "r", "analysis": "cheap", "confidence": 0.8},
            ],
        ),
    )
    agent = Financial()
    assert agent(query="F?").confidence == 0.8
    assert [name for name, _ in agent.named_parameters()] == [
        "react.react",
        "react.extract.predict",
    ]


class Session:
    """A client of an MCP server, in this process."""

    async def call_tool(self, name: str, arguments: dict | None = None):
        return {
            "content": [{"type": "text", "text": f"{name}: {arguments}"}],
            "isError": arguments == {"a": 2},
        }


def test_tool_of_an_mcp_server() -> None:
    """MCP: `dspy.Tool.from_mcp_tool(session, tool)`, called asynchronously."""
    listed = {
        "name": "add",
        "description": "Add.",
        "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}},
    }
    tool = dspy.Tool.from_mcp_tool(Session(), listed)
    assert asyncio.run(tool.acall(a=1)) == "add: {'a': 1}"
    dspy.configure(
        lm=DummyLM(
            [
                step("add", {"a": 1}),
                step("add", {"a": 2}),
                step("finish", {}),
                {"reasoning": "r", "answer": "x"},
            ],
        ),
    )
    seen = []

    class Log(dspy.BaseCallback):
        def on_tool_end(self, call_id, outputs, exception):
            seen.append(outputs)

    with dspy.context(callbacks=[Log()]):
        found = asyncio.run(dspy.ReAct("question -> answer", tools=[tool]).acall(question="?"))
    assert [
        found.trajectory["observation_0"],
        "add: {'a': 2}" in found.trajectory["observation_1"],
    ] == ["add: {'a': 1}", True]
    assert seen == ["add: {'a': 1}", None]
    assert json.dumps(found.trajectory)


def test_tool_of_langchain() -> None:
    """LangChain: `dspy.Tool.from_langchain(tool)`."""
    tools = pytest.importorskip("langchain_core.tools")

    @tools.tool
    def add(x: int, y: int) -> int:
        """Add two numbers."""
        return x + y

    assert asyncio.run(dspy.Tool.from_langchain(add).acall(x=1, y=2)) == 3


@pytest.mark.parametrize("native", [False, True])
def test_agent_that_truncates_its_trajectory_in_its_own_way(native: bool) -> None:
    """ReAct: an override takes DSPy's dict, changes it, and may put a summary in the place of what
    it removed.
    """

    class Agent(dspy.ReAct):
        def truncate_trajectory(self, trajectory):
            for key in [*trajectory][:4]:
                del trajectory[key]
            trajectory["observation_1"] = "cut"
            return {"summary": "It was sunny in Rome.", **trajectory}

    texts, asked_last = iter(["Rome", "Oslo", "Bern", None]), []

    def answer(request):
        city, asked_last[:] = next(texts), [*request.messages][1:]
        if city == "Bern":
            raise ContextOverflowError("too long")
        call = (
            {"name": "get_weather", "args": {"city": city}}
            if city
            else {"name": "finish", "args": {"answer": "ok"}}
        )
        if native:
            return call
        asked = {
            "next_thought": "hm",
            "next_tool_name": call["name"],
            "next_tool_args": call["args"],
        }
        return request.form.write(asked)

    dspy.configure(lm=ScriptedLM(by=answer, capabilities=Capabilities(native_tools=native)))
    result = Agent("question -> answer", tools=[get_weather])(question="?")
    assert result.answer == "ok"
    assert result.trajectory["observation_1"] == "The weather in Oslo is sunny."
    shown = "\n".join(message.text for message in asked_last)
    assert "It was sunny in Rome." in shown
    assert "cut" in shown
    assert "The weather in" not in shown


def test_a_dict_of_a_trajectory_is_truncated() -> None:
    """ReAct: `truncate_trajectory` removes the first four keys."""
    trajectory = {
        f"{key}_{i}": i
        for i in range(2)
        for key in ("thought", "tool_name", "tool_args", "observation")
    }
    shorter = dspy.ReAct("question -> answer", tools=[get_weather]).truncate_trajectory(trajectory)
    assert [*shorter] == ["thought_1", "tool_name_1", "tool_args_1", "observation_1"]


def test_agent_whose_trajectory_is_truncated() -> None:
    """ReAct: `truncate_trajectory` is overridden, and called when the context is full."""
    seen: list[int] = []

    class Agent(dspy.ReAct):
        def truncate_trajectory(self, trajectory):
            seen.append(len(trajectory))
            return super().truncate_trajectory(trajectory)

    script = [step("get_weather", {"city": "a"}), step("get_weather", {"city": "b"})]
    texts = iter(
        [
            *script,
            dspy.ContextWindowExceededError(model="m"),
            FINISH,
            {"reasoning": "r", "answer": "ok"},
        ],
    )
    dummy = DummyLM([*script, FINISH, {"reasoning": "r", "answer": "ok"}])

    def answer(request):
        found = next(texts)
        return found if isinstance(found, Exception) else dummy.complete(request)

    dspy.configure(lm=ScriptedLM(by=answer, capabilities=Capabilities(native_tools=False)))
    assert Agent("question -> answer", tools=[get_weather])(question="?").answer == "ok"
    assert seen


def test_calls_are_dumped_as_they_format() -> None:
    """`serialize_model` returns what `format` returns."""
    calls = dspy.ToolCalls.from_dict_list([{"name": "f", "args": {"a": 1}, "id": "call_1"}])
    assert calls.model_dump() == calls.format() == {"tool_calls": [{"name": "f", "args": {"a": 1}}]}


def test_a_tool_of_langchain_is_converted() -> None:
    """ "Implementation lives in dspy.utils.langchain_tool"."""
    tools = pytest.importorskip("langchain_core.tools")
    convert = dspy.utils.langchain_tool.convert_langchain_tool

    @tools.tool
    def triple(x: int) -> int:
        """Triple it."""
        return 3 * x

    assert convert(triple)(x=2) == 6


def test_a_call_without_args_is_one_without_arguments() -> None:
    """DSPy refuses it; docs/coming-from/dspy.md names the difference."""
    calls = dspy.ToolCalls.model_validate([{"name": "now"}])
    assert [(call.name, call.args) for call in calls.tool_calls] == [("now", {})]


def test_execute_raises_what_its_docstring_names() -> None:
    """ "Raises ValueError when the name isn't found and RuntimeError when the ... function throws"."""

    def fails(x: int) -> int:
        raise KeyError(x)

    def call(**args: object) -> ferrule.ToolCall:
        return ferrule.ToolCall(name="fails", args=args)

    with pytest.raises(RuntimeError):
        call(x=1).execute([fails])
    with pytest.raises(RuntimeError) as caught:
        call(y=1).execute([fails])
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(ValueError, match="x"):
        call(y=1).execute([ferrule.Tool(fails)])
    with pytest.raises(ValueError, match="fails"):
        call(x=1).execute([])
