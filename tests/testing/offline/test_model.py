from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.testing.offline.model import OfflineLM
from ferrule.testing.offline.rules import arguments, best_tool, dates, sums
from ferrule.testing.offline.task import OfferedTool
from ferrule.values.conversation.exchange import Capabilities, Declarations, Request
from ferrule.values.conversation.message import Message, Messages


def tool(name: str, description: str = "", required: bool = True, **properties) -> OfferedTool:
    return OfferedTool(
        name,
        description,
        {
            "type": "object",
            "properties": properties,
            "required": list(properties) if required else [],
        },
    )


TEXT, INT, NUMBER, DATE = (
    {"type": "string"},
    {"type": "integer"},
    {"type": "number"},
    {"type": "string", "format": "date"},
)
CALCULATOR = tool("calculator", "Evaluate an arithmetic expression.", expression=TEXT)
WEATHER = tool(
    "get_weather",
    "Current weather in a city.",
    city=TEXT,
    unit={"enum": ["celsius", "fahrenheit"]},
)
ADD = tool("add", "Add two integers.", a=INT, b=INT)
DAYS = tool("days_between", "Number of days between two dates.", start=DATE, end=DATE)
SEARCH = tool("search", "Search the web.", query=TEXT)
MAIL = tool(
    "send_email",
    "Send a mail.",
    to={"type": "string", "format": "email"},
    body={"type": "string", "description": "text"},
)
AVERAGE = tool("average", "Arithmetic mean of numbers.", values={"type": "array", "items": NUMBER})
TOOLS = [CALCULATOR, WEATHER, ADD, DAYS, SEARCH, MAIL, AVERAGE]

QUESTIONS = [
    ("What is 17 * (23 + 4)?", "calculator", {"expression": "17 * (23 + 4)"}),
    ("what is 2 plus 2", "calculator", {"expression": "2 + 2"}),
    ("Tell me (12.5 / 5) ** 2 please", "calculator", {"expression": "(12.5 / 5) ** 2"}),
    (
        "What's the weather like in New York, in fahrenheit?",
        "get_weather",
        {"city": "New York", "unit": "fahrenheit"},
    ),
    ("Weather for São Paulo?", "get_weather", {"city": "São Paulo", "unit": "celsius"}),
    ("add 3 and -41 please", "add", {"a": 3, "b": -41}),
    ("Adding 1,000 to 7", "add", {"a": 1000, "b": 7}),
    (
        "How many days between 3 March 2026 and 2026-12-24?",
        "days_between",
        {"start": "2026-03-03", "end": "2026-12-24"},
    ),
    (
        "days between May 1st, 2025 and 2 June 2025",
        "days_between",
        {"start": "2025-05-01", "end": "2025-06-02"},
    ),
    ("search for 'best pizza' now", "search", {"query": "best pizza"}),
    ("Search recent news about Mars rovers", "search", {"query": "recent news Mars rovers"}),
    (
        'Send an email to ann@example.com saying "see you"',
        "send_email",
        {"to": "ann@example.com", "body": "see you"},
    ),
    ("What is the average of 1, 2.5 and 3?", "average", {"values": [1, 2.5, 3]}),
]


@pytest.mark.parametrize(("question", "name", "args"), QUESTIONS, ids=range(len(QUESTIONS)))
def test_the_tool_and_its_arguments_are_found_in_the_question(question, name, args):
    found = best_tool(question, TOOLS, set())
    assert found is not None
    assert found.name == name
    assert arguments(question, found) == args


@pytest.mark.parametrize(
    "question",
    ["What is the meaning of life?", "", "the of and", "1", "?!", "Wie geht es dir?"],
    ids=range(6),
)
def test_where_no_tool_fits_none_is_called(question):
    assert best_tool(question, TOOLS, set()) is None


def test_a_second_tool_is_called_only_where_it_is_named():
    both = "What is 12*12, and how is the weather in Oslo?"
    assert best_tool(both, TOOLS, {"calculator"}) == WEATHER
    assert best_tool("What is 12*12?", TOOLS, {"calculator"}) is None


def test_optional_arguments_are_left_out_unless_the_question_holds_them():
    optional = tool("search", "", required=False, query=TEXT, limit=INT, since=DATE)
    assert arguments("search pizza", optional) == {}
    assert arguments("search pizza since 2026-01-02, 5 results", optional) == {
        "limit": 5,
        "since": "2026-01-02",
    }


def test_what_the_question_does_not_hold_is_the_smallest_value_that_fits():
    odd = tool(
        "odd",
        "",
        a={"type": "integer", "minimum": 4},
        b={"type": "object"},
        c={"$ref": "#/$defs/x"},
    )
    odd.parameters["$defs"] = {"x": {"enum": ["only"]}}
    assert arguments("odd", odd) == {"a": 4, "b": {}, "c": "only"}


