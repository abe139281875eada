"""The table of docs/coming-from/differences.md: statements of five documents that do not hold here.

Each row is a function that tries the statement: it fails if ferrule does what the document says, or
does not what the row says.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import ValidationError

import ferrule
from ferrule import (
    Capabilities,
    ChatAdapter,
    ConfirmationRequired,
    Limits,
    Predict,
    ReAct,
    Response,
    Tool,
    ToolCall,
    ToolCalls,
    Trajectory,
    confirm_first,
    context,
    respond_to_confirmation,
    tool,
)
from ferrule.compat import dspy, udspy
from ferrule.errors import (
    ContextOverflowError,
    LimitReachedError,
    MCPConnectionError,
    ToolLoadError,
    UnknownToolError,
)
from ferrule.testing import ScriptedLM


class Document(NamedTuple):
    """A document of another library."""

    title: str
    project: str
    file: str
    """Its file in `../shared/seeds`; empty for a library itself."""


DSPY = Document("Tools, ReAct, and MCP", "DSPy", "000_01a079996dd01e17.txt")
UDSPY = Document("Tool API Reference", "udspy", "001_4233c0cd0996408d.txt")
CALLS = Document("ToolCalls", "DSPy", "002_56d3034a3c9c455f.txt")
ELIXIR = Document(
    "Native tool calling at the signature adapter boundary", "dspy.ex", "003_151fb52009999998.txt"
)
PBA = Document("Tool & ToolCall API Reference", "Proxy Base Agent", "004_8360e89030b43468.txt")
DOCUMENTS = (DSPY, UDSPY, CALLS, ELIXIR, PBA)


@dataclass(frozen=True)
class Difference:
    """A statement that differs."""

    document: Document
    statement: str
    """In the words of the document. `...` stands for words that are left out."""
    here: str
    reason: str
    shown_by: Callable[[], None]


DIFFERENCES: list[Difference] = []


def differs(
    document: Document, statement: str, *, here: str, because: str
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Add a row, which the function shows."""

    def add(shown_by: Callable[[], None]) -> Callable[[], None]:
        DIFFERENCES.append(Difference(document, statement, here, because, shown_by))
        return shown_by

    return add


_MARKDOWN = str.maketrans({"<": "&lt;", "|": "\\|", "_": "\\_", "*": "\\*", "`": "\\`"})


def section(document: Document) -> str:
    """The part of the page about one document."""
    rows = [
        f"| {row.statement.translate(_MARKDOWN)} | {row.here} | {row.reason} |"
        for row in DIFFERENCES
        if row.document is document
    ]
    heads = ("the document says", "in ferrule") if document.file else ("there", "in the facade")
    head = [f"| {heads[0]} | {heads[1]} | why |", "|---|---|---|"]
    title = f"## {document.project}: {document.title}"
    return "\n".join([title, "", *head, *rows, ""])


# -- tools and models of the rows


def look(place: str) -> str:
    """Look at a place."""
    return f"{place}: a knife"


def add(a: int, b: int = 0) -> int:
    """Add."""
    return a + b


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


def ask(agent: Any, *answers: Any) -> tuple[Any, ScriptedLM]:
    """What an agent makes of the answers of a model, and the model."""
    lm = ScriptedLM(list(answers))
    return agent(question="Who?", lm=lm), lm


def agent(*tools: Any, **options: Any) -> ReAct:
    return ReAct("question -> answer", tools or [look], native=True, **options)


# -- DSPy: Tools, ReAct, and MCP


@differs(
    DSPY,
    "Setting settings.allow_tool_async_sync_conversion=True",
    here="`configure(allow_tool_async_sync_conversion=True)`, or `context(...)` for a block. The "
    "assignment raises `AttributeError`; in the DSPy facade, it works",
    because="settings change in two ways, each of which says how long it holds",
)
def settings_are_not_assigned() -> None:
    with pytest.raises(AttributeError, match="configure"):
        ferrule.settings.allow_tool_async_sync_conversion = True  # type: ignore[attr-defined]
    with dspy.context():
        before = dspy.settings.allow_tool_async_sync_conversion
        dspy.settings.allow_tool_async_sync_conversion = True
        assert dspy.settings.allow_tool_async_sync_conversion is True
        dspy.settings.allow_tool_async_sync_conversion = before


