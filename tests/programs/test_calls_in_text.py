"""Whose text is read for calls, under which names calls run, and what thoughts alone are."""

from __future__ import annotations

import asyncio
import pickle
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from agent_script import STEPS, fields, native_step, text_step

from ferrule import (
    LM,
    BaseLM,
    FallbackLM,
    Limits,
    MemoryStore,
    Predict,
    ReAct,
    Response,
    Run,
    Tool,
    ToolCall,
    ToolCalls,
    context,
)
from ferrule.cli.main import main
from ferrule.errors import ConfigurationError, FerruleError, UnavailableError
from ferrule.models.providers import PROVIDERS
from ferrule.testing import RecordLM, ReplayLM, ScriptedLM, serve

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

AS_TEXT = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
HOSTED = sorted(name for name, provider in PROVIDERS.items() if provider.key_variable)
OWN = sorted(PROVIDERS.keys() - set(HOSTED))


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


class Adding:
    """A tool `add` that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.tool = Tool(self.add)

    def add(self, a: int, b: int) -> int:
        """Add two integers."""
        self.calls += 1
        return a + b


def whole(program: Any, lm: Any) -> Any:
    return program(question="2+3?", lm=lm)


def in_task(program: Any, lm: Any) -> Any:
    return asyncio.run(program.acall(question="2+3?", lm=lm))


def streamed(program: Any, lm: Any) -> Any:
    with program.stream(question="2+3?", lm=lm) as stream:
        list(stream)
    return stream.prediction


WAYS: list[Callable[[Any, Any], Any]] = [whole, in_task, streamed]
KINDS: list[Any] = [ReAct, Predict]


def program(kind: Any, tool: Any, **options: Any) -> Any:
    return kind("question -> answer: str", tools=[tool], **options)


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request: pytest.FixtureRequest) -> Callable[[Any, Any], Any]:
    return request.param


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


# -- who is read


def model_named(name: str, monkeypatch: pytest.MonkeyPatch) -> LM:
    for variable in ("AZURE_OPENAI_ENDPOINT", "AWS_REGION", "GOOGLE_CLOUD_LOCATION"):
        monkeypatch.setenv(variable, "https://host" if "ENDPOINT" in variable else "here")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "project")
    return LM(f"{name}/m")


@pytest.mark.parametrize("name", HOSTED)
def test_a_provider_of_models_calls_natively_by_its_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model_named(name, monkeypatch).is_hosted


@pytest.mark.parametrize("name", OWN)
def test_a_server_of_your_own_does_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not model_named(name, monkeypatch).is_hosted
    assert not LM("http://localhost:1/v1", model="m").is_hosted


def test_the_text_of_a_provider_is_never_read_when_tools_are_declared(way: Any, kind: Any) -> None:
    adding = Adding()
    with serve(ScriptedLM([AS_TEXT, fields(answer="none")])) as server:
        lm = LM("openai/m", base_url=server.base_url, api_key="k")
        way(program(kind, adding.tool, native=True), lm)
    assert adding.calls == 0


def test_the_text_of_a_server_is_read_until_it_has_made_one_native_call(
    way: Any, kind: Any
) -> None:
    adding = Adding()
    native = {"name": "add", "args": {"a": 1, "b": 1}}
    with serve(ScriptedLM([AS_TEXT, native, AS_TEXT, fields(answer="none")])) as server:
        prediction = way(program(kind, adding.tool), server.lm())
    assert adding.calls == 2
    calls = [call for step in prediction.trajectory.steps for call in step.calls]
    assert [call.is_rescued for call in calls] == [True, False]
    assert calls[0].repairs == ("from_text",)


def test_a_native_call_of_one_run_does_not_count_in_the_next(kind: Any) -> None:
    adding = Adding()
    agent = program(kind, adding.tool)
    native = {"name": "add", "args": {"a": 1, "b": 1}}
    answers = [native, fields(answer="one"), AS_TEXT, fields(answer="two")]
    lm = ScriptedLM(answers)
    whole(agent, lm)
    whole(agent, lm)
    assert adding.calls == 2


@pytest.mark.parametrize(("option", "ran"), [("never", 0), ("rescue", 1), ("always", 2), (None, 0)])
def test_the_model_says_otherwise(way: Any, kind: Any, option: Any, ran: int) -> None:
    adding = Adding()
    native = {"name": "other", "args": {}}
    answers = [AS_TEXT, native, AS_TEXT, fields(answer="none")]
    if option in {"never", None}:
        answers = [AS_TEXT, fields(answer="none")]
    with serve(ScriptedLM(answers)) as server:
        lm = LM("openai/m", base_url=server.base_url, api_key="k", text_calls=option)
        way(program(kind, adding.tool), lm)
    assert adding.calls == ran


def test_never_is_for_prompted_calls_too_and_the_form_of_the_prompt_is_still_read(
    way: Any, kind: Any
) -> None:
    adding = Adding()
    if kind is ReAct:
        in_form = text_step("", "add", {"a": 2, "b": 3})
        last = [text_step("", "finish", {}), fields(reasoning="r", answer="none")]
    else:
        in_form = fields(tool_calls=[{"name": "add", "args": {"a": 2, "b": 3}}])
        last = [fields(tool_calls=[], answer="none")]
    with serve(ScriptedLM([AS_TEXT, in_form, *last])) as server:
        way(program(kind, adding.tool, native=False), server.lm(text_calls="never"))
    assert adding.calls == 1


def test_a_provider_is_read_if_the_prompt_asks_for_calls_in_the_text(kind: Any) -> None:
    adding = Adding()
    last = [text_step("", "finish", {}), fields(reasoning="r", answer="none")]
    if kind is Predict:
        last = [fields(tool_calls=[], answer="none")]
    with serve(ScriptedLM([AS_TEXT, *last])) as server:
        lm = LM("openai/m", base_url=server.base_url, api_key="k")
        whole(program(kind, adding.tool, native=False), lm)
    assert adding.calls == 1


@pytest.mark.parametrize("value", ["sometimes", True, ""])
def test_another_value_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r'"never", "rescue", "always" or None'):
        LM("http://localhost:1/v1", model="m", text_calls=value)
    with pytest.raises(ConfigurationError, match="`text_calls` is not a setting of a request"):
        LM("openai/m").copy(text_calls=value)
    lm = ScriptedLM([AS_TEXT])
    lm.text_calls = value
    with pytest.raises(ConfigurationError, match="`text_calls`"):
        whole(program(ReAct, add), lm)


def test_the_option_travels_through_copies_and_pickles() -> None:
    lm = LM("openai/m", text_calls="rescue")
    for other in (lm.copy(temperature=1.0), pickle.loads(pickle.dumps(lm))):
        assert (other.text_calls, other.is_hosted) == ("rescue", True)


def test_a_model_of_a_user_has_it_as_an_attribute(kind: Any) -> None:
    class Mine(BaseLM):
        text_calls = "never"

        def complete(self, request: Any) -> Response:
            return Response(AS_TEXT)

    adding = Adding()
    with context(lm=Mine()):
        program(kind, adding.tool, native=True)(question="2+3?")
    assert adding.calls == 0


def test_wrappers_of_a_model_are_read_as_the_model_is(tmp_path: Path) -> None:
    adding = Adding()
    agent = program(ReAct, adding.tool)
    with serve(ScriptedLM([AS_TEXT, fields(answer="none")])) as server:
        lm = LM("openai/m", base_url=server.base_url, api_key="k")
        whole(agent, RecordLM(lm, tmp_path / "answers.jsonl"))
    whole(agent, ReplayLM(tmp_path / "answers.jsonl"))
    assert adding.calls == 0


class Down(BaseLM):
    """A model that is down after its first answers."""

    def complete(self, request: Any) -> Response:
        raise UnavailableError("down")


@pytest.mark.parametrize(("hosted_answers", "ran"), [(True, 0), (False, 1)])
def test_of_several_models_the_one_that_answered_decides(hosted_answers: bool, ran: int) -> None:
    adding = Adding()
    with serve(ScriptedLM([AS_TEXT, native_step("", "finish", {"answer": "x"})])) as server:
        hosted = LM("openai/m", base_url=server.base_url, api_key="k")
        models = [Down(), hosted, server.lm()] if hosted_answers else [Down(), server.lm(), hosted]
        whole(program(ReAct, adding.tool), FallbackLM(models))
    assert adding.calls == ran


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    ("before", "after", "ran"), [("always", "never", 1), ("never", "always", 0)]
)
def test_a_resumed_run_decides_as_it_did_before(
    native: bool, before: Any, after: Any, ran: int, kind: Any
) -> None:
    """A question stops the run; it goes on in a process whose model is read otherwise."""
    adding = Adding()

    def publish() -> str:
        """Publish."""
        return "published"

    def agent() -> Any:
        asking = Tool(publish, require_confirmation=True)
        return kind("question -> answer: str", tools=[adding.tool, asking], native=native)

    if kind is ReAct:
        step = STEPS["native" if native else "text"]
        asks = step("", "publish", {})
        last = [step("", "finish", {"answer": "x"}), fields(reasoning="r", answer="x")]
    elif native:
        asks, last = {"name": "publish", "args": {}}, [fields(answer="x")]
    else:
        asks = fields(tool_calls=[{"name": "publish", "args": {}}])
        last = [fields(tool_calls=[], answer="x")]
    store = MemoryStore()
    lm = ScriptedLM([Response(AS_TEXT), asks])
    if native and before == "never":
        # Natively, a text without calls is the answer: it comes beside a call.
        lm = ScriptedLM([{"text": AS_TEXT, "tool_calls": [{"name": "publish", "args": {}}]}])
    lm.text_calls = before
    with context(lm=lm):
        run = agent().start(question="2+3?", store=store)
    assert run.status == "waiting"
    assert adding.calls == ran
    later = ScriptedLM(last)
    later.text_calls = after
    with context(lm=later):
        run = Run.load(store, run.id, agent())
        [question] = run.pending
        run.answer(question.approve())
        run.resume()
    assert run.status == "done"
    assert adding.calls == ran


def test_a_resumed_run_remembers_that_its_model_calls_natively() -> None:
    adding = Adding()
    asking = Tool(add, name="publish", require_confirmation=True)
    agent = ReAct("question -> answer", [adding.tool, asking])
    store = MemoryStore()
    lm = ScriptedLM([native_step("", "publish", {"a": 1, "b": 1}), AS_TEXT, fields(answer="x")])
    with context(lm=lm):
        run = agent.start(question="2+3?", store=store)
        run = Run.load(store, run.id, agent)
        run.answer(run.pending[0].approve())
        run.resume()
    assert run.status == "done"
    assert adding.calls == 0


# -- the names of calls

NAMES = [
    "functions.add",
    "default_api:add",
    "add:0",
    " add\n",
    "functions.add:3",
    "add<|channel|>commentary",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_call_means_the_tool_that_is_offered_in_all_modes(
    kind: Any, mode: str, name: str
) -> None:
    adding = Adding()
    args = {"a": 2, "b": 3}
    if kind is ReAct:
        script = [STEPS[mode]("", name, args), STEPS[mode]("", "functions.finish", {"answer": "x"})]
        script.append(fields(reasoning="r", answer="x"))
    elif mode == "native":
        script = [{"name": name, "args": args}, fields(answer="x")]
    else:
        script = [fields(tool_calls=[{"name": name, "args": args}])]
        script.append(fields(tool_calls=[], answer="x"))
    prediction = program(kind, adding.tool, native=mode == "native")(
        question="2+3?", lm=ScriptedLM(script)
    )
    assert (adding.calls, prediction.answer) == (1, "x")
    assert prediction.trajectory.steps[0].calls[0].name == "add"


@pytest.fixture(params=["text", "native"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_name_that_is_offered_as_it_is_wins() -> None:
    ran: list[str] = []

    def make(name: str) -> Tool:
        def function() -> str:
            """Run."""
            ran.append(name)
            return name

        return Tool(function, name=name)

    agent = ReAct("question -> answer", [make("add"), make("functions_add")], native=True)
    script = [native_step("", name, {}) for name in ("functions_add", "add", "functions.add")]
    agent(question="?", lm=ScriptedLM([*script, native_step("", "finish", {"answer": "x"})]))
    assert ran == ["functions_add", "add", "functions_add"]


def test_calls_that_are_returned_have_the_offered_names_too() -> None:
    signature = "question -> calls: ToolCalls"
    for native, answer in (
        (True, ToolCall(name="functions.add", args={"a": 1, "b": 2}, id="c")),
        (False, fields(calls=[{"name": "functions.add", "args": {"a": 1, "b": 2}}])),
    ):
        predict = Predict(signature, tools=[add], native=native)
        prediction = predict(question="?", lm=ScriptedLM([answer]))
        assert prediction.calls == ToolCalls.from_dict_list(
            [{"name": "add", "args": {"a": 1, "b": 2}}]
        )


# -- thoughts


def test_thoughts_alone_are_no_answer_and_the_model_still_has_its_tools(
    way: Any, kind: Any, mode: str
) -> None:
    """The next request declared no tools, and the run ended with a guess."""
    adding = Adding()
    args = {"a": 2, "b": 3}
    if kind is ReAct:
        script = [STEPS[mode]("", "add", args), STEPS[mode]("", "finish", {"answer": "5"})]
        script.append(fields(reasoning="r", answer="5"))
    elif mode == "native":
        script = [{"name": "add", "args": args}, fields(answer="5")]
    else:
        script = [fields(tool_calls=[{"name": "add", "args": args}])]
        script.append(fields(tool_calls=[], answer="5"))
    lm = ScriptedLM([Response(None, reasoning="I should call `add`."), *script])
    prediction = way(program(kind, adding.tool, native=mode == "native"), lm)
    assert (adding.calls, prediction.answer) == (1, "5")
    again = lm.requests[1]
    if mode == "native":
        assert again.tools == lm.requests[0].tools
    else:
        assert "Add two integers." in again.messages[0].text


def test_a_call_that_ends_the_thoughts_of_an_empty_answer_runs(
    way: Any, kind: Any, mode: str
) -> None:
    adding = Adding()
    if kind is ReAct:
        script = [STEPS[mode]("", "finish", {"answer": "5"}), fields(reasoning="r", answer="5")]
    else:
        script = [fields(answer="5")]
    lm = ScriptedLM([Response(None, reasoning=f"I need the sum.\n{AS_TEXT}"), *script])
    prediction = way(program(kind, adding.tool, native=mode == "native"), lm)
    assert (adding.calls, prediction.answer) == (1, "5")
    [call] = prediction.trajectory.steps[0].calls
    assert "from_thoughts" in call.repairs


def test_thoughts_alone_are_no_answer_without_required_outputs_either(mode: str) -> None:
    lm = ScriptedLM([Response(None, reasoning="Hm."), *[fields(answer="5")] * 2])
    program = Predict("question -> answer: str | None", tools=[add], native=mode == "native")
    assert program(question="?", lm=lm).answer == "5"
    assert lm.requests[1].tools == lm.requests[0].tools


def test_the_command_line_says_whether_the_text_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ask(*words: str) -> int:
        script = [
            AS_TEXT.replace("add", "calculate").replace('"a": 2, "b": 3', '"expression": "2+3"')
        ]
        with serve(ScriptedLM([*script, *[{"name": "finish", "args": {"answer": "x"}}] * 2])) as on:
            return main(["ask", "2+3?", "--lm", "m", "--base-url", on.base_url, *words])

    assert ask() == 0
    assert "calculate" in capsys.readouterr().out
    assert ask("--text-calls", "never") == 0
    assert "calculate" not in capsys.readouterr().out.partition("<tool_call>")[0]
    assert ask("--text-calls", "perhaps") == 2
    assert '`--text-calls` is "never", "rescue", "always", found' in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["native", "text"])
@pytest.mark.parametrize("kind", [ReAct, Predict])
@pytest.mark.parametrize("piece", ["<tool_code>\n", '\\"add(a=['])
def test_a_long_hostile_answer_ends_within_the_limits(kind: Any, mode: str, piece: str) -> None:
    """By counting: `test_linear.py` bounds the steps."""
    adding = Adding()
    asked = 0

    def hostile(request: Any) -> Response:
        nonlocal asked
        del request
        asked += 1
        return Response(piece * (32_768 // len(piece)))

    lm = ScriptedLM(by=hostile)
    with context(limits=Limits(wall_s=5, steps=1)), suppress(FerruleError):
        whole(program(kind, adding.tool, native=mode == "native"), lm)
    assert (adding.calls, asked > 0) == (0, True)


@pytest.mark.parametrize("name", ["desk.refund", "desk/refund", "résumé"])
def test_the_name_that_a_person_knows_stays_in_the_question(name: str) -> None:
    """Its declaration has another one, because providers do not take such names."""
    guarded = Tool(add, name=name, require_confirmation=True)
    lm = ScriptedLM([native_step("", name, {"a": 1, "b": 2})])
    run = ReAct("question -> answer", [guarded], native=True, lm=lm).start(question="?")
    assert [question.call.name for question in run.pending] == [name]
