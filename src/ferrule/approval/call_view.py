"""What a person is shown of a call before they decide: one description for every view.

The page, the terminal and JSON show `CallView`, which `view_call` makes of a question. It has
each argument that will run, in the order of the call and in full. Two different values never have
the same type and text (`exact`), so what a person reads is what the tool receives. Where that
cannot hold, because a value is too long or has no text, `not_shown` says why, and no view offers
to approve the call.

A value is masked only if its Python type is secret (`SecretStr`): then ferrule has it as stars. The
schema of a tool never masks one, because a server could hide any argument with it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from ferrule.encoding.encode import is_masked
from ferrule.encoding.safe_text import exact, one_line
from ferrule.encoding.stored import parse_json
from ferrule.errors import DecisionError
from ferrule.schema.nodes import is_object, members

if TYPE_CHECKING:
    from ferrule.approval.question import Question

MOST_CHARACTERS = 200_000
"""The most characters of all arguments of a call that a person can be expected to read."""
EFFECTS = {
    "read": "only reads, and changes nothing",
    "idempotent": "changes something; repeating the call changes nothing more",
    "transactional": "changes a database; is undone if the call is interrupted",
    "once": "has an effect that cannot be undone, so the call is never repeated automatically",
}
"""What a call of a tool changes, by its declared `effect`."""
LONG = 200
"""A text of more characters has its length next to it."""
_MOST_DESCRIBED = 2_000
_MOST_WRITTEN = 500
_FLOAT_LIMIT = 2**53
"""Below it, each whole number is one float."""

ValueType = Literal["text", "number", "true or false", "null", "list", "object"]


class ArgumentView(Struct, frozen=True, kw_only=True):
    """One argument as a person reads it."""

    name: str
    type: ValueType
    text: str
    """The value: a text as it is, anything else as JSON; see `exact`."""
    length: int
    """Characters of the text."""
    is_secret: bool = False
    """The tool receives the secret that the stars stand for."""
    written: str | None = None
    """What the model wrote, if it means something else; shortened."""
    is_default: bool = False
    """The model left the argument out, and the tool's default runs."""
    default: str | None = None
    """The default of an argument that has another value."""


class CallView(Struct, frozen=True, kw_only=True):
    """A call as a person reads it."""

    tool: str
    server: str = ""
    """The MCP server of the tool."""
    original: str = ""
    """The tool's name on that server."""
    description: str = ""
    effect: str = ""
    """What the call changes, in words."""
    arguments: tuple[ArgumentView, ...] = ()
    dropped: tuple[ArgumentView, ...] = ()
    """What the model wrote, and the tool does not receive."""
    not_shown: tuple[str, ...] = ()
    """Why a part of the call cannot be shown. The call must not be approved then."""

    def lines(self) -> list[str]:
        """The call as plain text."""
        title = self.tool
        if self.server:
            title += f" ({self.original} of the MCP server {self.server})"
        lines = [title]
        if self.description:
            prefix = ""
            if self.server:
                prefix = "the server says: "
            lines.append(f"  {prefix}{one_line(self.description)}")
        if self.effect:
            lines.append(f"  {self.effect}")
        for argument in self.arguments:
            lines += _argument_lines(argument)
        if not self.arguments and not self.not_shown:
            lines.append("  no arguments")
        for argument in self.dropped:
            text = f"{argument.name}: {argument.text}"
            lines.append(f"  not passed on, though the model wrote it: {text}")
        lines += [f"  NOT SHOWN: {reason}" for reason in self.not_shown]
        # A terminal shows a tab as blanks.
        return [line.replace("\t", "\\u0009") for line in lines]


def view_call(question: Question) -> CallView:
    """The call of a question as a person reads it."""
    call = question.call
    not_shown: list[str] = []
    arguments: list[ArgumentView] = []
    characters_left = MOST_CHARACTERS
    for name, value in call.args.items():
        argument = _argument(name, value, question)
        if isinstance(argument, str):
            not_shown.append(argument)
            continue
        characters_left -= len(argument.name) + len(argument.text)
        if characters_left < 0:
            not_shown.append(
                f"{argument.name!r} has {argument.length:,} characters: "
                f"more than {MOST_CHARACTERS:,} of a call are not shown."
            )
            continue
        arguments.append(argument)
    return CallView(
        tool=one_line_exact(call.name),
        server=one_line_exact(question.server),
        original=one_line_exact(question.original),
        description=exact(question.description[:_MOST_DESCRIBED]),
        effect=EFFECTS.get(question.effect, question.effect),
        arguments=tuple(arguments),
        dropped=_dropped(question),
        not_shown=tuple(not_shown),
    )


