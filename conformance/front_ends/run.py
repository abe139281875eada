"""Drive examples/apps/chat.py by the clients of AG-UI and of Vercel's AI SDK, from npm: `scripts/front-ends.sh`, or `run.py CLIENT...` for some.

Node 22 and the packages, in pinned versions, are installed into a cache folder
(`FERRULE_FRONT_ENDS`, else in the user's cache). Exit code 0: every case has passed with every
client.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = ("node@22", "@ag-ui/client@1.0.0", "ai@7.0.173", "ai6@npm:ai@6.0.326")
CLIENTS = ("ag-ui", "ai", "ai6")
_STARTS_WITHIN_S = 60


def main(wanted: list[str]) -> int:
    """Run the cases of these clients, or of all, and return the exit code."""
    folder = installed()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with (folder / "server.log").open("w", encoding="utf-8") as log:
        server = subprocess.Popen([sys.executable, str(HERE / "served.py"), str(port)], stderr=log)
        try:
            ends = time.monotonic() + _STARTS_WITHIN_S
            while server.poll() is None and time.monotonic() < ends:
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(("127.0.0.1", port), timeout=1),
                ):
                    break
                time.sleep(0.1)
            node = folder / "node_modules" / "node" / "bin" / "node"
            command = [str(node), str(HERE / "driver.mjs"), f"http://127.0.0.1:{port}", str(folder)]
            codes = [
                subprocess.run([*command, client], stderr=log, check=False).returncode
                for client in wanted or CLIENTS
            ]
        finally:
            server.kill()
            server.wait()
    return 1 if any(codes) else 0


def installed() -> Path:
    """The folder with the packages."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("FERRULE_FRONT_ENDS") or cache / "ferrule-front-ends")
    stamp = folder / "installed"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != " ".join(PACKAGES):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text("{}", encoding="utf-8")
        npm = [
            "npm",
            "install",
            "--prefix",
            str(folder),
            "--no-audit",
            "--no-fund",
            "--loglevel=error",
        ]
        subprocess.run([*npm, *PACKAGES], check=True)
        stamp.write_text(" ".join(PACKAGES), encoding="utf-8")
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
