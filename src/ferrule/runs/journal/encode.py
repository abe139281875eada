"""Journal entries, decisions and questions as JSON, and back.

One entry is one JSON object on one line: `{"v": 1, "slot", "kind", "digest", "value"}`. Nothing is
pickled and no class is imported by name: the entry's kind determines the value's type. Objects of
the recording process are left out: a response's `raw`, a result's `value` and `error`, the `raw` of
a model error. An entry of a newer version raises an error that names the version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ferrule import errors
from ferrule.approval.decisions import read_decision
from ferrule.approval.question import Question
from ferrule.encoding.encode import is_exact, json_text
from ferrule.encoding.stored import DAMAGE, check_fields, damaged, parse_object
from ferrule.errors import (
    FerruleError,
    LimitReachedError,
    MaxTurnsReachedError,
    RunError,
    StoreError,
    shown,
)
from ferrule.forms import call_form, our_class, record_fields, response_form, result_form
from ferrule.runs.journal.entry import Entry
from ferrule.text_calls.drafts import CallFault
from ferrule.values.calls.call import ToolCall, ToolResult
from ferrule.values.calls.confidence import Token
from ferrule.values.content.parts import Audio, File, Image, Text
from ferrule.values.conversation.exchange import Response, Usage
from ferrule.values.provider_tools import Citation, ProviderCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.values.content.parts import Content, Part

_VERSION = 1
PARTS: dict[str, type[Part]] = {"text": Text, "image": Image, "audio": Audio, "file": File}
PART_NAMES: dict[Any, str] = {kind: name for name, kind in PARTS.items()}
_ERRORS: dict[str, type[FerruleError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, FerruleError)
}


def entry_text(entry: Entry) -> str:
    """One entry as a line of JSON.

    Raises `RunError` for a value that JSON would change, because the replay would differ.
    """
    return json_text(entry_form(entry))


def entry_form(entry: Entry) -> dict[str, Any]:
    """One entry as JSON data."""
    form = {
        "v": _VERSION,
        "slot": str(entry.slot),  # plain text: of a subclass, the writer must find out more
        "kind": entry.kind,
        "digest": entry.digest,
        "value": _value(entry),
    }
    if entry.secrets:
        form["secrets"] = entry.secrets
    return form


def read_entry(line: Any) -> Entry:
    """Parse an entry from its line or its JSON data.

    Raises `StoreError` if it is malformed or of a newer version.
    """
    if isinstance(line, dict):
        form = cast("dict[str, Any]", line)
    else:
        form = parse_object(line, "an entry of a journal")
    if form.get("v") != _VERSION:
        raise StoreError(
            f"This journal entry has version {form.get('v')!r}; this ferrule reads version "
            f"{_VERSION}. Use a newer ferrule."
        )
    try:  # not `with reading(...)`: a journal has thousands of entries
        slot, kind, digest = form["slot"], form["kind"], form["digest"]
        for name, text in (("slot", slot), ("digest", digest)):
            if not isinstance(text, str):
                raise TypeError(f"`{name}` is {shown(text)}, not str")
        return Entry(slot, kind, digest, _READERS[kind](form["value"]), form.get("secrets", {}))
    except RunError:
        raise
    except DAMAGE as error:
        raise damaged(f"An entry of a journal, {shown(form)},", error) from error


# -- one value


def _value(entry: Entry) -> Any:
    match entry.kind:
        case "model":
            return response_form(entry.value)
        case "failure":
            return error_form(entry.value)
        case "result":
            return _result(entry.value)
        case "decision":
            return record_fields(entry.value)
        case "begun" | "migrated" | "spent":  # made by the driver, from texts and numbers
            return entry.value
        case "once" | "limit":
            if not is_exact(entry.value):
                raise RunError(
                    "The value of `Once` is stored as JSON, so it must be JSON data; "
                    f"at {entry.slot} found {shown(entry.value)}."
                )
            return entry.value


def _read_response(form: Mapping[str, Any]) -> Response:
    fields = dict(form)
    provider_calls = fields.pop("usage_of_provider_tools", {})
    fields["usage"] = check_fields(Usage(*form["usage"], provider_calls=provider_calls))
    for name, read in _RESPONSE_READERS.items():
        if name in form:
            fields[name] = tuple([read(part) for part in form[name]])
    return check_fields(Response(**fields))


def _read_call(form: Mapping[str, Any]) -> ToolCall:
    """Read a call from `call_form`."""
    fields = {**form, "repairs": tuple(form.get("repairs") or ())}
    if type(form["args"]) is not dict:  # pydantic would take null for no arguments
        raise TypeError(f"a call is {shown(form)}")
    if form.get("fault") is not None:
        fields["fault"] = check_fields(CallFault(**form["fault"]))
    return ToolCall.model_validate(fields, strict=True)


def _read_provider_call(form: Mapping[str, Any]) -> ProviderCall:
    return check_fields(ProviderCall(**form))


def _read_citation(form: Mapping[str, Any]) -> Citation:
    return check_fields(Citation(**form))


def _read_token(form: Iterable[Any]) -> Token:
    return Token(*form)


def _result(result: ToolResult) -> dict[str, Any]:
    return {**result_form(result), "content": _content(result.content)}


def _content(content: Content) -> Any:
    if isinstance(content, str):
        return content
    return [{"part": PART_NAMES[type(part)], **vars(part)} for part in content]


def _read_result(form: dict[str, Any]) -> ToolResult:
    content: Any = form["content"]
    if not isinstance(content, str):
        content = tuple([_read_part(part) for part in content])
    change = form.get("change")
    if change is not None and not _are_texts(
        [*change["removed"], *change["added"], *change["added"].values()]
    ):
        raise TypeError(f"the change of tools is {shown(change)}")
    repairs = tuple(form.get("repairs", ()))
    if not _are_texts(repairs):
        raise TypeError(f"the repairs of a call are {shown(repairs)}")
    read: dict[str, Any] = {**form, "content": content, "repairs": repairs}
    return check_fields(ToolResult(**read))


def _read_part(form: Mapping[str, Any]) -> Part:
    return PARTS[form["part"]](**{name: value for name, value in form.items() if name != "part"})


def error_form(error: BaseException) -> dict[str, Any]:
    """An error as JSON data: the name of its class, its text, and what makes it again.

    The last is `class`, a class of `ferrule.errors`, with `facts`: the error of a loaded run is
    handled as that of the run itself, by its class and attributes. A class that a user derived is
    stored as the one that it is derived from, because nothing is imported by a name in a file. All
    other exceptions are restored as a `RunError` that names them.
    """
    form: dict[str, Any] = {"type": type(error).__name__, "text": str(error)}
    if not isinstance(error, FerruleError):
        return form
    kind = our_class(error)
    if kind is FerruleError:
        return form
    facts: dict[str, Any] = {}
    for name, value in error.facts.items():
        plain = _plain_fact(value)
        if plain is not None and is_exact(plain):
            facts[name] = plain
    form |= {"class": kind.__name__, "facts": facts}
    try:
        read_error(form)
    except DAMAGE:  # a fact is missing: it is no JSON data, or a user's class lacks it
        return {"type": form["type"], "text": form["text"]}
    return form


def _plain_fact(value: Any) -> Any:
    if isinstance(value, (tuple, frozenset, list)):
        return [_plain_fact(item) for item in cast("Iterable[Any]", value)]
    if isinstance(value, ToolCall):
        return call_form(value)
    return value


def read_error(form: Mapping[str, Any]) -> BaseException:
    """Rebuild an error from its `error_form`."""
    if "class" not in form:
        return RunError(f"{form['type']}: {form['text']}")
    kind = _ERRORS[form["class"]]
    facts = dict(form["facts"])
    if issubclass(kind, MaxTurnsReachedError):
        facts["pending"] = [_read_call(call) for call in facts["pending"]]
    return kind.made_again(form["text"], facts)


# -- questions


def read_question(form: Mapping[str, Any]) -> Question:
    """Read a question from its `record_form`."""
    read: dict[str, Any] = {**form, "call": _read_call(form["call"])}
    return check_fields(Question(**read))


def _read_limit(form: Mapping[str, Any]) -> Mapping[str, Any]:
    LimitReachedError(**form)
    return form


def _read_start(form: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Read the effect and the key of a call that begins; None stands for a call without either."""
    if form is not None and not _are_texts(form.values()):
        raise TypeError(f"the start of a call is {shown(form)}")
    return form