@differs(
    DSPY,
    "makes __call__ run the coroutine through asyncio.run or the active loop's run_until_complete",
    here="the coroutine runs on ferrule's background loop, in another thread",
    because="`run_until_complete` fails in a loop that runs; here, the call works there, too",
)
def async_tools_run_on_the_background_loop() -> None:
    async def whereabouts() -> str:
        """Say where this runs."""
        return threading.current_thread().name

    async def main() -> str:
        with context(allow_tool_async_sync_conversion=True):
            return Tool(whereabouts)()

    assert asyncio.run(main()) != threading.current_thread().name


@differs(
    DSPY,
    "On each iteration the LM produces three output fields",
    here="only with calls in text (`native=False`). With native calls, the model calls the tools "
    "in the provider's form, and its text or reasoning is the thought",
    because="models are trained on their provider's form",
)
def native_steps_have_no_fields() -> None:
    prediction, lm = ask(agent(), {"text": "I look.", "tool_calls": [call("look", place="b")]}, "x")
    assert "next_tool_name" not in repr(lm.requests[0])
    assert prediction.trajectory["thought_0"] == "I look."
    assert prediction.trajectory["tool_name_0"] == "look"


@differs(
    DSPY,
    "appends four trajectory entries (thought_i, tool_name_i, tool_args_i, observation_i)",
    here="the same; in a step with several calls, the last three are lists",
    because="models call several tools at once",
)
def entries_of_several_calls_are_lists() -> None:
    prediction, _ = ask(agent(), [call("look", place="a"), call("look", place="b")], "x")
    assert prediction.trajectory["tool_name_0"] == ["look", "look"]
    assert prediction.trajectory["observation_0"] == ["a: a knife", "b: a knife"]


@differs(
    DSPY,
    "ReAct registers an extra finish tool — a no-arg callable",
    here="with native calls, the arguments of `finish` are the outputs. With calls in text, it has "
    "none",
    because="it saves the request that extracts the outputs, and the model can correct them",
)
def native_finish_takes_the_outputs() -> None:
    typed = ReAct("question -> answer: int", [look], native=True)
    prediction, lm = ask(typed, call("finish", answer=3))
    [finish] = [each for each in lm.requests[0].tools if each["function"]["name"] == "finish"]
    assert list(finish["function"]["parameters"]["properties"]) == ["answer"]
    assert prediction.answer == 3
    assert typed.tools["finish"].args == {}


@differs(
    DSPY,
    "the loop exits when the LM selects it",
    here="`finish` beside other calls counts only if each of them succeeded as it was written",
    because="the model wrote the answer before it knew what became of the calls: "
    "[When `finish` counts](../how-to/agents/limits.md#when-finish-counts)",
)
def finish_beside_a_failed_call_does_not_count() -> None:
    prediction, lm = ask(agent(), [call("lok"), call("finish", answer="too early")], "later")
    assert prediction.answer == "later"
    assert len(lm.requests) == 2


@differs(
    DSPY,
    "the loop exits when the LM picks finish or max_iters is reached",
    here="with native calls and one `str` output, text without calls is the answer, too. A limit "
    "raises `LimitReachedError`, and faults in a row end the loop",
    because="most chat models end with text; an agent without a budget is a risk",
)
def text_and_limits_end_the_loop() -> None:
    prediction, lm = ask(agent(), "The butler.")
    assert (prediction.answer, len(lm.requests)) == ("The butler.", 1)
    with pytest.raises(LimitReachedError):
        ask(agent(limits=Limits(steps=1)), call("look", place="a"), "x")


@differs(
    DSPY,
    "The trajectory is a dict",
    here="a `Trajectory`: a mapping with these keys, which cannot be changed, and has `steps`. In "
    "the DSPy facade, it is a dict",
    because="a step has more than the keys hold: results, errors, repairs, times",
)
def a_trajectory_is_a_mapping() -> None:
    prediction, _ = ask(agent(), call("look", place="a"), "x")
    assert isinstance(prediction.trajectory, Trajectory)
    assert not isinstance(prediction.trajectory, dict)
    assert prediction.trajectory.steps[0].results[0].value == "a: a knife"
    facade = dspy.ReAct("question -> answer", [look], native=True)
    prediction, _ = ask(facade, call("look", place="a"), "x")
    assert type(prediction.trajectory) is dict


