"""The head of a run: the JSON document with everything except the journal.

`inputs_form` and `head_form` write it. Reading has three steps, because a `RunState` can only be
created with its inputs: `check_head` says whether this program may continue the run, `read_inputs`
reads the inputs, and `restore` fills the new `RunState` with the rest.

Inputs are the difficult part, because a program may be called with any Python object. `_form`
writes plain JSON data as it is, and marks values of ferrule with the key `$ferrule`. Any other
value is marked as `typed`: its JSON says nothing about its type, so it is read as the type that the
program's signature or `forward` declares. It is read back at once, and compared: an input that
would not come back equal raises when the run starts, not days later when it is resumed.

`_read_input` is the inverse of `_form`: each mark that one of them knows, the other must know.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, cast, get_type_hints

from msgspec import Struct
from msgspec.structs import asdict
from pydantic import BaseModel, PydanticUserError, TypeAdapter

from ferrule.approval.decisions import read_decision
from ferrule.approval.message import is_message, number_of
from ferrule.encoding.encode import SCALARS, digest_of, is_exact, json_bytes, jsonable
from ferrule.encoding.stored import reading
from ferrule.errors import ReplayMismatchError, RunCancelledError, RunError, StoreError, shown
from ferrule.forms import record_form, usage_form
from ferrule.models.setting_names import check_saved
from ferrule.runs.about import about
from ferrule.runs.governing import Governing
from ferrule.runs.journal.cut import forked_from
from ferrule.runs.journal.encode import (
    PART_NAMES,
    PARTS,
    error_form,
    read_error,
    read_question,
)
from ferrule.runs.journal.spending import spent
from ferrule.runs.limits import Limits
from ferrule.runs.steering import can_take_messages
from ferrule.runs.store.fingerprint import differences, program_fingerprint
from ferrule.schema.iterables import eager_validators
from ferrule.tools.definition.deps import bind_arguments
from ferrule.tools.definition.result_type import result_schema
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
"""The version of the head. A head of another version is refused."""
_NONE_SPENT = Usage()
_TAG = "$ferrule"
"""The key that marks a JSON object as one of ours. Its value says how to read the other keys."""
_STATUSES = ("new", "queued", "running", "waiting", "done", "failed", "cancelled")


def inputs_form(run: RunState) -> dict[str, Any]:
    """A run's inputs as JSON data: `{"args": [...], "inputs": {name: ...}}`.

    Raises `RunError` if a value would not come back equal.
    """
    _refuse_key_in_config(run)
    return {
        "args": [
            _input_form(run.program, position, value) for position, value in enumerate(run.args)
        ],
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
        error = error_form(run.error)
    form: dict[str, Any] = {
        "ferrule_run": _VERSION,
        "id": run.id,
        "program": run.program.name,
        **run.about.form(),
        "fingerprint": program_fingerprint(run.program),
        **inputs,
        "key": run.key.hex(),
        "status": run.status,
        "error": error,
    }
    if can_take_messages(run.program):
        form["takes_messages"] = True
    if run.governing is not None:
        settings = run.governing.form()
        if settings:
            form["settings"] = settings
    usage = spent(run.journal.entries)
    if usage != _NONE_SPENT:
        form["usage"] = usage_form(usage)
    if run.notes:
        form["notes"] = dict(run.notes)
    if run.forked_from is not None:
        form["forked_from"] = asdict(run.forked_from)
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
    """Check a head; returns how the program differs from the stored one, as (stored, now) by part.

    Raises `StoreError` if this ferrule cannot read it. Without `migrate`, raises
    `ReplayMismatchError` for a program of another class, or one that no longer takes the inputs of
    the run.
    """
    if head.get("ferrule_run") != _VERSION:
        raise StoreError(
            f"This run has version {head.get('ferrule_run')!r}; "
            f"this ferrule reads version {_VERSION}. Use a newer ferrule."
        )
    types = {"id": str, "key": str, "args": list, "inputs": dict}
    has_fields = all(isinstance(head.get(name), kind) for name, kind in types.items())
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
    """Raise `ReplayMismatchError` for another program, or one without an input of the run.

    Other changes are left to the replay, which notices whether they matter to this run.
    """
    plan = plan_of(program)
    for part, (then, now) in changes.items():
        if part == "program":
            _refuse_program(f"{part} {then}", f"{part} {now}")
        if plan is None or not plan.inputs or not part.startswith("signature "):
            continue
        for name in head["inputs"]:
            # The inputs of a call also hold options, such as `config`, that no signature names.
            if name not in plan.inputs and _has_input(then, name):
                _refuse_program(f"{part} {then}", f"{part} {now}; no input `{name}`")


def _refuse_program(then: str, now: str) -> NoReturn:
    raise ReplayMismatchError("start", then, f"{now}; `migrate=True` tries anyway")


def _has_input(signature: str, name: str) -> bool:
    """Whether a signature has an input. `signature` is its text in a fingerprint: `q -> answer`."""
    inputs, _, _ = signature.partition("->")
    return re.search(rf"\b{re.escape(name)}\b", inputs) is not None


def read_inputs(
    head: Mapping[str, Any], program: Program, tools: Iterable[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional arguments and inputs of a run, as passed to the program.

    `tools` has a tool for each that was an input. It is found by its name alone: its definition may
    have changed since.
    """
    tools_by_name = {tool.name: tool for tool in map(Tool.of, tools)}
    with reading(f"The inputs of the run {head['id']}"):
        args = tuple(
            _read_input(program, position, form, tools_by_name)
            for position, form in enumerate(head["args"])
        )
        inputs = {
            name: _read_input(program, name, form, tools_by_name)
            for name, form in head["inputs"].items()
        }
        return args, inputs


