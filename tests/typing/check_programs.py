"""What type checkers say of programs and runs. Checked by mypy; nothing here is executed."""

from __future__ import annotations

from typing import Any, assert_type

from ferrule import (
    BatchResults,
    ChainOfThought,
    Decision,
    InputField,
    Limits,
    Module,
    OutputField,
    Predict,
    Prediction,
    Question,
    ReAct,
    Run,
    Signature,
    Trajectory,
    Usage,
    tool,
)


class QA(Signature):
    """Answer."""

    question: str = InputField(desc="What is asked.")
    k: int = InputField(default=3, ge=1)
    answer: str = OutputField()
    scores: list[float] = OutputField(description="One each.")


@tool
def search(query: str) -> str:
    """Search."""
    return query


def plain(query: str) -> str:
    """Search."""
    return query


class Mine(Module):
    """A program of one's own."""

    def __init__(self) -> None:
        self.inner = Predict(QA, temperature=0.5)

    def forward(self, question: str) -> Prediction:
        """Ask."""
        return Prediction(answer=self.inner(question=question).answer)


def what_must_check() -> None:
    Predict(QA)
    ReAct(Signature("a, b: int -> c"), tools=())
    Predict(
        "question -> answer: int",
        tools=[search, plain],
        auto_execute_tools=False,
        max_turns=3,
        demos=[{"question": "q"}],
        temperature=0,
    )
    ChainOfThought(QA, temperature=0)
    agent = ReAct(
        QA,
        [search, plain],
        5,
        native=True,
        limits=Limits(same_error=2),
        enable_user_clarification=False,
    )
    typed = QA.model_construct(answer="a", scores=[1.0])
    assert_type(typed.answer, str)
    assert_type(typed.scores, list[float])
    run = agent.start(question="q")
    assert_type(run, Run[QA])
    assert_type(run.usage, Usage)
    assert_type(run.trajectory, Trajectory)
    assert_type(run.pending, tuple[Question, ...])
    for question in run.pending:
        assert_type(question.approve(path="x"), Decision)
        run.answer(question.deny("no"))
    prediction = Prediction(answer=1)
    assert_type(prediction.trajectory, Trajectory)
    assert_type(prediction.usage, Usage)
    assert_type(prediction.reason, str | None)
    assert_type(prediction.answer, Any)
    assert_type(Mine().deepcopy(), Mine)
    assert_type(Mine().batch([{"question": "q"}], 2, progress=False), BatchResults[Any])
    for event in agent.stream(question="q"):
        assert_type(event.run_id, str)


def what_must_not() -> None:
    Predict()  # type: ignore[call-arg]
    Predict(3)  # type: ignore[arg-type]
    Predict(QA, max_turns="3")  # type: ignore[arg-type]
    ReAct(QA)  # type: ignore[call-arg]
    ReAct(QA, [3])  # type: ignore[list-item]
    ReAct(QA, [search], limits=3)  # type: ignore[arg-type]
    Limits(3)  # type: ignore[call-arg]
    number: int = QA.model_construct().answer  # type: ignore[assignment]
    del number
    Mine().bind().start().answer("yes")  # type: ignore[arg-type]