def refuse_unseen(question: Question) -> None:
    """Raise `DecisionError` if a part of the call cannot be shown, before it is approved."""
    if question.kind not in {"confirm", "unknown", "migration"}:
        return
    not_shown = view_call(question).not_shown
    if not_shown:
        raise DecisionError(
            f"This call cannot be approved, because a part of it is not shown: {not_shown[0]} "
            "Deny it, or decide in a program that reads the arguments."
        )


def one_line_exact(text: str) -> str:
    """As `exact`, on one line: for a name."""
    return exact(text).replace("\n", "\\u000a").replace("\t", "\\u0009")


def value_text(value: Any) -> str:
    """A value as a person reads it: a text as it is, anything else as JSON.

    Raises `ValueError` or `RecursionError` for a value without a text.
    """
    if isinstance(value, str):
        return exact(value)
    # A backslash in JSON is doubled already.
    text = json.dumps(whole_number(value), ensure_ascii=False, indent=2)
    return exact(text, is_json=True)


def means(written: Any, value: Any) -> bool:
    """Whether what a model wrote means this value.

    They differ in form at most, as `"29.90"` and `29.9` do.
    """
    if not isinstance(written, str) or isinstance(value, str):
        return is_same(written, value)
    text = written.strip()
    if isinstance(value, bool):
        text = text.lower()
    try:
        return is_same(parse_json(text), value)
    except (ValueError, RecursionError):
        return False


def is_same(value: Any, other: Any) -> bool:
    """Whether two values are equal as JSON: `1` is not `true`."""
    text = json.dumps(whole_number(value), sort_keys=True)
    return text == json.dumps(whole_number(other), sort_keys=True)


def whole_number(value: Any) -> Any:
    """A number without `.0`; any other value unchanged."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _FLOAT_LIMIT:
        return int(value)
    return value


def _argument(name: str, value: Any, question: Question) -> ArgumentView | str:
    """An argument; for one that cannot be shown, the reason."""
    shown_name = one_line_exact(name)
    try:
        text = value_text(value)
    except (ValueError, TypeError, RecursionError) as error:
        return f"{shown_name!r} has no text: {error}"
    length = len(text)
    if isinstance(value, str):
        length = len(value)  # without the escapes that are shown
    raw = question.raw
    is_default = raw is not None and name not in raw
    schema: Any = members(dict(question.schema or {}), "properties").get(name)
    default_value: Any = None
    if is_object(schema):
        default_value = schema.get("default")
    default: str | None = None
    if default_value is not None and not is_same(default_value, value):
        default = shortened(default_value)
    written: str | None = None
    if raw is not None and name in raw and not means(raw[name], value):
        written = shortened(raw[name])
    return ArgumentView(
        name=shown_name,
        type=_type_of(value),
        text=text,
        length=length,
        # The tool of a server gets plain JSON, in which stars are only text.
        is_secret=not question.server and is_masked(value),
        written=written,
        is_default=is_default,
        default=default,
    )


def _dropped(question: Question) -> tuple[ArgumentView, ...]:
    """What the model wrote, and the tool does not receive."""
    raw = question.raw or {}
    return tuple(
        ArgumentView(
            name=one_line_exact(name),
            type=_type_of(value),
            text=shortened(value),
            length=len(shortened(value)),
        )
        for name, value in raw.items()
        if name not in question.call.args
    )


def shortened(value: Any) -> str:
    """What a model or a schema has, as one line of JSON."""
    try:
        text = json.dumps(whole_number(value), ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        return "a value without a text"
    if len(text) > _MOST_WRITTEN:
        text = f"{text[:_MOST_WRITTEN]}…"
    return exact(text, is_json=True)


def _type_of(value: Any) -> ValueType:
    match value:
        case str():
            return "text"
        case bool():
            return "true or false"
        case None:
            return "null"
        case list() | tuple():
            return "list"
        case dict():
            return "object"
        case _:
            return "number"


def _argument_lines(argument: ArgumentView) -> list[str]:
    label = f"  {argument.name} ({_facts(argument)}):"
    if "\n" not in argument.text:
        return [f"{label} {argument.text}"]
    return [label, *[f"    | {line}" for line in argument.text.split("\n")]]


def _facts(argument: ArgumentView) -> str:
    """The type of a value, and how it differs from the model's words and the default."""
    facts: list[str] = [argument.type]
    if argument.is_secret:
        facts = ["secret"]
    if argument.length > LONG:
        facts.append(f"{argument.length:,} characters")
    if argument.is_default:
        facts.append("the default: the model left it out")
    if argument.written is not None:
        facts.append(f"the model wrote {argument.written}")
    if argument.default is not None:
        facts.append(f"default {argument.default}")
    return ", ".join(facts)
