import asyncio
import subprocess
import sys
from typing import Annotated, Any

import pytest

from ferrule.errors import AsyncToolError, ToolArgumentsError, ToolDefinitionError
from ferrule.settings import context
from ferrule.tools.sources import is_langchain_tool
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import Toolbox

tools = pytest.importorskip("langchain_core.tools")


class TestLangChain:
    def test_a_decorated_function(self):
        @tools.tool
        def multiply(a: int, b: Annotated[int, "the second"] = 2) -> int:
            """Multiply two numbers."""
            return a * b

        made = Tool.from_langchain(multiply)
        assert (made.name, made.description) == ("multiply", "Multiply two numbers.")
        assert made.parameters == {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "b": {"type": "integer", "default": 2, "description": "the second"},
            },
            "required": ["a"],
            "additionalProperties": False,
        }
        assert made(a="3") == 6
        assert made(a=3, b=4) == 12
        assert asyncio.run(made.acall(a=3)) == 6
        with pytest.raises(ToolArgumentsError) as caught:
            made(b="x", c=1)
        assert dict(caught.value.problems).keys() == {"a", "b", "c"}

    def test_an_async_one(self):
        @tools.tool
        async def fetch(url: str) -> str:
            """Fetch."""
            return f"from {url}"

        made = Tool.from_langchain(fetch)
        assert asyncio.run(made.acall(url="x")) == "from x"
        with pytest.raises(AsyncToolError):
            made(url="x")
        with context(allow_tool_async_sync_conversion=True):
            assert made(url="x") == "from x"

    def test_a_structured_one_with_models_inside(self):
        from pydantic import BaseModel, Field

        class Point(BaseModel):
            x: int

        class Where(BaseModel):
            """What the model is not told twice."""

            points: list[Point] = Field(description="the points")
            mode: str = "fast"

        made = Tool.from_langchain(
            tools.StructuredTool.from_function(
                func=lambda points, mode: [each.x for each in points] + [mode],
                name="where",
                description="Where.",
                args_schema=Where,
            ),
        )
        assert "$ref" not in str(made.parameters)
        assert made.args["points"]["description"] == "the points"
        assert made(points=[{"x": "1"}]) == [1, "fast"]
        with pytest.raises(ToolArgumentsError, match=r"points\.0\.x"):
            made(points=[{"x": "no"}])

    def test_one_with_a_dict_for_its_schema(self):
        schema = {
            "type": "object",
            "title": "Odd",
            "properties": {"x": {"type": "integer"}},
            "required": ["x"],
        }
        made = Tool.from_langchain(
            tools.StructuredTool.from_function(
                func=lambda x: x,
                name="odd",
                description="Odd.",
                args_schema=schema,
            ),
        )
        assert made.args == {"x": {"type": "integer"}}
        assert made(x="3") == 3

    def test_a_subclass_with_both_ways(self):
        """Sync and async."""
        from pydantic import BaseModel

        class Args(BaseModel):
            n: int

        class Double(tools.BaseTool):
            name: str = "my double"
            description: str = "Double."
            args_schema: Any = Args

            def _run(self, n: int) -> int:
                return 2 * n

            async def _arun(self, n: int) -> int:
                return 2 * n

        made = Tool.from_langchain(Double())
        assert (made.name, made.wire_name) == ("my double", "my_x20_double")
        assert made(n=2) == 4
        assert asyncio.run(made.acall(n=2)) == 4

    def test_what_langchain_fills_itself_is_not_shown(self):
        @tools.tool
        def secret(x: int, key: Annotated[str, tools.InjectedToolArg] = "k") -> str:
            """Use the key."""
            return f"{x}{key}"

        made = Tool.from_langchain(secret)
        assert list(made.args) == ["x"]
        assert made(x=1) == "1k"

    def test_one_that_needs_what_only_langchain_fills_is_refused(self):
        """Every call failed, and the model read that a field is missing which it cannot pass."""

        @tools.tool
        def recall(
            x: int,
            user: Annotated[str, tools.InjectedToolArg],
            number: Annotated[str, tools.InjectedToolCallId],
        ) -> str:
            """Recall."""
            return f"{x}{user}{number}"

        with pytest.raises(
            ToolDefinitionError,
            match=r"`recall` .* `user`, `number`.*`ctx: Context`",
        ):
            Tool.from_langchain(recall)

    def test_its_errors_reach_the_caller(self):
        @tools.tool
        def fail() -> str:
            """Fail."""
            raise tools.ToolException("no")

        with pytest.raises(tools.ToolException, match="no"):
            Tool.from_langchain(fail)()

    def test_is_known_in_a_list_of_tools(self):
        @tools.tool
        def one(x: int) -> int:
            """One."""
            return x

        assert is_langchain_tool(one)
        assert Tool.of(one).name == "one"
        assert Toolbox([one]).names == ("one",)


def test_anything_else_is_refused():
    for thing in (3, len, None, Tool(len)):
        assert not is_langchain_tool(thing)
        with pytest.raises(ToolDefinitionError, match="LangChain"):
            Tool.from_langchain(thing)


def test_langchain_is_not_imported_by_the_room():
    """F2, architecture."""
    program = "import sys, ferrule.tools.toolbox; from ferrule.tools.tool import Tool; Tool(len)(obj=[1]); print([n for n in sys.modules if n.startswith(('langchain', 'jsonschema', 'docstring_parser', 'json_repair', 'asyncio.base'))])"
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (
        found.stdout.strip() in {"[]", "['asyncio.base_events']", "['asyncio.base_futures']"}
        or "langchain" not in found.stdout
    )
    assert "jsonschema" not in found.stdout
    assert "docstring_parser" not in found.stdout
