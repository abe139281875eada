"""Programs that people write, and every way to call one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from agent_script import fields, native_step
from pydantic import field_validator

from ferrule import (
    BaseLM,
    ChainOfThought,
    ConfirmationRequired,
    InputError,
    InputField,
    MemoryStore,
    Module,
    OutputField,
    Predict,
    Prediction,
    ReAct,
    Request,
    Response,
    RunError,
    Signature,
    Tool,
    context,
    events,
    gather,
    tool,
)  # fmt: skip
from ferrule.acts import Once
from ferrule.errors import ConfigurationError, ReplayMismatchError, SignatureError, UnavailableError
from ferrule.testing import AutoLM, ScriptedLM


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


def call(program: Module, driver: str, **inputs: Any) -> Any:
    return asyncio.run(program.acall(**inputs)) if driver == "async" else program(**inputs)


class Pipeline(Module):
    """Plain Python over two predictors."""

    def __init__(self) -> None:
        self.draft = Predict("topic -> text")
        self.judge = ChainOfThought("text -> good: bool")

    def forward(self, topic: str, rounds: int = 1) -> Prediction:
        text = ""
        for _ in range(rounds):
            text = self.draft(topic=topic).text
            if self.judge(text=text).good:
                break
        return Prediction(text=text)


class Async(Pipeline):
    async def aforward(self, topic: str) -> Prediction:
        text = (await self.draft.acall(topic=topic)).text
        return Prediction(text=text + "!")


class OnlyAsync(Module):
    async def aforward(self, topic: str) -> Prediction:
        return Prediction(text=topic)


def test_a_program_with_only_an_aforward_has_a_forward() -> None:
    """Udspy's programs are written as one coroutine."""
    assert OnlyAsync().forward(topic="t").text == OnlyAsync()(topic="t").text == "t"


def test_a_forward_that_is_async_is_refused_with_its_right_name() -> None:
    """Its prediction would be a coroutine."""
    with pytest.raises(
        ConfigurationError,
        match=r"`Wrong\.forward` .* is async: name it `aforward`",
    ):

        class Wrong(Module):
            async def forward(self, topic: str) -> Prediction:
                return Prediction(text=topic)


class Flow(Module):
    """The same as acts."""

    def __init__(self) -> None:
        self.draft = Predict("topic -> text")

    def flow(self, topic: str) -> Any:
        first = yield from self.draft.flow(topic=topic)
        number = yield Once(lambda: 7, "number")
        return Prediction(text=first.text, number=number)


def lm(*answers: Any) -> ScriptedLM:
    return ScriptedLM(list(answers))


def test_a_forward_in_plain_python_runs_like_a_builtin_program(driver: str) -> None:
    with context(
        lm=lm(
            fields(text="a"),
            fields(reasoning="r", good=False),
            fields(text="b"),
            fields(reasoning="r", good=True),
        ),
    ):
        prediction = call(Pipeline(), driver, topic="t", rounds=3)
    assert prediction.text == "b"
    assert prediction.usage.calls == 4


def test_a_stored_run_of_a_program_is_loaded_by_it() -> None:
    store = MemoryStore()
    with context(lm=lm(fields(text="a"))):
        run = Predict("topic -> text").start(topic="t", store=store, run_id="r")
        assert Predict("topic -> text").load_run(store, "r").prediction == run.prediction


def test_positional_arguments_reach_a_forward() -> None:
    """DSPy's form."""
    with context(lm=lm(fields(text="a"), fields(reasoning="r", good=True))):
        assert Pipeline()("t").text == "a"


def test_an_aforward_is_used_on_a_loop_and_the_forward_without_one() -> None:
    with context(lm=lm(fields(text="a"))):
        assert asyncio.run(Async().acall(topic="t")).text == "a!"
    with context(lm=lm(fields(text="a"), fields(reasoning="r", good=True))):
        assert Async()(topic="t").text == "a"


def test_a_flow_of_acts_runs_on_both_drivers(driver: str) -> None:
    """Architecture: a user's program may be a flow."""
    with context(lm=lm(fields(text="a"))):
        assert call(Flow(), driver, topic="t") == Prediction(text="a", number=7)


def test_a_module_without_forward_or_flow_says_so() -> None:
    class Empty(Module):
        pass

    with pytest.raises(NotImplementedError, match="neither `forward` nor `flow`"):
        Empty()()


