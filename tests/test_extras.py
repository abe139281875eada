"""Optional packages: each room that needs one says how to install it, and what is wrong with it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pytest

from ferrule import MCPServer, OTel, PostgresStore, ReAct, Toolbox
from ferrule.errors import ConfigurationError
from ferrule.models.hosted import LM
from ferrule.models.local.backends.llama_cpp import LlamaBackend
from ferrule.models.local.backends.transformers import TransformersBackend
from ferrule.models.local.vocabulary import engine
from ferrule.runs.store import dbos
from ferrule.testing import ScriptedLM


class Broken(MetaPathFinder):
    """Imports of a package fail, as where a library of the system is missing."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, *_: Any) -> None:
        if name == self.package:
            raise ImportError("libnone.so: cannot open shared object file")


def run_code(_: Path) -> None:
    call = {"name": "execute_code", "args": {"code": "1"}}
    program = ReAct("question -> answer", [print_nothing], calls="code", native=True)
    program(question="q", lm=ScriptedLM([call, {"outputs": {"answer": "a"}}]))


def print_nothing() -> None:
    """Do nothing."""


def read_skill(folder: Path) -> None:
    skill = folder / "notes"
    skill.mkdir()
    (skill / "SKILL.md").write_text("---\nname: notes\ndescription: Take notes.\n---\nWrite.\n")
    Toolbox(skills=[skill])


DOORS: list[tuple[str, str, Callable[[Path], Any]]] = [
    ("opentelemetry", "'ferrule[otel]'", lambda _: OTel()),
    ("llguidance", "'ferrule[local]'", lambda _: engine()),
    ("litellm", "'ferrule[litellm]'", lambda _: LM.from_litellm("m")),
    ("torch", "torch transformers", lambda _: TransformersBackend("m")),
    ("llama_cpp", "llama-cpp-python", lambda _: LlamaBackend("m.gguf")),
    ("psycopg", "'ferrule[postgres]'", lambda _: PostgresStore("postgresql://localhost/x")),
    ("dbos", "'ferrule[dbos]'", lambda _: dbos._load()),
    ("yaml", "'ferrule[skills]'", read_skill),
    ("pydantic_monty", "'ferrule[code]'", run_code),
    ("mcp", "'ferrule[mcp]'", lambda _: MCPServer.stdio("true").connect()),
]


@pytest.mark.parametrize("is_broken", [False, True], ids=["missing", "broken"])
@pytest.mark.parametrize(("package", "install", "enter"), DOORS, ids=[door[0] for door in DOORS])
def test_a_package_that_cannot_be_imported_is_named_with_the_command_that_installs_it(
    package: str,
    install: str,
    enter: Callable[[Path], Any],
    is_broken: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Where one is installed and broken, the reason is told: to install it again may not help."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    if is_broken:
        monkeypatch.setattr(sys, "meta_path", [Broken(package), *sys.meta_path])
    else:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError) as caught:
        enter(tmp_path)
    assert f"pip install {install}" in str(caught.value)
    assert ("libnone.so" in str(caught.value)) == is_broken