@differs(
    DSPY,
    'observation_i = "Execution error in <tool>: <traceback>"',
    here="the same form. The traceback has the last frames of your own code, without source lines "
    "and without the folders of local paths",
    because="a model needs no more, and a provider should not see more",
)
def tracebacks_are_short() -> None:
    def broken() -> str:
        """Fail."""
        raise KeyError("no such seat")

    prediction, _ = ask(agent(broken), call("broken"), "x")
    observation = prediction.trajectory["observation_0"]
    assert observation.startswith("Execution error in broken: KeyError: 'no such seat'")
    assert 'File "differences.py", line' in observation
    assert str(Path(__file__).parent) not in observation
    assert "raise KeyError(" not in observation


@differs(
    DSPY,
    "After the loop ends, ReAct hands the trajectory to a dspy.ChainOfThought",
    here="with native calls, only if the model did not give the outputs: at `max_iters`, or with "
    '`on_limit="extract"`. With calls in text, always',
    because="the outputs are in `finish` or in the text already",
)
def native_agents_seldom_extract() -> None:
    _, lm = ask(agent(), call("look", place="a"), call("finish", answer="x"))
    assert len(lm.requests) == 2
    guess = {"outputs": {"reasoning": "r", "answer": "x"}}
    prediction, lm = ask(agent(max_iters=1), call("look", place="a"), guess)
    assert (prediction.reason, len(lm.requests)) == ("max_iters", 2)


@differs(
    DSPY,
    "Each iteration formats the trajectory through the current adapter and passes it as the "
    "trajectory input to the predict",
    here="each step is a message of its own; `agent.react` has no input `trajectory`. The "
    "extractor reads the trajectory in the adapter's form",
    because="earlier messages never change, so a provider serves them from its prompt cache",
)
def steps_are_messages() -> None:
    looking = agent()
    assert [*looking.react.signature.plan.inputs] == ["question"]
    assert [*looking.extract.signature.plan.inputs] == ["question", "trajectory"]
    _, lm = ask(looking, call("look", place="a"), call("look", place="b"), "x")
    roles = [message.role for message in lm.requests[-1].messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]


@differs(
    DSPY,
    "Removes the first four keys of the trajectory dict",
    here="`truncate_trajectory` takes and returns a `Trajectory`, without its oldest step. In the "
    "DSPy facade, it takes and returns the dict",
    because="a step with several calls is one step",
)
def a_truncated_trajectory_lacks_a_step() -> None:
    prediction, _ = ask(agent(), call("look", place="a"), call("look", place="b"), "x")
    shorter = agent().truncate_trajectory(prediction.trajectory)
    assert [step.calls[0].args["place"] for step in shorter.steps] == ["b"]
    keys = {f"{key}_{i}": i for i in range(2) for key in ("thought", "a", "b", "c")}
    facade = dspy.ReAct("question -> answer", [look])
    assert [*facade.truncate_trajectory(keys)] == ["thought_1", "a_1", "b_1", "c_1"]


@differs(
    DSPY,
    "Called from _call_with_potential_trajectory_truncation",
    here="there is no such method, nor `_parse_function`, `_validate_and_parse_args`, "
    "`_resolve_json_schema_reference` and `_TYPE_MAPPING`",
    because="they are DSPy's private names; `_format_trajectory` exists, because programs "
    "override it",
)
def private_names_do_not_exist() -> None:
    looking, looks = agent(), Tool(look)
    assert callable(looking._format_trajectory)
    assert not hasattr(looking, "_call_with_potential_trajectory_truncation")
    for name in ("_parse_function", "_validate_and_parse_args", "_resolve_json_schema_reference"):
        assert not hasattr(looks, name)
    assert not hasattr(dspy.utils.mcp, "_TYPE_MAPPING")


