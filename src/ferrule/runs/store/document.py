"""A run as a JSON document: its head, which is everything except the journal.

In: a `RunState`. Out: a head as JSON data, and a `RunState` filled from one. Inputs are stored as
JSON and read back as the types that the program declares. An input that would not come back equal
raises when the run starts, not when it is resumed.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import starmap
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from msgspec import Struct
from msgspec.structs import asdict
from pydantic import BaseModel

from ferrule.approval.decisions import read_decision
from ferrule.encoding.encode import SCALARS, digest_of, is_exact, json_bytes, jsonable
from ferrule.encoding.stored import reading
from ferrule.errors import ReplayMismatchError, RunError, StoreError, shown
from ferrule.forms import usage_form
from ferrule.models.setting_names import check_saved
from ferrule.runs.journal.encode import (
    PART_NAMES,
    PARTS,
    error_facts,
    read_error,
    read_question,
    record_form,
)
from ferrule.runs.journal.spending import spent
from ferrule.runs.limits import Limits
from ferrule.runs.store.fingerprint import differences, program_fingerprint
from ferrule.schema.iterables import eager_validators
from ferrule.tools.definition.deps import bind_arguments
from ferrule.tools.tool import Tool
from ferrule.values.content.convert import marked_parts, read_marked
from ferrule.values.conversation.exchange import Usage
from ferrule.values.conversation.history import History
from ferrule.values.signatures.fields import adapter_of, input_check
from ferrule.values.typed import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ferrule.runs.protocols import Program
    from ferrule.runs.state import RunState

_VERSION = 1
_NONE_SPENT = Usage()
_TAG = "$ferrule"
_STATUSES = ("new", "queued", "running", "waiting", "done", "failed", "cancelled")


def inputs_form(run: RunState) -> dict[str, Any]:
    """A run's inputs as JSON data: `{"args": [...], "inputs": {name: ...}}`.

    Raises `RunError` if a value would not come back equal.
    """
    _check_config(run)
    return {
        "args": [_input_form(run.program, k, value) for k, value in enumerate(run.args)],
        "inputs": {
            name: _input_form(run.program, name, value) for name, value in run.inputs.items()
        },
    }


def head_form(run: RunState, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A run without its journal, as JSON data.

    `inputs` is the result of `inputs_form`, from when the run began or from now.
    """
    error = None
    if run.error is not None:
        error = error_facts(run.error)
    form: dict[str, Any] = {
        "ferrule_run": _VERSION,
        "id": run.id,
        "program": run.program.name,
        "fingerprint": program_fingerprint(run.program),
        **inputs,
        "key": run.key.hex(),
        "status": run.status,
        "error": error,
    }
    usage = spent(run.journal.entries)
    if usage != _NONE_SPENT:
        form["usage"] = usage_form(usage)
    if run.notes:
        form["notes"] = dict(run.notes)
    form["questions"] = [record_form(question) for question in run.pending]
    # Decisions on a stored run are only in its store, where each is used once: a copy does not
    # contain them.
    form["answers"] = [
        record_form(decision)
        for decision in run.answers.values()
        if run.persistence is None or decision.kind == "revoke"
    ]
    return form


def check_head(
    head: Mapping[str, Any], program: Program, *, migrate: bool
) -> dict[str, tuple[str, str]]:
    """Check a head; returns how the program differs from the stored one.

    Raises `StoreError` if this ferrule cannot read it. Without `migrate`, raises
    `ReplayMismatchError` for a program of another class, or one that no longer takes the inputs of
    the run.
    """
    if head.get("ferrule_run") != _VERSION:
        msg = (
            f"This run has version {head.get('ferrule_run')!r}; "
            f"this ferrule reads version {_VERSION}. Use a newer ferrule."
        )
        raise StoreError(msg)
    kinds = {"id": str, "key": str, "args": list, "inputs": dict}
    has_fields = all(isinstance(head.get(name), kind) for name, kind in kinds.items())
    if not has_fields or head.get("status") not in _STATUSES:
        raise StoreError(f"This is not the head of a run: found {shown(head)}.")
    if head.get("redacted"):
        raise StoreError(
            f"The run {head['id']} was redacted: its inputs and its journal were removed."
        )
    changes = differences(head.get("fingerprint"), program)
    if not migrate:
        _refuse_changes(head, program, changes)
    return changes


def _refuse_changes(
    head: Mapping[str, Any], program: Program, changes: Mapping[str, tuple[str, str]]
) -> None:
    """Raise `ReplayMismatchError` for another program, or one without an input of the run."""
    plan = plan_of(program)
    fields = plan.inputs if plan is not None else {}
    for part, (then, now) in changes.items():
        reason = ""
        if part.startswith("signature ") and fields:
            lost = [name for name in head["inputs"] if name not in fields and _is_input(name, then)]
            if lost:
                reason = f"; no input `{lost[0]}`"
        if part == "program" or reason:
            raise ReplayMismatchError(
                "start", f"{part} {then}", f"{part} {now}{reason}; `migrate=True` tries anyway"
            )


