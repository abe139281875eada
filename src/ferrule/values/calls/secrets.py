"""Secrets in what a model wrote: arguments whose Python type is secret, as stars.

A store keeps a model's answer as the model wrote it, because a resumed run continues that
conversation. But people who look at the answer see stars: in events, traces, a printed journal, and
on the page. Which arguments are secret follows from the Python types of the tools, and a reader of
a store does not have them. So a request carries the names, and the entry of its answer keeps them.

An answer may hold a call as text, and thoughts may repeat a value. Both are masked as far as the
name of the argument, or the value of a structured call, tells. Text that only paraphrases a secret
cannot be told from other text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ferrule.encoding.pattern import pattern
from ferrule.schema.nodes import is_list, is_object
from ferrule.text_calls.drafts import CallFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ferrule.values.calls.call import ToolCall

Secrets = Mapping[str, Sequence[str]]
"""By the name of a tool, the names of its secret arguments."""
EVERY_OTHER = "*"
"""Among the names, for a tool whose further arguments (`**kwargs`) are secret."""
STARS = "**********"
_SHORTEST_VALUE = 4
"""Shorter values are not looked for in text: they occur by chance."""
_DEEPEST = 60
"""What is nested more deeply in the arguments is not looked at, and stars in every view."""
_QUOTED = pattern(r"""(\\*)(["'])(.*?)(?:(?<!\\)\1\2|\Z)""", re.DOTALL)
"""A quoted value, or the rest of one that was cut off. JSON inside JSON has backslashes before its
quotes, as many before the last as before the first."""
_BARE = pattern(r"[^\s,;)}\]<]+")
_OPENINGS = (
    r"""(?<![a-zA-Z0-9])(?:%s)\\*["']?\s*[:=]\s*""",
    r"""<(?:%s)>\s*""",
    r"""<parameter(?:=|\s+name=)["']?(?:%s)["']?\s*>\s*""",
    r"""<arg_key>\s*(?:%s)\s*</arg_key>\s*<arg_value>\s*""",
)
"""What comes before the value of an argument where a model writes a call as text."""


def masked_args(tool: str, args: Mapping[str, Any], secrets: Secrets) -> dict[str, Any]:
    """The arguments of a call, with stars for secrets."""
    names = _names_of(tool, secrets)
    if not names:
        return dict(args)
    return _masked(dict(args), names, secrets, 0)


def _masked(value: Any, names: set[str], secrets: Secrets, depth: int) -> Any:
    """A value with stars for what has the name of a secret.

    A model may write all arguments inside one (`{"arguments": {...}}`), also as JSON text.
    """
    if depth > _DEEPEST:
        return STARS
    if is_object(value):
        masked: dict[str, Any] = {}
        for name, inner in value.items():
            is_secret = _is_named(name, names)
            masked[name] = STARS if is_secret else _masked(inner, names, secrets, depth + 1)
        return masked
    if is_list(value):
        return [_masked(item, names, secrets, depth + 1) for item in value]
    if isinstance(value, str):
        return masked_text(value, secrets)
    return value


def masked_call(call: ToolCall, secrets: Secrets) -> ToolCall:
    """A call with stars for secrets, also where its arguments could not be parsed."""
    if not _names_of(call.name, secrets):
        return call
    fault = call.fault
    if fault is not None:
        reason, raw = masked_text(fault.reason, secrets), masked_text(fault.raw, secrets)
        fault = CallFault(fault.code, reason, raw, fault.index)
    return call.changed(args=masked_args(call.name, call.args, secrets), fault=fault)


def masked_thought(thought: str, call: ToolCall, secrets: Secrets) -> str:
    """The thought before a call, without the secrets in the call."""
    return without_secrets(thought, set(secret_values((call,), secrets)), secrets) or ""


def secret_values(calls: Iterable[ToolCall], secrets: Secrets) -> Iterator[str]:
    """The secrets in calls, as text that thoughts may repeat."""
    for call in calls:
        names = _names_of(call.name, secrets)
        if names:
            yield from _values_in(call.args, names, 0, is_secret=False)


def _values_in(value: Any, names: set[str], depth: int, *, is_secret: bool) -> Iterator[str]:
    """The long texts in a value, if it is secret; else in what has the name of a secret."""
    if depth > _DEEPEST:
        return
    if is_object(value):
        for name, inner in value.items():
            is_named = is_secret or _is_named(name, names)
            yield from _values_in(inner, names, depth + 1, is_secret=is_named)
    elif is_list(value):
        for item in value:
            yield from _values_in(item, names, depth + 1, is_secret=is_secret)
    elif is_secret and isinstance(value, str) and len(value) >= _SHORTEST_VALUE:
        yield value


def without_secrets(text: str | None, values: set[str], secrets: Secrets) -> str | None:
    """A text without these values, and without the secrets of calls in it."""
    if not text:
        return text
    for value in sorted(values, key=len, reverse=True):  # one may be a part of another
        text = text.replace(value, STARS)
    return masked_text(text, secrets)


def masked_text(text: str, secrets: Secrets) -> str:
    """A text that may hold calls, with stars for their secrets."""
    names = {name for names in secrets.values() for name in names} - {EVERY_OTHER}
    if not names or not text:
        return text
    choices = "|".join(map(_pattern_of, sorted(names)))
    opening = re.compile("|".join(_OPENINGS).replace("%s", choices), re.IGNORECASE)
    parts: list[str] = []
    end = 0
    for match in opening.finditer(text):
        if match.end() < end:
            continue  # inside a value that is masked already
        start, stop = _value_at(text, match.end(), is_tag=match[0].rstrip().endswith(">"))
        if start < stop:
            parts += [text[end:start], STARS]
            end = stop
    return "".join([*parts, text[end:]])


def _pattern_of(name: str) -> str:
    """A pattern for a name, as loosely spelled as a call may spell it."""
    letters = [letter for letter in name if letter.isalnum()]
    return "[_-]?".join(letters) or re.escape(name)


def _value_at(text: str, start: int, *, is_tag: bool) -> tuple[int, int]:
    """The span of the value that begins here, without its quotes. `is_tag`: it ends at a tag."""
    if is_tag:
        end = text.find("</", start)
        if end < 0:  # an answer that was cut off
            end = len(text)
        return start, end
    quoted = _QUOTED.match(text, start)
    if quoted is not None:
        return quoted.span(3)
    try:
        _, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        bare = _BARE.match(text, start)
        if bare is None:
            return start, start
        return bare.span()
    return start, end


def _names_of(tool: str, secrets: Secrets) -> set[str]:
    """The folded names of the secret arguments of a tool.

    A model may decorate the name of the tool, as in `functions.login:0`. Stars too many, where one
    name is a part of another, do no harm.
    """
    secret_names: set[str] = set()
    for tool_name, names in secrets.items():
        if tool_name in tool:
            secret_names.update(map(_folded, names))
    return secret_names


def _is_named(name: str, names: set[str]) -> bool:
    return _folded(name) in names or EVERY_OTHER in names


def _folded(name: str) -> str:
    """A name without case and signs: a model may write `apiKey` for `api_key`."""
    letters = [letter for letter in name if letter.isalnum()]
    return "".join(letters).casefold() or name
