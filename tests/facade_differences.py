"""What stays different in the facades of DSPy and udspy: the last tables of
docs/coming-from/differences.md.

As in `differences.py`, each row is a function that tries it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
from differences import Document, differs, look

from ferrule import Response, ToolCall, context
from ferrule.compat import dspy, udspy
from ferrule.errors import (
    ConfigurationError,
    DecisionError,
    FerruleError,
    ToolDefinitionError,
    UnavailableError,
    UnknownToolError,
)
from ferrule.testing import ScriptedLM

DSPY_LIBRARY = Document("the facade", "DSPy", "")
UDSPY_LIBRARY = Document("the facade", "udspy", "")
FACADES = (DSPY_LIBRARY, UDSPY_LIBRARY)


def seen() -> str:
    """A function that is defined here; `look` is imported."""
    return "seen"


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


@differs(
    DSPY_LIBRARY,
    "dspy.ReAct asks for next_thought, next_tool_name and next_tool_args in text",
    here="calls in the provider's form if the model supports them; `native=False` asks for text",
    because="models are trained on their provider's form",
)
def dspys_agents_call_natively() -> None:
    lm = ScriptedLM([call("look", place="a"), call("finish", answer="x")])
    with context(lm=lm):
        dspy.ReAct("question -> answer", [look])(question="?")
    assert lm.requests[0].tools
    lm = ScriptedLM(by=lambda request: "[[ ## next_tool_name ## ]]\nfinish", record=True)
    agent = dspy.ReAct("question -> answer", [look], native=False, max_iters=1)
    with context(lm=lm), pytest.raises(dspy.AdapterParseError):
        agent(question="?")
    assert "next_tool_name" in lm.requests[0].messages[0].text


@differs(
    DSPY_LIBRARY,
    "agent.react has an input trajectory",
    here="it has none: each step is a message of its own. `agent.extract` reads the trajectory",
    because="earlier messages never change, so a provider serves them from its prompt cache",
)
def dspys_agents_have_no_input_for_the_steps() -> None:
    agent = dspy.ReAct("question -> answer", [look])
    assert "trajectory" not in agent.react.signature.input_fields
    assert "trajectory" in agent.extract.signature.input_fields


@differs(
    DSPY_LIBRARY,
    "an equal request is answered from a cache",
    here="each call sends a request; `cache=` and `rollout_id=` have no effect",
    because="a cached answer hides that a model, or its price, has changed. For tests: `RecordLM` "
    "and `ReplayLM`",
)
def dspys_requests_are_not_cached() -> None:
    lm = ScriptedLM(by=lambda request: "[[ ## answer ## ]]\n42", record=True)
    dspy.LM("openai/gpt-5-mini", api_key="key", cache=True, rollout_id=1)
    predict = dspy.Predict("question -> answer")
    with context(lm=lm):
        assert [predict(question="?").answer for _ in range(2)] == ["42", "42"]
    assert len(lm.requests) == 2


@differs(
    DSPY_LIBRARY,
    "an answer that cannot be parsed is asked again through JSONAdapter",
    here="it first goes back to the model once, with the problem; `dspy.ChatAdapter(repairs=0)` "
    "skips this",
    because="most answers need one correction, in the same form",
)
def dspys_answers_go_back_to_the_model() -> None:
    lm = ScriptedLM(["no marker", "[[ ## score ## ]]\n7"])
    with context(lm=lm):
        assert dspy.Predict("question -> score: int")(question="?").score == 7
    assert "could not be read" in lm.requests[1].messages[-1].text


@differs(
    DSPY_LIBRARY,
    "program.save(path, save_program=True) pickles the program",
    here="raises an error: create the program again, and `load` its state",
    because="a pickle runs code when it is loaded",
)
def dspys_programs_are_not_pickled() -> None:
    with TemporaryDirectory() as folder, pytest.raises(ConfigurationError, match="saves no code"):
        dspy.Predict("question -> answer").save(Path(folder), save_program=True)


@differs(
    DSPY_LIBRARY,
    "dspy.ToolCalls refuses a call without args",
    here="it is a call without arguments; calls in OpenAI's shape are accepted, too",
    because="models leave empty arguments out",
)
def dspys_calls_may_have_no_arguments() -> None:
    assert dspy.ToolCalls.model_validate([{"name": "look"}]).tool_calls[0].args == {}


@differs(
    DSPY_LIBRARY,
    "dspy.teleprompt has optimizers",
    here="an `ImportError` says what to do: optimize with DSPy, save, and load the state here",
    because="an optimizer needs DSPy's prompts, and is a library of its own",
)
def dspys_optimizers_are_missing() -> None:
    with pytest.raises(ImportError, match="no optimizers"):
        exec("from ferrule.compat.dspy.teleprompt import MIPROv2")


@differs(
    DSPY_LIBRARY,
    "a subclass of an adapter may override any of its methods",
    here="one that ferrule would not call raises when the class is defined",
    because="the override would have no effect, and nothing would say so",
)
def dspys_adapters_have_fewer_hooks() -> None:
    with pytest.raises(ConfigurationError, match="would not be called"):
        type("Own", (dspy.ChatAdapter,), {"format_field_with_value": lambda self, fields: ""})


@differs(
    DSPY_LIBRARY,
    "a prompt is the one that DSPy's optimizers saw",
    here="demos and instructions that DSPy optimized load; the words around them are ferrule's",
    because="the prompt says what the checks of answers and native calls need",
)
def dspys_prompts_have_other_words() -> None:
    lm = ScriptedLM(["[[ ## answer ## ]]\n42"])
    with context(lm=lm):
        dspy.Predict("question -> answer")(question="?")
    assert "In adhering to this structure" not in lm.requests[0].messages[0].text
    assert "[[ ## answer ## ]]" in lm.requests[0].messages[0].text


@differs(
    DSPY_LIBRARY,
    "the loop of dspy.ReAct ends at a call of an unknown tool, or an answer without a call",
    here="the model reads what is wrong, and the loop goes on",
    because="the next step mostly corrects it",
)
def dspys_loop_goes_on_after_a_wrong_call() -> None:
    lm = ScriptedLM([call("lok"), call("look", place="a"), call("finish", answer="x")])
    with context(lm=lm):
        result = dspy.ReAct("question -> answer", [look])(question="?")
    assert "no tool `lok`" in result.trajectory["observation_0"]
    assert result.trajectory["tool_name_1"] == "look"


@differs(
    DSPY_LIBRARY,
    "agent.react.signature is an attribute with a value of its own",
    here="it is made from the agent's signature and its tools when it is read; new instructions "
    "become the agent's, and the list of tools stays",
    because="a loaded tool is in the next prompt, whatever was saved",
)
def dspys_step_signature_follows_the_agent() -> None:
    agent = dspy.ReAct("question -> answer", [look])
    agent.react.signature = agent.react.signature.with_instructions("Be brief.")
    instructions = agent.react.signature.instructions
    assert instructions.startswith("Be brief.")
    assert "look" in instructions


@differs(
    DSPY_LIBRARY,
    "a value that max_tokens cut off is returned",
    here="it is treated like an answer that cannot be parsed",
    because="half a value looks like a whole one",
)
def dspys_incomplete_values_are_not_returned() -> None:
    half = Response("[[ ## answer ## ]]\nhalf a sen", finish_reason="length")
    with context(lm=ScriptedLM([half, "[[ ## answer ## ]]\nall\n\n[[ ## completed ## ]]"])):
        assert dspy.Predict("question -> answer")(question="?").answer == "all"


@differs(
    DSPY_LIBRARY,
    "ToolCall.execute() finds any function in the caller's globals and locals",
    here="it finds those that the caller's module defines, never imported ones, and warns",
    because="the model chooses the name: `system` would be found, too",
)
def dspys_calls_find_no_imported_functions() -> None:
    with pytest.warns(UserWarning, match="found by name"):
        assert dspy.ToolCalls.ToolCall(name="seen", args={}).execute() == "seen"
    with (
        pytest.warns(UserWarning, match="found by name"),
        pytest.raises(UnknownToolError, match="look"),
    ):
        dspy.ToolCalls.ToolCall(name="look", args={"place": "a"}).execute()


@differs(
    DSPY_LIBRARY,
    "the schema of an argument has a title; dspy.Tool(args=...) takes any names",
    here="schemas have no titles, and `arg_desc` only descriptions that exist; a name in `args=` "
    "that the function does not have raises",
    because="titles repeat the names in each prompt, and such an argument cannot be passed",
)
def dspys_schemas_have_no_titles() -> None:
    assert dspy.Tool(look).args == {"place": {"type": "string"}}
    with pytest.raises(ToolDefinitionError, match="names `where`"):
        dspy.Tool(look, args={"where": {"type": "string"}})


@differs(
    DSPY_LIBRARY,
    "a field has a prefix and its constraints as a text; Signature.dump_state() has them",
    here="a prefix is kept, but not shown; constraints are the field's `metadata`. A signature's "
    "state has the core's layout; a program's has DSPy's",
    because="prompts have no prefixes",
)
def dspys_fields_have_no_prefix() -> None:
    field = dspy.InputField(gt=3)
    assert field.metadata
    assert "constraints" not in (field.json_schema_extra or {})
    state = dspy.Signature("a -> b").dump_state()
    assert [sorted(entry) for entry in state["fields"]] == [["desc", "name"]] * 2


@differs(
    DSPY_LIBRARY,
    "JSONAdapter writes the inputs under markers; XMLAdapter nests XML, and refuses an end tag in "
    "a value",
    here="`JSONAdapter` writes all messages as JSON; `XMLAdapter` writes nested values as JSON, "
    "reads both, and takes an end tag in a value as text",
    because="one form in all messages is easier to keep to, and text may quote a tag",
)
def dspys_adapters_write_one_form() -> None:
    lm = ScriptedLM(['{"answer": "x"}'])
    with context(lm=lm, adapter=dspy.JSONAdapter()):
        dspy.Predict("question -> answer")(question="?")
    assert lm.requests[0].messages[-1].text.startswith('{"question":"?"}')
    text = "<answer>a </answer> tag</answer>"
    assert dspy.XMLAdapter().parse(dspy.Signature("question -> answer"), text) == {
        "answer": "a </answer> tag"
    }


@differs(
    DSPY_LIBRARY,
    "calls in a dspy.History are sent with their own ids; those without a result are left out",
    here="ids are unique in the conversation; a call without a result is sent with a result that "
    "says so",
    because="providers refuse two calls with one id, and a call without a result",
)
def dspys_calls_of_a_history_have_results() -> None:
    calls = dspy.ToolCalls(tool_calls=[{"name": "look", "args": {"place": "a"}}])
    turn = {"question": "?", "next": calls}
    lm = ScriptedLM([call("look", place="b")])
    adapter = dspy.ChatAdapter(use_native_function_calling=True)
    with context(lm=lm, adapter=adapter):
        signature = (
            "question, history: dspy.History, tools: list[dspy.Tool] -> next: dspy.ToolCalls"
        )
        dspy.Predict(dspy.Signature(signature))(
            question="?", history=dspy.History(messages=[turn]), tools=[dspy.Tool(look)]
        )
    [result] = [message for message in lm.requests[0].messages if message.role == "tool"]
    assert "not given" in result.text


@differs(
    DSPY_LIBRARY,
    "the observation of an exception is a traceback under the header Traceback",
    here="its type, its message and the lines of your own code",
    because="the model repairs its call; paths of libraries do not help it",
)
def dspys_observations_of_errors_are_short() -> None:
    def fail(n: int) -> str:
        """Fail."""
        raise ValueError("no")

    with context(lm=ScriptedLM([call("fail", n=1), call("finish", answer="x")])):
        result = dspy.ReAct("question -> answer", [fail])(question="?")
    observation = result.trajectory["observation_0"]
    assert observation.startswith("Execution error in fail: ValueError: no")
    assert "Traceback" not in observation


@differs(
    DSPY_LIBRARY,
    'dspy.configure(lm="openai/...") raises when the model is called',
    here="it raises at once",
    because="the line that is wrong is the one in the traceback",
)
def dspys_models_are_no_names() -> None:
    with pytest.raises(ConfigurationError, match="takes a model, not its name"):
        dspy.configure(lm="openai/gpt-5-mini")


@differs(
    DSPY_LIBRARY,
    "type checkers know the facade's own classes",
    here="names that differ from the core's are `Any` to them",
    because="their signatures are DSPy's, which has no types for many",
)
def dspys_names_are_any_to_type_checkers() -> None:
    assert get_type_hints(dspy.__getattr__)["return"] is Any


@differs(
    UDSPY_LIBRARY,
    "ReAct asks for the outputs in a further request",
    here="with native calls, the arguments of `finish` are the outputs; they are extracted at "
    "`max_iters` only",
    because="it saves a request, and the model can correct them",
)
def udspys_finish_has_the_outputs() -> None:
    lm = ScriptedLM([call("look", place="a"), call("finish", answer="x")])
    with context(lm=lm):
        assert udspy.ReAct("question -> answer", tools=[look])(question="?").answer == "x"
    assert len(lm.requests) == 2


@differs(
    UDSPY_LIBRARY,
    "respond_to_confirmation takes an id that was computed from the call",
    here="an id is that of one question; an unknown one raises `DecisionError`",
    because="a person who approves a payment approves one payment",
)
def udspys_ids_are_those_of_questions() -> None:
    with pytest.raises(DecisionError):
        udspy.respond_to_confirmation("pay:1", approved=True)


@differs(
    UDSPY_LIBRARY,
    "a sync call in a running event loop raises an error",
    here="it works, and blocks the loop until it ends",
    because="notebooks and callbacks run in a loop",
)
def udspys_sync_calls_work_in_a_loop() -> None:
    async def main() -> Any:
        with context(lm=ScriptedLM([{"outputs": {"answer": "x"}}])):
            return udspy.Predict("question -> answer")(question="?")

    assert asyncio.run(main()).answer == "x"


@differs(
    UDSPY_LIBRARY,
    "an answer that cannot be parsed is asked for three times",
    here="it goes back to the model twice, with the problem, and then ferrule asks through the "
    "fallback adapter; the error at the end is `AdapterParseError`, not tenacity's `RetryError`",
    because="the same request again mostly has the same answer",
)
def udspys_answers_go_back_to_the_model() -> None:
    lm = ScriptedLM(["none", {"outputs": {"score": 7}}])
    with context(lm=lm):
        assert udspy.Predict("question -> score: int")(question="?").score == 7
    assert "could not be read" in lm.requests[1].messages[-1].text
    says_problem: list[bool] = []

    def never_readable(request: Any) -> str:
        says_problem.append("could not be read" in request.messages[-1].text)
        return "none"

    with context(lm=ScriptedLM(by=never_readable)), pytest.raises(udspy.AdapterParseError):
        udspy.Predict("question -> score: int")(question="?")
    assert says_problem == [False, True, True, False]


@differs(
    UDSPY_LIBRARY,
    "prompts, and observations of errors, denials and unknown tools, have fixed words",
    here="the words are ferrule's: `There is no tool ...`, not `No tools are currently available`",
    because="they say what the model can do next",
)
def udspys_observations_have_other_words() -> None:
    lm = ScriptedLM([call("lok"), call("finish", answer="x")])
    with context(lm=lm):
        result = udspy.ReAct("question -> answer", tools=[look])(question="?")
    assert "There is no tool `lok`" in str(result.trajectory)


@differs(
    UDSPY_LIBRARY,
    "a module that raises ConfirmationRequired itself is resumed by resume_state",
    here="only with an `aresume` of its own; without one, the call raises an error that says so",
    because="there is no run that waits: only the module knows where to go on",
)
def udspys_modules_that_ask_need_an_aresume() -> None:
    class Asks(udspy.Module):
        async def aexecute(self, *, stream: bool = False, **inputs: Any) -> Any:
            raise udspy.ConfirmationRequired("Go on?")

    with pytest.raises(udspy.ConfirmationRequired) as asked:
        Asks()(task="t")
    with pytest.raises(FerruleError, match="no run to resume"):
        Asks()(task="t", resume_state=udspy.ResumeState(asked.value, "yes"))


@differs(
    UDSPY_LIBRARY,
    "a stream that ends without a finish_reason is a whole answer",
    here="it is a broken connection: `UnavailableError`",
    because="half an answer looks like a whole one",
)
def udspys_streams_have_an_end() -> None:
    class Chunks:
        def __init__(self) -> None:
            self.chunks = iter(["[[ ## ans", "wer ## ]]"])

        def __aiter__(self) -> Chunks:
            return self

        async def __anext__(self) -> Any:
            for text in self.chunks:
                delta = {"content": text}
                return {"id": "c", "choices": [{"index": 0, "delta": delta}]}
            raise StopAsyncIteration

    async def create(**_: Any) -> Any:
        return Chunks()

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))

    async def main() -> None:
        with udspy.settings.context(aclient=client, model="m"):
            async for _ in udspy.Predict("question -> answer").astream(question="?"):
                pass

    with pytest.raises(UnavailableError):
        asyncio.run(main())


@differs(
    UDSPY_LIBRARY,
    "the signature of a module has the fields that were declared",
    here="also an optional input `history`; a chain's `original_signature` is yours",
    because="`history=` is an input like any other, so that it is checked and recorded",
)
def udspys_signatures_have_a_history() -> None:
    assert "history" in udspy.Predict("question -> answer").signature.input_fields
    chain = udspy.ChainOfThought("question -> answer")
    assert "history" not in chain.original_signature.input_fields


@differs(
    UDSPY_LIBRARY,
    "the calls of one turn run one after another",
    here="they run at the same time; `ReAct(parallel=False)` runs them one by one",
    because="most calls wait for something",
)
def udspys_calls_run_at_the_same_time() -> None:
    together = Barrier(2, timeout=30)

    def meet(n: int) -> str:
        """Meet."""
        return f"met {together.wait() >= 0}"

    calls = [ToolCall(name="meet", args={"n": n}, id=f"c{n}") for n in (1, 2)]
    with context(lm=ScriptedLM([Response("", tuple(calls)), call("finish", answer="x")])):
        udspy.ReAct("question -> answer", tools=[meet])(question="?")
    assert not together.broken


@differs(
    UDSPY_LIBRARY,
    "a tool gets the arguments as the model wrote them",
    here="they are validated first: a call that does not fit does not run, and the model reads "
    "what to change",
    because="a tool need not check what its types say",
)
def udspys_arguments_are_validated() -> None:
    def count(days: int) -> str:
        """Count days."""
        raise AssertionError

    lm = ScriptedLM([call("count", days="many"), call("finish", answer="x")])
    with context(lm=lm):
        result = udspy.ReAct("question -> answer", tools=[count])(question="?")
    assert "expected" in str(result.trajectory)
