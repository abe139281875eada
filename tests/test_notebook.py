"""`examples/notebooks/*.ipynb`: each cell runs in a running event loop, as in a kernel, and its
outputs are those in the file.

A kernel would bring a dozen packages (`ipykernel`, `jupyter_client`, sockets) for what takes thirty
lines here: cells with `await`, one namespace, and the value of a cell's last line as text and HTML.
`FERRULE_GOLDEN=write python -m pytest tests/test_notebook.py` writes the outputs.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import asdict

from ferrule import configure, settings
from ferrule.testing import block_network

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
LONGEST = 120


def cells(notebook: Path) -> list[dict[str, Any]]:
    return [
        cell
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]


async def execute(source: str, number: int, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of a cell, as Jupyter stores them."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        for part in (tree, ast.Expression(last.value) if last is not None else None):
            if part is not None:
                mode = "exec" if isinstance(part, ast.Module) else "eval"
                value = eval(
                    compile(
                        part,
                        f"cell {number}",
                        mode,
                        ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                        dont_inherit=True,
                    ),
                    namespace,
                )
                value = await value if inspect.iscoroutine(value) else value
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {
                "name": "stdout",
                "output_type": "stream",
                "text": printed.getvalue().splitlines(keepends=True),
            },
        )
    if value is not None:
        html = value._repr_html_().splitlines(keepends=True)
        data = {"text/html": html, "text/plain": repr(value).splitlines(keepends=True)}
        outputs.append(
            {
                "data": data,
                "execution_count": number,
                "metadata": {},
                "output_type": "execute_result",
            },
        )
    return outputs


async def execute_all(notebook: Path, namespace: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return [
        await execute("".join(cell["source"]), number, namespace)
        for number, cell in enumerate(cells(notebook), 1)
    ]


@each_notebook
def test_every_cell_gives_the_outputs_in_the_file(
    notebook: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = settings.current()
    module = ModuleType("ferrule_notebook")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with block_network():
        outputs = asyncio.run(execute_all(notebook, vars(module)))
    configure(**asdict(before))
    if os.environ.get("FERRULE_GOLDEN") == "write":
        whole = json.loads(notebook.read_text(encoding="utf-8"))
        executed = [cell for cell in whole["cells"] if cell["cell_type"] == "code"]
        for number, (cell, written) in enumerate(zip(executed, outputs, strict=True), 1):
            cell.update(outputs=written, execution_count=number)
        notebook.write_text(
            json.dumps(whole, indent=1, ensure_ascii=False) + "\n",
            encoding="utf-8",
        )
    assert outputs == [cell["outputs"] for cell in cells(notebook)]


@each_notebook
def test_the_values_are_shown_as_tables_with_their_text_escaped(notebook: Path) -> None:
    shown = [
        "".join(output["data"]["text/html"])
        for cell in cells(notebook)
        for output in cell["outputs"]
        if "data" in output
    ]
    assert len(shown) >= 4
    assert all(html.startswith("<table>") for html in shown)
    assert "&quot;" in shown[2]


@each_notebook
def test_the_code_is_short_and_its_notebook_is_linked(notebook: Path) -> None:
    assert sum(len(cell["source"]) for cell in cells(notebook)) < LONGEST
    assert f"(../examples/notebooks/{notebook.name})" in (ROOT / "docs" / "index.md").read_text(
        encoding="utf-8",
    )