@differs(
    DSPY,
    "catches a ContextWindowExceededError",
    here="the error is `ferrule.errors.ContextOverflowError`. The DSPy facade has DSPy's name",
    because="one error has one name",
)
def the_error_of_a_full_context_has_one_name() -> None:
    shown: list[int] = []

    def answer(request: Any) -> Any:
        shown.append(len(request.messages))
        if len(shown) <= 5:
            return call("look", place="a")
        raise ContextOverflowError("too long")

    for looking, error in (
        (agent(), ContextOverflowError),
        (dspy.ReAct("question -> answer", [look], native=True), dspy.ContextWindowExceededError),
    ):
        shown.clear()
        with pytest.raises(error):
            looking(question="?", lm=ScriptedLM(by=answer))
        assert shown[5:] == [12, 10, 8, 6]  # truncated three times, as the document says
    assert not hasattr(ferrule.errors, "ContextWindowExceededError")


@differs(
    DSPY,
    "JSON-schema-validates each kwarg",
    here="the arguments are validated together, with one error that names every problem; a value "
    'that converts without loss, such as `"3"` for a number, is accepted',
    because="a model repairs all problems in one turn",
)
def arguments_are_checked_together() -> None:
    assert Tool(add)(a="3") == 3
    with pytest.raises(ValueError, match="a: ") as caught:
        Tool(add)(a="x", b="y")
    assert "b: " in str(caught.value)


@differs(
    DSPY,
    "acall awaits a coroutine return or returns the synchronous value directly",
    here="a sync function runs in a worker thread",
    because="it would block the event loop; the udspy document below says the same",
)
def sync_functions_run_in_a_thread() -> None:
    def thread() -> int:
        """Say in which thread this runs."""
        return threading.get_ident()

    assert asyncio.run(Tool(thread).acall()) != threading.get_ident()


@differs(
    DSPY,
    "Every declared arg is marked required",
    here="arguments with a default are not required. In the DSPy facade, they are, until "
    '`configure(version="3.4")`',
    because="a model that must fill in a default invents a value; DSPy 3.4 does the same",
)
def defaults_are_optional() -> None:
    def required(tool: Any) -> Any:
        return tool.format_as_litellm_function_call()["function"]["parameters"]["required"]

    assert (required(Tool(add)), required(dspy.Tool(add))) == (["a"], ["a", "b"])
    with dspy.context(version="3.4"):
        assert required(dspy.Tool(add)) == ["a"]


@differs(
    DSPY,
    "Implementation lives in dspy.utils.langchain_tool",
    here="the submodules are in the DSPy facade. In `ferrule`: `Tool.from_langchain`, "
    "`convert_mcp_tool`, `convert_input_schema_to_tool_args`",
    because="one public name has one home",
)
def submodules_are_in_the_facade() -> None:
    assert not hasattr(ferrule, "utils")
    assert callable(dspy.utils.langchain_tool.convert_langchain_tool)
    assert callable(dspy.utils.mcp.convert_mcp_tool)
    assert callable(ferrule.convert_mcp_tool)
    assert callable(ferrule.convert_input_schema_to_tool_args)
    assert callable(Tool.from_langchain)


@differs(
    DSPY,
    "A pydantic.BaseModel whose single field is a list of ToolCall items",
    here="a second field, `tool_call_results`, is None unless you set it",
    because="a turn of a history and a demo show the calls with their results",
)
def calls_may_have_results() -> None:
    assert [*ToolCalls.model_fields] == ["tool_calls", "tool_call_results"]
    assert ToolCalls(tool_calls=[]).tool_call_results is None


def unimported(x: int) -> int:
    return x


@differs(
    DSPY,
    "the caller's locals and globals (resolved via inspect.currentframe().f_back)",
    here="only functions and tools that the caller's module defines, never imported ones, and "
    "with a warning",
    because="a model could call anything in reach, such as `os.remove`",
)
def imported_functions_are_not_found() -> None:
    assert inspect.isfunction(confirm_first)  # imported
    with (
        pytest.warns(UserWarning, match="Say what may be called"),
        pytest.raises(UnknownToolError),
    ):
        ToolCall(name="confirm_first", args={"func": look}).execute()
    with pytest.warns(UserWarning, match="Say what may be called"):
        assert ToolCall(name="unimported", args={"x": 1}).execute() == 1


