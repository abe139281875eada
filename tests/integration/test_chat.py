"""The page of examples/apps/chat.py, which node runs as a browser would, against the service.

The clients from npm: `scripts/front-ends.sh`.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra: pip install 'ferrule[ui]'")

ROOT = Path(__file__).parents[2]
APPS = ROOT / "examples" / "apps"
NODE = shutil.which("node")
TALK = """
const [page, address, kind] = process.argv.slice(1);
const { AGUIConversation, VercelConversation } = await import(page);
const open = () =>
  kind === "ag-ui" ? new AGUIConversation(`${address}/ag-ui`, "t 1", () => {}) : new VercelConversation(`${address}/api/chat`, "t 1", () => {});
const seen = (chat) => chat.lines.map(({ kind, text, result }) => [kind, text, result ?? null]);
const first = open();
await first.send("Book a hotel in Rome.");
const again = open();
await again.comeBack(first.messages.slice(0, 1));
const found = { waiting: seen(first), loaded: seen(again), asks: again.questions.map(({ text }) => text) };
await again.decide(again.questions[0], true);
found.done = seen(again).slice(4);
const late = await first.decide(first.questions[0], false).then(() => null, (error) => error.message);
await again.send("And now one in Oslo.");
await again.decide(again.questions[0], false);
const denied = seen(again).slice(-2);
console.log(JSON.stringify({ ...found, late, denied }));
"""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(NODE is None, reason="the page's script needs node"),
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(APPS / "chat.py"), "serve", str(port)])
    try:
        while server.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest.mark.parametrize("kind", ["ag-ui", "vercel"])
def test_the_page_asks_is_loaded_again_decides_and_goes_on(address: str, kind: str) -> None:
    module = (APPS / "chat_page.js").as_uri()
    command = [str(NODE), "--no-warnings", "--input-type=module", "-e", TALK, module, address, kind]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert [line[0] for line in found["waiting"]] == ["user", "text", "call", "call"]
    assert found["loaded"] == found["waiting"]
    assert found["waiting"][2][2] == "Hotel Rome, 90 euros a night"
    assert found["asks"] == [
        'Confirm execution of book with args: {"hotel":"Hotel Rome","nights":2}? (yes/no)',
    ]
    assert found["done"] == [["text", "This is what happened: booked Hotel Rome, nights: 2.", None]]
    assert "is not waiting for the questions" in found["late"]
    assert found["denied"][0][0] == "call"
    assert found["denied"][1][0] == "text"
