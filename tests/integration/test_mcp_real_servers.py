"""Nine real servers over stdio, and one on all three transports: every tool is listed and called.
(M1, M35, D39, M15, M29, M30, M46, M53)
"""

from __future__ import annotations

import asyncio
import functools
import http.server
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import mcp_servers
import pytest
from bench_schemas import judged

from ferrule import MCPServer
from ferrule.errors import ConfigurationError, MCPError
from ferrule.mcp_bridge import connect_all

pytest.importorskip("mcp", reason="needs the extra: pip install 'ferrule[mcp]'")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.skipif(
        sys.platform == "win32",
        reason="the servers are started by their POSIX paths",
    ),
]


async def accept(params: dict) -> dict:
    properties = (params.get("requestedSchema") or {}).get("properties") or {}
    return {
        "action": "accept",
        "content": {
            name: each["default"] for name, each in properties.items() if "default" in each
        },
    }


async def sampled(params: dict) -> dict:
    return {
        "role": "assistant",
        "content": {"type": "text", "text": "from our model"},
        "model": "ours",
    }


async def roots() -> list[dict]:
    return [{"uri": "file:///tmp", "name": "tmp"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("servers").resolve()
    (made / "one.txt").write_text("first\nsecond\nthird\n")
    (made / "dot.png").write_bytes(bytes.fromhex("89504e470d0a1a0a"))
    for command in (
        ["init", "-q", "-b", "main"],
        ["config", "user.email", "a@b.c"],
        ["config", "user.name", "A"],
        ["add", "one.txt"],
        ["commit", "-qm", "one"],
    ):
        subprocess.run(["git", *command], cwd=made, check=True)
    (made / "one.txt").write_text("first\nsecond\nlast\n")
    return made


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory):
    home = tmp_path_factory.mktemp("page")
    (home / "index.html").write_text(
        "<html><body><article><h1>Ferrules</h1><p>A ferrule binds the bristles to the handle of a brush.</p></article></body></html>",
    )
    handler = functools.partial(Quiet, directory=str(home))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def started(name: str, *arguments: str, **options) -> MCPServer:
    command, *rest = mcp_servers.command(name)
    return MCPServer.stdio(command, [*rest, *arguments], name=name, **options)


@pytest.fixture(scope="module")
def servers(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    state = tmp_path_factory.mktemp("state")
    given = [
        started("everything", "stdio", elicit=accept, sample=sampled, roots=roots),
        started("filesystem", str(folder)),
        started("memory", env={"MEMORY_FILE_PATH": str(state / "memory.jsonl")}),
        started("sequential-thinking"),
        started("time", "--local-timezone", "UTC"),
        started("git", "--repository", str(folder)),
        started("fetch", "--ignore-robots-txt", "--allow-private-ips"),
        started("sqlite", "--db-path", str(state / "t.db")),
        started("calculator"),
    ]
    with connect_all(given) as connected:
        yield {each.name: each for each in connected.servers}


# Server, tool, arguments (`$` stands for the folder, `@` for the page), and a piece of the text
# that comes back.
CALLS = [
    ("everything", "echo", {"message": "hi"}, "hi"),
    (
        "everything",
        "get-annotated-message",
        {"messageType": "error", "includeImage": True},
        "Error",
    ),
    ("everything", "get-env", {}, "PATH"),
    ("everything", "get-resource-links", {"count": 2}, "resource"),
    ("everything", "get-resource-reference", {"resourceType": "Text", "resourceId": 1}, "resource"),
    ("everything", "get-structured-content", {"location": "Chicago"}, "temperature"),
    ("everything", "get-sum", {"a": 2, "b": 3}, "5"),
    ("everything", "get-tiny-image", {}, "image"),
    (
        "everything",
        "gzip-file-as-resource",
        {"name": "a.gz", "data": "data:text/plain;base64,aGk=", "outputType": "resourceLink"},
        "a.gz",
    ),
    ("everything", "toggle-simulated-logging", {}, "log"),
    ("everything", "toggle-simulated-logging", {}, "top"),
    ("everything", "toggle-subscriber-updates", {}, "pdat"),
    ("everything", "toggle-subscriber-updates", {}, "top"),
    ("everything", "trigger-long-running-operation", {"duration": 0.2, "steps": 2}, "completed"),
    ("everything", "get-roots-list", {}, "tmp"),
    ("everything", "trigger-elicitation-request", {}, "accept"),
    (
        "everything",
        "trigger-url-elicitation",
        {"url": "https://example.com/x", "message": "look"},
        "accept",
    ),
    (
        "everything",
        "trigger-sampling-request",
        {"prompt": "say", "maxTokens": 10},
        "from our model",
    ),
    ("filesystem", "read_file", {"path": "$/one.txt"}, "second"),
    ("filesystem", "read_text_file", {"path": "$/one.txt", "head": 1}, "first"),
    ("filesystem", "read_media_file", {"path": "$/dot.png"}, ""),
    ("filesystem", "read_multiple_files", {"paths": ["$/one.txt"]}, "second"),
    ("filesystem", "write_file", {"path": "$/two.txt", "content": "new"}, "two.txt"),
    (
        "filesystem",
        "edit_file",
        {"path": "$/two.txt", "edits": [{"oldText": "new", "newText": "newer"}], "dryRun": True},
        "newer",
    ),
    ("filesystem", "create_directory", {"path": "$/sub"}, "sub"),
    ("filesystem", "list_directory", {"path": "$"}, "one.txt"),
    ("filesystem", "list_directory_with_sizes", {"path": "$"}, "one.txt"),
    ("filesystem", "directory_tree", {"path": "$/sub"}, "[]"),
    ("filesystem", "search_files", {"path": "$", "pattern": "one*"}, "one.txt"),
    ("filesystem", "get_file_info", {"path": "$/one.txt"}, "size"),
    ("filesystem", "list_allowed_directories", {}, "$"),
    (
        "memory",
        "create_entities",
        {"entities": [{"name": "Ada", "entityType": "person", "observations": ["counts"]}]},
        "",
    ),
    (
        "memory",
        "create_relations",
        {"relations": [{"from": "Ada", "to": "Ada", "relationType": "is"}]},
        "",
    ),
    (
        "memory",
        "add_observations",
        {"observations": [{"entityName": "Ada", "contents": ["writes"]}]},
        "",
    ),
    ("memory", "read_graph", {}, "Ada"),
    ("memory", "search_nodes", {"query": "Ada"}, "Ada"),
    ("memory", "open_nodes", {"names": ["Ada"]}, "Ada"),
    (
        "memory",
        "delete_observations",
        {"deletions": [{"entityName": "Ada", "observations": ["writes"]}]},
        "",
    ),
    (
        "memory",
        "delete_relations",
        {"relations": [{"from": "Ada", "to": "Ada", "relationType": "is"}]},
        "",
    ),
    (
        "sequential-thinking",
        "sequentialthinking",
        {"thought": "t", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1},
        "thoughtNumber",
    ),
    ("time", "get_current_time", {"timezone": "UTC"}, "UTC"),
    (
        "time",
        "convert_time",
        {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Europe/London"},
        "Europe/London",
    ),
    ("git", "git_status", {"repo_path": "$"}, "one.txt"),
    ("git", "git_diff_unstaged", {"repo_path": "$"}, "last"),
    ("git", "git_add", {"repo_path": "$", "files": ["one.txt"]}, "staged"),
    ("git", "git_diff_staged", {"repo_path": "$"}, ""),
    ("git", "git_diff", {"repo_path": "$", "target": "HEAD"}, ""),
    ("git", "git_reset", {"repo_path": "$"}, ""),
    ("git", "git_log", {"repo_path": "$", "max_count": 1}, "one"),
    ("git", "git_show", {"repo_path": "$", "revision": "HEAD"}, "one"),
    ("git", "git_branch", {"repo_path": "$", "branch_type": "local"}, "main"),
    ("git", "git_checkout", {"repo_path": "$", "branch_name": "main"}, "main"),
    ("fetch", "fetch", {"url": "@"}, "bristles"),
    ("sqlite", "create_table", {"query": "CREATE TABLE IF NOT EXISTS t (n INTEGER)"}, ""),
    ("sqlite", "write_query", {"query": "INSERT INTO t VALUES (7)"}, "affected"),
    ("sqlite", "read_query", {"query": "SELECT n FROM t"}, "7"),
    ("sqlite", "list_tables", {}, "t"),
    ("sqlite", "describe_table", {"table_name": "t"}, "INTEGER"),
    ("sqlite", "append_insight", {"insight": "seven"}, ""),
    ("calculator", "calculate", {"expression": "6*7"}, "42"),
]
# Those that cannot be called twice with the same arguments.
ONCE = [
    ("filesystem", "move_file", {"source": "$/two.txt", "destination": "$/three.txt"}, "three.txt"),
    ("memory", "delete_entities", {"entityNames": ["Ada"]}, ""),
    ("git", "git_create_branch", {"repo_path": "$", "branch_name": "side"}, "side"),
    ("git", "git_commit", {"repo_path": "$", "message": "two"}, "ommit"),
]


def meant(value, folder: Path, page: str):
    if isinstance(value, str):
        return (
            page
            if value == "@"
            else value.replace("$", str(folder))
            if value.startswith("$")
            else value
        )
    if isinstance(value, list):
        return [meant(each, folder, page) for each in value]
    return (
        {key: meant(each, folder, page) for key, each in value.items()}
        if isinstance(value, dict)
        else value
    )


def text_of(value) -> str:
    return value if isinstance(value, str) else str(value)


def test_all_63_tools_of_nine_servers_are_listed(servers) -> None:
    """17 of them only because we declared elicitation, sampling and roots."""
    counts = {name: len(each.tools) for name, each in servers.items()}
    assert counts == {
        "everything": 17, "filesystem": 14, "memory": 9, "sequential-thinking": 1, "time": 2, "git": 12, "fetch": 1, "sqlite": 6, "calculator": 1,
    }  # fmt: skip
    assert sum(counts.values()) == 63
    assert not any(each.dropped for each in servers.values())


def test_every_tool_can_be_called_under_a_grammar_and_no_schema_is_widened_in_silence(
    servers,
) -> None:
    found = {
        (name, each.name): judged(each.parameters)
        for name, server in servers.items()
        for each in server.tools
    }
    assert {tool: faults for tool, (_, faults) in found.items() if faults} == {}
    assert Counter(level for level, _ in found.values()) == {"exact": 60, "rewritten": 3}


def test_the_table_below_calls_every_tool_that_can_be_called(servers) -> None:
    called = {(server, tool) for server, tool, *_ in [*CALLS, *ONCE]}
    listed = {(name, each.mcp.name) for name, server in servers.items() for each in server.tools}
    assert listed - called == {
        ("everything", "simulate-research-query"),
    }  # which wants to be a task (M42)


def test_both_eras_are_met(servers) -> None:
    """Three servers speak 2026-07-28, the others were asked and answered with the handshake."""
    modern = {name for name, each in servers.items() if each.info.protocol_version == "2026-07-28"}
    assert modern == {"time", "git", "fetch"}


@pytest.mark.parametrize("name", list(dict.fromkeys(server for server, *_ in CALLS)))
def test_a_right_call_of_every_tool_works_from_sync_and_async_code(
    servers,
    folder,
    page,
    name: str,
) -> None:
    """One test a server, as the rows build on one another."""
    tools = {each.mcp.name: each for each in servers[name].tools}
    for tool, arguments, expected in [row[1:] for row in CALLS if row[0] == name]:
        given = meant(arguments, folder, page)
        assert meant(expected, folder, page) in text_of(tools[tool](**given)), tool
        if "toggle" not in tool:  # what was switched on stays so for the next row
            assert asyncio.run(tools[tool].acall(**given)) is not None, tool
    for tool, arguments, expected in [row[1:] for row in ONCE if row[0] == name]:
        if tool == "git_commit":
            subprocess.run(["git", "add", "one.txt"], cwd=folder, check=True)
        assert expected in text_of(tools[tool](**meant(arguments, folder, page))), tool


def test_a_secret_of_this_process_is_not_seen_by_the_child(
    servers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    with started("everything", "stdio", env={"GIVEN": "yes"}) as tools:
        seen = text_of(tools["get-env"]())
    assert "MY_SECRET" not in seen
    assert "hunter2" not in seen
    assert "GIVEN" in seen


def test_a_tool_that_must_be_a_task_is_called_as_one() -> None:
    told: list = []
    with started(
        "everything",
        "stdio",
        on_progress=lambda *progress: told.append(progress),
    ) as tools:
        assert "Research Report: rivers" in tools["simulate-research-query"](topic="rivers")
    assert [each[0] for each in told[:1]] == ["simulate-research-query"]


def test_progress_is_told_with_the_tool(servers) -> None:
    told: list = []
    with started(
        "everything",
        "stdio",
        on_progress=lambda *progress: told.append(progress),
    ) as tools:
        tools["trigger-long-running-operation"](duration=0.4, steps=2)
    assert [each[:3] for each in told] == [
        ("trigger-long-running-operation", 1.0, 2.0),
        ("trigger-long-running-operation", 2.0, 2.0),
    ]


def test_progress_keeps_a_call_alive_that_takes_longer_than_its_timeout(servers) -> None:
    """4 s of work in steps of 0.5 s under a timeout of 2.5 s."""
    with started("everything", "stdio", timeout_s=2.5) as tools:
        assert "completed" in tools["trigger-long-running-operation"](duration=4, steps=8)
    with (
        started("everything", "stdio", timeout_s=2.5, total_timeout_s=None) as tools,
        pytest.raises(MCPError),
    ):
        tools["trigger-long-running-operation"](duration=4, steps=8)


def test_resources_and_prompts_are_listed_and_read(servers) -> None:
    server = servers["everything"]
    assert server.resources()
    assert server.resource_templates()
    assert server.read_resource("demo://resource/dynamic/text/1")[0]["text"]
    assert {"simple-prompt", "args-prompt"} <= {each["name"] for each in server.prompts()}
    assert "Paris" in str(server.get_prompt("args-prompt", {"city": "Paris"}))
    assert servers["filesystem"].resources() == []  # it has none, and says so


def test_a_server_that_cannot_start_tells_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(
        MCPError,
        match=r"exited with code \d+.*no such|ENOENT|Error|does not exist",
    ):
        started("filesystem", str(tmp_path / "nowhere")).connect()


@pytest.mark.parametrize("transport", ["streamableHttp", "sse"])
def test_the_same_server_works_over_http(transport: str) -> None:
    command = mcp_servers.command("everything")
    port = mcp_servers.free_port()
    with mcp_servers.listening([*command, transport], {"PORT": str(port)}, port):
        make, path = (
            (MCPServer.http, "mcp") if transport == "streamableHttp" else (MCPServer.sse, "sse")
        )
        with make(
            f"http://127.0.0.1:{port}/{path}",
            elicit=accept,
            sample=sampled,
            roots=roots,
        ) as tools:
            assert len(tools) == 17
            assert "hi" in tools["echo"](message="hi")
            assert "accept" in text_of(tools["trigger-elicitation-request"]())
            assert "from our model" in text_of(
                tools["trigger-sampling-request"](prompt="say", maxTokens=10),
            )


def test_a_legacy_http_server_that_was_started_again_is_met_with_a_new_session() -> None:
    """The session is unknown to the new process; what it refused did not run, so the call is made
    again.
    """
    command = mcp_servers.command("everything")
    port = mcp_servers.free_port()
    server = MCPServer.http(f"http://127.0.0.1:{port}/mcp")
    with mcp_servers.listening([*command, "streamableHttp"], {"PORT": str(port)}, port):
        assert "one" in str(server.call("echo", {"message": "one"}))
    with pytest.raises(MCPError) as down:
        server.call("echo", {"message": "down"})
    assert down.value.may_have_run is False
    with mcp_servers.listening([*command, "streamableHttp"], {"PORT": str(port)}, port):
        assert "two" in str(server.call("echo", {"message": "two"}))
    server.close()


def test_a_missing_command_is_an_error_of_ours() -> None:
    with pytest.raises((MCPError, ConfigurationError), match="no-such-command"):
        MCPServer.stdio("no-such-command-anywhere").connect()
