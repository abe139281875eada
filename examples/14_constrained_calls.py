"""A model that picks tokens at random, constrained to its tools: every call is still valid."""

from random import Random
from typing import Literal

from ferrule import BaseLM, Capabilities, ReAct, Request, Response, tool
from ferrule.local import CallForm, Constraint
from ferrule.testing import byte_vocabulary, random_walk

called: list[tuple[int, str]] = []


@tool
def place(x: int, colour: Literal["red", "blue"], labels: list[str] | None = None) -> str:
    """Place a stone."""
    called.append((x, colour))
    return f"{colour} at {x}, with {len(labels or [])} labels"


class RandomLM(BaseLM):
    """Picks one of the allowed bytes at random, like a model without any training."""

    capabilities = Capabilities(constrained_calls=True)
    chance = Random(11)  # noqa: S311  no secret

    def complete(self, request: Request) -> Response:
        """Write one call of a declared tool."""
        constraint = Constraint.of_calls(
            byte_vocabulary(),
            request.tools,
            form=CallForm(intention=False),
        )
        written = random_walk(constraint, self.chance)
        print(written.text[:76])
        return Response(tool_calls=written.answer().calls)


agent = ReAct(
    "question -> answer: int, sure: bool",
    [place],
    max_iters=30,
)
prediction = agent(question="Where do the stones go?", lm=RandomLM())
results = [result for step in prediction.trajectory.steps for result in step.results]

print(prediction.answer, prediction.sure)

assert type(prediction.answer) is int
assert all(colour in {"red", "blue"} for _, colour in called)
assert not any(result.is_fault for result in results)