def _read_spending(form: Mapping[str, Any]) -> Mapping[str, Any]:
    others = {"unpriced", "usage", "tools"}
    counts = [value for name, value in form.items() if name not in others]
    counts += form.get("tools", {}).values()
    if not all(isinstance(value, (int, float)) for value in counts):
        raise TypeError(f"what was spent is {shown(form)}")
    read_usage(form.get("usage", {}))
    return form


def read_usage(form: Mapping[str, Any]) -> Usage:
    """Read a usage from `usage_form`."""
    by_model = {model: read_usage(usage) for model, usage in form.get("by_model", {}).items()}
    fields: dict[str, Any] = {**form, "by_model": by_model}
    return check_fields(Usage(**fields))


def _read_note(form: Mapping[str, Any]) -> Mapping[str, Any]:
    for values in form["differs"].values():
        if len(values) != 2 or not _are_texts(values):
            raise TypeError(f"a note is {shown(form)}")
    if not _are_texts(form["dropped"]):
        raise TypeError(f"a note is {shown(form)}")
    return form


def _unchanged(form: Any) -> Any:
    return form


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


_RESPONSE_READERS: dict[str, Any] = {
    "tool_calls": _read_call,
    "provider_calls": _read_provider_call,
    "citations": _read_citation,
    "others": _read_response,
    "tokens": _read_token,
}
"""By field of a response that holds several, how one of them is read."""

_READERS: dict[str, Any] = {
    "model": _read_response,
    "failure": read_error,
    "result": _read_result,
    "decision": read_decision,
    "limit": _read_limit,
    "begun": _read_start,
    "once": _unchanged,
    "spent": _read_spending,
    "migrated": _read_note,
}