@differs(
    DSPY,
    "ChatAdapter's use_native_function_calling=True constructor flag opts in",
    here="the same for tools that are inputs of a signature, if you set an adapter. Without one, "
    "and in programs with `tools=`, calls are native if the model supports them; `native=False` "
    "asks for calls in text",
    because="models are trained on their provider's form",
)
def native_calls_are_the_default() -> None:
    native = Capabilities(native_tools=True)

    class Choose(ferrule.Signature):
        """Choose a tool."""

        tools: list[Tool] = ferrule.InputField()
        calls: ToolCalls = ferrule.OutputField()

    def is_native(answer: Any) -> bool:
        lm = ScriptedLM([answer], capabilities=native)
        Predict(Choose)(tools=[look], lm=lm)
        return bool(lm.requests[0].tools)

    assert is_native(call("look", place="a"))
    with context(adapter=ChatAdapter(use_native_function_calling=True)):
        assert is_native(call("look", place="a"))
    with context(adapter=ChatAdapter()):
        assert not is_native({"outputs": {"calls": [call("look", place="a")]}})
        lm = ScriptedLM(["x"], capabilities=native)
        ReAct("question -> answer", [look])(question="?", lm=lm)
        assert lm.requests[0].tools


class Connection:
    """What a connection of `ferrule.mcp` has: its calls may be awaited on any loop."""

    name = "book"

    def call(self, name: str, arguments: Any) -> Any:
        raise NotImplementedError

    async def acall(self, name: str, arguments: Any) -> Any:
        raise NotImplementedError

    async def call_tool(self, name: str, arguments: Any = None) -> Any:
        picture = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
        return {"content": [{"type": "text", "text": name}, picture]}


ENTRY = {"name": "page", "inputSchema": {"type": "object"}}


@differs(
    DSPY,
    "MCP tools are always async",
    here="those of `ferrule.mcp(...)` work in sync code, too. Those of a bare session are async",
    because="a connection has a loop of its own, so nothing is blocked",
)
def tools_of_a_connection_are_also_sync() -> None:
    made = Tool.from_mcp_tool(Connection(), ENTRY)
    assert made()[0] == "page"
    assert asyncio.run(made.acall())[0] == "page"


@differs(
    DSPY,
    "Sync access goes through acall or the allow_tool_async_sync_conversion switch",
    here="the same; but in the thread of the event loop that opened an SDK `ClientSession`, the "
    "switch raises `MCPConnectionError`. Use `acall` there, or connect with `ferrule.mcp(...)`",
    because="a session works only on that loop, so the call would wait for itself: "
    "[Tools of an MCP server](../how-to/mcp/mcp-tools.md)",
)
def sessions_work_on_their_loop() -> None:
    class Session:
        __module__ = "mcp.client.session"

        async def call_tool(self, name: str, arguments: Any = None) -> Any:
            return {"content": [{"type": "text", "text": threading.current_thread().name}]}

    async def main() -> None:
        made = Tool.from_mcp_tool(Session(), ENTRY)
        here = threading.current_thread().name
        with context(allow_tool_async_sync_conversion=True):
            assert await asyncio.to_thread(made) == here
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("ferrule.tools.mcp.tool._REACTS_WITHIN_S", 0.05)
                with pytest.raises(MCPConnectionError, match="event loop"):
                    made()

    asyncio.run(main())


@differs(
    DSPY,
    "returns non-text entries as-is",
    here="a picture or a recording is returned as `Image` or `Audio`",
    because="the model sees it",
)
def pictures_are_images() -> None:
    assert type(Tool.from_mcp_tool(Connection(), ENTRY)()[1]) is ferrule.Image


# -- udspy: Tool API Reference


@differs(
    UDSPY,
    "Dictionary mapping parameter names to their metadata",
    here="`tool.parameters` is the JSON schema",
    because='the document says both; its section "parameters Property" has the schema',
)
def parameters_are_a_schema() -> None:
    integers = {"a": {"type": "integer"}, "b": {"type": "integer", "default": 0}}
    assert Tool(add).parameters == {"type": "object", "properties": integers, "required": ["a"]}


