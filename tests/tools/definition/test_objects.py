"""Programs and tools of other libraries in the place of a function."""

import pytest

from ferrule.errors import ToolDefinitionError
from ferrule.tools.tool import Tool


class Stock:
    """As the tools of smolagents, DSPy and CrewAI."""

    name, description = "stock", "Count the articles."

    def __call__(self, *args, strict=False, **kwargs):
        return 3


class Uncalled:
    """As pydantic-ai's and OpenAI's tools."""

    name = "stock"


class Named:
    """As LlamaIndex's tools."""

    metadata = Stock

    def __call__(self, **kwargs):
        return 3


class Agent(Stock):
    def as_tool(self):
        return Tool(lambda question: 3, "agent")


class TestObjects:
    """An object that takes any arguments became a tool without arguments, named like its class."""

    @pytest.mark.parametrize(
        "make",
        [Tool.of, Tool, lambda given: Tool("x", "y", given)],
        ids=["of", "tool", "named"],
    )
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (Stock(), "`stock` .*Stock`.* the function that it was made of"),
            (Named(), "`stock` .*Named`"),
            (Agent(), r"program\.as_tool\(\)"),
        ],
        ids=["stock", "named", "agent"],
    )
    def test_a_tool_of_another_library_and_a_program_are_refused(self, make, given, said):
        with pytest.raises(ToolDefinitionError, match=said):
            make(given)

    def test_an_object_that_cannot_be_called_is_refused_with_the_cure(self):
        with pytest.raises(
            ToolDefinitionError,
            match="pass the function behind it",
        ):
            Tool.of(Uncalled())
        with pytest.raises(ToolDefinitionError, match=r"found 5\.$"):
            Tool.of(5)

    def test_an_object_whose_arguments_are_known_is_a_tool(self):
        class Search(Stock):
            def __call__(self, query: str):
                return query

        assert Tool(Search()).args == {"query": {"type": "string"}}
        assert (
            Tool("stock", "", Stock(), {"properties": {"article": {"type": "string"}}})(
                article="lamp",
            )
            == 3
        )