def test_forward_of_a_builtin_program_can_be_extended() -> None:
    """`forward` and `aforward` exist; `super().forward(...)` runs the program."""

    class Polite(Predict):
        def forward(self, **inputs: Any) -> Prediction:
            return Prediction(answer=super().forward(**inputs).answer + ", please")

    with context(lm=lm(fields(answer="tea"), fields(answer="tea"), fields(answer="milk"))):
        assert Polite("question -> answer")(question="q").answer == "tea, please"
        assert Predict("question -> answer").forward(question="q").answer == "tea"
        assert asyncio.run(Predict("question -> answer").aforward(question="q")).answer == "milk"


def test_a_run_of_a_plain_program_waits_and_resumes_from_the_top_without_asking_again(
    driver: str,
) -> None:
    """Children answer from the journal."""
    sent: list[str] = []

    @tool(require_confirmation=True)
    def send(text: str) -> str:
        """Send."""
        sent.append(text)
        return "sent"

    tops: list[int] = []

    class Sends(Module):
        def __init__(self) -> None:
            self.draft = Predict("topic -> text")
            self.agent = ReAct("text -> done: bool", [send], native=True)

        def forward(self, topic: str) -> Prediction:
            tops.append(1)
            text = self.draft(topic=topic).text
            return Prediction(text=text, done=self.agent(text=text).done)

    model = lm(
        fields(text="hello"),
        native_step("s", "send", {"text": "hello"}),
        native_step("e", "finish", {"done": True}),
    )
    with context(lm=model):
        with pytest.raises(ConfirmationRequired) as raised:
            call(Sends(), driver, topic="t")
        run = raised.value.run
        assert sent == []
        run.answer(run.pending[0].approve())
        run = asyncio.run(run.aresume()) if driver == "async" else run.resume()
    assert run.prediction == Prediction(text="hello", done=True)
    assert sent == ["hello"]
    assert len(tops) == 2
    assert len(model.requests) == 3


def test_a_plain_program_that_does_something_else_on_resume_is_found_out() -> None:
    topics = ["one"]

    class Drifts(Module):
        def __init__(self) -> None:
            self.draft = Predict("topic -> text")

        def forward(self) -> Prediction:
            self.draft(topic=topics[0])
            if topics[0] == "one":
                raise RuntimeError("crash")
            return Prediction()

    with context(lm=lm(fields(text="a"), fields(text="b"))):
        run = Drifts().start()
        topics[0] = "two"
        run.resume()
    assert isinstance(run.error, ReplayMismatchError)


def test_children_with_equal_inputs_one_after_another_are_told_apart() -> None:
    """Architecture: keyed by program, inputs and occurrence."""

    class Twice(Module):
        def __init__(self) -> None:
            self.draft = Predict("topic -> text")

        def forward(self) -> Prediction:
            return Prediction(both=[self.draft(topic="t").text, self.draft(topic="t").text])

    with context(lm=lm(fields(text="a"), fields(text="b"))):
        run = Twice().start()
    assert run.prediction.both == ["a", "b"]
    assert len({entry.slot for entry in run.journal.entries}) == 2


class Gathers(Module):
    def __init__(self, gather: Any) -> None:
        self.draft = Predict("topic -> text")
        self._gather = gather

    async def aforward(self, topics: list[str]) -> Prediction:
        found = await self._gather(*(self.draft.acall(topic=topic) for topic in topics))
        return Prediction(texts=[each.text for each in found])


def last_word(request: Any) -> str:
    return fields(text=request.messages[-1].text.split("topic ## ]]")[1].split()[0])


def test_branches_of_different_inputs_may_run_at_once() -> None:
    """Architecture: children are keyed by their inputs."""
    with context(lm=ScriptedLM(by=last_word)):
        assert asyncio.run(Gathers(asyncio.gather).acall(topics=["a", "b"])).texts == ["a", "b"]


def test_indistinguishable_children_at_once_fail_closed_with_what_to_do() -> None:
    """Architecture: a bare `asyncio.gather` over them cannot be replayed."""

    class Slow(BaseLM):
        def complete(self, request: Any) -> Response:
            return Response(last_word(request))

    with context(lm=Slow()), pytest.raises(RunError, match=r"ferrule\.gather"):
        asyncio.run(Gathers(asyncio.gather).acall(topics=["a", "a"]))
    with context(lm=Slow()):
        assert asyncio.run(Gathers(gather).acall(topics=["a", "a"])).texts == ["a", "a"]


