"""Asking for fields: repairs of what a model did wrong, requests of a user's adapter, and what
observers are told.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from agent_script import fields

from ferrule import (
    AdapterParseError,
    ChatAdapter,
    History,
    InputField,
    JSONAdapter,
    MemoryStore,
    OutputField,
    Predict,
    Request,
    Response,
    Run,
    Signature,
    Tool,
    ToolCall,
    ToolCalls,
    ToolRetry,
    XMLAdapter,
    context,
    events,
)  # fmt: skip
from ferrule.errors import BadRequestError, BoundaryError, ToolCallError
from ferrule.programs.asking.asker import calls_of_native
from ferrule.testing import ScriptedLM
from ferrule.values.signatures.compiled import InvalidOutputsError


def add(a: int, b: int) -> int:
    """Add two integers."""
    raise AssertionError  # nothing here ever runs a tool (E55)


class Ask(Signature):
    """Answer."""

    question: str = InputField()
    tools: list[Tool] = InputField()
    calls: ToolCalls = OutputField()
    answer: str = OutputField()


BAD = Response(None, (ToolCall.read({"id": "x", "name": "add", "arguments": '{"a": 1, secret'}),))
GOOD = Response(None, (ToolCall(name="add", args={"a": 1, "b": 2}, id="y"),))
CALLS = ToolCalls(tool_calls=[ToolCall(name="add", args={"a": 1, "b": 2})])


def asked(
    lm: ScriptedLM,
    *,
    native: bool | None = True,
    adapter: Any = None,
    **keywords: Any,
) -> Any:
    with context(adapter=adapter or ChatAdapter(fallback=None)):
        return Predict(Ask, native=native, **keywords)(question="q", tools=[add], lm=lm)


def test_a_bad_native_call_goes_back_to_the_model_with_its_error() -> None:
    """The repair names tool and problem, shows what was written, and makes no message that no
    provider would take.
    """
    with ScriptedLM([BAD, GOOD]) as lm:
        prediction = asked(lm)
    assert (prediction.calls, prediction.answer) == (CALLS, None)
    said, told = lm.requests[1].messages[-2:]
    assert (said.role, said.tool_calls, told.role) == ("assistant", (), "user")
    assert "add '{\"a\": 1, secret'" in said.text
    for part in (
        "`calls`",
        "call 0: the arguments of `add` are not valid JSON",
        "Make all your calls again.",
    ):
        assert part in told.text
    assert "[[ ## calls ## ]]" not in told.text  # E49
    assert lm.requests[1].tools == lm.requests[0].tools


def test_a_bad_call_in_text_is_repaired_as_well() -> None:
    bad = fields(calls={"tool_calls": [{"args": {"a": 1}}]}, answer="x")
    good = fields(calls={"tool_calls": [{"name": "add", "args": {"a": 1, "b": 2}}]})
    with ScriptedLM([bad, good]) as lm:
        assert asked(lm, native=False).calls == CALLS
    assert "call 0: A tool call needs a name" in lm.requests[1].messages[-1].text
    assert "[[ ## calls ## ]]" in lm.requests[1].messages[-1].text


def test_repairs_are_bounded_and_none_means_none() -> None:
    """What is left is the tagged error."""
    for repairs in (0, 1, 2):
        with ScriptedLM([BAD] * (1 + repairs)) as lm, pytest.raises(AdapterParseError) as raised:
            asked(lm, adapter=ChatAdapter(repairs=repairs, fallback=None))
        assert raised.value.code == "invalid_tool_call_arguments"
        assert raised.value.raw == '{"a": 1, secret'
        assert "`add`" in str(raised.value)


@pytest.mark.parametrize(
    "adapter",
    [JSONAdapter(repairs=2), ChatAdapter(repairs=2, fallback=None), ChatAdapter(repairs=1)],
)
def test_the_error_is_that_of_the_last_answer_and_its_cause_that_of_the_first(adapter: Any) -> None:
    """Without a fallback it was that of the first."""
    answers = [{"outputs": {"n": each}} for each in ("first", "second", "third")]
    with context(adapter=adapter), pytest.raises(AdapterParseError, match="third") as raised:
        Predict("q -> n: int")(q="?", lm=ScriptedLM(answers))
    assert isinstance(raised.value.__cause__, AdapterParseError)
    assert "first" in raised.value.__cause__.text


def test_the_first_error_keeps_its_own_cause_if_the_answer_begins_as_the_fallback_writes() -> None:
    program = Predict("q -> a: int", lm=ScriptedLM(['{"a": 1}\n[[ ## a ## ]]\n1', "?"]))

    @program.output_validator
    def never(answer: Any) -> None:
        raise ToolRetry("never")

    with context(adapter=ChatAdapter(repairs=0)), pytest.raises(AdapterParseError) as raised:
        program(q="?")
    first = raised.value.__cause__
    assert isinstance(first, AdapterParseError)
    assert isinstance(first.__cause__, InvalidOutputsError)


@pytest.mark.parametrize(
    "adapter",
    [ChatAdapter(), XMLAdapter(), ChatAdapter(repairs=0)],
    ids=["chat", "xml", "no repair"],
)
def test_an_answer_to_the_fallback_that_keeps_the_first_form_is_read(adapter: Any) -> None:
    """A model that goes on in the form of its earlier answers was told at the end that everything
    is missing.
    """
    written = [
        adapter.format_assistant_message_content(Signature("q -> n, m"), {"n": n, "m": "x"})
        for n in ("many", "many", "7")
    ]
    with context(adapter=adapter):
        program = Predict("q -> n: int, m")
        assert program(q="?", lm=ScriptedLM(written[1 - adapter.repairs :])).n == 7
        with pytest.raises(AdapterParseError, match="n: should be a valid integer") as raised:
            program(q="?", lm=ScriptedLM(written[:1] * 3))
    assert (raised.value.adapter, raised.value.absent, raised.value.parsed) == (
        type(adapter).__name__,
        frozenset(),
        {"m": "x"},
    )


def test_missing_outputs_are_tagged() -> None:
    """The field is named."""
    lm = ScriptedLM([fields(calls="[]")])
    with pytest.raises(AdapterParseError, match="answer: is missing") as raised:
        asked(lm, native=False, adapter=ChatAdapter(repairs=0, fallback=None))
    assert (raised.value.code, raised.value.absent) == ("missing_required_outputs", {"answer"})
    lm = ScriptedLM([fields(n="x")])
    with (
        context(adapter=ChatAdapter(repairs=0, fallback=None)),
        pytest.raises(BoundaryError) as other,
    ):
        Predict("q -> n: int")(q="q", lm=lm)
    assert (other.value.code, other.value.raw) == ("invalid_outputs", fields(n="x"))


def whole(program: Any, lm: Any) -> Any:
    return program(question="q", lm=lm)


def in_task(program: Any, lm: Any) -> Any:
    return asyncio.run(program.acall(question="q", lm=lm))


def streamed(program: Any, lm: Any) -> Any:
    with program.stream(question="q", lm=lm) as stream:
        list(stream)
    return stream.prediction


def stored(program: Any, lm: Any) -> Any:
    store = MemoryStore()
    with context(lm=lm):
        run = program.start(store=store, question="q")
        return Run.load(store, run.id, program).prediction


@pytest.mark.parametrize("way", [whole, in_task, streamed, stored], ids=lambda way: way.__name__)
@pytest.mark.parametrize("native", [True, False], ids=["native", "text"])
@pytest.mark.parametrize(
    ("outputs", "answer", "expected", "has_list"),
    [
        ("note", fields(note="hi"), {"note": "hi"}, False),
        ("note", fields(note="hi", calls="[]"), {"note": "hi"}, True),
        ("n: int", fields(n="3"), {"n": 3}, False),
        ("n: int", fields(n="3", calls="[]"), {"n": 3}, True),
        ("n: int", '{"n": 3}', {"n": 3}, False),
        ("n: int", '{"n": 3, "calls": []}', {"n": 3}, True),
        ("note, n: int", fields(note="hi", n="3"), {"note": "hi", "n": 3}, False),
        ("", fields(calls="[]"), {}, True),
        ("", '{"calls": []}', {}, False),  # without the adapter's markers: any text
    ],
)
@pytest.mark.parametrize(
    ("kind", "no_calls"), [("ToolCalls", ToolCalls(tool_calls=[])), ("ToolCalls | None", None)]
)
def test_an_answer_without_calls_is_accepted(
    way: Any,
    native: bool,
    outputs: str,
    answer: str,
    expected: Any,
    has_list: bool,
    kind: str,
    no_calls: Any,
) -> None:
    """The output for calls is empty, or None where its type allows that; nothing is asked again.

    A list that the answer has is a list for both.
    """
    if has_list:
        no_calls = ToolCalls(tool_calls=[])
    names = ", ".join(part for part in (outputs, f"calls: {kind}") if part)
    program = Predict(f"question -> {names}", tools=[add], native=native)
    with ScriptedLM([answer]) as lm:
        prediction = way(program, lm)
    assert dict(prediction.outputs) == {**expected, "calls": no_calls}


@pytest.mark.parametrize("way", [whole, in_task, streamed, stored], ids=lambda way: way.__name__)
def test_a_native_answer_in_plain_text_has_no_calls(way: Any) -> None:
    program = Predict("question -> note, calls: ToolCalls", tools=[add], native=True)
    with ScriptedLM(["Hello."]) as lm:
        prediction = way(program, lm)
    assert (prediction.note, prediction.calls) == ("Hello.", ToolCalls(tool_calls=[]))


@pytest.mark.parametrize("native", [True, False], ids=["native", "text"])
def test_a_conversation_goes_on_after_an_answer_without_calls(native: bool) -> None:
    program = Predict(
        "history: History, question -> note, calls: ToolCalls", tools=[add], native=native
    )
    with ScriptedLM([fields(note="hi")] * 2) as lm:
        first = program(history=History(), question="q", lm=lm)
        second = program(history=first.history, question="r", lm=lm)
    assert second.calls == ToolCalls(tool_calls=[])
    roles = [message.role for message in lm.requests[1].messages]
    assert roles == ["system", "user", "assistant", "user"]
    assert not lm.requests[1].messages[2].tool_calls


def test_errors_are_the_same_in_sync_async_and_stream() -> None:
    program = Predict(Ask, native=True)
    found = []
    with context(adapter=ChatAdapter(repairs=0, fallback=None)):
        for call in (
            lambda lm: program(question="q", tools=[add], lm=lm),
            lambda lm: asyncio.run(program.acall(question="q", tools=[add], lm=lm)),
            lambda lm: list(program.stream(question="q", tools=[add], lm=lm)),
        ):
            with pytest.raises(AdapterParseError) as raised:
                call(ScriptedLM([BAD]))
            found.append(
                (type(raised.value), raised.value.code, raised.value.raw, str(raised.value)),
            )
    assert len(set(found)) == 1


# -- requests


def test_tool_choice_and_parallel_calls_pass_through() -> None:
    lm = ScriptedLM([GOOD] * 4)
    for choice in ("auto", "required", "add", {"type": "function", "function": {"name": "add"}}):
        asked(lm, tool_choice=choice, parallel_tool_calls=False, temperature=0)
    assert [request.tool_choice for request in lm.requests][1:] == [
        "required",
        "add",
        {"type": "function", "function": {"name": "add"}},
    ]
    assert {request.parallel for request in lm.requests} == {False}
    assert dict(lm.requests[0].settings) == {"temperature": 0}


@pytest.mark.parametrize(
    "config",
    [{"tool_choice": "nosuch"}, {"tool_choice": 5}, {"tools": [{}]}, {"messages": []}],
    ids=range(4),
)
def test_a_request_that_makes_no_sense_is_tagged_and_not_sent(config: dict[str, Any]) -> None:
    """Tools never come with the options."""
    lm = ScriptedLM([])
    with pytest.raises(ToolCallError) as raised:
        Predict(Ask, native=True)(question="q", tools=[add], lm=lm, config=config)
    assert raised.value.code == "invalid_request"
    assert lm.requests == []


class Odd(ChatAdapter):
    """A user's adapter that makes requests itself."""

    __slots__ = ()
    gives: Any = None

    def request(self, *args: Any, **keywords: Any) -> Any:
        del args, keywords
        return type(self).gives


