"""A mirror for writers: how dense the code of ferrule is, compared with packages of its field.

`python -m tests.density [FOLDER ...]` prints, for ferrule (or the folders) and for each peer that
is installed: conditional expressions and comments in 1,000 lines of code (blank lines do not
count), how many conditional expressions hold another, lines over 100 columns, and the names
assigned most often. Nothing checks these figures: they say where to look, not what to write.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

PEERS = ("pydantic_ai", "mcp", "httpx", "httpx2", "starlette")


def measure(folder: Path) -> tuple[str, str]:
    """A row of figures, and the ten names that are assigned most often."""
    lines = conditionals = chained = comments = long = statements = 0
    names: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        code = [line for line in text.splitlines() if line.strip()]
        lines += len(code)
        long += sum(len(line) > 100 for line in code)
        comments += sum(line.lstrip().startswith("#") for line in code)
        for node in ast.walk(ast.parse(text)):
            statements += isinstance(node, ast.stmt)
            if isinstance(node, ast.IfExp):
                conditionals += 1
                chained += any(isinstance(child, ast.IfExp) for child in ast.iter_child_nodes(node))
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names[node.id] += 1
    per_thousand = 1000 / max(lines, 1)
    row = (
        f"{lines:>7} {conditionals * per_thousand:>12.1f} {chained:>8}"
        f" {comments * per_thousand:>9.1f} {long:>9} {statements:>10}"
    )
    return row, " ".join(name for name, _ in names.most_common(10))


def main(folders: list[str]) -> None:
    places = {folder: Path(folder) for folder in folders or ["src/ferrule"]}
    for peer in PEERS:
        spec = find_spec(peer)
        if spec is not None and spec.origin is not None:
            places[peer] = Path(spec.origin).parent
    print(f"{'':20}   lines conditionals  chained  comments  over 100 statements")
    for name, folder in places.items():
        row, names = measure(folder)
        print(f"{name[-20:]:20} {row}\n{'':21}{names}")


if __name__ == "__main__":
    main(sys.argv[1:])