def test_a_branch_of_a_gather_may_return_an_error_as_its_value() -> None:
    """Only an error that a branch raises ends the `gather`: one that it returns is its result, as
    in `asyncio.gather`.
    """

    class Workers(Module):
        def __init__(self) -> None:
            self.work = Predict("task -> answer")

        async def attempt(self, task: str) -> Any:
            try:
                return (await self.work.acall(task=task)).answer
            except UnavailableError as error:
                return error

        async def aforward(self, tasks: list[str]) -> Prediction:
            return Prediction(found=await gather(*(self.attempt(task) for task in tasks)))

    def answer(request: Request) -> Any:
        return (
            UnavailableError("down")
            if "bad" in request.messages[-1].text
            else {"outputs": {"answer": "A"}}
        )

    with context(lm=ScriptedLM(by=answer)):
        first, second, third = Workers()(tasks=["good", "bad", "fine"]).found
    assert (first, type(second), third) == ("A", UnavailableError, "A")
    assert isinstance(
        asyncio.run(gather(asyncio.sleep(0, KeyError("a value")), asyncio.sleep(0)))[0],
        KeyError,
    )


def test_branches_of_a_gather_wait_together_and_resume_each_at_its_place() -> None:
    """Architecture: `ferrule.gather(...)` gives branches explicit ids."""
    done: list[str] = []

    @tool(require_confirmation=True)
    def pay(name: str) -> str:
        """Pay."""
        done.append(name)
        return "paid"

    class Pays(Module):
        def __init__(self) -> None:
            self.agent = ReAct("name -> ok: bool", [pay], native=True)

        async def aforward(self) -> Prediction:
            found = await gather(*(self.agent.acall(name=name) for name in ("ann", "bob", "ann")))
            return Prediction(ok=[each.ok for each in found])

    def answer(request: Any) -> Any:
        name = request.messages[1].text
        return (
            native_step("e", "finish", {"ok": True})
            if request.messages[-1].role == "tool"
            else native_step("p", "pay", {"name": name})
        )

    with context(lm=ScriptedLM(by=answer)):
        run = asyncio.run(Pays().astart())
        assert [question.call.args["name"] for question in run.pending] == ["ann", "bob", "ann"]
        for question in run.pending:
            run.answer(question.approve())
        assert asyncio.run(run.aresume()).prediction.ok == [True, True, True]
    assert sorted(done) == ["ann", "ann", "bob"]


def test_programs_called_by_tools_are_runs_of_their_own_and_tell_the_same_observers() -> None:
    """Parent ids."""
    told: list[events.Event] = []
    inner = Predict("word -> upper")

    def shout(word: str) -> str:
        """Shout."""
        return inner(word=word).upper

    model = lm(
        native_step("s", "shout", {"word": "a"}),
        fields(upper="A"),
        native_step("e", "finish", {"answer": "A"}),
    )
    with context(lm=model, callbacks=[told.append]):
        ReAct("question -> answer", [shout], native=True)(question="q")
    started = [event for event in told if isinstance(event, events.RunStarted)]
    called = next(event for event in told if isinstance(event, events.CallStarted))
    assert started[0].parent_id == ""
    assert started[1].parent_id == called.call.id
    assert started[0].run_id != started[1].run_id


def test_calling_a_program_inside_a_running_loop_works() -> None:
    """Architecture: a notebook; with an async tool as well."""

    async def fetch(n: int) -> int:
        """Fetch."""
        await asyncio.sleep(0)
        return n

    async def main() -> Prediction:
        return ReAct("question -> answer: int", [fetch], native=True)(question="q")

    with context(
        lm=lm(native_step("f", "fetch", {"n": 1}), native_step("e", "finish", {"answer": 1})),
    ):
        assert asyncio.run(main()).answer == 1


def test_settings_are_read_once_when_the_program_is_called() -> None:
    """Architecture station 1: what changes meanwhile does not change the run."""
    import ferrule

    first, second = (
        lm(native_step("s", "swap", {}), native_step("e", "finish", {"answer": "first"})),
        lm(),
    )
    swap = Tool(lambda: ferrule.configure(lm=second), "swap", "Swap.")
    ferrule.configure(lm=first)
    try:
        assert ReAct("question -> answer", [swap], native=True)(question="q").answer == "first"
    finally:
        ferrule.configure(lm=None)