@differs(
    UDSPY,
    "Dictionary mapping parameter names to type + description strings",
    here="`tool.args` has the JSON schema of each parameter. Texts are accepted as `args=`",
    because='the document says both; its section "DSPy Compatibility" has the schemas',
)
def args_are_schemas() -> None:
    described = Tool(add, args={"a": "int - the first", "b": "int - the second"})
    assert described.args["a"] == {"type": "integer", "description": "int - the first"}


@differs(
    UDSPY,
    "It takes arguments {<properties>}.",
    here='the same; for a tool without arguments: "It takes no arguments."',
    because="it is plainer than empty braces",
)
def a_tool_without_arguments_says_so() -> None:
    def now() -> str:
        """Tell the time."""
        return "noon"

    assert Tool(look).format().endswith('It takes arguments {"place":{"type":"string"}}.')
    assert Tool(now).format().endswith("It takes no arguments.")


@differs(
    UDSPY,
    "If True, wraps the tool with @confirm_first decorator",
    here="the function stays as it is: the tool asks, or the run that calls it",
    because="a run waits before the call, and keeps the question in its store",
)
def the_function_is_not_wrapped() -> None:
    guarded = tool(require_confirmation=True)(look)
    assert guarded.func is look
    with pytest.raises(ConfirmationRequired):
        guarded(place="a")


@differs(
    UDSPY,
    "If approved, subsequent calls to the same tool with same args execute normally",
    here="an approval holds for one call. In a run, a grant allows more",
    because="a person who approves a payment approves one payment: "
    "[Grants](../how-to/tools/approval.md#grants)",
)
def an_approval_is_for_one_call() -> None:
    guarded = tool(require_confirmation=True)(look)
    with pytest.raises(ConfirmationRequired) as caught:
        guarded(place="a")
    respond_to_confirmation(caught.value.confirmation_id, approved=True)
    assert guarded(place="a") == "a: a knife"
    with pytest.raises(ConfirmationRequired):
        guarded(place="a")


@differs(
    UDSPY,
    "runs it in an executor to avoid blocking (unless require_confirmation=True)",
    here="in an executor, also with `require_confirmation=True`",
    because="an approved call blocks as long as any other",
)
def approved_calls_run_in_a_thread() -> None:
    @tool(require_confirmation=True)
    def thread() -> int:
        """Say in which thread this runs."""
        return threading.get_ident()

    with pytest.raises(ConfirmationRequired) as caught:
        asyncio.run(thread.acall())
    respond_to_confirmation(caught.value.confirmation_id, approved=True)
    assert asyncio.run(thread.acall()) != threading.get_ident()


@differs(
    UDSPY,
    "finish and user clarification are automatically kept",
    here="`finish` is. The tool `user_clarification` exists only with "
    "`enable_user_clarification=True`",
    because="an agent without it never waits for a person by surprise",
)
def clarification_is_off() -> None:
    assert [*agent().tools] == ["look", "finish"]
    asking = agent(enable_user_clarification=True)
    assert [*asking.tools] == ["look", "user_clarification", "finish"]


@differs(
    UDSPY,
    "context.module.init_module(tools=current + [calculator])",
    here="the same, for the run; the agent itself does not change. In the udspy facade, the module "
    "changes",
    because="one agent serves many runs",
)
def loaded_tools_are_of_the_run() -> None:
    def loader(library: Any) -> Any:
        def load() -> Any:
            """Load a tool."""

            @library.module_callback
            def change(context: Any) -> str:
                context.module.init_module(tools=[*context.module.tools.values(), add])
                return "loaded"

            return change

        return load

    loading = agent(loader(ferrule))
    prediction, _ = ask(loading, call("load"), call("add", a=1), "x")
    assert prediction.trajectory["observation_1"] == "1"
    assert [*loading.tools] == ["load", "finish"]
    facade = udspy.ReAct("question -> answer", tools=[loader(udspy)], native=True)
    ask(facade, call("load"), call("add", a=1), "x")
    assert [*facade.tools] == ["load", "add", "finish"]


@differs(
    UDSPY,
    "from udspy.adapter import ChatAdapter",
    here="`from ferrule import ChatAdapter`. The submodules are in the udspy facade",
    because="one public name has one home",
)
def udspys_submodules_are_in_the_facade() -> None:
    assert not hasattr(ferrule, "adapter")
    adapters = importlib.import_module("ferrule.compat.udspy.adapter")
    assert adapters.ChatAdapter is udspy.ChatAdapter
    assert callable(ferrule.ChatAdapter().format_tool_schema)


