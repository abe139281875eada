"""Our tools, served by us and used by our client: nothing is lost on the way."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp_servers import free_port, listening

from ferrule import MCPServer, Tool
from ferrule.errors import MCPToolError
from ferrule.mcp_bridge import MCPApp
from ferrule.mcp_bridge.server.tools import serve_one
from ferrule.tools.execution.run import run_call
from ferrule.values.calls.call import CheckedCall, ToolCall, failure

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")
pytestmark = pytest.mark.integration

# -- tools made by hypothesis

NAME = st.from_regex(r"[a-z][a-z0-9_-]{0,20}", fullmatch=True)
# Without what our client takes out of strangers' texts (M64): control and format characters, and
# what has no meaning.
CHARACTERS = st.characters(
    categories=["L", "N", "P", "S"],
    exclude_characters="\u115f\u1160\u3164\uffa0",
)
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(CHARACTERS, max_size=8)
)
VALUE = st.recursive(
    SCALAR,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(CHARACTERS, max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
LEAF = st.sampled_from([
    {"type": "string"},
    {"type": "integer", "minimum": 0},
    {"type": "number"},
    {"type": "boolean", "default": True},
    {"type": ["integer", "null"]},
    {"enum": ["a", 1, None]},
    {"type": "string", "format": "uri", "description": "Où est-ce?"},
    {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
])  # fmt: skip
PROPERTY = st.recursive(
    LEAF,
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(
            lambda of: {"type": "object", "properties": of, "required": sorted(of)[:1]},
            st.dictionaries(NAME, inner, max_size=2),
        )
    ),
    max_leaves=4,
)


@st.composite
def tools(draw: Any) -> Tool:
    """A tool with a schema, flags, and something that it always returns or raises."""
    properties = draw(st.dictionaries(NAME, PROPERTY, max_size=4))
    schema = {
        "type": "object",
        "properties": properties,
        "required": draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
        if properties
        else [],
    }
    if draw(st.booleans()):
        schema |= {
            "additionalProperties": draw(st.booleans()),
            "$comment": draw(st.text(CHARACTERS, max_size=5)),
        }
    value, raises = draw(VALUE), draw(st.booleans())

    def function(**given: Any) -> Any:
        if raises:
            raise ValueError(str(value))
        return value

    options = {
        "effect": draw(st.sampled_from(["read", "idempotent", "once"])),
        "concurrent": draw(st.booleans()),
    }
    return Tool(draw(NAME), draw(st.text(CHARACTERS, max_size=20)), function, schema, **options)


def sample(schema: dict[str, Any]) -> Any:
    """A value that fits a schema as they are made above."""
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return sample(schema["anyOf"][0])
    kind = schema["type"][0] if isinstance(schema["type"], list) else schema["type"]
    match kind:
        case "object":
            return {name: sample(each) for name, each in schema.get("properties", {}).items()}
        case "array":
            return [sample(schema["items"])]
        case _:
            return {"string": "x", "integer": 3, "number": 1.5, "boolean": False}[kind]


def as_here(tool: Tool, arguments: dict[str, Any]) -> tuple[Any, bool]:
    """What a model is shown of a call without any server."""
    checked = CheckedCall(ToolCall(name=tool.name, args=arguments), tool, tool.prepare(arguments))
    result = run_call(checked)
    if result.error is not None:
        result = failure(checked.call, result.error.with_traceback(None))
    return result.content, result.is_error


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(tool=tools())
def test_made_up_tools_come_back_as_they_were(tool: Tool, served: Any) -> None:
    """Schema, description, annotations, result values, errors."""
    app, server = served
    for name in app.names:
        app.remove(name)
    app.add(tool)
    server.refresh()
    (there,) = server.tools
    entry = serve_one(tool).entry
    assert there.mcp.as_json() == {
        key: value for key, value in entry.items() if value not in (None, "")
    }
    assert there.schema == tool.parameters
    assert there.desc == tool.desc
    arguments = sample(tool.parameters)
    result = there.call_result(**arguments)
    content, is_error = as_here(tool, arguments)
    assert result.is_error == is_error
    assert result.value.text == content
    assert result.content == (content if not is_error else result.content)
    if not is_error:
        value = run_call(CheckedCall(ToolCall(name=tool.name), tool, tool.prepare(arguments))).value
        assert result.value.structured == (value if isinstance(value, dict) else None)


@pytest.fixture(scope="module")
def served() -> Any:
    """One application and one connection to it, for all examples."""
    app = MCPApp([])
    server = MCPServer.in_memory(app.server, trust=True)
    with server:
        yield app, server


# -- real processes

SCRIPT = '''
import os, subprocess, sys
from dataclasses import dataclass

import ferrule
from ferrule import Image, Tool


@dataclass
class Point:
    x: int
    label: str


def point(x: int, label: str = "here") -> Point:
    """A point."""
    return Point(x, label)


def picture() -> list:
    """A picture between words."""
    return ["before", Image(data="AAAA"), "after"]


def fails(why: str) -> str:
    """Fails."""
    raise ValueError(why)


def noisy() -> str:
    """Writes wherever it can."""
    print("print")
    print("{\\"jsonrpc\\": \\"2.0\\"}", file=sys.__stdout__, flush=True)
    sys.stdout.write("write without an end")
    os.write(1, b"descriptor\\n")
    subprocess.run([sys.executable, "-c", "print('child')"], check=True)
    return input("question") if False else "quiet"


def greedy() -> str:
    """Reads where the protocol is read."""
    return repr(sys.stdin.read())


@ferrule.tool(effect="read")
def reads(n: int = 1) -> int:
    """Reads."""
    return n


TOOLS = [point, picture, fails, noisy, greedy, reads]
if __name__ == "__main__":
    if sys.argv[1:]:
        ferrule.serve(TOOLS, name="here", transport="http", port=int(sys.argv[1]))
    else:
        ferrule.serve(TOOLS, name="here")
'''


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "served.py"
    path.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def stdio(script: Path) -> Any:
    with MCPServer.stdio(sys.executable, [str(script)], trust=True) as found:
        yield found


@pytest.fixture(scope="module")
def http(script: Path) -> Any:
    port = free_port()
    with (
        listening([sys.executable, str(script), str(port)], {}, port),
        MCPServer.http(f"http://127.0.0.1:{port}/mcp", trust=True) as found,
    ):
        yield found


@pytest.fixture(params=["stdio", "http"], scope="module")
def remote(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def here(script: Path) -> dict[str, Tool]:
    space: dict[str, Any] = {"__name__": "here"}
    exec(compile(script.read_text(encoding="utf-8"), str(script), "exec", dont_inherit=True), space)
    return {tool.name: tool for tool in map(Tool.of, space["TOOLS"])}


def test_schemas_and_annotations_come_back(remote: Any, script: Path) -> None:
    own = here(script)
    assert sorted(tool.name for tool in remote) == sorted(own)
    for name, tool in own.items():
        entry = serve_one(tool).entry
        assert remote[name].schema == tool.parameters
        assert remote[name].desc == tool.desc
        assert remote[name].annotations == entry["annotations"]
        assert remote[name].output_schema == entry.get("outputSchema")


def test_results_come_back(remote: Any) -> None:
    result = remote["point"].call_result(x="3").value
    assert result.structured == {"x": 3, "label": "here"}
    assert (result.typed.x, result.typed.label) == (3, "here")
    assert remote["reads"](n=4) == "4"
    before, image, after = remote["picture"]()
    assert (before, image.data, after) == ("before", "AAAA", "after")


def test_errors_come_back(remote: Any) -> None:
    with pytest.raises(
        MCPToolError,
        match="Execution error in fails: ValueError: because",
    ) as raised:
        remote["fails"](why="because")
    assert "Traceback" not in str(raised.value)
    assert "served.py" not in str(raised.value)


def test_nothing_that_a_tool_writes_or_reads_disturbs_the_protocol(remote: Any) -> None:
    for _ in range(2):
        assert remote["noisy"]() == "quiet"
    assert remote["reads"](n=2) == "2"


def test_a_tool_cannot_read_what_the_client_sends(stdio: Any) -> None:
    """Standard input too is the protocol's."""
    assert stdio["greedy"]() == "''"