class Deep(Module):
    def __init__(self) -> None:
        self.parts = [Predict("a -> b"), {"x": Predict("c -> d")}]
        self.pipeline = Pipeline()
        self.again = self.pipeline.draft


def test_a_program_has_a_name_of_its_own_in_events_stores_and_copies() -> None:
    seen: list[Any] = []
    agent = ReAct("question -> answer", [], name="support", lm=AutoLM())
    store = MemoryStore()
    with context(callbacks=[seen.append]):
        agent.start(question="?", store=store)
    assert repr(agent) == "support('question -> answer')"
    assert (agent.name, agent.deepcopy().name, store.list()[0].program) == (
        "support",
        "support",
        "support",
    )
    assert [event.program.name for event in seen if isinstance(event, events.RunStarted)] == [
        "support",
    ]
    assert (Predict("a -> b", name="p-1").name, ChainOfThought("a -> b", name="think").name) == (
        "p-1",
        "think",
    )
    assert (
        Predict("a -> b").name,
        ChainOfThought("a -> b").name,
        ReAct("a -> b", [], name=None).name,
    ) == (
        "Predict",
        "ChainOfThought",
        "ReAct",
    )


def test_an_attribute_of_a_subclass_is_not_the_name_of_the_program() -> None:
    class Clerk(Module):
        signature = Signature("question -> answer")

        def __init__(self, person: str) -> None:
            self._name = person

        def forward(self, question: str) -> Prediction:
            return Prediction(answer=f"{self._name}: {question}")

    assert Clerk("Ada / Bob").name == "Clerk"
    assert Clerk("Ada / Bob").as_tool().name == "clerk"


def test_a_class_may_name_its_programs_and_the_option_names_one_of_them() -> None:
    """The attribute hid the option in events and stores, and the option hid it as a tool."""

    class Support(ReAct):
        name = "support"

    class Clerk(Module):
        signature = Signature("question -> answer")

        def __init__(self, name: str) -> None:
            self.name = name

    for made, name in (
        (Support("a -> b", []), "support"),
        (Support("a -> b", [], name="night"), "night"),
        (Clerk("ada"), "ada"),
    ):
        assert (made.name, made.deepcopy().name, made.as_tool().name) == (name, name, name)
    assert (ReAct.name, Support.name, Clerk.name) == ("ReAct", "support", "Clerk")
    with pytest.raises(
        ConfigurationError,
        match=r"The name of a program is a word .*; found Predict",
    ):
        Clerk(Predict("text -> name"))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a#0", "1a", 3])
@pytest.mark.parametrize(
    "make",
    [Predict, ChainOfThought, lambda signature, **name: ReAct(signature, [], **name)],
    ids=["predict", "cot", "react"],
)
def test_a_programs_name_is_a_word(make: Any, name: Any) -> None:
    with pytest.raises(
        ConfigurationError,
        match="The name of a program is a word of letters, digits, `_` and `-`; found",
    ):
        make("a -> b", name=name)


def test_named_predictors_finds_each_once_by_its_path() -> None:
    names = [name for name, _ in Deep().named_predictors()]
    assert names == ["parts[0]", "parts[1]['x']", "pipeline.draft", "pipeline.judge.predict"]
    assert [name for name, _ in ReAct("q -> a", []).named_predictors()] == [
        "react",
        "extract.predict",
    ]
    assert [name for name, _ in Predict("q -> a").named_predictors()] == ["self"]


def test_set_lm_reaches_every_predictor_and_get_lm_refuses_to_choose() -> None:
    """Issue 2: `set_lm`/`get_lm`."""
    deep, model = Deep(), lm()
    deep.set_lm(model)
    assert deep.get_lm() is model
    deep.pipeline.draft.lm = lm()
    with pytest.raises(ConfigurationError, match="2 different models"):
        deep.get_lm()


@pytest.mark.parametrize(
    "make",
    [Predict, ChainOfThought, lambda signature: ReAct(signature, [])],
    ids=["Predict", "ChainOfThought", "ReAct"],
)
def test_every_program_of_a_signature_has_an_lm_that_can_be_set(make) -> None:
    """Setting it on an agent was without effect."""
    program, model = make("question -> answer"), lm()
    assert program.lm is None
    program.lm = model
    assert program.get_lm() is model is program.lm