# -- DSPy: ToolCalls


@differs(
    CALLS,
    "Tool calls information, including the name of the tools and the arguments to be passed to it.",
    here="`description()` begins in these words, and goes on with the form of the JSON",
    because="a model that has not seen the type knows its keys",
)
def the_description_has_the_form() -> None:
    said = ToolCalls.description()
    words = (
        "Tool calls information, including the name of the tools and the arguments to be passed to "
        "it. Arguments must be provided in JSON format"
    )
    assert said.startswith(words)
    assert '{"tool_calls": [{"name": ' in said.removeprefix(words)


@differs(
    CALLS,
    'isinstance(item, dict) and "name" in item and "args" in item for item in data',
    here="a call without `args` has no arguments; `arguments` and OpenAI's shape are accepted",
    because="models leave empty arguments out, and providers answer in their own shape",
)
def calls_are_read_in_more_shapes() -> None:
    calls = ToolCalls.model_validate(
        [
            {"name": "now"},
            {"name": "look", "arguments": {"place": "a"}},
            {"type": "function", "function": {"name": "look", "arguments": '{"place": "b"}'}},
        ]
    )
    assert [each.args for each in calls.tool_calls] == [{}, {"place": "a"}, {"place": "b"}]


@differs(
    CALLS,
    'raise ValueError(f"Received invalid value for `dspy.ToolCalls`: {data}")',
    here="the message names `ferrule.ToolCalls`, shortens the value, and says which call is wrong",
    because="a value from a model may be long, and it may hold many calls",
)
def the_message_says_which_call() -> None:
    with pytest.raises(ValidationError) as caught:
        ToolCalls.model_validate([{"name": "now"}, {"args": {"x": "y" * 10_000}}])
    assert "Received invalid value for `ferrule.ToolCalls`" in str(caught.value)
    assert "call 1" in str(caught.value)
    assert len(str(caught.value)) < 2_000


@differs(
    CALLS,
    "formatted = self.format()",
    here="`model_dump()` is `format()` with what the shape of OpenAI lacks, such as an intention. "
    "In the DSPy facade, it is `format()`",
    because="stored calls are loaded unchanged",
)
def dumped_calls_load_unchanged() -> None:
    entry = {"name": "look", "args": {"place": "a"}, "id": "c1", "intention": "to know"}
    calls = ToolCalls.from_dict_list([entry])
    assert calls.model_dump() != calls.format()
    again = ToolCalls.model_validate(calls.model_dump())
    assert again.tool_calls[0].intention == "to know"
    facade = dspy.ToolCalls.from_dict_list([entry])
    assert facade.model_dump() == facade.format()


@differs(
    CALLS,
    "{CUSTOM_TYPE_START_IDENTIFIER}{json.dumps(formatted,ensure_ascii=False)}",
    here="the part of a type whose `format()` is a list stands between ferrule's own marks",
    because="a text with DSPy's marks, such as one from a page, is text here",
)
def parts_have_other_marks() -> None:
    class Note(ferrule.Type):
        text: str

        def format(self) -> list[dict[str, Any]]:
            return [{"type": "text", "text": self.text}]

    written = str(Note(text="x").model_dump())
    assert written.startswith("<<ferrule-part>>[")
    assert "CUSTOM-TYPE" not in written


# -- dspy.ex


@differs(
    ELIXIR,
    "Dspy.LM.choice_from_response/1 :: {:ok, %{text: String.t() | nil, tool_calls: list() | "
    "nil, raw: map()}}",
    here="a `Response` with `text`, `tool_calls` (an empty tuple instead of nil) and `raw`; errors "
    "are exceptions with a `code`",
    because="the names and the tagged tuples are Elixir's",
)
def a_response_has_these_parts() -> None:
    response = Response("x")
    assert (response.text, response.tool_calls) == ("x", ())
    assert hasattr(response, "raw")
    with pytest.raises(ferrule.errors.ToolCallError) as caught:
        ToolCall.read({"args": {}})
    assert caught.value.code == "invalid_tool_call"