def test_standard_output_holds_nothing_but_the_protocol(script: Path) -> None:
    """To the end, when Python writes what it kept."""
    sent = [
        '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}',
        '{"jsonrpc":"2.0","method":"notifications/initialized"}',
        '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"noisy","arguments":{}}}',
    ]
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    guard = threading.Timer(60, process.kill)
    guard.start()
    try:
        for line in sent:
            process.stdin.write(line + "\n")
        process.stdin.flush()
        lines = [process.stdout.readline(), process.stdout.readline()]
        rest, said = process.communicate()
    finally:
        guard.cancel()
        with contextlib.suppress(OSError):
            process.kill()
    assert ['"id":1' in lines[0], '"id":2' in lines[1], rest] == [True, True, ""]
    assert process.returncode == 0
    for word in ("print", "write without an end", "descriptor", "child"):
        assert word in said


@pytest.mark.long
def test_the_command_serves_too(script: Path) -> None:
    """Issue, 6: `ferrule serve`."""
    command = [
        str(Path(sys.executable).with_name("ferrule" + (".exe" if os.name == "nt" else ""))),
        "serve",
        str(script),
    ]
    with MCPServer.stdio(command[0], command[1:], trust=True) as found:
        assert found["reads"](n=7) == "7"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
@pytest.mark.parametrize("transport", ["stdio", pytest.param("http", marks=pytest.mark.long)])
def test_ctrl_c_ends_a_server_whose_client_stays(script: Path, transport: str) -> None:
    """Standard input is still open, and nobody writes to it."""
    port = free_port()
    arguments = [sys.executable, str(script), *([str(port)] if transport == "http" else [])]
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    guard = threading.Timer(300, process.kill)
    guard.start()
    try:
        if transport == "stdio":
            process.stdin.write(
                '{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{}}}\n',
            )
            process.stdin.flush()
            process.stdout.readline()
        else:
            while True:
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(("127.0.0.1", port), timeout=1),
                ):
                    break
                time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    finally:
        guard.cancel()
        process.kill()
        process.communicate()


