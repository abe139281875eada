"""The face: one table of public names, the same names for type checkers, and signatures that
callers can rely on.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import pytest
from pydantic import BaseModel

import ferrule
from ferrule import testing
from ferrule.errors import FerruleError

STUB = Path(ferrule.__file__).with_suffix(".pyi")
RECORD = Path(__file__).parent / "golden" / "face.json"


def test_every_public_name_is_there_and_is_what_its_home_calls_by_that_name() -> None:
    for name in ferrule.__all__:
        found = getattr(ferrule, name)
        assert isinstance(found, ModuleType) or getattr(found, "__name__", name) == name
    assert set(ferrule.__all__) <= set(dir(ferrule))


def test_type_checkers_see_the_same_names() -> None:
    """The stub beside the table."""
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert tree.body[: len(imports)] == imports, "in one go, so that ruff keeps them sorted"
    [version] = tree.body[len(imports) :]
    assert ast.unparse(version) == "__version__: str"
    assert sorted(alias.asname for node in imports for alias in node.names) == ferrule.__all__


def test_a_name_that_is_not_there_says_so() -> None:
    with pytest.raises(AttributeError, match="no `Nonsense`"):
        _ = ferrule.Nonsense


def test_settings_is_read_as_attributes_whatever_was_imported_first() -> None:
    """The module is the view."""
    assert ferrule.settings.lm is None
    with ferrule.context(lm=ferrule.testing.ScriptedLM([])):
        assert isinstance(ferrule.settings.lm, ferrule.testing.ScriptedLM)
    with pytest.raises(AttributeError, match="no setting `nonsense`"):
        _ = ferrule.settings.nonsense


# --- the record

SPECIAL = {
    "__call__",
    "__contains__",
    "__enter__",
    "__exit__",
    "__aenter__",
    "__aexit__",
    "__getitem__",
    "__iter__",
    "__aiter__",
    "__len__",
}
"""Methods that callers use without writing their names."""
Signature = list[list[Any]]
"""Of each parameter: its name, its kind, its default as text (None if it has none), its annotation
as text.
"""


def test_recorded_names_and_signatures_still_hold() -> None:
    """What a caller wrote for the recorded face works with this one."""
    found = describe_face()
    broken: list[str] = []
    for name, recorded in json.loads(RECORD.read_text(encoding="utf-8")).items():
        now = found.get(name)
        if now is None or now["kind"] != recorded["kind"]:
            broken.append(
                f"`{name}` was a {recorded['kind']}, and is {now['kind'] if now else 'gone'}",
            )
            continue
        if now.get("parameters", [])[: len(known := recorded.get("parameters", []))] != known:
            broken.append(
                f"`{name}` had the type parameters {known}, and has {now.get('parameters')}",
            )
        broken += (
            f"`{name}.{each}` is gone"
            for each in recorded.get("attributes", [])
            if each not in now["attributes"]
        )
        signatures = {name: (recorded.get("signature"), now.get("signature"))}
        for method, signature in recorded.get("methods", {}).items():
            signatures[f"{name}.{method}"] = (signature, now["methods"].get(method))
        broken += (
            f"`{each}`: {why}"
            for each, (old, new) in signatures.items()
            for why in changes(old, new)
        )
    assert broken == []


def test_the_record_holds_type_parameters() -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    found = {
        name: recorded[name].get("parameters")
        for name in ("ReAct", "ChainOfThought", "Prediction", "Context", "Image", "LM")
    }
    assert found == {
        "ReAct": ["S", "D", "P"], "ChainOfThought": ["S", "D", "P"], "Prediction": ["S"], "Context": ["Deps"], "Image": None, "LM": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("new", "is_accepted"),
    [
        (lambda a, b=1, *, c=2: None, True),
        (lambda a, b=1, d=3, *, c=2, e=4: None, True),
        (lambda a, b=1, *more, c=2, **others: None, True),
        (lambda a, *, c=2: None, False),
        (lambda a, b=2, *, c=2: None, False),
        (lambda b=1, a=1, *, c=2: None, False),
        (lambda d, a, b=1, *, c=2: None, False),
        (lambda a, *, b=1, c=2: None, False),
        (lambda a, b=1, *, c=2, needed: None, False),
    ],
    ids=["same", "added", "any", "gone", "default", "order", "before", "kind", "needed"],
)
def test_a_change_that_breaks_callers_is_found(new: Any, is_accepted: bool) -> None:
    assert (
        not changes(describe_signature(lambda a, b=1, *, c=2: None), describe_signature(new))
    ) is is_accepted


def write_record() -> None:
    """Record the public names as they are now, as what callers may rely on from here on.

    To do so on purpose: `python -c "import sys; sys.path.insert(0, 'tests'); import test_face;
    test_face.write_record()"`.
    """
    lines = []
    for name, entry in describe_face().items():
        parts = []
        for key, value in entry.items():
            if key == "methods":
                methods = ",\n".join(
                    f"   {json.dumps(method)}: {json.dumps(signature)}"
                    for method, signature in value.items()
                )
                parts.append(f'  "methods": {{\n{methods}\n  }}' if methods else '  "methods": {}')
            else:
                parts.append(f"  {json.dumps(key)}: {json.dumps(value)}")
        lines.append(f" {json.dumps(name)}: {{\n" + ",\n".join(parts) + "\n }")
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def describe_face() -> dict[str, dict[str, Any]]:
    """The names of `ferrule`, and those of `ferrule.testing` with `testing.` before them."""
    found = {name: getattr(ferrule, name) for name in ferrule.__all__}
    found |= {f"testing.{name}": getattr(testing, name) for name in testing.__all__}
    return {name: describe(each) for name, each in sorted(found.items())}


def describe(value: Any) -> dict[str, Any]:
    """The kind of a public value and what a caller can write of it: its signature, and the
    attributes and methods of a class.
    """
    if isinstance(value, ModuleType):
        return {"kind": "module", "attributes": [], "methods": {}}
    if not isinstance(value, type):
        return {"kind": "function", "signature": describe_signature(value)}
    members: dict[str, Any] = {}
    annotations: dict[str, Any] = {}
    for each in reversed(value.__mro__):
        if each.__module__.split(".")[0] == "ferrule":
            members |= vars(each)
            annotations |= inspect.get_annotations(each)
    attributes = set(annotations)
    methods = {}
    for name, member in members.items():
        if isinstance(member, staticmethod | classmethod) or inspect.isfunction(member):
            methods[name] = describe_signature(getattr(member, "__func__", member))
        else:
            attributes.add(name)
    return {
        "kind": "class",
        **({"parameters": parameters} if (parameters := type_parameters(value)) else {}),
        **_made_by(value, annotations),
        "attributes": sorted(name for name in attributes if not name.startswith("_")),
        "methods": {
            name: methods[name]
            for name in sorted(methods)
            if name in SPECIAL or not name.startswith("_")
        },
    }


def type_parameters(cls: type) -> list[str]:
    """What may stand in the brackets of a class, as type checkers see it: at run time most classes
    of ferrule do not know it.
    """
    module = inspect.getmodule(cls)
    tree = (
        ast.parse(inspect.getsource(module))
        if module is not None and module.__name__.startswith("ferrule.")
        else ast.Module([], [])
    )
    written = next(
        (
            each
            for each in ast.walk(tree)
            if isinstance(each, ast.ClassDef) and each.name == cls.__name__
        ),
        None,
    )
    bases = [
        each
        for each in (written.bases if written is not None else [])
        if isinstance(each, ast.Subscript)
    ]
    declared = [each for each in bases if ast.unparse(each.value) in {"Typed", "Generic"}]
    names = [
        node.id
        for base in declared or bases
        for node in ast.walk(base.slice)
        if isinstance(node, ast.Name)
    ]
    known = (
        {
            name
            for name, each in vars(module).items()
            if each is None or isinstance(each, TypeVar | ParamSpec)
        }
        if names
        else set()
    )
    return [name for name in dict.fromkeys(names) if name in known]


def _made_by(cls: type, annotations: dict[str, Any]) -> dict[str, Signature]:
    """The signature of a class that has one of ferrule's making; those of Python's own exceptions
    differ between versions.
    """
    if hasattr(cls, "__struct_fields__"):
        return {"signature": describe_signature(cls)}
    call = type(cls).__call__
    if inspect.isfunction(call) and call.__module__.split(".")[0] == "ferrule":
        return {"signature": describe_signature(call)[1:]}
    is_model = issubclass(cls, BaseModel)
    if is_model:
        cls.model_rebuild()  # its signature is known when it is built, which is put off to its first use
    maker = next(
        (each for each in cls.__mro__ if "__init__" in vars(each) or "__new__" in vars(each)),
        object,
    )
    if maker.__module__ == "builtins":
        return {}
    signature = describe_signature(cls)
    return {
        "signature": [
            [*each, said if said and not is_model else _annotation(annotations.get(each[0], said))]
            for *each, said in signature
        ],
    }


def describe_signature(function: Any) -> Signature:
    """What `inspect.signature` tells, without the paths of modules and addresses, which say nothing
    to a caller.
    """
    empty = inspect.Parameter.empty
    return [
        [
            each.name,
            each.kind.description,
            None
            if each.default is empty
            else repr(each.default)
            if isinstance(each.default, str)
            else _plain(re.sub(r" from '[^']*'(?=>)", "", repr(each.default))),
            "" if each.annotation is empty else _annotation(each.annotation),
        ]
        for each in inspect.signature(function).parameters.values()
    ]


def _annotation(value: Any) -> str:
    return _plain(value if isinstance(value, str) else inspect.formatannotation(value))


def _plain(text: str) -> str:
    return re.sub(r"(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])| at 0x[0-9a-f]+", "", text)


def changes(recorded: Signature | None, now: Signature | None) -> list[str]:
    """Why calls that the recorded signature accepts may fail or mean something else now; empty if
    they do not. Annotations may change.
    """
    if recorded is None:
        return []
    if now is None:
        return ["is gone"]
    broken = []
    parameters = {each[0]: each[:3] for each in now}
    for name, kind, default, _ in recorded:
        if parameters.get(name, [])[:2] != [name, kind] or default not in {
            None,
            parameters[name][2],
        }:
            broken.append(
                f"`{name}` was {kind} with the default {default}, and is {parameters.get(name)}",
            )
    known = [each[0] for each in recorded]
    ordered = [
        [each[0] for each in signature if each[1].startswith("positional")]
        for signature in (recorded, now)
    ]
    if ordered[1][: len(ordered[0])] != ordered[0]:
        broken.append(f"the order was {ordered[0]}, and is {ordered[1]}")
    broken += (
        f"`{name}` is new and required"
        for name, kind, default, _ in now
        if name not in known and default is None and "variadic" not in kind
    )
    return broken


# --- misspelled keywords

REQUIRED: dict[str, tuple[Any, ...]] = {
    "ChainOfThought": ("question -> answer",),
    "LM": ("openai/gpt-5-mini",),
    "Predict": ("question -> answer",),
    "ReAct": ("question -> answer", []),
    "mcp": ("npx server",),
    "mcp_bridge.connect_mcp_tools": ([], {}),
    "serve": ([],),
    "tool": (len,),
    "Tool": (len,),
}
"""What those need that take keywords of any name, and check them after Python has read the call."""
TAKES_ANY_NAME = {
    *("Prediction", "acall_tool", "allow", "ask", "call_tool", "deny", "review"),
    *(f"cases.{name}" for name in ("called", "never", "at_least", "at_most", "asked_person")),
}
"""Their keywords are outputs, or arguments of a tool."""
MADE_BY_RUNS = {"acts", "events"}
"""Records that a run makes for each step and token: msgspec's own error is enough."""
OWN_TOOLS = "ferrule.errors"
"""Its functions are ferrule's own tools; its classes are for users."""
LONGEST = 250