def test_what_a_users_adapter_gives_is_a_request_a_body_or_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Predict("question -> answer")
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}
    monkeypatch.setattr(Odd, "gives", body)
    lm = ScriptedLM([fields(answer="a")])
    with context(adapter=Odd()):
        assert program(question="q", lm=lm).answer == "a"
        assert isinstance(lm.requests[0], Request)
        for wrong in (None, 5, "text", [], {}, {"messages": []}, {"messages": [5]}):
            monkeypatch.setattr(Odd, "gives", wrong)
            with pytest.raises(ToolCallError) as raised:
                program(question="q", lm=ScriptedLM([]))
            assert (raised.value.code, raised.value.raw) == ("invalid_request", wrong)


# -- native or text


def test_native_or_text_goes_by_override_then_adapter_then_capability() -> None:
    """Off for a `ChatAdapter` somebody chose, on for JSON, by capability where nobody chose an
    adapter.
    """
    text = fields(calls={"tool_calls": [{"name": "add", "args": {"a": 1, "b": 2}}]})
    as_json = json.dumps(
        {"calls": {"tool_calls": [{"name": "add", "args": {"a": 1, "b": 2}}]}, "answer": None},
    )
    program = Predict(Ask)
    cases: list[tuple[Any, bool | None, bool, Any]] = [
        (None, None, True, GOOD),
        (ChatAdapter(), None, False, text),
        (ChatAdapter(), True, True, GOOD),
        (ChatAdapter(use_native_function_calling=True), None, True, GOOD),
        (JSONAdapter(), None, True, GOOD),
        (JSONAdapter(use_native_function_calling=False), None, False, as_json),
        (JSONAdapter(), False, False, as_json),
        (XMLAdapter(), None, False, '<calls>[{"name": "add", "args": {"a": 1, "b": 2}}]</calls>'),
    ]
    for adapter, native, is_native, answer in cases:
        lm = ScriptedLM([answer])
        program.calls = calls_of_native(native)
        with context(adapter=adapter):
            prediction = program(question="q", tools=[add], lm=lm)
        prompt = "".join(message.text for message in lm.requests[0].messages)
        assert (prediction.calls, prediction.answer) == (CALLS, None)  # E66
        assert (len(lm.requests[0].tools) == 1) is is_native
        assert ("Add two integers." in prompt) is not is_native  # E11
        assert ("calls" in prompt) is not is_native  # E49
        assert lm.requests[0].shape is None  # E50


