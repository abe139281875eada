"""The command line of the MCP Inspector, which makes one request for each process."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from cases import CaseError

if TYPE_CHECKING:
    from pathlib import Path

_WITHIN_S = 60


class Inspector:
    """As a driver."""

    def __init__(self, folder: Path, target: dict[str, Any]) -> None:
        modules = folder / "node_modules"
        launcher = (
            modules
            / "@modelcontextprotocol"
            / "inspector"
            / "clients"
            / "launcher"
            / "build"
            / "index.js"
        )
        self._command = [str(modules / "node" / "bin" / "node"), str(launcher), "--cli"]
        self._where = target.get("command") or [target["url"]]
        self._folder = folder

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """`list` or `call`."""
        if do == "list":
            found = self._run(["--method", "tools/list"])
            return {"tools": {each["name"]: each["inputSchema"] for each in found["tools"]}}
        given = [
            f"{key}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in details["args"].items()
        ]
        found = self._run(
            [
                "--method",
                "tools/call",
                "--tool-name",
                details["name"],
                *(word for each in given for word in ("--tool-arg", each)),
            ],
        )
        of = {
            kind: [each for each in found["content"] if each["type"] == kind]
            for kind in ("text", "image")
        }
        return {
            "text": "\n".join(each["text"] for each in of["text"]),
            "images": [each["data"] for each in of["image"]],
            "structured": found.get("structuredContent"),
            "error": bool(found.get("isError")),
        }

    def _run(self, words: list[str]) -> dict[str, Any]:
        done = subprocess.run(
            [*self._command, *self._where, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=_WITHIN_S,
            cwd=self._folder,
        )
        try:
            return json.loads(done.stdout)
        except ValueError as error:
            raise CaseError(
                f"exit {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}",
            ) from error

    def close(self) -> None:
        """Nothing is open."""