def check_inputs(program: Program, args: Sequence[Any], inputs: Mapping[str, Any]) -> None:
    """Raise `ReplayMismatchError` if a program's `forward` does not take the inputs of a run.

    A flow (`Predict`, `ReAct`, ...) checks its inputs itself when the replay begins.
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
    run.about = about(head.get("metadata"), head.get("title"))
    run.forked_from = forked_from(head)
    run.governing = Governing.read(head.get("settings", {}))
    run.error = None
    if head["error"] is not None:
        run.error = read_error(head["error"])
        run.describe_error()
    elif run.status == "cancelled":  # in the store, while no process executed it
        run.error = RunCancelledError(f"The run {run.id} was cancelled.")
    run.pending = tuple(map(read_question, head["questions"]))
    run.asked = run.pending  # the questions of the last pause, which is not over
    run.answers = {
        decision.question_id: decision for decision in map(read_decision, head["answers"])
    }
    run.decisions = [
        *(entry.value for entry in run.journal.entries if entry.kind == "decision"),
        *run.answers.values(),
    ]
    numbers = [number_of(decision) for decision in run.decisions if is_message(decision)]
    run.said = max(numbers, default=0)


# -- inputs


class _NeedsType(Exception):  # noqa: N818  a signal within this module, not an error
    """Raised for a value that only its declared type can read back.

    An exception, because the value may be deep inside lists and dicts, which then need it too.
    """


def _refuse_key_in_config(run: RunState) -> None:
    """Raise for an API key in a call's `config=`, because inputs are stored as they are.

    A program may have an input of its own that is named `config`; that may hold anything.
    """
    config = run.inputs.get("config")
    plan = plan_of(run.program)
    if plan is None or "config" in plan.inputs:
        return
    if isinstance(config, Mapping):
        check_saved(cast("Mapping[str, Any]", config))


def _input_form(program: Program, name: str | int, value: Any) -> Any:
    """One input as JSON data; `name` is the position of a positional one.

    Raises `RunError` if it would not come back equal.
    """
    with suppress(_NeedsType):
        return _form(value)
    form = {_TAG: "typed", "value": jsonable(marked_parts(value))}
    try:
        restored = _read_input(program, name, form, {})
        # Both are needed: some values have parts that are not in their JSON, and others (a history,
        # a masked secret, an object without `==`) can only be compared by their JSON.
        comes_back_equal = (
            _is_same(value, restored) and jsonable(marked_parts(restored)) == form["value"]
        )
    except (RunError, ValueError):
        comes_back_equal = False
    if not comes_back_equal:
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
            # The user's own dict has our key. It is marked too, so that it is not read as ours.
            return {_TAG: "dict", "value": form}
        return form
    if kind is History:
        return {_TAG: "history", **jsonable(value.format())}
    if kind is Limits:
        return {_TAG: "limits", **dataclasses.asdict(value)}
    if kind in PART_NAMES:
        return {_TAG: PART_NAMES[kind], **value.__dict__}
    if isinstance(value, Tool):
        form = {_TAG: "tool", "name": value.name, "digest": digest_of(value.declaration)}
        if value.func is None and value.result != "function":
            form["declared"] = _declaration_form(value)
        return form
    raise _NeedsType


def _declaration_form(tool: Tool) -> dict[str, Any]:
    """A tool that has no function here, and so comes back from its declaration alone."""
    returns = result_schema(None, tool.returns)
    form = {
        "name": tool.name,
        "description": tool.desc,
        "schema": tool.parameters,
        "result": tool.result,
        "within_s": tool.within_s,
        "returns": returns,
        "untrusted": tool.untrusted,
        "effect": tool.effect,
        "require_confirmation": tool.require_confirmation,
    }
    if not is_exact(form):  # such as a function that says when to ask
        raise _NeedsType
    return form


def _is_same(value: Any, restored: Any) -> bool:
    """Whether a value came back equal: the same types at every level, with equal parts.

    True for values that only their JSON can compare, which `_input_form` does: a secret, which
    comes back masked, a history, which may be held as messages or as turns, and an object whose
    class does not define `==`.
    """
    kind = cast("Any", type(value))
    if type(restored) is not kind:
        return False
    if hasattr(kind, "get_secret_value") or kind is History:
        return True
    if isinstance(value, (list, tuple)):
        items = cast("Sequence[Any]", value)
        return len(items) == len(restored) and all(map(_is_same, items, restored))
    parts = _parts(value)
    if parts is not None:
        restored_parts = _parts(restored)
        if restored_parts is None or parts.keys() != restored_parts.keys():
            return False
        return all(_is_same(part, restored_parts[key]) for key, part in parts.items())
    if kind.__eq__ is object.__eq__:
        return True
    if value == restored:
        return True
    return bool(value != value and restored != restored)  # NaN, which differs from itself


def _parts(value: Any) -> dict[Any, Any] | None:
    """The fields or entries of a value, by name or key, including those not in its JSON.

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
    """The value of a form made by `_input_form`, or of a part of one."""
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
                # A strict pydantic model takes a date, a tuple or an enum from JSON text, but not
                # from JSON data.
                with suppress(ValueError):
                    return read_text(json_bytes(value))
                raise refusal from None
        case "history":
            return History(**rest)
        case "limits":
            return Limits(**rest)
        case "tool":
            return _find_tool(rest, tools)
        case part_name:  # an image, audio, a file; `reading` turns the `KeyError` into `StoreError`
            return PARTS[part_name](**rest)


