"""What stays different in the facades of DSPy and udspy: the last tables of docs/coming-from/differences.md.

As in `differences.py`, each row is a function that tries it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from differences import Document, differs, look

from ferrule import context
from ferrule.compat import dspy, udspy
from ferrule.errors import ConfigurationError, DecisionError
from ferrule.testing import ScriptedLM

DSPY_LIBRARY = Document("the facade", "DSPy", "")
UDSPY_LIBRARY = Document("the facade", "udspy", "")
FACADES = (DSPY_LIBRARY, UDSPY_LIBRARY)


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
    here="it goes back to the model once, and then ferrule asks through the fallback adapter",
    because="the same request again mostly has the same answer",
)
def udspys_answers_go_back_to_the_model() -> None:
    lm = ScriptedLM(["none", {"outputs": {"score": 7}}])
    with context(lm=lm):
        assert udspy.Predict("question -> score: int")(question="?").score == 7
    assert "could not be read" in lm.requests[1].messages[-1].text


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
