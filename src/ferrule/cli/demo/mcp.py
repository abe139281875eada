"""The MCP server of the demo: a package of another project, installed from the package index into a venv of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("mcp-server-calculator==0.2.1", "mcp<2")
"""The server, and the version of the SDK that it needs. ferrule's own version stays separate."""
QUESTION, TOOL, EXPECTED = "What is 12345679 * 81?", "calculate", "999999999"
_INSTALL_TIMEOUT_S = 40


def install_server() -> tuple[str, str]:
    """The server's command and an empty string, or an empty command and why there is none."""
    if os.environ.get("FERRULE_DEMO_MCP") == "0":
        return "", "FERRULE_DEMO_MCP is 0"
    if find_spec("mcp") is None:
        return "", "the MCP SDK is not installed: pip install 'ferrule[mcp]'"
    if not Path("Makefile").is_file():
        return "", "the demo installs the server only in a checkout"
    folder = Path("build") / "demo-mcp"
    command = folder / ("Scripts" if os.name == "nt" else "bin") / "mcp-server-calculator"
    installed = folder / "ready"
    if not installed.exists():
        venv.create(folder, clear=True, with_pip=False)
        # One attempt: without a network the demo must not wait.
        options = ["install", "-qq", "--disable-pip-version-check", "--retries=0", "--timeout=10"]
        try:
            done = subprocess.run(  # noqa: S603  constant arguments
                [sys.executable, "-m", "pip", "--python", str(command.with_name("python")), *options, *PACKAGES],
                capture_output=True,
                check=False,
                timeout=_INSTALL_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return "", f"the server could not be installed ({type(error).__name__})"
        if done.returncode != 0:
            return "", "the server could not be installed from the package index"
        installed.touch()
    return str(command.absolute()), ""
