"""What is tried with each foreign client, and what must come of it."""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING, Any, Protocol

from served import PIXEL

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = {
    "order",
    "fail",
    "delete",
    "count",
    "wait",
    "was_cancelled",
    "picture",
    "look_up",
    "pages",
    "wise",
}
ADDRESS = {"street": "12 St James's Square", "city": "London"}
_CANCELLED_WITHIN_S = 10


class Driver(Protocol):
    """One connection of a client."""

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """Have it do something: `list`, `call`, `cancel`, `changed`. Raises `CaseError` where it raised."""
        ...


class CaseError(Exception):
    """What went wrong, in one line."""


def want(is_met: Any, what: str, found: Any) -> None:
    """Raise unless a condition is met."""
    if not is_met:
        raise CaseError(f"{what}; found {str(found)[:300]}")


def call(driver: Driver, name: str, **args: Any) -> dict[str, Any]:
    """A call that succeeds."""
    found = driver.ask("call", name=name, args=args)
    want(not found["error"], f"`{name}` succeeds", found)
    return found


def failed(driver: Driver, name: str, *words: str, **args: Any) -> None:
    """A call that fails, with a text that has these words."""
    found = driver.ask("call", name=name, args=args)
    want(
        found["error"] and all(each in found["text"] for each in words),
        f"`{name}` fails with {', '.join(words)}",
        found,
    )


def lists(driver: Driver) -> None:
    """All tools, with their schemas."""
    tools = driver.ask("list")["tools"]
    want(set(tools) == NAMES, "all tools are listed", sorted(tools))
    want("city" in json.dumps(tools["order"]), "the schema has its nested models", tools["order"])


def nested(driver: Driver) -> None:
    """A model in a model."""
    customer = {"name": "Ada", "address": ADDRESS, "tags": ["vip", "new"]}
    found = call(driver, "order", customer=customer, count=3)
    want("3 for Ada in London: vip, new" in found["text"], "the models arrive", found)


def wrong(driver: Driver) -> None:
    """Arguments that do not fit."""
    failed(driver, "order", "city", customer={"name": "Ada", "address": {"street": "x"}}, count=3)


def error(driver: Driver) -> None:
    """An exception of the tool."""
    failed(driver, "fail", "there is no order 17", number=17)


def confirmed(driver: Driver) -> None:
    """The person says yes."""
    want(
        "Emma is gone" in call(driver, "delete", title="Emma")["text"],
        "the tool runs",
        "another text",
    )


def unconfirmed(driver: Driver) -> None:
    """The client cannot ask anybody."""
    failed(driver, "delete", "this client cannot ask", title="Emma")


def progress(driver: Driver) -> None:
    """Three steps."""
    found = call(driver, "count", to=3)
    want(
        [float(each) for each in found["progress"]] == [1, 2, 3],
        "three steps are reported",
        found,
    )


def cancel(driver: Driver) -> None:
    """A call that is given up."""
    key = uuid.uuid4().hex
    driver.ask("cancel", name="wait", args={"key": key})
    ends = time.monotonic() + _CANCELLED_WITHIN_S
    while time.monotonic() < ends:
        if "true" in call(driver, "was_cancelled", key=key)["text"].lower():
            return
        time.sleep(0.2)
    raise CaseError("the tool was not cancelled")


def picture(driver: Driver) -> None:
    """A picture."""
    found = call(driver, "picture")
    want(found["images"] == [PIXEL], "the picture arrives", found)


def structured(driver: Driver) -> None:
    """An object, and a plain number."""
    found = call(driver, "look_up", title="Emma")
    want(found["structured"] == {"title": "Emma", "pages": 474}, "the object arrives", found)
    found = call(driver, "pages", title="Emma")
    want(found["structured"] in ({"result": 400}, 400), "the number arrives", found)


def program(driver: Driver) -> None:
    """An agent as a tool."""
    want(
        "Forty-two" in json.dumps(call(driver, "wise", question="What is six times seven?")),
        "the program answers",
        "another text",
    )


def changes(driver: Driver) -> None:
    """A tool that is added while a client is connected."""
    name = call(driver, "grow")["text"]
    driver.ask("changed")
    tools = driver.ask("list")["tools"]
    want(
        any(each in name for each in tools if each != "grow"),
        "the new tool is listed",
        sorted(tools),
    )


CASES: dict[str, tuple[Callable[[Driver], None], dict[str, bool]]] = {
    "list": (lists, {}),
    "nested call": (nested, {}),
    "wrong arguments": (wrong, {}),
    "error": (error, {}),
    "confirmation, asked": (confirmed, {}),
    "confirmation, cannot ask": (unconfirmed, {"elicit": False}),
    "progress": (progress, {}),
    "cancel": (cancel, {}),
    "picture": (picture, {}),
    "structured result": (structured, {}),
    "program": (program, {}),
    "list change": (changes, {"growing": True}),
}
"""By title: what is done, and over which connection (`elicit`: the client answers questions; `growing`: the server whose list grows)."""
