"""Typed outputs: the answer is read, checked against the types, and asked for again where it does not fit."""

from typing import Literal

from pydantic import BaseModel

from ferrule import InputField, OutputField, Predict, ScriptedLM, Signature, context


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
        # "cheerful" is none of the three tones: the model is told so, and mends its answer.
        '[[ ## lines ## ]]\n[{"item": "rope", "quantity": 2}]\n\n[[ ## tone ## ]]\ncheerful\n\n[[ ## completed ## ]]',
        '[[ ## lines ## ]]\n[{"item": "rope", "quantity": 2}]\n\n[[ ## tone ## ]]\nfriendly\n\n[[ ## completed ## ]]',
    ]
)
with context(lm=lm):
    order = Predict(ReadOrder)(message="Two ropes for me, please, and have a lovely day!")

print(order.lines, order.tone)

assert order.lines == [Line(item="rope", quantity=2)]
assert order.tone == "friendly"
lm.assert_done()