def _options(public: Any) -> list[str]:
    """The keywords that a call may leave out."""
    if isinstance(public, type) and issubclass(public, BaseModel):
        return [name for name in public.model_fields if public is not ferrule.Tool]
    return [
        parameter.name
        for parameter in inspect.signature(public).parameters.values()
        if parameter.default is not parameter.empty
        and parameter.kind in {parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD}
    ]


def _with_options() -> list[tuple[str, Any, list[str]]]:
    found: list[tuple[str, Any, list[str]]] = []
    for name in ferrule.__all__:
        value = getattr(ferrule, name)
        public = {name: value}
        if isinstance(value, ModuleType):
            names = () if name in MADE_BY_RUNS else getattr(value, "__all__", ())
            public = {f"{name}.{inner}": getattr(value, inner) for inner in names}
        for full_name, item in public.items():
            if full_name in TAKES_ANY_NAME or not callable(item):
                continue
            if isinstance(item, type) and issubclass(item, (ferrule.Signature, ferrule.Event)):
                continue
            if inspect.isfunction(item) and item.__module__ == OWN_TOOLS:
                continue
            try:
                options = _options(item)
            except ValueError:  # an exception of one text has no signature
                continue
            if options:
                found.append((full_name, item, options))
    return found


def _make(public: Any, required: tuple[Any, ...], keywords: dict[str, None]) -> None:
    made = public(*required, **keywords)
    if inspect.iscoroutine(made):
        asyncio.run(made)
    if public is ferrule.context:
        made.__enter__()


WITH_OPTIONS = _with_options()


def test_most_public_names_have_options_that_can_be_misspelled() -> None:
    assert len(WITH_OPTIONS) > 100


@pytest.mark.parametrize(
    ("name", "public", "options"), WITH_OPTIONS, ids=[row[0] for row in WITH_OPTIONS]
)
def test_a_misspelled_keyword_is_one_short_error_that_names_the_nearest(
    name: str, public: Any, options: list[str]
) -> None:
    for option in options:
        misspelled = {f"{option}{option[-1]}": None}
        with pytest.raises(FerruleError, match=f"`{option}`") as caught:
            _make(public, REQUIRED.get(name, ()), misspelled)
        assert len(str(caught.value)) < LONGEST