@pytest.mark.parametrize(
    ("question", "name"),
    [("What is 17 * 23?", "multiply"), ("17 plus 23?", "add"), ("17 - 4", "subtract")],
    ids=range(3),
)
def test_signs_have_names(question, name):
    tools = [tool(each, "", a=INT, b=INT) for each in ("add", "multiply", "subtract")]
    found = best_tool(question, tools, set())
    assert found is not None
    assert found.name == name
    assert best_tool(question, tools, {name}) is None


def test_dates_that_are_none_are_not_found():
    assert dates("on 30 February 2026, or 2026-13-01, or 1 May 2026") == ["2026-05-01"]


def test_dates_and_ranges_are_no_arithmetic():
    assert sums("between 2026-03-03 and 2026-12-24") == []
    assert sums("in 2026") == []


def declared(*tools: OfferedTool) -> Declarations:
    return Declarations(
        [
            {
                "type": "function",
                "function": {
                    "name": t.name,
                    "description": t.description,
                    "parameters": t.parameters,
                },
            }
            for t in tools
        ],
    )


def conversation(question: str, *tools: OfferedTool, results: tuple[str, ...] = ()) -> list:
    request = Request(
        Messages([Message("system", "x"), Message("user", question)]),
        declared(*tools),
    )
    turns = []
    for result in (*results, None):
        response = OfflineLM().complete(request)
        turns.append(response)
        if result is None or not response.tool_calls:
            break
        answer = Message("tool", result, tool_call_id=response.tool_calls[0].id)
        request = request.following(request.messages.then(response.message(), answer))
    return turns


FINISH = tool(
    "finish",
    "End.",
    answer=TEXT,
    number=NUMBER,
    sure={"type": "boolean"},
    items={"type": "array", "items": INT},
    more={"type": "object"},
)


def test_it_answers_from_the_observation():
    call, finish = conversation("What is 6 * 7?", *TOOLS, FINISH, results=("42",))
    assert (call.tool_calls[0].name, call.tool_calls[0].args) == (
        "calculator",
        {"expression": "6 * 7"},
    )
    assert finish.tool_calls[0].args == {
        "answer": "42",
        "number": 42,
        "sure": True,
        "items": [],
        "more": {},
    }


def test_it_answers_in_plain_text_where_nothing_else_is_wanted():
    *_, last = conversation(
        "Weather in Oslo?",
        WEATHER,
        results=('{"temperature": 3, "sky": "grey"}',),
    )
    assert last.text == "temperature: 3, sky: grey"


@pytest.mark.parametrize(
    ("result", "field", "value"),
    [
        ("[1, 2]", "items", [1, 2]),
        ('{"a": {"b": 1}}', "more", {"a": {"b": 1}}),
        ("-1.5e3 m", "number", -1500),
        ("no", "sure", False),
    ],
    ids=range(4),
)
def test_outputs_take_the_form_of_their_type(result, field, value):
    *_, finish = conversation("What is 6 * 7?", CALCULATOR, FINISH, results=(result,))
    assert finish.tool_calls[0].args[field] == value


def test_it_is_honest_where_no_tool_fits():
    lm = OfflineLM()
    assert lm.name == "offline"
    assert "no neural network" in (OfflineLM.__doc__ or "")
    assert "no neural network" in lm("What is love?")
    [finish] = conversation("What is love?", CALCULATOR, FINISH)
    assert "calculator" in finish.tool_calls[0].args["answer"]


def test_it_answers_in_every_way():
    request = Request(Messages([Message("user", "add 1 and 2")]), declared(ADD))

    async def collected():
        return [item async for item in OfflineLM().astream(request)][-1]

    whole = OfflineLM().complete(request)
    assert (
        whole
        == asyncio.run(OfflineLM().acomplete(request))
        == list(OfflineLM().stream(request))[-1]
        == asyncio.run(collected())
    )
    assert not OfflineLM(capabilities=Capabilities(native_tools=False)).capabilities.native_tools


SCHEMA = st.sampled_from(
    [
        TEXT,
        INT,
        NUMBER,
        DATE,
        {"type": "array"},
        {"enum": [1, None]},
        {"anyOf": [TEXT, {"type": "null"}]},
        {"type": ["string", "null"]},
        {"pattern": "("},
        True,
        {},
        {"$ref": "#"},
    ],
)
NAME = st.sampled_from(["expression", "city", "date", "x", "query", "startDate", "ü"])


@given(
    st.text() | st.sampled_from([each[0] for each in QUESTIONS]),
    st.dictionaries(NAME, SCHEMA),
    st.booleans(),
)
def test_any_question_and_any_schema_give_arguments(question, properties, required):
    """Whatever is asked, the same answer and no error."""
    odd = tool("get_weather", question, required, **properties)
    assert arguments(question, odd) == arguments(question, odd)
    best_tool(question, [odd], set())


def test_a_long_question_does_not_take_long():
    assert sums("1" * 200_000) == []
    assert len(sums("(" * 50_000 + "1+1")) <= 1
