"""A plugin of pytest: `import dspy` is `ferrule.compat.dspy`.

Many files of DSPy's suite import names at their top that only some of their tests use. A name that
the facade lacks is a stand-in, which fails as soon as a test uses it.
"""

from __future__ import annotations

import asyncio
import builtins
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import asdict

import ferrule.compat.dspy
from ferrule import settings

FACADE = "ferrule.compat.dspy"
MARKS = ("extra", "reliability", "llm_call", "deno")


def convert_mcp_tool_result(result: Any, result_mode: str = "text") -> Any:
    """DSPy's private function, by the public one: what a tool with this result returns."""

    async def call_tool(*_: Any, **__: Any) -> Any:
        return result

    session = SimpleNamespace(call_tool=call_tool)
    schema = {"type": "object", "properties": {}}
    tool = SimpleNamespace(name="tool", description="", input_schema=schema)
    tool = ferrule.compat.dspy.convert_mcp_tool(session, tool, result_mode=result_mode)
    return asyncio.run(tool.acall())


BRIDGES = {"_convert_mcp_tool_result": convert_mcp_tool_result}
"""Private names of DSPy that tests use to reach public behaviour."""
if os.environ.get("FERRULE_DSPY_PLAIN"):
    BRIDGES = {}


class Absent:
    """A name that the facade lacks."""

    def __init__(self, name: str) -> None:
        self.__dict__["name"] = name

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise AttributeError(f"the facade has no {self.__dict__['name']}")

    __call__ = __getattr__ = __getitem__ = __iter__ = _fail

    def __mro_entries__(self, bases: Any) -> tuple[()]:
        return ()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `dspy.x` as `ferrule.compat.dspy.x`; where there is none, a module without names."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] == "dspy":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        try:
            return importlib.import_module(FACADE + spec.name.removeprefix("dspy"))
        except ImportError:
            return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def install() -> None:
    """Put the facade in DSPy's place."""
    for name, module in [*sys.modules.items()]:
        if name == FACADE or name.startswith(f"{FACADE}."):
            sys.modules["dspy" + name.removeprefix(FACADE)] = module
    sys.meta_path.insert(0, Finder())
    plain_import = builtins.__import__

    def import_with_stand_ins(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if level or not fromlist or name.partition(".")[0] != "dspy":
            return plain_import(name, globals, locals, fromlist, level)
        module = importlib.import_module(name)
        names = ModuleType(name)
        for wanted in fromlist:
            try:
                found = getattr(module, wanted)
            except (AttributeError, ImportError):
                found = BRIDGES.get(wanted) or Absent(f"{name}.{wanted}")
            vars(names)[wanted] = found
        return names

    builtins.__import__ = import_with_stand_ins


install()
ferrule.compat.dspy.configure(version="3.4")  # whose tests these are


def pytest_configure(config: Any) -> None:
    for mark in MARKS:
        config.addinivalue_line("markers", mark)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def lm_for_test() -> None:
    pytest.skip("it asks a real model")


@pytest.fixture(autouse=True)
def settings_end_with_the_test() -> Any:
    before = settings.current()
    yield
    ferrule.configure(**asdict(before))