@pytest.mark.parametrize(
    "make",
    [Predict, ChainOfThought, lambda signature: ReAct(signature, [])],
    ids=["predict", "cot", "react"],
)
def test_demos_set_on_a_program_are_those_of_its_predictor(make: Any) -> None:
    """As with `lm`; on an agent and a ChainOfThought they were an attribute that nothing read."""
    program = make("question -> answer")
    program.demos = [{"question": "shown", "answer": "b"}]
    answer = (
        {"name": "finish", "args": {"answer": "a"}}
        if isinstance(program, ReAct)
        else "[[ ## reasoning ## ]]\nr\n[[ ## answer ## ]]\na"
    )
    model = ScriptedLM([answer])
    assert program(question="q", lm=model).answer == "a"
    assert "shown" in str([message.text for message in model.requests[0].messages])
    [predictor] = [each for _, each in program.named_predictors() if each.demos]
    assert predictor.demos == program.demos == program.deepcopy().demos


@pytest.mark.parametrize("make", [Predict, ChainOfThought], ids=["predict", "cot"])
def test_a_signature_set_on_a_program_is_that_of_its_predictor(make: Any) -> None:
    """As with `demos`: on a ChainOfThought it was an attribute that nothing read."""
    program = make("question -> answer")
    program.signature = program.signature.with_instructions("Be brief.").append(
        "score",
        OutputField(),
        int,
    )
    assert [*program.signature.plan.outputs] == ["answer", "score"]
    model = ScriptedLM(["[[ ## reasoning ## ]]\nr\n[[ ## answer ## ]]\na\n[[ ## score ## ]]\n7"])
    assert program(question="q", lm=model).score == 7
    assert "Be brief." in model.requests[0].messages[0].text
    again = make("question -> answer, score: int")
    again.load_state(program.dump_state())
    [(_, predictor)] = again.named_predictors()
    assert predictor.signature.instructions == "Be brief."


@pytest.mark.parametrize("native", [True, False])
def test_a_signature_set_on_an_agent_is_that_of_its_loop_and_of_its_last_answer(
    *,
    native: bool,
) -> None:
    """It could not be set, and the one of its loop alone left the last answer as it was."""
    agent = ReAct("question -> answer", [], native=native)
    agent.signature = agent.signature.with_instructions("Be brief.").append(
        "score",
        OutputField(),
        int,
    )
    in_text = [
        fields(next_thought="t", next_tool_name="finish", next_tool_args="{}"),
        fields(reasoning="r", answer="a", score=7),
    ]
    model = ScriptedLM(
        [{"name": "finish", "args": {"answer": "a", "score": 7}}] if native else in_text,
    )
    assert agent(question="q", lm=model).score == 7
    assert all("Be brief." in request.messages[0].text for request in model.requests)
    with pytest.raises(SignatureError):
        agent.signature = "trajectory -> answer"
    assert [*agent.signature.plan.outputs] == ["answer", "score"]


class Small(Signature):
    """Count."""

    question: str = InputField()
    count: int = OutputField()

    @field_validator("count")
    @classmethod
    def is_small(cls, count: int) -> int:
        """Refuse what is large."""
        if count > 10:
            raise ValueError("too large")
        return count


@pytest.mark.parametrize("kind", ["predict", "cot", "react"])
def test_the_validators_of_a_signature_that_is_set_later_are_called(kind: str) -> None:
    """The program looked for them only when it was made."""
    agent = ReAct("question -> count: int", [])
    program: Any = (
        {"predict": Predict, "cot": ChainOfThought}[kind]("question -> count: int")
        if kind != "react"
        else agent
    )
    (agent.react if kind == "react" else program).signature = Small
    answers = [{"name": "finish", "args": {"count": count}} for count in (50, 5)]
    texts = [f"[[ ## reasoning ## ]]\nr\n[[ ## count ## ]]\n{count}" for count in (50, 5)]
    assert program(question="q", lm=ScriptedLM(answers if kind == "react" else texts)).count == 5


def test_a_signature_set_on_a_chain_of_thought_keeps_the_description_of_its_reasoning() -> None:
    program = ChainOfThought("question -> answer", reasoning_description="Doubts first.")
    program.signature = "question -> verdict"
    assert program.predict.signature.plan.outputs["reasoning"].description == "Doubts first."
    with pytest.raises(SignatureError, match="has an input of that name"):
        program.signature = "reasoning -> answer"
    assert [*program.signature.plan.outputs] == ["verdict"]


