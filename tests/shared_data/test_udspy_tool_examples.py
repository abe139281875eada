"""The code blocks of udspy's Tool reference, executed as printed: `udspy` reads `ferrule`, and
`eval` is a calculator.

Where a block is a fragment (a decorator without its function, a function without its body, the bare
signature of a method), what it lacks is put around it, and nothing in it is changed.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import operator
import textwrap
from pathlib import Path
from typing import Any, Optional

import pytest
from agent_script import native_step
from shared_files import shared_file

import ferrule
from ferrule import ConfirmationRequired, Tool, context
from ferrule.testing import ScriptedLM

PAGE = shared_file("seeds/001_4233c0cd0996408d.txt")

_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def calculator(text: str, *_: Any) -> float:
    def value(node: Any) -> float:
        return (
            node.value
            if isinstance(node, ast.Constant)
            else _OPERATORS[type(node.op)](value(node.left), value(node.right))
        )

    return value(ast.parse(text, mode="eval").body)


def executed(*ranges: tuple[int, int], lm: Any = None, **names: Any) -> dict[str, Any]:
    """Execute lines of the page (first, last), in one namespace, top-level `await` included."""
    return executed_text("\n".join(printed(*each) for each in ranges), lm=lm, **names)


def printed(first: int, last: int) -> str:
    """Lines of the page, first to last."""
    return textwrap.dedent(
        "\n".join(PAGE.read_text(encoding="utf-8").splitlines()[first - 1 : last]),
    )


def executed_text(code: str, *, lm: Any = None, **names: Any) -> dict[str, Any]:
    code = code.replace("from udspy.adapter import", "from udspy import").replace(
        "from udspy import",
        "from ferrule import",
    )
    namespace: dict[str, Any] = {"eval": calculator, "__name__": "page", **names}
    with context(lm=lm):
        found = eval(
            compile(code, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True),
            namespace,
        )
        if inspect.iscoroutine(found):
            asyncio.run(found)
    return namespace


def test_the_decorator_makes_a_tool_that_still_calculates() -> None:
    """Lines 38-54."""
    made = executed((38, 54))["calculator"]
    assert isinstance(made, Tool)
    assert made(operation="add", a=1, b=2) == 3
    assert made("divide", 1, 0) == float("inf")


def test_a_tool_that_needs_confirmation_asks_before_it_runs(tmp_path: Path) -> None:
    """Lines 58-70 and 374-389."""
    victim = tmp_path / "victim"
    victim.write_text("still here")
    made = executed((58, 70), (374, 389))
    with pytest.raises(ConfirmationRequired) as raised:
        made["delete_file"](path=str(victim))
    assert (
        raised.value.question
        == f'Confirm execution of delete_file with args: {{"path":"{victim}"}}? (yes/no)'
    )
    with pytest.raises(ConfirmationRequired, match="Confirm execution of delete_all_files"):
        asyncio.run(made["delete_all_files"].acall(directory=str(tmp_path)))
    assert victim.exists()


@pytest.mark.parametrize(
    ("said", "left", "observed"),
    [
        ("yes", [], "Deleted all files in"),
        ("no", ["a", "b"], "decided against"),
        ("other", ["a", "b"], "Deleted all files in"),
    ],
    ids=["yes", "no", "modified"],
)
def test_a_confirmation_goes_as_its_six_steps_say(
    tmp_path: Path,
    said: str,
    left: list[str],
    observed: str,
) -> None:
    """Lines 374-401. The sixth only by an explicit grant: see U80."""
    (tmp_path / "here").mkdir()
    (tmp_path / "other").mkdir()
    for name in ("a", "b"):
        (tmp_path / "here" / name).write_text("")
    made = executed((374, 389))
    asks = native_step("clean up", "delete_all_files", {"directory": str(tmp_path / "here")})
    script = [asks, native_step("again", "delete_all_files", {"directory": str(tmp_path / "here")})]
    response = json.dumps({"directory": str(tmp_path / "other")}) if said == "other" else said
    with (
        ScriptedLM([*script, native_step("done", "finish", {"answer": "ok"})]) as lm,
        context(lm=lm),
    ):
        agent = ferrule.ReAct("task -> answer", [made["delete_all_files"]])
        with pytest.raises(
            ConfirmationRequired,
            match=r'Confirm execution of delete_all_files with args: \{"directory":.*\}\? \(yes/no\)',
        ) as raised:
            agent(task="clean")
        with pytest.raises(ConfirmationRequired) as again:  # the same call asks again
            agent.resume(response, raised.value)
        assert agent.resume("no", again.value).answer == "ok"
    assert sorted(each.name for each in (tmp_path / "here").iterdir()) == left
    assert observed in again.value.run.trajectory["observation_0"]


def test_the_constructor_and_the_decorator_make_the_same_tool() -> None:
    """Lines 103-116."""
    made = executed((103, 109))["tool"]
    assert (made.name, made.description) == ("adder", "Adds numbers")
    assert made.func(1, 2) == 3
    again = executed((113, 116), tool=ferrule.tool)["my_function"]
    assert (again.name, again.parameters) == (made.name, made.parameters)


def test_calling_and_awaiting() -> None:
    """Lines 196-200, 224-232, 236-241."""
    assert executed((196, 200), tool=ferrule.tool)["result"] == 5
    assert executed((224, 232), tool=ferrule.tool)["result"] == "Data from https://example.com"
    assert executed((236, 241), tool=ferrule.tool)["result"] == 10


def test_parameters_are_the_printed_schema_and_the_adapter_uses_them() -> None:
    """Lines 253-293."""
    from pydantic import Field

    made = executed((253, 285), tool=ferrule.tool, Field=Field)
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    printed = ast.literal_eval("\n".join(line.removeprefix("# ") for line in lines[262:280]))
    assert made["params"] == printed
    assert made["openai_schema"] == {
        "type": "function",
        "function": {"name": "calculator", "description": "Do math", "parameters": printed},
    }
    assert made["calculator"].to_openai_schema() == made["openai_schema"]


def test_format_is_the_printed_sentence() -> None:
    """Lines 305-314."""
    from pydantic import Field

    made = executed((305, 313), tool=ferrule.tool, Field=Field)
    head = "calculator, whose description is <desc>Perform arithmetic operations</desc>. It takes arguments {"
    assert made["description"].startswith(head)
    assert made["description"].endswith("}.")


def test_optional_parameters_and_defaults() -> None:
    """Lines 331-342, 348-361."""
    made = executed((331, 342), (348, 361))
    assert made["search"](query="x") == "Searching for: x"
    assert made["search"].parameters["required"] == ["query"]
    assert made["example_tool"](query="x", limit="3") == "Query: x, Limit: 3"
    assert made["example_tool"].parameters["properties"]["limit"]["default"] == 10


def test_react_answers_with_its_tools() -> None:
    """Lines 405-427."""
    script = [
        native_step("population", "search", {"query": "Tokyo population"}),
        native_step("double", "calculate", {"expression": "14000000 * 2"}),
        native_step("done", "finish", {"answer": "28 million"}),
    ]
    with ScriptedLM(script) as lm:
        result = executed((405, 427), lm=lm)["result"]
    assert result.answer == "28 million"
    assert result.trajectory["observation_1"] == "28000000"


def test_predict_runs_its_tools() -> None:
    """Lines 435-448."""
    with ScriptedLM([native_step("", "get_weather", {"city": "San Francisco"}), "Sunny"]) as lm:
        result = executed((435, 448), lm=lm)["result"]
    assert result.weather == "Sunny"
    assert result.trajectory["observation_0"] == "Weather in San Francisco: Sunny, 72°F"


def test_dspy_style_access(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines 454-460."""
    from pydantic import Field

    executed((454, 460), tool=ferrule.tool, Field=Field)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "Search tool"
    assert ast.literal_eval(shown[1]) == {
        "query": {"type": "string", "description": "Search query"},
    }