def _is_input(name: str, signature: str) -> bool:
    inputs, _, _ = signature.partition("->")
    return re.search(rf"\b{re.escape(name)}\b", inputs) is not None


def read_inputs(
    head: Mapping[str, Any], program: Program, tools: Iterable[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional arguments and inputs of a run, as passed to the program.

    `tools` are the tools named in the inputs, in any version.
    """
    tools_by_name = {tool.name: tool for tool in map(Tool.of, tools)}
    with reading(f"The inputs of the run {head['id']}"):
        args = tuple(
            [
                _read_input(program, position, form, tools_by_name)
                for position, form in enumerate(head["args"])
            ]
        )
        inputs = {
            name: _read_input(program, name, form, tools_by_name)
            for name, form in head["inputs"].items()
        }
        return args, inputs


def check_inputs(program: Program, args: Sequence[Any], inputs: Mapping[str, Any]) -> None:
    """Raise `ReplayMismatchError` if a program's `forward` does not take the inputs of a run.

    A flow checks its own.
    """
    if program.is_flow:
        return
    forward = program.forward
    if program.is_only_async:
        forward = program.aforward
    try:
        bind_arguments(forward, args, inputs)
    except TypeError as error:
        call = f"{program.name}.{forward.__name__}{inspect.signature(forward)}"
        raise ReplayMismatchError(
            "start",
            f"the inputs {[*range(len(args)), *inputs]}",
            f"{call}: {error}; `migrate=True` tries anyway",
        ) from None


@reading("The head of a run")
def restore(run: RunState, head: Mapping[str, Any]) -> None:
    """Restore status, questions and decisions from a head into a run created with its inputs."""
    run.key = bytes.fromhex(head["key"])
    run.status = head["status"]
    run.notes = head.get("notes", {})
    run.error = None
    if head["error"] is not None:
        run.error = read_error(head["error"])
    run.pending = tuple(map(read_question, head["questions"]))
    run.asked = run.pending
    run.answers = {
        decision.question_id: decision for decision in map(read_decision, head["answers"])
    }
    run.decisions = [
        *(entry.value for entry in run.journal.entries if entry.kind == "decision"),
        *run.answers.values(),
    ]


# -- inputs


class _NeedsType(Exception):  # noqa: N818  a signal within this module, not an error
    """Raised for a value that only its declared type can read back."""


def _check_config(run: RunState) -> None:
    """Refuse a call's `config=` that holds an API key.

    Not if `config` is an input of the program.
    """
    config = run.inputs.get("config")
    plan = plan_of(run.program)
    if plan is None or "config" in plan.inputs:
        return
    if isinstance(config, Mapping):
        check_saved(cast("Mapping[str, Any]", config))


def _input_form(program: Program, name: str | int, value: Any) -> Any:
    with suppress(_NeedsType):
        return _form(value)
    form = {_TAG: "typed", "value": jsonable(marked_parts(value))}
    try:
        restored = _read_input(program, name, form, {})
        is_same = _is_same(value, restored)
        is_same = is_same and jsonable(marked_parts(restored)) == form["value"]
    except (RunError, ValueError):
        is_same = False
    if not is_same:
        raise RunError(_refusal(program, name, value))
    return form


def _refusal(program: Program, name: str | int, value: Any) -> str:
    """Why an input cannot be stored, and what to do."""
    if name == "lm":
        return (
            f"`lm=` of a call is not stored with its run; found {shown(value)}. Pass it to the "
            "program, to `configure` or to `context`, so that a resumed run has it."
        )
    if name == "deps":
        return (
            f"`{program.name}` has an input called `deps`, and inputs are stored; found "
            f"{shown(value)}. Only tools get the `deps=` of a run. Give the program what it needs "
            "itself as an attribute, or with `context(extra=...)` and `ferrule.settings.extra`."
        )
    return (
        "A stored run needs inputs that JSON can represent and restore. "
        f"`{name}` is {shown(value)}, and the program declares no type that restores all of it. "
        "Declare one, pass plain data, or pass what tools need as `deps=`, which is never stored."
    )


def _form(value: Any) -> Any:
    """The JSON form of a value that says its own type. Raises `_NeedsType` for any other."""
    kind = cast("Any", type(value))
    if kind in SCALARS:
        if not is_exact(value):
            raise _NeedsType
        return value
    if kind is list:
        return [_form(item) for item in value]
    if kind is dict:
        form: dict[Any, Any] = {key: _form(item) for key, item in value.items()}
        if not all(type(key) is str and is_exact(key) for key in form):
            raise _NeedsType
        if _TAG in form:
            # A dict of the user that has our tag as a key is marked, so that it is not read as
            # ours.
            return {_TAG: "dict", "value": form}
        return form
    if kind is History:
        return {_TAG: "history", **jsonable(value.format())}
    if kind is Limits:
        return {_TAG: "limits", **dataclasses.asdict(value)}
    if kind in PART_NAMES:
        return {_TAG: PART_NAMES[kind], **value.__dict__}
    if isinstance(value, Tool):
        return {_TAG: "tool", "name": value.name, "digest": digest_of(value.declaration)}
    raise _NeedsType


def _is_same(value: Any, again: Any) -> bool:
    """Whether a value came back equal: the same types at every level, with equal parts.

    Secrets come back masked; that is ignored.
    """
    kind = cast("Any", type(value))
    if type(again) is not kind:
        return False
    # A history is compared by its content, as messages or as turns.
    if hasattr(kind, "get_secret_value") or kind is History:
        return True
    if isinstance(value, (list, tuple)):
        pairs: Any = zip(cast("Any", value), again, strict=True)
        return len(cast("Any", value)) == len(again) and all(starmap(_is_same, pairs))
    parts = _parts(value)
    if parts is not None:
        others = _parts(again)
        return (
            others is not None
            and parts.keys() == others.keys()
            and all(_is_same(part, others[key]) for key, part in parts.items())
        )
    if kind.__eq__ is object.__eq__:  # only the JSON can be compared
        return True
    # NaN is the only value that differs from itself.
    return bool(value == again or (value != value and again != again))


def _parts(value: Any) -> dict[Any, Any] | None:
    """The parts of a value, including those not in its JSON.

    None for a value that is compared as a whole.
    """
    if isinstance(value, BaseModel):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        return {**fields, **(value.__pydantic_extra__ or {}), **(value.__pydantic_private__ or {})}
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    if isinstance(value, Struct):
        return asdict(value)
    names: Mapping[str, Any] | None = getattr(
        cast("Any", type(value)), "__dataclass_fields__", None
    )
    if names is None:
        return None
    return {name: getattr(value, name, None) for name in names}


def _read_input(program: Program, name: str | int, form: Any, tools: Mapping[str, Tool]) -> Any:
    if isinstance(form, list):
        items = cast("list[Any]", form)
        return [_read_input(program, name, item, tools) for item in items]
    if not isinstance(form, dict):
        return form
    fields = cast("dict[str, Any]", form)
    rest = {key: value for key, value in fields.items() if key != _TAG}
    match fields.get(_TAG):
        case None:
            return {key: _read_input(program, name, item, tools) for key, item in fields.items()}
        case "dict":
            items = rest["value"].items()
            return {key: _read_input(program, name, item, tools) for key, item in items}
        case "typed":
            read_value, read_text = _readers(program, name)
            value = read_marked(rest["value"])
            try:
                return read_value(value)
            except ValueError as refusal:
                # A strict model reads dates, tuples and enums only as JSON.
                with suppress(ValueError):
                    return read_text(json_bytes(value))
                raise refusal from None
        case "history":
            return History(**rest)
        case "limits":
            return Limits(**rest)
        case "tool":
            return _tool(rest, tools)
        case tag:
            return PARTS[tag](**rest)


def _tool(form: Mapping[str, Any], tools: Mapping[str, Tool]) -> Tool:
    tool = tools.get(form["name"])
    if tool is None:
        msg = (
            f"The run was started with the tool `{form['name']}` as an input. "
            "Pass it: Run.load(..., tools=[...])."
        )
        raise RunError(msg)
    return tool


def _readers(
    program: Program, name: str | int
) -> tuple[Callable[[Any], Any], Callable[[bytes], Any]]:
    """Functions that read an input, from JSON data and from JSON text.

    As the type that the signature, or `forward`, declares.
    """
    signature = getattr(program, "signature", None)
    field = None
    if signature is not None:
        field = signature.plan.inputs.get(name)
    if field is not None:

        def read_text(text: bytes) -> Any:
            # Made here: most values need no second adapter.
            _, validate_json = eager_validators(adapter_of(field))
            return validate_json(text)

        return input_check(field) or (lambda value: value), read_text
    method = type(program).forward
    if program.is_only_async:
        method = type(program).aforward
    from pydantic import PydanticUserError, TypeAdapter

    try:
        kind = get_type_hints(method)[_parameter_name(method, name)]
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
    except (KeyError, NameError, PydanticUserError) as error:
        # No type, one that only type checkers see, or one that is not data.
        raise RunError(f"`{program.name}` declares no type for `{name}`.") from error
    return adapter.validate_python, adapter.validate_json


def _parameter_name(method: Any, name: str | int) -> str:
    """The name of a parameter, also of a positional one."""
    names = method.__code__.co_varnames[1 : method.__code__.co_argcount]
    if isinstance(name, int) and name < len(names):
        return names[name]
    return str(name)