def test_calls_in_a_form_nobody_asked_for_are_found_last() -> None:
    """The models' own dialects; the words beside them are kept (D38)."""
    lm = ScriptedLM(
        ['I add. <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'],
    )
    prediction = asked(lm, native=False)
    assert prediction.calls == CALLS
    assert prediction.answer == "I add."


# -- observers


class Watching:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, event: events.Event) -> None:
        self.seen.append(event)


ORDER = (
    events.Formatted,
    events.ModelCalled,
    events.ModelAnswered,
    events.ParseStarted,
    events.ParseFinished,
    events.AttemptFailed,
)


def watched(script: list[Any], **adapter: Any) -> list[Any]:
    watching = Watching()
    with context(callbacks=[watching], adapter=ChatAdapter(**adapter)):
        Predict(Ask, native=True)(question="q", tools=[add], lm=ScriptedLM(script))
    return [each for each in watching.seen if isinstance(each, ORDER)]


def test_observers_are_told_of_format_call_and_parse_in_order_on_every_path() -> None:
    """Order, an id for each request, attempts; the end of parsing is told whatever comes of it."""
    seen = watched([BAD, BAD, GOOD], repairs=1)
    one = list(ORDER)
    assert [type(each) for each in seen] == [*one, *one, *one[:-1]]
    assert [each.attempt for each in seen if not isinstance(each, events.ModelAnswered)] == [
        1,
    ] * 5 + [2] * 5 + [3] * 4
    formatted = [each for each in seen if isinstance(each, events.Formatted)]
    called = [each for each in seen if isinstance(each, events.ModelCalled)]
    finished = [each for each in seen if isinstance(each, events.ParseFinished)]
    assert (
        [each.request_id for each in formatted]
        == [each.request.digest for each in called]
        == [each.request_id for each in finished]
    )
    assert [each.error.code if each.error else None for each in finished] == [
        "invalid_tool_call_arguments",
    ] * 2 + [None]
    assert [each.adapter for each in finished] == ["ChatAdapter", "ChatAdapter", "JSONAdapter"]