def test_deepcopy_shares_models_and_tools_and_copies_the_rest() -> None:
    program = Predict(
        "question -> answer",
        tools=[Tool(len, "size", "Size.")],
        demos=[{"question": "a", "answer": "b"}],
    )
    program.lm = lm()
    other = program.deepcopy()
    other.demos.append({"question": "c", "answer": "d"})
    assert len(program.demos) == 1
    assert other.lm is program.lm
    assert other.tools["size"] is program.tools["size"]


class Guarded(Module):
    """Holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = {"n": 1}
        self.guards = {"lock": threading.Lock(), "shared": self.shared}
        self.seen: list[Any] = [self.shared]
        self.answer = Predict("question -> answer")
        self.inner: Guarded | None = None

    def forward(self, question: str) -> Any:
        return self.answer(question=question)


def test_deepcopy_shares_an_attribute_that_cannot_be_copied_and_copies_the_others() -> None:
    program = Guarded()
    program.inner = Guarded()
    other = program.deepcopy()
    for one, two in ((program, other), (program.inner, other.inner)):
        assert two is not None
        assert two is not one
        assert two.guards is one.guards
        assert two.seen == one.seen
        assert two.seen[0] is two.shared is not one.shared
        assert two.answer is not one.answer


class Refusing:
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("this must not be copied")


class Holder:
    """A plain object of a user."""

    def __init__(self, value: Any) -> None:
        self.value = value


def test_deepcopy_copies_plain_objects_beside_predictors() -> None:
    """The first copy left the id of a dict that was gone, and the dict of such an object got it:
    `TypeError`.
    """
    program = Guarded()
    first, second = Holder([1]), Holder([2])
    vars(program).update({"first": first, "second": second, "both": [first, second]})
    other: Any = program.deepcopy()
    assert (other.first.value, other.second.value) == ([1], [2])
    assert other.first is other.both[0] is not first
    assert other.second is other.both[1]


def test_deepcopy_raises_what_an_attribute_raises_itself() -> None:
    program = Guarded()
    program.seen.append(Refusing())
    with pytest.raises(TypeError, match="this must not be copied"):
        program.deepcopy()


def test_batch_keeps_the_order_and_runs_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Issue 2: `batch`/`abatch`."""
    together = threading.Barrier(4)

    def answer(request: Any) -> str:
        together.wait(timeout=60)
        return fields(text=request.messages[-1].text.split("number ")[1].split()[0])

    program = Predict("topic -> text")
    inputs = [{"topic": f"number {n}"} for n in range(8)]
    with context(lm=ScriptedLM(by=answer)):
        assert [each.text for each in program.batch(inputs, max_concurrency=4)] == [
            str(n) for n in range(8)
        ]
    with context(
        lm=ScriptedLM(
            by=lambda request: fields(
                text=request.messages[-1].text.split("number ")[1].split()[0]
            ),
        ),
    ):
        assert [each.text for each in asyncio.run(program.abatch(inputs))] == [
            str(n) for n in range(8)
        ]
    assert capsys.readouterr().err == ""
    assert program.batch([]) == []


def test_batch_raises_the_first_error_or_puts_errors_in_their_places() -> None:
    """Issue 2: `return_exceptions`."""

    def answer(request: Any) -> str:
        if "bad" in request.messages[-1].text:
            raise ValueError("bad one")
        return fields(text="ok")

    program, inputs = Predict("topic -> text"), [{"topic": "good"}, {"topic": "bad"}]
    for run in (
        lambda **keywords: program.batch(inputs, **keywords),
        lambda **keywords: asyncio.run(program.abatch(inputs, **keywords)),
    ):
        with context(lm=ScriptedLM(by=answer)):
            with pytest.raises(ValueError, match="bad one"):
                run()
            good, bad = run(return_exceptions=True)
        assert good.text == "ok"
        assert isinstance(bad, ValueError)
    with pytest.raises(ValueError, match="max_concurrency"):
        program.batch(inputs, max_concurrency=0)


def test_start_takes_inputs_named_like_its_keywords_through_bind() -> None:
    """api.md: `program.bind(**inputs).start(...)`."""
    with context(lm=lm(fields(answer="a"), fields(answer="b"))):
        run = Predict("run_id -> answer").bind(run_id="input").start(run_id="mine")
        assert (run.id, run.prediction.answer) == ("mine", "a")
        assert asyncio.run(Predict("q -> answer").astart(q="x")).prediction.answer == "b"


