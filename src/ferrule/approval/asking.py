"""How a question about a call is made: its text, and the digest of the tool that it is about."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ferrule.approval.question import Question, QuestionKind, Subject
from ferrule.approval.rulings import lossy_repairs
from ferrule.encoding.encode import digest_of, json_text, jsonable
from ferrule.schema.nodes import is_list, is_object
from ferrule.values.calls.secrets import STARS, masked_thought

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.approval.policy import Rule
    from ferrule.values.calls.call import CheckedCall, ToolCall, ToolSpec


def subject_of(checked: CheckedCall) -> Subject:
    """What the question whether a checked call may run is about."""
    call = checked.call.changed(args=checked.arguments.shown)
    if checked.misfit:  # no definition of the tool is shown: the call no longer fits it
        return Subject.of("migration", call)
    return Subject.of("confirm", call, tool_fingerprint(checked.tool, call.args))


def question_about(
    checked: CheckedCall, *, thought: str = "", expires_s: float | None = None, note: str = ""
) -> Question:
    """The question whether a checked call may run.

    It shows the validated arguments, because these run; `raw` has them as the model wrote them.

    Args:
        checked: The call.
        thought: The model's thought when it made the call.
        expires_s: Seconds after which the unanswered question counts as denied.
        note: Text before the question: what a person must know besides the call.

    """
    call, tool = checked.call, checked.tool
    args, secrets = checked.arguments.shown, checked.arguments.secrets
    secret_names = (*secrets, *getattr(tool, "secret_arguments", ()))  # also their aliases
    declared = tool.declaration["function"]
    kind: QuestionKind = "confirm"
    note += origin_note(call)
    fingerprint = server = original = ""
    if checked.misfit:
        # It never expires, and no definition of the tool is shown: the call no longer fits it.
        kind, expires_s = "migration", None
        text = misfit_text(checked, began=False)
    else:
        server, original = mcp_origin(tool)
        note += getattr(tool.func, "note", "")
        text = confirmation_text(call.name, args, server, original)
        fingerprint = tool_fingerprint(tool, args)
    return Question(
        kind,
        note + text,
        call.changed(args=args),
        fingerprint=fingerprint,
        thought=masked_thought(thought, call, {call.name: secret_names}),
        raw=_raw_arguments(call, args, secrets),
        expires_s=expires_s,
        server=server,
        original=original,
        schema=declared["parameters"],
        effect=tool.effect,
        description=declared.get("description") or "",
        note=note,
    )


def loss_note(checked: CheckedCall) -> str:
    """Text that warns of repairs that may have dropped a part of the call; empty if none has."""
    lost = lossy_repairs(checked)
    if not lost:
        return ""
    repairs = ", ".join(sorted(lost))
    return f"A part of what the model wrote was dropped to read this call ({repairs}).\n"


def reason_note(ruling: Rule | None) -> str:
    """Text that says why a rule asks; empty if it gives no reason."""
    if ruling is None or not ruling.reason:
        return ""
    return f"A rule asks about this call: {ruling.reason}\n"


def origin_note(call: ToolCall) -> str:
    """Text that says that a call was read from text, and how sure the model is, where it says."""
    note = ""
    if call.is_rescued:
        note = (
            "The model wrote this call as text, not as a structured call: the text may repeat what "
            "the model has read.\n"
        )
    if call.confidence is not None:
        note += f"The model's confidence in this call is {call.confidence:.2f} of 1.\n"
    return note


def confirmation_text(
    name: str, args: Mapping[str, Any], server: str = "", original: str = ""
) -> str:
    """The text of a confirmation, in udspy's words.

    For an MCP server's tool, it names the server and the tool's name there: the name that the
    model uses may have a prefix.
    """
    origin = ""
    if server:
        origin = f" ({original!r} of the MCP server {server!r})"
    return f"Confirm execution of {name}{origin} with args: {json_text(dict(args))}? (yes/no)"


def misfit_text(checked: CheckedCall, *, began: bool) -> str:
    """The text of a `migration` question: the call no longer fits the program."""
    call = f"{checked.call.name} with args: {json_text(checked.arguments.shown)}"
    if began:
        state = f"{call} may have run: it began, but no result was recorded"
    else:
        state = f"{call} was waiting to run"
    return (
        f"{state}. The program has changed since. {checked.misfit} "
        "A reply is taken for its result; a denial leaves it."
    )


def tool_fingerprint(tool: ToolSpec, args: Mapping[str, Any] | None = None) -> str:
    """A digest of a tool's definition: name, description, schema and effect.

    For an MCP server's tool, also its title, its annotations and the schema of its results. A
    decision applies to the definition that was shown: a tool that changed asks again.

    With the arguments of a call, also the state of what the call uses, if the tool's function has a
    `state` (the files of a skill).
    """
    content: list[Any] = [tool.declaration, tool.effect]
    state = getattr(tool.func, "state", None)
    if args is not None and callable(state):
        content.append(state(args))
    definition = getattr(tool, "mcp", None)
    if definition is not None:
        content.append(definition.pinned)
    return digest_of(content, 20)


def mcp_origin(tool: Any) -> tuple[str, str]:
    """The MCP server of a tool, and the tool's name there; two empty strings for a local tool."""
    definition = getattr(tool, "mcp", None)
    if definition is None:
        return "", ""
    return getattr(tool, "mcp_server", None) or "?", definition.name


def _raw_arguments(
    call: ToolCall, shown: Mapping[str, Any], secrets: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments as the model wrote them, without secrets in the clear.

    A secret may also be in an argument that has another name than the parameter: an alias, or a key
    around all arguments. So a call with secrets shows of what the model wrote only what the checked
    arguments show at the same place.
    """
    raw: dict[str, Any] = {}
    for name, value in call.args.items():
        # Code that calls a program may pass any value, not only JSON.
        raw[name] = jsonable(value)
        if secrets and (name in secrets or name not in shown):
            raw[name] = _as_shown(raw[name], shown.get(name))
    return raw


def _as_shown(given: Any, shown: Any) -> Any:
    """A given value, with stars for what is not shown."""
    if is_object(given):
        seen = shown if is_object(shown) else {}
        return {name: _as_shown(value, seen.get(name)) for name, value in given.items()}
    if is_list(given):
        items = shown if is_list(shown) else []
        return [_as_shown(*pair) for pair in zip_longest(given, items[: len(given)])]
    if json_text(given) == json_text(shown):
        return given
    return STARS