@pytest.mark.skipif(os.name == "nt", reason="a shell closes the descriptors")
@pytest.mark.parametrize(
    "closed",
    [
        pytest.param("0<&-", id="input"),
        pytest.param("1>&-", id="output"),
        pytest.param("0<&- 1>&-", id="both", marks=pytest.mark.long),
    ],
)
def test_without_standard_input_or_output_a_line_says_so(closed: str) -> None:
    """No traceback."""
    command = f'exec "$0" -m ferrule.cli.main serve {closed}'
    found = subprocess.run(
        ["sh", "-c", command, sys.executable],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stderr.count("\n")) == (2, 1)
    assert found.stderr.startswith("Standard input or output is closed")


def test_a_client_that_reads_no_more_ends_the_server_quietly(tmp_path: Path) -> None:
    """It is gone, and nobody needs a traceback."""
    script = tmp_path / "served.py"
    script.write_text(
        'def add(a: int, b: int) -> int:\n    """Add."""\n    return a + b\n',
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "ferrule.cli.main", "serve", str(script)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    guard = threading.Timer(60, process.kill)
    guard.start()
    try:
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write('{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
            process.stdin.flush()
        assert (process.wait(), process.stderr.read()) == (0, "")
    finally:
        guard.cancel()
        process.kill()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stderr.close()


ENDING = """
import asyncio, sys
import ferrule

def leaves() -> str:
    sys.exit(3)

async def waits() -> str:
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task

def half() -> str:
    ferrule.progress("\\ud800")
    ferrule.emit_event("info", "\\ud800")
    return "a\\ud800b"

ferrule.serve([leaves, waits, half])
"""


def test_no_tool_ends_the_server(tmp_path: Path) -> None:
    script = tmp_path / "ending.py"
    script.write_text(ENDING, encoding="utf-8")
    server = MCPServer.stdio(sys.executable, [str(script)], on_progress=lambda *told: None)
    said = [server.call(name) for name in ("leaves", "waits", "half")]
    assert [each["isError"] for each in said] == [True, True, False]
    assert said[-1]["content"][0]["text"] == "a\ufffdb"
    assert server.client.link.starts == 1
    server.close()
