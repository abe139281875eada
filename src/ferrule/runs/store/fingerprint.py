"""The fingerprint of a program, stored with a run: its class, its signatures and its tools.

A resumed run compares the stored fingerprint with that of the program now, to say what has changed.
The digest of a signature covers the texts of its types, and these depend on Python's version: from
3.14 on, `Optional[int]` is written `int | None`. A run that another version of Python stored must
not look changed, so a digest that differs is compared with those of all spellings (`_digests`).
"""

from __future__ import annotations

from functools import partial
from itertools import islice, product
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from ferrule.encoding.encode import digest_of, repr_text
from ferrule.encoding.stored import reading
from ferrule.values.signatures.compiled import derived

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ferrule.runs.protocols import Program
    from ferrule.tools.toolbox import Toolbox

_MOST_SPELLINGS = 4096
"""How many combinations of spellings of a signature's types are tried."""
_MOST_INSTRUCTIONS = 2_000
"""Characters: each run keeps them."""


def program_fingerprint(program: Program) -> dict[str, Any]:
    """The class of a program, and for each predictor its signature and its tools.

    `{"program": class, "predictors": {path: {"signature", "instructions", "digest", "tools": {name:
    digest}}}}`. The instructions are there for people who compare two runs; the digest covers them.
    """
    # Not the module: a program defined in a script is in `__main__` there, but in another module
    # when another process imports it.
    predictors: dict[str, Any] = {}
    for path, predictor in _predictors(program):
        # Both are immutable, so their parts are made once: each load of a run compares them.
        tools = predictor.toolbox.cached_value(
            _digests_of_tools, partial(_digests_of_tools, predictor.toolbox)
        )
        predictors[path] = {**_form_of_signature(predictor.program_signature), "tools": tools}
    return {"program": type(program).__qualname__, "predictors": predictors}


def program_digest(program: Program) -> str:
    """The digest of a program's fingerprint; see `Module.fingerprint`."""
    return digest_of(program_fingerprint(program))


def differences(then: Any, program: Program) -> dict[str, tuple[str, str]]:
    """The differences between a stored fingerprint and a program.

    For each part that differs, its value then and now.
    """
    now = program_fingerprint(program)
    if then == now:
        return {}
    with reading("The fingerprint of a stored run"):
        _adopt_equal_digests(then, now, program)
        old_parts, new_parts = _parts(then), _parts(now)
    changes: dict[str, tuple[str, str]] = {}
    for part in {**old_parts, **new_parts}:
        old = old_parts.get(part, "absent")
        new = new_parts.get(part, "absent")
        if old != new:
            changes[part] = (old, new)
    return changes


def _adopt_equal_digests(then: Any, now: dict[str, Any], program: Program) -> None:
    """Write the stored digest of a signature into `now` if only the spelling of types differs."""
    for path, predictor in _predictors(program):
        stored = then["predictors"].get(path, {}).get("digest")
        current = now["predictors"][path]
        if stored != current["digest"] and stored in _digests(predictor.program_signature):
            current["digest"] = stored


def _predictors(program: Program) -> Sequence[tuple[str, Any]]:
    named: Callable[[], Sequence[tuple[str, Any]]] | None = getattr(
        program, "named_predictors", None
    )
    if named is None:
        return ()
    return named()


@derived
def _form_of_signature(signature: Any) -> dict[str, str]:
    annotations = [repr(field.annotation) for field in signature.plan.fields.values()]
    return {
        "signature": signature.signature,
        "instructions": signature.instructions[:_MOST_INSTRUCTIONS],
        "digest": _digest(signature, annotations),
    }


def _digests_of_tools(toolbox: Toolbox) -> Mapping[str, str]:
    digests = {tool.name: digest_of(tool.declaration) for tool in toolbox}
    for provided in toolbox.provider_tools:
        digests[provided.name] = digest_of(provided.declaration())
    return digests


def _digest(signature: Any, annotations: Sequence[str]) -> str:
    types = dict(zip(signature.plan.fields, map(repr_text, annotations), strict=True))
    return digest_of((signature.dump_state(), types))


def _digests(signature: Any) -> Iterator[str]:
    """The digests that a signature has on any version of Python, as far as they are tried."""
    spellings = [
        [repr(field.annotation), *_spellings(field.annotation)]
        for field in signature.plan.fields.values()
    ]
    combinations = islice(product(*spellings), _MOST_SPELLINGS)
    return (_digest(signature, annotations) for annotations in combinations)


def _spellings(kind: Any) -> list[str]:
    """All texts of a type, as written inside another type.

    A union has two: `typing.Optional[int]` and `int | None`.
    """
    args = get_args(kind)
    # Inside another type, a class is written as `int`, not as `<class 'int'>`.
    text = repr(list[kind]).removeprefix("list[").removesuffix("]")
    if not args:
        return [text]
    is_union = get_origin(kind) in (Union, UnionType)
    spellings: list[str] = []
    for arg_texts in product(*map(_spellings, args)):
        if is_union:
            spellings += _union_spellings(args, arg_texts)
        else:
            spellings.append(_with_arguments(text, args, arg_texts))
    return list(dict.fromkeys(spellings))


def _union_spellings(args: Sequence[Any], arg_texts: Sequence[str]) -> list[str]:
    # `typing.Union[...]` writes the type of None as `NoneType`, and `|` writes it as `None`.
    in_union: list[str] = []
    with_bars: list[str] = []
    others: list[str] = []
    for arg, text in zip(args, arg_texts, strict=True):
        if arg is NoneType:
            in_union.append("NoneType")
            with_bars.append("None")
        else:
            in_union.append(text)
            with_bars.append(text)
            others.append(text)
    if len(others) == 1:  # and None
        written = f"typing.Optional[{others[0]}]"
    else:
        written = f"typing.Union[{', '.join(in_union)}]"
    return [written, " | ".join(with_bars)]


def _with_arguments(text: str, args: Sequence[Any], arg_texts: Sequence[str]) -> str:
    """Replace the texts of a type's arguments in its text."""
    offset = 0
    for arg, arg_text in zip(args, arg_texts, strict=True):
        current = repr(arg)
        if current != arg_text and get_args(arg):
            offset = text.index(current, offset)
            text = text[:offset] + arg_text + text[offset + len(current) :]
            offset += len(arg_text)
    return text


def _parts(fingerprint: Any) -> dict[str, str]:
    """The parts of a fingerprint, by the words that name them to people."""
    parts: dict[str, str] = {"program": str(fingerprint["program"])}
    for path, predictor in fingerprint["predictors"].items():
        parts[f"signature of `{path}`"] = f"({predictor['signature']}) {predictor['digest']}"
        for name, digest in predictor["tools"].items():
            parts[f"tool `{name}` of `{path}`"] = digest
    return parts