@differs(
    ELIXIR,
    "Only signatures with a dedicated output field (e.g. type :tool_calls) will receive tool call "
    "data.",
    here="so it is for tools that are inputs. `Predict(tools=..., auto_execute_tools=False)` has "
    "the calls in `prediction.tool_calls`, without an output",
    because="udspy documents this way to run calls by hand",
)
def calls_without_an_output() -> None:
    by_hand = Predict("question -> answer", tools=[look], auto_execute_tools=False, native=True)
    prediction, _ = ask(by_hand, call("look", place="a"))
    assert [each.name for each in prediction.tool_calls.tool_calls] == ["look"]


# -- Proxy Base Agent


@differs(
    PBA,
    "intention: str name: str",
    here="`ToolCall.intention` is None unless the model wrote one, although the schema of "
    "`to_dict()` requires it. An agent asks for it with `ReAct(..., intention=True)`",
    because="most providers' calls have no place for it, and such a call is complete",
)
def an_intention_is_optional() -> None:
    assert Tool(look).to_dict()["required"] == ["intention", "name", "arguments"]
    assert ToolCall(name="look").intention is None
    asking = agent(intention=True)
    prediction, lm = ask(asking, call("look", place="a", intention="to know"), "x")
    assert "intention" in repr(lm.requests[0].tools)
    assert prediction.trajectory.steps[0].calls[0].intention == "to know"


@differs(
    PBA,
    "arguments: dict[str, Any] | None = None",
    here="`ToolCall.arguments` is `{}` by default, and for None",
    because="code that reads the arguments needs no test for None",
)
def arguments_are_never_none() -> None:
    assert ToolCall(name="look").arguments == {}
    assert ToolCall(name="look", arguments=None).arguments == {}


@differs(
    PBA,
    "is automatically passed as the first argument (conventionally named self)",
    here="only to a function whose first parameter is `self` or `caller`",
    because="a plain function is a tool as well",
)
def the_caller_is_passed_to_self() -> None:
    async def shout(self: Any, word: str) -> str:
        """Shout."""
        return f"{self}: {word}!"

    assert asyncio.run(Tool("shout", "Shout.", shout).call("agent", word="hey")) == "agent: hey!"
    assert asyncio.run(Tool(add).call("agent", a=1)) == 1


@differs(
    PBA,
    "Discovers and loads tools from Python files in a specified directory (defaults to "
    "agent/tools/)",
    here="the default is the folder `tools`, or the file `tools.py`. If there is neither, it "
    "raises `ToolLoadError`",
    because="your program need not have a package `agent`",
)
def tools_are_loaded_from_tools() -> None:
    with pytest.raises(ToolLoadError, match=r"folder `tools` nor a file `tools\.py`"):
        Tool.load()


@differs(
    PBA,
    "If callable is provided, this is auto-generated using callable_to_schema.",
    here="it is generated; there is no function `callable_to_schema`. Read `Tool(function).schema`",
    because="one way is enough",
)
def schemas_are_read_from_a_tool() -> None:
    assert not hasattr(ferrule, "callable_to_schema")
    assert not hasattr(ferrule.schemas, "callable_to_schema")
    assert Tool(look).schema["properties"] == {"place": {"type": "string"}}


@differs(
    PBA,
    "PSE enforces this conformance.",
    here="every model's arguments are validated before the tool runs. Only a model that is "
    "constrained cannot write invalid ones",
    because="most providers do not let their models be constrained: "
    "[Constrained models](../how-to/models/local-models.md)",
)
def invalid_arguments_are_answered() -> None:
    prediction, _ = ask(agent(add), call("add", a="three"), "x")
    assert "a: expected an integer" in prediction.trajectory["observation_0"]


@differs(
    PBA,
    "passing the name and arguments to the Agent.use_tool method for execution",
    here="the run executes the calls. By hand: `ToolCall.execute`, or `await tool.acall(...)`",
    because="a run checks, asks, limits and records each call",
)
def there_is_no_use_tool() -> None:
    assert not hasattr(agent(), "use_tool")
    assert ToolCall(name="look", args={"place": "a"}).execute([look]) == "a: a knife"