def _find_tool(form: Mapping[str, Any], tools: Mapping[str, Tool]) -> Tool:
    """The tool of this name among those that were passed, or one made from its declaration."""
    name = form["name"]
    if name in tools:
        return tools[name]
    if "declared" in form:
        return Tool(**form["declared"])
    raise RunError(
        f"The run was started with the tool `{name}` as an input. "
        "Pass it: Run.load(..., tools=[...])."
    )


def _readers(
    program: Program, name: str | int
) -> tuple[Callable[[Any], Any], Callable[[bytes], Any]]:
    """Two functions that read an input as its declared type: from JSON data, and from JSON text.

    The signature declares the type, or else a parameter of `forward`.
    """
    signature = getattr(program, "signature", None)
    field = None
    if signature is not None:
        field = signature.plan.inputs.get(name)
    if field is not None:

        def read_text(text: bytes) -> Any:
            # Built on first use: most values are read from JSON data.
            _, validate_json = eager_validators(adapter_of(field))
            return validate_json(text)

        return input_check(field) or _take_any, read_text
    method = type(program).forward
    if program.is_only_async:
        method = type(program).aforward
    try:
        declared_type = get_type_hints(method)[_parameter_name(method, name)]
        adapter: TypeAdapter[Any] = TypeAdapter(declared_type)
    except (KeyError, NameError, PydanticUserError) as error:
        # No type, one that only type checkers see, or one that is not data.
        raise RunError(f"`{program.name}` declares no type for `{name}`.") from error
    return adapter.validate_python, adapter.validate_json


def _take_any(value: Any) -> Any:
    return value


def _parameter_name(method: Any, name: str | int) -> str:
    """The name of a method's parameter, from its name or its position after `self`."""
    names = method.__code__.co_varnames[1 : method.__code__.co_argcount]
    if isinstance(name, int) and name < len(names):
        return names[name]
    return str(name)