def test_what_observers_are_told_of_it_is_counts_and_names() -> None:
    """How many tools, how many calls; neither prompts nor arguments, however long, nor what may be
    secret in them.
    """
    secret = "hunter2" * 10_000
    said = Response(secret, (ToolCall(name="add", args={"a": secret}, id="y"),))
    watching = Watching()
    with context(callbacks=[watching], adapter=ChatAdapter()):
        Predict(Ask, native=True)(question=secret, tools=[add], lm=ScriptedLM([said]))
    formatted, _, _, started, finished = (each for each in watching.seen if isinstance(each, ORDER))
    assert (formatted.tools, formatted.messages, started.calls, finished.calls) == (1, 2, 1, 1)
    assert finished.outputs == ("calls", "answer")
    told = repr((formatted, started, finished))
    assert "hunter2" not in told
    assert len(told) < 1_000


def test_an_error_that_is_nobodys_still_ends_the_parsing() -> None:
    """An adapter of a user that breaks."""

    class Broken(ChatAdapter):
        __slots__ = ()

        def read(self, *args: Any, **keywords: Any) -> Any:
            raise ZeroDivisionError

    watching = Watching()
    with context(callbacks=[watching], adapter=Broken()), pytest.raises(ZeroDivisionError):
        Predict("question -> answer")(question="q", lm=ScriptedLM(["x"]))
    [finished] = [each for each in watching.seen if isinstance(each, events.ParseFinished)]
    assert isinstance(finished.error, ZeroDivisionError)


