"""Typed outputs: the answer is parsed and validated; if it does not fit, the model corrects it."""

from typing import Literal

from pydantic import BaseModel

from ferrule import InputField, OutputField, Predict, Signature, context
from ferrule.testing import ScriptedLM


class Line(BaseModel):
    """One line of an order."""

    item: str
    quantity: int


class ReadOrder(Signature):
    """Read what a customer orders."""

    message: str = InputField(desc="The customer's words.")
    lines: list[Line] = OutputField()
    tone: Literal["friendly", "neutral", "angry"] = OutputField()


lm = ScriptedLM(
    [
        # "cheerful" is not one of the three tones: ferrule returns the problem, and the model corrects its answer.
        '[[ ## lines ## ]]\n[{"item": "rope", "quantity": 2}]\n\n[[ ## tone ## ]]\ncheerful\n\n[[ ## completed ## ]]',
        '[[ ## lines ## ]]\n[{"item": "rope", "quantity": 2}]\n\n[[ ## tone ## ]]\nfriendly\n\n[[ ## completed ## ]]',
    ],
)
with context(lm=lm):
    order = Predict(ReadOrder)(message="Two ropes for me, please, and have a lovely day!")

print(order.lines, order.tone)

assert order.lines == [Line(item="rope", quantity=2)]
assert order.tone == "friendly"
lm.assert_done()
