"""The demo's part with an MCP server that somebody else wrote: installed from the package index into a venv of its own.

Where that cannot be done (no network, no pip), the demo says so in one line and goes on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("mcp-server-calculator==0.2.1", "mcp<2")
"""The server, and the SDK that it was written for: ferrule's own is another, and they meet on the wire only."""
QUESTION, TOOL, EXPECTED = "What is 12345679 * 81?", "calculate", "999999999"
_WITHIN_S = 40


def command() -> tuple[list[str], str]:
    """How the server is started, installed if need be; or an empty list, and why there is none."""
    if os.environ.get("FERRULE_DEMO_MCP") == "0":
        return [], "FERRULE_DEMO_MCP is 0"
    if find_spec("mcp") is None:
        return [], "the MCP SDK is not installed: pip install 'ferrule[mcp]'"
    if not Path("Makefile").is_file():
        return [], "this is no checkout, so there is no build folder to install it into"
    place = Path("build") / "demo-mcp"
    found = place / ("Scripts" if os.name == "nt" else "bin") / "mcp-server-calculator"
    ready = place / "ready"
    if not ready.exists():
        venv.create(place, clear=True, with_pip=False)
        python = found.with_name("python")
        # Without a second try: who has no network shall not wait for it.
        options = ["install", "-qq", "--disable-pip-version-check", "--retries=0", "--timeout=10"]
        try:
            done = subprocess.run(  # noqa: S603  our own words only
                [sys.executable, "-m", "pip", "--python", str(python), *options, *PACKAGES],
                capture_output=True,
                text=True,
                check=False,
                timeout=_WITHIN_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return [], f"it could not be installed ({type(error).__name__})"
        if done.returncode != 0:
            return [], "it could not be installed: the package index was not reached, or has no such package"
        ready.touch()
    return [str(found.absolute())], ""