def test_an_error_that_the_caller_is_handling_is_not_taken_for_one_of_the_answer() -> None:
    """A program that is called inside of an `except` block."""
    seen: list[Any] = []
    try:
        raise KeyError("the caller's own")
    except KeyError:
        seen = watched([BAD, GOOD], repairs=1)
    finished = [each.error for each in seen if isinstance(each, events.ParseFinished)]
    assert [type(error) for error in finished] == [AdapterParseError, type(None)]


def test_callbacks_in_dspys_form_are_told_too_and_change_nothing() -> None:
    """A failing callback changes nothing."""
    told: list[Any] = []

    class Callback:
        def on_adapter_format_end(self, *given: Any) -> None:
            told.append(("format", given[1]))

        def on_adapter_parse_start(self, *given: Any) -> None:
            told.append(("start", given[2]))

        def on_adapter_parse_end(self, *given: Any) -> None:
            told.append(("end", given[2]))
            raise RuntimeError

    with context(callbacks=[Callback()]), pytest.warns(RuntimeWarning, match="observer failed"):
        prediction = Predict("question -> answer")(
            question="q",
            lm=ScriptedLM([fields(answer="a")]),
        )
    assert prediction.answer == "a"
    assert told == [
        ("format", {"messages": 2, "tools": 0}),
        ("start", {"attempt": 1, "calls": 0}),
        ("end", None),
    ]


def test_a_model_that_refuses_tools_is_asked_in_text_once() -> None:
    """Where nobody insists."""

    class Refusing(ScriptedLM):
        def complete(self, request: Request) -> Response:
            if request.tools:
                raise BadRequestError("this model does not support tools")
            return super().complete(request)

    written = fields(calls=[{"name": "add", "args": {"a": 1, "b": 2}}])
    lm = Refusing([written])
    assert Predict(Ask)(question="q", tools=[add], lm=lm).calls == CALLS
    assert "Add two integers." in lm.requests[0].messages[-1].text
    with pytest.raises(BadRequestError, match="does not support tools"):
        Predict(Ask, native=True)(question="q", tools=[add], lm=Refusing([written]))