def test_errors_as_strings_are_ordinary_results() -> None:
    """Lines 487-491, 497-502."""
    from pydantic import Field

    made = executed((487, 491), (497, 502), tool=ferrule.tool, Field=Field)
    assert made["divide"](a=1, b=0) == "Error: Cannot divide by zero"
    assert made["search_users"].name == "search_users"
    assert list(made["user_management"].args) == [
        "action",
        "query",
        "data",
    ]  # too many responsibilities, and a tool all the same


def test_the_fragments_of_good_practice_make_tools() -> None:
    """Lines 466-469, 474-477, 482: two decorators, and a head that both may stand on."""
    from pydantic import Field

    head = f"{printed(474, 477).rstrip()} -> str:\n    return query\n"
    assert printed(482, 482).startswith("@tool(")
    for decorator, name, asks in (
        (printed(466, 469), "search_papers", False),
        (printed(482, 482), "delete", True),
    ):
        made = executed_text(
            f"{decorator.rstrip()}\n{head}",
            tool=ferrule.tool,
            Field=Field,
            Optional=Optional,
        )["search"]
        assert (made.name, made.require_confirmation, made.parameters["required"]) == (
            name,
            asks,
            ["query"],
        )
        assert made.args["year"]["description"] == "Publication year"


def test_the_constructor_takes_what_is_printed() -> None:
    """Lines 81-90, each parameter in its place and with its default, and 173-177 as `args`."""
    shown = executed_text(f"from typing import Callable\n{printed(81, 90)}: ...")["__init__"]
    made = inspect.signature(shown).bind(None, calculator)
    made.apply_defaults()
    assert made.arguments.pop("self") is None

    def work(operation: str, a: float, b: float) -> None:
        """Work."""

    plain = Tool(**{**made.arguments, "func": work})
    assert (plain.name, plain.description, plain.require_confirmation) == ("work", "Work.", False)
    assert (
        Tool(work, "n", "d") == Tool(work, name="n", description="d") == Tool(work, "n", desc="d")
    )
    words = ast.literal_eval(printed(173, 177))
    assert {
        name: each["description"]
        for name, each in Tool(work, args=words).args.items()
        if name in words
    } == words


