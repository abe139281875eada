"""Runs of every kind in one store: what the tests of the page show, and what the screenshots are
made of.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, SecretStr

from ferrule import (
    Image,
    MemoryStore,
    ReAct,
    Response,
    RunError,
    SQLiteStore,
    ToolCall,
    Usage,
    context,
    tool,
)
from ferrule.testing import ScriptedLM

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Address(BaseModel):
    """Where a parcel goes."""

    street: str
    city: str
    zip: str | None = None


class Line(BaseModel):
    sku: str
    count: int = Field(ge=1)


@tool
def look_up_order(order: str) -> str:
    """Look an order up."""
    if order == "A-0000":
        raise LookupError("There is no order A-0000 in the shop. Ask the customer for its number.")
    return f"Order {order}: 2 kettles, paid 59.80 euros on 3 November, delivered on 6 November."


@tool(effect="once", require_confirmation=True)
def refund(
    order: str,
    euros: Annotated[float, Field(ge=0, le=500, description="How much is paid back.")],
    reason: str | None = None,
    notify: bool = True,
) -> str:
    """Pay money back to the customer."""
    return f"Refunded {euros:.2f} euros for {order}."


@tool(effect="once", require_confirmation=True)
def send_parcel(
    address: Address,
    lines: list[Line],
    carrier: Literal["post", "courier", "bike"] = "post",
    labels: Annotated[list[str], Field(description="Printed on the parcel.")] = [],
    pin: SecretStr | None = None,
    note: str = "",
) -> str:
    """Send a parcel."""
    return "sent"


@tool
def photo(order: str) -> Image:
    """A photo of the order."""
    return Image(data=PNG)


def answer(
    text: str = "",
    *calls: ToolCall,
    thought: str = "",
    tokens: tuple[int, int] = (1240, 86),
) -> Response:
    return Response(
        text,
        calls,
        thought or None,
        usage=Usage(*tokens, calls=1),
        model="gpt-5-mini",
        cost=0.0012,
    )


def call(name: str, **args: Any) -> ToolCall:
    return ToolCall(name=name, args=args)


def finish(text: str) -> Response:
    return answer("", call("finish", answer=text))


TOOLS = [look_up_order, refund, send_parcel, photo]


def support() -> ReAct:
    return ReAct("message -> answer", TOOLS, enable_user_clarification=True)


def start(store: SQLiteStore, run_id: str, message: str, *answers: Any, program: Any = None) -> Any:
    with context(lm=ScriptedLM(answers)):
        return (program or support()).start(message=message, store=store, run_id=run_id)


REFUND = answer(
    "The kettle arrived broken, so the price of one is paid back.", call("refund", order="A-1042", euros="29.90", reason="arrived broken"),
    thought="The customer wants money for one of two kettles: half of 59.80.",
)  # fmt: skip


def fill(store: SQLiteStore) -> SQLiteStore:
    """One run of each kind."""
    start(
        store, "order-1001", "Where is my parcel?", answer("", call("look_up_order", order="A-1001"), thought="I look at the order first."),
        answer("", call("photo", order="A-1001")), finish("It was delivered on 6 November."),
    )  # fmt: skip
    start(
        store,
        "order-1017",
        "My order A-0000 is late.",
        answer("", call("look_up_order", order="A-0000")),
        RunError("The model's budget is used up."),
    )
    inner = ReAct(
        "question -> answer",
        [look_up_order],
        lm=ScriptedLM(
            [answer("", call("look_up_order", order="A-1020")), finish("Paid, delivered.")],
        ),
    )
    start(
        store, "order-1020", "Is everything fine with A-1020?", answer("", call("ask_shop", question="What about A-1020?")), finish("Yes, all fine."),
        program=ReAct("message -> answer", [inner.as_tool(name="ask_shop", description="Ask the shop.")]),
    )  # fmt: skip
    start(
        store,
        "order-1031",
        "Which of my orders?",
        answer(
            "",
            call("user_clarification", question="Which order do you mean: A-1031 or A-1032?"),
        ),
    )
    parcel = {
        "address": {"street": "Oudegracht 12", "city": "Utrecht", "zip": None}, "lines": [{"sku": "KETTLE-2", "count": 1}],
        "labels": ["fragile", "this side up"], "carrier": "courier",
    }  # fmt: skip
    start(
        store,
        "order-1040",
        "Please send me a new kettle.",
        answer("", call("send_parcel", **parcel), thought="A new one goes out by courier."),
    )
    start(
        store,
        "order-1042",
        "One of the kettles came broken.",
        answer("", call("look_up_order", order="A-1042")),
        REFUND,
    )
    done = start(store, "order-1009", "The kettle leaks.", REFUND, finish("I paid back 25 euros."))
    done.answer(done.pending[0].approve(euros=25.0).signed("ann", "web"))
    with context(lm=ScriptedLM([finish("I paid back 25 euros.")])):
        done.resume()
    cancelled = start(store, "order-1003", "Refund me.", REFUND)
    store.cancel(cancelled.id)
    return store


def filled() -> MemoryStore:
    store = MemoryStore()
    fill(store)
    return store
