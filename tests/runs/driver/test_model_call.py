"""One model call, made live: what is no answer, and what a call that failed leaves behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from agent_script import fields

from ferrule import BaseLM, Capabilities, Predict, Request, Response, events, inspect_history
from ferrule.errors import BadRequestError, ConfigurationError, UnavailableError
from ferrule.testing import RecordLM, ScriptedLM
from ferrule.values.conversation.exchange import Delta, Usage, exchanges


class Odd(BaseLM):
    """Answers with whatever it is told to, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def complete(self, request: Request) -> Any:
        """The answer, whatever it is."""
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class OddStream(Odd):
    """Streams whatever it is told to."""

    def stream(self, request: Request) -> Iterator[Any]:
        """The answer as the only piece."""
        yield self.complete(request)

    async def astream(self, request: Request) -> AsyncIterator[Any]:
        """The answer as the only piece."""
        yield self.complete(request)


def streamed(program: Predict, **inputs: Any) -> Any:
    return list(program.stream(**inputs))


def astreamed(program: Predict, **inputs: Any) -> Any:
    async def main() -> list[Any]:
        return [event async for event in program.stream(**inputs)]

    return asyncio.run(main())


WAYS: dict[str, Callable[..., Any]] = {
    "sync": lambda program, **inputs: program(**inputs),
    "async": lambda program, **inputs: asyncio.run(program.acall(**inputs)),
    "streamed": streamed,
    "streamed_async": astreamed,
}
ways = pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS.keys())


@ways
@pytest.mark.parametrize("kind", [Odd, OddStream])
@pytest.mark.parametrize(
    "answer",
    ["[[ ## a ## ]]\nx", None, {"text": "x"}, Response(5), Response(b"x")],
    ids=repr,
)  # pyright: ignore[reportArgumentType]  as users do
def test_a_model_that_answers_with_no_response_is_named_and_told_what_to_return(
    ask: Callable[..., Any],
    kind: type[Odd],
    answer: Any,
) -> None:
    """It was a raw `AttributeError`."""
    with pytest.raises(
        ConfigurationError,
        match=rf"`{kind.__name__}` answered with .*return a `Response`",
    ):
        ask(Predict("q -> a"), q="hi", lm=kind(answer))


@pytest.mark.parametrize("ask", [WAYS["sync"], WAYS["async"]], ids=["sync", "async"])
def test_the_models_class_is_named_through_what_the_house_puts_around_it(
    ask: Callable[..., Any],
    tmp_path: Any,
) -> None:
    with pytest.raises(ConfigurationError, match="`Odd` answered with 'x'"):
        ask(Predict("q -> a"), q="hi", lm=RecordLM(Odd("x"), tmp_path / "kept.jsonl"))


@ways
def test_a_subclass_of_response_is_a_response(ask: Callable[..., Any]) -> None:
    class Timed(Response):
        pass

    said = fields(a="x")
    ask(Predict("q -> a"), q="hi", lm=Odd(Timed(said)))
    assert exchanges[-1][2] == Timed(said, usage=Usage(calls=1))


@ways
def test_a_call_that_failed_is_in_the_history_with_its_error(
    ask: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The history left it out."""
    with pytest.raises(UnavailableError):
        ask(Predict("q -> a"), q="what was asked", lm=Odd(UnavailableError("the line is cut")))
    inspect_history()
    shown = capsys.readouterr().out
    assert "=== Odd" in shown
    assert "what was asked" in shown
    assert "--- failed\nUnavailableError: the line is cut\n" in shown
    assert "--- answer" not in shown


def test_a_failure_that_a_later_call_mends_stands_before_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(UnavailableError):
        Predict("q -> a")(q="hi", lm=Odd(UnavailableError("the line is cut")))
    Predict("q -> a")(q="hi", lm=ScriptedLM([fields(a="mended")], capabilities=Capabilities()))
    inspect_history(2)
    shown = capsys.readouterr().out
    assert 0 < shown.index("the line is cut") < shown.index("mended")


def test_an_observer_is_told_of_an_answer_that_is_none_as_a_failure() -> None:
    """It was told of the thing as of an answer."""
    told: list[events.Event] = []
    stream = Predict("q -> a").stream(q="hi", lm=Odd("x"))
    with pytest.raises(ConfigurationError):
        told.extend(stream)
    ended = [event for event in told if isinstance(event, events.ModelAnswered)]
    assert [(event.response, type(event.error)) for event in ended] == [(None, ConfigurationError)]


def test_the_history_keeps_no_frames_of_a_failure_alive() -> None:
    """An error holds its traceback."""

    class Large:
        pass

    class Failing(BaseLM):
        def complete(self, request: Request) -> Response:
            raise UnavailableError("no")

    def fails() -> weakref.ref[Large]:
        large = Large()
        with pytest.raises(UnavailableError):
            Predict("q -> a")(q="hi", lm=Failing())
        return weakref.ref(large)

    found = fails()
    gc.collect()
    assert found() is None


@pytest.mark.parametrize("ask", [streamed, astreamed], ids=["streamed", "streamed_async"])
def test_a_stream_that_ends_without_a_response_is_a_fault_of_the_model(
    ask: Callable[..., Any],
) -> None:
    """The error says what a model's `stream` must yield."""
    program = Predict("question -> answer")
    program.set_lm(OddStream(Delta("par")))
    with pytest.raises(BadRequestError, match="without a whole response"):
        ask(program, question="q")