def test_a_prediction_of_a_run_that_failed_raises_its_error() -> None:
    with context(lm=lm(ValueError("odd"))):
        run = Predict("q -> answer").start(q="x")
    assert run.status == "failed"
    with pytest.raises(ValueError, match="odd"):
        _ = run.prediction
    with context(lm=lm(fields(answer="a"))), pytest.raises(RunError, match="done"):
        Predict("q -> answer").start(q="x").resume()


def test_a_program_with_an_aforward_alone_is_called_from_sync_code_too() -> None:
    class Only(Module):
        async def aforward(self, q: str) -> Prediction:
            await asyncio.sleep(0)
            return Prediction(answer=q)

    assert Only()(q="x").answer == "x"
    assert Only().start(q="y").prediction.answer == "y"


def test_batch_goes_by_the_setting_where_it_is_not_told() -> None:
    """`max_workers`."""
    inside, most, lock = [0], [0], threading.Lock()

    def answer(request: Any) -> str:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        threading.Event().wait(0.005)
        with lock:
            inside[0] -= 1
        return fields(text="x")

    with context(lm=ScriptedLM(by=answer), max_workers=1):
        Predict("topic -> text").batch([{"topic": str(n)} for n in range(4)])
    assert most[0] == 1


@pytest.mark.parametrize("empty", ["", 0, False], ids=["text", "zero", "false"])
def test_an_empty_model_is_refused_and_not_passed_over(empty: Any) -> None:
    with (
        context(lm=lm(fields(text="a"))),
        pytest.raises(ConfigurationError, match=r"has a method|is an object"),
    ):
        Predict("topic -> text")(topic="t", lm=empty)


@pytest.mark.parametrize("make", [Predict, ChainOfThought, ReAct])
def test_the_tools_of_a_program_cannot_be_changed_in_place(make: Any) -> None:
    """A dict that was made anew at each access took the change, and the program did not have it."""
    program = make("question -> answer", tools=[Tool(len, "size", "Size.")])
    with pytest.raises(TypeError, match="does not support item assignment"):
        program.tools["other"] = Tool(len, "other", "Other.")
    assert "size" in program.tools


# -- wrong inputs


DOORS: dict[str, Callable[..., Any]] = {
    "call": lambda program, kept, **inputs: program(**inputs),
    "acall": lambda program, kept, **inputs: asyncio.run(program.acall(**inputs)),
    "start": lambda program, kept, **inputs: program.start(**inputs, **kept),
    "astart": lambda program, kept, **inputs: asyncio.run(program.astart(**inputs, **kept)),
    "stream": lambda program, kept, **inputs: program.stream(**inputs, **kept),
    "submit": lambda program, kept, **inputs: program.submit(**inputs, **kept),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", [Predict, ChainOfThought, ReAct])
def test_wrong_inputs_are_refused_before_a_run_exists(kind: Any, door: str) -> None:
    """A run with wrong inputs was stored as failed, and its id was taken."""
    store = MemoryStore()
    program = kind("question -> answer", tools=[])
    kept: dict[str, Any] = {"store": store, "run_id": "r"}
    with context(lm=ScriptedLM([])), pytest.raises(InputError, match="qestion"):
        DOORS[door](program, kept, qestion="x")
    assert store.list() == []
    program.submit(question="x", **kept)


def test_wrong_inputs_of_an_item_take_no_id_of_a_batch() -> None:
    store = MemoryStore()
    predict = Predict("question -> answer")
    items: list[Any] = [{"qestion": "x"}]
    with context(lm=ScriptedLM([])), pytest.raises(InputError, match="qestion"):
        predict.batch(items, store=store, batch_id="b")
    assert store.list() == []


def test_a_check_before_the_run_makes_no_default_and_reads_no_iterator() -> None:
    """They would be made and read a second time by the run, which would find nothing."""
    made: list[int] = []

    class Count(Signature):
        """Count."""

        words: list[str] = InputField()
        number: int = InputField(default_factory=lambda: made.append(1) or len(made))
        answer: str = OutputField()

    lm = ScriptedLM([{"outputs": {"answer": "two"}}])
    run = Predict(Count).start(words=(word for word in ("a", "b")), lm=lm)
    assert (run.status, made) == ("done", [1])
    assert '["a","b"]' in lm.requests[0].messages[-1].text
