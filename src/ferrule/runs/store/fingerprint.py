"""The fingerprint of a program, stored with a run: the class, its signatures, and its tools with the digests of their schemas."""

from __future__ import annotations

from functools import partial
from itertools import islice, product
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from ferrule.encoding.encode import digest_of, repr_text
from ferrule.encoding.stored import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ferrule.runs.protocols import Program

_MOST_SPELLINGS = 4096


def program_fingerprint(program: Program) -> dict[str, Any]:
    """`{"program": class, "predictors": {path: {"signature", "digest", "tools": {name: digest}}}}`."""
    # Not the module: a program defined in a script is in `__main__` there, but in another module
    # when another process imports it.
    found: dict[str, Any] = {"program": type(program).__qualname__, "predictors": {}}
    for path, predictor in _predictors(program):
        signature = predictor.signature
        found["predictors"][path] = {
            "signature": signature.signature,
            "digest": signature.kept(
                _own_digest,
                partial(_own_digest, signature),
            ),  # a stored run needs it twice
            "tools": {name: digest_of(tool.declaration) for name, tool in predictor.tools.items()},
        }
    return found


def program_digest(program: Program) -> str:
    """The digest of a program's fingerprint; see `Module.fingerprint`."""
    return digest_of(program_fingerprint(program))


def differences(then: Any, program: Program) -> dict[str, tuple[str, str]]:
    """The differences between a stored fingerprint and a program: for each part that differs, its value then and now."""
    now = program_fingerprint(program)
    with reading("The fingerprint of a stored run"):
        return _differences(then, now, program)


def _differences(then: Any, now: dict[str, Any], program: Program) -> dict[str, tuple[str, str]]:
    for path, predictor in _predictors(program) if then != now else ():
        stored = then["predictors"].get(path, {}).get("digest")
        if stored != now["predictors"][path]["digest"] and stored in _digests(predictor.signature):
            now["predictors"][path]["digest"] = stored
    if then == now:
        return {}
    before, after = _lines(then), _lines(now)
    both = {
        key: (before.get(key, "absent"), after.get(key, "absent")) for key in {**before, **after}
    }
    return {key: (old, new) for key, (old, new) in both.items() if old != new}


def _predictors(program: Program) -> Sequence[tuple[str, Any]]:
    named: Callable[[], Sequence[tuple[str, Any]]] | None = getattr(
        program,
        "named_predictors",
        None,
    )
    return named() if named is not None else ()


def _own_digest(signature: Any) -> str:
    return _digest(signature, [repr(field.annotation) for field in signature.plan.fields.values()])


def _digest(signature: Any, annotations: Sequence[str]) -> str:
    types = dict(zip(signature.plan.fields, map(repr_text, annotations), strict=True))
    return digest_of((signature.dump_state(), types))


def _digests(signature: Any) -> Iterator[str]:
    """The digests that a signature has on any Python: from 3.14 on, `Optional[int]` and `int | None` are one type with one text."""
    spellings = [
        [repr(field.annotation), *_spellings(field.annotation)]
        for field in signature.plan.fields.values()
    ]
    return (_digest(signature, each) for each in islice(product(*spellings), _MOST_SPELLINGS))


def _spellings(kind: Any) -> list[str]:
    """All texts of a type with unions, as written inside another type: `typing.Optional[int]` and `int | None`."""
    args, own = get_args(kind), repr(list[kind])[len("list[") : -1]
    found: list[str] = []
    is_union = get_origin(kind) in (Union, UnionType)
    for texts in product(*map(_spellings, args)) if args else ():
        if is_union:
            some = [text for text, arg in zip(texts, args, strict=True) if arg is not NoneType]
            is_optional = len(some) == 1  # and None
            inside = [
                "NoneType" if arg is NoneType else text
                for text, arg in zip(texts, args, strict=True)
            ]
            found.append(
                f"typing.Optional[{some[0]}]"
                if is_optional
                else f"typing.Union[{', '.join(inside)}]",
            )
            found.append(" | ".join("None" if each == "NoneType" else each for each in inside))
        else:
            found.append(_with_arguments(own, args, texts))
    return list(dict.fromkeys(found)) or [own]


def _with_arguments(text: str, args: Sequence[Any], texts: Sequence[str]) -> str:
    """Replace the texts of a type's arguments in its text."""
    at = 0
    for arg, wanted in zip(args, texts, strict=True):
        if repr(arg) != wanted and get_args(arg):
            at = text.index(repr(arg), at)
            text = text[:at] + wanted + text[at + len(repr(arg)) :]
            at += len(wanted)
    return text


def _lines(side: Any) -> dict[str, str]:
    lines: dict[str, str] = {"program": str(side["program"])}
    for path, predictor in side["predictors"].items():
        lines[f"signature of `{path}`"] = f"({predictor['signature']}) {predictor['digest']}"
        lines.update(
            {f"tool `{name}` of `{path}`": digest for name, digest in predictor["tools"].items()},
        )
    return lines