def test_the_decorator_takes_what_is_printed() -> None:
    """Lines 11-16 and 512-517, which are the same parameters."""
    assert printed(12, 15) == printed(513, 516)
    shown = executed((508, 508), (512, 517), Tool=Tool)["tool"]
    made = inspect.signature(shown).bind()
    made.apply_defaults()

    def work() -> None:
        """Work."""

    plain = ferrule.tool(**made.arguments)(work)
    assert (plain.name, plain.description, plain.require_confirmation) == ("work", "Work.", False)
    told = ferrule.tool("n", "d", require_confirmation=True)(work)
    assert (told.name, told.description, told.require_confirmation) == ("n", "d", True)


def test_the_printed_classes_attributes_and_methods_are_there() -> None:
    """Lines 74-75, 122, 128, 134, 140, 146, 161, 167, 181, 202, 508-531."""
    shown = executed((508, 531))["Tool"]
    assert executed((74, 75))["Tool"].__doc__ == "Wrapper for a tool function with metadata."
    made = executed((103, 109))["tool"]
    for name in shown.__annotations__:
        assert hasattr(made, name), name
    assert set(shown.__annotations__) == {
        "func",
        "name",
        "description",
        "require_confirmation",
        "parameters",
        "desc",
        "args",
    }
    assert made.desc == made.description
    # `acall` takes its settings when it is called, so it is a function that returns a coroutine.
    assert inspect.iscoroutinefunction(shown.acall)
    coroutine = made.acall()
    assert inspect.iscoroutine(coroutine)
    coroutine.close()
    for name in ("__call__", "to_openai_schema"):
        assert inspect.iscoroutinefunction(getattr(Tool, name)) is inspect.iscoroutinefunction(
            getattr(shown, name),
        ), name


def test_a_tool_loads_the_calculator() -> None:
    """Lines 543-584."""
    script = [
        native_step("no calculator yet", "load_calculator"),
        native_step("calculate", "calculator", {"expression": "157 * 834"}),
        native_step("done", "finish", {"answer": "130938"}),
    ]
    with ScriptedLM(script) as lm:
        made = executed((543, 584), lm=lm)
    assert made["result"].answer == "130938"
    assert [made["result"].trajectory[f"observation_{i}"] for i in range(2)] == [
        "Calculator loaded successfully",
        "130938",
    ]
    assert [each["function"]["name"] for each in lm.requests[0].tools].count("calculator") == 0
    assert [each["function"]["name"] for each in lm.requests[1].tools].count("calculator") == 1
    assert set(made["agent"].tools) == {"load_calculator", "finish"}


@pytest.mark.parametrize(
    ("category", "told", "loaded"),
    [
        ("math", "Loaded 2 math tools", {"calculator", "statistics"}),
        ("web", "Loaded 2 web tools", {"search", "scrape"}),
        ("art", "Unknown category: art", set[str]()),
    ],
)
def test_tools_are_loaded_by_category(category: str, told: str, loaded: set[str]) -> None:
    """Lines 596-612."""
    from pydantic import Field

    made = {
        name: Tool(lambda text: text, name, name)
        for name in ("calculator", "statistics", "search", "scrape")
    }
    load = executed(
        (596, 612),
        tool=ferrule.tool,
        module_callback=ferrule.module_callback,
        Field=Field,
        **made,
    )["load_tools"]
    with ScriptedLM(
        [
            native_step("", "load_tools", {"category": category}),
            native_step("", "finish", {"answer": "x"}),
        ],
    ) as lm:
        result = ferrule.ReAct("question -> answer", [load])(question="?", lm=lm)
    assert result.trajectory["observation_0"] == told
    names = [[each["function"]["name"] for each in request.tools] for request in lm.requests]
    assert sorted(names[1]) == sorted([*names[0], *loaded])
